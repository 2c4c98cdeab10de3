/* round_test.c - answers with drafts against the same answers without: every event, the state of
 * the timeline, and the logits that come next, bit for bit.
 *
 * Scripts decide how many tokens a round accepts, so that all depths occur at all places of the
 * rings. The plain answers come from a model without a drafter.
 */
#include "engine/round.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/str.h"
#include "tests/dflash_file.h"
#include "tests/kv_rig.h"
#include "tests/mtp_rig.h"
#include "tests/test.h"
#include "tests/toy_model.h"

enum { CTX = 384, ANSWER_MAX = CTX, DEPTHS = 61, SLOTS = 8 };

/* ---- What a caller sees ------------------------------------------------------------------ */

typedef struct heard {
    str events; /* all fields of all events */
    str text;
    int32_t id[ANSWER_MAX];
    int32_t n, n_rounds, n_drafted, n_accepted;
    int32_t refuse_at, cancel_at; /* the token at which the callback does so; 0: never */
    carat_session *cancel_in;
    carat_batch *cancel_batch;
    int64_t job;
    carat_status st;
    carat_error e;
    carat_timings t;
    bool done;
} heard;

static void put(heard *h, const void *at, size_t n)
{
    str_put(&h->events, at, n);
    CHECK(!h->events.bad);
}

static bool hear(void *user, const carat_event *ev)
{
    heard *h = user;
    if (ev->kind == CARAT_EV_PREFILL) /* one per chunk */
        return true;
    put(h, &ev->kind, sizeof ev->kind);
    switch (ev->kind) {
    case CARAT_EV_TOKEN:
        put(h, &ev->id, sizeof ev->id);
        put(h, &ev->logprob, sizeof ev->logprob);
        for (int32_t i = 0; i < ev->n_top; i++) {
            put(h, &ev->top[i].id, sizeof ev->top[i].id);
            put(h, &ev->top[i].logprob, sizeof ev->top[i].logprob);
        }
        CHECK(h->n < ANSWER_MAX);
        h->id[h->n++] = ev->id;
        if (h->cancel_in && h->n == h->cancel_at)
            carat_session_cancel(h->cancel_in);
        if (h->cancel_batch && h->n == h->cancel_at)
            carat_batch_cancel(h->cancel_batch, h->job);
        return h->n != h->refuse_at;
    case CARAT_EV_TOOL_CALL:
        put(h, ev->name, strlen(ev->name));
        /* fall through */
    case CARAT_EV_REASONING:
    case CARAT_EV_CONTENT:
        put(h, ev->text, ev->n_text);
        if (ev->kind == CARAT_EV_CONTENT)
            str_put(&h->text, ev->text, ev->n_text);
        return true;
    case CARAT_EV_END:
        put(h, &ev->finish, sizeof ev->finish);
        if (ev->stop)
            put(h, ev->stop, strlen(ev->stop));
        return true;
    default:
        return true;
    }
}

static void hear_round(void *user, const carat_round *r)
{
    heard *h = user;
    CHECK(r->n_accepted >= 0 && r->n_accepted <= r->n_drafted && r->n_rows > r->n_drafted);
    h->n_rounds++;
    h->n_drafted += r->n_drafted;
    h->n_accepted += r->n_accepted;
}

static void heard_free(heard *h)
{
    str_free(&h->events);
    str_free(&h->text);
    mem_free(h);
}

static heard *heard_new(void)
{
    heard *h = mem_calloc(1, sizeof *h);
    CHECK(h);
    return h;
}

