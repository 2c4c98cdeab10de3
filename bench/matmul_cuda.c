/* matmul_cuda.c - products of 1 to 64 rows on a GPU, at the published models' shapes: time, read
 * bandwidth, and the cost of more rows.
 *
 *     bench_matmul_cuda [--cuts [--piece N]] [--mix] [--rows N]... [--read GB/S] [--small]
 *                       [SUBSTRING of printed names]
 *     bench_matmul_cuda long [SUBSTRING]     (matmul_cuda_long.c)
 *     bench_matmul_cuda experts [SUBSTRING]  (matmul_cuda_experts.c)
 *
 * A line per product and row count:
 *     us       the time with the device's own cut, as in decoding
 *     floor    the share of it that reading the weights at --read takes (4660 GB/s: a large read on
 *              one H200)
 *     1 row    the time over that of one row
 *     cut      rows of a block: tiles of a warp x warps of a block / parts abreast; the steps of a
 * stage of activations, or w for whole rows; s where other blocks have the other parts 8s, 16s, 32s
 * the time in pieces of so many rows, each by its own best cut 1, 2, 3 tiles, gain    the best cut
 * with so many tiles to a warp; how much quicker the device's own cut is than that with one many
 * the time by the kernels of prompts: not recorded, and with other bits; then which passes of
 * prompts multiply by cuBLASLt: a all, l long ones, o and - none At the end, per model and row
 * count, the sum over a pass of the Q4_K_M mix, as far as its products were measured. --mix: only
 * what is in that mix. --cuts times every cut as well, with
 * --piece those in pieces of N rows; all cuts must give the same bits. --rows: only 1 and
 * those row counts. --small: small shapes for the emulated build, whose times mean nothing.
 *
 * There are enough weights of each shape that no cache keeps one until its next turn. A pass over
 * all of them is recorded and replayed, as in decoding. A time is the median of the replays, by the
 * host's clock.
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

enum { REPS = 7, TIMES = 4, WEIGHTS_MAX = 256, PARTS = 3, COUNTS = 8, ROWS = FEW_ROWS, TYPES = 15 };
enum { WARPS_MOST = 24, TILES_MOST = 3 }; /* of a block, of a warp */
enum { X_MOST = 21504 };                  /* values of a row, at most */
enum { WEIGHT_BYTES = 160 << 20 };        /* of a shape, at least: what no cache holds */

static const int32_t counts[COUNTS] = {1, 2, 4, 8, 16, 32, 48, 64};
static const num_type types[TYPES] = {NUM_Q4_K,   NUM_Q6_K,    NUM_Q8_0,  NUM_Q4_0,  NUM_BF16,
                                      NUM_F32,    NUM_IQ4_XS,  NUM_NVFP4, NUM_IQ3_S, NUM_IQ3_XXS,
                                      NUM_IQ2_XS, NUM_IQ2_XXS, NUM_IQ1_M, NUM_Q2_0,  NUM_Q1_0};

/* The products of one activation. */
typedef enum kind {
    PLAIN,   /* up to three products: queries, keys, values */
    GATED,   /* gelu(W x) * (W' x) */
    EXPERTS, /* of n_expert, k to a row: gated, W and W' in one, and the product after it */
    ROUTER
} kind;

enum { /* bits: types */
       T_K = 3,
       T_ALL = 31,
       T_SHORT = 28,
       T_HEAD = 10,
       T_BF16 = 16,
       T_F32 = 32,
       T_LEVELS = 0x7fc0, /* nibbles with levels, lattices, codes of few bits */
       T_EACH = T_ALL | T_LEVELS
};

typedef struct product {
    const char *model, *name;
    kind kind;
    int32_t n_in, n_out[PARTS];
    int32_t types;       /* bit i: types[i] */
    int32_t in_pass[2];  /* how often a pass of the Q4_K_M mix has it in Q4_K, in Q6_K */
    int32_t n_expert, k; /* EXPERTS, ROUTER */
} product;

