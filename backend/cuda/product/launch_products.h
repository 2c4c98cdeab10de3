/* launch_products.h - launchers of products with weights, and of experts. */
#ifndef BACKEND_CUDA_LAUNCH_PRODUCTS_H
#define BACKEND_CUDA_LAUNCH_PRODUCTS_H

#include "backend/cuda/launch.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Experts first to first + n - 1: matrix k of a weight is expert first + k. A pair with another
 * expert is left out: nothing of it is read or written. Of a whole weight 0 and n_mat. */
typedef struct expert_range {
    int32_t first, n;
} expert_range;
enum { UNIT_COLUMNS = UNIT * GROUP };

/* pack.cu */
/* factor: [w.n_mat] in the host's memory, of formats that become PACK_G8; or NULL. */
void cu_pack(cudaStream_t s, packed w, int type, const void *file_bytes, size_t row_bytes,
             const float *factor);
void cu_unpack_bf16(cudaStream_t s, packed w, int32_t first_row, int32_t n_rows, uint16_t *to);
/* matmul_float.cu */
/* prompt: by the order of sums of prompts */
void cu_matmul_float(cudaStream_t s, dev_mat y, dev_mat x, packed w, bool prompt);
void cu_expert_float(cudaStream_t s, dev_mat y, dev_mat x, int32_t x_heads, const int32_t *id,
                     int32_t k, packed w, expert_range own, const packed *up, int32_t up_row,
                     int32_t n_out);
/* Where x has more columns than w has inputs: w's group g is x's group first + g / tile * step + g
 * % tile. tile 0: first + g. */
typedef struct x_part {
    int32_t first, tile, step;
} x_part;
/* Products of int8 activations with weights of blocks: the part that all kernels share. */
typedef struct product_args {
    dev_mat y;
    dev_quant x;
    packed w, up;          /* up only with glu: y = gelu(w x) * (up x), or silu */
    int32_t up_row, n_out; /* the first row of up; outputs */
    x_part x_from;         /* of cu_products and cu_product_rows, without a gated unit */
    bool glu;
    bool silu;   /* instead of gelu */
    bool late;   /* the next kernel may begin only when all kernels before this one have ended */
    dev_quant q; /* the copy of y to make as well (glu; n_out a multiple of 32) */
    const float *bias; /* [n_out], added to y; of a gated unit: unit_rule. NULL: none */
} product_args;
/* What gated units of experts add to their sums, and how they join them. */
typedef struct unit_rule {
    const float *bias, *up_bias; /* of matrix k: from k step on; NULL: none */
    int32_t step;
    bool cut; /* ACT_SWIGLU_CUT instead of gelu and silu */
} unit_rule;
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
    expert_range own;
    const float *share; /* moe_down: y[r] = sum_j share[r, j] (down x[r, j]) */
    int32_t k;
    bool x_per_pair;
    bool chosen; /* expert and share were written before the preceding kernel could begin, so they
                    are readable before grid_wait */
    bool ready;  /* and so was x: of a gated product alone */
    /* One row: the last pair is the shared expert, whose weights have the layout and shape of an
     * expert's. `shared_warps` of its down product: matmul_one.cu's order. 0: no such pair. */
    int32_t shared_warps;
    packed shared, shared_up;
    unit_rule unit; /* of a gated product; all zero where there is a shared expert */
} expert_product;
void cu_product_vec(cudaStream_t s, expert_product a); /* any number of rows, one at a time */
int cu_vec_init(void);
/* rank_experts.cu: down products of one row, each of some columns or with some experts. */
enum { DOWN_SEGMENTS = 4, DOWN_WARPS = 16 /* at most so many experts of a row */ };
typedef struct down_segment {
    packed w; /* the same format and outputs of all */
    expert_range own;
    int32_t x_group; /* the first of x, whose rows may have more columns than w has inputs */
    float *y;        /* y[o] = sum_j share[j] (w x[j]) */
} down_segment;
typedef struct down_segments {
    down_segment of[DOWN_SEGMENTS];
    int32_t n, k, n_out;
    dev_quant x;
    const int32_t *expert;
    const float *share;
    bool chosen; /* as of expert_product */
    /* shared_warps > 0: a shared expert with row k of x, y[o] = share[k] (w x[k]). */
    packed shared;
    int32_t shared_warps;
    float *shared_y;
} down_segments;
void cu_down_segments(cudaStream_t s, down_segments a);
int cu_product_warps(const packed *w); /* of a tile, in a product without a gate */
/* 2 rows and more, LAUNCH_ROWS to a launch, no experts; one to ONE_JOBS products of the first job's
 * x, or one gated unit. Of several formats the last two run at the same time. */
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
/* ple.cu: y = proj (gelu(gate x) * b) of one row; gate has PLE_WIDTH outputs, proj as many inputs.
 * False: nothing is launched, because the GPU is older than 9.0 or the kernel is not made for these
 * formats. */
