/* api_responses.c - POST /v1/responses: its requests, answers and streams.
 *
 * A request has its whole history, or continues a stored response: then the items of that
 * conversation come before its own, as if the client had sent them. Items become messages:
 * consecutive calls become one message of the assistant, reasoning becomes the reasoning of the
 * message after it. Items that hold nothing for the model, such as searches that a host has done,
 * are left out; the log and the answer say so.
 *
 * Logprobs are written if 'include' has "message.output_text.logprobs" or 'top_logprobs' is not 0.
 *
 * A stream has items (reasoning, message, calls) in the order of the answer's parts. Each item ends
 * before the next one begins. Calls of tools that are no functions have items of their own types
 * (tool_kinds.h); these are whole from the beginning.
 */
#include "apps/server/answer.h"
#include "apps/server/jsonw.h"
#include "apps/server/tool_kinds.h"

#include <stdio.h>
#include <string.h>

/* ---- Reading ---- */

typedef struct items {
    request *rq;
    problem *p;
    size_t i;
    bool before;  /* an item of the stored conversation */
    str thought;  /* for the next message of the assistant */
    bool in_call; /* a message with tool_calls is open */
} items;

static bool refuse_item(const items *at, const char *what)
{
    char field[48];
    if (at->before)
        snprintf(field, sizeof field, "previous_response_id");
    else
        snprintf(field, sizeof field, "input[%zu]", at->i);
    return problem_set(at->p, 400, field, "'%s' %s", field, what);
}

static void leave_out_part(const items *at, const char *what, const jtree *v)
{
    const jtree *type = jtree_get(v, "type");
    char field[48];
    jtree_pass(v);
    if (at->before) /* the answer to the request that brought it has said so */
        return;
    snprintf(field, sizeof field, "input[%zu]", at->i);
    leave_out(at->rq, "'%s', %s of type %.60s, is left out: it has no text for the model", field,
              what, jtree_is(type, JTREE_STRING) ? type->s : "unknown");
}

const jtree *request_item(const request *rq, const jtree *item)
{
    const jtree *id = jtree_get(item, "id"), *type = jtree_get(item, "type");
    bool bare = !type && id && !jtree_get(item, "role");
    if (!bare && !tree_says(type, "item_reference"))
        return item;
    for (const jtree *v = rq->referred ? rq->referred->first : NULL; v; v = v->next) {
        const jtree *own = jtree_get(v, "id");
        if (jtree_is(id, JTREE_STRING) && jtree_is(own, JTREE_STRING) && own->n == id->n &&
            !memcmp(own->s, id->s, id->n))
            return v;
    }
    return NULL;
}

static void close_calls(items *at)
{
    if (at->in_call)
        str_puts(&at->rq->messages, "]}");
    at->in_call = false;
}

static void put_pending_thought(items *at)
{
    if (at->thought.n)
        json_text_n(&at->rq->messages, "reasoning_content", at->thought.at, at->thought.n);
    at->rq->messages.bad |= at->thought.bad;
    str_cut(&at->thought, 0);
}

/* Content: a string, or parts such as input_text and output_text. */
static bool join_parts(const items *at, const jtree *c, str *out)
{
    if (!c)
        return true;
    if (c->kind == JTREE_STRING) {
        str_put(out, c->s, c->n);
        return true;
    }
    if (c->kind != JTREE_ARRAY)
        return refuse_item(at, "has a content that is neither a string nor an array of parts");
    for (const jtree *q = c->first; q; q = q->next) {
        const jtree *type = jtree_get(q, "type"), *text = jtree_get(q, "text");
        if (tree_says(type, "input_image") || tree_says(type, "input_file") ||
            tree_says(type, "input_audio"))
            return refuse_item(at,
                               "holds an image, a file or a sound: carat reads text only so far");
        if (tree_says(type, "refusal"))
            text = jtree_get(q, "refusal");
        if (jtree_is(text, JTREE_STRING))
            str_put(out, text->s, text->n);
        else if (q->kind != JTREE_OBJECT)
            return refuse_item(at, "holds a part that is no object");
        else
            leave_out_part(at, "a part", q);
    }
    return true;
}

static void open_message(items *at, const char *role)
{
    int32_t origin = at->before ? ORIGIN_BEFORE : (int32_t)at->i;
    close_calls(at);
    str_put(&at->rq->origin, (const char *)&origin, sizeof origin);
    json_open(&at->rq->messages, NULL, '{');
    json_text(&at->rq->messages, "role", role);
}

