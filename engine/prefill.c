/* prefill.c - tokens in: single passes, and prompts cut into chunks of them.
 *
 * Every computation of the engine is run_pass: reserve, fill the step, run the model, take the
 * wanted logits, commit. A prompt is a row of such passes, of which only the last wants logits
 * (unless all are asked for); a decoded token is one of a single row; a batch has rows of several
 * timelines in one. What fails leaves the timelines as they were before that pass.
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

status not_finite(const carat_model *m, int64_t pos, err *e)
{
    return err_set(e, E_NUMERIC,
                   "%s computed a NaN or an infinity at position %lld: the weights are damaged, or "
                   "the numbers overflow",
                   m->core.name, (long long)pos);
}

static int32_t rows_wanted(const pass_part *part)
{
    return part->want == KV_WANT_ALL ? part->n : part->want == KV_WANT_LAST ? 1 : 0;
}

/* Of each part that asks for no more, only what its token will be taken from; n_some stays -1 where
 * the device cannot, or too many are alike. */
static void take_some(carat_model *m, mat y, pass_part *part, int32_t n_parts)
{
    sift_want want[STEP_SEQS_MAX];
    int32_t of[STEP_SEQS_MAX], n = 0, r = 0;
    for (int32_t i = 0; i < n_parts; r += rows_wanted(&part[i++])) {
        part[i].n_some = -1;
        if (part[i].want != KV_WANT_LAST || part[i].top < 1 || n == STEP_SEQS_MAX)
            continue;
        of[n] = i;
        want[n++] = (sift_want){.row = mat_row(y, r), .k = part[i].top, .to = part[i].some};
    }
    if (!n || !m->dev->sift)
        return;
    m->dev->sift(m->dev, want, n, m->core.n_vocab, SOME_MAX);
    for (int32_t i = 0; i < n; i++) {
        part[of[i]].bad = want[i].bad;
        part[of[i]].n_some = want[i].n <= SOME_MAX ? want[i].n : -1;
    }
}

/* The rows of y belong to the parts in their order. */
static void take_logits(carat_model *m, mat y, pass_part *part, int32_t n_parts)
{
    size_t n_vocab = (size_t)m->core.n_vocab;
    int32_t r = 0;
    take_some(m, y, part, n_parts);
    for (int32_t i = 0; i < n_parts; i++) {
        int32_t n = rows_wanted(&part[i]);
        if (part[i].n_some >= 0) {
            r++;
            continue;
        }
        for (int32_t k = 0; k < n; k++, r++) {
            float *to = part[i].logits + (size_t)k * n_vocab;
            m->dev->download(m->dev, to, mat_row(y, r), n_vocab * sizeof *to);
            part[i].bad |= !finite_row(to, m->core.n_vocab);
        }
    }
}

static status fill_step(workspace *w, pass_part *part, int32_t n_parts, err *e)
{
    status st = OK;
    kv_batch_clear(&w->batch);
    for (int32_t i = 0; i < n_parts && !st; i++) {
        part[i].bad = false;
        timeline_before_pass(part[i].t, part[i].n);
        if (!(st = kv_reserve(&part[i].t->kv, part[i].n, e)))
            st = kv_batch_add(&w->batch, &part[i].t->kv, part[i].ids, part[i].n, NULL, part[i].want,
                              e);
    }
    return st;
}

status run_pass(carat_model *m, const kv_layout *l, workspace *w, pass_part *part, int32_t n_parts,
                err *e)
{
    pass p;
    status st = fill_step(w, part, n_parts, e);
    if (st)
        return st;
    pthread_mutex_lock(&m->pass_lock);
    if ((st = model_check_loaded(m, e))) {
        pthread_mutex_unlock(&m->pass_lock);
        return st;
    }
    workspace_begin_pass(w, m, &p);
    mat y = model_forward(&p, &m->core, l);
    if (pass_failed(&p))
        st = err_set(e, p.e.status, "%s", p.e.text);
    else
        take_logits(m, y, part, n_parts);
    if (!st && m->dev->failed)
        st = m->dev->failed(m->dev, e);
    pthread_mutex_unlock(&m->pass_lock);
    for (int32_t i = 0; i < n_parts && !st; i++) {
        timeline *t = part[i].t;
        if (part[i].bad)
            continue;
        memmove(t->id + t->kv.n_past, part[i].ids, (size_t)part[i].n * sizeof *t->id);
        kv_commit(&t->kv, part[i].n);
    }
    return st;
}

