/* toml.c - see toml.h. Names of things: the TOML 1.0.0 specification. */
#include "apps/toml.h"

#include "base/str.h"
#include "base/utf8.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { DEPTH_MAX = 32, KEYS_MAX = 32, NUMBER_MAX = 64 };

/* How a table came to be decides what may be added to it. */
enum {
    BY_PATH,   /* as a part of [a.b]: may still get a header of its own */
    BY_HEADER, /* [a] */
    BY_DOTS,   /* as a part of a.b = 1: no header may reopen it */
    INLINE,    /* { }: closed */
    OF_TABLES  /* an array of [[a]] */
};

typedef struct parser {
    const char *at, *end, *what;
    int line;
    arena *mem;
    err *e;
} parser;

static status fail(parser *p, const char *says)
{
    return err_set(p->e, E_FORMAT, "%s:%d: %s", p->what, p->line, says);
}

static status no_memory(parser *p)
{
    return err_memory(p->e, p->what, (size_t)(p->end - p->at));
}

static bool next_is(const parser *p, const char *s)
{
    size_t n = strlen(s);
    return (size_t)(p->end - p->at) >= n && !memcmp(p->at, s, n);
}

static char peek(const parser *p)
{
    return p->at < p->end ? *p->at : 0;
}

static void skip_blanks(parser *p)
{
    while (peek(p) == ' ' || peek(p) == '\t')
        p->at++;
}

/* A comment, if one begins here. Control characters in it are errors too. */
static status skip_comment(parser *p)
{
    skip_blanks(p);
    if (peek(p) != '#')
        return OK;
    for (; p->at < p->end && *p->at != '\n'; p->at++)
        if (((unsigned char)*p->at < 0x20 && *p->at != '\t' &&
             !(*p->at == '\r' && p->at + 1 < p->end && p->at[1] == '\n')) ||
            *p->at == 0x7f)
            return fail(p, "a control character in a comment");
    return OK;
}

/* One newline, if there is one. */
static bool take_newline(parser *p)
{
    if (next_is(p, "\r\n"))
        p->at++;
    if (peek(p) != '\n')
        return false;
    p->at++;
    p->line++;
    return true;
}

/* Blanks, comments and newlines, as between the items of an array. */
static status skip_lines(parser *p)
{
    do {
        status st = skip_comment(p);
        if (st)
            return st;
    } while (take_newline(p));
    return OK;
}

static status end_line(parser *p)
{
    status st = skip_comment(p);
    if (st)
        return st;
    return p->at == p->end || take_newline(p) ? OK : fail(p, "expected the end of the line");
}

/* ---- Strings and keys ---------------------------------------------------------------------- */

static status take_escape(parser *p, str *out, bool multi)
{
    static const char from[] = "btnfr\"\\", to[] = "\b\t\n\f\r\"\\";
    char c = p->at < p->end ? *p->at++ : 0, utf8[4];
    const char *found = c ? strchr(from, c) : NULL;
    if (found) {
        str_putc(out, to[found - from]);
        return OK;
    }
    if (c == 'u' || c == 'U') {
        uint32_t cp = 0;
        for (int i = 0; i < (c == 'u' ? 4 : 8); i++) {
            int v = hex_digit(p->at < p->end ? *p->at++ : 0);
            if (v < 0)
                return fail(p, "expected hexadecimal digits after \\u");
            cp = cp << 4 | (uint32_t)v;
        }
        if (!cp || cp > 0x10ffff || (cp >= 0xd800 && cp < 0xe000))
            return fail(p, "no character has that number");
        str_put(out, utf8, (size_t)utf8_encode(cp, utf8));
        return OK;
    }
    /* In several lines a backslash at the end of one skips to the next word. */
    p->at -= c != 0;
    skip_blanks(p);
    if (!multi || !take_newline(p))
        return fail(p, "an unknown escape in a string");
    while (peek(p) == ' ' || peek(p) == '\t' || take_newline(p))
        if (peek(p) == ' ' || peek(p) == '\t')
            p->at++;
    return OK;
}

