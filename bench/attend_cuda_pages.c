/* attend_cuda_pages.c - keys in pages: their tables, their moves and their scores. attend_cuda.c
 * says what is measured.
 */
#include "bench/attend_cuda.h"
#include "backend/ops.h"
#include "backend/page_moves.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/order.h"
#include "base/rng.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
    if (!bench_open(b, shape, depth, format, rows, &bytes))
        return;
    int32_t n = b->l.view[0].n_slots / KV_PAGE;
    kv_page *table[PLACEMENTS] = {NULL, make_table(b, n, false), make_table(b, n, true)};
    b->b.st.prompt = rows > 64;
    for (int i = -3; i < REPS; i++)
        for (int k = 0; k < PLACEMENTS; k++) {
            put_table(b, table[k]);
            double t = bench_time(b, shape, rows);
            if (i >= 0)
                us[k][i] = t;
        }
    printf("%-16s %-12s %7d %5d", bench_shapes[shape].name, bench_formats[format].name, depth,
           rows);
    for (int k = 0; k < PLACEMENTS; k++) {
        qsort(us[k], REPS, sizeof *us[k], order_doubles);
        printf(" %10.1f", us[k][REPS / 2]);
    }
    printf(" %8.3f %8.3f\n", us[0][REPS / 2] / us[IN_ORDER][REPS / 2],
           us[0][REPS / 2] / us[IN_DISORDER][REPS / 2]);
    fflush(stdout);
    for (int k = IN_ORDER; k < PLACEMENTS; k++)
        b->d->release(b->d, table[k], sizeof *table[k] * (size_t)n);
    bench_close(b);
}

void bench_pages(bench *b, const char *only, const char *format, int32_t rows)
{
    printf("%s, us of a layer\n%-16s %-12s %7s %5s %10s %10s %10s %8s %8s\n", b->d->name, "", "",
           "depth", "rows", "no table", "in order", "shuffled", "ratio", "ratio");
    for (int s = 0; s < SHAPES; s++)
        for (int f = 0; f < FORMATS; f++)
            for (int i = 1; i < DEPTHS; i++) /* 32K and 128K */
                if (!bench_shapes[s].window && strstr(bench_shapes[s].name, only) &&
                    strstr(bench_formats[f].name, format) && (rows <= 64 || i == 1))
                    compare_placements(b, s, bench_depths[i], f, rows);
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
    b->d->download(b->d, &probe, b->scratch, sizeof probe); /* passes end */
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
            bench_layers(b, bench_shapes[shape].n_head, 1);
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
    double bytes, rate[2], from;
    if (!bench_open(b, shape, bench_depths[1], format, 1, &bytes))
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
    bench_check(page_moves_open(&v.m, b->d, store, n, MOVES, &e), &e);
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
    bench_time(b, shape, 1);
    double pass_ms = bench_time(b, shape, 1) * 1e-3 * b->l.n;
    printf("%-16s %-12s %8.2f %7.1f %7.1f", bench_shapes[shape].name, bench_formats[format].name,
           (double)v.n_bytes / (1 << 20), rate[OUT], rate[IN]);
    for (int k = 0; k < BESIDES; k++) {
        double ms = move_beside(b, &v, shape, (int32_t)ceil(TOKEN_MS / pass_ms), besides[k]);
        double alone = TOKENS * ceil(TOKEN_MS / pass_ms) * pass_ms;
        printf(" %7.1f %7.3f", gigabytes(&v, TOKENS * besides[k], ms), alone / ms);
    }
    printf("\n");
    fflush(stdout);
    page_moves_close(v.m);
    b->d->host_free(b->d, v.host, v.n_bytes * PARKED);
    bench_close(b);
}

