/* engine_test.c - sessions against fresh sessions, and every way a generation can end. */
#include "carat.h"
#include "carat_bench.h"
#include "base/mem.h"
#include "base/rng.h"
#include "tests/test.h"
#include "tests/toy_model.h"

#include <pthread.h>
#include <stdatomic.h>

/* ---- Helpers --------------------------------------------------------------------------- */

enum { N_IDS = 400, CTX = 512 };

static carat_session *open_session(carat_model *m, int32_t n_ctx, int32_t chunk)
{
    carat_session *s;
    err e = {0};
    /* Without checkpoints: what a live cache keeps by itself. checkpoint_test.c has them. */
    const carat_session_options o = {.n_ctx = n_ctx, .chunk = chunk, .checkpoint_mb = -1};
    CHECK_OK(carat_session_open(m, &o, &s, &e), e);
    return s;
}

/* Logits of the last of ids[0..n), from s as it stands and from a fresh session, are the same
 * bits. Returns what s reused. */
static int64_t check_like_fresh(carat_session *s, carat_model *m, const int32_t *ids, int64_t n,
                                int32_t chunk)
{
    size_t n_vocab = (size_t)toy_n_vocab(m);
    AUTO_MEM float *a = mem_calloc(n_vocab, sizeof *a), *b = mem_calloc(n_vocab, sizeof *b);
    int64_t n_reused = -1, none = -1;
    err e = {0};
    CHECK(a && b);
    AUTO_SESSION *fresh = open_session(m, CTX, chunk);
    CHECK_OK(carat_eval(s, ids, n, a, &n_reused, &e), e);
    CHECK_OK(carat_eval(fresh, ids, n, b, &none, &e), e);
    CHECK_EQ(none, 0);
    CHECK_EQ(carat_session_n_past(s), n);
    for (size_t i = 0; i < n_vocab; i++)
        CHECK_MSG(!memcmp(&a[i], &b[i], sizeof *a), "logit %zu: %g, fresh %g", i, a[i], b[i]);
    return n_reused;
}

typedef struct {
    int32_t ids[CTX];
    int n, n_end, n_prefill;
    carat_finish finish;
    char text[65536];
    size_t n_text;
    int stop_after; /* cancel by returning false at this token; 0: never */
    carat_session *cancel_at_first;
    int64_t allocs_at_first, allocs_at_last;
    float logprob_sum;
    const char *stop;
} record;

static bool keep(void *user, const carat_event *ev)
{
    record *r = user;
    if (ev->kind == CARAT_EV_PREFILL)
        r->n_prefill++;
    if (ev->kind == CARAT_EV_TOKEN) {
        if (!r->n)
            r->allocs_at_first = mem_count();
        r->allocs_at_last = mem_count();
        if (r->cancel_at_first)
            carat_session_cancel(r->cancel_at_first);
        CHECK(r->n < CTX);
        r->ids[r->n++] = ev->id;
        r->logprob_sum += ev->logprob;
        for (int32_t i = 1; i < ev->n_top; i++)
            CHECK(ev->top[i].logprob <= ev->top[i - 1].logprob);
        for (int32_t i = 0; i < ev->n_top; i++)
            if (ev->top[i].id == ev->id)
                CHECK_NEAR(ev->top[i].logprob, ev->logprob, 0);
        if (r->stop_after && r->n == r->stop_after)
            return false;
    }
    if (ev->kind == CARAT_EV_CONTENT || ev->kind == CARAT_EV_REASONING) {
        CHECK(r->n_text + ev->n_text < sizeof r->text);
        CHECK_EQ(ev->text[ev->n_text],
                 0); /* a NUL may also be in the text: U+0000 is a character */
        memcpy(r->text + r->n_text, ev->text, ev->n_text + 1);
        r->n_text += ev->n_text;
    }
    if (ev->kind == CARAT_EV_END) {
        r->n_end++;
        r->finish = ev->finish;
        r->stop = ev->stop;
    }
    CHECK(ev->kind == CARAT_EV_END || !r->n_end);
    return true;
}

static carat_generate_options options(const carat_model *m, float temperature, int32_t max_tokens)
{
    carat_generate_options o = {.max_tokens = max_tokens};
    carat_sampling_default(m, &o.sampling);
    o.sampling.temperature = temperature;
    o.sampling.ignore_eog = true;
    return o;
}

static record *generate(carat_session *s, const int32_t *ids, int64_t n,
                        const carat_generate_options *o)
{
    record *r = mem_calloc(1, sizeof *r);
    carat_timings t;
    err e = {0};
    CHECK(r);
    CHECK_OK(carat_generate(s, ids, n, o, keep, r, &t, &e), e);
    CHECK_EQ(r->n_end, 1);
    CHECK_EQ(t.n_generated, r->n);
    CHECK_EQ(t.n_prompt, n);
    CHECK_EQ(t.finish, r->finish);
    CHECK(t.peak_bytes > 0);
    return r;
}

