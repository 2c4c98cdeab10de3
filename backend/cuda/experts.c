/* experts.c - experts of which only some have a place on the device (backend/experts.h).
 *
 *     one allocation   [slots of layer 0][slots of layer 1]..[stage 0][stage 1][tables][counts]
 *     host             a page-locked copy of every expert, part after part, laid out by pack.cu
 *     table            by layer and expert: from a fixed address to the expert, in bytes
 *
 * Kernels add a table's entry to the planes at that address, whatever it leads to: a slot, a stage,
 * or the host's copy, which they read over the bus. So no op waits for the host, and a recorded
 * pass serves every placement.
 *
 *     passes   pass t | counts | table | pass t+1 | ..        | table | pass t+n
 *                                 |                                ^
 *     copies                      '--> expert to its slot ..  -----'
 *
 * A slot changes hands in two steps. Before a pass the table loses the expert that leaves; the copy
 * waits for this. Before a later pass that finds the copy ended, the table gets the new expert.
 * Neither waits on the host. Kernels count uses; the host reads the counts one pass later.
 *
 * A prompt of many rows uses nearly all experts of a layer. Such a pass has a second table, in
 * which experts without a slot lie in a stage. There are two stages: one is filled while the layer
 * in the other computes.
 */
#include "backend/cuda/cold.h"
#include "backend/cuda/cuda_int.h"
#include "backend/expert_slots.h"
#include "backend/experts.h"
#include "base/clock.h"
#include "base/mem.h"

#include <string.h>

enum {
    SWAPS = 8,         /* experts on their way at a time */
    TABLE_BUFFERS = 4, /* pinned, from which tables are uploaded in turn */
    STREAM_PAIRS = 2,  /* a prompt's pairs of row and expert per expert, from which on it streams */
    STAGE_SHARE = 16,  /* a stage holds at most this part of all experts */
    PLANE_ALIGN = 256,
    WAIT_SETS = 2 /* passes whose waits for stages are read later */
};

typedef struct pool_layer {
    expert_layer want;
    expert_home home[EXPERT_PARTS];
    size_t bytes;   /* of an expert: all parts */
    uint8_t *slots; /* device, [n_slots][bytes] */
    uint8_t *from;  /* the lowest address of slots, stages and copies: tables count from it, so no
                       distance is negative */
    uint8_t *host;  /* page-locked, [n_experts][bytes] */
    int32_t first;  /* of its experts, in tables and counts */
    expert_slots map;
} pool_layer;

typedef struct swap {
    cudaEvent_t copied;
    int32_t layer, slot;
    bool used;
} swap;

struct cuda_experts {
    int32_t n, n_all; /* layers; experts of all layers */
    pool_layer *layer;
    uint8_t *memory; /* device */
    size_t memory_bytes;
    bool filled;
    /* Tables [2][n_all]: that of answers, that of prompts that stream. */
    int64_t *table, *table_now, *table_host[TABLE_BUFFERS];
    cudaEvent_t table_sent[TABLE_BUFFERS], table_old; /* table_old: passes before it have ended */
    int32_t table_turn;
    bool table_changed;
    uint32_t *count, *count_host;        /* [n_all] on the device; pinned */
    uint32_t *count_seen, *count_before; /* as last read; as read before that */
    uint64_t *count_all;                 /* [n_all] */
    cudaEvent_t counted;
    bool counting;
    cudaStream_t copies;
    swap swap[SWAPS];
    int32_t turn; /* the layer that chooses first */
    uint8_t *stage[2];
    size_t stage_bytes;
    cudaEvent_t stage_full[2], stage_free[2];
    int32_t staged[2];  /* the layer in it, of this pass; -1: none */
    bool stage_read[2]; /* `stage_free` was not recorded since it was used */
    /* A layer's wait for its stage lies between two events. They are read when a later pass takes
     * their set, so that no pass waits for them. */
    cudaEvent_t *wait[WAIT_SETS];                      /* [n][2] */
    int32_t wait_first[WAIT_SETS], n_waits[WAIT_SETS]; /* layers with events, one after the other */
    int32_t wait_turn;
    int32_t n_passes, n_covered; /* since counts were last asked for; before that: in them */
    bool streams;                /* the pass under way */
    bool restless;               /* for tests: slots change hands before every pass */
    cuda_cold *cold;             /* NULL: kernels read all misses over the bus */
    uint64_t cold_bytes;         /* of experts that it computed, as far as read_bytes lacks them */
    expert_use use;
};

