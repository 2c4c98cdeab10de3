/* media_cli_test.c - pictures on the command line: `carat logits --image`. */
#include "apps/commands.h"
#include "base/base64.h"
#include "base/map.h"
#include "base/mem.h"
#include "tests/spawn.h"
#include "tests/test.h"
#include "tests/toy_model.h"

#include <stdio.h>
#include <string.h>

/* A PNG file of one pixel. */
static const char dot[] =
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5Erk"
    "Jggg";

static const char *write_dot(void)
{
    static char path[512];
    uint8_t bytes[128];
    size_t n, bad;
    snprintf(path, sizeof path, "%s", test_temp("dot.png"));
    CHECK(base64_decode(dot, sizeof dot - 1, bytes, &n, &bad));
    FILE *f = fopen(path, "wb");
    CHECK(f && fwrite(bytes, 1, n, f) == n && !fclose(f));
    return path;
}

static void run(int code, const char *says, const char *const *args)
{
    spawned r;
    spawn_carat(&r, NULL, args);
    CHECK_MSG(r.code == code && strstr(str_text(&r.err), says), "exit status %d; stderr: %s",
              r.code, str_text(&r.err));
    spawned_free(&r);
}

TEST(cli_logits_of_a_picture)
{
    char text[512], tower[512], picture[512], tokens[64];
    const char *out = test_temp("out.f32");
    carat_model *m;
    err e = {0};
    file_map f;
    int32_t place, n;
    snprintf(text, sizeof text, "%s", toy_model_write(&(toy_model_file){.base = "e2b"}));
    snprintf(tower, sizeof tower, "%s", test_temp("mmproj-F32.gguf"));
    snprintf(picture, sizeof picture, "%s", write_dot());
    const char *make[] = {"tiny-mmproj-clamped", tower, "--type", "f32"};
    CHECK_EQ(command_synth.run(&command_synth, 4, (char **)make), 0);
    const carat_model_options o = {.vocab_only = true, .mmproj = tower, .image_tokens = 70};
    CHECK_OK(carat_model_open(text, &o, &m, &e), e);
    CHECK_EQ(carat_tokenize(m, "<|image|>", 9, CARAT_TOK_SPECIAL, &place, 1, &e), 1);
    CHECK_OK(carat_image_tokens(m, 1, 1, NULL, &n, &e), e);
    size_t row = (size_t)toy_n_vocab(m) * sizeof(float);
    carat_model_close(m);
    snprintf(tokens, sizeof tokens, "2,%d,9", place);
    run(0, "tokens in",
        ARGS("logits", "-m", text, "--mmproj", tower, "--image", picture, "--tokens", tokens, "-o",
             out, "--image-tokens", "70"));
    CHECK_OK(file_map_open(&f, out, true, NULL, NULL, &e), e);
    CHECK_EQ(f.n_bytes, (size_t)(n + 4) * row); /* with begin and end */
    file_map_close(&f);
    run(1, "0 places for pictures, and 1 are given",
        ARGS("logits", "-m", text, "--mmproj", tower, "--image", picture, "--tokens", "2,9", "-o",
             out, "--image-tokens", "70"));
    run(0, "tokens in", /* it is found beside the model */
        ARGS("logits", "-m", text, "--image", picture, "--tokens", tokens, "-o", out,
             "--image-tokens", "70"));
    run(0, "tokens in",
        ARGS("logits", "-m", text, "--image", picture, "--tokens", tokens, "-o", out,
             "--image-tokens", "native"));
    run(1, "--image-tokens 69: expected a whole number from 70 to 1120, or native",
        ARGS("logits", "-m", text, "--image", picture, "--tokens", tokens, "-o", out,
             "--image-tokens", "69"));
    run(1, "dot.png: toy was opened without a vision tower",
        ARGS("logits", "-m", text, "--mmproj", "none", "--image", picture, "--tokens", tokens, "-o",
             out));
}

/* Options that only a picture would need are looked at before the first one comes. */
TEST(cli_serve_checks_options_of_pictures_at_start)
{
    const char *none = test_temp("no-such-directory");
    run(2, "no-such-directory", ARGS("serve", "-m", "none.gguf", "--media-path", none));
    run(2, "is not a directory", ARGS("serve", "-m", "none.gguf", "--media-path", "/dev/null"));
    run(2, "--image-tokens 1121: expected",
        ARGS("serve", "-m", "none.gguf", "--image-tokens", "1121"));
}
