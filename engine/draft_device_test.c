/* draft_device_test.c - drafters that read rows of the model, on a device of their own: their
 * drafts are those of the same drafter beside the model, bit for bit, wherever the model is; the
 * plan has what each device takes; and what fails there costs drafts and no answer.
 *
 * CPU devices stand for GPUs. tests/cuda/check_draft_device.c has the same between GPUs.
 */
#include "base/mem.h"
#include "base/rng.h"
#include "engine/batch_int.h"
#include "tests/round_rig.h"
#include "tests/splits_rig.h"
#include "tests/synth_file.h"
#include "tests/test.h"

enum { RANKS = 4, JOBS = 6 };

static const struct kind {
    const char *target, *draft;
} kinds[] = {{"tiny-dense", "dflash-tiny"},
             {"tiny-moe", "dflash-tiny-laguna"},
             {"tiny-ple", "dflash-tiny-dspark"}, /* corrects logits, with tables of its own */
             {"tiny-laguna-heads", "dflash-tiny-xs"},
             {"tiny-qwen35-keys", "dflash-tiny-qwen35"},
             {"tiny-qwen35-keys", "nextn"},
             {"tiny-qwen35moe-keys", "nextn"}};
enum { KINDS = sizeof kinds / sizeof *kinds };

/* The first layers of a split by layers are not on the main device, and tapped layers are. */
static const split_place places[] = {{.n = 1},
                                     {.split = "layers", .n = 2},
                                     {.split = "layers", .n = 3},
                                     {.split = "tensor", .n = 2}};
enum { PLACES = sizeof places / sizeof *places };

typedef struct files {
    const char *target, *draft;
} files;

static files write_files(int k)
{
    if (!strcmp(kinds[k].draft, "nextn"))
        return (files){synth_file(kinds[k].target, "f32", "--nextn", NULL), "nextn"};
    return (files){synth_file(kinds[k].target, "f32", NULL, NULL),
                   synth_file(kinds[k].draft, "q8_0", NULL, NULL)};
}

static carat_model *opened(files f, const split_place *at, const char *where)
{
    carat_model *m;
    err e = {0};
    CHECK_OK(splits_open(f.target, (carat_model_options){.draft = f.draft, .draft_device = where},
                         *at, &m, &e),
             e);
    CHECK_EQ(m->draft_dev != NULL, where != NULL);
    return m;
}

static const char *named(int k, const split_place *at)
{
    static char text[128];
    snprintf(text, sizeof text, "%s, %s over %d", kinds[k].draft, at->split, at->n);
    return text;
}

/* What the drafter would draft next, seven slots of four tokens. */
static void propose(carat_session *s, proposal *out)
{
    timeline *t = session_timeline(s);
    drafter *d = s->b.rounds->d[DRAFTER_MODEL];
    int32_t ids[CTX + 1];
    err e = {0};
    memcpy(ids, t->id, (size_t)t->kv.n_past * sizeof *ids);
    ids[t->kv.n_past] = 7;
    const draft_ask a = {.s = t->draft[DRAFTER_MODEL],
                         .target = &t->kv,
                         .id = ids,
                         .n = t->kv.n_past + 1,
                         .n_slots = 7,
                         .n_ranks = RANKS,
                         .out = out};
    memset(out, 0, sizeof *out);
    CHECK_OK(d->class->propose(d, &a, 1, &e), e);
}

static void same_drafts(pair *p, const char *what, int trial)
{
    proposal want, got;
    propose(p->plain, &want);
    propose(p->fast, &got);
    CHECK_MSG(want.n_slots > 3 && want.n_ranks == RANKS, "%s: %d slots", what, want.n_slots);
    CHECK_MSG(!memcmp(&got, &want, sizeof got), "%s, trial %d: %d and %d slots, %d and %d first",
              what, trial, got.n_slots, want.n_slots, got.id[0][0], want.id[0][0]);
}

/* Answers one after another; every other prompt goes on from half of the one before. Windows of
 * drafters are 16 tokens, so their rings turn. */
