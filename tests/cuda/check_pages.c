/* check_pages.c - attention over pages: a row's bits do not depend on where pages lie. And moves of
 * pages: the device's bytes are those of the definition (page_moves.c).
 *
 *     contiguous   0 1 2 3 4 ..                 no table; one store for each sequence
 *     identity     0 1 2 3 4 ..                 a table, whose pages lie in their order
 *     shuffled     . 4 . 1 0 . 3 . 2 .          a table; one store for all sequences, NaN elsewhere
 *     apart        the same, but positions have gaps, as where pages are not resident
 *
 * Committed keys are copied to each, the keys of the pass are stored by op_kv_store, and results
 * are compared bit for bit with those of the contiguous store. With gaps, keys that are made of
 * values have other positions: there the reference attends over the same table.
 */
#include "tests/cuda/check_pages.h"
#include "backend/key_walk.h"
#include "backend/page_moves.h"
#include "base/mem.h"

#include <cuda_runtime_api.h>

#include <string.h>

typedef enum placement { CONTIGUOUS, IDENTITY, SHUFFLED, APART } placement;
static const char *const names[] = {"contiguous", "identity", "shuffled", "apart"};

/* Stores of one placement: the same bytes on the host and on the device. */
typedef struct laid_out {
    rig *g;
    kv_view view[2];         /* the reference's, the device's */
    kv_base base[2][2];      /* [host, device][sequence] */
    size_t n_bytes[2];       /* of a store's streams */
    int32_t n_stores, pages; /* pages of a sequence */
    void *at[2][2][2];       /* [host, device][store][stream] */
    kv_page *table[2];       /* [sequences][pages] */
} laid_out;

static size_t table_bytes(const laid_out *o, int32_t n_seqs)
{
    return sizeof(kv_page) * (size_t)o->pages * (size_t)n_seqs;
}

/* Pages of the pool in random order. */
static void fill_table(laid_out *o, placement how, int32_t n_seqs, int32_t n_pool)
{
    int32_t *order = mem_alloc(sizeof *order * (size_t)n_pool), next = 0;
    for (int32_t i = 0; i < n_pool; i++)
        order[i] = i;
    for (int32_t i = n_pool - 1; i > 0 && how > IDENTITY; i--) {
        int32_t k = (int32_t)rng_below(&o->g->rng, (uint64_t)i + 1), was = order[i];
        order[i] = order[k];
        order[k] = was;
    }
    for (int32_t s = 0; s < n_seqs; s++)
        for (int32_t i = 0, pos = 0; i < o->pages; i++, pos += KV_PAGE) {
            int32_t page = how == IDENTITY ? i : order[next++];
            if (how == APART)
                pos += KV_PAGE * (int32_t)rng_below(&o->g->rng, 3);
            o->table[0][s * o->pages + i] = (kv_page){page * KV_PAGE, pos};
        }
    mem_free(order);
}

static bool open_stores(laid_out *o, placement how, const placed *t)
{
    device *gpu = o->g->gpu;
    int32_t n_seqs = t->st->n_seqs, n_pool;
    o->view[0] = *t->ref;
    o->view[1] = *t->gpu;
    o->pages = (t->ref->n_keys + KV_PAGE - 1) / KV_PAGE;
    o->n_stores = how > IDENTITY ? 1 : n_seqs;
    n_pool = how > IDENTITY ? n_seqs * o->pages + 7 : o->pages;
    for (int i = 0; i < 2; i++)
        o->view[i].n_slots = n_pool * KV_PAGE;
    for (int kv = 0; kv < (t->ref->single ? 1 : 2); kv++) {
        size_t row = kv ? t->ref->v_row_bytes : t->ref->k_row_bytes;
        o->n_bytes[kv] = row * (size_t)t->ref->n_head_kv * (size_t)o->view[0].n_slots;
        for (int32_t s = 0; s < o->n_stores; s++) {
            o->at[0][s][kv] = mem_alloc(o->n_bytes[kv]);
            o->at[1][s][kv] = gpu->alloc(gpu, o->n_bytes[kv]);
            if (!o->at[0][s][kv] || !o->at[1][s][kv])
                return false;
            memset(o->at[0][s][kv], 0xff, o->n_bytes[kv]); /* NaN */
        }
    }
    if (how != CONTIGUOUS) {
        o->table[0] = mem_alloc(table_bytes(o, n_seqs));
        o->table[1] = gpu->alloc(gpu, table_bytes(o, n_seqs));
        if (!o->table[0] || !o->table[1])
            return false;
        fill_table(o, how, n_seqs, n_pool);
        gpu->upload(gpu, o->table[1], o->table[0], table_bytes(o, n_seqs));
    }
    for (int32_t s = 0; s < n_seqs; s++)
        for (int i = 0; i < 2; i++) {
            void *const *at = o->at[i][o->n_stores > 1 ? s : 0];
            kv_page *table = how == CONTIGUOUS ? NULL : o->table[i] + s * o->pages;
            o->base[i][s] = (kv_base){at[0], at[1], table};
        }
    return true;
}

