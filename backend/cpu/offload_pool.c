/* offload_pool.c - see offload_pool.h.
 *
 * One 64-bit word, the ticket, holds the number of the job, its number of items, and the next item.
 * A thread takes items by a compare-and-exchange of the ticket. A thread that comes late finds
 * another job's number there and takes nothing. The first thread that sees a new job in memory
 * writes its ticket. If another thread was quicker, the exchange fails, and what this thread read
 * of the job does not count. A job begins with counters of zero: the thread that ends the last item
 * clears them before it answers.
 */
#include "backend/cpu/offload_pool.h"
#include "base/clock.h"
#include "base/idle.h"
#include "base/mem.h"
#include "base/pool.h"
#include "base/relax.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>

enum {
    MAX_THREADS = 256,
    MAX_ITEMS = 0xffff, /* of a job: 16 bits of the word */
    LOOKS = 4096,       /* for other threads, before one gives its core away */
    CHUNK_ITEMS =
        2 * OFFLOAD_GROUP / OFFLOAD_TILE /* gate items that make 32 outputs of a gated unit */
};

static const size_t STACK_BYTES = 1 << 20;

int64_t offload_pool_limit_ns = 1000000000;

/* The threads of one pool, or of several. A pool that has been added stays until they have ended. */
typedef struct pool_threads {
    idle idle;
    int32_t n, n_started, n_users;
    pthread_t thread[MAX_THREADS];
    offload_pool *pool[OFFLOAD_POOLS_MAX];
    atomic_int n_pools;
} pool_threads;

struct offload_pool {
    const offload_kernels *k;
    pool_threads *threads;
    offload_layer *layer;
    int32_t n_layers;
    offload_room room;
    int32_t n_timed;
    _Alignas(64) atomic_uint_least64_t ticket; /* job << 32 | items << 16 | next item */
    _Alignas(64) atomic_uint n_ended;
    _Alignas(64) atomic_int gated[OFFLOAD_PAIRS]; /* chunks of 32 that have their copy, by expert */
    atomic_bool hold;
    /* Of pairs: W x and W' x [n_ff]; their gated product's copy. */
    int32_t n_ff; /* the largest */
    float *a, *b;
    int8_t *q;
    offload_scale *s;
    atomic_uchar *part; /* [OFFLOAD_PAIRS][n_ff / 32] items of a chunk that are there */
    atomic_uint_least64_t n_jobs, n_experts, n_pairs, bytes;
};

/* An item is a tile: of W, then of W', in turn; of the down product. */
static int32_t gate_items(const offload_layer *l)
{
    return 2 * (l->n_ff / OFFLOAD_TILE);
}
static int32_t down_items(const offload_layer *l)
{
    return (l->down->n_out + OFFLOAD_TILE - 1) / OFFLOAD_TILE;
}

static size_t aligned(size_t n)
{
    return (n + OFFLOAD_LINE - 1) & ~(size_t)(OFFLOAD_LINE - 1);
}

size_t offload_room_bytes(const offload_layer *l, int32_t n, char *at, offload_room *room)
{
    *room = (offload_room){0};
    for (int32_t i = 0; i < n; i++) {
        int32_t n_in = l[i].gate.n_group * OFFLOAD_GROUP, n_out = l[i].n_down * l[i].down->n_out;
        room->n_in = n_in > room->n_in ? n_in : room->n_in;
        room->n_out = n_out > room->n_out ? n_out : room->n_out;
    }
    size_t q = aligned(sizeof(offload_post));
    size_t s = q + aligned((size_t)OFFLOAD_JOB_ROWS * (size_t)room->n_in);
    size_t groups = (size_t)room->n_in / OFFLOAD_GROUP;
    size_t y = s + aligned(OFFLOAD_JOB_ROWS * groups * sizeof(offload_scale));
    size_t end = y + aligned(sizeof(float) * OFFLOAD_PAIRS * (size_t)room->n_out);
    if (at) {
        room->post = (offload_post *)at;
        room->q = (int8_t *)at + q;
        room->s = at + s;
        room->y = (float *)(at + y);
    }
    return end;
}

/* ---- Items ----------------------------------------------------------------------------------- */

static offload_matrix of_expert(const offload_layer *l, offload_matrix w, int32_t e)
{
    size_t on = l->expert_bytes * (size_t)(e - l->first);
    w.codes += on, w.high += on, w.scale += on, w.super += on;
    return w;
}

