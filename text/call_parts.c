/* call_parts.c - the arguments of a call as JSON, piece by piece while the model writes them.
 *
 * Strings come as they grow; every other value comes when it is complete. Two forms are followed:
 * pairs of plain text, and objects. What strict reading would not take (repeated marks, words
 * without quotes) is left to the reader of the whole call: then p->stuck is set and nothing more is
 * written. The pieces together are a beginning of the whole arguments, but for a repeated key.
 */
#include "text/parse_int.h"

#include <string.h>

void call_parts_begin(call_parts *p, const answer_syntax *syntax, const jtree *parameters,
                      size_t at)
{
    str key = p->key;
    str_cut(&key, 0);
    *p = (call_parts){.syntax = syntax, .parameters = parameters, .at = at, .key = key};
}

void call_parts_free(call_parts *p)
{
    str_free(&p->key);
}

/* The bytes at the end of s[0..n) that begin `mark`. */
static size_t open_end(const char *s, size_t n, const char *mark)
{
    size_t most = strlen(mark) - 1;
    for (size_t k = most < n ? most : n; k > 0; k--)
        if (!memcmp(s + n - k, mark, k))
            return k;
    return 0;
}

static size_t skip_space(const char *s, size_t at, size_t n)
{
    while (at < n && call_is_space(s[at]))
        at++;
    return at;
}

/* A string without its quotes, escaped. */
static void put_inside(str *out, const char *s, size_t n)
{
    str quoted = {0};
    jtree_put_string(&quoted, s, n);
    if (!quoted.bad && quoted.n >= 2)
        str_put(out, quoted.at + 1, quoted.n - 2);
    out->bad |= quoted.bad;
    str_free(&quoted);
}

/* The end of the last whole character. */
static size_t whole_chars(const char *s, size_t from, size_t n)
{
    size_t at = n;
    while (at > from && n - at < 4 && ((unsigned char)s[at - 1] & 0xC0) == 0x80)
        at--;
    if (at == from || (unsigned char)s[at - 1] < 0xC0)
        return n;
    unsigned char c = (unsigned char)s[at - 1];
    size_t need = c >= 0xF0 ? 4 : c >= 0xE0 ? 3 : 2;
    return n - (at - 1) >= need ? n : at - 1;
}

/* ---- Pairs ---- */

/* key_open KEY key_close [ space value_mark ]; false: not complete, or no pair. */
static bool take_key(call_parts *p, const char *s, size_t n)
{
    const call_pairs *m = p->syntax->pairs;
    size_t at = skip_space(s, p->at, n), n_open = strlen(m->key_open);
    if (n - at < n_open)
        return false;
    if (memcmp(s + at, m->key_open, n_open)) {
        p->stuck = true;
        return false;
    }
    const char *key = s + at + n_open;
    const char *end = memmem(key, n - at - n_open, m->key_close, strlen(m->key_close));
    if (!end)
        return false;
    size_t n_key = (size_t)(end - key);
    at = (size_t)(end - s) + strlen(m->key_close);
    if (m->value_mark) {
        while (n_key && call_is_space(*key)) {
            key++;
            n_key--;
        }
        while (n_key && call_is_space(key[n_key - 1]))
            n_key--;
        at = skip_space(s, at, n);
        size_t n_mark = strlen(m->value_mark);
        if (n - at < n_mark)
            return false;
        p->stuck = memcmp(s + at, m->value_mark, n_mark) != 0;
        at += n_mark;
    } else if (at < n && s[at] == '\n') {
        at++;
    } else if (at == n) {
        return false; /* a line feed may follow */
    }
    if (p->stuck || !n_key || memchr(key, '\n', n_key)) {
        p->stuck = true;
        return false;
    }
    str_cut(&p->key, 0);
    str_put(&p->key, key, n_key);
    p->at = at;
    p->wants_key = false;
    return !p->key.bad;
}

static bool is_text(const call_parts *p)
{
    const jtree *map = jtree_get(p->parameters, "properties");
    return call_kinds_of(p->parameters, jtree_get(map, str_text(&p->key))) == 1u << JTREE_STRING;
}

static void put_head(call_parts *p, str *out)
{
    str_puts(out, p->any ? ", " : "{");
    p->any = true;
}

/* A value up to its end mark. What may be a mark of the syntax stops the flow: the whole call says
 * what it is. */
