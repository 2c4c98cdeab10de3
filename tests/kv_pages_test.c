/* kv_pages_test.c - keys in pages: no bit of a result depends on where pages lie or who shares
 * them.
 *
 * Every test compares sequences whose pages lie in line with the same sequences in a pool whose
 * free pages come in any order. Free pages are full of NaN, so a key read from a wrong page shows.
 */
#include "base/mem.h"
#include "kv/snapshot.h"
#include "tests/kv_rig.h"
#include "tests/test.h"

enum { TREE = 9, CHUNK = 70, SCRIPT_ROWS = 512 };

/* What a script computes: the logits of all its rows. */
typedef struct trace {
    float *x;
    int32_t n;
} trace;

static void run(rig *r, kv_cache *c, trace *t, const int32_t *ids, int32_t n, int32_t keep)
{
    err e = {0};
    CHECK_OK(kv_reserve(c, n, &e), e);
    CHECK_OK(kv_batch_add(&r->b, c, ids, n, NULL, KV_WANT_ALL, &e), e);
    CHECK(t->n + n <= SCRIPT_ROWS);
    rig_pass(r, t->x + (size_t)t->n * RIG_VOCAB);
    kv_commit(c, keep);
    t->n += n;
}

/* A tree of which rows 0, 2 and 5 are kept. */
static void run_tree(rig *r, kv_cache *c, trace *t, const int32_t *ids)
{
    static const int32_t parent[TREE] = {-1, 0, 0, 1, 1, 2, 2, 5, 5}, path[] = {0, 2, 5};
    err e = {0};
    CHECK_OK(kv_reserve(c, TREE, &e), e);
    CHECK_OK(kv_batch_add(&r->b, c, ids, TREE, parent, KV_WANT_ALL, &e), e);
    CHECK(t->n + TREE <= SCRIPT_ROWS);
    rig_pass(r, t->x + (size_t)t->n * RIG_VOCAB);
    kv_commit_path(c, path, 3);
    t->n += TREE;
}

static void save_and_load(rig *r, kv_cache *c, const int32_t *ids, bool as_pages)
{
    kv_snapshot *s;
    err e = {0};
    const kv_snapshot_want w = {
        .layout = &r->l, .ids = ids, .n = c->n_past, .pool = as_pages ? c->pool : NULL};
    CHECK_OK(kv_snapshot_new(&w, &s, &e), e);
    kv_snapshot_fill(s, c);
    rig_poison(c);
    kv_reset(c);
    CHECK_OK(kv_snapshot_load(s, c, &e), e);
    kv_snapshot_drop(s);
}

/* To host memory and back, into other pages. */
static void leave_and_return(kv_cache *c)
{
    int32_t n_free = c->pool->pages.n_free, n = c->n_pages;
    err e = {0};
    CHECK_OK(kv_page_out(c, NULL, &e), e);
    CHECK_EQ(c->n_paged_out, n);
    CHECK_EQ(c->pool->pages.n_free, n_free + n);
    CHECK(!kv_can_save(c, c->n_past, 0));
    CHECK_STATUS(kv_reserve(c, 1, &e), E_ARG);
    err_clear(&e);
    rig_poison_free(c);
    CHECK_OK(kv_page_in(c, &e), e);
    CHECK_EQ(c->n_paged_out, 0);
    CHECK_EQ(c->pool->pages.n_free, n_free);
}

/* Two sequences: chunks, single rows, rejected rows, trees, rewinds, snapshots, passes of both. */
static void script(rig *r, trace *t)
{
    kv_cache *a = &r->c, b;
    int32_t ids[SCRIPT_ROWS] = {0}; /* a snapshot keeps one for each of its tokens */
    uint64_t rng = 77;
    err e = {0};
    t->n = 0;
    CHECK_OK(kv_open_in(&b, a->pool, &e), e);
    rig_draw(ids, CHUNK, &rng);
    run(r, a, t, ids, CHUNK, CHUNK);
    run(r, &b, t, ids, 61, 61);
    for (int i = 0; i < 2; i++) {
        kv_cache *c = i & 1 ? &b : a;
        rig_draw(ids, CHUNK, &rng);
        run(r, c, t, ids, 3, 1);
        run_tree(r, c, t, ids + 3);
        run(r, c, t, ids + 12, 40, 40);
        CHECK(kv_rewind(c, c->n_past - 3));
        run_tree(r, c, t, ids + 52);
        save_and_load(r, c, ids, i);
        run(r, c, t, ids, 2, 1);
        leave_and_return(c);
    }
    for (int i = 0; i < 8; i++) { /* both in one pass */
        rig_draw(ids, 8, &rng);
        CHECK_OK(kv_reserve(a, 5, &e), e);
        CHECK_OK(kv_reserve(&b, 3, &e), e);
        CHECK_OK(kv_batch_add(&r->b, a, ids, 5, NULL, KV_WANT_ALL, &e), e);
        CHECK_OK(kv_batch_add(&r->b, &b, ids + 5, 3, NULL, KV_WANT_ALL, &e), e);
        rig_pass(r, t->x + (size_t)t->n * RIG_VOCAB);
        t->n += 8;
        kv_commit(a, 4);
        kv_commit(&b, 3);
    }
    CHECK(kv_rewind(&b, 0));
    rig_poison(&b);
    run(r, &b, t, ids, 8, 8);
    kv_close(&b);
}

