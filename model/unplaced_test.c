/* unplaced_test.c - a file of each family with a tensor more: refused by its name, unless the
 * tensor belongs to a tower or is a table that carat computes.
 */
#include "model/unplaced.h"
#include "apps/commands.h"
#include "model/model.h"
#include "tests/doctor.h"
#include "tests/test.h"

static const char *const sizes[] = {"tiny-dense",      "tiny-moe",           "tiny-ple",
                                    "tiny-gemma3",     "tiny-qwen3",         "tiny-embeddinggemma",
                                    "tiny-gpt-oss",    "tiny-qwen35",        "tiny-qwen35moe",
                                    "tiny-laguna",     "dflash-tiny",        "dflash-tiny-laguna",
                                    "dflash-tiny-xs",  "dflash-tiny-dspark", "mtp-tiny",
                                    "mtp-tiny-ordered"};

static status bind_with(const char *base, const char *add, err *e)
{
    static char path[1024];
    gguf g = {0};
    AUTO(model_free) model m = {0};
    if (!*path)
        snprintf(path, sizeof path, "%s", test_temp("more.gguf"));
    doctor_gguf(base, path, &(doctor_change){.add = add});
    CHECK_OK(gguf_open(&g, path, false, NULL, NULL, e), *e);
    status st = model_bind(&m, &g, e);
    return st;
}

PLAIN_TEST(a_tensor_without_a_place_is_refused_in_every_family)
{
    static const char *const bad[] = {
        "blk.0.my_extra.weight",
        "blk.0.ffn_up.bias",
        "blk.0.attn_q.scale",
        "blk.99.attn_norm.weight",
        "blk.1.attn_q.weight.lora_a",
        "output.bias",
        "score.weight",
        "cls.output.weight",
        "token_types.weight",
        "blk.0.attn_norm.bias",
        "rope_factors_long.weight",
        "vocab_extra.weight",
        "blk.0.attn_q.weight.bias",
        "altup.weight",
        "blk.0.attn_sub_norm.weight",
        "blk.0.rope_freqs.weight",
    };
    static const char *const allowed[] = {
        "v.blk.0.attn_q.weight", "mm.input_projection.weight",
        "a.blk.0.ffn_up.bias",   "mm.0.bias",
        "blk.0.attn_rot_embd",   "blk.0.attn.rotary_emb.inv_freq",
    };
    const char *base = test_temp("base.gguf");
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const char *argv[] = {sizes[i], base, "-t", "f32"};
        CHECK_EQ(command_synth.run(&command_synth, 4, (char **)argv), 0);
        for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) {
            err e = {0};
            CHECK_MSG(bind_with(base, bad[k], &e), "%s runs with %s", sizes[i], bad[k]);
            CHECK_MSG(strstr(e.text, bad[k]), "%s with %s: %s", sizes[i], bad[k], e.text);
        }
        for (size_t k = 0; k < sizeof allowed / sizeof *allowed; k++) {
            err e = {0};
            CHECK_MSG(!bind_with(base, allowed[k], &e), "%s: %s", sizes[i], e.text);
        }
    }
}

/* Divisors of frequencies change every rotation, so a family that does not read them refuses them.
 */
TEST(divisors_of_frequencies_are_read_or_refused)
{
    static const char *const without[] = {"tiny-qwen35", "tiny-qwen35moe", "tiny-laguna",
                                          "dflash-tiny", "dflash-tiny-laguna"};
    const char *base = test_temp("unturned.gguf");
    for (size_t i = 0; i < sizeof without / sizeof *without; i++) {
        const char *argv[] = {without[i], base, "-t", "f32"};
        err e = {0};
        CHECK_EQ(command_synth.run(&command_synth, 4, (char **)argv), 0);
        CHECK_STATUS(bind_with(base, "rope_freqs.weight", &e), E_UNSUPPORTED);
        CHECK_MSG(strstr(e.text, "rope_freqs.weight"), "%s: %s", without[i], e.text);
    }
}

