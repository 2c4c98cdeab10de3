/* live.c - see live.h.
 *
 * The mailbox holds records, each 8-aligned: a choice_event, then the bytes that its pointers point
 * to. Two buffers take turns, so the thread that runs passes never waits for a thread that writes.
 */
#include "apps/server/answers/live.h"

#include "base/clock.h"
#include "base/mem.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BOX_BYTES = 1 << 16 }; /* of tokens without text, before the connection wakes anyway */

typedef struct running {
    live *l;
    int32_t index;
    int64_t id; /* of the job; 0: not submitted */
    int32_t n_calls;
    double last_ms; /* of the last token */
    str sampled;    /* int32_t, with keep_ids */
} running;

struct live {
    served *m;
    running *job;
    int32_t n;
    bool one_call, keep_ids;
    int event_fd;
    live *next_wake; /* both under the waker's lock */
    bool to_wake;
    pthread_mutex_t lock; /* of the next three */
    str box;
    int32_t n_running; /* jobs submitted and not done */
    double first_ms;
    pthread_cond_t quiet; /* n_running is 0 */
    /* Of the connection's thread. */
    str taken;
    size_t at;
    int32_t n_over;
};

/* ---- The box ---- */

static size_t padded(size_t n)
{
    return (n + 7) & ~(size_t)7;
}

static void put_padded(str *box, const void *bytes, size_t n)
{
    static const char zeros[8];
    str_put(box, bytes, n);
    str_put(box, zeros, padded(n) - n);
}

static void put_record(str *box, const choice_event *h)
{
    const carat_event *ev = &h->ev;
    size_t before = box->n;
    put_padded(box, h, sizeof *h);
    if (ev->n_top)
        put_padded(box, ev->top, (size_t)ev->n_top * sizeof *ev->top);
    if (ev->text)
        put_padded(box, ev->text, ev->n_text + 1);
    if (ev->name)
        put_padded(box, ev->name, strlen(ev->name) + 1);
    if (ev->stop)
        put_padded(box, ev->stop, strlen(ev->stop) + 1);
    if (h->error)
        put_padded(box, h->error, strlen(h->error) + 1);
    if (box->bad)
        str_cut(box, before); /* removes the half record */
}

static const char *take_record_text(live *l, const char *was, size_t n)
{
    const char *at = l->taken.at + l->at;
    if (!was)
        return NULL;
    l->at += padded(n == SIZE_MAX ? strlen(at) + 1 : n);
    return at;
}

bool live_next(live *l, choice_event *h)
{
    if (l->at >= l->taken.n)
        return false;
    memcpy(h, l->taken.at + l->at, sizeof *h);
    l->at += padded(sizeof *h);
    if (h->ev.n_top) {
        h->ev.top = (const carat_logprob *)(const void *)(l->taken.at + l->at);
        l->at += padded((size_t)h->ev.n_top * sizeof *h->ev.top);
    }
    h->ev.text = take_record_text(l, h->ev.text, h->ev.n_text + 1);
    h->ev.name = take_record_text(l, h->ev.name, SIZE_MAX);
    h->ev.stop = take_record_text(l, h->ev.stop, SIZE_MAX);
    h->error = take_record_text(l, h->error, SIZE_MAX);
    l->n_over += h->done;
    return true;
}

/* ---- The thread that runs passes ---- */

/* Lists the live for the waker, which runs after this pass. */
static void list_to_wake(live *l)
{
    waker *r = &l->m->s->waker;
    pthread_mutex_lock(&r->lock);
    if (!l->to_wake) {
        l->to_wake = true;
        l->next_wake = r->first;
        r->first = l;
    }
    pthread_mutex_unlock(&r->lock);
}

static void note_token(running *r, const carat_event *ev)
{
    live *l = r->l;
    double now = clock_ms();
    if (r->last_ms > 0)
        histogram_add(&l->m->s->m.per_token, (now - r->last_ms) * 1e-3);
    r->last_ms = now;
    if (l->keep_ids)
        str_put(&r->sampled, (const char *)&ev->id, sizeof ev->id);
}

