/* begin.c - see begin.h. */
#include "apps/server/answers/begin.h"

#include "apps/hub/made.h"
#include "apps/server/dialects/jsonw.h"

#include <stdio.h>
#include <string.h>

static bool is_harmless(const char *name)
{
    field_row row;
    for (size_t i = 0; field_row_at(i, API_OLLAMA_OPTIONS, &row); i++)
        if (!strcmp(row.name, name))
            return strcmp(row.kind, "read") != 0;
    return false;
}

/* Settings about loading are the server's business, and are kept without effect, as in a request.
 */
static bool check_settings(const jtree *v, problem *p)
{
    for (const jtree *i = v ? v->first : NULL; i; i = i->next)
        if (!made_setting(i->key) && !is_harmless(i->key))
            return problem_set(p, 400, "parameters",
                               "'parameters.%.60s' is not a setting that a model can have", i->key);
    return true;
}

static bool check_messages(const jtree *list, problem *p)
{
    size_t i = 0;
    for (const jtree *m = list ? list->first : NULL; m; m = m->next, i++) {
        const jtree *role = jtree_get(m, "role");
        bool known =
            tree_says(role, "system") || tree_says(role, "user") || tree_says(role, "assistant");
        if (!known || !jtree_is(jtree_get(m, "content"), JTREE_STRING) ||
            jtree_truthy(jtree_get(m, "images")) || jtree_truthy(jtree_get(m, "tool_calls")))
            return problem_set(p, 400, "messages",
                               "'messages[%zu]' is no message of system, user or assistant with a "
                               "text as its content, and nothing else",
                               i);
    }
    return true;
}

static const char *text_or_null(const char *s)
{
    return s && *s ? s : NULL;
}

bool beginning_check(beginning *b, const jtree *body, problem *p)
{
    request own = {0};
    request_limits lim = {.n_vocab = INT32_MAX};
    const char *system = NULL;
    const jtree *license = jtree_get(body, "license");
    b->body = body;
    if (!field_text(p, body, "from", &b->from) || !field_text(p, body, "system", &system) ||
        !field_kind(p, body, "messages", JTREE_ARRAY, &b->messages) ||
        !field_kind(p, body, "parameters", JTREE_OBJECT, &b->settings) ||
        !check_settings(b->settings, p) || !check_messages(b->messages, p))
        return false;
    const jtree *text = jtree_get(body, "system");
    if (text && strlen(text->s) != text->n)
        return problem_set(p, 400, "system", "'system' has a zero character");
    b->system = text_or_null(system);
    /* ollama's clients send a text, or a list of texts. */
    if (jtree_is(license, JTREE_ARRAY))
        license = license->first;
    b->license = jtree_is(license, JTREE_STRING) ? text_or_null(license->s) : NULL;
    if (b->messages && !b->messages->count)
        b->messages = NULL;
    if (!text_or_null(b->from))
        return problem_set(p, 400, "from", "'from' is missing: the model that this one is made of");
    bool ok = beginning_limits(b, &own, &lim, p);
    request_free(&own);
    return ok;
}

bool beginning_find(beginning *b, const char *name, problem *p)
{
    const made_model *found;
    const jtree *body;
    err e = {0};
    problem why = {0};
    if (made_find(name, &b->mem, &found, &e))
        return problem_from(p, &e);
    if (!found)
        return true;
    b->when_s = found->when_s;
    if (jtree_parse(found->text, found->n, "its file", REQUEST_MAX_DEPTH, &b->mem, &body, &e))
        return e.status == E_MEMORY
                   ? problem_from(p, &e)
                   : problem_set(p, 500, "model", "the model \"%.100s\" is damaged: %.300s", name,
                                 e.text);
    if (body->kind != JTREE_OBJECT || !beginning_check(b, body, &why))
        return problem_set(p, why.status == 503 ? 503 : 500, "model",
                           "the model \"%.100s\" is damaged: %.300s", name,
                           *why.text ? why.text : "its file is no object");
    b->name = found->name;
    return true;
}

void beginning_free(beginning *b)
{
    arena_free(&b->mem);
    *b = (beginning){0};
}

bool beginning_limits(const beginning *b, request *own, request_limits *lim, problem *p)
{
    own->api = API_OLLAMA_CHAT;
    own->model = "";
    own->body = b->settings;
    if (!b->settings || !b->settings->count)
        return true;
    if (!ollama_settings_read(own, b->settings, lim, p))
        return false;
    lim->sampling = own->sampling;
    return true;
}

