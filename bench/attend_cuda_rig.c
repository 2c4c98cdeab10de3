/* attend_cuda_rig.c - layers of attention, opened, filled and run; attend_cuda.h says more. */
#include "bench/attend_cuda.h"
#include "backend/ops.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/order.h"
#include "base/rng.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK_ROWS = 512 };

const bench_shape bench_shapes[SHAPES] = {
    {"31B global", 32, 4, 512, 0, true},     {"31B window", 32, 16, 256, 1024, false},
    {"26B-A4B global", 16, 2, 512, 0, true}, {"26B-A4B window", 16, 8, 256, 1024, false},
    {"12B global", 16, 1, 512, 0, true},     {"E4B global", 8, 2, 512, 0, false},
    {"E4B window", 8, 2, 256, 512, false},   {"E2B global", 8, 1, 512, 0, false},
    {"E2B window", 8, 1, 256, 512, false},   {"Qwen3-32B", 64, 8, 128, 0, false},
    {"Qwen3.5-27B", 24, 4, 256, 0, false},   {"Qwen3.5-35B-A3B", 16, 2, 256, 0, false},
    {"Laguna global", 48, 8, 128, 0, false}, {"Laguna window", 72, 8, 128, 512, false},
};
const int32_t bench_depths[DEPTHS] = {4096, 32768, 131072};
const bench_format bench_formats[FORMATS] = {
    {"f16", "f16", "off"},      {"bf16", "bf16", "off"},         {"q8_0", "q8_0", "off"},
    {"q5_1", "q5_1", "off"},    {"q5_0", "q5_0", "off"},         {"q4_1", "q4_1", "off"},
    {"q4_0", "q4_0", "off"},    {"q4_0+rot", "q4_0+rot", "off"}, {"iq4_nl", "iq4_nl", "off"},
    {"tq3_0", "tq3_0", "off"},  {"one f16", "f16", "on"},        {"one bf16", "bf16", "on"},
    {"one q8_0", "q8_0", "on"}, {"one q4_0", "q4_0", "on"},      {"one q4_0+rot", "q4_0+rot", "on"},
};

void bench_check(status st, const err *e)
{
    if (st) {
        fprintf(stderr, "%s\n", e->text);
        exit(1);
    }
}

/* The same random rows of a head, repeated; their values do not affect times. */
void bench_fill(device *d, void *to, size_t n_bytes, kv_format f, int32_t dim)
{
    uint64_t rng = 3, bytes = 0;
    size_t n = (size_t)BLOCK_ROWS * (size_t)dim;
    float *x = mem_alloc(n * sizeof *x);
    num_row_bytes(f.type, n, &bytes);
    char *block = mem_alloc(bytes);
    if (!x || !block)
        exit(1);
    for (size_t i = 0; i < n; i++)
        x[i] = (float)rng_normal(&rng) * 0.2f;
    num_format_of(f.type)->encode(x, block, (int64_t)n);
    for (size_t at = 0; at < n_bytes; at += bytes)
        d->upload(d, (char *)to + at, block, n_bytes - at < bytes ? n_bytes - at : bytes);
    mem_free(x);
    mem_free(block);
}

enum { DIM = 512, TURNING = 64 };

void bench_open_maker(bench *b)
{
    static float inv[DIM / 2], w[DIM], turns[ROPE_TURNS][2][TURNING];
    err e = {0};
    for (int i = 0; i < TURNING; i++)
        inv[i] = (float)pow(1e6, -2.0 * i / DIM);
    for (int i = 0; i < DIM; i++)
        w[i] = 0.3f;
    for (int p = 0; p < ROPE_TURNS; p++)
        for (int i = 0; i < TURNING; i++) {
            turns[p][0][i] = (float)cos((double)p * inv[i]);
            turns[p][1][i] = (float)sin((double)p * inv[i]);
        }
    void *at[2] = {b->d->alloc(b->d, sizeof inv), b->d->alloc(b->d, sizeof turns)};
    if (!at[0] || !at[1])
        exit(1);
    b->d->upload(b->d, at[0], inv, sizeof inv);
    b->d->upload(b->d, at[1], turns, sizeof turns);
    b->turn = (rope){.n_pairs = DIM / 2, .inv_freq = at[0], .n_turning = TURNING, .turns = at[1]};
    b->norm = (weight){.name = "k_norm",
                       .type = NUM_F32,
                       .n_in = DIM,
                       .n_out = 1,
                       .n_mat = 1,
                       .data = w,
                       .row_bytes = sizeof w,
                       .mat_bytes = sizeof w,
                       .n_bytes = sizeof w};
    bench_check(b->d->weight_load(b->d, &b->norm, &e), &e);
}

