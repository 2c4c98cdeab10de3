/* run_int.h - declarations shared by the files of `carat run`.
 *
 *     run.c        options, one answer for a prompt from arguments, stdin or a file
 *     run_chat.c   a conversation: messages, rendering, one turn, saving and loading
 *     run_show.c   events of an answer on the terminal or as JSON lines
 *     run_keep.c   conversations kept between runs
 *     run_tab.c    what Tab offers
 *     run_file.c   text files as parts of a message
 *     run_pictures.c  pictures as parts of a message
 *     run_edit.c   the interactive loop: line editing, history of lines
 *     run_tools.c  tools of MCP servers: asking the user, calling, giving the results back
 *     run_full.c   a full context: oldest turns dropped, or a summary in their place
 *     run_commands.c  the /commands
 *     run_model.c  opening the model: a file, or the bundled one
 */
#ifndef APPS_RUN_INT_H
#define APPS_RUN_INT_H

#include "apps/cache_options.h"
#include "apps/compress.h"
#include "apps/config.h"
#include "apps/device_options.h"
#include "apps/draft_options.h"
#include "apps/sparse_options.h"
#include "apps/hub_options.h"
#include "apps/kv_options.h"
#include "apps/mcp_options.h"
#include "apps/media/pictures.h"
#include "apps/lora_options.h"
#include "apps/mmproj_options.h"
#include "apps/options.h"
#include "apps/sample_options.h"
#include "apps/conversations.h"
#include "apps/pool_options.h"
#include "apps/term.h"
#include "base/err.h"
#include "base/str.h"
#include "text/talk.h"

#include <jansson.h>

/* A field for each option. */
typedef struct run_options {
#define RUN_OPTIONS
#define OPTIONS_MEMBERS
#include "apps/options.def"
    bool sees;        /* the model is opened with its vision tower */
    bool model_typed; /* -m stands on the command line */
} run_options;
extern const run_options run_usual; /* no option was given */

enum { RUN_UNSET = -2 }; /* not given by the user: the model's recommended value is used */

/* What stdout gets of an answer. */
typedef enum answer_format {
    ANSWER_TEXT,   /* its text and its calls */
    ANSWER_EVENTS, /* each event as a line of JSON */
    ANSWER_OBJECT  /* one JSON object when the run is over (answer_print_object) */
} answer_format;

/* How an answer is shown, and the parts of it that become a message. */
typedef struct answer {
    answer_format format;
    bool interactive; /* tool calls are formatted for a reader, not as JSON */
    bool thinking;    /* the last event shown was a thought */
    bool any_output, at_line_start;
    bool broken; /* writing to stdout failed */
    word_wrap content_words, thought_words;
    str content, reasoning;
    arena mem;       /* of said; one answer */
    carat_talk said; /* a turn, with the calls so far */
    str run_calls; /* ANSWER_OBJECT: those of the answers before, as items of JSON with "result" */
    carat_finish finish;
    /* Calls that are shown elsewhere, when they are run. NULL: none. */
    bool (*hides_call)(void *user, const char *name);
    void *hides_user;
} answer;

void answer_init(answer *a, answer_format format, bool interactive);
void answer_reset(answer *a);
void answer_free(answer *a);
bool answer_show(void *user, const carat_event *ev); /* a carat_event_fn; user is the answer */
void answer_finish(answer *a);                       /* ends the last line */
size_t answer_count_calls(const answer *a);
void answer_print_speed(const carat_timings *t, const carat_session *s);
/* ANSWER_OBJECT: keeps the calls of this answer, whose results are in the list, for the object. */
status answer_keep_calls(answer *a, const char *const *results, err *e);
/* Prints the object: answer, thinking, calls, usage, timings. */
status answer_print_object(answer *a, const carat_timings *t, const carat_session *s,
                           const char *model, const compression_report *shortened, err *e);
/* A carat_round_fn; user is the answer. A line of its own on stderr. */
void answer_print_round(void *user, const carat_round *r);

/* "picture N" in the text of a message, in the place of a path. */
typedef struct picture_name {
    size_t from_end; /* where it begins, before the end of the text */
    int32_t number;  /* of the picture, in chat.pictures */
} picture_name;

