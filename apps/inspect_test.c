/* inspect_test.c - the report of a known file, in both forms.
 *
 * A tiny model is written, and what `carat inspect` prints of it is compared with what went in:
 * metadata, tensors, counts and the memory plan. Files of other models, with odd bytes in their
 * texts, must not break the terminal or the JSON.
 */
#include "tests/test.h"
#include "tests/toy_model.h"
#include "apps/commands.h"
#include "base/json.h"
#include "base/map.h"
#include "base/mem.h"
#include "format/gguf.h"
#include "num/num.h"
#include "tests/doctor.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

/* Whether a file has anything in it. */
static bool has_text(const char *path)
{
    struct stat sb;
    return !stat(path, &sb) && sb.st_size > 0;
}

/* Runs inspect with its standard output in a file; returns the text. */
static char *inspect(int want, const char *file, const char *a, const char *b, const char *c)
{
    const char *argv[] = {file, a, b, c};
    const char *path = test_temp("stdout.txt");
    char *text;
    size_t n;
    err e = {0};
    fflush(stdout);
    int keep = dup(1), fd = open(path, O_CREAT | O_TRUNC | O_WRONLY, 0600);
    CHECK(keep >= 0 && fd >= 0 && dup2(fd, 1) == 1);
    int rc = command_inspect.run(&command_inspect, !a ? 1 : !b ? 2 : !c ? 3 : 4, (char **)argv);
    fflush(stdout);
    dup2(keep, 1);
    close(keep);
    close(fd);
    CHECK_EQ(rc, want);
    if (!has_text(path))
        return mem_strdup("");
    CHECK_OK(file_read_all(path, 1 << 24, &text, &n, &e), e);
    return text;
}

TEST(inspect_shows_a_model_and_its_plan)
{
    const char *path = test_temp("m.gguf");
    const char *argv[] = {"tiny-all", path, "--type", "q8_0"};
    err e = {0};
    json_t *v;
    CHECK_EQ(command_synth.run(&command_synth, 4, (char **)argv), 0);
    char *text = inspect(0, path, NULL, NULL, NULL);
    CHECK(strstr(text, "gemma4.attention.sliding_window            8\n"));
    CHECK(strstr(text, "[true, true, false, true, true, false, true, true, ... 9 in all]"));
    CHECK(strstr(text, "blk.8.ffn_gate_up_exps.weight"));
    CHECK(strstr(text, "\nMemory for 8192 tokens of context"));
    mem_free(text);
    text = inspect(0, path, "--json", "--ctx", "100");
    CHECK_OK(json_parse(&v, text, strlen(text), "inspect", &e), e);
    CHECK_EQ(json_integer_value(json_object_get(json_object_get(v, "plan"), "context")), 100);
    CHECK_EQ(json_array_size(json_object_get(v, "tensors")), 228);
    CHECK(json_integer_value(json_object_get(v, "parameters")) >
          json_integer_value(json_object_get(v, "active_parameters")));
    json_decref(v);
    mem_free(text);
    mem_free(inspect(1, path, "--ctx", "100000", NULL)); /* the model was made for 8192 */
}

TEST(inspect_works_for_other_models_and_odd_text)
{
    const char *path = test_temp("other.gguf");
    static const gguf_string odd[] = {{"\x1b[2J", 4}, {"\xff\xfe", 2}, {"", 0}};
    static const float reals[] = {0.5f, NAN, INFINITY};
    gguf_writer *w;
    err e = {0};
    json_t *v;
    CHECK_OK(gguf_create(&w, path, &e), e);
    gguf_put_string(w, "general.architecture", "llama", 5);
    gguf_put_strings(w, "odd", odd, 3);
    gguf_put_f32s(w, "reals", reals, 3);
    gguf_put_u32(w, "llama.expert_count", 4);
    gguf_put_u32(w, "llama.expert_used_count", 1);
    gguf_put_tensor(w, "blk.0.ffn_up_exps.weight", NUM_IQ2_XXS, 3, (uint64_t[]){256, 2, 4});
    CHECK_OK(gguf_write_header(w, &e), e);
    static const char zeros[66 * 8];
    CHECK_OK(gguf_write_data(w, zeros, sizeof zeros, &e), e);
    CHECK_OK(gguf_commit(w, &e), e);
    char *text = inspect(0, path, NULL, NULL, NULL);
    CHECK(strstr(text, "iq2_xxs") && strstr(text, "no plan: "));
    CHECK(strstr(text, "2.05 K parameters, 512 read per token"));
    mem_free(text);
    text = inspect(0, path, "--json", NULL, NULL);
    CHECK_OK(json_parse(&v, text, strlen(text), "inspect", &e), e);
    CHECK(json_is_null(json_object_get(v, "plan")) &&
          json_is_string(json_object_get(v, "problem")));
    json_decref(v);
    mem_free(text);
    mem_free(inspect(1, path, "--ctx", "10", NULL));
    mem_free(inspect(1, "/nonexistent.gguf", NULL, NULL, NULL));
}

