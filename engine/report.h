/* report.h - where the time of a generation went. */
#ifndef ENGINE_REPORT_H
#define ENGINE_REPORT_H

#include "engine/generation.h"

typedef struct report {
    carat_timings t;
    double start_ms, mark_ms;
} report;

void report_begin(report *r, const carat_model *m);
void report_waited(report *r); /* in a queue, until now */
/* The prompt has found its place in t, and computing begins. */
void report_prompt(report *r, int64_t n_prompt, const timeline *t);
void report_prefilled(report *r); /* the first logits are there */
void report_decoded(report *r);   /* the last token was sampled */
/* g NULL: it failed. t may be NULL. */
void report_end(report *r, const generation *g, carat_timings *t);

#endif
