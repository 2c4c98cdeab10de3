/* special.c - finds the special pieces spelled out in a text.
 *
 * The rule is "longest first over the vocabulary": the longest special piece cuts out all of its
 * occurrences, leftmost first; then the next longest piece searches the remaining text, and so on.
 * One search per piece would mean thousands of searches. Instead, one pass with a trie finds the
 * longest piece at every place. An occurrence without overlap is final; nearly all are. Overlapping
 * occurrences form a knot, and the rule is applied inside each knot. A shorter piece at a place is
 * searched only after the longer piece there has lost to an overlapping one. Otherwise a page of
 * line feeds, where 31 pieces begin at every byte, would cost 31 entries per byte.
 *
 *     text    a < | t u r n > < | t u r n >        two hits, no knot
 *     pieces  "ab" "bcd" in abcd: a knot; "bcd" is longer and wins, "a" is ordinary text
 *     pieces  "a" "ab" "bcd" in abcd: the same, but "a" is now cut out as well
 */
#include "text/vocab_int.h"
#include "base/mem.h"

#include <stdlib.h>

static trie_slot *trie_at(const vocab *v, uint32_t edge)
{
    uint32_t i = (uint32_t)hash_fold(edge ^ 0xa0761d6478bd642fu, 0xe7037ed1a0b428dbu);
    for (i &= v->trie_mask; v->trie[i].node && v->trie[i].edge != edge;)
        i = (i + 1) & v->trie_mask;
    return &v->trie[i];
}

status special_build(vocab *v, err *e)
{
    uint64_t total = 0;
    for (int32_t id = 0; id < v->n; id++) {
        size_t n;
        const char *p = vocab_piece(v, id, &n);
        if (!(v->flags[id] & FLAG_SPECIAL))
            continue;
        if (n > VOCAB_MAX_SPECIAL_BYTES)
            return err_set(e, E_FORMAT, "special piece %d has %zu bytes; carat reads up to %d", id,
                           n, VOCAB_MAX_SPECIAL_BYTES);
        total += n;
        v->first[(unsigned char)*p] = true;
    }
    if (total >= 1 << 24) /* a node number and a byte share 32 bits */
        return err_set(e, E_FORMAT, "the special pieces have more than 16 MiB of text");
    uint64_t size = 16;
    while (size < 2 * total)
        size *= 2;
    v->trie_mask = (uint32_t)(size - 1);
    v->trie = mem_calloc(size, sizeof *v->trie);
    v->node_id = mem_alloc((total + 1) * sizeof *v->node_id);
    if (!v->trie || !v->node_id)
        return err_memory(e, "the trie of special pieces", size * sizeof *v->trie);
    v->node_id[0] = -1;
    v->n_nodes = 1;
    for (int32_t id = 0; id < v->n; id++) {
        size_t n;
        const char *p = vocab_piece(v, id, &n);
        uint32_t node = 0;
        if (!(v->flags[id] & FLAG_SPECIAL))
            continue;
        for (size_t i = 0; i < n; i++) {
            uint32_t edge = node << 8 | (unsigned char)p[i];
            trie_slot *s = trie_at(v, edge);
            if (!s->node) {
                *s = (trie_slot){edge, v->n_nodes};
                v->node_id[v->n_nodes++] = -1;
            }
            node = s->node;
        }
        if (v->node_id[node] >= 0)
            continue;
        /* Of equal pieces the first encodes, though not in the place of structure. */
        int32_t first = v->has_twins ? vocab_find(v, p, n) : id;
        bool stands_in = !(v->flags[id] & FLAG_STRUCTURE) || v->flags[first] & FLAG_STRUCTURE;
        v->node_id[node] = stands_in ? first : id;
    }
    return OK;
}

void special_free(vocab *v)
{
    mem_free(v->node_id);
    mem_free(v->trie);
    v->node_id = NULL;
    v->trie = NULL;
}

/* Whether piece id may be cut out at a place inside a span, or outside of all spans. */
static bool allowed(const vocab *v, int32_t id, special_mode mode)
{
    if (!(v->flags[id] & FLAG_STRUCTURE))
        return true;
    return mode == SPECIAL_ALL || (mode == SPECIAL_USER && v->type[id] == TOKEN_USER_DEFINED);
}

/* Longest first, then by id (so that the order is total), then leftmost. */
static int by_rule(const void *a, const void *b)
{
    const special_hit *x = a, *y = b;
    if (x->n != y->n)
        return x->n < y->n ? 1 : -1;
    if (x->id != y->id)
        return x->id < y->id ? -1 : 1;
    return x->at < y->at ? -1 : x->at > y->at;
}

static int by_place(const void *a, const void *b)
{
    const special_hit *x = a, *y = b;
    return x->at < y->at ? -1 : x->at > y->at;
}

