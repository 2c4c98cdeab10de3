/* events.c - see events.h. */
#include "apps/server/models/events.h"

#include "apps/server/answers/live.h"
#include "apps/jsonw.h"
#include "base/clock.h"
#include "base/mem.h"

#include <string.h>

enum {
    KEPT = 256,   /* events in the ring */
    POLL_MS = 250 /* between looks whether client and server are still there */
};

struct events {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int32_t n_readers;
    uint64_t n;     /* of all events so far */
    str line[KEPT]; /* event i is line[i % KEPT] */
};

typedef struct reader {
    feed f;
    events *v;
    exchange *x;
    uint64_t next;
    str text; /* what is to be sent, from `at` on */
    size_t at;
    double said_ms;
} reader;

status events_open(events **out, err *e)
{
    events *v = *out = mem_calloc(1, sizeof *v);
    if (!v)
        return err_memory(e, "events", sizeof *v);
    pthread_mutex_init(&v->lock, NULL);
    clock_cond_init(&v->changed);
    return OK;
}

void events_close(events *v)
{
    if (!v)
        return;
    for (int i = 0; i < KEPT; i++)
        str_free(&v->line[i]);
    pthread_cond_destroy(&v->changed);
    pthread_mutex_destroy(&v->lock);
    mem_free(v);
}

static void put_event(str *o, const char *model, const char *event, const char *data)
{
    str_puts(o, "data: ");
    json_open(o, NULL, '{');
    json_text(o, "model", model);
    json_text(o, "event", event);
    if (data) {
        json_key(o, "data");
        str_puts(o, data);
    }
    json_close(o, "}");
    str_puts(o, "\n\n");
}

void events_add(events *v, const char *model, const char *event, const char *data)
{
    if (!v)
        return;
    pthread_mutex_lock(&v->lock);
    if (v->n_readers) {
        str *line = &v->line[v->n % KEPT];
        str_free(line);
        put_event(line, model, event, data);
        if (!line->bad)
            v->n++;
        pthread_cond_broadcast(&v->changed);
    }
    pthread_mutex_unlock(&v->lock);
}

/* Takes the events that came, or waits for some. */
static void take(reader *r)
{
    events *v = r->v;
    const struct timespec until = clock_after_ms(POLL_MS);
    pthread_mutex_lock(&v->lock);
    if (r->next == v->n)
        pthread_cond_timedwait(&v->changed, &v->lock, &until);
    if (v->n - r->next > KEPT) {
        r->next = v->n - KEPT;
        put_event(&r->text, "*", "models_reload", NULL);
    }
    for (; r->next < v->n; r->next++) {
        const str *line = &v->line[r->next % KEPT];
        str_put(&r->text, str_text(line), line->n);
    }
    pthread_mutex_unlock(&v->lock);
}

static int64_t read_events(const feed *f, char *buf, size_t max)
{
    reader *r = (reader *)(size_t)f; /* its first member */
    const server *s = r->x->s;
    while (r->at >= r->text.n) {
        if (atomic_load(&s->state) == SERVER_DRAINING)
            return 0;
        if (client_left(r->x->fd)) {
            r->x->note = "client gone";
            return -1;
        }
        str_cut(&r->text, 0);
        r->at = 0;
        take(r);
        if (r->text.bad)
            return -1;
        if (!r->text.n && s->o->ping_s && clock_ms() - r->said_ms > 1000.0 * (double)s->o->ping_s)
            str_puts(&r->text, ": ping\n\n");
    }
    size_t n = r->text.n - r->at;
    n = n < max ? n : max;
    memcpy(buf, r->text.at + r->at, n);
    r->at += n;
    r->said_ms = clock_ms();
    return (int64_t)n;
}

static void close_reader(const feed *f)
{
    reader *r = (reader *)(size_t)f;
    pthread_mutex_lock(&r->v->lock);
    r->v->n_readers--;
    pthread_mutex_unlock(&r->v->lock);
    str_free(&r->text);
    mem_free(r);
}

void events_follow(events *v, exchange *x)
{
    reader *r = mem_calloc(1, sizeof *r);
    if (!r) {
        problem p = {0};
        problem_set(&p, 503, "", "no memory for a request");
        reply_problem(x, &p);
        return;
    }
    *r = (reader){.f = {read_events, close_reader}, .v = v, .x = x, .said_ms = clock_ms()};
    str_puts(&r->text, ": events of models follow\n\n"); /* so that the client sees that it began */
    pthread_mutex_lock(&v->lock);
    v->n_readers++;
    r->next = v->n;
    pthread_mutex_unlock(&v->lock);
    x->type = "text/event-stream";
    x->feed = &r->f;
    x->status = 200;
}
