/* step.h - all that changes between two passes of the same shape.
 *
 * Filled on the host before a pass, uploaded once, read by kernels from a fixed address. Kernel
 * arguments are shapes and pointers that never move, so a captured sequence of kernels can be
 * replayed for any tokens, any position and any session.
 *
 *   pos       what RoPE and windows see. Rows of a draft tree at equal depth share a pos.
 *   index     the number of a row's key, counted per sequence and per kind of store. No two rows
 *             share it. key_walk.h turns a number into a place in memory; no other code does.
 *   first     the number of the sequence's first key of this pass: keys below it are committed.
 *   last      the number of the sequence's last key of this pass.
 *   seen      trees only: bit b is set when the row sees the key with index first + b (its
 *             ancestors and itself). NULL: chains, where a row sees every key up to its own. A pass
 *             with a tree has at most STEP_TREE_ROWS_MAX rows of each sequence. A row of a tree
 *             numbers the keys of its pass by depth (key_walk.h), so its keys have the numbers they
 *             would have in a chain.
 *
 *      committed            this pass
 *   ....................|  r0  r1  r2  r3      chain: r2 sees r0 r1 r2
 *   0            first-1|first        last     tree:  r2 sees what its `seen` says
 *                                              KV_INSIDE_ALL: r2 sees r0 r1 r2 r3
 *
 *   newest    where views of KV_INSIDE_ROWS or _BLOCKS exist: the number of the last key of this
 *             pass that the row sees. It never falls from one row of a sequence to the next. NULL
 *             elsewhere.
 */
#ifndef BACKEND_STEP_H
#define BACKEND_STEP_H

#include "num/num.h"

#include <stdbool.h>
#include <stddef.h>

enum { STEP_TREE_ROWS_MAX = 64, STEP_SEQS_MAX = 64, RECUR_TAPS_MAX = 8 };

/* Kinds of stores. Stores of one kind number a sequence's keys alike; a kind may keep fewer keys
 * than the sequence has tokens, and then numbers are smaller than positions. In a store with a
 * window the number of a committed key is its position. */
typedef enum store_kind { STORE_LINEAR, STORE_RING, STORE_KINDS } store_kind;

/* The keys of some rows in stores of one kind. Arrays of rowset.n. */
typedef struct row_keys {
    const int32_t *index, *first, *last, *newest;
} row_keys;

/* Some rows of the pass, with what kernels need to know of each. Arrays of n. */
enum { ROPE_AXES_MAX = 3 };
typedef struct rowset {
    int32_t n;
    const int32_t *token;
    const int32_t *pos;
    const int32_t *seq;   /* which sequence of the pass, 0 .. n_seqs-1 */
    const uint64_t *seen; /* or NULL */
    row_keys keys[STORE_KINDS];
    /* Positions on axes. Of a tower's patches two: column and row. Of a text with pictures three:
     * time, row and column (rope.section); tokens of text have the same on all. NULL: there are
     * none, and ropes turn by pos. All passes of a layout have them, or none. */
    const int32_t *axis[ROPE_AXES_MAX];
} rowset;

/* Keys of linear stores lie in pages of KV_PAGE, which timelines may share. All linear stores of a
 * sequence on one device have the same table. Its entries are in the order of their keys; pages
 * that are not resident have no entry, so a position may be larger than a key's number. */
enum { KV_PAGE = 64 };
typedef struct kv_page {
    int32_t place; /* of the page's first key in every head; a multiple of KV_PAGE */
    int32_t pos;   /* the position of that key; a multiple of KV_PAGE */
} kv_page;

/* Where one sequence keeps one layer's keys and values. */
typedef struct kv_base {
    void *k, *v;         /* v NULL: one stream, see kv_view */
    const kv_page *page; /* key t is in page[t / KV_PAGE]. Memory of the store's device. NULL: a
                            ring, or a store where every key's place is its number */
} kv_base;

