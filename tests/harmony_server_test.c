/* harmony_server_test.c - `carat serve` with toy models of gpt-oss and Llama: forced calls and
 * forms in every API, whole and streamed, and what requests say about thinking.
 */
#include "tests/server_rig.h"
#include "base/str.h"

#define SCHEMA                                                                                     \
    "{\"type\":\"object\",\"properties\":{\"t\":{\"type\":\"string\",\"pattern\":\"^[a-z "         \
    "]{40}$\"},\"n\":{\"type\":\"integer\",\"minimum\":1,\"maximum\":9}},\"required\":[\"t\","     \
    "\"n\"]}"
#define TOOL                                                                                       \
    "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"go\",\"parameters\":" SCHEMA "}}]"

static const toy_model_file models[] = {
    {.base = "gpt-oss", .words = "gpt-4o", .template = "openai-gpt-oss-120b.jinja"},
    {.base = "llama", .words = "llama-bpe", .template = "meta-llama-Llama-3.1-8B-Instruct.jinja"}};
enum { GPT_OSS, LLAMA, N_MODELS };

static void start(served *s, int k)
{
    const char *args[] = {"-m", toy_model_write(&models[k]), "--ctx", "1536", "-t", "1", NULL};
    served_start(s, args);
}

/* The arguments of a call in a stream are those of the whole answer, and come while they are
 * written. A thought of five tokens comes first, where the model has thoughts. */
TEST(gpt_oss_and_llama_call_tools_in_every_api)
{
    static const struct {
        const char *path, *ask, *think, *whole, *delta, *piece;
    } apis[] = {
        {"/v1/chat/completions", ASK ",\"max_tokens\":300,\"tool_choice\":\"required\"," TOOL,
         "\"thinking_budget\":5,", "choices.0.message.tool_calls.0.function.arguments",
         "choices.0.delta.tool_calls.0.function.arguments", "\"arguments\":"},
        {"/v1/responses",
         "\"input\":\"x\",\"max_output_tokens\":300,\"tools\":[{\"type\":\"function\",\"name\":"
         "\"go\",\"parameters\":" SCHEMA "}],\"tool_choice\":\"required\"",
         "\"thinking_budget\":5,", NULL, "delta", "event: response.function_call_arguments.delta"},
        {"/v1/messages",
         ASK ",\"max_tokens\":300,\"tools\":[{\"name\":\"go\",\"input_schema\":" SCHEMA
             "}],\"tool_choice\":{\"type\":\"any\"}",
         "\"thinking\":{\"type\":\"enabled\",\"budget_tokens\":5},", NULL, "delta.partial_json",
         "\"partial_json\":"}};
    for (int m = 0; m < N_MODELS; m++) {
        AUTO(stop) served s;
        start(&s, m);
        for (size_t k = 0; k < sizeof apis / sizeof *apis; k++) {
            AUTO(response_free) response whole, stream;
            AUTO(arena_free) arena mem = {0};
            AUTO(str_free) str said = {0};
            char body[1200];
            const char *think = m == GPT_OSS ? apis[k].think : "";
            int n = 0;
            snprintf(body, sizeof body, "{%s%s,\"temperature\":1,\"seed\":3}", think, apis[k].ask);
            http_post(&whole, &s, apis[k].path, body);
            CHECK_MSG(whole.status == 200, "%d, %s: %s", m, apis[k].path, whole.body.at);
            snprintf(body, sizeof body, "{%s%s,\"temperature\":1,\"seed\":3,\"stream\":true}",
                     think, apis[k].ask);
            http_post(&stream, &s, apis[k].path, body);
            CHECK_MSG(stream.status == 200, "%d, %s: %s", m, apis[k].path, stream.body.at);
            stream_text(&stream, apis[k].delta, &said);
            for (const char *at = stream.body.at; (at = strstr(at, apis[k].piece)); at++)
                n++;
            CHECK_MSG(n >= 4, "%d, %s: %s", m, apis[k].path, stream.body.at);
            if (apis[k].whole) {
                CHECK_STR(str_text(&said), text_at(&mem, &whole, apis[k].whole));
                CHECK_STR(text_at(&mem, &whole, "choices.0.finish_reason"), "tool_calls");
            }
            CHECK_MSG(strstr(str_text(&said), "\"t\": \"") && strstr(whole.body.at, "\"go\""),
                      "%d, %s: %s", m, apis[k].path, whole.body.at);
            CHECK_MSG(!strstr(whole.body.at, "<|"), "marks are shown: %s", whole.body.at);
        }
    }
}

