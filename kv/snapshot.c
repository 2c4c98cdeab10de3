/* snapshot.c - exact copies of a cache's state at a position, in host memory.
 *
 *     rings    rows n - W .. n - 1 of each, in logical order, whatever the size of the ring
 *     linear   rows 0 .. n - 1, as a chain of segments that snapshots of one timeline share
 *     states   of recurrent layers, after n tokens
 *
 * Rows and states are those of whole layers, with heads in the order of the model, once each. Of a
 * tensor split they are put together from its ranks' parts. So a cache of any split can load them.
 *
 *     segment A [0, 900) <- segment B [900, 1400) <- segment C [1400, 1500)
 *          snapshot at 900       snapshot at 1400        snapshot at 1500
 *
 * A segment may begin before its parent ends (a branch): then only the parent's rows below `from`
 * count. A segment of pages has the first page whole, with rows below `from` that equal its
 * parent's.
 */
#include "kv/snapshot.h"
#include "backend/key_walk.h"
#include "base/mem.h"
#include "kv/paging.h"

#include <string.h>

enum { PAGES_FROM = 1 << 20 }; /* larger blocks come straight from the kernel */

/* ---- Blocks of host memory --------------------------------------------------------------- */

/* A GPU copies fastest to host memory that it page-locked. One device locks it; CUDA makes such
 * memory fast for every GPU of the process. */
static void *block_alloc(device *pin_dev, size_t n_bytes)
{
    if (n_bytes < PAGES_FROM)
        return mem_alloc(n_bytes ? n_bytes : 1);
    return pin_dev && pin_dev->host_alloc ? pin_dev->host_alloc(pin_dev, n_bytes)
                                          : mem_pages(n_bytes);
}

static void block_free(device *pin_dev, void *p, size_t n_bytes)
{
    if (n_bytes < PAGES_FROM)
        mem_free(p);
    else if (pin_dev && pin_dev->host_free)
        pin_dev->host_free(pin_dev, p, n_bytes);
    else
        mem_pages_free(p, n_bytes);
}

/* A block that is given back stays locked, or goes on being locked: the next ones take its place. */
void kv_snapshot_lock_ahead(const kv_layout *l, size_t n_bytes)
{
    device *d = l->dev[PASS_MAIN];
    if (n_bytes && d->host_alloc)
        d->host_free(d, d->host_alloc(d, n_bytes), n_bytes);
}

/* ---- Rows between a cache and the host ---------------------------------------------------- */

static size_t view_row_bytes(const kv_view *v)
{
    return (size_t)v->n_head_kv * (v->k_row_bytes + v->v_row_bytes);
}

static int64_t ring_first(const kv_view *v, int64_t n)
{
    return n > v->window ? n - v->window : 0;
}

size_t kv_ring_bytes(const kv_layout *l, int64_t n)
{
    size_t sum = 0;
    for (int32_t i = 0; i < l->n_whole; i++)
        if (l->whole[i].window)
            sum += (size_t)(n - ring_first(&l->whole[i], n)) * view_row_bytes(&l->whole[i]);
    return sum;
}

/* Is there a started block at position n? Where n is a multiple of the block, none is. */
static bool has_block(const recur_view *v, int64_t n)
{
    return v->block && n % v->block;
}

size_t kv_state_bytes(const kv_layout *l, int64_t n)
{
    size_t floats = 0;
    for (int32_t i = 0; i < l->n_recur_whole; i++) {
        const kv_recur_parts p = kv_recur_parts_of(&l->recur_whole[i]);
        floats += p.state + p.conv + (has_block(&l->recur_whole[i], n) ? p.block : 0);
    }
    return floats * sizeof(float);
}

size_t kv_linear_bytes(const kv_layout *l, int64_t n_rows)
{
    size_t sum = 0;
    for (int32_t i = 0; i < l->n_whole; i++)
        if (!l->whole[i].window)
            sum += (size_t)n_rows * view_row_bytes(&l->whole[i]);
    return sum;
}

/* Stores of keys and values, in memory of their devices. */
typedef struct stores {
    const kv_layout *l;
    device *const *dev;
    const kv_base *base;
    const kv_page *page; /* of linear stores; memory of the host */
    int64_t key0;        /* the key that is the first one in page[0] */
} stores;

static stores stores_of(const kv_cache *c)
{
    return (stores){.l = c->layout, .dev = c->dev, .base = c->base, .page = c->table};
}

/* n rows of each head of one stream of one store. On the host head h begins at row
 * h * host_rows. */
