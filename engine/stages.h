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

/* Rows of a chunk of a prompt of n tokens. All stages compute at the same time, chunk after chunk.
 * But the first chunk is alone on its way to the last stage, and so is the last chunk: N chunks on
 * G stages take (N + G - 1) / N of an even share of the time. So there are STAGES_CHUNKS chunks for
 * each further stage. A GPU wants STAGES_CHUNK_LEAST rows at least: fewer take more time each. The
 * result of a prompt does not depend on its chunks. */
enum { STAGES_CHUNKS = 8, STAGES_CHUNK_LEAST = 512 };
static inline int32_t stages_chunk(int32_t n_stages, int32_t most, int32_t least, int64_t n)
{
    int32_t rows = most;
    while (rows / 2 >= least && n / rows < STAGES_CHUNKS * (n_stages - 1))
        rows /= 2;
    return rows;
}

/* "3,1": the proportion in which the stages have layers. E_ARG: anything else. */
status stages_read_split(carat_model *m, const char *text, err *e);

/* Divides the layers that the CPU beside does not have between the stages: by hand, or by the sizes
 * of weights. All devices are open. E_ARG: such a division is not possible. */
status stages_place(carat_model *m, err *e);

/* Is that division left to the plan? */
bool stages_divide_by_plan(const carat_model *m);

/* Divides them by the plan of such a session, if not by hand, and gives the plan. */
status stages_plan(carat_model *m, const session_shape *s, carat_memory_plan *plan, err *e);

#endif
