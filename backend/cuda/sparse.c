/* sparse.c - attention that leaves keys out on a CUDA device: which stores, by what rule, and the
 * account of it.
 *
 * Prompts alone, by the kernels of 9.0 (flash_hopper.cuh). They add to counters in memory of the
 * device, one tally for each sequence and layer of a pass. A pass that counted ends with a copy of
 * them to the host, which waits for the pass.
 */
#include "backend/cuda/cuda_int.h"
#include "backend/sparse.h"

#include <string.h>

_Static_assert((int)SPARSE_COUNTS == (int)SPARSE_BINS + 2, "a tally on the device");

int32_t cuda_sparse_tile(const device *d, const kv_view *kv)
{
    if (cuda_attend_path(d->self, kv, false) < ATTEND_WGMMA)
        return 0;
    return kv->head_dim == 128 ? 128 : 64;
}

bool cuda_sparse_any(const pass *p, const kv_view *kv)
{
    bool any = false;
    for (int32_t r = 0; !p->dry && p->st->sparse && p->st->prompt && r < p->rows->n; r++)
        any |= sparse_rule_of(p->st, p->rows, kv, r) != NULL;
    return any;
}

bool cuda_sparse_allowed(pass *p, const kv_view *kv)
{
    if (!cuda_sparse_any(p, kv) || cuda_sparse_tile(&cuda_of(p)->dev, kv))
        return true;
    err_set(&p->e, E_UNSUPPORTED,
            "sparse attention over keys of %s and values of %s in heads of %d on this GPU",
            num_name(kv->k_type), num_name(kv->v_type), kv->head_dim);
    return false;
}

/* The counters of a layer of a sequence; NULL after a failure. */
static unsigned long long *tally_of(cuda_device *c, pass *p, struct sparse_tally *to)
{
    for (int32_t i = 0; i < c->n_tallies; i++)
        if (c->tally[i] == to)
            return c->tally_at + (size_t)i * SPARSE_COUNTS;
    if (c->n_tallies == SPARSE_TALLIES)
        cuda_take_tallies(c, p);
    c->tally[c->n_tallies] = to;
    return c->tally_at + (size_t)c->n_tallies++ * SPARSE_COUNTS;
}

dev_sparse cuda_sparse_of(pass *p, const kv_view *kv, int32_t seq)
{
    const sparse_rule *rule = &p->st->sparse[seq];
    dev_sparse s = {.skip = kv->window ? 0 : rule->skip};
    if (s.skip > 0 && rule->tally && !p->repeats && p->il >= 0)
        s.tally = tally_of(cuda_of(p), p, &rule->tally[p->il]);
    return s;
}

int cuda_open_tallies(cuda_device *c)
{
    size_t n_bytes = sizeof *c->tally_at * SPARSE_COUNTS * SPARSE_TALLIES;
    void *at = NULL, *host = NULL;
    cudaError_t r = cudaMalloc(&at, n_bytes);
    c->tally_at = r ? NULL : at;
    r = r ? r : cudaMallocHost(&host, n_bytes);
    c->tally_host = r ? NULL : host;
    return r ? (int)r : (int)cudaMemsetAsync(at, 0, n_bytes, c->stream);
}

void cuda_close_tallies(cuda_device *c)
{
    if (c->tally_at)
        cudaFree(c->tally_at);
    if (c->tally_host)
        cudaFreeHost(c->tally_host);
}

void cuda_take_tallies(cuda_device *c, pass *p)
{
    int32_t n = c->n_tallies;
    size_t n_bytes = sizeof *c->tally_at * SPARSE_COUNTS * (size_t)n;
    c->n_tallies = 0;
    if (!n ||
        !cuda_ok(
            c, p,
            cudaMemcpyAsync(c->tally_host, c->tally_at, n_bytes, cudaMemcpyDeviceToHost, c->stream),
            "reading what attention left out") ||
        !cuda_ok(c, p, cudaMemsetAsync(c->tally_at, 0, n_bytes, c->stream), "clearing memory") ||
        !cuda_ok(c, p, cudaStreamSynchronize(c->stream), "reading what attention left out"))
        return;
    for (int32_t i = 0; i < n; i++) {
        const unsigned long long *from = c->tally_host + (size_t)i * SPARSE_COUNTS;
        sparse_tally *to = c->tally[i];
        to->n_tiles += from[0];
        to->n_kept += from[1];
        for (int32_t k = 0; k < SPARSE_BINS; k++)
            to->bin[k] += from[2 + k];
    }
}
