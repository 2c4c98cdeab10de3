/* run_commands.c - the /commands of a conversation, in one table: help, completion, dispatch.
 *
 * A command without its argument shows what it would change. Settings are options of `carat run`
 * by name, so that /set knows every sampling option that the command line knows, with its bounds.
 * The spellings of ollama's /set work where they mean something here.
 */
#include "apps/commands.h"
#include "apps/run_int.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/nearest.h"

#include <math.h>
#include <string.h>

static const char *on_off(bool on)
{
    return on ? "on" : "off";
}

/* ---- Showing --------------------------------------------------------------------------- */

/* A label of 11 cells, then text of the user, the model or a file. */
static void show_text(const char *label, const char *text)
{
    fprintf(stderr, "%-10s ", label);
    term_put(stderr, text, strlen(text));
    fputs("\n", stderr);
}

static void show_system(const chat *c)
{
    show_text("system", c->system ? c->system : "none; /system TEXT sets it");
}

/* Tools of MCP servers, and which of them run without a question. */
static void show_mcp_tools(const chat *c, bool first)
{
    for (size_t i = 0; c->mcp && i < mcp_set_count(c->mcp); i++) {
        const mcp_tool *t = mcp_set_at(c->mcp, i);
        char line[320];
        snprintf(line, sizeof line, "%s (%s%s)%s%.120s", t->name, t->server,
                 t->automatic || t->allowed ? ", without a question" : "", *t->about ? ": " : "",
                 t->about);
        line[strcspn(line, "\n")] = 0;
        show_text(first && !i ? "tools" : "", line);
    }
}

static void show_tools(const chat *c)
{
    if (!c->tools && c->mcp) {
        show_mcp_tools(c, true);
        return;
    }
    err e = {0};
    json_t *list = NULL;
    if (!c->tools || json_parse(&list, c->tools, strlen(c->tools), "tools", &e)) {
        show_text("tools", c->tools ? e.text : "none; /tools FILE declares them");
        return;
    }
    size_t n = json_array_size(list);
    for (size_t i = 0; i < n; i++) {
        json_t *tool = json_array_get(list, i), *fn = json_object_get(tool, "function");
        fn = fn ? fn : tool;
        const char *name = json_string_value(json_object_get(fn, "name"));
        const char *about = json_string_value(json_object_get(fn, "description"));
        char line[256];
        snprintf(line, sizeof line, "%.80s%s%.120s", name ? name : "(without a name)",
                 about ? ": " : "", about ? about : "");
        line[strcspn(line, "\n")] = 0;
        show_text(i ? "" : "tools", line);
    }
    if (!n)
        show_text("tools", "none in the list");
    show_mcp_tools(c, false);
    json_decref(list);
}

static void show_files(const chat *c)
{
    char line[96];
    if (!c->n_files && !c->n_next)
        snprintf(line, sizeof line, "none; /file PATH puts one into the next message");
    else if (!c->n_files)
        snprintf(line, sizeof line, "%d %s%s with the next message", (int)c->n_next,
                 chat_next_kind(c), c->n_next == 1 ? " goes" : "s go");
    else
        snprintf(line, sizeof line, "%d with %zu bytes go with the next message", c->n_files,
                 c->files.n);
    show_text("files", line);
}

/* The four that are nearly always on, and what differs from the usual. */
static void put_sampling(const chat *c, char *line, size_t cap)
{
    enum { ALWAYS = 4 };
    const carat_sampling *p = &c->sampling;
    int32_t n;
    const carat_sampling_setting *all = carat_sampling_settings(&n);
    size_t at = 0;
    for (int32_t i = 0; i < n && at < cap; i++) {
        double v = carat_sampling_get(p, &all[i]);
        if (i < ALWAYS || fabs(v - all[i].usual) > 1e-6)
            at += (size_t)snprintf(line + at, cap - at, "%s %g, ", all[i].flag, v);
    }
    if (at < cap && p->n_bias)
        at += (size_t)snprintf(line + at, cap - at, "%d biases, ", p->n_bias);
    if (at < cap)
        snprintf(line + at, cap - at, "seed %u%s", p->seed, c->seed_given ? "" : " (random)");
}

