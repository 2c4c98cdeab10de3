/* quantize_test.c - files quantised here: the formats of the table, the encoders' own bytes, the
 * error that was said, and nothing left behind when it goes wrong. */
#include "tests/test.h"
#include "apps/commands.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/rng.h"
#include "carat.h"
#include "format/gguf.h"
#include "format/imatrix.h"
#include "num/num.h"

#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

static void synth(const char *size, const char *type, const char *path)
{
    const char *argv[] = {size, path, "--type", type, "--seed", "7", "--threads", "1"};
    CHECK_EQ(command_synth.run(&command_synth, 8, (char **)argv), 0);
}

/* With stdout in a file, whose name is returned. */
static const char *quantise(const char *from, const char *to, const char *type, const char *flag,
                            int *rc)
{
    const char *argv[] = {from, to, type, "--threads", "2", "--json", flag};
    const char *path = test_temp("errors.json");
    int keep = dup(1), fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    CHECK(keep >= 0 && fd >= 0);
    fflush(stdout);
    dup2(fd, 1);
    *rc = command_quantize.run(&command_quantize, flag ? 7 : 6, (char **)argv);
    fflush(stdout);
    dup2(keep, 1);
    close(keep);
    close(fd);
    return path;
}

static gguf opened(const char *path)
{
    gguf g;
    err e = {0};
    CHECK_OK(gguf_open(&g, path, false, NULL, NULL, &e), e);
    return g;
}

/* The error of one tensor, computed anew. */
static double loss_of(const tensor *a, const tensor *b, float *worst)
{
    size_t n = (size_t)a->n_elements;
    AUTO_MEM float *x = mem_calloc(n, sizeof *x), *y = mem_calloc(n, sizeof *y);
    double square = 0, lost = 0;
    num_format_of(a->type)->decode(a->bytes, x, (int64_t)n);
    num_format_of(b->type)->decode(b->bytes, y, (int64_t)n);
    *worst = 0;
    for (size_t i = 0; i < n; i++) {
        square += (double)x[i] * x[i];
        lost += ((double)x[i] - y[i]) * ((double)x[i] - y[i]);
        *worst = fmaxf(*worst, fabsf(x[i] - y[i]));
    }
    return sqrt(lost / square);
}

PLAIN_TEST(quantize_gives_every_tensor_the_format_of_its_role)
{
    static const char *const sizes[] = {
        "tiny-all",         "tiny-ple",   "tiny-wide",   "dflash-tiny-laguna", "dflash-tiny-dspark",
        "mtp-tiny-ordered", "tiny-qwen3", "tiny-laguna", "tiny-qwen35",        "tiny-qwen35moe"};
    static const char *const types[] = {"q4_0", "q4_k_m", "q5_k_m", "q6_k", "q8_0", "q2_0"};
    const char *from = test_temp("f32.gguf"), *to = test_temp("q.gguf"), *as = test_temp("as.gguf");
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        synth(sizes[i], "f32", from);
        for (int k = test_brief() ? (int)i % 2 : 0; k < 6; k += 1 + test_brief()) {
            int rc;
            quantise(from, to, types[k], NULL, &rc);
            CHECK_EQ(rc, 0);
            synth(sizes[i], types[k], as);
            gguf a = opened(from), b = opened(to), c = opened(as);
            CHECK_EQ(b.tensors.n, c.tensors.n);
            CHECK_EQ(b.n_values, c.n_values);
            for (uint64_t j = 0; j < b.tensors.n; j++) {
                const tensor *t = &b.tensors.at[j], *like = tensor_find(&c.tensors, t->name);
                CHECK_MSG(like && like->type == t->type, "%s %s is %s", types[k], t->name,
                          num_name(t->type));
                CHECK(!strcmp(t->name, a.tensors.at[j].name)); /* and in the same order */
            }
            int64_t x, y;
            CHECK(gguf_get_i64(&b, "general.file_type", &x) &&
                  gguf_get_i64(&c, "general.file_type", &y) && x == y);
            gguf_close(&a);
            gguf_close(&b);
            gguf_close(&c);
        }
    }
}

