/* tree_test.c - chains and trees: against a search over all trees of a small proposal. */
#include "spec/tree.h"

#include "base/mem.h"
#include "base/rng.h"
#include "tests/test.h"

/* Probabilities that descend in rank and sum to less than 1; tokens 10 * slot + rank. */
static void random_proposal(proposal *p, int32_t n_slots, int32_t n_ranks, uint64_t *seed)
{
    memset(p, 0xff, sizeof *p);
    p->n_slots = n_slots;
    p->n_ranks = n_ranks;
    for (int32_t s = 0; s < n_slots; s++) {
        double left = 1;
        double last = 1;
        for (int32_t r = 0; r < n_ranks; r++) {
            double q = left * (0.2 + 0.7 * rng_unit(seed));
            q = q < last ? q : last;
            p->id[s][r] = 10 * s + r;
            p->logp[s][r] = (float)log(q);
            left -= q;
            last = q;
        }
    }
}

static void check_shape(const draft_tree *t, int32_t budget)
{
    CHECK(t->n >= 0 && t->n <= budget);
    CHECK_EQ(t->parent[0], -1);
    CHECK_EQ(t->depth[0], 0);
    bool chain = true;
    for (int32_t i = 1; i <= t->n; i++) {
        CHECK(t->parent[i] >= 0 && t->parent[i] < i);
        CHECK_EQ(t->depth[i], t->depth[t->parent[i]] + 1);
        CHECK_EQ(tree_child(t, t->parent[i], t->token[i]), i); /* no two children alike */
        chain = chain && t->parent[i] == i - 1;
    }
    CHECK_EQ(t->chain, chain);
}

static double expected(const draft_tree *t)
{
    double sum = 0, path[STEP_TREE_ROWS_MAX] = {1};
    for (int32_t i = 1; i <= t->n; i++)
        sum += path[i] = path[t->parent[i]] * (double)t->prob[i];
    return sum;
}

/* Path probabilities of all paths of a proposal, each after its parent: base n_ranks numbers. */
typedef struct all_paths {
    int32_t n;
    double p[64];
    int32_t parent[64]; /* -1: none */
} all_paths;

static void list_paths(all_paths *a, const proposal *p)
{
    a->n = 0;
    for (int32_t s = 0, from = 0; s < p->n_slots; s++) {
        int32_t to = a->n;
        for (int32_t above = s ? from : -1; above < (s ? to : 0); above++)
            for (int32_t r = 0; r < p->n_ranks; r++) {
                a->p[a->n] = (above < 0 ? 1 : a->p[above]) * exp((double)p->logp[s][r]);
                a->parent[a->n++] = above;
            }
        from = to;
    }
}

/* The largest sum over all sets of at most `budget` paths that hold the parents of their paths. */
static void best_sums(const all_paths *a, double *best)
{
    for (int32_t n = 0; n <= a->n; n++)
        best[n] = 0;
    for (uint32_t set = 0; set < 1u << a->n; set++) {
        double sum = 0;
        bool whole = true;
        int32_t n = 0;
        for (int32_t i = 0; i < a->n && whole; i++)
            if (set >> i & 1) {
                n++;
                sum += a->p[i];
                whole = a->parent[i] < 0 || (set >> a->parent[i] & 1);
            }
        if (whole && sum > best[n])
            best[n] = sum;
    }
}

TEST(tree_is_the_best_of_all_trees)
{
    static const int32_t sizes[][2] = {{1, 1}, {1, 4}, {2, 2}, {2, 3}, {3, 2}, {4, 1}, {12, 1}};
    uint64_t seed = test_seed();
    for (size_t c = 0; c < sizeof sizes / sizeof *sizes; c++)
        for (int32_t round = 0; round < 12; round++) {
            proposal p;
            all_paths a;
            double best[65];
            random_proposal(&p, sizes[c][0], sizes[c][1], &seed);
            list_paths(&a, &p);
            best_sums(&a, best);
            for (int32_t budget = 0; budget <= a.n + 2; budget++) {
                draft_tree t;
                tree_grow(&t, &p, NULL, 7, budget);
                check_shape(&t, budget);
                CHECK_EQ(t.token[0], 7);
                CHECK_EQ(t.n, budget < a.n ? budget : a.n);
                CHECK_NEAR(expected(&t), best[t.n], 1e-5);
                tree_cut(&t, budget / 2); /* the first nodes are the best smaller tree */
                check_shape(&t, budget);
                CHECK_NEAR(expected(&t), best[t.n], 1e-5);
            }
        }
}

