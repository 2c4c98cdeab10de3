/* call_values.c - the arguments of calls as models write them: objects, and values of plain text.
 *
 *     {key:value,...}     value: <quote>text<quote>, number, true, false, null, [..], {..}
 *
 * Strict reading follows this grammar. Lenient reading also repairs occasional mistakes of models,
 * and with them reads JSON that is nearly right:
 *   - key=value is key:value;
 *   - 'text' and "text" are strings; True, False, None are true, false, null;
 *   - a bare word is a string, up to the next "key:" or the end of the enclosing brackets;
 *   - the end of the text closes an open string and all open brackets, and drops a key without a
 *     value.
 * The JSON is written while the object is read: one pass, no tree. A repeated key stays repeated,
 * as in JSON: readers take its last value, and a value that a stream has told cannot be taken back.
 *
 * A value of plain text has the type that the tool's schema gives it.
 */
#include "text/parse_int.h"
#include "text/jtree.h"

#include <string.h>

bool call_is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

void call_skip_space(call_reading *r)
{
    while (r->at < r->n && call_is_space(r->s[r->at]))
        r->at++;
}

bool call_at_end(const call_reading *r)
{
    return r->at == r->n;
}

bool call_take(call_reading *r, const char *what)
{
    size_t n = strlen(what);
    if (r->n - r->at < n || memcmp(r->s + r->at, what, n))
        return false;
    r->at += n;
    return true;
}

static bool take_quote(call_reading *r)
{
    return r->quote && call_take(r, r->quote);
}

static bool has_quote(const call_reading *r, const char *s, size_t n)
{
    return r->quote && memmem(s, n, r->quote, strlen(r->quote));
}

/* Whether a value can end here. */
static bool at_boundary(const call_reading *r)
{
    char c = call_at_end(r) ? ',' : r->s[r->at];
    return call_is_space(c) || c == ',' || c == '}' || c == ']';
}

static bool read_value(call_reading *r);

/* Writes the text between two quotes. In double ones JSON's escapes mean what they mean there; a
 * backslash that begins none is text. */
static void put_quoted(str *out, char quote, const char *s, size_t n)
{
    str text = {0};
    const char *slash = quote == '"' ? memchr(s, '\\', n) : NULL;
    if (!slash) {
        jtree_put_string(out, s, n);
        return;
    }
    for (size_t at = 0; at < n; slash = memchr(s + at, '\\', n - at)) {
        size_t to = slash ? (size_t)(slash - s) : n;
        str_put(&text, s + at, to - at);
        size_t taken = slash ? jtree_take_escape(slash, n - to, &text) : 0;
        if (slash && !taken)
            str_putc(&text, '\\');
        at = to + (taken ? taken : slash != NULL);
    }
    jtree_put_string(out, str_text(&text), text.n);
    out->bad |= text.bad;
    str_free(&text);
}

/* Reads the rest of the text, without the closers of open brackets at its end. */
static bool read_unclosed_string(call_reading *r)
{
    size_t end = r->n;
    for (int d = 0; d < r->depth; d++) {
        size_t e = end;
        while (e > r->at && call_is_space(r->s[e - 1]))
            e--;
        if (e == r->at || r->s[e - 1] != r->open[d])
            break;
        end = e - 1;
    }
    put_quoted(r->out, r->quote ? 0 : '"', r->s + r->at, end - r->at);
    r->at = r->n;
    return true;
}

/* Reads a string in ' or ". It ends at the first such quote that a value can end after. */
static bool read_quoted(call_reading *r, char quote)
{
    for (size_t i = r->at; i < r->n; i++) {
        if (r->s[i] == '\\' && i + 1 < r->n) {
            i++;
            continue;
        }
        if (r->s[i] != quote)
            continue;
        call_reading after = *r;
        after.at = i + 1;
        call_skip_space(&after);
        if (!at_boundary(&after))
            continue;
        put_quoted(r->out, quote, r->s + r->at, i - r->at);
        r->at = i + 1;
        return true;
    }
    return false;
}