static void close_stores(laid_out *o, int32_t n_seqs)
{
    device *gpu = o->g->gpu;
    for (int32_t s = 0; s < o->n_stores; s++)
        for (int kv = 0; kv < 2; kv++) {
            mem_free(o->at[0][s][kv]);
            if (o->at[1][s][kv])
                gpu->release(gpu, o->at[1][s][kv], o->n_bytes[kv]);
        }
    if (o->table[1])
        gpu->release(gpu, o->table[1], table_bytes(o, n_seqs));
    mem_free(o->table[0]);
}

/* The committed keys of every sequence, in both memories. */
static void copy_committed(const laid_out *o, const placed *t)
{
    int32_t until[2] = {0, 0};
    for (int32_t r = 0; r < t->st->all.n; r++)
        until[t->st->all.seq[r]] = rows_keys(&t->st->all, t->ref)->first[r];
    for (int32_t s = 0; s < t->st->n_seqs; s++)
        for (int kv = 0; kv < (t->ref->single ? 1 : 2); kv++)
            for (int32_t h = 0; h < t->ref->n_head_kv; h++)
                for (int32_t k = 0; k < until[s]; k++)
                    memcpy(stored_at(&o->view[0], o->base[0][s], kv, h, k),
                           stored_at(t->ref, t->base[s], kv, h, k), stored_bytes(t->ref, kv));
    for (int32_t s = 0; s < o->n_stores; s++)
        for (int kv = 0; kv < (t->ref->single ? 1 : 2); kv++)
            o->g->gpu->upload(o->g->gpu, o->at[1][s][kv], o->at[0][s][kv], o->n_bytes[kv]);
}

/* Stores the pass's own keys and attends, on both devices or on the GPU alone (ref NULL). */
static void attend_over(const laid_out *o, const placed *t, both *b, mat *ref, mat *gpu)
{
    rig *g = o->g;
    step st[2] = {*t->st, *t->st};
    mat q[2], k[2], v[2];
    int32_t rows = t->st->all.n, heads = t->ref->n_head_kv, d = t->ref->head_dim;
    st[0].kv = o->base[0];
    st[1].kv = o->base[1];
    pass_begin(&b->ref, g->ref, &st[0], g->ref_scratch, g->scratch_bytes);
    pass_begin(&b->gpu, g->gpu, &st[1], g->gpu_scratch, g->scratch_bytes);
    both_mat(g, b, q, t->q, rows, t->n_head, d);
    both_mat(g, b, k, t->k, rows, heads, d);
    both_mat(g, b, v, t->v, rows, heads, d);
    op_kv_store(&b->gpu, &o->view[1], k[1], v[1]);
    *gpu = op_attend(&b->gpu, q[1], &o->view[1], t->scale);
    if (!ref)
        return;
    op_kv_store(&b->ref, &o->view[0], k[0], v[0]);
    *ref = op_attend(&b->ref, q[0], &o->view[0], t->scale);
}

