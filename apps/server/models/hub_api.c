/* hub_api.c - what a hub has, for the page: finding models, and whether one would run here.
 *
 * The server asks the hub of `carat pull`, in the thread of the connection. What the hub says is
 * bounded in bytes and in time, and names that could not be pulled are left out (apps/hub).
 */
#include "apps/server/models/hub_api.h"

#include "apps/fit_report.h"
#include "apps/server/answers/live.h"
#include "apps/jsonw.h"
#include "apps/server/models/api_ollama_info.h"
#include "base/clock.h"
#include "base/mem.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum {
    QUESTIONS_MAX = 4, /* that wait for a hub */
    WORDS_MAX = 200,   /* bytes */
    POLL_MS = 60000    /* for the head of a file, some megabytes */
};

typedef struct question {
    const exchange *x;
    double until_ms;
    bool late;
} question;

static bool go_on(void *user, const hub_progress *p)
{
    question *q = user;
    (void)p;
    q->late = clock_ms() > q->until_ms;
    return !q->late && atomic_load(&q->x->s->state) != SERVER_DRAINING && !client_left(q->x->fd);
}

/* May this client ask now? Those that may not change the models have no use for it. */
static bool enter(exchange *x, problem *p)
{
    if (!ollama_may_change(x, p))
        return false;
    if (atomic_fetch_add(&x->s->n_questions, 1) < QUESTIONS_MAX)
        return true;
    atomic_fetch_sub(&x->s->n_questions, 1);
    p->retry_s = 2;
    return problem_set(p, 429, "", "%d questions to the hub are open already", QUESTIONS_MAX);
}

static void leave(exchange *x)
{
    atomic_fetch_sub(&x->s->n_questions, 1);
}

/* ---- Finding ---- */

static bool is_here(const model_list *l, const char *repo)
{
    for (size_t i = 0; i < l->n; i++)
        if (!strcasecmp(l->at[i].repo, repo))
            return true;
    return false;
}

static void put_hits(const hub_hits *h, str *o)
{
    model_list l = {0};
    err e = {0};
    if (model_list_read(&l, &e)) /* without a store none is here */
        l = (model_list){0};
    json_open(o, NULL, '{');
    json_open(o, "models", '[');
    for (int i = 0; i < h->n; i++) {
        const hub_hit *hit = &h->at[i];
        json_open(o, NULL, '{');
        json_text(o, "id", hit->repo);
        json_int(o, "downloads", (int64_t)hit->downloads);
        json_int(o, "likes", (int64_t)hit->likes);
        json_text(o, "changed", *hit->changed ? hit->changed : NULL);
        json_bool(o, "gated", hit->gated);
        json_bool(o, "here", is_here(&l, hit->repo));
        json_close(o, "}");
    }
    json_close(o, "]}");
    model_list_free(&l);
}

void handle_hub_search(exchange *x)
{
    const char *words = x->query(x, "q");
    hub_hits *hits = mem_calloc(1, sizeof *hits);
    question q = {.x = x, .until_ms = clock_ms() + POLL_MS};
    problem p = {0};
    err e = {0};
    if (!hits)
        problem_set(&p, 503, "", "no memory for a request");
    else if (words && strlen(words) > WORDS_MAX)
        problem_set(&p, 400, "q", "'q' is longer than %d bytes", WORDS_MAX);
    else if (enter(x, &p)) {
        status st = hub_search(words ? words : "", go_on, &q, hits, &e);
        if (st)
            problem_from(&p, &e);
        if (st == E_FORMAT || st == E_LIMIT) /* the hub's mistake, not the client's */
            p.status = 500;
        leave(x);
    }
    x->status = 200;
    if (p.status)
        reply_problem(x, &p);
    else
        put_hits(hits, &x->out);
    mem_free(hits);
}

/* ---- Whether a model would run here ---- */

/* Memory that the loaded models would give back. */
static uint64_t loaded_bytes(const server *s)
{
    int32_t n = 0;
    uint64_t sum = 0;
    offer_view *list = catalog_list(s->catalog, &n);
    for (int32_t i = 0; i < n && list; i++)
        sum += list[i].total_bytes;
    mem_free(list);
    return sum;
}

static bool put_report(exchange *x, const fit_report *r, problem *p)
{
    json_t *o = fit_json(r);
    char *text = NULL;
    if (o && !json_object_set_new(o, "loaded_bytes", json_integer((json_int_t)loaded_bytes(x->s))))
        text = json_dumps(o, JSON_COMPACT);
    if (text)
        str_puts(&x->out, text);
    else
        problem_set(p, 503, "", "no memory for the report");
    free(text); /* of jansson */
    json_decref(o);
    return !p->status;
}

static bool look(exchange *x, const char *name, problem *p)
{
    const serve_options *o = x->s->o;
    question q = {.x = x, .until_ms = clock_ms() + POLL_MS};
    carat_model_options mo = {
        .n_threads = (int32_t)o->threads, .vocab_only = true, .mmproj = "auto"};
    carat_session_options so = {.n_ctx = (int32_t)o->n_ctx, .chunk = (int32_t)o->chunk};
    fit_report r = {0};
    err e = {0};
    device_options_apply(&o->where, &mo);
    kv_options_apply(&o->kv, &so);
    mo.session = &so;
    mo.n_sessions = (int32_t)o->parallel;
    status st = fit_find(&r, &(hub_ask){.what = name, .progress = go_on, .user = &q}, false, &e);
    if (!st)
        st = fit_plan(&r, &mo, &so, (int32_t)o->parallel, &e);
    if (st && q.late)
        problem_set(p, 504, "", "the hub did not send the head of the file within %d s",
                    POLL_MS / 1000);
    else if (st)
        problem_from(p, &e);
    else
        put_report(x, &r, p);
    fit_free(&r);
    return !p->status;
}

void handle_hub_fit(exchange *x)
{
    const char *name = x->query(x, "model");
    problem p = {0};
    if (!name || !*name) {
        problem_set(&p, 400, "model", "'model' is missing in the query");
    } else if (enter(x, &p)) {
        look(x, name, &p);
        leave(x);
    }
    x->status = 200;
    if (p.status)
        reply_problem(x, &p);
}
