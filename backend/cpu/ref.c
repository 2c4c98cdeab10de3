/* ref.c - the plain definition of every op.
 *
 * This file defines the ops: simple loops, one output at a time, sums in double, weights decoded to
 * f32, activations never rounded. Kernels are tested against it, and a device opened with
 * `reference` uses nothing else. Long products are spread over the pool; each output is still
 * computed by one loop in one order. Temporaries are released right after they are taken, because
 * no op takes scratch while another uses its own.
 *
 * The ops of recurrent layers are in recur_ref.c. The fused ops (glu, add_rms_norm) are absent:
 * their expansions in backend/ops.c define them.
 */
#include "backend/cpu/cpu_int.h"
#include "backend/cpu/sparse_int.h"
#include "backend/cpu/table_ops_int.h"
#include "backend/key_walk.h"

#include <math.h>
#include <string.h>

/* ---- Element by element ------------------------------------------------------------------ */

static void ref_embed(pass *p, mat y, const weight *w, float scale)
{
    if (p->dry)
        return;
    num_decode_fn decode = num_format_of(w->type)->decode;
    for (int32_t r = 0; r < y.rows; r++) {
        float *to = mat_row(y, r);
        decode(weight_row(w, 0, p->rows->token[r]), to, w->n_in);
        for (int32_t i = 0; i < w->n_in; i++)
            to[i] *= scale;
    }
}

static void ref_embed_at(pass *p, mat y, mat ids, const weight *w, float scale)
{
    if (p->dry)
        return;
    for (int32_t r = 0; r < y.rows; r++) {
        float *to = mat_row(y, r), id = *mat_row(ids, r);
        bool known = id >= 0 && id < (float)w->n_out; /* false for NaN */
        if (known)
            num_format_of(w->type)->decode(weight_row(w, 0, (int64_t)id), to, w->n_in);
        for (int32_t i = 0; i < w->n_in; i++)
            to[i] = known ? to[i] * scale : NAN;
    }
}

static void ref_rms_norm(pass *p, mat *y, mat x, const weight *w, float eps)
{
    if (p->dry)
        return;
    const float *wv = w ? w->data : NULL;
    for (int32_t r = 0; r < x.rows; r++)
        for (int32_t h = 0; h < x.heads; h++) {
            const float *from = mat_row(x, r) + (size_t)h * (size_t)x.cols;
            float *to = mat_row(*y, r) + (size_t)h * (size_t)y->cols;
            double sum = 0;
            for (int32_t i = 0; i < x.cols; i++)
                sum += (double)from[i] * from[i];
            double inv = 1.0 / sqrt(sum / x.cols + (double)eps);
            for (int32_t i = 0; i < x.cols; i++)
                to[i] = (float)(from[i] * inv * (wv ? wv[i] : 1.0f));
        }
}

static double ref_gelu_tanh(double x)
{
    return 0.5 * x * (1.0 + tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x)));
}

static double ref_act(act_kind act, double x)
{
    switch (act) {
    case ACT_SILU:
        return x / (1.0 + exp(-x));
    case ACT_SOFTPLUS:
        return fmax(x, 0.0) + log1p(exp(-fabs(x)));
    case ACT_SIGMOID:
        return 1.0 / (1.0 + exp(-x));
    case ACT_GELU_ERF:
        return 0.5 * x * erfc(-0.70710678118654752440 * x);
    default:
        return ref_gelu_tanh(x);
    }
}

/* The gated unit of a and b. */
static double ref_gate(act_kind act, double a, double b)
{
    const double cut = SWIGLU_CUT;
    if (act != ACT_SWIGLU_CUT)
        return ref_act(act, a) * b;
    a = a > cut ? cut : a; /* not fmin: a NaN must show */
    b = b > cut ? cut : b < -cut ? -cut : b;
    return a / (1.0 + exp(-(double)SWIGLU_SLOPE * a)) * (b + 1);
}

static void ref_act_mul(pass *p, mat *y, mat a, mat b, act_kind act)
{
    if (p->dry)
        return;
    int32_t share = mat_width(b) == mat_width(a) ? 1 : b.cols; /* columns of b per column of a */
    for (int32_t r = 0; r < y->rows; r++)
        for (int32_t i = 0; i < mat_width(*y); i++)
            mat_row(*y, r)[i] = (float)ref_gate(act, mat_row(a, r)[i / share], mat_row(b, r)[i]);
}

