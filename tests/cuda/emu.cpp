/* emu.cpp - see emu.h: fibers, barriers, warp exchanges, and the host calls on host memory. */
#include "tests/cuda/emu.h"
#include "tests/cuda/emu_trace.h"

#include <algorithm>
#include <dlfcn.h>
#include <map>
#include <iterator>
#include <numeric>
#include <pthread.h>
#include <set>
#include <stdio.h>
#include <sys/mman.h>
#include <time.h>
#include <vector>

enum {
    THREADS_MAX = 1024,
    STACK_BYTES = 96 << 10,
    PRODUCTS = 64,  /* asynchronous products of a thread */
    LATE_TURNS = 4, /* of the other threads before a late product is computed */
    TRIES = 10000000
};

struct late_product {
    emu_product p;
    uint32_t regs[4]; /* of A, and the rows of A that they are part of */
    float a[2][16];
    int commit; /* the number of the commit it belongs to */
};

/* A copy of up to 16 bytes that is not done; from NULL: zeros. */
struct late_copy {
    void *to;
    const void *from;
    int n, commit;
};

struct emu_fiber {
    void *sp;
    char *stack;
    dim3 tid;
    int index;
    bool done;
    const unsigned *barrier; /* waits while this is `generation`; NULL: it can run */
    unsigned generation;
    late_copy *copy; /* oldest first */
    int n_copies, copies_cap, n_copy_commits;
    /* Products not yet done, oldest first. */
    late_product late[PRODUCTS];
    int n_products, n_commits;
};

struct warp_table {
    uint32_t row[32][32];
    int n_in, n_alive;
    unsigned generation;
};

emu_fiber *emu_now;
dim3 emu_block_idx, emu_block_dim, emu_grid_dim;
static emu_fiber fibers[THREADS_MAX];
static warp_table warps[THREADS_MAX / 32];
static int n_fibers, n_alive, block_in, block_alive;
static unsigned block_generation;
static void *main_sp;
static void (*the_call)(void *);
static void *the_arg;
static const void *the_kernel; /* of a launch; NULL: a part of a recording */
static size_t the_shared;      /* its dynamic shared memory */
static char *dyn;
static size_t dyn_cap;

const dim3 &emu_thread_idx()
{
    return emu_now->tid;
}
int emu_lane()
{
    return emu_now->index & 31;
}
void *emu_dyn_shared()
{
    return dyn;
}

/* Saves the callee-saved registers on the stack of *from and continues where `to` was saved. */
extern "C" void emu_switch(void **from, void *to);
__asm__(".text\n.globl emu_switch\nemu_switch:\n"
        "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
        "movq %rsp,(%rdi)\nmovq %rsi,%rsp\n"
        "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\nret\n");

static void stuck(const char *what)
{
    fprintf(stderr, "emu: block (%u,%u,%u): %s never completes: threads diverged\n",
            emu_block_idx.x, emu_block_idx.y, emu_block_idx.z, what);
    abort();
}

/* ---- Orders -------------------------------------------------------------------------------- */

/* What a block's threads do in EMU_ORDER. TURNS: every thread in turn, as without it. WARPS: a warp
 * runs as long as it can, then the first one of `order` that can. So warps are as far apart as
 * barriers allow, and lanes as far as exchanges do. */
enum order_kind { TURNS, WARPS, ORDER_KINDS };
static struct {
    bool on;
    uint64_t state; /* of random numbers */
    order_kind kind;
    int warp[THREADS_MAX / 32]; /* the first to the last */
    int lane_from, lane_by;     /* the i-th lane is lane_from + i lane_by; lane_by is odd */
    bool late_copies;
} order;

static uint32_t draw(uint32_t n)
{
    order.state = order.state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((order.state >> 33) % n);
}

static void read_order()
{
    static bool done;
    const char *text = getenv("EMU_ORDER");
    if (done)
        return;
    done = true;
    order.on = text && *text;
    order.state = order.on ? strtoull(text, NULL, 10) * 2 + 1 : 0;
}

static void begin_order(int n_warps)
{
    order.kind = order.on ? (order_kind)draw(ORDER_KINDS) : TURNS;
    order.late_copies = order.on && draw(2);
    order.lane_from = order.on ? (int)draw(32) : 0;
    order.lane_by = order.on ? (int)draw(16) * 2 + 1 : 1;
    for (int i = 0; i < n_warps; i++) {
        int j = order.on ? (int)draw((uint32_t)i + 1) : i;
        order.warp[i] = order.warp[j];
        order.warp[j] = i;
    }
}

/* A number that steps through 0 .. n - 1 as i does, each once. */
static uint64_t shuffled(uint64_t i, uint64_t n, uint64_t by, uint64_t from)
{
    return order.on ? (i * by + from) % n : i;
}

static bool can_run(const emu_fiber *f)
{
    return !f->done && !(f->barrier && *f->barrier == f->generation);
}