static void gate_item(offload_pool *p, const offload_layer *l, int32_t i, int32_t item)
{
    const int32_t tile = item / 2;
    const bool second = item % 2;
    const offload_post *post = p->room.post;
    const int32_t first = post->first[i], n = post->first[i + 1] - first, n_in = p->room.n_in;
    const offload_scale *scale = p->room.s;
    const offload_unit unit = (offload_unit)atomic_load_explicit(&post->unit, memory_order_relaxed);
    const float *bias = second ? l->up_bias : l->gate_bias;
    float y[OFFLOAD_ROWS][OFFLOAD_TILE];
    offload_row x[OFFLOAD_ROWS];
    for (int32_t r = 0; r < n; r++) {
        size_t row = (size_t)post->row[first + r];
        x[r] = (offload_row){p->room.q + row * (size_t)n_in,
                             scale + row * (size_t)(n_in / OFFLOAD_GROUP)};
    }
    offload_matrix w = of_expert(l, second ? l->up : l->gate, post->expert[i]);
    p->k->tile(&w, second ? tile + l->up_tile : tile, l->gate_parts, x, n, y);
    if (bias)
        bias += (size_t)l->bias_step * (size_t)(post->expert[i] - l->first) +
                (size_t)tile * OFFLOAD_TILE;
    for (int32_t r = 0; r < n; r++) {
        for (int k = 0; k < OFFLOAD_TILE && bias; k++)
            y[r][k] += bias[k];
        memcpy((second ? p->b : p->a) + (size_t)(first + r) * (size_t)p->n_ff + tile * OFFLOAD_TILE,
               y[r], sizeof y[r]);
    }
    int32_t chunk = item / CHUNK_ITEMS;
    size_t n_chunks = (size_t)p->n_ff / OFFLOAD_GROUP;
    if (atomic_fetch_add_explicit(&p->part[(size_t)i * n_chunks + (size_t)chunk], 1,
                                  memory_order_acq_rel) < CHUNK_ITEMS - 1)
        return;
    for (int32_t r = 0; r < n; r++) {
        size_t at = (size_t)(first + r) * (size_t)p->n_ff + (size_t)chunk * OFFLOAD_GROUP;
        p->k->gate(unit, p->a + at, p->b + at, p->q + at, &p->s[at / OFFLOAD_GROUP]);
    }
    atomic_fetch_add_explicit(&p->gated[i], 1, memory_order_release);
}

/* Waits until all items of the expert's gated unit are computed. Threads take these items before
 * any item of its down product, and a thread that computes one waits for no other thread. So the
 * wait ends. False: the pool closes. Then a device changed the job in the room after posting it,
 * and some items will never be computed. */
static bool gated_unit_done(const offload_pool *p, const offload_layer *l, int32_t i)
{
    int looks = 0;
    while (atomic_load_explicit(&p->gated[i], memory_order_acquire) < l->n_ff / OFFLOAD_GROUP) {
        if (idle_stopped(&p->threads->idle))
            return false;
        if (looks == LOOKS) {
            sched_yield();
        } else {
            looks++;
            relax();
        }
    }
    return true;
}

/* False: the job will never be complete. */
static bool down_item(offload_pool *p, const offload_layer *l, int32_t i, int32_t item)
{
    const offload_post *post = p->room.post;
    const int32_t first = post->first[i], n = post->first[i + 1] - first;
    float y[OFFLOAD_ROWS][OFFLOAD_TILE];
    offload_row x[OFFLOAD_ROWS];
    if (!gated_unit_done(p, l, i))
        return false;
    for (int32_t r = 0; r < n; r++) {
        size_t at = (size_t)(first + r) * (size_t)p->n_ff;
        x[r] = (offload_row){p->q + at, p->s + at / OFFLOAD_GROUP};
    }
    const int32_t n_out = l->down->n_out, o = item * OFFLOAD_TILE, left = n_out - o;
    for (int32_t z = 0; z < l->n_down; z++) {
        const offload_matrix w = of_expert(l, l->down[z], post->expert[i]);
        p->k->tile(&w, item, 1, x, n, y);
        for (int32_t r = 0; r < n; r++) {
            memcpy(p->room.y + (size_t)(first + r) * (size_t)p->room.n_out + z * n_out + o, y[r],
                   sizeof(float) * (size_t)(left < OFFLOAD_TILE ? left : OFFLOAD_TILE));
            x[r].q += w.n_group * OFFLOAD_GROUP;
            x[r].s += w.n_group;
        }
    }
    return true;
}

