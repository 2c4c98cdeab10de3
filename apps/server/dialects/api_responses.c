/* api_responses.c - POST /v1/responses: its answers, what is kept of them, and streams.
 * api_responses_read.c reads the requests.
 *
 * A stream has items (reasoning, message, calls) in the order of the answer's parts. Each item ends
 * before the next one begins. Calls of tools that are no functions have items of their own types
 * (tool_kinds.h); these are whole from the beginning.
 */
#include "apps/server/dialects/answer.h"
#include "apps/jsonw.h"
#include "apps/server/dialects/tool_kinds.h"

#include <string.h>

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
    json_close(o, "}");
    json_int(o, "output_tokens", u.generated);
    json_open(o, "output_tokens_details", '{');
    json_int(o, "reasoning_tokens", u.thinking);
    if (u.drafter) {
        json_int(o, "accepted_prediction_tokens", u.accepted);
        json_int(o, "rejected_prediction_tokens", u.drafted - u.accepted);
    }
    json_close(o, "}");
    json_int(o, "total_tokens", u.prompt + u.generated);
    put_extras(&u, o);
    json_close(o, "}");
}

/* Of the tokens after `from`; an empty list if not asked for. */
static void put_text_logprobs(const answer *a, const part *q, int32_t from, str *o)
{
    if (a->rq->logprobs)
        put_logprobs(a, &a->choice[0], from, q->token_to, o, "logprobs");
    else
        json_empty(o, "logprobs", "[]");
}

static void put_text_part(const answer *a, const part *q, bool empty, str *o)
{
    bool thought = q->kind == PART_REASONING;
    json_open(o, NULL, '{');
    json_text(o, "type", thought ? "reasoning_text" : "output_text");
    json_text_n(o, "text", str_text(&q->text), empty ? 0 : q->text.n);
    if (!thought) {
        json_empty(o, "annotations", "[]");
        put_text_logprobs(a, q, empty ? q->token_to : q->token_from, o);
    }
    json_close(o, "}");
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
    if (q->kind == PART_CALL)
        json_words(o, key, "%s%s", kind && kind->id_prefix ? kind->id_prefix : "fc_",
                   q->id + 5); /* behind "call_" */
    else
        json_text(o, key, q->id);
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
        json_ready(o, NULL, kind->constant, strlen(kind->constant));
    for (const jtree *m = jtree_is(all, JTREE_OBJECT) ? all->first : NULL; m; m = m->next)
        json_tree(o, m->key, m);
    json_close(o, "}");
    if (kind->constant && !inside)
        json_ready(o, NULL, kind->constant, strlen(kind->constant));
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

/* The state of an item that has ended. A part that is still open is no call. */
static const char *item_state(const answer *a, int32_t i)
{
    const choice *c = &a->choice[0];
    bool cut = c->part[i].kind != PART_CALL && i + 1 == c->n_parts && was_cut(a);
    return cut || c->part[i].open ? "incomplete" : "completed";
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
        if (q->kind == PART_REASONING)
            json_empty(o, "summary", "[]");
        json_open(o, "content", '[');
        if (!open)
            put_text_part(a, q, false, o);
        json_close(o, "]");
    }
    json_text(o, "status", open ? "in_progress" : state);
    json_close(o, "}");
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
    json_close(o, "]");
}

/* A member of the request, unchanged. */
static void put_echo(const answer *a, const char *key, const char *otherwise, str *o)
{
    const jtree *v = jtree_get(a->rq->body, key);
    if (v)
        json_tree(o, key, v);
    else
        json_ready(o, key, otherwise, strlen(otherwise));
}

/* calls: also those that were not completed. */
static void put_output_items(const answer *a, bool calls, str *o)
{
    const choice *c = &a->choice[0];
    for (int32_t i = 0; i < c->n_parts; i++)
        if (calls || !c->part[i].open)
            put_item_out(a, &c->part[i], false, item_state(a, i), o);
}

