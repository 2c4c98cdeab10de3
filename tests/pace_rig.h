/* pace_rig.h - a batch of made-up times: clients that ask, parts of prompts that engine/pace.c cuts,
 * and what they get. The clock is a sum, so a run of ten seconds takes milliseconds.
 *
 *     pass of n answers      by lines between the points of `answers`, and keys_ms
 *     part of n rows         by those of `parts`, and keys_ms
 *     both in one pass       the sum
 *
 * Prompts come in the order of their lengths and arrivals, as a batch takes them (slot.due).
 */
#ifndef TESTS_PACE_RIG_H
#define TESTS_PACE_RIG_H

#include "engine/pace.h"

enum { PACE_CLIENTS_MAX = 64, PACE_CHUNK = 2048, PACE_POINTS = 8 };

typedef struct pace_table {
    int32_t rows[PACE_POINTS]; /* ascending */
    double ms[PACE_POINTS];
} pace_table;

typedef struct pace_device {
    pace_table answers, parts;
    double keys_ms;      /* of a million keys before the rows */
    bool apart;          /* prompts and answers have passes of their own */
    double jitter, held; /* times are up to so much longer; the share that take ten times as long */
} pace_device;

/* Who asks: n clients, each as soon as it has its answer. first_ms: they begin within that time. */
typedef struct pace_company {
    int32_t n, prompt[2], answer[2]; /* tokens, least and most */
    double first_ms, from_ms, end_ms;
    int32_t n_asks; /* of each client; 0: until end_ms */
} pace_company;

/* How prompts are cut beside answers. */
typedef enum { PACE_RULE, PACE_WHOLE, PACE_FIXED } pace_cut;

typedef struct pace_way {
    pace_cut cut;
    double gap_ms; /* PACE_RULE */
    int32_t rows;  /* PACE_FIXED */
} pace_way;

typedef struct pace_outcome {
    double tokens;       /* per second, from from_ms on */
    double late, first;  /* 99 % of the gaps between tokens; mean time to the first token; ms */
    double ms;           /* until the last answer ended, or end_ms */
    int32_t n_unended;   /* requests that had no whole answer when no pass was left */
    int32_t n_kept, n_lost; /* gaps where the gap could be kept for at most a fifth of all time: those
                               that were kept, and the others */
} pace_outcome;

double pace_part_ms(const pace_device *d, int32_t n, int64_t before);
double pace_answer_ms(const pace_device *d, int32_t n, double keys);
pace_outcome pace_run(const pace_device *d, const pace_company *who, pace_way way, uint64_t seed);
/* A device and a company: 1 to 64 clients, prompts of 20 to 8,000 tokens, answers of 1 to 1,000. */
void pace_draw(uint64_t seed, pace_device *d, pace_company *who);

#endif
