/* bind_test.c - frequencies of rotation: part of a head, and scaled to longer contexts. */
#include "model/bind.h"
#include "tests/test.h"

#include <math.h>

static rope rope_of(model *m, const turning *t)
{
    rope r = {0};
    err e = {0};
    CHECK_OK(bind_rope(m, &r, t, &e), e);
    return r;
}

/* Laguna XS-2.1's full layers: pairs up to 7 keep their frequency, pairs from 18 on have a 32nd of
 * it. beta_fast 32 would keep pairs up to 9. */
TEST(yarn_frequencies_of_published_numbers)
{
    model_table tables[MODEL_TABLES_MAX];
    model m = {.tables = tables, .file = {.path = "a model"}};
    const double magnitude = 1 + 0.1 * log(32);
    const rope_scaling yarn = {SCALING_YARN, 32, 8192, 64, 1, magnitude, false};
    const turning t = {64, 5e5, 32, NULL, &yarn};
    rope r = rope_of(&m, &t);
    CHECK_EQ(r.n_pairs, 32);
    CHECK_EQ(r.n_turning, 32);
    CHECK_NEAR(r.factor, 1.3465735902799727, 1e-7);
    for (int i = 0; i < 32; i++) {
        double f = pow(5e5, -2.0 * i / 64), ramp = i <= 7 ? 0 : i >= 18 ? 1 : (i - 7) / 11.0;
        CHECK_NEAR(r.inv_freq[i] / f, 1 - ramp + ramp / 32, 1e-6);
    }
    arena_free(&m.mem);
}

TEST(linear_scaling_divides_every_frequency)
{
    model_table tables[MODEL_TABLES_MAX];
    model m = {.tables = tables, .file = {.path = "a model"}};
    const rope_scaling linear = {.kind = SCALING_LINEAR, .factor = 4, .magnitude = 1};
    const turning t = {16, 1e4, 8, NULL, &linear}, plain = {16, 1e4, 8, NULL, NULL};
    rope a = rope_of(&m, &t), b = rope_of(&m, &plain);
    CHECK(a.factor == 1 && b.factor == 1);
    for (int i = 0; i < 8; i++)
        CHECK(a.inv_freq[i] * 4 == b.inv_freq[i]);
    arena_free(&m.mem);
}
