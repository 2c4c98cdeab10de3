/* chat_messages.c - what the chat formats of all families read in a request: roles, strings, parts
 * of content, calls, arguments, tools.
 *
 * Everything here checks its input and fails with the place of the mistake: "messages[2].content".
 * The formats then print what they get without further checks.
 */
#include "text/chat_int.h"
#include "base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const chat_role_names[N_CHAT_ROLES] = {"system", "developer", "user", "assistant",
                                                   "tool"};

/* ---- Messages ---- */

static const jtree *list_of(chat_writer *w, const chat_message *m, const char *key)
{
    const jtree *v = jtree_get(m->v, key);
    if (!v)
        return NULL;
    if (v->kind != JTREE_ARRAY)
        chat_fail(w, E_FORMAT, "messages[%zu].%s is %s, not an array", m->i, key,
                  jtree_kind_name(v));
    else if (v->count && m->role != CHAT_ASSISTANT)
        chat_fail(w, E_FORMAT, "messages[%zu].%s: only assistant messages have those", m->i, key);
    else if (v->count > CHAT_MAX_CALLS)
        chat_fail(w, E_LIMIT, "messages[%zu].%s has %zu entries; carat takes up to %d", m->i, key,
                  v->count, CHAT_MAX_CALLS);
    return v->kind == JTREE_ARRAY && v->count ? v : NULL;
}

static void read_message(chat_writer *w, chat_message *m, const jtree *v, size_t i)
{
    const jtree *r = jtree_get(v, "role");
    int k = 0;
    *m = (chat_message){.v = v, .i = i};
    if (v->kind != JTREE_OBJECT || !jtree_is(r, JTREE_STRING)) {
        chat_fail(w, E_FORMAT, "messages[%zu] is %s; expected an object with a role", i,
                  v->kind == JTREE_OBJECT ? "an object without a role" : jtree_kind_name(v));
        return;
    }
    while (k < N_CHAT_ROLES && strcmp(r->s, chat_role_names[k]))
        k++;
    if (k == N_CHAT_ROLES) {
        chat_fail(w, E_FORMAT,
                  "messages[%zu] has the role \"%.60s\"; roles are system, developer, user, "
                  "assistant and tool",
                  i, r->s);
        return;
    }
    m->role = (chat_role)k;
    m->calls = list_of(w, m, "tool_calls");
    m->responses = list_of(w, m, "tool_responses");
}

bool chat_read_messages(chat_writer *w, const jtree *messages, const jtree *tools,
                        chat_message **out, size_t *n)
{
    *out = NULL;
    *n = 0;
    if (messages->kind != JTREE_ARRAY || !messages->count) {
        chat_fail(w, E_FORMAT, "messages is %s; expected an array with at least one message",
                  messages->kind == JTREE_ARRAY ? "empty" : jtree_kind_name(messages));
        return false;
    }
    if (tools && tools->kind != JTREE_ARRAY && tools->kind != JTREE_NULL) {
        chat_fail(w, E_FORMAT, "tools is %s; expected an array", jtree_kind_name(tools));
        return false;
    }
    *out = arena_array(w->mem, messages->count, sizeof **out);
    if (!*out) {
        chat_fail(w, E_MEMORY, "no memory for %zu messages", messages->count);
        return false;
    }
    for (const jtree *v = messages->first; v && !w->st; v = v->next, ++*n)
        read_message(w, &(*out)[*n], v, *n);
    return !w->st;
}

const jtree *chat_string_of(chat_writer *w, const chat_message *m, const jtree *object,
                            const char *key)
{
    const jtree *v = jtree_get(object, key);
    if (v && v->kind != JTREE_STRING)
        chat_fail(w, E_FORMAT, "messages[%zu].%s is %s, not a string", m->i, key,
                  jtree_kind_name(v));
    return jtree_is(v, JTREE_STRING) && v->n ? v : NULL;
}

/* ---- Content ---- */

const jtree *chat_content_of(chat_writer *w, const chat_message *m)
{
    const jtree *c = jtree_get(m->v, "content");
    if (c && c->kind != JTREE_STRING && c->kind != JTREE_ARRAY)
        chat_fail(w, E_FORMAT,
                  "messages[%zu].content is %s; expected a string, an array of parts, or null",
                  m->i, jtree_kind_name(c));
    return c;
}

/* The kind of a part; N_CHAT_KINDS: unknown. Templates take a part without a type by its members.
 */
