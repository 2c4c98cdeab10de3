/* router_server_test.c - llama-server's router: models that are pulled, removed, loaded and
 * unloaded by hand, and what clients are told of it. The hub is hub_rig.h's.
 */
#include "tests/hub_rig.h"
#include "tests/server_rig.h"
#include "tests/spawn.h"
#include "base/clock.h"
#include "base/map.h"
#include "base/mem.h"

#include <string.h>
#include <unistd.h>

#define NAME "own/Model-GGUF:Q8_0"

/* A hub with one small model, and a server that offers another, and what it pulls. */
static void begin(hub_rig *hub, served *s)
{
    char *bytes;
    size_t n;
    err e = {0};
    hub_rig_open(hub, "own/Model-GGUF");
    CHECK_OK(file_read_all(toy_model_write(NULL), 1 << 30, &bytes, &n, &e), e);
    hub_rig_add_bytes(hub, "Model-Q8_0.gguf", bytes, n, false);
    mem_free(bytes);
    served_start(s, ARGS("--store", "-m", toy_model_write(&(toy_model_file){.seed = 3}), "-t", "1",
                         "--ctx", "256", "--parallel", "1"));
}

typedef struct call {
    const char *method, *path, *body;
    int status;
    const char *says;
} call;

static void make(const served *s, const call *c)
{
    AUTO(response_free) response r;
    http_call(&r, s, c->method, c->path, NULL, c->body);
    CHECK_MSG(r.status == c->status && strstr(str_text(&r.body), c->says), "%s %s %s: %d %s",
              c->method, c->path, c->body ? c->body : "", r.status, str_text(&r.body));
}

/* Waits until the list has a text, or (there false) no longer has it. */
static void await(const served *s, const char *path, const char *text, bool there)
{
    for (double until = clock_ms() + PATIENCE_MS;; usleep(5000)) {
        response r;
        http_call(&r, s, "GET", path, NULL, NULL);
        bool has = strstr(str_text(&r.body), text) != NULL;
        CHECK_MSG(clock_ms() < until, "%s: %s", text, str_text(&r.body));
        response_free(&r);
        if (has == there)
            return;
    }
}

static int follow(const served *s, str *seen)
{
    int fd = http_dial(s);
    static const char ask[] = "GET /models/sse HTTP/1.1\r\nHost: localhost\r\n\r\n";
    CHECK(write(fd, ask, sizeof ask - 1) == sizeof ask - 1);
    CHECK(http_read_until(fd, seen, ": events"));
    return fd;
}

TEST(router_pulls_loads_unloads_and_removes)
{
    static hub_rig hub;
    served s;
    AUTO(str_free) str seen = {0};
    begin(&hub, &s);
    int fd = follow(&s, &seen);
    make(&s,
         &(call){"POST", "/models", "{\"model\":\"own/Model-GGUF\"}", 200, "{\"success\":true}"});
    CHECK(http_read_until(fd, &seen,
                          "{\"model\":\"own/Model-GGUF\",\"event\":\"download_finished\","
                          "\"data\":{\"name\":\"" NAME "\"}}\n\n"));
    CHECK(strstr(seen.at, "\"event\":\"download_progress\",\"data\":{\"progress\":{"
                          "\"Model-Q8_0.gguf\":{\"done\":"));
    make(&s,
         &(call){"GET", "/models", NULL, 200,
                 "\"id\":\"" NAME "\",\"object\":\"model\",\"created\":0,\"owned_by\":\"carat\","
                 "\"status\":{\"value\":\"unloaded\"},\"source\":\"cache\","
                 "\"can_remove\":true,\"size\":"});
    make(&s, &(call){"POST", "/models/load", "{\"model\":\"" NAME "\"}", 200, "true"});
    CHECK(http_read_until(
        fd, &seen, "\"" NAME "\",\"event\":\"model_status\",\"data\":{\"status\":\"loaded\"}"));
    CHECK(strstr(seen.at, "\"" NAME "\",\"event\":\"model_status\",\"data\":{\"status\":"
                          "\"loading\"}"));
    make(&s, &(call){"POST", "/models/unload", "{\"model\":\"" NAME "\"}", 200, "true"});
    CHECK(http_read_until(fd, &seen, "\"data\":{\"status\":\"unloaded\",\"exit_code\":0}"));
    /* One that is loaded leaves memory and disk. */
    make(&s, &(call){"POST", "/v1/chat/completions",
                     "{\"model\":\"" NAME "\",\"max_tokens\":2," ASK "}", 200, "choices"});
    make(&s, &(call){"DELETE", "/models?model=own%2FModel-GGUF%3AQ8_0", NULL, 200, "true"});
    CHECK(http_read_until(fd, &seen, "{\"model\":\"" NAME "\",\"event\":\"model_remove\"}"));
    await(&s, "/models", NAME, false);
    make(&s, &(call){"DELETE", "/models?model=own%2FModel-GGUF%3AQ8_0", NULL, 404, "no model"});
    close(fd);
    stop(&s);
    hub_rig_close(&hub);
}

