/* pace.c - see pace.h. */
#include "engine/pace.h"

#include <math.h>

enum {
    ROWS_UNMEASURED = 32, /* until a row has been timed */
    ROWS_LEAST = 8,       /* even on the slowest device */
    ROWS_STEP = 32,       /* wide parts have whole steps: kernels compute rows in tiles */
    LONG_AGO = 256        /* a sample that is older may have been an accident: it is forgotten */
};
static const double part_new = 0.3;
static const double least_share = 0.5;
static const double nearly_free = 1.25; /* rows that add so little to the least part's time */

static int32_t range_of(int32_t rows)
{
    int32_t k = 0;
    while (k < PACE_RANGES - 1 && rows > 1 << k)
        k++;
    return k;
}

static double smooth(double old, double x)
{
    return old > 0 ? old + part_new * (x - old) : x;
}

static bool is_measured(const pace *p, int32_t k)
{
    return p->range[k].row_ms > 0 && p->n_measured - p->range[k].at <= LONG_AGO;
}

void pace_measure(pace *p, int32_t n_answers, int32_t n_prompts, double ms, bool fresh)
{
    if (!(ms > 0) || !isfinite(ms))
        return;
    if (!n_prompts) {
        if (!fresh || p->answers_ms <= 0)
            p->answers_ms = smooth(p->answers_ms, ms);
        return;
    }
    int32_t k = range_of(n_prompts);
    double rest = n_answers ? ms - p->answers_ms : ms;
    p->n_measured++;
    if (fresh && p->range[k].row_ms > 0)
        return;
    double old = is_measured(p, k) ? p->range[k].row_ms : 0;
    p->range[k].row_ms = smooth(old, fmax(rest, 1e-3) / n_prompts);
    p->range[k].at = p->n_measured;
}

double pace_budget_ms(const pace *p, double gap_ms)
{
    return fmax(gap_ms - p->answers_ms, least_share * p->answers_ms);
}

/* Of parts in range k: measured, or that of the nearest narrower one, which costs no less, or of
 * the nearest wider one. 0: nothing is measured. */
static double row_ms(const pace *p, int32_t k)
{
    for (int32_t i = k; i >= 0; i--)
        if (is_measured(p, i))
            return p->range[i].row_ms;
    for (int32_t i = k + 1; i < PACE_RANGES; i++)
        if (is_measured(p, i))
            return p->range[i].row_ms;
    return 0;
}

static int32_t rows_within(const pace *p, int32_t most, double budget_ms)
{
    for (int32_t k = range_of(most); k >= 0; k--) {
        int32_t hi = most < 1 << k ? most : 1 << k, lo = k ? (1 << (k - 1)) + 1 : 1;
        double fit = budget_ms / row_ms(p, k);
        int32_t n = fit < hi ? (int32_t)fit : hi;
        if (n >= lo)
            return n;
    }
    return 0;
}

int32_t pace_rows(const pace *p, int32_t most, double budget_ms)
{
    int32_t least = most < ROWS_LEAST ? most : ROWS_LEAST;
    double least_ms = least * row_ms(p, range_of(least));
    if (most <= 0)
        return 0;
    if (least_ms <= 0)
        return most < ROWS_UNMEASURED ? most : ROWS_UNMEASURED;
    int32_t n = rows_within(p, most, fmax(budget_ms, nearly_free * least_ms));
    if (n < most && n > 2 * ROWS_STEP)
        n -= n % ROWS_STEP;
    return n > least ? n : least;
}