static void show_settings(const chat *c)
{
    char line[1024], limit[32] = "none";
    put_sampling(c, line, sizeof line);
    show_text("sampling", line);
    if (c->max_tokens)
        snprintf(limit, sizeof limit, "%d tokens", c->max_tokens);
    snprintf(line, sizeof line, "%s%s%s, limit %s, form %s", on_off(c->thinking),
             c->o.effort ? ", effort " : "", c->o.effort ? c->o.effort : "", limit,
             !c->has_form                                ? "free"
             : c->form_kind == CARAT_GRAMMAR_JSON        ? "JSON"
             : c->form_kind == CARAT_GRAMMAR_JSON_SCHEMA ? "JSON by a schema"
                                                         : "a grammar");
    show_text("thinking", line);
    for (int i = 0; i < c->o.stop.n; i++)
        show_text(i ? "" : "stop", c->o.stop.at[i]);
}

static void show_stats(const chat *c)
{
    const carat_model_info *i = &c->info;
    const carat_timings *t = &c->timings;
    char line[1024];
    int64_t n_dropped;
    const char *reuse = carat_session_reuse(c->s, &n_dropped);
    fputs("model      ", stderr);
    term_put_name(stderr, i->name, strlen(i->name), 0);
    fprintf(stderr, ", %s, %s, %.2f M parameters\n", i->architecture, i->file_type,
            (double)i->n_params * 1e-6);
    fprintf(stderr, "device     %s: %s\n", i->device, i->device_why);
    fprintf(stderr, "context    %lld of %d tokens\n", (long long)carat_session_n_past(c->s),
            carat_session_n_ctx(c->s));
    fprintf(stderr, "memory     %.1f MiB weights, %.1f MiB at the peak\n",
            (double)i->weight_bytes * 0x1p-20, (double)t->peak_bytes * 0x1p-20);
    put_sampling(c, line, sizeof line);
    fprintf(stderr, "sampling   %s\n", line);
    fprintf(stderr, "thinking   %s\n", c->thinking ? "on" : "off");
    if (t->n_prompt)
        fprintf(stderr,
                "last turn  %lld prompt tokens in %.0f ms (%lld reused: %s), %lld answer "
                "tokens in %.0f ms\n",
                (long long)t->n_prompt, t->prefill_ms, (long long)t->n_reused, reuse,
                (long long)t->n_generated, t->decode_ms);
}

static status show_tokens(const chat *c, const char *text, err *e)
{
    size_t n_text = strlen(text);
    int64_t n = carat_tokenize(c->m, text, n_text, CARAT_TOK_SPECIAL, NULL, 0, e);
    int32_t *ids = n >= 0 ? mem_calloc((size_t)n, sizeof *ids) : NULL;
    if (n < 0)
        return e->status;
    if (!ids)
        return err_memory(e, "tokens", (size_t)n * sizeof *ids);
    carat_tokenize(c->m, text, n_text, CARAT_TOK_SPECIAL, ids, n, e);
    for (int64_t i = 0; i < n; i++) {
        const char *bytes;
        int32_t len = carat_token_bytes(c->m, ids[i], true, &bytes);
        fprintf(stderr, "%d '", ids[i]);
        term_put(stderr, bytes, len > 0 ? (size_t)len : 0);
        fputs("'  ", stderr);
    }
    fprintf(stderr, "\n%lld tokens\n", (long long)n);
    mem_free(ids);
    return OK;
}