static size_t aligned(size_t n)
{
    return (n + PLANE_ALIGN - 1) & ~(size_t)(PLANE_ALIGN - 1);
}

/* A failure here ends no later pass: experts are where they were. */
static bool fine(cudaError_t r)
{
    if (r == cudaSuccess)
        return true;
    cudaGetLastError();
    return false;
}

/* ---- Sizes --------------------------------------------------------------------------------- */

static size_t part_bytes(const weight *w)
{
    weight one = *w;
    one.n_mat = 1;
    one.n_bytes = one.mat_bytes;
    one.in_slots = false;
    return aligned(cuda_weight_bytes(NULL, &one));
}

static uint64_t bytes_of_expert(const device *d, const expert_layer *l)
{
    uint64_t n = 0;
    (void)d;
    for (int32_t i = 0; i < l->n_parts; i++)
        n += part_bytes(l->part[i]);
    return n;
}

/* The offsets of everything behind the slots. */
typedef struct sizes {
    uint64_t stage, stages_at, tables_at, counts_at, total;
    int32_t n_all;
} sizes;

static sizes sizes_of(const device *d, const expert_layer *l, int32_t n)
{
    sizes z = {0};
    uint64_t all = 0, largest = 0;
    for (int32_t i = 0; i < n; i++) {
        uint64_t one = bytes_of_expert(d, &l[i]);
        uint64_t cold = one * (uint64_t)(l[i].n_experts - l[i].n_slots);
        z.stages_at += one * (uint64_t)l[i].n_slots;
        z.stage = cold > z.stage ? cold : z.stage;
        z.n_all += l[i].n_experts;
        all += one * (uint64_t)l[i].n_experts;
        largest = one > largest ? one : largest;
    }
    /* A model of few layers would have most of its experts in stages. */
    all = all / STAGE_SHARE > largest ? all / STAGE_SHARE : largest;
    z.stage = aligned(z.stage < all ? z.stage : all);
    z.tables_at = z.stages_at + 2 * z.stage;
    z.counts_at = z.tables_at + aligned(2 * (size_t)z.n_all * sizeof(int64_t));
    z.total = z.counts_at + aligned((size_t)z.n_all * sizeof(uint32_t));
    return z;
}

static uint64_t pool_bytes(const device *d, const expert_layer *l, int32_t n)
{
    return sizes_of(d, l, n).total + cuda_cold_bytes();
}

static uint64_t pool_host_bytes(const device *d, const expert_layer *l, int32_t n)
{
    uint64_t bytes = 0;
    for (int32_t i = 0; i < n; i++)
        bytes += bytes_of_expert(d, &l[i]) * (uint64_t)l[i].n_experts;
    return bytes;
}

/* ---- Opening and closing ------------------------------------------------------------------- */

static void pool_close(device *d)
{
    cuda_device *c = cuda_select(d);
    cuda_experts *x = c->experts;
    if (!x)
        return;
    c->experts = NULL;
    cuda_cold_close(c, x->cold);
    if (x->copies)
        fine(cudaStreamSynchronize(x->copies));
    fine(cudaStreamSynchronize(c->stream));
    for (int32_t i = 0; x->layer && i < x->n; i++) {
        pool_layer *l = &x->layer[i];
        for (int32_t k = 0; k < l->want.n_parts; k++)
            l->want.part[k]->home = NULL, l->want.part[k]->packed = NULL;
        if (l->host)
            cudaFreeHost(l->host);
        expert_slots_free(&l->map);
    }
    if (x->memory)
        d->release(d, x->memory, x->memory_bytes);
    cudaEvent_t event[] = {x->table_old,     x->counted,       x->stage_full[0],
                           x->stage_full[1], x->stage_free[0], x->stage_free[1]};
    for (size_t i = 0; i < sizeof event / sizeof *event; i++)
        if (event[i])
            cudaEventDestroy(event[i]);
    for (int k = 0; k < WAIT_SETS; k++) {
        for (int32_t i = 0; x->wait[k] && i < 2 * x->n; i++)
            if (x->wait[k][i])
                cudaEventDestroy(x->wait[k][i]);
        mem_free(x->wait[k]);
    }
    for (int i = 0; i < SWAPS; i++)
        if (x->swap[i].copied)
            cudaEventDestroy(x->swap[i].copied);
    for (int i = 0; i < TABLE_BUFFERS; i++) {
        if (x->table_sent[i])
            cudaEventDestroy(x->table_sent[i]);
        if (x->table_host[i])
            cudaFreeHost(x->table_host[i]);
    }
    if (x->count_host)
        cudaFreeHost(x->count_host);
    if (x->copies)
        cudaStreamDestroy(x->copies);
    mem_free(x->count_all);
    mem_free(x->count_before);
    mem_free(x->count_seen);
    mem_free(x->table_now);
    mem_free(x->layer);
    mem_free(x);
}

