/* grammar_rules.c - properties of rules, for compiling them to automata.
 *
 * A small rule that is not recursive is copied into every user: alternatives with a common
 * beginning then need one automaton instead of several parallel readings. A rule that refers to
 * itself in last positions only is a loop and counts as not recursive. The other rules become
 * frames, entered and left by calls while matching.
 *
 * Rules are visited bottom up, by strongly connected components of the relation "uses". Tarjan's
 * algorithm runs with an explicit stack, because chains of rules may be thousands long.
 */
#include "text/grammar_int.h"
#include "base/mem.h"

#include <string.h>

enum {
    COPY_MAX = 64,         /* nodes: a rule larger than this becomes a frame */
    SIZE_CEILING = 1 << 28 /* sizes saturate here, far above any limit */
};

static bool grow_rules(rules *r)
{
    if (r->b->st)
        return false;
    if (r->b->n_rules <= r->cap)
        return true;
    int32_t cap = r->b->cap_rules;
    rule_info *info = mem_realloc(r->info, (size_t)cap, sizeof *info);
    if (!info) {
        r->b->st = E_MEMORY;
        err_memory(r->b->e, "the rules of a grammar", (size_t)cap * sizeof *info);
        return false;
    }
    memset(info + r->cap, 0, (size_t)(cap - r->cap) * sizeof *info);
    for (int32_t i = r->cap; i < cap; i++)
        info[i].entry = -1;
    r->info = info;
    r->cap = cap;
    return true;
}

void rules_free(rules *r)
{
    mem_free(r->info);
    *r = (rules){0};
}

/* ---- Properties of expressions, given those of the rules they use ---- */

bool gx_nullable(rules *r, const gx *x)
{
    if (!gx_work(r->b, 1))
        return true;
    switch (x->kind) {
    case GX_SEQ:
        for (int32_t i = 0; i < x->n; i++)
            if (!gx_nullable(r, x->part[i]))
                return false;
        return true;
    case GX_ALT:
        for (int32_t i = 0; i < x->n; i++)
            if (gx_nullable(r, x->part[i]))
                return true;
        return false;
    case GX_BYTES:
        return x->n_bytes == 0;
    case GX_RULE:
        return r->info[x->rule].nullable;
    case GX_REPEAT:
        return x->min == 0 || gx_nullable(r, x->part[0]);
    case GX_WITHOUT:
        return true;
    default:
        return false;
    }
}

static int32_t clip(int64_t size)
{
    return size > SIZE_CEILING ? SIZE_CEILING : size < 1 ? 1 : (int32_t)size;
}

static int32_t gx_size(rules *r, gx *x);

bool gx_written_out(rules *r, gx *x)
{
    int64_t copies = x->max < 0 ? (int64_t)x->min + 1 : x->max;
    return copies <= 2 || gx_size(r, x->part[0]) * copies <= COPY_MAX || gx_nullable(r, x->part[0]);
}

static int32_t gx_size(rules *r, gx *x)
{
    int64_t size = 2;
    if (x->size || !gx_work(r->b, 1))
        return x->size;
    switch (x->kind) {
    case GX_SEQ:
    case GX_ALT:
        for (int32_t i = 0; i < x->n; i++)
            size += gx_size(r, x->part[i]);
        break;
    case GX_BYTES:
        size = (int64_t)x->n_bytes;
        break;
    case GX_SET:
        for (int32_t i = 0; i < x->n; i++)
            size += x->range[i].hi < 128 ? 0 : 8;
        break;
    case GX_RULE:
        size = r->info[x->rule].copied ? r->info[x->rule].size : 2;
        break;
    case GX_REPEAT:
        if (gx_written_out(r, x))
            size += (int64_t)gx_size(r, x->part[0]) * (x->max < 0 ? (int64_t)x->min + 1 : x->max);
        else if (x->max < 0)
            size += gx_size(r, x->part[0]);
        break;
    case GX_WITHOUT:
        for (int32_t i = 0; i < x->n; i++)
            size += (int64_t)strlen(x->word[i]) + 8;
        break;
    default:
        break;
    }
    return x->size = clip(size);
}

int32_t rules_frame_of(rules *r, gx *x)
{
    if (x->frame < 0) {
        int32_t i = gx_new_rule(r->b, "(a repetition)");
        if (r->b->st || !grow_rules(r))
            return 0;
        r->b->rule[i].body = x;
        r->info[i] = (rule_info){.entry = -1, .size = gx_size(r, x)};
        x->frame = i;
    }
    return x->frame;
}

/* True: x refers to the rule in last positions only. last: x itself is in a last position. */
static bool only_last(rules *r, const gx *x, int32_t rule, bool last)
{
    if (!gx_work(r->b, 1))
        return false;
    switch (x->kind) {
    case GX_RULE:
        return x->rule != rule || last;
    case GX_SEQ:
        for (int32_t i = 0; i < x->n; i++)
            if (!only_last(r, x->part[i], rule, last && i == x->n - 1))
                return false;
        return true;
    case GX_ALT:
        for (int32_t i = 0; i < x->n; i++)
            if (!only_last(r, x->part[i], rule, last))
                return false;
        return true;
    case GX_REPEAT:
        return only_last(r, x->part[0], rule, last && x->max == 1);
    default:
        return true;
    }
}