/* ---- Jobs ------------------------------------------------------------------------------------ */

/* The ticket of the job in memory; 0 if the job makes no sense. Another job may be written while
 * this thread reads: see above. */
static uint64_t word_of(const offload_pool *p, uint32_t seq)
{
    const offload_post *post = p->room.post;
    uint32_t layer = atomic_load_explicit(&post->layer, memory_order_relaxed);
    uint32_t n = atomic_load_explicit(&post->n_experts, memory_order_relaxed);
    if (layer >= (uint32_t)p->n_layers || !n || n > OFFLOAD_PAIRS)
        return 0;
    const offload_layer *l = &p->layer[layer];
    uint32_t items = n * (uint32_t)(gate_items(l) + down_items(l));
    return items <= MAX_ITEMS ? (uint64_t)seq << 32 | (uint64_t)items << 16 : 0;
}

/* Only the device writes a job. It is checked all the same, because a wrong number would be an
 * index beyond an array. */
static bool sound(const offload_post *post, const offload_layer *l, uint32_t n)
{
    bool ok = post->first[0] == 0 && post->first[n] <= OFFLOAD_PAIRS &&
              atomic_load_explicit(&post->unit, memory_order_relaxed) < OFFLOAD_UNITS;
    for (uint32_t i = 0; i < n && ok; i++) {
        int32_t rows = post->first[i + 1] - post->first[i];
        ok = rows > 0 && rows <= OFFLOAD_ROWS && post->expert[i] >= l->first &&
             post->expert[i] < l->first + l->n_experts;
    }
    for (int32_t k = 0; ok && k < post->first[n]; k++)
        ok = post->row[k] >= 0 && post->row[k] < OFFLOAD_JOB_ROWS;
    return ok;
}

static void answer(offload_pool *p, const offload_layer *l, uint32_t seq, uint32_t n)
{
    size_t n_chunks = (size_t)p->n_ff / OFFLOAD_GROUP;
    int32_t n_pairs = p->room.post->first[n];
    for (uint32_t i = 0; i < n; i++) {
        atomic_store_explicit(&p->gated[i], 0, memory_order_relaxed);
        for (size_t k = 0; k < n_chunks; k++)
            atomic_store_explicit(&p->part[i * n_chunks + k], 0, memory_order_relaxed);
    }
    atomic_store_explicit(&p->n_ended, 0, memory_order_relaxed);
    atomic_fetch_add_explicit(&p->n_jobs, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&p->n_experts, n, memory_order_relaxed);
    atomic_fetch_add_explicit(&p->n_pairs, (uint64_t)n_pairs, memory_order_relaxed);
    atomic_fetch_add_explicit(&p->bytes, n * (uint64_t)l->expert_bytes, memory_order_relaxed);
    atomic_store_explicit(&p->room.post->done, seq, memory_order_release);
}

/* How many items a thread takes, from `next` on: the fewer are left, the fewer. So it seldom writes
 * the ticket, and all threads end at about the same time. It takes items of gated units or of down
 * products, not of both: a thread that waits for a gated unit owes no item of it. */
static uint32_t share_of(const offload_pool *p, uint32_t items, uint32_t next, uint32_t n_gate)
{
    uint32_t left = next < n_gate ? n_gate - next : items - next;
    uint32_t n = left / (2 * (uint32_t)p->threads->n);
    return n ? n : 1;
}

/* False: it will never be complete. */
static bool compute(offload_pool *p, const offload_layer *l, int32_t item, int32_t n_gate)
{
    if (item >= n_gate)
        return down_item(p, l, (item - n_gate) / down_items(l), (item - n_gate) % down_items(l));
    gate_item(p, l, item / gate_items(l), item % gate_items(l));
    return true;
}

/* Takes items of job `seq` until none is left. False: the job has not begun, because what this
 * thread read of it was of two jobs; the caller looks again. */
