/* json_schema.c - JSON schemas to grammars: combining schemas, and choosing types.
 *
 * Every text of the grammar validates; not every valid text is in the grammar. Members come in the
 * schema's order. White space is limited. Beside `properties`, other members are allowed only if
 * additionalProperties says so. Supported:
 *
 *     type (also a list, nullable), enum, const, anyOf, oneOf (if its branches exclude each other),
 *     allOf, $ref to this document ($defs, recursion), properties, required, additionalProperties,
 *     maxProperties, items, prefixItems, minItems, maxItems, minLength, maxLength, pattern, format
 *     (date, time, date-time, uuid, ipv4, email, uri with a host; others only annotate), and, with
 *     whole numbers only, minimum, maximum, exclusiveMinimum, exclusiveMaximum, multipleOf;
 *     true, false and {"not": {}} as schemas
 *
 * A format beside length limits that its texts may break is enforced for email and uri, with parts
 * of limited length; the others, and a format beside pattern, are refused.
 *
 * Unsupported keywords that restrict values are refused by name. Unknown keywords are annotations,
 * as the standard says.
 *
 * Several schemas may apply to one value ($ref beside other keywords, allOf, a branch of anyOf). A
 * view collects these schemas as parts, and keyword lookups cover all parts.
 */
#include "text/json_schema_int.h"
#include "text/parse_int.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool schema_refuse(schema *s, status st, const char *where, const char *fmt, ...)
{
    char text[400];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return gx_fail(s->b, st, "the schema at %s: %s", *where ? where : "its root", text);
}

void schema_init(schema *s, gx_builder *b, arena *mem, const jtree *root, const answer_syntax *bare)
{
    *s = (schema){.b = b,
                  .mem = mem,
                  .root = root,
                  .bare = bare && bare->quote ? bare : NULL,
                  .any_value = -1,
                  .any_object = -1,
                  .any_string = -1,
                  .white = -1,
                  .number = -1};
}

/* ---- Parts of a view ---- */

/* {} or true: any value is valid. */
static bool says_nothing(const jtree *v)
{
    return v->kind == JTREE_TRUE || (v->kind == JTREE_OBJECT && !v->count);
}

/* The same, or {"type": "string"}: as propertyNames, both allow every name. */
static bool says_string(const jtree *v)
{
    const jtree *t = jtree_get(v, "type");
    return says_nothing(v) || (v->kind == JTREE_OBJECT && v->count == 1 &&
                               jtree_is(t, JTREE_STRING) && !strcmp(t->s, "string"));
}

/* Refuses unsupported keywords that restrict values. */
static void refuse_unsupported(schema *s, const jtree *node, const char *where)
{
    static const char *const keyword[] = {"if",
                                          "then",
                                          "else",
                                          "dependentRequired",
                                          "dependentSchemas",
                                          "dependencies",
                                          "unevaluatedProperties",
                                          "unevaluatedItems",
                                          "contains",
                                          "minContains",
                                          "maxContains",
                                          "$dynamicRef",
                                          "$recursiveRef"};
    const jtree *v;
    for (size_t i = 0; i < sizeof keyword / sizeof *keyword; i++)
        if ((v = jtree_get(node, keyword[i])))
            schema_refuse(s, E_UNSUPPORTED, where, "%s is not supported", keyword[i]);
    /* Schema generators write these keywords with values that restrict nothing. */
    if ((v = jtree_get(node, "patternProperties")) && (v->kind != JTREE_OBJECT || v->count))
        schema_refuse(s, E_UNSUPPORTED, where, "patternProperties is not supported");
    if ((v = jtree_get(node, "propertyNames")) && !says_string(v))
        schema_refuse(s, E_UNSUPPORTED, where, "propertyNames is not supported");
    if ((v = jtree_get(node, "not")) && !says_nothing(v))
        schema_refuse(s, E_UNSUPPORTED, where, "not is not supported");
    if ((v = jtree_get(node, "uniqueItems")) && !jtree_is(v, JTREE_FALSE))
        schema_refuse(s, E_UNSUPPORTED, where, "uniqueItems is not supported");
    if ((v = jtree_get(node, "minProperties")) && !(v->kind == JTREE_INTEGER && atof(v->s) <= 0))
        schema_refuse(s, E_UNSUPPORTED, where, "minProperties is not supported");
}

