/* answer_test.c - answers of well-formed and malformed model text, in every dialect: the output is
 * valid JSON, and streams equal whole answers. */
#include "apps/server/answer.h"
#include "base/rng.h"
#include "base/utf8.h"
#include "tests/test.h"
#include "text/gemma4.h"
#include "text/chat.h"

static const request_limits limits = {.n_vocab = 1000, .sampling = {.temperature = 1, .top_p = 1}};
static const answer_model names = {.name = "m", .call_open = -1, .call_close = -1};

static const char *const bodies[] = {
    [API_CHAT] = "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"stream\":true}",
    [API_COMPLETIONS] = "{\"prompt\":\"x\",\"stream\":true}",
    [API_RESPONSES] = "{\"input\":\"x\",\"stream\":true}",
    [API_MESSAGES] = "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"stream\":true}"};

/* One answer, written in one dialect. */
typedef struct run {
    request rq;
    answer a;
    const dialect *d;
    str stream, whole;
} run;

static void open_run_of(run *r, api_kind api, const char *body)
{
    problem p = {0};
    *r = (run){.d = dialect_of(api)};
    CHECK_MSG(request_parse(&r->rq, api, body, strlen(body), &limits, &p), "%s", p.text);
    CHECK(answers_init(&r->a, &r->rq, &names, 1));
    r->d->begin(&r->a, &r->stream);
}

static void open_run(run *r, api_kind api)
{
    open_run_of(r, api, bodies[api]);
}

static void take_json(run *r, const happening *h)
{
    bool opened;
    int32_t i = answers_take(&r->a, h, &opened);
    r->d->event(&r->a, h, i, opened, 0, &r->stream);
}

static bool take_event(void *user, const answer_event *ev)
{
    static const carat_event_kind kinds[] = {CARAT_EV_REASONING, CARAT_EV_CONTENT,
                                             CARAT_EV_TOOL_CALL};
    happening h = {
        .ev = {.kind = kinds[ev->kind], .text = ev->text, .n_text = ev->n, .name = ev->name}};
    take_json(user, &h);
    return true;
}

static void end_run(run *r, carat_finish finish)
{
    happening end = {.done = true, .timings = {.finish = finish, .n_prompt = 3, .n_generated = 4}};
    take_json(r, &end);
    r->d->end(&r->a, &r->stream);
    r->d->whole(&r->a, &r->whole);
}

static void close_run(run *r)
{
    answers_free(&r->a);
    request_free(&r->rq);
    str_free(&r->stream);
    str_free(&r->whole);
}

static const jtree *parsed(arena *mem, const char *s, size_t n)
{
    const jtree *v;
    err e = {0};
    CHECK_MSG(!jtree_parse(s, n, "what was written", 64, mem, &v, &e), "%s: %.*s", e.text, (int)n,
              s);
    return v;
}

static void add_event(str *to, const jtree *v)
{
    if (jtree_is(v, JTREE_STRING))
        str_put(to, v->s, v->n);
}

