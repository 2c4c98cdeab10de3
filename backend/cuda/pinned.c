/* pinned.c - page-locked host memory, which the GPU reads and writes by itself: blocks for
 * snapshots and for pages of keys, and the copies.
 *
 *     block   [....................]                  of the arena (host_arena.h)
 *     slab    [piece][piece][free ][piece]..          a block of small ones of one size
 *
 * The system must provide memory before it can be locked, and locking may hold up launches of kernels
 * by other threads. So a thread touches each section first and locks it then, a few ms at a time,
 * and only a copy waits for it. Where locking fails, copies go through the driver's own buffers,
 * which is slower.
 */
#include "backend/cuda/cuda_int.h"
#include "backend/host_arena.h"
#include "base/mem.h"

#include <pthread.h>
#include <string.h>

enum {
    SLABS = 1024,
    PIECE_MOST = 16 << 20, /* larger ones are blocks */
    PIECE_ROUND = 4 << 10,
    SLAB_LEAST = PIECE_MOST,
    SLAB_MOST = 256 << 20
};

typedef struct slab {
    char *at; /* NULL: a free entry */
    size_t n_bytes, piece;
    char *free_piece;                  /* each holds the address of the next one */
    size_t n_pieces, n_fresh, n_taken; /* n_fresh: never taken so far: those from there on */
} slab;

struct cuda_pins {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    bool started, closing;
    int32_t gpu;
    host_arena arena;
    slab slab[SLABS];
};

/* ---- The thread that locks ---------------------------------------------------------------- */

static void *lock_sections(void *arg)
{
    cuda_pins *k = arg;
    cudaSetDevice(k->gpu);
    pthread_mutex_lock(&k->lock);
    while (!k->closing) {
        char *at = host_arena_next(&k->arena);
        if (!at) {
            pthread_cond_wait(&k->changed, &k->lock);
            continue;
        }
        pthread_mutex_unlock(&k->lock);
        mem_pages_touch(at, HOST_SECTION);
        bool ok = cudaHostRegister(at, HOST_SECTION, cudaHostRegisterPortable) == cudaSuccess;
        if (!ok)
            cudaGetLastError();
        pthread_mutex_lock(&k->lock);
        host_arena_done(&k->arena, at, ok);
        pthread_cond_broadcast(&k->changed);
    }
    pthread_mutex_unlock(&k->lock);
    return NULL;
}

static void unlock_section(char *at)
{
    if (cudaHostUnregister(at) != cudaSuccess)
        cudaGetLastError();
}

status cuda_pins_open(cuda_pins **out, int32_t gpu, err *e)
{
    cuda_pins *k = *out = mem_calloc(1, sizeof *k);
    if (!k)
        return err_memory(e, "the table of page-locked memory", sizeof *k);
    k->gpu = gpu;
    pthread_mutex_init(&k->lock, NULL);
    pthread_cond_init(&k->changed, NULL);
    return OK;
}

void cuda_pins_close(cuda_pins *k)
{
    if (!k)
        return;
    pthread_mutex_lock(&k->lock);
    k->closing = true;
    pthread_cond_broadcast(&k->changed);
    pthread_mutex_unlock(&k->lock);
    if (k->started)
        pthread_join(k->thread, NULL);
    host_arena_close(&k->arena, unlock_section);
    pthread_cond_destroy(&k->changed);
    pthread_mutex_destroy(&k->lock);
    mem_free(k);
}

/* ---- Blocks and pieces --------------------------------------------------------------------- */

static void *take_block(cuda_pins *k, size_t n_bytes)
{
    void *at = host_arena_take(&k->arena, n_bytes);
    if (at && !k->started)
        k->started = !pthread_create(&k->thread, NULL, lock_sections, k);
    pthread_cond_broadcast(&k->changed);
    return at;
}

static size_t piece_of(size_t n_bytes)
{
    n_bytes = n_bytes ? n_bytes : 1;
    return (n_bytes + PIECE_ROUND - 1) / PIECE_ROUND * PIECE_ROUND;
}

/* A slab with a free piece; else a new one, as large as all of its size before it. */
static slab *slab_for(cuda_pins *k, size_t piece)
{
    slab *unused = NULL;
    size_t n_all = 0;
    for (int i = 0; i < SLABS; i++) {
        slab *s = &k->slab[i];
        if (s->at && s->piece == piece && s->n_taken < s->n_pieces)
            return s;
        n_all += s->at && s->piece == piece ? s->n_bytes : 0;
        unused = s->at || unused ? unused : s;
    }
    size_t n = n_all < SLAB_LEAST ? SLAB_LEAST : n_all < SLAB_MOST ? n_all : SLAB_MOST;
    char *at = unused ? take_block(k, n) : NULL;
    if (!at)
        return NULL;
    *unused = (slab){.at = at, .n_bytes = n, .piece = piece, .n_pieces = n / piece};
    return unused;
}

static void *take_piece(cuda_pins *k, size_t n_bytes)
{
    slab *s = slab_for(k, piece_of(n_bytes));
    if (!s)
        return NULL;
    char *at = s->free_piece;
    if (at)
        memcpy(&s->free_piece, at, sizeof s->free_piece);
    else
        at = s->at + s->piece * s->n_fresh++;
    s->n_taken++;
    return at;
}

