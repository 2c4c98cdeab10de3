/* sparse_test.c - attention that leaves keys out, in sessions and batches: settings, chunks, and
 * above all that no exact prompt goes on from lossy keys. */
#include "carat.h"
#include "base/mem.h"
#include "base/rng.h"
#include "tests/answers.h"
#include "tests/test.h"
#include "tests/toy_model.h"

enum { N_IDS = 420, CTX = 512 };

/* Drops every tile that does not raise the largest score: a toy's logits then differ from the exact
 * ones. */
static const char *const lossy = "skip:1000000";

typedef struct {
    carat_model *m;
    int32_t n_vocab, ids[CTX];
    float *exact, *sparse, *got; /* logits after ids[0 .. N_IDS) */
} fixture;

static carat_session *open_with(carat_model *m, carat_session_options o)
{
    carat_session *s;
    carat_error e = {0};
    CHECK_OK(carat_session_open(m, &o, &s, &e), e);
    return s;
}

static carat_session_options options(const char *sparse)
{
    return (carat_session_options){.n_ctx = CTX, .chunk = 64, .sparse = sparse};
}

static void eval(const fixture *f, carat_session_options o, float *to)
{
    carat_error e = {0};
    o.checkpoint_mb = -1;
    AUTO_SESSION *s = open_with(f->m, o);
    CHECK_OK(carat_eval(s, f->ids, N_IDS, to, NULL, &e), e);
}

static bool same(const fixture *f, const float *a, const float *b)
{
    return !memcmp(a, b, (size_t)f->n_vocab * sizeof *a);
}

static fixture begin(void)
{
    fixture f = {.m = toy_model_open(&(toy_model_file){.wide_heads = true}, NULL)};
    carat_model_info info;
    uint64_t rng = test_seed();
    carat_model_get_info(f.m, &info);
    f.n_vocab = info.n_vocab;
    for (int i = 0; i < CTX; i++)
        f.ids[i] = (int32_t)rng_below(&rng, (uint64_t)f.n_vocab);
    f.exact = mem_calloc((size_t)f.n_vocab, sizeof *f.exact);
    f.sparse = mem_calloc((size_t)f.n_vocab, sizeof *f.sparse);
    f.got = mem_calloc((size_t)f.n_vocab, sizeof *f.got);
    CHECK(f.exact && f.sparse && f.got);
    eval(&f, options(NULL), f.exact);
    eval(&f, options(lossy), f.sparse);
    CHECK(!same(&f, f.exact, f.sparse));
    return f;
}

static void end(fixture *f)
{
    mem_free(f->exact);
    mem_free(f->sparse);
    mem_free(f->got);
    carat_model_close(f->m);
}

TEST(sparse_settings_are_read_or_refused_with_a_sentence)
{
    AUTO_MODEL *m = toy_model_open(&(toy_model_file){.wide_heads = true}, NULL);
    static const char *const good[] = {"off", "skip:0", "skip:1e-3", "skip:587", "skip:1000000"};
    static const char *const bad[] = {"",         "on",       "skip",     "skip:",   "skip:x",
                                      "skip:-1",  "skip:1e7", "skip:nan", "skip:1 ", "skip:inf",
                                      "flush:.1", "skip:1x",  "Skip:1"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        carat_session_close(open_with(m, options(good[i])));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        carat_session *s;
        carat_error e = {0};
        carat_session_options o = options(bad[i]);
        CHECK_EQ(carat_session_open(m, &o, &s, &e), CARAT_E_ARG);
        CHECK_MSG(!s && strstr(e.text, "sparse attention"), "'%s': %s", bad[i], e.text);
        carat_memory_plan plan, before;
        memset(&plan, 0x5a, sizeof plan);
        before = plan;
        CHECK_EQ(carat_plan(m, &o, &plan, NULL), CARAT_E_ARG);
        CHECK(!memcmp(&plan, &before, sizeof plan));
    }
}

/* Chunks do not change a row's bits; a scale under which nothing falls, and 0, are the exact model
 * bit for bit. */
