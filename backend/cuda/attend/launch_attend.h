/* launch_attend.h - launchers of attention, and of what prompts leave out of it. */
#ifndef BACKEND_CUDA_LAUNCH_ATTEND_H
#define BACKEND_CUDA_LAUNCH_ATTEND_H

#include "backend/cuda/launch.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Attention. What every kernel is given; some get more, in a struct of their own. */
typedef struct attend_args {
    dev_mat o, q; /* [rows, heads * head_dim] */
    dev_kv kv;
    dev_step st;
    int32_t n_head;
    float scale;
} attend_args;
/* Floats of a partial result beyond its head_dim sums: the largest score, the sum of exponentials
 * relative to it, and a gap. So the sums of most heads begin at a multiple of 32 bytes, the unit in
 * which a GPU writes. */
enum { PART_MORE = 8 };
/* Few rows: n_rows of them from row0 on, their keys cut into chunks. A kernel leaves a partial
 * result for each (row, head, chunk); combine_kernel joins those of a row and head. */
typedef struct chunk_parts {
    float *at; /* [n_rows, heads, n_chunk, head_dim + PART_MORE] */
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
typedef struct tile_schedule {
    int32_t tile_rows;                  /* rows of one sequence that share each read of a key */
    int32_t chunk_shift, group_inverse; /* 1 << shift == chunk; 65536 / heads per KV head, up */
    int32_t n_block;                    /* blocks that divide a tile's chunks among themselves */
    int32_t stages;                     /* tiles of keys on their way or in use, 1 to 3 */
} tile_schedule;
/* split.cu: few rows on tensor cores. Heads of 64, 128, 256 or 512, at most *widest, in all formats
 * but f32. At most SPLIT_PAIRS query heads per KV head. */
typedef struct split_args {
    attend_args a;
    chunk_parts parts;
    tile_schedule schedule;
    int32_t line; /* bytes from row to row in shared memory; the launcher fills it in */
} split_args;
void cu_split(cudaStream_t s, split_args x);
/* What split.cu can do on a GPU: its largest heads, and stages of blocks in heads of 256 and of
 * heads of 512. */
typedef struct split_limits {
    int32_t widest, stages_256, stages_512;
} split_limits;
split_limits cu_split_limits(int largest);
int cu_split_init(split_limits l);
/* split8.cu: the same for heads of 256 and 512 in blocks or bf16, and for heads of 512 in f16 where
 * split.cu does not fit. How much shared memory a block takes; 0: not these heads. */
typedef struct split8_args {
    attend_args a;
    chunk_parts parts;
    tile_schedule schedule;
    int32_t spread; /* bytes of shared memory that a block is launched with */
} split8_args;
void cu_split8(cudaStream_t s, split8_args x);
int cu_split8_bytes(dev_kv kv, int n_pairs, int stages);
int cu_split8_keys(dev_kv kv); /* of a tile */
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
/* Slices begin at multiples of SLICE_KEYS, the longest tile. */
/* What rows of one sequence leave out (sparse.h). */
enum {
    SPARSE_COUNTS = 163, /* 64-bit counters: tiles, kept tiles, the bins of a sparse_stats */
    SPARSE_STATS = 256   /* tallies on the device: of sequences times layers of a pass */
};
typedef struct dev_sparse {
    float skip;                /* sparse_rule.skip; 0: no tile is dropped */
    unsigned long long *stats; /* [SPARSE_COUNTS]; NULL: nothing is counted */
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
    LIST_WORDS = 2048,  /* of the tiles of a sequence: 8M keys */
    MEAN_TILES = 64     /* means that lie together */
};
typedef struct select_args {
    dev_kv kv;
    dev_kv_base base; /* the sequence's store */
    dev_mat q;        /* as attention meets it */
    int32_t n_head, block0, n_blocks;
    int32_t n_tiles;   /* of a head in the arrays below, at most */
    int32_t mean_room; /* n_tiles, up to a multiple of MEAN_TILES */
    uint16_t *pages;   /* bf16 [KV heads][2 n_tiles][head_dim]: of one rotated stream */
    /* Means of tiles, f16 [KV heads][mean_room / MEAN_TILES][head_dim / 64] blocks of 64 columns of
     * MEAN_TILES tiles, as piece_at lays them out (dev.cuh). */
    uint16_t *means;
    float *scores;              /* [SELECT_BLOCKS][n_head][n_tiles][2] */
    uint32_t *kept;             /* [n_blocks][KV heads][n_word] */
    unsigned long long *stats;  /* [SPARSE_COUNTS], tiles are added; NULL: nothing is counted */
    int32_t n_word, sink, near; /* tiles of a list / 32; the first and the nearest ones are kept */
    float scale, alpha;
} select_args;
void cu_tile_means(cudaStream_t s, select_args a); /* of tiles 0 .. block0 + n_blocks - 1 */
void cu_select(cudaStream_t s, select_args a);     /* of SELECT_BLOCKS blocks at most */
int cu_select_init(void);
/* select_hopper.cu: the scores of cu_select on GPUs of 9.0. */
void cu_select_hopper(cudaStream_t s, select_args a);
int cu_select_hopper_init(void);
enum { SLICE_CARRY = 7, SLICE_KEYS = 128 };
/* Which keys a kernel of many rows takes at a time. Between the slices of a row, o holds its
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
/* flash.cu: many rows on tensor cores, over two streams of f16, in heads of 64, 128, 256 and 512.
 */
typedef struct flash_args {
    attend_args a;
    attend_slice slice;
    dev_sparse sparse; /* skip above 0: of one sequence alone */
} flash_args;
void cu_flash(cudaStream_t s, flash_args x);
int cu_flash_init(void);
/* The same in heads of 128, 256 and 512, on GPUs of capability 9.0, and on those alone. */
void cu_flash128_hopper(cudaStream_t s, flash_args x);
void cu_flash256_hopper(cudaStream_t s, flash_args x);
void cu_flash512_hopper(cudaStream_t s, flash_args x);
/* flash512_spread_hopper.cu: the same as cu_flash512_hopper, bit for bit, by many blocks for each
 * tile of 64 pairs. Rows of one sequence; all keys in one slice, none dropped. */
enum { SPREAD_COLUMNS = 4, SPREAD_KEYS = 64 }; /* blocks for the columns of O; keys of a tile */
typedef struct spread_args {
    flash_args h;
    float *scores; /* [KV heads][tiles of pairs][n_tiles][n_warps] of SPREAD_WARP_BYTES */
    int32_t first_tile, n_tiles; /* of SPREAD_KEYS keys, that the rows see */
    int32_t part_tiles;          /* that one block multiplies by queries */
    int32_t n_warps;             /* that have pairs, of 16 each: 1 to 4 */
} spread_args;
enum { SPREAD_WARP_BYTES = 16 * SPREAD_KEYS * 4 };
void cu_flash512_spread(cudaStream_t s, spread_args x);
int cu_flash512_spread_init(void);
int cu_flash128_hopper_init(void);
int cu_flash256_hopper_init(void);
int cu_flash512_hopper_init(void);
/* expand.cu: keys and values of indices [from, until) of one sequence as two streams of f16, as
 * attend_slice has them; heads of 64, 128, 256 and 512. Rotated ones stay rotated, but of one
 * stream.
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

#endif
