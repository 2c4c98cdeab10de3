/* score_test.c - logprobs of prompts: those of the same text token by token, from every chunk size,
 * with any cache, in batches beside answers and embeddings; and rules on single tokens.
 */
#include "tests/toy_model.h"
#include "base/mem.h"
#include "base/rng.h"
#include "engine/engine_int.h"
#include "tests/test.h"

enum { N_CTX = 160, TOP = 5, JOBS = 10, ANSWER = 12 };

typedef struct heard {
    int32_t n_prompt, n_answer, n_done;
    int32_t id[N_CTX], rank[N_CTX], n_top[N_CTX], answer[ANSWER];
    float logprob[N_CTX];
    carat_logprob top[N_CTX][TOP];
    carat_status st;
    carat_finish finish;
    bool by_stop_id;
    int32_t stop_id;
    int64_t ids_n, cut_after; /* > 0: the caller cancels there */
} heard;

static bool hear(void *user, const carat_event *ev)
{
    heard *h = user;
    if (ev->kind == CARAT_EV_PROMPT_TOKEN) {
        CHECK(!h->n_answer && h->n_prompt < N_CTX && ev->n_top <= TOP);
        int32_t i = h->n_prompt++;
        h->id[i] = ev->id;
        h->rank[i] = ev->rank;
        h->n_top[i] = ev->n_top;
        h->logprob[i] = ev->logprob;
        if (ev->n_top)
            memcpy(h->top[i], ev->top, (size_t)ev->n_top * sizeof *ev->top);
    } else if (ev->kind == CARAT_EV_TOKEN) {
        h->answer[h->n_answer++] = ev->id;
    } else if (ev->kind == CARAT_EV_END) {
        h->finish = ev->finish;
        h->by_stop_id = ev->by_stop_id;
        h->stop_id = ev->stop_id;
    }
    return !h->cut_after || h->n_prompt < h->cut_after;
}

static void done(void *user, carat_status st, const carat_error *e, const carat_timings *t)
{
    heard *h = user;
    (void)t;
    h->n_done++;
    h->st = st;
    if (st && st != CARAT_E_CANCELLED)
        printf("  %s\n", e->text);
}

static carat_session *open_session(carat_model *m, int32_t chunk)
{
    err e = {0};
    carat_session *s;
    carat_session_options o = {.n_ctx = N_CTX, .chunk = chunk, .kv_k = "f32"};
    CHECK_OK(carat_session_open(m, &o, &s, &e), e);
    return s;
}

static carat_generate_options options(const carat_model *m)
{
    carat_generate_options o = {.max_tokens = ANSWER, .n_prompt_logprobs = TOP};
    carat_sampling_default(m, &o.sampling);
    o.sampling.ignore_eog = true;
    return o;
}

/* Token by token, by a caller's own loop. */
static void define(carat_model *m, const int32_t *ids, int32_t n, heard *h)
{
    size_t n_vocab = (size_t)m->core.n_vocab;
    AUTO_MEM float *x = mem_calloc(n_vocab, sizeof *x);
    AUTO_SESSION *s = open_session(m, 1);
    AUTO(sampler_free) sampler pick;
    err e = {0};
    CHECK(x);
    CHECK_OK(sampler_init(&pick, m->core.n_vocab, &e), e);
    *h = (heard){.n_prompt = n};
    h->id[0] = ids[0];
    for (int32_t i = 1; i < n; i++) {
        CHECK_OK(carat_append(s, &ids[i - 1], 1, false, x, &e), e);
        h->id[i] = ids[i];
        h->rank[i] = 1;
        h->n_top[i] = TOP;
        for (size_t k = 0; k < n_vocab; k++)
            h->rank[i] += x[k] > x[ids[i]];
        sample_logprobs(&pick, x, ids[i], &h->logprob[i], h->top[i], TOP);
        if (h->rank[i] == 1)
            CHECK(h->logprob[i] == h->top[i][0].logprob);
    }
}

static void same_scores(const heard *got, const heard *want)
{
    CHECK_EQ(got->n_prompt, want->n_prompt);
    for (int32_t i = 0; i < want->n_prompt; i++) {
        CHECK_EQ(got->id[i], want->id[i]);
        CHECK_EQ(got->rank[i], want->rank[i]);
        CHECK_EQ(got->n_top[i], want->n_top[i]);
        CHECK_MSG(!memcmp(&got->logprob[i], &want->logprob[i], sizeof(float)),
                  "token %d: logprob %g, expected %g", i, (double)got->logprob[i],
                  (double)want->logprob[i]);
        CHECK(!memcmp(got->top[i], want->top[i], (size_t)want->n_top[i] * sizeof **want->top));
    }
}

