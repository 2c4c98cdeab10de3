/* mtp_test.c - drafts of MTP assistants against their arithmetic written out (tests/mtp_rig.c), in
 * every format of keys and values; many timelines at once; files that are no assistant of the
 * target.
 *
 * Every store begins full of NaN, so a draft that reads a key that no one committed has no tokens.
 */
#include "spec/drafter.h"
#include "base/mem.h"
#include "base/rng.h"
#include "model/gemma4_mtp.h"
#include "tests/kv_rig.h"
#include "tests/mtp_rig.h"
#include "tests/test.h"

enum { STEPS = 4, RANKS = 8, PASS_ROWS = 7, TOKENS = 75 };

/* A target, an assistant, and timelines that draft. */
typedef struct mtp_bench {
    rig r;
    draft_model *m;
    drafter *d;
    gguf file; /* the assistant's, for the plain form */
    int32_t id[TOKENS + 1];
    float *logits;
} mtp_bench;

static gguf opened(const char *path)
{
    gguf g;
    err e = {0};
    CHECK_OK(gguf_open(&g, path, false, NULL, NULL, &e), e);
    return g;
}

static draft_sizes sizes_of(const rig *r, int32_t n_seqs)
{
    return (draft_sizes){.dev = r->dev,
                         .n_ctx = RIG_CTX,
                         .rows_max = PASS_ROWS,
                         .outs_max = PASS_ROWS,
                         .n_seqs = n_seqs,
                         .n_slots = STEPS,
                         .target_kv = &r->l};
}

static void bench_open(mtp_bench *b, const mtp_rig_file *f)
{
    uint64_t rng = test_seed();
    err e = {0};
    const char *path = mtp_rig_write(f);
    gguf g = opened(path);
    rig_open(&b->r);
    CHECK_OK(draft_model_open(&draft_mtp, &b->r.m, &g, &b->m, &e), e);
    CHECK_OK(model_load(&b->m->core, b->r.dev, NULL, NULL, &e), e);
    b->file = opened(path);
    b->logits = mem_alloc((size_t)PASS_ROWS * RIG_VOCAB * sizeof *b->logits);
    CHECK(b->logits);
    rig_draw(b->id, TOKENS + 1, &rng);
}

static void bench_close(mtp_bench *b)
{
    mem_free(b->logits);
    gguf_close(&b->file);
    draft_model_close(b->m);
    rig_close(&b->r);
}

static void bench_open_cache(mtp_bench *b, const kv_words *words, int32_t n_seqs)
{
    err e = {0};
    rig_open_cache(&b->r, words, PASS_ROWS);
    draft_sizes z = sizes_of(&b->r, n_seqs);
    CHECK_OK(draft_mtp.open(b->m, &z, &b->d, &e), e);
}

static void bench_close_cache(mtp_bench *b)
{
    draft_mtp.close(b->d);
    rig_close_cache(&b->r);
}

/* A pass over what r->b has, with the drafter's tap. */
static void tapped_pass(mtp_bench *b)
{
    rig *r = &b->r;
    pass p;
    pass_begin(&p, r->dev, &r->b.st, r->scratch, r->scratch_bytes);
    p.taps = b->d->taps;
    mat y = model_forward(&p, &r->m, &r->l);
    CHECK_OK(p.e.status, p.e);
    for (int32_t i = 0; i < r->b.st.out.n; i++)
        memcpy(b->logits + (size_t)i * RIG_VOCAB, mat_row(y, i), RIG_VOCAB * sizeof *b->logits);
    kv_batch_clear(&r->b);
}

/* Computes n rows of c's timeline, all wanted, and keeps the first `keep`. */
static void advance(mtp_bench *b, kv_cache *c, draft_state *s, int32_t n, int32_t keep)
{
    int32_t at[PASS_ROWS] = {0, 1, 2, 3, 4, 5, 6};
    err e = {0};
    draft_kept k = {.s = s,
                    .target = c,
                    .id = b->id,
                    .n_past = c->n_past,
                    .n = keep,
                    .row = at,
                    .norm_row = keep - 1};
    CHECK_OK(kv_reserve(c, n, &e), e);
    CHECK_OK(kv_batch_add(&b->r.b, c, b->id + c->n_past, n, NULL, KV_WANT_ALL, &e), e);
    tapped_pass(b);
    kv_commit(c, keep);
    CHECK_OK(draft_mtp.absorb(b->d, &k, 1, &e), e);
}

