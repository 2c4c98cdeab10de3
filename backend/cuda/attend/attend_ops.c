/* attend_ops.c - the ops of caches on a CUDA device: which kernel stores and which attends.
 *
 *   rows of    heads of 64, 128, 256, 512; not f32   all else
 *   answers    split.cu   f16 tensor cores           attend.cu  f32      chunks of keys
 *   prompts    flash.cu   f16 tensor cores           attend.cu  f32      all keys
 *
 * Answers: split8.cu takes two streams in heads of 256 and 512 that are not both f16, and heads of
 * 512 in f16 where split.cu does not fit; split512.cu takes heads of 512 in the most common
 * formats. GPUs of 9.0: split_hopper.cu takes f16 of answers in heads of 128, 256 and 512; of
 * prompts, flash_hopper.cu takes heads of 64, 72, 128 and 256, flash512_hopper.cu those of 512.
 * The kernels of prompts read two streams of f16 in place; of every other store expand.cu makes
 * such streams, in slices of at most slice_bytes. Each sequence of a pass has its own slices.
 *
 * Tiles of a prompt's keys begin at multiples of their length, slices at multiples of the longest
 * tile, wherever the pass begins. A kernel
 * carries maxima, sums and results unrounded to the next slice. So a row's bits do not depend on
 * how its prompt was cut into passes.
 *
 * Stores with rotated keys: queries are rotated before the kernel. With rotated values: the result
 * is rotated back after it. One stream (keys.cuh): the kernels of tiles take heads of 256 and 512
 * of which a quarter turns, and undo the rotation of their tiles themselves, as the f32 kernel
 * does.
 */
#include "backend/cuda/ops_int.h"
#include "backend/key_walk.h"
#include "backend/sparse.h"

enum {
    CHUNK = 128,
    CHUNK_SMALL = 64,
    CHUNK_WINDOW = 32,
    WINDOW_HEADS = 16, /* so many KV heads fill the GPU with chunks twice as long */
    CHUNKS_MAX = 256,
    PART_BYTES = 160 << 20, /* of the partial results that exist at a time */
    PART_ROWS_MIN = 8
};

static int32_t kind_of(num_type t)
{
    switch ((int)t) {
    case NUM_F32:
        return KV_F32;
    case NUM_F16:
        return KV_F16;
    case NUM_BF16:
        return KV_BF16;
    case NUM_Q8_0:
        return KV_Q8_0;
    case NUM_Q5_1:
        return KV_Q5_1;
    case NUM_Q5_0:
        return KV_Q5_0;
    case NUM_Q4_1:
        return KV_Q4_1;
    case NUM_Q4_0:
        return KV_Q4_0;
    case NUM_IQ4_NL:
        return KV_IQ4_NL;
    case NUM_TQ3_0:
        return KV_TQ3_0;
    default:
        return KV_KINDS;
    }
}

dev_kv cuda_kv_view(const kv_view *v, const float *k_weight)
{
    dev_kv d = {.id = v->id,
                .k_kind = kind_of(v->k_type),
                .v_kind = kind_of(v->v_type),
                .n_head_kv = v->n_head_kv,
                .head_dim = v->head_dim,
                .window = v->window,
                .n_slots = v->n_slots,
                .k_bytes = (int32_t)v->k_row_bytes,
                .v_bytes = (int32_t)v->v_row_bytes,
                .k_rot = v->k_rot,
                .v_rot = v->v_rot,
                .single = v->single};
    if (v->single) {
        d.v_bytes = d.k_bytes;
        d.n_turning = v->k_rope->n_turning;
        d.inv_freq = v->k_rope->inv_freq;
        d.turns = v->k_rope->turns;
        d.k_weight = k_weight;
    }
    return d;
}

dev_kv cuda_view_of(pass *p, const kv_view *v)
{
    dev_kv d = cuda_kv_view(v, v->single ? cuda_vector(p, v->k_weight) : NULL);
    d.sinks = cuda_vector(p, v->sinks);
    return d;
}

/* Blocks are encoded 32 values at a time, rotated 128. */
static bool holds(int32_t kind, bool rot, int32_t head_dim)
{
    if (kind == KV_KINDS || (rot && kind < KV_Q8_0))
        return false;
    return head_dim % (rot ? NUM_ROT_GROUP : kind >= KV_Q8_0 ? GROUP : 1) == 0;
}

/* Does split8.cu attend over such a store? The answer depends on the store and the GPU alone, so a
 * row's bits do not depend on the other rows of a pass. */
static bool keys_first(const cuda_device *c, const dev_kv *kv)
{
    int bytes = cu_split8_bytes(*kv, SPLIT_PAIRS, 1);
    bool plain = kv->k_kind == KV_F16 && kv->v_kind == KV_F16;
    return (!plain || kv->head_dim > c->split.widest) && bytes > 0 &&
           bytes <= c->facts.shared_block;
}