TEST(inspect_explains_the_vocabulary)
{
    const char *path = toy_model_write(NULL);
    err e = {0};
    json_t *v, *w;
    AUTO_MEM char *text = inspect(0, path, NULL, NULL, NULL);
    CHECK(strstr(text, "\nText\n  tokenizer        gemma4, "));
    CHECK(strstr(text, "\n  prompts begin    with <bos> (2)\n"));
    CHECK(strstr(text, "\n  answers end at   <eos> (1), <turn|> (9), <|tool_response> ("));
    CHECK(strstr(text, "\n  chat template    known\n"));
    mem_free(text);
    text = inspect(0, path, "--json", NULL, NULL);
    CHECK_OK(json_parse(&v, text, strlen(text), "inspect", &e), e);
    w = json_object_get(v, "text");
    CHECK_EQ(json_array_size(json_object_get(w, "ends")), 3);
    CHECK_EQ(json_integer_value(json_object_get(w, "begin")), 2);
    CHECK(json_is_true(json_object_get(w, "chat")));
    json_decref(v);
    mem_free(text);
    const char *make[] = {"tiny-dense", path}; /* has no tokenizer */
    CHECK_EQ(command_synth.run(&command_synth, 2, (char **)make), 0);
    text = inspect(0, path, NULL, NULL, NULL);
    CHECK(!strstr(text, "\nText\n"));
}

/* A vision tower: how many tokens a picture becomes, of a usual size or of a file. */
TEST(inspect_says_what_pictures_cost)
{
    const char *path = test_temp("m.gguf");
    char picture[1024];
    const char *make[] = {"mmproj-e4b", path, "--hollow"};
    const char *flat[] = {"tiny-mmproj-flat", path};
    const char *words[] = {"tiny-mmproj-flat", path, "--vocab", "none"};
    err e = {0};
    json_t *v, *costs;
    snprintf(picture, sizeof picture, "%s", test_path("fuzz/corpus/jpeg/exif-6"));
    CHECK_EQ(command_synth.run(&command_synth, 3, (char **)make), 0);
    AUTO_MEM char *text = inspect(0, path, NULL, NULL, NULL);
    CHECK(strstr(text, "\nPictures\n  tower gemma4v: 16 layers of width 768, patches of 16"));
    CHECK(strstr(text, "    280           264     2376     1056 x 576"));
    CHECK(!strstr(text, "no plan"));
    CHECK(strstr(text, "\nSounds\n  tower gemma4a: 12 layers of width 1024\n"
                       "  750 tokens for the 30 seconds"));
    mem_free(text);
    text = inspect(0, path, "--image", picture, "--json");
    CHECK_OK(json_parse(&v, text, strlen(text), "inspect", &e), e);
    json_t *ears = json_object_get(v, "audio");
    CHECK_STR(json_string_value(json_object_get(ears, "projector")), "gemma4a");
    CHECK_EQ(json_integer_value(json_object_get(ears, "tokens")), 750);
    costs = json_object_get(json_object_get(v, "vision"), "costs");
    CHECK_EQ(json_array_size(costs), 6);
    CHECK_EQ(json_integer_value(json_object_get(json_object_get(v, "vision"), "picture_width")), 9);
    /* 9 x 14 pixels: 6 x 10 tokens are the most whose sides keep to the budget of 70. */
    CHECK_EQ(json_integer_value(json_object_get(json_array_get(costs, 0), "tokens")), 60);
    json_decref(v);
    mem_free(text);
    mem_free(inspect(1, path, "--image", test_path("fuzz/corpus/jpeg/cmyk"), NULL));
    CHECK_EQ(command_synth.run(&command_synth, 2, (char **)flat), 0);
    text = inspect(0, path, NULL, NULL, NULL);
    CHECK(strstr(text, "tower gemma4uv") && strstr(text, "embeddings of width 96"));
    CHECK(!strstr(text, "\nSounds\n"));
    mem_free(text);
    text = inspect(0, path, "--image-tokens", "native", NULL);
    CHECK(strstr(text, "\n    native ") && !strstr(text, "\n    280 "));
    mem_free(text);
    mem_free(inspect(1, path, "--image-tokens", "2000", NULL));
    CHECK_EQ(command_synth.run(&command_synth, 4, (char **)words), 2);
    const char *model[] = {"tiny-dense", path};
    CHECK_EQ(command_synth.run(&command_synth, 2, (char **)model), 0);
    mem_free(inspect(1, path, "--image", picture, NULL));
    /* A model with a tower beside it: the tower's cost, and its memory in the plan. */
    const char *beside = test_temp("mmproj-F32.gguf"), *seeing[] = {"tiny-mmproj-clamped", beside};
    CHECK_EQ(command_synth.run(&command_synth, 2, (char **)seeing), 0);
    AUTO_MEM char *blind = inspect(0, path, "--mmproj", "none", "--json");
    text = inspect(0, path, "--image", picture, "--json");
    json_t *w;
    CHECK_OK(json_parse(&v, text, strlen(text), "inspect", &e), e);
    CHECK_OK(json_parse(&w, blind, strlen(blind), "inspect", &e), e);
    CHECK(json_is_null(json_object_get(w, "vision")));
    CHECK_STR(json_string_value(json_object_get(json_object_get(v, "vision"), "projector")),
              "gemma4v");
    CHECK(json_integer_value(json_object_get(json_object_get(v, "plan"), "total_bytes")) >
          json_integer_value(json_object_get(json_object_get(w, "plan"), "total_bytes")));
    json_decref(v);
    json_decref(w);
}

