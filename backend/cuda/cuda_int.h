/* cuda_int.h - what the files of the CUDA device share: host C11 on one side, kernels on the other.
 *
 * runtime.c      the GPU that a thread has selected; failures of the runtime
 * cuda.c, weights.c   the device, its memory, the step block; weights on their way to it
 * ops.c          the op table: picks kernels by row count and weight layout
 * shadow.c       which activations already have an int8 or bf16 copy
 * fuse.c         small ops that become one kernel with the next
 * blas.c         products of many rows through cuBLASLt
 * graph.c        passes of few rows, recorded and replayed
 * pinned.c       page-locked host memory, and large copies
 * experts.c      experts of which only some have a place on the device
 * page_moves.c   pages of keys, copied and moved beside the passes
 * page_ops.c     summaries of pages, and scores by them
 * recur_ops.c    recurrent layers
 * kernels.c      the words for which kernel does what
 * *.cu           kernels, one idea per file, each behind an extern "C" launcher that takes a stream
 *
 * The one idea: ops enqueue and return. What changes between passes is read by kernels from the
 * step block at a fixed address; what a launcher is given are shapes and pointers that never move.
 */
#ifndef BACKEND_CUDA_CUDA_INT_H
#define BACKEND_CUDA_CUDA_INT_H

#include <cuda_runtime_api.h>
#ifndef __cplusplus
#include "backend/ops.h"
#include <stdatomic.h>
#endif
#include <stdbool.h>
#include <stdint.h>

/* Rows of answers take the kernels of few rows, and do not depend on their neighbours. Products
 * take LAUNCH_ROWS of them at a time, experts and routers FEW_ROWS. */
enum { FEW_ROWS = 64, LAUNCH_ROWS = 128, TILE_ROWS = 16, GROUP = 32, UNIT = 8 };

/* ---- Weights ------------------------------------------------------------------------------ */

/* Layouts of weight.packed. FILE, F32, F16 and BF16: as in the file, row after row. The others:
 * tiles of 16 output rows (n_out padded), groups of 32 columns, and up to four planes. So 16 lanes,
 * a row each, read 16 x 16 neighbouring bytes in every format:
 *
 *   codes  [tile][group][16 rows][16 bytes]   byte j: element j low, element j + 16 high nibble;
 *          [tile][group][2 halves][16 rows][16 bytes]   8-bit codes, elements 0..15 and 16..31
 *   high   [tile][unit][2 parities][16 rows][4 groups][4 or 8 bytes]   fifth bits: bit 8b + w for
 *          byte b of word w; fifth and sixth: bits 8b + 2w of two words, the second for words 4..7
 *   scale  [tile][unit][2 parities][16 rows][4 groups][scale bytes]
 *   super  [tile][unit][16 rows][super bytes]   K formats
 *
 * A unit is 8 groups; parity p has its groups p, p + 2, p + 4, p + 6. That is a lane's share in the
 * kernels of one row: one wide load each for its high bits and its scales.
 *
 * Word w < 4 of a group holds elements 4w.., word w >= 4 elements 16 + 4(w - 4)..; the order of
 * integer tensor-core fragments. */
enum pack_kind {
    PACK_NONE,
    PACK_FILE, /* gathered tables: the file's bytes */
    PACK_F32,
    PACK_F16,
    PACK_BF16,
    PACK_Q4_0,
    PACK_Q4_1,
    PACK_Q5_0,
    PACK_Q5_1,
    PACK_Q8_0,
    PACK_Q4_K,
    PACK_Q5_K,
    PACK_Q6_K,
    PACK_G8, /* any other block format: int8 codes, f32 scale and offset per 16 */
    PACK_END
};

typedef struct packed {
    const uint8_t *codes, *high, *scale, *super; /* of matrix 0 */
    size_t mat_bytes;                            /* from one matrix to the next, in every plane */
    int32_t kind, n_in, n_out, n_group, n_unit, n_tile, n_mat;
    /* Experts of which only some are on the device (experts.c); device memory, [n_mat] each.
     * where: from the planes of matrix 0 to those of matrix e, in bytes. The target may be memory
     * of the host. NULL: e * mat_bytes. count: how many pairs of row and expert chose e, of a
     * layer's first product; or NULL. */
    const int64_t *where;
    uint32_t *count;
} packed;

/* Sizes in bytes per row and group (super: per row and unit). */
typedef struct pack_sizes {
    int32_t code, high, scale, super;
} pack_sizes;

