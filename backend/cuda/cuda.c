/* cuda.c - the CUDA device: opening, memory, and the step's way to the device.
 *
 * The runtime library is linked in and finds the driver when the device is opened, so a program
 * with this file in it starts on any machine. All work goes to one stream, in order, so uploads and
 * downloads need no other synchronisation with passes.
 */
#include "backend/cuda/product/launch_tall.h"
#include "backend/cuda/experts/offload.h"
#include "backend/cuda/cuda_int.h"
#include "backend/cuda/pages/page_rescore_int.h"
#include "backend/cuda/plan_only.h"
#include "backend/experts.h"
#include "base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    BOUNCE_BYTES = 2 << 20, /* logits of one row: 1 MiB */
    KV_BUCKET_MIN = 1024,
    STALL_MS = 24000,         /* of a pass that is no chunk (stall.c): much more than one takes */
    RESERVE_BYTES = 512 << 20 /* for the driver, recorded passes, and the raw bytes of loading */
};

static cuda_device *self_of(const device *d)
{
    return d->self;
}

/* ---- Memory ------------------------------------------------------------------------------- */

static void *cuda_alloc(device *d, size_t n_bytes)
{
    cuda_device *c = cuda_select(d);
    void *p = NULL;
    if (c->limit_bytes && n_bytes > c->limit_bytes - c->n_bytes)
        return NULL;
    if (cudaMalloc(&p, n_bytes ? n_bytes : 1) != cudaSuccess) {
        cudaGetLastError(); /* a lack of memory is no failure of the device; the caller handles it
                             */
        return NULL;
    }
    cuda_ok(c, NULL, cudaMemsetAsync(p, 0, n_bytes, c->stream), "clearing memory");
    atomic_fetch_add_explicit(&c->n_bytes, n_bytes, memory_order_relaxed);
    return p;
}

static void cuda_release(device *d, void *p, size_t n_bytes)
{
    cuda_device *c = cuda_select(d);
    if (!p)
        return;
    cuda_await(c, NULL, "waiting for the device");
    if (c->stalled) /* the memory is lost until the process ends */
        return;
    cuda_graphs_drop(c);
    cuda_ok(c, NULL, cudaFree(p), "releasing memory");
    atomic_fetch_sub_explicit(&c->n_bytes, n_bytes, memory_order_relaxed);
}

static void cuda_clear(device *d, void *p, size_t n_bytes)
{
    cuda_select(d);
    cuda_ok(self_of(d), NULL, cudaMemsetAsync(p, 0, n_bytes, self_of(d)->stream),
            "clearing memory");
}

/* A few bytes travel as arguments of a kernel, and nobody waits: tables of pages change between the
 * chunks of a prompt, which the host enqueues ahead. */
static void cuda_upload(device *d, void *to, const void *from, size_t n_bytes)
{
    cuda_device *c = cuda_select(d);
    if (n_bytes <= PUT_WORDS * 4 && n_bytes % 4 == 0 && (uintptr_t)to % 4 == 0) {
        put_args a = {.to = to, .n = (int32_t)n_bytes / 4};
        memcpy(a.word, from, n_bytes);
        cu_put(c->stream, &a);
        cuda_ok(c, NULL, cudaGetLastError(), "copying to the device");
        return;
    }
    cuda_ok(c, NULL, cudaMemcpyAsync(to, from, n_bytes, cudaMemcpyHostToDevice, c->stream),
            "copying to the device");
    cuda_await(c, NULL, "copying to the device");
}

/* Through a pinned buffer where it fits; the driver's way for pageable memory is slower. */
static void cuda_download(device *d, void *to, const void *from, size_t n_bytes)
{
    cuda_device *c = cuda_select(d);
    void *at = n_bytes <= BOUNCE_BYTES && c->bounce ? c->bounce : to;
    cuda_ok(c, NULL, cudaMemcpyAsync(at, from, n_bytes, cudaMemcpyDeviceToHost, c->stream),
            "copying from the device");
    if (cuda_await(c, NULL, "computing") && at != to)
        memcpy(to, at, n_bytes);
}

