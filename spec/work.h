/* work.h - scratch of a drafter's own passes, on its device and on those of its target.
 *
 * Three drafters have passes that begin and end on the drafter's device and may visit the target's:
 * their embeddings or their head may be there. The scratch of a side is the most that any pass of
 * the drafter takes, found by dry passes.
 *
 *     side of a pass                      0                    1                     2 ...
 *     drafter beside the model            main device of both  target's side 1       target's side 2
 *     drafter on a device of its own      drafter's            target's main device  target's side 1
 */
#ifndef SPEC_WORK_H
#define SPEC_WORK_H

#include "spec/drafter.h"

/* By side of the drafter's passes, in bytes. */
typedef struct work_sizes {
    size_t bytes[PASS_SIDES_MAX];
} work_sizes;

/* A dry pass: begin, the ops, then the end, which raises w or gives the pass's error. */
void work_plan_begin(pass *p, const model *target, const draft_sizes *z, const step *st);
status work_plan_end(pass *p, work_sizes *w, err *e);
/* Adds the bytes to those of the devices. */
void work_add_costs(const work_sizes *w, const model *target, const draft_sizes *z, draft_costs *c);

typedef struct draft_work {
    int32_t n_sides, target; /* target: as pass.target */
    struct {
        device *dev;
        void *at;
        size_t n_bytes;
    } side[PASS_SIDES_MAX];
} draft_work;

/* E_MEMORY; then, and in any case at the end, work_close. */
status work_open(draft_work *w, const model *target, const draft_sizes *z, const work_sizes *sizes,
                 err *e);
void work_close(draft_work *w); /* safe on a zeroed one */
void work_begin(const draft_work *w, pass *p, const step *st);
/* Whether a pass over these rows may be recorded: all devices can. Then the recording is the main
 * one's, and copies to the others are in it (pass_first_ranks). Prompts over several go without:
 * their chunks overlap, and a recording waits for all devices. */
static inline bool work_records(const draft_work *w, const step *st)
{
    bool can = w->n_sides == 1 || !st->prompt;
    for (int32_t i = 0; i < w->n_sides; i++)
        can = can && w->side[i].dev->replay && (w->n_sides == 1 || w->side[i].dev->follow);
    return can;
}

#endif
