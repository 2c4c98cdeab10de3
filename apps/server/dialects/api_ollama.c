/* api_ollama.c - ollama's POST /api/chat and POST /api/generate.
 *
 *     {"model", "messages": [...], "options": {"temperature": 0, "num_predict": 9}, "stream"}
 *
 * Streams are the default: a JSON object per line. Sampling fields stand in `options`, under the
 * names of all endpoints, which are read there by the same functions. Messages become turns of the
 * conversation (text/talk.h): a call's arguments are an object, and results name the call's tool or
 * its id.
 */
#include "apps/server/dialects/answer.h"
#include "apps/jsonw.h"
#include "apps/server/dialects/parts.h"
#include "base/clock.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

enum { KEEP_FIRST = 4 }; /* ollama's num_keep, where a request has none */

/* ---- Reading ---- */

/* `options`, by the parsers that read the same names at the top of other requests. */
bool ollama_settings_read(request *rq, const jtree *options, const request_limits *lim, problem *p)
{
    static const char *const limits[] = {"max_tokens", "n_predict", NULL};
    static const jtree none = {.kind = JTREE_OBJECT, .s = ""};
    const jtree *body = rq->body;
    api_kind api = rq->api;
    int64_t n = -1, n_ctx = 0; /* n_ctx is of a derived model, for its loading */
    rq->body = options ? options : &none;
    rq->api = API_OLLAMA_OPTIONS;
    bool ok = check_fields(rq, lim, p) && read_common(rq, lim, p) && read_stops(rq, "stop", p) &&
              read_max_tokens(rq, limits, p) &&
              field_int(p, rq->body, "num_predict", -2, INT32_MAX, &n) &&
              field_int(p, rq->body, "num_ctx", 0, 1 << 30, &n_ctx) &&
              field_int(p, rq->body, "num_keep", -1, INT32_MAX, &rq->num_keep) && read_forms(rq, p);
    rq->body = body;
    rq->api = api;
    if (n > 0 && (!rq->max_tokens || n < rq->max_tokens))
        rq->max_tokens = n;
    return ok;
}

static bool read_options(request *rq, const request_limits *lim, problem *p)
{
    const jtree *options;
    return field_kind(p, rq->body, "options", JTREE_OBJECT, &options) &&
           ollama_settings_read(rq, options, lim, p);
}

/* "json", a JSON schema, or nothing. */
static bool read_answer_format(request *rq, problem *p)
{
    const jtree *v = jtree_get(rq->body, "format");
    if (!v || (v->kind == JTREE_STRING && !v->n))
        return true;
    if (v->kind != JTREE_STRING)
        return read_schema(rq, "format", v, p);
    if (strcmp(v->s, "json"))
        return problem_set(p, 400, "format",
                           "'format' is \"%.40s\"; expected \"json\" or a JSON schema", v->s);
    rq->format = FORMAT_JSON_OBJECT;
    rq->form_field = "format";
    return true;
}

/* Does `keep_alive` ask to unload the model? */
static bool is_unload(const jtree *v)
{
    double d = -1;
    if (jtree_is(v, JTREE_STRING))
        return v->n && *v->s == '0' && strspn(v->s, "0.hmsnu") == v->n;
    return tree_real(v, 0, 0, &d);
}

static bool read_both(request *rq, const request_limits *lim, problem *p)
{
    int64_t top = 0;
    rq->n = 1;
    rq->truncate = rq->shift = rq->thinks_by_default = true;
    rq->num_keep = KEEP_FIRST;
    if (!read_options(rq, lim, p))
        return false;
    rq->stream = true;
    rq->unload = is_unload(jtree_get(rq->body, "keep_alive"));
    if (!field_bool(p, rq->body, "stream", &rq->stream) ||
        !field_bool(p, rq->body, "truncate", &rq->truncate) ||
        !field_bool(p, rq->body, "shift", &rq->shift) || !read_answer_format(rq, p) ||
        !read_think(rq, rq->body, "think", "think", p) ||
        !field_bool(p, rq->body, "logprobs", &rq->logprobs) ||
        !field_int(p, rq->body, "top_logprobs", 0, 20, &top))
        return false;
    rq->sampling.n_top_logprobs = (int32_t)top;
    return !top || rq->logprobs ||
           problem_set(p, 400, "top_logprobs", "'top_logprobs' needs 'logprobs': true");
}

