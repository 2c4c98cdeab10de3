/* pool.c - see pool.h.
 *
 * One 64-bit word holds the loop's generation (high half) and the next chunk to claim (low half),
 * so a worker that wakes late for an old loop can never claim a chunk of the new one. Completion
 * is a count of finished chunks: the caller's acquire load of it orders all the workers' writes.
 */
#include "base/pool.h"
#include "base/mem.h"
#include "base/relax.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MAX_THREADS = 256, SPINS = 20000, CLOSED = 1 << 30 };
/* SPINS: about 50 us, longer than the gap between two loops of a step. */

/* Kernels keep tiles of up to 200 KB on the stack; a C library's default may be 128. */
static const size_t STACK_BYTES = 1 << 20;

struct pool {
    int32_t n_threads;
    int32_t n_started;
    pthread_t thread[MAX_THREADS];
    _Alignas(64) atomic_uint_least64_t claim; /* generation << 32 | next chunk */
    _Alignas(64) atomic_int n_done;
    _Alignas(64) atomic_uint wake; /* futex word: low bits of the generation, or stop */
    atomic_int n_sleeping;
    atomic_bool stop;
    /* The loop. Written before `claim` is released with a new generation. */
    atomic_int n_chunks;
    _Atomic(pool_fn) fn;
    _Atomic(void *) arg;
};

typedef struct {
    pool *p;
    int32_t index;
    int nice;
} worker_arg;

/* Claims chunks of generation gen until none is left or a newer loop has begun. */
static void run_chunks(pool *p, uint32_t gen, int32_t thread)
{
    uint64_t c = atomic_load_explicit(&p->claim, memory_order_acquire);
    while ((uint32_t)(c >> 32) == gen) {
        /* These loads may belong to a newer loop; then the exchange below fails. */
        int32_t n = atomic_load_explicit(&p->n_chunks, memory_order_relaxed);
        pool_fn fn = atomic_load_explicit(&p->fn, memory_order_relaxed);
        void *arg = atomic_load_explicit(&p->arg, memory_order_relaxed);
        int32_t chunk = (int32_t)(uint32_t)c;
        if (chunk >= n)
            return;
        if (!atomic_compare_exchange_weak_explicit(&p->claim, &c, c + 1, memory_order_acq_rel,
                                                   memory_order_acquire))
            continue;
        fn(arg, chunk, thread);
        atomic_fetch_add_explicit(&p->n_done, 1, memory_order_release);
        c = atomic_load_explicit(&p->claim, memory_order_acquire);
    }
}

void pool_be_nice(int nice)
{
    if (nice)
        setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), nice); /* of Linux: a thread's own */
}

