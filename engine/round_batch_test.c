/* round_batch_test.c - rounds of batches, of drafters with weights and of divided models, against
 * the same answers without drafts.
 *
 * Scripts decide how many tokens a round accepts, so that all depths occur at all places of the
 * rings. The plain answers come from a model without a drafter.
 */
#include "engine/batch_int.h"
#include "base/rng.h"
#include "tests/dflash_file.h"
#include "tests/kv_rig.h"
#include "tests/mtp_rig.h"
#include "tests/round_rig.h"
#include "tests/test.h"

/* ---- Batches ----------------------------------------------------------------------------- */

/* Jobs arrive in the middle of rounds; some are cancelled or refuse tokens. */
static void run_jobs(pair *p, bool apart, int trial, uint64_t *rng)
{
    enum { JOBS = 12 };
    static request q[JOBS];
    static int32_t depth[JOBS][DEPTHS];
    heard *want[JOBS], *got[JOBS];
    carat_script script[JOBS];
    carat_batch *b;
    carat_batch_info info;
    err e = {0};
    p->with->dev->prompts_apart = apart;
    const carat_batch_options bo = {
        .session = {.n_ctx = CTX, .chunk = trial % 2 ? 16 : 0, .checkpoint_mb = -1},
        .n_slots = trial % 3 ? SLOTS : 3};
    CHECK_OK(carat_batch_open(p->with, &bo, &b, &e), e);
    for (int i = 0; i < JOBS; i++) {
        request_draw(p->m, &q[i], 1 + (int64_t)rng_below(rng, 100), i, rng);
        want[i] = heard_new();
        got[i] = heard_new();
        if (i == 5)
            want[i]->refuse_at = got[i]->refuse_at = 1 + (int32_t)rng_below(rng, 20);
        heard_say(p->plain, &q[i], want[i]);
        script[i] = pair_script(p, want[i], 8, rng);
        memcpy(depth[i], p->depth, sizeof depth[i]);
        script[i].accept = depth[i];
        q[i].o.script = i % 4 == 3 ? NULL : &script[i];
        q[i].o.speculation = (carat_speculation){
            .n_max = 1 + i % 8, .tree_max = i % 2 ? 12 : -1, .fixed = true, .off = i == 7};
        q[i].o.round_user = got[i];
    }
    for (int sent = 0, more = 1; more || sent < JOBS;) {
        if (sent < JOBS && rng_below(rng, 3) == 0) {
            const carat_job j = {.ids = q[sent].ids,
                                 .n = q[sent].n,
                                 .opt = &q[sent].o,
                                 .fn = heard_event,
                                 .done = heard_done,
                                 .user = got[sent]};
            CHECK_OK(carat_batch_submit(b, &j, &got[sent]->job, NULL, &e), e);
            sent++;
        }
        more = carat_batch_step(b);
    }
    uint64_t n_rounds = 0, n_drafted = 0, n_accepted = 0;
    for (int i = 0; i < JOBS; i++) {
        CHECK(got[i]->done);
        heard_same(got[i], want[i], apart ? "apart" : "batch", i);
        n_rounds += (uint64_t)got[i]->n_rounds;
        n_drafted += (uint64_t)got[i]->n_drafted;
        n_accepted += (uint64_t)got[i]->n_accepted;
        heard_free(want[i]);
        heard_free(got[i]);
    }
    carat_batch_get_info(b, &info, NULL, 0);
    CHECK(n_rounds > 0 && n_accepted > 0);
    CHECK_EQ(info.n_rounds, n_rounds);
    CHECK_EQ(info.n_drafted, n_drafted);
    CHECK_EQ(info.n_accepted, n_accepted);
    CHECK_EQ(info.n_busy, 0);
    carat_batch_close(b);
    p->with->dev->prompts_apart = false;
}

PLAIN_TEST(round_of_a_batch_answers_as_if_alone)
{
    AUTO(pair_close) pair p;
    uint64_t rng = test_seed();
    pair_open(&p, NULL, (carat_session_options){0});
    for (int trial = 0; trial < test_trials(6); trial++)
        run_jobs(&p, trial >= 3, trial, &rng);
}

