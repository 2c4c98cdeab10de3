/* run_int.h - declarations shared by the files of `carat run`.
 *
 *     run.c        options, one answer for a prompt from arguments, stdin or a file
 *     run_chat.c   a conversation: messages, rendering, one turn, saving and loading
 *     run_show.c   events of an answer on the terminal or as JSON lines
 *     run_edit.c   the interactive loop: line editing, history, /commands
 *     run_model.c  opening the model: a file, or the bundled one
 */
#ifndef APPS_RUN_INT_H
#define APPS_RUN_INT_H

#include "apps/cache_options.h"
#include "apps/device_options.h"
#include "apps/draft_options.h"
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
    draft_options draft;
    int64_t n_tokens, top_k, seed, n_ctx, chunk, threads;
    double temperature, top_p, min_p, repeat_penalty, presence_penalty, frequency_penalty;
    option_list stop, logit_bias, result;
    const char *effort;
    bool think, no_think, preserve_thinking, drop_thinking, raw, greedy, quiet, json_events, exact,
        reference, no_mmap, overcommit, interactive, ignore_eog, verbose, json, spec_trace;
} run_options;

enum { RUN_UNSET = -2 }; /* not given by the user: the model's recommended value is used */

/* How an answer is shown, and the parts of it that become a message. */
typedef struct answer {
    bool json;        /* each event is one line of JSON on stdout */
    bool interactive; /* tool calls are formatted for a reader, not as JSON */
    bool thinking;    /* the last event shown was a thought */
    bool any_output, at_line_start;
    bool broken; /* writing to stdout failed */
    word_wrap content_words, thought_words;
    str content, reasoning;
    json_t *calls; /* [{"name", "arguments"}] */
    carat_finish finish;
} answer;

status answer_init(answer *a, bool json, bool interactive, err *e);
void answer_reset(answer *a);
void answer_free(answer *a);
bool answer_show(void *user, const carat_event *ev); /* a carat_event_fn; user is the answer */
void answer_finish(answer *a);                       /* ends the last line */
void answer_print_speed(const carat_timings *t, const carat_session *s);
/* A carat_round_fn; user is the answer. A line of its own on stderr. */
void answer_print_round(void *user, const carat_round *r);

typedef struct chat {
    carat_model *m;
    carat_session *s;
    carat_model_info info;
    carat_sampling sampling;
    carat_logit_bias bias[OPTION_LIST_MAX]; /* sampling.bias points here */
    option_list stop;
    int32_t max_tokens;
    const char *effort; /* NULL: the template's default */
    bool thinking, preserve_thinking, drop_thinking, raw, quiet, seed_given, trace_rounds;
    json_t *messages; /* OpenAI's shape, without the system message */
    char *system;     /* or NULL */
    char *tools;      /* JSON text, or NULL */
    /* With has_form set, answers follow this schema or grammar: its kind and its source. */
    bool has_form;
    carat_grammar_kind form_kind;
    char *form;
    size_t n_form;
    str raw_text;    /* raw mode: prompt and answers so far */
    size_t raw_mark; /* offset of the last question in it */
    bool kept;       /* the last answer is part of the conversation */
    answer out;
    carat_timings timings; /* of the last turn */
} chat;

/* On failure each of these leaves one sentence in e and the conversation unchanged. */
status chat_open(chat *c, const run_options *o, err *e);
void chat_close(chat *c);
status chat_set_system(chat *c, const char *text, err *e); /* NULL or "": none */
status chat_load_tools(chat *c, const char *path, err *e);
status chat_add_user(chat *c, const char *text, size_t n, err *e);
status chat_add_result(chat *c, const char *text, err *e); /* answers the oldest open call */
int chat_open_calls(const chat *c);
/* Generates one answer, shows it and adds it to the conversation. If an error or an interrupt ends
 * it before its first text, nothing is added. */
status chat_answer(chat *c, err *e);
bool chat_undo(chat *c); /* removes the last question and everything after it */
bool chat_drop_answer(
    chat *c); /* removes everything after the last question; false: there is none */
void chat_clear(chat *c);
status chat_save(const chat *c, const char *path, err *e);
status chat_load(chat *c, const char *path, err *e);
status check_utf8(const char *what, const char *text, size_t n, err *e);

status run_open_model(const char *path, const run_options *o, carat_model **m, err *e);
int run_interactive(chat *c, const run_options *o);

#endif
