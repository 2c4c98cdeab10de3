/* api_rank.c - how well texts answer a query (vectors.h). A reranker reads both in one prompt and
 * gives a probability; prompts of one query share their beginning, which a slot of the batch keeps.
 * A model for embeddings gives a vector of each, and the score is the cosine of their angle, as
 * vLLM answers. */
#include "apps/server/answers/api_rank.h"

#include "apps/server/dialects/rank_form.h"
#include "apps/server/answers/vectors.h"
#include "apps/server/models/loras.h"
#include "base/mem.h"

#include <math.h>
#include <string.h>

typedef struct rank_work {
    exchange *x;
    rank_request rq;
    float *scores; /* [rq.n] */
    int64_t n_tokens;
    float *query; /* the vector of the query before, of length 1 */
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

/* ---- Vectors: the query and its texts, or each query and its text in turn ---- */

static bool is_query(const rank_work *w, int32_t i)
{
    return w->rq.n_queries > 1 ? i % 2 == 0 : i == 0;
}

static int32_t document_of(const rank_work *w, int32_t i)
{
    return w->rq.n_queries > 1 ? i / 2 : i - 1;
}

static bool text_ids(void *user, int32_t i, int32_t **out, int64_t *n, problem *p)
{
    rank_work *w = user;
    const served *m = w->x->m;
    bool query = is_query(w, i);
    const jtree *t = query ? w->rq.query[i / 2] : w->rq.document[document_of(w, i)];
    const carat_embed_text text = {.text = t->s, .n_text = t->n};
    err e = {0};
    bool cut;
    *n = carat_embed_tokenize(m->model, &text, 0, NULL, 0, &cut, &e);
    if (*n <= 0)
        return problem_from(p, &e);
    if (*n > m->n_ctx)
        return vectors_too_long(w->x, query ? "query" : "documents",
                                query ? i / 2 : document_of(w, i), *n, p);
    if (!(*out = mem_alloc((size_t)*n * sizeof **out)))
        return vectors_no_memory(p);
    w->n_tokens += *n;
    return carat_embed_tokenize(m->model, &text, 0, *out, *n, &cut, &e) == *n ||
           problem_from(p, &e);
}

static bool keep_cosine(void *user, int32_t i, float *v, problem *p)
{
    rank_work *w = user;
    int32_t n = w->x->m->info.n_embd;
    double length = 0, dot = 0;
    (void)p;
    for (int32_t k = 0; k < n; k++) {
        length += (double)v[k] * v[k];
        dot += (double)v[k] * w->query[k];
    }
    double by = length > 0 ? 1 / sqrt(length) : 0;
    for (int32_t k = 0; k < n && is_query(w, i); k++)
        w->query[k] = (float)(v[k] * by);
    if (!is_query(w, i))
        w->scores[document_of(w, i)] = (float)(dot * by);
    return true;
}

/* ---- The request ---- */

static bool rank_by_vectors(rank_work *w, carat_pooling pooling, problem *p)
{
    const served *m = w->x->m;
    if (w->rq.instruction)
        return problem_set(p, 400, "instruction",
                           "%s compares vectors of texts, which an instruction does not change",
                           m->names.name);
    if (!(w->query = mem_calloc((size_t)m->info.n_embd, sizeof *w->query)))
        return vectors_no_memory(p);
    return vectors_run(&(vector_plan){.x = w->x,
                                      .n = w->rq.n + w->rq.n_queries,
                                      .pooling = pooling,
                                      .ids = text_ids,
                                      .take = keep_cosine,
                                      .user = w},
                       p);
}

static bool rank_by_prompts(rank_work *w, problem *p)
{
    return vectors_run(&(vector_plan){.x = w->x,
                                      .n = w->rq.n,
                                      .pooling = CARAT_POOL_RANK,
                                      .ids = prompt_ids,
                                      .take = keep_score,
                                      .user = w},
                       p);
}

static bool rank_all(rank_work *w, problem *p)
{
    exchange *x = w->x;
    bool embeds;
    x->keep_ms = w->rq.keep_ms;
    if (!exchange_pick(x, w->rq.model, p) || !loras_refuse(x, w->rq.model, p))
        return false;
    bool ranks = carat_model_ranks(x->m->model);
    carat_pooling pooling = carat_model_pooling(x->m->model, &embeds);
    if (!ranks && !embeds)
        return problem_set(p, 501, "model",
                           "%s is no reranker: this path wants a model such as Qwen3-Reranker, or "
                           "one for embeddings",
                           x->m->names.name);
    if (!(w->scores = mem_calloc((size_t)w->rq.n, sizeof *w->scores)))
        return vectors_no_memory(p);
    if (!(ranks ? rank_by_prompts(w, p) : rank_by_vectors(w, pooling, p)))
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
    mem_free(w.query);
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
