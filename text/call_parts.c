/* call_parts.c - the arguments of a call as JSON, piece by piece while the model writes them.
 *
 * Strings come as they grow; every other value comes when it is complete. Two forms are followed:
 * pairs of plain text, and objects. The pieces together are always a beginning of the arguments
 * that the reader of the whole call finds, even where it repairs a mistake:
 *   - a comma and a key come with the first byte of their value, because a key without a value is
 *     dropped;
 *   - a quote of JSON ends a string if a value can end there, as for lenient reading;
 *   - the brackets, or the white space, at the end of a string may be the call's own, if its end
 *     mark was forgotten: they wait for the next text;
 *   - the end of the call inside a string, words without quotes and repeated marks stop the flow
 *     (p->stuck): the rest comes with the whole call.
 *
 * Each byte is looked at a bounded number of times: more than WAIT_BYTES of waiting text stop the
 * flow.
 */
#include "text/parse_int.h"

#include <string.h>

enum { WAIT_BYTES = 4096, LONGEST_ESCAPE = 12, LONGEST_MARK = 32 };

void call_parts_begin(call_parts *p, const answer_syntax *syntax, const jtree *parameters,
                      size_t at)
{
    str key = p->key;
    str_cut(&key, 0);
    *p = (call_parts){.syntax = syntax,
                      .parameters = parameters,
                      .at = at,
                      .seen = at,
                      .wants_key = true,
                      .key = key};
}

void call_parts_free(call_parts *p)
{
    str_free(&p->key);
}

static bool stop(call_parts *p)
{
    p->stuck = true;
    return false;
}

/* More text is needed, behind s[p->at..n). */
static bool wait_for_more(call_parts *p, size_t n)
{
    p->stuck |= n - p->at > WAIT_BYTES;
    return false;
}

/* The bytes at the end of s[0..n) that begin `mark`; NULL: none. */
static size_t open_end(const char *s, size_t n, const char *mark)
{
    size_t most = mark ? strlen(mark) - 1 : 0;
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

/* What stands before a value: the comma, and in objects the key. */
static void put_head(call_parts *p, str *out)
{
    bool tight = !p->syntax->pairs && p->syntax->quote;
    if (p->any)
        str_puts(out, tight ? "," : ", ");
    if (p->has_key) {
        jtree_put_string(out, str_text(&p->key), p->key.n);
        str_puts(out, tight ? ":" : ": ");
    }
    p->has_key = false;
    p->any = true;
}

static bool take_key_text(call_parts *p, const char *s, size_t n)
{
    str_cut(&p->key, 0);
    str_put(&p->key, s, n);
    p->has_key = true;
    p->wants_key = false;
    return !p->key.bad;
}

/* ---- Pairs ---- */

/* key_open KEY key_close [ space value_mark ]; false: not complete, or no pair. */
static bool take_key(call_parts *p, const char *s, size_t n)
{
    const call_pairs *m = p->syntax->pairs;
    size_t at = skip_space(s, p->at, n), n_open = strlen(m->key_open);
    if (n - at < n_open)
        return wait_for_more(p, n);
    if (memcmp(s + at, m->key_open, n_open))
        return stop(p);
    const char *key = s + at + n_open;
    const char *end = memmem(key, n - at - n_open, m->key_close, strlen(m->key_close));
    if (!end)
        return wait_for_more(p, n);
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
            return wait_for_more(p, n);
        if (memcmp(s + at, m->value_mark, n_mark))
            return stop(p);
        at += n_mark;
    } else if (at == n) {
        return false; /* a line feed may follow */
    } else if (s[at] == '\n') {
        at++;
    }
    if (!n_key || memchr(key, '\n', n_key))
        return stop(p);
    p->at = p->seen = at;
    return take_key_text(p, key, n_key);
}

static bool is_text(const call_parts *p)
{
    const jtree *map = jtree_get(p->parameters, "properties");
    return call_kinds_of(p->parameters, jtree_get(map, str_text(&p->key))) == 1u << JTREE_STRING;
}

/* What is certain of the open text s[0..n): no beginning of a mark, no white space at the end. */
static size_t certain_text(const call_parts *p, const char *s, size_t n)
{
    const char *const marks[] = {p->syntax->pairs->end, p->syntax->pairs->key_open,
                                 p->syntax->bare_close, p->syntax->call_close};
    size_t hold = 0;
    for (int i = 0; i < 4; i++) {
        size_t k = open_end(s, n, marks[i]);
        hold = k > hold ? k : hold;
    }
    n -= hold;
    while (n && call_is_space(s[n - 1]))
        n--;
    return whole_chars(s, 0, n);
}

/* Whether a mark in s[0..n) leaves open what the text is. */
static bool has_other_mark(const call_parts *p, const char *s, size_t n)
{
    const char *const marks[] = {p->syntax->pairs->key_open, p->syntax->bare_close,
                                 p->syntax->call_close};
    for (int i = 0; i < 3; i++)
        if (marks[i] && memmem(s, n, marks[i], strlen(marks[i])))
            return true;
    return false;
}

