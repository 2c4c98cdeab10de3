/* attend_cuda.h - what the parts of bench_attend_cuda share: the shapes, the formats, and layers of
 * attention that are opened, filled and timed.
 *
 * A mistake ends the program with a sentence. One thread. A bench owns the device, its scratch and
 * the open layers; bench_open and bench_open_prompt fill `l`, `c` and `b`, bench_close empties
 * them.
 */
#ifndef BENCH_ATTEND_CUDA_H
#define BENCH_ATTEND_CUDA_H

#include "backend/cuda/ops_int.h"
#include "kv/kv.h"

enum { REPS = 9, LAYERS_MAX = 24, DEPTHS = 3, FORMATS = 15, SHAPES = 14, MANY_ROWS = 2048 };

typedef struct bench_shape {
    const char *name;
    int32_t n_head, n_head_kv, dim, window; /* window in tokens; 0: none */
    bool k_is_v;
} bench_shape;
typedef struct bench_format {
    const char *name, *type, *single; /* the words of --kv; "on": keys and values in one stream */
} bench_format;

extern const bench_shape bench_shapes[SHAPES];
extern const bench_format bench_formats[FORMATS];
extern const int32_t bench_depths[DEPTHS]; /* tokens */

typedef struct bench {
    device *d;
    rope turn; /* the rotation of keys made from values: a quarter of 512 turns */
    weight norm;
    void *scratch;
    size_t scratch_bytes;
    kv_layout l;
    kv_cache c;
    kv_batch b;
    const void *key; /* of recordings: a pass with other tiles is another */
} bench;

/* A prompt's chunk: its rows, and the tokens before them. */
typedef struct chunk {
    int32_t depth, rows;
} chunk;

void bench_check(status st, const err *e);         /* ends the program unless st is good */
void bench_fill(device *d, void *to, size_t n_bytes, kv_format f, int32_t dim);
void bench_open_maker(bench *b); /* what makes keys of values, where they share a stream */
void bench_close_maker(bench *b);

/* Opens stores of several layers and a pass over them; false if the device does not read the
 * format. *bytes: what one layer reads. */
bool bench_open(bench *b, int shape, int32_t depth, int format, int32_t rows, double *bytes);
/* Opens a layer and a prompt's pass of its last rows. */
void bench_open_prompt(bench *b, int shape, chunk k, const kv_words *words);
void bench_close(bench *b);

mat bench_layers(bench *b, int32_t n_head, int32_t rows); /* enqueues a pass over all layers */
double bench_time(bench *b, int shape, int32_t rows);     /* microseconds of one layer */
/* Milliseconds of one layer; copies its first and last row to `rows`, unless NULL. */
double bench_once(bench *b, int shape, int32_t n_rows, float *rows);

/* ---- attend_cuda_prompt.c: rows 1 .. MANY_ROWS of shapes whose names hold `only` ---- */

void bench_many(bench *b, const char *only, const char *type, int32_t rows);
void bench_left_out(bench *b, const char *only, const char *type, int32_t rows);
/* Rows of answers, 64 at most; format: its name. */
void bench_left_out_of_answers(bench *b, const char *only, const char *format, int32_t rows);

/* ---- attend_cuda_pages.c ---- */

void bench_pages(bench *b, const char *only, const char *format, int32_t rows);
void bench_moves(bench *b, const char *only, const char *format);
void bench_scores(bench *b, const char *only, const char *format);

#endif
