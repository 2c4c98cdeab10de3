/* sparse.c - attention that leaves keys out on a CUDA device: which stores, by what rule, the lists
 * of block selection, and the account of it.
 *
 * Block selection of prompts by the kernels of exact prompts, with lists; skip-softmax of prompts
 * by them too, in heads of 512 (flash.cuh); of answers by skip.c. The kernels that vote
 * or select add to counters in memory of the device, one tally for each sequence and layer of a
 * pass. A pass that counted ends with a copy of them to the host, which waits for the pass.
 *
 * The host knows which rows are query blocks, and not which tiles they keep: lists are made and
 * read on the device.
 */
#include "backend/cuda/ops_int.h"
#include "backend/key_walk.h"
#include "backend/sparse.h"

_Static_assert((int)SPARSE_COUNTS == (int)SPARSE_BINS + 2, "a tally on the device");
_Static_assert((int)SELECT_ROWS == (int)SPARSE_TILE, "a query block");

enum { SKIP_TILE_HOPPER = 64, SKIP_TILE_FLASH = 32 }; /* keys: flash512_hopper.cu, flash.cu */

bool cuda_selects(const cuda_device *c, const kv_view *kv)
{
    int32_t d = kv->head_dim;
    bool any = cuda_attend_path(c, kv, false) >= ATTEND_PLAIN && !kv->wide && !kv->window;
    return any && kv->k_type != NUM_F32 && (d == 128 || d == 256 || d == 512) &&
           (!kv->single || (d > 128 && kv->k_rope->n_turning == d / 8 && kv->k_rope->turns));
}
/* Do they drop tiles? In heads of 128 and 256 votes were measured to cost what they save. */
static bool prompts_skip(const cuda_device *c, const kv_view *kv)
{
    return cuda_attend_path(c, kv, false) >= ATTEND_TILES && kv->head_dim == 512;
}

void cuda_narrow_sparse(const device *d, const kv_view *kv, bool prompt, sparse_rule *rule)
{
    const cuda_device *c = cuda_select(d); /* what fits depends on the GPU */
    bool skip = prompt ? prompts_skip(c, kv) : cuda_answers_skip(c, kv);
    rule->skip = skip && !kv->window ? rule->skip : 0;
    int32_t tile = c->hopper ? SKIP_TILE_HOPPER : SKIP_TILE_FLASH;
    rule->tile = prompt && rule->skip > 0 ? tile : 0;
    rule->least = prompt ? 0 : cuda_skip_least(c, kv);
    rule->alpha = prompt && cuda_selects(c, kv) && !kv->window ? rule->alpha : 0;
}

bool cuda_sparse_any(const pass *p, const kv_view *kv)
{
    bool skip = prompts_skip(cuda_of(p), kv), any = false;
    for (int32_t r = 0; !p->dry && p->st->sparse && p->st->prompt && r < p->rows->n; r++) {
        const sparse_rule *rule = sparse_rule_of(p->st, p->rows, kv, r);
        any |= rule && (rule->alpha > 0 || skip);
    }
    return any;
}

bool cuda_sparse_allowed(pass *p, const kv_view *kv)
{
    const cuda_device *c = cuda_of(p);
    const char *why = NULL;
    if (p->dry || !p->st->sparse || !p->st->prompt || kv->window)
        return true;
    for (int32_t i = 0; i < p->st->n_seqs && !why; i++) {
        const sparse_rule *rule = &p->st->sparse[i];
        if (rule->alpha > 0 && rule->skip > 0) {
            err_set(&p->e, E_UNSUPPORTED,
                    "a prompt on a GPU has block selection or skip-softmax, not both");
            return false;
        }
        if (rule->alpha > 0 && sparse_words(kv->n_keys) > LIST_WORDS) {
            err_set(
                &p->e, E_UNSUPPORTED,
                "block selection on a GPU: a context of %d tokens is too long, expected at most %d",
                kv->n_keys, (LIST_WORDS - 1) * 32 * SPARSE_TILE);
            return false;
        }
        if (rule->alpha > 0 && !cuda_selects(c, kv))
            why = "block selection";
        if (rule->skip > 0 && !prompts_skip(c, kv) && !cuda_answers_skip(c, kv))
            why = "skip-softmax";
    }
    if (why)
        err_set(&p->e, E_UNSUPPORTED,
                "%s on this GPU has no kernel for keys of %s and values of %s in heads of %d%s",
                why, num_name(kv->k_type), num_name(kv->v_type), kv->head_dim,
                kv->single ? ", in one stream" : "");
    return !why;
}

