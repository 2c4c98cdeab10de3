/* cpu_test_int.h - what the tests and benches of the CPU device share: devices of every
 * instruction set this machine has, weights of any type, passes of any rows. */
#ifndef BACKEND_CPU_CPU_TEST_INT_H
#define BACKEND_CPU_CPU_TEST_INT_H

#include "backend/cpu/cpu_int.h"
#include "base/mem.h"
#include "base/rng.h"
#include "tests/test.h"

#include <sys/mman.h>
#include <unistd.h>

static const char *const every_isa[] = {"portable", "avx2", "avx512", "avx512bf16", "amx", "neon"};
enum { N_ISA = 6, TEST_THREADS = 2, ROWS_CAP = 1024 };
RELEASED_AT(device_close, device)

/* NULL where the machine lacks it. */
__attribute__((unused)) static device *test_device(const char *isa, cpu_options o)
{
    err e = {0};
    device *d;
    o.isa = isa;
    if (!o.n_threads)
        o.n_threads = TEST_THREADS;
    return device_open_cpu(&d, &o, &e) ? NULL : d;
}

enum { GUARDED = 256 };
static struct guarded {
    void *at, *pages;
    size_t n_bytes;
} test_guarded[GUARDED];

/* Memory of an operand. A page without access follows it: no sanitizer checks the kernels of
 * one instruction set. They check the portable ones, and the heap's ends. */
__attribute__((unused)) static void *test_alloc(size_t n)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), size = (n + page - 1) / page * page + page;
    int i = 0;
    if (SANITIZED)
        return mem_alloc(n);
    while (i < GUARDED && test_guarded[i].at)
        i++;
    char *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(i < GUARDED && at != MAP_FAILED && !mprotect(at + size - page, page, PROT_NONE));
    test_guarded[i] = (struct guarded){at + size - page - n, at, size};
    return test_guarded[i].at;
}

__attribute__((unused)) static void test_free(const void *at)
{
    for (int i = 0; i < GUARDED; i++)
        if (at && test_guarded[i].at == at) {
            CHECK(!munmap(test_guarded[i].pages, test_guarded[i].n_bytes));
            test_guarded[i].at = NULL;
            return;
        }
    mem_free((void *)at);
}

typedef struct test_pass {
    pass p;
    step st;
    kv_base kv[STEP_SEQS_MAX];
    int32_t token[ROWS_CAP], pos[ROWS_CAP], index[ROWS_CAP], first[ROWS_CAP], last[ROWS_CAP],
        newest[ROWS_CAP], seq[ROWS_CAP];
    uint64_t seen[ROWS_CAP];
    unsigned char *scratch;
    size_t scratch_bytes;
} test_pass;

__attribute__((unused)) static void test_pass_open(test_pass *t, size_t scratch_bytes)
{
    memset(t, 0, sizeof *t);
    t->scratch_bytes = scratch_bytes;
    t->scratch = mem_pages(scratch_bytes);
    CHECK(t->scratch);
    t->st.all = (rowset){.token = t->token, .pos = t->pos, .seq = t->seq};
    for (int k = 0; k < STORE_KINDS; k++)
        t->st.all.keys[k] = (row_keys){t->index, t->first, t->last, t->newest};
    t->st.n_seqs = 1;
    t->st.n_kv = 1;
    t->st.kv = t->kv;
}

__attribute__((unused)) static void test_pass_close(test_pass *t)
{
    mem_pages_free(t->scratch, t->scratch_bytes);
}

/* A pass of n rows; a chain that starts at index `first`. */
__attribute__((unused)) static pass *test_pass_begin(test_pass *t, device *d, int32_t n,
                                                     int32_t first)
{
    CHECK(n <= ROWS_CAP);
    t->st.all.n = n;
    t->st.all.seen = NULL;
    for (int32_t i = 0; i < n; i++) {
        t->pos[i] = t->index[i] = first + i;
        t->first[i] = first;
        t->last[i] = first + n - 1;
        t->newest[i] = first + i;
        t->seq[i] = 0;
    }
    pass_begin(&t->p, d, &t->st, t->scratch, t->scratch_bytes);
    return &t->p;
}

