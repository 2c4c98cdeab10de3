/* batch_test.c - generations in a batch against the same generations alone; masks and budgets;
 * every way to enter and leave a batch. */
#include "carat.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/rng.h"
#include "tests/test.h"
#include "tests/toy_model.h"

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

enum { CTX = 512, JOBS = 12, TOKENS = 40 };

typedef struct {
    int32_t ids[CTX];
    int n, n_end, n_done, stop_after;
    carat_finish finish;
    carat_status st;
    carat_timings t;
    carat_error e;
    char text[16384];
    size_t n_text;
    carat_batch *cancel_in; /* cancel `cancel_id` at the first token */
    int64_t cancel_id;
} record;

static bool keep(void *user, const carat_event *ev)
{
    record *r = user;
    CHECK(!r->n_done && !r->n_end);
    if (ev->kind == CARAT_EV_TOKEN) {
        CHECK(r->n < CTX);
        r->ids[r->n++] = ev->id;
        if (r->cancel_in && r->n == 1)
            carat_batch_cancel(r->cancel_in, r->cancel_id);
        return r->n != r->stop_after;
    }
    if (ev->kind == CARAT_EV_CONTENT || ev->kind == CARAT_EV_REASONING) {
        CHECK(r->n_text + ev->n_text < sizeof r->text);
        memcpy(r->text + r->n_text, ev->text, ev->n_text + 1);
        r->n_text += ev->n_text;
    }
    if (ev->kind == CARAT_EV_END) {
        r->n_end++;
        r->finish = ev->finish;
    }
    return true;
}

static void done(void *user, carat_status st, const carat_error *e, const carat_timings *t)
{
    record *r = user;
    CHECK_EQ(r->n_done, 0);
    r->n_done++;
    r->st = st;
    r->t = *t;
    if (e)
        r->e = *e;
}

typedef struct {
    int32_t ids[CTX];
    int64_t n;
    carat_generate_options o;
} request;

static carat_generate_options options(const carat_model *m, float temperature, int32_t max_tokens)
{
    carat_generate_options o = {.max_tokens = max_tokens};
    carat_sampling_default(m, &o.sampling);
    o.sampling.temperature = temperature;
    o.sampling.ignore_eog = true;
    return o;
}

/* Groups of three prompts share a prefix; some prompts are longer than windows and chunks. */
static void random_request(const carat_model *m, request *q, int i, uint64_t *rng)
{
    uint64_t shared = (uint64_t)(i / 3) + 99;
    q->n = 1 + (int64_t)rng_below(rng, i % 2 ? 300 : 30);
    for (int64_t k = 0; k < q->n; k++)
        q->ids[k] = (int32_t)rng_below(k < 20 ? &shared : rng, (uint64_t)toy_n_vocab(m));
    q->o = options(m, i % 4 ? 0.8f : 0, 1 + (int32_t)rng_below(rng, TOKENS));
    q->o.sampling.seed = (uint32_t)i;
    q->o.sampling.repeat_penalty = i % 5 ? 1 : 1.2f;
    q->o.sampling.n_top_logprobs = i % 3;
    q->o.sampling.mirostat = i % 7 == 3 ? 2 : 0;
    q->o.sampling.dry_multiplier = i % 7 == 5 ? 0.8f : 0;
    q->o.sampling.xtc_probability = i % 7 == 4 ? 0.7f : 0;
    q->o.parse = i % 2;
}

static void submit(carat_batch *b, const request *q, record *r, int64_t *id)
{
    carat_error e = {0};
    carat_job j = {.ids = q->ids, .n = q->n, .opt = &q->o, .fn = keep, .done = done, .user = r};
    CHECK_OK(carat_batch_submit(b, &j, id, NULL, &e), e);
}

static carat_batch *open_batch(carat_model *m, int32_t n_slots, int32_t chunk)
{
    carat_batch *b;
    carat_error e = {0};
    carat_batch_options o = {.session = {.n_ctx = CTX, .chunk = chunk}, .n_slots = n_slots};
    CHECK_OK(carat_batch_open(m, &o, &b, &e), e);
    return b;
}

static void alone(carat_model *m, const request *q, record *r)
{
    AUTO_SESSION *s;
    carat_error e = {0};
    CHECK_OK(carat_session_open(m, &(carat_session_options){.n_ctx = CTX}, &s, &e), e);
    CHECK_OK(carat_generate(s, q->ids, q->n, &q->o, keep, r, &r->t, &e), e);
}

