/* timeline.c - one sequence of tokens, and how much of it a new prompt can keep.
 *
 * Callers pass whole prompts. A timeline compares a prompt with the ids it has computed. If its
 * rings cannot go back far enough, it asks the checkpoint store:
 *
 *     cached   a b c d e f          prompt a b c d e f g h   extended: computes g h
 *     cached   a b c d e f          prompt a b c x y         rewound to c if the rings still hold
 *                                                            its windows, else
 *     checkpoint a b                                         restored at b, else
 *                                                            rebuilt from a
 *
 * Recurrent layers cannot go back at all, except by tokens that are still pending (kv.h). So passes
 * of their prompts end where checkpoints are useful, and the checkpoints are taken there.
 *
 * The last id of a prompt is always computed, because its logits are wanted. No answer depends on a
 * checkpoint, so one that does not fit in memory is silently omitted.
 */
#include "engine/media.h"
#include "engine/round.h"
#include "base/mem.h"
#include "engine/scorer.h"
#include "kv/paging.h"

#include <string.h>

enum {
    RESTORE_GAIN = 16, /* a checkpoint must save this many tokens over the live cache */
    SAVE_LEAST = 32,   /* a shorter timeline is cheaper to recompute than to save */
    /* Tokens between checkpoints of a prompt, in models with recurrent layers. A later prompt that
     * differs somewhere computes at most this many tokens again. In a 27B model a state takes 150
     * MiB, and the keys and values of 4096 tokens take 256 MiB; copying them takes about a
     * hundredth of the time of computing them. */
    STATE_EVERY = 4096
};

status timeline_open(timeline *t, carat_model *m, kv_pool *pool, checkpoint_store *store, err *e)
{
    const kv_layout *l = pool->layout;
    status st;
    *t = (timeline){.m = m, .store = store, .reuse = "new"};
    if ((st = kv_open_in(&t->kv, pool, e)))
        return st;
    t->id = mem_calloc((size_t)l->n_ctx, sizeof *t->id);
    if (!t->id) {
        timeline_close(t);
        return err_memory(e, "a session", (size_t)l->n_ctx * sizeof *t->id);
    }
    return OK;
}

static void drop_one(timeline *t, kv_snapshot *pending)
{
    checkpoints_end_wait(t->store, pending);
    kv_snapshot_drop(pending);
}

static void drop_pending(timeline *t)
{
    while (t->n_pending)
        drop_one(t, t->pending[--t->n_pending]);
    t->n_stops = 0;
}

void timeline_close(timeline *t)
{
    if (t->id)
        timeline_rest(t);
    rounds_detach(t);
    drop_pending(t);
    kv_segment_drop(t->known.seg);
    kv_segment_drop(t->draft_known.seg);
    page_scorer_close(t->scorer);
    mem_free(t->stats);
    mem_free(t->id);
    if (t->kv.layout)
        kv_close(&t->kv);
    *t = (timeline){0};
}

/* ---- Segments that equal the cache's linear rows --------------------------------------------- */

static bool has_rows_alone(const kv_segment *s)
{
    while (s && s->rows)
        s = s->parent;
    return !s;
}

static void know_segment(known_rows *known, kv_segment *s, int64_t n)
{
    kv_segment_keep(s);
    kv_segment_drop(known->seg);
    known->seg = s;
    known->n = n;
}

static void cut_known(known_rows *known, int64_t n)
{
    if (known->n > n)
        known->n = n;
    if (!known->n)
        know_segment(known, NULL, 0);
}

static bool is_recurrent(const timeline *t)
{
    return t->kv.layout->n_recur > 0;
}

axes_place timeline_place(timeline *t)
{
    axes_place *p = &t->place;
    while (t->kv.layout->axes && p->n < t->kv.n_past)
        media_place(t->m, p, p->n ? t->id[p->n - 1] : 0, t->id[p->n]);
    return t->kv.layout->axes ? *p : (axes_place){t->kv.n_past, (int32_t)t->kv.n_past, 0};
}

