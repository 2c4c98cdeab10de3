/* ollama_model.h - models as ollama's clients list and show them: data to JSON. No connection. */
#ifndef APPS_SERVER_OLLAMA_MODEL_H
#define APPS_SERVER_OLLAMA_MODEL_H

#include "apps/server/answers/begin.h"
#include "base/str.h"

#include "carat.h"

/* What is not known is NULL, "" or 0. */
typedef struct ollama_model {
    const char *name;
    const char *digest; /* SHA-256 in hexadecimal; "": one is made of the name */
    const char *family, *quant;
    const char *parent; /* the model that it is made of */
    int64_t when_s;     /* seconds since 1970; 0: the start of 1970 */
    uint64_t n_bytes, n_params;
    int32_t n_ctx, n_embd;
    bool completes, embeds, calls, thinks, fills, sees, hears; /* capabilities */
    /* While it is loaded. */
    int64_t until_s; /* when it is unloaded; 0: never */
    uint64_t gpu_bytes;
} ollama_model;

/* The capabilities and sizes of an open model. */
void ollama_describe(ollama_model *out, const carat_model *m);
/* An item of /api/tags; loaded: of /api/ps. */
void ollama_put_model(const ollama_model *m, bool loaded, str *o);
/* The answer to /api/show. made: what `about` adds to m, its name NULL where that is nothing.
 * verbose: lists of the metadata in full. */
void ollama_put_show(const ollama_model *about, const carat_model *m, const beginning *made,
                     bool verbose, str *o);

#endif