/* ---- The timeline ---------------------------------------------------------------------- */

PLAIN_TEST(session_reuses_a_prefix_bit_for_bit)
{
    AUTO_MODEL *m = toy_model_open(NULL, NULL);
    int32_t ids[N_IDS];
    uint64_t seed = test_seed();
    toy_random_ids(m, ids, N_IDS, seed);
    for (int32_t chunk = 1; chunk <= 65; chunk += 32) {
        AUTO_SESSION *s = open_session(m, CTX, chunk);
        CHECK_EQ(check_like_fresh(s, m, ids, 50, chunk), 0);
        CHECK_EQ(check_like_fresh(s, m, ids, 130, chunk), 50); /* extend */
        CHECK_STR(carat_session_reuse(s, NULL), "extended");
        CHECK_EQ(check_like_fresh(s, m, ids, 130, chunk), 129); /* the same again */
        CHECK_EQ(check_like_fresh(s, m, ids, 125, chunk), 124); /* a shorter one */
        CHECK_STR(carat_session_reuse(s, NULL), "rewound");
        ids[122] ^= 1;
        CHECK_EQ(check_like_fresh(s, m, ids, 128, chunk), 122); /* an edit near the end */
        int64_t n_dropped = 0;
        CHECK_EQ(check_like_fresh(s, m, ids, N_IDS, chunk), 128);
        ids[60] ^= 1; /* far behind the windows */
        CHECK_EQ(check_like_fresh(s, m, ids, N_IDS, chunk), 0);
        CHECK(!strncmp(carat_session_reuse(s, &n_dropped), "rebuilt", 7));
        CHECK_EQ(n_dropped, N_IDS);
        ids[0] ^= 1;
        CHECK_EQ(check_like_fresh(s, m, ids, 40, chunk), 0);
        carat_reset(s);
        CHECK_EQ(carat_session_n_past(s), 0);
        CHECK_EQ(check_like_fresh(s, m, ids, 40, chunk), 0);
    }
}

PLAIN_TEST(session_random_edits_equal_fresh_sessions)
{
    AUTO_MODEL *m = toy_model_open(NULL, NULL);
    AUTO_SESSION *s = open_session(m, CTX, 19);
    int32_t ids[N_IDS];
    uint64_t rng = test_seed();
    toy_random_ids(m, ids, N_IDS, rng);
    for (int i = 0; i < 40; i++) {
        int64_t n = 1 + (int64_t)rng_below(&rng, N_IDS);
        int64_t edit = (int64_t)rng_below(&rng, (uint64_t)n);
        if (i % 3)
            edit = n - 1 - (int64_t)rng_below(&rng, (uint64_t)(n < 20 ? n : 20));
        ids[edit] = (int32_t)rng_below(&rng, (uint64_t)toy_n_vocab(m));
        check_like_fresh(s, m, ids, n, 1 + (int32_t)rng_below(&rng, 64));
    }
}

typedef struct all_rows {
    float *to;
    size_t n_vocab;
    int64_t next, most; /* most 0: all */
} all_rows;

static bool take_rows(void *user, int64_t first, int64_t n, const float *rows)
{
    all_rows *x = user;
    CHECK_EQ(first, x->next);
    memcpy(x->to + (size_t)first * x->n_vocab, rows, (size_t)n * x->n_vocab * sizeof *rows);
    x->next += n;
    return !x->most || x->next < x->most;
}

