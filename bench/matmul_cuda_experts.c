/* matmul_cuda_experts.c - experts of prompts on a GPU: the kernels of GPUs of 9.0 and of all
 * others, beside each other. Up to 20 rows of an expert all GPUs have matmul_short_experts.cu.
 *
 *     bench_matmul_cuda experts [SUBSTRING of printed names]
 *
 * A line per product, format and number of rows: rows of an expert on average, microseconds
 * (medians by the host's clock) and TFLOP/s, of matmul_mma.cu and of matmul_tall_experts_hopper.cu,
 * and how much quicker the second is. Gated units are computed whole: products, activation, and the
 * copy as bf16. Each row chooses experts at random. "-": there is no such kernel.
 */
#include "bench/matmul_cuda.h"
#include "backend/cuda/cuda_int.h"
#include "backend/cuda/product/launch_tall.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/order.h"
#include "base/rng.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct shape {
    const char *name;
    int32_t n_in, n_ff, n_expert;
    bool halves; /* gate and up are one weight */
    num_type units[2], down[2];
} shape;
static const shape shapes[] = {
    {"26B-A4B", 2816, 704, 128, true, {NUM_Q4_K, NUM_Q8_0}, {NUM_Q8_0, NUM_Q5_0}},
    {"35B-A3B", 2048, 512, 256, false, {NUM_Q4_K, NUM_Q6_K}, {NUM_Q4_K, NUM_Q6_K}},
};
static const int32_t row_counts[] = {16, 64, 256, 512, 1024, 2048, 4096};
enum { N_ROWS = 7, ROWS_MOST = 4096, K = 8, REPS = 9 };

/* Buffers for the largest product. */
typedef struct rig {
    cuda_device *c;
    uint16_t *x, *copy;
    float *y, *parts;
    int32_t *id;
    expert_lists l;
    packed w, up;
    int32_t n_ff, rows;
    bool units, halves;
} rig;

/* False: there is no kernel. */
static bool by_new(const rig *g)
{
    const int32_t pairs = g->rows * K;
    const dev_quant x = {.bf = g->x, .rows = g->units ? g->rows : pairs, .cols = g->w.n_in};
    if (!g->units)
        return cu_expert_tall(g->c->stream, (dev_mat){g->y, pairs, g->w.n_out, g->w.n_out}, x, g->w,
                              g->l, 1);
    const expert_units u = {.y = {g->y, pairs, g->n_ff, g->n_ff},
                            .x = x,
                            .w = g->w,
                            .up = g->halves ? g->w : g->up,
                            .up_row = g->halves ? g->n_ff : 0,
                            .unit = {.step = g->w.n_out},
                            .copy = g->copy};
    return cu_expert_units(g->c->stream, u, g->l, K);
}

static void by_old(const rig *g)
{
    const int32_t pairs = g->rows * K;
    const dev_quant x = {.bf = g->x, .rows = g->units ? g->rows : pairs, .cols = g->w.n_in};
    dev_mat a = {g->units ? g->parts : g->y, pairs, g->w.n_out, g->w.n_out}, b = a;
    cu_expert_mma(g->c->stream, a, x, g->w, g->l, g->units ? K : 1);
    if (!g->units)
        return;
    b.at += g->halves ? (size_t)g->n_ff : (size_t)pairs * (size_t)g->n_ff;
    if (!g->halves)
        cu_expert_mma(g->c->stream, b, x, g->up, g->l, K);
    a.cols = b.cols = g->n_ff;
    cu_act_mul(g->c->stream, (dev_mat){g->y, pairs, g->n_ff, g->n_ff}, a, b, ACT_GELU_TANH, 1,
               (dev_quant){.bf = g->copy, .rows = pairs, .cols = g->n_ff, .tile = 1});
}

/* Microseconds with lists cut as that kernel wants them; 0: there is none. */
static double time_of(rig *g, device *d, bool old)
{
    const gpu_facts facts = g->c->facts;
    double us[REPS] = {0};
    g->c->facts.wgmma = facts.wgmma && !old;
    cuda_select(d);
    g->l.n_expert = g->w.n_mat;
    cu_expert_sort(g->c->stream, g->id, g->rows * K, (expert_range){0, g->w.n_mat}, g->l);
    for (int i = -2; i < REPS; i++) {
        cudaStreamSynchronize(g->c->stream);
        const double from = clock_ms();
        if (old)
            by_old(g);
        else if (!by_new(g))
            break;
        cudaStreamSynchronize(g->c->stream);
        if (i >= 0)
            us[i] = (clock_ms() - from) * 1e3;
    }
    g->c->facts = facts;
    cuda_select(d);
    qsort(us, REPS, sizeof *us, order_doubles);
    return us[REPS / 2];
}