static void compare_answers(pair *p, const char *what)
{
    uint64_t rng = test_seed();
    request q;
    int32_t n_drafted = 0;
    for (int trial = 0; trial < test_trials(6); trial++) {
        request fresh;
        request_draw(p->m, &fresh, 1 + (int64_t)rng_below(&rng, 90), trial, &rng);
        if (trial % 2)
            memcpy(fresh.ids, q.ids, (size_t)(q.n < fresh.n ? q.n / 2 : fresh.n / 2) * sizeof *q.ids);
        q = fresh;
        q.o.max_tokens = 2 + (int32_t)rng_below(&rng, 40);
        q.o.speculation = (carat_speculation){
            .n_max = 1 + trial % 7, .tree_max = trial % 3 == 1 ? 12 : -1, .fixed = true};
        AUTO_PTR(heard_free) heard *want = heard_say(p->plain, &q, heard_new());
        AUTO_PTR(heard_free) heard *got = heard_say(p->fast, &q, heard_new());
        heard_same(got, want, what, trial);
        CHECK_EQ(got->n_rounds, want->n_rounds);
        CHECK_EQ(got->n_drafted, want->n_drafted);
        CHECK_EQ(got->n_accepted, want->n_accepted);
        n_drafted += got->n_drafted;
        same_drafts(p, what, trial);
    }
    CHECK_MSG(n_drafted > 0, "%s", what);
    CHECK(!p->fast->b.rounds->failed[DRAFTER_MODEL]);
}

/* However the rows came: token by token, by a snapshot. */
static void compare_snapshots(pair *p, const char *what)
{
    AUTO_PTR(carat_snapshot_free) carat_snapshot *kept = NULL;
    int32_t id[80];
    uint64_t rng = test_seed();
    err e = {0};
    for (int i = 0; i < 80; i++)
        id[i] = (int32_t)rng_below(&rng, (uint64_t)p->m->core.n_vocab);
    carat_reset(p->plain);
    carat_reset(p->fast);
    CHECK_OK(carat_append(p->plain, id, 80, false, NULL, &e), e);
    for (int i = 0; i < 80; i++) {
        CHECK_OK(carat_append(p->fast, id + i, 1, false, NULL, &e), e);
        if (i == 40)
            CHECK_OK(carat_snapshot_take(p->fast, &kept, &e), e);
    }
    same_drafts(p, what, 80);
    CHECK_OK(carat_append(p->fast, id, 30, false, NULL, &e), e);
    CHECK_OK(carat_snapshot_restore(p->fast, kept, &e), e);
    CHECK_OK(carat_append(p->fast, id + 41, 39, false, NULL, &e), e);
    same_drafts(p, what, 41);
}

static void compare_batches(pair *p, const char *what)
{
    const split_jobs j = {.session = {.n_ctx = 256, .chunk = 24, .checkpoint_mb = -1},
                          .n = JOBS,
                          .n_slots = 4,
                          .n_tokens = 12,
                          .longest = 60,
                          .seed = test_seed(),
                          .n_draft = 3};
    split_said want[JOBS], got[JOBS];
    err e = {0};
    CHECK_OK(splits_answer(p->m, &j, want, &e), e);
    CHECK_OK(splits_answer(p->with, &j, got, &e), e);
    CHECK_MSG(splits_differ(want, got, JOBS) < 0, "%s: answer %d of a batch", what,
              splits_differ(want, got, JOBS));
    for (int i = 0; i < JOBS; i++)
        CHECK_EQ(got[i].n_drafted, want[i].n_drafted);
    CHECK(splits_drafted(got, JOBS) > 0);
}

static void compare_kind(int k)
{
    const files f = write_files(k);
    for (int i = 0; i < PLACES; i++) {
        if (!strcmp(kinds[k].target, "tiny-ple") && i == 2) /* its layers share keys */
            continue;
        AUTO(pair_close)
        pair p = {.m = opened(f, &places[i], NULL), .with = opened(f, &places[i], "cpu")};
        const char *what = named(k, &places[i]);
        pair_open_sessions(&p, (carat_session_options){.chunk = 24});
        compare_answers(&p, what);
        compare_snapshots(&p, what);
        compare_batches(&p, what);
    }
}

