/* draft_kind.h - what a file is as a drafter: a family that carat runs, one that it refuses, or an
 * ordinary model.
 *
 * Families look alike. A drafter that is read as one of another family loads, answers stay right,
 * and nearly every draft is wrong. So each family is recognised by its marks, and a tensor that the
 * family does not have is refused.
 */
#ifndef MODEL_DRAFT_KIND_H
#define MODEL_DRAFT_KIND_H

#include "format/gguf.h"

typedef enum draft_kind {
    DRAFT_NONE,   /* no drafter by its architecture: an ordinary model, or something else */
    DRAFT_DFLASH, /* with Laguna's dialect, and DSpark's bigram correction */
    DRAFT_MTP,    /* an assistant of Gemma 4 */
    DRAFT_NEXTN,  /* the NextN (MTP) layer of a model without the model's own layers */
    DRAFT_ALIEN   /* a drafter of a family that carat does not run */
} draft_kind;

/* By architecture, keys and names of tensors. *what, for all but DRAFT_NONE: a phrase, as in "FILE
 * is a DFlash drafter"; for aliens with the reason for the refusal. Static storage. */
draft_kind draft_kind_of(const gguf *g, const char **what);

/* E_UNSUPPORTED for an alien, with the sentence that says what it is. */
status draft_kind_check(const gguf *g, err *e);

/* Marks of other families among the names of tensors, of GGUF files and of checkpoints alike: the
 * phrase of the family, or NULL. For files whose architecture is that of a drafter. */
const char *draft_alien_tensors(const tensor_set *t);
/* The same for a name of a class or method in a configuration: "Eagle3LlamaForCausalLM", "peagle".
 */
const char *draft_alien_class(const char *name, size_t n);

#endif
