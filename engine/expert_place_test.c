/* expert_place_test.c - budgets of experts: never exceeded, never below the least, monotone. */
#include "engine/expert_place.h"
#include "base/rng.h"
#include "tests/test.h"

static err why; /* of the test under way, which has a process of its own */

enum { LAYERS = 6, EXPERTS = 24 };

static uint64_t counts[LAYERS][EXPERTS];

static void random_layers(place_layer *l, uint64_t *seed, bool counted)
{
    for (int i = 0; i < LAYERS; i++) {
        uint64_t u = rng_next(seed);
        int32_t n = 2 + (int32_t)(u % (EXPERTS - 1));
        l[i] = (place_layer){.n_experts = n,
                             .n_used = 1 + (int32_t)(u >> 8 & 3) % n,
                             .bytes = 1000 + (u >> 16 & 1023),
                             .count = counted ? counts[i] : NULL};
        for (int k = 0; k < EXPERTS; k++)
            counts[i][k] = rng_next(seed) >> (rng_next(seed) & 63);
    }
}

static uint64_t bytes_of(const place_layer *l)
{
    uint64_t sum = 0;
    for (int i = 0; i < LAYERS; i++)
        sum += l[i].bytes * (uint64_t)l[i].n_slots;
    return sum;
}

TEST(expert_budgets_are_kept_and_monotone)
{
    uint64_t seed = test_seed();
    for (int round = 0; round < 60; round++) {
        place_layer l[LAYERS], before[LAYERS] = {{0}};
        random_layers(l, &seed, round & 1);
        uint64_t least = expert_place_least(l, LAYERS), all = expert_place_all(l, LAYERS), used;
        for (int step = 0; step <= 40; step++) {
            uint64_t budget = least + (all - least) * (uint64_t)step / 40;
            CHECK_OK(expert_place(l, LAYERS, budget, &used, &why), why);
            CHECK_EQ(used, bytes_of(l));
            CHECK(used <= budget);
            for (int i = 0; i < LAYERS; i++) {
                CHECK(l[i].n_slots >= l[i].n_used && l[i].n_slots <= l[i].n_experts);
                CHECK(l[i].n_slots >= before[i].n_slots);
                before[i] = l[i];
            }
        }
        CHECK_EQ(bytes_of(l), all);
    }
}

TEST(expert_budgets_without_counts_are_even)
{
    place_layer l[LAYERS];
    uint64_t used;
    for (int i = 0; i < LAYERS; i++)
        l[i] = (place_layer){.n_experts = 16, .n_used = 2, .bytes = 100};
    CHECK_OK(expert_place(l, LAYERS, 100 * LAYERS * 8, &used, &why), why);
    for (int i = 0; i < LAYERS; i++)
        CHECK_EQ(l[i].n_slots, 8);
}

TEST(expert_budgets_go_where_the_uses_are)
{
    static const uint64_t flat[4] = {10, 10, 10, 10}, steep[4] = {37, 1, 1, 1};
    place_layer l[2] = {{.n_experts = 4, .n_used = 1, .bytes = 10, .count = flat},
                        {.n_experts = 4, .n_used = 1, .bytes = 10, .count = steep}};
    uint64_t used;
    CHECK_OK(expert_place(l, 2, 50, &used, &why), why);
    CHECK_EQ(l[0].n_slots, 4);
    CHECK_EQ(l[1].n_slots, 1);
}

TEST(expert_budgets_count_what_a_use_is_worth)
{
    static const uint64_t count[4] = {40, 20, 10, 5};
    place_layer l[2] = {{.n_experts = 4, .n_used = 1, .bytes = 10, .count = count, .worth = 3},
                        {.n_experts = 4, .n_used = 1, .bytes = 10, .count = count, .worth = 1}};
    uint64_t used;
    CHECK_OK(expert_place(l, 2, 50, &used, &why), why); /* 60, 30, then 20 and not 15 */
    CHECK_EQ(l[0].n_slots, 3);
    CHECK_EQ(l[1].n_slots, 2);
}