static draft_ask ask_of(const mtp_bench *b, const kv_cache *c, draft_state *s, proposal *out)
{
    return (draft_ask){.s = s,
                       .target = c,
                       .id = b->id,
                       .n = c->n_past + 1,
                       .n_slots = STEPS,
                       .n_ranks = RANKS,
                       .out = out};
}

/* The hidden row is the input of the target's head: times the head, capped, it is the logits. */
static void check_hidden(const mtp_bench *b, const float *h, const float *logits)
{
    const float *embd = (const void *)tensor_find(&b->r.m.file.tensors, "token_embd.weight")->bytes;
    for (int32_t v = 0; v < RIG_VOCAB; v++) {
        double z = 0;
        for (int32_t i = 0; i < MTP_RIG_TARGET_WIDTH; i++)
            z += (double)embd[v * MTP_RIG_TARGET_WIDTH + i] * h[i];
        CHECK_NEAR(30 * tanh(z / 30), logits[v], 2e-4);
    }
}

static int32_t better_than(const double *logp, double x)
{
    int32_t n = 0;
    for (int32_t i = 0; i < RIG_VOCAB; i++)
        n += logp[i] > x;
    return n;
}

/* Compares a proposal after row `row` of the last pass with the plain form. */
static void check_proposal(const mtp_bench *b, const kv_cache *c, int32_t row, const proposal *o,
                           const char *what)
{
    const float *from = mat_row(b->d->taps->at[0].to, row);
    double h[MTP_RIG_TARGET_WIDTH], logp[RIG_VOCAB], hair = 2e-4;
    int32_t token = b->id[c->n_past];
    const mtp_plain plain = {.target = &b->r.m, .draft = &b->file, .cache = c};
    check_hidden(b, from, b->logits + (size_t)row * RIG_VOCAB);
    for (int32_t i = 0; i < MTP_RIG_TARGET_WIDTH; i++)
        h[i] = from[i];
    CHECK_MSG(o->n_slots == STEPS && o->n_ranks == RANKS, "%s: %d slots at %lld", what, o->n_slots,
              (long long)c->n_past);
    for (int32_t i = 0; i < STEPS; i++) {
        mtp_plain_step(&plain, c->n_past, token, h, logp);
        mtp_plain_log_softmax(logp, RIG_VOCAB);
        for (int32_t k = 0; k < RANKS; k++) {
            int32_t id = o->id[i][k];
            CHECK(id >= 0 && id < RIG_VOCAB);
            CHECK_MSG(fabs(logp[id] - (double)o->logp[i][k]) < hair,
                      "%s: after %lld tokens, step %d, rank %d: %g, expected %g", what,
                      (long long)c->n_past, i, k, o->logp[i][k], logp[id]);
            CHECK(better_than(logp, logp[id] + hair) <= k);
            for (int32_t j = 0; j < k; j++)
                CHECK(o->id[i][j] != id);
        }
        token = o->id[i][0];
    }
}

/* A timeline from its first token past the window and around the rings, with rejected rows in
 * between, each draft against the plain form. */
static void check_format(mtp_bench *b, const kv_words *words)
{
    uint64_t rng = test_seed();
    AUTO_MEM proposal *out = mem_alloc(sizeof *out);
    draft_state *s;
    char what[160];
    err e = {0};
    CHECK(out);
    rig_words(words, what, sizeof what);
    bench_open_cache(b, words, 1);
    CHECK_OK(draft_mtp.state_open(b->d, &s, &e), e);
    draft_ask a = ask_of(b, &b->r.c, s, out);
    CHECK_OK(draft_mtp.propose(b->d, &a, 1, &e), e);
    CHECK(out->n_slots == 0); /* nothing has been absorbed */
    while (b->r.c.n_past < TOKENS - PASS_ROWS) {
        int32_t n = 1 + (int32_t)rng_below(&rng, PASS_ROWS);
        int32_t keep = 1 + (int32_t)rng_below(&rng, (uint64_t)n);
        advance(b, &b->r.c, s, n, keep);
        a = ask_of(b, &b->r.c, s, out);
        CHECK_OK(draft_mtp.propose(b->d, &a, 1, &e), e);
        check_proposal(b, &b->r.c, keep - 1, out, what);
    }
    draft_mtp.state_close(b->d, s);
    bench_close_cache(b);
}

