/* pace_batch_test.c - prompts that are cut by time, in batches whose clock is made up: when tokens
 * come, and that no answer depends on it.
 */
#include "engine/batch_int.h"
#include "backend/host_arena.h"
#include "base/mem.h"
#include "base/rng.h"
#include "tests/answers.h"
#include "tests/test.h"
#include "tests/toy_model.h"

#include <string.h>
#include <time.h>

enum { CTX = 1536, JOBS = 10, LATER = 640 /* a context */ };

/* A pass of n rows takes fixed + n * row milliseconds of this clock; in one of `accidents` passes
 * fifty times as many. */
static struct {
    carat_batch *b;
    double now, fixed, row;
    uint64_t rng;
    int64_t step;    /* the batch's n_steps when it asked last */
    int32_t n_asked; /* in this step */
    int32_t accidents, rows_least, rows_most;
} made_up;

/* A batch asks when a pass begins, when it has ended, and after its results were taken. */
static double made_up_clock(void)
{
    const step *st = &made_up.b->w.batch.st;
    if (made_up.step != made_up.b->n_steps)
        made_up.n_asked = 0;
    made_up.step = made_up.b->n_steps;
    if (++made_up.n_asked != 2)
        return made_up.now;
    double ms = made_up.fixed + st->all.n * made_up.row;
    if (made_up.accidents && !rng_below(&made_up.rng, (uint64_t)made_up.accidents))
        ms *= 50;
    if (!made_up.rows_least || st->all.n < made_up.rows_least)
        made_up.rows_least = st->all.n;
    if (st->all.n > made_up.rows_most)
        made_up.rows_most = st->all.n;
    return made_up.now += ms;
}

static void use_clock(carat_batch *b, double fixed, double row, int32_t accidents, uint64_t seed)
{
    memset(&made_up, 0, sizeof made_up);
    made_up.b = b;
    made_up.fixed = fixed;
    made_up.row = row;
    made_up.accidents = accidents;
    made_up.rng = seed;
    b->clock = made_up_clock;
}

static carat_model *open_model(const char *draft)
{
    return toy_model_open(&(toy_model_file){.n_ctx_train = CTX, .scale = 4},
                          &(carat_model_options){.n_threads = 1, .draft = draft});
}

/* ---- When tokens come ------------------------------------------------------------------------ */

typedef struct listener {
    double last, worst; /* of made_up.now; worst: the longest gap after the first `skip` */
    int32_t n, skip;
} listener;

static bool listen_to(void *user, const carat_event *ev)
{
    listener *l = user;
    if (ev->kind != CARAT_EV_TOKEN)
        return true;
    if (l->n++ > l->skip && made_up.now - l->last > l->worst)
        l->worst = made_up.now - l->last;
    l->last = made_up.now;
    return true;
}

static void submit_prompt(carat_batch *b, int64_t n, int32_t max_tokens, carat_event_fn fn,
                          void *user, uint64_t *rng)
{
    int32_t ids[CTX];
    carat_error e = {0};
    carat_generate_options o = {.max_tokens = max_tokens};
    const carat_job j = {.ids = ids, .n = n, .opt = &o, .fn = fn, .user = user};
    carat_sampling_default(b->m, &o.sampling);
    o.sampling.temperature = 0;
    o.sampling.ignore_eog = true;
    for (int64_t k = 0; k < n; k++)
        ids[k] = 20 + (int32_t)rng_below(rng, 150);
    CHECK_OK(carat_batch_submit(b, &j, NULL, NULL, &e), e);
}

/* The longest gap between tokens of an answer beside prompts of 600 tokens. */
static double worst_gap(carat_model *m, bool apart, int32_t gap_ms, double fixed, double row)
{
    const carat_batch_options o = {
        .session = {.n_ctx = LATER, .chunk = 512}, .n_slots = 3, .gap_ms = gap_ms};
    carat_batch *b;
    carat_error e = {0};
    uint64_t rng = test_seed();
    listener l = {.skip = 50};
    m->dev->prompts_apart = apart;
    CHECK_OK(carat_batch_open(m, &o, &b, &e), e);
    use_clock(b, fixed, row, 0, 1);
    submit_prompt(b, 20, 160, listen_to, &l, &rng);
    while (l.n < 20)
        CHECK(carat_batch_step(b));
    while (carat_batch_step(b) && l.n < 100)
        if (!b->slot[1].job && !b->slot[2].job)
            for (int i = 0; i < 2; i++)
                submit_prompt(b, 600, 2, NULL, NULL, &rng);
    CHECK(l.n >= 100);
    carat_batch_close(b);
    m->dev->prompts_apart = false;
    return l.worst;
}

