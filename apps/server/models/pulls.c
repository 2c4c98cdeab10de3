/* pulls.c - see pulls.h. */
#include "apps/server/models/pulls.h"

#include "apps/hub/hub.h"
#include "apps/server/answers/live.h"
#include "apps/jsonw.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/show.h"

#include <string.h>
#include <strings.h>

enum {
    PULLS_MAX = 4,              /* at work */
    FAILED_MAX = 16,            /* kept for clients that look later, */
    FAILED_MS = 10 * 60 * 1000, /* so long */
    TOLD_EVERY_MS = 250,        /* events of one pull */
    POLL_MS = 200
};

typedef struct server_pull {
    struct server_pull *next;
    pulls *d;
    pthread_t thread;
    /* Under the lock of d. */
    pull_view v;
    bool listed, over, stop;
    err failure;
    double told_ms, over_ms;
} server_pull;

struct pulls {
    server *s;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    server_pull *first;
    int32_t n_waiting; /* threads that wait for one, which keeps it */
    bool ending;
};

status pulls_open(pulls **out, server *s, err *e)
{
    pulls *d = *out = mem_calloc(1, sizeof *d);
    if (!d)
        return err_memory(e, "pulls", sizeof *d);
    d->s = s;
    pthread_mutex_init(&d->lock, NULL);
    clock_cond_init(&d->changed);
    return OK;
}

/* Takes a pull that is over off the list. Under the lock. */
static void drop(server_pull **at)
{
    server_pull *u = *at;
    *at = u->next;
    pthread_join(u->thread, NULL); /* it has left the lock for the last time */
    mem_free(u);
}

static server_pull **find(pulls *d, const char *name)
{
    server_pull **at = &d->first;
    while (*at && strcasecmp((*at)->v.name, name) != 0)
        at = &(*at)->next;
    return at;
}

/* Takes what is over off the list: pulls that succeeded at once, others after a while. */
static void sweep(pulls *d)
{
    double now = clock_ms();
    int32_t n_failed = 0;
    if (d->n_waiting)
        return;
    for (server_pull **at = &d->first; *at;) {
        server_pull *u = *at;
        n_failed += u->over && u->v.failed;
        if (u->over && (!u->v.failed || now - u->over_ms > FAILED_MS || n_failed > FAILED_MAX))
            drop(at);
        else
            at = &u->next;
    }
}

/* ---- The thread that pulls ---- */

static void put_bytes(str *o, const char *key, uint64_t done, uint64_t total)
{
    json_open(o, key, '{');
    json_int(o, "done", (int64_t)done);
    json_int(o, "total", (int64_t)total);
    json_close(o, "}");
}

static void tell_progress(const server_pull *u)
{
    str data = {0};
    json_open(&data, NULL, '{');
    json_open(&data, "progress", '{');
    put_bytes(&data, u->v.file, u->v.done, u->v.total);
    json_close(&data, "}");
    put_bytes(&data, "all", u->v.all_done, u->v.all);
    json_close(&data, "}");
    if (!data.bad)
        events_add(u->d->s->events, u->v.name, "download_progress", data.at);
    str_free(&data);
}

static bool take_progress(void *user, const hub_progress *p)
{
    server_pull *u = user;
    pull_view *v = &u->v;
    pthread_mutex_lock(&u->d->lock);
    double now = clock_ms();
    show_into(v->file, sizeof v->file, p->file);
    show_into(v->text, sizeof v->text, p->note);
    v->done = p->done;
    v->total = p->total;
    v->all_done = p->all_done;
    v->all = p->all_total;
    v->checking = p->phase == HUB_CHECKING;
    if (p->phase != HUB_LISTING && !u->listed) {
        u->listed = true;
        pthread_cond_broadcast(&u->d->changed);
    }
    if (*v->file && now - u->told_ms >= TOLD_EVERY_MS) {
        u->told_ms = now;
        tell_progress(u);
    }
    bool go_on = !u->stop && atomic_load(&u->d->s->state) != SERVER_DRAINING;
    pthread_mutex_unlock(&u->d->lock);
    return go_on;
}

static void tell_end(server_pull *u, status st, const model_found *found, const err *e)
{
    str data = {0};
    json_open(&data, NULL, '{');
    json_text(&data, st ? "message" : "name", st ? u->v.text : found->name);
    json_close(&data, "}");
    log_line(u->d->s, st ? "pulling %s failed: %s" : "pulled %s%s", u->v.name, st ? e->text : "");
    if (!data.bad)
        events_add(u->d->s->events, u->v.name, st ? "download_failed" : "download_finished",
                   data.at);
    str_free(&data);
}

