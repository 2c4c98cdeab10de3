/* lookup_test.c - proposals of the lookup drafter against a search of all tokens. */
#include "base/rng.h"
#include "spec/drafter.h"
#include "tests/test.h"

#include <math.h>

enum { CTX = 2000, RANKS = 3 };

typedef struct rig {
    draft_model *m;
    drafter *d;
    draft_state *s;
    int32_t id[CTX];
    proposal out;
} rig;

static status open_rig(void *arg, err *e)
{
    rig *r = arg;
    const draft_sizes z = {.n_ctx = CTX, .n_seqs = 1, .n_slots = DRAFT_SLOTS_MAX};
    status st;
    *r = (rig){0};
    if ((st = draft_model_open(&draft_lookup, NULL, NULL, &r->m, e)) ||
        (st = draft_lookup.open(r->m, &z, &r->d, e)) ||
        (st = draft_lookup.state_open(r->d, &r->s, e)))
        return st;
    return OK;
}

static void close_rig(rig *r)
{
    if (r->d) {
        draft_lookup.state_close(r->d, r->s);
        draft_lookup.close(r->d);
    }
    draft_model_close(r->m);
}

static void open_checked(rig *r)
{
    err e = {0};
    CHECK_OK(open_rig(r, &e), e);
}

static const proposal *propose(rig *r, int64_t n, int32_t n_slots, int32_t n_ranks)
{
    err e = {0};
    const draft_ask a = {
        .s = r->s, .id = r->id, .n = n, .n_slots = n_slots, .n_ranks = n_ranks, .out = &r->out};
    CHECK_OK(draft_lookup.propose(r->d, &a, 1, &e), e);
    CHECK(r->out.n_slots <= n_slots && (!r->out.n_slots || r->out.n_ranks == n_ranks));
    for (int32_t i = 0; i < r->out.n_slots; i++)
        for (int32_t k = 0; k < n_ranks; k++) {
            CHECK(r->out.logp[i][k] < 0); /* a probability, or none */
            CHECK(!k || r->out.logp[i][k] <= r->out.logp[i][k - 1]);
        }
    return &r->out;
}

/* The length of the longest earlier match of the last tokens, and whether an occurrence nearly as
 * long as it was followed by `next`. */
static int32_t search(const int32_t *id, int64_t n, int32_t next, bool *follows)
{
    int32_t longest = 0;
    for (int again = 0; again < 2; again++)
        for (int64_t p = 0; p < n - 1; p++) {
            int32_t k = 0;
            while (k < 64 && k <= p && id[p - k] == id[n - 1 - k])
                k++;
            if (!again && k > longest)
                longest = k;
            if (again && 4 * k >= 3 * longest && id[p + 1] == next)
                *follows = true;
        }
    return longest;
}

/* Texts of few words, so that matches of all lengths occur. */
TEST(lookup_proposes_what_followed_the_longest_match)
{
    rig r;
    uint64_t rng = test_seed();
    int n_found = 0;
    open_checked(&r);
    for (int64_t n = 0; n < CTX; n++) {
        bool copy = n > 50 && n % 100 < 40;
        r.id[n] = copy ? r.id[n - 37] : (int32_t)rng_below(&rng, 6);
    }
    for (int64_t n = 1; n <= CTX; n += 1 + (int64_t)rng_below(&rng, 9)) {
        const proposal *p = propose(&r, n, 8, RANKS);
        bool follows = false;
        int32_t longest = search(r.id, n, p->n_slots ? p->id[0][0] : -1, &follows);
        if (longest < 3)
            CHECK_EQ(p->n_slots, 0);
        /* Of frequent matches only the newest are looked at. */
        if (p->n_slots)
            CHECK_MSG(follows, "after %lld tokens, match of %d", (long long)n, longest);
        if (longest >= 8)
            CHECK(p->n_slots > 0);
        n_found += p->n_slots > 0;
    }
    CHECK(n_found > 100);
    close_rig(&r);
}

TEST(lookup_goes_on_with_what_repeats_itself)
{
    rig r;
    open_checked(&r);
    for (int i = 0; i < 60; i++)
        r.id[i] = 100 + i % 5;
    const proposal *p = propose(&r, 60, 40, 1);
    CHECK_EQ(p->n_slots, 40);
    for (int i = 0; i < 40; i++)
        CHECK_EQ(p->id[i][0], 100 + i % 5);
    CHECK(p->logp[39][0] > p->logp[0][0]); /* the longer the match, the surer */
    close_rig(&r);
}