/* One step of a JSON pointer: ~1 is /, ~0 is ~, %XX as in URIs. */
static const jtree *child(schema *s, const jtree *v, const char *step, size_t n)
{
    char key[256];
    size_t k = 0;
    for (size_t i = 0; i < n; i++) {
        unsigned x;
        char c = step[i];
        if (k == sizeof key - 1)
            return NULL;
        if (c == '~' && i + 1 < n) {
            c = step[++i] == '1' ? '/' : '~';
        } else if (c == '%' && i + 2 < n && sscanf(step + i + 1, "%2x", &x) == 1) {
            c = (char)x;
            i += 2;
        }
        key[k++] = c;
    }
    key[k] = 0;
    gx_work(s->b, 1 + v->count / 8);
    if (v->kind == JTREE_OBJECT)
        return jtree_get(v, key);
    if (v->kind != JTREE_ARRAY || !k || strspn(key, "0123456789") != k)
        return NULL;
    long index = strtol(key, NULL, 10);
    for (v = v->first; v && index > 0; index--)
        v = v->next;
    return v;
}

static const jtree *resolve(schema *s, const jtree *ref, const char *where)
{
    const jtree *at = s->root;
    if (!jtree_is(ref, JTREE_STRING)) {
        schema_refuse(s, E_FORMAT, where, "$ref is %s and must be a string", jtree_kind_name(ref));
        return NULL;
    }
    if (ref->s[0] != '#' || (ref->s[1] && ref->s[1] != '/')) {
        schema_refuse(s, E_UNSUPPORTED, where,
                      "$ref \"%.100s\" is not supported; one may refer to this schema: #/$defs/...",
                      ref->s);
        return NULL;
    }
    for (const char *p = ref->s + 1; *p && at && !s->b->st;) {
        size_t n = strcspn(++p, "/");
        at = child(s, at, p, n);
        p += n;
    }
    if (!at)
        schema_refuse(s, E_FORMAT, where, "$ref \"%.100s\" refers to nothing", ref->s);
    return at;
}

static bool is_schema(const jtree *v)
{
    return v && (v->kind == JTREE_OBJECT || v->kind == JTREE_TRUE || v->kind == JTREE_FALSE);
}

/* Adds a schema, and the schemas of its $ref and allOf. */
static void view_add(schema *s, view *v, const jtree *node, int depth)
{
    const jtree *x;
    if (s->b->st)
        return;
    if (!is_schema(node)) {
        schema_refuse(s, E_FORMAT, v->where, "%s where a schema (an object) must be",
                      jtree_kind_name(node));
        return;
    }
    if (node->kind == JTREE_TRUE)
        return;
    if (depth > SCHEMA_MAX_PARTS || v->n == SCHEMA_MAX_PARTS) {
        schema_refuse(s, E_LIMIT, v->where,
                      "more than %d schemas hold at once, or $ref and allOf go in a circle",
                      SCHEMA_MAX_PARTS);
        return;
    }
    for (int32_t i = 0; i < v->n; i++)
        if (v->part[i] == node)
            return;
    v->part[v->n++] = node;
    if (node->kind == JTREE_FALSE || !gx_work(s->b, 8 + node->count)) /* looks for 20 keywords */
        return;
    refuse_unsupported(s, node, v->where);
    if ((x = jtree_get(node, "$ref")) && (x = resolve(s, x, v->where)))
        view_add(s, v, x, depth + 1);
    if ((x = jtree_get(node, "allOf"))) {
        if (x->kind != JTREE_ARRAY || !x->count)
            schema_refuse(s, E_FORMAT, v->where, "allOf must be an array of schemas");
        else
            for (x = x->first; x && !s->b->st; x = x->next)
                view_add(s, v, x, depth + 1);
    }
}

