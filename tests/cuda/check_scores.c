/* check_scores.c - summaries of pages of keys and scores by them, on the CUDA device and by the
 * reference: every format, rotated, one stream, pages in any order, head sizes of any kind; scores
 * of chains and of prompts, twice, for the same bits; and looks at pages, twice too.
 *
 * Bounds of keys that are stored are compared bit by bit. Means are sums in f32, and keys made of
 * values have other roundings: there the limit is a step of bf16, or of a code.
 */
#include "backend/key_walk.h"
#include "base/mem.h"
#include "tests/cuda/check_int.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { PAGES = 37, POOL = 40, HEADS = 2, ROWS = PAGES + 3, SKIPPED = 2 };

typedef struct scores_case {
    num_type type;
    int32_t d, group, parts;
    bool rot, paged;
    int32_t turning; /* turning pairs of one stream; 0: two streams */
    int32_t rows, watched;
    int32_t two_seqs; /* rows of another sequence before them */
    bool odd;         /* keys that are no numbers, of one value, or far from all others */
} scores_case;

typedef struct scores_rig {
    rig *g;
    const scores_case *a;
    pair norm;
    rope turn[2];
    kv_view view[2];
    kv_base base[2];
    kv_page *table[2];
    page_sums sums[2];
    page_watch watch[2];
    size_t store_bytes, sum_bytes, vote_bytes, room_bytes;
} scores_rig;

static const char *shape_of(const scores_case *a)
{
    static char shape[64];
    snprintf(shape, sizeof shape, "%s%s%s%s %dx%d%s, %s", a->odd ? "odd " : "", num_name(a->type),
             a->rot ? "+rot" : "", a->turning ? " one" : "", a->group * HEADS, a->d,
             a->paged ? " paged" : "", a->parts == PAGE_SUM_MEAN ? "means" : "bounds");
    return shape;
}

static void *on_gpu(rig *g, const void *from, size_t n)
{
    void *at = g->gpu->alloc(g->gpu, n);
    if (at && from)
        g->gpu->upload(g->gpu, at, from, n);
    return at;
}

static bool open_turn(scores_rig *x)
{
    int32_t d = x->a->d, n = x->a->turning;
    float *inv = draw(x->g, (size_t)d / 2, 0);
    for (int32_t i = 0; i < n; i++)
        inv[i] = (float)pow(1e4, -2.0 * i / d);
    x->turn[0] = x->turn[1] = (rope){.n_pairs = d / 2, .inv_freq = inv, .n_turning = n};
    x->turn[1].inv_freq = on_gpu(x->g, inv, (size_t)d * 2);
    return x->turn[1].inv_freq && pair_make(x->g, &x->norm, NUM_F32, d, 1, 1, 0.5, false);
}

/* Value i of a key of a page. one: the page's only key that is no number */
static float odd_value(size_t page, int32_t i, bool one, float x)
{
    switch (page) {
    case 1:
        return 0;
    case 2:
        return -1 - fabsf(x);
    case 3:
        return one && i == 5 ? NAN : x;
    case 4:
        return one && i == 6 ? INFINITY : x;
    case 5:
        return i % 50 == 7 ? 300 + x : x;
    case 6:
        return 1e-30f * x;
    case 7:
        return 0.01f * (float)(i - 3);
    case 8:
        return 1e-41f * x;
    default:
        return x;
    }
}

