/* jtree.c - parses one JSON text to a tree, by recursive descent.
 *
 * Depth is limited, because deeply nested brackets would exhaust the stack. Strings are unescaped
 * into a scratch string, and copied to the arena when complete. Numbers keep their spelling;
 * callers interpret them. The parser keeps its first error, with line and column.
 */
#include "text/jtree.h"
#include "text/lower.h"
#include "base/decimal.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "base/str.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct parser {
    const char *text, *what;
    size_t n, at;
    int max_depth;
    arena *mem;
    err *e;
    status st;
    bool keeps_repeats;
    str scratch; /* a string being unescaped */
} parser;

static status fail(parser *p, const char *why)
{
    size_t line = 1, column = 1;
    for (size_t i = 0; i < p->at && i < p->n; i++) {
        column++;
        if (p->text[i] == '\n') {
            line++;
            column = 1;
        }
    }
    return p->st = err_set(p->e, E_FORMAT, "%s is not valid JSON: line %zu, column %zu: %s",
                           p->what, line, column, why);
}

static status no_memory(parser *p)
{
    if (p->mem->over)
        return p->st = err_set(p->e, E_LIMIT,
                               "%s: too many values for its %zu bytes: they would take more than "
                               "%zu bytes of memory",
                               p->what, p->n, p->mem->max_bytes);
    return p->st = err_memory(p->e, p->what, p->n);
}

static void skip_json_space(parser *p)
{
    while (p->at < p->n && strchr(" \t\r\n", p->text[p->at]) && p->text[p->at])
        p->at++;
}

static bool take_json(parser *p, char c)
{
    if (p->at == p->n || p->text[p->at] != c)
        return false;
    p->at++;
    return true;
}

/* Reads four hex digits; -1 if there are none. */
static int32_t take_hex4(parser *p)
{
    int32_t v = 0;
    if (p->n - p->at < 4)
        return -1;
    for (int i = 0; i < 4; i++) {
        int d = hex_digit(p->text[p->at + (size_t)i]);
        if (d < 0)
            return -1;
        v = v * 16 + d;
    }
    p->at += 4;
    return v;
}

static status take_escape(parser *p)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    char out[4];
    if (p->at == p->n)
        return fail(p, "the text ends inside a string");
    char c = p->text[p->at++];
    const char *f = c ? strchr(from, c) : NULL;
    if (f) {
        str_putc(&p->scratch, to[f - from]);
        return OK;
    }
    int32_t cp = c == 'u' ? take_hex4(p) : -1;
    if (cp < 0)
        return fail(p, "an unknown escape in a string");
    if (cp >= 0xD800 && cp < 0xDC00) {
        int32_t low = take_json(p, '\\') && take_json(p, 'u') ? take_hex4(p) : -1;
        if (low < 0xDC00 || low > 0xDFFF)
            return fail(p, "half a surrogate pair in a string");
        cp = 0x10000 + ((cp - 0xD800) << 10) + (low - 0xDC00);
    } else if (cp >= 0xDC00 && cp < 0xE000) {
        return fail(p, "half a surrogate pair in a string");
    }
    str_put(&p->scratch, out, (size_t)utf8_encode((uint32_t)cp, out));
    return OK;
}

/* Reads a string from behind its opening quote. */
static status take_string(parser *p, const char **s, size_t *n)
{
    str_cut(&p->scratch, 0);
    for (;;) {
        size_t from = p->at;
        while (p->at < p->n) {
            unsigned char c = (unsigned char)p->text[p->at];
            uint32_t cp;
            bool ok = true;
            if (c == '"' || c == '\\' || c < 0x20)
                break;
            p->at += c < 0x80 ? 1 : (size_t)utf8_decode(p->text + p->at, p->n - p->at, &cp, &ok);
            if (!ok)
                return fail(p, "a string is not valid UTF-8");
        }
        str_put(&p->scratch, p->text + from, p->at - from);
        if (take_json(p, '"'))
            break;
        if (p->at == p->n)
            return fail(p, "the text ends inside a string");
        if (!take_json(p, '\\'))
            return fail(p, "a control character in a string");
        if (take_escape(p))
            return p->st;
    }
    if (p->scratch.bad || !(*s = arena_strndup(p->mem, str_text(&p->scratch), p->scratch.n)))
        return no_memory(p);
    *n = p->scratch.n;
    return OK;
}

