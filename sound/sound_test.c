/* sound_test.c - files of sound against libsndfile's other readers and the formula of resampling,
 * spectra against transformers, and files that are refused (tools/sound_fixture.py). */
#include "base/map.h"
#include "base/mem.h"
#include "sound/sound.h"
#include "sound/sound_test_int.h"
#include "tests/test.h"

static char *read_file(const char *dir, const char *name, size_t *n)
{
    char path[256], *bytes;
    err e = {0};
    snprintf(path, sizeof path, "%s/%s", dir, name);
    CHECK_OK(file_read_all(test_path(path), 1 << 20, &bytes, n, &e), e);
    return bytes;
}

static void check_near(const float *x, const float *want, int64_t n, double tol, const char *what)
{
    for (int64_t i = 0; i < n; i++)
        CHECK_MSG(fabs((double)x[i] - (double)want[i]) <= tol, "%s: number %lld is %.9g, not %.9g",
                  what, (long long)i, (double)x[i], (double)want[i]);
}

/* Decoders of lossy files differ in their last bits between versions. */
static double tolerance(const char *name)
{
    bool lossy = !strcmp(name, "vorbis") || !strcmp(name, "opus") || !strcmp(name, "mp3");
    return lossy ? 1e-4 : strncmp(name, "rate", 4) && !strstr(name, "k") ? 0 : 1e-6;
}

static void check_mel(const float *x, int64_t n, const float **want, double tol, const char *name)
{
    int64_t rows = mel_length(n);
    AUTO_MEM float *out = mem_alloc((size_t)(rows * MEL_BINS + 1) * sizeof *out);
    mel_rows(out, x, n);
    check_near(out, *want, rows * MEL_BINS, tol, name);
    *want += rows * MEL_BINS;
}

TEST(sound_of_files_and_its_spectra_are_the_reference_s)
{
    static const int lengths[] = {160, 161, 320, 321, 480, 481, 1000, 4801};
    FILE *f = fopen(test_path("tests/data/sounds/decode.txt"), "r");
    size_t n_samples, n_mel, n;
    char name[64], what[16];
    AUTO_MEM float *samples =
        (float *)(void *)read_file("tests/data/sounds", "samples.f32", &n_samples);
    AUTO_MEM float *mel = (float *)(void *)read_file("tests/data/sounds", "mel.f32", &n_mel);
    const float *at = samples, *row = mel;
    int n_read = 0, n_refused = 0;
    CHECK(f);
    while (fscanf(f, "%63s %15s", name, what) == 2) {
        AUTO_MEM char *bytes = read_file("fuzz/corpus/sound", name, &n);
        AUTO(sound_free) sound s = {0};
        err e = {0};
        if (!strcmp(what, "refused")) {
            CHECK_MSG(sound_decode(&s, bytes, n, name, &e), "%s is read", name);
            CHECK_MSG(!strncmp(e.text, name, strlen(name)), "%s", e.text);
            CHECK(!s.at);
            n_refused++;
        } else {
            CHECK_OK(sound_decode(&s, bytes, n, name, &e), e);
            CHECK_EQ(s.n, atoi(what));
            check_near(s.at, at, s.n, tolerance(name), name);
            /* A spectrum of samples that are 1e-4 off says nothing. */
            check_mel(at, s.n, &row, 1e-6, name);
            at += s.n;
            n_read++;
        }
    }
    fclose(f);
    CHECK_EQ((char *)at - (char *)samples, (long long)n_samples);
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        float x[4801];
        test_sound(x, 9, lengths[i]);
        check_mel(x, lengths[i], &row, 1e-6, "noise");
    }
    CHECK_EQ((char *)row - (char *)mel, (long long)n_mel);
    CHECK(n_read >= 22 && n_refused >= 17);
}

/* What a file of the corpus is refused with. */
static const char *refusal(const char *name, status want)
{
    static err e;
    size_t n;
    sound s = {0};
    AUTO_MEM char *bytes = read_file("fuzz/corpus/sound", name, &n);
    e = (err){0};
    CHECK_STATUS(sound_decode(&s, bytes, n, name, &e), want);
    return e.text;
}

