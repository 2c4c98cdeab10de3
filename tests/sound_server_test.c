/* sound_server_test.c - `carat serve` with a toy model and its audio tower: sound in chats, and
 * /v1/audio/transcriptions.
 */
#include "apps/commands.h"
#include "apps/server/dialects/request.h"
#include "base/base64.h"
#include "base/map.h"
#include "base/mem.h"
#include "tests/server_rig.h"

#include <unistd.h>

static void start(served *s, const char *tower, const char *ctx)
{
    const char *path = test_temp("mmproj-F32.gguf");
    const char *make[] = {tower, path, "--type", "f32"};
    const char *text = toy_model_write(&(toy_model_file){.base = "e2b"});
    const char *args[] = {"-m", text, "--ctx", ctx, "-t", "1", "--mmproj", path, NULL};
    CHECK_EQ(command_synth.run(&command_synth, 4, (char **)make), 0);
    served_start(s, args);
}

static char *corpus_file(const char *name, size_t *n)
{
    char path[128], *bytes;
    err e = {0};
    snprintf(path, sizeof path, "fuzz/corpus/sound/%s", name);
    CHECK_OK(file_read_all(test_path(path), 1 << 20, &bytes, n, &e), e);
    return bytes;
}

static int64_t number_at(const response *r, const char *path)
{
    AUTO(arena_free) arena mem = {0};
    int64_t n = -1;
    const jtree *v = json_parsed(&mem, r->body.at, r->body.n);
    CHECK_MSG(tree_int(json_at(v, path), 0, 1 << 20, &n), "%s: %s", path, str_text(&r->body));
    return n;
}

#define HEAD "{\"temperature\":0,\"max_tokens\":4,\"messages\":[{\"role\":\"user\",\"content\":["
#define SOUND "{\"type\":\"input_audio\",\"input_audio\":{\"format\":\"wav\",\"data\":\"%s\"}}"
#define TEXT "{\"type\":\"text\",\"text\":\"a\"}"

static void post(response *r, served *s, const char *path, const char *form, const char *file)
{
    size_t n;
    AUTO_MEM char *bytes = corpus_file(file, &n);
    AUTO(str_free) str data = {0}, body = {0};
    base64_put(&data, bytes, n);
    str_printf(&body, form, str_text(&data));
    http_post(r, s, path, str_text(&body));
}

static void refused(served *s, const char *path, const char *form, const char *file,
                    const char *words)
{
    AUTO(response_free) response r;
    post(&r, s, path, form, file);
    CHECK_MSG(r.status == 400 && strstr(str_text(&r.body), words), "%d %s", r.status,
              str_text(&r.body));
}

/* 17 sounds of a few bytes of base64 each. */
static void refused_many(served *s)
{
    size_t n;
    AUTO_MEM char *bytes = corpus_file("pcm16", &n);
    AUTO(str_free) str data = {0}, body = {0};
    AUTO(response_free) response r;
    base64_put(&data, bytes, n);
    str_puts(&body, HEAD);
    for (int i = 0; i < 17; i++)
        str_printf(&body, i ? "," SOUND : SOUND, str_text(&data));
    str_puts(&body, "]}]}");
    http_post(&r, s, "/v1/chat/completions", str_text(&body));
    CHECK_MSG(r.status == 400 && strstr(r.body.at, "content[16]'") && strstr(r.body.at, "16 p"),
              "%d %s", r.status, r.body.at);
}

/* body NULL: GET. */
static void said(served *s, const char *path, const char *body, const char *words)
{
    AUTO(response_free) response r;
    if (body)
        http_post(&r, s, path, body);
    else
        http_call(&r, s, "GET", path, NULL, NULL);
    CHECK_MSG(r.status == 200 && strstr(str_text(&r.body), words), "%s: %d %s", path, r.status,
              str_text(&r.body));
}

