/* imatrix_test.c - importance files in both forms, and damaged ones. */
#include "format/imatrix.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/str.h"
#include "format/gguf.h"
#include "num/num.h"
#include "tests/test.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char *write_bytes(const void *bytes, size_t n)
{
    static const char *path;
    path = path ? path : test_temp("importance");
    FILE *f = fopen(path, "w");
    CHECK(f && fwrite(bytes, 1, n, f) == n && !fclose(f));
    return path;
}

/* Sums of two matrices of four inputs, of 10 and 0 tokens; and a plain one. */
static const char *write_gguf(float first, uint64_t n_counts)
{
    const char *path = test_temp("imatrix.gguf");
    const float sums[8] = {first, 20, 30, 40}, counts[8] = {10}, one[4] = {1, 1, 1, 5};
    gguf_writer *w;
    err e = {0};
    CHECK_OK(gguf_create(&w, path, &e), e);
    gguf_put_string(w, "general.type", "imatrix", 7);
    gguf_put_tensor(w, "blk.0.ffn_down_exps.weight.in_sum2", NUM_F32, 2, (uint64_t[]){4, 2});
    gguf_put_tensor(w, "blk.0.ffn_down_exps.weight.counts", NUM_F32, 2, (uint64_t[]){1, n_counts});
    gguf_put_tensor(w, "blk.0.attn_q.weight.in_sum2", NUM_F32, 2, (uint64_t[]){4, 1});
    gguf_put_tensor(w, "blk.0.attn_q.weight.counts", NUM_F32, 2, (uint64_t[]){1, 1});
    CHECK_OK(gguf_write_header(w, &e), e);
    CHECK_OK(gguf_write_data(w, sums, sizeof sums, &e), e);
    CHECK_OK(gguf_write_data(w, counts, n_counts * 4, &e), e);
    CHECK_OK(gguf_write_data(w, one, sizeof one, &e), e);
    CHECK_OK(gguf_write_data(w, counts, 4, &e), e);
    CHECK_OK(gguf_commit(w, &e), e);
    return path;
}

static void put_u32(str *s, uint32_t v)
{
    str_put(s, (const char *)&v, 4);
}

static void put_record(str *s, const char *name, const float *values, uint32_t n)
{
    put_u32(s, (uint32_t)strlen(name));
    str_puts(s, name);
    put_u32(s, 3);
    put_u32(s, n);
    str_put(s, (const char *)values, 4 * n);
}

static str records(void)
{
    str s = {0};
    put_u32(&s, 2);
    put_record(&s, "blk.0.ffn_down_exps.weight", (float[]){10, 20, 30, 40, 1, 1, 1, 1}, 8);
    put_record(&s, "blk.0.attn_q.weight", (float[]){1, 1, 1, 5}, 4);
    put_u32(&s, 3); /* chunks, and the name of the text */
    put_u32(&s, 4);
    str_puts(&s, "text");
    return s;
}

static void check_ratios(const char *path)
{
    static const float want[] = {1, 2, 3, 4};
    imatrix *m;
    const float *w;
    err e = {0};
    CHECK_OK(imatrix_open(&m, path, &e), e);
    CHECK_OK(imatrix_find(m, "blk.0.ffn_down_exps.weight", 4, 2, &w, &e), e);
    CHECK(w);
    for (int i = 1; i < 4; i++) {
        CHECK_NEAR(w[i] / w[0], want[i], 1e-3);
        CHECK_NEAR(w[4 + i], w[4], 0); /* an expert without tokens: all inputs are equal */
    }
    CHECK(w[4] > 0);
    CHECK_OK(imatrix_find(m, "blk.0.attn_q.weight", 4, 1, &w, &e), e);
    CHECK_NEAR(w[3], 2.5, 1e-3);
    CHECK_OK(imatrix_find(m, "blk.0.attn_k.weight", 4, 1, &w, &e), e);
    CHECK(!w);
    CHECK_EQ(imatrix_find(m, "blk.0.attn_q.weight", 8, 1, &w, &e), E_FORMAT);
    CHECK(!w);
    imatrix_close(m);
}

TEST(importance_files_of_both_forms_are_read)
{
    AUTO(str_free) str s = records();
    check_ratios(write_gguf(10, 2));
    check_ratios(write_bytes(s.at, s.n));
    check_ratios(write_bytes(s.at, s.n - 12)); /* the oldest end there */
}

static void refused(const char *path, const char *says)
{
    imatrix *m = (imatrix *)path;
    err e = {0};
    CHECK_EQ(imatrix_open(&m, path, &e), E_FORMAT);
    CHECK(!m && e.text[0]);
    CHECK_MSG(strstr(e.text, says), "%s", e.text);
}

TEST(importance_of_a_name_twice_or_of_no_inputs_is_refused)
{
    AUTO(str_free) str s = {0};
    put_u32(&s, 2);
    put_record(&s, "a.weight", (float[]){1, 2}, 2);
    put_record(&s, "a.weight", (float[]){1, 2}, 2);
    refused(write_bytes(s.at, s.n), "importance of a.weight occurs twice");
    str_cut(&s, 0);
    put_u32(&s, 1);
    put_record(&s, "a.weight", (float[]){0}, 0);
    refused(write_bytes(s.at, s.n), "record 1 of 1 is no importance of a tensor");
}

