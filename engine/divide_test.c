/* divide_test.c - models on several devices: results, memory of each device, refused divisions.
 *
 * CPU devices stand for GPUs and the CPU beside them (device "cpu,cpu" and longer). On a CPU a
 * row's result is the same on every device, so a divided model must give the same bytes as a whole
 * one.
 */
#include "carat.h"
#include "base/mem.h"
#include "engine/batch_int.h"
#include "engine/engine_int.h"
#include "engine/stages.h"
#include "num/num.h"
#include "tests/fidelity_model.h"
#include "tests/test.h"

#include <math.h>
#include <string.h>

static carat_model *open_on(const char *path, const char *devices, int32_t gpu_layers, bool experts)
{
    carat_model *m;
    carat_error e = {0};
    carat_model_options o = {.device = devices, .gpu_layers = gpu_layers, .cpu_experts = experts};
    CHECK_OK(carat_model_open(path, &o, &m, &e), e);
    return m;
}

/* Logits of the last of n tokens, evaluated in chunks. */
static void evaluate(carat_model *m, const fidelity *f, int32_t chunk, float *logits)
{
    carat_session *s;
    carat_error e = {0};
    carat_session_options o = {.n_ctx = f->n_tokens, .chunk = chunk, .checkpoint_mb = -1};
    CHECK_OK(carat_session_open(m, &o, &s, &e), e);
    CHECK_OK(carat_eval(s, f->tokens, f->n_tokens - 3, logits, NULL, &e), e);
    for (int32_t i = 2; i >= 0; i--) /* and token by token, as in decoding */
        CHECK_OK(carat_eval(s, f->tokens, f->n_tokens - i, logits, NULL, &e), e);
    carat_session_close(s);
}

static void same_results(const char *path, const fidelity *f, carat_model *parts)
{
    size_t n = (size_t)f->n_vocab;
    float *a = mem_calloc(n, sizeof *a), *b = mem_calloc(n, sizeof *b);
    carat_model *whole = open_on(path, "cpu", 0, false);
    const int32_t chunks[] = {7, 64, 1};
    for (int i = 0; i < test_trials(3); i++) {
        evaluate(whole, f, chunks[i], a);
        evaluate(parts, f, chunks[i], b);
        CHECK(!memcmp(a, b, n * sizeof *a));
    }
    carat_model_close(whole);
    carat_model_close(parts);
    mem_free(a);
    mem_free(b);
}

static void same_as_whole(const char *path, const fidelity *f, const char *devices,
                          int32_t gpu_layers, bool experts)
{
    same_results(path, f, open_on(path, devices, gpu_layers, experts));
}

static bool has_experts(const char *name)
{
    return !strcmp(name, "all") || strstr(name, "moe") || strstr(name, "26b") ||
           strstr(name, "gpt-oss");
}

/* Can the last n layers be divided between so many devices? The last n_shared + 2 belong together,
 * if there are any that read the keys of others. */
static bool can_share(const fidelity *f, int32_t n, int32_t n_devices)
{
    return n - n_devices >= (f->n_shared ? f->n_shared + 1 : 0);
}

PLAIN_TEST(divided_models_compute_what_whole_ones_do)
{
    for (const char *const *name = fidelity_names; *name; name++) {
        fidelity f;
        fidelity_open(&f, *name);
        const char *path = fidelity_write(&f, NULL);
        carat_error e = {0};
        int32_t least = 0;
        for (int32_t n = 1; n < f.n_layer; n++) {
            carat_model *m;
            carat_model_options o = {.device = "cpu,cpu", .gpu_layers = n};
            e = (carat_error){0};
            if (!carat_model_open(path, &o, &m, &e)) {
                carat_model_close(m);
                least = least ? least : n;
                if (!test_brief() || (n - least) % 2 == 0 || n + 1 == f.n_layer)
                    same_as_whole(path, &f, "cpu,cpu", n, false);
                if (n % 3 == 2 && can_share(&f, n, 2))
                    same_as_whole(path, &f, "cpu,cpu,cpu", n, false);
            } else {
                /* Refused: too few layers, so that a layer is apart from the keys that it reads. */
                CHECK(!least && f.n_shared && e.status == CARAT_E_ARG);
                CHECK(strstr(e.text, "whose keys it reads") != NULL);
            }
        }
        CHECK(least > 0 && (f.n_shared == 0) == (least == 1));
        if (has_experts(*name)) {
            same_as_whole(path, &f, "cpu,cpu", 0, true);
            same_as_whole(path, &f, "cpu,cpu", f.n_layer - 1, true);
            if (can_share(&f, f.n_layer - 1, 2))
                same_as_whole(path, &f, "cpu,cpu,cpu", f.n_layer - 1, true);
        }
        fidelity_close(&f);
    }
}

