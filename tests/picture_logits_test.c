/* picture_logits_test.c - logits of prompts with pictures against transformers, from the bytes of
 * PNG and JPEG files on: decoding, sizes, pixels, towers, soft tokens in the prompt, the mask. And
 * of prompts with sounds, from their samples on.
 */
#include "apps/commands.h"
#include "base/map.h"
#include "base/mem.h"
#include "image/image.h"
#include "sound/sound_test_int.h"
#include "tests/fidelity_model.h"
#include "tests/test.h"

#include "carat.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* As tools/picture_fixture.py and sound_logits_fixture.py have them. */
enum { HEAD = 5, BETWEEN = 2, TAIL = 9, STEP = 3, COLS = 64, MOST = 160 };

typedef struct rows_to {
    FILE *want;
    int32_t n_vocab;
    double worst, squares;
    int64_t n;
} rows_to;

/* Compares every STEP-th row with the next of the file. */
static bool compare(void *user, int64_t first, int64_t n, const float *rows)
{
    rows_to *x = user;
    float want[COLS];
    for (int64_t r = 0; r < n; r++) {
        if ((first + r) % STEP)
            continue;
        CHECK_EQ(fread(want, sizeof *want, COLS, x->want), COLS);
        for (int32_t c = 0; c < COLS; c++) {
            double apart = fabs((double)rows[r * x->n_vocab + c] - want[c]);
            x->worst = apart > x->worst || isnan(apart) ? apart : x->worst;
            x->squares += apart * apart;
            x->n++;
        }
    }
    return true;
}

static carat_media *open_file(carat_model *m, const char *file, int32_t budget, int32_t n_soft)
{
    const carat_image_options o = {.n_tokens = budget};
    char path[256], *bytes;
    carat_media *out;
    size_t n;
    AUTO(image_free) image picture;
    err e = {0};
    snprintf(path, sizeof path, "fuzz/corpus/%s", file);
    CHECK_OK(file_read_all(test_path(path), 1 << 20, &bytes, &n, &e), e);
    CHECK_OK(image_decode(&picture, bytes, n, file, &e), e);
    CHECK_OK(carat_image_new(m, picture.rgb, picture.width, picture.height, &o, &out, &e), e);
    CHECK_EQ(carat_media_n(out), n_soft);
    mem_free(bytes);
    return out;
}

static void put_picture(int32_t *ids, int32_t *n, const carat_media *x)
{
    for (int32_t k = 0; k < carat_media_n(x); k++)
        ids[(*n)++] = carat_media_id(x) - k;
}

static void put_words(int32_t *ids, int32_t *n, const fidelity *f, int32_t from, int32_t count)
{
    memcpy(ids + *n, f->tokens + from, (size_t)count * sizeof *ids);
    *n += count;
}

TEST(picture_logits_are_those_of_transformers)
{
    FILE *lines = fopen(test_path("tests/data/images/prompt.txt"), "r"),
         *values = fopen(test_path("tests/data/images/prompt.f32"), "rb");
    char name[32], size[32], file[2][64];
    int32_t budget, n_soft[2], n_models = 0;
    CHECK(lines && values);
    while (fscanf(lines, "%31s %31s %d %63s %63s %d %d", name, size, &budget, file[0], file[1],
                  &n_soft[0], &n_soft[1]) == 7) {
        const char *tower = test_temp("tower.gguf");
        const char *make[] = {size, tower, "--type", "f32"};
        const carat_model_options mo = {.n_threads = 1, .exact_f32 = true, .mmproj = tower};
        const carat_session_options so = {
            .n_ctx = 256, .chunk = 72, .n_outputs = 72, .kv_k = "f32", .checkpoint_mb = -1};
        rows_to x = {.want = values};
        int32_t ids[MOST], n = 0;
        fidelity f;
        carat_model *m;
        carat_session *s;
        carat_media *picture[2];
        err e = {0};
        CHECK_EQ(command_synth.run(&command_synth, 4, (char **)make), 0);
        fidelity_open(&f, name);
        CHECK_OK(carat_model_open(fidelity_write(&f, NULL), &mo, &m, &e), e);
        for (int i = 0; i < 2; i++)
            picture[i] = open_file(m, file[i], budget, n_soft[i]);
        CHECK(HEAD + n_soft[0] + BETWEEN + n_soft[1] + TAIL <= MOST);
        put_words(ids, &n, &f, 0, HEAD);
        put_picture(ids, &n, picture[0]);
        put_words(ids, &n, &f, HEAD, BETWEEN);
        put_picture(ids, &n, picture[1]);
        put_words(ids, &n, &f, HEAD + BETWEEN, TAIL);
        x.n_vocab = f.n_vocab;
        CHECK_OK(carat_session_open(m, &so, &s, &e), e);
        CHECK_OK(carat_eval_rows(s, ids, n, compare, &x, &e), e);
        double rms = sqrt(x.squares / (double)x.n);
        /* What f32 costs transformers, 7e-4 and 1.2e-4, and some room. */
        CHECK_MSG(x.worst <= 1e-3 && rms <= 2e-4, "%s: a logit is %g apart, all are %g", name,
                  x.worst, rms);
        carat_session_close(s);
        carat_media_free(picture[0]);
        carat_media_free(picture[1]);
        carat_model_close(m);
        fidelity_close(&f);
        n_models++;
    }
    CHECK(n_models == 2 && fgetc(values) == EOF);
    fclose(lines);
    fclose(values);
}

