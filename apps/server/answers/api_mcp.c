/* api_mcp.c - see api_mcp.h.
 *
 * A call runs a program with the rights of the user who started the server. The checks of every
 * path apply: the key, a Host that names this machine, no page of another origin. Two more apply
 * here:
 * --cors does not open these paths, and without a key the server must listen on this machine alone.
 * A page that leads a browser here under another name (DNS rebinding) fails the check of Host; a
 * form of another page fails the check of Origin.
 */
#include "apps/server/answers/api_mcp.h"

#include "apps/mcp/mcp.h"
#include "apps/server/answers/generate.h"
#include "apps/server/answers/live.h"
#include "apps/jsonw.h"
#include "apps/server/http/head.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { RESULT_MAX = 256 << 10 }; /* bytes of a result; the page gives it to the model */

/* Waits end when the client leaves or the server drains. */
static bool go_on(void *user)
{
    const exchange *x = user;
    return !client_left(x->fd) && atomic_load(&x->s->state) != SERVER_DRAINING;
}

static bool may_use(exchange *x, problem *p)
{
    const char *origin = x->header(x, "Origin"), *site = x->header(x, "Sec-Fetch-Site");
    bool foreign = (origin && !origin_is_own(origin, x->header(x, "Host"))) ||
                   (site && strcasecmp(site, "same-origin") && strcasecmp(site, "none"));
    if (foreign)
        return problem_set(p, 403, "Origin",
                           "only the page of this server may use its tools, whatever --cors says");
    return true;
}

/* Can the model of x be told of this tool? Otherwise every request with it would fail. */
static status accept_tool(void *user, const json_t *declared, err *e)
{
    exchange *x = user;
    problem p = {0};
    char *text = json_dumps(declared, JSON_COMPACT);
    str body = {0};
    json_open(&body, NULL, '{');
    json_open(&body, "messages", '[');
    json_open(&body, NULL, '{');
    json_text(&body, "role", "user");
    json_text(&body, "content", "x");
    json_close(&body, "}]");
    json_open(&body, "tools", '[');
    json_ready(&body, NULL, text ? text : "", text ? strlen(text) : 0);
    json_close(&body, "]}");
    if (!text || body.bad)
        err_memory(e, "a tool", body.n);
    else if (!generation_reads(x, body.at, body.n, &p))
        err_set(e, p.status == 503 ? E_MEMORY : E_UNSUPPORTED, "%s", p.text);
    str_free(&body);
    free(text);
    return e->status;
}

/* With the query's `model` each tool is tried with that model, which is loaded for it. */
void handle_mcp_tools(exchange *x)
{
    problem p = {0};
    bool changed;
    if (!may_use(x, &p)) {
        reply_problem(x, &p);
        return;
    }
    bool tries = x->s->tools && x->query(x, "model");
    if (tries && !exchange_pick_query(x))
        return;
    json_open(&x->out, NULL, '{');
    json_key(&x->out, "tools");
    if (x->s->tools) {
        mcp_set_refresh(x->s->tools, &(mcp_watch){go_on, x}, &changed);
        mcp_set_put_offer(x->s->tools, tries ? accept_tool : NULL, x, &x->out);
    } else {
        json_empty(&x->out, NULL, "[]");
    }
    json_close(&x->out, "}");
    x->status = 200;
}

void handle_mcp_call(exchange *x)
{
    arena mem = {0};
    const jtree *body = NULL;
    const char *name = "", *arguments = "{}";
    problem p = {0};
    str out = {0};
    bool failed = false;
    err e = {0};
    status st = OK;
    bool ok = may_use(x, &p) && body_parse(&mem, x->body, x->n_body, &body, &p) &&
              field_text(&p, body, "name", &name) && field_text(&p, body, "arguments", &arguments);
    if (ok && !x->s->tools)
        ok = problem_set(&p, 404, NULL, "this server offers no tools: start it with --mcp NAME");
    if (ok && !*name)
        ok = problem_set(&p, 400, "name", "'name' is missing");
    if (ok)
        st = mcp_set_call(x->s->tools, name, arguments, RESULT_MAX, &(mcp_watch){go_on, x}, &out,
                          &failed, &e);
    if (st)
        problem_set(&p,
                    st == E_ARG         ? 404
                    : st == E_CANCELLED ? 503
                                        : 500,
                    st == E_ARG ? "name" : NULL, "%s", e.text);
    if (p.status) {
        reply_problem(x, &p);
    } else {
        log_line(x->s, "tool %s: %s, %zu bytes", name, failed ? "failed" : "done", out.n);
        json_open(&x->out, NULL, '{');
        json_text_n(&x->out, "content", str_text(&out), out.n);
        json_bool(&x->out, "is_error", failed);
        json_close(&x->out, "}");
        x->status = 200;
    }
    str_free(&out);
    arena_free(&mem);
}