/* A value up to its end mark. */
static bool take_pair_value(call_parts *p, const char *s, size_t n, str *out)
{
    const call_pairs *m = p->syntax->pairs;
    const char *text = s + p->at;
    size_t from = p->seen - p->at > LONGEST_MARK ? p->seen - LONGEST_MARK : p->at;
    const char *end = memmem(s + from, n - from, m->end, strlen(m->end));
    size_t len = end ? (size_t)(end - text) : n - p->at;
    if (has_other_mark(p, s + from, end ? (size_t)(end - s) - from : n - from))
        return stop(p);
    p->seen = n;
    bool is_string = p->begun || is_text(p);
    if (!is_string && !end)
        return false;
    if (!p->begun && !p->any)
        str_putc(out, '{');
    if (end && !m->value_mark && len && text[len - 1] == '\n')
        len--;
    if (!is_string) {
        str_puts(out, p->any ? ", " : "");
        call_put_typed(out, p->parameters, p->key.at, p->key.n, text, len);
        p->has_key = false;
        p->any = true;
    } else {
        if (!p->begun) {
            put_head(p, out);
            str_putc(out, '"');
            p->begun = true;
        }
        len = end ? len : certain_text(p, text, len);
        put_inside(out, text, len);
        p->at += len;
        if (!end)
            return wait_for_more(p, n);
        str_putc(out, '"');
    }
    p->at = p->seen = (size_t)(end - s) + strlen(m->end);
    p->wants_key = true;
    p->begun = false;
    return true;
}

/* ---- Objects ---- */

/* The first `mark` in s[0..n); NULL: there is none, or there is no such mark. */
static const char *find_close(const char *s, size_t n, const char *mark)
{
    return mark ? memmem(s, n, mark, strlen(mark)) : NULL;
}

/* What is certain of the open string s[at..n). Without its end quote, as many brackets at its end
 * as are open would be the call's. */
static size_t certain_string(const call_parts *p, const char *s, size_t at, size_t n)
{
    const char *quote = p->syntax->quote, *close = p->syntax->call_close;
    size_t hold = open_end(s + at, n - at, close), k = open_end(s + at, n - at, quote);
    n -= hold > k ? hold : k;
    size_t end = n;
    for (int left = p->depth + 1; n > at; n--) {
        char c = s[n - 1];
        bool bracket = c == '}' || c == ']';
        if (bracket ? !left-- : !call_is_space(c))
            break;
        end = bracket ? n - 1 : end;
    }
    return whole_chars(s, at, end);
}

/* Puts the text of a string of JSON, s[at..limit), unescaped. *to: the end of the part that was
 * read. True: the quote there ends the string. */
static bool read_json_string(const char *s, size_t at, size_t limit, size_t n, str *text,
                             size_t *to)
{
    *to = at;
    while (at < limit) {
        size_t from = at;
        while (at < limit && s[at] != '"' && s[at] != '\\')
            at++;
        str_put(text, s + from, at - from);
        *to = at;
        if (at == limit)
            break;
        size_t step = 1, next;
        if (s[at] == '"') {
            if ((next = skip_space(s, at + 1, n)) == n)
                break;
            if (strchr(",}]", s[next]))
                return true;
            str_putc(text, '"');
        } else if (!(step = jtree_take_escape(s + at, n - at, text))) {
            if (n - at < LONGEST_ESCAPE)
                break;
            str_putc(text, '\\'); /* no escape: the backslash stays */
            step = 1;
        }
        *to = at += step;
    }
    return false;
}

/* Puts the text of a string between quote marks. The results are those of read_json_string. */
static bool read_quoted_string(call_parts *p, const char *s, size_t n, str *out, size_t *to)
{
    const char *quote = p->syntax->quote, *close = p->syntax->call_close, *text = s + p->at;
    const char *end = memmem(text, n - p->at, quote, strlen(quote));
    const char *mark = find_close(text, end ? (size_t)(end - text) : n - p->at, close);
    p->stuck |= mark != NULL;
    *to = mark  ? certain_string(p, s, p->at, (size_t)(mark - s))
          : end ? (size_t)(end - s)
                : certain_string(p, s, p->at, n);
    put_inside(out, text, *to - p->at);
    return end != NULL;
}

static bool read_open_json(call_parts *p, const char *s, size_t n, str *out, size_t *to)
{
    const char *close = p->syntax->call_close, *text = s + p->at;
    const char *mark = find_close(text, n - p->at, close);
    size_t sure = mark ? (size_t)(mark - s) : n - open_end(text, n - p->at, close);
    str all = {0};
    bool ended = read_json_string(s, p->at, sure, sure, &all, to);
    if (!ended) {
        str_cut(&all, 0);
        read_json_string(s, p->at, certain_string(p, s, p->at, sure), sure, &all, to);
        p->stuck |= mark != NULL;
    }
    put_inside(out, str_text(&all), all.n);
    out->bad |= all.bad;
    str_free(&all);
    return ended;
}