static void take_sifted(const sift_result *from, sift_want *w, int32_t cap)
{
    for (int32_t i = 0; i < from->n && i < cap && i < SIFT_MOST; i++)
        w->to[i] = (logit){from->at[i].id, from->at[i].logit};
    w->bad = from->bad != 0;
    w->n = from->n > SIFT_MOST && from->n <= cap ? -1 : from->n;
}

/* SIFT_ROWS rows at a time, with one wait for all of them. */
static void cuda_sift(device *d, sift_want *want, int32_t n_wants, int32_t n, int32_t cap)
{
    cuda_device *c = cuda_select(d);
    for (int32_t i = 0; i < n_wants; i++) {
        want[i].n = -1;
        want[i].bad = false;
    }
    for (int32_t first = 0; first < n_wants && n <= SIFT_BLOCKS * 64; first += SIFT_ROWS) {
        sift_rows rows = {.n = n_wants - first < SIFT_ROWS ? n_wants - first : SIFT_ROWS};
        for (int32_t i = 0; i < rows.n; i++) {
            rows.x[i] = want[first + i].row;
            rows.k[i] = want[first + i].k > 0 ? want[first + i].k : 1;
        }
        cu_sift(c->stream, rows, n, c->maxima, c->sift);
        if (!cuda_ok(c, NULL, cudaGetLastError(), "sifting logits") ||
            !cuda_await(c, NULL, "computing"))
            return;
        for (int32_t i = 0; i < rows.n; i++)
            take_sifted(&c->sift[i], &want[first + i], cap);
    }
}

static void cuda_keep_rows(device *d, const row_store *store, int32_t n_stores, int64_t first,
                           const int32_t *from, int32_t n)
{
    cuda_device *c = cuda_select(d);
    keep_args a = {.first = first, .n = n};
    _Static_assert((int)KEEP_ROWS == (int)STEP_TREE_ROWS_MAX, "a path has at most a tree's rows");
    for (int32_t i = 0; i < n; i++)
        a.from[i] = (uint8_t)from[i];
    for (int32_t i = 0; i < n_stores; i++) {
        const row_store *s = &store[i];
        a.store[a.n_stores++] = (keep_store){.at = (uint8_t *)s->at,
                                             .page = (const dev_kv_page *)s->page,
                                             .row_bytes = (int32_t)s->row_bytes,
                                             .n_heads = s->n_heads,
                                             .n_slots = s->n_slots};
        if (a.n_stores < KEEP_STORES && i < n_stores - 1)
            continue;
        cu_keep_rows(c->stream, a);
        cuda_ok(c, NULL, cudaGetLastError(), "keeping rows");
        a.n_stores = 0;
    }
}

static uint64_t cuda_used(const device *d)
{
    return atomic_load_explicit(&self_of(d)->n_bytes, memory_order_relaxed);
}

static uint64_t cuda_available(const device *d)
{
    size_t free_bytes = 0, total = 0;
    if (self_of(d)->plan_only)
        return self_of(d)->limit_bytes;
    cuda_select(d);
    if (cudaMemGetInfo(&free_bytes, &total) != cudaSuccess) {
        cudaGetLastError();
        return 0;
    }
    uint64_t limit = self_of(d)->limit_bytes, left = limit - cuda_used(d);
    if (limit && left < free_bytes)
        free_bytes = left;
    return free_bytes ? free_bytes : 1;
}

static void cuda_wait(device *d)
{
    cuda_device *c = cuda_select(d);
    cuda_await(c, NULL, "computing");
}

static status cuda_failed(const device *d, err *e)
{
    const cuda_device *c = self_of(d);
    if (c->broken)
        return err_set(e, c->broken_why.status, "%s", c->broken_why.text);
    return cuda_experts_failed(c, e);
}

/* ---- The step ----------------------------------------------------------------------------- */

static size_t step_need(const step *st)
{
    enum { MASKS = 8, LISTS = (3 + ROPE_AXES_MAX + 4 * STORE_KINDS) * 4 }; /* bytes of a row */
    size_t rows = (size_t)st->all.n + (size_t)st->out.n;
    size_t recur = (size_t)st->n_recur * sizeof(dev_recur_base) + sizeof(dev_recur_seq);
    return (size_t)st->n_seqs * ((size_t)st->n_kv * sizeof(dev_kv_base) + recur) +
           rows * (MASKS + LISTS) + (size_t)(st->out.n + st->all.n) * 4 + 4 * sizeof(uint32_t) + 64;
}

