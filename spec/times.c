/* times.c - what passes and drafts cost: measured, smoothed, and guessed where not measured.
 *
 * A cell is a number of rows in a range of contexts. The first pass of a width pays for recording
 * and cold memory. So the first sample of a cell counts at most 1.1 times what was expected
 * there (with more, one accident keeps a width from being tried again; with less, wide rounds that
 * lose look cheap for too long), the second replaces it, by half more at most, and the third counts
 * if it is smaller. Where plain passes alone were measured before, what was expected is a guess:
 * the second sample then counts up to 2.5 times the first. Later ones are averaged, and none of
 * them counts for more than half above or below the average. A time that was measured long ago and
 * is now exceeded is measured anew in the same way.
 *
 * A time that was too long by accident would never be measured again, because nothing would choose
 * its width. So what a width or a draft costs beyond a plain pass fades with time, by half at most.
 *
 * A range of contexts that is entered for the first time takes the times of the nearest measured
 * range, scaled by the first measurement, until they are measured there. From a range beside it,
 * they count as measured: they differ little, and plain passes to measure them again would be lost.
 * Between two measured widths, times lie on a line; beyond the widest, the last slope goes on.
 */
#include "spec/control_int.h"

#include "base/mem.h"

#include <math.h>

enum {
    LONG_AGO_ROUNDS = 128,
    FADE_ROUNDS = 2048,
    /* How much wider the next attempt may be than the widest known pass: four times, and at most
     * WIDEN_ROWS. On a GPU the second row costs much and the third nearly nothing: after one and
     * two rows alone, a slope would say that wider passes never pay. Beside many answers a few rows
     * show the slope, and three times as many would delay all of them. */
    WIDEN = 4,
    WIDEN_ROWS = 24
};
static const float smoothing = 0.08f, smoothing_old = 0.3f;
static const double first_excess = 1.1;
static const float second_excess = 1.5f, second_of_guess = 2.5f, surprise = 1.05f;

status draft_times_open(draft_times **t, err *e)
{
    *t = mem_calloc(1, sizeof **t);
    if (!*t)
        return err_set(e, E_MEMORY, "no memory for the times of drafts");
    for (int32_t d = 0; d < DRAFTERS_MAX; d++)
        (*t)->all[d].unit = 1;
    return OK;
}

void draft_times_close(draft_times *t)
{
    mem_free(t);
}

static int32_t width_of(int32_t rows)
{
    if (rows <= 64)
        return rows < 1 ? 0 : rows - 1;
    int32_t w = 63 + (int32_t)ceil(8 * log2(rows / 64.0) - 1e-9);
    return w < WIDTHS ? w : WIDTHS - 1;
}

static double rows_of(int32_t width)
{
    return width < 64 ? width + 1 : 64 * exp2((width - 63) / 8.0);
}

static int32_t context_of(int64_t n_ctx)
{
    int32_t c = 0;
    while (c < CONTEXTS - 1 && n_ctx >= (int64_t)512 << c)
        c++;
    return c;
}

static bool is_known(const time_cell *row)
{
    for (int32_t w = 0; w < WIDTHS; w++)
        if (row[w].ms > 0)
            return true;
    return false;
}

static int32_t known_beside(const time_cell *row, int32_t width)
{
    int32_t n = 0;
    for (int32_t w = 0; w < WIDTHS; w++)
        n += w != width && row[w].ms > 0;
    return n;
}

static bool is_known_below(const time_cell *row, int32_t width)
{
    while (--width >= 0)
        if (row[width].ms > 0)
            return true;
    return false;
}

/* The times of this range of contexts, or of the nearest one that has any. */
static const time_cell *nearest(const draft_times *t, int32_t context)
{
    for (int32_t d = 0; d < CONTEXTS; d++) {
        if (context - d >= 0 && is_known(t->pass[context - d]))
            return t->pass[context - d];
        if (context + d < CONTEXTS && is_known(t->pass[context + d]))
            return t->pass[context + d];
    }
    return NULL;
}