#define KIND(name, k)                                                                              \
    PLAIN_TEST(draft_device_drafts_the_same_##name)                                                \
    {                                                                                              \
        compare_kind(k);                                                                           \
    }
KIND(dflash, 0)
KIND(dflash_laguna, 1)
KIND(dflash_dspark, 2)
KIND(dflash_of_laguna, 3)
KIND(dflash_of_qwen35, 4)
KIND(nextn, 5)
KIND(nextn_with_experts, 6)

/* Keys of the model beyond its pool; the drafter has all of its own. */
PLAIN_TEST(draft_device_goes_with_a_pool)
{
    const split_jobs j = {.session = {.n_ctx = 768,
                                      .chunk = 64,
                                      .checkpoint_mb = -1,
                                      .kv_resident = 512,
                                      .kv_policy = "lru"},
                          .n = 3,
                          .n_slots = 2,
                          .n_tokens = 12,
                          .longest = 700,
                          .seed = 7,
                          .n_draft = 4};
    split_said want[3], got[3];
    const files f = write_files(0);
    AUTO_MODEL *m = opened(f, &places[1], NULL), *with = opened(f, &places[1], "cpu");
    err e = {0};
    CHECK_OK(splits_answer(m, &j, want, &e), e);
    CHECK_OK(splits_answer(with, &j, got, &e), e);
    CHECK_EQ(splits_differ(want, got, 3), -1);
    CHECK(splits_drafted(got, 3) > 0 && splits_drafted(got, 3) == splits_drafted(want, 3));
}

/* What a session takes of each device is what its plan says: a CPU rounds no allocation. */
static void check_memory(files f, const split_place *at, const char *what)
{
    const carat_session_options o = {.n_ctx = 200, .chunk = 24, .checkpoint_mb = -1};
    carat_device_memory before[CARAT_DEVICES_MAX], after[CARAT_DEVICES_MAX];
    AUTO_MODEL *m = opened(f, at, "cpu");
    const model *own = &m->draft[DRAFTER_MODEL]->core;
    uint64_t on[CARAT_DEVICES_MAX] = {0}, host = 0, all = 0;
    const int32_t n = carat_memory(m, before), last = n - 1;
    carat_memory_plan plan;
    carat_session *s;
    err e = {0};
    CHECK_EQ(n, at->n + 1);
    CHECK_OK(carat_plan(m, &o, &plan, &e), e);
    CHECK_OK(carat_session_open(m, &o, &s, &e), e);
    CHECK_EQ(plan.n_devices, n);
    carat_memory(m, after);
    const draft_sizes z = plan_draft_sizes(m, &s->b.shape, &s->b.layout);
    CHECK(z.dev == m->draft_dev && z.target_dev == m->dev);
    for (int i = 0; i < DRAFTERS_MAX; i++) {
        draft_costs c;
        CHECK_OK(m->draft[i]->class->plan(m->draft[i], &z, &c, &e), e);
        on[last] += c.device_bytes + c.device_state_bytes;
        host += c.host_bytes;
        for (int32_t k = 0; k < last; k++)
            on[k] += c.target_bytes[k];
    }
    CHECK(on[PASS_MAIN] && on[last]);
    /* CPUs read each other's memory, so no draft shows where embeddings and head are computed. */
    for (int32_t k = 0; k < last; k++)
        CHECK_MSG(on[k] || !(k == m->core.embd->side || k < m->core.n_ranks),
                  "%s: device %d has embeddings or a part of the head, and computes nothing", what, k);
    for (int32_t k = 0; k < n; k++) {
        const carat_device_plan *p = &plan.device[k];
        const uint64_t session = p->kv_swa_bytes + p->kv_global_bytes + p->recurrent_bytes +
                                 p->scratch_bytes + on[k];
        CHECK_MSG(after[k].used_bytes - before[k].used_bytes == session,
                  "%s, device %d: %llu bytes planned, %llu taken", what, k,
                  (unsigned long long)session,
                  (unsigned long long)(after[k].used_bytes - before[k].used_bytes));
        if (k < last)
            CHECK_EQ(p->draft_bytes, on[k]);
        all += p->draft_bytes;
    }
    CHECK_EQ(plan.device[last].draft_bytes, on[last] + host + plan_weight_bytes(m->draft_dev, own));
    CHECK(plan.draft_bytes == all && !plan.device[last].n_layers);
    carat_session_close(s);
    carat_memory(m, after);
    for (int32_t k = 0; k < n; k++)
        CHECK_EQ(after[k].used_bytes, before[k].used_bytes);
    CHECK(carat_model_park_drafter(m));
    carat_memory(m, after);
    CHECK(after[last].used_bytes < before[last].used_bytes);
}

TEST(draft_device_takes_what_is_planned)
{
    for (int k = 0; k < KINDS; k++) {
        const files f = write_files(k);
        for (int i = 0; i < PLACES; i += 1 + (k > 0))
            check_memory(f, &places[i], named(k, &places[i]));
    }
}

static void count_own(void *user, const carat_round *r)
{
    *(int32_t *)user += r->drafter && strcmp(r->drafter, "lookup") != 0 ? r->n_drafted : 0;
}

/* The same answer; with drafts of the drafter that has weights, or without. */
static void answer_alike(pair *p, const char *what, bool drafts)
{
    uint64_t rng = test_seed();
    int32_t n_own = 0;
    request q;
    request_draw(p->m, &q, 30, 0, &rng);
    q.o.max_tokens = 30;
    q.o.speculation = (carat_speculation){.n_max = 5, .tree_max = -1, .fixed = true};
    AUTO_PTR(heard_free) heard *want = heard_say(p->plain, &q, heard_new()), *got = heard_new();
    q.o.on_round = count_own;
    q.o.round_user = &n_own;
    CHECK_OK(carat_generate(p->fast, q.ids, q.n, &q.o, heard_event, got, &got->t, &got->e), got->e);
    CHECK_MSG(got->n == want->n && !memcmp(got->id, want->id, (size_t)got->n * sizeof *got->id),
              "%s: another answer", what);
    CHECK_MSG(drafts == (n_own > 0), "%s: %d tokens are drafted", what, n_own);
}

static int n_asked;

static status falls_off(const device *d, err *e)
{
    (void)d;
    n_asked++;
    return err_set(e, E_IO, "the drafter's device fell off");
}

/* Parked drafters draft nothing; then they go on. A device that fails ends drafts alone. */
TEST(draft_device_that_fails_costs_no_answer)
{
    for (int k = 0; k < KINDS; k++) {
        const files f = write_files(k);
        AUTO(pair_close)
        pair p = {.with = opened(f, &places[0], "cpu")};
        bool any;
        err e = {0};
        CHECK_OK(splits_open(f.target, (carat_model_options){0}, places[0], &p.m, &e), e);
        pair_open_sessions(&p, (carat_session_options){.chunk = 24});
        answer_alike(&p, "before", true);
        CHECK(carat_model_park_drafter(p.with));
        answer_alike(&p, "parked", false);
        CHECK_OK(carat_model_unpark_drafter(p.with, &any, &e), e);
        answer_alike(&p, "unparked", true);
        n_asked = 0;
        p.with->draft_dev->failed = falls_off;
        answer_alike(&p, "failed", false);
        CHECK_EQ(n_asked, 1);
        CHECK_MSG(strstr(p.fast->b.rounds->why.text, "the drafter's device fell off"), "%s",
                  p.fast->b.rounds->why.text);
        answer_alike(&p, "after it", false);
        CHECK_EQ(n_asked, 1);
        p.with->draft_dev->failed = NULL;
    }
}

/* Allocations of the model and of a session fail in turn. */
TEST(draft_device_leaves_nothing_without_memory)
{
    for (int k = 0; k < KINDS; k++) {
        const files f = write_files(k);
        const carat_model_options o = {
            .device = "cpu,cpu", .n_threads = 1, .draft = f.draft, .draft_device = "cpu"};
        bool opened_once = false;
        for (int64_t n = 0; !opened_once; n += 1 + n / 16) {
            carat_model *m = NULL;
            carat_session *s = NULL;
            err e = {0};
            mem_fail_after(n);
            status st = carat_model_open(f.target, &o, &m, &e);
            st = st ? st
                    : carat_session_open(m, &(carat_session_options){.n_ctx = 64, .chunk = 8}, &s,
                                         &e);
            mem_fail_after(-1);
            CHECK_MSG(!st || st == E_MEMORY, "after %lld: %s", (long long)n, e.text);
            opened_once = !st;
            carat_session_close(s);
            carat_model_close(m);
        }
    }
}
