/* report.h - where the time of a generation went. */
#ifndef ENGINE_REPORT_H
#define ENGINE_REPORT_H

#include "carat.h"

typedef struct report {
    carat_timings t;
    double start_ms, mark_ms;
} report;

void report_begin(report *r, const carat_session *s);
void report_prompt(report *r, int64_t n_prompt, int64_t n_reused);
void report_prefilled(report *r);                               /* the first logits are there */
void report_decoded(report *r, int64_t n_generated);            /* the last token was sampled */
void report_end(report *r, carat_finish why, carat_timings *t); /* t may be NULL */

#endif