TEST(tokens_come_in_time_beside_prompts)
{
    AUTO_MODEL *m = toy_model_open(&(toy_model_file){.n_ctx_train = LATER},
                                   &(carat_model_options){.n_threads = 1});
    for (int apart = 0; apart < 2; apart++) {
        double gap = worst_gap(m, apart, 12, 2, 0.05);
        CHECK_MSG(gap > 9 && gap < 13.5, "apart %d: %g ms", apart, gap);
        gap = worst_gap(m, apart, 30, 2, 0.05);
        CHECK_MSG(gap > 24 && gap < 32, "apart %d: %g ms", apart, gap);
        gap = worst_gap(m, apart, 0, 2, 0.05); /* the default */
        CHECK_MSG(gap > 9 && gap < 13.5, "apart %d: %g ms", apart, gap);
        gap = worst_gap(m, apart, -1, 2, 0.05); /* whole chunks: 27.6 ms at least */
        CHECK_MSG(gap > 27, "apart %d: %g ms", apart, gap);
    }
}

/* ---- Conversations that are discarded -------------------------------------------------------- */

static int32_t n_moves;

/* Copies, and takes 4 ms for it. */
static void slow_move(device *d, const block_move *m)
{
    (void)d;
    nanosleep(&(struct timespec){.tv_nsec = 4000000}, NULL);
    for (int32_t i = 0; i < m->n; i++) {
        char *dev = m->dev + (size_t)i * m->dev_stride;
        char *host = m->host + (size_t)i * m->host_stride;
        memcpy(m->load ? dev : host, m->load ? host : dev, m->n_bytes);
    }
    n_moves++;
}

/* Four prompts come at once for four slots that have to copy what they had. Returns how many of
 * them begin before the next pass. answers: beside an answer. */
static int32_t begun_at_once(carat_model *m, int32_t gap_ms, bool answers)
{
    const carat_batch_options o = {
        .session = {.n_ctx = LATER, .chunk = 512}, .n_slots = 5, .gap_ms = gap_ms};
    carat_batch *b;
    carat_error e = {0};
    uint64_t rng = test_seed();
    listener l = {.skip = 0};
    int32_t at_once = 0, n_steps = 0;
    CHECK_OK(carat_batch_open(m, &o, &b, &e), e);
    if (answers)
        submit_prompt(b, 20, 500, listen_to, &l, &rng);
    while (answers && !l.n)
        CHECK(carat_batch_step(b));
    for (int i = 0; i < (answers ? 4 : 5); i++)
        submit_prompt(b, 100, 2, NULL, NULL, &rng);
    while (b->info.n_busy > answers || b->info.n_queued)
        CHECK(carat_batch_step(b));
    m->dev->move = slow_move;
    const uint64_t before = b->info.n_jobs;
    n_moves = 0;
    for (int i = 0; i < 4; i++)
        submit_prompt(b, 100, 2, NULL, NULL, &rng);
    for (; b->info.n_jobs - before < 4; n_steps++) {
        const int had = l.n;
        CHECK(carat_batch_step(b));
        CHECK(l.n == had + answers);
        at_once = at_once ? at_once : (int32_t)(b->info.n_jobs - before);
    }
    CHECK(n_moves > 8);
    CHECK_EQ(n_steps, at_once == 4 ? 1 : 4);
    m->dev->move = NULL;
    carat_batch_close(b);
    return at_once;
}

TEST(discarded_conversations_are_copied_one_between_two_tokens)
{
    AUTO_MODEL *m = toy_model_open(&(toy_model_file){.n_ctx_train = LATER},
                                   &(carat_model_options){.n_threads = 1});
    CHECK(!m->dev->move);
    CHECK_EQ(begun_at_once(m, 12, true), 1);
    CHECK_EQ(begun_at_once(m, 12, false), 4); /* no answer is being decoded */
    CHECK_EQ(begun_at_once(m, -1, true), 4);
}

/* A device that locks memory, by the arena of a GPU. */
static host_arena locked;

static void *take_host(device *d, size_t n_bytes)
{
    (void)d;
    return host_arena_take(&locked, n_bytes);
}

static void give_host(device *d, void *at, size_t n_bytes)
{
    (void)d;
    if (at)
        host_arena_give(&locked, at, n_bytes);
}

static void unlock_section(char *at)
{
    (void)at;
}

