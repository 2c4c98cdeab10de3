/* session.c - one timeline with a workspace of its own, as callers see it.
 *
 * All memory is allocated at open, with sizes from dry passes. Checkpoints alone are allocated and
 * freed later, within their budget.
 */
#include "engine/batch_int.h"
#include "engine/media.h"
#include "base/mem.h"

/* ---- Opening --------------------------------------------------------------------------- */

status workspace_open(workspace *w, carat_model *m, const kv_layout *l, const session_shape *shape,
                      const carat_memory_plan *plan, err *e)
{
    size_t n_vocab = (size_t)m->core.n_vocab;
    size_t rows = (size_t)shape->answer_rows;
    size_t outputs = (size_t)shape->n_outputs > rows ? (size_t)shape->n_outputs : rows;
    status st;
    *w = (workspace){0};
    if ((st = kv_batch_init(&w->batch, l->rows_max, shape->n_seqs, l, e)))
        goto out;
    if ((st = sampler_init(&w->sampler, m->core.n_vocab, e)) ||
        (st = sampler_reserve(&w->sampler, l->n_ctx, e)))
        goto out;
    for (int32_t i = 0; i < m->n_sides; i++) {
        device *d = model_device(m, i);
        size_t n = plan->device[i].scratch_bytes;
        w->scratch[i].n_bytes = n ? n : 1;
        w->scratch[i].at = d->alloc(d, w->scratch[i].n_bytes);
        if (!w->scratch[i].at) {
            st = err_memory(e, "the scratch of a session", w->scratch[i].n_bytes);
            goto out;
        }
    }
    if (m->media && (!(w->soft = mem_calloc((size_t)l->rows_max, sizeof *w->soft)) ||
                     !(w->held = mem_calloc((size_t)l->rows_max, sizeof *w->held)))) {
        st = err_memory(e, "a session", (size_t)l->rows_max * sizeof *w->soft);
        goto out;
    }
    if (l->axes && !(w->axes = mem_calloc((size_t)l->rows_max, sizeof *w->axes))) {
        st = err_memory(e, "a session", (size_t)l->rows_max * sizeof *w->axes);
        goto out;
    }
    w->logits = mem_calloc(n_vocab, sizeof *w->logits);
    w->raw = mem_calloc(n_vocab, sizeof *w->raw);
    w->candidates = mem_calloc(CANDIDATES_MAX * rows, sizeof *w->candidates);
    w->n_candidates = mem_calloc(outputs, sizeof *w->n_candidates);
    if (!w->logits || !w->raw || !w->candidates || !w->n_candidates)
        st = err_memory(e, "a session", 2 * n_vocab * sizeof *w->logits);
out:
    if (st)
        workspace_close(w, m);
    return st;
}

void workspace_close(workspace *w, carat_model *m)
{
    media_leave(m, w->held, &w->n_held);
    mem_free(w->axes);
    mem_free(w->held);
    mem_free(w->soft);
    mem_free(w->n_candidates);
    mem_free(w->candidates);
    mem_free(w->raw);
    mem_free(w->logits);
    for (int32_t i = 0; i < m->n_sides; i++) {
        device *d = model_device(m, i);
        if (w->scratch[i].at)
            d->release(d, w->scratch[i].at, w->scratch[i].n_bytes);
    }
    sampler_free(&w->sampler);
    kv_batch_free(&w->batch);
    *w = (workspace){0};
}

void workspace_begin_pass(const workspace *w, const carat_model *m, pass *p)
{
    pass_begin(p, m->dev, &w->batch.st, w->scratch[PASS_MAIN].at, w->scratch[PASS_MAIN].n_bytes);
    p->taps = w->taps;
    for (int32_t i = 1; i < m->n_sides; i++)
        pass_add_side(p, model_device(m, i), w->scratch[i].at, w->scratch[i].n_bytes);
}

int64_t cache_dir_bytes(const carat_session_options *opt)
{
    enum { CACHE_DEFAULT_MB = 4096 };
    return (int64_t)(opt && opt->cache_mb ? opt->cache_mb : CACHE_DEFAULT_MB) * (1 << 20);
}