static bool work(offload_pool *p, uint32_t seq)
{
    uint64_t t = atomic_load_explicit(&p->ticket, memory_order_acquire);
    if ((int32_t)(seq - (uint32_t)(t >> 32)) < 0)
        return true; /* a later job has begun since this thread read seq */
    if ((uint32_t)(t >> 32) != seq) {
        uint64_t first = word_of(p, seq);
        if (!first || !atomic_compare_exchange_strong_explicit(
                          &p->ticket, &t, first, memory_order_acq_rel, memory_order_acquire))
            return false;
        t = first;
    }
    const uint32_t items = (uint32_t)(t >> 16) & MAX_ITEMS;
    for (;;) {
        const offload_layer *l;
        uint32_t n, next, n_gate, mine;
        do {
            next = (uint32_t)(t & MAX_ITEMS);
            if ((uint32_t)(t >> 32) != seq || next >= items)
                return true;
            /* What is read here is of this job if the exchange succeeds. */
            uint32_t layer = atomic_load_explicit(&p->room.post->layer, memory_order_relaxed);
            l = &p->layer[layer < (uint32_t)p->n_layers ? layer : 0];
            n = atomic_load_explicit(&p->room.post->n_experts, memory_order_relaxed);
            n_gate = (uint32_t)gate_items(l) * n;
            n_gate = n_gate < items ? n_gate : items;
            mine = share_of(p, items, next, n_gate);
        } while (!atomic_compare_exchange_weak_explicit(
            &p->ticket, &t, t + mine, memory_order_acq_rel, memory_order_acquire));
        /* The job stays as it is until these items have ended. */
        if (n > OFFLOAD_PAIRS || !sound(p->room.post, l, n))
            return true; /* never answered: the device gives up */
        for (uint32_t i = next; i < next + mine; i++)
            if (!compute(p, l, (int32_t)i, (int32_t)n_gate))
                return true;
        if (atomic_fetch_add_explicit(&p->n_ended, mine, memory_order_acq_rel) + mine == items)
            answer(p, l, seq, n);
        t = atomic_load_explicit(&p->ticket, memory_order_acquire);
    }
}

/* ---- Threads --------------------------------------------------------------------------------- */

/* The last job's number, if it waits for an answer; else 0. */
static uint32_t open_job(const offload_pool *p)
{
    const offload_post *post = p->room.post;
    uint32_t seq = atomic_load_explicit(&post->seq, memory_order_acquire);
    return seq == atomic_load_explicit(&post->done, memory_order_relaxed) ||
                   seq == atomic_load_explicit(&post->late, memory_order_relaxed) ||
                   atomic_load_explicit(&p->hold, memory_order_relaxed)
               ? 0
               : seq;
}

static bool has_job(void *user)
{
    const pool_threads *t = user;
    const int32_t n = atomic_load_explicit(&t->n_pools, memory_order_acquire);
    bool has = false;
    for (int32_t i = 0; i < n; i++)
        has |= open_job(t->pool[i]) != 0;
    return has;
}

/* taken: the pool's last job whose items were all taken. A thread that has no part in a job any
 * more reads only `seq`, until it changes: the word `done` is for the thread that answers and for
 * the device. */
static bool look(offload_pool *p, uint32_t *taken)
{
    uint32_t seq = atomic_load_explicit(&p->room.post->seq, memory_order_acquire);
    if (seq == *taken || !(seq = open_job(p)))
        return false;
    if (work(p, seq))
        *taken = seq;
    return true;
}

static void *run(void *arg)
{
    pool_threads *all = arg;
    uint32_t taken[OFFLOAD_POOLS_MAX];
    idler t;
    for (int i = 0; i < OFFLOAD_POOLS_MAX; i++)
        taken[i] = OFFLOAD_FIRST;
    idler_begin(&t);
    while (!idle_stopped(&all->idle)) {
        const int32_t n = atomic_load_explicit(&all->n_pools, memory_order_acquire);
        bool works = false;
        for (int32_t i = 0; i < n; i++)
            works |= look(all->pool[i], &taken[i]);
        idle_between(&all->idle, &t, works, has_job, all);
    }
    return NULL;
}

void offload_pool_wake(offload_pool *p)
{
    idle_wake(&p->threads->idle);
}

/* ---- Opening and closing --------------------------------------------------------------------- */

