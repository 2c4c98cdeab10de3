/* kv_test.c - rings never lose a live key, by brute force; batches say what they should. */
#include "base/mem.h"
#include "base/rng.h"
#include "kv/kv.h"
#include "tests/test.h"

/* A device that only allocates: what is stored is tracked by the test itself. */
static void *fake_alloc(device *d, size_t n)
{
    (void)d;
    return mem_calloc(1, n);
}
static void fake_release(device *d, void *p, size_t n)
{
    (void)d;
    (void)n;
    mem_free(p);
}
static void fake_upload(device *d, void *to, const void *from, size_t n)
{
    (void)d;
    memcpy(to, from, n);
}
static device fake = {.alloc = fake_alloc, .release = fake_release, .upload = fake_upload};

static status layout(kv_layout *l, const kv_spec *s, int32_t n, num_type k, num_type v,
                     int32_t n_ctx, int32_t rows_max, err *e)
{
    const kv_want_layout w = {.spec = s,
                              .n = n,
                              .choice = {.k = {k, false}, .v = {v, false}},
                              .n_ctx = n_ctx,
                              .rows_max = rows_max};
    return kv_layout_init(l, &w, e);
}

/* Which index each slot of a ring holds, kept beside the cache under test. */
typedef struct {
    kv_cache c;
    kv_layout l;
    int64_t held[64];
} model_ring;

static void write_rows(model_ring *m, int32_t n)
{
    err e = {0};
    CHECK_OK(kv_reserve(&m->c, n, &e), e);
    for (int64_t i = m->c.n_past; i < m->c.n_past + n; i++)
        m->held[i % m->l.view[0].n_slots] = i;
}

/* Every index a query at q may see must be in its slot. */
static void check_live(const model_ring *m, int64_t q)
{
    const kv_view *v = &m->l.view[0];
    for (int64_t i = q - v->window + 1; i <= q; i++)
        if (i >= 0)
            CHECK_MSG(m->held[i % v->n_slots] == i, "window %d, %d slots: query %lld lost key %lld",
                      v->window, v->n_slots, (long long)q, (long long)i);
}

TEST(ring_keeps_every_live_key)
{
    uint64_t rng = test_seed();
    for (int w = 1; w <= 16; w++)
        for (int rows = 1; rows <= 9; rows++) {
            model_ring m = {0};
            err e = {0};
            kv_spec s = {.window = w, .n_head_kv = 1, .head_dim = 8};
            CHECK_OK(layout(&m.l, &s, 1, NUM_F32, NUM_F32, 1 << 20, rows, &e), e);
            CHECK_EQ(m.l.view[0].n_slots, w + rows - 1);
            CHECK_OK(kv_open(&m.c, &fake, &m.l, &e), e);
            for (int round = 0; round < 200; round++) {
                int n = 1 + (int)rng_below(&rng, (uint64_t)rows);
                int64_t b = m.c.n_past;
                write_rows(&m, n);
                for (int64_t q = b; q < b + n; q++)
                    check_live(&m, q);
                kv_commit(&m.c, (int32_t)rng_below(&rng, (uint64_t)n + 1)); /* drop the rest */
                int64_t to = m.c.n_past - (int64_t)rng_below(&rng, 12);
                if (rng_below(&rng, 4) == 0 && kv_rewind(&m.c, to)) {
                    /* Sound: whatever a rewound timeline needs is still there. */
                    for (int64_t i = to - w + 1; i < to; i++)
                        if (i >= 0)
                            CHECK_EQ(m.held[i % m.l.view[0].n_slots], i);
                }
            }
            kv_close(&m.c);
            kv_layout_free(&m.l);
        }
}

TEST(ring_refuses_a_rewind_it_has_forgotten)
{
    model_ring m = {0};
    err e = {0};
    kv_spec s = {.window = 8, .n_head_kv = 1, .head_dim = 8};
    CHECK_OK(layout(&m.l, &s, 1, NUM_F16, NUM_BF16, 1000, 5, &e), e);
    CHECK_OK(kv_open(&m.c, &fake, &m.l, &e), e);
    for (int i = 0; i < 20; i++) {
        write_rows(&m, 5);
        kv_commit(&m.c, 5);
    }
    /* 12 slots hold 88..99; a query at n needs n-7. */
    CHECK(kv_can_rewind(&m.c, 95));
    CHECK(!kv_can_rewind(&m.c, 94));
    CHECK(kv_can_rewind(&m.c, 0)); /* starting over needs nothing */
    CHECK(!kv_can_rewind(&m.c, 101));
    CHECK_STATUS(kv_reserve(&m.c, 6, &e), E_ARG);
    kv_close(&m.c);
    kv_close(&m.c);
    kv_layout_free(&m.l);
}

