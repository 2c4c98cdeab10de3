/* dflash_test.c - DFlash drafters against a plain computation, in every dialect; files that
 * contradict themselves, lack something, or belong to another target.
 */
#include "tests/dflash_file.h"
#include "tests/doctor.h"
#include "tests/kv_rig.h"
#include "tests/test.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/rng.h"
#include "model/dflash.h"

#include <math.h>

enum { N_CTX = 48, ROWS = 6, CONTEXT = 41, BEST = 8, ROW = DF_FEATURES * DF_EMBD };

/* A target, a drafter for it, and a cache of the drafter's. */
typedef struct drafting {
    model target, m;
    device *dev;
    kv_layout l;
    kv_cache c;
    kv_batch b;
    void *scratch;
    float *features; /* [CONTEXT][ROW] */
} drafting;

enum { SCRATCH = 4 << 20 };

static void open_target(model *t, device *dev)
{
    gguf g;
    err e = {0};
    CHECK_OK(gguf_open(&g, rig_model(), false, NULL, NULL, &e), e);
    CHECK_OK(model_bind(t, &g, &e), e);
    if (dev)
        CHECK_OK(model_load(t, dev, NULL, NULL, &e), e);
}

static status bind_drafter(model *m, const model *target, const df_options *o, err *e)
{
    gguf g;
    status st = gguf_open(&g, df_write(o, "draft.gguf"), false, NULL, NULL, e);
    st = st ? st : model_bind(m, &g, e);
    if (st)
        return st;
    if ((st = dflash_attach(m, target, e)))
        model_free(m);
    return st;
}

static void open_drafting(drafting *d, const df_options *o)
{
    err e = {0};
    uint64_t rng = test_seed();
    *d = (drafting){0};
    CHECK_OK(device_open_cpu(&d->dev, &(cpu_options){.n_threads = 1, .exact_f32 = true}, &e), e);
    open_target(&d->target, d->dev);
    CHECK_OK(bind_drafter(&d->m, &d->target, o, &e), e);
    CHECK_OK(model_load(&d->m, d->dev, NULL, NULL, &e), e);
    const kv_want_layout w = {.spec = d->m.kv,
                              .n = d->m.n_kv,
                              .choice = {.k = {.type = NUM_F32}, .v = {.type = NUM_F32}},
                              .n_ctx = N_CTX + DF_BLOCK,
                              .rows_max = DF_BLOCK};
    CHECK_OK(kv_layout_init(&d->l, &w, &e), e);
    CHECK_OK(kv_open(&d->c, d->dev, &d->l, &e), e);
    rig_poison(&d->c);
    CHECK_OK(kv_batch_init(&d->b, 2 * DF_BLOCK, 2, &d->l, &e), e);
    d->scratch = d->dev->alloc(d->dev, SCRATCH);
    d->features = mem_alloc(CONTEXT * ROW * sizeof *d->features);
    CHECK(d->scratch && d->features);
    for (int32_t i = 0; i < CONTEXT * ROW; i++) /* the streams of a model are larger in some rows */
        d->features[i] = (float)((i / ROW % 7 ? 1 : 30) * rng_normal(&rng));
}

static void close_drafting(drafting *d)
{
    mem_free(d->features);
    d->dev->release(d->dev, d->scratch, SCRATCH);
    kv_batch_free(&d->b);
    kv_close(&d->c);
    kv_layout_free(&d->l);
    model_free(&d->m);
    model_free(&d->target);
    device_close(d->dev);
}

/* Rows [n_past, n_past + n) of the context. */
static void absorb_rows(drafting *d, int32_t n)
{
    int32_t token[DF_BLOCK] = {0};
    err e = {0};
    pass p;
    kv_batch_clear(&d->b);
    CHECK_OK(kv_reserve(&d->c, n, &e), e);
    CHECK_OK(kv_batch_add(&d->b, &d->c, token, n, NULL, KV_WANT_ALL, &e), e);
    for (int32_t i = 0; i < n; i++)
        ((int32_t *)d->b.st.out_row)[i] = (int32_t)d->c.n_past + i;
    pass_begin(&p, d->dev, &d->b.st, d->scratch, SCRATCH);
    dflash_absorb(&p, &d->m, &d->l,
                  mat_at(d->features, CONTEXT, DF_FEATURES, DF_EMBD, (int64_t)ROW));
    CHECK_OK(p.e.status, p.e);
    kv_commit(&d->c, n);
}

