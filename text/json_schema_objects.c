/* json_schema_objects.c - expressions for objects: members in JSON or bare spelling, and pairs. */
#include "text/json_schema_int.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct member {
    const jtree *schema;
    const char *key;
    size_t n_key;
    bool required;
} member;

typedef struct object {
    const view *v;
    member *m;
    int32_t n;
    gx *more; /* one additional member; NULL: none allowed */
    int64_t max;
} object;

gx *value_key(schema *s, const char *key, size_t n, const char *where)
{
    if (!s->bare) {
        str out = {0};
        jtree_put_string(&out, key, n);
        if (out.bad)
            gx_fail(s->b, E_MEMORY, "no memory for a member's name");
        gx *x = gx_bytes(s->b, out.at, out.n);
        str_free(&out);
        return x;
    }
    if (!n || key[strcspn(key, ":{}[],<\"' \t\r\n")])
        schema_refuse(s, E_UNSUPPORTED, where,
                      "the name \"%.60s\" cannot be written in this model's tool calls", key);
    return gx_bytes(s->b, key, n);
}

gx *value_colon(schema *s)
{
    return gx_seq2(s->b, schema_text(s, ":"), value_white(s));
}

static gx *member_of(schema *s, const object *o, const member *m)
{
    char where[400];
    snprintf(where, sizeof where, "%.160s/properties/%.60s", o->v->where, m->key);
    return gx_seq3(s->b, value_key(s, m->key, m->n_key, where), value_colon(s),
                   schema_of(s, m->schema, where));
}

/* Keys of additional members. The key's characters are followed in a trie of the named keys. The
 * key leaves the trie or ends inside it, so it differs from every name. Each character of such a
 * key has one spelling only, so that escapes cannot disguise a name. */
typedef struct name {
    const char *s;
    size_t n;
} name;

static size_t char_length(const schema *s, const char *at, size_t left)
{
    if (!s->bare && at[0] == '\\')
        return left > 5 && at[1] == 'u' ? 6 : 2;
    unsigned char c = (unsigned char)at[0];
    return c < 0x80 ? 1 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : 4;
}

/* One character of a key, except the given ones (in their spelling). */
static gx *key_char_but(schema *s, const name *but, int32_t n)
{
    enum { MAX = 512 };
    gx_range out[MAX + 8];
    int32_t k = 0;
    if (s->bare) {
        /* Letters, digits, _ - . without the given ones. */
        gx_list all = {0};
        for (int c = 0; c < 128; c++) {
            bool ok = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                      c == '_' || c == '-' || c == '.';
            for (int32_t i = 0; i < n; i++)
                ok &= (unsigned char)but[i].s[0] != c;
            if (ok)
                gx_add(s->b, &all, schema_digit(s, (char)c, (char)c));
        }
        return gx_alt(s->b, &all);
    }
    out[k++] = (gx_range){0, 0x1F};
    out[k++] = (gx_range){'"', '"'};
    out[k++] = (gx_range){'\\', '\\'};
    out[k++] = (gx_range){0x7F, 0x7F}; /* names have it as \u007f */
    gx_list all = {0};
    for (const char *c = "\"\\bfnrt"; *c; c++) {
        bool ok = true;
        for (int32_t i = 0; i < n; i++)
            ok &= !(but[i].s[0] == '\\' && but[i].s[1] == *c);
        char spelled[3] = {'\\', *c, 0};
        if (ok)
            gx_add(s->b, &all, schema_text(s, spelled));
    }
    for (int32_t i = 0; i < n && k < MAX; i++) {
        const unsigned char *u = (const unsigned char *)but[i].s;
        if (u[0] == '\\')
            continue;
        uint32_t cp = u[0] < 0x80   ? u[0]
                      : u[0] < 0xE0 ? (u[0] & 31u) << 6 | (u[1] & 63u)
                      : u[0] < 0xF0 ? (u[0] & 15u) << 12 | (u[1] & 63u) << 6 | (u[2] & 63u)
                                    : (u[0] & 7u) << 18 | (u[1] & 63u) << 12 | (u[2] & 63u) << 6 |
                                          (u[3] & 63u);
        out[k++] = (gx_range){cp, cp};
    }
    gx_add(s->b, &all, gx_set(s->b, out, k, true));
    return gx_alt(s->b, &all);
}

