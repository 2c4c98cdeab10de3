/* find_test.c - what --draft names: files by content, directories, the model's own directory; and
 * every family that looks like one that carat runs.
 */
#include "tests/test.h"
#include "apps/commands.h"
#include "base/map.h"
#include "base/mem.h"
#include "model/dflash.h"
#include "model/dflash_shapes.h"
#include "model/draft_kind.h"
#include "model/gemma4_mtp.h"
#include "model/gemma4_mtp_shapes.h"
#include "spec/find.h"
#include "tests/doctor.h"
#include "tests/toy_model.h"

#include <sys/stat.h>
#include <unistd.h>

static char *made(const char *dir, const char *name, const char *size, const char *type)
{
    static char path[8][512];
    static int n;
    char *to = path[n++ % 8];
    snprintf(to, sizeof path[0], "%s/%s", dir, name);
    const char *argv[] = {size, to, "--type", type};
    CHECK_EQ(command_synth.run(&command_synth, 4, (char **)argv), 0);
    return to;
}

/* A directory of its own. */
static const char *room(const char *name)
{
    const char *dir = test_temp(name);
    CHECK_EQ(mkdir(dir, 0700), 0);
    return dir;
}

static void bind_target(model *m, const char *path)
{
    gguf g;
    err e = {0};
    CHECK_OK(gguf_open(&g, path, false, NULL, NULL, &e), e);
    CHECK_OK(model_bind(m, &g, &e), e);
}

/* The reason for a choice, or the sentence against it. Valid until the next call. */
static const char *told(const char *wish, const model *target, const char *target_path)
{
    static char text[1024];
    AUTO(draft_found_free) draft_found f;
    err e = {0};
    status st = draft_find(wish, target, target_path, &f, &e);
    snprintf(text, sizeof text, "%s", st ? e.text : f.why);
    draft_found_free(&f);
    return text;
}

#define CHECK_SAYS(text, part)                                                                     \
    do {                                                                                           \
        const char *text_ = (text);                                                                \
        CHECK_MSG(strstr(text_, part), "\"%s\" lacks \"%s\"", text_, part);                        \
    } while (0)

TEST(find_wishes_without_files)
{
    AUTO(model_free) model m;
    draft_found f;
    err e = {0};
    const char *dir = room("lone");
    const char *path = made(dir, "target.gguf", "tiny-dense", "f32");
    bind_target(&m, path);
    CHECK_OK(draft_find(NULL, &m, path, &f, &e), e);
    CHECK(!f.class);
    CHECK_OK(draft_find("none", &m, path, &f, &e), e);
    CHECK(!f.class);
    CHECK_OK(draft_find("lookup", &m, path, &f, &e), e);
    CHECK(f.class == &draft_lookup);
    CHECK_OK(draft_find("auto", &m, path, &f, &e), e);
    CHECK(f.class == &draft_lookup);
    CHECK_STR(f.why, "no drafter lies beside the model");
    CHECK_OK(draft_find("auto", &m, NULL, &f, &e), e);
    CHECK(f.class == &draft_lookup);
    CHECK_STATUS(draft_find("fastest", &m, path, &f, &e), E_ARG);
    CHECK_SAYS(e.text, "there is no drafter 'fastest': expected none, lookup, auto");
    CHECK(!f.class && !f.file.path);
    e = (err){0};
    CHECK_STATUS(draft_find("/nonexistent/d.gguf", &m, path, &f, &e), E_IO);
    CHECK_SAYS(e.text, "/nonexistent/d.gguf");
    CHECK_SAYS(told(dir, &m, path), "there is no drafter in this directory");
}

