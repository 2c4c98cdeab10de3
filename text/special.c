/* special.c - finds the special pieces spelled out in a text.
 *
 * The rule is "longest first over the vocabulary": the longest special piece cuts out all of its
 * occurrences, leftmost first, then the next longest works on what is left, and so on. Doing just
 * that means thousands of searches through the text, so it is done the other way round: one pass
 * with a trie collects every occurrence of every piece; occurrences that overlap nothing (nearly
 * all) are taken as they are; each knot of overlapping ones is settled by the rule.
 *
 *     text    a < | t u r n > < | t u r n >        two hits, no knot
 *     pieces  "ab" "bcd" in abcd: a knot; "bcd" is longer and wins, "a" stays raw
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
        v->node_id[node] = id;
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

/* May piece id be cut out, given that it lies wholly inside a span or not? */
static bool allowed(const vocab *v, int32_t id, special_mode mode)
{
    if (!(v->flags[id] & FLAG_STRUCTURE))
        return true;
    return mode == SPECIAL_ALL || (mode == SPECIAL_USER && v->type[id] == TOKEN_USER_DEFINED);
}

/* Longest first; then by id, so that the order is total; then leftmost. */
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

/* Keeps of n overlapping hits those that the rule takes; returns how many. taken: one byte per
 * byte of the knot, which starts at `base`, all zero. Hits are taken from long to short, so one
 * that overlaps an earlier one has its first or its last byte in it. */
static size_t settle(special_hit *h, size_t n, size_t base, unsigned char *taken)
{
    size_t kept = 0;
    qsort(h, n, sizeof *h, by_rule);
    for (size_t i = 0; i < n; i++) {
        size_t at = h[i].at - base;
        if (taken[at] || taken[at + h[i].n - 1])
            continue;
        memset(taken + at, 1, h[i].n);
        h[kept++] = h[i];
    }
    qsort(h, kept, sizeof *h, by_place);
    return kept;
}

static status settle_all(special_hit *h, size_t *n_hits, err *e)
{
    size_t kept = 0;
    for (size_t i = 0, j; i < *n_hits; i = j) {
        size_t end = h[i].at + h[i].n;
        for (j = i + 1; j < *n_hits && h[j].at < end; j++)
            if (h[j].at + h[j].n > end)
                end = h[j].at + h[j].n;
        size_t n = j - i;
        if (n > 1) {
            unsigned char *taken = mem_calloc(end - h[i].at, 1);
            if (!taken)
                return err_memory(e, "overlapping special tokens", end - h[i].at);
            n = settle(h + i, n, h[i].at, taken);
            mem_free(taken);
        }
        memmove(h + kept, h + i, n * sizeof *h);
        kept += n;
    }
    *n_hits = kept;
    return OK;
}

status special_find(const vocab *v, const char *text, size_t n, special_mode mode,
                    const text_span *span, size_t n_spans, special_hit **out, size_t *n_out, err *e)
{
    special_hit *h = NULL;
    size_t n_hits = 0, cap = 0, is = 0;

    *out = NULL;
    *n_out = 0;
    for (size_t i = 0; i < n; i++) {
        if (!v->first[(unsigned char)text[i]])
            continue;
        while (is < n_spans && span[is].at + span[is].n <= i)
            is++;
        size_t span_end = is < n_spans && span[is].at <= i ? span[is].at + span[is].n : 0;
        uint32_t node = 0;
        for (size_t j = i; j < n; j++) {
            node = trie_at(v, node << 8 | (unsigned char)text[j])->node;
            if (!node)
                break;
            int32_t id = v->node_id[node];
            if (id < 0 || !allowed(v, id, j < span_end ? mode : SPECIAL_NONE))
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
            h[n_hits++] = (special_hit){i, (uint32_t)(j - i + 1), id};
        }
    }
    status st = settle_all(h, &n_hits, e);
    if (st) {
        mem_free(h);
        return st;
    }
    *out = h;
    *n_out = n_hits;
    return OK;
}
