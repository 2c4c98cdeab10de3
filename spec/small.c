/* small.c - drafts by a smaller model with the target's vocabulary.
 *
 *     id      [ prompt and answer  |  drafted ]     tokens of a timeline, as the state knows them
 *     kv      [ computed ........... | .... ]       the smaller model's own keys and values
 *
 * A proposal computes the tokens that the smaller model lacks, many to a pass: a prompt at the
 * first proposal, later the last token and a draft's end. Then it goes on token by token, greedily.
 * The keys of drafted tokens stay. The next proposal compares them with what the answer became, and
 * goes back to the first that differs; a ring that cannot go back is computed anew. So nothing is
 * absorbed, and snapshots need no keys of the smaller model.
 */
#include "backend/plan.h"
#include "base/mem.h"
#include "spec/drafter.h"

#include <string.h>

enum {
    SMALL_SLOTS = 16,    /* a draft's length, unless more are asked for */
    CHUNK_MAX = 512,     /* rows of a pass */
    ROWS_SMALL = 32,     /* counts of rows up to here are planned one by one */
    ANSWER_ROWS_MAX = 64 /* passes of more rows take the kernels of prompts */
};

struct draft_state {
    kv_cache kv;
    int32_t *id;       /* [layout.n_ctx] */
    int64_t n_id;      /* tokens known; id[0 .. kv.n_past) are computed */
    int64_t n_checked; /* tokens known to be the timeline's */
};

/* An ask in the making. */
typedef struct small_job {
    const draft_ask *ask;
    int32_t n_slots; /* wanted, within the context */
    int32_t n_rows;  /* of the current pass */
} small_job;

typedef struct small_drafter {
    drafter base;
    kv_layout layout;
    kv_batch batch;
    void *scratch;
    size_t scratch_bytes;
    int32_t chunk;
    small_job *job;           /* [n_seqs] */
    float *best;              /* [n_seqs, 2 * BEST_MAX] */
    char graph[BEST_MAX + 1]; /* addresses that tell recorded passes apart */
} small_drafter;

static small_drafter *self_of(drafter *d)
{
    return (small_drafter *)d;
}

/* ---- The model ----------------------------------------------------------------------------- */

static status small_bind_model(draft_model *m, gguf *file, err *e)
{
    const model *target = m->target;
    status st = model_bind(&m->core, file, e);
    m->n_slots = SMALL_SLOTS;
    if (!st && !m->core.arch->forward)
        st = err_set(e, E_ARG, "%s: architecture %s drafts for other models only as a drafter",
                     m->core.file.path, m->core.arch->name);
    if (!st && m->core.n_recur) /* a rejected draft cannot be taken back from their state */
        st = err_set(e, E_UNSUPPORTED, "%s: models with recurrent layers cannot draft",
                     m->core.file.path);
    if (!st && m->core.n_vocab != target->n_vocab)
        st = err_set(e, E_ARG,
                     "%s has %d tokens and %s has %d: a smaller model drafts only with the same "
                     "vocabulary",
                     m->core.file.path, m->core.n_vocab, target->name, target->n_vocab);
    return st;
}

/* ---- Sizes --------------------------------------------------------------------------------- */

