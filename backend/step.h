/* step.h - all that changes between two passes of the same shape.
 *
 * Filled on the host before a pass, uploaded once, read by kernels from a fixed address. Kernel
 * arguments are shapes and pointers that never move, so a captured sequence of kernels can be
 * replayed for any tokens, any position and any session.
 *
 *   index     where a row's key and value go: the logical index in its sequence's timeline.
 *             slot = index mod n_slots of the view; nothing else converts between them.
 *   pos       what RoPE and the window see. Equal to index for a chain; rows of a draft tree at
 *             equal depth share a pos and never an index.
 *   first     the first index of this pass in the row's sequence: below it all is committed.
 *   seen      trees only: bit b set when the row sees the row with index first + b (its ancestors
 *             and itself). NULL: chains, where a row sees every index up to its own.
 *             In a pass with a tree no sequence has more than STEP_TREE_ROWS_MAX rows.
 *
 *      committed            this pass
 *   ....................|  r0  r1  r2  r3      chain: r2 sees r0 r1 r2
 *   0            first-1|first ...             tree:  r2 sees what its `seen` says
 */
#ifndef BACKEND_STEP_H
#define BACKEND_STEP_H

#include "num/num.h"

enum { STEP_TREE_ROWS_MAX = 64, STEP_SEQS_MAX = 64 };

/* Some rows of the pass, with what kernels need to know of each. Arrays of n. */
typedef struct rowset {
    int32_t n;
    const int32_t *token;
    const int32_t *pos;
    const int32_t *index;
    const int32_t *first;
    const int32_t *seq;   /* which sequence of the pass, 0 .. n_seqs-1 */
    const uint64_t *seen; /* or NULL */
} rowset;

/* Where one sequence keeps one layer's keys and values. page: reserved for pooled pages (slot /
 * page size -> page); NULL: slots are contiguous. */
typedef struct kv_base {
    void *k, *v; /* v NULL: one stream, see kv_view */
    const int32_t *page;
} kv_base;

typedef struct step {
    rowset all;             /* every row of the pass */
    rowset out;             /* the rows whose logits are wanted, in ascending order; may be none */
    const int32_t *out_row; /* [out.n] their numbers in `all` */
    int32_t n_seqs;
    int32_t n_kv;      /* key/value stores per sequence */
    const kv_base *kv; /* [n_seqs][n_kv] */
} step;

/* How the model sees a layer's keys and values; the same for every session of a shape.
 * A store holds, for each kv head, n_slots rows of head_dim elements: row (h, slot) starts at
 * (h * n_slots + slot) * row_bytes. Layers that share keys hold the same view.
 *
 * Rotated (num_rotate): what is stored is Rot k or Rot v, encoded. Rot is orthogonal, so attention
 * rotates its queries once and meets the keys as they are stored, and sums the values as they are
 * stored and rotates its result back. Nothing else may read such a store as if it were plain.
 *
 * One stream: layers whose values are the raw key projection normed without weight keep only that,
 * u. The value is u, the key is RoPE_pos(k_weight * u), made when it is read. */
struct weight;
struct rope;
typedef struct kv_view {
    int32_t id;  /* which of the step's stores */
    int8_t side; /* which of a pass's devices has them: pass.h */
    num_type k_type, v_type;
    int32_t n_head_kv, head_dim;
    int32_t window; /* a query at pos p sees keys with p - pos < window; 0: all */
    int32_t n_slots;
    size_t k_row_bytes, v_row_bytes;
    bool k_rot, v_rot;
    bool wide;   /* queries or keys may be beyond f16 (65504), whatever holds them */
    bool single; /* one stream: k holds u; v_type and v_rot are k's, v_row_bytes is 0 */
    const struct weight *k_weight; /* single: the norm weight of keys, [head_dim] */
    const struct rope *k_rope;     /* single: the rotation of keys; its table is there */
} kv_view;

#endif