/* The timeline was cut to n_past. */
static void after_cut(timeline *t)
{
    if (t->place.n > t->kv.n_past)
        t->place = (axes_place){0};
    cut_known(&t->known, t->kv.n_past);
    cut_known(&t->draft_known, t->kv.n_past);
    if (t->saved_at > t->kv.n_past)
        t->saved_at = t->kv.n_past;
    rounds_forget(t, t->kv.n_past);
}

/* States are cleared by the device, between passes of other sessions. */
static void lock_states(const timeline *t)
{
    if (is_recurrent(t))
        pthread_mutex_lock(&t->m->pass_lock);
}

static void unlock_states(const timeline *t)
{
    if (is_recurrent(t))
        pthread_mutex_unlock(&t->m->pass_lock);
}

bool timeline_rewind(timeline *t, int64_t n)
{
    if (n >= t->kv.n_past)
        return true;
    lock_states(t);
    bool done = n >= 0 && kv_rewind(&t->kv, n);
    unlock_states(t);
    if (!done)
        return false;
    drop_pending(t);
    after_cut(t);
    return true;
}

void timeline_reset(timeline *t)
{
    t->n_prompt = t->n_fixed = 0;
    drop_pending(t);
    lock_states(t);
    kv_reset(&t->kv);
    unlock_states(t);
    after_cut(t);
}

bool timeline_abandon(timeline *t)
{
    if (is_recurrent(t))
        timeline_reset(t);
    return is_recurrent(t);
}

/* Drops segments that no snapshot uses any more: the cache holds the same rows. */
static void forget_unshared(known_rows *known)
{
    while (known->seg && atomic_load_explicit(&known->seg->refs, memory_order_relaxed) == 1) {
        int64_t n = known->seg->from < known->n ? known->seg->from : known->n;
        know_segment(known, known->seg->parent, n);
    }
}

status timeline_page_out(timeline *t, const int32_t *leaving, int32_t n_wanted, err *e)
{
    if (t->known.seg && !has_rows_alone(t->known.seg)) /* it holds pages too */
        know_segment(&t->known, NULL, 0);
    checkpoints_free_pages(t->store, n_wanted, &t->kv);
    pthread_mutex_lock(&t->m->pass_lock);
    status st = kv_page_out(&t->kv, leaving, e);
    pthread_mutex_unlock(&t->m->pass_lock);
    return st;
}

status timeline_page_in(timeline *t, err *e)
{
    pthread_mutex_lock(&t->m->pass_lock);
    status st = kv_page_in(&t->kv, e);
    pthread_mutex_unlock(&t->m->pass_lock);
    return st;
}

static bool has_room(const timeline *t, int32_t n)
{
    return kv_pages_needed(&t->kv, n) <= t->kv.pool->pages.n_free;
}

bool timeline_unshare(timeline *t)
{
    const kv_cache *c = &t->kv;
    const pages *p = &c->pool->pages;
    int32_t before = p->n_shared;
    for (int32_t i = 0; c->pager && i < c->n_pages; i++)
        if (c->page[i] >= 0 && p->holders[c->page[i]] > 1)
            checkpoints_leave_page(t->store, c->page[i]);
    return p->n_shared < before;
}

bool timeline_make_room(timeline *t, int32_t n)
{
    const kv_cache *c = &t->kv;
    const pages *p = &c->pool->pages;
    int32_t last = (int32_t)(c->n_past / KV_PAGE);
    if (has_room(t, n))
        return true;
    forget_unshared(&t->known);
    if (checkpoints_free_pages(t->store, kv_pages_needed(c, n), NULL))
        return true;
    int32_t page = kv_page_of(c, last);
    if (page >= 0 && p->holders[page] > 1)
        checkpoints_leave_page(t->store, page);
    /* Segments of checkpoints that are gone may still be known here, or wait in pending ones. */
    forget_unshared(&t->known);
    if (!has_room(t, n)) {
        drop_pending(t);
        forget_unshared(&t->known);
        timeline_unshare(t);
    }
    return has_room(t, n);
}

/* ---- Taking checkpoints ------------------------------------------------------------------- */

/* The cache of the drafter's own keys; NULL: there is none, or it lacks the first tokens. */
static kv_cache *draft_cache(const timeline *t)
{
    kv_cache *c = NULL;
    for (int i = 0; t->rounds && i < DRAFTERS_MAX && !c; i++) {
        const drafter *d = t->rounds->d[i];
        if (d && t->draft[i] && d->class->cache)
            c = d->class->cache(t->draft[i]);
    }
    return c;
}

