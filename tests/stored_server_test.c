/* stored_server_test.c - kept responses over HTTP: chains, paths, owners, `store`. */
#include "tests/server_rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GREEDY "\"temperature\":0,\"max_output_tokens\":8"

/* Posts a request of /v1/responses and copies the id of the response. Returns the cached tokens. */
static int respond(const served *s, const char *body, char id[64], str *text)
{
    AUTO(response_free) response r;
    AUTO(arena_free) arena mem = {0};
    http_post(&r, s, "/v1/responses", body);
    CHECK_MSG(r.status == 200, "%s: %s", body, r.body.at);
    snprintf(id, 64, "%s", text_at(&mem, &r, "id"));
    str_cut(text, 0);
    str_puts(text, text_at(&mem, &r, "output.0.content.0.text"));
    int cached = atoi(text_at(&mem, &r, "usage.input_tokens_details.cached_tokens"));
    return cached;
}

TEST(stored_server_continues_conversations)
{
    served s;
    AUTO(str_free) str first = {0}, second = {0}, whole = {0}, body = {0}, seen = {0};
    char a[64], b[64], c[64], tail[80];
    start_toy(&s, NULL);
    respond(&s, "{" GREEDY ",\"instructions\":\"Be short.\",\"input\":\"Say something.\"}", a,
            &first);
    str_printf(&body,
               "{" GREEDY ",\"instructions\":\"Be short.\",\"previous_response_id\":\"%s\","
               "\"input\":\"And then?\"}",
               a);
    int cached = respond(&s, body.at, b, &second);
    CHECK_MSG(cached > 8, "%d tokens were cached", cached);
    /* The same as if the client sends everything. */
    CHECK_EQ(call_response(&s, "GET", b, "/input_items?order=asc", NULL, &seen), 200);
    AUTO(arena_free) arena mem = {0};
    const jtree *all = json_parsed(&mem, seen.at, seen.n), *list = jtree_get(all, "data");
    CHECK_EQ(list->count, 3);
    CHECK_STR(jtree_get(all, "first_id")->s, jtree_get(list->first, "id")->s);
    CHECK_STR(jtree_get(all, "last_id")->s, jtree_get(list->first->next->next, "id")->s);
    str_cut(&body, 0);
    str_puts(&body, "{" GREEDY ",\"store\":false,\"instructions\":\"Be short.\",\"input\":");
    jtree_put_json(&body, list);
    str_puts(&body, "}");
    respond(&s, body.at, c, &whole);
    CHECK_STR(whole.at, second.at);
    CHECK_EQ(call_response(&s, "GET", c, "", NULL, &seen), 404); /* store: false */
    CHECK_EQ(call_response(&s, "GET", b, "", NULL, &seen), 200);
    CHECK(strstr(seen.at, b) && strstr(seen.at, a) && strstr(seen.at, "\"store\":true"));
    CHECK_EQ(call_response(&s, "GET", b, "/input_items?limit=1", NULL, &seen), 200);
    CHECK(strstr(seen.at, "And then?") && strstr(seen.at, "\"has_more\":true"));
    snprintf(tail, sizeof tail, "/input_items?limit=0");
    CHECK_EQ(call_response(&s, "GET", b, tail, NULL, &seen), 400);
    CHECK_EQ(call_response(&s, "GET", b, "?stream=true", NULL, &seen), 400);
    /* The middle of a chain may go. */
    CHECK_EQ(call_response(&s, "DELETE", a, "", NULL, &seen), 200);
    CHECK(strstr(seen.at, "\"deleted\":true"));
    CHECK_EQ(call_response(&s, "DELETE", a, "", NULL, &seen), 404);
    CHECK_EQ(call_response(&s, "GET", b, "/input_items", NULL, &seen), 200);
    CHECK(strstr(seen.at, "Say something."));
    response r;
    str_cut(&body, 0);
    str_printf(&body, "{\"input\":\"x\",\"previous_response_id\":\"%s\"}", a);
    http_post(&r, &s, "/v1/responses", body.at);
    CHECK(r.status == 400 && strstr(r.body.at, "previous_response_not_found"));
    response_free(&r);
    /* A stream is kept before its last event. */
    http_post(&r, &s, "/v1/responses", "{" GREEDY ",\"stream\":true,\"input\":\"Say something.\"}");
    const char *at = strstr(r.body.at, "\"id\":\"resp_");
    CHECK(at);
    snprintf(c, sizeof c, "%.*s", (int)strcspn(at + 6, "\""), at + 6);
    response_free(&r);
    CHECK_EQ(call_response(&s, "GET", c, "", NULL, &seen), 200);
    stop(&s);
}