/* A drafter: its facts, warnings about what the file says wrongly, and its cost beside a model. */
TEST(inspect_explains_drafters)
{
    const char *target = test_temp("t.gguf"), *path = test_temp("d.gguf"),
               *odd = test_temp("o.gguf");
    const char *make_target[] = {"tiny-dense", target, "--type", "q8_0"};
    const char *make[] = {"dflash-tiny-dspark", path};
    err e = {0};
    json_t *v, *d;
    CHECK_EQ(command_synth.run(&command_synth, 4, (char **)make_target), 0);
    CHECK_EQ(command_synth.run(&command_synth, 2, (char **)make), 0);
    AUTO_MEM char *text = inspect(0, path, NULL, NULL, NULL);
    CHECK(strstr(text, "\nDrafter: DFlash, with DSpark's bigram correction\n"));
    CHECK(strstr(text, "the outputs of layers 1, 4, 6\n"));
    CHECK(strstr(text, "3, 2 of them sliding over 16 tokens\n"));
    CHECK(strstr(text, "8 slots, 8 of them draft\n"));
    CHECK(!strstr(text, "warning") && !strstr(text, "cost beside"));
    mem_free(text);
    text = inspect(0, path, "--target", target, "--json");
    CHECK_OK(json_parse(&v, text, strlen(text), "inspect", &e), e);
    d = json_object_get(v, "drafter");
    CHECK_EQ(json_integer_value(json_object_get(d, "mask_token")), 4);
    CHECK_EQ(json_array_size(json_object_get(d, "captured_layers")), 3);
    /* One full layer of two heads of 32, keys and values in f16. */
    CHECK_EQ(json_integer_value(json_object_get(d, "bytes_per_token")), 2 * 2 * 32 * 2);
    CHECK_EQ(json_integer_value(json_object_get(d, "window_bytes")), 2 * 16 * 2 * 2 * 32 * 2);
    CHECK(json_integer_value(json_object_get(d, "draft_bytes")) > 300000);
    json_decref(v);
    mem_free(text);
    /* Metadata that contradicts the tensors. */
    doctor_gguf(path, odd, &(doctor_change){.key = "dflash.attention.head_count", .value = 32});
    text = inspect(0, odd, NULL, NULL, NULL);
    CHECK(strstr(text, "  warning: dflash.attention.head_count contradicts the tensors"));
    mem_free(text);
    doctor_gguf(path, odd,
                &(doctor_change){.list = "dflash.target_layers", .item = {2, 5}, .n_items = 2});
    text = inspect(0, odd, NULL, NULL, NULL);
    CHECK(strstr(text, "  warning: 2 captured layers are listed, and the tensors show 3"));
    mem_free(text);
    /* Another family; another target; no drafter. */
    doctor_gguf(path, odd, &(doctor_change){.arch = "eagle3"});
    text = inspect(0, odd, NULL, NULL, NULL);
    CHECK(strstr(text, "Drafter: an EAGLE-3 head") && strstr(text, "not usable"));
    mem_free(text);
    mem_free(inspect(1, odd, "--target", target, NULL));
    mem_free(inspect(1, odd, "--target", target, "--device=cpu"));
    mem_free(inspect(1, odd, "--device=cpu", NULL, NULL));
    text = inspect(1, target, "--target", target, NULL); /* without a tokenizer */
    CHECK(strstr(text, "\nDrafter: a model of its own\n"));
    CHECK(strstr(text, "only if both have a tokenizer"));
    mem_free(text);
    const char *other[] = {"dflash-tiny-wide", path};
    CHECK_EQ(command_synth.run(&command_synth, 2, (char **)other), 0);
    text = inspect(1, path, "--target", target, NULL);
    CHECK(strstr(text, "not usable with the target"));
    mem_free(text);
    const char *mtp[] = {"mtp-tiny-ordered", path};
    CHECK_EQ(command_synth.run(&command_synth, 2, (char **)mtp), 0);
    text = inspect(0, path, "--target", target, NULL);
    CHECK(strstr(text, "its own: 16 clusters of 20 tokens, 4 used\n"));
    CHECK(strstr(text, "cost beside the target"));
    mem_free(text);
    /* On a GPU: the target's plan, with this drafter. */
    text = inspect(0, path, "--target", target, "--gpu=2GB");
    AUTO_MEM char *alone = inspect(0, target, "--gpu=2GB", NULL, NULL);
    CHECK(strstr(text, "everything fits") && strstr(alone, "everything fits"));
    CHECK(strcmp(text, alone) != 0); /* it takes memory */
}
