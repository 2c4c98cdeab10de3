/* drafters_test.c - answers with drafters that have weights, through sessions and batches: an MTP
 * assistant with random weights, whose drafts are nearly all wrong; and a copy of the target,
 * whose drafts are all right.
 */
#include "backend/cuda/plan_only.h"
#include "engine/batch_int.h"
#include "engine/engine_int.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/rng.h"
#include "tests/mtp_rig.h"
#include "tests/test.h"
#include "tests/toy_model.h"

enum { CTX = 320, JOBS = 8, PROMPT_MAX = 200 };

typedef struct answer {
    int32_t id[CTX];
    int32_t n;
    int32_t n_rounds, n_drafted, n_accepted; /* of the drafter with weights */
    int32_t n_full;                          /* rounds in which all was right */
    carat_status st;
} answer;

static bool hear(void *user, const carat_event *ev)
{
    answer *a = user;
    if (ev->kind == CARAT_EV_TOKEN)
        a->id[a->n++] = ev->id;
    return true;
}

static void hear_round(void *user, const carat_round *r)
{
    answer *a = user;
    if (!r->drafter || !strcmp(r->drafter, "lookup") || !r->n_drafted)
        return;
    a->n_rounds++;
    a->n_drafted += r->n_drafted;
    a->n_accepted += r->n_accepted;
    a->n_full += r->n_accepted == r->n_drafted;
}

static void done(void *user, carat_status st, const carat_error *e, const carat_timings *t)
{
    answer *a = user;
    (void)e;
    (void)t;
    a->st = st;
}

static carat_model *opened(const char *path, const char *draft)
{
    carat_model *m;
    err e = {0};
    CHECK_OK(carat_model_open(path, &(carat_model_options){.draft = draft}, &m, &e), e);
    return m;
}

typedef struct request {
    int32_t id[PROMPT_MAX];
    int64_t n;
    carat_generate_options o;
} request;

static void draw(request *q, const carat_model *m, int trial, uint64_t *rng)
{
    *q = (request){.n = 1 + (int64_t)rng_below(rng, PROMPT_MAX / 2)};
    for (int64_t i = 0; i < q->n; i++)
        q->id[i] = (int32_t)rng_below(rng, (uint64_t)m->core.n_vocab);
    carat_sampling_default(m, &q->o.sampling);
    q->o.sampling.temperature = trial % 2 ? 0.9f : 0;
    q->o.sampling.seed = (uint32_t)trial;
    q->o.sampling.ignore_eog = true;
    q->o.max_tokens = 40 + trial % 50;
    q->o.speculation =
        (carat_speculation){.n_max = 1 + trial % 6, .tree_max = trial % 3 ? -1 : 9, .fixed = true};
}

static answer *say(carat_session *s, request *q)
{
    answer *a = mem_calloc(1, sizeof *a);
    err e = {0};
    CHECK(a);
    q->o.on_round = hear_round;
    q->o.round_user = a;
    CHECK_OK(carat_generate(s, q->id, q->n, &q->o, hear, a, NULL, &e), e);
    return a;
}

static void check_same(const answer *got, const answer *want, const char *what, int trial)
{
    for (int32_t i = 0; i < got->n && i < want->n; i++)
        CHECK_MSG(got->id[i] == want->id[i], "%s, trial %d: token %d is %d, plain %d", what, trial,
                  i, got->id[i], want->id[i]);
    CHECK_MSG(got->n == want->n, "%s, trial %d: %d tokens, plain %d", what, trial, got->n, want->n);
}

/* Later prompts continue, cut or replace earlier ones. */
static void compare_sessions(carat_model *plain, carat_model *with, const char *kv, int n,
                             const char *what)
{
    carat_session_options o = {.n_ctx = CTX, .kv_k = kv, .checkpoint_mb = -1};
    carat_session *a, *b;
    uint64_t rng = test_seed();
    request q;
    int32_t n_rounds = 0;
    err e = {0};
    CHECK_OK(carat_session_open(plain, &o, &a, &e), e);
    CHECK_OK(carat_session_open(with, &o, &b, &e), e);
    for (int trial = 0; trial < n; trial++) {
        request fresh;
        draw(&fresh, plain, trial, &rng);
        if (trial % 3) { /* goes on after the last prompt */
            int64_t keep = q.n / 2;
            fresh.n = fresh.n < PROMPT_MAX - keep ? fresh.n : PROMPT_MAX - keep;
            memmove(fresh.id + keep, fresh.id, (size_t)fresh.n * sizeof *fresh.id);
            memcpy(fresh.id, q.id, (size_t)keep * sizeof *fresh.id);
            fresh.n += keep;
        }
        q = fresh;
        AUTO_MEM answer *want = say(a, &q), *got = say(b, &q);
        check_same(got, want, what, trial);
        n_rounds += got->n_rounds;
        CHECK(got->n_accepted <= got->n_drafted && !want->n_rounds);
    }
    CHECK_MSG(n_rounds > n, "%s: %d rounds", what, n_rounds);
    carat_session_close(a);
    carat_session_close(b);
}

