/* server_test.c - `carat serve` from outside, over sockets: answers, streams and refusals, one
 * client at a time. The toy model talks nonsense, the bundled one sense. */
#include "tests/http_client.h"
#include "tests/server_rig.h"
#include "tests/spawn.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "text/jtree.h"

#include <dirent.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

TEST(server_streams_say_what_whole_answers_say)
{
    static const struct {
        const char *path, *ask, *whole, *delta;
    } apis[] = {{"/v1/chat/completions", ASK ",\"max_tokens\":24", "choices.0.message.content",
                 "choices.0.delta.content"},
                {"/v1/completions", "\"prompt\":\"Once\",\"max_tokens\":24", "choices.0.text",
                 "choices.0.text"},
                {"/v1/responses", "\"input\":\"Say something.\",\"max_output_tokens\":24",
                 "output.0.content.0.text", "delta"},
                {"/v1/messages", ASK ",\"max_tokens\":24", "content.0.text", "delta.text"}};
    AUTO(stop) served s;
    start_toy(&s, NULL);
    for (size_t i = 0; i < sizeof apis / sizeof *apis; i++) {
        char body[512];
        AUTO(response_free) response whole, stream;
        AUTO(arena_free) arena mem = {0};
        AUTO(str_free) str said = {0};
        snprintf(body, sizeof body, "{%s,\"temperature\":0}", apis[i].ask);
        http_post(&whole, &s, apis[i].path, body);
        CHECK_MSG(whole.status == 200, "%s", str_text(&whole.body));
        snprintf(body, sizeof body, "{%s,\"temperature\":0,\"stream\":true}", apis[i].ask);
        http_post(&stream, &s, apis[i].path, body);
        CHECK_EQ(stream.status, 200);
        CHECK(strstr(stream.head.at, "text/event-stream"));
        stream_text(&stream, apis[i].delta, &said);
        CHECK_STR(said.at, text_at(&mem, &whole, apis[i].whole));
        CHECK_MSG(said.n, "%s: an empty answer", apis[i].path);
        if (!strcmp(apis[i].path, "/v1/messages"))
            CHECK(strstr(whole.body.at, "\"output_tokens\":24") &&
                  strstr(stream.body.at, "\"output_tokens\":24"));
    }
}

/* A stop string holds text back, so that some events have none. */
TEST(server_pings_only_silent_streams)
{
    const char *const waits[] = {"0", "600"};
    for (int i = 0; i < 2; i++)
        for (int stream = 0; stream < 2; stream++) {
            AUTO(stop) served s;
            AUTO(response_free) response r;
            char body[256];
            start_toy(&s, ARGS("--ping", waits[i]));
            snprintf(body, sizeof body,
                     "{" ASK ",\"max_tokens\":40,\"temperature\":0,\"stop\":[\"no such "
                     "text\"],\"stream\":%s}",
                     stream ? "true" : "false");
            http_post(&r, &s, "/v1/chat/completions", body);
            CHECK_EQ(r.status, 200);
            CHECK_MSG(!strstr(r.body.at, "the server is at work"), "%s", r.body.at);
        }
}

TEST(server_logs_a_damaged_file_of_a_conversation)
{
    const char *dir = test_temp("kept"), *model = toy_model_write(NULL);
    const char *args[] = {"-m", model, "--ctx", "512", "-t", "1", "--kv-cache-dir", dir, NULL};
    AUTO(str_free) str body = {0};
    char path[1024] = "", *log;
    size_t n;
    err e = {0};
    str_puts(&body, "{\"max_tokens\":2,\"prompt\":\"");
    for (int i = 0; i < 100; i++)
        str_puts(&body, i % 3 ? "once " : "upon ");
    str_puts(&body, "\"}");
    for (int round = 0; round < 2; round++) {
        served s;
        response r;
        served_start(&s, args);
        http_post(&r, &s, "/v1/completions", body.at);
        CHECK_MSG(r.status == 200, "%s", str_text(&r.body));
        response_free(&r);
        stop(&s);
        CHECK_OK(file_read_all(s.log, 1 << 20, &log, &n, &e), e);
        const char *line = strstr(log, "kept conversations: ");
        CHECK_MSG(!line == !round, "%s", log);
        CHECK_MSG(!line || (strstr(line, ".carat-kv") && !strstr(line + 1, "kept conversations: ")),
                  "%s", log);
        mem_free(log);
        DIR *d = opendir(dir);
        for (struct dirent *x; !round && (x = readdir(d));)
            if (strstr(x->d_name, ".carat-kv")) {
                snprintf(path, sizeof path, "%s/%s", dir, x->d_name);
                CHECK(!truncate(path, 100));
            }
        closedir(d);
        CHECK(path[0]);
    }
}

TEST(server_counts_tokens_and_reuse)
{
    static const char body[] = "{" ASK ",\"max_tokens\":5,\"temperature\":0}";
    AUTO(stop) served s;
    AUTO(response_free) response r;
    AUTO(arena_free) arena mem = {0};
    start_toy(&s, NULL);
    http_post(&r, &s, "/v1/messages/count_tokens", "{" ASK "}");
    CHECK_EQ(r.status, 200);
    int n = atoi(text_at(&mem, &r, "input_tokens"));
    CHECK(n > 5);
    for (int round = 0; round < 2; round++) {
        response_free(&r);
        http_post(&r, &s, "/v1/chat/completions", body);
        CHECK_EQ(atoi(text_at(&mem, &r, "usage.prompt_tokens")), n);
        CHECK_EQ(atoi(text_at(&mem, &r, "usage.completion_tokens")), 5);
        int cached = atoi(text_at(&mem, &r, "usage.prompt_tokens_details.cached_tokens"));
        CHECK_EQ(cached, round ? n - 1 : 0);
        CHECK_STR(text_at(&mem, &r, "choices.0.finish_reason"), "length");
    }
    /* A stream begins before it is known what is reused. */
    char begun[64], ended[64];
    response_free(&r);
    http_post(&r, &s, "/v1/messages",
              "{" ASK ",\"max_tokens\":5,\"temperature\":0,\"stream\":true}");
    snprintf(begun, sizeof begun, "\"usage\":{\"input_tokens\":%d,", n);
    snprintf(ended, sizeof ended, "\"cache_read_input_tokens\":%d,\"output_tokens\":5", n - 1);
    const char *usage = strstr(str_text(&r.body), begun);
    CHECK_MSG(usage && strstr(usage, "{\"input_tokens\":1,") && strstr(usage, ended), "%s",
              str_text(&r.body));
    CHECK_NEAR(http_metric(&s, "carat_generations_total"), 3, 0);
    CHECK_NEAR(http_metric(&s, "carat_prompt_tokens_total"), 3 * n, 0);
    CHECK_NEAR(http_metric(&s, "carat_prefix_hit_tokens_total"), 2 * (n - 1), 0);
    CHECK_NEAR(http_metric(&s, "carat_generated_tokens_total"), 15, 0);
    CHECK_NEAR(http_metric(&s, "carat_kv_tokens"), n + 4, 0);
    CHECK_NEAR(http_metric(&s, "carat_pass_rows_total"), (n + 1 + 1) + 3 * 4, 0);
    CHECK_NEAR(http_metric(&s, "carat_passes_total"), 15, 0);
}

