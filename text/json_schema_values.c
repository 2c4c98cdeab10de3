/* json_schema_values.c - expressions for the values of each type, in JSON or bare spelling.
 *
 * A number has at most 18 digits before the point, 17 after the point and 2 in the exponent, so
 * that programs can read every number.
 */
#include "text/json_schema_int.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static gx *text(schema *s, const char *t)
{
    return gx_text(s->b, t);
}

static gx *digit(schema *s, char lo, char hi)
{
    return gx_set(s->b, &(gx_range){(unsigned char)lo, (unsigned char)hi}, 1, false);
}

static gx *digits(schema *s, int32_t min, int32_t max)
{
    return gx_repeat(s->b, digit(s, '0', '9'), min, max);
}

/* A rule made once per schema. *made: the rule is new and needs a body. */
static int32_t shared_rule(schema *s, int32_t *rule, const char *name, bool *made)
{
    *made = *rule < 0;
    if (*made) {
        *rule = gx_new_rule(s->b, name);
        if (!s->b->st)
            s->b->rule[*rule].apart = true;
    }
    return *rule;
}

static gx *set_body(schema *s, int32_t rule, gx *body)
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
        return text(s, "");
    int32_t rule = shared_rule(s, &s->white, "(white space)", &made);
    if (!made)
        return gx_ref(s->b, rule);
    static const gx_range blank[] = {{' ', ' '}, {'\t', '\t'}};
    gx *indent = gx_repeat(s->b, gx_set(s->b, blank, 2, false), 0, 24);
    gx *line = gx_seq2(s->b, text(s, "\n"), indent);
    return set_body(s, rule, gx_maybe(s->b, gx_alt2(s->b, text(s, " "), line)));
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
    return gx_seq3(s->b, text(s, "\""), inside, text(s, "\""));
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

static gx *any_string(schema *s)
{
    bool made;
    if (s->raw_end)
        return value_plain_text(s, s->raw_end);
    int32_t rule = shared_rule(s, &s->any_string, "(a string)", &made);
    if (!made)
        return gx_ref(s->b, rule);
    gx *inside = s->bare ? bare_string(s) : gx_repeat(s->b, json_char(s->b, false), 0, -1);
    return set_body(s, rule, quoted(s, inside));
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
    const format *f = pattern ? NULL : find_format(view_get(s, v, "format"));
    if (f && (min > f->shortest || (has_max && (f->longest < 0 || max < f->longest))))
        f = NULL; /* lengths restrict; a format only annotates */
    if (pattern && pattern->kind != JTREE_STRING)
        schema_refuse(s, E_FORMAT, v->where, "pattern must be a string");
    if (pattern && (has_min || has_max) && min + (max >= 0) > 0)
        schema_refuse(s, E_UNSUPPORTED, v->where, "pattern together with %s is not supported",
                      has_max ? "maxLength" : "minLength");
    if (s->b->st || (!pattern && !f && !min && max < 0))
        return any_string(s);
    if (pattern)
        return quoted(s, regex_parse(s->b, pattern->s, pattern->n, in_json(s), v->where));
    if (f)
        return quoted(s, regex_parse(s->b, f->pattern, strlen(f->pattern), in_json(s), v->where));
    if (max >= 0 && max < min)
        schema_refuse(s, E_FORMAT, v->where, "maxLength is less than minLength");
    return quoted(s, gx_repeat(s->b, counted_char(s), (int32_t)min, (int32_t)max));
}

/* ---- Numbers ---- */

enum {
    MULTIPLE_MAX = 100, /* of multipleOf without limits: one rule per remainder */
    MULTIPLE_DIGITS = 15
};
#define MANY INT64_C(999999999999999999) /* 18 digits; means no limit */