typedef struct run {
    device *dev;
    const kv_view *v;
    kv_base base;
    unsigned char *store; /* device */
    size_t row_bytes;
    int64_t first, n, host_rows, host_first; /* host_first: where row `first` is on the host */
    bool load;
} run;

/* Moves one piece per head and page, or two pieces if a ring wraps inside the run. */
static void move_run(const run *r, unsigned char *host)
{
    for (int64_t i = 0; i < r->n;) {
        key_span s = key_walk(r->v, &r->base, r->first + i);
        int64_t k = s.n < r->n - i ? s.n : r->n - i;
        const block_move m = {.dev = key_row(r->v, r->store, r->row_bytes, 0, s.place),
                              .host = (char *)host + (size_t)(r->host_first + i) * r->row_bytes,
                              .dev_stride = (size_t)r->v->n_slots * r->row_bytes,
                              .host_stride = (size_t)r->host_rows * r->row_bytes,
                              .n_bytes = (size_t)k * r->row_bytes,
                              .n = r->v->n_head_kv,
                              .load = r->load};
        device_move(r->dev, &m);
        i += k;
    }
}

/* Moves both streams of store i, a part of the whole store at `host`. */
static void move_part(const stores *from, int32_t i, const run *what, unsigned char *host)
{
    const kv_view *v = &from->l->view[i], *whole = &from->l->whole[i % from->l->n_whole];
    const size_t head0 = (size_t)from->l->head0[i] * (size_t)what->host_rows;
    run r = *what;
    r.dev = from->dev[v->side];
    r.v = v;
    r.base = from->base[i];
    if (!v->window) {
        r.base.page = from->page;
        r.first -= from->key0;
    }
    void *const stream[2] = {r.base.k, r.base.v};
    const size_t row_bytes[2] = {v->k_row_bytes, v->v_row_bytes};
    for (int s = 0; s < 2; s++) {
        r.store = stream[s];
        r.row_bytes = row_bytes[s];
        if (r.row_bytes)
            move_run(&r, host + head0 * r.row_bytes);
        host += (size_t)whole->n_head_kv * (size_t)r.host_rows * r.row_bytes;
    }
}

/* Moves whole store w. Returns where the next one begins on the host. */
static unsigned char *move_store(const stores *from, int32_t w, const run *what,
                                 unsigned char *host)
{
    const kv_layout *l = from->l;
    for (int32_t i = w, done = 0; i < l->n; i += l->n_whole) {
        if (what->load || l->head0[i] >= done) /* copies of a head are saved once */
            move_part(from, i, what, host);
        done = l->head0[i] + l->view[i].n_head_kv;
    }
    return host + (size_t)what->host_rows * view_row_bytes(&l->whole[w]);
}

static void move_rings(kv_cache *c, int64_t n, unsigned char *host, bool load)
{
    const stores from = stores_of(c);
    for (int32_t i = 0; i < c->layout->n_whole; i++) {
        const kv_view *v = &c->layout->whole[i];
        if (!v->window)
            continue;
        int64_t first = ring_first(v, n);
        run r = {.first = first, .n = n - first, .host_rows = n - first, .load = load};
        host = move_store(&from, i, &r, host);
    }
}

/* The rows of a segment, up to `upto`. */
static void move_linear(const stores *from, const kv_segment *s, int64_t upto, bool load)
{
    unsigned char *host = s->rows;
    for (int32_t i = 0; i < from->l->n_whole; i++) {
        if (from->l->whole[i].window)
            continue;
        run r = {.first = s->from, .n = upto - s->from, .host_rows = s->to - s->from, .load = load};
        host = move_store(from, i, &r, host);
    }
}

/* n runs of `width` floats; strides are from one to the next. */
typedef struct floats {
    size_t dev_stride, host_stride, width;
    int32_t n;
} floats;

static void move_floats(device *d, float *dev, float *host, floats f, bool load)
{
    const block_move m = {.dev = (char *)dev,
                          .host = (char *)host,
                          .dev_stride = f.dev_stride * sizeof *dev,
                          .host_stride = f.host_stride * sizeof *dev,
                          .n_bytes = f.width * sizeof *dev,
                          .n = f.n,
                          .load = load};
    device_move(d, &m);
}

/* Rows of heads: n_keys times the key heads, of dk floats each, then the value heads, of dv. */
typedef struct head_rows {
    int32_t n_keys;
    size_t dk, dv;
    int32_t n; /* rows */
} head_rows;

