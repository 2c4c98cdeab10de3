/* recur_keys_test.c - hybrid models whose full layers keep or read part of their keys: a pool
 * smaller than the context, and prompts that leave keys out. The states of the recurrent layers are
 * never part of either.
 */
#include "base/mem.h"
#include "engine/batch_int.h"
#include "tests/recur_model.h"
#include "tests/test.h"

#include <math.h>
#include <string.h>

enum { CTX = 1536, KEEP = 512, PROMPT = 1300, INTERVAL = 4 /* every fourth layer is full */ };

typedef struct fixture {
    carat_model *m;
    size_t n_vocab;
    int32_t ids[CTX];
    float *want, *got; /* [PROMPT][n_vocab] logits */
} fixture;

static void begin(fixture *f, bool experts)
{
    uint64_t rng = test_seed();
    *f = (fixture){.m = recur_model_open(&(recur_model_file){.experts = experts},
                                         &(carat_model_options){.n_threads = 1})};
    CHECK(f->m->core.n_recur > 0 && f->m->core.n_kv > 0);
    f->n_vocab = (size_t)f->m->core.n_vocab;
    f->want = mem_calloc(PROMPT * f->n_vocab, sizeof *f->want);
    f->got = mem_calloc(PROMPT * f->n_vocab, sizeof *f->got);
    CHECK(f->want && f->got);
    recur_draw(f->m, f->ids, CTX, &rng);
}

static void end(fixture *f)
{
    mem_free(f->want);
    mem_free(f->got);
    carat_model_close(f->m);
}

static bool same(const fixture *f, int64_t n_rows)
{
    return !memcmp(f->want, f->got, (size_t)n_rows * f->n_vocab * sizeof *f->want);
}

/* ---- A pool of keys ------------------------------------------------------------------------ */

static const char *const policies[] = {"scored", "lru", "snapkv"};

static carat_session *open_kept(const fixture *f, int32_t n_ctx, int32_t resident,
                                const char *policy)
{
    carat_session *s = recur_session(f->m, (carat_session_options){.n_ctx = n_ctx,
                                                                   .chunk = 64,
                                                                   .kv_resident = resident,
                                                                   .kv_policy = policy,
                                                                   .kv_single = "off",
                                                                   .kv_tau = 24,
                                                                   .checkpoint_mb = -1});
    s->b.pool.poison = true; /* a row that reads a free page is NaN */
    return s;
}

/* Logits after the prompt, then after each of n_steps tokens. */
static void prompt_and_steps(carat_session *s, const fixture *f, int64_t n, int64_t n_steps,
                             float *to)
{
    err e = {0};
    CHECK_OK(carat_eval(s, f->ids, n, to, NULL, &e), e);
    for (int64_t i = 0; i < n_steps; i++)
        CHECK_OK(carat_append(s, f->ids + n + i, 1, false, to + (size_t)(1 + i) * f->n_vocab, &e),
                 e);
}

/* A pool of the context's size, a larger one, and one that all tokens fit in: bit for bit the
 * session without a pool. */
TEST(recurrent_models_are_exact_in_a_pool_while_everything_fits)
{
    enum { N = 300, STEPS = 40 };
    static const int32_t resident[] = {1024, 1 << 20, KEEP};
    for (int experts = 0; experts < 2; experts++) {
        AUTO(end) fixture f;
        begin(&f, experts);
        carat_session *plain = open_kept(&f, 1024, 0, NULL);
        prompt_and_steps(plain, &f, N, STEPS, f.want);
        carat_session_close(plain);
        for (size_t k = 0; k < sizeof resident / sizeof *resident; k++)
            for (size_t i = 0; i < sizeof policies / sizeof *policies; i++) {
                carat_pool_info p;
                AUTO_SESSION *s = open_kept(&f, 1024, resident[k], policies[i]);
                prompt_and_steps(s, &f, N, STEPS, f.got);
                CHECK_MSG(same(&f, 1 + STEPS), "%s, a pool of %d", policies[i], resident[k]);
                carat_session_get_pool(s, &p);
                CHECK(p.on == (resident[k] == KEEP) && !p.lossy);
            }
    }
}

/* n tokens one by one, each the first choice after the one before. The next one is returned. */
static int32_t go_on(carat_session *s, const fixture *f, int n, int32_t id, float *to)
{
    err e = {0};
    for (int i = 0; i < n; i++, to += f->n_vocab) {
        CHECK_OK(carat_append(s, &id, 1, false, to, &e), e);
        id = 0;
        for (size_t k = 0; k < f->n_vocab; k++) {
            CHECK(isfinite(to[k]));
            id = to[k] > to[id] ? (int32_t)k : id;
        }
    }
    return id;
}

/* A text of more than twice the pool. A snapshot between two choices of pages carries the states
 * and the pages: restored in its own session after another text, and in a new one, the next tokens
 * have the same logits. */
