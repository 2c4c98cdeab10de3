/* grammar_mask.c - the tokens that a grammar allows next.
 *
 * A mask is one walk from a state over the tree of all tokens, but most of it is found without
 * walking. Inside strings, masks of safe characters apply. In words, lists and text without certain
 * signs, masks by kind of character apply: from the state follow the kinds allowed in any order,
 * and the number of characters.
 */
#include "text/grammar_match_int.h"
#include "base/utf8.h"

#include <string.h>

enum {
    REACH_WORK = GRAMMAR_MAX_MASK_WORK / 32, /* steps for finding the states of a search */
    REACH_LEAST = 3,                         /* characters; for fewer, the walk is short */
    REACH_ANY = INT32_MAX
};

/* A number of safe characters that may certainly follow. */
static int32_t safe_run(const matcher *m, const state *s)
{
    int32_t most = 0;
    for (int32_t i = 0; i < s->n; i++) {
        config c = m->config[s->at + i];
        int32_t flags = m->g->node[c.node].flags, run = 0;
        if (flags & NODE_SAFE_LOOP) {
            run = SAFE_MAX;
        } else if (flags & NODE_SAFE_CHAR && c.cell) {
            const cell *x = &m->cell[c.cell];
            const g_call *call = &m->g->call[x->call];
            run = call->entry == c.node ? call->max - x->passed : 0;
        }
        most = run > most ? run : most;
    }
    return most > SAFE_MAX ? SAFE_MAX : most;
}

/* How many characters of given kinds may follow a state, in any order. The search is breadth first:
 * path[0 .. n) holds the states reached, path[0] the start. */
typedef struct reach {
    uint32_t kinds;
    int32_t n, after[REACH_STATES]; /* per state: characters of the shortest path to it */
    int32_t chars;                  /* every text of at most this many characters may follow */
    bool exact;                     /* and no longer text may */
    bool ends, goes_on;             /* at the current length: some text is refused; some goes on */
    bool goes_back, full;           /* a path returned to an earlier state; hit a limit */
} reach;

/* Follows one byte from the state at path[REACH_STATES + depth], on the way from state i. The
 * result goes to the next path entry or, after a character's last byte, into the states. False: the
 * byte is refused or a limit is hit. */
static bool follow(matcher *m, reach *r, int32_t i, int32_t depth, int byte, bool last)
{
    err none = {0};
    int32_t to, k = 0;
    m->n_path = REACH_STATES + depth + 1;
    if (r->full || m->spent > REACH_WORK || matcher_step(m, byte, &to, &none)) {
        r->full = true;
        return false;
    }
    if (to == STATE_DEAD) {
        r->ends = true;
        return false;
    }
    if (!last) {
        m->path[m->n_path] = to;
        return true;
    }
    r->goes_on = true;
    while (k < r->n && m->path[k] != to)
        k++;
    if (k < r->n) {
        r->goes_back |= r->after[k] <= r->after[i];
    } else if (k < REACH_STATES) {
        r->after[k] = r->after[i] + 1;
        m->path[r->n++] = to;
    } else {
        r->full = true;
    }
    return true;
}

/* Follows all characters of a row of byte ranges, with one byte for each byte class. */
static void follow_wide(matcher *m, reach *r, int32_t i, const utf8_row *w, int32_t depth)
{
    bool last = depth + 1 == w->n;
    if (depth > 3)
        return; /* no character is longer */
    for (int b = w->lo[depth]; b <= w->hi[depth]; b = m->g->class_end[b])
        if (follow(m, r, i, depth, b, last) && !last)
            follow_wide(m, r, i, w, depth + 1);
}

/* Follows all characters of a kind from state i. */
static void follow_kind(matcher *m, reach *r, int32_t i, int32_t kind)
{
    const grammar *g = m->g;
    m->path[REACH_STATES] = m->path[i];
    for (int k = 0; kind == KIND_WIDE && k < UTF8_WIDE_ROWS; k++)
        follow_wide(m, r, i, &utf8_wide[k], 0);
    for (int b = g->kind_first[kind]; b >= 0; b = g->kind_next[b])
        follow(m, r, i, 0, b, true);
}

/* Sets chars and exact for r->kinds. False: chars is below `least`. */
static bool find_reach(matcher *m, reach *r, int32_t least)
{
    r->n = 1;
    for (int32_t i = 0; i < r->n; i++) {
        if (i && r->after[i] > r->after[i - 1]) { /* all shorter texts are followed */
            if (r->ends)
                break;
            r->goes_on = false;
        }
        r->chars = r->after[i];
        /* The last kind first: only that kind is new since the previous search. */
        for (int32_t kind = N_KINDS - 1; kind >= 0; kind--) {
            if (r->kinds >> kind & 1)
                follow_kind(m, r, i, kind);
            if ((r->ends || r->full) && r->chars < least)
                return false;
            if (r->full)
                return true;
        }
    }
    if (r->ends)
        r->exact = !r->goes_on && !r->goes_back;
    else
        r->chars = REACH_ANY;
    return true;
}

/* Adds kinds unless they reduce the reach. */
static bool widen_table(matcher *m, reach *best, uint32_t kinds)
{
    reach r = {.kinds = best->kinds | kinds};
    if (r.kinds == best->kinds)
        return true;
    if (!find_reach(m, &r, best->chars) || (best->exact && !r.exact))
        return false;
    *best = r;
    return true;
}

/* The kind of small letters, and all kinds that do not reduce its reach in any order. No kinds if
 * small letters alone have a short reach: few tokens lack them, so masks would not pay. */