static status cmd_show(chat *c, const char *arg, slash_result *r, err *e)
{
    (void)r;
    bool all = !*arg;
    if (all || !strcmp(arg, "system"))
        show_system(c);
    if (all || !strcmp(arg, "tools"))
        show_tools(c);
    if (all || !strcmp(arg, "files"))
        show_files(c);
    if (all || !strcmp(arg, "settings") || !strcmp(arg, "parameters"))
        show_settings(c);
    else if (!strcmp(arg, "info"))
        show_stats(c);
    else if (strcmp(arg, "system") && strcmp(arg, "tools") && strcmp(arg, "files"))
        return err_set(e, E_ARG, "/show %.40s: expected system, tools, files, settings or info",
                       arg);
    return OK;
}

/* ---- Settings -------------------------------------------------------------------------- */

/* Options of `carat run` that may change between two answers. */
#define FLAG(kind, field, name, also, key, flag, ...) flag,
static const char *const settings[] = {CARAT_SAMPLING_SETTINGS(FLAG, ) "seed",
                                       "tokens",
                                       "effort",
                                       "stop",
                                       "dry-sequence-breaker",
                                       "samplers",
                                       NULL};
#undef FLAG

static status set_option(chat *c, const char *given, const char *value, err *e)
{
    const option *table = command_run.options;
    const char *name = strcmp(given, "limit") ? given : "tokens";
    const option *row = options_find_any(table, name);
    size_t n = 0;
    while (settings[n] && (!row || strcmp(settings[n], row->name)))
        n++;
    if (!settings[n]) {
        const char *near = nearest_word(name, settings, n);
        return row ? err_set(e, E_ARG, "%.40s is set when carat starts: carat run --%s", given,
                             row->name)
                   : err_set(e, E_ARG, "there is no setting '%.40s'%s%s%s", given,
                             near ? "; did you mean '" : ": /set and Tab list them",
                             near ? near : "", near ? "'?" : "");
    }
    run_options before = c->o;
    char *kept = NULL; /* a string must live as long as the options */
    if ((row->kind == OPTION_STR || row->kind == OPTION_LIST) && *value &&
        !(kept = chat_keep_text(c, value)))
        return err_memory(e, "a setting", strlen(value));
    status st = options_set(table, name, kept ? kept : *value ? value : NULL, &c->o, NULL, 0, e);
    if (!st && !strcmp(row->name, "temp"))
        c->o.greedy = false; /* which would win */
    if (!st)
        st = chat_apply_settings(c, e);
    if (st)
        c->o = before;
    else
        term_note("%s is %s", given, value);
    return st;
}

static status set_form(chat *c, const char *arg, err *e)
{
    if (strcmp(arg, "json"))
        return err_set(e, E_ARG,
                       "/set format %.40s: expected json; carat run --json-schema FILE "
                       "takes a schema",
                       arg);
    c->has_form = true;
    c->form_kind = CARAT_GRAMMAR_JSON;
    term_note("answers are JSON objects; /set noformat ends that");
    return OK;
}

static status set_system(chat *c, const char *arg, err *e)
{
    bool none = !strcmp(arg, "none");
    status st = chat_set_system(c, none ? NULL : arg, e);
    if (!st)
        term_note(none ? "the system message is removed" : "the system message is set");
    return st;
}

static status set_thinking(chat *c, bool on)
{
    c->thinking = on;
    term_note("thinking is %s", on_off(on));
    return OK;
}

/* `name` is the first word of arg, `value` is what follows. */
static status set_by_name(chat *c, const char *name, const char *value, err *e)
{
    static const struct {
        const char *name;
        bool on;
    } switches[] = {{"verbose", true}, {"quiet", false}, {"wordwrap", true}, {"nowordwrap", false}};
    if (!strcmp(name, "system") && *value)
        return set_system(c, value, e);
    if (!strcmp(name, "format"))
        return set_form(c, value, e);
    if (!strcmp(name, "think") || !strcmp(name, "nothink"))
        return set_thinking(c, name[0] == 't');
    if (!strcmp(name, "history") || !strcmp(name, "nohistory")) {
        c->keep = name[0] == 'h' && !conversations_off();
        c->o.no_history = !c->keep; /* the lines typed in this run are not kept either */
        term_note("this conversation is %s", c->keep ? "kept" : "not kept from here on");
        return OK;
    }
    if (!strcmp(name, "noformat")) {
        c->has_form = false;
        term_note("answers have any form");
        return OK;
    }
    for (size_t i = 0; i < sizeof switches / sizeof *switches; i++)
        if (!strcmp(name, switches[i].name)) {
            if (i < 2)
                c->quiet = !switches[i].on;
            else
                term_wrap_lines(switches[i].on);
            term_note(i < 2 ? "a line of speeds after each answer: %s"
                            : "lines broken at words: %s",
                      on_off(switches[i].on));
            return OK;
        }
    return set_option(c, name, value, e);
}

