/* router.c - see router.h.
 *
 * Bodies, answers and events are llama-server's. carat adds what a page needs to show: "message" of
 * a failure, "all" for the bytes of all files of a pull, "size" of a model.
 */
#include "apps/server/models/router.h"

#include "apps/hub/hub.h"
#include "apps/hub/made.h"
#include "apps/jsonw.h"
#include "apps/server/models/api_ollama_info.h"
#include "apps/server/models/pulls.h"
#include "base/mem.h"

static void reply_success(exchange *x, const problem *p)
{
    if (p->status) {
        reply_problem(x, p);
        return;
    }
    json_open(&x->out, NULL, '{');
    json_bool(&x->out, "success", true);
    json_close(&x->out, "}");
    x->status = 200;
}

/* The name in a body, of mem. False: a problem. */
static bool read_name(const exchange *x, arena *mem, const char **name, problem *p)
{
    const jtree *body = NULL;
    *name = "";
    return body_parse(mem, x->body, x->n_body, &body, p) && field_text(p, body, "model", name) &&
           (**name || problem_set(p, 400, "model", "'model' is missing"));
}

/* ---- Loading and unloading ---- */

void handle_load(exchange *x)
{
    arena mem = {0};
    const char *name;
    problem p = {0};
    if (read_name(x, &mem, &name, &p))
        catalog_load(x->s->catalog, name, &p);
    reply_success(x, &p);
    arena_free(&mem);
}

/* Ends a pull of that name. True: the request meant that pull. One that failed is forgotten, and
 * the request means the model of that name, if there is one. */
static bool meant_pull(exchange *x, const char *name)
{
    bool failed;
    return pulls_end(x->s->pulls, name, &failed) ||
           (failed && !catalog_own_name(x->s->catalog, name));
}

/* Of a model that is pulled it ends the pull. */
void handle_unload(exchange *x)
{
    arena mem = {0};
    const char *name;
    problem p = {0};
    if (read_name(x, &mem, &name, &p) && !meant_pull(x, name))
        catalog_unload(x->s->catalog, name, &p);
    reply_success(x, &p);
    arena_free(&mem);
}

/* ---- Pulling and removing ---- */

void handle_model_pull(exchange *x)
{
    arena mem = {0};
    const char *name;
    problem p = {0};
    if (ollama_may_change(x, &p) && read_name(x, &mem, &name, &p) &&
        ollama_plain_name(&mem, &name, &p))
        pulls_begin(x->s->pulls, name, x, &p);
    reply_success(x, &p);
    arena_free(&mem);
}

/* Removes it from the store first: if that fails, nothing has changed. A model that is loaded
 * leaves once its requests are answered; its file stays on the disk so long. Of a model that is
 * made of another nothing else leaves. */
static void remove_model(exchange *x, const char *name, problem *p)
{
    catalog *c = x->s->catalog;
    arena mem = {0};
    const made_model *made = NULL;
    const char *own = NULL;
    uint64_t freed;
    err e = {0};
    problem none = {0};
    status st = made_find(name, &mem, &made, &e);
    if (!st && made)
        own = catalog_own_name(c, name);
    else if (!st && model_known(name))
        own = catalog_meant(c, name);
    else if (!st)
        problem_set(p, 404, "model", "there is no model \"%.200s\" in the store", name);
    if (st || (!p->status && model_remove(name, &freed, &e)))
        problem_from(p, &e);
    if (!p->status) {
        if (own)
            catalog_unload(c, own, &none);
        catalog_refresh(c);
        events_add(x->s->events, own ? own : made ? made->name : name, "model_remove", NULL);
    }
    arena_free(&mem);
}

void handle_model_remove(exchange *x)
{
    problem p = {0};
    const char *name = x->query(x, "model");
    if (!name || !*name)
        problem_set(&p, 400, "model", "'model' is missing in the query");
    else if (ollama_may_change(x, &p) && !meant_pull(x, name))
        remove_model(x, name, &p);
    reply_success(x, &p);
}

void handle_model_events(exchange *x)
{
    events_follow(x->s->events, x);
}

/* ---- The list ---- */

static void put_pull(const pull_view *v, str *o)
{
    json_open(o, NULL, '{');
    json_text(o, "id", v->name);
    json_text(o, "object", "model");
    json_int(o, "created", 0);
    json_text(o, "owned_by", "carat");
    json_open(o, "status", '{');
    json_text(o, "value", v->failed ? "unloaded" : "downloading");
    if (v->failed) {
        json_bool(o, "failed", true);
        json_int(o, "exit_code", 1);
    } else {
        json_open(o, "progress", '{');
        if (*v->file) {
            json_open(o, v->file, '{');
            json_int(o, "done", (int64_t)v->done);
            json_int(o, "total", (int64_t)v->total);
            json_close(o, "}");
        }
        json_close(o, "}");
        json_open(o, "all", '{');
        json_int(o, "done", (int64_t)v->all_done);
        json_int(o, "total", (int64_t)v->all);
        json_close(o, "}");
        json_bool(o, "checking", v->checking);
    }
    if (*v->text)
        json_text(o, "message", v->text);
    json_close(o, "}");
    json_text(o, "source", "cache");
    json_bool(o, "can_remove", false);
    json_close(o, "}");
}

void router_put_pulls(exchange *x)
{
    int32_t n = 0;
    pull_view *list = pulls_list(x->s->pulls, &n);
    for (int32_t i = 0; i < n; i++)
        put_pull(&list[i], &x->out);
    x->out.bad |= !list;
    mem_free(list);
}
