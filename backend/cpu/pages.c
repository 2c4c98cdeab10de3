/* pages.c - summaries of pages of keys: means and bounds (page_sums in backend/ops.h).
 *
 * A task is a page of one KV head. Its keys are unpacked row by row into floats by the kernel of
 * the instruction set, and summed in the order of their positions. One stream: rows become keys by
 * the norm's weights and the rotation, as in attend.c, but one at a time: a page is summarised
 * once.
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

/* x = RoPE_pos(w x); the cosines of pairs that stand still are 1. */
static void make_key(const sum_job *j, int32_t pos, float *x)
{
    const rope *rp = j->v->k_rope;
    const float *w = j->v->k_weight->data;
    int32_t half = j->v->head_dim / 2;
    float c[PAGE_SUM_DIM_MAX / 2], s[PAGE_SUM_DIM_MAX / 2];
    for (int32_t i = 0; i < 2 * half; i++)
        x[i] *= w[i];
    j->k->sincos(c, s, rp->inv_freq, rp->n_turning, pos);
    for (int32_t i = rp->n_turning; i < half; i++) {
        c[i] = 1;
        s[i] = 0;
    }
    j->k->rotate(x, c, s, half);
}

/* acc: [3][head_dim]: sums, smallest and largest values of the page's keys. */
static void sum_page(const sum_job *j, int32_t head, int32_t page, float (*acc)[PAGE_SUM_DIM_MAX])
{
    const kv_view *v = j->v;
    float x[PAGE_SUM_DIM_MAX];
    float *sum = acc[0], *lo = acc[1], *hi = acc[2];
    int32_t dim = v->head_dim;
    int64_t t0 = (int64_t)page * KV_PAGE;
    for (int32_t k = 0; k < KV_PAGE; k++) {
        size_t place = key_walk(v, j->base, t0 + k).place;
        const key_rows row = {.type = v->k_type,
                              .at = key_row(v, j->base->k, v->k_row_bytes, head, place),
                              .row_bytes = v->k_row_bytes,
                              .n = 1,
                              .dim = dim};
        j->k->unpack(&row, x, dim);
        if (v->single) {
            if (v->k_rot)
                num_unrotate(x, dim);
            make_key(j, (j->base->page ? j->base->page[page].pos : (int32_t)t0) + k, x);
        }
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
    uint16_t *at = page_sum_row(j->to, j->v, head, j->row + i);
    float acc[3][PAGE_SUM_DIM_MAX];
    sum_page(j, head, j->first + i, acc);
    for (int32_t d = 0; d < dim; d++)
        at[d] = num_f32_to_bf16(acc[0][d] * (1.0f / KV_PAGE));
    for (int32_t d = 0; d < dim && j->to->parts == PAGE_SUM_BOUNDS; d++) {
        at[dim + d] = cpu_bf16_down(acc[1][d]);
        at[2 * dim + d] = cpu_bf16_up(acc[2][d]);
    }
}

void cpu_sum_pages(device *d, const kv_view *v, const kv_base *base, const page_sums *to,
                   int32_t first, int32_t row, int32_t n)
{
    cpu_device *c = d->self;
    sum_job j = {c->k, v, base, to, first, row, n};
    pool_run(c->pool, v->n_head_kv * n, sum_task, &j);
}
