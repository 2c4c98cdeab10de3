/* checkpoint.c - the snapshots that a session or batch keeps, and the order in which they go.
 *
 * The worth of a snapshot is the number of tokens it saves over the next shorter snapshot of the
 * same conversation, times its uses (a use halves every HALF_LIFE_MS), divided by the bytes that
 * dropping it frees. Segments shared by several snapshots count once. Pages of the pool are no host
 * memory and cost nothing, until the pool runs short. Snapshots that are reserved and not filled
 * count too, and may take half of the budget: most of them are never filled.
 */
#include "engine/checkpoint.h"
#include "engine/disk.h"
#include "engine/engine_int.h"
#include "base/clock.h"
#include "base/mem.h"

#include <math.h>
#include <string.h>

enum {
    HALF_LIFE_MS = 60 * 60 * 1000,
    LOAD_GAIN = 32,    /* a file must save this many tokens over memory */
    CUT_LEAST = 32,    /* a prefix of fewer tokens is computed as fast as copied */
    TURN_OPEN_MAX = 24 /* tokens that open an answer's turn, an empty thought included */
};

/* Ahead of need: some seconds of locking, and no more memory than the default budget takes. */
#define LOCK_AHEAD_MOST ((uint64_t)4352 << 20)

typedef struct entry {
    kv_snapshot *k;
    int64_t base; /* length of the longest other entry that is a prefix of it */
    double uses;  /* as of used_ms */
    double used_ms;
} entry;

struct checkpoint_store {
    carat_model *m;
    kv_pool *pool;
    const kv_layout *layout;
    int32_t *held; /* [pool pages] by how many segments of the store; see count_held */
    uint64_t budget_bytes, pending_bytes;
    entry *at;
    int32_t n, cap;
    int32_t turn_id; /* the token that begins a turn; -1: none */
    int64_t mark;
    disk_store *disk; /* NULL: none */
};

status checkpoints_open(checkpoint_store **out, struct carat_model *m, kv_pool *pool,
                        const checkpoint_wish *wish, err *e)
{
    const kv_layout *l = pool->layout;
    size_t n_pages = (size_t)l->n_pool_pages;
    checkpoint_store *s = *out = mem_calloc(1, sizeof *s);
    if (!s)
        return err_memory(e, "the checkpoints", sizeof *s);
    s->held = mem_alloc((n_pages ? n_pages : 1) * sizeof *s->held);
    if (!s->held) {
        checkpoints_close(s);
        *out = NULL;
        return err_memory(e, "the checkpoints", n_pages * sizeof *s->held);
    }
    s->m = m;
    s->pool = pool;
    s->layout = l;
    s->budget_bytes = wish->budget_bytes;
    s->turn_id = m->text && m->chat ? vocab_mark(m->text, m->chat->family->turn_open) : -1;
    if (!wish->dir)
        return OK;
    status st = disk_open(&s->disk, m, l, wish->dir, wish->dir_bytes, e);
    if (st) {
        checkpoints_close(s);
        *out = NULL;
    }
    return st;
}

void checkpoints_close(checkpoint_store *s)
{
    if (!s)
        return;
    for (int32_t i = 0; i < s->n; i++)
        kv_snapshot_drop(s->at[i].k);
    disk_close(s->disk);
    mem_free(s->held);
    mem_free(s->at);
    mem_free(s);
}

/* A budget that was asked for may be more than there is, and the system ends a program that takes
 * all memory. So half of what is available is left. */
uint64_t checkpoints_ahead_bytes(uint64_t budget_bytes, uint64_t available_bytes)
{
    /* Blocks of different sizes leave holes: a sixteenth more. */
    uint64_t n = budget_bytes + budget_bytes / 16;
    n = n < LOCK_AHEAD_MOST ? n : LOCK_AHEAD_MOST;
    return available_bytes && n > available_bytes / 2 ? available_bytes / 2 : n;
}

void checkpoints_lock_ahead(checkpoint_store *s)
{
    if (s)
        kv_snapshot_lock_ahead(s->layout, (size_t)checkpoints_ahead_bytes(s->budget_bytes,
                                                                          mem_available_bytes()));
}

void checkpoints_know_drafter(checkpoint_store *s, const model *m, const kv_layout *l)
{
    if (s->disk)
        disk_know_drafter(s->disk, m, l);
}

/* ---- Finding ------------------------------------------------------------------------------ */