static status check_layers(const offload_layer *l, int32_t n, err *e)
{
    for (int32_t i = 0; i < n; i++) {
        const offload_matrix *d = l[i].down, *w[2 + OFFLOAD_SEGMENTS] = {&l[i].gate, &l[i].up};
        int32_t n_group = 0;
        bool ok = l[i].n_ff > 0 && l[i].n_ff % OFFLOAD_GROUP == 0 && l[i].gate_parts >= 1 &&
                  l[i].gate_parts <= OFFLOAD_WARPS && l[i].n_down >= 1 &&
                  l[i].n_down <= OFFLOAD_SEGMENTS && l[i].up.n_group == l[i].gate.n_group &&
                  OFFLOAD_PAIRS * (gate_items(&l[i]) + down_items(&l[i])) <= MAX_ITEMS;
        for (int32_t z = 0; ok && z < l[i].n_down; z++) {
            w[2 + z] = &d[z];
            n_group += d[z].n_group;
            ok = d[z].n_out == d->n_out;
        }
        for (int32_t k = 0; ok && k < 2 + l[i].n_down; k++)
            ok = w[k]->kind >= 0 && w[k]->kind < OFFLOAD_KINDS && w[k]->n_group > 0;
        ok = ok && n_group == l[i].n_ff / OFFLOAD_GROUP;
        if (!ok)
            return err_set(e, E_ARG, "experts of layer %d of the list have no kernels for a CPU",
                           i);
    }
    return OK;
}

/* n 0: all cores but one, because the thread that waits for the GPU polls too. */
static status start_threads(pool_threads *t, int32_t n, err *e)
{
    pthread_attr_t attr;
    sigset_t all, before;
    size_t have = 0;
    const int32_t n_cores = pool_default_threads();
    n = n ? n : n_cores > 1 ? n_cores - 1 : 1;
    t->n = n < MAX_THREADS ? n : MAX_THREADS;
    idle_open(&t->idle);
    int failed = pthread_attr_init(&attr);
    if (failed)
        return err_set(e, E_MEMORY, "threads for experts: %s", strerror(failed));
    if (pthread_attr_getstacksize(&attr, &have) || have < STACK_BYTES)
        pthread_attr_setstacksize(&attr, STACK_BYTES);
    sigfillset(&all); /* signals are for the program's own threads */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (t->n_started < t->n && !failed)
        if (!(failed = pthread_create(&t->thread[t->n_started], &attr, run, t)))
            t->n_started++;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
    if (failed)
        return err_set(e, E_MEMORY, "thread %d of %d for experts: %s", t->n_started + 1, t->n,
                       strerror(failed));
    return OK;
}

/* The threads look at this pool too. */
static status add_pool(pool_threads *t, offload_pool *p, err *e)
{
    const int32_t n = atomic_load(&t->n_pools);
    if (n == OFFLOAD_POOLS_MAX)
        return err_set(e, E_ARG, "experts of more than %d devices on the CPU", OFFLOAD_POOLS_MAX);
    t->pool[n] = p;
    atomic_store_explicit(&t->n_pools, n + 1, memory_order_release);
    return OK;
}

static status take_memory(offload_pool *p, const offload_layer *l, err *e)
{
    for (int32_t i = 0; i < p->n_layers; i++)
        p->n_ff = l[i].n_ff > p->n_ff ? l[i].n_ff : p->n_ff;
    size_t n = (size_t)OFFLOAD_PAIRS * (size_t)p->n_ff;
    p->layer = mem_calloc((size_t)p->n_layers, sizeof *p->layer);
    p->a = mem_calloc(n, sizeof *p->a);
    p->b = mem_calloc(n, sizeof *p->b);
    p->q = mem_calloc(n, sizeof *p->q);
    p->s = mem_calloc(n / OFFLOAD_GROUP, sizeof *p->s);
    p->part = mem_calloc(n / OFFLOAD_GROUP, sizeof *p->part);
    if (!p->layer || !p->a || !p->b || !p->q || !p->s || !p->part)
        return err_memory(e, "experts on the CPU", n * 9);
    memcpy(p->layer, l, (size_t)p->n_layers * sizeof *l);
    return OK;
}

