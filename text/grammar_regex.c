/* grammar_regex.c - regular expressions of JSON Schema's `pattern` to expressions.
 *
 * The common subset of ECMA 262 that describes a regular language: literals, classes with \d \w \s
 * and their complements, ., groups (capturing and non-capturing are equal here), |, * + ? {m,n}
 * greedy or lazy, ^ and $ at the ends of the pattern or of its alternatives. A pattern without ^
 * may have any text before it; a pattern without $ may have any text after it. Look-around, back
 * references, word boundaries and \p are refused by name.
 *
 * In a JSON string a character is matched in its spelling between the quotes.
 */
#include "text/grammar_int.h"
#include "base/utf8.h"
#include "base/str.h"

enum { MAX_RANGES = 1024 };

typedef struct regex {
    gx_builder *b;
    const char *s, *where;
    size_t n, at;
    bool json;
    int depth;
} regex;

static const gx_range digits[] = {{'0', '9'}};
static const gx_range word[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
static const gx_range space[] = {
    {9, 13},          {' ', ' '},       {0xA0, 0xA0},     {0x1680, 0x1680}, {0x2000, 0x200A},
    {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
static const gx_range line_ends[] = {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};

static bool regex_refuse(regex *r, status st, const char *what)
{
    return gx_fail(r->b, st, "%s: pattern \"%.80s\": %s", r->where, r->s, what);
}

static int regex_peek(const regex *r)
{
    return r->at < r->n ? (unsigned char)r->s[r->at] : -1;
}

/* A set of characters, in their spelling. */
static gx *spelled(regex *r, const gx_range *range, int32_t n, bool negate)
{
    gx *set = gx_set(r->b, range, n, negate);
    gx_range plain[MAX_RANGES + 64];
    gx_list all = {0};
    int32_t k = 0;
    if (r->b->st)
        return set;
    for (int32_t i = 0; i < set->n && i <= MAX_RANGES; i++) {
        uint32_t lo = set->range[i].lo, hi = set->range[i].hi;
        /* JSON: characters with an escape leave the set and become alternatives. Raw: a complement
         * excludes <, the first character of the markers that end a string. */
        for (uint32_t c = lo; c <= hi && c < 128; c++) {
            bool odd = r->json ? c < 0x20 || c == '"' || c == '\\' : negate && c == '<';
            if (!odd)
                continue;
            if (lo < c)
                plain[k++] = (gx_range){lo, c - 1};
            lo = c + 1;
            if (r->json) {
                str s = {0};
                json_put_char(&s, c);
                if (s.bad)
                    gx_fail(r->b, E_MEMORY, "no memory for a pattern");
                gx_add(r->b, &all, gx_bytes(r->b, s.at, s.n));
                str_free(&s);
            }
        }
        if (lo <= hi)
            plain[k++] = (gx_range){lo, hi};
    }
    if (k)
        gx_add(r->b, &all, gx_set(r->b, plain, k, false));
    return gx_alt(r->b, &all);
}

static gx *spelled_char(regex *r, uint32_t cp)
{
    return spelled(r, &(gx_range){cp, cp}, 1, false);
}

static bool regex_hex(regex *r, int digits_wanted, uint32_t *cp)
{
    uint32_t x = 0;
    for (int i = 0; i < digits_wanted; i++, r->at++) {
        int v = hex_digit(regex_peek(r));
        if (v < 0)
            return regex_refuse(r, E_FORMAT, "an escape with too few hexadecimal digits");
        x = x << 4 | (uint32_t)v;
    }
    *cp = x;
    return true;
}

/* Reads an escape after its backslash. Returns the ranges of a class, or NULL and a character. */
static const gx_range *read_escape(regex *r, int32_t *n, bool *negate, uint32_t *cp)
{
    bool ok;
    int c = regex_peek(r);
    r->at++;
    *negate = c == 'D' || c == 'W' || c == 'S';
    switch (c) {
    case 'd':
    case 'D':
        *n = 1;
        return digits;
    case 'w':
    case 'W':
        *n = 4;
        return word;
    case 's':
    case 'S':
        *n = sizeof space / sizeof *space;
        return space;
    case 'n':
        *cp = '\n';
        return NULL;
    case 'r':
        *cp = '\r';
        return NULL;
    case 't':
        *cp = '\t';
        return NULL;
    case 'f':
        *cp = '\f';
        return NULL;
    case 'v':
        *cp = '\v';
        return NULL;
    case 'x':
        regex_hex(r, 2, cp);
        return NULL;
    case 'u':
        regex_hex(r, 4, cp);
        if (*cp >= 0xD800 && *cp <= 0xDFFF)
            regex_refuse(r, E_UNSUPPORTED, "half of a surrogate pair is not supported");
        return NULL;
    default:
        break;
    }
    if (c < 0)
        regex_refuse(r, E_FORMAT, "a backslash at its end");
    else if (c == 'b' || c == 'B')
        regex_refuse(r, E_UNSUPPORTED, "word boundaries are not supported");
    else if (c == 'p' || c == 'P')
        regex_refuse(r, E_UNSUPPORTED, "Unicode properties (\\p) are not supported");
    else if ((c >= '0' && c <= '9') || c == 'k')
        regex_refuse(r, E_UNSUPPORTED, "back references are not supported");
    else if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'))
        regex_refuse(r, E_FORMAT, "an escape that regular expressions do not have");
    r->at--;
    r->at += r->b->st ? 1 : (size_t)utf8_decode(r->s + r->at, r->n - r->at, cp, &ok);
    return NULL;
}

typedef struct range_list {
    gx_range at[MAX_RANGES];
    int32_t n;
} range_list;

static void put_ranges(regex *r, range_list *l, const gx_range *range, int32_t n, bool negate)
{
    gx *x = negate ? gx_set(r->b, range, n, true) : NULL;
    if (x && !r->b->st) {
        range = x->range;
        n = x->n;
    }
    if (l->n + n > MAX_RANGES)
        regex_refuse(r, E_LIMIT, "a class of more than 1024 ranges");
    for (int32_t i = 0; i < n && !r->b->st; i++)
        l->at[l->n++] = range[i];
}

/* Reads one member of a class. True: a character; false: a class such as \d. */
static bool read_member(regex *r, range_list *l, uint32_t *cp)
{
    bool negate, ok;
    int32_t n;
    if (regex_peek(r) != '\\') {
        r->at += (size_t)utf8_decode(r->s + r->at, r->n - r->at, cp, &ok);
        return true;
    }
    r->at++;
    if (regex_peek(r) == 'b') {
        r->at++;
        *cp = '\b';
        return true;
    }
    const gx_range *range = read_escape(r, &n, &negate, cp);
    if (range)
        put_ranges(r, l, range, n, negate);
    return !range;
}

static gx *regex_class(regex *r)
{
    range_list l = {.n = 0};
    r->at++;
    bool negate = regex_peek(r) == '^';
    r->at += negate;
    while (!r->b->st && regex_peek(r) != ']') {
        uint32_t lo, hi;
        if (regex_peek(r) < 0) {
            regex_refuse(r, E_FORMAT, "a class without its closing bracket");
            break;
        }
        if (!read_member(r, &l, &lo))
            continue;
        hi = lo;
        if (regex_peek(r) == '-' && r->at + 1 < r->n && r->s[r->at + 1] != ']') {
            r->at++;
            if (!read_member(r, &l, &hi))
                regex_refuse(r, E_FORMAT, "a range that ends in a class");
            else if (hi < lo)
                regex_refuse(r, E_FORMAT, "a range whose end is before its beginning");
        }
        put_ranges(r, &l, &(gx_range){lo, hi}, 1, false);
    }
    r->at++;
    return spelled(r, l.at, l.n, negate);
}

static gx *regex_alternatives(regex *r);

static gx *read_group(regex *r)
{
    r->at++;
    if (++r->depth > GRAMMAR_MAX_NESTING)
        regex_refuse(r, E_LIMIT, "groups nest too deeply");
    if (regex_peek(r) == '?') {
        const char *s = r->s + r->at + 1;
        size_t left = r->n - r->at - 1;
        if (left && *s == ':') {
            r->at += 2;
        } else if (left > 1 && *s == '<' && s[1] != '=' && s[1] != '!') {
            while (regex_peek(r) >= 0 && regex_peek(r) != '>')
                r->at++;
            r->at += regex_peek(r) == '>';
        } else {
            regex_refuse(r, E_UNSUPPORTED, "look-around and flags, (?...), are not supported");
        }
    }
    gx *x = r->b->st ? gx_text(r->b, "") : regex_alternatives(r);
    if (regex_peek(r) != ')')
        regex_refuse(r, E_FORMAT, "a group that is not closed");
    r->at++;
    r->depth--;
    return x;
}

static gx *regex_item(regex *r)
{
    bool negate, ok;
    int32_t n;
    uint32_t cp = 0;
    int c = regex_peek(r);
    switch (c) {
    case '(':
        return read_group(r);
    case '[':
        return regex_class(r);
    case '.':
        r->at++;
        return spelled(r, line_ends, 3, true);
    case '\\': {
        r->at++;
        const gx_range *range = read_escape(r, &n, &negate, &cp);
        return range ? spelled(r, range, n, negate) : spelled_char(r, cp);
    }
    case '^':
    case '$':
        regex_refuse(r, E_UNSUPPORTED, "^ and $ are supported only at its ends");
        return gx_text(r->b, "");
    case '*':
    case '+':
    case '?':
        regex_refuse(r, E_FORMAT, "a repetition of nothing");
        return gx_text(r->b, "");
    default:
        r->at += (size_t)utf8_decode(r->s + r->at, r->n - r->at, &cp, &ok);
        return spelled_char(r, cp);
    }
}

/* Reads {m}, {m,} or {m,n}. False: the brace is a literal, or an error. */
static bool regex_counts(regex *r, int32_t *min, int32_t *max)
{
    int64_t v[2] = {0, -1};
    size_t at = r->at + 1, from = at;
    for (int k = 0; k < 2; k++) {
        for (from = at; at < r->n && r->s[at] >= '0' && r->s[at] <= '9'; at++)
            v[k] = (v[k] < 0 ? 0 : v[k] > GRAMMAR_MAX_REPEAT ? v[k] : v[k] * 10) + (r->s[at] - '0');
        if (k == 0 && at == from)
            return false;
        if (k == 0 && at < r->n && r->s[at] == '}')
            v[1] = v[0];
        if (at >= r->n || r->s[at] != (k == 0 && v[1] < 0 ? ',' : '}'))
            return false;
        at++;
        if (v[1] >= 0)
            break;
    }
    if (v[0] > GRAMMAR_MAX_REPEAT || v[1] > GRAMMAR_MAX_REPEAT)
        return regex_refuse(r, E_LIMIT, "a repetition of more than 1048576");
    if (v[1] >= 0 && v[1] < v[0])
        return regex_refuse(r, E_FORMAT, "a repetition whose end is before its beginning");
    r->at = at;
    *min = (int32_t)v[0];
    *max = (int32_t)v[1];
    return true;
}

static gx *regex_sequence(regex *r)
{
    gx_list l = {0};
    while (!r->b->st && r->at < r->n && regex_peek(r) != '|' && regex_peek(r) != ')') {
        int32_t min = 0, max = -1;
        if (regex_peek(r) == '$' && r->depth == 0 && (r->at + 1 == r->n || r->s[r->at + 1] == '|'))
            break;
        gx *x = regex_item(r);
        int c = regex_peek(r);
        if (c == '{' ? regex_counts(r, &min, &max) : c == '*' || c == '+' || c == '?') {
            if (c != '{') {
                r->at++;
                min = c == '+';
                max = c == '?' ? 1 : -1;
            }
            x = gx_repeat(r->b, x, min, max);
            r->at += regex_peek(r) == '?'; /* lazy: matches the same texts */
            if (regex_peek(r) == '*' || regex_peek(r) == '+')
                regex_refuse(r, E_FORMAT, "a repetition of a repetition");
        }
        gx_add(r->b, &l, x);
    }
    return gx_seq(r->b, &l);
}

static gx *regex_alternatives(regex *r)
{
    gx_list l = {0};
    bool outer = r->depth == 0;
    for (;;) {
        bool from_start = outer && regex_peek(r) == '^';
        r->at += from_start;
        gx *x = regex_sequence(r);
        bool to_end = outer && regex_peek(r) == '$';
        r->at += to_end;
        if (outer && (!from_start || !to_end)) {
            gx *any = gx_repeat(r->b, spelled(r, NULL, 0, true), 0, -1);
            x = gx_seq3(r->b, from_start ? gx_text(r->b, "") : any, x,
                        to_end ? gx_text(r->b, "") : any);
        }
        gx_add(r->b, &l, x);
        if (r->b->st || regex_peek(r) != '|')
            return gx_alt(r->b, &l);
        r->at++;
    }
}

gx *regex_parse(gx_builder *b, const char *s, size_t n, bool json, const char *where)
{
    regex r = {.b = b, .s = s, .n = n, .json = json, .where = where};
    if (n > GRAMMAR_MAX_SOURCE_BYTES / 16)
        regex_refuse(&r, E_LIMIT, "longer than 65536 bytes");
    if (!utf8_valid(s, n))
        regex_refuse(&r, E_FORMAT, "not UTF-8");
    gx *x = b->st ? gx_text(b, "") : regex_alternatives(&r);
    if (r.at < n)
        regex_refuse(&r, E_FORMAT, "a closing parenthesis too many");
    return x;
}

status grammar_from_regex(grammar **g, const char *text, size_t n, const grammar_setting *how,
                          err *e)
{
    gx_builder b;
    str whole = {0};
    *g = NULL;
    gx_begin(&b, how, e);
    if (n && text[0] == '^') { /* the whole is anchored anyway */
        text++;
        n--;
    }
    bool escaped = false;
    for (size_t i = n; n && i > 1 && text[i - 2] == '\\'; i--)
        escaped = !escaped;
    n -= n && text[n - 1] == '$' && !escaped;
    str_puts(&whole, "^(?:");
    str_put(&whole, text, n);
    str_puts(&whole, ")$");
    if (whole.bad) {
        str_free(&whole);
        return err_memory(e, "a regular expression", n);
    }
    gx *root = regex_parse(&b, whole.at, whole.n, false, "the expression");
    status st = grammar_build(g, &b, gx_after_thought(&b, root));
    gx_free(&b);
    str_free(&whole);
    return st;
}
