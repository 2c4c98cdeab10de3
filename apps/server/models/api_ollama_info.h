/* api_ollama_info.h - handlers of ollama's requests about models and about the server. */
#ifndef APPS_SERVER_API_OLLAMA_INFO_H
#define APPS_SERVER_API_OLLAMA_INFO_H

#include "apps/server/http/exchange.h"

void handle_ollama_version(exchange *x);
void handle_ollama_tags(exchange *x);
void handle_ollama_ps(exchange *x);
void handle_ollama_show(exchange *x);
void handle_ollama_delete(exchange *x);
void handle_ollama_pull(exchange *x);   /* api_ollama_pull.c */
void handle_ollama_create(exchange *x); /* api_ollama_make.c */
void handle_ollama_copy(exchange *x);
void handle_ollama_refused(exchange *x); /* push, blobs */
/* "/": the chat page for browsers, a word for ollama's clients. */
void handle_root(exchange *x);

/* May this server's clients change the store? Not if other machines reach it without a key. False:
 * a problem. */
bool ollama_may_change(const exchange *x, problem *p);

/* A body of these endpoints: {"model": NAME}, or the older {"name": NAME}, or a copy's {"source":
 * NAME}. */
typedef struct ollama_body {
    arena mem;
    const jtree *body;
    const char *name; /* without ":latest" */
} ollama_body;
/* False: a problem. The caller always calls ollama_body_free. */
bool ollama_body_read(ollama_body *b, const char *body, size_t n, problem *p);
void ollama_body_free(ollama_body *b);
/* ollama's clients add ":latest" to names without a tag. *name: without it, in mem. */
bool ollama_plain_name(arena *mem, const char **name, problem *p);

#endif
