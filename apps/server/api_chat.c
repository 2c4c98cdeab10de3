/* api_chat.c - POST /v1/chat/completions: reading it, and writing its answers and streams. */
#include "apps/server/answer.h"
#include "apps/server/jsonw.h"

#include <stdio.h>
#include <string.h>

/* ---- Reading ---- */

static bool is_role(const jtree *m, const char *role)
{
    const jtree *r = jtree_get(m, "role");
    return jtree_is(r, JTREE_STRING) && !strcmp(r->s, role);
}

static bool refuse_part(const jtree *piece, size_t i, size_t k, problem *p)
{
    const jtree *type = jtree_get(piece, "type");
    char field[80];
    snprintf(field, sizeof field, "messages[%zu].content[%zu]", i, k);
    if (piece->kind != JTREE_OBJECT || !jtree_is(type, JTREE_STRING))
        return problem_set(p, 400, field, "'%s' is no object with a type", field);
    if (!strcmp(type->s, "text") || !strcmp(type->s, "refusal"))
        return true;
    return problem_set(p, 400, field, "'%s' is of type \"%.40s\": carat reads text only so far",
                       field, type->s);
}

/* The words of a part; a refusal of an earlier answer is text of that answer. */
static void put_part(str *o, const jtree *piece)
{
    const jtree *text = jtree_get(piece, "text");
    json_open(o, NULL, '{');
    json_text(o, "type", "text");
    json_tree(o, "text", text ? text : jtree_get(piece, "refusal"));
    json_close(o, '}');
}

static bool put_message(request *rq, const jtree *m, size_t i, problem *p)
{
    const jtree *c = jtree_get(m, "content");
    size_t k = 0;
    char field[64];
    snprintf(field, sizeof field, "messages[%zu]", i);
    if (m->kind != JTREE_OBJECT)
        return problem_set(p, 400, field, "'%s' is %s; expected an object", field,
                           jtree_kind_name(m));
    json_open(&rq->messages, NULL, '{');
    for (const jtree *f = m->first; f; f = f->next)
        if (f != c)
            json_tree(&rq->messages, f->key, f);
    if (jtree_is(c, JTREE_ARRAY)) {
        json_open(&rq->messages, "content", '[');
        for (const jtree *piece = c->first; piece; piece = piece->next) {
            if (!refuse_part(piece, i, k++, p))
                return false;
            put_part(&rq->messages, piece);
        }
        json_close(&rq->messages, ']');
    } else if (c) {
        json_tree(&rq->messages, "content", c);
    }
    json_close(&rq->messages, '}');
    return true;
}

/* A conversation that ends with words of the assistant's is one to go on with: they are how the
 * answer begins. */
static bool read_prefill(request *rq, const jtree *last, size_t i, problem *p)
{
    const jtree *c = jtree_get(last, "content");
    str text = {0};
    char field[64];
    snprintf(field, sizeof field, "messages[%zu]", i);
    if (jtree_truthy(jtree_get(last, "tool_calls")))
        return problem_set(p, 400, field, "'%s' calls tools, and the results are missing", field);
    if (jtree_is(c, JTREE_STRING))
        str_put(&text, c->s, c->n);
    size_t k = 0;
    for (const jtree *piece = jtree_is(c, JTREE_ARRAY) ? c->first : NULL; piece;
         piece = piece->next) {
        const jtree *t = jtree_get(piece, "text");
        if (!refuse_part(piece, i, k++, p))
            goto out;
        if (jtree_is(t, JTREE_STRING))
            str_put(&text, t->s, t->n);
    }
    if (c && c->kind != JTREE_STRING && c->kind != JTREE_ARRAY) {
        problem_set(p, 400, field, "'%s.content' is %s; expected a string", field,
                    jtree_kind_name(c));
        goto out;
    }
    if (text.n && !text.bad && keep_text(rq, p, text.at, text.n, &rq->prefill))
        rq->n_prefill = text.n;
    if (text.bad)
        problem_set(p, 503, "", "no memory for '%s'", field);
    if (text.n && rq->think == THINK_ON)
        problem_set(p, 400, field,
                    "'%s' begins the answer, which cannot be thought about first: turn thinking "
                    "off, or end with a message of the user",
                    field);
out:
    str_free(&text);
    return !p->status;
}

