/* pinned.c - page-locked host memory, which the GPU reads and writes by itself: blocks for
 * snapshots and for pages of keys, and the copies.
 *
 *     block   [....................]                  one allocation
 *     slab    [piece][piece][free ][piece]..          many small ones of one size: pages of keys
 *
 * Locking pages takes longer than copying to them, because the system must provide them first. So a
 * thread locks them, and only a copy waits for it. A freed block stays locked for the next one of
 * about its size. Blocks in use and idle blocks together never exceed the most that was in use at
 * one time. Where locking fails, copies go through the driver's own buffers, which is slower.
 *
 * Slabs of a size grow with their number, and the next one is locked before the last is full: pages
 * leave the GPU in the middle of prompts and answers, which do not wait for memory. So slabs take
 * up to a quarter more than their pieces, SLAB_MOST at most.
 */
#include "backend/cuda/cuda_int.h"
#include "base/mem.h"

#include <pthread.h>
#include <string.h>

enum {
    PINS = 1024,
    PIN_ROUND = 2 << 20,
    PIECE_MOST = 16 << 20, /* larger ones are blocks */
    PIECE_ROUND = 4 << 10,
    SLAB_LEAST = PIECE_MOST,
    SLAB_MOST = 256 << 20
};

typedef enum pin_state { PIN_WAITS, PIN_WORKING, PIN_LOCKED, PIN_PLAIN } pin_state;

typedef struct pin {
    char *at; /* NULL: a free entry */
    size_t n_bytes;
    pin_state state;
    bool used;
    uint64_t freed; /* the count of frees at that time */
    /* Of a slab. Free pieces that were in use hold the address of the next one. */
    size_t piece; /* 0: a block */
    char *free_piece;
    size_t n_pieces, n_fresh, n_taken; /* n_fresh: never taken so far: those from there on */
} pin;

struct cuda_pins {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    bool started, closing;
    int32_t gpu;
    pin at[PINS];
    size_t used_bytes, idle_bytes, most_bytes; /* most: the largest used_bytes so far */
    uint64_t clock;
};

/* ---- The thread that locks ---------------------------------------------------------------- */

static pin *next_waiting(cuda_pins *k)
{
    for (int i = 0; i < PINS; i++)
        if (k->at[i].at && k->at[i].state == PIN_WAITS)
            return &k->at[i];
    return NULL;
}

static void *lock_blocks(void *arg)
{
    cuda_pins *k = arg;
    cudaSetDevice(k->gpu);
    pthread_mutex_lock(&k->lock);
    while (!k->closing) {
        pin *p = next_waiting(k);
        if (!p) {
            pthread_cond_wait(&k->changed, &k->lock);
            continue;
        }
        p->state = PIN_WORKING; /* so that shrink leaves the block alone */
        char *at = p->at;
        size_t n = p->n_bytes;
        pthread_mutex_unlock(&k->lock);
        bool ok = cudaHostRegister(at, n, cudaHostRegisterPortable) == cudaSuccess;
        if (!ok)
            cudaGetLastError();
        pthread_mutex_lock(&k->lock);
        p->state = ok ? PIN_LOCKED : PIN_PLAIN;
        pthread_cond_broadcast(&k->changed);
    }
    pthread_mutex_unlock(&k->lock);
    return NULL;
}

/* ---- Blocks -------------------------------------------------------------------------------- */

status cuda_pins_open(cuda_pins **out, int32_t gpu, err *e)
{
    cuda_pins *k = *out = mem_calloc(1, sizeof *k);
    if (!k)
        return err_memory(e, "the table of page-locked memory", sizeof *k);
    k->gpu = gpu;
    if (pthread_mutex_init(&k->lock, NULL)) {
        mem_free(k);
        *out = NULL;
        return err_set(e, E_MEMORY, "cannot make a lock");
    }
    if (pthread_cond_init(&k->changed, NULL)) {
        pthread_mutex_destroy(&k->lock);
        mem_free(k);
        *out = NULL;
        return err_set(e, E_MEMORY, "cannot make a condition");
    }
    return OK;
}