static double between(double x, double x0, double y0, double x1, double y1)
{
    return y0 + (fmax(y1, y0) - y0) * (x - x0) / (x1 - x0);
}

double times_pass(const draft_times *t, int32_t rows, int64_t n_ctx)
{
    const time_cell *at = nearest(t, context_of(n_ctx));
    int32_t w = width_of(rows), lo = w, hi = w;
    if (!at)
        return 0;
    while (lo >= 0 && at[lo].ms <= 0)
        lo--;
    while (hi < WIDTHS && (hi == lo || at[hi].ms <= 0))
        hi++;
    if (lo == w) /* no more than a wider pass: else an accident was measured here */
        return hi < WIDTHS ? fminf(at[w].ms, at[hi].ms) : at[w].ms;
    if (lo < 0)
        return at[hi].ms; /* at most */
    if (hi < WIDTHS)
        return between(rows, rows_of(lo), at[lo].ms, rows_of(hi), at[hi].ms);
    int32_t before = lo - 1;
    while (before >= 0 && at[before].ms <= 0)
        before--;
    double more = rows - rows_of(lo);
    if (before < 0) /* one width is known: attempts are narrow (times_widest) */
        return at[lo].ms * (1 + 0.05 * more / fmax(1, rows_of(lo) / 8));
    double slope = (at[lo].ms - at[before].ms) / (rows_of(lo) - rows_of(before));
    return at[lo].ms + more * fmax(slope, 0.01 * at[lo].ms);
}

int32_t times_widest(const draft_times *t, int64_t n_ctx)
{
    const time_cell *at = nearest(t, context_of(n_ctx));
    for (int32_t w = WIDTHS - 1; at && w >= 0; w--)
        if (at[w].ms > 0 && (at[w].n > 1 || !is_known_below(at, w))) {
            int32_t rows = (int32_t)rows_of(w), more = (WIDEN - 1) * rows;
            return rows + (more < WIDEN_ROWS ? more : WIDEN_ROWS);
        }
    return 0;
}

/* The share of a cost that is still believed. */
static double fade(const draft_times *t, const time_cell *c)
{
    return fmax(exp2(-(double)(t->n_rounds - c->round) / FADE_ROUNDS), 0.5);
}

double times_pass_over(const draft_times *t, int32_t rows, int32_t n_plain, int64_t n_ctx)
{
    const time_cell *at = nearest(t, context_of(n_ctx));
    double plain = times_pass(t, n_plain, n_ctx), ms = times_pass(t, rows, n_ctx);
    int32_t w = width_of(rows);
    while (w >= 0 && at && at[w].ms <= 0)
        w--;
    if (!at || w < 0 || w <= width_of(n_plain))
        return ms;
    return plain + (ms - plain) * fade(t, &at[w]);
}

bool times_measured(const draft_times *t, int32_t rows, int64_t n_ctx)
{
    const time_cell *at = nearest(t, context_of(n_ctx));
    return at && at[width_of(rows)].ms > 0;
}

bool times_known(const draft_times *t, int32_t rows, int64_t n_ctx, int64_t n)
{
    const time_cell *at = nearest(t, context_of(n_ctx));
    const time_cell *c = at ? &at[width_of(rows)] : NULL;
    return c && c->n >= SAMPLES_FIRST && c->round + n >= t->n_rounds;
}