static void put_response_object(const answer *a, const char *state, const problem *failed, str *o)
{
    bool over = strcmp(state, "in_progress") != 0 && strcmp(state, "queued") != 0;
    json_open(o, NULL, '{');
    json_text(o, "id", a->id);
    json_text(o, "object", "response");
    json_int(o, "created_at", a->created);
    json_text(o, "status", state);
    if (failed) {
        json_open(o, "error", '{');
        json_text(o, "code", failed->code ? failed->code : "server_error");
        json_text(o, "message", failed->text);
        json_close(o, "}");
    } else {
        json_nothing(o, "error");
    }
    if (!strcmp(state, "incomplete")) {
        json_open(o, "incomplete_details", '{');
        json_text(o, "reason", "max_output_tokens");
        json_close(o, "}");
    } else {
        json_nothing(o, "incomplete_details");
    }
    json_bool(o, "background", jtree_truthy(jtree_get(a->rq->body, "background")));
    put_echo(a, "instructions", "null", o);
    put_echo(a, "max_output_tokens", "null", o);
    json_text(o, "model", model_name(a));
    json_open(o, "output", '[');
    if (over)
        put_output_items(a, true, o);
    json_close(o, "]");
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
    json_close(o, "}");
}

static const char *end_state(const answer *a)
{
    return was_cut(a) ? "incomplete" : "completed";
}

static void responses_whole(answer *a, str *o)
{
    put_response_object(a, end_state(a), NULL, o);
}

void responses_object(const answer *a, const char *state, const problem *failed, str *o)
{
    put_response_object(a, state ? state : end_state(a), failed, o);
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
            json_empty(o, "annotations", "[]");
        json_close(o, "}]");
    }
    if (!jtree_get(item, "status"))
        json_text(o, "status", "completed");
    json_close(o, "}");
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
    json_close(o, "}]");
    json_text(o, "status", "completed");
    json_close(o, "}");
}

void responses_items(const answer *a, str *input, str *output)
{
    const jtree *in = jtree_get(a->rq->body, "input");
    put_output_items(a, false, output);
    if (in->kind == JTREE_STRING)
        put_input_text(in, input);
    for (const jtree *v = in->kind == JTREE_ARRAY ? in->first : NULL; v; v = v->next)
        put_input_item(request_item(a->rq, v), input);
}

/* ---- A stream ---- */

static void open_response_event(answer *a, const char *type, str *o)
{
    event_open(o, type);
    json_int(o, "sequence_number", a->sequence++);
}

static void tell_response(answer *a, const char *type, const char *state, const problem *failed,
                          str *o)
{
    open_response_event(a, type, o);
    json_key(o, "response");
    put_response_object(a, state, failed, o);
    event_close(o);
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
    event_close(o);
}

static void tell_part(answer *a, const char *type, bool empty, str *o)
{
    open_response_event(a, type, o);
    put_place(a, true, o);
    json_key(o, "part");
    put_text_part(a, current(a), empty, o);
    event_close(o);
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
        event_close(o);
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
    event_close(o);
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
    event_close(o);
}

static void close_item(answer *a, str *o)
{
    if (a->open_part < 0)
        return;
    const part *q = current(a);
    if (is_whole_call(q))
        end_call(a, q, o);
    else if (q->kind != PART_CALL)
        end_text(a, q, o);
    tell_item(a, "response.output_item.done", false, item_state(a, a->open_part), o);
    a->open_part = -1;
}

static void responses_progress(answer *a, const choice_event *h, str *o)
{
    open_response_event(a, "response.prompt_progress", o);
    put_progress(a, &h->ev, o);
    event_close(o);
}

static void responses_event(answer *a, const choice_event *h, int32_t i, bool opened,
                            int32_t first_token, str *o)
{
    if (!h->done && h->ev.kind == CARAT_EV_PREFILL && a->rq->progress)
        responses_progress(a, h, o);
    if (i < 0)
        return;
    if (opened) {
        close_item(a, o);
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
    event_close(o);
}

static void responses_end(answer *a, str *o)
{
    bool cut = was_cut(a);
    close_item(a, o);
    tell_response(a, cut ? "response.incomplete" : "response.completed", end_state(a), NULL, o);
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
                                   .ping = ": the server is at work\n\n",
                                   .call_parts = true};