/* The next lane of a warp that can run, behind lane `after` (-1: any); NULL: there is none. */
static emu_fiber *next_lane(int warp, int after)
{
    int first = 0;
    for (; after >= 0 && (order.lane_from + first * order.lane_by) % 32 != after; first++)
        ;
    for (int i = 1; i <= 32; i++) {
        int lane = (order.lane_from + (first + i) * order.lane_by) % 32;
        if (can_run(&fibers[warp * 32 + lane]))
            return &fibers[warp * 32 + lane];
    }
    return NULL;
}

/* Who runs after `me`; NULL: nobody can. spins: it waits for something that others do. */
static emu_fiber *next_fiber(const emu_fiber *me, bool spins)
{
    /* In turn: those who spin can run, and would keep others of their warps from it. */
    if (order.kind == TURNS || spins) {
        for (int i = 1; i <= n_fibers; i++) {
            int at = (me->index + i) % n_fibers;
            if (can_run(&fibers[at]))
                return &fibers[at];
        }
        return NULL;
    }
    emu_fiber *f = next_lane(me->index / 32, me->index % 32);
    for (int i = 0; i < n_fibers / 32 && !f; i++)
        f = next_lane(order.warp[i], -1);
    return f;
}

/* To the next fiber; back to emu_run when all are done. */
static void yield_on(bool spins, const char *what)
{
    emu_fiber *me = emu_now, *f = next_fiber(me, spins);
    if (f == me)
        return;
    if (!f && n_alive)
        stuck(what);
    emu_now = f;
    emu_switch(&me->sp, f ? f->sp : main_sp);
}

void emu_yield(long tries, const char *what)
{
    if (tries > TRIES)
        stuck(what);
    yield_on(true, what);
}

static void wait_at(const unsigned *barrier, unsigned generation, const char *what)
{
    emu_now->barrier = barrier;
    emu_now->generation = generation;
    while (*barrier == generation)
        yield_on(false, what);
    emu_now->barrier = NULL;
}

/* ---- Barriers ------------------------------------------------------------------------------ */

static void release_block_barrier()
{
    if (block_in && block_in == block_alive) {
        block_in = 0;
        block_generation++;
    }
}
static void release_warp_barrier(warp_table *w)
{
    if (w->n_in && w->n_in == w->n_alive) {
        w->n_in = 0;
        w->generation++;
    }
}

/* ---- Copies to shared memory --------------------------------------------------------------- */

/* Those of all but the last n commits; -1: those without a commit too. */
static void run_copies_of(emu_fiber *f, int n)
{
    int done = 0;
    for (; done < f->n_copies && f->copy[done].commit < f->n_copy_commits - n; done++) {
        const late_copy *c = &f->copy[done];
        if (c->from)
            memcpy(c->to, c->from, (size_t)c->n);
        else
            memset(c->to, 0, (size_t)c->n);
    }
    f->n_copies -= done;
    memmove(f->copy, f->copy + done, (size_t)f->n_copies * sizeof *f->copy);
}
void emu_copy_late(void *to, const void *from, int n)
{
    emu_fiber *f = emu_now;
    if (f->n_copies == f->copies_cap) {
        f->copies_cap = f->copies_cap ? 2 * f->copies_cap : 64;
        f->copy = (late_copy *)realloc(f->copy, (size_t)f->copies_cap * sizeof *f->copy);
    }
    f->copy[f->n_copies++] = late_copy{to, from, n, f->n_copy_commits};
    memset(to, 0xff, (size_t)n); /* NaN: it may be written from now on */
}
bool emu_copies_are_late()
{
    return order.late_copies;
}
void emu_copy_commit()
{
    emu_now->n_copy_commits++;
}
void emu_copy_wait(int n)
{
    if (emu_now->n_copies)
        run_copies_of(emu_now, n);
}

static void fiber_main()
{
    the_call(the_arg);
    if (emu_now->n_products) {
        fprintf(stderr, "emu: a thread ends and has not waited for its products\n");
        abort();
    }
    run_copies_of(emu_now, -1);
    emu_now->done = true;
    n_alive--;
    /* As on the device: threads that have left no longer count at barriers. */
    warp_table *w = &warps[emu_now->index / 32];
    block_alive--;
    w->n_alive--;
    release_block_barrier();
    release_warp_barrier(w);
    yield_on(false, "a block");
    abort();
}

void __syncthreads()
{
    unsigned g = block_generation;
    block_in++;
    release_block_barrier();
    wait_at(&block_generation, g, "__syncthreads");
}

/* Named barriers: threads that have arrived, completed rounds. Empty when a block ends. */
static struct {
    int in;
    unsigned generation;
} named[16];
void emu_named_barrier(int id, int n_threads)
{
    unsigned g = named[id].generation;
    if (++named[id].in == n_threads) {
        named[id].in = 0;
        named[id].generation++;
    }
    wait_at(&named[id].generation, g, "a barrier of some threads");
}

