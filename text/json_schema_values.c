/* json_schema_values.c - expressions for the values of each type, in JSON or bare spelling:
 * strings, arrays and literals. Numbers and objects have files of their own.
 */
#include "text/json_schema_int.h"

#include <stdio.h>
#include <string.h>

gx *schema_text(schema *s, const char *t)
{
    return gx_text(s->b, t);
}

gx *schema_digit(schema *s, char lo, char hi)
{
    return gx_set(s->b, &(gx_range){(unsigned char)lo, (unsigned char)hi}, 1, false);
}

gx *schema_digits(schema *s, int32_t min, int32_t max)
{
    return gx_repeat(s->b, schema_digit(s, '0', '9'), min, max);
}

int32_t schema_shared_rule(schema *s, int32_t *rule, const char *name, bool *made)
{
    *made = *rule < 0;
    if (*made) {
        *rule = gx_new_rule(s->b, name);
        if (!s->b->st)
            s->b->rule[*rule].apart = true;
    }
    return *rule;
}

gx *schema_set_body(schema *s, int32_t rule, gx *body)
{
    if (!s->b->st)
        s->b->rule[rule].body = body;
    return gx_ref(s->b, rule);
}

/* White space after an opening bracket, a comma or a colon, and before a closing bracket: nothing,
 * a space, or a line end and its indent. Limited, because an unsure model writes endless spaces. */
gx *value_white(schema *s)
{
    bool made;
    if (s->bare)
        return schema_text(s, "");
    int32_t rule = schema_shared_rule(s, &s->white, "(white space)", &made);
    if (!made)
        return gx_ref(s->b, rule);
    static const gx_range blank[] = {{' ', ' '}, {'\t', '\t'}};
    gx *indent = gx_repeat(s->b, gx_set(s->b, blank, 2, false), 0, 24);
    gx *line = gx_seq2(s->b, schema_text(s, "\n"), indent);
    return schema_set_body(s, rule, gx_maybe(s->b, gx_alt2(s->b, schema_text(s, " "), line)));
}

/* ---- Strings ---- */

enum { N_CALL_MARKS = 3 };

/* The markers that would end a string or a call when the answer is parsed as text. */
static void call_marks(const schema *s, const char *mark[N_CALL_MARKS])
{
    mark[0] = s->bare->quote;
    mark[1] = s->bare->call_close;
    mark[2] = s->bare->call_open;
}

static gx *quoted(schema *s, gx *inside)
{
    if (s->raw_end)
        return inside;
    if (s->bare)
        return gx_seq3(s->b, gx_special(s->b, s->bare->quote), inside,
                       gx_special(s->b, s->bare->quote));
    return gx_seq3(s->b, schema_text(s, "\""), inside, schema_text(s, "\""));
}

static gx *bare_string(schema *s)
{
    const char *mark[N_CALL_MARKS];
    call_marks(s, mark);
    return gx_without(s->b, mark, N_CALL_MARKS);
}

gx *value_plain_text(schema *s, const char *end)
{
    return gx_without(s->b, &end, 1);
}

gx *value_any_string(schema *s)
{
    bool made;
    if (s->raw_end)
        return value_plain_text(s, s->raw_end);
    int32_t rule = schema_shared_rule(s, &s->any_string, "(a string)", &made);
    if (!made)
        return gx_ref(s->b, rule);
    gx *inside = s->bare ? bare_string(s) : gx_repeat(s->b, json_char(s->b, false), 0, -1);
    return schema_set_body(s, rule, quoted(s, inside));
}

/* A character of a string of limited length. Bare strings and plain text exclude <, the first
 * character of the call markers. */
static gx *counted_char(schema *s)
{
    static const gx_range less = {'<', '<'};
    return s->bare || s->raw_end ? gx_set(s->b, &less, 1, true) : json_char(s->b, false);
}

/* A date. The 29th of February is excluded, because most years lack it. */
#define DATE                                                                                       \
    "[0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|"       \
    "02-(0[1-9]|1[0-9]|2[0-8]))"
#define TIME                                                                                       \
    "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9]" \
    ")"
#define BYTE "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"

