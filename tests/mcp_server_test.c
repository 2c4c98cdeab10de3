/* mcp_server_test.c - tools of MCP servers behind `carat serve --mcp`: who may list and call them.
 */
#include "tests/mcp_rig.h"
#include "tests/server_rig.h"
#include "tests/spawn.h"

#include <unistd.h>

static int status_of(const served *s, const char *path, const char *headers, const char *body)
{
    AUTO(response_free) response r;
    http_call(&r, s, body ? "POST" : "GET", path, headers, body);
    int code = r.status;
    return code;
}

#define CALL "{\"name\":\"add\",\"arguments\":\"{\\\"a\\\":2,\\\"b\\\":40}\"}"

TEST(mcp_server_lists_and_calls_for_its_own_page)
{
    AUTO(stop) served s;
    response r;
    start_toy(&s, ARGS("--mcp", mcp_rig_file("plain"), "--tools-auto", "add", "--cors", "*"));
    http_call(&r, &s, "GET", "/mcp/tools", NULL, NULL);
    CHECK_EQ(r.status, 200);
    CHECK(strstr(r.body.at, "{\"name\":\"add\",\"server\":\"fake\",\"auto\":true,\"declared\":{"
                            "\"type\":\"function\""));
    CHECK(strstr(r.body.at, "{\"name\":\"echo\",\"server\":\"fake\",\"auto\":false"));
    response_free(&r);
    http_call(&r, &s, "POST", "/mcp/call", "Host: localhost\r\nOrigin: http://localhost\r\n", CALL);
    CHECK_EQ(r.status, 200);
    CHECK(strstr(r.body.at, "{\"content\":\"42\",\"is_error\":false}"));
    response_free(&r);
    http_call(&r, &s, "POST", "/mcp/call", NULL, "{\"name\":\"echo\",\"arguments\":\"[\"}");
    CHECK_EQ(r.status, 200);
    CHECK(strstr(r.body.at, "\"is_error\":true"));
    response_free(&r);
    CHECK_EQ(status_of(&s, "/mcp/call", NULL, "{\"name\":\"rm\"}"), 404);
    CHECK_EQ(status_of(&s, "/mcp/call", NULL, "{}"), 400);
    CHECK_EQ(status_of(&s, "/mcp/call", NULL, "{\"name\":\"add\",\"arguments\":{}}"), 400);
    /* A page of a stranger: --cors * lets it ask the model, and call no tool. */
    static const char *const strangers[] = {
        "Host: localhost\r\nOrigin: https://evil.example\r\n",
        "Host: localhost\r\nOrigin: null\r\n",
        "Host: localhost\r\nSec-Fetch-Site: cross-site\r\n",
        "Host: localhost\r\nSec-Fetch-Site: same-site\r\n",
        "Host: evil.example\r\n",
        "Host: evil.example\r\nOrigin: http://evil.example\r\n"};
    for (size_t i = 0; i < sizeof strangers / sizeof *strangers; i++) {
        CHECK_EQ(status_of(&s, "/mcp/call", strangers[i], CALL), 403);
        CHECK_EQ(status_of(&s, "/mcp/tools", strangers[i], NULL), 403);
    }
    CHECK_EQ(status_of(&s, "/v1/models", strangers[0], NULL), 200);
}

TEST(mcp_server_needs_its_key_and_no_tools_means_none)
{
    served s;
    response r;
    start_toy(&s, ARGS("--mcp", mcp_rig_file("plain"), "--api-key", "secret"));
    CHECK_EQ(status_of(&s, "/mcp/tools", NULL, NULL), 401);
    CHECK_EQ(status_of(&s, "/mcp/call", NULL, CALL), 401);
    CHECK_EQ(status_of(&s, "/mcp/call", "Authorization: Bearer secret\r\n", CALL), 200);
    stop(&s);
    start_toy(&s, NULL);
    http_call(&r, &s, "GET", "/mcp/tools", NULL, NULL);
    CHECK_STR(r.body.at, "{\"tools\":[]}");
    response_free(&r);
    CHECK_EQ(status_of(&s, "/mcp/call", NULL, CALL), 404);
    stop(&s);
    spawn_check(1, NULL, "there is no MCP server 'nome'",
                ARGS("serve", "-m", toy_model_write(NULL), "-p", "0", "--mcp", "nome"));
}