static bool begins_with(const kv_snapshot *k, const kv_snapshot *prefix)
{
    return prefix->n < k->n && kv_same_way(prefix->way, k->way) &&
           !memcmp(k->ids, prefix->ids, (size_t)prefix->n * sizeof *k->ids);
}

static int64_t same_tokens(const kv_snapshot *k, const int32_t *ids, int64_t n)
{
    int64_t i = 0, most = k->n < n ? k->n : n;
    while (i < most && k->ids[i] == ids[i])
        i++;
    return i;
}

bool checkpoints_have(const checkpoint_store *s, kv_way way, const int32_t *ids, int64_t n)
{
    for (int32_t i = 0; i < s->n; i++)
        if (s->at[i].k->n == n && kv_same_way(s->at[i].k->way, way) &&
            !memcmp(s->at[i].k->ids, ids, (size_t)n * sizeof *ids))
            return true;
    return false;
}

static double faded(const entry *t, double now)
{
    return t->uses * exp2(-(now - t->used_ms) / HALF_LIFE_MS);
}

/* Of those that are as usable the shortest: a drafter's own windows may not go back as far. */
static entry *find_here(checkpoint_store *s, kv_way way, const int32_t *ids, int64_t n,
                        int64_t *above)
{
    entry *best = NULL;
    for (int32_t i = 0; i < s->n; i++) {
        kv_snapshot *k = s->at[i].k;
        if (k->n <= *above || !kv_same_way(k->way, way)) /* too short to be better */
            continue;
        int64_t use = kv_snapshot_usable(k, same_tokens(k, ids, n - 1));
        if (use > *above || (best && use == *above && k->n < best->k->n)) {
            *above = use;
            best = &s->at[i];
        }
    }
    return best;
}

kv_snapshot *checkpoints_find(checkpoint_store *s, kv_way way, uint64_t pool, const int32_t *ids,
                              int64_t n, int64_t above, int64_t *usable)
{
    *usable = above;
    entry *best = find_here(s, way, ids, n, usable);
    int64_t most = s->layout->n_recur ? n - 1 : n; /* states fit one position */
    kv_snapshot *k = s->disk ? disk_load(s->disk, way, 0, ids, most, *usable + LOAD_GAIN) : NULL;
    int64_t exact = k ? kv_snapshot_usable(k, same_tokens(k, ids, n - 1)) : *usable;
    kv_snapshot *paged =
        s->disk && pool ? disk_load(s->disk, way, pool, ids, most, exact + LOAD_GAIN) : NULL;
    if (paged) {
        kv_snapshot_drop(k);
        *usable = kv_snapshot_usable(paged, same_tokens(paged, ids, n - 1));
        return paged;
    }
    if (k) {
        *usable = exact;
        kv_snapshot_keep(k);
        checkpoints_put(s, k, false);
        return k;
    }
    if (!best)
        return NULL;
    double now = clock_ms();
    best->uses = faded(best, now) + 1;
    best->used_ms = now;
    kv_snapshot_keep(best->k);
    return best->k;
}

/* ---- The budget ---------------------------------------------------------------------------- */

/* Bytes of a snapshot, without segments that are counted already. */
static uint64_t uncounted_bytes(const checkpoint_store *s, const kv_snapshot *k)
{
    uint64_t sum = k->ring_bytes + k->state_bytes + (size_t)k->n * sizeof *k->ids + sizeof *k;
    for (kv_segment *g = k->linear; g && g->mark != s->mark; g = g->parent) {
        g->mark = s->mark;
        sum += g->n_bytes;
    }
    return k->draft ? sum + uncounted_bytes(s, k->draft) : sum;
}

/* Bytes of all entries except `without`. */
static uint64_t bytes_of(checkpoint_store *s, const entry *without)
{
    uint64_t sum = 0;
    s->mark++;
    for (int32_t i = 0; i < s->n; i++) {
        if (&s->at[i] != without)
            sum += uncounted_bytes(s, s->at[i].k);
    }
    return sum;
}

static void find_base(checkpoint_store *s, entry *t)
{
    t->base = 0;
    for (int32_t i = 0; i < s->n; i++)
        if (s->at[i].k->n > t->base && begins_with(t->k, s->at[i].k))
            t->base = s->at[i].k->n;
}

