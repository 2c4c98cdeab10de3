/* imatrix_test.c - importance files of all families: every matrix that a product reads has an
 * entry of its shape, quantize takes the file, and the text loses less by it. */
#include "tests/test.h"
#include "apps/commands.h"
#include "base/mem.h"
#include "base/str.h"
#include "carat.h"
#include "format/gguf.h"
#include "format/imatrix.h"
#include "num/num.h"

#include <fcntl.h>
#include <math.h>
#include <unistd.h>

enum { N_TOKENS = 150 };

static void synth(const char *size, const char *path, const char *name, const char *value)
{
    const char *argv[] = {size, path,        "--type", "f32", "--seed",
                          "7",  "--threads", "1",      name,  value};
    int argc = name ? value ? 10 : 9 : 8;
    CHECK_EQ(command_synth.run(&command_synth, argc, (char **)argv), 0);
}

static const char *tokens(void)
{
    static char list[8 * N_TOKENS];
    uint32_t x = 1;
    size_t at = 0;
    for (int i = 0; i < N_TOKENS; i++) {
        x = x * 1664525 + 1013904223;
        at += (size_t)snprintf(list + at, sizeof list - at, "%s%u", i ? "," : "", 3 + (x >> 24));
    }
    return list;
}

static int collect(const char *model, const char *to, const char *ctx, const char *chunks)
{
    const char *argv[] = {"-m", model, "--tokens", tokens(), "-o",       to,
                          "-t", "1",   "-c",       ctx,      "--chunks", chunks};
    return command_imatrix.run(&command_imatrix, 12, (char **)argv);
}

static int quantise(const char *from, const char *to, const char *type, const char *im)
{
    const char *argv[] = {from, to, type, "--threads", "1", "--json", "--imatrix", im};
    int keep = dup(1), null = open("/dev/null", O_WRONLY);
    CHECK(keep >= 0 && null >= 0);
    fflush(stdout);
    dup2(null, 1);
    int rc = command_quantize.run(&command_quantize, im ? 8 : 6, (char **)argv);
    fflush(stdout);
    dup2(keep, 1);
    close(keep);
    close(null);
    return rc;
}

static gguf opened(const char *path)
{
    gguf g;
    err e = {0};
    CHECK_OK(gguf_open(&g, path, false, NULL, NULL, &e), e);
    return g;
}

static int64_t number(const gguf *g, const char *arch, const char *name)
{
    char key[64];
    int64_t n = 0;
    snprintf(key, sizeof key, "%s.%s", arch, name);
    gguf_get_i64(g, key, &n);
    return n;
}

/* A matrix whose rows are looked up, that only drafts or convolutions read, or that nothing does.
 */
static bool in_no_product(const gguf *g, const tensor *t)
{
    int il = -1, n = (int)number(g, "qwen35", "block_count");
    if (n && sscanf(t->name, "blk.%d.", &il) == 1)
        return il >= n - number(g, "qwen35", "nextn_predict_layers") ||
               text_ends_with(t->name, "ssm_conv1d.weight");
    n = (int)number(g, "gemma4", "block_count");
    if (n && sscanf(t->name, "blk.%d.attn_%*1[kv].weight", &il) == 1 &&
        (text_ends_with(t->name, "attn_k.weight") || text_ends_with(t->name, "attn_v.weight")))
        return il >= n - number(g, "gemma4", "attention.shared_kv_layers");
    bool encoder = tensor_find(&g->tensors, "dense_2.weight") != NULL;
    bool has_head = tensor_find(&g->tensors, "output.weight") != NULL;
    return (!strcmp(t->name, "token_embd.weight") && (has_head || encoder)) ||
           !strcmp(t->name, "per_layer_token_embd.weight") ||
           !strcmp(t->name, "cls.output.weight") || text_ends_with(t->name, "ssm_conv1d.weight");
}

