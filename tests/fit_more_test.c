/* fit_more_test.c - GPUs that share a model: with more memory none of what a plan gives becomes
 * less. Published shapes, random sizes of GPUs, no GPU and no weights.
 */
#include "carat.h"
#include "base/rng.h"
#include "tests/spawn.h"
#include "tests/test.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { GPUS = 4, LONGEST = INT32_MAX };

/* More of each is better, the level first; of copies fewer. */
typedef struct given {
    int level; /* 0: no plan */
    int32_t n_ctx, n_slots, chunk, n_layers;
    double copies; /* of all experts, for a prompt of 32768 tokens and an answer of 512 */
    char text[512];
} given;

static void write_shape(const char *shape, const char *layers, const char *type, char path[128])
{
    AUTO(spawned_free) spawned r;
    snprintf(path, 128, "%s/more-%s-%d.gguf", P_tmpdir, shape, (int)getpid());
    spawn_carat(&r, NULL,
                (const char *const[]){"synth", "--hollow", "--vocab", "none", "--layers", layers,
                                      "-t", type, shape, path, NULL});
    CHECK_EQ(r.code, 0);
}

static given plan_on(const char *path, const char *split, const int64_t *mib)
{
    const carat_session_options so = {.n_outputs = 1};
    carat_model_options o = {.vocab_only = true, .split = split, .session = &so};
    carat_model_info i;
    carat_memory_plan p;
    carat_expert_info x;
    given g = {0};
    carat_error e = {0};
    AUTO_MODEL *m;
    memcpy(o.plan_gpu_mb, mib, GPUS * sizeof *mib);
    const carat_status st = carat_model_open(path, &o, &m, &e);
    CHECK_MSG(!st || st == CARAT_E_MEMORY, "%s", e.text);
    snprintf(g.text, sizeof g.text, "%.500s", e.text);
    if (st)
        return g;
    carat_model_get_info(m, &i);
    CHECK_OK(carat_plan(m, &so, &p, &e), e);
    const bool slots = carat_experts(m, &x);
    g.level = 1 + CARAT_FIT_LAYERS - (int)i.fit;
    g.n_ctx = p.n_ctx;
    g.n_slots = slots ? x.n_slots : i.fit < CARAT_FIT_EXPERTS ? INT32_MAX : 0;
    g.chunk = slots || i.fit == CARAT_FIT_KEYS ? p.chunk : LONGEST;
    if (slots) /* 8 experts a token in all of these shapes */
        g.copies = (1 - (double)x.n_slots / x.n_experts) *
                   (32768.0 / p.chunk +
                    512 * 8.0 * i.n_layer * (split ? p.n_devices : 1) / x.n_experts);
    for (int32_t k = 0; k < p.n_devices; k++)
        g.n_layers += strncmp(p.device[k].device, "cpu", 3) ? p.device[k].n_layers : 0;
    snprintf(g.text, sizeof g.text, "%s", i.fit_text);
    return g;
}

/* alike: on GPUs of one size. Of others a layer goes to another GPU, with its experts. */
static bool is_less(const given *a, const given *b, bool alike)
{
    if (a->level != b->level)
        return a->level < b->level || (b->level && a->n_ctx < b->n_ctx);
    if (a->n_ctx < b->n_ctx || a->n_layers < b->n_layers || (b->n_slots && !a->n_slots))
        return true;
    return alike ? a->n_slots < b->n_slots || (b->n_slots && a->chunk < b->chunk)
                 : b->n_slots && a->copies > b->copies;
}

static bool check_pair(const char *path, const char *split, const int64_t *mib, const int64_t *more)
{
    const given a = plan_on(path, split, mib), b = plan_on(path, split, more);
    const bool alike = mib[0] == mib[1] && more[0] == more[1];
    CHECK_MSG(!is_less(&b, &a, alike), "%s: %d %d %d %d MiB: %s; %d %d %d %d MiB: %s",
              split ? split : "layers", (int)mib[0], (int)mib[1], (int)mib[2], (int)mib[3], a.text,
              (int)more[0], (int)more[1], (int)more[2], (int)more[3], b.text);
    return a.n_slots && a.n_slots < INT32_MAX;
}

