/* recur.c - the ops of recurrent layers, in tasks.
 *
 * The convolution is cut by channels and the state by value rows, and neither part sees the others:
 * a task takes one part of one sequence through all rows of the pass, so a part of the state stays
 * in a core's cache for as long as it is needed. A row's numbers do not depend on the cut.
 *
 *     task (sequence, value head, block of value rows):
 *         state   pending rows applied in place; written once
 *         copy    this pass's rows, unless they are final: those pass through the state itself
 */
#include "backend/cpu/cpu_int.h"
#include "backend/cpu/table_ops_int.h"
#include "backend/recur_walk.h"

#include <math.h>
#include <string.h>

/* Channels of a task: with the taps and a few rows of inputs, a small part of the first cache. */
enum { CONV_CHANNELS = 256 };
/* Value rows of a task: with keys of 128, state and copy fill the first cache. */
enum { STATE_ROWS = 32 };
/* Below this many rows the calling thread prepares them alone. */
enum { PREPARE_ALONE = 4 };

static const float L2_EPS = 1e-6f;

static int32_t smaller(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

/* ---- Convolution --------------------------------------------------------------------------- */

typedef struct conv_job {
    const step *st;
    const recur_view *v;
    const cpu_kernels *k;
    mat y, x;
    const weight *w;
    float *taps;      /* [n_threads][n_taps][CONV_CHANNELS] */
    int32_t n_blocks; /* of a sequence */
} conv_job;

/* Channels c0 .. c0 + n - 1 of conv become those of the pending rows' end. */
static void apply_inputs(const recur_view *v, const recur_base *b, const recur_seq *s, int32_t c0,
                         int32_t n)
{
    int32_t old = v->n_taps - 1;
    size_t width = (size_t)recur_channels(v);
    for (int32_t t = 0; s->n_pending && t < old; t++) {
        int32_t from = t + s->n_pending;
        const float *x =
            from < old ? b->conv + (size_t)from * width : recur_pending(v, b, s, from - old).inputs;
        memcpy(b->conv + (size_t)t * width + c0, x + c0, (size_t)n * sizeof *x);
    }
}

/* The inputs of row r, channels c0 and on, by tap. */
static void find_inputs(const conv_job *j, const recur_base *b, int32_t r, int32_t c0,
                        const float *in[RECUR_TAPS_MAX])
{
    size_t width = (size_t)recur_channels(j->v);
    int32_t at = r, context = j->v->n_taps - 2;
    for (int32_t t = j->v->n_taps - 1; t >= 0; t--) {
        in[t] = (at >= 0 ? mat_row(j->x, at) : b->conv + (size_t)context-- * width) + c0;
        at = at >= 0 ? j->st->parent[at] : at;
    }
}

/* What the pass leaves of its inputs. */
static void keep_inputs(const conv_job *j, const recur_base *b, const recur_seq *s, int32_t c0,
                        int32_t n)
{
    int32_t old = j->v->n_taps - 1;
    size_t width = (size_t)recur_channels(j->v), n_bytes = (size_t)n * sizeof(float);
    for (int32_t i = 0; i < s->n && !s->final; i++)
        memcpy(recur_row_at(j->v, b, !s->bank, i).inputs + c0, mat_row(j->x, s->row0 + i) + c0,
               n_bytes);
    for (int32_t t = 0; s->n && s->final && t < old; t++) {
        int32_t from = t + s->n;
        const float *x =
            from < old ? b->conv + (size_t)from * width : mat_row(j->x, s->row0 + from - old);
        memcpy(b->conv + (size_t)t * width + c0, x + c0, n_bytes);
    }
}

static void conv_block(void *arg, int32_t chunk, int32_t thread)
{
    const conv_job *j = arg;
    const recur_view *v = j->v;
    int32_t seq = chunk / j->n_blocks, c0 = chunk % j->n_blocks * CONV_CHANNELS;
    int32_t n = smaller(recur_channels(v) - c0, CONV_CHANNELS);
    const recur_seq *s = &j->st->recur_seq[seq];
    const recur_base *b = step_recur(j->st, seq, v);
    float *taps = j->taps + (size_t)thread * (size_t)v->n_taps * CONV_CHANNELS;
    for (int32_t c = 0; c < n; c++) {
        const float *of_channel = weight_row(j->w, 0, c0 + c);
        for (int32_t t = 0; t < v->n_taps; t++)
            taps[t * CONV_CHANNELS + c] = of_channel[t];
    }
    apply_inputs(v, b, s, c0, n);
    for (int32_t r = s->row0; r < s->row0 + s->n; r++) {
        const float *in[RECUR_TAPS_MAX];
        find_inputs(j, b, r, c0, in);
        j->k->conv_row(mat_row(j->y, r) + c0, in, taps, CONV_CHANNELS, v->n_taps, n);
    }
    keep_inputs(j, b, s, c0, n);
}

void cpu_conv(pass *p, mat y, mat x, const weight *w, const recur_view *rv)
{
    cpu_device *c = cpu_of(p);
    conv_job j = {.st = p->st, .v = rv, .k = c->k, .y = y, .x = x, .w = w};
    size_t mark = pass_mark(p);
    j.taps =
        pass_temp(p, (size_t)c->n_threads * (size_t)rv->n_taps * CONV_CHANNELS * sizeof *j.taps);
    j.n_blocks = (recur_channels(rv) + CONV_CHANNELS - 1) / CONV_CHANNELS;
    pass_release(p, mark);
    if (!p->dry && !pass_failed(p))
        pool_run(c->pool, p->st->n_seqs * j.n_blocks, conv_block, &j);
}

/* ---- The gated delta rule ------------------------------------------------------------------ */

typedef struct delta_job {
    const step *st;
    const recur_view *v;
    const cpu_kernels *kernels;
    mat o, c, a, b;
    const float *ga, *gdt;
    float *q, *k;         /* [rows, n_k, dk], divided by their lengths */
    float *decay, *write; /* [rows, n_v] */
    float *copy;          /* [n_threads][STATE_ROWS][dk + 1]: a block of the state, and errors */
    int32_t n_blocks;     /* of a head */
} delta_job;

/* A block of value rows of one value head. */
typedef struct state_block {
    const recur_view *v;
    const cpu_kernels *kernels;
    int32_t head, first, n; /* value rows first .. first + n - 1 */
} state_block;

static void apply_to_block(const state_block *w, float *s, recur_row row)
{
    const recur_view *v = w->v;
    w->kernels->delta_apply(s, w->n, v->dk, row.decays[w->head],
                            row.keys + (size_t)(w->head % v->n_k) * (size_t)v->dk,
                            row.errors + (size_t)w->head * (size_t)v->dv + w->first);
}

/* The block of the state in the store, with the pending rows applied. */
static float *settled_block(const state_block *w, const recur_base *b, const recur_seq *s)
{
    const recur_view *v = w->v;
    size_t row = (size_t)w->head * (size_t)v->dv + (size_t)w->first;
    float *state = b->state + row * (size_t)v->dk;
    for (int32_t i = 0; i < s->n_pending; i++)
        apply_to_block(w, state, recur_pending(v, b, s, i));
    return state;
}

static void normalise(float *to, const float *x, int32_t n, float factor)
{
    float sum[4] = {0};
    for (int32_t i = 0; i < n; i++)
        sum[i & 3] += x[i] * x[i];
    float c = factor / sqrtf((sum[0] + sum[1]) + (sum[2] + sum[3]) + L2_EPS);
    for (int32_t i = 0; i < n; i++)
        to[i] = x[i] * c;
}

/* What all value rows read of a row: keys and queries divided by their lengths, decays, shares. */
static void prepare_row(void *arg, int32_t r, int32_t thread)
{
    const delta_job *d = arg;
    const recur_view *v = d->v;
    size_t width = (size_t)v->n_k * (size_t)v->dk;
    (void)thread;
    for (int32_t h = 0; h < v->n_k; h++) {
        size_t at = (size_t)h * (size_t)v->dk;
        const float *q = mat_row(d->c, r) + at;
        normalise(d->q + (size_t)r * width + at, q, v->dk, 1 / sqrtf((float)v->dk));
        normalise(d->k + (size_t)r * width + at, q + width, v->dk, 1);
    }
    for (int32_t j = 0; j < v->n_v; j++) {
        float x = mat_row(d->a, r)[j] + d->gdt[j];
        float g = d->ga[j] * (fmaxf(x, 0) + log1pf(expf(-fabsf(x))));
        size_t at = (size_t)r * (size_t)v->n_v + (size_t)j;
        d->decay[at] = expf(g);
        d->write[at] = 1 / (1 + expf(-mat_row(d->b, r)[j]));
    }
    int32_t seq = d->st->all.seq[r];
    const recur_seq *s = &d->st->recur_seq[seq];
    if (s->final)
        return;
    recur_row to = recur_row_at(v, step_recur(d->st, seq, v), !s->bank, r - s->row0);
    memcpy(to.keys, d->k + (size_t)r * width, width * sizeof *d->k);
    memcpy(to.decays, d->decay + (size_t)r * (size_t)v->n_v, (size_t)v->n_v * sizeof *d->decay);
}

static void compute_row(const delta_job *d, const state_block *w, float *s, int32_t r, float *error)
{
    const recur_view *v = d->v;
    size_t at = (size_t)r * (size_t)v->n_v + (size_t)w->head;
    size_t key = ((size_t)r * (size_t)v->n_k + (size_t)(w->head % v->n_k)) * (size_t)v->dk;
    size_t value = (size_t)w->head * (size_t)v->dv + (size_t)w->first;
    d->kernels->delta_row(&(delta_row){.s = s,
                                       .n = w->n,
                                       .dk = v->dk,
                                       .decay = d->decay[at],
                                       .write = d->write[at],
                                       .k = d->k + key,
                                       .q = d->q + key,
                                       .v = mat_row(d->c, r) + 2 * v->n_k * v->dk + value,
                                       .e = error,
                                       .o = mat_row(d->o, r) + value});
}

static void delta_block(void *arg, int32_t chunk, int32_t thread)
{
    const delta_job *d = arg;
    const recur_view *v = d->v;
    int32_t at = chunk % (v->n_v * d->n_blocks), seq = chunk / (v->n_v * d->n_blocks);
    state_block w = {v, d->kernels, at / d->n_blocks, at % d->n_blocks * STATE_ROWS, 0};
    w.n = smaller(v->dv - w.first, STATE_ROWS);
    const recur_seq *s = &d->st->recur_seq[seq];
    const recur_base *b = step_recur(d->st, seq, v);
    float *state = settled_block(&w, b, s);
    size_t n = (size_t)w.n * (size_t)v->dk;
    float *copy = d->copy + (size_t)thread * STATE_ROWS * (size_t)(v->dk + 1);
    if (s->final) {
        for (int32_t r = s->row0; r < s->row0 + s->n; r++)
            compute_row(d, &w, state, r, copy);
        return;
    }
    memcpy(copy, state, n * sizeof *copy);
    for (int32_t r = s->row0, last = -1; r < s->row0 + s->n; last = r++) {
        if (d->st->parent[r] != last) { /* another branch of a tree */
            int32_t path[STEP_TREE_ROWS_MAX], n_path = recur_ancestors(d->st, r, path);
            memcpy(copy, state, n * sizeof *copy);
            for (int32_t i = 0; i < n_path; i++)
                apply_to_block(&w, copy, recur_row_at(v, b, !s->bank, path[i] - s->row0));
        }
        float *errors = recur_row_at(v, b, !s->bank, r - s->row0).errors;
        compute_row(d, &w, copy, r, errors + (size_t)w.head * (size_t)v->dv + w.first);
    }
}

static int32_t blocks_of(const recur_view *v)
{
    return (v->dv + STATE_ROWS - 1) / STATE_ROWS;
}

void cpu_delta(pass *p, mat o, mat c, mat a, mat b, const delta_gate *g, const recur_view *rv)
{
    cpu_device *cpu = cpu_of(p);
    size_t rows = (size_t)c.rows, mark = pass_mark(p);
    size_t keys = (size_t)rv->n_k * (size_t)rv->dk;
    delta_job d = {.st = p->st, .v = rv, .kernels = cpu->k, .o = o, .c = c, .a = a, .b = b};
    d.ga = g->a->data;
    d.gdt = g->dt->data;
    d.n_blocks = blocks_of(rv);
    d.q = pass_temp(p, rows * keys * sizeof *d.q);
    d.k = pass_temp(p, rows * keys * sizeof *d.k);
    d.decay = pass_temp(p, rows * (size_t)rv->n_v * sizeof *d.decay);
    d.write = pass_temp(p, rows * (size_t)rv->n_v * sizeof *d.write);
    d.copy =
        pass_temp(p, (size_t)cpu->n_threads * STATE_ROWS * (size_t)(rv->dk + 1) * sizeof *d.copy);
    pass_release(p, mark);
    if (p->dry || pass_failed(p))
        return;
    if (c.rows < PREPARE_ALONE)
        for (int32_t r = 0; r < c.rows; r++)
            prepare_row(&d, r, 0);
    else
        pool_run(cpu->pool, c.rows, prepare_row, &d);
    pool_run(cpu->pool, p->st->n_seqs * rv->n_v * d.n_blocks, delta_block, &d);
}

/* ---- Between passes ------------------------------------------------------------------------ */

typedef struct settle_job {
    const cpu_kernels *kernels;
    const recur_view *v;
    const recur_base *b;
    const recur_seq *s;
} settle_job;

static void settle_block(void *arg, int32_t chunk, int32_t thread)
{
    const settle_job *j = arg;
    int32_t n_blocks = blocks_of(j->v);
    state_block w = {j->v, j->kernels, chunk / n_blocks, chunk % n_blocks * STATE_ROWS, 0};
    w.n = smaller(j->v->dv - w.first, STATE_ROWS);
    (void)thread;
    settled_block(&w, j->b, j->s);
}

void cpu_settle(device *dev, const recur_view *v, const recur_base *base, int32_t n,
                const recur_seq *s)
{
    cpu_device *c = dev->self;
    for (int32_t i = 0; i < n && s->n_pending; i++) {
        settle_job j = {c->k, &v[i], &base[i], s};
        apply_inputs(&v[i], &base[i], s, 0, recur_channels(&v[i]));
        pool_run(c->pool, v[i].n_v * blocks_of(&v[i]), settle_block, &j);
    }
}