/* Nearly normal (the sum of four uniform numbers), and quick: millions are drawn. */
__attribute__((unused)) static void test_fill(float *v, size_t n, float spread, uint64_t *rng)
{
    for (size_t i = 0; i < n; i++) {
        uint64_t u = rng_next(rng);
        float sum = (float)(u & 0xffff) + (float)(u >> 16 & 0xffff) + (float)(u >> 32 & 0xffff) +
                    (float)(u >> 48);
        v[i] = (sum - 131070.0f) * (spread / 37837.0f);
    }
}

/* NaN everywhere: what an op leaves unwritten shows. */
__attribute__((unused)) static void test_poison(mat m)
{
    for (int32_t r = 0; r < m.rows; r++)
        for (int32_t i = 0; i < mat_width(m); i++)
            mat_row(m, r)[i] = NAN;
}

__attribute__((unused)) static mat test_mat(int32_t rows, int32_t heads, int32_t cols)
{
    mat m = mat_at(NULL, rows, heads, cols, (int64_t)heads * cols);
    m.at = test_alloc((size_t)rows * (size_t)m.stride * sizeof(float));
    CHECK(m.at);
    test_poison(m);
    return m;
}

/* Random rows in format t; a few rows are encoded and the rest repeat them with other blocks
 * first, since some encoders are slow. */
__attribute__((unused)) static void test_weight(weight *w, num_type t, int32_t n_in, int32_t n_out,
                                                int32_t n_mat, uint64_t *rng)
{
    uint64_t row_bytes;
    const num_format *f = num_format_of(t);
    CHECK(f && f->decode && num_row_bytes(t, (uint64_t)n_in, &row_bytes));
    *w = (weight){.name = "w", .type = t, .n_in = n_in, .n_out = n_out, .n_mat = n_mat};
    w->row_bytes = row_bytes;
    w->mat_bytes = w->row_bytes * (size_t)n_out;
    w->n_bytes = w->mat_bytes * (size_t)n_mat;
    unsigned char *data = test_alloc(w->n_bytes);
    float *v = mem_alloc((size_t)n_in * sizeof(float));
    CHECK(data && v);
    int64_t n_rows = (int64_t)n_out * n_mat, fresh = n_rows < 48 ? n_rows : 48;
    for (int64_t r = 0; r < n_rows; r++) {
        unsigned char *to = data + (size_t)r * w->row_bytes;
        if (r < fresh && !f->encode) {
            for (size_t i = 0; i < w->row_bytes; i++)
                to[i] = (unsigned char)rng_next(rng);
            for (size_t i = 0; i < w->row_bytes; i += (size_t)f->block_bytes)
                num_set_factor(t, to + i, 0.05f + 0.001f * (float)rng_below(rng, 16));
            continue;
        }
        if (r < fresh) {
            test_fill(v, (size_t)n_in, 0.05f, rng);
            f->encode(v, to, n_in);
            continue;
        }
        size_t blocks = w->row_bytes / (size_t)f->block_bytes;
        size_t turn = rng_below(rng, blocks) * (size_t)f->block_bytes;
        const unsigned char *from = data + rng_below(rng, (uint64_t)fresh) * w->row_bytes;
        memcpy(to, from + turn, w->row_bytes - turn);
        memcpy(to + w->row_bytes - turn, from, turn);
    }
    mem_free(v);
    w->data = data;
}

__attribute__((unused)) static void test_weight_free(weight *w)
{
    test_free(w->data);
}

__attribute__((unused)) static double test_nmse(mat got, mat want)
{
    double se = 0, ss = 0;
    for (int32_t r = 0; r < got.rows; r++)
        for (int32_t i = 0; i < mat_width(got); i++) {
            double a = mat_row(got, r)[i], b = mat_row(want, r)[i];
            CHECK_MSG(isfinite(a) == isfinite(b), "row %d, column %d: %g, expected %g", r, i, a, b);
            if (isfinite(b)) {
                se += (a - b) * (a - b);
                ss += b * b;
            }
        }
    return ss > 0 ? se / ss : se;
}

#endif
