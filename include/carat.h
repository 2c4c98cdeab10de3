/* carat.h - the one public header of libcarat, an inference engine for language models: Gemma 4,
 * Qwen3 to 3.8 and Laguna.
 *
 * A model is an open GGUF file with its weights on a device. It is read-only, and sessions share
 * it. A session is one timeline of tokens over a model. The caller passes the whole prompt each
 * time; the session keeps the prefix that is already in its cache and computes the rest.
 *
 *     carat_error e = {0};
 *     carat_model *m;
 *     carat_session *s;
 *     if (carat_model_open("model.gguf", NULL, &m, &e) || carat_session_open(m, NULL, &s, &e))
 *         die(e.text);
 *     n = carat_tokenize(m, "Hello", 5, CARAT_TOK_BOS, ids, cap, &e);
 *     carat_generate(s, ids, n, NULL, on_event, user, NULL, &e);
 *
 * Errors: a call that can fail returns a carat_status and leaves one sentence for the user in its
 * carat_error, which may be NULL. The library never prints, exits or aborts.
 * Threads: many threads may use a model. One thread at a time may use a session or a grammar. Only
 * carat_session_cancel may come from any thread, and from a signal handler. In a callback of a
 * call, calls that compute on its session or change the timeline do nothing: E_ARG. "Any thread" at
 * a call means: also while others use the model. Ownership: what an open or take call returns is
 * the caller's, who closes or frees it: snapshots and sessions before their model. Strings in
 * structs that the library fills belong to the model or are static; the comment says which.
 * Pointers in options are read during the call only, unless the comment says otherwise. Units:
 * token ids and counts are int32_t, positions int64_t; a name that ends in _bytes, _ms or _mb says
 * its unit. Arrays of logits are f32, row-major, [rows, n_vocab].
 */
#ifndef CARAT_H
#define CARAT_H

#define CARAT_VERSION_MAJOR 0
#define CARAT_VERSION_MINOR 2
#define CARAT_VERSION_PATCH 0

#include "carat/error.h"
#include "carat/model.h"
#include "carat/lora.h"
#include "carat/text.h"
#include "carat/session.h"
#include "carat/plan.h"
#include "carat/sampling.h"
#include "carat/generate.h"
#include "carat/grammar.h"
#include "carat/embed.h"
#include "carat/compress.h"
#include "carat/drafter.h"
#include "carat/batch.h"
#include "carat/media.h"

#endif
