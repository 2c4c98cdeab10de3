/* checkpoint_test.c - a restored timeline continues like the original: snapshots at any position in
 * every format, and conversations that are edited, regenerated and switched, against fresh
 * sessions. */
#include "carat.h"
#include "base/mem.h"
#include "base/rng.h"
#include "tests/test.h"
#include "tests/toy_model.h"

#include <unistd.h>

enum { N_IDS = 400, CTX = 512 };

static const char *const formats[] = {"f16",  "bf16", "f32",    "q8_0",     "q4_0",  "q4_1",
                                      "q5_0", "q5_1", "iq4_nl", "q4_0+rot", "tq3_0", "q5_0+rot"};
enum { N_FORMATS = sizeof formats / sizeof *formats };

static carat_session *open_with(carat_model *m, carat_session_options o)
{
    carat_session *s;
    carat_error e = {0};
    CHECK_OK(carat_session_open(m, &o, &s, &e), e);
    return s;
}

static void same_logits(const float *a, const float *b, int32_t n, int64_t at)
{
    for (int32_t i = 0; i < n; i++)
        CHECK_MSG(!memcmp(&a[i], &b[i], sizeof *a), "%lld tokens, logit %d: %g, fresh %g",
                  (long long)at, i, a[i], b[i]);
}

/* s and a fresh session agree on the last row of ids[0..n). Returns what s reused. */
static int64_t like_fresh(carat_session *s, carat_model *m, const carat_session_options *o,
                          const int32_t *ids, int64_t n)
{
    size_t n_vocab = (size_t)toy_n_vocab(m);
    AUTO_MEM float *a = mem_calloc(n_vocab, sizeof *a), *b = mem_calloc(n_vocab, sizeof *b);
    carat_session_options plain = *o;
    int64_t n_reused = -1;
    carat_error e = {0};
    CHECK(a && b);
    plain.checkpoint_mb = -1;
    AUTO_SESSION *fresh = open_with(m, plain);
    CHECK_OK(carat_eval(s, ids, n, a, &n_reused, &e), e);
    CHECK_OK(carat_eval(fresh, ids, n, b, NULL, &e), e);
    same_logits(a, b, (int32_t)n_vocab, n);
    return n_reused;
}

/* ---- Snapshots ------------------------------------------------------------------------------- */

/* Positions before, at and after the window and the wrap; restored into a session with another ring
 * size that held other tokens. */
PLAIN_TEST(a_snapshot_goes_on_bit_for_bit_at_any_position)
{
    AUTO_MODEL *m = toy_model_open(&(toy_model_file){.wide_heads = true}, NULL);
    int32_t ids[N_IDS], other[N_IDS];
    carat_error e = {0};
    static const int64_t at[] = {1, 16, 17, 64, 127, 350};
    toy_random_ids(m, ids, N_IDS, test_seed());
    toy_random_ids(m, other, N_IDS, test_seed() + 1);
    for (int f = 0; f < N_FORMATS; f++)
        for (size_t k = 0; k < 2; k++) {
            size_t i = ((size_t)f + 3 * k) % (sizeof at / sizeof *at);
            carat_session_options from = {.n_ctx = CTX,
                                          .chunk = i % 2 ? 5 : 64,
                                          .kv_k = formats[f],
                                          .kv_v = formats[k ? f : (f + (int)i) % N_FORMATS],
                                          .kv_single = k ? "on" : "off",
                                          .checkpoint_mb = -1};
            carat_session_options to = from;
            to.chunk = i % 3 ? 17 : 1;
            to.n_ctx = CTX - 7;
            carat_session *s = open_with(m, from), *t = open_with(m, to);
            carat_snapshot *p;
            CHECK_OK(carat_eval(s, ids, at[i], NULL, NULL, &e), e);
            CHECK_OK(carat_snapshot_take(s, &p, &e), e);
            CHECK_EQ(carat_snapshot_n(p), at[i]);
            CHECK(carat_snapshot_bytes(p) > 0);
            CHECK_OK(carat_eval(t, other, 300, NULL, NULL, &e), e);
            CHECK_OK(carat_snapshot_restore(t, p, &e), e);
            CHECK_EQ(carat_session_n_past(t), at[i]);
            CHECK_EQ(like_fresh(t, m, &to, ids, at[i] + 1), at[i]);
            CHECK_EQ(like_fresh(t, m, &to, ids, at[i] + 40), at[i] + 1);
            CHECK_OK(carat_snapshot_restore(t, p, &e), e); /* the last token once more */
            CHECK_EQ(like_fresh(t, m, &to, ids, at[i]), at[i] - 1);
            carat_session_close(s); /* a snapshot outlives its session */
            CHECK_OK(carat_snapshot_restore(t, p, &e), e);
            if (at[i] > 40) { /* a rewind below the snapshot's windows is refused */
                CHECK(!carat_rewind(t, at[i] - 20));
                CHECK_EQ(like_fresh(t, m, &to, ids, at[i] - 20), 0);
            }
            carat_snapshot_free(p);
            carat_session_close(t);
        }
}

