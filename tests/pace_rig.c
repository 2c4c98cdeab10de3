/* pace_rig.c - see pace_rig.h. */
#include "tests/pace_rig.h"
#include "base/rng.h"

#include <math.h>
#include <string.h>

enum { GAPS = 20000, PER_MS = 10 }; /* of a table of gaps, in tenths of a millisecond */

typedef struct client {
    int32_t prompt, left, wanted, n; /* rows of the prompt; tokens of the answer */
    int32_t asks;
    int64_t due;
    double asked, last;
} client;

typedef struct state {
    const pace_device *d;
    const pace_company *who;
    client c[PACE_CLIENTS_MAX];
    pace p;
    uint64_t rng;
    double now, first;
    int64_t n_rows;
    int32_t n_first, n_tokens, n_gaps, gaps[GAPS];
    bool keeps; /* the part since the last token could have kept the gap */
} state;

static double table_ms(const pace_table *t, int32_t n)
{
    int i = 1;
    while (i < PACE_POINTS - 1 && n > t->rows[i])
        i++;
    const double x = (double)(n - t->rows[i - 1]) / (t->rows[i] - t->rows[i - 1]);
    return t->ms[i - 1] + x * (t->ms[i] - t->ms[i - 1]);
}

double pace_part_ms(const pace_device *d, int32_t n, int64_t before)
{
    return table_ms(&d->parts, n) + d->keys_ms * 1e-6 * pace_rows_at(n, before).keys;
}

double pace_answer_ms(const pace_device *d, int32_t n, double keys)
{
    return table_ms(&d->answers, n) + d->keys_ms * 1e-6 * keys;
}

static double noise(state *s)
{
    const double x = 1 + s->d->jitter * rng_unit(&s->rng);
    return rng_unit(&s->rng) < s->d->held ? 10 * x : x;
}

static int32_t draw(state *s, const int32_t of[2])
{
    return of[0] + (int32_t)rng_below(&s->rng, (uint64_t)(of[1] - of[0]) + 1);
}

static void ask(state *s, client *c, double at)
{
    c->prompt = c->left = draw(s, s->who->prompt);
    c->wanted = draw(s, s->who->answer);
    c->n = 0;
    c->asked = at;
    c->due = s->n_rows + c->left;
}

static bool is_open(const state *s, const client *c)
{
    return c->asked <= s->now && c->n < c->wanted;
}

/* The prompt that comes next; NULL: none waits. */
static client *next_prompt(state *s)
{
    client *next = NULL;
    for (int i = 0; i < s->who->n; i++) {
        client *c = &s->c[i];
        if (is_open(s, c) && c->left && (!next || c->due < next->due))
            next = c;
    }
    return next;
}

static void take_token(state *s, client *c, pace_outcome *out, double gap_ms)
{
    if (c->n++) {
        const double gap = s->now - c->last;
        const bool kept = gap <= gap_ms * 1.25;
        if (s->keeps) {
            out->n_kept += kept;
            out->n_lost += !kept;
        }
        if (s->now > s->who->from_ms) {
            s->gaps[gap * PER_MS < GAPS - 1 ? (int)(gap * PER_MS) : GAPS - 1]++;
            s->n_gaps++;
        }
    } else {
        s->first += s->now - c->asked;
        s->n_first++;
    }
    s->n_tokens += s->now > s->who->from_ms;
    c->last = s->now;
    if (c->n == c->wanted && (!s->who->n_asks || ++c->asks < s->who->n_asks))
        ask(s, c, s->now);
}

/* The exact times say whether some width keeps the gap and its rows take at most a tenth longer than
 * those of all that waits. */
static bool may_keep(const state *s, double answers_ms, int32_t waiting, int64_t before,
                     double gap_ms)
{
    const int32_t most = waiting < PACE_CHUNK ? waiting : PACE_CHUNK;
    const double row = pace_part_ms(s->d, most, before) / most;
    for (int32_t n = most; n >= 8; n -= n > 64 ? 16 : 4)
        if (answers_ms + pace_part_ms(s->d, n, before) <= gap_ms)
            return pace_part_ms(s->d, n, before) / n <= 1.1 * row;
    return false;
}

static int32_t width(state *s, pace_way way, int32_t waiting, int64_t before, int32_t n_answers)
{
    const int32_t most = waiting < PACE_CHUNK ? waiting : PACE_CHUNK;
    if (!n_answers || way.cut == PACE_WHOLE)
        return most;
    if (way.cut == PACE_RULE)
        return pace_rows(&s->p, most, before, pace_budget_ms(&s->p, way.gap_ms));
    return way.rows < most ? way.rows : most;
}

/* Rows of prompts, in order; tokens for those that end. */
static void take_rows(state *s, int32_t n, pace_outcome *out, double gap_ms)
{
    s->n_rows += n;
    while (n > 0) {
        client *c = next_prompt(s);
        const int32_t part = n < c->left ? n : c->left;
        c->left -= part;
        n -= part;
        if (!c->left)
            take_token(s, c, out, gap_ms);
    }
}

