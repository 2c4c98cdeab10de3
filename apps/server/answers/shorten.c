/* shorten.c - see shorten.h. */
#include "apps/server/answers/shorten.h"

#include "apps/server/answers/live.h"
#include "base/clock.h"
#include "base/mem.h"

enum { POLL_MS = 50 }; /* how often a waiting thread checks that the client is still connected */

struct shortening {
    shorten_ask ask;
    served *scorer;
    carat_compressed *result; /* [n] */
    int32_t n;
    double ms;
    pthread_t thread;
    bool started;
    atomic_bool unwanted; /* the request has ended: scoring stops */
    pthread_mutex_t lock; /* of the next three */
    pthread_cond_t done;
    bool over;
    problem p;     /* of the server, such as a full queue */
    carat_error e; /* of the library; both are read after `over` */
    carat_status st;
};

/* ---- The thread ------------------------------------------------------------------------------ */

/* Waits for the job. Its values are written when it ends with OK. */
static carat_status wait_scored(shortening *x, live *l, carat_error *e)
{
    choice_event h;
    carat_status st = CARAT_OK;
    while (!st && !live_over(l)) {
        if (atomic_load(&x->unwanted))
            return err_set(e, CARAT_E_CANCELLED, "the request has ended");
        if (live_wait(l, -1, POLL_MS) == LIVE_BROKEN)
            return err_set(e, CARAT_E_MEMORY, "no memory for the values of a text");
        while (live_next(l, &h))
            if (h.done && h.status)
                st = err_set(e, h.status, "%s", h.error);
    }
    return st;
}

static carat_status score(void *user, const int32_t *ids, int64_t n, float *out, carat_error *e)
{
    shortening *x = user;
    const live_job job = {.ids = ids, .n = n, .importance = out};
    live *l;
    problem p = {0};
    if (!live_open(&l, x->scorer, &(live_plan){.job = &job, .n = 1}, &p)) {
        if (p.status == 400) /* the model does not score; with auto that is no error */
            return err_set(e, CARAT_E_UNSUPPORTED, "%s", p.text);
        x->p = p;
        return err_set(e, CARAT_E_IO, "%s", p.text);
    }
    carat_status st = wait_scored(x, l, e);
    live_close(l);
    return st;
}

static carat_status shorten_one(shortening *x, int32_t i)
{
    const shorten_ask *a = &x->ask;
    carat_scorer face = {.model = x->scorer->model,
                         .n_ctx = x->scorer->n_ctx < SCORER_CTX ? x->scorer->n_ctx : SCORER_CTX,
                         .score = score,
                         .user = x};
    if (!a->prompt)
        return carat_compress_chat(x->scorer->shortened, a->m->model, &face, a->talk, &a->chat,
                                   &a->opt, &x->result[i], &x->e);
    return carat_compress_text(x->scorer->shortened, a->m->model, &face, a->prompt[i].text,
                               a->prompt[i].n, &a->opt, &x->result[i], &x->e);
}

static void *run(void *arg)
{
    shortening *x = arg;
    carat_status st = CARAT_OK;
    double start_ms = clock_ms();
    for (int32_t i = 0; i < x->n && !st; i++)
        st = shorten_one(x, i);
    pthread_mutex_lock(&x->lock);
    x->st = st;
    x->ms = clock_ms() - start_ms;
    x->over = true;
    pthread_cond_signal(&x->done);
    pthread_mutex_unlock(&x->lock);
    return NULL;
}

/* ---- The connection -------------------------------------------------------------------------- */

bool shorten_start(shortening **out, const shorten_ask *ask, problem *p)
{
    shortening *x = *out = mem_calloc(1, sizeof *x);
    if (!x)
        return problem_set(p, 503, "", "no memory for a request");
    x->ask = *ask;
    x->scorer = ask->m->s->scorer ? ask->m->s->scorer : ask->m;
    x->n = ask->prompt ? ask->n_prompts : 1;
    pthread_mutex_init(&x->lock, NULL);
    clock_cond_init(&x->done);
    x->result = mem_calloc((size_t)x->n, sizeof *x->result);
    x->started = x->result && !pthread_create(&x->thread, NULL, run, x);
    if (x->started)
        return true;
    shorten_close(x);
    *out = NULL;
    return problem_set(p, 503, "", "no memory or no thread for a request");
}

/* True once the thread is done. */
static bool wait_over(shortening *x, double ms)
{
    const struct timespec at = clock_after_ms(ms < 1 ? 1 : ms < POLL_MS ? ms : POLL_MS);
    pthread_mutex_lock(&x->lock);
    if (!x->over)
        pthread_cond_timedwait(&x->done, &x->lock, &at);
    bool over = x->over;
    pthread_mutex_unlock(&x->lock);
    return over;
}

pick_state shorten_wait(shortening *x, const request *rq, int fd, int timeout_ms, problem *p)
{
    double until = clock_ms() + timeout_ms, left = POLL_MS;
    while (!wait_over(x, left)) {
        left = timeout_ms < 0 ? POLL_MS : until - clock_ms();
        if (left <= 0)
            return PICK_WAITS;
        if (client_left(fd)) {
            problem_set(p, 503, "", "the client left");
            return PICK_FAILED;
        }
    }
    if (!x->st)
        return PICK_DONE;
    if (x->p.status)
        *p = x->p;
    else if (x->st == CARAT_E_CANCELLED)
        problem_set(p, 503, "", "the server is shutting down");
    else
        problem_of(rq, p, &x->e);
    return PICK_FAILED;
}

const carat_compressed *shorten_results(const shortening *x, int32_t *n, double *ms)
{
    *n = x->n;
    *ms = x->ms;
    return x->result;
}

const char *shorten_scorer(const shortening *x)
{
    return x->scorer->info.name;
}

void shorten_close(shortening *x)
{
    if (!x)
        return;
    atomic_store(&x->unwanted, true);
    if (x->started)
        pthread_join(x->thread, NULL);
    for (int32_t i = 0; i < x->n && x->result; i++)
        carat_compressed_free(&x->result[i]);
    pthread_cond_destroy(&x->done);
    pthread_mutex_destroy(&x->lock);
    mem_free(x->result);
    mem_free(x);
}
