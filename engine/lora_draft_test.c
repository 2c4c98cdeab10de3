/* lora_draft_test.c - adapters beside drafts, and beside conversations on disk: an answer is the
 * one without a drafter, and no rows of other adapters are taken for it.
 */
#include "base/rng.h"
#include "tests/dflash_file.h"
#include "tests/kv_rig.h"
#include "tests/lora_rig.h"
#include "tests/mtp_rig.h"
#include "tests/round_rig.h"
#include "tests/test.h"

#include <stdio.h>
#include <string.h>

enum { KINDS = 4, JOBS = 8 };

/* Nothing, one of each, both. */
static const carat_lora_use uses[KINDS][2] = {{{0}}, {{0, 1}}, {{1, 0.7f}}, {{0, -1}, {1, 1}}};
static const int32_t n_uses[KINDS] = {0, 1, 1, 2};

/* Adapters that differ by their seeds. */
static void write_adapters(const char *base, char path[2][600], const char *names, uint64_t seed)
{
    const lora_recipe recipe[2] = {{.rank = 4, .alpha = 8, .seed = seed},
                                   {.rank = 8, .alpha = 8, .seed = seed + 86, .only = "attn"}};
    for (int i = 0; i < 2; i++) {
        char name[80];
        snprintf(name, sizeof name, "%s%d.gguf", names, i);
        snprintf(path[i], 600, "%s", test_temp(name));
        lora_rig_adapter(base, path[i], &recipe[i]);
    }
}

static carat_model *open_adapted(const char *base, const char *draft, char path[2][600])
{
    const carat_lora l[2] = {{path[0], 0}, {path[1], 0}};
    carat_model *m;
    err e = {0};
    const carat_model_options o = {.draft = draft, .loras = l, .n_loras = 2, .n_threads = 2};
    CHECK_OK(carat_model_open(base, &o, &m, &e), e);
    return m;
}

static void choose(request *q, int kind)
{
    q->o.loras = uses[kind];
    q->o.n_loras = n_uses[kind];
}

/* Answers in a batch whose neighbours have other adapters and drafts. */
static void compare_jobs(pair *p, const char *what, uint64_t *rng)
{
    static request q[JOBS];
    heard *want[JOBS], *got[JOBS];
    AUTO_BATCH *b;
    err e = {0};
    const carat_batch_options o = {.session = {.n_ctx = CTX, .chunk = 24, .checkpoint_mb = -1},
                                   .n_slots = 3};
    CHECK_OK(carat_batch_open(p->with, &o, &b, &e), e);
    for (int i = 0; i < JOBS; i++) {
        request_draw(p->m, &q[i], 1 + (int64_t)rng_below(rng, 60), 0, rng);
        if (i >= KINDS) { /* a prompt that others had, with other adapters */
            memcpy(q[i].ids, q[i - KINDS + 1].ids, sizeof q[i].ids);
            q[i].n = q[i - KINDS + 1].n;
        }
        choose(&q[i], i % KINDS);
        want[i] = heard_say(p->plain, &q[i], heard_new());
        got[i] = heard_new();
        q[i].o.speculation = (carat_speculation){.n_max = 4, .tree_max = -1, .fixed = true};
        q[i].o.on_round = heard_round;
        q[i].o.round_user = got[i];
        const carat_job j = {.ids = q[i].ids,
                             .n = q[i].n,
                             .opt = &q[i].o,
                             .fn = heard_event,
                             .done = heard_done,
                             .user = got[i]};
        CHECK_OK(carat_batch_submit(b, &j, NULL, NULL, &e), e);
    }
    while (carat_batch_step(b))
        ;
    for (int i = 0; i < JOBS; i++) {
        CHECK_MSG(got[i]->done && !got[i]->st, "%s, job %d: %s", what, i, got[i]->e.text);
        heard_same(got[i], want[i], what, i);
        heard_free(got[i]);
        heard_free(want[i]);
    }
}

