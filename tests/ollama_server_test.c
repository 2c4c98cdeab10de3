/* ollama_server_test.c - `carat serve` as clients of ollama and of llama-server see it: streams say
 * what whole answers say, and every refusal is a sentence in the client's own form. */
#include "tests/doctor.h"
#include "tests/http_client.h"
#include "tests/hub_rig.h"
#include "tests/server_rig.h"
#include "tests/spawn.h"
#include "apps/server/dialects/request.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/utf8.h"

#include <time.h>
#include <unistd.h>

#define GREEDY "\"options\":{\"temperature\":0,\"num_predict\":12},\"think\":false"
#define SAY "\"model\":\"m\"," ASK "," GREEDY

/* What the lines of a stream say under a path, joined; *last: the last line. */
static void lines_text(arena *mem, const response *r, const char *path, str *out,
                       const jtree **last)
{
    const char *at = str_text(&r->body), *end;
    for (; (end = strchr(at, '\n')); at = end + 1) {
        *last = json_parsed(mem, at, (size_t)(end - at));
        const jtree *v = json_at(*last, path);
        CHECK(v && jtree_is(v, JTREE_STRING));
        str_put(out, v->s, v->n);
    }
    CHECK(!*at); /* whole lines only */
}

static void check_metrics(const jtree *v, int n_tokens)
{
    static const char *const times[] = {"total_duration", "prompt_eval_duration", "eval_duration"};
    int64_t n;
    CHECK(jtree_is(json_at(v, "done"), JTREE_TRUE));
    CHECK(tree_says(json_at(v, "done_reason"), "length"));
    CHECK(tree_int(json_at(v, "eval_count"), n_tokens, n_tokens, &n));
    CHECK(tree_int(json_at(v, "prompt_eval_count"), 1, 1000, &n));
    for (size_t i = 0; i < sizeof times / sizeof *times; i++)
        CHECK(tree_int(json_at(v, times[i]), 1, INT64_MAX, &n));
}

TEST(ollama_streams_say_what_whole_answers_say)
{
    static const char *const apis[][3] = {
        {"/api/chat", "{" SAY "%s}", "message.content"},
        {"/api/generate", "{\"model\":\"m\",\"prompt\":\"Say something.\"," GREEDY "%s}",
         "response"},
        {"/api/generate", "{\"model\":\"m\",\"prompt\":\"Once\",\"raw\":true," GREEDY "%s}",
         "response"}};
    AUTO(stop) served s;
    start_toy(&s, NULL);
    for (size_t i = 0; i < sizeof apis / sizeof *apis; i++) {
        AUTO(response_free) response whole, stream;
        AUTO(arena_free) arena mem = {0};
        AUTO(str_free) str said = {0};
        const jtree *last = NULL;
        char body[512];
        snprintf(body, sizeof body, apis[i][1], ",\"stream\":false");
        http_post(&whole, &s, apis[i][0], body);
        CHECK_MSG(whole.status == 200, "%s", str_text(&whole.body));
        snprintf(body, sizeof body, apis[i][1], ",\"logprobs\":true,\"top_logprobs\":2");
        http_post(&stream, &s, apis[i][0], body);
        CHECK_EQ(stream.status, 200);
        CHECK(strstr(stream.head.at, "application/x-ndjson"));
        lines_text(&mem, &stream, apis[i][2], &said, &last);
        CHECK(said.n);
        CHECK_STR(said.at, text_at(&mem, &whole, apis[i][2]));
        CHECK(strstr(stream.body.at, "\"logprobs\":[{"));
        check_metrics(last, 12);
        check_metrics(json_parsed(&mem, whole.body.at, whole.body.n), 12);
    }
}

typedef struct call {
    const char *method, *path, *body;
    int status;
    const char *says;
} call;

static void make_calls(const served *s, const call *c, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        AUTO(response_free) response r;
        http_call(&r, s, c[i].method, c[i].path, "Accept: */*\r\n", c[i].body);
        CHECK_MSG(r.status == c[i].status && strstr(str_text(&r.body), c[i].says),
                  "%s %s %s: %d %s", c[i].method, c[i].path, c[i].body ? c[i].body : "", r.status,
                  str_text(&r.body));
        CHECK(utf8_valid(str_text(&r.body), r.body.n));
    }
}