TEST(imatrix_has_every_matrix_of_every_family)
{
    static const char *const sizes[] = {
        "tiny-all",     "tiny-ple",        "tiny-moe",      "tiny-gemma3", "tiny-embeddinggemma",
        "tiny-gpt-oss", "tiny-qwen3",      "tiny-qwen3moe", "tiny-laguna", "tiny-qwen3-reranker",
        "tiny-llama3",  "tiny-ministral3", "tiny-mixtral",  "tiny-qwen35", "tiny-qwen35moe"};
    const char *model = test_temp("m.gguf"), *im = test_temp("im.gguf"), *q = test_temp("q.gguf");
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        imatrix *m;
        err e = {0};
        int n = 0;
        synth(sizes[i], model, !strcmp(sizes[i], "tiny-qwen35") ? "--nextn" : NULL, NULL);
        CHECK_EQ(collect(model, im, "32", "2"), 0);
        CHECK_OK(imatrix_open(&m, im, &e), e);
        gguf g = opened(model), sums = opened(im);
        for (uint64_t j = 0; j < g.tensors.n; j++) {
            const tensor *t = &g.tensors.at[j];
            const float *w;
            if (t->ne[1] == 1 || !text_ends_with(t->name, ".weight"))
                continue;
            CHECK_OK(imatrix_find(m, t->name, t->ne[0], t->ne[2], &w, &e), e);
            CHECK_MSG(!w == in_no_product(&g, t), "%s: %s has %s importance", sizes[i], t->name,
                      w ? "an" : "no");
            n += w != NULL;
        }
        CHECK(sums.tensors.n >= 2 * (uint64_t)n); /* products of one row too */
        gguf_close(&sums);
        gguf_close(&g);
        imatrix_close(m);
        CHECK_EQ(quantise(model, q, "q2_0", im), 0);
    }
}

/* Sums of more chunks are larger; each chunk begins a new sequence. */
TEST(imatrix_counts_rows_and_says_where_they_come_from)
{
    const char *model = test_temp("m.gguf"), *im = test_temp("im.gguf");
    synth("tiny-qwen3moe", model, NULL, NULL);
    for (int i = 0; i < 3; i++) {
        static const char *const n_chunks[] = {"1", "3", "9"};
        static const int rows[] = {40, 120, 150}, n_done[] = {1, 3, 4};
        int64_t n = 0;
        float count = 0, all = 0;
        CHECK_EQ(collect(model, im, "40", n_chunks[i]), 0);
        AUTO(gguf_close) gguf g = opened(im);
        const tensor *t = tensor_find(&g.tensors, "blk.0.attn_q.weight.counts");
        CHECK(t && t->n_elements == 1);
        memcpy(&count, t->bytes, 4);
        CHECK_EQ((int)count, rows[i]);
        t = tensor_find(&g.tensors, "blk.0.ffn_down_exps.weight.counts");
        CHECK(t && t->ne[0] == 1 && t->ne[1] > 1);
        for (uint64_t k = 0; k < t->ne[1]; k++) {
            memcpy(&count, t->bytes + 4 * k, 4);
            all += count;
        }
        CHECK((int)all % rows[i] == 0 && (int)all > rows[i]); /* each row goes to some experts */
        CHECK(gguf_get_i64(&g, "imatrix.chunk_count", &n) && n == n_done[i]);
        CHECK(gguf_get_i64(&g, "imatrix.chunk_size", &n) && n == 40);
        const gguf_value *v = gguf_find(&g, "imatrix.datasets");
        CHECK(v && v->kind == GGUF_ARRAY && v->count == 1);
    }
}

/* [N_TOKENS][n] */
static float *logits_of(const char *path, int32_t *n)
{
    int32_t ids[N_TOKENS];
    AUTO_MODEL *m = NULL;
    AUTO_SESSION *s = NULL;
    const carat_session_options opt = {.n_ctx = N_TOKENS, .n_outputs = N_TOKENS, .chunk = N_TOKENS};
    const carat_model_options exact = {.exact_f32 = true, .n_threads = 1};
    carat_model_info info;
    err e = {0};
    const char *list = tokens();
    for (int i = 0; i < N_TOKENS; i++) {
        ids[i] = (int32_t)strtol(list, (char **)&list, 10);
        list++;
    }
    CHECK_OK(carat_model_open(path, &exact, &m, &e), e);
    carat_model_get_info(m, &info);
    *n = info.n_vocab;
    float *x = mem_calloc(N_TOKENS * (size_t)info.n_vocab, sizeof *x);
    CHECK_OK(carat_session_open(m, &opt, &s, &e), e);
    CHECK_OK(carat_append(s, ids, N_TOKENS, true, x, &e), e);
    return x;
}