/* Does split_hopper.cu attend over such a store, whose tiles the kernels of tiles take? The answer
 * depends on the store and the GPU alone. The few keys of a window would not pay for its start. */
static bool by_wgmma(const cuda_device *c, const kv_view *kv)
{
    int32_t d = kv->head_dim;
    if (!c->hopper || kv->k_type != NUM_F16 || kv->v_type != NUM_F16)
        return false;
    return d == 512 || ((d == 128 || d == 256) && !kv->window && !kv->single);
}

attend_path cuda_attend_path(const cuda_device *c, const kv_view *kv, bool few_rows)
{
    int32_t k = kind_of(kv->k_type), v = kind_of(kv->v_type), d = kv->head_dim;
    if (!holds(k, kv->k_rot, d) || !holds(v, kv->v_rot, d))
        return ATTEND_NONE;
    bool tower = !few_rows && d >= 72 && d <= 96 && d % 8 == 0 && k == KV_F16 && v == KV_F16;
    bool tiles = (d == 64 || d == 128 || d == 256 || d == 512) && k != KV_F32 && v != KV_F32;
    tiles |= tower;
    if (kv->single)
        tiles = tiles && d >= 256 && kv->k_rope->n_turning == d / 8 && kv->k_rope->turns;
    if (!tiles || kv->wide)
        return ATTEND_PLAIN;
    dev_kv view = cuda_kv_view(kv, NULL);
    if (few_rows && d > c->split.widest && !keys_first(c, &view))
        return ATTEND_PLAIN;
    if (few_rows)
        return by_wgmma(c, kv) ? ATTEND_WGMMA : ATTEND_TILES;
    return k == KV_F16 && v == KV_F16 && !kv->single ? ATTEND_TILES : ATTEND_SLICES;
}

/* One row reads half, a prompt's slices take a twentieth. Of blocks two streams are as fast or
 * faster (split512.cu: instructions bind there). */
bool cuda_one_stream(const device *d, const kv_view *kv)
{
    const cuda_device *c = d->self;
    return kv->k_type == NUM_F16 && cuda_attend_path(c, kv, false) == ATTEND_SLICES &&
           cuda_attend_path(c, kv, true) >= ATTEND_TILES;
}

bool cuda_stores(pass *p, const kv_view *kv)
{
    if (cuda_attend_path(cuda_of(p), kv, true) != ATTEND_NONE)
        return true;
    err_set(&p->e, E_UNSUPPORTED,
            "CUDA has no attention kernel for keys of %s and values of %s in heads of %d",
            num_name(kv->k_type), num_name(kv->v_type), kv->head_dim);
    return false;
}

void cuda_kv_store(pass *p, const kv_view *kv, mat k, mat v)
{
    cuda_device *c = cuda_of(p);
    if (p->dry || pass_failed(p) || k.rows == 0 || !cuda_stores(p, kv))
        return;
    dev_kv view = cuda_view_of(p, kv);
    if (pass_failed(p))
        return;
    dev_step st = cuda_step(p, kv);
    cuda_select(&c->dev);
    cu_kv_store(c->stream, view, st, cuda_mat(k), cuda_mat(v));
    cuda_done(p, "kv_store");
}

/* The KV heads, and of n_head that are here the query heads, by which a row's keys are cut. Of a
 * tensor split these are the heads of the smallest part: then the blocks of a rank fill its GPU as
 * those of all heads fill one, and the bits are those of any number of ranks. */
static int32_t kv_heads_cut(const kv_view *kv)
{
    const int32_t n = kv->head_kv_all / RANKS_MAX;
    return !kv->head_kv_all ? kv->n_head_kv : n ? n : 1;
}
static int32_t query_heads_cut(const kv_view *kv, int32_t n_head)
{
    const int32_t n = kv->head_all / RANKS_MAX;
    return !kv->head_all ? n_head : n ? n : 1;
}

/* Keys per chunk: a function of the view alone, and not of the number of its pages. Chunks are
 * short, so that any number of blocks can share them evenly, also in a long store with a short
 * context; and so long that at most CHUNKS_MAX and a sixteenth more fill a store: a context is
 * often a power of two and room for some answers. split8.cu has two blocks per multiprocessor. With
 * one or two KV heads, twice as many chunks keep them busy, from stores of more than CHUNKS_MAX *
 * CHUNK keys on. */
static int32_t chunk_of(const kv_view *kv, bool split, bool keys_first)
{
    int64_t n = kv->window && split ? CHUNK_WINDOW : CHUNK, most = CHUNKS_MAX;
    if (kv->window && split && kv_heads_cut(kv) >= WINDOW_HEADS)
        n *= 2;
    int64_t keys = kv->window ? (int64_t)kv->window + STEP_TREE_ROWS_MAX : kv->n_keys;
    if (keys_first)
        n = kv->window && kv->head_dim == 256 ? CHUNK_WINDOW : CHUNK_SMALL;
    while (n * (most + most / 16) < keys) {
        n *= 2;
        if (keys_first && kv_heads_cut(kv) <= 2 && n > CHUNK)
            most = 2 * CHUNKS_MAX;
    }
    return (int32_t)n;
}

