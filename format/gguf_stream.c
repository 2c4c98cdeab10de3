/* gguf_stream.c - tensor data made on all threads and written in order.
 *
 * Two batches alternate: while the pool fills the pieces of one, the other is written. A piece is
 * some rows of one tensor, cut by size alone, so the file is the same for any number of threads.
 * The first failure of any thread is kept and ends the work; the caller discards the file.
 */
#include "format/gguf_stream.h"
#include "base/mem.h"

#include <pthread.h>

enum {
    PIECE_BYTES =
        512 << 10,    /* fits a second-level cache, so a fill that makes two passes is cheap */
    PIECES_MAX = 32,  /* 16 MB a batch: large enough for the disk, small enough for memory */
    PIECE_ALIGN = 64, /* fills write floats and vectors; rows of blocks end anywhere */
};

typedef struct {
    uint64_t i_tensor, first, n_rows;
    size_t at, n_bytes; /* in the batch's bytes */
} piece;

typedef struct {
    unsigned char *bytes;
    size_t cap;
    uint64_t n_data; /* of all pieces, without the gaps between them */
    piece piece[PIECES_MAX];
    int32_t n;
} batch;

typedef struct {
    gguf_writer *w;
    const stream_source *from;
    batch buf[2];
    batch *filling, *writing;
    pthread_mutex_t lock; /* of st and first */
    status st;
    err first;
} stream;

static void stream_fail(stream *s, status st, const err *e)
{
    pthread_mutex_lock(&s->lock);
    if (!s->st) {
        s->st = st;
        s->first = *e;
    }
    pthread_mutex_unlock(&s->lock);
}

/* Chunk 0 writes the batch before; the others fill one piece each. */
static void run_chunk(void *arg, int32_t chunk, int32_t thread)
{
    stream *s = arg;
    err e = {0};
    status st = OK;
    (void)thread;
    if (chunk == 0) {
        const batch *b = s->writing;
        for (int32_t i = 0; i < b->n && !st; i++)
            st = gguf_write_data(s->w, b->bytes + b->piece[i].at, b->piece[i].n_bytes, &e);
    } else {
        const piece *p = &s->filling->piece[chunk - 1];
        st = s->from->fill(s->from->user, p->i_tensor, p->first, p->n_rows,
                           s->filling->bytes + p->at, &e);
    }
    if (st)
        stream_fail(s, st, &e);
}

/* Cuts the next pieces, from row *row of tensor *i on, and advances both. A row is never cut. */
static status cut_batch(stream *s, uint64_t *i, uint64_t *row, err *e)
{
    batch *b = s->filling;
    size_t end = 0;
    b->n = 0;
    b->n_data = 0;
    for (; *i < s->from->n && b->n < PIECES_MAX; b->n++) {
        const stream_tensor *t = &s->from->list[*i];
        uint64_t rows = t->row_bytes >= PIECE_BYTES ? 1 : PIECE_BYTES / t->row_bytes;
        if (rows > t->n_rows - *row)
            rows = t->n_rows - *row;
        uint64_t bytes = rows * t->row_bytes; /* of a tensor whose size was checked when declared */
        if (b->n && end + bytes > b->cap)
            break;
        if (bytes > b->cap) { /* one row larger than a batch */
            mem_pages_free(b->bytes, b->cap);
            b->cap = 0;
            if (!(b->bytes = mem_pages((size_t)bytes)))
                return err_memory(e, "a row of a tensor", (size_t)bytes);
            b->cap = (size_t)bytes;
        }
        b->piece[b->n] = (piece){*i, *row, rows, end, (size_t)bytes};
        b->n_data += bytes;
        end = (end + (size_t)bytes + PIECE_ALIGN - 1) / PIECE_ALIGN * PIECE_ALIGN;
        if ((*row += rows) == t->n_rows) {
            *row = 0;
            ++*i;
        }
    }
    return OK;
}

status gguf_stream(gguf_writer *w, const stream_source *from, pool *p, err *e)
{
    stream *s = mem_calloc(1, sizeof *s);
    uint64_t i = 0, row = 0, done = 0, total = 0;
    status st = OK;
    if (!s)
        return err_memory(e, "writing tensors", sizeof *s);
    s->w = w;
    s->from = from;
    pthread_mutex_init(&s->lock, NULL);
    for (int k = 0; k < 2; k++) {
        s->buf[k].cap = (size_t)PIECE_BYTES * PIECES_MAX;
        if (!(s->buf[k].bytes = mem_pages(s->buf[k].cap))) {
            st = err_memory(e, "writing tensors", s->buf[k].cap);
            goto out;
        }
    }
    for (uint64_t k = 0; k < from->n; k++)
        total += from->list[k].n_rows * from->list[k].row_bytes;
    s->filling = &s->buf[0];
    s->writing = &s->buf[1];
    do {
        if ((st = cut_batch(s, &i, &row, e)))
            goto out;
        pool_run(p, s->filling->n + 1, run_chunk, s);
        if (s->st) {
            st = err_set(e, s->st, "%s", s->first.text);
            goto out;
        }
        done += s->writing->n_data;
        batch *t = s->filling;
        s->filling = s->writing;
        s->writing = t;
        if (from->progress && !from->progress(from->progress_user, "bytes written", done, total)) {
            st = err_set(e, E_CANCELLED, "writing was cancelled");
            goto out;
        }
    } while (s->writing->n);
out:
    for (int k = 0; k < 2; k++)
        mem_pages_free(s->buf[k].bytes, s->buf[k].bytes ? s->buf[k].cap : 0);
    pthread_mutex_destroy(&s->lock);
    mem_free(s);
    return st;
}
