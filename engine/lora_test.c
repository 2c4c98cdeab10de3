/* lora_test.c - answers with different adapters in one batch, and what they may reuse. */
#include "carat.h"
#include "base/mem.h"
#include "tests/lora_rig.h"
#include "tests/test.h"
#include "tests/toy_model.h"

#include <stdio.h>
#include <string.h>

enum { CTX = 256, PROMPT = 60, TOKENS = 24, KINDS = 5 };

typedef struct answer {
    int32_t ids[TOKENS];
    int n;
    carat_timings t;
} answer;

static bool keep(void *user, const carat_event *ev)
{
    answer *a = user;
    if (ev->kind == CARAT_EV_TOKEN && a->n < TOKENS)
        a->ids[a->n++] = ev->id;
    return true;
}

static void done(void *user, carat_status st, const carat_error *e, const carat_timings *t)
{
    CHECK_MSG(!st, "%s", e ? e->text : "");
    ((answer *)user)->t = *t;
}

/* Nothing, one of each, half of the second, both. */
static const carat_lora_use uses[KINDS][2] = {
    {{0}}, {{0, 1}}, {{1, 1}}, {{1, 0.5f}}, {{0, 1}, {1, 1}}};
static const int32_t n_uses[KINDS] = {0, 1, 1, 1, 2};

static carat_generate_options options(const carat_model *m, int kind)
{
    carat_generate_options o = {.max_tokens = TOKENS, .loras = uses[kind], .n_loras = n_uses[kind]};
    carat_sampling_default(m, &o.sampling);
    o.sampling.temperature = 1;
    o.sampling.seed = 7;
    o.sampling.ignore_eog = true;
    return o;
}

static carat_model *open_adapted(carat_model_options o)
{
    static const lora_recipe recipe[2] = {{.rank = 4, .alpha = 8, .seed = 5},
                                          {.rank = 8, .alpha = 8, .seed = 91, .only = "ffn"}};
    char *base = mem_strdup(toy_model_write(NULL)), *path[2];
    carat_lora l[2] = {0};
    carat_model *m;
    err e = {0};
    for (int i = 0; i < 2; i++) {
        path[i] = mem_strdup(test_temp(i ? "b.gguf" : "a.gguf"));
        lora_rig_adapter(base, path[i], &recipe[i]);
        l[i] = (carat_lora){path[i], 0};
    }
    o.loras = l;
    o.n_loras = 2;
    CHECK_OK(carat_model_open(base, &o, &m, &e), e);
    mem_free(base);
    mem_free(path[0]);
    mem_free(path[1]);
    return m;
}

static void alone(carat_model *m, const int32_t *ids, int64_t n, int kind, answer *a)
{
    AUTO_SESSION *s;
    carat_error e = {0};
    carat_generate_options o = options(m, kind);
    CHECK_OK(carat_session_open(m, &(carat_session_options){.n_ctx = CTX}, &s, &e), e);
    CHECK_OK(carat_generate(s, ids, n, &o, keep, a, &a->t, &e), e);
}

static void check_batch(carat_model *m, int32_t n_slots, int32_t chunk)
{
    int32_t ids[PROMPT];
    answer want[KINDS] = {0}, got[3 * KINDS] = {0};
    carat_batch *b;
    carat_error e = {0};
    toy_random_ids(m, ids, PROMPT, test_seed());
    for (int i = 0; i < KINDS; i++) {
        alone(m, ids, PROMPT, i, &want[i]);
        for (int k = 0; k < i; k++)
            CHECK_MSG(memcmp(want[k].ids, want[i].ids, sizeof want[i].ids),
                      "adapters %d and %d give the same answer", k, i);
    }
    carat_batch_options o = {.session = {.n_ctx = CTX, .chunk = chunk}, .n_slots = n_slots};
    CHECK_OK(carat_batch_open(m, &o, &b, &e), e);
    /* All at once, twice: neighbours in passes, then prefixes that are there. */
    for (int i = 0; i < 3 * KINDS; i++) {
        carat_generate_options g = options(m, i % KINDS);
        carat_job j = {
            .ids = ids, .n = PROMPT, .opt = &g, .fn = keep, .done = done, .user = &got[i]};
        CHECK_OK(carat_batch_submit(b, &j, NULL, NULL, &e), e);
        if (i >= 2 * KINDS - 1)
            while (carat_batch_step(b))
                ;
    }
    carat_batch_close(b);
    for (int i = 0; i < 3 * KINDS; i++) {
        CHECK_EQ(got[i].n, TOKENS);
        CHECK_MSG(!memcmp(got[i].ids, want[i % KINDS].ids, sizeof got[i].ids),
                  "%d slots: answer %d with adapters %d is another than alone", n_slots, i,
                  i % KINDS);
    }
    int64_t n_reused = 0;
    for (int i = 2 * KINDS; i < 3 * KINDS; i++)
        n_reused += got[i].t.n_reused;
    CHECK_MSG(n_reused >= (KINDS - 1) * (PROMPT / 2), "%d tokens reused", (int)n_reused);
}

