/* dflash_families_test.c - DFlash drafters of other targets than Gemma: Laguna's own kind, and one
 * for Qwen3.5, whose recurrent states go back when a draft is refused.
 *
 * Weights are random, so few drafts are right; scripted depths (round_rig.h) make rounds of every
 * length. Arithmetic is tested in model/dflash_test.c, what the drafter sees in
 * tests/taps_families_test.c.
 */
#include "apps/commands.h"
#include "base/rng.h"
#include "engine/batch_int.h"
#include "spec/find.h"
#include "tests/round_rig.h"
#include "tests/test.h"

static const struct {
    const char *target, *draft, *dialect;
} kinds[] = {{"tiny-laguna", "dflash-tiny-xs", "llama.cpp"},
             {"tiny-laguna", "dflash-tiny-xs", "lucebox"},
             {"tiny-laguna", "dflash-tiny-xs", "ik"},
             {"tiny-qwen35", "dflash-tiny-qwen35", "llama.cpp"}};
enum { KINDS = sizeof kinds / sizeof *kinds };

typedef struct files {
    char target[512], draft[512];
} files;

static void write_one(char *to, size_t cap, const char *name, const char *size, const char *dialect)
{
    const char *argv[] = {size, to, "--type", "q8_0", "--dialect", dialect};
    snprintf(to, cap, "%s", test_temp(name));
    CHECK_EQ(command_synth.run(&command_synth, dialect ? 6 : 4, (char **)argv), 0);
}

static void write_files(files *f, int k)
{
    write_one(f->target, sizeof f->target, "target.gguf", kinds[k].target, NULL);
    write_one(f->draft, sizeof f->draft, "draft.gguf", kinds[k].draft, kinds[k].dialect);
}

static void draw(const carat_model *m, int32_t *id, int32_t n, uint64_t *rng)
{
    for (int32_t i = 0; i < n; i++)
        id[i] = (int32_t)rng_below(rng, (uint64_t)m->core.n_vocab);
}

PLAIN_TEST(dflash_answers_of_other_families_are_those_without_drafts)
{
    for (int k = 0; k < KINDS; k++) {
        files f;
        AUTO(pair_close) pair p;
        uint64_t rng = test_seed();
        write_files(&f, k);
        pair_open_of(&p, f.target, f.draft, (carat_session_options){.chunk = 24});
        for (int trial = 0; trial < test_trials(12); trial++) {
            request q;
            request_draw(p.m, &q, 1 + (int64_t)rng_below(&rng, 90), trial, &rng);
            q.o.max_tokens = 2 + (int32_t)rng_below(&rng, 60); /* past the windows of 16 */
            pair_compare(&p, &q, 1 + trial % 7, trial / 2 % 2, trial % 3 != 2, &rng, kinds[k].draft,
                         trial);
            pair_same(&p, kinds[k].draft, trial);
        }
        CHECK_MSG(!p.fast->b.rounds->failed[DRAFTER_MODEL], "%s", p.fast->b.rounds->why.text);
    }
}

static void propose(carat_session *s, const int32_t *id, int64_t n, proposal *out)
{
    drafter *d = s->b.rounds->d[DRAFTER_MODEL];
    err e = {0};
    const draft_ask a = {.s = s->b.slot->t.draft[DRAFTER_MODEL],
                         .target = &s->b.slot->t.kv,
                         .id = id,
                         .n = n,
                         .n_slots = 7,
                         .n_ranks = 4,
                         .out = out};
    memset(out, 0, sizeof *out);
    CHECK_OK(d->class->propose(d, &a, 1, &e), e);
}

/* However the target's rows came: in one pass, one by one, after a snapshot. */
TEST(dflash_drafts_of_other_families_do_not_depend_on_passes)
{
    enum { LONG = 80 };
    for (int k = 0; k < KINDS; k++) {
        files f;
        uint64_t rng = test_seed();
        AUTO_MODEL *m;
        AUTO_SESSION *s;
        AUTO_PTR(carat_snapshot_free) carat_snapshot *kept;
        proposal want, got;
        int32_t id[LONG], other[20];
        err e = {0};
        write_files(&f, k);
        const carat_session_options o = {.n_ctx = CTX, .chunk = 64, .checkpoint_mb = -1};
        CHECK_OK(carat_model_open(f.target, &(carat_model_options){.draft = f.draft}, &m, &e), e);
        CHECK_OK(carat_session_open(m, &o, &s, &e), e);
        draw(m, id, LONG, &rng);
        draw(m, other, 20, &rng);
        CHECK_OK(carat_append(s, id, LONG - 1, false, NULL, &e), e);
        propose(s, id, LONG, &want);
        CHECK(want.n_slots == 7 && want.n_ranks == 4);
        carat_reset(s);
        for (int i = 0; i < LONG - 1; i++) {
            CHECK_OK(carat_append(s, id + i, 1, false, NULL, &e), e);
            if (i == 40)
                CHECK_OK(carat_snapshot_take(s, &kept, &e), e);
        }
        propose(s, id, LONG, &got);
        CHECK_MSG(!memcmp(&got, &want, sizeof got), "%s: one by one", kinds[k].draft);
        CHECK_OK(carat_append(s, other, 20, false, NULL, &e), e);
        CHECK_OK(carat_snapshot_restore(s, kept, &e), e);
        CHECK_OK(carat_append(s, id + 41, LONG - 1 - 41, false, NULL, &e), e);
        propose(s, id, LONG, &got);
        CHECK_MSG(!memcmp(&got, &want, sizeof got), "%s: after a snapshot", kinds[k].draft);
        /* The drafts depend on the tokens before the window of the target's last rows. */
        other[0] = id[LONG - 20];
        id[LONG - 20] = (id[LONG - 20] + 1) % m->core.n_vocab;
        carat_reset(s);
        CHECK_OK(carat_append(s, id, LONG - 1, false, NULL, &e), e);
        propose(s, id, LONG, &got);
        CHECK(memcmp(&got, &want, sizeof got) != 0);
    }
}

TEST(dflash_drafters_of_one_family_are_not_taken_by_another)
{
    static const char *const targets[] = {"tiny-qwen3", "tiny-qwen35moe", "tiny-qwen35"};
    files f;
    write_files(&f, 0);
    for (size_t i = 0; i < sizeof targets / sizeof *targets; i++) {
        carat_model *m = NULL;
        err e = {0};
        write_one(f.target, sizeof f.target, "target.gguf", targets[i], NULL);
        CHECK(carat_model_open(f.target, &(carat_model_options){.draft = f.draft}, &m, &e) && !m);
        CHECK_MSG(strstr(e.text, "'laguna'"), "%s", e.text);
    }
}
