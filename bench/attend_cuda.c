/* attend_cuda.c - attention on a GPU at the large models' shapes.
 *
 *     bench_attend_cuda [ROWS] [SHAPE] [FORMAT] [DEPTH]     default: 1 row; parts of the names
 *     bench_attend_cuda many [SHAPE] [FORMAT] [ROWS]        default: f16, 2048 rows
 *     bench_attend_cuda sparse [SHAPE] [FORMAT] [ROWS]      default: f16, 2048 rows
 *     bench_attend_cuda verify [SHAPE] [FORMAT]
 *     bench_attend_cuda pages [SHAPE] [FORMAT] [ROWS]       default: 1 row; over 64, a prompt
 *     bench_attend_cuda moves [SHAPE] [FORMAT]
 *     bench_attend_cuda scores [SHAPE] [FORMAT]
 *
 * ROWS rows over every format of cache: the time of one layer, and its read bandwidth for keys and
 * values. Stores are full of random blocks; there are so many stores that no cache of the GPU keeps
 * one until its next turn. A pass of attention over all of them is recorded and replayed, as in
 * decoding. A time is the median of the replays, by the host's clock. Global layers whose values
 * are their raw keys are also measured in one stream ("one f16" and so on).
 *
 * many: a prompt's chunk of rows in one layer, by each kernel for the shape and the format, in
 * turns: medians, products per second, their share of cuBLAS's rate in bf16, and the distance of
 * the kernels' results. Where values are raw keys, one stream has a line of its own, with its speed
 * relative to two.
 *
 * sparse: a prompt's chunk of rows in one layer without a window, where every tenth tile of 128
 * keys has nearly all of the soft max: exact, by skip-softmax (in heads below 512 exact again: they
 * have none), by block selection, in turns:
 * medians and ratios; the share of tiles that block selection reads; the time of selecting them
 * alone, in it, and its share of exact attention's.
 *
 * verify: 1 to 32 rows over short and long contexts, in FORMAT (default: f16 as a GPU of 9.0 keeps
 * it): by the kernels of other GPUs, by split_hopper.cu alone, and as the device chooses; the ratio
 * of the first and the last, and the last one's time over that of one row. A shape takes about ten
 * seconds.
 *
 * pages: one layer whose keys lie in a row without a table, in pages in their order, and in pages
 * in random order; in turns, in one run: medians, and the first one's time over each of the others.
 * At least 0.98 is demanded at 32K and 128K.
 *
 * moves: pages of all layers to the host, back to other places, and copied on the device: GB/s; and
 * passes of one row, repeated to the 2 ms of a token, while pages go out and come back: GB/s, and
 * the passes' time without moves over that with them.
 *
 * scores: 128K tokens, 2048 pages: summarising a page, and scoring all pages by their bounds: us of
 * one layer for one row and for 8, the 8 rows before a choice one by one and together in a whole
 * model of so many layers, in ms, and reading the scores. At most 2 ms are demanded for a choice.
 */
#include "backend/cuda/ops_int.h"
#include "backend/ops.h"
#include "backend/page_moves.h"
#include "backend/sparse.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/rng.h"
#include "kv/kv.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    REPS = 9,
    LAYERS_MAX = 24,
    BLOCK_ROWS = 512,
    DEPTHS = 3,
    FORMATS = 15,
    SHAPES = 14,
    MANY_ROWS = 2048,
    MANY_REPS = 5,
    MANY_DEPTHS = 4,
    MANY_TERA = 790 /* bf16, cuBLAS, on an H200 */
};

static const struct {
    const char *name;
    int32_t n_head, n_head_kv, dim, window;
    bool k_is_v;
} shapes[SHAPES] = {
    {"31B global", 32, 4, 512, 0, true},     {"31B window", 32, 16, 256, 1024, false},
    {"26B-A4B global", 16, 2, 512, 0, true}, {"26B-A4B window", 16, 8, 256, 1024, false},
    {"12B global", 16, 1, 512, 0, true},     {"E4B global", 8, 2, 512, 0, false},
    {"E4B window", 8, 2, 256, 512, false},   {"E2B global", 8, 1, 512, 0, false},
    {"E2B window", 8, 1, 256, 512, false},   {"Qwen3-32B", 64, 8, 128, 0, false},
    {"Qwen3.5-27B", 24, 4, 256, 0, false},   {"Qwen3.5-35B-A3B", 16, 2, 256, 0, false},
    {"Laguna global", 48, 8, 128, 0, false}, {"Laguna window", 72, 8, 128, 512, false},
};
static const int32_t depths[DEPTHS] = {4096, 32768, 131072};
static const int32_t many_depths[MANY_DEPTHS] = {0, 32768, 65536, 131072};
static const struct {
    const char *name, *type, *single;
} formats[FORMATS] = {
    {"f16", "f16", "off"},      {"bf16", "bf16", "off"},         {"q8_0", "q8_0", "off"},
    {"q5_1", "q5_1", "off"},    {"q5_0", "q5_0", "off"},         {"q4_1", "q4_1", "off"},
    {"q4_0", "q4_0", "off"},    {"q4_0+rot", "q4_0+rot", "off"}, {"iq4_nl", "iq4_nl", "off"},
    {"tq3_0", "tq3_0", "off"},  {"one f16", "f16", "on"},        {"one bf16", "bf16", "on"},
    {"one q8_0", "q8_0", "on"}, {"one q4_0", "q4_0", "on"},      {"one q4_0+rot", "q4_0+rot", "on"},
};

