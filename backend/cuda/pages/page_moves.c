/* page_moves.c - pages on their way between a GPU and the host, beside the passes.
 *
 *     passes   .. pass | begin ..                    .. join | pass ..
 *                          |                             ^
 *     copies               '-> out: copies .. copies ..  |
 *                          '-> in:  copies .. copies .. -'
 *
 * Copies run on two streams, because a bus carries both ways at a time. A page is a few copies of
 * rows at even distances, straight between its place and the host: no kernel packs it, because a
 * launch between the kernels of a pass takes longer than the copy. Stores of one shape that lie one
 * behind the other, as those of a pool do, are one copy:
 *
 *     store 0  head 0 | .. [64 rows] .. | head 1 | .. [64 rows] .. |
 *     store 1  head 0 | .. [64 rows] .. | ..
 *              |<------- pitch -------->|
 */
#include "backend/cuda/cuda_int.h"
#include "backend/page_moves.h"
#include "base/mem.h"

typedef struct cuda_page_move {
    cudaEvent_t copied;
    page_state state; /* as far as known */
} cuda_page_move;

typedef struct cuda_moves {
    cuda_device *c;
    cudaStream_t out, in;
    cudaEvent_t passed, joined; /* the last begin; the last join */
    bool begun;                 /* copies wait for `passed` */
    int32_t n;
    cuda_page_move move[PAGE_MOVES_MAX];
} cuda_moves;

/* A move may fail alone; a failure of the whole device shows in the next pass. */
static bool fine(cudaError_t r)
{
    if (r == cudaSuccess)
        return true;
    cudaGetLastError();
    return false;
}

static void moves_close(void *self)
{
    cuda_moves *k = self;
    cuda_select(&k->c->dev);
    cudaStream_t stream[] = {k->out, k->in};
    cudaEvent_t event[] = {k->passed, k->joined};
    for (int i = 0; i < 2; i++)
        if (stream[i] && !k->c->stalled)
            fine(cudaStreamSynchronize(stream[i]));
    for (int32_t i = 0; i < k->n; i++)
        if (k->move[i].copied)
            cudaEventDestroy(k->move[i].copied);
    for (int i = 0; i < 2; i++) {
        if (event[i])
            cudaEventDestroy(event[i]);
        if (stream[i])
            cudaStreamDestroy(stream[i]);
    }
    mem_free(k);
}

static status moves_open(void **self, device *d, int32_t n_moves, err *e)
{
    cuda_device *c = cuda_select(d);
    cuda_moves *k = mem_calloc(1, sizeof *k);
    if (!k)
        return err_memory(e, "moves of pages", sizeof *k);
    k->c = c;
    k->n = n_moves;
    cudaError_t r = cudaStreamCreateWithPriority(&k->out, cudaStreamNonBlocking, 0);
    if (!r)
        r = cudaStreamCreateWithPriority(&k->in, cudaStreamNonBlocking, 0);
    if (!r)
        r = cudaEventCreateWithFlags(&k->passed, cudaEventDisableTiming);
    if (!r)
        r = cudaEventCreateWithFlags(&k->joined, cudaEventDisableTiming);
    for (int32_t i = 0; i < n_moves && !r; i++) {
        k->move[i].state = PAGE_MOVED;
        r = cudaEventCreateWithFlags(&k->move[i].copied, cudaEventDisableTiming);
    }
    if (r) {
        cudaGetLastError();
        moves_close(k);
        return err_set(e, E_IO, "a stream for pages of keys: %s", cudaGetErrorString(r));
    }
    *self = k;
    return OK;
}

static bool moves_begin(void *self)
{
    cuda_moves *k = self;
    cuda_device *c = cuda_select(&k->c->dev);
    k->begun = fine(cudaEventRecord(k->passed, c->stream)) &&
               fine(cudaStreamWaitEvent(k->out, k->passed, 0)) &&
               fine(cudaStreamWaitEvent(k->in, k->passed, 0));
    return k->begun;
}

static bool moves_join(void *self)
{
    cuda_moves *k = self;
    cuda_device *c = cuda_select(&k->c->dev);
    return fine(cudaEventRecord(k->joined, k->in)) &&
           fine(cudaStreamWaitEvent(c->stream, k->joined, 0));
}

/* Rows at even distances, in stores of one shape that lie one behind the other. */
typedef struct segments {
    char *at;
    size_t pitch, width;
    int32_t n, n_stores;
} segments;

static segments segments_of(const row_store *s, int32_t n_stores, int32_t place)
{
    segments g = {.at = s->at + (size_t)place * s->row_bytes,
                  .pitch = (size_t)s->n_slots * s->row_bytes,
                  .width = PAGE_KEYS * s->row_bytes,
                  .n = s->n_heads,
                  .n_stores = 1};
    for (; g.n_stores < n_stores; g.n_stores++) {
        const row_store *next = &s[g.n_stores];
        if (next->row_bytes != s->row_bytes || next->n_slots != s->n_slots ||
            next->at != s->at + (size_t)g.n * g.pitch)
            break;
        g.n += next->n_heads;
    }
    return g;
}

static bool copy_page(cuda_moves *k, const row_store *store, int32_t n_stores, int32_t place,
                      char *host, bool in)
{
    for (int32_t i = 0; i < n_stores;) {
        segments g = segments_of(&store[i], n_stores - i, place);
        const block_move m = {.dev = g.at,
                              .host = host,
                              .dev_stride = g.pitch,
                              .host_stride = g.width,
                              .n_bytes = g.width,
                              .n = g.n,
                              .load = in};
        if (!fine(cuda_copy_host(k->c, in ? k->in : k->out, &m)))
            return false;
        host += g.width * (size_t)g.n;
        i += g.n_stores;
    }
    return true;
}

static bool moves_move(void *self, int32_t move, const row_store *store, int32_t n_stores,
                       int32_t place, void *host, bool in)
{
    cuda_moves *k = self;
    cuda_page_move *m = &k->move[move];
    cudaStream_t stream = in ? k->in : k->out;
    if (!k->begun)
        return false;
    cuda_select(&k->c->dev);
    m->state = PAGE_MOVING;
    if (copy_page(k, store, n_stores, place, host, in) &&
        fine(cudaEventRecord(m->copied, stream)))
        return true;
    fine(cudaStreamSynchronize(stream)); /* nothing may be written later */
    m->state = PAGE_FAILED;
    return false;
}

static page_state moves_state(void *self, int32_t move, bool wait)
{
    cuda_moves *k = self;
    cuda_page_move *m = &k->move[move];
    if (m->state != PAGE_MOVING)
        return m->state;
    cuda_select(&k->c->dev);
    if (wait)
        cuda_await_event(k->c, NULL, m->copied, "copying pages of keys");
    cudaError_t r = cudaEventQuery(m->copied);
    if (wait && r == cudaErrorNotReady)
        r = cudaErrorInvalidValue;
    if (r == cudaErrorNotReady)
        cudaGetLastError();
    else
        m->state = fine(r) ? PAGE_MOVED : PAGE_FAILED;
    return m->state;
}

const struct page_move_ops cuda_page_moves = {.open = moves_open,
                                              .close = moves_close,
                                              .begin = moves_begin,
                                              .move = moves_move,
                                              .join = moves_join,
                                              .state = moves_state};
