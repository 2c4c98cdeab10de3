/* offload.c - see offload.h: what the host does for experts that its cores compute beside the GPU.
 *
 * A table says how many of m missing experts of a layer the host computes, for each m. It is made
 * when the model is loaded, from the measured costs of both sides: the division with which both
 * have finished earliest.
 */
#include "backend/cuda/experts/offload.h"
#include "backend/cuda/experts/prefetch.h"
#include "backend/cpu/offload_pool.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/pool.h"

#include <sched.h>
#include <stddef.h>
#include <string.h>

enum {
    PLACES = EXPERT_PAIRS, /* pairs of a pass that may hand over */
    TIMED = 4,             /* experts of a timed job; after one that warms up */
    TRIALS = 5
};
/* The longest wait of a kernel; and of the host for a job that a failed pass has left. A driver
 * ends kernels of a few seconds on a GPU that has a display, and all else of the process with them.
 */
static const uint64_t LIMIT_NS = 2000000000;
/* Milliseconds for a job to reach the host and its answer to come back: assumed from the time of a
 * read over the bus, not measured. */
static const double DISPATCH_MS = 0.006;
/* Kernels read the host's memory at this part of a copy's speed: 44 to 50 of 55 GB/s on an H200,
 * computed from the bytes and times of decoding. */
static const double READ_SPEED = 0.85;
/* And at this part of that while the bus carries experts early, which it does most of the time. */
static const double READ_SHARE = 0.5;

_Static_assert((int)OFFLOAD_Q4_1 - OFFLOAD_Q4_0 == (int)PACK_Q4_1 - PACK_Q4_0 &&
                   (int)OFFLOAD_Q8_0 - OFFLOAD_Q4_0 == (int)PACK_Q8_0 - PACK_Q4_0 &&
                   (int)OFFLOAD_Q4_K - OFFLOAD_Q4_0 == (int)PACK_Q4_K - PACK_Q4_0 &&
                   (int)OFFLOAD_Q6_K - OFFLOAD_Q4_0 == (int)PACK_Q6_K - PACK_Q4_0 &&
                   (int)OFFLOAD_G8 - OFFLOAD_Q4_0 == (int)PACK_G8 - PACK_Q4_0 &&
                   (int)OFFLOAD_FP4 - OFFLOAD_Q4_0 == (int)PACK_FP4 - PACK_Q4_0 &&
                   (int)OFFLOAD_TILE == (int)TILE_ROWS && (int)OFFLOAD_GROUP == (int)GROUP,
               "kernels of both sides read one layout");

typedef struct offload_part { /* a layer, as the kernel that hands over sees it */
    int64_t from, end;
    const expert_layer *list;
    float *bias; /* the host's copy, of gate and up; or NULL */
} offload_part;

struct cuda_offload {
    offload_pool *pool;
    void *block; /* page-locked: the room */
    offload_room room;
    uint8_t *memory; /* device: pairs, offload_state */
    offload_pair *pair;
    offload_state *state;
    offload_part *part;
    int32_t n;
    bool handed;        /* pairs are of the layer under way, and no launch has read them so far */
    int32_t told_layer; /* whose router has told what becomes of the pairs of one row; -1: none */
    prefetch_ask ask;   /* while told_layer is not -1: the guess in that router's launch */
    bool shares;        /* the pass under way may hand over */
    bool told;
    bool wanted;   /* the table gives the host experts: its threads are woken */
    bool computes; /* it may */
    double expert_ms, bus_ms;
    cuda_prefetch *prefetch; /* NULL: nothing is fetched early */
    offload_use timed;       /* what the timing has computed */
};

static size_t own_bytes(void)
{
    return sizeof(offload_state) + PLACES * sizeof(offload_pair);
}

uint64_t cuda_offload_bytes(const expert_layer *l, int32_t n)
{
    return own_bytes() + cuda_prefetch_bytes(l, n);
}

/* ---- Opening --------------------------------------------------------------------------------- */

static offload_matrix matrix_of(const weight *w, const uint8_t *at)
{
    packed v = cuda_view(w);
    return (offload_matrix){at,
                            at + (v.high - v.codes),
                            at + (v.scale - v.codes),
                            at + (v.super - v.codes),
                            v.kind - PACK_Q4_0,
                            w->n_out,
                            v.n_group,
                            v.n_unit};
}