static const char *const stand_ins[] = {"cpu", "cpu,cpu", "cpu,cpu,cpu", "cpu,cpu,cpu,cpu"};

/* Every layer is on one device, and each has some that follow each other. */
static void check_ranges(const carat_model *m)
{
    const model *core = &m->core;
    int32_t n_turns = 0;
    for (int32_t i = 1; i < core->n_layer; i++)
        n_turns += core->layer_side[i] != core->layer_side[i - 1];
    CHECK_EQ(n_turns, m->n_stages - 1);
    CHECK_EQ(core->layer_side[core->n_layer - 1], PASS_MAIN);
}

PLAIN_TEST(layers_shared_by_devices_compute_what_one_does)
{
    for (const char *const *name = fidelity_names; *name; name++) {
        fidelity f;
        fidelity_open(&f, *name);
        const char *path = fidelity_write(&f, NULL);
        for (int32_t n = 2; n <= 4; n++) {
            static const char *const uneven[] = {"1,9", "9,1,1", "1,5,1,1"};
            carat_model_options o = {.device = stand_ins[n - 1]};
            carat_model *m;
            carat_error e = {0};
            carat_status st = carat_model_open(path, &o, &m, &e);
            CHECK_EQ(st, can_share(&f, f.n_layer, n) ? CARAT_OK : CARAT_E_ARG);
            if (st) {
                CHECK(strstr(e.text, "cannot be divided"));
                continue;
            }
            check_ranges(m);
            if (!test_brief() || n % 2 == 0)
                same_results(path, &f, m);
            else
                carat_model_close(m);
            o.gpu_split = uneven[n - 2];
            if (test_brief() && n % 2 == 0)
                continue;
            if ((st = carat_model_open(path, &o, &m, &e))) {
                CHECK(f.n_shared && strstr(e.text, "whose keys it reads"));
                continue;
            }
            check_ranges(m);
            same_results(path, &f, m);
        }
        fidelity_close(&f);
    }
}

TEST(chunks_keep_every_stage_at_work)
{
    enum { LEAST = STAGES_CHUNK_LEAST };
    for (int64_t n = 1; n < 300000; n = n * 5 / 4 + 1) {
        CHECK_EQ(stages_chunk(1, 2048, LEAST, n), 2048);
        CHECK_EQ(stages_chunk(4, 2048, 2048, n), 2048); /* --chunk */
        CHECK_EQ(stages_chunk(4, 300, LEAST, n), 300);
        for (int32_t stages = 2; stages <= 8; stages++) {
            int32_t rows = stages_chunk(stages, 2048, LEAST, n);
            double n_chunks = (double)n / rows;
            CHECK(rows >= LEAST && rows <= 2048);
            CHECK(rows <= stages_chunk(stages - 1, 2048, LEAST, n));
            /* An eighth more than an even share at most, while chunks can be shorter; and no
             * chunk is shorter than that takes. */
            CHECK(rows == LEAST || floor(n_chunks) >= 8 * (stages - 1));
            CHECK(rows == 2048 || floor(n_chunks / 2) < 8 * (stages - 1));
        }
    }
    CHECK_EQ(stages_chunk(2, 2048, LEAST, 32768), 2048);
    CHECK_EQ(stages_chunk(4, 2048, LEAST, 32768), 1024);
    CHECK_EQ(stages_chunk(2, 2048, LEAST, 4096), 512);
}