static const product products[] = {
    {"31B", "q k v", PLAIN, 5376, {8192, 4096, 4096}, T_EACH, {50, 0}, 0, 0},
    {"31B", "q k, global", PLAIN, 5376, {16384, 2048}, T_K, {10, 0}, 0, 0},
    {"31B", "o", PLAIN, 8192, {5376}, T_EACH, {50, 0}, 0, 0},
    {"31B", "o, global", PLAIN, 16384, {5376}, T_K, {10, 0}, 0, 0},
    {"31B", "gate up", GATED, 5376, {21504}, T_EACH, {60, 0}, 0, 0},
    {"31B", "down", PLAIN, 21504, {5376}, T_EACH, {30, 30}, 0, 0},
    {"31B", "head", PLAIN, 5376, {262144}, T_HEAD, {0, 1}, 0, 0},
    {"26B-A4B", "q k v", PLAIN, 2816, {4096, 2048, 2048}, T_ALL, {25, 0}, 0, 0},
    {"26B-A4B", "q k, global", PLAIN, 2816, {8192, 1024}, T_K, {5, 0}, 0, 0},
    {"26B-A4B", "o", PLAIN, 4096, {2816}, T_ALL, {25, 0}, 0, 0},
    {"26B-A4B", "o, global", PLAIN, 8192, {2816}, T_K, {5, 0}, 0, 0},
    {"26B-A4B", "gate up", GATED, 2816, {2112}, T_ALL, {30, 0}, 0, 0},
    {"26B-A4B", "down", PLAIN, 2112, {2816}, T_SHORT, {30, 0}, 0, 0},
    {"26B-A4B", "router", ROUTER, 2816, {128}, T_F32, {30, 0}, 128, 8},
    {"26B-A4B", "experts", EXPERTS, 2816, {704}, T_K | T_SHORT, {30, 0}, 128, 8},
    {"26B-A4B", "head", PLAIN, 2816, {262144}, T_HEAD, {0, 1}, 0, 0},
    {"E4B", "q k v", PLAIN, 2560, {2048, 512, 512}, T_ALL, {20, 0}, 0, 0},
    {"E4B", "q", PLAIN, 2560, {2048}, T_K, {15, 0}, 0, 0},
    {"E4B", "q k v, global", PLAIN, 2560, {4096, 1024, 1024}, T_K, {4, 0}, 0, 0},
    {"E4B", "q, global", PLAIN, 2560, {4096}, T_K, {3, 0}, 0, 0},
    {"E4B", "o", PLAIN, 2048, {2560}, T_ALL, {35, 0}, 0, 0},
    {"E4B", "o, global", PLAIN, 4096, {2560}, T_K, {7, 0}, 0, 0},
    {"E4B", "gate up", GATED, 2560, {10240}, T_ALL, {42, 0}, 0, 0},
    {"E4B", "down", PLAIN, 10240, {2560}, T_ALL, {21, 21}, 0, 0},
    {"E4B", "per-layer gate", PLAIN, 2560, {256}, T_K, {42, 0}, 0, 0},
    {"E4B", "per-layer out", PLAIN, 256, {2560}, T_K, {42, 0}, 0, 0},
    {"E4B", "per-layer table", PLAIN, 2560, {10752}, T_BF16, {1, 0}, 0, 0},
    {"E4B", "head", PLAIN, 2560, {262144}, T_HEAD, {0, 1}, 0, 0},
    {"E2B", "q k v", PLAIN, 1536, {2048, 256, 256}, T_ALL, {12, 0}, 0, 0},
    {"E2B", "q", PLAIN, 1536, {2048}, T_K, {16, 0}, 0, 0},
    {"E2B", "q k v, global", PLAIN, 1536, {4096, 512, 512}, T_K, {3, 0}, 0, 0},
    {"E2B", "q, global", PLAIN, 1536, {4096}, T_K, {4, 0}, 0, 0},
    {"E2B", "o", PLAIN, 2048, {1536}, T_ALL, {28, 0}, 0, 0},
    {"E2B", "o, global", PLAIN, 4096, {1536}, T_K, {7, 0}, 0, 0},
    {"E2B", "gate up", GATED, 1536, {6144}, T_ALL, {15, 0}, 0, 0},
    {"E2B", "gate up, wide", GATED, 1536, {12288}, T_K, {20, 0}, 0, 0},
    {"E2B", "down", PLAIN, 6144, {1536}, T_ALL, {8, 7}, 0, 0},
    {"E2B", "down, wide", PLAIN, 12288, {1536}, T_K, {10, 10}, 0, 0},
    {"E2B", "per-layer gate", PLAIN, 1536, {256}, T_K, {35, 0}, 0, 0},
    {"E2B", "per-layer out", PLAIN, 256, {1536}, T_K, {35, 0}, 0, 0},
    {"E2B", "per-layer table", PLAIN, 1536, {8960}, T_BF16, {1, 0}, 0, 0},
    {"E2B", "head", PLAIN, 1536, {262144}, T_HEAD, {0, 1}, 0, 0},
};
static const product small[] = {
    {"small", "q k v", PLAIN, 512, {64, 48, 16}, T_EACH, {1, 1}, 0, 0},
    {"small", "gate up", GATED, 512, {80}, T_ALL, {1, 0}, 0, 0},
    {"small", "router", ROUTER, 96, {8}, T_F32, {1, 0}, 8, 3},
    {"small", "experts", EXPERTS, 256, {96}, T_K | T_SHORT, {1, 0}, 8, 3},
};

