/* pace.h - how many rows of prompts a pass has beside answers, by a model of time.
 *
 * An answer waits for the prompt rows between two of its tokens. So they are cut by time:
 *
 *     ms = a + b rows + c keys        keys: before each row, summed over the rows
 *
 * a is what a pass costs however few its rows are: a mixture's weights, the launches of a GPU.
 * There are two such models, one of passes of answers and one of the prompt rows beside them. Both
 * are fitted to times of passes that have ended, those of similar widths first. They belong to a
 * batch, so to one model on one machine, and follow what runs beside it.
 *
 * Plain data. Times decide how a prompt is cut, never what is answered.
 */
#ifndef ENGINE_PACE_H
#define ENGINE_PACE_H

#include <stdbool.h>
#include <stdint.h>

enum {
    PACE_RANGES = 16, /* of widths: 1 row, 2, 3 .. 4, 5 .. 8, ... */
    PACE_KEPT = 4     /* passes of each range */
};

/* Rows of one kind in a pass. */
typedef struct pace_work {
    int32_t rows;
    double keys; /* before each row, summed over the rows */
} pace_work;

/* The last passes of every range, so that a long time at one width forgets no other. */
typedef struct pace_times {
    struct {
        pace_work w, beside; /* beside: answers in the same pass */
        double ms;           /* of the pass; 0: none */
        int64_t at;          /* n, then */
    } of[PACE_RANGES][PACE_KEPT];
    int64_t n; /* passes so far */
} pace_times;

typedef struct pace {
    pace_times answers, prompts;
    pace_work last;       /* the last answers in a pass */
    int32_t last_prompts; /* the last prompt rows in one; 0: none so far */
    /* Of late: the time of passes of answers, the part of it that no prompt waited for, and rows of
     * prompts. */
    double answers_ms, free_ms, prompt_rows;
    double answers_alone_ms; /* of the last pass, if it had no prompts; else 0 */
} pace;

/* The work of n rows whose first one has `before` keys before it. */
static inline pace_work pace_rows_at(int32_t n, int64_t before)
{
    return (pace_work){n, (double)n * ((double)before + 0.5 * (double)(n - 1))};
}

/* A pass took ms. fresh: it was the first of its shape on a device that records shapes, so a pass
 * of answers alone says little of later ones. Passes of prompts are never recorded. */
void pace_measure(pace *p, pace_work answers, pace_work prompts, double ms, bool fresh);
/* Of a pass of answers like the last one, without prompts; 0: none was measured. */
double pace_answers_ms(const pace *p);
/* The time for prompt rows between two passes of answers, so that tokens come gap_ms apart. Where
 * answers alone take more than half of gap_ms, prompts get as much time as they: else a slow
 * machine would hardly compute prompts. */
double pace_budget_ms(const pace *p, double gap_ms);
/* Prompt rows for so much time, at most `most`, the first of which has `before` keys before it.
 *
 * The gap is kept where answers and prompts together take at most a fifth longer for it than with
 * prompts in parts of 512 rows. Where it is not, it is the target no more: of 1, 2, 3, .. equal
 * parts of what waits those are taken for which gap x (time of everything)^2 is least. A width that
 * was not timed counts as the widths around it allow at best, so it is tried once rather than never.
 */
int32_t pace_rows(pace *p, int32_t most, int64_t before, double budget_ms);

#endif