size_t jtree_number_length(const char *s, size_t n, bool *real)
{
    size_t i = 0, digits;
    *real = false;
#define DIGITS                                                                                     \
    for (digits = 0; i < n && s[i] >= '0' && s[i] <= '9'; i++)                                     \
    digits++
    if (i < n && s[i] == '-')
        i++;
    size_t from = i;
    DIGITS;
    if (!digits || (digits > 1 && s[from] == '0'))
        return 0;
    if (i < n && s[i] == '.') {
        i++;
        *real = true;
        DIGITS;
        if (!digits)
            return 0;
    }
    if (i < n && (s[i] == 'e' || s[i] == 'E')) {
        i++;
        *real = true;
        if (i < n && (s[i] == '+' || s[i] == '-'))
            i++;
        DIGITS;
        if (!digits)
            return 0;
    }
#undef DIGITS
    return i;
}

static status take_value(parser *p, int depth, jtree *v);

static int by_exact_key(const void *a, const void *b)
{
    const jtree *x = *(jtree *const *)a, *y = *(jtree *const *)b;
    size_t n = x->n_key < y->n_key ? x->n_key : y->n_key;
    int c = memcmp(x->key, y->key, n);
    if (c)
        return c;
    if (x->n_key != y->n_key)
        return x->n_key < y->n_key ? -1 : 1;
    return x->count < y->count ? -1 : 1; /* count is the place in the object: see drop_repeats */
}

/* Gives the first of several members with the same key the value of the last, and removes the
 * others. */
static status drop_repeats(parser *p, jtree *v)
{
    jtree **m = mem_alloc(v->count * sizeof *m), *it = v->first;
    size_t *counts = mem_alloc(v->count * sizeof *counts), n = v->count;
    if (!m || !counts) {
        mem_free(m);
        mem_free(counts);
        return no_memory(p);
    }
    /* While members are sorted, count holds the place in the object. It is restored below. */
    for (size_t i = 0; i < n; i++, it = it->next) {
        m[i] = it;
        counts[i] = it->count;
        it->count = i;
    }
    qsort(m, n, sizeof *m, by_exact_key);
    bool any = false;
    for (size_t i = 0, j; i < n; i = j) {
        jtree *first = m[i];
        for (j = i + 1;
             j < n && m[j]->n_key == first->n_key && !memcmp(m[j]->key, first->key, first->n_key);
             j++)
            any = true;
        jtree *last = m[j - 1];
        if (last != first) {
            counts[first->count] = counts[last->count];
            first->kind = last->kind;
            first->s = last->s;
            first->n = last->n;
            first->first = last->first;
        }
        for (size_t k = i + 1; k < j; k++)
            m[k]->key = NULL; /* marked for removal */
    }
    for (it = v->first; it; it = it->next)
        it->count = counts[it->count];
    if (any)
        for (jtree **link = &v->first; *link;) {
            if ((*link)->key) {
                link = &(*link)->next;
            } else {
                *link = (*link)->next;
                v->count--;
            }
        }
    mem_free(m);
    mem_free(counts);
    return OK;
}

static status take_children(parser *p, int depth, jtree *v)
{
    bool object = v->kind == JTREE_OBJECT;
    char close = object ? '}' : ']';
    jtree **link = &v->first;
    if (depth >= p->max_depth)
        return p->st = err_set(p->e, E_LIMIT, "%s: JSON nested deeper than %d levels", p->what,
                               p->max_depth);
    skip_json_space(p);
    if (take_json(p, close))
        return OK;
    for (;;) {
        jtree *item = arena_alloc(p->mem, sizeof *item);
        if (!item)
            return no_memory(p);
        skip_json_space(p);
        if (object) {
            if (!take_json(p, '"'))
                return fail(p, "expected a key in quotes");
            if (take_string(p, &item->key, &item->n_key))
                return p->st;
            skip_json_space(p);
            if (!take_json(p, ':'))
                return fail(p, "expected a colon after a key");
        }
        if (take_value(p, depth + 1, item))
            return p->st;
        *link = item;
        link = &item->next;
        v->count++;
        skip_json_space(p);
        if (take_json(p, close))
            break;
        if (!take_json(p, ','))
            return fail(p, object ? "expected a comma or a closing brace"
                                  : "expected a comma or a closing bracket");
    }
    return object && v->count > 1 && !p->keeps_repeats ? drop_repeats(p, v) : OK;
}

