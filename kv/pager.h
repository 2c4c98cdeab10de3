/* pager.h - keeps a cache's pages within a pool that is smaller than its context.
 *
 *     before a pass   pages that the pass needs come in, others go to the host   (kv_pager_reserve)
 *     in a pass       queries are watched: page_watch in backend/pass.h           (kv_pager_watch)
 *     every tau       the best pages by those scores come in         (kv_pager_ready)
 *
 * residency.h decides which page goes and which comes. This file moves their bytes, unchanged, and
 * keeps the summaries of all whole pages. A page that is away takes host memory, and of the device
 * only its summary. Its table entry is missing. So a linear store has fewer keys than the context
 * has tokens (kv_n_keys), and the rows of a pass attend to the pages that are there.
 *
 * As long as no page was away during a pass, the cache is exact, bit for bit. Tokens from the first
 * such pass on are lossy (n_exact): no exact snapshot is taken of them (kv_can_save).
 *
 * The resident pages decide what is computed. So they must not depend on how a sequence is cut into
 * passes, nor on other sequences. Pages move only at three kinds of places: at the ends of pages
 * while an answer is computed, at the ends of the engine's chunks of a prompt (kv_pager_ready), and
 * at reselections. No pass of an answer goes beyond such a place (kv_pager_answer_end). Rows that
 * may be dropped are not watched.
 *
 * The pool may have other caches, with pagers too. Each keeps within n_resident pages.
 *
 * A cache owns its pager. Only the thread that runs passes may call in, between passes.
 */
#ifndef KV_PAGER_H
#define KV_PAGER_H

#include "kv/kv.h"
#include "kv/rescore.h"
#include "kv/mover.h"
#include "kv/residency.h"

typedef enum kv_policy {
    KV_POLICY_SCORED, /* by the model's own queries: votes by bounds, and at the ends of prompts
                         real attention (rescore.h) */
    KV_POLICY_LRU,    /* sinks and the youngest pages */
    KV_POLICY_SNAPKV, /* scored, once, by the end of a prompt; what is not chosen is dropped for
                         good (arXiv 2404.14469, by pages) */
    KV_POLICY_DRAFTER /* by scores that the caller gives (kv_pager_scores) */
} kv_policy;

enum {
    KV_WATCH_ROWS = 8,    /* of a prompt: the last rows are watched */
    KV_WATCH_WINDOW = 64, /* the same, of KV_POLICY_SNAPKV */
    KV_WATCH_TOKENS = 4,  /* of an answer: the last ones before a reselection, a pass each */
    /* Votes stay below KV_LOOKED: fewer than 2^11 rows, 2^21 query heads, 2^PAGE_VOTE_BITS each. */
    KV_VOTE_ROWS = 1024,                           /* then votes begin anew */
    KV_VOTE_HEADS = (1 << 21) / PAGE_WATCH_HEADS   /* KV heads of all layers */
};

typedef struct kv_pager_want {
    kv_policy policy;
    int32_t tau;
    int32_t n_resident; /* most tokens in the pool, in whole pages; 0: as many as it holds */
    int32_t rows_max;   /* most rows of the cache in a pass; 0: the layout's */
    /* KV_POLICY_SCORED, by side: the ends of prompts look at pages (rescore.h). NULL: they do not.
     */
    const page_query_size *query;
} kv_pager_want;

typedef struct kv_pager {
    residency r;
    kv_policy policy;
    kv_copy *copy;        /* [n_pages] */
    page_sums *sums;      /* [layout->n]; at NULL: not a linear store, or not scored */
    int32_t n_summed;     /* pages 0 .. n_summed - 1 have a summary */
    page_watch watch;     /* its buffers */
    page_queries queries; /* kept for rescoring; cap 0: this pager never rescores */
    size_t vote_bytes, room_bytes[PASS_SIDES_MAX];
    uint64_t *votes;   /* [2][n_pages]: of all sides together; of one side, while it is added */
    float *score;      /* [n_pages]: by what a selection goes */
    int32_t n_given;   /* KV_POLICY_DRAFTER: pages whose scores were given for the next selection */
    int64_t n_watched; /* rows whose votes there are: since the last reselection */
    bool wants_rescore; /* the end of a prompt: select pages before the next pass */
    int64_t ready;      /* kv_pager_ready was called for the tokens below this position */
    int64_t hold;       /* no page moves before this position: a prompt's chunk ends there */
    int64_t counted; /* rows of the chunk that ends there have votes */
    bool renew;      /* the cache was cut to exact tokens: all pages come, scores are forgotten */
    int64_t n_exact; /* tokens below it were computed while no page was away */
    int64_t n_reselected;
} kv_pager;