/* The rows that draft: [slots][2 BEST + conf] in out; returns the columns. */
static int32_t run_block(drafting *d, int32_t last, int32_t slots, float *out)
{
    const dflash *g = d->m.impl;
    int32_t token[DF_BLOCK], wanted[DF_BLOCK];
    err e = {0};
    pass p;
    for (int32_t i = 0; i < slots; i++) {
        token[i] = i ? g->mask_id : last;
        wanted[i] = i + 1;
    }
    kv_rows rows = {.token = token, .n = slots, .want = KV_WANT_ALL};
    if (!g->anchor_first) {
        rows.want = KV_WANT_LISTED;
        rows.wanted = wanted;
        rows.n_wanted = slots - 1;
    }
    kv_batch_clear(&d->b);
    CHECK_OK(kv_reserve(&d->c, slots, &e), e);
    CHECK_OK(kv_batch_add_rows(&d->b, &d->c, &rows, &e), e);
    pass_begin(&p, d->dev, &d->b.st, d->scratch, SCRATCH);
    mat y = dflash_forward(&p, &d->m, &d->l, BEST);
    CHECK_OK(p.e.status, p.e);
    CHECK_EQ(y.rows, g->anchor_first ? slots : slots - 1);
    for (int32_t i = 0; i < y.rows; i++)
        memcpy(out + i * y.cols, mat_row(y, i), (size_t)y.cols * sizeof *out);
    return y.cols;
}

/* Compares a block after the absorbed rows with the plain computation. Each draft is the best of
 * its row, and its probability is right. */
static void compare_block(drafting *d, const df_options *o, int32_t slots)
{
    const dflash *g = d->m.impl;
    float out[DF_BLOCK * (2 * BEST + 1)];
    double logp[DF_BLOCK * DF_VOCAB], conf[DF_BLOCK];
    const df_block b = {.features = d->features,
                        .n_ctx = (int32_t)d->c.n_past,
                        .embd = d->target.embd->data,
                        .head = d->target.head->data,
                        .embd_scale = 8,
                        .softcap = 30,
                        .token = 17,
                        .slots = slots};
    int32_t cols = run_block(d, b.token, slots, out);
    CHECK_EQ(cols, 2 * BEST + (o->conf ? 1 : 0));
    df_compute(o, &b, logp, conf);
    for (int32_t i = 0; i < dflash_slots(g, slots) - 2 * !g->anchor_first; i++) {
        const float *y = out + i * cols;
        const double *want = logp + i * DF_VOCAB;
        for (int32_t k = 0; k < BEST; k++) {
            double w = want[(int32_t)y[k]];
            int32_t larger = 0;
            for (int32_t v = 0; v < DF_VOCAB; v++)
                larger += want[v] > w + 1e-4;
            CHECK_MSG(
                fabs(w - (double)y[BEST + k]) < 1e-4 && larger <= k,
                "after %d, slot %d, rank %d: token %g with %.7g, expected %.7g (%d are better)",
                b.n_ctx, i, k, (double)y[k], (double)y[BEST + k], w, larger);
        }
        if (o->conf)
            CHECK_NEAR(y[2 * BEST] + g->conf_bias, conf[i], 1e-4);
    }
}

/* The plain computation, with which everything here is compared, against transformers
 * (tools/dflash_fixture.py): contexts below the window, as long as it, and beyond it. */
