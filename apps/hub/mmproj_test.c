/* mmproj_test.c - which vision tower goes with a model: by names among equals, by widths always. */
#include "apps/commands.h"
#include "apps/hub/head.h"
#include "apps/hub/hub.h"
#include "apps/hub/names.h"
#include "tests/test.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/str.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

TEST(hub_towers_by_their_names)
{
    static const char *const all[] = {"mmproj-F32.gguf",         "mmproj-Q8_0.gguf",
                                      "other/mmproj-BF16.gguf",  "mmproj-model-f16.gguf",
                                      "M-mmproj-bf16.gguf",      "M-Q4_K_M.gguf",
                                      "mmproj-BF16.safetensors", "mmproj-BF16-00001-of-00002.gguf"};
    enum { N = sizeof all / sizeof *all };
    CHECK_EQ(choose_mmproj(all, N, "M-Q4_K_M.gguf"), 4);
    CHECK_EQ(choose_mmproj(all, 4, "M-Q4_K_M.gguf"), 3);
    CHECK_EQ(choose_mmproj(all, 3, "M-Q4_K_M.gguf"), 1);
    CHECK_EQ(choose_mmproj(all, 1, "M-Q4_K_M.gguf"), 0);
    CHECK_EQ(choose_mmproj(all, N, "other/M-Q4_K_M.gguf"), 2);
    CHECK_EQ(choose_mmproj(all + 5, N - 5, "M-Q4_K_M.gguf"), -1);
    CHECK_EQ(choose_mmproj(all, 0, "M-Q4_K_M.gguf"), -1);
}

/* A folder or a repository may have the towers of several models. */
TEST(hub_towers_by_the_models_names)
{
    static const char *const all[] = {"mmproj-deepseek-ocr-2-bf16.gguf",
                                      "deepseek-ocr-mmproj-F16.gguf", "mmproj-model-f16.gguf",
                                      "MMPROJ-BF16.gguf", "mmproj-gemma-4-12B-it-bf16.gguf"};
    CHECK_EQ(choose_mmproj(all, 5, "deepseek-ocr-Q8_0.gguf"), 1);
    CHECK_EQ(choose_mmproj(all, 5, "DeepSeek-OCR-UD-Q4_K_XL-00001-of-00002.gguf"), 1);
    CHECK_EQ(choose_mmproj(all, 5, "deepseek-ocr-2-Q8_0.gguf"), 0);
    CHECK_EQ(choose_mmproj(all, 5, "gemma-4-12b-it-Q4_K_M.gguf"), 4);
    CHECK_EQ(choose_mmproj(all, 5, "M-Q4_K_M.gguf"), 3);
    CHECK_EQ(choose_mmproj(all, 3, "M-Q4_K_M.gguf"), 2);
    CHECK_EQ(choose_mmproj(all, 2, "M-Q4_K_M.gguf"), 0);
}

/* Every published name of a tower is taken by a model that is alone with it. Among all published
 * files a model takes the one that its maker gave it. */