TEST(sound_that_is_refused_is_named)
{
    sound_head h;
    err e = {0};
    CHECK(strstr(refusal("bad-cut", E_FORMAT), "ends in the middle of the sound"));
    CHECK(strstr(refusal("bad-nan", E_FORMAT), "sample 77 is nan; expected -1 to 1"));
    CHECK(strstr(refusal("bad-large", E_FORMAT), "sample 77 is 1e+30; expected -1 to 1"));
    CHECK(strstr(refusal("bad-empty", E_FORMAT), "without a sample"));
    CHECK(strstr(refusal("bad-channels", E_LIMIT), "9 channels; at most 8 are read"));
    CHECK(strstr(refusal("bad-rate", E_LIMIT), "2000000000 samples a second"));
    CHECK(strstr(refusal("bad-prime-rate", E_LIMIT), "no small ratio to 16000"));
    CHECK(strstr(refusal("bad-coding", E_FORMAT), "a coding that is not read"));
    CHECK(strstr(refusal("bad-flac-cut", E_FORMAT), "damaged or ends early"));
    CHECK(strstr(refusal("bad-flac-long", E_LIMIT), "at most 600 seconds"));
    CHECK(strstr(refusal("bad-webm", E_UNSUPPORTED), "a WebM file"));
    CHECK(strstr(refusal("bad-text", E_UNSUPPORTED), "no sound"));
    /* libsndfile would read these as AU, AIFF and FLAC; a tag longer than its file. */
    static const struct {
        const char *bytes;
        size_t n;
        bool is_one;
    } begin[] = {{".snd\0\0\0\30WAVE\0\0\0\3\0\0\0\1", 20, false},
                 {"riff\0\0\0\0WAVE", 12, false},
                 {"RIFF\0\0\0\0WEBP", 12, false},
                 {"ID3\4\0\0\0\0\0\2..FORM\0\0\0\4AIFF", 24, false},
                 {"ID3\4\0\0\0\0\0\2..fLaC", 16, true},
                 {"ID3\4\0\20\0\0\0\1.3DI.......\xff\xfb", 23, true},
                 {"ID3\4\0\0\177\177\177\177\xff\xfb", 12, false},
                 {"ID3\4\0\0\0\0\0\0", 10, false}};
    for (size_t i = 0; i < sizeof begin / sizeof *begin; i++)
        CHECK_MSG((sound_format_of(begin[i].bytes, begin[i].n) != SOUND_NONE) == begin[i].is_one,
                  "row %zu", i);
    CHECK_STATUS(sound_head_read(&h, "", 0, "a.wav", &e), E_UNSUPPORTED);
    CHECK(strstr(e.text, "an empty file"));
}

/* In pieces of any size, the samples are those of one piece, at any ratio of rates. */
TEST(resampling_in_pieces_is_that_of_one_piece)
{
    static const int32_t rates[] = {8000, 16000, 44100, 48000, 12345, 192000, 384000};
    AUTO_MEM float *x = mem_alloc(20000 * sizeof *x);
    test_sound(x, 3, 20000);
    for (size_t i = 0; i < sizeof rates / sizeof *rates; i++) {
        sound whole = {0}, pieces = {0};
        resampler *r;
        err e = {0};
        CHECK_OK(resampler_new(&r, rates[i], "x", &e), e);
        CHECK_OK(resampler_put(r, x, 20000, &whole, &e), e);
        CHECK_OK(resampler_end(r, &whole, &e), e);
        resampler_free(r);
        CHECK_OK(resampler_new(&r, rates[i], "x", &e), e);
        for (int32_t at = 0, n = 1; at < 20000; at += n, n = n * 3 % 4999) {
            n = n < 20000 - at ? n : 20000 - at;
            CHECK_OK(resampler_put(r, x + at, n, &pieces, &e), e);
        }
        CHECK_OK(resampler_end(r, &pieces, &e), e);
        resampler_free(r);
        CHECK_EQ(whole.n, (20000LL * SOUND_RATE + rates[i] - 1) / rates[i]);
        CHECK_EQ(pieces.n, whole.n);
        CHECK(!memcmp(pieces.at, whole.at, (size_t)whole.n * sizeof(float)));
        sound_free(&whole);
        sound_free(&pieces);
    }
}

/* A tone keeps its height, and one above half the rate is gone. */
TEST(resampling_keeps_what_the_lower_rate_holds)
{
    static const struct {
        double hz, loud;
    } tones[] = {{100, 1}, {7000, 1}, {8600, 0}, {20000, 0}};
    AUTO_MEM float *x = mem_alloc(48000 * sizeof *x);
    for (size_t i = 0; i < sizeof tones / sizeof *tones; i++) {
        sound s = {0};
        resampler *r;
        err e = {0};
        double most = 0;
        for (int32_t k = 0; k < 48000; k++)
            x[k] = (float)sin(2 * 3.14159265358979 * tones[i].hz * k / 48000);
        CHECK_OK(resampler_new(&r, 48000, "x", &e), e);
        CHECK_OK(resampler_put(r, x, 48000, &s, &e), e);
        CHECK_OK(resampler_end(r, &s, &e), e);
        for (int64_t k = 1000; k < s.n - 1000; k++)
            most = fmax(most, fabs((double)s.at[k]));
        CHECK_NEAR(most, tones[i].loud, tones[i].loud ? 1e-3 : 1e-5);
        sound_free(&s);
        resampler_free(r);
    }
}

static status decode_once(void *arg, err *e)
{
    size_t n;
    AUTO(sound_free) sound s = {0};
    char *bytes = arg;
    memcpy(&n, bytes, sizeof n);
    status st = sound_decode(&s, bytes + sizeof n, n, "x", e);
    return st;
}

TEST(sound_survives_failed_allocations)
{
    size_t n;
    AUTO_MEM char *bytes = read_file("fuzz/corpus/sound", "rate-44100", &n),
                  *arg = mem_alloc(n + sizeof n);
    memcpy(arg, &n, sizeof n);
    memcpy(arg + sizeof n, bytes, n);
    test_every_allocation(decode_once, arg);
}