static double apart(const char *path, const float *want)
{
    int32_t n;
    AUTO_MEM float *x = logits_of(path, &n);
    double lost = 0, square = 0;
    for (size_t i = 0; i < N_TOKENS * (size_t)n; i++) {
        lost += ((double)x[i] - want[i]) * ((double)x[i] - want[i]);
        square += (double)want[i] * want[i];
    }
    return sqrt(lost / square);
}

/* Logits of the text that was measured lose less. */
PLAIN_TEST(imatrix_makes_the_error_of_its_text_smaller)
{
    static const struct {
        const char *size, *type;
    } cases[] = {{"tiny-qwen3moe", "q2_0"}, {"tiny-laguna", "q2_0"}, {"tiny-wide", "q2_k"}};
    const char *model = test_temp("m.gguf"), *im = test_temp("im.gguf"), *q = test_temp("q.gguf");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int32_t n;
        bool wide = !strcmp(cases[i].size, "tiny-wide");
        synth(cases[i].size, model, wide ? "--layers" : NULL, wide ? "1" : NULL);
        CHECK_EQ(collect(model, im, "150", "1"), 0);
        AUTO_MEM float *want = logits_of(model, &n);
        CHECK_EQ(quantise(model, q, cases[i].type, NULL), 0);
        double without = apart(q, want);
        CHECK_EQ(quantise(model, q, cases[i].type, im), 0);
        double with = apart(q, want);
        printf("%s %s: %.4f, with importance %.4f\n", cases[i].size, cases[i].type, without, with);
        CHECK_MSG(with < without, "%s: %g with importance, %g without", cases[i].size, with,
                  without);
    }
}

/* A drafter's tensors have the names of the model's. */
TEST(sums_of_inputs_are_those_of_one_model)
{
    const char *path = test_temp("one.gguf");
    carat_model_options o = {
        .n_threads = 1, .device = "cpu", .sum_inputs = true, .draft = "lookup"};
    AUTO_MODEL *m = NULL;
    carat_error e = {0};
    synth("tiny-qwen3", path, NULL, NULL);
    CHECK_EQ(carat_model_open(path, &o, &m, &e), CARAT_E_ARG);
    CHECK_MSG(!m && strstr(e.text, "cannot be used with a drafter (lookup)"), "%s", e.text);
    o.draft = "none";
    CHECK_OK(carat_model_open(path, &o, &m, &e), e);
}

TEST(imatrix_says_what_is_wrong_and_writes_nothing)
{
    const char *model = test_temp("m.gguf"), *im = test_temp("im.gguf");
    synth("tiny-qwen3", model, NULL, NULL);
    CHECK_EQ(collect("/nonexistent", im, "32", "1"), 1);
    CHECK_EQ(collect(model, test_temp("no-folder/im.gguf"), "32", "1"), 1);
    const char *neither[] = {"-m", model, "-o", im};
    CHECK_EQ(command_imatrix.run(&command_imatrix, 4, (char **)neither), 2);
    const char *large[] = {"-m", model, "-o", im, "--tokens", "1,2,99999999"};
    CHECK_EQ(command_imatrix.run(&command_imatrix, 6, (char **)large), 2);
    const char *no_gpu[] = {"-m", model, "-o", im, "--tokens", "1,2", "--device", "cuda:99"};
    CHECK(command_imatrix.run(&command_imatrix, 8, (char **)no_gpu) != 0);
    CHECK_EQ(access(im, F_OK), -1);

    /* an input that is not finite */
    gguf g = opened(model);
    const tensor *t = tensor_find(&g.tensors, "blk.0.attn_norm.weight");
    uint64_t at = t->offset;
    gguf_close(&g);
    FILE *f = fopen(model, "r+");
    const float most = 3e38f;
    CHECK(f && !fseek(f, (long)at, SEEK_SET) && fwrite(&most, 4, 1, f) == 1 && !fclose(f));
    CHECK_EQ(collect(model, im, "32", "1"), 1);
    CHECK_EQ(access(im, F_OK), -1);
}