static void check_same(const record *a, const record *b, int i)
{
    CHECK_MSG(a->n == b->n, "job %d: %d tokens, alone %d", i, a->n, b->n);
    for (int k = 0; k < a->n; k++)
        CHECK_MSG(a->ids[k] == b->ids[k], "job %d, token %d: %d, alone %d", i, k, a->ids[k],
                  b->ids[k]);
    CHECK_STR(a->text, b->text);
    CHECK_EQ(a->finish, b->finish);
    CHECK_EQ(a->n_end, 1);
}

PLAIN_TEST(jobs_of_a_batch_answer_as_if_alone)
{
    AUTO_MODEL *m = toy_model_open(NULL, NULL);
    AUTO_MEM request *q = mem_calloc(JOBS, sizeof *q);
    AUTO_MEM record *want = mem_calloc(JOBS, sizeof *want), *got = mem_calloc(JOBS, sizeof *got);
    uint64_t rng = test_seed();
    CHECK(q && want && got);
    for (int i = 0; i < JOBS; i++) {
        random_request(m, &q[i], i, &rng);
        alone(m, &q[i], &want[i]);
    }
    static const int32_t slots[] = {1, 3, 5, 16}, chunks[] = {1, 7, 64, 0};
    for (int k = 0; k < 4; k++) {
        AUTO_BATCH *b = open_batch(m, slots[k], chunks[k]);
        carat_batch_info info;
        memset(got, 0, JOBS * sizeof *got);
        int sent = 0;
        for (int i = 0; i < JOBS / 2; i++, sent++)
            submit(b, &q[i], &got[i], NULL);
        while (carat_batch_step(b) || sent < JOBS) /* submits the others while these run */
            if (sent < JOBS && rng_below(&rng, 4) == 0) {
                submit(b, &q[sent], &got[sent], NULL);
                sent++;
            }
        for (int i = 0; i < JOBS; i++) {
            CHECK_EQ(got[i].n_done, 1);
            CHECK_OK(got[i].st, got[i].e);
            check_same(&got[i], &want[i], i);
            CHECK_EQ(got[i].t.n_generated, got[i].n);
        }
        carat_batch_get_info(b, &info, NULL, 0);
        CHECK_EQ(info.n_jobs, JOBS);
        CHECK_EQ(info.n_busy, 0);
        CHECK_EQ(info.n_queued, 0);
        CHECK(slots[k] == 1 || info.n_passes < info.n_rows);
    }
}

/* The planned scratch suffices for any number of prompt rows beside any number of answers. With one
 * head and many threads, a few rows are divided otherwise than one or sixteen. */
PLAIN_TEST(every_mixture_of_answers_and_prompts_fits_the_plan)
{
    AUTO_MODEL *m = toy_model_open(NULL, &(carat_model_options){.n_threads = 4});
    for (int n_slots = 2; n_slots <= 20; n_slots += 9) {
        AUTO_BATCH *b = open_batch(m, n_slots, 0);
        AUTO_MEM record *r = mem_calloc(20, sizeof *r);
        request q = {.n = 120, .o = options(m, 0, 40)};
        uint64_t rng = test_seed();
        CHECK(r);
        for (int i = 0; i < n_slots; i++) {
            for (int64_t k = 0; k < q.n; k++)
                q.ids[k] = (int32_t)rng_below(&rng, (uint64_t)toy_n_vocab(m));
            submit(b, &q, &r[i], NULL);
            carat_batch_step(b); /* one more answer beside this prompt */
        }
        while (carat_batch_step(b))
            ;
        for (int i = 0; i < n_slots; i++)
            CHECK_OK(r[i].st, r[i].e);
    }
}

typedef struct {
    int clock; /* events so far, of all jobs */
} world;

typedef struct {
    world *w;
    int first_token, last_prefill, n_tokens;
} witness;

static bool watch(void *user, const carat_event *ev)
{
    witness *x = user;
    x->w->clock++;
    if (ev->kind == CARAT_EV_PREFILL)
        x->last_prefill = x->w->clock;
    if (ev->kind == CARAT_EV_TOKEN && !x->n_tokens++)
        x->first_token = x->w->clock;
    return true;
}

/* While a long prompt is computed, another job's answer gets a token in every pass. A short prompt
 * that is submitted last is answered before the long prompt is complete. */