static void random_ids(int32_t *ids, int32_t n, int32_t n_vocab, uint64_t *rng)
{
    for (int32_t i = 0; i < n; i++)
        ids[i] = (int32_t)rng_below(rng, (uint64_t)n_vocab);
}

static carat_model *open_model(int i)
{
    static const char *const bases[] = {"all", "e2b", "qwen35"};
    return toy_model_open(i < 2 ? &(toy_model_file){.base = bases[i]}
                                : &(toy_model_file){.base = bases[i], .words = "qwen35"},
                          &(carat_model_options){.n_threads = 2, .draft = i ? NULL : "lookup"});
}

TEST(prompt_logprobs_are_those_of_single_tokens)
{
    static const int32_t chunks[] = {1, 5, 0};
    AUTO_MEM heard *want = mem_calloc(1, sizeof *want), *got = mem_calloc(1, sizeof *got);
    uint64_t rng = test_seed();
    CHECK(want && got);
    for (int i = 0; i < 3; i++) {
        AUTO_MODEL *m = open_model(i);
        carat_generate_options o = options(m), plain = o;
        int32_t ids[N_CTX], n = 60;
        err e = {0};
        plain.n_prompt_logprobs = 0;
        random_ids(ids, n, m->core.n_vocab, &rng);
        define(m, ids, n, want);
        for (int k = SANITIZED ? 1 : 0; k < 3; k++) {
            AUTO_SESSION *s = open_session(m, chunks[k]);
            heard first = {0};
            carat_timings t;
            CHECK_OK(carat_generate(s, ids, n, &plain, hear, &first, NULL, &e), e);
            for (int again = 0; again < 2; again++) { /* over a cache that has the prompt */
                *got = (heard){0};
                CHECK_OK(carat_generate(s, ids, n, &o, hear, got, &t, &e), e);
                same_scores(got, want);
                CHECK_EQ(t.n_reused, 0);
                CHECK_EQ(t.n_computed, n);
                CHECK(!memcmp(got->answer, first.answer, sizeof first.answer));
            }
            *got = (heard){0}; /* what scoring has computed is reused */
            CHECK_OK(carat_generate(s, ids, n, &plain, hear, got, &t, &e), e);
            CHECK(!memcmp(got->answer, first.answer, sizeof first.answer) && t.n_reused > 0);
            o.no_answer = true;
            *got = (heard){0};
            CHECK_OK(carat_generate(s, ids, n, &o, hear, got, &t, &e), e);
            same_scores(got, want);
            CHECK(!got->n_answer && got->finish == CARAT_FINISH_LENGTH && !t.n_generated);
            *got = (heard){0};
            CHECK_OK(carat_generate(s, ids, 1, &o, hear, got, NULL, &e), e);
            CHECK(got->n_prompt == 1 && got->rank[0] == 0 && got->n_top[0] == 0);
            *got = (heard){.cut_after = 9};
            CHECK_OK(carat_generate(s, ids, n, &o, hear, got, NULL, &e), e);
            o.no_answer = false;
        }
        o.n_prompt_logprobs = 21;
        AUTO_SESSION *s = open_session(m, 0);
        CHECK_EQ(carat_generate(s, ids, n, &o, hear, got, NULL, &e), E_ARG);
    }
}

static void check_batch(carat_model *m, int32_t n_slots, int32_t chunk, uint64_t *rng)
{
    AUTO_MEM heard *h = mem_calloc(JOBS, sizeof *h), *want = mem_calloc(1, sizeof *want);
    int32_t(*ids)[N_CTX] = mem_calloc(JOBS, sizeof *ids);
    AUTO_MEM float *vector = mem_calloc((size_t)m->core.n_embd, sizeof *vector);
    carat_batch_options bo = {.session = {.n_ctx = N_CTX, .chunk = chunk, .kv_k = "f32"},
                              .n_slots = n_slots};
    carat_batch *b;
    err e = {0};
    CHECK(h && want && ids && vector);
    CHECK_OK(carat_batch_open(m, &bo, &b, &e), e);
    for (int i = 0; i < JOBS; i++) {
        carat_generate_options o = options(m);
        uint64_t shared = 5; /* prompts with a common beginning */
        int64_t id;
        o.n_prompt_logprobs = i % 3 ? TOP : 0;
        o.no_answer = i % 4 == 2;
        h[i].ids_n = 1 + (int64_t)rng_below(rng, N_CTX - 30);
        random_ids(ids[i], (int32_t)h[i].ids_n, m->core.n_vocab, i % 2 ? rng : &shared);
        carat_job j = {.ids = ids[i],
                       .n = h[i].ids_n,
                       .opt = &o,
                       .fn = hear,
                       .done = done,
                       .user = &h[i],
                       .embedding = i == 6 ? vector : NULL,
                       .pooling = CARAT_POOL_MEAN};
        CHECK_OK(carat_batch_submit(b, &j, &id, NULL, &e), e);
        if (i == 8)
            carat_batch_cancel(b, id);
        if (i % 2)
            carat_batch_step(b);
    }
    while (carat_batch_step(b))
        ;
    for (int i = 0; i < JOBS; i++) {
        CHECK_EQ(h[i].n_done, 1);
        if (i == 8)
            continue;
        CHECK_EQ(h[i].st, CARAT_OK);
        if (i % 3 && i != 6) {
            define(m, ids[i], (int32_t)h[i].ids_n, want);
            same_scores(&h[i], want);
        } else {
            CHECK_EQ(h[i].n_prompt, 0);
        }
        if (i != 6)
            CHECK_EQ(h[i].n_answer, i % 4 == 2 ? 0 : ANSWER);
    }
    carat_batch_close(b);
    mem_free(ids);
}