static void check_same(const heard *got, const heard *want, const char *what, int trial)
{
    CHECK_MSG(got->st == want->st, "%s, trial %d: %s, plain %s", what, trial, got->e.text,
              want->e.text);
    for (int32_t i = 0; i < got->n && i < want->n; i++)
        CHECK_MSG(got->id[i] == want->id[i], "%s, trial %d: token %d is %d, plain %d", what, trial,
                  i, got->id[i], want->id[i]);
    CHECK_MSG(got->n == want->n, "%s, trial %d: %d tokens, plain %d", what, trial, got->n, want->n);
    CHECK_MSG(got->events.n == want->events.n &&
                  (!got->events.n || !memcmp(got->events.at, want->events.at, got->events.n)),
              "%s, trial %d: the events differ", what, trial);
    CHECK_EQ(got->t.n_generated, want->t.n_generated);
    CHECK_EQ(got->t.n_thinking, want->t.n_thinking);
    CHECK_EQ(got->t.n_rounds, got->n_rounds);
    CHECK_EQ(got->t.n_drafted, got->n_drafted);
    CHECK_EQ(got->t.n_accepted, got->n_accepted);
}

/* ---- Requests of all kinds --------------------------------------------------------------- */

/* A mask that depends on all tokens so far. */
typedef struct strict {
    uint64_t state;
    bool loose;
} strict;

static enum carat_mask_use strict_fill(void *user, uint32_t *allowed, int32_t n_vocab)
{
    const strict *s = user;
    if (s->state % 5 == 0)
        return CARAT_MASK_NONE;
    for (int32_t id = 0; id < n_vocab; id++)
        if ((s->state >> (id % 7)) & 1)
            allowed[id >> 5] |= 1u << (id & 31);
    return CARAT_MASK_APPLY;
}

static void strict_accept(void *user, int32_t id)
{
    strict *s = user;
    s->state = rng_mix(s->state + (uint64_t)id + 1) | 2;
}

typedef struct request {
    int32_t ids[CTX];
    int64_t n;
    carat_generate_options o;
    strict strict;
    carat_mask mask;
    const char *stop[2];
    char stop_text[16];
} request;

static void random_request(const carat_model *m, request *q, int64_t n, int kind, uint64_t *rng)
{
    *q = (request){.n = n};
    carat_sampling *s = &q->o.sampling;
    for (int64_t i = 0; i < n; i++)
        q->ids[i] = (int32_t)rng_below(rng, (uint64_t)m->core.n_vocab);
    carat_sampling_default(m, s);
    s->seed = (uint32_t)rng_below(rng, 1000);
    s->temperature = kind % 3 ? 0.9f : 0;
    s->ignore_eog = kind % 4 != 3;
    q->o.max_tokens = 2 + (int32_t)rng_below(rng, 90);
    if (kind % 5 == 1) {
        s->repeat_penalty = 1.3f;
        s->frequency_penalty = 0.2f;
        s->penalty_last_n = 20;
    }
    if (kind % 5 == 2)
        s->n_top_logprobs = 5;
    if (kind % 5 == 3) {
        q->strict.state = rng_below(rng, 1 << 20) | 2;
        q->mask = (carat_mask){.fill = strict_fill, .accept = strict_accept, .user = &q->strict};
        q->o.mask = &q->mask;
    }
    if (kind % 5 == 4 && m->text) {
        q->o.parse = q->o.starts_thinking = true;
        q->o.max_thinking = (int32_t)rng_below(rng, 20);
        q->o.answer_reserve = (int32_t)rng_below(rng, 20);
    }
}

/* The stop string begins at a byte of the plain answer. */
static void add_stop(request *q, const heard *plain, uint64_t *rng)
{
    size_t n = plain->text.n, len = 1 + rng_below(rng, 6);
    if (n < 12)
        return;
    size_t at = rng_below(rng, n - 8);
    for (size_t i = at; i < at + len; i++)
        if (plain->text.at[i] & 0x80) /* no half characters */
            return;
    memcpy(q->stop_text, plain->text.at + at, len);
    q->stop_text[len] = 0;
    if (!q->stop_text[0])
        return;
    q->stop[0] = q->stop_text;
    q->o.stop = q->stop;
    q->o.n_stop = 1;
}

static heard *say(carat_session *s, request *q, heard *h)
{
    strict before = q->strict;
    q->o.on_round = hear_round;
    q->o.round_user = h;
    h->cancel_in = h->cancel_at ? s : NULL;
    h->st = carat_generate(s, q->ids, q->n, &q->o, hear, h, &h->t, &h->e);
    q->strict = before;
    return h;
}