static bool put_message_item(items *at, const jtree *item, bool last)
{
    const jtree *role = jtree_get(item, "role");
    bool assistant = tree_says(role, "assistant"), ok;
    str text = {0};
    if (!assistant && !tree_says(role, "user") && !tree_says(role, "system") &&
        !tree_says(role, "developer"))
        return refuse_item(at, "has a role that is none of user, assistant, system and developer");
    if (!(ok = join_parts(at, jtree_get(item, "content"), &text)))
        goto out;
    if (assistant && last && (at->i > 0 || at->rq->history)) { /* the answer may continue it */
        if (!(ok = read_continue(at->rq, true, at->p)))
            goto out;
        if (at->rq->continue_last && text.n &&
            (ok = keep_text(at->rq, at->p, text.at, text.n, &at->rq->prefill)))
            at->rq->n_prefill = text.n;
        at->rq->thought = at->rq->continue_last && at->thought.n > 0;
    }
    open_message(at, role->s);
    if (assistant)
        put_pending_thought(at);
    else
        str_cut(&at->thought, 0); /* its message is missing */
    json_text_n(&at->rq->messages, "content", str_text(&text), text.n);
    json_close(&at->rq->messages, '}');
out:
    at->rq->messages.bad |= text.bad;
    str_free(&text);
    return ok;
}

/* The name of a call as the model knows it. */
static const char *name_of_call(const items *at, const jtree *item, const tool_kind *kind)
{
    const jtree *name = jtree_get(item, "name"), *space = jtree_get(item, "namespace");
    if (kind && kind->name)
        return kind->name;
    if (!jtree_is(name, JTREE_STRING))
        return NULL;
    for (int32_t i = 0; i < at->rq->n_tools && jtree_is(space, JTREE_STRING); i++) {
        const tool_form *t = &at->rq->tool[i];
        if (t->space && !strcmp(t->space, space->s) && !strcmp(t->own, name->s))
            return t->name;
    }
    return name->s;
}

static void put_arguments(const jtree *item, const tool_kind *kind, str *o)
{
    const jtree *v = jtree_get(item, kind ? kind->member : "arguments");
    if (kind && kind->text) {
        json_open(o, "arguments", '{');
        json_tree(o, kind->text, v);
        json_close(o, '}');
    } else if (kind && kind->constant && jtree_is(v, JTREE_OBJECT)) {
        json_open(o, "arguments", '{');
        for (const jtree *m = v->first; m; m = m->next)
            if (m->kind != JTREE_NULL && strcmp(m->key, "type") != 0 && !tree_is_empty(m))
                json_tree(o, m->key, m);
        json_close(o, '}');
    } else if (v) {
        json_tree(o, "arguments", v);
    }
}

/* kind NULL: of a function. */
static bool put_call_item(items *at, const jtree *item, const tool_kind *kind)
{
    const jtree *id = jtree_get(item, "call_id");
    const char *name = name_of_call(at, item, kind);
    str *o = &at->rq->messages;
    id = id ? id : jtree_get(item, "id");
    if (!jtree_is(id, JTREE_STRING) || !name)
        return refuse_item(at, "is a call without 'call_id' or 'name'");
    if (!at->in_call) {
        open_message(at, "assistant");
        put_pending_thought(at);
        json_text(o, "content", "");
        json_open(o, "tool_calls", '[');
        at->in_call = true;
    }
    json_open(o, NULL, '{');
    json_tree(o, "id", id);
    json_text(o, "type", "function");
    json_open(o, "function", '{');
    json_text(o, "name", name);
    put_arguments(item, kind, o);
    str_puts(o, "}}");
    return true;
}

/* What a command of `shell` has printed, and how it ended. */
static void put_command_end(const jtree *v, str *out)
{
    static const char *const streams[] = {"stdout", "stderr"};
    const jtree *outcome = jtree_get(v, "outcome"), *code = jtree_get(outcome, "exit_code");
    for (int i = 0; i < 2; i++) {
        const jtree *text = jtree_get(v, streams[i]);
        if (jtree_is(text, JTREE_STRING) && text->n)
            str_printf(out, "%s:\n%s\n", streams[i], text->s);
    }
    if (tree_says(jtree_get(outcome, "type"), "timeout"))
        str_puts(out, "timeout\n");
    else if (jtree_is(code, JTREE_INTEGER))
        str_printf(out, "exit code: %s\n", code->s);
}

