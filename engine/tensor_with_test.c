/* tensor_with_test.c - what goes with a tensor split: adapters, drafters, pictures, pools of keys,
 * sparse prompts. Each has the same bits on any number of devices.
 *
 * CPU devices stand for GPUs.
 */
#include "carat.h"
#include "engine/batch_int.h"
#include "image/image_test_int.h"
#include "tests/lora_rig.h"
#include "tests/splits_rig.h"
#include "tests/synth_file.h"
#include "tests/test.h"
#include "tests/toy_model.h"

#include <stdio.h>
#include <string.h>

enum { RANKS = SPLITS_MAX, CTX = 1024, PROMPT = 700, SHORT = 90, MAX_VOCAB = 1024 };

/* n_ranks 0: without a split; the sums of rows are others. */
static carat_model *open_on(const char *path, carat_model_options o, int32_t n_ranks)
{
    carat_model *m;
    carat_error e = {0};
    CHECK_OK(splits_open(path, o, (split_place){.split = n_ranks ? "tensor" : NULL, .n = n_ranks},
                         &m, &e),
             e);
    CHECK_EQ(m->core.n_ranks, n_ranks);
    return m;
}

static void check_near(const float *a, const float *b, int32_t n, const char *what)
{
    const double far = splits_distance(a, b, (size_t)n);
    CHECK_MSG(far < 2e-3, "%s is %g off", what, far);
}

static void fill(int32_t *ids, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        ids[i] = 5 + (7 + 31 * i + i * i) % 300;
}

/* Pages have left it, and were chosen as the policy says. */
static void check_pool(const carat_session *s, const char *policy)
{
    carat_pool_info info;
    carat_session_get_pool(s, &info);
    if (!policy)
        return;
    CHECK_STR(info.policy, policy);
    CHECK(info.lossy && info.n_paged_out > 0);
    CHECK(!strcmp(policy, "lru") == !info.n_reselected);
}

/* Logits behind a prompt; then behind one that shares its first half. */
static void evaluate(carat_model *m, const carat_session_options *o, float logits[2][MAX_VOCAB])
{
    int32_t ids[PROMPT];
    carat_session *s;
    carat_error e = {0};
    CHECK(m->core.n_vocab <= MAX_VOCAB);
    fill(ids, PROMPT);
    CHECK_OK(carat_session_open(m, o, &s, &e), e);
    CHECK_OK(carat_eval(s, ids, PROMPT, logits[0], NULL, &e), e);
    ids[PROMPT / 2] ^= 1;
    CHECK_OK(carat_eval(s, ids, PROMPT, logits[1], NULL, &e), e);
    check_pool(s, o->kv_policy);
    carat_session_close(s);
}

/* ---- Drafters ------------------------------------------------------------------------------- */

/* What the drafter proposes behind a prompt, by the model's hidden rows. */
static void propose(const char *path, const char *draft, int32_t n_ranks, proposal *out)
{
    int32_t ids[SHORT];
    carat_session *s;
    err e = {0};
    carat_model *m = open_on(path, (carat_model_options){.draft = draft}, n_ranks);
    const carat_session_options o = {.n_ctx = CTX, .chunk = 16, .checkpoint_mb = -1};
    fill(ids, SHORT);
    CHECK_OK(carat_session_open(m, &o, &s, &e), e);
    CHECK_OK(carat_append(s, ids, SHORT - 1, false, NULL, &e), e);
    drafter *d = s->b.rounds->d[DRAFTER_MODEL];
    const draft_ask a = {.s = s->b.slot->t.draft[DRAFTER_MODEL],
                         .target = &s->b.slot->t.kv,
                         .id = ids,
                         .n = SHORT,
                         .n_slots = 4,
                         .n_ranks = 4,
                         .out = out};
    memset(out, 0, sizeof *out);
    CHECK_OK(d->class->propose(d, &a, 1, &e), e);
    CHECK(out->n_slots > 0);
    carat_session_close(s);
    carat_model_close(m);
}

/* The drafter is on the first rank, which has every tap. */
static void proposes_the_same(const char *path, const char *draft)
{
    proposal want, got;
    propose(path, draft, 0, &got);
    propose(path, draft, 1, &want);
    for (int32_t k = 0; k < want.n_ranks; k++) /* the model's rows have other sums */
        CHECK_NEAR(want.logp[0][k], got.logp[0][k], 0.02);
    for (int32_t r = 2; r <= RANKS; r++) {
        propose(path, draft, r, &got);
        CHECK_MSG(!memcmp(&want, &got, sizeof want), "%s on %d devices", draft, r);
    }
}