TEST(eval_gives_all_logits_in_any_chunks)
{
    AUTO_MODEL *m = toy_model_open(NULL, NULL);
    size_t n_vocab = (size_t)toy_n_vocab(m), n_bytes = 100 * n_vocab * sizeof(float);
    AUTO_MEM float *a = mem_alloc(n_bytes), *b = mem_alloc(n_bytes);
    int64_t n_cached;
    int32_t ids[100];
    err e = {0};
    CHECK(a && b);
    toy_random_ids(m, ids, 100, test_seed());
    AUTO_SESSION *s = open_session(m, CTX, 0), *t = open_session(m, CTX, 3);
    CHECK_OK(carat_append(s, ids, 100, true, a, &e), e);
    for (int again = 0; again < 2; again++) { /* the second time nothing is reused either */
        all_rows all = {.to = b, .n_vocab = n_vocab};
        memset(b, 0, n_bytes);
        CHECK_OK(carat_eval_rows(t, ids, 100, take_rows, &all, &e), e);
        CHECK_EQ(all.next, 100);
        CHECK(!memcmp(a, b, n_bytes));
    }
    all_rows some = {.to = b, .n_vocab = n_vocab, .most = 30};
    CHECK_STATUS(carat_eval_rows(t, ids, 100, take_rows, &some, &e), E_CANCELLED);
    err_clear(&e);
    CHECK(some.next >= 30 && carat_session_n_past(t) == some.next);
    CHECK(!memcmp(a, b, n_bytes));
    memset(b, 0, n_bytes);
    carat_reset(t);
    CHECK_OK(carat_append(t, ids, 40, true, b, &e), e);
    for (int64_t n = 40; n < 100; n += 10)
        CHECK_OK(carat_append(t, ids + n, 10, true, b + (size_t)n * n_vocab, &e), e);
    CHECK(!memcmp(a, b, n_bytes));
    CHECK_OK(carat_eval(t, ids, 100, b, &n_cached, &e), e);
    CHECK_EQ(n_cached, 99); /* what was appended is the timeline's */
    CHECK(!memcmp(a + 99 * n_vocab, b, n_vocab * sizeof *b));
    CHECK(carat_rewind(t, 95));
    CHECK_EQ(carat_session_n_past(t), 95);
    CHECK(!carat_rewind(t, -1));
}

PLAIN_TEST(results_do_not_depend_on_the_number_of_threads)
{
    size_t n_vocab = 0;
    AUTO_MEM float *first = NULL;
    for (int32_t n_threads = 1; n_threads <= 5; n_threads += 2) {
        AUTO_MODEL *m = toy_model_open(NULL, &(carat_model_options){.n_threads = n_threads});
        AUTO_SESSION *s = open_session(m, CTX, 33);
        int32_t ids[200];
        err e = {0};
        toy_random_ids(m, ids, 200, 7);
        n_vocab = (size_t)toy_n_vocab(m);
        float *x = mem_calloc(n_vocab, sizeof *x);
        CHECK(x);
        CHECK_OK(carat_eval(s, ids, 200, x, NULL, &e), e);
        if (first)
            CHECK(!memcmp(first, x, n_vocab * sizeof *x));
        else
            first = x;
        if (x != first)
            mem_free(x);
    }
}

/* ---- Generation ------------------------------------------------------------------------ */

PLAIN_TEST(generate_is_the_eval_and_sample_loop)
{
    AUTO_MODEL *m = toy_model_open(NULL, NULL);
    AUTO_SESSION *s = open_session(m, CTX, 0), *t = open_session(m, CTX, 0);
    size_t n_vocab = (size_t)toy_n_vocab(m);
    AUTO_MEM float *x = mem_calloc(n_vocab, sizeof *x);
    int32_t ids[200];
    err e = {0};
    CHECK(x);
    toy_random_ids(m, ids, 30, test_seed());
    carat_generate_options o = options(m, 0, 50);
    AUTO_MEM record *r = generate(s, ids, 30, &o);
    CHECK_EQ(r->n, 50);
    CHECK_EQ(r->finish, CARAT_FINISH_LENGTH);
    CHECK(r->n_prefill > 0);
    CHECK_EQ(carat_session_n_past(s), 30 + 49); /* the last token is not computed */
    uint64_t rng = 0;
    for (int i = 0; i < 50; i++) {
        CHECK_OK(carat_eval(t, ids, 30 + i, x, NULL, &e), e);
        ids[30 + i] = carat_sample(m, &o.sampling, x, ids, 30 + i, &rng, NULL);
        CHECK_EQ(r->ids[i], ids[30 + i]);
    }
}

typedef struct sample_job {
    carat_model *m;
    int32_t id[200];
} sample_job;

static void *sample_often(void *arg)
{
    sample_job *j = arg;
    size_t n = (size_t)toy_n_vocab(j->m);
    AUTO_MEM float *x = mem_calloc(n, sizeof *x);
    carat_sampling p;
    CHECK(x);
    carat_sampling_default(j->m, &p);
    for (int i = 0; i < 200; i++) {
        uint64_t rng = (uint64_t)i;
        for (size_t k = 0; k < n; k++)
            x[k] = (float)((k * 7919 + (size_t)i * 31) % 101) * 0.1f;
        j->id[i] = carat_sample(j->m, &p, x, NULL, 0, &rng, NULL);
    }
    return NULL;
}