TEST(a_snapshot_is_refused_where_it_does_not_belong)
{
    carat_model *m = toy_model_open(NULL, NULL), *m2 = toy_model_open(NULL, NULL);
    carat_session *s = open_with(m, (carat_session_options){.n_ctx = CTX});
    carat_session *t[3] = {open_with(m, (carat_session_options){.n_ctx = CTX, .kv_v = "f32"}),
                           open_with(m, (carat_session_options){.n_ctx = 64}),
                           open_with(m2, (carat_session_options){.n_ctx = CTX})};
    int32_t ids[100];
    carat_snapshot *p;
    carat_error e = {0};
    toy_random_ids(m, ids, 100, 3);
    CHECK_STATUS(carat_snapshot_take(s, &p, &e), E_ARG); /* an empty session */
    CHECK(!p);
    err_clear(&e);
    CHECK_OK(carat_eval(s, ids, 100, NULL, NULL, &e), e);
    CHECK_OK(carat_snapshot_take(s, &p, &e), e);
    for (int i = 0; i < 3; i++) {
        CHECK_OK(carat_eval(t[i], ids, 10, NULL, NULL, &e), e);
        CHECK_STATUS(carat_snapshot_restore(t[i], p, &e), E_ARG);
        CHECK(strstr(e.text, i < 2 ? "100 tokens" : "cannot be restored"));
        CHECK_EQ(carat_session_n_past(t[i]), 10);
        err_clear(&e);
        carat_session_close(t[i]);
    }
    carat_snapshot_free(p);
    carat_session_close(s);
    carat_model_close(m);
    carat_model_close(m2);
}

/* ---- Conversations --------------------------------------------------------------------------- */

typedef struct {
    carat_model *m;
    int32_t turn;
    int32_t ids[CTX];
    int64_t n;
} talk;

static void say(talk *c, int64_t n, uint64_t seed)
{
    c->ids[c->n++] = c->turn;
    for (int64_t i = 1; i < n; i++) {
        int32_t id = (int32_t)rng_below(&seed, (uint64_t)toy_n_vocab(c->m));
        c->ids[c->n++] = id == c->turn ? id + 1 : id;
    }
}

/* A system prompt, a question, and where the answer begins. */
static talk begin_talk(carat_model *m, uint64_t seed)
{
    carat_error e = {0};
    talk c = {.m = m};
    CHECK_EQ(carat_tokenize(m, "<|turn>", 7, CARAT_TOK_SPECIAL, &c.turn, 1, &e), 1);
    say(&c, 60, 1);
    say(&c, 50, seed);
    say(&c, 3, 2);
    return c;
}

static carat_timings answer(carat_session *s, talk *c, int32_t n_tokens)
{
    carat_generate_options o = {.max_tokens = n_tokens};
    carat_timings t;
    carat_error e = {0};
    carat_sampling_default(c->m, &o.sampling);
    o.sampling.ignore_eog = true;
    CHECK_OK(carat_generate(s, c->ids, c->n, &o, NULL, NULL, &t, &e), e);
    return t;
}

