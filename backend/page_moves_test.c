/* page_moves_test.c - pages of stores in the host's memory: the definition that devices follow. */
#include "backend/page_moves.h"
#include "base/mem.h"
#include "base/rng.h"
#include "tests/test.h"

#include <string.h>

enum { STORES = 3, POOL = 5, BYTES_MAX = 34, HEADS_MAX = 2 };

typedef struct fixture {
    device *d;
    row_store store[STORES];
    char *was; /* the first store before a move */
} fixture;

static size_t bytes_of(const row_store *s)
{
    return s->row_bytes * (size_t)s->n_heads * (size_t)s->n_slots;
}

static void open_fixture(fixture *f)
{
    static const size_t bytes[STORES] = {BYTES_MAX, 2, 16};
    uint64_t rng = test_seed();
    err e = {0};
    *f = (fixture){0};
    CHECK_OK(device_open_cpu(&f->d, &(cpu_options){.n_threads = 1}, &e), e);
    for (int i = 0; i < STORES; i++) {
        row_store *s = &f->store[i];
        *s = (row_store){
            .row_bytes = bytes[i], .n_heads = 1 + i % HEADS_MAX, .n_slots = POOL * KV_PAGE};
        s->at = mem_alloc(bytes_of(s));
        CHECK(s->at);
        for (size_t b = 0; b < bytes_of(s); b++)
            s->at[b] = (char)rng_below(&rng, 256);
    }
    f->was = mem_alloc(bytes_of(&f->store[0]));
    CHECK(f->was);
}

static void close_fixture(fixture *f)
{
    for (int i = 0; i < STORES; i++)
        mem_free(f->store[i].at);
    mem_free(f->was);
    device_close(f->d);
}

/* Rows of page a of store i that differ from those of page b of the bytes at `was`. */
static int differ(const fixture *f, int i, int a, const char *was, int b)
{
    const row_store *s = &f->store[i];
    int n = 0;
    for (int h = 0; h < s->n_heads; h++)
        for (int r = 0; r < KV_PAGE; r++) {
            size_t head = (size_t)h * (size_t)s->n_slots;
            n += memcmp(s->at + (head + (size_t)(a * KV_PAGE + r)) * s->row_bytes,
                        was + (head + (size_t)(b * KV_PAGE + r)) * s->row_bytes, s->row_bytes) != 0;
        }
    return n;
}

TEST(a_page_goes_out_and_comes_back_elsewhere)
{
    fixture f;
    err e = {0};
    page_moves *m;
    open_fixture(&f);
    size_t n = page_bytes(f.store, STORES);
    CHECK_EQ(n, (size_t)KV_PAGE * (BYTES_MAX + 2 * 2 + 16));
    char *host = mem_alloc(n);
    CHECK(host);
    CHECK_OK(page_moves_open(&m, f.d, f.store, STORES, 2, &e), e);
    memcpy(f.was, f.store[0].at, bytes_of(&f.store[0]));
    CHECK(page_moves_begin(m));
    int32_t out = page_out(m, KV_PAGE, host), in;
    CHECK(out >= 0 && page_move_state(m, out, false) == PAGE_MOVED);
    CHECK(!memcmp(host, f.was + KV_PAGE * BYTES_MAX, (size_t)KV_PAGE * BYTES_MAX));
    in = page_in(m, 3 * KV_PAGE, host);
    CHECK(in >= 0 && in != out && page_in(m, 0, host) == -1 && page_out(m, 0, host) == -1);
    CHECK(page_moves_join(m));
    CHECK_EQ(differ(&f, 0, 0, f.was, 0), 0);
    CHECK_EQ(differ(&f, 0, 3, f.was, 1), 0);
    CHECK_EQ(differ(&f, 0, 2, f.was, 2), 0);
    CHECK_EQ(differ(&f, 1, 3, f.store[1].at, 1), 0);
    CHECK_EQ(differ(&f, 2, 3, f.store[2].at, 1), 0);
    page_move_end(m, out);
    CHECK_EQ(page_in(m, 3 * KV_PAGE, host), out);
    page_moves_close(m);
    mem_free(host);
    close_fixture(&f);
}

TEST(moves_that_cannot_be_opened_leave_nothing_behind)
{
    fixture f;
    page_moves *m;
    open_fixture(&f);
    for (int n = 0; n <= PAGE_MOVES_MAX + 1; n += PAGE_MOVES_MAX + 1) {
        err e = {0};
        CHECK_EQ(page_moves_open(&m, f.d, f.store, STORES, n, &e), E_ARG);
        CHECK(!m && e.text[0]);
    }
    for (int64_t n = 0;; n++) {
        err e = {0};
        mem_fail_after(n);
        status st = page_moves_open(&m, f.d, f.store, STORES, 4, &e);
        bool hit = mem_fail_hit();
        mem_fail_after(-1);
        if (!hit) {
            CHECK_OK(st, e);
            CHECK(n > 1);
            break;
        }
        CHECK_EQ(st, E_MEMORY);
        CHECK(!m && e.text[0]);
    }
    page_moves_close(m);
    close_fixture(&f);
}