/* Copies the rows. The lock keeps the copy between passes of other sessions. A drafter that has
 * lost its rows goes without them. */
static void fill_snapshot(timeline *t, kv_snapshot *k)
{
    if (k->draft)
        rounds_settle(t);
    kv_cache *c = draft_cache(t);
    if (k->draft && (!c || !kv_can_save(c, k->n, 0))) {
        kv_snapshot_drop(k->draft);
        k->draft = NULL;
    }
    pthread_mutex_lock(&t->m->pass_lock);
    kv_snapshot_fill(k, &t->kv);
    if (k->draft)
        kv_snapshot_fill(k->draft, c);
    pthread_mutex_unlock(&t->m->pass_lock);
    if (k->n > t->known.n)
        know_segment(&t->known, k->linear, k->n);
    if (k->draft && k->n > t->draft_known.n)
        know_segment(&t->draft_known, k->draft->linear, k->n);
}

static uint64_t snapshot_bytes(const kv_layout *l, int64_t n)
{
    return (uint64_t)kv_ring_bytes(l, n) + kv_state_bytes(l, n) +
           (uint64_t)pages_of(n) * sizeof(kv_page) + (uint64_t)n * sizeof(int32_t) +
           sizeof(kv_snapshot);
}

/* Host memory for the rows between base_n and n. */
static uint64_t linear_bytes(const kv_layout *l, int64_t n, int64_t base_n)
{
    return kv_linear_bytes(l, n > base_n ? n - base_n : 0);
}

/* Adds room for the drafter's rows to k, if the memory is there. */
static void reserve_draft(const timeline *t, kv_snapshot *k, const known_rows *base)
{
    const kv_cache *c = draft_cache(t);
    if (!c ||
        (t->store && !checkpoints_make_room(t->store, snapshot_bytes(c->layout, k->n) +
                                                          linear_bytes(c->layout, k->n, base->n))))
        return;
    const kv_snapshot_want w = {
        .layout = c->layout, .ids = k->ids, .n = k->n, .base = base->seg, .base_n = base->n};
    if (!kv_snapshot_new(&w, &k->draft, NULL))
        k->own_bytes += k->draft->own_bytes;
}

/* An unfilled snapshot of ids[0..n); NULL if memory is short. base: see kv_snapshot_new. */
static kv_snapshot *reserve_snapshot(const timeline *t, const int32_t *ids, int64_t n,
                                     const known_rows *base, const known_rows *draft_base)
{
    const kv_layout *l = t->kv.layout;
    const kv_snapshot_want w = {
        .layout = l, .ids = ids, .n = n, .base = base->seg, .base_n = base->n, .pool = t->kv.pool};
    kv_snapshot *k = NULL;
    if (!checkpoints_make_room(t->store, snapshot_bytes(l, n)) || kv_snapshot_new(&w, &k, NULL))
        return NULL;
    k->way = timeline_way(t);
    reserve_draft(t, k, draft_base);
    return k;
}

status timeline_snapshot(timeline *t, kv_snapshot **out, err *e)
{
    int64_t n = t->kv.n_past;
    status st;
    *out = NULL;
    if (!n)
        return err_set(e, E_ARG, "no snapshot can be taken of a session without tokens");
    if (t->kv.pager && !kv_can_save(&t->kv, n, 0)) {
        pthread_mutex_lock(&t->m->pass_lock);
        st = kv_snapshot_lossy(&t->kv, t->id, out, e);
        pthread_mutex_unlock(&t->m->pass_lock);
        if (!st)
            (*out)->way = timeline_way(t);
        return st;
    }
    if (!kv_can_save(&t->kv, n, 0))
        return err_set(e, E_LIMIT,
                       "no snapshot can be taken at token %lld: the session was restored and then "
                       "rewound, so keys of its sliding windows are missing",
                       (long long)n);
    /* The caller may keep it longer than the pool. */
    bool share = !t->known.seg || has_rows_alone(t->known.seg);
    const kv_snapshot_want w = {.layout = t->kv.layout,
                                .ids = t->id,
                                .n = n,
                                .base = share ? t->known.seg : NULL,
                                .base_n = share ? t->known.n : 0};
    if ((st = kv_snapshot_new(&w, out, e)))
        return st;
    (*out)->way = timeline_way(t);
    reserve_draft(t, *out, &t->draft_known);
    fill_snapshot(t, *out);
    return OK;
}

