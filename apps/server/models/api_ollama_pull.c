/* api_ollama_pull.c - ollama's POST /api/pull: a model of a hub becomes one of the store.
 *
 *     thread:       hub_pull, whose progress writes lines under the lock
 *     connection:   reads the lines; when the client leaves, the thread is told to stop
 *
 * An interrupted pull is continued by the next one of the same model.
 */
#include "apps/server/models/api_ollama_info.h"

#include "apps/hub/hub.h"
#include "apps/jsonw.h"
#include "apps/server/answers/live.h"
#include "base/clock.h"
#include "base/mem.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum {
    LINES_MAX = 1 << 16, /* bytes of lines that wait for a slow client; more progress is not told */
    POLL_MS = 500        /* how often the connection looks whether its client is there */
};

typedef struct puller {
    feed f;
    exchange *x;
    ollama_body b;
    pthread_t thread;
    bool started;
    pthread_mutex_t lock; /* of the next five */
    pthread_cond_t changed;
    str lines;
    bool over, stop;
    hub_phase phase; /* of the last line */
    bool told;       /* there was one */
    str taken;       /* of the connection's thread */
    size_t at;
} puller;

static bool should_stop(const exchange *x)
{
    return atomic_load(&x->s->state) == SERVER_DRAINING;
}

static void put_status(str *o, const char *text)
{
    json_open(o, NULL, '{');
    json_text(o, "status", text);
    json_close(o, "}");
    str_putc(o, '\n');
}

static void put_progress_line(str *o, const hub_progress *p)
{
    char text[300], digest[80];
    bool known = p->digest && *p->digest;
    if (known)
        snprintf(text, sizeof text, "pulling %.12s", p->digest);
    else
        snprintf(text, sizeof text, "pulling %.200s", p->file);
    snprintf(digest, sizeof digest, "sha256:%.64s", known ? p->digest : "");
    json_open(o, NULL, '{');
    json_text(o, "status", text);
    if (known)
        json_text(o, "digest", digest);
    json_int(o, "total", (int64_t)p->total);
    json_int(o, "completed", (int64_t)p->done);
    json_close(o, "}");
    str_putc(o, '\n');
}

bool ollama_may_change(const exchange *x, problem *p)
{
    return x->s->loopback || x->s->keys.n ||
           problem_set(
               p, 403, "",
               "other machines reach this server without an API key, so they may not change "
               "the models of this one: start it with --api-key, or use `carat pull` and "
               "`carat rm`");
}

/* ---- The thread that pulls ---- */

static bool tell(void *user, const hub_progress *p)
{
    static const char *const words[] = {[HUB_LISTING] = "pulling manifest",
                                        [HUB_CHECKING] = "verifying sha256 digest",
                                        [HUB_WRITING] = "writing manifest"};
    puller *u = user;
    pthread_mutex_lock(&u->lock);
    bool news = !u->told || p->phase != u->phase;
    if (p->phase == HUB_PULLING && u->lines.n < LINES_MAX)
        put_progress_line(&u->lines, p);
    else if (news && p->phase != HUB_PULLING && p->phase != HUB_DONE)
        put_status(&u->lines, words[p->phase]);
    u->told = true;
    u->phase = p->phase;
    bool go_on = !u->stop && !should_stop(u->x);
    pthread_cond_signal(&u->changed);
    pthread_mutex_unlock(&u->lock);
    return go_on;
}

static void *pull(void *arg)
{
    puller *u = arg;
    model_found found = {0};
    err e = {0};
    const hub_ask ask = {.what = u->b.name, .progress = tell, .user = u};
    status st = hub_pull(&ask, &found, &e);
    catalog_refresh(u->x->s->catalog);
    pthread_mutex_lock(&u->lock);
    if (st) {
        problem p = {0};
        problem_from(&p, &e);
        ollama_error(&p, &u->lines);
        str_putc(&u->lines, '\n');
    } else {
        put_status(&u->lines, "success");
    }
    u->over = true;
    pthread_cond_signal(&u->changed);
    pthread_mutex_unlock(&u->lock);
    model_found_free(&found);
    return NULL;
}