/* Events, the stream of copies, and the buffers that tables and counts travel through. */
static cudaError_t open_traffic(cuda_experts *x)
{
    void *p = NULL;
    size_t n = (size_t)x->n_all;
    cudaEvent_t *event[] = {&x->table_old,     &x->counted,       &x->stage_full[0],
                            &x->stage_full[1], &x->stage_free[0], &x->stage_free[1]};
    cudaError_t r = cudaStreamCreateWithPriority(&x->copies, cudaStreamNonBlocking, 0);
    for (size_t i = 0; i < sizeof event / sizeof *event && !r; i++)
        r = cudaEventCreateWithFlags(event[i], cudaEventDisableTiming);
    for (int i = 0; i < SWAPS && !r; i++)
        r = cudaEventCreateWithFlags(&x->swap[i].copied, cudaEventDisableTiming);
    for (int32_t i = 0; i < 2 * WAIT_SETS * x->n && !r; i++)
        r = cudaEventCreate(&x->wait[i % WAIT_SETS][i / WAIT_SETS]);
    for (int i = 0; i < TABLE_BUFFERS && !r; i++)
        if (!(r = cudaEventCreateWithFlags(&x->table_sent[i], cudaEventDisableTiming)) &&
            !(r = cudaMallocHost(&p, 2 * n * sizeof(int64_t))))
            x->table_host[i] = p;
    if (!r && !(r = cudaMallocHost(&p, n * sizeof(uint32_t))))
        x->count_host = p;
    return r;
}

static status open_layer(cuda_experts *x, int32_t i, const expert_layer *want, uint8_t *slots,
                         err *e)
{
    pool_layer *l = &x->layer[i];
    void *p = NULL;
    size_t at = 0;
    l->want = *want;
    l->slots = slots;
    l->bytes = bytes_of_expert(NULL, want);
    size_t host_bytes = l->bytes * (size_t)want->n_experts;
    if (cudaMallocHost(&p, host_bytes) != cudaSuccess) {
        cudaGetLastError();
        return err_memory(e, "the host's copy of experts", host_bytes);
    }
    l->host = p;
    l->from = (uintptr_t)slots < (uintptr_t)x->stage[0] ? slots : x->stage[0];
    l->from = (uintptr_t)l->from < (uintptr_t)l->host ? l->from : l->host;
    for (int32_t k = 0; k < want->n_parts; k++) {
        weight *w = want->part[k];
        l->home[k] = (expert_home){.where = x->table + l->first,
                                   .count = k ? NULL : x->count + l->first,
                                   .from = l->from + at,
                                   .host = l->host + at,
                                   .expert_bytes = l->bytes,
                                   .layer = i};
        w->home = &l->home[k];
        at += part_bytes(w);
    }
    status st = expert_slots_init(&l->map, want->n_experts, want->n_slots, e);
    if (!st)
        expert_slots_warm(&l->map, want->count);
    return st;
}