static void warp_barrier()
{
    warp_table *w = &warps[emu_now->index / 32];
    unsigned g = w->generation;
    w->n_in++;
    release_warp_barrier(w);
    wait_at(&w->generation, g, "a warp exchange");
}
void __syncwarp(unsigned mask)
{
    (void)mask;
    warp_barrier();
}

const uint32_t (*emu_warp_give(const uint32_t *mine, int n))[32]
{
    warp_table *w = &warps[emu_now->index / 32];
    memcpy(w->row[emu_lane()], mine, (size_t)n * 4);
    warp_barrier();
    return w->row;
}
void emu_warp_done()
{
    warp_barrier();
}

/* ---- Products of warpgroups --------------------------------------------------------------- */

/* A value of 16 bits as a float. */
static float half_of(uint16_t bits, bool bf16)
{
    uint32_t wide = (uint32_t)bits << 16;
    float f;
    _Float16 x;
    memcpy(&f, &wide, sizeof f);
    memcpy(&x, &bits, sizeof x);
    return bf16 ? f : (float)x;
}

static float half_at(uint32_t at, bool bf16)
{
    at ^= (at >> 7 & 7) << 4; /* the 128-byte swizzle permutes addresses */
    if (at + 2 > dyn_cap) {
        fprintf(stderr, "emu: an operand beyond shared memory\n");
        abort();
    }
    uint16_t bits;
    memcpy(&bits, dyn + at, sizeof bits);
    return half_of(bits, bf16);
}

/* Element (i, k) of an operand: i counts rows of D for A, columns for B. */
static uint32_t element(uint64_t desc, int i, int k, bool across)
{
    uint32_t at = (uint32_t)(desc & 0x3fff) << 4, next_block = (uint32_t)(desc >> 16 & 0x3fff) << 4;
    uint32_t eight = (uint32_t)(desc >> 32 & 0x3fff) << 4;
    if (across)
        return at + (uint32_t)(i / 64) * next_block + (uint32_t)(i % 64) * 2 +
               (uint32_t)(k / 8) * eight + (uint32_t)(k % 8) * 128;
    return at + (uint32_t)(i / 8) * eight + (uint32_t)(i % 8) * 128 + (uint32_t)k * 2;
}

static void check_operand(uint64_t desc)
{
    if (desc >> 62 != 1 || (desc >> 49 & 7) || (desc >> 3 & 7)) {
        fprintf(stderr, "emu: an operand not at 1024 bytes, or not swizzled by 128\n");
        abort();
    }
}

/* The thread's two rows of A: from memory, or from the four threads that hold them. */
static void rows_of_a(const emu_product *p, float (*a)[16])
{
    int lane = emu_lane(), row = emu_now->index / 32 % 4 * 16 + lane / 4;
    for (int h = 0; h < 2 && !p->a_regs; h++)
        for (int k = 0; k < 16; k++)
            a[h][k] = half_at(element(p->a, row + 8 * h, k, false), p->bf16);
    if (!p->a_regs)
        return;
    const uint32_t(*w)[32] = emu_warp_give(p->a_regs, 4);
    for (int h = 0; h < 2; h++)
        for (int k = 0; k < 16; k++) {
            uint32_t u = w[lane / 4 * 4 + k % 8 / 2][h + k / 8 * 2] >> k % 2 * 16;
            a[h][k] = half_of((uint16_t)u, p->bf16);
        }
    emu_warp_done();
}

static void multiply(const emu_product *p, const float (*a)[16])
{
    for (int i = 0; i < p->n / 4; i++) {
        int column = i / 2 * 8 + 2 * (emu_lane() % 4) + i % 2;
        float *d = p->d + i / 2 * 4 + i % 2;
        float top = p->sum ? d[0] : 0, bottom = p->sum ? d[2] : 0;
        for (int k = 0; k < 16; k++) {
            float b = half_at(element(p->b, column, k, p->b_across), p->bf16);
            top += a[0][k] * b;
            bottom += a[1][k] * b;
        }
        d[0] = top, d[2] = bottom;
    }
}

void emu_product_issue(const emu_product *p)
{
    emu_fiber *f = emu_now;
    float a[2][16];
    check_operand(p->b);
    if (!p->a_regs)
        check_operand(p->a);
    bool now = (emu_block_idx.x + emu_block_idx.y) % 2 == 0;
    if (now || p->a_regs)
        rows_of_a(p, a);
    if (now) {
        multiply(p, a);
        return;
    }
    if (f->n_products == PRODUCTS) {
        fprintf(stderr, "emu: more than %d products in the background\n", PRODUCTS);
        abort();
    }
    late_product *l = &f->late[f->n_products++];
    l->p = *p;
    l->commit = f->n_commits;
    if (p->a_regs) {
        memcpy(l->a, a, sizeof a);
        memcpy(l->regs, p->a_regs, sizeof l->regs);
    }
}
void emu_product_commit()
{
    emu_now->n_commits++;
}
void emu_product_wait(int n)
{
    emu_fiber *f = emu_now;
    int done = 0;
    /* The other threads run meanwhile. */
    for (int i = 0; i < LATE_TURNS && f->n_products; i++)
        yield_on(true, "a product");
    for (; done < f->n_products && f->late[done].commit < f->n_commits - n; done++) {
        late_product *l = &f->late[done];
        if (!l->p.a_regs)
            rows_of_a(&l->p, l->a);
        else if (memcmp(l->regs, l->p.a_regs, sizeof l->regs)) {
            fprintf(stderr, "emu: registers written while a product reads them\n");
            abort();
        }
        multiply(&l->p, l->a);
    }
    f->n_products -= done;
    memmove(f->late, f->late + done, (size_t)f->n_products * sizeof *f->late);
}