/* A job that is cancelled at a token has no token after it, and its slot the rows before it. */
PLAIN_TEST(round_of_a_batch_ends_at_a_cancellation)
{
    AUTO(pair_close) pair p;
    uint64_t rng = test_seed();
    err e = {0};
    pair_open(&p, NULL, (carat_session_options){0});
    AUTO_BATCH *b;
    CHECK_OK(carat_batch_open(
                 p.with, &(carat_batch_options){.session = {.n_ctx = CTX}, .n_slots = 1}, &b, &e),
             e);
    for (int at = 1; at <= 12; at += RACES ? 5 : 1) {
        request q;
        request_draw(p.m, &q, 20, 0, &rng);
        q.o.max_tokens = 30;
        AUTO_PTR(heard_free) heard *want = heard_say(p.plain, &q, heard_new()), *got = heard_new();
        const carat_script script = pair_script(&p, want, 6, &rng);
        carat_slot_info shown;
        carat_batch_info info;
        got->cancel_at = at;
        got->cancel_batch = b;
        q.o.script = &script;
        q.o.speculation = (carat_speculation){.n_max = 6, .tree_max = -1, .fixed = true};
        q.o.round_user = got;
        const carat_job j = {.ids = q.ids,
                             .n = q.n,
                             .opt = &q.o,
                             .fn = heard_event,
                             .done = heard_done,
                             .user = got};
        CHECK_OK(carat_batch_submit(b, &j, &got->job, NULL, &e), e);
        while (carat_batch_step(b))
            ;
        CHECK_EQ(got->n, at);
        CHECK(!memcmp(got->id, want->id, (size_t)at * sizeof *got->id));
        CHECK_EQ(got->t.finish, CARAT_FINISH_CANCELLED);
        carat_batch_get_info(b, &info, &shown, 1);
        CHECK_EQ(shown.n_past, q.n + at - 1);
    }
}

/* ---- Drafters with weights --------------------------------------------------------------- */

/* Each session goes on from the other's snapshot, which has the keys of its drafter or not. */
static void swap_snapshots(pair *p, const char *what, uint64_t *rng)
{
    carat_snapshot *a, *b;
    request q;
    err e = {0};
    CHECK_OK(carat_snapshot_take(p->plain, &a, &e), e);
    CHECK_OK(carat_snapshot_take(p->fast, &b, &e), e);
    request_draw(p->m, &q, 20, 0, rng);
    pair_compare(p, &q, 4, false, true, rng, what, 100);
    CHECK_OK(timeline_restore(session_timeline(p->plain), ((kv_snapshot **)b)[1], &e), e);
    CHECK_OK(timeline_restore(session_timeline(p->fast), ((kv_snapshot **)a)[1], &e), e);
    for (int turn = 0; turn < 2; turn++) { /* the prompt is what the snapshot has, and more */
        memcpy(q.ids, p->plain->b.slot->t.id,
               (size_t)p->plain->b.slot->t.kv.n_past * sizeof *q.ids);
        q.n = p->plain->b.slot->t.kv.n_past + 1;
        q.ids[q.n - 1] = 3 + turn;
        q.o.max_tokens = 20;
        pair_compare(p, &q, 5, turn, true, rng, what, 101 + turn);
        pair_same(p, what, 101 + turn);
    }
    carat_snapshot_free(a);
    carat_snapshot_free(b);
}

/* Their weights are drawn, so they draft nothing right: a script decides in most trials. */
static void run_with_weights(const char *draft, const char *name)
{
    static const char *const formats[] = {"f16",  "q8_0", "q4_0+rot", "f32",    "bf16", "q5_1",
                                          "q5_0", "q4_1", "q4_0",     "iq4_nl", "tq3_0"};
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        AUTO(pair_close) pair p;
        uint64_t rng = test_seed() + i;
        pair_open_of(&p, rig_model(), draft,
                     (carat_session_options){.kv_k = formats[i], .chunk = 24});
        CHECK_STR(main_drafter(p.with)->class->name, name);
        for (int trial = 0; trial < (i < 3 ? 6 : 2); trial++) {
            request q;
            request_draw(p.m, &q, 1 + (int64_t)rng_below(&rng, 60), trial % 3, &rng);
            pair_compare(&p, &q, 1 + trial, trial % 2, trial != 4, &rng, formats[i], trial);
            pair_same(&p, formats[i], trial);
        }
        swap_snapshots(&p, formats[i], &rng);
        for (int i_drafter = 0; i_drafter < DRAFTERS_MAX; i_drafter++)
            CHECK_MSG(!p.fast->b.rounds->failed[i_drafter], "%s", p.fast->b.rounds->why.text);
        if (!i)
            run_jobs(&p, false, 1, &rng);
    }
}

PLAIN_TEST(round_with_a_dflash_drafter)
{
    run_with_weights(df_write(&(df_options){0}, "draft.gguf"), "dflash");
}

PLAIN_TEST(round_with_an_mtp_assistant)
{
    run_with_weights(mtp_rig_write(&(mtp_rig_file){0}), "mtp");
}