/* Moves those of a part, `own` of the whole layer v from key head k0 on. Value heads are tiles,
 * with one head of each key head. Returns where the next rows of the whole layer begin; *dev goes
 * on as well. */
static float *move_heads(device *d, float **dev, float *host, const recur_view *own,
                         const recur_view *v, int32_t k0, head_rows r, bool load)
{
    const size_t n_k = (size_t)own->n_k, all_k = (size_t)v->n_k, first = (size_t)k0;
    const size_t keys = (size_t)r.n_keys * r.dk, tiles = (size_t)(v->n_v / v->n_k);
    floats f = {n_k * (keys + tiles * r.dv), all_k * (keys + tiles * r.dv), n_k * r.dk, r.n};
    for (size_t i = 0; i < (size_t)r.n_keys; i++)
        move_floats(d, *dev + i * n_k * r.dk, host + (i * all_k + first) * r.dk, f, load);
    f.width = n_k * r.dv;
    for (size_t t = 0; t < tiles; t++)
        move_floats(d, *dev + n_k * (keys + t * r.dv),
                    host + all_k * keys + (t * all_k + first) * r.dv, f, load);
    *dev += f.dev_stride * (size_t)r.n;
    return host + f.host_stride * (size_t)r.n;
}

/* A started block has every part of it as the step says (recur_block_floats). */
static void move_block(device *d, float *dev, const recur_view *own, const recur_view *v,
                       int32_t k0, float *host, bool load)
{
    const size_t dk = (size_t)v->dk, dv = (size_t)v->dv;
    const int32_t rows = v->block - 1;
    const floats head = {RECUR_BLOCK_HEAD, RECUR_BLOCK_HEAD, RECUR_BLOCK_HEAD, 1};
    if (load || !k0) /* the same of every part */
        move_floats(d, dev, host, head, load);
    dev += RECUR_BLOCK_HEAD;
    host += RECUR_BLOCK_HEAD;
    host = move_heads(d, &dev, host, own, v, k0, (head_rows){0, 0, dv * dk, 1}, load);
    host = move_heads(d, &dev, host, own, v, k0, (head_rows){1, dk, dv, rows}, load);
    move_heads(d, &dev, host, own, v, k0, (head_rows){0, 0, 1, 2 * rows}, load);
}

/* Recurrent layer i, a part of whole layer v or all of it. */
static void move_part_states(kv_cache *c, int32_t i, const recur_view *v, int32_t k0, int64_t n,
                             float *host, bool load)
{
    const recur_view *own = &c->layout->recur[i];
    const recur_base *b = &c->recur[i];
    const kv_recur_parts p = kv_recur_parts_of(v);
    const size_t dk = (size_t)v->dk, dv = (size_t)v->dv;
    device *d = c->dev[own->side];
    float *const block = host + p.state + p.conv;
    const bool has = has_block(v, n);
    if (load && v->block && !has)
        d->clear(d, b->block, RECUR_BLOCK_HEAD * sizeof(float));
    if (own->n_k == v->n_k) {
        move_floats(d, b->state, host, (floats){p.state, p.state, p.state, 1}, load);
        move_floats(d, b->conv, host + p.state, (floats){p.conv, p.conv, p.conv, 1}, load);
        if (has)
            move_floats(d, b->block, block, (floats){p.block, p.block, p.block, 1}, load);
        return;
    }
    float *state = b->state, *conv = b->conv;
    host = move_heads(d, &state, host, own, v, k0, (head_rows){0, 0, dv * dk, 1}, load);
    move_heads(d, &conv, host, own, v, k0, (head_rows){2, dk, dv, v->n_taps - 1}, load);
    if (has)
        move_block(d, b->block, own, v, k0, block, load);
}

static void move_states(kv_cache *c, int64_t n, unsigned char *states, bool load)
{
    const kv_layout *l = c->layout;
    float *host = (float *)(void *)states;
    for (int32_t w = 0; w < l->n_recur_whole; w++) {
        const recur_view *v = &l->recur_whole[w];
        const kv_recur_parts p = kv_recur_parts_of(v);
        for (int32_t i = w, k0 = 0; i < l->n_recur; k0 += l->recur[i].n_k, i += l->n_recur_whole)
            move_part_states(c, i, v, k0, n, host, load);
        host += p.state + p.conv + (has_block(v, n) ? p.block : 0);
    }
}

static void wait_for_moves(device *const *dev)
{
    for (int32_t i = 0; i < PASS_SIDES_MAX; i++)
        if (dev[i])
            device_moved(dev[i]);
}

