/* api_ollama_test.c - ollama's requests as data: messages, results of calls, options. */
#include "apps/server/dialects/answer.h"
#include "tests/talk_json.h"
#include "tests/test.h"

static const request_limits limits = {.n_vocab = 100, .sampling = {.temperature = 1, .top_p = 1}};

static bool parse(request *rq, api_kind api, const char *body, problem *p)
{
    *rq = (request){0};
    *p = (problem){0};
    return request_parse(rq, api, body, strlen(body), &limits, p);
}

TEST(ollama_results_find_their_calls)
{
    static const char body[] =
        "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"x\"},"
        "{\"role\":\"assistant\",\"thinking\":\"t\",\"tool_calls\":["
        "{\"function\":{\"name\":\"f\",\"arguments\":{\"a\":1}}},"
        "{\"id\":\"c9\",\"function\":{\"name\":\"g\"}}]},"
        "{\"role\":\"tool\",\"tool_name\":\"g\",\"content\":\"1\"},"
        "{\"role\":\"tool\",\"content\":\"2\"}]}";
    AUTO(request_free) request rq;
    problem p;
    CHECK_MSG(parse(&rq, API_OLLAMA_CHAT, body, &p), "%s", p.text);
    CHECK_TALK(&rq.talk,
               "[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"assistant\","
               "\"reasoning_content\":\"t\",\"content\":\"\",\"tool_calls\":[{\"id\":\"call_1_0\","
               "\"type\":"
               "\"function\",\"function\":{\"name\":\"f\",\"arguments\":{\"a\":1}}},{\"id\":\"c9\","
               "\"type\":\"function\",\"function\":{\"name\":\"g\",\"arguments\":{}}}]},"
               "{\"role\":\"tool\",\"tool_call_id\":\"c9\",\"content\":\"1\"},"
               "{\"role\":\"tool\",\"tool_call_id\":\"call_1_0\",\"content\":\"2\"}]");
    CHECK(rq.stream && rq.thinks_by_default && !rq.load_only);
}

TEST(ollama_options_are_sampling_fields)
{
    AUTO(request_free) request rq;
    problem p;
    CHECK(parse(&rq, API_OLLAMA_GENERATE,
                "{\"prompt\":\"x\",\"system\":\"s\",\"stream\":false,\"format\":{\"type\":"
                "\"object\"},\"think\":\"low\",\"options\":{\"temperature\":0.5,\"top_k\":3,"
                "\"num_predict\":7,\"seed\":4,\"stop\":[\"a\",\"b\"],\"num_ctx\":9,\"num_gpu\":-1,"
                "\"repeat_penalty\":1.5}}",
                &p));
    CHECK_NEAR(rq.sampling.temperature, 0.5, 0);
    CHECK_NEAR(rq.sampling.repeat_penalty, 1.5, 0);
    CHECK_EQ(rq.sampling.top_k, 3);
    CHECK_EQ(rq.sampling.seed, 4);
    CHECK_EQ(rq.max_tokens, 7);
    CHECK_EQ(rq.n_stop, 2);
    CHECK_EQ(rq.format, FORMAT_JSON_SCHEMA);
    CHECK_EQ(rq.think, THINK_ON);
    CHECK(!rq.stream);
    CHECK_TALK(&rq.talk, "[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\","
                         "\"content\":\"x\"}]");
    request_free(&rq);
    CHECK(parse(&rq, API_OLLAMA_GENERATE, "{\"prompt\":\"\",\"keep_alive\":\"0s\"}", &p));
    CHECK(rq.load_only && rq.unload);
    request_free(&rq);
    CHECK(parse(&rq, API_OLLAMA_CHAT, "{\"messages\":[],\"keep_alive\":\"5m\"}", &p));
    CHECK(rq.load_only && !rq.unload);
    request_free(&rq);
    CHECK(parse(&rq, API_OLLAMA_CHAT,
                "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"assistant\","
                "\"content\":\"Well\"}],\"options\":null}",
                &p));
    CHECK_STR(rq.prefill, "Well");
    CHECK(rq.continue_last);
}

static status parse_all(void *arg, err *e)
{
    static const char *const bodies[][2] = {
        {"c", "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"assistant\","
              "\"tool_calls\":[{\"function\":{\"name\":\"f\"}}]},{\"role\":\"tool\",\"content\":"
              "\"1\"}],\"format\":{\"type\":\"object\"},\"options\":{\"stop\":[\"a\"]},\"tools\":["
              "{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]}"},
        {"g", "{\"prompt\":\"x\",\"raw\":true}"},
        {"l", "{\"prompt\":[\"x\",[1]],\"stop\":[\"a\"]}"},
        {"i", "{\"input_prefix\":\"a\",\"input_suffix\":\"b\",\"input_extra\":[{\"text\":\"t\"}]}"},
    };
    (void)arg;
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) {
        api_kind api = *bodies[i][0] == 'c'   ? API_OLLAMA_CHAT
                       : *bodies[i][0] == 'g' ? API_OLLAMA_GENERATE
                       : *bodies[i][0] == 'l' ? API_LLAMA
                                              : API_INFILL;
        request rq;
        problem p;
        bool ok = parse(&rq, api, bodies[i][1], &p);
        request_free(&rq);
        if (!ok)
            return err_set(e, p.status == 503 ? E_MEMORY : E_FORMAT, "%s", p.text);
    }
    return OK;
}

TEST(ollama_every_allocation)
{
    test_every_allocation(parse_all, NULL);
}
