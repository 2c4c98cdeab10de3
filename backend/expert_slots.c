/* expert_slots.c - see expert_slots.h. Offers and the halving of heats look at every slot or
 * expert; both are few, and rare beside the copies that they save. */
#include "backend/expert_slots.h"
#include "base/mem.h"

status expert_slots_init(expert_slots *s, int32_t n_experts, int32_t n_slots, err *e)
{
    *s = (expert_slots){0};
    if (n_experts < 1 || n_experts > EXPERTS_MAX || n_slots < 1 || n_slots > n_experts)
        return err_set(e, E_ARG, "%d slots for %d experts: 1 to %d slots, at most %d experts",
                       n_slots, n_experts, n_experts, EXPERTS_MAX);
    s->slot = mem_alloc((size_t)n_experts * sizeof *s->slot);
    s->expert = mem_alloc((size_t)n_slots * sizeof *s->expert);
    s->coming = mem_calloc((size_t)n_slots, sizeof *s->coming);
    s->used = mem_calloc((size_t)n_slots, sizeof *s->used);
    s->heat = mem_calloc((size_t)n_experts, sizeof *s->heat);
    if (!s->slot || !s->expert || !s->coming || !s->used || !s->heat) {
        expert_slots_free(s);
        return err_memory(e, "the map of experts", (size_t)n_experts * 2 * sizeof *s->slot);
    }
    for (int32_t i = 0; i < n_experts; i++)
        s->slot[i] = -1;
    for (int32_t i = 0; i < n_slots; i++)
        s->expert[i] = -1;
    s->n_experts = n_experts;
    s->n_slots = s->n_empty = n_slots;
    return OK;
}

void expert_slots_free(expert_slots *s)
{
    mem_free(s->heat);
    mem_free(s->used);
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

void expert_slots_use(expert_slots *s, int32_t expert, uint32_t n)
{
    uint32_t heat = n < EXPERT_USES_MOST ? n : (uint32_t)EXPERT_USES_MOST;
    if (expert_slots_has(s, expert))
        s->used[s->slot[expert]] = ++s->n_used;
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

static bool filled(const expert_slots *s, int32_t slot)
{
    return s->expert[slot] >= 0 && !s->coming[slot];
}

int32_t expert_slots_oldest(const expert_slots *s)
{
    int32_t oldest = -1;
    for (int32_t i = 0; i < s->n_slots; i++)
        if (filled(s, i) && (oldest < 0 || s->used[i] < s->used[oldest]))
            oldest = i;
    return oldest;
}

static int32_t coldest_slot(const expert_slots *s)
{
    int32_t coldest = -1;
    for (int32_t i = 0; i < s->n_slots; i++) {
        if (!filled(s, i))
            continue;
        uint32_t heat = s->heat[s->expert[i]];
        uint32_t least = coldest < 0 ? UINT32_MAX : s->heat[s->expert[coldest]];
        if (heat < least || (heat == least && s->used[i] < s->used[coldest]))
            coldest = i;
    }
    return coldest;
}

int32_t expert_slots_offer(const expert_slots *s, int32_t expert)
{
    if (s->slot[expert] >= 0)
        return -1;
    int32_t slot = empty_slot(s);
    if (slot >= 0)
        return slot;
    slot = coldest_slot(s);
    bool hotter = slot >= 0 && s->heat[expert] >= s->heat[s->expert[slot]] + EXPERT_MARGIN;
    return hotter ? slot : -1;
}

void expert_slots_begin(expert_slots *s, int32_t slot, int32_t expert)
{
    if (s->expert[slot] >= 0)
        s->slot[s->expert[slot]] = -1;
    else
        s->n_empty--;
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
        s->used[slot] = ++s->n_used;
        return;
    }
    s->slot[s->expert[slot]] = -1;
    s->expert[slot] = -1;
    s->n_empty++;
}
