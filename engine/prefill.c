/* prefill.c - prompts, cut into chunks of rows. Only the last pass of a prompt wants logits, unless
 * the caller asks for all.
 */
#include "engine/media.h"
#include "engine/round.h"
#include "base/mem.h"
#include "carat_bench.h"

#include <string.h>

status session_prefill(carat_session *s, const prefill *p, err *e)
{
    int32_t rows = s->shape.chunk;
    size_t n_vocab = (size_t)s->m->core.n_vocab;
    int64_t from = s->t.kv.n_past, end = from + p->n;
    float *logits = p->logits;
    status st;

    if (p->all && rows > s->shape.n_outputs)
        rows = s->shape.n_outputs;
    while (s->t.kv.n_past < end) {
        int64_t at = s->t.kv.n_past;
        int64_t left = timeline_pass_end(&s->t, end) - at;
        int32_t take = sparse_rows(s->t.sparse, at, left, rows);
        if (!take) /* such rows keep every block */
            take = left < rows ? (int32_t)left : rows;
        take = media_pass_rows(s->m, p->ids + (at - from), left, take);
        if (p->all && take > s->shape.n_outputs)
            return err_set(e, E_LIMIT,
                           "the %d tokens of a picture are in one pass, and a pass gives logits of "
                           "%d at most (--chunk)",
                           take, s->shape.n_outputs);
        kv_want want = p->all ? KV_WANT_ALL : at + take == end ? KV_WANT_LAST : KV_WANT_NONE;
        if (session_take_cancel(s))
            return err_set(e, E_CANCELLED, "cancelled after %lld of %lld prompt tokens",
                           (long long)at, (long long)end);
        pass_part part = {
            .t = &s->t,
            .rows = {.token = p->ids + (at - from), .n = take, .final = !p->answer, .want = want},
            .prompt = !p->answer,
            .until = p->answer ? 0 : paging_until(&s->t, end),
            .logits = logits ? logits : s->w.logits,
            .n_best = logits ? 0 : 1, /* the logits are only tested for NaN and +inf */
            .candidates = s->w.candidates,
            .n_candidates = s->w.n_candidates};
        if (want == KV_WANT_LAST && part.prompt && paging_looks(&s->t, end)) {
            pass_part look = paging_look_part(part);
            if ((st = run_pass(s->m, &s->layout, &s->w, &look, 1, e)))
                return st;
        }
        if ((st = run_pass(s->m, &s->layout, &s->w, &part, 1, e)))
            return st;
        if (!part_finite(&part)) {
            timeline_commit(&s->t, &part, NULL, 0);
            return not_finite(s->m, at + take - 1, e);
        }
        rounds_keep(s->rounds, &part, NULL, take);
        rounds_absorb(s->rounds);
        if (p->rows && !p->rows(p->rows_user, at, take, logits))
            return err_set(e, E_CANCELLED, "cancelled after %lld of %lld prompt tokens",
                           (long long)s->t.kv.n_past, (long long)end);
        if (p->all && !p->rows)
            logits += (size_t)take * n_vocab;
        if (p->fn && !p->fn(p->user, s->t.kv.n_past, end))
            return err_set(e, E_CANCELLED, "cancelled after %lld of %lld prompt tokens",
                           (long long)s->t.kv.n_past, (long long)end);
    }
    return OK;
}

static bool tell_prompt_progress(void *user, int64_t done, int64_t total)
{
    const carat_model *m = user;
    return m->progress(m->progress_user, "prompt tokens", (uint64_t)done, (uint64_t)total);
}

/* The common part of carat_eval and carat_append: computes the new ids. */
static status eval_new(carat_session *s, prefill p, err *e)
{
    p.fn = s->m->progress ? tell_prompt_progress : NULL;
    p.user = s->m;
    return session_prefill(s, &p, e);
}

static status check_place(bool all, const float *logits, err *e)
{
    if (all && !logits)
        return err_set(e, E_ARG,
                       "all logits are asked for, and the pointer to their memory is NULL");
    return OK;
}

