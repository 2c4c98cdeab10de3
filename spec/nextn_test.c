/* nextn_test.c - drafts by a NextN layer: those of transformers, from everything that a timeline
 * can go through; answers with them are those without; files that have no such layer, or a strange
 * one.
 */
#include "spec/find.h"
#include "base/rng.h"
#include "engine/batch_int.h"
#include "tests/doctor.h"
#include "tests/fidelity_model.h"
#include "tests/recur_model.h"
#include "tests/round_rig.h"
#include "tests/test.h"

#include <math.h>

enum { RANKS = DRAFT_RANKS_MAX };

static carat_model *open_with(const char *path, const char *draft)
{
    carat_model *m;
    err e = {0};
    CHECK_OK(carat_model_open(path, &(carat_model_options){.draft = draft}, &m, &e), e);
    return m;
}

static carat_session *session_of(carat_model *m, int32_t chunk, const char *kv)
{
    carat_session *s;
    err e = {0};
    const carat_session_options o = {.n_ctx = CTX, .chunk = chunk, .kv_k = kv, .checkpoint_mb = -1};
    CHECK_OK(carat_session_open(m, &o, &s, &e), e);
    return s;
}

/* What the drafter says after the timeline's tokens and one more. */
static void propose(carat_session *s, const int32_t *id, int64_t n, int32_t slots, proposal *out)
{
    drafter *d = s->b.rounds->d[DRAFTER_MODEL];
    err e = {0};
    const draft_ask a = {.s = s->b.slot->t.draft[DRAFTER_MODEL],
                         .target = &s->b.slot->t.kv,
                         .id = id,
                         .n = n,
                         .n_slots = slots,
                         .n_ranks = RANKS,
                         .out = out};
    CHECK_STR(d->class->name, "nextn");
    CHECK(!s->b.rounds->failed[DRAFTER_MODEL]);
    CHECK_EQ(s->b.slot->t.kv.n_past, n - 1);
    memset(out, 0, sizeof *out);
    CHECK_OK(d->class->propose(d, &a, 1, &e), e);
}

static void append(carat_session *s, const int32_t *id, int64_t n)
{
    err e = {0};
    CHECK_OK(carat_append(s, id, n, false, NULL, &e), e);
}

static void check_same(const proposal *got, const proposal *want, const char *what)
{
    CHECK_MSG(got->n_slots == want->n_slots && got->n_slots > 0, "%s: %d slots, expected %d", what,
              got->n_slots, want->n_slots);
    for (int32_t i = 0; i < got->n_slots; i++)
        for (int32_t k = 0; k < got->n_ranks; k++)
            CHECK_MSG(got->id[i][k] == want->id[i][k] && got->logp[i][k] == want->logp[i][k],
                      "%s: slot %d, rank %d: token %d (%g), expected %d (%g)", what, i, k,
                      got->id[i][k], (double)got->logp[i][k], want->id[i][k],
                      (double)want->logp[i][k]);
}

/* ---- Against transformers ------------------------------------------------------------------ */

static int64_t number(const fidelity *f, const char *key)
{
    int64_t v = 0;
    CHECK_MSG(gguf_get_i64(&f->golden, key, &v), "no %s", key);
    return v;
}

