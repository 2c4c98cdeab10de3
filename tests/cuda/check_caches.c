/* check_caches.c - a cache on the CUDA device must not change a model's logits, in any format: the
 * checks of tests/kv_oracle_test.c and of snapshots, with heads of 256 and 512, for the fast
 * kernels.
 *
 * The oracle is token by token on the same device in the same format. Passes of few rows give its
 * bits. Passes of many rows take other kernels, whose sums have another order and whose
 * probabilities are rounded relative to another maximum. A value near the edge between two codes
 * may then fall to the other side, and two correct sessions drift apart by the format's steps. So
 * beside long passes there are short ones that read the long ones' keys and values (kv_codes.h):
 * the two may differ by the arithmetic of one pass only, in every format. Every store begins full
 * of NaN, and every cache takes the pages of a larger pool in an order of its own.
 */
#include "tests/cuda/check_int.h"
#include "tests/rig_model.h"
#include "backend/cuda/cuda_int.h"
#include "kv/snapshot.h"
#include "model/model.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { LONG = 8 * RIG_WINDOW + 5, CTX = LONG + 20, FEW = 32, DRAFTS = 16 };

static const kv_words formats[] = {
    {.k = "f16"},
    {.k = "bf16"},
    {.k = "q8_0"},
    {.k = "q5_1"},
    {.k = "q5_0"},
    {.k = "q4_1"},
    {.k = "q4_0"},
    {.k = "q4_0+rot"},
    {.k = "iq4_nl"},
    {.k = "tq3_0"},
    {.k = "q8_0", .v = "tq3_0"},
    {.layers = "global=q4_0+rot,swa=q8_0"},
    {.k = "q8_0", .single = "on"},
    {.k = "q4_0+rot", .single = "on"},
    {.k = "f16", .single = "on"},
    {.k = "tq3_0", .single = "on"},
};
enum { FORMATS = sizeof formats / sizeof *formats };

/* A cache in one format, and what its passes need. */
typedef struct line {
    rig *g;
    const model *m;
    kv_layout l;
    kv_cache c;
    kv_batch b;
} line;

static void line_close(line *n)
{
    kv_batch_free(&n->b);
    if (n->c.layout)
        kv_close(&n->c);
    kv_layout_free(&n->l);
}

static void poison(line *n)
{
    char nan[4096];
    memset(nan, 0xff, sizeof nan);
    for (int32_t i = 0; i < n->l.n; i++) {
        const kv_view *v = &n->l.view[i];
        size_t rows = (size_t)v->n_head_kv * (size_t)v->n_slots;
        for (int kv = 0; kv < 2; kv++) {
            char *at = kv ? n->c.base[i].v : n->c.base[i].k;
            size_t left = rows * (kv ? v->v_row_bytes : v->k_row_bytes);
            for (size_t part; left; left -= part, at += part) {
                part = left < sizeof nan ? left : sizeof nan;
                n->g->gpu->upload(n->g->gpu, at, nan, part);
            }
        }
    }
}

/* Free pages of the cache's pool in random order. */
static void shuffle(line *n)
{
    pages *p = &n->c.pool->pages;
    for (int32_t i = p->n_free - 1; i > 0; i--) {
        int32_t k = (int32_t)rng_below(&n->g->rng, (uint64_t)i + 1), was = p->free[i];
        p->free[i] = p->free[k];
        p->free[k] = was;
    }
}

static status line_open(line *n, rig *g, const model *m, const kv_words *w, int32_t rows, err *e)
{
    status st;
    *n = (line){.g = g, .m = m};
    kv_want_layout want = {
        .spec = m->kv, .n = m->n_kv, .n_ctx = CTX, .rows_max = rows, .dev = {g->gpu}};
    want.n_pool = 2 * CTX;
    if ((st = kv_choice_parse(&want.choice, w, e)) || (st = kv_layout_init(&n->l, &want, e)) ||
        (st = kv_open(&n->c, g->gpu, &n->l, e)) || (st = kv_batch_init(&n->b, rows, 1, &n->l, e)))
        return st;
    shuffle(n);
    poison(n);
    return OK;
}