void check_placement(rig *g, const placed *t, const char *shape)
{
    const char *label = t->ref->single ? "attend one pages" : "attend pages";
    size_t n = (size_t)t->st->all.n * (size_t)t->n_head * (size_t)t->ref->head_dim;
    float *first = NULL;
    for (placement how = CONTIGUOUS; how <= APART; how++) {
        laid_out o = {.g = g};
        both b;
        mat ref, gpu;
        if (how == APART && !t->ref->single)
            continue; /* positions are in the keys */
        if (g->quick && (how == IDENTITY || (how == CONTIGUOUS && t->got)))
            continue;
        if (!open_stores(&o, how, t)) {
            failed(g, label, "no memory");
        } else {
            copy_committed(&o, t);
            attend_over(&o, t, &b, how == APART ? &ref : NULL, &gpu);
            if (how == APART) {
                verdict(g, label, text("%s: %s", shape, names[how]), both_error(g, &b, ref, gpu),
                        t->bound);
            } else if (pass_failed(&b.gpu)) {
                failed(g, label, b.gpu.e.text);
            } else {
                float *got = gpu_rows(g, gpu);
                const float *want = first ? first : t->got;
                if (want)
                    verdict(g, label, text("%s: %s", shape, names[how]),
                            memcmp(got, want, n * sizeof *got) != 0, 0);
                if (first)
                    mem_free(got);
                else
                    first = got;
            }
        }
        close_stores(&o, t->st->n_seqs);
    }
    mem_free(first);
}

/* ---- Moves --------------------------------------------------------------------------------- */

/* The same stores on the host and on the device, their moves, and packed pages in host memory. */
enum {
    STORES = 67,
    POOL = 9,
    HEADS = 3,
    MOVES = 4,
    PARKED = 12,
    ROW_MAX = 544,
    PAIR_MOST = 2 * HEADS * POOL * KV_PAGE * ROW_MAX
};
typedef struct paged {
    row_store store[2][STORES];
    page_moves *moves[2];
    char *parked[2][PARKED];
    size_t n_bytes; /* of a packed page */
    char *now;      /* room for one store */
} paged;

static size_t bytes_of(const row_store *s)
{
    return s->row_bytes * (size_t)s->n_heads * (size_t)s->n_slots;
}

static bool open_paged(rig *g, paged *k)
{
    static const size_t bytes[] = {14, 18, 34, 64, 72, 136, 288, ROW_MAX};
    k->now = mem_alloc((size_t)ROW_MAX * HEADS * POOL * KV_PAGE);
    for (int i = 0; i < STORES; i++) {
        row_store s = {.row_bytes = bytes[i / 2 % 8],
                       .n_heads = 1 + (int32_t)rng_below(&g->rng, HEADS),
                       .n_slots = POOL * KV_PAGE};
        k->store[0][i] = k->store[1][i] = s;
        char *host = k->store[0][i].at = mem_alloc(bytes_of(&s));
        const row_store *before = &k->store[1][i - i % 2];
        k->store[1][i].at = i % 2 ? before->at + bytes_of(before) /* one copy moves both */
                                  : g->gpu->alloc(g->gpu, PAIR_MOST);
        if (!host || !k->store[1][i].at || !k->now)
            return false;
        for (size_t b = 0; b < bytes_of(&s); b++)
            host[b] = (char)rng_below(&g->rng, 256);
        g->gpu->upload(g->gpu, k->store[1][i].at, host, bytes_of(&s));
    }
    k->n_bytes = page_bytes(k->store[0], STORES);
    for (int i = 0; i < PARKED; i++) {
        k->parked[0][i] = mem_calloc(1, k->n_bytes);
        k->parked[1][i] = g->gpu->host_alloc(g->gpu, k->n_bytes);
        if (!k->parked[0][i] || !k->parked[1][i])
            return false;
        memset(k->parked[1][i], 0, k->n_bytes);
    }
    err e = {0};
    return !page_moves_open(&k->moves[0], g->ref, k->store[0], STORES, MOVES, &e) &&
           !page_moves_open(&k->moves[1], g->gpu, k->store[1], STORES, MOVES, &e);
}