static void check(status st, const err *e)
{
    if (st) {
        fprintf(stderr, "%s\n", e->text);
        exit(1);
    }
}
static void *room(size_t n_bytes)
{
    void *at = mem_alloc(n_bytes);
    if (!at) {
        fprintf(stderr, "no memory for %zu bytes\n", n_bytes);
        exit(1);
    }
    return at;
}

/* n copies of a product's weights on the device; a call reads w[i][0..n_parts). */
typedef struct bench {
    device *d;
    void *scratch;
    size_t scratch_bytes;
    const product *p;
    num_type type;
    int32_t n, n_parts;
    weight w[WEIGHTS_MAX][PARTS];
    bool prompt;  /* rows of prompts; else of answers */
    double bytes; /* that one call reads; for experts, at `rows` rows */
    float *x;     /* [ROWS, n_in], host */
    int32_t *id;  /* device: [n][ROWS * k], choices of experts */
    float *share;
    int32_t *drawn; /* the same on the host */
    char tag[5][TILES_MOST + 1][WARPS_MOST / 4 + 1][9][ROWS_WHOLE + 1][ROWS_SPREAD + 1];
} bench;

/* A step of one chain of `rows` rows without a cache. */
static step step_of(int32_t rows)
{
    static int32_t list[ROWS], zero[ROWS];
    static kv_base kv[1];
    for (int32_t i = 0; i < ROWS; i++)
        list[i] = i;
    const row_keys keys = {list, zero, list, list};
    return (step){.all = {.n = rows, .token = zero, .pos = list, .seq = zero, .keys = {keys, keys}},
                  .n_seqs = 1,
                  .n_kv = 1,
                  .kv = kv};
}

/* Shape of part i of a product's weights. */
static weight shape_of(const product *p, num_type type, int32_t i)
{
    weight w = {.name = "bench", .type = type, .n_in = p->n_in, .n_out = p->n_out[i], .n_mat = 1};
    uint64_t row = 0;
    if (p->kind == GATED)
        w.n_out = p->n_out[0];
    if (p->kind == EXPERTS) {
        w.n_mat = p->n_expert;
        w.n_in = i ? p->n_out[0] : p->n_in;
        w.n_out = i ? p->n_in : 2 * p->n_out[0];
        if (i && !num_row_bytes(type, (uint64_t)w.n_in, &row))
            w.type = NUM_Q8_0; /* rows too short for super-blocks */
    }
    if (!num_row_bytes(w.type, (uint64_t)w.n_in, &row))
        return (weight){0};
    w.row_bytes = row;
    w.mat_bytes = row * (size_t)w.n_out;
    w.n_bytes = w.mat_bytes * (size_t)w.n_mat;
    return w;
}

