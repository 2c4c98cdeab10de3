/* recording.c - see recording.h. */
#include "apps/server/answers/recording.h"

#include "apps/server/answers/live.h"
#include "base/clock.h"
#include "base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    POLL_MS = 500, /* between two looks at whether a client that waits has left */
    EACH = 4 << 10 /* bytes that a recording counts at least */
};

struct recording {
    recordings *s;
    recording *next;
    int32_t refs, n_followers; /* refs: the list's, the request's, one per follower */
    int32_t owner;
    char id[ID_BYTES]; /* in the ids of events: ID:NUMBER */
    char *name;        /* NULL: none */
    char answer[ID_BYTES];
    str bytes;
    uint64_t dropped; /* bytes of the stream before `bytes` */
    str ends;         /* uint64_t: where in the stream the events end that `bytes` has */
    int64_t first;    /* the number of the first of them */
    bool over, ended_by_client, alone;
    double alone_ms, over_ms;
    int64_t begun_at, ended_at;
};

struct recordings {
    pthread_mutex_t lock; /* of everything here */
    pthread_cond_t changed;
    recording *head;
};

typedef struct follower {
    feed f;
    recordings *s;
    recording *r;
    exchange *x;
    uint64_t at;
} follower;

/* ---- The store ---- */

status recordings_open(recordings **out, err *e)
{
    recordings *s = *out = mem_calloc(1, sizeof *s);
    if (!s)
        return err_memory(e, "recordings of streams", sizeof *s);
    pthread_mutex_init(&s->lock, NULL);
    clock_cond_init(&s->changed);
    return OK;
}

/* The caller holds the lock, here and below. */
static void let_go(recording *r)
{
    if (--r->refs)
        return;
    str_free(&r->bytes);
    str_free(&r->ends);
    mem_free(r->name);
    mem_free(r);
}

static void unlist(recordings *s, recording *r)
{
    recording **at = &s->head;
    while (*at && *at != r)
        at = &(*at)->next;
    if (!*at)
        return;
    *at = r->next;
    let_go(r);
}

void recordings_close(recordings *s)
{
    if (!s)
        return;
    while (s->head)
        unlist(s, s->head);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    mem_free(s);
}

static void forget_old(recordings *s)
{
    recording *next;
    double now = clock_ms();
    for (recording *r = s->head; r; r = next) {
        next = r->next;
        if (r->over && now - r->over_ms > 1000.0 * RECORDING_KEEP_S)
            unlist(s, r);
    }
}

static recording *find(recordings *s, int32_t owner, const char *name)
{
    forget_old(s);
    for (recording *r = s->head; r; r = r->next)
        if (r->owner == owner && ((r->name && !strcmp(r->name, name)) || !strcmp(r->id, name) ||
                                  (*r->answer && !strcmp(r->answer, name))))
            return r;
    return NULL;
}

/* Its answer ends, and so do those who follow. */
static void stop(recordings *s, recording *r)
{
    r->ended_by_client = true;
    unlist(s, r);
    pthread_cond_broadcast(&s->changed);
}

static uint64_t end_of(const recording *r, size_t i)
{
    uint64_t v;
    memcpy(&v, r->ends.at + i * sizeof v, sizeof v);
    return v;
}

static int64_t n_held(const recording *r)
{
    return (int64_t)(r->ends.n / sizeof(uint64_t));
}

/* Drops events from the beginning, until at most `least` bytes are left. */
static void trim(recording *r, size_t least)
{
    size_t i = 0, n = (size_t)n_held(r);
    if (!r->bytes.n)
        return; /* nothing has been allocated */
    while (i < n && r->dropped + r->bytes.n - end_of(r, i) > least)
        i++;
    size_t gone = i < n ? (size_t)(end_of(r, i) - r->dropped) : r->bytes.n;
    i += i < n;
    memmove(r->bytes.at, r->bytes.at + gone, r->bytes.n - gone);
    str_cut(&r->bytes, r->bytes.n - gone);
    r->dropped += gone;
    memmove(r->ends.at, r->ends.at + i * sizeof(uint64_t), (n - i) * sizeof(uint64_t));
    str_cut(&r->ends, (n - i) * sizeof(uint64_t));
    r->first += (int64_t)i;
    str_fit(&r->bytes);
    str_fit(&r->ends);
}

/* The memory that it has, which may be twice what was written into it. */
static uint64_t bytes_of(const recording *r)
{
    return EACH + r->bytes.cap + r->ends.cap;
}

/* Keeps all recordings together within their bytes: those go that ended first, then the beginning
 * of the largest one. Who follows there is too slow. */
