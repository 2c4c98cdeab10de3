/* score.c - see score.h. */
#include "engine/score.h"
#include "engine/embed.h"

void score_begin(generation *g, timeline *t, const int32_t *ids)
{
    timeline_restart(t);
    generation_tell_prompt(g, NULL, ids[0], NULL);
}

bool score_wants(const generation *g, const timeline *t, int64_t n)
{
    return generation_options(g)->n_prompt_logprobs > 0 && t->kv.n_past < n - 1;
}

pass_part score_part(timeline *t, const int32_t *ids, int64_t n, int32_t rows)
{
    int64_t at = t->kv.n_past, left = timeline_pass_end(t, n) - at;
    if (left > n - 1 - at)
        left = n - 1 - at;
    return (pass_part){.t = t,
                       .rows = {.token = ids + at,
                                .n = left < rows ? (int32_t)left : rows,
                                .final = true,
                                .want = KV_WANT_ALL},
                       .prompt = true,
                       .hidden = true};
}

status score_take(generation *g, carat_model *m, workspace *w, const pass_part *part,
                  const int32_t *ids, err *e)
{
    int64_t at = part->t->kv.n_past;
    int32_t n = part->rows.n;
    status st = OK;
    for (int32_t k = 0; k < n && !st; k += w->score_slice) {
        int32_t some = n - k < w->score_slice ? n - k : w->score_slice;
        mat y;
        st = run_head(m, w, part, k, some, &y, e);
        for (int32_t i = 0; i < some && !st; i++) {
            if ((st = read_head(m, w, y, i, at + k + i, e)))
                break;
            generation_tell_prompt(g, w->logits, ids[at + k + i + 1], &w->sampler);
        }
    }
    timeline_commit(part->t, part, NULL, st ? 0 : n);
    return st;
}

/* True if a hidden pass of `rows` wanted rows leaves room for the head's product of `slice`. */
static bool head_fits(const workspace *w, const carat_model *m, const kv_layout *l, int32_t rows,
                      int32_t slice)
{
    size_t need[PASS_SIDES_MAX];
    pthread_mutex_t *lock = (pthread_mutex_t *)&m->pass_lock; /* all else of m stays as it is */
    pthread_mutex_lock(lock);
    bool fits = true;
    /* Other parts of the pass may want fewer rows; the wanted ones are copied then. */
    for (int32_t outs = rows > 1 ? rows - 1 : 1; outs <= rows && fits; outs++) {
        fits = !model_plan_head(&m->core, m->dev, l, rows, outs, slice, need, NULL);
        for (int32_t i = 0; i < m->n_sides && fits; i++)
            fits = need[i] <= w->scratch[i].n_bytes;
    }
    pthread_mutex_unlock(lock);
    return fits;
}

int32_t workspace_score_rows(workspace *w, const carat_model *m, const kv_layout *l, int32_t chunk)
{
    enum { SLICE = 16 };
    int32_t rows = workspace_hidden_rows(w, m, l, chunk);
    if (w->score_slice)
        return w->score_rows;
    while (rows > 1 && !head_fits(w, m, l, rows, 1))
        rows /= 2;
    w->score_slice = 1;
    w->score_rows = rows > 1 || head_fits(w, m, l, 1, 1) ? rows : 0;
    while (w->score_rows && w->score_slice < SLICE && head_fits(w, m, l, rows, 2 * w->score_slice))
        w->score_slice *= 2;
    return w->score_rows;
}