static void ref_rope(pass *p, mat x, const rope *f)
{
    if (p->dry)
        return;
    int32_t apart = pair_step(f);
    for (int32_t r = 0; r < x.rows; r++)
        for (int32_t i = 0; i < f->n_pairs; i++) {
            int32_t pos =
                rope_by_axes(f, p->rows) ? p->rows->axis[rope_axis(f, i)][r] : p->rows->pos[r];
            double angle = (double)pos * f->inv_freq[i];
            double factor = rope_factor_at(f, pos);
            double c = factor * cos(angle), s = factor * sin(angle);
            for (int32_t h = 0; h < x.heads; h++) {
                float *v = mat_row(x, r) + (size_t)h * (size_t)x.cols + pair_at(f, i);
                double a = v[0], b = v[apart];
                v[0] = (float)(a * c - b * s);
                v[apart] = (float)(a * s + b * c);
            }
        }
}

static void ref_clamp(pass *p, mat y, mat x, float low, float high)
{
    if (p->dry)
        return;
    for (int32_t r = 0; r < y.rows; r++)
        for (int32_t i = 0; i < mat_width(y); i++) {
            float v = mat_row(x, r)[i]; /* a NaN stays one */
            mat_row(y, r)[i] = v < low ? low : v > high ? high : v;
        }
}

static void ref_pool(pass *p, mat y, mat x, int32_t n)
{
    if (p->dry)
        return;
    for (int32_t r = 0; r < y.rows; r++)
        for (int32_t i = 0; i < mat_width(y); i++) {
            double sum = 0;
            for (int32_t k = 0; k < n; k++)
                sum += mat_row(x, r * n + k)[i];
            mat_row(y, r)[i] = (float)(sum / n);
        }
}

static void ref_standardize(pass *p, mat x, const weight *shift, const weight *scale)
{
    const float *b = shift->data, *c = scale->data;
    if (p->dry)
        return;
    for (int32_t r = 0; r < x.rows; r++)
        for (int32_t i = 0; i < x.cols; i++)
            mat_row(x, r)[i] = (float)(((double)mat_row(x, r)[i] - b[i]) * c[i]);
}

static void ref_layer_norm(pass *p, mat y, mat x, const weight *w, const weight *b, float eps)
{
    const float *wv = w->data, *bv = b ? b->data : NULL;
    if (p->dry)
        return;
    for (int32_t r = 0; r < x.rows; r++) {
        const float *from = mat_row(x, r);
        double sum = 0, square = 0;
        for (int32_t i = 0; i < x.cols; i++)
            sum += from[i];
        double mean = sum / x.cols;
        for (int32_t i = 0; i < x.cols; i++)
            square += (from[i] - mean) * (from[i] - mean);
        double inv = 1.0 / sqrt(square / x.cols + (double)eps);
        for (int32_t i = 0; i < x.cols; i++)
            mat_row(y, r)[i] = (float)((from[i] - mean) * inv * wv[i] + (bv ? bv[i] : 0.0f));
    }
}

static void ref_act_alone(pass *p, mat x, act_kind act)
{
    if (p->dry)
        return;
    for (int32_t r = 0; r < x.rows; r++)
        for (int32_t i = 0; i < mat_width(x); i++)
            mat_row(x, r)[i] = (float)ref_act(act, mat_row(x, r)[i]);
}

static void ref_embed_mix(pass *p, mat y, mat ids, mat share, const weight *w)
{
    size_t mark = pass_mark(p);
    float *row = pass_temp(p, (size_t)w->n_in * sizeof *row);
    pass_release(p, mark);
    if (p->dry || pass_failed(p))
        return;
    for (int32_t r = 0; r < y.rows; r++) {
        float *to = mat_row(y, r);
        memset(to, 0, (size_t)w->n_in * sizeof *to);
        for (int32_t k = 0; k < mat_width(ids); k++) {
            num_format_of(w->type)->decode(weight_row(w, 0, (int64_t)mat_row(ids, r)[k]), row,
                                           w->n_in);
            for (int32_t i = 0; i < w->n_in; i++)
                to[i] += mat_row(share, r)[k] * row[i];
        }
    }
}