TEST(carat_sample_allocates_once_and_serves_several_threads)
{
    AUTO_MODEL *m = toy_model_open(NULL, NULL);
    sample_job job[4] = {{.m = m}, {.m = m}, {.m = m}, {.m = m}};
    pthread_t thread[4];
    sample_often(&job[0]);
    int64_t before = mem_count();
    sample_often(&job[1]);
    CHECK_EQ(mem_count() - before, 1); /* the logits of sample_often itself */
    for (int i = 0; i < 4; i++)
        CHECK(!pthread_create(&thread[i], NULL, sample_often, &job[i]));
    for (int i = 0; i < 4; i++)
        CHECK(!pthread_join(thread[i], NULL));
    for (int i = 1; i < 4; i++)
        CHECK(!memcmp(job[i].id, job[0].id, sizeof job[0].id));
}

PLAIN_TEST(same_seed_same_answer_and_another_seed_another)
{
    AUTO_MODEL *m = toy_model_open(NULL, NULL);
    AUTO_SESSION *s = open_session(m, CTX, 0);
    int32_t ids[20];
    toy_random_ids(m, ids, 20, test_seed());
    carat_generate_options o = options(m, 1, 60);
    o.sampling.seed = 7;
    AUTO_MEM record *a = generate(s, ids, 20, &o), *b = generate(s, ids, 20, &o);
    CHECK(a->n == b->n && !memcmp(a->ids, b->ids, sizeof a->ids));
    CHECK_STR(a->text, b->text);
    o.sampling.seed = 8;
    AUTO_MEM record *c = generate(s, ids, 20, &o);
    CHECK(memcmp(a->ids, c->ids, sizeof a->ids) != 0);
}

TEST(decode_allocates_nothing_between_first_and_last_token)
{
    AUTO_MODEL *m = toy_model_open(NULL, NULL);
    AUTO_SESSION *s = open_session(m, CTX, 0);
    static const char *const stops[] = {"never this", "nor that"};
    int32_t ids[20];
    toy_random_ids(m, ids, 20, test_seed());
    carat_generate_options o = options(m, 1, 200);
    o.sampling.n_top_logprobs = 5;
    o.sampling.repeat_penalty = 1.1f;
    o.stop = stops;
    o.n_stop = 2;
    for (int parse = 0; parse < 2; parse++) {
        o.parse = parse;
        AUTO_MEM record *r = generate(s, ids, 20, &o);
        CHECK_EQ(r->n, 200);
        CHECK_EQ(r->allocs_at_last - r->allocs_at_first, 0);
        CHECK(r->logprob_sum < 0);
    }
}

TEST(generate_ends_at_the_context)
{
    AUTO_MODEL *m = toy_model_open(NULL, NULL);
    AUTO_SESSION *s = open_session(m, 64, 0);
    int32_t ids[64];
    toy_random_ids(m, ids, 64, test_seed());
    carat_generate_options o = options(m, 0, 0);
    AUTO_MEM record *r = generate(s, ids, 60, &o);
    CHECK_EQ(r->n, 5); /* 60 + 4 computed, and one more sampled */
    CHECK_EQ(r->finish, CARAT_FINISH_LENGTH);
    mem_free(r);
    r = generate(s, ids, 64, &o);
    CHECK_EQ(r->n, 1);
}

PLAIN_TEST(generate_stops_at_a_stop_string_and_before_it)
{
    AUTO_MODEL *m = toy_model_open(NULL, NULL);
    AUTO_SESSION *s = open_session(m, CTX, 0);
    int32_t ids[20];
    toy_random_ids(m, ids, 20, test_seed());
    carat_generate_options o = options(m, 1, 200);
    o.sampling.seed = 3;
    AUTO_MEM record *whole = generate(s, ids, 20, &o);
    CHECK(whole->n_text > 40);
    char stop[8] = "";
    size_t at = whole->n_text / 2;
    while (at < whole->n_text &&
           (!whole->text[at] || ((unsigned char)whole->text[at] & 0xc0) == 0x80))
        at++; /* the start of a character that a string can hold */
    size_t n = 1;
    while (n < 4 && ((unsigned char)whole->text[at + n] & 0xc0) == 0x80)
        n++;
    memcpy(stop, whole->text + at, n);
    const char *first = memmem(whole->text, whole->n_text, stop, strlen(stop));
    CHECK(first);
    const char *list[] = {"not in there at all", stop};
    o.stop = list;
    o.n_stop = 2;
    AUTO_MEM record *r = generate(s, ids, 20, &o);
    CHECK_EQ(r->finish, CARAT_FINISH_STOP);
    CHECK(r->stop == stop);
    CHECK_EQ(r->n_text, first - whole->text);
    CHECK(!memcmp(r->text, whole->text, r->n_text));
}