#ifdef __cplusplus
extern "C" {
#endif

/* Facts of the GPU that the calling thread has selected, for launchers. Like the runtime's current
 * device they belong to the thread. cuda_select (runtime.c) alone sets both, so several unequal
 * GPUs may be open. */
typedef struct gpu_facts {
    int32_t n_sm;         /* multiprocessors */
    int32_t shared_block; /* bytes of shared memory: the most that a block may ask for */
    int32_t shared_sm;    /* and all that a multiprocessor has */
    bool overlap;         /* a kernel may begin under the tail of the one before (9.0 and up) */
} gpu_facts;
extern __thread gpu_facts cu_gpu;

/* ---- The step block ----------------------------------------------------------------------- */

/* Rows as one view's kernels see them. index and first are of the view's kind of store; newest is
 * the number of the newest key that a row may see: its own, or its sequence's last. */
typedef struct dev_rows {
    const int32_t *token, *pos, *seq, *index, *first, *newest;
    const uint64_t *seen; /* trees; NULL: a row sees all keys up to `newest` */
    int32_t n;
} dev_rows;

/* As kv_base and kv_page. */
enum { PAGE_KEYS = 64 };
typedef struct dev_kv_page {
    int32_t place, pos;
} dev_kv_page;

typedef struct dev_kv_base {
    void *k, *v;
    const dev_kv_page *page;
} dev_kv_base;

/* Passed to kernels by value. All pointers are fixed for given counts of rows. */
typedef struct dev_step {
    dev_rows rows;
    const dev_kv_base *kv; /* [n_seqs][n_kv] */
    int32_t n_kv;
} dev_step;

/* Recurrent layers: as recur_base, recur_seq and recur_view. */
enum { RECUR_PATH = 64, RECUR_TAPS = 8, RECUR_STORES = 64 };
typedef struct dev_recur_base {
    float *state, *conv, *journal[2], *block;
} dev_recur_base;

typedef struct dev_recur_seq {
    int32_t row0, n, final, bank, n_pending;
    int32_t pending[RECUR_PATH];
} dev_recur_seq;

typedef struct dev_recur {
    const dev_recur_base *base; /* [n_seqs][n_recur] */
    const dev_recur_seq *seq;   /* [n_seqs] */
    const int32_t *parent, *row_seq;
    int32_t n_recur, n_seqs;
} dev_recur;

typedef struct recur_shape {
    int32_t id, n_k, n_v, dk, dv, n_taps, n_channels;
    int32_t journal_floats; /* of a row */
} recur_shape;

/* Formats of caches; from KV_Q8_0 on in blocks of 32. */
enum kv_kind {
    KV_F32,
    KV_F16,
    KV_BF16,
    KV_Q8_0,
    KV_Q5_1,
    KV_Q5_0,
    KV_Q4_1,
    KV_Q4_0,
    KV_IQ4_NL,
    KV_TQ3_0,
    KV_KINDS
};

typedef struct dev_kv {
    int32_t id, k_kind, v_kind, n_head_kv, head_dim, window, n_slots;
    int32_t k_bytes, v_bytes; /* of a head's row */
    bool k_rot, v_rot;
    /* One stream: values are read where keys are, and keys are made of them (keys.cuh). */
    bool single;
    int32_t n_turning;
    const float *k_weight, *inv_freq, *turns; /* device memory, as kv_view and rope have them */
} dev_kv;

/* ---- Launchers ---------------------------------------------------------------------------- */

typedef struct dev_mat { /* a mat, flat */
    float *at;
    int32_t rows, cols;
    int64_t stride;
} dev_mat;

/* A copy of a mat for products; all NULL: none.
 *   q   int8  [row tile][group][rows of the tile][32], tiles of `tile` rows (1, or 8 as tensor-core
 *       fragments have them); the words of a group in the order 0 4 1 5 2 6 3 7
 *   s   [row tile][group][rows of the tile] xscale, 8 bytes each
 *   bf  bf16 [rows, cols], instead of q and s */
typedef struct dev_quant {
    int8_t *q;
    void *s;
    uint16_t *bf;
    int32_t rows, cols, tile;
} dev_quant;

/* elementwise.cu */
typedef struct row_ids { /* a token of each row: token[r], or else at[r * stride] as a float */
    const int32_t *token;
    const float *at;
    int64_t stride;
    int32_t n_ids; /* with `at`: tokens 0 .. n_ids - 1 are in the table */
} row_ids;
void cu_embed(cudaStream_t s, dev_mat y, const void *table, int type, size_t row_bytes, row_ids ids,
              float scale);
/* y[r, i] = act(a[r, i / share]) * b[r, i]; act: an act_kind */
void cu_act_mul(cudaStream_t s, dev_mat y, dev_mat a, dev_mat b, int act, int share, dev_quant q);
void cu_add(cudaStream_t s, dev_mat y, dev_mat a, dev_mat b);
void cu_scale(cudaStream_t s, dev_mat x, float c, const float *w);
void cu_gather(cudaStream_t s, dev_mat y, dev_mat x, const int32_t *row);
void cu_softcap(cudaStream_t s, dev_mat x, float cap, const int32_t *ids, int32_t n_ids);
/* best.cu: y [rows, 2 k] as op_best gives it */
enum { BEST_PIECE = 2048, BEST_CANDIDATES = 8192 }; /* columns of a piece; k times the pieces */
typedef struct best_args {
    dev_mat y, x;
    int32_t k, n_piece;
    uint32_t *candidate; /* [rows, n_piece, k, 2] */
    float *sum;          /* [rows, n_piece] */
} best_args;
void cu_best(cudaStream_t s, best_args a);
/* The first `cols` columns of x: as op_renumber; id [rows, k]. */
void cu_renumber(cudaStream_t s, dev_mat x, int32_t cols, const int32_t *id, int32_t k,
                 const int32_t *list, int32_t n);
/* norm.cu */
void cu_rms_norm(cudaStream_t s, dev_mat y, dev_mat x, int32_t heads, const float *w, float eps,
                 dev_quant q);
typedef struct norm_job {
    dev_mat y; /* norm(x) w c, and its copy q; w may be NULL */
    const float *w;
    float c;
    dev_quant q;
} norm_job;
enum { NORM_JOBS = 3 };
/* n norms of x; results overlap neither each other nor x. */
void cu_norms(cudaStream_t s, dev_mat x, const norm_job *job, int n, float eps);
typedef struct residual_args {
    dev_mat x, y; /* x = x + rms_norm(y) w, then times c cw[0] if scaled */
    const float *w, *cw;
    float eps, c, h_eps;
    bool scaled;
    dev_mat b; /* optional: first y = rms_norm(y) yw + rms_norm(b) bw; y and b are overwritten */
    const float *yw, *bw;
    norm_job h[NORM_JOBS]; /* norms of the new x */
    int32_t n_h;
    dev_quant q; /* without norms: the copy of the new x */
    bool plain;  /* x = x + y instead; one norm at most follows */
} residual_args;
void cu_residual(cudaStream_t s, residual_args a);
/* Do these fit the kernel of a plain residual? A norm that joins must fit it too. */
bool cu_can_wait_add(dev_mat x, dev_mat y);
typedef struct head_job {
    dev_mat y, x;         /* y = rms_norm(x) w per head (if norm), turned (if inv_freq) */
    dev_mat bare;         /* also rms_norm(x) without w, as large as y; at NULL: none */
    int32_t heads, store; /* store: 1 y as keys, 2 y as values, 3 y as keys and bare as values */
    int32_t x_head;       /* floats from head to head of x */
    const float *w, *inv_freq;
    int32_t n_pairs; /* that turn: (i, i + n_pairs) */
    float factor;    /* of cosines and sines */
    float eps;
    bool norm;
    float *rotated; /* a copy of y, its groups of 128 rotated, row after row; or NULL */
} head_job;
/* One to HEAD_JOBS jobs of equal head sizes. */
enum { HEAD_JOBS = 3 };
void cu_heads(cudaStream_t s, const head_job *job, int n, dev_kv kv, dev_step st);
/* Does it take heads of this size? A multiple of 256, or 128. */
static inline bool heads_take(int32_t n)
{
    return n == 128 || (n % 256 == 0 && n <= 2048);
}
/* Can it turn n_pairs pairs of such a head? Both halves of a pair are in one thread, or in lanes of
 * one warp. */
static inline bool heads_turn(int32_t n, int32_t n_pairs, float factor)
{
    bool lanes = n_pairs == 4 || n_pairs == 8 || n_pairs == 16 || n_pairs == 32 || n_pairs == 64;
    return (n >= 256 && 2 * n_pairs == n && factor == 1) || (lanes && 2 * n_pairs <= n);
}
/* rope.cu */
typedef struct rope_args {
    dev_mat x;
    int32_t heads, head_dim, n_pairs;
    const int32_t *pos;
    const float *inv_freq;
    float factor;
} rope_args;
void cu_rope(cudaStream_t s, rope_args a);
/* kv_store.cu */
void cu_rotate(cudaStream_t s, dev_mat y, dev_mat x, bool back); /* groups of 128 columns */
void cu_kv_store(cudaStream_t s, dev_kv kv, dev_step st, dev_mat k, dev_mat v);
/* recur.cu */
typedef struct conv_args {
    dev_mat y, x;
    const float *taps; /* [channels][n_taps] */
    recur_shape v;
    dev_recur st;
    bool chain; /* no row of the pass is in a tree */
} conv_args;
void cu_conv(cudaStream_t s, conv_args a);
typedef struct delta_args {
    dev_mat o, c, a, b;
    const float *gate_a, *gate_dt;
    recur_shape v;
    dev_recur st;
    float *q, *k, *gates; /* [n_k, rows, dk], the same, [n_v, rows, 2] */
} delta_args;
void cu_delta(cudaStream_t s, delta_args a);
void cu_delta_rows(cudaStream_t s, delta_args a); /* q, k and gates alone */
/* recur_chain.cu: the same of chains, for shapes that it knows; y of cu_conv without what it leaves
 * in the store, false: not this shape. */
bool cu_chain_knows(const recur_shape *v);
void cu_delta_chain(cudaStream_t s, delta_args a);
bool cu_conv_run(cudaStream_t s, const conv_args *a);
int cu_chain_init(void);
bool cu_delta_knows(int32_t dk);
/* recur_blocks.cu: the same of prompts in blocks, which end at multiples of RECUR_BLOCK_ROWS in
 * their sequences, for shapes that it knows. All rows are final. */
enum { RECUR_BLOCK_ROWS = 64, RECUR_BLOCK_HEAD_FLOATS = 64, RECUR_HEAD = 128, RECUR_BLOCKS = 16 };
typedef struct block_place {
    int32_t seq, row, from, to; /* rows from .. to - 1 of the block are rows row + i of the pass */
    int32_t pos;                /* of row 0 of the block */
    bool begins;                /* the first of its sequence in the pass */
} block_place;
typedef struct block_walk { /* blocks of one sequence: first .. first + n - 1 of the launch */
    int32_t first, n;
} block_walk;
typedef struct block_args {
    delta_args delta;   /* without q, k and gates */
    void *keys, *pairs; /* the launch's blocks, by key head and by value head */
    block_place at[RECUR_BLOCKS];
    block_walk walk[RECUR_BLOCKS];
    int32_t n, n_walks;
} block_args;
bool cu_blocks_fit(void); /* has the GPU the shared memory? */
bool cu_blocks_know(const recur_shape *v);
size_t cu_block_keys_bytes(const recur_shape *v); /* of keys and of pairs, of one block */
size_t cu_block_pairs_bytes(const recur_shape *v);
void cu_delta_blocks(cudaStream_t s, const block_args *b);
int cu_blocks_init(void);
/* recur_unit.cu: a layer of answers from its convolution to the gate; chains alone. ticket:
 * [n_seqs][n_k] zeros, and again after the launch. */
enum { RECUR_KEY_HEADS = 64, RECUR_TICKETS = 64 * RECUR_KEY_HEADS };
typedef struct unit_args {
    dev_mat y, x, z, a, b;
    const float *taps, *gate_a, *gate_dt, *norm;
    float eps;
    recur_shape v;
    dev_recur st;
    dev_quant q; /* the copy of y */
    int32_t *ticket;
} unit_args;
bool cu_unit_knows(const recur_shape *v);
void cu_unit(cudaStream_t s, unit_args a);
void cu_gated(cudaStream_t s, unit_args a); /* norm and gate alone, x: the rule's output */
typedef struct settle_args {                /* several stores of one shape */
    dev_recur_base base[RECUR_STORES];
    dev_recur_seq seq;
    recur_shape v;
    int32_t n;
} settle_args;
void cu_recur_settle(cudaStream_t s, settle_args a);
/* keep_rows.cu: as device.keep_rows; from: as many as a tree has rows */
enum { KEEP_STORES = 64, KEEP_ROWS = 64 };
typedef struct keep_store {
    uint8_t *at;
    const dev_kv_page *page; /* or NULL */
    int32_t row_bytes, n_heads, n_slots;
} keep_store;
typedef struct keep_args {
    keep_store store[KEEP_STORES];
    int64_t first;
    int32_t n_stores, n;
    uint8_t from[KEEP_ROWS];
} keep_args;
void cu_keep_rows(cudaStream_t s, keep_args a);
/* pages.cu: pages of all stores, page from[i] to place to[i], for n of them */
enum { PAGE_COPIES = 64 };
typedef struct page_args {
    keep_store store[KEEP_STORES];
    int32_t from[PAGE_COPIES], to[PAGE_COPIES];
    int32_t n_stores, n;
} page_args;
void cu_pages(cudaStream_t s, page_args a);
/* A few words from the launch's own arguments. */
enum { PUT_WORDS = 512 };
typedef struct put_args {
    uint32_t *to;
    int32_t n;
    uint32_t word[PUT_WORDS];
} put_args;
void cu_put(cudaStream_t s, const put_args *a);
/* page_sums.cu: summaries of pages, as page_sums has them, of n pages from key PAGE_KEYS * first on
 * to rows from `row` on. */
typedef struct sums_args {
    dev_kv kv;
    dev_kv_base base;
    uint16_t *to;
    int32_t n_rows, parts; /* of `to` */
    int32_t first, row, n;
} sums_args;
void cu_sum_pages(cudaStream_t s, sums_args a);
/* page_watch of n rows from row0 on, and n_kv KV heads from head_kv0 on: PAGE_QUERIES queries at
 * most. room: PAGE_QUERIES floats for each page, and two more for each query. */
enum { PAGE_QUERIES = 64 };
typedef struct watch_args {
    dev_kv kv;
    dev_mat q;
    const uint16_t *sums;
    float *room, *score;
    const int32_t *n_pages; /* on the device: it changes between passes */
    int32_t n_rows, parts;  /* of sums; n_rows is the most pages */
    int32_t group, head_kv0, n_kv, row0, n;
    float scale;
} watch_args;
void cu_watch_pages(cudaStream_t s, watch_args a);
/* quantise.cu */
void cu_quantise(cudaStream_t s, dev_mat x, dev_quant q);
/* pack.cu */
void cu_pack(cudaStream_t s, packed w, int type, const void *file_bytes, size_t row_bytes);
void cu_unpack_bf16(cudaStream_t s, packed w, int32_t first_row, int32_t n_rows, uint16_t *to);
pack_sizes cu_pack_sizes(int kind);
/* matmul_float.cu */
/* prompt: by the order of sums of prompts */
void cu_matmul_float(cudaStream_t s, dev_mat y, dev_mat x, packed w, bool prompt);
void cu_expert_float(cudaStream_t s, dev_mat y, dev_mat x, int32_t x_heads, const int32_t *id,
                     int32_t k, packed w, const packed *up, int32_t up_row, int32_t n_out);
/* Products of int8 activations with weights of blocks: the part that all kernels share. */
typedef struct product_args {
    dev_mat y;
    dev_quant x;
    packed w, up;          /* up only with glu: y = gelu(w x) * (up x), or silu */
    int32_t up_row, n_out; /* the first row of up; outputs */
    bool glu;
    bool silu;   /* instead of gelu */
    dev_quant q; /* the copy of y to make as well (glu; n_out a multiple of 32) */
} product_args;
/* For matmul_one.cu: a row may come as floats instead of codes, and its result may be gated by a
 * vector: timed = gelu(y) * times. */
typedef struct one_product {
    product_args p;
    const float *floats, *times;
    float *timed;
} one_product;
/* For matmul_vec.cu and matmul_experts.cu: pair p is (row p / k, head p % k) of y, and takes matrix
 * expert[p]. x has a row per pair if x_per_pair, else a row per row of y. */
typedef struct expert_product {
    product_args p;
    const int32_t *expert;
    const float *share; /* moe_down: y[r] = sum_j share[r, j] (down x[r, j]) */
    int32_t k;
    bool x_per_pair;
    bool chosen; /* the preceding gated product had the same choice: readable before grid_wait */
    /* One row: the last pair is the shared expert, whose weights have the layout and shape of an
     * expert's. `shared_warps` of its down product: matmul_one.cu's order. 0: no such pair. */
    int32_t shared_warps;
    packed shared, shared_up;
} expert_product;
void cu_product_vec(cudaStream_t s, expert_product a); /* any number of rows, one at a time */
int cu_product_warps(const packed *w);                 /* of a tile, in a product without a gate */
/* 2 rows and more, LAUNCH_ROWS to a launch, no experts; one to ONE_JOBS products of the first job's
 * x, or one gated unit. */
enum { ONE_JOBS = 4 };
int cu_rows_init(void);
/* The cut of a product: tiles of a warp, warps of a block, parts of a tile abreast; x: activations
 * are staged for so many steps, or as a whole (ROWS_WHOLE); spread: the other parts follow in
 * turns, or have blocks of their own; piece: rows of a block, 8, 16 or 32. Benches may force fields
 * (0: free) and ask for the last cut; it is all 0 if a product since could not be cut so, and was
 * not launched. */
enum { ROWS_WHOLE = 5, ROWS_TOGETHER = 1, ROWS_SPREAD };
typedef struct rows_cut {
    int32_t tiles, warps, abreast, x, spread, piece;
} rows_cut;
void cu_rows_force(rows_cut c);
rows_cut cu_rows_chosen(void);
/* matmul_one.cu: one to ONE_JOBS products of one row; all have the first job's x and floats. */
enum {
    ONE_TICKETS = 8,
    ONE_STATIC_SHARED = 2304 /* and the system's share of a block */
};
/* The shared memory to request for a launch of n blocks that need `bytes` each. Blocks start where
 * the preceding kernel's blocks end first: three on one multiprocessor and none on another. So
 * small launches request extra shared memory, so that no multiprocessor takes more than its share
 * of blocks. Where kernels do not overlap, the GPU is empty at the start and this is not needed. */
enum { BLOCK_RESERVED = 1024 /* of shared memory, in every block, for the system */ };
static inline size_t spread_bytes(size_t bytes, int32_t n)
{
    int32_t share = (n + cu_gpu.n_sm - 1) / cu_gpu.n_sm;
    int32_t one_more = cu_gpu.shared_sm / (share + 1) - BLOCK_RESERVED;
    bool few = share <= 2; /* larger shares are limited by registers */
    return cu_gpu.overlap && few && bytes <= (size_t)one_more ? (size_t)one_more + 16 : bytes;
}

typedef struct launch_memory {
    int32_t *ticket; /* [ONE_TICKETS] zeros, and again after the launch */
    /* For parts of a tile in several blocks: their sums [ROWS_SUMS], and the number of blocks that
     * have left theirs, [ROWS_GROUPS] zeros before and after a launch. */
    float *sums;
    int32_t *arrived;
} launch_memory;
enum { ROWS_SUMS = 2 << 20, ROWS_GROUPS = 1024 };
void cu_product_rows(cudaStream_t s, const product_args *job, int n, launch_memory memory);
void cu_products(cudaStream_t s, const one_product *job, int n, launch_memory memory);
int cu_one_init(void);
/* matmul_experts.cu: experts of 2 to FEW_ROWS rows, gated or, with share, each pair's part of
 * moe_down's sum times its share: y [rows, k * n_out]. False, and nothing is launched, where a
 * block has no room for so many pairs (EXPERT_PAIRS at most) or experts, or for such long rows. */
enum { EXPERT_PAIRS = 1024 };
bool cu_product_experts(cudaStream_t s, expert_product a, launch_memory memory);
int cu_experts_init(void);
/* probe.cu: random numbers between -1 and 1; adds the number of floats whose bits differ. */
void cu_random_bf16(cudaStream_t s, uint16_t *to, size_t n, uint32_t seed);
void cu_count_different(cudaStream_t s, const float *a, const float *b, size_t n, int32_t *count);
/* matmul_mma.cu: many rows */
void cu_matmul_mma(cudaStream_t s, dev_mat y, dev_quant x, packed w);
int cu_mma_init(void);
/* Pairs (row, expert) sorted by expert, on the device: order [pairs], tiles [cu_expert_tiles] of
 * EXPERT_TILE_BYTES, n_tiles [1]. */
enum { EXPERT_TILE_BYTES = 16 };
typedef struct expert_lists {
    int32_t *order, *n_tiles;
    void *tiles;
} expert_lists;
int32_t cu_expert_tiles(int32_t n_pairs, int32_t n_expert);
void cu_expert_sort(cudaStream_t s, const int32_t *expert, int32_t n_pairs, int32_t n_expert,
                    expert_lists l);
void cu_expert_mma(cudaStream_t s, dev_mat y, dev_quant x, packed w, expert_lists l, int32_t k);
/* moe.cu */
typedef struct choice {        /* a route_rule on the device */
    const float *bias, *scale; /* or NULL */
    float factor;
    bool sigmoid;
} choice;
void cu_route(cudaStream_t s, int32_t *id, float *share, int32_t k, dev_mat logits, choice how);
/* route of x w', for up to ROUTER_EXPERTS experts and FEW_ROWS rows; w: floats. */
enum { ROUTER_EXPERTS = 256, ROUTER_MOST = 32 /* experts of a row */, ROUTER_TICKETS = 32 };
typedef struct router_args {
    dev_mat x, logits;
    packed w;
    choice how;
    int32_t *id;
    float *share;
    int32_t k;
    int32_t *ticket; /* [ROUTER_TICKETS] zeros, and again after the launch */
    /* One row: also share[k] = sigmoid(factor . x), factor a row of w's kind, or 1 without it. */
    bool shared;
    const uint8_t *factor;
} router_args;
void cu_router(cudaStream_t s, router_args a);
/* count[id[i]] += 1 */
void cu_count_experts(cudaStream_t s, const int32_t *id, int32_t n, uint32_t *count);
void cu_expert_join(cudaStream_t s, dev_mat y, const float *part, const float *share, int32_t k);
/* sift.cu: a superset of each row's k largest logits. maxima: SIFT_BLOCKS words per row, one per 64
 * logits; to: a result per row. */
enum { SIFT_MOST = 1024, SIFT_BLOCKS = 8192, SIFT_ROWS = 64 };
typedef struct sift_rows {
    const float *x[SIFT_ROWS];
    int32_t k[SIFT_ROWS], n;
} sift_rows;
typedef struct sift_logit {
    int32_t id;
    float logit;
} sift_logit;
typedef struct sift_result {
    int32_t n, bad; /* their number, which may exceed SIFT_MOST; has the row NaN or +infinity? */
    sift_logit at[SIFT_MOST];
} sift_result;
void cu_sift(cudaStream_t s, sift_rows rows, int32_t n, uint32_t *maxima, sift_result *to);
/* Attention. What every kernel is given; some get more, in a struct of their own. */
typedef struct attend_args {
    dev_mat o, q; /* [rows, heads * head_dim] */
    dev_kv kv;
    dev_step st;
    int32_t n_head;
    float scale;
} attend_args;
/* Few rows: n_rows of them from row0 on, their keys cut into chunks. A kernel leaves a partial
 * result for each (row, head, chunk); combine_kernel joins those of a row and head. */
typedef struct chunk_parts {
    float *at; /* [n_rows, heads, n_chunk, head_dim + 2] */
    int32_t row0, n_rows;
    int32_t chunk;   /* keys per chunk, a power of two */
    int32_t n_chunk; /* chunks of a row that `at` has room for */
    /* 0: chunks of `chunk` keys. Otherwise a row's chunks are so many turns long that it has at
     * most `most` of them, and one: split512.cu, split_hopper.cu */
    int32_t most, turn;
    int32_t shallow; /* rows of at most so many keys keep chunks of `chunk` keys, all the same */
} chunk_parts;
typedef struct chunk_args {
    attend_args a;
    chunk_parts parts;
} chunk_args;
/* attend.cu: any shape. cu_attend: all rows, whole; cu_attend_chunks: few rows, by chunks. */
void cu_attend(cudaStream_t s, attend_args a);
void cu_attend_chunks(cudaStream_t s, chunk_args x);
/* Gates of attention: y[r, h, i] = act(gate[r, h, i / share]) o[r, h, i]. */
typedef struct gate_args {
    dev_mat y, gate;          /* gate.at NULL: none */
    int32_t gate_head, share; /* floats from head to head of gate; head_dim, or 1 */
    int32_t act;              /* act_kind: softplus or sigmoid */
} gate_args;
/* Joins chunks. q: the copy of o, or, with gates, of y. back: the values were rotated, and the
 * result is to be rotated back. */
typedef struct join_args {
    chunk_args x;
    gate_args by;
    dev_quant q;
    bool back;
} join_args;
void cu_attend_combine(cudaStream_t s, join_args j, int n_sm);
int cu_attend_init(int shared_max);
/* How split.cu and split8.cu deal a tile's chunks to blocks. */
typedef struct tile_deal {
    int32_t tile_rows;                  /* rows of one sequence that share each read of a key */
    int32_t chunk_shift, group_inverse; /* 1 << shift == chunk; 65536 / heads per KV head, up */
    int32_t n_block;                    /* blocks that divide a tile's chunks among themselves */
    int32_t stages;                     /* tiles of keys on their way or in use, 1 to 3 */
} tile_deal;
/* split.cu: few rows on tensor cores. Heads of 64, 128, 256 or 512, at most *widest, in all formats
 * but f32. At most SPLIT_PAIRS query heads per KV head. */
typedef struct split_args {
    attend_args a;
    chunk_parts parts;
    tile_deal deal;
    int32_t line; /* bytes from row to row in shared memory; the launcher fills it in */
} split_args;
void cu_split(cudaStream_t s, split_args x);
/* What split.cu can do on a GPU: its largest heads, and stages of heads of 512. */
typedef struct split_limits {
    int32_t widest, stages_512;
} split_limits;
int cu_split_init(int largest, split_limits *l);
/* split8.cu: the same for heads of 256 and 512 in blocks or bf16. How much shared memory a block
 * takes; 0: not these heads. */
typedef struct split8_args {
    attend_args a;
    chunk_parts parts;
    tile_deal deal;
    int32_t spread; /* bytes of shared memory that a block is launched with */
} split8_args;
void cu_split8(cudaStream_t s, split8_args x);
int cu_split8_bytes(dev_kv kv, int n_pairs, int stages);
int cu_split8_init(int largest);
/* split512.cu: the same for heads of 512 in Q8_0, Q4_0 or TQ3_0, keys and values alike, or one
 * stream of the first two. Units of a ring where a block has so many bytes of shared memory; 0: not
 * these. */
enum { SPLIT512_PAIRS = 8, SPLIT512_TURN = 16 * SPLIT512_PAIRS }; /* of warps; their keys */
typedef struct split512_args {
    attend_args a;
    chunk_parts parts;
    int32_t n_block; /* blocks that take a row's chunks in turn */
    int32_t stages;  /* units of each pair's ring */
} split512_args;
void cu_split512(cudaStream_t s, split512_args x);
int cu_split512_stages(dev_kv kv, int largest);
int cu_split512_init(int largest);
/* split_hopper.cu: the same in f16 on GPUs of capability 9.0 alone: heads of 128, 256 and 512, or
 * one stream of heads of 512. */
enum { WGMMA_PAIRS = 64, WGMMA_TURN = 64 }; /* of a block; keys of a tile */
enum { SHALLOW_MEASURED = -1 };
typedef struct wgmma_args {
    attend_args a;
    chunk_parts parts;
    int32_t tile_rows; /* rows of a block */
    int32_t n_block;   /* blocks that take the chunks of these rows in turn */
} wgmma_args;
void cu_split_hopper(cudaStream_t s, wgmma_args x);
int cu_split_hopper_init(void);
/* flash.cu: many rows on tensor cores, the same heads and formats, at most *widest. */
void cu_flash(cudaStream_t s, attend_args a);
int cu_flash_init(int largest, int *widest);
/* Slices begin at multiples of SLICE_KEYS, the longest tile. */
/* What rows of one sequence leave out (sparse.h), in kernels of 9.0. */
enum {
    SPARSE_COUNTS = 163, /* 64-bit counters: tiles, kept tiles, the bins of a sparse_tally */
    SPARSE_TALLIES = 256 /* tallies on the device: of sequences times layers of a pass */
};
typedef struct dev_sparse {
    float skip;                /* sparse_rule.skip; 0: no tile is dropped */
    unsigned long long *tally; /* [SPARSE_COUNTS]; NULL: nothing is counted */
    /* Block selection: rows SELECT_ROWS i .. of a launch read the tiles of SELECT_ROWS keys whose
     * bits are set in kept[i][KV head][n_word]. skip is 0. NULL: they read all. */
    const uint32_t *kept;
    int32_t n_word; /* LIST_WORDS at most */
} dev_sparse;
/* select.cu: block selection of n_blocks neighbouring query blocks of one sequence. Block i has
 * rows SELECT_ROWS i .. of q, whose keys are those of tile block0 + i. Heads of 128, 256 and 512.
 */
enum {
    SELECT_ROWS = 128,  /* of a query block; keys of a tile */
    SELECT_BLOCKS = 16, /* query blocks of a launch, at most */
    LIST_WORDS = 2048   /* of the tiles of a sequence: 8M keys */
};
typedef struct select_args {
    dev_kv kv;
    dev_kv_base base; /* the sequence's store */
    dev_mat q;        /* as attention meets it */
    int32_t n_head, block0, n_blocks;
    int32_t n_tiles;            /* of a head in the arrays below, at most */
    uint16_t *pages;            /* bf16 [KV heads][2 n_tiles][head_dim]: of one rotated stream */
    uint16_t *means;            /* f16 [KV heads][n_tiles][head_dim]: means of tiles */
    float *scores;              /* [SELECT_BLOCKS][n_head][n_tiles][2] */
    uint32_t *kept;             /* [n_blocks][KV heads][n_word] */
    unsigned long long *tally;  /* [SPARSE_COUNTS], tiles are added; NULL: nothing is counted */
    int32_t n_word, sink, near; /* tiles of a list / 32; the first and the nearest ones are kept */
    float scale, alpha;
} select_args;
void cu_tile_means(cudaStream_t s, select_args a); /* of tiles 0 .. block0 + n_blocks - 1 */
void cu_select(cudaStream_t s, select_args a);     /* of SELECT_BLOCKS blocks at most */
int cu_select_init(void);
enum { SLICE_CARRY = 7, SLICE_KEYS = 128 };
/* Which keys a kernel of flash*_hopper.cu takes at a time. Between the slices of a row, o holds its
 * sum of values, not yet divided, and `carry` the rest. */
typedef struct attend_slice {
    const uint16_t *k, *v; /* f16, [KV heads][kv.n_slots][head_dim]: key `from` first; NULL: keys
                              and values lie in the store */
    int32_t values_room;   /* k without v: values are read in the store, and this is the number of
                              rows from head to head */
    int32_t from, until;   /* numbers of keys; from a multiple of SLICE_KEYS; until too, but in the
                              last */
    bool first, last;      /* of its rows */
    float *carry; /* [rows, heads][SLICE_CARRY]: largest score; sums of exponentials of the four
                     threads that share a row; what a certificate needs, and dropped tiles */
} attend_slice;
/* The same for f16 in two streams, heads of 128, 256 and 512, on GPUs of capability 9.0, and on
 * those alone. */
typedef struct hopper_args {
    attend_args a;
    attend_slice slice;
    dev_sparse sparse; /* skip above 0: of one sequence alone */
} hopper_args;
void cu_flash128_hopper(cudaStream_t s, hopper_args x);
void cu_flash256_hopper(cudaStream_t s, hopper_args x);
void cu_flash512_hopper(cudaStream_t s, hopper_args x);
int cu_flash128_hopper_init(void);
int cu_flash256_hopper_init(void);
int cu_flash512_hopper_init(void);
/* expand.cu: keys and values of indices [from, until) of one sequence as two streams of f16, as
 * attend_slice has them; heads of 128, 256 and 512. Rotated ones stay rotated, but of one stream.
 */
typedef struct expand_args {
    dev_kv kv;
    dev_step st;
    int32_t seq;
    int32_t start, from, until; /* start: the index that lies first; a multiple of SLICE_KEYS,
                                   <= from */
    int32_t room;               /* keys from one head to the next */
    uint16_t *k, *v; /* v NULL: one stream of f16, whose values are good where they are */
} expand_args;
void cu_expand(cudaStream_t s, expand_args a);
enum {
    SPLIT_PAIRS = 16,
    SLICE_BYTES = 256 << 20 /* scratch: f16 keys and values at a time, 32K keys of 31B's layers */
};

#ifdef __cplusplus
}
#endif

