/* vectors.c - see vectors.h. */
#include "apps/server/answers/vectors.h"

#include "apps/server/answers/live.h"
#include "base/mem.h"

#include <stdio.h>

enum { STATUS_GONE = 499 }; /* the client left; only the log shows this status */

typedef struct wave {
    const vector_plan *plan;
    int32_t cap, n;
    live_job *job;  /* [cap] */
    int32_t **ids;  /* [cap], owned */
    float *vectors; /* [cap][n_embd] */
} wave;

bool vectors_no_memory(problem *p)
{
    return problem_set(p, 503, "", "no memory for embeddings");
}

bool vectors_too_long(const exchange *x, const char *field, int32_t i, int64_t n, problem *p)
{
    p->n_prompt = n;
    p->n_ctx = x->m->n_ctx;
    p->code = "context_length_exceeded";
    return problem_set(p, 400, field, "%s %d has %lld tokens, and the context holds %d", field, i,
                       (long long)n, x->m->n_ctx);
}

static void clear_wave(wave *w)
{
    for (int32_t i = 0; i < w->n; i++) {
        mem_free(w->ids[i]);
        w->ids[i] = NULL;
    }
    w->n = 0;
}

static bool add_text(wave *w, int32_t index, problem *p)
{
    int32_t n_embd = w->plan->x->m->info.n_embd;
    int64_t n = 0;
    if (!w->plan->ids(w->plan->user, index, &w->ids[w->n], &n, p))
        return false;
    w->job[w->n] = (live_job){.ids = w->ids[w->n],
                              .n = n,
                              .embedding = w->vectors + (size_t)w->n * (size_t)n_embd,
                              .pooling = w->plan->pooling};
    w->n++;
    return true;
}

/* Waits for all jobs of a live. False: a problem, or the client left. */
static bool wait_all(exchange *x, live *l, problem *p)
{
    choice_event h;
    while (!live_over(l)) {
        switch (live_wait(l, x->fd, -1)) {
        case LIVE_GONE:
            x->status = STATUS_GONE;
            x->note = "client gone";
            atomic_fetch_add(&x->s->m.cancelled, 1);
            return false;
        case LIVE_BROKEN:
            return vectors_no_memory(p);
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

static bool run_wave(wave *w, int32_t from, problem *p)
{
    live *l = NULL;
    exchange *x = w->plan->x;
    while (w->n < w->cap && from + w->n < w->plan->n)
        if (!add_text(w, from + w->n, p))
            return false;
    if (!live_open(&l, x->m, &(live_plan){.job = w->job, .n = w->n}, p))
        return false;
    bool ok = wait_all(x, l, p);
    live_close(l);
    for (int32_t i = 0; i < w->n && ok; i++)
        ok = w->plan->take(w->plan->user, from + i,
                           w->vectors + (size_t)i * (size_t)x->m->info.n_embd, p);
    return ok;
}

bool vectors_run(const vector_plan *plan, problem *p)
{
    const served *m = plan->x->m;
    bool alone = carat_model_is_encoder(m->model); /* then no answer is kept waiting */
    wave w = {.plan = plan, .cap = alone || m->n_slots < 2 ? m->n_slots : m->n_slots - 1};
    size_t cap = (size_t)w.cap;
    w.job = mem_calloc(cap, sizeof *w.job);
    w.ids = mem_calloc(cap, sizeof *w.ids);
    w.vectors = mem_calloc(cap * (size_t)m->info.n_embd, sizeof *w.vectors);
    bool ok = (w.job && w.ids && w.vectors) || vectors_no_memory(p);
    for (int32_t at = 0; at < plan->n && ok; at += w.cap) {
        ok = run_wave(&w, at, p);
        clear_wave(&w);
        if (ok && plan->x->out.bad)
            ok = vectors_no_memory(p);
    }
    clear_wave(&w);
    mem_free(w.vectors);
    mem_free(w.ids);
    mem_free(w.job);
    return ok;
}