#define URI_CHAR "([A-Za-z0-9._~!$&'()*+,;=:@/-]|%[0-9A-F]{2})"

typedef struct format {
    const char *name, *pattern;
    int64_t shortest, longest; /* characters; -1: no limit */
} format;

static const format *find_format(const jtree *v)
{
    static const format row[] = {
        {"date", "^" DATE "$", 10, 10},
        {"time", "^" TIME "$", 9, 24},
        {"date-time", "^" DATE "T" TIME "$", 20, 35},
        {"uuid", "^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$",
         36, 36},
        {"uri",
         "^[a-z][a-z0-9+.-]*://[A-Za-z0-9-]+(\\.[A-Za-z0-9-]+)*(:[0-9]{1,4})?(/" URI_CHAR "*)?"
         "(\\?" URI_CHAR "*)?(#" URI_CHAR "*)?$",
         5, -1},
        {"ipv4", "^" BYTE "(\\." BYTE "){3}$", 7, 15},
        {"email",
         "^[A-Za-z0-9_+-]+(\\.[A-Za-z0-9_+-]+)*@"
         "([A-Za-z0-9]+(-[A-Za-z0-9]+)*\\.)+[A-Za-z]{2,12}$",
         6, -1}};
    for (size_t i = 0; i < sizeof row / sizeof *row && jtree_is(v, JTREE_STRING); i++)
        if (!strcmp(v->s, row[i].name))
            return &row[i];
    return NULL;
}

/* The most of the characters left that one part of a text gets; *left becomes the rest. */
static int64_t take_share(int64_t *left, int64_t of, int64_t most)
{
    int64_t n = *left / of;
    n = n < most ? n : most;
    *left -= n;
    return n;
}

/* A pattern for texts of the format with min to max characters (max < 0: any number): addresses get
 * parts of limited length, and the first or last part takes the rest. False: there is none. */
static bool pattern_with_length(const format *f, int64_t min, int64_t max, char *out, size_t cap)
{
    bool email = !strcmp(f->name, "email");
    int64_t more = min > f->shortest ? min - f->shortest : 0, left = max - f->shortest;
    char most[24] = "";
    if ((!email && strcmp(f->name, "uri")) || (max >= 0 && left < more))
        return false;
    if (max < 0)
        left = more + 1000;
    else
        left -= more; /* the part with the rest has them */
    if (email) {
        int64_t end = take_share(&left, 4, 10), domain = take_share(&left, 2, 60);
        if (max >= 0)
            snprintf(most, sizeof most, "%lld", (long long)(1 + more + left));
        snprintf(out, cap, "^[A-Za-z0-9_+-]{%lld,%s}@[A-Za-z0-9]{1,%lld}\\.[A-Za-z]{2,%lld}$",
                 (long long)(1 + more), most, (long long)(1 + domain), (long long)(2 + end));
        return true;
    }
    int64_t scheme = take_share(&left, 3, 11), host = take_share(&left, 2, 60);
    int64_t domains = take_share(&left, 2, 64) / 16; /* of 16 characters with their dot */
    bool path = more > 0 || max < 0 || left > 0;
    if (max >= 0)
        snprintf(most, sizeof most, "%lld", (long long)(more + left - 1));
    snprintf(out, cap,
             "^[a-z][a-z0-9+.-]{0,%lld}://[A-Za-z0-9-]{1,%lld}(\\.[A-Za-z0-9-]{1,15}){0,%lld}",
             (long long)scheme, (long long)(1 + host), (long long)domains);
    size_t n = strlen(out);
    if (path)
        snprintf(out + n, cap - n, "(/[A-Za-z0-9._~!$&'()*+,;=:@/?-]{%lld,%s})%s$",
                 (long long)(more > 0 ? more - 1 : 0), most, more > 0 ? "" : "?");
    else
        snprintf(out + n, cap - n, "$");
    return true;
}

static bool in_json(const schema *s)
{
    return !s->bare && !s->raw_end;
}