static void check(status st, const err *e)
{
    if (st) {
        fprintf(stderr, "%s\n", e->text);
        exit(1);
    }
}

/* The same random rows of a head, repeated; their values do not affect times. */
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
    rope turn; /* the rotation of keys made from values: a quarter of 512 turns */
    weight norm;
    void *scratch;
    size_t scratch_bytes;
    kv_layout l;
    kv_cache c;
    kv_batch b;
    const void *key; /* of recordings: a pass with other tiles is another */
} bench;

enum { DIM = 512, TURNING = 64 };

static void open_maker(bench *b)
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
    check(b->d->weight_load(b->d, &b->norm, &e), &e);
}

static mat all_layers(bench *b, int32_t n_head, int32_t rows)
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
        check(err_set(&e, p.e.status, "%s", p.e.text), &e);
    return y;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* As after n tokens, before a pass of so many rows. */
static void begin_at(bench *b, int32_t n, int32_t rows)
{
    err e = {0};
    for (int32_t some; b->c.n_past < n; b->c.n_past += some) {
        some = n - (int32_t)b->c.n_past;
        some = some < b->l.rows_max ? some : b->l.rows_max;
        check(kv_reserve(&b->c, some, &e), &e);
    }
    check(kv_reserve(&b->c, rows, &e), &e);
}

/* Opens stores of several layers and a pass over them; false if the device does not read the
 * format. */
static bool open_layers(bench *b, int shape, int32_t depth, int format, int32_t rows, double *bytes)
{
    static int32_t ids[MANY_ROWS];
    int32_t keys = shapes[shape].window ? shapes[shape].window : depth;
    int32_t most = rows < 64 ? 64 : rows;
    kv_spec spec[LAYERS_MAX];
    kv_want_layout want = {.spec = spec, .n_ctx = depth + 64, .rows_max = most, .dev = {b->d}};
    kv_words words = {.k = formats[format].type, .single = formats[format].single};
    bool one = !strcmp(words.single, "on");
    err e = {0};
    if (one && !shapes[shape].k_is_v)
        return false;
    check(kv_choice_parse(&want.choice, &words, &e), &e);
    int64_t elements = 2 * (int64_t)keys * shapes[shape].n_head_kv * shapes[shape].dim;
    want.n = (int32_t)((128 << 20) / elements) + 2; /* a quarter of a GiB in f16, and more */
    want.n = want.n < LAYERS_MAX ? want.n : LAYERS_MAX;
    for (int i = 0; i < want.n; i++)
        spec[i] = (kv_spec){.window = shapes[shape].window,
                            .n_head_kv = shapes[shape].n_head_kv,
                            .head_dim = shapes[shape].dim,
                            .k_is_v = shapes[shape].k_is_v,
                            .k_norm = &b->norm,
                            .k_rope = &b->turn};
    if (kv_layout_init(&b->l, &want, &e))
        return false;
    check(kv_open(&b->c, b->d, &b->l, &e), &e);
    check(kv_batch_init(&b->b, most, 1, &b->l, &e), &e);
    const kv_view *v = &b->l.view[0];
    size_t store = (size_t)v->n_slots * (size_t)v->n_head_kv;
    for (int i = 0; i < b->l.n; i++) {
        fill(b->d, b->c.base[i].k, store * v->k_row_bytes, want.choice.k, v->head_dim);
        if (!one)
            fill(b->d, b->c.base[i].v, store * v->v_row_bytes, want.choice.v, v->head_dim);
    }
    *bytes = (double)keys * v->n_head_kv * (double)(v->k_row_bytes + v->v_row_bytes);
    begin_at(b, depth - rows, rows);
    check(kv_batch_add(&b->b, &b->c, ids, rows, NULL, KV_WANT_NONE, &e), &e);
    return true;
}
static void close_layers(bench *b)
{
    kv_batch_free(&b->b);
    kv_close(&b->c);
    kv_layout_free(&b->l);
}
/* Microseconds of one layer, the mean of some passes. */
static double time_layers(bench *b, int shape, int32_t rows)
{
    enum { TIMES = 8 };
    float probe;
    int times = rows > 64 ? 1 : TIMES;
    b->d->download(b->d, &probe, b->scratch, sizeof probe);
    double from = clock_ms();
    for (int k = 0; k < times; k++)
        all_layers(b, shapes[shape].n_head, rows);
    b->d->download(b->d, &probe, b->scratch, sizeof probe);
    return (clock_ms() - from) * 1e3 / times / b->l.n;
}

/* Microseconds of one layer; 0 if the device does not read the format. */
static double measure(bench *b, int shape, int32_t depth, int format, int32_t rows, double *bytes)
{
    double us[REPS];
    if (!open_layers(b, shape, depth, format, rows, bytes))
        return 0;
    for (int i = -3; i < REPS; i++) {
        double t = time_layers(b, shape, rows);
        if (i >= 0)
            us[i] = t;
    }
    close_layers(b);
    qsort(us, REPS, sizeof *us, ascending);
    return us[REPS / 2];
}

/* ---- Many rows ---------------------------------------------------------------------------- */

/* Multiplications and additions of attention; keys that a row does not see are not counted. */
static double tera(int shape, int32_t depth, int32_t n_rows)
{
    double keys = 0;
    for (int64_t r = 0; r < n_rows; r++) {
        int64_t n = depth + r + 1;
        int64_t most = shapes[shape].window ? shapes[shape].window : n;
        keys += (double)(n < most ? n : most);
    }
    return 4e-12 * keys * shapes[shape].n_head * shapes[shape].dim;
}