/* Passes of a prompt of n tokens in a batch of its own. */
static int32_t n_passes(carat_model *m, const carat_session_options *o, int32_t n)
{
    int32_t *ids = mem_calloc((size_t)n, sizeof *ids);
    carat_session *s;
    carat_error e = {0};
    CHECK_OK(carat_session_open(m, o, &s, &e), e);
    CHECK_OK(carat_eval(s, ids, n, NULL, NULL, &e), e);
    int32_t passes = (int32_t)s->b.n_passes;
    carat_session_close(s);
    mem_free(ids);
    return passes;
}

TEST(prompts_of_stages_are_cut_into_more_chunks)
{
    enum { N = 1100 };
    const carat_session_options open = {.n_ctx = N, .checkpoint_mb = -1},
                                named = {.n_ctx = N, .chunk = 1024, .checkpoint_mb = -1};
    fidelity f;
    fidelity_open(&f, "qwen3");
    const char *path =
        fidelity_write(&f, &(fidelity_file){.set_key = "qwen3.context_length", .set_value = 2048});
    carat_model *one = open_on(path, "cpu", 0, false), *two = open_on(path, "cpu,cpu", 0, false);
    one->dev->chunk_rows = two->dev->chunk_rows = 1024; /* as on a GPU */
    CHECK_EQ(n_passes(one, &open, N), 2);
    CHECK_EQ(n_passes(two, &open, N), 3);
    CHECK_EQ(n_passes(two, &named, N), 2);
    carat_model_close(one);
    carat_model_close(two);
    fidelity_close(&f);
}

static void saves_and_restores(const char *devices, bool park)
{
    fidelity f;
    fidelity_open(&f, "all");
    carat_model *m = open_on(fidelity_write(&f, NULL), devices, f.n_layer - 2, true);
    carat_session_options o = {.n_ctx = f.n_tokens, .chunk = 5, .checkpoint_mb = -1};
    carat_session *s, *t;
    carat_snapshot *p;
    carat_error e = {0};
    size_t n = (size_t)f.n_vocab;
    float *a = mem_calloc(n, sizeof *a), *b = mem_calloc(n, sizeof *b);
    int32_t at = f.n_tokens / 2;
    CHECK_OK(carat_session_open(m, &o, &s, &e), e);
    CHECK_OK(carat_session_open(m, &o, &t, &e), e);
    CHECK_OK(carat_eval(s, f.tokens, at, NULL, NULL, &e), e);
    CHECK_OK(carat_snapshot_take(s, &p, &e), e);
    if (park) {
        carat_model_park(m);
        CHECK_OK(carat_model_unpark(m, &e), e);
    }
    CHECK_OK(carat_snapshot_restore(t, p, &e), e);
    CHECK_OK(carat_eval(s, f.tokens, f.n_tokens, a, NULL, &e), e);
    CHECK_OK(carat_eval(t, f.tokens, f.n_tokens, b, NULL, &e), e);
    CHECK(!memcmp(a, b, n * sizeof *a));
    carat_snapshot_free(p);
    carat_session_close(t);
    carat_session_close(s);
    carat_model_close(m);
    mem_free(a);
    mem_free(b);
    fidelity_close(&f);
}

PLAIN_TEST(a_divided_model_saves_and_restores)
{
    saves_and_restores("cpu,cpu", false);
    saves_and_restores("cpu,cpu,cpu", true);
}

/* Caches, scratch and copied weights take exactly the planned bytes of each device: a CPU rounds no
 * allocation. */
