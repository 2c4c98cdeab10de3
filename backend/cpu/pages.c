/* pages.c - summaries of pages of keys: the mean, or the middle and half width of every
 * dimension's values (page_sums in backend/ops.h). Scores of pages for queries: by summaries
 * (page_watch), and by real attention (page_rescore).
 *
 * A task is a page of one KV head. Its keys are unpacked row by row into floats by the kernel of
 * the instruction set, and summed in the order of their positions. With one stream, rows become
 * keys by the norm's weights and the rotation, as in attend.c. This is done one key at a time,
 * because a page is summarised once.
 */
#include "backend/cpu/cpu_int.h"
#include "backend/cpu/table_ops_int.h"
#include "backend/key_walk.h"

#include <math.h>
#include <string.h>

typedef struct sum_job {
    const cpu_kernels *k;
    const kv_view *v;
    const kv_base *base;
    const page_sums *to;
    int32_t first, row, n;
} sum_job;

/* x = RoPE_pos(w x). Pairs that do not rotate have cosine 1 and sine 0. */
static void make_key(const cpu_kernels *k, const kv_view *v, int32_t pos, float *x)
{
    const rope *rp = v->k_rope;
    const float *w = v->k_weight->data;
    int32_t half = v->head_dim / 2;
    float c[PAGE_SUM_DIM_MAX / 2], s[PAGE_SUM_DIM_MAX / 2];
    for (int32_t i = 0; i < 2 * half; i++)
        x[i] *= w[i];
    k->sincos(c, s, rp->inv_freq, rp->n_turning, pos);
    for (int32_t i = rp->n_turning; i < half; i++) {
        c[i] = 1;
        s[i] = 0;
    }
    k->rotate(x, c, s, half);
}

/* Key t of a head, to x. Two streams: as stored, rotated where the format is. One stream: computed
 * from the value. */
static void read_key(const cpu_kernels *k, const kv_view *v, const kv_base *base, int32_t head,
                     int64_t t, float *x)
{
    const key_rows row = {.type = v->k_type,
                          .at =
                              key_row(v, base->k, v->k_row_bytes, head, key_walk(v, base, t).place),
                          .row_bytes = v->k_row_bytes,
                          .n = 1,
                          .dim = v->head_dim};
    k->unpack(&row, x, v->head_dim);
    if (!v->single)
        return;
    if (v->k_rot)
        num_unrotate(x, v->head_dim);
    int64_t pos = base->page ? base->page[t / KV_PAGE].pos + t % KV_PAGE : t;
    make_key(k, v, (int32_t)pos, x);
}

/* acc: [3][head_dim]: sums, smallest and largest values of the page's keys. */
static void sum_page(const sum_job *j, int32_t head, int32_t page, float (*acc)[PAGE_SUM_DIM_MAX])
{
    float x[PAGE_SUM_DIM_MAX];
    float *sum = acc[0], *lo = acc[1], *hi = acc[2];
    int32_t dim = j->v->head_dim;
    for (int32_t k = 0; k < KV_PAGE; k++) {
        read_key(j->k, j->v, j->base, head, (int64_t)page * KV_PAGE + k, x);
        if (!k)
            for (int part = 0; part < 3; part++)
                memcpy(acc[part], x, (size_t)dim * sizeof *x);
        for (int32_t i = 0; k && i < dim; i++) {
            sum[i] += x[i];
            lo[i] = lo[i] <= x[i] ? lo[i] : x[i]; /* a NaN replaces a number, */
            hi[i] = hi[i] >= x[i] ? hi[i] : x[i];
        }
    }
    for (int32_t i = 0; i < dim; i++) /* and may be replaced again, but not in the sum */
        if (isnan(sum[i]))
            lo[i] = hi[i] = NAN;
}

static void sum_task(void *arg, int32_t chunk, int32_t thread)
{
    (void)thread;
    const sum_job *j = arg;
    int32_t head = chunk / j->n, i = chunk % j->n, dim = j->v->head_dim;
    float acc[3][PAGE_SUM_DIM_MAX];
    sum_page(j, head, j->first + i, acc);
    if (j->to->parts == PAGE_SUM_BOUNDS) {
        cpu_put_bounds(j->to, j->v, head, j->row + i, acc[1], acc[2]);
        return;
    }
    uint16_t *at = page_mean(j->to, j->v, head, j->row + i);
    for (int32_t d = 0; d < dim; d++)
        at[d] = num_f32_to_bf16(acc[0][d] * (1.0f / KV_PAGE));
}

