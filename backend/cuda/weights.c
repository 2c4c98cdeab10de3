/* weights.c - loading of weights: the layout of each, the places of its planes, and the copy.
 *
 *     file --threads--> two pinned buffers --copy--> raw bytes --pack.cu--> planes
 *
 * One buffer is filled while the other is copied. Weights of floats and gathered tables skip the
 * raw bytes: they stay as in the file. A part of a matrix (model/tensor_split.c) has gaps between
 * its rows or matrices in the file; what is copied has none. Buffers, threads and raw memory are
 * freed when the first pass begins.
 */
#include "backend/cuda/cuda_int.h"
#include "base/pool.h"

#include <string.h>

enum {
    PINNED_BYTES = 16 << 20,
    PIECE_BYTES = 1 << 20,    /* of a buffer, filled by one thread */
    EXPERTS_BYTES = 64 << 20, /* of experts that are packed together on their way to the host */
    LOADERS = 8,              /* threads; each reads several GB/s from the page cache */
    ALIGN = 256,
    ROW_MAX =
        38400 /* 40 bytes of shared memory per 32 values, within 48 KiB, which any block may have */
};

int32_t cuda_pack_kind(const weight *w)
{
    if (w->gather)
        return PACK_FILE;
    bool shared = w->home || w->in_slots; /* the host's kernels read no entries of lattices */
    switch (w->type) {
    case NUM_F32:
        return PACK_F32;
    case NUM_F16:
        return PACK_F16;
    case NUM_BF16:
        return PACK_BF16;
    case NUM_Q4_0:
        return PACK_Q4_0;
    case NUM_Q4_1:
        return PACK_Q4_1;
    case NUM_Q5_0:
        return PACK_Q5_0;
    case NUM_Q5_1:
        return PACK_Q5_1;
    case NUM_Q8_0:
        return PACK_Q8_0;
    case NUM_Q4_K:
        return PACK_Q4_K;
    case NUM_Q5_K:
        return PACK_Q5_K;
    case NUM_Q6_K:
        return PACK_Q6_K;
    case NUM_IQ4_NL:
    case NUM_IQ4_XS:
        return PACK_IQ4;
    case NUM_MXFP4:
    case NUM_NVFP4:
        return PACK_FP4;
    case NUM_IQ3_XXS:
        return shared ? PACK_G8 : PACK_IQ3_XXS;
    case NUM_IQ3_S:
        return shared ? PACK_G8 : PACK_IQ3_S;
    case NUM_IQ2_XXS:
        return shared ? PACK_G8 : PACK_IQ2_XXS;
    case NUM_IQ2_XS:
        return shared ? PACK_G8 : PACK_IQ2_XS;
    case NUM_IQ2_S:
        return shared ? PACK_G8 : PACK_IQ2_S;
    case NUM_IQ1_S:
    case NUM_IQ1_M:
        return shared ? PACK_G8 : PACK_IQ1;
    case NUM_Q2_0:
    case NUM_TQ1_0:
    case NUM_TQ2_0:
        return shared ? PACK_G8 : PACK_BITS2;
    case NUM_Q1_0:
        return shared ? PACK_G8 : PACK_BITS1;
    case NUM_Q2_K:
    case NUM_Q3_K:
        return PACK_G8;
    default:
        return PACK_NONE;
    }
}

static size_t aligned(size_t n)
{
    return (n + ALIGN - 1) & ~(size_t)(ALIGN - 1);
}

/* Bytes of a row and of a matrix without gaps. */
static size_t tight_row(const weight *w)
{
    uint64_t n = 0;
    num_row_bytes(w->type, (uint64_t)w->n_in, &n);
    return (size_t)n;
}
static size_t tight_mat(const weight *w)
{
    return tight_row(w) * (size_t)w->n_out;
}

/* The planes of w packed at `at`, and in *n_bytes the size of all matrices. */
static packed lay_out(const weight *w, int32_t kind, const uint8_t *at, size_t *n_bytes)
{
    packed v = {.codes = at, .kind = kind, .n_in = w->n_in, .n_out = w->n_out, .n_mat = w->n_mat};
    if (kind <= PACK_BF16) {
        v.mat_bytes = tight_mat(w);
        *n_bytes = w->n_bytes;
        return v;
    }
    pack_sizes z = pack_sizes_of(kind);
    v.n_group = w->n_in / GROUP;
    v.n_unit = (v.n_group + UNIT - 1) / UNIT;
    v.n_tile = (w->n_out + TILE_ROWS - 1) / TILE_ROWS;
    size_t rows = (size_t)v.n_tile * TILE_ROWS, units = rows * (size_t)v.n_unit;
    size_t groups = kind >= PACK_IQ3_XXS ? units * UNIT : rows * (size_t)v.n_group;
    v.high = at + aligned(groups * (size_t)z.code);
    v.scale = v.high + aligned(units * UNIT * (size_t)z.high);
    v.super = v.scale + aligned(units * UNIT * (size_t)z.scale);
    v.mat_bytes = (size_t)(v.super - at) + aligned(units * (size_t)z.super);
    *n_bytes = v.mat_bytes * (size_t)w->n_mat;
    return v;
}