TEST(server_refuses_with_the_apis_own_words)
{
    static const struct {
        const char *method, *path, *body;
        int status;
        const char *says;
    } wrong[] = {
        {"POST", "/v1/chat/completions", "{", 400, "\"type\":\"invalid_request_error\""},
        {"POST", "/v1/chat/completions", "{}", 400, "\"param\":\"messages\""},
        {"POST", "/v1/messages", "{}", 400, "\"type\":\"error\""},
        {"POST", "/v1/embeddings", "{\"input\":7}", 400, "\"param\":\"input\""},
        {"GET", "/v1/chat/completions", NULL, 405, "POST"},
        {"GET", "/v1/rerank", NULL, 405, "POST"},
        {"GET", "/score", NULL, 405, "POST"},
        {"POST", "/classify", "{}", 501, "classify texts"},
        {"POST", "/health", "{}", 405, "GET"},
        {"GET", "/nothing", NULL, 404, "not_found_error"},
        {"GET", "/health%00x", NULL, 404, "/health%00x"},
        {"GET", "/v1/models%00.png", NULL, 404, "not_found_error"},
        {"GET", "/v1/responses/resp_1%00", NULL, 404, "resp_1%00"},
        {"GET", "/%68ealth", NULL, 200, "ok"},
        {"POST", "/v1/chat/completions", "{\"model\":\"a\\u0000b\"," ASK "}", 400, "zero"},
        {"POST", "/v1/messages/x", "{}", 404, "\"type\":\"error\""},
        {"POST", "/tokenize", "{}", 400, "content"},
        {"POST", "/tokenize", "{\"content\":\"a\",\"prompt\":\"b\"}", 400, "exclude"},
        {"POST", "/tokenize", "{\"prompt\":\"a\",\"messages\":[]}", 400, "exclude"},
        {"POST", "/slots/0?action=save", "{}", 501, "--slot-save-path"},
        {"POST", "/v1/load_lora_adapter", "{}", 501, "adapters are loaded with their model"},
        {"POST", "/rerank", "{\"query\":\"a\"}", 400, "\"param\":\"documents\""},
        {"POST", "/rerank", "{\"query\":\"a\",\"documents\":[\"b\"]}", 501, "rerank"},
        {"POST", "/v1/audio/speech", "{}", 501, "carat hears sound and makes none"},
        {"POST", "/v1/messages/batches", "{}", 501, "\"type\":\"error\""},
        {"POST", "/detokenize", "{\"tokens\":[-1]}", 400, "token id"},
        {"POST", "/v1/chat/completions", "{\"messages\":[{\"role\":\"robot\",\"content\":\"x\"}]}",
         400, "\"param\":\"messages[0]\""},
        {"POST", "/v1/chat/completions", "{\"messages\":[{\"role\":\"user\",\"content\":7}]}", 400,
         "\"param\":\"messages[0].content\""},
    };
    AUTO(stop) served s;
    AUTO(response_free) response r;
    start_toy(&s, NULL);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        http_call(&r, &s, wrong[i].method, wrong[i].path, NULL, wrong[i].body);
        CHECK_MSG(r.status == wrong[i].status, "%s %s: %d, %s", wrong[i].method, wrong[i].path,
                  r.status, str_text(&r.body));
        CHECK_MSG(strstr(r.body.at, wrong[i].says), "%s: %s", wrong[i].path, r.body.at);
        response_free(&r);
    }
    AUTO(str_free) str deep = {0}; /* nested deeper than the limit */
    str_puts(&deep, "{\"messages\":");
    for (int i = 0; i < 100000; i++)
        str_putc(&deep, '[');
    http_post(&r, &s, "/v1/chat/completions", deep.at);
    CHECK_EQ(r.status, 400);
}

TEST(server_names_both_numbers_of_a_full_context)
{
    AUTO(stop) served s;
    AUTO(response_free) response r;
    AUTO(str_free) str body = {0};
    start_toy(&s, NULL);
    str_puts(&body, "{\"messages\":[{\"role\":\"user\",\"content\":\"");
    for (int i = 0; i < 600; i++)
        str_puts(&body, "word ");
    str_puts(&body, "\"}]}");
    http_post(&r, &s, "/v1/chat/completions", body.at);
    CHECK_EQ(r.status, 400);
    CHECK(strstr(r.body.at, "context_length_exceeded") && strstr(r.body.at, "\"n_ctx\":512"));
    response_free(&r);
    http_post(&r, &s, "/v1/messages", body.at);
    CHECK_EQ(r.status, 400);
    CHECK_MSG(strstr(r.body.at, "prompt is too long: ") && strstr(r.body.at, " > 511 maximum"),
              "%s", r.body.at);
}

TEST(server_lets_in_who_has_a_key)
{
    AUTO(stop) served s;
    AUTO(response_free) response r;
    start_toy(&s, ARGS("--api-key", "secret"));
    http_call(&r, &s, "GET", "/v1/models", NULL, NULL);
    CHECK_EQ(r.status, 401);
    response_free(&r);
    http_call(&r, &s, "GET", "/v1/models", "Authorization: Bearer secre\r\n", NULL);
    CHECK_EQ(r.status, 401);
    response_free(&r);
    http_call(&r, &s, "GET", "/v1/models", "Authorization: Bearer secret\r\n", NULL);
    CHECK_EQ(r.status, 200);
    response_free(&r);
    http_call(&r, &s, "GET", "/v1/models", "x-api-key: secret\r\n", NULL);
    CHECK_EQ(r.status, 200);
    response_free(&r);
    http_call(&r, &s, "GET", "/health", NULL, NULL);
    CHECK_EQ(r.status, 200);
}