void cpu_sum_pages(device *d, const kv_view *v, const kv_base *base, const page_sums *to,
                   int32_t first, int32_t row, int32_t n)
{
    cpu_device *c = d->self;
    sum_job j = {c->k, v, base, to, first, row, n};
    pool_run(c->pool, v->n_head_kv * n, sum_task, &j);
}

/* ---- Watching queries ---------------------------------------------------------------------- */

enum {
    PAGES_PER_TASK = 512,
    BOUND_FLOATS = 2 * PAGE_SUM_DIM_MAX /* that are unpacked at a time: 8 KB, or a page */
};

typedef struct watch_job {
    const cpu_kernels *k;
    const page_watch *w;
    const kv_view *kv;
    const page_sums *sums;
    float *q;    /* [group][width]: the queries of one row that share a KV head */
    float *room; /* [group][n_pages] */
    int32_t head, group;
    int32_t width; /* of a query: for bounds q, then its absolute values */
} watch_job;

/* s_i of n pages from i on, whose summaries are rows of `width` elements. */
static void watch_rows(const watch_job *j, int32_t i, int32_t n, num_type t, const void *rows)
{
    const key_product p = {.type = t,
                           .n_q = j->group,
                           .n_keys = n,
                           .dim = j->width,
                           .s = j->room + i,
                           .q = j->q,
                           .s_stride = j->w->n_pages,
                           .q_stride = j->width,
                           .k = rows,
                           .row_bytes = (size_t)j->width * (t == NUM_F32 ? 4 : 2),
                           .source = t == NUM_F32 ? ROWS_IN_CACHE : ROWS_IN_MEMORY};
    j->k->key_dot(&p);
}

/* s_i of some pages, for all queries. */
static void watch_task(void *arg, int32_t chunk, int32_t thread)
{
    (void)thread;
    const watch_job *j = arg;
    const page_sums *s = j->sums;
    int32_t all = j->w->n_pages, i = chunk * PAGES_PER_TASK;
    int32_t end = all - i < PAGES_PER_TASK ? all : i + PAGES_PER_TASK;
    float bound[BOUND_FLOATS];
    if (s->parts == PAGE_SUM_MEAN)
        watch_rows(j, i, end - i, NUM_BF16, page_mean(s, j->kv, j->head, i));
    for (int32_t n; i < end && s->parts == PAGE_SUM_BOUNDS; i += n) {
        n = end - i < BOUND_FLOATS / j->width ? end - i : BOUND_FLOATS / j->width;
        const page_bounds b = {.code = page_middles(s, j->kv, j->head, i),
                               .scale = page_scales(s, j->kv, j->head, i),
                               .dim = j->kv->head_dim};
        j->k->unpack_bounds(&b, n, bound);
        watch_rows(j, i, n, NUM_F32, bound);
    }
}

/* The votes of one query for all pages, as whole numbers in the place of products. */
static void watch_share(void *arg, int32_t iq, int32_t thread)
{
    (void)thread;
    const watch_job *j = arg;
    int32_t n = j->w->n_pages;
    float *x = j->room + (size_t)iq * (size_t)n, top;
    for (int32_t i = 0; i < n; i++)
        x[i] = x[i] < INFINITY ? x[i] : -INFINITY; /* a NaN too */
    float sum = j->k->softmax(x, n, &top);
    j->k->scale(x, sum > 0 ? (float)(1u << PAGE_VOTE_BITS) / sum : 0.0f, n);
    for (int32_t i = 0; i < n; i++) {
        int32_t votes = (int32_t)(x[i] > 0 ? x[i] : 0); /* a NaN is none */
        memcpy(&x[i], &votes, sizeof votes);
    }
}

static void add_votes(uint64_t *votes, const float *x, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        uint32_t more;
        memcpy(&more, &x[i], sizeof more);
        votes[i] += more;
    }
}

static void watch_row(watch_job *j, pool *threads, const float *q, float scale, uint64_t *votes)
{
    int32_t n = j->w->n_pages, dim = j->kv->head_dim;
    for (int32_t i = 0; i < j->group; i++) {
        float *to = j->q + (size_t)i * (size_t)j->width;
        memcpy(to, q + (size_t)i * (size_t)dim, (size_t)dim * sizeof *to);
        if (j->kv->k_rot && !j->kv->single)
            num_rotate(to, dim);
        j->k->scale(to, scale, dim);
        for (int32_t d = 0; d < j->width - dim; d++)
            to[dim + d] = fabsf(to[d]);
    }
    pool_run(threads, (n + PAGES_PER_TASK - 1) / PAGES_PER_TASK, watch_task, j);
    pool_run(threads, j->group, watch_share, j);
    for (int32_t i = 0; i < j->group; i++)
        add_votes(votes, j->room + (size_t)i * (size_t)n, n);
}