static void close_paged(rig *g, paged *k)
{
    page_moves_close(k->moves[0]);
    page_moves_close(k->moves[1]);
    for (int i = 0; i < PARKED; i++) {
        mem_free(k->parked[0][i]);
        g->gpu->host_free(g->gpu, k->parked[1][i], k->n_bytes);
    }
    for (int i = 0; i < STORES; i++) {
        mem_free(k->store[0][i].at);
        if (i % 2 == 0 && k->store[1][i].at)
            g->gpu->release(g->gpu, k->store[1][i].at, PAIR_MOST);
    }
    mem_free(k->now);
}

static int32_t some_place(rig *g)
{
    return (int32_t)rng_below(&g->rng, POOL) * KV_PAGE;
}

/* Packed pages and stores that differ. */
static double count_different(rig *g, paged *k)
{
    double n = 0;
    for (int i = 0; i < PARKED; i++)
        n += memcmp(k->parked[0][i], k->parked[1][i], k->n_bytes) != 0;
    for (int i = 0; i < STORES; i++) {
        const row_store *s = &k->store[1][i];
        g->gpu->download(g->gpu, k->now, s->at, bytes_of(s));
        n += memcmp(k->now, k->store[0][i].at, bytes_of(s)) != 0;
    }
    return n;
}

/* The page at `from` becomes the one at `to`, in every store of a device. */
static void copy_page(rig *g, paged *k, int d, int32_t from, int32_t to)
{
    device *dev = d ? g->gpu : g->ref;
    for (const row_store *s = k->store[d]; s < k->store[d] + STORES; s++)
        for (int32_t h = 0; h < s->n_heads; h++) {
            char *head = s->at + (size_t)h * (size_t)s->n_slots * s->row_bytes;
            dev->download(dev, k->now, head + (size_t)from * s->row_bytes, KV_PAGE * s->row_bytes);
            dev->upload(dev, head + (size_t)to * s->row_bytes, k->now, KV_PAGE * s->row_bytes);
        }
}

/* Pages go out while passes write to others; later their places are overwritten, and they come back
 * to places that passes wrote to before, and read from after. */
static double random_moves(rig *g, paged *k, int rounds)
{
    int32_t out[MOVES], n_out = 0, lost = 0;
    for (int round = 0; round < rounds; round++) {
        int32_t a = some_place(g), b = some_place(g), to = some_place(g), parked = round % PARKED;
        for (int d = 0; d < 2; d++) {
            copy_page(g, k, d, a, b);
            lost += !page_moves_begin(k->moves[d]);
        }
        int32_t i = page_out(k->moves[0], b, k->parked[0][parked]);
        int32_t j = page_out(k->moves[1], b, k->parked[1][parked]);
        lost += i < 0 || j < 0;
        page_move_end(k->moves[0], i);
        for (int d = 0; d < 2 && to != b; d++)
            copy_page(g, k, d, a, to);
        out[n_out++] = j;
        for (; n_out == MOVES - 1 || (n_out && round % 3); n_out--) {
            lost += page_move_state(k->moves[1], out[n_out - 1], true) != PAGE_MOVED;
            page_move_end(k->moves[1], out[n_out - 1]);
        }
        if (n_out)
            continue;
        for (int d = 0; d < 2; d++) {
            copy_page(g, k, d, a, b);
            lost += !page_moves_begin(k->moves[d]);
            i = page_in(k->moves[d], b, k->parked[d][parked]);
            lost += i < 0 || !page_moves_join(k->moves[d]);
            page_move_end(k->moves[d], i);
            copy_page(g, k, d, b, to);
        }
    }
    for (; n_out > 0; n_out--) {
        lost += page_move_state(k->moves[1], out[n_out - 1], true) != PAGE_MOVED;
        page_move_end(k->moves[1], out[n_out - 1]);
    }
    return lost;
}

