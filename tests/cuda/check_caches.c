/* check_caches.c - whatever the format, a cache on the CUDA device must not change what a model
 * says: tests/kv_oracle_test.c and the snapshots, with heads of 256 and 512, which the fast kernels
 * read.
 *
 * The oracle is token by token on the same device in the same format. Passes of up to 32 rows give
 * its bits; longer ones go through other kernels (flash.cu), whose sums have another order and
 * whose probabilities become f16 relative to another maximum. Every store begins full of NaN.
 */
#include "tests/cuda/check_int.h"
#include "tests/rig_model.h"
#include "backend/cuda/cuda_int.h"
#include "base/mem.h"
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

/* A cache in one format, and what passes over it need. */
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

static status line_open(line *n, rig *g, const model *m, const kv_words *w, int32_t rows, err *e)
{
    status st;
    *n = (line){.g = g, .m = m};
    kv_want_layout want = {
        .spec = m->kv, .n = m->n_kv, .n_ctx = CTX, .rows_max = rows, .dev = g->gpu};
    if ((st = kv_choice_parse(&want.choice, w, e)) || (st = kv_layout_init(&n->l, &want, e)) ||
        (st = kv_open(&n->c, g->gpu, &n->l, e)) || (st = kv_batch_init(&n->b, rows, 1, n->l.n, e)))
        return st;
    poison(n);
    return OK;
}

/* n rows after what is committed, all wanted; the first `keep` stay. */
static status go_on(line *n, const int32_t *ids, int32_t rows, int32_t keep, float *logits, err *e)
{
    pass p;
    status st;
    kv_batch_clear(&n->b);
    if ((st = kv_reserve(&n->c, rows, e)) ||
        (st = kv_batch_add(&n->b, &n->c, ids, rows, NULL, KV_WANT_ALL, e)))
        return st;
    pass_begin(&p, n->g->gpu, &n->b.st, n->g->gpu_scratch, n->g->scratch_bytes);
    mat y = model_forward(&p, n->m, &n->l);
    if (pass_failed(&p))
        return err_set(e, p.e.status, "%s", p.e.text);
    n->g->gpu->download(n->g->gpu, logits, y.at, (size_t)rows * RIG_VOCAB * sizeof *logits);
    kv_commit(&n->c, keep);
    return OK;
}

/* Rows whose bits differ, or, of longer passes, the largest distance of a logit. */
static double compare(const float *got, const float *want, int32_t rows, bool bits)
{
    double far = 0;
    for (int32_t i = 0; i < rows; i++) {
        const float *a = got + (size_t)i * RIG_VOCAB, *b = want + (size_t)i * RIG_VOCAB;
        far += bits && memcmp(a, b, RIG_VOCAB * sizeof *a) != 0;
        for (int32_t k = 0; k < RIG_VOCAB && !bits; k++)
            if (!(fabs((double)a[k] - b[k]) <= far))
                far = fabs((double)a[k] - b[k]);
    }
    return far;
}

/* f16 probabilities are off by 2^-12 of themselves; what that moves in a key that is stored next is
 * then rounded to the format, and where it falls to the other side of a step, logits move by that
 * step. Twice what an H200 was measured to give. */
static double bound_of(const kv_words *w)
{
    static const struct {
        const char *type;
        double most;
    } known[] = {{"f16", 0.007}, {"bf16", 0.05}, {"q8_0", 0.08}, {"q5_0", 0.5}, {"q5_1", 0.5}};
    for (size_t i = 0; w->k && !w->v && i < sizeof known / sizeof *known; i++)
        if (!strcmp(w->k, known[i].type))
            return known[i].most;
    return w->layers ? 0.2 : w->k && !strcmp(w->k, "tq3_0") ? 1.6 : 0.8;
}

static status check_chunks(const line *of, const kv_words *w, const char *name, const int32_t *ids,
                           const float *want, float *got, err *e)
{
    static const int32_t chunks[] = {5,  RIG_WINDOW - 1, RIG_WINDOW, RIG_WINDOW + 1,
                                     32, 40,             64,         LONG};
    for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
        bool bits = chunks[i] <= FEW;
        char shape[128];
        line n; /* its rings are as small as these chunks allow */
        status st = line_open(&n, of->g, of->m, w, chunks[i], e);
        for (int32_t at = 0; at < LONG && !st; at += chunks[i]) {
            int32_t rows = LONG - at < chunks[i] ? LONG - at : chunks[i];
            st = go_on(&n, ids + at, rows, rows, got + (size_t)at * RIG_VOCAB, e);
        }
        line_close(&n);
        if (st)
            return st;
        snprintf(shape, sizeof shape, "%s chunks of %d%s", name, chunks[i],
                 bits ? ": rows that differ" : "");
        verdict(of->g, "caches", shape, compare(got, want, LONG, bits), bits ? 0 : bound_of(w));
    }
    return OK;
}

