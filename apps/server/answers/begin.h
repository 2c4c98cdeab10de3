/* begin.h - models made of others (apps/hub/made.h), as requests name them: the model that answers,
 * and what stands in for what a request does not say. For every dialect.
 */
#ifndef APPS_SERVER_BEGIN_H
#define APPS_SERVER_BEGIN_H

#include "apps/server/dialects/request.h"

typedef struct beginning {
    arena mem;
    const char *name;      /* of the made model, as it is there; NULL: the request names none */
    const char *from;      /* the model that answers */
    const char *system;    /* or NULL */
    const jtree *messages; /* an array of {"role", "content"} in front of the request's, or NULL */
    const jtree *settings; /* as ollama's `options`, or NULL */
    const jtree *adapters; /* an array of files, or NULL */
    const char *license;   /* or NULL */
    const jtree *body;     /* all of it */
    int64_t when_s;
} beginning;

/* Finds the made model of this name, if there is one. False: it is damaged, or no memory. The
 * caller always calls beginning_free. */
bool beginning_find(beginning *b, const char *name, problem *p);
void beginning_free(beginning *b); /* safe on a zeroed or freed one */
/* Checks what a made model is to be: the text of its file, or the body of /api/create. `from` stays
 * unchecked, but it must be there. Strings belong to b->mem. */
bool beginning_check(beginning *b, const jtree *body, problem *p);
/* What readers of the request shall take for their defaults. own: of the same life as *lim. */
bool beginning_limits(const beginning *b, request *own, request_limits *lim, problem *p);
/* After the request was read: sets what it left open, by *own of beginning_limits. */
bool beginning_set(request *rq, const request *own, problem *p);
/* Appends what comes before the conversation of a request, and its turns. system: the server's own,
 * or NULL; that of the made model comes before it. out->bad: no memory. */
void beginning_put(const beginning *b, const carat_talk *t, const char *system, carat_talk *out);
/* Puts a text, which must stay, at the end of the system message; without one, with one of it. */
void beginning_add(carat_talk *t, const char *text);
/* Appends `name value` lines as ollama shows them: of settings, `stop` once for each string. head:
 * before each line. */
void beginning_put_settings(const beginning *b, const char *head, str *out);

#endif