PLAIN_TEST(a_long_prompt_stalls_nobody)
{
    AUTO_MODEL *m = toy_model_open(NULL, NULL);
    AUTO_BATCH *b = open_batch(m, 3, 8);
    world w = {0};
    witness x[3] = {{.w = &w}, {.w = &w}, {.w = &w}};
    static const int64_t n[3] = {20, 400, 30};
    uint64_t rng = test_seed();
    for (int i = 0; i < 3; i++) {
        request q = {.n = n[i], .o = options(m, 0, i ? 5 : 150)};
        carat_error e = {0};
        for (int64_t k = 0; k < q.n; k++)
            q.ids[k] = (int32_t)rng_below(&rng, (uint64_t)toy_n_vocab(m));
        carat_job j = {.ids = q.ids, .n = q.n, .opt = &q.o, .fn = watch, .user = &x[i]};
        CHECK_OK(carat_batch_submit(b, &j, NULL, NULL, &e), e);
        for (int k = 0; k < 5; k++)
            carat_batch_step(b);
    }
    int before = x[0].n_tokens;
    CHECK(before > 0 && !x[1].n_tokens);
    while (!x[1].n_tokens) {
        int had = x[0].n_tokens;
        CHECK(carat_batch_step(b));
        CHECK(x[0].n_tokens == had + 1 || had == 150);
    }
    CHECK(x[0].n_tokens - before > 30);
    CHECK(x[2].n_tokens == 5 && x[2].first_token < x[1].last_prefill);
    while (carat_batch_step(b))
        ;
    CHECK(x[0].n_tokens == 150 && x[1].n_tokens == 5);
}

/* Three prompts that come together beside an answer, a short one while the first is computed, and
 * one that is as long as all of them: in which order do their answers begin? */
TEST(short_prompts_and_those_that_came_first_are_answered_first)
{
    enum { ANSWERED, FIRST, SECOND, THIRD, SHORT, LONG, N };
    static const int64_t n[N] = {5, 120, 120, 120, 20, 500};
    static const int order[] = {SHORT, FIRST, SECOND, THIRD, LONG};
    AUTO_MODEL *m = toy_model_open(NULL, NULL);
    carat_batch *b = open_batch(m, N, 32);
    static request q[N];
    static record r[N];
    int64_t id;
    int n_begun = 0;
    uint64_t rng = 8;
    for (int i = 0; i < N; i++) {
        q[i] = (request){.n = n[i], .o = options(m, 0, i == ANSWERED ? 400 : 2)};
        for (int64_t k = 0; k < q[i].n; k++)
            q[i].ids[k] = (int32_t)rng_below(&rng, (uint64_t)toy_n_vocab(m));
    }
    submit(b, &q[ANSWERED], &r[ANSWERED], &id);
    while (!r[ANSWERED].n)
        CHECK(carat_batch_step(b));
    static const int come[] = {LONG, FIRST, SECOND, THIRD};
    for (int i = 0; i < 4; i++)
        submit(b, &q[come[i]], &r[come[i]], &id);
    CHECK(carat_batch_step(b));
    submit(b, &q[SHORT], &r[SHORT], &id);
    while (n_begun < 5) {
        CHECK(carat_batch_step(b));
        for (; n_begun < 5 && r[order[n_begun]].n; n_begun++)
            for (int k = n_begun + 1; k < 5; k++)
                CHECK_MSG(r[order[k]].n <= r[order[n_begun]].n, "%d began before %d", order[k],
                          order[n_begun]);
    }
    carat_batch_close(b);
}

