/* paging.c - see paging.h. */
#include "kv/paging.h"
#include "base/bytes.h"
#include "base/mem.h"
#include "base/rng.h"

#include <string.h>

void kv_paging_free(kv_paging *s)
{
    if (!s)
        return;
    mem_free(s->votes);
    mem_free(s->page);
    mem_free(s);
}

/* Room for votes. */
static bool take_votes(kv_paging *s, int32_t n)
{
    s->votes = mem_calloc((size_t)n + 1, sizeof *s->votes);
    s->n_votes = n;
    s->n_bytes += (size_t)n * sizeof *s->votes;
    return s->votes;
}

/* The pager's rules, and pages for n tokens. */
static kv_paging *paging_of(const kv_cache *c, int64_t n)
{
    const residency_rules *r = &c->pager->r.rules;
    size_t n_pages = (size_t)pages_of(n);
    kv_paging *s = mem_calloc(1, sizeof *s);
    if (!s)
        return NULL;
    *s = (kv_paging){.policy = c->pager->policy,
                     .pool = r->pool,
                     .tau = r->tau,
                     .rows_max = r->rows_max,
                     .n_pages = (int32_t)n_pages,
                     .n_exact = INT64_MAX,
                     .since = n,
                     .page = mem_calloc(n_pages, sizeof *s->page),
                     .n_bytes = sizeof *s + n_pages * sizeof *s->page};
    if (!s->page) {
        kv_paging_free(s);
        return NULL;
    }
    return s;
}

kv_paging *kv_paging_new(const kv_cache *c)
{
    const kv_pager *g = c->pager;
    kv_paging *s = paging_of(c, c->n_past);
    if (!s)
        return NULL;
    s->n_exact = g->n_exact;
    s->since = g->r.since;
    s->clock = g->r.clock;
    s->n_watched = g->n_watched;
    s->hold = g->hold;
    s->wants_rescore = g->wants_rescore;
    s->renew = g->renew;
    s->for_good = g->r.for_good;
    for (int32_t p = 0; p < s->n_pages; p++) {
        const residency_page *from = &g->r.page[p];
        s->page[p] = (kv_paging_page){.used = from->used,
                                      .score = from->score,
                                      .resident = from->place >= 0,
                                      .pinned = from->pinned,
                                      .scored = from->scored,
                                      .lost = residency_is_lost(&g->r, p)};
    }
    if (!take_votes(s, g->sums && g->n_watched ? g->watch.n_pages : 0)) {
        kv_paging_free(s);
        return NULL;
    }
    if (s->n_votes)
        kv_pager_get_votes(c, s->votes, s->n_votes);
    return s;
}

kv_paging *kv_paging_young(const kv_cache *c, int64_t n)
{
    kv_paging *s = paging_of(c, n);
    for (int32_t p = 0; s && p < s->n_pages; p++)
        s->page[p] = (kv_paging_page){.used = p + 1,
                                      .resident = p < RESIDENCY_SINKS ||
                                                  p >= s->n_pages - s->pool + RESIDENCY_SINKS};
    if (s)
        s->clock = s->n_pages + 1;
    return s;
}

void kv_paging_apply(kv_cache *c, const kv_paging *s, int64_t n)
{
    kv_pager *g = c->pager;
    for (int32_t p = 0; p < s->n_pages; p++) {
        g->r.page[p].used = s->page[p].used;
        g->r.page[p].score = s->page[p].score;
        g->r.page[p].pinned = s->page[p].pinned;
        g->r.page[p].scored = s->page[p].scored;
        g->r.dropped |= s->page[p].lost;
        if (g->r.page[p].place >= 0)
            pages_write(&c->pool->pages, g->r.page[p].place / KV_PAGE,
                        n - (int64_t)p * KV_PAGE < KV_PAGE ? (int32_t)(n % KV_PAGE) : KV_PAGE);
    }
    g->r.n_past = n;
    g->r.since = s->since;
    g->r.clock = s->clock;
    g->n_exact = s->n_exact;
    g->n_watched = s->n_watched;
    g->hold = g->counted = s->hold;
    g->ready = 0;
    g->wants_rescore = s->wants_rescore;
    g->renew = s->renew;
    g->r.for_good = s->for_good;
    g->n_summed = (int32_t)(n / KV_PAGE);
    g->watch.n_pages = s->n_votes;
    if (g->sums && s->n_votes)
        kv_pager_set_votes(c, s->votes, s->n_votes);
    c->n_past = n;
}

