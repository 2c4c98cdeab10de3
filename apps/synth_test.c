/* synth_test.c - random model files: complete, finite, of the right magnitude, repeatable.
 *
 * Blocks are decoded again and their spread is measured, format by format; a file's tensors are
 * compared with the list of its shape, and two files of one seed byte for byte.
 */
#include "tests/test.h"
#include "apps/commands.h"
#include "apps/synth_blocks.h"
#include "apps/synth_skew.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/rng.h"
#include "model/gemma4_shapes.h"

#include "tests/toy_model.h"

#include <unistd.h>

static int synth(const char *size, const char *path, const char *type, const char *threads)
{
    const char *argv[] = {size, path, "--type", type, "--seed", "7", "--threads", threads};
    return command_synth.run(&command_synth, 8, (char **)argv);
}

TEST(synth_blocks_have_the_sigma_asked_for)
{
    enum { N = 64 * 256 };
    static float x[N];
    static uint8_t raw[N * 4];
    for (uint32_t t = 0; t < NUM_TYPE_END; t++) {
        const num_format *f = num_format_of(t);
        synth_blocks *b;
        err e = {0};
        if (!f || !f->encode)
            continue;
        CHECK_OK(synth_blocks_open(&b, (num_type)t, &e), e);
        for (int k = 0; k < 2; k++) {
            float sigma = k ? 0.0136f : 1.5f; /* as in a 31B model, and as a router */
            double sum = 0, sq = 0;
            synth_blocks_fill(b, 11, sigma, raw, N);
            f->decode(raw, x, N);
            for (int i = 0; i < N; i++) {
                CHECK(isfinite(x[i]));
                sum += x[i];
                sq += (double)x[i] * x[i];
            }
            /* MXFP4 scales are powers of two: off by up to sqrt 2. */
            double r = sqrt(sq / N) / sigma, slack = t == NUM_MXFP4 ? 1.45 : 1.1;
            CHECK_MSG(r < slack && r > 1 / slack, "%s: %g of sigma", f->name, r);
            CHECK_MSG(fabs(sum / N) < 0.05 * sigma, "%s: mean %g of sigma", f->name,
                      sum / N / sigma);
        }
        synth_blocks_close(b);
    }
}

PLAIN_TEST(synth_files_hold_every_tensor_of_their_shape)
{
    static const char *const sizes[] = {"tiny-dense", "tiny-moe", "tiny-ple", "tiny-all",
                                        "tiny-wide"};
    static const char *const types[] = {"f32", "bf16", "q4_k_m", "q5_k_s", "iq4_xs", "q2_k"};
    const char *path = test_temp("s.gguf");
    for (int i = 0; i < 5; i++)
        for (int k = 0; k < 6; k++) {
            AUTO(gguf_close) gguf g;
            gemma4_shape s;
            err e = {0};
            CHECK_EQ(synth(sizes[i], path, types[k], "2"), 0);
            CHECK_OK(gguf_open(&g, path, false, NULL, NULL, &e), e);
            CHECK(gemma4_shape_named(sizes[i], &s));
            int32_t n = table_list(&s.common, NULL, 0);
            AUTO_MEM shape_tensor *list = mem_calloc((size_t)n, sizeof *list);
            table_list(&s.common, list, n);
            CHECK_EQ(g.tensors.n, n);
            for (int32_t j = 0; j < n; j++) {
                const tensor *t = tensor_find(&g.tensors, list[j].name);
                CHECK_MSG(t, "%s", list[j].name);
                CHECK(!memcmp(t->ne, list[j].ne, sizeof t->ne));
                AUTO_MEM float *x = mem_calloc((size_t)t->n_elements, sizeof *x);
                num_format_of(t->type)->decode(t->bytes, x, (int64_t)t->n_elements);
                for (uint64_t q = 0; q < t->n_elements; q++)
                    CHECK_MSG(isfinite(x[q]), "%s", t->name);
            }
            int64_t v;
            gguf_string model;
            CHECK(gguf_get_i64(&g, "gemma4.vocab_size", &v) && v == s.n_vocab);
            CHECK(gguf_get_string(&g, "tokenizer.ggml.model", &model) && model.n == 8);
        }
}

/* Every size of a drafter for tests, in every dialect: each has the tensors of its list, and values
 * that fit their roles. */
