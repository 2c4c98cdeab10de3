/* fit_test.c - what models give up to fit GPUs: plans over published shapes and sizes of cards,
 * without a GPU and without weights (carat_model_options.plan_gpu_mb, carat synth --hollow).
 */
#include "carat.h"
#include "tests/spawn.h"
#include "tests/test.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char *const shapes[] = {"26b-a4b",         "31b",       "e4b",       "e2b",
                                     "qwen3.6-35b-a3b", "laguna-xs", "qwen3-14b", "qwen3.6-27b"};
/* MiB free. */
static const int64_t sizes[] = {2500,  3600,  5000,  6000,  7808,  9500,  11840, 13900,
                                15872, 19000, 21500, 23936, 32000, 47900, 79000};
enum { SHAPES = sizeof shapes / sizeof *shapes, SIZES = sizeof sizes / sizeof *sizes };

/* A file of that shape's first layers and type, without weights. The caller unlinks it. */
static void write_layers(const char *shape, const char *type, const char *layers, char path[128])
{
    AUTO(spawned_free) spawned r;
    const spawn_options o = {0};
    snprintf(path, 128, "%s/fit-%s-%s-%d.gguf", P_tmpdir, shape, type, (int)getpid());
    spawn_carat(&r, &o,
                (const char *const[]){"synth", "--hollow", "--vocab", "none", "--layers", layers,
                                      "-t", type, shape, path, NULL});
    CHECK_EQ(r.code, 0);
}

static void write_hollow(const char *shape, const char *type, char path[128])
{
    write_layers(shape, type, "256", path);
}

typedef struct fitted {
    carat_status st;
    carat_error e;
    carat_fit fit;
    bool q8;
    int32_t n_ctx, n_layers, n_slots; /* layers on the GPU; all experts: INT32_MAX */
    int32_t chunk;
    uint64_t total_bytes, all_bytes; /* of the first device; of all */
    char text[400], kv[16];
} fitted;

static fitted fit_with(const char *path, int64_t mib, carat_model_options mo,
                       const carat_session_options *so)
{
    fitted f = {0};
    carat_model *m;
    carat_model_info i;
    carat_memory_plan p;
    carat_expert_info x;
    carat_kv_kind kind;
    mo.vocab_only = true;
    mo.plan_gpu_mb[0] = mib;
    mo.session = so;
    if ((f.st = carat_model_open(path, &mo, &m, &f.e)))
        return f;
    carat_model_get_info(m, &i);
    f.st = carat_plan(m, so, &p, &f.e);
    f.fit = i.fit;
    f.q8 = !strcmp(i.fit_kv, "q8_0");
    f.n_ctx = p.n_ctx;
    f.chunk = p.chunk;
    f.n_layers = p.device[0].n_layers;
    f.n_slots = carat_experts(m, &x) ? x.n_slots : i.fit >= CARAT_FIT_EXPERTS ? 0 : INT32_MAX;
    f.total_bytes = p.device[0].total_bytes;
    f.all_bytes = p.total_bytes;
    snprintf(f.text, sizeof f.text, "%s", i.fit_text);
    CHECK(carat_plan_kv(m, so, &kind, 1, &f.e) > 0);
    snprintf(f.kv, sizeof f.kv, "%s", kind.k);
    carat_model_close(m);
    return f;
}

/* One plan: within the memory, in the order that fit.c documents. */
static void check_one(const char *shape, int64_t mib, const fitted *f, int32_t n_layer)
{
    CHECK_MSG(f->total_bytes <= (uint64_t)mib << 20, "%s: %.1f MiB planned in %lld", shape,
              (double)f->total_bytes * 0x1p-20, (long long)mib);
    CHECK_MSG((f->fit == CARAT_FIT_WHOLE) == !*f->text, "%s, %lld: '%s'", shape, (long long)mib,
              f->text);
    CHECK_MSG(!strcmp(f->kv, f->q8 ? "q8_0" : "f16"), "%s: keys of %s", shape, f->kv);
    bool right = true;
    if (f->fit <= CARAT_FIT_CONTEXT)
        right = !f->q8 && f->n_ctx >= 32768 && f->n_layers == n_layer && f->n_slots == INT32_MAX;
    if (f->fit == CARAT_FIT_KEYS)
        right = f->q8 && f->n_ctx <= 65536 && f->n_ctx >= 8192 && f->n_layers == n_layer &&
                f->n_slots == INT32_MAX;
    if (f->fit == CARAT_FIT_EXPERTS)
        right = f->q8 && f->n_ctx <= 32768 && f->n_ctx >= 8192 && f->n_layers == n_layer;
    if (f->fit == CARAT_FIT_LAYERS)
        right = f->q8 && f->n_ctx == 8192 && f->n_layers >= 1 && f->n_layers < n_layer;
    CHECK_MSG(right, "%s, %lld MiB: choice %d: %s", shape, (long long)mib, (int)f->fit, f->text);
}

static void check_shape(const char *shape, const char *card, int step)
{
    char path[128];
    write_hollow(shape, "q4_k_m", path);
    const carat_session_options so = {.n_outputs = 1};
    const carat_model_options mo = {.card = card};
    fitted last = fit_with(path, 1 << 20, mo, &so), f;
    CHECK_OK(last.st, last.e);
    CHECK_EQ((int)last.fit, CARAT_FIT_WHOLE);
    int32_t n_layer = last.n_layers;
    for (int i = SIZES - 1; i >= 0; i -= step) {
        f = fit_with(path, sizes[i], mo, &so);
        if (f.st == CARAT_E_MEMORY) { /* nor does less fit */
            last.n_ctx = last.n_layers = last.n_slots = -1;
            continue;
        }
        CHECK_OK(f.st, f.e);
        check_one(shape, sizes[i], &f, n_layer);
        CHECK_MSG(f.fit >= last.fit && f.n_ctx <= last.n_ctx && f.n_layers <= last.n_layers &&
                      f.n_slots <= last.n_slots && f.q8 >= last.q8,
                  "%s: %lld MiB has more than %lld MiB: %s", shape, (long long)sizes[i],
                  (long long)(i + step < SIZES ? sizes[i + step] : 0), f.text);
        last = f;
    }
    unlink(path);
}

