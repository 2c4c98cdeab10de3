/* work.c - see work.h. */
#include "spec/work.h"

/* The first of the target's sides in the drafter's passes. */
static int32_t first_of(const draft_sizes *z)
{
    return draft_target_dev(z) != z->dev;
}

/* The device of a side of the drafter's passes. */
static device *side_of(const model *target, const draft_sizes *z, int32_t i)
{
    const int32_t at = i - first_of(z);
    return !i ? z->dev : !at ? draft_target_dev(z) : target->dev[at];
}

void work_plan_begin(pass *p, const model *target, const draft_sizes *z, const step *st)
{
    pass_begin(p, z->dev, st, NULL, 0);
    p->alone = true;
    p->target = first_of(z);
    for (int32_t i = 1; i < target->n_sides + p->target; i++)
        pass_add_side(p, side_of(target, z, i), NULL, 0);
}

status work_plan_end(pass *p, work_sizes *w, err *e)
{
    if (pass_failed(p))
        return err_set(e, p->e.status, "%s", p->e.text);
    for (int32_t i = 0; i < p->n_sides; i++)
        w->bytes[i] = p->side[i].peak > w->bytes[i] ? p->side[i].peak : w->bytes[i];
    return OK;
}

void work_add_costs(const work_sizes *w, const model *target, const draft_sizes *z, draft_costs *c)
{
    const int32_t first = first_of(z);
    c->device_bytes += w->bytes[PASS_MAIN];
    for (int32_t i = 1; i < target->n_sides + first; i++)
        c->target_bytes[i - first] += w->bytes[i];
}

status work_open(draft_work *w, const model *target, const draft_sizes *z, const work_sizes *sizes,
                 err *e)
{
    const int32_t first = first_of(z);
    *w = (draft_work){.n_sides = target->n_sides + first, .target = first};
    for (int32_t i = 0; i < w->n_sides; i++) {
        device *dev = side_of(target, z, i);
        w->side[i].dev = dev;
        w->side[i].n_bytes = sizes->bytes[i];
        if (sizes->bytes[i] && !(w->side[i].at = dev->alloc(dev, sizes->bytes[i])))
            return err_memory(e, "a drafter's passes", sizes->bytes[i]);
    }
    return OK;
}

void work_close(draft_work *w)
{
    for (int32_t i = 0; i < w->n_sides; i++)
        if (w->side[i].at)
            w->side[i].dev->release(w->side[i].dev, w->side[i].at, w->side[i].n_bytes);
    *w = (draft_work){.n_sides = 0};
}

void work_begin(const draft_work *w, pass *p, const step *st)
{
    pass_begin(p, w->side[PASS_MAIN].dev, st, w->side[PASS_MAIN].at, w->side[PASS_MAIN].n_bytes);
    p->alone = true;
    p->target = w->target;
    for (int32_t i = 1; i < w->n_sides; i++)
        pass_add_side(p, w->side[i].dev, w->side[i].at, w->side[i].n_bytes);
}
