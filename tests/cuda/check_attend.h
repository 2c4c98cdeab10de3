/* check_attend.h - attention over one store against the reference: check_attend.c. */
#ifndef TESTS_CUDA_CHECK_ATTEND_H
#define TESTS_CUDA_CHECK_ATTEND_H

#include "tests/cuda/check_int.h"

/* A scale of skip-softmax that drops nothing, by the kernels that could. */
#define ATTEND_NEVER 1e-37f

typedef struct attend_case {
    num_type type;
    int32_t n_head, n_head_kv, d, window, n_ctx, past, rows;
    bool tree, two_seqs;
    num_type values; /* 0 (f32 keys have f32 values here): as keys */
    bool rot;
    int32_t turning;   /* turning pairs of one stream; 0: two streams */
    bool wide;         /* keys beyond 65504 */
    bool all;          /* rows see all rows of their sequence */
    bool sinks;        /* surely; else half of the cases have them */
    int32_t later;     /* rows see all of their block of so many rows; 0: off */
    int32_t cut;       /* two_seqs: rows of the first; 0: half of them */
    float skip;        /* of skip-softmax; 0: off */
    float alpha;       /* of block selection; 0: off */
    int32_t n_prompt;  /* alpha: 0: more than the pass has */
    int32_t least;     /* skip, answers: shorter rows are exact */
    const char *label; /* NULL: the check's name follows from the rest */
} attend_case;
/* Results, stored bytes, rows alone, pages, slices, trees against chains; what was left out. */
void check_attend(rig *g, const attend_case *a);
/* check_sparse.c: called by check_attention. */
void check_sparse_attention(rig *g);

#endif
