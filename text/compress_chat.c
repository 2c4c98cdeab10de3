/* compress_chat.c - which texts of a conversation may be shortened, and the conversation with
 * shorter ones. compress.h has the rules. */
#include "text/compress.h"

#include <string.h>

typedef enum who { WHO_OTHER, WHO_USER, WHO_ASSISTANT } who;

typedef struct entry {
    const jtree *message;
    who who;
    int64_t turn; /* from 0; -1: before the first user message */
} entry;

typedef struct finder {
    entry *entry;        /* [n] */
    const jtree **asked; /* [n_turns]: the last user message of each turn */
    compress_text *asks; /* [n_turns]: its text, made when it is needed */
    size_t n;
    int64_t n_turns;
    arena *mem;
    compress_texts *out;
    size_t least, cap;
    bool full; /* no memory */
} finder;

static bool is_text(const jtree *v, const char *word)
{
    return jtree_is(v, JTREE_STRING) && !strcmp(v->s, word);
}

static who who_of(const jtree *message)
{
    const jtree *role = jtree_get(message, "role");
    return is_text(role, "user")        ? WHO_USER
           : is_text(role, "assistant") ? WHO_ASSISTANT
                                        : WHO_OTHER;
}

/* The text of a part of content, or NULL. */
static const jtree *text_of_part(const jtree *part)
{
    const jtree *type = jtree_get(part, "type"), *text = jtree_get(part, "text");
    return (!type || is_text(type, "text")) && jtree_is(text, JTREE_STRING) ? text : NULL;
}

static void read_turns(finder *f, const jtree *messages)
{
    who before = WHO_OTHER;
    for (const jtree *m = messages->first; m; m = m->next) {
        who from = who_of(m);
        f->n_turns += from == WHO_USER && before != WHO_USER;
        if (from == WHO_USER)
            f->asked[f->n_turns - 1] = m;
        f->entry[f->n++] = (entry){m, from, f->n_turns - 1};
        before = from;
    }
}

/* The texts of the message that asks in a turn, one after the other. */
static void find_question(finder *f, int64_t turn, compress_text *to)
{
    compress_text *q = &f->asks[turn];
    const jtree *c = jtree_get(f->asked[turn], "content");
    str all = {0};
    if (!q->query && jtree_is(c, JTREE_STRING)) {
        *q = (compress_text){.query = c->s, .n_query = c->n};
    } else if (!q->query) {
        for (const jtree *v = jtree_is(c, JTREE_ARRAY) ? c->first : NULL; v; v = v->next) {
            const jtree *text = text_of_part(v);
            if (text && all.n)
                str_putc(&all, '\n');
            if (text)
                str_put(&all, text->s, text->n);
        }
        q->query = all.bad ? NULL : arena_strndup(f->mem, str_text(&all), all.n);
        q->n_query = all.n;
        f->full |= !q->query;
        str_free(&all);
    }
    to->query = q->query ? q->query : "";
    to->n_query = q->query ? q->n_query : 0;
}

static void add_text(finder *f, size_t message, int64_t part, const jtree *text, bool asks)
{
    compress_texts *out = f->out;
    if (text->n < f->least || out->n == COMPRESS_TEXTS_MAX || f->full)
        return;
    if (out->n == f->cap) {
        size_t cap = f->cap ? 2 * f->cap : 16;
        compress_text *at = arena_array(f->mem, cap, sizeof *at);
        if (!at) {
            f->full = true;
            return;
        }
        if (out->n)
            memcpy(at, out->at, out->n * sizeof *at);
        out->at = at;
        f->cap = cap;
    }
    compress_text *t = &out->at[out->n];
    int64_t turn = f->entry[message].turn + COMPRESS_TURNS;
    *t = (compress_text){
        .message = message, .part = part, .text = text->s, .n = text->n, .asks = asks};
    find_question(f, turn < f->n_turns ? turn : f->n_turns - 1, t);
    out->n += !f->full;
}