static status pool_open(device *d, const expert_layer *list, int32_t n, err *e)
{
    cuda_device *c = cuda_select(d);
    const sizes z = sizes_of(d, list, n);
    cuda_experts *x = mem_calloc(1, sizeof *x);
    size_t n_all = (size_t)z.n_all;
    cudaError_t r;
    status st = OK;
    if (!x)
        return err_memory(e, "experts", sizeof *x);
    c->experts = x;
    x->n = n;
    x->n_all = z.n_all;
    x->stage_bytes = z.stage;
    x->memory_bytes = z.total;
    x->layer = mem_calloc((size_t)n, sizeof *x->layer);
    x->table_now = mem_calloc(2 * n_all, sizeof *x->table_now);
    x->count_seen = mem_calloc(n_all, sizeof *x->count_seen);
    x->count_before = mem_calloc(n_all, sizeof *x->count_before);
    x->count_all = mem_calloc(n_all, sizeof *x->count_all);
    x->wait[0] = mem_calloc(2 * (size_t)n, sizeof *x->wait[0]);
    x->wait[1] = mem_calloc(2 * (size_t)n, sizeof *x->wait[1]);
    if (!x->layer || !x->table_now || !x->count_seen || !x->count_before || !x->count_all ||
        !x->wait[0] || !x->wait[1]) {
        x->n = x->layer ? n : 0;
        st = err_memory(e, "tables of experts", n_all * 40);
        goto out;
    }
    if (!(x->memory = d->alloc(d, z.total))) {
        st = err_memory(e, "experts on the GPU", z.total);
        goto out;
    }
    x->stage[0] = x->memory + z.stages_at;
    x->stage[1] = x->stage[0] + z.stage;
    x->staged[0] = x->staged[1] = -1;
    x->table = (int64_t *)(x->memory + z.tables_at);
    x->count = (uint32_t *)(x->memory + z.counts_at);
    if ((r = open_traffic(x))) {
        cudaGetLastError();
        st = err_set(e, E_MEMORY, "%s: room for experts on their way: %s", c->name,
                     cudaGetErrorString(r));
        goto out;
    }
    uint8_t *slots = x->memory;
    for (int32_t i = 0, first = 0; i < n && !st; i++) {
        x->layer[i].first = first;
        st = open_layer(x, i, &list[i], slots, e);
        slots += x->layer[i].bytes * (size_t)list[i].n_slots;
        first += list[i].n_experts;
    }
out:
    if (st)
        pool_close(d);
    return st;
}

/* ---- Tables -------------------------------------------------------------------------------- */

static uint8_t *slot_at(const pool_layer *l, int32_t slot)
{
    return l->slots + (size_t)slot * l->bytes;
}
static uint8_t *host_at(const pool_layer *l, int32_t expert)
{
    return l->host + (size_t)expert * l->bytes;
}
static int64_t distance(const pool_layer *l, const uint8_t *to)
{
    return (int64_t)((uintptr_t)to - (uintptr_t)l->from);
}

static void put_entry(cuda_experts *x, const pool_layer *l, int32_t expert)
{
    const uint8_t *to =
        expert_slots_has(&l->map, expert) ? slot_at(l, l->map.slot[expert]) : host_at(l, expert);
    x->table_now[l->first + expert] = distance(l, to);
    x->table_changed = true;
}

/* The second table: the experts of a layer without slots in its stage, in ascending order. Those
 * that it has no room for are read from the host. */
static void put_stages(cuda_experts *x)
{
    int64_t *to = x->table_now + x->n_all;
    for (int32_t i = 0; i < x->n; i++) {
        const pool_layer *l = &x->layer[i];
        size_t at = 0;
        for (int32_t k = 0; k < l->want.n_experts; k++) {
            bool staged = !expert_slots_has(&l->map, k) && at + l->bytes <= x->stage_bytes;
            to[l->first + k] =
                staged ? distance(l, x->stage[i & 1] + at) : x->table_now[l->first + k];
            at += staged ? l->bytes : 0;
        }
    }
    x->table_changed = true;
}

static bool send_tables(cuda_device *c, cuda_experts *x)
{
    size_t n_bytes = 2 * (size_t)x->n_all * sizeof(int64_t);
    int turn = x->table_turn++ % TABLE_BUFFERS;
    if (!cuda_ok(c, NULL, cudaEventSynchronize(x->table_sent[turn]), "tables of experts"))
        return false;
    memcpy(x->table_host[turn], x->table_now, n_bytes);
    x->table_changed = false;
    return cuda_ok(c, NULL,
                   cudaMemcpyAsync(x->table, x->table_host[turn], n_bytes, cudaMemcpyHostToDevice,
                                   c->stream),
                   "tables of experts") &&
           cuda_ok(c, NULL, cudaEventRecord(x->table_sent[turn], c->stream), "tables of experts");
}