/* Drafts of up to 15, a random number of them right: what is rejected leaves nothing behind. */
static status check_verify(line *n, const char *name, const int32_t *ids, const float *want,
                           float *got, err *e)
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
            batch[i] = i < good ? ids[at + i] : (ids[at + i] + 1 + i) % RIG_VOCAB;
        if ((st = go_on(n, batch, rows, good, got, e)))
            return st;
        differ += compare(got, want + (size_t)at * RIG_VOCAB, good, true);
        at += good;
    }
    snprintf(shape, sizeof shape, "%s verified with rejections: rows that differ", name);
    verdict(n->g, "caches", shape, differ, 0);
    return OK;
}

/* Saved before and after the ring's first wrap, loaded into a cache that held something else. */
static status check_snapshots(line *n, const kv_words *w, const char *name, const int32_t *ids,
                              const float *want, float *got, err *e)
{
    static const int32_t at[] = {1, RIG_WINDOW - 1, RIG_WINDOW + 1, 5 * RIG_WINDOW + 2};
    double differ = 0;
    status st = OK;
    char shape[128];
    line other;
    if ((st = line_open(&other, n->g, n->m, w, FEW, e)))
        goto out;
    for (size_t i = 0; i < sizeof at / sizeof *at && !st; i++) {
        kv_snapshot *k = NULL;
        kv_reset(&n->c);
        kv_reset(&other.c);
        if ((st = go_on(&other, ids + 7, FEW, FEW, got, e)))
            break;
        for (int32_t t = 0; t < at[i] && !st; t++)
            st = go_on(n, ids + t, 1, 1, got, e);
        if (st || (st = kv_snapshot_new(&n->l, ids, at[i], NULL, 0, &k, e)))
            break;
        kv_snapshot_fill(k, &n->c);
        if (!kv_snapshot_fits(k, &other.l))
            st = err_set(e, E_ARG, "a snapshot does not fit its own layout");
        else
            kv_snapshot_load(k, &other.c);
        if (!st && !(st = go_on(&other, ids + at[i], FEW, FEW, got, e)))
            differ += compare(got, want + (size_t)at[i] * RIG_VOCAB, FEW, true);
        kv_snapshot_drop(k);
    }
    snprintf(shape, sizeof shape, "%s snapshots: rows that differ", name);
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
             w->v ? w->v : "", w->single ? " one" : "", c->can_hopper && !c->hopper ? " flash" : "");
    return name;
}

static status check_format(rig *g, const model *m, const kv_words *w, const int32_t *ids,
                           float *want, float *got, err *e)
{
    const char *name = strchr(name_of(g, w), ' ') + 1;
    line n;
    status st = line_open(&n, g, m, w, FEW, e);
    for (int32_t i = 0; i < LONG && !st; i++)
        st = go_on(&n, ids + i, 1, 1, want + (size_t)i * RIG_VOCAB, e);
    if (!st && !(st = check_chunks(&n, w, name, ids, want, got, e)) &&
        !(st = check_verify(&n, name, ids, want, got, e)))
        st = check_snapshots(&n, w, name, ids, want, got, e);
    line_close(&n);
    return st;
}

void check_caches(rig *g)
{
    static float want[LONG * RIG_VOCAB], got[LONG * RIG_VOCAB];
    int32_t ids[LONG];
    gguf file = {0};
    model m = {0};
    err e = {0};
    bool any = false;
    for (int i = 0; i < FORMATS; i++)
        any = any || wanted(g, name_of(g, &formats[i]));
    if (!any)
        return;
    for (int i = 0; i < LONG; i++)
        ids[i] = (int32_t)rng_below(&g->rng, RIG_VOCAB);
    const char *path = rig_model_of(256, 512, RIG_QK_NORM);
    if (gguf_open(&file, path, true, NULL, NULL, &e) || model_bind(&m, &file, &e) ||
        model_load(&m, g->gpu, NULL, NULL, &e))
        failed(g, "caches", e.text);
    for (int i = 0; i < FORMATS && !e.status; i++)
        if ((!g->quick || i % 4 == 2 || !wanted(g, "caches")) &&
            my_turn(g, name_of(g, &formats[i])) &&
            check_format(g, &m, &formats[i], ids, want, got, &e))
            failed(g, "caches", e.text);
    cuda_device *c = g->gpu->self;
    bool usual = c->hopper;
    c->hopper = false; /* formats[0]: f16, with what other GPUs take */
    if (usual && my_turn(g, name_of(g, &formats[0])) && !e.status &&
        check_format(g, &m, &formats[0], ids, want, got, &e))
        failed(g, "caches", e.text);
    c->hopper = usual;
    model_free(&m);
    unlink(path);
}