/* Milliseconds of one layer; copies its first and last row to `rows`, unless NULL. */
static double once(bench *b, int shape, int32_t n_rows, float *rows)
{
    size_t width = (size_t)shapes[shape].n_head * (size_t)shapes[shape].dim;
    float one;
    double from = clock_ms();
    mat y = all_layers(b, shapes[shape].n_head, n_rows);
    b->d->download(b->d, &one, b->scratch, sizeof one);
    double ms = clock_ms() - from;
    if (rows) {
        b->d->download(b->d, rows, y.at, width * sizeof *rows);
        b->d->download(b->d, rows + width, mat_row(y, n_rows - 1), width * sizeof *rows);
    }
    return ms;
}

static double distance(const float *a, const float *b, size_t n)
{
    double diff = 0, sum = 0;
    for (size_t i = 0; i < n; i++) {
        diff += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        sum += (double)a[i] * a[i];
    }
    return diff / sum;
}

/* Prints a line and returns the best median. two: the median of two streams, where this is one. */
static double compare(bench *b, int shape, int32_t depth, double two)
{
    cuda_device *c = b->d->self;
    int32_t n_rows = b->b.st.all.n;
    bool both = c->can_hopper;
    size_t width = (size_t)shapes[shape].n_head * (size_t)shapes[shape].dim;
    float *rows[2] = {mem_alloc(2 * width * sizeof(float)), mem_alloc(2 * width * sizeof(float))};
    double ms[2][MANY_REPS], work = tera(shape, depth, n_rows), best = 0;
    if (!rows[0] || !rows[1])
        exit(1);
    for (int i = -1; i < MANY_REPS; i++)
        for (int k = 0; k <= both; k++) {
            c->hopper = k;
            double t = once(b, shape, n_rows, i < 0 ? rows[k] : NULL);
            if (i >= 0)
                ms[k][i] = t;
        }
    for (int k = 0; k <= both; k++) {
        qsort(ms[k], MANY_REPS, sizeof *ms[k], ascending);
        double mid = ms[k][MANY_REPS / 2];
        printf("  %8.3f ms %5.0f (%4.1f %%)", mid, work / mid * 1e3,
               100 * work / mid * 1e3 / MANY_TERA);
        best = k == 0 || mid < best ? mid : best;
    }
    if (both)
        printf("  %5.2f  %.1e", ms[0][MANY_REPS / 2] / ms[1][MANY_REPS / 2],
               distance(rows[0], rows[1], 2 * width));
    if (two > 0)
        printf("  %5.2f", two / best);
    printf("\n");
    fflush(stdout);
    mem_free(rows[0]);
    mem_free(rows[1]);
    return best;
}

/* In one stream or in two. */
typedef struct chunk {
    int32_t depth, rows;
} chunk;
/* Opens a layer and a prompt's pass of its last rows. */
static void open_prompt(bench *b, int shape, chunk k, const kv_words *words)
{
    static int32_t ids[MANY_ROWS];
    bool one = !strcmp(words->single, "on");
    err e = {0};
    kv_spec spec = {.window = shapes[shape].window,
                    .n_head_kv = shapes[shape].n_head_kv,
                    .head_dim = shapes[shape].dim,
                    .k_is_v = one,
                    .k_norm = &b->norm,
                    .k_rope = &b->turn};
    kv_want_layout want = {
        .spec = &spec, .n = 1, .n_ctx = k.depth + k.rows, .rows_max = k.rows, .dev = {b->d}};
    check(kv_choice_parse(&want.choice, words, &e), &e);
    check(kv_layout_init(&b->l, &want, &e), &e);
    check(kv_open(&b->c, b->d, &b->l, &e), &e);
    check(kv_batch_init(&b->b, k.rows, 1, &b->l, &e), &e);
    const kv_view *v = &b->l.view[0];
    size_t store = (size_t)v->n_slots * (size_t)v->n_head_kv;
    fill(b->d, b->c.base[0].k, store * v->k_row_bytes, want.choice.k, v->head_dim);
    if (!one)
        fill(b->d, b->c.base[0].v, store * v->v_row_bytes, want.choice.v, v->head_dim);
    begin_at(b, k.depth, k.rows);
    check(kv_batch_add(&b->b, &b->c, ids, k.rows, NULL, KV_WANT_NONE, &e), &e);
    b->b.st.prompt = true;
}
static double many_rows(bench *b, int shape, chunk k, const kv_words *words, double two)
{
    open_prompt(b, shape, k, words);
    printf("%-16s %7d  %s", shapes[shape].name, k.depth,
           strcmp(words->single, "on") ? "two" : "one");
    double best = compare(b, shape, k.depth, two);
    close_layers(b);
    return best;
}

static void many(bench *b, const char *only, const char *type, int32_t rows)
{
    cuda_device *c = b->d->self;
    bool usual = c->hopper;
    printf("%s, %d rows, %s; TFLOP/s and share of %d\n", b->d->name, rows, type, MANY_TERA);
    printf("%-16s %7s  %3s  %-27s  %-27s  %5s  %-8s %s\n", "shape", "depth", "", "flash.cu",
           "flash*_hopper.cu", "ratio", "distance", "two/one");
    /* The queries, which are the first matrix of a pass. */
    fill(b->d, b->scratch, (size_t)MANY_ROWS * 32 * 512 * sizeof(float), (kv_format){NUM_F32, 0},
         512);
    for (int s = 0; s < SHAPES; s++)
        for (int i = 0; i < MANY_DEPTHS; i++) {
            kv_words two = {.k = type, .single = "off"}, one = {.k = type, .single = "on"};
            if (!strstr(shapes[s].name, only) || (shapes[s].window && i > 1))
                continue;
            chunk k = {many_depths[i], rows};
            double ms = many_rows(b, s, k, &two, 0);
            if (shapes[s].k_is_v)
                many_rows(b, s, k, &one, ms);
        }
    c->hopper = usual;
}