static void start_fiber(emu_fiber *f, int i, dim3 block)
{
    f->index = i;
    f->done = false;
    f->n_products = f->n_commits = 0;
    f->barrier = NULL;
    f->n_copies = f->n_copy_commits = 0;
    f->tid = dim3((unsigned)i % block.x, (unsigned)i / block.x % block.y,
                  (unsigned)i / (block.x * block.y));
    if (!f->stack)
        f->stack = (char *)mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    void **sp = (void **)(f->stack + STACK_BYTES);
    *--sp = NULL; /* keeps the alignment that a call would leave */
    *--sp = (void *)fiber_main;
    for (int r = 0; r < 6; r++)
        *--sp = NULL;
    f->sp = sp;
}

/* EMU_LAUNCHES=FILE: every launch, the ones that are recorded among them and those of recordings not,
 * in order: the kernel's name and its blocks. So the launches of two builds can be compared. */
static void list_launch(dim3 grid)
{
    static FILE *const list = getenv("EMU_LAUNCHES") ? fopen(getenv("EMU_LAUNCHES"), "w") : NULL;
    Dl_info at;
    if (list && the_kernel)
        fprintf(list, "%s %u x %u x %u\n",
                dladdr(the_kernel, &at) && at.dli_sname ? at.dli_sname : "?", grid.x, grid.y,
                grid.z);
}

void emu_run(dim3 grid, dim3 block, size_t shared_bytes, void (*call)(void *), void *arg)
{
    n_fibers = (int)(block.x * block.y * block.z);
    if (n_fibers > THREADS_MAX || n_fibers % 32 || grid.y > 65535 || grid.z > 65535 || !grid.x ||
        !grid.y || !grid.z) {
        fprintf(stderr, "emu: a launch of %u x %u x %u blocks of %d threads\n", grid.x, grid.y,
                grid.z, n_fibers);
        abort();
    }
    list_launch(grid);
    emu_grid_dim = grid;
    emu_block_dim = block;
    the_call = call;
    the_arg = arg;
    the_shared = shared_bytes;
    free(dyn);
    dyn_cap = (shared_bytes + 1023) & ~(size_t)1023;
    dyn = (char *)aligned_alloc(1024, dyn_cap ? dyn_cap : 1024);
    read_order();
    uint64_t n_blocks = (uint64_t)grid.x * grid.y * grid.z, by = 1, from = 0;
    if (order.on) {
        from = draw((uint32_t)(n_blocks < UINT32_MAX ? n_blocks : UINT32_MAX));
        for (by = from | 1; std::gcd(by, n_blocks) != 1;)
            by += 2;
    }
    for (uint64_t i = 0; i < n_blocks; i++) {
        uint64_t at = shuffled(i, n_blocks, by, from);
        emu_block_idx = dim3((unsigned)(at % grid.x), (unsigned)(at / grid.x % grid.y),
                             (unsigned)(at / grid.x / grid.y));
        memset(dyn, 0xff, dyn_cap); /* NaN: shared memory starts undefined */
        block_in = 0;
        block_alive = n_alive = n_fibers;
        begin_order(n_fibers / 32);
        for (int w = 0; w < n_fibers / 32; w++)
            warps[w].n_in = 0, warps[w].n_alive = 32;
        for (int k = 0; k < n_fibers; k++)
            start_fiber(&fibers[k], k, block);
        emu_now = order.kind == TURNS ? &fibers[0] : next_lane(order.warp[0], -1);
        emu_switch(&main_sp, emu_now->sp);
    }
}

/* ---- Two unequal GPUs --------------------------------------------------------------------- */

/* They differ in the facts that code might keep once per process: multiprocessors, capability,
 * shared memory. */
static const cudaDeviceProp gpus[] = {
    {"emulated", 4, 9, 0, (size_t)1 << 32, 227 << 10, 228 << 10},
    {"emulated, smaller", 3, 8, 6, (size_t)1 << 32, 99 << 10, 100 << 10}};
enum { GPUS = sizeof gpus / sizeof *gpus, GRANTS = 4096, ANY_KERNEL_SHARED = 48 << 10 };
static thread_local int current_gpu;
static int lost_gpu = -1, losing_gpu = -1, losing_in;
static thread_local cudaError_t last_error;

/* Kernels and most copies run at once. Copies on a stream with a priority wait until an event that
 * follows them is waited for: so a wait that is missing shows. */
