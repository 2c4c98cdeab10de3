/* api_recording.h - llama-server's paths for streams that outlive their connection. */
#ifndef APPS_SERVER_API_RECORDING_H
#define APPS_SERVER_API_RECORDING_H

#include "apps/server/http/exchange.h"

void handle_stream(exchange *x);         /* GET /v1/stream?conv_id=ID&from=BYTE, or Last-Event-ID */
void handle_stream_delete(exchange *x);  /* DELETE /v1/stream?conv_id=ID */
void handle_streams_lookup(exchange *x); /* POST /v1/streams/lookup */

#endif
