/* chat_messages.c - what the chat formats of all families read in a conversation: parts of content,
 * names and arguments of calls, tools.
 *
 * Everything here checks its input and fails with the place of the mistake: "messages[2].content".
 * The formats then print what they get without further checks.
 */
#include "text/chat_int.h"
#include "base/mem.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void chat_fail_at(chat_writer *w, const talk_turn *m, status st, const char *fmt, ...)
{
    char text[700], where[TALK_WHERE];
    va_list ap;
    if (w->st)
        return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    talk_where(m, "", where);
    chat_fail(w, st, "%s%s", where, text);
}

const jtree *chat_tools(const carat_talk *t)
{
    return jtree_truthy(t->tools) ? t->tools : NULL;
}

bool chat_says(const char *template_text, size_t n, const char *what)
{
    return n && memmem(template_text, n, what, strlen(what));
}

bool chat_goes_on(const carat_chat_options *opt, const talk_turn *m, size_t n, size_t i)
{
    return opt->continue_last && i + 1 == n && m[i].role == TALK_ASSISTANT && !m[i].n_calls;
}

void chat_refuse_results(chat_writer *w, const talk_turn *m)
{
    if (m->n_results)
        chat_fail_at(w, m, E_FORMAT,
                     ".tool_responses: this model's results are messages of the role tool");
}

/* ---- Content ---- */

bool chat_check_part(chat_writer *w, const talk_turn *m, const talk_part *part,
                     const chat_media *media)
{
    static const char *const words[] = {
        [TALK_IMAGE] = "image", [TALK_AUDIO] = "audio", [TALK_VIDEO] = "video"};
    if (part->kind == TALK_KINDS || (part->kind == TALK_TEXT && !part->text.s))
        chat_fail_at(w, m, E_FORMAT, ".content: a part of type \"%.60s\"%s; expected text%s",
                     part->name, part->text.s ? "" : " without text",
                     media ? ", image, image_url, audio or video"
                           : ", which is all this model reads");
    else if (part->kind != TALK_TEXT && !(media && media->mark[part->kind]))
        chat_fail_at(w, m, E_UNSUPPORTED, ".content: %s input is not supported by this model",
                     words[part->kind]);
    return !w->st;
}

void chat_put_media(chat_writer *w, const chat_media *media, const talk_part *part)
{
    chat_prompt *p = w->p;
    if (w->st)
        return;
    chat_lit(w, media->mark[part->kind]);
    if (part->kind == TALK_VIDEO) {
        p->n_others++;
        return;
    }
    p->n_sounds += part->kind == TALK_AUDIO;
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
    p->image[p->n_images] = part->number < 0 ? p->n_images : part->number;
    p->n_images++;
}

/* A mark: this byte, the kind as a digit, a number, MARK_END. */
enum { MARK_BEGIN = 0xFF, MARK_END = 0xFE };

void chat_put_marked(chat_writer *w, const chat_media *media, talk_text t)
{
    const char *mark;
    while (t.n && (mark = memchr(t.s, MARK_BEGIN, t.n))) {
        const char *end = memchr(mark, MARK_END, t.n - (size_t)(mark - t.s));
        chat_put(w, t.s, (size_t)(mark - t.s));
        chat_put_media(w, media,
                       &(talk_part){.kind = (talk_kind)(mark[1] - '0'),
                                    .number = (int32_t)strtol(mark + 2, NULL, 10)});
        t.n -= (size_t)(end + 1 - t.s);
        t.s = end + 1;
    }
    chat_put(w, t.s, t.n);
}

void chat_put_text(chat_writer *w, talk_text t)
{
    chat_put(w, t.s, t.n);
}

/* The content's text in one piece. One text is borrowed; parts are joined in the arena. */
talk_text chat_text_of(chat_writer *w, const talk_turn *m, const chat_media *media)
{
    str all = {0};
    if (m->shape != TALK_LIST)
        return m->shape == TALK_WHOLE ? m->part->text : (talk_text){"", 0};
    for (size_t i = 0; i < m->n_parts && chat_check_part(w, m, &m->part[i], media); i++) {
        const talk_part *part = &m->part[i];
        if (part->kind == TALK_TEXT)
            str_put(&all, part->text.s, part->text.n);
        else if (talk_is_system(m))
            chat_fail_at(w, m, E_FORMAT, ".content: a system message holds text only");
        else
            str_printf(&all, "%c%c%d%c", MARK_BEGIN, '0' + (int)part->kind, (int)part->number,
                       MARK_END);
    }
    char *copy = all.bad ? NULL : arena_strndup(w->mem, str_text(&all), all.n);
    if (!copy)
        chat_fail(w, E_MEMORY, "no memory for a message");
    talk_text t = {copy ? copy : "", copy ? all.n : 0};
    str_free(&all);
    return t;
}

