/* ops.c - times single ops of the CPU device: `make bench-ops`, then
 *
 *     build/bench_ops [-t THREADS] [-n REPEATS] [-i ISA[,ISA]] [SUBSTRING]
 *
 * Decode lines read a set of weights larger than the last cache, in turn, as a pass does. They are
 * compared with the memory bandwidth, which is measured first; prefill lines with the rate of their
 * multiply instruction. With two instruction sets the runs alternate and the last column is
 * old / new. Times are medians; `best` is the shortest time, the most reliable figure on a busy
 * machine.
 */
#include "backend/cpu/cpu_int.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/order.h"
#include "base/rng.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { REPEATS_MAX = 999, SETS_MAX = 64, SCRATCH = 256 << 20 };
static const size_t offload_bytes = (size_t)160 << 20;

typedef struct bench {
    device *d[2];
    int32_t n_dev, repeats;
    double gbs; /* measured ceiling */
    const char *filter;
    pass p;
    step st;
    int32_t *pos, *zero;
    kv_base kv;
    unsigned char *scratch;
} bench;

static void die(const char *what)
{
    fprintf(stderr, "bench_ops: %s\n", what);
    exit(1);
}

typedef struct timing {
    double median, best;
} timing;

static timing summary(double *ms, int32_t n)
{
    qsort(ms, (size_t)n, sizeof *ms, order_doubles);
    return (timing){ms[n / 2], ms[0]};
}

/* ---- Ceilings ---------------------------------------------------------------------------- */

typedef struct reading {
    const char *at;
    size_t n;
    uint64_t sum[64][8];
} reading;

enum { READ_CHUNK = 1 << 20 };

static void read_chunk(void *arg, int32_t chunk, int32_t thread)
{
    reading *r = arg;
    typedef uint64_t v8 __attribute__((vector_size(64)));
    const char *p = r->at + (size_t)chunk * READ_CHUNK;
    v8 s[4] = {{0}, {0}, {0}, {0}};
    for (size_t i = 0; i < READ_CHUNK; i += 256)
        for (int j = 0; j < 4; j++) {
            v8 v;
            memcpy(&v, p + i + 64 * j, 64);
            s[j] += v;
        }
    s[0] += s[1] + s[2] + s[3];
    for (int j = 0; j < 8; j++)
        r->sum[thread][j] += s[0][j];
}

static double measure_bandwidth(int32_t n_threads)
{
    static reading r;
    err e = {0};
    pool *threads;
    double best = 1e9;
    size_t n = (size_t)512 << 20;
    char *at = mem_pages(n);
    if (!at || pool_open(&threads, n_threads, &e))
        die("no memory");
    memset(at, 1, n);
    r.at = at;
    for (int i = 0; i < 7; i++) {
        double t0 = clock_ms();
        pool_run(threads, (int32_t)(n / READ_CHUNK), read_chunk, &r);
        double ms = clock_ms() - t0;
        best = ms < best ? ms : best;
    }
    pool_close(threads);
    mem_pages_free(at, n);
    return (double)n / best / 1e6;
}

/* ---- Products ---------------------------------------------------------------------------- */

static mat new_mat(int32_t rows, int32_t heads, int32_t cols)
{
    mat m = mat_at(NULL, rows, heads, cols, (int64_t)heads * cols);
    uint64_t rng = 7;
    m.at = mem_pages((size_t)rows * (size_t)m.stride * sizeof(float));
    if (!m.at)
        die("no memory");
    for (int64_t i = 0; i < rows * m.stride; i++)
        m.at[i] = (float)(rng_unit(&rng) - 0.5) * 4;
    return m;
}

static void free_mat(mat m)
{
    mem_pages_free(m.at, (size_t)m.rows * (size_t)m.stride * sizeof(float));
}

static void begin_rows(bench *b, device *d, int32_t rows, int32_t first)
{
    b->st.all.n = rows;
    for (int32_t i = 0; i < rows; i++)
        b->pos[i] = first + i;
    memset(b->zero, 0, (size_t)rows * sizeof *b->zero);
    for (int32_t i = 0; i < rows; i++)
        b->zero[rows + i] = first;
    b->st.all.pos = b->pos;
    b->st.all.seq = b->zero;
    for (int32_t i = 0; i < rows; i++)
        b->zero[2 * rows + i] = first + rows - 1;
    for (int k = 0; k < STORE_KINDS; k++)
        b->st.all.keys[k] = (row_keys){b->pos, b->zero + rows, b->zero + 2 * rows, b->pos};
    b->st.n_seqs = b->st.n_kv = 1;
    b->st.kv = &b->kv;
    pass_begin(&b->p, d, &b->st, b->scratch, SCRATCH);
}