TEST(divided_plans_are_what_is_taken)
{
    fidelity f;
    fidelity_open(&f, "all");
    const char *path = fidelity_write(&f, &(fidelity_file){.type = NUM_Q8_0});
    for (int shape = 0; shape < 6; shape++) { /* with a CPU beside, then stages alone */
        const char *const devices[] = {"cpu", "cpu,cpu", "cpu,cpu,cpu"};
        int divided = shape % 3;
        bool beside = divided && shape < 3;
        carat_model *m = open_on(path, devices[divided], beside ? f.n_layer - divided : 0, beside);
        carat_session_options o = {.n_ctx = f.n_tokens, .chunk = 16, .checkpoint_mb = -1};
        carat_device_memory before[CARAT_DEVICES_MAX], after[CARAT_DEVICES_MAX];
        carat_memory_plan plan;
        carat_session *s;
        carat_error e = {0};
        uint64_t copies = 0;
        CHECK_OK(carat_plan(m, &o, &plan, &e), e);
        CHECK_EQ(plan.n_devices, 1 + divided);
        CHECK_EQ(carat_memory(m, before), plan.n_devices);
        CHECK_OK(carat_session_open(m, &o, &s, &e), e);
        carat_memory(m, after);
        for (int32_t i = 0; i < plan.n_devices; i++) {
            const carat_device_plan *p = &plan.device[i];
            CHECK_EQ(after[i].used_bytes - before[i].used_bytes,
                     p->kv_swa_bytes + p->kv_global_bytes + p->scratch_bytes);
            CHECK(p->scratch_bytes && p->n_layers && !strcmp(p->device, after[i].device));
            copies += before[i].used_bytes;
        }
        CHECK(copies >= plan.repack_bytes && copies < plan.repack_bytes + (64 << 10));
        carat_session_close(s);
        carat_memory(m, after);
        for (int32_t i = 0; i < plan.n_devices; i++)
            CHECK_EQ(after[i].used_bytes, before[i].used_bytes);
        carat_model_close(m);
    }
    fidelity_close(&f);
}

static void refused(const char *path, carat_model_options o, const char *part)
{
    carat_model *m;
    carat_error e = {0};
    CHECK_EQ(carat_model_open(path, &o, &m, &e), CARAT_E_ARG);
    CHECK(!m && strstr(e.text, part));
}

TEST(divisions_that_cannot_be_are_refused)
{
    fidelity f;
    fidelity_open(&f, "all");
    const char *path = fidelity_write(&f, NULL);
    refused(path, (carat_model_options){.device = "cpu", .gpu_layers = 1},
            "the model is on the CPU");
    refused(path, (carat_model_options){.device = "cpu", .cpu_experts = true},
            "the model is on the CPU");
    refused(path, (carat_model_options){.device = "cpu,cpu", .gpu_layers = f.n_layer + 1},
            "expected 1 to all of them");
    refused(path, (carat_model_options){.device = "cpu,cpu", .gpu_layers = -1},
            "expected 1 to all of them");
    refused(path, (carat_model_options){.device = "cpu,cpu", .cpu_experts = true, .wrap = "time"},
            "--wrap cannot be used");
    static const char *const splits[] = {"0x3,1", "1,0x2", "1e1,1", "1.5.2,1", "1,-1",
                                         "1,0",   "1,1,1", "1",     "",        "nan,1",
                                         ",1",    "1,",    "1 ,1"};
    for (size_t i = 0; i < sizeof splits / sizeof *splits; i++)
        refused(path, (carat_model_options){.device = "cpu,cpu", .gpu_split = splits[i]},
                "--gpu-split '");
    refused(path, (carat_model_options){.device = "cpu,cpu", .split = "none"}, "--device cpu is it");
    refused(path, (carat_model_options){.device = "cpu,cpu", .gpu_split = "1"}, "the 2 devices");
    fidelity_close(&f);
}

static carat_status look(void *user, const carat_model *m, carat_error *e)
{
    carat_memory_plan *p = user;
    carat_session_options o = {.n_ctx = 64};
    carat_status st = carat_plan(m, &o, p, e);
    return st ? st : CARAT_E_CANCELLED;
}

