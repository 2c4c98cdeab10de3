/* check_mtp.c - drafts of an MTP assistant on the CUDA device, against their arithmetic written out
 * over the device's own keys (tests/mtp_rig.c): several formats, a wrapped ring, one stream, heads
 * of 256 and 512; alone, together, and recorded. Stores begin full of NaN.
 *
 * How far the device may be from the plain form is not one number: its kernels round to f16, and
 * how much that changes a logarithm depends on the scores at hand. So the plain form is computed
 * ROUNDINGS times more with that rounding. The device may be as far from the plain form as these
 * are, by the root mean square of all logarithms, and a little farther; stores in f32 have no
 * rounding. The farthest logarithm is compared with the roundings of its own step: keys of few bits
 * make scores large, and where two large scores are nearly equal, rounding changes all logarithms
 * of a step many times more than those of other steps.
 */
#include "tests/cuda/check_int.h"
#include "tests/mtp_rig.h"
#include "base/mem.h"
#include "spec/drafter.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const double CLOSE = 0.02; /* scores of clusters, between which rounding may decide */
static const double LOOSE = 2;    /* of the distance that rounding to f16 makes; of f32: TIGHT */
static const double TIGHT = 0.02;
static const double FARTHEST = 8; /* the farthest logarithm, by the roundings of its step */
static const double CALM = 0.25;  /* a step counts at least as this part of the average one */
enum { STEPS = 4, RANKS = 8, SEQS = 3, ROWS = 6, CTX = 96, ROUNDINGS = 4, STEPS_MAX = 256 };

static const kv_words formats[] = {
    {.k = "f16", .single = "off"},
    {.k = "f16", .single = "on"},
    {.k = "q8_0", .single = "off"},
    {.k = "q8_0", .single = "on"},
    {.k = "q4_0+rot"},
    {.k = "tq3_0"},
    {.k = "bf16"},
    {.k = "f32"},
};
enum { FORMATS = sizeof formats / sizeof *formats };

/* Timelines of one layout on the GPU, and their drafter. */
typedef struct lines {
    rig *g;
    const model *m;
    const draft_model *draft;
    kv_layout l;
    kv_batch b;
    drafter *d;
    kv_cache c[SEQS];
    draft_state *s[SEQS];
    int32_t id[SEQS][CTX];
    float hidden[SEQS][MTP_RIG_TARGET_WIDTH]; /* of each timeline's last row */
} lines;

static void poison(lines *n, kv_cache *c)
{
    char nan[4096];
    memset(nan, 0xff, sizeof nan);
    for (int32_t i = 0; i < n->l.n; i++) {
        const kv_view *v = &n->l.view[i];
        size_t rows = (size_t)v->n_head_kv * (size_t)v->n_slots;
        for (int kv = 0; kv < 2; kv++) {
            char *at = kv ? c->base[i].v : c->base[i].k;
            size_t left = at ? rows * (kv ? v->v_row_bytes : v->k_row_bytes) : 0;
            for (size_t part; left; left -= part, at += part) {
                part = left < sizeof nan ? left : sizeof nan;
                n->g->gpu->upload(n->g->gpu, at, nan, part);
            }
        }
    }
}

static status lines_open(lines *n, const kv_words *w, err *e)
{
    status st;
    kv_want_layout want = {
        .spec = n->m->kv, .n = n->m->n_kv, .n_ctx = CTX, .rows_max = ROWS, .dev = {n->g->gpu}};
    if ((st = kv_choice_parse(&want.choice, w, e)) || (st = kv_layout_init(&n->l, &want, e)) ||
        (st = kv_batch_init(&n->b, ROWS, 1, &n->l, e)))
        return st;
    const draft_sizes z = {.dev = n->g->gpu,
                           .n_ctx = CTX,
                           .rows_max = ROWS,
                           .outs_max = ROWS,
                           .n_seqs = SEQS,
                           .n_slots = STEPS,
                           .target_kv = &n->l};
    if ((st = draft_mtp.open(n->draft, &z, &n->d, e)))
        return st;
    for (int i = 0; i < SEQS; i++) {
        if ((st = kv_open(&n->c[i], n->g->gpu, &n->l, e)) ||
            (st = draft_mtp.state_open(n->d, &n->s[i], e)))
            return st;
        poison(n, &n->c[i]);
        for (int32_t k = 0; k < CTX; k++)
            n->id[i][k] = (int32_t)rng_below(&n->g->rng, RIG_VOCAB);
    }
    return OK;
}

static void lines_close(lines *n)
{
    for (int i = 0; i < SEQS; i++) {
        if (n->d)
            draft_mtp.state_close(n->d, n->s[i]);
        if (n->c[i].layout)
            kv_close(&n->c[i]);
    }
    draft_mtp.close(n->d);
    kv_batch_free(&n->b);
    kv_layout_free(&n->l);
}