/* The most keys that a row of an answer sees, if their numbers are below n_keys. */
static int32_t keys_of(const kv_view *kv, int32_t n_keys)
{
    bool all = !kv->window || n_keys <= kv->window + STEP_TREE_ROWS_MAX;
    return all ? n_keys : kv->window + STEP_TREE_ROWS_MAX;
}
/* The most chunks that such a row sees. */
static int32_t chunks_of(const kv_view *kv, const chunk_parts *parts, int32_t n_keys)
{
    int32_t keys = keys_of(kv, n_keys), deep = 0;
    if (parts->most && keys > parts->shallow) { /* row_chunk in attend.cuh: `most`, and one */
        int32_t turns = (keys + parts->turn - 1) / parts->turn;
        deep = (turns < parts->most ? turns : parts->most) + 1;
        keys = parts->shallow;
    }
    int32_t n = keys ? (keys + parts->chunk - 1) / parts->chunk + (kv->window ? 1 : 0) : 0;
    return n > deep ? n : deep;
}

/* Rows that one launch takes; the size of the partial results follows. */
static int32_t part_rows(int64_t row_floats, int32_t rows)
{
    int64_t n = PART_BYTES / (int64_t)sizeof(float) / row_floats;
    n = n < PART_ROWS_MIN ? PART_ROWS_MIN : n / PART_ROWS_MIN * PART_ROWS_MIN; /* whole tiles */
    return n < rows ? (int32_t)n : rows;
}

/* Rows that share each read of a key, and blocks that share a tile's chunks: as many as the GPU
 * holds at a time. */
static int32_t within(int32_t n, int32_t most)
{
    return n < 1 ? 1 : n < most ? n : most;
}
/* Tiles of 16 pairs; neighbours in a pass of several sequences may be rows of different ones. */
static tile_schedule schedule(const cuda_device *c, const pass *p, const chunk_args *x)
{
    const dev_kv *kv = &x->a.kv;
    int32_t d = kv->head_dim, group = x->a.n_head / kv->n_head_kv, n_rows = x->parts.n_rows;
    int32_t rows = p->st->n_seqs > 1 ? 1 : SPLIT_PAIRS / group;
    int32_t tiles = (n_rows + rows - 1) / rows, room = c->facts.n_sm * (d == 512 ? 1 : 2);
    tile_schedule t = {.tile_rows = (n_rows + tiles - 1) / tiles};
    int32_t own = x->a.st.rows.seen ? t.tile_rows : 0; /* blocks of a tree's own chunks */
    t.n_block = within(room / (tiles * kv->n_head_kv) - own, x->parts.n_chunk);
    t.group_inverse = (65536 + group - 1) / group;
    t.chunk_shift = 0;
    while (1 << t.chunk_shift < x->parts.chunk)
        t.chunk_shift++;
    bool plain = kv->k_kind == KV_F16 && kv->v_kind == KV_F16;
    t.stages = d == 512              ? c->split.stages_512
               : d < 256             ? 3
               : plain || kv->single ? 2
                                     : c->split.stages_256;
    return t;
}

/* The same for split8.cu: as many blocks per multiprocessor as fit, with one stage where a block
 * has one tile, and up to three where it has more. */
static split8_args schedule8(const cuda_device *c, const pass *p, const chunk_args *x)
{
    enum { STAGES_MAX = 3 };
    const dev_kv *kv = &x->a.kv;
    const chunk_parts *parts = &x->parts;
    int32_t group = x->a.n_head / kv->n_head_kv, d = kv->head_dim;
    tile_schedule t = schedule(c, p, x);
    int32_t rows = t.tile_rows < parts->n_rows ? t.tile_rows : parts->n_rows;
    int32_t tiles = (parts->n_rows + t.tile_rows - 1) / t.tile_rows, keys = cu_split8_keys(*kv);
    int32_t blocks = d == 512 ? 2 : 4, one = cu_split8_bytes(*kv, rows * group, 1);
    while (blocks > 1 && blocks * (one + BLOCK_RESERVED) > c->facts.shared_sm)
        blocks--;
    t.n_block = within(c->facts.n_sm * blocks / (tiles * kv->n_head_kv), parts->n_chunk);
    int32_t run = (parts->n_chunk + t.n_block - 1) / t.n_block * parts->chunk;
    for (t.stages = 1; t.stages < STAGES_MAX && run > t.stages * keys; t.stages++) {
        int bytes = cu_split8_bytes(*kv, rows * group, t.stages + 1);
        if (bytes > c->facts.shared_block || blocks * (bytes + BLOCK_RESERVED) > c->facts.shared_sm)
            break;
    }
    /* Chunks of a window that neighbouring rows see: further blocks exit at once. */
    int32_t most = parts->n_chunk;
    if (kv->window)
        most = (kv->window + rows - 2 + parts->chunk - 1) / parts->chunk + 1;
    int32_t own = x->a.st.rows.seen ? t.tile_rows : 0; /* blocks of a tree's own chunks */
    int32_t n = tiles * kv->n_head_kv * ((most < t.n_block ? most : t.n_block) + own);
    size_t bytes = (size_t)cu_split8_bytes(*kv, rows * group, t.stages);
    return (split8_args){x->a, *parts, t, (int32_t)spread_bytes(bytes, n)};
}

