/* run_edit.c - the conversation on a terminal: line editing, history of lines, the loop.
 *
 * While a line is edited, Ctrl-C is a key, bound to drop_line, and raises no signal. While an
 * answer runs, Ctrl-C is SIGINT, and term_watch cancels the session. So Ctrl-C never ends the
 * program.
 */
#include "apps/lines.h"
#include "apps/run_int.h"
#include "apps/run_tab.h"
#include "apps/state_dir.h"
#include "base/mem.h"

#include <errno.h>
#include <histedit.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>
#include <wchar.h>

enum {
    PATH_BYTES = 4096,
    PASTE_MAX = 256 << 10 /* characters; libedit redraws the whole line at every key */
};

typedef struct editor {
    EditLine *el;
    History *history;
    HistEvent ev;
    char history_path[PATH_BYTES];
    const char *prompt;
    str typed;    /* the texts typed in this conversation, each with a NUL after it */
    bool off;     /* nothing typed from here on is kept */
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

/* Reads one character for libedit, whose own reading takes a signal for the end of the input. A new
 * size of the terminal draws the line again. */
static int next_char(EditLine *el, wchar_t *c)
{
    mbstate_t state = {0};
    for (;;) {
        struct pollfd p = {.fd = STDIN_FILENO, .events = POLLIN};
        char byte;
        if (term_resized()) {
            el_resize(el);
            el_set(el, EL_REFRESH);
        }
        if (poll(&p, 1, -1) < 0)
            continue; /* a signal */
        ssize_t n = read(STDIN_FILENO, &byte, 1);
        if (n < 0 && (errno == EINTR || errno == EAGAIN))
            continue;
        if (n <= 0)
            return (int)n;
        size_t used = mbrtowc(c, &byte, 1, &state);
        if (used == (size_t)-2)
            continue;
        if (used == (size_t)-1)
            *c = L'\xfffd';
        return 1;
    }
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

/* Bound to Tab. Inserts what all choices have in common; where that is nothing, lists them. */
static unsigned char complete(EditLine *el, wint_t key)
{
    const LineInfoW *line = el_wline(el);
    size_t n_wide = (size_t)(line->cursor - line->buffer), n_bytes = n_wide * MB_CUR_MAX + 1;
    wchar_t *wide = mem_alloc((n_wide + 1) * sizeof *wide);
    char *text = mem_alloc(n_bytes);
    unsigned char result = CC_ERROR;
    tab_choices c;
    (void)key;
    if (!wide || !text)
        goto out;
    wmemcpy(wide, line->buffer, n_wide);
    wide[n_wide] = 0;
    size_t n = wcstombs(text, wide, n_bytes);
    if (n == (size_t)-1 || !tab_find(text, n, &c))
        goto out;
    size_t n_insert = c.insert.n ? mbstowcs(NULL, str_text(&c.insert), 0) : 0;
    wchar_t *insert =
        n_insert && n_insert != (size_t)-1 ? mem_alloc((n_insert + 1) * sizeof *insert) : NULL;
    if (insert) {
        mbstowcs(insert, str_text(&c.insert), n_insert + 1);
        if (!el_winsertstr(el, insert))
            result = CC_REFRESH;
    } else if (c.n > 1) {
        fputs("\n", stderr);
        tab_print(&c, term_columns(stderr));
        result = CC_REDISPLAY;
    }
    mem_free(insert);
    tab_free(&c);
out:
    mem_free(wide);
    mem_free(text);
    return result;
}

static bool editor_open(editor *ed, bool no_history)
{
    *ed = (editor){.prompt = ">>> "};
    term_converse(false); /* el_init saves the terminal's mode, to restore it later */
    ed->el = el_init("carat", stdin, stderr, stderr);
    ed->history = history_init();
    if (!ed->el || !ed->history)
        return false;
    if (!no_history && state_path(ed->history_path, sizeof ed->history_path, "history"))
        state_make_parents(ed->history_path);
    history(ed->history, &ed->ev, H_SETSIZE, LINES_MAX);
    history(ed->history, &ed->ev, H_SETUNIQUE, 1);
    if (ed->history_path[0])
        lines_load(ed->history_path, ed->history);
    el_set(ed->el, EL_CLIENTDATA, ed);
    el_set(ed->el, EL_PROMPT, prompt_of);
    el_set(ed->el, EL_EDITOR, "emacs");
    el_set(ed->el, EL_HIST, history, ed->history);
    el_set(ed->el, EL_SIGNAL, 0);
    el_wset(ed->el, EL_GETCFN, next_char);
    el_wset(ed->el, EL_ADDFN, L"carat-drop-line", L"drop the line", drop_line);
    el_wset(ed->el, EL_ADDFN, L"carat-complete", L"complete a command or a file", complete);
    el_wset(ed->el, EL_ADDFN, L"carat-paste", L"insert pasted text", paste);
    el_source(ed->el, NULL); /* the user's own ~/.editrc */
    el_set(ed->el, EL_SETTY, "-d", "-isig", NULL);
    el_set(ed->el, EL_BIND, "^C", "carat-drop-line", NULL);
    el_set(ed->el, EL_BIND, "^I", "carat-complete", NULL);
    el_set(ed->el, EL_BIND, "^R", "em-inc-search-prev", NULL);
    /* In vi mode ESC alone is a key, and a binding that begins with ESC would break it. */
    const char *mode = NULL;
    if (!el_get(ed->el, EL_EDITOR, &mode) && mode && !strcmp(mode, "emacs")) {
        el_wset(ed->el, EL_BIND, L"\033[200~", L"carat-paste", NULL);
        term_converse(true);
    }
    return true;
}

/* Remembers a typed text, and writes it to the file at once. */
static void keep_line(editor *ed, const char *text)
{
    history(ed->history, &ed->ev, H_ENTER, text);
    str_put(&ed->typed, text, strlen(text) + 1);
    if (ed->history_path[0] && !ed->off)
        lines_append(ed->history_path, text);
}

/* Texts to take out of the file: those typed from `from` on, and questions of the conversation. */
typedef struct going {
    const editor *ed;
    size_t from;
    const str *questions; /* each with its NUL; or NULL */
} going;

/* A question is the typed text, after the files that went with it. */
static bool is_question(const char *question, const char *text)
{
    size_t n = strlen(question), n_text = strlen(text);
    return n_text && n >= n_text && !strcmp(question + n - n_text, text) &&
           (n == n_text || question[n - n_text - 1] == '\n');
}

static bool goes(void *user, const char *text)
{
    const going *g = user;
    const str *typed = &g->ed->typed;
    for (size_t at = g->from; at < typed->n; at += strlen(typed->at + at) + 1)
        if (!strcmp(typed->at + at, text))
            return true;
    const str *q = g->questions;
    for (size_t at = 0; q && at < q->n; at += strlen(q->at + at) + 1)
        if (is_question(q->at + at, text))
            return true;
    return false;
}

/* Takes the lines typed from `from` on out of the file, with the questions. They can still be
 * brought back by keys until the program ends. */
static void forget_lines(editor *ed, size_t from, const str *questions)
{
    going g = {ed, from, questions};
    if (ed->history_path[0])
        lines_forget(ed->history_path, goes, &g);
    str_cut(&ed->typed, from);
}

/* Where the last question was typed; the end: not in this run. */
static size_t typed_question(const editor *ed, const str *questions)
{
    size_t found = ed->typed.n;
    for (size_t at = 0; questions->n && at < ed->typed.n; at += strlen(ed->typed.at + at) + 1)
        if (is_question(questions->at, ed->typed.at + at))
            found = at;
    return found;
}

/* After a command: lines of what it has deleted go, and those of a run that keeps nothing. */
static void follow_command(editor *ed, const chat *c, const slash_result *r)
{
    if (r->cleared)
        forget_lines(ed, 0, &c->deleted);
    else if (r->undone)
        forget_lines(ed, typed_question(ed, &c->deleted), NULL);
    if (c->o.no_history && !ed->off)
        forget_lines(ed, 0, NULL);
    ed->off = c->o.no_history;
}

static void editor_close(editor *ed)
{
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
    if (term_resized()) /* during the last answer */
        el_resize(ed->el);
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
    else if (in->n && !in->bad)
        keep_line(ed, str_text(in));
    return !in->bad;
}

/* ---- The loop -------------------------------------------------------------------------- */

/* asked: the question, which is the last message; NULL: none was typed. */
static void speak(chat *c, const char *asked)
{
    err e = {0};
    if (!c->seed_given)
        c->sampling.seed++; /* so a repeated question may get another answer */
    status st = chat_answer(c, &e);
    bool kept = c->kept;
    if (!st && c->mcp)
        st = chat_run_tools(c, &e);
    bool cancelled = !st && c->out.finish == CARAT_FINISH_CANCELLED;
    if (st)
        term_error(&e);
    if (cancelled)
        term_note("stopped");
    /* Without this the unanswered question would be part of the next prompt. */
    if (asked && (st || cancelled) && !kept)
        chat_take_back(c);
    if (st == E_LIMIT && asked && !kept && !c->raw)
        chat_tell_full(c, asked);
    if (chat_open_calls(c))
        term_note("the model waits for the tool: /result TEXT");
}

/* A typed message; paths in it may be pictures. A paste of several lines is text alone. *text: the
 * message. */
static status add_typed(chat *c, const str *in, bool is_text, str *text, err *e)
{
    str_cut(text, 0);
    if (is_text)
        str_put(text, in->at, in->n);
    status st = is_text ? OK : chat_take_paths(c, in->at, text, e);
    return st ? st : chat_add_user(c, str_text(text), text->n, e);
}

int run_interactive(chat *c, const run_options *o)
{
    editor ed;
    str in = {0}, text = {0};
    bool quit = false;
    if (!editor_open(&ed, o->no_history || conversations_off())) {
        editor_close(&ed);
        fprintf(stderr, "carat: cannot set up line editing\n");
        return 1;
    }
    term_note("%s, %s, context %d. /help lists the commands, Ctrl-D leaves.", c->info.name,
              c->info.file_type, carat_session_n_ctx(c->s));
    while (!quit && !c->out.broken && !term_terminated()) {
        err e = {0};
        slash_result r = {0};
        bool asked = false, is_text = false;
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
        bool drop = !is_text && !c->raw && chat_begins_with_picture(in.at);
        if (!is_text && !drop && in.at[0] == '/' && in.n > 1 && in.at[1] != '/')
            st = slash_run(c, in.at, &r, &e);
        else if (chat_open_calls(c))
            st = err_set(&e, E_ARG, "the model waits for its tool: /result TEXT, or /undo");
        else
            r.speak_now = asked = !(st = add_typed(c, &in, is_text, &text, &e));
        follow_command(&ed, c, &r);
        quit = r.quit;
        if (st)
            term_error(&e);
        else if (r.speak_now)
            speak(c, asked ? str_text(&text) : NULL);
    }
    fputs("\n", stderr);
    str_free(&in);
    str_free(&text);
    editor_close(&ed);
    return c->out.broken ? 1 : 0;
}
