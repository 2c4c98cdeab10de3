/* pager.h - keeps a cache's pages within a pool that is smaller than its context.
 *
 *     before a pass   pages that the pass needs come in, others go to the host   (kv_pager_reserve)
 *     in a pass       queries are watched: page_watch in backend/pass.h           (kv_pager_watch)
 *     every tau       the best pages by those scores come in (kv_pager_reselect)
 *
 * Which page goes and which comes is decided by residency.h; this file moves their bytes, exactly,
 * and keeps the summaries of all whole pages. A page that is away costs host memory, and nothing of
 * the device but its summary. Its table entry is missing, so a linear store has fewer keys than the
 * context has tokens (kv_n_keys), and the rows of a pass see the pages that are there.
 *
 * As long as no page was away during a pass, the cache is exact, bit for bit. From the first such
 * pass on it is lossy: no snapshot is taken of it (kv_can_save).
 *
 * A cache owns its pager. Only the thread that runs passes may call in, between passes.
 */
#ifndef KV_PAGER_H
#define KV_PAGER_H

#include "kv/kv.h"
#include "kv/residency.h"

typedef enum kv_policy {
    KV_POLICY_SCORED, /* by the model's own queries and the bounds of the pages' keys */
    KV_POLICY_LRU     /* sinks and the youngest pages */
} kv_policy;

enum { KV_WATCH_ROWS = 8 /* the last rows before a reselection are watched */ };

typedef struct kv_pager_want {
    kv_policy policy;
    int32_t tau;
    int64_t host_bytes; /* most memory of pages on the host; -1: any amount */
} kv_pager_want;

typedef struct kv_pager {
    residency r;
    kv_policy policy;
    size_t page_bytes;
    unsigned char **host; /* [n_pages]: copies; NULL: none */
    page_sums *sums;      /* [layout->n]; at NULL: not a linear store, or not scored */
    int32_t n_summed;     /* pages 0 .. n_summed - 1 have a summary */
    page_watch watch;     /* its buffers */
    size_t score_bytes, room_bytes[PASS_SIDES_MAX];
    float *score;      /* [n_pages], of all sides together */
    int64_t n_watched; /* rows watched since the last reselection */
    bool wants_look;   /* the end of a prompt: reselect before the next pass */
    bool lossy;        /* a pass ran while pages were away */
    int64_t n_reselected;
} kv_pager;

/* Bytes of a side's device, beside the pool: summaries and scores. */
uint64_t kv_pager_bytes(const kv_layout *l, kv_policy policy, int32_t side);
/* Can the devices of the layout score pages? Else the policy is LRU. */
bool kv_pager_can_score(const kv_layout *l, device *main);

/* Gives c, which is empty, a pager for the pages of its pool. E_ARG: the pool is too small. */
status kv_pager_open(kv_cache *c, const kv_pager_want *w, err *e);
void kv_pager_close(kv_cache *c); /* before the cache; safe without a pager */

/* The part of kv_reserve that takes pages. */
status kv_pager_reserve(kv_cache *c, int32_t n, err *e);
/* The part of kv_commit. */
void kv_pager_commit(kv_cache *c, int32_t n);
/* The part of kv_rewind and kv_reset: forgets what is behind n tokens. */
void kv_pager_cut(kv_cache *c, int64_t n);
bool kv_pager_can_cut(const kv_cache *c, int64_t n);
/* The rows that the next pass should be watched for, as sequence seq of its step; NULL: none.
 * prompt_end: the pass ends the prompt. */
const page_watch *kv_pager_watch(kv_cache *c, int32_t seq, int32_t n_rows, bool prompt_end);
/* A pass that was watched has run. */
void kv_pager_watched(kv_cache *c, int32_t n_rows);
/* Brings in the best pages by what was watched. */
status kv_pager_reselect(kv_cache *c, err *e);

#endif
