/* sparse_blocks_test.c - block selection in sessions and batches: a prompt's result does not depend
 * on chunks, on what was computed before, or on other requests.
 */
#include "carat.h"
#include "backend/sparse.h"
#include "base/mem.h"
#include "base/rng.h"
#include "tests/answers.h"
#include "tests/test.h"
#include "tests/toy_model.h"

enum { N_IDS = 1500, CTX = 2048 };

/* Keeps the forced blocks and the best one of each head. */
static const char *const lossy = "flash:1";

typedef struct {
    carat_model *m;
    int32_t n_vocab, ids[CTX];
    float *exact, *sparse, *got; /* [N_IDS][n_vocab] logits */
} fixture;

static carat_session *open_with(carat_model *m, carat_session_options o)
{
    carat_session *s;
    carat_error e = {0};
    CHECK_OK(carat_session_open(m, &o, &s, &e), e);
    return s;
}

static carat_session_options options(const char *sparse, int32_t chunk)
{
    int32_t outputs = chunk < SPARSE_TILE ? SPARSE_TILE : chunk;
    return (carat_session_options){
        .n_ctx = CTX, .chunk = chunk, .n_outputs = outputs, .sparse = sparse, .checkpoint_mb = -1};
}

static void eval(const fixture *f, carat_session_options o, int64_t n, float *to)
{
    carat_error e = {0};
    AUTO_SESSION *s = open_with(f->m, o);
    CHECK_OK(carat_append(s, f->ids, n, true, to, &e), e);
}

/* Logits from token `from` on; those of got begin there. */
static bool same_from(const fixture *f, const float *got, const float *want, int64_t from)
{
    size_t n = (size_t)(N_IDS - from) * (size_t)f->n_vocab;
    return !memcmp(got, want + (size_t)from * (size_t)f->n_vocab, n * sizeof *got);
}

static bool same(const fixture *f, const float *a, const float *b)
{
    return same_from(f, a, b, 0);
}

static fixture begin(void)
{
    fixture f = {
        .m = toy_model_open(&(toy_model_file){.wide_heads = true, .n_ctx_train = CTX}, NULL)};
    carat_model_info info;
    uint64_t rng = test_seed();
    carat_model_get_info(f.m, &info);
    f.n_vocab = info.n_vocab;
    for (int i = 0; i < CTX; i++)
        f.ids[i] = (int32_t)rng_below(&rng, (uint64_t)f.n_vocab);
    f.exact = mem_calloc((size_t)N_IDS * (size_t)f.n_vocab, sizeof *f.exact);
    f.sparse = mem_calloc((size_t)N_IDS * (size_t)f.n_vocab, sizeof *f.sparse);
    f.got = mem_calloc((size_t)N_IDS * (size_t)f.n_vocab, sizeof *f.got);
    CHECK(f.exact && f.sparse && f.got);
    return f;
}

static void end(fixture *f)
{
    mem_free(f->exact);
    mem_free(f->sparse);
    mem_free(f->got);
    carat_model_close(f->m);
}

TEST(block_selection_has_a_threshold_or_is_refused_with_a_sentence)
{
    AUTO(end) fixture f = begin();
    static const char *const bad[] = {"flash",      "flash:",    "flash:0",   "flash:-1",
                                      "flash:1.01", "flash:nan", "flash:.1x", "flash:inf"};
    carat_session_close(open_with(f.m, options("flash:1e-6", 0)));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        carat_session *s;
        carat_error e = {0};
        carat_session_options o = options(bad[i], 0);
        CHECK_EQ(carat_session_open(f.m, &o, &s, &e), CARAT_E_ARG);
        CHECK_MSG(!s && strstr(e.text, "sparse attention"), "'%s': %s", bad[i], e.text);
    }
    /* a request to a session of short passes */
    AUTO_SESSION *s = open_with(f.m, options(NULL, 64));
    carat_generate_options o = {
        .max_tokens = 1, .sampling = {.top_p = 1, .repeat_penalty = 1}, .sparse = "flash:0.1"};
    carat_timings t;
    carat_error e = {0};
    CHECK_EQ(carat_generate(s, f.ids, 300, &o, NULL, NULL, &t, &e), CARAT_E_ARG);
    CHECK_MSG(strstr(e.text, "--chunk"), "%s", e.text);
}

