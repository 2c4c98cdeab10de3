/* logprobs_server_test.c - logprobs of prompts, rules on tokens and sparse attention, as clients of
 * `carat serve` see them. */
#include "tests/http_client.h"
#include "tests/server_rig.h"
#include "apps/server/dialects/request.h"

#define SCORED "\"temperature\":0,\"logprobs\":1,\"echo\":true"

static const jtree *ask(served *s, arena *mem, response *r, const char *body)
{
    http_post(r, s, "/v1/completions", body);
    CHECK_MSG(r->status == 200, "%s: %s", body, str_text(&r->body));
    return json_parsed(mem, r->body.at, r->body.n);
}

static const jtree *item(const jtree *list, size_t i)
{
    CHECK(jtree_is(list, JTREE_ARRAY) && i < list->count);
    const jtree *v = list->first;
    while (i--)
        v = v->next;
    return v;
}

static const jtree *first_choice(const jtree *v)
{
    return item(json_at(v, "choices"), 0);
}

/* What lm-evaluation-harness reads: the prompt's tokens and one more, the first without a number;
 * and each token's own number among the best, spelled alike. */
TEST(logprobs_of_a_prompt_come_with_its_echo)
{
    AUTO(stop) served s;
    AUTO(response_free) response r, again;
    AUTO(arena_free) arena mem = {0};
    start_toy(&s, NULL);
    static const char body[] = "{\"prompt\":[[9,10,11,12,13]],\"max_tokens\":1," SCORED "}";
    for (int round = 0; round < 2; round++) { /* the second over a cache that has the prompt */
        const jtree *v = first_choice(ask(&s, &mem, &r, body));
        const jtree *own = json_at(v, "logprobs.token_logprobs");
        const jtree *top = json_at(v, "logprobs.top_logprobs");
        const jtree *tokens = json_at(v, "logprobs.tokens");
        CHECK(own->count == 6 && top->count == 6 && tokens->count == 6);
        CHECK_EQ(json_at(v, "logprobs.text_offset")->count, 6);
        CHECK(jtree_is(own->first, JTREE_NULL) && jtree_is(top->first, JTREE_NULL));
        for (size_t i = 1; i < 6; i++) {
            const jtree *mine = jtree_get(item(top, i), item(tokens, i)->s);
            CHECK(mine && !strcmp(mine->s, item(own, i)->s) && strtod(mine->s, NULL) < 0);
        }
        response_free(&r);
    }
    const jtree *v = first_choice(
        ask(&s, &mem, &r, "{\"prompt\":[9,10,11],\"max_tokens\":0,\"prompt_logprobs\":2}"));
    const jtree *list = json_at(v, "prompt_logprobs");
    CHECK(list->count == 3 && jtree_is(list->first, JTREE_NULL));
    CHECK(tree_says(json_at(v, "text"), "") && tree_says(json_at(v, "finish_reason"), "length"));
    CHECK(jtree_get(item(list, 1), "10") && jtree_get(item(list, 2), "11"));
    http_post(&again, &s, "/v1/chat/completions",
              "{" ASK ",\"max_tokens\":2,\"prompt_logprobs\":0}");
    CHECK_EQ(again.status, 200);
    CHECK(json_at(json_parsed(&mem, again.body.at, again.body.n), "prompt_logprobs")->count > 3);
}

/* The items of all arrays under a path of a stream's chunks, and how many chunks have one. */
static size_t stream_items(arena *mem, const response *r, const char *path, str *out)
{
    size_t n = 0;
    for (const char *at = str_text(&r->body); (at = strstr(at, "data: {")); at++) {
        const char *json = at + 6;
        const jtree *v = json_at(json_parsed(mem, json, strcspn(json, "\n")), path);
        n += v && v->count;
        for (const jtree *i = v ? v->first : NULL; i; i = i->next)
            jtree_put_json(out, i), str_putc(out, ' ');
    }
    return n;
}