/* Short prompts that never end to come delay a long one by about as many rows as it has. */
TEST(a_long_prompt_is_answered_behind_as_many_rows_of_short_ones)
{
    enum { LONG_ROWS = 400, SHORT_ROWS = 20, SHORTS = 3 };
    AUTO_MODEL *m = toy_model_open(NULL, NULL);
    AUTO_BATCH *b = open_batch(m, 1 + SHORTS, 8);
    static record all, r[SHORTS];
    static request q;
    int64_t n_before = 0;
    uint64_t rng = 8;
    q = (request){.n = LONG_ROWS, .o = options(m, 0, 1)};
    for (int64_t k = 0; k < q.n; k++)
        q.ids[k] = (int32_t)rng_below(&rng, (uint64_t)toy_n_vocab(m));
    submit(b, &q, &all, NULL);
    for (int i = 0; i < SHORTS; i++)
        r[i].n_done = 1;
    while (!all.n) {
        for (int i = 0; i < SHORTS; i++) {
            if (!r[i].n_done)
                continue;
            q = (request){.n = SHORT_ROWS, .o = options(m, 0, 1)};
            for (int64_t k = 0; k < q.n; k++)
                q.ids[k] = (int32_t)rng_below(&rng, (uint64_t)toy_n_vocab(m));
            memset(&r[i], 0, sizeof r[i]);
            submit(b, &q, &r[i], NULL);
            n_before += SHORT_ROWS;
        }
        CHECK(carat_batch_step(b));
        CHECK_MSG(n_before <= LONG_ROWS + (SHORTS + 1) * SHORT_ROWS, "%lld rows of short prompts",
                  (long long)n_before);
    }
    CHECK_MSG(n_before > LONG_ROWS / 2, "%lld rows of short prompts", (long long)n_before);
    while (carat_batch_step(b))
        ;
}

PLAIN_TEST(a_follow_up_goes_to_the_slot_that_knows_it)
{
    AUTO_MODEL *m = toy_model_open(NULL, NULL);
    AUTO_BATCH *b = open_batch(m, 3, 16);
    request q[3] = {0};
    uint64_t rng = test_seed();
    for (int i = 0; i < 3; i++) {
        q[i].n = 100;
        for (int64_t k = 0; k < 100; k++)
            q[i].ids[k] = (int32_t)rng_below(&rng, (uint64_t)toy_n_vocab(m));
        q[i].o = options(m, 0, 10);
    }
    for (int round = 0; round < 4; round++)
        for (int i = 2; i >= 0; i--) {
            record r = {0};
            submit(b, &q[i], &r, NULL);
            while (carat_batch_step(b))
                ;
            CHECK_OK(r.st, r.e);
            CHECK_EQ(r.t.n_reused, round ? q[i].n - 6 : 0);
            CHECK_EQ(r.t.n_computed, r.t.n_prompt - r.t.n_reused);
            CHECK_STR(r.t.reuse, round ? "extended" : "new");
            for (int k = 0; k < r.n; k++) /* the answer, and 5 new tokens */
                q[i].ids[q[i].n++] = r.ids[k];
            q[i].n--; /* the last token was not computed */
            for (int k = 0; k < 6; k++)
                q[i].ids[q[i].n++] = (int32_t)rng_below(&rng, (uint64_t)toy_n_vocab(m));
        }
}

/* n answers to one prompt, and one to a prompt that shares its prefix: the prefix is computed once.
 */
PLAIN_TEST(jobs_with_one_prompt_compute_it_once)
{
    AUTO_MODEL *m = toy_model_open(NULL, NULL);
    AUTO_BATCH *b = open_batch(m, 4, 32);
    request q = {.n = 200, .o = options(m, 0.8f, 30)};
    record r[4] = {0}, want = {0};
    uint64_t rng = test_seed();
    for (int64_t k = 0; k < 200; k++)
        q.ids[k] = (int32_t)rng_below(&rng, (uint64_t)toy_n_vocab(m));
    q.o.sampling.seed = 3;
    alone(m, &q, &want);
    for (int i = 0; i < 3; i++) {
        q.o.sampling.seed = (uint32_t)(3 + i);
        submit(b, &q, &r[i], NULL);
    }
    request other = q;
    other.ids[150] ^= 1;
    submit(b, &other, &r[3], NULL);
    while (carat_batch_step(b))
        ;
    check_same(&r[0], &want, 0);
    CHECK(memcmp(r[0].ids, r[1].ids, sizeof r[0].ids) != 0);
    for (int i = 0; i < 4; i++) {
        CHECK_OK(r[i].st, r[i].e);
        CHECK_EQ(r[i].n, 30);
    }
    CHECK_EQ(r[0].t.n_reused, 0);
    CHECK(r[1].t.n_reused >= 180); /* fewer tokens than WAIT_GAIN are computed again */
    CHECK_STR(r[1].t.reuse, "restored");
    CHECK(r[2].t.n_reused >= 180);
    CHECK_EQ(r[3].t.n_reused, 150);
    record fresh = {0};
    alone(m, &other, &fresh);
    check_same(&r[3], &fresh, 3);
}

