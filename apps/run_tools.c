/* run_tools.c - tools of MCP servers in a conversation: the user is asked, the tool is called, and
 * the model gets the result.
 *
 *     an answer with calls -> each: shown, allowed or refused, run -> a result -> the next answer
 *
 * Every call gets a result, because a prompt with a call that has none cannot go on: what is
 * refused, interrupted or unknown gets a sentence in its place. Calls of tools that the user
 * declared (--tools) stay open; the user answers them.
 */
#include "apps/run_int.h"

#include "base/json.h"
#include "base/mem.h"
#include "base/show.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    RESULT_MAX =
        256 << 10, /* bytes of a result for the model, and at most one per token of context */
    RESULT_MIN = 1 << 10,
    CALLS_MAX = 256, /* of one answer */
    SHOWN_LINES = 8, /* of a result on the terminal */
    SHOWN_BYTES = 1000
};

/* ---- What the model is offered ---- */

const char *chat_offered_tools(const chat *c)
{
    return c->mcp ? c->offered : c->tools;
}

/* Is it a tool of an MCP server? */
static bool hides_call(void *user, const char *name)
{
    const chat *c = user;
    return c->mcp && mcp_set_find(c->mcp, name);
}

/* The tools that the user declared: an array, or NULL. */
static json_t *declared(const chat *c)
{
    json_t *list = NULL;
    err none = {0};
    if (c->tools)
        json_parse_words(&list, c->tools, strlen(c->tools), "tools", &none);
    return list;
}

static const char *declared_name(const json_t *tool)
{
    const json_t *fn = json_object_get(tool, "function");
    const char *name = json_string_value(json_object_get(fn ? fn : tool, "name"));
    return name ? name : "";
}

static bool user_declares(const chat *c, const char *name)
{
    json_t *list = declared(c);
    bool found = false;
    for (size_t i = 0; i < json_array_size(list) && !found; i++)
        found = !strcmp(declared_name(json_array_get(list, i)), name);
    json_decref(list);
    return found;
}

status chat_offer_tools(chat *c, err *e)
{
    str all = {0};
    if (!c->mcp)
        return OK;
    for (size_t i = 0; i < mcp_set_count(c->mcp); i++) {
        const mcp_tool *t = mcp_set_at(c->mcp, i);
        if (user_declares(c, t->name))
            return err_set(e, E_ARG, "the tool %s is declared, and MCP server '%s' has it too",
                           t->name, t->server);
    }
    json_t *list = declared(c);
    if (json_array_size(list)) { /* as it is written, without its ']' */
        size_t n = strlen(c->tools);
        while (n && c->tools[n - 1] != ']')
            n--;
        str_put(&all, c->tools, n ? n - 1 : 0);
        if (mcp_set_count(c->mcp))
            str_putc(&all, ',');
    } else {
        str_putc(&all, '[');
    }
    json_decref(list);
    str own = {0};
    mcp_set_put_tools(c->mcp, &own); /* "[...]" */
    str_puts(&all, own.n ? own.at + 1 : "]");
    bool bad = all.bad || own.bad;
    str_free(&own);
    if (bad) {
        str_free(&all);
        return err_memory(e, "tools", all.n);
    }
    mem_free(c->offered);
    c->offered = str_take(&all);
    return OK;
}

void chat_refresh_mcp(chat *c)
{
    bool changed = false;
    err e = {0};
    if (!c->mcp)
        return;
    mcp_set_refresh(c->mcp, &mcp_until_interrupted, &changed);
    if (changed && chat_offer_tools(c, &e))
        term_error(&e);
}

/* ---- Opening ---- */

/* Whether the model's chat format can write this declaration: otherwise no prompt could be made. */
static status accept_tool(void *user, const json_t *tool, err *e)
{
    const chat *c = user;
    carat_talk *t = NULL;
    carat_chat prompt = {0};
    json_t *list = json_pack("[O]", tool);
    char *text = list ? json_dumps(list, JSON_COMPACT) : NULL;
    json_decref(list);
    status st = text ? carat_talk_open(&t, "[{\"role\":\"user\",\"content\":\"x\"}]", text, e)
                     : err_memory(e, "tools", 256);
    if (!st)
        st = carat_talk_render(c->m, t, NULL, &prompt, e);
    carat_chat_free(&prompt);
    carat_talk_close(t);
    free(text);
    return st;
}

status chat_open_mcp(chat *c, err *e)
{
    const mcp_set_options o = {.specs = &c->specs,
                               .automatic = c->o.mcp.automatic.at,
                               .n_automatic = (size_t)c->o.mcp.automatic.n,
                               .log = mcp_options_log,
                               .accept = accept_tool,
                               .tell = mcp_options_tell,
                               .user = c};
    if (c->raw)
        return err_set(e, E_UNSUPPORTED, "--mcp: %s has no chat format", c->info.name);
    term_on_end(mcp_kill_all);
    status st = mcp_set_open(&c->mcp, &o, &mcp_until_interrupted, e);
    if (st)
        return st;
    c->out.hides_call = hides_call;
    c->out.hides_user = c;
    return chat_offer_tools(c, e);
}

/* ---- Asking ---- */

static void show_call(const mcp_tool *t, const char *arguments)
{
    term_set(stderr, TERM_CYAN);
    fputs("call ", stderr);
    term_put_name(stderr, t->server, strlen(t->server), 0);
    fputs("/", stderr);
    term_put_name(stderr, t->own, strlen(t->own), 0);
    term_set(stderr, TERM_PLAIN);
    fputs(" ", stderr);
    term_put_name(stderr, arguments, strlen(arguments), 0);
    fputs("\n", stderr);
}