/* A stream's chunks have what the whole answer has, in this order. */
TEST(logprobs_of_prompts_and_answers_are_streamed)
{
    static const struct {
        const char *path, *body, *fields[4], *once;
    } cases[] = {
        {"/v1/completions",
         "{\"prompt\":[9,10,11,12,13],\"max_tokens\":3,\"prompt_logprobs\":1," SCORED "%s}",
         {"choices.0.logprobs.tokens", "choices.0.logprobs.token_logprobs",
          "choices.0.logprobs.text_offset", "choices.0.prompt_logprobs"},
         "choices.0.prompt_logprobs"},
        {"/v1/completions",
         "{\"prompt\":\"w\u00f6rter\",\"max_tokens\":0," SCORED "%s}",
         {"choices.0.logprobs.tokens", "choices.0.logprobs.text_offset"},
         NULL},
        {"/v1/completions",
         "{\"prompt\":[9,10,11],\"max_tokens\":1,\"prompt_logprobs\":0,\"temperature\":0%s}",
         {"choices.0.prompt_logprobs"},
         "choices.0.prompt_logprobs"},
        {"/v1/chat/completions",
         "{" ASK ",\"max_tokens\":3,\"temperature\":0,\"prompt_logprobs\":1%s}",
         {"prompt_logprobs"},
         "prompt_logprobs"},
        {"/v1/chat/completions",
         "{" ASK ",\"max_tokens\":6,\"temperature\":0,\"logprobs\":true,\"top_logprobs\":2%s}",
         {"choices.0.logprobs.content"},
         NULL}};
    AUTO(stop) served s;
    start_toy(&s, NULL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        AUTO(response_free) response whole, stream;
        AUTO(arena_free) arena mem = {0};
        char body[512];
        snprintf(body, sizeof body, cases[i].body, "");
        http_post(&whole, &s, cases[i].path, body);
        snprintf(body, sizeof body, cases[i].body, ",\"stream\":true");
        http_post(&stream, &s, cases[i].path, body);
        CHECK_MSG(whole.status == 200 && stream.status == 200, "%s", str_text(&stream.body));
        for (size_t k = 0; k < 4 && cases[i].fields[k]; k++) {
            AUTO(str_free) str want = {0}, got = {0};
            const jtree *v =
                json_at(json_parsed(&mem, whole.body.at, whole.body.n), cases[i].fields[k]);
            for (const jtree *t = v ? v->first : NULL; t; t = t->next)
                jtree_put_json(&want, t), str_putc(&want, ' ');
            CHECK(want.n);
            stream_items(&mem, &stream, cases[i].fields[k], &got);
            CHECK_STR(str_text(&got), str_text(&want));
        }
        AUTO(str_free) str ignored = {0};
        if (cases[i].once)
            CHECK_EQ(stream_items(&mem, &stream, cases[i].once, &ignored), 1);
    }
    /* Several answers to several prompts: each has its own chunk of the prompt, before its text. */
    AUTO(response_free) response r;
    http_post(&r, &s, "/v1/completions",
              "{\"prompt\":[[9,10],[11,12]],\"n\":2,\"max_tokens\":2,\"stream\":true," SCORED "}");
    CHECK_EQ(r.status, 200);
    for (int i = 0; i < 4; i++) {
        char first[64];
        snprintf(first, sizeof first, "\"choices\":[{\"index\":%d,", i);
        const char *at = strstr(r.body.at, first);
        CHECK(at && strstr(at, "\"token_logprobs\":[null,") < strchr(at, '\n'));
    }
}

TEST(rules_on_tokens_hold_in_answers)
{
    AUTO(stop) served s;
    AUTO(response_free) response r;
    AUTO(arena_free) arena mem = {0};
    char body[512];
    start_toy(&s, NULL);
    const jtree *v = first_choice(ask(&s, &mem, &r,
                                      "{\"prompt\":[9,10],\"max_tokens\":6,\"temperature\":0,"
                                      "\"logprobs\":1}"));
    const jtree *second = item(json_at(v, "logprobs.content"), 1);
    int64_t id;
    CHECK(tree_int(json_at(second, "id"), 0, INT32_MAX, &id));
    response_free(&r);
    snprintf(body, sizeof body,
             "{\"prompt\":[9,10],\"max_tokens\":6,\"temperature\":0,\"stop_token_ids\":[%d]}",
             (int)id);
    v = first_choice(ask(&s, &mem, &r, body));
    int64_t why;
    CHECK(tree_says(json_at(v, "finish_reason"), "stop"));
    CHECK(tree_int(json_at(v, "stop_reason"), id, id, &why));
    response_free(&r);
    snprintf(body, sizeof body,
             "{\"prompt\":[9,10],\"max_tokens\":6,\"temperature\":1,\"allowed_token_ids\":[%d],"
             "\"logprobs\":0,\"mirostat\":1,\"samplers\":[\"dry\",\"xtc\",\"temperature\"]}",
             (int)id);
    v = first_choice(ask(&s, &mem, &r, body));
    for (const jtree *t = json_at(v, "logprobs.content")->first; t; t = t->next)
        CHECK(tree_int(json_at(t, "id"), id, id, &why));
    response_free(&r);
    snprintf(body, sizeof body,
             "{\"prompt\":[9,10],\"allowed_token_ids\":[%d],\"logit_bias\":[[%d,false]]}", (int)id,
             (int)id);
    http_post(&r, &s, "/v1/completions", body);
    CHECK(r.status >= 400 && strstr(str_text(&r.body), "error"));
}

TEST(usage_says_whether_auto_left_keys_out)
{
    static const char *const setting[] = {"auto", "auto:5", "auto:6", "skip:7", "off"};
    static const char *const mode[] = {"off", "flash", "off", "skip", NULL};
    AUTO(stop) served s;
    AUTO(response_free) response r;
    AUTO(arena_free) arena mem = {0};
    start_toy(&s, ARGS("--sparse", "auto:4"));
    for (int i = -1; i < 5; i++) {
        char body[160];
        snprintf(body, sizeof body, "{\"prompt\":[9,10,11,12,13],\"max_tokens\":2%s%s%s}",
                 i < 0 ? "" : ",\"sparse\":\"", i < 0 ? "" : setting[i], i < 0 ? "" : "\"");
        const jtree *v = json_at(ask(&s, &mem, &r, body), "usage.sparse_attention");
        const char *want = i < 0 ? "flash" : mode[i];
        CHECK_MSG(want ? v && tree_says(json_at(v, "mode"), want) : !v, "%s", body);
        CHECK(!v || jtree_is(json_at(v, "auto"), i < 3 ? JTREE_TRUE : JTREE_FALSE));
        CHECK(!v || !jtree_get(v, "alpha") == (strcmp(want, "flash") != 0));
        response_free(&r);
    }
    CHECK(http_metric(&s, "carat_sparse_prompts_total") == 3);
    http_post(&r, &s, "/v1/completions", "{\"prompt\":[9],\"sparse\":\"auto:0\"}");
    CHECK(r.status == 400 && strstr(str_text(&r.body), "least length of a prompt"));
}