/* ---- As bytes ------------------------------------------------------------------------------
 *
 *     policy, pool, tau, rows_max, flags, n_votes   u32 each
 *     n_exact, since, clock, n_watched, hold      u64 each
 *     of each page: used u64, score f32, flags u32
 *     of the first n_votes pages: votes u64
 */

enum { HEAD_BYTES = 6 * 4 + 5 * 8, PAGE_BYTES = 16 };
enum { WANTS_RESCORE = 1, RENEW = 2, FOR_GOOD = 4, FLAGS = 8 };
enum { RESIDENT = 1, PINNED = 2, SCORED = 4, LOST = 8, PAGE_FLAGS = 16 };

static uint64_t rules_key(kv_policy policy, int32_t pool, int32_t tau, int32_t rows_max)
{
    uint64_t key = rng_mix((uint64_t)policy + 1);
    key = rng_mix(key ^ (uint64_t)pool);
    key = rng_mix(key ^ (uint64_t)tau);
    key = rng_mix(key ^ (uint64_t)rows_max);
    return key ? key : 1;
}

uint64_t kv_paging_key(const kv_paging *s)
{
    return rules_key(s->policy, s->pool, s->tau, s->rows_max);
}

uint64_t kv_pager_key(const kv_cache *c)
{
    const residency_rules *r = &c->pager->r.rules;
    return rules_key(c->pager->policy, r->pool, r->tau, r->rows_max);
}

static size_t packed_bytes(int32_t n_pages, uint32_t n_votes)
{
    return HEAD_BYTES + (size_t)n_pages * PAGE_BYTES + (size_t)n_votes * 8;
}

size_t kv_paging_packed_bytes(const kv_paging *s)
{
    return packed_bytes(s->n_pages, (uint32_t)s->n_votes);
}

static unsigned char *put(unsigned char *to, uint64_t v, int n)
{
    for (int i = 0; i < n; i++)
        to[i] = (unsigned char)(v >> (8 * i));
    return to + n;
}

static unsigned char *put_f32(unsigned char *to, float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return put(to, bits, 4);
}

