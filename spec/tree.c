/* tree.c - the nodes of a round, from a proposal.
 *
 * A path's chance is taken as the product of its tokens' chances: what the drafter says, or what
 * the controller has learned of it. Of all trees of a given size, the one with the largest sum of
 * path chances, which is the expected number of accepted tokens, consists of the likeliest paths. A
 * path is never likelier than its parent, nor a rank than the rank before it, so a heap meets the
 * paths in this order:
 *
 *     taken (slot 1, rank 0)  ->  enter its child   (slot 2, rank 0)
 *                             ->  enter its sibling (slot 1, rank 1, same parent)
 *
 * So a tree of N nodes takes at most 2 N + 1 entries. Of equal chances the latest entry is
 * taken first, a child before a sibling, so that certain tokens make a chain.
 *
 * A slot ends at its first rank without a token (id < 0) or without a probability (not a number,
 * minus infinity); a proposal ends at its first slot without ranks.
 */
#include "spec/tree.h"

#include <math.h>

enum { NODES_MAX = STEP_TREE_ROWS_MAX - 1, ENTRIES_MAX = 2 * NODES_MAX + 1 };

/* A path that may become a node. */
typedef struct entry {
    double chance;  /* of the path: a logarithm */
    double above;   /* of the parent's path */
    int32_t parent; /* row */
    int32_t rank;
    int32_t order; /* of entry */
} entry;

typedef struct heap {
    entry at[ENTRIES_MAX];
    int32_t n, n_entered;
} heap;

static bool is_before(const entry *a, const entry *b)
{
    return a->chance != b->chance ? a->chance > b->chance : a->order > b->order;
}

static void heap_push(heap *h, entry x)
{
    int32_t i = h->n++;
    x.order = h->n_entered++;
    for (; i > 0 && is_before(&x, &h->at[(i - 1) / 2]); i = (i - 1) / 2)
        h->at[i] = h->at[(i - 1) / 2];
    h->at[i] = x;
}

static entry heap_pop(heap *h)
{
    entry top = h->at[0], x = h->at[--h->n];
    int32_t i = 0;
    for (int32_t c = 1; c < h->n; c = 2 * i + 1) {
        if (c + 1 < h->n && is_before(&h->at[c + 1], &h->at[c]))
            c++;
        if (!is_before(&h->at[c], &x))
            break;
        h->at[i] = h->at[c];
        i = c;
    }
    if (h->n > 0)
        h->at[i] = x;
    return top;
}

/* Whether a slot has this rank. Slots of hostile or broken drafters may have any bits. */
static bool has_rank(const proposal *p, int32_t slot, int32_t rank)
{
    return slot < p->n_slots && slot < DRAFT_SLOTS_MAX && rank < p->n_ranks &&
           rank < DRAFT_RANKS_MAX && p->id[slot][rank] >= 0 && p->logp[slot][rank] > -INFINITY;
}

/* Rounding may leave a probability just above 1. */
static double rank_logp(const proposal *p, int32_t slot, int32_t rank)
{
    return fmin(p->logp[slot][rank], 0);
}

float tree_prob(const proposal *p, int32_t slot, int32_t rank)
{
    return p->logp[slot][rank] > -INFINITY ? (float)exp(rank_logp(p, slot, rank)) : 0;
}

static void tree_root(draft_tree *t, int32_t last_token)
{
    t->n = 0;
    t->chain = true;
    t->token[0] = last_token;
    t->parent[0] = -1;
    t->depth[0] = 0;
    t->prob[0] = 1;
}

static void tree_add(draft_tree *t, const proposal *p, int32_t parent, int32_t rank)
{
    int32_t row = ++t->n;
    t->parent[row] = parent;
    t->depth[row] = t->depth[parent] + 1;
    t->token[row] = p->id[t->depth[parent]][rank];
    t->prob[row] = tree_prob(p, t->depth[parent], rank);
    t->chain = t->chain && parent == row - 1;
}

void tree_chain(draft_tree *t, const proposal *p, int32_t last_token, int32_t n_slots)
{
    tree_root(t, last_token);
    while (t->n < n_slots && t->n < NODES_MAX && has_rank(p, t->n, 0))
        tree_add(t, p, t->n, 0);
}

static void enter(heap *h, const proposal *p, const tree_weights *w, int32_t slot, entry x)
{
    if (!has_rank(p, slot, x.rank))
        return;
    x.chance = x.above + (w ? w->logp[slot][x.rank] : rank_logp(p, slot, x.rank));
    heap_push(h, x);
}

void tree_grow(draft_tree *t, const proposal *p, const tree_weights *w, int32_t last_token,
               int32_t budget)
{
    heap h = {.n = 0};

    tree_root(t, last_token);
    enter(&h, p, w, 0, (entry){.parent = 0});
    while (h.n > 0 && t->n < budget && t->n < NODES_MAX) {
        entry x = heap_pop(&h);
        int32_t slot = t->depth[x.parent], token = p->id[slot][x.rank];
        entry next = x;
        next.rank++;
        enter(&h, p, w, slot, next);
        /* A token twice in one slot: the second could never be accepted. */
        if (tree_child(t, x.parent, token) >= 0)
            continue;
        tree_add(t, p, x.parent, x.rank);
        enter(&h, p, w, slot + 1, (entry){.above = x.chance, .parent = t->n});
    }
}

void tree_cut(draft_tree *t, int32_t n)
{
    if (n < 0 || n >= t->n)
        return;
    t->n = n;
    t->chain = true;
    for (int32_t i = 1; i <= n; i++)
        t->chain = t->chain && t->parent[i] == i - 1;
}

int32_t tree_child(const draft_tree *t, int32_t row, int32_t token)
{
    if (row < 0)
        return -1;
    for (int32_t i = row + 1; i <= t->n; i++)
        if (t->parent[i] == row && t->token[i] == token)
            return i;
    return -1;
}
