/* bytes_server_test.c - `carat serve` with toy models of Qwen and Laguna, whose tokens begin and
 * end inside of characters: tokens, log probabilities, forms of answers, calls.
 */
#include "tests/server_rig.h"
#include "tests/toy_model.h"
#include "base/str.h"
#include "base/utf8.h"

static const toy_model_file models[] = {{.base = "qwen3", .words = "qwen2"},
                                        {.base = "laguna", .words = "laguna"}};
enum { N_MODELS = sizeof models / sizeof *models };

#define NO_THOUGHT "\"chat_template_kwargs\":{\"enable_thinking\":false}"

static void start_file(served *s, const toy_model_file *f, const char *more)
{
    const char *args[] = {"-m", toy_model_write(f), "--ctx", "1024", "-t", "1", more, NULL};
    served_start(s, args);
}

static void start(served *s, int k)
{
    start_file(s, &models[k], NULL);
}

static void ask(response *r, const served *s, const char *path, const char *body)
{
    http_post(r, s, path, body);
    CHECK_MSG(r->status == 200, "%s: %s", path, str_text(&r->body));
}

/* Text as JSON can show it: each byte that is no part of a character is U+FFFD. */
static void show(const str *bytes, str *out)
{
    for (size_t i = 0; i < bytes->n;) {
        uint32_t cp;
        bool ok;
        int n = utf8_decode(bytes->at + i, bytes->n - i, &cp, &ok);
        str_put(out, ok ? bytes->at + i : "\xEF\xBF\xBD", ok ? (size_t)n : 3);
        i += (size_t)n;
    }
}

TEST(bytes_server_gives_tokens_and_takes_them_back)
{
    static const char text[] =
        "Hello, it's 42 <think> \xE6\x9D\xB1\xE4\xBA\xAC e\xCC\x81\xF0\x9F\x91\x8D";
    for (int k = 0; k < N_MODELS; k++) {
        AUTO(stop) served s;
        AUTO(response_free) response r;
        AUTO(arena_free) arena mem = {0};
        AUTO(str_free) str body = {0};
        start(&s, k);
        str_printf(&body, "{\"content\":\"%s\"}", text);
        ask(&r, &s, "/tokenize", body.at);
        const jtree *tokens = json_at(json_parsed(&mem, r.body.at, r.body.n), "tokens");
        CHECK(tokens && tokens->count > 5);
        str_cut(&body, 0);
        str_puts(&body, "{\"tokens\":[");
        for (const jtree *t = tokens->first; t; t = t->next)
            str_printf(&body, "%s%s", t->s, t->next ? "," : "]}");
        response_free(&r);
        ask(&r, &s, "/detokenize", body.at);
        CHECK_STR(text_at(&mem, &r, "content"), text);
    }
}

TEST(bytes_server_tells_the_bytes_of_tokens)
{
    for (int k = 0; k < N_MODELS; k++) {
        AUTO(stop) served s;
        AUTO(response_free) response r;
        AUTO(arena_free) arena mem = {0};
        int n = 0, broken = 0;
        start(&s, k);
        ask(&r, &s, "/v1/chat/completions",
            "{" ASK ",\"max_tokens\":60,\"temperature\":2,\"seed\":1,\"logprobs\":true,"
            "\"top_logprobs\":20," NO_THOUGHT "}");
        const jtree *list =
            json_at(json_parsed(&mem, r.body.at, r.body.n), "choices.0.logprobs.content");
        for (const jtree *t = list ? list->first : NULL; t; t = t->next)
            for (const jtree *one = jtree_get(t, "top_logprobs")->first; one; one = one->next) {
                const jtree *token = jtree_get(one, "token");
                AUTO(str_free) str bytes = {0}, shown = {0};
                for (const jtree *b = jtree_get(one, "bytes")->first; b; b = b->next)
                    str_putc(&bytes, (char)atoi(b->s));
                show(&bytes, &shown);
                CHECK_EQ(token->n, shown.n);
                CHECK(!memcmp(token->s, str_text(&shown), shown.n));
                broken += bytes.n && !utf8_valid(bytes.at, bytes.n);
                n++;
            }
        CHECK_MSG(n > 100 && broken, "%d tokens, %d of them parts of characters", n, broken);
    }
}

