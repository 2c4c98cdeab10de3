/* expert_place.c - see expert_place.h. A greedy knapsack: items of a layer are its experts in
 * descending order of use, and all items of a layer have the same weight.
 */
#include "engine/expert_place.h"
#include "base/mem.h"

#include <stdlib.h>

uint64_t expert_place_least(const place_layer *l, int32_t n)
{
    uint64_t sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum += l[i].bytes * (uint64_t)l[i].n_used;
    return sum;
}

uint64_t expert_place_all(const place_layer *l, int32_t n)
{
    uint64_t sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum += l[i].bytes * (uint64_t)l[i].n_experts;
    return sum;
}

static int descending(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x < y) - (x > y);
}

/* Is a slot more for layer a worth more than one for b? u, v: the uses of their next experts. Of
 * equal ones the layer with the smaller part of its experts. */
static bool better(const place_layer *a, uint64_t u, const place_layer *b, uint64_t v)
{
    double x = (double)u * (a->worth ? a->worth : 1) / (double)a->bytes;
    double y = (double)v * (b->worth ? b->worth : 1) / (double)b->bytes;
    if (x != y)
        return x > y;
    return (int64_t)a->n_slots * b->n_experts < (int64_t)b->n_slots * a->n_experts;
}

status expert_place(place_layer *l, int32_t n, uint64_t budget, uint64_t *used, err *e)
{
    size_t n_all = 0, at = 0;
    for (int32_t i = 0; i < n; i++)
        n_all += (size_t)l[i].n_experts;
    uint64_t *sorted = mem_alloc((n_all ? n_all : 1) * sizeof *sorted);
    if (!sorted)
        return err_memory(e, "the placement of experts", n_all * sizeof *sorted);
    *used = expert_place_least(l, n);
    for (int32_t i = 0; i < n; i++) {
        for (int32_t k = 0; k < l[i].n_experts; k++)
            sorted[at + (size_t)k] = l[i].count ? l[i].count[k] : 1;
        qsort(sorted + at, (size_t)l[i].n_experts, sizeof *sorted, descending);
        at += (size_t)l[i].n_experts;
        l[i].n_slots = l[i].n_used;
    }
    /* The first layer whose best item does not fit ends it: so that a smaller budget takes a prefix
     * of the same sequence, and never gives a layer more. */
    for (;;) {
        int32_t best = -1;
        uint64_t best_uses = 0;
        at = 0;
        for (int32_t i = 0; i < n; i++) {
            const place_layer *p = &l[i];
            uint64_t uses = p->n_slots < p->n_experts ? sorted[at + (size_t)p->n_slots] : 0;
            at += (size_t)p->n_experts;
            if (p->n_slots < p->n_experts && (best < 0 || better(p, uses, &l[best], best_uses))) {
                best = i;
                best_uses = uses;
            }
        }
        if (best < 0 || *used > budget || l[best].bytes > budget - *used)
            break;
        l[best].n_slots++;
        *used += l[best].bytes;
    }
    mem_free(sorted);
    return OK;
}
