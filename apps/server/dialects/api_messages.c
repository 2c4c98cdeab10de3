/* api_messages.c - POST /v1/messages, Anthropic's dialect: its requests, answers and streams.
 *
 * Blocks become turns of the conversation (text/talk.h). Each tool result becomes a turn of the
 * role tool before the user's text of the same message; thinking becomes the thought of its turn.
 */
#include "apps/server/dialects/answer.h"
#include "apps/jsonw.h"
#include "apps/server/dialects/parts.h"

#include <stdio.h>
#include <string.h>

typedef struct place { /* a position in the request, for problems */
    request *rq;
    problem *p;
    size_t i;
} place;

static bool refuse_block(const place *at, size_t k, const char *what)
{
    char field[80];
    snprintf(field, sizeof field, "messages[%zu].content[%zu]", at->i, k);
    return problem_set(at->p, 400, field, "'%s' %s", field, what);
}

/* ---- Reading ---- */

/* Claude Code sends a line about itself that changes with each request. In the prompt it would make
 * the cached prefix useless, so it is left out. */
static bool is_attribution(const jtree *text)
{
    static const char start[] = "x-anthropic-billing-header:";
    return jtree_is(text, JTREE_STRING) && !strncmp(text->s, start, sizeof start - 1);
}

static bool read_system(request *rq, problem *p)
{
    const jtree *s = jtree_get(rq->body, "system");
    bool any = false;
    if (!s)
        return true;
    if (s->kind != JTREE_STRING && s->kind != JTREE_ARRAY)
        return problem_set(p, 400, "system", "'system' is %s; expected a string or text blocks",
                           jtree_kind_name(s));
    str text = {0};
    if (s->kind == JTREE_STRING && !is_attribution(s))
        str_put(&text, s->s, s->n);
    for (const jtree *b = s->kind == JTREE_ARRAY ? s->first : NULL; b; b = b->next) {
        const jtree *t = jtree_get(b, "text");
        if (!jtree_is(t, JTREE_STRING)) {
            str_free(&text);
            return problem_set(p, 400, "system", "'system' holds a block without text");
        }
        if (is_attribution(t))
            continue;
        if (any)
            str_puts(&text, "\n\n");
        any = true;
        str_put(&text, t->s, t->n);
    }
    if (text.n) {
        talk_add(&rq->talk, TALK_SYSTEM, "system", -1);
        put_content(rq, &text);
    }
    rq->talk.bad |= text.bad;
    str_free(&text);
    return true;
}

/* A string, or text blocks. False: a block is no text. */
static bool plain_text(const place *at, size_t k, const jtree *c, str *out)
{
    if (jtree_is(c, JTREE_STRING)) {
        str_put(out, c->s, c->n);
        return true;
    }
    if (!jtree_is(c, JTREE_ARRAY))
        return refuse_block(at, k, "has a content that is neither a string nor blocks");
    for (const jtree *b = c->first; b; b = b->next) {
        const jtree *t = jtree_get(b, "text");
        if (!tree_says(jtree_get(b, "type"), "text") || !jtree_is(t, JTREE_STRING))
            return refuse_block(at, k,
                                "holds a block that is no text: documents of text alone are read");
        str_put(out, t->s, t->n);
    }
    return true;
}

/* A document of text, with its title and its context before it. */
static bool document_text(const place *at, size_t k, const jtree *block, str *out)
{
    const jtree *source = jtree_get(block, "source"), *type = jtree_get(source, "type");
    const jtree *title = jtree_get(block, "title"), *context = jtree_get(block, "context");
    bool text = tree_says(type, "text");
    if (!text && !tree_says(type, "content"))
        return refuse_block(at, k,
                            "is a document whose source is no text: carat reads documents with a "
                            "source of type text or content");
    str_puts(out, "<document>\n");
    if (jtree_is(title, JTREE_STRING))
        str_printf(out, "Title: %s\n", title->s);
    if (jtree_is(context, JTREE_STRING))
        str_printf(out, "Context: %s\n", context->s);
    if (text && !jtree_is(jtree_get(source, "data"), JTREE_STRING))
        return refuse_block(at, k, "is a document without 'source.data', a string");
    if (!plain_text(at, k, jtree_get(source, text ? "data" : "content"), out))
        return false;
    str_puts(out, "\n</document>\n");
    if (jtree_truthy(jtree_get(jtree_get(block, "citations"), "enabled")))
        leave_out(at->rq,
                  "'messages[%zu].content[%zu].citations' has no effect: answers cite nothing",
                  at->i, k);
    return true;
}