TEST(fit_more_memory_never_gives_less)
{
    for (int i = 0; i < SHAPES; i += SANITIZED ? 2 : 1)
        check_shape(shapes[i], "8.6", SANITIZED ? 5 : test_brief() ? 4 : 1);
}

TEST(fit_on_cards_of_every_capability)
{
    static const char *const cards[] = {"8.0", "8.9", "9.0", "10.0", "12.0"};
    for (size_t i = 0; i < sizeof cards / sizeof *cards; i++)
        check_shape(i % 2 ? "26b-a4b" : "e4b", cards[i], SANITIZED ? 7 : test_brief() ? 4 : 1);
}

TEST(fit_of_the_models_that_people_run)
{
    char path[128];
    const carat_session_options def = {.n_outputs = 1};
    carat_session_options so = {.n_ctx = 65536, .n_outputs = 1};
    write_hollow("26b-a4b", "q4_k_m", path);
    fitted f = fit_with(path, 23936, (carat_model_options){0}, &so);
    CHECK_OK(f.st, f.e);
    CHECK(f.fit == CARAT_FIT_WHOLE && f.n_ctx == 65536 && f.n_slots == INT32_MAX);
    f = fit_with(path, 11840, (carat_model_options){0}, &def);
    CHECK_OK(f.st, f.e);
    CHECK(f.fit == CARAT_FIT_EXPERTS && f.n_ctx == 32768 && f.n_slots > 1000);
    unlink(path);
    write_hollow("qwen3.6-27b", "q4_k_m", path);
    so.n_ctx = 131072; /* kept: the formats of keys change in its place */
    f = fit_with(path, 23936, (carat_model_options){0}, &so);
    CHECK_OK(f.st, f.e);
    CHECK(f.fit == CARAT_FIT_KEYS && f.q8 && f.n_ctx == 131072);
    unlink(path);
    write_hollow("e4b", "q4_k_m", path);
    so.n_ctx = 32768;
    f = fit_with(path, 7808, (carat_model_options){0}, &so);
    CHECK_OK(f.st, f.e);
    CHECK(f.fit <= CARAT_FIT_KEYS && f.n_ctx == 32768);
    unlink(path);
}

TEST(fit_keeps_what_options_say)
{
    char path[128];
    write_hollow("31b", "q4_k_m", path);
    carat_session_options so = {.kv_k = "f16", .n_outputs = 1};
    fitted f = fit_with(path, 23936, (carat_model_options){0}, &so);
    CHECK_OK(f.st, f.e);
    CHECK(!strcmp(f.kv, "f16") && f.n_ctx >= 8192 && f.n_layers == 60);
    so = (carat_session_options){.n_ctx = 100000, .kv_k = "f16", .n_outputs = 1};
    f = fit_with(path, 23936, (carat_model_options){0}, &so);
    CHECK_OK(f.st, f.e);
    CHECK(f.n_ctx == 100000 && f.fit == CARAT_FIT_LAYERS && !strcmp(f.kv, "f16"));
    so = (carat_session_options){.n_outputs = 1};
    f = fit_with(path, 23936, (carat_model_options){.gpu_layers = 20}, &so);
    CHECK_OK(f.st, f.e);
    CHECK(f.n_layers == 20 && f.fit <= CARAT_FIT_CONTEXT);
    /* What cannot be is told with numbers, and what would fit beside it. */
    so.n_ctx = 262144;
    f = fit_with(path, 11840, (carat_model_options){.gpu_layers = 30}, &so);
    CHECK_STATUS(f.st, CARAT_E_MEMORY);
    CHECK_MSG(strstr(f.e.text, "context of 262144 tokens needs") && strstr(f.e.text, "MiB more") &&
                  !strstr(f.e.text, "(null)"),
              "%s", f.e.text);
    so.n_ctx = 131072;
    f = fit_with(path, 23936, (carat_model_options){.gpu_layers = 59}, &so);
    CHECK_STATUS(f.st, CARAT_E_MEMORY);
    CHECK_MSG(strstr(f.e.text, "would fit"), "%s", f.e.text);
    unlink(path);
    write_hollow("26b-a4b", "q4_k_m", path);
    so.n_ctx = 0;
    f = fit_with(path, 15872, (carat_model_options){.experts_gpu = "0.25"}, &so);
    CHECK_OK(f.st, f.e);
    CHECK(f.n_slots > 900 && f.n_slots <= 960);
    f = fit_with(path, 15872, (carat_model_options){.experts_gpu = "0.01"}, &so);
    CHECK_STATUS(f.st, CARAT_E_MEMORY); /* the sentence is about the experts, not about the card */
    CHECK_MSG(strstr(f.e.text, "for experts are too few"), "%s", f.e.text);
    /* Of a part slots alone are taken: a part with the least that the sentence says has a plan. */
    const char *least = strstr(f.e.text, "expected at least "), *all = strstr(f.e.text, "take ");
    CHECK_MSG(least && all && !strstr(f.e.text, "stages"), "%s", f.e.text);
    if (least && all) {
        char part[32];
        snprintf(part, sizeof part, "%.4f",
                 (strtod(least + 18, NULL) + 0.1) / strtod(all + 5, NULL));
        f = fit_with(path, 15872, (carat_model_options){.experts_gpu = part}, &so);
        CHECK_OK(f.st, f.e);
    }
    f = fit_with(path, 7808, (carat_model_options){.cpu_experts = true}, &so);
    CHECK_OK(f.st, f.e);
    CHECK(f.n_slots == INT32_MAX && f.fit <= CARAT_FIT_KEYS && f.n_layers == 30);
    unlink(path);
}