TEST(server_keeps_other_pages_out)
{
    static const struct {
        const char *headers;
        int status;
    } calls[] = {
        {"Host: localhost:1\r\n", 200},
        {"Host: [::1]:80\r\n", 200},
        {"Host: evil.example\r\n", 403},
        {"Host: 127.0.0.1.evil.example\r\n", 403},
        {"Host: localhost\r\nOrigin: http://localhost\r\n", 200},
        {"Host: localhost\r\nOrigin: http://evil.example\r\n", 403},
        {"Host: localhost\r\nOrigin: null\r\n", 403},
        {"Host: localhost\r\nOrigin: https://good.example\r\n", 200},
        {"Host: localhost\r\nSec-Fetch-Site: cross-site\r\n", 403},
        {"Host: localhost\r\nSec-Fetch-Site: same-site\r\n", 403},
        {"Host: localhost\r\nSec-Fetch-Site: same-origin\r\n", 200},
        {"Host: localhost\r\nSec-Fetch-Site: none\r\n", 200},
        {"Host: localhost\r\nReferer: http://evil.example/a?b=http://localhost/\r\n", 403},
        {"Host: localhost\r\nReferer: http://localhost/page\r\n", 200},
        {"Host: localhost\r\nSec-Fetch-Site: cross-site\r\nReferer: https://good.example/a\r\n",
         200},
        {"Host: localhost\r\nHost: localhost\r\n", 400},
        {"Host: localhost\r\nhost: evil.example\r\n", 400},
        {"Host: localhost\r\nOrigin: http://localhost\r\nOrigin: null\r\n", 400}};
    AUTO(stop) served s;
    AUTO(response_free) response r;
    start_toy(&s, ARGS("--cors", "https://good.example"));
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        http_call(&r, &s, "GET", "/v1/models", calls[i].headers, NULL);
        CHECK_MSG(r.status == calls[i].status, "%s: %d", calls[i].headers, r.status);
        response_free(&r);
    }
    /* Every path that names a model, and none that only says how the server is. */
    static const char *const paths[] = {
        "/props?model=b", "/slots?model=b", "/tokenizer_info?model=b", "/metrics", "/v1/models",
        "/api/tags",      "/api/ps"};
    static const char foreign[] = "Host: localhost\r\nSec-Fetch-Site: cross-site\r\n";
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        http_call(&r, &s, "GET", paths[i], foreign, NULL);
        CHECK_MSG(r.status == 403 && strstr(r.body.at, "another origin"), "%s: %d", paths[i],
                  r.status);
        response_free(&r);
    }
    http_call(&r, &s, "GET", "/health", foreign, NULL);
    CHECK_EQ(r.status, 200);
    response_free(&r);
    http_call(&r, &s, "OPTIONS", "/v1/models",
              "Host: localhost\r\nOrigin: https://good.example\r\n", NULL);
    CHECK_EQ(r.status, 204);
    CHECK(strstr(r.head.at, "Access-Control-Allow-Origin: https://good.example"));
}

/* Everybody who reaches the address may use it, and the log says so; --log off does not hide it. */
TEST(server_says_that_it_is_open_to_all)
{
    static const char *const logs[] = {"text", "json", "off"};
    for (int i = 0; i < 3; i++) {
        AUTO(stop) served s;
        AUTO_MEM char *log;
        size_t n;
        err e = {0};
        start_toy(&s, ARGS("--host", "0.0.0.0", "--log", logs[i]));
        CHECK_OK(file_read_all(s.log, 1 << 20, &log, &n, &e), e);
        CHECK_MSG(strstr(log, "without --api-key"), "--log %s: %s", logs[i], log);
    }
}

/* A bias, a list, a form with a bias, an end that must not come yet: each leaves no token. */
TEST(server_answers_400_where_no_token_may_come)
{
    AUTO(stop) served s;
    response r;
    AUTO(str_free) str ban = {0};
    start_toy(&s, NULL);
    http_call(&r, &s, "GET", "/v1/models", NULL, NULL);
    AUTO(arena_free) arena mem = {0};
    const jtree *list = json_parsed(&mem, r.body.at, r.body.n);
    int n_vocab = atoi(json_at(list, "data.0.meta.n_vocab")->s);
    for (int i = 0; i < n_vocab; i++)
        str_printf(&ban, "%s\"%d\":-100", i ? "," : "{", i);
    str_putc(&ban, '}');
    response_free(&r);
    static const struct {
        const char *path, *more;
        bool bias;
    } calls[] = {
        {"/v1/chat/completions", ASK, true},
        {"/v1/completions", "\"prompt\":\"a\"", true},
        {"/completion", "\"prompt\":\"a\"", true},
        {"/v1/messages", "\"max_tokens\":4," ASK, true},
        {"/v1/responses", "\"input\":\"a\"", true},
        {"/v1/chat/completions", "\"response_format\":{\"type\":\"json_object\"}," ASK, true},
        {"/v1/chat/completions",
         "\"response_format\":{\"type\":\"json_object\"},\"logit_bias\":{\"{\":-100,\"{\\\"\":"
         "-100},\"bad_words\":[\"{\"],\"allowed_token_ids\":[0]," ASK,
         false},
        {"/completion", "\"prompt\":\"a\",\"allowed_token_ids\":[0],\"logit_bias\":[[0,false]]",
         false}};
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        AUTO(str_free) str body = {0};
        str_printf(&body, "{%s%s%s}", calls[i].more, calls[i].bias ? ",\"logit_bias\":" : "",
                   calls[i].bias ? ban.at : "");
        http_post(&r, &s, calls[i].path, body.at);
        CHECK_MSG(r.status == 400 && strstr(r.body.at, "no token"), "%s %s: %d %s", calls[i].path,
                  calls[i].more, r.status, str_text(&r.body));
        response_free(&r);
    }
}

/* item_reference names an item of a stored response; without one, or once it is deleted: 404. */
TEST(server_finds_items_that_the_input_refers_to)
{
    AUTO(stop) served s;
    AUTO(response_free) response r, other;
    AUTO(arena_free) arena mem = {0};
    char body[512], path[128];
    start_toy(&s, NULL);
    http_post(&r, &s, "/v1/responses",
              "{\"input\":\"One long question.\",\"max_output_tokens\":4}");
    CHECK_EQ(r.status, 200);
    const char *item = text_at(&mem, &r, "output.0.id"), *id = text_at(&mem, &r, "id");
    snprintf(body, sizeof body,
             "{\"input\":[{\"type\":\"item_reference\",\"id\":\"%s\"},{\"role\":\"user\","
             "\"content\":\"On.\"}],\"max_output_tokens\":4}",
             item);
    http_post(&other, &s, "/v1/responses", body);
    CHECK_MSG(other.status == 200, "%s", str_text(&other.body));
    snprintf(path, sizeof path, "/v1/responses/%s/input_items", text_at(&mem, &other, "id"));
    response_free(&other);
    http_call(&other, &s, "GET", path, NULL, NULL); /* it is kept as the item itself */
    CHECK_MSG(strstr(str_text(&other.body), "\"role\":\"assistant\""), "%s", other.body.at);
    response_free(&other);
    snprintf(path, sizeof path, "/v1/responses/%s", id);
    http_call(&other, &s, "DELETE", path, NULL, NULL);
    CHECK_EQ(other.status, 200);
    response_free(&other);
    snprintf(body, sizeof body,
             "{\"input\":[{\"type\":\"item_reference\",\"id\":\"msg_1\"},{\"role\":"
             "\"user\",\"content\":\"On.\"}]}");
    http_post(&other, &s, "/v1/responses", body);
    CHECK_MSG(other.status == 404 && strstr(other.body.at, "msg_1"), "%s", str_text(&other.body));
    response_free(&other);
    http_post(&other, &s, "/v1/responses", /* a short body must not become a long prompt */
              "{\"input\":[{\"type\":\"item_reference\",\"id\":\"a\"},{\"type\":"
              "\"item_reference\",\"id\":\"a\"}]}");
    CHECK_MSG(other.status == 400 && strstr(other.body.at, "more than once"), "%s",
              str_text(&other.body));
}

