/* fuzz_mcp.c - any bytes as what an MCP server says: lines of a program, or events of an address.
 *
 *     one byte: bit 0: events; the other bits: the bytes that come at once
 *     all else: what comes
 *
 * The session is begun, the tools are listed and one is called. Each ends with a result or with one
 * sentence, what is sent is one line a message, and a result is UTF-8 within its limit.
 */
#include "apps/mcp/mcp_int.h"
#include "base/utf8.h"
#include "fuzz/fuzz.h"

#include <string.h>

enum { RESULT_BYTES = 64, CUT_BYTES = 80 };

typedef struct wire {
    fuzz_bytes left;
    size_t piece;
    bool streams;
    lines in;
    events stream;
    err e;
} wire;

static status start(mcp_client *c, err *e)
{
    (void)c;
    (void)e;
    return OK;
}

static status send(mcp_client *c, const char *text, size_t n, bool asks, err *e)
{
    (void)c;
    (void)asks;
    (void)e;
    fuzz_check(n && !memchr(text, '\n', n) && utf8_valid(text, n), "a message is a line of UTF-8");
    return OK;
}

static void take_event(void *user, const char *data, size_t n)
{
    mcp_client *c = user;
    wire *w = c->state;
    client_take(c, data, n, &w->e);
}

static status turn(mcp_client *c, int ms, err *e)
{
    wire *w = c->state;
    const char *at = (const char *)w->left.at, *line;
    size_t n = w->left.n < w->piece ? w->left.n : w->piece, n_line;
    if (!ms) /* between two requests */
        return OK;
    if (!n)
        return err_set(e, E_IO, "the server ended");
    w->left.at += n;
    w->left.n -= n;
    status st = client_count(c, n, e);
    if (w->streams) {
        fuzz_check(events_take(&w->stream, at, n, take_event, c), "events within their limit");
        st = st ? st : w->e.status ? err_set(e, w->e.status, "%s", w->e.text) : OK;
    } else {
        str_put(&w->in.buf, at, n);
        while (!st && lines_next(&w->in, &line, &n_line))
            st = client_take(c, line, n_line, e);
    }
    return st;
}

static bool idle(const mcp_client *c)
{
    (void)c;
    return true;
}

static void end(mcp_client *c, bool in_order)
{
    wire *w = c->state;
    (void)in_order;
    str_free(&w->in.buf);
    w->in = (lines){.at = 0};
    events_free(&w->stream);
    err_clear(&w->e);
}

FUZZ(mcp)
{
    static const way fuzz_way = {start, send, turn, idle, end};
    const mcp_spec spec = {.name = "x", .timeout_s = 1e6};
    wire w = {.left = {data, n}};
    mcp_client c = {.spec = &spec, .way = &fuzz_way, .state = &w, .log = -1};
    json_t *tools = NULL, *arguments = json_object();
    bool failed = false;
    str out = {0};
    err e = {0};
    uint8_t how = fuzz_next(&w.left);
    w.streams = how & 1;
    w.piece = how / 2 + 1U;
    events_free(&w.stream);
    status st = mcp_client_list(&c, NULL, &tools, &e);
    fuzz_check(!st == !e.text[0] && st == e.status, "a sentence with each failure, and no other");
    fuzz_check(!st == !!tools, "a list, or none");
    if (!st) {
        st = mcp_client_call(&c, "t", arguments, NULL, &out, &failed, &e);
        fuzz_check(!st == !e.text[0], "a sentence with each failed call, and no other");
        result_cut(&out, RESULT_BYTES);
        fuzz_check(out.n <= RESULT_BYTES + CUT_BYTES, "a result within its limit");
        fuzz_check(!out.n || utf8_valid(out.at, out.n), "a result of UTF-8");
    }
    end(&c, false);
    json_decref(tools);
    json_decref(arguments);
    json_decref(c.answer);
    str_free(&out);
}