static void compare_batch(carat_model *plain, carat_model *with, const char *what)
{
    static request q[JOBS];
    answer *want[JOBS], *got[JOBS];
    carat_session *a;
    AUTO_BATCH *b;
    uint64_t rng = test_seed();
    int32_t n_rounds = 0;
    err e = {0};
    const carat_batch_options bo = {.session = {.n_ctx = CTX, .chunk = 16, .checkpoint_mb = -1},
                                    .n_slots = 5};
    CHECK_OK(carat_session_open(plain, &bo.session, &a, &e), e);
    CHECK_OK(carat_batch_open(with, &bo, &b, &e), e);
    for (int i = 0; i < JOBS; i++) {
        int64_t id;
        draw(&q[i], plain, i, &rng);
        want[i] = say(a, &q[i]);
        got[i] = mem_calloc(1, sizeof *got[i]);
        CHECK(got[i]);
        q[i].o.round_user = got[i];
        const carat_job j = {
            .ids = q[i].id, .n = q[i].n, .opt = &q[i].o, .fn = hear, .done = done, .user = got[i]};
        CHECK_OK(carat_batch_submit(b, &j, &id, NULL, &e), e);
        for (uint64_t k = rng_below(&rng, 4); k; k--)
            carat_batch_step(b);
    }
    while (carat_batch_step(b)) {
    }
    for (int i = 0; i < JOBS; i++) {
        CHECK_EQ(got[i]->st, OK);
        check_same(got[i], want[i], what, i);
        n_rounds += got[i]->n_rounds;
        mem_free(want[i]);
        mem_free(got[i]);
    }
    CHECK(n_rounds > JOBS);
    carat_session_close(a);
}

PLAIN_TEST(drafters_mtp_changes_no_answer)
{
    static const char *const formats[] = {"f32", "f16", "bf16", "q8_0", "q4_0+rot", "tq3_0"};
    const char *path = toy_model_write(&(toy_model_file){.wide_heads = true, .scale = 3});
    AUTO_MODEL *plain = opened(path, NULL);
    mtp_rig_file f = {.n_vocab = plain->core.n_vocab};
    AUTO_MODEL *with = opened(path, mtp_rig_write(&f));
    CHECK_STR(with->draft[DRAFTER_MODEL]->class->name, "mtp");
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        compare_sessions(plain, with, formats[i], 7, formats[i]);
    compare_batch(plain, with, "batch");
}

/* With greedy sampling every draft is right; the last round may end before its last draft. */
PLAIN_TEST(drafters_copy_of_the_target_is_always_right)
{
    const char *path = toy_model_write(&(toy_model_file){.scale = 3});
    AUTO_MODEL *plain = opened(path, NULL), *with = opened(path, path);
    AUTO_SESSION *s;
    uint64_t rng = test_seed();
    request q;
    err e = {0};
    CHECK_STR(with->draft[DRAFTER_MODEL]->class->name, "model");
    compare_sessions(plain, with, NULL, 12, "copy");
    compare_batch(plain, with, "batch");
    CHECK_OK(carat_session_open(with, &(carat_session_options){.n_ctx = CTX}, &s, &e), e);
    for (int trial = 0; trial < 10; trial += 2) {
        draw(&q, plain, trial, &rng);
        q.o.speculation.tree_max = -1;
        AUTO_MEM answer *a = say(s, &q);
        CHECK_MSG(a->n_rounds > 4 && a->n_full >= a->n_rounds - 1,
                  "trial %d: %d of %d right, %d of %d rounds", trial, a->n_accepted, a->n_drafted,
                  a->n_full, a->n_rounds);
    }
}

typedef struct room {
    uint64_t least; /* no plan fits below it */
    int n_calls;
} room;

