/* media_cli_test.c - pictures and sounds on the command line: `carat logits`, `carat run`. */
#include "apps/commands.h"
#include "base/base64.h"
#include "base/map.h"
#include "base/mem.h"
#include "tests/spawn.h"
#include "tests/test.h"
#include "tests/toy_model.h"

#include <stdio.h>
#include <stdlib.h>
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
    AUTO(spawned_free) spawned r;
    spawn_carat(&r, NULL, args);
    CHECK_MSG(r.code == code && strstr(str_text(&r.err), says), "exit status %d; stderr: %s",
              r.code, str_text(&r.err));
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
    run(1, "the tokens have places for 0 of 1 pictures and sounds",
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

/* ---- carat run ------------------------------------------------------------------------------ */

/* A model with its tower beside it, in the test's directory. */
static const char *write_with(const char *size)
{
    static char text[512];
    const char *tower;
    snprintf(text, sizeof text, "%s", toy_model_write(&(toy_model_file){.base = "e2b"}));
    tower = test_temp("mmproj-F32.gguf");
    const char *make[] = {size, tower, "--type", "f32"};
    CHECK_EQ(command_synth.run(&command_synth, 4, (char **)make), 0);
    return text;
}

static const char *write_seeing(void)
{
    return write_with("tiny-mmproj-clamped");
}

/* The same file under another name. */
static const char *copy_dot(const char *name)
{
    static char path[512];
    AUTO_MEM char *bytes;
    size_t n;
    err e = {0};
    CHECK_OK(file_read_all(write_dot(), 1000, &bytes, &n, &e), e);
    snprintf(path, sizeof path, "%s", test_temp(name));
    CHECK_OK(file_replace(path, false, bytes, n, &e), e);
    return path;
}

#define RUN                                                                                        \
    "run", "-m", text, "-c", "1024", "-t", "1", "-n", "2", "--greedy", "--image-tokens", "70"

/* The tokens of the prompt that a run says it had. */
static int prompt_tokens(const char *const *args, const char *says)
{
    AUTO(spawned_free) spawned r;
    spawn_carat(&r, NULL, args);
    CHECK_MSG(r.code == 0 && strstr(str_text(&r.err), says), "exit status %d; stderr: %s", r.code,
              str_text(&r.err));
    const char *at = strstr(str_text(&r.err), "[prompt ");
    CHECK(at);
    int n = atoi(at + 8);
    return n;
}

TEST(cli_run_sees_pictures_by_every_way)
{
    char picture[512], words[1200];
    const char *text = write_seeing(), *says = "[picture 1: a photo.png, 1x1, ";
    snprintf(picture, sizeof picture, "%s", copy_dot("a photo.png"));
    int blind = prompt_tokens(ARGS(RUN, "is picture 1 red?"), ""),
        one = prompt_tokens(ARGS(RUN, "-f", picture, "is picture 1 red?"), says),
        two = prompt_tokens(ARGS(RUN, "--image", picture, "-f", picture, "is picture 1 red?"),
                            "[picture 2: a photo.png, 1x1, ");
    CHECK(one > blind + 40);
    CHECK_EQ(two - one, one - blind);
    static const char *const forms[] = {"is %s red?", "is '%s' red?", "is file://%s red?"};
    for (int i = 0; i < 3; i++) { /* in the words, where "picture 1" takes its place */
        snprintf(words, sizeof words, forms[i], picture);
        CHECK_EQ(prompt_tokens(ARGS(RUN, words), says), one);
    }
    CHECK(prompt_tokens(ARGS("run", "-m", text, "-c", "1024", "-t", "2", "-n", "2", "--greedy",
                             "-f", picture, "is picture 1 red?"),
                        says) > blind + 500); /* at most 560, and not the picture's own size */
    spawned r;
    char *bytes;
    size_t n;
    err e = {0};
    CHECK_OK(file_read_all(picture, 1000, &bytes, &n, &e), e);
    spawn_carat(&r, &(spawn_options){.in = bytes, .n_in = n}, ARGS(RUN, "is it red?"));
    CHECK_MSG(!r.code && strstr(str_text(&r.err), "[picture 1: stdin, 1x1, "), "%s",
              str_text(&r.err));
    spawned_free(&r);
    mem_free(bytes);
    run(0, "there is no such file, so it stays a word", ARGS(RUN, "is ./none.png red?"));
}

TEST(cli_run_refuses_pictures_in_words)
{
    char picture[512], bomb[512];
    const char *text = write_seeing(), *many[64] = {RUN, "a"}, *place = test_temp("");
    uint8_t huge[] = {0x89, 'P',  'N', 'G', '\r', '\n', 0x1a, '\n', 0,    0,    0,
                      13,   'I',  'H', 'D', 'R',  0,    0,    0x75, 0x30, 0,    0,
                      0x75, 0x30, 8,   2,   0,    0,    0,    0xf8, 0xd8, 0x32, 0x7a};
    err e = {0};
    snprintf(picture, sizeof picture, "%s", copy_dot("b.png"));
    snprintf(bomb, sizeof bomb, "%s", test_temp("bomb.png"));
    CHECK_OK(file_replace(bomb, false, (char *)huge, sizeof huge, &e), e);
    for (int i = 0, n = 13; i < 17; i++) {
        many[n++] = "-f";
        many[n++] = picture;
    }
    run(1, "b.png: more than 16 pictures", many);
    run(1, "bomb.png", ARGS(RUN, "-f", bomb, "a"));
    run(1, "a directory", ARGS(RUN, "-f", place, "a"));
    run(1, "no-such.png", ARGS(RUN, "-f", "no-such.png", "a"));
    CHECK_OK(file_replace(bomb, false, "GIF89a\x80\xff", 8, &e), e);
    run(1, "a GIF file; pictures are read from PNG, JPEG and WebP", ARGS(RUN, "-f", bomb, "a"));
    run(1, "b.png: a picture, and toy sees none: it is open without its vision tower",
        ARGS(RUN, "--mmproj", "none", "-f", picture, "a"));
    run(1, "text without a chat format has none", ARGS(RUN, "--raw", "-f", picture, "a"));
    char words[600];
    snprintf(words, sizeof words, "is %s red?", picture);
    run(0, "sees no pictures: ", ARGS(RUN, "--mmproj", "none", words));
    run(1, "--image-tokens 7: expected", ARGS("run", "-m", text, "--image-tokens", "7", "a"));
    many[13 + 2 * 16] = words; /* the 17th is in the words */
    many[13 + 2 * 16 + 1] = NULL;
    run(1, "more than 16 pictures", many);
    snprintf(words, sizeof words, "is (%s) red?", picture);
    run(0, "[picture 1: b.png", ARGS(RUN, words));
    snprintf(words, sizeof words, "is %s/ red?", place);
    run(0, "[prompt ", ARGS(RUN, words));
}

/* Whatever members the parts of a saved conversation have. */
TEST(cli_run_takes_no_numbers_of_pictures_from_files)
{
    static const struct {
        const char *part, *says;
        int code;
    } rows[] = {
        {"{\"type\":\"text\",\"text\":\"x\",\"number\":100000000}", "the number of an image", 1},
        {"{\"type\":\"text\",\"text\":\"x\",\"number\":4294967297}", "the number of an image", 1},
        {"{\"text\":\"x\",\"image\":\"y\",\"number\":3}", "[prompt ", 0},
        {"{\"image\":\"x\",\"number\":60000}", "a picture or sound without its data", 1},
        {"{\"type\":\"image\",\"number\":60000}", "a picture or sound without its data", 1},
        {"{\"type\":\"audio\",\"number\":0}", "a picture or sound without its data", 1},
        {"{\"type\":\"input_audio\",\"input_audio\":{\"data\":\"!\"}}", "base64", 1}};
    const char *text = write_seeing(), *file = test_temp("talk.json");
    err e = {0};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char talk[300];
        int n = snprintf(talk, sizeof talk, "[{\"role\":\"user\",\"content\":[%s]}]", rows[i].part);
        CHECK_OK(file_replace(file, false, talk, (size_t)n, &e), e);
        run(rows[i].code, rows[i].says, ARGS(RUN, "--messages", file, "and ./this.png?"));
    }
}