static void ref_add(pass *p, mat y, mat a, mat b)
{
    if (p->dry)
        return;
    for (int32_t r = 0; r < y.rows; r++)
        for (int32_t i = 0; i < mat_width(y); i++)
            mat_row(y, r)[i] = mat_row(a, r)[i] + mat_row(b, r)[i];
}

static void ref_scale(pass *p, mat x, float c, const weight *w)
{
    if (p->dry)
        return;
    if (w)
        c *= *(const float *)w->data;
    for (int32_t r = 0; r < x.rows; r++)
        for (int32_t i = 0; i < mat_width(x); i++)
            mat_row(x, r)[i] *= c;
}

static void ref_gather(pass *p, mat y, mat x, const int32_t *row)
{
    if (p->dry)
        return;
    for (int32_t r = 0; r < y.rows; r++)
        memcpy(mat_row(y, r), mat_row(x, row[r]), (size_t)mat_width(x) * sizeof(float));
}

static void ref_copy(pass *p, mat y, mat x)
{
    if (p->dry)
        return;
    for (int32_t r = 0; r < y.rows; r++)
        memcpy(mat_row(y, r), mat_row(x, r), (size_t)mat_width(x) * sizeof(float));
}

static void ref_softcap(pass *p, mat x, float cap, const int32_t *ids, int32_t n_ids)
{
    if (p->dry)
        return;
    for (int32_t r = 0; r < x.rows; r++) {
        float *v = mat_row(x, r);
        if (cap > 0)
            for (int32_t i = 0; i < mat_width(x); i++)
                v[i] = (float)(cap * tanh((double)v[i] / cap));
        for (int32_t i = 0; i < n_ids; i++)
            v[ids[i]] = -INFINITY;
    }
}

/* Rank j is the largest of what follows rank j - 1 in the order (larger logit, smaller number). */
static void ref_best(pass *p, mat y, mat x)
{
    if (p->dry)
        return;
    for (int32_t r = 0; r < x.rows; r++) {
        const float *z = mat_row(x, r);
        float *id = mat_row(y, r), *logp = id + y.cols;
        double top = -INFINITY, sum = 0;
        bool bad = false;
        for (int32_t i = 0; i < x.cols; i++) {
            top = z[i] > top ? z[i] : top;
            bad |= isnan(z[i]);
        }
        bad |= isinf(top);
        for (int32_t i = 0; i < x.cols; i++)
            sum += exp(z[i] - top);
        for (int32_t j = 0, last = -1; j < y.cols; j++) {
            int32_t best = -1;
            for (int32_t i = 0; i < x.cols && !bad; i++) {
                bool left = j == 0 || z[i] < z[last] || (z[i] == z[last] && i > last);
                if (left && (best < 0 || z[i] > z[best]))
                    best = i;
            }
            id[j] = (float)best;
            logp[j] = bad ? NAN : (float)(z[best] - top - log(sum));
            last = best;
        }
    }
}

/* ---- Products ---------------------------------------------------------------------------- */

typedef struct ref_product {
    mat y, x;
    const weight *w;
    float *row; /* [n_threads, n_in] */
} ref_product;

static void product_row(void *arg, int32_t o, int32_t thread)
{
    ref_product *m = arg;
    int32_t n = m->w->n_in;
    float *row = m->row + (size_t)thread * (size_t)n;
    const float *bias = weight_bias(m->w, 0);
    num_format_of(m->w->type)->decode(weight_row(m->w, 0, o), row, n);
    for (int32_t r = 0; r < m->x.rows; r++) {
        const float *x = mat_row(m->x, r);
        double sum = 0;
        for (int32_t i = 0; i < n; i++)
            sum += (double)row[i] * x[i];
        mat_row(m->y, r)[o] = (float)(sum * weight_factor(m->w, 0) + (bias ? bias[o] : 0));
    }
}

/* A row of n floats for each thread; NULL: nothing is to be computed. */
static float *thread_rows(pass *p, int32_t n)
{
    size_t mark = pass_mark(p);
    float *row = pass_temp(p, (size_t)cpu_of(p)->n_threads * (size_t)n * sizeof *row);
    pass_release(p, mark);
    return p->dry || pass_failed(p) ? NULL : row;
}