/* Whether "key:" follows the comma at i, or "key=" where the object has those. */
static bool key_follows(const call_reading *r, size_t i)
{
    size_t from;
    for (i++; i < r->n && call_is_space(r->s[i]); i++)
        ;
    for (from = i; i < r->n && (r->s[i] == '_' || r->s[i] == '-' || r->s[i] == '.' ||
                                (r->s[i] >= '0' && r->s[i] <= '9') ||
                                ((r->s[i] | 32) >= 'a' && (r->s[i] | 32) <= 'z'));
         i++)
        ;
    return i > from && i < r->n && (r->s[i] == ':' || (r->equals && r->s[i] == '='));
}

static bool read_bare(call_reading *r)
{
    static const char *const python[][2] = {{"True", "true"}, {"False", "false"}, {"None", "null"}};
    size_t end = r->at, i;
    char close = r->open[r->depth - 1];
    for (i = 0; i < 3; i++) {
        call_reading word = *r;
        if (call_take(&word, python[i][0]) && at_boundary(&word)) {
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
    while (stop > r->at && call_is_space(r->s[stop - 1]))
        stop--;
    if (stop == r->at || has_quote(r, r->s + r->at, stop - r->at))
        return false;
    jtree_put_string(r->out, r->s + r->at, stop - r->at);
    r->at = end;
    return true;
}

static bool open_bracket(call_reading *r, char close)
{
    if (r->depth == CALL_MAX_DEPTH)
        return false;
    r->open[r->depth++] = close;
    return true;
}

typedef enum item { ITEM_MORE, ITEM_LAST, ITEM_BAD } item;

/* Reads a value of an array or an object, and what follows it. A bad one leaves `before` bytes of
 * the output. */
static item read_item(call_reading *r, size_t before, const char *close)
{
    if (!read_value(r)) {
        str_cut(r->out, before);
        return ITEM_BAD;
    }
    call_skip_space(r);
    if (call_take(r, ","))
        return ITEM_MORE;
    return call_take(r, close) || (r->lenient && call_at_end(r)) ? ITEM_LAST : ITEM_BAD;
}

static bool read_array(call_reading *r)
{
    item next = ITEM_MORE;
    if (!open_bracket(r, ']'))
        return false;
    str_putc(r->out, '[');
    for (bool any = false; next == ITEM_MORE; any = true) {
        size_t before = r->out->n;
        call_skip_space(r);
        if ((!any || r->lenient) && call_take(r, "]"))
            break;
        if (r->lenient && call_at_end(r))
            break;
        if (any)
            str_putc(r->out, ',');
        if ((next = read_item(r, before, "]")) == ITEM_BAD)
            return false;
    }
    str_putc(r->out, ']');
    r->depth--;
    return true;
}

/* Reads a key into *key and *n. It is bare, or quoted by mistake. */
static bool read_key(call_reading *r, const char **key, size_t *n)
{
    const char *s = r->s + r->at, *end;
    size_t left = r->n - r->at, n_quote = r->quote ? strlen(r->quote) : 0;
    if (take_quote(r)) {
        s += n_quote;
        left -= n_quote;
        if (!(end = memmem(s, left, r->quote, n_quote)))
            return false;
        r->at += (size_t)(end - s) + n_quote;
    } else if (call_take(r, "\"") || (r->lenient && call_take(r, "'"))) {
        char quote = *s++;
        if (!(end = memchr(s, quote, left - 1)))
            return false;
        r->at += (size_t)(end - s) + 1;
    } else {
        while (!call_at_end(r) && r->s[r->at] != ':' && r->s[r->at] != '}' &&
               !(r->lenient && r->s[r->at] == '='))
            r->at++;
        end = r->s + r->at;
        while (end > s && call_is_space(end[-1]))
            end--;
        if (has_quote(r, s, (size_t)(end - s)))
            return false;
    }
    *key = s;
    *n = (size_t)(end - s);
    call_skip_space(r);
    return *n > 0;
}

/* Models write = instead of the colon at times. */
static bool take_colon(call_reading *r)
{
    if (call_take(r, ":"))
        return true;
    bool taken = r->lenient && call_take(r, "=");
    r->equals |= taken;
    return taken;
}

/* Reads an object from behind its opening brace. */
bool call_read_object(call_reading *r)
{
    item next = ITEM_MORE;
    if (!open_bracket(r, '}'))
        return false;
    str_putc(r->out, '{');
    for (bool any = false; next == ITEM_MORE; any = true) {
        size_t before = r->out->n, n;
        const char *key;
        call_skip_space(r);
        if ((!any || r->lenient) && call_take(r, "}"))
            break;
        if (r->lenient && call_at_end(r))
            break;
        bool named = read_key(r, &key, &n) && take_colon(r);
        call_skip_space(r);
        if (call_at_end(r) && r->lenient)
            break; /* a key without a value */
        if (!named)
            return false;
        if (any)
            str_putc(r->out, ',');
        jtree_put_string(r->out, key, n);
        str_putc(r->out, ':');
        if ((next = read_item(r, before, "}")) == ITEM_BAD)
            return false;
    }
    str_putc(r->out, '}');
    r->depth--;
    return true;
}

static bool read_value(call_reading *r)
{
    static const char *const words[] = {"true", "false", "null"};
    const size_t n_mark = r->quote ? strlen(r->quote) : 0;
    bool real;
    call_skip_space(r);
    if (take_quote(r)) {
        const char *s = r->s + r->at, *end = memmem(s, r->n - r->at, r->quote, n_mark);
        if (!end)
            return r->lenient && read_unclosed_string(r);
        jtree_put_string(r->out, s, (size_t)(end - s));
        r->at += (size_t)(end - s) + n_mark;
        return true;
    }
    if (call_take(r, "["))
        return read_array(r);
    if (call_take(r, "{"))
        return call_read_object(r);
    for (size_t i = 0; i < 3; i++) {
        call_reading word = *r;
        if (call_take(&word, words[i]) && at_boundary(&word)) {
            str_puts(r->out, words[i]);
            r->at = word.at;
            return true;
        }
    }
    size_t n = jtree_number_length(r->s + r->at, r->n - r->at, &real);
    if (n) {
        call_reading number = *r;
        number.at += n;
        if (at_boundary(&number)) {
            str_put(r->out, r->s + r->at, n);
            r->at = number.at;
            return true;
        }
    }
    if (!r->lenient || call_at_end(r))
        return false;
    char quote = r->s[r->at];
    if ((quote == '\'' || quote == '"') && !r->unpaired[quote == '"']) {
        r->at++;
        if (read_quoted(r, quote))
            return true;
        if (!r->quote && quote == '"')
            return read_unclosed_string(r);
        r->at--;
        r->unpaired[quote == '"'] = true;
    }
    return read_bare(r);
}

/* ---- Plain text by schema ---- */

enum { KINDS_ALL = (1 << (JTREE_OBJECT + 1)) - 1, KINDS_MAX_STEPS = 256 };

static unsigned kinds_of_word(const char *type)
{
    static const struct {
        const char *type;
        unsigned kinds;
    } row[] = {{"null", 1u << JTREE_NULL},
               {"boolean", 1u << JTREE_TRUE | 1u << JTREE_FALSE},
               {"integer", 1u << JTREE_INTEGER | 1u << JTREE_REAL},
               {"number", 1u << JTREE_INTEGER | 1u << JTREE_REAL},
               {"string", 1u << JTREE_STRING},
               {"array", 1u << JTREE_ARRAY},
               {"object", 1u << JTREE_OBJECT}};
    for (size_t i = 0; i < sizeof row / sizeof *row; i++)
        if (!strcmp(row[i].type, type))
            return row[i].kinds;
    return KINDS_ALL;
}

/* The target of a $ref inside the schema; keys with escapes are not looked up. */
static const jtree *ref_target(const jtree *root, const char *ref)
{
    char key[128];
    if (*ref++ != '#')
        return NULL;
    while (root && *ref == '/') {
        size_t n = strcspn(++ref, "/");
        if (n >= sizeof key)
            return NULL;
        memcpy(key, ref, n);
        key[n] = 0;
        root = jtree_get(root, key);
        ref += n;
    }
    return *ref ? NULL : root;
}

/* The kinds of values that a schema allows, as bits 1 << kind. Keywords that it does not look at
 * allow everything. *steps bounds the work; beyond it everything is allowed. */
static unsigned kinds_of(const jtree *root, const jtree *schema, int *steps)
{
    unsigned kinds = KINDS_ALL, some = 0;
    if (!jtree_is(schema, JTREE_OBJECT) || ++*steps > KINDS_MAX_STEPS)
        return KINDS_ALL;
    const jtree *type = jtree_get(schema, "type"), *list = jtree_get(schema, "enum"), *x;
    if (jtree_is(type, JTREE_STRING))
        kinds = kinds_of_word(type->s);
    for (x = jtree_is(type, JTREE_ARRAY) ? type->first : NULL; x; x = x->next)
        kinds = some |= x->kind == JTREE_STRING ? kinds_of_word(x->s) : KINDS_ALL;
    if (type && jtree_is(jtree_get(schema, "nullable"), JTREE_TRUE))
        kinds |= 1u << JTREE_NULL;
    else if (!type && (jtree_get(schema, "pattern") || jtree_get(schema, "minLength") ||
                       jtree_get(schema, "maxLength")))
        kinds = 1u << JTREE_STRING;
    some = 0;
    for (x = jtree_is(list, JTREE_ARRAY) ? list->first : NULL; x; x = x->next)
        some |= 1u << x->kind;
    kinds &= some ? some : KINDS_ALL;
    if (jtree_has(schema, "const")) {
        const jtree *one = jtree_get(schema, "const");
        kinds &= 1u << (one ? one->kind : JTREE_NULL);
    }
    static const char *const choices[] = {"anyOf", "oneOf"};
    for (int k = 0; k < 2; k++) {
        const jtree *of = jtree_get(schema, choices[k]);
        some = 0;
        for (x = jtree_is(of, JTREE_ARRAY) ? of->first : NULL; x; x = x->next)
            some |= kinds_of(root, x, steps);
        kinds &= some ? some : KINDS_ALL;
    }
    x = jtree_get(schema, "allOf");
    for (x = jtree_is(x, JTREE_ARRAY) ? x->first : NULL; x; x = x->next)
        kinds &= kinds_of(root, x, steps);
    x = jtree_get(schema, "$ref");
    if (jtree_is(x, JTREE_STRING))
        kinds &= kinds_of(root, ref_target(root, x->s), steps);
    return kinds;
}

unsigned call_kinds_of(const jtree *root, const jtree *schema)
{
    int steps = 0;
    return kinds_of(root, schema, &steps);
}

const jtree *call_parameters(const jtree *tools, const char *name)
{
    for (const jtree *t = tools ? tools->first : NULL; t; t = t->next) {
        const jtree *f = jtree_get(t, "function"), *n = jtree_get(f, "name");
        if (jtree_is(n, JTREE_STRING) && !strcmp(n->s, name))
            return jtree_get(f, "parameters");
    }
    return NULL;
}

static const jtree *member_named(const jtree *map, const char *key, size_t n)
{
    for (const jtree *m = jtree_is(map, JTREE_OBJECT) ? map->first : NULL; m; m = m->next)
        if (m->n_key == n && !memcmp(m->key, key, n))
            return m;
    return NULL;
}

/* Writes text that is JSON of one of the kinds, with its own spelling of numbers. */
static bool put_as_json(str *out, unsigned kinds, const char *s, size_t n)
{
    arena mem = {.max_bytes = arena_limit_for(n)};
    const jtree *v = NULL;
    status st = jtree_parse(s, n, "", CALL_MAX_DEPTH, &mem, &v, NULL);
    bool ok = !st && kinds >> v->kind & 1;
    out->bad |= st == E_MEMORY;
    if (ok)
        jtree_put_json(out, v);
    arena_free(&mem);
    return ok;
}

/* Writes text that is a value in Python's spelling. */
static bool put_as_python(str *out, unsigned kinds, const char *s, size_t n)
{
    static const struct {
        const char *word, *json;
        jtree_kind kind;
    } words[] = {{"True", "true", JTREE_TRUE},
                 {"False", "false", JTREE_FALSE},
                 {"None", "null", JTREE_NULL}};
    for (size_t i = 0; i < 3; i++)
        if (strlen(words[i].word) == n && !memcmp(s, words[i].word, n) &&
            kinds >> words[i].kind & 1) {
            str_puts(out, words[i].json);
            return true;
        }
    if (!n || *s != '{' || !(kinds >> JTREE_OBJECT & 1))
        return false;
    call_reading r = {.s = s, .n = n, .at = 1, .lenient = true, .out = out};
    size_t before = out->n;
    if (call_read_object(&r) && (call_skip_space(&r), call_at_end(&r)))
        return true;
    str_cut(out, before);
    return false;
}

void call_put_typed(str *out, const jtree *parameters, const char *key, size_t n_key, const char *s,
                    size_t n)
{
    const jtree *schema = member_named(jtree_get(parameters, "properties"), key, n_key);
    const unsigned string = 1u << JTREE_STRING;
    unsigned kinds = call_kinds_of(parameters, schema);
    jtree_put_string(out, key, n_key);
    str_puts(out, ": ");
    /* Where a string is possible beside other types, JSON in quotes is a string in quotes; where
     * anything is possible, it is JSON. */
    unsigned as_json = kinds == KINDS_ALL ? kinds : kinds & ~string;
    const char *t = s;
    size_t n_t = n;
    while (n_t && call_is_space(*t)) {
        t++;
        n_t--;
    }
    while (n_t && call_is_space(t[n_t - 1]))
        n_t--;
    if (kinds == string || !as_json ||
        (!put_as_json(out, as_json, t, n_t) &&
         !put_as_python(out, kinds & string ? as_json & 1u << JTREE_OBJECT : as_json, t, n_t)))
        jtree_put_string(out, s, n);
}

bool call_end_typed(str *out)
{
    arena mem = {.max_bytes = arena_limit_for(out->n)};
    const jtree *v = NULL;
    str_putc(out, '}');
    status st = out->bad
                    ? E_MEMORY
                    : jtree_parse_repeats(out->at, out->n, "", CALL_MAX_DEPTH + 1, &mem, &v, NULL);
    str_cut(out, 0);
    if (v)
        jtree_put_json(out, v);
    out->bad |= st == E_MEMORY;
    arena_free(&mem);
    return v != NULL;
}

/* ---- Calls in JSON ---- */

bool call_take_name(str *name, const char *s, size_t n)
{
    while (n && call_is_space(*s)) {
        s++;
        n--;
    }
    while (n && call_is_space(s[n - 1]))
        n--;
    if (!n || n > CALL_MAX_NAME_BYTES)
        return false;
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)s[i] < 0x20 || s[i] == '<' || s[i] == '>' || s[i] == '{' || s[i] == '}')
            return false;
    str_put(name, s, n);
    return true;
}

