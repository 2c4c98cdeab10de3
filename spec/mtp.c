/* mtp.c - drafts by an MTP assistant of Gemma 4 (model/gemma4_mtp.c), which has no keys of its own.
 *
 *     target's pass  ->  tap: inputs of its head, [outs_max, n_embd]
 *     absorb             the kept row of each timeline  ->  hidden[seat]
 *     propose            hidden[seat], last token       ->  n tokens, in one pass
 *
 * A timeline's state is a seat: one hidden row, and the number of tokens that it came from. If the
 * target has gone on without absorb, the row is stale, and the timeline gets no draft until the
 * next pass. Every prompt computes its last row, so snapshots need no hidden rows.
 *
 * A draft pass has one row per timeline. Its numbers of keys say that every key is committed: the
 * newest is that of the token before the last one. So attention, which knows rings, formats and
 * single streams, needs no special case. Where pages of the target are on the host (kv/pager.h),
 * its linear stores have fewer keys than tokens, and the draft sees those that the next row will.
 *
 *     keys   0 ........ k-1           committed; index = last = k - 1, first = k
 *     row                    c        position c, at all steps; k = c, or fewer with pages away
 */
#include "backend/plan.h"
#include "base/mem.h"
#include "model/gemma4_mtp.h"
#include "spec/work.h"

#include <string.h>

enum { MTP_SLOTS_MAX = 16, MTP_SLOTS_DEFAULT = 8 };

typedef struct mtp_drafter {
    drafter base;
    pass_taps taps;
    int32_t width;
    draft_work work;
    float *hidden;    /* device memory: [n_seqs + outs_max, width], seats first, then the tap */
    bool *seat_taken; /* [n_seqs] */
    int32_t *i32;     /* backing of the step's arrays */
    kv_base *bases;   /* [n_seqs, target_kv->n] */
    float *best;      /* [n_seqs, n_slots, 2 * ranks] */
    step st;
    char graph[MTP_SLOTS_MAX * BEST_MAX]; /* one address for each count of steps and ranks */
} mtp_drafter;

struct draft_state {
    int32_t seat;
    int64_t n; /* hidden row: of token n - 1; 0: there is none */
};

static mtp_drafter *self_of(drafter *d)
{
    return (mtp_drafter *)d;
}
static const gemma4_mtp *mtp_of(const draft_model *m)
{
    return m->core.impl;
}

/* ---- The model ----------------------------------------------------------------------------- */

static status mtp_bind_model(draft_model *m, gguf *file, err *e)
{
    status st = model_bind(&m->core, file, e);
    m->n_slots = MTP_SLOTS_DEFAULT;
    if (!st && !is_gemma4_mtp(&m->core))
        st = err_set(e, E_ARG, "%s: architecture %s is not an MTP assistant", m->core.file.path,
                     m->core.arch->name);
    return st ? st : gemma4_mtp_attach(&m->core, m->target, e);
}

/* ---- Passes -------------------------------------------------------------------------------- */

static int32_t slots_of(const draft_sizes *z)
{
    return z->n_slots < MTP_SLOTS_MAX ? z->n_slots : MTP_SLOTS_MAX;
}

/* One row of each list belongs to a timeline; `tap` is where a target's pass leaves hidden rows. */
static mat hidden_rows(const mtp_drafter *d)
{
    int32_t n = d->base.sizes.n_seqs + d->base.sizes.outs_max;
    return mat_at(d->hidden, n, 1, d->width, d->width);
}

/* The kept rows of the last pass, and the seats' own where they keep what they have. */
static void absorb_pass(pass *p, mat hidden, int32_t n_seqs)
{
    mat seats = hidden, next = op_wanted_rows(p, hidden);
    seats.rows = n_seqs;
    op_copy(p, seats, next);
}

static mat draft_pass(pass *p, const mtp_drafter *d, int32_t n_steps, int32_t n_ranks)
{
    mat h = op_wanted_rows(p, hidden_rows(d));
    return gemma4_mtp_draft(p, &d->base.m->core, d->base.sizes.target_kv, h, n_steps, n_ranks);
}

