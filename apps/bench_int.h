/* bench_int.h - what the files of `carat bench` share.
 *
 *     bench.c         options, the tests, the order they run in
 *     bench_floors.c  the limits of this machine: memory reads, f32 and int8 arithmetic
 *     bench_streams.c several answers in one batch
 *     bench_spec.c    answers with drafts, whose acceptance may be scripted
 *     bench_picture.c pictures and sounds: the tower's pass, and that over its soft tokens
 *     bench_profile.c one test's time per op, beside the least time of the machine
 *     bench_tail.c    the part of a token's time that is not reading, by op
 *     bench_vs.c      another program's time for the same test, through its JSON
 *     bench_report.c  the table and the JSON
 */
#ifndef APPS_BENCH_INT_H
#define APPS_BENCH_INT_H

#include "base/err.h"
#include "carat_bench.h"

#include <stdio.h>

enum { BENCH_REPS_MAX = 100, BENCH_LIST_MAX = 16, BENCH_OPS_MAX = 512 };

/* Rates per second, of all threads together. */
typedef struct bench_ceilings {
    double read_bytes; /* from a buffer that no cache holds */
    double f32_flops;  /* fused multiply-adds count twice */
    double int8_ops;   /* 8-bit multiply-accumulates into 32 bits, counted twice too */
    int32_t n_threads;
} bench_ceilings;

/* Longer than most bursts of other work on the machine, and several times the last cache. Tests,
 * which need no true figures, set less. */
typedef struct bench_effort {
    int rounds, loop_ms;       /* of each of three loops, at least */
    size_t read_min, read_max; /* bytes of the buffer */
    bool read_alone;           /* the other loops are not measured: zeros */
} bench_effort;
extern bench_effort bench_ceilings_effort;

/* n_threads 0: one per physical core. Takes about two seconds. */
status bench_measure_ceilings(int32_t n_threads, bench_ceilings *c, err *e);

typedef struct bench_samples {
    int64_t ns[BENCH_REPS_MAX];
    int32_t n;
} bench_samples;

double bench_median_ns(const bench_samples *s);
double bench_spread(const bench_samples *s); /* half of (slowest - fastest), over the median */

enum { BENCH_SLOTS_MAX = 63 };

/* What is drafted, and what comes of it. */
typedef struct bench_script {
    const char *drafter;           /* --spec; NULL: nothing is drafted */
    int32_t n_max, tree_max;       /* n_max > 0: always so many; 0: the engine chooses */
    int32_t *accept;               /* [n_accept] accepted drafts of each round, in turn; owned */
    int32_t n_accept;              /* 0: the drafter's own drafts */
    float chance[BENCH_SLOTS_MAX]; /* [n_chance] of each slot: what the drafts say of themselves */
    int32_t n_chance;
} bench_script;

/* list: "0.8,0.7": the chance of each slot whose predecessors were accepted; mean >= 0: so many
 * accepted drafts per round, on average. One of the two may be given. */
status bench_script_read(bench_script *s, const char *list, double mean, err *e);

/* Of a token, where the others are not of all: what is not reading. */
typedef struct bench_tail {
    double token_ms, bytes, read_ms, tail_ms; /* token = read + tail */
    double ops_ms;                            /* of all ops; the rest is between them */
    double rate;                              /* bytes per second that a loop, or a kernel, reads */
    int32_t n_passes;                         /* that bench_test.ops are the sums of; 0: no tail */
    /* On a GPU: its part of a token; kernels, and what as many take that do nothing. */
    double pass_ms, nothings_ms;
    int32_t n_kernels;
} bench_tail;

/* One line of the table: n_prompt tokens in passes of a chunk, or n_gen tokens one by one, after
 * n_depth cached tokens. One of the two is 0. With n_streams > 0: so many answers of n_gen tokens
 * side by side. With spec: answers with drafts, and `plain` are the same answers without. */
typedef struct bench_test {
    int32_t n_prompt, n_gen, n_depth, n_streams;
    bool spec;
    int32_t n_shared; /* with n_streams: tokens at the start of all prompts */
    /* Not 0: the prompt is a picture of at most n_picture soft tokens, or a sound of n_seconds.
     * n_prompt is its real number of tokens. `plain` is the pass over them without the tower. */
    int32_t n_picture, n_seconds;
    bench_samples ours, other, plain;
    /* With n_streams: tokens of keys of all answers, and those that several share, while all are
     * under way. */
    int32_t pool_used, pool_shared;
    /* spec, of all repetitions. n_tokens: all but the first of each answer, which the pass of the
     * prompt gives. */
    int64_t n_tokens, n_rounds, n_drafted, n_accepted;
    bench_tail tail;
    /* With --floors, and with --tail on a CPU: the ops of the fastest repetition; with --tail on a
     * GPU those of other passes. Owned. With n_streams: of passes in which all answer. */
    carat_op_time *ops;
    int32_t n_ops, n_passes;
    int64_t ops_ns; /* how long the n_passes passes of that repetition took */
} bench_test;

