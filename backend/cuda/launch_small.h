/* launch_small.h - launchers of norms, rotation, element by element, copies, the best logits. */
#ifndef BACKEND_CUDA_LAUNCH_SMALL_H
#define BACKEND_CUDA_LAUNCH_SMALL_H

#include "backend/cuda/launch.h"

#ifdef __cplusplus
extern "C" {
#endif

/* elementwise.cu */
typedef struct row_ids { /* a token of each row: token[r], or else at[r * stride] as a float */
    const int32_t *token;
    const float *at;
    int64_t stride;
    int32_t n_ids; /* with `at`: tokens 0 .. n_ids - 1 are in the table */
} row_ids;
void cu_embed(cudaStream_t s, dev_mat y, const void *table, int type, size_t row_bytes, row_ids ids,
              float scale);
/* y[r] = sum_k share[r, k] table[ids[r, k]] */
void cu_embed_mix(cudaStream_t s, dev_mat y, const void *table, int type, size_t row_bytes,
                  dev_mat ids, dev_mat share);
/* y[r, i] = act(a[r, i / share]) * b[r, i]; act: an act_kind */
void cu_act_mul(cudaStream_t s, dev_mat y, dev_mat a, dev_mat b, int act, int share, dev_quant q);
void cu_add(cudaStream_t s, dev_mat y, dev_mat a, dev_mat b);
/* rank_sum.cu: rank_sum of ops.h. part, y: even columns, rows that begin at multiples of 8 bytes.
 * y is not written unless takes. */
enum { SUM_RANKS = 4, SUM_ROWS = 64, SUMS_OF_PASS = 1 << 10 };
typedef struct rank_sum_args {
    dev_mat y, part[SUM_RANKS];
    dev_mat more; /* added to y; at NULL: nothing */
    void *inbox[SUM_RANKS];
    int32_t n_parts, n_ranks, rank, cols;
    uint32_t index;
    const uint32_t *pass; /* on the device */
    bool sends, takes;
} rank_sum_args;
void cu_rank_sum(cudaStream_t s, rank_sum_args a);
/* ordered_sum of ops.h, of n floats each. */
typedef struct ordered_sum_args {
    float *y[SUM_RANKS];
    const float *v[SUM_RANKS];
    int32_t n_y, n_v;
    size_t n;
} ordered_sum_args;
void cu_ordered_sum(cudaStream_t s, ordered_sum_args a);
void cu_bias(cudaStream_t s, dev_mat y, const float *bias); /* y[r, i] += bias[i] */
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
/* vision.cu */
void cu_clamp(cudaStream_t s, dev_mat y, dev_mat x, float low, float high);
void cu_pool(cudaStream_t s, dev_mat y, dev_mat x, int32_t n);
void cu_standardize(cudaStream_t s, dev_mat x, const float *shift, const float *scale);
void cu_layer_norm(cudaStream_t s, dev_mat y, dev_mat x, const float *w, const float *b, float eps);
void cu_act(cudaStream_t s, dev_mat x, int act); /* an act_kind without a second operand */
/* audio.cu */
void cu_unfold(cudaStream_t s, dev_mat y, dev_mat x, int32_t heads, int32_t first);
void cu_depthwise(cudaStream_t s, dev_mat y, dev_mat x, const float *taps, int32_t n_taps);
typedef struct near_args { /* as op_near: every mat but far has a row for each row, heads side by
                              side */
    dev_mat o, q, k, v, far;
    int32_t heads, n_near;
    const float *scale;
    float c, k_factor, cap;
} near_args;
void cu_near(cudaStream_t s, near_args a);
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
/* Up to so many rows kernels of norms run their instructions once before they begin (norm.cu). */
enum { REHEARSED_ROWS = 16 };
typedef struct residual_args {
    dev_mat x, y; /* x = x + rms_norm(y) w, then times cw[0] (cw NULL: 1). y at NULL: x stays */
    const float *w, *cw;
    float eps;
    dev_mat b; /* optional: first y = rms_norm(y) yw + rms_norm(b) bw; y and b are overwritten */
    /* More than REHEARSED_ROWS rows: b is the sum of these over k, in ascending order: [rows, k,
     * b.cols]. Or NULL. */
    const float *parts;
    int32_t k;
    const float *yw, *bw;
    norm_job h[NORM_JOBS]; /* norms of the new x; results overlap neither each other nor x */
    int32_t n_h;
    dev_quant q; /* without norms: the copy of the new x */
    bool plain;  /* x = x + y instead */
} residual_args;
void cu_residual(cudaStream_t s, residual_args a);
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
    /* By axes: lists of places for axis 0, 1 and 2, axis_step apart, and pairs of each
     * (rope.section). NULL: by positions. */
    const int32_t *axis;
    int32_t axis_step, section[3];
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
    int32_t
        part; /* pairs of a part of the head, whose first and second elements are side by side */
    int32_t pair_width,
        pair_step; /* from a pair to the next, and from its first element to its second */
    int32_t range; /* pairs that turn by one list of places: the first by pos[0] */
    const int32_t *pos[3];
    int32_t section[3]; /* as in rope; else pairs turn by ranges */
    const float *inv_freq;
    float factor, grow; /* as in rope */
    int32_t period;
} rope_args;
void cu_rope(cudaStream_t s, rope_args a);
/* kv_store.cu */
void cu_rotate(cudaStream_t s, dev_mat y, dev_mat x, bool back); /* groups of 128 columns */
void cu_kv_store(cudaStream_t s, dev_kv kv, dev_step st, dev_mat k, dev_mat v);
/* quantise.cu */
void cu_quantise(cudaStream_t s, dev_mat x, dev_quant q);
/* probe.cu: a kernel that does nothing, and one that reads n_bytes, a multiple of 64, and nothing
 * else. */
void cu_nothing(cudaStream_t s);
void cu_read(cudaStream_t s, const void *from, size_t n_bytes, int n_sm);
/* Random numbers between -1 and 1; adds the number of floats whose bits differ. */
void cu_random_bf16(cudaStream_t s, uint16_t *to, size_t n, uint32_t seed);
void cu_count_different(cudaStream_t s, const float *a, const float *b, size_t n, int32_t *count);
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

#ifdef __cplusplus
}
#endif

#endif