/* Runs n rows after the committed ones, all wanted, and commits the first `keep`. */
static status go_on(line *n, const int32_t *ids, int32_t rows, int32_t keep, float *logits, err *e)
{
    pass p;
    status st;
    kv_batch_clear(&n->b);
    if ((st = kv_reserve(&n->c, rows, e)) ||
        (st = kv_batch_add(&n->b, &n->c, ids, rows, NULL, KV_WANT_ALL, e)))
        return st;
    n->b.st.prompt = of_prompt(rows);
    pass_begin(&p, n->g->gpu, &n->b.st, n->g->gpu_scratch, n->g->scratch_bytes);
    mat y = model_forward(&p, n->m, &n->l);
    if (pass_failed(&p))
        return err_set(e, p.e.status, "%s", p.e.text);
    n->g->gpu->download(n->g->gpu, logits, y.at, (size_t)rows * RIG_VOCAB * sizeof *logits);
    kv_commit(&n->c, keep);
    return OK;
}

/* Rows whose bits differ; for longer passes, the largest distance of a logit. */
static double compare(const float *got, const float *want, int32_t rows, bool bits)
{
    double far = 0;
    for (int32_t i = 0; i < rows; i++) {
        const float *a = got + (size_t)i * RIG_VOCAB, *b = want + (size_t)i * RIG_VOCAB;
        far += bits && memcmp(a, b, RIG_VOCAB * sizeof *a) != 0;
        for (int32_t k = 0; k < RIG_VOCAB && !bits; k++) {
            double d = fabs((double)a[k] - b[k]);
            far = isnan(far) || d <= far ? far : d; /* a NaN stays */
        }
    }
    return far;
}

/* What a check of one format needs. */
typedef struct work {
    const kv_words *w;
    const char *name;
    const int32_t *ids;
    const float *want; /* token by token */
    float *got;        /* [LONG, RIG_VOCAB], as want */
} work;

/* The whole text in chunks. kept: receives the stored bytes, for a session that follows; or NULL.
 */
static status go_through(line *n, const work *k, int32_t chunk, float *logits, codes *kept, err *e)
{
    status st = OK;
    for (int32_t at = 0; at < LONG && !st; at += chunk) {
        int32_t rows = LONG - at < chunk ? LONG - at : chunk;
        st = go_on(n, k->ids + at, rows, rows, logits + (size_t)at * RIG_VOCAB, e);
        if (!st && kept)
            st = codes_take(kept, n->g->gpu, &n->c, at, rows, e);
    }
    return st;
}

/* Queries and probabilities are f16 in both sessions, each off by at most 2^-11 of itself, and are
 * summed in different orders; elements of stores other than f16 are rounded once more. The logits
 * may differ by as much: their root mean square by 2^-11 or 2^-10 of itself, a single one by the
 * same share of the largest. */
static void compare_followed(const line *n, const work *k, const char *shape, const float *want)
{
    bool plain = k->w->k && !k->w->v && !strcmp(k->w->k, "f16");
    double unit = plain ? 0x1p-11 : 0x1p-10, diff = 0, sum = 0, top = 0;
    for (size_t i = 0; i < (size_t)LONG * RIG_VOCAB; i++) {
        diff += ((double)k->got[i] - want[i]) * ((double)k->got[i] - want[i]);
        sum += (double)want[i] * want[i];
        top = fmax(top, fabs((double)want[i]));
    }
    verdict(n->g, "caches", text("%s: logits apart, at most", shape),
            compare(k->got, want, LONG, false), unit * top);
    verdict(n->g, "caches", text("%s: root mean square", shape), sqrt(diff / (LONG * RIG_VOCAB)),
            unit * sqrt(sum / (LONG * RIG_VOCAB)));
}