/* Opens a batch, or a session; how much memory has it asked the device to lock? */
static size_t locked_at_start(carat_model *m, bool batch, int32_t checkpoint_mb)
{
    const carat_batch_options o = {.session = {.n_ctx = CTX, .checkpoint_mb = checkpoint_mb},
                                   .n_slots = 1};
    carat_batch *b = NULL;
    carat_session *s = NULL;
    carat_error e = {0};
    m->dev->host_alloc = take_host;
    m->dev->host_free = give_host;
    CHECK_OK(batch ? carat_batch_open(m, &o, &b, &e) : carat_session_open(m, &o.session, &s, &e),
             e);
    const size_t n = locked.asked_bytes;
    CHECK(!locked.used_bytes); /* it is free for checkpoints */
    carat_batch_close(b);
    carat_session_close(s);
    host_arena_close(&locked, unlock_section);
    m->dev->host_alloc = NULL;
    m->dev->host_free = NULL;
    return n;
}

TEST(batches_lock_no_more_than_half_of_what_is_available)
{
    const uint64_t gib = (uint64_t)1 << 30;
    CHECK_EQ(checkpoints_ahead_bytes(gib, 0), gib + gib / 16);
    CHECK_EQ(checkpoints_ahead_bytes(gib, 4 * gib), gib + gib / 16); /* the default: a quarter */
    CHECK_EQ(checkpoints_ahead_bytes(64 * gib, 4 * gib), 2 * gib);
    CHECK_EQ(checkpoints_ahead_bytes(64 * gib, 64 * gib), 4 * gib + gib / 4);
}

/* Sessions are short, and their starts are not to take seconds of locking. */
TEST(batches_lock_the_memory_of_checkpoints_at_the_start)
{
    const size_t mb = (size_t)1 << 20;
    AUTO_MODEL *m = open_model(NULL);
    size_t n = locked_at_start(m, true, 160);
    CHECK_MSG(n >= 160 * mb && n < 240 * mb, "%zu MB", n / mb);
    n = locked_at_start(m, true, 8192);
    const size_t most = (size_t)checkpoints_ahead_bytes(8192 * mb, mem_available_bytes());
    CHECK_MSG(n >= most / 4 * 3 && n < 4700 * mb, "%zu MB", n / mb);
    CHECK_EQ(locked_at_start(m, true, -1), 0); /* no checkpoints */
    CHECK_EQ(locked_at_start(m, false, 160), 0);
}

/* ---- What is answered ------------------------------------------------------------------------ */

static void draw(const carat_model *m, question *q, int i, uint64_t *rng)
{
    carat_model_info info;
    uint64_t shared = 5;
    carat_model_get_info(m, &info);
    q->n = i % 3 == 2 ? 1 + (int64_t)rng_below(rng, 60) : 200 + (int64_t)rng_below(rng, 900);
    for (int64_t k = 0; k < q->n; k++)
        q->ids[k] = k >= 260 && k % 50 ? q->ids[k - 50]
                                       : (int32_t)rng_below(i % 4 == 1 && k < 200 ? &shared : rng,
                                                            (uint64_t)info.n_vocab);
    q->o = (carat_generate_options){.max_tokens = 1 + (int32_t)rng_below(rng, 120)};
    carat_sampling_default(m, &q->o.sampling);
    q->o.sampling.temperature = i % 4 == 3 ? 0.8f : 0;
    q->o.sampling.seed = (uint32_t)i;
    q->o.sampling.ignore_eog = true;
}

/* The same tokens as alone; those that it has, if somebody ended it. */
static void check_answer(const answer *got, const answer *want, int i)
{
    CHECK_EQ(got->n_done, 1);
    bool ended = got->st == E_CANCELLED || got->finish == CARAT_FINISH_CANCELLED;
    CHECK_MSG(ended ? got->n <= want->n : got->n == want->n, "job %d: %d tokens, alone %d", i,
              got->n, want->n);
    for (int k = 0; k < got->n; k++)
        CHECK_MSG(got->ids[k] == want->ids[k], "job %d, token %d: %d, alone %d", i, k, got->ids[k],
                  want->ids[k]);
    if (!ended)
        CHECK_OK(got->st, got->e);
}

/* Jobs come at any time, some are cancelled; times of passes are drawn, and so are the widths of
 * parts. */
static void run_company(carat_model *m, carat_session_options so, const question *q,
                        const answer *want, uint64_t *rng)
{
    const carat_batch_options o = {.session = so,
                                   .n_slots = 2 + (int32_t)rng_below(rng, 4),
                                   .gap_ms = 1 + (int32_t)rng_below(rng, 20)};
    AUTO_MEM answer *got = mem_calloc(JOBS, sizeof *got);
    carat_batch *b;
    carat_error e = {0};
    int sent = 0;
    m->dev->prompts_apart = rng_below(rng, 2);
    CHECK_OK(carat_batch_open(m, &o, &b, &e), e);
    use_clock(b, rng_unit(rng) * 4, rng_unit(rng) * 0.4, rng_below(rng, 2) ? 12 : 0, rng_next(rng));
    if (!rng_below(rng, 3))
        carat_batch_share(b, 3);
    while (carat_batch_step(b) || sent < JOBS) {
        if (sent < JOBS && !rng_below(rng, 6)) {
            answer_submit(b, &q[sent], &got[sent]);
            sent++;
        }
        if (!rng_below(rng, 200))
            carat_batch_cancel(b, 1 + (int64_t)rng_below(rng, JOBS));
    }
    for (int i = 0; i < JOBS; i++)
        check_answer(&got[i], &want[i], i);
    CHECK(made_up.rows_most > made_up.rows_least);
    carat_batch_close(b);
    m->dev->prompts_apart = false;
}