TEST(ollama_clients_get_their_forms)
{
    static const call calls[] = {
        {"GET", "/", NULL, 200, "Ollama is running"},
        {"GET", "/api/version", NULL, 200, "{\"version\":\"0."},
        {"GET", "/api/tags", NULL, 200, "\"modified_at\":\""},
        {"GET", "/api/tags", NULL, 200, "\"completion\",\"tools\",\"thinking\",\"embedding\"]"},
        {"GET", "/api/ps", NULL, 200, "\"expires_at\":\"2"},
        {"POST", "/api/show", "{\"name\":\"m\"}", 200, "\"general.architecture\":\"gemma4\""},
        {"POST", "/api/show", "{\"model\":\"m:latest\",\"verbose\":true}", 200, "capabilities"},
        {"POST", "/api/show", "{}", 400, "{\"error\":\"'model' is missing\"}"},
        {"POST", "/api/show", "", 400, "missing request body"},
        {"POST", "/api/show", "{\"model\":7}", 400, "{\"error\":\"'model' is"},
        {"DELETE", "/api/delete", "{\"model\":\"none\"}", 404, "model 'none' not found"},
        {"POST", "/api/push", "{\"model\":\"m\"}", 501, "{\"error\":\""},
        {"POST", "/api/blobs/sha256:00", "x", 501, "{\"error\":\""},
        {"POST", "/api/none", "{}", 404, "{\"error\":\"there is no path"},
        {"POST", "/v1/api/chat", "{}", 404, "did you mean /api/chat?"},
        {"POST", "/v1/v1/messages", "{}", 404, "did you mean /v1/messages?"},
        {"POST", "/v1/chat/completion", "{}", 404, "did you mean /v1/chat/completions?"},
        {"GET", "/favicon.ico", NULL, 404, "favicon.ico; /openapi.json"},
        {"POST", "/api/generate", "{\"prompt\":\"x\",\"images\":[\"aGk=\"]}", 400,
         "'images[0]' is an image, and image input is not supported"},
        {"GET", "/api/chat", NULL, 405, "{\"error\":\""},
        {"POST", "/api/chat", "{\"model\":\"m\"}", 200, "\"done_reason\":\"load\""},
        {"POST", "/api/generate", "{\"model\":\"m\",\"keep_alive\":0}", 200,
         "\"done_reason\":\"unload\""},
        {"POST", "/api/chat", "{\"model\":\"m\",\"messages\":7}", 400, "'messages' is"},
        {"POST", "/api/chat", "{\"messages\":[{\"role\":\"user\",\"content\":7}]}", 400,
         "messages[0].content"},
        {"POST", "/api/chat",
         "{\"messages\":[{\"role\":\"user\",\"content\":\"x\",\"images\":[\"aGk=\"]}]}", 400,
         "image input is not supported"},
        {"POST", "/api/chat", "{" ASK ",\"options\":{\"num_predict\":\"x\"}}", 400, "num_predict"},
        {"POST", "/api/chat", "{" ASK ",\"options\":{\"no_such\":1}}", 400, "no_such"},
        {"POST", "/api/chat", "{" ASK ",\"options\":{\"temperatur\":1}}", 400,
         "did you mean 'temperature'?"},
        {"POST", "/api/chat", "{" ASK ",\"options\":[]}", 400, "'options' is"},
        {"POST", "/api/chat", "{" ASK ",\"think\":\"hugely\"}", 400, "think"},
        {"POST", "/api/chat", "{" ASK ",\"format\":\"xml\"}", 400, "'format' is"},
        {"POST", "/api/chat", "{" ASK ",\"format\":7}", 400, "'format' is"},
        {"POST", "/api/chat", "{" ASK ",\"top_logprobs\":2}", 400, "'logprobs'"},
        {"POST", "/api/generate", "{\"prompt\":\"x\",\"template\":\"{{.}}\"}", 400, "template"},
        {"POST", "/api/generate", "{\"prompt\":\"x\",\"raw\":true,\"system\":\"y\"}", 400, "raw"},
        {"POST", "/api/generate", "{\"prompt\":\"x\",\"suffix\":\"y\"}", 501, "fill gaps"},
        {"POST", "/api/generate", "{\"prompt\":\"x\",\"context\":[1]}", 400, "/api/chat"},
        {"POST", "/api/embed", "{\"input\":[]}", 200, "\"embeddings\":[]"},
        {"POST", "/api/embed", "{\"input\":false}", 400, "'input' holds"},
        {"POST", "/api/embeddings", "{\"prompt\":\"x\"}", 200, "{\"embedding\":["},
    };
    AUTO(stop) served s;
    start_toy(&s, NULL);
    make_calls(&s, calls, sizeof calls / sizeof *calls);
    AUTO(response_free) response r;
    http_call(&r, &s, "POST", "/api/chat", "Content-Encoding: gzip\r\n", "{}");
    CHECK(r.status == 415 && strstr(str_text(&r.body), "not compressed"));
    response_free(&r);
    http_call(&r, &s, "HEAD", "/", NULL, NULL);
    CHECK_EQ(r.status, 200);
    response_free(&r);
    http_call(&r, &s, "GET", "/", "Accept: text/html,*/*\r\n", NULL);
    CHECK(strstr(r.head.at, "text/html"));
}

TEST(llama_completion_has_its_own_form)
{
    static const char body[] = "{\"prompt\":\"Once\",\"n_predict\":9,\"temperature\":0,"
                               "\"return_tokens\":true,\"n_probs\":2%s}";
    static const call calls[] = {
        {"POST", "/completions", "{\"prompt\":[[1,2],[3]],\"n_predict\":2}", 200, "[{\"index\":0"},
        {"POST", "/completion", "{\"prompt\":\"x\",\"n_predict\":0}", 200,
         "\"content\":\"\",\"tokens\":[]"},
        {"POST", "/completion", "{\"prompt\":\"x\",\"stop\":[\" \"],\"n_predict\":50}", 200,
         "\"stop_type\":\""},
        {"POST", "/completion", "{}", 400, "'prompt' is missing"},
        {"POST", "/completion", "{\"prompt\":\"x\",\"n_predict\":-3}", 400, "n_predict"},
        {"POST", "/completion", "{\"prompt\":\"x\",\"n_probs\":true}", 400, "n_probs"},
        {"POST", "/completion", "{\"prompt\":\"x\",\"n_cmpl\":65}", 400, "n_cmpl"},
        {"POST", "/completion", "{\"prompt\":\"x\",\"lora\":[{\"id\":0,\"scale\":1}]}", 400,
         "lora"},
        {"POST", "/infill", "{}", 400, "input_prefix"},
        {"POST", "/infill", "{\"input_prefix\":\"a\",\"input_suffix\":7}", 400, "input_suffix"},
        {"POST", "/infill", "{\"input_prefix\":\"a\",\"input_suffix\":\"b\",\"input_extra\":[7]}",
         400, "input_extra"},
        {"POST", "/infill", "{\"input_prefix\":\"a\",\"input_suffix\":\"b\"}", 501,
         "not_supported_error"},
        {"POST", "/chat/completions", "{" ASK ",\"max_tokens\":2}", 200, "chat.completion"},
        {"GET", "/models", NULL, 200, "\"object\":\"list\""},
        {"GET", "/props", NULL, 200, "\"chat_template\":\""},
        {"POST", "/embedding", "{\"content\":\"x\"}", 200, "[{\"index\":0,\"embedding\":[["},
    };
    AUTO(stop) served s;
    AUTO(response_free) response whole, stream;
    AUTO(arena_free) arena mem = {0};
    AUTO(str_free) str said = {0};
    char text[256];
    start_toy(&s, NULL);
    make_calls(&s, calls, sizeof calls / sizeof *calls);
    snprintf(text, sizeof text, body, "");
    http_post(&whole, &s, "/completion", text);
    CHECK_MSG(whole.status == 200, "%s", str_text(&whole.body));
    snprintf(text, sizeof text, body, ",\"stream\":true");
    http_post(&stream, &s, "/completion", text);
    stream_text(&stream, "content", &said);
    CHECK_STR(said.at, text_at(&mem, &whole, "content"));
    CHECK(!strstr(stream.body.at, "[DONE]"));
    CHECK(strstr(stream.body.at, "\"stop\":true"));
    const jtree *v = json_parsed(&mem, whole.body.at, whole.body.n);
    CHECK_EQ(json_at(v, "tokens")->count, 9);
    CHECK_EQ(json_at(v, "completion_probabilities")->count, 9);
    CHECK(tree_says(json_at(v, "stop_type"), "limit"));
}