/* Content (0), reasoning (1), names and arguments of calls (2), as a client joins them. */
static void hear_stream(const run *r, str said[3])
{
    for (const char *from = str_text(&r->stream), *at; (at = strstr(from, "data: "));
         from = at + 1) {
        const char *end = strstr(at, "\n\n");
        arena mem = {0};
        CHECK(end && !memchr(at, '\n', (size_t)(end - at)));
        if (!strncmp(at, "data: [DONE]", 12))
            break;
        const jtree *v = parsed(&mem, at + 6, (size_t)(end - at - 6)), *c, *d, *type;
        c = jtree_get(v, "choices");
        d = c && c->first ? jtree_get(c->first, "delta") : NULL;
        add_event(&said[0], jtree_get(d, "content"));
        add_event(&said[1], jtree_get(d, "reasoning_content"));
        if (jtree_get(d, "tool_calls")) {
            const jtree *f = jtree_get(jtree_get(d, "tool_calls")->first, "function");
            add_event(&said[2], jtree_get(f, "name"));
            add_event(&said[2], jtree_get(f, "arguments"));
        }
        add_event(&said[0], c && c->first ? jtree_get(c->first, "text") : NULL);
        d = jtree_get(v, "delta"); /* messages: an object; responses: a string */
        add_event(&said[0], jtree_get(d, "text"));
        add_event(&said[1], jtree_get(d, "thinking"));
        add_event(&said[2], jtree_get(d, "partial_json"));
        add_event(&said[2], jtree_get(jtree_get(v, "content_block"), "name"));
        type = jtree_get(v, "type");
        if (jtree_is(d, JTREE_STRING) && jtree_is(type, JTREE_STRING))
            add_event(&said[strstr(type->s, "arguments")   ? 2
                            : strstr(type->s, "reasoning") ? 1
                                                           : 0],
                      d);
        if (jtree_is(type, JTREE_STRING) && !strcmp(type->s, "response.output_item.added"))
            add_event(&said[2], jtree_get(jtree_get(v, "item"), "name"));
        arena_free(&mem);
    }
}

static void hear_parts(const jtree *list, str said[3])
{
    for (const jtree *b = list->first; b; b = b->next) {
        const jtree *content = jtree_get(b, "content");
        bool thought = strstr(jtree_get(b, "type")->s, "reasoning") != NULL;
        add_event(&said[0], jtree_get(b, "text"));
        add_event(&said[1], jtree_get(b, "thinking"));
        add_event(&said[2], jtree_get(b, "name"));
        add_event(&said[2], jtree_get(b, "arguments"));
        if (content && content->first)
            add_event(&said[thought], jtree_get(content->first, "text"));
    }
}

static void hear_whole(const run *r, arena *mem, str said[3])
{
    const jtree *v = parsed(mem, r->whole.at, r->whole.n);
    const jtree *c = jtree_get(v, "choices"), *m = c ? jtree_get(c->first, "message") : NULL;
    add_event(&said[0], jtree_get(m, "content"));
    add_event(&said[1], jtree_get(m, "reasoning_content"));
    for (const jtree *t = m && jtree_get(m, "tool_calls") ? jtree_get(m, "tool_calls")->first
                                                          : NULL;
         t; t = t->next) {
        const jtree *f = jtree_get(t, "function");
        add_event(&said[2], jtree_get(f, "name"));
        add_event(&said[2], jtree_get(f, "arguments"));
        arena args = {0}; /* arguments are JSON, whatever the model wrote */
        parsed(&args, jtree_get(f, "arguments")->s, jtree_get(f, "arguments")->n);
        arena_free(&args);
    }
    add_event(&said[0], c ? jtree_get(c->first, "text") : NULL);
    if (jtree_get(v, "output"))
        hear_parts(jtree_get(v, "output"), said);
    else if (!c)
        hear_parts(jtree_get(v, "content"), said);
}

static void check_run(const run *r)
{
    arena mem = {0};
    str streamed[3] = {{0}}, whole[3] = {{0}};
    CHECK(utf8_valid(r->stream.at, r->stream.n) && utf8_valid(r->whole.at, r->whole.n));
    hear_stream(r, streamed);
    hear_whole(r, &mem, whole);
    /* The whole answer of messages has its inputs as objects, not as text. */
    for (int i = 0; i < (r->rq.api == API_MESSAGES ? 2 : 3); i++)
        CHECK_STR(str_text(&streamed[i]), str_text(&whole[i]));
    for (int i = 0; i < 3; i++) {
        str_free(&streamed[i]);
        str_free(&whole[i]);
    }
    arena_free(&mem);
}