/* ---- Two sessions that must stay alike --------------------------------------------------- */

typedef struct pair {
    carat_model *m, *with; /* without a drafter, and with lookup */
    carat_session *plain, *fast;
    float *a, *b;
    int32_t depth[DEPTHS];
} pair;

static void open_sessions(pair *p, carat_session_options o)
{
    err e = {0};
    o.n_ctx = o.n_ctx ? o.n_ctx : CTX;
    o.checkpoint_mb = o.checkpoint_mb ? o.checkpoint_mb : -1;
    CHECK_OK(carat_session_open(p->m, &o, &p->plain, &e), e);
    CHECK_OK(carat_session_open(p->with, &o, &p->fast, &e), e);
    p->a = mem_calloc((size_t)p->m->core.n_vocab, sizeof *p->a);
    p->b = mem_calloc((size_t)p->m->core.n_vocab, sizeof *p->b);
    CHECK(p->a && p->b);
}

static void open_pair(pair *p, const toy_model_file *v, carat_session_options o)
{
    *p = (pair){.m = toy_model_open(v, NULL),
                .with = toy_model_open(v, &(carat_model_options){.draft = "lookup"})};
    open_sessions(p, o);
}

static void open_pair_of(pair *p, const char *path, const char *draft, carat_session_options o)
{
    err e = {0};
    *p = (pair){0};
    CHECK_OK(carat_model_open(path, NULL, &p->m, &e), e);
    CHECK_OK(carat_model_open(path, &(carat_model_options){.draft = draft}, &p->with, &e), e);
    open_sessions(p, o);
}

static void close_pair(pair *p)
{
    carat_session_close(p->plain);
    carat_session_close(p->fast);
    carat_model_close(p->m);
    carat_model_close(p->with);
    mem_free(p->a);
    mem_free(p->b);
}

/* The timelines hold the same tokens, and their next logits are equal. */
static void check_timelines(pair *p, const char *what, int trial)
{
    timeline *a = &p->plain->t, *b = &p->fast->t;
    err e = {0};
    CHECK_MSG(a->kv.n_past == b->kv.n_past, "%s, trial %d: %lld tokens, plain %lld", what, trial,
              (long long)b->kv.n_past, (long long)a->kv.n_past);
    CHECK(!memcmp(a->id, b->id, (size_t)a->kv.n_past * sizeof *a->id));
    if (a->kv.n_past == a->kv.layout->n_ctx)
        return;
    int32_t next = 3;
    CHECK_OK(carat_append(p->plain, &next, 1, false, p->a, &e), e);
    CHECK_OK(carat_append(p->fast, &next, 1, false, p->b, &e), e);
    CHECK_MSG(!memcmp(p->a, p->b, (size_t)p->m->core.n_vocab * sizeof *p->a),
              "%s, trial %d: the logits after the answer differ", what, trial);
}

static carat_script random_script(pair *p, const heard *plain, int32_t width, uint64_t *rng)
{
    for (int32_t i = 0; i < DEPTHS; i++)
        p->depth[i] = (int32_t)rng_below(rng, (uint64_t)width + 1);
    return (carat_script){.answer = plain->id,
                          .n_answer = plain->n,
                          .accept = p->depth,
                          .n_accept = DEPTHS,
                          .rank = (int32_t)rng_below(rng, 3)};
}

/* One request, plain and with drafts of `width` tokens, as a chain or a tree. */
static void compare(pair *p, request *q, int32_t width, bool tree, bool scripted, uint64_t *rng,
                    const char *what, int trial)
{
    heard *want = say(p->plain, q, heard_new()), *got = heard_new();
    carat_script script = random_script(p, want, width, rng);
    got->cancel_at = want->cancel_at;
    q->o.speculation = (carat_speculation){.n_max = width,
                                           .tree_max = !tree        ? -1
                                                       : width < 40 ? 1 + width + width / 2
                                                                    : 63,
                                           .fixed = true};
    q->o.script = scripted ? &script : NULL;
    say(p->fast, q, got);
    CHECK(!want->n_rounds);
    check_same(got, want, what, trial);
    q->o.script = NULL;
    heard_free(got);
    heard_free(want);
}