/* May it run? *why: what the model is told if not. */
static bool consent(chat *c, const mcp_tool *t, const char **why)
{
    *why = "error: the user refused this call.";
    if (t->automatic || t->allowed)
        return true;
    if (!isatty(STDIN_FILENO) || !isatty(STDERR_FILENO)) {
        term_note("%s is not run: there is no terminal to ask at, and no --tools-auto %s", t->name,
                  t->name);
        *why = "error: this call was refused, because nobody can be asked whether it may run.";
        return false;
    }
    int key = term_ask("run it? [y]es once, [a]lways for this tool, [n]o: ", "yYaAnN");
    bool always = key == 'a' || key == 'A', yes = always || key == 'y' || key == 'Y';
    fputs(always ? "always\n" : yes ? "yes\n" : key ? "no\n" : "\n", stderr);
    if (always)
        mcp_set_allow(c->mcp, t->name);
    return yes;
}

static void show_result(const chat *c, const str *text)
{
    str line = {0};
    size_t n = 0, lines = 0;
    if (c->quiet)
        return;
    while (n < text->n && n < SHOWN_BYTES && lines < SHOWN_LINES)
        lines += text->at[n++] == '\n';
    while (n && n < text->n && ((unsigned char)text->at[n] & 0xc0) == 0x80)
        n--;
    show_put(&line, str_text(text), n, SHOW_TEXT);
    while (line.n && line.at[line.n - 1] == '\n')
        str_cut(&line, line.n - 1);
    term_set(stderr, TERM_DIM);
    fprintf(stderr, "%s", str_text(&line));
    if (n < text->n)
        fprintf(stderr, "\n... %zu bytes more", text->n - n);
    term_set(stderr, TERM_PLAIN);
    fputs("\n", stderr);
    str_free(&line);
}

/* ---- Running ---- */

/* The result of the oldest open call, into out. */
static status run_call(chat *c, const char *name, const char *arguments, str *out, err *e)
{
    const mcp_tool *t = mcp_set_find(c->mcp, name);
    size_t max = (size_t)carat_session_n_ctx(c->s);
    const char *why;
    bool failed;
    max = max < RESULT_MIN ? RESULT_MIN : max > RESULT_MAX ? RESULT_MAX : max;
    if (!t) {
        term_note("the model calls %s, and there is no such tool", name);
        str_puts(out, "error: there is no tool of this name.");
        return OK;
    }
    show_call(t, arguments);
    if (!consent(c, t, &why)) {
        str_puts(out, why);
        return OK;
    }
    status st = mcp_set_call(c->mcp, name, arguments, max, &mcp_until_interrupted, out, &failed, e);
    if (!st)
        show_result(c, out);
    if (st != E_CANCELLED)
        return st;
    err_clear(e);
    term_note("stopped %s", name);
    str_cut(out, 0);
    str_puts(out, "error: the user stopped this call.");
    return OK;
}

/* Gives every open call of an MCP tool its result. refusal: what all get; NULL: they are run.
 * Results are kept for --format json. */
static status answer_calls(chat *c, const char *refusal, err *e)
{
    char *given[CALLS_MAX];
    size_t n = 0;
    const char *name, *arguments;
    status st = OK;
    while (!st && (name = chat_open_call(c, &arguments)) != NULL && n < CALLS_MAX &&
           !user_declares(c, name)) {
        str out = {0};
        const char *end = refusal             ? refusal
                          : term_interrupts() ? "error: the user stopped before this call."
                                              : NULL;
        if (end)
            str_puts(&out, end);
        else
            st = run_call(c, name, arguments ? arguments : "", &out, e);
        if (!st && out.bad)
            st = err_memory(e, "a result", out.n);
        if (!st)
            st = chat_add_result(c, str_text(&out), e);
        if (st)
            str_free(&out);
        else
            given[n++] = str_take(&out);
    }
    if (!st && n == CALLS_MAX && chat_open_calls(c))
        st = err_set(e, E_LIMIT, "an answer with more than %d tool calls", CALLS_MAX);
    if (!st && c->out.format == ANSWER_OBJECT && n == answer_count_calls(&c->out))
        st = answer_keep_calls(&c->out, (const char *const *)given, e);
    while (n)
        mem_free(given[--n]);
    return st;
}

/* Is the oldest open call one of ours to answer? */
static bool is_ours(const chat *c)
{
    const char *arguments, *name = chat_open_call(c, &arguments);
    return name && !user_declares(c, name);
}

status chat_run_tools(chat *c, err *e)
{
    status st = OK;
    for (int64_t round = 0; !st && c->mcp && is_ours(c); round++) {
        bool stopped =
            c->out.finish == CARAT_FINISH_CANCELLED || c->out.broken || term_interrupts();
        bool over = round >= c->o.mcp.rounds;
        if (over)
            term_note("%lld answers with calls in a row: these calls are not run (--tools-rounds)",
                      (long long)round + 1);
        if (!stopped) /* Ctrl-C ends a call from here on, and not the answer after it */
            term_watch(NULL);
        st = answer_calls(c,
                          stopped ? "error: the user stopped this answer."
                          : over  ? "error: too many calls in a row. Answer without tools."
                                  : NULL,
                          e);
        if (st || stopped || term_interrupts() || round > c->o.mcp.rounds || chat_open_calls(c))
            break;
        st = chat_answer(c, e);
    }
    return st;
}