PLAIN_TEST(recurrent_models_go_on_past_a_pool_and_from_its_snapshots)
{
    enum { BEFORE = 37, AFTER = 90 };
    for (size_t i = 0; i < sizeof policies / sizeof *policies; i++) {
        AUTO(end) fixture f;
        carat_snapshot *k;
        carat_pool_info p;
        err e = {0};
        begin(&f, i % 2);
        carat_session *s = open_kept(&f, CTX, KEEP, policies[i]),
                      *t = open_kept(&f, CTX, KEEP, policies[i]),
                      *whole = open_kept(&f, CTX, 0, NULL);
        CHECK_OK(carat_eval(s, f.ids, PROMPT, NULL, NULL, &e), e);
        int32_t next = go_on(s, &f, BEFORE, 7, f.want);
        CHECK_OK(carat_snapshot_take(s, &k, &e), e);
        CHECK_EQ(carat_snapshot_n(k), PROMPT + BEFORE);
        go_on(s, &f, AFTER, next, f.want);
        carat_session_get_pool(s, &p);
        CHECK(p.on && p.lossy && p.n_out > 0 && p.n_paged_out >= PROMPT - KEEP);
        CHECK(strcmp(policies[i], "scored") != 0 || p.n_in > 0);
        CHECK_OK(carat_eval(s, f.ids + 100, PROMPT - 200, NULL, NULL, &e), e);
        for (int round = 0; round < 3; round++) {
            carat_session *at = round == 1 ? t : s;
            CHECK_OK(carat_snapshot_restore(at, k, &e), e);
            CHECK_EQ(carat_session_n_past(at), PROMPT + BEFORE);
            go_on(at, &f, AFTER, next, f.got);
            CHECK_MSG(same(&f, AFTER), "%s, round %d", policies[i], round);
        }
        err no = {0};
        CHECK_EQ(carat_snapshot_restore(whole, k, &no), E_ARG);
        CHECK_MSG(strstr(no.text, "while keys were away"), "%s", no.text);
        carat_snapshot_free(k);
        carat_session_close(s);
        carat_session_close(t);
        carat_session_close(whole);
    }
}

/* ---- Prompts that leave keys out ----------------------------------------------------------- */

/* Keeps the forced blocks and the best one of each head; drops every tile that does not raise the
 * largest score. */
static const char *const lossy[] = {"flash:1", "skip:1000000"};

static carat_session *open_sparse(const fixture *f, const char *sparse, int32_t chunk)
{
    return recur_session(f->m, (carat_session_options){.n_ctx = CTX,
                                                       .chunk = chunk,
                                                       .n_outputs = chunk < 128 ? 128 : chunk,
                                                       .sparse = sparse,
                                                       .checkpoint_mb = -1});
}

static void eval_sparse(const fixture *f, const char *sparse, int32_t chunk, float *to)
{
    err e = {0};
    AUTO_SESSION *s = open_sparse(f, sparse, chunk);
    CHECK_OK(carat_append(s, f->ids, PROMPT, true, to, &e), e);
}

PLAIN_TEST(recurrent_models_with_settings_that_keep_every_key_are_exact)
{
    static const char *const all[] = {"flash:1e-37", "skip:0", "skip:1e-30"};
    AUTO(end) fixture f;
    begin(&f, false);
    eval_sparse(&f, NULL, 256, f.want);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        eval_sparse(&f, all[i], 256, f.got);
        CHECK_MSG(same(&f, PROMPT), "%s", all[i]);
    }
}

PLAIN_TEST(recurrent_models_leave_keys_out_the_same_in_chunks_of_any_size)
{
    static const int32_t chunks[] = {64, 200, CTX};
    for (size_t k = 0; k < sizeof lossy / sizeof *lossy; k++) {
        AUTO(end) fixture f;
        begin(&f, k % 2);
        eval_sparse(&f, NULL, 256, f.want);
        eval_sparse(&f, lossy[k], 256, f.got);
        CHECK(!same(&f, PROMPT));
        memcpy(f.want, f.got, PROMPT * f.n_vocab * sizeof *f.want);
        for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
            eval_sparse(&f, lossy[k], chunks[i], f.got);
            CHECK_MSG(same(&f, PROMPT), "%s, chunks of %d", lossy[k], chunks[i]);
        }
    }
}

/* The account names the full layers alone, and each of them has left tiles out. The logits of all
 * tokens are asked for: otherwise the last layer computes one row, which keeps everything. */
PLAIN_TEST(recurrent_models_leave_keys_out_in_full_layers_alone)
{
    for (size_t k = 0; k < sizeof lossy / sizeof *lossy; k++) {
        AUTO(end) fixture f;
        carat_sparse_layer x[16];
        err e = {0};
        begin(&f, false);
        carat_session *s = open_sparse(&f, lossy[k], 256), *exact = open_sparse(&f, NULL, 256);
        CHECK_OK(carat_append(s, f.ids, PROMPT, true, f.got, &e), e);
        int32_t n = carat_session_sparse(s, x, 16, false);
        CHECK_EQ(n, f.m->core.n_layer / INTERVAL);
        for (int32_t i = 0; i < n; i++) {
            CHECK_EQ(x[i].layer, INTERVAL * (i + 1) - 1);
            CHECK_MSG(x[i].n_kept > 0 && x[i].n_kept < x[i].n_tiles,
                      "%s, layer %d: %llu of %llu tiles", lossy[k], x[i].layer,
                      (unsigned long long)x[i].n_kept, (unsigned long long)x[i].n_tiles);
        }
        CHECK_OK(carat_append(exact, f.ids, PROMPT, true, f.got, &e), e);
        CHECK_EQ(carat_session_sparse(exact, x, 16, false), 0);
        carat_session_close(s);
        carat_session_close(exact);
    }
}