/* ---- Tests ------------------------------------------------------------------------------- */

TEST(round_answers_are_those_without_drafts)
{
    pair p;
    uint64_t rng = test_seed();
    open_pair(&p, NULL, (carat_session_options){0});
    for (int trial = 0; trial < 90; trial++) {
        request q;
        random_request(p.m, &q, 1 + (int64_t)rng_below(&rng, 60), trial, &rng);
        compare(&p, &q, 1 + trial % 16, trial / 2 % 2, trial % 6 != 5, &rng, "options", trial);
        check_timelines(&p, "options", trial);
    }
    close_pair(&p);
}

TEST(round_accepts_what_the_script_says)
{
    static const int32_t depths[] = {3};
    pair p;
    request q;
    uint64_t rng = test_seed();
    open_pair(&p, NULL, (carat_session_options){0});
    random_request(p.m, &q, 20, 0, &rng);
    q.o.max_tokens = 81; /* the first token is the prompt's, then 20 rounds of 4 */
    heard *want = say(p.plain, &q, heard_new()), *got = heard_new();
    const carat_script script = {
        .answer = want->id, .n_answer = want->n, .accept = depths, .n_accept = 1};
    q.o.speculation = (carat_speculation){.n_max = 6, .tree_max = -1, .fixed = true};
    q.o.script = &script;
    say(p.fast, &q, got);
    check_same(got, want, "script", 0);
    CHECK_EQ(got->n_rounds, 20);
    CHECK_EQ(got->n_accepted, 60);
    CHECK(got->t.drafter && !strcmp(got->t.drafter, "lookup") && !want->t.drafter);
    heard_free(got);
    heard_free(want);
    close_pair(&p);
}

TEST(round_ends_where_a_stop_string_ends)
{
    pair p;
    uint64_t rng = test_seed();
    open_pair(&p, NULL, (carat_session_options){0});
    for (int trial = 0; trial < 60; trial++) {
        request q;
        random_request(p.m, &q, 10, trial % 2 ? 1 : 0, &rng);
        q.o.max_tokens = 60;
        heard *plain = say(p.plain, &q, heard_new());
        add_stop(&q, plain, &rng);
        heard_free(plain);
        compare(&p, &q, 1 + trial % 16, trial % 3 == 0, true, &rng, "stop", trial);
        check_timelines(&p, "stop", trial);
    }
    close_pair(&p);
}

TEST(round_ends_at_any_count_of_tokens)
{
    pair p;
    uint64_t rng = test_seed();
    open_pair(&p, NULL, (carat_session_options){0});
    for (int32_t max = 1; max <= 32; max++) {
        request q;
        random_request(p.m, &q, 10, 0, &rng);
        q.o.max_tokens = max;
        compare(&p, &q, 15, max % 2, true, &rng, "max_tokens", max);
        check_timelines(&p, "max_tokens", max);
    }
    close_pair(&p);
}

TEST(round_ends_with_the_context)
{
    pair p;
    uint64_t rng = test_seed();
    open_pair(&p, NULL, (carat_session_options){.n_ctx = 64});
    for (int trial = 0; trial < 40; trial++) {
        request q;
        random_request(p.m, &q, 64 - trial, 0, &rng);
        q.o.max_tokens = 0;
        compare(&p, &q, 1 + trial % 16, trial % 2, true, &rng, "context", trial);
        check_timelines(&p, "context", trial);
    }
    close_pair(&p);
}