/* The rest of a key from offset `at`. names[0..n), sorted, share the key's first `at` bytes. */
static gx *other_rest(schema *s, const name *names, int32_t n, size_t at, int depth)
{
    enum { MAX_BRANCHES = 128, MAX_KEY_DEPTH = 128 };
    name next[MAX_BRANCHES] = {{0}};
    gx_list all = {0};
    int32_t n_next = 0;
    gx *any = gx_repeat(s->b, key_char_but(s, NULL, 0), 0, -1);
    bool ends = false;
    if (depth > MAX_KEY_DEPTH) {
        schema_refuse(s, E_LIMIT, "",
                      "a property with a name longer than %d characters beside "
                      "additionalProperties",
                      MAX_KEY_DEPTH);
        return schema_text(s, "");
    }
    for (int32_t i = 0, k; i < n && !s->b->st; i = k) {
        if (names[i].n == at) {
            ends = true;
            k = i + 1;
            continue;
        }
        size_t len = char_length(s, names[i].s + at, names[i].n - at);
        for (k = i + 1;
             k < n && names[k].n >= at + len && !memcmp(names[k].s + at, names[i].s + at, len); k++)
            ;
        if (n_next == MAX_BRANCHES) {
            schema_refuse(s, E_LIMIT, "", "too many properties beside additionalProperties");
            break;
        }
        next[n_next++] = (name){names[i].s + at, len};
        gx_add(s->b, &all,
               gx_seq2(s->b, gx_bytes(s->b, names[i].s + at, len),
                       other_rest(s, names + i, k - i, at + len, depth + 1)));
    }
    gx_add(s->b, &all, gx_seq2(s->b, key_char_but(s, next, n_next), any));
    if (!ends && (at || !s->bare))
        gx_add(s->b, &all, schema_text(s, ""));
    return gx_alt(s->b, &all);
}

static int by_name(const void *a, const void *b)
{
    const name *x = a, *y = b;
    int c = memcmp(x->s, y->s, x->n < y->n ? x->n : y->n);
    return c ? c : x->n < y->n ? -1 : x->n > y->n;
}

static gx *other_key(schema *s, const object *o)
{
    name *names = gx_alloc(s->b, (size_t)o->n, sizeof *names);
    if (!names)
        return schema_text(s, "");
    for (int32_t i = 0; i < o->n; i++) {
        gx *spelled = value_key(s, o->m[i].key, o->m[i].n_key, o->v->where);
        if (s->b->st)
            return schema_text(s, "");
        names[i] = (name){spelled->s + !s->bare, spelled->n_bytes - (s->bare ? 0 : 2)};
    }
    qsort(names, (size_t)o->n, sizeof *names, by_name);
    gx *rest = other_rest(s, names, o->n, 0, 0);
    return s->bare ? rest : gx_seq3(s->b, schema_text(s, "\""), rest, schema_text(s, "\""));
}

static bool is_required(schema *s, const view *v, const char *key, size_t n)
{
    for (int32_t i = 0; i < v->n; i++) {
        const jtree *r = jtree_get(v->part[i], "required");
        gx_work(s->b, 1 + (r ? r->count : 0) / 8);
        for (r = jtree_is(r, JTREE_ARRAY) ? r->first : NULL; r; r = r->next)
            if (r->kind == JTREE_STRING && r->n == n && !memcmp(r->s, key, n))
                return true;
    }
    return false;
}