/* Chunks of 4,096 rows from the MiB on in which their memory is a sixteenth of what is left. */
TEST(fit_takes_longer_chunks_where_memory_is_plenty)
{
    static const char *const of[] = {"31b", "qwen3.6-35b-a3b"};
    char path[128];
    for (int i = 0; i < 2; i++) {
        uint64_t bytes[2];
        fitted f;
        write_hollow(of[i], "q4_k_m", path);
        carat_session_options so = {.n_ctx = 16384, .n_outputs = 1};
        for (int k = 0; k < 2; k++) { /* chunks that options name are kept */
            so.chunk = 2048 << k;
            f = fit_with(path, 1 << 20, (carat_model_options){0}, &so);
            CHECK_OK(f.st, f.e);
            CHECK_EQ(f.chunk, so.chunk);
            bytes[k] = f.total_bytes;
        }
        so.chunk = 0;
        CHECK(bytes[1] > bytes[0]);
        const uint64_t room = bytes[0] + 16 * (bytes[1] - bytes[0]);
        const int64_t mib = (int64_t)((room + (1 << 20) - 1) >> 20);
        for (int64_t k = -1; k < 2; k++) {
            f = fit_with(path, mib + k, (carat_model_options){0}, &so);
            CHECK_OK(f.st, f.e);
            CHECK_EQ(f.chunk, k < 0 ? 2048 : 4096);
            CHECK_EQ(f.total_bytes, bytes[k >= 0]);
        }
        so.n_ctx = 3000;
        f = fit_with(path, 1 << 20, (carat_model_options){0}, &so);
        CHECK_OK(f.st, f.e);
        CHECK_EQ(f.chunk, 3000);
        unlink(path);
    }
}

/* In a batch of several slots others would wait for the end of a long pass, and so would stages. */
TEST(fit_keeps_short_chunks_where_others_wait)
{
    char path[128];
    carat_model *m;
    carat_memory_plan p;
    carat_error e = {0};
    carat_batch_options bo = {.session = {.n_ctx = 16384, .n_outputs = 1}};
    carat_model_options o = {.vocab_only = true, .plan_gpu_mb = {1 << 20}};
    write_hollow("e4b", "q4_k_m", path);
    for (int32_t n = 1; n < 3; n++) {
        bo.n_slots = n;
        CHECK_OK(carat_model_open(path, &o, &m, &e), e);
        CHECK_OK(carat_plan_batch(m, &bo, &p, &e), e);
        CHECK_EQ(p.chunk, n == 1 ? 4096 : 2048);
        carat_model_close(m);
    }
    o.plan_gpu_mb[1] = 1 << 20;
    o.session = &bo.session;
    CHECK_OK(carat_model_open(path, &o, &m, &e), e);
    CHECK_OK(carat_plan(m, &bo.session, &p, &e), e);
    CHECK_EQ(p.n_devices, 2);
    CHECK_EQ(p.chunk, 2048);
    carat_model_close(m);
    unlink(path);
}

/* Two and three GPUs: no device is too full, all layers are somewhere, and where all of them are on
 * GPUs the same part of each is taken, to about a layer. */
static void check_shared(const char *path, const int64_t *mib, int n, bool even)
{
    carat_model_options o = {.vocab_only = true};
    const carat_session_options so = {.n_ctx = 8192, .n_outputs = 1};
    AUTO_MODEL *m;
    carat_model_info i;
    carat_memory_plan p;
    carat_error e = {0};
    double low = 1, high = 0;
    int32_t n_layers = 0;
    o.session = &so;
    memcpy(o.plan_gpu_mb, mib, (size_t)n * sizeof *mib);
    CHECK_OK(carat_model_open(path, &o, &m, &e), e);
    carat_model_get_info(m, &i);
    CHECK_OK(carat_plan(m, &so, &p, &e), e);
    CHECK_EQ(p.n_devices, n + (i.fit == CARAT_FIT_LAYERS));
    for (int32_t k = 0; k < p.n_devices; k++) {
        const carat_device_plan *d = &p.device[k];
        n_layers += d->n_layers;
        if (k >= n)
            continue;
        double part = (double)d->total_bytes / (double)d->available_bytes;
        CHECK_EQ(d->available_bytes, (uint64_t)mib[k ? k - 1 : n - 1] << 20);
        CHECK_MSG(part <= 1, "device %d: %.4f taken", (int)k, part);
        low = part < low ? part : low;
        high = part > high ? part : high;
    }
    CHECK_EQ(n_layers, i.n_layer);
    CHECK_MSG(!even || high - low < 0.1, "%.3f to %.3f", low, high);
}

