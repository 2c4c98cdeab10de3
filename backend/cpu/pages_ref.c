/* pages_ref.c - what pages of keys are asked, by its definition: summaries, how much queries attend
 * to each page by them, and how much they really do.
 */
#include "backend/cpu/cpu_int.h"
#include "backend/cpu/table_ops_int.h"
#include "backend/key_walk.h"

#include <math.h>
#include <string.h>

/* ---- Summaries of pages ------------------------------------------------------------------- */

/* bf16 that is not below x; x >= 0 */
static uint16_t bf16_up(float x)
{
    uint32_t u = num_f32_bits(x);
    return (uint16_t)((u >> 16) + ((u & 0xffff) != 0));
}

/* The larger of two magnitudes; a NaN is larger than any. */
static float larger(float a, float b)
{
    return num_f32_bits(a) > num_f32_bits(b) ? a : b;
}

/* The scale with which the code `most` reaches `top`. false: top is no number, or too large. */
static bool scale_for(float top, float most, float *scale)
{
    *scale = top > 0 ? num_bf16_to_f32(bf16_up(fmaxf(top / most, 0x1p-100f))) : 0;
    return top < 0x1p126f;
}

/* One group of n dims. The factor on half widths is more than the roundings of their difference,
 * its quotient and the scale's can take away. false: no codes can say it. */
static bool put_group(int8_t *mid, uint8_t *wide, float *scale, const float *lo, const float *hi,
                      int32_t n)
{
    float need[PAGE_SUM_GROUP], top = 0;
    for (int32_t i = 0; i < n; i++)
        top = larger(fabsf(0.5f * lo[i] + 0.5f * hi[i]), top);
    if (!scale_for(top, 127, &scale[0]))
        return false;
    top = 0;
    for (int32_t i = 0; i < n; i++) {
        mid[i] = scale[0] > 0 ? (int8_t)rintf((0.5f * lo[i] + 0.5f * hi[i]) / scale[0]) : 0;
        float at = scale[0] * mid[i], up = hi[i] - at, down = at - lo[i];
        need[i] = (up > down ? up : down) * (1 + 0x1p-21f);
        top = larger(fabsf(need[i]), top);
    }
    if (!scale_for(top, 255, &scale[1]))
        return false;
    for (int32_t i = 0; i < n; i++)
        wide[i] = scale[1] > 0 ? (uint8_t)fminf(ceilf(need[i] / scale[1]), 255) : 0;
    return true;
}

void cpu_put_bounds(const page_sums *to, const kv_view *v, int32_t head, int32_t row,
                    const float *lo, const float *hi)
{
    int8_t *mid = page_middles(to, v, head, row);
    uint8_t *wide = page_widths(to, v, head, row);
    uint16_t *scale = page_scales(to, v, head, row);
    for (int32_t i = 0, n; i < v->head_dim; i += n, scale += 2) {
        float s[2];
        n = v->head_dim - i < PAGE_SUM_GROUP ? v->head_dim - i : PAGE_SUM_GROUP;
        if (!put_group(mid + i, wide + i, s, lo + i, hi + i, n)) {
            memset(mid + i, 0, (size_t)n);
            memset(wide + i, 0, (size_t)n);
            s[0] = s[1] = NAN;
        }
        scale[0] = num_f32_to_bf16(s[0]);
        scale[1] = num_f32_to_bf16(s[1]);
    }
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
    double sum[PAGE_SUM_DIM_MAX];
    float lo[PAGE_SUM_DIM_MAX], hi[PAGE_SUM_DIM_MAX];
    size_t dim = (size_t)v->head_dim;
    cpu_ref_fill_back(back);
    for (int32_t h = 0; h < v->n_head_kv; h++)
        for (int32_t i = 0; i < n; i++) {
            for (int32_t k = 0; k < KV_PAGE; k++) {
                stored_key(v, base, back, h, (int64_t)(first + i) * KV_PAGE + k, key);
                for (size_t j = 0; j < dim; j++) {
                    float x = (float)key[j];
                    bool bad = isnan(x) || (k && isnan(lo[j])); /* stays */
                    sum[j] = k ? sum[j] + key[j] : key[j];
                    lo[j] = bad ? NAN : !k || x < lo[j] ? x : lo[j];
                    hi[j] = bad ? NAN : !k || x > hi[j] ? x : hi[j];
                }
            }
            if (to->parts == PAGE_SUM_BOUNDS)
                cpu_put_bounds(to, v, h, row + i, lo, hi);
            for (size_t j = 0; j < dim && to->parts == PAGE_SUM_MEAN; j++)
                page_mean(to, v, h, row + i)[j] = num_f32_to_bf16((float)(sum[j] / KV_PAGE));
        }
}

