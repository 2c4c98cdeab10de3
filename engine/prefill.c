/* prefill.c - prompts in chunks of rows, and evaluations: calls that give the logits of tokens to
 * their caller. Only the last row of a prompt has logits, unless the caller asks for all.
 */
#include "engine/batch_int.h"
#include "engine/media.h"
#include "base/mem.h"
#include "carat_bench.h"

#include <string.h>

/* ---- Rows of prompts ------------------------------------------------------------------- */

/* Rows that must be in one pass: a picture's whose tokens see each other, those that are computed
 * twice, those of a query block of block selection. */
static int32_t least_rows(const slot *s)
{
    const timeline *t = &s->t;
    int64_t at = t->kv.n_past, left = s->job->n - at;
    if (paging_is_whole(t, s->job->n))
        return (int32_t)left;
    if (t->sparse.alpha <= 0)
        return media_block(t->m, slot_next_ids(s));
    int64_t block = SPARSE_TILE - at % SPARSE_TILE, end = timeline_pass_end(t, s->job->n) - at;
    return (int32_t)(block < end ? block : end);
}

pass_want prompt_wants(slot *s)
{
    int64_t left = s->job->n - s->t.kv.n_past;
    return (pass_want){.left = left,
                       .least = least_rows(s),
                       .no_trees = left > STEP_TREE_ROWS_MAX ||
                                   (media_two_way(s->t.m) && s->t.kv.n_past < s->job->pictures)};
}

pass_part prompt_part(slot *s, int32_t rows, int32_t n_best)
{
    const int32_t *ids = slot_next_ids(s);
    int64_t at = s->t.kv.n_past, rest = timeline_pass_end(&s->t, s->job->n) - at;
    int32_t n = sparse_rows(s->t.sparse, at, rest, rows);
    if (!n && s->want.most) /* no pass has room for a query block: rows alone keep every block */
        n = rest < rows ? (int32_t)rest : rows;
    rows = media_pass_rows(s->t.m, ids, rest, n);
    bool last = at + rows == s->job->n;
    return (pass_part){.t = &s->t,
                       .rows = {.token = ids,
                                .n = rows,
                                .final = true,
                                .want = last ? KV_WANT_LAST : KV_WANT_NONE},
                       .prompt = true,
                       .until = paging_until(&s->t, s->job->n),
                       .n_best = last ? n_best : 0};
}

static pass_want wants_preview(slot *s)
{
    bool due = !s->answering && !s->previewed && paging_is_whole(&s->t, s->job->n);
    return due ? prompt_wants(s) : (pass_want){0};
}

/* Of fewer rows than all there is no preview. */
static pass_part part_of_preview(slot *s, int32_t rows)
{
    return rows < s->want.left ? (pass_part){0} : paging_rescore_part(prompt_part(s, rows, 0));
}

/* The next pass has the same rows, and sees the pages that they want. */
static status take_preview(slot *s, const pass_part *part, err *e)
{
    (void)e;
    s->previewed = true;
    timeline_commit(&s->t, part, NULL, 0);
    return OK;
}

const contributor page_preview = {.prompt = true,
                                  .single = true,
                                  .wants = wants_preview,
                                  .part = part_of_preview,
                                  .take = take_preview};

static pass_want wants_plain(slot *s)
{
    int64_t left = s->job->n_plain - s->t.kv.n_past;
    return (pass_want){.left = left > 0 ? left : 0, .no_trees = left > STEP_TREE_ROWS_MAX};
}

static pass_part part_of_plain(slot *s, int32_t rows)
{
    int64_t left = timeline_pass_end(&s->t, s->job->n_plain) - s->t.kv.n_past;
    return (pass_part){
        .t = &s->t,
        .rows = {.token = slot_next_ids(s), .n = left < rows ? (int32_t)left : rows, .final = true},
        .prompt = true};
}

static status keep_rows(slot *s, const pass_part *part, err *e)
{
    (void)e;
    rounds_keep(s->b->rounds, part, NULL, part->rows.n);
    return OK;
}

const contributor plain_rows = {
    .prompt = true, .wants = wants_plain, .part = part_of_plain, .take = keep_rows};

/* ---- Evaluations ----------------------------------------------------------------------- */

static pass_want wants_evaluation(slot *s)
{
    pass_want w = prompt_wants(s);
    if (s->job->v->all)
        w = (pass_want){.left = w.left, .most = s->b->shape.n_outputs};
    return w;
}