/* The text of a result. */
static bool put_result(const items *at, const jtree *item, str *out)
{
    const jtree *v = jtree_get(item, "output"), *type = jtree_get(item, "type");
    const jtree *list = jtree_get(item, "tools");
    if (tree_says(type, "shell_call_output") && jtree_is(v, JTREE_ARRAY)) {
        for (const jtree *i = v->first; i; i = i->next)
            put_command_end(i, out);
        return true;
    }
    if (tree_says(type, "apply_patch_call_output") && jtree_get(item, "status"))
        str_printf(out, "%s\n", tree_says(jtree_get(item, "status"), "failed") ? "failed" : "done");
    if (tree_says(type, "tool_search_output")) {
        str_puts(out, "Tools found:");
        for (const jtree *t = jtree_is(list, JTREE_ARRAY) ? list->first : NULL; t; t = t->next)
            if (jtree_is(jtree_get(t, "name"), JTREE_STRING))
                str_printf(out, " %s", jtree_get(t, "name")->s);
        return true;
    }
    const jtree *failed = jtree_get(item, "error"), *message = jtree_get(failed, "message");
    message = jtree_is(failed, JTREE_STRING) ? failed : message;
    if (jtree_is(message, JTREE_STRING)) /* of an mcp_call, in place of its output */
        str_printf(out, "Error: %s\n", message->s);
    return join_parts(at, v, out);
}

static bool put_output(items *at, const jtree *item)
{
    const jtree *id = jtree_get(item, "call_id");
    str text = {0};
    id = id ? id : jtree_get(item, "id");
    if (!jtree_is(id, JTREE_STRING))
        return refuse_item(at, "is a result without 'call_id'");
    bool ok = put_result(at, item, &text);
    if (ok) {
        open_message(at, "tool");
        json_tree(&at->rq->messages, "tool_call_id", id);
        json_text_n(&at->rq->messages, "content", str_text(&text), text.n);
        json_close(&at->rq->messages, '}');
    }
    at->rq->messages.bad |= text.bad;
    str_free(&text);
    return ok;
}

/* What another agent says is told as the user's message, with its name. */
static bool put_agent_message(items *at, const jtree *item)
{
    const jtree *author = jtree_get(item, "author");
    str text = {0};
    if (jtree_is(author, JTREE_STRING))
        str_printf(&text, "Message from %s:\n", author->s);
    size_t n = text.n;
    bool ok = join_parts(at, jtree_get(item, "content"), &text);
    if (ok && text.n > n) {
        open_message(at, "user");
        json_text_n(&at->rq->messages, "content", text.at, text.n);
        json_close(&at->rq->messages, '}');
    }
    at->rq->messages.bad |= text.bad;
    str_free(&text);
    return ok;
}

/* The full text if there is one, else the summary. */
static bool take_reasoning(items *at, const jtree *item)
{
    const jtree *c = jtree_get(item, "content");
    if (!jtree_is(c, JTREE_ARRAY) || !c->count)
        c = jtree_get(item, "summary");
    return join_parts(at, c, &at->thought);
}

static bool no_such_item(const items *at, const jtree *item)
{
    const jtree *id = jtree_get(item, "id");
    char field[48];
    snprintf(field, sizeof field, "input[%zu]", at->i);
    return problem_set(at->p, 404, field,
                       "Item with id '%.60s' not found: this server keeps the items of responses "
                       "that it stores",
                       jtree_is(id, JTREE_STRING) ? id->s : "");
}

static bool put_item(items *at, const jtree *given, bool last)
{
    if (given->kind != JTREE_OBJECT)
        return refuse_item(at, "is no object");
    const jtree *item = request_item(at->rq, given);
    if (!item)
        return no_such_item(at, given);
    const jtree *type = jtree_get(item, "type");
    if (!type || tree_says(type, "message"))
        return put_message_item(at, item, last);
    const tool_kind *kind = tool_kind_of_item(type, false);
    bool call = kind || tree_says(type, "function_call");
    /* A search of the server's own has no arguments that the model gave. */
    if (call && tree_says(type, "tool_search_call") && !jtree_get(item, "call_id"))
        return true;
    if (call)
        return (!last || refuse_item(at, "calls a tool, and the result is missing")) &&
               put_call_item(at, item, kind);
    if (tree_says(type, "tool_search_output") && !jtree_get(item, "call_id"))
        return true; /* its tools are declared */
    if (tool_kind_of_item(type, true) || tree_says(type, "function_call_output"))
        return put_output(at, item);
    if (tree_says(type, "mcp_call")) /* both in one item */
        return put_call_item(at, item, NULL) && put_output(at, item);
    if (tree_says(type, "reasoning"))
        return take_reasoning(at, item);
    if (tree_says(type, "agent_message"))
        return put_agent_message(at, item);
    if (!tree_says(type, "additional_tools")) /* its tools are declared */
        leave_out_part(at, "an item", item);
    return true;
}

