/* small.c - the ops that are neither products nor attention: rows in, rows out.
 *
 * Each splits its rows over the pool where the work outweighs the wake-up, and hands single rows to
 * the kernels. A decode step has hundreds of them on one row, which run on the calling thread.
 */
#include "backend/cpu/cpu_int.h"
#include "backend/cpu/table_ops_int.h"
#include "backend/key_walk.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* Below this many elements a loop stays on the calling thread: waking the others and waiting for
 * them costs about as long as streaming this much. */
enum { SPLIT_ELEMENTS = 32768 };

typedef struct rows_job {
    pass *p;
    mat y, a, b;
    const weight *w;
    const float *wv;
    float c, high;
    const rope *rope;
    const kv_view *kv;
    const int32_t *ids;
    int32_t n_ids;
    act_kind act;
    float *temp; /* per thread */
    int32_t rows_per_chunk;
    void (*row)(const struct rows_job *j, int32_t r, int32_t thread);
} rows_job;

static void rows_chunk(void *arg, int32_t chunk, int32_t thread)
{
    const rows_job *j = arg;
    int32_t r0 = chunk * j->rows_per_chunk;
    int32_t r1 = r0 + j->rows_per_chunk < j->y.rows ? r0 + j->rows_per_chunk : j->y.rows;
    for (int32_t r = r0; r < r1; r++)
        j->row(j, r, thread);
}

static void run_rows(rows_job *j, int32_t width)
{
    cpu_device *c = cpu_of(j->p);
    int64_t per_chunk = SPLIT_ELEMENTS / 2 / (width > 0 ? width : 1) + 1;
    if ((int64_t)j->y.rows * width < SPLIT_ELEMENTS) {
        for (int32_t r = 0; r < j->y.rows; r++)
            j->row(j, r, 0);
        return;
    }
    j->rows_per_chunk = (int32_t)per_chunk;
    pool_run(c->pool, (j->y.rows + j->rows_per_chunk - 1) / j->rows_per_chunk, rows_chunk, j);
}

static const cpu_kernels *kernels(const rows_job *j)
{
    return cpu_of(j->p)->k;
}

/* ---- Rows -------------------------------------------------------------------------------- */

static void embed_row(const rows_job *j, int32_t r, int32_t thread)
{
    (void)thread;
    float *to = mat_row(j->y, r);
    num_format_of(j->w->type)->decode(weight_row(j->w, 0, j->p->rows->token[r]), to, j->w->n_in);
    kernels(j)->scale(to, j->c, j->w->n_in);
}

static void embed_at_row(const rows_job *j, int32_t r, int32_t thread)
{
    (void)thread;
    float *to = mat_row(j->y, r), id = *mat_row(j->a, r);
    if (id >= 0 && id < (float)j->w->n_out) { /* false for NaN */
        num_format_of(j->w->type)->decode(weight_row(j->w, 0, (int64_t)id), to, j->w->n_in);
        kernels(j)->scale(to, j->c, j->w->n_in);
        return;
    }
    for (int32_t i = 0; i < j->w->n_in; i++)
        to[i] = NAN;
}

static void norm_row(const rows_job *j, int32_t r, int32_t thread)
{
    (void)thread;
    for (int32_t h = 0; h < j->a.heads; h++)
        kernels(j)->rms_norm(mat_row(j->y, r) + (size_t)h * (size_t)j->y.cols,
                             mat_row(j->a, r) + (size_t)h * (size_t)j->a.cols, j->wv, j->a.cols,
                             j->c);
}

static void add_norm_row(const rows_job *j, int32_t r, int32_t thread)
{
    (void)thread;
    for (int32_t h = 0; h < j->a.heads; h++)
        kernels(j)->add_rms_norm(mat_row(j->y, r) + (size_t)h * (size_t)j->y.cols,
                                 mat_row(j->a, r) + (size_t)h * (size_t)j->a.cols, j->wv, j->a.cols,
                                 j->c);
}

static void act_row(const rows_job *j, int32_t r, int32_t thread)
{
    (void)thread;
    cpu_act_kernel(kernels(j), j->act)(mat_row(j->y, r), mat_row(j->a, r), mat_row(j->b, r),
                                       mat_width(j->y));
}