PLAIN_TEST(lora_answers_of_a_batch_are_those_alone)
{
    AUTO_MODEL *m = open_adapted((carat_model_options){.n_threads = 2});
    check_batch(m, 3, 16);
    check_batch(m, 8, 128);
}

TEST(lora_rows_are_reused_by_their_own_adapters_alone)
{
    AUTO_MODEL *m = open_adapted((carat_model_options){.n_threads = 2});
    AUTO_SESSION *s;
    AUTO_PTR(carat_snapshot_free) carat_snapshot *snap;
    carat_error e = {0};
    int32_t ids[PROMPT];
    answer a = {0};
    toy_random_ids(m, ids, PROMPT, test_seed());
    CHECK_OK(carat_session_open(m, &(carat_session_options){.n_ctx = CTX}, &s, &e), e);
    static const struct {
        int kind;
        bool reuses;
    } turn[] = {{1, false}, {1, true}, {2, false}, {3, false}, {0, false}, {1, true}, {2, true}};
    for (size_t i = 0; i < sizeof turn / sizeof *turn; i++) {
        carat_generate_options o = options(m, turn[i].kind);
        a = (answer){0};
        CHECK_OK(carat_generate(s, ids, PROMPT, &o, keep, &a, &a.t, &e), e);
        CHECK_MSG((a.t.n_reused > 0) == turn[i].reuses, "turn %d reused %d tokens", (int)i,
                  (int)a.t.n_reused);
    }
    /* The model's own scales: none; then the second, whose snapshot another setting refuses. */
    CHECK_OK(carat_lora_set_scales(m, (const float[]){0, 1}, 2, &e), e);
    CHECK_OK(carat_eval(s, ids, PROMPT, NULL, NULL, &e), e);
    CHECK_OK(carat_snapshot_take(s, &snap, &e), e);
    CHECK_OK(carat_snapshot_restore(s, snap, &e), e);
    CHECK_OK(carat_lora_set_scales(m, (const float[]){0, 0}, 2, &e), e);
    CHECK_OK(carat_eval(s, ids, PROMPT, NULL, NULL, &e), e);
    CHECK_STATUS(carat_snapshot_restore(s, snap, &e), CARAT_E_ARG);
    CHECK(strstr(e.text, "other adapters"));
}

TEST(lora_scales_and_numbers_are_checked)
{
    AUTO_MODEL *m = open_adapted((carat_model_options){.n_threads = 1});
    AUTO_SESSION *s;
    carat_lora_info l;
    const int32_t ids[] = {1, 2, 3};
    CHECK_OK(carat_session_open(m, &(carat_session_options){.n_ctx = CTX}, &s, NULL),
             (carat_error){0});
    static const carat_lora_use bad[] = {{-1, 1}, {2, 1}, {0, 1e30f}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        carat_error e = {0};
        carat_generate_options o = options(m, 0);
        o.loras = &bad[i];
        o.n_loras = 1;
        CHECK_STATUS(carat_generate(s, ids, 3, &o, NULL, NULL, NULL, &e), CARAT_E_ARG);
        printf("  %s\n", e.text);
    }
    carat_error e = {0};
    CHECK_STATUS(carat_lora_set_scales(m, (const float[]){1}, 1, &e), CARAT_E_ARG);
    CHECK(carat_lora_at(m, 1, &l) && l.rank == 8 && l.scale == 0 && !strcmp(l.name, "b"));
    CHECK(!carat_lora_at(m, 2, &l) && !carat_lora_at(m, -1, &l));
}

/* The plan has the adapters' bytes, and a session takes what it says. */
TEST(lora_is_in_the_plan)
{
    carat_memory_plan with, without;
    carat_error e = {0};
    carat_session_options so = {.n_ctx = CTX};
    carat_model *m = open_adapted((carat_model_options){.n_threads = 1, .vocab_only = true});
    CHECK_OK(carat_plan(m, &so, &with, &e), e);
    carat_model_close(m);
    m = toy_model_open(NULL, &(carat_model_options){.n_threads = 1, .vocab_only = true});
    CHECK_OK(carat_plan(m, &so, &without, &e), e);
    carat_model_close(m);
    printf("  weights %llu and %llu, repacked %llu and %llu, scratch %llu and %llu\n",
           (unsigned long long)with.weight_bytes, (unsigned long long)without.weight_bytes,
           (unsigned long long)with.repack_bytes, (unsigned long long)without.repack_bytes,
           (unsigned long long)with.scratch_bytes, (unsigned long long)without.scratch_bytes);
    CHECK(with.weight_bytes + with.repack_bytes > without.weight_bytes + without.repack_bytes);
    CHECK(with.scratch_bytes >= without.scratch_bytes);
}
