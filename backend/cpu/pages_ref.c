/* pages_ref.c - what pages of keys are asked, by its definition: summaries, how much queries attend
 * to each page by them, and how much they really do.
 */
#include "backend/cpu/cpu_int.h"
#include "backend/cpu/table_ops_int.h"
#include "backend/key_walk.h"

#include <math.h>
#include <string.h>

/* ---- Summaries of pages ------------------------------------------------------------------- */

/* Truncation goes towards zero; one step more goes away from it. */
static uint16_t bf16_towards(float x, bool away)
{
    uint32_t u = num_f32_bits(x);
    return isnan(x) ? num_f32_to_bf16(x) : (uint16_t)((u >> 16) + (away && (u & 0xffff)));
}

uint16_t cpu_bf16_down(float x)
{
    return bf16_towards(x, x < 0);
}

uint16_t cpu_bf16_up(float x)
{
    return bf16_towards(x, x > 0);
}

/* A key as attention meets it; the page's first key has position `pos`. */
static void stored_key(const kv_view *v, const kv_base *base, double (*back)[NUM_ROT_GROUP],
                       int32_t head, int64_t t, double *key)
{
    float stored[PAGE_SUM_DIM_MAX];
    size_t place = key_walk(v, base, t).place;
    num_format_of(v->k_type)->decode(key_row(v, base->k, v->k_row_bytes, head, place), stored,
                                     v->head_dim);
    for (int32_t i = 0; i < v->head_dim; i++)
        key[i] = stored[i];
    if (!v->single)
        return;
    if (v->k_rot)
        cpu_ref_unrotate(back, key, v->head_dim);
    cpu_ref_make_key(v, base->page ? base->page[t / KV_PAGE].pos + t % KV_PAGE : t, key);
}

void cpu_ref_sum_pages(device *d, const kv_view *v, const kv_base *base, const page_sums *to,
                       int32_t first, int32_t row, int32_t n)
{
    (void)d;
    double back[NUM_ROT_GROUP][NUM_ROT_GROUP], key[PAGE_SUM_DIM_MAX];
    double sum[PAGE_SUM_DIM_MAX], lo[PAGE_SUM_DIM_MAX], hi[PAGE_SUM_DIM_MAX];
    size_t dim = (size_t)v->head_dim;
    cpu_ref_fill_back(back);
    for (int32_t h = 0; h < v->n_head_kv; h++)
        for (int32_t i = 0; i < n; i++) {
            uint16_t *at = page_sum_row(to, v, h, row + i);
            for (int32_t k = 0; k < KV_PAGE; k++) {
                stored_key(v, base, back, h, (int64_t)(first + i) * KV_PAGE + k, key);
                for (size_t j = 0; j < dim; j++) {
                    bool bad = isnan(key[j]);
                    sum[j] = k ? sum[j] + key[j] : key[j];
                    lo[j] = !k || bad || key[j] < lo[j] ? key[j] : lo[j];
                    hi[j] = !k || bad || key[j] > hi[j] ? key[j] : hi[j];
                }
            }
            for (size_t j = 0; j < dim; j++) {
                if (to->parts == PAGE_SUM_MEAN) {
                    at[j] = num_f32_to_bf16((float)(sum[j] / KV_PAGE));
                } else {
                    at[j] = cpu_bf16_down((float)lo[j]);
                    at[dim + j] = cpu_bf16_up((float)hi[j]);
                }
            }
        }
}