TEST(synth_writes_drafters_in_every_dialect)
{
    static const struct {
        const char *size, *dialect, *arch, *tensor;
        int32_t n;
        float mean; /* of that tensor, roughly */
    } want[] = {
        {"dflash-tiny", "llama.cpp", "dflash", "enc.output_norm.weight", 36, 1},
        {"dflash-tiny", "lucebox", "gemma4-dflash-draft", "dflash.hidden_norm.weight", 36, 1},
        {"dflash-tiny", "ik", "dflash-draft", "blk.2.post_attention_norm.weight", 36, 1},
        {"dflash-tiny-laguna", "llama.cpp", "dflash", "enc.aux_norm.weight", 40, 1},
        {"dflash-tiny-laguna", "lucebox", "gemma4-dflash-draft", "dflash.aux_hidden_norm.2.weight",
         42, 1},
        {"dflash-tiny-laguna", "ik", "dflash-draft", "blk.1.attn_gate.weight", 42, 0},
        {"dflash-tiny-dspark", "llama.cpp", "dflash", "conf_proj.bias", 40, 0},
        {"dflash-tiny-dspark", "lucebox", "gemma4-dflash-draft", "dflash.dspark.markov.w2.weight",
         40, 0},
        {"dflash-tiny-dspark", "ik", "dflash-draft", "markov_w1.weight", 40, 0},
        {"dflash-tiny-wide", "llama.cpp", "dflash", "fc.weight", 25, 0},
        {"mtp-tiny", "llama.cpp", "gemma4-assistant", "nextn.pre_projection.weight", 49, 0},
        {"mtp-tiny-ordered", "llama.cpp", "gemma4-assistant", "masked_embd_centroids.weight", 51,
         0},
        {"mtp-tiny-wide", "old", "gemma4_assistant", "mtp.post_projection.weight", 49, 0},
    };
    const char *path = test_temp("draft.gguf");
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        const char *argv[] = {want[i].size, path, "--dialect", want[i].dialect};
        AUTO(gguf_close) gguf g;
        gguf_string arch;
        err e = {0};
        CHECK_EQ(command_synth.run(&command_synth, 4, (char **)argv), 0);
        CHECK_OK(gguf_open(&g, path, false, NULL, NULL, &e), e);
        CHECK(gguf_get_string(&g, "general.architecture", &arch));
        CHECK(arch.n == strlen(want[i].arch) && !memcmp(arch.at, want[i].arch, arch.n));
        CHECK_EQ(g.tensors.n, want[i].n);
        const tensor *t = tensor_find(&g.tensors, want[i].tensor);
        CHECK_MSG(t, "%s: %s", want[i].size, want[i].tensor);
        AUTO_MEM float *x = mem_calloc((size_t)t->n_elements, sizeof *x);
        double sum = 0;
        num_format_of(t->type)->decode(t->bytes, x, (int64_t)t->n_elements);
        for (uint64_t k = 0; k < t->n_elements; k++)
            sum += x[k];
        CHECK_NEAR(sum / (double)t->n_elements, want[i].mean, t->n_elements > 1 ? 0.3 : 2);
    }
    const char *wrong[] = {"mtp-tiny", path, "--dialect", "lucebox"};
    CHECK_EQ(command_synth.run(&command_synth, 4, (char **)wrong), 2);
}

/* Routers read random rows of unit elements: how often is each of their experts among the 8 best?
 */
PLAIN_TEST(synth_routers_use_experts_by_a_zipf_law)
{
    enum { E = 128, D = 64, ROWS = 20000 };
    static float factor[E], w[E][D];
    uint64_t seed = test_seed();
    int32_t count[E] = {0};
    synth_skew_factors(factor, E, 0, seed);
    CHECK_EQ(factor[7], 1);
    synth_skew_factors(factor, E, 0.8, seed);
    for (int e = 0; e < E; e++)
        for (int i = 0; i < D; i++)
            w[e][i] = factor[e] * (float)rng_normal(&seed) / sqrtf(D);
    for (int r = 0; r < ROWS; r++) {
        float x[D], z[E];
        for (int i = 0; i < D; i++)
            x[i] = (float)rng_normal(&seed);
        for (int e = 0; e < E; e++) {
            z[e] = 0;
            for (int i = 0; i < D; i++)
                z[e] += w[e][i] * x[i];
        }
        for (int k = 0; k < 8; k++) {
            int best = 0;
            for (int e = 1; e < E; e++)
                best = z[e] > z[best] ? e : best;
            z[best] = -1e30f;
            count[best]++;
        }
    }
    int32_t sorted[E], half = 0;
    memcpy(sorted, count, sizeof sorted);
    for (int i = 0; i < E; i++)
        for (int j = i + 1; j < E; j++)
            if (sorted[j] > sorted[i]) {
                int32_t t = sorted[i];
                sorted[i] = sorted[j];
                sorted[j] = t;
            }
    for (int i = 0; i < E / 2; i++)
        half += sorted[i];
    /* The 64 commonest of 128 by 1 / r^0.8 have 0.80 of all uses. */
    CHECK_NEAR((double)half / (8.0 * ROWS), 0.80, 0.05);
    CHECK_NEAR(log((double)sorted[7] / sorted[63]) / log(64.0 / 8), 0.8, 0.25);
}