enum { PLE_WIDTH = 256, PLE_STATIC_SHARED = 6144 /* and the system's share of a block */ };
bool cu_ple(cudaStream_t s, dev_mat y, dev_quant x, packed gate, packed proj, const float *b);
int cu_ple_init(void);
/* matmul_experts.cu: experts of 2 to FEW_ROWS rows, gated or, with share, each pair's part of
 * moe_down's sum times its share: y [rows, k * n_out]. False, and nothing is launched, where a
 * block has no room for so many pairs (EXPERT_PAIRS at most) or experts, or for such long rows. */
enum { EXPERT_PAIRS = 1024, SOME_EXPERTS = 255 /* most of a weight that has not all */ };
bool cu_product_experts(cudaStream_t s, expert_product a, launch_memory memory);
int cu_experts_init(void);
/* matmul_grouped.cu: the same on the integer tensor cores, for gated products of GROUPED_ROWS rows
 * and more and down products of GROUPED_DOWN_ROWS and more. False also where two blocks do not fit
 * on a multiprocessor. cu_product_experts asks it first. */
enum { GROUPED_ROWS = 33, GROUPED_DOWN_ROWS = 32 };
bool cu_product_grouped(cudaStream_t s, expert_product a, launch_memory memory);
int cu_grouped_init(void);
/* matmul_short.cu: y[i] = x w[i] of up to 64 rows of a prompt, or of more in tiles of 64; in one
 * launch. w: n <= SHORT_JOBS of one kind, with rows of one length. False, and nothing is launched,
 * where weights are no blocks, or a block has too little shared memory. */
enum { SHORT_JOBS = 4, SHORT_ROWS = 64 };
bool cu_matmul_short(cudaStream_t s, const dev_mat *y, dev_quant x, const packed *w, int n);
/* matmul_mma.cu: many rows */
void cu_matmul_mma(cudaStream_t s, dev_mat y, dev_quant x, packed w);
int cu_mma_init(void);
/* matmul_tall_hopper.cu: any number of rows, quick from 65 on. shape: of its blocks, below
 * TALL_SHAPES; -1: the quickest. False, and nothing is launched, on GPUs other than 9.0, where
 * weights are no blocks, and where a shape's stages do not fit. */
enum { TALL_SHAPES = 7 };
bool cu_matmul_tall(cudaStream_t s, dev_mat y, dev_quant x, packed w, int32_t shape);
int cu_tall_init(void);
/* matmul_wide.cu: many rows; w: bf16 [y.cols, n_in], n_in a multiple of 32. tile: rows of a block,
 * 128, 192 or 256; 0: the quickest. */
void cu_matmul_wide(cudaStream_t s, dev_mat y, const uint16_t *x, const uint16_t *w, int32_t n_in,
                    int32_t tile);
int cu_wide_init(void);
/* matmul_wide8.cu: many rows by int8, with the bits of cu_product_rows. cu_unpack8 makes n_rows
 * outputs of w from first_row on, a multiple of 16, records for it; x: a copy in tiles of 8 rows;
 * y: as many columns as outputs were made. Layouts before PACK_G8. */