static bool live_on_event(void *user, const carat_event *ev)
{
    running *r = user;
    live *l = r->l;
    choice_event h = {.choice = r->index, .ev = *ev};
    bool end = ev->kind == CARAT_EV_END, call = ev->kind == CARAT_EV_TOOL_CALL;
    if (ev->kind == CARAT_EV_TOKEN)
        note_token(r, ev);
    if (l->one_call && r->n_calls && !end)
        return false; /* the job ends with its first call */
    r->n_calls += call;
    pthread_mutex_lock(&l->lock);
    put_record(&l->box, &h);
    if (ev->kind == CARAT_EV_TOKEN && l->first_ms <= 0)
        l->first_ms = r->last_ms;
    bool bad = l->box.bad, much = l->box.n > BOX_BYTES;
    pthread_mutex_unlock(&l->lock);
    /* A token's text comes in a later event, so a token alone does not wake. Threads woken in vain
     * would take processors from the next pass. */
    if ((ev->kind != CARAT_EV_TOKEN && ev->kind != CARAT_EV_PROMPT_TOKEN) || much)
        list_to_wake(l);
    return !bad && !(call && l->one_call);
}

static void live_on_done(void *user, carat_status st, const carat_error *e, const carat_timings *t)
{
    running *r = user;
    live *l = r->l;
    choice_event h = {.choice = r->index, .done = true, .status = st};
    if (t)
        h.timings = *t;
    if (st)
        h.error = e && *e->text ? e->text : "the generation failed";
    pthread_mutex_lock(&l->lock);
    put_record(&l->box, &h);
    l->n_running--;
    list_to_wake(l); /* under the lock: after it, with no job running, the live may be freed */
    pthread_cond_broadcast(&l->quiet);
    pthread_mutex_unlock(&l->lock);
}

/* ---- The connection's thread ---- */

static bool submit_one(live *l, running *r, const live_job *j, problem *p)
{
    carat_job job = {.ids = j->ids,
                     .n = j->n,
                     .opt = &j->opt,
                     .fn = live_on_event,
                     .done = live_on_done,
                     .user = r,
                     .embedding = j->embedding,
                     .pooling = j->pooling,
                     .importance = j->importance};
    served *m = l->m;
    err e = {0};
    bool full = false;
    pthread_mutex_lock(&l->lock);
    l->n_running++;
    pthread_mutex_unlock(&l->lock);
    carat_status st = served_submit(m, &job, &r->id, &full, &e);
    if (!st)
        return true;
    pthread_mutex_lock(&l->lock);
    l->n_running--;
    pthread_mutex_unlock(&l->lock);
    if (full) {
        atomic_fetch_add(&m->s->m.refused_full, 1);
        problem_set(p, 429, "", "all %d slots are at work and the queue is full: try again soon",
                    m->n_slots);
        p->retry_s = 2;
    } else if (st == CARAT_E_CANCELLED) {
        problem_set(p, 503, "", "the server is shutting down");
        p->retry_s = 5;
    }
    return problem_from(p, &e);
}

bool live_open(live **out, served *m, const live_plan *plan, problem *p)
{
    live *l = mem_calloc(1, sizeof *l);
    *out = NULL;
    if (!l)
        return problem_set(p, 503, "", "no memory for a request");
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->quiet, NULL);
    l->m = m;
    l->one_call = plan->one_call;
    l->keep_ids = plan->keep_ids;
    l->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    l->job = mem_calloc((size_t)plan->n, sizeof *l->job);
    bool ok = l->event_fd >= 0 && l->job;
    if (!ok)
        problem_set(p, 503, "", "no memory or no file descriptor for a request");
    for (int32_t i = 0; i < plan->n && ok; i++) {
        l->job[i] = (running){.l = l, .index = i};
        l->n = i + 1;
        ok = submit_one(l, &l->job[i], &plan->job[i], p);
    }
    if (!ok)
        live_close(l);
    else
        *out = l;
    return ok;
}

void live_cancel(live *l)
{
    for (int32_t i = 0; i < l->n; i++)
        if (l->job[i].id)
            served_cancel(l->m, l->job[i].id);
    pthread_mutex_lock(&l->lock);
    while (l->n_running)
        pthread_cond_wait(&l->quiet, &l->lock);
    pthread_mutex_unlock(&l->lock);
}

/* Called when no callback can list the live again. */
static void unlist(live *l)
{
    waker *r = &l->m->s->waker;
    pthread_mutex_lock(&r->lock);
    for (live **at = &r->first; *at; at = &(*at)->next_wake)
        if (*at == l) {
            *at = l->next_wake;
            break;
        }
    pthread_mutex_unlock(&r->lock);
}

