/* wrap_test.c - wrappers around a device with its own memory: whole models, all kinds of ops. A CPU
 * device stands in for it. A wrapper that forgot a download would still pass here, so
 * tests/cuda/check_taps.c repeats the test on a CUDA device.
 */
#include "tests/fidelity_model.h"
#include "tests/test.h"
#include "base/mem.h"
#include "kv/kv.h"
#include "model/model.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

RELEASED_AT(device_close, device)

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
static void (*plain_norm)(pass *p, mat *y, mat x, const weight *w, float eps);
static void (*plain_matmul)(pass *p, mat y, mat *x, const weight *w);
static unsigned char *kept;
static int n_kept, n_lost;
enum { KEPT_BYTES = 256, KEPT = 0x5a };

static void keeping_norm(pass *p, mat *y, mat x, const weight *w, float eps)
{
    kept = pass_temp(p, KEPT_BYTES);
    plain_norm(p, y, x, w, eps);
    if (kept)
        memset(kept, KEPT, KEPT_BYTES);
}

static void reading_matmul(pass *p, mat y, mat *x, const weight *w)
{
    plain_matmul(p, y, x, w);
    for (int i = 0; kept && i < KEPT_BYTES; i++)
        n_lost += kept[i] != KEPT;
    n_kept += kept != NULL;
    kept = NULL;
}

/* What a run differs in. */
typedef struct wrapped_run {
    const char *const *wrappers; /* "inputs" is one of them here */
    bool reference, exact;
    void (*change)(device_ops *op); /* of the device inside; NULL: as it is */
    void (*after)(const device *d); /* NULL: nothing */
} wrapped_run;

/* Logits of the first ROWS tokens, on a device in these wrappers. */
static void run_wrapped(const char *path, const fidelity *f, const wrapped_run *run, float *logits)
{
    gguf file = {0};
    model m;
    AUTO_PTR(device_close) device *d;
    kv_layout l;
    kv_cache c;
    kv_batch b;
    model_costs costs;
    pass p;
    err e = {0};
    CHECK_OK(gguf_open(&file, path, false, NULL, NULL, &e), e);
    CHECK_OK(model_bind(&m, &file, &e), e);
    const cpu_options cpu = {.n_threads = 1, .reference = run->reference, .exact_f32 = run->exact};
    CHECK_OK(device_open_cpu(&d, &cpu, &e), e);
    plain_download = d->download;
    d->download = counting_download;
    d->host_memory = false;
    device_ops ops = *d->op;
    if (run->change)
        run->change(&ops);
    d->op = &ops;
    for (int i = 0; run->wrappers[i]; i++)
        if (!strcmp(run->wrappers[i], "inputs"))
            CHECK_OK(device_wrap_inputs(&d, &e), e);
        else
            CHECK_OK(device_wrap(&d, run->wrappers[i], count, NULL, &e), e);
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
    if (run->after)
        run->after(d);
    kv_batch_free(&b);
    kv_close(&c);
    kv_layout_free(&l);
    model_free(&m);
}

static void keep_in_scratch(device_ops *op)
{
    plain_norm = op->rms_norm;
    plain_matmul = op->matmul;
    op->rms_norm = keeping_norm;
    op->matmul = reading_matmul;
}

TEST(wrappers_work_where_memory_is_apart)
{
    static const char *const none[] = {NULL}, *const all[] = {"check", "trace", "time", NULL};
    for (const char *const *name = fidelity_names; *name; name++) {
        AUTO(fidelity_close) fidelity f;
        fidelity_open(&f, *name);
        const char *path = fidelity_write(&f, NULL);
        size_t n = (size_t)ROWS * (size_t)f.n_vocab;
        AUTO_MEM float *want = mem_alloc(n * sizeof *want), *got = mem_alloc(n * sizeof *got);
        CHECK(want && got);
        run_wrapped(path, &f, &(wrapped_run){none, .change = keep_in_scratch}, want);
        n_lines = n_kept = n_lost = 0;
        n_downloaded = 0;
        run_wrapped(path, &f, &(wrapped_run){all, .change = keep_in_scratch}, got);
        CHECK_MSG(!memcmp(got, want, n * sizeof *got), "%s: other logits", *name);
        CHECK_MSG(n_kept > f.n_layer && !n_lost, "%s: %d bytes of %d copies", *name, n_lost,
                  n_kept);
        CHECK(n_lines > 12 * f.n_layer);
        CHECK(n_downloaded > 100 * n); /* results and all that the reference read */
    }
}

/* ---- Sums of inputs ------------------------------------------------------------------------ */

/* The same, added up below all wrappers, by ops that are fused with nothing. */
typedef struct plain_sums {
    const weight *of;
    char name[64];
    int32_t n_in, n_mat, n_of_name; /* n_of_name: weights of that name before it */
    double *sum;
    int64_t *n;
} plain_sums;
enum { SUMS_MAX = 512 };
static plain_sums sums[SUMS_MAX];
static int n_sums;
static device_ops below;