static chat_kind kind_of(const jtree *part)
{
    static const struct {
        const char *type;
        chat_kind kind;
    } kinds[] = {{"text", CHAT_TEXT},   {"image", CHAT_IMAGE},       {"image_url", CHAT_IMAGE},
                 {"audio", CHAT_AUDIO}, {"input_audio", CHAT_AUDIO}, {"video", CHAT_VIDEO}};
    const jtree *type = jtree_get(part, "type");
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if ((jtree_is(type, JTREE_STRING) && !strcmp(type->s, kinds[i].type)) ||
            (!type && jtree_has(part, kinds[i].type)))
            return kinds[i].kind;
    return N_CHAT_KINDS;
}

static bool number_of(chat_writer *w, const chat_message *m, const jtree *it, int32_t *out)
{
    const jtree *v = jtree_get(it, "number");
    char *end;
    *out = -1;
    if (!v)
        return true;
    long n = v->kind == JTREE_INTEGER ? strtol(v->s, &end, 10) : -1;
    if (n < 0 || n > CHAT_MAX_IMAGES) {
        chat_fail(w, E_FORMAT,
                  "messages[%zu].content: the number of an image or a sound is not 0 to %d", m->i,
                  CHAT_MAX_IMAGES);
        return false;
    }
    *out = (int32_t)n;
    return true;
}

bool chat_part_of(chat_writer *w, const chat_message *m, const jtree *it, const chat_media *media,
                  chat_part *out)
{
    static const char *const words[] = {
        [CHAT_IMAGE] = "image", [CHAT_AUDIO] = "audio", [CHAT_VIDEO] = "video"};
    const jtree *type = jtree_get(it, "type"), *text = jtree_get(it, "text");
    const char *name = jtree_is(type, JTREE_STRING) ? type->s : jtree_kind_name(type);
    *out = (chat_part){.kind = kind_of(it), .text = text};
    if (out->kind == N_CHAT_KINDS || (out->kind == CHAT_TEXT && !jtree_is(text, JTREE_STRING)))
        chat_fail(w, E_FORMAT, "messages[%zu].content: a part of type \"%.60s\"%s; expected text%s",
                  m->i, name, jtree_is(text, JTREE_STRING) ? "" : " without text",
                  media ? ", image, image_url, audio or video" : ", which is all this model reads");
    else if (out->kind != CHAT_TEXT && !(media && media->mark[out->kind]))
        chat_fail(w, E_UNSUPPORTED,
                  "messages[%zu].content: %s input is not supported by this model", m->i,
                  words[out->kind]);
    return !w->st && number_of(w, m, it, &out->number);
}

void chat_put_media(chat_writer *w, const chat_media *media, chat_kind kind, int32_t number)
{
    chat_prompt *p = w->p;
    if (w->st)
        return;
    chat_lit(w, media->mark[kind]);
    if (kind == CHAT_VIDEO) {
        p->n_others++;
        return;
    }
    p->n_sounds += kind == CHAT_AUDIO;
    if (p->n_images == CHAT_MAX_IMAGES) {
        chat_fail(w, E_LIMIT, "messages holds more than %d images and sounds", CHAT_MAX_IMAGES);
        return;
    }
    if (p->n_images == p->cap_images) {
        int32_t cap = p->cap_images ? p->cap_images * 2 : 8;
        int32_t *more = mem_realloc(p->image, (size_t)cap, sizeof *more);
        if (!more) {
            chat_fail(w, E_MEMORY, "no memory for %d images", cap);
            return;
        }
        p->image = more;
        p->cap_images = cap;
    }
    p->n_around = media->n_around;
    p->image[p->n_images] = number < 0 ? p->n_images : number;
    p->n_images++;
}

/* A mark: this byte, the kind as a digit, a number, MARK_END. */
enum { MARK_BEGIN = 0xFF, MARK_END = 0xFE };

void chat_put_marked(chat_writer *w, const chat_media *media, chat_text t)
{
    const char *mark;
    while (t.n && (mark = memchr(t.s, MARK_BEGIN, t.n))) {
        const char *end = memchr(mark, MARK_END, t.n - (size_t)(mark - t.s));
        chat_put(w, t.s, (size_t)(mark - t.s));
        chat_put_media(w, media, (chat_kind)(mark[1] - '0'), (int32_t)strtol(mark + 2, NULL, 10));
        t.n -= (size_t)(end + 1 - t.s);
        t.s = end + 1;
    }
    chat_put(w, t.s, t.n);
}