/* Does split512.cu attend over such a store? Like keys_first, it depends on the store alone. */
static bool by_warps(const cuda_device *c, const dev_kv *kv)
{
    return cu_split512_stages(*kv, c->facts.shared_block) > 0;
}

/* The most chunks of a row. With `blocks` blocks for each chunk, one row then fills the
 * multiprocessors of an H100 or H200 once. The number does not depend on this GPU, so the bits are
 * the same on all GPUs whose shared memory holds these blocks. */
static int32_t row_parts(int32_t blocks)
{
    enum { PROCESSORS = 132, FEWEST = 8 };
    int32_t n = PROCESSORS / blocks;
    return n < FEWEST ? FEWEST : n;
}
/* Blocks of split512.cu for each row and chunk: of eight query heads. */
static int32_t eights_of(int32_t n_head, int32_t n_head_kv)
{
    return (n_head / n_head_kv + 7) / 8 * n_head_kv;
}

/* As many blocks as the GPU holds, one per multiprocessor. */
static split512_args schedule512(const cuda_device *c, const chunk_args *x)
{
    const dev_kv *kv = &x->a.kv;
    int32_t blocks = c->facts.n_sm / (eights_of(x->a.n_head, kv->n_head_kv) * x->parts.n_rows);
    return (split512_args){x->a, x->parts, within(blocks, x->parts.n_chunk),
                           cu_split512_stages(*kv, c->facts.shared_block)};
}

/* A row of at most so many keys goes to split.cu, which has more blocks, and they start sooner. As
 * measured on an H200: up to there one row is faster so. */
static int32_t shallow_keys(const cuda_device *c, const kv_view *kv)
{
    if (c->shallow != SHALLOW_MEASURED)
        return c->shallow;
    if (kv->head_dim < 512)
        return kv->head_dim == 128 ? 1024 : 0;
    return kv_heads_all(kv) < 4 ? 16384 : 4096;
}

/* How a row's keys are cut into chunks, by the heads of the layer. split_hopper.cu has a block for
 * each chunk and KV head. */
static chunk_parts parts_of(const cuda_device *c, const kv_view *kv, const dev_kv *d,
                            int32_t n_head, bool split)
{
    const int32_t n = kv_heads_cut(kv);
    if (split && by_wgmma(c, kv))
        return (chunk_parts){.chunk = CHUNK,
                             .most = row_parts(n),
                             .turn = WGMMA_TURN,
                             .shallow = shallow_keys(c, kv)};
    chunk_parts parts = {.chunk = chunk_of(kv, split, split && keys_first(c, d))};
    if (split && by_warps(c, d)) {
        parts.most = row_parts(eights_of(query_heads_cut(kv, n_head), n));
        parts.turn = SPLIT512_TURN;
    }
    return parts;
}

/* Blocks of 64 pairs of row and head, of one sequence or several. There are as many blocks as the
 * GPU holds at a time. */
static wgmma_args schedule_wgmma(const cuda_device *c, const chunk_args *x)
{
    const dev_kv *kv = &x->a.kv;
    int32_t rows = WGMMA_PAIRS / (x->a.n_head / kv->n_head_kv);
    int32_t tiles = (x->parts.n_rows + rows - 1) / rows;
    return (wgmma_args){x->a, x->parts, rows,
                        within(c->facts.n_sm / (tiles * kv->n_head_kv), x->parts.n_chunk)};
}

/* May rows be so short that split_hopper.cu leaves them to split.cu? Not if all are known to have
 * more keys. */
static bool may_be_shallow(const cuda_device *c, int32_t kind, const chunk_args *x)
{
    return x->parts.shallow > 0 && (x->a.kv.window || c->kv_least[kind] < x->parts.shallow);
}