/* One row and head of a watch. */
static void watch_query(const page_watch *w, const kv_view *kv, float *score, const float *query,
                        float scale, int32_t g)
{
    float q[PAGE_SUM_DIM_MAX];
    const page_sums *s = &w->sums[kv->id];
    double top = -INFINITY, total = 0;
    memcpy(q, query, (size_t)kv->head_dim * sizeof *q);
    if (kv->k_rot && !kv->single)
        num_rotate(q, kv->head_dim);
    for (int walk = 0; walk < 3; walk++)
        for (int32_t i = 0; i < w->n_pages; i++) {
            const uint16_t *at = page_sum_row(s, kv, g, i);
            double x = 0;
            for (int32_t k = 0; k < kv->head_dim; k++) {
                bool high = s->parts == PAGE_SUM_BOUNDS && q[k] > 0;
                x += (double)q[k] * num_bf16_to_f32(at[high ? kv->head_dim + k : k]);
            }
            x *= scale;
            if (isnan(x))
                continue;
            if (walk == 0)
                top = x > top ? x : top;
            else if (walk == 1)
                total += exp(x - top);
            else
                score[i] += (float)(exp(x - top) / total);
        }
}

void cpu_ref_watch_pages(pass *p, mat q, const kv_view *kv, float scale, const page_watch *w)
{
    const rowset *rs = p->rows;
    for (int32_t r = 0; r < q.rows; r++)
        for (int32_t h = 0; h < q.heads && rs->seq[r] == w->seq && rs->pos[r] >= w->pos; h++)
            watch_query(w, kv, w->score[p->here], mat_row(q, r) + (size_t)h * (size_t)q.cols, scale,
                        h / (q.heads / kv->n_head_kv));
}

/* ---- Looking at pages ---------------------------------------------------------------------- */

/* The logarithm of the sum of exponentials of KV_PAGE products. */
static float log_sum(const double *x)
{
    double top = -INFINITY, sum = 0;
    for (int32_t k = 0; k < KV_PAGE; k++)
        top = x[k] > top ? x[k] : top;
    for (int32_t k = 0; k < KV_PAGE; k++)
        sum += exp(x[k] - top);
    float y = (float)(top + log(sum));
    return isfinite(y) ? y : -INFINITY;
}

/* The queries j0 .. j0 + n - 1 of a KV head, counted through its heads row by row, to a page. */
static void look_queries(const kv_view *v, const kv_base *base, const page_look *l,
                         double (*back)[NUM_ROT_GROUP], int32_t head, int32_t page, int32_t j0,
                         int32_t n)
{
    double x[PAGE_WATCH_HEADS][KV_PAGE] = {{0}}, key[PAGE_SUM_DIM_MAX];
    int32_t group = l->q.heads / v->n_head_kv;
    for (int32_t k = 0; k < KV_PAGE; k++) {
        stored_key(v, base, back, head, (int64_t)(l->first + page) * KV_PAGE + k, key);
        if (v->k_rot && !v->single)
            cpu_ref_unrotate(back, key, v->head_dim);
        for (int32_t j = 0; j < n; j++) {
            const float *q = mat_row(l->q, (j0 + j) / group) +
                             (size_t)(head * group + (j0 + j) % group) * (size_t)l->q.cols;
            for (int32_t c = 0; c < v->head_dim; c++)
                x[j][k] += (double)q[c] * key[c];
            x[j][k] *= l->scale;
        }
    }
    for (int32_t j = 0; j < n; j++)
        l->to[(size_t)page * (size_t)l->stride +
              (size_t)((j0 + j) / group * l->q.heads + head * group + (j0 + j) % group)] =
            log_sum(x[j]);
}

void cpu_ref_look_pages(device *d, const kv_view *v, const kv_base *base, const page_look *l)
{
    (void)d;
    double back[NUM_ROT_GROUP][NUM_ROT_GROUP];
    int32_t n = l->q.rows * (l->q.heads / v->n_head_kv);
    cpu_ref_fill_back(back);
    for (int32_t i = 0; i < l->n; i++)
        for (int32_t h = 0; h < v->n_head_kv; h++)
            for (int32_t j = 0; j < n; j += PAGE_WATCH_HEADS)
                look_queries(v, base, l, back, h, i, j,
                             n - j < PAGE_WATCH_HEADS ? n - j : PAGE_WATCH_HEADS);
}