TEST(bytes_server_holds_answers_to_what_is_asked)
{
    static const char tool[] =
        "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"go\",\"parameters\":{\"type\":"
        "\"object\",\"properties\":{\"way\":{\"enum\":[\"\xE4\xB8\x8A\",\"down\"]}},\"required\":["
        "\"way\"],\"additionalProperties\":false},\"strict\":true}}],\"tool_choice\":\"required\","
        "\"parallel_tool_calls\":false";
    for (int k = 0; k < N_MODELS; k++) {
        AUTO(stop) served s;
        response r;
        AUTO(arena_free) arena mem = {0};
        char body[1024];
        start(&s, k);
        for (int i = 0; i < 3; i++) { /* calls, at any temperature */
            snprintf(body, sizeof body,
                     "{" ASK ",%s,\"temperature\":%d,\"seed\":%d," NO_THOUGHT "}", tool, i, i);
            http_post(&r, &s, "/v1/chat/completions", body);
            CHECK_MSG(r.status == 200, "%s", str_text(&r.body));
            CHECK_STR(text_at(&mem, &r, "choices.0.finish_reason"), "tool_calls");
            const char *way =
                text_at(&mem, &r, "choices.0.message.tool_calls.0.function.arguments");
            CHECK_MSG(strstr(way, "\"\xE4\xB8\x8A\"") || strstr(way, "\"down\""), "%s", way);
            response_free(&r);
        }
        for (int i = 0; i < 3; i++) {
            snprintf(body, sizeof body,
                     "{" ASK ",\"temperature\":%d,\"seed\":%d,\"response_format\":{\"type\":"
                     "\"json_schema\",\"json_schema\":{\"schema\":{\"enum\":[\"\xE6\x9D\xB1\","
                     "\"\xF0\x9F\x91\x8D\"]}}}," NO_THOUGHT "}",
                     i, i);
            ask(&r, &s, "/v1/chat/completions", body);
            const char *said = text_at(&mem, &r, "choices.0.message.content");
            CHECK_MSG(!strcmp(said, "\"\xE6\x9D\xB1\"") || !strcmp(said, "\"\xF0\x9F\x91\x8D\""),
                      "%s", said);
            response_free(&r);
        }
    }
}

/* Calls as pairs of plain text: the tools give the values their types, thought or no thought. */
TEST(bytes_server_types_the_arguments_of_plain_text)
{
    static const toy_model_file files[] = {
        {.base = "qwen3", .words = "qwen2", .template = "Qwen3.6.jinja"},
        {.base = "qwen3", .words = "qwen2", .template = "Qwen3.8.jinja"},
        {.base = "laguna", .words = "laguna", .template = "laguna.jinja"}};
    static const char tool[] =
        "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"go\",\"parameters\":{\"type\":"
        "\"object\",\"properties\":{\"n\":{\"type\":\"integer\",\"minimum\":1,\"maximum\":9},"
        "\"way\":{\"enum\":[\"7\",\"8\"]},\"on\":{\"type\":\"boolean\"}},\"required\":[\"n\","
        "\"way\","
        "\"on\"],\"additionalProperties\":false}}}],\"tool_choice\":\"required\","
        "\"parallel_tool_calls\":false";
    for (size_t k = 0; k < sizeof files / sizeof *files; k++) {
        AUTO(stop) served s;
        response r;
        AUTO(arena_free) arena mem = {0};
        char body[1024];
        start_file(&s, &files[k], NULL);
        for (int i = 0; i < 2; i++) {
            const jtree *v;
            err e = {0};
            snprintf(body, sizeof body,
                     "{" ASK ",%s,\"temperature\":1,\"seed\":%d,\"max_tokens\":200,\"thinking\":{"
                     "\"type\":\"%s\",\"budget_tokens\":5},\"chat_template_kwargs\":{"
                     "\"preserve_thinking\":false,\"reasoning_effort\":\"low\"}}",
                     tool, i, i ? "enabled" : "disabled");
            ask(&r, &s, "/v1/chat/completions", body);
            CHECK_STR(text_at(&mem, &r, "choices.0.finish_reason"), "tool_calls");
            const char *said =
                text_at(&mem, &r, "choices.0.message.tool_calls.0.function.arguments");
            CHECK_OK(jtree_parse(said, strlen(said), "arguments", 8, &mem, &v, &e), e);
            CHECK_MSG(jtree_is(jtree_get(v, "n"), JTREE_INTEGER), "%s", said);
            CHECK_MSG(jtree_is(jtree_get(v, "way"), JTREE_STRING), "%s", said);
            CHECK_MSG(jtree_is(jtree_get(v, "on"), JTREE_TRUE) ||
                          jtree_is(jtree_get(v, "on"), JTREE_FALSE),
                      "%s", said);
            response_free(&r);
        }
    }
}

/* The arguments of a call in a stream are those of the whole answer, byte for byte, and they come
 * while they are written. */