static void make_room(recordings *s)
{
    for (;;) {
        recording *first = NULL, *most = s->head;
        uint64_t sum = 0;
        for (recording *r = s->head; r; r = r->next) {
            sum += bytes_of(r);
            if (r->over && (!first || r->over_ms < first->over_ms))
                first = r;
            if (bytes_of(r) >= bytes_of(most)) /* of several the oldest */
                most = r;
        }
        if (sum <= RECORDINGS_BYTES || (!first && !most->bytes.n))
            return;
        trim(first ? first : most, first ? 0 : most->bytes.n / 2);
        if (first)
            unlist(s, first);
    }
}

/* ---- The request's connection ---- */

recording *recording_begin(recordings *s, int32_t owner, const char *name, problem *p)
{
    recording *old, *r = mem_calloc(1, sizeof *r);
    char *own = name ? mem_strdup(name) : NULL;
    if (!r || (name && !own)) {
        mem_free(own);
        mem_free(r);
        problem_set(p, 503, "", "no memory for the recording of a stream");
        return NULL;
    }
    *r = (recording){.s = s, .refs = 2, .owner = owner, .name = own, .begun_at = time(NULL)};
    make_id(r->id, "strm_");
    pthread_mutex_lock(&s->lock);
    if (name && (old = find(s, owner, name)))
        stop(s, old);
    r->next = s->head;
    s->head = r;
    make_room(s);
    pthread_mutex_unlock(&s->lock);
    return r;
}

void recording_of_answer(recording *r, const char *id)
{
    pthread_mutex_lock(&r->s->lock);
    snprintf(r->answer, sizeof r->answer, "%s", id);
    pthread_mutex_unlock(&r->s->lock);
}

void recording_add(recording *r, str *events)
{
    str told = {0};
    pthread_mutex_lock(&r->s->lock);
    int64_t next = r->first + n_held(r); /* others' make_room may move both */
    for (const char *at = str_text(events), *end; *at; at = end) {
        end = strstr(at, "\n\n");
        end = end ? end + 2 : at + strlen(at);
        bool comment = *at == ':';
        if (!comment)
            str_printf(&told, "id: %s:%lld\n", r->id, (long long)next++);
        str_put(&told, at, (size_t)(end - at));
        uint64_t place = r->dropped + r->bytes.n + told.n;
        if (!comment)
            str_put(&r->ends, (const char *)&place, sizeof place);
    }
    str_put(&r->bytes, str_text(&told), told.n);
    if (told.bad || r->bytes.bad || r->ends.bad)
        events->bad = true;
    else if (r->bytes.n > RECORDING_BYTES)
        trim(r, RECORDING_BYTES / 4 * 3);
    make_room(r->s);
    pthread_cond_broadcast(&r->s->changed);
    pthread_mutex_unlock(&r->s->lock);
    told.bad |= events->bad;
    str_free(events);
    *events = told;
}

void recording_alone(recording *r)
{
    pthread_mutex_lock(&r->s->lock);
    r->alone = true;
    r->alone_ms = clock_ms();
    pthread_mutex_unlock(&r->s->lock);
}

bool recording_wanted(const recording *r)
{
    pthread_mutex_lock(&r->s->lock);
    bool late = r->alone && !r->n_followers && clock_ms() - r->alone_ms > 1000.0 * RECORDING_KEEP_S;
    bool wanted = !r->ended_by_client && !late;
    pthread_mutex_unlock(&r->s->lock);
    return wanted;
}

void recording_end(recording *r)
{
    if (!r)
        return;
    recordings *s = r->s;
    pthread_mutex_lock(&s->lock);
    r->over = true;
    r->over_ms = clock_ms();
    r->ended_at = time(NULL);
    str_fit(&r->bytes);
    str_fit(&r->ends);
    pthread_cond_broadcast(&s->changed);
    let_go(r);
    pthread_mutex_unlock(&s->lock);
}

/* ---- Other connections ---- */

bool recording_remove(recordings *s, int32_t owner, const char *name)
{
    pthread_mutex_lock(&s->lock);
    recording *r = find(s, owner, name);
    if (r)
        stop(s, r);
    pthread_mutex_unlock(&s->lock);
    return r != NULL;
}

bool recording_poll(recordings *s, int32_t owner, const char *name, recording_info *i)
{
    pthread_mutex_lock(&s->lock);
    const recording *r = find(s, owner, name);
    if (r)
        *i = (recording_info){.over = r->over,
                              .n_bytes = r->dropped + r->bytes.n,
                              .begun_at = r->begun_at,
                              .ended_at = r->ended_at};
    pthread_mutex_unlock(&s->lock);
    return r != NULL;
}