/* The messages of one entry that may be shortened. */
static void add_message(finder *f, size_t i)
{
    const entry *m = &f->entry[i];
    const jtree *c = jtree_get(m->message, "content");
    bool aged = m->turn + COMPRESS_TURNS < f->n_turns;
    int64_t k = 0;
    bool asks = m->turn >= 0 && m->message == f->asked[m->turn];
    const jtree *last = NULL; /* part that is a text: the question is in it */
    if (m->turn < 0 || m->who == WHO_OTHER ||
        (m->who == WHO_ASSISTANT && (!aged || jtree_truthy(jtree_get(m->message, "tool_calls")) ||
                                     jtree_truthy(jtree_get(m->message, "tool_responses")))))
        return;
    if (jtree_is(c, JTREE_STRING))
        add_text(f, i, -1, c, asks);
    for (const jtree *v = jtree_is(c, JTREE_ARRAY) ? c->first : NULL; v && asks; v = v->next)
        last = text_of_part(v) ? v : last;
    for (const jtree *v = jtree_is(c, JTREE_ARRAY) ? c->first : NULL; v; v = v->next, k++) {
        const jtree *text = text_of_part(v);
        if (text)
            add_text(f, i, k, text, v == last);
    }
}

status compress_find(const jtree *messages, size_t least_bytes, arena *mem, compress_texts *out,
                     err *e)
{
    finder f = {.mem = mem, .out = out, .least = least_bytes};
    *out = (compress_texts){0};
    if (!jtree_is(messages, JTREE_ARRAY) || !messages->count)
        return OK;
    f.entry = arena_array(mem, messages->count, sizeof *f.entry);
    f.asked = arena_array(mem, messages->count, sizeof *f.asked);
    f.asks = arena_array(mem, messages->count, sizeof *f.asks);
    f.full = !f.entry || !f.asked || !f.asks;
    if (!f.full)
        read_turns(&f, messages);
    for (size_t i = 0; i < f.n && f.n_turns && !f.full; i++)
        add_message(&f, i);
    return f.full ? err_memory(e, "the texts of a conversation", messages->count * sizeof *f.entry)
                  : OK;
}

/* ---- Writing --------------------------------------------------------------------------------- */

typedef struct writer {
    const compress_texts *texts;
    const str *now;
    size_t i; /* the next text */
    str *out;
} writer;

/* The text at this place, shortened, or the value as it is. */
static void put_text(writer *w, size_t message, int64_t part, const jtree *v)
{
    const compress_text *t = w->i < w->texts->n ? &w->texts->at[w->i] : NULL;
    if (!t || t->message != message || t->part != part) {
        jtree_put_json(w->out, v);
        return;
    }
    const str *now = &w->now[w->i++];
    if (now->at)
        jtree_put_string(w->out, now->at, now->n);
    else
        jtree_put_json(w->out, v);
}

static void put_key(str *out, const jtree *v, bool first)
{
    str_puts(out, first ? "" : ", ");
    jtree_put_string(out, v->key, v->n_key);
    str_puts(out, ": ");
}

static void put_parts(writer *w, size_t message, const jtree *content)
{
    int64_t k = 0;
    str_putc(w->out, '[');
    for (const jtree *v = content->first; v; v = v->next, k++) {
        const jtree *text = text_of_part(v);
        str_puts(w->out, k ? ", " : "");
        if (!text) {
            jtree_put_json(w->out, v);
            continue;
        }
        str_putc(w->out, '{');
        for (const jtree *m = v->first; m; m = m->next) {
            put_key(w->out, m, m == v->first);
            if (m == text)
                put_text(w, message, k, m);
            else
                jtree_put_json(w->out, m);
        }
        str_putc(w->out, '}');
    }
    str_putc(w->out, ']');
}

void compress_write(const jtree *messages, const compress_texts *texts, const str *now, str *out)
{
    writer w = {.texts = texts, .now = now, .out = out};
    size_t i = 0;
    str_putc(out, '[');
    for (const jtree *v = messages->first; v; v = v->next, i++) {
        const jtree *content = jtree_get(v, "content");
        str_puts(out, i ? ", " : "");
        if (!jtree_is(v, JTREE_OBJECT)) {
            jtree_put_json(out, v);
            continue;
        }
        str_putc(out, '{');
        for (const jtree *m = v->first; m; m = m->next) {
            put_key(out, m, m == v->first);
            if (m == content && jtree_is(m, JTREE_ARRAY))
                put_parts(&w, i, m);
            else if (m == content && jtree_is(m, JTREE_STRING))
                put_text(&w, i, -1, m);
            else
                jtree_put_json(out, m);
        }
        str_putc(out, '}');
    }
    str_putc(out, ']');
}