/* Takes name and arguments out of a call's tree. Arguments may be JSON in a string. */
static bool take_json_call(const jtree *v, str *name, str *arguments)
{
    const jtree *n = jtree_get(v, "name"), *a = v && v->kind == JTREE_OBJECT ? v->first : NULL;
    while (a && strcmp(a->key, "arguments") && strcmp(a->key, "parameters"))
        a = a->next;
    if (!jtree_is(n, JTREE_STRING) || !call_take_name(name, n->s, n->n))
        return false;
    if (jtree_is(a, JTREE_STRING) && put_as_json(arguments, 1u << JTREE_OBJECT, a->s, a->n))
        return true;
    if (a && a->kind != JTREE_OBJECT)
        return false;
    if (a)
        jtree_put_json(arguments, a);
    else
        str_puts(arguments, "{}");
    return true;
}

/* The end of the JSON value that s[0..n) begins with, by its brackets alone; 0: it has no end. */
static size_t json_end(const char *s, size_t n)
{
    size_t depth = 0;
    bool in_string = false;
    for (size_t i = 0; i < n; i++) {
        if (in_string) {
            in_string = s[i] != '"';
            i += s[i] == '\\';
        } else if (s[i] == '"') {
            in_string = true;
        } else if (s[i] == '{' || s[i] == '[') {
            depth++;
        } else if ((s[i] == '}' || s[i] == ']') && depth && !--depth) {
            return i + 1;
        }
    }
    return 0;
}