static void print_line(const bench *b, const char *name, const timing *t, double bytes,
                       double flops)
{
    for (int i = 0; i < b->n_dev; i++) {
        printf("%-34s %-28s %9.1f us  best %9.1f", name, b->d[i]->name, t[i].median * 1e3,
               t[i].best * 1e3);
        if (bytes > 0)
            printf("  %6.1f GB/s  %3.0f %%", bytes / t[i].best / 1e6,
                   100 * bytes / t[i].best / 1e6 / b->gbs);
        if (flops > 0)
            printf("  %7.1f GFLOP/s", flops / t[i].best / 1e6);
        if (i)
            printf("  %5.2f", t[0].best / t[i].best);
        printf("\n");
    }
    fflush(stdout);
}

static void bench_product(bench *b, num_type type, int32_t n_in, int32_t n_out, int32_t rows,
                          bool glu)
{
    char name[96];
    snprintf(name, sizeof name, "%s %s %d x %d -> %d", glu ? "glu" : "matmul", num_name(type), rows,
             n_in, n_out);
    if (b->filter && !strstr(name, b->filter))
        return;
    uint64_t row_bytes, rng = 1;
    num_row_bytes(type, (uint64_t)n_in, &row_bytes);
    weight w = {.name = "w", .type = type, .n_in = n_in, .n_out = n_out, .n_mat = 1};
    w.row_bytes = row_bytes;
    w.mat_bytes = w.n_bytes = row_bytes * (size_t)n_out;
    int32_t n_sets = rows > 16 ? 1 : (int32_t)(offload_bytes / w.n_bytes) + 1;
    n_sets = n_sets > SETS_MAX ? SETS_MAX : n_sets;
    char *data = mem_pages(w.n_bytes);
    float *v = mem_alloc((size_t)n_in * sizeof(float));
    if (!data || !v)
        die("no memory");
    for (int32_t o = 0; o < n_out; o++)
        if (o < 16) {
            for (int32_t i = 0; i < n_in; i++)
                v[i] = (float)rng_unit(&rng) - 0.5f;
            num_format_of(type)->encode(v, data + (size_t)o * row_bytes, n_in);
        } else {
            memcpy(data + (size_t)o * row_bytes, data + (size_t)(o % 16) * row_bytes, row_bytes);
        }
    w.data = data;
    static weight set[2][SETS_MAX];
    err e = {0};
    for (int i = 0; i < b->n_dev; i++)
        for (int32_t s = 0; s < n_sets; s++) {
            set[i][s] = w;
            if (b->d[i]->weight_load(b->d[i], &set[i][s], &e))
                die(e.text);
        }
    mat x = new_mat(rows, 1, n_in), y = new_mat(rows, 1, glu ? n_out / 2 : n_out);
    static double ms[2][REPEATS_MAX];
    int32_t n = rows > 16 ? b->repeats / 4 + 3 : b->repeats;
    for (int32_t k = -2; k < n; k++)
        for (int i = 0; i < b->n_dev; i++) {
            begin_rows(b, b->d[i], rows, 0);
            const weight *at = &set[i][(k + 2) % n_sets];
            double t0 = clock_ms();
            if (glu)
                b->d[i]->op->glu(&b->p, &y, x, at, NULL, ACT_GELU_TANH);
            else
                b->d[i]->op->matmul(&b->p, y, &x, at);
            if (k >= 0)
                ms[i][k] = clock_ms() - t0;
            if (b->p.e.status)
                die(b->p.e.text);
        }
    timing t[2];
    for (int i = 0; i < b->n_dev; i++)
        t[i] = summary(ms[i], n);
    print_line(b, name, t, rows > 16 ? 0 : (double)w.n_bytes,
               rows > 1 ? 2.0 * rows * n_in * n_out : 0);
    for (int i = 0; i < b->n_dev; i++)
        for (int32_t s = 0; s < n_sets; s++)
            b->d[i]->weight_free(b->d[i], &set[i][s]);
    free_mat(x);
    free_mat(y);
    mem_free(v);
    mem_pages_free(data, w.n_bytes);
}

/* ---- Attention and small ops ------------------------------------------------------------- */

