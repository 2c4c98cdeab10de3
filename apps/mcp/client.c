/* client.c - JSON-RPC with one server: a request, its answer, and what comes between.
 *
 *     request -> send -> turn, turn, ... -> client_take -> the answer with our id
 *                                        -> a request of the server: "ping", or refused
 *                                        -> a notification: progress, log, tools changed
 *
 * The wait for an answer ends at the deadline. Progress moves the deadline, up to PROGRESS times
 * the limit. What ends by deadline or by the user is cancelled at the server too.
 */
#include "apps/mcp/mcp_int.h"

#include "base/clock.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/show.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    PROGRESS = 10,   /* times the limit, for a server that tells of progress */
    FLUSH_MS = 2000, /* for a notification to be sent */
    PAGES_MAX = 100, /* of a list of tools */
    TOOLS_MAX = 256, /* of one server */
    REFUSED = -32601 /* JSON-RPC: method not found */
};

/* The newest revision that carat asks for, and the others that it can speak. */
static const char *const revisions[] = {"2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"};

/* ---- The log ---- */

static void open_log(mcp_client *c, const char *path)
{
    struct stat sb;
    c->log = -1;
    if (!path || strlen(path) >= sizeof c->log_path)
        return;
    bool full = !stat(path, &sb) && sb.st_size > LOG_MAX;
    c->log = open(path,
                  O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK |
                      (full ? O_TRUNC : 0),
                  0600);
    if (c->log >= 0 && (fstat(c->log, &sb) || !S_ISREG(sb.st_mode))) {
        close(c->log);
        c->log = -1;
    }
    if (c->log >= 0)
        strcpy(c->log_path, path);
}

void client_log(mcp_client *c, const char *from, const char *text, size_t n)
{
    char when[32];
    time_t now = time(NULL);
    struct tm t;
    str line = {0};
    bool said = n > 0;
    if (n > 4096)
        n = 4096;
    show_put(&line, text, n, SHOW_NAME);
    if (said && !strcmp(from, "stderr") && str_text(&line)[strspn(str_text(&line), " ")])
        snprintf(c->last_words, sizeof c->last_words, "%.200s", str_text(&line));
    if (c->log >= 0 && c->n_logged <= LOG_MAX) {
        str out = {0};
        strftime(when, sizeof when, "%Y-%m-%d %H:%M:%S", localtime_r(&now, &t));
        str_printf(&out, "%s %s: %s\n", when, from, str_text(&line));
        c->n_logged += out.n;
        if (c->n_logged > LOG_MAX)
            str_puts(&out, "the log of this run ends here\n");
        ssize_t done = write(c->log, str_text(&out), out.n);
        (void)done; /* a full disk ends no conversation */
        str_free(&out);
    }
    str_free(&line);
}

/* ---- What the server says ---- */

status client_count(mcp_client *c, size_t n, err *e)
{
    c->n_bytes += n;
    return c->n_bytes <= ANSWER_MAX
               ? OK
               : err_set(e, E_LIMIT, "MCP server '%s' floods: more than %d MiB for one answer",
                         c->spec->name, ANSWER_MAX >> 20);
}

static status send_json(mcp_client *c, json_t *v, bool asks, err *e)
{
    json_was_short(); /* forgets what others lacked */
    char *text = v ? json_dumps(v, JSON_COMPACT) : NULL;
    status st = text && !json_was_short() ? c->way->send(c, text, strlen(text), asks, e)
                                          : err_memory(e, c->spec->name, 256);
    free(text);
    json_decref(v);
    return st;
}

static status answer_server(mcp_client *c, const char *method, json_t *id, err *e)
{
    if (++c->n_asks > ASKS_MAX)
        return err_set(e, E_LIMIT, "MCP server '%s' floods: more than %d requests for one answer",
                       c->spec->name, ASKS_MAX);
    if (!strcmp(method, "ping"))
        return send_json(c, json_pack("{s:s, s:O, s:{}}", "jsonrpc", "2.0", "id", id, "result"),
                         false, e);
    client_log(c, "refused request", method, strlen(method));
    return send_json(c,
                     json_pack("{s:s, s:O, s:{s:i, s:s}}", "jsonrpc", "2.0", "id", id, "error",
                               "code", REFUSED, "message", "Method not found"),
                     false, e);
}