/* Drafters in memory: by name, or the first that fits. */
TEST(find_takes_drafters_from_memory)
{
    static const char *const sizes[] = {"dflash-tiny-wide", "mtp-tiny", "dflash-tiny"};
    static const char *const names[] = {"wide", "mtp", "block"};
    carat_bytes held[4];
    char *bytes[3];
    AUTO(model_free) model m;
    draft_found f;
    err e = {0};
    const char *dir = room("memory");
    bind_target(&m, made(dir, "target.gguf", "tiny-dense", "f32"));
    for (int i = 0; i < 3; i++) {
        char name[32];
        snprintf(name, sizeof name, "%d.gguf", i);
        CHECK_OK(
            file_read_all(made(dir, name, sizes[i], "q8_0"), 1 << 24, &bytes[i], &held[i].n, &e),
            e);
        held[i].at = bytes[i];
        held[i].name = names[i];
    }
    held[3] = (carat_bytes){"no file", 7, "torn"};
    CHECK_OK(draft_find_held(NULL, &m, held, 4, &f, &e), e);
    CHECK(!f.class);
    CHECK_OK(draft_find_held("lookup", &m, held, 4, &f, &e), e);
    CHECK(!f.class);
    CHECK(draft_find_held("torn", &m, held, 4, &f, &e) != OK);
    CHECK_SAYS(e.text, "torn");
    e = (err){0};
    CHECK_STATUS(draft_find_held("wide", &m, held, 4, &f, &e), E_ARG);
    CHECK(!f.class && !f.file.path);
    CHECK_SAYS(e.text, "wide is ");
    for (int i = 1; i < 3; i++) {
        e = (err){0};
        status st = draft_find_held(names[i], &m, held, 4, &f, &e);
        CHECK_MSG(st == OK || strstr(e.text, "no code that drafts with it"), "%s", e.text);
        CHECK(st || (f.class && f.file.path &&
                     !strcmp(f.why + strlen(names[i]), " is part of this program, as asked")));
        draft_found_free(&f);
    }
    CHECK_OK(draft_find_held("auto", &m, held, 4, &f, &e), e);
    CHECK(!f.class || strstr(f.why, "is part of this program"));
    CHECK(!f.class || !strcmp(f.file.path, "mtp") || !strcmp(f.file.path, "block"));
    draft_found_free(&f);
    for (int i = 0; i < 3; i++)
        mem_free(bytes[i]);
}

TEST(find_takes_a_file_by_its_content)
{
    AUTO(model_free) model m;
    const char *dir = room("content");
    char renamed[512];
    bind_target(&m, made(dir, "target.gguf", "tiny-dense", "f32"));
    char *path = made(dir, "d.gguf", "dflash-tiny", "q8_0");
    snprintf(renamed, sizeof renamed, "%s/weights.bin", dir);
    CHECK_EQ(rename(path, renamed), 0);
    CHECK_SAYS(told(renamed, &m, NULL), "weights.bin");
    FILE *f = fopen(renamed, "w");
    fputs("nothing that a drafter would be", f);
    fclose(f);
    CHECK_SAYS(told(renamed, &m, NULL), "not a GGUF file");
    static const char st[] = "\x3c\0\0\0\0\0\0\0{\"fc.weight\":{\"dtype\":\"F32\",\"shape\":[0],"
                             "\"data_offsets\":[0,0]}}    ";
    f = fopen(renamed, "w");
    fwrite(st, 1, sizeof st - 1, f);
    fclose(f);
    CHECK_SAYS(told(renamed, &m, NULL), "carat convert");
    /* For another target, of another width or vocabulary. */
    CHECK_SAYS(told(made(dir, "wide.gguf", "dflash-tiny-wide", "q8_0"), &m, NULL),
               "for a model of width 256, and gemma-4-tiny-dense, random weights has width 96");
    CHECK_SAYS(told(made(dir, "mtp.gguf", "mtp-tiny-wide", "q8_0"), &m, NULL),
               "an MTP assistant of Gemma 4 for a model of width 256");
    CHECK_SAYS(told(made(dir, "model.gguf", "tiny-ple", "q8_0"), &m, NULL),
               "only if both have a tokenizer");
}

/* A directory must name one drafter, or one that is better than the others. */
TEST(find_takes_the_best_file_of_a_directory)
{
    AUTO(model_free) model m;
    const char *dir = room("several");
    char other[600];
    const char *target = made(dir, "target.gguf", "tiny-dense", "f32");
    bind_target(&m, target);
    made(dir, "b.gguf", "dflash-tiny", "f16");
    CHECK_SAYS(told(dir, &m, target), "b.gguf");
    made(dir, "c.gguf", "dflash-tiny", "q8_0");
    made(dir, "a.gguf", "dflash-tiny", "q4_0");
    CHECK_SAYS(told(dir, &m, target), "c.gguf");
    made(dir, "for-another.gguf", "dflash-tiny-wide", "q8_0");
    CHECK_SAYS(told(dir, &m, target), "c.gguf");
    made(dir, "d.gguf", "mtp-tiny", "q8_0");
    CHECK_SAYS(told(dir, &m, target), "c.gguf and d.gguf fit equally well: name one of them");
    snprintf(other, sizeof other, "%s/d.gguf", dir);
    CHECK_EQ(unlink(other), 0);
    /* A damaged file does not disturb. */
    snprintf(other, sizeof other, "%s/e.gguf", dir);
    FILE *f = fopen(other, "w");
    fputs("GGUF and nothing more", f);
    fclose(f);
    CHECK_SAYS(told(dir, &m, target), "c.gguf");
}