status open_checkpoints(checkpoint_store **s, carat_model *m, kv_pool *pool,
                        const carat_session_options *opt, const carat_memory_plan *plan, err *e)
{
    checkpoint_wish w = {.budget_bytes = plan->checkpoint_bytes,
                         .dir = opt ? opt->cache_dir : NULL,
                         .dir_bytes = (uint64_t)cache_dir_bytes(opt)};
    *s = NULL;
    if (opt && opt->cache_mb < 0)
        return err_set(e, E_ARG,
                       "a directory for conversations cannot hold %d MiB: expected 1 or more, or 0 "
                       "for the default (--kv-cache-mb)",
                       opt->cache_mb);
    if (w.dir && !w.budget_bytes)
        return err_set(e, E_ARG,
                       "%s: conversations are saved from checkpoints in memory, and there is no "
                       "memory for any (--checkpoint-mb)",
                       w.dir);
    return w.budget_bytes ? checkpoints_open(s, m, pool, &w, e) : OK;
}

status session_open(carat_model *m, const carat_session_options *opt, int32_t verify_rows,
                    carat_session **out, err *e)
{
    carat_session *s;
    status st;
    *out = NULL;
    if ((st = model_check_loaded(m, e)))
        return st;
    s = mem_calloc(1, sizeof *s);
    if (!s)
        return err_memory(e, "a session", sizeof *s);
    if ((st = batch_init(&s->b, m, opt, 1, verify_rows, e))) {
        carat_session_close(s);
        return st;
    }
    *out = s;
    return OK;
}

carat_status carat_session_open(carat_model *m, const carat_session_options *opt,
                                carat_session **out, carat_error *e)
{
    return session_open(m, opt, 0, out, e);
}

void carat_session_close(carat_session *s)
{
    if (!s)
        return;
    batch_free(&s->b);
    mem_free(s);
}

/* ---- Calls that compute ---------------------------------------------------------------- */

static void take_end(void *user, status st, const err *e, const carat_timings *t)
{
    carat_session *s = user;
    s->st = st;
    s->e = *e;
    s->t = *t;
}

status session_idle(const carat_session *s, err *e)
{
    return !s->b.slot->job ? OK
                           : err_set(e, E_ARG,
                                     "the session is at work: a callback of its call may cancel "
                                     "that call and read, and no more");
}

/* The fields of a job that v has. */
static void job_evaluates(job *j, const carat_job *from, const evaluation *v)
{
    j->class = v->class;
    j->v = v;
    j->ids = from->ids;
    j->first = v->first;
    j->n = v->first + from->n;
    j->sparse = v->sparse;
    j->lora = v->lora;
}

status session_run(carat_session *s, const carat_job *from, const evaluation *v, carat_timings *t,
                   err *e)
{
    struct slot *own = s->b.slot;
    job *j = &s->job;
    status st = session_idle(s, e);
    if (st)
        return st;
    *j = (job){0};
    report_begin(&j->r, s->b.m);
    if (v)
        job_evaluates(j, from, v);
    else
        st = job_open(&s->b, from, false, j, e);
    if (st) {
        report_end(&j->r, t);
        job_close(j);
        return st;
    }
    j->done = take_end;
    j->user = s;
    begin_job(&s->b, own, j);
    while (own->job) {
        s->b.n_steps++;
        end_cancelled(&s->b);
        if (own->job && !batch_pass(&s->b)) {
            err why = {0};
            st = err_set(&why, E_LIMIT, "no pass of the session has room for the next tokens");
            end_job(&s->b, own, st, &why);
        }
    }
    if (t)
        *t = s->t;
    return s->st ? err_set(e, s->st, "%s", s->e.text) : OK;
}

/* ---- The timeline ---------------------------------------------------------------------- */

int32_t carat_session_n_ctx(const carat_session *s)
{
    return s->b.shape.n_ctx;
}

int64_t carat_session_n_past(const carat_session *s)
{
    return s->b.slot->t.kv.n_past;
}

const char *carat_session_reuse(const carat_session *s, int64_t *n_dropped)
{
    if (n_dropped)
        *n_dropped = s->b.slot->t.n_dropped;
    return s->b.slot->t.reuse;
}