static bool take_pair_value(call_parts *p, const char *s, size_t n, str *out)
{
    const call_pairs *m = p->syntax->pairs;
    const char *text = s + p->at, *end = memmem(text, n - p->at, m->end, strlen(m->end));
    size_t len = end ? (size_t)(end - text) : n - p->at;
    const char *const others[] = {m->key_open, p->syntax->bare_close, p->syntax->call_close};
    for (int i = 0; i < 3; i++)
        if (others[i] && memmem(text, len, others[i], strlen(others[i]))) {
            p->stuck = true;
            return false;
        }
    bool is_string = is_text(p);
    if (!is_string && !end)
        return false;
    if (!p->begun) {
        put_head(p, out);
        if (!is_string) {
            if (!m->value_mark && len && text[len - 1] == '\n')
                len--;
            call_put_typed(out, p->parameters, p->key.at, p->key.n, text, len);
        } else {
            jtree_put_string(out, p->key.at, p->key.n);
            str_puts(out, ": \"");
        }
    }
    if (is_string) {
        p->begun = true;
        if (!end) { /* hold the beginning of a mark, and the last line feed */
            size_t hold = open_end(text, len, m->end);
            for (int i = 0; i < 3; i++) {
                size_t k = others[i] ? open_end(text, len, others[i]) : 0;
                hold = k > hold ? k : hold;
            }
            len = whole_chars(text, 0, len - hold);
        }
        if (!m->value_mark && len && text[len - 1] == '\n')
            len--;
        put_inside(out, text, len);
        p->at += len;
        if (!end)
            return false;
        str_putc(out, '"');
    }
    p->at = (size_t)(end - s) + strlen(m->end);
    p->wants_key = true;
    p->begun = false;
    return true;
}

/* ---- Objects ---- */

/* A string: of JSON, or between quote marks. begun: its opening is written. */
static bool take_string(call_parts *p, const char *s, size_t n, bool json, str *out)
{
    const char *quote = json ? "\"" : p->syntax->quote;
    size_t at = p->at, n_quote = strlen(quote);
    if (!p->begun) {
        str_putc(out, '"');
        p->begun = true;
    }
    if (!json) {
        const char *end = memmem(s + at, n - at, quote, n_quote);
        size_t to =
            end ? (size_t)(end - s) : whole_chars(s, at, n - open_end(s + at, n - at, quote));
        put_inside(out, s + at, to - at);
        p->at = end ? to + n_quote : to;
        if (!end)
            return false;
    } else {
        size_t to = at;
        while (to < n && s[to] != '"') {
            size_t step = s[to] != '\\' ? 1 : to + 1 < n && s[to + 1] == 'u' ? 6 : 2;
            /* A pair of surrogates is one character. */
            if (step == 6 && to + 3 < n && (s[to + 2] | 32) == 'd' && strchr("89abAB", s[to + 3]))
                step = 12;
            if (to + step > n)
                break;
            to += step;
        }
        size_t end = to < n && s[to] == '"' ? to : whole_chars(s, at, to);
        str chunk = {0};
        arena mem = {.max_bytes = arena_limit_for(end - at + 2)};
        const jtree *v = NULL;
        str_putc(&chunk, '"');
        str_put(&chunk, s + at, end - at);
        str_putc(&chunk, '"');
        status st = chunk.bad ? E_MEMORY : jtree_parse(chunk.at, chunk.n, "", 1, &mem, &v, NULL);
        p->stuck = st != OK;
        out->bad |= st == E_MEMORY;
        if (!st)
            put_inside(out, v->s, v->n);
        str_free(&chunk);
        arena_free(&mem);
        p->at = end;
        if (p->stuck || end == n || s[end] != '"')
            return false;
        p->at++;
    }
    str_putc(out, '"');
    p->begun = false;
    return true;
}