static bool take_word(parser *p, const char *word)
{
    size_t n = strlen(word);
    if (p->n - p->at < n || memcmp(p->text + p->at, word, n))
        return false;
    p->at += n;
    return true;
}

static status take_value(parser *p, int depth, jtree *v)
{
    bool real;
    size_t n;
    v->parsed = true;
    skip_json_space(p);
    if (p->at == p->n)
        return fail(p, "the text ends where a value should be");
    if (take_json(p, '"')) {
        v->kind = JTREE_STRING;
        return take_string(p, &v->s, &v->n);
    }
    if (take_json(p, '{')) {
        v->kind = JTREE_OBJECT;
        return take_children(p, depth, v);
    }
    if (take_json(p, '[')) {
        v->kind = JTREE_ARRAY;
        return take_children(p, depth, v);
    }
    if ((n = jtree_number_length(p->text + p->at, p->n - p->at, &real))) {
        v->kind = real ? JTREE_REAL : JTREE_INTEGER;
        v->n = n;
        v->s = arena_strndup(p->mem, p->text + p->at, n);
        p->at += n;
        return v->s ? OK : no_memory(p);
    }
    if (take_word(p, "null"))
        v->kind = JTREE_NULL;
    else if (take_word(p, "true"))
        v->kind = JTREE_TRUE;
    else if (take_word(p, "false"))
        v->kind = JTREE_FALSE;
    else
        return fail(p, "expected a value");
    return OK;
}

static status take_all(parser *p, const jtree **out)
{
    jtree *v = arena_alloc(p->mem, sizeof *v);
    *out = NULL;
    if (!v)
        return err_memory(p->e, p->what, sizeof *v);
    if (!take_value(p, 0, v)) {
        skip_json_space(p);
        if (p->at < p->n)
            fail(p, "text after the end of the value");
    }
    str_free(&p->scratch);
    if (!p->st)
        *out = v;
    return p->st;
}

status jtree_parse(const char *text, size_t n, const char *what, int max_depth, arena *mem,
                   const jtree **out, err *e)
{
    parser p = {.text = text, .what = what, .n = n, .max_depth = max_depth, .mem = mem, .e = e};
    return take_all(&p, out);
}

status jtree_parse_repeats(const char *text, size_t n, const char *what, int max_depth, arena *mem,
                           const jtree **out, err *e)
{
    parser p = {.text = text,
                .what = what,
                .n = n,
                .max_depth = max_depth,
                .mem = mem,
                .e = e,
                .keeps_repeats = true};
    return take_all(&p, out);
}

size_t jtree_take_escape(const char *s, size_t n, str *out)
{
    parser p = {.text = s, .what = "an escape", .n = n};
    size_t taken = take_json(&p, '\\') && !take_escape(&p) ? p.at : 0;
    if (taken)
        str_put(out, str_text(&p.scratch), p.scratch.n);
    out->bad |= p.scratch.bad;
    str_free(&p.scratch);
    return taken;
}

/* ---- Questions ---- */

static const jtree *find_member(const jtree *v, const char *key)
{
    size_t n = strlen(key);
    if (!v || v->kind != JTREE_OBJECT)
        return NULL;
    for (const jtree *m = v->first; m; m = m->next)
        if (m->n_key == n && !memcmp(m->key, key, n))
            return m;
    return NULL;
}

/* Trees of constants are never written. A parsed one is in an arena, and const for its readers
 * alone. */
static void note_use(const jtree *v, jtree_use use)
{
    if (v && v->parsed && __atomic_load_n(&v->use, __ATOMIC_RELAXED) < use)
        __atomic_store_n(&((jtree *)v)->use, (unsigned char)use, __ATOMIC_RELAXED);
}

void jtree_pass(const jtree *v)
{
    note_use(v, JTREE_PASSED);
}

