/* paging_test.c - which turns of a prompt stay in a pool that is smaller than the context. */
#include "engine/batch_int.h"
#include "tests/test.h"

#include <unistd.h>

enum { POOL = 2048, SYSTEM = 200, TEXT = 4000, QUESTION = 100, N = SYSTEM + TEXT + QUESTION + 5 };

static bool pinned(const carat_session *s, int64_t pos)
{
    return s->b.slot->t.kv.pager->r.page[pos / KV_PAGE].pinned;
}

/* A system prompt, a long turn, a question, and the answer's turn. */
PLAIN_TEST(pool_keeps_the_first_turn_and_the_last_question)
{
    const char *path = test_path("models/demo.gguf");
    AUTO_MODEL *m;
    AUTO_SESSION *s;
    static int32_t ids[N];
    err e = {0};
    if (access(path, R_OK))
        test_skip("models/demo.gguf is not there");
    CHECK_OK(carat_model_open(path, NULL, &m, &e), e);
    int32_t turn = vocab_mark(m->text, m->chat->family->turn_open);
    CHECK(turn >= 0);
    for (int32_t i = 0; i < N; i++)
        ids[i] = 100 + i % 1000;
    ids[1] = ids[SYSTEM] = ids[SYSTEM + TEXT] = ids[N - 4] = turn;
    CHECK_OK(
        carat_session_open(m, &(carat_session_options){.n_ctx = 8192, .kv_resident = POOL}, &s, &e),
        e);
    CHECK_OK(carat_eval(s, ids, N, NULL, NULL, &e), e);
    CHECK(pinned(s, 0) && pinned(s, SYSTEM - 1) && !pinned(s, SYSTEM + KV_PAGE));
    CHECK(pinned(s, SYSTEM + TEXT) && pinned(s, N - 5));
    for (int32_t p = 0; p <= (SYSTEM - 1) / KV_PAGE; p++)
        CHECK(s->b.slot->t.kv.pager->r.page[p].place >= 0);
    /* The long turn is the last one: nothing of it is pinned. */
    int32_t n = SYSTEM + TEXT + 4;
    ids[SYSTEM + TEXT] = turn;
    CHECK_OK(carat_eval(s, ids, n, NULL, NULL, &e), e);
    CHECK(!pinned(s, SYSTEM + TEXT / 2) && pinned(s, 0));
    /* A text without turns: what the one before had pinned is pinned no longer. */
    ids[0] = 99;
    ids[1] = 101;
    CHECK_OK(carat_eval(s, ids, SYSTEM, NULL, NULL, &e), e);
    CHECK(!pinned(s, 0));
}
