/* media_sound_test.c - prompts with sound: placeholders and pieces, chunks, reused prefixes, sound
 * beside pictures whose tokens see each other, and what is refused. Rows of towers are tested
 * against transformers in model/audio_test.c.
 */
#include "apps/commands.h"
#include "base/mem.h"
#include "engine/ears.h"
#include "engine/media.h"
#include "image/image_test_int.h"
#include "sound/sound_test_int.h"
#include "tests/fidelity_model.h"
#include "tests/test.h"
#include "tests/toy_model.h"

#include <math.h>
#include <string.h>

enum { CTX = 256, SAMPLES = 20000, N_SOFT = 31, PIECE = 480000 };

static void write_tower(const char *size, const char *path)
{
    const char *make[] = {size, path, "--type", "f32"};
    CHECK_EQ(command_synth.run(&command_synth, 4, (char **)make), 0);
}

static carat_model *open_with(const carat_model_options *o)
{
    const char *text = toy_model_write(&(toy_model_file){.base = "e2b"});
    carat_model *m;
    err e = {0};
    CHECK_OK(carat_model_open(text, o, &m, &e), e);
    return m;
}

static carat_model *open_toy(const char *tower)
{
    const carat_model_options o = {.n_threads = 1, .exact_f32 = true, .mmproj = tower};
    return open_with(&o);
}

static carat_media *sound_of(carat_model *m, uint64_t seed, int64_t n)
{
    AUTO_MEM float *x = mem_alloc((size_t)n * sizeof *x);
    carat_media *s;
    err e = {0};
    test_sound(x, seed, n);
    CHECK_OK(carat_sound_new(m, x, n, &s, &e), e);
    return s;
}

static int32_t token_of(const carat_model *m, const char *text)
{
    int32_t id;
    CHECK_EQ(carat_tokenize(m, text, strlen(text), CARAT_TOK_SPECIAL, &id, 1, NULL), 1);
    return id;
}

TEST(sounds_take_the_places_of_their_placeholders)
{
    static uint8_t rgb[12 * 12 * 3];
    int32_t out[4096], n;
    carat_media *list[2];
    carat_model_info info;
    err e = {0};
    write_tower("tiny-mmproj-hears", test_temp("tower.gguf"));
    AUTO_MODEL *m = open_toy(test_temp("tower.gguf"));
    int32_t begin = token_of(m, "<|audio>"), place = token_of(m, "<|audio|>"),
            end = token_of(m, "<audio|>"), eye = token_of(m, "<|image|>");
    carat_model_get_info(m, &info);
    CHECK(info.hears && info.mmproj);
    CHECK_OK(carat_image_new(m, rgb, 12, 12, NULL, &list[0], &e), e);
    list[1] = sound_of(m, 1, SAMPLES);
    CHECK_EQ(carat_media_n(list[1]), N_SOFT);
    const int32_t ids[] = {7, eye, place, 8}, other[] = {7, place, eye, 8};
    int64_t all = carat_media_expand(m, ids, 4, list, 2, out, 4096, &e);
    CHECK_EQ(all, 2 + 2 + carat_media_n(list[0]) + 2 + N_SOFT);
    const int32_t *at = out + 3 + carat_media_n(list[0]);
    CHECK(at[0] == begin && at[1] == carat_media_id(list[1]) && at[N_SOFT] == at[1] - N_SOFT + 1 &&
          at[N_SOFT + 1] == end && at[N_SOFT + 2] == 8);
    CHECK_EQ(carat_media_expand(m, other, 4, list, 2, out, 4096, &e), -1);
    CHECK(strstr(e.text, "medium 0 of the prompt is a picture, and its place is one for sounds"));
    e = (err){0};
    CHECK_EQ(carat_media_expand(m, ids, 4, list, 1, out, 4096, &e), -1);
    e = (err){0};
    carat_media_free(list[1]);
    /* Two whole pieces, and an end that is too short for a token. */
    CHECK_OK(carat_sound_tokens(m, 2 * PIECE + 100, &n, &e), e);
    CHECK_EQ(n, 2 * 750 + 2);
    CHECK_STATUS(carat_sound_tokens(m, 100, &n, NULL), E_LIMIT);
    CHECK_STATUS(carat_sound_tokens(m, 601 * 16000, &n, NULL), E_LIMIT);
    list[1] = sound_of(m, 2, PIECE + 700);
    CHECK_EQ(carat_media_n(list[1]), 751);
    all = carat_media_expand(m, (const int32_t[]){place}, 1, &list[1], 1, out, 4096, &e);
    CHECK_EQ(all, 755);
    CHECK(out[0] == begin && out[751] == end && out[752] == begin && out[754] == end &&
          out[753] == out[750] - 1);
    carat_media_free(list[0]);
    carat_media_free(list[1]);
}