static void drop(pin *p)
{
    if (p->state == PIN_LOCKED && cudaHostUnregister(p->at) != cudaSuccess)
        cudaGetLastError();
    mem_pages_free(p->at, p->n_bytes);
    *p = (pin){0};
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
    for (int i = 0; i < PINS; i++)
        if (k->at[i].at)
            drop(&k->at[i]);
    pthread_cond_destroy(&k->changed);
    pthread_mutex_destroy(&k->lock);
    mem_free(k);
}

/* The smallest idle block that fits n bytes and wastes little. */
static pin *find_idle(cuda_pins *k, size_t n)
{
    pin *best = NULL;
    for (int i = 0; i < PINS; i++) {
        pin *p = &k->at[i];
        if (p->at && !p->used && !p->piece && p->n_bytes >= n && p->n_bytes - n <= n / 4 &&
            (!best || p->n_bytes < best->n_bytes))
            best = p;
    }
    return best;
}

/* Frees idle blocks, the longest idle first, until n more bytes keep the bound at the top of this
 * file. */
static void shrink(cuda_pins *k, size_t n)
{
    size_t most = k->most_bytes > k->used_bytes + n ? k->most_bytes : k->used_bytes + n;
    while (k->idle_bytes && k->used_bytes + k->idle_bytes + n > most) {
        pin *oldest = NULL;
        for (int i = 0; i < PINS; i++) {
            pin *p = &k->at[i];
            if (p->at && !p->used && p->state != PIN_WORKING &&
                (!oldest || p->freed < oldest->freed))
                oldest = p;
        }
        if (!oldest)
            return;
        k->idle_bytes -= oldest->n_bytes;
        drop(oldest);
    }
}

/* piece: of a slab; 0: a block. */
static pin *make_pin(cuda_pins *k, size_t n, size_t piece)
{
    pin *p = NULL;
    for (int i = 0; i < PINS && !p; i++)
        if (!k->at[i].at)
            p = &k->at[i];
    shrink(k, n);
    char *at = p ? mem_pages(n) : NULL;
    if (!at)
        return NULL;
    if (!k->started)
        k->started = !pthread_create(&k->thread, NULL, lock_blocks, k);
    *p = (pin){.at = at,
               .n_bytes = n,
               .state = k->started ? PIN_WAITS : PIN_PLAIN,
               .piece = piece,
               .n_pieces = piece ? n / piece : 0};
    pthread_cond_broadcast(&k->changed);
    return p;
}

static void use(cuda_pins *k, pin *p)
{
    if (p->used)
        return;
    p->used = true;
    k->used_bytes += p->n_bytes;
    k->most_bytes = k->used_bytes > k->most_bytes ? k->used_bytes : k->most_bytes;
}

static void unuse(cuda_pins *k, pin *p)
{
    p->used = false;
    p->freed = ++k->clock;
    k->used_bytes -= p->n_bytes;
    k->idle_bytes += p->n_bytes;
}

static void *take_block(cuda_pins *k, size_t n_bytes)
{
    size_t n = (n_bytes + PIN_ROUND - 1) / PIN_ROUND * PIN_ROUND;
    if (n < n_bytes)
        return NULL;
    pin *p = find_idle(k, n);
    if (p)
        k->idle_bytes -= p->n_bytes;
    else
        p = make_pin(k, n, 0);
    if (p)
        use(k, p);
    return p ? p->at : NULL;
}

/* ---- Slabs --------------------------------------------------------------------------------- */

/* All slabs of a size. */
typedef struct slab_sum {
    pin *room; /* one with a free piece, in use if there is such a one; or NULL */
    size_t n_bytes, n_free;
} slab_sum;
static slab_sum slabs_of(cuda_pins *k, size_t piece)
{
    slab_sum s = {NULL, 0, 0};
    for (int i = 0; i < PINS; i++) {
        pin *p = &k->at[i];
        if (!p->at || p->piece != piece)
            continue;
        s.n_bytes += p->n_bytes;
        s.n_free += p->n_pieces - p->n_taken;
        if (p->n_taken < p->n_pieces && (!s.room || (p->used && !s.room->used)))
            s.room = p;
    }
    return s;
}

/* As large as all slabs of its size before it. */
static pin *make_slab(cuda_pins *k, size_t piece, size_t n_bytes)
{
    size_t n = n_bytes < SLAB_LEAST ? SLAB_LEAST : n_bytes < SLAB_MOST ? n_bytes : SLAB_MOST;
    return make_pin(k, n / piece * piece, piece);
}