struct emu_copy {
    void *to;
    const void *from;
    size_t n;
};
enum { COPIES = 256 /* that wait on a stream */ };
/* A recorded launch, copy or clearing. */
struct emu_op {
    dim3 grid, block;
    size_t shared_bytes;
    void (*call)(void *), (*drop)(void *); /* of a launch, with f; else NULL */
    void *f;
    emu_copy copy; /* from NULL: n bytes of `value` */
    int value;
    cudaEvent_t event; /* not NULL: it is recorded, and nothing else */
};
struct emu_stream;
struct emu_event;
/* What is known to have ended of each stream of a recording: so many of its ops. */
typedef std::map<const emu_stream *, size_t> emu_known;
struct emu_graph {
    std::vector<emu_op> op;
    size_t n; /* of them, also when they have gone to an emu_graph_exec */
    /* Several streams may be recorded: one that waits for an event of another joins it. Ops run in
     * the order of their calls. Before the recording ends, its first stream must have waited for
     * the last op of every other one. */
    std::map<const emu_stream *, emu_known> at;
    std::map<const emu_event *, emu_known> then;
};
struct emu_graph_exec {
    std::vector<emu_op> op;
};
/* Where a stream, the host or an event is in a trace (emu_trace.h). */
struct emu_clock {
    uint32_t n[EMU_CLOCKS];
    double time;
    bool stalled; /* behind an op that never ends */
};
struct emu_stream {
    int gpu;
    int id; /* its clock; 0: none */
    bool late;
    emu_graph *record; /* NULL: it runs what it is given */
    bool spoiled;      /* something was called that no recording can have */
    emu_copy copy[COPIES];
    size_t n_done, n; /* copies: done, asked for; the n-th is copy[n % COPIES] */
    emu_clock now;
    int to_fault; /* ops to a fault; 0: none comes */
    bool failed;
};
struct emu_event {
    double ms;
    emu_stream *stream; /* NULL: nothing waits before it */
    size_t n;           /* copies of the stream before it */
    bool asked;
    emu_clock then;
    emu_graph *record; /* it is an edge of that recording, and nothing else */
};
static int copies_to_failure;

static std::vector<emu_stream *> streams; /* that are open */
static std::vector<emu_traced> traced;
static emu_clock host_clock;
static double launch_time, copy_time, start_time;
static bool tracing;
static emu_fault fault_kind;
static int waits_forever;

static void not_before(emu_clock *c, const emu_clock *other)
{
    for (int i = 0; i < EMU_CLOCKS; i++)
        c->n[i] = std::max(c->n[i], other->n[i]);
    c->time = std::max(c->time, other->time);
    c->stalled |= other->stalled;
}

/* Before each launch or copy that runs. False: it does not run, because the stream has failed, or
 * stalls. */
static bool may_run(emu_stream *s, const void *to, size_t n_bytes)
{
    if (!s)
        return true;
    if (s->to_fault && --s->to_fault == 0) {
        s->failed = fault_kind == EMU_FAIL;
        s->now.stalled = fault_kind == EMU_STALL;
    }
    if (s->failed || s->now.stalled)
        return false;
    if (!tracing || !s->id)
        return true;
    not_before(&s->now, &host_clock);
    s->now.n[s->id]++;
    emu_traced t = {s->id, s->gpu, to, n_bytes, s->now.time - start_time, 0, {}};
    t.end = t.begin + (to ? copy_time : launch_time);
    s->now.time = start_time + t.end;
    memcpy(t.clock, s->now.n, sizeof t.clock);
    traced.push_back(t);
    return true;
}

/* The host waits until `c` is reached. */
static cudaError_t host_waits(const emu_clock *c)
{
    if (c->stalled) {
        waits_forever++;
        return cudaErrorNotReady;
    }
    if (tracing)
        not_before(&host_clock, c);
    return cudaSuccess;
}

static void drop_ops(std::vector<emu_op> &op)
{
    for (emu_op &o : op)
        if (o.drop)
            o.drop(o.f);
    op.clear();
}
bool emu_records(cudaStream_t s)
{
    return s && s->record;
}
static void add_op(cudaStream_t s, const emu_op &o)
{
    s->record->op.push_back(o);
    s->record->at[s][s]++;
}
void emu_record(cudaStream_t s, dim3 grid, dim3 block, size_t shared_bytes, void (*call)(void *),
                void (*drop)(void *), void *f)
{
    list_launch(grid);
    add_op(s, {grid, block, shared_bytes, call, drop, f, {}, 0, NULL});
}
static cudaError_t record_copy(cudaStream_t s, void *to, const void *from, size_t n, int value)
{
    add_op(s, {1, 1, 0, NULL, NULL, NULL, {to, from, n}, value, NULL});
    return cudaSuccess;
}

static void run_copies(emu_stream *s, size_t until)
{
    for (; s && s->n_done < until; s->n_done++) {
        emu_copy *c = &s->copy[s->n_done % COPIES];
        memmove(c->to, c->from, c->n);
    }
}