/* A sound's rows, for mem_free. */
static float *rows_of(carat_model *m, carat_media *x)
{
    int32_t n = carat_media_n(x), width = m->core.n_embd, n_held = 1;
    int32_t *ids = mem_calloc((size_t)n, sizeof *ids);
    float *out = mem_calloc((size_t)n * (size_t)width, sizeof *out);
    media_item *held;
    soft_run run;
    err e = {0};
    for (int32_t k = 0; k < n; k++)
        ids[k] = carat_media_id(x) - k;
    CHECK_OK(media_rows(m, ids, n, &run, &held, &e), e);
    CHECK_EQ(run.n, n);
    memcpy(out, run.at, (size_t)n * (size_t)width * sizeof *out);
    media_leave(m, &held, &n_held);
    mem_free(ids);
    return out;
}

/* The second piece of a long sound is what it is alone. */
TEST(sounds_are_heard_piece_by_piece)
{
    float *x = mem_alloc((PIECE + SAMPLES) * sizeof *x);
    carat_media *whole, *second;
    err e = {0};
    write_tower("tiny-mmproj-hears", test_temp("tower.gguf"));
    AUTO_MODEL *m = open_toy(test_temp("tower.gguf"));
    size_t width = (size_t)m->core.n_embd;
    test_sound(x, 1, PIECE + SAMPLES);
    CHECK_OK(carat_sound_new(m, x, PIECE + SAMPLES, &whole, &e), e);
    CHECK_OK(carat_sound_new(m, x + PIECE, SAMPLES, &second, &e), e);
    CHECK_EQ(carat_media_n(whole), 750 + N_SOFT);
    float *both = rows_of(m, whole), *alone = rows_of(m, second);
    CHECK(!memcmp(both + 750 * width, alone, N_SOFT * width * sizeof *alone));
    CHECK(memcmp(both, alone, N_SOFT * width * sizeof *alone) != 0);
    mem_free(both);
    mem_free(alone);
    mem_free(x);
    carat_media_free(whole);
    carat_media_free(second);
}

/* Weights that were given back and taken again. */
TEST(sounds_are_heard_after_a_pause)
{
    err e = {0};
    write_tower("tiny-mmproj-hears", test_temp("tower.gguf"));
    carat_model *m = open_toy(test_temp("tower.gguf")), *other = open_toy(test_temp("tower.gguf"));
    carat_model_park(m);
    carat_media *a = sound_of(m, 4, SAMPLES), *b = sound_of(other, 4, SAMPLES);
    CHECK_OK(carat_model_unpark(m, &e), e);
    float *got = rows_of(m, a), *want = rows_of(other, b);
    CHECK(!memcmp(got, want, N_SOFT * (size_t)m->core.n_embd * sizeof *got));
    mem_free(got);
    mem_free(want);
    carat_media_free(a);
    carat_media_free(b);
    carat_model_close(m);
    carat_model_close(other);
}

static void eval(carat_model *m, const int32_t *ids, int64_t n, int32_t chunk, float *row)
{
    const carat_session_options o = {
        .n_ctx = CTX, .chunk = chunk, .n_outputs = 1, .kv_k = "f32", .checkpoint_mb = -1};
    AUTO_SESSION *s;
    err e = {0};
    CHECK_OK(carat_session_open(m, &o, &s, &e), e);
    CHECK_OK(carat_eval(s, ids, n, row, NULL, &e), e);
}

/* A picture between two sounds in a model where tokens of pictures see each other: chunks of every
 * length give the same, sounds are cut anywhere, and other sounds are answered otherwise. */
