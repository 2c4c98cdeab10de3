/* carat/text.h - text and tokens, chat formats. */
#ifndef CARAT_TEXT_H
#define CARAT_TEXT_H

#include "model.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    CARAT_TOK_BOS = 1,     /* the begin-of-sequence token comes first */
    CARAT_TOK_SPECIAL = 2, /* control tokens spelled out in the text become control tokens */
};

/* Bytes to ids, by the tokenizer of the file (byte-pair merges). Returns the number of tokens of
 * the whole text, of which the first cap are written; ids may be NULL with cap 0. -1: failed, e
 * says why. Any thread. */
CARAT_API int64_t carat_tokenize(const carat_model *m, const char *text, size_t n_bytes,
                                 int32_t flags, int32_t *ids, int64_t cap, carat_error *e);
/* The bytes of one token, which need not be valid UTF-8 by themselves. A control token has none
 * unless `special`. Returns their number, or -1 if id is out of range; *bytes is "" then. *bytes
 * belongs to the model and is not NUL-terminated. Any thread. */
CARAT_API int32_t carat_token_bytes(const carat_model *m, int32_t id, bool special,
                                    const char **bytes);
CARAT_API int32_t carat_token_bos(const carat_model *m);             /* -1: the file has none */
CARAT_API bool carat_token_is_eog(const carat_model *m, int32_t id); /* does it end a turn? */

/* The tokens that mark up a model's answers; -1: it has none of that kind. */
typedef struct carat_marks {
    int32_t thought_open, thought_close, call_open, call_close;
    bool calls;      /* the answers may have calls, with or without marks of their own */
    int32_t all[16]; /* these, and the marks of turns, results and ends: never part of a text */
    int32_t n_all;
    bool bars_calls; /* carat_generate_options.no_calls is possible */
} carat_marks;

CARAT_API void carat_model_get_marks(const carat_model *m, carat_marks *marks); /* any thread */

/* Where an answer is after each of its tokens: a sum of CARAT_IN_. One thread at a time. */
typedef struct carat_place carat_place;
enum {
    CARAT_IN_THOUGHT = 1,
    CARAT_IN_CALL = 2, /* behind the mark of a call and some of its text */
    CARAT_IN_MARK = 4  /* the token belongs to a mark of thoughts or messages, which is no text */
};
/* NULL: no memory. starts_thinking: from carat_chat_render. Close it before the model. */
CARAT_API carat_place *carat_place_open(const carat_model *m, bool starts_thinking);
CARAT_API int32_t carat_place_next(carat_place *p, int32_t id);
CARAT_API void carat_place_close(carat_place *p); /* p may be NULL */

typedef struct carat_chat_options {
    bool thinking;             /* ask the model to think first */
    bool preserve_thinking;    /* keep the thoughts of finished tool turns */
    bool no_generation_prompt; /* do not open the assistant's turn */
    bool raw_markers;   /* markers inside content become control tokens, as in a Jinja server */
    bool continue_last; /* a last assistant message is the beginning of the answer: not closed */
    bool drop_thinking; /* drop finished thoughts where the model's template keeps them by itself */
    /* minimal, low, medium, high, xhigh or max, for templates with an instruction about it; others
     * ignore it. NULL: the template's default. Read during the call. */
    const char *reasoning_effort;
    /* Today as YYYY-MM-DD, for templates that ask for the day. NULL: the local day. */
    const char *date;
} carat_chat_options;

/* A rendered conversation: the prompt as text and as tokens. Free with carat_chat_free. */
typedef struct carat_chat {
    char *text; /* NUL-terminated; begins with one BOS, if the model has one */
    size_t n_text;
    int32_t *ids;
    int64_t n_ids;
    /* The numbers of the pictures and sounds, in the order of their placeholders among ids: the
     * `number` of their parts {"type": "image", "number": N}, or "audio", else their place in the
     * prompt. n_around: tokens
     * that carat_media_expand puts around each beside its soft ones. */
    int32_t *images, n_images, n_around;
    bool starts_thinking; /* the prompt ends inside a thought: carat_generate_options wants it */
    /* "ID of NAME" of the first call whose arguments are no JSON object, as broken JSON of an
     * earlier answer; they stand in an object as text. "": there is none. */
    char odd_arguments[120];
    bool no_thoughts; /* for carat_generate_options */
} carat_chat;

/* A conversation as a value. Once it is open nothing changes it, and any thread may read it. */
typedef struct carat_talk carat_talk;
/* messages_json: an array of messages as in OpenAI's chat completions; tools_json: an array of
 * tools of the same API, or NULL. Nothing of them is kept. E_FORMAT: the JSON or a message. */
CARAT_API carat_status carat_talk_open(carat_talk **t, const char *messages_json,
                                       const char *tools_json, carat_error *e);
CARAT_API void carat_talk_close(carat_talk *t); /* t may be NULL */
/* Renders a conversation with the model's own chat format. opt may be NULL. Without raw_markers,
 * content never becomes a control token. E_FORMAT: a message or tool that the format cannot write;
 * E_UNSUPPORTED: images and sounds, or a model without chat format. Any thread. */
CARAT_API carat_status carat_talk_render(const carat_model *m, const carat_talk *t,
                                         const carat_chat_options *opt, carat_chat *out,
                                         carat_error *e);
/* The same from JSON. */
CARAT_API carat_status carat_chat_render(const carat_model *m, const char *messages_json,
                                         const char *tools_json, const carat_chat_options *opt,
                                         carat_chat *out, carat_error *e);
CARAT_API void carat_chat_free(carat_chat *c); /* safe on a zeroed or freed chat */

#ifdef __cplusplus
}
#endif
#endif