static bool read_messages(request *rq, problem *p)
{
    const jtree *list;
    size_t i = 0;
    if (!field_kind(p, rq->body, "messages", JTREE_ARRAY, &list))
        return false;
    if (!list || !list->count)
        return problem_set(p, 400, "messages", "'messages' is %s", list ? "empty" : "missing");
    str_putc(&rq->messages, '[');
    for (const jtree *m = list->first; m; m = m->next, i++) {
        if (!m->next && is_role(m, "assistant") && i > 0) {
            if (!read_prefill(rq, m, i, p))
                return false;
        } else if (!put_message(rq, m, i, p)) {
            return false;
        }
    }
    str_putc(&rq->messages, ']');
    return true;
}

static bool read_logprobs(request *rq, problem *p)
{
    int64_t top = 0;
    if (!field_bool(p, rq->body, "logprobs", &rq->logprobs) ||
        !field_int(p, rq->body, "top_logprobs", 0, 20, &top))
        return false;
    if (top && !rq->logprobs)
        return problem_set(p, 400, "top_logprobs", "'top_logprobs' needs 'logprobs': true");
    rq->sampling.n_top_logprobs = (int32_t)top;
    return true;
}

static bool read_grammar(request *rq, problem *p)
{
    const jtree *g;
    if (!field_kind(p, rq->body, "grammar", JTREE_STRING, &g) || !g || !g->n)
        return !p->status;
    if (rq->format != FORMAT_TEXT)
        return problem_set(p, 400, "grammar", "'grammar' and 'response_format' exclude each other");
    rq->format = FORMAT_GRAMMAR;
    rq->schema = g->s;
    rq->n_schema = g->n;
    return true;
}

bool chat_parse(request *rq, const request_limits *lim, problem *p)
{
    const jtree *options = NULL, *reasoning = NULL, *format = NULL;
    int64_t n = 1;
    if (!read_common(rq, lim, p) ||
        !field_kind(p, rq->body, "stream_options", JTREE_OBJECT, &options) ||
        !field_bool(p, options, "include_usage", &rq->include_usage) ||
        !field_int(p, rq->body, "n", 1, REQUEST_MAX_CHOICES, &n) ||
        !field_int(p, rq->body, "max_tokens", -1, INT32_MAX, &rq->max_tokens) ||
        !field_int(p, rq->body, "max_completion_tokens", -1, INT32_MAX, &rq->max_tokens) ||
        !read_stops(rq, "stop", p) || !read_logprobs(rq, p) || !read_thinking(rq, p) ||
        !read_effort(rq, rq->body, "reasoning_effort", "reasoning_effort", p) ||
        !field_kind(p, rq->body, "reasoning", JTREE_OBJECT, &reasoning) ||
        !read_effort(rq, reasoning, "effort", "reasoning.effort", p) ||
        !field_kind(p, rq->body, "response_format", JTREE_OBJECT, &format) ||
        !read_format(rq, format, "response_format", false, p) || !read_grammar(rq, p) ||
        !read_tools(rq, TOOLS_NESTED, p) || !read_tool_choice(rq, TOOLS_NESTED, p) ||
        !read_messages(rq, p))
        return false;
    const char *key =
        jtree_get(rq->body, "max_completion_tokens") ? "max_completion_tokens" : "max_tokens";
    if (jtree_get(rq->body, key) && !rq->max_tokens)
        return problem_set(p, 400, key, "'%s' is 0; an answer has at least one token", key);
    rq->n = (int32_t)n;
    rq->max_tokens = rq->max_tokens < 0 ? 0 : rq->max_tokens;
    return true;
}

/* ---- Writing ---- */

static const char *finish_of(const choice *c)
{
    if (c->n_calls && c->finish != CARAT_FINISH_LENGTH)
        return "tool_calls";
    return c->finish == CARAT_FINISH_LENGTH ? "length" : "stop";
}

static void put_call(const part *p, int32_t index, bool stream, str *o)
{
    json_open(o, NULL, '{');
    if (stream)
        json_int(o, "index", index);
    json_text(o, "id", p->id);
    json_text(o, "type", "function");
    json_open(o, "function", '{');
    json_text(o, "name", p->name);
    json_text_n(o, "arguments", str_text(&p->text), p->text.n);
    json_close(o, '}');
    json_close(o, '}');
}

static void put_joined(str *o, const char *key, const choice *c, part_kind kind)
{
    str text = {0};
    put_parts(&text, c, kind);
    json_text_n(o, key, str_text(&text), text.n);
    o->bad |= text.bad;
    str_free(&text);
}