const jtree *jtree_get(const jtree *v, const char *key)
{
    const jtree *m = find_member(v, key);
    note_use(m, JTREE_READ);
    return m && m->kind != JTREE_NULL ? m : NULL;
}

bool jtree_has(const jtree *v, const char *key)
{
    const jtree *m = find_member(v, key);
    note_use(m, JTREE_READ);
    return m != NULL;
}

jtree *jtree_object(arena *mem)
{
    jtree *o = arena_alloc(mem, sizeof *o);
    if (o)
        *o = (jtree){.kind = JTREE_OBJECT, .s = ""};
    return o;
}

jtree *jtree_add(jtree *object, jtree *last, arena *mem, const char *key, size_t n_key,
                 const jtree *v)
{
    jtree *m = arena_alloc(mem, sizeof *m);
    if (!m)
        return NULL;
    *m = v ? *v : (jtree){.kind = JTREE_NULL};
    m->key = key;
    m->n_key = n_key;
    m->next = NULL;
    *(last ? &last->next : &object->first) = m;
    object->count++;
    return m;
}

/* Recursion is bounded by the depth that jtree_parse allowed. */
jtree *jtree_copy(const jtree *v, arena *mem)
{
    jtree *out = arena_alloc(mem, sizeof *out), *last = NULL;
    if (!out)
        return NULL;
    *out = (jtree){.kind = v->kind, .n = v->n, .s = v->s ? arena_strndup(mem, v->s, v->n) : NULL};
    for (const jtree *i = v->first; i; i = i->next) {
        jtree *copy = jtree_copy(i, mem);
        if (!copy)
            return NULL;
        if (i->key && !(copy->key = arena_strndup(mem, i->key, i->n_key)))
            return NULL;
        copy->n_key = i->n_key;
        *(last ? &last->next : &out->first) = copy;
        last = copy;
        out->count++;
    }
    return v->s && !out->s ? NULL : out;
}

bool jtree_is(const jtree *v, jtree_kind kind)
{
    return v && v->kind == kind;
}

bool jtree_truthy(const jtree *v)
{
    if (!v)
        return false;
    switch (v->kind) {
    case JTREE_OBJECT:
    case JTREE_ARRAY:
        return v->count > 0;
    case JTREE_STRING:
        return v->n > 0;
    case JTREE_INTEGER:
    case JTREE_REAL:
        return strcspn(v->s, "123456789eE") <
               strcspn(v->s, "eE"); /* a non-zero digit of the mantissa */
    case JTREE_TRUE:
        return true;
    case JTREE_FALSE:
    case JTREE_NULL:
        break;
    }
    return false;
}

const char *jtree_kind_name(const jtree *v)
{
    static const char *const name[] = {"null",     "false",    "true",     "a number",
                                       "a number", "a string", "an array", "an object"};
    return v ? name[v->kind] : "nothing";
}

/* Compares keys in lower case, code point by code point, as Python compares strings. */
static int compare_lower(const jtree *a, const jtree *b)
{
    lower_reader r = {.s = a->key, .n = a->n_key}, q = {.s = b->key, .n = b->n_key};
    uint32_t x, y;
    for (;;) {
        bool more_a = lower_next(&r, &x), more_b = lower_next(&q, &y);
        if (!more_a || !more_b)
            return more_a - more_b;
        if (x != y)
            return x < y ? -1 : 1;
    }
}

/* A stable merge sort: keys that differ only in case keep their order. */
static void sort_members(const jtree **m, const jtree **spare, size_t n)
{
    size_t half = n / 2, i = 0, j = half, k = 0;
    if (n < 2)
        return;
    sort_members(m, spare, half);
    sort_members(m + half, spare, n - half);
    while (i < half && j < n)
        spare[k++] = compare_lower(m[j], m[i]) < 0 ? m[j++] : m[i++];
    while (i < half)
        spare[k++] = m[i++];
    memcpy(m, spare, k * sizeof *m);
}

const jtree **jtree_sorted(const jtree *object, arena *mem)
{
    size_t n = object->count, i = 0;
    const jtree **m = n ? arena_array(mem, 2 * n, sizeof *m) : NULL;
    if (!m)
        return NULL;
    for (const jtree *it = object->first; it; it = it->next)
        m[i++] = it;
    sort_members(m, m + n, n);
    return m;
}