/* ROWS rows of timeline i, of which the first `keep` are kept. */
static status advance(lines *n, int i, int32_t keep, err *e)
{
    const int32_t row[ROWS] = {0, 1, 2, 3, 4, 5};
    kv_cache *c = &n->c[i];
    device *dev = n->g->gpu;
    pass p;
    status st;
    const draft_kept k = {.s = n->s[i],
                          .target = c,
                          .id = n->id[i],
                          .n_past = c->n_past,
                          .n = keep,
                          .row = row,
                          .norm_row = keep - 1};
    kv_batch_clear(&n->b);
    if ((st = kv_reserve(c, ROWS, e)) ||
        (st = kv_batch_add(&n->b, c, n->id[i] + c->n_past, ROWS, NULL, KV_WANT_ALL, e)))
        return st;
    pass_begin(&p, dev, &n->b.st, n->g->gpu_scratch, n->g->scratch_bytes);
    p.taps = n->d->taps;
    model_forward(&p, n->m, &n->l);
    if (pass_failed(&p))
        return err_set(e, p.e.status, "%s", p.e.text);
    dev->download(dev, n->hidden[i], mat_row(n->d->taps->at[0].to, keep - 1), sizeof n->hidden[i]);
    kv_commit(c, keep);
    return draft_mtp.absorb(n->d, &k, 1, e);
}

static draft_ask ask_of(const lines *n, int i, proposal *out)
{
    return (draft_ask){.s = n->s[i],
                       .target = &n->c[i],
                       .id = n->id[i],
                       .n = n->c[i].n_past + 1,
                       .n_slots = STEPS,
                       .n_ranks = RANKS,
                       .out = out};
}

/* How far logarithms are from the plain form's: sums of squares, and the farthest. */
typedef struct distance {
    double device, halves; /* the device; the plain form rounded to f16, on average */
    /* Of each step: the device's farthest, and the mean square of the roundings. A rank that is
     * none of the best counts by the logarithm that it misses. */
    struct {
        double farthest, halves;
    } step[STEPS_MAX];
    int n, n_steps;
} distance;

/* What is missed where rank r is not the best of those that the ranks before it left. */
static double missed(const int32_t *id, int r, const double *logp)
{
    double best = -INFINITY;
    for (int v = 0; v < RIG_VOCAB; v++) {
        bool taken = false;
        for (int k = 0; k < r; k++)
            taken |= id[k] == v;
        best = !taken && logp[v] > best ? logp[v] : best;
    }
    return best - logp[id[r]];
}

/* Adds a proposal's. Steps count up to the first one in which rounding may choose other clusters.
 */
static void measure(const lines *n, const gguf *file, int i, const proposal *o, distance *d)
{
    enum { FORMS = 1 + ROUNDINGS };
    double h[FORMS][MTP_RIG_TARGET_WIDTH], logp[FORMS][RIG_VOCAB];
    int64_t c = n->c[i].n_past;
    int32_t token = n->id[i][c];
    for (int k = 0; k < MTP_RIG_TARGET_WIDTH; k++)
        for (int f = 0; f < FORMS; f++)
            h[f][k] = n->hidden[i][k];
    for (int s = 0; s < o->n_slots && s < STEPS && d->n_steps < STEPS_MAX; s++) {
        double margin = INFINITY, farthest = 0, halves = 0;
        for (int f = 0; f < FORMS; f++) {
            const mtp_plain p = {n->m, file, &n->c[i], f};
            margin = fmin(margin, mtp_plain_step(&p, c, token, h[f], logp[f]));
            mtp_plain_log_softmax(logp[f], RIG_VOCAB);
        }
        if (margin < CLOSE)
            return;
        for (int r = 0; r < RANKS; r++) {
            double want = logp[0][o->id[s][r]], off = (double)o->logp[s][r] - want;
            for (int f = 1; f < FORMS; f++) {
                double half = logp[f][o->id[s][r]] - want;
                halves += half * half / ROUNDINGS;
            }
            d->device += off * off;
            farthest = fmax(farthest, fmax(fabs(off), missed(o->id[s], r, logp[0])));
        }
        d->halves += halves;
        d->n += RANKS;
        d->step[d->n_steps].farthest = farthest;
        d->step[d->n_steps++].halves = halves / RANKS;
        token = o->id[s][0];
    }
}

/* The farthest logarithm of all steps, by the roundings of its step. */
static double farthest(const distance *d)
{
    double most = 0, least = CALM * CALM * d->halves / d->n;
    for (int i = 0; i < d->n_steps; i++) {
        double by = d->step[i].farthest / sqrt(fmax(d->step[i].halves, least));
        most = by <= most ? most : by; /* NaN stays */
    }
    return most;
}

static bool same(const proposal *a, const proposal *b)
{
    bool is = a->n_slots == b->n_slots && a->n_ranks == b->n_ranks;
    for (int32_t i = 0; is && i < a->n_slots; i++)
        is = !memcmp(a->id[i], b->id[i], (size_t)a->n_ranks * sizeof *a->id[i]) &&
             !memcmp(a->logp[i], b->logp[i], (size_t)a->n_ranks * sizeof *a->logp[i]);
    return is;
}