/* The content's text in one piece. A string is borrowed; parts are joined in the arena. */
chat_text chat_text_of(chat_writer *w, const chat_message *m, const chat_media *media)
{
    const jtree *c = chat_content_of(w, m);
    str all = {0};
    if (!jtree_is(c, JTREE_ARRAY))
        return jtree_is(c, JTREE_STRING) ? (chat_text){c->s, c->n} : (chat_text){"", 0};
    for (const jtree *it = c->first; it && !w->st; it = it->next) {
        chat_part part;
        if (!chat_part_of(w, m, it, media, &part))
            break;
        if (part.kind == CHAT_TEXT)
            str_put(&all, part.text->s, part.text->n);
        else if (m->role == CHAT_SYSTEM || m->role == CHAT_DEVELOPER)
            chat_fail(w, E_FORMAT, "messages[%zu].content: a system message holds text only", m->i);
        else
            str_printf(&all, "%c%c%d%c", MARK_BEGIN, '0' + (int)part.kind, (int)part.number,
                       MARK_END);
    }
    char *copy = all.bad ? NULL : arena_strndup(w->mem, str_text(&all), all.n);
    if (!copy)
        chat_fail(w, E_MEMORY, "no memory for a message");
    chat_text t = {copy ? copy : "", copy ? all.n : 0};
    str_free(&all);
    return t;
}

chat_text chat_trimmed(chat_text t)
{
    text_trim(&t.s, &t.n);
    return t;
}

chat_text chat_without_lines(chat_text t, bool front, bool back)
{
    while (front && t.n && *t.s == '\n') {
        t.s++;
        t.n--;
    }
    while (back && t.n && t.s[t.n - 1] == '\n')
        t.n--;
    return t;
}

/* The last occurrence of what in t, or NULL. */
static const char *find_last(chat_text t, const char *what)
{
    const char *found = NULL, *at = t.s, *end = t.s + t.n;
    size_t n = strlen(what);
    while ((at = memmem(at, (size_t)(end - at), what, n))) {
        found = at;
        at += n;
    }
    return found;
}

bool chat_split_thought(chat_text *content, const char *open, const char *close, chat_text *thought)
{
    chat_text whole = *content, t = whole;
    const char *first = memmem(t.s, t.n, close, strlen(close));
    if (!first)
        return false;
    t = chat_without_lines((chat_text){t.s, (size_t)(first - t.s)}, false, true);
    const char *begin = find_last(t, open), *last = find_last(whole, close) + strlen(close);
    if (begin) {
        t.n -= (size_t)(begin - t.s) + strlen(open);
        t.s = begin + strlen(open);
    }
    *thought = chat_without_lines(t, true, false);
    *content =
        chat_without_lines((chat_text){last, (size_t)(whole.s + whole.n - last)}, true, false);
    return true;
}

/* ---- Calls ---- */

const jtree *chat_call_name(chat_writer *w, const chat_message *m, const jtree *call, size_t i)
{
    const jtree *f = jtree_get(call, "function"), *name = jtree_get(f, "name");
    if (chat_is_name(name))
        return name;
    chat_fail(w, E_FORMAT,
              "messages[%zu].tool_calls[%zu] has no usable function name (a non-empty string "
              "without braces and control characters)",
              m->i, i);
    return NULL;
}

/* The one key of arguments that are no object. */
static const char text_key[] = "arguments";

bool chat_is_wrapped(const jtree *arguments)
{
    return arguments->first && arguments->first->key == text_key;
}

/* {"arguments": TEXT} */
static const jtree *wrap_text(chat_writer *w, const char *s, size_t n)
{
    jtree *object = arena_array(w->mem, 2, sizeof *object), *text = object + 1;
    if (!object) {
        chat_fail(w, E_MEMORY, "no memory for the arguments of a call");
        return NULL;
    }
    *text = (jtree){.kind = JTREE_STRING, .s = s, .n = n};
    text->key = text_key;
    text->n_key = sizeof text_key - 1;
    *object = (jtree){.kind = JTREE_OBJECT, .s = "", .first = text, .count = 1};
    return object;
}

/* Arguments that are JSON, and no object. */
static const jtree *wrap_tree(chat_writer *w, const jtree *v)
{
    str s = {0};
    jtree_put_json(&s, v);
    const char *copy = s.bad ? NULL : arena_strndup(w->mem, str_text(&s), s.n);
    size_t n = s.n;
    str_free(&s);
    if (!copy) {
        chat_fail(w, E_MEMORY, "no memory for the arguments of a call");
        return NULL;
    }
    return wrap_text(w, copy, n);
}