packed cuda_view(const weight *w)
{
    size_t n;
    packed v = lay_out(w, w->packed_kind, w->packed, &n);
    if (w->home) {
        v.where = w->home->where;
        v.count = w->home->count;
    }
    return v;
}

size_t cuda_weight_bytes(const device *d, const weight *w)
{
    size_t n;
    (void)d;
    lay_out(w, cuda_pack_kind(w), NULL, &n);
    return w->in_slots ? 0 : n; /* slots count as a whole */
}

size_t cuda_slot_bytes(const weight *w)
{
    size_t n;
    weight one = *w;
    one.n_mat = 1;
    one.n_bytes = tight_mat(w);
    one.in_slots = true;
    lay_out(&one, cuda_pack_kind(&one), NULL, &n);
    return n;
}

/* Bytes [at, at + n) of w without gaps. */
static void copy_tight(const weight *w, char *to, size_t at, size_t n)
{
    const size_t row = tight_row(w), one = tight_mat(w);
    const bool rows = w->row_bytes != row, mats = w->mat_bytes != one;
    const size_t run = rows ? row : mats ? one : w->n_bytes; /* has no gap in the file */
    for (size_t done = 0, k = at / run, skip = at % run; done < n; k++, skip = 0) {
        size_t some = run - skip < n - done ? run - skip : n - done;
        const size_t n_out = (size_t)w->n_out;
        const char *from = rows   ? weight_row(w, (int32_t)(k / n_out), (int64_t)(k % n_out))
                           : mats ? weight_row(w, (int32_t)k, 0)
                                  : w->data;
        memcpy(to + done, from + skip, some);
        done += some;
    }
}

/* A copy of a weight's bytes into a pinned buffer. */
typedef struct loading {
    const weight *w;
    char *to;
    size_t at, n_bytes;
} loading;

static void load_piece(void *arg, int32_t chunk, int32_t thread)
{
    const loading *l = arg;
    size_t at = (size_t)chunk * PIECE_BYTES, n = l->n_bytes - at;
    (void)thread;
    copy_tight(l->w, l->to + at, l->at + at, n < PIECE_BYTES ? n : PIECE_BYTES);
}

/* Copies bytes [first, first + n_bytes) of w, without gaps, to the device: one pinned buffer is
 * filled while the other is copied. */
static bool send(cuda_device *c, char *to, const weight *w, size_t first, size_t n_bytes)
{
    for (size_t at = 0, i = 0; at < n_bytes; at += PINNED_BYTES, i ^= 1) {
        size_t n = n_bytes - at < PINNED_BYTES ? n_bytes - at : PINNED_BYTES;
        if (!cuda_ok(c, NULL, cudaEventSynchronize(c->pinned_done[i]), "loading weights"))
            return false;
        loading l = {w, c->pinned[i], first + at, n};
        pool_run(c->loaders, (int32_t)((n + PIECE_BYTES - 1) / PIECE_BYTES), load_piece, &l);
        if (!cuda_ok(c, NULL,
                     cudaMemcpyAsync(to + at, c->pinned[i], n, cudaMemcpyHostToDevice, c->stream),
                     "loading weights") ||
            !cuda_ok(c, NULL, cudaEventRecord(c->pinned_done[i], c->stream), "loading weights"))
            return false;
    }
    return true;
}

void cuda_loading_free(cuda_device *c)
{
    cudaStreamSynchronize(c->stream);
    pool_close(c->loaders);
    c->loaders = NULL;
    for (int i = 0; i < 2; i++) {
        if (c->pinned[i])
            cudaFreeHost(c->pinned[i]);
        c->pinned[i] = NULL;
    }
    if (c->raw)
        cudaFree(c->raw);
    c->raw = NULL;
    c->raw_bytes = 0;
}

/* Makes room for the raw bytes of the largest weight so far, and starts the threads. */
static status room_for_raw(cuda_device *c, const weight *w, size_t n_bytes, err *e)
{
    void *p = NULL;
    int32_t n = pool_default_threads();
    status st = c->loaders ? OK : pool_open(&c->loaders, n < LOADERS ? n : LOADERS, e);
    for (int i = 0; i < 2 && !st; i++)
        if (!c->pinned[i]) {
            if (cudaMallocHost(&p, PINNED_BYTES) != cudaSuccess)
                goto no_memory;
            c->pinned[i] = p;
        }
    if (st || n_bytes <= c->raw_bytes)
        return st;
    cudaStreamSynchronize(c->stream);
    if (c->raw)
        cudaFree(c->raw);
    c->raw = NULL;
    c->raw_bytes = 0;
    if (cudaMalloc(&p, n_bytes) != cudaSuccess)
        goto no_memory;
    c->raw = p;
    c->raw_bytes = n_bytes;
    return OK;
no_memory:
    cudaGetLastError();
    return err_memory(e, w->name, n_bytes);
}