TEST(llama_infill_by_a_model_that_fills_gaps)
{
    static const call calls[] = {
        {"POST", "/infill",
         "{\"input_prefix\":\"def f(\",\"input_suffix\":\"):\",\"prompt\":\"a, "
         "\",\"input_extra\":[{"
         "\"text\":\"x = "
         "1\",\"filename\":\"x.py\"},{\"text\":\"y\"}],\"n_predict\":4,\"ignore_eos\":true}",
         200, "\"tokens_predicted\":4"},
        {"POST", "/api/generate",
         "{\"prompt\":\"a\",\"suffix\":\"b\",\"stream\":false,\"options\":{\"num_predict\":4,"
         "\"ignore_eos\":true}}",
         200, "\"eval_count\":4"},
        {"POST", "/api/show", "{\"model\":\"m\"}", 200, "\"insert\""},
    };
    const toy_model_file v = {.base = "qwen35", .words = "qwen35"}; /* <|fim_prefix|> is there */
    const char *half = test_temp("half.gguf"), *whole = test_temp("whole.gguf");
    AUTO(stop) served s;
    AUTO(response_free) response r;
    AUTO(str_free) str body = {0};
    doctor_gguf(toy_model_write(&v), half,
                &(doctor_change){.key = "tokenizer.ggml.fim_suf_token_id", .value = 7});
    doctor_gguf(half, whole,
                &(doctor_change){.key = "tokenizer.ggml.fim_mid_token_id", .value = 8});
    served_start(&s, ARGS("-m", whole, "--ctx", "160", "-t", "1"));
    make_calls(&s, calls, sizeof calls / sizeof *calls);
    str_puts(&body, "{\"n_predict\":9,\"input_prefix\":\"");
    for (int i = 0; i < 400; i++) /* cut to the context, not refused */
        str_puts(&body, "word ");
    str_puts(&body, "\",\"input_suffix\":\"");
    for (int i = 0; i < 400; i++)
        str_puts(&body, "end ");
    str_puts(&body, "\"}");
    http_post(&r, &s, "/infill", body.at);
    CHECK_MSG(r.status == 200, "%s", str_text(&r.body));
}

/* ---- Prompts longer than the context (fit.h) ---- */

/* A system message, turns of a question and an answer, those from `from` on, and a last question.
 */
static void put_talk(str *o, int from, int n_turns, const char *more)
{
    str_cut(o, 0);
    str_puts(o, "{\"messages\":[{\"role\":\"system\",\"content\":\"Be brief.\"}");
    for (int i = from; i < 2 * n_turns; i++)
        str_printf(o, ",{\"role\":\"%s\",\"content\":\"words of turn number %d\"}",
                   i % 2 ? "assistant" : "user", i);
    str_printf(o, ",{\"role\":\"user\",\"content\":\"the last question\"}],\"stream\":false,%s}",
               more);
}

static int64_t int_at(arena *mem, const response *r, const char *path)
{
    int64_t n = -1;
    const jtree *v = json_at(json_parsed(mem, r->body.at, r->body.n), path);
    CHECK_MSG(v && tree_int(v, 0, INT32_MAX, &n), "%s: %s", path, str_text(&r->body));
    return n;
}

TEST(ollama_conversations_lose_their_oldest_messages)
{
    enum { CTX = 512, TURNS = 40 };
    response cut, same, next;
    arena mem = {0};
    str body = {0};
    AUTO(stop) served s;
    AUTO_MEM char *log;
    size_t n;
    err e = {0};
    start_toy(&s, NULL);
    put_talk(&body, 0, TURNS, GREEDY);
    http_post(&cut, &s, "/api/chat", body.at);
    CHECK_MSG(cut.status == 200, "%s", str_text(&cut.body));
    int64_t dropped = int_at(&mem, &cut, "truncated.messages");
    int64_t n_prompt = int_at(&mem, &cut, "prompt_eval_count");
    CHECK(dropped > 0 && dropped < 2 * TURNS);
    CHECK(n_prompt + 12 <= CTX && n_prompt > CTX / 2);
    CHECK_EQ(int_at(&mem, &cut, "eval_count"), 12);

    /* It is the answer to what is left: the system message and the newest ones. */
    put_talk(&body, (int)dropped, TURNS, GREEDY ",\"truncate\":false");
    http_post(&same, &s, "/api/chat", body.at);
    CHECK_MSG(same.status == 200, "%s", str_text(&same.body));
    CHECK_EQ(int_at(&mem, &same, "prompt_eval_count"), n_prompt);
    CHECK_STR(text_at(&mem, &same, "message.content"), text_at(&mem, &cut, "message.content"));
    CHECK(!strstr(same.body.at, "truncated"));

    /* The next turn mostly begins with the same tokens. */
    put_talk(&body, 0, TURNS + 1, GREEDY);
    http_post(&next, &s, "/api/chat", body.at);
    CHECK_EQ(next.status, 200);
    CHECK(int_at(&mem, &next, "truncated.messages") >= dropped);
    CHECK_OK(file_read_all(s.log, 1 << 20, &log, &n, &e), e);
    CHECK(strstr(log, "messages are left out"));
    str_free(&body);
    arena_free(&mem);
    response_free(&cut);
    response_free(&same);
    response_free(&next);
}