/* A conversation with pictures is saved whole: it goes on where their files are gone. */
TEST(cli_conversation_with_pictures)
{
    char state[600], picture[600], line[1400], saved[600], *kept;
    const char *text = write_seeing();
    size_t n;
    terminal t;
    err e = {0};
    snprintf(state, sizeof state, "XDG_STATE_HOME=%s", test_temp("state"));
    snprintf(saved, sizeof saved, "%s", test_temp("saved.json"));
    snprintf(picture, sizeof picture, "%s", copy_dot("my dot.png"));
    terminal_open(&t, ARGS(state, "TERM=xterm", "NO_COLOR=1"), ARGS(RUN, "-i"));
    terminal_expect(&t, ">>> ");
    snprintf(line, sizeof line, "/image '%s'\r", picture);
    terminal_type(&t, line);
    terminal_expect(&t, "[picture 1: my dot.png, 1x1, ");
    terminal_expect(&t, "1 picture goes with the next message");
    terminal_type(&t, "/image no-such.png\r");
    terminal_expect(&t, "no-such.png");
    terminal_expect(&t, ">>> ");
    terminal_type(&t, "Hello\r");
    terminal_expect(&t, "answer 2 tokens");
    terminal_expect(&t, ">>> ");
    /* As a terminal types a file that is dropped on it. */
    str drop = {0};
    for (const char *c = picture; *c; c++)
        str_printf(&drop, *c == ' ' ? "\\ " : "%c", *c);
    snprintf(line, sizeof line, "%s what is it?\r", drop.at);
    str_free(&drop);
    terminal_type(&t, line);
    terminal_expect(&t, "[picture 2: my dot.png, 1x1, ");
    terminal_expect(&t, "answer 2 tokens");
    terminal_expect(&t, ">>> ");
    snprintf(line, sizeof line, "/save %s\r", saved);
    terminal_type(&t, line);
    terminal_expect(&t, "saved ");
    terminal_type(&t, "/undo\r");
    terminal_expect(&t, "took back");
    snprintf(line, sizeof line, "/image '%s'\r", picture);
    terminal_type(&t, line); /* the second again */
    terminal_expect(&t, "[picture 2: my dot.png, 1x1, ");
    terminal_type(&t, "/quit\r");
    CHECK_EQ(terminal_close(&t), 0);
    CHECK_OK(file_read_all(saved, 1 << 20, &kept, &n, &e), e);
    CHECK(strstr(kept, "data:image/png;base64,iVBORw0KGgo") &&
          strstr(kept, "picture 2 what is it?"));
    mem_free(kept);
    remove(picture);
    terminal_open(&t, ARGS(state, "TERM=xterm", "NO_COLOR=1"), ARGS(RUN, "--resume"));
    terminal_expect(&t, "[picture: my dot.png]");
    terminal_expect(&t, ">>> ");
    snprintf(line, sizeof line, "/load %s\r", saved);
    terminal_type(&t, line);
    terminal_expect(&t, "loaded 4 messages");
    terminal_type(&t, "Go on\r");
    terminal_expect(&t, "answer 2 tokens");
    terminal_type(&t, "/quit\r");
    CHECK_EQ(terminal_close(&t), 0);
    run(1, "a picture, and toy sees none", ARGS(RUN, "--mmproj", "none", "--messages", saved, "a"));
}

