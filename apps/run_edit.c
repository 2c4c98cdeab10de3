/* run_edit.c - the conversation on a terminal: line editing, history, /commands.
 *
 * While a line is edited, Ctrl-C is a key, bound to drop_line, and raises no signal. While an
 * answer runs, Ctrl-C is SIGINT, and term_watch cancels the session. So Ctrl-C never ends the
 * program.
 */
#include "apps/run_int.h"
#include "base/map.h"
#include "base/mem.h"

#include <errno.h>
#include <histedit.h>
#include <pwd.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <wchar.h>

enum {
    HISTORY_LINES = 1000,
    PATH_BYTES = 4096,
    PASTE_MAX = 256 << 10 /* characters; libedit redraws the whole line at every key */
};

typedef struct editor {
    EditLine *el;
    History *history;
    HistEvent ev;
    char history_path[PATH_BYTES];
    const char *prompt;
    str typed;    /* the messages typed in this run, each with a NUL after it */
    bool dropped; /* Ctrl-C ended the last line */
    bool pasted;  /* the last line began with a paste of several lines */
} editor;

/* ---- Lines ----------------------------------------------------------------------------- */

static char *prompt_of(EditLine *el)
{
    editor *ed;
    el_get(el, EL_CLIENTDATA, &ed);
    return (char *)ed->prompt;
}

static unsigned char drop_line(EditLine *el, wint_t key)
{
    editor *ed;
    (void)key;
    el_get(el, EL_CLIENTDATA, &ed);
    ed->dropped = true;
    return CC_NEWLINE;
}

static bool has_end(const wchar_t *text, size_t n, const wchar_t *end)
{
    size_t n_end = wcslen(end);
    return n >= n_end && !wmemcmp(text + n - n_end, end, n_end);
}

/* Removes control characters and turns every CR LF and CR into LF. Returns the new length. */
static size_t clean_paste(wchar_t *text, size_t n)
{
    size_t n_kept = 0;
    wchar_t before = 0;
    for (size_t i = 0; i < n; i++) {
        wchar_t c = text[i];
        if (c == L'\r' || (c == L'\n' && before != L'\r'))
            text[n_kept++] = L'\n';
        else if (c == L'\t' || (c >= 0x20 && !(c >= 0x7f && c < 0xa0)))
            text[n_kept++] = c;
        before = c;
    }
    return n_kept;
}

/* Bound to the sequence that begins a paste. Inserts all text up to the end mark, with its
 * newlines, into the line being edited. The message is sent when the user presses Enter. */
static unsigned char paste(EditLine *el, wint_t key)
{
    static const wchar_t end_mark[] = L"\033[201~";
    editor *ed;
    wchar_t *text = mem_alloc((PASTE_MAX + 1) * sizeof *text);
    size_t n = 0;
    bool too_long = !text;
    wchar_t last[6] = {0}, c;
    (void)key;
    el_get(el, EL_CLIENTDATA, &ed);
    while (el_wgetc(el, &c) == 1) {
        wmemmove(last, last + 1, 5);
        last[5] = c;
        if (n < PASTE_MAX && !too_long)
            text[n++] = c;
        else
            too_long = true;
        if (has_end(last, 6, end_mark))
            break;
    }
    if (too_long) {
        fputs("\n", stderr);
        term_note("a paste of more than %d characters is left out: carat run -i -p FILE reads one",
                  PASTE_MAX);
        mem_free(text);
        return CC_REDISPLAY;
    }
    if (has_end(text, n, end_mark))
        n -= 6;
    n = clean_paste(text, n);
    text[n] = 0;
    const LineInfoW *line = el_wline(el);
    if (line->cursor == line->buffer)
        ed->pasted = wcschr(text, L'\n') != NULL;
    if (n)
        el_winsertstr(el, text);
    mem_free(text);
    return CC_REFRESH;
}

/* Creates the parent directories of path, like mkdir -p. */
static void make_parents(char *path)
{
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        mkdir(path, 0700);
        *slash = '/';
    }
}

/* Sets path to "" if there is no home directory: the history is then not saved. */
static void find_history(char path[PATH_BYTES])
{
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    int n = 0;
    if (state && state[0] == '/')
        n = snprintf(path, PATH_BYTES, "%s/carat/history", state);
    else if (home && home[0] == '/')
        n = snprintf(path, PATH_BYTES, "%s/.local/state/carat/history", home);
    if (n <= 0 || n >= PATH_BYTES)
        path[0] = 0;
    else
        make_parents(path);
}

