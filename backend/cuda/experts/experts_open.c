/* experts_open.c - the memory of experts of which only some have a place on the device: how much it
 * is on both sides, and taking and giving it back. experts_int.h has its layout.
 */
#include "backend/cuda/experts/experts_int.h"
#include "base/mem.h"

#include <string.h>

enum {
    STAGE_SHARE = 16, /* a stage holds at most this part of all experts */
    PLANE_ALIGN = 256
};

static size_t aligned(size_t n)
{
    return (n + PLANE_ALIGN - 1) & ~(size_t)(PLANE_ALIGN - 1);
}

/* ---- Sizes --------------------------------------------------------------------------------- */

static size_t part_bytes(const weight *w)
{
    return aligned(cuda_slot_bytes(w));
}

/* Of the device's experts the first that part k has. */
static int32_t first_of(const expert_layer *l, int32_t k)
{
    return l->part[k]->first_mat - l->part[0]->first_mat;
}

uint64_t cuda_experts_one_bytes(const device *d, const expert_layer *l)
{
    uint64_t n = 0;
    (void)d;
    for (int32_t i = 0; i < l->n_parts; i++)
        n += first_of(l, i) ? 0 : part_bytes(l->part[i]); /* later segments share a place */
    return n;
}

/* How many experts the layer has on all devices together. */
static int32_t n_everywhere(const expert_layer *l)
{
    return l->part[0]->n_mat_all ? l->part[0]->n_mat_all : l->n_experts;
}

/* The offsets of everything behind the slots. */
typedef struct sizes {
    uint64_t stage, stages_at, tables_at, counts_at, prefetch, prefetch_at, total;
    int32_t n_all;
} sizes;

static sizes sizes_of(const device *d, const expert_layer *l, int32_t n)
{
    sizes z = {0};
    uint64_t all = 0, largest = 0;
    for (int32_t i = 0; i < n; i++) {
        uint64_t one = cuda_experts_one_bytes(d, &l[i]);
        uint64_t offload = one * (uint64_t)(l[i].n_experts - l[i].n_slots);
        z.stages_at += one * (uint64_t)l[i].n_slots;
        z.stage = offload > z.stage ? offload : z.stage;
        z.n_all += n_everywhere(&l[i]);
        all += one * (uint64_t)l[i].n_experts;
        largest = one > largest ? one : largest;
    }
    /* A model of few layers would have most of its experts in stages. */
    all = all / STAGE_SHARE > largest ? all / STAGE_SHARE : largest;
    z.stage = aligned(z.stage < all ? z.stage : all);
    z.tables_at = z.stages_at + 2 * z.stage;
    z.counts_at = z.tables_at + aligned(2 * (size_t)z.n_all * sizeof(int64_t));
    z.prefetch_at = z.counts_at + aligned((size_t)z.n_all * sizeof(uint32_t));
    z.prefetch = aligned(largest);
    z.total = z.prefetch_at +
              (n > PREFETCH_NEAR ? PREFETCH_SETS * (uint64_t)l[0].n_prefetched * z.prefetch : 0);
    return z;
}

uint64_t cuda_experts_bytes(const device *d, const expert_layer *l, int32_t n)
{
    return sizes_of(d, l, n).total + (l->helped ? cuda_offload_bytes(l, n) : 0);
}

uint64_t cuda_experts_host_bytes(const device *d, const expert_layer *l, int32_t n)
{
    uint64_t bytes = 0;
    for (int32_t i = 0; i < n; i++)
        bytes += cuda_experts_one_bytes(d, &l[i]) * (uint64_t)l[i].n_experts;
    return bytes;
}

/* ---- Opening and closing ------------------------------------------------------------------- */

/* Page-locked memory that kernels read at the host's addresses. In large pages, because 15 GB of
 * pages of 4 KiB, which the runtime's own allocator takes, need 3 seconds longer to be locked. */
static status take_host(pool_layer *l, err *e)
{
    void *seen = NULL;
    l->host_bytes = l->bytes * (size_t)l->want.n_experts;
    l->host = mem_pages(l->host_bytes);
    if (!l->host)
        return err_memory(e, "the host's copy of experts", l->host_bytes);
    if (!fine(cudaHostRegister(l->host, l->host_bytes,
                               cudaHostRegisterPortable | cudaHostRegisterMapped))) {
        mem_pages_free(l->host, l->host_bytes);
        l->host = NULL;
        return err_memory(e, "the host's copy of experts, page-locked", l->host_bytes);
    }
    if (!fine(cudaHostGetDevicePointer(&seen, l->host, 0)) || seen != l->host)
        return err_set(e, E_UNSUPPORTED,
                       "this GPU cannot read experts from the host's memory: the driver gives it "
                       "other addresses");
    return OK;
}