TEST(bytes_server_streams_the_arguments_of_calls)
{
    static const toy_model_file files[] = {
        {.base = "qwen3", .words = "qwen2"},
        {.base = "qwen3", .words = "qwen2", .template = "Qwen3.6.jinja"},
        {.base = "laguna", .words = "laguna", .template = "laguna.jinja"},
        {0}};
#define SCHEMA                                                                                     \
    "{\"type\":\"object\",\"properties\":{\"t\":{\"type\":\"string\",\"pattern\":\"^[a-z "         \
    "]{40}$\"},"                                                                                   \
    "\"n\":{\"type\":\"integer\",\"minimum\":1,\"maximum\":9}},\"required\":[\"t\",\"n\"]}"
    static const struct {
        const char *path, *ask, *whole, *delta, *piece;
    } apis[] = {
        {"/v1/chat/completions",
         ASK ",\"max_tokens\":300,\"tools\":[{\"type\":\"function\",\"function\":{\"name\":"
             "\"go\",\"parameters\":" SCHEMA "}}],\"tool_choice\":\"required\"," NO_THOUGHT
             ",\"parallel_tool_calls\":false",
         "choices.0.message.tool_calls.0.function.arguments",
         "choices.0.delta.tool_calls.0.function.arguments", "\"arguments\":"},
        {"/v1/responses",
         "\"input\":\"x\",\"max_output_tokens\":300,\"tools\":[{\"type\":\"function\",\"name\":"
         "\"go\",\"parameters\":" SCHEMA "}],\"tool_choice\":\"required\",\"reasoning\":{"
         "\"effort\":\"none\"},\"parallel_tool_calls\":false",
         "output.0.arguments", "delta", "event: response.function_call_arguments.delta"},
        {"/v1/messages",
         ASK ",\"max_tokens\":300,\"tools\":[{\"name\":\"go\",\"input_schema\":" SCHEMA
             "}],\"tool_choice\":{\"type\":\"any\",\"disable_parallel_tool_use\":true}",
         NULL, "delta.partial_json", "\"partial_json\":"}};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        AUTO(stop) served s;
        start_file(&s, files[i].base ? &files[i] : NULL, NULL);
        for (size_t k = 0; k < sizeof apis / sizeof *apis; k++) {
            AUTO(response_free) response whole, stream;
            AUTO(arena_free) arena mem = {0};
            AUTO(str_free) str said = {0};
            char body[1024];
            snprintf(body, sizeof body, "{%s,\"temperature\":1,\"seed\":3}", apis[k].ask);
            ask(&whole, &s, apis[k].path, body);
            snprintf(body, sizeof body, "{%s,\"temperature\":1,\"seed\":3,\"stream\":true}",
                     apis[k].ask);
            ask(&stream, &s, apis[k].path, body);
            stream_text(&stream, apis[k].delta, &said);
            int n = 0;
            for (const char *at = stream.body.at; (at = strstr(at, apis[k].piece)); at++)
                n++;
            CHECK_MSG(n >= 4, "%zu, %zu: %s", i, k, stream.body.at);
            if (apis[k].whole)
                CHECK_STR(str_text(&said), text_at(&mem, &whole, apis[k].whole));
            else
                CHECK_MSG(said.n && strstr(whole.body.at, said.at), "%s: %s", said.at,
                          whole.body.at);
        }
    }
}

static int64_t thought_tokens(const served *s, const char *more)
{
    AUTO(response_free) response r;
    AUTO(arena_free) arena mem = {0};
    char body[512];
    snprintf(body, sizeof body, "{" ASK ",\"max_tokens\":24,\"temperature\":0%s}", more);
    ask(&r, s, "/v1/chat/completions", body);
    const jtree *n = json_at(json_parsed(&mem, r.body.at, r.body.n),
                             "usage.completion_tokens_details.reasoning_tokens");
    int64_t tokens = n ? strtoll(n->s, NULL, 10) : 0;
    return tokens;
}

TEST(bytes_server_thinks_as_the_template_does)
{
    static const toy_model_file qwen = {
        .base = "qwen3", .words = "qwen2", .template = "Qwen3.6.jinja"};
    AUTO(stop) served s;
    start_file(&s, &qwen, NULL);
    CHECK(thought_tokens(&s, "") > 0);
    CHECK_EQ(thought_tokens(&s, "," NO_THOUGHT), 0);
    stop(&s);
    start_file(&s, &qwen, "--no-think");
    CHECK_EQ(thought_tokens(&s, ""), 0);
    CHECK(thought_tokens(&s, ",\"reasoning_effort\":\"low\"") > 0);
    stop(&s);
    start(&s, 1); /* Laguna's begins without a thought */
    CHECK_EQ(thought_tokens(&s, ""), 0);
}