#ifdef EMU_CAN_FAIL
/* Copies fail: stores and packed pages are what they were, and the moves are all there again. */
static void check_failures(rig *g, paged *k)
{
    double wrong = 0;
    wrong += !page_moves_begin(k->moves[1]);
    emu_fail_copy(1);
    wrong += page_out(k->moves[1], 0, k->parked[1][0]) != -1;
    emu_fail_copy(1);
    wrong += page_in(k->moves[1], 0, k->parked[1][1]) != -1;
    emu_fail_copy(0);
    int32_t taken[MOVES];
    for (int i = 0; i < MOVES; i++)
        wrong += (taken[i] = page_out(k->moves[1], 0, k->parked[1][2])) < 0;
    wrong += page_out(k->moves[1], 0, k->parked[1][2]) != -1; /* all are taken */
    for (int i = 0; i < MOVES; i++) {
        wrong += page_move_state(k->moves[1], taken[i], true) != PAGE_MOVED;
        page_move_end(k->moves[1], taken[i]);
    }
    page_move_end(k->moves[0], page_out(k->moves[0], 0, k->parked[0][2]));
    verdict(g, "page moves", "copies that fail", wrong + count_different(g, k), 0);
}
#endif

/* Rows between a device and a block of host memory, which is locked section by section: rows of
 * every width, in and beside sections, at even and odd distances. */
static void check_block_moves(rig *g)
{
    enum { N_BYTES = 75 << 20, DEVICE = 40 << 20, MOVES_OF_BLOCK = 200 };
    char *dev = g->gpu->alloc(g->gpu, DEVICE), *host = g->gpu->host_alloc(g->gpu, N_BYTES);
    char *want = mem_alloc(N_BYTES), *image = mem_alloc(DEVICE);
    double differ = 0;
    for (int32_t i = 0; dev && host && want && image && i < MOVES_OF_BLOCK; i++) {
        const size_t width = 1 + rng_below(&g->rng, i % 3 ? 5000 : 20 << 20);
        const size_t room = (size_t)DEVICE / width, n = 1 + rng_below(&g->rng, room < 90 ? room : 90);
        const size_t host_room = N_BYTES / n, dev_room = DEVICE / n;
        const size_t wide = width < host_room && width < dev_room ? width : 1;
        block_move m = {.dev_stride = wide + rng_below(&g->rng, dev_room - wide + 1),
                        .host_stride = wide + rng_below(&g->rng, host_room - wide + 1),
                        .n_bytes = wide,
                        .n = (int32_t)n,
                        .load = i % 2};
        m.dev = dev + rng_below(&g->rng, DEVICE - (n - 1) * m.dev_stride - wide + 1);
        m.host = host + rng_below(&g->rng, N_BYTES - (n - 1) * m.host_stride - wide + 1);
        if (!i)
            for (size_t b = 0; b < N_BYTES; b++)
                want[b] = host[b] = (char)(b * 31 >> 3);
        if (!i) {
            memcpy(image, host, DEVICE);
            g->gpu->upload(g->gpu, dev, image, DEVICE);
        }
        for (size_t k = 0; k < n; k++) {
            char *at = image + (m.dev - dev) + k * m.dev_stride;
            char *to = want + (m.host - host) + k * m.host_stride;
            memcpy(m.load ? at : to, m.load ? to : at, wide);
        }
        device_move(g->gpu, &m);
        device_moved(g->gpu);
        if (i % 20 == 0 || i == MOVES_OF_BLOCK - 1)
            for (size_t b = 0; b < N_BYTES; b++)
                differ += host[b] != want[b];
    }
    if (dev && host && want && image)
        verdict(g, "block moves", "bytes that differ", differ, 0);
    else
        failed(g, "block moves", "no memory");
    if (host)
        g->gpu->host_free(g->gpu, host, N_BYTES);
    if (dev)
        g->gpu->release(g->gpu, dev, DEVICE);
    mem_free(want);
    mem_free(image);
}

void check_page_moves(rig *g)
{
    if (my_turn(g, "block moves"))
        check_block_moves(g);
    if (!my_turn(g, "page moves"))
        return;
    paged *k = mem_calloc(1, sizeof *k);
    if (!k || !open_paged(g, k)) {
        failed(g, "page moves", "no memory");
    } else {
        double lost = random_moves(g, k, g->quick ? 40 : 400);
        verdict(g, "page moves", text("%d stores: moves that failed", STORES), lost, 0);
        verdict(g, "page moves", "pages and stores that differ", count_different(g, k), 0);
#ifdef EMU_CAN_FAIL
        check_failures(g, k);
#endif
    }
    if (k)
        close_paged(g, k);
    mem_free(k);
}
