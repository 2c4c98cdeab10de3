/* res_stream.h - the residual stream of a forward pass, and its norm.
 *
 *     h = res_enter: rms_norm(x) with the weight of the layer that begins
 *     res_leave: x += what the layer gives; h of the layer that follows, in the same kernel
 *
 * So h outlives the layer that made it. Its room is taken once on each side of the pass, before the
 * layers' marks.
 */
#ifndef MODEL_RES_STREAM_H
#define MODEL_RES_STREAM_H

#include "backend/ops.h"

typedef struct res_stream {
    mat x;              /* [rows, width] */
    float eps;          /* of the norms */
    const weight *next; /* the norm that follows the layer; NULL: the layer leaves h to that one */
    mat h;              /* without rows: it is not there */
    int32_t side;       /* h is on that side */
    mat room[PASS_SIDES_MAX];
} res_stream;

/* Before the layer's mark. w: the weight of its norm, which was `next` of the layer before. */
mat res_enter(pass *p, res_stream *s, const weight *w);
/* r->eps is set here. */
void res_leave(pass *p, res_stream *s, residual r);
/* Of a layer after which only the wanted rows go on: are these the rows that it leaves? cut: it
 * cuts them itself. If not, its norm would be of too many rows, and `next` is NULL. */
bool res_rows_stay(const pass *p, bool cut);

#endif