TEST(a_batch_ends_jobs_when_told_to)
{
    AUTO_MODEL *m = toy_model_open(NULL, NULL);
    carat_batch *b = open_batch(m, 2, 16);
    request q = {.n = 60, .o = options(m, 0, 100)};
    record r[6] = {0};
    int64_t id[6];
    for (int i = 0; i < 6; i++)
        submit(b, &q, &r[i], &id[i]);
    r[0].stop_after = 5;                        /* cancelled by its callback */
    r[1].cancel_in = b, r[1].cancel_id = id[1]; /* cancels itself from its callback */
    carat_batch_cancel(b, id[3]);               /* in the queue */
    carat_batch_cancel(b, 12345);               /* no such job */
    r[2].cancel_in = b, r[2].cancel_id = id[5]; /* cancels another job */
    for (int i = 0; i < 3; i++)
        carat_batch_step(b);
    while (carat_batch_step(b))
        ;
    for (int i = 0; i < 6; i++)
        CHECK_EQ(r[i].n_done, 1);
    CHECK(!r[0].st && r[0].finish == CARAT_FINISH_CANCELLED && r[0].n == 5);
    CHECK(!r[1].st && r[1].finish == CARAT_FINISH_CANCELLED && r[1].n <= 2);
    CHECK(!r[2].st && r[2].finish == CARAT_FINISH_LENGTH && r[2].n == 100);
    CHECK(r[3].st == E_CANCELLED && !r[3].n_end && strstr(r[3].e.text, "waiting"));
    CHECK(!r[4].st && r[4].finish == CARAT_FINISH_LENGTH && r[4].n == 100);
    CHECK(r[5].st == E_CANCELLED || r[5].finish == CARAT_FINISH_CANCELLED);
    record left[3] = {0};
    for (int i = 0; i < 3; i++)
        submit(b, &q, &left[i], NULL);
    carat_batch_step(b);
    carat_batch_close(b);
    for (int i = 0; i < 3; i++)
        CHECK(left[i].n_done == 1 && left[i].st == E_CANCELLED);
}

TEST(a_batch_refuses_what_it_cannot_do)
{
    AUTO_MODEL *m = toy_model_open(NULL, NULL);
    carat_batch *b;
    carat_error e = {0};
    bool full;
    carat_batch_options o = {.n_slots = 65};
    CHECK_STATUS(carat_batch_open(m, &o, &b, &e), E_ARG);
    err_clear(&e);
    o = (carat_batch_options){.gap_ms = -2};
    CHECK_STATUS(carat_batch_open(m, &o, &b, &e), E_ARG);
    CHECK(!b && strstr(e.text, "gap_ms -2"));
    err_clear(&e);
    o = (carat_batch_options){.n_slots = 32, .session = {.n_ctx = 8}};
    CHECK_STATUS(carat_batch_open(m, &o, &b, &e), E_ARG);
    CHECK(!b);
    err_clear(&e);
    o = (carat_batch_options){.n_slots = 2, .queue_max = 1, .session = {.n_ctx = 64}};
    CHECK_OK(carat_batch_open(m, &o, &b, &e), e);
    CHECK_EQ(carat_batch_n_ctx(b), 64);
    CHECK(!carat_batch_wait(b, 1));
    carat_batch_wake(b);
    CHECK(!carat_batch_wait(b, -1));
    request q = {.n = 65, .o = options(m, 0, 4)};
    record r[4] = {0};
    carat_job j = {.ids = q.ids, .n = 65, .opt = &q.o, .done = done, .user = r};
    int64_t id = 77;
    CHECK_STATUS(carat_batch_submit(b, &j, &id, &full, &e), E_LIMIT);
    CHECK(!full && strstr(e.text, "65") && strstr(e.text, "64"));
    CHECK_EQ(id, 77);
    j.n = 0;
    err_clear(&e);
    CHECK_STATUS(carat_batch_submit(b, &j, NULL, &full, &e), E_ARG);
    q.o.sampling.temperature = NAN;
    j.n = 5;
    err_clear(&e);
    CHECK_STATUS(carat_batch_submit(b, &j, NULL, &full, &e), E_ARG);
    q.o = options(m, 0, 4);
    for (int i = 0; i < 3; i++) {
        q.n = 5;
        submit(b, &q, &r[i], NULL);
    }
    j.user = &r[3];
    err_clear(&e);
    CHECK_STATUS(carat_batch_submit(b, &j, NULL, &full, &e), E_LIMIT);
    CHECK(full);
    CHECK(carat_batch_wait(b, -1));
    while (carat_batch_step(b))
        ;
    for (int i = 0; i < 4; i++)
        CHECK_EQ(r[i].n_done, i < 3);
    carat_batch_close(b);
    carat_batch_close(NULL);
}