static bool same_json(schema *s, const jtree *a, const jtree *b, int depth)
{
    if (a->kind != b->kind || a->count != b->count || depth > SCHEMA_MAX_DEPTH ||
        !gx_work(s->b, 1 + a->n / 256))
        return false;
    if (a->kind == JTREE_OBJECT || a->kind == JTREE_ARRAY) {
        const jtree *y = b->first;
        for (const jtree *x = a->first; x; x = x->next, y = y->next)
            if ((a->kind == JTREE_OBJECT && strcmp(x->key, y->key)) ||
                !same_json(s, x, y, depth + 1))
                return false;
        return true;
    }
    return a->n == b->n && (!a->n || !memcmp(a->s, b->s, a->n));
}

const jtree *view_get(schema *s, const view *v, const char *key)
{
    const jtree *found = NULL, *x;
    for (int32_t i = 0; i < v->n; i++) {
        if (!(x = jtree_get(v->part[i], key)))
            continue;
        if (found && !same_json(s, found, x, 0))
            schema_refuse(s, E_UNSUPPORTED, v->where,
                          "%s is said twice, differently, by schemas that hold at once", key);
        found = x;
    }
    return found;
}

bool schema_whole(const jtree *x, double *value)
{
    char *end;
    if (x->kind != JTREE_INTEGER && x->kind != JTREE_REAL)
        return false;
    const char *point = strchr(x->s, '.');
    /* strtod does not depend on the locale up to the point. Only zeros may follow the point. */
    if (point && point[1 + strspn(point + 1, "0")])
        return false;
    double v = strtod(x->s, &end);
    if ((!point && *end) || v != floor(v))
        return false;
    *value = v;
    return true;
}

bool view_bound(schema *s, const view *v, const char *key, bool largest, int64_t *bound)
{
    bool any = false;
    int64_t tightest = 0;
    for (int32_t i = 0; i < v->n; i++) {
        const jtree *x = jtree_get(v->part[i], key);
        if (!x)
            continue;
        double d;
        if (!schema_whole(x, &d) || d < 0) {
            schema_refuse(s, E_FORMAT, v->where, "%s must be a whole number, 0 or more", key);
            return false;
        }
        int64_t n = d > GRAMMAR_MAX_REPEAT ? (int64_t)GRAMMAR_MAX_REPEAT + 1 : (int64_t)d;
        /* A maximum above GRAMMAR_MAX_REPEAT is lowered to it; a minimum cannot be. */
        if (n > GRAMMAR_MAX_REPEAT && largest) {
            schema_refuse(s, E_LIMIT, v->where, "%s is above %d", key, GRAMMAR_MAX_REPEAT);
            return false;
        }
        n = n > GRAMMAR_MAX_REPEAT ? GRAMMAR_MAX_REPEAT : n;
        if (!any || (largest ? n > tightest : n < tightest))
            tightest = n;
        any = true;
    }
    if (any)
        *bound = tightest;
    return any;
}

/* ---- Types ---- */

enum {
    T_NULL = 1,
    T_BOOLEAN = 2,
    T_INTEGER = 4,
    T_NUMBER = 8, /* includes the integers */
    T_STRING = 16,
    T_ARRAY = 32,
    T_OBJECT = 64,
    T_ALL = 127
};

static int type_bit(const char *name)
{
    static const char *const names[] = {"null",   "boolean", "integer", "number",
                                        "string", "array",   "object"};
    for (int i = 0; i < 7; i++)
        if (!strcmp(names[i], name))
            return 1 << i;
    return 0;
}

static int type_of_value(const jtree *v)
{
    switch (v->kind) {
    case JTREE_NULL:
        return T_NULL;
    case JTREE_FALSE:
    case JTREE_TRUE:
        return T_BOOLEAN;
    case JTREE_INTEGER:
        return T_INTEGER | T_NUMBER;
    case JTREE_REAL:
        return T_NUMBER;
    case JTREE_STRING:
        return T_STRING;
    case JTREE_ARRAY:
        return T_ARRAY;
    default:
        return T_OBJECT;
    }
}

static int types_of_keyword(schema *s, const view *v, const jtree *t)
{
    int types = 0, bit;
    const jtree *x = t->kind == JTREE_ARRAY ? t->first : t;
    for (; x; x = t->kind == JTREE_ARRAY ? x->next : NULL) {
        bit = x->kind == JTREE_STRING ? type_bit(x->s) : 0;
        if (!bit)
            schema_refuse(s, E_FORMAT, v->where,
                          "type must be null, boolean, integer, number, string, array, object, or "
                          "an array of these");
        types |= bit == T_NUMBER ? T_NUMBER | T_INTEGER : bit;
    }
    return types;
}