static void run_with(const char *base, const char *draft, const char *name)
{
    char path[2][600];
    AUTO(pair_close) pair p = {0};
    uint64_t rng = test_seed();
    int32_t n_other = 0;
    write_adapters(base, path, "a", 5);
    p.m = open_adapted(base, NULL, path);
    p.with = open_adapted(base, draft, path);
    pair_open_sessions(&p, (carat_session_options){.chunk = 24});
    for (int trial = 0; trial < 8; trial++) {
        request q;
        request_draw(p.m, &q, 1 + (int64_t)rng_below(&rng, 60), trial % 3, &rng);
        choose(&q, trial % KINDS);
        pair_compare(&p, &q, 1 + trial % 6, trial % 2, trial % 4 != 3, &rng, name, trial);
        /* The same prompt with the next adapters: its rows are not these. */
        heard *here = heard_say(p.plain, &q, heard_new()), *there;
        choose(&q, (trial + 1) % KINDS);
        there = heard_say(p.plain, &q, heard_new());
        n_other += here->events.n != there->events.n ||
                   memcmp(here->events.at, there->events.at, here->events.n);
        heard_free(here);
        heard_free(there);
        pair_compare(&p, &q, 3, false, true, &rng, name, trial);
    }
    CHECK_MSG(n_other > 4, "%s: adapters changed %d of 8 answers", name, n_other);
    compare_jobs(&p, name, &rng);
}

PLAIN_TEST(lora_beside_a_dflash_drafter)
{
    run_with(rig_model(), df_write(&(df_options){0}, "draft.gguf"), "dflash");
}

PLAIN_TEST(lora_beside_an_mtp_assistant)
{
    run_with(rig_model(), mtp_rig_write(&(mtp_rig_file){0}), "mtp");
}

PLAIN_TEST(lora_beside_lookup_and_a_model_as_drafter)
{
    char base[600];
    snprintf(base, sizeof base, "%s", toy_model_write(NULL));
    run_with(base, "lookup", "lookup");
    run_with(base, base, "model");
}

/* One answer in a session of its own that keeps conversations in dir. Gives how it began. */
static const char *say_in(carat_model *m, const char *dir, request *q, int kind, heard *h)
{
    carat_session *s;
    err e = {0};
    const carat_session_options o = {.n_ctx = CTX, .chunk = 24, .cache_dir = dir};
    choose(q, kind);
    CHECK_OK(carat_session_open(m, &o, &s, &e), e);
    heard_say(s, q, h);
    CHECK_MSG(!h->st, "%s", h->e.text);
    carat_session_close(s); /* writes */
    return h->t.reuse;
}

/* A file of one choice of adapters serves no other one, nor adapters of the same names and places
 * whose numbers are others. */
TEST(lora_conversations_on_disk_belong_to_their_adapters)
{
    static const struct {
        int model, kind;
        bool reuses;
    } turn[] = {{0, 1, false}, {0, 1, true}, {0, 2, false}, {0, 0, false}, {1, 1, false},
                {0, 1, true},  {1, 1, true}, {0, 3, false}, {1, 0, true},  {0, 2, true}};
    char base[600], path[2][600], other[2][600], dir[600];
    carat_model *m[2];
    request q;
    uint64_t rng = test_seed();
    snprintf(base, sizeof base, "%s", toy_model_write(NULL));
    snprintf(dir, sizeof dir, "%s", test_temp("kept"));
    write_adapters(base, path, "a", 5);
    write_adapters(base, other, "b", 6);
    m[0] = open_adapted(base, NULL, path);
    m[1] = open_adapted(base, NULL, other);
    request_draw(m[0], &q, 90, 0, &rng);
    q.o.max_tokens = 30;
    for (size_t i = 0; i < sizeof turn / sizeof *turn; i++) {
        AUTO_PTR(heard_free) heard *want = heard_new(), *got = heard_new();
        say_in(m[turn[i].model], NULL, &q, turn[i].kind, want);
        const char *how = say_in(m[turn[i].model], dir, &q, turn[i].kind, got);
        CHECK_MSG((got->t.n_reused > 0) == turn[i].reuses, "turn %d: %d tokens reused (%s)", (int)i,
                  (int)got->t.n_reused, how);
        heard_same(got, want, "from disk", (int)i);
    }
    carat_model_close(m[0]);
    carat_model_close(m[1]);
}