static void bench_attention(bench *b, int32_t rows, int32_t past, int32_t dim, int32_t heads,
                            int32_t heads_kv, int32_t window)
{
    char name[96];
    snprintf(name, sizeof name, "attend %d rows at %d, %d/%d x %d%s", rows, past, heads, heads_kv,
             dim, window ? " swa" : "");
    if (b->filter && !strstr(name, b->filter))
        return;
    int32_t slots = past + rows;
    kv_view kv = {.k_type = NUM_F16,
                  .v_type = NUM_F16,
                  .n_head_kv = heads_kv,
                  .head_dim = dim,
                  .window = window,
                  .n_slots = slots,
                  .k_row_bytes = (size_t)dim * 2,
                  .v_row_bytes = (size_t)dim * 2};
    size_t n = (size_t)slots * (size_t)heads_kv * (size_t)dim;
    uint64_t rng = 3;
    /* a layer's keys are out of the caches in a pass: all weights were read since */
    int32_t n_sets = rows > 16 ? 1 : (int32_t)(offload_bytes / (n * 4)) + 1;
    n_sets = n_sets > SETS_MAX ? SETS_MAX : n_sets;
    size_t n_bytes = n * 2 * (size_t)n_sets;
    uint16_t *k = mem_pages(n_bytes), *v = mem_pages(n_bytes);
    if (!k || !v)
        die("no memory");
    for (size_t i = 0; i < n; i++) {
        k[i] = num_f32_to_f16((float)rng_unit(&rng) * 0.1f - 0.05f);
        v[i] = num_f32_to_f16((float)rng_unit(&rng) - 0.5f);
    }
    for (int32_t i = 1; i < n_sets; i++) {
        memcpy(k + (size_t)i * n, k, n * 2);
        memcpy(v + (size_t)i * n, v, n * 2);
    }
    mat q = new_mat(rows, heads, dim), o = new_mat(rows, heads, dim);
    static double ms[2][REPEATS_MAX];
    int32_t reps = rows > 16 ? b->repeats / 4 + 3 : b->repeats;
    for (int32_t r = -1; r < reps; r++)
        for (int i = 0; i < b->n_dev; i++) {
            size_t set = (size_t)((r + 1) % n_sets) * n;
            b->kv = (kv_base){k + set, v + set, NULL};
            begin_rows(b, b->d[i], rows, past);
            double t0 = clock_ms();
            b->d[i]->op->attend(&b->p, &o, q, &kv, 1.0f);
            if (r >= 0)
                ms[i][r] = clock_ms() - t0;
            if (b->p.e.status)
                die(b->p.e.text);
        }
    double keys = 0;
    for (int32_t r = 0; r < rows; r++)
        keys += window && past + r + 1 > window ? window : past + r + 1;
    timing t[2];
    for (int i = 0; i < b->n_dev; i++)
        t[i] = summary(ms[i], reps);
    print_line(b, name, t, rows == 1 ? keys * heads_kv * dim * 4 : 0, 4.0 * keys * heads * dim);
    free_mat(q);
    free_mat(o);
    mem_pages_free(k, n_bytes);
    mem_pages_free(v, n_bytes);
}

static void bench_small(bench *b, const char *name, int32_t rows, int32_t cols)
{
    char line[96];
    snprintf(line, sizeof line, "%s %d x %d", name, rows, cols);
    if (b->filter && !strstr(line, b->filter))
        return;
    mat x = new_mat(rows, 1, cols), y = new_mat(rows, 1, cols);
    float *inv = mem_calloc((size_t)cols, sizeof(float));
    for (int32_t i = 0; i < cols; i++)
        inv[i] = 1.0f / (1 + (float)i);
    weight w = {.name = "w", .type = NUM_F32, .n_in = cols, .n_out = 1, .n_mat = 1, .data = inv};
    rope f = {.n_pairs = 128, .inv_freq = inv};
    static double ms[2][REPEATS_MAX];
    for (int32_t r = -1; r < b->repeats; r++)
        for (int i = 0; i < b->n_dev; i++) {
            device *d = b->d[i];
            begin_rows(b, d, rows, 4000);
            double t0 = clock_ms();
            if (!strcmp(name, "rms_norm"))
                d->op->rms_norm(&b->p, &y, x, &w, 1e-6f);
            else if (!strcmp(name, "add_rms_norm"))
                d->op->add_rms_norm(&b->p, y, x, &w, 1e-6f);
            else if (!strcmp(name, "softcap"))
                d->op->softcap(&b->p, x, 30.0f, NULL, 0);
            else if (!strcmp(name, "best"))
                d->op->best(&b->p, mat_at(y.at, rows, 2, 4, cols), x);
            else if (!strcmp(name, "act_mul"))
                d->op->act_mul(&b->p, &y, x, x, ACT_GELU_TANH);
            else
                d->op->rope(&b->p, mat_heads(x, 256), &f);
            if (r >= 0)
                ms[i][r] = clock_ms() - t0;
        }
    timing t[2];
    for (int i = 0; i < b->n_dev; i++)
        t[i] = summary(ms[i], b->repeats);
    print_line(b, line, t, 0, 0);
    mem_free(inv);
    free_mat(x);
    free_mat(y);
}

