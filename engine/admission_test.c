/* admission_test.c - a batch whose pool of keys is smaller than its contexts. Jobs wait for room,
 * and their keys leave the device and come back. Every answer is the answer of a session alone. */
#include "carat.h"
#include "base/mem.h"
#include "base/rng.h"
#include "tests/answers.h"
#include "tests/test.h"
#include "tests/toy_model.h"

enum { CTX = 512, JOBS = 16 };

/* Prompts of a fifth of the pool on average; most begin with the same 130 tokens. */
static void draw(const carat_model *m, question *q, int i, uint64_t *rng)
{
    carat_model_info info;
    uint64_t shared = 5;
    carat_model_get_info(m, &info);
    q->n = 20 + (int64_t)rng_below(rng, 220);
    for (int64_t k = 0; k < q->n; k++)
        q->ids[k] = (int32_t)rng_below(i % 4 && k < 130 ? &shared : rng, (uint64_t)info.n_vocab);
    q->o = (carat_generate_options){.max_tokens = 20 + (int32_t)rng_below(rng, 100)};
    carat_sampling_default(m, &q->o.sampling);
    q->o.sampling.temperature = i % 2 ? 0.8f : 0;
    q->o.sampling.seed = (uint32_t)i;
    q->o.sampling.ignore_eog = true;
}

static void alone(carat_model *m, const question *q, answer *r)
{
    answer_alone(m, &(carat_session_options){.n_ctx = CTX}, q, r);
}

static carat_batch *open_batch(carat_model *m, int32_t pool, int32_t checkpoint_mb)
{
    carat_batch *b;
    carat_error e = {0};
    const carat_batch_options o = {
        .session = {.n_ctx = CTX, .chunk = 64, .kv_pool = pool, .checkpoint_mb = checkpoint_mb},
        .n_slots = JOBS};
    CHECK_OK(carat_batch_open(m, &o, &b, &e), e);
    return b;
}

PLAIN_TEST(jobs_of_a_small_pool_answer_as_if_alone)
{
    static const int32_t pool[] = {512, 832, 1024, 0}, budget_mb[] = {0, -1, 1, 0};
    AUTO_MODEL *m = toy_model_open(NULL, NULL);
    AUTO_MEM question *q = mem_calloc(JOBS, sizeof *q);
    AUTO_MEM answer *want = mem_calloc(JOBS, sizeof *want), *got = mem_calloc(JOBS, sizeof *got);
    uint64_t rng = test_seed(), n_preempted = 0;
    CHECK(q && want && got);
    for (int i = 0; i < JOBS; i++) {
        draw(m, &q[i], i, &rng);
        alone(m, &q[i], &want[i]);
    }
    for (int k = 0; k < 4; k += 1 + test_brief()) {
        AUTO_BATCH *b = open_batch(m, pool[k], budget_mb[k]);
        carat_batch_info info;
        carat_slot_info slots[JOBS];
        int most_out = 0;
        for (int round = 0; round < 2; round++) {
            for (int i = 0; i < JOBS; i++)
                answer_submit(b, &q[i], &got[i]);
            while (carat_batch_step(b)) {
                carat_batch_get_info(b, &info, slots, JOBS);
                int n_out = 0;
                for (int i = 0; i < JOBS; i++)
                    n_out += slots[i].paged_out;
                CHECK_EQ(n_out, info.n_paged_out);
                CHECK(info.pool_free >= 0 && info.pool_free <= info.pool_tokens);
                most_out = n_out > most_out ? n_out : most_out;
            }
            for (int i = 0; i < JOBS; i++)
                answer_check(&got[i], &want[i], i);
        }
        carat_batch_get_info(b, &info, NULL, 0);
        CHECK_EQ(info.pool_tokens, pool[k] ? pool[k] : JOBS * CTX);
        CHECK_EQ(info.n_busy + info.n_queued + info.n_paged_out, 0);
        CHECK(info.n_preempted == 0 || pool[k]);
        CHECK_EQ(most_out > 0, info.n_preempted > 0);
        n_preempted += info.n_preempted;
    }
    CHECK(n_preempted > 0);
}

/* Some jobs are cancelled while they run, wait in the queue, or wait in host memory. */
TEST(jobs_of_a_small_pool_may_be_cancelled_at_any_time)
{
    AUTO_MODEL *m = toy_model_open(NULL, NULL);
    AUTO_MEM question *q = mem_calloc(JOBS, sizeof *q);
    AUTO_MEM answer *want = mem_calloc(JOBS, sizeof *want), *got = mem_calloc(JOBS, sizeof *got);
    uint64_t rng = test_seed();
    AUTO_BATCH *b = open_batch(m, 576, 0);
    CHECK(q && want && got);
    for (int i = 0; i < JOBS; i++) {
        draw(m, &q[i], i, &rng);
        alone(m, &q[i], &want[i]);
        answer_submit(b, &q[i], &got[i]); /* ids 1, 2, .. */
    }
    while (carat_batch_step(b))
        if (rng_below(&rng, 10) == 0)
            carat_batch_cancel(b, 1 + (int64_t)rng_below(&rng, JOBS));
    int n_whole = 0;
    for (int i = 0; i < JOBS; i++) {
        CHECK_EQ(got[i].n_done, 1);
        CHECK(got[i].n <= want[i].n &&
              !memcmp(got[i].ids, want[i].ids, sizeof(int32_t) * (size_t)got[i].n));
        n_whole += got[i].n == want[i].n;
    }
    CHECK(n_whole < JOBS);
}