/* a has one value per head. */
static void act_heads_row(const rows_job *j, int32_t r, int32_t thread)
{
    const float one = 1;
    (void)thread;
    for (int32_t h = 0; h < j->b.heads; h++) {
        const float *b = mat_row(j->b, r) + (size_t)h * (size_t)j->b.cols;
        float *y = mat_row(j->y, r) + (size_t)h * (size_t)j->y.cols, c;
        cpu_act_kernel(kernels(j), j->act)(&c, mat_row(j->a, r) + h, &one, 1);
        memmove(y, b, (size_t)j->b.cols * sizeof *y);
        kernels(j)->scale(y, c, j->y.cols);
    }
}

static void add_row(const rows_job *j, int32_t r, int32_t thread)
{
    (void)thread;
    kernels(j)->add(mat_row(j->y, r), mat_row(j->a, r), mat_row(j->b, r), mat_width(j->y));
}

static void scale_row(const rows_job *j, int32_t r, int32_t thread)
{
    (void)thread;
    kernels(j)->scale(mat_row(j->y, r), j->c, mat_width(j->y));
}

static void softcap_row(const rows_job *j, int32_t r, int32_t thread)
{
    (void)thread;
    if (j->c > 0)
        kernels(j)->softcap(mat_row(j->y, r), j->c, mat_width(j->y));
    for (int32_t i = 0; i < j->n_ids; i++)
        mat_row(j->y, r)[j->ids[i]] = -INFINITY;
}

/* These three of vision towers are plain loops: they are a thousandth of a tower's time. */
static void clamp_row(const rows_job *j, int32_t r, int32_t thread)
{
    const float *x = mat_row(j->a, r);
    float *y = mat_row(j->y, r), low = j->c, high = j->high;
    (void)thread;
    for (int32_t i = 0; i < mat_width(j->y); i++)
        y[i] = x[i] < low ? low : x[i] > high ? high : x[i];
}

static void pool_row(const rows_job *j, int32_t r, int32_t thread)
{
    int32_t n = j->n_ids, width = mat_width(j->y);
    float *y = mat_row(j->y, r);
    (void)thread;
    memcpy(y, mat_row(j->a, r * n), (size_t)width * sizeof *y);
    for (int32_t k = 1; k < n; k++)
        for (int32_t i = 0; i < width; i++)
            y[i] += mat_row(j->a, r * n + k)[i];
    for (int32_t i = 0; i < width; i++)
        y[i] /= (float)n;
}

static void standardize_row(const rows_job *j, int32_t r, int32_t thread)
{
    const float *shift = j->w->data;
    float *x = mat_row(j->y, r);
    (void)thread;
    for (int32_t i = 0; i < j->y.cols; i++)
        x[i] = (x[i] - shift[i]) * j->wv[i];
}

static void layer_norm_row(const rows_job *j, int32_t r, int32_t thread)
{
    (void)thread;
    kernels(j)->layer_norm(mat_row(j->y, r), mat_row(j->a, r), j->wv, j->w ? j->w->data : NULL,
                           j->y.cols, j->c);
}

/* The kernels multiply by something: here by ones. */
static void act_alone_row(const rows_job *j, int32_t r, int32_t thread)
{
    enum { PIECE = 256 };
    float one[PIECE], *x = mat_row(j->y, r);
    (void)thread;
    for (int32_t i = 0; i < PIECE; i++)
        one[i] = 1;
    for (int32_t i = 0, n = mat_width(j->y); i < n; i += PIECE)
        cpu_act_kernel(kernels(j), j->act)(x + i, x + i, one, n - i < PIECE ? n - i : PIECE);
}

static void embed_mix_row(const rows_job *j, int32_t r, int32_t thread)
{
    int32_t n = j->w->n_in;
    float *to = mat_row(j->y, r), *row = j->temp + (size_t)thread * (size_t)n;
    memset(to, 0, (size_t)n * sizeof *to);
    for (int32_t k = 0; k < mat_width(j->a); k++) {
        int64_t id = (int64_t)mat_row(j->a, r)[k];
        num_format_of(j->w->type)->decode(weight_row(j->w, 0, id), row, n);
        kernels(j)->scale(row, mat_row(j->b, r)[k], n);
        kernels(j)->add(to, to, row, n);
    }
}