TEST(dflash_computation_is_that_of_transformers)
{
    enum { SLOTS = DF_BLOCK - 1 };
    static const int32_t contexts[] = {1, 5, 12, 13, 40};
    static const int n = sizeof contexts / sizeof *contexts;
    AUTO_MEM char *want;
    size_t n_bytes;
    err e = {0};
    CHECK_OK(
        file_read_all(test_path("tests/data/drafters/dflash.f32"), 1 << 20, &want, &n_bytes, &e),
        e);
    CHECK_EQ(n_bytes, (size_t)n * SLOTS * DF_VOCAB * 4);
    AUTO_MEM float *embd = df_draw("target.embd", DF_EMBD, DF_VOCAB);
    AUTO_MEM float *head = df_draw("target.head", DF_EMBD, DF_VOCAB);
    for (int i = 0; i < n; i++) {
        AUTO_MEM float *features = df_draw("features", 1, contexts[i] * DF_FEATURES * DF_EMBD);
        const df_block b = {.features = features,
                            .n_ctx = contexts[i],
                            .embd = embd,
                            .head = head,
                            .embd_scale = 8,
                            .softcap = 30,
                            .token = 9,
                            .slots = DF_BLOCK};
        double logp[SLOTS * DF_VOCAB];
        df_compute(&(df_options){.causal = DF_BY_KIND}, &b, logp, NULL);
        for (int k = 0; k < SLOTS * DF_VOCAB; k++) {
            float w;
            memcpy(&w, want + ((size_t)i * SLOTS * DF_VOCAB + (size_t)k) * 4, 4);
            CHECK_MSG(fabs(logp[k] - (double)w) < 1e-5,
                      "%d rows, slot %d, token %d: %.7g, not %.7g", contexts[i], k / DF_VOCAB,
                      k % DF_VOCAB, logp[k], (double)w);
        }
    }
}

static const df_options variants[] = {
    {.causal = DF_BY_KIND},
    {.causal = DF_CAUSAL, .dialect = DF_IK},
    {.causal = DF_NOT_CAUSAL, .dialect = DF_IK},
    {.all_slide = true, .causal = DF_NOT_CAUSAL},
    {.laguna = true},
    {.rank = 16, .dialect = DF_LUCEBOX},
    {.rank = 16, .conf = true, .anchor_first = true},
    {.rank = 8, .conf = true, .conf_of_state = true},
};
enum { N_VARIANTS = sizeof variants / sizeof *variants };

PLAIN_TEST(dflash_drafts_like_the_plain_computation)
{
    for (int i = 0; i < N_VARIANTS; i++) {
        drafting d;
        open_drafting(&d, &variants[i]);
        absorb_rows(&d, 1);
        compare_block(&d, &variants[i], 2); /* inside the windows */
        int32_t n_compared = 0;
        while (d.c.n_past < CONTEXT) { /* rings of 12 + 8 - 1 slots wrap twice */
            int32_t n = CONTEXT - (int32_t)d.c.n_past;
            absorb_rows(&d, n < ROWS ? n : ROWS);
            if (d.c.n_past % 3 == 1 && (!test_brief() || ++n_compared % 2))
                compare_block(&d, &variants[i], DF_BLOCK - (int32_t)d.c.n_past % 2);
        }
        compare_block(&d, &variants[i], DF_BLOCK);
        compare_block(&d, &variants[i], 4);
        close_drafting(&d);
    }
}

PLAIN_TEST(dflash_dialects_draft_alike)
{
    static const df_options kinds[] = {
        {0}, {.laguna = true}, {.rank = 16, .conf = true, .anchor_first = true}};
    enum { KINDS = sizeof kinds / sizeof *kinds };
    for (int i = 0; i < KINDS; i++) {
        float first[DF_BLOCK * (2 * BEST + 1)], out[DF_BLOCK * (2 * BEST + 1)];
        for (int dialect = 0; dialect < DF_DIALECTS; dialect++) {
            df_options o = kinds[i];
            drafting d;
            o.dialect = (df_dialect)dialect;
            open_drafting(&d, &o);
            for (int32_t at = 0; at < 30; at += ROWS)
                absorb_rows(&d, ROWS);
            int32_t cols = run_block(&d, 9, DF_BLOCK, dialect ? out : first);
            CHECK(!dialect || !memcmp(first, out, (size_t)(7 * cols) * sizeof *out));
            close_drafting(&d);
        }
    }
}