/* The types that the keywords of a part without `type` apply to; all if it has no such keyword. */
static int types_by_keywords(const jtree *part)
{
    static const struct {
        const char *key;
        int type;
    } row[] = {{"properties", T_OBJECT},
               {"required", T_OBJECT},
               {"additionalProperties", T_OBJECT},
               {"maxProperties", T_OBJECT},
               {"items", T_ARRAY},
               {"prefixItems", T_ARRAY},
               {"minItems", T_ARRAY},
               {"maxItems", T_ARRAY},
               {"pattern", T_STRING},
               {"minLength", T_STRING},
               {"maxLength", T_STRING},
               {"minimum", T_NUMBER | T_INTEGER},
               {"maximum", T_NUMBER | T_INTEGER},
               {"exclusiveMinimum", T_NUMBER | T_INTEGER},
               {"exclusiveMaximum", T_NUMBER | T_INTEGER},
               {"multipleOf", T_NUMBER | T_INTEGER}};
    int types = 0;
    for (size_t i = 0; i < sizeof row / sizeof *row; i++)
        if (jtree_get(part, row[i].key))
            types |= row[i].type;
    return types ? types : T_ALL;
}

/* The types that all parts allow. Without any `type`, the types that the keywords apply to. */
static int view_types(schema *s, const view *v)
{
    int said = T_ALL, meant = T_ALL;
    for (int32_t i = 0; i < v->n; i++) {
        const jtree *part = v->part[i], *t = jtree_get(part, "type");
        if (part->kind == JTREE_FALSE || jtree_get(part, "not"))
            return 0; /* the only supported `not`, {"not": {}}, allows nothing */
        int types = t ? types_of_keyword(s, v, t) : T_ALL;
        if (t && jtree_is(jtree_get(part, "nullable"), JTREE_TRUE))
            types |= T_NULL;
        said &= types;
        meant &= t ? types : types_by_keywords(part);
    }
    return said == T_ALL ? meant : said;
}

/* ---- anyOf, oneOf ---- */

/* True: a and b have const or enum, and no value in common. Distinguishes branches of oneOf. */
static bool values_differ(schema *s, const jtree *a, const jtree *b)
{
    const jtree *x = jtree_get(a, "const"), *y = jtree_get(b, "const");
    const jtree *ex = jtree_get(a, "enum"), *ey = jtree_get(b, "enum");
    const jtree *xs = x ? x : jtree_is(ex, JTREE_ARRAY) ? ex->first : NULL;
    if (!xs || (!y && !jtree_is(ey, JTREE_ARRAY)))
        return false;
    for (; xs; xs = x ? NULL : xs->next)
        for (const jtree *ys = y ? y : ey->first; ys; ys = y ? NULL : ys->next) {
            /* 1 and 1.0 are equal but spelled differently, so numbers never count as different. */
            if (s->b->st || same_json(s, xs, ys, 0) ||
                type_of_value(xs) & type_of_value(ys) & T_NUMBER)
                return false;
        }
    return true;
}

static bool requires(schema *s, const view *v, const char *key)
{
    for (int32_t i = 0; i < v->n; i++) {
        const jtree *r = jtree_get(v->part[i], "required");
        gx_work(s->b, 1 + (r ? r->count : 0) / 8);
        for (r = jtree_is(r, JTREE_ARRAY) ? r->first : NULL; r; r = r->next)
            if (r->kind == JTREE_STRING && !strcmp(r->s, key))
                return true;
    }
    return false;
}