static void take_notice(mcp_client *c, const char *method, const json_t *params)
{
    if (!strcmp(method, "notifications/tools/list_changed")) {
        c->changed = true;
    } else if (!strcmp(method, "notifications/progress")) {
        const json_t *token = json_object_get(params, "progressToken");
        c->progressed |= json_is_integer(token) && json_integer_value(token) == c->id;
    } else if (!strcmp(method, "notifications/message")) {
        char *text = json_dumps(json_object_get(params, "data"), JSON_COMPACT | JSON_ENCODE_ANY);
        if (text)
            client_log(c, "message", text, strlen(text));
        free(text);
    }
}

static status take_one(mcp_client *c, json_t *v, err *e)
{
    const char *method = json_string_value(json_object_get(v, "method"));
    json_t *id = json_object_get(v, "id");
    if (method && id)
        return answer_server(c, method, id, e);
    if (method) {
        take_notice(c, method, json_object_get(v, "params"));
        return OK;
    }
    bool answers = json_object_get(v, "result") || json_object_get(v, "error");
    if (c->waits && !c->answer && answers && json_is_integer(id) &&
        json_integer_value(id) == c->id) {
        c->answer = json_incref(v);
        return OK;
    }
    static const char other[] = "an answer to nothing that was asked";
    client_log(c, "left out", other, sizeof other - 1);
    return OK;
}

static status count_message(mcp_client *c, err *e)
{
    return ++c->n_messages <= MESSAGES_MAX
               ? OK
               : err_set(e, E_LIMIT, "MCP server '%s' floods: more than %d messages for one answer",
                         c->spec->name, MESSAGES_MAX);
}

status client_take(mcp_client *c, const char *text, size_t n, err *e)
{
    json_t *v = NULL;
    err why = {0};
    status st = OK;
    while (n && (text[n - 1] == '\r' || text[n - 1] == ' '))
        n--;
    if (!n)
        return OK;
    if ((st = count_message(c, e)))
        return st;
    if (n > MESSAGE_MAX)
        return err_set(e, E_LIMIT, "MCP server '%s' sends a message of more than %d MiB",
                       c->spec->name, MESSAGE_MAX >> 20);
    st = *text == '{' || *text == '[' ? json_parse_words(&v, text, n, c->spec->name, &why)
                                      : E_FORMAT;
    if (st == E_MEMORY)
        return err_memory(e, c->spec->name, n);
    if (st) { /* greetings of programs that do not know that stdout is for messages */
        client_log(c, "stdout", text, n);
        if (!c->waits || *text != '{' || !memmem(text, n, "\"jsonrpc\"", 9))
            return OK;
        c->waits = false; /* this may have been the answer; the server stays up */
        return err_set(e, E_FORMAT, "%s", why.text);
    }
    size_t i;
    json_t *one;
    if (json_is_array(v)) /* a batch, of 2025-03-26 */
        json_array_foreach(v, i, one)
        {
            if (!st && !(st = count_message(c, e)))
                st = take_one(c, one, e);
        }
    else
        st = take_one(c, v, e);
    json_decref(v);
    return st;
}

/* ---- Asking ---- */

static bool goes_on(const mcp_watch *w)
{
    return !w || !w->go_on || w->go_on(w->user);
}

/* Writes to the server, and reads what it answers, until every queued byte is written. */
static status flush(mcp_client *c, double ms, err *e)
{
    double until = clock_ms() + ms;
    status st = OK;
    while (!st && !c->way->idle(c) && clock_ms() < until)
        st = c->way->turn(c, 20, e);
    return st;
}

static status notify(mcp_client *c, const char *method, json_t *params, err *e)
{
    json_t *v = json_pack("{s:s, s:s}", "jsonrpc", "2.0", "method", method);
    if (v && params)
        json_object_set(v, "params", params);
    json_decref(params);
    status st = send_json(c, v, false, e);
    return st ? st : flush(c, FLUSH_MS, e);
}

static void bring_down(mcp_client *c, bool in_order)
{
    c->way->end(c, in_order);
    c->up = c->ready = false;
}