gx *value_string(schema *s, const view *v)
{
    int64_t min = 0, max = -1;
    const jtree *pattern = view_get(s, v, "pattern");
    bool has_min = view_bound(s, v, "minLength", true, &min);
    bool has_max = view_bound(s, v, "maxLength", false, &max);
    const format *f = find_format(view_get(s, v, "format"));
    bool shorter = f && (min > f->shortest || (has_max && (f->longest < 0 || max < f->longest)));
    char within[256];
    if (f && pattern)
        schema_refuse(s, E_UNSUPPORTED, v->where,
                      "pattern together with format %s is not supported", f->name);
    if (max >= 0 && max < min)
        schema_refuse(s, E_FORMAT, v->where, "maxLength is less than minLength");
    else if (shorter && !pattern_with_length(f, min, max, within, sizeof within))
        schema_refuse(
            s, E_UNSUPPORTED, v->where, "%s %lld together with format %s is not supported",
            has_max ? "maxLength" : "minLength", (long long)(has_max ? max : min), f->name);
    if (pattern && pattern->kind != JTREE_STRING)
        schema_refuse(s, E_FORMAT, v->where, "pattern must be a string");
    if (pattern && (has_min || has_max) && min + (max >= 0) > 0)
        schema_refuse(s, E_UNSUPPORTED, v->where, "pattern together with %s is not supported",
                      has_max ? "maxLength" : "minLength");
    if (s->b->st || (!pattern && !f && !min && max < 0))
        return value_any_string(s);
    if (pattern)
        return quoted(s, regex_parse(s->b, pattern->s, pattern->n, in_json(s), v->where));
    const char *text = shorter ? within : f ? f->pattern : NULL;
    if (text)
        return quoted(s, regex_parse(s->b, text, strlen(text), in_json(s), v->where));
    return quoted(s, gx_repeat(s->b, counted_char(s), (int32_t)min, (int32_t)max));
}

/* ---- Arrays ---- */

gx *value_bracketed(schema *s, const char *open, gx *inside, const char *close)
{
    gx *white = value_white(s);
    gx *body = gx_seq3(s->b, white, inside, white);
    return gx_seq3(s->b, schema_text(s, open), body, schema_text(s, close));
}

gx *value_after_comma(schema *s, gx *x)
{
    return gx_seq3(s->b, schema_text(s, ","), value_white(s), x);
}

gx *value_separated(schema *s, gx *x, int64_t min, int64_t max, bool first)
{
    gx *more = value_after_comma(s, x);
    if (max == 0)
        return schema_text(s, "");
    if (!first)
        return gx_repeat(s->b, more, (int32_t)min, (int32_t)max);
    gx *some = gx_seq2(
        s->b, x,
        gx_repeat(s->b, more, (int32_t)(min > 0 ? min - 1 : 0), (int32_t)(max < 0 ? -1 : max - 1)));
    return min > 0 ? some : gx_maybe(s->b, some);
}

gx *value_array(schema *s, const view *v)
{
    int64_t min = 0, max = -1;
    const jtree *items = view_get(s, v, "items"), *prefix = view_get(s, v, "prefixItems");
    char where[240];
    gx *item[64];
    int32_t n = 0;
    view_bound(s, v, "minItems", true, &min);
    view_bound(s, v, "maxItems", false, &max);
    if (max >= 0 && max < min)
        schema_refuse(s, E_FORMAT, v->where, "maxItems is less than minItems");
    if (jtree_is(items, JTREE_ARRAY)) {
        schema_refuse(s, E_UNSUPPORTED, v->where,
                      "items as an array is not supported; it is called prefixItems now");
        return schema_text(s, "");
    }
    if (prefix && prefix->kind != JTREE_ARRAY)
        schema_refuse(s, E_FORMAT, v->where, "prefixItems must be an array of schemas");
    for (const jtree *x = prefix && !s->b->st ? prefix->first : NULL; x && (max < 0 || n < max);
         x = x->next) {
        if (n == 64) {
            schema_refuse(s, E_LIMIT, v->where, "prefixItems has more than 64 schemas");
            break;
        }
        snprintf(where, sizeof where, "%.190s/prefixItems/%d", v->where, n);
        item[n++] = schema_of(s, x, where);
    }
    snprintf(where, sizeof where, "%.190s/items", v->where);
    gx *rest = jtree_is(items, JTREE_FALSE) ? NULL
               : items                      ? schema_of(s, items, where)
                                            : value_any(s);
    if (!rest && min > n)
        schema_refuse(s, E_FORMAT, v->where, "minItems is more than prefixItems has");
    if (s->b->st)
        return schema_text(s, "");
    /* Built from the last item to the first: `tail` is an item and its possible successors. */
    int64_t more_max = max < 0 ? -1 : max - n;
    gx *tail = rest ? value_separated(s, rest, min > n ? min - n : 0, more_max, n == 0)
                    : schema_text(s, "");
    while (n > 0) {
        n--;
        tail = gx_seq2(s->b, n ? value_after_comma(s, item[n]) : item[n], tail);
        if (min <= n)
            tail = gx_maybe(s->b, tail);
    }
    return value_bracketed(s, "[", tail, "]");
}