TEST(find_names_a_checkpoint_that_wants_converting)
{
    AUTO(model_free) model m;
    const char *dir = room("checkpoint");
    static const char *const files[] = {"config.json", "model.safetensors"};
    bind_target(&m, made(room("elsewhere"), "target.gguf", "tiny-dense", "f32"));
    for (int i = 0; i < 2; i++) {
        char path[512];
        snprintf(path, sizeof path, "%s/%s", dir, files[i]);
        FILE *f = fopen(path, "w");
        fputs("{}", f);
        fclose(f);
    }
    CHECK_SAYS(told(dir, &m, NULL), "a checkpoint in safetensors; 'carat convert ");
    made(dir, "d.gguf", "dflash-tiny", "q8_0");
    CHECK_SAYS(told(dir, &m, NULL), "d.gguf");
}

/* auto looks at names that say what they are, and never fails. */
TEST(find_auto_takes_what_lies_beside_the_model)
{
    AUTO(model_free) model m;
    AUTO(draft_found_free) draft_found f;
    err e = {0};
    const char *dir = room("beside");
    const char *target = made(dir, "target.gguf", "tiny-dense", "f32");
    bind_target(&m, target);
    made(dir, "x.gguf", "dflash-tiny", "q8_0"); /* the name says nothing */
    CHECK_SAYS(told("auto", &m, target), "no drafter lies beside the model");
    made(dir, "other-DFlash.gguf", "dflash-tiny-wide", "q8_0");
    CHECK_SAYS(told("auto", &m, target), "other-DFlash.gguf is a DFlash drafter for a model of");
    CHECK_OK(draft_find("auto", &m, target, &f, &e), e);
    CHECK(f.class == &draft_lookup);
    draft_found_free(&f);
    /* One that fits is taken, and of several the Q8_0 one, then the one named like the model. */
    made(dir, "t-dflash-f16.gguf", "dflash-tiny", "f16");
    CHECK_SAYS(told("auto", &m, target), "t-dflash-f16.gguf lies beside the model; not other-DF");
    made(dir, "a-dflash.gguf", "dflash-tiny", "q8_0");
    CHECK_SAYS(told("auto", &m, target), "a-dflash.gguf lies beside the model");
    made(dir, "target-DFLASH-q8.gguf", "dflash-tiny", "q8_0");
    CHECK_OK(draft_find("auto", &m, target, &f, &e), e);
    CHECK(f.class == &draft_dflash);
    CHECK_SAYS(f.why, "target-DFLASH-q8.gguf lies beside the model; not a-dflash.gguf");
    CHECK_SAYS(f.why, "and 1 more");
    draft_found_free(&f);
    /* A damaged one is passed over. */
    const char *damaged = "GGUF but no more";
    char path[512];
    snprintf(path, sizeof path, "%s/target-dflash.gguf", dir);
    FILE *out = fopen(path, "w");
    fputs(damaged, out);
    fclose(out);
    CHECK_OK(draft_find("auto", &m, target, &f, &e), e);
    CHECK(f.class == &draft_dflash);
}

/* Any model with the same tokens drafts for another; auto does not assume that one is meant. */
TEST(find_takes_a_smaller_model_with_the_same_vocabulary)
{
    AUTO(model_free) model m;
    draft_found f;
    err e = {0};
    const char *target = toy_model_write(NULL), *dir = room("smaller");
    char small[512], more[512];
    snprintf(small, sizeof small, "%s/small-assistant.gguf", dir);
    snprintf(more, sizeof more, "%s/more.gguf", dir);
    const char *make[] = {"tiny-wide", small, "--vocab", target};
    const char *make_more[] = {"tiny-wide", more, "--vocab", target, "--full-vocab"};
    CHECK_EQ(command_synth.run(&command_synth, 4, (char **)make), 0);
    CHECK_EQ(command_synth.run(&command_synth, 5, (char **)make_more), 0);
    bind_target(&m, target);
    CHECK_OK(draft_find(small, &m, target, &f, &e), e);
    CHECK(f.class == &draft_small);
    draft_found_free(&f);
    CHECK_SAYS(told(more, &m, target), "has 512 tokens and");
    CHECK_SAYS(told(more, &m, target), "only with the same vocabulary");
    char beside[512];
    snprintf(beside, sizeof beside, "%s/target.gguf", dir); /* need not be there */
    CHECK_SAYS(told("auto", &m, beside), "no drafter lies beside the model");
}