TEST(synth_skew_changes_routers_and_who_writes_what_they_read)
{
    const char *path[3] = {test_temp("random.gguf"), test_temp("even.gguf"),
                           test_temp("skewed.gguf")};
    gguf g[3];
    err e = {0};
    for (int i = 0; i < 3; i++) {
        const char *argv[] = {"tiny-moe", path[i], "--expert-skew", i == 1 ? "0" : "1.2"};
        CHECK_EQ(command_synth.run(&command_synth, i ? 4 : 2, (char **)argv), 0);
        CHECK_OK(gguf_open(&g[i], path[i], false, NULL, NULL, &e), e);
    }
    for (uint64_t i = 0; i < g[0].tensors.n; i++) {
        const tensor *a = &g[0].tensors.at[i], *b = &g[1].tensors.at[i], *c = &g[2].tensors.at[i];
        bool router = strstr(a->name, "ffn_gate_inp.weight") != NULL;
        bool writer = strstr(a->name, "ffn_down.weight") ||
                      strstr(a->name, "ffn_down_exps.weight") ||
                      (strstr(a->name, "attn_output.weight") && strncmp(a->name, "blk.0.", 6));
        CHECK_MSG((memcmp(a->bytes, b->bytes, a->n_bytes) != 0) == (router || writer), "%s",
                  a->name);
        CHECK_MSG((memcmp(b->bytes, c->bytes, a->n_bytes) != 0) == router, "%s", a->name);
    }
    for (int i = 0; i < 3; i++)
        gguf_close(&g[i]);
    const char *wrong[] = {"tiny-moe", path[0], "--expert-skew", "-1"};
    CHECK_EQ(command_synth.run(&command_synth, 4, (char **)wrong), 2);
    const char *dense[] = {"tiny-dense", test_temp("dense.gguf"), "--expert-skew", "0.8"};
    CHECK(command_synth.run(&command_synth, 4, (char **)dense) != 0);
    CHECK(access(dense[1], F_OK) != 0);
}

/* The clusters of a head hold every token once. */
TEST(synth_orders_every_token_once)
{
    const char *path = test_temp("ordered.gguf");
    bool seen[320] = {0};
    AUTO(gguf_close) gguf g;
    err e = {0};
    const char *argv[] = {"mtp-tiny-ordered", path};
    CHECK_EQ(command_synth.run(&command_synth, 2, (char **)argv), 0);
    CHECK_OK(gguf_open(&g, path, false, NULL, NULL, &e), e);
    const tensor *t = tensor_find(&g.tensors, "masked_embd_ordering");
    CHECK(t && t->type == NUM_I32 && t->n_elements == 320);
    for (int i = 0; i < 320; i++) {
        int32_t id;
        memcpy(&id, t->bytes + 4 * i, 4);
        CHECK(id >= 0 && id < 320 && !seen[id]);
        seen[id] = true;
    }
}

/* A small vocabulary in a model of more tokens: all have a text, and all texts differ. */
TEST(synth_fills_a_vocabulary_up)
{
    const char *path = test_temp("v.gguf"), *small = toy_model_write(NULL);
    carat_model *m;
    carat_error e = {0};
    int32_t ids[8];
    for (int full = 0; full < 2; full++) {
        const char *argv[] = {"tiny-wide", path, "--vocab", small, "--full-vocab"};
        CHECK_EQ(command_synth.run(&command_synth, 4 + full, (char **)argv), 0);
        CHECK_OK(carat_model_open(path, NULL, &m, &e), e);
        carat_model_info info;
        carat_model_get_info(m, &info);
        CHECK_EQ(info.n_vocab == 512, full);
        CHECK(carat_tokenize(m, "a b", 3, 0, ids, 8, &e) > 0);
        const char *bytes;
        int32_t n = carat_token_bytes(m, info.n_vocab - 1, false, &bytes);
        CHECK_EQ(n == 5 && !memcmp(bytes, " w511", 5), full);
        carat_model_close(m);
    }
}

/* One led row of keys has a mean; attention lies in every eighth block, so block selection keeps
 * those and the ones that it always keeps, and next to nothing is lost. */