TEST(tree_of_full_size_takes_all_rows)
{
    uint64_t seed = test_seed();
    proposal p;
    draft_tree t;
    random_proposal(&p, DRAFT_SLOTS_MAX, DRAFT_RANKS_MAX, &seed);
    tree_grow(&t, &p, NULL, 1, 1 << 30);
    CHECK_EQ(t.n, STEP_TREE_ROWS_MAX - 1);
    check_shape(&t, STEP_TREE_ROWS_MAX - 1);
    for (int32_t s = 0; s < DRAFT_SLOTS_MAX; s++)
        p.logp[s][0] = 0; /* certain: the tree is the chain */
    tree_grow(&t, &p, NULL, 1, 1 << 30);
    CHECK(t.chain);
    CHECK_EQ(t.n, DRAFT_SLOTS_MAX);
    CHECK_NEAR(expected(&t), DRAFT_SLOTS_MAX, 1e-4);
    tree_chain(&t, &p, 1, 1 << 30);
    CHECK_EQ(t.n, DRAFT_SLOTS_MAX);
    check_shape(&t, DRAFT_SLOTS_MAX);
}

TEST(tree_of_equal_probabilities_is_always_the_same)
{
    proposal p = {.n_slots = 4, .n_ranks = 4};
    draft_tree a, b;
    for (int32_t s = 0; s < 4; s++)
        for (int32_t r = 0; r < 4; r++) {
            p.id[s][r] = 10 * s + r;
            p.logp[s][r] = 0; /* broken on purpose: sums to 4 */
        }
    tree_grow(&a, &p, NULL, 1, 20);
    tree_grow(&b, &p, NULL, 1, 20);
    check_shape(&a, 20);
    CHECK_EQ(a.n, 20);
    for (int32_t i = 0; i < 4; i++) /* children come before siblings */
        CHECK_EQ(a.token[1 + i], 10 * i);
    CHECK(!memcmp(a.token, b.token, 21 * sizeof *a.token));
    CHECK(!memcmp(a.parent, b.parent, 21 * sizeof *a.parent));
}

TEST(tree_chain_takes_the_best_tokens)
{
    proposal p = {.n_slots = 3, .n_ranks = 2};
    draft_tree t;
    for (int32_t s = 0; s < 3; s++) {
        p.id[s][0] = 100 + s;
        p.id[s][1] = 200 + s;
        p.logp[s][0] = (float)log(0.5);
        p.logp[s][1] = (float)log(0.25);
    }
    for (int32_t n = -1; n <= 5; n++) {
        tree_chain(&t, &p, 9, n);
        int32_t want = n < 0 ? 0 : n < 3 ? n : 3;
        CHECK_EQ(t.n, want);
        check_shape(&t, want);
        for (int32_t i = 1; i <= want; i++)
            CHECK_EQ(t.token[i], 99 + i);
        CHECK_NEAR(expected(&t), 1 - pow(0.5, want), 1e-6);
    }
    CHECK_EQ(tree_child(&t, 0, 100), 1);
    CHECK_EQ(tree_child(&t, 0, 200), -1);
    CHECK_EQ(tree_child(&t, 3, 100), -1);
    CHECK_EQ(tree_child(&t, -1, 9), -1);
    CHECK_EQ(tree_child(&t, 99, 100), -1);
}

