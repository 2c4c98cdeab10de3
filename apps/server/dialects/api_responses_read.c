/* api_responses_read.c - POST /v1/responses: its requests. api_responses.c writes the answers.
 *
 * A request has its whole history, or continues a stored response: then the items of that
 * conversation come before its own, as if the client had sent them. Items become messages:
 * consecutive calls become one message of the assistant, reasoning becomes the reasoning of the
 * message after it. Items that hold nothing for the model, such as searches that a host has done,
 * are left out; the log and the answer say so.
 *
 * Logprobs are written if 'include' has "message.output_text.logprobs" or 'top_logprobs' is not 0.
 */
#include "apps/server/dialects/parts.h"
#include "apps/server/dialects/tool_kinds.h"

#include <stdio.h>
#include <string.h>

typedef struct items {
    request *rq;
    problem *p;
    size_t i;
    bool before;  /* an item of the stored conversation */
    str thought;  /* for the next message of the assistant */
    bool in_call; /* the last message takes more calls */
} items;

static void field_of(const items *at, char field[48])
{
    if (at->before)
        snprintf(field, 48, "previous_response_id");
    else
        snprintf(field, 48, "input[%zu]", at->i);
}

static bool refuse_item(const items *at, const char *what)
{
    char field[48];
    field_of(at, field);
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

/* To the last message. */
static void put_pending_thought(items *at)
{
    carat_talk *t = &at->rq->talk;
    t->bad |= at->thought.bad;
    if (at->thought.n && !t->bad)
        talk_last(t)->thought[TALK_REASONING_CONTENT] = talk_keep(t, at->thought.at, at->thought.n);
    str_cut(&at->thought, 0);
}

/* A picture, as a mark. */
static bool mark_part(const items *at, const jtree *q, str *out)
{
    const jtree *v = jtree_get(q, "image_url");
    char field[48];
    field_of(at, field);
    if (jtree_truthy(jtree_get(q, "file_id")))
        return refuse_item(at, "holds an image by 'file_id': this server keeps no files");
    int32_t number =
        take_picture(at->rq,
                     &(picture_source){.url = jtree_is(v, JTREE_OBJECT) ? jtree_get(v, "url") : v,
                                       .detail = jtree_get(q, "detail"),
                                       .field = field},
                     at->p);
    mark_picture(out, at->rq, number);
    return number >= 0;
}

static bool mark_sound(const items *at, const jtree *q, str *out)
{
    char field[48];
    field_of(at, field);
    int32_t number = take_sound(at->rq, jtree_get(q, "input_audio"), field, at->p);
    mark_picture(out, at->rq, number);
    return number >= 0;
}

/* Content: a string, or parts such as input_text and output_text. Pictures become marks. */
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
        if (tree_says(type, "input_image")) {
            if (!mark_part(at, q, out))
                return false;
            continue;
        }
        if (tree_says(type, "input_audio")) {
            if (!mark_sound(at, q, out))
                return false;
            continue;
        }
        if (tree_says(type, "input_file"))
            return refuse_item(at, "holds a file: carat reads text, images and sound");
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

static void open_message(items *at, talk_role role)
{
    at->in_call = false;
    if (at->before)
        talk_add(&at->rq->talk, role, ORIGIN_STORED, ORIGIN_BEFORE);
    else
        talk_add(&at->rq->talk, role, "input", (int32_t)at->i);
}

static bool put_message_item(items *at, const jtree *item, bool last)
{
    request *rq = at->rq;
    talk_role who;
    str text = {0};
    if (talk_read_role(item, "", 0, &who, NULL) || who == TALK_TOOL)
        return refuse_item(at, "has a role that is none of user, assistant, system and developer");
    bool ends = who == TALK_ASSISTANT && last && (at->i > 0 || rq->history);
    bool ok = join_parts(at, jtree_get(item, "content"), &text) &&
              (!ends || read_continue(rq, true, at->p));
    if (ok) {
        open_message(at, who);
        put_content(rq, &text);
        if (who == TALK_ASSISTANT)
            put_pending_thought(at);
        else
            str_cut(&at->thought, 0); /* its message is missing */
    }
    if (ok && ends && rq->continue_last && !rq->talk.bad && !take_prefill(rq))
        ok = refuse_item(at, "begins the answer, and holds an image");
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

static const jtree *arguments_of(items *at, const jtree *item, const tool_kind *kind)
{
    const jtree *v = jtree_get(item, kind ? kind->member : "arguments");
    arena *mem = at->rq->talk.mem;
    bool text = kind && kind->text;
    jtree_pass(v);
    if (!text && !(kind && kind->constant && jtree_is(v, JTREE_OBJECT)))
        return v;
    jtree *o = jtree_object(mem);
    jtree *last = NULL;
    bool ok = o && (!text || jtree_add(o, NULL, mem, kind->text, strlen(kind->text), v));
    for (const jtree *m = text ? NULL : v->first; m && ok; m = m->next)
        if (m->kind != JTREE_NULL && strcmp(m->key, "type") != 0 && !tree_is_empty(m))
            ok = (last = jtree_add(o, last, mem, m->key, m->n_key, m));
    at->rq->talk.bad |= !ok;
    return o;
}

/* kind NULL: of a function. */
static bool put_call_item(items *at, const jtree *item, const tool_kind *kind)
{
    const jtree *id = jtree_get(item, "call_id");
    const char *name = name_of_call(at, item, kind);
    id = id ? id : jtree_get(item, "id");
    if (!jtree_is(id, JTREE_STRING) || !name)
        return refuse_item(at, "is a call without 'call_id' or 'name'");
    if (!at->in_call) {
        open_message(at, TALK_ASSISTANT);
        talk_set_text(&at->rq->talk, "", 0);
        put_pending_thought(at);
        at->in_call = true;
    }
    talk_put_call(&at->rq->talk, (talk_call){.id = talk_string(id),
                                             .name = {name, strlen(name)},
                                             .arguments = arguments_of(at, item, kind)});
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
        open_message(at, TALK_TOOL);
        put_content(at->rq, &text);
        if (!at->rq->talk.bad)
            talk_last(&at->rq->talk)->call_id = talk_string(id);
    }
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
        open_message(at, TALK_USER);
        put_content(at->rq, &text);
    }
    at->rq->talk.bad |= text.bad;
    str_free(&text);
    return ok;
}