static void nothing(void *arg, int32_t chunk, int32_t thread)
{
    (void)arg;
    (void)chunk;
    (void)thread;
}

static void bench_pool(bench *b, int32_t n_threads)
{
    static double ms[REPEATS_MAX];
    if (b->filter && !strstr("pool_run", b->filter))
        return;
    pool *threads = ((cpu_device *)b->d[0]->self)->pool;
    for (int32_t r = 0; r < b->repeats; r++) {
        double t0 = clock_ms();
        for (int i = 0; i < 100; i++)
            pool_run(threads, 4 * n_threads, nothing, NULL);
        ms[r] = (clock_ms() - t0) / 100;
    }
    timing t = summary(ms, b->repeats);
    printf("%-34s %.2f us, best %.2f\n", "pool_run of empty chunks", t.median * 1e3, t.best * 1e3);
}

int main(int argc, char **argv)
{
    static bench b = {.repeats = 25};
    int32_t n_threads = pool_default_threads();
    char *isa[2] = {NULL, NULL};
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "-t") && i + 1 < argc)
            n_threads = atoi(argv[++i]);
        else if (!strcmp(argv[i], "-n") && i + 1 < argc)
            b.repeats = atoi(argv[++i]);
        else if (!strcmp(argv[i], "-i") && i + 1 < argc) {
            isa[0] = argv[++i];
            isa[1] = strchr(isa[0], ',');
            if (isa[1])
                *isa[1]++ = 0;
        } else
            b.filter = argv[i];
    }
    if (b.repeats < 1 || b.repeats > REPEATS_MAX || n_threads < 1 || n_threads > 64)
        die("repeats or threads out of range");
    err e = {0};
    b.n_dev = isa[1] ? 2 : 1;
    for (int i = 0; i < b.n_dev; i++)
        if (device_open_cpu(&b.d[i], &(cpu_options){.n_threads = n_threads, .isa = isa[i]}, &e))
            die(e.text);
    b.scratch = mem_pages(SCRATCH);
    b.pos = mem_calloc(8192, sizeof *b.pos);
    b.zero = mem_calloc((size_t)3 * 8192, sizeof *b.zero);
    if (!b.scratch || !b.pos || !b.zero)
        die("no memory");
    b.gbs = measure_bandwidth(n_threads);
    printf("memory: %.1f GB/s with %d threads\n", b.gbs, n_threads);

    bench_pool(&b, n_threads);
    static const num_type types[] = {NUM_Q4_K, NUM_Q6_K, NUM_Q8_0, NUM_Q4_0, NUM_Q5_K,
                                     NUM_BF16, NUM_F16,  NUM_F32,  NUM_Q5_0, NUM_IQ4_XS,
                                     NUM_Q3_K, NUM_Q2_K, NUM_MXFP4};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        for (int32_t rows = 1; rows <= 512; rows *= rows < 4 ? 2 : rows < 64 ? 4 : 8)
            bench_product(&b, types[i], 1536, 6144, rows, false);
    bench_product(&b, NUM_Q4_K, 1536, 2048, 1, false);
    bench_product(&b, NUM_Q4_K, 12288, 1536, 1, false);
    bench_product(&b, NUM_Q4_K, 12288, 1536, 512, false);
    bench_product(&b, NUM_Q4_K, 1536, 24576, 1, true);
    bench_product(&b, NUM_Q4_K, 1536, 24576, 512, true);
    bench_product(&b, NUM_Q6_K, 1536, 262144, 1, false);
    bench_attention(&b, 1, 511, 256, 8, 1, 512);
    bench_attention(&b, 1, 2047, 512, 8, 1, 0);
    bench_attention(&b, 1, 8191, 512, 8, 1, 0);
    bench_attention(&b, 1, 8191, 512, 32, 4, 0);
    bench_attention(&b, 512, 0, 256, 8, 1, 512);
    bench_attention(&b, 512, 3584, 256, 8, 1, 512);
    bench_attention(&b, 512, 0, 512, 8, 1, 0);
    bench_attention(&b, 512, 3584, 512, 8, 1, 0);
    bench_small(&b, "rms_norm", 1, 1536);
    bench_small(&b, "rms_norm", 512, 1536);
    bench_small(&b, "add_rms_norm", 512, 1536);
    bench_small(&b, "act_mul", 512, 6144);
    bench_small(&b, "rope", 1, 2048);
    bench_small(&b, "rope", 512, 2048);
    bench_small(&b, "softcap", 1, 262144);
    bench_small(&b, "best", 1, 262144);
    bench_small(&b, "best", 8, 262144);
    for (int i = 0; i < b.n_dev; i++)
        device_close(b.d[i]);
    return 0;
}