/* Stop strings and biases are copied: the caller may free its own before the job begins. */
TEST(a_job_owns_its_options)
{
    AUTO_MODEL *m = toy_model_open(NULL, NULL);
    AUTO_BATCH *b = open_batch(m, 1, 0);
    request q = {.n = 9};
    carat_logit_bias bias = {.id = 70, .bias = 1e6f};
    const char *bytes;
    CHECK(carat_token_bytes(m, 70, false, &bytes) > 0);
    char text[32];
    snprintf(text, sizeof text, "%.*s", (int)carat_token_bytes(m, 70, false, &bytes), bytes);
    const char *stop[1] = {text};
    record r = {0};
    q.o = options(m, 0, 20);
    q.o.stop = stop;
    q.o.n_stop = 1;
    q.o.sampling.bias = &bias;
    q.o.sampling.n_bias = 1;
    submit(b, &q, &r, NULL);
    memset(text, 'x', sizeof text - 1);
    stop[0] = NULL;
    bias.id = 71;
    memset(&q, 0, sizeof q);
    while (carat_batch_step(b))
        ;
    CHECK_OK(r.st, r.e);
    CHECK_EQ(r.n, 1);
    CHECK_EQ(r.ids[0], 70);
    CHECK_EQ(r.finish, CARAT_FINISH_STOP);
}

typedef struct {
    carat_batch *b;
    atomic_int n_left;
    request q;
    atomic_int n_seen;
    record seen[4 * 5]; /* outlive the visitor: the stepping thread writes them later */
} crowd;

static void *visit(void *arg)
{
    crowd *c = arg;
    for (int i = 0; i < 5; i++) {
        int64_t id;
        carat_job j = {.ids = c->q.ids,
                       .n = c->q.n,
                       .opt = &c->q.o,
                       .fn = keep,
                       .done = done,
                       .user = &c->seen[atomic_fetch_add(&c->n_seen, 1)]};
        carat_error e = {0};
        carat_batch_info info;
        CHECK_OK(carat_batch_submit(c->b, &j, &id, NULL, &e), e);
        if (i % 2)
            carat_batch_cancel(c->b, id);
        carat_batch_get_info(c->b, &info, NULL, 0);
    }
    atomic_fetch_sub(&c->n_left, 1);
    carat_batch_wake(c->b);
    return NULL;
}

TEST(jobs_may_come_from_many_threads)
{
    AUTO_MODEL *m = toy_model_open(NULL, NULL);
    AUTO_MEM crowd *c = mem_calloc(1, sizeof *c);
    pthread_t thread[4];
    CHECK(c);
    c->b = open_batch(m, 2, 0);
    c->q = (request){.n = 30, .o = options(m, 0, 8)};
    atomic_init(&c->n_left, 4);
    atomic_init(&c->n_seen, 0);
    for (int i = 0; i < 4; i++)
        CHECK(!pthread_create(&thread[i], NULL, visit, c));
    while (atomic_load(&c->n_left) || carat_batch_wait(c->b, 0)) {
        carat_batch_wait(c->b, 100);
        while (carat_batch_step(c->b))
            ;
    }
    for (int i = 0; i < 4; i++)
        pthread_join(thread[i], NULL);
    while (carat_batch_step(c->b))
        ;
    carat_batch_info info;
    carat_batch_get_info(c->b, &info, NULL, 0);
    CHECK(!info.n_busy && !info.n_queued);
    carat_batch_close(c->b);
}

/* ---- Masks and budgets ------------------------------------------------------------------- */

typedef struct {
    int32_t allow[4], n_allow;
    int n_fill, n_accept, fail_at;
    int32_t last;
} mask;

static enum carat_mask_use fill(void *user, uint32_t *allowed, int32_t n_vocab)
{
    mask *k = user;
    for (int32_t i = 0; i < (n_vocab + 31) / 32; i++)
        CHECK_EQ(allowed[i], 0);
    if (++k->n_fill == k->fail_at)
        return CARAT_MASK_FAIL;
    if (k->n_fill % 3 == 0)
        return CARAT_MASK_NONE;
    for (int i = 0; i < k->n_allow; i++)
        allowed[k->allow[i] >> 5] |= 1u << (k->allow[i] & 31);
    return CARAT_MASK_APPLY;
}