PLAIN_TEST(a_regenerated_edited_or_switched_conversation_costs_only_new_tokens)
{
    AUTO_MODEL *m = toy_model_open(NULL, NULL);
    carat_session_options o = {.n_ctx = CTX, .chunk = 16};
    AUTO_SESSION *s = open_with(m, o);
    talk a = begin_talk(m, 10), b;
    CHECK_EQ(answer(s, &a, 120).n_reused, 0);
    carat_timings t =
        answer(s, &a, 120); /* regenerated from a checkpoint at the end of the prompt */
    CHECK_EQ(t.n_reused, a.n - 1);
    CHECK_STR(t.reuse, "restored");
    talk edited = a;
    edited.n = 60;
    say(&edited, 40, 77); /* another question after the same system prompt */
    say(&edited, 3, 2);
    t = answer(s, &edited, 120);
    CHECK_EQ(t.n_reused, 60);
    b = begin_talk(m, 20);
    t = answer(s, &b, 30);
    CHECK_EQ(t.n_reused, 60);
    say(&a, 30, 5); /* the first conversation again, with another answer in its history */
    say(&a, 3, 2);
    t = answer(s, &a, 100);
    CHECK_EQ(t.n_reused, 113);
    talk more = a;
    more.n -= 33;
    say(&more, 25, 6); /* its last question is edited */
    say(&more, 3, 2);
    t = answer(s, &more, 20);
    CHECK_EQ(t.n_reused, 113);
    CHECK_EQ(like_fresh(s, m, &o, a.ids, a.n), a.n - 1);
    CHECK_EQ(like_fresh(s, m, &o, b.ids, b.n), b.n - 1);
    CHECK_EQ(like_fresh(s, m, &o, edited.ids, edited.n), edited.n - 1);
    carat_cache_info info;
    carat_session_cache(s, &info);
    CHECK(info.n_checkpoints > 4 && info.checkpoint_bytes > 0);
}

/* Random histories that grow, are cut, edited and switched give the results of fresh sessions, with
 * a large, a small and no checkpoint budget. */
PLAIN_TEST(random_histories_equal_fresh_sessions_in_any_budget)
{
    AUTO_MODEL *m = toy_model_open(&(toy_model_file){.wide_heads = true}, NULL);
    uint64_t rng = test_seed();
    static const int32_t budget_mb[] = {0, 1, -1};
    for (int k = 0; k < N_FORMATS; k++) {
        carat_session_options o = {.n_ctx = CTX,
                                   .chunk = 1 + (int32_t)rng_below(&rng, 40),
                                   .kv_k = formats[k % N_FORMATS],
                                   .checkpoint_mb = budget_mb[k % 3]};
        AUTO_SESSION *s = open_with(m, o);
        talk c[3] = {begin_talk(m, 1), begin_talk(m, 2), begin_talk(m, 3)};
        int64_t reused = 0;
        for (int i = 0; i < (test_brief() ? 8 : 15); i++) {
            talk *x = &c[rng_below(&rng, 3)];
            if (x->n > CTX - 120 || rng_below(&rng, 4) == 0)
                x->n = 60 + (int64_t)rng_below(&rng, (uint64_t)x->n - 60);
            say(x, 1 + (int64_t)rng_below(&rng, 60), rng_next(&rng));
            say(x, 3, 2);
            reused += like_fresh(s, m, &o, x->ids, x->n);
            if (i % 3 == 0)
                answer(s, x, 1 + (int32_t)rng_below(&rng, 60));
            carat_cache_info info;
            carat_session_cache(s, &info);
            CHECK(o.checkpoint_mb <= 0 || info.checkpoint_bytes <= (uint64_t)o.checkpoint_mb << 20);
            CHECK(o.checkpoint_mb >= 0 || !info.n_checkpoints);
        }
        CHECK(reused > 0 || o.checkpoint_mb < 0); /* without checkpoints reuse is chance */
    }
}

/* If the n-th allocation fails, the call returns an error or the right answer. */
PLAIN_TEST(a_checkpoint_that_cannot_be_made_changes_nothing)
{
    AUTO_MODEL *m = toy_model_open(NULL, NULL);
    carat_session_options o = {.n_ctx = CTX, .chunk = 16};
    int32_t n_vocab = toy_n_vocab(m);
    talk a = begin_talk(m, 10), b = begin_talk(m, 20);
    AUTO_MEM float *want = mem_calloc((size_t)n_vocab, sizeof *want);
    AUTO_MEM float *got = mem_calloc((size_t)n_vocab, sizeof *got);
    carat_session *s = open_with(m, o);
    carat_error e = {0};
    CHECK(want && got);
    CHECK_OK(carat_eval(s, a.ids, a.n, want, NULL, &e), e);
    carat_session_close(s);
    for (int64_t n = 0;; n++) {
        s = open_with(m, o);
        mem_fail_after(n);
        err_clear(&e);
        const talk *const order[] = {&a, &b, &a};
        carat_status st = CARAT_OK;
        for (int i = 0; i < 3 && !st; i++)
            st = carat_eval(s, order[i]->ids, order[i]->n, got, NULL, &e);
        bool hit = mem_fail_hit();
        mem_fail_after(-1);
        CHECK_OK(st, e);
        same_logits(got, want, n_vocab, a.n);
        carat_session_close(s);
        if (!hit)
            break;
        CHECK(n < 1000);
    }
}

