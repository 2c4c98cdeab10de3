/* paging_batch_test.c - conversations longer than what each may keep in the pool, side by side:
 * every answer is the answer of a session alone that keeps as many tokens. Jobs wait for room,
 * their keys leave the device and come back, and tokens are drafted: no answer may change.
 */
#include "base/mem.h"
#include "base/rng.h"
#include "carat.h"
#include "engine/batch_int.h"
#include "tests/answers.h"
#include "tests/test.h"
#include "tests/toy_model.h"

#include <stdio.h>
#include <string.h>

#include <unistd.h>

enum { CTX = 1536, KEEP = 512, JOBS_MAX = 10 };

static carat_model *open_model(const char *draft)
{
    return toy_model_open(&(toy_model_file){.n_ctx_train = CTX, .scale = 4},
                          &(carat_model_options){.n_threads = 1, .draft = draft});
}

/* Some fit, most do not; many begin with the same 200 tokens. Texts repeat, so that lookup drafts.
 */
static void draw(const carat_model *m, question *q, int i, uint64_t *rng)
{
    carat_model_info info;
    uint64_t shared = 5;
    carat_model_get_info(m, &info);
    q->n = i % 3 == 2 ? 60 + (int64_t)rng_below(rng, 200) : 500 + (int64_t)rng_below(rng, 700);
    for (int64_t k = 0; k < q->n; k++)
        q->ids[k] = k >= 260 && k % 50 ? q->ids[k - 50]
                                       : (int32_t)rng_below(i % 3 && k < 200 ? &shared : rng,
                                                            (uint64_t)info.n_vocab);
    q->o = (carat_generate_options){.max_tokens = 60 + (int32_t)rng_below(rng, 240)};
    carat_sampling_default(m, &q->o.sampling);
    q->o.sampling.temperature = i % 4 == 3 ? 0.8f : 0;
    q->o.sampling.seed = (uint32_t)i;
    q->o.sampling.ignore_eog = true;
}

static carat_session_options kept(const char *policy)
{
    return (carat_session_options){
        .n_ctx = CTX, .chunk = 64, .kv_resident = KEEP, .kv_policy = policy, .draft_max = 7};
}

static void alone(carat_model *m, const char *policy, const question *q, answer *r)
{
    const carat_session_options o = kept(policy);
    answer_alone(m, &o, q, r);
}

static carat_batch *open_batch(carat_model *m, const char *policy, int32_t pool, int32_t n_slots,
                               int32_t checkpoint_mb)
{
    carat_batch_options o = {.session = kept(policy), .n_slots = n_slots};
    carat_batch *b;
    carat_error e = {0};
    o.session.kv_pool = pool;
    o.session.checkpoint_mb = checkpoint_mb;
    CHECK_OK(carat_batch_open(m, &o, &b, &e), e);
    return b;
}

/* All pages are free once nothing holds them. */
static void check_pages(carat_batch *b)
{
    for (int32_t i = 0; i < b->n_slots; i++)
        timeline_reset(&b->slot[i].t);
    checkpoints_leave_page(b->store, -1);
    CHECK_EQ(b->pool.pages.n_free, b->pool.pages.n);
}

static void answers_as_alone(const char *policy, const char *draft)
{
    static const int32_t pool[] = {0, 1280, 640}, budget_mb[] = {0, -1, 4};
    carat_model *plain = open_model(NULL), *m = draft ? open_model(draft) : plain;
    question *q = mem_calloc(JOBS_MAX, sizeof *q);
    answer *want = mem_calloc(JOBS_MAX, sizeof *want), *got = mem_calloc(JOBS_MAX, sizeof *got);
    const int n_jobs = test_brief() ? 6 : JOBS_MAX;
    uint64_t rng = test_seed(), n_preempted = 0;
    int n_lossy = 0;
    CHECK(q && want && got);
    for (int i = 0; i < n_jobs; i++) {
        draw(m, &q[i], i, &rng);
        alone(plain, policy, &q[i], &want[i]);
        n_lossy += want[i].t.lossy != NULL;
        if (!draft)
            continue;
        /* Of a fixed length: else measured times decide whether it drafts. */
        q[i].o.speculation = (carat_speculation){.n_max = 7, .tree_max = -1, .fixed = true};
        alone(m, policy, &q[i], &got[i]); /* a session that drafts */
        got[i].n_done = 1;
        answer_check(&got[i], &want[i], i);
    }
    CHECK(n_lossy >= n_jobs / 2 && n_lossy < n_jobs);
    for (int k = SANITIZED ? 2 : 0; k < 3; k++) {
        AUTO_BATCH *b = open_batch(m, policy, pool[k], k == 1 ? 3 : 6, budget_mb[k]);
        carat_batch_info info;
        for (int i = 0; i < n_jobs; i++)
            answer_submit(b, &q[i], &got[i]);
        while (carat_batch_step(b))
            ;
        for (int i = 0; i < n_jobs; i++)
            answer_check(&got[i], &want[i], i);
        carat_batch_get_info(b, &info, NULL, 0);
        n_preempted += info.n_preempted;
        CHECK(!draft || info.n_accepted > 0);
        check_pages(b);
    }
    CHECK(n_preempted > 0);
    mem_free(q);
    mem_free(want);
    mem_free(got);
    if (m != plain)
        carat_model_close(m);
    carat_model_close(plain);
}

