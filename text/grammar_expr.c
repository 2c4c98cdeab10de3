/* grammar_expr.c - building expressions: the parts of every grammar source.
 *
 * Expressions live in the builder's arena and are freed with it. The builder keeps the first error.
 * After an error all calls return one placeholder expression, so that parsers need no check per
 * call.
 */
#include "text/grammar_int.h"
#include "base/mem.h"
#include "base/utf8.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The placeholder after an error. Read-only: functions check b->st before they write. */
static gx nothing = {.kind = GX_SEQ, .frame = -1};

void gx_begin(gx_builder *b, const grammar_setting *how, err *e)
{
    static const grammar_setting none;
    *b = (gx_builder){.how = how ? how : &none, .e = e};
}

void gx_free(gx_builder *b)
{
    mem_free(b->rule);
    arena_free(&b->mem);
    *b = (gx_builder){.how = b->how, .st = b->st, .e = b->e};
}

bool gx_fail(gx_builder *b, status st, const char *fmt, ...)
{
    if (b->st)
        return false;
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    b->st = st;
    err_set(b->e, st, "%s", text);
    return false;
}

bool gx_work(gx_builder *b, uint64_t steps)
{
    enum { ASK_BITS = 12 }; /* the caller is asked every 4096 steps */
    uint64_t before = b->work;
    if (b->st)
        return false;
    b->work += steps;
    if (b->work > GRAMMAR_MAX_BUILD || steps > GRAMMAR_MAX_BUILD)
        return gx_fail(b, E_LIMIT,
                       "the grammar is too complex: building it takes more than %d steps",
                       GRAMMAR_MAX_BUILD);
    if (b->how->cancelled && (!before || before >> ASK_BITS != b->work >> ASK_BITS) &&
        b->how->cancelled(b->how->user))
        return gx_fail(b, E_CANCELLED, "compiling the grammar was cancelled");
    return true;
}

void *gx_alloc(gx_builder *b, size_t n, size_t size)
{
    enum { STEPS = 8, BYTES_PER_STEP = 16 };
    gx_work(b, STEPS + (uint64_t)n * size / BYTES_PER_STEP);
    void *p = b->st ? NULL : arena_array(&b->mem, n ? n : 1, size);
    if (!p && !b->st) {
        b->st = E_MEMORY;
        err_memory(b->e, "a grammar", n * size);
    }
    return p;
}

static gx *make(gx_builder *b, gx_kind kind)
{
    gx *x = gx_alloc(b, 1, sizeof *x);
    if (!x)
        return &nothing;
    x->kind = kind;
    x->frame = -1;
    return x;
}

gx *gx_bytes(gx_builder *b, const char *s, size_t n)
{
    gx *x = make(b, GX_BYTES);
    char *copy = gx_alloc(b, n, 1);
    if (!copy)
        return &nothing;
    if (n)
        memcpy(copy, s, n);
    x->s = copy;
    x->n_bytes = n;
    return x;
}

gx *gx_text(gx_builder *b, const char *s)
{
    return gx_bytes(b, s, strlen(s));
}

gx *gx_special(gx_builder *b, const char *name)
{
    int32_t i;
    for (i = 0; i < b->n_specials && strcmp(b->special[i], name); i++)
        ;
    if (i == GRAMMAR_MAX_SPECIALS) {
        gx_fail(b, E_LIMIT, "a grammar with more than %d different special tokens", i);
        return &nothing;
    }
    gx *x = make(b, GX_SPECIAL);
    if (i == b->n_specials) {
        char *copy = gx_alloc(b, strlen(name) + 1, 1);
        if (!copy)
            return &nothing;
        strcpy(copy, name);
        b->special[b->n_specials++] = copy;
    }
    if (b->st)
        return &nothing;
    x->rule = i;
    return x;
}

static int by_lo(const void *a, const void *b)
{
    const gx_range *x = a, *y = b;
    return x->lo < y->lo ? -1 : x->lo > y->lo;
}

