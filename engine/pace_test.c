/* pace_test.c - how many prompt rows go beside answers, of times that are made up. */
#include "engine/pace.h"
#include "base/rng.h"
#include "tests/test.h"

#include <math.h>

enum { GAP_MS = 12, MOST = 2048, ANSWERS = 16 };

/* A device on which n rows of prompts take fixed + n * row milliseconds beside answers, and `keys`
 * for a million keys before them. */
typedef struct made_up {
    double answers, fixed, row, keys;
    bool mixed;    /* one pass has both kinds of rows */
    int32_t tile;  /* rows are computed in tiles; 0: one by one */
    double jitter; /* times are up to so much longer */
    double held;   /* the share of passes that take twenty times as long */
} made_up;

static double prompt_ms(const made_up *d, int32_t n, int64_t before)
{
    double rows = d->tile ? ceil((double)n / d->tile) * d->tile : n;
    return d->fixed + rows * d->row + d->keys * 1e-6 * pace_rows_at(n, before).keys;
}

static double noise(const made_up *d, uint64_t *rng)
{
    double x = 1 + d->jitter * rng_unit(rng);
    return rng_unit(rng) < d->held ? 20 * x : x;
}

/* A part as wide as the last times allow, beside answers. Gives its rows. */
static int32_t one_part(pace *p, const made_up *d, int64_t before, uint64_t *rng)
{
    const pace_work answers = pace_rows_at(ANSWERS, 600);
    int32_t n = pace_rows(p, MOST, before, pace_budget_ms(p, GAP_MS));
    const pace_work w = pace_rows_at(n, before);
    double ms = prompt_ms(d, n, before);
    pace_measure(p, answers, (pace_work){0}, d->answers * noise(d, rng), false);
    if (d->mixed)
        pace_measure(p, answers, w, (d->answers + ms) * noise(d, rng), false);
    else
        pace_measure(p, (pace_work){0}, w, ms * noise(d, rng), true);
    return n;
}

static int32_t settle(pace *p, const made_up *d, int n_parts, int64_t before, uint64_t *rng)
{
    int32_t n = 0;
    for (int i = 0; i < n_parts; i++)
        n = one_part(p, d, before, rng);
    return n;
}

static double gap_of(const made_up *d, int32_t n, int64_t before)
{
    return d->answers + prompt_ms(d, n, before);
}

TEST(pace_keeps_the_gap_between_tokens)
{
    static const made_up devices[] = {{.answers = 2, .row = 0.02},
                                      {.answers = 5, .fixed = 1, .row = 0.01},
                                      {.answers = 3, .fixed = 3, .row = 0.005, .tile = 64},
                                      {.answers = 1, .fixed = 0.2, .row = 0.5},
                                      {.answers = 5, .fixed = 2, .row = 0.03, .keys = 1},
                                      {.answers = 2, .fixed = 0.3, .row = 0.02, .keys = 2}};
    for (int i = 0; i < 4 * (int)(sizeof devices / sizeof *devices); i++) {
        made_up d = devices[i / 4];
        uint64_t rng = test_seed() + (uint64_t)i;
        pace p = {0};
        d.mixed = i % 2;
        d.jitter = i / 2 % 2 ? 0.1 : 0;
        d.held = i / 2 % 2 ? 0.05 : 0;
        for (int deep = 0; deep < 2; deep++) {
            int64_t before = deep ? 20000 : 500;
            int n_late = 0, n_tried = 0; /* tried: what a wide part takes */
            settle(&p, &d, 12, before, &rng);
            for (int k = 0; k < 100; k++) {
                int32_t n = one_part(&p, &d, before, &rng);
                double gap = gap_of(&d, n, before);
                n_late += gap > GAP_MS + 1;
                n_tried += gap > GAP_MS + 2;
                CHECK_MSG((d.held > 0 || gap <= 2 * GAP_MS + 2) && gap > 6,
                          "device %d, depth %d: %d rows, %g ms", i, (int)before, n, gap);
            }
            /* Where passes are held up, wide parts are tried more often. What a depth has taught
             * holds at another one but roughly. */
            CHECK_MSG(n_late <= 10 && n_tried <= (d.held > 0 ? 9 : 1),
                      "device %d, depth %d: %d and %d of 100 late", i, (int)before, n_late,
                      n_tried);
        }
    }
}

