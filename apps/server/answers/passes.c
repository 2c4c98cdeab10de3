/* passes.c - see passes.h. */
#include "apps/server/answers/passes.h"

#include "apps/server/answers/live.h"
#include "apps/server/models/served.h"
#include "base/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    POLL_MS = 1000,     /* between looks at the errors of conversation files */
    DRAINING_MS = 20,   /* between looks at a draining server without work */
    SLEEP_MAX_MS = 1000 /* of a server without work and watchdog */
};

void passes_init(passes *p)
{
    pthread_mutex_init(&p->lock, NULL);
    clock_cond_init(&p->work);
    clock_cond_init(&p->gone);
}

void passes_free(passes *p)
{
    pthread_cond_destroy(&p->work);
    pthread_cond_destroy(&p->gone);
    pthread_mutex_destroy(&p->lock);
}

void passes_wake(server *s)
{
    passes *p = &s->passes;
    pthread_mutex_lock(&p->lock);
    p->woken = true;
    pthread_mutex_unlock(&p->lock);
    pthread_cond_signal(&p->work);
}

bool passes_add(server *s, served *m)
{
    passes *p = &s->passes;
    pthread_mutex_lock(&p->lock);
    bool room = !p->ended && p->n < PASSES_MAX;
    if (room)
        p->at[p->n++] = m;
    pthread_mutex_unlock(&p->lock);
    return room;
}

static int32_t index_of(const passes *p, const served *m)
{
    int32_t i = 0;
    while (i < p->n && p->at[i] != m)
        i++;
    return i;
}

void passes_remove(server *s, served *m)
{
    passes *p = &s->passes;
    atomic_store(&m->leaving, true);
    passes_wake(s);
    pthread_mutex_lock(&p->lock);
    while (index_of(p, m) < p->n)
        pthread_cond_wait(&p->gone, &p->lock);
    pthread_mutex_unlock(&p->lock);
}

/* Halts the batch, then forgets it. */
static void forget(server *s, served *m)
{
    passes *p = &s->passes;
    served_halt(m);
    pthread_mutex_lock(&p->lock);
    int32_t i = index_of(p, m);
    if (i < p->n) {
        memmove(&p->at[i], &p->at[i + 1], (size_t)(p->n - i - 1) * sizeof *p->at);
        p->n--;
    }
    pthread_mutex_unlock(&p->lock);
    pthread_cond_broadcast(&p->gone);
}

/* Half of the watchdog's interval, as systemd recommends; 0: no watchdog. */
static int watchdog_ms(void)
{
    const char *us = getenv("WATCHDOG_USEC");
    long long v = us ? atoll(us) : 0;
    return v > 0 ? (int)(v / 2000 > 60000 ? 60000 : v / 2000) : 0;
}

/* Errors of conversation files change no answer, so only the log shows them: a line for each new
 * sentence. */
static void tell_cache_errors(served *m)
{
    carat_batch_info info;
    carat_batch_get_info(m->batch, &info, NULL, 0);
    if (!info.cache.last_error[0] || !strcmp(info.cache.last_error, m->told))
        return;
    snprintf(m->told, sizeof m->told, "%s", info.cache.last_error);
    log_line(m->s, "kept conversations: %s", m->told);
}

/* A line when the first conversation leaves the pool of keys, and one when all are back. */
static void tell_pool(served *m)
{
    carat_batch_info info;
    if (!m->s->o->kv_pool)
        return;
    carat_batch_get_info(m->batch, &info, NULL, 0);
    bool out = info.n_paged_out > 0;
    if (out && !m->pool_full)
        log_line(m->s,
                 "pool of keys: full with %d of %d slots at work; later requests wait in host "
                 "memory and in the queue (%d)",
                 info.n_busy, info.n_slots, info.n_queued);
    else if (!out && m->pool_full)
        log_line(m->s, "pool of keys: all conversations are back; one had to leave %llu times",
                 (unsigned long long)info.n_preempted);
    m->pool_full = out;
}

static bool draining(const server *s)
{
    return atomic_load(&s->state) == SERVER_DRAINING;
}

static void sleep_until_work(passes *p, int ms)
{
    const struct timespec until = clock_after_ms(ms);
    pthread_mutex_lock(&p->lock);
    while (!p->woken && !pthread_cond_timedwait(&p->work, &p->lock, &until))
        ;
    p->woken = false;
    pthread_mutex_unlock(&p->lock);
}

/* A pass of each batch that has work. *n_busy: how many had, as the measure of the next turn.
 * False: none had. */
static bool take_turns(server *s, int32_t *n_busy)
{
    served *at[PASSES_MAX];
    passes *p = &s->passes;
    int32_t busy = 0;
    pthread_mutex_lock(&p->lock);
    int32_t n = p->n;
    memcpy(at, p->at, (size_t)n * sizeof *at);
    pthread_mutex_unlock(&p->lock);
    for (int32_t i = 0; i < n; i++) {
        served *m = at[i];
        int32_t others = *n_busy - (*n_busy > 0 && m->busy);
        if (atomic_load(&m->leaving)) {
            forget(s, m);
            continue;
        }
        int64_t gap = s->o->token_gap_ms;
        carat_batch_share(m->batch, others && gap ? (int32_t)(gap > others ? gap / others : 1) : 0);
        m->busy = carat_batch_step(m->batch);
        busy += m->busy;
        tell_pool(m);
        waker_go(&s->waker);
    }
    *n_busy = busy;
    return busy > 0;
}

static void look_at_errors(server *s)
{
    passes *p = &s->passes;
    pthread_mutex_lock(&p->lock);
    for (int32_t i = 0; i < p->n; i++)
        tell_cache_errors(p->at[i]);
    pthread_mutex_unlock(&p->lock);
}

void passes_end(server *s)
{
    passes *p = &s->passes;
    served *m;
    do {
        pthread_mutex_lock(&p->lock);
        p->ended = true;
        m = p->n ? p->at[0] : NULL;
        pthread_mutex_unlock(&p->lock);
        if (m)
            forget(s, m);
    } while (m);
}

void passes_run(server *s)
{
    int beat_ms = watchdog_ms();
    int sleep_ms = beat_ms && beat_ms < SLEEP_MAX_MS ? beat_ms : SLEEP_MAX_MS;
    double looked = 0, beaten = clock_ms(), deadline = 0, turned = beaten, busy_ms = 0;
    int32_t n_busy = 0;
    for (;;) {
        bool any = take_turns(s, &n_busy);
        double now = clock_ms();
        busy_ms += any ? now - turned : 0;
        turned = now;
        atomic_store_explicit(&s->passes.busy_us, (unsigned long long)(busy_ms * 1e3),
                              memory_order_relaxed);
        if (draining(s) && deadline <= 0)
            deadline = now + 1000.0 * (double)s->o->drain_s;
        bool last = draining(s) && (atomic_load(&s->n_active) == 0 || now > deadline);
        if (!any || last || now - looked > POLL_MS) {
            look_at_errors(s);
            looked = now;
        }
        if (last)
            return;
        if (beat_ms && now - beaten > beat_ms) {
            notify_systemd("WATCHDOG=1\n");
            beaten = now;
        }
        if (!any) {
            sleep_until_work(&s->passes, draining(s) ? DRAINING_MS : sleep_ms);
            turned = clock_ms();
        }
    }
}
