/* expert_slots_test.c - slots of experts against a plain model of them, step by step: every map is
 * an array that is searched, and recency is the number of the step.
 */
#include "backend/expert_slots.h"
#include "base/rng.h"
#include "tests/test.h"

static err why; /* of the test under way, which has a process of its own */

enum { E_MOST = 40 };

typedef struct plain {
    int32_t n_experts, n_slots;
    int32_t expert[E_MOST]; /* of a slot; -1 */
    int32_t state[E_MOST];  /* 0 empty, 1 on its way, 2 filled */
    uint64_t used[E_MOST];  /* of a slot: the step of its last use */
    uint32_t heat[E_MOST];
    uint64_t age, step;
} plain;

static int32_t plain_slot(const plain *p, int32_t expert)
{
    for (int32_t i = 0; i < p->n_slots; i++)
        if (p->state[i] && p->expert[i] == expert)
            return i;
    return -1;
}

static void plain_use(plain *p, int32_t expert, uint32_t n)
{
    int32_t s = plain_slot(p, expert);
    if (s >= 0 && p->state[s] == 2)
        p->used[s] = ++p->step;
    n = n > 4 ? 4 : n;
    p->heat[expert] += n;
    if ((p->age += n) >= 16u * (uint64_t)p->n_experts) {
        for (int32_t i = 0; i < p->n_experts; i++)
            p->heat[i] /= 2;
        p->age = 0;
    }
}

static int32_t plain_offer(const plain *p, int32_t expert)
{
    if (plain_slot(p, expert) >= 0)
        return -1;
    for (int32_t i = 0; i < p->n_slots; i++)
        if (!p->state[i])
            return i;
    /* The slot to which no other filled one is to be preferred. */
    for (int32_t i = 0; i < p->n_slots; i++) {
        int32_t better = 0;
        for (int32_t k = 0; k < p->n_slots; k++) {
            uint32_t mine = p->heat[p->expert[i]], its = p->heat[p->expert[k]];
            better += p->state[k] == 2 && (its < mine || (its == mine && p->used[k] < p->used[i]));
        }
        if (p->state[i] == 2 && !better)
            return p->heat[expert] >= p->heat[p->expert[i]] + 3 ? i : -1;
    }
    return -1;
}

static bool same(const expert_slots *s, const plain *p)
{
    int32_t coming = 0, empty = 0;
    for (int32_t i = 0; i < p->n_experts; i++)
        if (s->slot[i] != plain_slot(p, i) || s->heat[i] != p->heat[i])
            return false;
    for (int32_t i = 0; i < p->n_slots; i++) {
        if (s->expert[i] != (p->state[i] ? p->expert[i] : -1) || s->coming[i] != (p->state[i] == 1))
            return false;
        coming += p->state[i] == 1;
        empty += !p->state[i];
    }
    return s->n_coming == coming && s->n_empty == empty;
}

/* One use, offer, begin or end, drawn at random. */
static void random_step(expert_slots *s, plain *p, uint64_t *seed)
{
    uint64_t u = rng_next(seed);
    int32_t e = (int32_t)(u >> 8 & 0x7fff), slot;
    e = (e * e >> 15) % p->n_experts; /* small numbers are commoner */
    if ((u & 7) < 4) {
        uint32_t n = 1 + (uint32_t)(u >> 40 & 7);
        expert_slots_use(s, e, n);
        plain_use(p, e, n);
    } else if ((u & 7) < 6) {
        CHECK_EQ(slot = expert_slots_offer(s, e), plain_offer(p, e));
        if (slot < 0)
            return;
        expert_slots_begin(s, slot, e);
        p->expert[slot] = e;
        p->state[slot] = 1;
    } else {
        slot = (int32_t)(u >> 32 & 0xff) % p->n_slots;
        bool ok = u >> 60 & 7;
        if (p->state[slot] != 1)
            return;
        expert_slots_end(s, slot, ok);
        p->state[slot] = ok ? 2 : 0;
        p->used[slot] = ++p->step;
    }
}

static int32_t drive(int32_t n_experts, int32_t n_slots, int32_t n_steps, uint64_t seed)
{
    AUTO(expert_slots_free) expert_slots s;
    plain p = {.n_experts = n_experts, .n_slots = n_slots};
    int32_t wrong = 0;
    CHECK_OK(expert_slots_init(&s, n_experts, n_slots, &why), why);
    for (int32_t i = 0; i < n_steps && !wrong; i++) {
        random_step(&s, &p, &seed);
        if (i % 16 == 0 || i == n_steps - 1)
            wrong += !same(&s, &p);
    }
    return wrong;
}

TEST(expert_slots_equal_a_plain_model_over_a_million_steps)
{
    uint64_t seed = test_seed();
    CHECK_EQ(drive(E_MOST, 13, 600000, seed), 0);
    CHECK_EQ(drive(8, 2, 200000, seed + 1), 0);
    CHECK_EQ(drive(5, 5, 100000, seed + 2), 0);
    CHECK_EQ(drive(3, 1, 100000, seed + 3), 0);
}

/* Uses expert e, and copies it at once where a slot is offered. */
static void visit(expert_slots *s, int32_t e)
{
    expert_slots_use(s, e, 1);
    int32_t slot = expert_slots_offer(s, e);
    if (slot < 0)
        return;
    expert_slots_begin(s, slot, e);
    expert_slots_end(s, slot, true);
}

TEST(expert_slots_are_not_flushed_by_one_odd_prompt)
{
    AUTO(expert_slots_free) expert_slots s;
    int32_t kept = 0;
    CHECK_OK(expert_slots_init(&s, 128, 16, &why), why);
    for (int32_t i = 0; i < 160; i++)
        visit(&s, i % 16);
    for (int32_t e = 16; e < 128; e++) { /* every other expert, several times in one pass */
        expert_slots_use(&s, e, 1000);
        if (expert_slots_offer(&s, e) >= 0)
            visit(&s, e);
    }
    for (int32_t e = 0; e < 16; e++)
        kept += expert_slots_has(&s, e);
    CHECK_EQ(kept, 16);
}

TEST(expert_slots_follow_a_topic_that_lasts)
{
    AUTO(expert_slots_free) expert_slots s;
    int32_t there = 0;
    CHECK_OK(expert_slots_init(&s, 64, 8, &why), why);
    for (int32_t i = 0; i < 4000; i++)
        visit(&s, i % 8);
    for (int32_t i = 0; i < 4000; i++)
        visit(&s, 40 + i % 8);
    for (int32_t e = 40; e < 48; e++)
        there += expert_slots_has(&s, e);
    CHECK_EQ(there, 8);
}

TEST(expert_slots_refuse_what_cannot_be)
{
    static const int32_t wrong[][2] = {{0, 0}, {8, 0}, {8, 9}, {8, -1}, {EXPERTS_MAX + 1, 1}};
    expert_slots s;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        err e = {0};
        CHECK_EQ(expert_slots_init(&s, wrong[i][0], wrong[i][1], &e), E_ARG);
        CHECK(e.text[0]);
        expert_slots_free(&s);
    }
}

TEST(expert_slots_begin_with_the_heat_of_earlier_runs)
{
    static const uint64_t count[4] = {0, 10, 1000, UINT64_MAX};
    AUTO(expert_slots_free) expert_slots s;
    CHECK_OK(expert_slots_init(&s, 4, 1, &why), why);
    expert_slots_warm(&s, count);
    CHECK_EQ(s.heat[0], 0);
    CHECK_EQ(s.heat[3], EXPERT_HEAT_MOST);
    expert_slots_warm(&s, NULL);
}