static status wait_for_answer(mcp_client *c, const char *method, const mcp_watch *w, err *e)
{
    double start = clock_ms(), limit = c->spec->timeout_s * 1e3, until = start + limit;
    double last = start + PROGRESS * limit;
    while (!c->answer) {
        status st = goes_on(w) ? OK : err_set(e, E_CANCELLED, "interrupted");
        double now = clock_ms();
        if (c->progressed && until < now + limit)
            until = now + limit < last ? now + limit : last;
        c->progressed = false;
        if (!st && now >= until)
            st = err_set(e, E_IO, "MCP server '%s' does not answer %s within %.4g s", c->spec->name,
                         method, (until - start) * 1e-3);
        if (st) {
            c->waits = false;
            if (c->ready) /* the protocol forbids to cancel initialize */
                notify(c, "notifications/cancelled",
                       json_pack("{s:I, s:s}", "requestId", (json_int_t)c->id, "reason",
                                 st == E_CANCELLED ? "the user" : "a timeout"),
                       NULL);
            return st;
        }
        double left = until - now;
        if ((st = c->way->turn(c, left < TURN_MS ? (int)left + 1 : TURN_MS, e)))
            return st;
    }
    return OK;
}

/* Asks and waits. Takes params. *answer: the whole message, with result or error. After a failure
 * other than of time or by the user the server is down. */
static status ask(mcp_client *c, const char *method, json_t *params, const mcp_watch *w,
                  json_t **answer, err *e)
{
    c->id++;
    c->n_bytes = c->n_messages = c->n_asks = 0;
    c->progressed = false;
    c->waits = true;
    json_decref(c->answer);
    c->answer = NULL;
    bool marked = strcmp(method, "tools/call") != 0 ||
                  !json_object_set_new(params, "_meta",
                                       json_pack("{s:I}", "progressToken", (json_int_t)c->id));
    json_t *v = json_pack("{s:s, s:I, s:s, s:o}", "jsonrpc", "2.0", "id", (json_int_t)c->id,
                          "method", method, "params", params);
    if (!marked) {
        json_decref(v);
        v = NULL;
    }
    status st = send_json(c, v, true, e);
    if (!st) {
        st = wait_for_answer(c, method, w, e);
        if (st && c->waits)
            bring_down(c, false);
    }
    c->waits = false;
    *answer = c->answer;
    c->answer = NULL;
    if (st) {
        json_decref(*answer);
        *answer = NULL;
    }
    return st;
}

/* What the server says of an error. */
static const char *error_text(const json_t *answer)
{
    const char *says =
        json_string_value(json_object_get(json_object_get(answer, "error"), "message"));
    return says ? says : "an error without a message";
}

static status begin_session(mcp_client *c, const mcp_watch *w, err *e)
{
    json_t *answer = NULL;
    status st =
        ask(c, "initialize",
            json_pack("{s:s, s:{}, s:{s:s, s:s}}", "protocolVersion", revisions[0], "capabilities",
                      "clientInfo", "name", "carat", "version", carat_version()),
            w, &answer, e);
    if (st)
        return st;
    const json_t *r = json_object_get(answer, "result");
    const char *revision = json_string_value(json_object_get(r, "protocolVersion"));
    const json_t *info = json_object_get(r, "serverInfo");
    const char *name = json_string_value(json_object_get(info, "name"));
    const char *version = json_string_value(json_object_get(info, "version"));
    bool known = false;
    for (size_t i = 0; revision && i < sizeof revisions / sizeof *revisions; i++)
        known = known || !strcmp(revision, revisions[i]);
    if (json_object_get(answer, "error"))
        st = err_set(e, E_IO, "MCP server '%s' refuses to begin: %.300s", c->spec->name,
                     error_text(answer));
    else if (!known)
        st = err_set(e, E_UNSUPPORTED,
                     "MCP server '%s' speaks revision %.40s of the protocol; carat speaks %s and "
                     "older ones",
                     c->spec->name, revision ? revision : "(none)", revisions[0]);
    else if (!json_object_get(json_object_get(r, "capabilities"), "tools"))
        st = err_set(e, E_UNSUPPORTED, "MCP server '%s' has no tools", c->spec->name);
    if (!st) {
        strcpy(c->revision, revision);
        snprintf(c->title, sizeof c->title, "%.100s%s%.40s", name ? name : "", version ? " " : "",
                 version ? version : "");
        c->ready = true;
        c->changed = true;
        st = notify(c, "notifications/initialized", NULL, e);
    }
    json_decref(answer);
    return st;
}

/* The server runs and its session has begun. */
static status be_ready(mcp_client *c, const mcp_watch *w, err *e)
{
    status st = OK;
    c->n_bytes = c->n_messages = c->n_asks = 0;
    /* What came meanwhile is read, so that a server that has ended is noticed. */
    if (c->ready && c->way->turn(c, 0, NULL))
        bring_down(c, false);
    if (!c->up) {
        c->over = false;
        *c->last_words = 0;
        if ((st = c->way->start(c, e)))
            c->way->end(c, false);
        c->up = !st;
    }
    if (!st && !c->ready && (st = begin_session(c, w, e)))
        bring_down(c, false);
    return st;
}