_Static_assert((int)OFFLOAD_SEGMENTS == (int)RANKS_MAX, "down has a segment for each");

/* NULL: gate holds both. */
static const weight *up_of(const expert_layer *l)
{
    return l->n_parts - l->n_down == 2 ? l->part[1] : NULL;
}

/* How many experts a row chooses from: all, also where a rank has some. */
static int32_t n_choices(const expert_layer *l)
{
    return l->part[0]->n_mat_all ? l->part[0]->n_mat_all : l->n_experts;
}

static status layer_of(const offload_home *h, int32_t i, offload_layer *to, err *e)
{
    const expert_layer *l = h->list;
    const weight *gate = l->part[0], *up = up_of(l);
    weight *const *down = l->part + l->n_parts - l->n_down;
    const int32_t n_down = gate->n_mat_all ? 1 : l->n_down; /* segments of whole experts are alike */
    int32_t n_ff = 0;
    bool fits = n_choices(l) <= OFFLOAD_CHOICE && (!up || up->packed_kind == gate->packed_kind);
    for (int32_t k = 0; k < l->n_parts; k++)
        fits &= l->part[k]->packed_kind >= PACK_Q4_0 && l->part[k]->packed_kind <= PACK_FP4;
    for (int32_t z = 0; z < n_down; z++)
        n_ff += down[z]->n_in;
    fits = fits && n_ff % OFFLOAD_GROUP == 0 && gate->n_out == (up ? n_ff : 2 * n_ff) &&
           (!up || up->n_out == n_ff);
    if (!fits)
        return err_set(e, E_UNSUPPORTED,
                       "the CPU cannot compute experts beside the GPU: those of layer %d of the "
                       "mixture (%s) are not of blocks, or too many",
                       i, gate->name);
    *to = (offload_layer){.expert_bytes = h->expert_bytes,
                          .first = gate->first_mat,
                          .n_experts = l->n_experts,
                          .n_ff = n_ff,
                          .n_down = n_down};
    to->gate = to->up = matrix_of(gate, gate->home->host);
    if (up)
        to->up = matrix_of(up, up->home->host);
    else
        to->up_tile = n_ff / OFFLOAD_TILE;
    for (int32_t z = 0; z < n_down; z++)
        to->down[z] = matrix_of(down[z], down[z]->home->host);
    packed v = cuda_view(gate);
    to->gate_parts = offload_gate_parts(v.n_tile, v.n_unit);
    return OK;
}

/* The biases of the layer's gated unit, copied from the device. Those of the down product are added
 * there, to the sum of a row's experts. */
static status take_biases(cuda_device *c, const expert_layer *l, float **copy, offload_layer *to,
                          err *e)
{
    const weight *up = up_of(l);
    const weight *bias[] = {l->part[0]->bias, up ? up->bias : NULL};
    const size_t n = (size_t)l->n_experts * (size_t)l->part[0]->n_out;
    if (!bias[0] && !bias[1])
        return OK;
    if (!(*copy = mem_calloc(2 * n, sizeof **copy)))
        return err_memory(e, "biases of experts on the CPU", 2 * n * sizeof **copy);
    for (int i = 0; i < 2; i++)
        if (bias[i] &&
            !cuda_ok(c, NULL,
                     cudaMemcpyAsync(*copy + (size_t)i * n, bias[i]->packed, n * sizeof **copy,
                                     cudaMemcpyDeviceToHost, c->stream),
                     "biases of experts"))
            return err_set(e, c->broken_why.status, "%s", c->broken_why.text);
    if (!cuda_ok(c, NULL, cudaStreamSynchronize(c->stream), "biases of experts"))
        return err_set(e, c->broken_why.status, "%s", c->broken_why.text);
    to->bias_step = l->part[0]->n_out;
    to->gate_bias = bias[0] ? *copy : NULL;
    to->up_bias = !up ? *copy + to->n_ff : bias[1] ? *copy + n : NULL;
    return OK;
}