/* ---- Keys that are left out ----------------------------------------------------------------- */

/* Random rows of n_heads heads; those of one tile in `every` have `common` added to all elements.
 * Queries have a common part too, so that these tiles have the large scores. */
enum { PLANTED = 10, TILE = 128 };
static void plant(device *d, void *to, size_t n_heads, size_t n_rows, kv_format f, int32_t dim,
                  size_t every, float common)
{
    uint64_t rng = 5, row = 0;
    size_t n = every * TILE;
    num_row_bytes(f.type, (uint64_t)dim, &row);
    float *x = mem_alloc(n * (size_t)dim * sizeof *x);
    char *block = mem_alloc(n * row);
    if (!x || !block)
        exit(1);
    for (size_t i = 0; i < n * (size_t)dim; i++)
        x[i] = (float)rng_normal(&rng) * 0.2f + (i / (size_t)dim < TILE ? common : 0);
    if (f.rot)
        num_rotate(x, (int64_t)n * dim);
    num_format_of(f.type)->encode(x, block, (int64_t)n * dim);
    for (size_t h = 0; h < n_heads; h++)
        for (size_t at = 0; at < n_rows; at += n)
            d->upload(d, (char *)to + (h * n_rows + at) * row, block,
                      (n_rows - at < n ? n_rows - at : n) * row);
    mem_free(x);
    mem_free(block);
}

/* Medians of the pass by each rule in turn, exact first. */
static void by_rules(bench *b, int shape, int32_t rows, const sparse_rule *const *rule, int n,
                     double *median)
{
    double ms[4][MANY_REPS];
    for (int i = -1; i < MANY_REPS; i++)
        for (int k = 0; k < n; k++) {
            b->b.st.sparse = rule[k];
            double t = once(b, shape, rows, NULL);
            if (i >= 0)
                ms[k][i] = t;
        }
    b->b.st.sparse = NULL;
    for (int k = 0; k < n; k++) {
        qsort(ms[k], MANY_REPS, sizeof *ms[k], ascending);
        median[k] = ms[k][MANY_REPS / 2];
    }
}

/* Milliseconds of selecting tiles alone; the share that is read. One wait for several choices, as
 * in a pass: alone, the way to the device and back would count as much as a small model's kernels.
 */
static double select_alone(bench *b, int shape, int32_t rows, sparse_rule rule, double *share)
{
    enum { TIMES = 8 };
    static sparse_tally t;
    double ms[MANY_REPS];
    const kv_view *kv = &b->l.view[0];
    t = (sparse_tally){0};
    b->b.st.sparse = &rule;
    for (int i = -1; i < MANY_REPS; i++) {
        pass p;
        float one;
        rule.tally = i < 0 ? &t : NULL;
        pass_begin(&p, b->d, &b->b.st, b->scratch, b->scratch_bytes);
        p.il = 0;
        mat q = pass_mat(&p, rows, shapes[shape].n_head, kv->head_dim);
        const attend_args a = {.q = cuda_mat(q),
                               .kv = cuda_kv_view(kv, kv->single ? b->norm.packed : NULL),
                               .st = cuda_step(&p, kv),
                               .n_head = q.heads,
                               .scale = 1};
        void *room = pass_temp(&p, cuda_select_bytes(kv, rows, q.heads));
        b->d->download(b->d, &one, b->scratch, sizeof one);
        double from = clock_ms();
        for (int k = i < 0 ? TIMES - 1 : 0; k < TIMES; k++)
            cuda_lists(&p, kv, p.rows, &a, room);
        b->d->download(b->d, &one, b->scratch, sizeof one);
        if (i >= 0)
            ms[i] = (clock_ms() - from) / TIMES;
        pass_end(&p);
    }
    b->b.st.sparse = NULL;
    *share = (double)t.n_kept / (double)t.n_tiles;
    qsort(ms, MANY_REPS, sizeof *ms, ascending);
    return ms[MANY_REPS / 2];
}