/* As many passes may be under way as devices share the layers, and one more. */
static int step_buffers(const cuda_device *c)
{
    enum { ALONE = 4 };
    int n = c->dev.n_ahead > ALONE ? c->dev.n_ahead : ALONE;
    return n < STEP_BUFFERS ? n : STEP_BUFFERS;
}

static bool room_for_step(cuda_device *c, size_t n_bytes)
{
    const int n_buffers = step_buffers(c);
    if (n_bytes <= c->step_bytes && c->step_host[n_buffers - 1])
        return true;
    if (!cuda_await(c, NULL, "waiting for the device"))
        return false;
    cuda_graphs_drop(c);
    n_bytes = n_bytes < 1 << 20 ? 1 << 20 : 2 * n_bytes;
    void *p = NULL;
    for (int i = 0; i < n_buffers; i++) {
        if (c->step_host[i])
            cudaFreeHost(c->step_host[i]);
        c->step_host[i] = NULL;
        if (cudaMallocHost(&p, n_bytes) != cudaSuccess)
            return false;
        c->step_host[i] = p;
    }
    if (c->step_at)
        cudaFree(c->step_at);
    c->step_at = NULL;
    c->step_bytes = 0;
    if (cudaMalloc(&p, n_bytes) != cudaSuccess)
        return false;
    c->step_at = p;
    c->step_bytes = n_bytes;
    return true;
}

typedef struct packer {
    char *host, *dev;
    size_t at;
} packer;

static const void *put_bytes(packer *k, const void *from, size_t n_bytes)
{
    const void *to = k->dev + k->at;
    if (n_bytes)
        memcpy(k->host + k->at, from, n_bytes);
    k->at += n_bytes;
    return to;
}

static void put_masks(packer *k, const rowset *r, bool tree, step_rows *d)
{
    *d = (step_rows){0};
    if (tree)
        d->seen = put_bytes(k, r->seen, r->seen ? (size_t)r->n * sizeof *r->seen : 0);
}

/* After the masks, which are wider: each list is a multiple of 4 bytes. */
static void put_lists(packer *k, const rowset *r, step_rows *d)
{
    size_t n = (size_t)r->n * sizeof(int32_t);
    d->rows = (dev_rows){.n = r->n};
    d->rows.token = put_bytes(k, r->token, n);
    d->rows.pos = put_bytes(k, r->pos, n);
    d->rows.seq = put_bytes(k, r->seq, n);
    for (int i = 0; i < ROPE_AXES_MAX; i++)
        d->axis[i] = r->axis[i] ? put_bytes(k, r->axis[i], n) : NULL;
    for (int i = 0; i < STORE_KINDS; i++) {
        d->keys[i].index = put_bytes(k, r->keys[i].index, n);
        d->keys[i].first = put_bytes(k, r->keys[i].first, n);
        d->keys[i].last = put_bytes(k, r->keys[i].last, n);
        if (r->keys[i].newest) /* all passes of a layout have it, or none */
            d->keys[i].newest = put_bytes(k, r->keys[i].newest, n);
    }
}

/* What recurrent layers read. The bases come first, after those of the keys: they hold pointers. */
static void put_recur_bases(packer *k, const step *st, dev_recur *d)
{
    size_t n = (size_t)st->n_seqs * (size_t)st->n_recur;
    dev_recur_base *to = (dev_recur_base *)(k->host + k->at);
    *d = (dev_recur){.base = (const dev_recur_base *)(k->dev + k->at),
                     .n_recur = st->n_recur,
                     .n_seqs = st->n_seqs};
    for (size_t i = 0; i < n; i++)
        to[i] = (dev_recur_base){st->recur[i].state,
                                 st->recur[i].conv,
                                 {st->recur[i].journal[0], st->recur[i].journal[1]},
                                 st->recur[i].block};
    k->at += n * sizeof *to;
}

static void put_recur_rows(packer *k, const step *st, const step_rows *all, dev_recur *d)
{
    d->row_seq = all->rows.seq;
    if (!st->n_recur)
        return;
    d->parent = put_bytes(k, st->parent, (size_t)st->all.n * sizeof *st->parent);
    d->seq = (const dev_recur_seq *)(k->dev + k->at);
    for (int32_t i = 0; i < st->n_seqs; i++) {
        const dev_recur_seq s = cuda_recur_seq(&st->recur_seq[i]);
        put_bytes(k, &s, sizeof s);
    }
}

