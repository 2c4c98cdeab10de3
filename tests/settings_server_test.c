/* settings_server_test.c - what `carat serve` takes where a request does not say: samplers and the
 * system message. */
#include "tests/server_rig.h"

static void same_prompt(const served *s, const char *with, const char *without, bool same)
{
    AUTO(response_free) response a, b;
    http_post(&a, s, "/apply-template", with);
    http_post(&b, s, "/apply-template", without);
    CHECK_EQ(a.status, 200);
    CHECK_EQ(b.status, 200);
    CHECK_MSG(!strcmp(a.body.at, b.body.at) == same, "%s%s", a.body.at, b.body.at);
}

TEST(settings_server_system_message)
{
    const char *own = "{\"messages\":[{\"content\":\"Be kind.\",\"role\":\"system\"},"
                      "{\"role\":\"user\",\"content\":\"Say something.\"}]}",
               *other = "{\"messages\":[{\"role\":\"system\",\"content\":\"Be brief.\"},"
                        "{\"role\":\"user\",\"content\":\"Say something.\"}]}";
    AUTO(stop) served s;
    AUTO(response_free) response r;
    start_toy(&s, ARGS("--system", "Be kind."));
    same_prompt(&s, "{" ASK "}", own, true);
    same_prompt(&s, other, own, false);
    /* Errors name the messages of the request, not those with the one in front. */
    http_post(&r, &s, "/v1/chat/completions",
              "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"king\"}]}");
    CHECK_EQ(r.status, 400);
    CHECK_MSG(strstr(r.body.at, "messages[1]"), "%s", r.body.at);
}

TEST(settings_server_samplers)
{
    AUTO(stop) served s;
    AUTO(response_free) response r, t;
    AUTO(arena_free) arena mem = {0};
    start_toy(&s, ARGS("--temp", "0", "--top-k", "7"));
    http_call(&r, &s, "GET", "/props", NULL, NULL);
    CHECK_MSG(strstr(r.body.at, "\"top_k\":7"), "%s", r.body.at);
    response_free(&r);
    http_post(&r, &s, "/v1/completions", "{\"prompt\":\"Once\",\"max_tokens\":8}");
    http_post(&t, &s, "/v1/completions",
              "{\"prompt\":\"Once\",\"max_tokens\":8,\"temperature\":0}");
    CHECK_STR(text_at(&mem, &r, "choices.0.text"),
              text_at(&mem, &t, "choices.0.text")); /* greedy */
}