static void left_out(bench *b, const char *only, const char *type, int32_t rows)
{
    const sparse_rule skip = {.skip = 500}, never = {.skip = 1e-37f};
    const sparse_rule flash = {.alpha = 0.1f, .n_prompt = 1 << 30};
    printf("%s, %d rows, %s; every %dth tile counts\n", b->d->name, rows, type, PLANTED);
    printf("%-16s %7s  %3s  %9s  %9s %6s  %13s %6s  %9s %6s %6s  %9s %6s\n", "shape", "depth", "",
           "exact", "skip", "ratio", "none skipped", "ratio", "blocks", "ratio", "read",
           "selecting", "share");
    for (int s = 0; s < SHAPES; s++)
        for (int i = 1; i < MANY_DEPTHS; i++) {
            bool one = shapes[s].k_is_v;
            kv_words words = {.k = type, .single = one ? "on" : "off"};
            double ms[4], share;
            if (!strstr(shapes[s].name, only) || shapes[s].window)
                continue;
            bool skips = shapes[s].dim == 512; /* others: exact in place of skip-softmax */
            const sparse_rule *const rule[] = {NULL, skips ? &skip : NULL, skips ? &never : NULL,
                                               &flash};
            open_prompt(b, s, (chunk){many_depths[i], rows}, &words);
            const kv_view *v = &b->l.view[0];
            plant(b->d, b->c.base[0].k, (size_t)v->n_head_kv, (size_t)v->n_slots,
                  (kv_format){v->k_type, v->k_rot}, v->head_dim, PLANTED, 1);
            plant(b->d, b->scratch, 1, (size_t)rows * (size_t)shapes[s].n_head,
                  (kv_format){NUM_F32, 0}, v->head_dim, 1, 0.2f);
            double alone = select_alone(b, s, rows, flash, &share);
            by_rules(b, s, rows, rule, 4, ms);
            printf("%-16s %7d  %s  %6.3f ms  %6.3f ms %6.2f  %10.3f ms %6.2f", shapes[s].name,
                   many_depths[i], one ? "one" : "two", ms[0], ms[1], ms[0] / ms[1], ms[2],
                   ms[0] / ms[2]);
            printf("  %6.3f ms %6.2f %4.1f %%  %6.3f ms %4.1f %%\n", ms[3], ms[0] / ms[3],
                   100 * share, alone, 100 * alone / ms[0]);
            fflush(stdout);
            close_layers(b);
        }
}

/* ---- Some rows ---------------------------------------------------------------------------- */

static void some(bench *b, int32_t rows, const char *shape, const char *format, int32_t depth)
{
    printf("%s, %d rows\n%-16s %7s", b->d->name, rows, "us (GB/s)", "depth");
    for (int f = 0; f < FORMATS; f++)
        if (strstr(formats[f].name, format))
            printf(" %14s", formats[f].name);
    printf("\n");
    for (int s = 0; s < SHAPES; s++)
        for (int i = 0; i < DEPTHS; i++) {
            if (!strstr(shapes[s].name, shape) || (shapes[s].window && i > 0) ||
                (depth && depth != depths[i]))
                continue;
            printf("%-16s %7d", shapes[s].name, depths[i]);
            for (int f = 0; f < FORMATS; f++) {
                if (!strstr(formats[f].name, format))
                    continue;
                double bytes = 0, us = measure(b, s, depths[i], f, rows, &bytes);
                printf(" %7.1f (%4.0f)", us, us > 0 ? bytes / us * 1e-3 : 0);
                fflush(stdout);
            }
            printf("\n");
        }
}

/* ---- Rows that are verified ---------------------------------------------------------------- */

static void verify(bench *b, const char *only, const char *format)
{
    static const int32_t rows[] = {1, 4, 8, 16, 32}, at[] = {1024, 4096, 65536};
    static const char keys[3];
    cuda_device *c = b->d->self;
    bool usual = c->hopper;
    int32_t shallow = c->shallow;
    printf("%s, us of a layer\n%-16s %-8s %7s %4s %9s %9s %9s %6s %8s\n", b->d->name, "", "",
           "depth", "rows", "no wgmma", "wgmma", "chosen", "ratio", "x 1 row");
    for (int s = 0; s < SHAPES; s++)
        for (int i = 0; i < 3; i++) {
            double one = 0;
            int f = 0;
            if (!strstr(shapes[s].name, only) || (shapes[s].window && i > 0))
                continue;
            const char *want = *format ? format : shapes[s].k_is_v ? "one f16" : "f16";
            while (f < FORMATS - 1 && strcmp(formats[f].name, want))
                f++;
            for (int r = 0; r < 5; r++) {
                double bytes, us[3];
                for (int k = 0; k < 3; k++) {
                    c->hopper = usual && k;
                    c->shallow = k == 1 ? 0 : shallow;
                    b->key = &keys[k];
                    us[k] = measure(b, s, at[i], f, rows[r], &bytes);
                }
                one = r ? one : us[2];
                printf("%-16s %-8s %7d %4d %9.1f %9.1f %9.1f %6.2f %8.2f\n", shapes[s].name,
                       formats[f].name, at[i], rows[r], us[0], us[1], us[2], us[0] / us[2],
                       us[2] / one);
                fflush(stdout);
            }
        }
    c->hopper = usual;
    c->shallow = shallow;
}

/* ---- Pages ---------------------------------------------------------------------------------- */

enum { IN_A_ROW, IN_ORDER, IN_DISORDER, PLACEMENTS };

/* A table of all pages of the open stores, in device memory; in order or not. */
static kv_page *make_table(bench *b, int32_t n, bool shuffled)
{
    uint64_t rng = 5;
    kv_page *host = mem_alloc(sizeof *host * (size_t)n);
    kv_page *table = b->d->alloc(b->d, sizeof *table * (size_t)n);
    if (!host || !table)
        exit(1);
    for (int32_t i = 0; i < n; i++)
        host[i] = (kv_page){i * KV_PAGE, i * KV_PAGE};
    for (int32_t i = n - 1; i > 0 && shuffled; i--) {
        int32_t k = (int32_t)rng_below(&rng, (uint64_t)i + 1), was = host[i].place;
        host[i].place = host[k].place;
        host[k].place = was;
    }
    b->d->upload(b->d, table, host, sizeof *table * (size_t)n);
    mem_free(host);
    return table;
}

static void put_table(bench *b, const kv_page *table)
{
    for (int32_t i = 0; i < b->l.n; i++)
        ((kv_base *)b->b.st.kv)[i].page = table;
}