void bench_close_maker(bench *b)
{
    b->d->weight_free(b->d, &b->norm);
    b->d->release(b->d, (void *)b->turn.inv_freq, DIM / 2 * sizeof(float));
    b->d->release(b->d, (void *)b->turn.turns, (size_t)ROPE_TURNS * 2 * TURNING * sizeof(float));
}

mat bench_layers(bench *b, int32_t n_head, int32_t rows)
{
    pass p;
    mat y = {0};
    pass_begin(&p, b->d, &b->b.st, b->scratch, b->scratch_bytes);
    if (b->d->replay && b->d->replay(b->d, &p, b->key, &b->l, &y))
        return y;
    mat q = pass_mat(&p, rows, n_head, b->l.view[0].head_dim);
    for (int32_t i = 0; i < b->l.n; i++) {
        size_t mark = pass_mark(&p);
        y = op_attend(&p, q, &b->l.view[i], 1.0f);
        pass_release(&p, mark);
    }
    if (b->d->recorded)
        b->d->recorded(b->d, &p, y);
    err e = {0};
    if (pass_failed(&p))
        bench_check(err_set(&e, p.e.status, "%s", p.e.text), &e);
    return y;
}

/* As after n tokens, before a pass of so many rows. */
static void begin_at(bench *b, int32_t n, int32_t rows)
{
    err e = {0};
    for (int32_t some; b->c.n_past < n; b->c.n_past += some) {
        some = n - (int32_t)b->c.n_past;
        some = some < b->l.rows_max ? some : b->l.rows_max;
        bench_check(kv_reserve(&b->c, some, &e), &e);
    }
    bench_check(kv_reserve(&b->c, rows, &e), &e);
}

/* Opens the layout's stores, full of random rows, and a batch for `rows` rows. */
static void open_stores(bench *b, int32_t rows, kv_choice kinds)
{
    const kv_view *v = &b->l.view[0];
    size_t store = (size_t)v->n_slots * (size_t)v->n_head_kv;
    err e = {0};
    bench_check(kv_open(&b->c, b->d, &b->l, &e), &e);
    bench_check(kv_batch_init(&b->b, rows, 1, &b->l, &e), &e);
    for (int32_t i = 0; i < b->l.n; i++) {
        bench_fill(b->d, b->c.base[i].k, store * v->k_row_bytes, kinds.k, v->head_dim);
        if (!v->single)
            bench_fill(b->d, b->c.base[i].v, store * v->v_row_bytes, kinds.v, v->head_dim);
    }
}

/* Opens stores of several layers and a pass over them; false if the device does not read the
 * format. */