static const char *const pieces[] = {"<|channel>",
                                     "thought\n",
                                     "<channel|>",
                                     "<|tool_call>",
                                     "call:",
                                     "get{",
                                     "}",
                                     "<tool_call|>",
                                     "<|\"|>",
                                     "a:",
                                     ",",
                                     "b:1",
                                     "[",
                                     "]",
                                     "<|tool_response>",
                                     "<turn|>",
                                     "<|",
                                     "|",
                                     "<",
                                     "words ",
                                     "\n",
                                     "\"",
                                     "\\",
                                     "\xF0\x9F",
                                     "\x98\x80",
                                     "\xFF",
                                     "\xC3\xA9",
                                     "null",
                                     "1e999",
                                     "{",
                                     "thou",
                                     "\t",
                                     "<|tool_call>call:get{a:<|\"|>x<|\"|>}<tool_call|>",
                                     "<|channel>thought\nhm<channel|>",
                                     "\x7F"};

static void random_output(str *o, uint64_t *seed)
{
    int n = 1 + (int)(rng_next(seed) % 24);
    for (int i = 0; i < n; i++)
        str_puts(o, pieces[rng_next(seed) % (sizeof pieces / sizeof *pieces)]);
    for (int i = 0; i < 2 && rng_next(seed) % 4 == 0; i++) /* changes a byte */
        o->at[rng_next(seed) % o->n] = (char)rng_next(seed);
}

/* In pieces of 1..7 bytes, like tokens. */
static void feed_answer(run *r, const str *text, bool cut, uint64_t *seed)
{
    answer_parser *a;
    err e = {0};
    const chat_format *f = r->rq.api == API_COMPLETIONS ? NULL : &gemma4_formats[GEMMA4_JULY_LARGE];
    CHECK_OK(answer_open(&a, f, false, take_event, r, &e), e);
    for (size_t at = 0, n; at < text->n; at += n) {
        n = 1 + rng_next(seed) % 7;
        n = n < text->n - at ? n : text->n - at;
        CHECK_OK(answer_put(a, text->at + at, n, &e), e);
    }
    CHECK_OK(answer_end(a, &e), e);
    answer_close(a);
    end_run(r, cut ? CARAT_FINISH_LENGTH : CARAT_FINISH_STOP);
}

TEST(answer_every_output_is_valid_in_every_dialect)
{
    uint64_t seed = test_seed();
    for (int round = 0; round < 10000; round++) {
        run r;
        str text = {0};
        open_run(&r, (api_kind)(round % 4));
        random_output(&text, &seed);
        feed_answer(&r, &text, round % 3 == 0, &seed);
        check_run(&r);
        str_free(&text);
        close_run(&r);
    }
}

TEST(answer_finish_reasons)
{
    static const struct {
        api_kind api;
        bool call;
        carat_finish finish;
        const char *stop, *says;
    } cases[] = {
        {API_CHAT, false, CARAT_FINISH_STOP, NULL, "\"finish_reason\":\"stop\""},
        {API_CHAT, false, CARAT_FINISH_LENGTH, NULL, "\"finish_reason\":\"length\""},
        {API_CHAT, true, CARAT_FINISH_TOOL_CALLS, NULL, "\"finish_reason\":\"tool_calls\""},
        {API_CHAT, true, CARAT_FINISH_CANCELLED, NULL, "\"finish_reason\":\"tool_calls\""},
        {API_COMPLETIONS, false, CARAT_FINISH_STOP, "x", "\"finish_reason\":\"stop\""},
        {API_RESPONSES, false, CARAT_FINISH_STOP, NULL, "\"status\":\"completed\""},
        {API_RESPONSES, false, CARAT_FINISH_LENGTH, NULL, "\"reason\":\"max_output_tokens\""},
        {API_MESSAGES, false, CARAT_FINISH_STOP, NULL, "\"stop_reason\":\"end_turn\""},
        {API_MESSAGES, false, CARAT_FINISH_STOP, "x", "\"stop_reason\":\"stop_sequence\""},
        {API_MESSAGES, false, CARAT_FINISH_LENGTH, NULL, "\"stop_reason\":\"max_tokens\""},
        {API_MESSAGES, true, CARAT_FINISH_TOOL_CALLS, NULL, "\"stop_reason\":\"tool_use\""}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        run r;
        happening call = {
            .ev = {.kind = CARAT_EV_TOOL_CALL, .text = "{}", .n_text = 2, .name = "f"}};
        happening over = {
            .ev = {.kind = CARAT_EV_END, .finish = cases[i].finish, .stop = cases[i].stop}};
        open_run(&r, cases[i].api);
        if (cases[i].call)
            take_json(&r, &call);
        take_json(&r, &over);
        end_run(&r, cases[i].finish);
        CHECK_MSG(strstr(r.whole.at, cases[i].says), "case %zu: %s", i, r.whole.at);
        CHECK_MSG(strstr(r.stream.at, cases[i].says), "case %zu: %s", i, r.stream.at);
        close_run(&r);
    }
}

