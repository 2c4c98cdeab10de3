/* recur_test.c - models with recurrent layers: one token at a time, in chunks, in batches, with
 * drafts, restored, cancelled or broken off, an answer is always that of a fresh session, bit for
 * bit.
 */
#include "engine/batch_int.h"
#include "carat_bench.h"
#include "base/mem.h"
#include "base/rng.h"
#include "tests/recur_model.h"
#include "tests/test.h"

enum { N_IDS = 130, CTX = RECUR_CTX };

/* A model, a text, and the logits after each of its tokens, computed one by one. */
typedef struct oracle {
    carat_model *m;
    int32_t n_vocab, ids[N_IDS];
    float *want, *got; /* [N_IDS][n_vocab] */
} oracle;

static carat_session *open_plain(carat_model *m)
{
    return recur_session(m, (carat_session_options){.checkpoint_mb = -1});
}

static void oracle_open(oracle *o, const recur_model_file *file, const carat_model_options *mo)
{
    uint64_t rng = test_seed();
    err e = {0};
    *o = (oracle){.m = recur_model_open(file, mo)};
    CHECK(o->m->core.n_recur > 0 && o->m->core.n_kv > 0);
    o->n_vocab = o->m->core.n_vocab;
    size_t row = (size_t)o->n_vocab;
    o->want = mem_alloc(N_IDS * row * sizeof *o->want);
    o->got = mem_alloc(N_IDS * row * sizeof *o->got);
    CHECK(o->want && o->got);
    recur_draw(o->m, o->ids, N_IDS, &rng);
    AUTO_SESSION *s = open_plain(o->m);
    for (size_t i = 0; i < N_IDS; i++)
        CHECK_OK(carat_append(s, o->ids + i, 1, false, o->want + i * row, &e), e);
}

static void oracle_close(oracle *o)
{
    carat_model_close(o->m);
    mem_free(o->want);
    mem_free(o->got);
}

static void check_rows(const oracle *o, int64_t from, int64_t to, const char *how, int32_t k)
{
    size_t row = (size_t)o->n_vocab;
    for (int64_t i = from; i < to; i++)
        CHECK_MSG(!memcmp(o->got + (size_t)(i - from) * row, o->want + (size_t)i * row,
                          row * sizeof *o->got),
                  "%s %d: the logits of token %lld differ", how, k, (long long)i);
}

/* s, which holds some of the tokens, goes on to n in passes of k rows. */
static void go_on(const oracle *o, carat_session *s, int64_t n, int32_t k, const char *how)
{
    err e = {0};
    for (int64_t at; (at = carat_session_n_past(s)) < n;) {
        int64_t rows = n - at < k ? n - at : k;
        CHECK_OK(carat_append(s, o->ids + at, rows, true, o->got, &e), e);
        check_rows(o, at, at + rows, how, k);
    }
}

/* ---- Passes, snapshots, rewinds ------------------------------------------------------------ */

PLAIN_TEST(recurrent_rows_are_the_same_in_chunks_of_any_size)
{
    static const int32_t chunks[] = {1, 2, 3, 5, 31, 64, 512};
    for (int experts = 0; experts < 2; experts++) {
        AUTO(oracle_close) oracle o;
        err e = {0};
        oracle_open(&o, &(recur_model_file){.experts = experts}, NULL);
        for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
            AUTO_SESSION *s = recur_session(
                o.m, (carat_session_options){.chunk = chunks[i], .checkpoint_mb = i % 2 ? -1 : 4});
            CHECK_OK(carat_append(s, o.ids, N_IDS, true, o.got, &e), e);
            check_rows(&o, 0, N_IDS, "chunks of", chunks[i]);
        }
    }
}

