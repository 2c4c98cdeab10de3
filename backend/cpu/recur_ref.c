/* recur_ref.c - the plain definition of the ops of recurrent layers.
 *
 * Sums are in double; whatever a store or a journal keeps is rounded to f32 at once, so that a row
 * that is applied later changes the state by the same bits. backend/step.h says what a pass applies
 * and what it leaves in the journal.
 */
#include "backend/cpu/cpu_int.h"
#include "backend/cpu/table_ops_int.h"
#include "backend/recur_walk.h"

#include <math.h>
#include <string.h>

static const double L2_EPS = 1e-6;

/* ---- Convolution --------------------------------------------------------------------------- */

/* conv becomes the last n_taps - 1 of conv and n further inputs, next(arg, i) for i < n. In place:
 * whatever is read lies at or behind the place that is written. */
typedef const float *(*next_inputs_fn)(const void *arg, int32_t i);

static void shift_inputs(const recur_view *v, float *conv, int32_t n, next_inputs_fn next,
                         const void *arg)
{
    int32_t old = v->n_taps - 1;
    size_t width = (size_t)recur_channels(v);
    for (int32_t t = 0; n > 0 && t < old; t++)
        memmove(conv + (size_t)t * width,
                t + n < old ? conv + (size_t)(t + n) * width : next(arg, t + n - old),
                width * sizeof *conv);
}

typedef struct pending_inputs {
    const recur_view *v;
    const recur_base *b;
    const recur_seq *s;
} pending_inputs;

static const float *pending_at(const void *arg, int32_t i)
{
    const pending_inputs *f = arg;
    return recur_pending(f->v, f->b, f->s, i).inputs;
}

static void apply_inputs(const recur_view *v, const recur_base *b, const recur_seq *s)
{
    shift_inputs(v, b->conv, s->n_pending, pending_at, &(pending_inputs){v, b, s});
}

typedef struct row_inputs {
    mat x;
    int32_t row0;
} row_inputs;

static const float *row_at(const void *arg, int32_t i)
{
    const row_inputs *f = arg;
    return mat_row(f->x, f->row0 + i);
}

void cpu_ref_conv(pass *p, mat y, mat x, const weight *w, const recur_view *rv)
{
    if (p->dry)
        return;
    const step *st = p->st;
    int32_t n = recur_channels(rv), n_taps = rv->n_taps;
    for (int32_t i = 0; i < st->n_seqs; i++) {
        const recur_seq *s = &st->recur_seq[i];
        const recur_base *b = step_recur(st, i, rv);
        apply_inputs(rv, b, s);
        for (int32_t r = s->row0; r < s->row0 + s->n; r++) {
            const float *in[RECUR_TAPS_MAX];
            for (int32_t j = n_taps - 1, at = r, c = n_taps - 2; j >= 0; j--) {
                in[j] = at >= 0 ? mat_row(x, at) : b->conv + (size_t)c-- * (size_t)n;
                at = at >= 0 ? st->parent[at] : at;
            }
            for (int32_t c = 0; c < n; c++) {
                const float *taps = weight_row(w, 0, c);
                double sum = 0;
                for (int32_t j = 0; j < n_taps; j++)
                    sum += (double)taps[j] * in[j][c];
                mat_row(y, r)[c] = (float)(sum / (1 + exp(-sum)));
            }
        }
        if (s->final)
            shift_inputs(rv, b->conv, s->n, row_at, &(row_inputs){x, s->row0});
        for (int32_t j = 0; j < s->n && !s->final; j++)
            memcpy(recur_row_at(rv, b, !s->bank, j).inputs, mat_row(x, s->row0 + j),
                   (size_t)n * sizeof(float));
    }
}

/* ---- The gated delta rule ------------------------------------------------------------------ */

