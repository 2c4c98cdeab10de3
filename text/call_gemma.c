/* call_gemma.c - the text of one Gemma 4 tool call to a name and a JSON object.
 *
 *     call:NAME{key:value,...}     value: <|"|>text<|"|>, number, true, false, null, [..], {..}
 *
 * Strict reading follows the grammar. Lenient reading also repairs occasional mistakes of models:
 *   - 'text' and "text" are strings; True, False, None are true, false, null;
 *   - a bare word is a string, up to the next "key:" or the end of the enclosing brackets;
 *   - the end of the text closes an open string and all open brackets, and drops a key without a
 *     value.
 * The JSON is written while the call is read: one pass, no tree.
 */
#include "text/gemma4.h"
#include "text/parse_int.h"

#include <string.h>

typedef struct reading {
    const char *s;
    size_t n, at;
    bool lenient;
    bool unpaired[2]; /* for ' and ": the text has no further one, so the search is not repeated */
    str *out;
    char open[CALL_MAX_DEPTH]; /* the closers of the open brackets, outermost first */
    int depth;
} reading;

static bool is_call_space(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static void skip_call_space(reading *r)
{
    while (r->at < r->n && is_call_space(r->s[r->at]))
        r->at++;
}

static bool at_end(const reading *r)
{
    return r->at == r->n;
}

static bool take_call_text(reading *r, const char *what)
{
    size_t n = strlen(what);
    if (r->n - r->at < n || memcmp(r->s + r->at, what, n))
        return false;
    r->at += n;
    return true;
}

/* Whether a value can end here. */
static bool at_boundary(const reading *r)
{
    char c = at_end(r) ? ',' : r->s[r->at];
    return is_call_space(c) || c == ',' || c == '}' || c == ']';
}

static bool read_value(reading *r);

/* Reads the rest of the text, without the closers of open brackets at its end. */
static bool read_unclosed_string(reading *r)
{
    size_t end = r->n;
    for (int d = 0; d < r->depth; d++) {
        size_t e = end;
        while (e > r->at && is_call_space(r->s[e - 1]))
            e--;
        if (e == r->at || r->s[e - 1] != r->open[d])
            break;
        end = e - 1;
    }
    jtree_put_string(r->out, r->s + r->at, end - r->at);
    r->at = r->n;
    return true;
}

/* Reads a string in ' or ". It ends at the first such quote that a value can end after. */
static bool read_quoted(reading *r, char quote)
{
    for (size_t i = r->at; i < r->n; i++) {
        if (r->s[i] == '\\' && i + 1 < r->n) {
            i++;
            continue;
        }
        if (r->s[i] != quote)
            continue;
        reading after = *r;
        after.at = i + 1;
        skip_call_space(&after);
        if (!at_boundary(&after))
            continue;
        /* JSON's own escapes mean what they mean there; anything else is taken as it stands. */
        arena mem = {0};
        const jtree *v = NULL;
        status st = quote == '"'
                        ? jtree_parse(r->s + r->at - 1, i - r->at + 2, "", 1, &mem, &v, NULL)
                        : E_FORMAT;
        jtree_put_string(r->out, v ? v->s : r->s + r->at, v ? v->n : i - r->at);
        r->out->bad |= st == E_MEMORY;
        arena_free(&mem);
        r->at = i + 1;
        return true;
    }
    return false;
}

/* Whether "key:" follows the comma at i. */
static bool key_follows(const reading *r, size_t i)
{
    size_t from;
    for (i++; i < r->n && is_call_space(r->s[i]); i++)
        ;
    for (from = i; i < r->n && (r->s[i] == '_' || r->s[i] == '-' || r->s[i] == '.' ||
                                (r->s[i] >= '0' && r->s[i] <= '9') ||
                                ((r->s[i] | 32) >= 'a' && (r->s[i] | 32) <= 'z'));
         i++)
        ;
    return i > from && i < r->n && r->s[i] == ':';
}

static bool read_bare(reading *r)
{
    static const char *const python[][2] = {{"True", "true"}, {"False", "false"}, {"None", "null"}};
    size_t end = r->at, i;
    char close = r->open[r->depth - 1];
    for (i = 0; i < 3; i++) {
        reading word = *r;
        if (take_call_text(&word, python[i][0]) && at_boundary(&word)) {
            str_puts(r->out, python[i][1]);
            r->at = word.at;
            return true;
        }
    }
    if (r->depth == 1) {
        /* Top level: brackets inside are text; the last one ends the call. */
        size_t last = r->n;
        if (last > r->at && r->s[last - 1] == close)
            last--;
        while (end < last && !(r->s[end] == ',' && key_follows(r, end)))
            end++;
    } else {
        while (end < r->n && r->s[end] != close &&
               !(r->s[end] == ',' && (close == ']' || key_follows(r, end))))
            end++;
    }
    size_t stop = end;
    while (stop > r->at && is_call_space(r->s[stop - 1]))
        stop--;
    if (stop == r->at || memmem(r->s + r->at, stop - r->at, GEMMA_QUOTE, sizeof GEMMA_QUOTE - 1))
        return false;
    jtree_put_string(r->out, r->s + r->at, stop - r->at);
    r->at = end;
    return true;
}

static bool open_bracket(reading *r, char close)
{
    if (r->depth == CALL_MAX_DEPTH)
        return false;
    r->open[r->depth++] = close;
    return true;
}

static bool read_array(reading *r)
{
    bool any = false;
    if (!open_bracket(r, ']'))
        return false;
    str_putc(r->out, '[');
    for (;;) {
        size_t before = r->out->n;
        skip_call_space(r);
        if ((!any || r->lenient) && take_call_text(r, "]"))
            break;
        if (r->lenient && at_end(r))
            break;
        if (any)
            str_putc(r->out, ',');
        if (!read_value(r)) {
            str_cut(r->out, before);
            return false;
        }
        any = true;
        skip_call_space(r);
        if (take_call_text(r, ","))
            continue;
        if (take_call_text(r, "]") || (r->lenient && at_end(r)))
            break;
        return false;
    }
    str_putc(r->out, ']');
    r->depth--;
    return true;
}

/* Reads a key into *key and *n. It is bare, or quoted by mistake. */
static bool read_key(reading *r, const char **key, size_t *n)
{
    const char *s = r->s + r->at, *end;
    size_t left = r->n - r->at;
    if (take_call_text(r, GEMMA_QUOTE)) {
        s += sizeof GEMMA_QUOTE - 1;
        left -= sizeof GEMMA_QUOTE - 1;
        if (!(end = memmem(s, left, GEMMA_QUOTE, sizeof GEMMA_QUOTE - 1)))
            return false;
        r->at += (size_t)(end - s) + sizeof GEMMA_QUOTE - 1;
    } else if (take_call_text(r, "\"")) {
        s++;
        if (!(end = memchr(s, '"', left - 1)))
            return false;
        r->at += (size_t)(end - s) + 1;
    } else {
        while (!at_end(r) && r->s[r->at] != ':' && r->s[r->at] != '}')
            r->at++;
        end = r->s + r->at;
        while (end > s && is_call_space(end[-1]))
            end--;
        if (memmem(s, (size_t)(end - s), GEMMA_QUOTE, sizeof GEMMA_QUOTE - 1))
            return false;
    }
    *key = s;
    *n = (size_t)(end - s);
    skip_call_space(r);
    return *n > 0;
}

/* Reads an object from behind its opening brace. */
static bool read_object(reading *r)
{
    bool any = false;
    if (!open_bracket(r, '}'))
        return false;
    str_putc(r->out, '{');
    for (;;) {
        size_t before = r->out->n, n;
        const char *key;
        skip_call_space(r);
        if ((!any || r->lenient) && take_call_text(r, "}"))
            break;
        if (r->lenient && at_end(r))
            break;
        bool named = read_key(r, &key, &n) && take_call_text(r, ":");
        skip_call_space(r);
        if (at_end(r) && r->lenient)
            break; /* a key without a value */
        if (!named)
            return false;
        if (any)
            str_putc(r->out, ',');
        jtree_put_string(r->out, key, n);
        str_putc(r->out, ':');
        if (!read_value(r)) {
            str_cut(r->out, before);
            return false;
        }
        any = true;
        skip_call_space(r);
        if (take_call_text(r, ","))
            continue;
        if (take_call_text(r, "}") || (r->lenient && at_end(r)))
            break;
        return false;
    }
    str_putc(r->out, '}');
    r->depth--;
    return true;
}

static bool read_value(reading *r)
{
    static const char *const words[] = {"true", "false", "null"};
    const size_t n_mark = sizeof GEMMA_QUOTE - 1;
    bool real;
    skip_call_space(r);
    if (take_call_text(r, GEMMA_QUOTE)) {
        const char *s = r->s + r->at, *end = memmem(s, r->n - r->at, GEMMA_QUOTE, n_mark);
        if (!end)
            return r->lenient && read_unclosed_string(r);
        jtree_put_string(r->out, s, (size_t)(end - s));
        r->at += (size_t)(end - s) + n_mark;
        return true;
    }
    if (take_call_text(r, "["))
        return read_array(r);
    if (take_call_text(r, "{"))
        return read_object(r);
    for (size_t i = 0; i < 3; i++) {
        reading word = *r;
        if (take_call_text(&word, words[i]) && at_boundary(&word)) {
            str_puts(r->out, words[i]);
            r->at = word.at;
            return true;
        }
    }
    size_t n = jtree_number_length(r->s + r->at, r->n - r->at, &real);
    if (n) {
        reading number = *r;
        number.at += n;
        if (at_boundary(&number)) {
            str_put(r->out, r->s + r->at, n);
            r->at = number.at;
            return true;
        }
    }
    if (!r->lenient || at_end(r))
        return false;
    char quote = r->s[r->at];
    if ((quote == '\'' || quote == '"') && !r->unpaired[quote == '"']) {
        r->at++;
        if (read_quoted(r, quote))
            return true;
        r->at--;
        r->unpaired[quote == '"'] = true;
    }
    return read_bare(r);
}

bool gemma_read_call(const char *s, size_t n, bool lenient, str *name, str *arguments)
{
    reading r = {.s = s, .n = n, .lenient = lenient, .out = arguments};
    str_cut(name, 0);
    str_cut(arguments, 0);
    while (r.n && is_call_space(s[r.n - 1]))
        r.n--;
    skip_call_space(&r);
    if (!take_call_text(&r, "call:"))
        return false;
    skip_call_space(&r);
    const char *brace = memchr(s + r.at, '{', r.n - r.at);
    if (!brace)
        return false;
    size_t end = (size_t)(brace - s);
    while (end > r.at && is_call_space(s[end - 1]))
        end--;
    if (end == r.at || end - r.at > CALL_MAX_NAME_BYTES)
        return false;
    for (size_t i = r.at; i < end; i++)
        if ((unsigned char)s[i] < 0x20 || s[i] == '<')
            return false;
    str_put(name, s + r.at, end - r.at);
    r.at = (size_t)(brace - s) + 1;
    if (!read_object(&r))
        return false;
    skip_call_space(&r);
    while (lenient && take_call_text(&r, "}"))
        skip_call_space(&r);
    return at_end(&r);
}
