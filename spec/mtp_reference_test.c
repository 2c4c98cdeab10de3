/* mtp_reference_test.c - drafts of MTP assistants, dense and with clusters, against the logits that
 * transformers computes (tools/mtp_fixture.py).
 *
 * Weights, keys, values and hidden vectors follow from names, as in that script. They replace what
 * the rigs wrote: weights in the files, the rest after each pass of the target.
 */
#include "spec/drafter.h"
#include "backend/key_walk.h"
#include "base/map.h"
#include "base/mem.h"
#include "tests/dflash_file.h"
#include "tests/kv_rig.h"
#include "tests/mtp_rig.h"
#include "tests/test.h"

#include <math.h>
#include <stdio.h>

enum { STEPS = 4, RANKS = 8, PASS_ROWS = 7, CONTEXTS = 5, DEEPEST = 40, TOKEN = 9 };

/* Below the window, as long as it, and beyond it, where the rings have wrapped. */
static const int32_t contexts[CONTEXTS] = {1, 5, RIG_WINDOW, RIG_WINDOW + 1, DEEPEST};

/* What one model of the rigs and one assistant need to draft. */
typedef struct drafting {
    rig r;
    draft_model *m;
    drafter *d;
    draft_state *s;
    gguf file; /* the assistant's, for the plain form */
    int32_t id[DEEPEST + 1];
    const char *want; /* logits [CONTEXTS][STEPS][RIG_VOCAB], as f32 */
} drafting;

static gguf opened(const char *path)
{
    gguf g;
    err e = {0};
    CHECK_OK(gguf_open(&g, path, false, NULL, NULL, &e), e);
    return g;
}

/* ---- Weights by name ----------------------------------------------------------------------- */

static void put_bytes(FILE *to, const tensor *t, const void *x)
{
    CHECK(!fseek(to, (long)t->offset, SEEK_SET));
    CHECK(fwrite(x, 1, t->n_bytes, to) == t->n_bytes);
}

static void put_floats(FILE *to, const tensor *t, float *x)
{
    put_bytes(to, t, x);
    mem_free(x);
}

static void put_target(const char *path)
{
    AUTO(gguf_close) gguf g = opened(path);
    FILE *to = fopen(path, "r+b");
    CHECK(to);
    put_floats(to, tensor_find(&g.tensors, "token_embd.weight"),
               df_draw("target.embd", MTP_RIG_TARGET_WIDTH, RIG_VOCAB));
    CHECK(!fclose(to));
}

static void put_assistant(const char *path)
{
    AUTO(gguf_close) gguf g = opened(path);
    FILE *to = fopen(path, "r+b");
    CHECK(to);
    for (uint64_t i = 0; i < g.tensors.n; i++) {
        const tensor *t = &g.tensors.at[i];
        int32_t n_in = (int32_t)t->ne[0], n_out = (int32_t)t->ne[1], order[RIG_VOCAB];
        if (!strcmp(t->name, "rope_freqs.weight"))
            continue; /* both compute it */
        if (t->type == NUM_I32) {
            for (int32_t k = 0; k < RIG_VOCAB; k++)
                order[k] = (37 * k + 11) % RIG_VOCAB;
            put_bytes(to, t, order);
        } else {
            put_floats(to, t,
                       t->n_dims == 2 ? df_draw(t->name, n_in, n_out)
                                      : df_draw_norm(t->name, n_in));
        }
    }
    CHECK(!fclose(to));
}

/* ---- Keys, values and the hidden vector by name -------------------------------------------- */

/* Replaces the rows of one stream that a draft may read. */
static void put_stream(kv_cache *c, const kv_view *v, const kv_base *base, bool keys)
{
    char name[64];
    void *stream = keys ? base->k : base->v;
    size_t row = (size_t)v->head_dim * 4;
    CHECK_EQ(keys ? v->k_row_bytes : v->v_row_bytes, row);
    snprintf(name, sizeof name, "%s.%s_attention", keys ? "keys" : "values",
             v->window ? "sliding" : "full");
    AUTO_MEM float *x = df_draw(name, v->head_dim, DEEPEST * v->n_head_kv);
    for (int64_t t = v->window && c->n_past > v->window ? c->n_past - v->window : 0; t < c->n_past;
         t++)
        for (int32_t h = 0; h < v->n_head_kv; h++)
            kv_device(c, v)->upload(
                kv_device(c, v), key_row(v, stream, row, h, key_walk(v, base, t).place),
                x + ((size_t)t * (size_t)v->n_head_kv + (size_t)h) * (size_t)v->head_dim, row);
}