enum { BENCH_SOUND_TOKENS = 25 }; /* of a second, at most */

static inline bool bench_is_medium(const bench_test *t)
{
    return t->n_picture || t->n_seconds;
}

static inline int32_t bench_tokens(const bench_test *t)
{
    return t->n_prompt + t->n_gen * (t->n_streams ? t->n_streams : 1);
}

typedef struct bench_setup {
    const char *model_path;                          /* NULL: the bundled model */
    const char *other;                               /* program to compare with, or NULL */
    const char *kv_k, *kv_v, *kv_layers, *kv_single; /* the last two may be NULL */
    int32_t n_threads, n_reps, chunk;
    bool json, floors, tail;
    bool blank; /* the tokens of depths are not computed */
    bench_script script;
    carat_model_info info;
    carat_memory_plan plan;
    /* In use by the model and one session after the tests; by device, as the plan has them. */
    uint64_t used_bytes[CARAT_DEVICES_MAX];
    bench_ceilings ceilings;
    double ceilings_ms; /* when they were measured */
    double load_ms;
    carat_pool_info pool; /* after the tests */
} bench_setup;

/* t->n_streams answers side by side, n_reps times, in a batch of sessions like so. */
status bench_run_streams(const bench_setup *b, carat_model *m, const carat_session_options *so,
                         bench_test *t, err *e);

/* A new picture or sound in every repetition, alone in the session. */
status bench_run_medium(const bench_setup *b, carat_model *m, carat_session *s, bench_test *t,
                        err *e);

/* Options of an answer of t; answer: [t->n_gen], of the same prompt without drafts, or NULL. */
carat_generate_options bench_answer_options(const bench_setup *b, const bench_test *t,
                                            carat_script *script, const int32_t *answer);
/* Counts what became of the drafts of one answer. */
void bench_count_rounds(bench_test *t, const carat_timings *tm);
/* An error where two answers to one prompt differ. */
status bench_same_answer(const int32_t *plain, const int32_t *spec, int32_t n, err *e);
/* One answer after the session's tokens ids[0 .. t->n_depth], without drafts and with. */
typedef struct bench_answer {
    int32_t *id; /* [t->n_gen] */
    int32_t n;
    int64_t ns; /* for t->n_gen tokens */
} bench_answer;
status bench_generate(const bench_setup *b, carat_session *s, const int32_t *ids, bench_test *t,
                      const bench_answer *plain, bench_answer *a, err *e);
/* Passes over one answer per token of it. */
double bench_passes_per_token(const bench_test *t);

/* Runs setup->other once for t and adds its time. E_CANCELLED after Ctrl-C. */
status bench_run_other(const bench_setup *b, bench_test *t, err *e);

/* The least time for an op's calls on this machine: the longest time by any ceiling. *bound names
 * that ceiling: "read", "int8" or "f32"; "" if none limits the op. */
double bench_floor_ms(const bench_ceilings *c, const carat_op_time *t, const char **bound);
/* Orders carat_op_time. */
int bench_longest_first(const void *a, const void *b);
/* Keeps the table of ops of the last repetition, whose n_passes passes (of a prompt: tokens) took
 * ns, if it is the fastest so far. */
status bench_keep_ops(carat_model *m, bench_test *t, int64_t ns, int32_t n_passes, err *e);
void bench_print_ops(const bench_setup *b, const bench_test *t, FILE *f);

/* Fills t->tail of a decoding test: from its own ops, by its tokens once more, or from passes since
 * carat_time_passes. */
void bench_tail_of_cpu(const bench_setup *b, bench_test *t);
status bench_take_tail(carat_model *m, bench_test *t, err *e);
status bench_tail_of_gpu(carat_model *m, carat_session *s, const int32_t *ids, bench_test *t,
                         err *e);
/* Milliseconds of a token that an op takes beyond the reading of its bytes. */
double bench_op_tail_ms(const bench_tail *t, const carat_op_time *op);
void bench_print_tail(const bench_test *t, FILE *f);

void bench_print_ceilings(const bench_ceilings *c, FILE *f);
void bench_print_head(const bench_setup *b, FILE *f);
void bench_print_test(const bench_setup *b, const bench_test *t, FILE *f);
void bench_print_foot(const bench_setup *b, FILE *f);
/* setup NULL: ceilings alone. False when memory ran out or stdout failed. */
bool bench_print_json(const bench_setup *b, const bench_ceilings *c, const bench_test *t, int n);

#endif
