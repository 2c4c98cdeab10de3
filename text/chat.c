/* chat.c - the common part of all chat formats: parses the JSON of a request, marks each byte of
 * the prompt as template or conversation, and encodes the prompt.
 *
 * The formats themselves belong to the families: text/family.h.
 */
#include "text/chat_int.h"
#include "base/mem.h"
#include "base/utf8.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* ---- Templates ---- */

const chat_format *chat_format_of(const text_family *f, const char *template_text, size_t n)
{
    return f && n && f->recognise ? f->recognise(template_text, n) : NULL;
}

/* ---- The writer ---- */

void chat_fail(chat_writer *w, status st, const char *fmt, ...)
{
    char text[900];
    va_list ap;
    if (w->st)
        return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    w->st = err_set(w->e, st, "%s", text);
}

static void write_text(chat_writer *w, const char *text, size_t n, bool literal)
{
    chat_prompt *p = w->p;
    if (w->st || !n)
        return;
    size_t at = p->text.n;
    str_put(&p->text, text, n);
    if (p->text.bad) {
        chat_fail(w, E_MEMORY, "no memory for a prompt of more than %zu bytes", at);
        return;
    }
    chat_segment *last = p->n_segments ? &p->segment[p->n_segments - 1] : NULL;
    if (last && last->literal == literal) {
        last->n += n;
        return;
    }
    if (p->n_segments == p->cap_segments) {
        size_t cap = p->cap_segments ? p->cap_segments * 2 : 32;
        chat_segment *more = mem_realloc(p->segment, cap, sizeof *more);
        if (!more) {
            chat_fail(w, E_MEMORY, "no memory for a prompt of %zu segments", cap);
            return;
        }
        p->segment = more;
        p->cap_segments = cap;
    }
    p->segment[p->n_segments++] = (chat_segment){at, n, literal};
}

void chat_lit(chat_writer *w, const char *text)
{
    write_text(w, text, strlen(text), true);
}

void chat_put(chat_writer *w, const char *text, size_t n)
{
    write_text(w, text, n, false);
}

void chat_puts(chat_writer *w, const char *text)
{
    write_text(w, text, strlen(text), false);
}

void chat_prompt_free(chat_prompt *p)
{
    str_free(&p->text);
    mem_free(p->segment);
    mem_free(p->image);
    *p = (chat_prompt){0};
}

/* ---- Strings ---- */

/* The characters that Python's str.strip() removes. */
static bool is_json_space(uint32_t cp)
{
    return (cp >= 0x09 && cp <= 0x0D) || (cp >= 0x1C && cp <= 0x20) || cp == 0x85 || cp == 0xA0 ||
           cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200A) || cp == 0x2028 || cp == 0x2029 ||
           cp == 0x202F || cp == 0x205F || cp == 0x3000;
}

void text_trim(const char **s, size_t *n)
{
    uint32_t cp;
    bool ok;
    while (*n) {
        size_t len = (size_t)utf8_decode(*s, *n, &cp, &ok);
        if (!is_json_space(cp))
            break;
        *s += len;
        *n -= len;
    }
    while (*n) {
        size_t at = *n - 1;
        while (at > 0 && *n - at < 4 && ((unsigned char)(*s)[at] & 0xC0) == 0x80)
            at--;
        utf8_decode(*s + at, *n - at, &cp, &ok);
        if (!is_json_space(cp))
            break;
        *n = at;
    }
}

/* ---- The day ---- */

chat_day chat_today(chat_writer *w, const carat_chat_options *opt)
{
    chat_day d = {1970, 1, 1};
    time_t now = time(NULL);
    struct tm t;
    char behind;
    if (!opt->date) {
        if (localtime_r(&now, &t))
            d = (chat_day){t.tm_year + 1900, t.tm_mon + 1, t.tm_mday};
    } else if (strlen(opt->date) != 10 ||
               sscanf(opt->date, "%4d-%2d-%2d%c", &d.year, &d.month, &d.day, &behind) != 3 ||
               d.month < 1 || d.month > 12 || d.day < 1 || d.day > 31) {
        chat_fail(w, E_ARG, "the date \"%.40s\" is no YYYY-MM-DD", opt->date);
        d = (chat_day){1970, 1, 1};
    }
    return d;
}

/* ---- Prompts ---- */

static status parse_messages(const char *text, size_t n, const char *what, arena *mem,
                             const jtree **out, err *e)
{
    if (n > CHAT_MAX_JSON_BYTES)
        return err_set(e, E_LIMIT, "%s: %zu bytes of JSON; carat reads up to %d", what, n,
                       CHAT_MAX_JSON_BYTES);
    return jtree_parse(text, n, what, CHAT_MAX_DEPTH, mem, out, e);
}