PLAIN_TEST(recurrent_snapshot_goes_on_twice)
{
    AUTO(oracle_close) oracle o;
    err e = {0};
    carat_snapshot *k;
    oracle_open(&o, NULL, NULL);
    for (int32_t rows = 1; rows <= 9; rows += 4) {
        carat_session *s = open_plain(o.m);
        AUTO_SESSION *other = recur_session(
            o.m, (carat_session_options){.n_ctx = 200, .chunk = 7, .checkpoint_mb = -1});
        go_on(&o, s, 77, rows, "before");
        CHECK_OK(carat_snapshot_take(s, &k, &e), e);
        CHECK_EQ(carat_snapshot_n(k), 77);
        for (int twice = 0; twice < 2; twice++) {
            go_on(&o, s, N_IDS, rows + twice, "on");
            CHECK_OK(carat_snapshot_restore(s, k, &e), e);
            CHECK_EQ(carat_session_n_past(s), 77);
            CHECK(!carat_rewind(s, 76) && !carat_rewind(s, 1));
        }
        carat_session_close(s);
        go_on(&o, other, 50, 1, "another");
        CHECK_OK(carat_snapshot_restore(other, k, &e), e);
        go_on(&o, other, N_IDS, 1, "elsewhere");
        carat_snapshot_free(k);
    }
}

TEST(recurrent_timelines_rewind_by_a_pending_token_or_to_the_beginning)
{
    AUTO(oracle_close) oracle o;
    oracle_open(&o, NULL, NULL);
    AUTO_SESSION *s = open_plain(o.m);
    go_on(&o, s, 40, 40, "prompt");
    CHECK(!carat_rewind(s, 39));
    go_on(&o, s, 42, 1, "steps");
    CHECK(!carat_rewind(s, 40));
    CHECK(carat_rewind(s, 41));
    CHECK(!carat_rewind(s, 40));
    go_on(&o, s, 60, 1, "after a rewind");
    CHECK(carat_rewind(s, 0));
    go_on(&o, s, N_IDS, 16, "after a rewind to the beginning");
    carat_reset(s);
    go_on(&o, s, N_IDS, 30, "after a reset");
    CHECK_EQ(recur_like_fresh(s, o.ids, 90, CTX), 0);
    CHECK(strstr(carat_session_reuse(s, NULL), "recurrent states"));
}

/* A divided model computes the same; states of all devices are saved, and cleared. */
PLAIN_TEST(recurrent_models_may_be_divided)
{
    static const carat_model_options how[] = {
        {.device = "cpu,cpu", .gpu_layers = 3},
        {.device = "cpu,cpu,cpu"},
        {.device = "cpu,cpu,cpu", .gpu_layers = 5, .cpu_experts = true}};
    for (int i = 0; i < 3; i++) {
        const recur_model_file file = {.experts = i > 0};
        AUTO(oracle_close) oracle o;
        carat_snapshot *k;
        carat_memory_plan plan;
        uint64_t sum = 0;
        err e = {0};
        oracle_open(&o, &file, NULL);
        carat_model *whole = o.m;
        o.m = recur_model_open(&file, &how[i]);
        carat_session *s = open_plain(o.m);
        go_on(&o, s, 60, 20, "divided");
        go_on(&o, s, 62, 1, "divided");
        CHECK_OK(carat_snapshot_take(s, &k, &e), e);
        go_on(&o, s, N_IDS, 7, "divided, on");
        CHECK_OK(carat_snapshot_restore(s, k, &e), e);
        go_on(&o, s, N_IDS, 30, "divided, restored");
        carat_reset(s);
        go_on(&o, s, N_IDS, 50, "divided, anew");
        CHECK_OK(carat_plan(o.m, &(carat_session_options){.n_ctx = CTX}, &plan, &e), e);
        for (int32_t d = 0; d < plan.n_devices; d++)
            sum += plan.device[d].recurrent_bytes;
        CHECK(plan.device[0].recurrent_bytes > 0 && plan.device[1].recurrent_bytes > 0);
        CHECK_EQ(sum, plan.recurrent_bytes);
        carat_snapshot_free(k);
        carat_session_close(s);
        carat_model_close(o.m);
        o.m = whole;
    }
}

/* ---- Drafts ------------------------------------------------------------------------------- */

