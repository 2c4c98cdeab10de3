/* tensor_split.h - a bound model as the ranks of a tensor split (backend/ranks.h).
 *
 * The model stays one: its weights and stores lie on several sides, side r being rank r. Every rank
 * but the first has a copy of the architecture's structs, with its parts of the weights. The
 * model's own structs are those of rank 0. Stores are in the order of ranks: those of rank r are
 * m->kv[r * n .. (r + 1) * n - 1].
 */
#ifndef MODEL_TENSOR_SPLIT_H
#define MODEL_TENSOR_SPLIT_H

#include "model/model.h"

/* Splits m between n devices, before planning and loading, once and for good: others[i] is the
 * device of rank 1 + i and outlives m. n: 1 to RANKS_MAX; on one device the sums are those of any
 * number. E_UNSUPPORTED, with a sentence: the architecture, or a tensor, cannot be split. After an
 * error m can only be freed. */
status model_split(model *m, device *const *others, int32_t n, err *e);

/* Before w is loaded, and where its bytes may go: a copy of the pieces of the file that it is made
 * of (weight.pieces). Of other weights nothing. */
status weight_gather(weight *w, err *e);
void weight_drop(weight *w);

/* model_forward of such a model. */
mat model_forward_ranks(pass *p, const model *m, const kv_layout *kv);

/* The products of a head that is cut, [x->rows, n_vocab], on the first rank. x: as of model_head. */
mat model_head_ranks(pass *p, const model *m, const mat *x, int32_t n_x);

#endif
