/* api_chat.c - POST /v1/chat/completions: its requests, answers and streams. */
#include "apps/server/dialects/answer.h"
#include "apps/jsonw.h"
#include "apps/server/dialects/parts.h"
#include "apps/server/dialects/tool_kinds.h"

#include <stdio.h>
#include <string.h>

/* ---- Reading ---- */

/* A part of content: a text, a picture or a sound. A refusal of an earlier answer is text, too. */
static bool put_part(request *rq, const jtree *piece, size_t i, size_t k, problem *p)
{
    const jtree *type = jtree_get(piece, "type"), *text = jtree_get(piece, "text");
    int32_t number;
    char field[80];
    snprintf(field, sizeof field, "messages[%zu].content[%zu]", i, k);
    if (piece->kind != JTREE_OBJECT || !jtree_is(type, JTREE_STRING))
        return problem_set(p, 400, field, "'%s' is no object with a type", field);
    if (!strcmp(type->s, "text") || !strcmp(type->s, "refusal")) {
        text = text ? text : jtree_get(piece, "refusal");
        jtree_pass(text);
        put_text(rq, talk_string(text));
        return true;
    }
    if (!strcmp(type->s, "image_url")) {
        const jtree *v = jtree_get(piece, "image_url"), *url = jtree_get(v, "url");
        bool object = jtree_is(v, JTREE_OBJECT);
        number = take_picture(rq,
                              &(picture_source){.url = object ? url : v,
                                                .detail = jtree_get(v, "detail"),
                                                .field = field},
                              p);
    } else if (!strcmp(type->s, "input_audio")) {
        number = take_sound(rq, jtree_get(piece, "input_audio"), field, p);
    } else {
        return problem_set(p, 400, field,
                           "'%s' is of type \"%.40s\": carat reads text, images and sound", field,
                           type->s);
    }
    if (number >= 0)
        put_picture(rq, number);
    return number >= 0;
}

static bool put_chat_message(request *rq, const jtree *m, size_t i, problem *p)
{
    const jtree *c = jtree_get(m, "content");
    carat_talk *t = &rq->talk;
    size_t k = 0;
    talk_role role;
    char field[64];
    err e = {0};
    snprintf(field, sizeof field, "messages[%zu]", i);
    if (m->kind != JTREE_OBJECT)
        return problem_set(p, 400, field, "'%s' is %s; expected an object", field,
                           jtree_kind_name(m));
    for (const jtree *f = m->first; f; f = f->next)
        if (f != c)
            jtree_pass(f);
    if (talk_read_role(m, "messages", i, &role, &e) ||
        talk_read_turn(t, m, role, "messages", i, &e))
        return problem_from(p, &e);
    if (!jtree_is(c, JTREE_ARRAY)) {
        jtree_pass(c);
        return !talk_read_content(t, c, &e) || problem_from(p, &e);
    }
    talk_last(t)->shape = TALK_LIST;
    for (const jtree *piece = c->first; piece; piece = piece->next)
        if (!put_part(rq, piece, i, k++, p))
            return false;
    return true;
}

/* If the last message is the assistant's, the answer continues it. */
static bool read_prefill(request *rq, size_t i, problem *p)
{
    const talk_turn *m = talk_last(&rq->talk);
    char field[64];
    snprintf(field, sizeof field, "messages[%zu]", i);
    if (m->n_calls && !m->n_results)
        return problem_set(p, 400, field, "'%s' calls tools, and the results are missing", field);
    if (!rq->continue_last)
        return true;
    if (!take_prefill(rq))
        return problem_set(p, 400, field, "'%s' begins the answer, and holds an image or a sound",
                           field);
    return !rq->n_prefill || rq->think != THINK_ON || rq->thought ||
           problem_set(p, 400, field,
                       "'%s' begins the answer, so the model cannot think before it: turn thinking "
                       "off, or end with a user message",
                       field);
}

/* The answer as the client expects it, a text or a list of them, for the lookup drafter. */
static bool read_prediction(request *rq, problem *p)
{
    const jtree *v, *c;
    str text = {0};
    bool list;
    if (!field_kind(p, rq->body, "prediction", JTREE_OBJECT, &v))
        return false;
    if (!v)
        return true;
    c = jtree_get(v, "content");
    list = jtree_is(c, JTREE_ARRAY);
    if (!tree_says(jtree_get(v, "type"), "content"))
        return problem_set(p, 400, "prediction.type", "'prediction.type' must be \"content\"");
    if (!list && !jtree_is(c, JTREE_STRING))
        return problem_set(p, 400, "prediction.content",
                           "'prediction.content' must be a string or an array of texts");
    for (const jtree *piece = list ? c->first : c; piece; piece = list ? piece->next : NULL) {
        const jtree *t = list ? jtree_get(piece, "text") : c;
        if (list && (!tree_says(jtree_get(piece, "type"), "text") || !jtree_is(t, JTREE_STRING))) {
            str_free(&text);
            return problem_set(p, 400, "prediction.content",
                               "'prediction.content' has a part that is no text");
        }
        str_put(&text, t->s, t->n);
    }
    if (text.bad)
        problem_set(p, 503, "", "no memory for 'prediction'");
    else if (text.n && keep_text(rq, p, text.at, text.n, &rq->prediction))
        rq->n_prediction = text.n;
    str_free(&text);
    return !p->status;
}

