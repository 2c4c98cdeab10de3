/* expert_slots.h - which experts of a layer have one of its slots: a map, recency and heat.
 *
 *     slot      room for one expert in a device's memory; it is empty, filled or on its way
 *     recency   the order of last use of the experts that have slots
 *     heat      uses of an expert, halved at regular intervals
 *
 * The victim is the coldest expert; of equally offloaded ones the one used longest ago. It gives
 * its slot to a used expert without one only if that expert is hotter by EXPERT_MARGIN (admission
 * as in TinyLFU: Einziger, Friedman, Manes, arXiv 1512.00727). So one odd prompt, which uses many
 * experts a little, takes few slots, and experts that are used equally often do not take turns.
 * With the expert used longest ago as the victim (LRU), 1 to 5 % more experts crossed the bus in a
 * simulation (bench/journal/experts.md).
 *
 * Plain data, without devices and bytes: a copy of every expert stays on the host, so an eviction
 * moves nothing. The owner copies experts and says when a copy has ended. One thread at a time.
 */
#ifndef BACKEND_EXPERT_SLOTS_H
#define BACKEND_EXPERT_SLOTS_H

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    EXPERTS_MAX = 4096,
    EXPERT_USES_MOST = 4,  /* uses by one pass that count as heat: a long prompt is one occasion */
    EXPERT_HEAT_MOST = 64, /* heat at the beginning, of the commonest expert */
    EXPERT_MARGIN = 3,     /* an expert must be so much hotter than the one it replaces */
    EXPERT_AGEING = 16     /* heat is halved after so many uses per expert of the layer */
};

typedef struct expert_slots {
    int32_t n_experts, n_slots;
    int32_t *slot;   /* [n_experts] its slot, -1: none. Also of an expert on its way */
    int32_t *expert; /* [n_slots] -1: empty */
    bool *coming;    /* [n_slots] its copy has not ended */
    uint64_t *used;  /* [n_slots] of filled slots: the number of the last use */
    uint64_t n_used;
    int32_t n_coming, n_empty;
    uint32_t *heat; /* [n_experts] */
    uint64_t age;   /* heat added since the last halving */
} expert_slots;

/* All slots are empty, all heats 0. 1 <= n_slots <= n_experts <= EXPERTS_MAX. */
status expert_slots_init(expert_slots *s, int32_t n_experts, int32_t n_slots, err *e);
void expert_slots_free(expert_slots *s); /* safe on a zeroed or freed one */

/* Heat at the beginning, from counts [n_experts] of earlier runs; NULL: none. */
void expert_slots_warm(expert_slots *s, const uint64_t *count);
/* A pass has used the expert n times, n > 0. */
void expert_slots_use(expert_slots *s, int32_t expert, uint32_t n);

/* The slot that the expert should have now; -1: it has one already, is not hot enough, or every
 * slot is on its way. Changes nothing. */
int32_t expert_slots_offer(const expert_slots *s, int32_t expert);
/* The filled slot whose expert was used longest ago; -1: none is filled. */
int32_t expert_slots_oldest(const expert_slots *s);
/* The slot's expert, if any, leaves; `expert`, which has no slot, is on its way to it. */
void expert_slots_begin(expert_slots *s, int32_t slot, int32_t expert);
/* The copy to the slot has ended: the expert is in it and is the newest. !ok: the slot is empty. */
void expert_slots_end(expert_slots *s, int32_t slot, bool ok);
/* Is the expert in a slot, and not only on its way? */
static inline bool expert_slots_has(const expert_slots *s, int32_t expert)
{
    return s->slot[expert] >= 0 && !s->coming[s->slot[expert]];
}

#endif