static pass_part part_of_evaluation(slot *s, int32_t rows)
{
    const evaluation *v = s->job->v;
    int64_t at = s->t.kv.n_past - s->job->first;
    pass_part part = prompt_part(s, rows, 1); /* without a place for logits they are only tested */
    if (v->all)
        part.rows.want = KV_WANT_ALL;
    part.logits = v->logits ? v->logits : s->b->w.logits;
    if (v->all && !v->rows)
        part.logits += (size_t)at * (size_t)s->t.m->core.n_vocab;
    if (v->logits)
        part.n_best = 0;
    return part;
}

static status cancelled_after(const slot *s, err *e)
{
    return err_set(e, E_CANCELLED, "cancelled after %lld of %lld prompt tokens",
                   (long long)s->t.kv.n_past, (long long)s->job->n);
}

static status take_evaluation(slot *s, const pass_part *part, err *e)
{
    const carat_model *m = s->t.m;
    const evaluation *v = s->job->v;
    int64_t at = s->t.kv.n_past, n = part->rows.n;
    if (!part_finite(part)) {
        timeline_commit(&s->t, part, NULL, 0);
        return not_finite(m, at + n - 1, e);
    }
    rounds_keep(s->b->rounds, part, NULL, part->rows.n);
    if (v->rows && !v->rows(v->rows_user, at, n, v->logits))
        return cancelled_after(s, e);
    if (m->progress &&
        !m->progress(m->progress_user, "prompt tokens", (uint64_t)(at + n), (uint64_t)s->job->n))
        return cancelled_after(s, e);
    return OK;
}

/* A token of a caller's own token loop is computed like an answer's. */
static pass_part part_of_token(slot *s, int32_t rows)
{
    pass_part part = part_of_evaluation(s, rows);
    part.rows.final = part.prompt = false;
    part.until = 0;
    return part;
}

static status begin_all_rows(slot *s, err *e)
{
    (void)e;
    timeline_restart(&s->t);
    paging_pin(&s->t, s->job->ids, s->job->n);
    timeline_prompt(&s->t, s->job->n);
    return OK;
}

static status begin_more(slot *s, err *e)
{
    (void)e;
    if (!s->job->first)
        timeline_prompt(&s->t, s->job->n);
    s->t.n_prompt = s->job->n;
    return OK;
}

static const contributor evaluated = {
    .prompt = true, .wants = wants_evaluation, .part = part_of_evaluation, .take = take_evaluation};
static const contributor next_token = {
    .wants = wants_evaluation, .part = part_of_token, .take = take_evaluation};

static const contributor *const of_prompt[] = {&page_preview, &evaluated, NULL};
static const contributor *const of_all_rows[] = {&evaluated, NULL};
static const contributor *const of_token[] = {&next_token, NULL};

static const job_class prompt_job = {.contributors = of_prompt};
static const job_class all_rows_job = {.contributors = of_all_rows, .begin = begin_all_rows};
static const job_class more_job = {.contributors = of_prompt, .begin = begin_more};
static const job_class more_rows_job = {.contributors = of_all_rows, .begin = begin_more};
static const job_class token_job = {.contributors = of_token, .begin = begin_more};

/* The session's sparse attention and adapters, for a new prompt of n tokens. */
static status use_setting(const carat_session *s, evaluation *v, int64_t n, err *e)
{
    status st = lora_choose(&v->lora, s->b.m, NULL, 0, e);
    return st ? st : sparse_decide(&v->sparse, s->b.m, NULL, n, &s->b.shape, e);
}

static status evaluate(carat_session *s, const int32_t *ids, int64_t n, const evaluation *v, err *e)
{
    return session_run(s, &(carat_job){.ids = ids, .n = n}, v, NULL, e);
}

static status check_prompt(const carat_session *s, const int32_t *ids, int64_t n, err *e)
{
    status st = check_ids(s->b.m, ids, n, s->b.shape.n_ctx, e);
    return st ? st : model_check_writes(s->b.m, e);
}

/* A pass with all rows of a picture must have room for their logits. */
static status check_pictures(const carat_session *s, const int32_t *ids, int64_t n, err *e)
{
    for (int64_t i = 0; i < n; i++)
        if (media_block(s->b.m, ids + i) > s->b.shape.n_outputs)
            return err_set(e, E_LIMIT,
                           "the %d tokens of a picture are in one pass, and a pass gives logits of "
                           "%d at most (--chunk)",
                           media_block(s->b.m, ids + i), s->b.shape.n_outputs);
    return OK;
}