/* All alike; each with more; one with more. */
static void draw(uint64_t *r, int64_t *mib, int64_t *more)
{
    const int n = 2 + (int)rng_below(r, GPUS - 1), kind = (int)rng_below(r, 3);
    const int64_t base = 1900 + (int64_t)rng_below(r, 1600), step = 1 + (int64_t)rng_below(r, 400);
    const int one = (int)rng_below(r, (uint64_t)n);
    for (int k = 0; k < n; k++) {
        mib[k] = kind ? base + (int64_t)rng_below(r, 1200) : base;
        more[k] = mib[k] + (kind == 0   ? step
                            : kind == 1 ? (int64_t)rng_below(r, 400)
                            : k == one  ? 2 * step
                                        : 0);
    }
}

TEST(fit_of_larger_gpus_is_no_worse)
{
    static const struct {
        const char *shape, *layers, *type;
        bool mixture;
    } x[] = {{"26b-a4b", "8", "q4_k_m", true},
             {"laguna-xs", "6", "q8_0", true},
             {"qwen3.6-35b-a3b", "6", "q4_k_m", true},
             {"31b", "10", "q4_k_m", false}};
    int n_slots = 0;
    for (size_t i = 0; i < sizeof x / sizeof *x; i++) {
        char path[128];
        uint64_t r = 77 + i;
        write_shape(x[i].shape, x[i].layers, x[i].type, path);
        for (int k = 0; k < test_trials(x[i].mixture ? 8 : 4); k++) {
            int64_t mib[GPUS] = {0}, more[GPUS] = {0};
            draw(&r, mib, more);
            n_slots += check_pair(path, (k + (int)i) % 2 ? "tensor" : NULL, mib, more);
        }
        unlink(path);
    }
    CHECK(test_brief() || n_slots > 2); /* what this is about was there */
}

/* Where slots were fewer with a longer chunk: 26B-A4B on two GPUs of 2.0 and 2.2 GB, and on four of
 * 3.5 and 3.75. And a division that fits is kept where another was chosen after it. */
TEST(fit_of_pairs_that_were_worse)
{
    static const struct {
        const char *shape, *layers, *type;
        int64_t mib[GPUS], more[GPUS];
    } x[] = {{"26b-a4b", "4", "q4_k_m", {2000, 2000}, {2200, 2200}},
             {"26b-a4b", "30", "q4_k_m", {3500, 3500, 3500, 3500}, {3750, 3750, 3750, 3750}},
             {"laguna-xs", "6", "q8_0", {3463, 3521, 2650}, {3463, 3521, 3081}}};
    for (size_t i = 0; i < sizeof x / sizeof *x; i++) {
        char path[128];
        write_shape(x[i].shape, x[i].layers, x[i].type, path);
        check_pair(path, NULL, x[i].mib, x[i].more);
        unlink(path);
    }
}

/* A part of the experts that is named leaves less room: chunks are shorter before a context is. */
TEST(fit_beside_named_parts_of_experts_keeps_contexts)
{
    static const char *const parts[] = {"50%", "100000"}, *const splits[] = {NULL, "tensor"};
    char path[128];
    write_shape("26b-a4b", "8", "q4_k_m", path);
    for (int i = 0; i < 3; i++) {
        const carat_session_options so = {.n_outputs = 1};
        const carat_model_options o = {.vocab_only = true,
                                       .split = splits[i / 2],
                                       .experts_gpu = parts[i % 2],
                                       .session = &so,
                                       .plan_gpu_mb = {3776, 3776}};
        carat_memory_plan p;
        carat_error e = {0};
        AUTO_MODEL *m;
        CHECK_OK(carat_model_open(path, &o, &m, &e), e);
        CHECK_OK(carat_plan(m, &so, &p, &e), e);
        CHECK_MSG(p.n_ctx == 32768 && p.chunk >= 1024 && p.chunk < 4096, "%d tokens, chunks of %d",
                  (int)p.n_ctx, (int)p.chunk);
    }
    unlink(path);
}

/* carat inspect --gpu of a smaller model that drafts on the GPU that the target leaves free. */
TEST(inspect_plans_a_drafter_on_a_gpu_of_its_own)
{
    const char *demo = test_path("models/demo.gguf");
    AUTO(spawned_free) spawned r = {0};
    if (access(demo, R_OK))
        test_skip("there is no models/demo.gguf");
    spawn_carat(&r, NULL,
                (const char *const[]){"inspect", "--gpu", "2GB+1GB", "--gpus", "auto", "--target", demo,
                                      "--draft-device", "cuda:1", demo, NULL});
    CHECK_EQ(r.code, 0);
    CHECK_MSG(spawned_says(&r.out, "8 layers") && spawned_says(&r.out, "the drafter "), "%s",
              str_text(&r.out));
}