static reach find_kinds(matcher *m)
{
    reach best = {.kinds = (uint32_t)1 << KIND_SMALL};
    uint32_t begin = 0; /* kinds that may come next */
    for (int32_t i = 1; i <= REACH_STATES; i++)
        m->path[i] = m->path[0];
    if (!find_reach(m, &best, REACH_LEAST)) {
        m->n_path = 1;
        return (reach){0};
    }
    for (int32_t kind = 0; kind < KIND_BROKEN; kind++) {
        reach r = {.n = 1};
        follow_kind(m, &r, 0, kind);
        begin |= (uint32_t)(!r.ends && !r.full) << kind;
    }
    if (best.chars < REACH_ANY) /* the tree counts safe characters only */
        begin &= ~m->t->unsafe_kinds;
    uint32_t wide = begin & (uint32_t)1 << KIND_WIDE; /* most expensive, so last */
    begin &= ~wide;
    if (!widen_table(m, &best, begin)) /* all together, else one by one */
        for (int32_t kind = 0; kind < KIND_BROKEN; kind++)
            widen_table(m, &best, begin & (uint32_t)1 << kind);
    widen_table(m, &best, wide);
    m->n_path = 1;
    return best;
}

/* Sets the tokens within the reach r, and clears all others. */
static void set_reach(const token_tree *t, const reach *r, uint64_t *bits)
{
    const uint64_t *from = r->chars < REACH_ANY ? t->safe_mask[r->chars] : t->tree_mask;
    memcpy(bits, from, (size_t)t->n_words * sizeof *bits);
    for (int k = 0; k < N_KINDS; k++)
        for (int32_t i = 0; !(r->kinds >> k & 1) && i < t->n_words; i++)
            bits[i] &= ~t->kind_mask[k][i];
}

/* Walks the tree from the state at path[0]. Skips the tokens already decided: tokens of at most
 * `safe` safe characters, and tokens decided by r. */
static status walk(matcher *m, uint64_t *bits, int32_t safe, const reach *r, err *e)
{
    const token_tree *t = m->t;
    int32_t known = r->exact ? UNSAFE : r->chars;
    for (int32_t i = 1; i < t->n_nodes;) {
        const tree_node *x = &t->node[i];
        if (x->safe <= safe || (!(x->kinds & ~r->kinds) && x->safe <= known)) {
            i = (int32_t)x->end;
            continue;
        }
        m->n_path = x->depth;
        int32_t to =
            m->row[(size_t)m->path[m->n_path - 1] * (size_t)m->width + m->g->class_of[x->byte]];
        if (to == STATE_UNKNOWN) {
            status st = matcher_step(m, x->byte, &to, e);
            if (!st && m->spent > GRAMMAR_MAX_MASK_WORK)
                st = err_set(e, E_LIMIT,
                             "the grammar is too complex: finding the tokens that may "
                             "follow takes more than %d steps",
                             GRAMMAR_MAX_MASK_WORK);
            if (st)
                return st;
        }
        if (to == STATE_DEAD) {
            i = (int32_t)x->end;
            continue;
        }
        m->path[x->depth] = to;
        for (uint32_t k = x->token; k < t->node[i + 1].token; k++)
            bits[t->order[k] >> 6] |= (uint64_t)1 << (t->order[k] & 63);
        i++;
    }
    m->n_path = 1;
    return OK;
}

static status fill_allowed(matcher *m, uint64_t *bits, err *e)
{
    const token_tree *t = m->t;
    size_t n = (size_t)t->n_words;
    int32_t safe = safe_run(m, &m->state[m->path[0]]);
    status st;
    m->spent = 0;
    reach r = {0};
    if (!safe)
        r = find_kinds(m);
    if (r.kinds)
        set_reach(t, &r, bits);
    else
        memcpy(bits, t->safe_mask[safe], n * sizeof *bits);
    m->spent = 0;
    if ((st = walk(m, bits, safe, &r, e)))
        return st;
    for (int32_t i = 0; i < m->g->n_specials; i++) {
        int32_t to;
        if ((st = matcher_step(m, 256 + i, &to, e)))
            return st;
        if (to != STATE_DEAD)
            bits[m->special_id[i] >> 6] |= (uint64_t)1 << (m->special_id[i] & 63);
    }
    if (m->state[m->path[0]].end)
        for (size_t i = 0; i < n; i++)
            bits[i] |= t->eog_mask[i];
    return OK;
}

status grammar_mask(grammar_run *r, const uint64_t **bits, int32_t *n_allowed, err *e)
{
    matcher *m = r->m;
    size_t n_words = (size_t)m->t->n_words;
    int32_t i = m->state[r->state].mask;
    if (i < 0) {
        i = m->next_mask;
        m->next_mask = (i + 1) % N_MASKS;
        if (m->mask[i].state >= 0)
            m->state[m->mask[i].state].mask = -1;
        m->mask[i].state = -1;
        uint64_t *to = m->bits + (size_t)i * n_words;
        m->path[0] = r->state;
        m->n_path = 1;
        status st = fill_allowed(m, to, e);
        m->n_path = 0;
        if (st)
            return st;
        int32_t count = 0;
        for (size_t k = 0; k < n_words; k++)
            count += __builtin_popcountll(to[k]);
        m->mask[i] = (mask){r->state, count};
        m->state[r->state].mask = i;
    }
    if (!m->mask[i].n_allowed)
        return err_set(e, E_FORMAT,
                       "the grammar cannot go on: no token of this model continues the text, or it "
                       "nests deeper than %d",
                       GRAMMAR_MAX_DEPTH);
    *bits = m->bits + (size_t)i * n_words;
    if (n_allowed)
        *n_allowed = m->mask[i].n_allowed;
    return OK;
}