/* Decimal strings lo..hi; lo and hi have equal length. */
static gx *same_length(schema *s, const char *lo, const char *hi)
{
    size_t n = strlen(lo);
    gx_list all = {0};
    if (!n)
        return text(s, "");
    if (strspn(lo, "0") == n && strspn(hi, "9") == n)
        return digits(s, (int32_t)n, (int32_t)n);
    if (*lo == *hi)
        return gx_seq2(s->b, digit(s, *lo, *lo), same_length(s, lo + 1, hi + 1));
    char from = *lo, to = *hi;
    if (strspn(lo + 1, "0") != n - 1)
        gx_add(s->b, &all,
               gx_seq2(s->b, digit(s, from, from),
                       same_length(s, lo + 1, "999999999999999999999" + 22 - n)));
    if (strspn(lo + 1, "0") != n - 1)
        from++;
    if (strspn(hi + 1, "9") != n - 1)
        gx_add(s->b, &all,
               gx_seq2(s->b, digit(s, to, to),
                       same_length(s, "000000000000000000000" + 22 - n, hi + 1)));
    if (strspn(hi + 1, "9") != n - 1)
        to--;
    if (from <= to)
        gx_add(s->b, &all,
               gx_seq2(s->b, digit(s, from, to), digits(s, (int32_t)n - 1, (int32_t)n - 1)));
    return gx_alt(s->b, &all);
}

/* Decimal numbers lo..hi without leading zeros, 0 <= lo; matches nothing if lo > hi. */
static gx *whole(schema *s, int64_t lo, int64_t hi)
{
    gx_list all = {0};
    /* from..to: the numbers of one length, of at most 18 digits. */
    for (int64_t from = 0, to = 9; from <= MANY; from = to + 1, to = to < MANY ? to * 10 + 9 : to) {
        int64_t a = lo > from ? lo : from, z = hi < to ? hi : to;
        char x[24], y[24];
        if (a > z)
            continue;
        snprintf(x, sizeof x, "%" PRId64, a);
        snprintf(y, sizeof y, "%" PRId64, z);
        gx_add(s->b, &all, same_length(s, x, y));
    }
    return gx_alt(s->b, &all);
}

/* Limits of a number. open: the limit itself is excluded. -MANY and MANY: no limit. */
typedef struct limits {
    int64_t lo, hi;
    bool lo_open, hi_open;
} limits;

static bool read_limit(schema *s, const view *v, const jtree *x, const char *key, int64_t *out)
{
    double d;
    if (x->kind != JTREE_INTEGER && x->kind != JTREE_REAL)
        return schema_refuse(s, E_FORMAT, v->where, "%s must be a number", key);
    if (!schema_whole(x, &d))
        return schema_refuse(s, E_UNSUPPORTED, v->where,
                             "%s is supported at whole numbers only, not at %.40s", key, x->s);
    *out = fabs(d) >= 1e18            ? (d < 0 ? -MANY : MANY)
           : x->kind == JTREE_INTEGER ? strtoll(x->s, NULL, 10)
                                      : (int64_t)d;
    return true;
}

static limits read_limits(schema *s, const view *v)
{
    limits l = {.lo = -MANY, .hi = MANY};
    for (int32_t i = 0; i < v->n && !s->b->st; i++)
        for (int k = 0; k < 4; k++) {
            static const char *const key[] = {"minimum", "exclusiveMinimum", "maximum",
                                              "exclusiveMaximum"};
            const jtree *x = jtree_get(v->part[i], key[k]);
            int64_t n = 0;
            if (!x || !read_limit(s, v, x, key[k], &n))
                continue;
            if (k < 2 && (n > l.lo || (n == l.lo && k == 1))) {
                l.lo = n;
                l.lo_open = k == 1;
            } else if (k >= 2 && (n < l.hi || (n == l.hi && k == 3))) {
                l.hi = n;
                l.hi_open = k == 3;
            }
        }
    return l;
}

static gx *negative(schema *s, gx *magnitude)
{
    return gx_seq2(s->b, text(s, "-"), magnitude);
}

static gx *nothing_left(schema *s, const view *v)
{
    schema_refuse(s, E_FORMAT, v->where, "no number is within the limits");
    return text(s, "");
}

/* Positive multiples of m with at most 15 digits, exact in a double. There is one rule for each
 * pair of remainder of the digits read and number of digits left. */
static gx *endless_multiples(schema *s, int32_t m)
{
    int32_t rule[MULTIPLE_MAX] = {0}, shorter[MULTIPLE_MAX] = {0};
    gx_list first = {0};
    for (int32_t left = 0; left < MULTIPLE_DIGITS && !s->b->st; left++) {
        memcpy(shorter, rule, sizeof rule);
        for (int32_t i = 0; i < m && !s->b->st; i++) {
            gx_list all = {0};
            for (int32_t d = 0; d < 10 && left; d++)
                gx_add(s->b, &all,
                       gx_seq2(s->b, digit(s, (char)('0' + d), (char)('0' + d)),
                               gx_ref(s->b, shorter[(10 * i + d) % m])));
            if (i == 0)
                gx_add(s->b, &all, text(s, ""));
            rule[i] = gx_new_rule(s->b, "(a multiple)");
            set_body(s, rule[i], gx_alt(s->b, &all));
        }
    }
    for (int32_t d = 1; d < 10; d++)
        gx_add(
            s->b, &first,
            gx_seq2(s->b, digit(s, (char)('0' + d), (char)('0' + d)), gx_ref(s->b, rule[d % m])));
    return gx_alt(s->b, &first);
}