/* A power of two that all numbers of the rows' keys are below. */
static int32_t bucket_of(const rowset *r, int kind)
{
    int64_t n_keys = 0;
    int32_t bucket = KV_BUCKET_MIN;
    for (int32_t i = 0; i < r->n; i++) {
        int64_t end = (int64_t)r->keys[kind].last[i] + 1;
        n_keys = end > n_keys ? end : n_keys;
    }
    while (bucket < n_keys && bucket < 1 << 30)
        bucket *= 2;
    return bucket;
}

/* Do all rows have more keys than half of the bucket? So it is with one row, but in the first
 * bucket. Rows of a tree see fewer keys than their numbers say. */
static bool past_half(const rowset *r, int kind, int32_t bucket)
{
    bool past = bucket > KV_BUCKET_MIN && !r->seen;
    for (int32_t i = 0; i < r->n && past; i++)
        past = r->keys[kind].index[i] >= bucket / 2;
    return past;
}

_Static_assert((int)PAGE_KEYS == (int)KV_PAGE && sizeof(dev_kv_page) == sizeof(kv_page) &&
                   offsetof(dev_kv_page, pos) == offsetof(kv_page, pos),
               "kernels read the host's table of pages");

/* Places in the step block depend on the step's counts alone, so a recorded pass finds the next
 * step of the same counts at the same addresses. */
static void cuda_begin(device *d, pass *p)
{
    cuda_device *c = cuda_select(d);
    const step *st = p->st;
    if (c->raw || c->pinned[0])
        cuda_loading_free(c);
    c->router_runs = c->splits = false;
    c->watch_shown = c->crowded = false;
    c->watch.n_jobs = 0;
    if (c->broken) {
        err_set(&p->e, c->broken_why.status, "%s", c->broken_why.text);
        return;
    }
    cuda_take_turn(c, p);
    if (!room_for_step(c, step_need(st))) {
        cudaGetLastError();
        err_memory(&p->e, "the step", step_need(st));
        return;
    }
    int turn = c->step_turn++ % step_buffers(c);
    if (!cuda_await_event(c, p, c->step_done[turn], "waiting for the device"))
        return;
    packer k = {c->step_host[turn], c->step_at, 0};
    c->pass_number = put_bytes(&k, (const uint32_t[4]){p->number}, 4 * sizeof p->number);
    dev_kv_base *kv = (dev_kv_base *)(k.host + k.at);
    size_t n_kv = (size_t)st->n_seqs * (size_t)st->n_kv;
    for (size_t i = 0; i < n_kv; i++)
        kv[i] = (dev_kv_base){st->kv[i].k, st->kv[i].v, (const dev_kv_page *)st->kv[i].page};
    c->kv = (const dev_kv_base *)(k.dev + k.at);
    k.at += n_kv * sizeof *kv;
    put_recur_bases(&k, st, &c->recur);
    bool tree = st->all.seen != NULL;
    put_masks(&k, &st->all, tree, &c->rows_all);
    put_masks(&k, &st->out, tree, &c->rows_out);
    put_lists(&k, &st->all, &c->rows_all);
    put_lists(&k, &st->out, &c->rows_out);
    c->out_row = put_bytes(&k, st->out_row, (size_t)st->out.n * sizeof(int32_t));
    put_recur_rows(&k, st, &c->rows_all, &c->recur);
    for (int kind = 0; kind < STORE_KINDS; kind++) {
        int32_t bucket = bucket_of(&st->all, kind);
        c->kv_bucket[kind] = bucket;
        c->kv_least[kind] = past_half(&st->all, kind, bucket) ? bucket / 2 : 0;
    }
    if (cuda_ok(c, p, cudaMemcpyAsync(c->step_at, k.host, k.at, cudaMemcpyHostToDevice, c->stream),
                "copying the step"))
        cuda_ok(c, p, cudaEventRecord(c->step_done[turn], c->stream), "copying the step");
    cuda_experts_begin(c, p);
}