/* A row of x; of random bits with a factor where nothing encodes the format. */
static void fill_row(const weight *w, const float *x, char *at)
{
    const num_format *f = num_format_of(w->type);
    uint64_t rng = 4;
    if (f->encode) {
        f->encode(x, at, w->n_in);
        return;
    }
    for (size_t i = 0; i < w->row_bytes; i++)
        at[i] = (char)rng_next(&rng);
    for (size_t i = 0; i < w->row_bytes; i += (size_t)f->block_bytes)
        num_set_factor(w->type, at + i, 0.02f);
}

/* A few random rows, repeated; their values do not affect times. */
static void *fill(const weight *w)
{
    enum { DIFFERENT = 8 };
    uint64_t rng = 3;
    char *at = room(w->n_bytes);
    float *x = room((size_t)w->n_in * sizeof *x);
    size_t rows = w->n_bytes / w->row_bytes;
    for (size_t r = 0; r < rows; r++) {
        for (int32_t i = 0; i < w->n_in && r < DIFFERENT; i++)
            x[i] = (float)rng_normal(&rng) * 0.02f;
        if (r < DIFFERENT)
            fill_row(w, x, at + r * w->row_bytes);
        else
            memcpy(at + r * w->row_bytes, at + r % DIFFERENT * w->row_bytes, w->row_bytes);
    }
    mem_free(x);
    return at;
}

/* Experts of each row, all different, drawn anew for each call. */
static void draw_experts(bench *b)
{
    const product *p = b->p;
    size_t n = (size_t)b->n * ROWS * (size_t)p->k;
    uint64_t rng = 5;
    float *share = room(n * sizeof *share);
    b->drawn = room(n * sizeof *b->drawn);
    for (size_t i = 0; i < n; i++) {
        size_t row = i - i % (size_t)p->k;
        share[i] = 1.0f / (float)p->k;
        for (bool again = true; again;) {
            b->drawn[i] = (int32_t)(rng_next(&rng) % (uint64_t)p->n_expert);
            again = false;
            for (size_t j = row; j < i; j++)
                again = again || b->drawn[j] == b->drawn[i];
        }
    }
    b->id = b->d->alloc(b->d, n * sizeof *b->id);
    b->share = b->d->alloc(b->d, n * sizeof *b->share);
    if (!b->id || !b->share)
        exit(1);
    b->d->upload(b->d, b->id, b->drawn, n * sizeof *b->id);
    b->d->upload(b->d, b->share, share, n * sizeof *b->share);
    mem_free(share);
}

/* False if the format cannot hold the shape. */
static bool load(bench *b, const product *p, num_type type, bool little)
{
    size_t bytes = 0, want = little ? 1 : (size_t)WEIGHT_BYTES;
    void *data[PARTS] = {0};
    weight part[PARTS];
    err e = {0};
    b->p = p;
    b->type = type;
    b->n_parts = p->kind == PLAIN ? 1 : p->kind == ROUTER ? 1 : 2;
    while (p->kind == PLAIN && b->n_parts < PARTS && p->n_out[b->n_parts])
        b->n_parts++;
    for (int32_t i = 0; i < b->n_parts; i++) {
        part[i] = shape_of(p, type, i);
        if (!part[i].n_bytes)
            return false;
        bytes += part[i].n_bytes;
    }
    b->n = (int32_t)(want / bytes) + 2;
    b->n = b->n < WEIGHTS_MAX ? b->n : WEIGHTS_MAX;
    for (int32_t i = 0; i < b->n_parts; i++) {
        part[i].data = data[i] = fill(&part[i]);
        for (int32_t j = 0; j < b->n; j++) {
            b->w[j][i] = part[i];
            check(b->d->weight_load(b->d, &b->w[j][i], &e), &e);
        }
    }
    if (p->kind == EXPERTS)
        draw_experts(b);
    for (int32_t i = 0; i < b->n_parts; i++)
        mem_free(data[i]);
    return true;
}