TEST(layout_needs_no_ring_when_the_context_is_short)
{
    AUTO(kv_layout_free) kv_layout l;
    err e = {0};
    kv_spec s[2] = {{.window = 512, .n_head_kv = 2, .head_dim = 256},
                    {.window = 0, .n_head_kv = 1, .head_dim = 512}};
    CHECK_OK(layout(&l, s, 2, NUM_F16, NUM_F16, 100, 512, &e), e);
    CHECK_EQ(l.view[0].n_slots, 100);
    CHECK_EQ(l.all.linear, 128 * 512 * 2 * 2); /* two pages */
    CHECK_EQ(l.n_pool_pages, 2);
    kv_layout_free(&l);
    CHECK_OK(layout(&l, s, 2, NUM_F16, NUM_F16, 4096, 512, &e), e);
    CHECK_EQ(l.view[0].n_slots, 1023);
    CHECK_EQ(l.all.ring, 1023 * 2 * 256 * 2 * 2);
}

TEST(batch_of_a_tree_knows_ancestors_and_depth)
{
    AUTO(kv_layout_free) kv_layout l;
    AUTO(kv_close) kv_cache c;
    AUTO(kv_batch_free) kv_batch b;
    err e = {0};
    kv_spec s = {.window = 0, .n_head_kv = 1, .head_dim = 8};
    CHECK_OK(layout(&l, &s, 1, NUM_F32, NUM_F32, 64, 64, &e), e);
    CHECK_OK(kv_open(&c, &fake, &l, &e), e);
    c.n_past = 10;
    CHECK_OK(kv_batch_init(&b, 64, 2, &l, &e), e);
    int32_t token[5] = {1, 2, 3, 4, 5}, parent[5] = {-1, 0, 0, 1, 2};
    CHECK_OK(kv_batch_add(&b, &c, token, 5, parent, KV_WANT_ALL, &e), e);
    int32_t pos[5] = {10, 11, 11, 12, 12};
    uint64_t seen[5] = {1, 3, 5, 11, 21};
    for (int i = 0; i < 5; i++) {
        CHECK_EQ(b.st.all.pos[i], pos[i]);
        for (int k = 0; k < STORE_KINDS; k++) {
            CHECK_EQ(b.st.all.keys[k].index[i], 10 + i);
            CHECK_EQ(b.st.out.keys[k].first[i], 10);
            CHECK_EQ(b.st.out.keys[k].last[i], 14);
        }
        CHECK_EQ(b.st.out.seen[i], seen[i]);
    }
    CHECK_OK(kv_batch_add(&b, &c, token, 3, NULL, KV_WANT_LAST, &e), e); /* a chain beside it */
    CHECK_EQ(b.st.out.n, 6);
    CHECK_EQ(b.st.out_row[5], 7);
    CHECK_EQ(b.st.all.seen[7], 7);
    CHECK_EQ(b.st.all.seq[7], 1);
    CHECK_STATUS(kv_batch_add(&b, &c, token, 1, NULL, KV_WANT_ALL, &e), E_LIMIT);
    kv_batch_clear(&b);
    CHECK_EQ(b.st.all.n, 0);
    err_clear(&e);
    int32_t bad[2] = {-1, 1};
    CHECK_STATUS(kv_batch_add(&b, &c, token, 2, bad, KV_WANT_ALL, &e), E_ARG);
}

/* A cache with a ring, a linear store and a pool of its own. */
static status open_cache(void *arg, err *e)
{
    kv_cache c;
    status st = kv_open(&c, &fake, arg, e);
    if (st)
        CHECK(!c.page && !c.table && !c.paged_out && !c.base && !c.shown[0] && !c.own && !c.pool);
    else
        kv_close(&c);
    return st;
}

TEST(a_cache_without_memory_is_no_cache)
{
    const kv_spec s[2] = {{.n_head_kv = 1, .head_dim = 32, .window = 6},
                          {.n_head_kv = 1, .head_dim = 32}};
    AUTO(kv_layout_free) kv_layout l;
    err e = {0};
    CHECK_OK(layout(&l, s, 2, NUM_F32, NUM_F32, 200, 4, &e), e);
    test_every_allocation(open_cache, &l);
}
