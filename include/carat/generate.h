/* carat/generate.h - answers: events, options, timings. */
#ifndef CARAT_GENERATE_H
#define CARAT_GENERATE_H

#include "sampling.h"
#include "session.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum carat_event_kind {
    CARAT_EV_PREFILL,      /* progress: n_done of n_total prompt tokens */
    CARAT_EV_TOKEN,        /* one sampled token, before its text; also the token that ends the turn,
                              which has no text */
    CARAT_EV_REASONING,    /* text of a thought */
    CARAT_EV_CONTENT,      /* text of the answer */
    CARAT_EV_TOOL_CALL,    /* a complete call: name and arguments as JSON */
    CARAT_EV_END,          /* the reason of the end; the last event. Not sent if the call fails */
    CARAT_EV_PROMPT_TOKEN, /* with n_prompt_logprobs: the next token of the prompt and how probable
                              it was, from the first token on; before the first TOKEN */
    CARAT_EV_CALL_PART /* with call_parts: a piece of the arguments of a call that is not complete
                          yet. TOOL_CALL follows with the arguments that the pieces make. If another
                          event follows, it is no call; then content has its text, but for a call
                          that the end of the answer cuts */
} carat_event_kind;

typedef enum carat_finish {
    CARAT_FINISH_STOP,   /* the model ended its turn, or a stop string was met */
    CARAT_FINISH_LENGTH, /* max_tokens, or the context is full */
    CARAT_FINISH_TOOL_CALLS,
    CARAT_FINISH_CANCELLED
} carat_finish;

typedef struct carat_logprob {
    int32_t id;
    float logprob; /* natural logarithm of the probability before any sampling setting */
} carat_logprob;

/* The kind says which fields are set. */
typedef struct carat_event {
    carat_event_kind kind;
    int32_t id;               /* TOKEN, PROMPT_TOKEN */
    float logprob;            /* TOKEN, with n_top_logprobs > 0; PROMPT_TOKEN, but for the first */
    const carat_logprob *top; /* TOKEN, PROMPT_TOKEN: the n_top most probable ones, in descending
                                 order; none of the prompt's first token */
    int32_t n_top;
    int32_t rank;     /* PROMPT_TOKEN: 1 + the number of more probable tokens; 0: the first token */
    const char *text; /* REASONING, CONTENT; TOOL_CALL, CALL_PART: arguments. Valid UTF-8,
                         NUL-terminated */
    size_t n_text;
    const char *name;        /* TOOL_CALL, CALL_PART */
    int64_t n_done, n_total; /* PREFILL: prompt tokens */
    int64_t n_reused;        /* PREFILL: of n_done, tokens that a cache had */
    carat_finish finish;     /* END */
    const char *stop;        /* END: the stop string met, or NULL */
    bool by_stop_id;         /* END: a token of stop_ids ended the answer: */
    int32_t stop_id;
} carat_event;

/* Runs on the thread of the call. Pointers in the event are valid until the callback returns.
 * Return false to cancel the generation. */
typedef bool (*carat_event_fn)(void *user, const carat_event *ev);

/* How carat_mask's fill has the next token chosen. */
typedef enum carat_mask_use {
    CARAT_MASK_NONE,  /* from all tokens; the words are not read */
    CARAT_MASK_APPLY, /* from the allowed tokens; without any, the generation fails: E_ARG */
    CARAT_MASK_FAIL   /* not at all; the generation fails: E_LIMIT */
} carat_mask_use;

/* Restricts the next token, for structured output. The thread that runs the generation calls fill
 * before each token and accept after it. Neither may call back into the generation. */
typedef struct carat_mask {
    /* allowed: [(n_vocab + 31) / 32] words, all zero. Bit id & 31 of word id / 32 allows id; tokens
     * that end the turn are no exception. */
    carat_mask_use (*fill)(void *user, uint32_t *allowed, int32_t n_vocab);
    /* Receives the chosen token: sampled, or forced to close a thought. May be NULL. */
    void (*accept)(void *user, int32_t id);
    void *user;
} carat_mask;

/* How much is drafted for one answer. All zero: as the session's options say. It never changes the
 * answer. */
typedef struct carat_speculation {
    bool off;
    int32_t n_max;    /* most tokens in a row; 0: the session's */
    int32_t tree_max; /* most tokens of a tree; 0: the session's; < 0: no trees */
    bool fixed;       /* always n_max and tree_max, whatever it costs: for measurements */
} carat_speculation;

/* A pass that checked drafts. */
typedef struct carat_round {
    const char *drafter;           /* static storage */
    int32_t n_drafted, n_accepted; /* tokens drafted, and those of them that the answer has */
    int32_t n_rows;                /* of the pass, with the rows of other answers */
    bool tree;
    double draft_ms, pass_ms;
} carat_round;

/* Runs on the thread of the call, after the tokens of the round were reported. */
typedef void (*carat_round_fn)(void *user, const carat_round *r);

typedef struct carat_tokens {
    const int32_t *at; /* [n] */
    int64_t n;
} carat_tokens;

