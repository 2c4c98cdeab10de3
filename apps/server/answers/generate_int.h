/* generate_int.h - one request for answers, from its fields to its stream. prompts.c makes prompts
 * and jobs of the request; generate.c runs them and sends what comes back.
 */
#ifndef APPS_SERVER_GENERATE_INT_H
#define APPS_SERVER_GENERATE_INT_H

#include "apps/server/answers/begin.h"
#include "apps/server/answers/constrain.h"
#include "apps/server/answers/generate.h"
#include "apps/server/answers/live.h"
#include "apps/server/answers/recording.h"
#include "apps/server/answers/shorten.h"

typedef struct prompt {
    int32_t *ids;
    int64_t n; /* with soft tokens, also before they are there */
    bool starts_thinking, no_thoughts;
    int64_t n_ids;         /* before pictures were expanded; */
    const int32_t *images; /* [n_images] of these: numbers in request.pictures */
    int32_t n_images;
} prompt;

struct stream {
    exchange *x;
    api_kind api;
    const dialect *d;
    request rq;
    beginning made; /* the model is made of another */
    answer a;
    prompt *prompt;
    int32_t n_prompts;
    live_job *job;
    constraint **held; /* one per job */
    live *live;
    str history; /* the items of the conversation that the request continues, as JSON */
    str out;
    size_t at; /* bytes of out that were sent */
    double last_ms, asked_ms, load_ms;
    recording *kept;   /* the stream outlives its connection; NULL: it does not */
    bool background;   /* of /v1/responses: its client may ask for it from the beginning */
    bool alone;        /* its client has had an answer and gets no stream */
    bool told;         /* the store has it */
    bool queued;       /* and says so */
    char id[ID_BYTES]; /* that the client was told before there was an answer, or "" */
    bool over;
    bool again;            /* its model was loaded again, for an adapter */
    bool loading;          /* the client gets pings before there is an answer */
    bool read;             /* the request's fields are */
    shortening *shortened; /* NULL: the prompts are as the client sent them */
    cut_report cut;        /* what did not fit into the context */
    carat_media **media;   /* [pictures of the request]; NULL: not opened */
};

bool is_conversation(const request *rq); /* not a raw prompt */
/* Renders the request's conversation to tokens, in the request's memory. text may be NULL; else it
 * gets the text of the prompt. */
bool prompt_render(stream *st, prompt *out, str *text, problem *p);
/* The tokens that the request's prompt would have with this conversation instead of its own. */
bool prompt_count(stream *st, const carat_talk *t, int64_t *n, problem *p);
/* Prompt compression, where it is wanted; repeat the call after PICK_WAITS. The results take the
 * place of what the client sent. */
pick_state prompts_shorten(stream *st, int timeout_ms, problem *p);
bool prompts_make(stream *st, problem *p);
/* Prompts to jobs with budgets and constraints. */
bool prompts_to_jobs(stream *st, problem *p);

#endif