TEST(ollama_prompts_beyond_the_context)
{
    static const struct {
        const char *path, *format;
        int status;
        const char *says;
    } cases[] = {
        {"/api/chat", "{\"messages\":[{\"role\":\"user\",\"content\":\"%s\"}]}", 400,
         "the last message are longer than the context"},
        {"/api/chat",
         "{\"messages\":[{\"role\":\"system\",\"content\":\"%s\"},{\"role\":\"user\","
         "\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"b\"},{\"role\":\"user\","
         "\"content\":\"c\"}]}",
         400, "even without all others"},
        {"/api/chat",
         "{\"truncate\":false,\"messages\":[{\"role\":\"user\",\"content\":\"%s\"},{\"role\":"
         "\"user\",\"content\":\"c\"}]}",
         400, "'truncate' is false"},
        /* A call and its results go together; the call that is answered last stays. */
        {"/api/chat",
         "{" GREEDY ",\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\","
         "\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":{}}}]},{\"role\":\"tool\","
         "\"content\":\"%s\"},{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":"
         "\"g\",\"arguments\":{}}}]},{\"role\":\"tool\",\"content\":\"result\"}]}",
         200, "\"truncated\":{\"messages\":2,"},
        {"/api/generate", "{" GREEDY ",\"system\":\"Be brief.\",\"prompt\":\"%s\"}", 200,
         "\"truncated\":{\"bytes\":"},
        {"/api/generate", "{" GREEDY ",\"raw\":true,\"prompt\":\"%s\"}", 200,
         "\"truncated\":{\"tokens\":"},
        {"/api/generate",
         "{\"options\":{\"num_keep\":-1,\"num_predict\":2},\"raw\":true,"
         "\"prompt\":\"%s\"}",
         200, "\"truncated\":{\"tokens\":"},
        {"/api/generate", "{\"truncate\":false,\"prompt\":\"%s\"}", 400, "'truncate' is false"},
        {"/api/generate", "{\"system\":\"%s\",\"prompt\":\"x\"}", 400, "no room"},
        {"/api/generate", "{\"prompt\":\"x\",\"truncate\":1}", 400, "'truncate' is"},
        {"/api/chat", "{" ASK ",\"shift\":\"no\"}", 400, "'shift' is"},
        {"/api/chat", "{" ASK ",\"options\":{\"num_keep\":-2}}", 400, "num_keep"},
        {"/v1/chat/completions",
         "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":"
         "\"user\",\"content\":\"%s\"}]}",
         400, "context_length_exceeded"},
    };
    str words = {0}, body = {0};
    AUTO(stop) served s;
    start_toy(&s, NULL);
    for (int i = 0; i < 400; i++)
        str_printf(&words, "w\u00f6rter %d ", i);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        AUTO(response_free) response r;
        const char *at = strstr(cases[i].format, "%s");
        size_t before = at ? (size_t)(at - cases[i].format) : strlen(cases[i].format);
        str_cut(&body, 0);
        str_put(&body, cases[i].format, before);
        str_puts(&body, at ? words.at : "");
        str_puts(&body, at ? at + 2 : "");
        http_post(&r, &s, cases[i].path, body.at);
        CHECK_MSG(r.status == cases[i].status && strstr(str_text(&r.body), cases[i].says),
                  "%s %.200s: %d %s", cases[i].path, cases[i].format, r.status, str_text(&r.body));
        CHECK(utf8_valid(str_text(&r.body), r.body.n));
    }
    str_free(&words);
    str_free(&body);
}

/* ---- Models of a hub ---- */

static void post_pull(const served *s, const char *name, const char *says)
{
    AUTO(response_free) response r;
    char body[256];
    snprintf(body, sizeof body, "{\"model\":\"%s\"}", name);
    http_post(&r, s, "/api/pull", body);
    CHECK_MSG(r.status == 200 && strstr(str_text(&r.body), says), "%d: %s", r.status,
              str_text(&r.body));
}

TEST(ollama_pulls_and_removes_models_of_a_hub)
{
    static hub_rig hub;
    static const char name[] = "own/Model-GGUF:F32";
    const char *toy = toy_model_write(&(toy_model_file){.n_ctx_train = 4096});
    char *bytes, body[128];
    size_t n;
    err e = {0};
    served s;
    hub_rig_open(&hub, "own/Model-GGUF");
    CHECK_OK(file_read_all(toy, 1 << 30, &bytes, &n, &e), e);
    hub_rig_add_bytes(&hub, "Toy-4-it-F32.gguf", bytes, n, false);
    mem_free(bytes);
    start_toy(&s, NULL);
    hub.how.bytes_per_ms = 1; /* a client that leaves ends its pull */
    int fd = http_begin(&s, "/api/pull", "{\"model\":\"own/Model-GGUF\"}");
    str seen = {0};
    CHECK(http_read_until(fd, &seen, "\"completed\":"));
    close(fd);
    str_free(&seen);
    hub.how.bytes_per_ms = 0;
    post_pull(&s, "own/Model-GGUF", "{\"status\":\"success\"}\n");
    post_pull(&s, "own/Model-GGUF:Q4_0", "{\"error\":\"");
    snprintf(body, sizeof body, "{\"model\":\"%s\"}", name);
    const call calls[] = {
        {"POST", "/api/show", body, 404, "carat serve --store"},
        {"POST", "/api/copy", "{\"source\":\"own/Model-GGUF:F32\",\"destination\":\"my\"}", 200,
         ""},
        {"DELETE", "/api/delete", body, 400, "my is made of it"},
        {"DELETE", "/api/delete", "{\"model\":\"my\"}", 200, ""},
        {"POST", "/api/pull", "{\"model\":\"own/Model-GGUF:Q4_0\",\"stream\":false}", 400,
         "{\"error\":\""},
        {"POST", "/api/pull", "{\"model\":7}", 400, "{\"error\":\"'model' is"},
        {"DELETE", "/api/delete", body, 200, ""},
        {"DELETE", "/api/delete", body, 404, "not found"},
    };
    make_calls(&s, calls, sizeof calls / sizeof *calls);
    stop(&s);
    hub_rig_close(&hub);
}

