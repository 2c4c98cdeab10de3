/* skip.c - skip-softmax in answers on a CUDA device: which rows, their scratch, and recordings.
 *
 * A row goes to skip.cu by its own rule and its own number of keys alone, so its bits do not depend
 * on the other rows of its pass. Rows of one pass that differ in this are launched in runs.
 */
#include "backend/cuda/ops_int.h"
#include "backend/key_walk.h"
#include "backend/sparse.h"

_Static_assert((int)SKIP_TILE == (int)SPARSE_TILE, "answers have a CPU's tiles");
_Static_assert((int)SKIP_SEQS == (int)STEP_SEQS_MAX, "sequences of a pass");

enum {
    CHUNK = 512,
    CHUNKS = 256,          /* of a store, and a sixteenth more */
    SKIP_BYTES = 64 << 20, /* of scratch, if it holds a tile of rows */
    KEYS_MAX = (LIST_WORDS - 1) * 32 * SPARSE_TILE
};

bool cuda_answers_skip(const cuda_device *c, const kv_view *kv)
{
    attend_path path = cuda_attend_path(c, kv, true);
    return !kv->window && !kv->single && kv->head_dim >= 128 && kv->n_keys <= KEYS_MAX &&
           (path == ATTEND_TILES || path == ATTEND_WGMMA) && cu_skip_fits(cuda_kv_view(kv, NULL));
}

/* Heads of 128 in f16 gain least: their exact kernel is the fastest, and a key's weight is a larger
 * part of its bytes. At 32K keys they lose 3 %, at 128K they gain 7 %. */
int32_t cuda_skip_least(const cuda_device *c, const kv_view *kv)
{
    return kv->head_dim == 128 && kv->k_type == NUM_F16 ? SKIP_FAR * c->skip_least : c->skip_least;
}

static bool row_skips(const step *st, const rowset *rs, const kv_view *kv, int32_t r, int32_t least)
{
    const sparse_rule *rule = sparse_rule_of(st, rs, kv, r);
    return rule && rule->skip > 0 && row_range(rs, kv, r).hi >= least;
}

int32_t cuda_skip_run(const pass *p, const kv_view *kv, int32_t n_head, int32_t r, bool *skips)
{
    const cuda_device *c = cuda_of(p);
    const rowset *rs = p->rows;
    bool can = p->st->sparse && cuda_fits_tile(kv, n_head) && cuda_answers_skip(c, kv);
    int32_t n = 1, least = cuda_skip_least(c, kv);
    *skips = can && row_skips(p->st, rs, kv, r, least);
    while (r + n < rs->n && (can && row_skips(p->st, rs, kv, r + n, least)) == *skips)
        n++;
    return n;
}

/* ---- Scratch ------------------------------------------------------------------------------- */

/* Keys per chunk: a function of the view alone. */
static int32_t chunk_of(const kv_view *kv)
{
    int32_t n = CHUNK;
    while (n < SKIP_TILES * SKIP_TILE && (int64_t)n * (CHUNKS + CHUNKS / 16) < kv->n_keys)
        n *= 2;
    return n;
}
static int32_t up(int64_t n, int64_t by)
{
    return (int32_t)((n + by - 1) / by);
}

/* Bytes of each array for a row and head. */
typedef struct skip_room {
    size_t weights, tops, parts, kept;
} skip_room;
static skip_room room_of(const kv_view *kv)
{
    size_t tiles = (size_t)up(kv->n_keys, SKIP_TILE), d = (size_t)kv->head_dim;
    return (skip_room){.weights = tiles * SKIP_TILE * sizeof(uint16_t),
                       .tops = tiles * 2 * sizeof(float),
                       .parts =
                           (size_t)up(kv->n_keys, chunk_of(kv)) * (d + PART_MORE) * sizeof(float),
                       .kept = (size_t)sparse_words(kv->n_keys) * sizeof(uint32_t)};
}
static size_t row_bytes(const kv_view *kv, int32_t n_head)
{
    skip_room x = room_of(kv);
    return (x.weights + x.tops + x.parts + x.kept) * (size_t)n_head;
}
/* Rows of a launch: whole tiles of rows that share each read of a key. */
static int32_t rows_at_a_time(const kv_view *kv, int32_t n_head, int32_t rows)
{
    int32_t tile = SPLIT_PAIRS * kv->n_head_kv / n_head;
    int32_t n = (int32_t)(SKIP_BYTES / row_bytes(kv, n_head)) / tile * tile;
    n = n < tile ? tile : n;
    return n < rows ? n : rows;
}