/* Multiples of `of`. Within limits each one is an alternative; without limits the automaton tracks
 * the remainder. */
static gx *multiples(schema *s, const view *v, limits l, const jtree *of)
{
    gx_list all = {0};
    double m;
    if (!schema_whole(of, &m) || m < 1 || m >= 1e18) {
        schema_refuse(s, E_UNSUPPORTED, v->where,
                      "multipleOf is supported for whole numbers above 0 only, not for %.40s",
                      of->s ? of->s : "this");
        return text(s, "");
    }
    int64_t step = (int64_t)m, lo = l.lo / step, hi = l.hi / step;
    lo += lo * step < l.lo;
    hi -= hi * step > l.hi;
    bool below = l.lo <= -MANY / 1000, above = l.hi >= MANY / 1000;
    if (step <= MULTIPLE_MAX && (below || l.lo == 0 || l.lo == 1) &&
        (above || l.hi == 0 || l.hi == -1)) {
        gx *some = endless_multiples(s, (int32_t)step);
        if (lo <= 0 && hi >= 0)
            gx_add(s->b, &all, text(s, "0"));
        if (above)
            gx_add(s->b, &all, some);
        if (below)
            gx_add(s->b, &all, negative(s, some));
    } else if (hi - lo >= SCHEMA_MAX_ENUM) {
        schema_refuse(s, E_LIMIT, v->where,
                      "multipleOf leaves more than %d numbers within the limits", SCHEMA_MAX_ENUM);
    } else {
        for (; lo <= hi && !s->b->st; lo++) {
            char number[24];
            snprintf(number, sizeof number, "%" PRId64, lo * step);
            gx_add(s->b, &all, text(s, number));
        }
    }
    return all.n || s->b->st ? gx_alt(s->b, &all) : nothing_left(s, v);
}

gx *value_integer(schema *s, const view *v)
{
    limits l = read_limits(s, v);
    const jtree *of = view_get(s, v, "multipleOf");
    gx_list all = {0};
    l.lo += l.lo_open;
    l.hi -= l.hi_open;
    if (l.lo > l.hi)
        return nothing_left(s, v);
    if (of)
        return multiples(s, v, l, of);
    if (l.hi >= 0)
        gx_add(s->b, &all, whole(s, l.lo > 0 ? l.lo : 0, l.hi));
    if (l.lo < 0)
        gx_add(s->b, &all, negative(s, whole(s, l.hi < 0 ? -l.hi : 1, -l.lo)));
    return gx_alt(s->b, &all);
}

/* Magnitudes within the limits, 0 <= lo, with or without a fraction. */
static gx *magnitude(schema *s, limits l)
{
    gx_list all = {0};
    char number[24];
    gx *fraction = gx_seq2(s->b, text(s, "."), digits(s, 1, 17));
    gx *zeros = gx_seq2(s->b, text(s, "."), gx_repeat(s->b, text(s, "0"), 1, 17));
    if (l.lo == l.hi) {
        snprintf(number, sizeof number, "%" PRId64, l.hi);
        if (!l.lo_open && !l.hi_open)
            gx_add(s->b, &all, gx_seq2(s->b, text(s, number), gx_maybe(s->b, zeros)));
        return gx_alt(s->b, &all);
    }
    if (l.lo_open) {
        gx *above =
            gx_seq3(s->b, gx_repeat(s->b, text(s, "0"), 0, 8), digit(s, '1', '9'), digits(s, 0, 8));
        snprintf(number, sizeof number, "%" PRId64 ".", l.lo);
        gx_add(s->b, &all, gx_seq2(s->b, text(s, number), above));
        l.lo++;
    }
    if (l.lo < l.hi)
        gx_add(s->b, &all, gx_seq2(s->b, whole(s, l.lo, l.hi - 1), gx_maybe(s->b, fraction)));
    if (!l.hi_open) {
        snprintf(number, sizeof number, "%" PRId64, l.hi);
        gx_add(s->b, &all, gx_seq2(s->b, text(s, number), gx_maybe(s->b, zeros)));
    }
    return gx_alt(s->b, &all);
}