static void free_host(pool_layer *l)
{
    if (!l->host)
        return;
    fine(cudaHostUnregister(l->host));
    mem_pages_free(l->host, l->host_bytes);
    l->host = NULL;
}

void cuda_experts_close(device *d)
{
    cuda_device *c = cuda_select(d);
    cuda_experts *x = c->experts;
    if (!x)
        return;
    c->experts = NULL;
    for (int32_t i = 0; x->layer && i < x->n; i++)
        for (int32_t k = 0; k < x->layer[i].want.n_parts; k++)
            x->layer[i].want.part[k]->home = NULL, x->layer[i].want.part[k]->packed = NULL;
    if (!cuda_await(c, NULL, "waiting for the device") && c->stalled) {
        cuda_offload_abandon(x->offload); /* the GPU may read all else until the process ends */
        return;
    }
    cuda_offload_close(c, x->offload);
    if (x->copies)
        fine(cudaStreamSynchronize(x->copies));
    for (int32_t i = 0; x->layer && i < x->n; i++) {
        free_host(&x->layer[i]);
        expert_slots_free(&x->layer[i].map);
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
    size_t at = 0;
    l->want = *want;
    l->slots = slots;
    l->bytes = cuda_experts_one_bytes(NULL, want);
    status st = take_host(l, e);
    if (st)
        return st;
    l->from = (uintptr_t)slots < (uintptr_t)x->stage[0] ? slots : x->stage[0];
    l->from = (uintptr_t)l->from < (uintptr_t)l->host ? l->from : l->host;
    for (int32_t k = 0; k < want->n_parts; k++) {
        weight *w = want->part[k];
        const int32_t first = first_of(want, k);
        at -= first ? part_bytes(w) : 0;
        l->home[k] = (expert_home){.where = x->table + l->first + first,
                                   .count = k ? NULL : x->count + l->first,
                                   .from = l->from + at,
                                   .host = l->host + (size_t)first * l->bytes + at,
                                   .expert_bytes = l->bytes,
                                   .layer = i,
                                   .first = first};
        w->home = &l->home[k];
        at += part_bytes(w);
    }
    st = expert_slots_init(&l->map, want->n_experts, want->n_slots, e);
    if (!st)
        expert_slots_warm(&l->map, want->count);
    return st;
}

status cuda_experts_open(device *d, const expert_layer *list, int32_t n, err *e)
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
    bool waits = true;
    for (int k = 0; k < WAIT_SETS; k++)
        waits &= (x->wait[k] = mem_calloc(2 * (size_t)n, sizeof *x->wait[k])) != NULL;
    if (!x->layer || !x->table_now || !x->count_seen || !x->count_before || !x->count_all ||
        !waits) {
        x->n = x->layer ? n : 0;
        st = err_memory(e, "tables of experts", n_all * 40);
        goto out;
    }
    memset(x->table_now, 0xff, 2 * n_all * sizeof *x->table_now);
    if (!(x->memory = d->alloc(d, z.total))) {
        st = err_memory(e, "experts on the GPU", z.total);
        goto out;
    }
    x->stage[0] = x->memory + z.stages_at;
    x->stage[1] = x->stage[0] + z.stage;
    x->staged[0] = x->staged[1] = -1;
    x->table = (int64_t *)(x->memory + z.tables_at);
    x->count = (uint32_t *)(x->memory + z.counts_at);
    x->prefetch = x->memory + z.prefetch_at;
    x->prefetch_bytes = z.prefetch;
    if ((r = open_traffic(x))) {
        cudaGetLastError();
        st = err_set(e, E_MEMORY, "%s: room for experts on their way: %s", c->name,
                     cudaGetErrorString(r));
        goto out;
    }
    uint8_t *slots = x->memory;
    for (int32_t i = 0, first = 0; i < n && !st; i++) {
        x->layer[i].first = first + list[i].part[0]->first_mat;
        st = open_layer(x, i, &list[i], slots, e);
        slots += x->layer[i].bytes * (size_t)list[i].n_slots;
        first += n_everywhere(&list[i]);
    }
out:
    if (st)
        cuda_experts_close(d);
    return st;
}
