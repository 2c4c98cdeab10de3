/* compress_server_test.c - `compress` in requests of every dialect, the server's own option, and
 * scorers: the model itself, a model of its own, and one that waits while its client goes. */
#include "tests/server_rig.h"

#include <unistd.h>

static char *long_text(void)
{
    static str text;
    str_cut(&text, 0);
    for (int i = 0; i < 60; i++)
        str_printf(&text, "Sentence %d is about a stone. ", i);
    return text.at;
}

/* A conversation of a long text and a question, with more members. */
static char *talk(const char *list, const char *more)
{
    static str body;
    str_cut(&body, 0);
    str_printf(&body,
               "{\"%s\":[{\"role\":\"user\",\"content\":\"%s\"},{\"role\":\"user\",\"content\":"
               "\"Where is 41?\"}],%s}",
               list, long_text(), more);
    return body.at;
}

static void start(served *s, const char *const *more)
{
    const char *args[24] = {"-m", toy_model_write(NULL), "--ctx", "4096", "-t", "1"};
    int n = 6;
    while (*more)
        args[n++] = *more++;
    served_start(s, args);
}

/* The object at `path`; fails the test if there is none. */
static const jtree *account(arena *mem, const response *r, const char *path)
{
    const jtree *v = json_at(json_parsed(mem, r->body.at, r->body.n), path);
    CHECK_MSG(v, "%d: %s", r->status, str_text(&r->body));
    return v;
}

static int number(const jtree *v, const char *path)
{
    const jtree *x = json_at(v, path);
    CHECK(x && x->s);
    return atoi(x->s);
}

static void check_shorter(const jtree *c, const char *index)
{
    int before = number(c, "original_tokens"), after = number(c, "kept_tokens");
    CHECK_MSG(after > 100 && after < before / 2, "%d of %d", after, before);
    CHECK_EQ(number(c, index), 0);
    CHECK(number(c, "texts.0.kept_tokens") < number(c, "texts.0.tokens") / 2);
    CHECK_EQ(number(c, "texts.0.kept.0.0"), 0);
    CHECK_EQ(number(c, "texts.0.bytes"), (int)strlen(long_text()));
}

PLAIN_TEST(server_compresses_prompts_of_every_dialect)
{
    static const struct {
        const char *path, *list, *more, *usage;
    } kinds[] = {
        {"/v1/chat/completions", "messages", "\"compress\":0.3,\"max_tokens\":2",
         "usage.compression"},
        {"/v1/responses", "input", "\"compress\":0.3,\"max_output_tokens\":2", "usage.compression"},
        {"/v1/messages", "messages", "\"system\":\"Be brief.\",\"compress\":0.3,\"max_tokens\":2",
         "usage.compression"},
        {"/api/chat", "messages",
         "\"stream\":false,\"options\":{\"compress\":0.3,\"num_predict\":2}", NULL},
    };
    AUTO(stop) served s;
    response r;
    AUTO(arena_free) arena mem = {0};
    AUTO(str_free) str body = {0};
    start(&s, ARGS("--parallel", "2"));
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        http_post(&r, &s, kinds[i].path, talk(kinds[i].list, kinds[i].more));
        CHECK_MSG(r.status == 200, "%s: %s", kinds[i].path, str_text(&r.body));
        if (kinds[i].usage)
            check_shorter(account(&mem, &r, kinds[i].usage), "texts.0.message");
        else
            CHECK(number(json_parsed(&mem, r.body.at, r.body.n), "prompt_eval_count") < 900);
        response_free(&r);
    }
    str_printf(&body, "{\"prompt\":\"%s\",\"compress\":0.3,\"max_tokens\":2}", long_text());
    http_post(&r, &s, "/v1/completions", body.at);
    CHECK_EQ(number(account(&mem, &r, "usage.compression"), "texts.0.prompt"), 0);
    response_free(&r);
    http_post(&r, &s, "/completion", body.at);
    CHECK(account(&mem, &r, "timings.compression"));
    response_free(&r);

    http_post(&r, &s, "/v1/chat/completions",
              talk("messages", "\"compress\":0.3,\"max_tokens\":2,\"stream\":true,"
                               "\"stream_options\":{\"include_usage\":true}"));
    CHECK(r.status == 200 && strstr(r.body.at, "\"compression\":{\"original_tokens\":"));
    response_free(&r);
    http_post(&r, &s, "/v1/chat/completions", talk("messages", "\"max_tokens\":2"));
    CHECK(r.status == 200 && !strstr(r.body.at, "compression"));
    response_free(&r);
    CHECK_NEAR(http_metric(&s, "carat_compressed_prompts_total"), 7, 0);
}

TEST(server_refuses_compression_that_makes_no_sense)
{
    static const struct {
        const char *path, *body, *says;
    } wrong[] = {
        {"/v1/chat/completions", "{" ASK ",\"compress\":2}", "'compress' is 2; expected"},
        {"/v1/chat/completions", "{" ASK ",\"compress\":\"much\"}", "'compress' is much; expected"},
        {"/v1/messages", "{" ASK ",\"max_tokens\":2,\"compress\":[]}", "an array; expected"},
        {"/v1/responses", "{\"input\":\"Hi\",\"compress\":true}", "true; expected"},
        {"/v1/completions", "{\"prompt\":[5,6,7],\"compress\":0.5}", "token ids"},
        {"/v1/completions", "{\"prompt\":\"<|turn>user\\nHi\",\"compress\":0.5}", "control tokens"},
        {"/infill", "{\"input_prefix\":\"a\",\"input_suffix\":\"b\",\"compress\":0.5}", "compress"},
    };
    AUTO(stop) served s;
    response r;
    start_toy(&s, NULL);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        http_post(&r, &s, wrong[i].path, wrong[i].body);
        CHECK_MSG(r.status == 400 && strstr(r.body.at, wrong[i].says), "%s: %d, %s", wrong[i].body,
                  r.status, str_text(&r.body));
        response_free(&r);
    }
}

/* The server's option holds where a request does not say; a client that leaves while its text is
 * scored leaves nothing behind. */
PLAIN_TEST(server_compresses_with_a_scorer)
{
    AUTO(stop) served s;
    AUTO(response_free) response r;
    AUTO(arena_free) arena mem = {0};
    start(&s, ARGS("--compress", "0.3", "--compress-model", toy_model_write(NULL)));
    http_post(&r, &s, "/v1/chat/completions", talk("messages", "\"max_tokens\":2"));
    check_shorter(account(&mem, &r, "usage.compression"), "texts.0.message");
    response_free(&r);
    http_post(&r, &s, "/v1/chat/completions",
              talk("messages", "\"max_tokens\":2,\"compress\":\"off\""));
    CHECK(r.status == 200 && !strstr(r.body.at, "compression"));
    response_free(&r);
    http_post(&r, &s, "/v1/chat/completions",
              talk("messages", "\"max_tokens\":2,\"compress\":\"auto\""));
    CHECK(account(&mem, &r, "usage.compression.why"));
    response_free(&r);
    for (int i = 0; i < 3; i++) {
        char more[64];
        snprintf(more, sizeof more, "\"max_tokens\":2,\"compress\":0.1%d", i);
        close(http_begin(&s, "/v1/chat/completions", talk("messages", more)));
    }
    http_post(&r, &s, "/v1/completions", "{\"prompt\":\"Hi\",\"max_tokens\":2}");
    CHECK(r.status == 200 && !strstr(r.body.at, "compression"));
}