/* take[m] of m experts: by a given part, or by costs. */
static void fill_take(int32_t *take, double part, double expert_ms, double bus_ms)
{
    for (int32_t m = 0; m <= OFFLOAD_PAIRS; m++)
        take[m] = part >= 0 ? (int32_t)(part * m + 0.5)
                            : offload_host_share(m, DISPATCH_MS, expert_ms, bus_ms);
}

/* The shortest of some trials, because other programs make single ones longer. */
static double time_expert(offload_pool *p)
{
    double best = -1;
    for (int i = 0; i < TRIALS; i++) {
        double ms = offload_pool_time(p, TIMED);
        if (ms < 0)
            return -1;
        best = best < 0 || ms < best ? ms : best;
    }
    return best;
}

static status take_memory(cuda_device *c, cuda_offload *x, const offload_layer *l, int32_t n,
                          err *e)
{
    size_t n_bytes = offload_room_bytes(l, n, NULL, &x->room);
    if (cudaMallocHost(&x->block, n_bytes) != cudaSuccess) {
        cudaGetLastError();
        x->block = NULL;
        return err_memory(e, "the room for experts on the CPU", n_bytes);
    }
    memset(x->block, 0, n_bytes);
    offload_room_bytes(l, n, x->block, &x->room);
    if (!(x->memory = c->dev.alloc(&c->dev, own_bytes())))
        return err_memory(e, "experts on the CPU", own_bytes());
    x->pair = (offload_pair *)x->memory;
    x->state = (offload_state *)(x->memory + PLACES * sizeof *x->pair);
    return OK;
}

static status send_state(cuda_device *c, cuda_offload *x, double part, err *e)
{
    offload_state s = {.seq = atomic_load(&x->room.post->seq), .limit_ns = LIMIT_NS};
    s.seen = s.seq;
    fill_take(s.take, part, x->expert_ms, x->bus_ms);
    x->wanted = s.take[OFFLOAD_PAIRS] > 0; /* the more are missing, the more it gets */
    if (cuda_ok(c, NULL, cudaMemcpyAsync(x->state, &s, sizeof s, cudaMemcpyHostToDevice, c->stream),
                "experts on the CPU") &&
        cuda_ok(c, NULL, cudaStreamSynchronize(c->stream), "experts on the CPU"))
        return OK;
    return err_set(e, c->broken_why.status, "%s", c->broken_why.text);
}

/* Threads of the pool. Each GPU has one thread more, which starts copies. */
static int32_t threads_for(const offload_homes *homes, const expert_help *how)
{
    if (how->n_threads || !homes->at[0].list->n_prefetched)
        return how->n_threads;
    int32_t n = pool_default_threads() - 1 - (how->n_devices > 1 ? how->n_devices : 1);
    return n > 1 ? n : 1;
}

/* How long an expert takes here and over the bus. */
static status measure(cuda_device *c, cuda_offload *x, const offload_homes *homes,
                      const expert_help *how, err *e)
{
    double read_bytes_s = READ_SPEED * (x->prefetch ? READ_SHARE : 1) * homes->bus_bytes_s;
    x->bus_ms = read_bytes_s > 0 ? (double)homes->at[0].expert_bytes / read_bytes_s * 1e3 : 0;
    x->computes = how->part != 0;
    bool warm = x->computes && offload_pool_time(x->pool, 1) >= 0;
    x->expert_ms = warm ? time_expert(x->pool) : x->computes ? -1 : 0;
    x->timed = offload_pool_use(x->pool);
    return x->expert_ms >= 0
               ? OK
               : err_set(e, E_IO, "%s: the CPU's threads for experts did not answer in a second",
                         c->name);
}

static status open_layers(cuda_device *c, cuda_offload *x, const offload_homes *homes,
                          offload_layer *l, err *e)
{
    status st = OK;
    for (int32_t i = 0; i < homes->n && !st; i++) {
        const offload_home *h = &homes->at[i];
        const int64_t bytes = (int64_t)(h->expert_bytes * (size_t)h->list->n_experts);
        st = layer_of(h, i, &l[i], e);
        x->part[i] = (offload_part){h->from, h->from + bytes, h->list, NULL};
        st = st ? st : take_biases(c, h->list, &x->part[i].bias, &l[i], e);
    }
    return st;
}