/* True: provably no value is valid under both a and b. */
static bool exclude_each_other(schema *s, const view *a, const view *b)
{
    int ta = view_types(s, a), tb = view_types(s, b);
    if (!(ta & tb))
        return true;
    for (int32_t i = 0; i < a->n; i++)
        for (int32_t k = 0; k < b->n; k++) {
            if (values_differ(s, a->part[i], b->part[k]))
                return true;
            const jtree *pa = jtree_get(a->part[i], "properties");
            if ((ta & tb) != T_OBJECT || !jtree_is(pa, JTREE_OBJECT))
                continue;
            const jtree *pb = jtree_get(b->part[k], "properties");
            for (const jtree *x = pa->first; x && pb; x = x->next) {
                if (!gx_work(s->b, 1 + pb->count / 8))
                    return true;
                const jtree *y = jtree_get(pb, x->key);
                if (y && values_differ(s, x, y) && requires(s, a, x->key) && requires(s, b, x->key))
                    return true;
            }
        }
    return false;
}

static gx *of_view(schema *s, view *v);

/* Expands the anyOf or oneOf of one part: one alternative per branch. */
static gx *of_branches(schema *s, const view *v, int32_t part, const char *key)
{
    const jtree *list = jtree_get(v->part[part], key);
    bool exclusive = !strcmp(key, "oneOf");
    gx_list all = {0};
    if (list->kind != JTREE_ARRAY || !list->count) {
        schema_refuse(s, E_FORMAT, v->where, "%s must be an array of schemas", key);
        return gx_text(s->b, "");
    }
    if (exclusive && list->count > SCHEMA_MAX_ONE_OF)
        schema_refuse(s, E_LIMIT, v->where, "oneOf has more than %d branches", SCHEMA_MAX_ONE_OF);
    int k = 0;
    for (const jtree *x = list->first; x && !s->b->st; x = x->next, k++) {
        view branch = *v;
        snprintf(branch.where, sizeof branch.where, "%.160s/%s/%d", v->where, key, k);
        branch.chosen[part] = true;
        view_add(s, &branch, x, 0);
        int j = k + 1;
        for (const jtree *y = exclusive ? x->next : NULL; y && !s->b->st; y = y->next, j++) {
            view one = {.n = 0}, other = {.n = 0};
            memcpy(one.where, branch.where, sizeof one.where);
            memcpy(other.where, branch.where, sizeof other.where);
            view_add(s, &one, x, 0);
            view_add(s, &other, y, 0);
            if (!s->b->st && !exclude_each_other(s, &one, &other))
                schema_refuse(s, E_UNSUPPORTED, v->where,
                              "oneOf is supported only if its branches plainly exclude each other; "
                              "%d and %d might both match (use anyOf, or give them different types "
                              "or a required member with different const)",
                              k, j);
        }
        if (!s->b->st)
            gx_add(s->b, &all, of_view(s, &branch));
    }
    return gx_alt(s->b, &all);
}

/* ---- enum, const ---- */

/* The values of const or enum that have an allowed type; of both, the common values. Other keywords
 * beside them are refused: the values would have to be validated against these keywords. */
static gx *of_literals(schema *s, const view *v, int types)
{
    static const char *const others[] = {"pattern",          "minLength",
                                         "maxLength",        "minimum",
                                         "maximum",          "exclusiveMinimum",
                                         "minItems",         "maxItems",
                                         "exclusiveMaximum", "prefixItems",
                                         "properties",       "items",
                                         "required",         "additionalProperties",
                                         "maxProperties",    "multipleOf"};
    const jtree *one = view_get(s, v, "const"), *list = view_get(s, v, "enum");
    gx_list all = {0};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (view_get(s, v, others[i]))
            schema_refuse(s, E_UNSUPPORTED, v->where, "%s beside enum or const is not supported",
                          others[i]);
    if (list && (list->kind != JTREE_ARRAY || !list->count)) {
        schema_refuse(s, E_FORMAT, v->where, "enum must be an array of values");
        return gx_text(s->b, "");
    }
    if (list && list->count > SCHEMA_MAX_ENUM)
        schema_refuse(s, E_LIMIT, v->where, "enum has more than %d values", SCHEMA_MAX_ENUM);
    for (const jtree *x = list ? list->first : one; x && !s->b->st; x = list ? x->next : NULL)
        if (type_of_value(x) & types && (!one || !list || same_json(s, one, x, 0)))
            gx_add(s->b, &all, value_literal(s, x, v->where, 0));
    if (!all.n)
        schema_refuse(s, E_FORMAT, v->where,
                      "no value of enum or const has the type that is asked");
    return gx_alt(s->b, &all);
}