/* The content of the last turn: `images` of o, then the text; NULL: none. front: of the field,
 * before "images". */
static bool put_images(request *rq, const jtree *o, const jtree *text, const char *front,
                       problem *p)
{
    const jtree *list = jtree_get(o, "images");
    size_t k = 0;
    char field[80];
    snprintf(field, sizeof field, "%simages", front);
    if (list && list->kind != JTREE_ARRAY)
        return problem_set(p, 400, field, "'%s' is %s; expected an array", field,
                           jtree_kind_name(list));
    talk_set_text(&rq->talk, text ? text->s : "", text ? text->n : 0);
    if (!list || !list->count)
        return true;
    for (const jtree *it = list->first; it; it = it->next) {
        snprintf(field, sizeof field, "%simages[%zu]", front, k++);
        int32_t number =
            take_picture(rq, &(picture_source){.base64 = it, .field = field, .any = true}, p);
        if (number < 0)
            return false;
        put_picture(rq, number);
    }
    if (text && text->n)
        put_text(rq, talk_string(text));
    return true;
}

/* ---- Messages ---- */

/* The calls of the last assistant message, for results that name a tool and no id. */
typedef struct pending {
    const jtree *calls;
    size_t message; /* its index, which makes up ids */
    bool *answered; /* [calls->count] */
} pending;

static const jtree *call_name(const jtree *call)
{
    return jtree_get(jtree_get(call, "function"), "name");
}

static talk_text id_of_call(request *rq, const pending *w, const jtree *call, size_t i)
{
    talk_text id = talk_string(jtree_get(call, "id"));
    char made[48];
    int n = snprintf(made, sizeof made, "call_%zu_%zu", w->message, i);
    return id.n ? id : talk_keep(&rq->talk, made, (size_t)n);
}

static bool put_calls(request *rq, const jtree *m, size_t i, pending *w, problem *p)
{
    static const jtree none = {.kind = JTREE_OBJECT, .s = ""};
    const jtree *list = jtree_get(m, "tool_calls");
    size_t k = 0;
    char field[64];
    snprintf(field, sizeof field, "messages[%zu].tool_calls", i);
    if (list && list->kind != JTREE_ARRAY)
        return problem_set(p, 400, field, "'%s' is %s; expected an array", field,
                           jtree_kind_name(list));
    if (!list || !list->count)
        return true;
    if (list->count > REQUEST_MAX_CALLS)
        return problem_set(p, 400, field, "'%s' has %zu entries; at most %d", field, list->count,
                           REQUEST_MAX_CALLS);
    pending calls = {list, i, arena_array(&rq->mem, list->count, sizeof *w->answered)};
    if (!calls.answered)
        return problem_set(p, 503, "", "no memory for '%s'", field);
    for (const jtree *call = list->first; call; call = call->next, k++) {
        const jtree *arguments = jtree_get(jtree_get(call, "function"), "arguments");
        if (!jtree_is(call_name(call), JTREE_STRING))
            return problem_set(p, 400, field, "'%s[%zu]' has no function with a name", field, k);
        jtree_pass(arguments);
        talk_put_call(&rq->talk, (talk_call){.id = id_of_call(rq, &calls, call, k),
                                             .name = talk_string(call_name(call)),
                                             .arguments = arguments ? arguments : &none});
    }
    *w = calls;
    return true;
}

/* The id of the call that a result answers: as it says, else the first open call of its tool, else
 * the first open call. */
static talk_text id_of_result(request *rq, const jtree *m, pending *w)
{
    const jtree *id = jtree_get(m, "tool_call_id"), *name = jtree_get(m, "tool_name");
    if (jtree_is(id, JTREE_STRING) && id->n)
        return talk_string(id);
    for (int round = name ? 0 : 1; round < 2; round++) {
        size_t k = 0;
        for (const jtree *c = w->calls ? w->calls->first : NULL; c; c = c->next, k++) {
            const jtree *n = call_name(c);
            if (w->answered[k] || (!round && !(jtree_is(name, JTREE_STRING) && n->n == name->n &&
                                               !memcmp(n->s, name->s, n->n))))
                continue;
            w->answered[k] = true;
            return id_of_call(rq, w, c, k);
        }
    }
    return (talk_text){"", 0}; /* the chat format says what it lacks */
}

