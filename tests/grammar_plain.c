/* grammar_plain.c - see grammar_plain.h. Every expression is matched together with the
 * list of expressions after it. In prefix mode reaching the end of the text is a match, because
 * only expressions that have a text at all are entered. */
#include "tests/grammar_plain.h"
#include "base/mem.h"
#include "base/utf8.h"

#include <string.h>

enum { MAX_STEPS = 200000, MAX_NESTING = 3000 };

typedef struct after {
    const gx *x;
    int32_t rounds; /* of a REPEAT that comes again; -1: x is to be entered */
    size_t from;    /* where its last round began */
    int32_t part;   /* of a SEQ: the part that is next */
    const struct after *next;
} after;

typedef struct attempt {
    const plain *p;
    const char *s;
    size_t n;
    bool prefix, gave_up;
    int32_t steps, nesting;
} attempt;

static bool productive(const plain *p, const gx *x)
{
    switch (x->kind) {
    case GX_SEQ:
        for (int32_t i = 0; i < x->n; i++)
            if (!productive(p, x->part[i]))
                return false;
        return true;
    case GX_ALT:
        for (int32_t i = 0; i < x->n; i++)
            if (productive(p, x->part[i]))
                return true;
        return false;
    case GX_SET:
        for (int32_t i = 0; i < x->n; i++)
            if (x->range[i].lo < 0xD800 || x->range[i].hi > 0xDFFF)
                return true;
        return false;
    case GX_RULE:
        return p->productive[x->rule];
    case GX_REPEAT:
        return x->min == 0 || productive(p, x->part[0]);
    default:
        return true;
    }
}

bool plain_open(plain *p, const gx_builder *b)
{
    bool more = true;
    *p = (plain){b, mem_calloc((size_t)b->n_rules + 1, 1)};
    while (more && p->productive) {
        more = false;
        for (int32_t i = 0; i < b->n_rules; i++)
            if (!p->productive[i] && b->rule[i].body && productive(p, b->rule[i].body))
                p->productive[i] = more = true;
    }
    return p->productive;
}

void plain_close(plain *p)
{
    mem_free(p->productive);
}

static bool enter(attempt *a, const gx *x, size_t at, const after *next);

static bool go_on(attempt *a, size_t at, const after *k)
{
    if (at == a->n && a->prefix)
        return true;
    if (!k)
        return at == a->n;
    if (k->rounds < 0 && k->x->kind == GX_SEQ && k->part > 0) {
        after rest = {k->x, -1, 0, k->part + 1, k->next};
        return enter(a, k->x->part[k->part], at, k->part + 1 < k->x->n ? &rest : k->next);
    }
    /* One round of a repetition is over. */
    const gx *x = k->x;
    if (k->rounds >= x->min && go_on(a, at, k->next))
        return true;
    if (k->rounds >= x->min && k->rounds > 0 && at == k->from)
        return false; /* an empty round: another would be as empty */
    if (a->gave_up || (x->max >= 0 && k->rounds >= x->max))
        return false;
    after again = {x, k->rounds + 1, at, 0, k->next};
    return enter(a, x->part[0], at, &again);
}

/* One character at s; the text may end inside of it. */
static bool enter_set(attempt *a, const gx *x, size_t at, const after *next)
{
    uint32_t cp;
    bool ok;
    int n = utf8_decode(a->s + at, a->n - at, &cp, &ok);
    if (ok) {
        for (int32_t i = 0; i < x->n; i++)
            if (x->range[i].lo <= cp && cp <= x->range[i].hi)
                return go_on(a, at + (size_t)n, next);
        return false;
    }
    /* Are the bytes left the beginning of a character of the set? */
    size_t left = a->n - at;
    for (int32_t i = 0; a->prefix && left < 4 && i < x->n; i++)
        for (uint32_t c = x->range[i].lo < 128 ? 128 : x->range[i].lo;
             c <= x->range[i].hi && !a->gave_up; c++) {
            char bytes[4];
            if (c >= 0xD800 && c <= 0xDFFF)
                continue;
            int len = utf8_encode(c, bytes);
            if ((size_t)len > left && !memcmp(bytes, a->s + at, left))
                return true;
            if (c > 0x3000 && c % 64 == 0)
                c += 63 * (c + 64 < x->range[i].hi); /* one of each last byte's row will do */
        }
    return false;
}

static bool enter_without(attempt *a, const gx *x, size_t at, const after *next)
{
    for (size_t end = at;; end++) {
        bool clean = true;
        for (int32_t i = 0; i < x->n; i++)
            clean &= !memmem(a->s + at, end - at, x->word[i], strlen(x->word[i]));
        if (!clean)
            return false;
        bool whole = utf8_valid(a->s + at, end - at);
        if (whole && go_on(a, end, next))
            return true;
        if (end == a->n)
            return a->prefix &&
                   utf8_valid(a->s + at, end - at - utf8_partial_tail(a->s + at, end - at));
    }
}

static bool enter_kind(attempt *a, const gx *x, size_t at, const after *next)
{
    switch (x->kind) {
    case GX_SEQ: {
        after rest = {x, -1, 0, 1, next};
        if (!x->n)
            return go_on(a, at, next);
        return enter(a, x->part[0], at, x->n > 1 ? &rest : next);
    }
    case GX_ALT:
        for (int32_t i = 0; i < x->n; i++)
            if (enter(a, x->part[i], at, next))
                return true;
        return false;
    case GX_BYTES: {
        size_t n = x->n_bytes < a->n - at ? x->n_bytes : a->n - at;
        if (memcmp(x->s, a->s + at, n) || (n < x->n_bytes && !a->prefix))
            return false;
        return n < x->n_bytes || go_on(a, at + n, next);
    }
    case GX_SET:
        if (at == a->n)
            return a->prefix;
        return enter_set(a, x, at, next);
    case GX_RULE:
        return enter(a, a->p->b->rule[x->rule].body, at, next);
    case GX_REPEAT: {
        after first = {x, 0, at, 0, next};
        if (!productive(a->p, x->part[0]) || x->max == 0)
            return go_on(a, at, next);
        return go_on(a, at, &first);
    }
    case GX_WITHOUT:
        return enter_without(a, x, at, next);
    default:
        return false;
    }
}

static bool enter(attempt *a, const gx *x, size_t at, const after *next)
{
    if (a->gave_up || !productive(a->p, x))
        return false;
    if (++a->steps > MAX_STEPS || a->nesting > MAX_NESTING) {
        a->gave_up = true;
        return false;
    }
    a->nesting++;
    bool ok = enter_kind(a, x, at, next);
    a->nesting--;
    return ok;
}

int plain_match(const plain *p, const gx *x, const char *s, size_t n, bool prefix)
{
    attempt a = {.p = p, .s = s, .n = n, .prefix = prefix};
    if (!productive(p, x))
        return 0;
    bool ok = n == 0 && prefix ? true : enter(&a, x, 0, NULL);
    return ok ? 1 : a.gave_up ? -1 : 0;
}