/* Prints a line: medians, and the ratio to the store without a table. */
static void compare_placements(bench *b, int shape, int32_t depth, int format, int32_t rows)
{
    double us[PLACEMENTS][REPS], bytes;
    if (!open_layers(b, shape, depth, format, rows, &bytes))
        return;
    int32_t n = b->l.view[0].n_slots / KV_PAGE;
    kv_page *table[PLACEMENTS] = {NULL, make_table(b, n, false), make_table(b, n, true)};
    b->b.st.prompt = rows > 64;
    for (int i = -3; i < REPS; i++)
        for (int k = 0; k < PLACEMENTS; k++) {
            put_table(b, table[k]);
            double t = time_layers(b, shape, rows);
            if (i >= 0)
                us[k][i] = t;
        }
    printf("%-16s %-12s %7d %5d", shapes[shape].name, formats[format].name, depth, rows);
    for (int k = 0; k < PLACEMENTS; k++) {
        qsort(us[k], REPS, sizeof *us[k], ascending);
        printf(" %10.1f", us[k][REPS / 2]);
    }
    printf(" %8.3f %8.3f\n", us[0][REPS / 2] / us[IN_ORDER][REPS / 2],
           us[0][REPS / 2] / us[IN_DISORDER][REPS / 2]);
    fflush(stdout);
    for (int k = IN_ORDER; k < PLACEMENTS; k++)
        b->d->release(b->d, table[k], sizeof *table[k] * (size_t)n);
    close_layers(b);
}

static void compare_pages(bench *b, const char *only, const char *format, int32_t rows)
{
    printf("%s, us of a layer\n%-16s %-12s %7s %5s %10s %10s %10s %8s %8s\n", b->d->name, "", "",
           "depth", "rows", "no table", "in order", "shuffled", "ratio", "ratio");
    for (int s = 0; s < SHAPES; s++)
        for (int f = 0; f < FORMATS; f++)
            for (int i = 1; i < DEPTHS; i++) /* 32K and 128K */
                if (!shapes[s].window && strstr(shapes[s].name, only) &&
                    strstr(formats[f].name, format) && (rows <= 64 || i == 1))
                    compare_placements(b, s, depths[i], f, rows);
}

/* ---- Moves ---------------------------------------------------------------------------------- */

enum { MOVES = 16, PARKED = 32, MOVED = 256 };
typedef enum direction { OUT, IN, BOTH } direction;

typedef struct mover {
    page_moves *m;
    char *host; /* [PARKED] packed pages */
    size_t n_bytes;
    int32_t pages;                /* of the stores */
    int32_t move[MOVES], n, next; /* begun; of them, those that have ended */
} mover;

static void or_die(bool moved)
{
    if (!moved) {
        fprintf(stderr, "a page does not move\n");
        exit(1);
    }
}
static void end_oldest(mover *v)
{
    int32_t id = v->move[v->next++ % MOVES];
    page_move_state(v->m, id, true);
    page_move_end(v->m, id);
}
/* Pages i .. i + n - 1 go out or come in, at most MOVES at a time. Passes so far have ended before
 * a page moves. Passes to come see the pages of earlier calls. */
static void move_pages(mover *v, int32_t i, int32_t n, direction way)
{
    if (!n)
        return;
    or_die(page_moves_join(v->m) && page_moves_begin(v->m));
    for (int32_t end = i + n; i < end; i++) {
        char *host = v->host + (size_t)(i % PARKED) * v->n_bytes;
        int32_t place = i * 7 % v->pages * KV_PAGE;
        bool in = way == IN || (way == BOTH && i % 2);
        if (v->n - v->next == MOVES)
            end_oldest(v);
        int32_t id = in ? page_in(v->m, place, host) : page_out(v->m, place, host);
        or_die(id >= 0);
        v->move[v->n++ % MOVES] = id;
    }
}
static void end_moves(bench *b, mover *v)
{
    float probe;
    or_die(page_moves_join(v->m));
    while (v->next < v->n)
        end_oldest(v);
    b->d->download(b->d, &probe, b->scratch, sizeof probe); /* copies on the device */
}

static double gigabytes(const mover *v, int32_t n, double ms)
{
    return (double)v->n_bytes * n / ms * 1e-6;
}

enum { TOKEN_MS = 2, TOKENS = 24, BESIDES = 3 };
static const int32_t besides[BESIDES] = {4, 32, 80}; /* pages in the time of a token */

/* Milliseconds of TOKENS tokens of n_passes passes each, while so many pages move. */
static double move_beside(bench *b, mover *v, int shape, int32_t n_passes, int32_t n_pages)
{
    double from = clock_ms();
    for (int32_t t = 0, moved = 0; t < TOKENS; t++)
        for (int32_t i = 0; i < n_passes; i++) {
            int32_t n = t * n_pages + (i + 1) * n_pages / n_passes - moved;
            all_layers(b, shapes[shape].n_head, 1);
            move_pages(v, moved, n, BOTH);
            moved += n;
        }
    end_moves(b, v);
    return clock_ms() - from;
}