/* ---- The device, host side ---------------------------------------------------------------- */

#ifndef __cplusplus
enum { SHADOWS = 8, STEP_BUFFERS = 4, TICKETS = 4096 };

/* A rowset on the device. */
typedef struct step_rows {
    dev_rows rows; /* what all views share */
    row_keys keys[STORE_KINDS];
    const uint64_t *seen;
} step_rows;

/* A valid copy for products: neither it nor its original was overwritten. */
typedef struct shadow {
    const char *x, *x_end, *q, *q_end;
    dev_quant quant;
} shadow;

/* The pairs of a prompt's rows and experts, sorted: the products of an expert's input and of its
 * output read the same lists. id NULL: none, or one of them was overwritten. */
typedef struct sorted_pairs {
    const int32_t *id;
    int32_t n, n_expert;
    expert_lists lists;
} sorted_pairs;

/* fuse.c: ops that were called and are not launched yet. */
typedef struct waiting {
    residual_args residual;
    join_args join;
    bool has_residual, has_store, has_join;
    int32_t n_products, n_jobs;
    one_product product[ONE_JOBS];
    head_job job[HEAD_JOBS];
    dev_kv kv; /* where jobs store to */
    dev_step st;
} waiting;

/* The rows of a pass that a page_watch looks at, and where it adds to. n_pages is not part of it:
 * kernels read it from the device. */