/* "picture 2" is picture 1 once the turn of the first is gone, in a loaded conversation too. */
TEST(cli_names_of_pictures_after_a_drop)
{
    char state[600], picture[600], line[1400], saved[600], *kept;
    const char *text = write_seeing();
    size_t n;
    err e = {0};
    snprintf(state, sizeof state, "XDG_STATE_HOME=%s", test_temp("state"));
    snprintf(saved, sizeof saved, "%s", test_temp("saved.json"));
    snprintf(picture, sizeof picture, "%s", copy_dot("dot.png"));
    for (int loads = 0; loads < 2; loads++) {
        terminal t;
        terminal_open(&t, ARGS(state, "TERM=xterm", "NO_COLOR=1"), ARGS(RUN, "-i"));
        terminal_expect(&t, ">>> ");
        for (int i = 1; i <= 2; i++) {
            snprintf(line, sizeof line, "%s: is %s, as I said of picture 2, red?\r",
                     i > 1 ? "And" : "So", picture);
            terminal_type(&t, line);
            snprintf(line, sizeof line, "[picture %d: dot.png, 1x1, ", i);
            terminal_expect(&t, line);
            terminal_expect(&t, "answer 2 tokens");
            terminal_expect(&t, ">>> ");
        }
        if (loads) {
            snprintf(line, sizeof line, "/save %s\r", saved);
            terminal_type(&t, line);
            terminal_expect(&t, "saved ");
            terminal_type(&t, "/quit\r");
            CHECK_EQ(terminal_close(&t), 0);
            terminal_open(&t, ARGS(state, "TERM=xterm", "NO_COLOR=1"), ARGS(RUN, "-i"));
            terminal_expect(&t, ">>> ");
            snprintf(line, sizeof line, "/load %s\r", saved);
            terminal_type(&t, line);
            terminal_expect(&t, "loaded 4 messages");
        }
        terminal_type(&t, "/drop 1\r");
        terminal_expect(&t, "1 of the oldest turns is dropped");
        snprintf(line, sizeof line, "/save %s\r", saved);
        terminal_type(&t, line);
        terminal_expect(&t, "saved ");
        terminal_type(&t, "/quit\r");
        CHECK_EQ(terminal_close(&t), 0);
        CHECK_OK(file_read_all(saved, 1 << 20, &kept, &n, &e), e);
        CHECK_MSG(strstr(kept, "And: is picture 1, as I said of picture 2, red?") &&
                      !strstr(kept, "So: is"),
                  "%s", kept);
        mem_free(kept);
    }
}