static void put_plain(request *rq, const char *role, const jtree *text, int32_t origin)
{
    str *o = &rq->messages;
    str_put(&rq->origin, (const char *)&origin, sizeof origin);
    json_open(o, NULL, '{');
    json_text(o, "role", role);
    json_tree(o, "content", text);
    json_close(o, '}');
}

static bool read_items(request *rq, problem *p)
{
    const jtree *in = jtree_get(rq->body, "input"), *instructions;
    items at = {.rq = rq, .p = p};
    bool ok = true;
    if (!field_kind(p, rq->body, "instructions", JTREE_STRING, &instructions))
        return false;
    if (!in)
        return problem_set(p, 400, "input", "'input' is missing");
    if (in->kind != JTREE_STRING && in->kind != JTREE_ARRAY)
        return problem_set(p, 400, "input", "'input' is %s; expected a string or an array of items",
                           jtree_kind_name(in));
    str_putc(&rq->messages, '[');
    if (instructions && instructions->n)
        put_plain(rq, "system", instructions, -1);
    at.before = true;
    for (const jtree *v = rq->history ? rq->history->first : NULL; v && ok; v = v->next)
        ok = put_item(&at, v, false);
    at.before = false;
    if (in->kind == JTREE_STRING) {
        close_calls(&at);
        str_cut(&at.thought, 0);
        put_plain(rq, "user", in, 0);
    }
    for (const jtree *v = in->kind == JTREE_ARRAY ? in->first : NULL; v && ok; v = v->next, at.i++)
        ok = put_item(&at, v, !v->next);
    if (ok && at.thought.n && at.i > 1 && (ok = read_continue(rq, true, p))) {
        at.i--; /* the input ends with a thought: the answer continues it */
        rq->thought = rq->continue_last;
        open_message(&at, "assistant");
        put_pending_thought(&at);
        json_text(&rq->messages, "content", "");
        json_close(&rq->messages, '}');
    }
    close_calls(&at);
    str_free(&at.thought);
    str_putc(&rq->messages, ']');
    if (ok && !rq->continue_last)
        ok = read_continue(rq, false, p);
    return ok && (rq->messages.n > 2 || rq->messages.bad ||
                  problem_set(p, 400, "input", "'input' is empty"));
}

static bool read_memory(request *rq, problem *p)
{
    bool background = false;
    if (jtree_get(rq->body, "conversation"))
        return problem_set(p, 400, "conversation",
                           "'conversation' is not supported: use 'previous_response_id', or send "
                           "the whole conversation in 'input'");
    rq->store = true;
    if (!field_bool(p, rq->body, "background", &background) ||
        !field_bool(p, rq->body, "store", &rq->store) ||
        !field_text(p, rq->body, "previous_response_id", &rq->previous))
        return false;
    return !background || problem_set(p, 400, "background", "'background' is not supported");
}

static bool read_include(request *rq, problem *p)
{
    const jtree *include;
    int64_t top = 0;
    if (!field_kind(p, rq->body, "include", JTREE_ARRAY, &include) ||
        !field_int(p, rq->body, "top_logprobs", 0, 20, &top))
        return false;
    for (const jtree *v = include ? include->first : NULL; v; v = v->next) {
        if (v->kind != JTREE_STRING)
            return problem_set(p, 400, "include", "'include' holds %s; expected strings",
                               jtree_kind_name(v));
        rq->logprobs |= tree_says(v, "message.output_text.logprobs");
    }
    rq->logprobs |= top > 0;
    rq->sampling.n_top_logprobs = (int32_t)top;
    return true;
}