status session_prefill(carat_session *s, const int32_t *ids, int64_t n, bool all, float *logits,
                       prefill_fn fn, void *user, err *e)
{
    int32_t rows = s->shape.chunk;
    size_t n_vocab = (size_t)s->m->core.n_vocab;
    int64_t from = s->t.kv.n_past, end = from + n;
    status st;

    if (all && rows > s->shape.n_outputs)
        rows = s->shape.n_outputs;
    while (s->t.kv.n_past < end) {
        int64_t at = s->t.kv.n_past;
        int32_t take = end - at < rows ? (int32_t)(end - at) : rows;
        kv_want want = all ? KV_WANT_ALL : at + take == end ? KV_WANT_LAST : KV_WANT_NONE;
        if (session_take_cancel(s))
            return err_set(e, E_CANCELLED, "cancelled after %lld of %lld prompt tokens",
                           (long long)at, (long long)end);
        pass_part part = {.t = &s->t,
                          .ids = ids + (at - from),
                          .n = take,
                          .want = want,
                          .logits = logits ? logits : s->w.logits,
                          .top = logits ? 0 : 1, /* only whether they are finite */
                          .some = s->w.some};
        if ((st = run_pass(s->m, &s->layout, &s->w, &part, 1, e)))
            return st;
        if (part.bad)
            return not_finite(s->m, at + take - 1, e);
        if (all)
            logits += (size_t)take * n_vocab;
        if (fn && !fn(user, s->t.kv.n_past, end))
            return err_set(e, E_CANCELLED, "cancelled after %lld of %lld prompt tokens",
                           (long long)s->t.kv.n_past, (long long)end);
    }
    return OK;
}

static bool tell_progress(void *user, int64_t done, int64_t total)
{
    const carat_model *m = user;
    return m->progress(m->progress_user, "prompt tokens", (uint64_t)done, (uint64_t)total);
}

/* What both calls do once they know which ids are new. */
static status eval_new(carat_session *s, const int32_t *ids, int64_t n, bool all, float *logits,
                       err *e)
{
    return session_prefill(s, ids, n, all, logits, s->m->progress ? tell_progress : NULL, s->m, e);
}

static status check_place(bool all, const float *logits, err *e)
{
    if (all && !logits)
        return err_set(e, E_ARG, "all logits are wanted, and there is no place for them");
    return OK;
}

carat_status carat_eval(carat_session *s, const int32_t *ids, int64_t n, bool all_logits,
                        float *logits, int64_t *n_reused, carat_error *e)
{
    status st = check_ids(s->m, ids, n, s->shape.n_ctx, e);
    if (st || (st = check_place(all_logits, logits, e)))
        return st;
    timeline_prepare(&s->t, ids, n);
    int64_t cached = s->t.kv.n_past;
    if (n_reused)
        *n_reused = cached;
    return eval_new(s, ids + cached, n - cached, all_logits, logits, e);
}

carat_status carat_append(carat_session *s, const int32_t *ids, int64_t n, bool all_logits,
                          float *logits, carat_error *e)
{
    int64_t cached = s->t.kv.n_past;
    status st = check_ids(s->m, ids, n, s->shape.n_ctx, e);
    if (st || (st = check_place(all_logits, logits, e)))
        return st;
    if (n > s->shape.n_ctx - cached)
        return err_set(e, E_LIMIT, "%lld tokens after %lld: the context holds %d", (long long)n,
                       (long long)cached, s->shape.n_ctx);
    return eval_new(s, ids, n, all_logits, logits, e);
}