/* Drafters may take so many bytes; and nothing fits below least. */
static carat_status fits(void *user, const carat_model *m, carat_error *e)
{
    room *r = user;
    carat_memory_plan p;
    carat_status st = carat_plan(m, &(carat_session_options){.n_ctx = CTX}, &p, e);
    r->n_calls++;
    if (st || p.draft_bytes < r->least)
        return st;
    return (carat_status)err_set(e, E_MEMORY, "the drafter needs %llu bytes",
                                 (unsigned long long)p.draft_bytes);
}

/* With "auto" a drafter without room gives way to lookup, which says so. A named one does not. */
TEST(drafters_give_way_where_memory_is_short)
{
    const char *path = toy_model_write(&(toy_model_file){.wide_heads = true});
    carat_model *m = opened(path, NULL);
    mtp_rig_file f = {.n_vocab = m->core.n_vocab};
    room r = {.least = UINT64_MAX};
    AUTO_MEM char *bytes;
    size_t n;
    err e = {0};
    carat_model_close(m);
    CHECK_OK(file_read_all(mtp_rig_write(&f), 1 << 24, &bytes, &n, &e), e);
    const carat_bytes held = {bytes, n, "mtp"};
    carat_model_options o = {.draft = "auto",
                             .draft_bytes = &held,
                             .n_draft_bytes = 1,
                             .planned = fits,
                             .planned_user = &r};
    carat_model_info info;
    CHECK_OK(carat_model_open(path, &o, &m, &e), e);
    carat_model_get_info(m, &info);
    CHECK_STR(info.drafter, "mtp");
    CHECK_EQ(r.n_calls, 1);
    carat_model_close(m);
    r = (room){.least = 64 << 10}; /* lookup's index takes less */
    CHECK_OK(carat_model_open(path, &o, &m, &e), e);
    carat_model_get_info(m, &info);
    CHECK_STR(info.drafter, "lookup");
    CHECK_EQ(r.n_calls, 2);
    CHECK_MSG(strstr(info.drafter_why, "there is no room for it: the drafter needs"), "%s",
              info.drafter_why);
    carat_model_close(m);
    r.least = 0; /* no room without it either */
    CHECK_STATUS(carat_model_open(path, &o, &m, &e), E_MEMORY);
    e = (err){0};
    r.least = 64 << 10;
    o.draft = "mtp";
    CHECK_STATUS(carat_model_open(path, &o, &m, &e), E_MEMORY);
}

/* ---- A device of its own ------------------------------------------------------------------- */

/* The same answers as without it, and the same drafts as on the model's device. */
static void compare_places(carat_model *plain, carat_model *beside, carat_model *apart)
{
    carat_session_options o = {.n_ctx = CTX, .checkpoint_mb = -1};
    carat_session *a, *b;
    uint64_t rng = test_seed();
    int32_t n_wrong = 0;
    request q;
    err e = {0};
    CHECK_OK(carat_session_open(beside, &o, &a, &e), e);
    CHECK_OK(carat_session_open(apart, &o, &b, &e), e);
    for (int trial = 0; trial < 12; trial++) {
        draw(&q, plain, trial, &rng);
        AUTO_MEM answer *want = say(a, &q), *got = say(b, &q);
        check_same(got, want, "places", trial);
        CHECK_EQ(got->n_rounds, want->n_rounds);
        CHECK_EQ(got->n_drafted, want->n_drafted);
        CHECK_EQ(got->n_accepted, want->n_accepted);
        n_wrong += got->n_drafted - got->n_accepted;
    }
    CHECK(n_wrong > 0);
    CHECK(carat_model_park_drafter(apart));
    AUTO_MEM answer *want = say(a, &q), *got = say(b, &q);
    check_same(got, want, "parked", 0);
    CHECK_EQ(got->n_rounds, 0);
    bool any;
    CHECK_OK(carat_model_unpark_drafter(apart, &any, &e), e);
    AUTO_MEM answer *again = say(b, &q);
    check_same(again, want, "unparked", 0);
    CHECK(any && again->n_rounds);
    carat_session_close(a);
    carat_session_close(b);
}

