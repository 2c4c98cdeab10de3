/* answer_test.c - answers of well-formed and malformed model text, in every dialect: the output is
 * valid JSON, and streams equal whole answers. */
#include "apps/server/dialects/answer.h"
#include "base/rng.h"
#include "base/utf8.h"
#include "tests/talk_json.h"
#include "tests/test.h"
#include "text/gemma4.h"
#include "text/laguna.h"
#include "text/qwen.h"
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

static void take_json(run *r, const choice_event *h)
{
    bool opened;
    int32_t i = answers_take(&r->a, h, &opened);
    r->d->event(&r->a, h, i, opened, 0, &r->stream);
}

static bool take_event(void *user, const answer_event *ev)
{
    static const carat_event_kind kinds[] = {CARAT_EV_REASONING, CARAT_EV_CONTENT,
                                             CARAT_EV_TOOL_CALL, CARAT_EV_CALL_PART};
    choice_event h = {
        .ev = {.kind = kinds[ev->kind], .text = ev->text, .n_text = ev->n, .name = ev->name}};
    take_json(user, &h);
    return true;
}

static void end_run(run *r, carat_finish finish)
{
    choice_event end = {.done = true,
                        .timings = {.finish = finish, .n_prompt = 3, .n_generated = 4}};
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

static bool has_broken_call(const run *r)
{
    const choice *c = &r->a.choice[0];
    for (int32_t i = 0; i < c->n_parts; i++)
        if (c->part[i].open)
            return true;
    return false;
}

static void check_run(const run *r)
{
    AUTO(arena_free) arena mem = {0};
    str streamed[3] = {{0}}, whole[3] = {{0}};
    CHECK(utf8_valid(r->stream.at, r->stream.n) && utf8_valid(r->whole.at, r->whole.n));
    hear_stream(r, streamed);
    hear_whole(r, &mem, whole);
    /* The whole answer of messages has its inputs as objects, not as text. Streams alone have
     * beginnings of what turns out to be no call. */
    for (int i = 0; i < (r->rq.api == API_MESSAGES || has_broken_call(r) ? 2 : 3); i++)
        CHECK_STR(str_text(&streamed[i]), str_text(&whole[i]));
    for (int i = 0; i < 3; i++) {
        str_free(&streamed[i]);
        str_free(&whole[i]);
    }
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

static const char call_tools[] =
    "[{\"function\":{\"name\":\"get\",\"parameters\":{\"properties\":{\"a\":{\"type\":\"string\"},"
    "\"b\":{\"type\":\"integer\"},\"o\":{\"type\":\"object\"}}}}},{\"function\":{\"name\":\"put\"}}"
    "]";

/* In pieces of 1..7 bytes, like tokens. */
static void feed_text(run *r, const chat_format *f, const char *text, size_t n_text, uint64_t *seed)
{
    answer_parser *a;
    err e = {0};
    CHECK_OK(answer_open(&a, f, false, take_event, r, &e), e);
    CHECK_OK(answer_tools(a, call_tools, sizeof call_tools - 1, r->d->call_parts, &e), e);
    for (size_t at = 0, n; at < n_text; at += n) {
        n = 1 + rng_next(seed) % 7;
        n = n < n_text - at ? n : n_text - at;
        CHECK_OK(answer_put(a, text + at, n, &e), e);
    }
    CHECK_OK(answer_end(a, false, &e), e);
    answer_close(a);
}

static void feed_answer(run *r, const str *text, bool cut, uint64_t *seed)
{
    const chat_format *f = r->rq.api == API_COMPLETIONS ? NULL : &gemma4_formats[GEMMA4_JULY_LARGE];
    feed_text(r, f, text->at, text->n, seed);
    end_run(r, cut ? CARAT_FINISH_LENGTH : CARAT_FINISH_STOP);
}

TEST(answer_every_output_is_valid_in_every_dialect)
{
    uint64_t seed = test_seed();
    for (int round = 0; round < (SANITIZED ? 3000 : 10000); round++) {
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
        choice_event call = {
            .ev = {.kind = CARAT_EV_TOOL_CALL, .text = "{}", .n_text = 2, .name = "f"}};
        choice_event over = {
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
        choice_event end = {.done = true,
                            .timings = {.n_prompt = 3,
                                        .n_generated = 4,
                                        .offloaded_experts = i < 4,
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

/* A prompt that was cancelled after 50 of its 100 tokens, of which a cache had 20. */
TEST(answer_timings_count_tokens_that_were_computed)
{
    static const char llama[] = "\"cache_n\":20,\"prompt_n\":30,\"prompt_ms\":100,"
                                "\"prompt_per_second\":300,";
    static const char messages[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}";
    static const struct {
        api_kind api;
        const char *body, *says;
    } cases[] = {
        {API_CHAT, messages, llama},
        {API_LLAMA, "{\"prompt\":\"hi\"}", llama},
        {API_OLLAMA_CHAT, messages, "\"prompt_eval_count\":50,\"prompt_eval_duration\":100000000,"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        run r;
        choice_event end = {
            .done = true,
            .timings = {.n_prompt = 100, .n_reused = 20, .n_computed = 30, .prefill_ms = 100}};
        open_run_of(&r, cases[i].api, cases[i].body);
        take_json(&r, &end);
        r.d->end(&r.a, &r.stream);
        r.d->whole(&r.a, &r.whole);
        CHECK_MSG(strstr(r.whole.at, cases[i].says), "case %zu: %s", i, r.whole.at);
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
    CHECK_TALK_HAS(&r.rq.talk, "\"arguments\":{\"input\":\"b\"}");
    answer_event ev = {
        .kind = ANSWER_TOOL_CALL, .name = "patch", .text = arguments, .n = sizeof arguments - 1};
    take_event(&r, &ev);
    end_run(&r, CARAT_FINISH_STOP);
    CHECK_MSG(strstr(r.whole.at, custom) && strstr(r.whole.at, "\"type\":\"custom\""), "%s",
              r.whole.at);
    CHECK_MSG(strstr(r.stream.at, custom), "%s", r.stream.at);
    close_run(&r);
}

/* ---- Calls in pieces ---- */

static const api_kind call_apis[] = {API_CHAT, API_RESPONSES, API_MESSAGES};
static const char *const call_deltas[] = {
    "\"tool_calls\":[{\"index\":", "event: response.function_call_arguments.delta",
    "\"type\":\"input_json_delta\""};

static int count_of(const char *s, const char *what)
{
    int n = 0;
    for (; (s = strstr(s, what)); s += strlen(what))
        n++;
    return n;
}

static const char *behind(const char *s, const char *what)
{
    const char *at = strstr(s, what);
    return at ? at + strlen(what) : "";
}

#define LONG_TEXT "one \"two\"\nthree \xC3\xA9 four \\ five six seven eight nine ten"
#define LONG_JSON "one \\\"two\\\"\\nthree \xC3\xA9 four \\\\ five six seven eight nine ten"
#define XML_GET(text)                                                                              \
    "<tool_call>\n<function=get>\n<parameter=a>\n" text "\n</parameter>\n<parameter=b>\n12\n"      \
    "</parameter>\n<parameter=o>\n{\"k\": [1, null]}\n</parameter>\n</function>\n</tool_call>"

TEST(answers_tell_the_arguments_of_calls_in_pieces)
{
    static const struct {
        const chat_format *f;
        const char *text, *arguments;
    } all[] = {
        {&gemma4_formats[GEMMA4_JULY_LARGE],
         "<|tool_call>call:get{a:<|\"|>" LONG_TEXT "<|\"|>,b:12,o:{k:[1,null]}}<tool_call|>",
         "{\"a\":\"" LONG_JSON "\",\"b\":12,\"o\":{\"k\":[1,null]}}"},
        {&qwen_formats[QWEN_3],
         "<tool_call>\n{\"name\": \"get\", \"arguments\": {\"a\": \"" LONG_JSON
         "\", \"b\": 12, \"o\": {\"k\": [1, null]}}}\n</tool_call>",
         "{\"a\": \"" LONG_JSON "\", \"b\": 12, \"o\": {\"k\": [1, null]}}"},
        {&qwen_formats[QWEN_36], XML_GET(LONG_TEXT),
         "{\"a\": \"" LONG_JSON "\", \"b\": 12, \"o\": {\"k\": [1, null]}}"},
        {&laguna_formats[LAGUNA_COMPACT],
         "<tool_call>get<arg_key>a</arg_key><arg_value>" LONG_TEXT
         "</arg_value><arg_key>b</arg_key><arg_value>12</arg_value><arg_key>o</arg_key><arg_value>"
         "{\"k\": [1, null]}</arg_value></tool_call>",
         "{\"a\": \"" LONG_JSON "\", \"b\": 12, \"o\": {\"k\": [1, null]}}"},
    };
    uint64_t seed = test_seed();
    for (size_t i = 0; i < 3 * sizeof all / sizeof *all; i++) {
        size_t api = i % 3, k = i / 3;
        run r;
        str said[3] = {0}, want = {0};
        open_run(&r, call_apis[api]);
        feed_text(&r, all[k].f, all[k].text, strlen(all[k].text), &seed);
        end_run(&r, CARAT_FINISH_STOP);
        check_run(&r);
        hear_stream(&r, said);
        str_printf(&want, "get%s", all[k].arguments);
        CHECK_STR(str_text(&said[2]), want.at);
        CHECK_MSG(count_of(r.stream.at, call_deltas[api]) >= 8, "%s", r.stream.at);
        CHECK_EQ(r.a.choice[0].n_parts, 1);
        CHECK_EQ(count_of(r.stream.at, r.a.choice[0].part[0].id),
                 api == 1 ? 3 : 1); /* responses: the item's begin and end, and the response */
        CHECK_STR(str_text(&r.a.choice[0].part[0].text), all[k].arguments);
        for (int j = 0; j < 3; j++)
            str_free(&said[j]);
        str_free(&want);
        close_run(&r);
    }
}

TEST(answers_tell_calls_in_pieces_beside_other_parts)
{
    static const char text[] =
        "So:\n" XML_GET("a long text") "\n" XML_GET("another long text") "\nDone.";
    uint64_t seed = test_seed();
    for (size_t api = 0; api < 3; api++) {
        run r;
        str said[3] = {0};
        open_run(&r, call_apis[api]);
        feed_text(&r, &qwen_formats[QWEN_36], text, sizeof text - 1, &seed);
        end_run(&r, CARAT_FINISH_STOP);
        check_run(&r);
        hear_stream(&r, said);
        CHECK_STR(str_text(&said[0]), "So:Done.");
        CHECK_EQ(r.a.choice[0].n_parts, 4);
        CHECK_EQ(r.a.choice[0].n_calls, 2);
        CHECK(strstr(said[2].at, "\"a long text\"") && strstr(said[2].at, "\"another long text\""));
        if (api == 0)
            CHECK(strstr(r.stream.at, "\"tool_calls\":[{\"index\":1,\"id\":"));
        for (int j = 0; j < 3; j++)
            str_free(&said[j]);
        close_run(&r);
    }
}

TEST(answers_tell_functions_in_pieces_in_the_older_way)
{
    static const char text[] = XML_GET("a long text");
    uint64_t seed = test_seed();
    run r;
    str said = {0};
    open_run_of(&r, API_CHAT,
                "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"stream\":true,"
                "\"functions\":[{\"name\":\"get\"}]}");
    feed_text(&r, &qwen_formats[QWEN_36], text, sizeof text - 1, &seed);
    end_run(&r, CARAT_FINISH_STOP);
    for (const char *at = r.stream.at; (at = strstr(at, "\"arguments\":\"")); at++)
        str_put(&said, at + 13, strcspn(at + 13, "}") - 1);
    CHECK_EQ(count_of(r.stream.at, "\"name\":\"get\""), 1);
    CHECK(count_of(r.stream.at, "\"function_call\":{") > 3 && !strstr(r.stream.at, "tool_calls"));
    CHECK_MSG(strstr(said.at, "{\\\"a\\\": \\\"") == said.at, "%s", said.at);
    CHECK(strstr(r.stream.at, "\"finish_reason\":\"function_call\""));
    str_free(&said);
    close_run(&r);
}

/* A call that the token limit or the client's cancellation cuts is told so far, and is no call. */
TEST(answers_cut_inside_a_call)
{
    static const char text[] = "<tool_call>\n<function=get>\n<parameter=a>\nsome text that goes on";
    static const char *const says[] = {"\"finish_reason\":\"length\"", "\"status\":\"incomplete\"",
                                       "\"stop_reason\":\"max_tokens\""};
    static const carat_finish finish[] = {CARAT_FINISH_LENGTH, CARAT_FINISH_CANCELLED};
    uint64_t seed = test_seed();
    for (size_t i = 0; i < 6; i++) {
        size_t api = i % 3;
        run r;
        str said[3] = {0}, object = {0}, input = {0}, output = {0};
        open_run(&r, call_apis[api]);
        feed_text(&r, &qwen_formats[QWEN_36], text, sizeof text - 1, &seed);
        end_run(&r, finish[i / 3]);
        check_run(&r);
        hear_stream(&r, said);
        CHECK_STR(str_text(&said[0]), "");
        CHECK_MSG(strstr(str_text(&said[2]), "get{\"a\": \"some text that"), "%s",
                  str_text(&said[2]));
        CHECK_EQ(r.a.choice[0].n_calls, 0);
        CHECK_MSG(i >= 3 || strstr(r.stream.at, says[api]), "%s", r.stream.at);
        CHECK(!strstr(r.stream.at, "\"tool_use\"}") && !strstr(r.stream.at, "\"tool_calls\"}"));
        if (api == 1) {
            const char *end = behind(r.stream.at, "event: response.output_item.done");
            CHECK(!strstr(r.stream.at, "function_call_arguments.done"));
            CHECK_MSG(strstr(end, "\"status\":\"incomplete\""), "%s", end);
            CHECK(!strstr(behind(end, "\"output\":["), "\"status\":\"completed\""));
            responses_object(&r.a, NULL, NULL, &object);
            responses_items(&r.a, &input, &output);
            CHECK_STR(str_text(&output), "");
        }
        for (int j = 0; j < 3; j++)
            str_free(&said[j]);
        str_free(&object);
        str_free(&input);
        str_free(&output);
        close_run(&r);
    }
}

/* The first call breaks after pieces of it were sent. Its text comes as content. The next call has
 * the next number. No API counts the broken call as a call. */
TEST(answers_go_on_behind_a_broken_call)
{
    static const char text[] = "<tool_call>\n<function=get>\n<parameter=a>\nsome long text\n"
                               "</parameter>\nand prose.</tool_call>" XML_GET("good text");
    uint64_t seed = test_seed();
    for (size_t api = 0; api < 3; api++) {
        run r;
        str said[3] = {0}, object = {0}, input = {0}, output = {0};
        open_run(&r, call_apis[api]);
        feed_text(&r, &qwen_formats[QWEN_36], text, sizeof text - 1, &seed);
        end_run(&r, CARAT_FINISH_STOP);
        check_run(&r);
        hear_stream(&r, said);
        CHECK_MSG(strstr(str_text(&said[0]), "<function=get>\n<parameter=a>\nsome long text\n"
                                             "</parameter>\nand prose."),
                  "%s", str_text(&said[0]));
        CHECK_EQ(r.a.choice[0].n_calls, 1);
        CHECK_EQ(count_of(r.whole.at, "get"), api == 1 ? 3 : 2); /* in the content, and the calls */
        if (api == 0)
            CHECK(strstr(r.stream.at, "\"tool_calls\":[{\"index\":1,\"id\":"));
        if (api == 1) {
            responses_object(&r.a, NULL, NULL, &object);
            responses_items(&r.a, &input, &output);
            CHECK_EQ(count_of(str_text(&output), "\"function_call\""), 1);
            CHECK_EQ(count_of(str_text(&object), "\"function_call\""), 2); /* places stay valid */
        }
        for (int j = 0; j < 3; j++)
            str_free(&said[j]);
        str_free(&object);
        str_free(&input);
        str_free(&output);
        close_run(&r);
    }
}
