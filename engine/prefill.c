/* prefill.c - tokens in: single passes, and prompts cut into chunks of them.
 *
 * Every computation of the engine is session_pass: reserve, fill the step, run the model, take the
 * wanted logits, commit. A prompt is a row of such passes, of which only the last wants logits
 * (unless all are asked for); a decoded token is one of a single row. What fails leaves the
 * timeline as it was before that pass.
 */
#include "engine/engine_int.h"

#include <float.h>
#include <string.h>

/* NaN or +inf in a row of logits: the weights or the input are broken, and every later token
 * would be noise. -inf is a ban and stands. */
static bool finite_row(const float *x, int32_t n)
{
    int bad = 0;
    for (int32_t i = 0; i < n; i++)
        bad |= !(x[i] <= FLT_MAX);
    return !bad;
}

static status take_logits(carat_session *s, const pass *p, mat y, float *logits, err *e)
{
    const carat_model *m = s->m;
    size_t n_vocab = (size_t)m->core.n_vocab;
    (void)p;
    for (int32_t r = 0; r < y.rows; r++) {
        float *to = logits + (size_t)r * n_vocab;
        m->dev->download(m->dev, to, mat_row(y, r), n_vocab * sizeof *to);
        if (!finite_row(to, m->core.n_vocab))
            return err_set(e, E_NUMERIC,
                           "%s computed a NaN or an infinity at position %d: the weights are "
                           "damaged, or the numbers overflow",
                           m->core.name, s->batch.st.out.pos[r]);
    }
    return OK;
}

status session_pass(carat_session *s, const int32_t *ids, int32_t n, kv_want want, float *logits,
                    err *e)
{
    carat_model *m = s->m;
    pass p;
    status st;

    if ((st = kv_reserve(&s->kv, n, e)))
        return st;
    kv_batch_clear(&s->batch);
    if ((st = kv_batch_add(&s->batch, &s->kv, ids, n, NULL, want, e)))
        return st;
    pthread_mutex_lock(&m->pass_lock);
    pass_begin(&p, m->dev, &s->batch.st, s->scratch, s->scratch_bytes);
    mat y = model_forward(&p, &m->core, &s->layout);
    if (pass_failed(&p))
        st = err_set(e, p.e.status, "%s", p.e.text);
    else
        st = take_logits(s, &p, y, logits, e);
    pthread_mutex_unlock(&m->pass_lock);
    if (st)
        return st;
    memmove(s->id + s->kv.n_past, ids, (size_t)n * sizeof *ids);
    kv_commit(&s->kv, n);
    return OK;
}

status session_prefill(carat_session *s, const int32_t *ids, int64_t n, bool all, float *logits,
                       prefill_fn fn, void *user, err *e)
{
    int32_t rows = s->shape.chunk;
    size_t n_vocab = (size_t)s->m->core.n_vocab;
    status st;

    if (all && rows > s->shape.n_outputs)
        rows = s->shape.n_outputs;
    while (s->kv.n_past < n) {
        int64_t at = s->kv.n_past;
        int32_t take = n - at < rows ? (int32_t)(n - at) : rows;
        kv_want want = all ? KV_WANT_ALL : at + take == n ? KV_WANT_LAST : KV_WANT_NONE;
        if (session_take_cancel(s))
            return err_set(e, E_CANCELLED, "cancelled after %lld of %lld prompt tokens",
                           (long long)at, (long long)n);
        if ((st = session_pass(s, ids + at, take, want, logits, e)))
            return st;
        if (all)
            logits += (size_t)take * n_vocab;
        if (fn && !fn(user, s->kv.n_past, n))
            return err_set(e, E_CANCELLED, "cancelled after %lld of %lld prompt tokens",
                           (long long)s->kv.n_past, (long long)n);
    }
    return OK;
}

static bool tell_progress(void *user, int64_t done, int64_t total)
{
    const carat_model *m = user;
    return m->progress(m->progress_user, "prompt tokens", (uint64_t)done, (uint64_t)total);
}

carat_status carat_eval(carat_session *s, const int32_t *ids, int64_t n, bool all_logits,
                        float *logits, int64_t *n_reused, carat_error *e)
{
    status st = session_check_ids(s, ids, n, e);
    if (st)
        return st;
    if (all_logits && !logits)
        return err_set(e, E_ARG,
                       "carat_eval: all logits are wanted, and there is no place for them");
    session_align(s, ids, n);
    if (n_reused)
        *n_reused = s->kv.n_past;
    return session_prefill(s, ids, n, all_logits, logits ? logits : s->logits,
                           s->m->progress ? tell_progress : NULL, s->m, e);
}