TEST(fit_shares_layers_by_memory)
{
    static const struct {
        const char *shape;
        int64_t mib[3];
        int n;
        bool even;
    } x[] = {{"31b", {23936, 23936}, 2, true},     {"31b", {23936, 11840}, 2, true},
             {"31b", {11840, 23936}, 2, true},     {"31b", {15872, 11840, 7808}, 3, true},
             {"31b", {7808, 7808}, 2, false}, /* not all layers fit */
             {"26b-a4b", {11840, 11840}, 2, true}, {"qwen3.6-27b", {11840, 15872}, 2, true},
             {"e4b", {7808, 7808}, 2, false}}; /* its last layers belong together */
    char path[128];
    for (size_t i = 0; i < sizeof x / sizeof *x; i++) {
        write_hollow(x[i].shape, "q4_k_m", path);
        check_shared(path, x[i].mib, x[i].n, x[i].even);
        unlink(path);
    }
}

/* A mixture that fits no number of GPUs: each is nearly full, and of each one's experts about the
 * same part has slots. What each has adds up to what the model has. gpu_layers 0: all. split
 * "tensor": each has its part of all experts, or some of each layer's. */
static void check_slots(const char *path, const char *split, const int64_t *mib, int n,
                        int32_t gpu_layers)
{
    carat_model_options o = {.vocab_only = true, .gpu_layers = gpu_layers, .split = split};
    const carat_session_options so = {.n_ctx = 8192, .n_outputs = 1};
    AUTO_MODEL *m;
    carat_expert_info all, x;
    carat_memory_plan p;
    carat_error e = {0};
    double low = 1, high = 0;
    int32_t n_slots = 0, n_experts = 0, n_layers = 0;
    uint64_t host = 0;
    o.session = &so;
    memcpy(o.plan_gpu_mb, mib, (size_t)n * sizeof *mib);
    CHECK_OK(carat_model_open(path, &o, &m, &e), e);
    CHECK_OK(carat_plan(m, &so, &p, &e), e);
    CHECK(carat_experts(m, &all));
    CHECK_EQ(p.n_devices, n + (gpu_layers > 0));
    for (int32_t k = 0; k < n; k++) {
        const carat_device_plan *d = &p.device[k];
        CHECK(carat_experts_on(m, k, &x));
        CHECK_EQ(x.n_layers, d->n_layers);
        CHECK_EQ(x.device_bytes, d->expert_bytes);
        CHECK_MSG(d->total_bytes <= d->available_bytes &&
                      (d->total_bytes + (64 << 20) > d->available_bytes ||
                       x.slot_bytes == x.all_bytes),
                  "device %d: %.1f of %.1f MiB", (int)k, (double)d->total_bytes * 0x1p-20,
                  (double)d->available_bytes * 0x1p-20);
        double part = (double)x.n_slots / x.n_experts;
        low = part < low ? part : low;
        high = part > high ? part : high;
        n_slots += x.n_slots;
        n_experts += x.n_experts;
        n_layers += x.n_layers;
        host += x.host_bytes;
    }
    CHECK(!carat_experts_on(m, n, &x) && !x.n_experts);
    CHECK_EQ(n_slots, all.n_slots);
    CHECK_EQ(n_experts, all.n_experts);
    CHECK_EQ(n_layers, split ? n * all.n_layers : all.n_layers); /* a rank has a part of each */
    CHECK_EQ(host, all.host_bytes);
    if (!split)
        CHECK_EQ(n_layers, gpu_layers ? gpu_layers : 30);
    /* A layer more is a part less. */
    CHECK_MSG(low > 0 && (split || high - low < 0.12), "slots for %.3f to %.3f of a GPU's experts",
              low, high);
}

TEST(fit_gives_each_gpu_slots_for_its_layers)
{
    static const int64_t equal[] = {6500, 6500}, three[] = {4784, 4784, 4784},
                         unequal[] = {7808, 3776}, reverse[] = {3776, 7808};
    char path[128];
    carat_model *m;
    carat_memory_plan p;
    carat_expert_info x;
    carat_error e = {0};
    write_hollow("26b-a4b", "q4_k_m", path);
    check_slots(path, NULL, equal, 2, 0);
    check_slots(path, NULL, three, 3, 0);
    check_slots(path, NULL, unequal, 2, 0);
    check_slots(path, NULL, reverse, 2, 0);
    check_slots(path, NULL, equal, 2, 24); /* the CPU has the first six with their experts */
    const carat_session_options so = {.n_ctx = 8192, .n_outputs = 1};
    carat_model_options o = {.vocab_only = true,
                             .experts_gpu = "50%",
                             .gpu_split = "1,2",
                             .session = &so,
                             .plan_gpu_mb = {79000, 79000}};
    CHECK_OK(carat_model_open(path, &o, &m, &e), e); /* half of each, as asked for */
    CHECK_OK(carat_plan(m, &so, &p, &e), e);
    CHECK(p.device[0].n_layers == 20 && p.device[1].n_layers == 10);
    CHECK(carat_experts_on(m, 0, &x) && x.n_experts == 20 * 128);
    CHECK(x.n_slots <= x.n_experts / 2 && x.n_slots > x.n_experts / 2 - 20);
    CHECK(carat_experts_on(m, 1, &x) && x.n_experts == 10 * 128 && x.n_slots <= x.n_experts / 2);
    carat_model_close(m);
    o.gpu_split = NULL; /* with room for all, each has the experts of its layers all the same */
    CHECK_OK(carat_model_open(path, &o, &m, &e), e);
    CHECK_OK(carat_plan(m, &so, &p, &e), e);
    for (int k = 0; k < 2; k++)
        CHECK(p.device[k].n_layers >= 14 && carat_experts_on(m, k, &x) &&
              x.n_layers == p.device[k].n_layers);
    carat_model_close(m);
    o.experts_gpu = "1"; /* MiB, on each */
    CHECK_EQ(carat_model_open(path, &o, &m, &e), CARAT_E_MEMORY);
    CHECK_MSG(strstr(e.text, "of its layers"), "%s", e.text);
    o = (carat_model_options){.vocab_only = true,
                              .experts_gpu = "50%",
                              .cpu_experts = true,
                              .plan_gpu_mb = {79000, 79000}};
    e = (carat_error){0};
    CHECK_EQ(carat_model_open(path, &o, &m, &e), CARAT_E_ARG);
    CHECK_MSG(strstr(e.text, "--experts-gpu"), "%s", e.text);
    unlink(path);
}