TEST(hub_published_towers)
{
    static const char *const row[][2] = {
        {"Qwen_Qwen3-VL-4B-Instruct-Q4_K_M.gguf", "Qwen_Qwen3-VL-4B-Instruct-mmproj-f16.gguf"},
        {"Qwen_Qwen3.6-35B-A3B-IQ2_XXS.gguf", "mmproj-Qwen_Qwen3.6-35B-A3B-f16.gguf"},
        {"Qwen3.5-4B-Uncensored-HauhauCS-Aggressive-Q8_0.gguf",
         "mmproj-Qwen3.5-4B-Uncensored-HauhauCS-Aggressive-BF16.gguf"},
        {"gemma-3-27b-it-Q4_0.gguf", "gemma-3-27b-it-mmproj-bf16.gguf"},
        {"gemma-3-4b-it-q4_k_m.gguf", "mmproj-gemma-3-4b-it-Q4_K_M.gguf"},
        {"gemma-4-12B-it-Q4_K_M.gguf", "mmproj-gemma-4-12B-it-bf16.gguf"},
        {"gemma-4-E2B-it-UD-Q4_K_XL.gguf", "mmproj-gemma-4-E2B-it-Q8_0.gguf"},
        {"minimax-m3-vl-Q2_K-00001-of-00005.gguf", "mmproj-minimax-m3-vl.gguf"},
        {"deepseek-ocr-Q8_0.gguf", "mmproj-deepseek-ocr-bf16.gguf"},
        {"deepseek-ocr-2-F16.gguf", "mmproj-deepseek-ocr-2-bf16.gguf"},
        {"gemma-4-26B-A4B-it-UD-Q4_K_XL.gguf", "mmproj-BF16.gguf"}};
    enum { PUBLISHED_MAX = 2048 };
    static const char *all[PUBLISHED_MAX];
    AUTO_MEM char *text;
    size_t size, n = 0;
    int n_towers = 0;
    err e = {0};
    CHECK_OK(file_read_all(test_path("tests/data/published-names.txt"), 1 << 20, &text, &size, &e),
             e);
    for (char *line = strtok(text, "\n"); line && n < PUBLISHED_MAX; line = strtok(NULL, "\n"))
        if (*line != '#')
            all[n++] = line;
    for (size_t i = 0; i < n; i++) {
        if (!strcasestr(all[i], "mmproj") || !strcasestr(all[i], ".gguf"))
            continue;
        n_towers++;
        CHECK_MSG(is_mmproj_file(all[i]) && !is_model_file(all[i]) &&
                      !choose_mmproj(&all[i], 1, "M-Q4_K_M.gguf"),
                  "%s", all[i]);
    }
    CHECK(n_towers >= 18);
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        int at = choose_mmproj(all, n, row[i][0]);
        CHECK_MSG(at >= 0 && !strcmp(all[at], row[i][1]), "%s takes %s", row[i][0],
                  at < 0 ? "none" : all[at]);
    }
}

static void put_u64(str *s, uint64_t v)
{
    for (int i = 0; i < 8; i++)
        str_putc(s, (char)(v >> 8 * i));
}

static void put_name(str *s, const char *name)
{
    put_u64(s, strlen(name));
    str_puts(s, name);
}

/* A head with an architecture and a number. */
static void put_head(str *s, const char *arch, const char *key, uint32_t v)
{
    str_put(s, "GGUF\3\0\0\0", 8);
    put_u64(s, 0);
    put_u64(s, 2);
    put_name(s, "general.architecture");
    str_put(s, "\10\0\0\0", 4);
    put_name(s, arch);
    put_name(s, key);
    str_put(s, "\4\0\0\0", 4);
    for (int i = 0; i < 4; i++)
        str_putc(s, (char)(v >> 8 * i));
    for (int i = 0; i < 64; i++)
        str_putc(s, 0);
}

