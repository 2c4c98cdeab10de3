/* page_moves.c - pages on their way between a GPU and the host, beside the passes.
 *
 *     passes   .. pass | pack | pass ..          .. pass | put | pass ..
 *                          |                                ^
 *     copies               '--> copy out ..      copy in ---'
 *
 * A page is packed, or put to its place, by one kernel on the stream of the passes: so it is
 * complete, and no pass sees half of one. In between it is one copy on another stream: one has the
 * copies out, one those in, because a bus carries both at a time. Events order them: a copy out
 * waits for the pack; a put waits for the copy in; a copy that reuses a packed page waits for the
 * put that read it.
 */
#include "backend/cuda/cuda_int.h"
#include "backend/page_moves.h"
#include "base/mem.h"

typedef struct cuda_page_move {
    cudaEvent_t packed, copied, put;
    page_state state; /* as far as known */
    bool began;       /* `copied` was recorded */
    bool was_put;     /* `put` was recorded after the last copy in */
} cuda_page_move;

typedef struct cuda_moves {
    cuda_device *c;
    cudaStream_t out, in;
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

static keep_store store_at(const row_store *s)
{
    return (keep_store){.at = (uint8_t *)s->at,
                        .row_bytes = (int32_t)s->row_bytes,
                        .n_heads = s->n_heads,
                        .n_slots = s->n_slots};
}

/* The kernel for all stores, as many at a time as a launch takes. */
static cudaError_t run_pages(cuda_device *c, page_args *a, const row_store *store, int32_t n_stores)
{
    int64_t packed_at = 0;
    cuda_settle(c);
    for (int32_t i = 0; i < n_stores; i++) {
        a->packed_at[a->n_stores] = packed_at;
        a->store[a->n_stores++] = store_at(&store[i]);
        packed_at += (int64_t)page_bytes(&store[i], 1) / 16;
        if (a->n_stores < KEEP_STORES && i < n_stores - 1)
            continue;
        cu_pages(c->stream, *a);
        cudaError_t r = cudaGetLastError();
        if (r)
            return r;
        a->n_stores = 0;
    }
    return cudaSuccess;
}

static void moves_copy(device *d, const row_store *store, int32_t n_stores, const page_copy *copy,
                       int32_t n)
{
    cuda_device *c = cuda_select(d);
    page_args a = {.n = 0};
    for (int32_t i = 0; i < n; i++) {
        if (copy[i].from != copy[i].to) {
            a.from[a.n] = copy[i].from;
            a.to[a.n++] = copy[i].to;
        }
        if (!a.n || (a.n < PAGE_COPIES && i < n - 1))
            continue;
        cuda_ok(c, NULL, run_pages(c, &a, store, n_stores), "copying pages of keys");
        a.n = a.n_stores = 0;
    }
}

static void moves_close(void *self)
{
    cuda_moves *k = self;
    cuda_select(&k->c->dev);
    cudaStream_t stream[] = {k->out, k->in};
    for (int i = 0; i < 2; i++)
        if (stream[i])
            fine(cudaStreamSynchronize(stream[i]));
    if (k->in)
        fine(cudaStreamSynchronize(k->c->stream)); /* puts read the packed pages */
    for (int32_t i = 0; i < k->n; i++) {
        cuda_page_move *m = &k->move[i];
        cudaEvent_t event[] = {m->packed, m->copied, m->put};
        for (int j = 0; j < 3; j++)
            if (event[j])
                cudaEventDestroy(event[j]);
    }
    for (int i = 0; i < 2; i++)
        if (stream[i])
            cudaStreamDestroy(stream[i]);
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
    for (int32_t i = 0; i < n_moves && !r; i++) {
        cuda_page_move *m = &k->move[i];
        m->state = PAGE_MOVED;
        if (!(r = cudaEventCreateWithFlags(&m->packed, cudaEventDisableTiming)) &&
            !(r = cudaEventCreateWithFlags(&m->copied, cudaEventDisableTiming)))
            r = cudaEventCreateWithFlags(&m->put, cudaEventDisableTiming);
    }
    if (r) {
        cudaGetLastError();
        moves_close(k);
        return err_set(e, E_IO, "a stream for pages of keys: %s", cudaGetErrorString(r));
    }
    *self = k;
    return OK;
}

/* Starts the copy and notes its end. */
static bool begin_copy(cuda_moves *k, cuda_page_move *m, void *to, const void *from, size_t n_bytes,
                       enum cudaMemcpyKind kind)
{
    cudaStream_t s = kind == cudaMemcpyDeviceToHost ? k->out : k->in;
    m->began = false;
    m->state = PAGE_FAILED;
    if (!fine(cudaMemcpyAsync(to, from, n_bytes, kind, s)))
        return false;
    if (!fine(cudaEventRecord(m->copied, s))) {
        fine(cudaStreamSynchronize(s)); /* nothing may write later */
        return false;
    }
    m->began = true;
    m->state = PAGE_MOVING;
    return true;
}

static bool moves_out(void *self, int32_t move, const row_store *store, int32_t n_stores,
                      int32_t place, void *page, void *to, size_t n_bytes)
{
    cuda_moves *k = self;
    cuda_page_move *m = &k->move[move];
    cuda_device *c = cuda_select(&k->c->dev);
    page_args a = {.packed = page, .from = {place}, .n = 1};
    cuda_pins_wait(c->pins, to);
    return fine(run_pages(c, &a, store, n_stores)) && fine(cudaEventRecord(m->packed, c->stream)) &&
           fine(cudaStreamWaitEvent(k->out, m->packed, 0)) &&
           begin_copy(k, m, to, page, n_bytes, cudaMemcpyDeviceToHost);
}

static bool moves_in(void *self, int32_t move, void *page, const void *from, size_t n_bytes)
{
    cuda_moves *k = self;
    cuda_page_move *m = &k->move[move];
    cuda_device *c = cuda_select(&k->c->dev);
    cuda_pins_wait(c->pins, from);
    if (m->was_put && !fine(cudaStreamWaitEvent(k->in, m->put, 0)))
        return false;
    m->was_put = false;
    return begin_copy(k, m, page, from, n_bytes, cudaMemcpyHostToDevice);
}

static page_state moves_state(void *self, int32_t move, bool wait)
{
    cuda_moves *k = self;
    cuda_page_move *m = &k->move[move];
    if (m->state != PAGE_MOVING)
        return m->state;
    cuda_select(&k->c->dev);
    cudaError_t r = wait ? cudaEventSynchronize(m->copied) : cudaEventQuery(m->copied);
    if (r == cudaErrorNotReady)
        cudaGetLastError();
    else
        m->state = fine(r) ? PAGE_MOVED : PAGE_FAILED;
    return m->state;
}

static bool moves_put(void *self, int32_t move, const row_store *store, int32_t n_stores,
                      int32_t place, const void *page)
{
    cuda_moves *k = self;
    cuda_page_move *m = &k->move[move];
    cuda_device *c = cuda_select(&k->c->dev);
    page_args a = {.packed = (void *)page, .to = {place}, .n = 1, .in = true};
    if (!m->began || m->state == PAGE_FAILED ||
        !fine(cudaStreamWaitEvent(c->stream, m->copied, 0)) ||
        !fine(run_pages(c, &a, store, n_stores)))
        return false;
    m->was_put = fine(cudaEventRecord(m->put, c->stream));
    if (!m->was_put) /* nothing else says when the packed page has been read */
        fine(cudaStreamSynchronize(c->stream));
    return true;
}

const struct page_move_ops cuda_page_moves = {.copy = moves_copy,
                                              .open = moves_open,
                                              .close = moves_close,
                                              .out = moves_out,
                                              .in = moves_in,
                                              .put = moves_put,
                                              .state = moves_state};