/* A string in quotes of any of the four kinds. multi_ok: the two of several lines too. */
static status take_string(parser *p, bool multi_ok, const char **out)
{
    char quote = *p->at;
    const char three[] = {quote, quote, quote, 0};
    bool multi = multi_ok && next_is(p, three);
    int from = p->line;
    str s = {0};
    status st = OK;
    p->at += multi ? 3 : 1;
    if (multi)
        take_newline(p);
    for (;;) {
        char c = peek(p);
        if (p->at == p->end || (!multi && c == '\n')) {
            p->line = from;
            st = fail(p, "a string without its closing quote");
            break;
        }
        if (c == quote && !multi) {
            p->at++;
            break;
        }
        if (c == quote && next_is(p, three)) {
            p->at += 3;
            for (int i = 0; i < 2 && peek(p) == quote;
                 i++) { /* quotes may stand before the three */
                str_putc(&s, quote);
                p->at++;
            }
            break;
        }
        if (c == '\\' && quote == '"') {
            p->at++;
            if ((st = take_escape(p, &s, multi)))
                break;
        } else if (multi && take_newline(p)) {
            str_putc(&s, '\n');
        } else if (((unsigned char)c < 0x20 && c != '\t') || c == 0x7f) {
            st = fail(p, "a control character in a string");
            break;
        } else {
            str_putc(&s, c);
            p->at++;
        }
    }
    if (!st && s.bad)
        st = no_memory(p);
    if (!st && !(*out = arena_strndup(p->mem, str_text(&s), s.n)))
        st = no_memory(p);
    str_free(&s);
    return st;
}

static bool is_bare(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' ||
           c == '_';
}

static status take_key(parser *p, const char **out)
{
    const char *from = p->at;
    if (peek(p) == '"' || peek(p) == '\'')
        return take_string(p, false, out);
    while (p->at < p->end && is_bare(*p->at))
        p->at++;
    if (p->at == from)
        return fail(p, "expected a key");
    *out = arena_strndup(p->mem, from, (size_t)(p->at - from));
    return *out ? OK : no_memory(p);
}

/* a."b".c; blanks may stand around the dots. */
static status take_keys(parser *p, const char *key[KEYS_MAX], int *n)
{
    *n = 0;
    for (;;) {
        status st;
        skip_blanks(p);
        if (*n == KEYS_MAX)
            return fail(p, "a key with too many parts");
        if ((st = take_key(p, &key[(*n)++])))
            return st;
        skip_blanks(p);
        if (peek(p) != '.')
            return OK;
        p->at++;
    }
}

/* ---- The tree ------------------------------------------------------------------------------ */

/* Where the member of this key is linked, or would be: two bits of the hash choose a branch. */
static toml **place_of(toml **at, const char *key)
{
    uint64_t h = 14695981039346656037u; /* FNV-1a */
    for (const char *c = key; *c; c++)
        h = (h ^ (unsigned char)*c) * 1099511628211u;
    for (; *at && strcmp((*at)->key, key) != 0; h <<= 2)
        at = &(*at)->branch[h >> 62];
    return at;
}

const toml *toml_get(const toml *table, const char *key)
{
    toml *root = table && table->kind == TOML_TABLE ? table->index : NULL;
    return *place_of(&root, key);
}

static toml *add(parser *p, toml *parent, const char *key, toml_kind kind)
{
    toml *t = arena_alloc(p->mem, sizeof *t);
    if (!t)
        return NULL;
    *t = (toml){.kind = kind, .key = key, .line = p->line};
    if (parent->last)
        parent->last->next = t;
    else
        parent->first = t;
    parent->last = t;
    if (key)
        *place_of(&parent->index, key) = t;
    return t;
}

/* The table that keys[0..n) lead to from table; those that are missing are made. */
static status walk(parser *p, toml *table, const char *const *key, int n, int how, toml **out)
{
    for (int i = 0; i < n; i++) {
        toml *t = (toml *)toml_get(table, key[i]);
        if (!t) {
            if (!(t = add(p, table, key[i], TOML_TABLE)))
                return no_memory(p);
            t->how = (unsigned char)how;
        } else if (t->how == OF_TABLES && how == BY_PATH) {
            t = t->last;
        } else if (t->kind != TOML_TABLE || t->how == INLINE ||
                   (how == BY_DOTS && t->how != BY_DOTS)) {
            return err_set(p->e, E_FORMAT, "%s:%d: '%s' was given already, in line %d", p->what,
                           p->line, key[i], t->line);
        }
        table = t;
    }
    *out = table;
    return OK;
}