static void *take_piece(cuda_pins *k, size_t n_bytes)
{
    size_t piece = (n_bytes + PIECE_ROUND - 1) / PIECE_ROUND * PIECE_ROUND;
    slab_sum s = slabs_of(k, piece);
    pin *p = s.room;
    if (p && !p->used)
        k->idle_bytes -= p->n_bytes;
    if (!p && !(p = make_slab(k, piece, s.n_bytes)))
        return NULL;
    use(k, p);
    char *at = p->free_piece;
    if (at)
        memcpy(&p->free_piece, at, sizeof p->free_piece);
    else
        at = p->at + piece * p->n_fresh++;
    p->n_taken++;
    if (s.n_bytes && s.n_free * piece < s.n_bytes / 4 && s.n_free * piece < SLAB_MOST) {
        p = make_slab(k, piece, s.n_bytes); /* ahead of time; without it the next take makes one */
        k->idle_bytes += p ? p->n_bytes : 0;
    }
    return at;
}

static void give_piece(cuda_pins *k, pin *p, char *at)
{
    memcpy(at, &p->free_piece, sizeof p->free_piece);
    p->free_piece = at;
    if (!--p->n_taken)
        unuse(k, p);
}

void *cuda_host_alloc(device *d, size_t n_bytes)
{
    cuda_pins *k = cuda_select(d)->pins;
    pthread_mutex_lock(&k->lock);
    void *at =
        n_bytes <= PIECE_MOST ? take_piece(k, n_bytes ? n_bytes : 1) : take_block(k, n_bytes);
    pthread_mutex_unlock(&k->lock);
    return at;
}

/* The block that contains an address. */
static pin *find(cuda_pins *k, const char *at)
{
    for (int i = 0; i < PINS; i++) {
        pin *p = &k->at[i];
        if (p->at && at >= p->at && at < p->at + p->n_bytes)
            return p;
    }
    return NULL;
}

void cuda_host_free(device *d, void *at, size_t n_bytes)
{
    cuda_device *c = d->self;
    cuda_pins *k = c->pins;
    (void)n_bytes;
    if (!at || c->stalled) /* a copy to it may be under way for ever */
        return;
    pthread_mutex_lock(&k->lock);
    pin *p = find(k, at);
    if (p && p->piece)
        give_piece(k, p, at);
    else if (p)
        unuse(k, p);
    pthread_mutex_unlock(&k->lock);
}

void cuda_pins_wait(cuda_pins *k, const char *at)
{
    pthread_mutex_lock(&k->lock);
    pin *p = find(k, at);
    while (p && (p->state == PIN_WAITS || p->state == PIN_WORKING))
        pthread_cond_wait(&k->changed, &k->lock);
    pthread_mutex_unlock(&k->lock);
}

/* ---- Copies -------------------------------------------------------------------------------- */

void cuda_move(device *d, const block_move *m)
{
    cuda_device *c = cuda_select(d);
    const size_t pitch_max = (size_t)1 << 30; /* half of the GPUs' limit */
    enum cudaMemcpyKind kind = m->load ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost;
    char *to = m->load ? m->dev : m->host;
    const char *from = m->load ? m->host : m->dev;
    size_t to_stride = m->load ? m->dev_stride : m->host_stride;
    size_t from_stride = m->load ? m->host_stride : m->dev_stride;
    cuda_select(&c->dev);
    cuda_pins_wait(c->pins, m->host);
    if (m->n > 1 && to_stride <= pitch_max && from_stride <= pitch_max) {
        cuda_ok(c, NULL,
                cudaMemcpy2DAsync(to, to_stride, from, from_stride, m->n_bytes, (size_t)m->n, kind,
                                  c->stream),
                "moving keys and values");
        return;
    }
    for (int32_t i = 0; i < m->n; i++)
        cuda_ok(c, NULL,
                cudaMemcpyAsync(to + (size_t)i * to_stride, from + (size_t)i * from_stride,
                                m->n_bytes, kind, c->stream),
                "moving keys and values");
}

void cuda_moved(device *d)
{
    cuda_device *c = cuda_select(d);
    cuda_await(c, NULL, "moving keys and values");
}
