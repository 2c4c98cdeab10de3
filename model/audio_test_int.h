/* audio_test_int.h - soft tokens of transformers' audio towers (tests/data/sounds/soft.*), and a
 * tower on a device beside them.
 */
#ifndef MODEL_AUDIO_TEST_INT_H
#define MODEL_AUDIO_TEST_INT_H

#include "apps/commands.h"
#include "base/mem.h"
#include "model/audio.h"
#include "sound/sound_test_int.h"
#include "tests/test.h"

enum { SOUND_CASES = 9, SOUND_CASE_MOST = 71 * 96 };

typedef struct sound_case {
    char size[32];
    int32_t seed, n_samples, n, width;
    float want[SOUND_CASE_MOST];
} sound_case;

static inline void sound_cases_read(sound_case c[SOUND_CASES])
{
    FILE *lines = fopen(test_path("tests/data/sounds/soft.txt"), "r"),
         *values = fopen(test_path("tests/data/sounds/soft.f32"), "rb");
    CHECK(lines && values);
    for (int i = 0; i < SOUND_CASES; i++, c++) {
        CHECK_EQ(
            fscanf(lines, "%31s %d %d %d %d", c->size, &c->seed, &c->n_samples, &c->n, &c->width),
            5);
        size_t count = (size_t)c->n * (size_t)c->width;
        CHECK(count <= SOUND_CASE_MOST);
        CHECK_EQ(fread(c->want, sizeof(float), count, values), count);
    }
    CHECK(fgetc(values) == EOF);
    fclose(lines);
    fclose(values);
}

/* An audio tower's file. layers: NULL: all. */
static inline const char *sound_file(const char *size, const char *type, const char *layers)
{
    const char *path = test_temp("tower.gguf");
    const char *make[] = {size, path, "--type", type, "--layers", layers};
    CHECK_EQ(command_synth.run(&command_synth, layers ? 6 : 4, (char **)make), 0);
    return path;
}

/* m is loaded on d. */
static inline void sound_open(model *m, const char *path, device *d)
{
    gguf g = {0};
    err e = {0};
    CHECK_OK(gguf_open(&g, path, false, NULL, NULL, &e), e);
    CHECK_OK(model_bind_audio(m, &g, &e), e);
    CHECK_OK(model_load(m, d, NULL, NULL, &e), e);
}

/* Soft tokens of a sound, in room that is exactly as planned. mem_free. */
static inline float *sound_rows(const model *m, device *d, int32_t seed, int32_t n_samples,
                                int32_t *n)
{
    audio_memory need;
    err e = {0};
    CHECK_OK(audio_tokens(m, n_samples, n, &e), e);
    CHECK_OK(audio_plan(m, d, n_samples, &need, &e), e);
    AUTO_MEM float *x = mem_alloc((size_t)n_samples * sizeof *x);
    AUTO_MEM float *features = mem_alloc(audio_feature_count(m, n_samples) * sizeof *features);
    float *soft = mem_alloc((size_t)*n * (size_t)audio_of(m)->n_out * sizeof *soft);
    size_t n_bytes = audio_room(&need);
    void *room = d->alloc(d, n_bytes);
    CHECK(x && features && soft && room);
    test_sound(x, (uint64_t)seed, n_samples);
    audio_features(m, features, x, n_samples);
    CHECK_STATUS(audio_encode(m, d, features, n_samples, room, n_bytes - 1, soft, &e), E_MEMORY);
    e = (err){0};
    CHECK_OK(audio_encode(m, d, features, n_samples, room, n_bytes, soft, &e), e);
    d->release(d, room, n_bytes);
    return soft;
}

/* How far they are from those of transformers: the largest distance, and its root mean square. NaN
 * shows. */
static inline void sound_distance(const model *m, device *d, const sound_case *c, double *worst,
                                  double *rms)
{
    double squares = 0;
    int32_t n;
    AUTO_MEM float *soft = sound_rows(m, d, c->seed, c->n_samples, &n);
    CHECK_EQ(n, c->n);
    *worst = 0;
    for (int32_t i = 0; i < c->n * c->width; i++) {
        double apart = fabs((double)soft[i] - (double)c->want[i]);
        *worst = apart > *worst || isnan(apart) ? apart : *worst;
        squares += apart * apart;
    }
    *rms = sqrt(squares / (c->n * c->width));
}

#endif