static bool editor_open(editor *ed)
{
    *ed = (editor){.prompt = ">>> "};
    term_converse(false); /* el_init saves the terminal's mode, to restore it later */
    ed->el = el_init("carat", stdin, stderr, stderr);
    ed->history = history_init();
    if (!ed->el || !ed->history)
        return false;
    find_history(ed->history_path);
    history(ed->history, &ed->ev, H_SETSIZE, HISTORY_LINES);
    history(ed->history, &ed->ev, H_SETUNIQUE, 1);
    if (ed->history_path[0])
        history(ed->history, &ed->ev, H_LOAD, ed->history_path);
    el_set(ed->el, EL_CLIENTDATA, ed);
    el_set(ed->el, EL_PROMPT, prompt_of);
    el_set(ed->el, EL_EDITOR, "emacs");
    el_set(ed->el, EL_HIST, history, ed->history);
    el_set(ed->el, EL_SIGNAL, 0);
    el_wset(ed->el, EL_ADDFN, L"carat-drop-line", L"drop the line", drop_line);
    el_wset(ed->el, EL_ADDFN, L"carat-paste", L"insert pasted text", paste);
    el_source(ed->el, NULL); /* the user's own ~/.editrc */
    el_set(ed->el, EL_SETTY, "-d", "-isig", NULL);
    el_set(ed->el, EL_BIND, "^C", "carat-drop-line", NULL);
    el_set(ed->el, EL_BIND, "^R", "em-inc-search-prev", NULL);
    /* In vi mode ESC alone is a key, and a binding that begins with ESC would break it. */
    const char *mode = NULL;
    if (!el_get(ed->el, EL_EDITOR, &mode) && mode && !strcmp(mode, "emacs")) {
        el_wset(ed->el, EL_BIND, L"\033[200~", L"carat-paste", NULL);
        term_converse(true);
    }
    return true;
}

/* Reads the history file again, because another run may have written it meanwhile, and appends the
 * messages of this run. The new file, with mode 0600, replaces the old one. */
static void save_history(editor *ed)
{
    History *all = history_init();
    FILE *text = tmpfile(); /* H_SAVE_FP calls fchmod, so a memory stream does not do */
    str bytes = {0};
    file_out f = {0};
    err e = {0};
    if (all && text) {
        char chunk[4096];
        history(all, &ed->ev, H_SETSIZE, HISTORY_LINES);
        history(all, &ed->ev, H_SETUNIQUE, 1);
        history(all, &ed->ev, H_LOAD, ed->history_path);
        for (size_t at = 0; at < ed->typed.n; at += strlen(ed->typed.at + at) + 1)
            history(all, &ed->ev, H_ENTER, ed->typed.at + at);
        bool whole = history(all, &ed->ev, H_SAVE_FP, text) >= 0 && !fseek(text, 0, SEEK_SET);
        for (size_t n; whole && (n = fread(chunk, 1, sizeof chunk, text));)
            str_put(&bytes, chunk, n);
        /* A failure to write is not reported: the history is a convenience. */
        if (whole && !ferror(text) && !bytes.bad &&
            (file_out_open_private(&f, ed->history_path, &e) ||
             file_out_write(&f, str_text(&bytes), bytes.n, &e) || file_out_commit(&f, &e)))
            file_out_discard(&f);
    }
    if (text)
        fclose(text);
    if (all)
        history_end(all);
    str_free(&bytes);
}

static void editor_close(editor *ed)
{
    if (ed->history && ed->history_path[0] && ed->typed.n)
        save_history(ed);
    str_free(&ed->typed);
    if (ed->history)
        history_end(ed->history);
    if (ed->el)
        el_end(ed->el);
    term_converse(false);
}

/* Appends one line to out, without its newline. False at the end of input. */
static bool read_line(editor *ed, const char *prompt, str *out)
{
    int n = 0;
    ed->prompt = prompt;
    ed->dropped = ed->pasted = false;
    el_set(ed->el, EL_PREP_TERM,
           1); /* before the prompt appears, so that Ctrl-C is a key by then */
    term_prompting(true);
    const char *line = el_gets(ed->el, &n);
    term_prompting(false);
    term_hold_keys();
    if (ed->dropped) {
        fputs("\n", stderr);
        return true;
    }
    if (!line || n <= 0)
        return false;
    if (line[n - 1] == '\n')
        n--;
    str_put(out, line, (size_t)n);
    return true;
}

/* Reads one message: a line, lines joined by backslashes, or the text between triple quotes. With
 * *is_text set it is a paste of several lines, in which slashes and quotes have no meaning. */