typedef struct ref_delta_job {
    const step *st;
    const recur_view *v;
    mat o, c, a, b;
    const float *ga, *gdt;
    float *q, *k;         /* [rows, n_k, dk], divided by their lengths */
    float *decay, *write; /* [rows, n_v] */
    float *state, *error; /* [n_threads, dv, dk], [n_threads, dv] */
} ref_delta_job;

static void normalise(float *to, const float *x, int32_t n, double divide)
{
    double sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum += (double)x[i] * x[i];
    for (int32_t i = 0; i < n; i++)
        to[i] = (float)(x[i] / sqrt(sum + L2_EPS) / divide);
}

static void prepare_row(const ref_delta_job *d, int32_t r)
{
    const recur_view *v = d->v;
    size_t width = (size_t)v->n_k * (size_t)v->dk;
    for (int32_t h = 0; h < v->n_k; h++) {
        size_t at = (size_t)h * (size_t)v->dk;
        const float *q = mat_row(d->c, r) + at;
        normalise(d->q + (size_t)r * width + at, q, v->dk, sqrt(v->dk));
        normalise(d->k + (size_t)r * width + at, q + width, v->dk, 1);
    }
    for (int32_t j = 0; j < v->n_v; j++) {
        double x = mat_row(d->a, r)[j] + (double)d->gdt[j];
        double g = d->ga[j] * (fmax(x, 0) + log1p(exp(-fabs(x))));
        size_t at = (size_t)r * (size_t)v->n_v + (size_t)j;
        d->decay[at] = (float)exp(g);
        d->write[at] = (float)(1 / (1 + exp(-(double)mat_row(d->b, r)[j])));
    }
}

/* S = decay S + e k^T of one value head. */
static void apply_row(const recur_view *v, float *state, float decay, const float *k,
                      const float *e)
{
    for (int32_t i = 0; i < v->dv; i++)
        for (int32_t l = 0; l < v->dk; l++) {
            float *s = state + (size_t)i * (size_t)v->dk + l;
            float faded = (float)((double)*s * decay);
            *s = (float)(faded + (double)e[i] * k[l]);
        }
}

static void apply_recur_row(const recur_view *v, float *state, int32_t j, recur_row row)
{
    apply_row(v, state, row.decays[j], row.keys + (size_t)(j % v->n_k) * (size_t)v->dk,
              row.errors + (size_t)j * (size_t)v->dv);
}

static void compute_row(const ref_delta_job *d, float *state, int32_t r, int32_t j, float *error)
{
    const recur_view *v = d->v;
    size_t at = (size_t)r * (size_t)v->n_v + (size_t)j;
    size_t head = ((size_t)r * (size_t)v->n_k + (size_t)(j % v->n_k)) * (size_t)v->dk;
    const float *k = d->k + head, *q = d->q + head;
    const float *value = mat_row(d->c, r) + 2 * v->n_k * v->dk + (size_t)j * (size_t)v->dv;
    float *o = mat_row(d->o, r) + (size_t)j * (size_t)v->dv;
    for (int32_t i = 0; i < v->dv; i++) {
        double known = 0;
        for (int32_t l = 0; l < v->dk; l++) {
            const float *s = state + (size_t)i * (size_t)v->dk + l;
            known += (double)(float)((double)*s * d->decay[at]) * k[l];
        }
        error[i] = (float)(d->write[at] * (value[i] - known));
    }
    apply_row(v, state, d->decay[at], k, error);
    for (int32_t i = 0; i < v->dv; i++) {
        double sum = 0;
        for (int32_t l = 0; l < v->dk; l++)
            sum += (double)state[(size_t)i * (size_t)v->dk + (size_t)l] * q[l];
        o[i] = (float)sum;
    }
}