static bool read_chat_messages(request *rq, problem *p)
{
    const jtree *list;
    size_t i = 0;
    if (!field_kind(p, rq->body, "messages", JTREE_ARRAY, &list))
        return false;
    if (!list || !list->count)
        return problem_set(p, 400, "messages", "'messages' is %s", list ? "empty" : "missing");
    for (const jtree *m = list->first; m; m = m->next, i++)
        if (!put_chat_message(rq, m, i, p))
            return false;
    bool assistant = talk_last(&rq->talk)->role == TALK_ASSISTANT && i > 1;
    return read_continue(rq, assistant, p) && (!assistant || read_prefill(rq, i - 1, p));
}

static bool read_chat_logprobs(request *rq, problem *p)
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

bool chat_parse(request *rq, const request_limits *lim, problem *p)
{
    static const char *const limits[] = {"max_tokens", "max_completion_tokens", "n_predict", NULL};
    const jtree *options = NULL, *format = NULL;
    int64_t n = 1;
    if (!read_common(rq, lim, p) ||
        !field_kind(p, rq->body, "stream_options", JTREE_OBJECT, &options) ||
        !read_usage(rq, options, p) || !field_int(p, rq->body, "n", 1, REQUEST_MAX_CHOICES, &n) ||
        !read_max_tokens(rq, limits, p) || !read_stops(rq, "stop", p) ||
        !read_chat_logprobs(rq, p) || !read_prompt_logprobs(rq, p) || !read_thinking(rq, lim, p) ||
        !read_effort(rq, rq->body, "reasoning_effort", "reasoning_effort", p) ||
        !read_reasoning(rq, lim, p) ||
        !field_kind(p, rq->body, "response_format", JTREE_OBJECT, &format) ||
        !read_format(rq, format, "response_format", false, p) || !read_forms(rq, p) ||
        !read_verbosity(rq, rq->body, "verbosity", p) || !read_tools(rq, TOOLS_NESTED, p) ||
        !read_tool_choice(rq, TOOLS_NESTED, p) || !read_prediction(rq, p) ||
        !read_chat_messages(rq, p))
        return false;
    rq->n = (int32_t)n;
    return true;
}

/* ---- Writing ---- */

static const char *chat_finish(const answer *a, const choice *c)
{
    if (c->n_calls && c->finish != CARAT_FINISH_LENGTH)
        return a->rq->functions ? "function_call" : "tool_calls";
    return c->finish == CARAT_FINISH_LENGTH ? "length" : "stop";
}

/* index: in a stream; below 0: in a whole answer. */
static void put_tool_call(const answer *a, const part *p, int32_t index, str *o)
{
    json_open(o, NULL, '{');
    if (index >= 0)
        json_int(o, "index", index);
    json_text(o, "id", p->id);
    const tool_form *t = request_tool(a->rq, p->name);
    bool custom = t && t->kind;
    json_text(o, "type", custom ? "custom" : "function");
    json_open(o, custom ? "custom" : "function", '{');
    json_text(o, "name", p->name);
    if (custom)
        put_call_text(p, t->kind->text, "input", o);
    else
        json_text_n(o, "arguments", str_text(&p->text), p->text.n);
    json_close(o, "}}");
}

/* The one call, for clients that sent `functions`. */
static void put_function_call(const part *p, str *o)
{
    json_open(o, "function_call", '{');
    json_text(o, "name", p->name);
    json_text_n(o, "arguments", str_text(&p->text), p->text.n);
    json_close(o, "}");
}

static void put_joined(str *o, const char *key, const choice *c, part_kind kind)
{
    str text = {0};
    put_parts(&text, c, kind);
    json_text_n(o, key, str_text(&text), text.n);
    o->bad |= text.bad;
    str_free(&text);
}

static void put_message_out(const answer *a, const choice *c, str *o)
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
    for (int32_t i = 0; a->rq->functions && i < c->n_parts; i++)
        if (is_whole_call(&c->part[i]))
            put_function_call(&c->part[i], o);
    if (c->n_calls && !a->rq->functions) {
        json_open(o, "tool_calls", '[');
        for (int32_t i = 0; i < c->n_parts; i++)
            if (is_whole_call(&c->part[i]))
                put_tool_call(a, &c->part[i], -1, o);
        json_close(o, "]");
    }
    json_close(o, "}");
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
    json_close(o, "}");
}

