/* request.h - what a client asked for, as plain data, whichever dialect it spoke.
 *
 * A parser (api_*.c) reads one JSON body into a request or leaves a problem: a status of 4xx, the
 * field, and a sentence that names it. Parsing needs no model, no connection and no thread; all of
 * it lives in the request's arena. Conversations become `messages` and `tools` in the OpenAI
 * shape, the text that carat_chat_render takes.
 */
#ifndef APPS_SERVER_REQUEST_H
#define APPS_SERVER_REQUEST_H

#include "base/arena.h"
#include "base/err.h"
#include "base/str.h"
#include "text/jtree.h"

/* ---- What is wrong ---- */

typedef struct problem {
    int status;       /* of HTTP; 0: nothing is wrong */
    const char *code; /* a word for programs, or NULL; static storage */
    char param[128];  /* the field, or "" */
    char text[1024];
    int64_t n_prompt, n_ctx; /* of a context that is too small; else 0 */
    int retry_s;             /* Retry-After; 0: none */
} problem;

/* Keeps the first problem; returns false, so that a parser can return it. */
bool problem_set(problem *p, int http, const char *param, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* What the library refused: the status follows from the kind of error, the field from the sentence
 * where it begins with one. */
bool problem_from(problem *p, const err *e);

/* ---- What is asked for ---- */

typedef enum api_kind { API_CHAT, API_COMPLETIONS, API_RESPONSES, API_MESSAGES } api_kind;
typedef enum tool_choice { TOOLS_AUTO, TOOLS_NONE, TOOLS_REQUIRED } tool_choice;
typedef enum format_kind {
    FORMAT_TEXT,
    FORMAT_JSON_OBJECT,
    FORMAT_JSON_SCHEMA,
    FORMAT_GRAMMAR,
    FORMAT_REGEX
} format_kind;
typedef enum think_mode { THINK_DEFAULT, THINK_OFF, THINK_ON } think_mode;

/* The limits of a request; beyond one it is refused with 400, beyond --max-body (64 MiB) with 413.
 * Its JSON tree may take 16 MiB and 8 times the body (base/arena.h), whatever it consists of. */
enum {
    REQUEST_MAX_DEPTH = 64,  /* of nesting: what the chat formats take */
    REQUEST_MAX_STOPS = 64,  /* stop strings: each is looked for at every token */
    REQUEST_MAX_STOP = 4096, /* bytes of one */
    REQUEST_MAX_BIASES = 4096,
    REQUEST_MAX_CHOICES = 64,
    REQUEST_MAX_TOOLS = 1024,
    REQUEST_MAX_WORDS = 4096, /* to choose one of */
    REQUEST_MAX_NAME = 256    /* bytes of a tool's name */
};

/* What a parser must know of the model. */
typedef struct request_limits {
    int32_t n_vocab;
    carat_sampling sampling; /* where the request says nothing */
    bool lenient;            /* unknown fields pass */
} request_limits;

typedef struct raw_prompt { /* of /v1/completions: text, or ids if that is not NULL */
    const char *text;
    size_t n;
    const int32_t *ids;
    int64_t n_ids;
} raw_prompt;

typedef struct request {
    arena mem;
    api_kind api;
    const jtree *body;
    const char *model; /* as the client calls it; "" if it did not */
    bool stream, include_usage, progress, echo;
    int32_t n;          /* answers to each prompt */
    int64_t max_tokens; /* 0: not said */
    carat_sampling sampling;
    bool seed_given;
    const char **stop;
    int32_t n_stop;
    bool logprobs;

    /* Conversations. */
    str messages, tools; /* JSON; tools empty: none */
    const char *prefill; /* the words with which the answer begins, or NULL */
    size_t n_prefill;
    tool_choice choice;
    const char *only; /* the one tool that must be called, or NULL */
    str allowed;      /* as `tools`: those that may be called; empty: all */
    bool one_call;    /* no calls in parallel */
    think_mode think;
    double effort;     /* share of the largest thinking budget; 0: not said */
    int64_t think_max; /* tokens of thought; -1: not said */
    int64_t reserve;   /* tokens kept for the answer; -1: not said */
    format_kind format;
    const char *form_field; /* that asked for the format */
    const char *schema;     /* JSON schema, grammar or expression; NULL: none */
    size_t n_schema;
    bool preserve_thinking; /* past thoughts of finished tool turns stay in the prompt */
    bool no_generation_prompt;
    bool continue_last; /* the last message is how the answer begins */
    bool thought;       /* and the thought before it is given */
    bool functions;     /* calls are asked for, and told, in the older way */
    str origin;         /* int32_t per message: its place in the request, -1 none */
    str tool_origin;    /* the same per tool */

    /* /v1/completions. */
    raw_prompt *prompt;
    int32_t n_prompts;
} request;

/* Fills *rq (a caller's zeroed one) from a body, or leaves a problem. request_free in any case. */
bool request_parse(request *rq, api_kind api, const char *body, size_t n, const request_limits *lim,
                   problem *p);
void request_free(request *rq);

/* A sentence of the library's about "messages[2]" or "tools[1]": those are numbered as they were
 * rendered, and the client must read its own numbers. */
bool problem_of(const request *rq, problem *p, const err *e);

/* ---- One dialect each: called by request_parse with rq->body an object ---- */

bool chat_parse(request *rq, const request_limits *lim, problem *p);
bool completions_parse(request *rq, const request_limits *lim, problem *p);
bool responses_parse(request *rq, const request_limits *lim, problem *p);
bool messages_parse(request *rq, const request_limits *lim, problem *p);

/* ---- Reading fields (fields.c). All: absent and null leave *out as it was. False: a problem. ----
 */

bool field_text(problem *p, const jtree *o, const char *key, const char **out);
bool field_bool(problem *p, const jtree *o, const char *key, bool *out);
bool field_int(problem *p, const jtree *o, const char *key, int64_t min, int64_t max, int64_t *out);
bool field_real(problem *p, const jtree *o, const char *key, double min, double max, double *out);
/* *out: the member of this kind, or NULL. */
bool field_kind(problem *p, const jtree *o, const char *key, jtree_kind kind, const jtree **out);
/* A number from its spelling; false if it is none, no whole one, or outside of min..max. */
bool tree_int(const jtree *v, int64_t min, int64_t max, int64_t *out);
bool tree_real(const jtree *v, double min, double max, double *out);
bool tree_says(const jtree *v, const char *word); /* a string, this one */

/* Fields that several dialects share. */
bool read_common(request *rq, const request_limits *lim, problem *p); /* model, stream, sampling */
bool read_stops(request *rq, const char *key, problem *p);
bool read_thinking(request *rq, problem *p); /* thinking, chat_template_kwargs, budgets */
bool read_effort(request *rq, const jtree *o, const char *key, const char *field, problem *p);
/* The answer has a form (forms.c): the dialect's own field for it, then everybody else's. */
bool read_format(request *rq, const jtree *f, const char *field, bool flat, problem *p);
bool read_forms(request *rq, problem *p);
/* The least of the limits given; -1 is none. */
bool read_max_tokens(request *rq, const char *const *keys, problem *p);
/* add_generation_prompt, continue_final_message: called when the last message is known. */
bool read_continue(request *rq, bool ends_with_assistant, problem *p);
/* known.c: what is neither read nor harmless is refused by its name. */
bool check_fields(const request *rq, const request_limits *lim, problem *p);
/* The i-th row of an endpoint in its table, for tests. False: there are no more. */
typedef struct field_row {
    const char *name, *kind; /* "read", "harmless", "only" */
    const char *values;      /* of "only": what is accepted, between bars */
} field_row;
bool field_row_at(size_t i, api_kind api, field_row *row);
/* Tools in one of three shapes become rq->tools; unknown kinds of tools are left out where the
 * dialect says so. */
typedef enum tools_shape { TOOLS_NESTED, TOOLS_FLAT, TOOLS_ANTHROPIC } tools_shape;
bool read_tools(request *rq, tools_shape shape, problem *p);
bool read_tool_choice(request *rq, tools_shape shape, problem *p);
/* Copies into the arena; false: no memory, which is a problem. */
bool keep_text(request *rq, problem *p, const char *s, size_t n, const char **out);

#endif