/* A part of twice the width is tried once. Cut down to whole steps it was no wide part to the next
 * choice, so 95 rows were followed by 160 again and again. */
TEST(pace_tries_a_wide_part_once)
{
    for (int32_t n = 34; n < 200; n++) {
        const made_up d = {.answers = 2, .row = 10 / (n + 0.5)};
        uint64_t rng = test_seed();
        pace p = {0};
        int n_late = 0;
        settle(&p, &d, 8, 500, &rng);
        for (int k = 0; k < 30; k++)
            n_late += gap_of(&d, one_part(&p, &d, 500, &rng), 500) > GAP_MS + 2;
        CHECK_MSG(n_late <= 1, "%d rows keep the gap: %d of 30 late", n, n_late);
    }
}

/* Deep rows cost more, and the first part that is deep is cut for that already. */
TEST(pace_knows_what_keys_cost)
{
    const made_up d = {.answers = 2, .fixed = 1, .row = 0.02, .keys = 2};
    uint64_t rng = test_seed();
    pace p = {0};
    for (int64_t before = 0; before < 4000; before += 400)
        settle(&p, &d, 4, before, &rng);
    int32_t n = one_part(&p, &d, 20000, &rng);
    double gap = gap_of(&d, n, 20000);
    CHECK_MSG(gap > 7 && gap < 18, "%d rows, %g ms", n, gap);
}

/* Slow answers leave prompts as much time as they take. */
TEST(pace_lets_prompts_go_on_beside_slow_answers)
{
    for (int mixed = 0; mixed < 2; mixed++) {
        const made_up d = {.answers = 100, .row = 1, .mixed = mixed};
        const made_up slow = {.answers = 100, .row = 50, .mixed = mixed};
        uint64_t rng = test_seed();
        pace p = {0}, q = {0};
        int32_t n = settle(&p, &d, 40, 100, &rng);
        CHECK_MSG(n >= 90 && n <= 101, "%d rows", n);
        n = settle(&q, &slow, 40, 100, &rng);
        CHECK_MSG(n >= 8 && n <= 16, "%d rows", n);
    }
}

/* ---- Where the gap is lost ------------------------------------------------------------------- */

/* A long prompt beside answers, where the fixed part alone is beyond the gap. */
TEST(pace_takes_rows_that_are_nearly_free)
{
    const made_up d = {.answers = 5, .fixed = 12, .row = 0.033};
    uint64_t rng = test_seed();
    pace p = {0};
    int32_t n = settle(&p, &d, 200, 500, &rng);
    CHECK_MSG(n >= 1024, "%d rows", n);
}

/* The rest of a prompt whose beginning was restored, deeper than any part before. */
TEST(pace_measures_wide_parts_again_where_a_prompt_is_deep)
{
    const made_up d = {.answers = 5, .fixed = 12, .row = 0.033, .keys = 0.2};
    uint64_t rng = test_seed();
    pace p = {0};
    settle(&p, &d, 100, 500, &rng);
    int64_t before = 50000;
    int32_t n_parts = 0;
    for (; before < 54000; n_parts++)
        before += one_part(&p, &d, before, &rng);
    CHECK_MSG(n_parts < 40, "%d parts", n_parts);
}

/* A rest of few rows would cost nearly as much as a part, so a prompt's parts are about equal. */
TEST(pace_leaves_no_small_rest)
{
    const made_up d = {.answers = 5, .fixed = 12, .row = 0.033};
    uint64_t rng = test_seed();
    pace p = {0};
    settle(&p, &d, 200, 500, &rng);
    const double budget = pace_budget_ms(&p, GAP_MS);
    for (int32_t all = 40; all <= MOST; all += 41) {
        const int32_t first = pace_rows(&p, all, 500, budget);
        int32_t n = first;
        for (int32_t left = all - n; left > 0; left -= n)
            n = pace_rows(&p, left, 500, budget);
        CHECK_MSG(n >= first / 2, "%d rows: parts of %d, the last one of %d", all, first, n);
    }
}

/* One pass was held up: parts stay as wide as they were. A device that has become slow is another
 * matter: after a few passes parts are narrow. */