TEST(server_tells_the_model_of_verbosity)
{
    static const char *const calls[][2] = {
        {"{\"verbosity\":\"low\"," ASK "}", "briefly"},
        {"{\"verbosity\":\"high\",\"messages\":[{\"role\":\"system\",\"content\":\"Be "
         "kind.\"},{\"role\":"
         "\"user\",\"content\":\"x\"}]}",
         "Be kind.\\n\\nAnswer in detail"},
        {"{\"verbosity\":\"low\",\"messages\":[{\"role\":\"system\",\"content\":[{\"type\":"
         "\"text\","
         "\"text\":\"Be kind.\"}]},{\"role\":\"user\",\"content\":\"x\"}]}",
         "briefly"}};
    AUTO(stop) served s;
    start_toy(&s, NULL);
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        AUTO(response_free) response r;
        http_post(&r, &s, "/apply-template", calls[i][0]);
        CHECK_MSG(r.status == 200 && strstr(r.body.at, calls[i][1]), "%s", str_text(&r.body));
    }
}

/* The forms of llama-server and of vLLM, with the same tokens. */
TEST(server_tokenizes_as_other_servers_do)
{
    static const char *const same[] = {
        "{\"content\":\"A word.\",\"add_special\":true}", "{\"prompt\":\"A word.\"}",
        "{\"prompt\":\"A word.\",\"add_special_tokens\":true,\"return_token_strs\":true}"};
    AUTO(stop) served s;
    response r, back;
    AUTO(arena_free) arena mem = {0};
    AUTO(str_free) str first = {0}, body = {0};
    start_toy(&s, NULL);
    for (int i = 0; i < 3; i++) {
        AUTO(str_free) str ids = {0};
        http_post(&r, &s, "/tokenize", same[i]);
        CHECK_MSG(r.status == 200, "%s", str_text(&r.body));
        const jtree *v = json_parsed(&mem, r.body.at, r.body.n), *list = json_at(v, "tokens");
        jtree_put_json(i ? &ids : &first, list);
        CHECK_EQ(atoi(json_at(v, "count")->s), (int)list->count);
        CHECK(json_at(v, "max_model_len") != NULL);
        if (i)
            CHECK_STR(ids.at, first.at);
        if (i == 2)
            CHECK_EQ(json_at(v, "token_strs")->count, list->count);
        response_free(&r);
    }
    str_printf(&body, "{\"tokens\":%s}", first.at);
    http_post(&back, &s, "/detokenize", body.at);
    CHECK(strstr(text_at(&mem, &back, "prompt"), "A word."));
    CHECK_STR(text_at(&mem, &back, "prompt"), text_at(&mem, &back, "content"));
    response_free(&back);
    http_post(&r, &s, "/tokenize", "{\"return_token_strs\":true," ASK "}");
    http_post(&back, &s, "/v1/chat/completions/input_tokens", "{" ASK "}");
    CHECK_MSG(r.status == 200, "%s", str_text(&r.body));
    CHECK_STR(json_at(json_parsed(&mem, r.body.at, r.body.n), "count")->s,
              json_at(json_parsed(&mem, back.body.at, back.body.n), "input_tokens")->s);
    response_free(&back);
    response_free(&r);
    http_post(&r, &s, "/tokenize", "{\"messages\":[]}");
    CHECK_EQ(r.status, 400);
    response_free(&r);
    http_call(&r, &s, "GET", "/tokenizer_info", NULL, NULL);
    CHECK_MSG(r.status == 200 && strstr(r.body.at, "\"eos_token\":\""), "%s", str_text(&r.body));
    response_free(&r);
}

TEST(server_limits_bodies)
{
    AUTO(stop) served s;
    AUTO(response_free) response r;
    AUTO(str_free) str body = {0};
    start_toy(&s, ARGS("--max-body", "2000"));
    for (int i = 0; i < 3000; i++)
        str_putc(&body, 'x');
    http_post(&r, &s, "/v1/messages", body.at);
    CHECK_EQ(r.status, 413);
    CHECK(strstr(r.body.at, "request_too_large"));
    response_free(&r);
    AUTO(str_free) str chunked = {0}; /* without a declared length */
    str_printf(&chunked, "Transfer-Encoding: chunked\r\n\r\nBB8\r\n%s\r\n0\r\n", body.at);
    http_call(&r, &s, "POST", "/v1/messages", chunked.at, NULL);
    CHECK_EQ(r.status, 413);
}

TEST(server_knows_itself)
{
    static const char *const paths[] = {"/health",    "/health/live",   "/health/ready",
                                        "/v1/models", "/v1/models/any", "/props",
                                        "/slots",     "/openapi.json"};
    AUTO(stop) served s;
    AUTO(response_free) response r;
    AUTO(arena_free) arena mem = {0};
    start_toy(&s, ARGS("--alias", "toy"));
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        http_call(&r, &s, "GET", paths[i], NULL, NULL);
        CHECK_MSG(r.status == 200, "%s: %d", paths[i], r.status);
        json_parsed(&mem, r.body.at, r.body.n);
        response_free(&r);
    }
    http_call(&r, &s, "GET", "/props", NULL, NULL);
    CHECK(*text_at(&mem, &r, "model_name"));
    response_free(&r);
    http_call(&r, &s, "GET", "/v1/models?client_version=1", NULL, NULL);
    CHECK_STR(text_at(&mem, &r, "data.0.id"), "toy");
    response_free(&r);
    http_post(&r, &s, "/tokenize", "{\"content\":\"a b\"}");
    CHECK_EQ(r.status, 200);
    AUTO(str_free) str again = {0};
    str_puts(&again, r.body.at);
    response_free(&r);
    http_post(&r, &s, "/detokenize", again.at);
    CHECK_STR(text_at(&mem, &r, "content"), "a b");
    response_free(&r);
    http_post(&r, &s, "/apply-template", "{" ASK "}");
    CHECK(strstr(text_at(&mem, &r, "prompt"), "<|turn>user\nSay something.<turn|>"));
}

