/* divide_test.c - models on two devices: what they compute, where their bytes are, what is refused.
 *
 * Two CPU devices stand for a GPU and the CPU beside it (device "cpu,cpu"). On a CPU a row's result
 * does not depend on who computes it, so a divided model must give the same bytes as a whole one.
 */
#include "carat.h"
#include "base/mem.h"
#include "num/num.h"
#include "tests/fidelity_model.h"
#include "tests/test.h"

#include <string.h>

static carat_model *open_on(const char *path, const char *device, int32_t gpu_layers, bool experts)
{
    carat_model *m;
    carat_error e = {0};
    carat_model_options o = {.device = device, .gpu_layers = gpu_layers, .cpu_experts = experts};
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
    CHECK_OK(carat_eval(s, f->tokens, f->n_tokens - 3, false, logits, NULL, &e), e);
    for (int32_t i = 2; i >= 0; i--) /* and as decoding does */
        CHECK_OK(carat_eval(s, f->tokens, f->n_tokens - i, false, logits, NULL, &e), e);
    carat_session_close(s);
}

static void same_as_whole(const char *path, const fidelity *f, int32_t gpu_layers, bool experts)
{
    size_t n = (size_t)f->n_vocab;
    float *a = mem_calloc(n, sizeof *a), *b = mem_calloc(n, sizeof *b);
    carat_model *whole = open_on(path, "cpu", 0, false);
    carat_model *parts = open_on(path, "cpu,cpu", gpu_layers, experts);
    const int32_t chunks[] = {64, 7, 1};
    for (int i = 0; i < 3; i++) {
        evaluate(whole, f, chunks[i], a);
        evaluate(parts, f, chunks[i], b);
        CHECK(!memcmp(a, b, n * sizeof *a));
    }
    carat_model_close(whole);
    carat_model_close(parts);
    mem_free(a);
    mem_free(b);
}

static bool has_experts(const char *name)
{
    return !strcmp(name, "all") || strstr(name, "moe") || strstr(name, "26b");
}

TEST(divided_models_compute_what_whole_ones_do)
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
                same_as_whole(path, &f, n, false);
            } else {
                /* Only those are refused that are parted from their keys, and all fewer. */
                CHECK(!least && f.n_shared && e.status == CARAT_E_ARG);
                CHECK(strstr(e.text, "read the keys of layer") != NULL);
            }
        }
        CHECK(least > 0 && (f.n_shared == 0) == (least == 1));
        if (has_experts(*name)) {
            same_as_whole(path, &f, 0, true);
            same_as_whole(path, &f, f.n_layer - 1, true);
        }
        fidelity_close(&f);
    }
}

TEST(a_divided_model_saves_and_restores)
{
    fidelity f;
    fidelity_open(&f, "all");
    carat_model *m = open_on(fidelity_write(&f, NULL), "cpu,cpu", f.n_layer - 1, true);
    carat_session_options o = {.n_ctx = f.n_tokens, .chunk = 5, .checkpoint_mb = -1};
    carat_session *s, *t;
    carat_snapshot *p;
    carat_error e = {0};
    size_t n = (size_t)f.n_vocab;
    float *a = mem_calloc(n, sizeof *a), *b = mem_calloc(n, sizeof *b);
    int32_t at = f.n_tokens / 2;
    CHECK_OK(carat_session_open(m, &o, &s, &e), e);
    CHECK_OK(carat_session_open(m, &o, &t, &e), e);
    CHECK_OK(carat_eval(s, f.tokens, at, false, NULL, NULL, &e), e);
    CHECK_OK(carat_snapshot_take(s, &p, &e), e);
    CHECK_OK(carat_snapshot_restore(t, p, &e), e);
    CHECK_OK(carat_eval(s, f.tokens, f.n_tokens, false, a, NULL, &e), e);
    CHECK_OK(carat_eval(t, f.tokens, f.n_tokens, false, b, NULL, &e), e);
    CHECK(!memcmp(a, b, n * sizeof *a));
    carat_snapshot_free(p);
    carat_session_close(t);
    carat_session_close(s);
    carat_model_close(m);
    mem_free(a);
    mem_free(b);
    fidelity_close(&f);
}

/* What each device's plan says of caches, scratch and copied weights is what is then taken of it,
 * to the byte: on a CPU nothing is rounded. */
TEST(divided_plans_are_what_is_taken)
{
    fidelity f;
    fidelity_open(&f, "all");
    const char *path = fidelity_write(&f, &(fidelity_file){.type = NUM_Q8_0});
    for (int divided = 0; divided < 2; divided++) {
        carat_model *m =
            open_on(path, divided ? "cpu,cpu" : "cpu", divided ? f.n_layer - 1 : 0, divided != 0);
        carat_session_options o = {.n_ctx = f.n_tokens, .chunk = 16, .checkpoint_mb = -1};
        carat_device_memory before[CARAT_SIDES], after[CARAT_SIDES];
        carat_memory_plan plan;
        carat_session *s;
        carat_error e = {0};
        uint64_t copies = 0;
        CHECK_OK(carat_plan(m, &o, &plan, &e), e);
        CHECK_EQ(plan.n_sides, 1 + divided);
        CHECK_EQ(carat_memory(m, before), plan.n_sides);
        CHECK_OK(carat_session_open(m, &o, &s, &e), e);
        carat_memory(m, after);
        for (int32_t i = 0; i < plan.n_sides; i++) {
            const carat_side_plan *p = &plan.side[i];
            CHECK_EQ(after[i].used_bytes - before[i].used_bytes,
                     p->kv_swa_bytes + p->kv_global_bytes + p->scratch_bytes);
            CHECK(p->scratch_bytes && p->n_layers && !strcmp(p->device, after[i].device));
            copies += before[i].used_bytes;
        }
        CHECK(copies >= plan.repack_bytes && copies < plan.repack_bytes + (64 << 10));
        carat_session_close(s);
        carat_memory(m, after);
        for (int32_t i = 0; i < plan.n_sides; i++)
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
    refused(path, (carat_model_options){.device = "cpu", .gpu_layers = 1}, "only a model on a GPU");
    refused(path, (carat_model_options){.device = "cpu", .cpu_experts = true},
            "only a model on a GPU");
    refused(path, (carat_model_options){.device = "cpu,cpu", .gpu_layers = f.n_layer + 1},
            "1 to all of them");
    refused(path, (carat_model_options){.device = "cpu,cpu", .gpu_layers = -1}, "1 to all of them");
    refused(path, (carat_model_options){.device = "cpu,cpu", .cpu_experts = true, .wrap = "time"},
            "wrappers");
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
    CHECK(!m && p.n_ctx == 64 && p.total_bytes && p.n_sides == 1);
    fidelity_close(&f);
}