static status cmd_set(chat *c, const char *arg, slash_result *r, err *e)
{
    char name[48];
    (void)r;
    for (int round = 0;; round++) {
        size_t n = strcspn(arg, " \t\n");
        if (!n) {
            show_settings(c);
            return OK;
        }
        snprintf(name, sizeof name, "%.*s", (int)(n < sizeof name ? n : sizeof name - 1), arg);
        arg += n + strspn(arg + n, " \t\n");
        if (round || strcmp(name, "parameter"))
            return set_by_name(c, name, arg, e);
    }
}

/* ---- The other commands ---------------------------------------------------------------- */

static status cmd_quit(chat *c, const char *arg, slash_result *r, err *e)
{
    (void)c, (void)arg, (void)e;
    r->quit = true;
    return OK;
}

static status cmd_clear(chat *c, const char *arg, slash_result *r, err *e)
{
    (void)arg, (void)e;
    r->cleared = true;
    chat_clear(c);
    term_note("the conversation is empty");
    return OK;
}

static status cmd_regen(chat *c, const char *arg, slash_result *r, err *e)
{
    (void)arg;
    if (!chat_drop_answer(c))
        return err_set(e, E_ARG, "there is no question to answer again");
    c->sampling.seed++; /* with the same seed the answer would be the same */
    r->speak_now = true;
    return OK;
}

static status cmd_undo(chat *c, const char *arg, slash_result *r, err *e)
{
    (void)arg;
    if (!chat_undo(c))
        return err_set(e, E_ARG, "there is nothing to take back");
    r->undone = true;
    term_note("took back the last question");
    return OK;
}

static status cmd_drop(chat *c, const char *arg, slash_result *r, err *e)
{
    double n = 0;
    if (c->raw)
        return err_set(e, E_ARG, "/drop needs a conversation: with --raw there are no turns");
    if (*arg && (!options_number(arg, &n) || !(n >= 1 && n <= 1e6)))
        return err_set(e, E_ARG, "/drop %.40s: expected a number of turns", arg);
    return chat_drop_turns(c, (int64_t)n, r, e);
}

static status cmd_summary(chat *c, const char *arg, slash_result *r, err *e)
{
    (void)arg;
    return c->raw ? err_set(e, E_ARG, "/summary needs a conversation: with --raw there is none")
                  : chat_summarise(c, r, e);
}

static status cmd_system(chat *c, const char *arg, slash_result *r, err *e)
{
    (void)r;
    if (*arg)
        return set_system(c, arg, e);
    show_system(c);
    return OK;
}

static status cmd_think(chat *c, const char *arg, slash_result *r, err *e)
{
    (void)r;
    if (!*arg)
        term_note("thinking is %s", on_off(c->thinking));
    else if (strcmp(arg, "on") && strcmp(arg, "off"))
        return err_set(e, E_ARG, "/think on or /think off; it is %s", on_off(c->thinking));
    return *arg ? set_thinking(c, !strcmp(arg, "on")) : OK;
}