/* The full text if there is one, else the summary. */
static bool take_reasoning(items *at, const jtree *item)
{
    const jtree *c = jtree_get(item, "content");
    if (!jtree_is(c, JTREE_ARRAY) || !c->count)
        c = jtree_get(item, "summary");
    return join_parts(at, c, &at->thought) &&
           (!has_picture(&at->thought) || refuse_item(at, "is a thought that holds an image"));
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

static void put_plain(request *rq, talk_role role, const jtree *text, const char *list, int32_t i)
{
    talk_add(&rq->talk, role, list, i);
    talk_set_text(&rq->talk, text->s, text->n);
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
    if (instructions && instructions->n)
        put_plain(rq, TALK_SYSTEM, instructions, "instructions", -1);
    at.before = true;
    for (const jtree *v = rq->history ? rq->history->first : NULL; v && ok; v = v->next)
        ok = put_item(&at, v, false);
    at.before = false;
    if (in->kind == JTREE_STRING) {
        str_cut(&at.thought, 0);
        put_plain(rq, TALK_USER, in, "input", 0);
    }
    for (const jtree *v = in->kind == JTREE_ARRAY ? in->first : NULL; v && ok; v = v->next, at.i++)
        ok = put_item(&at, v, !v->next);
    if (ok && at.thought.n && at.i > 1 && (ok = read_continue(rq, true, p))) {
        at.i--; /* the input ends with a thought: the answer continues it */
        rq->thought = rq->continue_last;
        open_message(&at, TALK_ASSISTANT);
        talk_set_text(&rq->talk, "", 0);
        put_pending_thought(&at);
    }
    str_free(&at.thought);
    if (ok && !rq->continue_last)
        ok = read_continue(rq, false, p);
    return ok && (rq->talk.n || rq->talk.bad || problem_set(p, 400, "input", "'input' is empty"));
}

static bool read_memory(request *rq, problem *p)
{
    if (jtree_get(rq->body, "conversation"))
        return problem_set(p, 400, "conversation",
                           "'conversation' is not supported: use 'previous_response_id', or send "
                           "the whole conversation in 'input'");
    rq->store = true;
    if (!field_bool(p, rq->body, "background", &rq->background) ||
        !field_bool(p, rq->body, "store", &rq->store) ||
        !field_text(p, rq->body, "previous_response_id", &rq->previous))
        return false;
    return !rq->background || rq->store ||
           problem_set(p, 400, "background",
                       "'background' needs 'store': its client asks for the response later");
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