gx *gx_set(gx_builder *b, const gx_range *r, int32_t n, bool negate)
{
    gx *x = make(b, GX_SET);
    gx_range *all = gx_alloc(b, (size_t)n + 2, sizeof *all),
             *out = gx_alloc(b, (size_t)n + 2, sizeof *out);
    int32_t k = 0;
    if (!all || !out)
        return &nothing;
    if (n) {
        memcpy(all, r, (size_t)n * sizeof *all);
        qsort(all, (size_t)n, sizeof *all, by_lo);
    }
    for (int32_t i = 0; i < n; i++) {
        if (all[i].lo > all[i].hi)
            continue;
        if (k && (uint64_t)out[k - 1].hi + 1 >= all[i].lo)
            out[k - 1].hi = all[i].hi > out[k - 1].hi ? all[i].hi : out[k - 1].hi;
        else
            out[k++] = all[i];
    }
    if (negate) {
        uint32_t from = 0;
        int32_t m = 0;
        for (int32_t i = 0; i < k; i++) {
            gx_range gap = {from, out[i].lo - 1};
            from = out[i].hi + 1;
            if (gap.lo <= gap.hi && out[i].lo)
                all[m++] = gap;
        }
        if (from <= 0x10FFFF)
            all[m++] = (gx_range){from, 0x10FFFF};
        out = all;
        k = m;
    }
    x->range = out;
    x->n = k;
    return x;
}

gx *gx_repeat(gx_builder *b, gx *body, int32_t min, int32_t max)
{
    if (min > GRAMMAR_MAX_REPEAT || max > GRAMMAR_MAX_REPEAT) {
        gx_fail(b, E_LIMIT, "a repetition of %d; the most is %d", min > max ? min : max,
                GRAMMAR_MAX_REPEAT);
        return &nothing;
    }
    gx *x = make(b, GX_REPEAT);
    gx **part = gx_alloc(b, 1, sizeof *part);
    if (!part)
        return &nothing;
    part[0] = body;
    x->part = part;
    x->n = 1;
    x->min = min;
    x->max = max;
    return x;
}

gx *gx_maybe(gx_builder *b, gx *x)
{
    return gx_repeat(b, x, 0, 1);
}

gx *gx_without(gx_builder *b, const char *const *word, int32_t n)
{
    gx *x = make(b, GX_WITHOUT);
    const char **copy = gx_alloc(b, (size_t)n, sizeof *copy);
    if (!copy)
        return &nothing;
    for (int32_t i = 0; i < n; i++)
        copy[i] = word[i];
    x->word = copy;
    x->n = n;
    return x;
}

void gx_add(gx_builder *b, gx_list *l, gx *x)
{
    if (b->st)
        return;
    if (l->n == l->cap) {
        int32_t cap = l->cap ? l->cap * 2 : 4;
        gx **at = gx_alloc(b, (size_t)cap, sizeof *at);
        if (!at)
            return;
        if (l->n)
            memcpy(at, l->at, (size_t)l->n * sizeof *at);
        l->at = at;
        l->cap = cap;
    }
    l->at[l->n++] = x;
}

static gx *of_list(gx_builder *b, gx_kind kind, const gx_list *l)
{
    if (l->n == 1 && !b->st)
        return l->at[0];
    gx *x = make(b, kind);
    if (b->st)
        return &nothing;
    x->part = l->at;
    x->n = l->n;
    return x;
}

gx *gx_seq(gx_builder *b, const gx_list *l)
{
    return of_list(b, GX_SEQ, l);
}

gx *gx_alt(gx_builder *b, const gx_list *l)
{
    return of_list(b, GX_ALT, l);
}

gx *gx_seq3(gx_builder *b, gx *x, gx *y, gx *z)
{
    gx_list l = {0};
    gx_add(b, &l, x);
    gx_add(b, &l, y);
    if (z)
        gx_add(b, &l, z);
    return gx_seq(b, &l);
}

