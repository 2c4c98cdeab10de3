/* check_commit.c - keep_rows on the CUDA device moves the same bytes as its definition, in stores
 * of every row size, at any place of a ring, and in pages in any order.
 */
#include "tests/cuda/check_int.h"
#include "base/mem.h"

#include <string.h>

enum { STORES = 70, SLOTS_MAX = 256, HEADS_MAX = 4, BYTES_MAX = 2048, ROUNDS_FIRST = 1 << 20 };
/* Pages of a table: keys up to ROUNDS_FIRST and a tree's lie in SLOTS_MAX / KV_PAGE pages, so pages
 * repeat; but no four neighbours are the same. */
enum { PAGES = ROUNDS_FIRST / KV_PAGE + 3, POOL = SLOTS_MAX / KV_PAGE };

typedef struct stores {
    row_store gpu[STORES], ref[STORES]; /* ref: the same bytes on the host */
    kv_page *table[2];                  /* of every other store, on the host and on the device */
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
    size_t table_bytes = PAGES * sizeof(kv_page);
    k->now = mem_alloc((size_t)SLOTS_MAX * HEADS_MAX * BYTES_MAX);
    k->table[0] = mem_alloc(table_bytes);
    k->table[1] = g->gpu->alloc(g->gpu, table_bytes);
    if (!k->now || !k->table[0] || !k->table[1])
        return false;
    int32_t turn[POOL] = {2, 0, 3, 1};
    for (int32_t i = 0; i < PAGES; i++)
        k->table[0][i] = (kv_page){turn[i % POOL] * KV_PAGE, i * KV_PAGE};
    g->gpu->upload(g->gpu, k->table[1], k->table[0], table_bytes);
    for (int i = 0; i < STORES; i++) {
        row_store s = {.row_bytes = (size_t)bytes[i % (int)(sizeof bytes / sizeof *bytes)],
                       .n_heads = 1 + (int32_t)rng_below(&g->rng, HEADS_MAX),
                       .n_slots = 66 + (int32_t)rng_below(&g->rng, SLOTS_MAX - 66)};
        if (i & 1)
            s.n_slots = SLOTS_MAX;
        k->gpu[i] = k->ref[i] = s;
        k->gpu[i].at = g->gpu->alloc(g->gpu, bytes_of(&s));
        k->ref[i].at = mem_alloc(bytes_of(&s));
        k->gpu[i].page = i & 1 ? k->table[1] : NULL;
        k->ref[i].page = i & 1 ? k->table[0] : NULL;
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
    if (k->table[1])
        g->gpu->release(g->gpu, k->table[1], PAGES * sizeof(kv_page));
    mem_free(k->table[0]);
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
            int64_t first = (int64_t)rng_below(&g->rng, ROUNDS_FIRST);
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