/* Another slab of its size has free pieces, so this one would be idle for long. */
static bool is_spare(const cuda_pins *k, const slab *s)
{
    for (int i = 0; i < SLABS; i++) {
        const slab *o = &k->slab[i];
        if (o != s && o->at && o->piece == s->piece && o->n_taken < o->n_pieces)
            return true;
    }
    return false;
}

static void give_piece(cuda_pins *k, char *at)
{
    for (int i = 0; i < SLABS; i++) {
        slab *s = &k->slab[i];
        if (!s->at || at < s->at || at >= s->at + s->n_bytes)
            continue;
        memcpy(at, &s->free_piece, sizeof s->free_piece);
        s->free_piece = at;
        if (!--s->n_taken && is_spare(k, s)) {
            host_arena_give(&k->arena, s->at, s->n_bytes);
            *s = (slab){0};
        }
        return;
    }
}

void *cuda_host_alloc(device *d, size_t n_bytes)
{
    cuda_pins *k = cuda_select(d)->pins;
    pthread_mutex_lock(&k->lock);
    void *at = n_bytes <= PIECE_MOST ? take_piece(k, n_bytes) : take_block(k, n_bytes);
    pthread_mutex_unlock(&k->lock);
    return at;
}

void cuda_host_free(device *d, void *at, size_t n_bytes)
{
    cuda_device *c = d->self;
    cuda_pins *k = c->pins;
    if (!at || c->stalled) /* a copy to it may be under way for ever */
        return;
    pthread_mutex_lock(&k->lock);
    if (n_bytes <= PIECE_MOST)
        give_piece(k, at);
    else
        host_arena_give(&k->arena, at, n_bytes);
    pthread_mutex_unlock(&k->lock);
}

void cuda_pins_wait(cuda_pins *k, const void *at, size_t n_bytes)
{
    pthread_mutex_lock(&k->lock);
    while (k->started && !host_arena_ready(&k->arena, at, n_bytes))
        pthread_cond_wait(&k->changed, &k->lock);
    pthread_mutex_unlock(&k->lock);
}

/* ---- Copies -------------------------------------------------------------------------------- */

/* Rows of one copy; the pitches are from one to the next. */
typedef struct host_rows {
    char *host, *dev;
    size_t host_pitch, dev_pitch, width;
    int32_t n;
    bool load;
} host_rows;

static cudaError_t copy_rows(cudaStream_t stream, const host_rows *r)
{
    enum { PITCH_MAX = 1 << 30 }; /* half of the GPUs' limit */
    enum cudaMemcpyKind kind = r->load ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost;
    cudaError_t x = cudaSuccess;
    if (r->n > 1 && r->host_pitch <= PITCH_MAX && r->dev_pitch <= PITCH_MAX)
        return r->load ? cudaMemcpy2DAsync(r->dev, r->dev_pitch, r->host, r->host_pitch, r->width,
                                           (size_t)r->n, kind, stream)
                       : cudaMemcpy2DAsync(r->host, r->host_pitch, r->dev, r->dev_pitch, r->width,
                                           (size_t)r->n, kind, stream);
    for (int32_t i = 0; i < r->n && !x; i++) {
        char *host = r->host + (size_t)i * r->host_pitch, *dev = r->dev + (size_t)i * r->dev_pitch;
        x = cudaMemcpyAsync(r->load ? dev : host, r->load ? host : dev, r->width, kind, stream);
    }
    return x;
}

/* Sections are locked one by one, and a copy is of one of them alone: whole rows as long as they
 * are inside it, then the row that goes on in the next one. */
static cudaError_t copy_by_sections(cudaStream_t stream, host_rows r)
{
    cudaError_t x = cudaSuccess;
    while (r.n && !x) {
        size_t left = host_section_left(r.host);
        size_t inside = left < r.width ? 0 : 1 + (left - r.width) / r.host_pitch;
        host_rows now = r;
        if (inside) {
            now.n = inside < (size_t)r.n ? (int32_t)inside : r.n;
            x = copy_rows(stream, &now);
        } else {
            now.n = 1;
            for (size_t done = 0; done < r.width && !x; done += now.width) {
                now.host = r.host + done;
                now.dev = r.dev + done;
                left = host_section_left(now.host);
                now.width = r.width - done < left ? r.width - done : left;
                x = copy_rows(stream, &now);
            }
        }
        r.host += (size_t)now.n * r.host_pitch;
        r.dev += (size_t)now.n * r.dev_pitch;
        r.n -= now.n;
    }
    return x;
}

cudaError_t cuda_copy_host(cuda_device *c, cudaStream_t stream, const block_move *m)
{
    if (m->n < 1 || !m->n_bytes)
        return cudaSuccess;
    const host_rows r = {.host = m->host,
                         .dev = m->dev,
                         .host_pitch = m->host_stride,
                         .dev_pitch = m->dev_stride,
                         .width = m->n_bytes,
                         .n = m->n,
                         .load = m->load};
    cuda_pins_wait(c->pins, m->host, (size_t)(m->n - 1) * m->host_stride + m->n_bytes);
    return copy_by_sections(stream, r);
}

void cuda_move(device *d, const block_move *m)
{
    cuda_device *c = cuda_select(d);
    cuda_ok(c, NULL, cuda_copy_host(c, c->stream, m), "moving keys and values");
}

void cuda_moved(device *d)
{
    cuda_device *c = cuda_select(d);
    cuda_await(c, NULL, "moving keys and values");
}