/* Does another prompt that begins with the first n tokens compute the same keys for them? */
static bool is_fixed(const timeline *t, int64_t n)
{
    return t->sparse.alpha <= 0 || (n % SPARSE_TILE == 0 && n <= t->n_fixed);
}

/* to_disk: it may become a file. */
static void save_here(timeline *t, bool to_disk)
{
    int64_t n = t->kv.n_past;
    if (!t->store || n < SAVE_LEAST || !is_fixed(t, n) || !kv_can_save(&t->kv, n, 0) ||
        checkpoints_have(t->store, timeline_way(t), t->id, n))
        return;
    kv_snapshot *k = reserve_snapshot(t, t->id, n, &t->known, &t->draft_known);
    if (!k)
        return;
    fill_snapshot(t, k);
    checkpoints_put(t->store, k, to_disk);
}

/* A checkpoint of the whole timeline, if the budget allows it. */
static void save_end(timeline *t)
{
    save_here(t, true);
}

void timeline_offer(timeline *t, const int32_t *ids, int64_t n, int64_t above)
{
    int64_t same = 0;
    while (same < t->kv.n_past && same < n && t->id[same] == ids[same])
        same++;
    if (!t->store || same < SAVE_LEAST || !is_fixed(t, same) || same < above + RESTORE_GAIN ||
        !kv_can_save(&t->kv, same, 0) || checkpoints_have(t->store, timeline_way(t), ids, same))
        return;
    kv_snapshot *k = reserve_snapshot(t, ids, same, &t->known, &t->draft_known);
    if (!k)
        return;
    fill_snapshot(t, k);
    checkpoints_put(t->store, k, true);
}

/* Would the drafter lose the rows of k in a pass of n_more rows, or in the draft after it? */
static bool draft_goes(timeline *t, const kv_snapshot *k, int32_t n_more)
{
    const kv_cache *c = k->draft ? draft_cache(t) : NULL;
    if (c && c->n_past < k->n)
        rounds_settle(t);
    return c && kv_can_save(c, k->n, 0) &&
           !kv_can_save(c, k->n,
                        (int32_t)(t->kv.n_past - c->n_past) + n_more + t->rounds->draft_slots + 1);
}

/* Fills the pending snapshots whose rows a pass of n_more rows would overwrite; all: every pending
 * snapshot whose rows are there. */
static void fill_pending(timeline *t, int32_t n_more, bool all)
{
    int32_t left = 0;
    for (int32_t i = 0; i < t->n_pending; i++) {
        kv_snapshot *k = t->pending[i];
        bool computed = k->n <= t->kv.n_past;
        if (!computed || (!all && kv_can_save(&t->kv, k->n, n_more) && !draft_goes(t, k, n_more))) {
            t->pending[left++] = k;
        } else if (kv_can_save(&t->kv, k->n, 0)) {
            checkpoints_end_wait(t->store, k);
            fill_snapshot(t, k);
            checkpoints_put(t->store, k, true);
        } else {
            drop_one(t, k);
        }
    }
    t->n_pending = left;
}

/* Names the pager of t; 0: it has none. */
static uint64_t pool_key(const timeline *t)
{
    return t->kv.pager ? kv_pager_key(&t->kv) : 0;
}

/* All tokens, some of which were computed while keys were away, become a file, with the records of
 * their pager. In memory they stay with their timeline alone. There is no file of fewer tokens: the
 * pager's records belong to the conversation's end, and another end may need other pages. */
