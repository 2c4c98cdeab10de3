/* attend_cuda_prompt.c - attention of a prompt's chunk: by each kernel, and with keys left out.
 * attend_cuda.c says what is measured.
 */
#include "bench/attend_cuda.h"
#include "backend/ops.h"
#include "backend/sparse.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/order.h"
#include "base/rng.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MANY_REPS = 5, MANY_DEPTHS = 4, MANY_TERA = 790 /* bf16, cuBLAS, on an H200 */ };

static const int32_t many_depths[MANY_DEPTHS] = {0, 32768, 65536, 131072};

/* Multiplications and additions of attention; keys that a row does not see are not counted. */
static double tera(int shape, int32_t depth, int32_t n_rows)
{
    double keys = 0;
    for (int64_t r = 0; r < n_rows; r++) {
        int64_t n = depth + r + 1;
        int64_t most = bench_shapes[shape].window ? bench_shapes[shape].window : n;
        keys += (double)(n < most ? n : most);
    }
    return 4e-12 * keys * bench_shapes[shape].n_head * bench_shapes[shape].dim;
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
    size_t width = (size_t)bench_shapes[shape].n_head * (size_t)bench_shapes[shape].dim;
    float *rows[2] = {mem_alloc(2 * width * sizeof(float)), mem_alloc(2 * width * sizeof(float))};
    double ms[2][MANY_REPS], work = tera(shape, depth, n_rows), best = 0;
    if (!rows[0] || !rows[1])
        exit(1);
    for (int i = -1; i < MANY_REPS; i++)
        for (int k = 0; k <= both; k++) {
            c->hopper = k;
            double t = bench_once(b, shape, n_rows, i < 0 ? rows[k] : NULL);
            if (i >= 0)
                ms[k][i] = t;
        }
    for (int k = 0; k <= both; k++) {
        qsort(ms[k], MANY_REPS, sizeof *ms[k], order_doubles);
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

static double many_rows(bench *b, int shape, chunk k, const kv_words *words, double two)
{
    bench_open_prompt(b, shape, k, words);
    printf("%-16s %7d  %s", bench_shapes[shape].name, k.depth,
           strcmp(words->single, "on") ? "two" : "one");
    double best = compare(b, shape, k.depth, two);
    bench_close(b);
    return best;
}

void bench_many(bench *b, const char *only, const char *type, int32_t rows)
{
    cuda_device *c = b->d->self;
    bool usual = c->hopper;
    printf("%s, %d rows, %s; TFLOP/s and share of %d\n", b->d->name, rows, type, MANY_TERA);
    printf("%-16s %7s  %3s  %-27s  %-27s  %5s  %-8s %s\n", "shape", "depth", "", "flash.cu",
           "flash*_hopper.cu", "ratio", "distance", "two/one");
    /* The queries, which are the first matrix of a pass. */
    bench_fill(b->d, b->scratch, (size_t)MANY_ROWS * 32 * 512 * sizeof(float),
               (kv_format){NUM_F32, 0}, 512);
    for (int s = 0; s < SHAPES; s++)
        for (int i = 0; i < MANY_DEPTHS; i++) {
            kv_words two = {.k = type, .single = "off"}, one = {.k = type, .single = "on"};
            if (!strstr(bench_shapes[s].name, only) || (bench_shapes[s].window && i > 1))
                continue;
            chunk k = {many_depths[i], rows};
            double ms = many_rows(b, s, k, &two, 0);
            if (bench_shapes[s].k_is_v)
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
            double t = bench_once(b, shape, rows, NULL);
            if (i >= 0)
                ms[k][i] = t;
        }
    b->b.st.sparse = NULL;
    for (int k = 0; k < n; k++) {
        qsort(ms[k], MANY_REPS, sizeof *ms[k], order_doubles);
        median[k] = ms[k][MANY_REPS / 2];
    }
}

/* Milliseconds of selecting tiles alone; the share that is read. One wait for several choices, as
 * in a pass: alone, the way to the device and back would count as much as a small model's kernels.
 */
static double select_alone(bench *b, int shape, int32_t rows, sparse_rule rule, double *share)
{
    enum { TIMES = 8 };
    static sparse_stats t;
    double ms[MANY_REPS];
    const kv_view *kv = &b->l.view[0];
    t = (sparse_stats){0};
    b->b.st.sparse = &rule;
    for (int i = -1; i < MANY_REPS; i++) {
        pass p;
        float one;
        rule.stats = i < 0 ? &t : NULL;
        pass_begin(&p, b->d, &b->b.st, b->scratch, b->scratch_bytes);
        p.il = 0;
        mat q = pass_mat(&p, rows, bench_shapes[shape].n_head, kv->head_dim);
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
    qsort(ms, MANY_REPS, sizeof *ms, order_doubles);
    return ms[MANY_REPS / 2];
}

void bench_left_out(bench *b, const char *only, const char *type, int32_t rows)
{
    const sparse_rule skip = {.skip = 500}, never = {.skip = 1e-37f};
    const sparse_rule flash = {.alpha = 0.1f, .n_prompt = 1 << 30};
    printf("%s, %d rows, %s; every %dth tile counts\n", b->d->name, rows, type, PLANTED);
    printf("%-16s %7s  %3s  %9s  %9s %6s  %13s %6s  %9s %6s %6s  %9s %6s\n", "shape", "depth", "",
           "exact", "skip", "ratio", "none skipped", "ratio", "blocks", "ratio", "read",
           "selecting", "share");
    for (int s = 0; s < SHAPES; s++)
        for (int i = 1; i < MANY_DEPTHS; i++) {
            bool one = bench_shapes[s].k_is_v;
            kv_words words = {.k = type, .single = one ? "on" : "off"};
            double ms[4], share;
            if (!strstr(bench_shapes[s].name, only) || bench_shapes[s].window)
                continue;
            bool skips = bench_shapes[s].dim == 512; /* others: exact in place of skip-softmax */
            const sparse_rule *const rule[] = {NULL, skips ? &skip : NULL, skips ? &never : NULL,
                                               &flash};
            bench_open_prompt(b, s, (chunk){many_depths[i], rows}, &words);
            const kv_view *v = &b->l.view[0];
            plant(b->d, b->c.base[0].k, (size_t)v->n_head_kv, (size_t)v->n_slots,
                  (kv_format){v->k_type, v->k_rot}, v->head_dim, PLANTED, 1);
            plant(b->d, b->scratch, 1, (size_t)rows * (size_t)bench_shapes[s].n_head,
                  (kv_format){NUM_F32, 0}, v->head_dim, 1, 0.2f);
            double alone = select_alone(b, s, rows, flash, &share);
            by_rules(b, s, rows, rule, 4, ms);
            printf("%-16s %7d  %s  %6.3f ms  %6.3f ms %6.2f  %10.3f ms %6.2f", bench_shapes[s].name,
                   many_depths[i], one ? "one" : "two", ms[0], ms[1], ms[0] / ms[1], ms[2],
                   ms[0] / ms[2]);
            printf("  %6.3f ms %6.2f %4.1f %%  %6.3f ms %4.1f %%\n", ms[3], ms[0] / ms[3],
                   100 * share, alone, 100 * alone / ms[0]);
            fflush(stdout);
            bench_close(b);
        }
}

/* Microseconds of a layer, exact, by skip-softmax, and by a scale that drops nothing. */
static void left_out_answers(bench *b, int shape, int format, int32_t depth, int32_t rows)
{
    static sparse_stats t;
    const float scale[] = {0, 500, 1e-37f};
    const bench_shape *s = &bench_shapes[shape];
    double us[3][REPS], bytes;
    sparse_rule rule = {.skip = scale[1], .stats = &t};
    pass p;
    if (!bench_open(b, shape, depth, format, rows, &bytes))
        return;
    const kv_view *v = &b->l.view[0];
    for (int i = 0; i < b->l.n; i++)
        plant(b->d, b->c.base[i].k, (size_t)v->n_head_kv, (size_t)v->n_slots,
              (kv_format){v->k_type, v->k_rot}, v->head_dim, PLANTED, 1);
    plant(b->d, b->scratch, 1, (size_t)rows * (size_t)s->n_head, (kv_format){NUM_F32, 0},
          v->head_dim, 1, 0.2f);
    b->b.st.sparse = &rule;
    t = (sparse_stats){0};
    pass_begin(&p, b->d, &b->b.st, b->scratch, b->scratch_bytes);
    p.il = 0;
    op_attend(&p, pass_mat(&p, rows, s->n_head, v->head_dim), v, 1.0f);
    pass_end(&p);
    rule.stats = NULL;
    for (int i = -3; i < REPS; i++)
        for (int k = 0; k < 3; k++) {
            rule.skip = scale[k];
            double one = bench_time(b, shape, rows);
            if (i >= 0)
                us[k][i] = one;
        }
    b->b.st.sparse = NULL;
    for (int k = 0; k < 3; k++)
        qsort(us[k], REPS, sizeof *us[k], order_doubles);
    double exact = us[0][REPS / 2], skips = us[1][REPS / 2], never = us[2][REPS / 2];
    printf("%-16s %7d  %9.1f us  %9.1f us %6.2f  %10.1f us %6.2f  %5.1f %%  %.3g\n", s->name, depth,
           exact, skips, exact / skips, never, exact / never,
           t.n_tiles ? 100.0 * (double)t.n_kept / (double)t.n_tiles : 100,
           sparse_quantile(&t, 0.99));
    fflush(stdout);
    bench_close(b);
}

void bench_left_out_of_answers(bench *b, const char *only, const char *format, int32_t rows)
{
    printf("%s, %d rows of answers, %s; every %dth tile counts\n", b->d->name, rows, format,
           PLANTED);
    printf("%-16s %7s  %9s     %9s    %6s  %13s %6s  %7s  %s\n", "shape", "depth", "exact", "skip",
           "ratio", "none skipped", "ratio", "read", "p99");
    for (int s = 0; s < SHAPES; s++)
        for (int f = 0; f < FORMATS; f++)
            for (int i = 1; i < DEPTHS; i++)
                if (strstr(bench_shapes[s].name, only) && !bench_shapes[s].window &&
                    !strcmp(bench_formats[f].name, format))
                    left_out_answers(b, s, f, bench_depths[i], rows);
}
