/* round_test.c - answers with drafts against the same answers without: every event, the state of
 * the timeline, and the logits that come next, bit for bit.
 *
 * Scripts decide how many tokens a round accepts, so that all depths occur at all places of the
 * rings. The plain answers come from a model without a drafter.
 */
#include "engine/batch_int.h"
#include "engine/round.h"
#include "base/rng.h"
#include "tests/dflash_file.h"
#include "tests/kv_rig.h"
#include "tests/round_rig.h"
#include "tests/test.h"

PLAIN_TEST(round_answers_are_those_without_drafts)
{
    AUTO(pair_close) pair p;
    uint64_t rng = test_seed();
    pair_open(&p, NULL, (carat_session_options){0});
    for (int trial = 0; trial < test_trials(90); trial++) {
        request q;
        request_draw(p.m, &q, 1 + (int64_t)rng_below(&rng, 60), trial, &rng);
        pair_compare(&p, &q, 1 + trial % 16, trial / 2 % 2, trial % 6 != 5, &rng, "options", trial);
        pair_same(&p, "options", trial);
    }
}

PLAIN_TEST(round_accepts_what_the_script_says)
{
    static const int32_t depths[] = {3};
    AUTO(pair_close) pair p;
    request q;
    uint64_t rng = test_seed();
    pair_open(&p, NULL, (carat_session_options){0});
    request_draw(p.m, &q, 20, 0, &rng);
    q.o.max_tokens = 81; /* the first token is the prompt's, then 20 rounds of 4 */
    AUTO_PTR(heard_free) heard *want = heard_say(p.plain, &q, heard_new()), *got = heard_new();
    const carat_script script = {
        .answer = want->id, .n_answer = want->n, .accept = depths, .n_accept = 1};
    q.o.speculation = (carat_speculation){.n_max = 6, .tree_max = -1, .fixed = true};
    q.o.script = &script;
    heard_say(p.fast, &q, got);
    heard_same(got, want, "script", 0);
    CHECK_EQ(got->n_rounds, 20);
    CHECK_EQ(got->n_accepted, 60);
    CHECK(got->t.drafter && !strcmp(got->t.drafter, "lookup") && !want->t.drafter);
}

PLAIN_TEST(round_ends_where_a_stop_string_ends)
{
    AUTO(pair_close) pair p;
    uint64_t rng = test_seed();
    pair_open(&p, NULL, (carat_session_options){0});
    for (int trial = 0; trial < test_trials(60); trial++) {
        request q;
        request_draw(p.m, &q, 10, trial % 2 ? 1 : 0, &rng);
        q.o.max_tokens = 60;
        heard *plain = heard_say(p.plain, &q, heard_new());
        request_add_stop(&q, plain, &rng);
        heard_free(plain);
        pair_compare(&p, &q, 1 + trial % 16, trial % 3 == 0, true, &rng, "stop", trial);
        pair_same(&p, "stop", trial);
    }
}

PLAIN_TEST(round_ends_at_any_count_of_tokens)
{
    AUTO(pair_close) pair p;
    uint64_t rng = test_seed();
    pair_open(&p, NULL, (carat_session_options){0});
    for (int32_t max = 1; max <= 32; max++) {
        request q;
        request_draw(p.m, &q, 10, 0, &rng);
        q.o.max_tokens = max;
        pair_compare(&p, &q, 15, max % 2, true, &rng, "max_tokens", max);
        pair_same(&p, "max_tokens", max);
    }
}

PLAIN_TEST(round_ends_with_the_context)
{
    AUTO(pair_close) pair p;
    uint64_t rng = test_seed();
    pair_open(&p, NULL, (carat_session_options){.n_ctx = 64});
    for (int trial = 0; trial < 40; trial++) {
        request q;
        request_draw(p.m, &q, 64 - trial, 0, &rng);
        q.o.max_tokens = 0;
        pair_compare(&p, &q, 1 + trial % 16, trial % 2, true, &rng, "context", trial);
        pair_same(&p, "context", trial);
    }
}