/* A passage that a search of the client's has found. */
static bool passage_text(const place *at, size_t k, const jtree *block, str *out)
{
    static const char *const heads[] = {"title", "source"};
    str_puts(out, "<search_result>\n");
    for (int i = 0; i < 2; i++)
        if (jtree_is(jtree_get(block, heads[i]), JTREE_STRING))
            str_printf(out, "%s: %s\n", heads[i], jtree_get(block, heads[i])->s);
    if (!plain_text(at, k, jtree_get(block, "content"), out))
        return false;
    str_puts(out, "\n</search_result>\n");
    return true;
}

/* A picture, as a mark. */
static bool block_picture(const place *at, size_t k, const jtree *b, str *out)
{
    const jtree *source = jtree_get(b, "source"), *type = jtree_get(source, "type");
    const jtree *media = jtree_get(source, "media_type");
    char field[80];
    snprintf(field, sizeof field, "messages[%zu].content[%zu]", at->i, k);
    picture_source s = {.field = field};
    if (tree_says(type, "base64"))
        s.base64 = jtree_get(source, "data");
    else if (tree_says(type, "url"))
        s.url = jtree_get(source, "url");
    else if (at->rq->lim->images)
        return refuse_block(at, k, "is an image whose source is neither base64 nor url");
    if (media && (!jtree_is(media, JTREE_STRING) || strncmp(media->s, "image/", 6)))
        return refuse_block(at, k, "is an image whose 'source.media_type' is no image/...");
    int32_t number = take_picture(at->rq, &s, at->p);
    mark_picture(out, at->rq, number);
    return number >= 0;
}

/* The text of a block; blocks of unknown types have none, and are said to be left out. */
static bool block_text(const place *at, size_t k, const jtree *b, str *out)
{
    const jtree *type = jtree_get(b, "type"), *t = jtree_get(b, "text");
    if (tree_says(type, "document"))
        return document_text(at, k, b, out);
    if (tree_says(type, "search_result"))
        return passage_text(at, k, b, out);
    if (tree_says(type, "image"))
        return block_picture(at, k, b, out);
    if (tree_says(type, "compaction")) /* a summary of what came before */
        t = jtree_get(b, "content");
    if (jtree_is(t, JTREE_STRING)) {
        str_put(out, t->s, t->n);
    } else {
        jtree_pass(b);
        leave_out(
            at->rq,
            "'messages[%zu].content[%zu]', a block of type %.60s, is left out: it has no text "
            "for the model",
            at->i, k, jtree_is(type, JTREE_STRING) ? type->s : "unknown");
    }
    return true;
}

/* The text of a tool's result: a string, or blocks. */
static bool result_text(const place *at, size_t k, const jtree *block, str *out)
{
    const jtree *c = jtree_get(block, "content");
    if (jtree_truthy(jtree_get(block, "is_error")))
        str_puts(out, "Error: ");
    if (!c)
        return true;
    if (c->kind == JTREE_STRING) {
        str_put(out, c->s, c->n);
        return true;
    }
    if (c->kind != JTREE_ARRAY)
        return refuse_block(at, k, "has a content that is neither a string nor blocks");
    for (const jtree *b = c->first; b; b = b->next)
        if (!block_text(at, k, b, out))
            return false;
    return true;
}

