/* replay_test.c - prompts get the sampled tokens of unchanged calls, and of no others. */
#include "apps/server/answers/replay.h"
#include "base/mem.h"
#include "carat.h"
#include "tests/test.h"

enum { OPEN = 48, CLOSE = 49 };

static replay *open_replay(void)
{
    replay *r;
    err e = {0};
    CHECK_OK(replay_open(&r, &e), e);
    return r;
}

static int32_t *apply(replay *r, const char *messages, const int32_t *prompt, int64_t n_prompt,
                      int64_t *n)
{
    carat_talk *t;
    err e = {0};
    if (carat_talk_open(&t, messages, NULL, &e)) /* it has no prompt either */
        return NULL;
    int32_t *out = replay_apply(r, &(replay_prompt){t, prompt, n_prompt, OPEN, CLOSE}, n);
    carat_talk_close(t);
    return out;
}

#define CALL(id, args)                                                                             \
    "{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"" id                                        \
    "\",\"function\":{\"name\":\"f\",\"arguments\":" args "}}]}"

TEST(replay_puts_sampled_tokens_where_the_call_stands)
{
    static const int32_t sampled[] = {OPEN, 7, 8, 9, CLOSE},
                         prompt[] = {1, OPEN, 2, CLOSE, 3, OPEN, 4, CLOSE, 5};
    static const int32_t want[] = {1, OPEN, 2, CLOSE, 3, OPEN, 7, 8, 9, CLOSE, 5};
    static const char messages[] = "[" CALL("other", "{}") "," CALL("mine", "\"{\\\"b\\\": 2.0, "
                                                                            "\\\"a\\\":[1]}\"") "]";
    replay *r = open_replay();
    int32_t *out;
    int64_t n = 0;
    replay_put(r, "mine", "f", "{\"a\":[1],\"b\":2}", sampled, 5);
    out = apply(r, messages, prompt, 9, &n);
    CHECK(out);
    CHECK_EQ(n, 11);
    CHECK(!memcmp(out, want, sizeof want));
    mem_free(out);
    replay_close(r);
}

/* Some templates show a call in their text about tools; marks there need not pair. */
TEST(replay_passes_the_marks_of_the_text_about_tools)
{
    static const int32_t sampled[] = {OPEN, 7, CLOSE},
                         prompt[] = {1, OPEN, 2, OPEN, 3, CLOSE, 4, OPEN, 5, CLOSE, 6};
    static const int32_t want[] = {1, OPEN, 2, OPEN, 3, CLOSE, 4, OPEN, 7, CLOSE, 6};
    static const char messages[] = "[" CALL("mine", "{}") "]";
    replay *r = open_replay();
    int64_t n = 0;
    replay_put(r, "mine", "f", "{}", sampled, 3);
    int32_t *out = apply(r, messages, prompt, 11, &n);
    CHECK(out);
    CHECK_EQ(n, 11);
    CHECK(!memcmp(out, want, sizeof want));
    mem_free(out);
    replay_close(r);
}

TEST(replay_leaves_changed_calls_alone)
{
    static const int32_t sampled[] = {OPEN, 7, CLOSE}, prompt[] = {OPEN, 2, CLOSE};
    static const char *const changed[] = {
        "[" CALL("mine", "{\"a\":2}") "]",
        "[" CALL("mine", "{\"a\":1,\"b\":1}") "]",
        "[" CALL("mine", "{}") "]",
        "[" CALL("mine", "\"{\"") "]",
        "[" CALL("else", "{\"a\":1}") "]",
        "[]",
        "[" CALL("mine", "{\"a\":1}") "," CALL("mine",
                                               "{\"a\":1}") "]", /* more than in the prompt */
        "nothing"};
    replay *r = open_replay();
    replay_put(r, "mine", "f", "{\"a\":1}", sampled, 3);
    for (size_t i = 0; i < sizeof changed / sizeof *changed; i++) {
        int32_t *out;
        int64_t n;
        out = apply(r, changed[i], prompt, 3, &n);
        CHECK_MSG(!out, "%s", changed[i]);
    }
    replay_close(r);
}

TEST(replay_forgets_the_oldest)
{
    enum { N = 1 << 16 };
    static int32_t sampled[N];
    static const int32_t prompt[] = {OPEN, 2, CLOSE};
    replay *r = open_replay();
    for (int i = 0; i < 600; i++) { /* 256 KiB each: more than there is room for */
        char id[16];
        snprintf(id, sizeof id, "call%d", i);
        replay_put(r, id, "f", "{}", sampled, N);
    }
    for (int i = 0; i < 600; i += 599) {
        char messages[200];
        AUTO_MEM int32_t *out;
        int64_t n;
        snprintf(messages, sizeof messages, "[" CALL("call%d", "{}") "]", i);
        out = apply(r, messages, prompt, 3, &n);
        CHECK_EQ(out != NULL, i == 599);
    }
    replay_close(r);
}