static inline bool wide8_knows(int32_t kind)
{
    return kind >= PACK_Q4_0 && kind <= PACK_Q6_K;
}
static inline size_t wide8_bytes(int32_t n_in, int32_t n_out)
{
    return (size_t)((n_out + 15) / 16) * (size_t)((n_in + 255) / 256) * (8 * 640);
}
void cu_unpack8(cudaStream_t s, packed w, int32_t first_row, int32_t n_rows, void *to);
void cu_matmul_wide8(cudaStream_t s, dev_mat y, dev_quant x, const packed *w, const void *records);
int cu_wide8_init(void);
/* Pairs (row, expert) sorted by expert, on the device: order [pairs], tiles [expert_tiles] of
 * EXPERT_TILE_BYTES, n_tiles [1]. */
enum { EXPERT_TILE_BYTES = 16 };
typedef struct expert_lists {
    int32_t *order, *n_tiles;
    void *tiles;
    int32_t n_expert; /* that rows choose from, of which a weight may have some: kernels and tiles
                         follow it, and so are those of any number of ranks */
} expert_lists;
/* Rows of a tile of experts: about as many as an expert has. */
static inline int32_t expert_tile_rows(int32_t n_pairs, int32_t n_expert)
{
    int32_t each = n_pairs / n_expert;
    return each <= 20 ? 32 : each <= 48 ? 64 : 128;
}
/* An upper bound of the tiles: full ones, and a last one per expert. */
static inline int32_t expert_tiles(int32_t n_pairs, int32_t n_expert)
{
    int32_t last = n_pairs < n_expert ? n_pairs : n_expert;
    return n_pairs / expert_tile_rows(n_pairs, n_expert) + last;
}
void cu_expert_sort(cudaStream_t s, const int32_t *expert, int32_t n_pairs, expert_range own,
                    expert_lists l);
void cu_expert_mma(cudaStream_t s, dev_mat y, dev_quant x, packed w, expert_lists l, int32_t k);
/* moe.cu */
typedef struct choice {        /* a route_rule on the device */
    const float *bias, *scale; /* or NULL */
    float factor;
    bool sigmoid;
} choice;
void cu_route(cudaStream_t s, int32_t *id, float *share, int32_t k, dev_mat logits, choice how);
/* cu_router (launch_offload.h): route of x w', for up to ROUTER_EXPERTS experts and FEW_ROWS rows;
 * w: floats. */
enum { ROUTER_EXPERTS = 256, ROUTER_MOST = 32 /* experts of a row */, ROUTER_TICKETS = 16 };
typedef struct router_args {
    dev_mat x, logits;
    packed w;
    const float *bias; /* of the logits; or NULL */
    choice how;
    int32_t *id;
    float *share;
    int32_t k;
    int32_t *ticket; /* [ROUTER_TICKETS] zeros, and again after the launch */
    bool beside;     /* x was written before the preceding kernel could begin */
    /* One row: also share[k] = sigmoid(factor . x), factor a row of w's kind, or 1 without it. */
    bool shared;
    const uint8_t *factor;
} router_args;
/* count[id[i]] += 1 */
void cu_count_experts(cudaStream_t s, const int32_t *id, int32_t n, uint32_t *count);
/* The biases of a row's experts: y[p, i] += bias[expert[p], i] for every pair p, and y[r, i] +=
 * sum_j share[r, j] bias[expert[r, j], i], in ascending j. */
void cu_pair_bias(cudaStream_t s, dev_mat y, const int32_t *expert, expert_range own,
                  const float *bias);
void cu_expert_bias(cudaStream_t s, dev_mat y, const int32_t *expert, expert_range own,
                    const float *share, int32_t k, const float *bias);
/* y[r] = sum_j share[r, j] part[r, j], in ascending j. share NULL: 1. expert NULL: all pairs have a
 * part. */
void cu_expert_join(cudaStream_t s, dev_mat y, const float *part, const float *share, int32_t k,
                    const int32_t *expert, expert_range own);

#ifdef __cplusplus
}
#endif

#endif