/* The commonest first; of equal ones the first. */
static int32_t hottest(const expert_slots *m)
{
    int32_t best = -1;
    for (int32_t i = 0; i < m->n_experts; i++)
        if (m->slot[i] < 0 && (best < 0 || m->heat[i] > m->heat[best]))
            best = i;
    return best;
}

static status pool_fill(device *d, err *e)
{
    cuda_device *c = cuda_select(d);
    cuda_experts *x = c->experts;
    double start_ms = clock_ms();
    uint64_t n_bytes = 0;
    for (int32_t i = 0; x && i < x->n; i++) {
        pool_layer *l = &x->layer[i];
        for (int32_t slot = 0; slot < l->want.n_slots; slot++) {
            int32_t expert = hottest(&l->map);
            expert_slots_begin(&l->map, slot, expert);
            expert_slots_end(&l->map, slot, true);
            n_bytes += l->bytes;
            cuda_ok(c, NULL,
                    cudaMemcpyAsync(slot_at(l, slot), host_at(l, expert), l->bytes,
                                    cudaMemcpyHostToDevice, c->stream),
                    "filling slots of experts");
        }
        for (int32_t k = 0; k < l->want.n_experts; k++)
            put_entry(x, l, k);
    }
    if (!x)
        return OK;
    send_tables(c, x);
    cuda_ok(c, NULL, cudaStreamSynchronize(c->stream), "filling slots of experts");
    double ms = clock_ms() - start_ms;
    x->use.bus_bytes_s = ms > 0 ? (double)n_bytes / ms * 1e3 : 0;
    x->filled = !c->broken;
    return c->broken ? err_set(e, c->broken_why.status, "%s", c->broken_why.text) : OK;
}

static status pool_help(device *d, const expert_help *how, err *e)
{
    cuda_device *c = cuda_select(d);
    cuda_experts *x = c->experts;
    if (!x)
        return OK;
    cold_home *home = mem_calloc((size_t)x->n, sizeof *home);
    if (!home)
        return err_memory(e, "experts on the CPU", (size_t)x->n * sizeof *home);
    for (int32_t i = 0; i < x->n; i++) {
        const pool_layer *l = &x->layer[i];
        home[i] = (cold_home){&l->want, l->bytes, distance(l, l->host)};
    }
    status st = cuda_cold_open(c, home, x->n, how, x->use.bus_bytes_s, &x->cold, e);
    mem_free(home);
    return st;
}

cuda_cold *cuda_cold_of(cuda_device *c, const weight *w)
{
    return c->experts && w->home ? cuda_cold_shared(c->experts->cold) : NULL;
}

status cuda_experts_failed(const cuda_device *c, err *e)
{
    return c->experts && c->experts->cold ? cuda_cold_failed(c->experts->cold, c->name, e) : OK;
}

/* ---- Slots that change hands --------------------------------------------------------------- */

/* Experts whose copies have ended get their places. wait: all of them do. */
static void end_swaps(cuda_experts *x, bool wait)
{
    for (int i = 0; i < SWAPS; i++) {
        swap *s = &x->swap[i];
        if (!s->used)
            continue;
        cudaError_t r = wait ? cudaEventSynchronize(s->copied) : cudaEventQuery(s->copied);
        bool ok = fine(r);
        if (!ok && r == cudaErrorNotReady)
            continue;
        pool_layer *l = &x->layer[s->layer];
        int32_t expert = l->map.expert[s->slot];
        expert_slots_end(&l->map, s->slot, ok);
        put_entry(x, l, expert);
        s->used = false;
        x->use.n_swaps += ok;
        x->use.n_failed += !ok;
        x->use.swap_bytes += ok ? l->bytes : 0;
    }
}

static swap *free_swap(cuda_experts *x)
{
    for (int i = 0; i < SWAPS; i++)
        if (!x->swap[i].used)
            return &x->swap[i];
    return NULL;
}