TEST(server_holds_answers_to_what_is_asked)
{
    static const char tool[] =
        "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"go\",\"parameters\":{\"type\":"
        "\"object\",\"properties\":{\"way\":{\"enum\":[\"up\",\"down\"]}},\"required\":[\"way\"],"
        "\"additionalProperties\":false},\"strict\":true}}],\"parallel_tool_calls\":false";
    static const char *const choices[] = {"\"required\"",
                                          "{\"type\":\"function\",\"function\":{\"name\":\"go\"}}"};
    AUTO(stop) served s;
    AUTO(response_free) response r;
    AUTO(arena_free) arena mem = {0};
    char body[1024];
    start_toy(&s, NULL);
    for (int i = 0; i < 4; i++) { /* at any temperature */
        snprintf(body, sizeof body,
                 "{" ASK ",%s,\"tool_choice\":%s,\"temperature\":%d,\"seed\":%d}", tool,
                 choices[i % 2], i, i);
        http_post(&r, &s, "/v1/chat/completions", body);
        CHECK_MSG(r.status == 200, "%s", r.body.at);
        CHECK_STR(text_at(&mem, &r, "choices.0.finish_reason"), "tool_calls");
        CHECK_STR(text_at(&mem, &r, "choices.0.message.tool_calls.0.function.name"), "go");
        const char *way = text_at(&mem, &r, "choices.0.message.tool_calls.0.function.arguments");
        CHECK_MSG(!strcmp(way, "{\"way\":\"up\"}") || !strcmp(way, "{\"way\":\"down\"}"), "%s",
                  way);
        response_free(&r);
        snprintf(body, sizeof body,
                 "{" ASK ",\"temperature\":%d,\"seed\":%d,\"response_format\":{\"type\":"
                 "\"json_schema\",\"json_schema\":{\"schema\":{\"enum\":[12,\"x\",null]}}}}",
                 i, i);
        http_post(&r, &s, "/v1/chat/completions", body);
        CHECK_MSG(r.status == 200, "%s", r.body.at);
        const char *said = text_at(&mem, &r, "choices.0.message.content");
        CHECK_MSG(!strcmp(said, "12") || !strcmp(said, "\"x\"") || !strcmp(said, "null"), "%s",
                  said);
        response_free(&r);
    }
    int n_calls = 0;
    for (int i = 0; i < 8; i++) { /* a call, or else an answer of that form */
        snprintf(body, sizeof body,
                 "{" ASK ",%s,\"temperature\":2,\"seed\":%d,\"response_format\":{\"type\":"
                 "\"json_schema\",\"json_schema\":{\"schema\":{\"enum\":[12,\"x\",null]}}}}",
                 tool, i);
        http_post(&r, &s, "/v1/chat/completions", body);
        CHECK_MSG(r.status == 200, "%s", r.body.at);
        bool called = !strcmp(text_at(&mem, &r, "choices.0.finish_reason"), "tool_calls");
        n_calls += called;
        CHECK(called || strstr("12 \"x\" null", text_at(&mem, &r, "choices.0.message.content")));
        response_free(&r);
    }
    CHECK(n_calls < 8);
    snprintf(body, sizeof body,
             "{" ASK ",%s,\"tool_choice\":\"none\",\"max_tokens\":40,\"seed\":1}", tool);
    http_post(&r, &s, "/v1/chat/completions", body);
    CHECK(r.status == 200 && !strstr(r.body.at, "tool_calls"));
    response_free(&r);
    http_post(
        &r, &s, "/v1/responses",
        "{\"input\":\"x\",\"text\":{\"format\":{\"type\":\"json_schema\",\"schema\":{\"$ref\":"
        "\"#/none\"}}}}");
    CHECK_MSG(r.status == 400 && strstr(r.body.at, "\"param\":\"text.format\""), "%s", r.body.at);
}

/* A forced call begins with the first token. What the limit cuts is no text of any answer: no mark,
 * and nothing of the argument. */
TEST(server_leaves_out_a_call_that_the_limit_cuts)
{
#define PARAMETERS                                                                                 \
    "{\"type\":\"object\",\"properties\":{\"way\":{\"enum\":[\"upandupandupandupandup\"]}},"       \
    "\"required\":[\"way\"]}"
#define FUNCTION "\"function\":{\"name\":\"going\",\"parameters\":" PARAMETERS "}"
    static const struct {
        const char *path, *fields, *limit, *says;
    } cases[] = {
        {"/v1/chat/completions",
         ASK ",\"tools\":[{\"type\":\"function\"," FUNCTION "}],\"tool_choice\":\"required\"",
         "max_tokens", "\"finish_reason\":\"length\""},
        {"/v1/responses",
         "\"input\":\"Go.\",\"tools\":[{\"type\":\"function\",\"name\":\"going\","
         "\"parameters\":" PARAMETERS "}],\"tool_choice\":\"required\"",
         "max_output_tokens", "\"reason\":\"max_output_tokens\""},
        {"/v1/messages",
         ASK ",\"tools\":[{\"name\":\"going\",\"input_schema\":" PARAMETERS
             "}],\"tool_choice\":{\"type\":\"any\"}",
         "max_tokens", "\"stop_reason\":\"max_tokens\""},
    };
    served s;
    start_toy(&s, NULL);
    for (size_t i = 0; i < 2 * sizeof cases / sizeof *cases; i++)
        for (int n = 1; n < 20; n += 3) {
            const bool streams = i % 2;
            response r;
            char body[900];
            snprintf(body, sizeof body, "{%s,\"%s\":%d,\"stream\":%s}", cases[i / 2].fields,
                     cases[i / 2].limit, n, streams ? "true" : "false");
            http_post(&r, &s, cases[i / 2].path, body);
            const char *said = str_text(&r.body);
            CHECK_MSG(r.status == 200 && strstr(said, cases[i / 2].says), "%s: %s", body, said);
            CHECK_MSG(!strstr(said, "tool_call>") && !strstr(said, "call:"), "%s: %s", body, said);
            /* Streams tell the argument while it grows; Responses repeat the tool. */
            CHECK_MSG(streams || !strstr(said, "upand") || strstr(said, "\"output\":[]"), "%s: %s",
                      body, said);
            response_free(&r);
        }
    stop(&s);
}

/* Tools that are declared and not allowed now are never called. */
TEST(server_calls_allowed_tools_alone)
{
    static const char tools[] =
        "\"tools\":[{\"type\":\"function\",\"name\":\"go\"},{\"type\":\"function\",\"name\":"
        "\"stop\"},{\"type\":\"function\",\"name\":\"wait\"}],\"tool_choice\":{\"type\":"
        "\"allowed_tools\",\"mode\":\"required\",\"tools\":[{\"type\":\"function\",\"name\":"
        "\"stop\"},{\"type\":\"function\",\"name\":\"wait\"}]},\"parallel_tool_calls\":false";
    AUTO(stop) served s;
    response r;
    AUTO(arena_free) arena mem = {0};
    char body[1024];
    int n[2] = {0};
    start_toy(&s, NULL);
    for (int i = 0; i < 12; i++) {
        snprintf(body, sizeof body,
                 "{\"input\":\"Say something.\",%s,\"temperature\":3,\"top_p\":1,\"seed\":%d}",
                 tools, i);
        http_post(&r, &s, "/v1/responses", body);
        CHECK_MSG(r.status == 200, "%s", r.body.at);
        const char *name = text_at(&mem, &r, "output.0.name");
        CHECK_MSG(!strcmp(name, "stop") || !strcmp(name, "wait"), "%s", name);
        n[*name == 'w']++;
        response_free(&r);
    }
    CHECK(n[0] && n[1]);
}

