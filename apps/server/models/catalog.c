/* catalog.c - see catalog.h: picking, waiting, giving back, and what there is. */
#include "apps/server/models/catalog_int.h"

#include "apps/server/http/exchange.h"
#include "apps/server/answers/live.h"
#include "base/clock.h"
#include "base/mem.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    POLL_MS = 100,         /* between looks whether a waiting client is still there */
    RETRY_MS = 5000,       /* after a failure requests get its sentence, not another try */
    RETRY_MEMORY_MS = 1000 /* the same where memory was lacking, which may be free soon */
};

/* ---- Opening ---- */

status catalog_open(catalog **out, server *s, err *e)
{
    const serve_options *o = s->o;
    catalog *c = mem_calloc(1, sizeof *c);
    status st;
    *out = NULL;
    if (!c)
        return err_memory(e, "the models", sizeof *c);
    c->s = s;
    pthread_mutex_init(&c->lock, NULL);
    clock_cond_init(&c->changed);
    if ((st = offers_read(c, e)))
        goto out;
    c->single = c->n == 1 && !c->moving;
    c->leads |= c->single;
    c->keep_ms = KEEP_ALIVE_MS;
    c->lead_keep_ms = KEEP_FOREVER;
    if (o->keep_alive && !keep_alive_parse(o->keep_alive, &c->keep_ms)) {
        st = err_set(e, E_ARG,
                     "--keep-alive: '%.40s' is no duration: 300ms, 5m, 1h30m, 0, -1 (for ever)",
                     o->keep_alive);
        goto out;
    }
    if (o->keep_alive)
        c->lead_keep_ms = c->keep_ms;
    if (o->alias && !c->leads) {
        st = err_set(e, E_ARG, "--alias names one model, and there are several: NAME=FILE");
        goto out;
    }
    c->memory_bytes = o->memory_mb ? (uint64_t)o->memory_mb << 20
                      : c->single  ? 0
                                   : mem_available_bytes();
    *out = c;
    return OK;
out:
    catalog_close(c);
    return st;
}

status catalog_start(catalog *c, err *e)
{
    if (pthread_create(&c->thread, NULL, loader_run, c))
        return err_set(e, E_MEMORY, "cannot start a thread");
    c->started = true;
    return OK;
}

void catalog_stop(catalog *c)
{
    if (!c)
        return;
    pthread_mutex_lock(&c->lock);
    c->ending = true;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
    if (c->started)
        pthread_join(c->thread, NULL);
    c->started = false;
}

void catalog_close(catalog *c)
{
    if (!c)
        return;
    catalog_stop(c);
    offers_free(c);
    pthread_cond_destroy(&c->changed);
    pthread_mutex_destroy(&c->lock);
    mem_free(c);
}

/* ---- Waiting ---- */

static bool draining(const catalog *c)
{
    return c->ending || atomic_load(&c->s->state) == SERVER_DRAINING;
}

static void wait_ms(catalog *c, int ms)
{
    const struct timespec until = clock_after_ms(ms);
    pthread_cond_timedwait(&c->changed, &c->lock, &until);
}

static void get_in_line(catalog *c, offer *o)
{
    if (o->state != OFFER_UNLOADED)
        return;
    o->state = OFFER_QUEUED;
    o->ticket = ++c->last_ticket;
    pthread_cond_broadcast(&c->changed);
}

static pick_state take(offer *o, exchange *x)
{
    o->n_refs++;
    o->used_ms = clock_ms();
    x->m = o->m;
    return PICK_DONE;
}

static void start_waiting(catalog *c, offer *o, exchange *x)
{
    x->waits = true;
    x->n_failed = o->n_failed;
    o->n_waiting++;
    c->n_waiting++;
    get_in_line(c, o);
}

static void stop_waiting(catalog *c, exchange *x)
{
    if (!x->waits)
        return;
    x->waits = false;
    x->wanted->n_waiting--;
    c->n_waiting--;
}

