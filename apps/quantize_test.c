/* quantize_test.c - files quantised here: the formats of the table, the encoders' own bytes, the
 * error that was said, and nothing left behind when it goes wrong. */
#include "tests/test.h"
#include "apps/commands.h"
#include "base/map.h"
#include "base/mem.h"
#include "format/gguf.h"
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
    float *x = mem_calloc(n, sizeof *x), *y = mem_calloc(n, sizeof *y);
    double square = 0, lost = 0;
    num_format_of(a->type)->decode(a->bytes, x, (int64_t)n);
    num_format_of(b->type)->decode(b->bytes, y, (int64_t)n);
    *worst = 0;
    for (size_t i = 0; i < n; i++) {
        square += (double)x[i] * x[i];
        lost += ((double)x[i] - y[i]) * ((double)x[i] - y[i]);
        *worst = fmaxf(*worst, fabsf(x[i] - y[i]));
    }
    mem_free(x);
    mem_free(y);
    return sqrt(lost / square);
}

PLAIN_TEST(quantize_gives_every_tensor_the_format_of_its_role)
{
    static const char *const sizes[] = {
        "tiny-all",         "tiny-ple",   "tiny-wide",   "dflash-tiny-laguna", "dflash-tiny-dspark",
        "mtp-tiny-ordered", "tiny-qwen3", "tiny-laguna", "tiny-qwen35",        "tiny-qwen35moe"};
    static const char *const types[] = {"q4_0", "q4_k_m", "q5_k_m", "q6_k", "q8_0", "q2_k"};
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
    char *x, *y;
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
    mem_free(x);
    mem_free(y);
}