/* ---- Segments ---------------------------------------------------------------------------- */

void kv_segment_keep(kv_segment *s)
{
    if (s)
        atomic_fetch_add_explicit(&s->refs, 1, memory_order_relaxed);
}

static void give_back_pages(kv_segment *s)
{
    for (int32_t i = s->n_pages - 1; s->filled && i >= 0; i--)
        pages_drop(&s->pool->pages, s->page[i].place / KV_PAGE);
    mem_free(s->page);
    s->page = NULL;
    s->n_pages = 0;
}

void kv_segment_drop(kv_segment *s)
{
    while (s && atomic_fetch_sub_explicit(&s->refs, 1, memory_order_acq_rel) == 1) {
        kv_segment *parent = s->parent;
        if (s->rows)
            block_free(s->pin_dev, s->rows, s->n_bytes);
        give_back_pages(s);
        mem_free(s);
        s = parent;
    }
}

static size_t segment_bytes(const kv_layout *l, const kv_segment *s)
{
    return kv_linear_bytes(l, s->to - s->from);
}

static bool alloc_rows(const kv_layout *l, kv_segment *s)
{
    size_t n_bytes = segment_bytes(l, s);
    s->rows = block_alloc(s->pin_dev, n_bytes);
    s->n_bytes = s->rows ? n_bytes : s->n_bytes;
    return s->rows;
}

static bool alloc_pages(kv_segment *s, kv_pool *pool)
{
    s->pool = pool;
    s->n_pages = pages_of(s->to) - (int32_t)(s->from / KV_PAGE);
    s->n_bytes = (size_t)s->n_pages * sizeof *s->page;
    s->page = mem_alloc(s->n_bytes);
    return s->page;
}

/* Skips parents none of whose rows would count, so that they can be freed. */
static kv_segment *segment_new(const kv_snapshot_want *w, kv_segment *parent, int64_t from)
{
    kv_segment *s = mem_calloc(1, sizeof *s);
    if (!s)
        return NULL;
    while (parent && parent->from >= from)
        parent = parent->parent;
    s->from = from;
    s->to = w->n;
    s->pin_dev = w->layout->dev[PASS_MAIN];
    bool as_pages = w->pool && w->layout->n_pool_pages;
    if (!(as_pages ? alloc_pages(s, w->pool) : alloc_rows(w->layout, s))) {
        mem_free(s);
        return NULL;
    }
    atomic_init(&s->refs, 1);
    s->parent = parent;
    kv_segment_keep(parent);
    return s;
}

static void segment_fill(kv_segment *s, kv_cache *c)
{
    const stores from = stores_of(c);
    for (; s && !s->filled; s = s->parent) {
        int32_t first = (int32_t)(s->from / KV_PAGE);
        if (s->rows)
            move_linear(&from, s, s->to, false);
        for (int32_t i = 0; i < s->n_pages; i++) {
            s->page[i] = c->table[first + i];
            pages_keep(&s->pool->pages, c->page[first + i]);
        }
        s->filled = true;
    }
}

static status segment_to_rows(kv_segment *s, err *e)
{
    const stores from = {.l = s->pool->layout,
                         .dev = s->pool->dev,
                         .base = s->pool->base,
                         .page = s->page,
                         .key0 = s->from / KV_PAGE * KV_PAGE};
    if (!alloc_rows(s->pool->layout, s))
        return err_memory(e, "rows of a snapshot", segment_bytes(s->pool->layout, s));
    if (s->filled) {
        move_linear(&from, s, s->to, false);
        wait_for_moves(s->pool->dev);
    }
    give_back_pages(s);
    s->pool = NULL;
    return OK;
}

/* ---- Snapshots --------------------------------------------------------------------------- */

/* The lowest index whose row the ring still holds. */
static int64_t ring_oldest(const kv_cache *c, const kv_view *v)
{
    int64_t oldest = c->n_written - v->n_slots;
    int64_t loaded = c->n_loaded - v->window;
    oldest = oldest > loaded ? oldest : loaded;
    return oldest > 0 ? oldest : 0;
}

/* Do the rings and states have what a snapshot at n needs? */
static bool rings_hold(const kv_cache *c, int64_t n, int32_t n_more)
{
    kv_cache after = *c;
    if (c->layout->n_recur && (n < kv_n_settled(c) || n_more > 0))
        return false;
    if (c->n_past + n_more > after.n_written)
        after.n_written = c->n_past + n_more;
    for (int32_t i = 0; i < c->layout->n; i++) {
        const kv_view *v = &c->layout->view[i];
        if (v->window && ring_first(v, n) < ring_oldest(&after, v))
            return false;
    }
    return true;
}