TEST(server_goes_on_with_an_answer_in_its_form)
{
    static const char form[] =
        "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":{\"type\":"
        "\"object\",\"properties\":{\"way\":{\"enum\":[\"up\",\"down\"]}},\"required\":[\"way\"],"
        "\"additionalProperties\":false}}}";
    AUTO(stop) served s;
    response r;
    AUTO(arena_free) arena mem = {0};
    char body[1024];
    start_toy(&s, NULL);
    for (int i = 0; i < 4; i++) {
        snprintf(body, sizeof body,
                 "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"assistant\","
                 "\"content\":\"{\\\"way\\\": \\\"%s\"}],%s,\"temperature\":2,\"seed\":%d}",
                 i < 3 ? "" : "left", form, i);
        http_post(&r, &s, "/v1/chat/completions", body);
        if (i < 3) {
            CHECK_MSG(r.status == 200, "%s", r.body.at);
            const char *said = text_at(&mem, &r, "choices.0.message.content");
            CHECK_MSG(!strncmp(said, "up\"", 3) || !strncmp(said, "down\"", 5), "%s", said);
            CHECK(said[strlen(said) - 1] == '}');
        } else {
            CHECK_MSG(r.status == 400 && strstr(r.body.at, "'response_format' asks for"), "%s",
                      r.body.at);
        }
        response_free(&r);
    }
}

TEST(server_tells_logprobs_of_responses)
{
    static const char ask[] = "\"input\":\"Say something.\",\"max_output_tokens\":8,"
                              "\"temperature\":0,\"include\":[\"message.output_text.logprobs\"],"
                              "\"top_logprobs\":2";
    AUTO(stop) served s;
    AUTO(response_free) response r;
    AUTO(arena_free) arena mem = {0};
    char body[512];
    AUTO(str_free) str spelled = {0}, said = {0};
    start_toy(&s, NULL);
    snprintf(body, sizeof body, "{%s}", ask);
    http_post(&r, &s, "/v1/responses", body);
    CHECK_MSG(r.status == 200, "%s", r.body.at);
    const jtree *v = json_parsed(&mem, r.body.at, r.body.n);
    const jtree *list = json_at(v, "output.0.content.0.logprobs");
    CHECK_MSG(list && list->count, "%s", r.body.at);
    for (const jtree *t = list->first; t; t = t->next) {
        const jtree *token = jtree_get(t, "token"), *top = jtree_get(t, "top_logprobs");
        str_put(&spelled, token->s, token->n);
        CHECK(top->count == 2 && jtree_get(t, "logprob"));
        CHECK_STR(json_at(top, "0.token")->s, token->s);
    }
    CHECK_STR(spelled.at, json_at(v, "output.0.content.0.text")->s);
    size_t n = list->count;
    response_free(&r);
    snprintf(body, sizeof body, "{%s,\"stream\":true}", ask);
    http_post(&r, &s, "/v1/responses", body);
    stream_text(&r, "delta", &said);
    CHECK_STR(said.at, spelled.at);
    size_t streamed = 0;
    for (const char *from = r.body.at, *e; (e = strstr(from, "event: response.output_text.delta"));
         from = e + 1) {
        const char *data = strstr(e, "data: ") + 6;
        arena one = {0};
        streamed +=
            json_at(json_parsed(&one, data, (size_t)(strstr(data, "\n\n") - data)), "logprobs")
                ->count;
        arena_free(&one);
    }
    CHECK_EQ(streamed, n);
}

TEST(server_tells_how_far_a_prompt_is)
{
    static const char *const paths[] = {"/v1/chat/completions", "/v1/completions", "/v1/responses",
                                        "/v1/messages"};
    AUTO(stop) served s;
    response r;
    start_toy(&s, ARGS("--chunk", "16"));
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        AUTO(str_free) str body = {0};
        str_printf(
            &body,
            "{\"max_tokens\":2,\"temperature\":0,\"stream\":true,\"return_progress\":true,%s",
            i == 1   ? "\"prompt\":\""
            : i == 2 ? "\"input\":\""
                     : "\"messages\":[{\"role\":\"user\",\"content\":\"");
        for (int k = 0; k < 60; k++)
            str_printf(&body, "word %zu ", i);
        str_puts(&body, i == 1 || i == 2 ? "\"}" : "\"}]}");
        http_post(&r, &s, paths[i], body.at);
        int n = 0;
        for (const char *p = r.body.at; (p = strstr(p, "\"prompt_progress\":{\"total\":"));
             p++, n++)
            CHECK(strstr(p, "\"cache\":") && strstr(p, "\"processed\":"));
        CHECK_MSG(n > 2, "%s: %s", paths[i], r.body.at);
        CHECK(!strstr(r.body.at, ",,") && !strstr(r.body.at, "{,"));
        AUTO(str_free) str said = {0};
        stream_text(&r, "none", &said); /* every event is JSON */
        response_free(&r);
    }
}

TEST(server_tells_systemd)
{
    struct sockaddr_un me = {.sun_family = AF_UNIX};
    char said[256] = "";
    served s;
    const char *path = test_temp("notify");
    CHECK(strlen(path) < sizeof me.sun_path);
    memcpy(me.sun_path, path, strlen(path) + 1);
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0 && !bind(fd, (struct sockaddr *)&me, sizeof me));
    setenv("NOTIFY_SOCKET", path, 1);
    start_toy(&s, NULL);
    CHECK(recv(fd, said, sizeof said - 1, 0) > 0);
    CHECK(strstr(said, "READY=1"));
    stop(&s);
    memset(said, 0, sizeof said);
    CHECK(recv(fd, said, sizeof said - 1, 0) > 0);
    CHECK(strstr(said, "STOPPING=1"));
    close(fd);
    unlink(path);
}

TEST(server_traces_requests_with_their_tokens)
{
    served s;
    response r;
    arena mem = {0};
    char id[64], path[512];
    char *bytes;
    size_t n;
    err e = {0};
    const char *dir = test_temp("traces"); /* the server makes it */
    struct stat sb;
    umask(0);
    start_toy(&s, ARGS("--trace", dir));
    http_post(&r, &s, "/v1/chat/completions", "{" ASK ",\"max_tokens\":6,\"temperature\":0}");
    CHECK_EQ(r.status, 200);
    const char *line = strstr(r.head.at, "X-Request-Id: ");
    CHECK(line && sscanf(line, "X-Request-Id: %60s", id) == 1);
    response_free(&r);
    stop(&s);
    snprintf(path, sizeof path, "%s/%s.json", dir, id);
    CHECK(!stat(path, &sb) && (sb.st_mode & 0777) == 0600);
    CHECK_OK(file_read_all(path, 1 << 20, &bytes, &n, &e), e);
    const jtree *v = json_parsed(&mem, bytes, n);
    CHECK_EQ(json_at(v, "answers.0.sampled_ids")->count, 6);
    CHECK(json_at(v, "answers.0.prompt_ids")->count > 5);
    CHECK_STR(json_at(v, "request.messages.0.content")->s, "Say something.");
    mem_free(bytes);
    arena_free(&mem);
    unlink(path);
    rmdir(dir);
}