/* All rows of a sequence through the state of one value head. */
static void delta_head(void *arg, int32_t chunk, int32_t thread)
{
    const ref_delta_job *d = arg;
    const recur_view *v = d->v;
    int32_t seq = chunk / v->n_v, j = chunk % v->n_v, last = -1;
    const recur_seq *s = &d->st->recur_seq[seq];
    const recur_base *b = step_recur(d->st, seq, v);
    size_t n = (size_t)v->dv * (size_t)v->dk;
    float *state = b->state + (size_t)j * n, *now = d->state + (size_t)thread * n;
    for (int32_t i = 0; i < s->n_pending; i++)
        apply_recur_row(v, state, j, recur_pending(v, b, s, i));
    memcpy(now, state, n * sizeof *now);
    for (int32_t r = s->row0; r < s->row0 + s->n; last = r++) {
        float *error = d->error + (size_t)thread * (size_t)v->dv;
        if (!s->final)
            error = recur_row_at(v, b, !s->bank, r - s->row0).errors + (size_t)j * (size_t)v->dv;
        if (d->st->parent[r] != last) { /* another branch of a tree */
            int32_t path[STEP_TREE_ROWS_MAX], n_path = recur_ancestors(d->st, r, path);
            memcpy(now, state, n * sizeof *now);
            for (int32_t i = 0; i < n_path; i++)
                apply_recur_row(v, now, j, recur_row_at(v, b, !s->bank, path[i] - s->row0));
        }
        compute_row(d, now, r, j, error);
    }
    if (s->final)
        memcpy(state, now, n * sizeof *now);
}

void cpu_ref_delta(pass *p, mat o, mat c, mat a, mat b, const delta_gate *g, const recur_view *rv)
{
    cpu_device *cpu = cpu_of(p);
    size_t rows = (size_t)c.rows, mark = pass_mark(p), threads = (size_t)cpu->n_threads;
    size_t keys = (size_t)rv->n_k * (size_t)rv->dk;
    ref_delta_job d = {.st = p->st, .v = rv, .o = o, .c = c, .a = a, .b = b};
    d.ga = g->a->data;
    d.gdt = g->dt->data;
    d.q = pass_temp(p, rows * keys * sizeof *d.q);
    d.k = pass_temp(p, rows * keys * sizeof *d.k);
    d.decay = pass_temp(p, rows * (size_t)rv->n_v * sizeof *d.decay);
    d.write = pass_temp(p, rows * (size_t)rv->n_v * sizeof *d.write);
    d.state = pass_temp(p, threads * (size_t)rv->dv * (size_t)rv->dk * sizeof *d.state);
    d.error = pass_temp(p, threads * (size_t)rv->dv * sizeof *d.error);
    pass_release(p, mark);
    if (p->dry || pass_failed(p))
        return;
    for (int32_t r = 0; r < c.rows; r++)
        prepare_row(&d, r);
    for (int32_t i = 0; i < p->st->n_seqs; i++) {
        const recur_seq *s = &p->st->recur_seq[i];
        for (int32_t r = 0; r < s->n && !s->final; r++) {
            recur_row to = recur_row_at(rv, step_recur(p->st, i, rv), !s->bank, r);
            size_t at = (size_t)(s->row0 + r);
            memcpy(to.keys, d.k + at * keys, keys * sizeof *d.k);
            memcpy(to.decays, d.decay + at * (size_t)rv->n_v, (size_t)rv->n_v * sizeof *d.decay);
        }
    }
    pool_run(cpu->pool, p->st->n_seqs * rv->n_v, delta_head, &d);
}

/* ---- Between passes ------------------------------------------------------------------------ */

void cpu_ref_settle(device *dev, const recur_view *v, const recur_base *base, int32_t n,
                    const recur_seq *s)
{
    (void)dev;
    for (int32_t i = 0; i < n; i++) {
        apply_inputs(&v[i], &base[i], s);
        for (int32_t j = 0; j < v[i].n_v; j++)
            for (int32_t r = 0; r < s->n_pending; r++)
                apply_recur_row(&v[i],
                                base[i].state + (size_t)j * (size_t)v[i].dv * (size_t)v[i].dk, j,
                                recur_pending(&v[i], &base[i], s, r));
    }
}