static void check_golden(const char *name, bool split, int32_t chunk)
{
    AUTO(fidelity_close) fidelity f;
    fidelity_open(&f, name);
    const char *path = fidelity_write(&f, &(fidelity_file){.split_experts = split});
    const gguf_value *prompts = gguf_find(&f.golden, "fidelity.nextn.prompts");
    const gguf_value *id = gguf_find(&f.golden, "fidelity.nextn.id");
    const gguf_value *logp = gguf_find(&f.golden, "fidelity.nextn.logp");
    int64_t drafts = number(&f, "fidelity.nextn.drafts"),
            ranks = number(&f, "fidelity.nextn.ranks");
    uint64_t at = 0;
    CHECK(prompts && id && logp && ranks == RANKS);
    AUTO_MODEL *m = open_with(path, "nextn");
    AUTO_SESSION *s = session_of(m, chunk, "f32");
    float most = 0;
    for (uint64_t i = 0; i < prompts->count; i++, at += (uint64_t)(drafts * ranks)) {
        proposal p;
        int64_t n = 0;
        CHECK(gguf_item_i64(prompts, i, &n));
        if (n < 2) /* there is no draft before the model has computed a token */
            continue;
        append(s, f.tokens + s->b.slot->t.kv.n_past, n - 1 - s->b.slot->t.kv.n_past);
        propose(s, f.tokens, n, (int32_t)drafts, &p);
        CHECK_EQ(p.n_slots, drafts);
        for (int64_t k = 0; k < drafts * ranks; k++) {
            int64_t want_id = -1;
            double want = 0;
            CHECK(gguf_item_i64(id, at + (uint64_t)k, &want_id) &&
                  gguf_item_f64(logp, at + (uint64_t)k, &want));
            float far = fabsf(p.logp[k / ranks][k % ranks] - (float)want);
            CHECK_MSG(
                p.id[k / ranks][k % ranks] == want_id && far < 1e-3f,
                "%s, %lld tokens, slot %lld, rank %lld: token %d (%g), transformers %lld (%g)",
                name, (long long)n, (long long)(k / ranks), (long long)(k % ranks),
                p.id[k / ranks][k % ranks], (double)p.logp[k / ranks][k % ranks],
                (long long)want_id, want);
            most = fmaxf(most, far);
        }
    }
    printf("%s, chunks of %d: logarithms within %.1e of transformers\n", name, chunk, (double)most);
}

PLAIN_TEST(nextn_drafts_are_those_of_transformers)
{
    static const int32_t chunks[] = {1, 3, 64};
    for (int i = 0; i < 3; i++) {
        check_golden("qwen35-nextn", false, chunks[i]);
        check_golden("qwen35moe-nextn", i == 1, chunks[i]);
    }
}

/* ---- What a timeline goes through ---------------------------------------------------------- */

/* However the tokens came, the drafts after them are those of a session that computed them at
 * once. */
TEST(nextn_drafts_do_not_depend_on_how_tokens_came)
{
    enum { N = 90 };
    AUTO_MODEL *m = open_with(recur_model_write(&(recur_model_file){.nextn = true}), "nextn");
    carat_session *s = session_of(m, 64, NULL), *fresh = session_of(m, 64, NULL);
    carat_snapshot *k;
    int32_t id[N];
    uint64_t rng = test_seed();
    proposal want, got;
    err e = {0};
    recur_draw(m, id, N, &rng);
    append(fresh, id, N - 1);
    propose(fresh, id, N, 6, &want);
    propose(fresh, id, N, 6, &got);
    check_same(&got, &want, "asked again");
    for (int i = 0; i < N - 1; i++)
        append(s, id + i, 1);
    propose(s, id, N, 6, &got);
    check_same(&got, &want, "token by token");
    carat_reset(s);
    for (int64_t n = 0; n < N - 1;) { /* proposals between passes leave nothing behind */
        int64_t some = 1 + (int64_t)rng_below(&rng, 20);
        some = some < N - 1 - n ? some : N - 1 - n;
        append(s, id + n, some);
        n += some;
        propose(s, id, n + 1, 3, &got);
    }
    propose(s, id, N, 6, &got);
    check_same(&got, &want, "in parts, with proposals");
    /* A snapshot half way has keys and the newest row. */
    carat_reset(s);
    append(s, id, 50);
    CHECK_OK(carat_snapshot_take(s, &k, &e), e);
    append(s, id + 60, 20);
    CHECK_OK(carat_snapshot_restore(s, k, &e), e);
    append(s, id + 50, N - 1 - 50);
    propose(s, id, N, 6, &got);
    check_same(&got, &want, "after a snapshot");
    carat_snapshot_free(k);
    carat_session_close(s);
    carat_session_close(fresh);
}

