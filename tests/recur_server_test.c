/* recur_server_test.c - `carat serve` with a model that has recurrent layers: conversations go on
 * from checkpoints, in memory and from a directory; plans and counts say what states take. */
#include "tests/recur_model.h"
#include "tests/server_rig.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/str.h"

static void start(served *s, const char *model, const char *dir)
{
    const char *args[] = {"-m", model,        "--ctx", "1024",    "-t",     "1", "--kv-cache-dir",
                          dir,  "--parallel", "2",     "--draft", "lookup", NULL};
    served_start(s, args);
}

/* Asks the question after a long system prompt. Returns the cached tokens of the prompt. */
static int ask(served *s, const char *question, int *n_prompt, str *answer)
{
    AUTO(str_free) str body = {0};
    AUTO(arena_free) arena mem = {0};
    AUTO(response_free) response r;
    str_puts(&body, "{\"max_tokens\":12,\"temperature\":0,\"messages\":[{\"role\":\"system\","
                    "\"content\":\"");
    for (int i = 0; i < 60; i++)
        str_puts(&body, i % 3 ? "once " : "upon ");
    str_printf(&body, "\"},{\"role\":\"user\",\"content\":\"%s\"}]}", question);
    http_post(&r, s, "/v1/chat/completions", body.at);
    CHECK_MSG(r.status == 200, "%s", str_text(&r.body));
    int cached = atoi(text_at(&mem, &r, "usage.prompt_tokens_details.cached_tokens"));
    *n_prompt = atoi(text_at(&mem, &r, "usage.prompt_tokens"));
    str_free(answer);
    *answer = (str){0};
    str_puts(answer, text_at(&mem, &r, "choices.0.message.content"));
    return cached;
}

TEST(server_goes_on_from_checkpoints_of_recurrent_layers)
{
    const char *model = recur_model_write(NULL), *dir = test_temp("kept");
    AUTO(str_free) str first = {0}, again = {0}, other = {0};
    AUTO(stop) served s;
    response r;
    int n, m;
    char *log;
    size_t n_log;
    err e = {0};
    start(&s, model, dir);
    CHECK_EQ(ask(&s, "Say something.", &n, &first), 0);
    int cached = ask(&s, "Say something.", &m, &again);
    CHECK_MSG(m == n && cached >= n - 24 && cached < n, "%d of %d tokens cached", cached, n);
    CHECK_STR(str_text(&again), str_text(&first));
    cached = ask(&s, "What else is there to say?", &m, &other); /* the same system prompt */
    CHECK_MSG(cached >= 60 && cached < n - 10, "%d of %d tokens cached", cached, m);
    http_call(&r, &s, "GET", "/metrics", NULL, NULL);
    CHECK(r.status == 200 && strstr(r.body.at, "checkpoint_bytes"));
    response_free(&r);
    http_call(&r, &s, "GET", "/slots", NULL, NULL);
    CHECK_EQ(r.status, 200);
    response_free(&r);
    stop(&s);
    CHECK_OK(file_read_all(s.log, 1 << 20, &log, &n_log, &e), e);
    CHECK_MSG(strstr(log, "recurrent states on") &&
                  strstr(log, "of recurrent states, and its keys and values"),
              "%s", log);
    mem_free(log);
    start(&s, model, dir);
    cached = ask(&s, "Say something.", &m, &again);
    CHECK_MSG(cached > n / 2 && cached < n, "%d of %d tokens cached", cached, n);
    CHECK_STR(str_text(&again), str_text(&first));
}
