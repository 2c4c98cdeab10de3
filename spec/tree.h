/* tree.h - the tokens of a round: a chain, or a tree grown from a proposal (DDTree, arXiv
 * 2604.12989).
 *
 * Rows of a round: row 0 is the timeline's last token, row 1 + i is node i.
 */
#ifndef SPEC_TREE_H
#define SPEC_TREE_H

#include "spec/drafter.h"

typedef struct draft_tree {
    int32_t n;                          /* nodes; 0: no draft */
    bool chain;                         /* every node follows the one before it */
    int32_t token[STEP_TREE_ROWS_MAX];  /* of rows: [0] is the last token, [1 .. n] the nodes */
    int32_t parent[STEP_TREE_ROWS_MAX]; /* of rows, as kv_rows.parent: [0] is -1 */
    int32_t depth[STEP_TREE_ROWS_MAX];  /* of rows: [0] is 0 */
    float prob[STEP_TREE_ROWS_MAX];     /* of rows: the token's, by the drafter; [0] is 1 */
} draft_tree;

/* The logarithm of each token's chance if its parent is accepted, where that is known better than
 * by the drafter: draft_control_weigh. Falling with the rank. */
typedef struct tree_weights {
    float logp[DRAFT_SLOTS_MAX][DRAFT_RANKS_MAX];
} tree_weights;

/* The drafter's probability of a token, at most 1; not a number as 0. */
float tree_prob(const proposal *p, int32_t slot, int32_t rank);
/* The first n_slots slots of p, best tokens only. */
void tree_chain(draft_tree *t, const proposal *p, int32_t last_token, int32_t n_slots);
/* The tree of at most `budget` nodes with the largest sum of path chances, in the order of these:
 * its first nodes are the best smaller tree. w NULL: the chances are p's probabilities. */
void tree_grow(draft_tree *t, const proposal *p, const tree_weights *w, int32_t last_token,
               int32_t budget);
/* Keeps the first n nodes. */
void tree_cut(draft_tree *t, int32_t n);
/* The child of row `row` with that token; -1: none. */
int32_t tree_child(const draft_tree *t, int32_t row, int32_t token);

#endif
