/* pace_load_test.c - what clients get of a server whose prompts pace.c cuts, on devices of made-up
 * times: tokens per second and gaps, beside those of whole prompts and of parts of fixed widths.
 */
#include "tests/pace_rig.h"
#include "tests/test.h"

enum { GAP_MS = 12 };

static const pace_way whole_prompts = {PACE_WHOLE, GAP_MS, 0};
static const pace_way by_rule = {PACE_RULE, GAP_MS, 0};

/* Passes of answers of a mixture of experts on an H200 (26B-A4B), behind 640 keys. */
static const pace_table answers = {{1, 2, 4, 8, 16, 32, 48, 64},
                                   {1.7, 2.1, 2.85, 3.9, 5.45, 7.7, 9.8, 11.9}};

static pace_device device_of(const pace_table *parts, double jitter)
{
    return (pace_device){.answers = answers, .parts = *parts, .apart = true, .jitter = jitter};
}

/* Clients that ask again and again, as those of tools/server_load.py. */
static pace_company askers(int32_t n)
{
    return (pace_company){n, {512, 512}, {256, 256}, 2560, 3000, 12000, 0};
}

/* The times of its prompts before and after changes of kernels, and what they may become. On the
 * first two, parts of 256 rows would shorten gaps by a tenth and lengthen everything by a seventh:
 * so prompts stay whole. */
TEST(pace_costs_at_most_a_fifth_of_all_tokens)
{
    static const pace_table parts[] = {
        {{1, 8, 32, 64, 128, 256, 512, 2048}, {7, 8.69, 12.36, 20.31, 18.59, 21.87, 25.19, 60}},
        {{1, 8, 32, 64, 128, 256, 512, 2048}, {7, 8.69, 12.36, 17.35, 18.66, 21.87, 24.92, 54}},
        {{1, 16, 32, 64, 128, 256, 512, 2048}, {6, 7.55, 8.85, 10.98, 15.01, 18.54, 25.53, 54}},
        {{1, 8, 32, 64, 128, 256, 512, 2048}, {4, 5, 9, 11, 12, 15, 20, 55}},
        {{1, 8, 32, 64, 128, 256, 512, 2048}, {8.7, 9, 9.8, 10.8, 12.9, 17.1, 25.6, 76}},
        {{1, 8, 32, 64, 128, 256, 512, 2048}, {3, 3.2, 4, 4.9, 6.8, 10.7, 18.4, 64}},
        {{1, 8, 32, 64, 128, 256, 512, 2048}, {0.1, 0.4, 1.4, 2.7, 5.3, 10.5, 20.7, 82}}};
    static const double latest[] = {33, 33, 26, 23, 26, 14, 13};
    static const double least[] = {0.96, 0.96, 0.88, 0.83, 0.85, 0.83, 0.96};
    const pace_company who = askers(16);
    for (int i = 0; i < (int)(sizeof parts / sizeof *parts); i++) {
        const pace_device d = device_of(&parts[i], 0.05);
        const uint64_t seed = test_seed() + (uint64_t)i;
        const pace_outcome whole = pace_run(&d, &who, whole_prompts, seed);
        const pace_outcome cut = pace_run(&d, &who, by_rule, seed);
        CHECK_MSG(cut.tokens > least[i] * whole.tokens && cut.late <= latest[i] && cut.first < 130,
                  "device %d: %.0f tokens/s of %.0f, gaps of %.1f ms for %.1f, first %.0f for %.0f",
                  i, cut.tokens, whole.tokens, cut.late, whole.late, cut.first, whole.first);
    }
}

/* Three parts of 160 to 192 rows were taken for two of 256 whenever these had not been timed: with
 * 16 clients a sixth of all tokens for a tenth. */
TEST(pace_tries_widths_that_were_not_timed)
{
    static const pace_table parts = {{1, 16, 32, 64, 128, 256, 512, 2048},
                                     {6, 7.3, 8.5, 10.7, 14.4, 17.5, 25, 76}};
    const struct {
        int32_t n, rows;
    } best[] = {{16, 256}, {64, 512}};
    const double jitter[] = {0, 0.01, 0.02, 0.05};
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < 4 * 6; k++) {
            const pace_device d = device_of(&parts, jitter[k / 6]);
            const pace_company who = askers(best[i].n);
            const uint64_t seed = test_seed() + (uint64_t)k;
            const pace_way fixed = {PACE_FIXED, GAP_MS, best[i].rows};
            const pace_outcome want = pace_run(&d, &who, fixed, seed);
            const pace_outcome got = pace_run(&d, &who, by_rule, seed);
            CHECK_MSG(got.tokens > 0.975 * want.tokens && got.late < 1.04 * want.late,
                      "%d clients, jitter %g: %.0f tokens/s and %.1f ms for %.0f and %.1f",
                      best[i].n, jitter[k / 6], got.tokens, got.late, want.tokens, want.late);
        }
}

TEST(pace_of_any_company_on_any_device)
{
    const int n_seeds = SANITIZED ? 60 : 1000;
    int64_t n_kept = 0, n_lost = 0;
    for (int i = 0; i < n_seeds; i++) {
        pace_device d;
        pace_company who;
        pace_draw((uint64_t)i, &d, &who);
        const pace_outcome whole = pace_run(&d, &who, whole_prompts, 1);
        const pace_outcome run = pace_run(&d, &who, by_rule, 1);
        CHECK_MSG(!run.n_unended && !whole.n_unended, "seed %d: %d clients have no whole answer", i,
                  run.n_unended);
        CHECK_MSG(run.ms < 2 * whole.ms, "seed %d: %.0f ms, %.0f with whole prompts", i, run.ms,
                  whole.ms);
        n_kept += run.n_kept;
        n_lost += run.n_lost;
    }
    CHECK_MSG(n_kept > 10 * n_seeds && n_lost < n_kept / 50, "%d gaps that could be kept, %d were not",
              (int)(n_kept + n_lost), (int)n_lost);
}
