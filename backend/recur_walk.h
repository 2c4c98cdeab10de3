/* recur_walk.h - where recurrent layers keep what, and which row follows which: the host's half.
 *
 * Whatever reads or writes a recurrent store on the host asks this file; kernels ask their twin in
 * cuda/recur.cu.
 *
 *     inputs of the convolution, oldest first
 *
 *     conv [n_taps - 1]   pending [n_pending]      rows of the pass
 *     c0 c1 c2            p0 p1                    r0 r1 r2 ...
 *           `----------------'
 *            the context: the last n_taps - 1 of conv and pending, which conv holds from then on
 */
#ifndef BACKEND_RECUR_WALK_H
#define BACKEND_RECUR_WALK_H

#include "backend/step.h"

#include <stddef.h>

/* What a row of a journal holds, by its parts. */
typedef struct recur_row {
    float *inputs; /* [channels] */
    float *keys;   /* [n_k][dk] */
    float *errors; /* [n_v][dv] */
    float *decays; /* [n_v]: the factors of the state */
} recur_row;

static inline recur_row recur_row_at(const recur_view *v, const recur_base *b, int32_t bank,
                                     int32_t row)
{
    recur_row r = {.inputs = b->journal[bank] + (size_t)row * (size_t)recur_journal_row(v)};
    r.keys = r.inputs + recur_channels(v);
    r.errors = r.keys + (size_t)v->n_k * (size_t)v->dk;
    r.decays = r.errors + (size_t)v->n_v * (size_t)v->dv;
    return r;
}

/* The nth pending row of a sequence. */
static inline recur_row recur_pending(const recur_view *v, const recur_base *b, const recur_seq *s,
                                      int32_t nth)
{
    return recur_row_at(v, b, s->bank, s->pending[nth]);
}

static inline const recur_base *step_recur(const step *st, int32_t seq, const recur_view *v)
{
    return &st->recur[(size_t)seq * (size_t)st->n_recur + (size_t)v->id];
}

/* The rows from the committed context down to the parent of row r, oldest first: their numbers to
 * `path`, which has room for STEP_TREE_ROWS_MAX. Returns how many. */
static inline int32_t recur_ancestors(const step *st, int32_t r, int32_t *path)
{
    int32_t n = 0;
    for (int32_t a = st->parent[r]; a >= 0 && n < STEP_TREE_ROWS_MAX; a = st->parent[a])
        path[n++] = a;
    for (int32_t i = 0; i < n / 2; i++) {
        int32_t t = path[i];
        path[i] = path[n - 1 - i];
        path[n - 1 - i] = t;
    }
    return n;
}

#endif
