/* recur_prompt_test.c - prompts of models with recurrent layers: how much of them is computed again
 * when they are repeated, edited, continued or kept on disk. Whatever it is, the logits are those
 * of a fresh session. */
#include "engine/engine_int.h"
#include "base/mem.h"
#include "base/rng.h"
#include "tests/recur_model.h"
#include "tests/test.h"

#include <dirent.h>
#include <unistd.h>

enum { CTX = RECUR_CTX };

PLAIN_TEST(recurrent_prompts_resume_at_the_checkpoint_before_the_change)
{
    enum { LONG = 5300, LONG_CTX = 5400 };
    static int32_t ids[LONG], other[LONG];
    uint64_t rng = test_seed();
    AUTO_MODEL *m = recur_model_open(NULL, NULL);
    AUTO_SESSION *s =
        recur_session(m, (carat_session_options){.n_ctx = LONG_CTX, .checkpoint_mb = 64});
    for (int32_t i = 0; i < LONG; i++)
        ids[i] = (int32_t)rng_below(&rng, 200); /* of bytes: no turns */
    CHECK_EQ(recur_like_fresh(s, ids, 200, LONG_CTX), 0);
    CHECK_EQ(recur_like_fresh(s, ids, 200, LONG_CTX), 199); /* the same prompt once more */
    CHECK_STR(carat_session_reuse(s, NULL), "restored");
    CHECK_EQ(recur_like_fresh(s, ids, 210, LONG_CTX), 200);
    CHECK_STR(carat_session_reuse(s, NULL), "extended");
    CHECK_EQ(recur_like_fresh(s, ids, 150, LONG_CTX), 0);
    CHECK_EQ(recur_like_fresh(s, ids, LONG, LONG_CTX), 210); /* what the last prompt discarded */
    memcpy(other, ids, sizeof ids);
    other[4600] ^= 1;
    CHECK_EQ(recur_like_fresh(s, other, 4700, LONG_CTX), 210 + 4096);
    other[1000] ^= 1;
    CHECK_EQ(recur_like_fresh(s, other, 1100, LONG_CTX), 210);
    other[205] ^= 1;
    CHECK_EQ(recur_like_fresh(s, other, 400, LONG_CTX), 200);
}

/* On a device that computes prompts in blocks, checkpoints of prompts are taken where a block ends,
 * if the pass did not begin inside it. */
PLAIN_TEST(recurrent_checkpoints_are_taken_between_blocks)
{
    enum { LONG = 4800, LONG_CTX = 4900 };
    static int32_t ids[LONG], other[LONG];
    uint64_t rng = test_seed();
    AUTO_MODEL *m = recur_model_open(NULL, NULL);
    m->dev->recur_block = 64;
    m->dev->recur_head = m->core.recur[0].dk;
    AUTO_SESSION *s =
        recur_session(m, (carat_session_options){.n_ctx = LONG_CTX, .checkpoint_mb = 64});
    for (int32_t i = 0; i < LONG; i++)
        other[i] = ids[i] = (int32_t)rng_below(&rng, 200); /* of bytes: no turns */
    CHECK_EQ(recur_like_fresh(s, ids, 200, LONG_CTX), 0);
    CHECK_EQ(recur_like_fresh(s, ids, 200, LONG_CTX), 192);
    CHECK_EQ(recur_like_fresh(s, ids, 210, LONG_CTX), 200);
    CHECK_EQ(recur_like_fresh(s, ids, 150, LONG_CTX), 0);
    CHECK_EQ(recur_like_fresh(s, ids, LONG, LONG_CTX), 210);
    other[4600] ^= 1;
    CHECK_EQ(recur_like_fresh(s, other, 4700, LONG_CTX), 4352); /* 210 + 4,096, and up */
}

/* A conversation: the tokens of turns, each begun by the mark. */
typedef struct talk {
    int32_t ids[CTX], n, mark;
} talk;

static void add_turn(talk *t, int32_t n, uint64_t *rng)
{
    t->ids[t->n++] = t->mark;
    for (int32_t i = 1; i < n; i++)
        t->ids[t->n++] = (int32_t)rng_below(rng, 200); /* of bytes: no mark */
}

