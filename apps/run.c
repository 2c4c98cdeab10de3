/* run.c - `carat run`: one answer for a prompt, or a conversation.
 *
 *     carat run "What is carat?"            one answer
 *     carat run "Summarise this:" < file    stdin first, then the words of the command line
 *     carat run -f main.c "Find the bug"    a file, then the words
 *     carat run -f photo.png "What is it?"  a picture, then the words
 *     carat run                             on a terminal: a conversation
 */
#include "apps/commands.h"
#include "apps/run_int.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/show.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    PROMPT_MAX = 256 << 20, /* bytes of a prompt: far above any context */
    RESULT_ROUNDS_MAX = 8,  /* rounds of tool calls before the run counts as a loop and ends */
    CALLS_MAX = 256         /* tool calls of one answer that get results */
};

static const option table[] = {
#define RUN_OPTIONS
#define OPTIONS_ROWS run_options
#include "apps/options.def"
    OPT_END};

const run_options run_usual = {
#define RUN_OPTIONS
#define OPTIONS_USUAL
#include "apps/options.def"
};

static void drop_last_newline(str *s)
{
    if (s->n && s->at[s->n - 1] == '\n')
        str_cut(s, s->n - 1);
}

/* Does an option take its file from stdin? Then the prompt does not. */
static const option *taker_of_stdin(const run_options *o)
{
    for (const option *row = table; row->name; row++) {
        const char *path =
            row->kind == OPTION_STR ? *(const char *const *)((const char *)o + row->offset) : NULL;
        if (path && row->arg && !strcmp(row->arg, "FILE") &&
            (!strcmp(path, "/dev/stdin") || !strcmp(path, "/dev/fd/0")))
            return row;
    }
    for (int i = 0; i < o->files.n; i++)
        if (!strcmp(o->files.at[i], "/dev/stdin") || !strcmp(o->files.at[i], "/dev/fd/0"))
            return options_find(table, "file");
    return NULL;
}

/* What a message is made of. */
typedef struct gathered {
    str prompt;
    size_t words_at; /* where the words of the command line begin in it */
    str files;       /* texts in front of it, as a message of their own with --compress */
    pictures seen;
} gathered;

static void gathered_free(gathered *g)
{
    str_free(&g->prompt);
    str_free(&g->files);
    pictures_free(&g->seen);
}

/* A picture or a sound on stdin is no text. */
static status read_stdin(gathered *g, bool wanted, err *e)
{
    str text = {0};
    status st = term_read_stdin(&text, PROMPT_MAX, wanted, e);
    if (!st && picture_is_one(str_text(&text), text.n)) {
        size_t n = text.n;
        st = pictures_add(&g->seen, (uint8_t *)str_take(&text), n, "stdin", e);
    } else if (!st) {
        str_put(&g->prompt, str_text(&text), text.n);
    }
    str_free(&text);
    return st;
}

/* Joins the parts of the prompt: file, stdin, words, with a blank line between them. With
 * --compress file and stdin go before the words: the last message is never shortened. */
static status gather(const run_options *o, int n_words, char **words, gathered *g, err *e)
{
    str *out = &g->prompt, *before = &g->files;
    bool apart = compress_wanted(&o->compress) && n_words && !o->raw;
    bool from_stdin = o->prompt_file && !strcmp(o->prompt_file, "-");
    const option *taker = taker_of_stdin(o);
    status st;
    if (from_stdin && taker)
        return err_set(e, E_ARG, "--prompt and --%s cannot both read stdin", taker->name);
    if (o->prompt_file && !from_stdin) {
        char *bytes;
        size_t n;
        struct stat sb;
        if (stat(o->prompt_file, &sb) && errno == ENOENT)
            return err_set(e, E_IO,
                           "%s: there is no such file; -p names a file, and the words of a prompt "
                           "stand without an option: carat run \"...\"",
                           o->prompt_file);
        if ((st = file_read_all(o->prompt_file, PROMPT_MAX, &bytes, &n, e)))
            return st;
        str_put(out, bytes, n);
        mem_free(bytes);
    }
    if (from_stdin || (!taker && !isatty(STDIN_FILENO) && (!o->prompt_file || !n_words)))
        if ((st = read_stdin(g, from_stdin, e)))
            return st;
    if (!o->raw)
        drop_last_newline(out);
    if (apart && out->n) {
        if (before->n)
            str_putc(before, '\n');
        str_put(before, out->at, out->n);
        str_cut(out, 0);
    }
    if (out->n && n_words && !o->raw)
        str_puts(out, "\n\n");
    g->words_at = out->n;
    for (int i = 0; i < n_words; i++) {
        if (i)
            str_puts(out, " ");
        str_puts(out, words[i]);
    }
    return out->bad || before->bad ? err_memory(e, "the prompt", out->n + before->n) : OK;
}

static status gather_files(const run_options *o, gathered *g, err *e)
{
    str *out = &g->files;
    file_form form = o->raw ? FILE_ALONE : compress_wanted(&o->compress) ? FILE_NAMED : FILE_FENCED;
    status st;
    for (int i = 0; i < o->files.n; i++) {
        if ((st = message_add_file(out, &g->seen, o->files.at[i], form, e)))
            return st;
        if (out->n > PROMPT_MAX)
            return err_set(e, E_LIMIT, "--file: files of more than %d bytes", PROMPT_MAX);
    }
    return OK;
}