static void chat_whole(answer *a, str *o)
{
    json_open(o, NULL, '{');
    openai_head(a, "chat.completion", o);
    json_open(o, "choices", '[');
    for (int32_t i = 0; i < a->n; i++) {
        const choice *c = &a->choice[i];
        json_open(o, NULL, '{');
        json_int(o, "index", i);
        put_message_out(a, c, o);
        put_choice_logprobs(a, c, 0, c->n_shown, o);
        json_text(o, "finish_reason", chat_finish(a, c));
        put_stop_reason(a, c, chat_finish(a, c), o);
        json_close(o, "}");
    }
    json_close(o, "]");
    if (a->n)
        put_prompt_logprobs(a, prompt_of(a, 0), o);
    openai_usage(a, o);
    put_timings(a, o);
    json_close(o, "}");
}

/* ---- A stream ---- */

#define CHUNK "chat.completion.chunk"

static void open_delta(const answer *a, int32_t index, str *o)
{
    event_open(o, NULL);
    openai_head(a, CHUNK, o);
    json_open(o, "choices", '[');
    json_open(o, NULL, '{');
    json_int(o, "index", index);
    json_open(o, "delta", '{');
}

static void close_delta(const answer *a, const char *finish, str *o)
{
    json_text(o, "finish_reason", finish);
    json_close(o, "}]");
    if (a->rq->include_usage)
        json_nothing(o, "usage");
    event_close(o);
}

static void chat_begin(answer *a, str *o)
{
    for (int32_t i = 0; i < a->n; i++) {
        open_delta(a, i, o);
        json_text(o, "role", "assistant");
        json_text(o, "content", "");
        json_close(o, "}");
        json_nothing(o, "logprobs");
        close_delta(a, NULL, o);
    }
}

static void chat_progress(answer *a, const choice_event *h, str *o)
{
    open_delta(a, h->choice, o);
    json_close(o, "}");
    json_nothing(o, "finish_reason");
    json_close(o, "}]");
    put_progress(a, &h->ev, o);
    event_close(o);
}

/* The logprobs of the prompt's tokens, in a chunk of their own. */
static void chat_tell_prompt(answer *a, str *o)
{
    open_delta(a, 0, o);
    json_close(o, "}");
    json_nothing(o, "logprobs");
    json_nothing(o, "finish_reason");
    json_close(o, "}]");
    put_prompt_logprobs(a, prompt_of(a, 0), o);
    if (a->rq->include_usage)
        json_nothing(o, "usage");
    event_close(o);
    a->choice[0].prompt_report = true;
}

/* More of the arguments of a call that the client has the id and the name of. */
static void put_more_arguments(const answer *a, int32_t index, const carat_event *ev, str *o)
{
    if (!a->rq->functions) {
        json_open(o, "tool_calls", '[');
        json_open(o, NULL, '{');
        json_int(o, "index", index);
    }
    json_open(o, a->rq->functions ? "function_call" : "function", '{');
    json_text_n(o, "arguments", ev->text, ev->n_text);
    json_close(o, a->rq->functions ? "}" : "}}]");
}

/* The call's number among those that the client knows, the broken ones too. */
static int32_t call_index(const choice *c, int32_t i)
{
    int32_t n = 0;
    for (int32_t k = 0; k < i; k++)
        n += c->part[k].kind == PART_CALL;
    return n;
}

static void put_call_delta(const answer *a, const choice *c, int32_t i, const carat_event *ev,
                           bool opened, str *o)
{
    if (!opened) {
        put_more_arguments(a, call_index(c, i), ev, o);
    } else if (a->rq->functions) {
        put_function_call(&c->part[i], o);
    } else {
        json_open(o, "tool_calls", '[');
        put_tool_call(a, &c->part[i], call_index(c, i), o);
        json_close(o, "]");
    }
}

static void chat_event(answer *a, const choice_event *h, int32_t part_index, bool opened,
                       int32_t first_token, str *o)
{
    const choice *c = &a->choice[h->choice];
    bool progress = !h->done && h->ev.kind == CARAT_EV_PREFILL;
    /* All tokens of the prompt come before the first one of the answer. */
    if (a->rq->prompt_logprobs >= 0 && !h->choice && !c->prompt_report && !progress && !c->failed &&
        (h->done || h->ev.kind != CARAT_EV_PROMPT_TOKEN))
        chat_tell_prompt(a, o);
    if (h->done && !c->failed) {
        open_delta(a, h->choice, o);
        json_close(o, "}");
        json_nothing(o, "logprobs");
        close_delta(a, chat_finish(a, c), o);
    }
    if (progress && a->rq->progress)
        chat_progress(a, h, o);
    if (part_index < 0)
        return;
    const part *p = &c->part[part_index];
    open_delta(a, h->choice, o);
    if (p->kind == PART_CALL)
        put_call_delta(a, c, part_index, &h->ev, opened, o);
    else
        json_text_n(o, p->kind == PART_TEXT ? "content" : "reasoning_content", h->ev.text,
                    h->ev.n_text);
    json_close(o, "}");
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
                              .ping = ": the server is at work\n\n",
                              .call_parts = true};
