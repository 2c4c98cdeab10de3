/* api_embed.h - handlers of requests for embeddings, a path each (embed_form.h). */
#ifndef APPS_SERVER_API_EMBED_H
#define APPS_SERVER_API_EMBED_H

#include "apps/server/http/exchange.h"

void handle_openai_embeddings(exchange *x);
void handle_llama_embedding(exchange *x);
void handle_ollama_embed(exchange *x);
void handle_ollama_embeddings(exchange *x);

#endif