PLAIN_TEST(round_ends_when_it_is_cancelled)
{
    AUTO(pair_close) pair p;
    uint64_t rng = test_seed();
    pair_open(&p, NULL, (carat_session_options){0});
    for (int trial = 1; trial <= 40; trial++) {
        request q;
        request_draw(p.m, &q, 10, 0, &rng);
        q.o.max_tokens = 30;
        AUTO_PTR(heard_free) heard *plain = heard_say(p.plain, &q, heard_new());
        const carat_script script = pair_script(&p, plain, 15, &rng);
        AUTO_PTR(heard_free) heard *want = heard_new(), *got = heard_new();
        bool refuse = trial % 2;
        want->refuse_at = got->refuse_at = refuse ? trial / 2 + 1 : 0;
        want->cancel_at = got->cancel_at = refuse ? 0 : trial / 2;
        heard_say(p.plain, &q, want);
        q.o.speculation = (carat_speculation){.n_max = 15, .tree_max = -1, .fixed = true};
        q.o.script = &script;
        heard_say(p.fast, &q, got);
        heard_same(got, want, "cancelled", trial);
        pair_same(&p, "cancelled", trial);
    }
}

PLAIN_TEST(round_with_every_format_of_keys_and_values)
{
    static const char *const formats[] = {"f32",  "f16",  "bf16",   "q8_0",  "q5_1",    "q5_0",
                                          "q4_1", "q4_0", "iq4_nl", "tq3_0", "q4_0+rot"};
    const toy_model_file wide = {.wide_heads = true};
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        AUTO(pair_close) pair p;
        uint64_t rng = test_seed() + i;
        pair_open(&p, &wide, (carat_session_options){.kv_k = formats[i]});
        for (int trial = 0; trial < 4; trial++) {
            request q;
            request_draw(p.m, &q, 1 + (int64_t)rng_below(&rng, 40), trial, &rng);
            q.o.max_tokens = 50;
            pair_compare(&p, &q, trial < 2 ? 7 : 15, trial % 2, true, &rng, formats[i], trial);
            pair_same(&p, formats[i], trial);
        }
    }
}

/* The smallest rings that a session can have, and answers that pass their ends many times. */
PLAIN_TEST(round_rolls_back_at_every_place_of_the_smallest_ring)
{
    for (int32_t width = 1; width <= 16; width += 3) {
        AUTO(pair_close) pair p;
        uint64_t rng = test_seed() + (uint64_t)width;
        pair_open(&p, NULL,
                  (carat_session_options){
                      .chunk = 1, .n_outputs = 1, .draft_max = width, .draft_tree = width});
        CHECK_EQ(p.fast->b.layout.rows_max, width + 1);
        for (int trial = 0; trial < test_trials(4); trial++) {
            request q;
            request_draw(p.m, &q, 5, 0, &rng);
            q.o.max_tokens = 250;
            pair_compare(&p, &q, width, trial % 2, true, &rng, "ring", trial);
            pair_same(&p, "ring", trial);
        }
    }
}

/* The next prompt begins with the last one and its answer. */
static void next_turn(request *q, const timeline *t, uint64_t *rng)
{
    int64_t n = t->kv.n_past;
    memcpy(q->ids, t->id, (size_t)n * sizeof *q->ids);
    for (int i = 0; i < 5 && n < CTX; i++)
        q->ids[n++] = 5 + (int32_t)rng_below(rng, 40);
    q->n = n;
}

PLAIN_TEST(round_goes_on_in_later_turns_and_from_snapshots)
{
    AUTO(pair_close) pair p;
    uint64_t rng = test_seed();
    err e = {0};
    pair_open(&p, NULL, (carat_session_options){.checkpoint_mb = 16});
    for (int trial = 0; trial < 6; trial++) {
        carat_snapshot *a = NULL, *b = NULL;
        request q;
        request_draw(p.m, &q, 30, 0, &rng);
        for (int turn = 0; turn < 6; turn++) {
            q.o.max_tokens = 20 + turn;
            pair_compare(&p, &q, 7, turn % 2, turn % 3 != 2, &rng, "turns", turn);
            if (turn == 2) {
                CHECK_OK(carat_snapshot_take(p.plain, &a, &e), e);
                CHECK_OK(carat_snapshot_take(p.fast, &b, &e), e);
            }
            if (turn == 4) { /* each from the other's */
                CHECK_EQ(carat_snapshot_n(a), carat_snapshot_n(b));
                CHECK_OK(timeline_restore(session_timeline(p.plain), ((kv_snapshot **)b)[1], &e),
                         e);
                CHECK_OK(timeline_restore(session_timeline(p.fast), ((kv_snapshot **)a)[1], &e), e);
            }
            pair_same(&p, "turns", turn);
            int64_t back = p.plain->b.slot->t.kv.n_past - 1 - (int64_t)rng_below(&rng, 6);
            CHECK_EQ(carat_rewind(p.fast, back), carat_rewind(p.plain, back));
            next_turn(&q, session_timeline(p.plain), &rng);
        }
        carat_snapshot_free(a);
        carat_snapshot_free(b);
        carat_reset(p.plain);
        carat_reset(p.fast);
    }
}

