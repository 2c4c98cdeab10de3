/* pass_test.c - computing and committing rows: chains and trees, logits or candidates of several
 * rows, one timeline or two, and the state after a failure.
 *
 * The oracle is carat_append, token by token. On a CPU a row's result does not depend on the other
 * rows of its pass, so rows of a chain are compared bit for bit. A row of a tree may sum over its
 * keys in another order, so it is compared with a tolerance.
 */
#include "engine/batch_int.h"
#include "base/mem.h"
#include "base/rng.h"
#include "tests/test.h"
#include "tests/toy_model.h"

#include <math.h>

enum { CTX = 96, PROMPT = 20, VERIFY = 6, VOCAB_MAX = 1024, TOKENS = CTX };

typedef struct rig {
    carat_model *m;
    carat_session *s; /* VERIFY rows of one timeline */
    int32_t n_vocab;
    int32_t id[TOKENS];
    float *want; /* [TOKENS][n_vocab], token by token */
    float *got;  /* [2 * VERIFY][n_vocab] */
    candidate *candidates;
    int32_t n_candidates[2 * VERIFY];
} rig;

/* exact: activations, keys and values stay f32. Then another order of sums changes logits by no
 * more than f32's rounding, with every instruction set. */
static void open_rig_as(rig *r, const toy_model_file *v, bool exact)
{
    uint64_t rng = test_seed();
    carat_model_options mo = {.exact_f32 = exact};
    carat_session_options o = {.n_ctx = CTX, .checkpoint_mb = -1, .kv_k = exact ? "f32" : NULL};
    carat_session *plain;
    err e = {0};
    *r = (rig){.m = toy_model_open(v, &mo)};
    r->n_vocab = r->m->core.n_vocab;
    size_t row = (size_t)r->n_vocab;
    r->want = mem_alloc(TOKENS * row * sizeof *r->want);
    r->got = mem_alloc(2 * VERIFY * row * sizeof *r->got);
    r->candidates = mem_alloc((size_t)VERIFY * CANDIDATES_MAX * sizeof *r->candidates);
    CHECK(r->want && r->got && r->candidates);
    for (int i = 0; i < TOKENS; i++)
        r->id[i] = (int32_t)rng_below(&rng, (uint64_t)r->n_vocab);
    CHECK_OK(session_open(r->m, &o, VERIFY, &r->s, &e), e);
    if (v && v->nan_tensor)
        return;
    CHECK_OK(carat_session_open(r->m, &o, &plain, &e), e);
    for (size_t i = 0; i < TOKENS; i++)
        CHECK_OK(carat_append(plain, r->id + i, 1, false, r->want + i * row, &e), e);
    carat_session_close(plain);
    CHECK_OK(carat_eval(r->s, r->id, PROMPT, NULL, NULL, &e), e);
}

static void open_rig(rig *r, const toy_model_file *v)
{
    open_rig_as(r, v, false);
}

static void close_rig(rig *r)
{
    carat_session_close(r->s);
    carat_model_close(r->m);
    mem_free(r->want);
    mem_free(r->got);
    mem_free(r->candidates);
}

static pass_part part_of(rig *r, timeline *t, const int32_t *ids, int32_t n, kv_want want)
{
    return (pass_part){.t = t,
                       .rows = {.token = ids, .n = n, .want = want},
                       .logits = r->got,
                       .candidates = r->candidates,
                       .n_candidates = r->n_candidates};
}

static bool same_row(const rig *r, int32_t k, int64_t pos)
{
    size_t row = (size_t)r->n_vocab;
    return !memcmp(r->got + (size_t)k * row, r->want + (size_t)pos * row, row * sizeof *r->got);
}

static void compute(rig *r, pass_part *part)
{
    err e = {0};
    CHECK_OK(run_pass(r->m, &r->s->b.layout, &r->s->b.w, part, 1, &e), e);
    CHECK(part_finite(part));
}