PLAIN_TEST(a_banned_token_is_never_sampled_and_a_favoured_one_always)
{
    AUTO_MODEL *m = toy_model_open(NULL, NULL);
    AUTO_SESSION *s = open_session(m, CTX, 0);
    int32_t ids[20];
    toy_random_ids(m, ids, 20, test_seed());
    carat_generate_options o = options(m, 0, 40);
    AUTO_MEM record *r = generate(s, ids, 20, &o);
    carat_logit_bias bias = {r->ids[0], -INFINITY};
    mem_free(r);
    o.sampling.bias = &bias;
    o.sampling.n_bias = 1;
    r = generate(s, ids, 20, &o);
    for (int i = 0; i < r->n; i++)
        CHECK(r->ids[i] != bias.id);
    mem_free(r);
    bias.bias = 1000;
    r = generate(s, ids, 20, &o);
    for (int i = 0; i < r->n; i++)
        CHECK_EQ(r->ids[i], bias.id);
}

TEST(generate_ends_at_the_end_of_turn)
{
    AUTO_MODEL *m = toy_model_open(NULL, NULL);
    AUTO_SESSION *s = open_session(m, CTX, 0);
    int32_t ids[20], eog = -1;
    toy_random_ids(m, ids, 20, test_seed());
    for (int32_t i = 0; i < toy_n_vocab(m) && eog < 0; i++)
        eog = carat_token_is_eog(m, i) ? i : -1;
    CHECK(eog >= 0);
    carat_generate_options o = options(m, 0, 40);
    carat_logit_bias bias = {eog, 1000};
    o.sampling.bias = &bias;
    o.sampling.n_bias = 1;
    o.sampling.ignore_eog = false;
    AUTO_MEM record *r = generate(s, ids, 20, &o);
    CHECK_EQ(r->n, 1);
    CHECK_EQ(r->ids[0], eog);
    CHECK_EQ(r->n_text, 0);
    CHECK_EQ(r->finish, CARAT_FINISH_STOP);
}

/* ---- Cancelling ------------------------------------------------------------------------ */

TEST(cancel_from_the_callback_before_and_during)
{
    AUTO_MODEL *m = toy_model_open(NULL, NULL);
    AUTO_SESSION *s = open_session(m, CTX, 16);
    int32_t ids[100];
    AUTO_MEM float *x = mem_calloc((size_t)toy_n_vocab(m), sizeof *x);
    err e = {0};
    CHECK(x);
    toy_random_ids(m, ids, 100, test_seed());
    carat_generate_options o = options(m, 0, 40);
    record r = {.stop_after = 3};
    CHECK_OK(carat_generate(s, ids, 100, &o, keep, &r, NULL, &e), e);
    CHECK_EQ(r.n, 3);
    CHECK_EQ(r.finish, CARAT_FINISH_CANCELLED);
    CHECK_EQ(r.n_end, 1);
    record q = {.cancel_at_first = s};
    CHECK_OK(carat_generate(s, ids, 100, &o, keep, &q, NULL, &e), e);
    CHECK_EQ(q.finish, CARAT_FINISH_CANCELLED);
    CHECK(q.n <= 2);
    /* What was computed before the cancel stays of use, and is right. */
    CHECK(check_like_fresh(s, m, ids, 100, 16) >= 99);
    carat_reset(s);
    carat_session_cancel(s); /* nothing runs: it ends the next call */
    CHECK_STATUS(carat_eval(s, ids, 100, x, NULL, &e), E_CANCELLED);
    err_clear(&e);
    CHECK_OK(carat_eval(s, ids, 100, x, NULL, &e), e);
}

/* The times of a call that failed before its first round have none of the call before it. */
TEST(failed_generations_report_no_rounds)
{
    AUTO_MODEL *m = toy_model_open(NULL, &(carat_model_options){.draft = "lookup"});
    AUTO_SESSION *s = open_session(m, CTX, 64);
    carat_timings t;
    int32_t ids[60];
    int n_failed = 0;
    err e = {0};
    for (int i = 0; i < 60; i++)
        ids[i] = 30 + i % 3;
    carat_generate_options o = options(m, 0, 24);
    AUTO_MEM record *first = generate(s, ids, 60, &o);
    o.speculation = (carat_speculation){.n_max = 3, .fixed = true};
    o.predicted = first->ids;
    o.n_predicted = first->n;
    CHECK_OK(carat_generate(s, ids, 60, &o, NULL, NULL, &t, &e), e);
    CHECK(t.n_rounds > 0);
    o.sparse = "skip:1";
    for (int64_t n = 0; n >= 0; n++) {
        mem_fail_after(n);
        status st = carat_generate(s, ids, 60, &o, NULL, NULL, &t, &e);
        bool hit = mem_fail_hit();
        mem_fail_after(-1);
        CHECK_MSG(!st || !t.n_rounds, "allocation %lld: %lld rounds", (long long)n,
                  (long long)t.n_rounds);
        n_failed += st != OK;
        if (!hit)
            break;
    }
    CHECK(n_failed > 1);
}