static void measure_moves(bench *b, int shape, int format)
{
    row_store store[2 * LAYERS_MAX];
    mover v = {0};
    err e = {0};
    int32_t n = 0;
    double bytes, rate[3], from;
    if (!open_layers(b, shape, depths[1], format, 1, &bytes))
        return;
    for (int32_t i = 0; i < b->l.n; i++)
        for (int kv = 0; kv < (b->l.view[i].single ? 1 : 2); kv++) {
            const kv_view *w = &b->l.view[i];
            store[n++] = (row_store){.at = kv ? b->c.base[i].v : b->c.base[i].k,
                                     .row_bytes = kv ? w->v_row_bytes : w->k_row_bytes,
                                     .n_heads = w->n_head_kv,
                                     .n_slots = w->n_slots};
        }
    v.n_bytes = page_bytes(store, n);
    v.pages = b->l.view[0].n_slots / KV_PAGE;
    check(page_moves_open(&v.m, b->d, store, n, MOVES, &e), &e);
    v.host = b->d->host_alloc(b->d, v.n_bytes * PARKED);
    if (!v.host)
        exit(1);
    move_pages(&v, 0, PARKED, OUT); /* fills the host's pages, and locks them */
    end_moves(b, &v);
    for (direction way = OUT; way <= IN; way++) {
        from = clock_ms();
        move_pages(&v, 0, MOVED, way);
        end_moves(b, &v);
        rate[way] = gigabytes(&v, MOVED, clock_ms() - from);
    }
    from = clock_ms();
    for (int32_t i = 0; i + 1 < v.pages && i < MOVED; i++)
        device_copy_pages(b->d, store, n, &(page_copy){i * KV_PAGE, (i + 1) * KV_PAGE}, 1);
    end_moves(b, &v);
    rate[2] = gigabytes(&v, v.pages - 1 < MOVED ? v.pages - 1 : MOVED, clock_ms() - from);
    time_layers(b, shape, 1);
    double pass_ms = time_layers(b, shape, 1) * 1e-3 * b->l.n;
    printf("%-16s %-12s %8.2f %7.1f %7.1f %7.1f", shapes[shape].name, formats[format].name,
           (double)v.n_bytes / (1 << 20), rate[OUT], rate[IN], rate[2]);
    for (int k = 0; k < BESIDES; k++) {
        double ms = move_beside(b, &v, shape, (int32_t)ceil(TOKEN_MS / pass_ms), besides[k]);
        double alone = TOKENS * ceil(TOKEN_MS / pass_ms) * pass_ms;
        printf(" %7.1f %7.3f", gigabytes(&v, TOKENS * besides[k], ms), alone / ms);
    }
    printf("\n");
    fflush(stdout);
    page_moves_close(v.m);
    b->d->host_free(b->d, v.host, v.n_bytes * PARKED);
    close_layers(b);
}

static void compare_moves(bench *b, const char *only, const char *format)
{
    printf("%s, GB/s\n%-16s %-12s %8s %7s %7s %7s", b->d->name, "", "", "page MiB", "out", "in",
           "copied");
    for (int k = 0; k < BESIDES; k++)
        printf(" %4d a token", besides[k]);
    printf("\n");
    for (int s = 0; s < SHAPES; s++)
        for (int f = 0; f < FORMATS; f++)
            if (!shapes[s].window && strstr(shapes[s].name, only) &&
                strstr(formats[f].name, *format ? format : "f16"))
                measure_moves(b, s, f);
}

/* ---- Scores --------------------------------------------------------------------------------- */

enum { SCORED = 131072, WATCHED = 8 };

typedef struct scorer {
    page_sums sums[LAYERS_MAX];
    page_watch w;
    size_t sum_bytes, score_bytes, room_bytes;
} scorer;

/* Scores all layers by the last n rows of the open batch. */
static void score_layers(bench *b, scorer *s, int32_t n_head)
{
    pass p;
    err e = {0};
    pass_begin(&p, b->d, &b->b.st, b->scratch, b->scratch_bytes);
    mat q = pass_mat(&p, b->b.st.all.n, n_head, b->l.view[0].head_dim);
    p.watch = &s->w;
    p.n_watch = 1;
    for (int32_t i = 0; i < b->l.n; i++)
        b->d->op->watch_pages(&p, q, &b->l.view[i], 0.05f, &s->w);
    if (pass_failed(&p))
        check(err_set(&e, p.e.status, "%s", p.e.text), &e);
}

/* Microseconds of a layer. */
static double time_scores(bench *b, scorer *s, int32_t n_head)
{
    enum { TIMES = 16 };
    float one;
    double us[REPS];
    for (int i = -2; i < REPS; i++) {
        b->d->download(b->d, &one, b->scratch, sizeof one);
        double from = clock_ms();
        for (int k = 0; k < TIMES; k++)
            score_layers(b, s, n_head);
        b->d->download(b->d, &one, b->scratch, sizeof one);
        if (i >= 0)
            us[i] = (clock_ms() - from) * 1e3 / TIMES / b->l.n;
    }
    qsort(us, REPS, sizeof *us, ascending);
    return us[REPS / 2];
}

static void open_scorer(bench *b, scorer *s)
{
    const kv_view *v = &b->l.view[0];
    int32_t n_pages = SCORED / KV_PAGE;
    s->sum_bytes = (size_t)v->n_head_kv * (size_t)n_pages * 4 * (size_t)v->head_dim;
    s->score_bytes = (size_t)n_pages * sizeof(float);
    s->room_bytes = page_watch_room(n_pages, v->head_dim) * sizeof(float);
    s->w = (page_watch){.n_pages = n_pages,
                        .sums = s->sums,
                        .score = {b->d->alloc(b->d, s->score_bytes)},
                        .room = {b->d->alloc(b->d, s->room_bytes)}};
    for (int32_t i = 0; i < b->l.n; i++) {
        s->sums[i] = (page_sums){b->d->alloc(b->d, s->sum_bytes), n_pages, PAGE_SUM_BOUNDS};
        if (!s->sums[i].at || !s->w.score[0] || !s->w.room[0])
            exit(1);
    }
}

