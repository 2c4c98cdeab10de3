/* check_pool_drafts.c - drafts on the CUDA device of sessions that keep part of their keys in the
 * pool, by a DFlash drafter and an MTP assistant, as chains and trees: the tokens of answers, and
 * the logits after them, are those without drafts. Free pages are NaN.
 */
#include "engine/batch_int.h"
#include "carat_bench.h"
#include "base/mem.h"
#include "tests/cuda/check_int.h"
#include "tests/dflash_file.h"
#include "tests/mtp_rig.h"
#include "tests/rig_model.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { CTX = 640, POOL = 512, PROMPT = 530, ANSWER = 60, DEPTHS = 17 };

typedef struct spoken {
    int32_t id[ANSWER];
    int32_t n;
} spoken;

typedef struct draft_rig {
    rig *g;
    const char *name;
    carat_model *plain, *fast;
    carat_session *s[2]; /* without drafts, and with */
    int32_t id[PROMPT], depth[DEPTHS];
    float *logits[2];
} draft_rig;

static bool keep_token(void *user, const carat_event *ev)
{
    spoken *r = user;
    if (ev->kind == CARAT_EV_TOKEN && r->n < ANSWER)
        r->id[r->n++] = ev->id;
    return true;
}

/* One answer of the session; its next logits. */
static status speak(draft_rig *x, int which, const carat_generate_options *o, spoken *to, err *e)
{
    int32_t next = 3;
    *to = (spoken){.n = 0};
    status st = carat_generate(x->s[which], x->id, PROMPT, o, keep_token, to, NULL, e);
    return st ? st : carat_append(x->s[which], &next, 1, false, x->logits[which], e);
}

/* A script decides what is accepted: random widths, trees in every other round. */
static status compare(draft_rig *x, bool tree, err *e)
{
    spoken want, got;
    size_t row = (size_t)x->plain->core.n_vocab * sizeof(float);
    carat_generate_options o = {.max_tokens = ANSWER};
    status st;
    carat_sampling_default(x->plain, &o.sampling);
    o.sampling.temperature = tree ? 1 : 0;
    o.sampling.ignore_eog = true;
    for (int i = 0; i < PROMPT; i++)
        x->id[i] = (int32_t)rng_below(&x->g->rng, (uint64_t)x->plain->core.n_vocab);
    if ((st = speak(x, 0, &o, &want, e)))
        return st;
    for (int i = 0; i < DEPTHS; i++)
        x->depth[i] = (int32_t)rng_below(&x->g->rng, 8);
    const carat_script script = {
        .answer = want.id, .n_answer = want.n, .accept = x->depth, .n_accept = DEPTHS, .rank = 1};
    o.script = &script;
    o.speculation = (carat_speculation){.n_max = 7, .tree_max = tree ? 15 : -1, .fixed = true};
    if ((st = speak(x, 1, &o, &got, e)))
        return st;
    int32_t n_differ = got.n != want.n;
    for (int32_t i = 0; i < got.n && i < want.n; i++)
        n_differ += got.id[i] != want.id[i];
    verdict(x->g, "pooldrafts",
            text("%s %s: tokens that differ", x->name, tree ? "trees" : "chains"), n_differ, 0);
    verdict(x->g, "pooldrafts",
            text("%s %s: logits that differ", x->name, tree ? "trees" : "chains"),
            memcmp(x->logits[0], x->logits[1], row) != 0, 0);
    return OK;
}

static status open_all(draft_rig *x, const char *path, const char *draft, err *e)
{
    const carat_model_options plain = {.device = "cuda"}, fast = {.device = "cuda", .draft = draft};
    const carat_session_options o = {.n_ctx = CTX,
                                     .chunk = 64,
                                     .checkpoint_mb = -1,
                                     .kv_resident = POOL,
                                     .kv_tau = 20,
                                     .draft_tree = 16};
    status st = carat_model_open(path, &plain, &x->plain, e);
    st = st ? st : carat_model_open(path, &fast, &x->fast, e);
    st = st ? st : carat_session_open(x->plain, &o, &x->s[0], e);
    st = st ? st : carat_session_open(x->fast, &o, &x->s[1], e);
    for (int i = 0; i < 2 && !st; i++) {
        x->s[i]->b.pool.poison = true;
        x->logits[i] = mem_calloc((size_t)x->plain->core.n_vocab, sizeof(float));
        st = x->logits[i] ? OK : err_memory(e, "logits", (size_t)x->plain->core.n_vocab * 4);
    }
    return st;
}

static void check_one(rig *g, const char *name, const char *path, const char *draft)
{
    draft_rig x = {.g = g, .name = name};
    err e = {0};
    status st = open_all(&x, path, draft, &e);
    for (int tree = g->quick; tree < 2 && !st; tree++)
        st = compare(&x, tree, &e);
    if (!st)
        verdict(g, "pooldrafts", text("%s: nothing was accepted, or it failed", name),
                x.s[1]->b.rounds->failed[DRAFTER_MODEL] || !x.s[1]->b.rounds->n_accepted, 0);
    if (st)
        failed(g, "pooldrafts", e.text);
    for (int i = 0; i < 2; i++) {
        mem_free(x.logits[i]);
        carat_session_close(x.s[i]);
    }
    carat_model_close(x.fast);
    carat_model_close(x.plain);
}

void check_pool_drafts(rig *g)
{
    char target[512];
    const char *draft;
    if (my_turn(g, "pooldrafts")) {
        snprintf(target, sizeof target, "%s", rig_model_of(256, 512, RIG_QK_NORM));
        draft = mtp_rig_write(&(mtp_rig_file){.head_dim = 256, .head_dim_global = 512});
        check_one(g, "mtp", target, draft);
    }
    if (my_turn(g, "pooldrafts")) {
        snprintf(target, sizeof target, "%s", rig_model_of(128, 256, RIG_QK_NORM));
        draft = df_write(&(df_options){0}, "check-pool.gguf");
        check_one(g, "dflash", target, draft);
        unlink(draft);
    }
}
