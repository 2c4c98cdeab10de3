/* check_taps.c - taps on the CUDA device, in plain and in replayed passes, and the wrappers around
 * the device.
 */
#include "tests/cuda/check_int.h"
#include "tests/fidelity_model.h"
#include "backend/cuda/cuda_int.h"
#include "base/mem.h"
#include "model/model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { N = 24, TAPS = 3, ROWS = 4 };

/* A model on a device, a cache of it, and taps after its first and its last layer and the norm. */
typedef struct tapped {
    device *dev;
    const model *m;
    void *scratch;
    size_t scratch_bytes;
    kv_layout l;
    kv_cache c;
    kv_batch b;
    pass_taps taps;
    float *host; /* what a tap holds, downloaded: [ROWS][n_embd] */
} tapped;

static size_t tap_bytes(const tapped *t)
{
    return (size_t)ROWS * (size_t)t->m->n_embd * sizeof(float);
}

static status open_tapped(tapped *t, device *dev, const model *m, void *scratch, size_t n, err *e)
{
    const int32_t il[TAPS] = {0, m->n_layer - 1, PASS_TAP_NORM};
    status st;
    *t = (tapped){.dev = dev, .m = m, .scratch = scratch, .scratch_bytes = n};
    const kv_want_layout want = {
        .spec = m->kv,
        .n = m->n_kv,
        .choice = {.k = {.type = NUM_F32}, .v = {.type = NUM_F32}, .single = KV_SINGLE_OFF},
        .n_ctx = N,
        .rows_max = ROWS};
    t->host = mem_alloc(tap_bytes(t));
    if (!t->host)
        return err_memory(e, "a check", tap_bytes(t));
    if ((st = kv_layout_init(&t->l, &want, e)) || (st = kv_open(&t->c, dev, &t->l, e)) ||
        (st = kv_batch_init(&t->b, ROWS, 1, &t->l, e)))
        return st;
    for (int i = 0; i < TAPS; i++) {
        mat to = mat_at(dev->alloc(dev, tap_bytes(t)), ROWS, 1, m->n_embd, m->n_embd);
        if (!to.at)
            return err_memory(e, "a check", tap_bytes(t));
        t->taps.at[t->taps.n++] = (pass_tap_point){il[i], PASS_MAIN, to};
    }
    return OK;
}

static void close_tapped(tapped *t)
{
    for (int i = 0; i < t->taps.n; i++)
        t->dev->release(t->dev, t->taps.at[i].to.at, tap_bytes(t));
    kv_batch_free(&t->b);
    if (t->c.layout)
        kv_close(&t->c);
    kv_layout_free(&t->l);
    mem_free(t->host);
}

/* n rows, all wanted. seen: the taps, [TAPS][n][n_embd] to come after what is there. */
static status go_on(tapped *t, const int32_t *ids, int32_t n, float *logits, float **seen, err *e)
{
    pass p;
    status st;
    size_t width = (size_t)t->m->n_embd, row = (size_t)t->m->n_vocab;
    kv_batch_clear(&t->b);
    if ((st = kv_reserve(&t->c, n, e)) ||
        (st = kv_batch_add(&t->b, &t->c, ids + t->c.n_past, n, NULL, KV_WANT_ALL, e)))
        return st;
    t->b.st.prompt = of_prompt(n);
    pass_begin(&p, t->dev, &t->b.st, t->scratch, t->scratch_bytes);
    p.taps = &t->taps;
    mat y = model_forward(&p, t->m, &t->l);
    if (pass_failed(&p))
        return err_set(e, p.e.status, "%s", p.e.text);
    t->dev->download(t->dev, logits + (size_t)t->c.n_past * row, y.at, (size_t)n * row * 4);
    for (int i = 0; i < TAPS; i++) {
        t->dev->download(t->dev, t->host, t->taps.at[i].to.at, tap_bytes(t));
        memcpy(seen[i] + (size_t)t->c.n_past * width, t->host, (size_t)n * width * sizeof(float));
    }
    kv_commit(&t->c, n);
    return OK;
}

/* N tokens in passes of n rows. out: logits [N][n_vocab], then TAPS of [N][n_embd]; mem_free. */
static float *run(rig *g, device *dev, const model *m, const int32_t *ids, int32_t n, err *e)
{
    tapped t;
    float *seen[TAPS];
    size_t width = (size_t)m->n_embd, row = (size_t)m->n_vocab;
    float *out = mem_calloc(N * (row + TAPS * width), sizeof *out);
    void *scratch = dev == g->ref ? g->ref_scratch : g->gpu_scratch;
    status st = open_tapped(&t, dev, m, scratch, g->scratch_bytes, e);
    for (int i = 0; i < TAPS; i++)
        seen[i] = out + N * (row + (size_t)i * width);
    while (!st && t.c.n_past < N)
        st = go_on(&t, ids, n, out, seen, e);
    close_tapped(&t);
    if (!st)
        return out;
    mem_free(out);
    return NULL;
}