/* Rows [from, until). kind: of the store. keys: no row sees more. join: gates and copy, if any. */
static void attend_few(pass *p, chunk_args x, bool split, int32_t kind, int32_t from, int32_t until,
                       int32_t keys, int32_t at_a_time, join_args join)
{
    const dev_kv *kv = &x.a.kv;
    bool wgmma = x.parts.turn == WGMMA_TURN;
    cuda_device *c = cuda_of(p);
    for (int32_t r = from; r < until; r += at_a_time) {
        x.parts.row0 = r;
        x.parts.n_rows = until - r < at_a_time ? until - r : at_a_time;
        if (wgmma && keys > x.parts.shallow)
            cu_split_hopper(c->stream, schedule_wgmma(c, &x));
        if (wgmma ? may_be_shallow(c, kind, &x) : split && !x.parts.most && !keys_first(c, kv))
            cu_split(c->stream, (split_args){x.a, x.parts, schedule(c, p, &x), 0});
        else if (!wgmma && x.parts.most)
            cu_split512(c->stream, schedule512(c, &x));
        else if (!wgmma && split)
            cu_split8(c->stream, schedule8(c, p, &x));
        else if (!wgmma)
            cu_attend_chunks(c->stream, x);
        join.x = x;
        join.back = kv->v_rot && !(split && kv->single);
        cu_attend_combine(c->stream, join, c->facts.n_sm);
    }
}

/* Rows of answers: those that drop tiles by skip.cu. scratch: for either kind. */
static void attend_answers(pass *p, const chunk_args *x, const kv_view *kv, bool split,
                           int32_t keys, int32_t at_a_time, join_args join)
{
    for (int32_t r = 0, n; r < x->a.q.rows; r += n) {
        bool skips;
        n = cuda_skip_run(p, kv, x->a.n_head, r, &skips);
        if (skips)
            cuda_skip_rows(p, kv, &x->a, r, n, keys, x->parts.at, join);
        else
            attend_few(p, *x, split, (int32_t)kv->kind, r, r + n, keys, at_a_time, join);
    }
}

/* ---- Many rows ---------------------------------------------------------------------------- */

/* Are values of one stream read in place? If they are f16. */
static bool values_stay(const kv_view *kv)
{
    return kv->single && kv->k_type == NUM_F16 && kv->kind == STORE_LINEAR;
}
/* Bytes of a key, and of its value, of all KV heads. */
static size_t made_key_bytes(const kv_view *kv)
{
    size_t one = sizeof(uint16_t) * (size_t)kv->n_head_kv * (size_t)kv->head_dim;
    return values_stay(kv) ? one : 2 * one;
}
/* The number of keys of a slice: the most of a sequence, or as many as slice_bytes holds. It
 * depends on the view alone. */
static int32_t slice_keys(const cuda_device *c, const kv_view *kv)
{
    size_t all =
        (size_t)kv->n_keys / SLICE_KEYS + 2; /* neither end need be at a multiple of SLICE_KEYS */
    size_t most = c->slice_bytes / made_key_bytes(kv) / SLICE_KEYS;
    size_t n = most < 1 ? 1 : most < all ? most : all;
    return (int32_t)(n * SLICE_KEYS);
}
/* Scratch for slices: k, v, and `carry` of every row. */
static size_t slices_bytes(const cuda_device *c, const kv_view *kv, int32_t rows, int32_t heads)
{
    return made_key_bytes(kv) * (size_t)slice_keys(c, kv) +
           SLICE_CARRY * sizeof(float) * (size_t)rows * (size_t)heads;
}

/* All keys that rows of one sequence see. */
static key_range keys_seen(const rowset *rs, const kv_view *kv)
{
    key_range all = {INT64_MAX, 0};
    for (int32_t r = 0; r < rs->n; r++) {
        key_range k = row_range(rs, kv, r);
        all.lo = k.lo < all.lo ? k.lo : all.lo;
        all.hi = k.hi > all.hi ? k.hi : all.hi;
    }
    return all;
}

/* Neighbouring rows of a pass, on the host and on the device. */
typedef struct prompt_rows {
    rowset rs;
    attend_args a;
    const step *st;
    dev_sparse sparse; /* kept: the lists of their query blocks */
    float *scores;     /* scratch of flash512_spread_hopper.cu */
    size_t scores_bytes;
} prompt_rows;
/* The number of neighbouring rows of one sequence, from row r on. */
static int32_t run_of(const rowset *rs, int32_t r)
{
    int32_t end = r + 1;
    while (end < rs->n && rs->seq[end] == rs->seq[r])
        end++;
    return end - r;
}

/* Do these rows take flash512_spread_hopper.cu? Yes, if its blocks run side by side, and the keys
 * are many enough to repay a second launch. Its bits are those of cu_flash512_hopper. */