PLAIN_TEST(drafters_on_a_device_of_their_own_change_no_answer)
{
    static const char *const devices[] = {"cpu", "cpu,cpu"};
    const char *path = toy_model_write(&(toy_model_file){.scale = 3});
    const char *draft = toy_model_write(&(toy_model_file){.scale = 2});
    AUTO_MODEL *plain = opened(path, NULL);
    for (size_t i = 0; i < sizeof devices / sizeof *devices; i++) {
        carat_model_options o = {.device = devices[i], .draft = draft};
        carat_model_info info;
        AUTO_MODEL *beside, *apart;
        err e = {0};
        CHECK_OK(carat_model_open(path, &o, &beside, &e), e);
        o.draft_device = "cpu";
        CHECK_OK(carat_model_open(path, &o, &apart, &e), e);
        CHECK(!beside->draft_dev && apart->draft_dev);
        CHECK(apart->draft[DRAFTER_MODEL]->core.dev[PASS_MAIN] == apart->draft_dev);
        carat_model_get_info(apart, &info);
        CHECK_MSG(strstr(info.drafter_why, "; it is on cpu"), "%s", info.drafter_why);
        compare_places(plain, beside, apart);
        compare_sessions(plain, apart, NULL, 6, devices[i]);
        compare_batch(plain, apart, devices[i]);
    }
}

/* Exactly the planned bytes of each device: a CPU rounds no allocation. */
TEST(drafters_on_a_device_of_their_own_take_what_is_planned)
{
    const char *path = toy_model_write(NULL);
    const carat_model_options mo = {.device = "cpu,cpu", .draft = path, .draft_device = "cpu"};
    const carat_session_options o = {.n_ctx = CTX, .chunk = 16, .checkpoint_mb = -1};
    carat_device_memory before[CARAT_DEVICES_MAX], after[CARAT_DEVICES_MAX];
    carat_memory_plan plan;
    session_shape shape;
    kv_layout l;
    AUTO_MODEL *m;
    carat_session *s;
    err e = {0};
    CHECK_OK(carat_model_open(path, &mo, &m, &e), e);
    CHECK_OK(carat_plan(m, &o, &plan, &e), e);
    CHECK_OK(plan_shape(m, &o, 1, 0, &shape, &e), e);
    CHECK_OK(plan_costs(m, &shape, &l, &plan, &e), e);
    CHECK_EQ(plan.n_devices, 3);
    CHECK_EQ(carat_memory(m, before), 3);
    const draft_sizes z = plan_draft_sizes(m, &shape, &l);
    uint64_t on_device = 0, all = plan_weight_bytes(m->draft_dev, &m->draft[DRAFTER_MODEL]->core);
    for (int i = 0; i < DRAFTERS_MAX; i++) {
        draft_costs c;
        CHECK_OK(m->draft[i]->class->plan(m->draft[i], &z, &c, &e), e);
        on_device += c.device_bytes + c.device_state_bytes;
        all += c.device_bytes + c.device_state_bytes + c.host_bytes;
    }
    kv_layout_free(&l);
    CHECK(plan.device[2].draft_bytes == all && plan.draft_bytes == all && on_device);
    CHECK(!plan.device[0].draft_bytes && !plan.device[2].n_layers);
    CHECK_EQ(plan.device[2].total_bytes, all);
    CHECK_EQ(plan_shared_total(m, &plan, 0), plan.total_bytes);
    CHECK(before[2].used_bytes > 0); /* its weights */
    CHECK_OK(carat_session_open(m, &o, &s, &e), e);
    carat_memory(m, after);
    for (int32_t i = 0; i < 3; i++) {
        const carat_device_plan *p = &plan.device[i];
        CHECK_EQ(after[i].used_bytes - before[i].used_bytes,
                 i == 2 ? on_device : p->kv_swa_bytes + p->kv_global_bytes + p->scratch_bytes);
    }
    carat_session_close(s);
    carat_memory(m, after);
    for (int32_t i = 0; i < 3; i++)
        CHECK_EQ(after[i].used_bytes, before[i].used_bytes);
    CHECK(carat_model_park_drafter(m));
    carat_memory(m, after);
    CHECK(after[2].used_bytes < before[2].used_bytes && after[0].used_bytes == before[0].used_bytes);
}

static void apart_refused(const char *path, carat_model_options o, carat_status want,
                          const char *part)
{
    carat_model *m;
    err e = {0};
    CHECK_STATUS(carat_model_open(path, &o, &m, &e), want);
    CHECK_MSG(!m && strstr(e.text, part), "%s", e.text);
}

