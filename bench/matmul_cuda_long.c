/* matmul_cuda_long.c - products of long prompts on a GPU, by each kernel that can make them.
 *
 *     bench_matmul_cuda long [SUBSTRING of printed names]
 *     bench_matmul_cuda tall [SUBSTRING]     the microseconds of matmul_tall_hopper.cu: by its own
 *                                            choice of a shape, then by each shape
 *
 * A line per shape, format and number of rows. Times are in microseconds, medians by the host's
 * clock, with unpacking where a kernel needs it; rates in TFLOP/s:
 *     tiles    matmul_mma.cu, which unpacks in every block; on GPUs of 9.0 matmul_tall_hopper.cu
 *     unpack   a weight to bf16 in scratch, piece by piece
 *     wide     matmul_wide.cu with that
 *     blas     cuBLASLt with that, where it serves this shape
 *     ratio    of the rates of wide and blas without unpacking
 *     int8     matmul_wide8.cu, with records made of the weights; bare: without that
 *     from     rows from which the device takes the way that is named: own, or the library
 */
#include "bench/matmul_cuda.h"
#include "backend/cuda/cuda_int.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/order.h"
#include "base/rng.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct shape {
    const char *model, *name;
    int32_t n_in, n_out;
} shape;
static const shape shapes[] = {
    {"31B", "q", 5376, 8192},       {"31B", "gate", 5376, 21504},    {"31B", "down", 21504, 5376},
    {"27B", "in", 5120, 10240},     {"27B", "gate", 5120, 17408},    {"27B", "down", 17408, 5120},
    {"26B-A4B", "q", 2816, 4096},   {"26B-A4B", "gate", 2816, 2112}, {"35B-A3B", "in", 2048, 8192},
    {"35B-A3B", "out", 4096, 2048},
};
static const num_type formats[] = {NUM_Q4_K, NUM_Q6_K, NUM_Q8_0};
static const int32_t row_counts[] = {96, 264, 512, 2048, 4096};
enum { N_ROWS = 5, ROWS_MOST = 4096, REPS = 9 };

typedef enum maker { TILES, UNPACK, WIDE, BLAS, INT8, MAKERS, TALL } maker;

/* Buffers for the largest product. */
typedef struct rig {
    cuda_device *c;
    uint16_t *x, *w;
    float *y;
    void *records;
    dev_quant q; /* its rows and columns follow the product */
} rig;

/* False: the library does not serve. unpack: of TALL, the shape. */
static bool make(const rig *g, const weight *w, int32_t rows, maker by, int32_t unpack)
{
    const cudaStream_t s = g->c->stream;
    const int32_t each = cuda_long_piece(w->n_in, w->n_out);
    packed v = cuda_view(w);
    dev_mat y = {g->y, rows, w->n_out, w->n_out};
    bool ok = true;
    if (by == TILES)
        cu_matmul_mma(s, y, (dev_quant){.bf = g->x, .rows = rows, .cols = w->n_in}, v);
    if (by == TALL)
        return cu_matmul_tall(s, y, (dev_quant){.bf = g->x, .rows = rows, .cols = w->n_in}, v,
                              unpack);
    for (int32_t first = 0; first < w->n_out && by != TILES; first += each) {
        const int32_t n = w->n_out - first < each ? w->n_out - first : each;
        const dev_mat part = {g->y + first, rows, n, w->n_out};
        if (unpack && by == INT8)
            cu_unpack8(s, v, first, n, g->records);
        else if (unpack)
            cu_unpack_bf16(s, v, first, n, g->w);
        if (by == INT8) {
            dev_quant q = g->q;
            q.rows = rows;
            q.cols = w->n_in;
            cu_matmul_wide8(s, part, q, &v, g->records);
        }
        if (by == WIDE)
            cu_matmul_wide(s, part, g->x, g->w, w->n_in, 0);
        if (by == BLAS)
            ok = cuda_blas_matmul(g->c, part, g->x, g->w, w) && ok;
    }
    return ok;
}

/* Microseconds; 0: the library does not serve. */
static double time_of(const rig *g, const weight *w, int32_t rows, maker by, int32_t unpack)
{
    double us[REPS];
    for (int i = -2; i < REPS; i++) {
        cudaStreamSynchronize(g->c->stream);
        double from = clock_ms();
        if (!make(g, w, rows, by, unpack))
            return 0;
        cudaStreamSynchronize(g->c->stream);
        if (i >= 0)
            us[i] = (clock_ms() - from) * 1e3;
    }
    qsort(us, REPS, sizeof *us, order_doubles);
    return us[REPS / 2];
}