TEST(quantize_writes_what_the_encoder_makes_and_says_what_was_lost)
{
    const char *from = test_temp("f.gguf"), *to = test_temp("q.gguf");
    int rc, n_changed = 0;
    synth("tiny-all", "bf16", from);
    FILE *f = fopen(quantise(from, to, "q4_k_m", NULL, &rc), "r");
    CHECK(f && rc == 0);
    gguf a = opened(from), b = opened(to);
    json_t *line;
    while ((line = json_loadf(f, JSON_DISABLE_EOF_CHECK, NULL))) {
        const char *name = json_string_value(json_object_get(line, "tensor"));
        const tensor *x = tensor_find(&a.tensors, name), *y = tensor_find(&b.tensors, name);
        float worst;
        CHECK(x && y && x->type != y->type);
        double lost = loss_of(x, y, &worst);
        CHECK_NEAR(json_real_value(json_object_get(line, "relative_error")), lost, 1e-6);
        CHECK_NEAR(json_real_value(json_object_get(line, "worst_error")), worst, 1e-6);
        CHECK(lost < 0.12);
        n_changed++;
        json_decref(line);
    }
    fclose(f);
    for (uint64_t j = 0; j < a.tensors.n; j++) {
        const tensor *x = &a.tensors.at[j], *y = tensor_find(&b.tensors, x->name);
        size_t n = (size_t)x->n_elements;
        if (x->type == y->type) {
            CHECK(!memcmp(x->bytes, y->bytes, x->n_bytes));
            continue;
        }
        float *v = mem_calloc(n, sizeof *v);
        unsigned char *q = mem_calloc((size_t)y->n_bytes, 1);
        num_format_of(x->type)->decode(x->bytes, v, (int64_t)n);
        num_format_of(y->type)->encode(v, q, (int64_t)n);
        CHECK_MSG(!memcmp(q, y->bytes, y->n_bytes), "%s", x->name);
        mem_free(v);
        mem_free(q);
        n_changed--;
    }
    CHECK_EQ(n_changed, 0); /* every change has its line, and no other tensor has one */
    gguf_close(&a);
    gguf_close(&b);
}

/* The factor of matrix k. Gemma 4 has scales of its experts in the same place. */
static float factor_of(const gguf *old, const gguf *new, const char *weight, uint64_t k)
{
    char name[96];
    snprintf(name, sizeof name, "%.*s.scale", (int)(strlen(weight) - 7), weight);
    const tensor *s = tensor_find(&new->tensors, name), *was = tensor_find(&old->tensors, name);
    CHECK_MSG(s && s->type == NUM_F32 && k < s->n_elements, "no %s", name);
    float x, y = 1;
    memcpy(&x, s->bytes + 4 * k, 4);
    if (was)
        memcpy(&y, was->bytes + 4 * k, 4);
    return x / y;
}

static float *logits_of(const char *path, int32_t n)
{
    static const int32_t tokens[] = {5, 17, 3, 44, 9, 28};
    enum { N = sizeof tokens / sizeof *tokens };
    AUTO_MODEL *m = NULL;
    AUTO_SESSION *s = NULL;
    carat_session_options opt = {.n_ctx = 64, .n_outputs = N};
    err e = {0};
    float *x = mem_calloc((size_t)N * (size_t)n, sizeof *x);
    CHECK_OK(carat_model_open(path, NULL, &m, &e), e);
    CHECK_OK(carat_session_open(m, &opt, &s, &e), e);
    CHECK_OK(carat_append(s, tokens, N, true, x, &e), e);
    return x;
}

