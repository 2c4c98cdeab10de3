/* run_int.h - what the files of `carat run` share.
 *
 *     run.c        options, one answer for a prompt from arguments, stdin or a file
 *     run_chat.c   a conversation: messages, rendering, one turn, saving and loading
 *     run_show.c   events of an answer on the terminal or as JSON lines
 *     run_edit.c   the interactive loop: line editing, history, /commands
 *     run_model.c  which model: a file, or the bundled one
 */
#ifndef APPS_RUN_INT_H
#define APPS_RUN_INT_H

#include "apps/cache_options.h"
#include "apps/device_options.h"
#include "apps/kv_options.h"
#include "apps/options.h"
#include "apps/term.h"
#include "base/err.h"
#include "base/str.h"

#include <jansson.h>

typedef struct run_options {
    const char *model, *prompt_file, *system, *tools_file, *messages_file;
    const char *schema_file, *grammar_file;
    const char *isa, *wrap, *repack;
    kv_options kv;
    device_options where;
    cache_options cache;
    int64_t n_tokens, top_k, seed, n_ctx, chunk, threads;
    double temperature, top_p, min_p, repeat_penalty, presence_penalty, frequency_penalty;
    option_list stop, logit_bias, result;
    bool think, preserve_thinking, raw, greedy, quiet, json_events, exact, reference, no_mmap,
        overcommit, interactive, ignore_eog, verbose, json;
} run_options;

enum { RUN_UNSET = -2 }; /* numbers the user did not give: the model's own are used */

/* Where an answer goes, and what is remembered of it. */
typedef struct answer {
    bool json;        /* every event as a line of JSON on stdout */
    bool interactive; /* thoughts and calls are shown for a reader, not for a program */
    bool thinking;    /* the last text shown was a thought */
    bool any_output, at_line_start;
    bool broken; /* stdout cannot be written */
    word_wrap content_words, thought_words;
    str content, reasoning;
    json_t *calls; /* [{"name", "arguments"}] */
    carat_finish finish;
} answer;

status answer_init(answer *a, bool json, bool interactive, err *e);
void answer_reset(answer *a);
void answer_free(answer *a);
bool answer_show(void *user, const carat_event *ev); /* a carat_event_fn; user is the answer */
void answer_finish(answer *a);                       /* the last newline */
void answer_print_speed(const carat_timings *t, const carat_session *s);

typedef struct chat {
    carat_model *m;
    carat_session *s;
    carat_model_info info;
    carat_sampling sampling;
    carat_logit_bias bias[OPTION_LIST_MAX]; /* sampling.bias points here */
    option_list stop;
    int32_t max_tokens;
    bool thinking, preserve_thinking, raw, quiet, seed_given;
    json_t *messages; /* OpenAI's shape, without the system message */
    char *system;     /* or NULL */
    char *tools;      /* JSON text, or NULL */
    /* What answers are held to: with has_form set, of that kind, from form and n_form. */
    bool has_form;
    carat_grammar_kind form_kind;
    char *form;
    size_t n_form;
    str raw_text;    /* raw mode: the whole text so far */
    size_t raw_mark; /* where its last question begins */
    bool kept;       /* the last answer became part of the conversation */
    answer out;
    carat_timings timings; /* of the last turn */
} chat;

/* All of these leave one sentence in e on failure and the conversation as it was. */
status chat_open(chat *c, const run_options *o, err *e);
void chat_close(chat *c);
status chat_set_system(chat *c, const char *text, err *e); /* NULL or "": none */
status chat_load_tools(chat *c, const char *path, err *e);
status chat_add_user(chat *c, const char *text, size_t n, err *e);
status chat_add_result(chat *c, const char *text, err *e); /* of the oldest open call */
int chat_open_calls(const chat *c);
/* One answer to the conversation as it stands; it becomes part of it. With nothing shown and an
 * error or an interrupt, nothing is added. */
status chat_answer(chat *c, err *e);
bool chat_undo(chat *c);        /* the last question and all after it */
bool chat_drop_answer(chat *c); /* all after the last question; false if there is none */
void chat_clear(chat *c);
status chat_save(const chat *c, const char *path, err *e);
status chat_load(chat *c, const char *path, err *e);
status check_utf8(const char *what, const char *text, size_t n, err *e);

status run_open_model(const char *path, const run_options *o, carat_model **m, err *e);
int run_interactive(chat *c, const run_options *o);

#endif