/* Calls of a callback on the session that calls it. */
typedef struct nested {
    carat_session *s;
    carat_snapshot *saved;
    const int32_t *ids;
    float *x;
    int32_t got[CTX];
    int n;
} nested;

static bool refuse_nested(void *user, int64_t first, int64_t n, const float *rows)
{
    nested *c = user;
    carat_snapshot *p;
    err e = {0};
    int64_t past = carat_session_n_past(c->s);
    (void)first, (void)n, (void)rows;
    CHECK_STATUS(carat_generate(c->s, c->ids, 9, NULL, NULL, NULL, NULL, &e), E_ARG);
    CHECK_MSG(strstr(e.text, "the session is at work"), "%s", e.text);
    CHECK_STATUS(carat_eval(c->s, c->ids, 9, c->x, NULL, NULL), E_ARG);
    CHECK_STATUS(carat_eval_rows(c->s, c->ids, 9, refuse_nested, c, NULL), E_ARG);
    CHECK_STATUS(carat_append(c->s, c->ids, 1, false, c->x, NULL), E_ARG);
    CHECK_STATUS(carat_embed(c->s, c->ids, 9, CARAT_POOL_MEAN, c->x, NULL), E_ARG);
    CHECK_STATUS(carat_pretend(c->s, c->ids, 9, NULL), E_ARG);
    CHECK_STATUS(carat_snapshot_take(c->s, &p, NULL), E_ARG);
    CHECK_STATUS(carat_snapshot_restore(c->s, c->saved, NULL), E_ARG);
    CHECK(!p && !carat_rewind(c->s, 0));
    carat_reset(c->s);
    CHECK_EQ(carat_session_n_past(c->s), past);
    return true;
}

static bool keep_nested(void *user, const carat_event *ev)
{
    nested *c = user;
    if (ev->kind == CARAT_EV_TOKEN)
        c->got[c->n++] = ev->id;
    return refuse_nested(c, 0, 0, NULL);
}

TEST(a_callback_cannot_use_the_session_that_calls_it)
{
    AUTO_MODEL *m = toy_model_open(NULL, NULL);
    AUTO_SESSION *s = open_session(m, CTX, 16);
    int32_t ids[60];
    err e = {0};
    toy_random_ids(m, ids, 60, test_seed());
    carat_generate_options o = options(m, 0, 8);
    AUTO_MEM record *want = generate(s, ids, 60, &o);
    nested c = {.s = s, .ids = ids, .x = mem_calloc((size_t)toy_n_vocab(m), sizeof *c.x)};
    CHECK(c.x);
    CHECK_OK(carat_snapshot_take(s, &c.saved, &e), e);
    carat_reset(s);
    CHECK_OK(carat_generate(s, ids, 60, &o, keep_nested, &c, NULL, &e), e);
    CHECK(c.n == want->n && !memcmp(c.got, want->ids, (size_t)c.n * sizeof *c.got));
    CHECK_OK(carat_eval_rows(s, ids, 60, refuse_nested, &c, &e), e);
    CHECK_OK(carat_append(s, ids, 1, false, c.x, &e), e);
    carat_snapshot_free(c.saved);
    mem_free(c.x);
}

static void *cancel_soon(void *arg)
{
    struct timespec ts = {.tv_nsec = 20 * 1000 * 1000};
    nanosleep(&ts, NULL);
    carat_session_cancel(arg);
    return NULL;
}

TEST(cancel_from_another_thread)
{
    AUTO_MODEL *m = toy_model_open(&(toy_model_file){.n_ctx_train = 1 << 20}, NULL);
    AUTO_SESSION *s = open_session(m, 1 << 16, 8);
    AUTO_MEM int32_t *ids = mem_calloc(1 << 16, sizeof *ids);
    pthread_t other;
    err e = {0};
    CHECK(ids);
    toy_random_ids(m, ids, 1 << 16, test_seed());
    CHECK(!pthread_create(&other, NULL, cancel_soon, s));
    CHECK_STATUS(carat_eval(s, ids, 1 << 16, NULL, NULL, &e), E_CANCELLED);
    pthread_join(other, NULL);
    CHECK(carat_session_n_past(s) < 1 << 16);
}

/* Several threads, each with a session of its own, on one model. */
typedef struct {
    carat_model *m;
    const int32_t *ids;
    float *x;
} worker;

static void *evaluate(void *arg)
{
    worker *w = arg;
    err e = {0};
    AUTO_SESSION *s = open_session(w->m, CTX, 16);
    CHECK_OK(carat_eval(s, w->ids, 100, w->x, NULL, &e), e);
    return NULL;
}