/* A model that drafts for itself drafts every greedy token, whatever it has to forget between. */
PLAIN_TEST(round_with_a_model_as_drafter)
{
    AUTO(pair_close) pair p;
    uint64_t rng = test_seed();
    char path[256];
    snprintf(path, sizeof path, "%s", toy_model_write(NULL));
    pair_open_of(&p, path, path, (carat_session_options){.chunk = 24});
    CHECK_STR(main_drafter(p.with)->class->name, "model");
    for (int trial = 0; trial < 8; trial++) {
        request q;
        request_draw(p.m, &q, 1 + (int64_t)rng_below(&rng, 60), trial, &rng);
        pair_compare(&p, &q, 1 + trial, trial % 2, trial % 4 != 0, &rng, "model", trial);
        pair_same(&p, "model", trial);
    }
    request q;
    request_draw(p.m, &q, 20, 0, &rng);
    q.o.max_tokens = 41;
    q.o.speculation = (carat_speculation){.n_max = 3, .tree_max = -1, .fixed = true};
    AUTO_PTR(heard_free) heard *h = heard_say(p.fast, &q, heard_new());
    CHECK(!p.fast->b.rounds->failed[DRAFTER_MODEL]);
    CHECK(h->n_drafted >= 25 && h->n_accepted == h->n_drafted);
}

/* The drafter is on the main device; its features come from the others. */
PLAIN_TEST(round_of_a_divided_model)
{
    const char *const drafts[] = {"lookup", df_write(&(df_options){0}, "draft.gguf"),
                                  mtp_rig_write(&(mtp_rig_file){0})};
    for (int i = 0; i < 6; i++) {
        const carat_model_options divided = {.device = i < 3 ? "cpu,cpu" : "cpu,cpu,cpu",
                                             .gpu_layers = i < 3 ? 4 : 0,
                                             .draft = drafts[i % 3]};
        AUTO(pair_close) pair p = {0};
        uint64_t rng = test_seed();
        err e = {0};
        CHECK_OK(carat_model_open(rig_model(), NULL, &p.m, &e), e);
        CHECK_OK(carat_model_open(rig_model(), &divided, &p.with, &e), e);
        pair_open_sessions(&p, (carat_session_options){.chunk = 24});
        for (int trial = 0; trial < 3; trial++) {
            request q;
            request_draw(p.m, &q, 1 + (int64_t)rng_below(&rng, 60), trial, &rng);
            pair_compare(&p, &q, 4, trial % 2, true, &rng, drafts[i % 3], trial);
            pair_same(&p, drafts[i % 3], trial);
        }
        CHECK_MSG(!p.fast->b.rounds->failed[DRAFTER_MODEL], "%s", p.fast->b.rounds->why.text);
    }
}

/* As many rows as a tree may have. */
PLAIN_TEST(round_of_the_widest_tree)
{
    AUTO(pair_close) pair p;
    uint64_t rng = test_seed();
    pair_open(&p, NULL, (carat_session_options){.draft_max = 63, .draft_tree = 63});
    for (int trial = 0; trial < 4; trial++) {
        request q;
        request_draw(p.m, &q, 30, trial, &rng);
        q.o.max_tokens = 60;
        pair_compare(&p, &q, trial < 2 ? 63 : 40, trial % 2, true, &rng, "wide", trial);
        pair_same(&p, "wide", trial);
    }
}

/* What a session takes of the device is what its plan says. */
static void check_plan(const char *path, const char *draft)
{
    AUTO_MODEL *m;
    carat_session *s;
    carat_memory_plan plan, plain;
    draft_costs c = {0}, all = {0};
    err e = {0};
    const carat_session_options o = {.n_ctx = 200, .chunk = 24, .checkpoint_mb = -1};
    CHECK_OK(carat_model_open(path, &(carat_model_options){.draft = draft}, &m, &e), e);
    uint64_t before = m->dev->used_bytes(m->dev);
    CHECK_OK(carat_plan(m, &o, &plan, &e), e);
    CHECK_OK(carat_session_open(m, &o, &s, &e), e);
    const draft_sizes z = plan_draft_sizes(m, &s->b.shape, &s->b.layout);
    for (int i = 0; i < DRAFTERS_MAX; i++)
        if (m->draft[i]) {
            CHECK_OK(m->draft[i]->class->plan(m->draft[i], &z, &c, &e), e);
            all.device_bytes += c.device_bytes + c.device_state_bytes;
            all.host_bytes += c.host_bytes;
        }
    CHECK_EQ(m->dev->used_bytes(m->dev) - before,
             plan.kv_swa_bytes + plan.kv_global_bytes + plan.scratch_bytes + all.device_bytes);
    CHECK(plan.draft_bytes >= all.device_bytes + all.host_bytes);
    CHECK_EQ(plan.device[PASS_MAIN].draft_bytes, plan.draft_bytes);
    carat_session_close(s);
    CHECK_EQ(m->dev->used_bytes(m->dev), before);
    carat_model_close(m);
    CHECK_OK(carat_model_open(path, NULL, &m, &e), e);
    CHECK_OK(carat_plan(m, &o, &plain, &e), e);
    CHECK_EQ(plain.draft_bytes, 0);
    CHECK(plan.total_bytes > plain.total_bytes);
}