/* A pull ends when its client leaves, told by lines or not: the storage is slow enough to send for
 * hours. */
TEST(ollama_pull_ends_with_its_client)
{
    static const char *const bodies[] = {"{\"model\":\"own/Model-GGUF\"}",
                                         "{\"model\":\"own/Model-GGUF\",\"stream\":false}"};
    static hub_rig hub;
    served s;
    hub_rig_open(&hub, "own/Model-GGUF");
    hub_rig_add(&hub, "a-Q4_0.gguf", 16 << 20);
    start_toy(&s, NULL);
    hub.how.bytes_per_ms = 1;
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) {
        int fd = http_begin(&s, "/api/pull", bodies[i]);
        while (!atomic_load(&hub.at_once))
            usleep(1000);
        close(fd);
        while (atomic_load(&hub.at_once))
            usleep(1000);
    }
    stop(&s);
    hub_rig_close(&hub);
}

/* So does a pull of a server that is told to end, although it gives its answers 300 seconds. */
TEST(ollama_pull_ends_with_its_server)
{
    static const char *const bodies[] = {"{\"model\":\"own/Model-GGUF\"}",
                                         "{\"model\":\"own/Model-GGUF\",\"stream\":false}"};
    static hub_rig hub;
    hub_rig_open(&hub, "own/Model-GGUF");
    hub_rig_add(&hub, "a-Q4_0.gguf", 16 << 20);
    hub.how.bytes_per_ms = 1;
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) {
        served s;
        start_toy(&s, ARGS("--drain", "300"));
        int fd = http_begin(&s, "/api/pull", bodies[i]);
        while (!atomic_load(&hub.at_once))
            usleep(1000);
        stop(&s);
        close(fd);
        while (atomic_load(&hub.at_once))
            usleep(1000);
    }
    hub_rig_close(&hub);
}

static double used_ms(clockid_t clock)
{
    struct timespec t;
    CHECK(!clock_gettime(clock, &t));
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

/* While the storage sends next to nothing, the connection waits for lines: it does not ask for them
 * over and over, which takes as much of a processor as this loop gets. */
TEST(ollama_pull_that_waits_leaves_the_processor_alone)
{
    enum { OWN_MS = 300, MOST_MS = OWN_MS / 2 };
    static hub_rig hub;
    served s;
    clockid_t of_server;
    str seen = {0};
    hub_rig_open(&hub, "own/Model-GGUF");
    hub_rig_add(&hub, "a-Q4_0.gguf", 16 << 20);
    start_toy(&s, NULL);
    hub.how.bytes_per_ms = 1;
    int fd = http_begin(&s, "/api/pull", "{\"model\":\"own/Model-GGUF\"}");
    CHECK(http_read_until(fd, &seen, "\"completed\":"));
    CHECK(!clock_getcpuclockid(s.pid, &of_server));
    double before = used_ms(of_server), from = used_ms(CLOCK_THREAD_CPUTIME_ID);
    while (used_ms(CLOCK_THREAD_CPUTIME_ID) - from < OWN_MS)
        ;
    double spent = used_ms(of_server) - before;
    CHECK_MSG(spent < MOST_MS, "%.0f ms of a processor while a loop had %d", spent, OWN_MS);
    close(fd);
    str_free(&seen);
    stop(&s);
    hub_rig_close(&hub);
}

/* A server with one model: other models of this machine are not listed, and no endpoint answers in
 * their name, nor in that of a model made of them. Any other name means the one that it has. */
TEST(ollama_one_model_answers_for_no_other)
{
#define OTHER "\"model\":\"own/Model-GGUF:F32\""
    static const call calls[] = {
        {"POST", "/api/chat", "{" OTHER "," ASK ",\"stream\":false}", 404, "own/Model-GGUF:F32"},
        {"POST", "/api/chat", "{\"model\":\"model\"," ASK "}", 404, "serves every model"},
        {"POST", "/api/generate", "{" OTHER ",\"prompt\":\"a\"}", 404, "no model"},
        {"POST", "/api/embed", "{" OTHER ",\"input\":\"a\"}", 404, "no model"},
        {"POST", "/api/show", "{" OTHER "}", 404, "no model"},
        {"POST", "/v1/chat/completions", "{" OTHER "," ASK "}", 404, "model_not_found"},
        {"POST", "/v1/completions", "{" OTHER ",\"prompt\":\"a\"}", 404, "model_not_found"},
        {"POST", "/v1/responses", "{" OTHER ",\"input\":\"a\"}", 404, "model_not_found"},
        {"POST", "/v1/messages", "{" OTHER ",\"max_tokens\":1," ASK "}", 404, "not_found"},
        {"POST", "/v1/embeddings", "{" OTHER ",\"input\":\"a\"}", 404, "model_not_found"},
        {"POST", "/completion", "{" OTHER ",\"prompt\":\"a\"}", 404, "model_not_found"},
        {"POST", "/tokenize", "{" OTHER ",\"content\":\"a\"}", 404, "model_not_found"},
        {"POST", "/models/load", "{" OTHER "}", 404, "model_not_found"},
        {"GET", "/props?model=own/Model-GGUF:F32", NULL, 404, "model_not_found"},
        {"GET", "/slots?model=own/Model-GGUF:F32", NULL, 404, "model_not_found"},
        {"GET", "/v1/models/own/Model-GGUF:F32", NULL, 404, "no such model"},
        {"POST", "/api/chat", "{\"model\":\"second\"," ASK "}", 404, "no model"},
        {"POST", "/api/show", "{\"model\":\"second\"}", 404, "no model"},
        {"GET", "/v1/models/gpt-4o", NULL, 200, "gpt-4o"},
        {"POST", "/api/generate", "{\"model\":\"gpt-4o\"}", 200, "\"done\":true"},
        {"POST", "/api/generate", "{\"model\":\"toy:latest\"}", 200, "\"done\":true"},
        {"POST", "/api/generate", "{}", 200, "\"done\":true"},
    };
    static const char *const lists[] = {"/api/tags", "/v1/models", "/models"};
    static hub_rig hub;
    const char *toy = toy_model_write(&(toy_model_file){.n_ctx_train = 4096});
    char *bytes;
    size_t n;
    err e = {0};
    served s;
    spawned made;
    hub_rig_open(&hub, "own/Model-GGUF");
    CHECK_OK(file_read_all(toy, 1 << 30, &bytes, &n, &e), e);
    hub_rig_add_bytes(&hub, "Toy-4-it-F32.gguf", bytes, n, false);
    mem_free(bytes);
    start_toy(&s, NULL);
    post_pull(&s, "own/Model-GGUF", "{\"status\":\"success\"}\n");
    spawn_carat(&made, NULL, ARGS("cp", "model", "second"));
    CHECK_MSG(!made.code, "%s", str_text(&made.err));
    spawned_free(&made);
    make_calls(&s, calls, sizeof calls / sizeof *calls);
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        AUTO(response_free) response r;
        http_call(&r, &s, "GET", lists[i], NULL, NULL);
        CHECK_MSG(r.status == 200 && !strstr(str_text(&r.body), "Model-GGUF") &&
                      !strstr(str_text(&r.body), "second"),
                  "%s", str_text(&r.body));
    }
    stop(&s);
    hub_rig_close(&hub);
}

