/* plan.h - the device that computes nothing: steps for dry passes.
 *
 * A dry pass needs only counts. plan_step makes a step of n_rows rows, n_outs of which give
 * logits, of prompts or of answers; its arrays are empty and no op of a dry pass reads them.
 */
#ifndef BACKEND_PLAN_H
#define BACKEND_PLAN_H

#include "backend/ops.h"

static inline step plan_step(int32_t n_rows, int32_t n_outs, bool prompt)
{
    return (step){.prompt = prompt, .all = {.n = n_rows}, .out = {.n = n_outs}, .n_seqs = 1};
}

/* The count of rows to plan after n: few rows may take more scratch than many, so counts up to
 * `few` are tried one by one, then doublings, at last `most`. */
static inline int32_t plan_next_count(int32_t n, int32_t few, int32_t most)
{
    int32_t next = n < few ? n + 1 : 2 * n;
    return n < most && next > most ? most : next;
}

#endif