TEST(sessions_in_several_threads_do_not_disturb_each_other)
{
    AUTO_MODEL *m = toy_model_open(NULL, &(carat_model_options){.n_threads = 2});
    size_t n_vocab = (size_t)toy_n_vocab(m);
    int32_t ids[100];
    worker w[4];
    pthread_t thread[4];
    toy_random_ids(m, ids, 100, test_seed());
    for (int i = 0; i < 4; i++) {
        w[i] = (worker){m, ids, mem_calloc(n_vocab, sizeof *w[i].x)};
        CHECK(w[i].x && !pthread_create(&thread[i], NULL, evaluate, &w[i]));
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(thread[i], NULL);
        CHECK(!memcmp(w[0].x, w[i].x, n_vocab * sizeof *w[i].x));
    }
    for (int i = 0; i < 4; i++)
        mem_free(w[i].x);
}

typedef struct evals {
    carat_session *s;
    atomic_bool done;
    status st;
    err e;
} evals;

static void *eval_again_and_again(void *arg)
{
    evals *v = arg;
    int32_t ids[40];
    for (int i = 0; i < 40; i++)
        ids[i] = 5 + i;
    for (int i = 0; i < 20 && !v->st; i++) {
        carat_reset(v->s);
        v->st = carat_eval(v->s, ids, 40, NULL, NULL, &v->e);
    }
    atomic_store(&v->done, true);
    return NULL;
}

/* A wrapped device knows the call it is in: plans, which are calls too, have to wait. */
PLAIN_TEST(a_session_that_opens_does_not_disturb_a_wrapped_pass)
{
    AUTO_MODEL *m = toy_model_open(NULL, &(carat_model_options){.wrap = "check"});
    evals v = {.s = open_session(m, CTX, 0)};
    pthread_t thread;
    CHECK(!pthread_create(&thread, NULL, eval_again_and_again, &v));
    while (!atomic_load(&v.done))
        carat_session_close(open_session(m, CTX, 0));
    pthread_join(thread, NULL);
    CHECK_OK(v.st, v.e);
    carat_session_close(v.s);
}

/* ---- Refusals -------------------------------------------------------------------------- */

static status take_and_restore(void *arg, err *e)
{
    carat_session *s = arg;
    AUTO_PTR(carat_snapshot_free) carat_snapshot *k = NULL;
    status st = carat_snapshot_take(s, &k, e);
    CHECK(!st == (k != NULL));
    if (!st)
        st = carat_snapshot_restore(s, k, e);
    return st;
}

TEST(snapshots_without_memory)
{
    AUTO_MODEL *m = toy_model_open(NULL, NULL);
    AUTO_SESSION *s = open_session(m, CTX, 0);
    int32_t ids[40];
    err e = {0};
    toy_random_ids(m, ids, 40, test_seed());
    CHECK_OK(carat_eval(s, ids, 40, NULL, NULL, &e), e);
    test_every_allocation(take_and_restore, s);
}

TEST(broken_weights_are_reported_as_such)
{
    AUTO_MODEL *m = toy_model_open(&(toy_model_file){.nan_tensor = "output_norm.weight"}, NULL);
    AUTO_SESSION *s = open_session(m, CTX, 0);
    int32_t ids[3] = {5, 6, 7};
    err e = {0};
    AUTO_MEM float *x = mem_calloc((size_t)toy_n_vocab(m), sizeof *x);
    CHECK(x);
    CHECK_STATUS(carat_eval(s, ids, 3, x, NULL, &e), E_NUMERIC);
    CHECK(strstr(e.text, "NaN"));
    err_clear(&e);
    carat_generate_options o = options(m, 0, 4);
    CHECK_STATUS(carat_generate(s, ids, 3, &o, NULL, NULL, NULL, &e), E_NUMERIC);
    CHECK_EQ(carat_session_n_past(s), 0); /* a failed pass leaves no trace */
}