/* ---- Files ------------------------------------------------------------------------------- */

/* The line that a contradiction must leave. */
static void check_note(const char *what, const model *m, const char *part)
{
    const dflash *g = m->impl;
    CHECK_MSG(part ? strstr(g->notes, part) != NULL : !*g->notes, "%s: notes are '%s'", what,
              g->notes);
}

static const int32_t four[] = {0, 1, 2, 3}, falling[] = {4, 2, 3}, far[] = {0, 2, 6},
                     below[] = {-1, 2, 3};

TEST(dflash_shapes_beat_metadata)
{
    static const struct {
        const char *what;
        df_options o;
        const char *note;
        int32_t window;
        int32_t mask, block, feature[DF_FEATURES];
    } files[] = {
        {"as it should be", {.dialect = DF_LUCEBOX}, NULL, 12, 5, 8, {0, 2, 5}},
        {"the target's depth as number of features",
         {.dialect = DF_LUCEBOX, .set = {{"gemma4-dflash-draft.dflash.n_target_layers", 60, 0}}},
         "n_target_layers",
         12,
         5,
         8,
         {0, 2, 5}},
        {"sizes of another drafter",
         {.dialect = DF_LUCEBOX,
          .arch = "qwen35-dflash-draft",
          .set = {{"qwen35-dflash-draft.attention.head_count", 32, 0},
                  {"qwen35-dflash-draft.embedding_length", 5120, 0},
                  {"qwen35-dflash-draft.vocab_size", 248320, 0},
                  {"qwen35-dflash-draft.dflash.mask_token_id", 248070, 0}}},
         "embedding_length contradicts",
         12,
         4,
         8,
         {0, 2, 5}},
        {"no pattern",
         {.dialect = DF_LUCEBOX,
          .drop_key = "gemma4-dflash-draft.attention.sliding_window_pattern"},
         "sliding_window_pattern",
         12,
         5,
         8,
         {0, 2, 5}},
        {"no window",
         {.dialect = DF_IK, .drop_key = "dflash-draft.attention.sliding_window"},
         "2048 is taken",
         2048,
         5,
         8,
         {0, 2, 5}},
        {"no number of features",
         {.dialect = DF_LUCEBOX, .drop_key = "gemma4-dflash-draft.dflash.n_target_layers"},
         NULL,
         12,
         5,
         8,
         {0, 2, 5}},
        {"no list of layers", {.drop_key = "dflash.target_layers"}, "no list", 12, 5, 8, {1, 2, 3}},
        {"a list of four", {.ids = four, .n_ids = 4}, "target_layers", 12, 5, 8, {1, 2, 3}},
        {"a falling list", {.ids = falling, .n_ids = 3}, "ascending", 12, 5, 8, {1, 2, 3}},
        {"captured layer 0 in a list that counts from 1",
         {.ids = below, .n_ids = 3},
         "ascending",
         12,
         5,
         8,
         {1, 2, 3}},
        {"no mask", {.drop_key = "tokenizer.ggml.mask_token_id"}, "mask", 12, 4, 8, {0, 2, 5}},
        {"a mask that is no token",
         {.set = {{"tokenizer.ggml.mask_token_id", 64, 0}}},
         "mask_token_id is no token",
         12,
         4,
         8,
         {0, 2, 5}},
        {"no block", {.drop_key = "dflash.block_size"}, "block_size", 12, 5, 16, {0, 2, 5}},
        {"a block of 500",
         {.set = {{"dflash.block_size", 500, 0}}},
         "block_size is no number",
         12,
         5,
         16,
         {0, 2, 5}},
        {"no base", {.drop_key = "dflash.rope.freq_base"}, "freq_base", 12, 5, 8, {0, 2, 5}},
        {"copies of the target's tensors", {.copies = true}, NULL, 12, 5, 8, {0, 2, 5}},
        {"Laguna, told to draft in slot 0",
         {.laguna = true, .set = {{"dflash.sample_from_anchor", 1, 1}}},
         "sample_from_anchor is ignored",
         12,
         5,
         8,
         {0, 2, 5}},
    };
    model t, m;
    err e = {0};
    open_target(&t, NULL);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        CHECK_OK(bind_drafter(&m, &t, &files[i].o, &e), e);
        const dflash *g = m.impl;
        check_note(files[i].what, &m, files[i].note);
        CHECK_MSG(m.window == files[i].window && g->mask_id == files[i].mask &&
                      g->block == files[i].block && !g->anchor_first &&
                      !memcmp(g->feature, files[i].feature, sizeof files[i].feature),
                  "%s: window %d, mask %d, block %d, layers %d %d %d", files[i].what, m.window,
                  g->mask_id, g->block, g->feature[0], g->feature[1], g->feature[2]);
        CHECK(m.kv[0].window == files[i].window);
        CHECK(m.kv[2].window == (g->laguna ? files[i].window : 0));
        CHECK(m.kv[0].inside == KV_INSIDE_CAUSAL);
        CHECK(m.kv[2].inside == (g->laguna ? KV_INSIDE_CAUSAL : KV_INSIDE_ALL));
        model_free(&m);
    }
    model_free(&t);
}