static bool in_line(const kv_cache *c)
{
    for (int32_t i = 1; i < c->n_pages; i++)
        if (c->page[i] != c->page[i - 1] + 1)
            return false;
    return true;
}

static void compare_placements(const cpu_options *o, const char *isa, int every)
{
    trace t[2];
    rig r;
    char words[128];
    if (!rig_open_on(&r, o))
        return;
    for (int k = 0; k < 2; k++)
        CHECK(t[k].x = mem_alloc((size_t)SCRIPT_ROWS * RIG_VOCAB * sizeof *t[k].x));
    r.n_pool = 2 * RIG_CTX;
    for (int f = 0; f < RIG_FORMATS; f += every)
        for (int k = 0; k < 2; k++) {
            r.shuffled = k;
            rig_open_cache(&r, &rig_format[f], CHUNK);
            script(&r, &t[k]);
            CHECK(!k || !in_line(&r.c));
            CHECK_EQ(r.c.pool->pages.n_free, r.c.pool->pages.n - r.c.n_pages);
            rig_close_cache(&r);
            for (int32_t i = 0; i < t[k].n; i++)
                CHECK_MSG(isfinite(t[k].x[(size_t)i * RIG_VOCAB]),
                          "%s, %s: row %d sees what no one wrote", isa,
                          rig_words(&rig_format[f], words, sizeof words), i);
            for (int32_t i = 0; k && i < t[k].n; i++)
                CHECK_MSG(
                    rig_same(t[0].x + (size_t)i * RIG_VOCAB, t[1].x + (size_t)i * RIG_VOCAB, 1),
                    "%s, %s: row %d depends on the place of its keys", isa,
                    rig_words(&rig_format[f], words, sizeof words), i);
        }
    for (int k = 0; k < 2; k++)
        mem_free(t[k].x);
    rig_close(&r);
}

PLAIN_TEST(results_do_not_depend_on_the_places_of_pages)
{
    compare_placements(&(cpu_options){.n_threads = 1}, "best", test_brief() ? 9 : 1);
}

/* The same code as on the best one, but for kernels of other tests. */
LONG_TEST(results_do_not_depend_on_the_places_of_pages_on_any_instruction_set)
{
    static const char *const isa[] = {"portable", "avx2", "avx512", "neon"};
    compare_placements(&(cpu_options){.n_threads = 1, .reference = true}, "reference", 13);
    for (size_t i = 0; i < sizeof isa / sizeof *isa; i++)
        compare_placements(&(cpu_options){.n_threads = 2, .isa = isa[i]}, isa[i], 11);
}

/* ---- Sharing ------------------------------------------------------------------------------ */

static kv_snapshot *hold(rig *r, kv_cache *c, const int32_t *ids)
{
    kv_snapshot *s;
    err e = {0};
    const kv_snapshot_want w = {.layout = &r->l, .ids = ids, .n = c->n_past, .pool = c->pool};
    CHECK_OK(kv_snapshot_new(&w, &s, &e), e);
    kv_snapshot_fill(s, c);
    return s;
}