static pick_state refuse_draining(problem *p)
{
    problem_set(p, 503, "", "the server is shutting down");
    p->retry_s = 5;
    return PICK_FAILED;
}

static pick_state refuse_failed(const offer *o, double now, problem *p)
{
    bool memory = o->failure.status == E_MEMORY;
    double left = o->failed_ms + (memory ? RETRY_MEMORY_MS : RETRY_MS) - now;
    p->code = memory ? "model_no_memory" : "model_not_loaded";
    problem_set(p, memory || o->failure.status == E_CANCELLED ? 503 : 500, "model",
                "the model \"%.100s\" could not be loaded: %.800s", o->name, o->failure.text);
    p->retry_s = left > 0 ? (int)(left / 1000) + 1 : 1;
    return PICK_FAILED;
}

/* A server with one model keeps it, whatever happens to the file. */
static bool file_changed(const catalog *c, const offer *o)
{
    file_mark now;
    return !c->single && o->path && offer_file(o, &now) && memcmp(&now, &o->file, sizeof now) != 0;
}

/* A failure is repeated for a while, unless the file is another one since. */
static bool failed_lately(const catalog *c, const offer *o, double now)
{
    if (!o->failure.status || o->failure.status == E_CANCELLED)
        return false;
    bool memory = o->failure.status == E_MEMORY;
    return now < o->failed_ms + (memory ? RETRY_MEMORY_MS : RETRY_MS) && !file_changed(c, o);
}

static pick_state begin(catalog *c, offer *o, exchange *x, problem *p)
{
    double now = clock_ms();
    x->wanted = o;
    if (draining(c))
        return refuse_draining(p);
    if (o->state == OFFER_LOADED && !o->leaving) {
        if (!file_changed(c, o))
            return take(o, x);
        o->leaving = true; /* the new file is loaded once the old one is not in use */
        pthread_cond_broadcast(&c->changed);
    }
    if (failed_lately(c, o, now))
        return refuse_failed(o, now, p);
    if (x->no_load) {
        p->code = "model_not_loaded";
        problem_set(p, 400, "model", "the model \"%.100s\" is not loaded", o->name);
        return PICK_FAILED;
    }
    if (c->n_waiting >= c->s->o->queue) {
        atomic_fetch_add(&c->s->m.refused_full, 1);
        problem_set(p, 429, "", "%d requests wait for models already: try again soon",
                    (int)c->n_waiting);
        p->retry_s = 2;
        return PICK_FAILED;
    }
    start_waiting(c, o, x);
    return PICK_WAITS;
}

pick_state catalog_pick(catalog *c, const char *name, exchange *x, problem *p)
{
    pthread_mutex_lock(&c->lock);
    offer *(*find)(catalog *, const char *) = x->exact ? offers_find_own : offers_find;
    offer *o = find(c, name ? name : "");
    if (!o && x->exact && c->moving) {
        pthread_mutex_unlock(&c->lock);
        offers_refresh(c);
        pthread_mutex_lock(&c->lock);
        o = find(c, name);
    }
    pick_state st = PICK_FAILED;
    if (o)
        st = begin(c, o, x, p);
    else
        offers_missing(c, name ? name : "", p);
    pthread_mutex_unlock(&c->lock);
    return st;
}

static pick_state go_on(catalog *c, exchange *x, problem *p)
{
    offer *o = x->wanted;
    if (draining(c))
        return refuse_draining(p);
    if (o->state == OFFER_LOADED && !o->leaving)
        return take(o, x);
    if (o->n_failed != x->n_failed)
        return refuse_failed(o, clock_ms(), p);
    get_in_line(c, o);
    return PICK_WAITS;
}