bool responses_parse(request *rq, const request_limits *lim, problem *p)
{
    static const char *const limits[] = {"max_tokens", "n_predict", NULL};
    const jtree *text = NULL, *format = NULL, *options;
    if (!read_common(rq, lim, p) || !read_memory(rq, p) ||
        !field_int(p, rq->body, "max_output_tokens", 1, INT32_MAX, &rq->max_tokens) ||
        !field_kind(p, rq->body, "stream_options", JTREE_OBJECT, &options) ||
        !field_bool(p, options, "include_usage", &rq->include_usage) ||
        !read_max_tokens(rq, limits, p) || !read_stops(rq, "stop", p) || !read_include(rq, p) ||
        !read_thinking(rq, lim, p) || !read_reasoning(rq, lim, p) ||
        !field_kind(p, rq->body, "text", JTREE_OBJECT, &text) ||
        !field_kind(p, text, "format", JTREE_OBJECT, &format) ||
        !read_verbosity(rq, text, "text.verbosity", p) ||
        !read_format(rq, format, "text.format", true, p) || !read_forms(rq, p) ||
        !read_tools(rq, TOOLS_FLAT, p) || !read_tool_choice(rq, TOOLS_FLAT, p) ||
        !read_items(rq, p))
        return false;
    return !(rq->prefill && rq->think == THINK_ON && !rq->thought) ||
           problem_set(p, 400, "input",
                       "'reasoning' is on, and 'input' ends with the beginning of the answer: the "
                       "model cannot think before it");
}

/* ---- Writing ---- */

static bool was_cut(const answer *a)
{
    return a->choice[0].finish == CARAT_FINISH_LENGTH;
}

static void put_response_usage(const answer *a, str *o)
{
    usage u = answer_usage(a);
    json_open(o, "usage", '{');
    json_int(o, "input_tokens", u.prompt);
    json_open(o, "input_tokens_details", '{');
    json_int(o, "cached_tokens", u.cached);
    json_close(o, '}');
    json_int(o, "output_tokens", u.generated);
    json_open(o, "output_tokens_details", '{');
    json_int(o, "reasoning_tokens", u.thinking);
    if (u.drafter) {
        json_int(o, "accepted_prediction_tokens", u.accepted);
        json_int(o, "rejected_prediction_tokens", u.drafted - u.accepted);
    }
    json_close(o, '}');
    json_int(o, "total_tokens", u.prompt + u.generated);
    put_extras(&u, o);
    json_close(o, '}');
}

/* Of the tokens after `from`; an empty list if not asked for. */
static void put_text_logprobs(const answer *a, const part *q, int32_t from, str *o)
{
    if (a->rq->logprobs) {
        put_logprobs(a, &a->choice[0], from, q->token_to, o, "logprobs");
    } else {
        json_open(o, "logprobs", '[');
        json_close(o, ']');
    }
}

static void put_text_part(const answer *a, const part *q, bool empty, str *o)
{
    bool thought = q->kind == PART_REASONING;
    json_open(o, NULL, '{');
    json_text(o, "type", thought ? "reasoning_text" : "output_text");
    json_text_n(o, "text", str_text(&q->text), empty ? 0 : q->text.n);
    if (!thought) {
        json_open(o, "annotations", '[');
        json_close(o, ']');
        put_text_logprobs(a, q, empty ? q->token_to : q->token_from, o);
    }
    json_close(o, '}');
}

/* How the tool of a call looks to the client; NULL: a function without a namespace. */
static const tool_kind *kind_of_call(const answer *a, const part *q)
{
    const tool_form *t = q->kind == PART_CALL ? request_tool(a->rq, q->name) : NULL;
    return t ? t->kind : NULL;
}

/* A call and its item have different ids: the item's is derived from the call's. */
static void put_item_id(const answer *a, const part *q, const char *key, str *o)
{
    const tool_kind *kind = kind_of_call(a, q);
    json_key(o, key);
    if (q->kind == PART_CALL)
        str_printf(o, "\"%s%s\"", kind && kind->id_prefix ? kind->id_prefix : "fc_",
                   q->id + 5); /* behind "call_" */
    else
        str_printf(o, "\"%s\"", q->id);
}