/* The most scratch of any pass. */
static status plan_passes(mtp_drafter *d, work_sizes *w, err *e)
{
    const draft_sizes *z = &d->base.sizes;
    const model *target = d->base.m->target;
    int32_t n_ranks = gemma4_mtp_ranks(mtp_of(d->base.m));
    *w = (work_sizes){{0}};
    for (int32_t rows = 1; rows <= z->n_seqs; rows++)
        for (int kind = 0; kind < 2; kind++) {
            step st = plan_step(rows, rows, false);
            pass p;
            st.n_seqs = rows;
            st.n_kv = z->target_kv->n;
            work_plan_begin(&p, target, z, &st);
            if (kind)
                draft_pass(&p, d, slots_of(z), n_ranks);
            else if (rows == z->n_seqs)
                absorb_pass(&p, hidden_rows(d), rows);
            status failed = work_plan_end(&p, w, e);
            if (failed)
                return failed;
        }
    return OK;
}

/* ---- The work space ------------------------------------------------------------------------ */

static size_t hidden_bytes(const draft_sizes *z, int32_t width)
{
    return ((size_t)z->n_seqs + (size_t)z->outs_max) * (size_t)width * sizeof(float);
}

/* Lists of a step: token, pos, seq, wanted rows, and for each kind of store two of keys: `last` is
 * `index`. */
enum { STEP_LISTS = 4 + 2 * STORE_KINDS };

static size_t host_bytes(const mtp_drafter *d)
{
    const draft_sizes *z = &d->base.sizes;
    const gemma4_mtp *g = mtp_of(d->base.m);
    size_t n = (size_t)z->n_seqs, ranks = (size_t)gemma4_mtp_ranks(g);
    size_t sorted = g->n_clusters ? g->head.n_bytes : 0; /* beside the file's rows */
    return sizeof *d + sorted +
           n * (sizeof *d->seat_taken + STEP_LISTS * sizeof *d->i32 +
                (size_t)z->target_kv->n * sizeof *d->bases +
                (size_t)slots_of(z) * 2 * ranks * sizeof *d->best + sizeof(draft_state));
}

/* The tap without an address; and what every function below needs. */
static void set_sizes(mtp_drafter *d, const draft_model *m, const draft_sizes *z)
{
    int32_t width = mtp_of(m)->n_target_embd;
    *d = (mtp_drafter){.base = {.class = &draft_mtp, .m = m, .sizes = *z}, .width = width};
    d->taps.n = 1;
    d->taps.at[0] = (pass_tap_point){
        .il = PASS_TAP_NORM,
        .side = PASS_MAIN,
        .to = {.rows = z->outs_max, .heads = 1, .cols = width, .stride = width},
    };
}

static status mtp_plan(const draft_model *m, const draft_sizes *z, draft_costs *c, err *e)
{
    work_sizes w;
    mtp_drafter *d = mem_alloc(sizeof *d);
    status st;
    if (!d)
        return err_memory(e, "a drafter", sizeof *d);
    set_sizes(d, m, z);
    if (!(st = plan_passes(d, &w, e))) {
        *c = (draft_costs){0};
        c->taps = d->taps;
        c->host_bytes = host_bytes(d);
        c->device_bytes = hidden_bytes(z, d->width);
        work_add_costs(&w, m->target, z, c);
    }
    mem_free(d);
    return st;
}

static void mtp_close(drafter *base)
{
    mtp_drafter *d = self_of(base);
    if (!d)
        return;
    work_close(&d->work);
    if (d->hidden)
        d->base.sizes.dev->release(d->base.sizes.dev, d->hidden,
                                   hidden_bytes(&d->base.sizes, d->width));
    mem_free(d->best);
    mem_free(d->bases);
    mem_free(d->i32);
    mem_free(d->seat_taken);
    mem_free(d);
}

static void set_lists(mtp_drafter *d)
{
    size_t n = (size_t)d->base.sizes.n_seqs;
    int32_t *at = d->i32;
    rowset *r = &d->st.all;
    r->token = at, r->pos = at + n, r->seq = at + 2 * n;
    d->st.out_row = at + 3 * n;
    for (int k = 0; k < STORE_KINDS; k++)
        r->keys[k] = (row_keys){.index = at + (size_t)(4 + 2 * k) * n,
                                .first = at + (size_t)(5 + 2 * k) * n,
                                .last = at + (size_t)(4 + 2 * k) * n,
                                .newest = at + (size_t)(4 + 2 * k) * n};
    d->st.out = *r;
    d->st.n_kv = d->base.sizes.target_kv->n;
    d->st.kv = d->bases;
}