/* A request in a session, which is begun anew if the server has forgotten it. */
static status ask_ready(mcp_client *c, const char *method, json_t *params, const mcp_watch *w,
                        json_t **answer, err *e)
{
    *answer = NULL;
    status st = params ? OK : err_memory(e, c->spec->name, 256);
    for (int tries = 0; !st; tries++) {
        err why = {0};
        if ((st = be_ready(c, w, e)))
            break;
        st = ask(c, method, json_incref(params), w, answer, &why);
        if (!st || !c->over || tries) {
            if (st)
                err_set(e, st, "%s", why.text);
            break;
        }
        st = OK;
    }
    json_decref(params);
    return st;
}

/* ---- Tools ---- */

status mcp_client_list(mcp_client *c, const mcp_watch *w, json_t **tools, err *e)
{
    json_t *all = json_array(), *answer = NULL, *cursor = NULL;
    status st = all ? be_ready(c, w, e) : err_memory(e, c->spec->name, 256);
    c->changed = false;
    for (int page = 0; !st; page++) {
        json_t *params = cursor ? json_pack("{s:o}", "cursor", cursor) : json_object();
        cursor = NULL;
        if ((st = ask_ready(c, "tools/list", params, w, &answer, e)))
            break;
        const json_t *r = json_object_get(answer, "result");
        const json_t *list = json_object_get(r, "tools");
        const json_t *next = json_object_get(r, "nextCursor");
        if (json_object_get(answer, "error"))
            st = err_set(e, E_IO, "MCP server '%s' lists no tools: %.300s", c->spec->name,
                         error_text(answer));
        else if (!json_is_array(list))
            st = err_set(e, E_FORMAT, "MCP server '%s' answers tools/list without a list",
                         c->spec->name);
        else if (json_array_extend(all, (json_t *)list))
            st = err_memory(e, c->spec->name, 256);
        else if (json_array_size(all) > TOOLS_MAX || page == PAGES_MAX)
            st = err_set(e, E_LIMIT, "MCP server '%s' has more than %d tools, or pages without end",
                         c->spec->name, TOOLS_MAX);
        else if (json_is_string(next) && !(cursor = json_string(json_string_value(next))))
            st = err_memory(e, c->spec->name, 256);
        json_decref(answer);
        if (!cursor)
            break;
    }
    json_decref(cursor);
    if (st)
        json_decref(all);
    else
        *tools = all;
    return st;
}

status mcp_client_call(mcp_client *c, const char *tool, const json_t *arguments, const mcp_watch *w,
                       str *out, bool *failed, err *e)
{
    json_t *answer = NULL;
    json_t *params = json_pack("{s:s, s:O}", "name", tool, "arguments", arguments);
    status st = ask_ready(c, "tools/call", params, w, &answer, e);
    if (st)
        return st;
    json_was_short();
    if (json_object_get(answer, "error")) {
        str_printf(out, "error: %s", error_text(answer));
        *failed = true;
    } else {
        result_put(out, json_object_get(answer, "result"), failed);
    }
    json_decref(answer);
    return out->bad || json_was_short() ? err_memory(e, "a result", out->n) : OK;
}

/* ---- Opening and closing ---- */

status mcp_client_open(mcp_client **out, const mcp_spec *spec, const char *log, err *e)
{
    mcp_client *c = *out = mem_calloc(1, sizeof *c);
    json_init();
    if (!c)
        return err_memory(e, spec->name, sizeof *c);
    c->spec = spec;
    c->way = spec->command ? &stdio_way : &http_way;
    open_log(c, log);
    status st = c->way->start(c, e);
    c->up = !st;
    if (st) {
        c->way->end(c, false);
        mcp_client_close(c);
        *out = NULL;
    }
    return st;
}

void mcp_client_close(mcp_client *c)
{
    if (!c)
        return;
    if (c->up)
        c->way->end(c, true);
    if (c->log >= 0)
        close(c->log);
    json_decref(c->answer);
    mem_free(c);
}

bool mcp_client_changed(const mcp_client *c)
{
    return c->changed;
}

const char *mcp_client_title(const mcp_client *c)
{
    return c->title;
}

const char *mcp_client_revision(const mcp_client *c)
{
    return c->revision;
}