/* The number of an event's id, "ID:NUMBER"; -1: it has none. */
static int64_t number_of(const char *event, char id[ID_BYTES])
{
    const char *colon = strrchr(event, ':');
    size_t n = colon ? (size_t)(colon - event) : ID_BYTES;
    if (n >= ID_BYTES || !colon[1] || strlen(colon) > 16 ||
        strspn(colon + 1, "0123456789") != strlen(colon + 1))
        return -1;
    memcpy(id, event, n);
    id[n] = '\0';
    return strtoll(colon + 1, NULL, 10);
}

/* Where the byte after `number` events is; -1 is none. False: p says why not. */
static bool place_after(const recording *r, int64_t number, uint64_t *at, problem *p)
{
    int64_t end = r->first + n_held(r);
    if (number >= end)
        return problem_set(p, 400, "", "the stream has no event %lld: it has %lld so far",
                           (long long)number, (long long)end);
    if (number < r->first - 1)
        return problem_set(p, 400, "",
                           "the events after %lld are no longer kept: the oldest is %lld",
                           (long long)number, (long long)r->first);
    *at = number < r->first ? r->dropped : end_of(r, (size_t)(number - r->first));
    return true;
}

static bool place_of_byte(const recording *r, uint64_t from, uint64_t *at, problem *p)
{
    uint64_t end = r->dropped + r->bytes.n;
    if (from > end)
        return problem_set(p, 400, "from", "the stream has %llu bytes so far",
                           (unsigned long long)end);
    if (from < r->dropped)
        return problem_set(p, 400, "from", "the first %llu bytes are no longer kept",
                           (unsigned long long)r->dropped);
    *at = from;
    return true;
}

static int64_t read_on(const feed *f, char *buf, size_t max)
{
    follower *w = (follower *)(size_t)f; /* its first member */
    recording *r = w->r;
    int64_t n = -2;
    while (n == -2) {
        if (client_left(w->x->fd)) {
            w->x->note = "client gone";
            return -1;
        }
        const struct timespec until = clock_after_ms(POLL_MS);
        pthread_mutex_lock(&w->s->lock);
        uint64_t end = r->dropped + r->bytes.n;
        if (w->at == end && !r->over && !r->ended_by_client) {
            pthread_cond_timedwait(&w->s->changed, &w->s->lock, &until);
            end = r->dropped + r->bytes.n;
        }
        if (w->at < r->dropped) {
            w->x->note = "too slow";
            n = -1;
        } else if (w->at < end) {
            n = (int64_t)(end - w->at < max ? end - w->at : max);
            memcpy(buf, r->bytes.at + (w->at - r->dropped), (size_t)n);
            w->at += (uint64_t)n;
        } else if (r->over || r->ended_by_client) {
            n = 0;
        }
        pthread_mutex_unlock(&w->s->lock);
    }
    return n;
}

static void end_following(const feed *f)
{
    follower *w = (follower *)(size_t)f;
    recordings *s = w->s;
    pthread_mutex_lock(&s->lock);
    w->r->n_followers--;
    w->r->alone_ms = clock_ms();
    let_go(w->r);
    pthread_mutex_unlock(&s->lock);
    mem_free(w);
}

void recording_follow(recordings *s, exchange *x, const recording_place *at)
{
    problem p = {0};
    char id[ID_BYTES] = "";
    int64_t number = at->event ? number_of(at->event, id) : at->after;
    const char *name = at->name ? at->name : id;
    follower *w = mem_calloc(1, sizeof *w);
    if (!w)
        problem_set(&p, 503, "", "no memory for a request");
    else if (at->event && number < 0)
        problem_set(&p, 400, "Last-Event-ID", "'%.60s' is no id of an event", at->event);
    pthread_mutex_lock(&s->lock);
    recording *r = p.status ? NULL : find(s, x->owner, name);
    if (!r && !p.status)
        problem_set(&p, 404, "",
                    "there is no stream '%.60s': streams are kept if their request asks for it "
                    "(X-Conversation-Id), and for %d s after their end",
                    name, RECORDING_KEEP_S);
    else if (r && at->event && strcmp(id, r->id))
        problem_set(&p, 400, "Last-Event-ID", "'%.60s' is of another stream", at->event);
    else if (r && (at->by_byte ? place_of_byte(r, at->from, &w->at, &p)
                               : place_after(r, number, &w->at, &p))) {
        w->f = (feed){read_on, end_following};
        w->s = s;
        w->r = r;
        w->x = x;
        r->refs++;
        r->n_followers++;
    }
    pthread_mutex_unlock(&s->lock);
    if (p.status) {
        mem_free(w);
        reply_problem(x, &p);
        return;
    }
    x->type = "text/event-stream";
    x->feed = &w->f;
    x->status = 200;
}