TEST(tree_ends_where_a_proposal_is_broken)
{
    static const float bad[] = {NAN, -INFINITY};
    for (int32_t c = 0; c < 3; c++) {
        proposal p = {.n_slots = 3, .n_ranks = 3};
        draft_tree t;
        for (int32_t s = 0; s < 3; s++)
            for (int32_t r = 0; r < 3; r++) {
                p.id[s][r] = 10 * s + r;
                p.logp[s][r] = -0.1f - (float)r;
            }
        if (c == 2)
            p.id[1][1] = -1;
        else
            p.logp[1][1] = bad[c];
        tree_grow(&t, &p, NULL, 1, 63);
        check_shape(&t, 63);
        CHECK_EQ(t.n, 3 + 3 * 1 + 3 * 1 * 3); /* slot 1 has one rank */
        for (int32_t i = 1; i <= t.n; i++)
            CHECK(t.token[i] != 11 && t.token[i] != 12);
        if (c == 2)
            p.id[1][0] = -1;
        else
            p.logp[1][0] = bad[c];
        tree_grow(&t, &p, NULL, 1, 63);
        CHECK_EQ(t.n, 3);
        tree_chain(&t, &p, 1, 63);
        CHECK_EQ(t.n, 1);
        p.n_slots = 0;
        tree_grow(&t, &p, NULL, 1, 63);
        CHECK_EQ(t.n, 0);
        CHECK(t.chain);
    }
    /* Numbers out of range, a probability above 1, a token twice. */
    proposal p;
    draft_tree t;
    memset(&p, 0, sizeof p);
    p.n_slots = p.n_ranks = INT32_MAX;
    for (int32_t s = 0; s < DRAFT_SLOTS_MAX; s++)
        for (int32_t r = 0; r < DRAFT_RANKS_MAX; r++)
            p.logp[s][r] = 3;
    tree_grow(&t, &p, NULL, 1, 63);
    check_shape(&t, 63);
    CHECK_EQ(t.n, 63);
    CHECK(t.chain && expected(&t) <= 63);
    p.n_slots = p.n_ranks = INT32_MIN;
    tree_grow(&t, &p, NULL, 1, 63);
    CHECK_EQ(t.n, 0);
    tree_chain(&t, &p, 1, 63);
    CHECK_EQ(t.n, 0);
}

/* A device that only allocates. */
static void *store_alloc(device *d, size_t n)
{
    (void)d;
    return mem_calloc(1, n);
}

static void store_release(device *d, void *p, size_t n)
{
    (void)d;
    (void)n;
    mem_free(p);
}

/* What kv_batch makes of the parents: rows see their ancestors and themselves. */
TEST(tree_rows_see_their_paths)
{
    static device dev = {.alloc = store_alloc, .release = store_release};
    const kv_spec spec = {.window = 0, .n_head_kv = 1, .head_dim = 8};
    const kv_want_layout want = {.spec = &spec,
                                 .n = 1,
                                 .choice = {.k = {NUM_F32, false}, .v = {NUM_F32, false}},
                                 .n_ctx = 128,
                                 .rows_max = STEP_TREE_ROWS_MAX};
    uint64_t seed = test_seed();
    AUTO(kv_layout_free) kv_layout l;
    AUTO(kv_close) kv_cache c;
    AUTO(kv_batch_free) kv_batch b;
    err e = {0};
    CHECK_OK(kv_layout_init(&l, &want, &e), e);
    CHECK_OK(kv_open(&c, &dev, &l, &e), e);
    CHECK_OK(kv_batch_init(&b, STEP_TREE_ROWS_MAX, STEP_TREE_ROWS_MAX, &l, &e), e);
    c.n_past = 10;
    for (int32_t budget = 0; budget < STEP_TREE_ROWS_MAX; budget += 9) {
        proposal p;
        draft_tree t;
        random_proposal(&p, 5, 3, &seed);
        tree_grow(&t, &p, NULL, 1, budget);
        kv_batch_clear(&b);
        CHECK_OK(kv_batch_add(&b, &c, t.token, 1 + t.n, t.parent, KV_WANT_ALL, &e), e);
        CHECK_EQ(b.st.all.n, 1 + t.n);
        for (int32_t i = 0; i <= t.n; i++) {
            uint64_t path = 0;
            for (int32_t r = i; r >= 0; r = t.parent[r])
                path |= (uint64_t)1 << r;
            CHECK(b.st.all.seen[i] == path);
            CHECK_EQ(b.st.all.pos[i], 10 + t.depth[i]);
        }
    }
}