PLAIN_TEST(pass_computes_and_commits_apart)
{
    rig r;
    open_rig(&r, NULL);
    timeline *t = session_timeline(r.s);
    int32_t wrong[VERIFY];
    uint64_t rng = test_seed();
    for (int64_t at = PROMPT; at + VERIFY <= TOKENS; at = t->kv.n_past) {
        int32_t good = (int32_t)rng_below(&rng, VERIFY + 1);
        for (int32_t i = 0; i < VERIFY; i++)
            wrong[i] = i < good ? r.id[at + i] : (r.id[at + i] + 1) % r.n_vocab;
        pass_part part = part_of(&r, t, wrong, VERIFY, KV_WANT_ALL);
        compute(&r, &part);
        CHECK_EQ(t->kv.n_past, at); /* computed, and nothing has moved */
        CHECK(!memcmp(t->id, r.id, (size_t)at * sizeof *t->id));
        for (int32_t k = 0; k < good; k++)
            CHECK(same_row(&r, k, at + k));
        timeline_commit(t, &part, NULL, good);
        CHECK_EQ(t->kv.n_past, at + good);
        CHECK(!memcmp(t->id, r.id, (size_t)(at + good) * sizeof *t->id));
    }
    close_rig(&r);
}

TEST(pass_gives_the_rows_that_are_listed)
{
    static const int32_t lists[][VERIFY] = {{0}, {1, 4}, {0, 2, 3, 5}, {0, 1, 2, 3, 4, 5}};
    static const int32_t lengths[] = {1, 2, 4, 6};
    rig r;
    err e = {0};
    open_rig(&r, NULL);
    timeline *t = session_timeline(r.s);
    for (int i = 0; i < 4; i++) {
        pass_part part = part_of(&r, t, r.id + PROMPT, VERIFY, KV_WANT_LISTED);
        part.rows.wanted = lists[i];
        part.rows.n_wanted = lengths[i];
        compute(&r, &part);
        for (int32_t k = 0; k < lengths[i]; k++)
            CHECK(same_row(&r, k, PROMPT + lists[i][k]));
    }
    static const int32_t unordered[] = {3, 1}, beyond[] = {0, VERIFY};
    const int32_t *const bad[] = {unordered, beyond};
    for (int i = 0; i < 2; i++) {
        pass_part part = part_of(&r, t, r.id + PROMPT, VERIFY, KV_WANT_LISTED);
        part.rows.wanted = bad[i];
        part.rows.n_wanted = 2;
        e = (err){0};
        CHECK_STATUS(run_pass(r.m, &r.s->b.layout, &r.s->b.w, &part, 1, &e), E_ARG);
        CHECK_EQ(t->kv.n_past, PROMPT);
    }
    close_rig(&r);
}

/* The last rows, in passes of more rows and of fewer. A part that looks gives nothing. */
PLAIN_TEST(pass_gives_the_last_rows)
{
    rig r;
    open_rig(&r, NULL);
    for (int32_t n = 1; n <= VERIFY; n += 5) {
        pass_part part = part_of(&r, session_timeline(r.s), r.id + PROMPT, n, KV_WANT_TAIL);
        part.rows.n_wanted = 4;
        int32_t rows = n < 4 ? n : 4;
        CHECK_EQ(kv_rows_wanted(&part.rows), rows);
        compute(&r, &part);
        for (int32_t k = 0; k < rows; k++)
            CHECK(same_row(&r, k, PROMPT + n - rows + k));
        part.rescore = true;
        r.s->b.w.n_candidates[0] = 1234;
        compute(&r, &part);
        CHECK_EQ(r.s->b.w.n_candidates[0], 1234);
    }
    close_rig(&r);
}

/* device.sift by its definition, except that it reports every third row as impossible. */
static int n_sifted;
static void sift_plainly(device *d, sift_want *want, int32_t n_wants, int32_t n, int32_t cap)
{
    (void)d;
    for (sift_want *w = want; w < want + n_wants; w++) {
        float least = -INFINITY;
        w->n = 0;
        w->bad = false;
        for (int32_t i = 0; i < n; i++) { /* the k-th largest */
            int32_t above = 0;
            for (int32_t j = 0; j < n; j++)
                above += w->row[j] > w->row[i];
            if (above == w->k - 1)
                least = w->row[i];
        }
        for (int32_t i = 0; i < n; i++)
            if (w->row[i] >= least && w->n++ < cap)
                w->to[w->n - 1] = (logit){i, w->row[i]};
        if (n_sifted++ % 3 == 2)
            w->n = -1;
    }
}

