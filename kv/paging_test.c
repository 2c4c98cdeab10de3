/* paging_test.c - the records of a pager as bytes: whole ones come back member by member, and each
 * field that cannot be is refused by its sentence. */
#include "kv/paging.h"
#include "tests/test.h"

enum { TOKENS = 3 * KV_PAGE + 5, N_PAGES = 4, HEAD = 6 * 4 + 5 * 8, PAGE = 16 };
enum { N_VOTES = 3, N_BYTES = HEAD + N_PAGES * PAGE + N_VOTES * 8 };

/* Every member is another number, and no two pages have the same flags. */
static void fill(kv_paging *s, kv_paging_page *page, uint64_t *votes)
{
    *s = (kv_paging){.policy = KV_POLICY_SNAPKV,
                     .pool = 3,
                     .tau = 64,
                     .rows_max = 9,
                     .n_pages = N_PAGES,
                     .n_exact = 100,
                     .since = 41,
                     .clock = 77,
                     .n_watched = 13,
                     .hold = 150,
                     .wants_rescore = true,
                     .for_good = true,
                     .page = page,
                     .n_votes = N_VOTES,
                     .votes = votes};
    for (int32_t p = 0; p < N_PAGES; p++) {
        page[p] = (kv_paging_page){.used = 77 - p,
                                   .score = 0.5f + (float)p,
                                   .resident = p == 1 || p == 3,
                                   .pinned = p == 1,
                                   .scored = p == 2,
                                   .lost = p == 0};
    }
    for (int32_t p = 0; p < N_VOTES; p++)
        votes[p] = UINT64_C(0xf123456789abcdef) - (uint64_t)p;
}

static void check_same(const kv_paging *a, const kv_paging *b)
{
    CHECK(a->policy == b->policy && a->pool == b->pool && a->tau == b->tau &&
          a->rows_max == b->rows_max && a->n_pages == b->n_pages);
    CHECK(a->n_exact == b->n_exact && a->since == b->since && a->clock == b->clock &&
          a->n_watched == b->n_watched && a->hold == b->hold);
    CHECK(a->wants_rescore == b->wants_rescore && a->renew == b->renew &&
          a->for_good == b->for_good);
    for (int32_t p = 0; p < a->n_pages; p++) {
        const kv_paging_page *x = &a->page[p], *y = &b->page[p];
        CHECK_MSG(x->used == y->used && x->score == y->score && x->resident == y->resident &&
                      x->pinned == y->pinned && x->scored == y->scored && x->lost == y->lost,
                  "page %d", p);
    }
    CHECK(a->n_votes == b->n_votes);
    CHECK(!memcmp(a->votes, b->votes, (size_t)a->n_votes * sizeof *a->votes));
}

TEST(records_of_a_pager_come_back_from_bytes)
{
    kv_paging s;
    kv_paging_page page[N_PAGES];
    uint64_t votes[N_VOTES];
    unsigned char bytes[N_BYTES];
    const char *why;
    fill(&s, page, votes);
    for (int more = 0; more < 4; more++) {
        s.renew = more & 1;
        s.wants_rescore = more & 2;
        s.for_good = more != 2;
        s.n_exact = more == 3 ? INT64_MAX : 100;
        CHECK_EQ(kv_paging_packed_bytes(&s), N_BYTES);
        kv_paging_pack(&s, bytes);
        kv_paging *t = kv_paging_unpack(bytes, N_BYTES, TOKENS, &why);
        CHECK_MSG(t && !why, "%s", why ? why : "no memory");
        check_same(&s, t);
        CHECK_EQ(kv_paging_key(t), kv_paging_key(&s));
        CHECK_EQ(t->n_bytes, sizeof *t + N_PAGES * sizeof *t->page + N_VOTES * sizeof(uint64_t));
        kv_paging_free(t);
    }
}

/* Rules that differ in one member have another key. */
TEST(records_of_other_rules_have_another_key)
{
    const kv_paging a = {.policy = KV_POLICY_SCORED, .pool = 7, .tau = 16, .rows_max = 4};
    for (int i = 0; i < 4; i++) {
        kv_paging b = a;
        b.policy = i == 0 ? KV_POLICY_LRU : b.policy;
        b.pool += i == 1;
        b.tau += i == 2;
        b.rows_max += i == 3;
        CHECK(kv_paging_key(&b) != kv_paging_key(&a));
    }
}