PLAIN_TEST(drafters_of_tensor_splits_propose_the_same)
{
    const char *path = synth_file("tiny-qwen35-keys", "f32", "--nextn", NULL);
    proposes_the_same(path, "nextn");
    proposes_the_same(path, synth_file("dflash-tiny-qwen35", "f32", "--dialect", "llama.cpp"));
    char target[512];
    snprintf(target, sizeof target, "%s", toy_model_write(&(toy_model_file){.base = "e2b"}));
    proposes_the_same(target, toy_model_write(&(toy_model_file){.base = "dense"}));
}

/* An assistant attends to the model's keys, and each rank has those of some heads; several have the
 * one head of a global layer. */
PLAIN_TEST(mtp_assistants_read_the_keys_of_all_ranks)
{
    static const char *const of[][2] = {{"tiny-dense", "mtp-tiny"},
                                        {"tiny-ple", "mtp-tiny-ordered"},
                                        {"tiny-wide", "mtp-tiny-wide"}};
    for (int i = 0; i < 3; i++)
        proposes_the_same(synth_file(of[i][0], "f32", NULL, NULL),
                          synth_file(of[i][1], "f32", NULL, NULL));
}

/* ---- Answers -------------------------------------------------------------------------------- */

/* Of a drafter those without it. */
static void answers_the_same(const split_case *c)
{
    enum { MOST = 8 };
    static split_said one[MOST], more[MOST];
    carat_model_options o;
    const char *path = split_case_write(c, &o), *draft = o.draft;
    int32_t first = -1;
    CHECK(c->jobs.n <= MOST);
    for (int32_t r = draft ? 0 : 1; r <= RANKS; r++) {
        carat_error e = {0};
        o.draft = r ? draft : NULL;
        carat_model *m = open_on(path, o, r ? r : 1);
        CHECK_OK(splits_answer(m, &c->jobs, first < 0 ? one : more, &e), e);
        carat_model_close(m);
        const int32_t n = splits_drafted(first < 0 ? one : more, c->jobs.n);
        if (first < 0) {
            first = 0;
            continue;
        }
        CHECK_MSG(splits_differ(one, more, c->jobs.n) < 0, "%s on %d devices", c->name, r);
        first = first ? first : n;
        CHECK_MSG(!draft == !n && n == first, "%s on %d devices: %d drafts", c->name, r, n);
    }
}

PLAIN_TEST(answers_with_all_that_goes_with_a_split_are_the_same_on_any_number_of_devices)
{
    for (int i = 0; i < SPLIT_CASES; i++)
        answers_the_same(&split_cases[i]);
}

/* ---- Sessions ------------------------------------------------------------------------------- */

static void same_sessions(const char *path, carat_model_options mo, carat_session_options so)
{
    static float plain[2][MAX_VOCAB], one[2][MAX_VOCAB], more[2][MAX_VOCAB];
    so.n_ctx = CTX;
    so.chunk = 32;
    so.checkpoint_mb = -1;
    const carat_session_options usual = {.n_ctx = CTX, .chunk = 32, .checkpoint_mb = -1};
    carat_model *m = open_on(path, (carat_model_options){0}, 1);
    evaluate(m, &usual, plain);
    carat_model_close(m);
    m = open_on(path, mo, 0);
    evaluate(m, &so, more);
    const int32_t n = m->core.n_vocab;
    carat_model_close(m);
    for (int32_t r = 1; r <= RANKS; r++) {
        m = open_on(path, mo, r);
        evaluate(m, &so, r == 1 ? one : more);
        if (r == 1) {
            CHECK(memcmp(one[0], plain[0], (size_t)n * sizeof *plain[0])); /* it does something */
            check_near(more[0], one[0], n, path);
            check_near(more[1], one[1], n, path);
        }
        CHECK_MSG(r == 1 || !memcmp(one, more, sizeof one), "%s on %d devices", path, r);
        carat_model_close(m);
    }
}

/* Prompts whose attention leaves keys out, head by head. */
PLAIN_TEST(sparse_prompts_are_the_same_on_any_number_of_devices)
{
    const carat_session_options o = {.sparse = "skip:1000000"};
    same_sessions(synth_file("tiny-qwen3", "f32", NULL, NULL), (carat_model_options){0}, o);
    same_sessions(synth_file("tiny-qwen35-keys", "f32", NULL, NULL), (carat_model_options){0}, o);
}

