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
 * alone, in it, and its share of exact attention's. At most 64 rows are answers', timed as above:
 * exact, by skip-softmax, and by a scale that drops nothing; the share of values that is read, and
 * the certificates' 99th percentile.
 *
 * verify: 1 to 32 rows over short and long contexts, in FORMAT (default: f16 as the device
 * keeps it): by the kernels of other GPUs, by split_hopper.cu alone, and as the device chooses; the
 * ratio of the first and the last, and the last one's time over that of one row. A shape takes
 * about ten seconds.
 *
 * pages: one layer whose keys lie in a row without a table, in pages in their order, and in pages
 * in random order; in turns, in one run: medians, and the first one's time over each of the others.
 * At least 0.98 is demanded at 32K and 128K.
 *
 * moves: pages of all layers to the host, back to other places, and copied on the device: GB/s; and
 * passes of one row, repeated to the 2 ms of a token, while pages go out and come back: GB/s, and
 * the passes' time without moves over that with them.
 *
 * scores: 128K tokens, 2048 pages, whole models: us of summarising a page; ms that 1, 4 and 8 rows
 * of a pass take to score all pages by their bounds in all layers without a window, beyond the norm
 * that makes their queries; four passes of one row, which are a choice of an answer: at most 2 ms
 * are demanded of that; the rate at which one row reads bounds; reading the scores.
 */
#include "bench/attend_cuda.h"
#include "base/order.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Microseconds of one layer; 0 if the device does not read the format. */
static double measure(bench *b, int shape, int32_t depth, int format, int32_t rows, double *bytes)
{
    double us[REPS];
    if (!bench_open(b, shape, depth, format, rows, bytes))
        return 0;
    for (int i = -3; i < REPS; i++) {
        double t = bench_time(b, shape, rows);
        if (i >= 0)
            us[i] = t;
    }
    bench_close(b);
    qsort(us, REPS, sizeof *us, order_doubles);
    return us[REPS / 2];
}

/* ---- Some rows ---------------------------------------------------------------------------- */

static void some(bench *b, int32_t rows, const char *shape, const char *format, int32_t depth)
{
    printf("%s, %d rows\n%-16s %7s", b->d->name, rows, "us (GB/s)", "depth");
    for (int f = 0; f < FORMATS; f++)
        if (strstr(bench_formats[f].name, format))
            printf(" %14s", bench_formats[f].name);
    printf("\n");
    for (int s = 0; s < SHAPES; s++)
        for (int i = 0; i < DEPTHS; i++) {
            if (!strstr(bench_shapes[s].name, shape) || (bench_shapes[s].window && i > 0) ||
                (depth && depth != bench_depths[i]))
                continue;
            printf("%-16s %7d", bench_shapes[s].name, bench_depths[i]);
            for (int f = 0; f < FORMATS; f++) {
                if (!strstr(bench_formats[f].name, format))
                    continue;
                double bytes = 0, us = measure(b, s, bench_depths[i], f, rows, &bytes);
                printf(" %7.1f (%4.0f)", us, us > 0 ? bytes / us * 1e-3 : 0);
                fflush(stdout);
            }
            printf("\n");
        }
}

/* ---- Rows that are verified ---------------------------------------------------------------- */

static int format_named(const char *name)
{
    int f = 0;
    while (f < FORMATS - 1 && strcmp(bench_formats[f].name, name))
        f++;
    return f;
}

/* f16, in one stream where the device keeps it so. */
static int usual_format(bench *b, int shape, int32_t depth)
{
    const int one = format_named("one f16");
    double bytes;
    if (!bench_open(b, shape, depth, one, 1, &bytes))
        return format_named("f16");
    const bool kept = b->d->one_stream(b->d, &b->l.view[0]);
    bench_close(b);
    return kept ? one : format_named("f16");
}

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
            if (!strstr(bench_shapes[s].name, only) || (bench_shapes[s].window && i > 0))
                continue;
            const int f = *format ? format_named(format) : usual_format(b, s, at[i]);
            for (int r = 0; r < 5; r++) {
                double bytes, us[3];
                for (int k = 0; k < 3; k++) {
                    c->hopper = usual && k;
                    c->shallow = k == 1 ? 0 : shallow;
                    b->key = &keys[k];
                    us[k] = measure(b, s, at[i], f, rows[r], &bytes);
                }
                one = r ? one : us[2];
                printf("%-16s %-8s %7d %4d %9.1f %9.1f %9.1f %6.2f %8.2f\n", bench_shapes[s].name,
                       bench_formats[f].name, at[i], rows[r], us[0], us[1], us[2], us[0] / us[2],
                       us[2] / one);
                fflush(stdout);
            }
        }
    c->hopper = usual;
    c->shallow = shallow;
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
        ((prompt || paged || sparse) && fourth > MANY_ROWS)) {
        fprintf(stderr,
                "usage: bench_attend_cuda [ROWS] [SHAPE] [FORMAT] [DEPTH], rows 1 to %d; or with "
                "many, sparse, verify, pages, moves or scores first: attend_cuda.c says how\n",
                MANY_ROWS);
        return 2;
    }
    bench_check(device_open_cuda(&b.d, NULL, &e), &e);
    b.key = &b;
    b.scratch = b.d->alloc(b.d, b.scratch_bytes);
    if (!b.scratch)
        return 1;
    bench_open_maker(&b);
    if (verified)
        verify(&b, shape, format);
    else if (scored)
        bench_scores(&b, shape, format);
    else if (moved)
        bench_moves(&b, shape, format);
    else if (paged)
        bench_pages(&b, shape, format, fourth ? fourth : 1);
    else if (sparse && fourth && fourth <= 64)
        bench_left_out_of_answers(&b, shape, *format ? format : "f16", fourth);
    else if (sparse)
        bench_left_out(&b, shape, *format ? format : "f16", fourth ? fourth : MANY_ROWS);
    else if (prompt)
        bench_many(&b, shape, *format ? format : "f16", fourth ? fourth : MANY_ROWS);
    else
        some(&b, rows, shape, format, fourth);
    bench_close_maker(&b);
    b.d->release(b.d, b.scratch, b.scratch_bytes);
    device_close(b.d);
    return 0;
}