PLAIN_TEST(mtp_drafts_equal_the_plain_form_dense)
{
    AUTO(bench_close) mtp_bench b;
    bench_open(&b, &(mtp_rig_file){0});
    for (int i = 0; i < RIG_FORMATS; i += 1 + test_brief() * 4)
        check_format(&b, &rig_format[i]);
}

PLAIN_TEST(mtp_drafts_equal_the_plain_form_clusters)
{
    AUTO(bench_close) mtp_bench b;
    bench_open(&b, &(mtp_rig_file){.n_clusters = 16, .n_top = 5, .old = true});
    for (int i = 0; i < RIG_FORMATS; i += 5)
        check_format(&b, &rig_format[i]);
}

/* Three timelines of unequal length draft in one pass, each as it drafts alone. A timeline that was
 * cut, or has gone on without absorb, gets no draft until its next row. */
TEST(mtp_drafts_of_many_timelines)
{
    enum { N = 3 };
    const int32_t length[N] = {5, 33, 20};
    AUTO_MEM proposal *out = mem_calloc(2 * N, sizeof *out);
    kv_cache c[N];
    draft_state *s[N], *more;
    draft_ask a[N];
    AUTO(bench_close) mtp_bench b;
    err e = {0};
    CHECK(out);
    bench_open(&b, &(mtp_rig_file){0});
    bench_open_cache(&b, &rig_format[6], N);
    for (int i = 0; i < N; i++) {
        CHECK_OK(kv_open(&c[i], b.r.dev, &b.r.l, &e), e);
        rig_poison(&c[i]);
        CHECK_OK(draft_mtp.state_open(b.d, &s[i], &e), e);
        while (c[i].n_past < length[i])
            advance(&b, &c[i], s[i], 3, length[i] - c[i].n_past > 1 ? 2 : 1);
        a[i] = ask_of(&b, &c[i], s[i], &out[i]);
        CHECK_OK(draft_mtp.propose(b.d, &a[i], 1, &e), e);
        CHECK(out[i].n_slots == STEPS);
    }
    CHECK(draft_mtp.state_open(b.d, &more, &e) == E_LIMIT);
    e = (err){0};
    for (int i = 0; i < N; i++)
        a[i].out = &out[N + i];
    a[1].n_slots = 2;
    a[2].n_ranks = 1;
    CHECK_OK(draft_mtp.propose(b.d, a, N, &e), e);
    for (int i = 0; i < N; i++) {
        const proposal *one = &out[i], *all = &out[N + i];
        CHECK_EQ(all->n_slots, a[i].n_slots);
        CHECK_EQ(all->n_ranks, a[i].n_ranks);
        for (int32_t k = 0; k < all->n_slots; k++)
            for (int32_t r = 0; r < all->n_ranks; r++)
                CHECK(all->id[k][r] == one->id[k][r] && all->logp[k][r] == one->logp[k][r]);
    }
    draft_mtp.forget(b.d, s[0], 4);
    c[1].n_past++; /* a pass that was not absorbed */
    a[1].n++;
    CHECK_OK(draft_mtp.propose(b.d, a, N, &e), e);
    CHECK(out[N].n_slots == 0 && out[N + 1].n_slots == 0 && out[N + 2].n_slots == STEPS);
    CHECK(kv_rewind(&c[0], 4));
    advance(&b, &c[0], s[0], 1, 1);
    a[0] = ask_of(&b, &c[0], s[0], &out[N]);
    CHECK_OK(draft_mtp.propose(b.d, a, 1, &e), e);
    CHECK(out[N].n_slots == STEPS && out[N].logp[0][0] == out[0].logp[0][0]);
    for (int i = 0; i < N; i++) {
        draft_mtp.state_close(b.d, s[i]);
        kv_close(&c[i]);
    }
    bench_close_cache(&b);
}

