/* pace.c - see pace.h. */
#include "engine/pace.h"

#include <math.h>
#include <string.h>

enum {
    ROWS_UNMEASURED = 32, /* until a part has been timed */
    ROWS_LEAST = 8,       /* even on the slowest device */
    ROWS_STEP = 32,       /* wide parts have whole steps: kernels compute rows in tiles */
    GROWTH = 4,           /* a part is at most so many times as wide as any that was timed */
    WHOLE = 512,          /* rows of a part that is efficient on every device that was measured */
    PROBE_AFTER = 64,     /* parts after which a wider one is measured again */
    LONG_AGO = 256,       /* passes after which a time is forgotten */
    HALF_AGO = 8,         /* and after which it counts half as much */
    FITS = 4,
    N_COEFS = 3
};
/* Parts cut for the gap may make everything, answers and prompts, take so much longer. */
static const double loss = 0.2;
static const double dearest = 3; /* and a row at most so many times what it takes in a whole part */
/* Where the gap is lost all the same, rows that take so much more time at most come along. */
static const double nearly_free = 1.25;
static const double clear_gain = 0.97; /* the most that parts may cost beside whole ones (cost_of) */
static const double fading = 1.0 / 512; /* of the sums of times, with each pass */
static const double away = 0.5;          /* octaves of width within which passes count */
static const double usual = 0.2;         /* differences of times, relative */
static const double least_weight = 0.01; /* of a time long ago: it is better than none */
static const double ridge = 0.05; /* passes that are much alike say little of a, b and c apart */

static int32_t range_of(int32_t rows)
{
    int32_t k = 0;
    while (k < PACE_RANGES - 1 && rows > 1 << k)
        k++;
    return k;
}

/* ---- The fit ------------------------------------------------------------------------------ */

/* ms = x[0] + x[1] rows + x[2] keys */
typedef struct line {
    double x[N_COEFS];
    bool known;
} line;

/* Sums of weighted products: of features with each other, with times, of times with themselves. */
typedef struct sums {
    double g[N_COEFS][N_COEFS], r[N_COEFS], y;
} sums;

/* Errors count relative to the whole pass. */
static void add_time(sums *s, pace_work w, double ms, double pass_ms, double weight)
{
    const double f[N_COEFS] = {1 / pass_ms, w.rows / pass_ms, w.keys / pass_ms}, y = ms / pass_ms;
    for (int i = 0; i < N_COEFS; i++) {
        for (int k = 0; k < N_COEFS; k++)
            s->g[i][k] += weight * f[i] * f[k];
        s->r[i] += weight * f[i] * y;
    }
    s->y += weight * y * y;
}

/* Solves for the coefficients in `set`, the others 0; columns are scaled to 1. False: there is no
 * solution, or one of them is negative. *err: the sum of squares. */
static bool solve(const sums *s, unsigned set, double x[N_COEFS], double *err)
{
    double m[N_COEFS][N_COEFS + 1], scale[N_COEFS];
    int at[N_COEFS], n = 0;
    for (int i = 0; i < N_COEFS; i++) {
        x[i] = 0;
        if (!(set >> i & 1))
            continue;
        if (!(s->g[i][i] > 0))
            return false;
        scale[n] = sqrt(s->g[i][i]);
        at[n++] = i;
    }
    for (int i = 0; i < n; i++) {
        for (int k = 0; k < n; k++)
            m[i][k] = s->g[at[i]][at[k]] / (scale[i] * scale[k]) + (i == k ? ridge : 0);
        m[i][n] = s->r[at[i]] / scale[i];
    }
    for (int i = 0; i < n; i++) /* the matrix is positive definite: no pivots */
        for (int k = i + 1; k < n; k++) {
            double f = m[k][i] / m[i][i];
            for (int j = i; j <= n; j++)
                m[k][j] -= f * m[i][j];
        }
    for (int i = n - 1; i >= 0; i--) {
        double v = m[i][n];
        for (int k = i + 1; k < n; k++)
            v -= m[i][k] * x[at[k]] * scale[k];
        x[at[i]] = v / m[i][i] / scale[i];
        if (!(x[at[i]] >= 0) || !isfinite(x[at[i]]))
            return false;
    }
    *err = s->y;
    for (int i = 0; i < N_COEFS; i++) {
        *err -= 2 * x[i] * s->r[i];
        for (int k = 0; k < N_COEFS; k++)
            *err += x[i] * s->g[i][k] * x[k];
    }
    return true;
}