/* A model in whole layers has the bits of one device. */
static void same_in_layers(const char *path, const carat_session_options *o)
{
    static float one[2][MAX_VOCAB], more[2][MAX_VOCAB];
    carat_session_options so = *o;
    so.n_ctx = CTX;
    so.chunk = 32;
    so.checkpoint_mb = -1;
    for (int32_t n = 1; n <= 3; n++) {
        carat_model *m;
        carat_error e = {0};
        const split_place at = {.split = n > 1 ? "layers" : NULL, .n = n};
        CHECK_OK(splits_open(path, (carat_model_options){0}, at, &m, &e), e);
        CHECK_EQ(m->core.n_sides, n);
        evaluate(m, &so, n == 1 ? one : more);
        CHECK_MSG(n == 1 || !memcmp(one, more, sizeof one), "%s in layers of %d devices", path, n);
        carat_model_close(m);
    }
}

/* Pages leave the devices, and those that the model's queries ask for come back. */
PLAIN_TEST(pools_are_the_same_on_any_number_of_devices)
{
    static const char *const policies[] = {"lru", "scored", "snapkv"};
    for (int i = 0; i < 3; i++) {
        const carat_session_options o = {.kv_resident = 512, .kv_policy = policies[i]};
        same_sessions(synth_file("tiny-qwen3", "f32", NULL, NULL), (carat_model_options){0}, o);
        same_sessions(synth_file("tiny-wide", "f32", NULL, NULL), (carat_model_options){0}, o);
        same_sessions(synth_file("tiny-qwen35-keys", "f32", NULL, NULL), (carat_model_options){0},
                      o);
        same_in_layers(synth_file("tiny-qwen3", "f32", NULL, NULL), &o);
    }
}

static const carat_session_options scored = {.n_ctx = CTX,
                                             .chunk = 32,
                                             .checkpoint_mb = -1,
                                             .kv_resident = 512,
                                             .kv_policy = "scored",
                                             .kv_tau = 8};

/* Summaries, votes, kept queries and the stage of looks are on every rank. */
TEST(plans_of_pools_of_ranks_are_what_is_taken)
{
    for (int32_t r = 1; r <= RANKS; r++) {
        carat_model *m = open_on(synth_file("tiny-qwen3", "f32", NULL, NULL),
                                 (carat_model_options){0}, r);
        carat_device_memory before[CARAT_DEVICES_MAX], after[CARAT_DEVICES_MAX];
        carat_session_options lru = scored;
        carat_memory_plan plan, least;
        carat_session *s;
        carat_error e = {0};
        lru.kv_policy = "lru";
        CHECK_OK(carat_plan(m, &lru, &least, &e), e);
        CHECK_OK(carat_plan(m, &scored, &plan, &e), e);
        CHECK_EQ(carat_memory(m, before), r);
        CHECK_OK(carat_session_open(m, &scored, &s, &e), e);
        carat_memory(m, after);
        for (int32_t i = 0; i < r; i++) {
            const carat_device_plan *d = &plan.device[i];
            CHECK_EQ(after[i].used_bytes - before[i].used_bytes,
                     d->kv_swa_bytes + d->kv_global_bytes + d->scratch_bytes);
            CHECK(d->kv_global_bytes > least.device[i].kv_global_bytes);
        }
        carat_session_close(s);
        carat_model_close(m);
    }
}

static void no_watch(pass *p, mat q, const kv_view *kv, float scale, const page_watch *w)
{
    (void)q, (void)kv, (void)scale, (void)w;
    if (!pass_failed(p))
        err_set(&p->e, E_IO, "this rank watches no more");
}

/* A pass fails after some ranks have added their votes. Those votes are dropped, and the pass may run
 * again. */
TEST(any_rank_may_fail_a_watched_pass)
{
    enum { MORE = 24 };
    static float logits[MAX_VOCAB];
    int32_t ids[PROMPT + MORE], n_failed = 0;
    carat_model *m = open_on(synth_file("tiny-qwen3", "f32", NULL, NULL), (carat_model_options){0},
                             RANKS);
    carat_session *s;
    carat_error none = {0};
    fill(ids, PROMPT + MORE);
    CHECK_OK(carat_session_open(m, &scored, &s, &none), none);
    CHECK_OK(carat_eval(s, ids, PROMPT, NULL, NULL, &none), none);
    const kv_pager *g = session_timeline(s)->kv.pager;
    int64_t n_chosen = g->n_reselected;
    for (int32_t i = 0; i < MORE; i++) {
        device *d = model_device(m, i % RANKS);
        const device_ops *op = d->op;
        device_ops bad = *op;
        carat_error e = {0};
        bad.watch_pages = no_watch;
        d->op = &bad;
        status st = carat_append(s, ids + PROMPT + i, 1, false, logits, &e);
        d->op = op;
        CHECK_EQ(carat_session_n_past(s), PROMPT + i + !st);
        if (!st)
            continue;
        CHECK_MSG(st == E_IO && strstr(e.text, "watches no more"), "%s", e.text);
        CHECK_EQ(g->n_watched, 0);
        n_failed++;
        CHECK_OK(carat_append(s, ids + PROMPT + i, 1, false, logits, &none), none);
        CHECK_EQ(g->n_watched, 1);
    }
    CHECK(n_failed > RANKS && g->n_reselected > n_chosen);
    carat_session_close(s);
    carat_model_close(m);
}