void cpu_rotate(const cpu_kernels *k, const rope *f, float *x, const float *c, const float *s)
{
    if (!f->interleaved) {
        int32_t n = rope_part(f);
        for (int32_t i = 0; i < f->n_pairs; i += n)
            k->rotate(x + 2 * i, c + i, s + i, n);
        return;
    }
    for (int32_t i = 0; i < f->n_pairs; i++) {
        float a = x[2 * i], b = x[2 * i + 1];
        x[2 * i] = a * c[i] - b * s[i];
        x[2 * i + 1] = a * s[i] + b * c[i];
    }
}

static void rope_row(const rows_job *j, int32_t r, int32_t thread)
{
    const rope *f = j->rope;
    const rowset *rows = j->p->rows;
    int32_t n = f->n_pairs;
    bool axes = rope_by_axes(f, rows);
    float *c = j->temp + (size_t)thread * 4 * (size_t)n, *s = c + n;
    int32_t range = axes && !f->section[0] ? n / f->n_axes : n;
    for (int32_t i = 0; i < n; i += range) {
        const int32_t *pos = axes ? rows->axis[i / range] : rows->pos;
        kernels(j)->sincos(c + i, s + i, f->inv_freq + i, range, pos[r]);
    }
    for (int32_t a = 1; axes && f->section[0] && a < f->n_axes; a++) {
        if (rows->axis[a][r] == rows->axis[0][r])
            continue;
        kernels(j)->sincos(s + n, s + 2 * n, f->inv_freq, n, rows->axis[a][r]);
        for (int32_t i = a; i < n && rope_axis(f, i) == a; i += 3)
            c[i] = s[n + i], s[i] = s[2 * n + i];
    }
    float factor = rope_factor_at(f, axes ? 0 : rows->pos[r]);
    if (factor != 1.0f)
        kernels(j)->scale(c, factor, 2 * n);
    for (int32_t h = 0; h < j->y.heads; h++)
        cpu_rotate(kernels(j), j->rope, mat_row(j->y, r) + (size_t)h * (size_t)j->y.cols, c, s);
}

/* One head's row x of a store; rotated formats take a copy, since x belongs to the model. */
static void store_head(const cpu_kernels *k, const float *x, char *to, num_type t, float *turned,
                       int32_t dim)
{
    if (turned) {
        memcpy(turned, x, (size_t)dim * sizeof *x);
        num_rotate(turned, dim);
    }
    if (t != NUM_F16) {
        num_format_of(t)->encode(turned ? turned : x, to, dim);
        return;
    }
    k->to_f16((uint16_t *)(void *)to, turned ? turned : x, dim);
    cpu_mark_overflow((uint16_t *)(void *)to, dim);
}

static void store_row(const rows_job *j, int32_t r, int32_t thread)
{
    const kv_view *kv = j->kv;
    float *turned = j->temp + (size_t)thread * (size_t)kv->head_dim;
    const rowset *rs = j->p->rows;
    const kv_base *base = step_store(j->p->st, rs->seq[r], kv);
    size_t place = key_walk(kv, base, rows_keys(rs, kv)->index[r]).place;
    for (int32_t h = 0; h < kv->n_head_kv; h++) {
        size_t from = (size_t)h * (size_t)kv->head_dim;
        store_head(kernels(j), mat_row(j->a, r) + from,
                   key_row(kv, base->k, kv->k_row_bytes, h, place), kv->k_type,
                   kv->k_rot ? turned : NULL, kv->head_dim);
        if (!kv->single)
            store_head(kernels(j), mat_row(j->b, r) + from,
                       key_row(kv, base->v, kv->v_row_bytes, h, place), kv->v_type,
                       kv->v_rot ? turned : NULL, kv->head_dim);
    }
}

static void copy_row(const rows_job *j, int32_t r, int32_t thread)
{
    (void)thread;
    memcpy(mat_row(j->y, r), mat_row(j->a, j->ids ? j->ids[r] : r),
           (size_t)mat_width(j->y) * sizeof(float));
}

/* ---- Ops --------------------------------------------------------------------------------- */

void cpu_embed(pass *p, mat y, const weight *w, float scale)
{
    if (p->dry)
        return;
    rows_job j = {.p = p, .y = y, .w = w, .c = scale, .row = embed_row};
    run_rows(&j, mat_width(y) * 4); /* decoding takes longer than streaming */
}

void cpu_embed_at(pass *p, mat y, mat ids, const weight *w, float scale)
{
    if (p->dry)
        return;
    rows_job j = {.p = p, .y = y, .a = ids, .w = w, .c = scale, .row = embed_at_row};
    run_rows(&j, mat_width(y) * 4);
}