static void save_lossy(timeline *t)
{
    const kv_layout *l = t->kv.layout;
    const kv_pager *g = t->kv.pager;
    const int64_t n = t->kv.n_past;
    kv_snapshot *k;
    if (!g || n <= g->n_exact || t->kv.n_paged_out || !is_fixed(t, n) ||
        kv_page_of(&t->kv, (int32_t)((n - 1) / KV_PAGE)) < 0 ||
        !checkpoints_on_disk_wanted(t->store, timeline_way(t), pool_key(t), t->id, n) ||
        !checkpoints_make_room(t->store, snapshot_bytes(l, n) + kv_linear_bytes(l, n)))
        return;
    pthread_mutex_lock(&t->m->pass_lock);
    status st = kv_snapshot_lossy(&t->kv, t->id, &k, NULL);
    pthread_mutex_unlock(&t->m->pass_lock);
    if (st)
        return;
    k->way = timeline_way(t);
    checkpoints_to_disk(t->store, k);
    kv_snapshot_drop(k);
}

void timeline_rest(timeline *t)
{
    int64_t n = 0;
    for (int32_t i = 0; t->store && i < t->n_pending; i++)
        if (t->pending[i]->n > n && t->pending[i]->n <= t->kv.n_past)
            n = t->pending[i]->n;
    const kv_way way = timeline_way(t);
    if (n && checkpoints_on_disk_wanted(t->store, way, 0, t->id, n))
        fill_pending(t, 0, true);
    n = t->kv.n_past;
    if (n && t->store && checkpoints_on_disk_wanted(t->store, way, 0, t->id, n))
        save_end(t);
    if (n && t->store)
        save_lossy(t);
}

static bool is_stop(const timeline *t, int64_t n)
{
    for (int32_t i = 0; i < t->n_stops; i++)
        if (t->stop[i] == n)
            return true;
    return false;
}

/* n, or the place before it where a checkpoint need not keep a started block. */
static int64_t whole_blocks(const timeline *t, int64_t n)
{
    int32_t block = t->kv.layout->recur_block;
    return block ? n - n % block : n;
}

/* Where the next checkpoint between stops is due, after one at n. */
static int64_t next_state(const timeline *t, int64_t n)
{
    n += STATE_EVERY;
    return n == whole_blocks(t, n) ? n : whole_blocks(t, n) + t->kv.layout->recur_block;
}

void timeline_before_pass(timeline *t, const kv_rows *rows)
{
    int64_t n = t->kv.n_past;
    if (t->n_pending)
        fill_pending(t, rows->n, false);
    if (!is_recurrent(t) || !t->store || !rows->final)
        return;
    bool stop = is_stop(t, n);
    if (!stop && n < next_state(t, t->saved_at))
        return;
    /* Those between stops are many, and each file would hold all tokens before it: they stay in
     * memory. */
    save_here(t, stop);
    t->saved_at = n; /* also if there was no memory for it */
}

status timeline_ready(timeline *t, const int32_t *next, int64_t end, bool prompt, err *e)
{
    kv_cache *c = &t->kv;
    status st;
    if (!c->pager)
        return OK;
    if ((st = paging_score(t, next, end, prompt, e)))
        return st;
    if (kv_pager_is_short(c, end)) { /* pages that leave are kept for nobody else */
        /* The exact beginning is of use in sessions with another pool, or with none. */
        if (!c->n_absent && t->store &&
            checkpoints_on_disk_wanted(t->store, timeline_way(t), 0, t->id, c->n_past))
            save_end(t);
        fill_pending(t, (int32_t)(end - c->n_past), false);
        know_segment(&t->known, NULL, 0);
    }
    timeline_make_room(t, (int32_t)(end - c->n_past)); /* else the pager says why not */
    pthread_mutex_lock(&t->m->pass_lock);
    if (prompt)
        kv_pager_hold(c, end);
    st = kv_pager_ready(c, end, e);
    pthread_mutex_unlock(&t->m->pass_lock);
    return st;
}

int64_t timeline_pass_end(const timeline *t, int64_t end)
{
    int64_t now = t->kv.n_past, next = next_state(t, t->saved_at);
    end = paging_pass_end(t, end);
    if (!is_recurrent(t) || !t->store)
        return end;
    if (next <= now)
        next = next_state(t, now);
    if (next < end)
        end = next;
    for (int32_t i = 0; i < t->n_stops; i++)
        if (t->stop[i] > now && t->stop[i] < end)
            end = t->stop[i];
    return end;
}

