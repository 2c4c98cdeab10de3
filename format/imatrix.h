/* imatrix.h - importance files of llama.cpp: how much each input of each matrix matters.
 *
 * For the matrix NAME they have the sum of squares of each input over some text. Two forms are
 * read, and the first is written. GGUF: tensors NAME.in_sum2 [inputs, matrices] and NAME.counts
 * [1, matrices], of how many rows the sums are. Older files (.dat): records of name, calls, and
 * means times calls. Only ratios within a matrix matter, so they are given with a mean of 1: of
 * each matrix, and from older files of all matrices of a tensor.
 */
#ifndef FORMAT_IMATRIX_H
#define FORMAT_IMATRIX_H

#include "base/err.h"

typedef struct imatrix imatrix;

/* Everything in the file is checked before this returns. */
status imatrix_open(imatrix **m, const char *path, err *e);
void imatrix_close(imatrix *m); /* NULL: nothing */
/* The importance of the inputs of all matrices of tensor `name`: [n_mat][n_in], above 0. *out is
 * NULL if the file has none. E_FORMAT: it has other numbers of them; older files say their product
 * alone. */
status imatrix_find(const imatrix *m, const char *name, uint64_t n_in, uint64_t n_mat,
                    const float **out, err *e);

/* Of tensor `name`: sums of squares [n_mat][n_in], and rows [n_mat]. */
typedef struct imatrix_sums {
    const char *name;
    uint64_t n_in, n_mat;
    const double *sum2;
    const int64_t *n;
} imatrix_sums;
/* Where the sums come from. */
typedef struct imatrix_source {
    const char *text;              /* a file name */
    uint32_t n_chunks, chunk_size; /* of its tokens */
} imatrix_source;
/* The file appears when it is complete. E_NUMERIC: a sum is not finite. */
status imatrix_write(const char *path, const imatrix_sums *x, uint64_t n,
                     const imatrix_source *from, err *e);

#endif
