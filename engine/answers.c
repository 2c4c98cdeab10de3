/* answers.c - answers as jobs: a prompt, then the last token with drafts after it, pass by pass.
 *
 * The rules on tokens are in decode.c, drafts and their verdicts in round.c.
 */
#include "engine/batch_int.h"

/* ---- The prompt ------------------------------------------------------------------------ */

static pass_want wants_prompt(slot *s)
{
    return s->answering ? (pass_want){0} : prompt_wants(s);
}

static pass_part part_of_prompt(slot *s, int32_t rows)
{
    return prompt_part(s, rows, generation_needs(s->job->g));
}

/* Keeps the part's rows. After the last row, takes the first token. */
static status take_prompt(slot *s, const pass_part *part, err *e)
{
    carat_batch *b = s->b;
    job *j = s->job;
    row_logits y = {0};
    status st;
    if (kv_rows_wanted(&part->rows) &&
        (st = read_logits(b->m, &b->w, part, 0, s->t.kv.n_past + part->rows.n - 1, &y, e))) {
        timeline_commit(&s->t, part, NULL, 0);
        return st;
    }
    rounds_keep(b->rounds, part, NULL, part->rows.n);
    if (!generation_tell_prefill(j->g, s->t.kv.n_past, j->n)) {
        generation_stop(j->g, CARAT_FINISH_CANCELLED);
        return OK;
    }
    if (s->t.kv.n_past < j->n)
        return OK;
    report_prefilled(&j->r);
    s->answering = true;
    st = generation_next(j->g, &s->t, s->t.kv.n_past, &b->w, y, e);
    b->n_generated += (uint64_t)generation_count(j->g);
    return st;
}

/* ---- The last token -------------------------------------------------------------------- */

static pass_want wants_token(slot *s)
{
    int64_t n = s->t.kv.n_past;
    if (!s->answering)
        return (pass_want){0};
    s->t.id[n] = generation_token(s->job->g); /* an answer ends before the context is full */
    return (pass_want){.left = s->b->shape.verify_rows, .next = s->t.id + n};
}

static void prepare_tokens(carat_batch *b, slot *const *s, int32_t n, int32_t rows, bool trees)
{
    for (int32_t i = 0; i < n; i++)
        b->answering[i] = s[i]->x;
    rounds_draft(b->rounds, b->answering, n, rows, !trees);
}

static pass_part part_of_token(slot *s, int32_t rows)
{
    (void)rows; /* as rounds_draft was told */
    return reply_part(s->x);
}

static status take_tokens(slot *s, const pass_part *part, err *e)
{
    carat_batch *b = s->b;
    const generation *g = s->job->g;
    int64_t before = generation_count(g);
    status st = reply_walk(b->rounds, s->x, &b->w, part, &s->cancel, e);
    b->n_generated += (uint64_t)(generation_count(g) - before);
    return st;
}

/* ---- The job --------------------------------------------------------------------------- */

static status open_answer(carat_batch *b, const carat_job *from, job *j, err *e)
{
    status st = sparse_decide(&j->sparse, b->m, j->opt.sparse, j->n, &b->shape, e);
    j->anew = j->opt.n_prompt_logprobs > 0;
    j->opt.sparse = NULL; /* the caller's */
    return st ? st
              : generation_open(&j->g, b->m, from->opt ? &j->opt : NULL, from->fn, from->user, e);
}

static void close_answer(job *j)
{
    generation_close(j->g);
}

static status begin_answer(slot *s, err *e)
{
    job *j = s->job;
    status st = OK;
    timeline_forget_stats(&s->t);
    if (j->anew)
        st = score_begin(s, e);
    else
        timeline_prepare(&s->t, j->ids, j->n);
    generation_reuses(j->g, s->t.kv.n_past);
    return st ? st : reply_open(s->b->rounds, s->x, j->g, e);
}

static bool answer_done(const slot *s)
{
    return generation_ended(s->job->g);
}

static status end_answer(slot *s, status st, err *e)
{
    job *j = s->job;
    if (!s->answering)
        report_prefilled(&j->r);
    if (st == E_CANCELLED) {
        generation_stop(j->g, CARAT_FINISH_CANCELLED);
        *e = (err){0};
        st = OK;
    }
    if (!st) {
        report_decoded(&j->r);
        st = generation_finish(j->g, e);
        timeline_rest(&s->t);
    }
    report_sparse(&j->r, &s->t);
    report_pages(&j->r, &s->t);
    report_experts(&j->r, s->b->m);
    reply_report(s->x, &j->r.t);
    reply_close(s->x);
    if (!st)
        generation_report(j->g, &j->r.t);
    return st;
}

static const contributor prompts = {
    .prompt = true, .wants = wants_prompt, .part = part_of_prompt, .take = take_prompt};

static const contributor tokens = {
    .wants = wants_token, .prepare = prepare_tokens, .part = part_of_token, .take = take_tokens};

static const contributor *const contributors[] = {&prompt_logprobs, &page_preview, &prompts,
                                                  &tokens, NULL};

const job_class answer_job = {.contributors = contributors,
                              .open = open_answer,
                              .close = close_answer,
                              .begin = begin_answer,
                              .done = answer_done,
                              .end = end_answer};

carat_status carat_generate(carat_session *s, const int32_t *ids, int64_t n,
                            const carat_generate_options *opt, carat_event_fn fn, void *user,
                            carat_timings *t, carat_error *e)
{
    const carat_job j = {.ids = ids, .n = n, .opt = opt, .fn = fn, .user = user};
    return session_run(s, &j, NULL, t, e);
}