static bool spreads(const cuda_device *c, const prompt_rows *s, const kv_view *kv,
                    const flash_args *x, spread_args *y)
{
    enum { TILES_LEAST = 16 };
    const attend_slice *l = &x->slice;
    int32_t group = x->a.n_head / kv->n_head_kv, pairs = x->a.q.rows * group;
    int32_t groups = (pairs + 63) / 64 * kv->n_head_kv;
    if (kv->head_dim != 512 || !l->first || !l->last || x->sparse.kept || x->sparse.skip > 0 ||
        groups * SPREAD_COLUMNS > c->facts.n_sm || run_of(&s->rs, 0) < s->rs.n)
        return false;
    key_range k = keys_seen(&s->rs, kv);
    int64_t lo = k.lo > l->from ? k.lo : l->from, hi = k.hi < l->until ? k.hi : l->until;
    *y = (spread_args){.h = *x,
                       .scores = s->scores,
                       .first_tile = (int32_t)(lo / SPREAD_KEYS),
                       .n_warps = pairs < 64 ? (pairs + 15) / 16 : 4};
    y->n_tiles = (int32_t)((hi + SPREAD_KEYS - 1) / SPREAD_KEYS) - y->first_tile;
    int32_t parts = c->facts.n_sm / groups;
    y->part_tiles = (y->n_tiles + parts - 1) / parts;
    return y->n_tiles >= TILES_LEAST &&
           (size_t)groups * (size_t)y->n_tiles * (size_t)y->n_warps * SPREAD_WARP_BYTES <=
               s->scores_bytes;
}
/* Scratch for scores of few rows, whatever their number. */
static size_t spread_bytes_of(const cuda_device *c, const kv_view *kv)
{
    enum { MOST = 64 << 20 };
    size_t tiles = (size_t)kv->n_keys / SPREAD_KEYS + 2;
    size_t all = tiles * (size_t)kv->n_head_kv * 4 * SPREAD_WARP_BYTES;
    return kv->head_dim != 512 || !c->hopper || !c->spread ? 0 : all < MOST ? all : MOST;
}

static void flash_rows(const cuda_device *c, const prompt_rows *s, const kv_view *kv, flash_args x)
{
    int32_t d = x.a.kv.head_dim;
    spread_args y;
    if (!c->hopper || (d > 72 && d < 128))
        cu_flash(c->stream, x);
    else if (spreads(c, s, kv, &x, &y))
        cu_flash512_spread(c->stream, y);
    else if (d <= 128)
        cu_flash128_hopper(c->stream, x);
    else if (d == 256)
        cu_flash256_hopper(c->stream, x);
    else
        cu_flash512_hopper(c->stream, x);
}

static prompt_rows rows_of(const step *st, const rowset *rs, attend_args a, int32_t row0, int32_t n)
{
    dev_rows *d = &a.st.rows;
    rowset of = {.n = n,
                 .pos = rs->pos + row0,
                 .seq = rs->seq + row0,
                 .seen = rs->seen ? rs->seen + row0 : NULL};
    for (int i = 0; i < STORE_KINDS; i++) {
        const row_keys *k = &rs->keys[i];
        of.keys[i] = (row_keys){k->index + row0, k->first + row0, k->last + row0,
                                k->newest ? k->newest + row0 : NULL};
    }
    d->token += row0, d->pos += row0, d->seq += row0;
    d->index += row0, d->first += row0, d->newest += row0;
    if (d->seen)
        d->seen += row0;
    d->n = a.q.rows = a.o.rows = n;
    a.q.at += row0 * a.q.stride;
    a.o.at += row0 * a.o.stride;
    return (prompt_rows){.rs = of, .a = a, .st = st};
}

/* The keys of x.slice for all rows: where query blocks have lists, by them; other rows in launches
 * of their own. */
static void flash(const cuda_device *c, const prompt_rows *s, const kv_view *kv, flash_args x)
{
    const uint32_t *kept = s->sparse.kept;
    float *carry = x.slice.carry;
    if (!kept) {
        flash_rows(c, s, kv, x);
        return;
    }
    for (int32_t r = 0, n; r < s->rs.n; r += n) {
        bool selects;
        n = cuda_block_run(s->st, &s->rs, kv, r, &selects);
        x.a.st.rows = rows_of(s->st, &s->rs, s->a, r, n).a.st.rows;
        x.a.q.at = s->a.q.at + r * s->a.q.stride;
        x.a.o.at = s->a.o.at + r * s->a.o.stride;
        x.a.q.rows = x.a.o.rows = n;
        x.slice.carry = carry ? carry + (size_t)SLICE_CARRY * (size_t)(r * s->a.n_head) : NULL;
        x.sparse.kept = selects ? kept : NULL;
        prompt_rows part = rows_of(s->st, &s->rs, s->a, r, n);
        part.scores = s->scores;
        part.scores_bytes = s->scores_bytes;
        flash_rows(c, &part, kv, x);
        kept += selects ? n / SELECT_ROWS * kv->n_head_kv * s->sparse.n_word : 0;
    }
}