void bench_moves(bench *b, const char *only, const char *format)
{
    printf("%s, GB/s\n%-16s %-12s %8s %7s %7s", b->d->name, "", "", "page MiB", "out", "in");
    for (int k = 0; k < BESIDES; k++)
        printf(" %4d a token", besides[k]);
    printf("\n");
    for (int s = 0; s < SHAPES; s++)
        for (int f = 0; f < FORMATS; f++)
            if (!bench_shapes[s].window && strstr(bench_shapes[s].name, only) &&
                strstr(bench_formats[f].name, *format ? format : "f16"))
                measure_moves(b, s, f);
}

/* ---- Scores --------------------------------------------------------------------------------- */

enum { SCORED = 131072, SCORED_LAYERS = 64, TURNS = 3 };

static const int32_t watched[TURNS] = {1, 4, 8}; /* rows of a pass */

/* A model's layers without a window: a few stores of keys, but summaries of every layer. */
typedef struct scorer {
    kv_view view[SCORED_LAYERS];
    page_sums sums[SCORED_LAYERS];
    page_watch w;
    int32_t layers, n_head;
    size_t sum_bytes, vote_bytes, room_bytes;
} scorer;

/* The queries of all layers, normed, by the rows of the open batch; watched or not. As in decoding,
 * the pass is played from a recording, and the op before makes the queries. */
static void score_layers(bench *b, scorer *s, bool watch)
{
    pass p;
    mat y = {0};
    err e = {0};
    pass_begin(&p, b->d, &b->b.st, b->scratch, b->scratch_bytes);
    p.watch = &s->w;
    p.n_watch = watch;
    if (b->d->replay(b->d, &p, b->key, s, &y))
        return;
    for (int32_t i = 0; i < s->layers; i++) {
        size_t mark = pass_mark(&p);
        mat q = op_rms_norm(&p, pass_mat(&p, b->b.st.all.n, s->n_head, s->view[i].head_dim), NULL,
                            1e-6f);
        if (watch)
            b->d->op->watch_pages(&p, q, &s->view[i], 0.05f, &s->w);
        pass_release(&p, mark);
    }
    pass_end(&p);
    b->d->recorded(b->d, &p, y);
    if (pass_failed(&p))
        bench_check(err_set(&e, p.e.status, "%s", p.e.text), &e);
}

/* Milliseconds that a pass takes longer if it is watched. */
static double time_scores(bench *b, scorer *s)
{
    enum { TIMES = 16 };
    float one;
    double ms[REPS];
    for (int i = -3; i < REPS; i++) {
        double took[2];
        for (int watch = 0; watch < 2; watch++) {
            b->d->download(b->d, &one, b->scratch, sizeof one);
            double from = clock_ms();
            for (int k = 0; k < TIMES; k++)
                score_layers(b, s, watch);
            b->d->download(b->d, &one, b->scratch, sizeof one);
            took[watch] = (clock_ms() - from) / TIMES;
        }
        if (i >= 0)
            ms[i] = took[1] - took[0];
    }
    qsort(ms, REPS, sizeof *ms, order_doubles);
    return ms[REPS / 2];
}

static void open_scorer(bench *b, scorer *s, int32_t n_head, int32_t layers)
{
    const kv_view *v = &b->l.view[0];
    int32_t n_pages = SCORED / KV_PAGE, most = b->d->watch_rooms;
    int32_t n_rooms = layers < most ? layers : most;
    s->layers = layers;
    s->n_head = n_head;
    const page_sums sums = {NULL, n_pages, PAGE_SUM_BOUNDS};
    s->sum_bytes = page_sums_bytes(&sums, v);
    s->vote_bytes = (size_t)n_pages * sizeof(uint64_t);
    s->room_bytes = page_watch_room(n_pages, v->head_dim) * sizeof(float) * (size_t)n_rooms;
    s->w = (page_watch){.n_pages = n_pages,
                        .sums = s->sums,
                        .votes = {b->d->alloc(b->d, s->vote_bytes)},
                        .room = {b->d->alloc(b->d, s->room_bytes)},
                        .n_rooms = {n_rooms}};
    for (int32_t i = 0; i < layers; i++) {
        s->view[i] = *v;
        s->view[i].id = i;
        s->sums[i] = sums;
        s->sums[i].at = b->d->alloc(b->d, s->sum_bytes);
        if (!s->sums[i].at || !s->w.votes[0] || !s->w.room[0])
            exit(1);
    }
    b->d->clear(b->d, s->w.votes[0], s->vote_bytes);
}