TEST(a_plan_is_told_before_anything_is_loaded)
{
    fidelity f;
    carat_memory_plan p = {0};
    carat_error e = {0};
    carat_model *m;
    fidelity_open(&f, "all");
    const char *path = fidelity_write(&f, NULL);
    carat_model_options o = {.device = "cpu", .planned = look, .planned_user = &p};
    CHECK_EQ(carat_model_open(path, &o, &m, &e), CARAT_E_CANCELLED);
    CHECK(!m && p.n_ctx == 64 && p.total_bytes && p.n_devices == 1);
    fidelity_close(&f);
}

static status broken(const device *d, err *e)
{
    return err_set(e, E_IO, "%s: broken", d->name);
}

TEST(any_device_of_a_divided_model_may_fail_a_pass)
{
    fidelity f;
    fidelity_open(&f, "moe");
    carat_model *m = open_on(fidelity_write(&f, NULL), "cpu,cpu,cpu", 2, false);
    carat_session_options o = {.n_ctx = 32, .checkpoint_mb = -1};
    carat_session *s;
    carat_error e = {0};
    CHECK_OK(carat_session_open(m, &o, &s, &e), e);
    for (int32_t i = 0; i < 3; i++) {
        model_device(m, i)->failed = broken;
        CHECK_STATUS(carat_eval(s, f.tokens, 8, NULL, NULL, &e), E_IO);
        CHECK_EQ(carat_session_n_past(s), 0);
        model_device(m, i)->failed = NULL;
        e = (carat_error){0};
    }
    CHECK_OK(carat_eval(s, f.tokens, 8, NULL, NULL, &e), e);
    carat_session_close(s);
    carat_model_close(m);
    fidelity_close(&f);
}

static int32_t passes_to_failure;

static status broken_later(const device *d, err *e)
{
    return --passes_to_failure < 0 ? err_set(e, E_IO, "%s: it has left the bus", d->name) : OK;
}

/* In a later chunk of a prompt, and in a token of an answer. The call ends, and another model goes
 * on; the timeline ends before the pass that failed. */
TEST(a_device_that_fails_in_the_middle_ends_the_call)
{
    enum { CHUNK = 4, N = 24, AT = 3 };
    fidelity f;
    fidelity_open(&f, "qwen3");
    const char *path = fidelity_write(&f, NULL);
    carat_model *m = open_on(path, "cpu,cpu,cpu", 0, false);
    carat_model *other = open_on(path, "cpu,cpu", 0, false);
    carat_session_options o = {.n_ctx = 32, .chunk = CHUNK, .checkpoint_mb = -1};
    carat_session *s, *t;
    carat_error e = {0};
    size_t n_bytes = (size_t)f.n_vocab * sizeof(float);
    float *a = mem_calloc(1, n_bytes), *b = mem_calloc(1, n_bytes);
    CHECK_OK(carat_session_open(m, &o, &s, &e), e);
    CHECK_OK(carat_session_open(other, &o, &t, &e), e);
    CHECK_OK(carat_eval(t, f.tokens, N, b, NULL, &e), e);
    CHECK_OK(carat_append(t, f.tokens + N, 1, false, b, &e), e);
    for (int32_t k = 0; k < 3; k++)
        for (int token = 0; token < 2; token++) {
            carat_reset(s);
            if (token)
                CHECK_OK(carat_eval(s, f.tokens, N, a, NULL, &e), e);
            passes_to_failure = token ? 0 : AT;
            model_device(m, k)->failed = broken_later;
            CHECK_STATUS(token ? carat_append(s, f.tokens + N, 1, false, a, &e)
                               : carat_eval(s, f.tokens, N, a, NULL, &e),
                         E_IO);
            CHECK(strstr(e.text, "it has left the bus"));
            CHECK_EQ(carat_session_n_past(s), token ? N : AT * CHUNK);
            e = (carat_error){0};
            carat_reset(t);
            CHECK_OK(carat_eval(t, f.tokens, N, a, NULL, &e), e);
            model_device(m, k)->failed = NULL;
            CHECK_OK(carat_eval(s, f.tokens, N, a, NULL, &e), e);
            CHECK_OK(carat_append(s, f.tokens + N, 1, false, a, &e), e);
            CHECK(!memcmp(a, b, n_bytes));
        }
    mem_free(a);
    mem_free(b);
    carat_session_close(s);
    carat_session_close(t);
    carat_model_close(m);
    carat_model_close(other);
    fidelity_close(&f);
}