typedef struct row_run {
    int32_t first, n;
} row_run;
typedef struct watched_rows {
    const void *sums, *score, *room;
    row_run all, out; /* of st->all, of st->out */
} watched_rows;

/* A pass that was recorded, or seen once. All that its kernels were given depends on these alone.
 */
typedef struct graph_key {
    const void *model, *kv, *scratch;
    int32_t rows, outs, n_seqs, kv_bucket[STORE_KINDS];
    bool tree;
    pass_taps taps;
    watched_rows watch;
} graph_key;
typedef struct graph_slot {
    graph_key key;
    cudaGraphExec_t exec; /* NULL: seen once */
    mat y;                /* its result */
    uint64_t used;        /* 0: the slot is free */
} graph_slot;
enum { GRAPHS = 64, GRAPH_ROWS = 256 /* a pass of more rows is not recorded */ };

typedef struct cuda_blas cuda_blas;
typedef struct cuda_pins cuda_pins;
typedef struct cuda_experts cuda_experts;

/* Where the experts of a weight are that has slots for some of them (experts.c). */
struct expert_home {
    const int64_t *where; /* as packed.where, of the pass under way */
    uint32_t *count;
    uint8_t *from,
        *host;           /* this part at the address that `where` counts from; of expert 0's copy */
    size_t expert_bytes; /* from one slot, and one copy, to the next */
    int32_t layer;       /* in the list of layers with experts */
};
typedef struct expert_home expert_home;