/* Collects the members of all `properties`, in order. A name in two parts is refused. */
static void find_members(schema *s, object *o)
{
    size_t cap = 0;
    for (int32_t i = 0; i < o->v->n; i++) {
        const jtree *p = jtree_get(o->v->part[i], "properties");
        if (p && p->kind != JTREE_OBJECT)
            schema_refuse(s, E_FORMAT, o->v->where, "properties must be an object");
        const jtree *r = jtree_get(o->v->part[i], "required");
        cap += (p ? p->count : 0) + (r ? r->count : 0);
        if (r && r->kind != JTREE_ARRAY)
            schema_refuse(s, E_FORMAT, o->v->where, "required must be an array of names");
    }
    if (cap > SCHEMA_MAX_RULES)
        schema_refuse(s, E_LIMIT, o->v->where, "more than %d properties", SCHEMA_MAX_RULES);
    o->m = gx_alloc(s->b, cap, sizeof *o->m);
    for (int32_t i = 0; i < o->v->n && !s->b->st; i++) {
        const jtree *p = jtree_get(o->v->part[i], "properties");
        gx_work(s->b, p ? p->count : 0);
        const jtree **sorted = p && s->bare ? jtree_sorted(p, s->mem) : NULL;
        if (p && p->count && s->bare && !sorted)
            gx_fail(s->b, E_MEMORY, "no memory to sort properties");
        const jtree *x = p ? p->first : NULL;
        for (size_t k = 0; p && k < p->count && !s->b->st; k++, x = x->next) {
            const jtree *m = sorted ? sorted[k] : x;
            gx_work(s->b, 1 + (uint64_t)o->n / 8);
            for (int32_t j = 0; j < o->n; j++)
                if (o->m[j].n_key == m->n_key && !memcmp(o->m[j].key, m->key, m->n_key))
                    schema_refuse(s, E_UNSUPPORTED, o->v->where,
                                  "the property %.60s is described by two schemas that hold at "
                                  "once",
                                  m->key);
            if (jtree_is(m, JTREE_FALSE) && is_required(s, o->v, m->key, m->n_key))
                schema_refuse(s, E_FORMAT, o->v->where, "%.60s is required and forbidden", m->key);
            else
                o->m[o->n++] =
                    (member){m, m->key, m->n_key, is_required(s, o->v, m->key, m->n_key)};
        }
    }
}

static bool has_member(schema *s, const object *o, const jtree *key)
{
    gx_work(s->b, 1 + (uint64_t)o->n / 8);
    for (int32_t i = 0; i < o->n; i++)
        if (o->m[i].n_key == key->n && !memcmp(o->m[i].key, key->s, key->n))
            return true;
    return false;
}

/* Adds required members that properties does not name, with the schema of additional members. */
static void find_required(schema *s, object *o)
{
    static const jtree anything = {.kind = JTREE_TRUE};
    const jtree *more = view_get(s, o->v, "additionalProperties");
    for (int32_t i = 0; i < o->v->n; i++) {
        const jtree *r = jtree_get(o->v->part[i], "required");
        for (r = jtree_is(r, JTREE_ARRAY) ? r->first : NULL; r && !s->b->st; r = r->next) {
            if (r->kind != JTREE_STRING) {
                schema_refuse(s, E_FORMAT, o->v->where, "required must be an array of names");
            } else if (has_member(s, o, r)) {
                continue;
            } else if (jtree_is(more, JTREE_FALSE)) {
                schema_refuse(s, E_FORMAT, o->v->where,
                              "required names %.60s, which properties does not describe and "
                              "additionalProperties forbids",
                              r->s);
            } else {
                o->m[o->n++] = (member){more ? more : &anything, r->s, r->n, true};
            }
        }
    }
}

/* Sets o->more from additionalProperties. */
static void find_more(schema *s, object *o)
{
    const jtree *more = view_get(s, o->v, "additionalProperties");
    char where[240];
    int32_t n_with = 0;
    for (int32_t i = 0; i < o->v->n; i++)
        n_with += jtree_get(o->v->part[i], "properties") != NULL;
    if (n_with > 1 && more)
        schema_refuse(s, E_UNSUPPORTED, o->v->where,
                      "additionalProperties beside properties of several schemas that hold at once "
                      "is not supported");
    snprintf(where, sizeof where, "%.190s/additionalProperties", o->v->where);
    if (s->b->st || jtree_is(more, JTREE_FALSE) || (!more && n_with))
        return;
    gx *value = !more || more->kind == JTREE_TRUE ? value_any(s) : schema_of(s, more, where);
    o->more = gx_seq3(s->b, other_key(s, o), value_colon(s), value);
}

/* All members, built from the last to the first. The members after an optional one are a rule,
 * because two alternatives use them. */