/* Experts read from the host's memory stand in `usage`, and only where there are any. */
TEST(answer_usage_says_what_experts_cost)
{
    static const api_kind apis[] = {API_CHAT, API_COMPLETIONS, API_RESPONSES, API_MESSAGES};
    for (int i = 0; i < 8; i++) {
        run r;
        happening end = {.done = true,
                         .timings = {.n_prompt = 3,
                                     .n_generated = 4,
                                     .cold_experts = i < 4,
                                     .n_expert_hits = 30,
                                     .n_expert_misses = 10,
                                     .n_expert_cpu = i == 1 ? 6 : 0,
                                     .expert_bytes = 5000000000,
                                     .expert_wait_ms = 2.5}};
        open_run(&r, apis[i % 4]);
        take_json(&r, &end);
        r.d->end(&r.a, &r.stream);
        r.d->whole(&r.a, &r.whole);
        const char *at = strstr(r.whole.at, "\"usage\":{");
        at = at ? strstr(at, "\"experts\":") : NULL;
        CHECK_EQ(at != NULL, i < 4);
        CHECK(!at ||
              strstr(at, i == 1 ? "\"experts\":{\"hit_rate\":0.75,\"uses\":40,\"cpu_uses\":6,"
                                  "\"bytes_moved\":5000000000,\"wait_ms\":2.5}"
                                : "\"experts\":{\"hit_rate\":0.75,\"uses\":40,"
                                  "\"bytes_moved\":5000000000,\"wait_ms\":2.5}"));
        close_run(&r);
    }
}

TEST(answer_failures_end_a_stream_in_words)
{
    for (api_kind api = API_CHAT; api <= API_MESSAGES; api++) {
        run r;
        problem p = {0};
        problem_set(&p, 500, "", "the model computed NaN");
        open_run(&r, api);
        r.d->fail(&r.a, &p, &r.stream);
        CHECK(strstr(r.stream.at, "the model computed NaN"));
        CHECK(!strstr(r.stream.at, "[DONE]"));
        close_run(&r);
    }
}