/* jtree_get returns NULL for a null value, so {"const": null} needs its own check. */
static bool says_const_null(const view *v)
{
    for (int32_t i = 0; i < v->n; i++)
        if (jtree_has(v->part[i], "const") && !jtree_get(v->part[i], "const"))
            return true;
    return false;
}

/* ---- A whole schema ---- */

static gx *of_types(schema *s, const view *v, int types)
{
    gx_list all = {0};
    if (types & T_OBJECT)
        gx_add(s->b, &all, value_object(s, v));
    if (types & T_ARRAY)
        gx_add(s->b, &all, value_array(s, v));
    if (types & T_STRING)
        gx_add(s->b, &all, value_string(s, v));
    if (types & T_NUMBER)
        gx_add(s->b, &all, value_number(s, v));
    else if (types & T_INTEGER)
        gx_add(s->b, &all, value_integer(s, v));
    if (types & T_BOOLEAN) {
        gx_add(s->b, &all, gx_text(s->b, "true"));
        gx_add(s->b, &all, gx_text(s->b, "false"));
    }
    if (types & T_NULL)
        gx_add(s->b, &all, gx_text(s->b, "null"));
    return gx_alt(s->b, &all);
}

static gx *of_view(schema *s, view *v)
{
    if (++s->depth > SCHEMA_MAX_DEPTH)
        schema_refuse(s, E_LIMIT, v->where, "schemas nest deeper than %d", SCHEMA_MAX_DEPTH);
    for (int32_t i = 0; i < v->n; i++)
        gx_work(s->b, 8 + 2 * v->part[i]->count); /* looks for 40 keywords */
    if (++s->n_views > SCHEMA_MAX_VIEWS)
        schema_refuse(s, E_LIMIT, v->where, "too many combinations of anyOf and oneOf");
    int types = s->b->st ? 0 : view_types(s, v);
    gx *x = NULL;
    for (int32_t i = 0; i < v->n && !x && !s->b->st; i++)
        for (int k = 0; k < 2 && !x; k++) {
            const char *key = k ? "oneOf" : "anyOf";
            if (!v->chosen[i] && jtree_get(v->part[i], key)) {
                if (!k && jtree_get(v->part[i], "oneOf"))
                    schema_refuse(s, E_UNSUPPORTED, v->where,
                                  "anyOf and oneOf in one schema are not supported");
                x = of_branches(s, v, i, key);
            }
        }
    if (s->b->st || x)
        ;
    else if (says_const_null(v))
        x = types & T_NULL ? gx_text(s->b, "null") : gx_alt(s->b, &(gx_list){0});
    else if (view_get(s, v, "enum") || view_get(s, v, "const"))
        x = of_literals(s, v, types);
    else if (!v->n)
        x = value_any(s);
    else
        x = of_types(s, v, types);
    s->depth--;
    return x ? x : gx_text(s->b, "");
}

gx *schema_of(schema *s, const jtree *node, const char *where)
{
    int32_t i;
    if (!is_schema(node)) {
        schema_refuse(s, E_FORMAT, where, "%s where a schema (an object) must be",
                      jtree_kind_name(node));
        return gx_text(s->b, "");
    }
    /* A plain $ref uses its target's rule, so that recursion returns to the same rule. */
    for (int hops = 0; jtree_is(node, JTREE_OBJECT) && node->count == 1 && jtree_get(node, "$ref");
         hops++) {
        const jtree *to = resolve(s, jtree_get(node, "$ref"), where);
        if (hops == SCHEMA_MAX_PARTS)
            schema_refuse(s, E_FORMAT, where, "$ref goes in a circle");
        if (s->b->st || !is_schema(to)) {
            schema_refuse(s, E_FORMAT, where, "$ref refers to something that is no schema");
            return gx_text(s->b, "");
        }
        node = to;
    }
    for (i = 0; i < s->n_todo && s->todo[i].node != node; i++)
        ;
    gx_work(s->b, 1 + (uint64_t)i / 32);
    if (i == SCHEMA_MAX_RULES)
        schema_refuse(s, E_LIMIT, "", "more than %d schemas in one document", SCHEMA_MAX_RULES);
    if (i == s->n_todo && !s->b->st) {
        if (i == s->cap_todo) {
            int32_t cap = s->cap_todo ? 2 * s->cap_todo : 64;
            schema_rule *todo = gx_alloc(s->b, (size_t)cap, sizeof *todo);
            if (!todo)
                return gx_text(s->b, "");
            if (i)
                memcpy(todo, s->todo, (size_t)i * sizeof *todo);
            s->todo = todo;
            s->cap_todo = cap;
        }
        int32_t rule = gx_new_rule(s->b, *where ? where : "(the schema)");
        s->todo[i] = (schema_rule){node, rule, *where && !s->b->st ? s->b->rule[rule].name : ""};
        s->n_todo++;
    }
    return s->b->st ? gx_text(s->b, "") : gx_ref(s->b, s->todo[i].rule);
}

