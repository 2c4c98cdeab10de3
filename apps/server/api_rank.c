/* api_rank.c - rerankers: a query and texts to prompts to probabilities (vectors.h). Prompts of one
 * query share their beginning, which a slot of the batch keeps. */
#include "apps/server/api_rank.h"

#include "apps/server/rank_form.h"
#include "apps/server/vectors.h"
#include "base/mem.h"

#include <string.h>

typedef struct rank_work {
    exchange *x;
    rank_request rq;
    float *scores; /* [rq.n] */
    int64_t n_tokens;
} rank_work;

static bool prompt_ids(void *user, int32_t i, int32_t **out, int64_t *n, problem *p)
{
    rank_work *w = user;
    const served *m = w->x->m;
    const jtree *query = w->rq.query[w->rq.n_queries > 1 ? i : 0], *text = w->rq.document[i];
    const carat_rank_text t = {.query = query->s,
                               .n_query = query->n,
                               .document = text->s,
                               .n_document = text->n,
                               .instruction = w->rq.instruction,
                               .n_instruction = w->rq.instruction ? strlen(w->rq.instruction) : 0};
    err e = {0};
    *n = carat_rank_tokenize(m->model, &t, NULL, 0, &e);
    if (*n < 0)
        return problem_from(p, &e);
    if (*n > m->n_ctx)
        return vectors_too_long(w->x, "documents", i, *n, p);
    if (!(*out = mem_alloc((size_t)*n * sizeof **out)))
        return vectors_no_memory(p);
    w->n_tokens += *n;
    return carat_rank_tokenize(m->model, &t, *out, *n, &e) == *n || problem_from(p, &e);
}

static bool keep_score(void *user, int32_t i, float *v, problem *p)
{
    (void)p;
    ((rank_work *)user)->scores[i] = *v;
    return true;
}

static bool rank_all(rank_work *w, problem *p)
{
    exchange *x = w->x;
    x->keep_ms = w->rq.keep_ms;
    if (!exchange_pick(x, w->rq.model, p))
        return false;
    if (!carat_model_ranks(x->m->model))
        return problem_set(p, 501, "model",
                           "%s is no reranker: this path wants a model such as Qwen3-Reranker",
                           x->m->names.name);
    if (!(w->scores = mem_calloc((size_t)w->rq.n, sizeof *w->scores)))
        return vectors_no_memory(p);
    if (!vectors_run(&(vector_plan){.x = x,
                                    .n = w->rq.n,
                                    .pooling = CARAT_POOL_RANK,
                                    .ids = prompt_ids,
                                    .take = keep_score,
                                    .user = w},
                     p))
        return false;
    if (!rank_put(&w->rq, w->scores, *w->rq.model ? w->rq.model : x->m->names.name, w->n_tokens,
                  &x->out))
        return vectors_no_memory(p);
    x->used.prompt = w->n_tokens;
    x->status = 200;
    return true;
}

static void handle_rank(exchange *x, rank_api api)
{
    problem p = {0};
    rank_work w = {.x = x};
    bool ok = rank_read(&w.rq, api, x->body, x->n_body, x->s->o->lenient, &p) && rank_all(&w, &p);
    if (!ok && p.status)
        reply_problem(x, &p);
    mem_free(w.scores);
    rank_free(&w.rq);
}

void handle_rerank(exchange *x)
{
    handle_rank(x, RANK_DOCUMENTS);
}

void handle_score(exchange *x)
{
    handle_rank(x, RANK_PAIRS);
}
