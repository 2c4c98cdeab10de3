/* paging.h - what a pager knows, beside the bytes of its pages: plain data.
 *
 * With it and all rows another cache goes on as this one would. A snapshot keeps it (snapshot.h),
 * and kv_pager_load gives it to a cache.
 *
 * The caller owns what kv_paging_new returns. Only the thread that runs passes may call in, between
 * passes.
 */
#ifndef KV_PAGING_H
#define KV_PAGING_H

#include "kv/pager.h"

typedef struct kv_paging_page {
    int64_t used;
    float score;
    bool resident, pinned, scored, lost;
} kv_paging_page;

typedef struct kv_paging {
    /* Only pagers of the same rules go on alike. */
    kv_policy policy;
    int32_t pool, tau, rows_max;
    int32_t n_pages; /* page[n_pages]: those of the tokens */
    int32_t n_votes; /* votes[n_votes]: of the first pages, by all devices together; 0: n_watched is
                        0 */
    int64_t n_exact, since, clock, n_watched, hold;
    bool wants_rescore, renew, for_good;
    kv_paging_page *page;
    uint64_t *votes;
    size_t n_bytes;
} kv_paging;

/* Of c, which no pass runs on. NULL: no memory. */
kv_paging *kv_paging_new(const kv_cache *c);
void kv_paging_free(kv_paging *s); /* NULL is fine */
/* Names the rules of a pager, never 0: records go to pagers of the same key. */
uint64_t kv_paging_key(const kv_paging *s);
/* The same of c, which has a pager. */
uint64_t kv_pager_key(const kv_cache *c);
/* As bytes, for files: little-endian, the same on every machine. */
size_t kv_paging_packed_bytes(const kv_paging *s);
void kv_paging_pack(const kv_paging *s, unsigned char *to);
/* Records of n tokens from untrusted bytes. NULL: *why says what is wrong with them, as a phrase of
 * static storage, or is NULL, and there is no memory. */
kv_paging *kv_paging_unpack(const unsigned char *from, size_t n_bytes, int64_t n, const char **why);
/* As if the n exact tokens of a snapshot had been computed: the youngest pages are resident. */
kv_paging *kv_paging_young(const kv_cache *c, int64_t n);
/* The part of kv_pager_load that follows the pages of its n tokens: records and counters of c's
 * pager become those of s. */
void kv_paging_apply(kv_cache *c, const kv_paging *s, int64_t n);

#endif