/* The timelines hold the same tokens, and their next logits are equal. */
static void check_alike(carat_session *a, carat_session *b, const char *what, int32_t trial)
{
    size_t n_vocab = (size_t)a->b.m->core.n_vocab;
    AUTO_MEM float *x = mem_calloc(2 * n_vocab, sizeof *x);
    int32_t next = 3;
    err e = {0};
    CHECK(x);
    CHECK_MSG(a->b.slot->t.kv.n_past == b->b.slot->t.kv.n_past, "%s %d: %lld tokens, plain %lld",
              what, trial, (long long)b->b.slot->t.kv.n_past, (long long)a->b.slot->t.kv.n_past);
    CHECK(!memcmp(a->b.slot->t.id, b->b.slot->t.id,
                  (size_t)a->b.slot->t.kv.n_past * sizeof *a->b.slot->t.id));
    if (a->b.slot->t.kv.n_past < a->b.shape.n_ctx) {
        CHECK_OK(carat_append(a, &next, 1, false, x, &e), e);
        CHECK_OK(carat_append(b, &next, 1, false, x + n_vocab, &e), e);
        CHECK_MSG(!memcmp(x, x + n_vocab, n_vocab * sizeof *x), "%s %d: other logits", what, trial);
    }
}

typedef struct pair {
    carat_model *m, *with; /* without a drafter, and with lookup */
    carat_session *plain, *fast;
} pair;

static void open_pair(pair *p, carat_session_options o)
{
    *p = (pair){.m = recur_model_open(NULL, NULL),
                .with = recur_model_open(NULL, &(carat_model_options){.draft = "lookup"})};
    p->plain = recur_session(p->m, o);
    p->fast = recur_session(p->with, o);
}

static void close_pair(pair *p)
{
    carat_session_close(p->plain);
    carat_session_close(p->fast);
    carat_model_close(p->m);
    carat_model_close(p->with);
}

/* An answer, plain and with rounds of `width` drafts, of which `accept` are right in turn. */
static void answer_both(pair *p, const int32_t *ids, int64_t n, int32_t width, bool tree,
                        const int32_t *accept, int32_t n_accept, carat_generate_options o,
                        int32_t trial)
{
    recur_heard want = {0}, got = {0};
    carat_timings t;
    err e = {0};
    CHECK_OK(carat_generate(p->plain, ids, n, &o, recur_hear, &want, NULL, &e), e);
    const carat_script script = {.answer = want.id,
                                 .n_answer = want.n,
                                 .accept = accept,
                                 .n_accept = n_accept,
                                 .rank = tree};
    o.script = &script;
    o.speculation = (carat_speculation){
        .n_max = width, .tree_max = tree ? 1 + width + width / 2 : -1, .fixed = true};
    CHECK_OK(carat_generate(p->fast, ids, n, &o, recur_hear, &got, &t, &e), e);
    CHECK_MSG(got.n == want.n && !memcmp(got.id, want.id, sizeof want.id),
              "trial %d, %d drafts: other tokens", trial, width);
    CHECK(t.n_rounds > 0 || want.n < 3);
    check_alike(p->plain, p->fast, "after an answer", trial);
}

PLAIN_TEST(recurrent_answers_with_drafts_are_those_without)
{
    uint64_t rng = test_seed();
    pair p;
    int32_t ids[CTX];
    open_pair(&p, (carat_session_options){.draft_max = 15, .draft_tree = 24, .checkpoint_mb = -1});
    CHECK_EQ(p.fast->b.layout.recur[0].journal_rows, 25);
    for (int32_t width = 1; width <= 15; width++)
        for (int tree = 0; tree < 2; tree++) {
            int32_t accept[32], n = 1 + (int32_t)rng_below(&rng, 50);
            for (int32_t i = 0; i < 32; i++) /* every depth, from none to all */
                accept[i] = i % (width + 1);
            recur_draw(p.m, ids, n, &rng);
            answer_both(&p, ids, n, width, tree, accept, 32, recur_greedy(60), 2 * width + tree);
        }
    close_pair(&p);
}

