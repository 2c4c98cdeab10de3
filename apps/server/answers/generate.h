/* generate.h - handlers of requests for answers, whole or streamed, and for prompts alone. */
#ifndef APPS_SERVER_GENERATE_H
#define APPS_SERVER_GENERATE_H

#include "apps/server/http/exchange.h"

void handle_generation(exchange *x, api_kind api);
void handle_count(exchange *x, api_kind api); /* the number of tokens of a conversation */
void handle_template(exchange *x);
void handle_tokens(exchange *x, bool strs); /* those of a conversation; strs: their texts, too */
/* Can the model of x, which is picked, be asked this chat? A part of one: it is short. False: p
 * says why not. */
bool generation_reads(exchange *x, const char *body, size_t n, problem *p);
/* An answer as a stream of bytes. */
typedef struct stream stream;
/* Blocks until there are bytes. 0: the end; -1: failed, or the client left. */
int64_t stream_read(stream *st, char *buf, size_t max);
void stream_close(stream *st);

#endif