static double time_of(const line *l, pace_work w)
{
    return l->x[0] + l->x[1] * w.rows + l->x[2] * w.keys;
}

/* The best solution without a negative coefficient. */
static line solve_best(const sums *s)
{
    line best = {.known = false};
    double least = INFINITY;
    for (unsigned set = 1; set < 1u << N_COEFS; set++) {
        double x[N_COEFS], error;
        if (solve(s, set, x, &error) && error < least) {
            least = error;
            best.known = true;
            memcpy(best.x, x, sizeof x);
        }
    }
    return best;
}

/* A fit for widths about `rows`. What answers in the same pass took is not part of it: `beside`
 * says how long. Passes whose times are far from the fit before count for little in the next one,
 * so something that holds up a pass now and then does not count. */
static line fit(const pace_times *t, int32_t rows, const line *beside)
{
    line best = {.known = false};
    for (int turn = 0; turn < FITS; turn++) {
        sums s = {.y = 0};
        for (int r = 0; r < PACE_RANGES; r++)
            for (int k = 0; k < PACE_KEPT; k++) {
                const pace_work w = t->of[r][k].w, other = t->of[r][k].beside;
                const double pass_ms = t->of[r][k].ms, age = (double)(t->n - t->of[r][k].at);
                if (!(pass_ms > 0) || age > LONG_AGO)
                    continue;
                double before = other.rows && beside->known ? time_of(beside, other) : 0;
                double octaves = log2((double)w.rows / rows) / away;
                double off = best.known ? pass_ms / (before + time_of(&best, w)) - 1 : 0;
                double weight = exp2(-age / HALF_AGO) + least_weight;
                weight /= (1 + octaves * octaves) * (1 + off * off / (usual * usual));
                add_time(&s, w, pass_ms - before, pass_ms, weight);
            }
        best = solve_best(&s);
    }
    return best;
}

/* Of passes of answers like the last one. */
static line fit_answers(const pace *p)
{
    const line none = {.known = false};
    return p->last.rows ? fit(&p->answers, p->last.rows, &none) : none;
}

/* ---- Measuring ---------------------------------------------------------------------------- */

static bool is_known(const pace_times *t, int32_t range)
{
    for (int k = 0; k < PACE_KEPT; k++)
        if (t->of[range][k].ms > 0)
            return true;
    return false;
}

/* In the place of the oldest of its range. */
static void keep(pace_times *t, pace_work w, pace_work beside, double ms)
{
    int32_t r = range_of(w.rows), to = 0;
    for (int k = 1; k < PACE_KEPT; k++)
        if (t->of[r][k].at < t->of[r][to].at)
            to = k;
    t->n++;
    t->of[r][to].w = w;
    t->of[r][to].beside = beside;
    t->of[r][to].ms = ms;
    t->of[r][to].at = t->n;
}

void pace_measure(pace *p, pace_work answers, pace_work prompts, double ms, bool fresh)
{
    if (!(ms > 0) || !isfinite(ms))
        return;
    if (answers.rows > 0)
        p->last = answers;
    if (prompts.rows > 0) {
        double beside = answers.rows > 0 ? fmin(pace_answers_ms(p), ms) : 0;
        double whole = p->row_ms > 0 ? prompts.rows * p->row_ms : ms - beside;
        p->answers_ms += beside;
        p->whole_ms += fmin(whole, ms - beside);
        p->last_prompts = prompts.rows;
        keep(&p->prompts, prompts, answers, ms);
    } else if (answers.rows > 0) {
        p->answers_ms += ms;
        if (!fresh || !is_known(&p->answers, range_of(answers.rows)))
            keep(&p->answers, answers, (pace_work){0}, ms);
    }
    p->answers_ms -= fading * p->answers_ms;
    p->whole_ms -= fading * p->whole_ms;
}

