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

static status open_memory(carat_session *s, const carat_memory_plan *plan, err *e)
{
    const model *core = &s->m->core;
    device *dev = s->m->dev;
    int32_t rows = s->layout.rows_max;
    size_t n_vocab = (size_t)core->n_vocab;
    status st;

    if ((st = kv_open(&s->kv, dev, &s->layout, e)))
        return st;
    if ((st = kv_batch_init(&s->batch, rows, 1, core->n_kv, e)))
        return st;
    if ((st = sampler_init(&s->sampler, core->n_vocab, e)))
        return st;
    s->scratch_bytes = plan->scratch_bytes;
    s->scratch = dev->alloc(dev, s->scratch_bytes ? s->scratch_bytes : 1);
    if (!s->scratch)
        return err_memory(e, "the scratch of a session", s->scratch_bytes);
    s->id = mem_calloc((size_t)s->shape.n_ctx, sizeof *s->id);
    s->logits = mem_calloc(n_vocab, sizeof *s->logits);
    s->raw = mem_calloc(n_vocab, sizeof *s->raw);
    if (!s->id || !s->logits || !s->raw)
        return err_memory(e, "a session", n_vocab * 2 * sizeof *s->logits);
    return OK;
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
    s->reuse = "new";
    atomic_init(&s->cancel, false);
    if ((st = plan_shape(m, opt, &s->shape, e)))
        goto out;
    if ((st = plan_costs(m, &s->shape, &s->layout, &plan, e)))
        goto out;
    if ((st = plan_check(m, &plan, e)))
        goto out;
    if ((st = open_memory(s, &plan, e)))
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
    mem_free(s->raw);
    mem_free(s->logits);
    mem_free(s->id);
    if (s->scratch)
        s->m->dev->release(s->m->dev, s->scratch, s->scratch_bytes ? s->scratch_bytes : 1);
    sampler_free(&s->sampler);
    kv_batch_free(&s->batch);
    kv_close(&s->kv);
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
    return s->kv.n_past;
}

const char *carat_session_reuse(const carat_session *s, int64_t *n_dropped)
{
    if (n_dropped)
        *n_dropped = s->n_dropped;
    return s->reuse;
}

status session_check_ids(const carat_session *s, const int32_t *ids, int64_t n, err *e)
{
    if (n < 1 || !ids)
        return err_set(e, E_ARG, "the prompt is empty");
    if (n > s->shape.n_ctx)
        return err_set(e, E_LIMIT, "the prompt has %lld tokens, and the context holds %d",
                       (long long)n, s->shape.n_ctx);
    for (int64_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= s->m->core.n_vocab)
            return err_set(e, E_ARG, "token %lld of the prompt is %d, and ids go from 0 to %d",
                           (long long)i, ids[i], s->m->core.n_vocab - 1);
    return OK;
}

void session_align(carat_session *s, const int32_t *ids, int64_t n)
{
    int64_t cached = s->kv.n_past, same = 0;
    while (same < cached && same < n - 1 && s->id[same] == ids[same])
        same++;
    s->n_dropped = 0;
    if (same == cached) {
        s->reuse = cached ? "extended" : "new";
    } else if (kv_rewind(&s->kv, same)) {
        s->reuse = same ? "rewound" : "rebuilt: the prompt begins differently";
        s->n_dropped = cached - same;
    } else {
        s->reuse = "rebuilt: the sliding windows no longer hold what the change needs";
        s->n_dropped = cached;
        kv_reset(&s->kv);
    }
}

bool carat_rewind(carat_session *s, int64_t n)
{
    if (n < 0)
        return false;
    return n >= s->kv.n_past || kv_rewind(&s->kv, n);
}

void carat_reset(carat_session *s)
{
    kv_reset(&s->kv);
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
