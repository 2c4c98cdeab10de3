/* find.h - what --draft names: a method, a drafter's file, or nothing.
 */
#ifndef SPEC_FIND_H
#define SPEC_FIND_H

#include "spec/drafter.h"

typedef struct draft_found {
    const draft_class *class; /* NULL: no drafter was wished for */
    gguf file;                /* of classes with weights: open. draft_model_open takes it */
    char why[160]; /* the reason, as a phrase: "dflash-draft.gguf lies beside the model" */
} draft_found;

/* wish: as carat_model_options.draft. target_path: the target's file; NULL: it has none, so nothing
 * lies beside it. "auto" never fails for a drafter that does not fit: it takes the next best, at
 * last lookup, and says why. E_IO, E_FORMAT, E_UNSUPPORTED, E_ARG: a named file or directory that
 * is not there, is damaged, is no drafter, or was made for another target. */
status draft_find(const char *wish, const model *target, const char *target_path, draft_found *out,
                  err *e);
/* The same among drafters in memory. "auto" takes the first that fits; the name of one takes that
 * one, which must fit. OK with class NULL: the wish names none of them, or none fits. */
status draft_find_held(const char *wish, const model *target, const carat_bytes *held, int32_t n,
                       draft_found *out, err *e);
void draft_found_free(draft_found *f); /* safe on a zeroed or freed one */

#endif