static bool put_message(request *rq, const jtree *m, size_t i, pending *w, problem *p)
{
    const jtree *content = jtree_get(m, "content"), *thought = jtree_get(m, "thinking");
    char field[64];
    talk_role role;
    err e = {0};
    snprintf(field, sizeof field, "messages[%zu]", i);
    if (m->kind != JTREE_OBJECT)
        return problem_set(p, 400, field, "'%s' is %s; expected an object", field,
                           jtree_kind_name(m));
    snprintf(field, sizeof field, "messages[%zu].content", i);
    if (content && content->kind != JTREE_STRING)
        return problem_set(p, 400, field, "'%s' is %s; expected a string", field,
                           jtree_kind_name(content));
    if (talk_read_role(m, "messages", i, &role, &e))
        return problem_from(p, &e);
    talk_add(&rq->talk, role, "messages", (int32_t)i);
    snprintf(field, sizeof field, "messages[%zu].", i);
    if (!put_images(rq, m, content, field, p) || !put_calls(rq, m, i, w, p))
        return false;
    talk_turn *turn = talk_last(&rq->talk);
    if (rq->talk.bad)
        return true; /* request_read says so */
    if (jtree_is(thought, JTREE_STRING) && thought->n)
        turn->thought[TALK_REASONING_CONTENT] = talk_string(thought);
    if (role == TALK_TOOL)
        turn->call_id = id_of_result(rq, m, w);
    snprintf(field, sizeof field, "messages[%zu]", i);
    return !turn->n_calls || role == TALK_ASSISTANT ||
           problem_set(p, 400, field, "%s: only assistant messages have those", field);
}

/* A last message of the assistant is the beginning of the answer. */
static bool read_beginning(request *rq, size_t i, problem *p)
{
    const talk_turn *m = talk_last(&rq->talk);
    char field[64];
    snprintf(field, sizeof field, "messages[%zu]", i);
    if (rq->talk.bad || m->role != TALK_ASSISTANT || !i)
        return true;
    if (m->n_calls)
        return problem_set(p, 400, field, "'%s' calls tools, and the results are missing", field);
    bool plain = take_prefill(rq);
    rq->continue_last = rq->n_prefill > 0;
    if (rq->continue_last && !plain)
        return problem_set(p, 400, field, "'%s' begins the answer, and holds images", field);
    return !rq->continue_last || rq->think != THINK_ON || rq->thought ||
           problem_set(p, 400, field,
                       "'%s' begins the answer, so the model cannot think before it: turn 'think' "
                       "off, or end with a user message",
                       field);
}

bool ollama_chat_parse(request *rq, const request_limits *lim, problem *p)
{
    const jtree *list;
    pending w = {0};
    size_t i = 0;
    if (!read_both(rq, lim, p) || !field_kind(p, rq->body, "messages", JTREE_ARRAY, &list) ||
        !read_tools(rq, TOOLS_NESTED, p))
        return false;
    rq->load_only = !list || !list->count;
    if (rq->load_only)
        return true;
    for (const jtree *m = list->first; m; m = m->next, i++)
        if (!put_message(rq, m, i, &w, p))
            return false;
    return read_beginning(rq, i - 1, p);
}

/* ---- One prompt ---- */

static bool refuse_field(const request *rq, const char *key, const char *why, problem *p)
{
    return !jtree_truthy(jtree_get(rq->body, key)) ||
           problem_set(p, 400, key, "'%s' is not supported: %s", key, why);
}

static bool read_raw(request *rq, const jtree *prompt, problem *p)
{
    static const char *const with[] = {"template", "system", "context", "images"};
    for (size_t i = 0; i < sizeof with / sizeof *with; i++)
        if (jtree_truthy(jtree_get(rq->body, with[i])))
            return problem_set(p, 400, with[i], "'raw' and '%s' exclude each other", with[i]);
    rq->prompt = arena_array(&rq->mem, 1, sizeof *rq->prompt);
    if (!rq->prompt)
        return problem_set(p, 503, "", "no memory for a request");
    *rq->prompt = (raw_prompt){.text = prompt->s, .n = prompt->n};
    rq->n_prompts = 1;
    return true;
}