bool kv_can_save(const kv_cache *c, int64_t n, int32_t n_more)
{
    if (n < 1 || n > c->n_past || c->n_paged_out)
        return false;
    /* With a pager: of tokens that were computed while all pages were there, and still are. */
    if (c->pager && (n > c->pager->n_exact || kv_pager_is_short(c, c->n_past + n_more)))
        return false;
    return rings_hold(c, n, n_more);
}

status kv_snapshot_new(const kv_snapshot_want *w, kv_snapshot **out, err *e)
{
    const kv_layout *l = w->layout;
    int64_t n = w->n, base_n = w->base_n < n ? w->base_n : n;
    kv_segment *base = w->base;
    size_t ring_bytes = kv_ring_bytes(l, n), state_bytes = kv_state_bytes(l, n);
    size_t recur_bytes = (size_t)l->n_recur_whole * sizeof *l->recur,
           id_bytes = (size_t)n * sizeof *w->ids;
    kv_snapshot *s = *out = mem_calloc(1, sizeof *s);
    if (!s)
        return err_memory(e, "a snapshot", sizeof *s);
    atomic_init(&s->refs, 1);
    s->n = n;
    s->n_views = l->n_whole;
    s->ring_bytes = ring_bytes;
    s->n_recur = l->n_recur_whole;
    s->state_bytes = state_bytes;
    if (base && base_n == n) {
        while (base->parent && base->from >= n)
            base = base->parent;
        s->linear = base;
        kv_segment_keep(base);
    } else {
        s->linear = segment_new(w, base, base ? base_n : 0);
        s->own_bytes = s->linear ? s->linear->n_bytes : 0;
    }
    s->view = mem_alloc((size_t)l->n_whole * sizeof *s->view);
    s->ids = mem_alloc(id_bytes);
    s->pin_dev = l->dev[PASS_MAIN];
    s->rings = block_alloc(s->pin_dev, ring_bytes);
    s->recur = l->n_recur ? mem_alloc(recur_bytes) : NULL;
    s->states = l->n_recur ? block_alloc(s->pin_dev, state_bytes) : NULL;
    if (!s->view || !s->ids || !s->rings || !s->linear ||
        (l->n_recur && (!s->recur || !s->states))) {
        kv_snapshot_drop(s);
        *out = NULL;
        return err_memory(e, "a snapshot",
                          ring_bytes + state_bytes + id_bytes + kv_linear_bytes(l, n));
    }
    memcpy(s->view, l->whole, (size_t)l->n_whole * sizeof *s->view);
    if (l->n_recur)
        memcpy(s->recur, l->recur_whole, recur_bytes);
    memcpy(s->ids, w->ids, id_bytes);
    s->own_bytes += ring_bytes + state_bytes + id_bytes + sizeof *s;
    return OK;
}

void kv_snapshot_fill(kv_snapshot *s, kv_cache *c)
{
    if (s->filled)
        return;
    segment_fill(s->linear, c);
    move_rings(c, s->n, s->rings, false);
    kv_settle(c, s->n);
    move_states(c, s->n, s->states, false);
    wait_for_moves(c->dev);
    s->filled = true;
}

/* ---- Tokens that are not exact --------------------------------------------------------------- */

/* Rows of one page of a segment, which a page of the pool has. `at`: the page of the segment's
 * first row. */
static void move_page(kv_cache *c, const kv_segment *g, int32_t page, int32_t of_pool,
                      const int64_t span[2], bool load)
{
    const kv_page entry = {.place = of_pool * KV_PAGE, .pos = page * KV_PAGE};
    stores from = stores_of(c);
    unsigned char *host = g->rows;
    from.page = &entry;
    from.key0 = entry.pos;
    for (int32_t i = 0; i < c->layout->n_whole; i++) {
        if (c->layout->whole[i].window)
            continue;
        run r = {.first = span[0],
                 .n = span[1] - span[0],
                 .host_rows = g->to - g->from,
                 .host_first = span[0] - g->from,
                 .load = load};
        host = move_store(&from, i, &r, host);
    }
}