static double distance(const float *a, const float *b, size_t n)
{
    double far = 0;
    for (size_t i = 0; i < n; i++) {
        double d = a[i] == b[i] ? 0 : fabs((double)a[i] - b[i]); /* infinities that are alike */
        far = isnan(far) || d <= far ? far : d;
    }
    return far;
}

static int n_lines;
static void count_lines(void *user, const char *line)
{
    (void)user;
    n_lines += line[0] != 0;
}

/* check inside trace inside time: the results are right, and every op is reported. */
static void check_wrappers(rig *g, const model *m, const int32_t *ids, const float *want, size_t n)
{
    device *d = g->gpu;
    err e = {0};
    n_lines = 0;
    if (device_wrap(&d, "check", count_lines, NULL, &e) ||
        device_wrap(&d, "trace", count_lines, NULL, &e) ||
        device_wrap(&d, "time", count_lines, NULL, &e)) {
        failed(g, "wrapped", e.text);
        return;
    }
    float *got = run(g, d, m, ids, ROWS, &e);
    if (got)
        verdict(g, "wrapped", "trace, time and check: logits and taps", distance(got, want, n),
                1e-3);
    else
        failed(g, "wrapped", e.text);
    verdict(g, "wrapped", text("%d lines", n_lines), n_lines > 20 * m->n_layer ? 0 : 1, 0);
    device_op_time times[DEVICE_OP_TIMES_MAX];
    verdict(g, "wrapped", "kinds of ops timed",
            device_op_times(d, times, DEVICE_OP_TIMES_MAX, true) > 8 ? 0 : 1, 0);
    mem_free(got);
    /* Closes the wrappers, not the rig's device. */
    while (d != g->gpu) {
        device *inner = d->inner;
        device_unwrap(d);
        d = inner;
    }
}

/* Of one row, by a dry pass. */
static uint64_t weight_bytes(rig *g, const model *m, const int32_t *ids, err *e)
{
    tapped t;
    pass p = {0};
    if (open_tapped(&t, g->gpu, m, NULL, 0, e) || kv_reserve(&t.c, 1, e) ||
        kv_batch_add(&t.b, &t.c, ids, 1, NULL, KV_WANT_ALL, e))
        return 0;
    pass_begin(&p, g->gpu, &t.b.st, NULL, 0);
    model_forward(&p, m, &t.l);
    close_tapped(&t);
    return p.weight_bytes_read;
}

/* Passes timed op by op give the results of all others, bit by bit; what they say they read is what
 * the model has to read. */
static void check_pass_times(rig *g, const model *m, const int32_t *ids, const float *want,
                             size_t n)
{
    cuda_device *c = g->gpu->self;
    const size_t usual = c->read_bytes;
    device_pass_times t;
    err e = {0};
    c->read_bytes = g->quick ? (size_t)1 << 20 : usual;
    status st = g->gpu->time_passes(g->gpu, &e);
    c->read_bytes = usual;
    float *timed = st ? NULL : run(g, g->gpu, m, ids, 1, &e);
    g->gpu->timed_passes(g->gpu, &t);
    if (!timed) {
        failed(g, "pass times", e.text);
        return;
    }
    verdict(g, "pass times", "op by op and whole, against passes not timed",
            distance(timed, want, n), 0);
    mem_free(timed);
    verdict(g, "pass times", text("%d whole, %d op by op", t.n_whole, t.n_split),
            t.n_split > 0 && abs(t.n_whole - t.n_split) <= 1 ? 0 : 1, 0);
    uint64_t bytes = 0, keys = 0, wanted = weight_bytes(g, m, ids, &e);
    int64_t n_ops = 0;
    for (int32_t i = 0; i < t.n_ops; i++) {
        n_ops += t.ops[i].n_calls;
        keys += strcmp(t.ops[i].op, "attend") ? 0 : t.ops[i].bytes;
        bytes += strcmp(t.ops[i].op, "attend") ? t.ops[i].bytes : 0;
    }
    verdict(g, "pass times", text("%d kernels", t.n_kernels),
            t.n_kernels > 4 * m->n_layer && n_ops <= (int64_t)t.n_kernels * t.n_split ? 0 : 1, 0);
    verdict(g, "pass times", "bytes of weights, and keys beside them",
            wanted && keys && bytes == wanted * (uint64_t)t.n_split ? 0 : 1, 0);
}

/* A dry pass of a prompt, as another session's plan makes it. */
static status plan_prompt(tapped *t, const int32_t *ids, err *e)
{
    pass p;
    status st;
    kv_batch_clear(&t->b);
    if ((st = kv_reserve(&t->c, ROWS, e)) ||
        (st = kv_batch_add(&t->b, &t->c, ids + t->c.n_past, ROWS, NULL, KV_WANT_ALL, e)))
        return st;
    t->b.st.prompt = true;
    pass_begin(&p, t->dev, &t->b.st, NULL, 0);
    model_forward(&p, t->m, &t->l);
    return pass_failed(&p) ? err_set(e, p.e.status, "%s", p.e.text) : OK;
}

