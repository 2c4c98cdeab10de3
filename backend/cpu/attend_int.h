/* attend_int.h - what the two files of attention share: attend.c cuts the op into tiles and blocks
 * of keys, attend_block.c computes one block.
 */
#ifndef BACKEND_CPU_ATTEND_INT_H
#define BACKEND_CPU_ATTEND_INT_H

#include "backend/cpu/cpu_int.h"
#include "backend/cpu/sparse_int.h"
#include "backend/key_walk.h"

enum {
    KEY_BLOCK = ROPE_TURNS,
    MANY_QUERIES = 16 /* from here on keys are transposed, values unpacked to floats */
};

typedef struct attention {
    pass *p;
    const cpu_kernels *k;
    mat o, q;
    const kv_view *kv;
    float scale;
    int32_t group; /* query heads per kv head */
    int32_t tile_rows;
    int32_t n_tiles;
    /* thread-local, by thread number */
    float *queries; /* [tile_rows * group, head_dim], scaled */
    float *scores;  /* [tile_rows * group, KEY_BLOCK] */
    float *values;  /* [tile_rows * group, head_dim]: the partial sums of one block */
    float *state;   /* [4, tile_rows * group]: largest score and sum, of all and of one block */
    float *piece;   /* [piece_rows, head_dim] */
    float *across;  /* [across.keys, head_dim]: transposed keys; NULL: no tile has many queries */
    float *base;    /* [2, n_turning]: cosines and sines of a block's first position, negative */
    float *row;     /* [head_dim]: an unpacked value, one stream */
    int32_t piece_keys; /* read at a time */
    int32_t piece_rows;
    int32_t n_turning; /* pairs that turn; one stream */
    bool on_blocks;    /* one stream: still dims can be scored as they are stored */
    mat turned;        /* the rotated queries; or q itself */
    /* split decode: partial results [n_tiles * n_head_kv, wave_blocks, ...] */
    float *part_values, *part_state;
    float *run_state;           /* [n_tiles * n_head_kv, 2, tile_rows * group]: merged so far */
    int64_t *tile_lo, *tile_hi; /* [n_tiles]: all keys that rows of the tile see */
    int32_t wave_blocks, wave;  /* the wave's first block is wave * wave_blocks from the tile's */
    int32_t n_waves, run_blocks;
    /* Rows that drop blocks (sparse.h). NULL: no row does. */
    sparse_account *account; /* [rows, heads] */
    cpu_selection select;
    sparse_walk *walk;  /* thread-local: [tile_rows * group]; of split decode, without a
                           thread: [n_tiles * n_head_kv, tile_rows * group] */
    float *part_scores; /* split decode: [n_tiles * n_head_kv, wave_blocks, tile_rows * group,
                           KEY_BLOCK] */
} attention;

/* Rows r0 .. r0 + n: consecutive rows of one sequence. */
typedef struct row_tile {
    int32_t r0, n;
} row_tile;

/* One thread's work: a tile and KV head, and its share of the temporaries. */
typedef struct block_work {
    row_tile t;
    int32_t head;
    int32_t n_q; /* queries of the tile; those of `scores` and `values` */
    float *queries, *scores, *values, *top, *sum;
    float *piece, *across, *base, *row;
    const char *next;  /* prefetched after the keys: the values of the block */
    bool goes_on;      /* the task has another block, */
    const char *after; /* whose keys are prefetched then; or NULL */
    int64_t b0;        /* the block's first key */
    int64_t turned_by; /* one stream: the position that queries are turned back by; -1: none */
} block_work;

/* The keys of block [b0, b0 + KEY_BLOCK) that some row of the tile sees: [*lo, *hi). */
static inline bool block_span(int64_t tile_lo, int64_t tile_hi, int64_t b0, int64_t *lo,
                              int64_t *hi)
{
    *lo = tile_lo > b0 ? tile_lo : b0;
    *hi = tile_hi < b0 + KEY_BLOCK ? tile_hi : b0 + KEY_BLOCK;
    return *lo < *hi;
}

/* The tile's queries, scaled, as products take them. */
void attend_load_queries(const attention *a, row_tile t, int32_t head, float *queries);
/* The number from which on rows of the tile have different keys, within the block's [lo, hi). */
int64_t attend_shared_end(const attention *a, const block_work *w, int64_t lo, int64_t hi);
/* Scores of keys [lo, hi) of the block at b0 for every query of the tile; -INFINITY where a row
 * does not see the key. */
void attend_score_block(const attention *a, block_work *w, int64_t lo, int64_t hi, int64_t b0);
/* Sums of the block's values, times what the scores have become. */
void attend_sum_block(const attention *a, block_work *w, int64_t lo, int64_t hi);

#endif