/* From checkpoints of a session and from files of an ended one: keys and the newest row. */
TEST(nextn_drafts_after_checkpoints_and_from_files)
{
    enum { N = 120, ANSWER = 8 };
    AUTO_MODEL *m = open_with(recur_model_write(&(recur_model_file){.nextn = true}), "nextn");
    char dir[512];
    int32_t id[N + 64], other[N];
    uint64_t rng = test_seed();
    proposal want, got;
    err e = {0};
    carat_generate_options how = recur_greedy(ANSWER);
    carat_session *s, *fresh = session_of(m, 64, NULL);
    snprintf(dir, sizeof dir, "%s", test_temp("kept"));
    const carat_session_options o = {.n_ctx = CTX, .chunk = 64, .cache_dir = dir};
    recur_draw(m, id, N, &rng);
    recur_draw(m, other, N, &rng);
    CHECK_OK(carat_session_open(m, &o, &s, &e), e);
    CHECK_OK(carat_generate(s, id, N, &how, NULL, NULL, NULL, &e), e);
    int64_t n = s->b.slot->t.kv.n_past;
    CHECK(n > N && n < N + 60);
    memcpy(id, s->b.slot->t.id, (size_t)n * sizeof *id);
    for (int i = 0; i < 4; i++)
        id[n + i] = 7 + i;
    /* A fresh session computes the same tokens. */
    append(fresh, id, n + 3);
    propose(fresh, id, n + 4, 4, &want);
    CHECK_OK(carat_generate(s, other, N, &how, NULL, NULL, NULL, &e), e);
    how.max_tokens = 1;
    CHECK_OK(carat_generate(s, id, n + 3, &how, NULL, NULL, NULL, &e), e);
    CHECK_STR(carat_session_reuse(s, NULL), "restored");
    propose(s, id, n + 4, 4, &got);
    check_same(&got, &want, "after a checkpoint");
    carat_session_close(s);
    CHECK_OK(carat_session_open(m, &o, &s, &e), e);
    CHECK_OK(carat_generate(s, id, n + 3, &how, NULL, NULL, NULL, &e), e);
    CHECK_STR(carat_session_reuse(s, NULL), "restored from disk");
    propose(s, id, n + 4, 4, &got);
    check_same(&got, &want, "from a file");
    carat_session_close(s);
    carat_session_close(fresh);
}

/* A snapshot of a session without the drafter has no keys for it: it goes on from there, as if the
 * text began there. */
TEST(nextn_begins_anew_where_it_missed_tokens)
{
    enum { N = 70, AT = 50 };
    const char *path = recur_model_write(&(recur_model_file){.nextn = true});
    AUTO(pair_close) pair p;
    proposal got, again;
    int32_t id[N];
    uint64_t rng = test_seed();
    err e = {0};
    AUTO_PTR(carat_snapshot_free) carat_snapshot *k;
    pair_open_of(&p, path, "nextn", (carat_session_options){0});
    recur_draw(p.m, id, N, &rng);
    append(p.plain, id, AT);
    CHECK_OK(carat_snapshot_take(p.plain, &k, &e), e);
    CHECK_OK(timeline_restore(session_timeline(p.fast), ((kv_snapshot **)k)[1], &e), e);
    propose(p.fast, id, AT + 1, 4, &got);
    CHECK_EQ(got.n_slots, 0);
    append(p.fast, id + AT, N - 1 - AT);
    propose(p.fast, id, N, 4, &got);
    CHECK_EQ(got.n_slots, 4);
    CHECK_OK(timeline_restore(session_timeline(p.fast), ((kv_snapshot **)k)[1], &e), e);
    for (int i = AT; i < N - 1; i++)
        append(p.fast, id + i, 1);
    propose(p.fast, id, N, 4, &again);
    check_same(&again, &got, "token by token");
}

/* A rewind leaves the state of a text whose next token has no known predecessor; answers and later
 * drafts go on. */
TEST(nextn_goes_on_after_a_rewind)
{
    AUTO_MODEL *m = open_with(recur_model_write(&(recur_model_file){.nextn = true}), "nextn");
    AUTO_SESSION *s = session_of(m, 16, NULL);
    int32_t id[60];
    uint64_t rng = test_seed();
    proposal p;
    recur_draw(m, id, 60, &rng);
    carat_generate_options how = recur_greedy(20);
    err e = {0};
    CHECK_OK(carat_generate(s, id, 30, &how, NULL, NULL, NULL, &e), e);
    int64_t n =
        s->b.slot->t.kv.n_past - 1; /* as far as the model's own states can surely go back */
    CHECK(carat_rewind(s, n));
    memcpy(id, s->b.slot->t.id, (size_t)n * sizeof *id);
    append(s, id + n, 4);
    propose(s, id, n + 5, 4, &p);
    CHECK_EQ(p.n_slots, 4);
    carat_reset(s);
    append(s, id, 5);
    propose(s, id, 6, 4, &p);
    CHECK_EQ(p.n_slots, 4);
}