talk_text chat_trimmed(talk_text t)
{
    text_trim(&t.s, &t.n);
    return t;
}

talk_text chat_without_lines(talk_text t, bool front, bool back)
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
static const char *find_last(talk_text t, const char *what)
{
    const char *found = NULL, *at = t.s, *end = t.s + t.n;
    size_t n = strlen(what);
    while ((at = memmem(at, (size_t)(end - at), what, n))) {
        found = at;
        at += n;
    }
    return found;
}

bool chat_split_thought(talk_text *content, const char *open, const char *close, talk_text *thought)
{
    talk_text whole = *content, t = whole;
    const char *first = memmem(t.s, t.n, close, strlen(close));
    if (!first)
        return false;
    t = chat_without_lines((talk_text){t.s, (size_t)(first - t.s)}, false, true);
    const char *begin = find_last(t, open), *last = find_last(whole, close) + strlen(close);
    if (begin) {
        t.n -= (size_t)(begin - t.s) + strlen(open);
        t.s = begin + strlen(open);
    }
    *thought = chat_without_lines(t, true, false);
    *content =
        chat_without_lines((talk_text){last, (size_t)(whole.s + whole.n - last)}, true, false);
    return true;
}

/* ---- Calls ---- */

bool chat_is_name(talk_text t)
{
    for (size_t i = 0; i < t.n; i++)
        if ((unsigned char)t.s[i] < 0x20 || t.s[i] == '{' || t.s[i] == '}')
            return false;
    return t.n > 0;
}

const talk_text *chat_call_name(chat_writer *w, const talk_turn *m, size_t i)
{
    if (chat_is_name(m->call[i].name))
        return &m->call[i].name;
    chat_fail_at(w, m, E_FORMAT,
                 ".tool_calls[%zu] has no usable function name (a non-empty string without braces "
                 "and control characters)",
                 i);
    return NULL;
}

bool chat_same_id(talk_text a, talk_text b)
{
    return !a.s == !b.s && a.n == b.n && (!a.n || !memcmp(a.s, b.s, a.n));
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
    const jtree text = {.kind = JTREE_STRING, .s = s, .n = n};
    jtree *object = jtree_object(w->mem);
    if (object && jtree_add(object, NULL, w->mem, text_key, sizeof text_key - 1, &text))
        return object;
    chat_fail(w, E_MEMORY, "no memory for the arguments of a call");
    return NULL;
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
static void note_odd_arguments(chat_prompt *p, const talk_call *call)
{
    char *s = p->odd_arguments;
    if (*s)
        return;
    snprintf(s, sizeof p->odd_arguments, "%.60s of %.40s", call->id.s ? call->id.s : "?",
             call->name.s ? call->name.s : "?");
    for (; *s; s++)
        if ((unsigned char)*s < 0x20 || (unsigned char)*s > 0x7E)
            *s = '?';
}

const jtree *chat_arguments(chat_writer *w, const talk_turn *m, size_t i, char where[TALK_WHERE])
{
    char behind[64];
    const jtree *a = m->call[i].arguments, *v = a;
    snprintf(behind, sizeof behind, ".tool_calls[%zu].function.arguments", i);
    talk_where(m, behind, where);
    if (jtree_is(a, JTREE_STRING)) {
        talk_text t = chat_trimmed((talk_text){a->s, a->n});
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
    note_odd_arguments(w->p, &m->call[i]);
    return jtree_is(a, JTREE_STRING) ? wrap_text(w, a->s, a->n) : wrap_tree(w, v);
}

/* ---- Tools ---- */

void chat_tool_place(const jtree *tool, size_t i, char where[TALK_WHERE])
{
    const jtree *name = jtree_get(jtree_get(tool, "function"), "name");
    bool named = jtree_is(name, JTREE_STRING);
    snprintf(where, TALK_WHERE, "tools[%zu]%s%.80s%s", i, named ? " (" : "", named ? name->s : "",
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
    } else if (!jtree_is(f, JTREE_OBJECT) || !chat_is_name(talk_string(jtree_get(f, "name")))) {
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