typedef struct carat_generate_options {
    carat_sampling sampling;
    int32_t max_tokens; /* <= 0: until the context is full */
    /* [n_stop] strings that end the answer; read during the call. With parse they end its content
     * alone: thoughts and calls may spell them. */
    const char *const *stop;
    int32_t n_stop;
    bool parse;           /* split the output into reasoning, content and tool calls */
    bool starts_thinking; /* the prompt ends inside a thought: from carat_chat_render */
    /* A thought is closed by force after max_thinking tokens, or when answer_reserve tokens of
     * max_tokens are left. <= 0: never. E_UNSUPPORTED if the chat format has no thoughts. */
    int32_t max_thinking, answer_reserve;
    const carat_mask *mask; /* NULL: none. Used until the generation ends */
    carat_speculation speculation;
    const struct carat_bench_script *script; /* NULL. For measurements: carat_bench.h. Read until
                                                the generation ends */
    /* Tokens of a text that the answer is likely to repeat in parts, as a client predicts it: one
     * more text for the lookup drafter to copy from, as if it followed the prompt. It never changes
     * the answer, and without a drafter it does nothing. Read until the generation ends. */
    const int32_t *predicted; /* [n_predicted]; NULL: none */
    int64_t n_predicted;
    /* For parse: the tools that the answer may call, as in carat_chat_render; NULL: none, and the
     * text of a call is content. Where a model writes arguments as plain text, the tools' schemas
     * give them their types. Read at the begin. */
    const char *tools_json;
    carat_round_fn on_round; /* NULL: none */
    void *round_user;
    int32_t min_tokens; /* no token ends the answer before it has so many */
    /* Tokens that end the answer, after their own text. Read at the begin, like the lists below. */
    const int32_t *stop_ids; /* [n_stop_ids] */
    int32_t n_stop_ids;
    const carat_tokens *bad; /* [n_bad]: the last token of a list never follows its other tokens */
    int32_t n_bad;
    const int32_t *only_ids; /* [n_only_ids]: no other token is sampled; NULL: any */
    int32_t n_only_ids;
    bool no_answer; /* ends after the prompt, with CARAT_FINISH_LENGTH */
    /* > 0: a PROMPT_TOKEN event for every token of the prompt, with so many of the most probable
     * ones, at most 20. The whole prompt is computed: no cache has its logits. */
    int32_t n_prompt_logprobs;
    const char *sparse; /* as carat_session_options.sparse, for this answer; NULL: the session's.
                           Read at the begin */
    const struct carat_lora_use *loras; /* [n_loras]: its adapters, lora.h. NULL: the model's */
    int32_t n_loras;
    bool call_parts; /* for parse: tell CALL_PART. Of several calls between two marks the first
                        comes in pieces */
    /* No thought; no call. no_thoughts: where answers are messages with headers (gpt-oss), as
     * carat_chat_render says. no_calls: there, and where a mark alone begins a call
     * (carat_marks.bars_calls). E_UNSUPPORTED elsewhere. */
    bool no_thoughts, no_calls;
} carat_generate_options;

typedef struct carat_timings {
    int64_t n_prompt;              /* tokens of the prompt */
    int64_t n_reused;              /* of n_prompt: not computed, from a cache */
    int64_t n_computed;            /* of n_prompt: computed in prefill_ms. The rest of a prompt
                                      whose end no pass reached is in neither count */
    int64_t n_generated;           /* sampled tokens */
    int64_t n_thinking;            /* of n_generated: tokens of thoughts, with their marks */
    bool thinking_cut;             /* a thought was closed by force */
    const char *reuse;             /* as from carat_session_reuse; static storage */
    double queue_ms;               /* from submit until a slot was free; 0 outside a batch */
    int64_t n_rounds;              /* passes that checked drafts */
    int64_t n_drafted, n_accepted; /* tokens drafted in them, and those that the answer has */
    const char *drafter;           /* its method, static storage; NULL: none */
    const char *sparse; /* "skip", "flash": attention left keys out; static storage; NULL: none */
    float sparse_value; /* its SCALE or ALPHA */
    bool sparse_auto;   /* "auto" decided so, or against it */
    const char *lossy;  /* "scored", ..: tokens were computed while pages of keys were away, which
                           this policy had chosen (kv_resident); static storage; NULL: none */
    int64_t n_exact;    /* with lossy: tokens of the context before the first of them */
    uint64_t n_tiles, n_tiles_kept; /* as carat_sparse_layer, of all layers */
    double dropped_p99;             /* of the layer that left out most; -1: no certificate */
    /* Of a model whose GPU does not hold all experts (carat_experts), in the passes of this answer,
     * which may have had company. Counts of the last pass or two are missing. */
    bool offloaded_experts;
    uint64_t n_expert_hits, n_expert_misses;
    uint64_t n_expert_cpu; /* pairs that the CPU computed (carat_model_options.experts_cpu) */
    uint64_t expert_bytes; /* that the bus carried: misses, exchanges, prompts */
    double expert_wait_ms; /* for the bus. Of prompts measured; of answers the time that the bus
                              takes for the misses, in part of which other experts compute */
    double prefill_ms, decode_ms;
    double load_ms;      /* of opening the model */
    uint64_t peak_bytes; /* the highest resident memory of the process so far */
    carat_finish finish;
} carat_timings;

/* Computes the prompt ids[0..n) as carat_eval does, then samples tokens until the turn ends. opt
 * NULL: the model's default sampling, without parse. fn and t may be NULL. The timeline afterwards
 * holds the prompt and the computed tokens of the answer. Errors as carat_eval, and those of mask
 * and options. */
CARAT_API carat_status carat_generate(carat_session *s, const int32_t *ids, int64_t n,
                                      const carat_generate_options *opt, carat_event_fn fn,
                                      void *user, carat_timings *t, carat_error *e);

/* "stop", "length", "tool_calls", "cancelled"; static storage. */
CARAT_API const char *carat_finish_name(carat_finish f);

#ifdef __cplusplus
}
#endif
#endif