typedef struct divided_open {
    const fidelity *f;
    const char *path;
} divided_open;

static status open_divided(void *arg, err *e)
{
    const divided_open *o = arg;
    const carat_model_options mo = {
        .device = "cpu,cpu,cpu", .gpu_layers = 2, .cpu_experts = true, .n_threads = 1};
    return fidelity_restores(o->path, &mo, o->f->tokens, e);
}

TEST(a_divided_model_survives_every_failing_allocation)
{
    fidelity f;
    fidelity_open(&f, "moe");
    test_every_allocation(open_divided, &(divided_open){&f, fidelity_write(&f, NULL)});
    fidelity_close(&f);
}

/* ---- Any layer anywhere ------------------------------------------------------------------ */

enum { DEVICES = 3, ROWS = 16 };

/* One timeline of a model whose layers are placed by hand. */
typedef struct placed {
    device *dev[DEVICES];
    void *scratch[DEVICES];
    size_t scratch_bytes[DEVICES];
    int32_t n_dev;
    model m;
    kv_layout l;
    kv_cache c;
    kv_batch b;
} placed;

/* n_dev 1: whole. Else layer i is on device i mod n_dev, and its experts on the next one.
 * apart: no device has the host's memory, so copies between them are staged. */
static void place(placed *p, const char *path, const fidelity *f, int32_t n_dev, bool apart)
{
    int8_t layer[64], expert[64];
    gguf file = {0};
    model_costs costs;
    err e = {0};
    CHECK(f->n_layer <= 64);
    *p = (placed){.n_dev = n_dev};
    CHECK_OK(gguf_open(&file, path, false, NULL, NULL, &e), e);
    CHECK_OK(model_bind(&p->m, &file, &e), e);
    for (int32_t i = 0; i < f->n_layer; i++) {
        layer[i] = (int8_t)(i % n_dev);
        expert[i] = (int8_t)(has_experts(f->name) ? (i + 1) % n_dev : layer[i]);
    }
    for (int32_t i = 0; i < n_dev; i++) {
        CHECK_OK(device_open_cpu(&p->dev[i], &(cpu_options){.n_threads = 1}, &e), e);
        p->dev[i]->host_memory = !apart;
    }
    CHECK_OK(model_place(&p->m, p->dev + 1, n_dev - 1, layer, expert, &e), e);
    CHECK_OK(model_load(&p->m, p->dev[0], NULL, NULL, &e), e);
    kv_want_layout want = {.spec = p->m.kv,
                           .n = p->m.n_kv,
                           .recur = p->m.recur,
                           .n_recur = p->m.n_recur,
                           .n_ctx = f->n_tokens,
                           .rows_max = ROWS};
    memcpy(want.dev, p->dev, sizeof p->dev);
    CHECK_OK(kv_layout_init(&p->l, &want, &e), e);
    CHECK_OK(kv_open(&p->c, p->dev[0], &p->l, &e), e);
    CHECK_OK(kv_batch_init(&p->b, ROWS, 1, &p->l, &e), e);
    for (int32_t rows = 1; rows <= ROWS; rows++) {
        CHECK_OK(model_plan(&p->m, p->dev[0], &p->l, rows, 1, NULL, &costs, &e), e);
        for (int32_t i = 0; i < n_dev; i++)
            if (costs.side[i].scratch_bytes > p->scratch_bytes[i])
                p->scratch_bytes[i] = costs.side[i].scratch_bytes;
    }
    for (int32_t i = 0; i < n_dev; i++) {
        p->scratch[i] = p->dev[i]->alloc(p->dev[i], p->scratch_bytes[i]);
        CHECK(p->scratch[i]);
    }
}

