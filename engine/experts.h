/* experts.h - which experts of a model its GPUs hold, where they do not hold all. Each has slots for
 * experts of its own layers.
 *
 * Chosen when a model is opened, before its weights are loaded, from the options, the plan of the
 * session that will run, and the counts of earlier runs in FILE.experts. Only the thread that
 * opens, parks or closes the model calls in, but for experts_bytes and experts_sum.
 */
#ifndef ENGINE_EXPERTS_H
#define ENGINE_EXPERTS_H

#include "engine/engine_int.h"

/* E_ARG: a share of experts that cannot be read, or options that exclude each other. */
status experts_check_options(const carat_model_options *opt, err *e);
/* All devices are open, and layers are with the CPU beside them if they shall be. Divides the others
 * between stages. Leaves m->experts NULL if the device of each layer holds all of its experts. */
status experts_choose(carat_model *m, const carat_model_options *opt, err *e);
bool experts_placed(const carat_model *m); /* layers stay on the devices that have slots for them */
uint64_t experts_bytes(const carat_model *m, int32_t side); /* slots, stages, tables */
/* Before and after the weights are loaded; the second starts the CPU's threads for experts too.
 * Nothing happens without m->experts. */
status experts_open(carat_model *m, err *e);
status experts_fill(carat_model *m, err *e);
/* Adds the counts of this run to FILE.experts, and gives the device's memory back. The weights are
 * no longer used. */
void experts_close(carat_model *m);
void experts_free(carat_model *m); /* closes too */

/* What passes did with experts since the model was loaded. The thread that runs passes calls. */
typedef struct expert_sums {
    bool offload;                       /* false: every device holds all experts; zeros follow */
    uint64_t n_hits, n_misses, n_bytes; /* bytes that the bus carried */
    uint64_t n_cpu;
    double wait_ms; /* as carat_timings.expert_wait_ms */
} expert_sums;
void experts_sum(const carat_model *m, expert_sums *to);

#endif