/* The arguments of a call in the member of its item; open: none yet. */
static void put_typed_arguments(const part *q, const tool_kind *kind, bool open, str *o)
{
    arena mem = {0};
    const jtree *all = NULL;
    err e = {0};
    if (kind->text) {
        if (open)
            json_text(o, kind->member, "");
        else
            put_call_text(q, kind->text, kind->member, o);
        return;
    }
    if (!open && jtree_parse(str_text(&q->text), q->text.n, "the arguments", REQUEST_MAX_DEPTH,
                             &mem, &all, &e))
        all = NULL;
    bool inside = kind->constant && !strcmp(kind->member, "action");
    json_open(o, kind->member, '{');
    if (inside)
        str_puts(o, kind->constant);
    for (const jtree *m = jtree_is(all, JTREE_OBJECT) ? all->first : NULL; m; m = m->next)
        json_tree(o, m->key, m);
    json_close(o, '}');
    if (kind->constant && !inside)
        str_printf(o, ",%s", kind->constant);
    arena_free(&mem);
}

static void put_call(const answer *a, const part *q, bool open, str *o)
{
    const tool_form *t = request_tool(a->rq, q->name);
    json_text(o, "call_id", q->id);
    if (t && t->kind) {
        if (!t->kind->name)
            json_text(o, "name", t->own);
        put_typed_arguments(q, t->kind, open, o);
        return;
    }
    if (t && t->space)
        json_text(o, "namespace", t->space);
    json_text(o, "name", t ? t->own : q->name);
    json_text_n(o, "arguments", str_text(&q->text), open ? 0 : q->text.n);
}

/* A complete item, or (open) the start of one. */
static void put_item_out(const answer *a, const part *q, bool open, const char *state, str *o)
{
    static const char *const types[] = {"reasoning", "message", "function_call"};
    const tool_kind *kind = kind_of_call(a, q);
    json_open(o, NULL, '{');
    json_text(o, "type", kind && kind->call ? kind->call : types[q->kind]);
    put_item_id(a, q, "id", o);
    if (q->kind == PART_CALL) {
        put_call(a, q, open, o);
    } else {
        if (q->kind == PART_TEXT)
            json_text(o, "role", "assistant");
        if (q->kind == PART_REASONING) {
            json_open(o, "summary", '[');
            json_close(o, ']');
        }
        json_open(o, "content", '[');
        if (!open)
            put_text_part(a, q, false, o);
        json_close(o, ']');
    }
    json_text(o, "status", open ? "in_progress" : state);
    json_close(o, '}');
}

/* The request's tools but those that were left out. */
static void put_tools(const request *rq, str *o)
{
    const jtree *list = jtree_get(rq->body, "tools");
    size_t i = 0;
    json_open(o, "tools", '[');
    for (const jtree *t = list ? list->first : NULL; t; t = t->next, i++)
        if (!rq->tool_dropped || !rq->tool_dropped[i])
            json_tree(o, NULL, t);
    json_close(o, ']');
}

/* A member of the request, unchanged. */
static void put_echo(const answer *a, const char *key, const char *otherwise, str *o)
{
    const jtree *v = jtree_get(a->rq->body, key);
    if (v) {
        json_tree(o, key, v);
    } else {
        json_key(o, key);
        str_puts(o, otherwise);
    }
}

static void put_output_items(const answer *a, str *o)
{
    const choice *c = &a->choice[0];
    for (int32_t i = 0; i < c->n_parts; i++)
        put_item_out(a, &c->part[i], false,
                     i + 1 == c->n_parts && was_cut(a) ? "incomplete" : "completed", o);
}

static void put_response_object(const answer *a, const char *state, const problem *failed, str *o)
{
    bool over = strcmp(state, "in_progress") != 0;
    json_open(o, NULL, '{');
    json_text(o, "id", a->id);
    json_text(o, "object", "response");
    json_int(o, "created_at", a->created);
    json_text(o, "status", state);
    if (failed) {
        json_open(o, "error", '{');
        json_text(o, "code", failed->code ? failed->code : "server_error");
        json_text(o, "message", failed->text);
        json_close(o, '}');
    } else {
        json_nothing(o, "error");
    }
    if (!strcmp(state, "incomplete")) {
        json_open(o, "incomplete_details", '{');
        json_text(o, "reason", "max_output_tokens");
        json_close(o, '}');
    } else {
        json_nothing(o, "incomplete_details");
    }
    put_echo(a, "instructions", "null", o);
    put_echo(a, "max_output_tokens", "null", o);
    json_text(o, "model", model_name(a));
    json_open(o, "output", '[');
    if (over)
        put_output_items(a, o);
    json_close(o, ']');
    put_echo(a, "parallel_tool_calls", "true", o);
    json_text(o, "previous_response_id", a->rq->previous);
    put_echo(a, "reasoning", "{\"effort\":null,\"summary\":null}", o);
    json_bool(o, "store", a->rq->store);
    json_number(o, "temperature", a->rq->sampling.temperature);
    put_echo(a, "text", "{\"format\":{\"type\":\"text\"}}", o);
    put_echo(a, "tool_choice", "\"auto\"", o);
    put_tools(a->rq, o);
    put_warnings(a->rq, o);
    json_number(o, "top_p", a->rq->sampling.top_p);
    json_text(o, "truncation", "disabled");
    put_echo(a, "metadata", "{}", o);
    if (over && !failed)
        put_response_usage(a, o);
    else
        json_nothing(o, "usage");
    json_close(o, '}');
}