TEST(router_shows_and_ends_pulls)
{
    static hub_rig hub;
    served s;
    begin(&hub, &s);
    hub.how.bytes_per_ms = 1;
    for (int i = 0; i < 2; i++) {
        make(&s, &(call){"POST", "/models", "{\"model\":\"own/Model-GGUF\"}", 200, "true"});
        await(&s, "/models", "\"value\":\"downloading\",\"progress\":{\"Model-Q8_0.gguf\":{", true);
        make(&s, &(call){"POST", "/models", "{\"model\":\"own/model-gguf\"}", 200, "true"});
        await(&s, "/v1/models", "Model-GGUF", false);
        if (i)
            make(&s, &(call){"DELETE", "/models?model=own/Model-GGUF", NULL, 200, "true"});
        else
            make(&s,
                 &(call){"POST", "/models/unload", "{\"model\":\"own/Model-GGUF\"}", 200, "true"});
        await(&s, "/models", "Model-GGUF", false);
    }
    /* A pull that fails later stays in the list, with the reason, until it is tried again. */
    hub.how.bytes_per_ms = 0;
    hub.how.other_bytes = true;
    make(&s, &(call){"POST", "/models", "{\"model\":\"own/Model-GGUF\"}", 200, "true"});
    await(&s, "/models", "\"value\":\"unloaded\",\"failed\":true,\"exit_code\":1,\"message\":\"",
          true);
    hub.how.other_bytes = false;
    make(&s, &(call){"POST", "/models", "{\"model\":\"own/Model-GGUF\"}", 200, "true"});
    await(&s, "/models", "\"" NAME "\"", true);
    await(&s, "/models", "\"failed\"", false);
    stop(&s);
    hub_rig_close(&hub);
}

TEST(router_refuses_in_sentences)
{
    static hub_rig hub;
    served s;
    begin(&hub, &s);
    const call calls[] = {
        {"POST", "/models", "{}", 400, "'model' is missing"},
        {"POST", "/models", "{\"model\":7}", 400, "'model' is"},
        {"POST", "/models", "{\"model\":\"own/Model-GGUF:Q3_K\"}", 400, "it has: Q8_0"},
        {"POST", "/models", "{\"model\":\"../x\"}", 400, "is no name"},
        {"POST", "/models", "{\"model\":\"nobody\"}", 400, "have an owner"},
        {"DELETE", "/models", NULL, 400, "'model' is missing"},
        {"DELETE", "/models?model=bundled", NULL, 404, "no model"},
        {"DELETE", "/models?model=..%2Fx", NULL, 404, "no model"},
        {"POST", "/models/unload", "{\"model\":\"own/Model-GGUF:Q8_0\"}", 404, "no model"},
    };
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        make(&s, &calls[i]);
    hub.how.portal = true;
    make(&s, &(call){"POST", "/models", "{\"model\":\"own/Model-GGUF\"}", 500, "not a hub"});
    stop(&s);
    start_toy(&s, ARGS("--host", "0.0.0.0"));
    make(&s, &(call){"POST", "/models", "{\"model\":\"own/Model-GGUF\"}", 403, "--api-key"});
    make(&s, &(call){"DELETE", "/models?model=x", NULL, 403, "--api-key"});
    stop(&s);
    hub_rig_close(&hub);
}

