/* head.h - what the first bytes of a GGUF file say about the rest, before that is here. */
#ifndef APPS_HUB_HEAD_H
#define APPS_HUB_HEAD_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* E_UNSUPPORTED: carat runs neither models nor drafters of the file's architecture; the sentence
 * names both. OK also where the bytes do not say it, or are no GGUF file: opening the file tells
 * that. name: of the file. */
status model_head_check(const void *bytes, size_t n_bytes, const char *name, err *e);

typedef struct head_tensor {
    const char *name; /* not NUL-terminated */
    size_t n_name;
    uint32_t type;
    uint64_t n, at; /* elements; where they begin in the file */
} head_tensor;
typedef void (*head_tensor_fn)(void *user, const head_tensor *t);

/* Does the head of a GGUF file, its keys and its list of tensors, end within the bytes? *end:
 * where; then `each` is called for every tensor. E_LIMIT: not yet; E_FORMAT: these bytes begin no
 * head. */
status head_measure(const void *bytes, size_t n_bytes, const char *name, size_t *end,
                    head_tensor_fn each, void *user, err *e);
/* The value of a key, a text or a whole number. False: it is not within the bytes, or another kind;
 * then *out keeps its value. */
bool head_text(const void *bytes, size_t n_bytes, const char *name, char *out, size_t cap);
bool head_number(const void *bytes, size_t n_bytes, const char *name, uint64_t *out);
/* Whether the list of flags of a key has one that is set. */
bool head_any(const void *bytes, size_t n_bytes, const char *name);

#endif