/* Takes the counts of earlier passes, if they have come. */
static bool take_counts(cuda_experts *x)
{
    if (!x->counting || !fine(cudaEventQuery(x->counted)))
        return false;
    x->counting = false;
    uint64_t n_read = 0;
    for (int32_t i = 0; i < x->n; i++) {
        pool_layer *l = &x->layer[i];
        for (int32_t k = 0; k < l->want.n_experts; k++) {
            int32_t at = l->first + k;
            uint32_t n = x->count_host[at] - x->count_seen[at];
            if (!n)
                continue;
            x->count_seen[at] += n;
            x->count_all[at] += n;
            if (expert_slots_has(&l->map, k)) {
                x->use.n_hits += n;
            } else {
                uint32_t passes = (uint32_t)x->n_covered;
                x->use.n_misses += n;
                n_read += l->bytes * (n < passes ? n : passes);
            }
            expert_slots_use(&l->map, k, n);
        }
    }
    /* What the host computed was not read; its account may be a pass ahead. */
    if (x->cold)
        cuda_cold_use(x->cold, &x->use);
    uint64_t less = x->use.cpu_bytes - x->cold_bytes;
    less = less < n_read ? less : n_read;
    x->cold_bytes += less;
    x->use.read_bytes += n_read - less;
    return true;
}

/* The slot's expert leaves, and expert k is on its way. */
static void begin_swap(cuda_experts *x, swap *s, int32_t i, int32_t slot, int32_t k)
{
    pool_layer *l = &x->layer[i];
    int32_t leaves = l->map.expert[slot];
    expert_slots_begin(&l->map, slot, k);
    if (leaves >= 0)
        put_entry(x, l, leaves);
    s->layer = i;
    s->slot = slot;
    s->used = true;
}

/* Offers slots to experts without one that the last passes used. Their copies begin in copy_swaps,
 * after the table that lacks their predecessors is on its way. Each time another layer is first. */
static void choose_swaps(cuda_experts *x, const uint32_t *seen_before, bool *chosen)
{
    for (int32_t j = 0; j < x->n; j++) {
        int32_t i = (x->turn + j) % x->n;
        pool_layer *l = &x->layer[i];
        for (int32_t k = 0; k < l->want.n_experts; k++) {
            swap *s;
            int32_t slot;
            if (x->count_seen[l->first + k] == seen_before[l->first + k] ||
                (slot = expert_slots_offer(&l->map, k)) < 0)
                continue;
            if (!(s = free_swap(x))) {
                x->turn = i;
                return;
            }
            begin_swap(x, s, i, slot, k);
            chosen[s - x->swap] = true;
        }
    }
}

/* As many slots as may change hands at once do, layer after layer: the oldest goes to the next
 * expert without one. */
static void stir(cuda_experts *x, bool *chosen)
{
    for (int n = 0; n < SWAPS; n++) {
        swap *s = free_swap(x);
        const expert_slots *m = &x->layer[x->turn].map;
        int32_t slot = m->oldest, k = slot < 0 ? -1 : m->expert[slot];
        for (int32_t i = 0; slot >= 0 && m->slot[k] >= 0 && i < m->n_experts; i++)
            k = (k + 1) % m->n_experts;
        if (s && slot >= 0 && m->slot[k] < 0) {
            begin_swap(x, s, x->turn, slot, k);
            chosen[s - x->swap] = true;
        }
        x->turn = (x->turn + 1) % x->n;
    }
}

/* A copy that cannot begin leaves its slot empty; the next use of an expert offers it again. */
static void copy_swaps(cuda_device *c, cuda_experts *x, const bool *chosen)
{
    bool ordered = fine(cudaEventRecord(x->table_old, c->stream)) &&
                   fine(cudaStreamWaitEvent(x->copies, x->table_old, 0));
    for (int i = 0; i < SWAPS; i++) {
        swap *s = &x->swap[i];
        if (!chosen[i])
            continue;
        pool_layer *l = &x->layer[s->layer];
        int32_t expert = l->map.expert[s->slot];
        if (ordered &&
            fine(cudaMemcpyAsync(slot_at(l, s->slot), host_at(l, expert), l->bytes,
                                 cudaMemcpyHostToDevice, x->copies)) &&
            fine(cudaEventRecord(s->copied, x->copies)))
            continue;
        expert_slots_end(&l->map, s->slot, false);
        s->used = false;
        x->use.n_failed++;
    }
}

/* ---- Prompts ------------------------------------------------------------------------------- */

static bool wants_stream(const cuda_experts *x, const step *st)
{
    const expert_layer *l = &x->layer[0].want;
    return st->prompt && x->stage_bytes &&
           (int64_t)st->all.n * l->n_used >= (int64_t)STREAM_PAIRS * l->n_experts;
}