/* ---- The connection ---- */

/* Waits for lines, for POLL_MS at most. *over: there will be no more. */
static void take_lines(puller *u, bool *over)
{
    const struct timespec until = clock_after_ms(POLL_MS);
    str_cut(&u->taken, 0);
    u->at = 0;
    pthread_mutex_lock(&u->lock);
    while (!u->lines.n && !u->over &&
           pthread_cond_timedwait(&u->changed, &u->lock, &until) != ETIMEDOUT)
        ;
    str full = u->lines;
    u->lines = u->taken;
    u->taken = full;
    *over = u->over;
    pthread_mutex_unlock(&u->lock);
}

static int64_t read_lines(const feed *f, char *buf, size_t max)
{
    puller *u = (puller *)(size_t)f; /* its first member */
    bool over = false;
    while (u->at >= u->taken.n) {
        if (over)
            return 0;
        if (client_left(u->x->fd)) {
            u->x->note = "client gone";
            return -1;
        }
        take_lines(u, &over);
        if (u->taken.bad)
            return -1;
    }
    size_t n = u->taken.n - u->at;
    n = n < max ? n : max;
    memcpy(buf, u->taken.at + u->at, n);
    u->at += n;
    return (int64_t)n;
}

static void close_puller(const feed *f)
{
    puller *u = (puller *)(size_t)f;
    pthread_mutex_lock(&u->lock);
    u->stop = true;
    pthread_mutex_unlock(&u->lock);
    if (u->started)
        pthread_join(u->thread, NULL);
    pthread_cond_destroy(&u->changed);
    pthread_mutex_destroy(&u->lock);
    str_free(&u->lines);
    str_free(&u->taken);
    ollama_body_free(&u->b);
    mem_free(u);
}

static void stream_pull(exchange *x, ollama_body *b)
{
    problem p = {0};
    puller *u = mem_calloc(1, sizeof *u);
    if (u) {
        u->f = (feed){read_lines, close_puller};
        u->x = x;
        u->b = *b;
        *b = (ollama_body){0};
        pthread_mutex_init(&u->lock, NULL);
        clock_cond_init(&u->changed);
        u->started = !pthread_create(&u->thread, NULL, pull, u);
    }
    if (!u || !u->started) {
        problem_set(&p, 503, "", "no memory or no thread to pull a model");
        reply_problem(x, &p);
        if (u)
            close_puller(&u->f);
        return;
    }
    x->type = "application/x-ndjson";
    x->feed = &u->f;
    x->status = 200;
}

static bool go_on(void *user, const hub_progress *p)
{
    const exchange *x = user;
    (void)p;
    return !should_stop(x) && !client_left(x->fd);
}

static void pull_whole(exchange *x, const ollama_body *b)
{
    model_found found = {0};
    problem p = {0};
    err e = {0};
    const hub_ask ask = {.what = b->name, .progress = go_on, .user = x};
    if (hub_pull(&ask, &found, &e)) {
        problem_from(&p, &e);
        reply_problem(x, &p);
    } else {
        json_open(&x->out, NULL, '{');
        json_text(&x->out, "status", "success");
        json_close(&x->out, "}");
        x->status = 200;
        catalog_refresh(x->s->catalog);
    }
    model_found_free(&found);
}

void handle_ollama_pull(exchange *x)
{
    problem p = {0};
    ollama_body b = {0};
    bool stream = true;
    if (!ollama_may_change(x, &p) || !ollama_body_read(&b, x->body, x->n_body, &p) ||
        !field_bool(&p, b.body, "stream", &stream))
        reply_problem(x, &p);
    else if (stream)
        stream_pull(x, &b);
    else
        pull_whole(x, &b);
    ollama_body_free(&b);
}