static void add_turn(const place *at, talk_role role)
{
    talk_add(&at->rq->talk, role, "messages", (int32_t)at->i);
}

static bool put_results(const place *at, const jtree *blocks)
{
    size_t k = 0;
    for (const jtree *b = blocks->first; b; b = b->next, k++) {
        if (!tree_says(jtree_get(b, "type"), "tool_result"))
            continue;
        str text = {0};
        const jtree *id = jtree_get(b, "tool_use_id");
        if (!jtree_is(id, JTREE_STRING))
            return refuse_block(at, k, "has no 'tool_use_id'");
        if (!result_text(at, k, b, &text)) {
            str_free(&text);
            return false;
        }
        add_turn(at, TALK_TOOL);
        put_content(at->rq, &text);
        if (!at->rq->talk.bad)
            talk_last(&at->rq->talk)->call_id = talk_string(id);
        str_free(&text);
    }
    return true;
}

/* Checks blocks of known types. */
static bool check_block(const place *at, const jtree *b, size_t k)
{
    const jtree *type = jtree_get(b, "type");
    if (!jtree_is(type, JTREE_STRING))
        return refuse_block(at, k, "has no 'type'");
    if (tree_says(type, "text") && !jtree_is(jtree_get(b, "text"), JTREE_STRING))
        return refuse_block(at, k, "has no 'text'");
    if (tree_says(type, "tool_use") && !jtree_is(jtree_get(b, "name"), JTREE_STRING))
        return refuse_block(at, k, "has no 'name'");
    return true;
}

/* The texts of a message's blocks, but those of `others`, separated by |, which are read apart. */
static bool join_blocks(const place *at, const jtree *blocks, const char *others, str *out)
{
    size_t k = 0;
    for (const jtree *b = blocks->first; b; b = b->next, k++) {
        const char *type = jtree_get(b, "type")->s, *found = strstr(others, type);
        size_t n = strlen(type);
        if (found && n && (found == others || found[-1] == '|') && (!found[n] || found[n] == '|'))
            continue;
        if (!block_text(at, k, b, out))
            return false;
    }
    return true;
}

static void join_text(const jtree *blocks, const char *type, const char *key, str *out)
{
    for (const jtree *b = blocks->first; b; b = b->next) {
        const jtree *t = jtree_get(b, key);
        if (tree_says(jtree_get(b, "type"), type) && jtree_is(t, JTREE_STRING))
            str_put(out, t->s, t->n);
    }
}

static void put_tool_uses(carat_talk *t, const jtree *blocks)
{
    for (const jtree *b = blocks->first; b; b = b->next) {
        if (!tree_says(jtree_get(b, "type"), "tool_use"))
            continue;
        const jtree *input = jtree_get(b, "input");
        jtree_pass(input);
        talk_put_call(t, (talk_call){.id = talk_string(jtree_get(b, "id")),
                                     .name = talk_string(jtree_get(b, "name")),
                                     .arguments = input});
    }
}

static bool put_user(const place *at, const jtree *blocks)
{
    str text = {0};
    if (!put_results(at, blocks) || !join_blocks(at, blocks, "tool_result", &text)) {
        str_free(&text);
        return false;
    }
    bool results = false;
    for (const jtree *b = blocks->first; b; b = b->next)
        results |= tree_says(jtree_get(b, "type"), "tool_result");
    at->rq->talk.bad |= text.bad;
    if (text.n || !results) {
        add_turn(at, TALK_USER);
        put_content(at->rq, &text);
    }
    str_free(&text);
    return true;
}