pick_state catalog_wait(catalog *c, exchange *x, int timeout_ms, problem *p)
{
    double until = timeout_ms < 0 ? INFINITY : clock_ms() + timeout_ms;
    pthread_mutex_lock(&c->lock);
    pick_state st;
    while ((st = go_on(c, x, p)) == PICK_WAITS) {
        double left = until - clock_ms();
        if (left <= 0)
            break;
        wait_ms(c, left < POLL_MS ? (int)left + 1 : POLL_MS);
        if (client_left(x->fd)) {
            problem_set(p, 503, "", "the client left");
            st = PICK_FAILED;
            break;
        }
    }
    if (st != PICK_WAITS)
        stop_waiting(c, x);
    pthread_mutex_unlock(&c->lock);
    return st;
}

void catalog_again(catalog *c, exchange *x)
{
    offer *o = x->wanted;
    pthread_mutex_lock(&c->lock);
    o->n_refs--; /* as x held it, it is the one that is loaded */
    o->leaving = true;
    x->m = NULL;
    start_waiting(c, o, x);
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
}

void catalog_release(catalog *c, exchange *x)
{
    offer *o = x->wanted;
    if (!o)
        return;
    pthread_mutex_lock(&c->lock);
    stop_waiting(c, x);
    if (x->m) {
        o->n_refs--;
        o->used_ms = clock_ms();
        o->keep_ms = x->keep_ms == KEEP_DEFAULT ? offer_keep_ms(c, o) : x->keep_ms;
    }
    if (!o->n_refs)
        pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
    x->m = NULL;
    x->wanted = NULL;
}

status catalog_load_first(catalog *c, err *e)
{
    offer *o = c->first;
    pthread_mutex_lock(&c->lock);
    o->asked = true;
    get_in_line(c, o);
    while (o->state != OFFER_LOADED && !o->n_failed)
        pthread_cond_wait(&c->changed, &c->lock);
    status st = o->n_failed ? err_set(e, o->failure.status, "%s", o->failure.text) : OK;
    pthread_mutex_unlock(&c->lock);
    return st;
}

/* ---- The operator ---- */

/* A server of several models unloads none by another's name. Under the lock. */
static offer *named(catalog *c, const char *name, problem *p)
{
    offer *o = c->single ? offers_find(c, name) : offers_find_known(c, name);
    if (!o)
        offers_missing(c, name, p);
    return o;
}

bool catalog_load(catalog *c, const char *name, problem *p)
{
    offers_refresh(c);
    pthread_mutex_lock(&c->lock);
    offer *o = named(c, name, p);
    if (o && failed_lately(c, o, clock_ms()))
        refuse_failed(o, clock_ms(), p);
    if (o && !p->status && (o->state != OFFER_LOADED || o->leaving)) {
        o->asked = true;
        get_in_line(c, o);
    }
    pthread_mutex_unlock(&c->lock);
    return !p->status;
}

bool catalog_unload(catalog *c, const char *name, problem *p)
{
    pthread_mutex_lock(&c->lock);
    offer *o = named(c, name, p);
    if (o)
        o->asked = false;
    if (o && o->state == OFFER_QUEUED) {
        err e = {0};
        err_set(&e, E_CANCELLED, LOADING_STOPPED);
        offer_fail(c, o, &e);
    }
    if (o && o->state == OFFER_LOADING) {
        o->stop = true;
        pthread_cond_broadcast(&c->changed);
    }
    if (o && o->state == OFFER_LOADED) {
        o->leaving = true;
        pthread_cond_broadcast(&c->changed);
    }
    pthread_mutex_unlock(&c->lock);
    return !p->status;
}

void catalog_refresh(catalog *c)
{
    pthread_mutex_lock(&c->lock);
    c->looked_ms = -INFINITY;
    pthread_mutex_unlock(&c->lock);
}

/* ---- What there is ---- */

const char *offer_source_name(offer_source s)
{
    static const char *const names[] = {
        [OFFER_BUNDLED] = "bundled", [OFFER_NAMED] = "preset", [OFFER_DIRECTORY] = "models_dir",
        [OFFER_STORED] = "cache",    [OFFER_CACHED] = "cache", [OFFER_MADE] = "preset",
        [OFFER_ADAPTER] = "preset"};
    return names[s];
}

