/* pool_test.c - sessions whose keys have a pool smaller than their context, on the bundled model: a
 * question about a text four times as long as the pool, exactness while everything fits, options.
 */
#include "base/mem.h"
#include "base/str.h"
#include "carat_bench.h"
#include "tests/test.h"

#include <string.h>
#include <unistd.h>

enum { CTX = 9216, POOL = 2048 };

static int text_size(void)
{
    return test_brief() ? 4000 : 8000;
}

static carat_model *open_demo(void)
{
    const char *path = test_path("models/demo.gguf");
    carat_model *m;
    err e = {0};
    if (access(path, R_OK))
        test_skip("models/demo.gguf is not there");
    CHECK_OK(carat_model_open(path, NULL, &m, &e), e);
    return m;
}

static void read_text(str *to, int n_tokens)
{
    char command[1200], line[4096];
    snprintf(command, sizeof command, "sh '%s' %d", test_path("tools/demo_text.sh"), n_tokens);
    FILE *f = popen(command, "r");
    CHECK(f);
    for (size_t n; (n = fread(line, 1, sizeof line, f)) > 0;)
        str_put(to, line, n);
    CHECK_EQ(pclose(f), 0);
    while (to->n && to->at[to->n - 1] == '\n')
        str_cut(to, to->n - 1);
}

static bool keep_content(void *user, const carat_event *ev)
{
    if (ev->kind == CARAT_EV_CONTENT)
        str_put(user, ev->text, ev->n_text);
    return true;
}

/* The answer to a question behind the text, greedy. */
static void ask(carat_model *m, carat_session *s, const char *text, const char *question, str *to)
{
    AUTO(str_free) str messages = {0};
    AUTO(carat_chat_free) carat_chat prompt;
    err e = {0};
    str_printf(&messages, "[{\"role\":\"user\",\"content\":\"%s %s\"}]", text, question);
    CHECK_OK(carat_chat_render(m, str_text(&messages), NULL, NULL, &prompt, &e), e);
    carat_generate_options opt = {
        .max_tokens = 60, .parse = true, .starts_thinking = prompt.starts_thinking};
    carat_sampling_default(m, &opt.sampling);
    opt.sampling.temperature = 0;
    str_cut(to, 0);
    CHECK_OK(carat_generate(s, prompt.ids, prompt.n_ids, &opt, keep_content, to, NULL, &e), e);
}

PLAIN_TEST(pool_of_a_quarter_recalls_what_is_asked_for)
{
    AUTO_MODEL *m = open_demo();
    carat_session *s;
    carat_pool_info p;
    AUTO(str_free) str text = {0}, answer = {0};
    err e = {0};
    read_text(&text, text_size());
    CHECK_OK(
        carat_session_open(m, &(carat_session_options){.n_ctx = CTX, .kv_resident = POOL}, &s, &e),
        e);
    ask(m, s, str_text(&text), "What is the secret code of the copper lantern?", &answer);
    CHECK_MSG(strstr(str_text(&answer), "7306"), "answered \"%s\"", str_text(&answer));
    carat_session_get_pool(s, &p);
    CHECK(p.on && p.lossy && p.n_tokens == POOL && p.n_out > 0 && p.n_in > 0);
    CHECK_STR(p.policy, "scored");
    CHECK(p.n_paged_out > text_size() - 3000 && p.n_paged_out % 64 == 0);
    CHECK(p.host_bytes >= (uint64_t)p.n_paged_out / 64 * p.page_bytes);
    carat_session_close(s);
}

/* Once, at the end of the prompt: what is not chosen is nowhere any more. */
PLAIN_TEST(pool_of_snapkv_drops_for_good)
{
    AUTO_MODEL *m = open_demo();
    carat_session *s;
    carat_pool_info p;
    AUTO(str_free) str text = {0}, answer = {0};
    err e = {0};
    const carat_session_options o = {.n_ctx = CTX, .kv_resident = POOL, .kv_policy = "snapkv"};
    read_text(&text, text_size());
    CHECK_OK(carat_session_open(m, &o, &s, &e), e);
    ask(m, s, str_text(&text), "What is the secret code of the copper lantern?", &answer);
    CHECK_MSG(strstr(str_text(&answer), "7306"), "answered \"%s\"", str_text(&answer));
    carat_session_get_pool(s, &p);
    CHECK_STR(p.policy, "snapkv");
    CHECK_MSG(p.lossy && p.n_paged_out > text_size() - 3000 && p.host_bytes == 0,
              "lossy %d, %lld away, %llu on the host", p.lossy, (long long)p.n_paged_out,
              (unsigned long long)p.host_bytes);
    int64_t n = carat_session_n_past(s);
    CHECK(!carat_rewind(s, 1000)); /* exact tokens would need what was dropped */
    CHECK(carat_rewind(s, n - 1) && carat_session_n_past(s) == n - 1);
    ask(m, s, "The secret code of the copper lantern is 5110.",
        "What is the secret code of the copper lantern?", &answer);
    CHECK_MSG(strstr(str_text(&answer), "5110"), "answered \"%s\"", str_text(&answer));
    carat_session_get_pool(s, &p);
    CHECK(!p.lossy);
    carat_session_close(s);
}

