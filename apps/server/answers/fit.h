/* fit.h - prompts of ollama's clients that are longer than the context: what of them is left out.
 *
 * These clients send whole histories and rely on the server to drop the oldest messages. carat says
 * what it left out, in the answer and in the log. The other dialects refuse such a prompt, because
 * their clients shorten it themselves.
 *
 *     /api/chat            the oldest messages; never system messages, tools, the last user
 *                          message or the last message; a call and its results together
 *     /api/generate        the beginning of the prompt's text; never its system message
 *     /api/generate, raw   tokens after the first num_keep ones
 */
#ifndef APPS_SERVER_FIT_H
#define APPS_SERVER_FIT_H

#include "apps/server/answers/generate_int.h"

/* Called with *q, the prompt of the whole request. Afterwards *q fits, or p says why it cannot.
 * A prompt that fits already stays as it is, unless its answer would have very little room.
 * `truncate` false in the request changes nothing but the error. */
bool fit_prompt(stream *st, prompt *q, problem *p);

#endif
