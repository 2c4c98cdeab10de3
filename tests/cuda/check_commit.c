/* check_commit.c - keep_rows on the CUDA device moves the same bytes as its definition, in stores
 * of every row size, at any place of a ring.
 */
#include "tests/cuda/check_int.h"
#include "base/mem.h"

#include <string.h>

enum { STORES = 70, SLOTS_MAX = 96, HEADS_MAX = 4, BYTES_MAX = 2048 };

typedef struct stores {
    row_store gpu[STORES], ref[STORES]; /* ref: the same bytes on the host */
    uint8_t *now;                       /* room for one store, downloaded */
} stores;

static size_t bytes_of(const row_store *s)
{
    return s->row_bytes * (size_t)s->n_heads * (size_t)s->n_slots;
}

static bool open_stores(rig *g, stores *k)
{
    /* Rows of blocks of 14 to 34 bytes, of f16 and f32, in heads of 32 to 512. */
    static const int32_t bytes[] = {14,  18,  22,  34,  64,   72,       80,
                                    136, 272, 288, 544, 1024, BYTES_MAX};
    k->now = mem_alloc((size_t)SLOTS_MAX * HEADS_MAX * BYTES_MAX);
    for (int i = 0; i < STORES; i++) {
        row_store s = {.row_bytes = (size_t)bytes[i % (int)(sizeof bytes / sizeof *bytes)],
                       .n_heads = 1 + (int32_t)rng_below(&g->rng, HEADS_MAX),
                       .n_slots = 66 + (int32_t)rng_below(&g->rng, SLOTS_MAX - 66)};
        k->gpu[i] = k->ref[i] = s;
        k->gpu[i].at = g->gpu->alloc(g->gpu, bytes_of(&s));
        k->ref[i].at = mem_alloc(bytes_of(&s));
        if (!k->gpu[i].at || !k->ref[i].at)
            return false;
        for (size_t b = 0; b < bytes_of(&s); b++)
            k->ref[i].at[b] = (char)rng_below(&g->rng, 256);
        g->gpu->upload(g->gpu, k->gpu[i].at, k->ref[i].at, bytes_of(&s));
    }
    return k->now;
}

static void close_stores(rig *g, stores *k)
{
    for (int i = 0; i < STORES; i++) {
        if (k->gpu[i].at)
            g->gpu->release(g->gpu, k->gpu[i].at, bytes_of(&k->gpu[i]));
        mem_free(k->ref[i].at);
    }
    mem_free(k->now);
}

/* Paths of random length through trees of up to 64 rows, at any place of any ring. */
static int32_t draw_path(rig *g, int32_t *from)
{
    int32_t n = 0;
    for (int32_t row = 0; row < STEP_TREE_ROWS_MAX; row++)
        if (rng_below(&g->rng, 3) == 0)
            from[n++] = row;
    return n;
}

void check_commit(rig *g)
{
    int32_t from[STEP_TREE_ROWS_MAX];
    double n_other = 0;
    if (!my_turn(g, "keep_rows"))
        return;
    stores *k = mem_calloc(1, sizeof *k);
    if (!k || !open_stores(g, k)) {
        failed(g, "keep_rows", "no memory");
    } else {
        for (int round = 0; round < (g->quick ? 4 : 40); round++) {
            int64_t first = (int64_t)rng_below(&g->rng, 1 << 20);
            int32_t n = draw_path(g, from);
            device_keep_rows(g->gpu, k->gpu, STORES, first, from, n);
            device_keep_rows(g->ref, k->ref, STORES, first, from, n);
        }
        for (int i = 0; i < STORES; i++) {
            g->gpu->download(g->gpu, k->now, k->gpu[i].at, bytes_of(&k->gpu[i]));
            n_other += memcmp(k->now, k->ref[i].at, bytes_of(&k->ref[i])) != 0;
        }
        verdict(g, "keep_rows", text("%d stores", STORES), n_other, 0);
    }
    if (k)
        close_stores(g, k);
    mem_free(k);
}