double pace_answers_ms(const pace *p)
{
    line l = fit_answers(p);
    return l.known ? time_of(&l, p->last) : 0;
}

/* ---- Choosing ----------------------------------------------------------------------------- */

double pace_budget_ms(const pace *p, double gap_ms)
{
    double answers_ms = pace_answers_ms(p);
    return fmax(gap_ms - answers_ms, answers_ms);
}

/* The most rows whose time is within the budget; 0: not even one. */
static int32_t rows_within(const line *l, int32_t most, int64_t before, double budget_ms)
{
    int32_t lo = 0, hi = most;
    while (lo < hi) {
        int32_t n = lo + (hi - lo + 1) / 2;
        if (time_of(l, pace_rows_at(n, before)) <= budget_ms)
            lo = n;
        else
            hi = n - 1;
    }
    return lo;
}

/* The widest part whose time is known. */
static int32_t widest(const pace_times *t)
{
    int32_t most = 0;
    for (int r = 0; r < PACE_RANGES; r++)
        for (int k = 0; k < PACE_KEPT; k++)
            if (t->of[r][k].ms > 0 && t->of[r][k].w.rows > most)
                most = t->of[r][k].w.rows;
    return most;
}

/* The time of n rows or more: ms + row (rows - n). */
typedef struct slope {
    double n, ms, row;
    bool timed, known; /* timed: a part of about n rows was */
} slope;

/* Of parts at about the same depth among the last n_parts: the shortest time of those of about n
 * rows, ms at most, and of the widest. Not known: none was much wider, or none so narrow. Times
 * that count are short ones, because something may hold up a pass. */
static slope slope_of(const pace_times *t, int32_t n, double ms, int64_t before,
                      const line *answers, int32_t n_parts)
{
    slope s = {.n = n, .ms = ms};
    double wide_ms = 0;
    int32_t wide = 0;
    for (int r = 0; r < PACE_RANGES; r++)
        for (int k = 0; k < PACE_KEPT; k++) {
            const pace_work w = t->of[r][k].w, beside = t->of[r][k].beside;
            if (!(t->of[r][k].ms > 0) || t->n - t->of[r][k].at >= n_parts ||
                fabs(w.keys / w.rows - (double)before) > 512 + (double)before / 4)
                continue;
            double now = t->of[r][k].ms;
            now -= beside.rows && answers->known ? time_of(answers, beside) : 0;
            if (w.rows <= n + n / 2) {
                s.timed = true;
                s.ms = w.rows > n / 2 ? fmin(s.ms, w.rows < n ? now * n / w.rows : now) : s.ms;
            }
            if (w.rows < n + 3 * n / 4)
                continue;
            if (!wide || range_of(w.rows) > range_of(wide) || now * wide < wide_ms * w.rows) {
                wide_ms = now;
                wide = w.rows;
            }
        }
    s.known = s.timed && wide > 0;
    s.row = s.known ? fmax(wide_ms - s.ms, 0) / (wide - n) : 0;
    return s;
}

/* The least rows that are worth a pass. In a whole part a row takes row_ms. It may take more, so
 * that all the work of late, or this part and the answers before it, would have taken
 * 1 + loss times as long:
 *
 *     answers + prompts <= (1 + loss) (answers + prompts in whole parts)
 */
static int32_t rows_worth(const pace *p, const slope *s, double answers_ms)
{
    const double fixed = s->ms - s->row * s->n;
    double dear = 1 + loss;
    if (p->whole_ms > 0)
        dear += loss * p->answers_ms / p->whole_ms;
    dear = fmin(dear, dearest);
    if (fixed <= 0)
        return (int32_t)s->n;
    double rows = fixed / (dear * p->row_ms - s->row);
    double alone = fmax(fixed - loss * answers_ms, 0) / ((1 + loss) * p->row_ms - s->row);
    rows = fmin(rows, alone);
    return rows < s->n ? (int32_t)s->n : rows < WHOLE ? (int32_t)ceil(rows) : WHOLE;
}

