/* json_schema_numbers.c - expressions for numbers within limits, and multiples.
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
        return schema_text(s, "");
    if (strspn(lo, "0") == n && strspn(hi, "9") == n)
        return schema_digits(s, (int32_t)n, (int32_t)n);
    if (*lo == *hi)
        return gx_seq2(s->b, schema_digit(s, *lo, *lo), same_length(s, lo + 1, hi + 1));
    char from = *lo, to = *hi;
    if (strspn(lo + 1, "0") != n - 1)
        gx_add(s->b, &all,
               gx_seq2(s->b, schema_digit(s, from, from),
                       same_length(s, lo + 1, &"999999999999999999999"[22 - n])));
    if (strspn(lo + 1, "0") != n - 1)
        from++;
    if (strspn(hi + 1, "9") != n - 1)
        gx_add(s->b, &all,
               gx_seq2(s->b, schema_digit(s, to, to),
                       same_length(s, &"000000000000000000000"[22 - n], hi + 1)));
    if (strspn(hi + 1, "9") != n - 1)
        to--;
    if (from <= to)
        gx_add(s->b, &all,
               gx_seq2(s->b, schema_digit(s, from, to),
                       schema_digits(s, (int32_t)n - 1, (int32_t)n - 1)));
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
    return gx_seq2(s->b, schema_text(s, "-"), magnitude);
}

static gx *nothing_left(schema *s, const view *v)
{
    schema_refuse(s, E_FORMAT, v->where, "no number is within the limits");
    return schema_text(s, "");
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
                       gx_seq2(s->b, schema_digit(s, (char)('0' + d), (char)('0' + d)),
                               gx_ref(s->b, shorter[(10 * i + d) % m])));
            if (i == 0)
                gx_add(s->b, &all, schema_text(s, ""));
            rule[i] = gx_new_rule(s->b, "(a multiple)");
            schema_set_body(s, rule[i], gx_alt(s->b, &all));
        }
    }
    for (int32_t d = 1; d < 10; d++)
        gx_add(s->b, &first,
               gx_seq2(s->b, schema_digit(s, (char)('0' + d), (char)('0' + d)),
                       gx_ref(s->b, rule[d % m])));
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
        return schema_text(s, "");
    }
    int64_t step = (int64_t)m, lo = l.lo / step, hi = l.hi / step;
    lo += lo * step < l.lo;
    hi -= hi * step > l.hi;
    bool below = l.lo <= -MANY / 1000, above = l.hi >= MANY / 1000;
    if (step <= MULTIPLE_MAX && (below || l.lo == 0 || l.lo == 1) &&
        (above || l.hi == 0 || l.hi == -1)) {
        gx *some = endless_multiples(s, (int32_t)step);
        if (lo <= 0 && hi >= 0)
            gx_add(s->b, &all, schema_text(s, "0"));
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
            gx_add(s->b, &all, schema_text(s, number));
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
    gx *fraction = gx_seq2(s->b, schema_text(s, "."), schema_digits(s, 1, 17));
    gx *zeros = gx_seq2(s->b, schema_text(s, "."), gx_repeat(s->b, schema_text(s, "0"), 1, 17));
    if (l.lo == l.hi) {
        snprintf(number, sizeof number, "%" PRId64, l.hi);
        if (!l.lo_open && !l.hi_open)
            gx_add(s->b, &all, gx_seq2(s->b, schema_text(s, number), gx_maybe(s->b, zeros)));
        return gx_alt(s->b, &all);
    }
    if (l.lo_open) {
        gx *above = gx_seq3(s->b, gx_repeat(s->b, schema_text(s, "0"), 0, 8),
                            schema_digit(s, '1', '9'), schema_digits(s, 0, 8));
        snprintf(number, sizeof number, "%" PRId64 ".", l.lo);
        gx_add(s->b, &all, gx_seq2(s->b, schema_text(s, number), above));
        l.lo++;
    }
    if (l.lo < l.hi)
        gx_add(s->b, &all, gx_seq2(s->b, whole(s, l.lo, l.hi - 1), gx_maybe(s->b, fraction)));
    if (!l.hi_open) {
        snprintf(number, sizeof number, "%" PRId64, l.hi);
        gx_add(s->b, &all, gx_seq2(s->b, schema_text(s, number), gx_maybe(s->b, zeros)));
    }
    return gx_alt(s->b, &all);
}

gx *value_any_number(schema *s)
{
    static const gx_range e[] = {{'e', 'e'}, {'E', 'E'}}, sign[] = {{'+', '+'}, {'-', '-'}};
    bool made;
    int32_t rule = schema_shared_rule(s, &s->number, "(a number)", &made);
    if (!made)
        return gx_ref(s->b, rule);
    gx *fraction = gx_seq2(s->b, schema_text(s, "."), schema_digits(s, 1, 17));
    gx *exponent = gx_seq3(s->b, gx_set(s->b, e, 2, false),
                           gx_maybe(s->b, gx_set(s->b, sign, 2, false)), schema_digits(s, 1, 2));
    gx *magnitude_ =
        gx_seq3(s->b, whole(s, 0, MANY), gx_maybe(s->b, fraction), gx_maybe(s->b, exponent));
    return schema_set_body(s, rule, gx_seq2(s->b, gx_maybe(s->b, schema_text(s, "-")), magnitude_));
}

gx *value_number(schema *s, const view *v)
{
    limits l = read_limits(s, v);
    gx_list all = {0};
    if (view_get(s, v, "multipleOf"))
        return value_integer(s, v);
    if (l.lo == -MANY && l.hi == MANY)
        return value_any_number(s);
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
