/* wrap_test.c - wrappers around a device with its own memory: whole models, all kinds of ops. A CPU
 * device stands in for it. A wrapper that forgot a download would still pass here, so
 * tests/cuda/check_taps.c repeats the test on a CUDA device.
 */
#include "tests/fidelity_model.h"
#include "tests/test.h"
#include "base/mem.h"
#include "kv/kv.h"
#include "model/model.h"

#include <string.h>

enum { ROWS = 8 };

static int n_lines;
static void count(void *user, const char *line)
{
    (void)user;
    n_lines += line[0] != 0;
}

static size_t n_downloaded;
static void (*plain_download)(device *d, void *to, const void *from, size_t n_bytes);
static void counting_download(device *d, void *to, const void *from, size_t n_bytes)
{
    n_downloaded += n_bytes;
    plain_download(d, to, from, n_bytes);
}

/* A device that keeps something in scratch for the next product, as the CUDA device keeps copies
 * of what a norm computed. Like there, the model's release of a layer ends it. */
static void (*plain_norm)(pass *p, mat y, mat x, const weight *w, float eps);
static void (*plain_matmul)(pass *p, mat y, mat x, const weight *w);
static unsigned char *kept;
static int n_kept, n_lost;
enum { KEPT_BYTES = 256, KEPT = 0x5a };

static void keeping_norm(pass *p, mat y, mat x, const weight *w, float eps)
{
    kept = pass_temp(p, KEPT_BYTES);
    plain_norm(p, y, x, w, eps);
    if (kept)
        memset(kept, KEPT, KEPT_BYTES);
}

static void reading_matmul(pass *p, mat y, mat x, const weight *w)
{
    plain_matmul(p, y, x, w);
    for (int i = 0; kept && i < KEPT_BYTES; i++)
        n_lost += kept[i] != KEPT;
    n_kept += kept != NULL;
    kept = NULL;
}

/* Logits of the first ROWS tokens, on a device in these wrappers. */
static void run_wrapped(const char *path, const fidelity *f, const char *const *wrappers,
                        float *logits)
{
    gguf file = {0};
    model m;
    device *d;
    kv_layout l;
    kv_cache c;
    kv_batch b;
    model_costs costs;
    pass p;
    err e = {0};
    CHECK_OK(gguf_open(&file, path, false, NULL, NULL, &e), e);
    CHECK_OK(model_bind(&m, &file, &e), e);
    CHECK_OK(device_open_cpu(&d, &(cpu_options){.n_threads = 1}, &e), e);
    plain_download = d->download;
    d->download = counting_download;
    d->host_memory = false;
    device_ops ops = *d->op;
    plain_norm = ops.rms_norm;
    plain_matmul = ops.matmul;
    ops.rms_norm = keeping_norm;
    ops.matmul = reading_matmul;
    d->op = &ops;
    for (int i = 0; wrappers[i]; i++)
        CHECK_OK(device_wrap(&d, wrappers[i], count, NULL, &e), e);
    CHECK_OK(model_load(&m, d, NULL, NULL, &e), e);
    kv_want_layout want = {.spec = m.kv,
                           .n = m.n_kv,
                           .recur = m.recur,
                           .n_recur = m.n_recur,
                           .n_ctx = f->n_tokens,
                           .rows_max = ROWS,
                           .dev = {d}};
    bool blocks = true; /* q8_0 stores 32 numbers at a time */
    for (int32_t i = 0; i < m.n_kv; i++)
        blocks = blocks && m.kv[i].head_dim % 32 == 0;
    CHECK_OK(kv_choice_parse(&want.choice, &(kv_words){.k = blocks ? "q8_0" : "f16"}, &e), e);
    CHECK_OK(kv_layout_init(&l, &want, &e), e);
    CHECK_OK(kv_open(&c, d, &l, &e), e);
    CHECK_OK(kv_batch_init(&b, ROWS, 1, &l, &e), e);
    CHECK_OK(kv_reserve(&c, ROWS, &e), e);
    const kv_rows rows = {.token = f->tokens, .n = ROWS, .want = KV_WANT_ALL, .final = true};
    CHECK_OK(kv_batch_add_rows(&b, &c, &rows, &e), e);
    CHECK_OK(model_plan(&m, d, &l, ROWS, ROWS, NULL, &costs, &e), e);
    size_t n = costs.side[PASS_MAIN].scratch_bytes;
    void *scratch = d->alloc(d, n);
    CHECK(scratch);
    pass_begin(&p, d, &b.st, scratch, n);
    mat y = model_forward(&p, &m, &l);
    CHECK_OK(p.e.status, p.e);
    d->download(d, logits, y.at, (size_t)ROWS * (size_t)m.n_vocab * sizeof *logits);
    d->release(d, scratch, n);
    kv_batch_free(&b);
    kv_close(&c);
    kv_layout_free(&l);
    model_free(&m);
    device_close(d);
}

TEST(wrappers_work_where_memory_is_apart)
{
    static const char *const none[] = {NULL}, *const all[] = {"check", "trace", "time", NULL};
    for (const char *const *name = fidelity_names; *name; name++) {
        fidelity f;
        fidelity_open(&f, *name);
        const char *path = fidelity_write(&f, NULL);
        size_t n = (size_t)ROWS * (size_t)f.n_vocab;
        float *want = mem_alloc(n * sizeof *want), *got = mem_alloc(n * sizeof *got);
        CHECK(want && got);
        run_wrapped(path, &f, none, want);
        n_lines = n_kept = n_lost = 0;
        n_downloaded = 0;
        run_wrapped(path, &f, all, got);
        CHECK_MSG(!memcmp(got, want, n * sizeof *got), "%s: other logits", *name);
        CHECK_MSG(n_kept > f.n_layer && !n_lost, "%s: %d bytes of %d copies", *name, n_lost,
                  n_kept);
        CHECK(n_lines > 12 * f.n_layer);
        CHECK(n_downloaded > 100 * n); /* results and all that the reference read */
        mem_free(want);
        mem_free(got);
        fidelity_close(&f);
    }
}