typedef struct {
    int64_t first, last;
    int n;
} counted;

static bool count_allocations(void *user, const carat_event *ev)
{
    counted *c = user;
    if (ev->kind == CARAT_EV_TOKEN) {
        c->last = mem_count();
        if (!c->n++)
            c->first = c->last;
    }
    return true;
}

/* The rings overwrite the end of the prompt during the answer; its rows are copied just before. */
TEST(a_checkpoint_in_the_middle_of_an_answer_allocates_nothing)
{
    AUTO_MODEL *m = toy_model_open(NULL, NULL);
    AUTO_SESSION *s = open_with(m, (carat_session_options){.n_ctx = CTX, .chunk = 4});
    talk a = begin_talk(m, 10);
    carat_generate_options o = {.max_tokens = 100};
    counted c = {0};
    carat_cache_info info;
    carat_error e = {0};
    carat_sampling_default(m, &o.sampling);
    o.sampling.ignore_eog = true;
    CHECK_OK(carat_eval(s, a.ids, a.n, NULL, NULL, &e), e);
    carat_session_cache(s, &info);
    CHECK_EQ(info.n_checkpoints,
             1); /* after the system prompt; the end of the prompt is still in the rings */
    CHECK_OK(carat_generate(s, a.ids, a.n, &o, count_allocations, &c, NULL, &e), e);
    CHECK_EQ(c.n, 100);
    CHECK_EQ(c.last - c.first, 0);
    carat_session_cache(s, &info);
    CHECK_EQ(info.n_checkpoints, 2);
}

/* The bundled model's windows are 128 tokens. A prompt of n tokens, then `more`, then another
 * prompt. Returns how many checkpoints that makes. */
static int32_t checkpoints_of(carat_model *m, int64_t n, int64_t more)
{
    const carat_session_options o = {.n_ctx = CTX, .chunk = 64, .checkpoint_mb = 64};
    AUTO_SESSION *s = open_with(m, o);
    int32_t ids[N_IDS], other[N_IDS];
    carat_cache_info info;
    carat_error e = {0};
    toy_random_ids(m, ids, N_IDS, 15);
    toy_random_ids(m, other, N_IDS, 16);
    CHECK_OK(carat_eval(s, ids, n, NULL, NULL, &e), e);
    CHECK_OK(carat_append(s, ids + n, more, false, NULL, &e), e);
    CHECK_OK(carat_eval(s, other, 40, NULL, NULL, &e), e);
    carat_session_cache(s, &info);
    CHECK_EQ(like_fresh(s, m, &o, ids, n), n - 1);               /* another answer */
    CHECK_EQ(like_fresh(s, m, &o, ids, n + more + 8), n + more); /* a turn after it */
    return info.n_checkpoints;
}

TEST(while_windows_have_all_tokens_a_prompt_and_its_answer_share_a_checkpoint)
{
    const char *path = test_path("models/demo.gguf");
    carat_error e = {0};
    AUTO_MODEL *m = NULL;
    if (access(path, R_OK))
        test_skip("models/demo.gguf is not there");
    CHECK_OK(carat_model_open(path, NULL, &m, &e), e);
    CHECK_EQ(checkpoints_of(m, 60, 40), 1);
    CHECK_EQ(checkpoints_of(m, 60, 68), 1);
    CHECK_EQ(checkpoints_of(m, 60, 69), 2); /* the later one lacks the first token */
    CHECK_EQ(checkpoints_of(m, 200, 60), 2);
}

/* The only page is shared with a checkpoint, and the next prompt parts from it inside that page. */
TEST(the_first_page_of_a_pool_is_left_by_checkpoints_too)
{
    AUTO_MODEL *m = toy_model_open(&(toy_model_file){.base = "dense"}, NULL);
    const carat_session_options o = {.n_ctx = 64, .checkpoint_mb = 16};
    AUTO_SESSION *s = open_with(m, o);
    int32_t ids[60], other[60];
    toy_random_ids(m, ids, 60, 5);
    toy_random_ids(m, other, 60, 6);
    memcpy(other, ids, 20 * sizeof *ids);
    like_fresh(s, m, &o, ids, 60);
    CHECK_EQ(like_fresh(s, m, &o, other, 60), 20);
}