/* What a file says of its texts' words is believed where it is so. */
TEST(cli_run_checks_what_texts_say_of_pictures)
{
    static const char *const spoken[] = {"[[0,0]]",
                                         "[[0,0],[0,0]]",
                                         "[[-1,0]]",
                                         "[[2,0]]",
                                         "[[0,1]]",
                                         "[[0,-1]]",
                                         "[[9000000000,0]]",
                                         "[[0,9000000000]]",
                                         "[[0]]",
                                         "[[\"0\",0]]",
                                         "[0]",
                                         "{}",
                                         "\"x\"",
                                         "[[0,0,0]]",
                                         "[[11,0]]"};
    const char *text = write_seeing(), *file = test_temp("talk.json");
    AUTO_MEM char *bytes;
    size_t n;
    AUTO(str_free) str uri = {0};
    err e = {0};
    CHECK_OK(file_read_all(copy_dot("dot.png"), 1 << 20, &bytes, &n, &e), e);
    base64_put(&uri, bytes, n);
    for (size_t i = 0; i < sizeof spoken / sizeof *spoken; i++)
        for (int says = 0; says < 3; says++) {
            static const char *const words[] = {"picture 1", "picture 12", "pic"};
            str talk = {0};
            str_printf(&talk,
                       "[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":"
                       "\"data:;base64,%s\"},{\"type\":\"text\",\"text\":\"%s\",\"spoken\":%s}]},"
                       "{\"role\":\"assistant\",\"content\":\"yes\"}]",
                       uri.at, words[says], spoken[i]);
            CHECK_OK(file_replace(file, false, talk.at, talk.n, &e), e);
            str_free(&talk);
            run(0, "[prompt ", ARGS(RUN, "--messages", file, "and ./this.png?"));
        }
    /* A text that says so of another message's picture, which then goes. */
    str talk = {0};
    terminal t;
    char line[600];
    str_printf(&talk,
               "[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":"
               "\"data:;base64,%s\"}]},{\"role\":\"assistant\",\"content\":\"a\"},"
               "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"picture 1\","
               "\"spoken\":[[0,0]]}]},{\"role\":\"assistant\",\"content\":\"b\"}]",
               uri.at);
    CHECK_OK(file_replace(file, false, talk.at, talk.n, &e), e);
    str_free(&talk);
    terminal_open(&t, ARGS("TERM=xterm", "NO_COLOR=1"), ARGS(RUN, "-i", "--messages", file));
    terminal_expect(&t, ">>> ");
    terminal_type(&t, "/drop 1\r");
    terminal_expect(&t, "1 of the oldest turns is dropped");
    snprintf(line, sizeof line, "/save %s\r", file);
    terminal_type(&t, line);
    terminal_expect(&t, "saved ");
    terminal_type(&t, "/quit\r");
    CHECK_EQ(terminal_close(&t), 0);
}