/* A NaN in the weights ends a draft; it is no token. */
TEST(mtp_without_numbers_drafts_nothing)
{
    AUTO_MEM proposal *out = mem_alloc(sizeof *out);
    AUTO(bench_close) mtp_bench b;
    draft_state *s;
    err e = {0};
    CHECK(out);
    bench_open(&b, &(mtp_rig_file){.nan = "nextn.post_projection.weight"});
    bench_open_cache(&b, &rig_format[2], 1);
    CHECK_OK(draft_mtp.state_open(b.d, &s, &e), e);
    advance(&b, &b.r.c, s, 3, 3);
    draft_ask a = ask_of(&b, &b.r.c, s, out);
    CHECK_OK(draft_mtp.propose(b.d, &a, 1, &e), e);
    CHECK_EQ(out->n_slots, 1); /* the first step does not need it */
    draft_mtp.state_close(b.d, s);
    bench_close_cache(&b);
}

/* ---- Files --------------------------------------------------------------------------------- */

static void check_refused(const model *target, mtp_rig_file f, const char *needle)
{
    err e = {0};
    draft_model *m = NULL;
    gguf g = opened(mtp_rig_write(&f));
    status st = draft_model_open(&draft_mtp, target, &g, &m, &e);
    CHECK_MSG(st != OK && !m && strstr(e.text, needle), "%s: '%s'", needle, e.text);
    CHECK(!g.path); /* taken */
}

TEST(mtp_refuses_files_of_another_target)
{
    AUTO(rig_close) rig r;
    rig_open(&r);
    check_refused(&r.m, (mtp_rig_file){.n_target_embd = 96}, "width of 64");
    check_refused(&r.m, (mtp_rig_file){.n_vocab = 63}, "63 tokens");
    check_refused(&r.m, (mtp_rig_file){.window = 13}, "window of 13");
    check_refused(&r.m, (mtp_rig_file){.head_dim = 64}, "2 KV heads of 128");
    check_refused(&r.m, (mtp_rig_file){.head_dim_global = 128}, "1 KV heads of 256");
    check_refused(&r.m, (mtp_rig_file){.n_head = 3}, "2 KV heads of 128");
}

TEST(mtp_refuses_damaged_files)
{
    static const char *const tensors[] = {
        "nextn.pre_projection.weight", "nextn.post_projection.weight",   "output_norm.weight",
        "token_embd.weight",           "blk.0.attn_q_norm.weight",       "blk.1.attn_output.weight",
        "blk.2.post_ffw_norm.weight",  "blk.3.layer_output_scale.weight"};
    static const struct {
        const char *key;
        uint32_t value;
    } keys[] = {{"block_count", 3},
                {"nextn_predict_layers", 5},
                {"embedding_length", 64},
                {"embedding_length_out", 63},
                {"n_embd_backbone", 65},
                {"attention.head_count", 8},
                {"feed_forward_length", 81},
                {"attention.key_length", 128},
                {"attention.value_length_swa", 256},
                {"rope.dimension_count_swa", 256},
                {"n_centroids", 8},
                {"centroid_top_k", 17},
                {"attention.sliding_window_pattern", 2}};
    AUTO(rig_close) rig r;
    rig_open(&r);
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++)
        check_refused(&r.m, (mtp_rig_file){.drop = tensors[i]}, tensors[i]);
    check_refused(&r.m, (mtp_rig_file){.drop = "blk.2.attn_q.weight"}, "block_count");
    check_refused(&r.m, (mtp_rig_file){.drop = "blk.2.attn_q.weight", .no_keys = true},
                  "rope_freqs.weight"); /* layer 1 is now the last, and so global */
    check_refused(&r.m, (mtp_rig_file){.extra = "blk.4.attn_norm.weight", .no_keys = true},
                  "1 tensor has no place in a model of gemma4-assistant: blk.4.attn_norm.weight");
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        check_refused(&r.m,
                      (mtp_rig_file){.no_keys = true,
                                     .key = keys[i].key,
                                     .value = keys[i].value,
                                     .n_clusters = 16,
                                     .n_top = 4},
                      keys[i].key);
    const mtp_rig_file clusters = {.n_clusters = 16, .n_top = 4};
    mtp_rig_file f = clusters;
    for (f.list = 1; f.list <= 3; f.list++)
        check_refused(&r.m, f, "expected each of 64 tokens once");
    f = clusters;
    f.n_clusters = 24;
    check_refused(&r.m, f, "clusters of equal size");
    f = clusters;
    f.drop = "masked_embd_ordering";
    check_refused(&r.m, f, "expected both or none");
    check_refused(&r.m, (mtp_rig_file){.extra = "blk.0.attn_k.weight"}, "blk.0.attn_k.weight");
    check_refused(&r.m, (mtp_rig_file){.extra = "mtp.pre_projection.weight"}, "same by two names");
}