static void cuda_end(device *d, pass *p)
{
    cuda_device *c = cuda_select(d);
    cuda_ask_pages(c, p);
    if (!c->recording) /* else the pass has not run yet */
        cuda_take_stats(c, p);
}

/* Multiprocessors and their clock change no bits. */
static status cuda_agree(device *d, const device *first, err *e)
{
    cuda_device *c = d->self;
    const cuda_device *f = first->self;
    gpu_facts a = c->facts, b = f->facts;
    a.n_sm = b.n_sm = 0;
    c->int8_prompts = f->int8_prompts;
    return !memcmp(&a, &b, sizeof a) && cuda_blas_here(c) == cuda_blas_here(f)
               ? OK
               : err_set(e, E_UNSUPPORTED,
                         "%s and %s compute by different kernels, so they cannot share layers "
                         "(--split tensor)",
                         f->name, c->name);
}

/* ---- Opening and closing ------------------------------------------------------------------ */

static void cuda_close(device *d)
{
    cuda_device *c = self_of(d);
    if (c->plan_only) {
        cuda_blas_close(c->blas);
        mem_free(c);
        return;
    }
    cuda_select(d);
    cuda_part(c);
    if (c->stalled) /* whatever frees memory waits for the GPU */
        return;
    if (c->stream || c->step_done[0])
        cuda_loading_free(c);
    cuda_expert_ops.close(d);
    for (int i = 0; i < STEP_BUFFERS; i++) {
        if (c->step_host[i])
            cudaFreeHost(c->step_host[i]);
        if (c->step_done[i])
            cudaEventDestroy(c->step_done[i]);
    }
    for (int i = 0; i < 2; i++)
        if (c->pinned_done[i])
            cudaEventDestroy(c->pinned_done[i]);
    if (c->here)
        cudaEventDestroy(c->here);
    if (c->edge)
        cudaEventDestroy(c->edge);
    if (c->ended)
        cudaEventDestroy(c->ended);
    for (int i = 0; i < 2; i++)
        if (c->chunks.begun[i])
            cudaEventDestroy(c->chunks.begun[i]);
    if (c->step_at)
        cudaFree(c->step_at);
    cuda_graphs_drop(c);
    cuda_times_close(c);
    cuda_blas_close(c->blas);
    cuda_pins_close(c->pins);
    if (c->bounce)
        cudaFreeHost(c->bounce);
    if (c->launch.ticket)
        cudaFree(c->launch.ticket);
    if (c->maxima)
        cudaFree(c->maxima);
    cuda_close_stats(c);
    if (c->sift)
        cudaFreeHost(c->sift);
    if (c->stream)
        cudaStreamDestroy(c->stream);
    mem_free(c);
}

/* Memory of launches, zeroed: tickets, numbers of pages, and sums of blocks that share a tile. */
static cudaError_t open_launch_memory(cuda_device *c)
{
    void *p = NULL;
    size_t n_tickets = TICKETS + ROWS_GROUPS + ROUTER_TICKETS + RECUR_TICKETS + STEP_SEQS_MAX;
    size_t n_bytes = n_tickets * sizeof(int32_t) + ROWS_SUMS * sizeof(float);
    cudaError_t r = cudaMalloc(&p, n_bytes);
    if (r)
        return r;
    int32_t *ticket = p;
    c->launch = (launch_memory){
        .ticket = ticket, .arrived = ticket + TICKETS, .sums = (float *)(ticket + n_tickets)};
    c->router_ticket = c->launch.arrived + ROWS_GROUPS;
    c->recur_ticket = c->router_ticket + ROUTER_TICKETS;
    c->watched_pages = c->recur_ticket + RECUR_TICKETS;
    return cudaMemsetAsync(p, 0, n_bytes, c->stream);
}

static cudaError_t open_sift(cuda_device *c)
{
    void *p = NULL;
    cudaError_t r = cudaMalloc(&p, sizeof *c->maxima * SIFT_ROWS * SIFT_BLOCKS);
    c->maxima = r ? NULL : p;
    if (!r && !(r = cudaMallocHost(&p, sizeof *c->sift * SIFT_ROWS)))
        c->sift = p;
    return r;
}