/* Conversations go on from where drafts were accepted, from snapshots, and end with the context. */
TEST(recurrent_answers_with_drafts_go_on_in_later_turns)
{
    enum { SHORT = 160 };
    static const int32_t accept[] = {0, 3, 7, 1, 6, 2};
    uint64_t rng = test_seed();
    err e = {0};
    pair p;
    int32_t ids[CTX];
    open_pair(&p, (carat_session_options){.n_ctx = SHORT, .checkpoint_mb = 8});
    for (int trial = 0; trial < 4; trial++) {
        AUTO_PTR(carat_snapshot_free) carat_snapshot *k = NULL;
        int64_t n = 20;
        recur_draw(p.m, ids, n, &rng);
        for (int turn = 0; turn < 5 && n < SHORT; turn++) {
            answer_both(&p, ids, n, 7, turn % 2, accept, 6, recur_greedy(turn == 4 ? 0 : 20), turn);
            if (turn == 1) {
                CHECK_OK(carat_snapshot_take(p.plain, &k, &e), e);
                carat_snapshot_free(k);
                CHECK_OK(carat_snapshot_take(p.fast, &k, &e), e);
            }
            CHECK(turn < 4 || p.fast->b.slot->t.kv.n_past == SHORT);
            int64_t back =
                p.plain->b.slot->t.kv.n_past - (turn < 4 ? (int64_t)rng_below(&rng, 3) : 0);
            CHECK_EQ(carat_rewind(p.plain, back), carat_rewind(p.fast, back));
            n = p.plain->b.slot->t.kv.n_past;
            memcpy(ids, p.plain->b.slot->t.id, (size_t)n * sizeof *ids);
            int64_t more = turn == 3 ? SHORT - 9 - n : 6;
            recur_draw(p.m, ids + n, more, &rng);
            n += more;
        }
        CHECK_OK(timeline_restore(session_timeline(p.plain), ((kv_snapshot **)k)[1], &e), e);
        CHECK_OK(carat_snapshot_restore(p.fast, k, &e), e);
        check_alike(p.plain, p.fast, "restored", trial);
    }
    close_pair(&p);
}

PLAIN_TEST(recurrent_answers_may_be_refused_at_any_token)
{
    static const int32_t accept[] = {5, 2, 4};
    uint64_t rng = test_seed();
    pair p;
    int32_t ids[30];
    open_pair(&p, (carat_session_options){.checkpoint_mb = -1});
    for (int32_t at = 1; at <= 16; at++) {
        recur_heard want = {.refuse_at = at}, got = {.refuse_at = at}, all = {0};
        carat_generate_options o = recur_greedy(30);
        err e = {0};
        recur_draw(p.m, ids, 30, &rng);
        CHECK_OK(carat_generate(p.plain, ids, 30, &o, recur_hear, &all, NULL, &e), e);
        carat_reset(p.plain);
        CHECK_OK(carat_generate(p.plain, ids, 30, &o, recur_hear, &want, NULL, &e), e);
        const carat_script script = {
            .answer = all.id, .n_answer = all.n, .accept = accept, .n_accept = 3};
        o.script = &script;
        o.speculation = (carat_speculation){.n_max = 6, .tree_max = at % 2 ? 9 : -1, .fixed = true};
        CHECK_OK(carat_generate(p.fast, ids, 30, &o, recur_hear, &got, NULL, &e), e);
        CHECK(got.n == at && !memcmp(got.id, all.id, (size_t)at * sizeof *got.id));
        check_alike(p.plain, p.fast, "refused", at);
    }
    close_pair(&p);
}

/* ---- Batches -------------------------------------------------------------------------------- */

static void heard_end(void *user, carat_status st, const carat_error *e, const carat_timings *t)
{
    (void)t;
    if (st)
        ((recur_heard *)user)->n = -(int32_t)st;
    (void)e;
}

/* Jobs of a batch answer as if alone, with drafts and without, beside prompts or apart from them.
 * Groups of three share the beginning of their prompts. */