void cpu_watch_pages(pass *p, mat q, const kv_view *kv, float scale, const page_watch *w)
{
    cpu_device *c = cpu_of(p);
    const rowset *rs = p->rows;
    int32_t group = q.heads / kv->n_head_kv;
    size_t n_pages = (size_t)w->n_pages, dim = (size_t)kv->head_dim;
    float *room = w->room[p->here];
    watch_job j = {.k = c->k,
                   .w = w,
                   .kv = kv,
                   .sums = &w->sums[kv->id],
                   .q = room + PAGE_WATCH_HEADS * n_pages,
                   .room = room,
                   .group = group};
    j.width = j.sums->parts * kv->head_dim;
    for (int32_t r = 0; r < q.rows; r++)
        for (j.head = 0; j.head < kv->n_head_kv && rs->seq[r] == w->seq && rs->pos[r] >= w->pos;
             j.head++)
            watch_row(&j, c->pool, mat_row(q, r) + (size_t)(j.head * group) * dim, scale,
                      w->votes[p->here]);
}

/* ---- Looking at pages ---------------------------------------------------------------------- */

enum {
    RESCORE_KEYS = 16, /* keys that are unpacked at a time: 64 KB in heads of 1,024 */
    RESCORE_QUERIES = PAGE_WATCH_HEADS
};

typedef struct rescore_job {
    const cpu_kernels *k;
    const kv_view *v;
    const kv_base *base;
    const page_rescore *l;
    int32_t group;
} rescore_job;

/* The products of one page and KV head with the queries of some rows: x[query][KV_PAGE]. */
static void rescore_products(const rescore_job *j, int32_t head, int32_t page, int32_t row,
                             int32_t rows, float (*x)[KV_PAGE])
{
    float key[RESCORE_KEYS * PAGE_SUM_DIM_MAX];
    int32_t dim = j->v->head_dim;
    int64_t t0 = (int64_t)(j->l->first + page) * KV_PAGE;
    for (int32_t k0 = 0; k0 < KV_PAGE; k0 += RESCORE_KEYS) {
        for (int32_t k = 0; k < RESCORE_KEYS; k++) {
            float *to = key + (size_t)k * (size_t)dim;
            read_key(j->k, j->v, j->base, head, t0 + k0 + k, to);
            if (j->v->k_rot && !j->v->single)
                num_unrotate(to, dim);
        }
        for (int32_t r = 0; r < rows; r++) {
            const key_product p = {.type = NUM_F32,
                                   .n_q = j->group,
                                   .n_keys = RESCORE_KEYS,
                                   .dim = dim,
                                   .s = x[r * j->group] + k0,
                                   .q = mat_row(j->l->q, row + r) +
                                        (size_t)(head * j->group) * (size_t)dim,
                                   .s_stride = KV_PAGE,
                                   .q_stride = dim,
                                   .k = (const char *)key,
                                   .row_bytes = (size_t)dim * sizeof *key,
                                   .source = ROWS_IN_CACHE};
            j->k->key_dot(&p);
        }
    }
}

static void rescore_task(void *arg, int32_t chunk, int32_t thread)
{
    (void)thread;
    const rescore_job *j = arg;
    const page_rescore *l = j->l;
    int32_t head = chunk / l->n, page = chunk % l->n, most = RESCORE_QUERIES / j->group;
    float x[RESCORE_QUERIES][KV_PAGE], top;
    for (int32_t r = 0; r < l->q.rows; r += most) {
        int32_t rows = l->q.rows - r < most ? l->q.rows - r : most;
        rescore_products(j, head, page, r, rows, x);
        for (int32_t i = 0; i < rows * j->group; i++) {
            j->k->scale(x[i], l->scale, KV_PAGE);
            float sum = j->k->softmax(x[i], KV_PAGE, &top);
            float y = top + logf(sum);
            int32_t query = (r + i / j->group) * l->q.heads + head * j->group + i % j->group;
            l->to[(size_t)page * (size_t)l->stride + (size_t)query] = isfinite(y) ? y : -INFINITY;
        }
    }
}

void cpu_rescore_pages(device *d, const kv_view *v, const kv_base *base, const page_rescore *l)
{
    cpu_device *c = d->self;
    rescore_job j = {c->k, v, base, l, l->q.heads / v->n_head_kv};
    pool_run(c->pool, v->n_head_kv * l->n, rescore_task, &j);
}