TEST(records_of_a_pager_that_cannot_be_are_refused)
{
    static const char rules[] = "its pool of keys has impossible rules",
                      counts[] = "its pool of keys has impossible counts",
                      state[] = "a page of its pool is in an impossible state",
                      held[] = "its pool holds impossible pages",
                      many[] = "the records of its pool are not as many as its pages";
    enum { EXACT = 24, SINCE = 32, CLOCK = 40, WATCHED = 48, HOLD = 56 };
    /* n bytes of value at a place of sound records; why NULL: they are still sound. */
    static const struct {
        int at, n;
        uint64_t value;
        const char *why;
    } wrong[] = {
        {0, 4, KV_POLICY_DRAFTER + 1, rules},
        {4, 4, 0, rules},
        {4, 4, 1u << 31, rules},
        {4, 4, INT32_MAX, NULL},
        {8, 4, 0, rules},
        {8, 4, 1u << 31, rules},
        {8, 4, INT32_MAX, NULL},
        {12, 4, 0, rules},
        {12, 4, 1u << 31, rules},
        {12, 4, INT32_MAX, NULL},
        {16, 4, 8, rules},
        {16, 4, 7, NULL},
        {16, 4, 1u << 31, rules},
        {20, 4, N_PAGES + 1, rules},
        {20, 4, 1u << 31, rules},
        {20, 4, N_PAGES, many},
        {EXACT, 8, UINT64_MAX, counts},
        {EXACT, 8, 0, NULL},
        {EXACT, 8, TOKENS, NULL},
        {EXACT, 8, TOKENS + 1, counts},
        {EXACT, 8, INT64_MAX, NULL},
        {EXACT, 8, INT64_MAX - 1, counts},
        {SINCE, 8, UINT64_MAX, counts},
        {SINCE, 8, 0, NULL},
        {SINCE, 8, INT32_MAX, NULL},
        {SINCE, 8, 1u << 31, counts},
        {CLOCK, 8, UINT64_MAX, counts},
        {CLOCK, 8, INT64_MAX / 2, NULL},
        {CLOCK, 8, (uint64_t)(INT64_MAX / 2) + 1, counts},
        {CLOCK, 8, 77, NULL},
        {CLOCK, 8, 76, state},
        {WATCHED, 8, UINT64_MAX, counts},
        {WATCHED, 8, 0, counts}, /* votes of no rows, and rows without votes */
        {20, 4, 0, counts},
        {WATCHED, 8, INT32_MAX, NULL},
        {WATCHED, 8, 1u << 31, counts},
        {HOLD, 8, UINT64_MAX, counts},
        {HOLD, 8, 0, NULL},
        {HOLD, 8, TOKENS + 9, NULL},
        {HOLD, 8, TOKENS + 10, counts},
        {0, 4, KV_POLICY_LRU, counts}, /* settled for good, which one policy alone does */
        {HEAD, 8, UINT64_MAX, state},
        {HEAD, 8, 78, state},
        {HEAD, 8, 0, NULL},
        {HEAD + 12, 4, 16, state},
        {HEAD + 12, 4, 15, state},
        {HEAD + 12, 4, 9, state}, /* in the pool and lost */
        {HEAD + 12, 4, 1, NULL},
        {HEAD + 3 * PAGE + 12, 4, 0, held}, /* the last page is away */
        {4, 4, 1, held},                    /* more pages than the pool has */
        {4, 4, 2, NULL},
    };
    kv_paging s;
    kv_paging_page page[N_PAGES];
    uint64_t votes[N_VOTES];
    unsigned char bytes[N_BYTES];
    const char *why;
    fill(&s, page, votes);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        kv_paging_pack(&s, bytes);
        for (int k = 0; k < wrong[i].n; k++)
            bytes[wrong[i].at + k] = (unsigned char)(wrong[i].value >> (8 * k));
        kv_paging *t = kv_paging_unpack(bytes, N_BYTES, TOKENS, &why);
        CHECK_MSG(!t == !!wrong[i].why, "line %zu: %s", i, why ? why : "taken");
        CHECK_STR(why ? why : "", wrong[i].why ? wrong[i].why : "");
        kv_paging_free(t);
    }
    kv_paging_pack(&s, bytes);
    for (size_t n = 0; n < N_BYTES; n++) {
        CHECK(!kv_paging_unpack(bytes, n, TOKENS, &why));
        CHECK_STR(why, n < HEAD ? "the records of its pool are cut" : many);
    }
    CHECK(!kv_paging_unpack(bytes, N_BYTES, TOKENS + KV_PAGE, &why));
    CHECK_STR(why, many);
    CHECK(!kv_paging_unpack(bytes, N_BYTES, 3 * KV_PAGE, &why));
    CHECK_STR(why, many);
}

static status unpack(void *arg, err *e)
{
    const char *why;
    kv_paging *s = kv_paging_unpack(arg, N_BYTES, TOKENS, &why);
    CHECK(!why);
    kv_paging_free(s);
    return s ? OK : err_memory(e, "records", N_BYTES);
}

TEST(records_of_a_pager_without_memory)
{
    kv_paging s;
    kv_paging_page page[N_PAGES];
    uint64_t votes[N_VOTES];
    unsigned char bytes[N_BYTES];
    fill(&s, page, votes);
    kv_paging_pack(&s, bytes);
    test_every_allocation(unpack, bytes);
}
