/* residency.h - which pages of a timeline are on the device: records, protections, victims, plans.
 *
 *     page      0    1    2    3    4    5    6    7    8        64 tokens each
 *     where    dev  host host dev  dev  host dev  dev  dev
 *              sink                score     tail . .  written
 *
 * This module has records only and moves no byte. It plans moves. The caller makes them in order
 * and reports each (residency_done). So after a failed move the records are still true, and the
 * next plan starts from them. A page is on the device, or the host has a copy of it, or both. A
 * page with both costs no copy when it leaves.
 *
 * Protected pages never leave: the first ones (sinks), the page that the next token is written to
 * and some before it (tail), pinned ones. The tail is measured from the committed end. So a draft
 * that opened a page and was rejected does not move it.
 *
 * The order in which pages leave: first a page without committed tokens; then pages by score, the
 * lowest first; last pages without a score, which are younger than the last selection. Of equal
 * ones the page of the oldest use leaves first. Without scores that is LRU.
 *
 * The caller owns the struct. One thread at a time.
 */
#ifndef KV_RESIDENCY_H
#define KV_RESIDENCY_H

#include "backend/step.h"
#include "base/err.h"

typedef enum residency_what {
    RESIDENCY_OUT,    /* copy to the host, then give the place back */
    RESIDENCY_LEAVE,  /* give the place back: the host has a copy, or nothing is lost */
    RESIDENCY_DROP,   /* give the place back for good: what the page held is lost */
    RESIDENCY_FORGET, /* release the host's copy of a page that is on the device */
    RESIDENCY_IN,     /* take a place, copy from the host; the host keeps its copy */
    RESIDENCY_NEW     /* take a place; nothing to copy */
} residency_what;

typedef struct residency_move {
    int32_t page;
    residency_what what;
} residency_move;

typedef struct residency_page {
    int32_t place; /* of its first key, as in kv_page; -1: not on the device */
    bool copied;   /* the host has its bytes as they are now */
    bool pinned, scored;
    bool leaves, comes; /* in the plan */
    float score;
    int64_t used; /* when it was last written or brought in */
} residency_page;

typedef struct residency_rules {
    int32_t pool;       /* most pages on the device */
    int32_t n_pages;    /* pages of the whole context */
    int32_t sinks;      /* protected from the start on */
    int32_t tail;       /* protected before the page that is written to */
    int32_t rows_max;   /* most rows of a pass */
    int32_t host_pages; /* most copies on the host; -1: any number */
    int32_t tau;        /* tokens between two reselections */
} residency_rules;

enum {
    RESIDENCY_SINKS = 1,
    RESIDENCY_TAIL = 4,
    RESIDENCY_TAU = 64,
    /* One reselection scores a page for each of the context, and moves pages. Beyond so many pages
     * per token of tau, tau grows with the context, so that the share of time does not. It depends
     * on the context alone, never on a clock: what is resident decides what is answered. */
    RESIDENCY_PAGES_PER_TOKEN = 64
};

typedef struct residency {
    residency_rules rules;
    residency_page *page; /* [n_pages] */
    int32_t n_resident, n_copied;
    int64_t n_past; /* the committed end */
    int64_t clock;
    int64_t since; /* committed tokens since the last reselection */
    bool dropped;  /* a page was dropped for good: the context is not whole any more */
    bool for_good; /* pages that leave are dropped; the caller sets it, rewinding to 0 clears it */
    residency_move *move; /* [n_moves] of the last plan */
    int32_t n_moves, moves_cap;
    struct residency_rank *rank; /* [n_pages], scratch of plans */
    int64_t n_out, n_in, n_left; /* moves made: copied out, copied in, left without a copy */
} residency;

/* The smallest pool in which a pass always finds a page to evict: sinks, tail, the pages of a pass
 * at any alignment, and one more. */
int32_t residency_pool_min(const residency_rules *r);
/* E_ARG: a pool below the minimum that is also smaller than the context; no rule below 1. */
status residency_init(residency *r, const residency_rules *rules, err *e);
void residency_free(residency *r);

/* Pins the pages of positions [from, to), whole or not yet written, as far as the pool has room for
 * them beyond its minimum. Returns the number of pages that it had no room for. */
int32_t residency_pin(residency *r, int64_t from, int64_t to);
void residency_unpin(residency *r);
bool residency_is_protected(const residency *r, int32_t page);

/* Plans what must move before a pass of n rows at the committed end: afterwards the pages of its
 * rows and all protected ones are on the device. E_LIMIT, and no move: the pool or the host's
 * copies have no room. The moves are in the order in which they must be made, outs first. */
status residency_plan_rows(residency *r, int32_t n, err *e);
/* Plans that all pages of committed tokens come, if the pool has room for them; no move if not. */
status residency_plan_all(residency *r, err *e);
/* Records as they would be if the tokens had just been computed one after the other. */
void residency_renew(residency *r);
/* Plans the best resident set by scores [n_scores] of pages 0 and up; NaN is the lowest score,
 * pages beyond n_scores have none. Best pages move first, at most most_in of them (0: any number).
 * E_LIMIT as above. */
status residency_plan_scores(residency *r, const float *score, int32_t n_scores, int32_t most_in,
                             err *e);
/* Plans that all copies go: pages that are not on the device are dropped. */
void residency_plan_forget(residency *r);
bool residency_is_lost(const residency *r, int32_t page); /* it was dropped */
/* Move m of the plan was made; place: where an IN or NEW page lies. A plan may be left unfinished
 * after any of its moves. */
void residency_done(residency *r, const residency_move *m, int32_t place);
/* The host has a copy of a page that is on the device. */
void residency_copied(residency *r, int32_t page);
/* The next pass writes n rows at the committed end: copies of their pages become stale, and the
 * caller releases them or overwrites them. Their pages are on the device. */
void residency_write(residency *r, int32_t n);
/* n more rows are committed. */
void residency_commit(residency *r, int32_t n);
/* Back to n_past tokens. The caller has given back the places and copies of pages from
 * residency_pages_of(n_past) on. False, and unchanged: n_past lies in a page that was dropped. */
bool residency_rewind(residency *r, int64_t n_past);
static inline int32_t residency_pages_of(int64_t n_tokens)
{
    return (int32_t)((n_tokens + KV_PAGE - 1) / KV_PAGE);
}

/* Is a reselection due? Only where the context is larger than the pool. */
bool residency_due(const residency *r);
int32_t residency_tau(const residency *r); /* tau, or more: RESIDENCY_PAGES_PER_TOKEN */

/* Committed keys on the device: the number of the next key of a linear store. */
int64_t residency_n_keys(const residency *r);

#endif