PLAIN_TEST(block_selection_does_not_depend_on_chunks)
{
    AUTO(end) fixture f = begin();
    static const int32_t chunks[] = {64, 200, CTX};
    static const char *const formats[] = {"q8_0", "tq3_0"};
    for (size_t k = 0; k < (test_brief() ? 1 : sizeof formats / sizeof *formats); k++) {
        carat_session_options o = options(lossy, 128);
        o.kv_k = formats[k];
        o.kv_single = k % 2 ? "on" : "off";
        eval(&f, o, N_IDS, f.sparse);
        for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
            o.chunk = chunks[i];
            o.n_outputs = chunks[i] < SPARSE_TILE ? SPARSE_TILE : chunks[i];
            eval(&f, o, N_IDS, f.got);
            CHECK_MSG(same(&f, f.got, f.sparse), "%s, chunks of %d", formats[k], chunks[i]);
        }
        o.sparse = NULL;
        eval(&f, o, N_IDS, f.exact);
        CHECK(!same(&f, f.exact, f.sparse));
        o.sparse = "flash:1e-37";
        eval(&f, o, N_IDS, f.got);
        CHECK_MSG(same(&f, f.got, f.exact), "%s, all kept", formats[k]);
    }
}

/* A longer prompt goes on from where the shorter one's last blocks begin, and no later; live, from
 * a checkpoint, and from a file. Its result is that of a fresh session. */
PLAIN_TEST(block_selection_reuses_only_what_a_fresh_session_would_compute)
{
    enum { SHORT = 1100 };
    AUTO(end) fixture f = begin();
    char dir[512];
    snprintf(dir, sizeof dir, "%s", test_temp("sparse_blocks"));
    eval(&f, options(lossy, 256), N_IDS, f.sparse);
    for (int how = 0; how < 3; how++) {
        carat_session_options o = options(lossy, 256);
        carat_error e = {0};
        int64_t n_reused;
        o.checkpoint_mb = how ? 64 : -1;
        o.cache_dir = how == 2 ? dir : NULL;
        AUTO_SESSION *s = open_with(f.m, o);
        CHECK_OK(carat_eval(s, f.ids, SHORT, NULL, NULL, &e), e);
        if (how == 1) /* the live rows go */
            CHECK_OK(carat_eval(s, f.ids + 7, 900, NULL, NULL, &e), e);
        if (how == 2) {
            carat_session_close(s);
            s = open_with(f.m, o);
        }
        CHECK_OK(carat_eval(s, f.ids, N_IDS, f.got, &n_reused, &e), e);
        CHECK_MSG(same_from(&f, f.got, f.sparse, N_IDS - 1), "way %d, reused %lld", how,
                  (long long)n_reused);
        CHECK_MSG(n_reused % SPARSE_TILE == 0 && n_reused <= sparse_fixed(SHORT), "reused %lld",
                  (long long)n_reused);
        CHECK_MSG(n_reused > 0 || !how, "way %d reuses nothing", how);
    }
}

static void ask(carat_session *s, const fixture *f, int64_t n, const char *sparse, answer *r)
{
    carat_error e = {0};
    const carat_generate_options o = {
        .max_tokens = 8,
        .sampling = {.top_p = 1, .repeat_penalty = 1, .ignore_eog = true},
        .sparse = sparse};
    *r = (answer){0};
    CHECK_OK(carat_generate(s, f->ids, n, &o, answer_heard, r, &r->t, &e), e);
}

/* The length of a prompt alone decides, and a prompt that is computed otherwise than the rows at
 * hand goes on from none of them. */