/* `carat serve` of a made model: it answers to its name and to any other, with its context. */
TEST(ollama_serves_a_made_model)
{
    static const call calls[] = {
        {"GET", "/v1/models", NULL, 200, "{\"id\":\"brief\""},
        {"GET", "/api/tags", NULL, 200, "\"name\":\"brief\""},
        {"GET", "/props", NULL, 200, "\"n_ctx\":300"},
        {"GET", "/props", NULL, 200, "\"token_gap_ms\":12"},
        {"POST", "/api/show", "{\"model\":\"brief\"}", 200, "Be brief."},
        {"POST", "/api/show", "{\"model\":\"anything\"}", 200, "Be brief."},
        {"POST", "/api/chat", "{\"model\":\"brief\"," ASK ",\"stream\":false}", 200,
         "\"eval_count\":3,"},
        {"POST", "/api/chat", "{\"model\":\"x\"," ASK ",\"stream\":false}", 200,
         "\"eval_count\":3,"},
        {"POST", "/v1/chat/completions", "{" ASK "}", 200, "\"completion_tokens\":3"},
    };
    char file[700], text[900];
    spawned made;
    AUTO(stop) served s;
    CHECK(!setenv("XDG_DATA_HOME", test_temp("data"), 1) && !setenv("HF_HOME", test_temp("hf"), 1));
    snprintf(file, sizeof file, "%s", test_temp("Modelfile"));
    int n = snprintf(text, sizeof text,
                     "FROM %s\nSYSTEM Be brief.\nPARAMETER num_ctx 300\nPARAMETER num_predict 3\n"
                     "PARAMETER temperature 0\n",
                     toy_model_write(&(toy_model_file){.n_ctx_train = 4096}));
    test_write(file, text, (size_t)n);
    spawn_carat(&made, NULL, ARGS("create", "brief", "-f", file));
    CHECK_MSG(!made.code, "%s", str_text(&made.err));
    spawned_free(&made);
    served_start(&s, ARGS("brief", "-t", "1"));
    make_calls(&s, calls, sizeof calls / sizeof *calls);
}

TEST(ollama_strangers_change_no_store)
{
    static const call calls[] = {
        {"POST", "/api/pull", "{\"model\":\"own/Model-GGUF\"}", 403, "--api-key"},
        {"DELETE", "/api/delete", "{\"model\":\"own/Model-GGUF\"}", 403, "--api-key"},
        {"POST", "/api/create", "{\"model\":\"x\",\"from\":\"m\"}", 403, "--api-key"},
        {"POST", "/api/copy", "{\"source\":\"m\",\"destination\":\"x\"}", 403, "--api-key"},
        {"GET", "/api/version", NULL, 200, "carat"},
    };
    AUTO(stop) served s;
    start_toy(&s, ARGS("--host", "0.0.0.0"));
    make_calls(&s, calls, sizeof calls / sizeof *calls);
}

/* ---- Models made of others ---- */

#define MADE "\"model\":\"Own/Brief:v1\""
#define PLAIN                                                                                      \
    "\"messages\":[{\"role\":\"system\",\"content\":\"Be brief.\"},{\"role\":\"user\","            \
    "\"content\":\"hi\"},{\"role\":\"assistant\",\"content\":\"ho\"},{\"role\":\"user\","          \
    "\"content\":\"Say something.\"}]"

/* The words of a dialect's answer, and its stop reason, so that they can be compared. */
static void ask_made(const served *s, const char *path, const char *body, const char *said,
                     str *out)
{
    AUTO(response_free) response r;
    AUTO(arena_free) arena mem = {0};
    http_post(&r, s, path, body);
    CHECK_MSG(r.status == 200, "%s: %s", body, str_text(&r.body));
    str_cut(out, 0);
    str_puts(out, text_at(&mem, &r, said));
    CHECK(out->n);
}