/* A key, complete, and the colon. */
static bool take_object_key(call_parts *p, const char *s, size_t n, str *out)
{
    const char *quote = p->syntax->quote ? NULL : "\"";
    size_t at = p->at, to;
    if (quote) {
        if (s[at] != '"') {
            p->stuck = true;
            return false;
        }
        const char *end = memchr(s + at + 1, '"', n - at - 1);
        if (!end)
            return false;
        to = (size_t)(end - s);
        if (memchr(s + at, '\\', to - at)) {
            p->stuck = true;
            return false;
        }
        at++;
    } else {
        for (to = at; to < n && s[to] != ':'; to++)
            if (strchr("{}[],<>|\"'=\n", s[to])) {
                p->stuck = true;
                return false;
            }
        if (to == n)
            return false;
    }
    size_t colon = skip_space(s, to + (quote ? 1 : 0), n), n_key = to - at;
    if (colon == n)
        return false;
    while (n_key && !quote && call_is_space(s[at + n_key - 1]))
        n_key--;
    if (s[colon] != ':' || !n_key) {
        p->stuck = true;
        return false;
    }
    str_puts(out, p->any ? quote ? ", " : "," : "");
    jtree_put_string(out, s + at, n_key);
    str_puts(out, quote ? ": " : ":");
    p->at = colon + 1;
    p->wants_key = false;
    return true;
}

/* A number or a word, complete. */
static bool take_word(call_parts *p, const char *s, size_t n, str *out)
{
    static const char *const words[] = {"true", "false", "null"};
    size_t to = p->at;
    bool real;
    while (to < n && !call_is_space(s[to]) && !strchr(",}]", s[to]))
        to++;
    if (to == n)
        return false;
    bool ok = jtree_number_length(s + p->at, to - p->at, &real) == to - p->at && to > p->at;
    for (int i = 0; i < 3; i++)
        ok |= strlen(words[i]) == to - p->at && !memcmp(s + p->at, words[i], to - p->at);
    if (!ok) {
        p->stuck = true;
        return false;
    }
    str_put(out, s + p->at, to - p->at);
    p->at = to;
    return true;
}

static bool open_bracket(call_parts *p, char c, str *out)
{
    if (p->depth == (int)sizeof p->open) {
        p->stuck = true;
        return false;
    }
    p->open[p->depth++] = c == '{' ? '}' : ']';
    p->any = p->after = false;
    p->wants_key = c == '{';
    str_putc(out, c);
    return true;
}

/* One step through an object; false: more text is needed. */
static bool step_object(call_parts *p, const char *s, size_t n, str *out)
{
    const char *quote = p->syntax->quote;
    size_t n_quote = quote ? strlen(quote) : 0;
    if (p->begun) {
        p->after = take_string(p, s, n, !quote, out);
        return p->after;
    }
    p->at = skip_space(s, p->at, n);
    if (p->at == n || !p->depth)
        return false;
    char c = s[p->at], close = p->open[p->depth - 1];
    if (c == close && (p->after || !p->any) && (p->wants_key || close == ']' || p->after)) {
        p->depth--;
        p->at++;
        p->any = p->after = true;
        p->wants_key = false;
        if (p->depth) /* the last brace comes with the whole call */
            str_putc(out, c);
        return p->depth > 0;
    }
    if (p->after) {
        p->stuck = c != ',';
        p->at++;
        p->after = false;
        p->any = true;
        p->wants_key = close == '}';
        return !p->stuck;
    }
    if (p->wants_key)
        return take_object_key(p, s, n, out);
    if (close == ']' && p->any)
        str_puts(out, quote ? "," : ", ");
    if (close == ']')
        p->any = false; /* the comma is written */
    if (c == '{' || c == '[') {
        p->at++;
        return open_bracket(p, c, out);
    }
    if (quote ? n - p->at >= n_quote && !memcmp(s + p->at, quote, n_quote) : c == '"') {
        p->at += quote ? n_quote : 1;
        p->after = take_string(p, s, n, !quote, out);
        return p->after;
    }
    if (quote && c == *quote) { /* a part of the mark, or none */
        p->stuck = memcmp(s + p->at, quote, n - p->at < n_quote ? n - p->at : n_quote) != 0;
        return false;
    }
    p->after = take_word(p, s, n, out);
    return p->after;
}

void call_parts_put(call_parts *p, const char *s, size_t n, str *out)
{
    bool more = !p->stuck;
    if (p->syntax->pairs) {
        if (!p->any && !p->begun && !p->key.n)
            p->wants_key = true;
        while (more && !p->stuck)
            more = p->wants_key ? take_key(p, s, n) : take_pair_value(p, s, n, out);
        return;
    }
    if (!p->depth && !p->any)
        open_bracket(p, '{', out);
    while (more && !p->stuck)
        more = step_object(p, s, n, out);
}