/* How much dynamic shared memory each kernel may be launched with, by GPU. */
static struct {
    const void *kernel;
    int bytes[GPUS];
} grants[GRANTS];

/* The kernel's entry, or the free one where it belongs. */
static int grant_of(const void *kernel)
{
    int i = (int)((uintptr_t)kernel / 16 % GRANTS);
    for (int n = 0; grants[i].kernel && grants[i].kernel != kernel; n++, i = (i + 1) % GRANTS)
        if (n == GRANTS) {
            fprintf(stderr, "emu: more than %d kernels\n", GRANTS);
            abort();
        }
    return i;
}

int emu_allow_shared(const void *kernel, int bytes)
{
    if (bytes < 0 || (size_t)bytes > gpus[current_gpu].sharedMemPerBlockOptin)
        return cudaErrorInvalidValue;
    int i = grant_of(kernel);
    grants[i].kernel = kernel;
    grants[i].bytes[current_gpu] = bytes;
    return cudaSuccess;
}

/* EMU_KERNELS=FILE: the kernels that ran, as distances from the code of this file, so that two runs
 * of one program can be compared. */
static std::set<const void *> ran;
static void write_ran()
{
    FILE *f = fopen(getenv("EMU_KERNELS"), "w");
    for (const void *k : ran)
        if (f)
            fprintf(f, "%td\n", (const char *)k - (const char *)&write_ran);
    if (f)
        fclose(f);
}
static void remember(const void *kernel)
{
    static const bool wanted = getenv("EMU_KERNELS") && !atexit(write_ran);
    if (wanted)
        ran.insert(kernel);
}

bool emu_may_launch(const void *kernel, size_t shared_bytes, cudaStream_t s)
{
    remember(kernel);
    if (!emu_records(s) && !may_run(s, NULL, 0)) {
        last_error = s->failed ? cudaErrorInvalidValue : last_error;
        return false;
    }
    if (s && s->gpu != current_gpu) {
        fprintf(stderr, "emu: a launch on a stream of GPU %d while GPU %d is current\n", s->gpu,
                current_gpu);
        last_error = cudaErrorInvalidResourceHandle;
        return false;
    }
    if (shared_bytes > ANY_KERNEL_SHARED &&
        shared_bytes > (size_t)grants[grant_of(kernel)].bytes[current_gpu]) {
        fprintf(stderr, "emu: %zu bytes of shared memory that GPU %d has not granted\n",
                shared_bytes, current_gpu);
        last_error = cudaErrorInvalidValue;
        return false;
    }
    the_kernel = kernel;
    return true;
}
/* A kernel that was granted nothing has 48 KB, and a grant counts as used. */
void emu_static_shared(size_t bytes, size_t most)
{
    if (!the_kernel)
        return;
    const size_t granted = (size_t)grants[grant_of(the_kernel)].bytes[current_gpu];
    const size_t beside = granted ? granted : the_shared;
    if (!granted)
        most = ANY_KERNEL_SHARED;
    if (beside + bytes <= most)
        return;
    fprintf(stderr, "emu: %zu bytes of static shared memory beside %zu: a block has %zu\n", bytes,
            beside, most);
    last_error = cudaErrorInvalidValue;
}

/* ---- Host calls --------------------------------------------------------------------------- */

