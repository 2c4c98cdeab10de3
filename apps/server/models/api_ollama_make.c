/* api_ollama_make.c - ollama's POST /api/create and /api/copy: models made of others.
 *
 * Such a model has no weights: it is a name for another one, with a system message, settings and
 * messages (begin.h). What changes weights, formats or templates is refused: carat runs GGUF files
 * as they are.
 */
#include "apps/server/models/api_ollama_info.h"

#include "apps/hub/hub.h"
#include "apps/hub/made.h"
#include "apps/server/answers/begin.h"
#include "apps/jsonw.h"
#include "base/mem.h"
#include "base/utf8.h"

#include <stdio.h>
#include <strings.h>
#include <unistd.h>

void handle_ollama_refused(exchange *x)
{
    problem p = {0};
    problem_set(
        &p, 501, "",
        "carat takes no files of models over HTTP and sends none: `carat pull` and /api/pull "
        "fetch models of the Hugging Face hub, `carat serve NAME=FILE` serves a file");
    reply_problem(x, &p);
}

/* Has the server, or this machine, a model with weights of this name? */
static bool has_weights(const exchange *x, const char *name)
{
    int32_t n = 0;
    offer_view *list = catalog_list(x->s->catalog, &n);
    bool found = false;
    for (int32_t i = 0; list && i < n && !found; i++)
        found = !strcasecmp(list[i].name, name);
    mem_free(list);
    return found || model_known(name);
}

/* Says that no model has this name. A server with one model accepts any name in other requests;
 * here the name must be that of a model that exists. */
static bool missing(const exchange *x, const char *field, const char *name, problem *p)
{
    int32_t n = 0;
    offer_view *list = catalog_list(x->s->catalog, &n);
    bool one = list && n == 1;
    problem_set(p, 404, field, "model '%.200s' not found%s%.200s%s", name,
                one ? "; this server has \"" : "", one ? list[0].name : "", one ? "\"" : "");
    mem_free(list);
    return false;
}

/* May a model made of others get this name? */
static bool check_name(const exchange *x, const char *name, problem *p)
{
    if (!made_name_valid(name))
        return problem_set(p, 400, "model",
                           "'%.80s' is no name for a model: up to 200 letters, digits and -_.:/",
                           name);
    if (has_weights(x, name))
        return problem_set(p, 400, "model",
                           "'%.80s' is the name of a file with weights: choose another one", name);
    return true;
}

/* ---- What a model is to be ---- */

static bool refuse_parts(const jtree *body, problem *p)
{
    static const struct {
        const char *key, *why;
    } parts[] = {
        {"template", "the chat format is that of the model's file"},
        {"files", "carat takes no files over HTTP: serve a GGUF file with `carat serve NAME=FILE`"},
        {"adapters", "carat takes no files over HTTP: `carat create` reads ADAPTER of a Modelfile"},
        {"quantize", "`carat quantize` writes a file of another format"},
        {"modelfile", "send its parts: from, system, parameters, messages"},
        {"path", "send the parts of the Modelfile: from, system, parameters, messages"},
        {"draft", "`carat serve --draft` chooses drafters"},
        {"renderer", "the chat format is that of the model's file"},
        {"parser", "the chat format is that of the model's file"},
        {"remote_host", "carat asks no other server"}};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (jtree_truthy(jtree_get(body, parts[i].key)))
            return problem_set(p, 400, parts[i].key, "'%s' is not supported: %s", parts[i].key,
                               parts[i].why);
    return true;
}

/* Settings of the model that this one is made of, unless it has its own. */
static void put_settings(const jtree *own, const jtree *old, str *o)
{
    json_open(o, "parameters", '{');
    for (const jtree *i = own ? own->first : NULL; i; i = i->next)
        json_tree(o, i->key, i);
    for (const jtree *i = old ? old->first : NULL; i; i = i->next)
        if (!jtree_has(own, i->key))
            json_tree(o, i->key, i);
    json_close(o, "}");
}