/* What is noted as ignored leaves no trace: not even that of the flags before the wrong one. */
TEST(dflash_list_of_sight_that_is_ignored_changes_no_layer)
{
    static const doctor_change lists[] = {
        {.list = "carat.draft.causal", .item = {0, 0, 2}, .n_items = 3},
        {.list = "carat.draft.causal", .item = {0, 0}, .n_items = 2},
        {.list = "dflash.attention.sliding_window_pattern", .item = {0, 1, 9}, .n_items = 3},
    };
    const char *whole = df_write(&(df_options){0}, "whole.gguf");
    model t, m;
    gguf g;
    err e = {0};
    open_target(&t, NULL);
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        const char *path = test_temp("ignored.gguf");
        doctor_gguf(whole, path, &lists[i]);
        CHECK_OK(gguf_open(&g, path, false, NULL, NULL, &e), e);
        CHECK_OK(model_bind(&m, &g, &e), e);
        CHECK_OK(dflash_attach(&m, &t, &e), e);
        check_note(lists[i].list, &m, "ignored");
        for (int32_t il = 0; il < 3; il++) {
            CHECK_EQ(m.kv[il].window, il < 2 ? 12 : 0);
            CHECK_EQ(m.kv[il].inside, il < 2 ? KV_INSIDE_CAUSAL : KV_INSIDE_ALL);
        }
        model_free(&m);
    }
    model_free(&t);
}

