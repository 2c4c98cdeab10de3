/* request.h - a client's request as plain data, the same for every dialect.
 *
 * A parser (api_*.c) turns one JSON body into a request. On a mistake it leaves a problem instead:
 * an HTTP status, the field, and a sentence that names the field. Parsing needs no model and no
 * connection. Everything lives in the request's arenas. Conversations become a value (text/talk.h),
 * tools JSON text in OpenAI's shape.
 */
#ifndef APPS_SERVER_REQUEST_H
#define APPS_SERVER_REQUEST_H

#include "base/arena.h"
#include "base/err.h"
#include "base/str.h"
#include "apps/media/pictures.h"
#include "text/talk.h"

/* ---- Problems ---- */

typedef struct problem {
    int status;       /* HTTP status; 0: no problem */
    const char *code; /* a word for programs, or NULL; static storage */
    char param[128];  /* the field, or "" */
    char text[1024];
    int64_t n_prompt, n_ctx; /* if the prompt exceeds the context; else 0 */
    int retry_s;             /* Retry-After; 0: none */
} problem;

/* Keeps the first problem. Returns false, so that parsers can return the call. */
bool problem_set(problem *p, int http, const char *param, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* An error of the library. The status follows from the error; the field is the first word of the
 * sentence, if that is one. */
bool problem_from(problem *p, const err *e);

/* ---- Requests ---- */

typedef enum api_kind {
    API_CHAT,
    API_COMPLETIONS,
    API_RESPONSES,
    API_MESSAGES,
    API_LLAMA,           /* llama-server's own /completion */
    API_INFILL,          /* and its /infill */
    API_OLLAMA_CHAT,     /* /api/chat */
    API_OLLAMA_GENERATE, /* /api/generate */
    API_OLLAMA_OPTIONS   /* not an endpoint: the members of `options` of these two */
} api_kind;
enum { API_KINDS = API_OLLAMA_OPTIONS };
typedef enum tool_choice { TOOLS_AUTO, TOOLS_NONE, TOOLS_REQUIRED } tool_choice;
typedef enum format_kind {
    FORMAT_TEXT,
    FORMAT_JSON_OBJECT,
    FORMAT_JSON_SCHEMA,
    FORMAT_GRAMMAR,
    FORMAT_REGEX
} format_kind;
typedef enum think_mode { THINK_DEFAULT, THINK_OFF, THINK_ON } think_mode;

/* Limits of a request. Beyond one of these the answer is 400, beyond --max-body (64 MiB) it is 413.
 * The JSON tree may take 16 MiB plus 8 times the body (arena_limit_for), and the conversation as
 * much. docs/server.md lists all.
 */
enum {
    REQUEST_MAX_DEPTH = 64,  /* of nesting; the chat formats have the same limit */
    REQUEST_MAX_STOPS = 64,  /* stop strings; each token is compared with all */
    REQUEST_MAX_STOP = 4096, /* bytes of one */
    REQUEST_MAX_BIASES = 4096,
    REQUEST_MAX_LORAS = 16, /* adapters of a model */
    REQUEST_MAX_CHOICES = 64,
    REQUEST_MAX_TOOLS = 1024,
    REQUEST_MAX_CALLS = 4096, /* of one message; the chat formats have the same limit */
    REQUEST_MAX_WORDS = 4096, /* strings of guided_choice and bad_words */
    REQUEST_MAX_LOGPROBS = 20,
    REQUEST_MAX_BREAKERS = 32, /* dry_sequence_breakers */
    REQUEST_MAX_NAME = 256,    /* bytes of a tool's name */
    REQUEST_PING_OF_SERVER = -2,
    REQUEST_MAX_PING_S = 86400,
    REQUEST_MAX_REFERENCES = 4096, /* item_reference; each is compared with every item found */
    REQUEST_MAX_WARNINGS = 32,     /* parts that were left out and are named */
    SPECULATION_MAX = 63           /* tokens drafted at once */
};

/* What parsers need of the model and the options. */
typedef struct request_limits {
    int32_t n_vocab;
    carat_sampling sampling;       /* defaults */
    bool lenient;                  /* unknown fields pass */
    bool images;                   /* the model takes images; */
    bool sounds;                   /* and sound; */
    bool could_see;                /* it takes no images, for want of a file */
    const picture_rules *pictures; /* where they may come from; NULL: requests alone */
    const char *chat_template;     /* [n_chat_template] of the model's file; NULL: none */
    size_t n_chat_template;
} request_limits;

typedef struct lora_wish {
    int32_t id;       /* -1: by name */
    const char *name; /* NULL: by id */
    float scale;
} lora_wish;

typedef struct raw_prompt { /* of /v1/completions: text, or ids if that is not NULL */
    const char *text;
    size_t n;
    const int32_t *ids;
    int64_t n_ids;
    int32_t first_picture, n_pictures; /* those of its marks (parts.h) */
} raw_prompt;

typedef struct text_bias { /* of every token of a text */
    const char *text;
    size_t n;
    float bias;
} text_bias;

typedef enum tools_shape {
    TOOLS_NESTED,
    TOOLS_FLAT,
    TOOLS_ANTHROPIC,
    TOOLS_BARE /* functions alone */
} tools_shape;
typedef struct tool_kind tool_kind; /* tool_kinds.h */

/* A tool that is declared to the model. */
typedef struct tool_form {
    const char *name;        /* as the model is told: the client's, with the namespace before it */
    const char *own, *space; /* as the client calls it; space NULL: none */
    const jtree *from;       /* has its description and its schema */
    const tool_kind *kind;   /* NULL: a function */
    int32_t origin;          /* its index in the request; below 0: it is an item's */
} tool_form;

enum { KEEP_FOREVER = -1, KEEP_DEFAULT = -2 }; /* instead of milliseconds */

typedef struct request {
    arena mem;
    api_kind api;
    const jtree *body;
    const request_limits *lim; /* inside of request_read */
    pictures pictures;         /* parts.h */
    int32_t image_tokens;      /* of each, as in carat_image_options; 0: not given */
    const char *model;         /* the client's name for it, or "" */
    int64_t keep_ms;           /* keep_alive: how long the model stays loaded after it */
    bool stream, include_usage, progress, echo;
    int32_t n;          /* answers to each prompt */
    int64_t max_tokens; /* 0: not given */
    carat_sampling sampling;
    bool seed_given;
    const char **stop;
    int32_t n_stop;
    bool logprobs;
    carat_speculation speculation;
    const char *prediction; /* the answer as the client expects it; NULL: not given */
    size_t n_prediction;
    carat_tokens predicted; /* its tokens, made with those of the rules */
    const char *sparse;     /* as carat_generate_options; NULL: not given */
    lora_wish *lora;        /* [n_loras]: adapters; NULL: not given */
    carat_lora_use *loras;  /* the same by their ids, made with the tokens of the rules */
    int32_t n_loras;
    bool compress_given; /* the client says whether its prompt is shortened: */
    bool compresses;
    carat_compress_options compress;
    /* Rules on tokens. token_rules.c turns the texts into tokens. */
    text_bias *text_bias;
    int32_t n_text_bias;
    int32_t *stop_ids, n_stop_ids; /* they end the answer */
    int32_t *only_ids, n_only_ids; /* no other token is sampled; NULL: any */
    const char **bad_words;
    int32_t n_bad_words;
    carat_tokens *bad; /* their tokens */
    int32_t n_bad;
    int32_t min_tokens;
    int32_t prompt_logprobs; /* of each token of the prompt, the best so many; -1: none */
    bool no_answer;          /* max_tokens 0: the prompt alone */

    /* Conversations. */
    arena turns; /* memory of the conversation, beside what it shares with the body */
    carat_talk talk;
    str tools;       /* JSON; empty: none */
    tool_form *tool; /* [n_tools]: those of `tools`, in the same order */
    int32_t n_tools;
    bool *tool_dropped; /* of each tool of the body's list: it was left out; NULL: none was */
    str left_out;       /* JSON strings, separated by commas: parts of the request that have no
                           effect, for the log and the answer */
    int32_t n_left_out;
    const char *prefill; /* the words with which the answer begins, or NULL */
    size_t n_prefill;
    tool_choice choice;
    const char *only; /* the one tool that may be called, or NULL */
    str allowed;      /* the tools that may be called, as `tools`; empty: all */
    bool one_call;    /* no calls in parallel */
    think_mode think;
    double effort;           /* share of the largest thinking budget; 0: not given */
    const char *effort_name; /* for templates that know levels; NULL: not given */
    int64_t think_max;       /* tokens of thought; -1: not given */
    int64_t reserve;         /* tokens kept for the answer; -1: not given */
    format_kind format;
    const char *form_field; /* the field that asks for the format */
    const char *schema;     /* JSON schema, grammar or expression; NULL: none */
    size_t n_schema;
    const char *manner;     /* a sentence for the end of the system message; NULL: none */
    bool preserve_thinking; /* keep the thoughts of finished tool turns */
    bool drop_thinking;     /* the client says not to */
    bool no_generation_prompt;
    bool continue_last; /* the answer continues the last message */
    bool thought;       /* that message has a thought already */
    bool functions;     /* the client uses `functions`, the predecessor of `tools` */

    /* /v1/responses. */
    int64_t ping_s;       /* silence of a stream before a ping; -1 and 0: none */
    bool background;      /* the answer goes on without its client; needs store */
    bool store;           /* the client lets the response be kept */
    const char *previous; /* previous_response_id, or NULL */
    /* Set by the caller: the items of that conversation, and those of the store that item_reference
     * names. Arrays, or NULL. */
    const jtree *history, *referred;

    /* Texts to continue: /v1/completions, /completion, ollama's `raw`. */
    raw_prompt *prompt;
    int32_t n_prompts;  /* 0: a conversation, or a gap */
    bool evaluate_only; /* the prompt is computed into the cache, and nothing is shown */
    bool return_tokens; /* ids of the answer's tokens */
    /* A gap to fill: /infill, ollama's `suffix`. */
    bool infill;
    raw_prompt before, after, typed; /* typed: what the user wrote at the end of `before` */
    struct {
        raw_prompt text;
        const char *name;
    } * extra; /* [n_extra]: other files; name or NULL */
    int32_t n_extra;
    /* ollama. */
    bool load_only;         /* no prompt: the model is loaded, or unloaded */
    bool unload;            /* keep_alive is 0 */
    bool thinks_by_default; /* where the model can */
    bool truncate;          /* a prompt that is longer than the context is cut (fit.h) */
    bool shift;             /* and the answer gets some room */
    int64_t num_keep;       /* tokens at the beginning of a raw prompt that are not cut; -1: all */
} request;

/* Place of a turn that is an item of request.history. */
#define ORIGIN_STORED "previous_response_id"
enum { ORIGIN_BEFORE = -2 };

/* Reads a body in two steps, because the limits are those of the model that it names. request_open
 * fills rq->body, rq->model and rq->keep_ms of *rq, zeroed by the caller; request_read fills the
 * rest. False: a problem. The caller always calls request_free. */
bool request_open(request *rq, api_kind api, const char *body, size_t n, problem *p);
bool request_read(request *rq, const request_limits *lim, problem *p);
/* "300ms", "5m", "1h30m": as ollama and Go write durations; a number alone counts seconds.
 * Negative: KEEP_FOREVER. False: none of these. */
bool keep_alive_parse(const char *text, int64_t *ms);
/* The field of a body, in seconds or as such text; KEEP_DEFAULT if it is absent. */
bool keep_alive_read(const jtree *body, int64_t *ms, problem *p);
/* Both steps. */
bool request_parse(request *rq, api_kind api, const char *body, size_t n, const request_limits *lim,
                   problem *p);
void request_free(request *rq);

/* Like problem_from, for errors of rendering. These name turns as the client does, and "tools[1]"
 * by its index in rq->tools; the problem names the client's own index. */
bool problem_of(const request *rq, problem *p, const err *e);

/* ---- One dialect each: called by request_parse with rq->body an object ---- */

bool chat_parse(request *rq, const request_limits *lim, problem *p);
bool completions_parse(request *rq, const request_limits *lim, problem *p);
bool responses_parse(request *rq, const request_limits *lim, problem *p);
bool messages_parse(request *rq, const request_limits *lim, problem *p);
bool llama_parse(request *rq, const request_limits *lim, problem *p);
bool infill_parse(request *rq, const request_limits *lim, problem *p);
bool ollama_chat_parse(request *rq, const request_limits *lim, problem *p);
bool ollama_generate_parse(request *rq, const request_limits *lim, problem *p);
/* ollama's `options`, an object or NULL, into *rq. */
bool ollama_settings_read(request *rq, const jtree *options, const request_limits *lim, problem *p);

/* ---- Reading fields (fields.c). An absent or null field leaves *out unchanged. False: a problem.
 */

/* [{"id": N, "scale": S}], or by "name": adapters. field: its name for sentences. */
bool read_lora_list(const jtree *list, const char *field, arena *mem, lora_wish **out, int32_t *n,
                    problem *p);
bool field_text(problem *p, const jtree *o, const char *key, const char **out);
bool field_bool(problem *p, const jtree *o, const char *key, bool *out);
bool field_int(problem *p, const jtree *o, const char *key, int64_t min, int64_t max, int64_t *out);
bool field_real(problem *p, const jtree *o, const char *key, double min, double max, double *out);
/* A field of a small dialect: one that is read, or changes nothing. apis: a bit for each. */
typedef struct field_name {
    const char *name;
    unsigned apis;
} field_name;
/* Refuses a member that the list, which ends with a NULL name, lacks for that API. Empty members
 * pass. known.c has the same rule for the large dialects. */
bool fields_known(problem *p, const jtree *o, const field_name *list, int api);
/* Parses the body of a request, which must be an object of JSON. Limits mem by n. */
bool body_parse(arena *mem, const char *body, size_t n, const jtree **out, problem *p);
/* *out: the member, or NULL. Another kind is a problem. */
bool field_kind(problem *p, const jtree *o, const char *key, jtree_kind kind, const jtree **out);
/* Token ids below n_vocab, of mem. */
bool field_ids(arena *mem, const char *field, const jtree *list, int32_t n_vocab, int32_t **out,
               int64_t *n, problem *p);
/* The same for a prompt, which has at least one. */
bool field_prompt_ids(arena *mem, const char *field, const jtree *list, int32_t n_vocab,
                      raw_prompt *out, problem *p);
/* The number as it is spelled. False: not a (whole) number, or not in min..max. */
bool tree_int(const jtree *v, int64_t min, int64_t max, int64_t *out);
bool tree_real(const jtree *v, double min, double max, double *out);
bool tree_says(const jtree *v, const char *word); /* v is this string */
bool tree_is_empty(const jtree *v);               /* null, "", [] or {}: it asks for nothing */
/* False: o (NULL: nothing) has a member that is not empty and not one of the names. */
bool check_members(const jtree *o, const char *field, const char *const *names, size_t n,
                   problem *p);

/* Fields that several dialects share. */
bool read_common(request *rq, const request_limits *lim, problem *p); /* model, stream, sampling */
/* Each of these reads members of o, which is the body or an object in it (sampling.c). A member
 * that o has overwrites the setting in rq; a member that o lacks leaves the setting alone. */
bool read_sampling(request *rq, const jtree *o, const request_limits *lim, problem *p);
bool read_token_rules(request *rq, const jtree *o, const request_limits *lim, problem *p);
bool read_stops(request *rq, const char *key, problem *p);
/* stream_options.include_usage, and OpenRouter's usage.include. */
bool read_usage(request *rq, const jtree *stream_options, problem *p);
/* thinking, think, chat_template_kwargs, budgets; and `reasoning`. */
bool read_thinking(request *rq, const request_limits *lim, problem *p);
bool read_reasoning(request *rq, const request_limits *lim, problem *p);
bool read_think(request *rq, const jtree *o, const char *key, const char *field, problem *p);
bool read_verbosity(request *rq, const jtree *o, const char *field, problem *p);
bool read_effort(request *rq, const jtree *o, const char *key, const char *field, problem *p);
/* Structured output (forms.c): the dialect's own field; the fields of other servers. */
bool read_format(request *rq, const jtree *f, const char *field, bool flat, problem *p);
bool read_forms(request *rq, problem *p);
bool read_schema(request *rq, const char *field, const jtree *v, problem *p);
/* `prompt`: a text, token ids, or a list of these (api_completions.c). */
bool read_prompt(request *rq, const request_limits *lim, problem *p);
/* prompt_logprobs, vLLM's. */
bool read_prompt_logprobs(request *rq, problem *p);
/* The smallest of the limits given; -1 is no limit. */
bool read_max_tokens(request *rq, const char *const *keys, problem *p);
/* add_generation_prompt, continue_final_message. Called once the last message is known. */
bool read_continue(request *rq, bool ends_with_assistant, problem *p);
/* Refuses fields that nobody reads and that are not harmless (known.c). */
bool check_fields(const request *rq, const request_limits *lim, problem *p);
/* The i-th row of the table for an endpoint. False: past the end. */
typedef struct field_row {
    const char *name, *kind; /* "read", "harmless", "only" */
    const char *values;      /* of "only" and "read": as known.c has them */
} field_row;
bool field_row_at(size_t i, api_kind api, field_row *row);
/* Tools in one of three shapes become rq->tools. tools.c says which types are left out. */
bool read_tools(request *rq, tools_shape shape, problem *p);
/* The tool that the model knows by this name, or NULL. */
const tool_form *request_tool(const request *rq, const char *name);
/* Records that a part of the request has no effect. */
void leave_out(request *rq, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Records the members of the body that no parser has read (known.c). */
void say_unread(request *rq);
/* The item of /v1/responses that an item_reference of the input names; another item itself. NULL:
 * there is none. */
const jtree *request_item(const request *rq, const jtree *item);
bool read_tool_choice(request *rq, tools_shape shape, problem *p);
/* Copies into the arena. False: no memory. */
bool keep_text(request *rq, problem *p, const char *s, size_t n, const char **out);

#endif