void cuda_weight_free(device *d, weight *w)
{
    if (w->packed && !w->home)
        d->release(d, w->packed, w->packed_bytes);
    w->packed = NULL;
    w->packed_bytes = 0;
}

/* Experts to the host's copy, in the layout of their slots: a few at a time go to the device, are
 * packed there, and come back. */
static status load_to_host(cuda_device *c, weight *w, int32_t kind, err *e)
{
    const expert_home *h = w->home;
    bool as_is = kind <= PACK_BF16;
    const size_t each = tight_mat(w);
    size_t one_bytes, pair;
    int32_t n_at_a_time;
    weight one = *w;
    one.n_mat = 1;
    packed v = lay_out(&one, kind, NULL, &one_bytes);
    pair = aligned(each) + one_bytes;
    n_at_a_time = pair < EXPERTS_BYTES ? (int32_t)(EXPERTS_BYTES / pair) : 1;
    n_at_a_time = n_at_a_time < w->n_mat ? n_at_a_time : w->n_mat;
    for (int32_t i = 0; as_is && i < w->n_mat; i++)
        copy_tight(w, (char *)h->host + (size_t)i * h->expert_bytes, (size_t)i * each, each);
    status st = as_is ? OK : room_for_raw(c, w, pair * (size_t)n_at_a_time, e);
    if (st)
        return st;
    uint8_t *made = as_is ? NULL : (uint8_t *)c->raw + aligned(each) * (size_t)n_at_a_time;
    for (int32_t i = 0, n; !as_is && i < w->n_mat; i += n) {
        n = w->n_mat - i < n_at_a_time ? w->n_mat - i : n_at_a_time;
        if (!send(c, c->raw, w, (size_t)i * each, (size_t)n * each))
            break;
        v = lay_out(&one, kind, made, &one_bytes);
        v.n_mat = n;
        /* Packing leaves out the groups past the end of a row, which must be zeros. */
        cuda_ok(c, NULL, cudaMemsetAsync(made, 0, one_bytes * (size_t)n, c->stream),
                "packing experts");
        cu_pack(c->stream, v, (int)w->type, c->raw, tight_row(w), w->factor ? w->factor + i : NULL);
        if (!cuda_ok(c, NULL, cudaGetLastError(), "packing experts") ||
            !cuda_ok(c, NULL,
                     cudaMemcpy2DAsync(h->host + (size_t)i * h->expert_bytes, h->expert_bytes, made,
                                       one_bytes, one_bytes, (size_t)n, cudaMemcpyDeviceToHost,
                                       c->stream),
                     "packing experts"))
            break;
    }
    cuda_ok(c, NULL, cudaStreamSynchronize(c->stream), "packing experts");
    if (c->broken)
        return err_set(e, c->broken_why.status, "%s: %s", w->name, c->broken_why.text);
    w->packed = h->from;
    w->packed_kind = kind;
    w->packed_bytes = 0; /* the slots count as a whole */
    return OK;
}

status cuda_weight_load(device *d, weight *w, err *e)
{
    cuda_device *c = cuda_select(d);
    size_t n_bytes;
    int32_t kind = cuda_pack_kind(w);
    if (kind == PACK_NONE)
        return err_set(e, E_UNSUPPORTED,
                       "tensor %s is in format %s, which carat cannot compute with", w->name,
                       num_name(w->type));
    if (kind > PACK_BF16 && w->n_in > ROW_MAX)
        return err_set(e, E_UNSUPPORTED,
                       "tensor %s: rows of %d are longer than the %d of a GPU's "
                       "products",
                       w->name, w->n_in, ROW_MAX);
    if (w->home)
        return load_to_host(c, w, kind, e);
    packed v = lay_out(w, kind, NULL, &n_bytes);
    bool as_is = kind <= PACK_BF16;
    status st = room_for_raw(c, w, as_is ? 0 : w->n_bytes, e);
    if (st)
        return st;
    if (!(w->packed = d->alloc(d, n_bytes))) {
        cudaGetLastError();
        return err_memory(e, w->name, n_bytes);
    }
    w->packed_bytes = n_bytes;
    w->packed_kind = kind;
    v = cuda_view(w);
    if (send(c, as_is ? (char *)w->packed : c->raw, w, 0, w->n_bytes) && !as_is) {
        cu_pack(c->stream, v, (int)w->type, c->raw, tight_row(w), w->factor);
        cuda_ok(c, NULL, cudaGetLastError(), "packing weights");
    }
    if (kind >= PACK_F16)
        st = cuda_long_learn(c, w, e);
    if (!st && c->broken)
        st = err_set(e, c->broken_why.status, "%s: %s", w->name, c->broken_why.text);
    if (st)
        cuda_weight_free(d, w);
    return st;
}
