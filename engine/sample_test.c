/* sample_test.c - the sampler against a slower, simpler one: sort all logits, cut, normalise. */
#include "base/mem.h"
#include "base/rng.h"
#include "engine/engine_int.h"
#include "engine/sample.h"
#include "tests/recur_model.h"
#include "tests/test.h"

#include <float.h>

/* sample_pick with a random state of the caller's. */
static int32_t pick(sampler *s, const carat_sampling *p, float *x, const int32_t *past,
                    int64_t n_past, uint64_t *rng)
{
    sample_state at = {.past = past, .n_past = n_past, .rng = *rng};
    int32_t id = sample_pick(s, p, x, &at);
    *rng = at.rng;
    return id;
}

/* The distribution that the chain defines, by sorting all logits: prob[id]. */
typedef struct {
    int32_t id;
    double l;
} item;

static int by_logit(const void *a, const void *b)
{
    const item *x = a, *y = b;
    if (x->l != y->l)
        return x->l > y->l ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

static void define(const carat_sampling *p, const float *logits, int32_t n, const int32_t *past,
                   int64_t n_past, double *prob)
{
    AUTO_MEM item *it = mem_calloc((size_t)n, sizeof *it);
    double sum = 0, cum = 0;
    int32_t kept = n;
    CHECK(it);
    for (int32_t i = 0; i < n; i++) {
        float l = logits[i];
        int64_t count = 0, from = p->penalty_last_n < 0 ? 0 : n_past - p->penalty_last_n;
        for (int64_t k = from < 0 ? 0 : from; k < n_past; k++)
            count += past[k] == i;
        for (int32_t k = 0; k < p->n_bias; k++)
            l += p->bias[k].id == i ? p->bias[k].bias : 0;
        if (count) {
            l = l > 0 ? l / p->repeat_penalty : l * p->repeat_penalty;
            l -= p->frequency_penalty * (float)count + p->presence_penalty;
        }
        it[i] = (item){i, l};
        prob[i] = 0;
    }
    qsort(it, (size_t)n, sizeof *it, by_logit);
    if (p->top_k > 0 && p->top_k < kept)
        kept = p->top_k;
    for (int32_t i = 0; i < kept; i++)
        sum += exp(it[i].l - it[0].l);
    for (int32_t i = 0; i < kept && p->top_p < 1; i++) {
        cum += exp(it[i].l - it[0].l);
        if (cum >= p->top_p * sum)
            kept = i + 1;
    }
    for (int32_t i = 1; i < kept; i++)
        if (p->min_p > 0 && it[i].l < it[0].l + logf(p->min_p))
            kept = i;
    sum = 0;
    for (int32_t i = 0; i < kept; i++)
        sum += exp((it[i].l - it[0].l) / p->temperature);
    for (int32_t i = 0; i < kept; i++)
        prob[it[i].id] = exp((it[i].l - it[0].l) / p->temperature) / sum;
}

/* Draws many tokens, and compares their frequencies with the definition by chi-square. */
static void compare(const carat_sampling *p, const float *logits, int32_t n, const int32_t *past,
                    int64_t n_past, uint64_t *rng)
{
    enum { DRAWS = 8000 };
    double *prob = mem_calloc((size_t)n, sizeof *prob), chi = 0;
    int32_t *seen = mem_calloc((size_t)n, sizeof *seen), cells = 0;
    AUTO_MEM float *x = mem_calloc((size_t)n, sizeof *x);
    sampler s;
    err e = {0};
    CHECK(prob && seen && x);
    CHECK_OK(sampler_init(&s, n, &e), e);
    CHECK_OK(sample_check(p, n, &e), e);
    define(p, logits, n, past, n_past, prob);
    for (int i = 0; i < DRAWS; i++) {
        memcpy(x, logits, (size_t)n * sizeof *x);
        int32_t id = pick(&s, p, x, past, n_past, rng);
        CHECK_MSG(id >= 0 && id < n && prob[id] > 0, "token %d has probability %g", id,
                  id >= 0 && id < n ? prob[id] : -1);
        seen[id]++;
    }
    double rest = 0, rest_seen = 0;
    for (int32_t i = 0; i < n; i++) {
        double want = prob[i] * DRAWS;
        if (want < 10) { /* too few for a cell: goes to a common one */
            rest += want;
            rest_seen += seen[i];
            continue;
        }
        chi += (seen[i] - want) * (seen[i] - want) / want;
        cells++;
    }
    if (rest >= 10) {
        chi += (rest_seen - rest) * (rest_seen - rest) / rest;
        cells++;
    }
    /* Mean: cells; standard deviation: sqrt(2 cells). Five deviations: one in a million. */
    CHECK_MSG(chi < cells + 5 * sqrt(2.0 * cells) + 5, "chi-square %g over %d cells", chi, cells);
    sampler_free(&s);
    mem_free(seen);
    mem_free(prob);
}

PLAIN_TEST(sampler_draws_what_the_definition_says)
{
    uint64_t rng = test_seed();
    for (int round = 0; round < 30; round++) {
        int32_t n = (int32_t[]){1, 2, 63, 64, 65, 1000, 3001}[rng_below(&rng, 7)];
        float *x = mem_calloc((size_t)n, sizeof *x);
        int32_t past[40];
        CHECK(x);
        for (int32_t i = 0; i < n; i++)
            x[i] = (float)rng_normal(&rng) * (round % 2 ? 1 : 4);
        for (int32_t i = 0; i < n && round % 5 == 0; i++)
            x[i] = roundf(x[i]); /* ties */
        for (int i = 0; i < 40; i++)
            past[i] = (int32_t)rng_below(&rng, (uint64_t)n);
        carat_logit_bias bias = {(int32_t)rng_below(&rng, (uint64_t)n), n > 1 ? 2 : 0};
        carat_sampling p = {.temperature = (float[]){1, 0.5f, 2}[rng_below(&rng, 3)],
                            .top_k = (int32_t[]){0, 1, 5, 64, 500}[rng_below(&rng, 5)],
                            .top_p = (float[]){1, 0.95f, 0.5f}[rng_below(&rng, 3)],
                            .min_p = (float[]){0, 0.05f, 0.3f}[rng_below(&rng, 3)],
                            .repeat_penalty = (float[]){1, 1.3f}[rng_below(&rng, 2)],
                            .presence_penalty = (float[]){0, 0.5f}[rng_below(&rng, 2)],
                            .frequency_penalty = (float[]){0, 0.2f}[rng_below(&rng, 2)],
                            .penalty_last_n = (int32_t[]){-1, 0, 10, 64}[rng_below(&rng, 4)],
                            .bias = &bias,
                            .n_bias = (int32_t)rng_below(&rng, 2)};
        compare(&p, x, n, past, 40, &rng);
        mem_free(x);
    }
}

TEST(greedy_takes_the_lowest_id_among_equals)
{
    enum { N = 1000 };
    float x[N];
    AUTO(sampler_free) sampler s;
    err e = {0};
    uint64_t rng = test_seed(), state = 0;
    carat_sampling p = {.top_p = 1, .repeat_penalty = 1};
    CHECK_OK(sampler_init(&s, N, &e), e);
    for (int round = 0; round < 500; round++) {
        int32_t best = 0;
        for (int i = 0; i < N; i++)
            x[i] = (float)rng_below(&rng, 30) - 15;
        for (int i = 0; i < N; i++)
            best = x[i] > x[best] ? i : best;
        CHECK_EQ(pick(&s, &p, x, NULL, 0, &state), best);
    }
}

PLAIN_TEST(top_k_keeps_exactly_k_with_the_lowest_ids_among_equals)
{
    enum { N = 5000 };
    static float x[N], y[N];
    AUTO(sampler_free) sampler s;
    err e = {0};
    uint64_t rng = test_seed();
    CHECK_OK(sampler_init(&s, N, &e), e);
    for (int32_t k = 1; k < 100; k += 7) {
        double prob[N];
        bool drawn[N] = {0};
        int32_t n_drawn = 0;
        carat_sampling p = {.temperature = 1e6f, .top_k = k, .top_p = 1, .repeat_penalty = 1};
        for (int i = 0; i < N; i++)
            x[i] = k % 2 ? 1 : (float)rng_below(&rng, 200); /* all equal, or many ties */
        define(&p, x, N, NULL, 0, prob);
        for (int i = 0; i < 3000; i++) { /* so hot that all candidates are about equally likely */
            memcpy(y, x, sizeof x);
            int32_t id = pick(&s, &p, y, NULL, 0, &rng);
            CHECK(id >= 0 && prob[id] > 0);
            n_drawn += !drawn[id];
            drawn[id] = true;
        }
        CHECK_EQ(n_drawn, k);
    }
}

/* A device returns all logits above a bound, in any order. */
PLAIN_TEST(picks_among_the_largest_what_it_picks_among_all)
{
    enum { N = 5000, ROUNDS = 300 };
    uint64_t rng = test_seed();
    AUTO_MEM float *x = mem_calloc(N, sizeof *x);
    AUTO_MEM candidate *c = mem_calloc(N, sizeof *c);
    sampler s, t;
    err e = {0};
    CHECK(x && c);
    CHECK_OK(sampler_init(&s, N, &e), e);
    CHECK_OK(sampler_init(&t, N, &e), e);
    for (int round = 0; round < ROUNDS; round++) {
        carat_sampling p = {.temperature = round % 4 ? 0.5f + (float)(round % 3) : 0,
                            .top_k = 1 + (int32_t)(rng_next(&rng) % 300),
                            .top_p = round % 5 ? 0.9f : 1,
                            .min_p = round % 7 ? 0 : 0.05f,
                            .repeat_penalty = 1};
        int32_t n = 0, k = sample_needs(&p), steps = round % 2 ? 40 : 1 << 20; /* many equal */
        for (int32_t i = 0; i < N; i++)
            x[i] = (float)(rng_next(&rng) % (uint64_t)steps) * 20 / (float)steps;
        for (int32_t i = 0; i < N; i += 50)
            x[i] = -INFINITY;
        CHECK_EQ(k, p.temperature > 0 ? p.top_k : 1);
        float bound = INFINITY;
        for (int32_t reach = 0; reach < k + 10;) { /* a bound that at least k + 10 logits reach */
            float next = -INFINITY;
            for (int32_t i = 0; i < N; i++)
                next = x[i] < bound && x[i] > next ? x[i] : next;
            bound = next;
            reach = 0;
            for (int32_t i = 0; i < N; i++)
                reach += x[i] >= bound;
        }
        for (int32_t i = N; i-- > 0;)
            if (x[i] >= bound)
                c[n++] = (candidate){i, x[i]};
        uint64_t a = rng_next(&rng), b = a;
        sample_state at = {.rng = b};
        int32_t among = sample_pick_among(&s, &p, c, n, &at);
        b = at.rng;
        CHECK_EQ(among, pick(&t, &p, x, NULL, 0, &a));
        CHECK(a == b);
    }
    sampler_free(&s);
    sampler_free(&t);
}

TEST(sampler_refuses_logits_that_are_no_numbers)
{
    enum { N = 300 };
    float x[N];
    AUTO(sampler_free) sampler s;
    err e = {0};
    uint64_t rng = 0;
    CHECK_OK(sampler_init(&s, N, &e), e);
    for (int greedy = 0; greedy < 2; greedy++) {
        carat_sampling p = {.temperature = greedy ? 0 : 1, .top_p = 0.9f, .repeat_penalty = 1};
        for (int at = 0; at < N; at += 37)
            for (int kind = 0; kind < 2; kind++) {
                for (int i = 0; i < N; i++)
                    x[i] = (float)i;
                x[at] = kind ? NAN : INFINITY;
                CHECK_EQ(pick(&s, &p, x, NULL, 0, &rng), -1);
            }
        for (int i = 0; i < N; i++)
            x[i] = -INFINITY;
        CHECK_EQ(pick(&s, &p, x, NULL, 0, &rng), -1);
        x[N - 1] = -FLT_MAX; /* the only finite logit */
        CHECK_EQ(pick(&s, &p, x, NULL, 0, &rng), N - 1);
        p.top_k = 5;
        p.top_p = 1;
        CHECK_EQ(pick(&s, &p, x, NULL, 0, &rng), N - 1);
    }
}

TEST(logprobs_are_those_of_the_untouched_distribution)
{
    enum { N = 777 };
    float x[N], of_id;
    carat_logprob top[20];
    AUTO(sampler_free) sampler s;
    err e = {0};
    uint64_t rng = test_seed();
    double sum = 0;
    CHECK_OK(sampler_init(&s, N, &e), e);
    for (int i = 0; i < N; i++) {
        x[i] = (float)rng_normal(&rng) * 3;
        sum += exp(x[i]);
    }
    sample_logprobs(&s, x, 123, &of_id, top, 20);
    CHECK_NEAR(of_id, x[123] - log(sum), 1e-5);
    for (int i = 0; i < 20; i++) {
        int larger = 0;
        for (int k = 0; k < N; k++)
            larger += x[k] > x[top[i].id];
        CHECK_EQ(larger, i);
        CHECK_NEAR(top[i].logprob, x[top[i].id] - log(sum), 1e-5);
    }
}

TEST(sampling_a_full_vocabulary_allocates_nothing)
{
    enum { N = 262144 };
    float *x = mem_calloc(N, sizeof *x), *y = mem_calloc(N, sizeof *y);
    sampler s;
    err e = {0};
    uint64_t rng = test_seed();
    CHECK(x && y);
    CHECK_OK(sampler_init(&s, N, &e), e);
    for (int i = 0; i < N; i++)
        x[i] = (float)rng_normal(&rng) * 4;
    int64_t before = mem_count();
    for (int i = 0; i < 6; i++) {
        carat_sampling p = {.temperature = 1,
                            .top_k = i % 2 ? 64 : 0,
                            .top_p = i < 3 ? 0.95f : 1,
                            .min_p = i == 2 ? 0.1f : 0,
                            .repeat_penalty = 1};
        memcpy(y, x, N * sizeof *x);
        CHECK(pick(&s, &p, y, NULL, 0, &rng) >= 0);
    }
    CHECK_EQ(mem_count(), before);
    sampler_free(&s);
    mem_free(x);
    mem_free(y);
}

/* A copy of a model without the keys that begin so; put, which may be NULL, writes others. */
static const char *copy_without(const char *from, const char *key,
                                void (*put)(gguf_writer *w, const gguf *g, int way), int way)
{
    const char *to = test_temp("changed.gguf");
    AUTO(gguf_close) gguf g;
    gguf_writer *w;
    err e = {0};
    CHECK_OK(gguf_open(&g, from, false, NULL, NULL, &e), e);
    CHECK_OK(gguf_create(&w, to, &e), e);
    for (uint64_t i = 0; i < g.n_values; i++)
        if (strncmp(g.value[i].key, key, strlen(key)) != 0)
            gguf_put_value(w, &g.value[i]);
    if (put)
        put(w, &g, way);
    for (uint64_t i = 0; i < g.tensors.n; i++) {
        const tensor *t = &g.tensors.at[i];
        gguf_put_tensor(w, t->name, t->type, t->n_dims, t->ne);
    }
    CHECK_OK(gguf_write_header(w, &e), e);
    for (uint64_t i = 0; i < g.tensors.n; i++)
        CHECK_OK(gguf_write_data(w, g.tensors.at[i].bytes, g.tensors.at[i].n_bytes, &e), e);
    CHECK_OK(gguf_commit(w, &e), e);
    return to;
}

static const char token_types[] = "tokenizer.ggml.token_type";

/* Every third ordinary token is of type UNUSED. */
static void put_unused(gguf_writer *w, const gguf *g, int way)
{
    int32_t type[1024];
    const gguf_value *types = gguf_find(g, token_types);
    (void)way;
    CHECK(types && types->count <= 1024);
    for (uint64_t i = 0; i < types->count; i++) {
        int64_t v = 0;
        CHECK(gguf_item_i64(types, i, &v));
        type[i] = i % 3 || v != TOKEN_NORMAL ? (int32_t)v : TOKEN_UNUSED;
    }
    gguf_put_i32s(w, token_types, type, types->count);
}

/* Way 0: the largest value of every setting; 1: one beyond it. */
static void put_sampling(gguf_writer *w, const gguf *g, int way)
{
    int32_t n;
    const carat_sampling_setting *all = carat_sampling_settings(&n);
    (void)g;
    for (int32_t i = 0; i < n; i++) {
        char key[64];
        snprintf(key, sizeof key, "general.sampling.%s", all[i].key);
        if (all[i].whole)
            gguf_put_i32(w, key, (int32_t)(way ? all[i].min - 1 : all[i].max));
        else
            gguf_put_f32(w, key, (float)(way ? all[i].max + 1 : all[i].max));
    }
}

TEST(a_file_says_how_to_sample_its_model)
{
    const carat_model_options no_weights = {.vocab_only = true};
    carat_sampling p[3];
    int32_t n;
    const carat_sampling_setting *all = carat_sampling_settings(&n);
    err e = {0};
    for (int way = 0; way < 3; way++) { /* 2: without any key */
        carat_model *m;
        const char *path = copy_without(recur_model_write(NULL), "general.sampling.",
                                        way < 2 ? put_sampling : NULL, way);
        CHECK_OK(carat_model_open(path, &no_weights, &m, &e), e);
        carat_sampling_default(m, &p[way]);
        CHECK_OK(sample_check(&p[way], 10, &e), e);
        carat_model_close(m);
    }
    for (int32_t i = 0; i < n; i++) {
        double most = all[i].whole ? all[i].max : (double)(float)all[i].max;
        CHECK_MSG(carat_sampling_get(&p[0], &all[i]) == most, "%s", all[i].name);
        CHECK_MSG(carat_sampling_get(&p[1], &all[i]) == carat_sampling_get(&p[2], &all[i]), "%s",
                  all[i].name);
    }
    CHECK(!strcmp(carat_sampling_find("temperature")->key, "temp"));
    CHECK(carat_sampling_find("typ_p") == carat_sampling_find("typical_p"));
    CHECK(!carat_sampling_find("") && !carat_sampling_find("temp"));
}

TEST(tokens_of_type_unused_are_never_sampled)
{
    static const carat_sampling how[] = {
        {.temperature = 0},
        {.temperature = 3},
        {.temperature = 3, .top_k = 20},
        {.temperature = 3, .top_k = 20, .mirostat = 2, .mirostat_tau = 5}};
    AUTO_MODEL *m;
    AUTO_SESSION *s;
    err e = {0};
    int32_t ids[8], n_unused;
    CHECK_OK(carat_model_open(copy_without(recur_model_write(NULL), token_types, put_unused, 0),
                              NULL, &m, &e),
             e);
    const int32_t *unused = vocab_never_sampled(m->text, &n_unused);
    CHECK(n_unused > 80 && vocab_is_never_sampled(m->text, unused[0]));
    CHECK(!vocab_is_never_sampled(m->text, -1) && !vocab_is_never_sampled(m->text, INT32_MAX));
    s = recur_session(m, (carat_session_options){0});
    for (size_t i = 0; i < sizeof how / sizeof *how; i++) {
        recur_heard h = {0};
        carat_generate_options o = recur_greedy(100);
        o.sampling = how[i];
        o.sampling.top_p = o.sampling.repeat_penalty = 1;
        o.sampling.ignore_eog = true;
        for (int k = 0; k < 8; k++)
            ids[k] = 3 * k + (int32_t)i; /* in a prompt they may be */
        CHECK_OK(carat_generate(s, ids, 8, &o, recur_hear, &h, NULL, &e), e);
        CHECK(h.n > 0);
        for (int32_t k = 0; k < h.n; k++)
            CHECK_MSG(vocab_type(m->text, h.id[k]) != TOKEN_UNUSED, "way %zu: token %d is %d", i, k,
                      h.id[k]);
    }
}