typedef struct chat {
    carat_model *m;
    carat_session *s;
    carat_model_info info;
    carat_sampling sampling;
    carat_logit_bias bias[OPTION_LIST_MAX]; /* sampling.bias points here */
    run_options o;                          /* with the changes by /set */
    char *texts; /* strings that o points to; each begins with a pointer to the next */
    int32_t max_tokens;
    bool thinking, raw, quiet, seed_given;
    str files; /* put in front of the next message */
    int n_files;
    pictures pictures;                  /* by number: of the messages, and of the next one */
    carat_media *media[PICTURES_MAX];   /* those that a prompt had */
    int32_t next[PICTURES_MAX], n_next; /* numbers of the next message's pictures and sounds */
    picture_name spoken[PICTURES_MAX];  /* those that its text names */
    int32_t n_spoken;
    bool keep;         /* this conversation is written after each answer */
    talk_place talk;   /* where */
    const char *title; /* of it; NULL: none yet */
    bool named;        /* the user gave the title: it outlives the first question */
    str deleted; /* questions that /undo or /clear has deleted, each with its NUL, for run_edit.c */
    arena mem;   /* of messages */
    carat_talk messages; /* without the system message */
    char *system;        /* or NULL */
    char *tools;         /* that the user declared: JSON text, or NULL */
    mcp_specs specs;     /* of --mcp */
    mcp_set *mcp;        /* or NULL */
    char *offered;       /* tools and those of mcp; NULL: tools alone */
    /* With has_form set, answers follow this schema or grammar: its kind and its source. */
    bool has_form;
    carat_grammar_kind form_kind;
    char *form;
    size_t n_form;
    str waiting;     /* the question that found no room in the context */
    str raw_text;    /* raw mode: prompt and answers so far */
    size_t raw_mark; /* offset of the last question in it */
    bool kept;       /* the last answer is part of the conversation */
    /* With compresses set, prompts are shortened by the scorer. */
    bool compresses;
    carat_compress_options compress;
    carat_compressor *shortened;
    scorer scorer;
    arena prompt_mem;
    carat_talk prompt;     /* the last one: the system message, and turns that share their parts */
    carat_compressed last; /* shortened, which borrows from it */
    double compress_ms;
    answer out;
    carat_timings timings; /* of the last turn */
} chat;

/* On failure each of these leaves one sentence in e and the conversation unchanged. */
status chat_open(chat *c, const run_options *o, err *e);
void chat_close(chat *c);
status chat_set_system(chat *c, const char *text, err *e); /* NULL or "": none */
status chat_load_tools(chat *c, const char *path, err *e);
void chat_drop_tools(chat *c);
/* ---- Tools of MCP servers (run_tools.c) ---- */

/* Starts the servers of c->specs. */
status chat_open_mcp(chat *c, err *e);
const char *chat_offered_tools(const chat *c); /* what the model is offered: JSON text, or NULL */
/* Brings these up to date after a change of either list. E_ARG: a name is in both. */
status chat_offer_tools(chat *c, err *e);
void chat_refresh_mcp(chat *c); /* asks servers that said that their tools have changed */
/* After an answer: runs its calls of MCP tools, with the user's consent, and lets the model go on,
 * until it calls none of them. Calls of other tools stay open. */
status chat_run_tools(chat *c, err *e);

#define EFFORT_LEVELS "minimal, low, medium, high, xhigh or max"
bool effort_known(const char *level); /* one of these */
/* Takes sampling, limit and stop strings from c->o; keeps a random seed. */
status chat_apply_settings(chat *c, err *e);
char *chat_keep_text(chat *c,
                     const char *text); /* a copy that lives as long as c; NULL: no memory */
/* The files and pictures of /file go in front of the text. */
status chat_add_user(chat *c, const char *text, size_t n, err *e);
status chat_add_result(chat *c, const char *text, err *e); /* answers the oldest open call */
int chat_open_calls(const chat *c);
/* The oldest open call: its name and its arguments as the model wrote them. NULL: there is none. */
const char *chat_open_call(const chat *c, const char **arguments);
/* Generates one answer, shows it and adds it to the conversation. If an error or an interrupt ends
 * it before its first text, nothing is added. */
status chat_answer(chat *c, err *e);
status chat_count(chat *c, int64_t *n, err *e); /* tokens of the prompt, as it stands */
compression_report chat_told(const chat *c);    /* how the last prompt was shortened */
/* Removes the last question and everything after it, also in the kept file where there is one. */
bool chat_undo(chat *c);
bool chat_drop_answer(
    chat *c);             /* removes everything after the last question; false: there is none */
void chat_clear(chat *c); /* deletes the conversation, and its kept file */
status chat_save(const chat *c, const char *path, err *e);
status chat_load(chat *c, const char *path, err *e);
/* Replaces the messages, and the system message if the others begin with one. what: for errors. */
status chat_take_messages(chat *c, const carat_talk *from, const char *what, err *e);
/* The turns behind the first `before` are complete. Lack of memory: they go. */
status chat_put_turns(chat *c, size_t before, err *e);

/* --resume: finds and reads a kept conversation, and its model if the user named none. What is
 * kept (kept_free) must outlive o. */
status chat_find_talk(const char *which, run_options *o, kept_talk *kept, talk_place *place,
                      err *e);
status chat_resume(chat *c, const kept_talk *kept, const talk_place *place, err *e);
void chat_show_last(const chat *c);        /* the last question and answer, dimmed, on stderr */
void chat_name(chat *c, const char *text); /* the first line of it becomes the title */
void chat_keep(chat *c); /* writes the conversation, if it is kept; a failure is told once */
/* Into a conversation without turns: the system message, and turns that share their parts. */
void chat_gather(const chat *c, carat_talk *out);
void chat_put_saved(const chat *c, str *o, const char *key); /* the messages as they are saved */
status check_utf8(const char *what, const char *text, size_t n, err *e);

