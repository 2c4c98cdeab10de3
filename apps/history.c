/* history.c - `carat history`: the kept conversations: list, show, search, remove. */
#include "apps/commands.h"
#include "apps/conversations.h"
#include "apps/jsonw.h"
#include "apps/term.h"
#include "base/show.h"

#include <inttypes.h>
#include <string.h>

enum { EXCERPT_SIDE = 40, EXCERPTS_MAX = 3 };

typedef struct history_options {
    bool json, all;
} history_options;

static const option table[] = {
    OPT_FLAG(history_options, json, "json", 0, "list or show as JSON"),
    OPT_FLAG(history_options, all, "all", 0, "with rm: every conversation"), OPT_END};

static const char *text_or_none(const char *s)
{
    return s ? s : "";
}

static void put_line(const char *text)
{
    size_t n = strcspn(text, "\n");
    term_put_name(stdout, text, n, 0);
    fputs("\n", stdout);
}

static void print_head(int64_t number, const kept_talk *k)
{
    printf("%5" PRId64 "  ", number);
    put_line(text_or_none(k->title));
}

/* Characters that terminals obey are escaped. */
static bool print_json(const str *text)
{
    str line = {0};
    show_put_json(&line, str_text(text), text->n);
    bool ok = !text->bad && !line.bad && puts(str_text(&line)) >= 0;
    str_free(&line);
    return ok;
}

/* ---- list ------------------------------------------------------------------------------ */

static bool list_json(const talk_list *l)
{
    str all = {0};
    json_open(&all, NULL, '[');
    for (size_t i = 0; i < l->n; i++) {
        kept_talk k;
        err e = {0};
        bool bad = conversations_read(l->at[i].number, &k, NULL, &e);
        json_open(&all, NULL, '{');
        json_int(&all, "number", l->at[i].number);
        if (bad) {
            json_text(&all, "error", e.text);
        } else {
            json_int(&all, "changed", l->at[i].changed.tv_sec);
            json_text(&all, "title", text_or_none(k.title));
            json_text(&all, "model", text_or_none(k.model));
            json_int(&all, "messages", (int64_t)k.talk.n);
        }
        json_close(&all, "}");
        kept_free(&k);
    }
    json_close(&all, "]");
    bool ok = print_json(&all);
    str_free(&all);
    return ok;
}

static void list_text(const talk_list *l)
{
    if (!l->n) {
        term_note("no conversation is kept yet");
        return;
    }
    printf("%5s  %-16s  %8s  %-18s  %s\n", "", "changed", "messages", "model", "title");
    for (size_t i = 0; i < l->n; i++) {
        kept_talk k;
        char when[32] = "";
        struct tm tm;
        err e = {0};
        if (localtime_r(&l->at[i].changed.tv_sec, &tm))
            strftime(when, sizeof when, "%Y-%m-%d %H:%M", &tm);
        printf("%5" PRId64 "  %-16s  ", l->at[i].number, when);
        if (conversations_read(l->at[i].number, &k, NULL, &e)) {
            printf("%8s  %-18s  ", "", "");
            put_line(e.text);
            continue;
        }
        printf("%8zu  ", k.talk.n);
        char model[19];
        show_into(model, sizeof model, text_or_none(k.model));
        term_put_name(stdout, model, strlen(model), 20);
        put_line(text_or_none(k.title));
        kept_free(&k);
    }
}

/* ---- show ------------------------------------------------------------------------------ */

static void print_part(const char *label, term_style style, const char *text, size_t n)
{
    term_set(stdout, style);
    fputs(label, stdout);
    term_set(stdout, TERM_PLAIN);
    word_wrap w = {0};
    term_put_words(stdout, &w, text, n);
    term_end_words(stdout, &w);
    fputs("\n", stdout);
}

static void print_message(const talk_turn *m)
{
    const talk_text thought = m->thought[TALK_REASONING_CONTENT];
    str text = {0};
    char label[48];
    snprintf(label, sizeof label, "%s: ", talk_role_names[m->role]);
    if (thought.n)
        print_part("thought: ", TERM_DIM, thought.s, thought.n);
    conversations_put_text(&text, m, true);
    if (text.n)
        print_part(label, TERM_BOLD, text.at, text.n);
    str_free(&text);
    for (size_t i = 0; i < m->n_calls; i++) {
        const jtree *arguments = m->call[i].arguments;
        str line = {0};
        str_printf(&line, "%s ", text_or_none(m->call[i].name.s));
        if (jtree_is(arguments, JTREE_STRING))
            str_put(&line, arguments->s, arguments->n);
        else if (arguments)
            jtree_put_json(&line, arguments);
        print_part("call: ", TERM_CYAN, str_text(&line), line.n);
        str_free(&line);
    }
    fputs("\n", stdout);
}

static status show(const char *which, bool json, err *e)
{
    int64_t number;
    kept_talk k;
    status st = conversations_find(which, &number, e);
    if (st || (st = conversations_read(number, &k, NULL, e)))
        return st;
    if (json) {
        str text = {0};
        json_tree(&text, NULL, k.all);
        if (!print_json(&text))
            st = err_set(e, E_IO, "stdout: cannot write the conversation");
        str_free(&text);
    } else {
        print_head(number, &k);
        fputs("\n", stdout);
        for (size_t i = 0; i < k.talk.n; i++)
            print_message(&k.talk.turn[i]);
    }
    kept_free(&k);
    return st;
}

/* ---- search ---------------------------------------------------------------------------- */

