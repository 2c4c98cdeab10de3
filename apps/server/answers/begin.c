/* begin.c - see begin.h. */
#include "apps/server/answers/begin.h"

#include "apps/hub/made.h"

#include <string.h>

static bool is_harmless(const char *name)
{
    field_row row;
    for (size_t i = 0; field_row_at(i, API_OLLAMA_OPTIONS, &row); i++)
        if (!strcmp(row.name, name))
            return strcmp(row.kind, "read") != 0;
    return false;
}

static bool check_adapters(const jtree *list, problem *p)
{
    bool good = !list || list->count <= MADE_ADAPTERS_MAX;
    for (const jtree *v = list ? list->first : NULL; v && good; v = v->next)
        good = jtree_is(v, JTREE_STRING) && v->n && strlen(v->s) == v->n;
    return good || problem_set(p, 400, "adapters", "'adapters' is no list of at most %d files",
                               MADE_ADAPTERS_MAX);
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
        !field_kind(p, body, "adapters", JTREE_ARRAY, &b->adapters) ||
        !check_adapters(b->adapters, p) || !check_settings(b->settings, p) ||
        !check_messages(b->messages, p))
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

static const jtree *first_of(const beginning *b)
{
    return b->messages ? b->messages->first : NULL;
}

static void put_turn(carat_talk *out, talk_turn turn)
{
    talk_add(out, turn.role, turn.list, turn.index);
    if (!out->bad)
        *talk_last(out) = turn;
}

static void put_plain(carat_talk *out, talk_role role, const char *list, int32_t i, talk_text text)
{
    talk_add(out, role, list, i);
    talk_set_text(out, text.s, text.n);
}

void beginning_put(const beginning *b, const carat_talk *t, const char *system, carat_talk *out)
{
    const char *own = b->system ? b->system : system;
    const jtree *made = first_of(b);
    size_t i = 0;
    bool given = t->n && talk_is_system(&t->turn[0]);
    bool makes = made && tree_says(jtree_get(made, "role"), "system");
    out->tools = t->tools;
    if (given) /* the request's comes first */
        put_turn(out, t->turn[i++]);
    else if (own && !makes)
        put_plain(out, TALK_SYSTEM, "the system message of the server", -1,
                  (talk_text){own, strlen(own)});
    int32_t k = given && makes;
    if (k)
        made = made->next;
    for (; made; made = made->next, k++) {
        const jtree *role = jtree_get(made, "role");
        put_plain(out,
                  tree_says(role, "user")        ? TALK_USER
                  : tree_says(role, "assistant") ? TALK_ASSISTANT
                                                 : TALK_SYSTEM,
                  "the model's own messages", k, talk_string(jtree_get(made, "content")));
    }
    while (i < t->n)
        put_turn(out, t->turn[i++]);
}

void beginning_add(carat_talk *t, const char *text)
{
    const talk_part part = {.kind = TALK_TEXT, .name = "text", .text = {text, strlen(text)}};
    if (t->bad || !t->n)
        return;
    talk_turn *m = &t->turn[0];
    if (!talk_is_system(m)) { /* a turn more, in front */
        talk_turn first = {.role = TALK_SYSTEM, .list = "the system message", .index = -1};
        put_turn(t, first);
        if (t->bad)
            return;
        m = t->turn;
        memmove(m + 1, m, (t->n - 1) * sizeof *m);
        *m = first;
    }
    talk_part *at = arena_array(t->mem, m->n_parts + 1, sizeof *at);
    t->bad |= !at;
    if (!at)
        return;
    if (m->n_parts)
        memcpy(at, m->part, m->n_parts * sizeof *at);
    if (m->shape == TALK_LIST) {
        at[m->n_parts++] = part;
    } else {
        str both = {0};
        if (m->n_parts)
            str_put(&both, at->text.s, at->text.n);
        str_printf(&both, "%s%s", both.n ? "\n\n" : "", text);
        t->bad |= both.bad;
        *at = part;
        at->text = talk_keep(t, str_text(&both), both.n);
        m->shape = TALK_WHOLE;
        m->n_parts = 1;
        str_free(&both);
    }
    m->part = at;
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
