/* pages_test.c - the pages of a pool against a model that keeps everything twice and counts by
 * hand.
 */
#include "base/rng.h"
#include "kv/pages.h"
#include "tests/test.h"

enum {
    PAGES = 23,
    SEQS = 7,
    SEQ_PAGES = 12,
    STEPS = 1000000,
    ROWS = SEQ_PAGES * KV_PAGE,
    POISON = -7
};

/* A sequence: its rows, and the pages that should hold them. */
typedef struct sequence {
    int32_t row[ROWS];
    int32_t n;
    int32_t page[SEQ_PAGES];
    int32_t n_pages;
} sequence;

typedef struct model {
    pages p;
    int32_t memory[PAGES][KV_PAGE];
    bool free[PAGES];
    sequence seq[SEQS];
    int32_t next_row; /* no two writes have the same content */
} model;

static int32_t take(model *m)
{
    int32_t page = pages_take(&m->p);
    if (page < 0)
        return -1;
    CHECK(page < PAGES && m->free[page]);
    for (int i = 0; i < KV_PAGE; i++)
        CHECK_EQ(m->memory[page][i], POISON);
    m->free[page] = false;
    return page;
}

static void drop(model *m, int32_t page)
{
    int32_t left = m->p.n_free;
    pages_drop(&m->p, page);
    m->free[page] = m->p.n_free > left;
    for (int i = 0; i < KV_PAGE && m->free[page]; i++)
        m->memory[page][i] = POISON;
}

/* Pages behind the last row are given back, the last one first. */
static void cut(model *m, sequence *s, int32_t n)
{
    s->n = n;
    while (s->n_pages > pages_of(n))
        drop(m, s->page[--s->n_pages]);
}

/* False, and nothing changed but the counts of pages: the pool is exhausted. */
static bool make_writable(model *m, sequence *s, int32_t n_more)
{
    int32_t at = s->n % KV_PAGE, last = s->n / KV_PAGE;
    if (at && !pages_may_write(&m->p, s->page[last], at)) {
        int32_t own = take(m);
        if (own < 0)
            return false;
        memcpy(m->memory[own], m->memory[s->page[last]], (size_t)at * sizeof **m->memory);
        drop(m, s->page[last]);
        s->page[last] = own;
        pages_write(&m->p, own, at);
    }
    while (s->n_pages < pages_of(s->n + n_more)) {
        int32_t page = take(m);
        if (page < 0)
            return false;
        s->page[s->n_pages++] = page;
    }
    return true;
}

static void write_rows(model *m, sequence *s, int32_t n, int32_t keep)
{
    if (!make_writable(m, s, n)) {
        cut(m, s, s->n);
        return;
    }
    for (int32_t i = s->n; i < s->n + n; i++) {
        int32_t page = s->page[i / KV_PAGE];
        CHECK(pages_may_write(&m->p, page, i % KV_PAGE));
        s->row[i] = m->memory[page][i % KV_PAGE] = m->next_row++;
    }
    for (int32_t i = s->n; i < s->n + n; i++)
        pages_write(&m->p, s->page[i / KV_PAGE], i % KV_PAGE + 1);
    for (int32_t i = (s->n + keep) / KV_PAGE; i < s->n_pages; i++) {
        int32_t kept = s->n + keep - i * KV_PAGE;
        pages_unwrite(&m->p, s->page[i], kept > 0 ? kept : 0);
    }
    cut(m, s, s->n + keep);
}

static void share(model *m, sequence *to, const sequence *from, int32_t n)
{
    cut(m, to, 0);
    memcpy(to->row, from->row, (size_t)n * sizeof *to->row);
    to->n = n;
    for (to->n_pages = 0; to->n_pages < pages_of(n); to->n_pages++) {
        to->page[to->n_pages] = from->page[to->n_pages];
        pages_keep(&m->p, to->page[to->n_pages]);
    }
}

/* Every sequence reads what it wrote, and all counts are those of the model. */
static void check_model(const model *m)
{
    int32_t holders[PAGES] = {0}, n_free = 0, n_shared = 0;
    for (int k = 0; k < SEQS; k++) {
        const sequence *s = &m->seq[k];
        for (int32_t i = 0; i < s->n; i++)
            CHECK_EQ(m->memory[s->page[i / KV_PAGE]][i % KV_PAGE], s->row[i]);
        for (int32_t i = 0; i < s->n_pages; i++)
            holders[s->page[i]]++;
    }
    for (int i = 0; i < PAGES; i++) {
        CHECK_EQ(m->p.holders[i], holders[i]);
        CHECK_EQ(m->free[i], !holders[i]);
        n_free += !holders[i];
        n_shared += holders[i] > 1;
    }
    CHECK_EQ(m->p.n_free, n_free);
    CHECK_EQ(m->p.n_shared, n_shared);
}