void cuda_stats_room(pass *p, int32_t n)
{
    cuda_device *c = cuda_of(p);
    if (c->n_stats + n <= SPARSE_STATS)
        return;
    c->crowded = true;
    cuda_take_stats(c, p);
}

/* The counters of a layer of a sequence. */
static unsigned long long *stats_of(pass *p, int32_t seq)
{
    cuda_device *c = cuda_of(p);
    struct sparse_stats *to = &p->st->sparse[seq].stats[p->il];
    for (int32_t i = 0; i < c->n_stats; i++)
        if (c->stats[i] == to)
            return c->stats_at + (size_t)i * SPARSE_COUNTS;
    cuda_stats_room(p, 1);
    c->stats[c->n_stats] = to;
    c->counted[c->n_stats] = (stats_place){(int16_t)seq, (int16_t)p->il};
    return c->stats_at + (size_t)c->n_stats++ * SPARSE_COUNTS;
}

static bool counts(const pass *p, const sparse_rule *rule)
{
    return rule->stats && !p->repeats && p->il >= 0;
}

dev_sparse cuda_sparse_of(pass *p, const kv_view *kv, int32_t seq)
{
    const sparse_rule *rule = &p->st->sparse[seq];
    dev_sparse s = {.skip = kv->window || !prompts_skip(cuda_of(p), kv) ? 0 : rule->skip};
    if (s.skip > 0 && counts(p, rule))
        s.stats = stats_of(p, seq);
    return s;
}

unsigned long long *cuda_stats_of(pass *p, int32_t i)
{
    return counts(p, &p->st->sparse[i]) ? stats_of(p, i) : NULL;
}

/* ---- Block selection ----------------------------------------------------------------------- */

int32_t cuda_block_run(const step *st, const rowset *rs, const kv_view *kv, int32_t r,
                       bool *selects)
{
    int32_t n = 0;
    *selects = sparse_begins(st, rs, kv, r);
    do
        n += *selects ? SPARSE_TILE : 1;
    while (r + n < rs->n && sparse_begins(st, rs, kv, r + n) == *selects);
    return n;
}

/* How much lies where in the scratch: whole tiles of the store. */
typedef struct select_room {
    size_t n_tiles, mean_room, page_bytes, mean_bytes, score_bytes, list_bytes;
} select_room;
static select_room room_of(const kv_view *kv, int32_t rows, int32_t n_head)
{
    size_t n = (size_t)kv->n_keys / SPARSE_TILE, g = (size_t)kv->n_head_kv;
    size_t blocks = (size_t)rows / SPARSE_TILE;
    size_t at_a_time = blocks < SELECT_BLOCKS ? blocks : SELECT_BLOCKS;
    size_t room = (n + MEAN_TILES - 1) / MEAN_TILES * MEAN_TILES;
    size_t tile = blocks ? g * (size_t)kv->head_dim * sizeof(uint16_t) : 0;
    return (select_room){.n_tiles = n,
                         .mean_room = room,
                         .page_bytes = kv->single && kv->k_rot ? 2 * n * tile : 0,
                         .mean_bytes = room * tile,
                         .score_bytes = at_a_time * (size_t)n_head * n * 2 * sizeof(float),
                         .list_bytes =
                             blocks * g * (size_t)sparse_words(kv->n_keys) * sizeof(uint32_t)};
}

size_t cuda_select_bytes(const kv_view *kv, int32_t rows, int32_t n_head)
{
    select_room x = room_of(kv, rows, n_head);
    return x.page_bytes + x.mean_bytes + x.score_bytes + x.list_bytes;
}

/* Query blocks n rows from row r on: their lists to x->kept, which moves on. */
static void select_run(cudaStream_t stream, select_args *x, const rowset *rs, const kv_view *kv,
                       int32_t r, int32_t n)
{
    float *q = x->q.at;
    x->block0 = rows_keys(rs, kv)->index[r] / SPARSE_TILE;
    x->n_blocks = n / SPARSE_TILE;
    cu_tile_means(stream, *x);
    for (int32_t i = 0; i < n; i += SELECT_BLOCKS * SPARSE_TILE) {
        int32_t left = (n - i) / SPARSE_TILE;
        x->q.at = q + (r + i) * x->q.stride;
        x->block0 = rows_keys(rs, kv)->index[r + i] / SPARSE_TILE;
        x->n_blocks = left < SELECT_BLOCKS ? left : SELECT_BLOCKS;
        cu_select(stream, *x);
        x->kept += x->n_blocks * kv->n_head_kv * x->n_word;
    }
    x->q.at = q;
}