static void ref_matmul(pass *p, mat y, mat *x, const weight *w)
{
    cpu_device *c = cpu_of(p);
    float *row = thread_rows(p, w->n_in);
    if (!row)
        return;
    ref_product m = {y, *x, w, row};
    pool_run(c->pool, w->n_out, product_row, &m);
}

/* Scores of n experts from their logits. */
static void ref_scores(double *pr, const float *z, int32_t n, bool sigmoid)
{
    double top = -INFINITY, sum = 0;
    for (int32_t e = 0; e < n; e++)
        top = z[e] > top ? z[e] : top;
    for (int32_t e = 0; e < n; e++)
        sum += pr[e] = sigmoid ? 1.0 / (1.0 + exp(-z[e])) : exp(z[e] - top);
    for (int32_t e = 0; e < n && !sigmoid; e++)
        pr[e] /= sum;
}

/* Ties go to the lower index: only a strictly larger value takes the place. */
static void ref_route(pass *p, routing r, mat logits, const route_rule *rule)
{
    int32_t n = mat_width(logits);
    size_t mark = pass_mark(p);
    double *pr = pass_temp(p, (size_t)n * sizeof(double));
    pass_release(p, mark);
    if (p->dry || pass_failed(p))
        return;
    const float *es = rule->scale ? rule->scale->data : NULL;
    const float *bias = rule->bias ? rule->bias->data : NULL;
    for (int32_t row = 0; row < r.rows; row++) {
        int32_t *id = r.id + (size_t)row * (size_t)r.k;
        float *share = r.weight + (size_t)row * (size_t)r.k;
        double picked = 0;
        ref_scores(pr, mat_row(logits, row), n, rule->sigmoid);
        for (int32_t j = 0; j < r.k; j++) {
            int32_t best = -1;
            for (int32_t e = 0; e < n; e++) {
                bool taken = false;
                for (int32_t i = 0; i < j; i++)
                    taken |= id[i] == e;
                /* NaN never compares larger; then the first free expert is taken */
                if (!taken &&
                    (best < 0 || pr[e] + (bias ? bias[e] : 0) > pr[best] + (bias ? bias[best] : 0)))
                    best = e;
            }
            id[j] = best;
            picked += pr[best];
        }
        for (int32_t j = 0; j < r.k; j++)
            share[j] = (float)(pr[id[j]] / picked * route_factor(rule) * (es ? es[id[j]] : 1.0));
    }
}

typedef struct ref_experts {
    mat y, x;
    routing r;
    const weight *a, *b; /* gate and up (NULL: halves of gate); or down and NULL */
    float *row;          /* [n_threads, n_in] */
    int32_t n_ff;
    act_kind act;
} ref_experts;

static double expert_dot(const weight *w, int32_t e, int64_t o, const float *x, float *row)
{
    num_format_of(w->type)->decode(weight_row(w, e, o), row, w->n_in);
    const float *bias = weight_bias(w, e);
    double sum = 0;
    for (int32_t i = 0; i < w->n_in; i++)
        sum += (double)row[i] * x[i];
    return sum * weight_factor(w, e) + (bias ? bias[o] : 0);
}

static void moe_glu_row(void *arg, int32_t chunk, int32_t thread)
{
    ref_experts *m = arg;
    int32_t r = chunk / m->r.k, j = chunk % m->r.k;
    int32_t e = weight_expert(m->a, m->r.id[chunk]);
    float *row = m->row + (size_t)thread * (size_t)m->a->n_in;
    const weight *up = m->b ? m->b : m->a;
    for (int32_t o = 0; o < m->n_ff; o++) {
        if (e < 0) {
            mat_row(m->y, r)[(size_t)j * (size_t)m->n_ff + (size_t)o] = 0;
            continue;
        }
        double g = expert_dot(m->a, e, o, mat_row(m->x, r), row);
        double u = expert_dot(up, e, m->b ? o : o + m->n_ff, mat_row(m->x, r), row);
        mat_row(m->y, r)[(size_t)j * (size_t)m->n_ff + (size_t)o] = (float)ref_gate(m->act, g, u);
    }
}

static void ref_moe_glu(pass *p, mat *y, mat x, routing *r, const weight *gate, const weight *up,
                        act_kind act)
{
    cpu_device *c = cpu_of(p);
    float *row = thread_rows(p, gate->n_in);
    if (!row)
        return;
    ref_experts m = {*y, x, *r, gate, up, row, y->cols, act};
    pool_run(c->pool, r->rows * r->k, moe_glu_row, &m);
}