void timeline_stop_at(timeline *t, int64_t n)
{
    if (is_recurrent(t) && t->store && n >= SAVE_LEAST && n >= t->kv.n_past &&
        t->n_stops < STOPS_MAX && is_fixed(t, n) && !is_stop(t, n))
        t->stop[t->n_stops++] = n;
}

/* A pass ends at each cut. A cut just after the live tokens is not worth a pass: it is made where
 * they end. */
static void plan_stops(timeline *t, const int64_t *cut, int32_t n_cuts)
{
    int64_t now = t->kv.n_past;
    for (int32_t i = 0; i < n_cuts; i++) {
        int64_t at = whole_blocks(t, cut[i]);
        if (cut[i] >= now)
            timeline_stop_at(t, at - now < RESTORE_GAIN && now ? now : at);
    }
}

/* Reserves memory for checkpoints of the prompt, before it is computed. Those of recurrent layers
 * are copied before the prompt's last pass, so they allocate when they are taken. */
static void plan_pending(timeline *t, const int32_t *ids, int64_t n)
{
    forget_unshared(&t->known);
    forget_unshared(&t->draft_known);
    int64_t cut[CUTS_MAX];
    known_rows base = t->known, draft_base = t->draft_known;
    int32_t n_cuts = checkpoints_cuts(t->store, ids, n, cut);
    if (t->sparse.alpha > 0) {
        cut[0] = t->n_fixed;
        n_cuts = t->n_fixed >= SAVE_LEAST;
    }
    if (is_recurrent(t)) {
        plan_stops(t, cut, n_cuts);
        return;
    }
    for (int32_t i = 0; i < n_cuts; i++) {
        bool behind = cut[i] <= t->kv.n_past;
        if ((behind && !kv_can_save(&t->kv, cut[i], 0)) ||
            checkpoints_have(t->store, timeline_way(t), ids, cut[i]) ||
            !checkpoints_may_wait(t->store, snapshot_bytes(t->kv.layout, cut[i])))
            continue;
        kv_snapshot *k = reserve_snapshot(t, ids, cut[i], &base, &draft_base);
        if (!k)
            continue;
        checkpoints_begin_wait(t->store, k);
        t->pending[t->n_pending++] = k;
        if (k->n > base.n)
            base = (known_rows){k->linear, k->n};
        if (k->draft && k->n > draft_base.n)
            draft_base = (known_rows){k->draft->linear, k->n};
    }
}

/* ---- A new prompt ------------------------------------------------------------------------- */

/* Length of the common prefix of ids[0..n - 1) and the timeline: the last id is always computed. */
static int64_t common_prefix(const timeline *t, const int32_t *ids, int64_t n)
{
    enum { RUN = 1024 }; /* ids per memcmp: long conversations are compared at every message */
    int64_t most = t->kv.n_past < n - 1 ? t->kv.n_past : n - 1, same = 0;
    while (most - same >= RUN && !memcmp(t->id + same, ids + same, RUN * sizeof *ids))
        same += RUN;
    while (same < most && t->id[same] == ids[same])
        same++;
    /* A prompt that needs no page to leave is exact: it reuses exact tokens alone. */
    if (kv_pager_lossy(&t->kv) && paging_most(t, n) == n && same > t->kv.pager->n_exact)
        same = t->kv.pager->n_exact;
    if (t->sparse.alpha > 0)
        same = (same < t->n_fixed ? same : t->n_fixed) / SPARSE_TILE * SPARSE_TILE;
    return media_whole(t->m, ids, same, n);
}

/* How much of k a prompt can go on from that has its first `use` tokens. */
static int64_t fixed_use(const timeline *t, const kv_snapshot *k, int64_t use)
{
    int64_t whole = use / SPARSE_TILE * SPARSE_TILE;
    if (t->sparse.alpha <= 0 || whole == use)
        return use;
    use = kv_snapshot_usable(k, whole);
    return use % SPARSE_TILE ? 0 : use;
}

int64_t timeline_usable(const timeline *t, kv_way way, const int32_t *ids, int64_t n)
{
    if (!kv_same_way(way, timeline_way(t)))
        return 0;
    int64_t same = common_prefix(t, ids, n);
    return kv_can_rewind(&t->kv, same) ? same : 0;
}

