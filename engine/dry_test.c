/* dry_test.c - DRY: breakers against their definition, and long repetitive pasts. The counts
 * without breakers are in sample_chain_test.c. */
#include "base/mem.h"
#include "base/rng.h"
#include "engine/dry.h"
#include "tests/test.h"
#include "tests/toy_vocab.h"

static toy *words(void)
{
    static const char *const pieces[] = {"a",  "b",   "c",  "ab", ":",   "\n",
                                         "\"", "a\n", "b:", "ca", "bca", "*"};
    toy *t = toy_gemma();
    err e = {0};
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++)
        toy_add(t, pieces[i], strlen(pieces[i]), TOKEN_NORMAL);
    if (!t->v)
        CHECK_OK(toy_build(t, &e), e);
    return t;
}

/* Does breaker b begin in the last bytes of past[i], and do the tokens after it spell the rest? -1:
 * no; else the tokens after past[i]. */
static int64_t tail_at(const vocab *v, const char *b, const int32_t *past, int64_t n, int64_t i)
{
    size_t len, nb = strlen(b);
    const char *text = vocab_text(v, past[i], true, &len);
    int64_t best = -1;
    for (size_t k = 0; k < len; k++) {
        size_t have = len - k < nb ? len - k : nb;
        id_list rest = {0};
        err e = {0};
        if (memcmp(text + k, b, have))
            continue;
        if (have < nb)
            CHECK_OK(vocab_encode(v, b + have, nb - have, SPECIAL_NONE, &rest, &e), e);
        bool follows = rest.n <= n - 1 - i;
        for (int64_t r = 0; r < rest.n && follows; r++)
            follows = past[i + 1 + r] == rest.at[r];
        if (follows && rest.n > best)
            best = rest.n;
        id_list_free(&rest);
    }
    return best;
}

TEST(dry_stops_at_breakers)
{
    static const char *const sets[][3] = {
        {"\n", ":", "\""}, {"bca", "a\n", ":"}, {"aaa", "ab", "*"}};
    AUTO_PTR(toy_free) toy *t = words();
    int32_t n_vocab = vocab_n(t->v), pool[16], n_pool = 0;
    int32_t *count = mem_calloc((size_t)n_vocab, sizeof *count), match[60], past[60];
    uint64_t rng = test_seed();
    static const char *const some[] = {"a",  "b",   "c",  "ab", ":",   "\n",
                                       "\"", "a\n", "b:", "ca", "bca", "*"};
    CHECK(count);
    for (size_t i = 0; i < sizeof some / sizeof *some; i++) {
        int32_t id = toy_find(t, some[i], strlen(some[i]));
        if (id >= 0)
            pool[n_pool++] = id;
    }
    CHECK(n_pool > 6);
    for (int round = 0; round < 2000; round++) {
        const char *const *b = sets[round % 3];
        carat_sampling p = {.dry_multiplier = 1,
                            .dry_base = 2,
                            .dry_allowed_length = round % 4,
                            .dry_last_n = round % 5 ? -1 : 30,
                            .dry_breakers = b,
                            .n_dry_breakers = 3};
        dry_breakers *d;
        err e = {0};
        int64_t n = (int64_t)rng_below(&rng, 61), limit = -1;
        uint64_t kinds = round % 2 ? 3 : (uint64_t)n_pool;
        for (int64_t i = 0; i < n; i++)
            past[i] = pool[rng_below(&rng, kinds)];
        CHECK_OK(dry_open(&d, t->v, &p, &e), e);
        dry_count(d, &p, past, n, n_vocab, match, count);
        int64_t from = n - dry_window(&p, n);
        for (int64_t i = n - 1; i >= from && limit < 0; i--) {
            int64_t longest = -1;
            for (int k = 0; k < 3; k++) {
                int64_t m = tail_at(t->v, b[k], past, n, i);
                longest = m > longest ? m : longest;
            }
            if (longest >= 0)
                limit = n - 1 - i - longest;
        }
        limit = limit < 0 ? n - from : limit;
        for (int32_t id = 0; id < n_vocab; id++) {
            int64_t most = -1;
            size_t len;
            const char *text = vocab_text(t->v, id, true, &len);
            for (int64_t end = from + 1; end < n; end++) {
                int64_t m = 0;
                while (past[end] == id && m < end - from && past[n - 1 - m] == past[end - 1 - m])
                    m++;
                m = m < limit ? m : limit;
                most = past[end] == id && m > most ? m : most;
            }
            for (int k = 0; k < 3; k++)
                if (memmem(text, len, b[k], strlen(b[k])))
                    most = -1;
            int64_t want = most >= p.dry_allowed_length && limit >= p.dry_allowed_length &&
                                   n - from > p.dry_allowed_length
                               ? most - p.dry_allowed_length + 1
                               : 0;
            CHECK_EQ(count[id], want);
            count[id] = 0;
        }
        dry_close(d);
    }
    mem_free(count);
}

/* The worst text for a comparison at every position: one token, over and over. */
TEST(dry_is_linear_in_repetitive_pasts)
{
    enum { N = 1 << 18 };
    int32_t *past = mem_calloc(N, sizeof *past), *match = mem_calloc(N, sizeof *match),
            count[3] = {0};
    carat_sampling p = {.dry_multiplier = 1, .dry_base = 1.0000001f, .dry_last_n = -1};
    CHECK(past && match);
    CHECK(dry_count(NULL, &p, past, N, 3, match, count));
    CHECK_EQ(count[0], N);
    CHECK(dry_penalty(&p, count[0]) >= 1 && dry_penalty(&p, count[0]) < 2);
    p.dry_base = 1.75f;
    CHECK(isfinite(dry_penalty(&p, N)) && dry_penalty(&p, N) > 1e37f);
    p.dry_base = 1;
    CHECK(dry_penalty(&p, N) == 1);
    mem_free(match);
    mem_free(past);
}

typedef struct breaker_case {
    const vocab *v;
    carat_sampling p;
} breaker_case;

static status open_breakers(void *arg, err *e)
{
    const breaker_case *c = arg;
    dry_breakers *d;
    status st = dry_open(&d, c->v, &c->p, e);
    dry_close(d);
    return st;
}

TEST(dry_breakers_survive_every_failed_allocation)
{
    char longer[200];
    memset(longer, 'a', sizeof longer - 1);
    longer[sizeof longer - 1] = 0;
    const char *const b[] = {"\n", longer, "", "bca"};
    AUTO_PTR(toy_free) toy *t = words();
    breaker_case c = {t->v, {.dry_breakers = b, .n_dry_breakers = 4}};
    test_every_allocation(open_breakers, &c);
    c.p = (carat_sampling){0}; /* the usual ones */
    test_every_allocation(open_breakers, &c);
}