/* In other programs the first operand of `run` is the model. Here it is one if it names a model of
 * this machine, or a file that ends in .gguf; it is then taken off the words. E_ARG: it can only
 * have been meant as a model, and there is none of that name. literal: the user wrote "--". */
/* ---- Models made of others (run_made.c) ---- */

typedef struct made_run {
    const char *name; /* NULL: the model is no such one */
    json_t *root;     /* its file; the options borrow strings of it */
    arena mem;
    carat_talk messages; /* of its file, or none */
} made_run;

bool run_is_made(const char *name);
/* Where o->model is one: sets the options that nothing above it has set, and o->model to the model
 * that answers. made_run_free comes after the last use of the options, also after an error. */
status run_take_made(run_options *o, config *f, made_run *m, err *e);
/* Are the settings of what is to become such a model those of options, with values that these take?
 */
status run_check_made(const char *name, json_t *root, err *e);
/* Its messages begin the conversation, unless the options have one. */
status run_begin_made(chat *c, const run_options *o, const made_run *m, err *e);
void made_run_free(made_run *m);

status run_take_model(run_options *o, int *n_words, char ***words, bool literal, err *e);
bool run_has_dashes(int argc, char **argv); /* is "--" among the words of the command line? */
/* How a file becomes part of a message. Between fences its text is code, which is never shortened
 * in part; so files that may be shortened come without them. */
typedef enum file_form { FILE_FENCED, FILE_NAMED, FILE_ALONE } file_form;
/* Appends the file's name and its text; FILE_ALONE: its text. A picture or sound goes to the list.
 * E_FORMAT where it is neither a picture nor text in UTF-8, E_LIMIT beyond 16 MiB of text. */
status message_add_file(str *out, pictures *to, const char *path, file_form form, err *e);
/* The same for words as a shell would read them. On failure out is as before. */
status message_add_files(str *out, int *n_files, pictures *to, const char *words, file_form form,
                         err *e);

/* ---- Pictures and sounds, which are pictures in names (run_pictures.c) ---- */

void chat_free_pictures(chat *c);
/* The pictures of the list go with the next message, and the user is told. All of them or none. */
status chat_take_pictures(chat *c, pictures *from, err *e);
/* Takes the pictures whose paths stand in a typed text. *out: the text, in which such a path is
 * "picture N" or "sound N". A path that names no file stays, which is told. On failure nothing is
 * taken. */
status chat_take_paths(chat *c, const char *text, str *out, err *e);
bool chat_begins_with_picture(const char *text); /* with the path of a picture that exists */
bool has_picture_path(const char *text);         /* somewhere */
/* The content of the last turn: the text, or parts with the pictures of the next message. */
void chat_put_user(chat *c, const char *text, size_t n);
const char *chat_next_kind(const chat *c); /* "picture", "sound" or, of both, "file" */
/* After messages have been dropped: the others' pictures are counted anew, also where texts name
 * them. */
void chat_count_anew(chat *c);
void chat_take_back(chat *c); /* chat_undo, and the pictures go with the next message */
/* A turn as it was saved to one of a conversation, its pictures into the list. what: for errors. */
status chat_load_turn(const chat *c, carat_talk *out, const talk_turn *m, pictures *to,
                      const char *what, err *e);
/* The pictures of loaded messages take the place of all but those of the next message. */
void chat_use_pictures(chat *c, pictures *loaded);
/* What the pictures of a prompt add to its length. */
status chat_count_pictures(const chat *c, const carat_chat *prompt, int64_t *more, err *e);
status chat_place_pictures(chat *c, carat_chat *prompt, err *e);

/* What Tab offers for a command's argument. */
typedef enum slash_kind {
    SLASH_NONE,
    SLASH_FILE,  /* the rest of the line is one name */
    SLASH_FILES, /* words as a shell reads them */
    SLASH_WORD
} slash_kind;

typedef struct slash_result {
    bool speak_now; /* the model must answer now */
    bool quit;
    bool cleared; /* the conversation is deleted: lines typed in it go, too */
    bool undone;  /* its last question is, whose text is the first of c->deleted */
} slash_result;

typedef struct slash_command {
    const char *name, *args, *help;
    slash_kind kind;
    const char *words; /* SLASH_WORD: the choices, with spaces between them */
    status (*run)(chat *c, const char *arg, slash_result *r, err *e);
} slash_command;

/* ---- A full context (run_full.c) ---- */

/* The question finds no room: it waits, and the user is told of the two commands. */
void chat_tell_full(chat *c, const char *question);
/* Drops the oldest `wanted` turns; 0: as many as it takes. r->speak_now: a question waited. On
 * failure the conversation is as before. */
status chat_drop_turns(chat *c, int64_t wanted, slash_result *r, err *e);
/* Puts a summary by the model in place of all turns. */
status chat_summarise(chat *c, slash_result *r, err *e);

extern const slash_command slash_commands[]; /* ends with a NULL name */
/* Runs a line that begins with a slash. */
status slash_run(chat *c, const char *line, slash_result *r, err *e);

status run_open_model(const char *path, const run_options *o, carat_model **m, err *e);
int run_interactive(chat *c, const run_options *o);

#endif