PLAIN_TEST(pool_is_exact_while_everything_fits)
{
    enum { N = 900 };
    AUTO_MODEL *m = open_demo();
    int32_t ids[N];
    uint64_t rng = test_seed();
    carat_model_info info;
    carat_model_get_info(m, &info);
    AUTO_MEM float *a = mem_calloc((size_t)info.n_vocab, sizeof *a),
                   *b = mem_calloc((size_t)info.n_vocab, 4);
    CHECK(a && b);
    for (int i = 0; i < N; i++)
        ids[i] =
            32 + (int32_t)((rng = rng * 6364136223846793005u + 1442695040888963407u) >> 40) % 1500;
    for (int k = 0; k < 3; k++) {
        carat_session *one, *two;
        carat_pool_info p;
        err e = {0};
        /* As large as the context; larger; smaller, and the tokens fit. */
        const int32_t pool[] = {2048, 1 << 20, 1024};
        carat_session_options o = {
            .n_ctx = 2048, .chunk = 128, .kv_single = "off", .checkpoint_mb = -1};
        CHECK_OK(carat_session_open(m, &o, &one, &e), e);
        o.kv_resident = pool[k];
        CHECK_OK(carat_session_open(m, &o, &two, &e), e);
        CHECK_OK(carat_eval(one, ids, N, a, NULL, &e), e);
        CHECK_OK(carat_eval(two, ids, N, b, NULL, &e), e);
        CHECK(!memcmp(a, b, (size_t)info.n_vocab * sizeof *a));
        for (int i = 0; i < 64; i++) {
            CHECK_OK(carat_append(one, &ids[i], 1, false, a, &e), e);
            CHECK_OK(carat_append(two, &ids[i], 1, false, b, &e), e);
        }
        CHECK(!memcmp(a, b, (size_t)info.n_vocab * sizeof *a));
        carat_session_get_pool(two, &p);
        CHECK_EQ(p.on, k == 2);
        CHECK(!p.lossy);
        carat_session_close(one);
        carat_session_close(two);
    }
}

/* For measurements: tokens that count as computed. What comes after a reset is as if nothing had
 * been. */
TEST(pool_and_whole_context_pretend)
{
    enum { N = 3000 };
    AUTO_MODEL *m = open_demo();
    carat_model_info info;
    static int32_t ids[N + 1];
    err e = {0};
    carat_model_get_info(m, &info);
    size_t n_vocab = (size_t)info.n_vocab;
    AUTO_MEM float *x = mem_calloc(3 * n_vocab, sizeof *x);
    CHECK(x);
    for (int32_t i = 0; i <= N; i++)
        ids[i] = 100 + i % 1000;
    for (int pool = 0; pool < 2; pool++) {
        const carat_session_options o = {
            .n_ctx = 4096, .chunk = 256, .checkpoint_mb = -1, .kv_resident = pool ? 1024 : 0};
        AUTO_SESSION *s;
        carat_pool_info p;
        CHECK_OK(carat_session_open(m, &o, &s, &e), e);
        CHECK_EQ(carat_pretend(s, ids, 5000, &e), E_LIMIT);
        CHECK_OK(carat_eval(s, ids, 50, x, NULL, &e), e);
        CHECK_OK(carat_pretend(s, ids, N, &e), e);
        CHECK_EQ(carat_session_n_past(s), N);
        CHECK_OK(carat_append(s, ids + N, 1, false, x + n_vocab, &e), e);
        carat_session_get_pool(s, &p);
        CHECK_EQ(p.on, pool == 1);
        CHECK_EQ(p.n_out > 0, pool == 1);
        carat_reset(s);
        CHECK_OK(carat_eval(s, ids, 50, x + 2 * n_vocab, NULL, &e), e);
        CHECK(!memcmp(x, x + 2 * n_vocab, n_vocab * sizeof *x));
    }
}