/* ---- Answers ------------------------------------------------------------------------------- */

PLAIN_TEST(nextn_answers_are_those_without_drafts)
{
    for (int experts = 0; experts < 2; experts++) {
        const char *path =
            recur_model_write(&(recur_model_file){.nextn = true, .experts = experts});
        uint64_t rng = test_seed();
        AUTO(pair_close) pair p;
        pair_open_of(&p, path, "nextn", (carat_session_options){0});
        for (int trial = 0; trial < 20; trial++) {
            request q;
            request_draw(p.m, &q, 1 + (int64_t)rng_below(&rng, 40), trial, &rng);
            q.o.max_tokens = 2 + (int32_t)rng_below(&rng, 30);
            pair_compare(&p, &q, 1 + trial % 8, trial / 2 % 2, trial % 3 != 2, &rng, "nextn",
                         trial);
            pair_same(&p, "nextn", trial);
        }
    }
}

PLAIN_TEST(nextn_goes_on_in_later_turns)
{
    const char *path = recur_model_write(&(recur_model_file){.nextn = true});
    uint64_t rng = test_seed();
    AUTO(pair_close) pair p;
    pair_open_of(&p, path, "nextn", (carat_session_options){.checkpoint_mb = 16});
    for (int trial = 0; trial < 3; trial++) {
        request q;
        request_draw(p.m, &q, 30, 0, &rng);
        for (int turn = 0; turn < 4; turn++) {
            q.o.max_tokens = 12 + turn;
            pair_compare(&p, &q, 5, turn % 2, turn % 3 != 2, &rng, "turns", turn);
            int64_t n = p.plain->b.slot->t.kv.n_past;
            memcpy(q.ids, p.plain->b.slot->t.id, (size_t)n * sizeof *q.ids);
            for (int i = 0; i < 5; i++)
                q.ids[n++] = 5 + (int32_t)rng_below(&rng, 40);
            q.n = n;
        }
    }
}

/* Where the layer's formula gives the model's own next token, every draft is accepted. */
PLAIN_TEST(nextn_is_accepted_where_it_is_right)
{
    const recur_model_file sure = {.nextn = true, .next_by_last = true, .scale = 4};
    uint64_t rng = test_seed();
    AUTO(pair_close) pair p;
    pair_open_of(&p, recur_model_write(&sure), "nextn", (carat_session_options){0});
    for (int32_t n = 1; n <= 8; n++) {
        request q;
        request_draw(p.m, &q, 6, 0, &rng);
        q.o.max_tokens = 60;
        q.o.speculation = (carat_speculation){.n_max = n, .tree_max = -1, .fixed = true};
        AUTO_PTR(heard_free) heard *want = heard_say(p.plain, &q, heard_new());
        AUTO_PTR(heard_free) heard *got = heard_say(p.fast, &q, heard_new());
        heard_same(got, want, "right", n);
        /* The last round may draft beyond the end. */
        CHECK_MSG(got->n_drafted > 25 && got->n_accepted + n >= got->n_drafted,
                  "drafts of %d: %d of %d accepted", n, got->n_accepted, got->n_drafted);
    }
}

/* The layer is on the main device; its rows come from the others. */
TEST(nextn_of_a_divided_model)
{
    const char *path = recur_model_write(&(recur_model_file){.nextn = true});
    const carat_model_options divided = {.device = "cpu,cpu,cpu", .draft = "nextn"};
    AUTO(pair_close) pair p = {0};
    uint64_t rng = test_seed();
    err e = {0};
    CHECK_OK(carat_model_open(path, NULL, &p.m, &e), e);
    CHECK_OK(carat_model_open(path, &divided, &p.with, &e), e);
    pair_open_sessions(&p, (carat_session_options){.chunk = 24});
    for (int trial = 0; trial < 4; trial++) {
        request q;
        request_draw(p.m, &q, 1 + (int64_t)rng_below(&rng, 60), trial, &rng);
        pair_compare(&p, &q, 4, trial % 2, trial % 3 > 0, &rng, "divided", trial);
        pair_same(&p, "divided", trial);
    }
    CHECK_MSG(!p.fast->b.rounds->failed[DRAFTER_MODEL], "%s", p.fast->b.rounds->why.text);
}