PLAIN_TEST(prompt_logprobs_of_a_batch_are_those_of_single_tokens)
{
    uint64_t rng = test_seed();
    for (int i = 0; i < 3; i++) {
        AUTO_MODEL *m = open_model(i);
        check_batch(m, 3, 7, &rng);
        check_batch(m, 2, 0, &rng);
    }
}

/* ---- Rules on single tokens ---------------------------------------------------------------- */

static void generate(carat_session *s, const int32_t *ids, int32_t n,
                     const carat_generate_options *o, heard *h)
{
    err e = {0};
    *h = (heard){0};
    CHECK_OK(carat_generate(s, ids, n, o, hear, h, NULL, &e), e);
}

TEST(tokens_that_are_forbidden_never_come)
{
    AUTO_MODEL *m = open_model(0);
    AUTO_SESSION *s = open_session(m, 0);
    AUTO_MEM heard *h = mem_calloc(1, sizeof *h);
    int32_t ids[20], few[3];
    uint64_t rng = test_seed();
    err e = {0};
    CHECK(h);
    random_ids(ids, 20, m->core.n_vocab, &rng);
    carat_generate_options o = options(m);
    o.n_prompt_logprobs = 0;
    o.sampling.temperature = 0;
    generate(s, ids, 20, &o, h);
    const heard plain = *h;
    CHECK_EQ(plain.n_answer, ANSWER);

    o.stop_ids = &plain.answer[2];
    o.n_stop_ids = 1;
    int32_t at = 0;
    while (plain.answer[at] != plain.answer[2])
        at++;
    generate(s, ids, 20, &o, h);
    CHECK_EQ(h->n_answer, at + 1);
    CHECK(h->finish == CARAT_FINISH_STOP && h->by_stop_id && h->stop_id == plain.answer[2]);
    o.min_tokens = 6;
    generate(s, ids, 20, &o, h);
    CHECK(h->n_answer > 6);
    for (int32_t i = 0; i < 6; i++)
        CHECK(h->answer[i] != plain.answer[2]);
    o.stop_ids = NULL;
    o.n_stop_ids = o.min_tokens = 0;

    /* A single bad token; and two, of which only the last is forbidden after the first. */
    carat_tokens bad[] = {{&plain.answer[0], 1}, {&plain.answer[1], 2}};
    o.bad = bad;
    o.n_bad = 1;
    generate(s, ids, 20, &o, h);
    for (int32_t i = 0; i < h->n_answer; i++)
        CHECK(h->answer[i] != plain.answer[0]);
    o.bad = &bad[1];
    generate(s, ids, 20, &o, h);
    CHECK(h->answer[0] == plain.answer[0] && h->answer[1] == plain.answer[1]);
    CHECK(h->answer[2] != plain.answer[2]);
    o.n_bad = 0;

    for (int i = 0; i < 3; i++)
        few[i] = plain.answer[i] == plain.answer[0] ? 40 + i : plain.answer[i];
    o.only_ids = few;
    o.n_only_ids = 3;
    generate(s, ids, 20, &o, h);
    for (int32_t i = 0; i < h->n_answer; i++)
        CHECK(h->answer[i] == few[0] || h->answer[i] == few[1] || h->answer[i] == few[2]);

    const int32_t beyond = m->core.n_vocab;
    carat_tokens none = {NULL, 0}, wrong = {&beyond, 1};
    carat_generate_options bads[] = {o, o, o, o, o};
    bads[0].only_ids = &beyond;
    bads[0].n_only_ids = 1;
    bads[1].n_only_ids = 0;
    bads[2].bad = &none;
    bads[2].n_bad = 1;
    bads[3].bad = &wrong;
    bads[3].n_bad = 1;
    bads[4].n_stop_ids = -1;
    for (int i = 0; i < 5; i++) {
        e = (err){0};
        CHECK_EQ(carat_generate(s, ids, 20, &bads[i], hear, h, NULL, &e), E_ARG);
        CHECK(*e.text);
    }
}