/* last: the answer may continue it. */
static bool put_assistant(const place *at, const jtree *blocks, bool last)
{
    request *rq = at->rq;
    carat_talk *t = &rq->talk;
    str text = {0}, thought = {0};
    join_text(blocks, "thinking", "thinking", &thought);
    bool ok = join_blocks(at, blocks, "tool_use|thinking|redacted_thinking", &text) &&
              (!last || read_continue(rq, true, at->p));
    for (const jtree *b = blocks->first; b && ok && last; b = b->next)
        if (tree_says(jtree_get(b, "type"), "tool_use"))
            ok = refuse_block(at, 0, "calls tools, and the results are missing");
    t->bad |= thought.bad;
    add_turn(at, TALK_ASSISTANT);
    put_content(rq, &text);
    put_tool_uses(t, blocks);
    if (thought.n && !t->bad)
        talk_last(t)->thought[TALK_REASONING_CONTENT] = talk_keep(t, thought.at, thought.n);
    if (ok && rq->continue_last && !t->bad && !take_prefill(rq))
        ok = refuse_block(at, 0, "begins the answer with a message that holds an image");
    str_free(&text);
    str_free(&thought);
    return ok;
}

static bool put_anthropic_message(const place *at, const jtree *m)
{
    const jtree *role = jtree_get(m, "role"), *c = jtree_get(m, "content");
    char field[64];
    snprintf(field, sizeof field, "messages[%zu]", at->i);
    bool user = tree_says(role, "user"), system = tree_says(role, "system");
    if (!user && !system && !tree_says(role, "assistant"))
        return problem_set(at->p, 400, field,
                           "'%s' has the role \"%.40s\"; expected user or assistant", field,
                           jtree_is(role, JTREE_STRING) ? role->s : jtree_kind_name(role));
    if (!jtree_is(c, JTREE_STRING) && !jtree_is(c, JTREE_ARRAY))
        return problem_set(at->p, 400, field,
                           "'%s.content' is %s; expected a string or an array of blocks", field,
                           jtree_kind_name(c));
    size_t k = 0;
    for (const jtree *b = c->kind == JTREE_ARRAY ? c->first : NULL; b; b = b->next)
        if (!check_block(at, b, k++))
            return false;
    /* A string stands for one text block. */
    const jtree type = {.kind = JTREE_STRING, .s = "text", .n = 4, .key = "type", .n_key = 4};
    jtree text = *c, holder = {.kind = JTREE_OBJECT, .count = 2}, kind = type;
    jtree one = {.kind = JTREE_ARRAY, .first = &holder, .count = 1};
    if (c->kind == JTREE_STRING) {
        kind.next = &text;
        text.key = "text";
        text.n_key = 4;
        text.next = NULL;
        holder.first = &kind;
        c = &one;
    }
    if (user)
        return put_user(at, c);
    if (system) { /* a reminder inside the conversation */
        str words = {0};
        bool ok = join_blocks(at, c, "", &words);
        if (ok) {
            add_turn(at, TALK_SYSTEM);
            put_content(at->rq, &words);
        }
        str_free(&words);
        return ok;
    }
    return put_assistant(at, c, !m->next && at->i > 0);
}

static bool read_anthropic_messages(request *rq, problem *p)
{
    const jtree *list;
    place at = {rq, p, 0};
    if (!field_kind(p, rq->body, "messages", JTREE_ARRAY, &list))
        return false;
    if (!list || !list->count)
        return problem_set(p, 400, "messages", "'messages' is %s", list ? "empty" : "missing");
    if (!read_system(rq, p))
        return false;
    for (const jtree *m = list->first; m; m = m->next, at.i++)
        if (!put_anthropic_message(&at, m))
            return false;
    if (!rq->continue_last && !read_continue(rq, false, p))
        return false;
    return rq->talk.bad || rq->talk.n ||
           problem_set(p, 400, "messages",
                       "'messages' has no text; expected at least one message with text");
}