static void moe_down_row(void *arg, int32_t r, int32_t thread)
{
    ref_experts *m = arg;
    int32_t k = m->r.k;
    float *row = m->row + (size_t)thread * (size_t)m->a->n_in;
    for (int32_t o = 0; o < m->a->n_out; o++) {
        double sum = 0;
        for (int32_t j = 0; j < k; j++) {
            size_t rj = (size_t)r * (size_t)k + (size_t)j;
            const float *x = mat_row(m->x, r) + (size_t)j * (size_t)m->x.cols;
            int32_t e = weight_expert(m->a, m->r.id[rj]);
            sum += e < 0 ? 0 : m->r.weight[rj] * expert_dot(m->a, e, o, x, row);
        }
        mat_row(m->y, r)[o] = (float)sum;
    }
}

static void ref_moe_down(pass *p, mat y, mat x, routing r, const weight *down)
{
    cpu_device *c = cpu_of(p);
    float *row = thread_rows(p, down->n_in);
    if (!row)
        return;
    ref_experts m = {y, x, r, down, NULL, row, 0, ACT_GELU_TANH};
    pool_run(c->pool, r.rows, moe_down_row, &m);
}

static void moe_matmul_row(void *arg, int32_t chunk, int32_t thread)
{
    ref_experts *m = arg;
    int32_t r = chunk / m->r.k, j = chunk % m->r.k, n = m->y.cols;
    float *row = m->row + (size_t)thread * (size_t)m->a->n_in;
    for (int32_t o = 0; o < n; o++)
        mat_row(m->y, r)[(size_t)j * (size_t)n + (size_t)o] =
            (float)expert_dot(m->a, m->r.id[chunk], o, mat_row(m->x, r), row);
}

static void ref_moe_matmul(pass *p, mat y, mat *x, routing r, const weight *w)
{
    cpu_device *c = cpu_of(p);
    float *row = thread_rows(p, w->n_in);
    if (!row)
        return;
    ref_experts m = {.y = y, .x = *x, .r = r, .a = w, .row = row};
    pool_run(c->pool, r.rows * r.k, moe_matmul_row, &m);
}

void cpu_renumber(pass *p, mat x, routing r, const int32_t *list, int32_t n_list, int32_t n)
{
    (void)n_list;
    if (p->dry)
        return;
    for (int32_t row = 0; row < x.rows; row++)
        for (int32_t i = 0; i < x.cols; i++) {
            float *id = mat_row(x, row) + i;
            int32_t c = (int32_t)*id;
            if (c >= 0)
                *id = (float)list[r.id[row * r.k + c / n] * n + c % n];
        }
}

/* ---- Attention --------------------------------------------------------------------------- */

/* Rot x, then the blocks of it: what a rotated format stores. */
static void ref_store_head(const float *x, char *to, num_type t, float *turned, int32_t n)
{
    if (turned) {
        memcpy(turned, x, (size_t)n * sizeof *x);
        num_rotate(turned, n);
    }
    num_format_of(t)->encode(turned ? turned : x, to, n);
    if (t == NUM_F16)
        cpu_mark_overflow((uint16_t *)(void *)to, n);
}

static void ref_kv_store(pass *p, const kv_view *kv, mat k, mat v)
{
    size_t mark = pass_mark(p);
    float *turned = pass_temp(p, (size_t)kv->head_dim * sizeof *turned);
    pass_release(p, mark);
    if (p->dry || pass_failed(p))
        return;
    const rowset *rs = p->rows;
    for (int32_t r = 0; r < k.rows; r++) {
        const kv_base *base = step_store(p->st, rs->seq[r], kv);
        size_t place = key_walk(kv, base, rows_keys(rs, kv)->index[r]).place;
        for (int32_t h = 0; h < kv->n_head_kv; h++) {
            size_t from = (size_t)h * (size_t)kv->head_dim;
            ref_store_head(mat_row(k, r) + from, key_row(kv, base->k, kv->k_row_bytes, h, place),
                           kv->k_type, kv->k_rot ? turned : NULL, kv->head_dim);
            if (!kv->single)
                ref_store_head(mat_row(v, r) + from,
                               key_row(kv, base->v, kv->v_row_bytes, h, place), kv->v_type,
                               kv->v_rot ? turned : NULL, kv->head_dim);
        }
    }
}