/* Answers one prompt. With --result, also gives the model its tool results and shows the answers
 * that follow. */
static status answer_once(chat *c, const run_options *o, const str *prompt, err *e)
{
    status st;
    if ((prompt->n || c->n_files || c->n_next) &&
        (st = chat_add_user(c, str_text(prompt), prompt->n, e)))
        return st;
    if ((st = chat_answer(c, e)))
        return st;
    if (c->mcp && (st = chat_run_tools(c, e)))
        return st;
    const option_list *results = &o->result;
    int next = 0;
    for (int round = 0; results->n && chat_open_calls(c) && round < RESULT_ROUNDS_MAX; round++) {
        const char *given[CALLS_MAX];
        int n_given = 0;
        if (chat_open_calls(c) > CALLS_MAX)
            return err_set(e, E_LIMIT, "an answer with more than %d tool calls", CALLS_MAX);
        while (chat_open_calls(c)) {
            const char *result = results->at[next < results->n ? next++ : results->n - 1];
            term_note("result: %s", result);
            if ((st = chat_add_result(c, result, e)))
                return st;
            given[n_given++] = result;
        }
        if (c->out.format == ANSWER_OBJECT && (st = answer_keep_calls(&c->out, given, e)))
            return st;
        if ((st = chat_answer(c, e)) || (c->mcp && (st = chat_run_tools(c, e))))
            return st;
    }
    return OK;
}

/* What options say that a table of options cannot check. --format decides what stdout is, --json
 * and --json-schema what the answer is. Returns 0, or the exit status + 1 after a sentence. Leaves
 * NULL in o->format for plain text. */
static int check_values(run_options *o)
{
    if (o->format && !strcmp(o->format, "text"))
        o->format = NULL;
    if (o->format && strcmp(o->format, "json"))
        fprintf(stderr, "carat run: --format %s: expected text or json\n", SHOWN(o->format));
    else if (o->format && o->json_events)
        fprintf(stderr, "carat run: --format json and --json-events exclude each other\n");
    else if (o->effort && !effort_known(o->effort))
        fprintf(stderr, "carat run: --effort %s: expected " EFFORT_LEVELS "\n", SHOWN(o->effort));
    else
        return 0;
    return 3;
}

/* Is there something to answer, and a terminal where one is needed? An exit status after a
 * sentence; 0: yes. What stdin held is read by now; a conversation goes on at the terminal. */
static int check_task(const run_options *o, bool converse, bool tty, bool empty)
{
    if (o->interactive && !tty && !term_take_terminal())
        fprintf(stderr, "carat run: --interactive needs a terminal, and there is none\n");
    else if (converse && o->format)
        fprintf(stderr, "carat run: --format json is for one answer, not for a conversation\n");
    else if (!converse && empty && !o->messages_file)
        fprintf(stderr, "carat run: the prompt is empty\nTry 'carat run --help'.\n");
    else
        return 0;
    return 2;
}

/* The words of the command line may name pictures. */
static status take_word_paths(chat *c, str *prompt, size_t words_at, err *e)
{
    str words = {0};
    status st = chat_take_paths(c, str_text(prompt) + words_at, &words, e);
    if (!st) {
        str_cut(prompt, words_at);
        str_put(prompt, str_text(&words), words.n);
        st = prompt->bad ? err_memory(e, "the prompt", words_at + words.n) : OK;
    }
    str_free(&words);
    return st;
}

static void begin_chat(chat *c, const run_options *o, bool converse)
{
    if (!c->seed_given)
        c->sampling.seed = sample_random_seed();
    if (converse)
        c->out.interactive = true;
    c->keep = converse && !o->no_history && !conversations_off();
}

/* The answer, with --format json. */
static status print_object(chat *c, err *e)
{
    const compression_report told = chat_told(c);
    return answer_print_object(&c->out, &c->timings, c->s, c->info.name,
                               c->compresses ? &told : NULL, e);
}

