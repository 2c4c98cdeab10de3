/* stages.h - a model on several devices: which of its layers each of them has. Only the thread that
 * opens the model calls in, before weights are loaded.
 */
#ifndef ENGINE_STAGES_H
#define ENGINE_STAGES_H

#include "engine/engine_int.h"

/* The side of stage k, the stages being in the order of their layers. */
static inline int32_t stage_side(const carat_model *m, int32_t k)
{
    return k == m->n_stages - 1 ? PASS_MAIN : k + 1;
}

/* "3,1": the proportion in which the stages have layers. E_ARG: anything else. */
status stages_read_split(carat_model *m, const char *text, err *e);

/* Divides the layers that the CPU beside does not have between the stages: by hand, or by the sizes
 * of weights. All devices are open. E_ARG: such a division is not possible. */
status stages_place(carat_model *m, err *e);

/* Divides them by the plan of such a session, if not by hand, and gives the plan. */
status stages_plan(carat_model *m, const session_shape *s, carat_memory_plan *plan, err *e);

#endif