/* A pull that is over, whether it failed or not, is in the way of no other request for its model.
 */
TEST(router_takes_a_name_for_the_model_once_its_pull_is_over)
{
    static hub_rig hub;
    served s;
    AUTO(str_free) str seen = {0};
    begin(&hub, &s);
    int fd = follow(&s, &seen);
    make(&s, &(call){"POST", "/models", "{\"model\":\"" NAME "\"}", 200, "true"});
    CHECK(http_read_until(fd, &seen, "download_finished"));
    make(&s, &(call){"DELETE", "/models?model=" NAME, NULL, 200, "true"});
    await(&s, "/models", "Model-GGUF", false);
    make(&s, &(call){"POST", "/models", "{\"model\":\"" NAME "\"}", 200, "true"});
    await(&s, "/v1/models", NAME, true);
    make(&s, &(call){"POST", "/models/load", "{\"model\":\"" NAME "\"}", 200, "true"});
    await(&s, "/v1/models",
          "\"" NAME "\",\"object\":\"model\",\"created\":0,\"owned_by\":\"carat\","
          "\"status\":{\"value\":\"loaded\"}",
          true);
    /* The hub has another file of that name now, and it arrives damaged. */
    hub.file[0].oid[0] = hub.file[0].oid[0] == '0' ? '1' : '0';
    make(&s, &(call){"POST", "/models", "{\"model\":\"" NAME "\"}", 200, "true"});
    await(&s, "/models", "\"failed\":true", true);
    make(&s, &(call){"POST", "/models/unload", "{\"model\":\"" NAME "\"}", 200, "true"});
    await(&s, "/models", "\"failed\"", false);
    await(&s, "/v1/models", "\"status\":{\"value\":\"unloaded\"},\"source\":\"cache\"", true);
    close(fd);
    stop(&s);
    hub_rig_close(&hub);
}

/* Its file has another path after it was pulled again. */
TEST(router_finds_a_model_whose_file_was_renamed)
{
    static hub_rig hub;
    served s;
    begin(&hub, &s);
    make(&s, &(call){"POST", "/models", "{\"model\":\"" NAME "\"}", 200, "true"});
    await(&s, "/v1/models", NAME, true);
    hub.file[0].path = "Renamed-Q8_0.gguf";
    make(&s, &(call){"POST", "/models", "{\"model\":\"" NAME "\"}", 200, "true"});
    await(&s, "/models", "downloading", false);
    await(&s, "/v1/models", NAME, true);
    make(&s, &(call){"POST", "/v1/chat/completions",
                     "{\"model\":\"" NAME "\",\"max_tokens\":2," ASK "}", 200, "choices"});
    stop(&s);
    hub_rig_close(&hub);
}

TEST(router_removes_a_model_that_is_made_of_another)
{
    static hub_rig hub;
    served s;
    AUTO(str_free) str seen = {0};
    begin(&hub, &s);
    int fd = follow(&s, &seen);
    make(&s, &(call){"POST", "/models", "{\"model\":\"" NAME "\"}", 200, "true"});
    await(&s, "/v1/models", NAME, true);
    make(&s, &(call){"POST", "/api/create",
                     "{\"model\":\"brief\",\"from\":\"" NAME "\",\"system\":\"Be brief.\"}", 200,
                     "success"});
    make(&s, &(call){"GET", "/models", NULL, 200, "{\"id\":\"brief\""});
    make(&s, &(call){"DELETE", "/models?model=" NAME, NULL, 400, "brief is made of it"});
    make(&s, &(call){"DELETE", "/models?model=Brief", NULL, 200, "true"});
    CHECK(http_read_until(fd, &seen, "{\"model\":\"brief\",\"event\":\"model_remove\"}"));
    await(&s, "/models", "brief", false);
    make(&s, &(call){"DELETE", "/models?model=brief", NULL, 404, "no model"});
    close(fd);
    stop(&s);
    hub_rig_close(&hub);
}

/* ---- What a hub has ---- */