/* Bytes of a side's device, beside the pool: summaries and scores. Those of rescore.h come on top.
 */
uint64_t kv_pager_bytes(const kv_layout *l, kv_policy policy, int32_t side);
/* Can the devices of the layout score pages? Else the policy is LRU. */
bool kv_pager_can_score(const kv_layout *l, device *main);

static inline bool kv_pager_lossy(const kv_cache *c)
{
    return c->pager && c->n_past > c->pager->n_exact;
}

/* Gives c, which is empty, a pager. The pool has a mover. E_ARG: too few pages may be resident. */
status kv_pager_open(kv_cache *c, const kv_pager_want *w, err *e);
void kv_pager_close(kv_cache *c); /* before the cache; safe without a pager */

/* KV_POLICY_DRAFTER, before kv_pager_ready. kv_pager_rescores: will it select pages? Then the
 * caller writes the scores of the first n pages to the array [n] that kv_pager_scores returns. */
bool kv_pager_rescores(const kv_cache *c);
float *kv_pager_scores(kv_cache *c, int32_t n);
/* Makes kv_pager_ready select pages before the next pass, if pages may have to leave before the
 * cache has n tokens. */
void kv_pager_rescore(kv_cache *c, int64_t n);
/* Is a chunk of a prompt being computed, so that no page moves? */
bool kv_pager_held(const kv_cache *c);

/* Could a page have to leave before the cache has n tokens? */
bool kv_pager_is_short(const kv_cache *c, int64_t n);
/* Where the next pass of an answer must end at the latest. */
int64_t kv_pager_answer_end(const kv_cache *c);
/* Before the first pass of a chunk of a prompt, which ends at `end`, at most rows_max tokens from
 * here: until then pages stay as they are now, however the chunk is cut into passes. */
void kv_pager_hold(kv_cache *c, int64_t end);
/* Makes the pages of tokens n_past .. end - 1 resident, and reselects if it is time. As kv_reserve,
 * which does it for the rows of a pass unless it has been done. */
status kv_pager_ready(kv_cache *c, int64_t end, err *e);
/* How many free pages of the pool suffice for kv_pager_ready and kv_reserve of n rows. */
int32_t kv_pager_needs(const kv_cache *c, int32_t n);
/* The part of kv_reserve that takes pages. */
status kv_pager_reserve(kv_cache *c, int32_t n, err *e);
/* The part of kv_commit: n_past includes the n rows. */
void kv_pager_commit(kv_cache *c, int32_t n);
/* c, which is empty, gets n tokens, page by page, and goes on as s says (paging.h). load writes the
 * rows of a page to a page of the pool. Needs as many free pages as are resident, or one. After an
 * error c is empty. E_ARG: other rules. */
typedef void (*kv_page_load)(void *user, int32_t page, int32_t to);
struct kv_paging;
status kv_pager_load(kv_cache *c, const struct kv_paging *s, int64_t n, kv_page_load load,
                     void *user, err *e);
/* The n tokens of a snapshot are in the pages of the table, which are as many as they need: c had
 * none. */
void kv_pager_adopt(kv_cache *c, int64_t n);
/* The part of kv_rewind and kv_reset: forgets what is behind n tokens. */
void kv_pager_cut(kv_cache *c, int64_t n);
bool kv_pager_can_cut(const kv_cache *c, int64_t n);
/* The rows that the next pass should be watched for, as sequence seq of its step; NULL: none. Of a
 * chunk of a prompt they are the last ones. again: what was watched before does not count. */
const page_watch *kv_pager_watch(kv_cache *c, int32_t seq, int32_t n_rows, bool again);
/* Where such a pass of a prompt's end keeps its queries, for page_watch.keep; NULL: nowhere. */
page_queries *kv_pager_queries(kv_cache *c);
/* A pass of n rows that was watched has run, and nothing was committed yet. 0: it has failed, and
 * its votes are dropped, because some devices may have added theirs. */
void kv_pager_watched(kv_cache *c, int32_t n_rows);
/* It has kept its queries: scores by them take the place of what was watched. Errors as
 * kv_rescore_votes. */
status kv_pager_rescore_votes(kv_cache *c, err *e);
/* The votes of the first n pages, of all devices together, are copied to `to`, or become those. */
void kv_pager_get_votes(const kv_cache *c, uint64_t *to, int32_t n);
void kv_pager_set_votes(kv_cache *c, const uint64_t *votes, int32_t n);

#endif