static void responses_whole(answer *a, str *o)
{
    put_response_object(a, was_cut(a) ? "incomplete" : "completed", NULL, o);
}

/* ---- Keeping ---- */

/* An item of the input as the API gives it back: with type, id and parts of content. */
static void put_input_item(const jtree *item, str *o)
{
    const jtree *type = jtree_get(item, "type"), *content = jtree_get(item, "content");
    bool message = !type || tree_says(type, "message");
    bool assistant = tree_says(jtree_get(item, "role"), "assistant");
    char id[ID_BYTES];
    json_open(o, NULL, '{');
    if (!type)
        json_text(o, "type", "message");
    if (!jtree_get(item, "id")) {
        make_id(id, "msg_");
        json_text(o, "id", id);
    }
    for (const jtree *m = item->first; m; m = m->next)
        if (m != content || !message || !jtree_is(content, JTREE_STRING))
            json_tree(o, m->key, m);
    if (message && jtree_is(content, JTREE_STRING)) {
        json_open(o, "content", '[');
        json_open(o, NULL, '{');
        json_text(o, "type", assistant ? "output_text" : "input_text");
        json_tree(o, "text", content);
        if (assistant)
            str_puts(o, ",\"annotations\":[]");
        str_puts(o, "}]");
    }
    if (!jtree_get(item, "status"))
        json_text(o, "status", "completed");
    json_close(o, '}');
}

static void put_input_text(const jtree *text, str *o)
{
    char id[ID_BYTES];
    make_id(id, "msg_");
    json_open(o, NULL, '{');
    json_text(o, "type", "message");
    json_text(o, "id", id);
    json_text(o, "role", "user");
    json_open(o, "content", '[');
    json_open(o, NULL, '{');
    json_text(o, "type", "input_text");
    json_tree(o, "text", text);
    str_puts(o, "}]");
    json_text(o, "status", "completed");
    json_close(o, '}');
}

void responses_record(const answer *a, str *object, str *input, str *output)
{
    const jtree *in = jtree_get(a->rq->body, "input");
    put_response_object(a, was_cut(a) ? "incomplete" : "completed", NULL, object);
    put_output_items(a, output);
    if (in->kind == JTREE_STRING)
        put_input_text(in, input);
    for (const jtree *v = in->kind == JTREE_ARRAY ? in->first : NULL; v; v = v->next)
        put_input_item(request_item(a->rq, v), input);
}

/* ---- A stream ---- */

static void open_response_event(answer *a, const char *type, str *o)
{
    str_printf(o, "event: %s\ndata: ", type);
    json_open(o, NULL, '{');
    json_text(o, "type", type);
    json_int(o, "sequence_number", a->sequence++);
}

static void close_response_event(str *o)
{
    str_puts(o, "}\n\n");
}

static void tell_response(answer *a, const char *type, const char *state, const problem *failed,
                          str *o)
{
    open_response_event(a, type, o);
    json_key(o, "response");
    put_response_object(a, state, failed, o);
    close_response_event(o);
}

static void responses_begin(answer *a, str *o)
{
    tell_response(a, "response.created", "in_progress", NULL, o);
    tell_response(a, "response.in_progress", "in_progress", NULL, o);
}

static const part *current(const answer *a)
{
    return &a->choice[0].part[a->open_part];
}

static void put_place(const answer *a, bool content, str *o)
{
    put_item_id(a, current(a), "item_id", o);
    json_int(o, "output_index", a->open_part);
    if (content)
        json_int(o, "content_index", 0);
}