status cuda_offload_open(cuda_device *c, const offload_homes *homes, const expert_help *how,
                         cuda_offload *beside, cuda_offload **to, err *e)
{
    const int32_t n = homes->n;
    cuda_offload *x = *to = mem_calloc(1, sizeof *x);
    offload_layer *l = mem_calloc((size_t)n, sizeof *l);
    status st;
    if (!x || !l || !(x->part = mem_calloc((size_t)n, sizeof *x->part))) {
        st = err_memory(e, "experts on the CPU", (size_t)n * sizeof *l);
        goto out;
    }
    x->n = n;
    if ((st = open_layers(c, x, homes, l, e)) || (st = take_memory(c, x, l, n, e)))
        goto out;
    st = beside ? offload_pool_open_beside(&x->pool, beside->pool, l, n, &x->room, e)
                : offload_pool_open(&x->pool, l, n, &x->room, threads_for(homes, how), how->isa, e);
    if (!st && !(st = cuda_prefetch_open(c, homes, &x->prefetch, e)) &&
        !(st = measure(c, x, homes, how, e)))
        st = send_state(c, x, how->part, e);
out:
    mem_free(l);
    if (st) {
        cuda_offload_close(c, x);
        *to = NULL;
    }
    return st;
}

void cuda_offload_close(cuda_device *c, cuda_offload *x)
{
    if (!x)
        return;
    if (x->memory) {
        if (cudaStreamSynchronize(c->stream) != cudaSuccess)
            cudaGetLastError();
        c->dev.release(&c->dev, x->memory, own_bytes());
    }
    cuda_prefetch_close(c, x->prefetch);
    offload_pool_close(x->pool);
    if (x->block)
        cudaFreeHost(x->block);
    for (int32_t i = 0; x->part && i < x->n; i++)
        mem_free(x->part[i].bias);
    mem_free(x->part);
    mem_free(x);
}

void cuda_offload_abandon(cuda_offload *x)
{
    if (!x)
        return;
    cuda_prefetch_abandon(x->prefetch);
    offload_pool_close(x->pool);
}

/* ---- Passes ---------------------------------------------------------------------------------- */

/* A pass that failed between the two products of a layer leaves a job whose room the next one
 * would overwrite. */
static void finish_job(cuda_device *c, cuda_offload *x)
{
    offload_post *post = x->room.post;
    uint64_t start = (uint64_t)clock_ns();
    x->handed = false;
    if (!cuda_ok(c, NULL, cudaStreamSynchronize(c->stream), "experts on the CPU"))
        return;
    while (atomic_load_explicit(&post->done, memory_order_acquire) != atomic_load(&post->seq)) {
        sched_yield(); /* a thread of the pool may need this core */
        if ((uint64_t)clock_ns() - start > LIMIT_NS) {
            atomic_store(&post->late, atomic_load(&post->seq));
            cuda_ok(c, NULL, cudaMemsetAsync(&x->state->dead, 1, sizeof x->state->dead, c->stream),
                    "experts on the CPU");
            return;
        }
    }
}

void cuda_offload_begin(cuda_device *c, cuda_offload *x, bool shares)
{
    if (x->handed)
        finish_job(c, x);
    x->shares = shares;
    x->told_layer = -1;
    if (shares && x->prefetch)
        cuda_prefetch_begin(c, x->prefetch);
    if (shares && x->wanted)
        offload_pool_wake(x->pool);
}

status cuda_offload_failed(cuda_offload *x, const char *name, err *e)
{
    if (x->told || !atomic_load(&x->room.post->late))
        return OK;
    x->told = true;
    return err_set(e, E_IO,
                   "%s: the CPU's threads for experts did not answer within %.0f seconds; later "
                   "passes do without them",
                   name, (double)LIMIT_NS * 1e-9);
}

cuda_offload *cuda_offload_shared(cuda_offload *x)
{
    return x && x->shares ? x : NULL;
}

static bool hands_over(int32_t rows, int32_t k)
{
    return rows <= OFFLOAD_JOB_ROWS && k <= PLACES / OFFLOAD_JOB_ROWS;
}

const int64_t *cuda_offload_where(const expert_layer *l)
{
    return l->part[0]->home->where - l->part[0]->first_mat;
}

