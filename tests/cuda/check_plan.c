/* check_plan.c - plans for GPUs that are not here (plan_only.c), against plans of the device: the
 * same bytes. And what none.c says of kernels in builds without them, against the kernels' own
 * files.
 */
#define NONE_SIZES
#define cu_split_limits none_split_limits
#define cu_split8_keys none_split8_keys
#define cu_split8_bytes none_split8_bytes
#define cu_split512_stages none_split512_stages
#define cu_skip_fits none_skip_fits
#include "backend/cuda/none.c"
#undef cu_split_limits
#undef cu_split8_keys
#undef cu_split8_bytes
#undef cu_split512_stages
#undef cu_skip_fits
split_limits cu_split_limits(int largest);
int cu_split8_keys(dev_kv kv);
int cu_split8_bytes(dev_kv kv, int n_pairs, int stages);
int cu_split512_stages(dev_kv kv, int largest);
bool cu_skip_fits(dev_kv kv);

#include "backend/cuda/cuda_int.h"
#include "carat.h"
#include "tests/cuda/check_int.h"
#include "tests/fidelity_model.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char *const cards[] = {"8.0", "8.6", "8.9", "9.0", "10.0", "12.0"};
enum { CARDS = sizeof cards / sizeof *cards };

/* Every store of published heads and formats: how many answers differ. */
static double stores_that_differ(const gpu_facts *f)
{
    static const int32_t dims[] = {64, 128, 256, 512},
                         row[KV_KINDS] = {128, 64, 64, 34, 24, 22, 20, 18, 18, 14};
    static const float turns = 1;
    double bad = 0;
    cu_gpu = *f;
    for (int i = 0; i < 4; i++)
        for (int32_t kind = 0; kind < KV_KINDS; kind++)
            for (int one = 0; one < 2; one++) {
                dev_kv kv = {.k_kind = kind, .v_kind = kind, .n_head_kv = 2, .head_dim = dims[i]};
                kv.k_bytes = kv.v_bytes = dims[i] / 32 * row[kind];
                kv.single = one;
                kv.n_turning = dims[i] / 8;
                kv.turns = &turns;
                bad += none_split8_keys(kv) != cu_split8_keys(kv);
                bad += none_split512_stages(kv, f->shared_block) !=
                       cu_split512_stages(kv, f->shared_block);
                bad += none_skip_fits(kv) != cu_skip_fits(kv);
                for (int n = 1; n <= 3; n++)
                    bad += none_split8_bytes(kv, 16, n) != cu_split8_bytes(kv, 16, n) ||
                           none_split8_bytes(kv, 8, n) != cu_split8_bytes(kv, 8, n);
            }
    return bad;
}

static void check_sizes(rig *g)
{
    for (int i = 0; i < CARDS; i++) {
        gpu_facts f = {0};
        err e = {0};
        if (card_facts(cards[i], &f, &e)) {
            failed(g, "plan", e.text);
            continue;
        }
        split_limits a = cu_split_limits(f.shared_block), b = none_split_limits(f.shared_block);
        verdict(g, "plan", cards[i], stores_that_differ(&f) + (memcmp(&a, &b, sizeof a) != 0), 0);
    }
    cuda_select(g->gpu);
}

/* The plan of a session on the device, or (plan_only) on one like it that is not there. */
static status plan_on(const char *path, const char *card, bool plan_only, const char *kv,
                      carat_device_plan *to, err *e)
{
    const carat_session_options so = {.n_ctx = 128, .chunk = 40, .kv_k = kv, .checkpoint_mb = -1};
    carat_model_options mo = {.device = "cuda", .vocab_only = true, .card = card, .session = &so};
    carat_model *m = NULL;
    carat_memory_plan p;
    mo.plan_gpu_mb[0] = plan_only ? 8000 : 0;
    status st = carat_model_open(path, &mo, &m, e);
    if (!st && !(st = carat_plan(m, &so, &p, e)))
        *to = p.device[0];
    carat_model_close(m);
    return st;
}

static void check_same_plan(rig *g, const char *name, const char *card)
{
    static const char *const kv[] = {"f16", "q8_0", "q4_0", "f32"};
    fidelity f;
    fidelity_open(&f, name);
    const char *path = fidelity_write(&f, NULL);
    double wrong = 0;
    err e = {0};
    status st = OK;
    for (size_t i = 0; i < sizeof kv / sizeof *kv && !st; i++) {
        carat_device_plan a = {0}, b = {0};
        if ((st = plan_on(path, card, false, kv[i], &a, &e)) ||
            (st = plan_on(path, card, true, kv[i], &b, &e)))
            break;
        wrong += a.weight_bytes != b.weight_bytes || a.expert_bytes != b.expert_bytes ||
                 a.kv_swa_bytes != b.kv_swa_bytes || a.kv_global_bytes != b.kv_global_bytes ||
                 a.recurrent_bytes != b.recurrent_bytes || a.reserve_bytes != b.reserve_bytes ||
                 a.scratch_bytes != b.scratch_bytes;
    }
    char what[64];
    snprintf(what, sizeof what, "%s as %s, formats that differ", name, card);
    if (st)
        failed(g, "plan", e.text);
    else
        verdict(g, "plan", what, wrong, 0);
    unlink(path);
    fidelity_close(&f);
}

void check_plans(rig *g)
{
    static const char *const models[] = {"all", "moe", "qwen3", "laguna"};
    if (!my_turn(g, "plan"))
        return;
    check_sizes(g);
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        check_same_plan(g, models[i], "8.6");
    check_same_plan(g, "moe", "8.0");
}