/* The small GPU has the embeddings, and no room for the scratch of chunks of 4096 tokens. */
TEST(fit_of_experts_beside_a_small_gpu_takes_shorter_chunks)
{
    static const int64_t small[] = {1760, 2500};
    const carat_session_options so = {.n_outputs = 1};
    char path[128];
    write_hollow("26b-a4b", "q4_k_m", path);
    for (int i = 0; i < 2; i++) {
        const carat_model_options mo = {.plan_gpu_mb = {0, 23936}};
        const fitted f = fit_with(path, small[i], mo, &so);
        CHECK_OK(f.st, f.e);
        CHECK_MSG(f.fit <= CARAT_FIT_EXPERTS && f.n_slots > 3840 * 9 / 10 && f.chunk >= 512,
                  "%d slots, chunks of %d: %s", (int)f.n_slots, (int)f.chunk, f.text);
    }
    const carat_session_options own = {.n_outputs = 1, .chunk = 4096}; /* as asked for */
    const carat_model_options mo = {.plan_gpu_mb = {0, 23936}};
    const fitted f = fit_with(path, small[0], mo, &own);
    CHECK_MSG(f.st || f.chunk == 4096, "chunks of %d", (int)f.chunk);
    unlink(path);
}

/* Memory to the MiB: what a plan takes is enough for the same plan, and a MiB less is not. On one
 * GPU, and of two ranks. */
TEST(fit_takes_what_just_fits)
{
    const carat_session_options so = {.n_outputs = 1, .chunk = 2048};
    char path[128];
    write_layers("31b", "q4_k_m", "12", path);
    for (int64_t n = 1; n <= 2; n++) {
        carat_model_options mo = {.split = n > 1 ? "tensor" : NULL,
                                  .plan_gpu_mb = {0, n > 1 ? 79000 : 0}};
        const fitted most = fit_with(path, 79000, mo, &so);
        CHECK_OK(most.st, most.e);
        CHECK_EQ((int)most.fit, CARAT_FIT_WHOLE);
        int64_t mib = (int64_t)((most.total_bytes + (1 << 20) - 1) >> 20);
        mo.plan_gpu_mb[1] = n > 1 ? mib : 0;
        const fitted just = fit_with(path, mib, mo, &so);
        mo.plan_gpu_mb[1] = n > 1 ? mib - 1 : 0;
        const fitted less = fit_with(path, mib - 1, mo, &so);
        CHECK_OK(just.st, just.e);
        CHECK_OK(less.st, less.e);
        CHECK_EQ((int)just.fit, CARAT_FIT_WHOLE);
        CHECK_EQ(just.total_bytes, most.total_bytes);
        CHECK_EQ((int)less.fit, CARAT_FIT_CONTEXT);
        CHECK_EQ(less.n_ctx, most.n_ctx / 2);
    }
    unlink(path);
}

/* Two equal GPUs that share the layers: in the least that holds the model, next to nothing is left
 * over, because both halves are alike. */
TEST(fit_of_equal_halves_wastes_no_layer)
{
    const carat_session_options so = {.n_outputs = 1, .chunk = 2048};
    char path[128];
    int64_t low = 1000, high = 79000;
    fitted f = {0};
    write_layers("31b", "q4_k_m", "12", path);
    while (high - low > 1) {
        const int64_t mib = low + (high - low) / 2;
        const fitted got = fit_with(path, mib, (carat_model_options){.plan_gpu_mb = {0, mib}}, &so);
        const bool whole = !got.st && got.fit == CARAT_FIT_WHOLE;
        f = whole ? got : f;
        *(whole ? &high : &low) = mib;
    }
    const uint64_t left = ((uint64_t)(2 * high) << 20) - f.all_bytes, layer = f.all_bytes / 12;
    CHECK_MSG(left < layer / 4, "%.1f of %.1f MiB are left over", (double)left * 0x1p-20,
              (double)(2 * high));
    unlink(path);
}

/* What ranks of so many MiB have; NULL: the sentence. */
static carat_model *open_ranks(const char *path, int64_t mib, int32_t n_ctx, const char *cpu,
                               carat_error *e)
{
    const carat_session_options so = {.n_ctx = n_ctx, .n_outputs = 1};
    const carat_model_options o = {.vocab_only = true,
                                   .split = "tensor",
                                   .experts_cpu = cpu,
                                   .session = &so,
                                   .plan_gpu_mb = {mib, mib}};
    carat_model *m;
    *e = (carat_error){0};
    return carat_model_open(path, &o, &m, e) ? NULL : m;
}