carat_status carat_eval(carat_session *s, const int32_t *ids, int64_t n, float *logits,
                        int64_t *n_reused, carat_error *e)
{
    evaluation v = {.class = &prompt_job, .logits = logits};
    status st = check_prompt(s, ids, n, e);
    st = st ? st : use_setting(s, &v, n, e);
    st = st ? st : evaluate(s, ids, n, &v, e);
    if (!st && n_reused)
        *n_reused = s->t.n_reused;
    return st;
}

carat_status carat_eval_rows(carat_session *s, const int32_t *ids, int64_t n, carat_rows_fn fn,
                             void *user, carat_error *e)
{
    size_t n_bytes = (size_t)s->b.shape.n_outputs * (size_t)s->b.m->core.n_vocab * sizeof(float);
    evaluation v = {.class = &all_rows_job, .all = true, .rows = fn, .rows_user = user};
    status st = check_prompt(s, ids, n, e);
    st = st ? st : check_pictures(s, ids, n, e);
    if (st || (st = use_setting(s, &v, n, e)))
        return st;
    float *rows = v.logits = mem_alloc(n_bytes);
    if (!rows)
        return err_memory(e, "the logits of a pass", n_bytes);
    st = evaluate(s, ids, n, &v, e);
    mem_free(rows);
    return st;
}

carat_status carat_append(carat_session *s, const int32_t *ids, int64_t n, bool all_logits,
                          float *logits, carat_error *e)
{
    const timeline *t = session_timeline(s);
    evaluation v = {.first = t->kv.n_past,
                    .all = all_logits,
                    .logits = logits,
                    .sparse = t->sparse,
                    .lora = t->lora};
    const int32_t before = v.first ? t->id[v.first - 1] : 0;
    status st = check_more_ids(s->b.m, before, ids, n, s->b.shape.n_ctx, e);
    st = st ? st : model_check_writes(s->b.m, e);
    if (!st && all_logits && !logits)
        st = err_set(e, E_ARG, "all logits are asked for, and the pointer to their memory is NULL");
    if (!st && all_logits)
        st = check_pictures(s, ids, n, e);
    if (!st && !v.first)
        st = use_setting(s, &v, n, e);
    if (!st && n > s->b.shape.n_ctx - v.first)
        st = err_set(
            e, E_LIMIT,
            "%lld tokens do not fit behind the %lld in the session: the context holds %d (--ctx)",
            (long long)n, (long long)v.first, s->b.shape.n_ctx);
    if (st)
        return st;
    v.class = n == 1 && ids[0] >= 0 ? &token_job : all_logits ? &more_rows_job : &more_job;
    return evaluate(s, ids, n, &v, e);
}

carat_status carat_pretend(carat_session *s, const int32_t *ids, int64_t n, carat_error *e)
{
    timeline *t = session_timeline(s);
    status st = session_idle(s, e);
    st = st ? st : check_ids(s->b.m, ids, n, s->b.shape.n_ctx, e);
    if (!st && s->b.layout.n_recur)
        st = err_set(
            e, E_UNSUPPORTED,
            "carat_pretend is not possible with recurrent layers: their states must be computed");
    if (st)
        return st;
    timeline_reset(t);
    while (t->kv.n_past < n && !st) {
        int64_t at = t->kv.n_past, left = n - at;
        int32_t take = left < s->b.shape.chunk ? (int32_t)left : s->b.shape.chunk;
        timeline_make_room(t, take); /* else kv_reserve says why not */
        pthread_mutex_lock(&s->b.m->pass_lock);
        if (!(st = kv_reserve(&t->kv, take, e))) {
            for (int64_t i = at / KV_PAGE; s->b.pool.poison && i < pages_of(at + take); i++)
                if (i * KV_PAGE >= at) /* a new page: its rows are NaN */
                    kv_blank_page(&s->b.pool, kv_page_of(&t->kv, (int32_t)i));
            kv_commit(&t->kv, take);
        }
        pthread_mutex_unlock(&s->b.m->pass_lock);
        if (!st)
            memcpy(t->id + at, ids + at, (size_t)take * sizeof *ids);
    }
    return st;
}