/* A recurrent layer: a gated delta rule over n_v value heads, and the convolution before it. Its
 * state is no function of a row's keys, so a rejected row cannot be dropped by a counter. What a
 * row would change is kept in a journal until the row is committed:
 *
 *     state, conv      the layer after the committed rows, without the pending ones
 *     journal[bank]    the pending rows: committed, not yet in state and conv
 *     journal[!bank]   receives the rows of this pass
 *
 * A pass applies the pending rows first, and writes state and conv once. So decoding reads and
 * writes the state once for each token, whether or not tokens are drafts. Rows that are certain to
 * be committed (recur_seq.final: prompts) go into state and conv at once, without the journal.
 * An applied row and a computed row make the same operations in the same order: same bits.
 *
 * A device may compute rows of prompts in blocks (recur_view.block), which end at multiples of it
 * in the sequence. Where a pass ends inside a block, recur_base.block keeps the state at its
 * beginning and its rows so far, for a pass that continues it. So a row has the same bits however
 * its prompt is cut. The first floats of that part say which rows it holds; cleared, they say none.
 */
typedef struct recur_view {
    int32_t id;           /* which of the step's recurrent stores */
    int8_t side;          /* which of a pass's devices has it: pass.h */
    int32_t layer;        /* of the model */
    int32_t n_k, n_v;     /* key heads, value heads; value head j reads key head j mod n_k */
    int32_t dk, dv;       /* sizes of a key head and a value head */
    int32_t n_taps;       /* of the convolution, its own row included */
    int32_t journal_rows; /* the most uncommitted rows of a pass */
    int32_t block;        /* rows of a block of a prompt; 0: row by row */
} recur_view;

/* Channels of the convolution: queries and keys [n_k][dk] each, values [n_v][dv]. */
static inline int32_t recur_channels(const recur_view *v)
{
    return 2 * v->n_k * v->dk + v->n_v * v->dv;
}

/* Where one sequence keeps one recurrent layer. Memory of the layer's device, f32. */
typedef struct recur_base {
    float *state; /* [n_v][dv][dk], keys contiguous */
    float *conv;  /* [n_taps - 1][channels]: the last inputs of the convolution, oldest first */
    float *journal[2]; /* [journal_rows] of: inputs [channels], keys [n_k][dk] as the rule reads
                          them, errors [n_v][dv], decays [n_v] */
    float *block;      /* recur_block_floats; unused where view.block is 0 */
} recur_base;

/* Floats that say which rows recur_base.block holds. */
enum { RECUR_BLOCK_HEAD = 64 };

/* Of a started block: what it holds, its state; of all rows but the last [n_k][dk] keys and
 * [n_v][dv] values; of the same rows [2][n_v] gates. Memory has them in this order. */
static inline size_t recur_block_floats(const recur_view *v)
{
    size_t row = (size_t)v->n_k * (size_t)v->dk + (size_t)v->n_v * (size_t)(v->dv + 2);
    return v->block ? RECUR_BLOCK_HEAD + (size_t)v->n_v * (size_t)v->dv * (size_t)v->dk +
                          (size_t)(v->block - 1) * row
                    : 0;
}

static inline int32_t recur_journal_row(const recur_view *v) /* floats */
{
    return recur_channels(v) + v->n_k * v->dk + v->n_v * v->dv + v->n_v;
}

/* The same for all recurrent layers of a sequence. */
typedef struct recur_seq {
    int32_t row0, n; /* its rows of step.all */
    bool final;      /* all n rows will be committed */
    int32_t bank;    /* of the journal: has the pending rows */
    int32_t n_pending;
    int32_t pending[STEP_TREE_ROWS_MAX]; /* rows of the journal, in the order of their positions */
} recur_seq;

/* What attention leaves out for the rows of one sequence (sparse.h). All zero: nothing. */
struct sparse_stats;
typedef struct sparse_rule {
    float skip;       /* skip-softmax: the factor of the limit; 0: off */
    int32_t tile;     /* skip-softmax: keys of a tile; 0: SPARSE_TILE */
    int32_t least;    /* skip-softmax: rows that see fewer keys drop nothing */
    float alpha;      /* block selection: the threshold, up to 1; 0: off. Of prompts' rows alone */
    int32_t n_prompt; /* block selection: keys of the whole prompt */
    struct sparse_stats *stats; /* [layers], memory of the host: what was left out is added there;
                                   NULL: it is not counted */
} sparse_rule;

/* Rows of the pass, side by side, whose embeddings no table has: pictures'. */
typedef struct soft_run {
    int32_t row0, n; /* of step.all; their token is 0 */
    const float *at; /* [n][width of an embedding], memory of the host */
    int64_t part;    /* numbers from there to the rows of deepstack's first layer, and on to the
                        next one's */
} soft_run;

