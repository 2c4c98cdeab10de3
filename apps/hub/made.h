/* made.h - models that are made of others: a second name, with a system message, settings and
 * messages of their own. They have no weights.
 *
 *     STORE/made/NAME.json    {"from", "file" or "bundled", "adapters", "system", "messages",
 *                              "parameters", "license"}
 *
 * A '/' of the name is a '%' in the file's name. Files appear and are replaced by rename. What is
 * in one is for the caller to check: the store holds texts here. Any thread and any process may
 * call in.
 */
#ifndef APPS_HUB_MADE_H
#define APPS_HUB_MADE_H

#include "base/arena.h"
#include "base/err.h"

enum { MADE_BYTES_MAX = 1 << 20, MADE_MAX = 4096, MADE_ADAPTERS_MAX = 16 };

typedef struct made_model {
    const char *name;
    const char *text; /* JSON, as it was written; NUL-terminated */
    size_t n;
    int64_t when_s; /* seconds since 1970 */
} made_model;

/* The model of this name, in any case; *out: of mem. NULL: there is none. */
status made_find(const char *name, arena *mem, const made_model **out, err *e);
/* All, by name; *out: an array of mem. */
status made_list(arena *mem, const made_model **out, size_t *n, err *e);
/* Makes the model, or replaces it. E_ARG: no name for a model. */
status made_write(const char *name, const char *text, size_t n, err *e);
/* *was: there was one. */
status made_remove(const char *name, bool *was, err *e);
/* 1 to 200 letters, digits and -_.:/ ; it begins with a letter or a digit, and so does what follows
 * a '/'. */
bool made_name_valid(const char *name);
/* The weights of a made model: *path, of mem, is the file to open; NULL: the bundled model. *n_ctx:
 * the context that it asks for (num_ctx), 0: none. E_FORMAT: it does not say what it is made of;
 * E_ARG: that is not here. */
status made_weights(const made_model *m, arena *mem, const char **path, int32_t *n_ctx, err *e);
/* Its adapters (LoRA), as files: *path, of mem, [*n]. E_FORMAT: they are no list of names. */
status made_adapters(const made_model *m, arena *mem, const char ***path, size_t *n, err *e);
/* Is this a setting that such a model may have? Those of a Modelfile's PARAMETER that change
 * answers. */
bool made_setting(const char *name);

#endif
