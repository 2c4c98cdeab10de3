/* pace.c - see pace.h. */
#include "engine/pace.h"

#include <math.h>
#include <string.h>

enum {
    ROWS_UNMEASURED = 32, /* until a part has been timed */
    ROWS_LEAST = 8,       /* even on the slowest device */
    ROWS_STEP = 32,       /* wide parts have whole steps: kernels compute rows in tiles */
    GROWTH = 4,           /* a part is at most so many times as wide as any that was timed */
    WHOLE = 512,          /* rows of a part that is efficient on nearly every device */
    LONG_AGO = 256,       /* passes after which a time is forgotten */
    HALF_AGO = 8,         /* and after which it counts half as much */
    FITS = 4,
    N_COEFS = 3
};
/* Parts cut for the gap may make everything, answers and prompts, take so much longer. */
static const double loss = 0.2;
static const double dearest = 3; /* and a row at most so many times what it takes in a whole part */
static const double clear_gain = 0.97; /* the most that parts may cost beside the widest ones */
static const double held_up = 1.5; /* a time beyond what another width's allows is an accident */
static const double rarely = 0.05; /* a share of the time of answers that counts as none */
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
    double m[N_COEFS][N_COEFS + 1] = {{0}}, scale[N_COEFS];
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
        p->answers_ms += answers.rows > 0 ? fmin(pace_answers_ms(p), ms) : 0;
        p->prompt_rows += prompts.rows;
        p->last_prompts = prompts.rows;
        p->answers_alone_ms = 0;
        keep(&p->prompts, prompts, answers, ms);
    } else if (answers.rows > 0) {
        p->answers_ms += ms;
        p->free_ms += p->answers_alone_ms;
        p->answers_alone_ms = ms;
        if (!fresh || !is_known(&p->answers, range_of(answers.rows)))
            keep(&p->answers, answers, (pace_work){0}, ms);
    }
    p->answers_ms -= fading * p->answers_ms;
    p->free_ms -= fading * p->free_ms;
    p->prompt_rows -= fading * p->prompt_rows;
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

/* Parts that were timed, by their widths, ascending. */
typedef struct timed_part {
    double rows, ms;
    int64_t at; /* as in pace_times */
} timed_part;

typedef struct curve {
    timed_part at[PACE_RANGES * PACE_KEPT];
    int32_t n;
} curve;

/* Has b, of a part of another width, taken longer than the time of a lets it? */
static bool is_too_long(const timed_part *b, const timed_part *a)
{
    return b->ms > held_up * a->ms * fmax(1, b->rows / a->rows);
}

/* Has the device become slower since a? Nearly all of the times kept with a are later and too long. */
static bool is_outdated(const curve *c, const timed_part *a)
{
    int32_t n = 0;
    for (int32_t i = 0; i < c->n; i++)
        n += c->at[i].at > a->at && is_too_long(&c->at[i], a);
    return n >= PACE_KEPT - 1;
}

/* A later part, as wide or wider, took far less: b was held up. */
static bool was_held_up(const curve *c, const timed_part *b)
{
    for (int32_t i = 0; i < c->n; i++) {
        const timed_part *a = &c->at[i];
        if (a->at > b->at && a->rows >= b->rows && is_too_long(b, a))
            return true;
    }
    return false;
}

/* What each width takes: a part takes no longer than any wider one, and a row of it no longer than
 * in any narrower one. Something may hold up a pass, so of all times the shortest count. */
static void smooth(curve *c)
{
    curve all = {.n = 0};
    for (int32_t i = 0; i < c->n; i++)
        if (!was_held_up(c, &c->at[i]))
            all.at[all.n++] = c->at[i];
    c->n = 0;
    for (int32_t i = 0; i < all.n; i++)
        if (!is_outdated(&all, &all.at[i]) && (!c->n || !is_too_long(&all.at[i], &c->at[c->n - 1])))
            c->at[c->n++] = all.at[i];
    for (int32_t i = c->n - 1; i > 0; i--)
        c->at[i - 1].ms = fmin(c->at[i - 1].ms, c->at[i].ms);
    for (int32_t i = 1; i < c->n; i++)
        c->at[i].ms = fmin(c->at[i].ms, c->at[i - 1].ms * c->at[i].rows / c->at[i - 1].rows);
}

/* For parts behind `before` keys; l says what the keys change. */
static curve curve_of(const pace_times *t, const line *l, int64_t before, const line *answers)
{
    curve c = {.n = 0};
    for (int r = 0; r < PACE_RANGES; r++)
        for (int k = 0; k < PACE_KEPT; k++) {
            const pace_work w = t->of[r][k].w, beside = t->of[r][k].beside;
            double ms = t->of[r][k].ms;
            if (!(ms > 0) || t->n - t->of[r][k].at >= LONG_AGO)
                continue;
            ms -= beside.rows && answers->known ? fmin(time_of(answers, beside), 0.9 * ms) : 0;
            const double then = time_of(l, w);
            ms *= then > 0 ? time_of(l, pace_rows_at(w.rows, before)) / then : 1;
            int32_t i = c.n++;
            for (; i > 0 && c.at[i - 1].rows > w.rows; i--)
                c.at[i] = c.at[i - 1];
            c.at[i] = (timed_part){w.rows, ms, t->of[r][k].at};
        }
    smooth(&c);
    return c;
}