typedef struct cuda_device {
    device dev; /* first: a device * is a cuda_device * */
    cudaStream_t stream;
    int32_t gpu; /* its number */
    gpu_facts facts;
    bool broken; /* a CUDA call failed; said once more in every later pass */
    err broken_why;
    int32_t shared_max;
    int32_t flash_widest; /* head sizes for flash.cu */
    split_limits split;
    bool can_hopper, hopper; /* files *_hopper.cu run here; they are used */
    int32_t shallow;    /* answers' rows of at most so many keys go to split.cu instead; checks and
                           benches set it, otherwise it is SHALLOW_MEASURED */
    size_t slice_bytes; /* of keys and values that expand.cu makes at a time */
    _Atomic uint64_t n_bytes; /* allocated */
    /* The step block: one device buffer, and pinned buffers it is filled from in turn. */
    char *step_at, *step_host[STEP_BUFFERS];
    cudaEvent_t step_done[STEP_BUFFERS];
    size_t step_bytes;
    int32_t step_turn;
    step_rows rows_all, rows_out; /* as uploaded for the pass under way */
    const dev_kv_base *kv;
    dev_recur recur;
    const int32_t *out_row;
    /* Numbers of keys of all rows are below; powers of two. A pool keeps few keys of a long
     * context, whose rings count on. */
    int32_t kv_bucket[STORE_KINDS];
    /* Loading. */
    char *raw, *pinned[2];
    size_t raw_bytes;
    struct pool *loaders; /* NULL but while weights are loaded */
    cudaEvent_t pinned_done[2];
    shadow shadows[SHADOWS];
    int32_t next_shadow;
    waiting wait;
    sorted_pairs sorted;
    const int32_t *chosen; /* the choice of experts of the last gated product */
    launch_memory launch;  /* its ticket: the first of TICKETS, given out in turn */
    uint32_t next_ticket;
    int32_t *router_ticket; /* [ROUTER_TICKETS] */
    int32_t *recur_ticket;  /* [RECUR_TICKETS] */
    int32_t *watched_pages; /* [STEP_SEQS_MAX] n_pages of each page_watch of the pass */
    bool watch_shown;       /* it is on the device */
    cuda_blas *blas;        /* NULL: no cuBLASLt here */
    void *bounce;           /* pinned, for small downloads */
    cuda_pins *pins;        /* page-locked memory for snapshots */
    cuda_experts *experts;  /* NULL: all experts are on the device */
    uint64_t limit_bytes;   /* the most that n_bytes may be; 0: what the GPU has */
    uint32_t *maxima;       /* [SIFT_ROWS][SIFT_BLOCKS] */
    sift_result *sift;      /* [SIFT_ROWS] pinned: kernels write it, the host reads it */
    graph_slot graphs[GRAPHS];
    graph_slot *recording;
    uint64_t graph_clock;
    bool no_graphs; /* the runtime cannot record */
    /* Counters of what attention leaves out, of the pass under way: [SPARSE_TALLIES], the first
     * n_tallies in use. They are added to `tally` at the pass's end. */
    unsigned long long *tally_at, *tally_host; /* device; pinned; NULL: no pass has needed them */
    struct sparse_tally *tally[SPARSE_TALLIES];
    int32_t n_tallies;
    char name[320];
} cuda_device;