static carat_media *open_sound(carat_model *m, int32_t seed, int32_t n, int32_t n_soft)
{
    AUTO_MEM float *samples = mem_alloc((size_t)n * sizeof *samples);
    carat_media *out;
    err e = {0};
    test_sound(samples, (uint64_t)seed, n);
    CHECK_OK(carat_sound_new(m, samples, n, &out, &e), e);
    CHECK_EQ(carat_media_n(out), n_soft);
    return out;
}

/* A picture between two sounds. Chunks end inside sounds. */
TEST(sound_logits_are_those_of_transformers)
{
    static const int32_t n_words[] = {5, 2, 1, 9};
    FILE *lines = fopen(test_path("tests/data/sounds/prompt.txt"), "r"),
         *values = fopen(test_path("tests/data/sounds/prompt.f32"), "rb");
    char name[32], size[32], file[64];
    int32_t budget, seed[2], n_samples[2], n_soft[3], n_models = 0;
    CHECK(lines && values);
    while (fscanf(lines, "%31s %31s %d %d %d %d %d %63s %d %d %d", name, size, &budget, &seed[0],
                  &n_samples[0], &seed[1], &n_samples[1], file, &n_soft[0], &n_soft[1],
                  &n_soft[2]) == 11) {
        const char *tower = test_temp("tower.gguf");
        const char *make[] = {size, tower, "--type", "f32"};
        const carat_model_options mo = {.n_threads = 1, .exact_f32 = true, .mmproj = tower};
        const carat_session_options so = {
            .n_ctx = 256, .chunk = 72, .n_outputs = 72, .kv_k = "f32", .checkpoint_mb = -1};
        rows_to x = {.want = values};
        int32_t ids[MOST], n = 0, word = 0;
        fidelity f;
        carat_model *m;
        carat_session *s;
        carat_media *media[3];
        err e = {0};
        CHECK_EQ(command_synth.run(&command_synth, 4, (char **)make), 0);
        fidelity_open(&f, name);
        CHECK_OK(carat_model_open(fidelity_write(&f, NULL), &mo, &m, &e), e);
        media[0] = open_sound(m, seed[0], n_samples[0], n_soft[0]);
        media[1] = open_file(m, file, budget, n_soft[1]);
        media[2] = open_sound(m, seed[1], n_samples[1], n_soft[2]);
        CHECK(n_soft[0] + n_soft[1] + n_soft[2] + 17 <= MOST);
        for (int i = 0; i < 4; word += n_words[i++]) {
            put_words(ids, &n, &f, word, n_words[i]);
            if (i < 3)
                put_picture(ids, &n, media[i]);
        }
        x.n_vocab = f.n_vocab;
        CHECK_OK(carat_session_open(m, &so, &s, &e), e);
        CHECK_OK(carat_eval_rows(s, ids, n, compare, &x, &e), e);
        double rms = sqrt(x.squares / (double)x.n);
        /* f32 costs transformers 6e-4 and 1e-4. */
        CHECK_MSG(x.worst <= 1e-3 && rms <= 2e-4, "%s: a logit is %g apart, all are %g", name,
                  x.worst, rms);
        carat_session_close(s);
        for (int i = 0; i < 3; i++)
            carat_media_free(media[i]);
        carat_model_close(m);
        fidelity_close(&f);
        n_models++;
    }
    CHECK(n_models == 2 && fgetc(values) == EOF);
    fclose(lines);
    fclose(values);
}
