/* modelfile.h - ollama's Modelfile as what a made model is (apps/hub/made.h).
 *
 *     FROM llama            a model, or a GGUF file
 *     ADAPTER style.gguf    a LoRA adapter of it; several add up
 *     PARAMETER stop "x"    also "..." and """...""" over several lines, which have no escapes
 *     SYSTEM """..."""
 *     MESSAGE user hello
 *     LICENSE ...
 *
 * Instructions may be in any case; a line that begins with # is a comment.
 */
#ifndef APPS_MODELFILE_H
#define APPS_MODELFILE_H

#include "base/err.h"

#include <jansson.h>

/* {"from", "adapters", "system", "messages", "parameters", "license"}, owned by the caller. what:
 * the file's name. E_FORMAT: "FILE:LINE: ...", also for instructions that carat does not have, such
 * as TEMPLATE. Values of parameters are not checked. */
status modelfile_parse(json_t **out, const char *text, size_t n, const char *what, err *e);

#endif