bool messages_parse(request *rq, const request_limits *lim, problem *p)
{
    static const char *const limits[] = {"n_predict", NULL};
    const jtree *config = NULL, *format = NULL, *beta = NULL;
    if (!read_common(rq, lim, p) ||
        !field_int(p, rq->body, "max_tokens", 1, INT32_MAX, &rq->max_tokens) ||
        !read_max_tokens(rq, limits, p) || !read_stops(rq, "stop_sequences", p) ||
        !read_thinking(rq, lim, p) ||
        !field_kind(p, rq->body, "output_config", JTREE_OBJECT, &config) ||
        !field_kind(p, config, "format", JTREE_OBJECT, &format) ||
        !field_kind(p, rq->body, "output_format", JTREE_OBJECT, &beta) ||
        !read_format(rq, format, "output_config.format", true, p) ||
        !read_format(rq, beta, "output_format", true, p) || !read_forms(rq, p) ||
        !read_tools(rq, TOOLS_ANTHROPIC, p) || !read_tool_choice(rq, TOOLS_ANTHROPIC, p) ||
        !read_anthropic_messages(rq, p))
        return false;
    /* The effort sets the amount of thinking; only `thinking` switches it on or off. */
    think_mode said = rq->think;
    if (!read_effort(rq, config, "effort", "output_config.effort", p))
        return false;
    rq->think = said;
    return !(rq->prefill && rq->think == THINK_ON && !rq->thought) ||
           problem_set(p, 400, "thinking",
                       "'thinking' is enabled, and the last message begins the answer: the model "
                       "cannot think before it");
}

/* ---- Writing ---- */

static void messages_error(const problem *p, str *o)
{
    static const struct {
        int status;
        const char *type;
    } types[] = {{401, "authentication_error"}, {403, "permission_error"},
                 {404, "not_found_error"},      {413, "request_too_large"},
                 {429, "rate_limit_error"},     {503, "overloaded_error"}};
    const char *type = p->status >= 500 ? "api_error" : "invalid_request_error";
    char id[ID_BYTES];
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (types[i].status == p->status)
            type = types[i].type;
    make_id(id, "req_");
    json_open(o, NULL, '{');
    json_text(o, "type", "error");
    json_open(o, "error", '{');
    json_text(o, "type", type);
    json_text(o, "message", p->text);
    json_close(o, "}");
    json_text(o, "request_id", id);
    json_close(o, "}");
}

static const char *stop_reason(const choice *c)
{
    if (c->finish == CARAT_FINISH_LENGTH)
        return "max_tokens";
    return c->n_calls ? "tool_use" : c->stop ? "stop_sequence" : "end_turn";
}

static void put_message_usage(const answer *a, str *o)
{
    usage u = answer_usage(a);
    int64_t prompt = a->choice[0].over ? u.prompt : a->n_prompt;
    json_open(o, "usage", '{');
    json_int(o, "input_tokens", prompt - u.cached);
    json_int(o, "cache_creation_input_tokens", 0);
    json_int(o, "cache_read_input_tokens", u.cached);
    json_int(o, "output_tokens", u.generated);
    if (u.drafter) {
        json_int(o, "accepted_prediction_tokens", u.accepted);
        json_int(o, "rejected_prediction_tokens", u.drafted - u.accepted);
    }
    put_extras(&u, o);
    json_close(o, "}");
}

/* A complete block; empty: the start of the block in a stream. */
static void put_content_block(const part *p, bool empty, str *o)
{
    json_open(o, NULL, '{');
    if (p->kind == PART_CALL) {
        json_text(o, "type", "tool_use");
        json_text(o, "id", p->id);
        json_text(o, "name", p->name);
        if (empty)
            json_empty(o, "input", "{}");
        else
            json_ready(o, "input", str_text(&p->text), p->text.n);
    } else {
        bool thought = p->kind == PART_REASONING;
        json_text(o, "type", thought ? "thinking" : "text");
        json_text_n(o, thought ? "thinking" : "text", str_text(&p->text), empty ? 0 : p->text.n);
        if (thought)
            json_text(o, "signature", "");
    }
    json_close(o, "}");
}

static void put_message_head(const answer *a, str *o)
{
    json_text(o, "id", a->id);
    json_text(o, "type", "message");
    json_text(o, "role", "assistant");
    json_text(o, "model", model_name(a));
    put_warnings(a->rq, o);
}