static bool open_scores(scores_rig *x)
{
    static const int32_t stride[] = {7, 3}; /* places and positions of pages */
    const scores_case *a = x->a;
    rig *g = x->g;
    uint64_t row = 0;
    if (!num_row_bytes(a->type, (uint64_t)a->d, &row) || (a->turning && !open_turn(x)))
        return false;
    size_t n = (size_t)HEADS * POOL * KV_PAGE * (size_t)a->d;
    x->store_bytes = (size_t)HEADS * POOL * KV_PAGE * row;
    x->vote_bytes = ROWS * sizeof(uint64_t);
    x->room_bytes = page_watch_room(ROWS, a->d) * sizeof(float);
    void *store = mem_alloc(x->store_bytes);
    float *values = draw(g, n, 1.0);
    kv_page *table = mem_alloc(PAGES * sizeof *table);
    for (size_t i = 0; i < n; i++) /* pages differ, so that shares do */
        values[i] *= 0.2f + 0.03f * (float)(i / (KV_PAGE * (size_t)a->d) % POOL);
    for (size_t i = 0; i < n && a->odd; i++)
        values[i] = odd_value(i / (KV_PAGE * (size_t)a->d) % POOL, (int32_t)(i % (size_t)a->d),
                              i / (size_t)a->d % KV_PAGE == 11, values[i]);
    if (a->rot)
        num_rotate(values, (int64_t)n);
    num_format_of(a->type)->encode(values, store, (int64_t)n);
    mem_free(values);
    for (int32_t i = 0; i < PAGES; i++)
        table[i] = (kv_page){i * stride[0] % POOL * KV_PAGE, i * stride[1] * KV_PAGE};
    for (int k = 0; k < 2; k++) {
        device *d = k ? g->gpu : g->ref;
        x->table[k] = k ? on_gpu(g, table, PAGES * sizeof *table) : table;
        x->base[k] = (kv_base){.k = k ? on_gpu(g, store, x->store_bytes) : store,
                               .page = a->paged ? x->table[k] : NULL};
        x->view[k] = (kv_view){.kind = STORE_LINEAR,
                               .k_type = a->type,
                               .v_type = a->type,
                               .n_head_kv = HEADS,
                               .head_dim = a->d,
                               .n_slots = POOL * KV_PAGE,
                               .n_keys = POOL * KV_PAGE,
                               .k_row_bytes = row,
                               .v_row_bytes = a->turning ? 0 : row,
                               .k_rot = a->rot,
                               .v_rot = a->rot,
                               .single = a->turning > 0,
                               .k_weight = &x->norm.w[k],
                               .k_rope = &x->turn[k]};
        x->sums[k] = (page_sums){.n_rows = ROWS, .parts = a->parts};
        x->sum_bytes = page_sums_bytes(&x->sums[k], &x->view[k]);
        x->sums[k].at = d->alloc(d, x->sum_bytes);
        x->watch[k] = (page_watch){.seq = a->two_seqs ? 1 : 0,
                                   .n_pages = PAGES,
                                   .sums = &x->sums[k],
                                   .votes = {d->alloc(d, x->vote_bytes)},
                                   .room = {d->alloc(d, x->room_bytes)}};
        if (!x->base[k].k || !x->table[k] || !x->sums[k].at || !x->watch[k].votes[0] ||
            !x->watch[k].room[0])
            return false;
    }
    return true;
}

static void close_scores(scores_rig *x)
{
    for (int k = 0; k < 2; k++) {
        device *d = k ? x->g->gpu : x->g->ref;
        d->release(d, x->sums[k].at, x->sum_bytes);
        d->release(d, x->watch[k].votes[0], x->vote_bytes);
        d->release(d, x->watch[k].room[0], x->room_bytes);
    }
    x->g->gpu->release(x->g->gpu, x->base[1].k, x->store_bytes);
    x->g->gpu->release(x->g->gpu, x->table[1], PAGES * sizeof(kv_page));
    mem_free(x->base[0].k);
    mem_free(x->table[0]);
    if (!x->a->turning)
        return;
    x->g->gpu->release(x->g->gpu, (void *)x->turn[1].inv_freq, (size_t)x->a->d * 2);
    mem_free((void *)x->turn[0].inv_freq);
    pair_free(x->g, &x->norm);
}

/* How far two rows are apart: of means in steps of bf16, of bounds in steps of their codes. */
static double row_error(const scores_rig *x, const page_sums *a, const page_sums *b, int32_t head,
                        int32_t row)
{
    const kv_view *v = &x->view[0];
    double worst = 0;
    for (int32_t i = 0; i < v->head_dim; i++) {
        double d[2];
        if (a->parts == PAGE_SUM_MEAN) {
            d[0] = num_bf16_to_f32(page_mean(a, v, head, row)[i]);
            d[1] = (d[0] - num_bf16_to_f32(page_mean(b, v, head, row)[i])) * 128;
            worst = fmax(worst, isfinite(d[1]) ? fabs(d[1]) / fmax(fabs(d[0]), 1e-3) : INFINITY);
            continue;
        }
        double one = 0;
        for (int part = 0; part < 2; part++) {
            double s[2];
            for (int k = 0; k < 2; k++) {
                const page_sums *of = k ? b : a;
                s[k] =
                    num_bf16_to_f32(page_scales(of, v, head, row)[2 * (i / PAGE_SUM_GROUP) + part]);
                d[k] = s[k] * (part ? (double)page_widths(of, v, head, row)[i]
                                    : (double)page_middles(of, v, head, row)[i]);
            }
            one += s[0];
            d[0] = fabs(d[0] - d[1]) / one;
            worst = fmax(worst, isfinite(d[0]) ? d[0] : INFINITY);
        }
    }
    return worst;
}

/* Both devices' summaries of pages; the larger the worst difference. Where they must be the same,
 * the number of bytes that differ. */
