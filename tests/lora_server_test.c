/* lora_server_test.c - adapters of a server: /lora-adapters, and requests that choose their own.
 */
#include "base/mem.h"
#include "tests/lora_rig.h"
#include "tests/server_rig.h"

#include <stdio.h>
#include <string.h>

/* Posts, and checks the status and a part of the body. */
static void says(const served *s, const char *path, const char *body, int want, const char *text)
{
    response r;
    http_post(&r, s, path, body);
    CHECK_MSG(r.status == want && strstr(str_text(&r.body), text), "%s %s: %d %s, expected %d %s",
              path, body, r.status, str_text(&r.body), want, text);
    response_free(&r);
}

/* The answer to a prompt, with more fields. */
static void answer(const served *s, const char *more, char text[128])
{
    response r;
    char body[256];
    snprintf(body, sizeof body,
             "{\"prompt\":\"one two three\",\"temperature\":0,\"n_predict\":12%s}", more);
    http_post(&r, s, "/completion", body);
    const char *t = strstr(str_text(&r.body), "\"content\":");
    CHECK_MSG(r.status == 200 && t, "%s", str_text(&r.body));
    snprintf(text, 128, "%.*s", (int)strcspn(t + 11, "\"") + 11, t);
    response_free(&r);
}

TEST(lora_of_a_server_by_request_and_by_its_own_scales)
{
    static const lora_recipe recipe = {.rank = 4, .alpha = 8, .seed = 5};
    served s;
    response r;
    char *base = mem_strdup(toy_model_write(NULL)), *path = mem_strdup(test_temp("style.gguf"));
    char plain[128], with[128], again[128], none[128], half[128];
    lora_rig_adapter(base, path, &recipe);
    start_toy(&s, (const char *const[]){"--lora-scaled", path, "--lora-init-without-apply", NULL});
    http_call(&r, &s, "GET", "/lora-adapters", NULL, NULL);
    CHECK(r.status == 200 && strstr(r.body.at, "\"id\":0,\"name\":\"style\"") &&
          strstr(r.body.at, "\"scale\":0"));
    response_free(&r);
    answer(&s, "", plain);
    answer(&s, ",\"lora\":[{\"id\":0,\"scale\":1}]", with);
    answer(&s, ",\"lora\":[{\"name\":\"style\"}]", again);
    answer(&s, ",\"lora\":[{\"id\":0,\"scale\":0.25}]", half);
    CHECK(strcmp(plain, with) && strcmp(half, with));
    CHECK_STR(with, again);
    says(&s, "/lora-adapters", "[{\"id\":0,\"scale\":1}]", 200, "true");
    answer(&s, "", again);
    answer(&s, ",\"lora\":[]", none);
    CHECK_STR(with, again);
    CHECK_STR(plain, none);
    says(&s, "/lora-adapters", "[{\"id\":1,\"scale\":1}]", 400, "no adapter 1");
    says(&s, "/lora-adapters", "{\"id\":1}", 400, "is not a list");
    says(&s, "/lora-adapters", "[{\"id\":0,\"scale\":1e9}]", 400, "scale");
    says(&s, "/completion", "{\"prompt\":\"a\",\"lora\":[{\"name\":\"law\"}]}", 400,
         "no adapter 'law'");
    says(&s, "/v1/load_lora_adapter", "{}", 501, "--lora FILE");
    says(&s, "/lora-adapters", "[]", 200, "true");
    answer(&s, "", again);
    CHECK_STR(plain, again);
    stop(&s);
    mem_free(base);
    mem_free(path);
}