TEST(quantize_to_nvfp4_writes_factors_that_models_compute_with)
{
    static const char *const sizes[] = {"tiny-wide", "tiny-qwen3moe", "tiny-gpt-oss",
                                        "tiny-llama3"};
    const char *from = test_temp("f.gguf"), *to = test_temp("q.gguf");
    for (size_t i = test_brief(); i < sizeof sizes / sizeof *sizes; i++) { /* the first is large */
        int rc, n_blocks = 0, n_experts = 0;
        synth(sizes[i], "f32", from);
        quantise(from, to, "nvfp4", NULL, &rc);
        CHECK_EQ(rc, 0);
        gguf a = opened(from), b = opened(to);
        FILE *f = fopen(from, "r+"); /* takes the values that the other file stands for */
        CHECK(f);
        for (uint64_t j = 0; j < b.tensors.n; j++) {
            const tensor *q = &b.tensors.at[j], *w = tensor_find(&a.tensors, q->name);
            if (q->type == NUM_F32)
                continue;
            uint64_t n = q->ne[0] * q->ne[1], n_mat = q->type == NUM_NVFP4 ? q->ne[2] : 0;
            AUTO_MEM float *y = mem_calloc((size_t)q->n_elements, sizeof *y);
            num_format_of(q->type)->decode(q->bytes, y, (int64_t)q->n_elements);
            const float *x = (const float *)w->bytes;
            for (uint64_t k = 0; k < n_mat; k++) {
                float d = factor_of(&a, &b, q->name, k), most = 0;
                double square = 0, lost = 0;
                for (uint64_t r = k * n; r < (k + 1) * n; r++) {
                    most = fmaxf(most, fabsf(x[r]));
                    square += (double)x[r] * x[r];
                    y[r] *= d;
                    lost += ((double)x[r] - y[r]) * ((double)x[r] - y[r]);
                }
                CHECK_NEAR(d, most / (6 * 448), 1e-5 * d); /* the largest number of the format */
                CHECK_MSG(lost < 0.01 * square, "%s %s: %g of %g", sizes[i], q->name, lost, square);
            }
            CHECK(!fseek(f, (long)w->offset, SEEK_SET));
            CHECK_EQ(fwrite(y, sizeof *y, (size_t)q->n_elements, f), q->n_elements);
            n_blocks += n_mat > 0;
            n_experts += n_mat > 1;
        }
        CHECK(!fclose(f) && n_blocks > 4);
        CHECK(i > 2 || n_experts > 0);
        int32_t n = (int32_t)tensor_find(&a.tensors, "token_embd.weight")->ne[1];
        gguf_close(&a);
        gguf_close(&b);
        float *x = logits_of(from, n), *y = logits_of(to, n);
        double square = 0, lost = 0;
        for (int32_t k = 0; k < 6 * n; k++) {
            square += (double)x[k] * x[k];
            lost += ((double)x[k] - y[k]) * ((double)x[k] - y[k]);
        }
        printf("%s: %.4f\n", sizes[i], sqrt(lost / square));
        CHECK_MSG(lost < 0.01 * square, "%s: logits differ by %g", sizes[i], sqrt(lost / square));
        mem_free(x);
        mem_free(y);
    }
    /* once more: nothing changes, or the factors would be lost */
    int rc;
    char *x, *y;
    size_t n, m;
    err e = {0};
    const char *again = test_temp("again.gguf");
    quantise(to, again, "nvfp4", "--again", &rc);
    CHECK_EQ(rc, 0);
    CHECK_OK(file_read_all(to, 1 << 28, &x, &n, &e), e);
    CHECK_OK(file_read_all(again, 1 << 28, &y, &m, &e), e);
    CHECK(n == m && !memcmp(x, y, n));
    mem_free(x);
    mem_free(y);
    unlink(again);
    quantise(to, again, "q8_0", "--again", &rc);
    CHECK_EQ(rc, 1);
    CHECK_EQ(access(again, F_OK), -1);
}

/* Gemma 4 has a scale for each expert where NVFP4 has its factors: the file has their product. With
 * another number of scales there is none. */