/* 700 samples are 4 rows of a spectrum, and one token between begin and end; 400 are 2 rows. */
TEST(sound_is_heard_in_chats)
{
    static const struct {
        const char *path, *form, *n;
    } apis[] = {
        {"/v1/chat/completions", HEAD SOUND "," TEXT "]}]}", "usage.prompt_tokens"},
        {"/v1/responses",
         "{\"temperature\":0,\"max_output_tokens\":4,\"input\":[{\"role\":\"user\",\"content\":["
         "{\"type\":\"input_audio\",\"input_audio\":{\"data\":\"%s\",\"format\":\"wav\"}},"
         "{\"type\":\"input_text\",\"text\":\"a\"}]}]}",
         "usage.input_tokens"},
        {"/api/chat",
         "{\"options\":{\"temperature\":0,\"num_predict\":4},\"stream\":false,\"messages\":[{"
         "\"role\":\"user\",\"content\":\"a\",\"images\":[\"%s\"]}]}",
         "prompt_eval_count"},
    };
    AUTO(stop) served s;
    response r;
    start(&s, "tiny-mmproj-hears", "512");
    for (size_t i = 0; i < sizeof apis / sizeof *apis; i++) {
        int64_t n[2];
        for (int k = 0; k < 2; k++) {
            post(&r, &s, apis[i].path, apis[i].form, k ? "vorbis" : "pcm16");
            CHECK_MSG(r.status == 200, "%s: %s", apis[i].path, str_text(&r.body));
            n[k] = number_at(&r, apis[i].n);
            response_free(&r);
        }
        CHECK_EQ(n[1] - n[0], 2); /* 1600 samples: 9 rows, 3 tokens */
    }
    refused(&s, apis[0].path, apis[0].form, "bad-nan", "sample 77 is nan");
    refused(&s, apis[0].path, apis[0].form, "bad-text", "no picture");
    refused(&s, apis[0].path,
            HEAD
            "{\"type\":\"image_url\",\"image_url\":{\"url\":\"data:audio/wav;base64,%s\"}}]}]}",
            "pcm16", "is sound; expected an image");
    refused(&s, apis[0].path, HEAD "{\"type\":\"input_audio\",\"input_audio\":{}}]}]}", "pcm16",
            "is sound without data");
    refused_many(&s);
    said(&s, "/props", NULL, "\"audio\":true");
    said(&s, "/v1/models", NULL, "\"input_modalities\":[\"text\",\"image\",\"audio\"]");
    said(&s, "/api/show", "{\"model\":\"toy\"}", "\"vision\",\"audio\"");
}

/* The answer to a form. */
static void upload(response *r, served *s, const str *form)
{
    AUTO(str_free) str head = {0}, seen = {0};
    int fd = http_dial(s);
    char *at;
    str_printf(&head,
               "POST /v1/audio/transcriptions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
               "Content-Type: multipart/form-data; boundary=xx\r\nContent-Length: %zu\r\n\r\n",
               form->n);
    str_put(&head, form->at, form->n);
    for (size_t done = 0; done < head.n;) {
        ssize_t n = write(fd, head.at + done, head.n - done);
        CHECK(n > 0);
        done += (size_t)n;
    }
    http_read_until(fd, &seen, "never said");
    close(fd);
    *r = (response){0};
    CHECK(seen.n > 12 && (at = strstr(str_text(&seen), "\r\n\r\n")));
    r->status = atoi(seen.at + 9);
    str_puts(&r->body, at + 4);
}

static void add_field(str *form, const char *name, const char *value)
{
    str_printf(form, "--xx\r\nContent-Disposition: form-data; name=\"%s\"\r\n\r\n%s\r\n", name,
               value);
}

/* Noise of 8 bits, as WAV at 8 kHz. For mem_free. */
static char *long_file(uint32_t milliseconds, size_t *n)
{
    const uint32_t n_data = 8 * milliseconds;
    const uint32_t head[] = {0x46464952, 36 + n_data, 0x45564157, 0x20746d66, 16,    0x00010001,
                             8000,       8000,        0x00080001, 0x61746164, n_data};
    *n = 44 + n_data;
    uint8_t *bytes = mem_alloc(*n);
    for (size_t i = 0; i < 44; i++)
        bytes[i] = (uint8_t)(head[i / 4] >> (8 * (i % 4)));
    for (size_t i = 44; i < *n; i++)
        bytes[i] = (uint8_t)(i * 7919 % 251);
    return (char *)bytes;
}

/* file "long": of 31 seconds, "short": of 5 milliseconds; neither is of the corpus. NULL: none. */
static void transcribe(response *r, served *s, const char *file, const char *name,
                       const char *value)
{
    AUTO(str_free) str form = {0};
    if (file) {
        size_t n;
        AUTO_MEM char *bytes = !strcmp(file, "long")    ? long_file(31000, &n)
                               : !strcmp(file, "short") ? long_file(5, &n)
                                                        : corpus_file(file, &n);
        str_puts(&form, "--xx\r\nContent-Disposition: form-data; name=\"file\"; "
                        "filename=\"a.wav\"\r\nContent-Type: audio/wav\r\n\r\n");
        str_put(&form, bytes, n);
        str_puts(&form, "\r\n");
    }
    add_field(&form, "model", "toy");
    add_field(&form, "temperature", "0");
    add_field(&form, name, value);
    str_puts(&form, "--xx--\r\n");
    upload(r, s, &form);
}