TEST(conversations_that_keep_scored_pages_answer_as_if_alone)
{
    answers_as_alone("scored", NULL);
}

PLAIN_TEST(conversations_that_keep_young_pages_answer_as_if_alone)
{
    answers_as_alone("lru", NULL);
}

PLAIN_TEST(conversations_that_drop_pages_answer_as_if_alone)
{
    answers_as_alone("snapkv", NULL);
}

PLAIN_TEST(conversations_that_keep_pages_answer_alike_with_drafts)
{
    answers_as_alone("scored", "lookup");
}

/* Opens a batch, answers two prompts longer than what each keeps, closes it. */
static status one_round(carat_model *m, const question *q, err *e)
{
    carat_batch_options o = {.session = kept("scored"), .n_slots = 2};
    AUTO_BATCH *b = NULL;
    answer r[2];
    memset(r, 0, sizeof r);
    o.session.checkpoint_mb = 1;
    status st = carat_batch_open(m, &o, &b, e);
    for (int i = 0; i < 2 && !st; i++) {
        const carat_job j = {.ids = q->ids + i,
                             .n = 640,
                             .opt = &q->o,
                             .fn = answer_heard,
                             .done = answer_done,
                             .user = &r[i]};
        st = carat_batch_submit(b, &j, NULL, NULL, e);
    }
    while (!st && carat_batch_step(b))
        ;
    for (int i = 0; i < 2 && !st; i++)
        if (r[i].n_done && r[i].st)
            st = err_set(e, r[i].st, "%s", r[i].e.text);
    if (!st)
        check_pages(b);
    return st;
}

/* A slot, its checkpoints and their files have exact tokens of a text, lossy ones of the same text,
 * and exact ones again. Each answer is that of a session that knows nothing; so is that of a
 * session with the whole context, which reads the files. */
static void exact_and_lossy_in_turns(const char *policy)
{
    static const int64_t n[] = {300, 1100, 470, 1140, 300};
    enum { TURNS = sizeof n / sizeof *n };
    AUTO_MODEL *m = open_model(NULL);
    carat_batch_options o = {.session = kept(policy), .n_slots = 1};
    char dir[512];
    static question q;
    static answer want, got;
    uint64_t rng = test_seed();
    carat_session *s;
    carat_batch *b;
    carat_error e = {0};
    snprintf(dir, sizeof dir, "%s", test_temp("turns"));
    draw(m, &q, 1, &rng);
    for (int64_t k = 0; k < n[3]; k++)
        q.ids[k] = (int32_t)rng_below(&rng, 100);
    q.o.max_tokens = 40;
    q.o.sampling.temperature = 0;
    o.session.cache_dir = dir;
    CHECK_OK(carat_batch_open(m, &o, &b, &e), e);
    for (int i = 0; i < TURNS; i++) {
        q.n = n[i];
        alone(m, policy, &q, &want);
        answer_submit(b, &q, &got);
        while (carat_batch_step(b))
            ;
        answer_check(&got, &want, i);
        CHECK_EQ(want.t.lossy != NULL, n[i] > KEEP);
    }
    carat_batch_close(b);
    q.n = n[3];
    for (int i = 0; i < 2; i++) {
        carat_session_options whole = {.n_ctx = CTX, .chunk = 64, .cache_dir = i ? dir : NULL};
        answer *r = i ? &got : &want;
        *r = (answer){.n = 0};
        CHECK_OK(carat_session_open(m, &whole, &s, &e), e);
        CHECK_OK(carat_generate(s, q.ids, q.n, &q.o, answer_heard, r, &r->t, &e), e);
        carat_session_close(s);
        CHECK(!r->t.lossy);
    }
    CHECK(got.n == want.n && !memcmp(got.ids, want.ids, sizeof *got.ids * (size_t)got.n));
    CHECK(got.t.n_reused > 0 && got.t.n_reused <= KEEP); /* exact ones do serve */
}