static gx *any_number(schema *s)
{
    static const gx_range e[] = {{'e', 'e'}, {'E', 'E'}}, sign[] = {{'+', '+'}, {'-', '-'}};
    bool made;
    int32_t rule = shared_rule(s, &s->number, "(a number)", &made);
    if (!made)
        return gx_ref(s->b, rule);
    gx *fraction = gx_seq2(s->b, text(s, "."), digits(s, 1, 17));
    gx *exponent = gx_seq3(s->b, gx_set(s->b, e, 2, false),
                           gx_maybe(s->b, gx_set(s->b, sign, 2, false)), digits(s, 1, 2));
    gx *magnitude_ =
        gx_seq3(s->b, whole(s, 0, MANY), gx_maybe(s->b, fraction), gx_maybe(s->b, exponent));
    return set_body(s, rule, gx_seq2(s->b, gx_maybe(s->b, text(s, "-")), magnitude_));
}

gx *value_number(schema *s, const view *v)
{
    limits l = read_limits(s, v);
    gx_list all = {0};
    if (view_get(s, v, "multipleOf"))
        return value_integer(s, v);
    if (l.lo == -MANY && l.hi == MANY)
        return any_number(s);
    if (l.lo > l.hi || (l.lo == l.hi && (l.lo_open || l.hi_open)))
        return nothing_left(s, v);
    if (l.hi > 0 || (l.hi == 0 && !l.hi_open)) {
        limits up = l;
        if (l.lo < 0) {
            up.lo = 0;
            up.lo_open = false;
        }
        gx_add(s->b, &all, magnitude(s, up));
    }
    if (l.lo < 0) {
        limits down = {.lo = -l.hi, .hi = -l.lo, .lo_open = l.hi_open, .hi_open = l.lo_open};
        if (l.hi >= 0) {
            down.lo = 0;
            down.lo_open = true; /* 0 has no sign: -0 equals 0 */
        }
        gx_add(s->b, &all, negative(s, magnitude(s, down)));
    }
    return gx_alt(s->b, &all);
}

/* ---- Arrays ---- */

static gx *bracketed(schema *s, const char *open, gx *inside, const char *close)
{
    gx *white = value_white(s);
    gx *body = gx_seq3(s->b, white, inside, white);
    return gx_seq3(s->b, text(s, open), body, text(s, close));
}

static gx *after_comma(schema *s, gx *x)
{
    return gx_seq3(s->b, text(s, ","), value_white(s), x);
}

/* min to max times x, separated by commas; max < 0: unlimited. first: no element precedes, so there
 * is no leading comma. */
static gx *separated(schema *s, gx *x, int64_t min, int64_t max, bool first)
{
    gx *more = after_comma(s, x);
    if (max == 0)
        return text(s, "");
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
        return text(s, "");
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
        return text(s, "");
    /* Built from the last item to the first: `tail` is an item and its possible successors. */
    int64_t more_max = max < 0 ? -1 : max - n;
    gx *tail = rest ? separated(s, rest, min > n ? min - n : 0, more_max, n == 0) : text(s, "");
    while (n > 0) {
        n--;
        tail = gx_seq2(s->b, n ? after_comma(s, item[n]) : item[n], tail);
        if (min <= n)
            tail = gx_maybe(s->b, tail);
    }
    return bracketed(s, "[", tail, "]");
}

/* ---- Objects ---- */

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

static gx *key_text(schema *s, const char *key, size_t n, const char *where)
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

static gx *colon(schema *s)
{
    return gx_seq2(s->b, text(s, ":"), value_white(s));
}

