/* report.h - where the time of a generation went.
 *
 * A report is begun, told of each stage as it passes, and ended. It knows no generation: whoever
 * ends it adds what the generation says of itself (generation_report) to t. */
#ifndef ENGINE_REPORT_H
#define ENGINE_REPORT_H

#include "engine/engine_int.h"
#include "engine/experts.h"

typedef struct report {
    carat_timings t;
    double start_ms, mark_ms;
    expert_sums experts; /* at report_prompt */
} report;

/* Zeroes *r and starts its clock. */
void report_begin(report *r, const carat_model *m);
void report_waited(report *r); /* in a queue, until now */
/* The prompt has found its place in t, and computing begins. */
void report_prompt(report *r, int64_t n_prompt, const timeline *t);
/* The first n_done tokens of the prompt are in its timeline. Fewer than before: no change. */
void report_computed(report *r, int64_t n_done);
void report_prefilled(report *r); /* the first logits are there */
void report_decoded(report *r);   /* the last token was sampled */
/* What the attention of t has left out since timeline_forget_stats. */
void report_sparse(report *r, const timeline *t);
/* Which tokens of t were computed while keys were away. */
void report_pages(report *r, const timeline *t);
/* What passes did with experts since report_prompt. */
void report_experts(report *r, const carat_model *m);
/* Copies the timings to t, which may be NULL. Without generation_report before it, they say
 * CARAT_FINISH_CANCELLED. */
void report_end(report *r, carat_timings *t);

#endif