static double late_of(const state *s)
{
    int32_t i = GAPS - 1, above = 0;
    while (i > 0 && (above += s->gaps[i]) <= s->n_gaps / 100)
        i--;
    return (i + 1) / (double)PER_MS;
}

pace_outcome pace_run(const pace_device *d, const pace_company *who, pace_way way, uint64_t seed)
{
    state s = {.d = d, .who = who, .rng = seed};
    pace_outcome out = {0};
    bool prompts_next = false;
    for (int i = 0; i < who->n; i++)
        ask(&s, &s.c[i], who->first_ms * i / who->n);
    while (!(who->end_ms > 0) || s.now < who->end_ms) {
        int32_t waiting = 0, n = 0, n_later = 0;
        double keys = 0;
        for (int i = 0; i < who->n; i++) {
            const client *c = &s.c[i];
            n_later += c->n < c->wanted && c->asked > s.now;
            waiting += is_open(&s, c) ? c->left : 0;
            n += is_open(&s, c) && !c->left;
            keys += is_open(&s, c) && !c->left ? c->prompt + c->n : 0;
        }
        if (!waiting && !n && !n_later)
            break;
        if (!waiting && !n) {
            s.now += 1;
            continue;
        }
        const bool prompts = waiting && (!d->apart || prompts_next || !n);
        const bool answers = n && !(d->apart && prompts);
        const client *next = next_prompt(&s);
        const int64_t before = next ? next->prompt - next->left : 0;
        const int32_t rows = prompts ? width(&s, way, waiting, before, n) : 0;
        const double answers_ms = pace_answer_ms(d, n, keys);
        if (rows < (prompts ? 1 : 0) || rows > waiting) {
            out.n_unended = who->n; /* no pass: it would stand still */
            break;
        }
        if (prompts)
            s.keeps = n && may_keep(&s, answers_ms, waiting, before, way.gap_ms);
        else if (prompts_next || !d->apart) /* no part came before these answers */
            s.keeps = false;
        const double ms = ((answers ? answers_ms : 0) +
                           (rows ? pace_part_ms(d, rows, before) : 0)) * noise(&s);
        s.now += ms;
        pace_measure(&s.p, answers ? (pace_work){n, keys} : (pace_work){0},
                     rows ? pace_rows_at(rows, before) : (pace_work){0}, ms, d->apart && rows);
        client *ends[PACE_CLIENTS_MAX];
        int32_t n_ends = 0;
        for (int i = 0; answers && i < who->n; i++)
            if (is_open(&s, &s.c[i]) && !s.c[i].left && s.c[i].n)
                ends[n_ends++] = &s.c[i];
        take_rows(&s, rows, &out, way.gap_ms);
        for (int32_t i = 0; i < n_ends; i++)
            take_token(&s, ends[i], &out, way.gap_ms);
        prompts_next = !prompts;
    }
    for (int i = 0; i < who->n; i++)
        out.n_unended += who->n_asks && s.c[i].asks < who->n_asks;
    out.ms = s.now;
    out.tokens = s.now > who->from_ms ? s.n_tokens * 1000.0 / (s.now - who->from_ms) : 0;
    out.late = late_of(&s);
    out.first = s.n_first ? s.first / s.n_first : 0;
    return out;
}

void pace_draw(uint64_t seed, pace_device *d, pace_company *who)
{
    static const pace_table widths = {{1, 16, 32, 64, 128, 256, 512, 2048}, {0}};
    static const pace_table counts = {{1, 2, 4, 8, 16, 24, 32, 64}, {0}};
    uint64_t rng = seed;
    const double row = exp(rng_unit(&rng) * 4 - 5), fixed = exp(rng_unit(&rng) * 6 - 3);
    const double knee = exp(rng_unit(&rng) * 4) * row; /* rows that are dear until there are many */
    const double one = exp(rng_unit(&rng) * 4 - 1), more = rng_unit(&rng) * rng_unit(&rng) * one / 2;
    *d = (pace_device){.answers = counts,
                       .parts = widths,
                       .keys_ms = rng_below(&rng, 2) ? rng_unit(&rng) : 0,
                       .apart = rng_below(&rng, 2),
                       .jitter = rng_unit(&rng) / 10,
                       .held = rng_below(&rng, 3) ? 0 : 0.02};
    for (int i = 0; i < PACE_POINTS; i++) {
        d->answers.ms[i] = one + more * (counts.rows[i] - 1);
        d->parts.ms[i] = fixed + row * widths.rows[i] + knee * 64 * (1 - exp(-widths.rows[i] / 64.0));
    }
    *who = (pace_company){.n = 1 + (int32_t)rng_below(&rng, PACE_CLIENTS_MAX), .n_asks = 2};
    const int32_t most[2] = {8000, 1000}, least[2] = {20, 1};
    int32_t *of[2] = {who->prompt, who->answer};
    for (int i = 0; i < 2; i++) {
        of[i][1] = least[i] + (int32_t)rng_below(&rng, (uint64_t)(most[i] - least[i]) + 1);
        of[i][0] = rng_below(&rng, 2) ? least[i] : of[i][1];
    }
    who->first_ms = rng_below(&rng, 2) ? 1000 * rng_unit(&rng) * who->n : 0;
}