/* What a session takes of the device is what its plan says. */
TEST(nextn_takes_the_memory_it_planned)
{
    AUTO_MODEL *m = open_with(recur_model_write(&(recur_model_file){.nextn = true}), "nextn");
    carat_session *s;
    carat_memory_plan plan;
    draft_costs c = {0}, all = {0};
    err e = {0};
    const carat_session_options o = {.n_ctx = 200, .chunk = 24, .checkpoint_mb = -1};
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
    CHECK_EQ(m->dev->used_bytes(m->dev) - before, plan.kv_swa_bytes + plan.kv_global_bytes +
                                                      plan.recurrent_bytes + plan.scratch_bytes +
                                                      all.device_bytes);
    CHECK(plan.draft_bytes >= all.device_bytes + all.host_bytes);
    carat_session_close(s);
    CHECK_EQ(m->dev->used_bytes(m->dev), before);
}

/* ---- Batches ------------------------------------------------------------------------------- */

PLAIN_TEST(nextn_answers_of_a_batch_are_those_of_sessions)
{
    enum { JOBS = 5 };
    const char *path = recur_model_write(&(recur_model_file){.nextn = true});
    carat_model *m = open_with(path, NULL), *with = open_with(path, "nextn");
    carat_session *s = session_of(m, 32, NULL);
    carat_batch *b;
    request q[JOBS];
    heard *want[JOBS], *got[JOBS];
    uint64_t rng = test_seed();
    err e = {0};
    const carat_batch_options o = {.session = {.n_ctx = CTX}, .n_slots = 3};
    CHECK_OK(carat_batch_open(with, &o, &b, &e), e);
    for (int i = 0; i < JOBS; i++) {
        request_draw(m, &q[i], 3 + 9 * i, i, &rng);
        q[i].o.max_tokens = 10 + 4 * i;
        want[i] = heard_say(s, &q[i], heard_new());
        got[i] = heard_new();
        q[i].o.speculation =
            (carat_speculation){.n_max = 3, .tree_max = i % 2 ? 5 : -1, .fixed = true};
        q[i].o.on_round = heard_round;
        q[i].o.round_user = got[i];
        const carat_job asked = {
            .ids = q[i].ids, .n = q[i].n, .opt = &q[i].o, .fn = heard_event, .user = got[i]};
        CHECK_OK(carat_batch_submit(b, &asked, &got[i]->job, NULL, &e), e);
    }
    while (carat_batch_step(b))
        ;
    int32_t n_rounds = 0;
    for (int i = 0; i < JOBS; i++) {
        CHECK_EQ(got[i]->n, want[i]->n);
        CHECK(!memcmp(got[i]->id, want[i]->id, (size_t)want[i]->n * sizeof *want[i]->id));
        n_rounds += got[i]->n_rounds;
        heard_free(got[i]);
        heard_free(want[i]);
    }
    CHECK(n_rounds > 0);
    carat_batch_close(b);
    carat_session_close(s);
    carat_model_close(m);
    carat_model_close(with);
}

/* ---- Files --------------------------------------------------------------------------------- */

typedef struct opening {
    const char *path, *draft;
} opening;

static status open_and_say(void *arg, err *e)
{
    const opening *o = arg;
    const int32_t ids[] = {5, 6, 7, 8};
    carat_generate_options how = recur_greedy(4);
    carat_model *m;
    carat_session *s = NULL;
    status st = carat_model_open(o->path, &(carat_model_options){.draft = o->draft}, &m, e);
    if (st)
        return st;
    st = carat_session_open(m, &(carat_session_options){.n_ctx = 64}, &s, e);
    st = st ? st : carat_generate(s, ids, 4, &how, NULL, NULL, NULL, e);
    carat_session_close(s);
    carat_model_close(m);
    return st;
}

TEST(nextn_needs_its_memory)
{
    opening o = {recur_model_write(&(recur_model_file){.nextn = true}), "nextn"};
    test_every_allocation(open_and_say, &o);
}

static const char *changed(const char *from, const char *name, doctor_change c)
{
    const char *to = test_temp(name);
    doctor_gguf(from, to, &c);
    return to;
}