/* ---- Values -------------------------------------------------------------------------------- */

static status take_value(parser *p, toml *v, int depth);

/* key = value */
static status take_pair(parser *p, toml *table, int depth)
{
    const char *key[KEYS_MAX];
    int n;
    toml *to, *v;
    status st = take_keys(p, key, &n);
    if (st)
        return st;
    if (peek(p) != '=')
        return fail(p, "expected '=' after a key");
    p->at++;
    if ((st = walk(p, table, key, n - 1, BY_DOTS, &to)))
        return st;
    const toml *old = toml_get(to, key[n - 1]);
    if (old)
        return err_set(p->e, E_FORMAT, "%s:%d: '%s' was given already, in line %d", p->what,
                       p->line, key[n - 1], old->line);
    if (!(v = add(p, to, key[n - 1], TOML_TABLE)))
        return no_memory(p);
    skip_blanks(p);
    return take_value(p, v, depth);
}

static status take_array(parser *p, toml *v, int depth)
{
    v->kind = TOML_ARRAY;
    p->at++;
    for (;;) {
        status st = skip_lines(p);
        if (st)
            return st;
        if (peek(p) == ']')
            break;
        toml *item = add(p, v, NULL, TOML_TABLE);
        if (!item)
            return no_memory(p);
        if ((st = take_value(p, item, depth + 1)) || (st = skip_lines(p)))
            return st;
        if (peek(p) == ',')
            p->at++;
        else if (peek(p) != ']')
            return fail(p, "expected ',' or ']' in an array");
    }
    p->at++;
    return OK;
}

static status take_inline(parser *p, toml *v, int depth)
{
    v->kind = TOML_TABLE;
    p->at++;
    skip_blanks(p);
    for (bool first = true; first ? peek(p) != '}' : true; first = false) {
        status st = take_pair(p, v, depth + 1);
        if (st)
            return st;
        skip_blanks(p);
        if (peek(p) == '}')
            break;
        if (peek(p) != ',')
            return fail(p, "expected ',' or '}' in an inline table");
        p->at++;
    }
    p->at++;
    v->how = INLINE;
    return OK;
}

/* Removes underscores, each of which must stand between two digits. False: one does not. */
static bool plain_digits(const char *s, size_t n, char out[NUMBER_MAX])
{
    size_t m = 0;
    if (n >= NUMBER_MAX)
        return false;
    for (size_t i = 0; i < n; i++) {
        if (s[i] != '_')
            out[m++] = s[i];
        else if (!i || i + 1 == n || !is_bare(s[i - 1]) || !is_bare(s[i + 1]) || s[i - 1] == '_' ||
                 strchr("-_", s[i + 1]))
            return false;
    }
    out[m] = 0;
    return true;
}

static bool only(const char *s, const char *set)
{
    return *s && strspn(s, set) == strlen(s);
}

static bool read_integer(const char *s, int64_t *v)
{
    static const struct {
        const char *head, *digits;
        int base;
    } kinds[] = {{"0x", "0123456789abcdefABCDEF", 16}, {"0o", "01234567", 8}, {"0b", "01", 2}};
    char *end;
    errno = 0;
    const char *digits = s + (*s == '+' || *s == '-'), *from = s, *set = "0123456789";
    int base = 10;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (!strncmp(s, kinds[i].head, 2)) {
            digits = from = s + 2;
            set = kinds[i].digits;
            base = kinds[i].base;
        }
    if (!only(digits, set) || (base == 10 && *digits == '0' && digits[1]))
        return false;
    long long x = strtoll(from, &end, base);
    if (errno)
        return false;
    *v = x;
    return true;
}