TEST(pool_options_are_refused_with_a_sentence)
{
    static const struct {
        carat_session_options o;
        carat_status st;
        const char *says;
    } bad[] = {
        {{.n_ctx = 4096, .kv_resident = 100}, E_ARG, "too small"},
        {{.n_ctx = 4096, .kv_resident = -2}, E_ARG, "pool of -2"},
        {{.n_ctx = 4096, .kv_resident = 1024, .kv_policy = "best"}, E_ARG, "snapkv or drafter"},
        {{.n_ctx = 4096, .kv_resident = 1024, .kv_tau = -1}, E_ARG, "-1 tokens between"},
        {{.n_ctx = 4096, .kv_resident = 1024, .kv_host_mb = -1}, E_ARG, "-1 MiB"},
        {{.n_ctx = 4096, .kv_resident = 1024, .kv_pool = 512},
         E_ARG,
         "expected a larger --kv-pool"},
        {{.n_ctx = 4096, .kv_resident = 1024, .kv_pool = 2048}, E_ARG, "never hold more than 1024"},
    };
    AUTO_MODEL *m = open_demo();
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        carat_session *s;
        err e = {0};
        CHECK_EQ(carat_session_open(m, &bad[i].o, &s, &e), bad[i].st);
        CHECK_MSG(strstr(e.text, bad[i].says), "%s", e.text);
    }
}

TEST(pool_auto_says_how_it_was_chosen)
{
    AUTO_MODEL *m = open_demo();
    AUTO_SESSION *s;
    carat_pool_info p;
    err e = {0};
    CHECK_OK(
        carat_session_open(m, &(carat_session_options){.n_ctx = 32768, .kv_resident = -1}, &s, &e),
        e);
    carat_session_get_pool(s, &p);
    CHECK(p.n_tokens <= 16384 && p.n_tokens % 256 == 0);
    CHECK_MSG(strstr(p.why, "KiB a token"), "%s", p.why);
    carat_session_close(s);
    /* A pool as large as the context is none. */
    CHECK_OK(
        carat_session_open(m, &(carat_session_options){.n_ctx = 1024, .kv_resident = -1}, &s, &e),
        e);
    carat_session_get_pool(s, &p);
    CHECK(!p.on && !p.n_tokens);
    CHECK_STR(p.why, "the whole context of 1024 tokens");
}

TEST(pool_plan_counts_the_pool_alone)
{
    AUTO_MODEL *m = open_demo();
    carat_memory_plan whole, pool;
    err e = {0};
    CHECK_OK(
        carat_plan(m, &(carat_session_options){.n_ctx = 32768, .kv_single = "off"}, &whole, &e), e);
    CHECK_OK(
        carat_plan(m, &(carat_session_options){.n_ctx = 32768, .kv_resident = 2048}, &pool, &e), e);
    CHECK(pool.kv_global_bytes * 8 < whole.kv_global_bytes);
}

PLAIN_TEST(pool_ends_when_the_host_is_full)
{
    AUTO_MODEL *m = open_demo();
    AUTO_SESSION *s;
    AUTO(str_free) str text = {0};
    err e = {0};
    carat_session_options o = {.n_ctx = CTX, .kv_resident = 1024, .kv_host_mb = 1};
    CHECK_OK(carat_session_open(m, &o, &s, &e), e);
    read_text(&text, 8000);
    AUTO_MEM int32_t *ids = mem_alloc(CTX * sizeof *ids);
    CHECK(ids);
    int64_t n = carat_tokenize(m, text.at, text.n, CARAT_TOK_BOS, ids, CTX, &e);
    CHECK(n > 4000);
    CHECK_EQ(carat_eval(s, ids, n, NULL, NULL, &e), E_LIMIT);
    CHECK_MSG(strstr(e.text, "host memory"), "%s", e.text);
    CHECK(carat_session_n_past(s) >= 1024);
    /* The session lives on with a shorter prompt. */
    err again = {0};
    CHECK_OK(carat_eval(s, ids + 1, 500, NULL, NULL, &again), again);
}