/* Keys of layers that read another layer's are published in some files, and not used. */
TEST(keys_of_layers_that_share_them_are_unneeded)
{
    const char *base = test_temp("ple.gguf"), *argv[] = {"tiny-ple", base, "-t", "f32"};
    gguf g = {0};
    model m = {0};
    err e = {0};
    char name[64];
    CHECK_EQ(command_synth.run(&command_synth, 4, (char **)argv), 0);
    CHECK_OK(gguf_open(&g, base, false, NULL, NULL, &e), e);
    CHECK_OK(model_bind(&m, &g, &e), e);
    int32_t last = m.n_layer - 1;
    model_free(&m);
    snprintf(name, sizeof name, "blk.%d.attn_k.weight", (int)last);
    CHECK_OK(gguf_open(&g, base, false, NULL, NULL, &e), e);
    CHECK(tensor_find(&g.tensors, name));
    gguf_close(&g);
    snprintf(name, sizeof name, "blk.%d.attn_k.bias", (int)last);
    CHECK_STATUS(bind_with(base, name, &e), E_UNSUPPORTED);
}

/* NextN layers belong to the drafter of the file, the others to the model. */
TEST(nextn_layers_and_the_model_do_not_read_each_other)
{
    const char *base = test_temp("nextn.gguf"), *argv[] = {"tiny-qwen35", base, "--nextn"};
    gguf g = {0};
    model m = {0};
    err e = {0};
    CHECK_EQ(command_synth.run(&command_synth, 3, (char **)argv), 0);
    CHECK_OK(gguf_open(&g, base, false, NULL, NULL, &e), e);
    CHECK_OK(model_bind(&m, &g, &e), e);
    model_free(&m);
    CHECK_OK(gguf_open(&g, base, false, NULL, NULL, &e), e);
    CHECK_OK(model_bind_nextn(&m, &g, &e), e);
    char extra[64];
    snprintf(extra, sizeof extra, "blk.%d.nextn.extra.weight", (int)m.n_layer);
    model_free(&m);
    const char *path = test_temp("nextn-more.gguf");
    doctor_gguf(base, path, &(doctor_change){.add = extra});
    CHECK_OK(gguf_open(&g, path, false, NULL, NULL, &e), e);
    CHECK_STATUS(model_bind_nextn(&m, &g, &e), E_UNSUPPORTED);
    CHECK(strstr(e.text, extra));
}

TEST(towers_and_computed_tables_are_known_by_name)
{
    static const char *const yes[] = {"model.vision_tower.encoder.layers.0.self_attn.q_proj.weight",
                                      "vision_tower.std_bias",
                                      "model.visual.merger.mlp.0.weight",
                                      "visual.blocks.0.attn.qkv.bias",
                                      "model.embed_vision.embedding_projection.weight",
                                      "model.audio_tower.layers.0.norm_out.weight",
                                      "model.vision_embedder.patch_dense.bias",
                                      "multi_modal_projector.linear_1.bias",
                                      "model.layers.0.self_attn.rotary_emb.inv_freq",
                                      "v.patch_embd.weight"};
    static const char *const no[] = {"model.layers.0.self_attn.q_proj.bias",
                                     "vocab.weight",
                                     "attn.weight",
                                     "model.visualise.weight",
                                     "lm_head.bias",
                                     "rope_freqs.weight",
                                     "",
                                     "model.layers.0.visual.weight",
                                     "model.layers.0.mlp.up_proj.scales"};
    for (size_t i = 0; i < sizeof yes / sizeof *yes; i++)
        CHECK_MSG(unplaced_is_allowed(yes[i]), "%s", yes[i]);
    for (size_t i = 0; i < sizeof no / sizeof *no; i++)
        CHECK_MSG(!unplaced_is_allowed(no[i]), "%s", no[i]);
}