/* Passes of FEW rows that follow n, which has run the text and stored `kept`. */
static status check_followed(const line *n, const work *k, const char *shape, const codes *kept,
                             bool bits, err *e)
{
    static float want[LONG * RIG_VOCAB];
    follower f;
    line of;
    status st = line_open(&of, n->g, n->m, k->w, FEW, e);
    if (!st) {
        follow_begin(&f, n->g, kept);
        st = go_through(&of, k, FEW, want, NULL, e);
        follow_end(&f);
    }
    if (!st && bits) /* a session that follows its equal does not differ: this checks the check */
        verdict(n->g, "caches", text("%s, followed: rows and codes that differ", shape),
                compare(k->got, want, LONG, true) + (double)f.codes.n_other, 0);
    else if (!st) {
        compare_followed(n, k, shape, want);
        follow_verdict(&f, "caches", shape);
    }
    line_close(&of);
    return st;
}

static status check_chunk(const line *of, const work *k, int32_t chunk, err *e)
{
    cuda_device *c = of->g->gpu->self;
    size_t usual = c->slice_bytes;
    bool bits = chunk <= FEW;
    char shape[128];
    codes kept = {0};
    line n; /* its rings are as small as this chunk allows */
    status st = line_open(&n, of->g, of->m, k->w, chunk, e);
    if (!st && chunk >= FEW)
        st = codes_open(&kept, &n.l, LONG, e);
    if (chunk == LONG) /* the shortest slices, or there would be only one */
        c->slice_bytes = 1;
    if (!st)
        st = go_through(&n, k, chunk, k->got, chunk >= FEW ? &kept : NULL, e);
    c->slice_bytes = usual;
    snprintf(shape, sizeof shape, "%s chunks of %d", k->name, chunk);
    if (!st && chunk >= FEW)
        st = check_followed(&n, k, shape, &kept, bits, e);
    strcat(shape, ": rows that differ");
    if (!st && bits)
        verdict(of->g, "caches", shape, compare(k->got, k->want, LONG, true), 0);
    codes_close(&kept);
    line_close(&n);
    return st;
}

static status check_chunks(const line *of, const work *k, err *e)
{
    static const int32_t chunks[] = {5,   RIG_WINDOW - 1, RIG_WINDOW, RIG_WINDOW + 1, FEW, 40, 64,
                                     LONG};
    status st = OK;
    for (size_t i = 0; i < sizeof chunks / sizeof *chunks && !st; i++)
        st = check_chunk(of, k, chunks[i], e);
    return st;
}

/* Drafts of up to 15 tokens, of which a random number is right: rejected rows leave no trace. */
static status check_verify(line *n, const work *k, err *e)
{
    double differ = 0;
    status st;
    char shape[128];
    kv_reset(&n->c);
    poison(n);
    for (int32_t at = 0; at < LONG;) {
        int32_t batch[DRAFTS], rows = 1 + (int32_t)rng_below(&n->g->rng, DRAFTS);
        rows = rows < LONG - at ? rows : LONG - at;
        int32_t good = (int32_t)rng_below(&n->g->rng, (uint64_t)rows + 1);
        for (int32_t i = 0; i < rows; i++)
            batch[i] = i < good ? k->ids[at + i] : (k->ids[at + i] + 1 + i) % RIG_VOCAB;
        if ((st = go_on(n, batch, rows, good, k->got, e)))
            return st;
        differ += compare(k->got, k->want + (size_t)at * RIG_VOCAB, good, true);
        at += good;
    }
    snprintf(shape, sizeof shape, "%s verified with rejections: rows that differ", k->name);
    verdict(n->g, "caches", shape, differ, 0);
    return OK;
}