/* The same from a packed copy of the page (mover.h), which has side after side. */
static void put_packed(const kv_cache *c, const kv_segment *g, int32_t page, int32_t n,
                       const unsigned char *packed)
{
    const kv_layout *l = c->layout;
    const size_t rows = (size_t)(g->to - g->from);
    for (int8_t side = 0; side < PASS_SIDES_MAX; side++) {
        unsigned char *to = g->rows;
        for (int32_t i = 0; i < l->n; i++) {
            const kv_view *v = &l->view[i], *whole = &l->whole[i % l->n_whole];
            const size_t row_bytes[2] = {v->k_row_bytes, v->v_row_bytes};
            if (i % l->n_whole == 0)
                to = g->rows;
            for (int s = 0; s < 2 && !v->window; s++) {
                size_t head = rows * row_bytes[s];
                for (int32_t h = 0; h < v->n_head_kv && v->side == side; h++) {
                    memcpy(to + (size_t)(l->head0[i] + h) * head +
                               (size_t)page * KV_PAGE * row_bytes[s],
                           packed, (size_t)n * row_bytes[s]);
                    packed += KV_PAGE * row_bytes[s];
                }
                to += (size_t)whole->n_head_kv * head;
            }
        }
    }
}

static status fill_lossy(kv_snapshot *s, kv_cache *c, unsigned char *packed, err *e)
{
    kv_segment *g = s->linear;
    status st = OK;
    for (int32_t p = 0; p < pages_of(s->n) && !st; p++) {
        int64_t first = (int64_t)p * KV_PAGE, end = first + KV_PAGE < s->n ? first + KV_PAGE : s->n;
        int32_t page = kv_page_of(c, p);
        if (page >= 0) {
            move_page(c, g, p, page, (int64_t[2]){first, end}, false);
            continue;
        }
        if (residency_is_lost(&c->pager->r, p)) { /* nobody will read them */
            memset(packed, 0, (size_t)kv_page_bytes(c->layout));
            put_packed(c, g, p, (int32_t)(end - first), packed);
            continue;
        }
        st = kv_copy_read(c->pool, &c->pager->copy[p], packed, e);
        if (!st)
            put_packed(c, g, p, (int32_t)(end - first), packed);
    }
    wait_for_moves(c->dev);
    g->filled = !st;
    return st;
}

status kv_snapshot_lossy(kv_cache *c, const int32_t *ids, kv_snapshot **out, err *e)
{
    const kv_snapshot_want w = {.layout = c->layout, .ids = ids, .n = c->n_past};
    size_t n_bytes = (size_t)kv_page_bytes(c->layout);
    unsigned char *packed = NULL;
    kv_snapshot *s;
    status st;
    *out = NULL;
    if (!rings_hold(c, c->n_past, 0))
        return err_set(e, E_LIMIT,
                       "no snapshot can be taken at token %lld: the session was restored and then "
                       "rewound, so keys of its sliding windows are missing",
                       (long long)c->n_past);
    if ((st = kv_snapshot_new(&w, out, e)))
        return st;
    s = *out;
    s->paging = kv_paging_new(c);
    packed = mem_alloc(n_bytes);
    st = s->paging && packed ? fill_lossy(s, c, packed, e) : err_memory(e, "a snapshot", n_bytes);
    mem_free(packed);
    if (st) {
        kv_snapshot_drop(s);
        *out = NULL;
        return st;
    }
    s->own_bytes += s->paging->n_bytes;
    kv_snapshot_fill(s, c);
    return OK;
}

typedef struct page_source {
    const kv_snapshot *s;
    kv_cache *c;
} page_source;

/* The rows of a page come from the last segments that have them. */
static void load_one_page(void *user, int32_t page, int32_t to)
{
    const page_source *x = user;
    int64_t first = (int64_t)page * KV_PAGE, upto = x->s->n;
    for (const kv_segment *g = x->s->linear; g && upto > first; g = g->parent) {
        int64_t lo = g->from > first ? g->from : first, hi = upto < g->to ? upto : g->to;
        hi = hi < first + KV_PAGE ? hi : first + KV_PAGE;
        if (lo < hi)
            move_page(x->c, g, page, to, (int64_t[2]){lo, hi}, true);
        upto = g->from;
    }
    wait_for_moves(x->c->dev);
}