TEST(quantize_to_nvfp4_joins_factors_with_the_scales_of_experts)
{
    for (uint64_t n_scales = 3; n_scales >= 2; n_scales--) {
        enum { N = 64 * 4 * 3 };
        const char *from = test_temp("f.gguf"), *to = test_temp("q.gguf");
        uint64_t seed = test_seed(), ne[4] = {64, 4, 3, 1};
        const float scale[] = {2, 0.5f, -3};
        float x[N];
        gguf_writer *w;
        err e = {0};
        int rc;
        for (int i = 0; i < N; i++)
            x[i] = (float)rng_normal(&seed) * (i < 256 ? 0 : 1);
        CHECK_OK(gguf_create(&w, from, &e), e);
        gguf_put_string(w, "general.architecture", "gemma4", 6);
        gguf_put_tensor(w, "blk.0.ffn_down_exps.scale", NUM_F32, 1, &n_scales);
        gguf_put_tensor(w, "blk.0.ffn_down_exps.weight", NUM_F32, 3, ne);
        CHECK_OK(gguf_write_header(w, &e), e);
        CHECK_OK(gguf_write_data(w, scale, n_scales * sizeof *scale, &e), e);
        CHECK_OK(gguf_write_data(w, x, sizeof x, &e), e);
        CHECK_OK(gguf_commit(w, &e), e);
        quantise(from, to, "nvfp4", NULL, &rc);
        CHECK_EQ(rc, n_scales == 3 ? 0 : 1);
        if (rc) {
            CHECK_EQ(access(to, F_OK), -1);
            continue;
        }
        gguf a = opened(from), b = opened(to);
        CHECK_EQ(b.tensors.n, 2);
        CHECK_NEAR(factor_of(&a, &b, "blk.0.ffn_down_exps.weight", 0), 1, 0); /* all zeros */
        for (int k = 1; k < 3; k++) {
            float most = 0;
            for (int i = 256 * k; i < 256 * k + 256; i++)
                most = fmaxf(most, fabsf(x[i]));
            CHECK_NEAR(factor_of(&a, &b, "blk.0.ffn_down_exps.weight", (uint64_t)k),
                       most / (6 * 448), 1e-5 * most);
        }
        gguf_close(&a);
        gguf_close(&b);
        unlink(to);
    }
}

/* Names and ranks of a model of two layers, and few rows: searches take long. */
static void write_small(const char *path)
{
    static const char *const names[] = {"attn_q",   "attn_k", "attn_v",   "attn_output",
                                        "ffn_gate", "ffn_up", "ffn_down", "ffn_down_exps"};
    enum { N = 8, ROWS = 5, EXPERTS = 3, MOST = 256 * ROWS * EXPERTS };
    AUTO_MEM float *x = mem_calloc(MOST, sizeof *x);
    uint64_t seed = test_seed();
    gguf_writer *w;
    err e = {0};
    CHECK_OK(gguf_create(&w, path, &e), e);
    gguf_put_string(w, "general.architecture", "llama", 5);
    gguf_put_tensor(w, "token_embd.weight", NUM_F32, 2, (uint64_t[]){256, ROWS});
    for (int i = 0; i < 2 * N; i++) {
        char name[64];
        snprintf(name, sizeof name, "blk.%d.%s.weight", i / N, names[i % N]);
        gguf_put_tensor(w, name, NUM_F32, 3, (uint64_t[]){256, ROWS, i % N == 7 ? EXPERTS : 1});
    }
    CHECK_OK(gguf_write_header(w, &e), e);
    for (int i = -1; i < 2 * N; i++) {
        size_t n = i % N == 7 ? MOST : MOST / EXPERTS;
        for (size_t k = 0; k < n; k++)
            x[k] = (float)rng_normal(&seed);
        CHECK_OK(gguf_write_data(w, x, n * sizeof *x, &e), e);
    }
    CHECK_OK(gguf_commit(w, &e), e);
}

static int quantise_with(const char *from, const char *to, const char *type, const char *file,
                         const char *threads)
{
    const char *argv[] = {from, to, type, "--threads", threads, "--json", "--imatrix", file};
    return command_quantize.run(&command_quantize, 8, (char **)argv);
}