PLAIN_TEST(sparse_prompts_do_not_depend_on_chunks_and_small_scales_are_exact)
{
    AUTO(end) fixture f = begin();
    static const int32_t chunks[] = {1, 7, 64, 128, CTX};
    static const char *const formats[] = {"f32", "f16", "bf16", "q8_0", "q4_0+rot", "tq3_0"};
    for (size_t k = 0; k < sizeof formats / sizeof *formats; k++) {
        carat_session_options o = options(lossy);
        o.kv_k = formats[k];
        o.kv_single = k % 2 ? "on" : "off";
        eval(&f, o, f.sparse);
        for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
            o.chunk = chunks[i];
            eval(&f, o, f.got);
            CHECK_MSG(same(&f, f.got, f.sparse), "%s, chunks of %d", formats[k], chunks[i]);
        }
        o.sparse = NULL;
        eval(&f, o, f.exact);
        CHECK(!same(&f, f.exact, f.sparse));
        o.sparse = k % 2 ? "skip:0" : "skip:1e-30";
        eval(&f, o, f.got);
        CHECK_MSG(same(&f, f.got, f.exact), "%s at %s", formats[k], o.sparse);
    }
}

/* What a session says it left out. */
TEST(sparse_sessions_count_what_they_leave_out)
{
    AUTO(end) fixture f = begin();
    carat_error e = {0};
    carat_sparse_layer x[64];
    carat_session *s = open_with(f.m, options(lossy)), *t = open_with(f.m, options("off"));
    CHECK_EQ(carat_session_sparse(s, x, 64, false), 0);
    CHECK_OK(carat_eval(s, f.ids, N_IDS, NULL, NULL, &e), e);
    int32_t n = carat_session_sparse(s, x, 64, false);
    CHECK(n > 0 && n < 64);
    for (int32_t i = 0; i < n; i++) {
        uint64_t pairs = 0;
        for (int b = 0; b < CARAT_SPARSE_BINS; b++)
            pairs += x[i].bin[b];
        CHECK(pairs > 0 && pairs <= x[i].n_kept && x[i].n_kept <= x[i].n_tiles);
        CHECK(x[i].dropped_p50 <= x[i].dropped_p99 && x[i].dropped_p99 <= x[i].dropped_max);
        CHECK(x[i].dropped_max <= 1);
    }
    CHECK_EQ(carat_session_sparse(s, NULL, 0, true), n);
    CHECK_EQ(carat_session_sparse(s, NULL, 0, false), 0);
    CHECK_OK(carat_eval(t, f.ids, N_IDS, NULL, NULL, &e), e);
    CHECK_EQ(carat_session_sparse(t, x, 64, false), 0);
    carat_session_close(s);
    carat_session_close(t);
}

static const carat_generate_options *asking(const char *sparse, carat_generate_options *o)
{
    *o = (carat_generate_options){.max_tokens = 12,
                                  .sampling = {.top_p = 1, .repeat_penalty = 1, .ignore_eog = true},
                                  .sparse = sparse};
    return o;
}

static void generate(carat_session *s, const fixture *f, int64_t n, const char *sparse, answer *r)
{
    carat_generate_options o;
    carat_error e = {0};
    *r = (answer){0};
    CHECK_OK(carat_generate(s, f->ids, n, asking(sparse, &o), answer_heard, r, &r->t, &e), e);
}

/* One session, prompts of both kinds in turn: each goes on from rows of its own kind alone, live or
 * from a checkpoint. */
PLAIN_TEST(an_exact_prompt_never_reuses_what_a_lossy_one_computed)
{
    AUTO(end) fixture f = begin();
    answer fresh[2], r;
    for (int k = 0; k < 2; k++) {
        carat_session_options o = options(k ? lossy : NULL);
        o.checkpoint_mb = -1;
        AUTO_SESSION *s = open_with(f.m, o);
        generate(s, &f, N_IDS, NULL, &fresh[k]);
        CHECK((fresh[k].t.sparse != NULL) == k);
        CHECK(k ? fresh[k].t.n_tiles > fresh[k].t.n_tiles_kept : !fresh[k].t.n_tiles);
        CHECK(fresh[k].t.sparse_value == (k ? 1e6f : 0));
    }
    for (int store = 0; store < 2; store++) {
        carat_session_options o = options(NULL);
        o.checkpoint_mb = store ? 64 : -1;
        AUTO_SESSION *s = open_with(f.m, o);
        for (int i = 0; i < 6; i++) {
            int k = i % 2;
            generate(s, &f, N_IDS, k ? lossy : i % 4 ? "off" : NULL, &r);
            CHECK(answer_same(&r, &fresh[k]));
            CHECK_MSG(store && i > 1 ? r.t.n_reused > 0 : !r.t.n_reused, "prompt %d reuses %lld", i,
                      (long long)r.t.n_reused);
        }
        /* the same kind again: the live rows serve */
        generate(s, &f, N_IDS, lossy, &r);
        CHECK(answer_same(&r, &fresh[1]) && r.t.n_reused > 0);
    }
}

/* Snapshots carry their kind: whoever restores one goes on in it, and an exact prompt after that
 * begins anew. */