void cuda_choose_kernels(cuda_device *c)
{
    c->can_hopper = c->hopper = c->spread = c->facts.wgmma;
    c->dev.select_timed = c->can_hopper;
    if (cu_blocks_fit()) {
        c->dev.recur_block = RECUR_BLOCK_ROWS;
        c->dev.recur_head = RECUR_HEAD;
    }
    c->shallow = SHALLOW_MEASURED;
    c->slice_bytes = SLICE_BYTES;
    c->skip_least = SKIP_LEAST;
    c->read_bytes = (size_t)READ_MIB << 20;
}

int32_t device_count_cuda(void)
{
    int n = 0;
    if (cudaGetDeviceCount(&n) != cudaSuccess)
        cudaGetLastError();
    return n > 0 ? n : 0;
}

static status open_gpu(cuda_device *c, const cuda_options *opt, err *e)
{
    const int32_t which = opt->device;
    int n = 0;
    cudaError_t r = cudaGetDeviceCount(&n);
    if (r != cudaSuccess || n < 1) {
        cudaGetLastError();
        return err_set(e, E_UNSUPPORTED, "no NVIDIA GPU can be used here: %s",
                       r != cudaSuccess ? cudaGetErrorString(r) : "none is there");
    }
    if (which < 0 || which >= n)
        return err_set(e, E_ARG, "GPU %d was asked for, and this machine has %d", which, n);
    c->gpu = c->dev.number = which;
    struct cudaDeviceProp prop;
    if ((r = cudaSetDevice(which)) || (r = cudaGetDeviceProperties(&prop, which)))
        return err_set(e, E_UNSUPPORTED, "GPU %d cannot be used: %s", which, cudaGetErrorString(r));
    if (prop.major < 8)
        return err_set(e, E_UNSUPPORTED,
                       "GPU %d (%s) is of compute capability %d.%d: 8.0 is needed", which,
                       prop.name, prop.major, prop.minor);
    c->facts = card_facts_of(&prop);
    const char *card = opt->card ? opt->card : getenv("CARAT_CARD");
    status st = card && *card ? card_imitate(card, &c->facts, e) : OK;
    if (st)
        return st;
    cuda_select(&c->dev);
    const char *library = getenv("CARAT_CUBLASLT"), *peers = getenv("CARAT_PEERS");
    c->no_peers = peers && !strcmp(peers, "off");
    if (!(c->blas = cuda_blas_open(!library || strcmp(library, "off"))))
        return err_memory(e, "the CUDA device", sizeof *c);
    const char *slow = c->facts.wgmma ? "no cuBLASLt: slower prompts" : "no cuBLASLt";
    snprintf(c->name, sizeof c->name, "cuda (%.200s%s%.8s, %d multiprocessors, %.0f GiB, %s)",
             prop.name, card && *card ? " as " : "", card ? card : "", prop.multiProcessorCount,
             (double)prop.totalGlobalMem / (1 << 30), cuda_blas_here(c) ? "cuBLASLt" : slow);
    c->shared_max = SHARED_LEAST;
    if ((r = cudaStreamCreateWithFlags(&c->stream, cudaStreamNonBlocking)))
        return err_set(e, E_IO, "%s: %s", c->name, cudaGetErrorString(r));
    for (int i = 0; i < STEP_BUFFERS && !r; i++)
        r = cudaEventCreateWithFlags(&c->step_done[i], cudaEventDisableTiming);
    for (int i = 0; i < 2 && !r; i++)
        r = cudaEventCreateWithFlags(&c->pinned_done[i], cudaEventDisableTiming);
    if (!r)
        r = cudaEventCreateWithFlags(&c->here, cudaEventDisableTiming);
    if (!r)
        r = cudaEventCreateWithFlags(&c->edge, cudaEventDisableTiming);
    if (!r)
        r = cudaEventCreateWithFlags(&c->ended, cudaEventDisableTiming);
    for (int i = 0; i < 2 && !r; i++)
        r = cudaEventCreateWithFlags(&c->chunks.begun[i], cudaEventDisableTiming);
    if (!r)
        r = cudaMallocHost(&c->bounce, BOUNCE_BYTES);
    if (!r)
        r = open_launch_memory(c);
    if (!r)
        r = open_sift(c);
    if (!r)
        r = (cudaError_t)cuda_open_stats(c);
    c->split = cu_split_limits(c->facts.shared_block);
    if (!r)
        r = (cudaError_t)(cu_attend_init(c->shared_max) | cu_mma_init() | cu_wide_init() |
                          cu_wide8_init() | cu_one_init() | cu_ple_init() | cu_experts_init() |
                          cu_vec_init() | cu_grouped_init() | cu_rows_init() | cu_flash_init() |
                          cu_split_init(c->split) | cu_split8_init(c->facts.shared_block) |
                          cu_split512_init(c->facts.shared_block) | cu_chain_init() |
                          cu_skip_init(c->facts.shared_block) | cu_select_init() |
                          cu_blocks_init());
    cuda_choose_kernels(c);
    if (!r && (st = cuda_choose_prompts(c, !(card && *card), e)))
        return st;
    if (!r && c->can_hopper)
        r = (cudaError_t)(cu_flash128_hopper_init() | cu_flash256_hopper_init() |
                          cu_flash512_hopper_init() | cu_flash512_spread_init() |
                          cu_split_hopper_init() | cu_select_hopper_init() | cu_tall_init() |
                          cu_tall_experts_init());
    if (r)
        return err_set(e, E_IO, "%s: %s", c->name, cudaGetErrorString(r));
    return OK;
}

