/* loader.c - the thread that loads and unloads models.
 *
 * It does one thing at a time, and without the catalog's lock: so requests for other models find
 * theirs, and the loop of passes goes on. An offer in one of the states "loading" and "unloading"
 * is the loader's alone.
 *
 * Room for a model: its plan is compared with the memory before its weights are read. While it does
 * not fit, or too many models are loaded, the least recently used one is unloaded. If all are at
 * work, that one takes no more requests until it is unloaded, so that a busy model cannot keep
 * others out for ever. A file that cannot be opened, or would not fit even alone, makes none leave.
 */
#include "apps/server/models/catalog_int.h"

#include "apps/jsonw.h"
#include "apps/server/models/events.h"
#include "apps/server/models/loras.h"
#include "base/clock.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

bool offer_file(const offer *o, file_mark *mark)
{
    struct stat sb;
    memset(mark, 0, sizeof *mark); /* padding, too: marks are compared as bytes */
    if (!o->path || stat(o->path, &sb))
        return false;
    mark->dev = sb.st_dev;
    mark->ino = sb.st_ino;
    mark->size = sb.st_size;
    mark->time = sb.st_mtim;
    return true;
}

double offer_until_ms(const offer *o)
{
    return o->state == OFFER_LOADED && o->keep_ms >= 0 ? o->used_ms + (double)o->keep_ms : 0;
}

static bool is_idle(const offer *o)
{
    return o->state == OFFER_LOADED && !o->n_refs && !o->n_waiting;
}

static bool draining(const catalog *c)
{
    return c->ending || atomic_load(&c->s->state) == SERVER_DRAINING;
}

/* Says in which state an offer is now. Under the lock. */
static void tell_state(const catalog *c, const offer *o)
{
    str data = {0};
    json_open(&data, NULL, '{');
    json_text(&data, "status", offer_state_name(o->state));
    if (o->state == OFFER_UNLOADED)
        json_int(&data, "exit_code", o->failure.status != OK);
    if (o->state == OFFER_UNLOADED && o->failure.status)
        json_text(&data, "message", o->failure.text);
    json_close(&data, "}");
    if (!data.bad)
        events_add(c->s->events, offer_shown_name(c, o), "model_status", data.at);
    str_free(&data);
}

/* ---- Unloading ---- */

static void unload(catalog *c, offer *o, const char *why)
{
    served *m = o->m;
    o->state = OFFER_UNLOADING;
    pthread_mutex_unlock(&c->lock);
    log_line(c->s, "unloading %s: %s", o->name, why);
    passes_remove(c->s, m);
    o->n_lora_scales = loras_scales(m, o->lora_scale);
    served_close(m);
    pthread_mutex_lock(&c->lock);
    o->m = NULL;
    o->leaving = false;
    o->state = OFFER_UNLOADED;
    tell_state(c, o);
    if (o->n_waiting || o->asked) {
        o->state = OFFER_QUEUED;
        o->ticket = ++c->last_ticket;
    }
    pthread_cond_broadcast(&c->changed);
}

/* One that may go now, or NULL. *until: when to look again. */
static offer *next_to_unload(catalog *c, double now, double *until)
{
    *until = INFINITY;
    for (offer *o = c->first; o; o = o->next) {
        double end = offer_until_ms(o);
        if (o->state == OFFER_LOADED && o->leaving && !o->n_refs)
            return o;
        if (!is_idle(o) || end <= 0)
            continue;
        if (now >= end)
            return o;
        *until = end < *until ? end : *until;
    }
    return NULL;
}

/* The least recently used model. With `idle`, only models without requests count. */
static offer *oldest(catalog *c, bool idle)
{
    offer *best = NULL;
    for (offer *o = c->first; o; o = o->next)
        if (o->state == OFFER_LOADED && (!idle || is_idle(o)) &&
            (!best || o->used_ms < best->used_ms))
            best = o;
    return best;
}

static void wait_until(catalog *c, double until_ms)
{
    enum { MOST_MS = 60000 };
    if (isinf(until_ms)) {
        pthread_cond_wait(&c->changed, &c->lock);
        return;
    }
    double ms = until_ms - clock_ms();
    ms = ms < 1 ? 1 : ms < MOST_MS ? ms : MOST_MS;
    const struct timespec at = clock_after_ms(ms);
    pthread_cond_timedwait(&c->changed, &c->lock, &at);
}

/* Waits until a loaded model has no requests, and returns it. NULL: no model is loaded, none became
 * idle in time, or all requests for `wants` have been cancelled. */