/* ---- Components ---- */

typedef struct tarjan {
    rules *r;
    int32_t *use, *use_at; /* rules used by rule i: use[use_at[i] .. use_at[i + 1]) */
    int32_t n_use, cap_use;
    int32_t *index, *low, *stack, *path, *cursor; /* [n] each */
    bool *on_stack;
    int32_t n, next_index, n_stack;
} tarjan;

static void collect(tarjan *t, const gx *x)
{
    if (!gx_work(t->r->b, 1))
        return;
    if (x->kind == GX_RULE) {
        if (t->n_use == t->cap_use) {
            int32_t cap = t->cap_use ? t->cap_use * 2 : 256;
            int32_t *use = mem_realloc(t->use, (size_t)cap, sizeof *use);
            if (!use) {
                t->r->b->st = E_MEMORY;
                err_memory(t->r->b->e, "the rules of a grammar", (size_t)cap * sizeof *use);
                return;
            }
            t->use = use;
            t->cap_use = cap;
        }
        t->use[t->n_use++] = x->rule;
    } else if (x->kind == GX_SEQ || x->kind == GX_ALT || x->kind == GX_REPEAT) {
        for (int32_t i = 0; i < x->n; i++)
            collect(t, x->part[i]);
    }
}

/* Sets the properties of the rules of one component, rule[0..n). */
static void learn_component(tarjan *t, const int32_t *rule, int32_t n)
{
    rules *r = t->r;
    bool more = true, uses_itself = n > 1;
    for (int32_t i = t->use_at[rule[0]]; i < t->use_at[rule[0] + 1]; i++)
        uses_itself |= t->use[i] == rule[0];
    while (more && !r->b->st) {
        more = false;
        for (int32_t i = 0; i < n; i++) {
            rule_info *f = &r->info[rule[i]];
            if (!f->nullable && gx_nullable(r, r->b->rule[rule[i]].body))
                f->nullable = more = true;
        }
    }
    for (int32_t i = 0; i < n && !r->b->st; i++) {
        rule_info *f = &r->info[rule[i]];
        gx *body = r->b->rule[rule[i]].body;
        f->tail = uses_itself && n == 1 && only_last(r, body, rule[0], true);
        f->size = clip((int64_t)gx_size(r, body) + 1);
        f->copied = (!uses_itself || f->tail) && f->size <= COPY_MAX && !r->b->rule[rule[i]].apart;
    }
}

static void open_rule(tarjan *t, int32_t rule)
{
    t->index[rule] = t->low[rule] = ++t->next_index;
    t->stack[t->n_stack++] = rule;
    t->on_stack[rule] = true;
    t->cursor[rule] = t->use_at[rule];
}

static void close_rule(tarjan *t, int32_t rule)
{
    if (t->low[rule] != t->index[rule])
        return;
    int32_t from = t->n_stack;
    do
        t->on_stack[t->stack[--from]] = false;
    while (t->stack[from] != rule);
    learn_component(t, t->stack + from, t->n_stack - from);
    t->n_stack = from;
}

static void visit_rule(tarjan *t, int32_t root)
{
    int32_t n = 0;
    t->path[n++] = root;
    open_rule(t, root);
    while (n && gx_work(t->r->b, 1)) {
        int32_t at = t->path[n - 1];
        if (t->cursor[at] == t->use_at[at + 1]) {
            close_rule(t, at);
            if (--n && t->low[at] < t->low[t->path[n - 1]])
                t->low[t->path[n - 1]] = t->low[at];
            continue;
        }
        int32_t to = t->use[t->cursor[at]++];
        if (!t->index[to]) {
            open_rule(t, to);
            t->path[n++] = to;
        } else if (t->on_stack[to] && t->index[to] < t->low[at]) {
            t->low[at] = t->index[to];
        }
    }
}

status rules_learn(rules *r, gx_builder *b)
{
    tarjan t = {.r = r, .n = b->n_rules};
    *r = (rules){.b = b};
    grow_rules(r);
    size_t n = (size_t)t.n + 1;
    int32_t *ints = mem_calloc(n, 6 * sizeof *ints);
    t.on_stack = mem_calloc(n, 1);
    if (!ints || !t.on_stack) {
        gx_fail(b, E_MEMORY, "no memory for %d rules", t.n);
    } else {
        t.use_at = ints;
        t.index = ints + n;
        t.low = ints + 2 * n;
        t.stack = ints + 3 * n;
        t.path = ints + 4 * n;
        t.cursor = ints + 5 * n;
        for (int32_t i = 0; i < t.n && !b->st; i++) {
            collect(&t, b->rule[i].body);
            t.use_at[i + 1] = t.n_use;
        }
        for (int32_t i = 0; i < t.n && !b->st; i++)
            if (!t.index[i])
                visit_rule(&t, i);
    }
    mem_free(t.use);
    mem_free(t.on_stack);
    mem_free(ints);
    return b->st;
}