/* Saved before and after the ring's first wrap, loaded into a cache that held something else. */
static status check_snapshots(line *n, const work *k, err *e)
{
    static const int32_t at[] = {1, RIG_WINDOW - 1, RIG_WINDOW + 1, 5 * RIG_WINDOW + 2};
    double differ = 0;
    status st = OK;
    char shape[128];
    line other;
    if ((st = line_open(&other, n->g, n->m, k->w, FEW, e)))
        goto out;
    for (size_t i = 0; i < sizeof at / sizeof *at && !st; i++) {
        kv_snapshot *s = NULL;
        kv_reset(&n->c);
        kv_reset(&other.c);
        if ((st = go_on(&other, k->ids + 7, FEW, FEW, k->got, e)))
            break;
        for (int32_t t = 0; t < at[i] && !st; t++)
            st = go_on(n, k->ids + t, 1, 1, k->got, e);
        if (st || (st = kv_snapshot_new(
                       &(kv_snapshot_want){.layout = &n->l, .ids = k->ids, .n = at[i]}, &s, e)))
            break;
        kv_snapshot_fill(s, &n->c);
        if (!kv_snapshot_fits(s, &other.l))
            st = err_set(e, E_ARG, "a snapshot does not fit its own layout");
        else
            st = kv_snapshot_load(s, &other.c, e);
        if (!st && !(st = go_on(&other, k->ids + at[i], FEW, FEW, k->got, e)))
            differ += compare(k->got, k->want + (size_t)at[i] * RIG_VOCAB, FEW, true);
        kv_snapshot_drop(s);
    }
    snprintf(shape, sizeof shape, "%s snapshots: rows that differ", k->name);
    if (!st)
        verdict(n->g, "caches", shape, differ, 0);
out:
    line_close(&other);
    return st;
}

static const char *name_of(const rig *g, const kv_words *w)
{
    static char name[64];
    const cuda_device *c = g->gpu->self;
    snprintf(name, sizeof name, "caches %s%s%s%s%s", w->k ? w->k : w->layers, w->v ? "/" : "",
             w->v ? w->v : "", w->single ? " one" : "",
             c->can_hopper && !c->hopper ? " flash" : "");
    return name;
}

static status check_format(rig *g, const model *m, const kv_words *w, const int32_t *ids, err *e)
{
    static float want[LONG * RIG_VOCAB], got[LONG * RIG_VOCAB];
    work k = {w, strchr(name_of(g, w), ' ') + 1, ids, want, got};
    line n;
    status st = line_open(&n, g, m, w, FEW, e);
    if (!st && !(st = go_through(&n, &k, 1, want, NULL, e)) && !(st = check_chunks(&n, &k, e)) &&
        !(st = check_verify(&n, &k, e)))
        st = check_snapshots(&n, &k, e);
    line_close(&n);
    return st;
}

void check_caches(rig *g)
{
    int32_t ids[LONG];
    uint64_t rng = 7; /* the same text, whatever checks ran before */
    gguf file = {0};
    model m = {0};
    err e = {0};
    bool any = false;
    for (int i = 0; i < FORMATS; i++)
        any = any || wanted(g, name_of(g, &formats[i]));
    if (!any)
        return;
    for (int i = 0; i < LONG; i++)
        ids[i] = (int32_t)rng_below(&rng, RIG_VOCAB);
    const char *path = rig_model_of(256, 512, RIG_QK_NORM);
    if (gguf_open(&file, path, true, NULL, NULL, &e) || model_bind(&m, &file, &e) ||
        model_load(&m, g->gpu, NULL, NULL, &e))
        failed(g, "caches", e.text);
    for (int i = 0; i < FORMATS && !e.status; i++)
        if ((!g->quick || i % 4 == 2 || !wanted(g, "caches")) &&
            my_turn(g, name_of(g, &formats[i])) && check_format(g, &m, &formats[i], ids, &e))
            failed(g, "caches", e.text);
    cuda_device *c = g->gpu->self;
    bool usual = c->hopper;
    c->hopper = false; /* formats[0]: f16, with the kernels of other GPUs */
    if (usual && my_turn(g, name_of(g, &formats[0])) && !e.status &&
        check_format(g, &m, &formats[0], ids, &e))
        failed(g, "caches", e.text);
    c->hopper = usual;
    model_free(&m);
    unlink(path);
}
