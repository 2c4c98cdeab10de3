/* api_ollama_info.c - see api_ollama_info.h. ollama_model.c writes the models. */
#include "apps/server/models/api_ollama_info.h"

#include "apps/hub/made.h"
#include "apps/named.h"
#include "apps/jsonw.h"
#include "apps/server/models/ollama_model.h"
#include "apps/server/http/page.h"
#include "base/clock.h"
#include "base/mem.h"

#include <strings.h>
#include <string.h>
#include <time.h>

/* The version of ollama whose API these endpoints follow: its clients turn off what an older one
 * lacks. */
#define OLLAMA_VERSION "0.13.0"

/* ---- Bodies ---- */

bool ollama_plain_name(arena *mem, const char **name, problem *p)
{
    static const char latest[] = ":latest";
    size_t n = strlen(*name), n_latest = sizeof latest - 1;
    if (n <= n_latest || strcmp(*name + n - n_latest, latest))
        return true;
    *name = arena_strndup(mem, *name, n - n_latest);
    return *name || problem_set(p, 503, "", "no memory for a request");
}

bool ollama_body_read(ollama_body *b, const char *body, size_t n, problem *p)
{
    b->name = "";
    if (!n)
        return problem_set(p, 400, "", "missing request body");
    if (!body_parse(&b->mem, body, n, &b->body, p) || !field_text(p, b->body, "name", &b->name) ||
        !field_text(p, b->body, "source", &b->name) || !field_text(p, b->body, "model", &b->name))
        return false;
    if (!*b->name)
        return problem_set(p, 400, "model", "'model' is missing");
    return ollama_plain_name(&b->mem, &b->name, p);
}

void ollama_body_free(ollama_body *b)
{
    arena_free(&b->mem);
    *b = (ollama_body){0};
}

/* ---- The server ---- */

void handle_ollama_version(exchange *x)
{
    json_open(&x->out, NULL, '{');
    json_text(&x->out, "version", OLLAMA_VERSION);
    json_text(&x->out, "carat", carat_version());
    json_close(&x->out, "}");
    x->status = 200;
}

/* Browsers ask for HTML. ollama's clients look here whether a server runs. */
void handle_root(exchange *x)
{
    static const char running[] = "Ollama is running";
    const char *accept = x->header(x, "Accept");
    if (!accept || strstr(accept, "text/html")) {
        handle_page(x);
        return;
    }
    x->file = running;
    x->n_file = sizeof running - 1;
    x->type = "text/plain; charset=utf-8";
    x->status = 200;
}

/* ---- Models ---- */

static bool read_list(model_list *l, problem *p)
{
    err e = {0};
    *l = (model_list){0};
    return !model_list_read(l, &e) || problem_from(p, &e);
}

static const model_entry *find_entry(const model_list *l, const char *name)
{
    for (size_t i = 0; i < l->n; i++)
        if (!strcasecmp(l->at[i].name, name))
            return &l->at[i];
    return NULL;
}

static ollama_model of_entry(const model_entry *e)
{
    return (ollama_model){.name = e->name,
                          .digest = e->digest,
                          .quant = e->quant,
                          .when_s = e->when_s,
                          .n_bytes = e->n_bytes,
                          .completes = true,
                          .embeds = true};
}

static ollama_model of_served(const served *m)
{
    ollama_model out = {.name = m->names.name};
    ollama_describe(&out, m->model);
    out.n_ctx = m->n_ctx;
    return out;
}

static ollama_model of_offer(const offer_view *v)
{
    return (ollama_model){.name = v->name,
                          .digest = "",
                          .family = v->architecture,
                          .quant = v->file_type,
                          .when_s = v->file_s,
                          .n_bytes = v->file_bytes,
                          .n_params = v->n_params,
                          .n_ctx = v->n_ctx,
                          .n_embd = v->n_embd,
                          .completes = true,
                          .embeds = true};
}

/* Lists the derived models whose base model is in `list`. */
static void put_made(exchange *x, const offer_view *list, int32_t n)
{
    arena mem = {0};
    const made_model *made;
    size_t n_made;
    if (made_list(&mem, &made, &n_made, NULL)) {
        x->out.bad = true;
        n_made = 0;
    }
    for (size_t i = 0; i < n_made; i++) {
        beginning b = {0};
        const offer_view *base = exchange_base_of(x, made[i].name, list, n, &b);
        if (base) {
            ollama_model m = of_offer(base);
            m.name = b.name;
            m.parent = b.from;
            m.digest = "";
            m.when_s = b.when_s;
            ollama_put_model(&m, false, &x->out);
        }
        beginning_free(&b);
    }
    arena_free(&mem);
}

/* The models of a server. A model that it does not serve is not listed. */
static void put_tags(exchange *x, const offer_view *list, int32_t n, const model_list *l)
{
    str *o = &x->out;
    served *held[PASSES_MAX];
    int32_t n_held = catalog_hold(x->s->catalog, held);
    json_open(o, NULL, '{');
    json_open(o, "models", '[');
    for (int32_t i = 0; i < n; i++) {
        const model_entry *e = find_entry(l, list[i].name);
        ollama_model m = e ? of_entry(e) : of_offer(&list[i]);
        for (int32_t k = 0; k < n_held; k++) /* what a loaded model can do is known */
            if (!strcmp(held[k]->names.name, list[i].name))
                ollama_describe(&m, held[k]->model);
        ollama_put_model(&m, false, o);
    }
    put_made(x, list, n);
    json_close(o, "]}");
    catalog_drop(x->s->catalog, held, n_held);
}