/* Without keys the tensors say all that the published files share. */
PLAIN_TEST(mtp_needs_no_keys)
{
    AUTO(bench_close) mtp_bench b;
    bench_open(&b, &(mtp_rig_file){.no_keys = true});
    check_format(&b, &rig_format[0]);
}

typedef struct opening {
    rig r;
    const char *path;
} opening;

static status open_all(void *arg, err *e)
{
    opening *o = arg;
    draft_sizes z = sizes_of(&o->r, 2);
    draft_model *m = NULL;
    draft_costs costs;
    drafter *d = NULL;
    draft_state *s = NULL;
    gguf g;
    status st = gguf_open(&g, o->path, false, NULL, NULL, e);
    if (st || (st = draft_model_open(&draft_mtp, &o->r.m, &g, &m, e)))
        return st;
    if (!(st = model_load(&m->core, o->r.dev, NULL, NULL, e)) &&
        !(st = draft_mtp.plan(m, &z, &costs, e)) && !(st = draft_mtp.open(m, &z, &d, e)) &&
        !(st = draft_mtp.state_open(d, &s, e)))
        draft_mtp.state_close(d, s);
    if (d)
        draft_mtp.close(d);
    draft_model_close(m);
    return st;
}

TEST(mtp_open_without_memory)
{
    opening o;
    rig_open(&o.r);
    rig_open_cache(&o.r, &rig_format[2], PASS_ROWS);
    o.path = mtp_rig_write(&(mtp_rig_file){.n_clusters = 16, .n_top = 4});
    test_every_allocation(open_all, &o);
    rig_close_cache(&o.r);
    rig_close(&o.r);
}

static size_t counted;
static void *(*plain_alloc)(device *d, size_t n);
static void *counting_alloc(device *d, size_t n)
{
    counted += n;
    return plain_alloc(d, n);
}

/* The plan is what opening takes, and taps are those of the passes. */
TEST(mtp_plan_is_exact)
{
    draft_costs costs;
    AUTO(bench_close) mtp_bench b;
    err e = {0};
    bench_open(&b, &(mtp_rig_file){.n_clusters = 16, .n_top = 4});
    rig_open_cache(&b.r, &rig_format[22], PASS_ROWS);
    for (int32_t n_seqs = 1; n_seqs <= RIG_SEQS; n_seqs++) {
        draft_sizes z = sizes_of(&b.r, n_seqs);
        CHECK_OK(draft_mtp.plan(b.m, &z, &costs, &e), e);
        counted = 0;
        plain_alloc = b.r.dev->alloc;
        b.r.dev->alloc = counting_alloc;
        CHECK_OK(draft_mtp.open(b.m, &z, &b.d, &e), e);
        b.r.dev->alloc = plain_alloc;
        CHECK_EQ(counted, costs.device_bytes);
        CHECK(costs.device_state_bytes == 0 && costs.taps.n == 1 && b.d->taps->n == 1);
        CHECK(costs.taps.at[0].il == PASS_TAP_NORM && !costs.taps.at[0].to.at);
        CHECK_EQ(costs.taps.at[0].to.rows, b.d->taps->at[0].to.rows);
        draft_mtp.close(b.d);
    }
    rig_close_cache(&b.r);
}
