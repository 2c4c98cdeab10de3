/* check_draft.c - DFlash drafters on the CUDA device against the CPU reference: what they draft for
 * two timelines, from prompts and from single rows, in plain and in replayed passes.
 */
#include "tests/cuda/check_int.h"
#include "tests/dflash_file.h"
#include "tests/rig_model.h"
#include "backend/cuda/cuda_int.h"
#include "base/mem.h"
#include "spec/drafter.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

enum {
    PROMPT = 80,
    ROUNDS = 6,
    SEQS = 2,
    SLOTS = 7,
    RANKS = 4,
    N_CTX = 160,
    WIDE = DF_FEATURES * DF_EMBD
};

/* What a run drafts: of every round and timeline. */
typedef struct drafts {
    proposal p[ROUNDS][SEQS];
} drafts;

typedef struct draft_run {
    model target;
    draft_model *m;
    drafter *d;
    draft_state *s[SEQS];
    device *dev;
    int64_t n[SEQS];
    int32_t id[N_CTX];
} draft_run;

static status open_model(model *m, const char *path, device *dev, err *e)
{
    gguf f;
    status st = gguf_open(&f, path, true, NULL, NULL, e);
    st = st ? st : model_bind(m, &f, e);
    return st ? st : model_load(m, dev, NULL, NULL, e);
}

static status open_run(draft_run *r, device *dev, const char *target, const char *draft, err *e)
{
    gguf f;
    status st;
    *r = (draft_run){.dev = dev};
    for (int32_t i = 0; i < N_CTX; i++)
        r->id[i] = (i * 29 + i / 7) % DF_VOCAB;
    if ((st = open_model(&r->target, target, dev, e)) ||
        (st = gguf_open(&f, draft, true, NULL, NULL, e)) ||
        (st = draft_model_open(&draft_dflash, &r->target, &f, &r->m, e)) ||
        (st = model_load(&r->m->core, dev, NULL, NULL, e)))
        return st;
    const draft_sizes z = {.dev = dev,
                           .n_ctx = N_CTX,
                           .rows_max = PROMPT,
                           .outs_max = PROMPT,
                           .n_seqs = SEQS,
                           .n_slots = SLOTS};
    st = draft_dflash.open(r->m, &z, &r->d, e);
    for (int i = 0; i < SEQS && !st; i++)
        st = draft_dflash.state_open(r->d, &r->s[i], e);
    return st;
}

static void close_run(draft_run *r)
{
    for (int i = 0; r->d && i < SEQS; i++)
        draft_dflash.state_close(r->d, r->s[i]);
    draft_dflash.close(r->d);
    draft_model_close(r->m);
    model_free(&r->target);
}

/* The next n[s] rows of each timeline, in one pass. features: [N_CTX][WIDE], shifted by timeline.
 */
static status absorb(draft_run *r, const float *features, const int32_t *n, err *e)
{
    draft_kept kept[SEQS];
    int32_t row[SEQS][PROMPT], at = 0;
    for (int32_t s = 0; s < SEQS; s++) {
        for (int32_t i = 0; i < n[s]; i++, at++) {
            row[s][i] = at;
            r->dev->upload(r->dev, mat_row(r->d->taps->at[0].to, at),
                           features + (size_t)(r->n[s] + i + 5 * s) * WIDE,
                           WIDE * sizeof *features);
        }
        kept[s] = (draft_kept){
            .s = r->s[s], .id = r->id, .n_past = r->n[s], .n = n[s], .row = row[s], .norm_row = -1};
        r->n[s] += n[s];
    }
    return draft_dflash.absorb(r->d, kept, SEQS, e);
}

static status propose(draft_run *r, proposal *p, err *e)
{
    draft_ask ask[SEQS];
    for (int32_t s = 0; s < SEQS; s++)
        ask[s] = (draft_ask){.s = r->s[s],
                             .id = r->id,
                             .n = r->n[s] + 1,
                             .n_slots = SLOTS,
                             .n_ranks = RANKS,
                             .out = &p[s]};
    return draft_dflash.propose(r->d, ask, SEQS, e);
}

static bool run_drafter(device *dev, const char *target, const char *draft, const float *features,
                        drafts *out, err *e)
{
    draft_run r;
    const int32_t prompt[SEQS] = {PROMPT, 0}, other[SEQS] = {0, 30};
    status st = open_run(&r, dev, target, draft, e);
    memset(out, 0, sizeof *out);
    st = st ? st : absorb(&r, features, prompt, e);
    st = st ? st : absorb(&r, features, other, e);
    for (int32_t i = 0; i < ROUNDS && !st; i++) {
        const int32_t one[SEQS] = {1 + i % 2, 2}; /* shapes that come again are replayed */
        st = absorb(&r, features, one, e);
        st = st ? st : propose(&r, out->p[i], e);
    }
    close_run(&r);
    return !st;
}