static status cmd_file(chat *c, const char *arg, slash_result *r, err *e)
{
    (void)r;
    if (!strcmp(arg, "none")) {
        str_cut(&c->files, 0);
        c->n_files = 0;
        c->n_next = 0;
    } else if (*arg) {
        pictures found = {0};
        size_t before = c->files.n;
        int n_files = c->n_files;
        status st = message_add_files(&c->files, &n_files, &found, arg,
                                      c->raw          ? FILE_ALONE
                                      : c->compresses ? FILE_NAMED
                                                      : FILE_FENCED,
                                      e);
        chat_count_anew(c); /* a turn with pictures may have been taken back */
        if (!st && (st = chat_take_pictures(c, &found, e)))
            str_cut(&c->files, before);
        pictures_free(&found);
        if (st)
            return st;
        c->n_files = n_files;
    }
    show_files(c);
    return OK;
}

static status cmd_tools(chat *c, const char *arg, slash_result *r, err *e)
{
    (void)r;
    if (!strcmp(arg, "none"))
        chat_drop_tools(c);
    else if (*arg) {
        status st = chat_load_tools(c, arg, e);
        if (st)
            return st;
    }
    show_tools(c);
    return OK;
}

static status cmd_result(chat *c, const char *arg, slash_result *r, err *e)
{
    status st = chat_add_result(c, arg, e);
    r->speak_now = !st && !chat_open_calls(c);
    return st;
}

static status cmd_name(chat *c, const char *arg, slash_result *r, err *e)
{
    (void)r;
    if (!*arg)
        return err_set(e, E_ARG, "/name needs a title: /name TEXT; it is '%s'",
                       c->title ? c->title : "");
    status st = check_utf8("the title", arg, strlen(arg), e);
    if (st)
        return st;
    chat_name(c, arg);
    c->named = true;
    chat_keep(c);
    return OK;
}

static status cmd_save(chat *c, const char *arg, slash_result *r, err *e)
{
    (void)r;
    status st = *arg ? chat_save(c, arg, e) : err_set(e, E_ARG, "/save needs a file: /save FILE");
    if (!st)
        term_note("saved %s", arg);
    return st;
}

static status cmd_load(chat *c, const char *arg, slash_result *r, err *e)
{
    (void)r;
    status st = *arg ? chat_load(c, arg, e) : err_set(e, E_ARG, "/load needs a file: /load FILE");
    if (!st) { /* the conversation before stays as it was kept */
        c->talk = (talk_place){0};
        c->title = NULL;
        c->named = false;
    }
    if (!st)
        term_note("loaded %zu messages", c->messages.n);
    return st;
}

static status cmd_tokens(chat *c, const char *arg, slash_result *r, err *e)
{
    (void)r;
    return show_tokens(c, arg, e);
}

static status cmd_stats(chat *c, const char *arg, slash_result *r, err *e)
{
    (void)arg, (void)r, (void)e;
    show_stats(c);
    return OK;
}

static status cmd_help(chat *c, const char *arg, slash_result *r, err *e);

/* ---- The table ------------------------------------------------------------------------- */