/* Where the weights are, for `carat run`, which knows no names of a server. */
static void put_file(const exchange *x, const beginning *b, const beginning *base, str *o)
{
    int32_t n = 0;
    offer_view *list = base->name ? NULL : catalog_list(x->s->catalog, &n);
    if (jtree_get(base->body, "file"))
        json_tree(o, "file", jtree_get(base->body, "file"));
    if (jtree_truthy(jtree_get(base->body, "bundled")))
        json_bool(o, "bundled", true);
    for (int32_t i = 0; list && i < n; i++) {
        if (strcasecmp(list[i].name, b->from))
            continue;
        char path[4096], dir[2048] = "";
        bool absolute = list[i].path && *list[i].path == '/';
        if (!list[i].path) {
            json_bool(o, "bundled", true);
        } else if (absolute || getcwd(dir, sizeof dir)) {
            int k = snprintf(path, sizeof path, "%s%s%s", dir, absolute ? "" : "/", list[i].path);
            if (k < (int)sizeof path && utf8_valid(path, (size_t)k))
                json_text(o, "file", path);
        }
        break;
    }
    mem_free(list);
}

/* base: the made model that `b` is of, its name NULL if that one has weights. */
static void put_model(const exchange *x, const beginning *b, const beginning *base, str *o)
{
    const char *system = b->system ? b->system : base->system;
    const char *license = b->license ? b->license : base->license;
    const jtree *messages = b->messages ? b->messages : base->messages;
    json_open(o, NULL, '{');
    json_text(o, "from", base->name ? base->from : b->from);
    put_file(x, b, base, o);
    if (system)
        json_text(o, "system", system);
    if (messages)
        json_tree(o, "messages", messages);
    if (base->adapters)
        json_tree(o, "adapters", base->adapters);
    put_settings(b->settings, base->settings, o);
    if (license)
        json_text(o, "license", license);
    json_close(o, "}\n");
}

static bool write_model(const char *name, const str *text, problem *p)
{
    err e = {0};
    if (text->bad)
        return problem_set(p, 503, "", "no memory for a model");
    return !made_write(name, text->at, text->n, &e) || problem_from(p, &e);
}

static bool create(exchange *x, ollama_body *b, problem *p)
{
    beginning own = {0}, base = {0};
    str text = {0};
    bool ok = refuse_parts(b->body, p) && check_name(x, b->name, p) &&
              beginning_check(&own, b->body, p) && ollama_plain_name(&b->mem, &own.from, p) &&
              beginning_find(&base, own.from, p);
    if (ok && !base.name && !has_weights(x, own.from))
        ok = missing(x, "from", own.from, p);
    if (ok) {
        put_model(x, &own, &base, &text);
        ok = write_model(b->name, &text, p);
    }
    str_free(&text);
    beginning_free(&own);
    beginning_free(&base);
    return ok;
}

static void put_status(str *o, const char *word)
{
    json_open(o, NULL, '{');
    json_text(o, "status", word);
    json_close(o, "}");
}

void handle_ollama_create(exchange *x)
{
    problem p = {0};
    ollama_body b = {0};
    bool stream = true;
    if (!ollama_may_change(x, &p) || !ollama_body_read(&b, x->body, x->n_body, &p) ||
        !field_bool(&p, b.body, "stream", &stream) || !create(x, &b, &p)) {
        reply_problem(x, &p);
    } else {
        if (stream) {
            put_status(&x->out, "writing manifest");
            str_putc(&x->out, '\n');
            x->type = "application/x-ndjson";
        }
        put_status(&x->out, "success");
        if (stream)
            str_putc(&x->out, '\n');
        x->status = 200;
    }
    ollama_body_free(&b);
}

/* ---- A second name ---- */

static bool copy(exchange *x, ollama_body *b, problem *p)
{
    const char *to = "";
    beginning source = {0};
    str text = {0};
    bool ok = field_text(p, b->body, "destination", &to) && ollama_plain_name(&b->mem, &to, p);
    if (ok && !*to)
        ok = problem_set(p, 400, "destination", "'destination' is missing");
    ok = ok && check_name(x, to, p) && beginning_find(&source, b->name, p);
    if (ok && !source.name && !has_weights(x, b->name))
        ok = missing(x, "source", b->name, p);
    if (ok) {
        beginning own = {.from = b->name};
        put_model(x, &own, &source, &text);
        ok = write_model(to, &text, p);
    }
    str_free(&text);
    beginning_free(&source);
    return ok;
}

void handle_ollama_copy(exchange *x)
{
    problem p = {0};
    ollama_body b = {0};
    if (ollama_may_change(x, &p) && ollama_body_read(&b, x->body, x->n_body, &p) && copy(x, &b, &p))
        x->status = 200; /* without a body, as ollama answers */
    else
        reply_problem(x, &p);
    ollama_body_free(&b);
}