TEST(server_refuses_to_start_where_traces_would_be_lost)
{
    const char *m = toy_model_write(NULL);
    const char *const dirs[][2] = {{"/proc/none/traces", "/proc/none/traces: cannot create"},
                                   {m, "is not a directory"}};
    for (int i = 0; i < 2; i++) {
        AUTO(spawned_free) spawned r;
        spawn_carat(&r, NULL, ARGS("serve", "-p", "0", "-m", m, "--trace", dirs[i][0]));
        CHECK_EQ(r.code, 1);
        CHECK_MSG(strstr(str_text(&r.err), dirs[i][1]), "%s", str_text(&r.err));
    }
}

TEST(server_log_cannot_drive_a_terminal)
{
    static const char *const forms[] = {"text", "json"};
    for (int i = 0; i < 2; i++) {
        served s;
        response r;
        AUTO_MEM char *log;
        size_t n;
        err e = {0};
        start_toy(&s, ARGS("--log", forms[i], "--alias", "\x1b]0;t\x07\xC2\x9B\xE2\x80\xAE|"));
        http_call(&r, &s, "GET", "/%1b%5d0;x%07%c2%9b%e2%80%ae%0a%ff", NULL, NULL);
        CHECK_EQ(r.status, 404);
        CHECK(utf8_valid(r.body.at, r.body.n));
        response_free(&r);
        stop(&s);
        CHECK_OK(file_read_all(s.log, 1 << 20, &log, &n, &e), e);
        CHECK_MSG(strstr(log, "^[]0;t^G<009B><202E>|"), "%s", log);
        CHECK_MSG(strstr(log, "^[]0;x^G<009B><202E>^J\xEF\xBF\xBD"), "%s", log);
        CHECK(utf8_valid(log, n));
        CHECK(!strpbrk(log, "\x1b\x07") && !strstr(log, "\xC2\x9B") &&
              !strstr(log, "\xE2\x80\xAE"));
    }
}

/* ---- Prompts ---- */

static void expect_prompt(const served *s, const char *body, const char *want)
{
    AUTO(arena_free) arena mem = {0};
    AUTO(response_free) response r;
    http_post(&r, s, "/apply-template", body);
    CHECK_MSG(r.status == 200, "%s", str_text(&r.body));
    CHECK_STR(text_at(&mem, &r, "prompt"), want);
}

#define USER "{\"role\":\"user\",\"content\":\"q\"}"

/* The toy model has the template of the large models. */
#define OPENED "<bos><|turn>user\nq<turn|>\n<|turn>model\n"
#define ASKED OPENED "<|channel>thought\n<channel|>"
TEST(server_prompts_are_the_templates)
{
    AUTO(stop) served s;
    start_toy(&s, NULL);
    expect_prompt(&s, "{\"messages\":[" USER "]}", ASKED);
    expect_prompt(&s, "{\"messages\":[" USER "],\"add_generation_prompt\":false}",
                  "<bos><|turn>user\nq<turn|>\n");
    expect_prompt(&s, "{\"messages\":[" USER ",{\"role\":\"assistant\",\"content\":\"A\"}]}",
                  ASKED "A");
    expect_prompt(&s,
                  "{\"messages\":[" USER ",{\"role\":\"assistant\",\"content\":\"A\"},"
                  "{\"role\":\"assistant\",\"content\":\"B\"}]}",
                  OPENED "AB");
    expect_prompt(&s,
                  "{\"messages\":[" USER ",{\"role\":\"assistant\",\"content\":\"A\",\"reasoning\":"
                  "\"hm\"}]}",
                  OPENED "<|channel>thought\nhm\n<channel|>A");
    expect_prompt(
        &s,
        "{\"messages\":[" USER ",{\"role\":\"assistant\",\"tool_calls\":[{\"function\":"
        "{\"name\":\"f\"}}],\"tool_responses\":[{\"name\":\"f\",\"response\":{\"t\":1}}]}]}",
        OPENED "<|tool_call>call:f{}<tool_call|><|tool_response>response:f{t:1}"
               "<tool_response|>");
    expect_prompt(&s,
                  "{\"messages\":[" USER
                  ",{\"role\":\"assistant\",\"tool_responses\":[{\"name\":\"f\","
                  "\"response\":1}]}]}",
                  OPENED "<|tool_response>response:f{value:1}<tool_response|>");
    expect_prompt(
        &s,
        "{\"messages\":[" USER "],\"tools\":[{\"type\":\"function\",\"function\":{\"name\":"
        "\"f\",\"description\":\"d\",\"response\":{\"type\":\"object\",\"description\":\"r\"}}}]}",
        "<bos><|turn>system\n<|tool>declaration:f{description:<|\"|>d<|\"|>,response:{"
        "description:<|\"|>r<|\"|>,type:<|\"|>OBJECT<|\"|>}}<tool|><turn|>\n<|turn>user\n"
        "q<turn|>\n<|turn>model\n<|channel>thought\n<channel|>");
    expect_prompt(
        &s,
        "{\"messages\":[" USER ",{\"role\":\"assistant\",\"reasoning\":\"hm\",\"tool_calls\":"
        "[{\"id\":\"1\",\"function\":{\"name\":\"f\"}}]},{\"role\":\"tool\",\"tool_call_id\":"
        "\"1\",\"content\":\"r\"},{\"role\":\"assistant\",\"content\":\"A\"}," USER
        "],\"chat_template_kwargs\":{\"preserve_thinking\":true}}",
        OPENED "<|channel>thought\nhm\n<channel|><|tool_call>call:f{}<tool_call|>"
               "<|tool_response>response:f{value:<|\"|>r<|\"|>}<tool_response|>A<turn|>\n"
               "<|turn>user\nq<turn|>\n<|turn>model\n<|channel>thought\n<channel|>");
}

TEST(server_holds_answers_to_the_forms_of_other_servers)
{
    static const struct {
        const char *field, *want; /* the only possible answer */
    } forms[] = {
        {"\"guided_choice\":[\"yes \\u00fc\"]", "yes \xC3\xBC"},
        {"\"guided_regex\":\"^[b]{3}x$\"", "bbbx"},
        {"\"guided_regex\":\"(?:ab|ab)\"", "ab"},
        {"\"guided_grammar\":\"root ::= \\\"no\\\"\"", "no"},
        {"\"guided_json\":{\"const\":17}", "17"},
        {"\"json_schema\":{\"const\":\"a\"}", "\"a\""},
        {"\"structured_outputs\":{\"choice\":[\"one\"]}", "one"},
    };
    static const char *const paths[][3] = {
        {"/v1/chat/completions", "{" ASK ",\"max_tokens\":64,%s}", "choices.0.message.content"},
        {"/v1/completions", "{\"prompt\":\"a\",\"max_tokens\":64,%s}", "choices.0.text"},
        {"/v1/responses", "{\"input\":\"x\",\"max_output_tokens\":64,%s}",
         "output.0.content.0.text"},
        {"/v1/messages", "{" ASK ",\"max_tokens\":64,%s}", "content.0.text"}};
    AUTO(stop) served s;
    start_toy(&s, NULL);
    for (size_t k = 0; k < 4; k++)
        for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
            AUTO(arena_free) arena mem = {0};
            AUTO(response_free) response r;
            char body[600];
            snprintf(body, sizeof body, paths[k][1], forms[i].field);
            http_post(&r, &s, paths[k][0], body);
            CHECK_MSG(r.status == 200, "%s: %s", body, str_text(&r.body));
            CHECK_STR(text_at(&mem, &r, paths[k][2]), forms[i].want);
        }
    AUTO(response_free) response r;
    http_post(&r, &s, "/v1/chat/completions", "{" ASK ",\"guided_regex\":\"(?=x)\"}");
    CHECK_EQ(r.status, 400);
    CHECK_MSG(strstr(r.body.at, "'guided_regex'"), "%s", r.body.at);
}