/* ---- Anything ---- */

gx *value_any(schema *s)
{
    bool made;
    int32_t rule = schema_shared_rule(s, &s->any_value, "(a value)", &made);
    gx_list all = {0};
    if (!made)
        return gx_ref(s->b, rule);
    gx_add(s->b, &all, value_any_object(s));
    gx_add(s->b, &all,
           value_bracketed(s, "[", value_separated(s, gx_ref(s->b, rule), 0, -1, true), "]"));
    gx_add(s->b, &all, value_any_string(s));
    gx_add(s->b, &all, value_any_number(s));
    gx_add(s->b, &all, schema_text(s, "true"));
    gx_add(s->b, &all, schema_text(s, "false"));
    gx_add(s->b, &all, schema_text(s, "null"));
    return schema_set_body(s, rule, gx_alt(s->b, &all));
}

/* Exactly one value of the schema. */
gx *value_literal(schema *s, const jtree *v, const char *where, int depth)
{
    static const char *const word[] = {"null", "false", "true"};
    const char *mark[N_CALL_MARKS];
    gx_list l = {0};
    if (depth > SCHEMA_MAX_DEPTH) {
        schema_refuse(s, E_LIMIT, where, "a value nests deeper than %d", SCHEMA_MAX_DEPTH);
        return schema_text(s, "");
    }
    switch (v->kind) {
    case JTREE_NULL:
    case JTREE_FALSE:
    case JTREE_TRUE:
        return schema_text(s, word[v->kind]);
    case JTREE_INTEGER:
    case JTREE_REAL:
        return gx_bytes(s->b, v->s, v->n);
    case JTREE_STRING:
        if (s->raw_end && memmem(v->s, v->n, s->raw_end, strlen(s->raw_end)))
            schema_refuse(s, E_UNSUPPORTED, where,
                          "a string with %s cannot be written in this model's tool calls",
                          s->raw_end);
        if (s->raw_end)
            return gx_bytes(s->b, v->s, v->n);
        if (!s->bare)
            return value_key(s, v->s, v->n, where);
        call_marks(s, mark);
        for (int i = 0; i < N_CALL_MARKS; i++)
            if (memmem(v->s, v->n, mark[i], strlen(mark[i])))
                schema_refuse(s, E_UNSUPPORTED, where,
                              "a string with %s cannot be written in this model's tool calls",
                              mark[i]);
        return quoted(s, gx_bytes(s->b, v->s, v->n));
    default:
        break;
    }
    bool braces = v->kind == JTREE_OBJECT;
    const jtree **sorted = braces && s->bare ? jtree_sorted(v, s->mem) : NULL;
    const jtree *x = v->first;
    for (size_t i = 0; i < v->count && !s->b->st; i++, x = x->next) {
        const jtree *m = sorted ? sorted[i] : x;
        gx *one = value_literal(s, m, where, depth + 1);
        if (braces)
            one = gx_seq3(s->b, value_key(s, m->key, m->n_key, where), value_colon(s), one);
        gx_add(s->b, &l, i ? value_after_comma(s, one) : one);
    }
    return value_bracketed(s, braces ? "{" : "[", gx_seq(s->b, &l), braces ? "}" : "]");
}
