/* score.c - how probable a prompt's tokens were: PROMPT_TOKEN events.
 *
 *     row      0    1    2   ..  n-2  n-1        its logits are those of the next token
 *     scores   id1  id2  id3 ..  id(n-1)  -      the last row is the answer's first
 *
 * Rows 0 .. n-2 are computed by hidden passes. The head then multiplies a few of their rows at a
 * time, in the scratch above them; each row of logits is copied to the host and becomes one event.
 * So a prompt of any length takes one row of logits. Nothing is reused: no cache has logits.
 */
#include "engine/batch_int.h"

/* True if a hidden pass of `rows` wanted rows leaves room for the head's product of `slice`. */
static bool head_fits(const carat_batch *b, int32_t rows, int32_t slice)
{
    const carat_model *m = b->m;
    size_t need[PASS_SIDES_MAX];
    bool fits = true;
    pthread_mutex_lock(&b->m->pass_lock);
    /* Other parts of the pass may want fewer rows; the wanted ones are copied then. */
    for (int32_t outs = rows > 1 ? rows - 1 : 1; outs <= rows && fits; outs++) {
        fits = !model_plan_head(&m->core, m->dev, &b->layout, rows, outs, slice, need, NULL);
        for (int32_t i = 0; i < m->n_sides && fits; i++)
            fits = need[i] <= b->w.scratch[i].n_bytes;
    }
    pthread_mutex_unlock(&b->m->pass_lock);
    return fits;
}

/* The most rows of a hidden pass whose rows are scored: as many as leave room in the scratch for a
 * row of logits. 0: there is none. */
static int32_t scored_rows_most(carat_batch *b)
{
    enum { SLICE = 16 };
    workspace *w = &b->w;
    int32_t rows = hidden_rows_most(b);
    if (w->score_slice)
        return w->score_rows;
    while (rows > 1 && !head_fits(b, rows, 1))
        rows /= 2;
    w->score_slice = 1;
    w->score_rows = rows > 1 || head_fits(b, 1, 1) ? rows : 0;
    while (w->score_rows && w->score_slice < SLICE && head_fits(b, rows, 2 * w->score_slice))
        w->score_slice *= 2;
    return w->score_rows;
}

status score_begin(slot *s, err *e)
{
    timeline_restart(&s->t);
    generation_tell_prompt(s->job->g, NULL, s->job->ids[0], NULL);
    return scored_rows_most(s->b)
               ? OK
               : err_set(e, E_MEMORY, "there is no room for the logits of a prompt's row");
}

static pass_want wants_scores(slot *s)
{
    int64_t left = s->job->n - 1 - s->t.kv.n_past;
    if (!s->job->anew || left <= 0)
        return (pass_want){0};
    return (pass_want){.left = left, .most = scored_rows_most(s->b)};
}

static pass_part part_of_scores(slot *s, int32_t rows)
{
    int64_t n = s->job->n - 1, end = timeline_pass_end(&s->t, s->job->n);
    int64_t left = (end < n ? end : n) - s->t.kv.n_past;
    return (pass_part){.t = &s->t,
                       .rows = {.token = slot_next_ids(s),
                                .n = left < rows ? (int32_t)left : rows,
                                .final = true,
                                .want = KV_WANT_ALL},
                       .prompt = true,
                       .hidden = true};
}

/* Reports the tokens that the part's rows score, and keeps the rows. */
static status take_scores(slot *s, const pass_part *part, err *e)
{
    carat_model *m = s->b->m;
    workspace *w = &s->b->w;
    generation *g = s->job->g;
    int64_t at = s->t.kv.n_past;
    int32_t n = part->rows.n;
    status st = OK;
    for (int32_t k = 0; k < n && !st; k += w->score_slice) {
        int32_t some = n - k < w->score_slice ? n - k : w->score_slice;
        mat y;
        st = run_head(m, w, part, k, some, &y, e);
        for (int32_t i = 0; i < some && !st; i++) {
            if ((st = read_head(m, w, y, i, at + k + i, e)))
                break;
            generation_tell_prompt(g, w->logits, s->job->ids[at + k + i + 1], &w->sampler);
        }
    }
    timeline_commit(&s->t, part, NULL, st ? 0 : n);
    if (!st && !generation_tell_prefill(g, s->t.kv.n_past, s->job->n))
        generation_stop(g, CARAT_FINISH_CANCELLED);
    return st;
}

const contributor prompt_logprobs = {.prompt = true,
                                     .hidden = true,
                                     .wants = wants_scores,
                                     .part = part_of_scores,
                                     .take = take_scores};