typedef struct ref_attention {
    pass *p;
    mat o, q;
    const kv_view *kv;
    float scale;
    double *sum, *row;             /* [n_threads, head_dim] each */
    float *stored;                 /* [n_threads, head_dim] */
    double (*back)[NUM_ROT_GROUP]; /* Rot^-1, a column after the other, times sqrt(NUM_ROT_GROUP) */
    sparse_account *account;       /* [rows, heads]; NULL: nothing is left out */
    cpu_selection select;
    double *mean; /* [tiles, head_dim]: of one KV head */
} ref_attention;

/* By definition; the sign of an entry of H is the parity of i & j. */
void cpu_ref_fill_back(double (*back)[NUM_ROT_GROUP])
{
    float first[NUM_ROT_GROUP], last[NUM_ROT_GROUP];
    num_rotation_signs(first, last);
    for (int j = 0; j < NUM_ROT_GROUP; j++)
        for (int i = 0; i < NUM_ROT_GROUP; i++)
            back[j][i] = (__builtin_popcount((unsigned)(i & j)) & 1 ? -1 : 1) * first[i] * last[j];
}

void cpu_ref_unrotate(double (*back)[NUM_ROT_GROUP], double *x, int32_t n)
{
    for (; n > 0; n -= NUM_ROT_GROUP, x += NUM_ROT_GROUP) {
        double y[NUM_ROT_GROUP] = {0};
        for (int j = 0; j < NUM_ROT_GROUP; j++)
            for (int i = 0; i < NUM_ROT_GROUP; i++)
                y[i] += back[j][i] * x[j];
        for (int i = 0; i < NUM_ROT_GROUP; i++)
            x[i] = y[i] / sqrt(NUM_ROT_GROUP);
    }
}

/* A stored row of keys or values in thread's `row`. */
static void decode_plain(const ref_attention *a, bool keys, const char *from, int32_t thread)
{
    int32_t n = a->kv->head_dim;
    double *row = a->row + (size_t)thread * (size_t)n;
    float *stored = a->stored + (size_t)thread * (size_t)n;
    num_format_of(keys ? a->kv->k_type : a->kv->v_type)->decode(from, stored, n);
    for (int32_t i = 0; i < n; i++)
        row[i] = stored[i];
    if (keys ? a->kv->k_rot : a->kv->v_rot)
        cpu_ref_unrotate(a->back, row, n);
}

/* x = RoPE_pos(w * x), as the norm and the rotation of keys would have made it. */
void cpu_ref_make_key(const kv_view *kv, int64_t pos, double *x)
{
    const float *w = kv->k_weight->data;
    int32_t half = kv->head_dim / 2;
    for (int32_t i = 0; i < half; i++) {
        double angle = (double)pos * kv->k_rope->inv_freq[i], c = cos(angle), s = sin(angle);
        double a = x[i] * w[i], b = x[i + half] * w[i + half];
        x[i] = a * c - b * s;
        x[i + half] = a * s + b * c;
    }
}

/* The query and the store of one pair of row and head. */
typedef struct ref_pair {
    const kv_base *base;
    const float *q;
    int32_t r, g; /* row, KV head */
} ref_pair;

static double score_key(const ref_attention *a, const ref_pair *x, int64_t t, int32_t thread)
{
    const kv_view *kv = a->kv;
    const double *row = a->row + (size_t)thread * (size_t)kv->head_dim;
    size_t place = row_key_walk(kv, x->base, a->p->rows, x->r, t).place;
    double score = 0;
    decode_plain(a, true, key_row(kv, x->base->k, kv->k_row_bytes, x->g, place), thread);
    if (kv->single)
        cpu_ref_make_key(kv, key_pos(x->base, t), a->row + (size_t)thread * (size_t)kv->head_dim);
    for (int32_t i = 0; i < kv->head_dim; i++)
        score += row[i] * x->q[i];
    return score * a->scale;
}

static double larger(double top, double score)
{
    return score > top || isnan(score) ? score : top;
}

/* Three walks over the keys: the largest score; then tile by tile the largest score of the tile,
 * which may drop the tile, and the weighted sum. Nothing is stored per key, so scores are computed
 * again. Keys and values of every format are decoded to their values before the store. */