/* Begins to copy the layer's experts without slots to its stage. */
static bool fill_stage(cuda_experts *x, int32_t i)
{
    const pool_layer *l = &x->layer[i];
    int b = i & 1;
    size_t at = 0;
    if (!fine(cudaStreamWaitEvent(x->copies, x->stage_free[b], 0)))
        return false;
    for (int32_t k = 0, end; k < l->want.n_experts; k = end) {
        size_t n_bytes = 0;
        for (end = k; end < l->want.n_experts && !expert_slots_has(&l->map, end) &&
                      at + n_bytes + l->bytes <= x->stage_bytes;
             end++)
            n_bytes += l->bytes;
        if (n_bytes && !fine(cudaMemcpyAsync(x->stage[b] + at, host_at(l, k), n_bytes,
                                             cudaMemcpyHostToDevice, x->copies)))
            return false;
        at += n_bytes;
        x->use.stream_bytes += n_bytes;
        end += end == k;
    }
    x->staged[b] = i;
    return fine(cudaEventRecord(x->stage_full[b], x->copies));
}

/* Adds up the waits of the pass that last had this set. !finish: if it has ended. */
static void take_waits(cuda_experts *x, int set, bool finish)
{
    int32_t n = x->n_waits[set];
    cudaEvent_t *e = x->wait[set] + 2 * x->wait_first[set];
    if (!n || (!finish && !fine(cudaEventQuery(e[2 * n - 1]))))
        return;
    x->n_waits[set] = 0;
    if (finish && !fine(cudaEventSynchronize(e[2 * n - 1])))
        return;
    for (int32_t i = 0; i < n; i++) {
        float ms = 0;
        if (fine(cudaEventElapsedTime(&ms, e[2 * i], e[2 * i + 1])))
            x->use.stage_ms += ms;
    }
}

/* Has passes wait for the layer's stage from here on. */
static bool wait_for_stage(cuda_device *c, cuda_experts *x, int32_t i)
{
    int set = x->wait_turn;
    if (!x->n_waits[set])
        x->wait_first[set] = i;
    bool timed = x->wait_first[set] + x->n_waits[set] == i &&
                 fine(cudaEventRecord(x->wait[set][2 * i], c->stream));
    bool ok = fine(cudaStreamWaitEvent(c->stream, x->stage_full[i & 1], 0));
    x->n_waits[set] += timed && ok && fine(cudaEventRecord(x->wait[set][2 * i + 1], c->stream));
    return ok;
}

void cuda_experts_arrive(pass *p, const weight *gate)
{
    cuda_device *c = cuda_of(p);
    cuda_experts *x = c->experts;
    if (!x || !x->streams || !gate->home || p->dry || pass_failed(p))
        return;
    int32_t i = gate->home->layer;
    bool ok = (x->staged[i & 1] == i || fill_stage(x, i)) && wait_for_stage(c, x, i);
    x->stage_read[i & 1] = true;
    if (ok && i + 1 < x->n && x->staged[(i + 1) & 1] != i + 1 && !x->stage_read[(i + 1) & 1])
        ok = fill_stage(x, i + 1);
    if (ok)
        return;
    x->staged[0] = x->staged[1] = -1;
    err_set(&p->e, E_IO, "%s: copying experts of layer %d to the GPU failed", c->name, p->il);
}

void cuda_experts_leave(pass *p, const weight *down)
{
    cuda_device *c = cuda_of(p);
    cuda_experts *x = c->experts;
    if (!x || !x->streams || !down->home || p->dry || pass_failed(p))
        return;
    int b = down->home->layer & 1;
    cuda_settle(c);
    if (cuda_ok(c, p, cudaEventRecord(x->stage_free[b], c->stream), "experts of prompts"))
        x->stage_read[b] = false;
}

static void begin_stream(cuda_device *c, cuda_experts *x, pass *p)
{
    x->use.n_streamed++;
    x->wait_turn = (x->wait_turn + 1) % WAIT_SETS;
    take_waits(x, x->wait_turn, true);
    put_stages(x);
    for (int b = 0; b < 2; b++) {
        x->staged[b] = -1;
        if (x->stage_read[b]) /* a pass has failed between */
            cuda_ok(c, p, cudaEventRecord(x->stage_free[b], c->stream), "experts of prompts");
        x->stage_read[b] = false;
    }
}