status timeline_restore(timeline *t, const kv_snapshot *k, err *e)
{
    status st;
    if (!kv_snapshot_fits(k, t->kv.layout))
        return err_set(e, E_ARG,
                       "the snapshot of %lld tokens does not fit this session: it is of another "
                       "model, has other formats of keys and values, or exceeds the context of %d",
                       (long long)k->n, t->kv.layout->n_ctx);
    /* The key does not tell the scales, with which later tokens are computed. */
    lora_choice lora = t->lora;
    if (k->way.lora != lora.key)
        lora_choose(&lora, t->m, NULL, 0, NULL);
    if (!k->way.lora)
        lora = (lora_choice){0};
    if (k->way.lora != lora.key)
        return err_set(e, E_ARG,
                       "the snapshot of %lld tokens was computed with other adapters than this "
                       "session has",
                       (long long)k->n);
    int32_t need;
    forget_unshared(&t->known);
    while ((need = kv_snapshot_pages(k, &t->kv)) > t->kv.pool->pages.n_free + kv_own_pages(&t->kv))
        if (!checkpoints_free_pages(t->store, need, &t->kv))
            break; /* loading says so */
    pthread_mutex_lock(&t->m->pass_lock);
    st = kv_snapshot_load(k, &t->kv, e);
    pthread_mutex_unlock(&t->m->pass_lock);
    if (st && !t->kv.n_past) {
        drop_pending(t);
        after_cut(t);
    }
    if (st)
        return st;
    drop_pending(t);
    memcpy(t->id, k->ids, (size_t)k->n * sizeof *t->id);
    t->place = (axes_place){0};
    t->sparse = sparse_of_key(k->way.lossy);
    t->lora = lora;
    t->n_fixed = 0;
    t->saved_at = 0;
    know_segment(&t->known, NULL, 0);
    know_segment(&t->draft_known, NULL, 0);
    rounds_forget(t, 0);
    kv_cache *c = draft_cache(t);
    if (k->draft && c && kv_snapshot_fits(k->draft, c->layout)) {
        pthread_mutex_lock(&t->m->pass_lock);
        kv_snapshot_load(k->draft, c, NULL); /* its own pool has pages for its whole context */
        pthread_mutex_unlock(&t->m->pass_lock);
    }
    return OK;
}

/* Restores from the timeline's own store, whose segments and pages it may share. False: the pool is
 * too full, and the timeline is as before or empty. */
static bool restore_checkpoint(timeline *t, kv_snapshot *k, int64_t n)
{
    if (timeline_restore(t, k, NULL))
        return false;
    const kv_cache *c = draft_cache(t);
    t->saved_at = k->n;
    t->n_fixed = k->n; /* is_fixed, else it would not have been saved */
    if (!k->paging)
        know_segment(&t->known, k->linear, k->n);
    if (k->draft && c && c->n_past == k->n)
        know_segment(&t->draft_known, k->draft->linear, k->n);
    if (!kv_rewind(&t->kv, n)) { /* never to the beginning, so it clears no state */
        timeline_reset(t);
        return false;
    }
    after_cut(t);
    t->reuse = k->from_disk ? "restored from disk" : "restored";
    return true;
}

/* Pages for a whole answer are freed before it begins: copying checkpoints takes time and memory.
 */
static void make_room_ahead(timeline *t, int64_t n)
{
    const kv_cache *c = &t->kv;
    int32_t all = pages_of(paging_most(t, t->roomy ? c->layout->n_ctx : n));
    if (c->layout->n_pool_pages && all > c->n_pages)
        checkpoints_free_pages(t->store, all - c->n_pages, NULL);
}

/* Drops the pending snapshots that a checkpoint of the whole timeline makes superfluous. Those with
 * a drafter's rows stay: its windows may be shorter, and it may not have all of the last rows. */
static void drop_served(timeline *t)
{
    const int64_t n = t->kv.n_past;
    int32_t left = 0;
    if (!checkpoints_have(t->store, timeline_way(t), t->id, n))
        return;
    for (int32_t i = 0; i < t->n_pending; i++)
        if (!t->pending[i]->draft && kv_snapshot_serves(t->kv.layout, n, t->pending[i]->n))
            drop_one(t, t->pending[i]);
        else
            t->pending[left++] = t->pending[i];
    t->n_pending = left;
}

