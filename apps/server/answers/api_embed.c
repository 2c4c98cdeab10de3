/* api_embed.c - embeddings: texts with their prompts to token ids to vectors (vectors.h).
 *
 *     embed_form.c reads -> vectors.c: ids, jobs, vectors -> embed_form.c writes
 */
#include "apps/server/answers/api_embed.h"

#include "apps/server/dialects/embed_form.h"
#include "apps/server/answers/vectors.h"
#include "apps/server/models/loras.h"
#include "base/clock.h"
#include "base/mem.h"

#include <string.h>

typedef struct work {
    exchange *x;
    embed_request rq;
    embed_answer a;
    carat_embed_prompt prompt; /* before each text; perhaps empty */
} work;

/* The tokens of one input, at most those that the context holds if it may be cut. */
static bool input_ids(void *user, int32_t index, int32_t **out, int64_t *n, problem *p)
{
    work *w = user;
    const served *m = w->x->m;
    const raw_prompt *in = &w->rq.input[index];
    const carat_embed_text text = {
        .prompt = w->prompt.text, .n_prompt = w->prompt.n_text, .text = in->text, .n_text = in->n};
    err e = {0};
    bool cut = false;
    int64_t all = in->ids ? in->n_ids : carat_embed_tokenize(m->model, &text, 0, NULL, 0, &cut, &e);
    if (all < 0)
        return problem_from(p, &e);
    if (all > m->n_ctx && !w->rq.truncate)
        return vectors_too_long(w->x, "input", index, all, p);
    int32_t *ids = *out = mem_alloc((size_t)(all + 1) * sizeof *ids);
    if (!ids)
        return vectors_no_memory(p);
    *n = all < m->n_ctx ? all : m->n_ctx;
    if (in->ids)
        memcpy(ids, in->ids, (size_t)*n * sizeof *ids);
    else
        *n = carat_embed_tokenize(m->model, &text, m->n_ctx, ids, all + 1, &cut, &e);
    w->a.n_tokens += *n > 0 ? *n : 0;
    return *n > 0 || problem_from(p, &e);
}

static bool put_vector(void *user, int32_t index, float *v, problem *p)
{
    work *w = user;
    int32_t n = w->x->m->info.n_embd;
    if (!embed_norm(&w->rq, v, &n, p))
        return false;
    embed_put(&w->a, index, v, n, &w->x->out);
    return true;
}

/* The prompt that the request names stands before texts, never before ids. */
static bool find_prompt(work *w, problem *p)
{
    err e = {0};
    if (!w->rq.prompt_name)
        return true;
    for (int32_t i = 0; i < w->rq.n_inputs; i++)
        if (w->rq.input[i].ids)
            return problem_set(p, 400, "prompt_name",
                               "'prompt_name' is of a prompt before a text, and input %d is a list "
                               "of token ids",
                               i);
    return !carat_embed_prompt_named(w->x->m->model, w->rq.prompt_name, &w->prompt, &e) ||
           problem_set(p, 400, "prompt_name", "%s", e.text);
}

static bool embed_all(work *w, problem *p)
{
    exchange *x = w->x;
    double asked_ms = clock_ms();
    bool stated;
    x->keep_ms = w->rq.keep_ms;
    if (!exchange_pick(x, w->rq.model, p) || !loras_refuse(x, w->rq.model, p))
        return false;
    double load_ms = clock_ms() - asked_ms;
    if (!embed_read(&w->rq, x->m->info.n_vocab, x->m->info.n_embd, p) || !find_prompt(w, p))
        return false;
    carat_pooling pooling =
        w->rq.pooling_given ? w->rq.pooling : carat_model_pooling(x->m->model, &stated);
    w->a = (embed_answer){.rq = &w->rq,
                          .model = *w->rq.model ? w->rq.model : x->m->names.name,
                          .pooling = pooling == CARAT_POOL_MEAN ? "mean" : "last",
                          .load_ms = load_ms};
    embed_begin(&w->a, &x->out);
    if (!vectors_run(&(vector_plan){.x = x,
                                    .n = w->rq.n_inputs,
                                    .pooling = pooling,
                                    .ids = input_ids,
                                    .take = put_vector,
                                    .user = w},
                     p))
        return false;
    w->a.total_ms = clock_ms() - x->start_ms;
    embed_end(&w->a, &x->out);
    x->used.prompt = w->a.n_tokens;
    x->status = 200;
    return true;
}

static void handle_embed(exchange *x, embed_api api)
{
    problem p = {0};
    work w = {.x = x};
    bool ok = embed_open(&w.rq, api, x->body, x->n_body, x->s->o->lenient, &p) && embed_all(&w, &p);
    if (!ok && p.status)
        reply_problem(x, &p);
    embed_free(&w.rq);
}

void handle_openai_embeddings(exchange *x)
{
    handle_embed(x, EMBED_OPENAI);
}

void handle_llama_embedding(exchange *x)
{
    handle_embed(x, EMBED_LLAMA);
}

void handle_ollama_embed(exchange *x)
{
    handle_embed(x, EMBED_OLLAMA);
}

void handle_ollama_embeddings(exchange *x)
{
    handle_embed(x, EMBED_OLLAMA_OLD);
}