/* ---- Writing ---- */

void jtree_put_string(str *out, const char *s, size_t n)
{
    static const char from[] = "\"\\\b\f\n\r\t", to[] = "\"\\bfnrt", hex[] = "0123456789abcdef";
    str_putc(out, '"');
    for (size_t i = 0, from_i = 0; i <= n; i++) {
        unsigned char c = i < n ? (unsigned char)s[i] : 0;
        if (i < n && c >= 0x20 && c != '"' && c != '\\')
            continue;
        str_put(out, s + from_i, i - from_i);
        from_i = i + 1;
        if (i == n)
            break;
        const char *f = c ? strchr(from, c) : NULL;
        if (f) {
            str_putc(out, '\\');
            str_putc(out, to[f - from]);
        } else {
            const char code[] = {'\\', 'u', '0', '0', hex[c >> 4], hex[c & 15]};
            str_put(out, code, sizeof code);
        }
    }
    str_putc(out, '"');
}

bool jtree_put_python_number(str *out, const jtree *v)
{
    if (v->kind == JTREE_INTEGER) {
        /* JSON allows -0; Python reads it as the integer 0. */
        str_puts(out, strcmp(v->s, "-0") ? v->s : "0");
        return true;
    }
    char text[64], digits[40];
    const double d = decimal_read(v->s, NULL);
    if (!isfinite(d))
        return false;
    /* The shortest digits that read back as d: d.ddddde[+-]xx, with a point or a comma. */
    for (int precision = 0; precision < 18; precision++) {
        snprintf(text, sizeof text, "%.*e", precision, d);
        if (strtod(text, NULL) == d)
            break;
    }
    size_t k = 0;
    int exponent = 0;
    for (const char *c = text; *c; c++) {
        if (*c >= '0' && *c <= '9')
            digits[k++] = *c;
        if (*c == 'e') {
            exponent = atoi(c + 1);
            break;
        }
    }
    while (k > 1 && digits[k - 1] == '0')
        k--;
    digits[k] = 0;
    if (signbit(d))
        str_putc(out, '-');
    if (exponent < -4 || exponent >= 16) {
        str_putc(out, digits[0]);
        if (k > 1) {
            str_putc(out, '.');
            str_put(out, digits + 1, k - 1);
        }
        str_printf(out, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
    } else if (exponent < 0) {
        str_puts(out, "0.");
        for (int i = -1; i > exponent; i--)
            str_putc(out, '0');
        str_put(out, digits, k);
    } else {
        for (size_t i = 0; i <= (size_t)exponent; i++)
            str_putc(out, i < k ? digits[i] : '0');
        str_putc(out, '.');
        str_puts(out, (size_t)exponent + 1 < k ? digits + exponent + 1 : "0");
    }
    return true;
}

static bool put_json(str *out, const jtree *v, bool python)
{
    static const char *const word[] = {"null", "false", "true"};
    bool ok = true, array = v->kind == JTREE_ARRAY;
    switch (v->kind) {
    case JTREE_NULL:
    case JTREE_FALSE:
    case JTREE_TRUE:
        str_puts(out, word[v->kind]);
        break;
    case JTREE_INTEGER:
    case JTREE_REAL:
        if (python)
            return jtree_put_python_number(out, v);
        str_put(out, v->s, v->n);
        break;
    case JTREE_STRING:
        jtree_put_string(out, v->s, v->n);
        break;
    case JTREE_ARRAY:
    case JTREE_OBJECT:
        str_putc(out, array ? '[' : '{');
        for (const jtree *it = v->first; it; it = it->next) {
            if (!array) {
                jtree_put_string(out, it->key, it->n_key);
                str_puts(out, ": ");
            }
            ok &= put_json(out, it, python);
            str_puts(out, it->next ? ", " : "");
        }
        str_putc(out, array ? ']' : '}');
        break;
    }
    return ok;
}

void jtree_put_json(str *out, const jtree *v)
{
    put_json(out, v, false);
}

bool jtree_put_python_json(str *out, const jtree *v)
{
    return put_json(out, v, true);
}