TEST(synth_plants_attention_in_known_blocks)
{
    enum { N = SANITIZED ? 1536 : 3072, BLOCKS = N / 128, EVERY = 8 };
    static int32_t ids[N];
    static float row[256], logits[2][512];
    const char *path = test_temp("planted.gguf");
    const char *argv[] = {"tiny-wide", path, "--type", "q8_0", "--attention-density", "0.125"};
    const char *none[] = {"tiny-qwen3", path, "--attention-density", "0.125"};
    uint64_t rng = test_seed(), kept = 0, all = 0;
    gguf g;
    AUTO_MODEL *m;
    carat_session *s;
    carat_error e = {0};
    err ge = {0};
    CHECK_EQ(command_synth.run(&command_synth, 4, (char **)none), 2);
    CHECK_EQ(command_synth.run(&command_synth, 6, (char **)argv), 0);
    CHECK_OK(gguf_open(&g, path, false, NULL, NULL, &ge), ge);
    const tensor *t = tensor_find(&g.tensors, "blk.2.attn_k.weight");
    for (int r = 14; r < 17; r++) { /* of 64 pairs 16 turn: row 15 leads */
        double sum = 0;
        num_format_of(t->type)->decode((const char *)t->bytes + r * 272, row, 256);
        for (int i = 0; i < 256; i++)
            sum += row[i];
        CHECK_MSG((sum > 40) == (r == 15), "row %d: sum %g", r, sum);
    }
    gguf_close(&g);
    for (int i = 0; i < N; i++)
        ids[i] = 3 + (int32_t)rng_below(&rng, 500);
    CHECK_OK(carat_model_open(path, NULL, &m, &e), e);
    for (int i = 0; i < 2; i++) {
        carat_sparse_layer x[6];
        const carat_session_options o = {
            .n_ctx = N, .chunk = 512, .checkpoint_mb = -1, .sparse = i ? "flash:0.1" : NULL};
        CHECK_OK(carat_session_open(m, &o, &s, &e), e);
        CHECK_OK(carat_eval(s, ids, N, logits[i], NULL, &e), e);
        if (i) {
            CHECK(carat_session_sparse(s, x, 6, false) > 0);
            CHECK_EQ(x[0].layer, 2);
            for (int b = 0; b < BLOCKS; b++)
                for (int n = 0; n <= b; n++, all++)
                    kept += b >= BLOCKS - 2 || n < 2 || n > b - 4 || (b - n) % EVERY == 0;
            double share = (double)x[0].n_kept / (double)x[0].n_tiles;
            double want = (double)kept / (double)all;
            CHECK_MSG(share >= want && share < want + 0.05, "%g of %g", share, want);
        }
        carat_session_close(s);
    }
    double diff = 0, size = 0;
    for (int i = 0; i < 512; i++) {
        diff += (logits[1][i] - logits[0][i]) * (logits[1][i] - logits[0][i]);
        size += logits[0][i] * logits[0][i];
    }
    CHECK_MSG(diff < 1e-6 * size, "%g", diff / size);
}

TEST(synth_does_not_depend_on_threads)
{
    const char *a = test_temp("a.gguf"), *b = test_temp("b.gguf");
    AUTO_MEM char *x, *y;
    size_t n, m;
    err e = {0};
    CHECK_EQ(synth("tiny-wide", a, "q4_k_m", "1"), 0);
    CHECK_EQ(synth("tiny-wide", b, "q4_k_m", "3"), 0);
    CHECK_OK(file_read_all(a, 1 << 28, &x, &n, &e), e);
    CHECK_OK(file_read_all(b, 1 << 28, &y, &m, &e), e);
    CHECK(n == m && !memcmp(x, y, n));
}

static int synth_with(const char *size, const char *path, const char *vocab)
{
    const char *argv[] = {size, path, "--vocab", vocab};
    return command_synth.run(&command_synth, 4, (char **)argv);
}

/* A file that carat writes is one that it opens: words of another family are refused, and Ministral
 * 3, whose tokenizer is not Llama 3's, has none made up. */
TEST(synth_writes_words_of_the_own_family_alone)
{
    const char *qwen = test_temp("qwen.gguf"), *mistral = test_temp("mistral.gguf");
    const char *no = test_temp("no.gguf"), *again = test_temp("again.gguf");
    err e = {0};
    AUTO_MODEL *m = NULL;
    CHECK_EQ(synth("tiny-qwen3", qwen, "f32", "1"), 0);
    CHECK_EQ(synth("tiny-ministral3", mistral, "f32", "1"), 0);
    CHECK_OK(carat_model_open(mistral, NULL, &m, &e), e);
    carat_model_close(m);
    CHECK_EQ(synth_with("tiny-llama3", no, qwen), 2);
    CHECK_EQ(synth_with("tiny-ministral3", no, qwen), 2);
    CHECK_EQ(access(no, F_OK), -1);
    CHECK_EQ(synth_with("tiny-qwen3moe", again, qwen), 0);
    CHECK_OK(carat_model_open(again, NULL, &m, &e), e);
}

TEST(synth_refuses_what_it_cannot_do)
{
    const char *path = test_temp("no.gguf");
    CHECK_EQ(synth("27b", path, "q4_k_m", "1"), 2);
    CHECK_EQ(synth("e2b", path, "q4", "1"), 2);
    CHECK_EQ(synth("tiny-all", test_temp("no-folder/x.gguf"), "f32", "1"), 1);
    CHECK_EQ(access(path, F_OK), -1);
}