/* Product of q and a page's mean, or its bound. */
static double judge(const page_sums *s, const kv_view *v, int32_t head, int32_t row, const float *q)
{
    double x = 0;
    for (int32_t k = 0; k < v->head_dim && s->parts == PAGE_SUM_MEAN; k++)
        x += (double)q[k] * num_bf16_to_f32(page_mean(s, v, head, row)[k]);
    for (int32_t k = 0; k < v->head_dim && s->parts == PAGE_SUM_BOUNDS; k++) {
        const uint16_t *scale = page_scales(s, v, head, row) + k / PAGE_SUM_GROUP * 2;
        x += (double)q[k] * num_bf16_to_f32(scale[0]) * page_middles(s, v, head, row)[k];
        x += fabs((double)q[k]) * num_bf16_to_f32(scale[1]) * page_widths(s, v, head, row)[k];
    }
    return x;
}

/* One row and head of a watch. */
static void watch_query(const page_watch *w, const kv_view *kv, uint64_t *votes,
                        const float *query, float scale, int32_t g)
{
    float q[PAGE_SUM_DIM_MAX];
    const page_sums *s = &w->sums[kv->id];
    double top = -INFINITY, total = 0;
    memcpy(q, query, (size_t)kv->head_dim * sizeof *q);
    if (kv->k_rot && !kv->single)
        num_rotate(q, kv->head_dim);
    for (int walk = 0; walk < 3; walk++)
        for (int32_t i = 0; i < w->n_pages; i++) {
            double x = judge(s, kv, g, i, q) * scale;
            if (!isfinite((float)x))
                continue;
            if (walk == 0)
                top = x > top ? x : top;
            else if (walk == 1)
                total += exp(x - top);
            else
                votes[i] += (uint64_t)(exp(x - top) / total * (1 << PAGE_VOTE_BITS));
        }
}

void cpu_ref_watch_pages(pass *p, mat q, const kv_view *kv, float scale, const page_watch *w)
{
    const rowset *rs = p->rows;
    for (int32_t r = 0; r < q.rows; r++)
        for (int32_t h = 0; h < q.heads && rs->seq[r] == w->seq && rs->pos[r] >= w->pos; h++)
            watch_query(w, kv, w->votes[p->here], mat_row(q, r) + (size_t)h * (size_t)q.cols, scale,
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
static void rescore_queries(const kv_view *v, const kv_base *base, const page_rescore *l,
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

void cpu_ref_rescore_pages(device *d, const kv_view *v, const kv_base *base, const page_rescore *l)
{
    (void)d;
    double back[NUM_ROT_GROUP][NUM_ROT_GROUP];
    int32_t n = l->q.rows * (l->q.heads / v->n_head_kv);
    cpu_ref_fill_back(back);
    for (int32_t i = 0; i < l->n; i++)
        for (int32_t h = 0; h < v->n_head_kv; h++)
            for (int32_t j = 0; j < n; j += PAGE_WATCH_HEADS)
                rescore_queries(v, base, l, back, h, i, j,
                                n - j < PAGE_WATCH_HEADS ? n - j : PAGE_WATCH_HEADS);
}