extern "C" {
const char *cudaGetErrorString(cudaError_t e)
{
    return e ? "an error of the emulator" : "no error";
}
cudaError_t cudaGetLastError(void)
{
    cudaError_t e = last_error;
    last_error = cudaSuccess;
    return e;
}
cudaError_t cudaGetDeviceCount(int *n)
{
    *n = GPUS;
    return cudaSuccess;
}
void emu_lose_gpu(int gpu)
{
    lost_gpu = gpu;
    losing_gpu = -1;
}
void emu_lose_gpu_at(int gpu, int n)
{
    lost_gpu = -1;
    losing_gpu = gpu;
    losing_in = n;
}
int emu_lost_gpu(void)
{
    return lost_gpu;
}
cudaError_t cudaSetDevice(int d)
{
    if (d < 0 || d >= GPUS || d == lost_gpu)
        return cudaErrorInvalidDevice;
    current_gpu = d;
    return cudaSuccess;
}
cudaError_t cudaGetDevice(int *d)
{
    *d = current_gpu;
    return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int d)
{
    if (d == losing_gpu && !--losing_in)
        lost_gpu = d;
    if (d < 0 || d >= GPUS || d == lost_gpu)
        return cudaErrorInvalidDevice;
    *p = gpus[d];
    return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t *f, size_t *t)
{
    *f = *t = (size_t)1 << 32;
    return cudaSuccess;
}
cudaError_t cudaMalloc(void **p, size_t n)
{
    n = (n + 255) & ~(size_t)255;
    *p = aligned_alloc(256, n);
    if (*p)
        memset(*p, 0xff, n);
    return *p ? cudaSuccess : cudaErrorMemoryAllocation;
}
cudaError_t cudaFree(void *p)
{
    free(p);
    return cudaSuccess;
}
cudaError_t cudaMallocHost(void **p, size_t n)
{
    *p = malloc(n);
    return *p ? cudaSuccess : cudaErrorMemoryAllocation;
}
cudaError_t cudaFreeHost(void *p)
{
    free(p);
    return cudaSuccess;
}
/* What is locked, by address. A copy from or to locked memory stays inside one such range. */
static pthread_mutex_t locked_mutex = PTHREAD_MUTEX_INITIALIZER;
static std::map<const char *, size_t> locked;

static bool in_one_range(const void *host, size_t n)
{
    const char *at = (const char *)host;
    pthread_mutex_lock(&locked_mutex);
    auto after = locked.upper_bound(at);
    bool reached = after != locked.end() && after->first < at + n; /* begins outside */
    if (after != locked.begin() && !reached) {
        auto before = std::prev(after);
        const char *end = before->first + before->second;
        reached = at < end && at + n > end;
    }
    pthread_mutex_unlock(&locked_mutex);
    return !reached;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n, enum cudaMemcpyKind kind,
                            cudaStream_t s)
{
    if (kind != cudaMemcpyDeviceToDevice &&
        !in_one_range(kind == cudaMemcpyHostToDevice ? from : to, n))
        return last_error = cudaErrorInvalidValue;
    if (emu_records(s))
        return record_copy(s, to, from, n, 0);
    if (!may_run(s, to, n))
        return s->failed ? last_error = cudaErrorInvalidValue : cudaSuccess;
    if (!s || !s->late) {
        memmove(to, from, n);
        return cudaSuccess;
    }
    if (copies_to_failure > 0 && --copies_to_failure == 0)
        return last_error = cudaErrorInvalidValue;
    if (s->n - s->n_done == COPIES)
        run_copies(s, s->n_done + 1);
    s->copy[s->n++ % COPIES] = emu_copy{to, from, n};
    return cudaSuccess;
}
void emu_fail_copy(int n)
{
    copies_to_failure = n;
}
cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch,
                              size_t width, size_t height, enum cudaMemcpyKind kind, cudaStream_t s)
{
    cudaError_t r = cudaSuccess;
    for (size_t i = 0; i < height && !r; i++)
        r = cudaMemcpyAsync((char *)to + i * to_pitch, (const char *)from + i * from_pitch, width,
                            kind, s);
    return r;
}
cudaError_t cudaHostRegister(void *at, size_t n, unsigned)
{
    pthread_mutex_lock(&locked_mutex);
    locked[(const char *)at] = n;
    pthread_mutex_unlock(&locked_mutex);
    return cudaSuccess;
}
cudaError_t cudaHostGetDevicePointer(void **to, void *p, unsigned)
{
    *to = p;
    return cudaSuccess;
}

