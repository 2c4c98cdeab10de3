/* info.h - handlers of requests about the server, its model and its tokens. */
#ifndef APPS_SERVER_INFO_H
#define APPS_SERVER_INFO_H

#include "apps/server/http/exchange.h"

void handle_health(exchange *x);
void handle_live(exchange *x);
void handle_models(exchange *x);
void handle_props(exchange *x);
void handle_slots(exchange *x);
void handle_slot(exchange *x);  /* slots.c */
void handle_loras(exchange *x); /* loras.c */
void handle_loras_set(exchange *x);
void handle_metrics(exchange *x);
void handle_tokenize(exchange *x);
void handle_detokenize(exchange *x);
void handle_tokenizer_info(exchange *x);

/* Answers with tokens, as ids or (pieces) with their texts; strs: with their texts as vLLM has it.
 */
void put_tokens(exchange *x, const int32_t *ids, int64_t n, bool pieces, bool strs);

#endif
