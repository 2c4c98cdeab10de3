/* check_pages.h - attention over the same keys in several placements: check_pages.c. */
#ifndef TESTS_CUDA_CHECK_PAGES_H
#define TESTS_CUDA_CHECK_PAGES_H

#include "tests/cuda/check_int.h"

/* A pass of op_kv_store and op_attend over one linear store of each sequence, two at most. */
typedef struct placed {
    const step *st;
    const kv_view *ref, *gpu; /* the view, with the weights of either device */
    const kv_base *base;      /* [n_seqs] memory of the host: has the committed keys */
    const float *q, *k, *v;   /* of the rows */
    int32_t n_head;
    float scale;
    const float *got; /* the device's result over its own store; NULL: not compared */
    double bound;     /* of errors */
} placed;
void check_placement(rig *g, const placed *t, const char *shape);

#endif