static void accepted(void *user, int32_t id)
{
    mask *k = user;
    k->n_accept++;
    k->last = id;
}

TEST(a_mask_bounds_what_is_sampled)
{
    AUTO_MODEL *m = toy_model_open(NULL, NULL);
    AUTO_BATCH *b = open_batch(m, 2, 0);
    mask k = {.allow = {33, 70, 95}, .n_allow = 3};
    carat_mask hook = {.fill = fill, .accept = accepted, .user = &k};
    request q = {.n = 20, .o = options(m, 1, 30)};
    record r = {0}, free_one = {0};
    submit(b, &q, &free_one, NULL);
    q.o.mask = &hook;
    submit(b, &q, &r, NULL);
    while (carat_batch_step(b))
        ;
    CHECK_OK(r.st, r.e);
    CHECK_EQ(k.n_fill, 30);
    CHECK_EQ(k.n_accept, 30);
    CHECK_EQ(k.last, r.ids[29]);
    for (int i = 0; i < 30; i++)
        CHECK((i + 1) % 3 == 0 || r.ids[i] == 33 || r.ids[i] == 70 || r.ids[i] == 95);
    k = (mask){.n_allow = 0}; /* allows no token */
    r = (record){0};
    submit(b, &q, &r, NULL);
    while (carat_batch_step(b))
        ;
    CHECK_STATUS(r.st, E_ARG);
    CHECK(strstr(r.e.text, "allows no token"));
    k = (mask){.allow = {33}, .n_allow = 1, .fail_at = 4};
    r = (record){0};
    submit(b, &q, &r, NULL);
    while (carat_batch_step(b))
        ;
    CHECK_STATUS(r.st, E_LIMIT);
    CHECK_EQ(r.n, 3);
}

TEST(a_thought_is_closed_when_its_budget_is_spent)
{
    AUTO_MODEL *m = toy_model_open(NULL, NULL);
    AUTO_BATCH *b = open_batch(m, 1, 0);
    int32_t close;
    carat_error e = {0};
    CHECK_EQ(carat_tokenize(m, "<channel|>", 10, CARAT_TOK_SPECIAL, &close, 1, &e), 1);
    carat_logit_bias never = {.id = close,
                              .bias = -INFINITY}; /* the model never closes the thought itself */
    request q = {.n = 20, .o = options(m, 1, 40)};
    q.o.sampling.bias = &never;
    q.o.sampling.n_bias = 1;
    q.o.parse = q.o.starts_thinking = true;
    for (int by_reserve = 0; by_reserve < 2; by_reserve++) {
        record r = {0};
        q.o.max_thinking = by_reserve ? 0 : 12;
        q.o.answer_reserve = by_reserve ? 10 : 0;
        int at = by_reserve ? 30 : 12;
        submit(b, &q, &r, NULL);
        while (carat_batch_step(b))
            ;
        CHECK_OK(r.st, r.e);
        CHECK_EQ(r.n, 40);
        for (int i = 0; i < at; i++)
            CHECK(r.ids[i] != close);
        CHECK_EQ(r.ids[at], close);
        CHECK(r.t.thinking_cut);
        CHECK(r.t.n_thinking >= at + 1);
    }
    carat_batch_close(b);
    carat_model_close(m);
    m = toy_model_open(&(toy_model_file){.no_chat = true}, NULL);
    b = open_batch(m, 1, 0);
    record r = {0};
    carat_job j = {.ids = q.ids, .n = 20, .opt = &q.o, .done = done, .user = &r};
    CHECK_STATUS(carat_batch_submit(b, &j, NULL, NULL, &e), E_UNSUPPORTED);
}

TEST(broken_weights_end_the_jobs_and_not_the_batch)
{
    AUTO_MODEL *m = toy_model_open(&(toy_model_file){.nan_tensor = "output_norm.weight"}, NULL);
    AUTO_BATCH *b = open_batch(m, 2, 0);
    request q = {.n = 20, .o = options(m, 0, 10)};
    record r[3] = {0};
    for (int i = 0; i < 3; i++)
        submit(b, &q, &r[i], NULL);
    while (carat_batch_step(b))
        ;
    for (int i = 0; i < 3; i++) {
        CHECK_STATUS(r[i].st, E_NUMERIC);
        CHECK(strstr(r[i].e.text, "NaN"));
    }
}