static offer *wait_for_idle(catalog *c, const offer *wants)
{
    enum { POLL_MS = 100 };
    double until = clock_ms() + 1000.0 * (double)c->s->o->load_wait_s;
    offer *o, *leaving = NULL;
    while (!(o = oldest(c, true))) {
        double now = clock_ms();
        if (leaving && !leaving->n_refs) /* those who wait for it get it again later */
            return leaving;
        if (!(wants->n_waiting || wants->asked) || wants->stop || now >= until || draining(c))
            break;
        if (!leaving && !(leaving = oldest(c, false)))
            break;
        leaving->leaving = true;
        wait_until(c, now + POLL_MS);
    }
    if (leaving && o != leaving) {
        leaving->leaving = false;
        pthread_cond_broadcast(&c->changed);
    }
    return o;
}

/* Unloads one model for `wants`. */
static bool make_room(catalog *c, const offer *wants)
{
    char why[200];
    offer *o = wait_for_idle(c, wants);
    snprintf(why, sizeof why, "its memory is for %.150s", wants->name);
    if (o)
        unload(c, o, why);
    return o != NULL;
}

/* ---- Loading ---- */

typedef struct loading {
    catalog *c;
    offer *o;
} loading;

static bool go_on_loading(void *user)
{
    const loading *l = user;
    pthread_mutex_lock(&l->c->lock);
    bool stop = l->o->stop;
    pthread_mutex_unlock(&l->c->lock);
    return !stop && atomic_load(&l->c->s->state) != SERVER_DRAINING;
}

static int64_t most_loaded(const catalog *c)
{
    int64_t most = c->s->o->max_loaded;
    return most && most < PASSES_MAX ? most : PASSES_MAX;
}

static uint64_t gpu_bytes(const carat_memory_plan *p)
{
    uint64_t n = 0;
    for (int32_t i = 0; i < p->n_devices; i++)
        if (strncmp(p->device[i].device, "cpu", 3) != 0)
            n += p->device[i].total_bytes;
    return n;
}

/* Compares the plan of a model with the memory that the others leave. A model that would go to the
 * CPU only because others fill the GPU wants their place first. */
static status check_room(void *user, const served *m, const carat_memory_plan *p, err *e)
{
    loading *l = user;
    catalog *c = l->c;
    const serve_options *opt = c->s->o;
    uint64_t taken = 0, needed = p->total_bytes - (opt->memory_mb ? 0 : gpu_bytes(p));
    const char *device = device_lists_gpus(&opt->where) ? opt->where.gpus : opt->where.device;
    bool gpu_taken = false, any_device = !device || !strcmp(device, "auto");
    bool alone = true;
    int32_t n_loaded = 0;
    pthread_mutex_lock(&c->lock);
    for (const offer *o = c->first; o; o = o->next)
        if (o != l->o && o->state == OFFER_LOADED) {
            taken += o->known.total_bytes - (opt->memory_mb ? 0 : o->known.gpu_bytes);
            gpu_taken |= o->known.gpu_bytes > 0;
            alone = false;
            n_loaded++;
        }
    pthread_mutex_unlock(&c->lock);
    l->o->no_room = n_loaded >= most_loaded(c);
    if (l->o->no_room)
        return err_set(e, E_MEMORY, "%d models are loaded, as many as may be, and at work",
                       (int)n_loaded);
    if (opt->overcommit)
        return OK;
    status st = carat_plan_check(m->model, p, e);
    if (!st && c->memory_bytes && (!alone || opt->memory_mb) && taken + needed > c->memory_bytes)
        st = err_set(e, E_MEMORY,
                     "it needs %.2f GiB with %d slots of %d tokens, and of the %.2f GiB for models "
                     "%.2f are free",
                     (double)needed * 0x1p-30, (int)opt->parallel, p->n_ctx,
                     (double)c->memory_bytes * 0x1p-30,
                     taken < c->memory_bytes ? (double)(c->memory_bytes - taken) * 0x1p-30 : 0);
    /* It would go to the CPU, or give up more than context, because others are on the GPU. */
    bool squeezed = !m->info.on_gpu || m->info.fit > CARAT_FIT_CONTEXT;
    l->o->wants_gpu = !st && any_device && gpu_taken && squeezed && !l->o->no_gpu;
    if (l->o->wants_gpu)
        st = err_set(e, E_MEMORY, "other models are on the GPU");
    bool never = opt->memory_mb ? needed > c->memory_bytes
                                : !gpu_bytes(p) && p->total_bytes > p->available_bytes + taken;
    l->o->no_room = st == E_MEMORY && !never;
    return st;
}

static void describe(offer *o, const served *m)
{
    offer_view *v = &o->known;
    const carat_model_info *i = &m->info;
    if (!v->known) { /* names of a file do not change while others read them */
        snprintf(v->title, sizeof v->title, "%s", i->name);
        snprintf(v->architecture, sizeof v->architecture, "%s", i->architecture);
        snprintf(v->file_type, sizeof v->file_type, "%s", i->file_type);
    }
    v->known = true;
    v->images = m->limits.images;
    v->sounds = m->limits.sounds;
    v->n_ctx = m->n_ctx;
    v->n_ctx_train = i->n_ctx_train;
    v->n_vocab = i->n_vocab;
    v->n_embd = i->n_embd;
    v->n_params = i->n_params;
    v->weight_bytes = i->weight_bytes;
    v->total_bytes = m->total.total_bytes;
    v->gpu_bytes = gpu_bytes(&m->total);
}