/* The end of the span that contains byte `at`; 0 if no span does. */
static size_t span_end(const marked_text *t, size_t at)
{
    size_t lo = 0, hi = t->n_spans;
    while (lo < hi) { /* the first span that ends after `at` */
        size_t mid = lo + (hi - lo) / 2;
        if (t->span[mid].at + t->span[mid].n <= at)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < t->n_spans && t->span[lo].at <= at ? t->span[lo].at + t->span[lo].n : 0;
}

/* The longest piece of at most `most` bytes that may be cut out at `at`. n == 0: none. */
static special_hit longest_at(const vocab *v, const marked_text *t, size_t at, size_t most)
{
    special_hit best = {.at = at};
    size_t end = span_end(t, at), stop = most < t->n - at ? at + most : t->n;
    uint32_t node = 0;
    for (size_t j = at; j < stop; j++) {
        node = trie_at(v, node << 8 | (unsigned char)t->at[j])->node;
        if (!node)
            break;
        int32_t id = v->node_id[node];
        if (id >= 0 && allowed(v, id, j < end ? t->mode : SPECIAL_NONE))
            best = (special_hit){at, (uint32_t)(j - at + 1), id};
    }
    return best;
}

/* A run of hits. Each hit but the first overlaps an earlier one. */
typedef struct knot {
    special_hit *hit, *won; /* [n]: the longest candidate of each place; the accepted hits */
    size_t n, n_won, base;
    unsigned char *taken; /* one byte per byte of the knot, which starts at `base` */
} knot;

/* Free bytes at the beginning of the hit. */
static uint32_t room_for(const knot *k, const special_hit *h)
{
    uint32_t room = 0;
    while (room < h->n && !k->taken[h->at - k->base + room])
        room++;
    return room;
}

/* Accepts or rejects the longest candidates, which lie at the front. A rejected candidate is
 * replaced by the next shorter piece of its place, if one fits. Returns whether any was
 * replaced. */
static bool settle_longest(const vocab *v, const marked_text *t, knot *k)
{
    size_t i = 0, n_back = 0;
    for (uint32_t longest = k->hit[0].n; i < k->n && k->hit[i].n == longest; i++) {
        special_hit h = k->hit[i];
        uint32_t room = room_for(k, &h);
        if (room == h.n) {
            memset(k->taken + (h.at - k->base), 1, h.n);
            k->won[k->n_won++] = h;
        } else if (room && (h = longest_at(v, t, h.at, room)).n) {
            k->hit[n_back++] = h;
        }
    }
    memmove(k->hit + n_back, k->hit + i, (k->n - i) * sizeof *k->hit);
    k->n -= i - n_back;
    return n_back;
}

/* Applies the rule to n overlapping hits. Keeps the accepted ones in text order; *n: their
 * count. */
static status settle(const vocab *v, const marked_text *t, special_hit *h, size_t *n, size_t end,
                     err *e)
{
    knot k = {.hit = h, .n = *n, .base = h->at};
    k.taken = mem_calloc(end - k.base, 1);
    k.won = mem_calloc(k.n, sizeof *k.won);
    if (!k.taken || !k.won) {
        mem_free(k.taken);
        mem_free(k.won);
        return err_memory(e, "overlapping special tokens", end - k.base + k.n * sizeof *k.won);
    }
    for (bool sort = true; k.n; sort = settle_longest(v, t, &k))
        if (sort)
            qsort(k.hit, k.n, sizeof *k.hit, by_rule);
    qsort(k.won, k.n_won, sizeof *k.won, by_place);
    memcpy(h, k.won, k.n_won * sizeof *h);
    *n = k.n_won;
    mem_free(k.taken);
    mem_free(k.won);
    return OK;
}

static status settle_all(const vocab *v, const marked_text *t, special_hit *h, size_t *n_hits,
                         err *e)
{
    size_t kept = 0;
    for (size_t i = 0, j; i < *n_hits; i = j) {
        size_t end = h[i].at + h[i].n;
        for (j = i + 1; j < *n_hits && h[j].at < end; j++)
            if (h[j].at + h[j].n > end)
                end = h[j].at + h[j].n;
        size_t n = j - i;
        status st = n > 1 ? settle(v, t, h + i, &n, end, e) : OK;
        if (st)
            return st;
        memmove(h + kept, h + i, n * sizeof *h);
        kept += n;
    }
    *n_hits = kept;
    return OK;
}

status special_find(const vocab *v, const marked_text *t, special_hit **out, size_t *n_out, err *e)
{
    special_hit *h = NULL;
    size_t n_hits = 0, cap = 0;

    *out = NULL;
    *n_out = 0;
    for (size_t i = 0; i < t->n; i++) {
        if (!v->first[(unsigned char)t->at[i]])
            continue;
        special_hit found = longest_at(v, t, i, t->n - i);
        if (!found.n)
            continue;
        if (n_hits == cap) {
            cap = cap ? cap * 2 : 16;
            special_hit *more = mem_realloc(h, cap, sizeof *h);
            if (!more) {
                mem_free(h);
                return err_memory(e, "the special tokens of a text", cap * sizeof *h);
            }
            h = more;
        }
        h[n_hits++] = found;
    }
    status st = settle_all(v, t, h, &n_hits, e);
    if (st) {
        mem_free(h);
        return st;
    }
    *out = h;
    *n_out = n_hits;
    return OK;
}