/* expected: before this sample; 0: unknown. guess: it rests on a single other width. */
static void add(time_cell *c, float ms, double expected, bool guess, int64_t round)
{
    bool old = c->round + LONG_AGO_ROUNDS < round;
    if (c->n == SAMPLES_FIRST && old && ms > surprise * c->ms)
        c->n = 0, expected = c->ms; /* one sample may be an accident */
    if (c->n < SAMPLES_FIRST) {
        if (c->n == 0)
            c->ms = expected > 0 ? fminf(ms, (float)(first_excess * expected)) : ms;
        else
            c->ms = fminf(ms, c->n > 1 ? c->ms : (guess ? second_of_guess : second_excess) * c->ms);
        c->n++;
    } else {
        float part = old ? smoothing_old : smoothing;
        c->ms += part * (fminf(fmaxf(ms, 0.5f * c->ms), 1.5f * c->ms) - c->ms);
    }
    c->round = round;
}

void times_add_pass(draft_times *t, int32_t rows, int64_t n_ctx, double ms)
{
    int32_t context = context_of(n_ctx), w = width_of(rows);
    time_cell *at = t->pass[context];
    if (!(ms > 0) || !isfinite(ms))
        return;
    const time_cell *from = nearest(t, context);
    if (from && from != at) {
        bool beside = (context > 0 && from == t->pass[context - 1]) ||
                      (context < CONTEXTS - 1 && from == t->pass[context + 1]);
        double most = beside ? 1.1 : 1.25;
        double scale = from[w].ms > 0 ? fmin(fmax(ms / from[w].ms, 1 / most), most) : 1;
        for (int32_t i = 0; i < WIDTHS; i++)
            at[i] = (time_cell){.ms = (float)(from[i].ms * scale),
                                .n = beside ? from[i].n : 0,
                                .round = from[i].round};
    }
    /* the narrowest width has no expectation: times_pass would be another width's */
    add(&at[w], (float)ms, is_known_below(at, w) ? times_pass(t, rows, n_ctx) : 0,
        known_beside(at, w) == 1, t->n_rounds);
}

static int32_t sharers_of(int32_t n)
{
    int32_t s = 0;
    while (s < SHARERS - 1 && n > 1 << s)
        s++;
    return s;
}

/* The known cell nearest to n_slots, scaled by the slots between: a part of the time is there
 * whatever the number, so it is not proportional. -1: the row knows nothing. */
static double draft_in(const draft_times *t, const time_cell *row, int32_t n_slots)
{
    int32_t lo = n_slots, hi = n_slots;
    while (lo >= 0 && row[lo].ms <= 0)
        lo--;
    while (hi <= DRAFT_SLOTS_MAX && row[hi].ms <= 0)
        hi++;
    if (lo == n_slots)
        return row[lo].ms * fade(t, &row[lo]);
    if (lo >= 0 && hi <= DRAFT_SLOTS_MAX)
        return between(n_slots, lo, row[lo].ms, hi, row[hi].ms);
    if (lo >= 0) {
        int32_t before = lo - 1;
        while (before >= 0 && row[before].ms <= 0)
            before--;
        double slope = before >= 0 ? (row[lo].ms - row[before].ms) / (lo - before) : 0;
        return row[lo].ms + fmax(slope, 0) * (n_slots - lo);
    }
    return hi <= DRAFT_SLOTS_MAX ? row[hi].ms : -1;
}

double times_draft(const draft_times *t, int32_t which, int32_t n_slots, int32_t n, double guess)
{
    int32_t s = sharers_of(n);
    for (int32_t d = 0; d < SHARERS; d++) {
        double ms = s - d >= 0 ? draft_in(t, t->draft[which][s - d], n_slots) : -1;
        if (ms < 0 && s + d < SHARERS)
            ms = draft_in(t, t->draft[which][s + d], n_slots);
        if (ms >= 0)
            return ms;
    }
    return guess;
}

void times_add_draft(draft_times *t, int32_t which, int32_t n_slots, int32_t n, double ms,
                     double guess)
{
    if (!(ms > 0) || !isfinite(ms) || n < 1 || n_slots < 1 || n_slots > DRAFT_SLOTS_MAX)
        return;
    add(&t->draft[which][sharers_of(n)][n_slots], (float)ms,
        times_draft(t, which, n_slots, n, guess), false, t->n_rounds);
}