/* Ranks that lack the memory for their parts have slots. More memory never means fewer of them. */
TEST(fit_gives_each_rank_slots_for_its_part)
{
    static const int64_t equal[] = {6500, 6500}, unequal[] = {5500, 6500, 6000},
                         four[] = {4500, 4500, 4500, 4500};
    /* Ranks have a part of each expert; whole ones. */
    static const char *const made[] = {"26b-a4b", "qwen3.6-35b-a3b"};
    char path[128];
    carat_memory_plan p;
    carat_expert_info x;
    carat_error e;
    for (int i = 0; i < 2; i++) {
        int32_t last = 0;
        write_hollow(made[i], "q4_k_m", path);
        check_slots(path, "tensor", equal, 2, 0);
        check_slots(path, "tensor", unequal, 3, 0);
        check_slots(path, "tensor", four, 4, 0);
        CHECK(!open_ranks(path, 1500, 8192, NULL, &e));
        CHECK_MSG(e.status == CARAT_E_MEMORY && strstr(e.text, "MiB"), "%s", e.text);
        for (int64_t mib = 3500; mib <= 15500; mib += 4000) {
            carat_model *m = open_ranks(path, mib, 8192, NULL, &e);
            if (!m)
                CHECK_MSG(e.status == CARAT_E_MEMORY && !last, "%s", e.text);
            const int32_t n = !m ? 0 : carat_experts(m, &x) ? x.n_slots : INT32_MAX;
            carat_model_close(m);
            CHECK_MSG(n >= last, "%d slots of %d MiB, %d of less", (int)n, (int)mib, (int)last);
            last = n;
        }
        CHECK_EQ(last, INT32_MAX);
        if (!i) { /* nothing else is left to give up */
            AUTO_MODEL *m = open_ranks(path, 3300, 0, NULL, &e);
            CHECK_MSG(m, "%s", e.text);
            CHECK_OK(carat_plan(m, &(carat_session_options){.n_outputs = 1}, &p, &e), e);
            CHECK_MSG(p.n_ctx < 32768 && carat_experts(m, &x), "a context of %d", (int)p.n_ctx);
        }
        carat_model *m = open_ranks(path, 6500, 8192, "auto", &e);
        CHECK_MSG(m, "%s", e.text);
        carat_model_close(m);
        unlink(path);
    }
}

/* With less and less memory, chunks of prompts are shortened before the context is. */
TEST(fit_shortens_chunks_of_ranks_before_their_context)
{
    char path[128];
    carat_memory_plan p = {.chunk = INT32_MAX};
    carat_error e;
    write_layers("26b-a4b", "q4_k_m", "4", path);
    for (uint64_t mib = 2300; p.chunk >= 512; mib -= 50) {
        AUTO_MODEL *m = open_ranks(path, mib, 0, NULL, &e);
        CHECK_MSG(m, "%d MiB: %s", (int)mib, e.text);
        CHECK_OK(carat_plan(m, &(carat_session_options){.n_outputs = 1}, &p, &e), e);
        CHECK_MSG(p.n_ctx >= 4096, "%d MiB: a context of %d, chunks of %d", (int)mib, (int)p.n_ctx,
                  (int)p.chunk);
    }
    unlink(path);
}

typedef struct lines {
    int n, n_whole; /* with their newline, and no other */
    char last[300];
} lines;

static void keep_line(void *user, const char *text)
{
    lines *to = user;
    const size_t n = strlen(text);
    to->n++;
    to->n_whole += n && strchr(text, '\n') == text + n - 1;
    snprintf(to->last, sizeof to->last, "%s", text);
}

/* However many contexts are tried, the log has one line of it. */
TEST(a_file_of_counts_that_is_no_use_is_told_once)
{
    static const char *const splits[] = {NULL, "tensor"};
    char path[128], counts[160];
    write_layers("26b-a4b", "q4_k_m", "4", path);
    snprintf(counts, sizeof counts, "%s.experts", path);
    FILE *f = fopen(counts, "w");
    CHECK(f && fputs("carat experts\nthat are damaged", f) >= 0 && !fclose(f));
    for (int i = 0; i < 2; i++) {
        lines said = {0};
        const carat_session_options so = {.n_outputs = 1};
        const carat_model_options o = {.plan_gpu_mb = {2400, 2400},
                                       .vocab_only = true,
                                       .split = splits[i],
                                       .session = &so,
                                       .log = keep_line,
                                       .log_user = &said};
        AUTO_MODEL *m;
        carat_expert_info x;
        carat_error e = {0};
        CHECK_OK(carat_model_open(path, &o, &m, &e), e);
        CHECK(carat_experts(m, &x) && !x.counts_file);
        CHECK_MSG(said.n == 1 && said.n_whole == 1 && strstr(said.last, "is damaged"),
                  "%d lines, %d whole: %s", said.n, said.n_whole, said.last);
    }
    unlink(counts);
    unlink(path);
}

TEST(fit_shares_layers_by_hand)
{
    char path[128];
    carat_model_options o = {.vocab_only = true, .plan_gpu_mb = {79000, 79000, 79000}};
    const carat_session_options so = {.n_ctx = 8192, .n_outputs = 1};
    static const struct {
        const char *split;
        int32_t n[3]; /* layers, in the order of the devices: the last stage is the main one */
    } x[] = {{"1,1,1", {20, 20, 20}}, {"3,2,1", {10, 30, 20}}, {"1,1000,1", {1, 1, 58}}};
    static const char *const bad[] = {"",       "1",    "1,2",   "1,2,3,4", "1,0,1",   "1,-1,1",
                                      "1,1,1,", "1,,1", "a,b,c", "1 ,1,1",  "nan,1,1", "1,1,inf"};
    carat_model *m;
    carat_memory_plan p;
    carat_error e = {0};
    write_hollow("31b", "q4_k_m", path);
    o.session = &so;
    for (size_t i = 0; i < sizeof x / sizeof *x; i++) {
        o.gpu_split = x[i].split;
        CHECK_OK(carat_model_open(path, &o, &m, &e), e);
        CHECK_OK(carat_plan(m, &so, &p, &e), e);
        for (int k = 0; k < 3; k++)
            CHECK_EQ(p.device[k].n_layers, x[i].n[k]);
        CHECK_EQ(p.device[1].first_layer, 0);
        CHECK_EQ(p.device[2].first_layer, x[i].n[1]);
        carat_model_close(m);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        o.gpu_split = bad[i];
        e = (carat_error){0};
        CHECK_MSG(carat_model_open(path, &o, &m, &e) == CARAT_E_ARG, "'%s' was taken", bad[i]);
        CHECK_MSG(strstr(e.text, "--gpu-split"), "%s", e.text);
    }
    unlink(path);
}