/* What two proposals per timeline, alone and together, showed. */
typedef struct outcome {
    distance d;
    int differ, n_short; /* n_short: proposals with slots missing */
} outcome;

static status draft_all(lines *n, const gguf *file, bool plain, outcome *o, err *e)
{
    static proposal alone[SEQS], all[SEQS];
    draft_ask a[SEQS];
    status st = OK;
    for (int i = 0; i < SEQS && !st; i++) {
        a[i] = ask_of(n, i, &alone[i]);
        st = draft_mtp.propose(n->d, &a[i], 1, e);
        a[i].out = &all[i];
    }
    if (st || (st = draft_mtp.propose(n->d, a, SEQS, e)))
        return st;
    for (int i = 0; i < SEQS; i++) {
        o->differ += !same(&alone[i], &all[i]);
        o->n_short += all[i].n_slots < STEPS;
        if (plain)
            measure(n, file, i, &all[i], &o->d);
    }
    return OK;
}

/* Past the windows, with rejected rows. Emulated kernels are slow: they draft once. */
static status check_lines(lines *n, const gguf *file, const char *name, bool f32, err *e)
{
    const int turns = n->g->quick ? 5 : 13;
    outcome o = {.differ = 0};
    status st = OK;
    for (int turn = 0; turn < turns && !st; turn++) {
        for (int i = 0; i < SEQS && !st; i++)
            if (turn % (i + 1) == 0)
                st = advance(n, i, ROWS - (turn + i) % (ROWS / 2), e);
        if (!st && (turn == turns - 1 || !n->g->quick))
            st = draft_all(n, file, turn % 4 == 0, &o, e);
    }
    if (!st) {
        double f16 = sqrt(o.d.halves / o.d.n); /* none: not a number, and refused */
        verdict(n->g, "mtp", text("%s: logarithms, of %.4f by f16", name, f16),
                sqrt(o.d.device / o.d.n) / f16, f32 ? TIGHT : LOOSE);
        verdict(n->g, "mtp", text("%s: the farthest of %d", name, o.d.n), farthest(&o.d), FARTHEST);
        verdict(n->g, "mtp", text("%s: drafts that are too short", name), o.n_short, 0);
        verdict(n->g, "mtp", text("%s: alone and together, that differ", name), o.differ, 0);
    }
    return st;
}

static status check_pair(rig *g, const model *m, const draft_model *draft, const gguf *file,
                         const char *what, err *e)
{
    status st = OK;
    for (int i = 0; i < FORMATS && !st; i += g->quick ? 3 : 1) {
        char words[128], name[160];
        if (!my_turn(g, "mtp"))
            continue;
        lines *n = mem_calloc(1, sizeof *n);
        if (!n)
            return err_memory(e, "a check", sizeof *n);
        *n = (lines){.g = g, .m = m, .draft = draft};
        snprintf(words, sizeof words, "%s%s", formats[i].k,
                 formats[i].single && !strcmp(formats[i].single, "on") ? ", one stream" : "");
        snprintf(name, sizeof name, "%s, %s", what, words);
        if (!(st = lines_open(n, &formats[i], e)))
            st = check_lines(n, file, name, !strcmp(formats[i].k, "f32"), e);
        lines_close(n);
        mem_free(n);
    }
    return st;
}

void check_mtp(rig *g)
{
    const mtp_rig_file kinds[] = {
        {.head_dim = 256, .head_dim_global = 512},
        {.name = "clusters.gguf",
         .head_dim = 256,
         .head_dim_global = 512,
         .n_clusters = 16,
         .n_top = 5},
    };
    model m = {0};
    gguf t = {0};
    err e = {0};
    status st = OK;
    if (!wanted(g, "mtp"))
        return;
    if ((st = gguf_open(&t, rig_model_of(256, 512, RIG_QK_NORM), false, NULL, NULL, &e)) ||
        (st = model_bind(&m, &t, &e)) || (st = model_load(&m, g->gpu, NULL, NULL, &e)))
        goto out;
    for (int i = 0; i < 2 && !st; i++) {
        const char *path = mtp_rig_write(&kinds[i]);
        draft_model *draft = NULL;
        gguf f = {0}, file = {0};
        if (!(st = gguf_open(&f, path, false, NULL, NULL, &e)) &&
            !(st = gguf_open(&file, path, false, NULL, NULL, &e)) &&
            !(st = draft_model_open(&draft_mtp, &m, &f, &draft, &e)) &&
            !(st = model_load(&draft->core, g->gpu, NULL, NULL, &e)))
            st = check_pair(g, &m, draft, &file, i ? "clusters" : "dense", &e);
        draft_model_close(draft);
        gguf_close(&file);
    }
out:
    if (st)
        failed(g, "mtp", e.text);
    model_free(&m);
}