static status refuse_calls(const talk_turn *m, err *e)
{
    char where[TALK_WHERE];
    bool calls = m->n_calls > CHAT_MAX_CALLS;
    talk_where(m, calls ? ".tool_calls" : ".tool_responses", where);
    return err_set(e, E_LIMIT, "%s has %zu entries; carat takes up to %d", where,
                   calls ? m->n_calls : m->n_results, CHAT_MAX_CALLS);
}

status chat_render_talk(const chat_format *f, const carat_talk *t, const carat_chat_options *opt,
                        chat_prompt *p, err *e)
{
    static const carat_chat_options off = {0};
    arena mem = {.max_bytes = t->mem->max_bytes};

    *p = (chat_prompt){0};
    if (!f)
        return err_set(e, E_UNSUPPORTED,
                       "this model carries no chat template that carat knows; send it plain text");
    if (!t->n)
        return err_set(e, E_FORMAT, "messages is empty; expected at least one message");
    if (t->tools && t->tools->kind != JTREE_ARRAY && t->tools->kind != JTREE_NULL)
        return err_set(e, E_FORMAT, "tools is %s; expected an array", jtree_kind_name(t->tools));
    for (size_t i = 0; i < t->n; i++)
        if (t->turn[i].n_calls > CHAT_MAX_CALLS || t->turn[i].n_results > CHAT_MAX_CALLS)
            return refuse_calls(&t->turn[i], e);
    chat_writer w = {.p = p, .talk = t, .mem = &mem, .e = e};
    p->family = f->family;
    f->family->render(&w, f, t, opt ? opt : &off);
    arena_free(&mem);
    if (w.st)
        chat_prompt_free(p);
    return w.st;
}

status chat_read(carat_talk *t, const char *messages, size_t n_messages, const char *tools,
                 size_t n_tools, err *e)
{
    const jtree *list;
    status st = parse_messages(messages, n_messages, "messages", t->mem, &list, e);
    if (!st && tools && n_tools)
        st = parse_messages(tools, n_tools, "tools", t->mem, &t->tools, e);
    return st ? st : talk_read(t, list, e);
}

status chat_render(const chat_format *f, const char *messages, size_t n_messages, const char *tools,
                   size_t n_tools, const carat_chat_options *opt, chat_prompt *p, err *e)
{
    arena mem = {.max_bytes = arena_limit_for(n_messages + n_tools)};
    carat_talk t = {.mem = &mem};
    *p = (chat_prompt){0};
    status st = f ? chat_read(&t, messages, n_messages, tools, n_tools, e) : OK;
    if (!st)
        st = chat_render_talk(f, &t, opt, p, e);
    arena_free(&mem);
    return st;
}

status chat_tokenize(const vocab *v, const chat_prompt *p, bool raw_markers, id_list *out, err *e)
{
    const char *bos = p->family && p->family->bos ? p->family->bos : "";
    const size_t n_bos = strlen(bos);
    size_t skip = 0, n_spans = 0;
    int64_t n_before = out->n;
    status st = OK;

    /* The template begins with its own BOS, whatever the vocabulary calls this token. */
    if (n_bos && p->text.n >= n_bos && !memcmp(p->text.at, bos, n_bos)) {
        skip = n_bos;
        if (vocab_bos_token(v) >= 0 && (st = id_list_put(out, vocab_bos_token(v), e)))
            return st;
    }
    text_span *span = mem_alloc((p->n_segments + 1) * sizeof *span);
    if (!span) {
        out->n = n_before;
        return err_memory(e, "a prompt", p->n_segments * sizeof *span);
    }
    if (raw_markers) {
        span[n_spans++] = (text_span){0, p->text.n - skip};
    } else {
        for (size_t i = 0; i < p->n_segments; i++) {
            chat_segment s = p->segment[i];
            size_t end = s.at + s.n;
            if (!s.literal || end <= skip)
                continue;
            if (s.at < skip)
                s.at = skip;
            span[n_spans++] = (text_span){s.at - skip, end - s.at};
        }
    }
    const marked_text t = {str_text(&p->text) + skip,
                           p->text.n - skip,
                           SPECIAL_ALL,
                           span,
                           n_spans,
                           skip ? BEFORE_SPECIAL : BEFORE_NOTHING};
    st = vocab_encode_spans(v, &t, out, e);
    mem_free(span);
    if (st)
        out->n = n_before;
    return st;
}