/* Names the call in the prompt, without control characters: logs have it. */
static void note_odd_arguments(chat_prompt *p, const jtree *call)
{
    const jtree *id = jtree_get(call, "id"), *name = jtree_get(jtree_get(call, "function"), "name");
    char *s = p->odd_arguments;
    if (*s)
        return;
    snprintf(s, sizeof p->odd_arguments, "%.60s of %.40s", jtree_is(id, JTREE_STRING) ? id->s : "?",
             jtree_is(name, JTREE_STRING) ? name->s : "?");
    for (; *s; s++)
        if ((unsigned char)*s < 0x20 || (unsigned char)*s > 0x7E)
            *s = '?';
}

const jtree *chat_arguments(chat_writer *w, const chat_message *m, const jtree *call, size_t i,
                            char where[CHAT_WHERE])
{
    const jtree *a = jtree_get(jtree_get(call, "function"), "arguments"), *v = a;
    snprintf(where, CHAT_WHERE, "messages[%zu].tool_calls[%zu].function.arguments", m->i, i);
    if (jtree_is(a, JTREE_STRING)) {
        chat_text t = chat_trimmed((chat_text){a->s, a->n});
        if (!t.n)
            return NULL;
        err e = {0};
        if (jtree_parse(t.s, t.n, where, CHAT_MAX_DEPTH, w->mem, &v, &e)) {
            if (e.status == E_MEMORY || w->mem->over)
                chat_fail(w, e.status, "%s", e.text);
            v = a; /* broken JSON is text, and so is JSON nested too deep */
        }
    }
    if (w->st || !v || v->kind == JTREE_NULL)
        return NULL;
    if (v->kind == JTREE_OBJECT)
        return v;
    note_odd_arguments(w->p, call);
    return jtree_is(a, JTREE_STRING) ? wrap_text(w, a->s, a->n) : wrap_tree(w, v);
}

/* ---- Tools ---- */

void chat_tool_place(const jtree *tool, size_t i, char where[CHAT_WHERE])
{
    const jtree *name = jtree_get(jtree_get(tool, "function"), "name");
    bool named = jtree_is(name, JTREE_STRING);
    snprintf(where, CHAT_WHERE, "tools[%zu]%s%.80s%s", i, named ? " (" : "", named ? name->s : "",
             named ? ")" : "");
}

const jtree *chat_function_of(chat_writer *w, const jtree *tool, const char *where)
{
    const jtree *f = jtree_get(tool, "function"), *kind = jtree_get(tool, "type");
    const jtree *text = jtree_get(f, "description"), *params = jtree_get(f, "parameters");
    if (w->st)
        return NULL;
    if (kind && !(kind->kind == JTREE_STRING && !strcmp(kind->s, "function"))) {
        chat_fail(w, E_UNSUPPORTED, "%s: a tool of type %.60s; this model knows functions only",
                  where, kind->kind == JTREE_STRING ? kind->s : jtree_kind_name(kind));
    } else if (!jtree_is(f, JTREE_OBJECT) || !chat_is_name(jtree_get(f, "name"))) {
        chat_fail(w, E_FORMAT,
                  "%s: expected {\"type\": \"function\", \"function\": {\"name\": ...}}", where);
    } else if (text && text->kind != JTREE_STRING) {
        chat_fail(w, E_FORMAT, "%s: the description is %s, not a string", where,
                  jtree_kind_name(text));
    } else if (params && params->kind != JTREE_OBJECT) {
        chat_fail(w, E_FORMAT, "%s: the parameters are %s, not an object", where,
                  jtree_kind_name(params));
    } else {
        return f;
    }
    return NULL;
}

/* ---- JSON, as Python's json.dumps prints it ---- */

void chat_put_json(chat_writer *w, const jtree *v, const char *where)
{
    str s = {0};
    if (!w->st && !jtree_put_python_json(&s, v))
        chat_fail(w, E_FORMAT, "%s: a number is too large for a double", where);
    if (s.bad)
        chat_fail(w, E_MEMORY, "no memory for the JSON of %s", where);
    chat_put(w, str_text(&s), s.n);
    str_free(&s);
}

void chat_put_value(chat_writer *w, const jtree *v, const char *where)
{
    if (v->kind == JTREE_STRING)
        chat_put(w, v->s, v->n);
    else
        chat_put_json(w, v, where);
}

void chat_put_python(chat_writer *w, const jtree *v, const char *where)
{
    static const char *const word[] = {"None", "False", "True"};
    if (v->kind <= JTREE_TRUE)
        chat_puts(w, word[v->kind]);
    else
        chat_put_value(w, v, where);
}