TEST(server_tells_calls_in_the_older_way)
{
    AUTO(stop) served s;
    AUTO(response_free) response r;
    AUTO(arena_free) arena mem = {0};
    AUTO(str_free) str name = {0};
    start_toy(&s, NULL);
#define OLD_CALL                                                                                   \
    "{" ASK ",\"max_tokens\":200,\"functions\":[{\"name\":\"f\",\"parameters\":{\"type\":"         \
    "\"object\",\"properties\":{\"a\":{\"const\":1}},\"required\":[\"a\"]}}],\"function_call\":{"  \
    "\"name\":\"f\"}"
    http_post(&r, &s, "/v1/chat/completions", OLD_CALL "}");
    CHECK_MSG(r.status == 200, "%s", str_text(&r.body));
    CHECK_STR(text_at(&mem, &r, "choices.0.message.function_call.name"), "f");
    CHECK_STR(text_at(&mem, &r, "choices.0.message.function_call.arguments"), "{\"a\":1}");
    CHECK_STR(text_at(&mem, &r, "choices.0.finish_reason"), "function_call");
    response_free(&r);
    http_post(&r, &s, "/v1/chat/completions", OLD_CALL ",\"stream\":true}");
    stream_text(&r, "choices.0.delta.function_call.name", &name);
    CHECK_STR(str_text(&name), "f");
}

TEST(server_tells_the_methods_of_a_path)
{
    static const char *const paths[][2] = {{"/v1/chat/completions", "Allow: POST, OPTIONS\r\n"},
                                           {"/health", "Allow: GET, HEAD, OPTIONS\r\n"},
                                           {"/v1/models/x", "Allow: GET, HEAD, OPTIONS\r\n"},
                                           {"/none", NULL}};
    AUTO(stop) served s;
    start_toy(&s, NULL);
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        AUTO(response_free) response r;
        http_call(&r, &s, "OPTIONS", paths[i][0], NULL, NULL);
        CHECK_EQ(r.status, paths[i][1] ? 204 : 404);
        CHECK_MSG(!paths[i][1] || strstr(r.head.at, paths[i][1]), "%s", r.head.at);
    }
}

TEST(server_says_that_a_port_is_taken)
{
    AUTO(stop) served s;
    AUTO(spawned_free) spawned r;
    char port[16];
    start_toy(&s, NULL);
    snprintf(port, sizeof port, "%d", s.port);
    const char *const args[] = {"serve", "-m", toy_model_write(NULL), "-p", port, NULL};
    spawn_carat(&r, &(spawn_options){0}, args);
    CHECK_EQ(r.code, 1);
    CHECK_MSG(spawned_says(&r.err, "another program listens there; --port chooses another"), "%s",
              str_text(&r.err));
}

/* A history with a call whose arguments are no JSON object goes on in every API, and the log says
 * it once for each call. */
TEST(server_goes_on_with_histories_of_malformed_arguments)
{
    static const char *const arguments[] = {"\"{\\\"v\\\": \"",
                                            "\"[1, 2]\"",
                                            "\"\\\"x\\\"\"",
                                            "\"not JSON\"",
                                            "\"\"",
                                            "5",
                                            "[1]",
                                            "true",
                                            NULL};
    static const struct {
        const char *path, *head, *tail;
    } apis[] = {
        {"/v1/chat/completions",
         "{\"max_tokens\":1,\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":"
         "\"assistant\","
         "\"tool_calls\":[{\"id\":\"%s\",\"type\":\"function\",\"function\":{\"name\":\"f\","
         "\"arguments\":",
         "}}]},{\"role\":\"tool\",\"tool_call_id\":\"%s\",\"content\":\"no\"},{\"role\":\"user\","
         "\"content\":\"b\"}]}"},
        {"/v1/responses",
         "{\"max_output_tokens\":1,\"input\":[{\"role\":\"user\",\"content\":\"a\"},{\"type\":"
         "\"function_call\",\"call_id\":\"%s\",\"name\":\"f\",\"arguments\":",
         "},{\"type\":\"function_call_output\",\"call_id\":\"%s\",\"output\":\"no\"},{\"role\":"
         "\"user\",\"content\":\"b\"}]}"},
        {"/v1/messages",
         "{\"max_tokens\":1,\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":"
         "\"assistant\","
         "\"content\":[{\"type\":\"tool_use\",\"id\":\"%s\",\"name\":\"f\",\"input\":",
         "}]},{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":\"%s\","
         "\"content\":\"no\"},{\"type\":\"text\",\"text\":\"b\"}]}]}"},
        {"/api/chat",
         "{\"stream\":false,\"options\":{\"num_predict\":1},\"messages\":[{\"role\":\"user\","
         "\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"id\":\"%"
         "s\","
         "\"function\":{\"name\":\"f\",\"arguments\":",
         "}}]},{\"role\":\"tool\",\"tool_call_id\":\"%s\",\"content\":\"no\"},{\"role\":\"user\","
         "\"content\":\"b\"}]}"}};
    char deep[300] = "\"";
    served s;
    response r;
    AUTO(str_free) str body = {0};
    AUTO_MEM char *log = NULL;
    size_t n = 0;
    err e = {0};
    memset(deep + 1, '[', 200);
    strcpy(deep + 201, "\"");
    start_toy(&s, NULL);
    for (size_t i = 0; i < 2 * sizeof apis / sizeof *apis; i++) /* every history twice */
        for (size_t k = 0; k < sizeof arguments / sizeof *arguments; k++) {
            char id[32];
            snprintf(id, sizeof id, "call_%zu_%zu", i / 2, k);
            str_cut(&body, 0);
            str_printf(&body, apis[i / 2].head, id);
            str_puts(&body, arguments[k] ? arguments[k] : deep);
            str_printf(&body, apis[i / 2].tail, id);
            http_post(&r, &s, apis[i / 2].path, body.at);
            CHECK_MSG(r.status == 200, "%s: %s: %s", apis[i / 2].path, body.at, str_text(&r.body));
            response_free(&r);
        }
    stop(&s);
    CHECK_OK(file_read_all(s.log, 1 << 20, &log, &n, &e), e);
    for (size_t i = 0; i < sizeof apis / sizeof *apis; i++) {
        char id[32];
        snprintf(id, sizeof id, "call_%zu_0 ", i);
        const char *at = strstr(log, id);
        CHECK_MSG(at && !strstr(at + 1, id), "%s in %s", id, log);
    }
}