static gx *member_of(schema *s, const object *o, const member *m)
{
    char where[400];
    snprintf(where, sizeof where, "%.160s/properties/%.60s", o->v->where, m->key);
    return gx_seq3(s->b, key_text(s, m->key, m->n_key, where), colon(s),
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
                gx_add(s->b, &all, digit(s, (char)c, (char)c));
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
            gx_add(s->b, &all, text(s, spelled));
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
        return text(s, "");
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
        gx_add(s->b, &all, text(s, ""));
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
        return text(s, "");
    for (int32_t i = 0; i < o->n; i++) {
        gx *spelled = key_text(s, o->m[i].key, o->m[i].n_key, o->v->where);
        if (s->b->st)
            return text(s, "");
        names[i] = (name){spelled->s + !s->bare, spelled->n_bytes - (s->bare ? 0 : 2)};
    }
    qsort(names, (size_t)o->n, sizeof *names, by_name);
    gx *rest = other_rest(s, names, o->n, 0, 0);
    return s->bare ? rest : gx_seq3(s->b, text(s, "\""), rest, text(s, "\""));
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
    o->more = gx_seq3(s->b, other_key(s, o), colon(s), value);
}

/* All members, built from the last to the first. The members after an optional one are a rule,
 * because two alternatives use them. */
static gx *members(schema *s, object *o)
{
    gx *first = o->more ? separated(s, o->more, 0, o->max, true) : text(s, "");
    gx *later = o->more ? separated(s, o->more, 0, o->max, false) : text(s, "");
    for (int32_t i = o->n - 1; i >= 0 && !s->b->st; i--) {
        if (jtree_is(o->m[i].schema, JTREE_FALSE))
            continue; /* named only to exclude it from the additional members */
        gx *m = member_of(s, o, &o->m[i]);
        int32_t rule = gx_new_rule(s->b, o->m[i].key);
        gx *rest = set_body(s, rule, later);
        gx *skipped = rest;
        if (!o->m[i].required) {
            int32_t none = gx_new_rule(s->b, o->m[i].key);
            first = gx_alt2(s->b, gx_seq2(s->b, m, rest), set_body(s, none, first));
        } else {
            first = gx_seq2(s->b, m, rest);
        }
        later = gx_seq2(s->b, after_comma(s, m), rest);
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
        return text(s, "");
    return bracketed(s, "{", members(s, &o), "}");
}

/* ---- Pairs ---- */

static gx *pair_of(schema *s, const call_pairs *x, gx *key, gx *value)
{
    gx *head = gx_seq3(s->b, text(s, x->key_open), key, text(s, x->value_open));
    return gx_seq3(s->b, head, value, text(s, x->value_close));
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

/* ---- Anything ---- */

static gx *free_key(schema *s)
{
    object none = {.v = NULL};
    return s->bare ? other_key(s, &none) : any_string(s);
}

gx *value_any_object(schema *s)
{
    bool made;
    int32_t rule = shared_rule(s, &s->any_object, "(an object)", &made);
    if (!made)
        return gx_ref(s->b, rule);
    gx *m = gx_seq3(s->b, free_key(s), colon(s), value_any(s));
    return set_body(s, rule, bracketed(s, "{", separated(s, m, 0, -1, true), "}"));
}

gx *value_any(schema *s)
{
    bool made;
    int32_t rule = shared_rule(s, &s->any_value, "(a value)", &made);
    gx_list all = {0};
    if (!made)
        return gx_ref(s->b, rule);
    gx_add(s->b, &all, value_any_object(s));
    gx_add(s->b, &all, bracketed(s, "[", separated(s, gx_ref(s->b, rule), 0, -1, true), "]"));
    gx_add(s->b, &all, any_string(s));
    gx_add(s->b, &all, any_number(s));
    gx_add(s->b, &all, text(s, "true"));
    gx_add(s->b, &all, text(s, "false"));
    gx_add(s->b, &all, text(s, "null"));
    return set_body(s, rule, gx_alt(s->b, &all));
}

/* Exactly one value of the schema. */
gx *value_literal(schema *s, const jtree *v, const char *where, int depth)
{
    static const char *const word[] = {"null", "false", "true"};
    const char *mark[N_CALL_MARKS];
    gx_list l = {0};
    if (depth > SCHEMA_MAX_DEPTH) {
        schema_refuse(s, E_LIMIT, where, "a value nests deeper than %d", SCHEMA_MAX_DEPTH);
        return text(s, "");
    }
    switch (v->kind) {
    case JTREE_NULL:
    case JTREE_FALSE:
    case JTREE_TRUE:
        return text(s, word[v->kind]);
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
            return key_text(s, v->s, v->n, where);
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
            one = gx_seq3(s->b, key_text(s, m->key, m->n_key, where), colon(s), one);
        gx_add(s->b, &l, i ? after_comma(s, one) : one);
    }
    return bracketed(s, braces ? "{" : "[", gx_seq(s->b, &l), braces ? "}" : "]");
}