/* ---- Sounds --------------------------------------------------------------------------------- */

/* A file of fuzz/corpus/sound, under a name in the test's directory. to: [512]. */
static void copy_sound(char *to, const char *from, const char *name)
{
    char path[128], *bytes;
    size_t n;
    err e = {0};
    snprintf(path, sizeof path, "fuzz/corpus/sound/%s", from);
    snprintf(to, 512, "%s", test_temp(name));
    CHECK_OK(file_read_all(test_path(path), 1 << 20, &bytes, &n, &e), e);
    CHECK_OK(file_replace(to, false, bytes, n, &e), e);
    mem_free(bytes);
}

/* Silence of PCM at 16 kHz. */
static const char *write_silence(const char *name, uint32_t n)
{
    static char path[512];
    uint32_t head[11] = {0x46464952, 36 + 2 * n, 0x45564157, 0x20746d66, 16,   0x00010001,
                         16000,      32000,      0x00100002, 0x61746164, 2 * n};
    AUTO(str_free) str bytes = {0};
    err e = {0};
    for (int i = 0; i < 44; i++)
        str_putc(&bytes, (char)(head[i / 4] >> (8 * (i % 4))));
    for (uint32_t i = 0; i < 2 * n; i++)
        str_putc(&bytes, 0);
    snprintf(path, sizeof path, "%s", test_temp(name));
    CHECK_OK(file_replace(path, false, bytes.at, bytes.n, &e), e);
    return path;
}

TEST(cli_run_hears_sounds_by_every_way)
{
    char wav[512], flac[512], picture[512], words[1600], *bytes;
    const char *text = write_with("tiny-mmproj-hears"), *says = "[sound 1: my talk.wav, 0.0 s, 1 t";
    size_t n;
    spawned r;
    err e = {0};
    copy_sound(wav, "pcm16", "my talk.wav");
    copy_sound(flac, "flac24-44k-stereo", "b.flac");
    snprintf(picture, sizeof picture, "%s", copy_dot("c.png"));
    int deaf = prompt_tokens(ARGS(RUN, "what says sound 1 ?"), ""),
        one = prompt_tokens(ARGS(RUN, "-f", wav, "what says sound 1 ?"), says);
    CHECK_EQ(one, deaf + 3); /* with begin and end */
    static const char *const forms[] = {"what says %s ?", "what says '%s' ?",
                                        "what says file://%s ?"};
    for (int i = 0; i < 3; i++) {
        snprintf(words, sizeof words, forms[i], wav);
        CHECK_EQ(prompt_tokens(ARGS(RUN, words), says), one);
    }
    /* Each kind is counted alone. */
    snprintf(words, sizeof words, "%s and %s and '%s'", flac, picture, wav);
    prompt_tokens(ARGS(RUN, "-f", picture, words), "[sound 1: b.flac, 0.0 s, ");
    prompt_tokens(ARGS(RUN, "-f", picture, words), "[picture 2: c.png, 1x1, ");
    prompt_tokens(ARGS(RUN, "-f", picture, words), "[sound 2: my talk.wav, 0.0 s, 1 t");
    CHECK_OK(file_read_all(wav, 10000, &bytes, &n, &e), e);
    spawn_carat(&r, &(spawn_options){.in = bytes, .n_in = n}, ARGS(RUN, "what is it?"));
    CHECK_MSG(!r.code && strstr(str_text(&r.err), "[sound 1: stdin, 0.0 s, 1 t"), "%s",
              str_text(&r.err));
    spawned_free(&r);
    mem_free(bytes);
    run(0, "[sound 1: long.wav, 30.5 s in pieces of 30 s, 765 tokens]",
        ARGS(RUN, "-f", write_silence("long.wav", 488000), "a"));
}