typedef struct step {
    bool prompt;            /* rows of prompts; else of answers. A device may compute the two by
                               different kernels, and then one pass never has both */
    rowset all;             /* every row of the pass */
    rowset out;             /* the rows whose logits are wanted, in ascending order; may be none */
    const int32_t *out_row; /* [out.n] their numbers in `all` */
    int32_t n_seqs;
    int32_t n_kv;              /* key/value stores per sequence */
    const kv_base *kv;         /* [n_seqs][n_kv] */
    const sparse_rule *sparse; /* [n_seqs], memory of the host; NULL: nothing is left out */
    /* [n_seqs][LORAS_MAX], memory of the host: how much of each adapter a sequence's rows have
     * (lora.h). An entry NULL: of none; NULL: no row has one. */
    const float *const *lora;
    int32_t n_recur; /* recurrent stores per sequence; 0: recur, recur_seq and parent are NULL */
    const recur_base *recur;    /* [n_seqs][n_recur] */
    const recur_seq *recur_seq; /* [n_seqs] */
    const int32_t *parent; /* [all.n]: the row of `all` that each row follows; -1: the committed
                              context. A parent comes before its children */
    const soft_run *soft;  /* [n_soft], memory of the host; no two runs share a row */
    int32_t n_soft;
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

/* Which keys of its own pass a row sees; committed keys are not concerned. */
typedef enum kv_inside {
    KV_INSIDE_CAUSAL, /* a chain: all up to its own; a tree: its ancestors and its own */
    KV_INSIDE_ALL,    /* all of its sequence, which is a chain: drafters that predict a block of
                         tokens at once */
    KV_INSIDE_ROWS,   /* all up to row_keys.newest, in a chain: texts whose tokens see later ones */
    KV_INSIDE_BLOCKS /* chains as ROWS, for pictures whose tokens see each other; trees as CAUSAL */
} kv_inside;

typedef struct kv_view {
    int32_t id;      /* which of the step's stores */
    int8_t side;     /* which of a pass's devices has them: pass.h */
    store_kind kind; /* whose numbers its keys have: rowset.keys */
    kv_inside inside;
    num_type k_type, v_type;
    int32_t n_head_kv, head_dim;
    int32_t window;  /* a query at pos p sees keys with p - pos < window; 0: all */
    int32_t n_slots; /* places of a head; of pages: those of all sequences */
    int32_t n_keys;  /* the most keys of one sequence */
    size_t k_row_bytes, v_row_bytes;
    bool k_rot, v_rot;
    bool wide;   /* queries or keys may be beyond f16 (65504), whatever holds them */
    bool single; /* one stream: k holds u; v_type and v_rot are k's, v_row_bytes is 0 */
    const struct weight *k_weight; /* single: the norm weight of keys, [head_dim] */
    const struct rope *k_rope;     /* single: the rotation of keys; its table is there */
    const struct weight *sinks;    /* [query heads]; NULL: none. See op_attend */
    /* Of a rank's part of a layer (tensor split): query and KV heads of the layer. A device chooses
     * by these how it cuts a row's keys, so that bits are those of any number of ranks. 0: no tensor
     * split. */
    int32_t head_all, head_kv_all;
} kv_view;

static inline int32_t kv_heads_all(const kv_view *kv)
{
    return kv->head_kv_all ? kv->head_kv_all : kv->n_head_kv;
}
/* n_head: query heads that are here. */
static inline int32_t query_heads_all(const kv_view *kv, int32_t n_head)
{
    return kv->head_all ? kv->head_all : n_head;
}

static inline const row_keys *rows_keys(const rowset *rs, const kv_view *kv)
{
    return &rs->keys[kv->kind];
}

/* Does it read row_keys.newest? */
static inline bool kv_by_rows(const kv_view *kv)
{
    return kv->inside == KV_INSIDE_ROWS || kv->inside == KV_INSIDE_BLOCKS;
}
/* Does it read rowset.seen? */
static inline bool kv_by_tree(const kv_view *kv)
{
    return kv->inside == KV_INSIDE_CAUSAL || kv->inside == KV_INSIDE_BLOCKS;
}

/* The number of the last key that each row of a chain sees. */
static inline const int32_t *newest_keys(const row_keys *k, const kv_view *kv)
{
    return kv->inside == KV_INSIDE_ALL ? k->last : kv_by_rows(kv) ? k->newest : k->index;
}

#endif
