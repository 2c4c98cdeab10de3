/* audio_test.c - soft tokens of sound against transformers' towers, on every instruction set, and
 * files that are refused (tools/audio_fixture.py). */
#include "model/audio.h"
#include "apps/commands.h"
#include "base/mem.h"
#include "sound/sound_test_int.h"
#include "tests/test.h"

static const char *const kinds[] = {"reference", "portable", "avx2", "avx512", "neon"};
enum { N_KINDS = 5, CASES = 10, SAMPLES_MOST = 45000, SOFT_MOST = 71 * 96 };

/* NULL where the machine lacks it. */
static device *open_kind(int kind)
{
    cpu_options o = {.n_threads = 2, .exact_f32 = true};
    device *d = NULL;
    err e = {0};
    if (kind)
        o.isa = kinds[kind];
    else
        o.reference = true;
    return device_open_cpu(&d, &o, &e) ? NULL : d;
}

typedef struct soft_case {
    char size[32];
    int32_t seed, n_samples, n, width;
    float want[SOFT_MOST];
} soft_case;

static int32_t read_cases(soft_case *c)
{
    FILE *lines = fopen(test_path("tests/data/sounds/soft.txt"), "r"),
         *values = fopen(test_path("tests/data/sounds/soft.f32"), "rb");
    int32_t n = 0;
    CHECK(lines && values);
    for (; n < CASES && fscanf(lines, "%31s %d %d %d %d", c->size, &c->seed, &c->n_samples, &c->n,
                               &c->width) == 5;
         n++, c++) {
        size_t count = (size_t)c->n * (size_t)c->width;
        CHECK(count <= SOFT_MOST && c->n_samples <= SAMPLES_MOST);
        CHECK_EQ(fread(c->want, sizeof(float), count, values), count);
    }
    CHECK(n < CASES && fgetc(values) == EOF);
    fclose(lines);
    fclose(values);
    return n;
}

static void make_file(const char *size, const char *path)
{
    const char *make[] = {size, path, "--type", "f32"};
    CHECK_EQ(command_synth.run(&command_synth, 4, (char **)make), 0);
}

static void open_tower(model *m, const char *size, device *d)
{
    const char *path = test_temp("tower.gguf");
    gguf g = {0};
    err e = {0};
    make_file(size, path);
    CHECK_OK(gguf_open(&g, path, false, NULL, NULL, &e), e);
    CHECK_OK(model_bind_audio(m, &g, &e), e);
    CHECK_OK(model_load(m, d, NULL, NULL, &e), e);
}

static void compare(const model *m, device *d, const soft_case *c, const char *kind)
{
    static float x[SAMPLES_MOST], soft[SOFT_MOST];
    double worst = 0, squares = 0;
    int32_t n;
    err e = {0};
    test_sound(x, (uint64_t)c->seed, c->n_samples);
    CHECK_OK(audio_tokens(m, c->n_samples, &n, &e), e);
    CHECK_EQ(n, c->n);
    float *rows = mem_alloc(audio_feature_count(m, c->n_samples) * sizeof *rows);
    audio_features(m, rows, x, c->n_samples);
    uint64_t used = d->used_bytes ? d->used_bytes(d) : 0;
    CHECK_OK(audio_encode(m, d, rows, c->n_samples, soft, &e), e);
    CHECK_EQ(d->used_bytes ? d->used_bytes(d) : 0, used);
    for (int32_t i = 0; i < c->n * c->width; i++) {
        double apart = fabs((double)soft[i] - (double)c->want[i]);
        worst = apart > worst || isnan(apart) ? apart : worst;
        squares += apart * apart;
    }
    /* Features changed by half a unit in the last place move the reference's values by 6e-5. */
    double rms = sqrt(squares / (c->n * c->width));
    CHECK_MSG(worst <= 1e-4 && rms <= 1e-5, "%s, %d samples, %s: a value is %g apart, rms %g",
              c->size, c->n_samples, kind, worst, rms);
    mem_free(rows);
}

TEST(audio_soft_tokens_are_those_of_transformers)
{
    static soft_case c[CASES];
    int32_t n = read_cases(c), n_kinds = 0;
    CHECK_EQ(n, 9);
    for (int kind = 0; kind < N_KINDS; kind++) {
        device *d = open_kind(kind);
        if (!d)
            continue;
        for (int32_t i = 0; i < n; i++) {
            model m;
            open_tower(&m, c[i].size, d);
            int32_t end = i;
            while (end < n && !strcmp(c[end].size, c[i].size))
                compare(&m, d, &c[end++], kinds[kind]);
            i = end - 1;
            model_free(&m);
        }
        device_close(d);
        n_kinds++;
    }
    CHECK(n_kinds >= 2);
}

static status encode_once(void *arg, err *e)
{
    static float rows[640], soft[96];
    model *m = arg;
    return audio_encode(m, m->dev[PASS_MAIN], rows, 640, soft, e);
}

TEST(audio_refuses_what_it_cannot_encode)
{
    device *d = open_kind(0);
    model m;
    int32_t n = 7;
    size_t need;
    gguf g = {0};
    err e = {0};
    CHECK(d);
    open_tower(&m, "tiny-mmproj-hears", d);
    CHECK_STATUS(audio_tokens(&m, 160, &n, &e), E_LIMIT);
    CHECK(strstr(e.text, "10 milliseconds, which is too short") && n == 7);
    e = (err){0};
    CHECK_STATUS(audio_tokens(&m, 480001, &n, &e), E_LIMIT);
    CHECK(strstr(e.text, "at most 30 at a time") && n == 7);
    e = (err){0};
    CHECK_OK(audio_tokens(&m, 480000, &n, &e), e);
    CHECK_EQ(n, 750);
    CHECK_OK(audio_plan(&m, d, 480000, &need, &e), e);
    test_every_allocation(encode_once, &m);
    model_free(&m);
    open_tower(&m, "tiny-mmproj-flat-hears", d);
    CHECK_STATUS(audio_tokens(&m, 0, &n, NULL), E_LIMIT);
    CHECK_OK(audio_tokens(&m, 641, &n, &e), e);
    CHECK_EQ(n, 2);
    test_every_allocation(encode_once, &m);
    model_free(&m);
    /* A vision tower alone hears nothing. */
    make_file("tiny-mmproj-clamped", test_temp("eyes.gguf"));
    CHECK_OK(gguf_open(&g, test_temp("eyes.gguf"), false, NULL, NULL, &e), e);
    CHECK_STATUS(model_bind_audio(&m, &g, &e), E_UNSUPPORTED);
    CHECK(strstr(e.text, "has no audio tower"));
    device_close(d);
}
