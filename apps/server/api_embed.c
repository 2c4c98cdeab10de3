/* api_embed.c - embeddings: texts to token ids to jobs of the batch, in waves.
 *
 *     embed_form.c reads -> a wave of inputs: tokens, jobs, vectors -> embed_form.c writes
 *
 * A wave leaves one slot to others, so answers begin and go on beside a long list of inputs. The
 * memory of a request is one wave and the text of the answer.
 */
#include "apps/server/api_embed.h"

#include "apps/server/embed_form.h"
#include "apps/server/live.h"
#include "base/clock.h"
#include "base/mem.h"

#include <stdio.h>
#include <string.h>

enum { STATUS_GONE = 499 }; /* the client left; only the log shows this status */

typedef struct work {
    exchange *x;
    embed_request rq;
    embed_answer a;
    carat_pooling pooling;
    int32_t end_id; /* the token that the file wants after each text; -1: none */
    /* Of a wave. */
    int32_t cap, n;
    live_job *job;  /* [cap] */
    int32_t **ids;  /* [cap], owned */
    float *vectors; /* [cap][n_embd] */
} work;

static bool no_memory(problem *p)
{
    return problem_set(p, 503, "", "no memory for embeddings");
}

/* A model made for embeddings may want its end token after each text. */
static int32_t end_token(const carat_model *m, int32_t n_vocab)
{
    carat_meta add, id;
    bool wanted = carat_model_find_meta(m, "tokenizer.ggml.add_eos_token", &add) &&
                  add.kind == CARAT_META_BOOL && add.i &&
                  carat_model_find_meta(m, "tokenizer.ggml.eos_token_id", &id) &&
                  id.kind == CARAT_META_INT && id.i >= 0 && id.i < n_vocab;
    return wanted ? (int32_t)id.i : -1;
}

static bool open_work(work *w, problem *p)
{
    const served *m = w->x->m;
    bool stated;
    w->pooling = w->rq.pooling_given ? w->rq.pooling : carat_model_pooling(m->model, &stated);
    w->end_id = end_token(m->model, m->info.n_vocab);
    w->cap = m->n_slots > 1 ? m->n_slots - 1 : 1;
    w->a = (embed_answer){.rq = &w->rq,
                          .model = *w->rq.model ? w->rq.model : m->names.name,
                          .pooling = w->pooling == CARAT_POOL_MEAN ? "mean" : "last"};
    w->job = mem_calloc((size_t)w->cap, sizeof *w->job);
    w->ids = mem_calloc((size_t)w->cap, sizeof *w->ids);
    w->vectors = mem_calloc((size_t)w->cap * (size_t)m->info.n_embd, sizeof *w->vectors);
    return (w->job && w->ids && w->vectors) || no_memory(p);
}

static void end_wave(work *w)
{
    for (int32_t i = 0; i < w->n; i++) {
        mem_free(w->ids[i]);
        w->ids[i] = NULL;
    }
    w->n = 0;
}

static void close_work(work *w)
{
    end_wave(w);
    mem_free(w->vectors);
    mem_free(w->ids);
    mem_free(w->job);
    embed_free(&w->rq);
}

/* ---- A wave ---- */

/* The tokens of one input, at most those that the context holds if it may be cut. */
static bool add_input(work *w, int32_t index, problem *p)
{
    const served *m = w->x->m;
    const raw_prompt *in = &w->rq.input[index];
    int64_t n = in->n_ids, n_end = !in->ids && w->end_id >= 0;
    err e = {0};
    if (!in->ids)
        n = carat_tokenize(m->model, in->text, in->n, CARAT_TOK_BOS, NULL, 0, &e);
    if (n < 0)
        return problem_from(p, &e);
    if (n + n_end > m->n_ctx && !w->rq.truncate) {
        p->n_prompt = n + n_end;
        p->n_ctx = m->n_ctx;
        p->code = "context_length_exceeded";
        return problem_set(p, 400, "input", "input %d has %lld tokens, and the context holds %d",
                           index, (long long)(n + n_end), m->n_ctx);
    }
    int64_t keep = n + n_end > m->n_ctx ? m->n_ctx - n_end : n;
    int32_t *ids = mem_alloc((size_t)(n + 1) * sizeof *ids);
    if (!ids)
        return no_memory(p);
    int32_t at = w->n++;
    w->ids[at] = ids;
    if (in->ids)
        memcpy(ids, in->ids, (size_t)n * sizeof *ids);
    else
        carat_tokenize(m->model, in->text, in->n, CARAT_TOK_BOS, ids, n, &e);
    if (n_end)
        ids[keep++] = w->end_id;
    w->job[at] = (live_job){.ids = ids,
                            .n = keep,
                            .embedding = w->vectors + (size_t)at * (size_t)m->info.n_embd,
                            .pooling = w->pooling};
    w->a.n_tokens += keep;
    return true;
}

/* Waits for all jobs of a live. False: a problem, or the client left. */
static bool wait_all(work *w, live *l, problem *p)
{
    happening h;
    while (!live_over(l)) {
        switch (live_wait(l, w->x->fd, -1)) {
        case LIVE_GONE:
            w->x->status = STATUS_GONE;
            w->x->note = "client gone";
            atomic_fetch_add(&w->x->s->m.cancelled, 1);
            return false;
        case LIVE_BROKEN:
            return no_memory(p);
        case LIVE_EVENTS:
        case LIVE_QUIET:
            break;
        }
        while (live_next(l, &h)) {
            if (!h.done || !h.status)
                continue;
            if (h.status == CARAT_E_CANCELLED)
                return problem_set(p, 503, "", "the server was shut down before the answer");
            err e = {.status = h.status};
            snprintf(e.text, sizeof e.text, "%s", h.error);
            return problem_from(p, &e);
        }
    }
    return true;
}

static bool run_wave(work *w, int32_t from, problem *p)
{
    live *l = NULL;
    int32_t n_embd = w->x->m->info.n_embd;
    while (w->n < w->cap && from + w->n < w->rq.n_inputs)
        if (!add_input(w, from + w->n, p))
            return false;
    if (!live_open(&l, w->x->m, &(live_plan){.job = w->job, .n = w->n}, p))
        return false;
    bool ok = wait_all(w, l, p);
    live_close(l);
    for (int32_t i = 0; i < w->n && ok; i++) {
        float *v = w->vectors + (size_t)i * (size_t)n_embd;
        int32_t n = n_embd;
        ok = embed_norm(&w->rq, v, &n, p);
        if (ok)
            embed_put(&w->a, from + i, v, n, &w->x->out);
    }
    return ok;
}

static bool embed_all(work *w, problem *p)
{
    exchange *x = w->x;
    double asked_ms = clock_ms();
    x->keep_ms = w->rq.keep_ms;
    if (!exchange_pick(x, w->rq.model, p))
        return false;
    w->a.load_ms = clock_ms() - asked_ms;
    double load_ms = w->a.load_ms;
    if (!embed_read(&w->rq, x->m->info.n_vocab, x->m->info.n_embd, p) || !open_work(w, p))
        return false;
    w->a.load_ms = load_ms;
    embed_begin(&w->a, &x->out);
    for (int32_t at = 0; at < w->rq.n_inputs; at += w->cap) {
        if (!run_wave(w, at, p))
            return false;
        end_wave(w);
        if (x->out.bad)
            return no_memory(p);
    }
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
    close_work(&w);
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
