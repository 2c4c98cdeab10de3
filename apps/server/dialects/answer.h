/* answer.h - the answers to one request as they grow, and the dialects that write them.
 *
 *     events from the batch  ->  answers_take  ->  choices made of parts
 *                             ->  dialect.event   the same, as an event of a stream
 *
 * Only the connection's thread uses an answer. A part is a stretch of text of one kind: reasoning,
 * content or a tool call. Streams and whole answers are written from the same parts, so their text
 * is equal.
 */
#ifndef APPS_SERVER_ANSWER_H
#define APPS_SERVER_ANSWER_H

#include "apps/compress.h"
#include "apps/server/dialects/request.h"

enum { ID_BYTES = 48 };

typedef enum part_kind { PART_REASONING, PART_TEXT, PART_CALL } part_kind;

typedef struct part {
    part_kind kind;
    str text;          /* of a call: its arguments, a JSON object; open: their beginning */
    bool open;         /* a call that is not complete: streams tell it in pieces. Still open when
                          another part follows, it is no call */
    char *name;        /* of a call */
    char id[ID_BYTES]; /* of a call, as the dialect spells ids; else of the item (responses) */
    int32_t token_from, token_to; /* of text, with logprobs: its tokens in the choice */
    int32_t *span;                /* of a complete call: its tokens, marks included */
    int64_t n_span;
} part;

typedef struct id_span {
    int32_t *at;
    int32_t n, cap;
    bool whole; /* from the opening mark to the closing one */
} id_span;

typedef struct token_entry {
    int32_t id;
    float logprob;
    int32_t n_top;
    int32_t rank; /* of a prompt's token: 1 is the likeliest; 0: the first, which has no logprob */
    carat_logprob top[20];
} token_entry;

typedef struct choice {
    part *part;
    int32_t n_parts, cap_parts, n_calls; /* n_calls: complete ones */
    int64_t n_sampled;                   /* tokens so far */
    /* With logprobs: tokens whose text has been shown, and those whose text is still held. */
    token_entry *token;
    int32_t n_tokens, n_shown, cap_tokens;
    size_t n_over;       /* of the last one shown: the bytes at its end whose text is still held */
    token_entry *prompt; /* with prompt logprobs: its tokens */
    int32_t n_prompt, cap_prompt;
    bool prompt_report; /* a stream has said what there is to say of them */
    int64_t n_chars;    /* in the old layout of logprobs: characters of the tokens told so far */
    id_span span;       /* the tokens of the call being sampled */
    bool over, failed;
    carat_finish finish;
    char *stop; /* the stop string met, or NULL */
    bool by_stop_id;
    int32_t stop_id; /* the token of stop_token_ids that ended the answer */
    carat_timings t;
} choice;

/* One thing that happened to one choice: an event of the engine, or its end. */
typedef struct choice_event {
    int32_t choice;
    bool done; /* the last one: `status` and `timings` are valid, else `ev` */
    carat_event ev;
    carat_status status;
    const char *error;
    carat_timings timings;
} choice_event;

/* What the writers need of the model. Read-only. */
typedef struct answer_model {
    const char *name;         /* shown if the request has none */
    const carat_model *model; /* for the bytes of tokens; may be NULL in tests */
    int32_t marks[16];        /* ids of chat markers, which have no text */
    int32_t n_marks;
    int32_t call_open, call_close; /* the marks around a call; -1: none */
} answer_model;

/* What was left out of a prompt that is longer than the context; zeroed: nothing. */
typedef struct cut_report {
    int32_t n_messages;        /* of a conversation */
    int64_t n_tokens, n_bytes; /* n_bytes: of one text, at its beginning */
} cut_report;

typedef struct answer {
    const request *rq;
    const answer_model *m;
    char id[ID_BYTES];
    int64_t created; /* seconds since 1970 */
    choice *choice;
    int32_t n;
    bool bad;         /* out of memory */
    double start_ms;  /* clock_ms when the request came */
    double load_ms;   /* of these: until the model was there */
    int64_t n_prompt; /* tokens; known before the timings */
    compression_report shorter;
    cut_report cut;
    /* Of the dialect's stream. */
    int32_t sequence;  /* responses: number of the next event */
    int32_t open_part; /* messages, responses: the part whose block is open, -1: none */
} answer;

bool answers_init(answer *a, const request *rq, const answer_model *m, int32_t n);
void answers_free(answer *a);
/* Returns the index of the part that got the event's text, -1 for none. *opened: the part is new.
 * The end of a call that came in pieces brings no text. */
int32_t answers_take(answer *a, const choice_event *h, bool *opened);
bool is_whole_call(const part *q);

void make_seed(uint32_t *seed);
void make_id(char out[ID_BYTES], const char *prefix); /* prefix and 32 random hex digits */