/* b goes on from a's snapshot, in a's pages. Both write rows of their own behind it. */
TEST(caches_share_the_pages_of_a_snapshot_and_copy_the_last_one)
{
    enum { N = 2 * KV_PAGE + 20, MORE = 4 };
    rig r;
    kv_cache b;
    int32_t ids[N + MORE], other[MORE];
    float *x = mem_alloc((size_t)N * RIG_VOCAB * sizeof *x), got[MORE * RIG_VOCAB],
          want[2][MORE * RIG_VOCAB];
    trace t = {.x = x};
    uint64_t rng = 3;
    err e = {0};
    CHECK(x);
    rig_open(&r);
    r.n_pool = 2 * RIG_CTX;
    rig_draw(ids, N + MORE, &rng);
    rig_draw(other, MORE, &rng);
    for (int k = 0; k < 2; k++) { /* alone */
        rig_open_cache(&r, &rig_format[2], N);
        rig_run(&r, ids, N, N, x);
        rig_run(&r, k ? other : ids + N, MORE, MORE, want[k]);
        rig_close_cache(&r);
    }
    rig_open_cache(&r, &rig_format[2], N);
    pages *p = &r.c.pool->pages;
    rig_run(&r, ids, N, N, x);
    kv_snapshot *s = hold(&r, &r.c, ids);
    CHECK_EQ(s->linear->n_pages, 3);
    CHECK(!s->linear->rows);
    CHECK_OK(kv_open_in(&b, r.c.pool, &e), e);
    CHECK_EQ(kv_snapshot_pages(s, &b), 0);
    CHECK_OK(kv_snapshot_load(s, &b, &e), e);
    CHECK_EQ(p->n_free, p->n - 3);
    CHECK_EQ(p->n_shared, 3);
    CHECK(kv_rewind(&b, N - 1)); /* below what the others rely on: it has to copy */
    CHECK_EQ(kv_pages_needed(&b, 1), 1);
    CHECK(kv_pages_needed(&r.c, 1) == 0); /* behind what the others rely on */
    t.n = 0;
    run(&r, &b, &t, ids + N - 1, 1, 1);
    CHECK_EQ(p->n_free, p->n - 4);
    rig_run(&r, ids + N, MORE, MORE, got);
    CHECK(rig_same(got, want[0], MORE));
    t.n = 0;
    run(&r, &b, &t, other, MORE, MORE);
    CHECK(rig_same(x, want[1], MORE));
    /* The snapshot is what it was, from rows too, and when the caches are gone. */
    kv_reset(&r.c);
    kv_reset(&b);
    CHECK_EQ(p->n_free, p->n - 3);
    for (int k = 0; k < 2; k++) {
        rig_poison(&b);
        CHECK_OK(kv_snapshot_load(s, &b, &e), e);
        t.n = 0;
        run(&r, &b, &t, k ? other : ids + N, MORE, MORE);
        CHECK(rig_same(x, want[k], MORE));
        kv_reset(&b);
        CHECK_OK(kv_snapshot_to_rows(s, &e), e);
        CHECK_EQ(p->n_free, p->n);
        CHECK_EQ(kv_snapshot_pages(s, &b), 3);
    }
    kv_snapshot_drop(s);
    kv_close(&b);
    CHECK(p->n_free == p->n && !p->n_shared);
    rig_close_cache(&r);
    rig_close(&r);
    mem_free(x);
}

TEST(a_full_pool_refuses_and_loses_nothing)
{
    enum { ROOM = 3 * KV_PAGE };
    rig r;
    kv_cache b;
    int32_t ids[ROOM];
    AUTO_MEM float *x = mem_alloc((size_t)ROOM * RIG_VOCAB * sizeof *x);
    trace t = {.x = x};
    uint64_t rng = 4;
    err e = {0};
    CHECK(x);
    rig_open(&r);
    r.n_pool = ROOM;
    rig_draw(ids, ROOM, &rng);
    rig_open_cache(&r, &rig_format[0], ROOM);
    pages *p = &r.c.pool->pages;
    CHECK_OK(kv_open_in(&b, r.c.pool, &e), e);
    rig_run(&r, ids, 70, 70, x);
    run(&r, &b, &t, ids, KV_PAGE, KV_PAGE);
    CHECK_EQ(p->n_free, 0);
    CHECK_STATUS(kv_reserve(&b, 1, &e), E_LIMIT);
    CHECK(strstr(e.text, "full"));
    CHECK_EQ(b.n_pages, 1);
    CHECK_EQ(b.n_written, KV_PAGE);
    err_clear(&e);
    kv_snapshot *s = hold(&r, &r.c, ids);
    CHECK_OK(kv_snapshot_to_rows(s, &e), e);
    CHECK_STATUS(kv_snapshot_load(s, &b, &e), E_LIMIT);
    err_clear(&e);
    CHECK_EQ(b.n_past, KV_PAGE);
    CHECK_OK(kv_page_out(&r.c, NULL, &e), e);
    CHECK_OK(kv_reserve(&b, KV_PAGE, &e), e);
    CHECK_STATUS(kv_page_in(&r.c, &e), E_LIMIT);
    err_clear(&e);
    kv_reset(&b);
    CHECK_OK(kv_page_in(&r.c, &e), e);
    kv_snapshot_drop(s);
    kv_close(&b);
    kv_reset(&r.c);
    CHECK_EQ(p->n_free, p->n);
    rig_close_cache(&r);
    rig_close(&r);
}