static void put_stores(kv_cache *c)
{
    for (int32_t i = 0; i < c->layout->n; i++) {
        const kv_base base = kv_host_base(c, i);
        put_stream(c, &c->layout->view[i], &base, true);
        put_stream(c, &c->layout->view[i], &base, false);
    }
}

/* Computes up to PASS_ROWS tokens of the timeline, with the hidden vector in place of theirs. */
static void advance(drafting *d, int32_t n)
{
    int32_t at[PASS_ROWS] = {0, 1, 2, 3, 4, 5, 6};
    kv_cache *c = &d->r.c;
    err e = {0};
    pass p;
    draft_kept k = {.s = d->s,
                    .target = c,
                    .id = d->id,
                    .n_past = c->n_past,
                    .n = n,
                    .row = at,
                    .norm_row = n - 1};
    CHECK_OK(kv_reserve(c, n, &e), e);
    CHECK_OK(kv_batch_add(&d->r.b, c, d->id + c->n_past, n, NULL, KV_WANT_ALL, &e), e);
    pass_begin(&p, d->r.dev, &d->r.b.st, d->r.scratch, d->r.scratch_bytes);
    p.taps = d->d->taps;
    model_forward(&p, &d->r.m, &d->r.l);
    CHECK_OK(p.e.status, p.e);
    kv_batch_clear(&d->r.b);
    kv_commit(c, n);
    put_stores(c);
    float *h = df_draw("hidden", 1, MTP_RIG_TARGET_WIDTH);
    memcpy(mat_row(d->d->taps->at[0].to, n - 1), h, MTP_RIG_TARGET_WIDTH * sizeof *h);
    mem_free(h);
    CHECK_OK(draft_mtp.absorb(d->d, &k, 1, &e), e);
}

/* ---- Comparing ----------------------------------------------------------------------------- */

static void read_logits(const drafting *d, int context, int turn, double *z)
{
    const char *at = d->want + (size_t)(context * STEPS + turn) * RIG_VOCAB * 4;
    for (int32_t v = 0; v < RIG_VOCAB; v++) {
        float x;
        memcpy(&x, at + 4 * v, 4);
        z[v] = (double)x;
    }
}

static int32_t best_of(const double *z)
{
    int32_t best = 0;
    for (int32_t v = 1; v < RIG_VOCAB; v++)
        best = z[v] > z[best] ? v : best;
    return best;
}

/* The plain form, with which all other tests compare: every logit, and which tokens have one. */
static void check_plain(const drafting *d, int context)
{
    double h[MTP_RIG_TARGET_WIDTH], z[RIG_VOCAB], want[RIG_VOCAB];
    float *hidden = df_draw("hidden", 1, MTP_RIG_TARGET_WIDTH);
    int32_t token = TOKEN;
    const mtp_plain plain = {.target = &d->r.m, .draft = &d->file, .cache = &d->r.c};
    for (int32_t i = 0; i < MTP_RIG_TARGET_WIDTH; i++)
        h[i] = hidden[i];
    mem_free(hidden);
    for (int turn = 0; turn < STEPS; turn++) {
        mtp_plain_step(&plain, contexts[context], token, h, z);
        read_logits(d, context, turn, want);
        for (int32_t v = 0; v < RIG_VOCAB; v++)
            CHECK_MSG(isfinite(want[v]) ? fabs(z[v] - want[v]) < 1e-5 : z[v] == -INFINITY,
                      "plain form after %d tokens, step %d, token %d: %g, expected %g",
                      contexts[context], turn, v, z[v], want[v]);
        token = best_of(z);
    }
}

/* carat's draft: the best tokens of each step, in order, and their probabilities. With clusters
 * there are as many candidates as ranks, so both sets are equal. */