/* An importance file of all matrices but one. */
static void write_imatrix(const gguf *g, const char *path, const char *without)
{
    uint64_t seed = test_seed();
    FILE *f = fopen(path, "w");
    uint32_t n = 0;
    CHECK(f && fwrite(&n, 4, 1, f) == 1);
    for (uint64_t i = 0; i < g->tensors.n; i++) {
        const tensor *t = &g->tensors.at[i];
        uint32_t head = (uint32_t)strlen(t->name), calls = 1;
        uint32_t n_values = (uint32_t)(t->ne[0] * t->ne[2]);
        if (t->n_dims < 2 || !strcmp(t->name, without))
            continue;
        fwrite(&head, 4, 1, f);
        fputs(t->name, f);
        fwrite(&calls, 4, 1, f);
        fwrite(&n_values, 4, 1, f);
        for (uint32_t k = 0; k < n_values; k++) {
            float w = (float)exp(1.5 * rng_normal(&seed));
            fwrite(&w, 4, 1, f);
        }
        n++;
    }
    CHECK(!fseek(f, 0, SEEK_SET) && fwrite(&n, 4, 1, f) == 1 && !fclose(f));
}

/* Each matrix has the bytes that its own importance gives it, on any number of threads. */
TEST(quantize_with_importance)
{
    static const char *const types[] = {"iq1_s",   "iq1_m",  "iq2_xs", "iq2_m",
                                        "iq3_xxs", "iq3_xs", "tq1_0",  "nvfp4"};
    const char *from = test_temp("f.gguf"), *to = test_temp("q.gguf"), *im = test_temp("im.dat");
    const char *other = test_temp("r.gguf");
    const imatrix *m = NULL;
    err e = {0};
    write_small(from);
    AUTO(gguf_close) gguf a = opened(from);
    write_imatrix(&a, im, "");
    CHECK_OK(imatrix_open((imatrix **)&m, im, &e), e);
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        int n_weighed = 0;
        CHECK_EQ(quantise_with(from, to, types[i], im, "2"), 0);
        AUTO(gguf_close) gguf b = opened(to);
        gguf_string s;
        CHECK(gguf_get_string(&b, "quantize.imatrix.file", &s) && s.n == 6);
        for (uint64_t j = 0; j < a.tensors.n; j++) {
            const tensor *x = &a.tensors.at[j], *y = tensor_find(&b.tensors, x->name);
            const num_format *f = num_format_of(y->type);
            uint64_t row = y->n_bytes / (x->n_elements / x->ne[0]), n = x->ne[0];
            unsigned char *q = mem_calloc((size_t)row, 1);
            const float *w = NULL;
            if (f->weigh)
                CHECK_OK(imatrix_find(m, x->name, n, x->ne[2], &w, &e), e);
            for (uint64_t r = 0; w && y->type != NUM_NVFP4 && r < x->ne[1] * x->ne[2]; r++) {
                const float *v = (const float *)x->bytes + r * n;
                f->weigh(v, w + r / x->ne[1] * n, q, (int64_t)n);
                CHECK_MSG(!memcmp(q, y->bytes + r * row, row), "%s %s: row %llu", types[i], x->name,
                          (unsigned long long)r);
            }
            n_weighed += w != NULL;
            mem_free(q);
        }
        CHECK(n_weighed > 4);
    }
    CHECK_EQ(quantise_with(from, to, "iq2_s", im, "1"), 0);
    CHECK_EQ(quantise_with(from, other, "iq2_s", im, "5"), 0);
    char *x, *y;
    size_t n, k;
    CHECK_OK(file_read_all(to, 1 << 28, &x, &n, &e), e);
    CHECK_OK(file_read_all(other, 1 << 28, &y, &k, &e), e);
    CHECK(n == k && !memcmp(x, y, n));
    mem_free(x);
    mem_free(y);
    imatrix_close((imatrix *)m);
}