static void unload(bench *b)
{
    size_t n = (size_t)b->n * ROWS * (size_t)b->p->k;
    for (int32_t i = 0; i < b->n_parts; i++)
        for (int32_t j = 0; j < b->n; j++)
            b->d->weight_free(b->d, &b->w[j][i]);
    if (b->p->kind == EXPERTS) {
        b->d->release(b->d, b->id, n * sizeof *b->id);
        b->d->release(b->d, b->share, n * sizeof *b->share);
        mem_free(b->drawn);
    }
}

/* Bytes of weights that a call reads, on average. */
static double bytes_read(const bench *b, int32_t rows)
{
    const product *p = b->p;
    double bytes = 0, share = 1;
    if (p->kind == EXPERTS) {
        int64_t n = 0;
        for (int32_t c = 0; c < b->n; c++)
            for (int32_t i = 0; i < rows * p->k; i++) {
                const int32_t *id = b->drawn + (size_t)c * ROWS * (size_t)p->k;
                bool seen = false;
                for (int32_t j = 0; j < i; j++)
                    seen = seen || id[j] == id[i];
                n += !seen;
            }
        share = (double)n / b->n / p->n_expert;
    }
    for (int32_t i = 0; i < b->n_parts; i++)
        bytes += (double)b->w[0][i].n_bytes * share;
    return bytes;
}

static mat one_call(bench *b, pass *p, mat x, int32_t i)
{
    const product *q = b->p;
    weight *w = b->w[i];
    mat y = {0};
    if (q->kind == GATED)
        return op_glu(p, x, &w[0], &w[1], ACT_GELU_TANH);
    if (q->kind == ROUTER) {
        routing r = op_router(p, x, &w[0], q->k, NULL);
        return mat_at(r.weight, x.rows, 1, q->k, q->k);
    }
    if (q->kind == EXPERTS) {
        size_t at = (size_t)i * ROWS * (size_t)q->k;
        routing r = {.id = b->id + at, .weight = b->share + at, .rows = x.rows, .k = q->k};
        mat e = op_moe_glu(p, x, &r, &w[0], NULL, ACT_GELU_TANH);
        return op_moe_down(p, e, r, &w[1]);
    }
    for (int32_t k = 0; k < b->n_parts; k++)
        y = op_matmul(p, x, &w[k]);
    return y;
}

/* A distinct address per cut, as the key of its recording. */
static const void *tag_of(const bench *b, rows_cut c)
{
    return &b->tag[c.piece / 8][c.tiles][c.warps / 4][c.abreast][c.x][c.spread];
}

/* All calls with that cut; the result of the last. first: uploads x. */
static mat all_calls(bench *b, int32_t rows, rows_cut cut, bool first)
{
    step st = step_of(rows);
    pass p;
    mat y = {0};
    err e = {0};
    st.prompt = b->prompt;
    cu_rows_force(cut);
    pass_begin(&p, b->d, &st, b->scratch, b->scratch_bytes);
    if (!first && b->d->replay && b->d->replay(b->d, &p, tag_of(b, cut), b->scratch, &y))
        return y;
    mat x = pass_mat(&p, rows, 1, b->p->n_in);
    if (first && !pass_failed(&p))
        b->d->upload(b->d, x.at, b->x, (size_t)rows * (size_t)b->p->n_in * sizeof *b->x);
    x = op_rms_norm(&p, x, NULL, 1e-6f); /* makes the copy that products read, as in a model */
    for (int32_t i = 0; i < b->n; i++) {
        size_t mark = pass_mark(&p);
        y = one_call(b, &p, x, i);
        pass_release(&p, mark);
    }
    if (!first && b->d->recorded)
        b->d->recorded(b->d, &p, y);
    if (pass_failed(&p))
        check(err_set(&e, p.e.status, "%s", p.e.text), &e);
    return y;
}