TEST(fit_of_a_gpu_that_is_not_here_computes_nothing)
{
    char path[128];
    carat_model *m;
    carat_error e = {0};
    write_hollow("e2b", "q4_k_m", path);
    CHECK_STATUS(carat_model_open(path, &(carat_model_options){.plan_gpu_mb = {8000}}, &m, &e),
                 CARAT_E_ARG);
    err_clear(&e);
    const carat_model_options o = {.plan_gpu_mb = {8000}, .vocab_only = true, .card = "7.5"};
    CHECK_STATUS(carat_model_open(path, &o, &m, &e), CARAT_E_ARG);
    CHECK_MSG(strstr(e.text, "8.0, 8.6"), "%s", e.text);
    unlink(path);
}

/* A GPU that is too small: the sentence says how much would do, and so much does. */
TEST(inspect_says_what_a_gpu_needs)
{
    static const char *const says = "has a plan is ";
    char path[128], size[32];
    spawned r;
    const spawn_options o = {0};
    write_layers("26b-a4b", "q4_k_m", "6", path); /* the least memory takes a dozen plans */
    spawn_carat(&r, &o, (const char *const[]){"inspect", "--gpu", "100MB", path, NULL});
    CHECK_EQ(r.code, 1);
    CHECK(spawned_says(&r.err, "has no plan for this GPU"));
    const char *at = strstr(str_text(&r.out), says);
    CHECK_MSG(at, "%s", str_text(&r.out));
    int least = at ? (int)strtol(at + strlen(says), NULL, 10) : 0;
    spawned_free(&r);
    for (int i = 0; i < 2; i++) {
        snprintf(size, sizeof size, "%dMiB", least - 32 * i);
        spawn_carat(&r, &o, (const char *const[]){"inspect", "--gpu", size, path, NULL});
        CHECK_MSG(r.code == i, "%s: %s", size, str_text(&r.out));
        spawned_free(&r);
    }
    spawn_carat(&r, &o, (const char *const[]){"inspect", "--gpu", "100MB,24GB", path, NULL});
    CHECK_EQ(r.code, 0); /* one of them has a plan */
    CHECK(spawned_says(&r.out, says));
    spawned_free(&r);
    unlink(path);
}

/* How many of GPUs of these sizes are taken, and how much is given up. */
static int32_t chosen(const char *path, const int64_t *mib, int32_t n, fitted *f)
{
    carat_model_options mo = {.gpus = "auto", .vocab_only = true};
    const carat_session_options so = {.n_outputs = 1};
    carat_model_info i;
    carat_memory_plan p;
    carat_model *m;
    memcpy(mo.plan_gpu_mb, mib, (size_t)n * sizeof *mib);
    mo.session = &so;
    *f = (fitted){0};
    if ((f->st = carat_model_open(path, &mo, &m, &f->e)))
        return 0;
    carat_model_get_info(m, &i);
    CHECK_OK(carat_plan(m, &so, &p, &f->e), f->e);
    f->fit = i.fit;
    f->n_ctx = p.n_ctx;
    snprintf(f->text, sizeof f->text, "%s", i.device_why);
    for (int32_t k = 0; k < p.n_devices; k++) {
        f->n_layers += p.device[k].n_layers;
        /* Side 1 has the first layers, if the CPU has none. */
        CHECK(i.fit > CARAT_FIT_KEYS ||
              (p.device[k].crossing_bytes > 0) == (p.n_devices > 1 && k != 1));
        CHECK_MSG(p.device[k].total_bytes <= p.device[k].available_bytes ||
                      !strncmp(p.device[k].device, "cpu", 3),
                  "%s: %.1f MiB of %.1f", p.device[k].device,
                  (double)p.device[k].total_bytes * 0x1p-20,
                  (double)p.device[k].available_bytes * 0x1p-20);
    }
    int32_t n_gpus = 0;
    for (int32_t k = 0; k < p.n_devices; k++)
        n_gpus += strncmp(p.device[k].device, "cpu", 3) != 0;
    carat_model_close(m);
    return n_gpus;
}

