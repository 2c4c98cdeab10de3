/* talk.c - see talk.h. */
#include "text/talk.h"

#include "text/chat.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const talk_role_names[TALK_ROLES] = {"system", "developer", "user", "assistant",
                                                 "tool"};

static const char *const thought_names[TALK_THOUGHTS] = {[TALK_REASONING_CONTENT] =
                                                             "reasoning_content",
                                                         [TALK_REASONING] = "reasoning",
                                                         [TALK_THINKING] = "thinking"};

void talk_where(const talk_turn *m, const char *behind, char where[TALK_WHERE])
{
    if (m->index < 0)
        snprintf(where, TALK_WHERE, "%s%s", m->list, behind);
    else
        snprintf(where, TALK_WHERE, "%s[%d]%s", m->list, (int)m->index, behind);
}

bool talk_is_system(const talk_turn *m)
{
    return m->role == TALK_SYSTEM || m->role == TALK_DEVELOPER;
}

bool talk_has_content(const talk_turn *m)
{
    return m->shape == TALK_WHOLE ? m->part->text.n > 0 : m->n_parts > 0;
}

/* ---- Filling ---- */

/* Room for one element more behind the n of `at`, which has room for the next power of two. */
static void *grown(carat_talk *t, const void *at, size_t n, size_t size)
{
    if (n & (n - 1))
        return (void *)(uintptr_t)at; /* made here, so it may be written */
    void *more = n > SIZE_MAX / 2 ? NULL : arena_array(t->mem, n ? 2 * n : 1, size);
    if (more && n)
        memcpy(more, at, n * size);
    t->bad |= !more;
    return more;
}

void talk_copy(const carat_talk *t, carat_talk *out)
{
    size_t cap = 1;
    while (cap < t->n)
        cap *= 2;
    out->tools = t->tools;
    out->n = 0;
    out->turn = arena_array(out->mem, cap, sizeof *out->turn);
    out->bad = t->bad || !out->turn;
    if (out->bad)
        return;
    if (t->n)
        memcpy(out->turn, t->turn, t->n * sizeof *out->turn);
    out->n = t->n;
}

talk_text talk_keep(carat_talk *t, const char *s, size_t n)
{
    const char *copy = t->bad ? NULL : arena_strndup(t->mem, s, n);
    t->bad |= !copy;
    return (talk_text){copy ? copy : "", copy ? n : 0};
}

void talk_add(carat_talk *t, talk_role role, const char *list, int32_t index)
{
    talk_turn *at = t->bad ? NULL : grown(t, t->turn, t->n, sizeof *at);
    if (!at)
        return;
    t->turn = at;
    at[t->n++] = (talk_turn){.role = role, .list = list, .index = index};
}

talk_turn *talk_last(carat_talk *t)
{
    return t->n ? &t->turn[t->n - 1] : NULL;
}

void talk_put_part(carat_talk *t, talk_part part)
{
    talk_turn *m = talk_last(t);
    if (t->bad)
        return;
    if (m->shape != TALK_LIST)
        m->n_parts = 0;
    talk_part *at = grown(t, m->part, m->n_parts, sizeof *at);
    if (!at)
        return;
    m->shape = TALK_LIST;
    m->part = at;
    at[m->n_parts++] = part;
}

void talk_set_text(carat_talk *t, const char *s, size_t n)
{
    talk_turn *m = talk_last(t);
    if (t->bad)
        return;
    m->n_parts = 0;
    talk_put_part(t, (talk_part){.kind = TALK_TEXT, .name = "text", .text = {s, n}, .number = -1});
    if (!t->bad)
        m->shape = TALK_WHOLE;
}

void talk_put_call(carat_talk *t, talk_call call)
{
    talk_turn *m = talk_last(t);
    talk_call *at = t->bad ? NULL : grown(t, m->call, m->n_calls, sizeof *at);
    if (!at)
        return;
    m->call = at;
    at[m->n_calls++] = call;
}