/* Microseconds of a call; 0 where the cut is impossible. */
typedef struct timing {
    double us;
    rows_cut cut; /* the cut that was used */
    float *y;     /* the result, n floats for mem_free */
    size_t n;
} timing;

static timing measure(bench *b, int32_t rows, rows_cut cut)
{
    double us[REPS];
    timing t = {0};
    cu_rows_force(cut);
    mat y = all_calls(b, rows, cut, true);
    t.cut = cu_rows_chosen();
    if ((cut.tiles || cut.piece) && !t.cut.tiles)
        return t;
    for (int i = -3; i < REPS; i++) {
        float one;
        b->d->download(b->d, &one, b->scratch, sizeof one);
        double from = clock_ms();
        for (int k = 0; k < TIMES; k++)
            y = all_calls(b, rows, cut, false);
        b->d->download(b->d, &one, b->scratch, sizeof one);
        if (i >= 0)
            us[i] = (clock_ms() - from) * 1e3 / TIMES / b->n;
    }
    t.n = (size_t)rows * (size_t)mat_width(y);
    t.y = room(t.n * sizeof *t.y);
    b->d->download(b->d, t.y, y.at, t.n * sizeof *t.y);
    qsort(us, REPS, sizeof *us, order_doubles);
    t.us = us[REPS / 2];
    return t;
}

/* ---- The table ----------------------------------------------------------------------------- */

typedef struct sums {
    const char *model;
    double us[COUNTS][TILES_MOST + 1], many[COUNTS];
} sums;

typedef struct wishes {
    double read_rate; /* GB/s */
    uint64_t rows;    /* bit N - 1: N of them, and one; 0: all counts */
    bool small, cuts, mix;
    int32_t piece; /* of --cuts: rows of a block; 0: any */
    const char *only;
} wishes;

/* False, with a remark, if the results differ. */
static bool same_results(const timing *a, const timing *b)
{
    if (a->n == b->n && !memcmp(a->y, b->y, a->n * sizeof *a->y))
        return true;
    printf("  RESULTS DIFFER");
    return false;
}

/* How often a pass of the Q4_K_M mix has the product in this format, or in the format that replaces
 * it where super-blocks do not fit. */
static int32_t times_in_pass(const product *p, num_type type)
{
    int base = 0;
    while (!(p->types >> base & 1) || types[base] == NUM_Q6_K)
        base++;
    return type == NUM_Q6_K ? p->in_pass[1] : type == types[base] ? p->in_pass[0] : 0;
}

/* The letters of x and spread. */
static const char *letters(rows_cut c)
{
    static const char text[ROWS_SPREAD][ROWS_WHOLE][3] = {{"1 ", "2 ", "3 ", "4 ", "w "},
                                                          {"1s", "2s", "3s", "4s", "ws"}};
    return c.tiles ? text[c.spread - 1][c.x - 1] : "- ";
}

/* A line per possible cut, with its speed relative to the device's own. */
static bool print_cuts(bench *b, int32_t rows, int32_t piece, const timing *free)
{
    bool ok = true;
    for (int32_t tiles = 1; tiles <= TILES_MOST; tiles++)
        for (int32_t warps = 4; warps <= WARPS_MOST; warps += 4)
            for (int32_t way = 0; way < 8 * ROWS_WHOLE; way++) {
                rows_cut cut = {
                    tiles,       warps, 1 << way / 2 / ROWS_WHOLE, 1 + way / 2 % ROWS_WHOLE,
                    1 + way % 2, piece};
                timing t = measure(b, rows, cut);
                if (!t.us)
                    continue;
                printf("    %d tiles, %2d warps, %d abreast %s %14.1f %22.2f", tiles, warps,
                       cut.abreast, letters(cut), t.us, free->us / t.us);
                ok = same_results(&t, free) && ok;
                printf("\n");
                fflush(stdout);
                mem_free(t.y);
            }
    return ok;
}

