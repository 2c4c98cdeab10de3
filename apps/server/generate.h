/* generate.h - requests for answers, whole or as streams, and for prompts alone. */
#ifndef APPS_SERVER_GENERATE_H
#define APPS_SERVER_GENERATE_H

#include "apps/server/exchange.h"

void handle_generation(exchange *x, api_kind api);
void handle_count(exchange *x, api_kind api); /* how many tokens a conversation is */
void handle_template(exchange *x);
/* A stream: bytes to send, as they come. */
typedef struct stream stream;
/* Blocks until there is something. 0: it is over; -1: it failed, or the client went away. */
int64_t stream_read(stream *st, char *buf, size_t max);
void stream_close(stream *st);

#endif