static void attend_head(void *arg, int32_t chunk, int32_t thread)
{
    ref_attention *a = arg;
    const kv_view *kv = a->kv;
    const rowset *rs = a->p->rows;
    int32_t r = chunk / a->q.heads, h = chunk % a->q.heads, n = kv->head_dim;
    const ref_pair x = {.base = step_store(a->p->st, rs->seq[r], kv),
                        .q = mat_row(a->q, r) + (size_t)h * (size_t)n,
                        .r = r,
                        .g = h / (a->q.heads / kv->n_head_kv)};
    double *sum = a->sum + (size_t)thread * (size_t)n, *row = a->row + (size_t)thread * (size_t)n;
    key_range s = row_range(rs, kv, r);
    const sparse_rule *rule = sparse_rule_of(a->p->st, rs, kv, r);
    sparse_walk walk = {.top = -INFINITY, .limit = sparse_limit(rule, s.hi - s.lo)};
    double top = -INFINITY, total = 0;
    int32_t tile = rule && rule->tile ? rule->tile : SPARSE_TILE;

    memset(sum, 0, (size_t)n * sizeof *sum);
    for (int64_t t = s.lo; t < s.hi; t++)
        top = larger(top, score_key(a, &x, t, thread));
    for (int64_t from = s.lo, end; from < s.hi; from = end) {
        double tile_top = -INFINITY;
        end = (from / tile + 1) * tile;
        end = end < s.hi ? end : s.hi;
        if (rule && !cpu_selected(&a->select, r, x.g, from / SPARSE_TILE)) {
            walk.n_tiles++;
            continue;
        }
        for (int64_t t = from; rule && t < end; t++)
            tile_top = larger(tile_top, score_key(a, &x, t, thread));
        if (rule && sparse_drops(&walk, (float)tile_top, end - from))
            continue;
        for (int64_t t = from; t < end; t++) {
            double e = exp(score_key(a, &x, t, thread) - top);
            size_t place = row_key_walk(kv, x.base, rs, r, t).place;
            total += e;
            decode_plain(a, false,
                         kv->single ? key_row(kv, x.base->k, kv->k_row_bytes, x.g, place)
                                    : key_row(kv, x.base->v, kv->v_row_bytes, x.g, place),
                         thread);
            for (int32_t i = 0; i < n; i++)
                sum[i] += e * row[i];
        }
    }
    if (kv->sinks)
        total += exp(((const float *)kv->sinks->data)[h] - top);
    for (int32_t i = 0; i < n; i++)
        mat_row(a->o, r)[(size_t)h * (size_t)n + (size_t)i] = (float)(sum[i] / total);
    if (rule)
        a->account[chunk] =
            (sparse_account){sparse_certificate(&walk, (float)total), walk.n_tiles, walk.n_kept};
}

/* The mean of the two pages of each tile, in bf16 as pages.c keeps it, times q. */
static double score_tile(const ref_attention *a, const ref_pair *x, int32_t n)
{
    double sum = 0;
    for (int32_t i = 0; i < a->kv->head_dim; i++)
        sum += a->mean[(size_t)n * (size_t)a->kv->head_dim + (size_t)i] * x->q[i];
    return sum * a->scale;
}

/* Means of tiles 0 .. n - 1 of KV head x->g, as the queries meet them: not rotated. */
static void make_means(ref_attention *a, const ref_pair *x, int32_t n)
{
    size_t dim = (size_t)a->kv->head_dim;
    for (int32_t t = 0; t < n; t++) {
        double *to = a->mean + (size_t)t * dim;
        memset(to, 0, dim * sizeof *to);
        for (int64_t k = (int64_t)t * SPARSE_TILE; k < (int64_t)(t + 1) * SPARSE_TILE; k++) {
            score_key(a, x, k, 0);
            for (size_t i = 0; i < dim; i++)
                to[i] += a->row[i] / SPARSE_TILE;
        }
    }
}