cuda_device *cuda_new_device(void)
{
    cuda_device *c = mem_calloc(1, sizeof *c);
    if (!c)
        return NULL;
    c->plan_only = true;
    c->stall_ms = STALL_MS;
    c->dev = (device){
        .op = &cuda_ops,
        .kind = DEVICE_CUDA,
        .name = c->name,
        .acts = (1u << ACT_KINDS) - 1,
        .prompts_apart = true,
        .one_stream = cuda_one_stream,
        .narrow_sparse = cuda_narrow_sparse,
        .chunk_rows = 2048,
        .loads_gathered = true,
        .self = c,
        .alloc = cuda_alloc,
        .release = cuda_release,
        .clear = cuda_clear,
        .upload = cuda_upload,
        .download = cuda_download,
        .send = cuda_send,
        .follow = cuda_follow,
        .line_up = cuda_line_up,
        .limit_waits = cuda_limit_waits,
        .reaches = cuda_reaches,
        .open_inbox = cuda_open_inbox,
        .close_inbox = cuda_close_inbox,
        .agree = cuda_agree,
        .move = cuda_move,
        .moved = cuda_moved,
        .keep_rows = cuda_keep_rows,
        .page_moves = &cuda_page_moves,
        .experts = &cuda_expert_ops,
        .settle = cuda_recur_settle,
        .sum_pages = cuda_sum_pages,
        .rescore_pages = cuda_rescore_pages,
        .host_alloc = cuda_host_alloc,
        .host_free = cuda_host_free,
        .sift = cuda_sift,
        .weight_load = cuda_weight_load,
        .weight_free = cuda_weight_free,
        .weight_bytes = cuda_weight_bytes,
        .attend_kernel = cuda_attend_kernel,
        .product_kernel = cuda_product_kernel,
        .available_bytes = cuda_available,
        .used_bytes = cuda_used,
        .reserve_bytes = RESERVE_BYTES,
        .watch_rooms = WATCH_JOBS,
        .wait = cuda_wait,
        .failed = cuda_failed,
        .begin = cuda_begin,
        .end = cuda_end,
        .time_passes = cuda_time_passes,
        .timed_passes = cuda_timed_passes,
        .replay = cuda_replay,
        .recorded = cuda_recorded,
        .close = cuda_close,
    };
    return c;
}

status device_open_cuda(device **out, const cuda_options *opt, err *e)
{
    static const cuda_options defaults;
    *out = NULL;
    if (!opt)
        opt = &defaults;
    cuda_device *c = cuda_new_device();
    if (!c)
        return err_memory(e, "the CUDA device", sizeof *c);
    c->plan_only = false;
    c->limit_bytes = opt->limit_bytes;
    status st = open_gpu(c, opt, e);
    if (!st)
        st = cuda_pins_open(&c->pins, opt->device, e);
    if (st) {
        cuda_close(&c->dev);
        return st;
    }
    *out = &c->dev;
    return OK;
}