static bool read_edited_message(editor *ed, str *in, bool *is_text)
{
    bool quoted;
    str_cut(in, 0);
    if (!read_line(ed, ">>> ", in))
        return false;
    *is_text = ed->pasted && strchr(str_text(in), '\n');
    quoted = !*is_text && in->n >= 3 && !memcmp(in->at, "\"\"\"", 3);
    if (quoted)
        str_drop(in, 3);
    while (!ed->dropped && !*is_text) {
        char *end = quoted ? strstr(str_text(in), "\"\"\"") : NULL;
        if (end) {
            str_cut(in, (size_t)(end - in->at));
            break;
        }
        if (!quoted && (!in->n || in->at[in->n - 1] != '\\'))
            break;
        if (!quoted)
            str_cut(in, in->n - 1);
        if (in->n || !quoted)
            str_putc(in, '\n');
        if (!read_line(ed, "... ", in))
            break;
    }
    if (ed->dropped)
        str_cut(in, 0);
    else if (in->n && !in->bad) {
        history(ed->history, &ed->ev, H_ENTER, str_text(in));
        str_put(&ed->typed, str_text(in), strlen(str_text(in)) + 1);
    }
    return !in->bad;
}

/* ---- Commands -------------------------------------------------------------------------- */

static const char help_text[] =
    "/help              show this list\n"
    "/clear             delete the conversation\n"
    "/regen             answer the last question again\n"
    "/undo              take back the last question and its answer\n"
    "/system [TEXT]     set the system message, or remove it\n"
    "/think on|off      let the model think before it answers\n"
    "/tools FILE        declare tools (JSON)\n"
    "/result TEXT       answer the model's tool call\n"
    "/temp X /top-k N /top-p X /min-p X /seed N /limit N\n"
    "                   sampling, and the most tokens of an answer (0: no limit)\n"
    "/save FILE         write the conversation as JSON\n"
    "/load FILE         read one back\n"
    "/tokens TEXT       how the model reads TEXT\n"
    "/stats             model, memory, settings and the last answer's speed\n"
    "/quit              leave (also Ctrl-D)\n"
    "A backslash at the end of a line, or \"\"\" around several, makes one message of many "
    "lines;\na paste of several lines is one message.\n";