TEST(round_ends_when_it_is_cancelled)
{
    pair p;
    uint64_t rng = test_seed();
    open_pair(&p, NULL, (carat_session_options){0});
    for (int trial = 1; trial <= 40; trial++) {
        request q;
        random_request(p.m, &q, 10, 0, &rng);
        q.o.max_tokens = 30;
        heard *plain = say(p.plain, &q, heard_new());
        const carat_script script = random_script(&p, plain, 15, &rng);
        heard *want = heard_new(), *got = heard_new();
        bool refuse = trial % 2;
        want->refuse_at = got->refuse_at = refuse ? trial / 2 + 1 : 0;
        want->cancel_at = got->cancel_at = refuse ? 0 : trial / 2;
        say(p.plain, &q, want);
        q.o.speculation = (carat_speculation){.n_max = 15, .tree_max = -1, .fixed = true};
        q.o.script = &script;
        say(p.fast, &q, got);
        check_same(got, want, "cancelled", trial);
        check_timelines(&p, "cancelled", trial);
        heard_free(plain);
        heard_free(want);
        heard_free(got);
    }
    close_pair(&p);
}

TEST(round_with_every_format_of_keys_and_values)
{
    static const char *const formats[] = {"f32",  "f16",  "bf16",   "q8_0",  "q5_1",    "q5_0",
                                          "q4_1", "q4_0", "iq4_nl", "tq3_0", "q4_0+rot"};
    const toy_model_file wide = {.wide_heads = true};
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        pair p;
        uint64_t rng = test_seed() + i;
        open_pair(&p, &wide, (carat_session_options){.kv_k = formats[i]});
        for (int trial = 0; trial < 4; trial++) {
            request q;
            random_request(p.m, &q, 1 + (int64_t)rng_below(&rng, 40), trial, &rng);
            q.o.max_tokens = 50;
            compare(&p, &q, trial < 2 ? 7 : 15, trial % 2, true, &rng, formats[i], trial);
            check_timelines(&p, formats[i], trial);
        }
        close_pair(&p);
    }
}