TEST(drafters_that_cannot_be_elsewhere_say_why)
{
    const char *path = toy_model_write(&(toy_model_file){.wide_heads = true});
    carat_model *m = opened(path, NULL);
    mtp_rig_file f = {.n_vocab = m->core.n_vocab};
    const char *mtp = mtp_rig_write(&f);
    carat_model_close(m);
    apart_refused(path, (carat_model_options){.draft = mtp, .draft_device = "cpu"}, E_UNSUPPORTED,
                  "it reads the model's keys and values");
    apart_refused(path, (carat_model_options){.draft = "lookup", .draft_device = "cpu"}, E_ARG,
                  "it has no weights");
    apart_refused(path, (carat_model_options){.draft = "none", .draft_device = "cpu"}, E_ARG,
                  "there is no drafter");
    apart_refused(path, (carat_model_options){.draft_device = "cpu"}, E_ARG,
                  "there is no drafter");
    apart_refused(path, (carat_model_options){.draft = path, .draft_device = "cuda:"}, E_ARG,
                  "expected cpu, cuda or cuda:N");
    apart_refused(path, (carat_model_options){.draft = path, .draft_device = "auto"}, E_ARG,
                  "expected cpu, cuda or cuda:N");
    apart_refused(
        path, (carat_model_options){.draft = path, .draft_device = "cpu", .wrap = "time"}, E_ARG,
        "--wrap cannot be used");
    if (!device_count_cuda()) {
        m = NULL;
        err e = {0};
        const carat_model_options o = {.device = "cpu", .draft = path, .draft_device = "cuda:0"};
        CHECK(carat_model_open(path, &o, &m, &e) != OK);
        CHECK_MSG(!m && !strncmp(e.text, "--draft-device cuda:0: ", 23), "%s", e.text);
    }
}

/* GPUs that are not here: one for the drafter, beside the model's, the same, or too small. */
TEST(plans_have_the_gpu_of_a_drafter)
{
    const char *path = toy_model_write(NULL);
    const carat_session_options so = {.n_ctx = CTX};
    carat_model_options o = {.vocab_only = true,
                             .draft = path,
                             .gpus = "auto",
                             .plan_gpu_mb = {4096, 2048},
                             .draft_device = "cuda:1",
                             .session = &so};
    carat_memory_plan p;
    carat_model *m;
    err e = {0};
    CHECK_OK(carat_model_open(path, &o, &m, &e), e);
    CHECK_OK(carat_plan(m, &so, &p, &e), e);
    CHECK(p.n_devices == 2 && p.device[1].draft_bytes && !p.device[0].draft_bytes);
    CHECK_EQ(p.device[1].available_bytes, (uint64_t)2048 << 20);
    CHECK_EQ(p.available_bytes, (uint64_t)6144 << 20);
    CHECK(plan_shared_total(m, &p, 0) == p.device[0].total_bytes && plan_fits(m, &p));
    carat_model_close(m);
    o.draft_device = "cuda:0";
    CHECK_OK(carat_model_open(path, &o, &m, &e), e);
    CHECK_OK(carat_plan(m, &so, &p, &e), e);
    CHECK(p.n_devices == 2 && plan_shared_total(m, &p, 0) == p.total_bytes);
    CHECK_EQ(p.available_bytes, (uint64_t)4096 << 20);
    carat_model_close(m);
    o.plan_gpu_mb[1] = 1;
    o.draft_device = "cuda:1";
    apart_refused(path, o, E_MEMORY, "(--draft-device)");
    o.draft_device = "cuda:2";
    apart_refused(path, o, E_ARG, "--draft-device cuda:2: the plan has 2 GPUs, counted from 0");
    o = (carat_model_options){.vocab_only = true, /* the model on the CPU */
                              .device = "cpu",
                              .draft = path,
                              .draft_device = "cuda",
                              .plan_gpu_mb = {1}};
    CHECK_OK(carat_model_open(path, &o, &m, &e), e);
    CHECK_OK(carat_plan(m, &so, &p, &e), e);
    CHECK_STATUS(carat_plan_check(m, &p, &e), E_MEMORY);
    CHECK_MSG(strstr(e.text, "the drafter of "), "%s", e.text);
    carat_model_close(m);
}

/* --strict takes no drafter whose products have a slow kernel. */
TEST(drafters_are_judged_by_strict_too)
{
    const char *target = toy_model_write(NULL);
    const carat_model_options o = {.device = "cpu", .draft = target, .no_repack = true};
    AUTO_MODEL *m;
    err e = {0};
    CHECK_OK(carat_model_open(target, &o, &m, &e), e);
    int32_t n = m->core.n_weights;
    m->strict = true;
    m->core.n_weights = 0; /* the target's are judged first */
    CHECK_STATUS(plan_check_weights(m, &e), E_UNSUPPORTED);
    CHECK_MSG(strstr(e.text, "products with the drafter's "), "%s", e.text);
    m->core.n_weights = n;
}
