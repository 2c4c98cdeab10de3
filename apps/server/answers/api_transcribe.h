/* api_transcribe.h - POST /v1/audio/transcriptions: the text of speech. */
#ifndef APPS_SERVER_API_TRANSCRIBE_H
#define APPS_SERVER_API_TRANSCRIBE_H

#include "apps/server/http/exchange.h"

void handle_transcription(exchange *x);

/* Where a piece of speech ends that begins at `from` of n samples: at most 30 seconds on, in the
 * quietest place of its last quarter. */
int64_t transcript_cut(const float *at, int64_t n, int64_t from);

#endif