TEST(ollama_makes_models_of_others)
{
    static const call making[] = {
        {"POST", "/api/copy", "{\"source\":\"base\",\"destination\":\"second\"}", 200, ""},
        {"POST", "/api/create",
         "{" MADE ",\"from\":\"second:latest\",\"system\":\"Be brief.\",\"messages\":[{\"role\":"
         "\"user\",\"content\":\"hi\"},{\"role\":\"assistant\",\"content\":\"ho\"}],\"license\":"
         "[\"MIT\"],\"parameters\":{\"temperature\":0,\"num_predict\":7,\"num_ctx\":99,\"stop\":["
         "\"never said\"]}}",
         200, "{\"status\":\"success\"}\n"},
        {"POST", "/api/create",
         "{\"model\":\"third\",\"from\":\"OWN/brief:v1\",\"parameters\":{\"num_predict\":3},"
         "\"stream\":false}",
         200, "{\"status\":\"success\"}"},
        {"GET", "/api/tags", NULL, 200, "\"name\":\"Own/Brief:v1\""},
        {"GET", "/api/tags", NULL, 200, "\"parent_model\":\"base\""},
        {"POST", "/api/show", "{" MADE "}", 200,
         "FROM base\\nSYSTEM \\\"\\\"\\\"Be brief.\\\"\\\"\\\"\\nPARAMETER temperature 0\\n"},
        {"POST", "/api/show", "{\"model\":\"third\"}", 200,
         "\"parameters\":\"num_predict                    3\\ntemperature                    0\\n"},
        {"POST", "/api/show", "{" MADE "}", 200, "\"license\":\"MIT\""},
        {"GET", "/v1/models", NULL, 200, "{\"id\":\"third\""},
        {"GET", "/v1/models/OWN/Brief:v1", NULL, 200, "{\"id\":\"Own/Brief:v1\""},
        {"POST", "/v1/embeddings", "{\"model\":\"third\",\"input\":\"x\"}", 200,
         "\"model\":\"third\""},
        {"POST", "/tokenize", "{\"model\":\"third\",\"content\":\"x\"}", 200, "tokens"},
        {"POST", "/api/chat", "{\"model\":\"third\"," ASK ",\"think\":false,\"stream\":false}", 200,
         "\"eval_count\":3,"},
        /* Refused. */
        {"POST", "/api/copy", "{\"source\":\"none\",\"destination\":\"x\"}", 404,
         "'none' not found"},
        {"POST", "/api/copy", "{\"source\":\"base\"}", 400, "'destination' is missing"},
        {"POST", "/api/copy", "{\"source\":\"base\",\"destination\":\"../x\"}", 400, "no name"},
        {"POST", "/api/copy", "{\"source\":\"second\",\"destination\":\"Base\"}", 400, "weights"},
        {"POST", "/api/create", "{\"model\":\"x\"}", 400, "'from' is missing"},
        {"POST", "/api/create",
         "{\"model\":\"x\",\"from\":\"base\",\"parameters\":{\"num_ctx\":\"x\"}}", 400, "num_ctx"},
        {"POST", "/api/create",
         "{\"model\":\"x\",\"from\":\"base\",\"parameters\":{\"num_ctx\":1000000000000}}", 400,
         "num_ctx"},
        {"POST", "/api/create", "{\"model\":\"x\",\"from\":\"base\",\"system\":\"a\\u0000b\"}", 400,
         "zero character"},
        {"POST", "/api/create", "{\"model\":\"x\",\"from\":\"none\"}", 404, "'none' not found"},
        {"POST", "/api/create", "{\"model\":\"x\",\"from\":\"base\",\"template\":\"{{.}}\"}", 400,
         "'template' is not supported"},
        {"POST", "/api/create", "{\"model\":\"x\",\"files\":{\"a\":\"sha256:00\"}}", 400,
         "'files'"},
        {"POST", "/api/create",
         "{\"model\":\"x\",\"from\":\"base\",\"parameters\":{\"logit_bias\":{}}}", 400,
         "parameters.logit_bias"},
        {"POST", "/api/create",
         "{\"model\":\"x\",\"from\":\"base\",\"parameters\":{\"temperature\":\"hot\"}}", 400,
         "'temperature' is a string"},
        {"POST", "/api/create",
         "{\"model\":\"x\",\"from\":\"base\",\"messages\":[{\"role\":\"tool\",\"content\":\"\"}]}",
         400, "messages[0]"},
        {"POST", "/api/push", "{\"model\":\"third\"}", 501, "sends none"},
    };
    static const call leaving[] = {
        {"DELETE", "/api/delete", "{\"model\":\"second\"}", 200, ""},
        {"DELETE", "/api/delete", "{\"model\":\"second\"}", 404, "not found"},
        {"POST", "/api/chat", "{\"model\":\"second\"}", 404, "second"},
        {"POST", "/api/chat", "{" MADE "," ASK ",\"think\":false}", 200, "\"eval_count\":7,"},
        {"POST", "/api/chat", "{\"model\":\"cut\"}", 500, "is damaged"},
        {"GET", "/api/tags", NULL, 200, "third"},
        {"DELETE", "/api/delete", "{\"model\":\"cut\"}", 200, ""},
    };
    static const struct {
        const char *path, *said;
    } dialects[] = {{"/api/chat", "message.content"},
                    {"/v1/chat/completions", "choices.0.message.content"},
                    {"/v1/messages", "content.0.text"}};
    char base[600], other[600], path[600];
    AUTO(str_free) str own = {0}, plain = {0}, body = {0};
    AUTO(stop) served s;
    CHECK(!setenv("XDG_DATA_HOME", test_temp("data"), 1) && !setenv("HF_HOME", test_temp("hf"), 1));
    snprintf(base, sizeof base, "base=%s", toy_model_write(NULL));
    snprintf(other, sizeof other, "other=%s", toy_model_write(&(toy_model_file){.seed = 7}));
    served_start(&s, ARGS("-m", base, other, "--ctx", "256", "-t", "1"));
    make_calls(&s, making, sizeof making / sizeof *making);
    /* Every dialect takes the made model for its parts, spelled out. */
    for (size_t i = 0; i < sizeof dialects / sizeof *dialects; i++) {
        const char *more =
            i ? ",\"max_tokens\":7,\"temperature\":0" : ",\"think\":false,\"stream\":false";
        str_cut(&body, 0);
        str_printf(&body, "{" MADE "," ASK "%s}", i == 2 ? ",\"max_tokens\":7" : i ? "" : more);
        ask_made(&s, dialects[i].path, body.at, dialects[i].said, &own);
        str_cut(&body, 0);
        str_printf(&body, "{\"model\":\"base\"," PLAIN "%s%s}", more,
                   i ? "" : ",\"options\":{\"temperature\":0,\"num_predict\":7}");
        ask_made(&s, i == 2 ? dialects[1].path : dialects[i].path, body.at,
                 dialects[i == 2 ? 1 : i].said, &plain);
        CHECK_STR(own.at, plain.at);
    }
    snprintf(path, sizeof path, "%s/carat/made/cut.json", getenv("XDG_DATA_HOME"));
    test_write(path, "{\"from\":", 8);
    make_calls(&s, leaving, sizeof leaving / sizeof *leaving);
}

