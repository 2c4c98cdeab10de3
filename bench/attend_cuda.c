/* attend_cuda.c - attention on a GPU over every format of cache, at the large models' shapes: time
 * of one layer, and the bandwidth at which it reads keys and values.
 *
 *     bench_attend_cuda [ROWS] [SUBSTRING]     default: 1 row, all shapes
 *
 * Stores are full of random blocks, enough of them that no cache of the chip holds one until its
 * turn comes again. A pass of attention over all of them is recorded and replayed, as decoding
 * does; the median of the replays, by the clock of the host around them.
 */
#include "backend/ops.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/rng.h"
#include "kv/kv.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { REPS = 9, LAYERS_MAX = 24, BLOCK_ROWS = 512, DEPTHS = 3, FORMATS = 10, SHAPES = 8 };

static const struct {
    const char *name;
    int32_t n_head, n_head_kv, dim, window;
} shapes[SHAPES] = {
    {"31B global", 32, 4, 512, 0},     {"31B window", 32, 16, 256, 1024},
    {"26B-A4B global", 16, 2, 512, 0}, {"26B-A4B window", 16, 8, 256, 1024},
    {"E4B global", 8, 2, 512, 0},      {"E4B window", 8, 2, 256, 512},
    {"E2B global", 8, 1, 512, 0},      {"E2B window", 8, 1, 256, 512},
};
static const int32_t depths[DEPTHS] = {4096, 32768, 131072};
static const char *const formats[FORMATS] = {"f16",  "bf16", "q8_0",     "q5_1",   "q5_0", "q4_1",
                                             "q4_0", "q4_0+rot", "iq4_nl", "tq3_0"};

static void check(status st, const err *e)
{
    if (st) {
        fprintf(stderr, "%s\n", e->text);
        exit(1);
    }
}

/* The same random rows of a head over and over: what they hold costs no time. */
static void fill(device *d, void *to, size_t n_bytes, kv_format f, int32_t dim)
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

typedef struct bench {
    device *d;
    void *scratch;
    size_t scratch_bytes;
    kv_layout l;
    kv_cache c;
    kv_batch b;
} bench;

static void all_layers(bench *b, int32_t n_head, int32_t rows)
{
    pass p;
    mat y = {0};
    pass_begin(&p, b->d, &b->b.st, b->scratch, b->scratch_bytes);
    if (b->d->replay && b->d->replay(b->d, &p, b, &b->l, &y))
        return;
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
        check(err_set(&e, p.e.status, "%s", p.e.text), &e);
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Microseconds of one layer; 0 if the device does not read the format. */
static double measure(bench *b, int shape, int32_t depth, const char *format, int32_t rows,
                      double *bytes)
{
    int32_t keys = shapes[shape].window ? shapes[shape].window : depth, ids[64] = {0};
    kv_spec spec[LAYERS_MAX];
    kv_want_layout want = {.spec = spec, .n_ctx = depth + 64, .rows_max = 64, .dev = b->d};
    kv_words words = {.k = format, .single = "off"};
    err e = {0};
    double us[REPS];
    check(kv_choice_parse(&want.choice, &words, &e), &e);
    int64_t elements = 2 * (int64_t)keys * shapes[shape].n_head_kv * shapes[shape].dim;
    want.n = (int32_t)((128 << 20) / elements) + 2; /* a quarter of a GiB in f16, and more */
    want.n = want.n < LAYERS_MAX ? want.n : LAYERS_MAX;
    for (int i = 0; i < want.n; i++)
        spec[i] = (kv_spec){.window = shapes[shape].window,
                            .n_head_kv = shapes[shape].n_head_kv,
                            .head_dim = shapes[shape].dim};
    if (kv_layout_init(&b->l, &want, &e))
        return 0;
    check(kv_open(&b->c, b->d, &b->l, &e), &e);
    check(kv_batch_init(&b->b, 64, 1, b->l.n, &e), &e);
    const kv_view *v = &b->l.view[0];
    size_t store = (size_t)v->n_slots * (size_t)v->n_head_kv;
    for (int i = 0; i < b->l.n; i++) {
        fill(b->d, b->c.base[i].k, store * v->k_row_bytes, want.choice.k, v->head_dim);
        fill(b->d, b->c.base[i].v, store * v->v_row_bytes, want.choice.v, v->head_dim);
    }
    *bytes = (double)keys * v->n_head_kv * (double)(v->k_row_bytes + v->v_row_bytes);
    b->c.n_past = depth - rows;
    check(kv_batch_add(&b->b, &b->c, ids, rows, NULL, KV_WANT_NONE, &e), &e);
    for (int i = -3; i < REPS; i++) {
        enum { TIMES = 8 };
        float one;
        b->d->download(b->d, &one, b->scratch, sizeof one);
        double from = clock_ms();
        for (int k = 0; k < TIMES; k++)
            all_layers(b, shapes[shape].n_head, rows);
        b->d->download(b->d, &one, b->scratch, sizeof one);
        if (i >= 0)
            us[i] = (clock_ms() - from) * 1e3 / TIMES / b->l.n;
    }
    kv_batch_free(&b->b);
    kv_close(&b->c);
    kv_layout_free(&b->l);
    qsort(us, REPS, sizeof *us, ascending);
    return us[REPS / 2];
}

int main(int argc, char **argv)
{
    bench b = {.scratch_bytes = (size_t)1 << 30};
    err e = {0};
    int32_t rows = argc > 1 ? atoi(argv[1]) : 1;
    if (rows < 1 || rows > 32)
        return 2;
    check(device_open_cuda(&b.d, NULL, &e), &e);
    b.scratch = b.d->alloc(b.d, b.scratch_bytes);
    if (!b.scratch)
        return 1;
    printf("%s, %d rows\n%-16s %7s", b.d->name, rows, "us (GB/s)", "depth");
    for (int f = 0; f < FORMATS; f++)
        printf(" %13s", formats[f]);
    printf("\n");
    for (int s = 0; s < SHAPES; s++)
        for (int i = 0; i < DEPTHS; i++) {
            if ((argc > 2 && !strstr(shapes[s].name, argv[2])) || (shapes[s].window && i > 0))
                continue;
            printf("%-16s %7d", shapes[s].name, depths[i]);
            for (int f = 0; f < FORMATS; f++) {
                double bytes = 0, us = measure(&b, s, depths[i], formats[f], rows, &bytes);
                printf(" %7.1f (%4.0f)", us, us > 0 ? bytes / us * 1e-3 : 0);
                fflush(stdout);
            }
            printf("\n");
        }
    b.d->release(b.d, b.scratch, b.scratch_bytes);
    device_close(b.d);
    return 0;
}