static void batch_like_alone(pair *p, bool apart, int32_t chunk, uint64_t *rng)
{
    enum { JOBS = 9 };
    static const int32_t accept[] = {2, 0, 5, 1};
    static int32_t ids[JOBS][200];
    static recur_heard want[JOBS], got[JOBS];
    carat_generate_options o[JOBS];
    carat_script script[JOBS];
    carat_batch *b;
    err e = {0};
    p->with->dev->prompts_apart = apart;
    const carat_batch_options bo = {.session = {.n_ctx = CTX, .chunk = chunk}, .n_slots = 4};
    CHECK_OK(carat_batch_open(p->with, &bo, &b, &e), e);
    for (int i = 0; i < JOBS; i++) {
        int64_t n = 60 + 15 * (i % 3);
        recur_draw(p->m, ids[i], 200, rng);
        if (i % 3)
            memcpy(ids[i], ids[i - i % 3], 50 * sizeof **ids);
        want[i] = got[i] = (recur_heard){.refuse_at = i == 4 ? 5 : 0};
        o[i] = recur_greedy(10 + 4 * i);
        CHECK_OK(carat_generate(p->plain, ids[i], n, &o[i], recur_hear, &want[i], NULL, &e), e);
        script[i] = (carat_script){
            .answer = want[i].id, .n_answer = want[i].n, .accept = accept, .n_accept = 4};
        o[i].script = i % 4 == 3 ? NULL : &script[i];
        o[i].speculation =
            (carat_speculation){.n_max = 5, .tree_max = i % 2 ? 8 : -1, .fixed = true};
        const carat_job j = {.ids = ids[i],
                             .n = n,
                             .opt = &o[i],
                             .fn = recur_hear,
                             .done = heard_end,
                             .user = &got[i]};
        CHECK_OK(carat_batch_submit(b, &j, NULL, NULL, &e), e);
        if (i == 5)
            carat_batch_step(b);
    }
    while (carat_batch_step(b))
        ;
    for (int i = 0; i < JOBS; i++)
        CHECK_MSG(got[i].n == want[i].n && !memcmp(got[i].id, want[i].id, sizeof got[i].id),
                  "job %d of passes of %d: %d tokens, alone %d", i, chunk, got[i].n, want[i].n);
    carat_batch_close(b);
    p->with->dev->prompts_apart = false;
}

PLAIN_TEST(recurrent_jobs_of_a_batch_answer_as_if_alone)
{
    uint64_t rng = test_seed();
    pair p;
    open_pair(&p, (carat_session_options){.checkpoint_mb = -1});
    batch_like_alone(&p, false, 0, &rng);
    batch_like_alone(&p, false, 9, &rng);
    batch_like_alone(&p, true, 40, &rng);
    close_pair(&p);
}

/* A job that waits for another's prompt goes on from where the two prompts part. */
TEST(recurrent_jobs_share_the_beginning_of_their_prompts)
{
    uint64_t rng = test_seed();
    AUTO_MODEL *m = recur_model_open(NULL, NULL);
    carat_batch *b;
    carat_batch_info info;
    err e = {0};
    int32_t ids[3][200];
    recur_heard got[3] = {0};
    const carat_generate_options o = recur_greedy(4);
    CHECK_OK(carat_batch_open(
                 m, &(carat_batch_options){.session = {.n_ctx = CTX, .chunk = 32}, .n_slots = 3},
                 &b, &e),
             e);
    recur_draw(m, ids[0], 200, &rng);
    for (int i = 0; i < 3; i++) {
        memcpy(ids[i], ids[0], sizeof ids[0]);
        if (i == 2)
            ids[2][150] ^= 1;
        const carat_job j = {.ids = ids[i],
                             .n = 200,
                             .opt = &o,
                             .fn = recur_hear,
                             .done = heard_end,
                             .user = &got[i]};
        CHECK_OK(carat_batch_submit(b, &j, NULL, NULL, &e), e);
    }
    while (carat_batch_step(b))
        ;
    carat_batch_get_info(b, &info, NULL, 0);
    CHECK(info.n_reused >= 150 + 184); /* fewer tokens than WAIT_GAIN are computed again */
    carat_batch_close(b);
    AUTO_SESSION *s = open_plain(m);
    for (int i = 0; i < 3; i++) {
        recur_heard want = {0};
        CHECK_OK(carat_generate(s, ids[i], 200, &o, recur_hear, &want, NULL, &e), e);
        CHECK(want.n == got[i].n && !memcmp(want.id, got[i].id, sizeof want.id));
    }
}