static status mtp_open(const draft_model *m, const draft_sizes *z, drafter **out, err *e)
{
    work_sizes w;
    size_t n = (size_t)z->n_seqs;
    mtp_drafter *d = mem_calloc(1, sizeof *d);
    status st;
    *out = NULL;
    if (!d)
        return err_memory(e, "a drafter", sizeof *d);
    set_sizes(d, m, z);
    if ((st = plan_passes(d, &w, e)) || (st = work_open(&d->work, m->target, z, &w, e)))
        goto fail;
    d->hidden = z->dev->alloc(z->dev, hidden_bytes(z, d->width));
    d->seat_taken = mem_calloc(n, sizeof *d->seat_taken);
    d->i32 = mem_calloc(n * STEP_LISTS, sizeof *d->i32);
    d->bases = mem_calloc(n * (size_t)z->target_kv->n, sizeof *d->bases);
    d->best = mem_calloc(n * (size_t)slots_of(z) * 2 * (size_t)gemma4_mtp_ranks(mtp_of(m)),
                         sizeof(float));
    if (!d->hidden || !d->seat_taken || !d->i32 || !d->bases || !d->best) {
        st = err_memory(e, "a drafter", host_bytes(d) + hidden_bytes(z, d->width));
        goto fail;
    }
    set_lists(d);
    d->taps.at[0].to.at = d->hidden + n * (size_t)d->width;
    d->base.taps = &d->taps;
    *out = &d->base;
    return OK;
fail:
    mtp_close(&d->base);
    return st;
}

static status mtp_state_open(drafter *base, draft_state **out, err *e)
{
    mtp_drafter *d = self_of(base);
    draft_state *s = mem_calloc(1, sizeof *s);
    *out = NULL;
    if (!s)
        return err_memory(e, "a drafter's timeline", sizeof *s);
    while (s->seat < base->sizes.n_seqs && d->seat_taken[s->seat])
        s->seat++;
    if (s->seat == base->sizes.n_seqs) {
        mem_free(s);
        return err_set(e, E_LIMIT, "a drafter for %d timelines", base->sizes.n_seqs);
    }
    d->seat_taken[s->seat] = true;
    *out = s;
    return OK;
}

static void mtp_state_close(drafter *base, draft_state *s)
{
    if (s)
        self_of(base)->seat_taken[s->seat] = false;
    mem_free(s);
}

/* ---- Rounds -------------------------------------------------------------------------------- */

/* The step's arrays are const for kernels; the drafter owns them. */
static int32_t *list_of(const int32_t *list)
{
    return (int32_t *)list;
}

static status mtp_absorb(drafter *base, const draft_kept *kept, int32_t n, err *e)
{
    mtp_drafter *d = self_of(base);
    int32_t n_seqs = base->sizes.n_seqs, *row = list_of(d->st.out_row);
    bool any = false;
    pass p;
    for (int32_t i = 0; i < n_seqs; i++)
        row[i] = i;
    for (int32_t i = 0; i < n; i++) {
        draft_state *s = kept[i].s;
        if (kept[i].n == 0)
            continue;
        s->n = 0;
        if (kept[i].norm_row < 0 || kept[i].norm_row >= base->sizes.outs_max)
            continue;
        s->n = kept[i].n_past + kept[i].n;
        row[s->seat] = n_seqs + kept[i].norm_row;
        any = true;
    }
    if (!any)
        return OK;
    d->st.all.n = d->st.out.n = n_seqs;
    d->st.n_seqs = 0; /* no row looks at keys */
    for (int k = 0; k < STORE_KINDS; k++) {
        memset(list_of(d->st.all.keys[k].index), 0, (size_t)n_seqs * sizeof(int32_t));
        memset(list_of(d->st.all.keys[k].first), 0, (size_t)n_seqs * sizeof(int32_t));
    }
    work_begin(&d->work, &p, &d->st);
    absorb_pass(&p, hidden_rows(d), n_seqs);
    pass_end(&p);
    return pass_failed(&p) ? err_set(e, p.e.status, "%s", p.e.text) : OK;
}

/* Fills the step with a row for each ask that has a hidden row. Returns their number; the number of
 * steps that the longest wants, and whether one of them wants a tree. */