static void answers_as_alone(const char *draft, bool pool)
{
    carat_model *plain = open_model(NULL), *m = draft ? open_model(draft) : plain;
    carat_session_options so = {.n_ctx = CTX, .chunk = 64, .draft_max = 7};
    AUTO_MEM question *q = mem_calloc(JOBS, sizeof *q);
    AUTO_MEM answer *want = mem_calloc(JOBS, sizeof *want);
    uint64_t rng = test_seed();
    CHECK(q && want);
    if (pool) {
        so.kv_resident = 512;
        so.kv_policy = "scored";
        so.kv_pool = 960; /* of two at least */
    } else
        so.chunk = 256;
    for (int i = 0; i < JOBS; i++) {
        carat_session_options one = so;
        draw(m, &q[i], i, &rng);
        one.kv_pool = 0;
        answer_alone(plain, &one, &q[i], &want[i]);
        if (draft)
            q[i].o.speculation = (carat_speculation){.n_max = 7, .tree_max = -1, .fixed = true};
    }
    for (int k = 0; k < (SANITIZED || test_brief() ? 2 : 6); k++)
        run_company(m, so, q, want, &rng);
    if (m != plain)
        carat_model_close(m);
    carat_model_close(plain);
}

PLAIN_TEST(answers_beside_prompts_of_any_parts_are_those_alone)
{
    answers_as_alone(NULL, false);
}

PLAIN_TEST(drafted_answers_beside_prompts_of_any_parts_are_those_alone)
{
    answers_as_alone("lookup", false);
}

PLAIN_TEST(answers_of_a_pool_beside_prompts_of_any_parts_are_those_alone)
{
    answers_as_alone(NULL, true);
}

/* ---- What is measured ------------------------------------------------------------------------ */

static int n_waits;

static void count_wait(device *d)
{
    (void)d;
    n_waits++;
}

/* A device that works on its own is waited for in passes of prompts beside answers whose results
 * nobody reads, and in no others. A pass that nobody waited for is not measured, and neither is the
 * next one, which may have waited for it. */
TEST(a_device_that_works_on_its_own_is_waited_for_beside_answers)
{
    AUTO_MODEL *m = toy_model_open(NULL, NULL);
    const carat_batch_options o = {.session = {.n_ctx = 512, .chunk = 32}, .n_slots = 2};
    uint64_t rng = test_seed();
    listener l = {0};
    carat_error e = {0};
    carat_batch *b;
    m->dev->wait = count_wait;
    n_waits = 0;
    CHECK_OK(carat_batch_open(m, &o, &b, &e), e);
    use_clock(b, 1, 0.01, 0, 1);
    submit_prompt(b, 100, 40, listen_to, &l, &rng);
    while (!l.n)
        CHECK(carat_batch_step(b));
    CHECK(!n_waits && !b->pace.prompts.n && !b->pace.answers.n);
    for (int i = 0; i < 3; i++)
        CHECK(carat_batch_step(b));
    CHECK(!n_waits && b->pace.answers.n == 3);
    submit_prompt(b, 100, 3, NULL, NULL, &rng);
    CHECK(carat_batch_step(b)); /* a token of the answer is read */
    CHECK(!n_waits && b->pace.prompts.n == 1);
    carat_batch_close(b);
    m->dev->prompts_apart = true;
    CHECK_OK(carat_batch_open(m, &o, &b, &e), e);
    use_clock(b, 1, 0.01, 0, 1);
    l.n = 0;
    submit_prompt(b, 100, 40, listen_to, &l, &rng);
    while (!l.n)
        CHECK(carat_batch_step(b));
    submit_prompt(b, 100, 3, NULL, NULL, &rng);
    while (!b->slot[1].answering)
        CHECK(carat_batch_step(b));
    CHECK(n_waits >= 2 && b->pace.prompts.n == n_waits + 1); /* a token of the last part is read */
    carat_batch_close(b);
    m->dev->prompts_apart = false;
    m->dev->wait = NULL;
}