TEST(dflash_files_of_no_use_are_refused)
{
    static const struct {
        df_options o;
        const char *part; /* of the sentence */
    } files[] = {
        {{.ids = far, .n_ids = 3}, "captures layer 6, and"},
        {{.set = {{"dflash.vocab_size", 63, 0}}}, "drafts from 63 tokens"},
        {{.set = {{"carat.draft.target_layers", 30, 0}}}, "a target of 30 layers"},
        {{.set = {{"dflash.rope.scaling.type", 1, 0}}}, "scaled rotation"},
        {{.add_tensor = "blk.0.attn_bias.weight"}, "blk.0.attn_bias.weight"},
        {{.add_tensor = "blk.2.attn_gate.weight"}, "blk.2.attn_gate.weight"},
        {{.add_tensor = "blk.7.ffn_up.weight"}, "blk.7.ffn_up.weight"},
        {{.add_tensor = "blk.3.attn_q.weight"}, "blk.3.attn_norm.weight is missing"},
        {{.add_tensor = "dflash.fc.weight"}, "same by two names"},
        {{.add_tensor = "d2t"}, "reduced vocabulary"},
        {{.drop_tensor = "fc.weight"}, "fc.weight is missing"},
        {{.drop_tensor = "enc.output_norm.weight"}, "enc.output_norm.weight is missing"},
        {{.drop_tensor = "blk.2.attn_q.weight"}, "blk.2."},
        {{.drop_tensor = "blk.1.attn_k_norm.weight"}, "blk.1.attn_k_norm.weight is missing"},
        {{.drop_tensor = "blk.0.attn_q_norm.weight"}, "blk.0.attn_q_norm.weight is missing"},
        {{.laguna = true, .drop_tensor = "enc.aux_norm.weight"}, "aux_hidden_norm.0.weight is"},
        {{.laguna = true, .drop_tensor = "blk.1.attn_gate.weight"}, "attn_gate.weight is missing"},
        {{.rank = 8, .drop_tensor = "markov_w2.weight"}, "markov_w2.weight is missing"},
    };
    model t, m;
    open_target(&t, NULL);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        err e = {0};
        status st = bind_drafter(&m, &t, &files[i].o, &e);
        CHECK_MSG(st && strstr(e.text, files[i].part), "'%s' has no '%s'", e.text, files[i].part);
    }
    model_free(&t);
}

TEST(dflash_of_another_width_is_refused)
{
    AUTO(model_free) model t, m;
    gguf g;
    err e = {0};
    open_target(&t, NULL);
    t.n_embd = 96;
    CHECK_OK(gguf_open(&g, df_write(&(df_options){0}, "d.gguf"), false, NULL, NULL, &e), e);
    CHECK_OK(model_bind(&m, &g, &e), e);
    CHECK_STATUS(dflash_attach(&m, &t, &e), E_ARG);
    CHECK(strstr(e.text, "drafts for a model of width 64, and"));
}

static status open_and_close(void *arg, err *e)
{
    model m;
    gguf g;
    const char *const *path = arg;
    model t = {.n_layer = DF_TARGET_LAYERS, .n_embd = DF_EMBD, .n_vocab = DF_VOCAB};
    const weight w = {.n_in = DF_EMBD, .n_out = DF_VOCAB};
    const model_arch arch = {.name = "gemma4"};
    t.embd = t.head = &w;
    t.arch = &arch;
    t.name = "target";
    t.embd_scale = 8;
    status st = gguf_open(&g, *path, false, NULL, NULL, e);
    st = st ? st : model_bind(&m, &g, e);
    if (st)
        return st;
    st = dflash_attach(&m, &t, e);
    model_free(&m);
    return st;
}

TEST(dflash_every_allocation_may_fail)
{
    for (int laguna = 0; laguna < 2; laguna++) {
        const df_options o = {.laguna = laguna,
                              .rank = laguna ? 0 : 8,
                              .conf = true,
                              .drop_key = "dflash.block_size"};
        const char *path = df_write(&o, laguna ? "laguna.gguf" : "dspark.gguf");
        test_every_allocation(open_and_close, &path);
    }
}

TEST(dflash_cut_files_are_refused)
{
    const char *path = df_write(&(df_options){.laguna = true, .type = NUM_Q8_0}, "whole.gguf");
    AUTO(file_map_close) file_map map;
    err e = {0};
    CHECK_OK(file_map_open(&map, path, false, NULL, NULL, &e), e);
    for (uint64_t n = 0; n < map.n_bytes; n += n < 4096 ? 61 : 4001) {
        gguf g;
        model m;
        err why = {0};
        unsigned char *part = mem_alloc((size_t)n + 8);
        CHECK(part);
        memcpy(part, map.bytes, (size_t)n);
        status st = gguf_open_bytes(&g, part, n, "cut.gguf", &why);
        st = st ? st : model_bind(&m, &g, &why);
        CHECK_MSG(st && *why.text, "%llu bytes", (unsigned long long)n);
        mem_free(part);
    }
}
