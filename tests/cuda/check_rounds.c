/* check_rounds.c - answers with drafts on the CUDA device have the tokens of answers without, alone
 * and among others whose prompts are computed meanwhile. Scripts decide what each round accepts, so
 * that chains and trees of all widths are cut at all depths, and recorded passes of many shapes are
 * replayed.
 */
#include "carat_bench.h"
#include "tests/cuda/check_int.h"
#include "tests/fidelity_model.h"

#include <unistd.h>

enum { ANSWER = 48, JOBS = 8, DEPTHS = 31, CTX = 256 };

typedef struct reply {
    int32_t id[ANSWER];
    int32_t n;
    carat_timings t;
    carat_status st;
} reply;

static bool keep_token(void *user, const carat_event *ev)
{
    reply *r = user;
    if (ev->kind == CARAT_EV_TOKEN && r->n < ANSWER)
        r->id[r->n++] = ev->id;
    return true;
}

static void keep_end(void *user, carat_status st, const carat_error *e, const carat_timings *t)
{
    reply *r = user;
    (void)e;
    r->st = st;
    r->t = *t;
}

/* Two models from one file: without a drafter, and with lookup, whose drafts scripts replace. */
typedef struct rounds_rig {
    rig *g;
    const char *name, *type;
    fidelity f;
    carat_model *plain, *fast;
    carat_session_options so;
    int32_t depth[JOBS][DEPTHS];
    carat_script script[JOBS];
    reply want[JOBS];
} rounds_rig;

static carat_generate_options options_of(const rounds_rig *x, int job)
{
    carat_generate_options o = {.max_tokens = ANSWER};
    carat_sampling_default(x->plain, &o.sampling);
    o.sampling.temperature = job % 2 ? 1 : 0;
    o.sampling.seed = (uint32_t)job;
    o.sampling.repeat_penalty = job % 4 == 3 ? 1.2f : 1;
    o.sampling.ignore_eog = true;
    return o;
}

/* Prompts of many lengths. */
static int64_t prompt_of(const rounds_rig *x, int job)
{
    int64_t most = x->f.n_tokens < CTX - ANSWER ? x->f.n_tokens : CTX - ANSWER;
    return 1 + (int64_t)job * (most - 1) / JOBS;
}

static carat_status answer_plainly(rounds_rig *x, carat_error *e)
{
    carat_session *s;
    carat_status st = carat_session_open(x->plain, &x->so, &s, e);
    for (int i = 0; i < JOBS && !st; i++) {
        const carat_generate_options o = options_of(x, i);
        x->want[i] = (reply){0};
        st = carat_generate(s, x->f.tokens, prompt_of(x, i), &o, keep_token, &x->want[i], NULL, e);
        for (int k = 0; k < DEPTHS; k++)
            x->depth[i][k] = (int32_t)rng_below(&x->g->rng, 17);
        x->script[i] = (carat_script){.answer = x->want[i].id,
                                      .n_answer = x->want[i].n,
                                      .accept = x->depth[i],
                                      .n_accept = DEPTHS,
                                      .rank = i % 3};
        carat_reset(s);
    }
    carat_session_close(s);
    return st;
}

static int differ(const reply *got, const reply *want)
{
    int n = got->n != want->n;
    for (int32_t i = 0; i < got->n && i < want->n; i++)
        n += got->id[i] != want->id[i];
    return n + (got->st != CARAT_OK);
}

static void draft_so(rounds_rig *x, carat_generate_options *o, int job, int32_t width, bool tree)
{
    o->script = &x->script[job];
    o->speculation =
        (carat_speculation){.n_max = width, .tree_max = tree ? 2 * width : -1, .fixed = true};
}

static void alone(rounds_rig *x)
{
    carat_session *s;
    carat_error e = {0};
    int n_differ = 0;
    int64_t n_rounds = 0;
    x->so.draft_max = x->so.draft_tree = 32;
    carat_status st = carat_session_open(x->fast, &x->so, &s, &e);
    for (int i = 0; i < JOBS && !st; i++)
        for (int32_t width = 1; width <= 16 && !st; width += 1 + i % 5) {
            carat_generate_options o = options_of(x, i);
            reply got = {0};
            draft_so(x, &o, i, width, width % 2);
            carat_reset(s);
            st = carat_generate(s, x->f.tokens, prompt_of(x, i), &o, keep_token, &got, &got.t, &e);
            n_differ += differ(&got, &x->want[i]);
            n_rounds += got.t.n_rounds;
        }
    if (st || !n_rounds)
        failed(x->g, "rounds", st ? e.text : "nothing was drafted");
    else
        verdict(x->g, "rounds", text("%-8s %-5s alone: tokens that differ", x->name, x->type),
                n_differ, 0);
    carat_session_close(s);
}

/* Jobs come one by one, so that prompts are computed between the rounds of others. */
static void together(rounds_rig *x, bool tree)
{
    carat_batch *b;
    carat_error e = {0};
    reply got[JOBS] = {{.n = 0}};
    const carat_batch_options bo = {.session = x->so, .n_slots = JOBS};
    int n_differ = 0;
    carat_status st = carat_batch_open(x->fast, &bo, &b, &e);
    for (int i = 0; i < JOBS && !st; i++) {
        carat_generate_options o = options_of(x, i);
        draft_so(x, &o, i, 1 + i, tree);
        const carat_job j = {.ids = x->f.tokens,
                             .n = prompt_of(x, i),
                             .opt = &o,
                             .fn = keep_token,
                             .done = keep_end,
                             .user = &got[i]};
        st = carat_batch_submit(b, &j, NULL, NULL, &e);
        for (int k = 0; k < 3 && !st; k++)
            carat_batch_step(b);
    }
    while (!st && carat_batch_step(b))
        ;
    carat_batch_close(b);
    if (st) {
        failed(x->g, "rounds", e.text);
        return;
    }
    for (int i = 0; i < JOBS; i++)
        n_differ += differ(&got[i], &x->want[i]);
    verdict(
        x->g, "rounds",
        text("%-8s %-5s eight %s: tokens that differ", x->name, x->type, tree ? "trees" : "chains"),
        n_differ, 0);
}

static void check_type(rounds_rig *x)
{
    carat_error e = {0};
    x->so =
        (carat_session_options){.n_ctx = CTX, .chunk = 40, .checkpoint_mb = -1, .kv_k = x->type};
    carat_status st = answer_plainly(x, &e);
    if (st == CARAT_E_UNSUPPORTED)
        return; /* heads that are no multiple of the format's block */
    if (st) {
        failed(x->g, "rounds", e.text);
        return;
    }
    alone(x);
    together(x, false);
    together(x, true);
}

void check_rounds(rig *g)
{
    static const char *const types[] = {"f16", "q8_0", "tq3_0"};
    for (const char *const *name = fidelity_names; *name; name++) {
        if (!my_turn(g, "rounds"))
            continue;
        rounds_rig x = {.g = g, .name = *name};
        carat_error e = {0};
        fidelity_open(&x.f, *name);
        const char *path = fidelity_write(&x.f, NULL);
        const carat_model_options plain = {.device = "cuda"},
                                  fast = {.device = "cuda", .draft = "lookup"};
        if (carat_model_open(path, &plain, &x.plain, &e) ||
            carat_model_open(path, &fast, &x.fast, &e))
            failed(g, "rounds", e.text);
        for (int i = 0; i < (g->quick ? 1 : 3) && x.plain && x.fast; i++) {
            x.type = types[i];
            check_type(&x);
        }
        carat_model_close(x.fast);
        carat_model_close(x.plain);
        unlink(path);
        fidelity_close(&x.f);
    }
}