/* Each refusal is one error, which names its field; what it is about stays. */
TEST(stored_server_refuses_by_name)
{
    static const struct {
        const char *method, *tail, *param;
        int code;
    } x[] = {
        {"GET", "?stream=true", "stream", 400},
        {"GET", "/input_items?stream=1", "stream", 400},
        {"GET", "/input_items?order=up", "order", 400},
        {"GET", "/input_items?limit=0", "limit", 400},
        {"GET", "/input_items?limit=101", "limit", 400},
        {"GET", "/input_items?limit=00001", "limit", 400},
        {"GET", "/input_items?limit=1x", "limit", 400},
        {"GET", "/other", "response_id", 404},
        {"GET", "x", "response_id", 404},
        {"GET", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "response_id",
         404},
        {"DELETE", "/input_items", "response_id", 404},
        {"DELETE", "/other", "response_id", 404},
        {"DELETE", "x", "response_id", 404},
        {"GET", "?stream=false", NULL, 200},
        {"GET", "/input_items?order=desc&limit=100", NULL, 200},
    };
    served s;
    AUTO(str_free) str text = {0}, seen = {0};
    char id[64];
    start_toy(&s, NULL);
    respond(&s, "{" GREEDY ",\"input\":\"Say something.\"}", id, &text);
    for (size_t i = 0; i < sizeof x / sizeof *x; i++) {
        AUTO(arena_free) arena mem = {0};
        int code = call_response(&s, x[i].method, id, x[i].tail, NULL, &seen);
        CHECK_MSG(code == x[i].code, "%s %s: %d", x[i].method, x[i].tail, code);
        const jtree *all = json_parsed(&mem, seen.at, seen.n), *param = json_at(all, "error.param");
        CHECK_MSG(x[i].param ? jtree_is(param, JTREE_STRING) && !strcmp(param->s, x[i].param)
                             : !jtree_get(all, "error"),
                  "%s %s: %s", x[i].method, x[i].tail, seen.at);
    }
    CHECK_EQ(call_response(&s, "DELETE", id, "", NULL, &seen), 200);
    stop(&s);
}

TEST(stored_server_keeps_keys_apart)
{
    served s;
    AUTO(str_free) str seen = {0};
    response r;
    AUTO(arena_free) arena mem = {0};
    const char *keys = test_temp("keys");
    static const char first[] = "Authorization: Bearer one\r\n", other[] = "X-Api-Key: two\r\n";
    FILE *f = fopen(keys, "we");
    CHECK(f && fputs("one\ntwo\n", f) >= 0 && !fclose(f));
    start_toy(&s, ARGS("--api-key-file", keys, "--responses", "1"));
    http_call(&r, &s, "POST", "/v1/responses", first, "{" GREEDY ",\"input\":\"x\"}");
    CHECK_EQ(r.status, 200);
    const char *id = text_at(&mem, &r, "id");
    response_free(&r);
    CHECK_EQ(call_response(&s, "GET", id, "", first, &seen), 200);
    CHECK_EQ(call_response(&s, "GET", id, "", other, &seen), 404);
    CHECK_EQ(call_response(&s, "DELETE", id, "", other, &seen), 404);
    CHECK_EQ(call_response(&s, "GET", id, "", NULL, &seen), 401);
    http_call(&r, &s, "POST", "/v1/responses", other, "{" GREEDY ",\"input\":\"x\"}");
    response_free(&r);
    CHECK_EQ(call_response(&s, "GET", id, "", first, &seen), 404); /* one is kept */
    stop(&s);
    start_toy(&s, ARGS("--responses", "0"));
    http_post(&r, &s, "/v1/responses", "{" GREEDY ",\"input\":\"x\"}");
    CHECK(strstr(r.body.at, "\"store\":false"));
    response_free(&r);
    CHECK_EQ(call_response(&s, "GET", id, "", NULL, &seen), 404);
    stop(&s);
}