/* threads: of another pool; NULL: the pool gets its own. */
static status open_pool(offload_pool **out, pool_threads *threads, const offload_kernels *k,
                        const offload_layer *l, int32_t n, const offload_room *room,
                        int32_t n_threads, err *e)
{
    *out = NULL;
    if (n < 1 || n_threads < 0)
        return err_set(e, E_ARG, "%d layers of experts and %d threads", n, n_threads);
    status st = check_layers(l, n, e);
    if (st)
        return st;
    offload_pool *p = mem_calloc(1, sizeof *p);
    if (p)
        p->threads = threads ? threads : mem_calloc(1, sizeof *p->threads);
    if (!p || !p->threads) {
        mem_free(p);
        return err_memory(e, "experts on the CPU", sizeof *p);
    }
    p->threads->n_users++;
    p->room = *room;
    p->n_layers = n;
    p->k = k;
    st = take_memory(p, l, e);
    atomic_store(&room->post->seq, OFFLOAD_FIRST);
    atomic_store(&room->post->done, OFFLOAD_FIRST);
    atomic_store(&room->post->late, 0);
    atomic_store(&p->ticket, (uint64_t)OFFLOAD_FIRST << 32);
    st = st ? st : add_pool(p->threads, p, e);
    st = st || threads ? st : start_threads(p->threads, n_threads, e);
    if (st)
        offload_pool_close(p);
    else
        *out = p;
    return st;
}

status offload_pool_open(offload_pool **out, const offload_layer *l, int32_t n,
                         const offload_room *room, int32_t n_threads, const char *isa, err *e)
{
    const offload_kernels *k = NULL;
    *out = NULL;
    status st = offload_kernels_find(isa, &k, e);
    return st ? st : open_pool(out, NULL, k, l, n, room, n_threads, e);
}

status offload_pool_open_beside(offload_pool **out, offload_pool *beside, const offload_layer *l,
                                int32_t n, const offload_room *room, err *e)
{
    return open_pool(out, beside->threads, beside->k, l, n, room, 0, e);
}

void offload_pool_close(offload_pool *p)
{
    if (!p)
        return;
    pool_threads *t = p->threads;
    idle_stop(&t->idle);
    for (; t->n_started > 0; t->n_started--)
        pthread_join(t->thread[t->n_started - 1], NULL);
    if (!--t->n_users) {
        idle_close(&t->idle);
        mem_free(t);
    }
    mem_free(p->part);
    mem_free(p->s);
    mem_free(p->q);
    mem_free(p->b);
    mem_free(p->a);
    mem_free(p->layer);
    mem_free(p);
}

double offload_pool_time(offload_pool *p, int32_t n)
{
    offload_post *post = p->room.post;
    if (n < 1 || n > OFFLOAD_PAIRS || open_job(p)) /* whose threads still read the room */
        return -1;
    offload_pool_wake(p);
    for (int32_t i = 0; i < n; i++) {
        post->expert[i] = p->layer[0].first + p->n_timed++ % p->layer[0].n_experts;
        post->first[i] = i;
        post->row[i] = 0;
    }
    post->first[n] = n;
    atomic_store_explicit(&post->layer, 0, memory_order_relaxed);
    atomic_store_explicit(&post->unit, OFFLOAD_GELU, memory_order_relaxed);
    atomic_store_explicit(&post->n_experts, (uint32_t)n, memory_order_relaxed);
    int64_t start = clock_ns();
    uint32_t last = atomic_load_explicit(&post->seq, memory_order_relaxed),
             seq = OFFLOAD_NEXT(last);
    atomic_store_explicit(&post->seq, seq, memory_order_release);
    while (atomic_load_explicit(&post->done, memory_order_acquire) != seq)
        if (clock_ns() - start > offload_pool_limit_ns)
            return -1;
        else
            sched_yield(); /* a thread of the pool may need this core */
    return (double)(clock_ns() - start) * 1e-6 / n;
}

offload_use offload_pool_use(const offload_pool *p)
{
    return (offload_use){atomic_load_explicit(&p->n_jobs, memory_order_relaxed),
                         atomic_load_explicit(&p->n_experts, memory_order_relaxed),
                         atomic_load_explicit(&p->n_pairs, memory_order_relaxed),
                         atomic_load_explicit(&p->bytes, memory_order_relaxed)};
}

int32_t offload_pool_threads(const offload_pool *p)
{
    return p->threads->n;
}

const char *offload_pool_isa(const offload_pool *p)
{
    return p->k->isa;
}

void offload_pool_tire(offload_pool *p)
{
    atomic_store(&p->threads->idle.awake_ns, 0);
}

void offload_pool_hold(offload_pool *p, bool hold)
{
    atomic_store(&p->hold, hold);
}