/* Rows that are not exact, or more than a cache may keep in its pool. */
static status load_by_pages(const kv_snapshot *s, kv_cache *c, err *e)
{
    kv_paging *young = NULL;
    page_source x = {s, c};
    for (const kv_segment *g = s->linear; g; g = g->parent)
        if (g->page)
            return err_set(e, E_LIMIT,
                           "a snapshot of %lld tokens does not fit in a pool of %d tokens",
                           (long long)s->n, c->pager->r.rules.pool * KV_PAGE);
    if (!s->paging && !(young = kv_paging_young(c, s->n)))
        return err_memory(e, "a snapshot", sizeof *young);
    kv_cut_pages(c, 0);
    status st = kv_pager_load(c, s->paging ? s->paging : young, s->n, load_one_page, &x, e);
    kv_paging_free(young);
    return st;
}

void kv_snapshot_keep(kv_snapshot *s)
{
    atomic_fetch_add_explicit(&s->refs, 1, memory_order_relaxed);
}

void kv_snapshot_drop(kv_snapshot *s)
{
    if (!s || atomic_fetch_sub_explicit(&s->refs, 1, memory_order_acq_rel) != 1)
        return;
    kv_snapshot_drop(s->draft);
    kv_paging_free(s->paging);
    kv_segment_drop(s->linear);
    block_free(s->pin_dev, s->rings, s->ring_bytes);
    if (s->states)
        block_free(s->pin_dev, s->states, s->state_bytes);
    mem_free(s->recur);
    mem_free(s->ids);
    mem_free(s->view);
    mem_free(s);
}

/* Does a snapshot at n have the rows that a cache at m, or at m - 1, sees in such windows? */
static bool windows_serve(const kv_view *v, int32_t n_views, int64_t n, int64_t m)
{
    for (int32_t i = 0; i < n_views; i++)
        if (v[i].window && n > v[i].window && m - v[i].window + 1 < n - v[i].window)
            return false;
    return true;
}

int64_t kv_snapshot_usable(const kv_snapshot *s, int64_t n_same)
{
    int64_t n = n_same < s->n ? n_same : s->n;
    if (s->n_recur && n < s->n)
        return 0;
    return windows_serve(s->view, s->n_views, s->n, n) ? n : 0;
}

bool kv_snapshot_serves(const kv_layout *l, int64_t n, int64_t m)
{
    return m == n || (m < n && !l->n_recur && windows_serve(l->whole, l->n_whole, n, m));
}

/* How many rows the journals have is of no concern. */
static bool same_state(const recur_view *a, const recur_view *b)
{
    return a->n_k == b->n_k && a->n_v == b->n_v && a->dk == b->dk && a->dv == b->dv &&
           a->n_taps == b->n_taps && a->block == b->block;
}

static bool same_store(const kv_view *a, const kv_view *b)
{
    return a->k_type == b->k_type && a->v_type == b->v_type && a->n_head_kv == b->n_head_kv &&
           a->head_dim == b->head_dim && a->window == b->window &&
           a->k_row_bytes == b->k_row_bytes && a->v_row_bytes == b->v_row_bytes &&
           a->k_rot == b->k_rot && a->v_rot == b->v_rot && a->single == b->single;
}

bool kv_snapshot_fits(const kv_snapshot *s, const kv_layout *l)
{
    if (s->n_views != l->n_whole || s->n > l->n_ctx || s->n_recur != l->n_recur_whole)
        return false;
    for (int32_t i = 0; i < l->n_whole; i++)
        if (!same_store(&s->view[i], &l->whole[i]))
            return false;
    for (int32_t i = 0; i < l->n_recur_whole; i++)
        if (!same_state(&s->recur[i], &l->recur_whole[i]))
            return false;
    return true;
}

size_t kv_snapshot_page_bytes(const kv_snapshot *s)
{
    size_t sum = 0;
    for (const kv_segment *g = s->linear; g; g = g->parent)
        if (g->page)
            sum += segment_bytes(g->pool->layout, g);
    return sum;
}

status kv_snapshot_to_rows(kv_snapshot *s, err *e)
{
    status st = OK;
    for (kv_segment *g = s->linear; g && !st; g = g->parent) {
        if (g->page && (st = segment_to_rows(g, e)) == OK && g == s->linear)
            s->own_bytes += g->n_bytes;
    }
    return st;
}

/* ---- Loading ----------------------------------------------------------------------------------
 *
 *     segment A, rows [0, 900), pages      segment B, rows [900, 1400), rows
 *     pages 0 .. 13: kept, 14: copied      pages 14 .. 21: taken and filled
 *
 * Segments are loaded last to first. A page that a later segment has filled with rows gets the rows
 * below them; any other page of a segment of pages is shared. */

/* What loading does with segment g, whose rows below `upto` are still missing and whose pages from
 * `have` on are there. */
