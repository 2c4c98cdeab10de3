/* pace.h - how many rows of prompts a pass has beside answers, by measured times.
 *
 * An answer waits for the prompt rows between two of its tokens. So they are cut by time. A row of
 * a wide part costs less than a row of a narrow one: a part has fixed costs, which are the weights
 * of the experts that it touches, or all weights where prompts have passes of their own. So the
 * time of a row is kept by ranges of widths, and a part takes the most rows whose time is within
 * the budget.
 *
 * Only passes that have ended are measured. A device that works on its own is waited for where it
 * computes prompts while others wait. Its passes of answers alone are not measured.
 *
 * Plain data. Times decide how a prompt is cut, never what is answered.
 */
#ifndef ENGINE_PACE_H
#define ENGINE_PACE_H

#include <stdbool.h>
#include <stdint.h>

enum { PACE_RANGES = 16 }; /* 1 row, 2, 3 .. 4, 5 .. 8, ... */

typedef struct pace {
    double answers_ms; /* of a pass without prompts, smoothed; 0: not measured */
    struct {
        double row_ms; /* of a prompt's row in parts of such widths; 0: not measured */
        int64_t at;    /* n_measured of the last sample */
    } range[PACE_RANGES];
    int64_t n_measured; /* passes with prompts */
} pace;

/* A pass took ms. fresh: it was the first of its shape, whose time says little of later ones. */
void pace_measure(pace *p, int32_t n_answers, int32_t n_prompts, double ms, bool fresh);
/* The time for prompt rows between two passes of answers, so that these are gap_ms apart. Where
 * answers alone take most of gap_ms or more, prompts get half of their time: they would never be
 * computed else. */
double pace_budget_ms(const pace *p, double gap_ms);
/* Prompt rows for so much time, at most `most`. */
int32_t pace_rows(const pace *p, int32_t most, double budget_ms);

#endif