/* Sums over choices. */
typedef struct usage {
    int64_t prompt, cached, computed, generated, thinking;
    int64_t rounds, drafted, accepted; /* of speculative decoding */
    const char *drafter;               /* NULL: none */
    const char *sparse;                /* how attention left keys out; NULL: it did not */
    double sparse_value;
    bool sparse_auto;
    uint64_t tiles, tiles_kept;
    double dropped_p99;
    const char *lossy;      /* which policy had put keys away; NULL: none was away */
    int64_t exact;          /* with lossy: tokens before */
    bool offloaded_experts; /* the GPU does not hold all experts */
    uint64_t expert_hits, expert_misses, expert_cpu, expert_bytes;
    double expert_wait_ms;
    double prefill_ms, decode_ms, queue_ms;
    const compression_report *shorter;
} usage;
usage answer_usage(const answer *a);
/* "sparse_attention", "kv_pool", "compression" and "experts": {...}, of a usage where keys were
 * left out or away, prompts shortened, or experts read from the host's memory. */
void put_extras(const usage *u, str *o);
/* One argument of a complete call, a text, as the member `key`; without it: all arguments. */
void put_call_text(const part *q, const char *argument, const char *key, str *o);
/* "warnings": [...], the parts of the request that were left out; nothing if there are none. */
void put_warnings(const request *rq, str *o);
/* All parts of a kind, one after the other. */
void put_parts(str *o, const choice *c, part_kind kind);
int32_t count_parts(const choice *c, part_kind kind);
/* The logprobs of token from..to in the layout of chat and responses: an array. */
void put_logprobs(const answer *a, const choice *c, int32_t from, int32_t to, str *o,
                  const char *key);
/* The progress of prefill, from a CARAT_EV_PREFILL: "prompt_progress": {...}. */
void put_progress(const answer *a, const carat_event *ev, str *o);
/* The same in the older layout of completions: "tokens", "token_logprobs", "top_logprobs" and
 * "text_offset", in characters; that of the first is `offset`. Returns that of the next one.
 * `before` has the tokens of the prompt, or none. The first token of a prompt has null. */
int64_t put_old_logprobs(const answer *a, const choice *before, const choice *c, int32_t from,
                         int32_t to, int64_t offset, str *o);
/* "stop_reason": the stop token or string that ended the answer, or null; of a last piece, if the
 * client gave stop_token_ids. */
void put_stop_reason(const answer *a, const choice *c, const char *finish, str *o);
/* The choice that has the tokens of choice i's prompt. Answers to one prompt share it, but in
 * streams of completions each has its own, because it must not wait for another. */
const choice *prompt_of(const answer *a, int32_t i);
bool prompt_is_own(const request *rq, int32_t i); /* choice i has them itself */
/* "prompt_logprobs": one object per token of the prompt, as vLLM has it. */
void put_prompt_logprobs(const answer *a, const choice *c, str *o);
const char *model_name(const answer *a);
/* An object as an event of a stream. With a type, which is its first member, the event has it too.
 */
void event_open(str *o, const char *type);
void event_close(str *o);
void put_timings(const answer *a, str *o); /* "timings": {...}, as llama.cpp's clients read them */

/* ---- Dialects ---- */

typedef struct dialect {
    const char *id_prefix, *call_prefix;
    /* A stream is begin, events, end. If the answer fails, fail replaces end. */
    void (*begin)(answer *a, str *o);
    void (*event)(answer *a, const choice_event *h, int32_t part, bool opened, int32_t first_token,
                  str *o);
    void (*end)(answer *a, str *o);
    void (*fail)(answer *a, const problem *p, str *o);
    void (*whole)(answer *a, str *o); /* not a stream: one JSON text */
    void (*error)(const problem *p, str *o);
    /* Sent in silence, so that clients do not time out: a text, or what beat writes. */
    const char *ping;
    void (*beat)(answer *a, str *o);
    const char *type; /* of a stream's content; NULL: text/event-stream */
    bool call_parts;  /* its streams tell the arguments of calls in pieces */
} dialect;

extern const dialect chat_dialect, completions_dialect, responses_dialect, messages_dialect,
    llama_dialect, ollama_chat_dialect, ollama_generate_dialect;
const dialect *dialect_of(api_kind api);

/* ollama's answer to a request without a prompt. */
void ollama_loaded(const answer *a, str *o);
void ollama_error(const problem *p, str *o);
/* What is kept of an answer of /v1/responses: the object, in a state (NULL: its answer is over)...
 */
void responses_object(const answer *a, const char *state, const problem *failed, str *o);
/* ...the items of its request, which was read, and those of the answer, separated by commas. */
void responses_items(const answer *a, str *input, str *output);

/* ---- What OpenAI's dialects share ---- */

void openai_error(const problem *p, str *o);
/* Of chats and completions: the first members of the object that is open, its usage, and how a
 * stream ends. */
void openai_head(const answer *a, const char *object, str *o);
void openai_usage(const answer *a, str *o);
void openai_end(const answer *a, const char *object, str *o);
void openai_fail(answer *a, const problem *p, str *o);

#endif