gx *schema_object_of(schema *s, const jtree *node, const char *where)
{
    static const jtree type = {
        .kind = JTREE_STRING, .s = "object", .n = 6, .key = "type", .n_key = 4};
    static const jtree object = {.kind = JTREE_OBJECT, .first = (jtree *)&type, .count = 1};
    view v = {.n = 1, .part = {&object}};
    snprintf(v.where, sizeof v.where, "%.190s", where);
    view_add(s, &v, node, 0);
    return of_view(s, &v);
}

gx *schema_pairs_of(schema *s, const jtree *node, const call_pairs *x, const char *where)
{
    static const char *const other[] = {"anyOf", "oneOf", "enum", "const", "maxProperties"};
    view v = {.n = 0};
    snprintf(v.where, sizeof v.where, "%.190s", where);
    view_add(s, &v, node, 0);
    for (size_t i = 0; i < sizeof other / sizeof *other; i++)
        if (!s->b->st && view_get(s, &v, other[i]))
            schema_refuse(s, E_UNSUPPORTED, v.where, "%s of all arguments is not supported",
                          other[i]);
    if (!s->b->st && v.n && !(view_types(s, &v) & T_OBJECT))
        schema_refuse(s, E_FORMAT, v.where, "arguments are an object");
    return s->b->st ? gx_text(s->b, "") : value_pairs(s, &v, x);
}

gx *schema_pair_value(schema *s, const jtree *node, const char *end, const char *where)
{
    unsigned kinds = call_kinds_of(s->root, node), string = 1u << JTREE_STRING;
    if (!(kinds & string))
        return schema_of(s, node, where);
    if (kinds != string)
        return value_plain_text(s, end);
    view v = {.n = 0};
    snprintf(v.where, sizeof v.where, "%.190s", where);
    view_add(s, &v, node, 0);
    s->raw_end = end;
    gx *text = of_view(s, &v);
    s->raw_end = NULL;
    return text;
}

void schema_finish(schema *s)
{
    for (; s->n_done < s->n_todo && !s->b->st; s->n_done++) {
        schema_rule r = s->todo[s->n_done];
        view v = {.n = 0};
        snprintf(v.where, sizeof v.where, "%.190s", r.where);
        view_add(s, &v, r.node, 0);
        gx *body = of_view(s, &v);
        if (!s->b->st)
            s->b->rule[r.rule].body = body;
    }
}

status grammar_from_schema(grammar **g, const char *text, size_t n, const grammar_setting *how,
                           err *e)
{
    gx_builder b;
    arena mem = {.max_bytes = arena_limit_for(n)};
    const jtree *root = NULL;
    schema s;
    *g = NULL;
    gx_begin(&b, how, e);
    status st = OK;
    if (text && n > GRAMMAR_MAX_SOURCE_BYTES)
        return err_set(e, E_LIMIT, "a schema of %zu bytes; the most is %d", n,
                       GRAMMAR_MAX_SOURCE_BYTES);
    if (text)
        st = jtree_parse(text, n, "the schema", SCHEMA_MAX_DEPTH, &mem, &root, e);
    schema_init(&s, &b, &mem, root, NULL);
    if (!st) {
        gx *x = text ? schema_of(&s, root, "") : value_any_object(&s);
        schema_finish(&s);
        st = grammar_build(g, &b, gx_after_thought(&b, x));
    }
    gx_free(&b);
    arena_free(&mem);
    return st;
}