TEST(pass_sifts_every_wanted_row)
{
    rig r;
    open_rig(&r, NULL);
    r.m->dev->sift = sift_plainly;
    pass_part part = part_of(&r, session_timeline(r.s), r.id + PROMPT, VERIFY, KV_WANT_ALL);
    part.n_best = 4;
    compute(&r, &part);
    CHECK_EQ(n_sifted, VERIFY);
    for (int32_t k = 0; k < VERIFY; k++) {
        row_logits x;
        err e = {0};
        CHECK_OK(read_logits(r.m, &r.s->b.w, &part, k, 0, &x, &e), e);
        const float *want = r.want + (size_t)(PROMPT + k) * (size_t)r.n_vocab;
        if (k % 3 == 2) {
            CHECK(!x.candidates && same_row(&r, k, PROMPT + k));
            continue;
        }
        CHECK(x.candidates && x.n_candidates >= 4 && x.n_candidates < r.n_vocab);
        for (int32_t i = 0; i < x.n_candidates; i++)
            CHECK(x.candidates[i].logit == want[x.candidates[i].id]);
    }
    r.m->dev->sift = NULL;
    close_rig(&r);
}

static double distance(const rig *r, int32_t k, int64_t pos)
{
    size_t row = (size_t)r->n_vocab;
    double far = 0;
    for (size_t i = 0; i < row; i++) {
        double d =
            fabs((double)r->got[(size_t)k * row + i] - (double)r->want[(size_t)pos * row + i]);
        far = d <= far ? far : d;
    }
    return far;
}

/*     context - 0 - 1 (wrong)          the tokens that come are those of 0, 2, 4, 5
 *                 \ 2 - 3 (wrong)
 *                     \ 4 - 5                                                          */
PLAIN_TEST(pass_keeps_a_path_of_a_tree)
{
    static const int32_t parent[VERIFY] = {-1, 0, 0, 2, 2, 4}, path[] = {0, 2, 4, 5};
    const double near = 1e-3;
    rig r;
    open_rig_as(&r, NULL, true);
    timeline *t = session_timeline(r.s);
    for (int64_t at = PROMPT; at + VERIFY + 1 <= TOKENS; at = t->kv.n_past) {
        int32_t token[VERIFY];
        for (int32_t i = 0; i < VERIFY; i++)
            token[i] = (r.id[at + i] + 7) % r.n_vocab;
        for (int32_t i = 0; i < 4; i++)
            token[path[i]] = r.id[at + i];
        pass_part part = part_of(&r, t, token, VERIFY, KV_WANT_ALL);
        part.rows.parent = parent;
        compute(&r, &part);
        CHECK_EQ(t->kv.n_past, at);
        for (int32_t i = 0; i < 4; i++)
            CHECK(distance(&r, path[i], at + i) <= near);
        int32_t n = 1 + (int32_t)(at % 4); /* shallow and deep */
        timeline_commit(t, &part, path, n);
        CHECK_EQ(t->kv.n_past, at + n);
        CHECK(!memcmp(t->id, r.id, (size_t)(at + n) * sizeof *t->id));
        pass_part next = part_of(&r, t, r.id + at + n, 1, KV_WANT_LAST);
        compute(&r, &next); /* not committed: sees the path's rows only */
        CHECK(distance(&r, 0, at + n) <= near);
        timeline_commit(t, &next, NULL, 0);
    }
    close_rig(&r);
}