static inline cuda_device *cuda_of(const pass *p)
{
    return (cuda_device *)p->dev->self;
}

extern const device_ops cuda_ops; /* ops.c */

/* runtime.c: what every file asks of the CUDA runtime. */
/* Makes the device's GPU the calling thread's. Every entry point that any thread may call begins
 * with it, and so does cuda_settle, which comes before every launch of an op. */
cuda_device *cuda_select(const device *d);
/* Keeps a failure of the runtime, in the device and in the pass, if there is one. True if r is
 * OK. */
bool cuda_ok(cuda_device *c, pass *p, cudaError_t r, const char *doing);

/* weights.c */
packed cuda_view(const weight *w);       /* of w->packed */
int32_t cuda_pack_kind(const weight *w); /* the layout w gets, PACK_NONE if none */
size_t cuda_weight_bytes(const device *d, const weight *w);
status cuda_weight_load(device *d, weight *w, err *e);
void cuda_weight_free(device *d, weight *w);
void cuda_loading_free(cuda_device *c); /* frees the buffers of loading */

/* fuse.c. cuda_settle launches all waiting ops. */
void cuda_settle(cuda_device *c);
void cuda_forget_waiting(cuda_device *c);
void cuda_wait_residual(cuda_device *c, residual_args a);
bool cuda_wait_head(cuda_device *c, head_job j, dev_step st); /* false: the caller launches it */
void cuda_wait_product(cuda_device *c, one_product a);        /* of few rows */
void cuda_products(cuda_device *c, const one_product *job, int32_t n); /* now */
launch_memory cuda_launch_memory(cuda_device *c);                      /* with tickets of its own */
/* True if the op joined a waiting one. */
bool cuda_join_scale(cuda_device *c, dev_mat x, float k, const float *w);
bool cuda_join_copy(cuda_device *c, dev_mat x, dev_quant q);
bool cuda_join_norms(cuda_device *c, dev_mat x, const norm_job *job, int32_t n, float eps);
void cuda_wait_join(cuda_device *c, join_args j);
/* Gates of the attention that waits to be joined: launches both. q: room for the copy of y. */
bool cuda_join_gates(cuda_device *c, const gate_args *by, dev_mat o, dev_quant q);
bool cuda_join_rope(cuda_device *c, dev_mat x, int32_t heads, const rope *f);
bool cuda_join_store(cuda_device *c, dev_kv kv, dev_step st, dev_mat k, dev_mat v);
bool cuda_join_rotation(cuda_device *c, dev_mat to, dev_mat q);
bool cuda_join_act_mul(cuda_device *c, dev_mat y, dev_mat a, dev_mat b);