/* The largest difference of the logarithms of probabilities of the best n_ranks tokens, rank by
 * rank; tokens may differ where two are alike. */
static double distance(const drafts *a, const drafts *b, int32_t n_ranks, int32_t *n_other)
{
    double far = 0;
    *n_other = 0;
    for (int32_t i = 0; i < ROUNDS; i++)
        for (int32_t s = 0; s < SEQS; s++) {
            const proposal *p = &a->p[i][s], *q = &b->p[i][s];
            if (p->n_slots != SLOTS || q->n_slots != SLOTS)
                return NAN;
            for (int32_t k = 0; k < SLOTS; k++) {
                bool same = p->id[k][0] == q->id[k][0];
                if (!same && p->logp[k][0] - p->logp[k][1] < 0.05f)
                    break; /* later slots of a chain may follow from it */
                *n_other += !same;
                for (int32_t j = 0; j < n_ranks; j++) {
                    double d = fabs((double)p->logp[k][j] - (double)q->logp[k][j]);
                    far = d <= far ? far : d;
                }
            }
        }
    return far;
}

/* A file's drafts on the GPU against the reference, and recorded passes against others. int8: a CPU
 * that rounds activations too: the bound is twice its error. NULL: nothing is rounded. */
static void check_kind(rig *g, device *int8, const char *name, const char *draft, int32_t n_ranks,
                       const char *target, const float *features, drafts *want)
{
    cuda_device *c = g->gpu->self;
    bool no_graphs = c->no_graphs;
    err e = {0};
    int32_t n_other;
    double bound = 5e-3;
    bool ok = run_drafter(g->ref, target, draft, features, &want[0], &e);
    if (int8) {
        ok = ok && run_drafter(int8, target, draft, features, &want[1], &e);
        bound = 2 * distance(&want[0], &want[1], n_ranks, &n_other);
    }
    c->no_graphs = true;
    ok = ok && run_drafter(g->gpu, target, draft, features, &want[1], &e);
    c->no_graphs = no_graphs;
    ok = ok && run_drafter(g->gpu, target, draft, features, &want[2], &e);
    if (!ok) {
        failed(g, "draft", e.text);
        return;
    }
    verdict(g, "draft", text("%s: probabilities", name),
            distance(&want[0], &want[1], n_ranks, &n_other), bound);
    verdict(g, "draft", text("%s: other tokens", name), n_other, 0);
    verdict(g, "draft", text("%s: replayed", name), memcmp(&want[1], &want[2], sizeof *want) != 0,
            0);
}

/* With weights in f32 the reference has the same arithmetic but for the order of sums. With blocks
 * the GPU rounds activations, to int8 or, of prompts, to bf16. A trained confidence takes the place
 * of the best token's probability p, and the others share what it leaves in proportion to their
 * parts of 1 - p. So their errors are divided by 1 - p, and only the best rank is compared. */
void check_drafts(rig *g)
{
    static const struct {
        const char *name;
        df_options o;
        int32_t n_ranks;
    } kinds[] = {{"f32", {0}, RANKS},
                 {"q8_0", {.type = NUM_Q8_0}, RANKS},
                 {"laguna f32", {.laguna = true}, RANKS},
                 {"dspark f32", {.rank = 16, .anchor_first = true}, RANKS},
                 {"dspark f32, confidence", {.rank = 16, .conf = true, .anchor_first = true}, 1}};
    if (!my_turn(g, "draft"))
        return;
    float *features = draw(g, (size_t)N_CTX * WIDE, 1.0);
    drafts *want = mem_calloc(3, sizeof *want);
    const char *target = rig_model_of(128, 256, RIG_QK_NORM);
    device *int8 = NULL;
    err e = {0};
    if (!features || !want ||
        device_open_cpu(&int8, &(cpu_options){.n_threads = 1, .isa = "portable"}, &e))
        failed(g, "draft", e.text);
    for (size_t i = 0; int8 && i < sizeof kinds / sizeof *kinds; i++) {
        const char *draft = df_write(&kinds[i].o, "check-draft.gguf");
        check_kind(g, kinds[i].o.type ? int8 : NULL, kinds[i].name, draft, kinds[i].n_ranks, target,
                   features, want);
        unlink(draft);
    }
    unlink(target);
    device_close(int8);
    mem_free(want);
    mem_free(features);
}