/* A file of the layer alone: the model's own layers are dropped one by one. */
static const char *only_layer(const char *from)
{
    static int n_written;
    AUTO(gguf_close) gguf g;
    gguf_writer *w;
    err e = {0};
    char name[32];
    snprintf(name, sizeof name, "mtp-%d.gguf", n_written++);
    const char *to = test_temp(name);
    CHECK_OK(gguf_open(&g, from, false, NULL, NULL, &e), e);
    CHECK_OK(gguf_create(&w, to, &e), e);
    for (uint64_t i = 0; i < g.n_values; i++)
        gguf_put_value(w, &g.value[i]);
    for (int turn = 0; turn < 2; turn++) {
        for (uint64_t i = 0; i < g.tensors.n; i++) {
            const tensor *t = &g.tensors.at[i];
            if (!strncmp(t->name, "blk.", 4) && strncmp(t->name, "blk.8.", 6) != 0)
                continue;
            if (turn)
                CHECK_OK(gguf_write_data(w, t->bytes, t->n_bytes, &e), e);
            else
                gguf_put_tensor(w, t->name, t->type, t->n_dims, t->ne);
        }
        if (!turn)
            CHECK_OK(gguf_write_header(w, &e), e);
    }
    CHECK_OK(gguf_commit(w, &e), e);
    return to;
}

static void check_refused(const char *path, const char *draft, const char *words)
{
    carat_model *m = NULL;
    err e = {0};
    CHECK_MSG(carat_model_open(path, &(carat_model_options){.draft = draft}, &m, &e),
              "%s is not refused", words);
    CHECK_MSG(strstr(e.text, words), "\"%s\" lacks \"%s\"", e.text, words);
}

TEST(nextn_files_that_cannot_draft_say_why)
{
    const char *with = recur_model_write(&(recur_model_file){.nextn = true});
    const char *without = recur_model_write(NULL);
    const char *moe = recur_model_write(&(recur_model_file){.nextn = true, .experts = true});
    const char *layer = only_layer(with), *other = only_layer(moe);
    check_refused(without, "nextn", "has no NextN (MTP) layer in its file");
    check_refused(without, "mtp", "there is no drafter 'mtp'");
    check_refused(layer, NULL, "the NextN (MTP) layer of a model, without the model");
    check_refused(without, other, "for a model of architecture qwen35moe");
    check_refused(changed(with, "two.gguf",
                          (doctor_change){.key = "qwen35.nextn_predict_layers", .value = 2}),
                  "nextn", "drafts by one NextN");
    check_refused(
        changed(with, "own.gguf", (doctor_change){.add = "blk.8.nextn.embed_tokens.weight"}),
        "nextn", "share the model's embedding and head");
    check_refused(changed(with, "less.gguf", (doctor_change){.drop = "blk.8.nextn.hnorm.weight"}),
                  "nextn", "nextn.hnorm.weight is missing");
    check_refused(changed(with, "less.gguf", (doctor_change){.drop = "blk.8.attn_q.weight"}),
                  "nextn", "blk.8.attn_q.weight is missing");
}

static void check_taken(const char *path, const char *draft, const char *class, const char *why)
{
    AUTO_MODEL *m = open_with(path, draft);
    carat_model_info info;
    carat_model_get_info(m, &info);
    CHECK_STR(info.drafter, class);
    CHECK_MSG(strstr(info.drafter_why, why), "%s", info.drafter_why);
}

TEST(nextn_is_found)
{
    const char *with = recur_model_write(&(recur_model_file){.nextn = true});
    const char *without = recur_model_write(NULL);
    const char *layer = only_layer(with);
    check_taken(with, "nextn", "nextn", "as asked");
    check_taken(with, "mtp", "nextn", "as asked");
    check_taken(with, "auto", "nextn", "the model's file has a NextN layer");
    check_taken(without, layer, "nextn", "as asked");
    check_taken(without, "auto", "nextn", "lies beside the model");
    /* One that cannot be used: what lies beside the model is next. */
    check_taken(
        changed(with, "own.gguf", (doctor_change){.add = "blk.8.nextn.embed_tokens.weight"}),
        "auto", "nextn", "lies beside the model");
}
