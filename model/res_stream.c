/* res_stream.c - see res_stream.h. */
#include "model/res_stream.h"

static void norm_into(pass *p, res_stream *s, const residual *r, const weight *w)
{
    const norm_want want = {w, 1.0f};
    norm_room h = s->h[p->here];
    op_residual(p, s->x, r, &h, &want, w ? 1 : 0);
    s->made = w ? s->x.rows : 0;
    s->side = p->here;
}

mat res_enter(pass *p, res_stream *s, const weight *w)
{
    norm_room *h = &s->h[p->here];
    if (!h->y.rows)
        *h = op_norm_room(p, s->x);
    if (s->made != s->x.rows || s->side != p->here)
        norm_into(p, s, &(residual){.eps = s->eps}, w);
    mat y = h->y;
    y.rows = s->x.rows;
    return y;
}

void res_leave(pass *p, res_stream *s, residual r)
{
    r.eps = s->eps;
    norm_into(p, s, &r, s->next);
}

bool res_rows_stay(const pass *p, bool cut)
{
    return cut || p->rows->n == p->st->out.n;
}
