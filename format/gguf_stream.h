/* gguf_stream.h - the tensor data of a new file, made on all threads and written in order.
 *
 * While the threads fill one batch of pieces, the batch before is written, so computing and writing
 * overlap. The file does not depend on the number of threads.
 */
#ifndef FORMAT_GGUF_STREAM_H
#define FORMAT_GGUF_STREAM_H

#include "base/pool.h"
#include "format/gguf.h"

/* One tensor as declared with gguf_put_tensor. */
typedef struct stream_tensor {
    uint64_t n_rows, row_bytes;
} stream_tensor;

/* Fills dst (64-aligned) with rows [first, first + n_rows) of a tensor, in its file format. Called
 * from any thread of the pool, for different pieces at once. */
typedef status (*stream_fill_fn)(void *user, uint64_t i_tensor, uint64_t first, uint64_t n_rows,
                                 void *dst, err *e);

typedef struct stream_source {
    const stream_tensor *list; /* [n], all tensors in the order declared */
    uint64_t n;
    stream_fill_fn fill;
    void *user;
    carat_progress_fn progress; /* or NULL */
    void *progress_user;
} stream_source;

/* Call after gguf_write_header, before gguf_commit. */
status gguf_stream(gguf_writer *w, const stream_source *from, pool *p, err *e);

#endif
