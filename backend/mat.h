/* mat.h - the two kinds of matrix a pass sees: activations (mat) and weights (weight).
 *
 * A mat is a value: a pointer into the pass's scratch and a shape. Row-major; a row may be seen as
 * `heads` heads of `cols` values. f32 unless `type` says otherwise.
 */
#ifndef BACKEND_MAT_H
#define BACKEND_MAT_H

#include "num/num.h"

/* Copies of an activation in a device's own layouts, which its ops read in place of the floats. A
 * copy lies in scratch and is gone when that is released. The op that makes the activation makes
 * its copy; else the first product that reads the activation does.
 *
 * A mat is a value, so views take the copies along. `of`, rows and cols say which floats they are
 * of: a view of other floats has none of them. A write to the floats would make a copy stale. So
 * ops in ops.h refuse to write to a mat that has one (mat_copied). No op sees what is written
 * through another mat of the same memory: who changes floats in place goes on with mat_bare. */
typedef enum copy_form {
    COPY_INT8, /* for products */
    COPY_BF16,
    COPY_ROTATED, /* of queries, in groups as the keys of a store are (kv_view.k_rot) */
    COPY_FORMS
} copy_form;
typedef enum copy_state {
    COPY_NONE,
    COPY_ROOM,  /* memory for it */
    COPY_LINE,  /* it lies as the floats do: rows of any length that divides it */
    COPY_TILES, /* of several rows of `cols` */
} copy_state;
typedef struct mat_copies {
    const float *of;
    int32_t rows, cols;
    void *at[COPY_FORMS]; /* NULL in a dry pass */
    uint8_t state[COPY_FORMS];
} mat_copies;

typedef struct mat {
    float *at; /* device memory; NULL in a dry pass */
    int32_t rows;
    int32_t heads;  /* 1 for a plain matrix */
    int32_t cols;   /* per head */
    int64_t stride; /* elements from one row to the next; >= heads * cols */
    mat_copies copies;
} mat;

static inline mat mat_at(float *at, int32_t rows, int32_t heads, int32_t cols, int64_t stride)
{
    return (mat){.at = at, .rows = rows, .heads = heads, .cols = cols, .stride = stride};
}
/* The same memory, each row cut into heads of head_dim. */
static inline mat mat_heads(mat m, int32_t head_dim)
{
    int32_t width = m.heads * m.cols;
    m.heads = head_dim > 0 ? width / head_dim : 0;
    m.cols = head_dim;
    return m;
}
/* The same memory, heads joined. */
static inline mat mat_flat(mat m)
{
    m.cols *= m.heads;
    m.heads = 1;
    return m;
}
/* Head h of every row, as a matrix of its own (per-layer embeddings: one head per layer). */
static inline mat mat_head(mat m, int32_t h)
{
    m.at = m.at ? m.at + (size_t)h * (size_t)m.cols : NULL;
    m.heads = 1;
    return m;
}
/* n columns of every row from `first` on, as a matrix of its own. */
static inline mat mat_columns(mat m, int32_t first, int32_t n)
{
    m.at = m.at ? m.at + first : NULL;
    m.heads = 1;
    m.cols = n;
    return m;
}
/* n rows from `first` on. */
static inline mat mat_rows(mat m, int32_t first, int32_t n)
{
    m.at = m.at ? m.at + (size_t)first * (size_t)m.stride : NULL;
    m.rows = n;
    return m;
}
/* Every head as a row of its own. Rows must be side by side (stride == heads * cols). */
static inline mat mat_head_rows(mat m)
{
    m.rows *= m.heads;
    m.heads = 1;
    m.stride = m.cols;
    return m;
}
/* The reverse: n rows side by side as the heads of one. */
static inline mat mat_row_heads(mat m, int32_t n)
{
    m.rows /= n;
    m.heads = n;
    m.stride = (int64_t)n * m.cols;
    return m;
}
static inline int32_t mat_width(mat m)
{
    return m.heads * m.cols;
}
static inline bool mat_copied(mat m) /* or with room for a copy */
{
    return m.copies.state[COPY_INT8] || m.copies.state[COPY_BF16] || m.copies.state[COPY_ROTATED];
}
static inline mat mat_bare(mat m) /* without copies, so that ops may write to it */
{
    m.copies = (mat_copies){.of = NULL};
    return m;
}
static inline float *mat_row(mat m, int32_t r)
{
    return m.at + (size_t)r * (size_t)m.stride;
}