/* ---- Look-alikes --------------------------------------------------------------------------- */

static void says_alien(const char *from, const doctor_change *c, const char *part)
{
    const char *path = test_temp("alien.gguf");
    AUTO(gguf_close) gguf g;
    err e = {0};
    doctor_gguf(from, path, c);
    CHECK_OK(gguf_open(&g, path, false, NULL, NULL, &e), e);
    CHECK_STATUS(draft_kind_check(&g, &e), E_UNSUPPORTED);
    CHECK_SAYS(e.text, part);
    CHECK_SAYS(e.text, path);
}

/* A tensor that the drafter does not have. */
static void says_stranger(const char *from, const doctor_change *c, const char *part)
{
    const char *path = test_temp("stranger.gguf");
    gguf g;
    model m;
    err e = {0};
    doctor_gguf(from, path, c);
    CHECK_OK(gguf_open(&g, path, false, NULL, NULL, &e), e);
    CHECK(model_bind(&m, &g, &e));
    CHECK_SAYS(e.text, part);
}

/* One file of each family, made from a DFlash drafter by its marks. */
TEST(find_refuses_look_alikes_by_name)
{
    const char *dir = room("aliens");
    const char *base = made(dir, "base.gguf", "dflash-tiny", "q8_0");
    const char *laguna = made(dir, "laguna.gguf", "dflash-tiny-laguna", "q8_0");
    const char *dspark = made(dir, "dspark.gguf", "dflash-tiny-dspark", "q8_0");
    const char *mtp = made(dir, "mtp.gguf", "mtp-tiny-ordered", "q8_0");
    static const struct {
        doctor_change c;
        const char *part;
    } alien[] = {
        {{.arch = "eagle3"}, "an EAGLE-3 head"},
        {{.add = "blk.0.midlayer.attn_q.weight"}, "an EAGLE-3 head"},
        {{.arch = "p-eagle"}, "a P-EAGLE head"},
        {{.arch = "dflash2"}, "a DFlash2 drafter"},
        {{.add = "selector_hidden.weight"}, "a DFlash2 drafter"},
        {{.add = "blk.1.attention_conv.weight"}, "a DFlash2 drafter"},
        {{.add = "blk.1.mlp_conv_base"}, "a DFlash2 drafter"},
        {{.key = "dflash.conv_kernel_size", .value = 2}, "a DFlash2 drafter"},
        {{.add = "prefix_gru.weight"}, "a Domino drafter"},
        {{.add = "dflash.domino.embed_proj.weight"}, "a Domino drafter"},
        {{.key = "dflash.dflash.domino.enabled", .value = 1}, "a Domino drafter"},
        {{.key = "dflash.shift_label", .value = 1}, "a Domino drafter"},
        {{.key = "dflash.hyper_connection.count", .value = 4}, "DeepSeek"},
        {{.add = "blk.0.hc_attn.weight"}, "DeepSeek"},
        {{.add = "blk.2.attn_sinks.weight"}, "attention sinks"},
        {{.add = "mask_embedding"}, "attention sinks"},
        {{.add = "encoder.output_norm_enc.weight"}, "a Muse assistant"},
        {{.add = "d2t"}, "a reduced vocabulary"},
        {{.add = "blk.0.post_ffw_norm.weight"}, "Gemma's own layers"},
        {{.add = "blk.0.layer_output_scale.weight"}, "Gemma's own layers"},
        {{.arch = "dspark"}, "an early format"},
        {{.add = "markov_head.joint_proj.weight"}, "gated or recurrent"},
        {{.arch = "laguna-dspark"}, "a Laguna drafter with DSpark"},
    };
    for (size_t i = 0; i < sizeof alien / sizeof *alien; i++)
        says_alien(base, &alien[i].c, alien[i].part);
    says_alien(laguna, &(doctor_change){.add = "markov_w1.weight"}, "a Laguna drafter with DSpark");
    says_stranger(base, &(doctor_change){.add = "blk.0.attn_extra_norm.weight"},
                  "1 tensor has no place in a model of dflash: blk.0.attn_extra_norm.weight");
    says_stranger(dspark, &(doctor_change){.rename = "markov_w1.weight", .as = "markov_w3.weight"},
                  "markov_w3.weight");
    says_stranger(mtp, &(doctor_change){.rename = "masked_embd_ordering", .as = "blk.4x.attn_q"},
                  "of tensors masked_embd_centroids.weight and masked_embd_ordering there is one");
    says_stranger(mtp, &(doctor_change){.add = "blk.0.attn_k.weight"}, "blk.0.attn_k.weight");
    says_stranger(mtp, &(doctor_change){.add = "mtp.pre_projection.weight"}, "same by two names");
}