/* ---- What is broken off -----------------------------------------------------------------------
 */

static bool stop_prompt(void *user, const carat_event *ev)
{
    return ev->kind != CARAT_EV_PREFILL || --*(int *)user;
}

TEST(recurrent_prompts_may_be_cancelled_in_the_middle)
{
    AUTO(oracle_close) oracle o;
    oracle_open(&o, NULL, NULL);
    for (int passes = 1; passes < 5; passes++) {
        AUTO_SESSION *s = recur_session(o.m, (carat_session_options){.chunk = 20});
        const carat_generate_options g = recur_greedy(5);
        int left = passes;
        err e = {0};
        CHECK_OK(carat_generate(s, o.ids, N_IDS, &g, stop_prompt, &left, NULL, &e), e);
        CHECK_EQ(carat_session_n_past(s), 20 * passes);
        CHECK_EQ(recur_like_fresh(s, o.ids, 110, CTX), 20 * passes);
    }
}

static int fails_in; /* passes */
static status fail_once(const device *d, err *e)
{
    (void)d;
    return --fails_in == 0 ? err_set(e, E_IO, "the device fell off") : OK;
}

/* A pass that failed has changed some states: the timeline begins anew. */
TEST(recurrent_timelines_begin_anew_after_a_failed_pass)
{
    AUTO(oracle_close) oracle o;
    err e = {0};
    oracle_open(&o, NULL, NULL);
    AUTO_SESSION *s = open_plain(o.m);
    for (int steps = 0; steps < 2; steps++) {
        go_on(&o, s, 60, steps ? 1 : 60, "before");
        fails_in = 1;
        o.m->dev->failed = fail_once;
        CHECK_STATUS(carat_append(s, o.ids + 60, steps ? 1 : 5, false, NULL, &e), E_IO);
        o.m->dev->failed = NULL;
        err_clear(&e);
        CHECK_EQ(carat_session_n_past(s), 0);
        go_on(&o, s, N_IDS, 25, "after a failure");
        carat_reset(s);
    }
    carat_session_close(s);

    carat_batch *b;
    recur_heard got[2] = {0}, want = {0};
    const carat_generate_options g = recur_greedy(12);
    CHECK_OK(carat_batch_open(o.m, &(carat_batch_options){.session = {.n_ctx = CTX}, .n_slots = 2},
                              &b, &e),
             e);
    for (int again = 0; again < 2; again++) {
        memset(got, 0, sizeof got);
        for (int i = 0; i < 2; i++) {
            const carat_job j = {.ids = o.ids,
                                 .n = 40 + 10 * i,
                                 .opt = &g,
                                 .fn = recur_hear,
                                 .done = heard_end,
                                 .user = &got[i]};
            CHECK_OK(carat_batch_submit(b, &j, NULL, NULL, &e), e);
        }
        fails_in = again ? 0 : 8;
        o.m->dev->failed = fail_once;
        while (carat_batch_step(b))
            ;
        o.m->dev->failed = NULL;
        CHECK(again ? got[0].n == 12 && got[1].n == 12 : got[0].n == -E_IO || got[1].n == -E_IO);
    }
    carat_batch_close(b);
    s = open_plain(o.m);
    for (int i = 0; i < 2; i++) {
        want.n = 0;
        CHECK_OK(carat_generate(s, o.ids, 40 + 10 * i, &g, recur_hear, &want, NULL, &e), e);
        CHECK(!memcmp(want.id, got[i].id, 12 * sizeof *want.id));
    }
}

TEST(recurrent_timelines_keep_nothing_of_a_pass_with_nan)
{
    AUTO_MODEL *m =
        recur_model_open(&(recur_model_file){.nan_tensor = "blk.3.ffn_up.weight"}, NULL);
    AUTO_SESSION *s = open_plain(m);
    int32_t ids[40];
    uint64_t rng = test_seed();
    err e = {0};
    recur_draw(m, ids, 40, &rng);
    for (int i = 0; i < 2; i++) {
        CHECK_STATUS(carat_eval(s, ids, 40, NULL, NULL, &e), E_NUMERIC);
        CHECK_EQ(carat_session_n_past(s), 0);
        err_clear(&e);
    }
}