PLAIN_TEST(a_lossy_snapshot_stays_lossy)
{
    AUTO(end) fixture f = begin();
    carat_error e = {0};
    int64_t n_reused;
    carat_snapshot *p;
    carat_session *s = open_with(f.m, options(lossy)), *t = open_with(f.m, options(NULL));
    CHECK_OK(carat_eval(s, f.ids, N_IDS - 20, NULL, NULL, &e), e);
    CHECK_OK(carat_snapshot_take(s, &p, &e), e);
    CHECK_OK(carat_snapshot_restore(t, p, &e), e);
    CHECK_OK(carat_append(t, f.ids + N_IDS - 20, 20, false, f.got, &e), e);
    CHECK(same(&f, f.got, f.sparse));
    CHECK_OK(carat_snapshot_restore(t, p, &e), e);
    CHECK_OK(carat_eval(t, f.ids, N_IDS, f.got, &n_reused, &e), e);
    CHECK(same(&f, f.got, f.exact));
    CHECK_EQ(n_reused, 0);
    carat_snapshot_free(p);
    carat_session_close(s);
    carat_session_close(t);
}

/* Files of one directory, written by sessions of both kinds. */
PLAIN_TEST(lossy_files_serve_lossy_prompts_alone)
{
    AUTO(end) fixture f = begin();
    char dir[512];
    snprintf(dir, sizeof dir, "%s", test_temp("sparse"));
    for (int i = 0; i < 6; i++) {
        int k = (i + 1) % 2; /* lossy first */
        carat_session_options o = options(k ? lossy : NULL);
        carat_error e = {0};
        int64_t n_reused;
        o.cache_dir = dir;
        AUTO_SESSION *s = open_with(f.m, o);
        CHECK_OK(carat_eval(s, f.ids, N_IDS, f.got, &n_reused, &e), e);
        CHECK(same(&f, f.got, k ? f.sparse : f.exact));
        CHECK_MSG(i < 2 ? !n_reused : n_reused > 0, "session %d reuses %lld", i,
                  (long long)n_reused);
    }
}

/* A batch with requests of both kinds at once, more than slots: every answer is that of a session
 * alone. */
PLAIN_TEST(a_batch_keeps_lossy_and_exact_requests_apart)
{
    enum { JOBS = 9 };
    AUTO(end) fixture f = begin();
    static answer fresh[3][2], r[JOBS];
    carat_error e = {0};
    AUTO_BATCH *b;
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 2; k++) {
            carat_session_options o = options(NULL);
            o.checkpoint_mb = -1;
            AUTO_SESSION *s = open_with(f.m, o);
            generate(s, &f, N_IDS - 90 * i, k ? lossy : NULL, &fresh[i][k]);
        }
    const carat_batch_options bo = {.session = options(NULL), .n_slots = 3};
    CHECK_OK(carat_batch_open(f.m, &bo, &b, &e), e);
    for (int i = 0; i < JOBS; i++) {
        carat_generate_options o;
        const carat_job job = {.ids = f.ids,
                               .n = N_IDS - 90 * (i % 3),
                               .opt = asking(i % 2 ? lossy : NULL, &o),
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
        CHECK_MSG(answer_same(&r[i], &fresh[i % 3][i % 2]), "job %d", i);
        CHECK((r[i].t.sparse != NULL) == i % 2);
    }
    carat_batch_info info;
    carat_batch_get_info(b, &info, NULL, 0);
    CHECK(info.n_tiles > info.n_tiles_kept && info.n_tiles_kept > 0);
    carat_generate_options o;
    carat_job job = {.ids = f.ids, .n = 9, .opt = asking("flush", &o)};
    CHECK_EQ(carat_batch_submit(b, &job, NULL, NULL, &e), CARAT_E_ARG);
}

/* Every allocation on the way fails once; what comes out is right or an error. */
TEST(sparse_prompts_survive_short_memory)
{
    AUTO(end) fixture f = begin();
    carat_session_options o = options(NULL);
    for (int64_t n = 0;; n++) {
        carat_generate_options opt;
        carat_error e = {0};
        answer r = {0};
        carat_session *s = open_with(f.m, o);
        mem_fail_after(n);
        carat_status st =
            carat_generate(s, f.ids, 200, asking(lossy, &opt), answer_heard, &r, &r.t, &e);
        bool hit = mem_fail_hit();
        mem_fail_after(-1);
        CHECK(st ? st == CARAT_E_MEMORY && e.text[0] : r.t.sparse != NULL);
        carat_session_close(s);
        if (!hit)
            break;
    }
}