TEST(pass_holds_parts_of_several_timelines)
{
    enum { SEQS = 2 };
    static const int32_t parent[] = {-1, 0, 0, 2};
    rig r;
    open_rig(&r, NULL);
    session_shape shape;
    kv_layout l;
    kv_pool pool;
    carat_memory_plan plan;
    carat_session_options o = {.n_ctx = CTX, .n_outputs = 1};
    timeline t[SEQS];
    workspace w;
    err e = {0};
    size_t row = (size_t)r.n_vocab;
    CHECK_OK(plan_shape(r.m, &o, SEQS, VERIFY, &shape, &e), e);
    CHECK_EQ(shape.n_outputs, SEQS * VERIFY); /* not the 1 of the options: all rows may be wanted */
    CHECK_OK(plan_costs(r.m, &shape, &l, &plan, &e), e);
    CHECK_OK(kv_pool_open(&pool, r.m->dev, &l, &e), e);
    CHECK_OK(workspace_open(&w, r.m, &l, &shape, &plan, &e), e);
    for (int i = 0; i < SEQS; i++)
        CHECK_OK(timeline_open(&t[i], r.m, &pool, NULL, &e), e);
    pass_part part[SEQS];
    for (int i = 0; i < SEQS; i++) {
        size_t at = (size_t)i * VERIFY;
        part[i] = (pass_part){.t = &t[i],
                              .rows = {.token = r.id, .n = PROMPT - 5 * i},
                              .logits = r.got + at * row,
                              .candidates = w.candidates + at * CANDIDATES_MAX,
                              .n_candidates = w.n_candidates + at};
    }
    CHECK_OK(run_pass(r.m, &l, &w, part, SEQS, &e), e);
    for (int i = 0; i < SEQS; i++)
        timeline_commit(&t[i], &part[i], NULL, part[i].rows.n);
    /* A chain of VERIFY rows, and a tree whose rows 0, 1 and 0, 2 are two paths of one depth. */
    int32_t token[] = {r.id[PROMPT - 5], 1, r.id[PROMPT - 4], r.id[PROMPT - 3]}, path[] = {0, 2, 3};
    part[0].rows = (kv_rows){.token = r.id + PROMPT, .n = VERIFY, .want = KV_WANT_ALL};
    part[1].rows = (kv_rows){.token = token, .n = 4, .parent = parent, .want = KV_WANT_ALL};
    CHECK_OK(run_pass(r.m, &l, &w, part, SEQS, &e), e);
    for (int32_t k = 0; k < VERIFY; k++)
        CHECK(!memcmp(part[0].logits + (size_t)k * row, r.want + (size_t)(PROMPT + k) * row,
                      row * sizeof *r.want));
    CHECK(!memcmp(part[1].logits, r.want + (size_t)(PROMPT - 5) * row, row * sizeof *r.want));
    timeline_commit(&t[0], &part[0], NULL, 2);
    timeline_commit(&t[1], &part[1], path, 3);
    CHECK_EQ(t[0].kv.n_past, PROMPT + 2);
    CHECK_EQ(t[1].kv.n_past, PROMPT - 2);
    CHECK(!memcmp(t[1].id, r.id, (size_t)t[1].kv.n_past * sizeof *t[1].id));
    for (int i = 0; i < SEQS; i++)
        timeline_close(&t[i]);
    workspace_close(&w, r.m);
    kv_pool_close(&pool);
    kv_layout_free(&l);
    close_rig(&r);
}

TEST(pass_that_fails_moves_no_timeline)
{
    rig r;
    err e = {0};
    open_rig(&r, NULL);
    timeline *t = session_timeline(r.s);
    CHECK_OK(carat_append(r.s, r.id + PROMPT, CTX - PROMPT - 2, false, NULL, &e), e);
    pass_part part = part_of(&r, t, r.id, 3, KV_WANT_ALL);
    CHECK_STATUS(run_pass(r.m, &r.s->b.layout, &r.s->b.w, &part, 1, &e), E_LIMIT);
    CHECK_EQ(t->kv.n_past, CTX - 2);
    close_rig(&r);
    open_rig(&r, &(toy_model_file){.nan_tensor = "output_norm.weight"});
    part = part_of(&r, session_timeline(r.s), r.id, 3, KV_WANT_ALL);
    e = (err){0};
    CHECK_OK(run_pass(r.m, &r.s->b.layout, &r.s->b.w, &part, 1, &e), e);
    for (int32_t k = 0; k < 3; k++)
        CHECK_EQ(r.n_candidates[k], LOGITS_BAD);
    CHECK(!part_finite(&part));
    CHECK_EQ(r.s->b.slot->t.kv.n_past, 0);
    close_rig(&r);
}