TEST(quantize_to_few_bits_wants_importance)
{
    static const char *const need[] = {"iq1_s", "iq1_m", "iq2_xxs", "iq2_xs",
                                       "iq2_s", "iq2_m", "iq3_xxs"};
    const char *from = test_temp("f.gguf"), *to = test_temp("q.gguf"), *im = test_temp("im.dat");
    int rc;
    write_small(from);
    AUTO(gguf_close) gguf a = opened(from);
    write_imatrix(&a, im, "blk.1.ffn_up.weight");
    for (size_t i = 0; i < sizeof need / sizeof *need; i++) {
        quantise(from, to, need[i], NULL, &rc);
        CHECK_EQ(rc, 2);
        CHECK_EQ(quantise_with(from, to, need[i], im, "1"), 2);
        CHECK_EQ(access(to, F_OK), -1);
    }
    quantise(from, to, "iq3_xs", NULL, &rc); /* its queries and keys are iq3_xxs */
    CHECK_EQ(rc, 2);
    CHECK_EQ(quantise_with(from, to, "q8_0", im, "1"), 2);    /* has no effect */
    CHECK_EQ(quantise_with(from, to, "iq3_s", from, "1"), 1); /* no importance file */
    CHECK_EQ(quantise_with(from, to, "iq3_s", "/nonexistent", "1"), 1);
    CHECK_EQ(access(to, F_OK), -1);
    quantise(from, to, "iq3_s", NULL, &rc); /* three bits do without */
    CHECK_EQ(rc, 0);
}

TEST(quantize_refuses_and_leaves_nothing_behind)
{
    const char *from = test_temp("f.gguf"), *q = test_temp("q.gguf"), *to = test_temp("no.gguf");
    int rc;
    synth("tiny-all", "f32", from);
    synth("tiny-all", "q8_0", q);
    quantise(from, to, "q4", NULL, &rc);
    CHECK_EQ(rc, 2);
    quantise("/nonexistent", to, "q4_0", NULL, &rc);
    CHECK_EQ(rc, 1);
    quantise(q, to, "q4_0", NULL, &rc); /* twice loses twice */
    CHECK_EQ(rc, 1);
    quantise(from, test_temp("no-folder/x.gguf"), "q4_0", NULL, &rc);
    CHECK_EQ(rc, 1);
    CHECK_EQ(access(to, F_OK), -1);
    quantise(q, to, "q4_0", "--again", &rc);
    CHECK_EQ(rc, 0);
    CHECK(!unlink(to));

    /* a value that no block can hold */
    gguf g = opened(from);
    const tensor *t = tensor_find(&g.tensors, "blk.1.ffn_up.weight");
    uint64_t at = t->offset + 4 * (t->n_elements - 1);
    gguf_close(&g);
    FILE *f = fopen(from, "r+");
    const float nan = NAN;
    CHECK(f && !fseek(f, (long)at, SEEK_SET) && fwrite(&nan, 4, 1, f) == 1 && !fclose(f));
    quantise(from, to, "q4_0", NULL, &rc);
    CHECK_EQ(rc, 1);
    CHECK_EQ(access(to, F_OK), -1);

    /* a disk that fills up */
    synth("tiny-all", "f32", from);
    signal(SIGXFSZ, SIG_IGN);
    CHECK(!setrlimit(RLIMIT_FSIZE, &(struct rlimit){1 << 16, 1 << 16}));
    quantise(from, to, "q8_0", NULL, &rc);
    CHECK_EQ(rc, 1);
    CHECK_EQ(access(to, F_OK), -1);
}

TEST(quantize_in_place_reads_the_old_file_to_the_end)
{
    const char *from = test_temp("f.gguf"), *to = test_temp("q.gguf");
    AUTO_MEM char *x, *y;
    size_t n, m;
    int rc;
    err e = {0};
    synth("tiny-all", "f32", from);
    quantise(from, to, "q4_k_m", NULL, &rc);
    CHECK_EQ(rc, 0);
    quantise(from, from, "q4_k_m", NULL, &rc);
    CHECK_EQ(rc, 0);
    CHECK_OK(file_read_all(from, 1 << 28, &x, &n, &e), e);
    CHECK_OK(file_read_all(to, 1 << 28, &y, &m, &e), e);
    CHECK(n == m && !memcmp(x, y, n));
}