/* The writers' table and the reader agree, in every dialect and without a note. */
TEST(find_binds_every_drafter_that_synth_writes)
{
    static const char *const sizes[] = {"dflash-tiny", "dflash-tiny-laguna", "dflash-tiny-dspark"};
    static const char *const dialects[] = {"llama.cpp", "lucebox", "ik"};
    const char *dir = room("bound"), *path = test_temp("bound.gguf");
    AUTO(model_free) model target;
    err e = {0};
    bind_target(&target, made(dir, "target.gguf", "tiny-dense", "f32"));
    for (int i = 0; i < 9; i++) {
        const char *argv[] = {sizes[i / 3], path, "--dialect", dialects[i % 3]};
        AUTO_MEM model_shape *shape;
        AUTO(model_free) model m;
        gguf g;
        CHECK_EQ(command_synth.run(&command_synth, 4, (char **)argv), 0);
        CHECK_OK(shape_named(sizes[i / 3], &shape, &e), e);
        const dflash_shape *s = (const dflash_shape *)shape;
        CHECK_OK(gguf_open(&g, path, false, NULL, NULL, &e), e);
        CHECK_OK(model_bind(&m, &g, &e), e);
        CHECK_OK(dflash_attach(&m, &target, &e), e);
        const dflash *d = m.impl;
        CHECK_STR(d->notes, "");
        CHECK(d->n_layer == s->n_layer && d->n_embd == s->n_embd && d->block == s->block_size);
        CHECK(d->n_features == s->n_features && d->mask_id == s->mask_id);
        for (int32_t k = 0; k < s->n_features; k++)
            CHECK_EQ(d->feature[k], s->feature[k]);
        CHECK_EQ(d->anchor_first, s->anchor_first);
        CHECK_EQ(d->laguna, s->laguna);
        CHECK_EQ(d->markov_in.n_in, s->markov_rank);
        CHECK_EQ(d->conf.n_in > 0, s->confidence);
        for (int32_t il = 0; il < s->n_layer; il++) {
            CHECK_EQ(m.kv[il].window, s->swa[il] ? s->window : 0);
            CHECK_EQ(m.kv[il].inside == KV_INSIDE_CAUSAL, dflash_layer_causal(s, il));
        }
    }
}

TEST(find_binds_every_assistant_that_synth_writes)
{
    static const struct {
        const char *size, *dialect, *target;
    } one[] = {{"mtp-tiny", "llama.cpp", "tiny-dense"},
               {"mtp-tiny", "old", "tiny-all"},
               {"mtp-tiny-ordered", "llama.cpp", "tiny-ple"},
               {"mtp-tiny-ordered", "old", "tiny-ple"},
               {"mtp-tiny-wide", "llama.cpp", "tiny-wide"}};
    const char *dir = room("assistants"), *path = test_temp("assistant.gguf");
    for (int i = 0; i < 5; i++) {
        const char *argv[] = {one[i].size, path, "--dialect", one[i].dialect};
        model m, target;
        gguf g;
        AUTO_MEM model_shape *shape;
        err e = {0};
        bind_target(&target, made(dir, "target.gguf", one[i].target, "f32"));
        CHECK_EQ(command_synth.run(&command_synth, 4, (char **)argv), 0);
        CHECK_OK(shape_named(one[i].size, &shape, &e), e);
        const gemma4_mtp_shape *s = (const gemma4_mtp_shape *)shape;
        CHECK_OK(gguf_open(&g, path, false, NULL, NULL, &e), e);
        CHECK_OK(model_bind(&m, &g, &e), e);
        CHECK_OK(gemma4_mtp_attach(&m, &target, &e), e);
        const gemma4_mtp *a = m.impl;
        CHECK(a->n_layer == s->n_layer && a->n_embd == s->n_embd && a->window == s->window);
        CHECK(a->n_clusters == s->n_centroids && a->n_top == s->centroid_top_k);
        for (int32_t il = 0; il < s->n_layer; il++)
            CHECK_EQ(a->layer[il].swa, s->swa[il]);
        model_free(&m);
        model_free(&target);
    }
}