static void drop_entry(checkpoint_store *s, int32_t i)
{
    kv_snapshot *gone = s->at[i].k;
    s->at[i] = s->at[--s->n];
    for (int32_t k = 0; k < s->n; k++)
        if (s->at[k].base == gone->n && begins_with(s->at[k].k, gone))
            find_base(s, &s->at[k]);
    kv_snapshot_drop(gone);
}

/* Allocates entries ahead, so that adding one between two tokens allocates nothing. */
static bool grow_entries(checkpoint_store *s)
{
    if (s->cap - s->n >= STEP_SEQS_MAX * CUTS_MAX + 1)
        return true;
    int32_t cap = 2 * (s->n + STEP_SEQS_MAX * CUTS_MAX + 1);
    entry *at = mem_realloc(s->at, (size_t)cap, sizeof *at);
    if (!at)
        return s->cap > s->n;
    s->at = at;
    s->cap = cap;
    return true;
}

/* Drops the entries of least worth, never `keep`, until n_more bytes fit. */
static bool evict(checkpoint_store *s, uint64_t n_more, const kv_snapshot *keep)
{
    double now = clock_ms();
    for (;;) {
        uint64_t all = bytes_of(s, NULL);
        if (all + s->pending_bytes + n_more <= s->budget_bytes)
            return true;
        int32_t worst = -1;
        double least = 0;
        for (int32_t i = 0; i < s->n; i++) {
            const entry *t = &s->at[i];
            if (t->k == keep)
                continue;
            uint64_t freed = all - bytes_of(s, t);
            double worth = (double)(t->k->n - t->base) * faded(t, now) / (double)(freed + 1);
            if (worst < 0 || worth < least) {
                worst = i;
                least = worth;
            }
        }
        if (worst < 0)
            return false;
        drop_entry(s, worst);
    }
}

bool checkpoints_make_room(checkpoint_store *s, uint64_t n_bytes)
{
    return n_bytes <= s->budget_bytes && s->pending_bytes <= s->budget_bytes - n_bytes &&
           grow_entries(s) && evict(s, n_bytes, NULL);
}

bool checkpoints_may_wait(const checkpoint_store *s, uint64_t n_bytes)
{
    return n_bytes <= s->budget_bytes / 2 && s->pending_bytes <= s->budget_bytes / 2 - n_bytes;
}

void checkpoints_begin_wait(checkpoint_store *s, const kv_snapshot *k)
{
    s->pending_bytes += k->own_bytes;
}

void checkpoints_end_wait(checkpoint_store *s, const kv_snapshot *k)
{
    s->pending_bytes -= k->own_bytes;
}

/* ---- Pages of the pool --------------------------------------------------------------------- */

/* Copies what k holds as pages to host memory. */
static bool to_rows(checkpoint_store *s, kv_snapshot *k)
{
    pthread_mutex_lock(&s->m->pass_lock);
    status st = kv_snapshot_to_rows(k, NULL);
    pthread_mutex_unlock(&s->m->pass_lock);
    return !st;
}

static bool fits_as_rows(checkpoint_store *s, const kv_snapshot *k)
{
    return bytes_of(s, NULL) + s->pending_bytes + kv_snapshot_page_bytes(k) <= s->budget_bytes;
}

static void count_held(checkpoint_store *s)
{
    memset(s->held, 0, (size_t)s->pool->pages.n * sizeof *s->held);
    s->mark++;
    for (int32_t i = 0; i < s->n; i++)
        for (kv_segment *g = s->at[i].k->linear; g && g->mark != s->mark; g = g->parent) {
            g->mark = s->mark;
            for (int32_t p = 0; p < g->n_pages; p++)
                s->held[g->page[p].place / KV_PAGE]++;
        }
}

/* Would some page be free, if the store and `also` held none? */
static bool holds_pages(const checkpoint_store *s, const kv_snapshot *k, const kv_cache *also)
{
    for (const kv_segment *g = k->linear; g; g = g->parent)
        for (int32_t p = 0; p < g->n_pages; p++) {
            int32_t page = g->page[p].place / KV_PAGE, key = (int32_t)(g->from / KV_PAGE) + p;
            bool too = also && key < also->n_pages && also->page[key] == page;
            if (s->held[page] + too >= s->pool->pages.holders[page])
                return true;
        }
    return false;
}