static plain_sums *sums_of(const weight *w)
{
    plain_sums *s = sums;
    int n_of_name = 0;
    for (; s < sums + n_sums; s++) {
        if (s->of == w)
            return s;
        n_of_name += !strcmp(s->name, w->name);
    }
    CHECK(n_sums++ < SUMS_MAX);
    *s = (plain_sums){.of = w, .n_in = w->n_in, .n_mat = w->n_mat, .n_of_name = n_of_name};
    snprintf(s->name, sizeof s->name, "%s", w->name);
    s->sum = mem_calloc((size_t)w->n_in * (size_t)w->n_mat, sizeof *s->sum);
    s->n = mem_calloc((size_t)w->n_mat, sizeof *s->n);
    CHECK(s->sum && s->n);
    return s;
}

static void add_plainly(const weight *w, int32_t k, const float *x)
{
    plain_sums *s = sums_of(w);
    s->n[k]++;
    for (int32_t i = 0; i < w->n_in; i++)
        s->sum[(size_t)k * (size_t)w->n_in + (size_t)i] += (double)x[i] * (double)x[i];
}

static void summed_matmul(pass *p, mat y, mat *x, const weight *w)
{
    below.matmul(p, y, x, w);
    for (int32_t r = 0; !p->dry && r < x->rows; r++)
        add_plainly(w, 0, mat_row(*x, r));
}
static void summed_moe_glu(pass *p, mat *y, mat x, routing *r, const weight *g, const weight *u,
                           act_kind a)
{
    below.moe_glu(p, y, x, r, g, u, a);
    for (int32_t i = 0; !p->dry && i < x.rows * r->k; i++) {
        add_plainly(g, r->id[i], mat_row(x, i / r->k));
        if (u)
            add_plainly(u, r->id[i], mat_row(x, i / r->k));
    }
}
static void summed_moe_down(pass *p, mat y, mat x, routing r, const weight *d)
{
    below.moe_down(p, y, x, r, d);
    for (int32_t i = 0; !p->dry && i < x.rows * r.k; i++)
        add_plainly(d, r.id[i], mat_row(x, i / r.k) + i % r.k * x.cols);
}
static void summed_moe_matmul(pass *p, mat y, mat *x, routing r, const weight *w)
{
    below.moe_matmul(p, y, x, r, w);
    for (int32_t i = 0; !p->dry && i < x->rows * r.k; i++)
        add_plainly(w, r.id[i], mat_row(*x, i / r.k));
}

static void sum_below(device_ops *op)
{
    below = *op;
    op->matmul = summed_matmul;
    op->moe_glu = summed_moe_glu;
    op->moe_down = summed_moe_down;
    op->moe_matmul = summed_moe_matmul;
    op->glu = NULL;
    op->router = NULL;
    op->mixture = NULL;
}

static void compare_sums(const device *d)
{
    device_inputs x;
    int n = 0, n_names = 0;
    for (; device_inputs_at(d, n, &x); n++) {
        const plain_sums *s = sums;
        while (s < sums + n_sums && strcmp(s->name, x.name))
            s++;
        CHECK_MSG(s < sums + n_sums && s->n_in == x.n_in && s->n_mat == x.n_mat, "%s", x.name);
        for (int32_t k = 0; k < x.n_mat; k++) {
            double most = 0, apart = 0;
            CHECK_MSG(s->n[k] == x.n[k], "%s: %lld rows of matrix %d, not %lld", x.name,
                      (long long)x.n[k], k, (long long)s->n[k]);
            for (int32_t i = 0; i < x.n_in; i++) {
                size_t at = (size_t)k * (size_t)x.n_in + (size_t)i;
                most = fmax(most, s->sum[at]);
                apart = fmax(apart, fabs(s->sum[at] - x.sum[at]));
            }
            CHECK_MSG(apart <= 1e-3 * most, "%s, matrix %d: %g of %g", x.name, k, apart, most);
        }
    }
    for (int i = 0; i < n_sums; i++)
        n_names += !sums[i].n_of_name;
    CHECK_EQ(n, n_names);
    CHECK(n > 0 && !device_inputs_at(d, -1, &x));
}

static void check_sums(const char *name, const fidelity_file *file)
{
    static const char *const none[] = {NULL}, *const inputs[] = {"time", "inputs", "trace", NULL};
    AUTO(fidelity_close) fidelity f;
    fidelity_open(&f, name);
    const char *path = fidelity_write(&f, file);
    AUTO_MEM float *x = mem_alloc((size_t)ROWS * (size_t)f.n_vocab * sizeof *x);
    CHECK(x);
    run_wrapped(path, &f, &(wrapped_run){none, true, .change = sum_below}, x);
    run_wrapped(path, &f, &(wrapped_run){inputs, .exact = true, .after = compare_sums}, x);
    while (n_sums) {
        mem_free(sums[--n_sums].sum);
        mem_free(sums[n_sums].n);
    }
}

TEST(inputs_of_all_products_of_all_families_are_summed)
{
    for (const char *const *name = fidelity_names; *name; name++)
        check_sums(*name, NULL);
    check_sums("qwen3", &(fidelity_file){.fused_qkv = true});
    check_sums("mixtral", &(fidelity_file){.split_experts = true});
}