gx *gx_seq2(gx_builder *b, gx *x, gx *y)
{
    return gx_seq3(b, x, y, NULL);
}

gx *gx_alt2(gx_builder *b, gx *x, gx *y)
{
    gx_list l = {0};
    gx_add(b, &l, x);
    gx_add(b, &l, y);
    return gx_alt(b, &l);
}

int32_t gx_new_rule(gx_builder *b, const char *name)
{
    if (b->n_rules == b->cap_rules && !b->st) {
        int32_t cap = b->cap_rules ? b->cap_rules * 2 : 32;
        gx_rule *r = mem_realloc(b->rule, (size_t)cap, sizeof *r);
        if (!r) {
            b->st = E_MEMORY;
            err_memory(b->e, "the rules of a grammar", (size_t)cap * sizeof *r);
            return 0;
        }
        b->rule = r;
        b->cap_rules = cap;
    }
    if (b->n_rules == GRAMMAR_MAX_RULES)
        gx_fail(b, E_LIMIT, "a grammar of more than %d rules", GRAMMAR_MAX_RULES);
    size_t n = strlen(name);
    char *copy = gx_alloc(b, n + 1, 1);
    if (!copy)
        return 0;
    memcpy(copy, name, n);
    b->rule[b->n_rules] = (gx_rule){.name = copy};
    return b->n_rules++;
}

gx *gx_ref(gx_builder *b, int32_t rule)
{
    gx *x = make(b, GX_RULE);
    if (b->st)
        return &nothing;
    x->rule = rule;
    return x;
}

gx *gx_without_any(gx_builder *b, const char *const *word)
{
    int32_t n = 0;
    while (word[n])
        n++;
    return gx_without(b, word, n);
}

/* The header of a message in the channel, behind its role. */
static gx *message_head(gx_builder *b, const char *channel, bool json)
{
    const answer_heads *h = b->how->answer->heads;
    gx *head = gx_seq2(b, gx_special(b, h->channel), gx_text(b, channel));
    gx *type =
        gx_seq3(b, gx_maybe(b, gx_text(b, " ")), gx_special(b, h->constrain), gx_text(b, "json"));
    if (json)
        head = gx_seq2(b, head, gx_maybe(b, type));
    return gx_seq2(b, head, gx_special(b, h->message));
}

gx *gx_messages(gx_builder *b, gx *call, gx *x, bool json)
{
    enum { MESSAGES_MAX = 64 }; /* stops a model that comments without end */
    const answer_syntax *a = b->how->answer;
    gx *thought = gx_without_any(b, a->thought_not), *text = gx_without_any(b, a->content_not);
    if (!b->st)
        thought->min = 1; /* a thought may be cut off anywhere, even inside a character */
    gx *before = gx_seq2(b, message_head(b, a->heads->thought, false), thought);
    if (call && x) /* a call that must come is not put off by a comment without end */
        before = gx_alt2(b, before, gx_seq2(b, message_head(b, a->heads->commentary, false), text));
    gx *next = gx_seq3(b, gx_special(b, a->heads->ends[0]), gx_special(b, a->heads->start),
                       gx_text(b, a->heads->role));
    gx_list last = {0};
    if (call)
        gx_add(b, &last, call);
    if (x)
        gx_add(b, &last, gx_seq2(b, message_head(b, a->heads->text, json), x));
    if (b->how->thought == THOUGHT_NONE)
        return gx_alt(b, &last);
    return gx_seq2(b, gx_repeat(b, gx_seq2(b, before, next), 0, MESSAGES_MAX), gx_alt(b, &last));
}