static status batch_round(void *path, err *e)
{
    carat_model *m = NULL;
    carat_batch *b = NULL;
    AUTO_PTR(free) record *r = calloc(1, sizeof *r);
    static const char *const stop[] = {"never this"};
    carat_logit_bias bias = {.id = 9, .bias = 1};
    int32_t ids[9] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
    status st = carat_model_open(path, &(carat_model_options){.n_threads = 1}, &m, e);
    if (!st)
        st = carat_batch_open(m, &(carat_batch_options){.session = {.n_ctx = 64}, .n_slots = 2}, &b,
                              e);
    if (!st) {
        carat_generate_options o = options(m, 0, 3);
        o.parse = true;
        o.stop = stop;
        o.n_stop = 1;
        o.sampling.bias = &bias;
        o.sampling.n_bias = 1;
        carat_job j = {.ids = ids, .n = 9, .opt = &o, .fn = keep, .done = done, .user = r};
        st = carat_batch_submit(b, &j, NULL, NULL, e);
        while (!st && carat_batch_step(b))
            ;
        if (!st && (st = r->st))
            err_set(e, st, "%s", r->e.text);
    }
    carat_batch_close(b);
    carat_model_close(m);
    return st;
}

PLAIN_TEST(every_allocation_of_a_batch_may_fail)
{
    test_every_allocation(batch_round, (void *)toy_model_write(NULL));
}

/* A callback that takes time, and cancels the job in the prompt or at a token. */
typedef struct slow {
    carat_batch *b;
    int64_t id;
    int n_tokens, cancel_at; /* 0: in the prompt */
    carat_timings t;
    bool done;
} slow;

enum { SLOW_MS = 4 };

static bool be_slow(void *user, const carat_event *ev)
{
    slow *x = user;
    if (ev->kind != CARAT_EV_PREFILL && ev->kind != CARAT_EV_TOKEN)
        return true;
    nanosleep(&(struct timespec){.tv_nsec = SLOW_MS * 1000000}, NULL);
    x->n_tokens += ev->kind == CARAT_EV_TOKEN;
    if (x->n_tokens == x->cancel_at)
        carat_batch_cancel(x->b, x->id);
    return true;
}

static void slow_done(void *user, carat_status st, const carat_error *e, const carat_timings *t)
{
    slow *x = user;
    CHECK_OK(st, *e);
    x->t = *t;
    x->done = true;
}

/* The time until the cancellation belongs to the prompt or to the answer, as far as the job came,
 * and to the tokens that were computed in it. */
TEST(times_of_a_cancelled_job_are_those_of_its_part)
{
    AUTO_MODEL *m = toy_model_open(NULL, NULL);
    AUTO_BATCH *b = open_batch(m, 1, 16);
    request q;
    carat_error e = {0};
    uint64_t rng = test_seed();
    random_request(m, &q, 1, &rng);
    q.n = 100;
    for (int64_t i = 0; i < q.n; i++)
        q.ids[i] = 20 + (int32_t)rng_below(&rng, 200);
    q.o.max_tokens = 30;
    for (int at = 0; at <= 3; at += 3) {
        slow x = {.b = b, .cancel_at = at};
        const carat_job j = {
            .ids = q.ids, .n = q.n, .opt = &q.o, .fn = be_slow, .done = slow_done, .user = &x};
        q.ids[0] = 20 + at; /* nothing is reused */
        double began = clock_ms();
        CHECK_OK(carat_batch_submit(b, &j, &x.id, NULL, &e), e);
        while (carat_batch_step(b))
            ;
        CHECK(x.done && x.t.finish == CARAT_FINISH_CANCELLED);
        CHECK_MSG(x.t.queue_ms >= 0 && x.t.queue_ms <= clock_ms() - began, "%g ms", x.t.queue_ms);
        if (at)
            CHECK_MSG(x.t.decode_ms >= 2 * SLOW_MS, "%g ms", x.t.decode_ms);
        else
            CHECK_MSG(x.t.prefill_ms >= SLOW_MS && !x.n_tokens, "%g ms", x.t.prefill_ms);
        CHECK_EQ(x.t.n_reused, 0);
        CHECK_EQ(x.t.n_computed, at ? q.n : 16); /* a pass */
    }
}
