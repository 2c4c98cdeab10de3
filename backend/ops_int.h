/* ops_int.h - what ops.c and its siblings ops_*.c check and count alike. */
#ifndef BACKEND_OPS_INT_H
#define BACKEND_OPS_INT_H

#include "backend/ops.h"

static inline bool same_shape(mat a, mat b)
{
    return a.rows == b.rows && mat_width(a) == mat_width(b) && a.cols == b.cols;
}

static inline bool is_vector(const weight *w, int32_t n)
{
    return !w || (w->type == NUM_F32 && w->n_in == n && w->n_out == 1);
}

static inline void stats_product(pass *p, int64_t rows, const weight *w, double share)
{
    p->n_flops += (uint64_t)(2.0 * (double)rows * w->n_in * w->n_out);
    p->weight_bytes_read +=
        (uint64_t)((double)(w->packed_bytes ? w->packed_bytes : w->n_bytes) * share);
}

/* ---- ops.c ---- */

/* False: an error of the pass. `op` names the caller in it. */
bool ops_knows_act(pass *p, const char *op, act_kind act);
/* Does op_glu take these? The room of its result; its products are counted. */
bool ops_glu_fits(pass *p, mat x, const weight *gate, const weight *up, act_kind act);
mat ops_glu_room(pass *p, mat x, const weight *gate, const weight *up);

/* ---- ops_towers.c ---- */

/* Does the device have the ops of pictures? As ops_knows_act. */
bool ops_has_vision(pass *p, const char *op);

#endif