gx *gx_after_thought(gx_builder *b, gx *x)
{
    const answer_syntax *a = b->how->answer;
    if (b->how->thought == THOUGHT_NONE)
        return x;
    if (a && a->heads)
        return gx_messages(b, NULL, x, true);
    if (!a || !a->thought_open) {
        gx_fail(b, E_UNSUPPORTED, "answers of this model have no thoughts");
        return &nothing;
    }
    gx *text = gx_without_any(b, a->thought_not), *shut = gx_special(b, a->thought_close);
    if (a->n_gap)
        shut = gx_seq2(b, shut, gx_repeat(b, gx_text(b, "\n"), 0, a->n_gap));
    if (!b->st)
        text->min = 1; /* a thought may be cut off anywhere, even inside a character */
    gx *inside = gx_seq2(b, text, shut);
    if (b->how->thought == THOUGHT_INSIDE)
        return gx_seq2(b, inside, x);
    gx *body = inside;
    if (*a->thought_label)
        body = gx_alt2(b, gx_seq2(b, gx_text(b, a->thought_label), inside),
                       shut); /* cut off at once */
    return gx_seq2(b, gx_maybe(b, gx_seq2(b, gx_special(b, a->thought_open), body)), x);
}

/* ---- Characters of JSON strings ---- */

void json_put_char(str *out, uint32_t cp)
{
    static const char short_form[] = "btn\vfr"; /* for 8 to 13; 11 has none */
    char c[8];
    if (cp == '"' || cp == '\\') {
        str_putc(out, '\\');
        str_putc(out, (char)cp);
    } else if (cp >= 8 && cp <= 13 && cp != 11) {
        str_putc(out, '\\');
        str_putc(out, short_form[cp - 8]);
    } else if (cp < 0x20) {
        str_printf(out, "\\u%04x", (unsigned)cp);
    } else {
        str_put(out, c, (size_t)utf8_encode(cp, c));
    }
}

/* After the backslash: a \u escape that is no surrogate, or a whole surrogate pair. */
static gx *json_u_escape(gx_builder *b)
{
    static const gx_range hex[] = {{'0', '9'}, {'a', 'f'}, {'A', 'F'}};
    static const gx_range not_d[] = {{'0', '9'}, {'a', 'c'}, {'A', 'C'}, {'e', 'f'}, {'E', 'F'}};
    static const gx_range d[] = {{'d', 'd'}, {'D', 'D'}}, low[] = {{'0', '7'}};
    static const gx_range high_half[] = {{'8', '9'}, {'a', 'b'}, {'A', 'B'}};
    static const gx_range low_half[] = {{'c', 'f'}, {'C', 'F'}};
    gx *h = gx_set(b, hex, 3, false), *in_d = gx_set(b, d, 2, false);
    gx_list all = {0};
    gx_add(b, &all, gx_seq2(b, gx_set(b, not_d, 5, false), gx_repeat(b, h, 3, 3)));
    gx_add(b, &all, gx_seq3(b, in_d, gx_set(b, low, 1, false), gx_repeat(b, h, 2, 2)));
    gx *first = gx_seq3(b, in_d, gx_set(b, high_half, 3, false), gx_repeat(b, h, 2, 2));
    gx *second = gx_seq3(b, in_d, gx_set(b, low_half, 2, false), gx_repeat(b, h, 2, 2));
    gx_add(b, &all, gx_seq3(b, first, gx_text(b, "\\u"), second));
    return gx_seq2(b, gx_text(b, "u"), gx_alt(b, &all));
}

gx *json_char(gx_builder *b, bool plain)
{
    static const gx_range odd[] = {{0, 0x1F}, {'"', '"'}, {'\\', '\\'}};
    static const gx_range usual[] = {{'"', '"'}, {'\\', '\\'}, {'b', 'b'}, {'f', 'f'},
                                     {'n', 'n'}, {'r', 'r'},   {'t', 't'}, {'/', '/'}};
    gx *after = gx_set(b, usual, plain ? 7 : 8, false);
    if (!plain)
        after = gx_alt2(b, after, json_u_escape(b));
    return gx_alt2(b, gx_set(b, odd, 3, true), gx_seq2(b, gx_text(b, "\\"), after));
}