static void print_lines(const rig *g, const char *name, const weight *w)
{
    const long_choice by = cuda_long_choice(g->c, w);
    for (int i = 0; i < N_ROWS; i++) {
        const int32_t rows = row_counts[i];
        const double flops = 2e-6 * rows * (double)w->n_in * w->n_out; /* TFLOP/s times us */
        double us[MAKERS], bare[MAKERS];
        for (int m = 0; m < MAKERS; m++) {
            us[m] = time_of(g, w, rows, (maker)m, true);
            bare[m] = m >= WIDE ? time_of(g, w, rows, (maker)m, false) : 0;
        }
        printf("%-24s %5d %8.0f %4.0f %7.0f %8.0f %4.0f %8.0f %4.0f %6.2f %8.0f %4.0f %4.0f", name,
               rows, us[TILES], flops / us[TILES], us[UNPACK], us[WIDE], flops / us[WIDE], us[BLAS],
               us[BLAS] > 0 ? flops / us[BLAS] : 0, us[BLAS] > 0 ? bare[BLAS] / bare[WIDE] : 0,
               us[INT8], flops / us[INT8], flops / bare[INT8]);
        if (by.rows == INT32_MAX)
            printf("  tiles\n");
        else
            printf("  %s from %d\n", by.way == LONG_OWN ? "own" : "blas", by.rows);
        fflush(stdout);
    }
}

/* One random row, repeated: its values do not affect times. */
static void *fill(weight *w)
{
    uint64_t rng = 3, row = 0;
    if (!num_row_bytes(w->type, (uint64_t)w->n_in, &row))
        return NULL;
    w->row_bytes = row;
    w->n_bytes = w->mat_bytes = row * (size_t)w->n_out;
    char *at = mem_alloc(w->n_bytes);
    float *x = mem_alloc((size_t)w->n_in * sizeof *x);
    for (int32_t i = 0; x && i < w->n_in; i++)
        x[i] = (float)rng_normal(&rng) * 0.02f;
    if (at && x)
        num_format_of(w->type)->encode(x, at, w->n_in);
    for (int32_t r = 1; at && r < w->n_out; r++)
        memcpy(at + (size_t)r * row, at, row);
    mem_free(x);
    return at;
}

/* The microseconds of each shape of matmul_tall_hopper.cu's blocks. */
static void print_shapes(const rig *g, const char *name, const weight *w)
{
    static const int32_t counts[] = {66, 96, 128, 192, 264, 384, 512, 1024};
    for (size_t i = 0; i < sizeof counts / sizeof *counts && g->c->facts.wgmma; i++) {
        printf("%-24s %5d ", name, counts[i]);
        for (int32_t k = -1; k < TALL_SHAPES; k++)
            printf(" %5.0f", time_of(g, w, counts[i], TALL, k));
        printf("\n");
    }
}

int bench_long(device *d, const char *only, bool by_shape)
{
    rig g = {.c = d->self};
    size_t n_x = 0, n_w = 0, n_y = 0;
    err e = {0};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const size_t in = (size_t)shapes[i].n_in, out = (size_t)shapes[i].n_out;
        n_x = in > n_x ? in : n_x;
        n_y = out > n_y ? out : n_y;
        n_w = in * out > n_w ? in * out : n_w;
    }
    n_x *= ROWS_MOST, n_y *= ROWS_MOST;
    g.x = d->alloc(d, n_x * 2);
    g.w = d->alloc(d, n_w * 2);
    g.y = d->alloc(d, n_y * 4);
    g.records = d->alloc(d, n_w * 2);
    g.q = (dev_quant){.q = d->alloc(d, n_x * 2), .tile = 8};
    if (!g.x || !g.w || !g.y || !g.records || !g.q.q)
        return 1;
    g.q.s = g.q.q + n_x;
    cu_random_bf16(g.c->stream, (uint16_t *)g.q.q, n_x, 5);
    cu_random_bf16(g.c->stream, g.x, n_x, 1);
    printf("%s\n%-24s %5s %8s %4s %7s %8s %4s %8s %4s %6s %8s %4s %4s\n", d->name, "product",
           "rows", "tiles", "TF", "unpack", "wide", "TF", "blas", "TF", "ratio", "int8", "TF",
           "bare");
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (size_t f = 0; f < sizeof formats / sizeof *formats; f++) {
            char name[64];
            weight w = {.name = "bench",
                        .type = formats[f],
                        .n_in = shapes[i].n_in,
                        .n_out = shapes[i].n_out,
                        .n_mat = 1};
            snprintf(name, sizeof name, "%s %s %s", shapes[i].model, shapes[i].name,
                     num_name(w.type));
            if (!strstr(name, only))
                continue;
            void *data = fill(&w);
            w.data = data;
            if (!data || d->weight_load(d, &w, &e)) {
                fprintf(stderr, "%s: %s\n", name, data ? e.text : "no memory, or no such format");
                return 1;
            }
            if (by_shape)
                print_shapes(&g, name, &w);
            else
                print_lines(&g, name, &w);
            d->weight_free(d, &w);
            mem_free(data);
        }
    d->release(d, g.x, n_x * 2);
    d->release(d, g.w, n_w * 2);
    d->release(d, g.records, n_w * 2);
    d->release(d, g.q.q, n_x * 2);
    d->release(d, g.y, n_y * 4);
    return 0;
}