bool beginning_set(request *rq, const request *own, problem *p)
{
    if (!rq->n_stop && own->n_stop) {
        rq->stop = arena_array(&rq->mem, (size_t)own->n_stop, sizeof *rq->stop);
        if (!rq->stop)
            return problem_set(p, 503, "", "no memory for 'stop'");
        memcpy(rq->stop, own->stop, (size_t)own->n_stop * sizeof *rq->stop);
        rq->n_stop = own->n_stop;
    }
    if (!rq->max_tokens && !rq->no_answer)
        rq->max_tokens = own->max_tokens;
    if (!rq->seed_given && own->seed_given) {
        rq->sampling.seed = own->sampling.seed;
        rq->seed_given = true;
    }
    return true;
}

/* ---- Conversations ---- */

static bool is_system(const jtree *m)
{
    const jtree *role = m ? jtree_get(m, "role") : NULL;
    return tree_says(role, "system") || tree_says(role, "developer");
}

bool beginning_put(const beginning *b, const str *messages, const char *system, str *out,
                   problem *p)
{
    arena mem = {0};
    err e = {0};
    const jtree *all, *m;
    const char *own = b->system ? b->system : system;
    if (!own && !b->messages)
        return true;
    if (jtree_parse(messages->at, messages->n, "messages", REQUEST_MAX_DEPTH + 2, &mem, &all, &e)) {
        arena_free(&mem);
        return problem_from(p, &e);
    }
    m = all->first;
    if (!is_system(m) || b->messages) {
        json_open(out, NULL, '[');
        if (is_system(m)) { /* the request's comes first */
            json_tree(out, NULL, m);
            m = m->next;
        } else if (own && !(b->messages && is_system(b->messages->first))) {
            json_open(out, NULL, '{');
            json_text(out, "role", "system");
            json_text(out, "content", own);
            json_close(out, '}');
        }
        for (const jtree *i = b->messages ? b->messages->first : NULL; i; i = i->next)
            if (!is_system(i) || i != b->messages->first || !is_system(all->first))
                json_tree(out, NULL, i);
        for (; m; m = m->next)
            json_tree(out, NULL, m);
        json_close(out, ']');
    }
    arena_free(&mem);
    return !out->bad || problem_set(p, 503, "", "no memory for the system message");
}

/* A message with a text behind its own. */
static void put_longer(str *o, const jtree *m, const char *text)
{
    const jtree *c = jtree_get(m, "content");
    str both = {0};
    json_open(o, NULL, '{');
    for (const jtree *f = m->first; f; f = f->next)
        if (f != c)
            json_tree(o, f->key, f);
    if (jtree_is(c, JTREE_ARRAY)) {
        json_open(o, "content", '[');
        for (const jtree *i = c->first; i; i = i->next)
            json_tree(o, NULL, i);
        json_open(o, NULL, '{');
        json_text(o, "type", "text");
        json_text(o, "text", text);
        json_close(o, '}');
        json_close(o, ']');
    } else {
        if (jtree_is(c, JTREE_STRING))
            str_put(&both, c->s, c->n);
        str_printf(&both, "%s%s", both.n ? "\n\n" : "", text);
        json_text_n(o, "content", str_text(&both), both.n);
    }
    json_close(o, '}');
    o->bad |= both.bad;
    str_free(&both);
}

bool beginning_add(const str *messages, const char *text, str *out, problem *p)
{
    static const jtree role = {
        .kind = JTREE_STRING, .s = "system", .n = 6, .key = "role", .n_key = 4};
    const jtree none = {.kind = JTREE_OBJECT, .first = (jtree *)&role, .count = 1};
    arena mem = {.max_bytes = arena_limit_for(messages->n)};
    err e = {0};
    const jtree *all, *m;
    if (jtree_parse(messages->at, messages->n, "messages", REQUEST_MAX_DEPTH + 2, &mem, &all, &e)) {
        arena_free(&mem);
        return problem_from(p, &e);
    }
    m = all->first;
    json_open(out, NULL, '[');
    put_longer(out, is_system(m) ? m : &none, text);
    for (m = is_system(m) ? m->next : m; m; m = m->next)
        json_tree(out, NULL, m);
    json_close(out, ']');
    arena_free(&mem);
    return !out->bad || problem_set(p, 503, "", "no memory for the system message");
}

void beginning_put_settings(const beginning *b, const char *head, str *out)
{
    for (const jtree *i = b->settings ? b->settings->first : NULL; i; i = i->next)
        for (const jtree *v = i->kind == JTREE_ARRAY ? i->first : i; v;
             v = i->kind == JTREE_ARRAY ? v->next : NULL) {
            str_puts(out, head);
            str_printf(out, *head ? "%s " : "%-30s ", i->key);
            jtree_put_json(out, v);
            str_putc(out, '\n');
        }
}