/* Microseconds of a call by the kernels of prompts. */
static double by_many(bench *b, int32_t rows)
{
    b->prompt = true;
    timing t = measure(b, rows, (rows_cut){0});
    b->prompt = false;
    mem_free(t.y);
    return t.us;
}

/* Which prompts multiply by cuBLASLt. */
static char blas_letter(const bench *b)
{
    const weight *w = &b->w[0][0];
    long_choice by = cuda_long_choice(b->d->self, w);
    return by.rows == INT32_MAX ? '-' : "ola"[by.way];
}

/* One product in one format: a line per row count. False if results differ. */
static bool print_product(bench *b, const wishes *want, sums *sum)
{
    bool block = b->type != NUM_BF16 && b->type != NUM_F32 && b->p->kind < EXPERTS, ok = true;
    double one_row = 0;
    char name[64];
    snprintf(name, sizeof name, "%s %s %s", b->p->model, b->p->name, num_name(b->type));
    for (int c = 0; c < COUNTS; c++) {
        int32_t rows = counts[c];
        if (want->rows && rows != 1 && !(want->rows >> (rows - 1) & 1))
            continue;
        double bytes = bytes_read(b, rows);
        timing t[TILES_MOST + 1] = {measure(b, rows, (rows_cut){0})};
        one_row = c ? one_row : t[0].us;
        printf("%-34s %4d %8.1f %6.0f %5.0f %% %6.2f", name, rows, t[0].us, bytes / t[0].us * 1e-3,
               100 * bytes / (want->read_rate * 1e3) / t[0].us, t[0].us / one_row);
        if (block && rows > 1) {
            printf(" %2d: %d x %2d / %d %s", t[0].cut.piece, t[0].cut.tiles, t[0].cut.warps,
                   t[0].cut.abreast, letters(t[0].cut));
            for (int k = 8; k <= 32; k *= 2) {
                timing u = measure(b, rows, (rows_cut){.piece = k});
                if (u.us > 0)
                    printf(" %8.1f", u.us);
                else
                    printf(" %8s", "-");
                ok = (!u.y || same_results(&u, &t[0])) && ok;
                mem_free(u.y);
            }
            for (int k = 1; k <= TILES_MOST; k++) {
                t[k] = measure(b, rows, (rows_cut){.tiles = k});
                if (t[k].us > 0)
                    printf(" %8.1f", t[k].us);
                else
                    printf(" %8s", "-");
                ok = (!t[k].y || same_results(&t[k], &t[0])) && ok;
            }
            printf(" %6.2f", t[1].us / t[0].us);
        }
        double many = by_many(b, rows);
        printf("%*s %8.1f %c", block && rows > 1 ? 0 : 76, "", many, blas_letter(b));
        printf("\n");
        fflush(stdout);
        if (block && rows > 1 && want->cuts)
            ok = print_cuts(b, rows, want->piece, &t[0]) && ok;
        for (int k = 0; k <= TILES_MOST; k++) {
            sum->us[c][k] += times_in_pass(b->p, b->type) * t[t[k].us > 0 ? k : 0].us;
            mem_free(t[k].y);
        }
        sum->many[c] += times_in_pass(b->p, b->type) * many;
    }
    return ok;
}

static void print_sums(const sums *s)
{
    for (int c = 0; c < COUNTS && s->us[0][0] > 0; c++)
        if (s->us[c][0] > 0) {
            printf("%-34s %4d %8.0f %21.2f %20.0f %8.0f %8.0f %6.2f", s->model, counts[c],
                   s->us[c][0], s->us[c][0] / s->us[0][0], s->us[c][1], s->us[c][2], s->us[c][3],
                   s->us[c][1] / s->us[c][0]);
            if (s->many[c] > 0)
                printf(" %8.0f", s->many[c]);
            printf("\n");
        }
}