/* A string whose opening is written. */
static bool take_string(call_parts *p, const char *s, size_t n, str *out)
{
    const char *quote = p->syntax->quote;
    size_t to = p->at;
    bool ended = quote ? read_quoted_string(p, s, n, out, &to) : read_open_json(p, s, n, out, &to);
    p->at = to;
    if (p->stuck || !ended)
        return wait_for_more(p, n);
    p->at += quote ? strlen(quote) : 1;
    str_putc(out, '"');
    p->begun = false;
    return true;
}

/* A key in quotes. *colon: the place of what follows it. */
static const char *quoted_key(call_parts *p, const char *s, size_t n, size_t *n_key, size_t *colon)
{
    const char *key = s + p->at + 1, *end;
    if (s[p->at] != '"') {
        stop(p);
        return NULL;
    }
    if (!(end = memchr(key, '"', n - p->at - 1))) {
        wait_for_more(p, n);
        return NULL;
    }
    *n_key = (size_t)(end - key);
    *colon = skip_space(s, (size_t)(end - s) + 1, n);
    if (memchr(key, '\\', *n_key))
        stop(p);
    return p->stuck ? NULL : key;
}

static const char *bare_key(call_parts *p, const char *s, size_t n, size_t *n_key, size_t *colon)
{
    size_t to = p->at;
    for (; to < n && s[to] != ':'; to++)
        if (strchr("{}[],<>|\"'=\n", s[to])) {
            stop(p);
            return NULL;
        }
    *colon = to;
    while (to > p->at && call_is_space(s[to - 1]))
        to--;
    *n_key = to - p->at;
    return s + p->at;
}

/* A key, complete, and the colon. */
static bool take_object_key(call_parts *p, const char *s, size_t n)
{
    size_t colon = 0, n_key = 0;
    const char *key =
        p->syntax->quote ? bare_key(p, s, n, &n_key, &colon) : quoted_key(p, s, n, &n_key, &colon);
    if (!key)
        return false;
    if (colon == n)
        return wait_for_more(p, n);
    if (s[colon] != ':' || !n_key)
        return stop(p);
    p->at = colon + 1;
    return take_key_text(p, key, n_key);
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
        return wait_for_more(p, n);
    bool ok = jtree_number_length(s + p->at, to - p->at, &real) == to - p->at && to > p->at;
    for (int i = 0; i < 3; i++)
        ok |= strlen(words[i]) == to - p->at && !memcmp(s + p->at, words[i], to - p->at);
    if (!ok)
        return stop(p);
    put_head(p, out);
    str_put(out, s + p->at, to - p->at);
    p->at = to;
    return true;
}

static bool open_bracket(call_parts *p, char c, str *out)
{
    if (p->depth == (int)sizeof p->open)
        return stop(p);
    if (p->depth)
        put_head(p, out);
    p->open[p->depth++] = c == '{' ? '}' : ']';
    p->any = p->after = false;
    p->wants_key = c == '{';
    str_putc(out, c);
    return true;
}

/* True if a value begins with a whole quote; then its opening is written. */
static bool begin_string(call_parts *p, const char *s, size_t n, str *out)
{
    const char *quote = p->syntax->quote ? p->syntax->quote : "\"";
    size_t n_quote = strlen(quote);
    if (n - p->at < n_quote || memcmp(s + p->at, quote, n_quote))
        return false;
    put_head(p, out);
    str_putc(out, '"');
    p->at += n_quote;
    return p->begun = true;
}

static bool close_bracket(call_parts *p, str *out)
{
    char c = p->open[--p->depth];
    p->at++;
    p->any = p->after = true;
    p->wants_key = false;
    if (p->depth) /* the last brace comes with the whole call */
        str_putc(out, c);
    return p->depth > 0;
}

/* One step through an object; false: more text is needed. */
static bool step_object(call_parts *p, const char *s, size_t n, str *out)
{
    const char *quote = p->syntax->quote;
    if (p->begun)
        return p->after = take_string(p, s, n, out);
    p->at = skip_space(s, p->at, n);
    if (p->at == n || !p->depth)
        return false;
    char c = s[p->at], close = p->open[p->depth - 1];
    if (c == close && (p->after || (!p->any && (p->wants_key || close == ']'))))
        return close_bracket(p, out);
    if (p->after) {
        p->stuck = c != ',';
        p->at++;
        p->after = false;
        p->wants_key = close == '}';
        return !p->stuck;
    }
    if (p->wants_key)
        return take_object_key(p, s, n);
    if (c == '{' || c == '[') {
        p->at++;
        return open_bracket(p, c, out);
    }
    if (begin_string(p, s, n, out))
        return true;
    if (quote && c == *quote) { /* a part of the mark, or none */
        p->stuck = memcmp(s + p->at, quote, n - p->at < strlen(quote) ? n - p->at : strlen(quote));
        return false;
    }
    return p->after = take_word(p, s, n, out);
}

void call_parts_put(call_parts *p, const char *s, size_t n, str *out)
{
    bool more = !p->stuck;
    if (p->syntax->pairs) {
        while (more && !p->stuck)
            more = p->wants_key ? take_key(p, s, n) : take_pair_value(p, s, n, out);
        return;
    }
    if (!p->depth && !p->any)
        open_bracket(p, '{', out);
    while (more && !p->stuck)
        more = step_object(p, s, n, out);
}