bool ollama_generate_parse(request *rq, const request_limits *lim, problem *p)
{
    const jtree *prompt, *system, *suffix;
    bool raw = false;
    if (!read_both(rq, lim, p) || !field_kind(p, rq->body, "prompt", JTREE_STRING, &prompt) ||
        !field_kind(p, rq->body, "system", JTREE_STRING, &system) ||
        !field_kind(p, rq->body, "suffix", JTREE_STRING, &suffix) ||
        !field_bool(p, rq->body, "raw", &raw))
        return false;
    rq->load_only = (!prompt || !prompt->n) && (!suffix || !suffix->n) &&
                    !jtree_truthy(jtree_get(rq->body, "images"));
    if (rq->load_only)
        return true;
    if (raw)
        return read_raw(rq, prompt, p);
    if (!refuse_field(rq, "template", "a model's own chat format is used", p) ||
        !refuse_field(rq, "context", "send the conversation to /api/chat", p))
        return false;
    if (suffix && suffix->n) {
        if (!refuse_field(rq, "images", "a gap in a text is filled without them", p))
            return false;
        rq->infill = true;
        rq->before =
            prompt ? (raw_prompt){.text = prompt->s, .n = prompt->n} : (raw_prompt){.text = ""};
        rq->after = (raw_prompt){.text = suffix->s, .n = suffix->n};
        rq->typed = (raw_prompt){.text = ""};
        return true;
    }
    if (system && system->n) {
        talk_add(&rq->talk, TALK_SYSTEM, "system", -1);
        talk_set_text(&rq->talk, system->s, system->n);
    }
    talk_add(&rq->talk, TALK_USER, "prompt", -1);
    return put_images(rq, rq->body, prompt, "", p);
}

/* ---- Writing ---- */

/* The time in UTC, with nanoseconds. */
static void put_now(str *o, const char *key)
{
    struct timespec now;
    struct tm t;
    char text[64];
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &t);
    size_t n = strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &t);
    snprintf(text + n, sizeof text - n, ".%09ldZ", now.tv_nsec);
    json_text(o, key, text);
}

static void open_line(const answer *a, str *o)
{
    json_open(o, NULL, '{');
    json_text(o, "model", model_name(a));
    put_now(o, "created_at");
}

static void put_call(const part *q, int32_t index, str *o)
{
    json_open(o, NULL, '{');
    json_text(o, "id", q->id);
    json_open(o, "function", '{');
    json_int(o, "index", index);
    json_text(o, "name", q->name);
    json_key(o, "arguments"); /* an object */
    str_put(o, str_text(&q->text), q->text.n);
    json_close(o, "}}");
}

static bool is_chat(const answer *a)
{
    return a->rq->api == API_OLLAMA_CHAT;
}

/* What a line shows; text NULL: nothing. */
typedef struct shown {
    const char *text, *thought;
    size_t n_text, n_thought;
    const choice *calls; /* all calls of it from number `first` on; NULL: none */
    int32_t first;
} shown;

static void put_shown(const answer *a, const shown *s, str *o)
{
    if (is_chat(a)) {
        json_open(o, "message", '{');
        json_text(o, "role", "assistant");
    }
    json_text_n(o, is_chat(a) ? "content" : "response", s->text ? s->text : "",
                s->text ? s->n_text : 0);
    if (s->thought && s->n_thought)
        json_text_n(o, "thinking", s->thought, s->n_thought);
    if (s->calls) {
        json_open(o, "tool_calls", '[');
        for (int32_t i = 0, index = 0; i < s->calls->n_parts; i++)
            if (s->calls->part[i].kind == PART_CALL && index++ >= s->first)
                put_call(&s->calls->part[i], index - 1, o);
        json_close(o, "]");
    }
    if (is_chat(a))
        json_close(o, "}");
}

static int64_t as_ns(double ms)
{
    return ms > 0 ? (int64_t)(ms * 1e6) : 0;
}