bool bench_open(bench *b, int shape, int32_t depth, int format, int32_t rows, double *bytes)
{
    static int32_t ids[MANY_ROWS];
    int32_t keys = bench_shapes[shape].window ? bench_shapes[shape].window : depth;
    int32_t most = rows < 64 ? 64 : rows;
    kv_spec spec[LAYERS_MAX];
    kv_want_layout want = {.spec = spec, .n_ctx = depth + 64, .rows_max = most, .dev = {b->d}};
    kv_words words = {.k = bench_formats[format].type, .single = bench_formats[format].single};
    bool one = !strcmp(words.single, "on");
    err e = {0};
    if (one && !bench_shapes[shape].k_is_v)
        return false;
    bench_check(kv_choice_parse(&want.choice, &words, &e), &e);
    int64_t elements = 2 * (int64_t)keys * bench_shapes[shape].n_head_kv * bench_shapes[shape].dim;
    want.n = (int32_t)((128 << 20) / elements) + 2; /* a quarter of a GiB in f16, and more */
    want.n = want.n < LAYERS_MAX ? want.n : LAYERS_MAX;
    for (int i = 0; i < want.n; i++)
        spec[i] = (kv_spec){.window = bench_shapes[shape].window,
                            .n_head_kv = bench_shapes[shape].n_head_kv,
                            .head_dim = bench_shapes[shape].dim,
                            .k_is_v = bench_shapes[shape].k_is_v,
                            .k_norm = &b->norm,
                            .k_rope = &b->turn};
    if (kv_layout_init(&b->l, &want, &e))
        return false;
    open_stores(b, most, want.choice);
    const kv_view *v = &b->l.view[0];
    *bytes = (double)keys * v->n_head_kv * (double)(v->k_row_bytes + v->v_row_bytes);
    begin_at(b, depth - rows, rows);
    bench_check(kv_batch_add(&b->b, &b->c, ids, rows, NULL, KV_WANT_NONE, &e), &e);
    return true;
}
void bench_close(bench *b)
{
    kv_batch_free(&b->b);
    kv_close(&b->c);
    kv_layout_free(&b->l);
}
/* Microseconds of one layer, the mean of some passes. */
double bench_time(bench *b, int shape, int32_t rows)
{
    enum { TIMES = 8 };
    float probe;
    int times = rows > 64 ? 1 : TIMES;
    b->d->download(b->d, &probe, b->scratch, sizeof probe);
    double from = clock_ms();
    for (int k = 0; k < times; k++)
        bench_layers(b, bench_shapes[shape].n_head, rows);
    b->d->download(b->d, &probe, b->scratch, sizeof probe);
    return (clock_ms() - from) * 1e3 / times / b->l.n;
}

/* Opens a layer and a prompt's pass of its last rows. */
void bench_open_prompt(bench *b, int shape, chunk k, const kv_words *words)
{
    static int32_t ids[MANY_ROWS];
    bool one = !strcmp(words->single, "on");
    err e = {0};
    kv_spec spec = {.window = bench_shapes[shape].window,
                    .n_head_kv = bench_shapes[shape].n_head_kv,
                    .head_dim = bench_shapes[shape].dim,
                    .k_is_v = one,
                    .k_norm = &b->norm,
                    .k_rope = &b->turn};
    kv_want_layout want = {
        .spec = &spec, .n = 1, .n_ctx = k.depth + k.rows, .rows_max = k.rows, .dev = {b->d}};
    bench_check(kv_choice_parse(&want.choice, words, &e), &e);
    bench_check(kv_layout_init(&b->l, &want, &e), &e);
    open_stores(b, k.rows, want.choice);
    begin_at(b, k.depth, k.rows);
    bench_check(kv_batch_add(&b->b, &b->c, ids, k.rows, NULL, KV_WANT_NONE, &e), &e);
    b->b.st.prompt = true;
}

/* Milliseconds of one layer; copies its first and last row to `rows`, unless NULL. */
double bench_once(bench *b, int shape, int32_t n_rows, float *rows)
{
    size_t width = (size_t)bench_shapes[shape].n_head * (size_t)bench_shapes[shape].dim;
    float one;
    double from = clock_ms();
    mat y = bench_layers(b, bench_shapes[shape].n_head, n_rows);
    b->d->download(b->d, &one, b->scratch, sizeof one);
    double ms = clock_ms() - from;
    if (rows) {
        b->d->download(b->d, rows, y.at, width * sizeof *rows);
        b->d->download(b->d, rows + width, mat_row(y, n_rows - 1), width * sizeof *rows);
    }
    return ms;
}