static bool read_real(const char *s, double *v)
{
    const char *digits = s + (*s == '+' || *s == '-');
    char *end;
    if (!strcmp(digits, "inf") || !strcmp(digits, "nan")) {
        *v = strtod(s, &end);
        return true;
    }
    size_t whole = strspn(digits, "0123456789");
    const char *at = digits + whole;
    if (!whole || (*digits == '0' && whole > 1) || !*at) /* too large an integer is no real */
        return false;
    if (*at == '.') {
        size_t n = strspn(at + 1, "0123456789");
        if (!n)
            return false;
        at += 1 + n;
    }
    if (*at == 'e' || *at == 'E') {
        at += 1 + (at[1] == '+' || at[1] == '-');
        if (!only(at, "0123456789"))
            return false;
        at += strlen(at);
    }
    if (*at)
        return false;
    *v = strtod(s, &end);
    return true;
}

/* Two digits from lo to hi. */
static bool two(const char **s, int lo, int hi, int *v)
{
    const char *d = *s;
    if (d[0] < '0' || d[0] > '9' || d[1] < '0' || d[1] > '9')
        return false;
    *v = (d[0] - '0') * 10 + d[1] - '0';
    *s += 2;
    return *v >= lo && *v <= hi;
}

static bool mark(const char **s, const char *set)
{
    bool is = **s && strchr(set, **s);
    *s += is;
    return is;
}