/* What parts of s->n rows cost, beside whole parts: their gap, times the square of what everything,
 * answers and prompts, takes. So a percent of all tokens counts as two of the gap. */
static double cost_of(const pace *p, const slope *s, double answers_ms)
{
    const double whole = WHOLE * p->row_ms;
    const double beside = p->whole_ms > 0 ? whole * p->answers_ms / p->whole_ms : answers_ms;
    const double gap = (answers_ms + s->ms) / (answers_ms + whole);
    const double all = (beside + s->ms * WHOLE / s->n) / (beside + whole);
    return gap * all * all;
}

/* The next whole step, `most` at most. */
static int32_t whole_steps(int32_t n, int32_t most)
{
    n += (ROWS_STEP - n % ROWS_STEP) % ROWS_STEP;
    return n < most ? n : most;
}

/* Parts of about n rows of `all`, in whole steps. No rest costs nearly as much as a part. */
static int32_t even_parts(int32_t n, int32_t all)
{
    int32_t n_parts = all <= nearly_free * n ? 1 : (all + n - 1) / n;
    return whole_steps((all + n_parts - 1) / n_parts, all);
}

/* Those that take nearly as long as the rows of s. */
static int32_t rows_beside(const slope *s)
{
    double more = (nearly_free - 1) * s->ms;
    return more < s->row * (WHOLE - s->n) ? (int32_t)(s->n + more / s->row) : WHOLE;
}

int32_t pace_rows(pace *p, int32_t most, int64_t before, double budget_ms)
{
    int32_t least = most < ROWS_LEAST ? most : ROWS_LEAST, n = p->last_prompts;
    if (most <= 0)
        return 0;
    if (!n)
        return most < ROWS_UNMEASURED ? most : ROWS_UNMEASURED;
    int64_t grown = (int64_t)GROWTH * widest(&p->prompts);
    int32_t bound = grown < most ? (int32_t)grown : most;
    const line answers = fit_answers(p);
    line l = fit(&p->prompts, n, &answers);
    for (int i = 0; i < 2; i++) { /* the second fit is about the width that the first one gives */
        l = i ? fit(&p->prompts, n, &answers) : l;
        n = rows_within(&l, bound, before, budget_ms);
        n = n > least ? n : least;
    }
    const double answers_ms = answers.known ? time_of(&answers, p->last) : 0;
    bool lost = false;
    for (int i = 0; i < 3 && n < bound; i++) {
        double ms = time_of(&l, pace_rows_at(n, before));
        slope s = slope_of(&p->prompts, n, ms, before, &answers, LONG_AGO);
        if (!s.known || n >= WHOLE)
            break;
        p->row_ms = (s.ms + s.row * (WHOLE - n)) / WHOLE;
        int32_t worth = rows_worth(p, &s, answers_ms);
        if (worth <= n + n / 2) { /* nearer than times are exact */
            n = lost ? rows_beside(&s) : n;
            break;
        }
        lost = true;
        n = worth;
        l = fit(&p->prompts, n, &answers);
    }
    n = n < bound ? n : bound;
    /* Are wider parts hardly slower? Seldom tried where parts keep the gap. */
    slope s = slope_of(&p->prompts, n, 0, before, &answers, lost ? PROBE_AFTER : LONG_AGO);
    if (2 * n <= bound && 2 * n <= WHOLE && s.timed && !s.known)
        n = n > ROWS_STEP ? whole_steps(2 * n, bound) : 2 * n; /* up: it would not count as wide */
    if (lost && n < bound) { /* of these and wider ones those that cost least */
        int32_t best = even_parts(WHOLE, bound);
        double best_cost = clear_gain;
        for (; n < WHOLE; n += n / 2) {
            const int32_t part = even_parts(n, bound);
            s = slope_of(&p->prompts, part, time_of(&l, pace_rows_at(part, before)), before,
                         &answers, LONG_AGO);
            const double cost = cost_of(p, &s, answers_ms);
            if (part < WHOLE && cost < best_cost) {
                best_cost = cost;
                best = part;
            }
        }
        return best;
    }
    if (n < most && n > 2 * ROWS_STEP)
        n -= n % ROWS_STEP;
    return n;
}