static void check_sums(scores_rig *x)
{
    rig *g = x->g;
    page_sums got = x->sums[0];
    uint8_t *want = x->sums[0].at;
    bool exact = !x->a->turning && x->a->parts == PAGE_SUM_BOUNDS;
    double worst = 0;
    got.at = mem_alloc(x->sum_bytes);
    memset(want, 0xff, x->sum_bytes);
    g->gpu->upload(g->gpu, x->sums[1].at, want, x->sum_bytes);
    for (int k = 0; k < 2; k++) {
        device *d = k ? g->gpu : g->ref;
        d->sum_pages(d, &x->view[k], &x->base[k], &x->sums[k], 0, SKIPPED, 5);
        d->sum_pages(d, &x->view[k], &x->base[k], &x->sums[k], 5, SKIPPED + 5, PAGES - SKIPPED - 5);
        d->sum_pages(d, &x->view[k], &x->base[k], &x->sums[k], 1, 0, SKIPPED);
    }
    g->gpu->download(g->gpu, got.at, x->sums[1].at, x->sum_bytes);
    for (size_t i = 0; i < x->sum_bytes && exact; i++)
        worst += ((uint8_t *)got.at)[i] != want[i];
    for (int32_t i = 0; i < HEADS * PAGES && !exact; i++) /* those that were written */
        worst = fmax(worst, row_error(x, &x->sums[0], &got, i / PAGES, i % PAGES));
    verdict(g, "page sums", shape_of(x->a), worst, exact ? 0 : 1.5);
    /* Scores by the same summaries. */
    g->gpu->upload(g->gpu, x->sums[1].at, want, x->sum_bytes);
    mem_free(got.at);
}

static double compare_votes(const scores_rig *x, const uint64_t *got)
{
    double diff = 0, sum = 0;
    for (int32_t i = 0; i < ROWS; i++) {
        double a = (double)x->watch[0].votes[0][i], b = (double)got[i];
        diff += (a - b) * (a - b);
        sum += a * a;
    }
    return sum > 0 ? diff / sum : INFINITY;
}

/* A pass of some rows, the last of which are watched. */
static void check_scores(scores_rig *x)
{
    static chain c;
    const scores_case *a = x->a;
    rig *g = x->g;
    both b;
    mat q[2];
    int32_t heads = a->group * HEADS, n = a->rows + a->two_seqs;
    float *values = draw(g, (size_t)n * (size_t)heads * (size_t)a->d, 1.0);
    uint64_t got[2][ROWS];
    chain_init(&c, n, 100, 0);
    c.st.n_seqs = a->two_seqs ? 2 : 1;
    c.st.kv = x->base;
    for (int32_t i = 0; i < n; i++)
        c.seq[i] = a->two_seqs && i >= a->two_seqs;
    float scale = (float)(1.0 / sqrt((double)a->d));
    for (int turn = 0; turn < 2; turn++) {
        both_begin(g, &b, &c.st);
        both_mat(g, &b, q, values, n, heads, a->d);
        for (int k = 0; k < 2; k++) {
            device *d = k ? g->gpu : g->ref;
            pass *p = k ? &b.gpu : &b.ref;
            x->watch[k].pos = c.pos[n - a->watched];
            d->clear(d, x->watch[k].votes[0], x->vote_bytes);
            p->watch = &x->watch[k];
            p->n_watch = 1;
            d->op->watch_pages(p, q[k], &x->view[k], scale, &x->watch[k]);
            d->op->watch_pages(p, q[k], &x->view[k], scale, &x->watch[k]); /* scores are added */
            pass_end(p);
        }
        g->gpu->download(g->gpu, got[turn], x->watch[1].votes[0], x->vote_bytes);
    }
    if (pass_failed(&b.gpu))
        failed(g, "page scores", b.gpu.e.text);
    verdict(g, "page scores", text("%s, %d of %d rows", shape_of(a), a->watched, n),
            compare_votes(x, got[0]), 1e-9);
    verdict(g, "page scores", "again", memcmp(got[0], got[1], sizeof got[0]) != 0, 0);
    mem_free(values);
}

/* All rows of a pass ask some pages. Rows are wider than their heads, and what is beside the
 * answers stays. */