/* Of the times of parts of about n rows, how many are there? */
static int32_t timed_about(const curve *c, int32_t n)
{
    int32_t k = 0;
    for (int32_t i = 0; i < c->n; i++)
        k += c->at[i].rows > n / 2 && c->at[i].rows <= n + n / 2;
    return k;
}

/* The least time of a part of n rows: between two widths by a line, because kernels gain by every
 * row. So a width that was not timed is never thought dearer than it is. If it seems to be the best
 * one it is taken, and timed. */
static double least_ms(const curve *c, double n)
{
    int32_t i = 0;
    while (i < c->n && c->at[i].rows < n)
        i++;
    if (!i)
        return c->n ? c->at[0].ms * n / c->at[0].rows : 0;
    if (i == c->n)
        return c->at[i - 1].ms;
    const double x = (n - c->at[i - 1].rows) / (c->at[i].rows - c->at[i - 1].rows);
    return c->at[i - 1].ms + x * (c->at[i].ms - c->at[i - 1].ms);
}

/* The most that a part of n rows takes: beyond the widest part that was timed, a row takes as much
 * as between `from` rows and these. 0: no part was timed that is much wider than `from`. */
static double most_ms(const curve *c, double from, double n)
{
    const double wide = c->n ? c->at[c->n - 1].rows : 0, ms = least_ms(c, from);
    if (wide >= n)
        return least_ms(c, n);
    if (wide < 1.75 * from)
        return 0;
    return ms + (least_ms(c, wide) - ms) * (n - from) / (wide - from);
}

/* What answers take beside prompts: ms of a pass of them, and of late for each row of prompts. */
typedef struct load {
    double pass;
    double row; /* 0: nearly all their passes were between two parts, so wider parts need fewer */
} load;

static load load_of(const pace *p, const line *answers)
{
    const bool some_free = p->free_ms > rarely * p->answers_ms && p->prompt_rows > 0;
    return (load){answers->known ? time_of(answers, p->last) : 0,
                  some_free ? p->answers_ms / p->prompt_rows : 0};
}

/* For each row of prompts in parts of n rows. Between two parts there is a pass of answers. */
static double answers_per_row(const load *a, double n)
{
    return fmax(a->row, a->pass / n);
}

/* May parts of n rows take ms, where a row of a whole part takes `row`? Answers and prompts
 * together may take 1 + loss times as long as with such rows. */
static bool is_worth(const load *a, double n, double ms, double row)
{
    const double answers = answers_per_row(a, n);
    return answers + ms / n <= (1 + loss) * (answers + row) && ms / n <= dearest * row;
}

/* The next whole step, `most` at most. */
static int32_t whole_steps(int32_t n, int32_t most)
{
    n += (ROWS_STEP - n % ROWS_STEP) % ROWS_STEP;
    return n < most ? n : most;
}

/* The rows of a part where the gap is lost, n to bound: of 1, 2, 3, .. equal parts of `most` those
 * for which the gap, times the square of the time of everything, is least. So a percent of all
 * tokens counts as two of the gap. None takes more than 1 + loss times as long as the widest. */
static int32_t cheapest_rows(const curve *c, const load *a, int32_t n, int32_t bound, int32_t most)
{
    double best = INFINITY, all_most = INFINITY;
    int32_t rows = bound;
    const int32_t first = (most + bound - 1) / bound; /* parts at least */
    for (int32_t k = first; k == first || (most / k >= n && most / k >= ROWS_STEP); k++) {
        const double part = (double)most / k, ms = least_ms(c, part);
        const double all = answers_per_row(a, part) + ms / part;
        const double cost = (a->pass + ms) * all * all;
        if (all > all_most || cost >= best)
            continue;
        if (k == first)
            all_most = (1 + loss) * all;
        best = k == first ? clear_gain * cost : cost;
        rows = whole_steps((most + k - 1) / k, bound);
    }
    return rows;
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
    const curve c = curve_of(&p->prompts, &l, before, &answers);
    const int32_t whole = n > WHOLE ? n : most < WHOLE ? most : WHOLE;
    const double whole_ms = most_ms(&c, n, whole);
    if (n < bound && whole_ms > 0) {
        const load a = load_of(p, &answers);
        /* one time alone may be that of an accident: measured once more */
        if (timed_about(&c, n) != 1 && !is_worth(&a, n, least_ms(&c, n), whole_ms / whole))
            return cheapest_rows(&c, &a, n, bound, most);
    } else if (2 * n <= bound && n < WHOLE / 2) /* are wider parts hardly slower? */
        n = n > ROWS_STEP ? whole_steps(2 * n, bound) : 2 * n; /* up: it would not count as wide */
    if (n < most && n > 2 * ROWS_STEP)
        n -= n % ROWS_STEP;
    return n;
}
