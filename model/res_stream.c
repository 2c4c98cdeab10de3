/* res_stream.c - see res_stream.h. */
#include "model/res_stream.h"

static void norm_into(pass *p, res_stream *s, const residual *r, const weight *w)
{
    const norm_want want = {w, 1.0f};
    s->h = s->room[p->here];
    s->side = p->here;
    op_residual(p, s->x, r, &s->h, &want, w ? 1 : 0);
    if (!w)
        s->h.rows = 0;
}

mat res_enter(pass *p, res_stream *s, const weight *w)
{
    if (!s->room[p->here].rows)
        s->room[p->here] = op_norm_room(p, s->x);
    if (s->h.rows != s->x.rows || s->side != p->here)
        norm_into(p, s, &(residual){.eps = s->eps}, w);
    return s->h;
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
