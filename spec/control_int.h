/* control_int.h - what control.c and times.c share: measured times, and counts of acceptance. */
#ifndef SPEC_CONTROL_INT_H
#define SPEC_CONTROL_INT_H

#include "spec/control.h"

enum {
    WIDTHS = 112,     /* 1 .. 64 rows one by one, then 8 per doubling, up to 4096 */
    CONTEXTS = 12,    /* below 512 tokens, below 1024, ... */
    SHARERS = 7,      /* timelines of one draft pass: 1, 2, 3-4, 5-8, ... 33-64 */
    SLOT_GROUPS = 16, /* slots 1 .. 15 one by one, then the others */
    PROB_BINS = 8,
    SAMPLES_FIRST = 3 /* of a time that is known well */
};

/* A measured time, smoothed. ms 0: not measured. */
typedef struct time_cell {
    float ms;
    int32_t n;     /* samples, at most SAMPLES_FIRST */
    int64_t round; /* of the last measurement */
} time_cell;

/* Trials that count less the older they are: `unit` is the weight of the next one. */
typedef struct trials {
    double hits, n;
} trials;

/* What became of nodes whose parent was accepted. */
typedef struct evidence {
    double unit;
    trials slot[DRAFT_SLOTS_MAX]; /* the drafter's best token of each slot */
    /* By rank (best, others), slot and the drafter's probability. */
    trials node[2][SLOT_GROUPS][PROB_BINS];
    trials told[2][PROB_BINS]; /* the same of all slots: how far the drafter's numbers are right */
    double lift; /* expected tokens of trees over those of chains of the same drafts; 0: unknown */
} evidence;

struct draft_times {
    time_cell pass[CONTEXTS][WIDTHS];
    time_cell draft[DRAFTERS_MAX][SHARERS][DRAFT_SLOTS_MAX + 1];
    evidence all[DRAFTERS_MAX]; /* of all requests */
    int64_t n_rounds;
    int64_t n_opened; /* controls, for their seeds */
    double rate;      /* expected tokens per ms of the chosen round; 0: none is expected */
};

/* The expected time of a pass; 0: nothing like it was measured. Never falls with rows where it is
 * not measured. */
double times_pass(const draft_times *t, int32_t rows, int64_t n_ctx);
/* The same for a choice of more rows than n_plain: costs measured long ago count less. */
double times_pass_over(const draft_times *t, int32_t rows, int32_t n_plain, int64_t n_ctx);
/* The expected time of drafting n_slots for n timelines at once; `guess` if never measured. */
double times_draft(const draft_times *t, int32_t which, int32_t n_slots, int32_t n, double guess);
/* The most rows worth an attempt: four times what was measured twice, or plain passes. */
int32_t times_widest(const draft_times *t, int64_t n_ctx);
bool times_measured(const draft_times *t, int32_t rows, int64_t n_ctx);
/* Whether passes of these rows were measured well, and in the last n rounds. */
bool times_known(const draft_times *t, int32_t rows, int64_t n_ctx, int64_t n);

void times_add_pass(draft_times *t, int32_t rows, int64_t n_ctx, double ms);
/* guess: as times_draft. */
void times_add_draft(draft_times *t, int32_t which, int32_t n_slots, int32_t n, double ms,
                     double guess);

#endif
