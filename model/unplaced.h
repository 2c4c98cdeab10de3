/* unplaced.h - tensors of a file, or of a checkpoint, that nothing in the model reads.
 *
 * A model that runs without one of its tensors computes another function, and no answer shows it.
 * So a tensor without a place is an error that names it, with the exception of one list: towers for
 * pictures and sound, whose outputs a text model does not need, and tables that carat computes.
 */
#ifndef MODEL_UNPLACED_H
#define MODEL_UNPLACED_H

#include "base/err.h"

/* Collects names for one sentence. Zeroed: none. */
typedef struct unplaced {
    uint64_t n;
    char names[200]; /* the first three */
} unplaced;

void unplaced_add(unplaced *u, const char *name);
/* May a tensor of that name, in GGUF or in safetensors, be left unread? */
bool unplaced_is_allowed(const char *name);
/* E_UNSUPPORTED if there are any; `kind`: "a model of qwen3". */
status unplaced_refuse(const unplaced *u, const char *path, const char *kind, err *e);

#endif