/* Rows of one sequence, a slice of their keys at a time; slices are as equal as possible. */
static void attend_slices(const cuda_device *c, const prompt_rows *s, const kv_view *kv,
                          uint16_t *to)
{
    const attend_args *a = &s->a;
    int32_t room = slice_keys(c, kv);
    key_range k = keys_seen(&s->rs, kv);
    size_t elements = (size_t)kv->n_head_kv * (size_t)kv->head_dim * (size_t)room;
    expand_args x = {.kv = a->kv,
                     .st = a->st,
                     .seq = s->rs.seq[0],
                     .room = room,
                     .k = to,
                     .v = values_stay(kv) ? NULL : to + elements};
    flash_args h = {.a = *a,
                    .sparse = s->sparse,
                    .slice = {.k = x.k,
                              .v = x.v,
                              .values_room = kv->n_slots,
                              .first = true,
                              .carry = (float *)((x.v ? x.v : x.k) + elements)}};
    h.a.kv.k_kind = h.a.kv.v_kind = KV_F16;
    h.a.kv.single = false;
    h.a.kv.n_slots = room;
    int64_t at = k.lo / SLICE_KEYS * SLICE_KEYS, n = (k.hi - at + room - 1) / room;
    int64_t each = ((k.hi - at + n - 1) / n + SLICE_KEYS - 1) / SLICE_KEYS * SLICE_KEYS;
    for (; at < k.hi; at += each, h.slice.first = false) {
        h.slice.last = at + each >= k.hi;
        h.slice.from = x.start = (int32_t)at;
        h.slice.until = x.until = (int32_t)(h.slice.last ? k.hi : at + each);
        x.from = (int32_t)(at > k.lo ? at : k.lo);
        cu_expand(c->stream, x);
        flash(c, s, kv, h);
    }
}

/* Query blocks by their lists, other rows in launches of their own, by the f32 kernel. */
static void attend_lists(const cuda_device *c, const prompt_rows *s, const kv_view *kv)
{
    const uint32_t *kept = s->sparse.kept;
    for (int32_t r = 0, n; r < s->rs.n; r += n) {
        bool selects;
        n = cuda_block_run(s->st, &s->rs, kv, r, &selects);
        attend_args a = rows_of(s->st, &s->rs, s->a, r, n).a;
        if (selects)
            cu_attend_listed(c->stream, (listed_args){a, kept, s->sparse.n_word});
        else
            cu_attend(c->stream, a);
        kept += selects ? n / SELECT_ROWS * kv->n_head_kv * s->sparse.n_word : 0;
    }
}

/* Many rows, on tensor cores, or (ATTEND_PLAIN) by the f32 kernel. */
static void attend_run(const cuda_device *c, const prompt_rows *s, const kv_view *kv, void *temp)
{
    attend_path path = cuda_attend_path(c, kv, false);
    attend_slice whole = {.until = INT32_MAX, .first = true, .last = true};
    if (path == ATTEND_SLICES)
        attend_slices(c, s, kv, temp);
    else if (path == ATTEND_TILES)
        flash(c, s, kv, (flash_args){s->a, whole, s->sparse});
    else if (s->sparse.kept)
        attend_lists(c, s, kv);
    else
        cu_attend(c->stream, s->a);
    if (kv->v_rot && !(path >= ATTEND_TILES && kv->single))
        cu_rotate(c->stream, s->a.o, s->a.o, true);
}

/* Rows of one or several prompts. A launch with slices has one sequence, and so has one that leaves
 * keys out. */
static void attend_many(pass *p, const chunk_args *x, const kv_view *kv, void *temp, void *lists,
                        void *scores)
{
    const cuda_device *c = cuda_of(p);
    const rowset *rs = p->rows;
    bool slices = cuda_attend_path(c, kv, false) == ATTEND_SLICES, sparse = cuda_sparse_any(p, kv);
    size_t scores_bytes = spread_bytes_of(c, kv);
    bool few = scores_bytes && rs->n * (x->a.n_head / kv->n_head_kv) <= 64; /* one tile of pairs */
    for (int32_t r = 0, n; r < rs->n; r += n) {
        n = slices || sparse || few ? run_of(rs, r) : rs->n;
        prompt_rows s = rows_of(p->st, rs, x->a, r, n);
        s.scores = scores;
        s.scores_bytes = scores_bytes;
        if (sparse) {
            s.sparse = cuda_sparse_of(p, kv, rs->seq[r]);
            s.sparse.kept = cuda_lists(p, kv, &s.rs, &s.a, lists);
            s.sparse.n_word = sparse_words(kv->n_keys);
        }
        attend_run(c, &s, kv, temp);
    }
}

/* ---- The op ------------------------------------------------------------------------------- */