static void close_scorer(bench *b, scorer *s)
{
    for (int32_t i = 0; i < s->layers; i++)
        b->d->release(b->d, s->sums[i].at, s->sum_bytes);
    b->d->release(b->d, s->w.votes[0], s->vote_bytes);
    b->d->release(b->d, s->w.room[0], s->room_bytes);
}

/* Summarises all pages of all layers; microseconds of a page. */
static double sum_layers(bench *b, scorer *s)
{
    int32_t n_pages = SCORED / KV_PAGE;
    float one;
    b->d->download(b->d, &one, b->scratch, sizeof one);
    double from = clock_ms();
    for (int32_t i = 0; i < s->layers; i++)
        b->d->sum_pages(b->d, &b->l.view[i % b->l.n], &b->c.base[i % b->l.n], &s->sums[i], 0, 0,
                        n_pages);
    b->d->download(b->d, &one, b->scratch, sizeof one);
    return (clock_ms() - from) * 1e3 / s->layers / n_pages;
}

static void measure_scores(bench *b, int shape, int format, int32_t layers)
{
    static uint64_t votes[SCORED / KV_PAGE];
    static scorer s;
    double bytes, ms[TURNS], from, sum_us = 0;
    for (int k = 0; k < TURNS; k++) {
        if (!bench_open(b, shape, SCORED, format, watched[k], &bytes))
            return;
        open_scorer(b, &s, bench_shapes[shape].n_head, layers);
        bench_fill(b->d, b->scratch, (size_t)64 << 20, (kv_format){.type = NUM_F32},
                   s.view[0].head_dim);
        for (int i = 0; i < 2; i++) /* the second time is kept */
            sum_us = sum_layers(b, &s);
        ms[k] = time_scores(b, &s);
        from = clock_ms();
        b->d->download(b->d, votes, s.w.votes[0], s.vote_bytes);
        from = clock_ms() - from;
        close_scorer(b, &s);
        bench_close(b);
    }
    printf("%-16s %-8s %6d %10.3f %8.3f %8.3f %8.3f %10.3f %7.0f %9.3f\n", bench_shapes[shape].name,
           bench_formats[format].name, layers, sum_us, ms[0], ms[1], ms[2], 4 * ms[0],
           (double)s.sum_bytes * layers / ms[0] * 1e-6, from);
    fflush(stdout);
}

void bench_scores(bench *b, const char *only, const char *format)
{
    static const struct {
        const char *shape;
        int32_t layers; /* with global attention, of the model */
    } models[] = {{"31B global", 10},     {"26B-A4B global", 5}, {"12B global", 8},
                  {"E4B global", 4},      {"Qwen3-32B", 64},     {"Qwen3.5-27B", 16},
                  {"Qwen3.5-35B-A3B", 10}};
    printf("%s, %d tokens, ms of a model\n%-16s %-8s %6s %10s %8s %8s %8s %10s %7s %9s\n",
           b->d->name, SCORED, "", "", "layers", "us a page", "1 row", "4 rows", "8 rows",
           "4 x 1 row", "GB/s", "read, ms");
    for (size_t m = 0; m < sizeof models / sizeof *models; m++)
        for (int s = 0; s < SHAPES; s++)
            for (int f = 0; f < FORMATS; f++)
                if (!strcmp(bench_shapes[s].name, models[m].shape) &&
                    strstr(bench_shapes[s].name, only) &&
                    !strcmp(bench_formats[f].name, *format ? format : "f16"))
                    measure_scores(b, s, f, models[m].layers);
}
