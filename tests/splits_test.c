/* splits_test.c - answers of every family under every split: greedy and sampled, tokens and
 * probabilities bit for bit those of one device. A split by layers has the bits of the whole model,
 * a split by tensors those of its own sums on one device.
 *
 * The long suite has 200 prompts of each family. CPU devices stand for GPUs.
 */
#include "base/mem.h"
#include "engine/engine_int.h"
#include "tests/splits_rig.h"
#include "tests/synth_file.h"
#include "tests/test.h"

enum { PROMPTS = 200, PROMPTS_BRIEF = 6 };

static split_jobs jobs(void)
{
    return (split_jobs){.session = {.n_ctx = 256, .chunk = 16},
                        .n = test_brief() ? PROMPTS_BRIEF : PROMPTS,
                        .n_slots = 3,
                        .n_tokens = 10,
                        .longest = 60,
                        .seed = test_seed()};
}

static split_said *answers(const char *path, split_place at, carat_error *e, carat_status *st)
{
    const split_jobs j = jobs();
    carat_model *m = NULL;
    split_said *out = mem_calloc((size_t)j.n, sizeof *out);
    CHECK(out);
    *st = splits_open(path, (carat_model_options){0}, at, &m, e);
    if (!*st)
        CHECK_OK(splits_answer(m, &j, out, e), *e);
    carat_model_close(m);
    return out;
}

/* Every place of the list has the answers of the first one. */
static void same_on(const char *path, const split_place *at, int32_t n)
{
    split_said *want = NULL;
    for (int32_t i = 0; i < n; i++) {
        carat_error e = {0};
        carat_status st;
        split_said *got = answers(path, at[i], &e, &st);
        CHECK_OK(st, e);
        int32_t bad = want ? splits_differ(want, got, jobs().n) : -1;
        CHECK_MSG(bad < 0, "%s: answer %d, split by %s over %d devices", path, bad, at[i].split,
                  at[i].n);
        mem_free(want ? got : NULL);
        want = want ? want : got;
    }
    mem_free(want);
}

/* In layers, how a model is cut in two and in three; where layers read the keys of others, too. */
static const char *const uneven[SPLITS_MAX] = {NULL, "1,3", "2,1,1", NULL},
                         *const shared[SPLITS_MAX] = {NULL, "1,5", "1,1,5", "1,1,1,5"};

static void same_everywhere(const char *size, const char *type, const char *const *parts)
{
    const char *path = synth_file(size, type, NULL, NULL);
    split_place at[2][SPLITS_MAX];
    for (int32_t i = 0; i < SPLITS_MAX; i++) {
        at[0][i] = (split_place){.split = i ? "layers" : NULL, .n = i + 1, .parts = parts[i]};
        at[1][i] = (split_place){.split = "tensor", .n = i + 1};
    }
    same_on(path, at[0], SPLITS_MAX);
    same_on(path, at[1], SPLITS_MAX);
}

#define FAMILY(name, size, type, parts)                                                            \
    PLAIN_TEST(splits_answer_the_same_##name)                                                      \
    {                                                                                              \
        same_everywhere(size, type, parts);                                                        \
    }

FAMILY(gemma4, "tiny-dense", "q8_0", uneven) /* five blocks in four segments */
FAMILY(gemma4_moe, "tiny-moe", "f32", uneven)
FAMILY(gemma4_ple, "tiny-ple", "bf16", shared)
FAMILY(gemma4_all, "tiny-all", "f32", shared)
FAMILY(gemma4_wide, "tiny-wide", "q8_0", uneven) /* whole experts */
FAMILY(gemma3, "tiny-gemma3", "f16", uneven)
FAMILY(qwen3, "tiny-qwen3", "q4_0", uneven)
FAMILY(qwen3_moe, "tiny-qwen3moe", "q8_0", uneven)
FAMILY(qwen3_vl, "tiny-qwen3-vl", "f32", uneven)
FAMILY(qwen3_vl_moe, "tiny-qwen3-vl-moe", "f32", uneven)
FAMILY(qwen35, "tiny-qwen35-keys", "bf16", uneven) /* five key heads: uneven states */
FAMILY(qwen35_moe, "tiny-qwen35moe-keys", "q8_0", uneven)
FAMILY(laguna, "tiny-laguna-heads", "f32", uneven)
FAMILY(llama, "tiny-llama3", "q8_0", uneven)
FAMILY(mixtral, "tiny-mixtral", "f32", uneven)
FAMILY(ministral, "tiny-ministral3", "f16", uneven)
FAMILY(gpt_oss, "tiny-gpt-oss", "mxfp4", uneven)