/* A text that repeats itself is what lookup drafts best. */
PLAIN_TEST(round_of_lookup_accepts_repetitions)
{
    AUTO(pair_close) pair p;
    request q;
    uint64_t rng = test_seed();
    const toy_model_file sure = {.scale = 4};
    pair_open(&p, &sure, (carat_session_options){0});
    request_draw(p.m, &q, 20, 0, &rng);
    q.o.max_tokens = 200;
    AUTO_PTR(heard_free) heard *want = heard_say(p.plain, &q, heard_new()), *got = heard_new();
    q.o.speculation = (carat_speculation){.n_max = 8, .tree_max = -1, .fixed = true};
    heard_say(p.fast, &q, got);
    heard_same(got, want, "lookup", 0);
    CHECK(got->n_rounds > 0);
    heard_free(got);
    got = heard_say(p.fast, &q, heard_new()); /* the controller decides */
    heard_same(got, want, "lookup", 1);
    q.o.speculation.off = true;
    heard_free(got);
    got = heard_say(p.fast, &q, heard_new());
    heard_same(got, want, "lookup", 2);
    CHECK_EQ(got->n_rounds, 0);
}

/* Predictions that are the answer, the answer with differences, and nothing like it. */
PLAIN_TEST(round_of_lookup_copies_a_prediction)
{
    AUTO(pair_close) pair p;
    request q;
    uint64_t rng = test_seed();
    int32_t other[ANSWER_MAX];
    pair_open(&p, NULL, (carat_session_options){0});
    request_draw(p.m, &q, 20, 0, &rng);
    q.o.max_tokens = 120;
    AUTO_PTR(heard_free) heard *want = heard_say(p.plain, &q, heard_new());
    q.o.speculation = (carat_speculation){.n_max = 6, .tree_max = -1, .fixed = true};
    for (int trial = 0; trial < 4; trial++) {
        memcpy(other, want->id, sizeof other);
        for (int32_t i = 0; i < want->n; i++)
            if (trial == 3 || (trial == 2 && i % 20 == 19))
                other[i] = (other[i] + 1) % 50;
        q.o.predicted = other;
        q.o.n_predicted = trial ? want->n : 0;
        AUTO_PTR(heard_free) heard *got = heard_say(p.fast, &q, heard_new());
        heard_same(got, want, "prediction", trial);
        if (trial == 1 || trial == 2) /* a round that goes on has six drafts */
            CHECK_MSG(got->n_accepted > want->n / 2, "%d of %d", got->n_accepted, want->n);
    }
    q.o.n_predicted = -1;
    CHECK_EQ(carat_generate(p.fast, q.ids, q.n, &q.o, NULL, NULL, NULL, NULL), CARAT_E_ARG);
}

typedef struct shared_model {
    carat_model *m;
    request q;
    const char *path, *draft;
} shared_model;

static status open_and_say(void *arg, err *e)
{
    shared_model *k = arg;
    carat_session *s;
    status st;
    if ((st = carat_session_open(k->m, &(carat_session_options){.n_ctx = 64}, &s, e)))
        return st;
    st = carat_generate(s, k->q.ids, k->q.n, &k->q.o, NULL, NULL, NULL, e);
    carat_session_close(s);
    return st;
}

PLAIN_TEST(round_needs_its_memory)
{
    static shared_model k;
    uint64_t rng = test_seed();
    k.m = toy_model_open(NULL, &(carat_model_options){.draft = "lookup"});
    request_draw(k.m, &k.q, 10, 0, &rng);
    k.q.o.max_tokens = 10;
    test_every_allocation(open_and_say, &k);
    carat_model_close(k.m);
}

static status open_all_and_say(void *arg, err *e)
{
    shared_model *k = arg;
    status st = carat_model_open(k->path, &(carat_model_options){.draft = k->draft}, &k->m, e);
    if (!st)
        st = open_and_say(k, e);
    carat_model_close(k->m);
    return st;
}

PLAIN_TEST(round_of_a_dflash_drafter_needs_its_memory)
{
    static shared_model k = {.q = {.ids = {1, 2, 3}, .n = 3, .o = {.max_tokens = 4}}};
    k.q.o.sampling = (carat_sampling){.top_p = 1, .repeat_penalty = 1};
    k.path = rig_model();
    k.draft = df_write(&(df_options){0}, "draft.gguf");
    test_every_allocation(open_all_and_say, &k);
}