static float f32_of(reader *r)
{
    uint32_t bits = rd_u32(r);
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

void kv_paging_pack(const kv_paging *s, unsigned char *to)
{
    const uint32_t word[6] = {(uint32_t)s->policy,
                              (uint32_t)s->pool,
                              (uint32_t)s->tau,
                              (uint32_t)s->rows_max,
                              (s->wants_rescore ? WANTS_RESCORE : 0u) | (s->renew ? RENEW : 0u) |
                                  (s->for_good ? FOR_GOOD : 0u),
                              (uint32_t)s->n_votes};
    const int64_t count[5] = {s->n_exact, s->since, s->clock, s->n_watched, s->hold};
    for (int i = 0; i < 6; i++)
        to = put(to, word[i], 4);
    for (int i = 0; i < 5; i++)
        to = put(to, (uint64_t)count[i], 8);
    for (int32_t p = 0; p < s->n_pages; p++) {
        const kv_paging_page *x = &s->page[p];
        to = put(to, (uint64_t)x->used, 8);
        to = put_f32(to, x->score);
        to = put(to,
                 (x->resident ? RESIDENT : 0u) | (x->pinned ? PINNED : 0u) |
                     (x->scored ? SCORED : 0u) | (x->lost ? LOST : 0u),
                 4);
    }
    for (int32_t p = 0; p < s->n_votes; p++)
        to = put(to, s->votes[p], 8);
}

static const char *read_head(kv_paging *s, reader *r, int64_t n, uint32_t *n_votes)
{
    uint32_t policy = rd_u32(r), pool = rd_u32(r), tau = rd_u32(r), rows = rd_u32(r),
             flags = rd_u32(r);
    *n_votes = rd_u32(r);
    s->n_exact = (int64_t)rd_u64(r);
    s->since = (int64_t)rd_u64(r);
    s->clock = (int64_t)rd_u64(r);
    s->n_watched = (int64_t)rd_u64(r);
    s->hold = (int64_t)rd_u64(r);
    if (policy > KV_POLICY_DRAFTER || !pool || pool > INT32_MAX || !tau || tau > INT32_MAX ||
        !rows || rows > INT32_MAX || flags >= FLAGS || *n_votes > (uint32_t)s->n_pages)
        return "its pool of keys has impossible rules";
    s->policy = (kv_policy)policy;
    s->pool = (int32_t)pool;
    s->tau = (int32_t)tau;
    s->rows_max = (int32_t)rows;
    s->wants_rescore = flags & WANTS_RESCORE;
    s->renew = flags & RENEW;
    s->for_good = flags & FOR_GOOD;
    if (s->n_exact < 0 || (s->n_exact > n && s->n_exact != INT64_MAX) || s->since < 0 ||
        s->since > INT32_MAX || s->clock < 0 || s->clock > INT64_MAX / 2 || s->n_watched < 0 ||
        s->n_watched > INT32_MAX || !s->n_watched != !*n_votes || s->hold < 0 ||
        s->hold > n + s->rows_max ||
        (s->for_good && s->policy != KV_POLICY_SNAPKV))
        return "its pool of keys has impossible counts";
    return NULL;
}

static const char *read_pages(kv_paging *s, reader *r, int64_t n)
{
    int32_t n_resident = 0;
    for (int32_t p = 0; p < s->n_pages; p++) {
        kv_paging_page *x = &s->page[p];
        x->used = (int64_t)rd_u64(r);
        x->score = f32_of(r);
        uint32_t flags = rd_u32(r);
        x->resident = flags & RESIDENT;
        x->pinned = flags & PINNED;
        x->scored = flags & SCORED;
        x->lost = flags & LOST;
        n_resident += x->resident;
        if (flags >= PAGE_FLAGS || x->used < 0 || x->used > s->clock || (x->resident && x->lost))
            return "a page of its pool is in an impossible state";
    }
    if (n_resident > s->pool || !s->page[(n - 1) / KV_PAGE].resident)
        return "its pool holds impossible pages";
    return NULL;
}

kv_paging *kv_paging_unpack(const unsigned char *from, size_t n_bytes, int64_t n, const char **why)
{
    reader r = reader_of(from, n_bytes);
    kv_paging *s = mem_calloc(1, sizeof *s);
    uint32_t n_votes = 0;
    *why = NULL;
    if (!s)
        return NULL;
    s->n_pages = pages_of(n);
    *why = n_bytes < HEAD_BYTES ? "the records of its pool are cut" : read_head(s, &r, n, &n_votes);
    if (!*why && n_bytes != packed_bytes(s->n_pages, n_votes))
        *why = "the records of its pool are not as many as its pages";
    s->page = *why ? NULL : mem_calloc((size_t)s->n_pages, sizeof *s->page);
    s->n_bytes = sizeof *s + (size_t)s->n_pages * sizeof *s->page;
    if (!s->page || (*why = read_pages(s, &r, n)) || !take_votes(s, (int32_t)n_votes)) {
        kv_paging_free(s);
        return NULL;
    }
    for (int32_t p = 0; p < s->n_votes; p++)
        s->votes[p] = rd_u64(&r);
    return s;
}