static void close_scorer(bench *b, scorer *s)
{
    for (int32_t i = 0; i < b->l.n; i++)
        b->d->release(b->d, s->sums[i].at, s->sum_bytes);
    b->d->release(b->d, s->w.score[0], s->score_bytes);
    b->d->release(b->d, s->w.room[0], s->room_bytes);
}

static void measure_scores(bench *b, int shape, int format, int32_t layers)
{
    static float score[SCORED / KV_PAGE];
    scorer s;
    double bytes, us[2], from, sum_us;
    float one;
    for (int k = 0; k < 2; k++) {
        if (!open_layers(b, shape, SCORED, format, k ? WATCHED : 1, &bytes))
            return;
        open_scorer(b, &s);
        int32_t n_pages = SCORED / KV_PAGE;
        for (int i = 0; i < 2; i++) { /* the second time is kept */
            b->d->download(b->d, &one, b->scratch, sizeof one);
            from = clock_ms();
            for (int32_t j = 0; j < b->l.n; j++)
                b->d->sum_pages(b->d, &b->l.view[j], &b->c.base[j], &s.sums[j], 0, 0, n_pages);
            b->d->download(b->d, &one, b->scratch, sizeof one);
            sum_us = (clock_ms() - from) * 1e3 / b->l.n / n_pages;
        }
        us[k] = time_scores(b, &s, shapes[shape].n_head);
        from = clock_ms();
        b->d->download(b->d, score, s.w.score[0], s.score_bytes);
        from = clock_ms() - from;
        close_scorer(b, &s);
        close_layers(b);
    }
    printf("%-16s %-8s %6d %10.3f %8.1f %8.1f %10.3f %10.3f %9.3f\n", shapes[shape].name,
           formats[format].name, layers, sum_us, us[0], us[1], us[0] * WATCHED * layers * 1e-3,
           us[1] * layers * 1e-3, from);
    fflush(stdout);
}

static void compare_scores(bench *b, const char *only, const char *format)
{
    static const struct {
        const char *shape;
        int32_t layers; /* with global attention, of the model */
    } models[] = {{"31B global", 10},     {"26B-A4B global", 5}, {"12B global", 8},
                  {"E4B global", 4},      {"Qwen3-32B", 64},     {"Qwen3.5-27B", 16},
                  {"Qwen3.5-35B-A3B", 10}};
    printf("%s, %d tokens\n%-16s %-8s %6s %10s %8s %8s %10s %10s %9s\n", b->d->name, SCORED, "", "",
           "layers", "us a page", "1 row", "8 rows", "8 x 1, ms", "8, ms", "read, ms");
    for (size_t m = 0; m < sizeof models / sizeof *models; m++)
        for (int s = 0; s < SHAPES; s++)
            for (int f = 0; f < FORMATS; f++)
                if (!strcmp(shapes[s].name, models[m].shape) && strstr(shapes[s].name, only) &&
                    !strcmp(formats[f].name, *format ? format : "f16"))
                    measure_scores(b, s, f, models[m].layers);
}

int main(int argc, char **argv)
{
    bench b = {.scratch_bytes = (size_t)1 << 30};
    err e = {0};
    bool prompt = argc > 1 && !strcmp(argv[1], "many");
    bool verified = argc > 1 && !strcmp(argv[1], "verify");
    bool paged = argc > 1 && !strcmp(argv[1], "pages");
    bool moved = argc > 1 && !strcmp(argv[1], "moves");
    bool sparse = argc > 1 && !strcmp(argv[1], "sparse");
    bool scored = argc > 1 && !strcmp(argv[1], "scores");
    bool named = prompt || verified || paged || moved || sparse || scored;
    int32_t rows = argc > 1 && !named ? atoi(argv[1]) : 1, fourth = argc > 4 ? atoi(argv[4]) : 0;
    const char *shape = argc > 2 ? argv[2] : "", *format = argc > 3 ? argv[3] : "";
    if (rows < 1 || rows > MANY_ROWS || fourth < 0 ||
        ((prompt || paged || sparse) && fourth > MANY_ROWS))
        return 2;
    check(device_open_cuda(&b.d, NULL, &e), &e);
    b.key = &b;
    b.scratch = b.d->alloc(b.d, b.scratch_bytes);
    if (!b.scratch)
        return 1;
    open_maker(&b);
    if (verified)
        verify(&b, shape, format);
    else if (scored)
        compare_scores(&b, shape, format);
    else if (moved)
        compare_moves(&b, shape, format);
    else if (paged)
        compare_pages(&b, shape, format, fourth ? fourth : 1);
    else if (sparse)
        left_out(&b, shape, *format ? format : "f16", fourth ? fourth : MANY_ROWS);
    else if (prompt)
        many(&b, shape, *format ? format : "f16", fourth ? fourth : MANY_ROWS);
    else
        some(&b, rows, shape, format, fourth);
    b.d->weight_free(b.d, &b.norm);
    b.d->release(b.d, (void *)b.turn.inv_freq, DIM / 2 * sizeof(float));
    b.d->release(b.d, (void *)b.turn.turns, (size_t)ROPE_TURNS * 2 * TURNING * sizeof(float));
    b.d->release(b.d, b.scratch, b.scratch_bytes);
    device_close(b.d);
    return 0;
}