static void messages_whole(answer *a, str *o)
{
    const choice *c = &a->choice[0];
    json_open(o, NULL, '{');
    put_message_head(a, o);
    json_open(o, "content", '[');
    for (int32_t i = 0; i < c->n_parts; i++)
        if (!c->part[i].open)
            put_content_block(&c->part[i], false, o);
    json_close(o, "]");
    json_text(o, "stop_reason", stop_reason(c));
    json_text(o, "stop_sequence", c->stop);
    put_message_usage(a, o);
    json_close(o, "}");
}

/* ---- A stream ---- */

static void messages_begin(answer *a, str *o)
{
    event_open(o, "message_start");
    json_open(o, "message", '{');
    put_message_head(a, o);
    json_empty(o, "content", "[]");
    json_nothing(o, "stop_reason");
    json_nothing(o, "stop_sequence");
    put_message_usage(a, o);
    json_close(o, "}");
    event_close(o);
}

static void put_delta(const answer *a, const char *type, const char *key, const char *s, size_t n,
                      str *o)
{
    event_open(o, "content_block_delta");
    json_int(o, "index", a->open_part);
    json_open(o, "delta", '{');
    json_text(o, "type", type);
    json_text_n(o, key, s, n);
    json_close(o, "}");
    event_close(o);
}

static void close_block(answer *a, str *o)
{
    if (a->open_part < 0)
        return;
    if (a->choice[0].part[a->open_part].kind == PART_REASONING)
        put_delta(a, "signature_delta", "signature", "", 0, o);
    event_open(o, "content_block_stop");
    json_int(o, "index", a->open_part);
    event_close(o);
    a->open_part = -1;
}

/* In a ping, because clients ignore the content of pings. */
static void messages_progress(const answer *a, const choice_event *h, str *o)
{
    event_open(o, "ping");
    put_progress(a, &h->ev, o);
    event_close(o);
}

static void messages_event(answer *a, const choice_event *h, int32_t i, bool opened,
                           int32_t first_token, str *o)
{
    (void)first_token;
    if (!h->done && h->ev.kind == CARAT_EV_PREFILL && a->rq->progress)
        messages_progress(a, h, o);
    if (i < 0)
        return;
    const part *p = &a->choice[0].part[i];
    if (opened) {
        close_block(a, o);
        a->open_part = i;
        event_open(o, "content_block_start");
        json_int(o, "index", i);
        json_key(o, "content_block");
        put_content_block(p, true, o);
        event_close(o);
    }
    if (p->kind == PART_CALL)
        put_delta(a, "input_json_delta", "partial_json", h->ev.text, h->ev.n_text, o);
    else if (p->kind == PART_TEXT)
        put_delta(a, "text_delta", "text", h->ev.text, h->ev.n_text, o);
    else
        put_delta(a, "thinking_delta", "thinking", h->ev.text, h->ev.n_text, o);
}

static void messages_end(answer *a, str *o)
{
    const choice *c = &a->choice[0];
    close_block(a, o);
    event_open(o, "message_delta");
    json_open(o, "delta", '{');
    json_text(o, "stop_reason", stop_reason(c));
    json_text(o, "stop_sequence", c->stop);
    json_close(o, "}");
    put_message_usage(a, o);
    event_close(o);
    event_open(o, "message_stop");
    event_close(o);
}

static void messages_fail(answer *a, const problem *p, str *o)
{
    (void)a;
    str_puts(o, "event: error\ndata: ");
    messages_error(p, o);
    str_puts(o, "\n\n");
}

const dialect messages_dialect = {.id_prefix = "msg_",
                                  .call_prefix = "toolu_",
                                  .begin = messages_begin,
                                  .event = messages_event,
                                  .end = messages_end,
                                  .fail = messages_fail,
                                  .whole = messages_whole,
                                  .error = messages_error,
                                  .ping = "event: ping\ndata: {\"type\":\"ping\"}\n\n",
                                  .call_parts = true};