status check_more_ids(const carat_model *m, int32_t before, const int32_t *ids, int64_t n,
                      int32_t n_ctx, err *e)
{
    if (n < 1 || !ids)
        return err_set(e, E_ARG, "the prompt is empty");
    if (n > n_ctx)
        return err_set(e, E_LIMIT, "the prompt has %lld tokens, and the context holds %d (--ctx)",
                       (long long)n, n_ctx);
    for (int64_t i = 0; i < n; i++)
        if (ids[i] >= m->core.n_vocab || (ids[i] < 0 && !media_has_id(m, ids[i])))
            return err_set(e, E_ARG, "token %lld of the prompt is %d, and ids go from 0 to %d",
                           (long long)i, ids[i], m->core.n_vocab - 1);
    return media_check(m, before, ids, n, e);
}

status check_ids(const carat_model *m, const int32_t *ids, int64_t n, int32_t n_ctx, err *e)
{
    return check_more_ids(m, 0, ids, n, n_ctx, e);
}

status check_text_ids(const carat_model *m, const int32_t *ids, int64_t n, int32_t n_ctx,
                      const char *what, err *e)
{
    status st = check_ids(m, ids, n, n_ctx, e);
    for (int64_t i = 0; i < n && !st; i++)
        if (ids[i] < 0)
            st = err_set(e, E_UNSUPPORTED, "%s of a prompt with pictures is not computed", what);
    return st;
}

bool carat_rewind(carat_session *s, int64_t n)
{
    timeline *t = session_timeline(s);
    return !session_idle(s, NULL) && n >= 0 && media_whole(t->m, t->id, n, t->kv.n_past) == n &&
           timeline_rewind(t, n);
}

void carat_reset(carat_session *s)
{
    if (!session_idle(s, NULL))
        timeline_reset(session_timeline(s));
}

void carat_session_cache(const carat_session *s, carat_cache_info *info)
{
    *info = (carat_cache_info){0};
    if (!s->b.store)
        return;
    checkpoints_settle(s->b.store);
    checkpoints_info(s->b.store, info);
}

/* ---- Snapshots -------------------------------------------------------------------------- */

/* The public name of a kv_snapshot, and the model it belongs to. */
struct carat_snapshot {
    const carat_model *m;
    kv_snapshot *k;
};

status snapshot_of(const carat_model *m, kv_snapshot *k, carat_snapshot **out, err *e)
{
    carat_snapshot *p = *out = mem_calloc(1, sizeof *p);
    if (!p) {
        kv_snapshot_drop(k);
        return err_memory(e, "a snapshot", sizeof *p);
    }
    *p = (carat_snapshot){.m = m, .k = k};
    return OK;
}

const kv_snapshot *snapshot_rows(const carat_snapshot *p)
{
    return p->k;
}

status snapshot_take(timeline *t, carat_snapshot **out, err *e)
{
    kv_snapshot *k;
    *out = NULL;
    status st = timeline_snapshot(t, &k, e);
    return st ? st : snapshot_of(t->m, k, out, e);
}

status snapshot_restore(timeline *t, const carat_snapshot *p, err *e)
{
    if (p->m != t->m)
        return err_set(e, E_ARG, "a snapshot of %s cannot be restored into a session of %s",
                       p->m->core.name, t->m->core.name);
    return timeline_restore(t, p->k, e);
}

carat_status carat_snapshot_take(carat_session *s, carat_snapshot **out, carat_error *e)
{
    *out = NULL;
    status st = session_idle(s, e);
    return st ? st : snapshot_take(session_timeline(s), out, e);
}

carat_status carat_snapshot_restore(carat_session *s, const carat_snapshot *p, carat_error *e)
{
    status st = session_idle(s, e);
    return st ? st : snapshot_restore(session_timeline(s), p, e);
}

int64_t carat_snapshot_n(const carat_snapshot *p)
{
    return p->k->n;
}

uint64_t carat_snapshot_bytes(const carat_snapshot *p)
{
    return p->k->own_bytes;
}

void carat_snapshot_free(carat_snapshot *p)
{
    if (!p)
        return;
    kv_snapshot_drop(p->k);
    mem_free(p);
}

/* ---- Cancellation ---------------------------------------------------------------------- */

/* A signal handler may only touch a lock-free atomic. */
_Static_assert(ATOMIC_BOOL_LOCK_FREE == 2, "carat_session_cancel must be async-signal-safe");

void carat_session_cancel(carat_session *s)
{
    atomic_store_explicit(&s->b.slot->cancel, true, memory_order_relaxed);
}