static void show_stats(const chat *c)
{
    const carat_model_info *i = &c->info;
    const carat_timings *t = &c->timings;
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
    fprintf(stderr,
            "sampling   temp %g, top-k %d, top-p %g, min-p %g, repeat-penalty %g, seed %u\n",
            c->sampling.temperature, c->sampling.top_k, c->sampling.top_p, c->sampling.min_p,
            c->sampling.repeat_penalty, c->sampling.seed);
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

static status parse_setting(const char *arg, double min, double max, bool whole, double *v, err *e)
{
    char *end;
    *v = strtod(arg, &end);
    if (end == arg || *end || !(*v >= min && *v <= max) || (whole && *v != (double)(int64_t)*v))
        return err_set(e, E_ARG, "expected a %snumber from %.10g to %.10g, not '%.40s'",
                       whole ? "whole " : "", min, max, arg);
    return OK;
}

static status set_number(chat *c, const char *name, const char *arg, err *e)
{
    carat_sampling *p = &c->sampling;
    double v;
    status st;
    if (!strcmp(name, "temp")) {
        if (!(st = parse_setting(arg, 0, 100, false, &v, e)))
            p->temperature = (float)v;
    } else if (!strcmp(name, "top-k")) {
        if (!(st = parse_setting(arg, 0, INT32_MAX, true, &v, e)))
            p->top_k = (int32_t)v;
    } else if (!strcmp(name, "top-p")) {
        if (!(st = parse_setting(arg, 0, 1, false, &v, e)))
            p->top_p = (float)v;
    } else if (!strcmp(name, "min-p")) {
        if (!(st = parse_setting(arg, 0, 1, false, &v, e)))
            p->min_p = (float)v;
    } else if (!strcmp(name, "seed")) {
        if (!(st = parse_setting(arg, 0, UINT32_MAX, true, &v, e))) {
            p->seed = (uint32_t)v;
            c->seed_given = true;
        }
    } else if (!(st = parse_setting(arg, 0, 1 << 30, true, &v, e))) {
        c->max_tokens = (int32_t)v;
    }
    return st;
}

/* Runs a /command. Sets *speak_now if the model must answer now, *quit for /quit. */
static status run_slash_command(chat *c, const char *line, bool *speak_now, bool *quit, err *e)
{
    char name[16];
    size_t n = strcspn(line + 1, " \t\n");
    const char *arg = line + 1 + n + strspn(line + 1 + n, " \t\n");
    snprintf(name, sizeof name, "%.*s", n < sizeof name ? (int)n : (int)sizeof name - 1, line + 1);
    bool is_number = false;
    static const char *const numbers[] = {"temp", "top-k", "top-p", "min-p", "seed", "limit"};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        is_number |= !strcmp(name, numbers[i]);

    if (!strcmp(name, "help") || !strcmp(name, "?")) {
        fputs(help_text, stderr);
    } else if (!strcmp(name, "quit") || !strcmp(name, "exit") || !strcmp(name, "bye")) {
        *quit = true;
    } else if (!strcmp(name, "clear")) {
        chat_clear(c);
        term_note("the conversation is empty");
    } else if (!strcmp(name, "regen")) {
        if (!chat_drop_answer(c))
            return err_set(e, E_ARG, "there is no question to answer again");
        c->sampling.seed++; /* with the same seed the answer would be the same */
        *speak_now = true;
    } else if (!strcmp(name, "undo")) {
        if (!chat_undo(c))
            return err_set(e, E_ARG, "there is nothing to take back");
        term_note("took back the last question");
    } else if (!strcmp(name, "system")) {
        status st = chat_set_system(c, arg, e);
        if (st)
            return st;
        term_note(*arg ? "the system message is set" : "the system message is removed");
    } else if (!strcmp(name, "think")) {
        if (strcmp(arg, "on") && strcmp(arg, "off"))
            return err_set(e, E_ARG, "/think on or /think off; it is %s",
                           c->thinking ? "on" : "off");
        c->thinking = !strcmp(arg, "on");
        term_note("thinking is %s", arg);
    } else if (!*arg &&
               (!strcmp(name, "tools") || !strcmp(name, "save") || !strcmp(name, "load"))) {
        return err_set(e, E_ARG, "/%s needs a file: /%s FILE", name, name);
    } else if (!strcmp(name, "tools")) {
        return chat_load_tools(c, arg, e);
    } else if (!strcmp(name, "result")) {
        status st = chat_add_result(c, arg, e);
        if (st)
            return st;
        *speak_now = !chat_open_calls(c);
    } else if (is_number) {
        return set_number(c, name, arg, e);
    } else if (!strcmp(name, "save")) {
        status st = chat_save(c, arg, e);
        if (!st)
            term_note("saved %s", arg);
        return st;
    } else if (!strcmp(name, "load")) {
        status st = chat_load(c, arg, e);
        if (!st)
            term_note("loaded %zu messages", json_array_size(c->messages));
        return st;
    } else if (!strcmp(name, "tokens")) {
        return show_tokens(c, arg, e);
    } else if (!strcmp(name, "stats")) {
        show_stats(c);
    } else {
        return err_set(e, E_ARG, "there is no command /%s: /help lists them", name);
    }
    return OK;
}

/* ---- The loop -------------------------------------------------------------------------- */

static void speak(chat *c, bool asked)
{
    err e = {0};
    if (!c->seed_given)
        c->sampling.seed++; /* so a repeated question may get another answer */
    status st = chat_answer(c, &e);
    bool cancelled = !st && c->out.finish == CARAT_FINISH_CANCELLED;
    if (st)
        term_error(&e);
    if (cancelled)
        term_note("stopped");
    /* Without this the unanswered question would be part of the next prompt. */
    if (asked && (st || cancelled) && !c->kept)
        chat_undo(c);
    if (chat_open_calls(c))
        term_note("the model waits for the tool: /result TEXT");
}

int run_interactive(chat *c, const run_options *o)
{
    editor ed;
    str in = {0};
    bool quit = false;
    (void)o;
    if (!editor_open(&ed)) {
        editor_close(&ed);
        fprintf(stderr, "carat: cannot set up line editing\n");
        return 1;
    }
    term_note("%s, %s, context %d. /help lists the commands, Ctrl-D leaves.", c->info.name,
              c->info.file_type, carat_session_n_ctx(c->s));
    while (!quit && !c->out.broken && !term_terminated()) {
        err e = {0};
        bool speak_now = false, asked = false, is_text = false;
        status st = OK;
        term_watch(NULL);
        bool more = read_edited_message(&ed, &in, &is_text);
        if (!more)
            break;
        if (ed.dropped) {
            term_note("Ctrl-D or /quit leaves");
            continue;
        }
        if (!in.n)
            continue;
        if (!is_text && in.at[0] == '/' && in.n > 1 && in.at[1] != '/')
            st = run_slash_command(c, in.at, &speak_now, &quit, &e);
        else if (chat_open_calls(c))
            st = err_set(&e, E_ARG, "the model waits for its tool: /result TEXT, or /undo");
        else
            speak_now = asked = !(st = chat_add_user(c, in.at, in.n, &e));
        if (st)
            term_error(&e);
        else if (speak_now)
            speak(c, asked);
    }
    fputs("\n", stderr);
    str_free(&in);
    editor_close(&ed);
    return c->out.broken ? 1 : 0;
}