TEST(round_takes_the_memory_it_planned)
{
    check_plan(rig_model(), "lookup");
    check_plan(rig_model(), df_write(&(df_options){0}, "draft.gguf"));
    check_plan(rig_model(), mtp_rig_write(&(mtp_rig_file){0}));
}

/* A drafter that fails is not asked again, and the answers go on. */
static draft_class failing;
static int n_asked;

static status propose_failing(drafter *d, const draft_ask *ask, int32_t n, err *e)
{
    (void)d;
    (void)ask;
    (void)n;
    n_asked++;
    return err_set(e, E_NUMERIC, "the drafter broke");
}

TEST(round_goes_on_without_a_drafter_that_fails)
{
    AUTO(pair_close) pair p;
    request q;
    uint64_t rng = test_seed();
    pair_open_of(&p, rig_model(), df_write(&(df_options){0}, "draft.gguf"),
                 (carat_session_options){0});
    drafter *d = p.fast->b.rounds->d[DRAFTER_MODEL];
    const draft_class *sound = d->class;
    failing = *sound;
    failing.propose = propose_failing;
    d->class = &failing;
    request_draw(p.m, &q, 20, 0, &rng);
    pair_compare(&p, &q, 4, false, false, &rng, "failing", 0);
    pair_same(&p, "failing", 0);
    CHECK_EQ(n_asked, 1);
    CHECK_STR(p.fast->b.rounds->why.text, "the drafter broke");
}

/* A drafter that names a token which the target does not have: only the slots before it are drafts.
 */
static const draft_class *sound_class;
static int32_t foreign_id, foreign_slot;

static status propose_foreign(drafter *d, const draft_ask *ask, int32_t n, err *e)
{
    status st = sound_class->propose(d, ask, n, e);
    for (int32_t i = 0; i < n && !st; i++)
        ask[i].out->id[foreign_slot][0] = foreign_id;
    return st;
}

TEST(round_cuts_a_proposal_before_an_unknown_token)
{
    AUTO(pair_close) pair p;
    request q;
    uint64_t rng = test_seed();
    pair_open_of(&p, rig_model(), df_write(&(df_options){0}, "draft.gguf"),
                 (carat_session_options){0});
    const int32_t foreign[] = {p.m->core.n_vocab, -1, INT32_MAX, INT32_MIN};
    drafter *d = p.fast->b.rounds->d[DRAFTER_MODEL];
    draft_class class = *(sound_class = d->class);
    class.propose = propose_foreign;
    d->class = &class;
    request_draw(p.m, &q, 20, 0, &rng);
    for (int trial = 0; trial < 8; trial++) {
        foreign_id = foreign[trial / 2];
        foreign_slot = trial % 2;
        q.o.speculation = (carat_speculation){0};
        AUTO_PTR(heard_free) heard *want = heard_say(p.plain, &q, heard_new()), *got = heard_new();
        q.o.speculation = (carat_speculation){.n_max = 4, .tree_max = -1, .fixed = true};
        heard_say(p.fast, &q, got);
        heard_same(got, want, "foreign", trial);
        CHECK_MSG(got->n_drafted <= foreign_slot * got->n_rounds &&
                      (got->n_drafted > 0) == (foreign_slot > 0),
                  "token %d in slot %d: %d drafts in %d rounds", foreign_id, foreign_slot,
                  got->n_drafted, got->n_rounds);
    }
    d->class = sound_class;
}

/* Weights that are parked while an answer is made: a sentence, and no draft from them. */
TEST(round_of_a_parked_model_fails_with_a_sentence)
{
    AUTO(pair_close) pair p;
    request q;
    uint64_t rng = test_seed();
    err e = {0};
    pair_open_of(&p, rig_model(), df_write(&(df_options){0}, "draft.gguf"),
                 (carat_session_options){0});
    request_draw(p.m, &q, 20, 0, &rng);
    carat_model_park(p.with);
    CHECK_STATUS(carat_generate(p.fast, q.ids, q.n, &q.o, NULL, NULL, NULL, &e), E_ARG);
    err_clear(&e);
    CHECK_OK(carat_model_unpark(p.with, &e), e);
    pair_compare(&p, &q, 4, true, true, &rng, "unparked", 0);
    pair_same(&p, "unparked", 0);
}