static int32_t fill_step(mtp_drafter *d, const draft_ask *ask, int32_t n, int32_t *n_steps,
                         int32_t *n_ranks)
{
    rowset *all = &d->st.all;
    int32_t rows = 0, most = gemma4_mtp_ranks(mtp_of(d->base.m));
    *n_steps = *n_ranks = 0;
    for (int32_t i = 0; i < n; i++) {
        const draft_ask *a = &ask[i];
        *a->out = (proposal){0};
        if (a->n < 2 || a->s->n != a->n - 1 || rows == d->base.sizes.n_seqs)
            continue;
        int32_t c = (int32_t)(a->n - 1);
        list_of(all->token)[rows] = a->id[c];
        list_of(all->pos)[rows] = c;
        list_of(all->seq)[rows] = rows;
        for (int k = 0; k < STORE_KINDS; k++) {
            int32_t n_keys = (int32_t)kv_n_keys(a->target, (store_kind)k);
            list_of(all->keys[k].index)[rows] = n_keys - 1;
            list_of(all->keys[k].first)[rows] = n_keys;
        }
        list_of(d->st.out_row)[rows] = a->s->seat;
        memcpy(d->bases + (size_t)rows * (size_t)d->st.n_kv, a->target->base,
               (size_t)d->st.n_kv * sizeof *d->bases);
        *n_steps = a->n_slots > *n_steps ? a->n_slots : *n_steps;
        *n_ranks = a->n_ranks > *n_ranks ? a->n_ranks : *n_ranks;
        rows++;
    }
    *n_steps = *n_steps < slots_of(&d->base.sizes) ? *n_steps : slots_of(&d->base.sizes);
    *n_ranks = *n_ranks < most ? *n_ranks : most;
    d->st.all.n = d->st.out.n = d->st.n_seqs = rows;
    return rows;
}

/* One row's tokens. A row of NaN ends the draft: op_best gave no token. */
static void take(const draft_ask *a, const float *best, int32_t n_steps, int32_t n_ranks)
{
    proposal *o = a->out;
    int32_t k = a->n_ranks < n_ranks ? a->n_ranks : n_ranks;
    o->n_ranks = k;
    for (int32_t i = 0; i < n_steps && i < a->n_slots; i++, best += 2 * n_ranks) {
        if (best[0] < 0)
            break;
        for (int32_t r = 0; r < k; r++) {
            o->id[i][r] = (int32_t)best[r];
            o->logp[i][r] = best[n_ranks + r];
        }
        o->n_slots = i + 1;
    }
}

/* The pass as the device recorded it, or run plainly. */
static mat run(mtp_drafter *d, pass *p, int32_t n_steps, int32_t n_ranks)
{
    const void *key = &d->graph[(n_steps - 1) * BEST_MAX + n_ranks - 1];
    mat y = {0};
    if (work_records(&d->work, &d->st) && pass_first_ranks(p, key, d->base.sizes.target_kv, &y))
        return y;
    return pass_last_ranks(p, draft_pass(p, d, n_steps, n_ranks));
}

static status mtp_propose(drafter *base, const draft_ask *ask, int32_t n, err *e)
{
    mtp_drafter *d = self_of(base);
    int32_t n_steps, n_ranks, rows = fill_step(d, ask, n, &n_steps, &n_ranks), r = 0;
    device *dev = d->work.side[PASS_MAIN].dev;
    pass p;
    if (!rows || n_steps < 1 || n_ranks < 1)
        return OK;
    work_begin(&d->work, &p, &d->st);
    mat y = run(d, &p, n_steps, n_ranks);
    if (pass_failed(&p))
        return err_set(e, p.e.status, "%s", p.e.text);
    size_t row = (size_t)n_steps * 2 * (size_t)n_ranks;
    dev->download(dev, d->best, y.at, (size_t)rows * row * sizeof *d->best);
    if (dev->failed && dev->failed(dev, e))
        return e->status;
    for (int32_t i = 0; i < n && r < rows; i++)
        if (ask[i].n >= 2 && ask[i].s->n == ask[i].n - 1)
            take(&ask[i], d->best + (size_t)r++ * row, n_steps, n_ranks);
    return OK;
}

static void mtp_forget(drafter *base, draft_state *s, int64_t n)
{
    (void)base;
    if (s->n > n)
        s->n = 0;
}

const draft_class draft_mtp = {.name = "mtp",
                               .bind = mtp_bind_model,
                               .plan = mtp_plan,
                               .open = mtp_open,
                               .close = mtp_close,
                               .state_open = mtp_state_open,
                               .state_close = mtp_state_close,
                               .propose = mtp_propose,
                               .absorb = mtp_absorb,
                               .forget = mtp_forget};