/* NULL: the file's own. */
static const char *offer_title(const catalog *c, const offer *o)
{
    return !offer_leads(c, o) || (o->made && !c->s->o->alias) ? o->name : c->s->o->alias;
}

/* Reads the file while others use theirs. */
static status open_model(catalog *c, offer *o, served **m, err *e)
{
    loading l = {c, o};
    const served_ask ask = {.path = o->path,
                            .name = offer_title(c, o),
                            .n_ctx = o->n_ctx,
                            .loras = &o->loras,
                            .room = check_room,
                            .go_on = go_on_loading,
                            .user = &l};
    *e = (err){0};
    o->no_room = false;
    pthread_mutex_unlock(&c->lock);
    offer_file(o, &o->file);
    status st = served_open(m, c->s, &ask, e);
    pthread_mutex_lock(&c->lock);
    return st;
}

static status make_and_load(catalog *c, offer *o, served **m, err *e)
{
    o->no_gpu = false;
    for (;;) {
        status st = open_model(c, o, m, e);
        if (st != E_MEMORY || !o->no_room)
            return st;
        if (make_room(c, o))
            continue;
        if (!o->wants_gpu)
            return st;
        o->no_gpu = true; /* the others stay: then the CPU */
    }
}

void offer_fail(catalog *c, offer *o, const err *e)
{
    o->failure = *e;
    o->failed_ms = clock_ms();
    o->n_failed++;
    o->asked = false;
    o->state = OFFER_UNLOADED;
    tell_state(c, o);
    pthread_cond_broadcast(&c->changed);
}

static void load(catalog *c, offer *o)
{
    served *m = NULL;
    err e = {0};
    o->state = OFFER_LOADING;
    o->stop = false;
    tell_state(c, o);
    if (!offer_leads(c, o))
        log_line(c->s, "loading %s", o->name);
    o->loras.alone = false;
    status st = make_and_load(c, o, &m, &e);
    if (st && st != E_CANCELLED && o->loras.more && !o->stop && !draining(c)) {
        /* A new adapter may be one that cannot be loaded. Clients without it still get the model.
         */
        log_line(c->s, "%s is loaded without the adapters that were made since: %s", o->name,
                 e.text);
        o->loras.alone = true;
        st = make_and_load(c, o, &m, &e);
    }
    if (!st) {
        m->offer = o;
        loras_remember(m, &o->loras);
        loras_set_again(m, o->lora_scale, o->n_lora_scales);
        describe(o, m);
        if (!passes_add(c->s, m))
            st = err_set(&e, E_CANCELLED, "the server is shutting down");
    }
    if (st && o->stop) {
        e = (err){0};
        st = err_set(&e, E_CANCELLED, LOADING_STOPPED);
    }
    if (st == E_MEMORY && o->no_room && !o->n_waiting && !o->asked) {
        /* Those who waited for room have left: no failure that the next client should hear of. */
        log_line(c->s, "%s is not loaded: nobody waits for it any more", o->name);
        o->state = OFFER_UNLOADED;
        tell_state(c, o);
        pthread_cond_broadcast(&c->changed);
    } else if (st) {
        served_close(m);
        if (!offer_leads(c, o))
            log_line(c->s, "%s could not be loaded: %s", o->name, e.text);
        e.status = st;
        offer_fail(c, o, &e);
    } else {
        o->m = m;
        o->failure = (err){0};
        o->asked = false;
        o->keep_ms = offer_keep_ms(c, o);
        o->used_ms = clock_ms();
        o->state = OFFER_LOADED;
        log_line(c->s, "ready: %s, %d slots of %d tokens, prompts in chunks of %d", m->names.name,
                 m->n_slots, m->n_ctx, m->plan.chunk);
        tell_state(c, o);
        pthread_cond_broadcast(&c->changed);
    }
}

/* The model that is loaded next. A queued model without requests leaves the queue. */
static offer *next_in_line(catalog *c)
{
    offer *best = NULL;
    for (offer *o = c->first; o; o = o->next) {
        if (o->state == OFFER_QUEUED && !o->n_waiting && !o->asked)
            o->state = OFFER_UNLOADED;
        if (o->state == OFFER_QUEUED && (!best || o->ticket < best->ticket))
            best = o;
    }
    return best;
}

void *loader_run(void *arg)
{
    catalog *c = arg;
    offer *o;
    double until;
    pthread_mutex_lock(&c->lock);
    while (!c->ending) {
        if ((o = next_to_unload(c, clock_ms(), &until)))
            unload(c, o, o->leaving ? "asked to" : "idle");
        else if ((o = next_in_line(c)))
            load(c, o);
        else
            wait_until(c, until);
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}