/* Calls of tools that are no functions go back as the items that their clients know. */
TEST(answer_calls_have_the_form_of_their_tool)
{
    static const struct {
        const char *tool, *name, *arguments, *item; /* a part of the item in the answer */
    } all[] = {
        {"{\"type\":\"custom\",\"name\":\"patch\"}", "patch", "{\"input\":\"*** a\\n\"}",
         "\"name\":\"patch\",\"input\":\"*** a\\n\""},
        {"{\"type\":\"local_shell\"}", "local_shell", "{\"command\":[\"ls\"]}",
         "\"action\":{\"type\":\"exec\",\"env\":{},\"command\":[\"ls\"]}"},
        {"{\"type\":\"shell\"}", "shell", "{\"commands\":[\"ls\"]}", "\"type\":\"shell_call\""},
        {"{\"type\":\"apply_patch\"}", "apply_patch", "{\"type\":\"delete_file\",\"path\":\"a\"}",
         "\"operation\":{\"type\":\"delete_file\",\"path\":\"a\"}"},
        {"{\"type\":\"tool_search\",\"execution\":\"client\"}", "tool_search", "{\"query\":\"x\"}",
         "\"arguments\":{\"query\":\"x\"},\"execution\":\"client\""},
        {"{\"type\":\"namespace\",\"name\":\"crm\",\"tools\":[{\"type\":\"function\",\"name\":"
         "\"list\"}]}",
         "crm.list", "{}", "\"namespace\":\"crm\",\"name\":\"list\",\"arguments\":\"{}\""},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        char body[512];
        run r;
        snprintf(body, sizeof body,
                 "{\"input\":\"x\",\"stream\":true,\"tools\":[%s,{\"type\":"
                 "\"web_search\"}]}",
                 all[i].tool);
        open_run_of(&r, API_RESPONSES, body);
        answer_event ev = {.kind = ANSWER_TOOL_CALL,
                           .name = all[i].name,
                           .text = all[i].arguments,
                           .n = strlen(all[i].arguments)};
        take_event(&r, &ev);
        end_run(&r, CARAT_FINISH_STOP);
        CHECK_MSG(strstr(r.whole.at, all[i].item), "%s: %s", all[i].name, r.whole.at);
        const char *done = strstr(r.stream.at, "\"response.output_item.done\"");
        CHECK_MSG(done && strstr(done, all[i].item), "%s: %s", all[i].name, r.stream.at);
        CHECK(strstr(r.whole.at, "\"warnings\":[\"'tools[1]', a tool of type web_search"));
        CHECK(!strstr(r.whole.at, "{\"type\":\"web_search\"}"));
        arena mem = {0};
        parsed(&mem, r.whole.at, r.whole.n);
        arena_free(&mem);
        str said[3] = {0};
        hear_stream(&r, said); /* each event is JSON */
        for (int k = 0; k < 3; k++)
            str_free(&said[k]);
        if (!i)
            CHECK(strstr(r.stream.at, "response.custom_tool_call_input.done"));
        close_run(&r);
    }
}

TEST(answer_calls_of_custom_tools_in_chats)
{
    static const char *const custom = "\"custom\":{\"name\":\"patch\",\"input\":\"*** a\\n\"}";
    static const char arguments[] = "{\"input\":\"*** a\\n\"}";
    run r;
    open_run_of(
        &r, API_CHAT,
        "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"assistant\","
        "\"tool_calls\":[{\"id\":\"1\",\"type\":\"custom\",\"custom\":{\"name\":\"patch\","
        "\"input\":\"b\"}}]},{\"role\":\"tool\",\"tool_call_id\":\"1\",\"content\":\"ok\"}],"
        "\"stream\":true,\"tools\":[{\"type\":\"custom\",\"custom\":{\"name\":\"patch\",\"format\":"
        "{\"type\":\"grammar\",\"grammar\":{\"syntax\":\"lark\",\"definition\":\"start: A\"}}}}],"
        "\"tool_choice\":{\"type\":\"custom\",\"custom\":{\"name\":\"patch\"}}}");
    CHECK(strstr(str_text(&r.rq.tools), "start: A") && strstr(r.rq.tools.at, "lark"));
    CHECK_STR(r.rq.only, "patch");
    CHECK(strstr(str_text(&r.rq.messages), "\"arguments\":{\"input\":\"b\"}"));
    answer_event ev = {
        .kind = ANSWER_TOOL_CALL, .name = "patch", .text = arguments, .n = sizeof arguments - 1};
    take_event(&r, &ev);
    end_run(&r, CARAT_FINISH_STOP);
    CHECK_MSG(strstr(r.whole.at, custom) && strstr(r.whole.at, "\"type\":\"custom\""), "%s",
              r.whole.at);
    CHECK_MSG(strstr(r.stream.at, custom), "%s", r.stream.at);
    close_run(&r);
}