/* by: gates of rows of answers, or NULL. read: what the next product reads of o and by->y. */
static void attend(pass *p, mat o, mat q, const kv_view *kv, float scale, const gate_args *by,
                   mat *read)
{
    cuda_device *c = cuda_of(p);
    int32_t group = q.heads / kv->n_head_kv, d = q.cols;
    bool few = !p->st->prompt;
    bool split = cuda_fits_tile(kv, q.heads) && cuda_attend_path(c, kv, true) >= ATTEND_TILES;
    attend_path path = cuda_attend_path(c, kv, false);
    bool tiles = few ? split : path >= ATTEND_TILES;
    size_t made = kv->single ? 4 * (size_t)d : 0;
    size_t shared = ((size_t)group * (2 * (size_t)d + 64) + made) * sizeof(float);
    bool turns = kv->k_rot && !kv->single;
    if (!cuda_stores(p, kv))
        return;
    if (!cuda_sparse_allowed(p, kv))
        return;
    if (!tiles && (group > 64 || shared > (size_t)c->shared_max)) {
        err_set(&p->e, E_UNSUPPORTED,
                "CUDA has no attention kernel for %d query heads per KV head, in heads of %d",
                group, d);
        return;
    }
    chunk_args x = {.a = {.kv = cuda_view_of(p, kv), .n_head = q.heads, .scale = scale}};
    attend_args *a = &x.a;
    x.parts = parts_of(c, kv, &a->kv, q.heads, split);
    if (turns && !cuda_has_rotated_room(q))
        cuda_rotated_room(p, &q);
    mat rotated = q;
    if (turns)
        rotated = mat_at(q.copies.at[COPY_ROTATED], q.rows, q.heads, d, mat_width(q));
    size_t mark = pass_mark(p);
    int32_t chunks = chunks_of(kv, &x.parts, kv->n_keys);
    int64_t row_floats = (int64_t)q.heads * chunks * ((int64_t)d + PART_MORE);
    int32_t at_a_time = part_rows(row_floats, q.rows);
    size_t part_bytes = few ? (size_t)row_floats * (size_t)at_a_time * sizeof(float) : 0;
    size_t skip_bytes = few ? cuda_skip_bytes(c, kv, q.rows, q.heads) : 0; /* for any rule */
    part_bytes = part_bytes > skip_bytes ? part_bytes : skip_bytes;
    size_t made_bytes = !few && path == ATTEND_SLICES ? slices_bytes(c, kv, q.rows, q.heads) : 0;
    void *temp = pass_temp(p, few ? part_bytes : made_bytes), *lists = NULL, *scores = NULL;
    if (!few && path >= ATTEND_TILES)
        scores = pass_temp(p, spread_bytes_of(c, kv));
    if (!few && cuda_selects(c, kv)) /* for any rule that may come */
        lists = pass_temp(p, cuda_select_bytes(kv, q.rows, q.heads));
    if (!few) /* unused after this op */
        pass_release(p, mark);
    join_args join = {.q = {0}};
    if (by)
        join.by = *by;
    if (few && d % GROUP == 0)
        join.q = cuda_new_copy(p, read, false, false);
    if (cuda_skip(p, q))
        return;
    int32_t bucket = c->kv_bucket[kv->kind], keys = bucket < kv->n_keys ? bucket : kv->n_keys;
    a->o = cuda_mat(o);
    a->q = cuda_mat(rotated);
    a->st = cuda_step(p, kv);
    x.parts.at = temp;
    x.parts.n_chunk = chunks_of(kv, &x.parts, keys);
    if (turns && q.copies.state[COPY_ROTATED] == COPY_ROOM)
        cu_rotate(c->stream, a->q, cuda_mat(q), false);
    if (few)
        attend_answers(p, &x, kv, split, keys, at_a_time, join);
    else
        attend_many(p, &x, kv, temp, lists, scores);
    uint64_t n_pairs;
    if (c->splits)
        cuda_note_bytes(c, device_seen_bytes(p->rows, kv, q.rows, &n_pairs));
    cuda_done(p, "attend");
}

void cuda_attend(pass *p, mat *o, mat q, const kv_view *kv, float scale)
{
    attend(p, *o, q, kv, scale, NULL, o);
}

void cuda_attend_gate(pass *p, mat *y, mat o, mat q, mat gate, act_kind act, const kv_view *kv,
                      float scale)
{
    bool apart = gate.rows != q.rows; /* the gates of a row's heads are rows */
    if (p->st->prompt || (act != ACT_SOFTPLUS && act != ACT_SIGMOID)) {
        mat to = mat_heads(*y, q.cols);
        to = apart ? mat_head_rows(to) : to;
        attend(p, o, q, kv, scale, NULL, &o);
        cuda_act_mul(p, &to, gate, apart ? mat_head_rows(o) : o, act);
        y->copies = to.copies;
        return;
    }
    gate_args by = {.y = cuda_mat(*y),
                    .gate = cuda_mat(gate),
                    .gate_head = apart ? (int32_t)gate.stride : gate.cols,
                    .share = gate.cols == 1 ? q.cols : 1,
                    .act = (int32_t)act};
    if (apart)
        by.gate.stride *= q.heads;
    attend(p, o, q, kv, scale, &by, y);
}