static gx *members(schema *s, object *o)
{
    gx *first = o->more ? value_separated(s, o->more, 0, o->max, true) : schema_text(s, "");
    gx *later = o->more ? value_separated(s, o->more, 0, o->max, false) : schema_text(s, "");
    for (int32_t i = o->n - 1; i >= 0 && !s->b->st; i--) {
        if (jtree_is(o->m[i].schema, JTREE_FALSE))
            continue; /* named only to exclude it from the additional members */
        gx *m = member_of(s, o, &o->m[i]);
        int32_t rule = gx_new_rule(s->b, o->m[i].key);
        gx *rest = schema_set_body(s, rule, later);
        gx *skipped = rest;
        if (!o->m[i].required) {
            int32_t none = gx_new_rule(s->b, o->m[i].key);
            first = gx_alt2(s->b, gx_seq2(s->b, m, rest), schema_set_body(s, none, first));
        } else {
            first = gx_seq2(s->b, m, rest);
        }
        later = gx_seq2(s->b, value_after_comma(s, m), rest);
        if (!o->m[i].required)
            later = gx_alt2(s->b, later, skipped);
    }
    return first;
}

gx *value_object(schema *s, const view *v)
{
    object o = {.v = v, .max = -1};
    bool limited = view_bound(s, v, "maxProperties", false, &o.max);
    find_members(s, &o);
    if (!s->b->st)
        find_required(s, &o);
    if (!s->b->st)
        find_more(s, &o);
    if (limited && o.n)
        schema_refuse(s, E_UNSUPPORTED, v->where,
                      "maxProperties beside properties is not supported");
    if (s->b->st)
        return schema_text(s, "");
    return value_bracketed(s, "{", members(s, &o), "}");
}

/* ---- Pairs ---- */

static gx *pair_of(schema *s, const call_pairs *x, gx *key, gx *value)
{
    gx *head = gx_seq3(s->b, schema_text(s, x->key_open), key, schema_text(s, x->value_open));
    return gx_seq3(s->b, head, value, schema_text(s, x->value_close));
}

gx *value_any_pairs(schema *s, const call_pairs *x)
{
    static const gx_range word[] = {{'a', 'z'}, {'A', 'Z'}, {'0', '9'},
                                    {'_', '_'}, {'-', '-'}, {'.', '.'}};
    gx *key = gx_repeat(s->b, gx_set(s->b, word, 6, false), 1, -1);
    return gx_repeat(s->b, pair_of(s, x, key, value_plain_text(s, x->end)), 0, -1);
}

/* The members in the schema's order. Others, which additionalProperties may allow, are left out,
 * except in an object that names none. */
gx *value_pairs(schema *s, const view *v, const call_pairs *x)
{
    object o = {.v = v, .max = -1};
    gx_list all = {0};
    char where[400];
    find_members(s, &o);
    if (!s->b->st)
        find_required(s, &o);
    if (!o.n && !jtree_is(view_get(s, v, "additionalProperties"), JTREE_FALSE))
        return value_any_pairs(s, x);
    for (int32_t i = 0; i < o.n && !s->b->st; i++) {
        const member *m = &o.m[i];
        if (jtree_is(m->schema, JTREE_FALSE))
            continue;
        snprintf(where, sizeof where, "%.160s/properties/%.60s", v->where, m->key);
        if (!m->n_key || m->key[strcspn(m->key, "<>\n\r")])
            schema_refuse(s, E_UNSUPPORTED, where,
                          "the name \"%.60s\" cannot be written in this model's tool calls",
                          m->key);
        gx *value = schema_pair_value(s, m->schema, x->end, where);
        gx *pair = pair_of(s, x, gx_bytes(s->b, m->key, m->n_key), value);
        gx_add(s->b, &all, m->required ? pair : gx_maybe(s->b, pair));
    }
    return gx_seq(s->b, &all);
}

/* ---- Any object ---- */

static gx *free_key(schema *s)
{
    object none = {.v = NULL};
    return s->bare ? other_key(s, &none) : value_any_string(s);
}

gx *value_any_object(schema *s)
{
    bool made;
    int32_t rule = schema_shared_rule(s, &s->any_object, "(an object)", &made);
    if (!made)
        return gx_ref(s->b, rule);
    gx *m = gx_seq3(s->b, free_key(s), value_colon(s), value_any(s));
    return schema_set_body(s, rule,
                           value_bracketed(s, "{", value_separated(s, m, 0, -1, true), "}"));
}
