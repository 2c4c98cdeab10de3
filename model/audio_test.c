/* audio_test.c - soft tokens of sound against transformers' towers, on every instruction set, and
 * files that are refused (tools/audio_fixture.py). */
#include "model/audio_test_int.h"

RELEASED_AT(device_close, device)

static const char *const kinds[] = {"reference", "portable", "avx2", "avx512", "neon"};
enum { N_KINDS = 5 };

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

static void compare(const model *m, device *d, const sound_case *c, const char *kind)
{
    double worst, rms;
    sound_distance(m, d, c, &worst, &rms);
    /* Features changed by half a unit in the last place move the reference's values by 6e-5. */
    CHECK_MSG(worst <= 1e-4 && rms <= 1e-5, "%s, %d samples, %s: a value is %g apart, rms %g",
              c->size, c->n_samples, kind, worst, rms);
}

TEST(audio_soft_tokens_are_those_of_transformers)
{
    static sound_case c[SOUND_CASES];
    int32_t n = SOUND_CASES, n_kinds = 0;
    sound_cases_read(c);
    for (int kind = 0; kind < N_KINDS; kind++) {
        device *d = open_kind(kind);
        if (!d)
            continue;
        for (int32_t i = 0; i < n; i++) {
            AUTO(model_free) model m;
            sound_open(&m, sound_file(c[i].size, "f32", NULL), d);
            int32_t end = i;
            while (end < n && !strcmp(c[end].size, c[i].size))
                compare(&m, d, &c[end++], kinds[kind]);
            i = end - 1;
        }
        device_close(d);
        n_kinds++;
    }
    CHECK(n_kinds >= 2);
}

static status encode_once(void *arg, err *e)
{
    static float rows[640], soft[96];
    static char room[1 << 20];
    model *m = arg;
    return audio_encode(m, m->dev[PASS_MAIN], rows, 640, room, sizeof room, soft, e);
}

TEST(audio_refuses_what_it_cannot_encode)
{
    AUTO_PTR(device_close) device *d = open_kind(0);
    model m;
    int32_t n = 7;
    audio_memory need;
    gguf g = {0};
    err e = {0};
    CHECK(d);
    sound_open(&m, sound_file("tiny-mmproj-hears", "f32", NULL), d);
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
    sound_open(&m, sound_file("tiny-mmproj-flat-hears", "f32", NULL), d);
    CHECK_STATUS(audio_tokens(&m, 0, &n, NULL), E_LIMIT);
    CHECK_OK(audio_tokens(&m, 641, &n, &e), e);
    CHECK_EQ(n, 2);
    model_free(&m);
    /* A vision tower alone hears nothing. */
    CHECK_OK(gguf_open(&g, sound_file("tiny-mmproj-clamped", "f32", NULL), false, NULL, NULL, &e),
             e);
    CHECK_STATUS(model_bind_audio(&m, &g, &e), E_UNSUPPORTED);
    CHECK(strstr(e.text, "has no audio tower"));
}