/* YYYY-MM-DD, a day that the calendar has. */
static bool take_date(const char **s)
{
    static const char days[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    int century, year, month, day;
    if (!two(s, 0, 99, &century) || !two(s, 0, 99, &year) || !mark(s, "-") ||
        !two(s, 1, 12, &month) || !mark(s, "-") || !two(s, 1, 31, &day))
        return false;
    bool leap = year ? year % 4 == 0 : century % 4 == 0;
    return day <= days[month - 1] + (month == 2 && leap);
}

/* HH:MM:SS, and a fraction; second 60 is a leap second. */
static bool take_time(const char **s)
{
    int v;
    if (!two(s, 0, 23, &v) || !mark(s, ":") || !two(s, 0, 59, &v) || !mark(s, ":") ||
        !two(s, 0, 60, &v))
        return false;
    if (!mark(s, "."))
        return true;
    size_t n = strspn(*s, "0123456789");
    *s += n;
    return n > 0;
}

/* A date, a time, or both, the latter with or without an offset from UTC. */
static bool is_date(const char *s)
{
    int v;
    if (s[0] && s[1] && s[2] == ':')
        return take_time(&s) && !*s;
    if (!take_date(&s))
        return false;
    if (!*s)
        return true;
    if (!mark(&s, "Tt ") || !take_time(&s))
        return false;
    if (!mark(&s, "Zz") && mark(&s, "+-") &&
        !(two(&s, 0, 23, &v) && mark(&s, ":") && two(&s, 0, 59, &v)))
        return false;
    return !*s;
}

static void skip_word(parser *p)
{
    while (p->at < p->end && (is_bare(*p->at) || strchr("+.:", *p->at)) && *p->at)
        p->at++;
}

static bool is_digit(const parser *p, int i)
{
    return p->end - p->at > i && p->at[i] >= '0' && p->at[i] <= '9';
}

static status take_word(parser *p, toml *v)
{
    const char *from = p->at;
    char word[NUMBER_MAX];
    skip_word(p);
    size_t n = (size_t)(p->at - from);
    bool date =
        n >= 8 && ((from[4] == '-' && from[7] == '-') || (from[2] == ':' && from[5] == ':'));
    /* A blank may stand between a date and its time. */
    if (date && n == 10 && peek(p) == ' ' && is_digit(p, 1) && is_digit(p, 2)) {
        p->at++;
        skip_word(p);
        n = (size_t)(p->at - from);
    }
    if (!n)
        return fail(p, "expected a value");
    if ((n == 4 && !memcmp(from, "true", 4)) || (n == 5 && !memcmp(from, "false", 5))) {
        v->kind = TOML_BOOL;
        v->truth = n == 4;
        return OK;
    }
    if (plain_digits(from, n, word)) {
        if (read_integer(word, &v->integer)) {
            v->kind = TOML_INTEGER;
            return OK;
        }
        if (read_real(word, &v->real)) {
            v->kind = TOML_REAL;
            return OK;
        }
    }
    if (date) {
        v->kind = TOML_DATE;
        if (!(v->text = arena_strndup(p->mem, from, n)))
            return no_memory(p);
        return is_date(v->text) ? OK : fail(p, "not a date or time of the calendar");
    }
    return fail(p, "expected a value: text in quotes, a number, true or false");
}

static status take_value(parser *p, toml *v, int depth)
{
    v->line = p->line;
    if (depth > DEPTH_MAX)
        return fail(p, "arrays and tables are nested too deep");
    if (peek(p) == '"' || peek(p) == '\'') {
        v->kind = TOML_STRING;
        return take_string(p, true, &v->text);
    }
    if (peek(p) == '[')
        return take_array(p, v, depth);
    return peek(p) == '{' ? take_inline(p, v, depth) : take_word(p, v);
}

/* ---- Lines --------------------------------------------------------------------------------- */

/* [[key]]: one more table of the array t; NULL: there is none yet. */
static status add_item(parser *p, toml *parent, toml *t, const char *key, toml **table)
{
    if (t && t->how != OF_TABLES)
        return err_set(p->e, E_FORMAT, "%s:%d: [[%s]] was given already, in line %d, and not so",
                       p->what, p->line, key, t->line);
    if (!t && !(t = add(p, parent, key, TOML_ARRAY)))
        return no_memory(p);
    t->how = OF_TABLES;
    if (!(*table = add(p, t, NULL, TOML_TABLE)))
        return no_memory(p);
    (*table)->how = BY_HEADER;
    return OK;
}

static status take_header(parser *p, toml *root, toml **table)
{
    const char *key[KEYS_MAX];
    int n;
    bool item = next_is(p, "[[");
    p->at += item ? 2 : 1;
    toml *parent;
    status st = take_keys(p, key, &n);
    if (st)
        return st;
    if (!next_is(p, item ? "]]" : "]"))
        return fail(p, item ? "expected ']]' after the name of an array of tables"
                            : "expected ']' after a table's name");
    p->at += item ? 2 : 1;
    if ((st = walk(p, root, key, n - 1, BY_PATH, &parent)))
        return st;
    toml *t = (toml *)toml_get(parent, key[n - 1]);
    if (item)
        return add_item(p, parent, t, key[n - 1], table);
    if (!t && !(t = add(p, parent, key[n - 1], TOML_TABLE)))
        return no_memory(p);
    if (t->kind != TOML_TABLE || t->how != BY_PATH)
        return err_set(p->e, E_FORMAT, "%s:%d: [%s] was given already, in line %d", p->what,
                       p->line, key[n - 1], t->line);
    t->how = BY_HEADER;
    t->line = p->line;
    *table = t;
    return OK;
}

status toml_parse(const toml **out, const char *text, size_t n, const char *what, arena *mem,
                  err *e)
{
    parser p = {.at = text, .end = text + n, .what = what, .line = 1, .mem = mem, .e = e};
    toml *root = arena_alloc(mem, sizeof *root), *table = root;
    status st = OK;
    if (!root)
        return err_memory(e, what, n);
    *root = (toml){.kind = TOML_TABLE, .line = 1, .how = BY_HEADER};
    if (!utf8_valid(text, n))
        return err_set(e, E_FORMAT, "%s: not UTF-8", what);
    if (next_is(&p, "\xef\xbb\xbf"))
        p.at += 3;
    while (!st && p.at < p.end) {
        skip_blanks(&p);
        if (peek(&p) == '[')
            st = take_header(&p, root, &table);
        else if (p.at < p.end && !strchr("#\r\n", *p.at))
            st = take_pair(&p, table, 0);
        if (!st)
            st = end_line(&p);
    }
    if (!st)
        *out = root;
    return st;
}

const char *toml_kind_name(toml_kind k)
{
    static const char *const names[] = {"a table",       "a string", "a whole number",  "a number",
                                        "true or false", "an array", "a date or a time"};
    return names[k];
}