/* Passes white space and the bytes of `what`. */
static size_t pass_bytes(const char *s, size_t at, size_t n, const char *what)
{
    while (at < n && (call_is_space(s[at]) || (s[at] && strchr(what, s[at]))))
        at++;
    return at;
}

bool call_read_json(const call_text *c, str *name, str *arguments, size_t *n_read)
{
    const char *s = c->s;
    size_t n = c->n, at = pass_bytes(s, 0, n, "[,"), end = at + json_end(s + at, n - at);
    arena mem = {.max_bytes = arena_limit_for(n)};
    const jtree *v = NULL;
    str repaired = {0};
    bool ok = false;
    str_cut(name, 0);
    str_cut(arguments, 0);
    status st = end > at ? jtree_parse_repeats(s + at, end - at, "", CALL_MAX_DEPTH, &mem, &v, NULL)
                         : E_FORMAT;
    if (st && st != E_MEMORY && c->lenient) {
        call_reading r = {.s = s, .n = n, .at = at, .lenient = true, .out = &repaired};
        if (call_take(&r, "{") && call_read_object(&r) && !repaired.bad)
            st = jtree_parse_repeats(repaired.at, repaired.n, "", CALL_MAX_DEPTH, &mem, &v, NULL);
        st = repaired.bad ? E_MEMORY : st;
        end = r.at;
    }
    if (!st)
        ok = take_json_call(v, name, arguments);
    name->bad |= st == E_MEMORY;
    str_free(&repaired);
    arena_free(&mem);
    if (ok)
        *n_read = pass_bytes(s, end, n, "}]");
    return ok;
}