typedef struct load_step {
    int32_t lo, hi; /* pages that it brings */
    int64_t rest;   /* rows below it are missing afterwards */
} load_step;

static load_step load_step_of(const kv_segment *g, int64_t upto, int32_t have)
{
    int32_t lo = (int32_t)(g->from / KV_PAGE), hi = pages_of(upto);
    return (load_step){
        .lo = lo, .hi = hi < have ? hi : have, .rest = g->page ? (int64_t)lo * KV_PAGE : g->from};
}

int32_t kv_snapshot_pages(const kv_snapshot *s, const kv_cache *c)
{
    int32_t need = 0, have = pages_of(s->n);
    int64_t upto = s->n;
    if (!c->layout->n_pool_pages)
        return 0;
    if (c->pager && (s->paging || have > c->pager->r.rules.pool))
        return have < c->pager->r.rules.pool ? have : c->pager->r.rules.pool;
    for (const kv_segment *g = s->linear; g && upto > 0; g = g->parent) {
        load_step now = load_step_of(g, upto < g->to ? upto : g->to, have);
        need += g->page || now.hi < now.lo ? 0 : now.hi - now.lo;
        have = now.lo < have ? now.lo : have;
        upto = now.rest;
    }
    return need;
}

static void load_pages(const kv_segment *g, const load_step *now, int64_t upto, kv_cache *c)
{
    const kv_page *from = g->page;
    int32_t last = (int32_t)((upto - 1) / KV_PAGE);
    for (int32_t i = now->lo; i < now->hi; i++) {
        int32_t page = from[i - now->lo].place / KV_PAGE;
        pages_keep(&c->pool->pages, page);
        kv_set_page(c, i, page);
    }
    if (last >= now->hi) /* a later segment has filled the rest of the page */
        kv_copy_page(c, c->page[last], from[last - now->lo].place / KV_PAGE,
                     (int32_t)(upto - (int64_t)last * KV_PAGE));
}

static void load_linear(const kv_snapshot *s, kv_cache *c)
{
    const stores to = stores_of(c);
    int32_t have = pages_of(s->n);
    int64_t n = s->n;
    for (const kv_segment *g = s->linear; g && n > 0; g = g->parent) {
        int64_t upto = n < g->to ? n : g->to;
        load_step now = load_step_of(g, upto, have);
        if (g->page) {
            load_pages(g, &now, upto, c);
        } else {
            for (int32_t i = now.lo; i < now.hi; i++)
                kv_set_page(c, i, kv_take_page(c->pool));
            move_linear(&to, g, upto, true);
        }
        have = now.lo < have ? now.lo : have;
        n = now.rest;
    }
    c->n_pages = pages_of(s->n);
    for (int32_t i = 0; i < c->n_pages; i++) {
        int64_t end = s->n - (int64_t)i * KV_PAGE;
        pages_write(&c->pool->pages, c->page[i], end < KV_PAGE ? (int32_t)end : KV_PAGE);
    }
    kv_show_pages(c);
}

status kv_snapshot_load(const kv_snapshot *s, kv_cache *c, err *e)
{
    int32_t need = kv_snapshot_pages(s, c);
    int32_t have = c->pool->pages.n_free + kv_own_pages(c);
    bool by_pages = c->pager && (s->paging || pages_of(s->n) > c->pager->r.rules.pool);
    status st;
    if (s->paging && !c->pager && s->paging->n_exact < s->n)
        return err_set(e, E_ARG,
                       "a snapshot of %lld tokens is lossy, because some were computed while keys "
                       "were away, and this session keeps all keys",
                       (long long)s->n);
    if (need > have)
        return err_set(e, E_LIMIT,
                       "the pool of keys is full: a snapshot of %lld tokens needs %d pages of %d "
                       "tokens, and %d of %d pages are free (--kv-pool)",
                       (long long)s->n, need, KV_PAGE, have, c->pool->pages.n);
    if (by_pages && (st = load_by_pages(s, c, e)))
        return st;
    if (!by_pages)
        kv_cut_pages(c, 0);
    if (!by_pages && c->layout->n_pool_pages)
        load_linear(s, c);
    move_rings(c, s->n, s->rings, true);
    move_states(c, s->n, s->states, true);
    wait_for_moves(c->dev);
    c->recur_rows = (recur_seq){0};
    c->n_past = c->n_written = c->n_loaded = s->n;
    if (c->pager && !by_pages)
        kv_pager_adopt(c, s->n);
    return OK;
}