const slash_command slash_commands[] = {
    {"help", "", "show this list", SLASH_NONE, NULL, cmd_help},
    {"clear", "", "delete the conversation", SLASH_NONE, NULL, cmd_clear},
    {"regen", "", "answer the last question again", SLASH_NONE, NULL, cmd_regen},
    {"undo", "", "take back the last question and its answer", SLASH_NONE, NULL, cmd_undo},
    {"drop", "[N]", "drop the oldest turns: N, or as many as a full context needs", SLASH_NONE,
     NULL, cmd_drop},
    {"summary", "", "begin anew with a summary of the conversation, which is shown", SLASH_NONE,
     NULL, cmd_summary},
    {"file", "[PATH... | none]",
     "put text files, pictures or sounds into the next message (also /image)", SLASH_FILES, NULL,
     cmd_file},
    {"system", "[TEXT | none]", "show, set or remove the system message", SLASH_WORD, "none",
     cmd_system},
    {"tools", "[FILE | none]", "show the tools, declare them (JSON) or remove them", SLASH_FILE,
     NULL, cmd_tools},
    {"result", "TEXT", "answer the model's tool call", SLASH_NONE, NULL, cmd_result},
    {"think", "[on | off]", "let the model think before it answers", SLASH_WORD, "on off",
     cmd_think},
    {"show", "[WHAT]", "show system, tools, files, settings or info; without WHAT all but info",
     SLASH_WORD, "system tools files settings info", cmd_show},
    {"set", "[NAME VALUE]", "change a setting: temp, top-k, top-p, min-p, seed, tokens, ...",
     SLASH_WORD,
     SAMPLE_FLAGS "seed tokens effort stop dry-sequence-breaker samplers system think nothink "
                  "format noformat verbose quiet wordwrap nowordwrap history nohistory",
     cmd_set},
    {"name", "TEXT", "give the conversation a title for carat history", SLASH_NONE, NULL, cmd_name},
    {"save", "FILE", "write the conversation as JSON", SLASH_FILE, NULL, cmd_save},
    {"load", "FILE", "continue the conversation in such a file", SLASH_FILE, NULL, cmd_load},
    {"tokens", "TEXT", "show the tokens of TEXT", SLASH_NONE, NULL, cmd_tokens},
    {"stats", "", "model, memory, settings and the last answer's speed", SLASH_NONE, NULL,
     cmd_stats},
    {"quit", "", "leave (also /bye, Ctrl-D)", SLASH_NONE, NULL, cmd_quit},
    {0}};

/* Spellings that people bring along; /temp X is /set temp X, and so on. */
static const char *const aliases[][2] = {{"?", "help"},      {"exit", "quit"},  {"bye", "quit"},
                                         {"attach", "file"}, {"files", "file"}, {"image", "file"}};
static const char *const settings_as_commands[] = {"temp",  "top-k", "top-p",
                                                   "min-p", "seed",  "limit"};

static status cmd_help(chat *c, const char *arg, slash_result *r, err *e)
{
    (void)c, (void)arg, (void)r, (void)e;
    for (const slash_command *s = slash_commands; s->name; s++) {
        char left[64];
        snprintf(left, sizeof left, "/%s %s", s->name, s->args);
        term_help_line(left, s->help);
    }
    static const char more[] = "/temp X, /top-k N, /top-p X, /min-p X, /seed N and /limit N are "
                               "short for /set. A backslash "
                               "at the end of a line, or \"\"\" around several, makes one message "
                               "of many lines; a paste of "
                               "several lines is one message. Tab completes commands and files.";
    word_wrap w = {0};
    term_put_words(stderr, &w, more, sizeof more - 1);
    term_end_words(stderr, &w);
    fputs("\n", stderr);
    return OK;
}

static status no_such_command(const char *name, err *e)
{
    const char *names[sizeof slash_commands / sizeof *slash_commands];
    size_t n = 0;
    for (const slash_command *s = slash_commands; s->name; s++)
        names[n++] = s->name;
    const char *near = nearest_word(name, names, n);
    if (near)
        return err_set(e, E_ARG, "there is no command /%s; did you mean /%s?", name, near);
    return err_set(e, E_ARG, "there is no command /%s: /help lists them", name);
}

status slash_run(chat *c, const char *line, slash_result *r, err *e)
{
    char name[16];
    size_t n = strcspn(line + 1, " \t\n");
    const char *arg = line + 1 + n + strspn(line + 1 + n, " \t\n");
    snprintf(name, sizeof name, "%.*s", n < sizeof name ? (int)n : (int)sizeof name - 1, line + 1);
    *r = (slash_result){0};
    for (size_t i = 0; i < sizeof aliases / sizeof *aliases; i++)
        if (!strcmp(name, aliases[i][0]))
            snprintf(name, sizeof name, "%s", aliases[i][1]);
    for (size_t i = 0; i < sizeof settings_as_commands / sizeof *settings_as_commands; i++)
        if (!strcmp(name, settings_as_commands[i]))
            return set_option(c, name, arg, e);
    for (const slash_command *s = slash_commands; s->name; s++)
        if (!strcmp(name, s->name))
            return s->run(c, arg, r, e);
    return no_such_command(name, e);
}