/* The smallest rings that a session can have, and answers that pass their ends many times. */
TEST(round_rolls_back_at_every_place_of_the_smallest_ring)
{
    for (int32_t width = 1; width <= 16; width += 3) {
        pair p;
        uint64_t rng = test_seed() + (uint64_t)width;
        open_pair(&p, NULL,
                  (carat_session_options){
                      .chunk = 1, .n_outputs = 1, .draft_max = width, .draft_tree = width});
        CHECK_EQ(p.fast->layout.rows_max, width + 1);
        for (int trial = 0; trial < 4; trial++) {
            request q;
            random_request(p.m, &q, 5, 0, &rng);
            q.o.max_tokens = 250;
            compare(&p, &q, width, trial % 2, true, &rng, "ring", trial);
            check_timelines(&p, "ring", trial);
        }
        close_pair(&p);
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

TEST(round_goes_on_in_later_turns_and_from_snapshots)
{
    pair p;
    uint64_t rng = test_seed();
    err e = {0};
    open_pair(&p, NULL, (carat_session_options){.checkpoint_mb = 16});
    for (int trial = 0; trial < 6; trial++) {
        carat_snapshot *a = NULL, *b = NULL;
        request q;
        random_request(p.m, &q, 30, 0, &rng);
        for (int turn = 0; turn < 6; turn++) {
            q.o.max_tokens = 20 + turn;
            compare(&p, &q, 7, turn % 2, turn % 3 != 2, &rng, "turns", turn);
            if (turn == 2) {
                CHECK_OK(carat_snapshot_take(p.plain, &a, &e), e);
                CHECK_OK(carat_snapshot_take(p.fast, &b, &e), e);
            }
            if (turn == 4) { /* each from the other's */
                CHECK_EQ(carat_snapshot_n(a), carat_snapshot_n(b));
                CHECK_OK(timeline_restore(&p.plain->t, ((kv_snapshot **)b)[1], &e), e);
                CHECK_OK(timeline_restore(&p.fast->t, ((kv_snapshot **)a)[1], &e), e);
            }
            check_timelines(&p, "turns", turn);
            int64_t back = p.plain->t.kv.n_past - 1 - (int64_t)rng_below(&rng, 6);
            CHECK_EQ(carat_rewind(p.fast, back), carat_rewind(p.plain, back));
            next_turn(&q, &p.plain->t, &rng);
        }
        carat_snapshot_free(a);
        carat_snapshot_free(b);
        carat_reset(p.plain);
        carat_reset(p.fast);
    }
    close_pair(&p);
}

/* A text that repeats itself is what lookup drafts best. */
TEST(round_of_lookup_accepts_repetitions)
{
    pair p;
    request q;
    uint64_t rng = test_seed();
    const toy_model_file sure = {.scale = 4};
    open_pair(&p, &sure, (carat_session_options){0});
    random_request(p.m, &q, 20, 0, &rng);
    q.o.max_tokens = 200;
    heard *want = say(p.plain, &q, heard_new()), *got = heard_new();
    q.o.speculation = (carat_speculation){.n_max = 8, .tree_max = -1, .fixed = true};
    say(p.fast, &q, got);
    check_same(got, want, "lookup", 0);
    CHECK(got->n_rounds > 0);
    heard_free(got);
    got = say(p.fast, &q, heard_new()); /* the controller decides */
    check_same(got, want, "lookup", 1);
    q.o.speculation.off = true;
    heard_free(got);
    got = say(p.fast, &q, heard_new());
    check_same(got, want, "lookup", 2);
    CHECK_EQ(got->n_rounds, 0);
    heard_free(got);
    heard_free(want);
    close_pair(&p);
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

TEST(round_needs_its_memory)
{
    static shared_model k;
    uint64_t rng = test_seed();
    k.m = toy_model_open(NULL, &(carat_model_options){.draft = "lookup"});
    random_request(k.m, &k.q, 10, 0, &rng);
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

TEST(round_of_a_dflash_drafter_needs_its_memory)
{
    static shared_model k = {.q = {.ids = {1, 2, 3}, .n = 3, .o = {.max_tokens = 4}}};
    k.q.o.sampling = (carat_sampling){.top_p = 1, .repeat_penalty = 1};
    k.path = rig_model();
    k.draft = df_write(&(df_options){0}, "draft.gguf");
    test_every_allocation(open_all_and_say, &k);
}

/* ---- Batches ----------------------------------------------------------------------------- */

static void job_done(void *user, carat_status st, const carat_error *e, const carat_timings *t)
{
    heard *h = user;
    CHECK(!h->done);
    h->done = true;
    h->st = st;
    h->t = *t;
    if (e)
        h->e = *e;
}

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
        random_request(p->m, &q[i], 1 + (int64_t)rng_below(rng, 100), i, rng);
        want[i] = heard_new();
        got[i] = heard_new();
        if (i == 5)
            want[i]->refuse_at = got[i]->refuse_at = 1 + (int32_t)rng_below(rng, 20);
        say(p->plain, &q[i], want[i]);
        script[i] = random_script(p, want[i], 8, rng);
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
                                 .fn = hear,
                                 .done = job_done,
                                 .user = got[sent]};
            CHECK_OK(carat_batch_submit(b, &j, &got[sent]->job, NULL, &e), e);
            sent++;
        }
        more = carat_batch_step(b);
    }
    uint64_t n_rounds = 0, n_drafted = 0, n_accepted = 0;
    for (int i = 0; i < JOBS; i++) {
        CHECK(got[i]->done);
        check_same(got[i], want[i], apart ? "apart" : "batch", i);
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

TEST(round_of_a_batch_answers_as_if_alone)
{
    pair p;
    uint64_t rng = test_seed();
    open_pair(&p, NULL, (carat_session_options){0});
    for (int trial = 0; trial < 6; trial++)
        run_jobs(&p, trial >= 3, trial, &rng);
    close_pair(&p);
}

/* A job that is cancelled at a token has no token after it, and its slot the rows before it. */
TEST(round_of_a_batch_ends_at_a_cancellation)
{
    pair p;
    uint64_t rng = test_seed();
    err e = {0};
    open_pair(&p, NULL, (carat_session_options){0});
    carat_batch *b;
    CHECK_OK(carat_batch_open(
                 p.with, &(carat_batch_options){.session = {.n_ctx = CTX}, .n_slots = 1}, &b, &e),
             e);
    for (int at = 1; at <= 12; at++) {
        request q;
        random_request(p.m, &q, 20, 0, &rng);
        q.o.max_tokens = 30;
        heard *want = say(p.plain, &q, heard_new()), *got = heard_new();
        const carat_script script = random_script(&p, want, 6, &rng);
        carat_slot_info slot;
        carat_batch_info info;
        got->cancel_at = at;
        got->cancel_batch = b;
        q.o.script = &script;
        q.o.speculation = (carat_speculation){.n_max = 6, .tree_max = -1, .fixed = true};
        q.o.round_user = got;
        const carat_job j = {
            .ids = q.ids, .n = q.n, .opt = &q.o, .fn = hear, .done = job_done, .user = got};
        CHECK_OK(carat_batch_submit(b, &j, &got->job, NULL, &e), e);
        while (carat_batch_step(b))
            ;
        CHECK_EQ(got->n, at);
        CHECK(!memcmp(got->id, want->id, (size_t)at * sizeof *got->id));
        CHECK_EQ(got->t.finish, CARAT_FINISH_CANCELLED);
        carat_batch_get_info(b, &info, &slot, 1);
        CHECK_EQ(slot.n_past, q.n + at - 1);
        heard_free(got);
        heard_free(want);
    }
    carat_batch_close(b);
    close_pair(&p);
}

/* ---- Drafters with weights --------------------------------------------------------------- */

/* Their weights are drawn, so they draft nothing right: a script decides in most trials. */
static void run_with_weights(const char *draft, const char *name)
{
    static const char *const formats[] = {"f16", "q8_0", "q4_0+rot"};
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        pair p;
        uint64_t rng = test_seed() + i;
        open_pair_of(&p, rig_model(), draft,
                     (carat_session_options){.kv_k = formats[i], .chunk = 24});
        CHECK_STR(main_drafter(p.with)->class->name, name);
        for (int trial = 0; trial < 6; trial++) {
            request q;
            random_request(p.m, &q, 1 + (int64_t)rng_below(&rng, 60), trial % 3, &rng);
            compare(&p, &q, 1 + trial, trial % 2, trial != 4, &rng, name, trial);
            check_timelines(&p, name, trial);
        }
        for (int i_drafter = 0; i_drafter < DRAFTERS_MAX; i_drafter++)
            CHECK_MSG(!p.fast->rounds->failed[i_drafter], "%s", p.fast->rounds->why.text);
        if (!i)
            run_jobs(&p, false, 1, &rng);
        close_pair(&p);
    }
}

TEST(round_with_a_dflash_drafter)
{
    run_with_weights(df_write(&(df_options){0}, "draft.gguf"), "dflash");
}

TEST(round_with_an_mtp_assistant)
{
    run_with_weights(mtp_rig_write(&(mtp_rig_file){0}), "mtp");
}

/* A model that drafts for itself drafts every greedy token, whatever it has to forget between. */
TEST(round_with_a_model_as_drafter)
{
    pair p;
    uint64_t rng = test_seed();
    char path[256];
    snprintf(path, sizeof path, "%s", toy_model_write(NULL));
    open_pair_of(&p, path, path, (carat_session_options){.chunk = 24});
    CHECK_STR(main_drafter(p.with)->class->name, "model");
    for (int trial = 0; trial < 8; trial++) {
        request q;
        random_request(p.m, &q, 1 + (int64_t)rng_below(&rng, 60), trial, &rng);
        compare(&p, &q, 1 + trial, trial % 2, trial % 4 != 0, &rng, "model", trial);
        check_timelines(&p, "model", trial);
    }
    request q;
    random_request(p.m, &q, 20, 0, &rng);
    q.o.max_tokens = 41;
    q.o.speculation = (carat_speculation){.n_max = 3, .tree_max = -1, .fixed = true};
    heard *h = say(p.fast, &q, heard_new());
    CHECK(!p.fast->rounds->failed[DRAFTER_MODEL]);
    CHECK(h->n_drafted >= 25 && h->n_accepted == h->n_drafted);
    heard_free(h);
    close_pair(&p);
}

/* The drafter is on the main device; its features come from the others. */
TEST(round_of_a_divided_model)
{
    const char *const drafts[] = {"lookup", df_write(&(df_options){0}, "draft.gguf"),
                                  mtp_rig_write(&(mtp_rig_file){0})};
    for (int i = 0; i < 3; i++) {
        const carat_model_options divided = {
            .device = "cpu,cpu", .gpu_layers = 4, .draft = drafts[i]};
        pair p = {0};
        uint64_t rng = test_seed();
        err e = {0};
        CHECK_OK(carat_model_open(rig_model(), NULL, &p.m, &e), e);
        CHECK_OK(carat_model_open(rig_model(), &divided, &p.with, &e), e);
        open_sessions(&p, (carat_session_options){.chunk = 24});
        for (int trial = 0; trial < 3; trial++) {
            request q;
            random_request(p.m, &q, 1 + (int64_t)rng_below(&rng, 60), trial, &rng);
            compare(&p, &q, 4, trial % 2, true, &rng, drafts[i], trial);
            check_timelines(&p, drafts[i], trial);
        }
        CHECK_MSG(!p.fast->rounds->failed[DRAFTER_MODEL], "%s", p.fast->rounds->why.text);
        close_pair(&p);
    }
}

/* As many rows as a tree may have. */
TEST(round_of_the_widest_tree)
{
    pair p;
    uint64_t rng = test_seed();
    open_pair(&p, NULL, (carat_session_options){.draft_max = 63, .draft_tree = 63});
    for (int trial = 0; trial < 4; trial++) {
        request q;
        random_request(p.m, &q, 30, trial, &rng);
        q.o.max_tokens = 60;
        compare(&p, &q, trial < 2 ? 63 : 40, trial % 2, true, &rng, "wide", trial);
        check_timelines(&p, "wide", trial);
    }
    close_pair(&p);
}

/* What a session takes of the device is what its plan says. */
static void check_plan(const char *path, const char *draft)
{
    carat_model *m;
    carat_session *s;
    carat_memory_plan plan, plain;
    draft_costs c = {0}, all = {0};
    err e = {0};
    const carat_session_options o = {.n_ctx = 200, .chunk = 24, .checkpoint_mb = -1};
    CHECK_OK(carat_model_open(path, &(carat_model_options){.draft = draft}, &m, &e), e);
    uint64_t before = m->dev->used_bytes(m->dev);
    CHECK_OK(carat_plan(m, &o, &plan, &e), e);
    CHECK_OK(carat_session_open(m, &o, &s, &e), e);
    const draft_sizes z = plan_draft_sizes(m, &s->shape, &s->layout);
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
    carat_model_close(m);
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
    pair p;
    request q;
    uint64_t rng = test_seed();
    open_pair_of(&p, rig_model(), df_write(&(df_options){0}, "draft.gguf"),
                 (carat_session_options){0});
    drafter *d = p.fast->rounds->d[DRAFTER_MODEL];
    const draft_class *sound = d->class;
    failing = *sound;
    failing.propose = propose_failing;
    d->class = &failing;
    random_request(p.m, &q, 20, 0, &rng);
    compare(&p, &q, 4, false, false, &rng, "failing", 0);
    check_timelines(&p, "failing", 0);
    CHECK_EQ(n_asked, 1);
    CHECK_STR(p.fast->rounds->why.text, "the drafter broke");
    close_pair(&p);
}

/* Weights that are parked while an answer is made: a sentence, and no draft from them. */
TEST(round_of_a_parked_model_fails_with_a_sentence)
{
    pair p;
    request q;
    uint64_t rng = test_seed();
    err e = {0};
    open_pair_of(&p, rig_model(), df_write(&(df_options){0}, "draft.gguf"),
                 (carat_session_options){0});
    random_request(p.m, &q, 20, 0, &rng);
    carat_model_park(p.with);
    CHECK_STATUS(carat_generate(p.fast, q.ids, q.n, &q.o, NULL, NULL, NULL, &e), E_ARG);
    err_clear(&e);
    CHECK_OK(carat_model_unpark(p.with, &e), e);
    compare(&p, &q, 4, true, true, &rng, "unparked", 0);
    check_timelines(&p, "unparked", 0);
    close_pair(&p);
}
