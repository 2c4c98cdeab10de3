/* round_pool_test.c - drafts of sessions that keep part of their keys in the pool: chains and trees
 * of every drafter with weights. Answers, and what comes after them, are those without drafts.
 */
#include "engine/batch_int.h"
#include "base/rng.h"
#include "tests/dflash_file.h"
#include "tests/kv_rig.h"
#include "tests/mtp_rig.h"
#include "tests/recur_model.h"
#include "tests/round_rig.h"
#include "tests/test.h"

enum { CONTEXT = 640, KEEP = 512, ANSWER = 80, TRIALS = 4 }; /* the rig model's context */

static carat_session_options pool_of(const char *policy, const char *format)
{
    return (carat_session_options){.n_ctx = CONTEXT,
                                   .chunk = 64,
                                   .kv_k = format,
                                   .kv_resident = KEEP,
                                   .kv_policy = policy,
                                   .kv_tau = 24};
}

/* Prompts are longer than the pool. A script decides what the target accepts, but for one trial. */
static void run(const char *path, const char *draft, const char *name, const char *policy,
                const char *format)
{
    AUTO(pair_close) pair p;
    uint64_t rng = test_seed();
    carat_pool_info info;
    pair_open_of(&p, path, draft, pool_of(policy, format));
    CHECK_STR(main_drafter(p.with)->class->name, name);
    p.fast->b.pool.poison = true; /* a draft that reads a free page is NaN, and empty */
    for (int trial = 0; trial < TRIALS; trial++) {
        request q;
        uint64_t n_drafted = p.fast->b.rounds->n_drafted;
        request_draw(p.m, &q, KEEP + 10 + (int64_t)rng_below(&rng, 30), trial % 3, &rng);
        q.o.max_tokens = ANSWER;
        q.o.sampling.ignore_eog = true;
        pair_compare(&p, &q, 2 + 2 * trial, trial % 2, trial != 2, &rng, policy, trial);
        pair_same(&p, policy, trial);
        CHECK(p.fast->b.rounds->n_drafted > n_drafted);
    }
    CHECK_MSG(!p.fast->b.rounds->failed[DRAFTER_MODEL], "%s", p.fast->b.rounds->why.text);
    CHECK(p.fast->b.rounds->n_accepted > 50);
    carat_session_get_pool(p.fast, &info);
    CHECK(info.lossy && info.n_paged_out > 0);
    CHECK(strcmp(policy, "scored") != 0 || info.n_reselected > 2 * TRIALS);
}

PLAIN_TEST(round_on_a_pool_with_a_dflash_drafter)
{
    const char *draft = df_write(&(df_options){0}, "draft.gguf");
    run(rig_model(), draft, "dflash", "scored", "f32");
    run(rig_model(), draft, "dflash", "lru", "q8_0");
}

PLAIN_TEST(round_on_a_pool_with_an_mtp_assistant)
{
    const char *draft = mtp_rig_write(&(mtp_rig_file){0});
    run(rig_model(), draft, "mtp", "scored", "f32");
    run(rig_model(), draft, "mtp", "snapkv", "q8_0");
}

PLAIN_TEST(round_on_a_pool_with_a_model_as_drafter)
{
    char path[256];
    snprintf(path, sizeof path, "%s", toy_model_write(&(toy_model_file){.n_ctx_train = CONTEXT}));
    run(path, path, "model", "scored", "f32");
}

/* Recurrent layers cannot go back, so the end of a prompt is not computed twice. */
PLAIN_TEST(round_on_a_pool_with_a_nextn_layer)
{
    run(recur_model_write(&(recur_model_file){.nextn = true}), "nextn", "nextn", "scored", "f32");
}