TEST(what_makes_no_sense_is_refused_with_a_sentence)
{
    AUTO_MODEL *m = toy_model_open(&(toy_model_file){.n_ctx_train = 1 << 24}, NULL);
    carat_session *s = open_session(m, 64, 0), *none;
    int32_t ids[100] = {0};
    err e = {0};
    CHECK_STATUS(carat_eval(s, ids, 65, NULL, NULL, &e), E_LIMIT);
    CHECK(strstr(e.text, "65") && strstr(e.text, "64"));
    err_clear(&e);
    CHECK_STATUS(carat_eval(s, ids, 0, NULL, NULL, &e), E_ARG);
    ids[1] = toy_n_vocab(m);
    err_clear(&e);
    CHECK_STATUS(carat_eval(s, ids, 2, NULL, NULL, &e), E_ARG);
    ids[1] = -1;
    err_clear(&e);
    CHECK_STATUS(carat_eval(s, ids, 2, NULL, NULL, &e), E_ARG);
    ids[1] = 1;
    err_clear(&e);
    CHECK_STATUS(carat_append(s, ids, 2, true, NULL, &e), E_ARG);
    err_clear(&e);
    CHECK_STATUS(carat_append(s, ids, 2, true, NULL, &e), E_ARG);
    err_clear(&e);
    CHECK_STATUS(carat_append(s, ids, 0, false, NULL, &e), E_ARG);
    ids[3] = -1;
    err_clear(&e);
    CHECK_STATUS(carat_append(s, ids, 4, false, NULL, &e), E_ARG);
    ids[3] = 1;
    CHECK_EQ(carat_session_n_past(s), 0);
    err_clear(&e);
    CHECK_OK(carat_append(s, ids, 60, false, NULL, &e), e);
    CHECK_STATUS(carat_append(s, ids, 5, false, NULL, &e), E_LIMIT);
    CHECK(strstr(e.text, "60") && strstr(e.text, "64"));
    CHECK_EQ(carat_session_n_past(s), 60);
    carat_generate_options o = options(m, NAN, 4);
    err_clear(&e);
    CHECK_STATUS(carat_generate(s, ids, 2, &o, NULL, NULL, NULL, &e), E_ARG);
    o = options(m, 1, 4);
    o.speculation.n_max = -1;
    err_clear(&e);
    CHECK_STATUS(carat_generate(s, ids, 2, &o, NULL, NULL, NULL, &e), E_ARG);
    o = options(m, 1, 4);
    o.n_stop = 1;
    err_clear(&e);
    CHECK_STATUS(carat_generate(s, ids, 2, &o, NULL, NULL, NULL, &e), E_ARG);
    carat_session_close(s);

    carat_session_options so = {.n_ctx = 1 << 24, .kv_k = "f32"};
    carat_memory_plan plan;
    err_clear(&e);
    CHECK_OK(carat_plan(m, &so, &plan, &e), e);
    if (plan.available_bytes && plan.total_bytes > plan.available_bytes) { /* tens of GiB */
        CHECK_STATUS(carat_session_open(m, &so, &none, &e), E_MEMORY);
        CHECK(!none && strstr(e.text, "GiB of memory, and"));
        CHECK_OK(carat_session_open(m, NULL, &none, &e), e); /* as much as fits */
        CHECK(carat_session_n_ctx(none) < 1 << 24);
        carat_session_close(none);
    }
    so = (carat_session_options){.n_ctx = 64, .kv_k = "q9_9"};
    err_clear(&e);
    CHECK_STATUS(carat_session_open(m, &so, &none, &e), E_UNSUPPORTED);
    so = (carat_session_options){.n_ctx = -1};
    err_clear(&e);
    CHECK_STATUS(carat_session_open(m, &so, &none, &e), E_ARG);
    so = (carat_session_options){.n_ctx = 64, .draft_max = 64};
    err_clear(&e);
    CHECK_STATUS(carat_session_open(m, &so, &none, &e), E_ARG);
    carat_model_close(m);

    m = toy_model_open(NULL, &(carat_model_options){.vocab_only = true});
    err_clear(&e);
    CHECK_STATUS(carat_session_open(m, NULL, &none, &e), E_ARG);
    err_clear(&e);
    CHECK_OK(carat_plan(m, NULL, &plan, &e), e);
    CHECK(plan.total_bytes > plan.weight_bytes && plan.kv_swa_bytes && plan.scratch_bytes);
    so = (carat_session_options){.n_ctx = 1 << 30};
    CHECK_STATUS(carat_plan(m, &so, &plan, &e), E_LIMIT); /* more than the model was made for */
}

static status open_and_eval(void *path, err *e)
{
    AUTO_MODEL *m = NULL;
    AUTO_SESSION *s = NULL;
    int32_t ids[9] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
    carat_generate_options o;
    status st = carat_model_open(path, &(carat_model_options){.n_threads = 2}, &m, e);
    if (!st)
        st = carat_session_open(m, &(carat_session_options){.n_ctx = 64}, &s, e);
    if (!st) {
        o = options(m, 0, 3);
        o.parse = true;
        st = carat_generate(s, ids, 9, &o, NULL, NULL, NULL, e);
    }
    return st;
}

TEST(every_allocation_may_fail_from_open_to_answer)
{
    test_every_allocation(open_and_eval, (void *)toy_model_write(NULL));
}