static void unplace(placed *p)
{
    kv_batch_free(&p->b);
    kv_close(&p->c);
    kv_layout_free(&p->l);
    for (int32_t i = 0; i < p->n_dev; i++)
        p->dev[i]->release(p->dev[i], p->scratch[i], p->scratch_bytes[i]);
    model_free(&p->m);
    for (int32_t i = 0; i < p->n_dev; i++)
        device_close(p->dev[i]);
}

/* The logits after the next n tokens. */
static void go_on(placed *t, const fidelity *f, int32_t n, float *logits)
{
    pass p;
    err e = {0};
    kv_batch_clear(&t->b);
    CHECK_OK(kv_reserve(&t->c, n, &e), e);
    const kv_rows rows = {
        .token = f->tokens + t->c.n_past, .n = n, .want = KV_WANT_LAST, .final = true};
    CHECK_OK(kv_batch_add_rows(&t->b, &t->c, &rows, &e), e);
    pass_begin(&p, t->dev[0], &t->b.st, t->scratch[0], t->scratch_bytes[0]);
    for (int32_t i = 1; i < t->n_dev; i++)
        pass_add_side(&p, t->dev[i], t->scratch[i], t->scratch_bytes[i]);
    mat y = model_forward(&p, &t->m, &t->l);
    CHECK_OK(p.e.status, p.e);
    CHECK_EQ(p.here, PASS_MAIN);
    for (int32_t i = 0; i < t->n_dev; i++)
        CHECK(p.side[i].peak && p.side[i].peak <= t->scratch_bytes[i]);
    memcpy(logits, y.at, (size_t)f->n_vocab * sizeof *logits);
    kv_commit(&t->c, n);
}

TEST(layers_may_be_placed_in_any_order)
{
    int n_models = 0;
    for (const char *const *name = fidelity_names; *name; name++) {
        fidelity f;
        fidelity_open(&f, *name);
        const char *path = fidelity_write(&f, NULL);
        size_t n = (size_t)f.n_vocab;
        float *a = mem_calloc(n, sizeof *a), *b = mem_calloc(n, sizeof *b);
        for (int apart = 0; apart < 2 && !f.n_shared; apart++, n_models++) {
            placed whole, parts;
            place(&whole, path, &f, 1, false);
            place(&parts, path, &f, DEVICES, apart);
            const int32_t rows[] = {ROWS, 5, 1, 1};
            for (int i = 0; i < 4; i++) {
                go_on(&whole, &f, rows[i], a);
                go_on(&parts, &f, rows[i], b);
                CHECK(!memcmp(a, b, n * sizeof *a));
            }
            unplace(&whole);
            unplace(&parts);
        }
        mem_free(a);
        mem_free(b);
        fidelity_close(&f);
    }
    CHECK(n_models > 0);
}

TEST(placements_that_cannot_be_are_refused)
{
    fidelity f;
    gguf file = {0};
    model m;
    device *none[PASS_SIDES_MAX] = {0};
    int8_t side[64] = {0}, beyond[64] = {0};
    err e = {0};
    fidelity_open(&f, "all"); /* its last layers read the keys of earlier ones */
    CHECK_OK(gguf_open(&file, fidelity_write(&f, NULL), false, NULL, NULL, &e), e);
    CHECK_OK(model_bind(&m, &file, &e), e);
    beyond[0] = 2;
    CHECK_STATUS(model_place(&m, none, 1, beyond, side, &e), E_ARG);
    CHECK(strstr(e.text, "is not there"));
    e = (err){0};
    CHECK_STATUS(model_place(&m, none, PASS_SIDES_MAX, side, side, &e), E_ARG);
    e = (err){0};
    side[f.n_layer - 1] = 1;
    CHECK_STATUS(model_place(&m, none, 1, side, side, &e), E_ARG);
    CHECK(f.n_shared && strstr(e.text, "whose keys it reads"));
    model_free(&m);
    fidelity_close(&f);
}