static void put_metrics(const answer *a, str *o)
{
    usage u = answer_usage(a);
    json_bool(o, "done", true);
    json_text(o, "done_reason", a->choice[0].finish == CARAT_FINISH_LENGTH ? "length" : "stop");
    json_int(o, "total_duration", as_ns(clock_ms() - a->start_ms));
    json_int(o, "load_duration", as_ns(a->load_ms));
    json_int(o, "prompt_eval_count", u.cached + u.computed);
    json_int(o, "prompt_eval_duration", as_ns(u.prefill_ms));
    json_int(o, "eval_count", u.generated);
    json_int(o, "eval_duration", as_ns(u.decode_ms));
    if (!a->cut.n_tokens)
        return;
    json_open(o, "truncated", '{');
    if (a->cut.n_messages)
        json_int(o, "messages", a->cut.n_messages);
    if (a->cut.n_bytes)
        json_int(o, "bytes", a->cut.n_bytes);
    json_int(o, "tokens", a->cut.n_tokens);
    json_close(o, "}");
}

static void ollama_begin(answer *a, str *o)
{
    (void)a, (void)o;
}

static void ollama_beat(answer *a, str *o)
{
    open_line(a, o);
    put_shown(a, &(shown){0}, o);
    json_bool(o, "done", false);
    json_close(o, "}\n");
}

static void ollama_event(answer *a, const choice_event *h, int32_t index, bool opened,
                         int32_t first_token, str *o)
{
    const choice *c = &a->choice[h->choice];
    shown s = {0};
    (void)opened;
    if (index < 0)
        return;
    switch (c->part[index].kind) {
    case PART_TEXT:
        s = (shown){.text = h->ev.text, .n_text = h->ev.n_text};
        break;
    case PART_REASONING:
        s = (shown){.thought = h->ev.text, .n_thought = h->ev.n_text};
        break;
    case PART_CALL:
        s = (shown){.calls = c, .first = c->n_calls - 1};
        break;
    }
    open_line(a, o);
    put_shown(a, &s, o);
    json_bool(o, "done", false);
    if (a->rq->logprobs && s.text)
        put_logprobs(a, c, first_token, c->n_shown, o, "logprobs");
    json_close(o, "}\n");
}

static void ollama_end(answer *a, str *o)
{
    open_line(a, o);
    put_shown(a, &(shown){0}, o);
    put_metrics(a, o);
    json_close(o, "}\n");
}

static void ollama_whole(answer *a, str *o)
{
    const choice *c = &a->choice[0];
    str text = {0}, thought = {0};
    put_parts(&text, c, PART_TEXT);
    put_parts(&thought, c, PART_REASONING);
    open_line(a, o);
    put_shown(a,
              &(shown){.text = str_text(&text),
                       .n_text = text.n,
                       .thought = str_text(&thought),
                       .n_thought = thought.n,
                       .calls = c->n_calls ? c : NULL},
              o);
    put_metrics(a, o);
    if (a->rq->logprobs)
        put_logprobs(a, c, 0, c->n_shown, o, "logprobs");
    json_close(o, "}");
    o->bad |= text.bad | thought.bad;
    str_free(&text);
    str_free(&thought);
}

void ollama_loaded(const answer *a, str *o)
{
    open_line(a, o);
    put_shown(a, &(shown){0}, o);
    json_bool(o, "done", true);
    json_text(o, "done_reason", a->rq->unload ? "unload" : "load");
    json_close(o, "}");
}

void ollama_error(const problem *p, str *o)
{
    json_open(o, NULL, '{');
    json_text(o, "error", p->text);
    json_close(o, "}");
}

static void ollama_fail(answer *a, const problem *p, str *o)
{
    (void)a;
    ollama_error(p, o);
    str_putc(o, '\n');
}

#define OLLAMA                                                                                     \
    {                                                                                              \
        .id_prefix = "ollama-", .call_prefix = "call_", .begin = ollama_begin,                     \
        .event = ollama_event, .end = ollama_end, .fail = ollama_fail, .whole = ollama_whole,      \
        .error = ollama_error, .beat = ollama_beat, .type = "application/x-ndjson"                 \
    }
const dialect ollama_chat_dialect = OLLAMA, ollama_generate_dialect = OLLAMA;