TEST(find_knows_every_tensor_that_synth_writes)
{
    static const char *const all[][2] = {{"dflash-tiny", "llama.cpp"},
                                         {"dflash-tiny", "lucebox"},
                                         {"dflash-tiny", "ik"},
                                         {"dflash-tiny-laguna", "llama.cpp"},
                                         {"dflash-tiny-laguna", "lucebox"},
                                         {"dflash-tiny-laguna", "ik"},
                                         {"dflash-tiny-xs", "llama.cpp"},
                                         {"dflash-tiny-qwen35", "lucebox"},
                                         {"dflash-tiny-dspark", "llama.cpp"},
                                         {"dflash-tiny-dspark", "lucebox"},
                                         {"dflash-tiny-dspark", "ik"},
                                         {"mtp-tiny", "llama.cpp"},
                                         {"mtp-tiny-ordered", "llama.cpp"},
                                         {"mtp-tiny-ordered", "old"}};
    const char *path = test_temp("known.gguf"), *what;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        const char *argv[] = {all[i][0], path, "--dialect", all[i][1]};
        AUTO(gguf_close) gguf g;
        err e = {0};
        CHECK_EQ(command_synth.run(&command_synth, 4, (char **)argv), 0);
        CHECK_OK(gguf_open(&g, path, false, NULL, NULL, &e), e);
        CHECK_OK(draft_kind_check(&g, &e), e);
        CHECK_EQ(draft_kind_of(&g, &what), all[i][0][0] == 'd' ? DRAFT_DFLASH : DRAFT_MTP);
    }
}

TEST(find_knows_classes_of_configurations)
{
    static const struct {
        const char *name, *part;
    } alien[] = {{"Eagle3LlamaForCausalLM", "EAGLE-3"},
                 {"PEagleSpeculator", "P-EAGLE"},
                 {"peagle", "P-EAGLE"},
                 {"mtp", "inside the target's file"},
                 {"DFlash2DraftModel", "DFlash2"},
                 {"DominoForCausalLM", "Domino"},
                 {"LagunaDSparkModel", "Laguna"},
                 {"Gemma4DSparkModel", "Gemma's own layers"},
                 {"MuseGlimmerAssistantModel", "Muse"}};
    static const char *const own[] = {"DFlashDraftModel",        "Qwen3DFlashDraftModel",
                                      "DFlashSpeculator",        "Qwen3DSparkModel",
                                      "DFlashLagunaForCausalLM", "Gemma4AssistantForCausalLM"};
    for (size_t i = 0; i < sizeof alien / sizeof *alien; i++)
        CHECK_SAYS(draft_alien_class(alien[i].name, strlen(alien[i].name)), alien[i].part);
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        CHECK(!draft_alien_class(own[i], strlen(own[i])));
}

/* As a model, a drafter is refused with a hint. */
TEST(find_drafters_are_no_models)
{
    const char *dir = room("models");
    static const char *const sizes[] = {"dflash-tiny", "mtp-tiny"};
    for (int i = 0; i < 2; i++) {
        carat_model *m;
        carat_error e = {0};
        const char *path = made(dir, "m.gguf", sizes[i], "q8_0");
        CHECK_STATUS(carat_model_open(path, NULL, &m, &e), E_UNSUPPORTED);
        CHECK_SAYS(e.text, "drafts for another model: give it with --draft");
        doctor_gguf(path, test_temp("x.gguf"), &(doctor_change){.arch = "eagle3"});
        e = (carat_error){0};
        CHECK_STATUS(carat_model_open(test_temp("x.gguf"), NULL, &m, &e), E_UNSUPPORTED);
        CHECK_SAYS(e.text, "an EAGLE-3 head");
    }
}

static status find_in_it(void *arg, err *e)
{
    AUTO(draft_found_free) draft_found f;
    const model *m = ((const void **)arg)[0];
    status st = draft_find(((const char **)arg)[1], m, ((const char **)arg)[2], &f, e);
    return st == E_UNSUPPORTED ? OK : st;
}

TEST(find_survives_every_failed_allocation)
{
    AUTO(model_free) model m;
    const char *dir = room("memory");
    const char *target = made(dir, "target.gguf", "tiny-dense", "f32");
    bind_target(&m, target);
    made(dir, "a-dflash.gguf", "dflash-tiny", "q8_0");
    made(dir, "b-dflash.gguf", "dflash-tiny", "f16");
    test_every_allocation(find_in_it, (const void *[]){&m, dir, target});
    test_every_allocation(find_in_it, (const void *[]){&m, "auto", target});
}