void handle_ollama_tags(exchange *x)
{
    problem p = {0};
    model_list l = {0};
    int32_t n = 0;
    offer_view *list = catalog_list(x->s->catalog, &n);
    if (!list)
        problem_set(&p, 503, "", "no memory for the list of models");
    if (list && read_list(&l, &p))
        put_tags(x, list, n, &l);
    x->status = 200;
    if (p.status)
        reply_problem(x, &p);
    model_list_free(&l);
    mem_free(list);
}

/* The time when a loaded model is unloaded, in seconds since 1970; 0: never. */
static int64_t until_of(const offer_view *list, int32_t n, const char *name)
{
    for (int32_t i = 0; i < n; i++)
        if (!strcmp(list[i].name, name) && list[i].until_ms > 0)
            return (int64_t)time(NULL) + (int64_t)((list[i].until_ms - clock_ms()) / 1000);
    return 0;
}

static uint64_t gpu_bytes(const served *m)
{
    uint64_t n = 0;
    for (int32_t i = 0; i < m->total.n_devices; i++)
        if (strncmp(m->total.device[i].device, "cpu", 3) != 0)
            n += m->total.device[i].total_bytes;
    return n;
}

void handle_ollama_ps(exchange *x)
{
    str *o = &x->out;
    served *held[PASSES_MAX];
    int32_t n = 0, n_held = catalog_hold(x->s->catalog, held);
    offer_view *list = catalog_list(x->s->catalog, &n);
    json_open(o, NULL, '{');
    json_open(o, "models", '[');
    for (int32_t i = 0; i < n_held && list; i++) {
        ollama_model m = of_served(held[i]);
        m.n_bytes = held[i]->total.total_bytes;
        m.gpu_bytes = gpu_bytes(held[i]);
        m.until_s = until_of(list, n, m.name);
        ollama_put_model(&m, true, o);
    }
    json_close(o, "]}");
    o->bad |= !list;
    catalog_drop(x->s->catalog, held, n_held);
    mem_free(list);
    x->status = 200;
}

/* A model that is not loaded: its metadata alone is read. */
static bool show_stored(exchange *x, const ollama_model *about, const char *path,
                        const beginning *made, bool verbose, problem *p)
{
    const carat_model_options o = {.vocab_only = true, .mmproj = "auto"};
    ollama_model shown = *about;
    carat_model *m;
    err e = {0};
    if (named_open(path, &o, &m, &e))
        return problem_from(p, &e);
    ollama_describe(&shown, m);
    ollama_put_show(&shown, m, made, verbose, &x->out);
    carat_model_close(m);
    return true;
}

/* An offer that is not loaded and need not be for this: *path is its file. */
static bool find_unloaded(exchange *x, const char *name, ollama_model *about, const char **path)
{
    int32_t n = 0;
    offer_view *list = catalog_list(x->s->catalog, &n);
    const char *own = catalog_own_name(x->s->catalog, name);
    bool found = false;
    for (int32_t i = 0; i < n && list && own && !found; i++)
        if (!strcasecmp(list[i].name, own) && list[i].state != OFFER_LOADED && list[i].path) {
            *about = of_offer(&list[i]);
            about->family = about->quant = NULL; /* of the list; the file has them */
            *path = list[i].path;
            found = true;
        }
    mem_free(list);
    return found;
}

/* A made model is shown as the one that it is of, with its own name. */
static void name_made(ollama_model *about, const beginning *made)
{
    if (!made->name)
        return;
    about->name = made->name;
    about->parent = made->from;
    about->digest = "";
    about->when_s = made->when_s;
}

static bool show(exchange *x, const ollama_body *b, const beginning *made, problem *p)
{
    const char *name = made->name ? exchange_weights(x, made) : b->name;
    bool verbose = false, ok;
    model_list l;
    ollama_model about;
    const char *path;
    if (!field_bool(p, b->body, "verbose", &verbose) || !read_list(&l, p))
        return false;
    const model_entry *e = find_entry(&l, name);
    if (find_unloaded(x, name, &about, &path)) {
        name_made(&about, made);
        ok = show_stored(x, &about, path, made, verbose, p);
    } else if ((ok = exchange_pick_within(x, name, -1, p) == PICK_DONE)) {
        about = e ? of_entry(e) : of_served(x->m);
        ollama_describe(&about, x->m->model);
        name_made(&about, made);
        ollama_put_show(&about, x->m->model, made, verbose, &x->out);
    }
    model_list_free(&l);
    return ok;
}

void handle_ollama_show(exchange *x)
{
    problem p = {0};
    ollama_body b = {0};
    beginning made = {0};
    if (ollama_body_read(&b, x->body, x->n_body, &p) && exchange_begin(x, b.name, &made, &p) &&
        show(x, &b, &made, &p))
        x->status = 200;
    else
        reply_problem(x, &p);
    beginning_free(&made);
    ollama_body_free(&b);
}

void handle_ollama_delete(exchange *x)
{
    problem p = {0};
    ollama_body b = {0};
    uint64_t freed;
    bool was = false;
    err e = {0};
    if (!ollama_may_change(x, &p) || !ollama_body_read(&b, x->body, x->n_body, &p))
        ;
    else if (made_remove(b.name, &was, &e))
        problem_from(&p, &e);
    else if (was)
        ;
    else if (!model_known(b.name))
        problem_set(&p, 404, "model", "model '%.200s' not found", b.name);
    else if (model_remove(b.name, &freed, &e))
        problem_from(&p, &e);
    if (p.status)
        reply_problem(x, &p);
    else
        x->status = 200; /* without a body, as ollama answers */
    catalog_refresh(x->s->catalog);
    ollama_body_free(&b);
}