static offload_rule rule_of(const cuda_offload *x, int32_t layer)
{
    const offload_part *part = &x->part[layer];
    offload_rule c = {.pair = x->pair,
                      .where = cuda_offload_where(part->list),
                      .host_from = part->from,
                      .host_end = part->end,
                      .state = x->state};
    if (x->prefetch)
        c.prefetch = cuda_prefetch_view(x->prefetch, layer);
    return c;
}

offload_rule cuda_offload_tells(cuda_offload *x, const weight *router, int32_t rows, int32_t k)
{
    if (!x || rows != 1 || !hands_over(rows, k))
        return (offload_rule){0};
    for (int32_t i = 0; i < x->n; i++)
        if (x->part[i].list->router == router) {
            offload_rule c = rule_of(x, i);
            x->told_layer = i;
            x->ask = c.ask = x->prefetch ? cuda_prefetch_ask(x->prefetch, i, 1) : (prefetch_ask){0};
            return c;
        }
    return (offload_rule){0};
}

void cuda_offload_guess(cuda_offload *x, const weight *router, dev_mat rows, int32_t k,
                        bool sigmoid)
{
    if (x->prefetch)
        cuda_prefetch_guess(x->prefetch, router, rows, k, sigmoid);
}

cuda_prefetch *cuda_offload_prefetch(cuda_offload *x)
{
    return x->prefetch;
}

static offload_view view_of(const cuda_offload *x, const weight *w)
{
    offload_view v = {.state = x->state,
                      .room = x->room,
                      .layer = w->home->layer,
                      .some = w->n_mat_all > 0};
    if (x->prefetch)
        v.prefetch = cuda_prefetch_view(x->prefetch, w->home->layer);
    return v;
}

offload_view cuda_offload_dispatch(cuda_device *c, cuda_offload *x, routing r, const weight *gate,
                                   dev_quant q, offload_unit unit)
{
    const int32_t layer = gate->home->layer;
    const bool told = x->told_layer == layer && r.rows == 1;
    offload_view v = view_of(x, gate);
    v.unit = unit;
    x->told_layer = -1;
    x->handed = hands_over(r.rows, r.k);
    if (!x->handed)
        return v;
    v.pair = x->pair;
    v.posts = told ? r.k : 0;
    if (told)
        v.ask = x->ask;
    else if (x->prefetch)
        v.ask = cuda_prefetch_ask(x->prefetch, layer, r.rows);
    if (!told)
        cu_offload_dispatch(c->stream, (dispatch_args){.expert = r.id,
                                                       .rows = r.rows,
                                                       .k = r.k,
                                                       .n_expert = n_choices(x->part[layer].list),
                                                       .rule = rule_of(x, layer),
                                                       .x = q,
                                                       .to = v});
    return v;
}

/* A gated product of another kind hands nothing over, and pairs are then those of an earlier
 * layer. */
offload_view cuda_offload_again(cuda_offload *x, const weight *down)
{
    offload_view v = view_of(x, down);
    const expert_layer *l = x->part[v.layer].list;
    int32_t z = 0; /* which segment it is */
    while (z < l->n_down - 1 && l->part[l->n_parts - l->n_down + z] != down)
        z++;
    if (!v.some)
        v.room.y += (size_t)z * (size_t)down->n_out;
    if (x->handed)
        v.pair = x->pair;
    x->handed = x->handed && z < l->n_down - 1;
    return v;
}

void cuda_offload_use(const cuda_offload *x, expert_use *to)
{
    offload_use u = offload_pool_use(x->pool);
    to->n_cpu = u.n_pairs - x->timed.n_pairs;
    to->cpu_bytes = u.bytes - x->timed.bytes;
    to->cpu_threads = x->computes ? offload_pool_threads(x->pool) : 0;
    to->cpu_expert_ms = x->expert_ms;
    if (x->prefetch)
        cuda_prefetch_use(x->prefetch, to);
}

void cuda_offload_hold(cuda_offload *x, uint64_t limit_ns, cuda_device *c)
{
    offload_pool_hold(x->pool, limit_ns > 0);
    uint64_t n = limit_ns ? limit_ns : LIMIT_NS;
    cudaMemcpyAsync(&x->state->limit_ns, &n, sizeof n, cudaMemcpyHostToDevice, c->stream);
    cudaStreamSynchronize(c->stream);
}
