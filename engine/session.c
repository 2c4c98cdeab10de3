/* session.c - one timeline of tokens, and how much of it a new prompt can keep.
 *
 * The caller hands over whole prompts; the session compares them with the ids it has computed:
 *
 *     cached   a b c d e f          prompt a b c d e f g h   extended: computes g h
 *     cached   a b c d e f          prompt a b c x y         rewound to c if the rings still hold
 *                                                            its windows, else rebuilt from a
 *
 * At least the last id of a prompt is always computed, because its logits are wanted. All memory
 * is taken at open, as planned by a dry pass.
 */
#include "engine/engine_int.h"
#include "base/mem.h"

/* ---- Opening --------------------------------------------------------------------------- */

status timeline_open(timeline *t, carat_model *m, const kv_layout *l, err *e)
{
    status st;
    *t = (timeline){.reuse = "new"};
    if ((st = kv_open(&t->kv, m->dev, l, e)))
        return st;
    t->id = mem_calloc((size_t)l->n_ctx, sizeof *t->id);
    if (!t->id) {
        timeline_close(t);
        return err_memory(e, "a session", (size_t)l->n_ctx * sizeof *t->id);
    }
    return OK;
}

void timeline_close(timeline *t)
{
    mem_free(t->id);
    kv_close(&t->kv);
    *t = (timeline){0};
}

status workspace_open(workspace *w, carat_model *m, const kv_layout *l, int32_t n_seqs,
                      size_t scratch_bytes, err *e)
{
    size_t n_vocab = (size_t)m->core.n_vocab;
    status st;
    *w = (workspace){.scratch_bytes = scratch_bytes ? scratch_bytes : 1};
    if ((st = kv_batch_init(&w->batch, l->rows_max, n_seqs, m->core.n_kv, e)))
        goto out;
    if ((st = sampler_init(&w->sampler, m->core.n_vocab, e)))
        goto out;
    w->scratch = m->dev->alloc(m->dev, w->scratch_bytes);
    if (!w->scratch) {
        st = err_memory(e, "the scratch of a session", w->scratch_bytes);
        goto out;
    }
    w->logits = mem_calloc(n_vocab * (size_t)n_seqs, sizeof *w->logits);
    w->raw = mem_calloc(n_vocab, sizeof *w->raw);
    if (!w->logits || !w->raw)
        st = err_memory(e, "a session", n_vocab * ((size_t)n_seqs + 1) * sizeof *w->logits);
out:
    if (st)
        workspace_close(w, m);
    return st;
}

void workspace_close(workspace *w, carat_model *m)
{
    mem_free(w->raw);
    mem_free(w->logits);
    if (w->scratch)
        m->dev->release(m->dev, w->scratch, w->scratch_bytes);
    sampler_free(&w->sampler);
    kv_batch_free(&w->batch);
    *w = (workspace){0};
}

carat_status carat_session_open(carat_model *m, const carat_session_options *opt,
                                carat_session **out, carat_error *e)
{
    carat_memory_plan plan;
    carat_session *s = NULL;
    status st;

    *out = NULL;
    if ((st = model_check_loaded(m, e)))
        goto out;
    s = mem_calloc(1, sizeof *s);
    if (!s) {
        st = err_memory(e, "a session", sizeof *s);
        goto out;
    }
    s->m = m;
    atomic_init(&s->cancel, false);
    if ((st = plan_shape(m, opt, 1, &s->shape, e)))
        goto out;
    if ((st = plan_costs(m, &s->shape, &s->layout, &plan, e)))
        goto out;
    if ((st = plan_check(m, &plan, e)))
        goto out;
    if ((st = timeline_open(&s->t, m, &s->layout, e)))
        goto out;
    if ((st = workspace_open(&s->w, m, &s->layout, 1, plan.scratch_bytes, e)))
        goto out;
    *out = s;
    s = NULL;
out:
    carat_session_close(s);
    return st;
}

void carat_session_close(carat_session *s)
{
    if (!s)
        return;
    workspace_close(&s->w, s->m);
    timeline_close(&s->t);
    kv_layout_free(&s->layout);
    mem_free(s);
}

/* ---- The timeline ---------------------------------------------------------------------- */

int32_t carat_session_n_ctx(const carat_session *s)
{
    return s->shape.n_ctx;
}

int64_t carat_session_n_past(const carat_session *s)
{
    return s->t.kv.n_past;
}

const char *carat_session_reuse(const carat_session *s, int64_t *n_dropped)
{
    if (n_dropped)
        *n_dropped = s->t.n_dropped;
    return s->t.reuse;
}

status check_ids(const carat_model *m, const int32_t *ids, int64_t n, int32_t n_ctx, err *e)
{
    if (n < 1 || !ids)
        return err_set(e, E_ARG, "the prompt is empty");
    if (n > n_ctx)
        return err_set(e, E_LIMIT, "the prompt has %lld tokens, and the context holds %d",
                       (long long)n, n_ctx);
    for (int64_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= m->core.n_vocab)
            return err_set(e, E_ARG, "token %lld of the prompt is %d, and ids go from 0 to %d",
                           (long long)i, ids[i], m->core.n_vocab - 1);
    return OK;
}

/* Tokens that ids[0..n) and the timeline have in common, its last one left to be computed. */
static int64_t common(const timeline *t, const int32_t *ids, int64_t n)
{
    int64_t same = 0;
    while (same < t->kv.n_past && same < n - 1 && t->id[same] == ids[same])
        same++;
    return same;
}

int64_t timeline_usable(const timeline *t, const int32_t *ids, int64_t n)
{
    int64_t same = common(t, ids, n);
    return kv_can_rewind(&t->kv, same) ? same : 0;
}

void timeline_align(timeline *t, const int32_t *ids, int64_t n)
{
    int64_t cached = t->kv.n_past, same = common(t, ids, n);
    t->n_dropped = 0;
    if (same == cached) {
        t->reuse = cached ? "extended" : "new";
    } else if (kv_rewind(&t->kv, same)) {
        t->reuse = same ? "rewound" : "rebuilt: the prompt begins differently";
        t->n_dropped = cached - same;
    } else {
        t->reuse = "rebuilt: the sliding windows no longer hold what the change needs";
        t->n_dropped = cached;
        kv_reset(&t->kv);
    }
}

bool carat_rewind(carat_session *s, int64_t n)
{
    if (n < 0)
        return false;
    return n >= s->t.kv.n_past || kv_rewind(&s->t.kv, n);
}

void carat_reset(carat_session *s)
{
    kv_reset(&s->t.kv);
}

/* ---- Cancellation ---------------------------------------------------------------------- */

/* A signal handler may only touch a lock-free atomic. */
_Static_assert(ATOMIC_BOOL_LOCK_FREE == 2, "carat_session_cancel must be async-signal-safe");

void carat_session_cancel(carat_session *s)
{
    atomic_store_explicit(&s->cancel, true, memory_order_relaxed);
}

bool session_take_cancel(carat_session *s)
{
    return atomic_load_explicit(&s->cancel, memory_order_relaxed) &&
           atomic_exchange_explicit(&s->cancel, false, memory_order_relaxed);
}