static void tell_item(answer *a, const char *type, bool open, const char *state, str *o)
{
    open_response_event(a, type, o);
    json_int(o, "output_index", a->open_part);
    json_key(o, "item");
    put_item_out(a, current(a), open, state, o);
    close_response_event(o);
}

static void tell_part(answer *a, const char *type, bool empty, str *o)
{
    open_response_event(a, type, o);
    put_place(a, true, o);
    json_key(o, "part");
    put_text_part(a, current(a), empty, o);
    close_response_event(o);
}

static void open_item(answer *a, int32_t i, str *o)
{
    a->open_part = i;
    tell_item(a, "response.output_item.added", true, NULL, o);
    if (current(a)->kind != PART_CALL)
        tell_part(a, "response.content_part.added", true, o);
}

/* The text of a custom tool's call, in one piece. */
static void tell_input(answer *a, const tool_kind *kind, str *o)
{
    static const char *const events[][2] = {{"response.custom_tool_call_input.delta", "delta"},
                                            {"response.custom_tool_call_input.done", "input"}};
    for (int i = 0; i < 2; i++) {
        open_response_event(a, events[i][0], o);
        put_place(a, false, o);
        put_call_text(current(a), kind->text, events[i][1], o);
        close_response_event(o);
    }
}

static void end_text(answer *a, const part *q, str *o)
{
    bool thought = q->kind == PART_REASONING;
    open_response_event(a, thought ? "response.reasoning_text.done" : "response.output_text.done",
                        o);
    put_place(a, true, o);
    json_text_n(o, "text", str_text(&q->text), q->text.n);
    if (!thought)
        put_text_logprobs(a, q, q->token_from, o);
    close_response_event(o);
    tell_part(a, "response.content_part.done", false, o);
}

static void end_call(answer *a, const part *q, str *o)
{
    const tool_form *t = request_tool(a->rq, q->name);
    if (t && t->kind) {
        if (t->kind->text)
            tell_input(a, t->kind, o);
        return;
    }
    open_response_event(a, "response.function_call_arguments.done", o);
    put_place(a, false, o);
    json_text(o, "name", t ? t->own : q->name);
    json_text_n(o, "arguments", str_text(&q->text), q->text.n);
    close_response_event(o);
}

static void close_item(answer *a, const char *state, str *o)
{
    if (a->open_part < 0)
        return;
    const part *q = current(a);
    if (q->kind == PART_CALL)
        end_call(a, q, o);
    else
        end_text(a, q, o);
    tell_item(a, "response.output_item.done", false, state, o);
    a->open_part = -1;
}

static void responses_progress(answer *a, const happening *h, str *o)
{
    open_response_event(a, "response.prompt_progress", o);
    put_progress(a, &h->ev, o);
    close_response_event(o);
}

static void responses_event(answer *a, const happening *h, int32_t i, bool opened,
                            int32_t first_token, str *o)
{
    if (!h->done && h->ev.kind == CARAT_EV_PREFILL && a->rq->progress)
        responses_progress(a, h, o);
    if (i < 0)
        return;
    if (opened) {
        close_item(a, "completed", o);
        open_item(a, i, o);
    }
    part_kind kind = current(a)->kind;
    if (kind_of_call(a, current(a)))
        return; /* close_item tells it whole */
    open_response_event(a,
                        kind == PART_CALL        ? "response.function_call_arguments.delta"
                        : kind == PART_REASONING ? "response.reasoning_text.delta"
                                                 : "response.output_text.delta",
                        o);
    put_place(a, kind != PART_CALL, o);
    json_text_n(o, "delta", h->ev.text, h->ev.n_text);
    if (kind == PART_TEXT)
        put_text_logprobs(a, current(a), first_token, o);
    close_response_event(o);
}

static void responses_end(answer *a, str *o)
{
    bool cut = was_cut(a);
    close_item(a, cut ? "incomplete" : "completed", o);
    tell_response(a, cut ? "response.incomplete" : "response.completed",
                  cut ? "incomplete" : "completed", NULL, o);
}

static void responses_fail(answer *a, const problem *p, str *o)
{
    tell_response(a, "response.failed", "failed", p, o);
}

const dialect responses_dialect = {.id_prefix = "resp_",
                                   .call_prefix = "call_",
                                   .begin = responses_begin,
                                   .event = responses_event,
                                   .end = responses_end,
                                   .fail = responses_fail,
                                   .whole = responses_whole,
                                   .error = openai_error,
                                   .ping = ": the server is at work\n\n"};