void cpu_rms_norm(pass *p, mat *y, mat x, const weight *w, float eps)
{
    if (p->dry)
        return;
    rows_job j = {.p = p, .y = *y, .a = x, .c = eps, .row = norm_row};
    j.wv = w ? w->data : NULL;
    run_rows(&j, mat_width(*y));
}

void cpu_add_rms_norm(pass *p, mat x, mat y, const weight *w, float eps)
{
    if (p->dry)
        return;
    rows_job j = {.p = p, .y = x, .a = y, .c = eps, .row = add_norm_row};
    j.wv = w ? w->data : NULL;
    run_rows(&j, mat_width(y));
}

void cpu_act_mul(pass *p, mat *y, mat a, mat b, act_kind act)
{
    if (p->dry)
        return;
    rows_job j = {.p = p, .y = *y, .a = a, .b = b, .act = act, .row = act_row};
    if (mat_width(a) != mat_width(b))
        j.row = act_heads_row;
    run_rows(&j, mat_width(*y));
}

void cpu_add(pass *p, mat y, mat a, mat b)
{
    if (p->dry)
        return;
    rows_job j = {.p = p, .y = y, .a = a, .b = b, .row = add_row};
    run_rows(&j, mat_width(y));
}

void cpu_scale(pass *p, mat x, float c, const weight *w)
{
    if (p->dry)
        return;
    rows_job j = {.p = p, .y = x, .c = c, .row = scale_row};
    if (w)
        j.c *= *(const float *)w->data;
    run_rows(&j, mat_width(x));
}

void cpu_clamp(pass *p, mat y, mat x, float low, float high)
{
    if (p->dry)
        return;
    rows_job j = {.p = p, .y = y, .a = x, .c = low, .high = high, .row = clamp_row};
    run_rows(&j, mat_width(y));
}

void cpu_pool(pass *p, mat y, mat x, int32_t n)
{
    if (p->dry)
        return;
    rows_job j = {.p = p, .y = y, .a = x, .n_ids = n, .row = pool_row};
    run_rows(&j, n * mat_width(y));
}

void cpu_standardize(pass *p, mat x, const weight *shift, const weight *scale)
{
    if (p->dry)
        return;
    rows_job j = {.p = p, .y = x, .w = shift, .wv = scale->data, .row = standardize_row};
    run_rows(&j, mat_width(x));
}

void cpu_layer_norm(pass *p, mat y, mat x, const weight *w, const weight *b, float eps)
{
    if (p->dry)
        return;
    rows_job j = {.p = p, .y = y, .a = x, .w = b, .wv = w->data, .c = eps, .row = layer_norm_row};
    run_rows(&j, mat_width(y));
}

void cpu_act(pass *p, mat x, act_kind act)
{
    if (p->dry)
        return;
    rows_job j = {.p = p, .y = x, .act = act, .row = act_alone_row};
    run_rows(&j, mat_width(x));
}

void cpu_embed_mix(pass *p, mat y, mat ids, mat share, const weight *w)
{
    size_t mark = pass_mark(p);
    float *temp = pass_temp(p, (size_t)cpu_of(p)->n_threads * (size_t)w->n_in * sizeof *temp);
    pass_release(p, mark);
    if (p->dry || pass_failed(p))
        return;
    rows_job j = {.p = p, .y = y, .a = ids, .b = share, .w = w, .temp = temp, .row = embed_mix_row};
    run_rows(&j, mat_width(y) * 4 * mat_width(ids));
}

void cpu_softcap(pass *p, mat x, float cap, const int32_t *ids, int32_t n_ids)
{
    if (p->dry)
        return;
    rows_job j = {.p = p, .y = x, .c = cap, .ids = ids, .n_ids = n_ids, .row = softcap_row};
    /* One row of logits is long enough to split: it is treated as rows of a narrower matrix. */
    if (x.rows == 1 && cap > 0) {
        int32_t n = mat_width(x), piece = 4096;
        mat rest = x;
        rest.at += n / piece * piece;
        rest.heads = 1;
        rest.cols = n % piece;
        j.y = mat_at(x.at, n / piece, 1, piece, piece);
        j.n_ids = 0;
        run_rows(&j, piece * 4);
        j.y = rest;
        run_rows(&j, rest.cols);
        for (int32_t i = 0; i < n_ids; i++)
            x.at[ids[i]] = -INFINITY;
        return;
    }
    run_rows(&j, mat_width(x));
}

