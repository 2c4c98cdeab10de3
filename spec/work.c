/* work.c - see work.h. */
#include "spec/work.h"

void work_plan_begin(pass *p, const model *target, device *main, const step *st)
{
    pass_begin(p, main, st, NULL, 0);
    for (int32_t i = 1; i < target->n_sides; i++)
        pass_add_side(p, target->dev[i], NULL, 0);
}

status work_plan_end(pass *p, work_sizes *w, err *e)
{
    if (pass_failed(p))
        return err_set(e, p->e.status, "%s", p->e.text);
    for (int32_t i = 0; i < p->n_sides; i++)
        w->bytes[i] = p->side[i].peak > w->bytes[i] ? p->side[i].peak : w->bytes[i];
    return OK;
}

void work_add_costs(const work_sizes *w, const model *target, draft_costs *c)
{
    c->device_bytes += w->bytes[PASS_MAIN];
    for (int32_t i = 1; i < target->n_sides; i++)
        *(target->dev[i]->host_memory ? &c->host_bytes : &c->device_bytes) += w->bytes[i];
}

status work_open(draft_work *w, const model *target, device *main, const work_sizes *z, err *e)
{
    *w = (draft_work){.n_sides = target->n_sides};
    for (int32_t i = 0; i < w->n_sides; i++) {
        device *dev = i == PASS_MAIN ? main : target->dev[i];
        w->side[i].dev = dev;
        w->side[i].n_bytes = z->bytes[i];
        if (z->bytes[i] && !(w->side[i].at = dev->alloc(dev, z->bytes[i])))
            return err_memory(e, "a drafter's passes", z->bytes[i]);
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
    for (int32_t i = 1; i < w->n_sides; i++)
        pass_add_side(p, w->side[i].dev, w->side[i].at, w->side[i].n_bytes);
}