TEST(pace_tells_an_accident_from_a_slow_device)
{
    const made_up d = {.answers = 2, .fixed = 1, .row = 0.02};
    const made_up slower = {.answers = 2, .fixed = 3, .row = 0.06};
    uint64_t rng = test_seed();
    pace p = {0};
    int32_t n = settle(&p, &d, 40, 500, &rng);
    for (int i = 0; i < 3; i++) {
        pace_measure(&p, (pace_work){0}, pace_rows_at(n, 500), 500, true);
        pace_measure(&p, pace_rows_at(ANSWERS, 600), (pace_work){0}, 500, false);
        int32_t now = pace_rows(&p, MOST, 500, pace_budget_ms(&p, GAP_MS));
        CHECK_MSG(now > n * 8 / 10 && now <= n * 11 / 10, "%d rows, then %d", n, now);
        settle(&p, &d, 10, 500, &rng);
    }
    n = settle(&p, &slower, 30, 500, &rng);
    CHECK_MSG(gap_of(&slower, n, 500) < 13.5, "%d rows", n);
}

/* Three or four passes in a row were held up: nearly all that its width has room for. The first wide
 * part that is tried for it says that the device is as fast as before. */
TEST(pace_forgets_accidents_in_a_row)
{
    const made_up usual = {.answers = 5, .fixed = 2, .row = 0.03};
    for (int i = 0; i < 6; i++) {
        made_up d = usual, held_up = {.answers = 5, .fixed = 20 * (2 + 5), .row = 20 * 0.03};
        const int n_held = 2 + i / 2;
        uint64_t rng = test_seed();
        pace p = {0};
        int n_late = 0;
        d.mixed = held_up.mixed = i % 2;
        settle(&p, &d, 60, 500, &rng);
        settle(&p, &held_up, n_held, 500, &rng);
        for (int k = 0; k < 140; k++)
            n_late += gap_of(&d, one_part(&p, &d, 500, &rng), 500) > GAP_MS + 1;
        CHECK_MSG(n_late <= 2, "%s, %d held up: %d of 140 late", i % 2 ? "mixed" : "apart", n_held,
                  n_late);
    }
}

/* A part that is much wider than any before might take any time. */
TEST(pace_widens_by_steps)
{
    pace p = {0};
    pace_measure(&p, (pace_work){0}, pace_rows_at(32, 0), 0.01, true);
    CHECK_EQ(pace_rows(&p, MOST, 0, 1000), 128);
    pace_measure(&p, (pace_work){0}, pace_rows_at(128, 0), 0.02, true);
    CHECK_EQ(pace_rows(&p, MOST, 0, 1000), 512);
    CHECK_EQ(pace_rows(&p, 300, 0, 1000), 300);
}

TEST(pace_of_nothing_measured_and_of_few_rows)
{
    const pace_work none = {0};
    pace p = {0};
    CHECK_EQ(pace_rows(&p, 512, 0, 10), 32);
    CHECK_EQ(pace_rows(&p, 5, 0, 10), 5);
    CHECK_EQ(pace_rows(&p, 0, 0, 10), 0);
    CHECK_EQ(pace_rows(&p, -3, 0, 10), 0);
    CHECK(pace_budget_ms(&p, 12) == 12 && pace_answers_ms(&p) == 0);
    pace_measure(&p, none, pace_rows_at(64, 0), -1, false);
    pace_measure(&p, pace_rows_at(1, 5), none, HUGE_VAL, false);
    pace_measure(&p, none, none, 5, false);
    CHECK(!p.prompts.n && !p.answers.n);
    pace_measure(&p, none, pace_rows_at(64, 0), 64, false);
    CHECK_EQ(pace_rows(&p, 3, 0, 1e-9), 3);
    int32_t n = pace_rows(&p, 512, 0, 0);
    CHECK_MSG(n >= 8 && n <= 32, "%d rows", n);
}

/* A recorded pass has a first time that says nothing of the later ones. */
TEST(pace_skips_the_first_pass_of_a_shape)
{
    const pace_work one = pace_rows_at(1, 100), none = {0};
    pace p = {0};
    pace_measure(&p, one, none, 50, true); /* better than nothing */
    CHECK(fabs(pace_answers_ms(&p) - 50) < 1);
    for (int i = 0; i < PACE_KEPT; i++)
        pace_measure(&p, one, none, 2, false);
    for (int i = 0; i < PACE_KEPT; i++)
        pace_measure(&p, one, none, 50, true);
    CHECK_MSG(fabs(pace_answers_ms(&p) - 2) < 0.1, "%g", pace_answers_ms(&p));
}