static void *worker(void *ptr)
{
    worker_arg a = *(worker_arg *)ptr;
    mem_free(ptr);
    pool_be_nice(a.nice);
    pool *p = a.p;
    uint32_t seen = 0;
    for (;;) {
        uint32_t now = 0;
        int spin = 0;
        while ((now = atomic_load_explicit(&p->wake, memory_order_acquire)) == seen) {
            if (++spin < SPINS) {
                relax();
                continue;
            }
            atomic_fetch_add(&p->n_sleeping, 1);
            syscall(SYS_futex, &p->wake, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
            atomic_fetch_sub(&p->n_sleeping, 1);
            spin = 0;
        }
        seen = now;
        if (atomic_load(&p->stop))
            return NULL;
        run_chunks(p, now, a.index);
    }
}

static bool start(pthread_t *thread, worker_arg *a)
{
    pthread_attr_t attr;
    size_t have = 0;
    if (!a || pthread_attr_init(&attr))
        return false;
    if (pthread_attr_getstacksize(&attr, &have) || have < STACK_BYTES)
        pthread_attr_setstacksize(&attr, STACK_BYTES); /* if it fails, the default size may do */
    bool ok = !pthread_create(thread, &attr, worker, a);
    pthread_attr_destroy(&attr);
    return ok;
}

static void wake_all(pool *p)
{
    if (atomic_load(&p->n_sleeping) > 0)
        syscall(SYS_futex, &p->wake, FUTEX_WAKE_PRIVATE, MAX_THREADS, NULL, NULL, 0);
}

status pool_open(pool **out, int32_t n_threads, err *e)
{
    return pool_open_nice(out, n_threads, 0, e);
}

status pool_open_nice(pool **out, int32_t n_threads, int nice, err *e)
{
    *out = NULL;
    if (n_threads < 1 || n_threads > MAX_THREADS)
        return err_set(e, E_ARG, "%d threads: expected 1 to %d", n_threads, MAX_THREADS);
    pool *p = mem_aligned(64, sizeof *p);
    if (!p)
        return err_memory(e, "the thread pool", sizeof *p);
    memset(p, 0, sizeof *p);
    p->n_threads = n_threads;
    for (int32_t i = 1; i < n_threads; i++) {
        worker_arg *a = mem_alloc(sizeof *a);
        if (a)
            *a = (worker_arg){p, i, nice};
        if (!start(&p->thread[i], a)) {
            mem_free(a);
            pool_close(p);
            return err_set(e, E_MEMORY, "cannot start thread %d of %d", i + 1, n_threads);
        }
        p->n_started = i;
    }
    *out = p;
    return OK;
}

void pool_close(pool *p)
{
    if (!p)
        return;
    atomic_store(&p->stop, true);
    atomic_fetch_add(&p->wake, 1);
    syscall(SYS_futex, &p->wake, FUTEX_WAKE_PRIVATE, MAX_THREADS, NULL, NULL, 0);
    for (int32_t i = 1; i <= p->n_started; i++)
        pthread_join(p->thread[i], NULL);
    mem_free(p);
}

int32_t pool_n_threads(const pool *p)
{
    return p ? p->n_threads : 1;
}

void pool_run(pool *p, int32_t n_chunks, pool_fn fn, void *arg)
{
    if (!p || p->n_threads == 1 || n_chunks <= 1) {
        for (int32_t i = 0; i < n_chunks; i++)
            fn(arg, i, 0);
        return;
    }
    /* Close the old generation before the loop changes, so no late worker mixes the two. */
    uint32_t gen = (uint32_t)(atomic_load(&p->claim) >> 32) + 1;
    atomic_store(&p->claim, (uint64_t)gen << 32 | CLOSED);
    atomic_thread_fence(memory_order_seq_cst);
    atomic_store_explicit(&p->n_done, 0, memory_order_relaxed);
    atomic_store_explicit(&p->fn, fn, memory_order_relaxed);
    atomic_store_explicit(&p->arg, arg, memory_order_relaxed);
    atomic_store_explicit(&p->n_chunks, n_chunks, memory_order_relaxed);
    gen++;
    atomic_store_explicit(&p->claim, (uint64_t)gen << 32, memory_order_release);
    atomic_store(&p->wake, gen);
    wake_all(p);
    run_chunks(p, gen, 0);
    for (int spin = 0; atomic_load_explicit(&p->n_done, memory_order_acquire) < n_chunks;) {
        if (++spin < SPINS) {
            relax();
        } else {
            sched_yield(); /* more threads than cores: let them finish */
            spin = 0;
        }
    }
}

int32_t pool_default_most = 64;

/* Cores, not hyper-threads: two threads of one core share its arithmetic units. */
int32_t pool_default_threads(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set))
        return 1;
    int32_t n = 0;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &set))
            continue;
        char path[96];
        int first = cpu;
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list",
                 cpu);
        FILE *f = fopen(path, "re");
        if (f) {
            if (fscanf(f, "%d", &first) != 1)
                first = cpu;
            fclose(f);
        }
        if (first == cpu || !CPU_ISSET(first, &set))
            n++;
    }
    return n < 1 ? 1 : n > pool_default_most ? pool_default_most : n;
}