static int run_run(const command *cmd, int argc, char **argv)
{
    run_options o = run_usual;
    bool literal = run_has_dashes(argc, argv);
    config settings;
    int n_words, code = 0, bad = config_parse(cmd, argc, argv, &o, &n_words, &settings);
    chat c = {0};
    mcp_specs specs = {.n = 0};
    gathered g = {.words_at = 0};
    model_found pulled;
    made_run made = {0};
    kept_talk kept = {0};
    talk_place place = {0};
    err e = {0};
    status st;

    if (bad || (bad = check_values(&o))) {
        config_free(&settings);
        return bad - 1;
    }
    term_init();
    term_watch(NULL);
    o.model_typed = config_typed(&settings, cmd, "model") || o.hub.repo;
    pulled = (model_found){0};
    if ((st = run_take_model(&o, &n_words, &argv, literal, &e)) ||
        (st = hub_options_take(&o.hub, &o.model, &pulled, &e)) ||
        (st = run_take_made(&o, &settings, &made, &e)) ||
        (bad = options_check(cmd, &o, &settings.marks, settings.origin))) {
        if (st)
            term_error(&e);
        made_run_free(&made);
        model_found_free(&pulled);
        config_free(&settings);
        return bad ? bad - 1 : st == E_CANCELLED ? EXIT_INTERRUPTED : st == E_ARG ? 2 : 1;
    }
    bool tty = isatty(STDIN_FILENO);
    bool converse = o.interactive || (tty && !n_words && !o.prompt_file && !o.single_turn);
    if ((st = gather_files(&o, &g, &e)) || (st = gather(&o, n_words, argv, &g, &e)))
        goto out;
    if ((code = check_task(&o, converse, tty, !g.prompt.n && !g.files.n && !g.seen.n)))
        goto out;
    if (o.resume && o.messages_file) {
        st = err_set(&e, E_ARG, "--resume and --messages exclude each other");
        goto out;
    }
    if ((st = mcp_options_specs(&o.mcp, &settings, &specs, &e)))
        goto out;
    if (o.resume && (st = chat_find_talk(o.resume, &o, &kept, &place, &e)))
        goto out;
    /* A bad prompt is reported before the model is loaded, which may take long. */
    if (!o.raw && (st = check_utf8("the prompt", str_text(&g.prompt), g.prompt.n, &e)))
        goto out;
    /* An answer without pictures needs no tower. */
    bool paths = !o.raw && has_picture_path(str_text(&g.prompt) + g.words_at);
    o.sees = converse || g.seen.n || paths || o.messages_file || o.resume || made.messages.n ||
             o.mmproj.file;
    /* Loading may take long, and the user may paste meanwhile. */
    if (converse)
        term_converse(true);
    term_hold_keys();
    if ((st = chat_open(&c, &o, &e)) || (st = run_begin_made(&c, &o, &made, &e)))
        goto out;
    begin_chat(&c, &o, converse);
    c.specs = specs; /* which the conversation frees */
    specs = (mcp_specs){.n = 0};
    if (c.specs.n && (st = chat_open_mcp(&c, &e)))
        goto out;
    if (kept.all && (st = chat_resume(&c, &kept, &place, &e)))
        goto out;
    if (kept.all && converse && !g.prompt.n)
        chat_show_last(&c);
    c.files = g.files;
    c.n_files = !g.files.n ? 0 : o.files.n > g.seen.n ? o.files.n - g.seen.n : 1;
    g.files = (str){0};
    if ((st = chat_take_pictures(&c, &g.seen, &e)) ||
        (st = take_word_paths(&c, &g.prompt, g.words_at, &e)))
        goto out;
    if (g.prompt.n || (!converse && (o.messages_file || c.n_files || c.n_next))) {
        if ((st = answer_once(&c, &o, &g.prompt, &e)) || (o.format && (st = print_object(&c, &e))))
            goto out;
        if (!converse && (c.out.finish == CARAT_FINISH_CANCELLED || (c.mcp && term_interrupts())))
            code = EXIT_INTERRUPTED;
    }
    if (converse)
        code = run_interactive(&c, &o);
out:
    if (st) {
        if (st != E_CANCELLED || !term_interrupts())
            term_error(&e);
        code = st == E_CANCELLED ? EXIT_INTERRUPTED : 1;
    }
    chat_close(&c);
    mcp_specs_free(&specs);
    made_run_free(&made);
    model_found_free(&pulled);
    config_free(&settings);
    term_converse(false);
    gathered_free(&g);
    kept_free(&kept); /* o.model may be a string of it */
    return code;
}

const command command_run = {
    .name = "run",
    .operands = "[PROMPT...]",
    .summary = "Answer a prompt, or hold a conversation",
    .about =
        "Without -m it uses the model that is part of the program. With words on the command line\n"
        "it answers them once; what stdin holds, if it is no terminal, is put in front of them.\n"
        "With neither, on a terminal, it holds a conversation: /help there lists its commands.\n\n"
        "A path to a PNG, JPEG or WebP file in the words, such as ./a.png, ~/a.png, /tmp/a.png or\n"
        "file:///tmp/a.png, is a picture for a model that sees; \"picture 1\" takes its place. A "
        "WAV,\n"
        "FLAC, MP3 or Ogg file is a sound for a model that hears, \"sound 1\". -f and, in a\n"
        "conversation, /file take files by any name, and dropping one works too.\n\n"
        "The answer goes to stdout, everything else to stderr. A tool call of a one-shot run is\n"
        "printed as one line of JSON with name and arguments.\n\n"
        "Ctrl-C ends the answer; a second one ends the program. NO_COLOR is respected. The "
        "typed\n"
        "lines and the conversations on a terminal are kept in $XDG_STATE_HOME/carat\n"
        "(~/.local/state/carat by default), for you alone: see carat help history. --no-history,\n"
        "or CARAT_NO_HISTORY in the environment, keeps neither.",
    .options = table,
    .first = "model hf-repo file tokens system think no-think resume temp seed ctx kv-type draft "
             "device verbose",
    .n_operands_max = -1,
    .run = run_run};