TEST(sounds_are_causal_beside_pictures_that_are_not)
{
    static const int32_t chunks[] = {200, 1, 7, 64};
    const carat_image_options io = {.n_tokens = 70};
    image picture;
    AUTO(fidelity_close) fidelity f;
    carat_media *x[3], *other;
    AUTO_MODEL *m;
    int32_t ids[CTX], n = 0, cut = 0;
    err e = {0};
    write_tower("tiny-mmproj-hears", test_temp("tower.gguf"));
    const carat_model_options mo = {
        .n_threads = 1, .exact_f32 = true, .mmproj = test_temp("tower.gguf")};
    fidelity_open(&f, "dense");
    CHECK_OK(carat_model_open(fidelity_write(&f, NULL), &mo, &m, &e), e);
    CHECK(media_two_way(m) && media_hears(m));
    test_picture(&picture, 1, 40, 30);
    CHECK_OK(carat_image_new(m, picture.rgb, 40, 30, &io, &x[1], &e), e);
    image_free(&picture);
    x[0] = sound_of(m, 1, SAMPLES);
    x[2] = sound_of(m, 2, SAMPLES);
    other = sound_of(m, 3, SAMPLES);
    for (int i = 0; i < 3; i++) {
        ids[n++] = 5 + i;
        cut = n + 10;
        for (int32_t k = 0; k < carat_media_n(x[i]); k++)
            ids[n++] = carat_media_id(x[i]) - k;
    }
    ids[n++] = 9;
    float *row[3];
    for (int i = 0; i < 3; i++)
        row[i] = mem_calloc((size_t)f.n_vocab, sizeof **row);
    for (int i = 0; i < 4; i++) {
        eval(m, ids, n, chunks[i], row[i > 0]);
        CHECK_MSG(!i || !memcmp(row[0], row[1], (size_t)f.n_vocab * sizeof **row),
                  "chunks of %d: other logits", chunks[i]);
    }
    /* A prompt that ends inside a sound, and goes on from there. */
    const carat_session_options so = {
        .n_ctx = CTX, .chunk = 64, .n_outputs = 1, .kv_k = "f32", .checkpoint_mb = -1};
    carat_session *s;
    int64_t reused = -1;
    CHECK_OK(carat_session_open(m, &so, &s, &e), e);
    CHECK_OK(carat_eval(s, ids, cut, row[1], NULL, &e), e);
    CHECK_OK(carat_eval(s, ids, n, row[1], &reused, &e), e);
    CHECK_EQ(reused, cut);
    CHECK(!memcmp(row[0], row[1], (size_t)f.n_vocab * sizeof **row));
    carat_session_close(s);
    for (int32_t k = 0; k < N_SOFT; k++)
        ids[1 + k] = carat_media_id(other) - k;
    eval(m, ids, n, 64, row[2]);
    CHECK(memcmp(row[0], row[2], (size_t)f.n_vocab * sizeof **row) != 0);
    for (int i = 0; i < 3; i++) {
        mem_free(row[i]);
        carat_media_free(x[i]);
    }
    carat_media_free(other);
}

static status sound_once(void *arg, err *e)
{
    static float samples[1000];
    AUTO_PTR(carat_media_free) carat_media *x = NULL;
    status st = carat_sound_new(arg, samples, 1000, &x, e);
    return st;
}

TEST(sounds_are_refused_in_words)
{
    float bad[1000] = {0};
    carat_media *x;
    int32_t n;
    err e = {0};
    write_tower("tiny-mmproj-clamped", test_temp("eyes.gguf"));
    AUTO_MODEL *m = open_toy(test_temp("eyes.gguf"));
    CHECK_STATUS(carat_sound_tokens(m, 1000, &n, &e), E_UNSUPPORTED);
    CHECK(strstr(e.text, "was opened without an audio tower: it hears no sound"));
    e = (err){0};
    carat_model_close(m);
    write_tower("tiny-mmproj-hears", test_temp("tower.gguf"));
    m = open_toy(test_temp("tower.gguf"));
    bad[5] = NAN;
    CHECK_STATUS(carat_sound_new(m, bad, 1000, &x, &e), E_ARG);
    CHECK(!x && strstr(e.text, "sample 5 of a sound is nan"));
    CHECK_STATUS(carat_sound_new(m, NULL, 1000, &x, NULL), E_ARG);
    test_every_allocation(sound_once, m);
}