/* Moves to the beginning of a character: excerpts hold whole ones. */
static const char *character_start(const char *from, const char *p)
{
    while (p > from && ((unsigned char)*p & 0xc0) == 0x80)
        p--;
    return p;
}

static void print_excerpt(const char *content, const char *at, size_t n)
{
    const char *from = at - content > EXCERPT_SIDE ? at - EXCERPT_SIDE : content;
    const char *end = content + strlen(content), *to = at + n;
    to = end - to > EXCERPT_SIDE ? to + EXCERPT_SIDE : end;
    from = character_start(content, from);
    to = character_start(content, to);
    char line[4 * EXCERPT_SIDE + 512];
    int len = snprintf(line, sizeof line, "%s%.*s%s", from > content ? "..." : "", (int)(to - from),
                       from, to < end ? "..." : "");
    for (char *c = line; *c; c++)
        *c = *c == '\n' || *c == '\t' ? ' ' : *c;
    fputs("       ", stdout);
    term_put_name(stdout, line, len < (int)sizeof line ? (size_t)len : sizeof line - 1, 0);
    fputs("\n", stdout);
}

/* Prints a conversation if its title or a message has the text. ASCII letters match in any case. */
static bool search_one(int64_t number, const char *text)
{
    kept_talk k;
    if (conversations_read(number, &k, NULL, NULL))
        return false;
    int n_shown = 0;
    bool found = strcasestr(text_or_none(k.title), text);
    if (found)
        print_head(number, &k);
    for (size_t i = 0; i < k.talk.n; i++) {
        str words = {0};
        conversations_put_text(&words, &k.talk.turn[i], true);
        const char *content = str_text(&words);
        for (const char *at = content; n_shown < EXCERPTS_MAX && (at = strcasestr(at, text));
             at += strlen(text), n_shown++) {
            if (!found)
                print_head(number, &k);
            found = true;
            print_excerpt(content, at, strlen(text));
        }
        str_free(&words);
    }
    kept_free(&k);
    return found;
}

/* ---- rm -------------------------------------------------------------------------------- */

static status remove_one(int64_t number, err *e)
{
    kept_talk k; /* a damaged file has no title, and goes too */
    char title[256] = "";
    if (!conversations_read(number, &k, NULL, NULL))
        snprintf(title, sizeof title, "%s", text_or_none(k.title));
    kept_free(&k);
    status st = conversations_remove(number, e);
    if (!st)
        term_note("removed %" PRId64 "%s%s", number, *title ? ": " : "", title);
    return st;
}

/* ---- The command ----------------------------------------------------------------------- */

static int misuse(const char *what)
{
    fprintf(stderr, "carat history: %s\nTry 'carat history --help'.\n", what);
    return 2;
}

static int run_history(const command *c, int argc, char **argv)
{
    history_options o = {0};
    int n_operands, bad = options_parse(c, argc, argv, &o, &n_operands);
    talk_list l = {0};
    err e = {0};
    status st = OK;
    bool found = true;
    if (bad)
        return bad - 1;
    term_init();
    const char *what = n_operands ? argv[0] : "list";
    bool number = !what[strspn(what, "0123456789")];
    int n_words = n_operands - 1;
    if (!strcmp(what, "list") && n_words <= 0) {
        if (!(st = conversations_list(&l, &e)) && !o.json)
            list_text(&l);
        else if (!st && !list_json(&l))
            st = err_set(&e, E_IO, "stdout: cannot write the list");
    } else if (number && n_operands == 1) {
        st = show(what, o.json, &e);
    } else if (!strcmp(what, "show") && n_words <= 1) {
        st = show(n_words ? argv[1] : NULL, o.json, &e);
    } else if (!strcmp(what, "search") && n_words == 1 && argv[1][0]) {
        found = false;
        if (!(st = conversations_list(&l, &e)))
            for (size_t i = 0; i < l.n; i++)
                found |= search_one(l.at[i].number, argv[1]);
        if (!st && !found)
            term_note("no conversation has '%s'", argv[1]);
    } else if (!strcmp(what, "rm") && (n_words > 0) != o.all) {
        if (o.all && !(st = conversations_list(&l, &e)))
            for (size_t i = 0; !st && i < l.n; i++)
                st = remove_one(l.at[i].number, &e);
        for (int i = 1; !st && i < n_operands; i++) {
            int64_t one;
            if (!(st = conversations_find(argv[i], &one, &e)))
                st = remove_one(one, &e);
        }
    } else {
        return misuse("expected list, show [WHICH], search TEXT, rm WHICH... or rm --all");
    }
    conversations_free(&l);
    if (!st)
        st = term_flush(&e);
    return !st && !found ? 1 : term_exit_use(st, &e);
}

const command command_history = {
    .name = "history",
    .operands = "[list | show WHICH | search TEXT | rm WHICH...]",
    .summary = "The kept conversations: list, show, search, remove",
    .about =
        "`carat run` keeps the conversations held on a terminal. WHICH is a number of the list, "
        "last,\n"
        "or a part of one title; a number alone shows that conversation. `carat run "
        "--resume=WHICH`\n"
        "continues one.\n\n"
        "They are JSON files in $XDG_STATE_HOME/carat/conversations (~/.local/state by default),\n"
        "which only you may read; the 1,000 changed last are kept. `carat run --no-history`, or\n"
        "CARAT_NO_HISTORY in the environment, keeps nothing.",
    .options = table,
    .n_operands_max = -1,
    .run = run_history};