/* One random row, repeated: its values do not affect times. */
static bool load(device *d, weight *w, num_type type, int32_t n_in, int32_t n_out, int32_t n_mat)
{
    uint64_t rng = 3, row = 0;
    err e = {0};
    *w = (weight){.name = "bench", .type = type, .n_in = n_in, .n_out = n_out, .n_mat = n_mat};
    if (!num_row_bytes(type, (uint64_t)n_in, &row))
        return false;
    w->row_bytes = row;
    w->mat_bytes = row * (size_t)n_out;
    w->n_bytes = w->mat_bytes * (size_t)n_mat;
    char *at = mem_alloc(w->n_bytes);
    float *x = mem_alloc((size_t)n_in * sizeof *x);
    for (int32_t i = 0; x && i < n_in; i++)
        x[i] = (float)rng_normal(&rng) * 0.02f;
    if (at && x)
        num_format_of(type)->encode(x, at, n_in);
    for (size_t r = row; at && r < w->n_bytes; r += row)
        memcpy(at + r, at, row);
    w->data = at;
    const bool ok = at && x && !d->weight_load(d, w, &e);
    w->data = NULL;
    mem_free(at);
    mem_free(x);
    return ok;
}

static void print_product(rig *g, device *d, const shape *s, num_type type, bool units)
{
    for (int i = 0; i < N_ROWS; i++) {
        g->rows = row_counts[i];
        const double n = (double)g->rows * K * (double)g->w.n_in * (double)g->w.n_out,
                     flops = 2e-6 * n * (units && !g->halves ? 2 : 1); /* TFLOP/s times us */
        const double old = time_of(g, d, true), now = time_of(g, d, false);
        printf("%-8s %-5s %-5s %5d %4d %8.0f %4.0f", s->name, units ? "units" : "down",
               num_name(type), g->rows, g->rows * K / s->n_expert, old, flops / old);
        if (now > 0)
            printf(" %8.0f %4.0f %5.2f\n", now, flops / now, old / now);
        else
            printf(" %8s %4s %5s\n", "-", "-", "-");
        fflush(stdout);
    }
}

int bench_experts(device *d, const char *only)
{
    const size_t pairs = (size_t)ROWS_MOST * K, n_x = (size_t)ROWS_MOST * 2816,
                 n_copy = pairs * 704, n_y = pairs * 2816, n_tiles = pairs / 32 + 256;
    rig g = {.c = d->self};
    uint64_t rng = 5;
    int32_t *id = mem_alloc(pairs * sizeof *id);
    g.x = d->alloc(d, (n_x > n_copy ? n_x : n_copy) * sizeof *g.x);
    g.copy = d->alloc(d, n_copy * sizeof *g.copy);
    g.y = d->alloc(d, n_y * sizeof *g.y);
    g.parts = d->alloc(d, 2 * n_copy * sizeof *g.parts);
    g.id = d->alloc(d, pairs * sizeof *g.id);
    g.l.order = d->alloc(d, pairs * sizeof *g.id);
    g.l.n_tiles = d->alloc(d, 256);
    g.l.tiles = d->alloc(d, n_tiles * EXPERT_TILE_BYTES);
    if (!id || !g.x || !g.copy || !g.y || !g.parts || !g.id || !g.l.order || !g.l.n_tiles ||
        !g.l.tiles)
        return 1;
    cu_random_bf16(g.c->stream, g.x, n_x > n_copy ? n_x : n_copy, 1);
    printf("%s\n%-8s %-5s %-5s %5s %4s %8s %4s %8s %4s %5s\n", d->name, "", "", "", "rows", "each",
           "old", "TF", "new", "TF", "gain");
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const shape *s = &shapes[i];
        for (size_t p = 0; p < pairs; p++)
            id[p] = (int32_t)(rng_next(&rng) % (uint64_t)s->n_expert);
        d->upload(d, g.id, id, pairs * sizeof *id);
        g.n_ff = s->n_ff;
        g.halves = s->halves;
        for (int f = 0; f < 4; f++) {
            const num_type type = f < 2 ? s->units[f] : s->down[f - 2];
            char name[64];
            weight w = {0}, up = {0};
            g.units = f < 2;
            snprintf(name, sizeof name, "%s %s %s", s->name, g.units ? "units" : "down",
                     num_name(type));
            if (!strstr(name, only))
                continue;
            const bool two = g.units && !s->halves;
            if (!load(d, &w, type, g.units ? s->n_in : s->n_ff,
                      !g.units    ? s->n_in
                      : s->halves ? 2 * s->n_ff
                                  : s->n_ff,
                      s->n_expert) ||
                (two && !load(d, &up, type, s->n_in, s->n_ff, s->n_expert)))
                return 1;
            g.w = cuda_view(&w);
            g.up = two ? cuda_view(&up) : g.w;
            print_product(&g, d, s, type, g.units);
            d->weight_free(d, &w);
            if (two)
                d->weight_free(d, &up);
        }
    }
    mem_free(id);
    d->release(d, g.x, (n_x > n_copy ? n_x : n_copy) * sizeof *g.x);
    d->release(d, g.copy, n_copy * sizeof *g.copy);
    d->release(d, g.y, n_y * sizeof *g.y);
    d->release(d, g.parts, 2 * n_copy * sizeof *g.parts);
    d->release(d, g.id, pairs * sizeof *g.id);
    d->release(d, g.l.order, pairs * sizeof *g.id);
    d->release(d, g.l.n_tiles, 256);
    d->release(d, g.l.tiles, n_tiles * EXPERT_TILE_BYTES);
    return 0;
}
