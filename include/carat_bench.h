/* carat_bench.h - what measurements and tests of libcarat need beside carat.h, and a program does
 * not: drafts whose outcome is decided beforehand, and timelines that nothing computed. */
#ifndef CARAT_BENCH_H
#define CARAT_BENCH_H

#include "carat.h"

#ifdef __cplusplus
extern "C" {
#endif

/* carat_generate_options.script: drafts whose outcome is decided beforehand take the place of the
 * drafter's own, which are computed all the same. Round i drafts accept[i % n_accept] of the next
 * tokens of answer rightly, and what follows wrongly. */
typedef struct carat_bench_script {
    const int32_t *answer; /* [n_answer] tokens, as the answer has them without a drafter */
    int64_t n_answer;
    const int32_t *accept; /* [n_accept] */
    int32_t n_accept;
    int32_t rank; /* in trees: the right tokens are the best of their places after `rank` others */
    /* [n_chance] what the drafts say of themselves: the probability of the best token of each
     * place, 0 to 1. Places after the last one take its number. NULL: one half everywhere. */
    const float *chance;
    int32_t n_chance;
} carat_script;

/* Makes ids[0..n) the whole timeline without computing them. Their keys and
 * values are whatever the session's memory holds, zeros at first, so later logits mean nothing, but
 * take the time that they would take. No drafter is told. E_UNSUPPORTED: the model has recurrent
 * layers; E_LIMIT as carat_eval. */
CARAT_API carat_status carat_pretend(carat_session *s, const int32_t *ids, int64_t n,
                                     carat_error *e);

/* Times of passes on a GPU, and of their ops, for decoded tokens of a model on one device. A pass
 * runs as always, or every other time op by op: there kernels do not overlap, so an op's time is
 * that of the op alone. Small ops that are computed together have one line. */
typedef struct carat_pass_times {
    double
        read_bytes;   /* per second, by a kernel that only reads, over much memory: just measured */
    double launch_ms; /* of a kernel that does nothing, one of many in a recorded pass */
    double pass_ms;   /* of a pass on the GPU, as always: the mean */
    int32_t n_whole, n_split; /* passes as always, and op by op */
    int32_t n_kernels;        /* of the last pass */
} carat_pass_times;
/* From here on times are taken, until carat_timed_passes. E_UNSUPPORTED: the model is not on one
 * GPU that records passes. E_MEMORY: too little of its memory is free. No call may be computing on
 * the model meanwhile. */
CARAT_API carat_status carat_time_passes(carat_model *m, carat_error *e);
/* Copies at most cap lines to list and returns the number copied; their times are sums over the
 * passes that ran op by op. */
CARAT_API int32_t carat_timed_passes(carat_model *m, carat_pass_times *t, carat_op_time *list,
                                     int32_t cap);

#ifdef __cplusplus
}
#endif
#endif