/* Saves the part of the timeline that the prompt discards: a later prompt may continue it. While
 * windows have all tokens, one checkpoint does for the prompt and for its answer. */
static void save_what_goes(timeline *t, int64_t n_kept)
{
    if (!t->store || t->kv.n_past - n_kept < SAVE_LEAST)
        return;
    save_end(t);
    drop_served(t);
    fill_pending(t, 0, true);
}

/* Its own tally of what is left out, from now on. */
static status open_stats(timeline *t, err *e)
{
    size_t n = (size_t)t->m->core.n_layer;
    if (!t->stats && !(t->stats = mem_calloc(n, sizeof *t->stats)))
        return err_memory(e, "the account of sparse attention", n * sizeof *t->stats);
    return OK;
}

status timeline_use(timeline *t, sparse_choice c, const lora_choice *l, err *e)
{
    status st = sparse_name(c) ? open_stats(t, e) : OK;
    if (!st)
        t->sparse.from = c.from;
    if (st || kv_same_way((kv_way){sparse_key(c), l->key}, timeline_way(t)))
        return st;
    if (t->kv.n_past) {
        save_what_goes(t, 0);
        timeline_reset(t);
    }
    drop_pending(t);
    t->sparse = c;
    t->lora = *l;
    return OK;
}

void timeline_forget_stats(timeline *t)
{
    if (t->stats)
        memset(t->stats, 0, (size_t)t->m->core.n_layer * sizeof *t->stats);
}

void timeline_restart(timeline *t)
{
    int64_t cached = t->kv.n_past;
    save_what_goes(t, 0);
    timeline_reset(t);
    t->n_dropped = cached;
    t->reuse = cached ? "rebuilt: every row is wanted" : "new";
}

static void align_live(timeline *t, int64_t same)
{
    int64_t cached = t->kv.n_past;
    if (same == cached) {
        t->reuse = cached ? "extended" : "new";
        drop_pending(t);
    } else if (timeline_rewind(t, same)) {
        t->reuse = same ? "rewound" : "rebuilt: the prompt begins differently";
    } else {
        t->reuse =
            t->kv.pager && t->kv.pager->r.dropped
                ? "rebuilt: keys before the change were dropped for good"
            : is_recurrent(t)
                ? "rebuilt: recurrent states cannot go back, and no checkpoint is before the "
                  "change"
                : "rebuilt: the sliding windows no longer hold what the change needs";
        timeline_reset(t);
    }
}

void timeline_prompt(timeline *t, int64_t n)
{
    t->n_prompt = n;
    t->n_fixed = sparse_fixed(n);
}

void timeline_prepare(timeline *t, const int32_t *ids, int64_t n)
{
    int64_t cached = t->kv.n_past, same = common_prefix(t, ids, n), use = 0;
    int64_t live = kv_can_rewind(&t->kv, same) ? same : 0;
    /* A prompt that needs no page to leave is exact. */
    uint64_t pool = t->kv.pager && paging_most(t, n) != n ? pool_key(t) : 0;
    kv_snapshot *k = NULL;
    if (t->store)
        k = checkpoints_find(t->store, timeline_way(t), pool, ids,
                             media_whole(t->m, ids, n - 1, n) + 1, live ? live + RESTORE_GAIN : 0,
                             &use);
    if (k && ((use = fixed_use(t, k, use)) <= live || media_whole(t->m, ids, use, n) != use)) {
        kv_snapshot_drop(k);
        k = NULL;
    }
    save_what_goes(t, k ? 0 : live);
    if (!k || !restore_checkpoint(t, k, use))
        align_live(t, same);
    kv_snapshot_drop(k);
    int64_t n_kept = t->kv.n_past < same ? t->kv.n_past : same;
    t->n_dropped = cached - n_kept;
    paging_pin(t, ids, n);
    timeline_prompt(t, n);
    if (t->store)
        plan_pending(t, ids, n);
    make_room_ahead(t, n);
}