PLAIN_TEST(a_slot_of_scored_pages_is_exact_and_lossy_in_turns)
{
    exact_and_lossy_in_turns("scored");
}

TEST(a_slot_that_drops_pages_is_exact_and_lossy_in_turns)
{
    exact_and_lossy_in_turns("snapkv");
}

TEST(allocations_of_conversations_that_keep_pages_may_fail)
{
    AUTO_MODEL *m = open_model(NULL);
    AUTO_MEM question *q = mem_calloc(1, sizeof *q);
    uint64_t rng = test_seed();
    CHECK(q);
    draw(m, q, 0, &rng);
    q->o.max_tokens = 12;
    for (int64_t n = 0;; n += 1 + n / 24) { /* each of the first ones, then fewer */
        err e = {0};
        mem_fail_after(n);
        status st = one_round(m, q, &e);
        bool hit = mem_fail_hit();
        mem_fail_after(-1);
        CHECK_MSG(!st || (hit && st == E_MEMORY), "allocation %lld: %s", (long long)n, e.text);
        if (!hit)
            break;
    }
}

/* Eight prompts of 200 tokens in the bundled model, whose checkpoints have 1 MB each: those that
 * are reserved and those that are kept together never exceed a budget of 4. */
TEST(reserved_checkpoints_are_part_of_the_budget)
{
    enum { SLOTS = 8, LENGTH = 200, BUDGET_MB = 4 };
    const char *path = test_path("models/demo.gguf");
    carat_error e = {0};
    AUTO_MODEL *m = NULL;
    AUTO_BATCH *b = NULL;
    int32_t ids[LENGTH], n_reserved = 0, n_kept = 0;
    uint64_t rng = test_seed();
    if (access(path, R_OK))
        test_skip("models/demo.gguf is not there");
    CHECK_OK(carat_model_open(path, NULL, &m, &e), e);
    const carat_batch_options o = {
        .session = {.n_ctx = CTX, .chunk = 64, .checkpoint_mb = BUDGET_MB}, .n_slots = SLOTS};
    CHECK_OK(carat_batch_open(m, &o, &b, &e), e);
    for (int round = 0; round < 2; round++) { /* the second discards what the first left */
        for (int i = 0; i < SLOTS; i++) {
            carat_generate_options g = {.max_tokens = 4};
            carat_sampling_default(m, &g.sampling);
            const carat_job j = {.ids = ids, .n = LENGTH, .opt = &g};
            for (int k = 0; k < LENGTH; k++)
                ids[k] = 300 + (int32_t)rng_below(&rng, 1000);
            CHECK_OK(carat_batch_submit(b, &j, NULL, NULL, &e), e);
        }
        do {
            carat_cache_info info;
            uint64_t reserved = 0;
            checkpoints_info(b->store, &info);
            for (int i = 0; i < SLOTS; i++)
                for (int32_t k = 0; k < b->slot[i].t.n_pending; k++) {
                    reserved += b->slot[i].t.pending[k]->own_bytes;
                    n_reserved++;
                }
            n_kept += info.n_checkpoints;
            CHECK(reserved + info.checkpoint_bytes <= (uint64_t)BUDGET_MB << 20);
        } while (carat_batch_step(b));
    }
    CHECK(n_reserved > 0 && n_kept > 0);
    for (int i = 0; i < SLOTS; i++)
        timeline_reset(&b->slot[i].t);
    CHECK(checkpoints_may_wait(b->store, (uint64_t)BUDGET_MB << 19)); /* nothing is forgotten */
    CHECK(!checkpoints_may_wait(b->store, ((uint64_t)BUDGET_MB << 19) + 1));
}