bool call_read_arguments(const call_text *c, size_t at, str *arguments, size_t *n_read)
{
    size_t from = pass_bytes(c->s, at, c->n, ""), end = from + json_end(c->s + from, c->n - from);
    arena mem = {.max_bytes = arena_limit_for(c->n)};
    const jtree *v = NULL;
    status st = end > from ? jtree_parse_repeats(c->s + from, end - from, "", CALL_MAX_DEPTH, &mem,
                                                 &v, NULL)
                           : E_FORMAT;
    bool ok = !st && v->kind == JTREE_OBJECT;
    if (ok) {
        jtree_put_json(arguments, v);
        *n_read = pass_bytes(c->s, end, c->n, "");
    }
    arguments->bad |= st == E_MEMORY;
    arena_free(&mem);
    return ok;
}

bool call_may_begin(const char *s, size_t n, const char *what, size_t *at)
{
    size_t from = pass_bytes(s, 0, n, ""), len = strlen(what);
    *at = n - from >= len && !memcmp(s + from, what, len) ? from + len : 0;
    return *at || (n - from < len && !memcmp(s + from, what, n - from));
}

/* Passes `what` and white space behind it. */
static bool pass_text(const char *s, size_t n, size_t *at, const char *what)
{
    size_t len = strlen(what);
    if (n - *at < len || memcmp(s + *at, what, len))
        return false;
    *at = pass_bytes(s, *at + len, n, "");
    return true;
}

call_head call_json_head(const char *s, size_t n)
{
    size_t at = pass_bytes(s, 0, n, "[");
    call_head h = {.possible = at == n || s[at] == '{'};
    if (!pass_text(s, n, &at, "{") || !pass_text(s, n, &at, "\"name\"") ||
        !pass_text(s, n, &at, ":") || at == n || s[at] != '"')
        return h; /* another order of members: the whole call tells */
    const char *name = s + at + 1, *end = memchr(name, '"', n - at - 1);
    if (!end || memchr(name, '\\', (size_t)(end - name)))
        return h;
    h.name = name;
    h.n_name = (size_t)(end - name);
    at = (size_t)(end - s);
    if (pass_text(s, n, &at, "\"") && pass_text(s, n, &at, ",") &&
        (pass_text(s, n, &at, "\"arguments\"") || pass_text(s, n, &at, "\"parameters\"")) &&
        pass_text(s, n, &at, ":") && at < n && s[at] == '{')
        h.arguments = at + 1;
    return h;
}