TEST(importance_files_that_are_none_are_refused)
{
    AUTO(str_free) str s = records();
    uint64_t seed = test_seed();
    gguf_writer *w;
    err e = {0};
    refused(write_gguf(NAN, 2), "negative or not finite");
    refused(write_gguf(-1, 2), "negative or not finite");
    refused(write_gguf(INFINITY, 2), "negative or not finite");
    refused(write_gguf(10, 1), "as many counts as matrices");
    refused(write_bytes("GG", 2), "is no importance file");
    refused(write_bytes("GGUF", 4), "");
    for (size_t n = 0; n < s.n - 12; n++) /* cut anywhere */
        refused(write_bytes(s.at, n), n ? "no importance" : "empty");
    for (int i = 0; i < 300; i++) { /* other bytes: refused or read, and nothing worse */
        str t = {0};
        imatrix *m;
        str_put(&t, s.at, s.n);
        t.at[rng_below(&seed, t.n)] = (char)rng_next(&seed);
        if (!imatrix_open(&m, write_bytes(t.at, t.n), &e))
            imatrix_close(m);
        str_free(&t);
    }
    CHECK_OK(gguf_create(&w, test_temp("model.gguf"), &e), e); /* a file without importance */
    gguf_put_tensor(w, "x", NUM_F32, 1, (uint64_t[]){1});
    CHECK_OK(gguf_write_header(w, &e), e);
    CHECK_OK(gguf_write_data(w, &(float){1}, 4, &e), e);
    CHECK_OK(gguf_commit(w, &e), e);
    refused(test_temp("model.gguf"), "no tensor NAME.in_sum2");
}

/* Another shape of as many values is another tensor's. */
TEST(importance_of_another_shape_is_refused)
{
    static const uint64_t other[][2] = {{2, 4}, {8, 1}, {1, 8},
                                        {4, 1}, {4, 4}, {UINT64_MAX / 2, 4}};
    AUTO(str_free) str s = records();
    imatrix *m;
    const float *w;
    err e = {0};
    CHECK_OK(imatrix_open(&m, write_gguf(10, 2), &e), e);
    for (size_t i = 0; i < sizeof other / sizeof *other; i++) {
        CHECK_EQ(imatrix_find(m, "blk.0.ffn_down_exps.weight", other[i][0], other[i][1], &w, &e),
                 E_FORMAT);
        CHECK_MSG(!w && strstr(e.text, "4 inputs of 2 matrices, the tensor has"), "%s", e.text);
        err_clear(&e);
    }
    imatrix_close(m);
    CHECK_OK(imatrix_open(&m, write_bytes(s.at, s.n), &e), e); /* says how many values alone */
    CHECK_OK(imatrix_find(m, "blk.0.ffn_down_exps.weight", 2, 4, &w, &e), e);
    CHECK(w);
    CHECK_EQ(imatrix_find(m, "blk.0.ffn_down_exps.weight", 4, 1, &w, &e), E_FORMAT);
    imatrix_close(m);
}

TEST(importance_files_that_are_written_are_read)
{
    enum { N = 3000 };
    const char *path = test_temp("written.gguf");
    double *sums = mem_calloc(N * 2, sizeof *sums);
    for (int i = 0; i < 2 * N; i++)
        sums[i] = i < N ? 1 + i % 7 : 5 * (1 + i % 5);
    imatrix_sums x[] = {{"blk.0.ffn_up_exps.weight", N, 2, sums, (int64_t[]){10, 3}},
                        {"blk.0.attn_q.weight", 4, 1, (double[]){1, 1, 1, 5}, (int64_t[]){13}}};
    const imatrix_source from = {"text.txt", 7, 512};
    imatrix *m;
    const float *w;
    err e = {0};
    CHECK_OK(imatrix_write(path, x, 2, &from, &e), e);
    CHECK_OK(imatrix_open(&m, path, &e), e);
    CHECK_OK(imatrix_find(m, "blk.0.ffn_up_exps.weight", N, 2, &w, &e), e);
    for (int i = 0; i < 2 * N; i++) {
        int first = i < N ? 0 : N;
        CHECK_NEAR((double)w[i] / w[first], sums[i] / sums[first], 1e-2);
    }
    CHECK_OK(imatrix_find(m, "blk.0.attn_q.weight", 4, 1, &w, &e), e);
    CHECK_NEAR(w[3], 2.5, 1e-3);
    imatrix_close(m);
    sums[N + 5] = 1e39; /* beyond f32 */
    CHECK_EQ(imatrix_write(test_temp("none.gguf"), x, 2, &from, &e), E_NUMERIC);
    CHECK_MSG(strstr(e.text, "blk.0.ffn_up_exps.weight"), "%s", e.text);
    CHECK(access(test_temp("none.gguf"), F_OK));
    mem_free(sums);
}