/* blas.c */
cuda_blas *cuda_blas_open(void); /* NULL if it is not here */
void cuda_blas_close(cuda_blas *b);
/* Which passes of prompts multiply by the library: none; long ones, with the bits that
 * matmul_mma.cu gives short ones; all. */
typedef enum blas_way { BLAS_NONE, BLAS_LONG, BLAS_ALL } blas_way;
/* Finds out the way of a shape, unless it is known. */
status cuda_blas_learn(cuda_device *c, int32_t n_in, int32_t n_out, err *e);
blas_way cuda_blas_way(const cuda_device *c, int32_t n_in, int32_t n_out);
/* Rows of a weight that are unpacked and multiplied at a time; 0: too long ones. */
int32_t cuda_blas_piece(int32_t n_in, int32_t n_out);
/* y = x w', all rows of w, a piece, as bf16; false: the library would not. */
bool cuda_blas_matmul(cuda_device *c, dev_mat y, const uint16_t *x, const uint16_t *w,
                      int32_t n_in);

/* pinned.c */
status cuda_pins_open(cuda_pins **k, int32_t gpu, err *e);
void cuda_pins_close(cuda_pins *k);
void *cuda_host_alloc(device *d, size_t n_bytes);
void cuda_host_free(device *d, void *at, size_t n_bytes);
void cuda_move(device *d, const block_move *m);
void cuda_moved(device *d);
void cuda_pins_wait(cuda_pins *k, const char *at); /* until the block with this address is locked */