/* ---- Embeddings ---- */

TEST(embeddings_of_a_list_are_those_of_each_text)
{
    enum { N = 9 }; /* several waves */
    str all = {0}, encoded = {0};
    response r, one;
    arena mem = {0};
    AUTO(stop) served s;
    start_toy(&s, NULL);
    str_puts(&all, "{\"input\":[\"t0\"");
    for (int i = 1; i < N; i++)
        str_printf(&all, ",\"t%d and more words\"", i);
    str_puts(&all, "],\"dimensions\":8");
    str_puts(&encoded, all.at);
    str_puts(&all, "}");
    str_puts(&encoded, ",\"encoding_format\":\"base64\"}");
    http_post(&r, &s, "/v1/embeddings", all.at);
    CHECK_MSG(r.status == 200, "%s", str_text(&r.body));
    const jtree *v = json_parsed(&mem, r.body.at, r.body.n);
    CHECK_EQ(json_at(v, "data")->count, N);
    CHECK(tree_says(json_at(v, "pooling"), "mean"));
    for (int i = 0; i < N; i += 4) {
        char body[128], path[64];
        double length = 0, x, y;
        snprintf(body, sizeof body,
                 i ? "{\"input\":\"t%d and more words\",\"dimensions\":8}"
                   : "{\"input\":\"t%d\",\"dimensions\":8}",
                 i);
        http_post(&one, &s, "/v1/embeddings", body);
        const jtree *w = json_parsed(&mem, one.body.at, one.body.n);
        for (int k = 0; k < 8; k++) {
            snprintf(path, sizeof path, "data.%d.embedding.%d", i, k);
            CHECK(tree_real(json_at(v, path), -1, 1, &x));
            snprintf(path, sizeof path, "data.0.embedding.%d", k);
            CHECK(tree_real(json_at(w, path), -1, 1, &y));
            CHECK(x == y); /* of the same tokens, in any company */
            length += x * x;
        }
        CHECK_NEAR(length, 1, 1e-5);
        response_free(&one);
    }
    http_post(&one, &s, "/v1/embeddings", encoded.at);
    v = json_at(json_parsed(&mem, one.body.at, one.body.n), "data.8.embedding");
    CHECK(jtree_is(v, JTREE_STRING) && v->n == 44); /* 8 x 4 bytes */
    response_free(&one);
    response_free(&r);
    str_free(&all);
    str_free(&encoded);
    arena_free(&mem);
}

TEST(embeddings_are_refused_with_a_sentence)
{
    static const call calls[] = {
        {"POST", "/v1/embeddings", "{}", 400, "'input' is missing"},
        {"POST", "/v1/embeddings", "{\"input\":\"\"}", 400, "empty string"},
        {"POST", "/v1/embeddings", "{\"input\":[]}", 400, "0 inputs"},
        {"POST", "/v1/embeddings", "{\"input\":[[]]}", 400, "empty list"},
        {"POST", "/v1/embeddings", "{\"input\":[1,-1]}", 400, "token id"},
        {"POST", "/v1/embeddings", "{\"input\":[1,\"x\"]}", 400, "token id"},
        {"POST", "/v1/embeddings", "{\"input\":[\"x\",1]}", 400, "expected strings"},
        {"POST", "/v1/embeddings", "{\"input\":\"x\",\"dimensions\":100000}", 400, "dimensions"},
        {"POST", "/v1/embeddings", "{\"input\":\"x\",\"encoding_format\":\"x\"}", 400, "base64"},
        {"POST", "/v1/embeddings", "{\"input\":\"x\",\"pooling\":\"max\"}", 400, "pooling"},
        {"POST", "/v1/embeddings", "{\"input\":\"x\",\"temperature\":1}", 400, "unknown field"},
        {"POST", "/v1/embeddings", "{\"input\":[1,2,3],\"pooling\":\"last\"}", 200, "\"last\""},
        {"POST", "/v1/embeddings", "[]", 400, "expected a JSON object"},
        {"POST", "/v1/embeddings", "{", 400, "error"},
    };
    AUTO(stop) served s;
    start_toy(&s, NULL);
    make_calls(&s, calls, sizeof calls / sizeof *calls);
    AUTO(str_free) str body = {0};
    AUTO(response_free) response r;
    str_puts(&body, "{\"input\":[1");
    for (int i = 0; i < 600; i++) /* the context holds 512 */
        str_puts(&body, ",1");
    str_puts(&body, "]}");
    http_post(&r, &s, "/v1/embeddings", body.at);
    CHECK_EQ(r.status, 400);
    CHECK(strstr(r.body.at, "context_length_exceeded"));
    response_free(&r);
    http_post(&r, &s, "/api/embed", body.at); /* cut, as ollama does */
    CHECK_MSG(r.status == 200 && strstr(r.body.at, "\"prompt_eval_count\":512"), "%s",
              str_text(&r.body) + (r.body.n > 200 ? r.body.n - 200 : 0));
}