static void put_result(carat_talk *t, talk_result result)
{
    talk_turn *m = talk_last(t);
    talk_result *at = t->bad ? NULL : grown(t, m->result, m->n_results, sizeof *at);
    if (!at)
        return;
    m->result = at;
    at[m->n_results++] = result;
}

status talk_check(const carat_talk *t, err *e)
{
    if (!t->bad)
        return OK;
    if (t->mem->over)
        return err_set(e, E_LIMIT,
                       "messages: too many for a text of this length: they would take more than "
                       "%zu bytes of memory",
                       t->mem->max_bytes);
    return err_set(e, E_MEMORY, "no memory for %zu messages", t->n + 1);
}

talk_text talk_string(const jtree *v)
{
    return jtree_is(v, JTREE_STRING) ? (talk_text){v->s, v->n} : (talk_text){0};
}

void talk_remove(carat_talk *t, size_t i, size_t n)
{
    t->n -= n;
    memmove(t->turn + i, t->turn + i + n, (t->n - i) * sizeof *t->turn);
}

static talk_text kept(carat_talk *t, talk_text x)
{
    return x.s ? talk_keep(t, x.s, x.n) : x;
}

static const jtree *kept_tree(carat_talk *t, const jtree *v)
{
    const jtree *copy = v ? jtree_copy(v, t->mem) : NULL;
    t->bad |= v && !copy;
    return copy;
}

talk_call talk_keep_call(carat_talk *t, const talk_call *call)
{
    return (talk_call){.id = kept(t, call->id),
                       .name = kept(t, call->name),
                       .arguments = kept_tree(t, call->arguments)};
}

static void put_part_like(carat_talk *t, talk_part p)
{
    const talk_mention *mention = p.mention;
    p.name = kept(t, (talk_text){p.name, strlen(p.name)}).s;
    p.text = kept(t, p.text);
    p.from = p.kind == TALK_VIDEO || p.kind == TALK_KINDS ? kept_tree(t, p.from) : NULL;
    p.mention = p.n_mentions ? arena_array(t->mem, p.n_mentions, sizeof *mention) : NULL;
    t->bad |= p.n_mentions && !p.mention;
    if (p.mention)
        memcpy(p.mention, mention, p.n_mentions * sizeof *mention);
    talk_put_part(t, p);
}

void talk_put_turn(carat_talk *t, const talk_turn *m)
{
    talk_add(t, m->role, m->list, m->index);
    for (size_t i = 0; i < m->n_parts; i++)
        put_part_like(t, m->part[i]);
    for (size_t i = 0; i < m->n_calls; i++)
        talk_put_call(t, talk_keep_call(t, &m->call[i]));
    for (size_t i = 0; i < m->n_results; i++)
        put_result(t, (talk_result){.name = kept(t, m->result[i].name),
                                    .value = kept_tree(t, m->result[i].value),
                                    .given = m->result[i].given});
    if (t->bad)
        return;
    talk_turn *to = talk_last(t);
    to->shape = m->shape;
    for (int i = 0; i < TALK_THOUGHTS; i++)
        to->thought[i] = kept(t, m->thought[i]);
    to->name = kept(t, m->name);
    to->call_id = kept(t, m->call_id);
}

/* ---- From JSON in OpenAI's form ---- */