/* An answer as long as the pool: the pool bounds the context. */
PLAIN_TEST(an_answer_ends_where_the_pool_ends)
{
    AUTO_MODEL *m = toy_model_open(NULL, NULL);
    question q;
    answer r;
    uint64_t rng = 1;
    AUTO_BATCH *b;
    carat_error e = {0};
    carat_batch_options o = {.session = {.n_ctx = 1024, .kv_pool = 600}, .n_slots = 2};
    CHECK_OK(carat_batch_open(m, &o, &b, &e), e);
    CHECK_EQ(carat_batch_n_ctx(b), 640);
    draw(m, &q, 0, &rng);
    q.n = 300;
    for (int i = 0; i < 300; i++)
        q.ids[i] = 5 + i % 7;
    q.o.max_tokens = 1000;
    answer_submit(b, &q, &r);
    while (carat_batch_step(b))
        ;
    CHECK_OK(r.st, r.e);
    CHECK_EQ(r.finish, CARAT_FINISH_LENGTH);
    CHECK_EQ(q.n + r.n, 640 + 1); /* the last token is not computed */
}

TEST(a_pool_that_makes_no_sense_is_refused_with_a_sentence)
{
    static const struct {
        int32_t pool;
        const char *says;
    } bad[] = {{-1, "at least 512"},
               {64, "at least 512"},
               {511, "at least 512"},
               {4 * CTX + 1, "never hold more than 2048"},
               {INT32_MAX, "never hold more"}};
    AUTO_MODEL *m = toy_model_open(NULL, NULL);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const carat_batch_options o = {.session = {.n_ctx = CTX, .kv_pool = bad[i].pool},
                                       .n_slots = 4};
        carat_batch *b;
        carat_memory_plan plan;
        carat_error e = {0};
        CHECK_STATUS(carat_batch_open(m, &o, &b, &e), E_ARG);
        CHECK_MSG(!b && strstr(e.text, bad[i].says), "%s", e.text);
        err_clear(&e);
        CHECK_STATUS(carat_plan_batch(m, &o, &plan, &e), E_ARG);
    }
}

TEST(the_plan_of_a_pool_is_the_pool)
{
    AUTO_MODEL *m = toy_model_open(NULL, NULL);
    carat_memory_plan whole, half;
    carat_batch_options o = {.session = {.n_ctx = CTX}, .n_slots = 4};
    carat_error e = {0};
    CHECK_OK(carat_plan_batch(m, &o, &whole, &e), e);
    o.session.kv_pool = 2 * CTX;
    CHECK_OK(carat_plan_batch(m, &o, &half, &e), e);
    uint64_t tables = 4 * (CTX / 64 + 2) * 8, pools = whole.kv_global_bytes - tables;
    CHECK_EQ(half.kv_global_bytes - tables, pools / 2);
    CHECK_EQ(half.kv_swa_bytes, whole.kv_swa_bytes);
    CHECK_EQ(whole.total_bytes - half.total_bytes, whole.kv_global_bytes - half.kv_global_bytes);
}

static status small_pool_round(carat_model *m, err *e)
{
    AUTO_BATCH *b = NULL;
    question q;
    answer r[3];
    uint64_t rng = 9;
    const carat_batch_options o = {.session = {.n_ctx = CTX, .chunk = 64, .kv_pool = 512},
                                   .n_slots = 3};
    status st = carat_batch_open(m, &o, &b, e);
    memset(r, 0, sizeof r);
    for (int i = 0; i < 3 && !st; i++) {
        const carat_job j = {.ids = q.ids,
                             .n = 0,
                             .opt = &q.o,
                             .fn = answer_heard,
                             .done = answer_done,
                             .user = &r[i]};
        carat_job job = j;
        draw(m, &q, 0, &rng);
        job.n = q.n = 200;
        for (int k = 0; k < 200; k++)
            q.ids[k] = 5 + (k + i) % 9;
        q.o.max_tokens = 70;
        st = carat_batch_submit(b, &job, NULL, NULL, e);
    }
    while (!st && carat_batch_step(b))
        ;
    for (int i = 0; i < 3 && !st; i++)
        if (r[i].n_done && r[i].st)
            st = err_set(e, r[i].st, "%s", r[i].e.text);
    return st;
}

PLAIN_TEST(every_allocation_of_a_small_pool_may_fail)
{
    AUTO_MODEL *m = toy_model_open(NULL, &(carat_model_options){.n_threads = 1});
    /* The first allocations open the batch; those of jobs repeat with each of them. */
    for (int64_t n = 0;; n += test_brief() && n >= 40 ? 3 : 1) {
        err e = {0};
        mem_fail_after(n);
        status st = small_pool_round(m, &e);
        bool hit = mem_fail_hit();
        mem_fail_after(-1);
        CHECK_MSG(!st || (hit && st == E_MEMORY), "allocation %lld: %s", (long long)n, e.text);
        if (!hit)
            break;
    }
}