TEST(cli_run_refuses_sounds_in_words)
{
    char wav[512], bad[512], words[600];
    const char *text = write_with("tiny-mmproj-hears");
    copy_sound(wav, "pcm16", "a.wav");
    run(1, "short.wav: a sound of 5 milliseconds, which is too short",
        ARGS(RUN, "-f", write_silence("short.wav", 80), "a"));
    copy_sound(bad, "bad-empty", "empty.wav");
    run(1, "empty.wav: a WAV file without a sample", ARGS(RUN, "-f", bad, "a"));
    copy_sound(bad, "bad-cut", "cut.wav");
    run(1, "ends in the middle of the sound", ARGS(RUN, "-f", bad, "a"));
    copy_sound(bad, "bad-webm", "a.webm");
    run(1, "a WebM file; sound is read from WAV, FLAC, MP3 and Ogg", ARGS(RUN, "-f", bad, "a"));
    copy_sound(bad, "bad-text", "text.wav"); /* words, whatever its name says */
    run(0, "[prompt ", ARGS(RUN, "-f", bad, "a"));
    snprintf(words, sizeof words, "hear %s ", bad);
    run(1, "text.wav: ", ARGS(RUN, words));
    run(1, "a.wav: a sound, and toy hears none: it is open without its audio tower",
        ARGS(RUN, "--mmproj", "none", "-f", wav, "a"));
    snprintf(words, sizeof words, "hear %s ", wav);
    run(0, "toy hears no sound: ", ARGS(RUN, "--mmproj", "none", words));
    text = write_seeing();
    run(1, "toy hears none: its mmproj file has no audio tower", ARGS(RUN, "-f", wav, "a"));
    run(0, "toy hears no sound: ", ARGS(RUN, words));
}

/* A conversation with a sound is saved whole, in the form of requests. */
TEST(cli_conversation_with_sounds)
{
    char state[600], wav[512], line[1400], saved[600], *kept;
    const char *text = write_with("tiny-mmproj-hears");
    size_t n;
    terminal t;
    err e = {0};
    snprintf(state, sizeof state, "XDG_STATE_HOME=%s", test_temp("state"));
    snprintf(saved, sizeof saved, "%s", test_temp("saved.json"));
    copy_sound(wav, "pcm16", "a.wav");
    terminal_open(&t, ARGS(state, "TERM=xterm", "NO_COLOR=1"), ARGS(RUN, "-i"));
    terminal_expect(&t, ">>> ");
    snprintf(line, sizeof line, "/file %s\r", wav);
    terminal_type(&t, line);
    terminal_expect(&t, "[sound 1: a.wav, 0.0 s, 1 token");
    terminal_expect(&t, "1 sound goes with the next message");
    snprintf(line, sizeof line, "%s what is it?\r", wav);
    terminal_type(&t, line);
    terminal_expect(&t, "[sound 2: a.wav, 0.0 s, 1 token");
    terminal_expect(&t, "answer 2 tokens");
    terminal_expect(&t, ">>> ");
    snprintf(line, sizeof line, "/save %s\r", saved);
    terminal_type(&t, line);
    terminal_expect(&t, "saved ");
    terminal_type(&t, "/quit\r");
    CHECK_EQ(terminal_close(&t), 0);
    CHECK_OK(file_read_all(saved, 1 << 20, &kept, &n, &e), e);
    CHECK(strstr(kept, "\"input_audio\"") && strstr(kept, "UklGR") && strstr(kept, "\"wav\"") &&
          strstr(kept, "sound 2 what is it?"));
    mem_free(kept);
    remove(wav);
    terminal_open(&t, ARGS(state, "TERM=xterm", "NO_COLOR=1"), ARGS(RUN, "--resume"));
    terminal_expect(&t, "[sound: a.wav]");
    terminal_expect(&t, ">>> ");
    terminal_type(&t, "Go on\r");
    terminal_expect(&t, "answer 2 tokens");
    terminal_type(&t, "/quit\r");
    CHECK_EQ(terminal_close(&t), 0);
    run(1, "a sound, and toy hears none", ARGS(RUN, "--mmproj", "none", "--messages", saved, "a"));
}