/* Block selection by its definition in sparse.h, for one query block and query head. */
static void select_block(ref_attention *a, int32_t at, int32_t h)
{
    const rowset *rs = a->p->rows;
    sparse_query query = a->select.query[at];
    double best = -INFINITY, most = 0, w;
    double alpha = a->p->st->sparse[rs->seq[query.r0]].alpha;
    ref_pair x = {.base = step_store(a->p->st, rs->seq[query.r0], a->kv),
                  .r = query.r0,
                  .g = h / (a->q.heads / a->kv->n_head_kv)};
    x.q = mat_row(a->q, query.r0) + (size_t)h * (size_t)a->kv->head_dim;
    make_means(a, &x, query.block + 1);
    for (int walk = 0; walk < 3; walk++)
        for (int32_t n = 0; n <= query.block; n++) {
            w = 0;
            for (int32_t j = n < query.block ? 0 : SPARSE_TILE - 1; j < SPARSE_TILE; j++) {
                x.q = mat_row(a->q, query.r0 + j) + (size_t)h * (size_t)a->kv->head_dim;
                double t = score_tile(a, &x, n);
                best = walk == 0 && t > best ? t : best;
                w += exp(t - best);
            }
            most = walk == 1 && w > most ? w : most;
            if (walk == 2 && (sparse_forced(query.block, n) || !(w < alpha * most)))
                cpu_keep(&a->select, at, x.g, n);
        }
}

static void select_blocks(ref_attention *a)
{
    cpu_selection *s = &a->select;
    if (!s->query || !a->account)
        return;
    s->n = sparse_queries(a->p->st, a->p->rows, a->kv, s->query, s->of_row);
    memset(s->kept, 0, (size_t)s->n * (size_t)s->n_head_kv * (size_t)s->n_word * sizeof *s->kept);
    for (int32_t i = 0; i < s->n; i++)
        for (int32_t h = 0; h < a->q.heads; h++)
            select_block(a, i, h);
}

static void ref_attend(pass *p, mat *o, mat q, const kv_view *kv, float scale)
{
    cpu_device *c = cpu_of(p);
    size_t n = (size_t)c->n_threads * (size_t)kv->head_dim;
    size_t mark = pass_mark(p);
    double *sum = pass_temp(p, n * sizeof *sum), *row = pass_temp(p, n * sizeof *row);
    float *stored = pass_temp(p, n * sizeof *stored);
    double(*back)[NUM_ROT_GROUP] = NULL;
    if (kv->k_rot || kv->v_rot)
        back = pass_temp(p, NUM_ROT_GROUP * sizeof *back);
    sparse_account *account = cpu_sparse_accounts(p, q, kv);
    ref_attention a = {p, *o, q, kv, scale, sum, row, stored, back, account, {0}, NULL};
    cpu_selection_take(p, q, kv, 0, &a.select);
    if (a.select.query)
        a.mean = pass_temp(p, ((size_t)kv->n_keys / SPARSE_TILE + 1) * (size_t)kv->head_dim *
                                  sizeof *a.mean);
    pass_release(p, mark);
    if (p->dry || pass_failed(p))
        return;
    if (back)
        cpu_ref_fill_back(back);
    select_blocks(&a);
    pool_run(c->pool, q.rows * q.heads, attend_head, &a);
    cpu_sparse_count(p, q, kv, account);
}

const device_ops cpu_ref_ops = {
    .embed = ref_embed,
    .embed_at = ref_embed_at,
    .rms_norm = ref_rms_norm,
    .matmul = ref_matmul,
    .act_mul = ref_act_mul,
    .rope = ref_rope,
    .kv_store = ref_kv_store,
    .attend = ref_attend,
    .tail = cpu_ref_tail,
    .watch_pages = cpu_ref_watch_pages,
    .add = ref_add,
    .scale = ref_scale,
    .route = ref_route,
    .moe_glu = ref_moe_glu,
    .moe_down = ref_moe_down,
    .moe_matmul = ref_moe_matmul,
    .renumber = cpu_renumber,
    .conv = cpu_ref_conv,
    .delta = cpu_ref_delta,
    .gather = ref_gather,
    .copy = ref_copy,
    .softcap = ref_softcap,
    .best = ref_best,
    .unfold = cpu_unfold,
    .depthwise = cpu_ref_depthwise,
    .near = cpu_ref_near,
    .clamp = ref_clamp,
    .pool = ref_pool,
    .standardize = ref_standardize,
    .layer_norm = ref_layer_norm,
    .act = ref_act_alone,
    .embed_mix = ref_embed_mix,
};