static int32_t least(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

static int32_t ctx_of(const draft_model *m, const draft_sizes *z)
{
    return least(z->n_ctx, m->core.n_ctx_train);
}

static int32_t chunk_of(const draft_model *m, const draft_sizes *z)
{
    int32_t n = least(least(z->dev->chunk_rows, CHUNK_MAX), ctx_of(m, z));
    return n > z->n_seqs ? n : z->n_seqs;
}

/* Rings hold a pass, and so far back a draft may be dropped. */
static status layout_of(const draft_model *m, const draft_sizes *z, kv_layout *l, err *e)
{
    int32_t chunk = chunk_of(m, z);
    const kv_want_layout w = {.spec = m->core.kv,
                              .n = m->core.n_kv,
                              .choice = {.k = {.type = NUM_F16}, .v = {.type = NUM_F16}},
                              .n_ctx = ctx_of(m, z),
                              .rows_max = chunk > z->n_slots + 1 ? chunk : z->n_slots + 1,
                              .dev = {z->dev}};
    return kv_layout_init(l, &w, e);
}

static mat small_forward(pass *p, const model *m, const kv_layout *l, int32_t n_ranks)
{
    mat y = m->arch->forward(p, m, l);
    return y.rows ? op_best(p, y, n_ranks) : y;
}

static int32_t ranks_of(const model *m)
{
    return least(m->n_vocab, BEST_MAX);
}

static status plan_scratch(const draft_model *m, const draft_sizes *z, const kv_layout *l,
                           size_t *bytes, err *e)
{
    int32_t most = chunk_of(m, z);
    size_t peak = 0;
    for (int32_t rows = 1; rows <= most; rows = plan_next_count(rows, ROWS_SMALL, most))
        for (int32_t outs = 0; outs <= least(rows, z->n_seqs);
             outs = plan_next_count(outs, ROWS_SMALL, least(rows, z->n_seqs))) {
            step st = plan_step(rows, outs, rows > ANSWER_ROWS_MAX);
            pass p;
            st.n_kv = l->n;
            pass_begin(&p, z->dev, &st, NULL, 0);
            small_forward(&p, &m->core, l, ranks_of(&m->core));
            if (pass_failed(&p))
                return err_set(e, p.e.status, "%s", p.e.text);
            if (p.side[PASS_MAIN].peak > peak)
                peak = p.side[PASS_MAIN].peak;
        }
    *bytes = peak;
    return OK;
}

static status small_plan(const draft_model *m, const draft_sizes *z, draft_costs *c, err *e)
{
    kv_layout l = {0};
    size_t scratch;
    status st = layout_of(m, z, &l, e);
    if (!st && !(st = plan_scratch(m, z, &l, &scratch, e))) {
        *c = (draft_costs){0};
        uint64_t state = sizeof(draft_state) + (uint64_t)l.n_ctx * sizeof(int32_t) +
                         (uint64_t)l.n * sizeof(kv_base);
        c->device_bytes = scratch;
        c->device_state_bytes = l.all.ring + l.all.linear + l.all.table;
        c->host_bytes =
            sizeof(small_drafter) +
            (uint64_t)z->n_seqs * (state + sizeof(small_job) + 2 * BEST_MAX * sizeof(float));
    }
    kv_layout_free(&l);
    return st;
}

/* ---- The work space ------------------------------------------------------------------------ */

static void small_close(drafter *base)
{
    small_drafter *d = self_of(base);
    if (!d)
        return;
    if (d->scratch)
        base->sizes.dev->release(base->sizes.dev, d->scratch, d->scratch_bytes);
    kv_batch_free(&d->batch);
    kv_layout_free(&d->layout);
    mem_free(d->best);
    mem_free(d->job);
    mem_free(d);
}

static status small_open(const draft_model *m, const draft_sizes *z, drafter **out, err *e)
{
    small_drafter *d = mem_calloc(1, sizeof *d);
    size_t n = (size_t)z->n_seqs;
    status st;
    *out = NULL;
    if (!d)
        return err_memory(e, "a drafter", sizeof *d);
    d->base = (drafter){.class = &draft_small, .m = m, .sizes = *z};
    d->chunk = chunk_of(m, z);
    if ((st = layout_of(m, z, &d->layout, e)) ||
        (st = plan_scratch(m, z, &d->layout, &d->scratch_bytes, e)) ||
        (st = kv_batch_init(&d->batch, d->chunk, z->n_seqs, &d->layout, e)))
        goto fail;
    d->scratch = z->dev->alloc(z->dev, d->scratch_bytes);
    d->job = mem_calloc(n, sizeof *d->job);
    d->best = mem_calloc(n * 2 * BEST_MAX, sizeof *d->best);
    if (!d->scratch || !d->job || !d->best) {
        st = err_memory(e, "a drafter", d->scratch_bytes);
        goto fail;
    }
    *out = &d->base;
    return OK;
fail:
    small_close(&d->base);
    return st;
}

static void small_state_close(drafter *base, draft_state *s)
{
    (void)base;
    if (!s)
        return;
    kv_close(&s->kv);
    mem_free(s->id);
    mem_free(s);
}

static status small_state_open(drafter *base, draft_state **out, err *e)
{
    small_drafter *d = self_of(base);
    draft_state *s = mem_calloc(1, sizeof *s);
    size_t n = (size_t)d->layout.n_ctx;
    *out = NULL;
    if (!s)
        return err_memory(e, "a drafter's timeline", sizeof *s);
    s->id = mem_alloc(n * sizeof *s->id);
    status st = s->id ? kv_open(&s->kv, base->sizes.dev, &d->layout, e)
                      : err_memory(e, "a drafter's timeline", n * sizeof *s->id);
    if (st)
        small_state_close(base, s);
    else
        *out = s;
    return st;
}

/* ---- Rounds -------------------------------------------------------------------------------- */

/* Makes the state's tokens those of the timeline. The last token is always computed anew, because
 * its logits are wanted. */
static void follow(draft_state *s, const draft_ask *a)
{
    int64_t end = s->kv.n_past < a->n - 1 ? s->kv.n_past : a->n - 1;
    int64_t same = s->n_checked < end ? s->n_checked : end;
    while (same < end && s->id[same] == a->id[same])
        same++;
    if (same < s->kv.n_past && !kv_rewind(&s->kv, same))
        kv_reset(&s->kv);
    memcpy(s->id + s->kv.n_past, a->id + s->kv.n_past,
           (size_t)(a->n - s->kv.n_past) * sizeof *s->id);
    s->n_id = s->n_checked = a->n;
}

/* Adds rows of every job to the batch, as many as fit. Returns the number of rows. */
static int32_t fill(small_drafter *d, int32_t n_jobs, err *e)
{
    int32_t n_rows = 0;
    kv_batch_clear(&d->batch);
    for (int32_t i = 0; i < n_jobs; i++) {
        small_job *j = &d->job[i];
        draft_state *s = j->ask->s;
        int64_t left = s->n_id - s->kv.n_past;
        bool done = j->ask->out->n_slots == j->n_slots;
        int32_t n = done ? 0 : d->chunk - n_rows;
        j->n_rows = n < left ? n : (int32_t)left;
        if (done)
            j->n_rows = 0;
        if (!j->n_rows)
            continue;
        kv_want want = j->n_rows == left ? KV_WANT_LAST : KV_WANT_NONE;
        if (kv_reserve(&s->kv, j->n_rows, e) ||
            kv_batch_add(&d->batch, &s->kv, s->id + s->kv.n_past, j->n_rows, NULL, want, e))
            return -1;
        n_rows += j->n_rows;
    }
    d->batch.st.prompt = n_rows > ANSWER_ROWS_MAX;
    return n_rows;
}

/* One pass over the batch; the best tokens of its wanted rows to d->best. */
static status run(small_drafter *d, int32_t n_ranks, err *e)
{
    device *dev = d->base.sizes.dev;
    const model *m = &d->base.m->core;
    mat y = {0};
    pass p;
    pass_begin(&p, dev, &d->batch.st, d->scratch, d->scratch_bytes);
    if (!dev->replay || !dev->replay(dev, &p, &d->graph[n_ranks], &d->layout, &y)) {
        y = small_forward(&p, m, &d->layout, n_ranks);
        pass_end(&p);
        if (dev->recorded)
            dev->recorded(dev, &p, y);
    }
    if (pass_failed(&p))
        return err_set(e, p.e.status, "%s", p.e.text);
    if (y.rows)
        dev->download(dev, d->best, y.at, (size_t)y.rows * 2 * (size_t)n_ranks * sizeof *d->best);
    return dev->failed ? dev->failed(dev, e) : OK;
}

/* The next slot of a job, and its best token as the next one to compute. A row of NaN ends it. */
static void take(small_job *j, const float *best, int32_t n_ranks)
{
    proposal *o = j->ask->out;
    draft_state *s = j->ask->s;
    int32_t i = o->n_slots;
    if (best[0] < 0) {
        j->n_slots = i;
        return;
    }
    for (int32_t r = 0; r < o->n_ranks; r++) {
        o->id[i][r] = (int32_t)best[r];
        o->logp[i][r] = best[n_ranks + r];
    }
    o->n_slots++;
    if (o->n_slots < j->n_slots)
        s->id[s->n_id++] = o->id[i][0];
}

static int32_t begin_jobs(small_drafter *d, const draft_ask *ask, int32_t n, int32_t *n_ranks)
{
    int32_t n_jobs = 0;
    *n_ranks = 1;
    for (int32_t i = 0; i < n; i++) {
        const draft_ask *a = &ask[i];
        int64_t room = d->layout.n_ctx - a->n + 1; /* the last drafted token is not computed */
        *a->out = (proposal){.n_ranks = least(a->n_ranks, ranks_of(&d->base.m->core))};
        if (room < 1 || n_jobs == d->base.sizes.n_seqs)
            continue;
        int32_t n_slots = least(a->n_slots, d->base.sizes.n_slots);
        follow(a->s, a);
        d->job[n_jobs++] = (small_job){a, room < n_slots ? (int32_t)room : n_slots, 0};
        if (a->out->n_ranks > *n_ranks)
            *n_ranks = a->out->n_ranks;
    }
    return n_jobs;
}

static status small_propose(drafter *base, const draft_ask *ask, int32_t n, err *e)
{
    small_drafter *d = self_of(base);
    int32_t n_ranks, n_rows, n_jobs = begin_jobs(d, ask, n, &n_ranks);
    status st;
    while ((n_rows = fill(d, n_jobs, e)) > 0) {
        const float *best = d->best;
        if ((st = run(d, n_ranks, e)))
            return st;
        for (int32_t i = 0; i < n_jobs; i++) {
            small_job *j = &d->job[i];
            kv_commit(&j->ask->s->kv, j->n_rows);
            if (j->n_rows && j->ask->s->kv.n_past == j->ask->s->n_id) {
                take(j, best, n_ranks);
                best += 2 * n_ranks;
            }
        }
    }
    return n_rows < 0 ? e->status : OK;
}

static void small_forget(drafter *base, draft_state *s, int64_t n)
{
    (void)base;
    if (s->n_checked > n)
        s->n_checked = n;
}

const draft_class draft_small = {.name = "model",
                                 .apart = true,
                                 .bind = small_bind_model,
                                 .plan = small_plan,
                                 .open = small_open,
                                 .close = small_close,
                                 .state_open = small_state_open,
                                 .state_close = small_state_close,
                                 .propose = small_propose,
                                 .forget = small_forget};