void live_close(live *l)
{
    if (!l)
        return;
    live_cancel(l);
    for (int32_t i = 0; i < l->n; i++)
        str_free(&l->job[i].sampled);
    unlist(l);
    if (l->event_fd >= 0)
        close(l->event_fd);
    pthread_cond_destroy(&l->quiet);
    pthread_mutex_destroy(&l->lock);
    str_free(&l->box);
    str_free(&l->taken);
    mem_free(l->job);
    mem_free(l);
}

/* A half-closed socket counts as closed. It is the earliest sign of a disconnect, and clients that
 * wait for an answer do not half-close. */
static bool is_gone(int fd, short revents)
{
    char c;
    if (fd < 0 || !revents)
        return false;
    if (revents & (POLLERR | POLLHUP | POLLNVAL | POLLRDHUP))
        return true;
    return recv(fd, &c, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
}

bool client_left(int fd)
{
    struct pollfd p = {fd, POLLRDHUP, 0};
    return fd >= 0 && poll(&p, 1, 0) > 0 && is_gone(fd, p.revents);
}

live_state live_wait(live *l, int fd, int timeout_ms)
{
    struct pollfd p[2] = {{l->event_fd, POLLIN, 0}, {fd, POLLRDHUP, 0}};
    uint64_t count;
    int n;
    do
        n = poll(p, fd >= 0 ? 2 : 1, timeout_ms);
    while (n < 0 && errno == EINTR);
    if (is_gone(fd, p[1].revents))
        return LIVE_GONE;
    if (!p[0].revents)
        return LIVE_QUIET;
    ssize_t r = read(l->event_fd, &count, sizeof count);
    (void)r; /* it was 0: the mailbox is empty */
    str_cut(&l->taken, 0);
    l->at = 0;
    pthread_mutex_lock(&l->lock);
    str full = l->box;
    l->box = l->taken;
    l->box.bad = full.bad; /* stays set: later events are missing */
    l->taken = full;
    pthread_mutex_unlock(&l->lock);
    return full.bad ? LIVE_BROKEN : LIVE_EVENTS;
}

bool live_over(const live *l)
{
    return l->n_over == l->n;
}

double live_first_ms(const live *l)
{
    live *open = (live *)(size_t)l; /* const but for the lock */
    pthread_mutex_lock(&open->lock);
    double ms = l->first_ms;
    pthread_mutex_unlock(&open->lock);
    return ms;
}

const int32_t *live_sampled(const live *l, int32_t job, int64_t *n)
{
    const str *s = &l->job[job].sampled;
    *n = (int64_t)(s->n / sizeof(int32_t));
    return (const int32_t *)(const void *)s->at;
}

/* ---- The waker ---- */

/* Holds the lock, so that no eventfd is closed meanwhile. The thread that runs passes needs it only
 * at the end of its pass. */
static void wake_all(waker *r)
{
    uint64_t one = 1;
    for (live *l = r->first; l; l = l->next_wake) {
        ssize_t n = write(l->event_fd, &one, sizeof one);
        (void)n; /* the counter is full: the connection wakes */
        l->to_wake = false;
    }
    r->first = NULL;
}

static void *wake_on(void *arg)
{
    waker *r = arg;
    pthread_mutex_lock(&r->lock);
    while (!r->ending) {
        while (!r->going && !r->ending)
            pthread_cond_wait(&r->go, &r->lock);
        r->going = false;
        wake_all(r);
    }
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

status waker_start(waker *r, err *e)
{
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->go, NULL);
    if (pthread_create(&r->thread, NULL, wake_on, r)) {
        pthread_cond_destroy(&r->go);
        pthread_mutex_destroy(&r->lock);
        return err_set(e, E_MEMORY, "cannot start a thread");
    }
    r->started = true;
    return OK;
}

void waker_go(waker *r)
{
    pthread_mutex_lock(&r->lock);
    bool any = r->first != NULL;
    r->going |= any;
    pthread_mutex_unlock(&r->lock);
    if (any)
        pthread_cond_signal(&r->go);
}

void waker_stop(waker *r)
{
    if (!r->started)
        return;
    pthread_mutex_lock(&r->lock);
    r->ending = true;
    pthread_mutex_unlock(&r->lock);
    pthread_cond_signal(&r->go);
    pthread_join(r->thread, NULL);
    pthread_cond_destroy(&r->go);
    pthread_mutex_destroy(&r->lock);
    r->started = false;
}