const char *offer_state_name(offer_state s)
{
    static const char *const names[] = {[OFFER_UNLOADED] = "unloaded",
                                        [OFFER_QUEUED] = "loading",
                                        [OFFER_LOADING] = "loading",
                                        [OFFER_LOADED] = "loaded",
                                        [OFFER_UNLOADING] = "unloaded"};
    return names[s];
}

bool catalog_leads(const catalog *c)
{
    return c->leads;
}

bool catalog_offers_all(const catalog *c)
{
    return c->store;
}

bool catalog_leader(const catalog *c, const served *m)
{
    return offer_leads(c, m->offer);
}

bool offer_leads(const catalog *c, const offer *o)
{
    return c->leads && o == c->first;
}

int64_t offer_keep_ms(const catalog *c, const offer *o)
{
    return offer_leads(c, o) ? c->lead_keep_ms : c->keep_ms;
}

const char *offer_shown_name(const catalog *c, const offer *o)
{
    const char *alias = c->s->o->alias;
    if (!offer_leads(c, o) || (o->made && !alias))
        return o->name;
    return alias ? alias : o->known.known ? o->known.title : o->name;
}

static offer_view view_of(const catalog *c, const offer *o)
{
    offer_view v = o->known;
    file_mark file;
    v.name = offer_shown_name(c, o);
    v.path = o->path;
    v.state = o->state;
    v.source = o->made ? OFFER_MADE : o->source;
    v.used_ms = o->used_ms;
    v.until_ms = offer_until_ms(o);
    v.failure = o->failure.status && o->failure.status != E_CANCELLED ? o->failure.text : "";
    v.n_waiting = o->n_waiting;
    if (o->state != OFFER_LOADED)
        v.total_bytes = v.gpu_bytes = 0;
    if (o->path && offer_file(o, &file)) {
        v.file_bytes = (uint64_t)file.size;
        v.file_s = file.time.tv_sec;
    }
    return v;
}

offer_view *catalog_list(catalog *c, int32_t *n)
{
    offers_refresh(c);
    pthread_mutex_lock(&c->lock);
    offer_view *list = mem_calloc((size_t)c->n + 1, sizeof *list);
    *n = 0;
    for (const offer *o = c->first; o && list; o = o->next)
        if (!o->gone || o->state != OFFER_UNLOADED)
            list[(*n)++] = view_of(c, o);
    pthread_mutex_unlock(&c->lock);
    return list;
}

const char *catalog_own_name(catalog *c, const char *name)
{
    pthread_mutex_lock(&c->lock);
    const offer *o = offers_find_own(c, name);
    const char *shown = o ? offer_shown_name(c, o) : NULL;
    pthread_mutex_unlock(&c->lock);
    return shown;
}

const char *catalog_meant(catalog *c, const char *name)
{
    pthread_mutex_lock(&c->lock);
    const offer *o = offers_find(c, name);
    const char *shown = o ? offer_shown_name(c, o) : NULL;
    pthread_mutex_unlock(&c->lock);
    return shown;
}

const char *catalog_made(catalog *c, const char *name)
{
    pthread_mutex_lock(&c->lock);
    const offer *o = offers_find(c, name);
    const char *made = o && o->made ? o->name : NULL;
    pthread_mutex_unlock(&c->lock);
    return made;
}

int32_t catalog_hold(catalog *c, served *list[PASSES_MAX])
{
    int32_t n = 0;
    pthread_mutex_lock(&c->lock);
    for (offer *o = c->first; o && n < PASSES_MAX; o = o->next)
        if (o->state == OFFER_LOADED && o->m) {
            o->n_refs++;
            list[n++] = o->m;
        }
    pthread_mutex_unlock(&c->lock);
    return n;
}

void catalog_drop(catalog *c, served *const *list, int32_t n)
{
    pthread_mutex_lock(&c->lock);
    for (int32_t i = 0; i < n; i++)
        list[i]->offer->n_refs--;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
}

const char *catalog_name(const served *m)
{
    return m->offer->name;
}
