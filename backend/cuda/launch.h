/* launch.h - what launchers of every kind are given: weights, rows and stores of a step, mats, the
 * GPU. */
#ifndef BACKEND_CUDA_LAUNCH_H
#define BACKEND_CUDA_LAUNCH_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Rows of answers take the kernels of few rows, and do not depend on their neighbours. Products
 * take LAUNCH_ROWS of them at a time, experts and routers FEW_ROWS. */
enum { FEW_ROWS = 64, LAUNCH_ROWS = 128, TILE_ROWS = 16, GROUP = 32, UNIT = 8 };
enum { PRODUCT_COLUMNS = 16 }; /* of weights of floats, that tensor cores take at a time */

/* ---- Weights ------------------------------------------------------------------------------ */

/* Layouts of weight.packed. FILE, F32, F16 and BF16: as in the file, row after row. The others:
 * tiles of 16 output rows (n_out padded), groups of 32 columns, and up to four planes. So 16 lanes,
 * a row each, read 16 x 16 neighbouring bytes in every format:
 *
 *   codes  [tile][group][16 rows][16 bytes]   byte j: element j low, element j + 16 high nibble;
 *          IQ4, FP4: word w of four, lowest nibbles first, of words w and w + 4 (below)
 *          [tile][group][2 halves][16 rows][16 bytes]   8-bit codes, elements 0..15 and 16..31
 *   high   [tile][unit][2 parities][16 rows][4 groups][4 or 8 bytes]   fifth bits: bit 8b + w for
 *          byte b of word w; fifth and sixth: bits 8b + 2w of two words, the second for words 4..7
 *   scale  [tile][unit][2 parities][16 rows][4 groups][scale bytes]
 *   codes by shares: [tile][unit][2 parities][16 rows][4 groups][4 bytes, of IQ3 and BITS2 8].
 *          IQ1, IQ2, IQ3: low bytes of indices. BITS1: digit b, a hexadecimal one, of half h has
 *          byte b of words h, 2 + h, 4 + h, 6 + h, a bit of each. BITS2: of words h and 2 + h two
 *          bits each; 4 bytes further of words 4 + h and 6 + h
 *   high   of IQ2 and IQ3: signs. IQ3: bit 16h + 4b + w for byte b of word 4h + w; IQ2: bit
 *          4j + k for value j of entry k
 *   super  IQ3, IQ2_XXS: f16 d, a word of eight scales, the even groups first; IQ3_S: and two words
 *          of ninth bits, of each parity: bit 8b + 4h + i for entry 4h + b of its group i
 *   scale  IQ2_XS and IQ2_S, for four groups: two scales each; bits 8k + 2i, 8k + 2i + 1, the upper
 *          ones of entry k of group i; super: f16 d
 *   scale  IQ1: of byte b the lower and the upper nibble have the upper three bits of entries b and
 *          b + 2, and whether the entry's shift is down; super: f16 d, then three bits for each of
 *          sixteen scales, those of the even groups first
 *   super  BITS2, BITS1: f16 d of each 64 columns, of each 128
 *   super  [tile][unit][16 rows][super bytes]   K formats; IQ4, FP4: an f32 factor
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
    PACK_G8,      /* any other block format: int8 codes, f32 scale and offset per 16 */
    PACK_IQ4,     /* nibbles that are numbers of levels: of IQ4_NL and IQ4_XS, */
    PACK_FP4,     /* of MXFP4 and NVFP4 */
    PACK_IQ3_XXS, /* codes by shares, from here on; entries of lattices: */
    PACK_IQ3_S,
    PACK_IQ2_XXS,
    PACK_IQ2_XS,
    PACK_IQ2_S,
    PACK_IQ1,   /* of IQ1_S and IQ1_M */
    PACK_BITS2, /* codes of two bits: of Q2_0, TQ1_0 and TQ2_0 */
    PACK_BITS1, /* of one: of Q1_0 */
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

/* Sizes in bytes per row and group (super: per row and unit). formats.cuh reads weights so. */
typedef struct pack_sizes {
    int32_t code, high, scale, super;
} pack_sizes;
#define PACK_SIZES(X)                                                                              \
    X(Q4_0, 16, 0, 2, 0)                                                                           \
    X(Q4_1, 16, 0, 4, 0)                                                                           \
    X(Q5_0, 16, 4, 2, 0)                                                                           \
    X(Q5_1, 16, 4, 4, 0)                                                                           \
    X(Q8_0, 32, 0, 2, 0)                                                                           \
    X(Q4_K, 16, 0, 0, 16)                                                                          \
    X(Q5_K, 16, 4, 0, 16)                                                                          \
    X(Q6_K, 16, 8, 2, 2)                                                                           \
    X(IQ4, 16, 0, 2, 4)                                                                            \
    X(FP4, 16, 0, 2, 4)                                                                            \
    X(G8, 32, 0, 16, 0)                                                                            \
    X(IQ3_XXS, 8, 4, 0, 8)                                                                         \
    X(IQ3_S, 8, 4, 0, 16)                                                                          \
    X(IQ2_XXS, 4, 4, 0, 8)                                                                         \
    X(IQ2_XS, 4, 4, 2, 2)                                                                          \
    X(IQ2_S, 4, 4, 2, 2)                                                                           \
    X(IQ1, 4, 0, 2, 8)                                                                             \
    X(BITS2, 8, 0, 0, 8)                                                                           \
    X(BITS1, 4, 0, 0, 4)
/* The layout whose kernels serve a weight. */
static inline int32_t pack_kernels(int32_t kind)
{
    return kind == PACK_IQ2_XS ? (int32_t)PACK_IQ2_S : kind;
}
/* Zeros: another kind. */
static inline pack_sizes pack_sizes_of(int kind)
{
    pack_sizes z = {0, 0, 0, 0};
#define PACK_SIZES_OF(KIND, CODE, HIGH, SCALE, SUPER)                                              \
    if (kind == PACK_##KIND)                                                                       \
        z.code = CODE, z.high = HIGH, z.scale = SCALE, z.super = SUPER;
    PACK_SIZES(PACK_SIZES_OF)
#undef PACK_SIZES_OF
    return z;
}

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
    bool wgmma;           /* files *_hopper.cu run here (9.0 alone) */
    bool slow_sums;       /* some cards of this capability add bf16 products to f32 at half rate */
} gpu_facts;
extern __thread gpu_facts cu_gpu;

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

/* ---- The step block ----------------------------------------------------------------------- */

/* Rows as one view's kernels see them. index and first are of the view's kind of store; newest is
 * the number of the newest key that a row may see: its own, its sequence's last, or, of prompts,
 * any between. */
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
    const float *sinks; /* [query heads]; NULL: none. Read where a row's sum is complete */
} dev_kv;

/* ---- Mats ---- */

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

#ifdef __cplusplus
}
#endif

#endif