static status open_pool(void *arg, err *e)
{
    const carat_model_options o = {.device = "cpu,cpu", .split = "tensor", .n_threads = 1};
    carat_model *m;
    carat_session *s;
    status st = carat_model_open(arg, &o, &m, e);
    if (st)
        return st;
    st = carat_session_open(m, &scored, &s, e);
    carat_session_close(s);
    carat_model_close(m);
    return st;
}

TEST(pools_of_ranks_survive_every_failing_allocation)
{
    test_every_allocation(open_pool, (void *)(size_t)synth_file("tiny-qwen3", "f32", NULL, NULL));
}

/* ---- Adapters ------------------------------------------------------------------------------- */

PLAIN_TEST(adapters_are_the_same_on_any_number_of_devices)
{
    static const char *const sizes[] = {"tiny-qwen3", "tiny-qwen35-keys", "tiny-qwen3moe",
                                        "tiny-all"};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const char *path = synth_file(sizes[i], "f32", NULL, NULL);
        char at[512];
        snprintf(at, sizeof at, "%s", test_temp("adapter.gguf"));
        lora_rig_adapter(path, at, &(lora_recipe){.rank = 4, .alpha = 8, .seed = 5});
        const carat_lora l = {at, 0.75f};
        same_sessions(path, (carat_model_options){.loras = &l, .n_loras = 1},
                      (carat_session_options){0});
    }
}

/* ---- Pictures ------------------------------------------------------------------------------- */

/* The tower is on the first rank; every rank gets its rows, and places on axes. */
static void look(carat_model *m, float *logits)
{
    enum { BEFORE = 5, AFTER = 20, MOST = 200, WIDTH = 40, HEIGHT = 30 };
    const carat_image_options o = {.n_tokens = 70};
    int32_t ids[MOST];
    carat_media *picture;
    carat_session *s;
    carat_error e = {0};
    image i;
    test_picture(&i, 0, WIDTH, HEIGHT);
    CHECK_OK(carat_image_new(m, i.rgb, WIDTH, HEIGHT, &o, &picture, &e), e);
    image_free(&i);
    int32_t n = carat_media_n(picture);
    CHECK(n > 0 && BEFORE + n + AFTER <= MOST && m->core.n_vocab <= MAX_VOCAB);
    fill(ids, MOST);
    for (int32_t k = 0; k < n; k++)
        ids[BEFORE + k] = carat_media_id(picture) - k;
    CHECK_OK(carat_session_open(m, &(carat_session_options){.n_ctx = CTX}, &s, &e), e);
    CHECK_OK(carat_eval(s, ids, BEFORE + n + AFTER, logits, NULL, &e), e);
    carat_session_close(s);
    carat_media_free(picture);
}

PLAIN_TEST(pictures_are_the_same_on_any_number_of_devices)
{
    static const char *const of[][2] = {{"tiny-qwen35-keys", "tiny-mmproj-qwen"},
                                        {"tiny-ple", "tiny-mmproj-clamped"}};
    static float one[MAX_VOCAB], more[MAX_VOCAB];
    for (int i = 0; i < 2; i++) {
        const char *path = synth_file(of[i][0], "f32", NULL, NULL);
        const char *tower = synth_file(of[i][1], "f32", NULL, NULL);
        carat_model *whole = open_on(path, (carat_model_options){.mmproj = tower}, 0);
        look(whole, more);
        for (int32_t r = 1; r <= RANKS; r++) {
            carat_model *m = open_on(path, (carat_model_options){.mmproj = tower}, r);
            look(m, r == 1 ? one : more);
            if (r == 1)
                check_near(more, one, m->core.n_vocab, path);
            CHECK_MSG(r == 1 || !memcmp(one, more, sizeof one), "%s on %d devices", path, r);
            carat_model_close(m);
        }
        carat_model_close(whole);
    }
}