bool checkpoints_free_pages(checkpoint_store *s, int32_t n, const kv_cache *also)
{
    double now = clock_ms();
    while (s && s->pool->pages.n_free + (also ? kv_own_pages(also) : 0) < n) {
        int32_t worst = -1;
        double least = 0;
        count_held(s);
        for (int32_t i = 0; i < s->n; i++) {
            const entry *t = &s->at[i];
            double worth = (double)(t->k->n - t->base) * faded(t, now);
            if (holds_pages(s, t->k, also) && (worst < 0 || worth < least)) {
                worst = i;
                least = worth;
            }
        }
        if (worst < 0)
            return false;
        kv_snapshot *k = s->at[worst].k;
        if (!fits_as_rows(s, k) || !to_rows(s, k))
            drop_entry(s, worst);
    }
    return s != NULL;
}

static bool has_page(const kv_snapshot *k, int32_t page)
{
    for (const kv_segment *g = k->linear; g; g = g->parent)
        for (int32_t p = 0; p < g->n_pages; p++)
            if (page < 0 || g->page[p].place / KV_PAGE == page)
                return true;
    return false;
}

void checkpoints_leave_page(checkpoint_store *s, int32_t page)
{
    for (int32_t i = s ? s->n - 1 : -1; i >= 0; i--) {
        kv_snapshot *k = s->at[i].k;
        if (has_page(k, page) &&
            (!fits_as_rows(s, k) || !to_rows(s, k)))
            drop_entry(s, i);
    }
}

void checkpoints_put(checkpoint_store *s, kv_snapshot *k, bool to_disk)
{
    if (checkpoints_have(s, k->way, k->ids, k->n) || s->n == s->cap) {
        kv_snapshot_drop(k);
        return;
    }
    /* The thread that writes files reads rows, because pages belong to this thread. */
    if (s->disk && to_disk && disk_wants(s->disk, k->way, 0, k->ids, k->n) && to_rows(s, k))
        disk_offer(s->disk, k);
    entry *t = &s->at[s->n++];
    *t = (entry){.k = k, .uses = 1, .used_ms = clock_ms()};
    find_base(s, t);
    for (int32_t i = 0; i < s->n; i++)
        if (s->at[i].base < k->n && begins_with(s->at[i].k, k))
            s->at[i].base = k->n;
    /* Its shared segments may be new to the store, so its size is known only now. */
    if (!evict(s, 0, k))
        for (int32_t i = 0; i < s->n; i++)
            if (s->at[i].k == k) {
                drop_entry(s, i);
                break;
            }
}

bool checkpoints_on_disk_wanted(checkpoint_store *s, kv_way way, uint64_t pool, const int32_t *ids,
                                int64_t n)
{
    return s->disk && disk_wants(s->disk, way, pool, ids, n);
}

void checkpoints_to_disk(checkpoint_store *s, kv_snapshot *k)
{
    if (s->disk)
        disk_offer(s->disk, k);
}

void checkpoints_settle(checkpoint_store *s)
{
    if (s->disk)
        disk_settle(s->disk);
}

void checkpoints_info(checkpoint_store *s, carat_cache_info *info)
{
    *info = (carat_cache_info){.n_checkpoints = s->n, .checkpoint_bytes = bytes_of(s, NULL)};
    if (s->disk)
        disk_info(s->disk, info);
}

/* ---- Positions of snapshots -------------------------------------------------------------------
 */

int32_t checkpoints_cuts(const checkpoint_store *s, const int32_t *ids, int64_t n,
                         int64_t cut[CUTS_MAX])
{
    int64_t second = 0, last[2] = {0, 0}; /* beginnings of the second and the last two turns */
    int32_t k = 0;
    for (int64_t i = 0, seen = 0; s->turn_id >= 0 && i < n; i++) {
        if (ids[i] != s->turn_id)
            continue;
        if (++seen == 2)
            second = i;
        last[0] = last[1];
        last[1] = i;
    }
    /* The last turn is the still empty answer; the one before it is the user's. */
    if (second >= CUT_LEAST && second < last[0])
        cut[k++] = second;
    if (last[0] >= CUT_LEAST)
        cut[k++] = last[0];
    if (s->layout->n_recur) {
        /* Another answer to the prompt, or a turn after it, shares it up to the answer's turn. */
        bool near = last[1] > last[0] && n - last[1] <= TURN_OPEN_MAX;
        int64_t at = near ? last[1] : n - 1;
        if (at >= CUT_LEAST)
            cut[k++] = at;
    } else if (n >= CUT_LEAST) {
        cut[k++] = n;
    }
    return k;
}