const uint32_t *cuda_lists(pass *p, const kv_view *kv, const rowset *rs, const attend_args *a,
                           void *scratch)
{
    const sparse_rule *rule = &p->st->sparse[rs->seq[0]];
    const kv_base *base = step_store(p->st, rs->seq[0], kv);
    select_room room = room_of(kv, p->rows->n, a->n_head);
    char *pages = scratch, *means = pages + room.page_bytes, *scores = means + room.mean_bytes;
    select_args x = {.kv = a->kv,
                     .base = {base->k, base->v, (const dev_kv_page *)base->page},
                     .q = a->q,
                     .n_head = a->n_head,
                     .n_tiles = (int32_t)room.n_tiles,
                     .mean_room = (int32_t)room.mean_room,
                     .pages = room.page_bytes ? (uint16_t *)pages : NULL,
                     .means = (uint16_t *)means,
                     .scores = (float *)scores,
                     .kept = (uint32_t *)(scores + room.score_bytes),
                     .n_word = sparse_words(kv->n_keys),
                     .sink = SPARSE_SINK,
                     .near = SPARSE_NEAR,
                     .scale = a->scale,
                     .alpha = rule->alpha};
    const uint32_t *lists = x.kept;
    if (rule->alpha <= 0 || kv->window)
        return NULL;
    if (counts(p, rule))
        x.stats = stats_of(p, rs->seq[0]);
    for (int32_t r = 0, n; r < rs->n; r += n) {
        bool selects;
        n = cuda_block_run(p->st, rs, kv, r, &selects);
        if (selects)
            select_run(cuda_of(p)->stream, &x, rs, kv, r, n);
        for (int32_t i = r; x.stats && !selects && i < r + n; i++) {
            uint64_t tiles = ((uint64_t)row_range(rs, kv, i).hi + SPARSE_TILE - 1) / SPARSE_TILE;
            tiles *= (uint64_t)a->n_head;
            sparse_count(&rule->stats[p->il], -1, tiles, tiles);
        }
    }
    return x.kept > lists ? lists : NULL;
}

/* ---- The account --------------------------------------------------------------------------- */

int cuda_open_stats(cuda_device *c)
{
    size_t n_bytes = sizeof *c->stats_at * SPARSE_COUNTS * SPARSE_STATS;
    void *at = NULL, *host = NULL;
    cudaError_t r = cudaMalloc(&at, n_bytes);
    c->stats_at = r ? NULL : at;
    r = r ? r : cudaMallocHost(&host, n_bytes);
    c->stats_host = r ? NULL : host;
    return r ? (int)r : (int)cudaMemsetAsync(at, 0, n_bytes, c->stream);
}

void cuda_close_stats(cuda_device *c)
{
    if (c->stats_at)
        cudaFree(c->stats_at);
    if (c->stats_host)
        cudaFreeHost(c->stats_host);
}

void cuda_take_stats(cuda_device *c, pass *p)
{
    int32_t n = c->n_stats;
    size_t n_bytes = sizeof *c->stats_at * SPARSE_COUNTS * (size_t)n;
    c->n_stats = 0;
    if (!n ||
        !cuda_ok(
            c, p,
            cudaMemcpyAsync(c->stats_host, c->stats_at, n_bytes, cudaMemcpyDeviceToHost, c->stream),
            "reading what attention left out") ||
        !cuda_ok(c, p, cudaMemsetAsync(c->stats_at, 0, n_bytes, c->stream), "clearing memory") ||
        !cuda_await(c, p, "reading what attention left out"))
        return;
    for (int32_t i = 0; i < n; i++) {
        const unsigned long long *from = c->stats_host + (size_t)i * SPARSE_COUNTS;
        sparse_stats *to = c->stats[i];
        to->n_tiles += from[0];
        to->n_kept += from[1];
        for (int32_t k = 0; k < SPARSE_BINS; k++)
            to->bin[k] += from[2 + k];
    }
}