/* Experts by blocks: their ops of prompts end in a dry pass as in any other. Plans between passes
 * that are timed op by op leave nothing on the GPU, and the passes have the bits of all others. */
static void check_plans_between(rig *g)
{
    fidelity f;
    model m = {0};
    gguf file = {0};
    err e = {0};
    tapped t = {0};
    device_pass_times times;
    float *seen[TAPS], *want = NULL, *timed = NULL;
    fidelity_open(&f, "moe");
    const char *path = fidelity_write(&f, &(fidelity_file){.type = NUM_Q8_0});
    status st;
    if ((st = gguf_open(&file, path, true, NULL, NULL, &e)) || (st = model_bind(&m, &file, &e)) ||
        (st = model_load(&m, g->gpu, NULL, NULL, &e)))
        goto out;
    const size_t row = (size_t)m.n_vocab, n = N * (row + TAPS * (size_t)m.n_embd);
    st = E_MEMORY;
    if (!(want = run(g, g->gpu, &m, f.tokens, 1, &e)) || !(timed = mem_calloc(n, sizeof *timed)))
        goto out;
    memcpy(timed, want, n * sizeof *timed); /* what is not computed again */
    for (int i = 0; i < TAPS; i++)
        seen[i] = timed + N * (row + (size_t)i * (size_t)m.n_embd);
    cuda_device *c = g->gpu->self;
    const size_t usual = c->read_bytes;
    c->read_bytes = (size_t)1 << 20;
    if (!(st = open_tapped(&t, g->gpu, &m, g->gpu_scratch, g->scratch_bytes, &e)))
        st = g->gpu->time_passes(g->gpu, &e);
    c->read_bytes = usual;
    while (!st && t.c.n_past < N - ROWS) {
        memset(timed + (size_t)t.c.n_past * row, 0, row * sizeof *timed);
        if (!(st = go_on(&t, f.tokens, 1, timed, seen, &e)))
            st = plan_prompt(&t, f.tokens, &e);
    }
    g->gpu->timed_passes(g->gpu, &times);
    close_tapped(&t);
    if (!st) {
        verdict(g, "pass times", "plans between timed passes", distance(timed, want, n), 0);
        verdict(g, "pass times", text("%d op by op between plans", times.n_split),
                times.n_split > 4 ? 0 : 1, 0);
    }
out:
    if (st)
        failed(g, "pass times", e.text);
    mem_free(timed);
    mem_free(want);
    model_free(&m);
    unlink(path);
    fidelity_close(&f);
}

void check_taps(rig *g)
{
    fidelity f;
    model m = {0}, ref = {0};
    gguf file = {0};
    err e = {0};
    if (!my_turn(g, "taps"))
        return;
    fidelity_open(&f, "e2b");
    const char *path = fidelity_write(&f, NULL);
    cuda_device *c = g->gpu->self;
    bool no_graphs = c->no_graphs;
    if (gguf_open(&file, path, true, NULL, NULL, &e) || model_bind(&m, &file, &e) ||
        model_load(&m, g->gpu, NULL, NULL, &e) || gguf_open(&file, path, true, NULL, NULL, &e) ||
        model_bind(&ref, &file, &e) || model_load(&ref, g->ref, NULL, NULL, &e)) {
        failed(g, "taps", e.text);
    } else {
        size_t n = (size_t)N * (size_t)(m.n_vocab + TAPS * m.n_embd);
        float *want = run(g, g->ref, &ref, f.tokens, ROWS, &e);
        c->no_graphs = true;
        float *plain = run(g, g->gpu, &m, f.tokens, ROWS, &e);
        float *alone = run(g, g->gpu, &m, f.tokens, 1, &e);
        c->no_graphs = no_graphs;
        float *replayed = run(g, g->gpu, &m, f.tokens, ROWS, &e);
        float *again = run(g, g->gpu, &m, f.tokens, 1, &e);
        if (want && plain && alone && replayed && again) {
            verdict(g, "taps", "against the reference", distance(plain, want, n), 1e-3);
            verdict(g, "taps", "rows together and alone", distance(plain, alone, n), 0);
            verdict(g, "taps", "run and replayed", distance(plain, replayed, n), 0);
            verdict(g, "taps", "run and replayed, one row", distance(plain, again, n), 0);
            check_wrappers(g, &m, f.tokens, want, n);
            check_pass_times(g, &m, f.tokens, alone, n);
        } else {
            failed(g, "taps", e.text);
        }
        mem_free(again);
        mem_free(replayed);
        mem_free(alone);
        mem_free(plain);
        mem_free(want);
    }
    model_free(&ref);
    model_free(&m);
    unlink(path);
    fidelity_close(&f);
    check_plans_between(g);
}