/* A sentence that begins with the place of a turn. */
static status fail_at(const talk_turn *m, err *e, status st, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

static status fail_at(const talk_turn *m, err *e, status st, const char *fmt, ...)
{
    char text[700], where[TALK_WHERE];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    talk_where(m, "", where);
    return err_set(e, st, "%s%s", where, text);
}

status talk_read_role(const jtree *message, const char *list, size_t i, talk_role *out, err *e)
{
    const talk_turn at = {.list = list, .index = (int32_t)i};
    const jtree *r = jtree_get(message, "role");
    int k = 0;
    if (message->kind != JTREE_OBJECT || !jtree_is(r, JTREE_STRING))
        return fail_at(&at, e, E_FORMAT, " is %s; expected an object with a role",
                       message->kind == JTREE_OBJECT ? "an object without a role"
                                                     : jtree_kind_name(message));
    while (k < TALK_ROLES && strcmp(r->s, talk_role_names[k]))
        k++;
    if (!strcmp(r->s, "function")) /* the predecessor of tool */
        k = TALK_TOOL;
    if (k == TALK_ROLES)
        return fail_at(&at, e, E_FORMAT,
                       " has the role \"%.60s\"; roles are system, developer, user, assistant and "
                       "tool",
                       r->s);
    *out = (talk_role)k;
    return OK;
}

/* A list that only messages of the assistant have. *out NULL: there is none, or it is empty. */
static status list_of(const talk_turn *m, const jtree *message, const char *key, const jtree **out,
                      err *e)
{
    const jtree *v = jtree_get(message, key);
    *out = NULL;
    if (v && v->kind != JTREE_ARRAY)
        return fail_at(m, e, E_FORMAT, ".%s is %s, not an array", key, jtree_kind_name(v));
    if (!v || !v->count)
        return OK;
    if (m->role != TALK_ASSISTANT)
        return fail_at(m, e, E_FORMAT, ".%s: only assistant messages have those", key);
    *out = v;
    return OK;
}

static status string_of(const talk_turn *m, const jtree *object, const char *key, talk_text *out,
                        err *e)
{
    const jtree *v = jtree_get(object, key);
    if (v && v->kind != JTREE_STRING)
        return fail_at(m, e, E_FORMAT, ".%s is %s, not a string", key, jtree_kind_name(v));
    *out = talk_string(v);
    return OK;
}

/* Some clients number their calls. */
static talk_text id_of(const jtree *v)
{
    return jtree_is(v, JTREE_INTEGER) ? (talk_text){v->s, v->n} : talk_string(v);
}

/* A call. That of a custom tool has a text, which is the function's argument. */
static void read_call(carat_talk *t, const jtree *v)
{
    const jtree *type = jtree_get(v, "type"), *custom = jtree_get(v, "custom");
    const jtree *f = jtree_get(v, "function");
    talk_call call = {.id = id_of(jtree_get(v, "id"))};
    call.arguments = jtree_get(f, "arguments");
    if (custom && jtree_is(type, JTREE_STRING) && !strcmp(type->s, "custom")) {
        jtree *object = jtree_object(t->mem);
        t->bad |=
            !object || !jtree_add(object, NULL, t->mem, "input", 5, jtree_get(custom, "input"));
        call.arguments = object;
        f = custom;
    }
    call.name = talk_string(jtree_get(f, "name"));
    talk_put_call(t, call);
}

/* `function_call` and the role `function` are the predecessors of `tool_calls` and `tool`. They
 * have no ids, so the number of the call becomes one. */
static talk_text function_id(carat_talk *t)
{
    char id[32];
    return talk_keep(t, id, (size_t)snprintf(id, sizeof id, "function_%d", (int)t->n_functions));
}

static status read_function(carat_talk *t, const jtree *message, err *e)
{
    const jtree *f = jtree_get(message, "function_call"), *role = jtree_get(message, "role");
    talk_turn *m = talk_last(t);
    if (m->role == TALK_TOOL && !strcmp(role->s, "function"))
        m->call_id = function_id(t);
    if (!jtree_is(f, JTREE_OBJECT) || m->n_calls)
        return OK;
    if (m->role != TALK_ASSISTANT)
        return fail_at(m, e, E_FORMAT, ".function_call: only assistant messages have those");
    t->n_functions++;
    talk_put_call(t, (talk_call){.id = function_id(t),
                                 .name = talk_string(jtree_get(f, "name")),
                                 .arguments = jtree_get(f, "arguments")});
    return OK;
}

status talk_read_turn(carat_talk *t, const jtree *message, talk_role role, const char *list,
                      size_t i, err *e)
{
    const jtree *calls, *results;
    status st;
    talk_add(t, role, list, (int32_t)i);
    if ((st = talk_check(t, e)))
        return st;
    talk_turn *m = talk_last(t);
    if ((st = list_of(m, message, "tool_calls", &calls, e)) ||
        (st = list_of(m, message, "tool_responses", &results, e)))
        return st;
    for (int k = 0; k < TALK_THINKING; k++)
        if ((st = string_of(m, message, thought_names[k], &m->thought[k], e)))
            return st;
    m->thought[TALK_THINKING] = talk_string(jtree_get(message, thought_names[TALK_THINKING]));
    if (role == TALK_TOOL && (st = string_of(m, message, "name", &m->name, e)))
        return st;
    m->call_id = id_of(jtree_get(message, "tool_call_id"));
    for (const jtree *c = calls ? calls->first : NULL; c; c = c->next)
        read_call(t, c);
    if ((st = read_function(t, message, e)))
        return st;
    for (const jtree *r = results ? results->first : NULL; r; r = r->next) {
        talk_result one = {.value = jtree_get(r, "response"), .given = jtree_has(r, "response")};
        if ((st = string_of(m, r, "name", &one.name, e)))
            return st;
        put_result(t, one);
    }
    return talk_check(t, e);
}

/* The kind of a part. Templates take a part without a type by its members. */
static talk_kind kind_of(const jtree *part)
{
    static const struct {
        const char *type;
        talk_kind kind;
    } kinds[] = {{"text", TALK_TEXT},   {"image", TALK_IMAGE},       {"image_url", TALK_IMAGE},
                 {"audio", TALK_AUDIO}, {"input_audio", TALK_AUDIO}, {"video", TALK_VIDEO}};
    const jtree *type = jtree_get(part, "type");
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if ((jtree_is(type, JTREE_STRING) && !strcmp(type->s, kinds[i].type)) ||
            (!type && jtree_has(part, kinds[i].type)))
            return kinds[i].kind;
    return TALK_KINDS;
}

static status read_part(const talk_turn *m, const jtree *v, talk_part *out, err *e)
{
    const jtree *type = jtree_get(v, "type"), *number = jtree_get(v, "number");
    *out = (talk_part){.kind = kind_of(v),
                       .name = jtree_is(type, JTREE_STRING) ? type->s : jtree_kind_name(type),
                       .number = -1,
                       .from = v};
    bool shown = out->kind == TALK_IMAGE || out->kind == TALK_AUDIO;
    out->text = talk_string(jtree_get(v, shown ? "name" : "text"));
    if (!number)
        return OK;
    long n = number->kind == JTREE_INTEGER ? strtol(number->s, NULL, 10) : -1;
    if (n < 0 || n > CHAT_MAX_IMAGES)
        return fail_at(m, e, E_FORMAT, ".content: the number of an image or a sound is not 0 to %d",
                       CHAT_MAX_IMAGES);
    out->number = (int32_t)n;
    return OK;
}

status talk_read_content(carat_talk *t, const jtree *content, err *e)
{
    talk_turn *m = talk_last(t);
    talk_part part;
    status st;
    if (!content || content->kind == JTREE_NULL)
        return OK;
    if (content->kind == JTREE_STRING) {
        talk_set_text(t, content->s, content->n);
        return talk_check(t, e);
    }
    if (content->kind != JTREE_ARRAY)
        return fail_at(m, e, E_FORMAT,
                       ".content is %s; expected a string, an array of parts, or null",
                       jtree_kind_name(content));
    m->shape = TALK_LIST;
    for (const jtree *v = content->first; v; v = v->next) {
        if ((st = read_part(m, v, &part, e)))
            return st;
        talk_put_part(t, part);
    }
    return talk_check(t, e);
}

status talk_read(carat_talk *t, const jtree *messages, err *e)
{
    talk_role role = TALK_USER;
    size_t i = 0;
    status st = OK;
    if (messages->kind != JTREE_ARRAY || !messages->count)
        return err_set(e, E_FORMAT, "messages is %s; expected an array with at least one message",
                       messages->kind == JTREE_ARRAY ? "empty" : jtree_kind_name(messages));
    for (const jtree *v = messages->first; v && !st; v = v->next, i++)
        if (!(st = talk_read_role(v, "messages", i, &role, e)) &&
            !(st = talk_read_turn(t, v, role, "messages", i, e)))
            st = talk_read_content(t, jtree_get(v, "content"), e);
    return st;
}