/* A chat with the tools that are offered, or with those that are left out. */
static int chat_with(const served *s, bool left_out, int *n)
{
    AUTO(arena_free) arena mem = {0};
    AUTO(response_free) response r;
    AUTO(str_free) str body = {0};
    http_call(&r, s, "GET", "/mcp/tools?model=toy", NULL, NULL);
    CHECK_MSG(r.status == 200, "%s", str_text(&r.body));
    const jtree *list = jtree_get(json_parsed(&mem, r.body.at, r.body.n), "tools");
    CHECK(list);
    str_puts(&body, "{" ASK ",\"max_tokens\":1,\"tools\":[");
    *n = 0;
    for (const jtree *v = list->first; v; v = v->next) {
        if ((jtree_get(v, "left_out") != NULL) != left_out)
            continue;
        str_puts(&body, (*n)++ ? "," : "");
        jtree_put_json(&body, jtree_get(v, "declared"));
    }
    str_puts(&body, "]}");
    response_free(&r);
    http_post(&r, s, "/v1/chat/completions", body.at);
    int code = r.status;
    return code;
}

/* Three servers with 202 tools each. */
static const char *crowds(void)
{
    const char *path = test_temp("crowds.json");
    AUTO(str_free) str text = {0};
    str_puts(&text, "{\"mcpServers\":{");
    for (int i = 0; i < 3; i++)
        str_printf(&text, "%s\"s%d\":{\"command\":\"%s\",\"args\":[\"--mcp-fake\",\"crowd\"]}",
                   i ? "," : "", i, mcp_rig_program());
    str_puts(&text, "}}");
    test_write(path, text.at, text.n);
    return path;
}

/* A tool that the model's format cannot tell is left out, with a sentence, and not the others. */
TEST(mcp_server_leaves_out_tools_that_the_model_cannot_be_told_of)
{
    AUTO(stop) served s;
    response r;
    int n;
    start_toy(&s, ARGS("--mcp", mcp_rig_file("quoted")));
    http_call(&r, &s, "GET", "/mcp/tools", NULL, NULL);
    CHECK(r.status == 200 && !strstr(r.body.at, "left_out")); /* no model was named */
    response_free(&r);
    http_call(&r, &s, "GET", "/mcp/tools?model=toy", NULL, NULL);
    const char *why = strstr(r.body.at, "\"left_out\":\"");
    CHECK(strstr(r.body.at, "\"name\":\"marks\"") && why && strstr(why, "which ends strings"));
    response_free(&r);
    CHECK_EQ(chat_with(&s, true, &n), 400);
    CHECK_EQ(n, 1);
    CHECK_EQ(chat_with(&s, false, &n), 200);
    CHECK_EQ(n, 2);
    stop(&s);
    served_start(&s, ARGS("-m", toy_model_write(&(toy_model_file){.n_ctx_train = 65536}), "-t", "1",
                          "--ctx", "60000", "--parallel", "1", "--mcp", crowds()));
    CHECK_EQ(chat_with(&s, false, &n), 200);
    CHECK_EQ(n, 512);
}

/* Who must not reach the tools starts none. */
TEST(mcp_server_looks_at_its_reach_first)
{
    spawn_check(1, NULL, "--mcp with --host 0.0.0.0 needs --api-key",
                ARGS("serve", "-m", toy_model_write(NULL), "-p", "0", "--host", "0.0.0.0", "--mcp",
                     mcp_rig_file("plain")));
    CHECK(access(test_temp("pid"), F_OK));
}
