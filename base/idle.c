/* idle.c - see idle.h. */
#include "base/idle.h"
#include "base/clock.h"
#include "base/relax.h"

enum {
    LOOKS = 64, /* between two readings of the clock */
    POLL_MS = 500
};
static const int64_t SPIN_NS = 2000000, NAP_NS = 200000000, AWAKE_NS = 60000000000;
static const int64_t SHORT_NAP_NS = 50000, LONG_NAP_NS = 1000000;

void idle_open(idle *i)
{
    clock_cond_init(&i->wake);
    pthread_mutex_init(&i->lock, NULL);
    i->open = true;
    atomic_store(&i->awake_ns, AWAKE_NS);
    atomic_store(&i->woken_ns, clock_ns());
}

void idle_close(idle *i)
{
    if (!i->open)
        return;
    pthread_cond_destroy(&i->wake);
    pthread_mutex_destroy(&i->lock);
    i->open = false;
}

static void wake_sleepers(idle *i)
{
    pthread_mutex_lock(&i->lock);
    pthread_cond_broadcast(&i->wake);
    pthread_mutex_unlock(&i->lock);
}

void idle_wake(idle *i)
{
    atomic_store(&i->woken_ns, clock_ns());
    if (atomic_load(&i->n_sleeping))
        wake_sleepers(i);
}

void idle_stop(idle *i)
{
    atomic_store(&i->stop, true);
    if (i->open)
        wake_sleepers(i);
}

void idler_begin(idler *t)
{
    *t = (idler){.active_ns = clock_ns()};
}

static void nap(int64_t ns)
{
    const struct timespec t = {0, (long)ns};
    nanosleep(&t, NULL);
}

/* Until somebody wakes the threads, or there is work. Work may come long after the call that
 * announced it, so a sleeper looks for it now and then. */
static void sleep_long(idle *i, int64_t seen_ns, bool (*ready)(void *), void *user)
{
    pthread_mutex_lock(&i->lock);
    atomic_fetch_add(&i->n_sleeping, 1);
    while (atomic_load(&i->woken_ns) == seen_ns && !atomic_load(&i->stop) && !ready(user)) {
        struct timespec t = clock_after_ms(POLL_MS);
        pthread_cond_timedwait(&i->wake, &i->lock, &t);
    }
    atomic_fetch_sub(&i->n_sleeping, 1);
    pthread_mutex_unlock(&i->lock);
}

void idle_between(idle *i, idler *t, bool worked, bool (*ready)(void *), void *user)
{
    if (worked)
        t->active_ns = 0;
    relax();
    if (t->looks++ % LOOKS)
        return;
    int64_t now = clock_ns(), woken = atomic_load(&i->woken_ns);
    t->active_ns = !t->active_ns ? now : t->active_ns;
    t->active_ns = woken > t->active_ns ? woken : t->active_ns;
    int64_t idle_ns = now - t->active_ns;
    if (idle_ns < SPIN_NS)
        return;
    t->looks = 0; /* the clock is read after each pause */
    if (idle_ns < atomic_load_explicit(&i->awake_ns, memory_order_relaxed))
        nap(idle_ns < NAP_NS ? SHORT_NAP_NS : LONG_NAP_NS);
    else
        sleep_long(i, woken, ready, user);
}
