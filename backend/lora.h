/* lora.h - low-rank adapters: what they add to the products of a pass.
 *
 *     y[r] = W x[r] + sum_i s_i[r] c_i B_i (A_i x[r])         A: [rank, n_in], B: [n_out, rank]
 *
 * c is alpha / rank of the adapter i, s the scale that the row's request has for it. A weight has a
 * list of its adapters (weight.lora), so models know nothing of them: op_matmul and its relatives
 * ask here. Rows of one pass may have different adapters. Neighbours with the same scales are
 * computed together, and every row has the bits that it has alone: rows without adapters take the
 * path that they take in a model without adapters.
 *
 * Of a table of embeddings A has a row of `rank` numbers for each token: rows are gathered.
 */
#ifndef BACKEND_LORA_H
#define BACKEND_LORA_H

#include "backend/ops.h"

enum { LORAS_MAX = 16 }; /* adapters of a model */

typedef struct lora_pair {
    const struct lora_pair *next; /* of another adapter, for the same weight */
    int32_t adapter;
    weight a, b; /* n_mat of the weight */
    float c;
} lora_pair;

/* Is w adapted for some row of the pass? gate and up of a gated unit, either of which may be NULL.
 */
bool lora_adapts(const pass *p, const weight *w);
static inline bool lora_adapts_either(const pass *p, const weight *w, const weight *v)
{
    return lora_adapts(p, w) || lora_adapts(p, v);
}

/* Names which rows have which adapters, in all rows and in the wanted ones: passes that differ in
 * it launch other ops. 0: none has any. */
uint64_t lora_rows_key(const pass *p);

/* After the ops of the same name have checked their arguments and made y. The first two add to a y
 * that is computed; the others compute it. */
void lora_add(pass *p, mat y, mat x, const weight *w);
void lora_add_embed(pass *p, mat y, const weight *w, float scale);
void lora_glu(pass *p, mat *y, mat x, const weight *gate, const weight *up, act_kind act);
void lora_router(pass *p, routing *r, mat x, const weight *w, const route_rule *rule);
void lora_moe_glu(pass *p, mat *y, mat x, routing *r, const weight *gate, const weight *up,
                  act_kind act);
void lora_moe_down(pass *p, mat y, mat x, routing r, const weight *down);

#endif