TEST(gpt_oss_and_llama_hold_answers_to_a_form)
{
    static const struct {
        const char *path, *ask, *think, *said;
    } apis[] = {
        {"/v1/chat/completions",
         ASK ",\"max_tokens\":400,\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{"
             "\"schema\":{\"enum\":[\"one\",\"two\"]}}}",
         "\"thinking_budget\":5,", "choices.0.message.content"},
        {"/api/chat",
         ASK ",\"stream\":false,\"options\":{\"num_predict\":900},\"format\":{\"enum\":[\"one\","
             "\"two\"]}",
         "\"think\":\"low\",", "message.content"},
        {"/api/chat",
         ASK ",\"stream\":false,\"options\":{\"num_predict\":900},\"format\":{\"enum\":[\"one\","
             "\"two\"]}",
         "\"think\":false,", "message.content"}};
    for (int m = 0; m < N_MODELS; m++) {
        AUTO(stop) served s;
        start(&s, m);
        for (size_t k = 0; k < sizeof apis / sizeof *apis; k++) {
            AUTO(response_free) response r;
            AUTO(arena_free) arena mem = {0};
            char body[600];
            snprintf(body, sizeof body, "{%s%s}", m == GPT_OSS ? apis[k].think : "", apis[k].ask);
            http_post(&r, &s, apis[k].path, body);
            CHECK_MSG(r.status == 200, "%d, %s: %s", m, apis[k].path, r.body.at);
            const char *said = text_at(&mem, &r, apis[k].said);
            CHECK_MSG(!strcmp(said, "\"one\"") || !strcmp(said, "\"two\""), "%d, %zu: %s", m, k,
                      r.body.at);
        }
    }
}

TEST(efforts_of_gpt_oss_are_in_its_prompts)
{
    static const struct {
        const char *more, *word, *not ;
        int status;
    } cases[] = {
        {"", "Reasoning: medium", "<|channel|>final", 200},
        {",\"reasoning_effort\":\"low\"", "Reasoning: low", "<|channel|>final", 200},
        {",\"reasoning\":{\"effort\":\"high\"}", "Reasoning: high", "<|channel|>final", 200},
        {",\"reasoning_effort\":\"none\"", "<|channel|>final<|message|>", "nothing else", 200},
        {"," TOOL, "type go = (_: {", "<|channel|>final", 200},
        {",\"tool_choice\":\"none\"," TOOL, "type go = (_: {", "<|channel|>final", 200},
        {",\"reasoning_effort\":\"none\"," TOOL, "<|start|>assistant\"", "nothing else", 200}};
    AUTO(stop) served s;
    start(&s, GPT_OSS);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        AUTO(response_free) response r;
        char body[900];
        snprintf(body, sizeof body, "{" ASK "%s}", cases[i].more);
        http_post(&r, &s, "/apply-template", body);
        CHECK_MSG(r.status == cases[i].status && strstr(r.body.at, cases[i].word) &&
                      !strstr(r.body.at, cases[i].not ),
                  "%zu: %d %s", i, r.status, r.body.at);
    }
}

TEST(thinking_asked_of_a_model_without_thoughts_is_refused)
{
    static const struct {
        const char *path, *more;
        int status;
    } cases[] = {
        {"/v1/chat/completions", ASK ",\"reasoning_effort\":\"low\",\"max_tokens\":1", 400},
        {"/v1/chat/completions", ASK ",\"reasoning_effort\":\"none\",\"max_tokens\":1", 200},
        {"/v1/chat/completions", ASK ",\"enable_thinking\":true,\"max_tokens\":1", 400},
        {"/v1/chat/completions", ASK ",\"enable_thinking\":false,\"max_tokens\":1", 200},
        {"/v1/responses",
         "\"input\":\"x\",\"reasoning\":{\"effort\":\"low\"},\"max_output_tokens\":1", 400},
        {"/v1/messages",
         ASK ",\"thinking\":{\"type\":\"enabled\",\"budget_tokens\":5},\"max_tokens\":10", 400},
        {"/api/chat", ASK ",\"think\":\"low\",\"options\":{\"num_predict\":1}", 400},
        {"/api/chat", ASK ",\"think\":false,\"options\":{\"num_predict\":1}", 200}};
    AUTO(stop) served s;
    start(&s, LLAMA);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        AUTO(response_free) response r;
        char body[400];
        snprintf(body, sizeof body, "{%s}", cases[i].more);
        http_post(&r, &s, cases[i].path, body);
        CHECK_MSG(r.status == cases[i].status, "%zu: %d %s", i, r.status, r.body.at);
        if (r.status == 400)
            CHECK_MSG(strstr(r.body.at, "no thoughts") || strstr(r.body.at, "not support thinking"),
                      "%s", r.body.at);
    }
}