TEST(as_few_gpus_are_taken_as_hold_a_model_whole)
{
    static const int64_t equal[] = {23936, 23936, 23936, 23936, 23936, 23936, 23936, 23936},
                         unequal[] = {7808, 23936, 47900}, small[] = {7000, 7000};
    char dense[128], mixture[128], little[128];
    fitted f, one;
    write_hollow("31b", "q8_0", dense);
    write_hollow("26b-a4b", "q4_k_m", mixture);
    write_hollow("e2b", "q4_k_m", little);
    CHECK_EQ(chosen(little, equal, 4, &f), 1);
    CHECK_EQ((int)f.fit, CARAT_FIT_WHOLE);
    /* 33 GB of weights and 20 of keys: not in two of 23.4 GiB with the longest context. */
    int32_t n = chosen(dense, equal, 8, &f);
    CHECK_MSG(n == 3 && f.fit == CARAT_FIT_WHOLE && f.n_layers == 60, "%d devices, %s", (int)n,
              f.text);
    CHECK(strstr(f.text, "does not fit one GPU; 3 devices share the layers"));
    CHECK_EQ(chosen(dense, equal, 2, &f), 2);
    CHECK(f.fit > CARAT_FIT_WHOLE && f.fit <= CARAT_FIT_KEYS && f.n_layers == 60);
    /* The third alone, then the two larger ones. */
    CHECK_EQ(chosen(mixture, unequal, 3, &f), 1);
    CHECK_EQ((int)f.fit, CARAT_FIT_WHOLE);
    CHECK_EQ(chosen(dense, unequal, 3, &f), 2);
    CHECK_EQ((int)f.fit, CARAT_FIT_WHOLE);
    /* Nothing holds it: a mixture has slots on all, another model has layers on the host. */
    CHECK_EQ(chosen(mixture, small, 2, &f), 2);
    CHECK_EQ((int)f.fit, CARAT_FIT_EXPERTS);
    CHECK_EQ(chosen(dense, small, 2, &f), 2);
    one = fit_with(dense, small[0], (carat_model_options){0},
                   &(carat_session_options){.n_outputs = 1});
    CHECK(f.fit == CARAT_FIT_LAYERS && one.fit == CARAT_FIT_LAYERS);
    unlink(dense);
    unlink(mixture);
    unlink(little);
}

/* carat inspect --gpu A+B: by proportion, and as few as are needed. */
TEST(plans_of_two_cards_may_be_divided_by_hand)
{
    static const struct {
        const char *option, *value, *says[2];
        int code;
    } c[] = {{"--gpu-split", "2,3", {"layers 0 to 23", "layers 24 to 59"}, 0},
             {"--gpu-split", "3,2", {"layers 0 to 35", "layers 36 to 59"}, 0},
             {"--gpus", "auto", {"24GB+24GB", "layers"}, 0},
             {"--gpu-split", "0x3,2", {"--gpu-split '0x3,2'", ""}, 1},
             {"--device", "cuda:1", {"--gpu has sizes of its own", ""}, 1},
             {"--device", "cpu,cpu", {"--gpu has sizes of its own", ""}, 1},
             {"--gpus", "0,1", {"--gpu has sizes of its own", ""}, 1}};
    char path[128];
    write_hollow("31b", "q4_k_m", path);
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        spawned r;
        spawn_carat(&r, NULL,
                    (const char *const[]){"inspect", "--gpu", "24GB+24GB", c[i].option, c[i].value,
                                          path, NULL});
        CHECK_MSG(r.code == c[i].code &&
                      (spawned_says(&r.out, c[i].says[0]) || spawned_says(&r.err, c[i].says[0])),
                  "%s %s: %d %s%s", c[i].option, c[i].value, r.code, str_text(&r.out),
                  str_text(&r.err));
        CHECK_MSG(c[i].code || spawned_says(&r.out, c[i].says[1]), "%s", str_text(&r.out));
        spawned_free(&r);
    }
    unlink(path);
}

TEST(gpus_auto_is_refused_beside_what_names_them)
{
    char path[128];
    carat_model *m;
    carat_error e;
    write_hollow("e2b", "q4_k_m", path);
    const carat_model_options o[] = {{.device = "cpu"}, {.gpu_split = "1,1"}, {.split = "none"}};
    for (int i = 0; i < 3; i++) {
        carat_model_options mo = o[i];
        mo.gpus = "auto";
        mo.vocab_only = true;
        mo.plan_gpu_mb[0] = mo.plan_gpu_mb[1] = 24000;
        e = (carat_error){0};
        CHECK_EQ(carat_model_open(path, &mo, &m, &e), CARAT_E_ARG);
        CHECK_MSG(strstr(e.text, "--gpus auto leaves"), "%s", e.text);
    }
    carat_memory_plan p; /* layers that are placed by hand are on one GPU */
    const carat_model_options placed = {
        .gpus = "auto", .gpu_layers = 30, .vocab_only = true, .plan_gpu_mb = {24000, 24000}};
    e = (carat_error){0};
    CHECK_OK(carat_model_open(path, &placed, &m, &e), e);
    CHECK_OK(carat_plan(m, &(carat_session_options){.n_outputs = 1}, &p, &e), e);
    CHECK(p.n_devices == 2 && !strncmp(p.device[1].device, "cpu", 3));
    carat_model_close(m);
    const carat_model_options listed = {
        .gpus = "0,1", .vocab_only = true, .plan_gpu_mb = {24000, 24000}};
    CHECK_EQ(carat_model_open(path, &listed, &m, &e), CARAT_E_ARG);
    unlink(path);
}

TEST(fit_is_printed_by_inspect)
{
    static const char *const bad[] = {"",      "x",   "0GB",   "24XB",  "-1GB",
                                      "8GB,,", "nan", "1e9GB", "0x10GB"};
    char path[128];
    spawned r;
    const spawn_options o = {0};
    write_hollow("26b-a4b", "q4_k_m", path);
    spawn_carat(&r, &o, (const char *const[]){"inspect", "--gpu", "8GB,24GB,9000MiB", path, NULL});
    CHECK_EQ(r.code, 0);
    CHECK(spawned_says(&r.out, "8GB: 7808 MiB free") && spawned_says(&r.out, "24GB: 23936 MiB") &&
          spawned_says(&r.out, "9000MiB: 9000 MiB free") &&
          spawned_says(&r.out, "of 3840 experts on the GPU"));
    spawned_free(&r);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        spawn_carat(&r, &o, (const char *const[]){"inspect", "--gpu", bad[i], path, NULL});
        CHECK_MSG(r.code != 0 && spawned_says(&r.err, "expected sizes"), "--gpu '%s'", bad[i]);
        spawned_free(&r);
    }
    unlink(path);
}