static void check_draft(const drafting *d, int context)
{
    const double hair = 1e-4;
    AUTO_MEM proposal *o = mem_alloc(sizeof *o);
    double want[RIG_VOCAB];
    err e = {0};
    CHECK(o);
    const draft_ask a = {.s = d->s,
                         .target = &d->r.c,
                         .id = d->id,
                         .n = d->r.c.n_past + 1,
                         .n_slots = STEPS,
                         .n_ranks = RANKS,
                         .out = o};
    CHECK_OK(draft_mtp.propose(d->d, &a, 1, &e), e);
    CHECK(o->n_slots == STEPS && o->n_ranks == RANKS);
    for (int turn = 0; turn < STEPS; turn++) {
        bool taken[RIG_VOCAB] = {false};
        read_logits(d, context, turn, want);
        mtp_plain_log_softmax(want, RIG_VOCAB);
        CHECK_EQ(o->id[turn][0], best_of(want));
        for (int32_t k = 0; k < RANKS; k++) {
            int32_t id = o->id[turn][k], better = 0;
            CHECK(id >= 0 && id < RIG_VOCAB && !taken[id]);
            taken[id] = true;
            for (int32_t v = 0; v < RIG_VOCAB; v++)
                better += want[v] > want[id] + hair;
            CHECK_MSG(fabs(want[id] - (double)o->logp[turn][k]) < hair && better <= k,
                      "after %d tokens, step %d, rank %d: token %d with %g, expected %g",
                      contexts[context], turn, k, id, o->logp[turn][k], want[id]);
        }
    }
}

static void check_fixture(const mtp_rig_file *f, const char *fixture)
{
    drafting d = {0};
    const char *target = rig_model(), *path = mtp_rig_write(f);
    AUTO_MEM char *want;
    size_t n_bytes;
    err e = {0};
    CHECK_OK(file_read_all(test_path(fixture), 1 << 20, &want, &n_bytes, &e), e);
    CHECK_EQ(n_bytes, (size_t)CONTEXTS * STEPS * RIG_VOCAB * 4);
    d.want = want;
    put_target(target);
    put_assistant(path);
    gguf g = opened(target);
    CHECK_OK(device_open_cpu(&d.r.dev, &(cpu_options){.n_threads = 1, .exact_f32 = true}, &e), e);
    CHECK_OK(model_bind(&d.r.m, &g, &e), e);
    CHECK_OK(model_load(&d.r.m, d.r.dev, NULL, NULL, &e), e);
    g = opened(path);
    CHECK_OK(draft_model_open(&draft_mtp, &d.r.m, &g, &d.m, &e), e);
    CHECK_OK(model_load(&d.m->core, d.r.dev, NULL, NULL, &e), e);
    d.file = opened(path);
    rig_open_cache(&d.r, &(kv_words){.k = "f32", .single = "off"}, PASS_ROWS);
    const draft_sizes z = {.dev = d.r.dev,
                           .n_ctx = RIG_CTX,
                           .rows_max = PASS_ROWS,
                           .outs_max = PASS_ROWS,
                           .n_seqs = 1,
                           .n_slots = STEPS,
                           .target_kv = &d.r.l};
    CHECK_OK(draft_mtp.open(d.m, &z, &d.d, &e), e);
    CHECK_OK(draft_mtp.state_open(d.d, &d.s, &e), e);
    for (int32_t i = 0; i <= DEEPEST; i++)
        d.id[i] = TOKEN;
    for (int i = 0; i < CONTEXTS; i++) {
        for (int64_t left; (left = contexts[i] - d.r.c.n_past) > 0;)
            advance(&d, left < PASS_ROWS ? (int32_t)left : PASS_ROWS);
        check_plain(&d, i);
        check_draft(&d, i);
    }
    draft_mtp.state_close(d.d, d.s);
    draft_mtp.close(d.d);
    rig_close_cache(&d.r);
    gguf_close(&d.file);
    draft_model_close(d.m);
    rig_close(&d.r);
}

TEST(mtp_dense_drafts_are_those_of_transformers)
{
    check_fixture(&(mtp_rig_file){0}, "tests/data/drafters/mtp-dense.f32");
}

TEST(mtp_clusters_and_their_candidates_are_those_of_transformers)
{
    check_fixture(&(mtp_rig_file){.n_clusters = 16, .n_top = 2},
                  "tests/data/drafters/mtp-clusters.f32");
}
