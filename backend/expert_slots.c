/* expert_slots.c - see expert_slots.h. Every step but the halving of heats takes constant time. */
#include "backend/expert_slots.h"
#include "base/mem.h"

#include <string.h>

status expert_slots_init(expert_slots *s, int32_t n_experts, int32_t n_slots, err *e)
{
    *s = (expert_slots){0};
    if (n_experts < 1 || n_experts > EXPERTS_MAX || n_slots < 1 || n_slots > n_experts)
        return err_set(e, E_ARG, "%d slots for %d experts: 1 to %d slots, at most %d experts",
                       n_slots, n_experts, n_experts, EXPERTS_MAX);
    s->slot = mem_alloc((size_t)n_experts * sizeof *s->slot);
    s->expert = mem_alloc((size_t)n_slots * sizeof *s->expert);
    s->coming = mem_calloc((size_t)n_slots, sizeof *s->coming);
    s->newer = mem_alloc((size_t)n_slots * sizeof *s->newer);
    s->older = mem_alloc((size_t)n_slots * sizeof *s->older);
    s->heat = mem_calloc((size_t)n_experts, sizeof *s->heat);
    if (!s->slot || !s->expert || !s->coming || !s->newer || !s->older || !s->heat) {
        expert_slots_free(s);
        return err_memory(e, "the map of experts", (size_t)n_experts * 2 * sizeof *s->slot);
    }
    for (int32_t i = 0; i < n_experts; i++)
        s->slot[i] = -1;
    for (int32_t i = 0; i < n_slots; i++)
        s->expert[i] = s->newer[i] = s->older[i] = -1;
    s->n_experts = n_experts;
    s->n_slots = s->n_empty = n_slots;
    s->newest = s->oldest = -1;
    return OK;
}

void expert_slots_free(expert_slots *s)
{
    mem_free(s->heat);
    mem_free(s->older);
    mem_free(s->newer);
    mem_free(s->coming);
    mem_free(s->expert);
    mem_free(s->slot);
    *s = (expert_slots){0};
}

void expert_slots_warm(expert_slots *s, const uint64_t *count)
{
    uint64_t most = 0;
    for (int32_t i = 0; count && i < s->n_experts; i++)
        most = count[i] > most ? count[i] : most;
    for (int32_t i = 0; most && i < s->n_experts; i++)
        s->heat[i] = (uint32_t)((double)count[i] / (double)most * EXPERT_HEAT_MOST);
}

/* ---- The order of use ---------------------------------------------------------------------- */

static void unlink_slot(expert_slots *s, int32_t slot)
{
    int32_t newer = s->newer[slot], older = s->older[slot];
    if (newer >= 0)
        s->older[newer] = older;
    else
        s->newest = older;
    if (older >= 0)
        s->newer[older] = newer;
    else
        s->oldest = newer;
    s->newer[slot] = s->older[slot] = -1;
}

static void link_newest(expert_slots *s, int32_t slot)
{
    s->older[slot] = s->newest;
    s->newer[slot] = -1;
    if (s->newest >= 0)
        s->newer[s->newest] = slot;
    else
        s->oldest = slot;
    s->newest = slot;
}

void expert_slots_use(expert_slots *s, int32_t expert, uint32_t n)
{
    uint32_t heat = n < EXPERT_USES_MOST ? n : (uint32_t)EXPERT_USES_MOST;
    if (expert_slots_has(s, expert)) {
        unlink_slot(s, s->slot[expert]);
        link_newest(s, s->slot[expert]);
    }
    s->heat[expert] += heat;
    s->age += heat;
    if (s->age < (uint64_t)s->n_experts * EXPERT_AGEING)
        return;
    for (int32_t i = 0; i < s->n_experts; i++)
        s->heat[i] /= 2;
    s->age = 0;
}

/* ---- Slots --------------------------------------------------------------------------------- */

static int32_t empty_slot(const expert_slots *s)
{
    for (int32_t i = 0; i < s->n_slots && s->n_empty; i++)
        if (s->expert[i] < 0)
            return i;
    return -1;
}

int32_t expert_slots_offer(const expert_slots *s, int32_t expert)
{
    if (s->slot[expert] >= 0)
        return -1;
    int32_t slot = empty_slot(s);
    if (slot >= 0)
        return slot;
    slot = s->oldest;
    return slot >= 0 && s->heat[expert] > s->heat[s->expert[slot]] ? slot : -1;
}

void expert_slots_begin(expert_slots *s, int32_t slot, int32_t expert)
{
    if (s->expert[slot] >= 0) {
        s->slot[s->expert[slot]] = -1;
        unlink_slot(s, slot);
    } else {
        s->n_empty--;
    }
    s->expert[slot] = expert;
    s->slot[expert] = slot;
    s->coming[slot] = true;
    s->n_coming++;
}

void expert_slots_end(expert_slots *s, int32_t slot, bool ok)
{
    s->coming[slot] = false;
    s->n_coming--;
    if (ok) {
        link_newest(s, slot);
        return;
    }
    s->slot[s->expert[slot]] = -1;
    s->expert[slot] = -1;
    s->n_empty++;
}