PLAIN_TEST(pages_hold_what_a_model_of_them_holds)
{
    static model m;
    uint64_t rng = test_seed();
    err e = {0};
    int32_t n_exhausted = 0, n_copies = 0;
    CHECK_OK(pages_init(&m.p, PAGES, &e), e);
    for (int i = 0; i < PAGES; i++) {
        m.free[i] = true;
        for (int k = 0; k < KV_PAGE; k++)
            m.memory[i][k] = POISON;
    }
    for (int i = 0; i < STEPS; i++) {
        sequence *s = &m.seq[rng_below(&rng, SEQS)];
        const sequence *from = &m.seq[rng_below(&rng, SEQS)];
        uint64_t what = rng_below(&rng, 64);
        if (what < 56 && s->n < ROWS) {
            int32_t room = ROWS - s->n, most = what < 10 ? 130 : 8;
            int32_t n = 1 + (int32_t)rng_below(&rng, (uint64_t)(room < most ? room : most));
            int32_t at = s->n % KV_PAGE;
            n_copies += at && !pages_may_write(&m.p, s->page[s->n / KV_PAGE], at);
            n_exhausted += !m.p.n_free;
            write_rows(&m, s, n, (int32_t)rng_below(&rng, (uint64_t)n + 1));
        } else if (what < 60) {
            if (from != s)
                share(&m, s, from, (int32_t)rng_below(&rng, (uint64_t)from->n + 1));
        } else if (what < 63) {
            cut(&m, s, (int32_t)rng_below(&rng, (uint64_t)s->n + 1));
        } else {
            cut(&m, s, 0);
        }
        if (i % 64 == 0)
            check_model(&m);
    }
    CHECK_MSG(n_exhausted > 1000 && n_copies > 1000, "%d exhausted, %d copies", n_exhausted,
              n_copies);
    for (int k = 0; k < SEQS; k++)
        cut(&m, &m.seq[k], 0);
    check_model(&m);
    CHECK_EQ(m.p.n_free, PAGES);
    CHECK_EQ(m.p.n_shared, 0);
    pages_free(&m.p);
    pages_free(&m.p);
}

TEST(a_sequence_alone_in_a_pool_has_its_pages_in_line)
{
    AUTO(pages_free) pages p;
    err e = {0};
    CHECK_OK(pages_init(&p, 5, &e), e);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 5; i++)
            CHECK_EQ(pages_take(&p), i);
        CHECK_EQ(pages_take(&p), -1);
        CHECK_EQ(p.n_free, 0);
        for (int i = 4; i >= 0; i--) /* as a sequence gives them back */
            pages_drop(&p, i);
    }
}

TEST(the_first_holder_that_comes_writes_behind_what_others_hold)
{
    AUTO(pages_free) pages p;
    err e = {0};
    CHECK_OK(pages_init(&p, 2, &e), e);
    int32_t page = pages_take(&p);
    pages_write(&p, page, 10);
    CHECK(pages_may_write(&p, page, 0)); /* alone */
    pages_keep(&p, page);
    CHECK_EQ(p.n_shared, 1);
    CHECK(!pages_may_write(&p, page, 9));
    CHECK(pages_may_write(&p, page, 10));
    pages_write(&p, page, 12);
    CHECK(!pages_may_write(&p, page, 10)); /* the second one to come */
    pages_unwrite(&p, page, 11);
    CHECK(pages_may_write(&p, page, 11) && !pages_may_write(&p, page, 10));
    pages_drop(&p, page);
    CHECK(pages_may_write(&p, page, 10));
    CHECK_EQ(p.n_shared, 0);
    pages_drop(&p, page);
    CHECK_EQ(p.n_free, 2);
}

static status open_pages(void *arg, err *e)
{
    pages p;
    status st = pages_init(&p, 100, e);
    (void)arg;
    if (!st)
        pages_free(&p);
    CHECK(!p.n && !p.free && !p.holders && !p.written);
    return st;
}

TEST(a_pool_without_memory_is_no_pool)
{
    AUTO(pages_free) pages p;
    err e = {0};
    test_every_allocation(open_pages, NULL);
    CHECK_STATUS(pages_init(&p, 0, &e), E_ARG);
    err_clear(&e);
    CHECK_STATUS(pages_init(&p, INT32_MAX / KV_PAGE + 1, &e), E_ARG);
}