/* n_mat stacked matrices (experts; else 1) of n_out rows of n_in values: y[o] = sum_i W[o][i] x[i].
 * A vector (norm weight) has n_out 1. `data` has the file's layout. `packed`, where the device made
 * a copy, has the device's own layout, and products read it. The model owns both through its
 * device. */
typedef struct weight {
    const char *name; /* of the tensor; owned by the model */
    num_type type;
    int32_t n_in, n_out, n_mat;
    /* Of experts of which a rank has some, which follow each other: the number of its first, and
     * how many there are. 0, 0: it has all. Ops leave out pairs of a row with another expert: no
     * sum over a row's experts has them. */
    int32_t first_mat, n_mat_all;
    const void *data;
    size_t row_bytes, mat_bytes, n_bytes;
    const float *factor; /* [n_mat]: of each matrix as a whole, in products; NULL: 1. NVFP4 alone */
    /* [n_mat * n_out] f32, added to every product of a row, after the factor; NULL: none */
    const struct weight *bias;
    const struct lora_pair *lora; /* what adapters add to its products: lora.h; NULL: nothing */
    /* Of a tensor split: the parts that this rank has, by columns, side by side; of experts' gate
     * and up in one: the rows of gate, and those of up. They are ordinary weights and are loaded;
     * this one is not. NULL: it is whole (ranks.h). */
    const struct weight *segment;
    int32_t n_segments;
    int32_t n_tiles; /* > 1: its inputs are equal tiles, and a segment has a part of each */
    bool sum_waits;  /* the pass may add its parts over ranks together with those of the next such
                        product, because no op reads its result before then */
    /* Of a tensor split: the pieces of the file that `data` becomes a copy of while it is loaded.
     * NULL: it is one piece of the file. */
    struct weight_pieces *pieces;
    bool first_rank; /* of a tensor split: rank 0 alone has it, and gives what it computes */
    /* Of a tensor split: outputs of the matrix of which these are some, or n_out. A device's
     * choices follow it, so that bits are those of any number of ranks. 0: the model is not split
     * so. */
    int32_t n_out_all;
    bool gather; /* rows are gathered, never multiplied: no device repacks it */
    int8_t side; /* which of a pass's devices has it: pass.h */
    void *packed;
    size_t packed_bytes;
    int32_t packed_kind; /* device's own numbering */
    /* Of experts of which the device holds some (experts.h): the device's own. NULL: it has all. */
    const struct expert_home *home;
    bool in_slots; /* planned so: its bytes on the device are counted with the slots */
} weight;

/* Rows of matrix k of w, in the file's layout. */
static inline const void *weight_row(const weight *w, int32_t k, int64_t row)
{
    return (const char *)w->data + (size_t)k * w->mat_bytes + (size_t)row * w->row_bytes;
}

/* Which of w's matrices expert `id` is; -1: w does not have it. */
static inline int32_t weight_expert(const weight *w, int32_t id)
{
    const int32_t k = id - w->first_mat;
    return k >= 0 && k < w->n_mat ? k : -1;
}

static inline float weight_factor(const weight *w, int32_t k)
{
    return w->factor ? w->factor[k] : 1;
}

/* The biases of matrix k, [n_out], in host memory; NULL: none. */
static inline const float *weight_bias(const weight *w, int32_t k)
{
    return w->bias ? (const float *)w->bias->data + (size_t)k * (size_t)w->n_out : NULL;
}

#endif
