/* host_arena_test.c - blocks of the arena against a list of them, and what it locks. */
#include "backend/host_arena.h"
#include "base/mem.h"
#include "base/rng.h"
#include "tests/test.h"

enum { BLOCKS = 64 };
#define MB ((size_t)1 << 20)

typedef struct block {
    char *at;
    size_t n_bytes;
} block;

static int32_t n_unlocked;

static void count_unlocked(char *section)
{
    n_unlocked += (uintptr_t)section % HOST_SECTION == 0;
}

/* Locks every waiting section; if some fail, every fifth one. Returns how many sections the arena
 * named. */
static int32_t lock_all(host_arena *a, bool some_fail, int32_t *n_so_far, int32_t *n_locked)
{
    int32_t n = 0;
    for (char *s; (s = host_arena_next(a)); n++) {
        bool ok = ++*n_so_far % 5 != 0 || !some_fail;
        CHECK_EQ((uintptr_t)s % HOST_SECTION, 0);
        CHECK(!host_arena_ready(a, s + HOST_SECTION - 1, 1)); /* not while it is being locked */
        host_arena_done(a, s, ok);
        *n_locked += ok;
    }
    return n;
}

static bool apart(const block *a, const block *b)
{
    return !a->at || !b->at || a->at + a->n_bytes <= b->at || b->at + b->n_bytes <= a->at;
}

static size_t whole_units(size_t n)
{
    return (n + HOST_UNIT - 1) / HOST_UNIT * HOST_UNIT;
}

TEST(host_blocks_never_overlap_and_are_locked_before_they_are_ready)
{
    host_arena a = {0};
    block b[BLOCKS] = {{0}};
    uint64_t seed = test_seed();
    int32_t n_sections = 0, n_locked = 0;
    size_t used = 0, most = 0;
    n_unlocked = 0;
    for (int32_t step = 0; step < 4000; step++) {
        int32_t i = (int32_t)rng_below(&seed, BLOCKS);
        if (b[i].at) {
            host_arena_give(&a, b[i].at, b[i].n_bytes);
            used -= whole_units(b[i].n_bytes);
            b[i] = (block){0};
        } else {
            size_t n = 1 + rng_below(&seed, (step % 100 ? 90 : 1100) * MB);
            b[i] = (block){host_arena_take(&a, n), n};
            CHECK(b[i].at && (uintptr_t)b[i].at % HOST_UNIT == 0);
            b[i].at[0] = b[i].at[n - 1] = (char)i; /* the memory is there */
            used += whole_units(n);
            for (int32_t k = 0; k < BLOCKS; k++)
                CHECK(k == i || apart(&b[i], &b[k]));
            if (step % 7 == 0)
                lock_all(&a, true, &n_sections, &n_locked);
        }
        CHECK_EQ(a.used_bytes, used);
        most = used > most ? used : most;
    }
    lock_all(&a, true, &n_sections, &n_locked);
    for (int32_t i = 0; i < BLOCKS; i++) {
        CHECK(!b[i].at || host_arena_ready(&a, b[i].at, b[i].n_bytes));
        CHECK(!b[i].at || b[i].at[0] == (char)i);
    }
    CHECK(a.asked_bytes == (size_t)n_sections * HOST_SECTION);
    CHECK_MSG(a.asked_bytes < most + most / 2, "%zu MB for %zu", a.asked_bytes / MB, most / MB);
    host_arena_close(&a, count_unlocked);
    CHECK_EQ(n_unlocked, n_locked);
}

/* A server's conversations: of each prompt a block, and one more of prompt and answer, until a
 * budget is full and the oldest go. Sizes differ, and yet hardly anything more is locked: what holes
 * take. ahead: before the first conversation the test takes blocks of the budget and a sixteenth,
 * and gives them back. No block waits for those sections.
 * Returns the sections that blocks waited for after the first n. */
static int32_t sections_waited_for(bool ahead, int32_t n_first)
{
    host_arena a = {0};
    block b[BLOCKS] = {{0}};
    const size_t budget = 4096 * MB, all = budget + budget / 16;
    int32_t n_sections = 0, n_locked = 0, oldest = 0, next = 0, later = 0;
    size_t used = 0;
    uint64_t seed = test_seed();
    if (ahead)
        host_arena_give(&a, host_arena_take(&a, all), all);
    lock_all(&a, false, &n_sections, &n_locked);
    for (int32_t step = 0; step < 2000; step++) {
        size_t n = (step % 2 ? 157 : 105) * MB - rng_below(&seed, 5 * MB);
        while (used + n > budget || next - oldest == BLOCKS) {
            const block *gone = &b[oldest++ % BLOCKS];
            host_arena_give(&a, gone->at, gone->n_bytes);
            used -= gone->n_bytes;
        }
        char *at = host_arena_take(&a, n);
        b[next++ % BLOCKS] = (block){at, n};
        used += n;
        const bool waits = !host_arena_ready(&a, at, n);
        const int32_t locked = lock_all(&a, false, &n_sections, &n_locked);
        later += waits && step >= n_first ? locked : 0;
    }
    CHECK(a.asked_bytes <= budget + budget / 4);
    host_arena_close(&a, count_unlocked);
    return later;
}

TEST(host_blocks_of_other_sizes_take_the_place_of_those_that_went)
{
    int32_t n = sections_waited_for(false, 200);
    CHECK_MSG((size_t)n * HOST_SECTION <= 4096 * MB / 16, "%d sections", n);
    CHECK(sections_waited_for(false, 0) >= 200); /* each one once */
}

TEST(host_blocks_that_were_given_back_are_locked_for_others)
{
    int32_t n = sections_waited_for(true, 0);
    CHECK_MSG(n <= 8, "%d sections", n);
}

/* Where no memory can be locked, none is touched for it ahead of need. */
TEST(host_sections_without_blocks_are_not_locked_after_a_failure)
{
    host_arena a = {0};
    for (int32_t i = 0; i < 2; i++) {
        host_arena_give(&a, host_arena_take(&a, 4096 * MB), 4096 * MB);
        for (int32_t k = 0; k < 10 && !i; k++)
            host_arena_done(&a, host_arena_next(&a), k < 9);
        CHECK(!host_arena_next(&a));
        CHECK_EQ(a.asked_bytes, 10 * HOST_SECTION);
    }
    const char *at = host_arena_take(&a, 20 * HOST_SECTION);
    CHECK(!host_arena_ready(&a, at, 20 * HOST_SECTION));
    for (int32_t k = 10; k < 20; k++) {
        const char *section = host_arena_next(&a);
        CHECK(section == at + (size_t)k * HOST_SECTION);
        host_arena_done(&a, section, true);
    }
    CHECK(!host_arena_next(&a) && host_arena_ready(&a, at, 20 * HOST_SECTION));
    n_unlocked = 0;
    host_arena_close(&a, count_unlocked);
    CHECK_EQ(n_unlocked, 19);
}

TEST(host_blocks_end_with_the_memory)
{
    host_arena a = {0};
    CHECK(!host_arena_take(&a, SIZE_MAX));
    CHECK(!host_arena_take(&a, SIZE_MAX / 2));
    for (int32_t i = 0; i < 4; i++) {
        mem_fail_after(i);
        CHECK(!host_arena_take(&a, 1) && mem_fail_hit());
        mem_fail_after(-1);
    }
    CHECK(host_arena_take(&a, 1));
    CHECK_EQ(a.used_bytes, HOST_UNIT);
    CHECK(host_arena_ready(&a, &a, sizeof a)); /* other memory */
    host_arena_give(&a, &a, sizeof a);
    host_arena_close(&a, count_unlocked);
}