/*     a b c X ... a b c Y ... a b c X ... a b c */
TEST(lookup_ranks_continuations_by_count)
{
    static const int32_t next[] = {50, 60, 50};
    rig r;
    int64_t n = 0;
    open_checked(&r);
    for (int k = 0; k < 4; k++) {
        for (int i = 0; i < 3; i++)
            r.id[n++] = 7 + i;
        if (k < 3)
            r.id[n++] = next[k];
        for (int i = 0; k < 3 && i < 4; i++) /* nothing else occurs twice */
            r.id[n++] = 1000 + 4 * k + i;
    }
    const proposal *p = propose(&r, n, 4, RANKS);
    CHECK(p->n_slots >= 1);
    CHECK_EQ(p->id[0][0], 50);
    CHECK_EQ(p->id[0][1], 60);
    CHECK_NEAR(p->logp[0][0] - p->logp[0][1], logf(2), 1e-5);
    CHECK(p->logp[0][2] == -INFINITY);
    close_rig(&r);
}

/* A prediction is copied from its first token on, again after a difference, and not past its end.
 */
TEST(lookup_copies_from_a_prediction)
{
    enum { PROMPT = 20, PREDICTED = 30 };
    rig r;
    err e = {0};
    int32_t predicted[PREDICTED];
    open_checked(&r);
    for (int i = 0; i < PROMPT; i++)
        r.id[i] = 100 + i;
    for (int i = 0; i < PREDICTED; i++)
        predicted[i] = 500 + i;
    for (int32_t size = 0; size <= PREDICTED; size += size < 4 ? 1 : 13)
        for (int32_t n = 1; n <= PREDICTED;
             n++) { /* tokens of the answer; the ninth is another one */
            draft_ask a = {.s = r.s,
                           .id = r.id,
                           .n = PROMPT + n,
                           .n_slots = 8,
                           .n_ranks = RANKS,
                           .predicted = predicted,
                           .n_predicted = size,
                           .n_answer = n,
                           .out = &r.out};
            r.id[PROMPT + n - 1] = n == 9 ? 7 : predicted[n - 1];
            CHECK_OK(draft_lookup.propose(r.d, &a, 1, &e), e);
            int32_t left = n < 9 || n > 11 ? size - n : 0;
            CHECK_EQ(r.out.n_slots, left < 0 ? 0 : left > 8 ? 8 : left);
            for (int i = 0; i < r.out.n_slots; i++)
                CHECK_EQ(r.out.id[i][0], predicted[n + i]);
        }
    close_rig(&r);
}

/* A timeline that is cut and goes on otherwise proposes what a new one proposes. */
TEST(lookup_forgets_what_was_cut)
{
    rig r, fresh;
    uint64_t rng = test_seed();
    open_checked(&r);
    int64_t n = 0;
    for (int round = 0; round < 300; round++) {
        int64_t cut = n - (int64_t)rng_below(&rng, 200);
        if (cut < 0)
            cut = 0;
        draft_lookup.forget(r.d, r.s, cut);
        n = cut + 1 + (int64_t)rng_below(&rng, 220);
        n = n > CTX ? CTX : n;
        for (int64_t i = cut; i < n; i++)
            r.id[i] = (int32_t)rng_below(&rng, 5);
        const proposal got = *propose(&r, n, 6, 1);
        open_checked(&fresh);
        memcpy(fresh.id, r.id, sizeof r.id);
        const proposal *want = propose(&fresh, n, 6, 1);
        CHECK_EQ(got.n_slots > 0, want->n_slots > 0);
        if (got.n_slots)
            CHECK_EQ(got.id[0][0], want->id[0][0]);
        close_rig(&fresh);
    }
    close_rig(&r);
}

static status open_and_close(void *arg, err *e)
{
    status st = open_rig(arg, e);
    close_rig(arg);
    return st;
}

TEST(lookup_takes_the_memory_it_planned)
{
    rig r;
    draft_costs c;
    err e = {0};
    const draft_sizes z = {.n_ctx = CTX, .n_seqs = 3};
    test_every_allocation(open_and_close, &r);
    CHECK_OK(draft_lookup.plan(NULL, &z, &c, &e), e);
    CHECK_EQ(c.host_bytes, 3 * 2 * 4 * (2048 + CTX));
    CHECK_EQ(c.device_bytes + c.device_state_bytes, 0);
}