static void check_rescores(scores_rig *x)
{
    enum { FIRST = 2, N = PAGES - 5 };
    const scores_case *a = x->a;
    rig *g = x->g;
    int32_t heads = a->group * HEADS, rows = a->watched, width = heads * a->d + 4;
    int32_t stride = rows * heads + 3;
    size_t n_bytes = (size_t)(N * stride) * sizeof(float), q_bytes = (size_t)(rows * width) * 4;
    float *values = draw(g, (size_t)(rows * width), 1.0), *got[2];
    float *want = mem_calloc((size_t)(N * stride), sizeof *want);
    void *q = on_gpu(g, values, q_bytes), *to = g->gpu->alloc(g->gpu, n_bytes);
    page_rescore l = {.scale = (float)(1.0 / sqrt((double)a->d)), .first = FIRST, .n = N};
    double worst = 0;
    l.stride = stride;
    for (int turn = 0; turn < 2; turn++) {
        got[turn] = mem_calloc((size_t)(N * stride), sizeof **got);
        g->gpu->upload(g->gpu, to, want, n_bytes);
        l.q = mat_at(q, rows, heads, a->d, width);
        l.to = to;
        g->gpu->rescore_pages(g->gpu, &x->view[1], &x->base[1], &l);
        g->gpu->download(g->gpu, got[turn], to, n_bytes);
    }
    l.q.at = values;
    l.to = want;
    g->ref->rescore_pages(g->ref, &x->view[0], &x->base[0], &l);
    for (int32_t i = 0; i < N * stride; i++)
        if (got[0][i] != want[i]) /* both may be -infinity */
            worst = fmax(worst, isfinite(got[0][i]) ? fabs((double)got[0][i] - want[i]) : INFINITY);
    verdict(g, "page looks", text("%s, %d rows", shape_of(a), rows), worst, 2e-3);
    verdict(g, "page looks", "again", memcmp(got[0], got[1], n_bytes) != 0, 0);
    g->gpu->release(g->gpu, q, q_bytes);
    g->gpu->release(g->gpu, to, n_bytes);
    for (int turn = 0; turn < 2; turn++)
        mem_free(got[turn]);
    mem_free(want);
    mem_free(values);
}

static void check_case(rig *g, const scores_case *a)
{
    scores_rig x = {.g = g, .a = a};
    if (!my_turn(g, "page scores"))
        return;
    if (!open_scores(&x)) {
        failed(g, "page scores", "no memory");
        return;
    }
    check_sums(&x);
    check_scores(&x);
    check_rescores(&x);
    close_scores(&x);
}

void check_scores_of_pages(rig *g)
{
    static const num_type types[] = {NUM_F32,  NUM_F16,  NUM_BF16, NUM_Q8_0,   NUM_Q5_1,
                                     NUM_Q5_0, NUM_Q4_1, NUM_Q4_0, NUM_IQ4_NL, NUM_TQ3_0};
    static const int32_t dims[] = {512, 128, 256, 64}, groups[] = {8, 1, 6, 16};
    for (int i = 0; i < 10; i++) {
        bool rot = types[i] == NUM_TQ3_0 || (num_format_of(types[i])->block_n > 1 && i % 2);
        scores_case a = {.type = types[i],
                         .d = rot && dims[i % 4] < 128 ? 128 : dims[i % 4],
                         .group = groups[i % 4],
                         .parts = PAGE_SUM_BOUNDS,
                         .rot = rot,
                         .paged = true,
                         .rows = 1 + i,
                         .watched = 1 + i / 2};
        check_case(g, &a);
        a.parts = PAGE_SUM_MEAN;
        a.paged = false;
        if (!g->quick || i % 3 == 0)
            check_case(g, &a);
    }
    check_case(g, &(scores_case){NUM_F16, 512, 8, PAGE_SUM_BOUNDS, .paged = true, .turning = 64,
                                 .rows = 3, .watched = 3});
    check_case(g, &(scores_case){NUM_Q8_0, 512, 4, PAGE_SUM_BOUNDS, .rot = true, .paged = true,
                                 .turning = 64, .rows = 3, .watched = 2});
    /* A prompt's end, rows of another sequence, wide and odd heads, many heads of one KV head. */
    check_case(g, &(scores_case){NUM_F16, 256, 4, PAGE_SUM_BOUNDS, .paged = true, .rows = 70,
                                 .watched = 8});
    check_case(g, &(scores_case){NUM_F16, 128, 6, PAGE_SUM_BOUNDS, .paged = true, .rows = 9,
                                 .watched = 9, .two_seqs = 5});
    check_case(g, &(scores_case){NUM_F16, 1024, 2, PAGE_SUM_BOUNDS, .paged = true, .rows = 2,
                                 .watched = 2});
    check_case(
        g, &(scores_case){NUM_F16, 36, 3, PAGE_SUM_BOUNDS, .paged = true, .rows = 2, .watched = 1});
    check_case(g, &(scores_case){NUM_F16, 128, 64, PAGE_SUM_BOUNDS, .paged = true, .rows = 2,
                                 .watched = 2});
    check_case(
        g, &(scores_case){NUM_F32, 256, 4, PAGE_SUM_BOUNDS, .rows = 2, .watched = 2, .odd = true});
    check_case(
        g, &(scores_case){NUM_F32, 36, 4, PAGE_SUM_BOUNDS, .rows = 2, .watched = 2, .odd = true});
    check_case(
        g, &(scores_case){NUM_F16, 512, 8, PAGE_SUM_BOUNDS, .rows = 2, .watched = 1, .odd = true});
}