PLAIN_TEST(auto_selects_in_long_prompts_alone)
{
    enum { FROM = 1200 };
    static const int64_t length[] = {FROM - 1, FROM, N_IDS, 300};
    answer exact, flash, got;
    AUTO(end) fixture f = begin();
    carat_session *s = open_with(f.m, options("auto:1200", 256));
    AUTO_SESSION *plain = open_with(f.m, options(NULL, 256));
    for (int i = 0; i < 4; i++) {
        bool above = length[i] >= FROM;
        ask(plain, &f, length[i], NULL, &exact);
        ask(plain, &f, length[i], "flash:0.1", &flash);
        ask(s, &f, length[i], NULL, &got);
        CHECK(answer_same(&got, above ? &flash : &exact));
        CHECK(got.t.sparse_auto && !flash.t.sparse_auto && !exact.t.sparse_auto);
        CHECK(above ? !strcmp(got.t.sparse, "flash") : !got.t.sparse);
        CHECK(above ? got.t.n_tiles > 0 && got.t.sparse_value == 0.1f : !got.t.n_tiles);
        CHECK(got.t.n_reused == 0 || i == 2); /* the prompt before was of the same kind */
    }
    ask(s, &f, N_IDS, "off", &got);
    CHECK(!got.t.sparse && !got.t.sparse_auto);
    ask(plain, &f, N_IDS, "auto:1500", &got);
    CHECK(got.t.sparse && got.t.sparse_auto);
    carat_session_close(s);
    carat_session_close(plain);
    plain = open_with(f.m, options(NULL, 64)); /* passes too short for it: "auto" stays exact */
    ask(plain, &f, 300, "auto:100", &got);
    CHECK(!got.t.sparse && got.t.sparse_auto);
}

TEST(auto_is_described_and_wrong_lengths_are_refused)
{
    static const char *const bad[] = {"auto:",    "auto:0", "auto:-5",  "auto:1.5",
                                      "auto:9e9", "auto:x", "automatic"};
    char text[320];
    carat_error e = {0};
    AUTO(end) fixture f = begin();
    CHECK_OK(carat_sparse_describe(f.m, NULL, text, sizeof text, &e), e);
    CHECK(!strcmp(text, "off"));
    CHECK_OK(carat_sparse_describe(f.m, "auto:70000", text, sizeof text, &e), e);
    CHECK(!strcmp(text, "flash:0.1 in prompts of 70000 tokens or more"));
    CHECK_OK(carat_sparse_describe(f.m, "skip:7", text, sizeof text, &e), e);
    CHECK(!strcmp(text, "skip:7 in every prompt and answer"));
    CHECK_OK(carat_sparse_describe(f.m, "auto", text, sizeof text, &e), e);
    CHECK_MSG(!strncmp(text, "off: in heads of ", 17), "%s", text); /* a toy's heads */
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        e = (carat_error){0};
        CHECK_EQ(carat_sparse_describe(f.m, bad[i], text, sizeof text, &e), CARAT_E_ARG);
        CHECK_MSG(strstr(e.text, "sparse attention"), "'%s': %s", bad[i], e.text);
    }
}

/* Requests of both kinds at once; answers are those of sessions alone, and the account says what
 * was left out. */
PLAIN_TEST(block_selection_in_a_batch_is_that_of_a_session)
{
    enum { JOBS = 5 };
    static answer alone[3], r[JOBS];
    AUTO(end) fixture f = begin();
    carat_error e = {0};
    AUTO_BATCH *b;
    carat_generate_options o = {.max_tokens = 8,
                                .sampling = {.top_p = 1, .repeat_penalty = 1, .ignore_eog = true}};
    for (int i = 0; i < 3; i++) {
        AUTO_SESSION *s = open_with(f.m, options(NULL, 256));
        o.sparse = i ? lossy : NULL;
        CHECK_OK(
            carat_generate(s, f.ids, N_IDS - 100 * i, &o, answer_heard, &alone[i], &alone[i].t, &e),
            e);
        CHECK(!i || !strcmp(alone[i].t.sparse, "flash"));
        CHECK(!i || alone[i].t.n_tiles > alone[i].t.n_tiles_kept);
    }
    const carat_batch_options bo = {.session = options(NULL, 256), .n_slots = 2};
    CHECK_OK(carat_batch_open(f.m, &bo, &b, &e), e);
    for (int i = 0; i < JOBS; i++) {
        o.sparse = i % 3 ? lossy : NULL;
        const carat_job job = {.ids = f.ids,
                               .n = N_IDS - 100 * (i % 3),
                               .opt = &o,
                               .fn = answer_heard,
                               .done = answer_done,
                               .user = &r[i]};
        CHECK_OK(carat_batch_submit(b, &job, NULL, NULL, &e), e);
    }
    while (carat_batch_step(b))
        ;
    for (int i = 0; i < JOBS; i++) {
        CHECK_EQ(r[i].n_done, 1);
        CHECK_OK(r[i].st, r[i].e);
        CHECK_MSG(answer_same(&r[i], &alone[i % 3]), "job %d", i);
    }
}