TEST(sound_is_written_down)
{
    static const struct {
        const char *file, *name, *value, *says;
    } bad[] = {
        {NULL, "language", "de", "'file' is missing"},
        {"bad-cut", "language", "de", "ends in the middle"},
        {"pcm16", "response_format", "srt", "expected json, text or verbose_json"},
        {"pcm16", "temperature", "3", "expected a number from 0 to 2"},
        {"pcm16", "temperature", "1e", "expected a number from 0 to 2"},
        {"bad-empty", "language", "de", "without a sample"},
        {"short", "language", "de", "'file' has a sound of 5 milliseconds, which is too short"},
        {"bad-webm", "language", "de", "a WebM file; sound is read from"},
        {"pcm16", "stream", "true", "'stream' is not supported"},
        {"pcm16", "timestamp_granularities[]", "word", "is not supported"},
    };
    AUTO(stop) served s;
    AUTO(response_free) response r;
    AUTO(arena_free) arena mem = {0};
    start(&s, "tiny-mmproj-hears", "256");
    transcribe(&r, &s, "pcm16", "response_format", "verbose_json");
    CHECK_MSG(r.status == 200, "%s", str_text(&r.body));
    AUTO_MEM char *text = mem_strdup(text_at(&mem, &r, "text"));
    CHECK(*text);
    CHECK_STR(text_at(&mem, &r, "segments.0.text"), text);
    /* The toy writes until its context is full, and that is told. */
    CHECK_STR(text_at(&mem, &r, "segments.0.finish_reason"), "length");
    CHECK_STR(text_at(&mem, &r, "finish_reason"), "length");
    CHECK(strstr(r.body.at, "\"duration\":0.04375") && strstr(r.body.at, "\"end\":0.04375"));
    response_free(&r);
    transcribe(&r, &s, "pcm16", "response_format", "json");
    CHECK_STR(text_at(&mem, &r, "text"), text);
    response_free(&r);
    transcribe(&r, &s, "pcm16", "response_format", "text");
    CHECK(r.status == 200 && !strncmp(r.body.at, text, strlen(text)));
    response_free(&r);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        transcribe(&r, &s, bad[i].file, bad[i].name, bad[i].value);
        CHECK_MSG(r.status == 400 && strstr(r.body.at, bad[i].says), "%d %s", r.status, r.body.at);
        response_free(&r);
    }
    http_post(&r, &s, "/v1/audio/transcriptions", "{}");
    CHECK(r.status == 400 && strstr(r.body.at, "takes multipart/form-data"));
}

/* Two pieces, two segments. */
TEST(sound_of_more_than_30_seconds_is_written_down)
{
    AUTO(stop) served s;
    AUTO(response_free) response r;
    AUTO(arena_free) arena mem = {0};
    start(&s, "tiny-mmproj-hears", "1200");
    transcribe(&r, &s, "long", "response_format", "verbose_json");
    CHECK_MSG(r.status == 200, "%s", str_text(&r.body));
    CHECK(strstr(r.body.at, "\"duration\":31") && strstr(r.body.at, "\"id\":1") &&
          !strstr(r.body.at, "\"id\":2"));
    const char *first = text_at(&mem, &r, "segments.0.text"); /* may hold U+0000 */
    CHECK(!strncmp(text_at(&mem, &r, "text"), first, strlen(first)));
    arena_free(&mem);
    mem = (arena){0};
    const jtree *all = json_parsed(&mem, r.body.at, r.body.n);
    CHECK_STR(json_at(all, "segments.0.end")->s, json_at(all, "segments.1.start")->s);
    CHECK_STR(json_at(all, "segments.1.end")->s, "31");
}

TEST(sound_needs_an_audio_tower)
{
    AUTO(stop) served s;
    response r;
    start(&s, "tiny-mmproj-clamped", "512");
    refused(&s, "/v1/chat/completions", HEAD SOUND "]}]}", "pcm16",
            "is sound, and audio input is not supported by this model");
    transcribe(&r, &s, "pcm16", "language", "de");
    CHECK_MSG(r.status == 400 && strstr(r.body.at, "audio input is not supported by this model"),
              "%d %s", r.status, r.body.at);
    response_free(&r);
    said(&s, "/props", NULL, "\"audio\":false");
}