PLAIN_TEST(recurrent_conversations_are_edited_regenerated_and_continued)
{
    AUTO_MODEL *m = recur_model_open(NULL, NULL);
    AUTO_SESSION *s = recur_session(m, (carat_session_options){.checkpoint_mb = 16});
    uint64_t rng = test_seed();
    talk t = {0}, other;
    err e = {0};
    AUTO_MEM recur_heard *h = mem_calloc(1, sizeof *h);
    CHECK(h);
    t.mark = vocab_mark(m->text, m->chat->family->turn_open);
    CHECK(t.mark >= 0);
    add_turn(&t, 60, &rng); /* system */
    add_turn(&t, 50, &rng); /* user */
    add_turn(&t, 4, &rng);  /* the answer's turn is opened */
    carat_generate_options o = recur_greedy(40);
    CHECK_OK(carat_generate(s, t.ids, t.n, &o, recur_hear, h, NULL, &e), e);
    CHECK_EQ(recur_like_fresh(s, t.ids, t.n, CTX), 110); /* regenerated */
    other = t;
    other.ids[80] ^= 1;
    CHECK_EQ(recur_like_fresh(s, other.ids, other.n, CTX), 60); /* edited */
    other.n = 60;
    add_turn(&other, 30, &rng);
    add_turn(&other, 4, &rng);
    CHECK_EQ(recur_like_fresh(s, other.ids, other.n, CTX),
             60); /* another with the same system prompt */
    /* The next turn: the answer is told without the thoughts at its beginning. */
    h->n = 0;
    CHECK_OK(carat_generate(s, t.ids, t.n, &o, recur_hear, h, NULL, &e), e);
    for (int32_t i = 10; i < 40; i++)
        t.ids[t.n++] = h->id[i] == t.mark ? 1 : h->id[i];
    add_turn(&t, 20, &rng);
    add_turn(&t, 4, &rng);
    CHECK(recur_like_fresh(s, t.ids, t.n, CTX) >= 110);
    CHECK_EQ(recur_like_fresh(s, t.ids, t.n, CTX), 110 + 4 + 30 + 20);
    t.ids[110 + 4 + 30 + 5] ^= 1;
    CHECK_EQ(recur_like_fresh(s, t.ids, t.n, CTX), 110 + 4 + 30);
}

/* Histories of edits in any budget equal fresh sessions. */
TEST(recurrent_histories_equal_fresh_sessions_in_any_budget)
{
    static const int32_t budget[] = {-1, 1, 64};
    uint64_t rng = test_seed();
    AUTO_MODEL *m = recur_model_open(NULL, NULL);
    for (size_t i = 0; i < sizeof budget / sizeof *budget; i++) {
        carat_session_options o = {
            .chunk = 50, .checkpoint_mb = budget[i], .kv_k = i == 1 ? "f32" : NULL};
        AUTO_SESSION *s = recur_session(m, o), *fresh = recur_session(m, o);
        int32_t ids[CTX], n = 0;
        float *a = mem_calloc((size_t)m->core.n_vocab, 2 * sizeof *a), *b = a + m->core.n_vocab;
        CHECK(a);
        for (int turn = 0; turn < (SANITIZED ? 8 : 25); turn++) {
            int32_t keep = (int32_t)rng_below(&rng, (uint64_t)n + 1);
            err e = {0};
            carat_cache_info info;
            n = rng_below(&rng, 3) ? n : keep;
            int32_t more = 1 + (int32_t)rng_below(&rng, 120);
            n = n + more <= CTX ? n : CTX - more;
            recur_draw(m, ids + n, more, &rng);
            n += more;
            CHECK_OK(carat_eval(s, ids, n, a, NULL, &e), e);
            carat_reset(fresh);
            CHECK_OK(carat_eval(fresh, ids, n, b, NULL, &e), e);
            CHECK_MSG(!memcmp(a, b, (size_t)m->core.n_vocab * sizeof *a),
                      "turn %d of %d tokens: %s", turn, n, carat_session_reuse(s, NULL));
            carat_session_cache(s, &info);
            CHECK(budget[i] < 0 || info.checkpoint_bytes <= (uint64_t)budget[i] << 20);
        }
        mem_free(a);
    }
}

/* The only file of the directory. */
static void only_file(const char *dir, char *path, size_t cap)
{
    DIR *d = opendir(dir);
    int n = 0;
    CHECK(d);
    for (struct dirent *x; (x = readdir(d));)
        if (x->d_name[0] != '.') {
            snprintf(path, cap, "%s/%s", dir, x->d_name);
            n++;
        }
    closedir(d);
    CHECK_EQ(n, 1);
}

TEST(recurrent_conversations_outlive_the_program)
{
    uint64_t rng = test_seed();
    AUTO_MODEL *m = recur_model_open(NULL, NULL);
    const char *dir = test_temp("kept");
    const carat_session_options o = {.cache_dir = dir, .checkpoint_mb = 16};
    int32_t ids[300];
    char path[1024];
    recur_draw(m, ids, 300, &rng);
    AUTO_SESSION *s = recur_session(m, o);
    CHECK_EQ(recur_like_fresh(s, ids, 300, CTX), 0);
    carat_session_close(s);
    only_file(dir, path, sizeof path);
    s = recur_session(m, o);
    CHECK_EQ(recur_like_fresh(s, ids, 300, CTX), 299);
    CHECK_STR(carat_session_reuse(s, NULL), "restored from disk");
    carat_session_close(s);
    ids[280] ^= 1; /* the file is of no use to this prompt: its state is that of 299 tokens */
    s = recur_session(m, o);
    CHECK_EQ(recur_like_fresh(s, ids, 300, CTX), 0);
    carat_session_close(s);
    ids[280] ^= 1;
    CHECK(!truncate(path, 5000));
    s = recur_session(m, o);
    CHECK_EQ(recur_like_fresh(s, ids, 300, CTX), 0);
    carat_cache_info info;
    carat_session_cache(s, &info);
    CHECK_EQ(info.n_rejected, 1);
}