TEST(hub_search_takes_what_could_be_pulled)
{
    static hub_rig hub;
    served s;
    begin(&hub, &s);
    make(&s, &(call){"GET", "/hub/search?q=gemma%204%20%26x%3D", NULL, 200,
                     "{\"models\":[{\"id\":\"own/Model-GGUF\",\"downloads\":7,\"likes\":2,"
                     "\"changed\":\"2026-11-29\",\"gated\":true,\"here\":false}]}"});
    CHECK_MSG(strstr(hub.searched, "?search=gemma%204%20%26x%3D&filter=gguf&"), "%s", hub.searched);
    hub.how.hits = "[{\"id\":\"<script>alert(1)</script>/x\"}, {\"id\":\"../../etc\"}, "
                   "{\"id\":\"a/b\\u202e\"},"
                   "{\"id\":7}, 7, null, {}, {\"id\":\"noowner\"}, {\"id\":\"own/model-gguf\", "
                   "\"gated\":\"auto\","
                   "\"downloads\":-3, \"likes\":1e300, \"lastModified\":\"<b>2026-11\"},"
                   "{\"modelId\":\"own/Model-GGUF\"}]";
    make(&s, &(call){"GET", "/hub/search", NULL, 200,
                     "{\"models\":[{\"id\":\"own/model-gguf\",\"downloads\":0,\"likes\":0,"
                     "\"changed\":null,\"gated\":true,\"here\":false}]}"});
    static const char *const lies[] = {"{\"error\":\"x\"}", "<html>", "", "[",
                                       "[{\"id\":\"\xff\"}]"};
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        hub.how.hits = lies[i];
        make(&s, &(call){"GET", "/hub/search?q=x", NULL, 500,
                         "{\"error\":{\"message\":\"the hub's answer"});
    }
    hub.how.hits = NULL;
    hub.how.endless_hits = true;
    make(&s, &(call){"GET", "/hub/search?q=x", NULL, 500, "an answer of more than"});
    hub.how.endless_hits = false;
    hub.how.portal_to = "http://127.0.0.2:9/";
    make(&s, &(call){"GET", "/hub/search?q=x", NULL, 500, "redirects to 127.0.0.2:9"});
    stop(&s);
    hub_rig_close(&hub);
}

TEST(hub_fit_says_whether_a_model_runs_here)
{
    static hub_rig hub;
    served s;
    begin(&hub, &s);
    make(&s, &(call){"GET", "/hub/fit?model=own/Model-GGUF", NULL, 200,
                     "\"name\":\"" NAME "\",\"here\":false,\"runs\":true"});
    make(&s, &(call){"GET", "/hub/fit?model=own/Model-GGUF", NULL, 200, "\"loaded_bytes\":"});
    make(&s, &(call){"GET", "/hub/fit", NULL, 400, "'model' is missing"});
    make(&s, &(call){"GET", "/hub/fit?model=own/Model-GGUF:Q2_K", NULL, 400, "it has: Q8_0"});
    make(&s, &(call){"GET", "/hub/fit?model=%2Fetc%2Fpasswd", NULL, 400, "is no name"});
    make(&s, &(call){"POST", "/models", "{\"model\":\"" NAME "\"}", 200, "true"});
    await(&s, "/v1/models", NAME, true);
    make(&s, &(call){"GET", "/hub/fit?model=" NAME, NULL, 200, "\"here\":true,\"runs\":true"});
    stop(&s);
    hub_rig_close(&hub);
}

/* A server that is told to end while it pulls and a client watches. */
TEST(router_ends_with_pulls_at_work)
{
    static hub_rig hub;
    served s;
    AUTO(str_free) str seen = {0};
    begin(&hub, &s);
    hub.how.bytes_per_ms = 1;
    int fd = follow(&s, &seen);
    make(&s, &(call){"POST", "/models", "{\"model\":\"own/Model-GGUF\"}", 200, "true"});
    CHECK(http_read_until(fd, &seen, "download_progress"));
    double before = clock_ms();
    stop(&s);
    CHECK(clock_ms() - before < 10000);
    close(fd);
    hub_rig_close(&hub);
}
