/* pool_long_test.c - pools at lengths where everything has happened often: the sliding window is
 * passed, its ring has wrapped many times, hundreds of pages have left and come back, and the last
 * chunk of the prompt is shorter than the window. Free pages are NaN in one of two sessions.
 */
#include "base/mem.h"
#include "base/rng.h"
#include "engine/batch_int.h"
#include "tests/test.h"
#include "tests/toy_model.h"

#include <string.h>

enum {
    CTX = 4608,
    KEEP = 2304,
    CHUNK = 256,
    PROMPT = 14 * CHUNK + 3, /* a last chunk of three rows; windows have more */
    ANSWER = 100
};

typedef struct pair {
    carat_model *m;
    int32_t n_vocab;
    int32_t *ids; /* [CTX] */
    float *a, *b; /* [n_vocab] */
} pair;

static void open_all(pair *x)
{
    carat_model_info info;
    uint64_t rng = test_seed();
    x->m = toy_model_open(&(toy_model_file){.n_ctx_train = CTX, .scale = 4},
                          &(carat_model_options){.n_threads = 1});
    carat_model_get_info(x->m, &info);
    x->n_vocab = info.n_vocab;
    x->ids = mem_alloc(CTX * sizeof *x->ids);
    x->a = mem_calloc((size_t)x->n_vocab, sizeof *x->a);
    x->b = mem_calloc((size_t)x->n_vocab, sizeof *x->b);
    CHECK(x->ids && x->a && x->b);
    for (int32_t i = 0; i < CTX; i++)
        x->ids[i] = (int32_t)rng_below(&rng, (uint64_t)x->n_vocab);
}

static void close_all(pair *x)
{
    mem_free(x->b);
    mem_free(x->a);
    mem_free(x->ids);
    carat_model_close(x->m);
}

static carat_session *open_session(const pair *x, int32_t keep, const char *policy, bool poison)
{
    const carat_session_options o = {.n_ctx = CTX,
                                     .chunk = CHUNK,
                                     .kv_resident = keep,
                                     .kv_policy = policy,
                                     .kv_single = "off",
                                     .checkpoint_mb = -1};
    carat_session *s;
    err e = {0};
    CHECK_OK(carat_session_open(x->m, &o, &s, &e), e);
    s->b.pool.poison = poison;
    return s;
}

static void check_same(const pair *x, const char *what, int at)
{
    CHECK_MSG(!memcmp(x->a, x->b, (size_t)x->n_vocab * sizeof *x->a), "%s: token %d", what, at);
}

/* Tokens after the prompt, the same in both, each from the logits of the one before. */
static void go_on(pair *x, carat_session *one, carat_session *two, int n, const char *what)
{
    err e = {0};
    for (int i = 0; i < n; i++) {
        int32_t id = 0;
        check_same(x, what, i);
        for (int32_t k = 1; k < x->n_vocab; k++)
            id = x->a[k] > x->a[id] ? k : id;
        CHECK_OK(carat_append(one, &id, 1, false, x->a, &e), e);
        CHECK_OK(carat_append(two, &id, 1, false, x->b, &e), e);
    }
}

static void answers_with_poison(const char *policy)
{
    pair x;
    carat_pool_info p;
    err e = {0};
    open_all(&x);
    carat_session *clean = open_session(&x, KEEP, policy, false);
    carat_session *poisoned = open_session(&x, KEEP, policy, true);
    CHECK_OK(carat_eval(clean, x.ids, PROMPT, x.a, NULL, &e), e);
    CHECK_OK(carat_eval(poisoned, x.ids, PROMPT, x.b, NULL, &e), e);
    go_on(&x, clean, poisoned, ANSWER, policy);
    /* Another end of the same text: back into pages that are away, and on. */
    x.ids[PROMPT - 200] = x.ids[PROMPT - 200] ? 0 : 1;
    CHECK_OK(carat_eval(clean, x.ids, PROMPT, x.a, NULL, &e), e);
    CHECK_OK(carat_eval(poisoned, x.ids, PROMPT, x.b, NULL, &e), e);
    go_on(&x, clean, poisoned, 3, policy);
    carat_session_get_pool(poisoned, &p);
    CHECK(p.lossy && p.n_paged_out > 1000);
    CHECK(!strcmp(policy, "snapkv") || p.n_out > 20);
    carat_session_close(clean);
    carat_session_close(poisoned);
    close_all(&x);
}

PLAIN_TEST(long_pool_of_scored_pages_reads_no_free_page)
{
    answers_with_poison("scored");
}

PLAIN_TEST(long_pool_of_young_pages_reads_no_free_page)
{
    answers_with_poison("lru");
}

PLAIN_TEST(long_pool_of_dropped_pages_reads_no_free_page)
{
    answers_with_poison("snapkv");
}

/* As long as a pool holds everything, a session answers as one of the whole context does; so does
 * one that has gone back to such a place. */
PLAIN_TEST(long_pool_that_holds_everything_is_exact)
{
    enum { FITS = 9 * CHUNK + 2, LARGE = 2560 };
    pair x;
    carat_pool_info p;
    err e = {0};
    open_all(&x);
    carat_session *whole = open_session(&x, 0, NULL, false);
    carat_session *pool = open_session(&x, LARGE, "scored", true);
    CHECK_OK(carat_eval(whole, x.ids, FITS, x.a, NULL, &e), e);
    CHECK_OK(carat_eval(pool, x.ids, FITS, x.b, NULL, &e), e);
    go_on(&x, whole, pool, LARGE - FITS, "everything fits");
    check_same(&x, "the pool is full", 0);
    carat_session_get_pool(pool, &p);
    CHECK(p.on && !p.lossy && !p.n_paged_out);
    /* Beyond it, and back. */
    CHECK_OK(carat_eval(pool, x.ids, LARGE + 2 * CHUNK + 3, x.b, NULL, &e), e);
    carat_session_get_pool(pool, &p);
    CHECK(p.lossy && p.n_paged_out > 0);
    x.ids[FITS - 5] = x.ids[FITS - 5] ? 0 : 1;
    CHECK_OK(carat_eval(whole, x.ids, FITS, x.a, NULL, &e), e);
    CHECK_OK(carat_eval(pool, x.ids, FITS, x.b, NULL, &e), e);
    check_same(&x, "back at exact tokens", 0);
    carat_session_get_pool(pool, &p);
    CHECK(!p.lossy);
    carat_session_close(whole);
    carat_session_close(pool);
    close_all(&x);
}