cudaError_t cudaHostUnregister(void *at)
{
    pthread_mutex_lock(&locked_mutex);
    bool was = locked.erase((const char *)at) > 0;
    pthread_mutex_unlock(&locked_mutex);
    return was ? cudaSuccess : last_error = cudaErrorInvalidValue;
}
cudaError_t cudaMemsetAsync(void *to, int v, size_t n, cudaStream_t s)
{
    if (emu_records(s))
        return record_copy(s, to, NULL, n, v);
    memset(to, v, n);
    return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned)
{
    *s = (cudaStream_t)calloc(1, sizeof(emu_stream));
    if (!*s)
        return cudaErrorMemoryAllocation;
    (*s)->gpu = current_gpu;
    for (int id = 1; id < EMU_CLOCKS && !(*s)->id; id++) {
        bool used = false;
        for (const emu_stream *o : streams)
            used |= o->id == id;
        (*s)->id = used ? 0 : id;
    }
    streams.push_back(*s);
    return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t s)
{
    streams.erase(std::remove(streams.begin(), streams.end(), s), streams.end());
    free(s);
    return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *s, unsigned flags, int)
{
    cudaError_t e = cudaStreamCreateWithFlags(s, flags);
    if (!e)
        (*s)->late = true;
    return e;
}
cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
    if (emu_records(s)) {
        s->spoiled = true;
        return last_error = cudaErrorStreamCaptureUnsupported;
    }
    if (s && s->failed)
        return last_error = cudaErrorInvalidValue;
    run_copies(s, s ? s->n : 0);
    return s ? host_waits(&s->now) : cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int *can, int gpu, int other)
{
    *can = gpu != other;
    return gpu >= 0 && gpu < GPUS && other >= 0 && other < GPUS ? cudaSuccess
                                                                : cudaErrorInvalidDevice;
}
cudaError_t cudaDeviceEnablePeerAccess(int other, unsigned)
{
    static bool enabled[GPUS][GPUS];
    bool again = enabled[current_gpu][other];
    enabled[current_gpu][other] = true;
    return again ? last_error = cudaErrorPeerAccessAlreadyEnabled : cudaSuccess;
}
/* A recorded stream waits for events of its recording alone. */
static cudaError_t wait_recorded(cudaStream_t s, cudaEvent_t e)
{
    if (s->record && s->record != e->record) {
        s->spoiled = true;
        return last_error = cudaErrorStreamCaptureInvalidated;
    }
    s->record = e->record;
    for (const auto &k : s->record->then[e])
        s->record->at[s][k.first] = std::max(s->record->at[s][k.first], k.second);
    return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned)
{
    if (s->record || e->record)
        return wait_recorded(s, e);
    run_copies(e->stream, e->n);
    if (tracing || e->then.stalled)
        not_before(&s->now, &e->then);
    return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned)
{
    *e = (cudaEvent_t)calloc(1, sizeof(emu_event));
    return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t *e)
{
    return cudaEventCreateWithFlags(e, 0);
}
cudaError_t cudaEventDestroy(cudaEvent_t e)
{
    free(e);
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s)
{
    e->record = s ? s->record : NULL;
    if (e->record) {
        e->record->then[e] = e->record->at[s];
        return cudaSuccess;
    }
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    *e = emu_event{(double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6, s && s->late ? s : NULL,
                   s ? s->n : 0, false, s ? s->now : emu_clock{}, NULL};
    if (tracing)
        not_before(&e->then, &host_clock);
    return s && s->failed ? last_error = cudaErrorInvalidValue : cudaSuccess;
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t e, cudaStream_t s, unsigned flags)
{
    if (flags != cudaEventRecordExternal)
        return cudaEventRecord(e, s);
    if (!emu_records(s))
        return last_error = cudaErrorIllegalState;
    add_op(s, {1, 1, 0, NULL, NULL, NULL, {}, 0, e});
    return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t e)
{
    run_copies(e->stream, e->n);
    return host_waits(&e->then);
}
cudaError_t cudaEventQuery(cudaEvent_t e)
{
    bool first = !e->asked;
    e->asked = true;
    if (e->then.stalled || (first && e->stream && e->stream->n_done < e->n))
        return last_error = cudaErrorNotReady;
    return cudaEventSynchronize(e);
}
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t a, cudaEvent_t b)
{
    *ms = (float)(b->ms - a->ms);
    return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t s, int)
{
    if (!s || s->record)
        return last_error = cudaErrorInvalidValue;
    s->record = new emu_graph;
    s->spoiled = false;
    return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *g)
{
    emu_graph *made = s->record;
    *g = made;
    if (made)
        made->n = made->op.size();
    for (emu_stream *o : streams)
        if (made && o->record == made) {
            s->spoiled |= o->spoiled || made->at[s][o] < made->at[o][o];
            o->record = NULL;
            o->spoiled = o != s && o->spoiled;
        }
    if (!made || !s->spoiled)
        return made ? cudaSuccess : last_error = cudaErrorInvalidValue;
    cudaGraphDestroy(made);
    *g = NULL;
    return last_error = cudaErrorStreamCaptureInvalidated;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *x, cudaGraph_t g, unsigned long long)
{
    *x = new emu_graph_exec;
    (*x)->op.swap(g->op);
    return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t x, cudaStream_t s)
{
    the_kernel = NULL;
    for (const emu_op &o : x->op) {
        if (o.event)
            cudaEventRecord(o.event, s);
        else if (o.call && may_run(s, NULL, 0))
            emu_run(o.grid, o.block, o.shared_bytes, o.call, o.f);
        else if (o.copy.from)
            cudaMemcpyAsync(o.copy.to, o.copy.from, o.copy.n, cudaMemcpyDeviceToDevice, s);
        else if (!o.call)
            cudaMemsetAsync(o.copy.to, o.value, o.copy.n, s);
    }
    return s && s->failed ? last_error = cudaErrorInvalidValue : cudaSuccess;
}
cudaError_t cudaGraphGetNodes(cudaGraph_t g, cudaGraphNode_t *, size_t *n)
{
    *n = g->n;
    return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t x)
{
    drop_ops(x->op);
    delete x;
    return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t g)
{
    drop_ops(g->op);
    delete g;
    return cudaSuccess;
}

/* ---- emu_trace.h ---- */

void emu_trace_begin(double of_launch, double of_copy)
{
    traced.clear();
    launch_time = of_launch;
    copy_time = of_copy;
    for (const emu_stream *s : streams) /* events from before still have their clocks */
        if (!s->now.stalled)            /* devices that stalled are never closed */
            not_before(&host_clock, &s->now);
    start_time = host_clock.time;
    tracing = true;
}
const emu_traced *emu_trace_end(size_t *n)
{
    tracing = false;
    *n = traced.size();
    return traced.data();
}
void emu_fault_after(void *stream, int n, emu_fault how)
{
    fault_kind = how;
    ((emu_stream *)stream)->to_fault = n;
}
int emu_stream_number(const void *stream)
{
    return ((const emu_stream *)stream)->id;
}
int emu_waits_forever(void)
{
    return waits_forever;
}
}