/* All products that are wanted. False if results differ. */
static bool print_all(bench *b, const wishes *want)
{
    const product *list = want->small ? small : products;
    size_t n = want->small ? sizeof small / sizeof *small : sizeof products / sizeof *products;
    sums sum[8] = {0};
    int n_sums = 0;
    bool ok = true;
    printf(
        "%s; floor: %.0f GB/s\n%-34s %4s %8s %6s %7s %6s  %13s %8s %8s %8s %8s %8s %8s %6s %8s\n",
        b->d->name, want->read_rate, "product", "rows", "us", "GB/s", "floor", "1 row", "cut", "8s",
        "16s", "32s", "1 tile", "2 tiles", "3 tiles", "gain", "many");
    for (size_t i = 0; i < n; i++)
        for (int t = 0; t < TYPES; t++) {
            char name[64];
            snprintf(name, sizeof name, "%s %s %s", list[i].model, list[i].name,
                     num_name(types[t]));
            if (!(list[i].types >> t & 1) || !strstr(name, want->only) ||
                (want->mix && !times_in_pass(&list[i], types[t])) ||
                !load(b, &list[i], types[t], want->small))
                continue;
            if (!n_sums || strcmp(sum[n_sums - 1].model, list[i].model))
                sum[n_sums++].model = list[i].model;
            ok = print_product(b, want, &sum[n_sums - 1]) && ok;
            unload(b);
        }
    printf("\nproducts of a pass, Q4_K_M\n");
    for (int i = 0; i < n_sums; i++)
        print_sums(&sum[i]);
    return ok;
}

int main(int argc, char **argv)
{
    static bench b;
    wishes want = {.read_rate = 4660, .only = ""};
    err e = {0};
    const bool shapes = argc > 1 && !strcmp(argv[1], "tall");
    if (shapes || (argc > 1 && !strcmp(argv[1], "long"))) {
        check(device_open_cuda(&b.d, NULL, &e), &e);
        int rc = bench_long(b.d, argc > 2 ? argv[2] : "", shapes);
        device_close(b.d);
        return rc;
    }
    if (argc > 1 && !strcmp(argv[1], "experts")) {
        check(device_open_cuda(&b.d, NULL, &e), &e);
        int rc = bench_experts(b.d, argc > 2 ? argv[2] : "");
        device_close(b.d);
        return rc;
    }
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--small"))
            want.small = true;
        else if (!strcmp(argv[i], "--cuts"))
            want.cuts = true;
        else if (!strcmp(argv[i], "--mix"))
            want.mix = true;
        else if (!strcmp(argv[i], "--piece") && i + 1 < argc)
            want.piece = atoi(argv[++i]);
        else if (!strcmp(argv[i], "--rows") && i + 1 < argc)
            want.rows |= 1ull << ((atoi(argv[++i]) - 1) & 63);
        else if (!strcmp(argv[i], "--read") && i + 1 < argc)
            want.read_rate = atof(argv[++i]);
        else
            want.only = argv[i];
    }
    if (!(want.read_rate > 0)) {
        fprintf(stderr, "--read wants a number of GB/s above 0\n");
        return 2;
    }
    check(device_open_cuda(&b.d, NULL, &e), &e);
    b.scratch_bytes = want.small ? (size_t)16 << 20 : (size_t)256 << 20;
    b.scratch = b.d->alloc(b.d, b.scratch_bytes);
    if (!b.scratch)
        return 1;
    size_t n = (size_t)ROWS * X_MOST;
    uint64_t rng = 9;
    b.x = room(n * sizeof *b.x);
    for (size_t i = 0; i < n; i++)
        b.x[i] = (float)rng_normal(&rng);
    bool ok = print_all(&b, &want);
    mem_free(b.x);
    b.d->release(b.d, b.scratch, b.scratch_bytes);
    device_close(b.d);
    return !ok;
}