static const char *write_head(const char *dir, const char *name, const char *arch, const char *key,
                              uint32_t v)
{
    static char path[400];
    str s = {0};
    put_head(&s, arch, key, v);
    test_write_in(dir, name, s.at, s.n);
    str_free(&s);
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

TEST(hub_values_of_a_head)
{
    AUTO(str_free) str s = {0};
    char text[16] = "same";
    uint64_t v = 7;
    put_head(&s, "gemma4", "gemma4.embedding_length", 2560);
    CHECK(head_text(s.at, s.n, "general.architecture", text, sizeof text));
    CHECK_STR(text, "gemma4");
    CHECK(head_number(s.at, s.n, "gemma4.embedding_length", &v) && v == 2560);
    CHECK(!head_number(s.at, s.n, "general.architecture", &v));
    CHECK(!head_text(s.at, s.n, "gemma4.embedding_length", text, sizeof text));
    CHECK(!head_text(s.at, s.n, "general.architecture", text, 6));
    CHECK(!head_number(s.at, s.n, "none", &v) && v == 2560);
    for (size_t n = 0; n < s.n - 64; n++) {
        AUTO_MEM char *cut = mem_strndup(s.at, n);
        CHECK(!head_number(cut, n, "gemma4.embedding_length", &v));
    }
}

static void expect(const char *model, const char *name)
{
    AUTO_MEM char *out;
    err e = {0};
    CHECK_OK(mmproj_find(model, &out, &e), e);
    CHECK_MSG(name ? out && !strcmp(base_name(out), name) : !out, "%s: %s", model,
              out ? out : "none");
}

TEST(hub_towers_by_their_widths)
{
    static const char width[] = "clip.vision.projection_dim";
    char dir[200], model[400];
    snprintf(dir, sizeof dir, "%s", test_temp("models"));
    CHECK(!mkdir(dir, 0700));
    snprintf(model, sizeof model, "%s",
             write_head(dir, "e4b.gguf", "gemma4", "gemma4.embedding_length", 2560));
    expect(model, NULL);
    write_head(dir, "mmproj-BF16.gguf", "clip", width, 5376); /* of another model */
    expect(model, NULL);
    write_head(dir, "e4b-mmproj-Q8_0.gguf", "clip", width, 2560);
    expect(model, "e4b-mmproj-Q8_0.gguf");
    write_head(dir, "e4b-mmproj-f16.gguf", "clip", width, 2560);
    expect(model, "e4b-mmproj-f16.gguf");
    write_head(dir, "a-mmproj-bf16.gguf", "llama", width, 2560); /* no tower at all */
    test_write_in(dir, "b-mmproj-bf16.gguf", "junk", 4);
    expect(model, "e4b-mmproj-f16.gguf");
    write_head(dir, "c-mmproj-bf16.gguf", "clip", "clip.other", 1); /* does not say */
    expect(model, "e4b-mmproj-f16.gguf");
    expect(write_head(dir, "31b.gguf", "gemma4", "gemma4.embedding_length", 5376),
           "mmproj-BF16.gguf");
    expect(write_head(dir, "12b.gguf", "gemma4", "gemma4.embedding_length", 3840),
           "c-mmproj-bf16.gguf");
    expect(write_head(dir, "llama.gguf", "llama", "llama.embedding_length", 2560), NULL);
    const char *tower = test_temp("models/d-mmproj-bf16.gguf"); /* says that it is Qwen's */
    const char *make[] = {"tiny-mmproj-qwen", tower, "--type", "f32"};
    CHECK_EQ(command_synth.run(&command_synth, 4, (char **)make), 0);
    expect(write_head(dir, "qwen.gguf", "qwen35", "qwen35.embedding_length", 64),
           "d-mmproj-bf16.gguf");
    /* Of the same width and with the same projector, but with deepstack. */
    expect(write_head(dir, "vl.gguf", "qwen3vl", "qwen3vl.embedding_length", 64),
           "c-mmproj-bf16.gguf");
    const char *deep[] = {"tiny-mmproj-qwen3-vl", test_temp("models/a2-mmproj-bf16.gguf"), "--type",
                          "f32"};
    CHECK_EQ(command_synth.run(&command_synth, 4, (char **)deep), 0);
    expect(test_temp("models/vl.gguf"), "a2-mmproj-bf16.gguf");
    expect(test_temp("models/qwen.gguf"), "d-mmproj-bf16.gguf");
    expect(write_head(dir, "tiny.gguf", "gemma4", "gemma4.embedding_length", 64),
           "c-mmproj-bf16.gguf");
    expect("/nowhere/at/all.gguf", NULL);
    CHECK(!mmproj_hears(tower) && !mmproj_hears("/nowhere/at/all.gguf"));
    const char *with_ears[] = {"tiny-mmproj-hears", tower};
    CHECK_EQ(command_synth.run(&command_synth, 2, (char **)with_ears), 0);
    CHECK(mmproj_hears(tower));
}