/* ---- Passes -------------------------------------------------------------------------------- */

void cuda_experts_begin(cuda_device *c, pass *p)
{
    cuda_experts *x = c->experts;
    bool chosen[SWAPS] = {false};
    if (!x || !x->filled || pass_failed(p))
        return;
    x->streams = wants_stream(x, p->st);
    if (x->cold)
        cuda_cold_begin(c, x->cold, !p->st->prompt);
    take_waits(x, x->wait_turn, false);
    end_swaps(x, x->streams);
    for (int32_t i = 0; i < x->n; i++)
        for (int32_t k = 0; k < x->layer[i].want.n_parts; k++)
            x->layer[i].home[k].where = x->table + (x->streams ? x->n_all : 0) + x->layer[i].first;
    memcpy(x->count_before, x->count_seen, (size_t)x->n_all * sizeof *x->count_seen);
    bool counted = take_counts(x);
    if (x->restless && !x->streams)
        stir(x, chosen);
    else if (counted && !x->streams)
        choose_swaps(x, x->count_before, chosen);
    if (x->streams)
        begin_stream(c, x, p);
    if (x->table_changed && !send_tables(c, x))
        return;
    copy_swaps(c, x, chosen);
    if (x->streams && !fill_stage(x, 0))
        x->staged[0] = -1; /* its arrival tries again, and says so */
    if (!x->counting &&
        fine(cudaMemcpyAsync(x->count_host, x->count, (size_t)x->n_all * sizeof *x->count_host,
                             cudaMemcpyDeviceToHost, c->stream))) {
        x->counting = fine(cudaEventRecord(x->counted, c->stream));
        x->n_covered = x->n_passes;
        x->n_passes = 0;
    }
    x->n_passes += !x->streams; /* its misses lie in stages */
}

static void pool_use(const device *d, expert_use *to)
{
    const cuda_experts *x = ((const cuda_device *)d->self)->experts;
    *to = x ? x->use : (expert_use){0};
    if (x && x->cold)
        cuda_cold_use(x->cold, to);
}

static void pool_counts(const device *d, int32_t i, uint64_t *to)
{
    const cuda_experts *x = ((const cuda_device *)d->self)->experts;
    const pool_layer *l = &x->layer[i];
    memcpy(to, x->count_all + l->first, (size_t)l->want.n_experts * sizeof *to);
}

/* ---- For tests ----------------------------------------------------------------------------- */

static const expert_slots *pool_slots(const device *d, int32_t i)
{
    return &((const cuda_device *)d->self)->experts->layer[i].map;
}

static void pool_set_restless(device *d, bool on)
{
    ((cuda_device *)d->self)->experts->restless = on;
}

static int32_t wrong_of_layer(device *d, cuda_experts *x, const pool_layer *l, uint8_t *room)
{
    int32_t n = 0;
    for (int32_t k = 0; k < l->want.n_experts; k++) {
        bool has = expert_slots_has(&l->map, k);
        const uint8_t *slot = has ? slot_at(l, l->map.slot[k]) : NULL;
        n += x->table_now[l->first + k] != distance(l, has ? slot : host_at(l, k));
        if (!has)
            continue;
        d->download(d, room, slot, l->bytes);
        n += memcmp(room, host_at(l, k), l->bytes) != 0;
    }
    return n;
}

static int32_t pool_n_wrong(device *d)
{
    cuda_device *c = cuda_select(d);
    cuda_experts *x = c->experts;
    int32_t n = !fine(cudaStreamSynchronize(x->copies));
    for (int32_t i = 0; i < x->n; i++) {
        uint8_t *room = mem_alloc(x->layer[i].bytes);
        n += room ? wrong_of_layer(d, x, &x->layer[i], room) : 1;
        mem_free(room);
    }
    return n;
}

const struct expert_ops cuda_expert_ops = {
    .bytes = pool_bytes,
    .host_bytes = pool_host_bytes,
    .expert_bytes = bytes_of_expert,
    .open = pool_open,
    .fill = pool_fill,
    .help = pool_help,
    .close = pool_close,
    .use = pool_use,
    .counts = pool_counts,
    .slots = pool_slots,
    .set_restless = pool_set_restless,
    .n_wrong = pool_n_wrong,
};