static void put_message_out(const choice *c, str *o)
{
    json_open(o, "message", '{');
    json_text(o, "role", "assistant");
    if (c->n_calls && !count_parts(c, PART_TEXT))
        json_nothing(o, "content");
    else
        put_joined(o, "content", c, PART_TEXT);
    json_nothing(o, "refusal");
    if (count_parts(c, PART_REASONING))
        put_joined(o, "reasoning_content", c, PART_REASONING);
    if (c->n_calls) {
        json_open(o, "tool_calls", '[');
        for (int32_t i = 0, index = 0; i < c->n_parts; i++)
            if (c->part[i].kind == PART_CALL)
                put_call(&c->part[i], index++, false, o);
        json_close(o, ']');
    }
    json_close(o, '}');
}

static void put_choice_logprobs(const answer *a, const choice *c, int32_t from, int32_t to, str *o)
{
    if (!a->rq->logprobs) {
        json_nothing(o, "logprobs");
        return;
    }
    json_open(o, "logprobs", '{');
    put_logprobs(a, c, from, to, o, "content");
    json_nothing(o, "refusal");
    json_close(o, '}');
}

static void chat_whole(answer *a, str *o)
{
    openai_head(a, "chat.completion", o);
    json_open(o, "choices", '[');
    for (int32_t i = 0; i < a->n; i++) {
        const choice *c = &a->choice[i];
        json_open(o, NULL, '{');
        json_int(o, "index", i);
        put_message_out(c, o);
        put_choice_logprobs(a, c, 0, c->n_shown, o);
        json_text(o, "finish_reason", finish_of(c));
        json_close(o, '}');
    }
    json_close(o, ']');
    openai_usage(a, o);
    put_timings(a, o);
    json_close(o, '}');
}

/* ---- A stream ---- */

#define CHUNK "chat.completion.chunk"

static void open_chunk(const answer *a, str *o)
{
    str_puts(o, "data: ");
    openai_head(a, CHUNK, o);
}

static void close_chunk(str *o)
{
    str_puts(o, "}\n\n");
}

static void open_delta(const answer *a, int32_t index, str *o)
{
    open_chunk(a, o);
    json_open(o, "choices", '[');
    json_open(o, NULL, '{');
    json_int(o, "index", index);
    json_open(o, "delta", '{');
}

static void close_delta(const answer *a, const char *finish, str *o)
{
    json_text(o, "finish_reason", finish);
    str_puts(o, "}]");
    if (a->rq->include_usage)
        json_nothing(o, "usage");
    close_chunk(o);
}

static void chat_begin(answer *a, str *o)
{
    for (int32_t i = 0; i < a->n; i++) {
        open_delta(a, i, o);
        json_text(o, "role", "assistant");
        json_text(o, "content", "");
        json_close(o, '}');
        json_nothing(o, "logprobs");
        close_delta(a, NULL, o);
    }
}

static void tell_progress(answer *a, const happening *h, str *o)
{
    open_delta(a, h->choice, o);
    json_close(o, '}');
    json_nothing(o, "finish_reason");
    str_puts(o, "}]");
    put_progress(a, &h->ev, o);
    close_chunk(o);
}

static void chat_event(answer *a, const happening *h, int32_t part_index, bool opened,
                       int32_t first_token, str *o)
{
    const choice *c = &a->choice[h->choice];
    (void)opened;
    if (h->done && !c->failed) {
        open_delta(a, h->choice, o);
        json_close(o, '}');
        json_nothing(o, "logprobs");
        close_delta(a, finish_of(c), o);
    }
    if (!h->done && h->ev.kind == CARAT_EV_PREFILL && a->rq->progress)
        tell_progress(a, h, o);
    if (part_index < 0)
        return;
    const part *p = &c->part[part_index];
    open_delta(a, h->choice, o);
    if (p->kind == PART_CALL) {
        json_open(o, "tool_calls", '[');
        put_call(p, c->n_calls - 1, true, o);
        json_close(o, ']');
    } else {
        json_text_n(o, p->kind == PART_TEXT ? "content" : "reasoning_content", h->ev.text,
                    h->ev.n_text);
    }
    json_close(o, '}');
    if (p->kind == PART_TEXT)
        put_choice_logprobs(a, c, first_token, c->n_shown, o);
    else
        json_nothing(o, "logprobs");
    close_delta(a, NULL, o);
}

static void chat_end(answer *a, str *o)
{
    openai_end(a, CHUNK, o);
}

const dialect chat_dialect = {.id_prefix = "chatcmpl-",
                              .call_prefix = "call_",
                              .begin = chat_begin,
                              .event = chat_event,
                              .end = chat_end,
                              .fail = openai_fail,
                              .whole = chat_whole,
                              .error = openai_error,
                              .ping = ": the server is at work\n\n"};