/* kernels.c */
kernel_speed cuda_product_kernel(const device *d, const weight *w, char *text, size_t cap);
kernel_speed cuda_attend_kernel(const device *d, const kv_view *kv, char *text, size_t cap);

/* attend_ops.c: the ops of caches, and what they decide */
typedef enum attend_path {
    ATTEND_NONE,  /* a format or a rotation that is not there */
    ATTEND_PLAIN, /* attend.cu */
    ATTEND_TILES, /* flash.cu, split.cu */
    ATTEND_WGMMA, /* files *_hopper.cu; of answers, rows of more than `shallow` keys */
    ATTEND_SLICES /* prompts: the same, over what expand.cu makes of the store, a slice at a time */
} attend_path;
dev_kv cuda_kv_view(const kv_view *v, const float *k_weight); /* k_weight: of one stream */
attend_path cuda_attend_path(const cuda_device *c, const kv_view *kv, bool few_rows);
bool cuda_one_stream(const device *d, const kv_view *kv);

/* sparse.c: attention that leaves keys out. */
int32_t cuda_sparse_tile(const device *d, const kv_view *kv);
bool cuda_sparse_any(const pass *p, const kv_view *kv); /* does a sequence of the pass? */
bool cuda_sparse_allowed(pass *p, const kv_view *kv);   /* false: an error of the pass */
dev_sparse cuda_sparse_of(pass *p, const kv_view *kv, int32_t seq);
/* Scratch of block selection in a pass of so many rows. */
size_t cuda_select_bytes(const kv_view *kv, int32_t rows, int32_t n_head);
/* The lists of the query blocks of rows rs of one sequence, in their order, in scratch; NULL: none
 * selects. a: these rows on the device, with their queries. Rows that read everything are counted.
 */
const uint32_t *cuda_lists(pass *p, const kv_view *kv, const rowset *rs, const attend_args *a,
                           void *scratch);
/* The number of rows from r on that are query blocks which select, or (selects false) are not. */
int32_t cuda_block_run(const step *st, const rowset *rs, const kv_view *kv, int32_t r,
                       bool *selects);
int cuda_open_tallies(cuda_device *c); /* a CUDA error, or 0 */
void cuda_close_tallies(cuda_device *c);
/* Waits for the pass and adds what it has left out to its rules' tallies. */
void cuda_take_tallies(cuda_device *c, pass *p);
void cuda_kv_store(pass *p, const kv_view *kv, mat k, mat v);
void cuda_attend(pass *p, mat o, mat q, const kv_view *kv, float scale);

/* experts.c */
extern const struct expert_ops cuda_expert_ops;
/* Before a pass: what the copies of experts have come to, and which come next. */
void cuda_experts_begin(cuda_device *c, pass *p);
/* Before the first product of a layer's experts, and after the last. */
void cuda_experts_arrive(pass *p, const weight *gate);
void cuda_experts_leave(pass *p, const weight *down);

/* page_moves.c */
extern const struct page_move_ops cuda_page_moves;

/* page_ops.c */
void cuda_sum_pages(device *d, const kv_view *v, const kv_base *base, const page_sums *to,
                    int32_t first, int32_t row, int32_t n);
void cuda_watch_pages(pass *p, mat q, const kv_view *kv, float scale, const page_watch *w);
/* Before the pass's first launch that reads it, and outside of recordings. */
void cuda_show_watch(cuda_device *c, const pass *p);
/* The rows of the pass's only watch; false: a recording cannot have them. */
bool cuda_watched_rows(const pass *p, watched_rows *to);

/* recur_ops.c */
void cuda_conv(pass *p, mat y, mat x, const weight *w, const recur_view *rv);
void cuda_delta(pass *p, mat o, mat c, mat a, mat b, const delta_gate *g, const recur_view *rv);
bool cuda_delta_unit(pass *p, mat y, mat x, mat z, mat a, mat b, const delta_unit *u,
                     const recur_view *rv);
void cuda_recur_settle(device *d, const recur_view *v, const recur_base *base, int32_t n,
                       const recur_seq *s);
dev_recur_seq cuda_recur_seq(const recur_seq *s);

/* graph.c */
bool cuda_replay(device *d, pass *p, const void *model, const void *kv, mat *y);
void cuda_recorded(device *d, pass *p, mat y);
void cuda_graphs_drop(cuda_device *c);

/* shadow.c: scratch for a device's own, and copies of activations. */
void *cuda_temp(pass *p, size_t n_bytes);
void cuda_wrote(cuda_device *c, const void *at, size_t n_bytes);
dev_mat cuda_mat(mat m); /* flat */
/* Room for a copy of rows x cols: bf16, or int8 in tiles fit for that many rows. */
dev_quant cuda_quant_room(pass *p, int32_t rows, int32_t cols, bool bf, bool single);
void cuda_quant_keep(pass *p, const float *x, dev_quant q);
/* The copy of x, made now if there is none. single: rows in tiles of one. */
dev_quant cuda_quant(pass *p, dev_mat x, bool bf, bool single);
/* The int8 copy of one row if there is one, else nothing; room for one in a dry pass. */
dev_quant cuda_quant_of_row(pass *p, dev_mat x);
#endif
#endif