TEST(recurrent_timelines_survive_parked_weights)
{
    AUTO(oracle_close) oracle o;
    err e = {0};
    carat_snapshot *k;
    oracle_open(&o, NULL, NULL);
    AUTO_SESSION *s = open_plain(o.m);
    go_on(&o, s, 50, 50, "before");
    go_on(&o, s, 52, 1, "before"); /* a pending row */
    carat_model_park(o.m);
    CHECK_STATUS(carat_append(s, o.ids + 52, 1, false, NULL, &e), E_ARG);
    CHECK(strstr(e.text, "parked"));
    err_clear(&e);
    CHECK_OK(carat_snapshot_take(s, &k, &e), e);
    CHECK_OK(carat_model_unpark(o.m, &e), e);
    CHECK_EQ(carat_session_n_past(s), 52);
    go_on(&o, s, N_IDS, 3, "unparked");
    CHECK_OK(carat_snapshot_restore(s, k, &e), e);
    go_on(&o, s, N_IDS, 40, "a snapshot of a parked model");
    carat_snapshot_free(k);
}

/* ---- Memory -----------------------------------------------------------------------------------
 */

TEST(recurrent_states_are_planned_to_the_byte)
{
    AUTO_MODEL *m = recur_model_open(NULL, NULL);
    AUTO_MODEL *with = recur_model_open(NULL, &(carat_model_options){.draft = "lookup"});
    carat_memory_plan p, q;
    err e = {0};
    const carat_session_options o = {.n_ctx = CTX, .draft_max = 7, .draft_tree = -1};
    CHECK_OK(carat_plan(m, &o, &p, &e), e);
    CHECK_OK(carat_plan(with, &o, &q, &e), e);
    /* 6 layers: states of 6 x 16 x 16, 3 rows of 160 channels, journals of 160 + 32 + 96 + 6 floats
     * a row, each part a multiple of 64. */
    CHECK_EQ(p.recurrent_bytes, 6 * 4 * (1536 + 512 + 2 * 320));
    CHECK_EQ(q.recurrent_bytes, 6 * 4 * (1536 + 512 + 2 * 2368));
    CHECK_EQ(p.checkpoint_state_bytes, 6 * 4 * (1536 + 480));
    CHECK_EQ(q.checkpoint_state_bytes, p.checkpoint_state_bytes);
    CHECK_EQ(p.device[0].recurrent_bytes, p.recurrent_bytes);
}

static status open_answer_and_restore(void *arg, err *e)
{
    carat_session *s;
    carat_snapshot *k = NULL;
    int32_t ids[60];
    const carat_generate_options o = recur_greedy(4);
    status st;
    for (int32_t i = 0; i < 60; i++)
        ids[i] = i;
    if ((st = carat_session_open(arg, &(carat_session_options){.n_ctx = 80, .checkpoint_mb = -1},
                                 &s, e)))
        return st;
    if (!(st = carat_generate(s, ids, 60, &o, NULL, NULL, NULL, e)) &&
        !(st = carat_snapshot_take(s, &k, e)) && !(st = carat_eval(s, ids, 50, NULL, NULL, e)))
        st = carat_snapshot_restore(s, k, e);
    carat_snapshot_free(k);
    carat_session_close(s);
    return st;
}

static status open_all_and_answer(void *path, err *e)
{
    AUTO_MODEL *m;
    status st = carat_model_open(path, &(carat_model_options){.n_threads = 1}, &m, e);
    if (!st)
        st = open_answer_and_restore(m, e);
    return st;
}

PLAIN_TEST(recurrent_models_need_their_memory)
{
    test_every_allocation(open_all_and_answer, (void *)recur_model_write(NULL));
}

PLAIN_TEST(recurrent_sessions_need_their_memory)
{
    AUTO_MODEL *m = recur_model_open(NULL, &(carat_model_options){.draft = "lookup"});
    test_every_allocation(open_answer_and_restore, m);
}