/* The session's sparse attention, for a new prompt of n tokens. */
static status use_setting(carat_session *s, int64_t n, err *e)
{
    sparse_choice c;
    status st = model_check_writes(s->m, e);
    st = st ? st : sparse_decide(&c, s->m, NULL, n, &s->shape, e);
    return st ? st : timeline_use(&s->t, c, e);
}

carat_status carat_eval(carat_session *s, const int32_t *ids, int64_t n, float *logits,
                        int64_t *n_reused, carat_error *e)
{
    status st = check_ids(s->m, ids, n, s->shape.n_ctx, e);
    if (st || (st = use_setting(s, n, e)))
        return st;
    timeline_prepare(&s->t, ids, n);
    int64_t cached = s->t.kv.n_past;
    const prefill p = {.ids = ids + cached, .n = n - cached, .logits = logits};
    if (!(st = eval_new(s, p, e)) && n_reused)
        *n_reused = cached;
    return st;
}

carat_status carat_eval_rows(carat_session *s, const int32_t *ids, int64_t n, carat_rows_fn fn,
                             void *user, carat_error *e)
{
    size_t n_bytes = (size_t)s->shape.n_outputs * (size_t)s->m->core.n_vocab * sizeof(float);
    status st = check_ids(s->m, ids, n, s->shape.n_ctx, e);
    if (st || (st = use_setting(s, n, e)))
        return st;
    float *rows = mem_alloc(n_bytes);
    if (!rows)
        return err_memory(e, "the logits of a pass", n_bytes);
    timeline_restart(&s->t);
    paging_pin(&s->t, ids, n);
    timeline_prompt(&s->t, n);
    const prefill p = {
        .ids = ids, .n = n, .all = true, .logits = rows, .rows = fn, .rows_user = user};
    st = eval_new(s, p, e);
    mem_free(rows);
    return st;
}

carat_status carat_append(carat_session *s, const int32_t *ids, int64_t n, bool all_logits,
                          float *logits, carat_error *e)
{
    int64_t cached = s->t.kv.n_past;
    status st = check_ids(s->m, ids, n, s->shape.n_ctx, e);
    if (st || (st = model_check_writes(s->m, e)) || (st = check_place(all_logits, logits, e)))
        return st;
    if (!cached && (st = use_setting(s, n, e)))
        return st;
    if (n > s->shape.n_ctx - cached)
        return err_set(
            e, E_LIMIT,
            "%lld tokens do not fit behind the %lld in the session: the context holds %d (--ctx)",
            (long long)n, (long long)cached, s->shape.n_ctx);
    if (!cached)
        timeline_prompt(&s->t, n);
    s->t.n_prompt = cached + n;
    /* One token at a time is a caller's own token loop. */
    const prefill p = {
        .ids = ids, .n = n, .answer = n == 1 && ids[0] >= 0, .all = all_logits, .logits = logits};
    return eval_new(s, p, e);
}

carat_status carat_pretend(carat_session *s, const int32_t *ids, int64_t n, carat_error *e)
{
    timeline *t = &s->t;
    status st = check_ids(s->m, ids, n, s->shape.n_ctx, e);
    if (!st && s->layout.n_recur)
        st = err_set(
            e, E_UNSUPPORTED,
            "carat_pretend is not possible with recurrent layers: their states must be computed");
    if (st)
        return st;
    timeline_reset(t);
    while (t->kv.n_past < n && !st) {
        int64_t at = t->kv.n_past, left = n - at;
        int32_t take = left < s->shape.chunk ? (int32_t)left : s->shape.chunk;
        timeline_make_room(t, take); /* else kv_reserve says why not */
        pthread_mutex_lock(&s->m->pass_lock);
        if (!(st = kv_reserve(&t->kv, take, e))) {
            for (int64_t i = at / KV_PAGE; s->pool.poison && i < pages_of(at + take); i++)
                if (i * KV_PAGE >= at) /* a new page: its rows are NaN */
                    kv_blank_page(&s->pool, kv_page_of(&t->kv, (int32_t)i));
            kv_commit(&t->kv, take);
        }
        pthread_mutex_unlock(&s->m->pass_lock);
        if (!st)
            memcpy(t->id + at, ids + at, (size_t)take * sizeof *ids);
    }
    return st;
}