void cpu_rope(pass *p, mat x, const rope *f)
{
    cpu_device *c = cpu_of(p);
    size_t mark = pass_mark(p);
    float *temp = pass_temp(p, (size_t)c->n_threads * 4 * (size_t)f->n_pairs * sizeof(float));
    if (!p->dry && !pass_failed(p)) {
        rows_job j = {.p = p, .y = x, .rope = f, .temp = temp, .row = rope_row};
        run_rows(&j, mat_width(x));
    }
    pass_release(p, mark);
}

void cpu_kv_store(pass *p, const kv_view *kv, mat k, mat v)
{
    size_t mark = pass_mark(p);
    float *temp = pass_temp(p, (size_t)cpu_of(p)->n_threads * (size_t)kv->head_dim * sizeof(float));
    pass_release(p, mark);
    if (p->dry || pass_failed(p))
        return;
    rows_job j = {.p = p, .y = k, .a = k, .b = v, .kv = kv, .temp = temp, .row = store_row};
    run_rows(&j, mat_width(k) * 4);
}

void cpu_gather(pass *p, mat y, mat x, const int32_t *row)
{
    if (p->dry)
        return;
    rows_job j = {.p = p, .y = y, .a = x, .ids = row, .row = copy_row};
    run_rows(&j, mat_width(y));
}

void cpu_copy(pass *p, mat y, mat x)
{
    if (p->dry)
        return;
    rows_job j = {.p = p, .y = y, .a = x, .row = copy_row};
    run_rows(&j, mat_width(y));
}

/* ---- Routing ----------------------------------------------------------------------------- */

typedef struct route_job {
    pass *p;
    routing r;
    mat logits;
    const route_rule *rule;
    float *temp; /* [n_threads, n] */
} route_job;

static float sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

/* Soft max of a copy, or sigmoids and bias, then k times the largest that is left; ties go to the
 * lower index. NaN never compares larger, so the first free expert is taken where all are NaN. */
static void route_row(void *arg, int32_t row, int32_t thread)
{
    const route_job *j = arg;
    int32_t n = mat_width(j->logits), k = j->r.k;
    float *pr = j->temp + (size_t)thread * (size_t)n, top, picked = 0;
    const float *z = mat_row(j->logits, row);
    const weight *bias = j->rule->bias, *scale = j->rule->scale;
    int32_t *id = j->r.id + (size_t)row * (size_t)k;
    float *share = j->r.weight + (size_t)row * (size_t)k;
    memcpy(pr, z, (size_t)n * sizeof(float));
    if (!j->rule->sigmoid)
        cpu_of(j->p)->k->softmax(pr, n, &top);
    else
        for (int32_t e = 0; e < n; e++) /* -inf marks a taken expert; fmaxf drops NaN */
            pr[e] = fmaxf(sigmoid(z[e]) + (bias ? ((const float *)bias->data)[e] : 0), -FLT_MAX);
    for (int32_t i = 0; i < k; i++) {
        int32_t best = -1;
        for (int32_t e = 0; e < n; e++)
            if (pr[e] != -INFINITY && (best < 0 || pr[e] > pr[best]))
                best = e;
        id[i] = best;
        share[i] = j->rule->sigmoid ? sigmoid(z[best]) : pr[best];
        picked += share[i];
        pr[best] = -INFINITY; /* taken */
    }
    for (int32_t i = 0; i < k; i++)
        share[i] = share[i] / picked * route_factor(j->rule) *
                   (scale ? ((const float *)scale->data)[id[i]] : 1.0f);
}

void cpu_route(pass *p, routing r, mat logits, const route_rule *rule)
{
    cpu_device *c = cpu_of(p);
    size_t mark = pass_mark(p);
    float *pr = pass_temp(p, (size_t)c->n_threads * (size_t)mat_width(logits) * sizeof(float));
    if (!p->dry && !pass_failed(p)) {
        route_job j = {p, r, logits, rule, pr};
        if (r.rows < 16)
            for (int32_t i = 0; i < r.rows; i++)
                route_row(&j, i, 0);
        else
            pool_run(c->pool, r.rows, route_row, &j);
    }
    pass_release(p, mark);
}