size_t cuda_skip_bytes(const cuda_device *c, const kv_view *kv, int32_t rows, int32_t n_head)
{
    if (!cuda_fits_tile(kv, n_head) || !cuda_answers_skip(c, kv))
        return 0;
    return row_bytes(kv, n_head) * (size_t)rows_at_a_time(kv, n_head, rows);
}

/* ---- Launches ------------------------------------------------------------------------------ */

void cuda_skip_rows(pass *p, const kv_view *kv, const attend_args *a, int32_t row0, int32_t rows,
                    int32_t keys, void *scratch, join_args join)
{
    cuda_device *c = cuda_of(p);
    int32_t group = a->n_head / kv->n_head_kv, chunk = chunk_of(kv);
    int32_t tile = p->st->n_seqs > 1 ? 1 : SPLIT_PAIRS / group;
    int32_t at_a_time = rows_at_a_time(kv, a->n_head, rows);
    skip_room room = room_of(kv);
    size_t n = (size_t)at_a_time * (size_t)a->n_head;
    char *weights = scratch, *tops = weights + n * room.weights, *at = tops + n * room.tops;
    skip_args x = {.a = *a,
                   .parts = {.chunk = chunk, .n_chunk = up(keys, chunk)},
                   .schedule = {.group_inverse = (65536 + group - 1) / group},
                   .weights = (uint16_t *)weights,
                   .tops = (float *)tops,
                   .n_tiles = up(kv->n_keys, SKIP_TILE),
                   .n_word = sparse_words(kv->n_keys)};
    x.parts.at = (float *)at;
    x.kept = (uint32_t *)(at + n * room.parts);
    while (1 << x.schedule.chunk_shift < chunk)
        x.schedule.chunk_shift++;
    cuda_stats_room(p, p->st->n_seqs); /* all of them must be there at once */
    for (int32_t i = 0; i < p->st->n_seqs; i++) {
        x.skip[i] = p->st->sparse[i].skip;
        x.stats[i] = cuda_stats_of(p, i);
    }
    for (int32_t r = 0; r < rows; r += at_a_time) {
        x.parts.row0 = row0 + r;
        x.parts.n_rows = rows - r < at_a_time ? rows - r : at_a_time;
        x.schedule.tile_rows = tile < x.parts.n_rows ? tile : x.parts.n_rows;
        cu_skip(c->stream, x);
        join.x = (chunk_args){x.a, x.parts};
        join.back = kv->v_rot;
        cu_attend_combine(c->stream, join, c->facts.n_sm);
    }
}

/* ---- Recordings ---------------------------------------------------------------------------- */

bool cuda_skip_key(const cuda_device *c, const step *st, graph_key *k)
{
    const kv_view any = {.kind = STORE_LINEAR};
    int32_t n_skip = 0, n_far = 0, n_counted = 0;
    if (!st->sparse)
        return true;
    for (int32_t r = 0; r < st->all.n; r++) {
        n_skip += row_skips(st, &st->all, &any, r, c->skip_least);
        n_far += row_skips(st, &st->all, &any, r, SKIP_FAR * c->skip_least);
        n_counted += st->sparse[st->all.seq[r]].stats != NULL;
    }
    if (!n_skip)
        return true;
    for (int32_t i = 0; i < st->n_seqs; i++)
        k->skip[i] = st->sparse[i].skip;
    k->far = n_far > 0;
    k->counted = n_counted > 0;
    return n_skip == st->all.n && (!n_far || n_far == st->all.n) &&
           (!n_counted || n_counted == st->all.n);
}