static void *pull(void *arg)
{
    server_pull *u = arg;
    model_found found = {0};
    err e = {0};
    const hub_ask ask = {.what = u->v.name, .progress = take_progress, .user = u};
    status st = hub_pull(&ask, &found, &e);
    catalog_refresh(u->d->s->catalog);
    pthread_mutex_lock(&u->d->lock);
    u->v.failed = st != OK && !u->stop;
    u->failure = e;
    show_into(u->v.text, sizeof u->v.text, u->stop ? "stopped" : e.text);
    u->over_ms = clock_ms();
    tell_end(u, st, &found, &e);
    u->over = true;
    pthread_cond_broadcast(&u->d->changed);
    pthread_mutex_unlock(&u->d->lock);
    model_found_free(&found);
    return NULL;
}

/* ---- Those who ask ---- */

static server_pull *start(pulls *d, const char *name, problem *p)
{
    int32_t n = 0;
    for (const server_pull *u = d->first; u; u = u->next)
        n += !u->over;
    if (n >= PULLS_MAX) {
        p->retry_s = 30;
        problem_set(p, 429, "model", "%d models are being pulled, as many as may be", (int)n);
        return NULL;
    }
    server_pull *u = mem_calloc(1, sizeof *u);
    if (!u) {
        problem_set(p, 503, "", "no memory for a request");
        return NULL;
    }
    u->d = d;
    memcpy(u->v.name, name, strlen(name) + 1);
    if (pthread_create(&u->thread, NULL, pull, u)) {
        mem_free(u);
        problem_set(p, 503, "", "no thread to pull a model");
        return NULL;
    }
    u->next = d->first;
    d->first = u;
    return u;
}

static void wait_for_news(pulls *d)
{
    const struct timespec until = clock_after_ms(POLL_MS);
    pthread_cond_timedwait(&d->changed, &d->lock, &until);
}

bool pulls_begin(pulls *d, const char *name, const exchange *x, problem *p)
{
    if (strlen(name) >= sizeof((pull_view *)0)->name)
        return problem_set(p, 400, "model", "'model' is longer than the name of a model");
    pthread_mutex_lock(&d->lock);
    d->n_waiting++;
    server_pull *u = *find(d, name);
    while (u && u->stop && !u->over)
        wait_for_news(d);
    if (u && u->over)
        u->v.failed = false; /* sweep takes it off */
    if (d->ending)
        problem_set(p, 503, "", "the server is shutting down");
    else if (!u || u->over)
        u = start(d, name, p);
    while (!p->status && !u->listed && !u->over) {
        wait_for_news(d);
        if (client_left(x->fd))
            problem_set(p, 503, "", "the client left");
    }
    if (!p->status && u->over && u->failure.status && !u->stop) {
        problem_from(p, &u->failure);
        u->v.failed = false; /* told */
    }
    d->n_waiting--;
    sweep(d);
    pthread_mutex_unlock(&d->lock);
    return !p->status;
}

bool pulls_end(pulls *d, const char *name, bool *failed)
{
    pthread_mutex_lock(&d->lock);
    server_pull *u = *find(d, name);
    bool works = u && !u->over;
    *failed = u && u->over && u->v.failed;
    d->n_waiting++;
    if (u)
        u->stop = true;
    while (u && !u->over)
        wait_for_news(d);
    if (u)
        u->v.failed = false; /* sweep takes it off */
    d->n_waiting--;
    sweep(d);
    pthread_mutex_unlock(&d->lock);
    return works;
}

pull_view *pulls_list(pulls *d, int32_t *n)
{
    int32_t cap = 0;
    *n = 0;
    pthread_mutex_lock(&d->lock);
    sweep(d);
    for (const server_pull *u = d->first; u; u = u->next)
        cap++;
    pull_view *list = mem_calloc((size_t)cap + 1, sizeof *list);
    for (const server_pull *u = d->first; u && list; u = u->next)
        if (!u->over || u->v.failed)
            list[(*n)++] = u->v;
    pthread_mutex_unlock(&d->lock);
    return list;
}

/* ---- The end ---- */

void pulls_stop(pulls *d)
{
    if (!d)
        return;
    pthread_mutex_lock(&d->lock);
    d->ending = true;
    for (server_pull *u = d->first; u; u = u->next)
        u->stop = true;
    while (d->first) {
        server_pull **at = &d->first;
        while (*at && !(*at)->over)
            at = &(*at)->next;
        if (*at && !d->n_waiting)
            drop(at);
        else
            wait_for_news(d);
    }
    pthread_mutex_unlock(&d->lock);
}

void pulls_close(pulls *d)
{
    if (!d)
        return;
    pthread_cond_destroy(&d->changed);
    pthread_mutex_destroy(&d->lock);
    mem_free(d);
}
