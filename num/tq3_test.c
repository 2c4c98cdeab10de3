/* tq3_test.c - the rotation against its definition, TQ3_0 against published bytes and noise. */
#include "base/rng.h"
#include "num/num_int.h"
#include "tests/test.h"

enum { GROUP = NUM_ROT_GROUP, ROWS = 1500, DIM = 256 };

TEST(rotation_is_what_it_says_and_comes_back)
{
    float x[GROUP] = {1}, first[GROUP], last[GROUP];
    num_rotate(x, GROUP);
    for (int i = 0; i < 8; i++)
        CHECK_NEAR(x[i], ((const float[]){-1, -1, -1, -1, 1, -1, -1, 1})[i] * 0.0883883476, 1e-7);
    for (int i = 0; i < GROUP; i++)
        x[i] = 1;
    num_rotate(x, GROUP);
    static const double want[8] = {0.707107,  0.353553, 0,         -0.353553,
                                   -1.060660, 1.414214, -1.060660, 2.121320};
    for (int i = 0; i < 8; i++)
        CHECK_NEAR(x[i], want[i], 1e-6);
    uint64_t rng = test_seed();
    float a[2 * GROUP], b[2 * GROUP];
    double len = 0, worst = 0, dot = 0, dot_rot = 0;
    for (int i = 0; i < 2 * GROUP; i++) {
        a[i] = b[i] = (float)(rng_next(&rng) >> 40) * 0x1p-23f - 1;
        len += (double)a[i] * a[i];
    }
    num_rotate(b, 2 * GROUP);
    /* H from its definition: the sign of entry (i, j) is the parity of i & j. */
    num_rotation_signs(first, last);
    for (int i = 0; i < GROUP; i++) {
        double sum = 0;
        for (int j = 0; j < GROUP; j++)
            sum += (__builtin_popcount((unsigned)(i & j)) & 1 ? -1.0 : 1.0) * first[j] * a[j];
        CHECK_NEAR(b[i], last[i] * sum / sqrt(GROUP), 1e-6);
    }
    for (int i = 0; i < GROUP; i++) {
        dot += (double)a[i] * a[GROUP + i];
        dot_rot += (double)b[i] * b[GROUP + i];
    }
    CHECK_NEAR(dot, dot_rot, 1e-5);
    num_unrotate(b, 2 * GROUP);
    for (int i = 0; i < 2 * GROUP; i++) { /* gcc 12 for AArch64 dies of fmax here */
        double off = fabs((double)a[i] - b[i]);
        worst = off <= worst ? worst : off;
    }
    CHECK_MSG(worst < 1e-6 * sqrt(len), "off by %g after a round trip", worst);
}

TEST(tq3_0_golden_bytes)
{
    static const uint8_t want[56] = {
        0xB3, 0x4A, 0x82, 0xDA, 0x46, 0x1E, 0x04, 0xB2, 0x84, 0xD2, 0x36, 0x9D, 0x0D, 0xAF,
        0xB3, 0x4A, 0xC8, 0x47, 0x22, 0xBB, 0x29, 0x22, 0xB7, 0xDD, 0x25, 0x0C, 0xAB, 0x52,
        0xB3, 0x4A, 0x6A, 0xBD, 0xB5, 0x6D, 0x46, 0x5B, 0x69, 0xFE, 0x04, 0xD0, 0xA7, 0x0D,
        0xB3, 0x4A, 0x1F, 0xFE, 0x1A, 0xB4, 0x81, 0x54, 0x03, 0x9D, 0x11, 0xBA, 0xB2, 0x07};
    static const double rotated[8] = {-0.053280, 0.010977, 0.031861,  -0.052744,
                                      0.110040,  0.104150, -0.121285, -0.010442};
    float x[GROUP], back[GROUP];
    uint8_t got[56];
    double in = 0, out = 0;
    for (int i = 0; i < GROUP; i++)
        x[i] = (float)(37 * i % 101 - 50) / 25;
    num_rotate(x, GROUP);
    for (int i = 0; i < 8; i++)
        CHECK_NEAR(x[i] / 13.205272, rotated[i], 1e-6);
    const num_format *f = num_format_of(NUM_TQ3_0);
    f->encode(x, got, GROUP);
    for (int i = 0; i < 56; i++)
        CHECK_MSG(got[i] == want[i], "byte %d is %02x, expected %02x", i, got[i], want[i]);
    f->decode(got, back, GROUP);
    for (int i = 0; i < GROUP; i++) {
        in += (double)x[i] * x[i];
        out += (double)back[i] * back[i];
    }
    CHECK_NEAR(out / in, 1, 1e-3); /* the length survives, up to the f16 */
}

TEST(tq3_0_is_no_type_of_files)
{
    uint64_t n;
    CHECK_STR(num_name(NUM_TQ3_0), "tq3_0");
    CHECK(NUM_TQ3_0 > NUM_TYPE_END);
    CHECK(num_row_bytes(NUM_TQ3_0, 512, &n) && n == 224);
    CHECK(num_row_bytes(NUM_TQ3_0, 256, &n) && n == 112);
    CHECK(!num_row_bytes(NUM_TQ3_0, 320, &n) && !num_row_bytes(NUM_TQ3_0, 64, &n));
}

/* dB of signal to noise; outlier: 4 of 256 values ten times as large, as keys have them. */
static double snr_of(uint32_t type, bool rotate, bool outlier)
{
    const num_format *f = num_format_of(type);
    uint64_t rng = 7;
    double signal = 0, noise = 0;
    for (int r = 0; r < ROWS; r++) {
        float x[DIM], y[DIM];
        uint8_t raw[DIM * 4];
        for (int i = 0; i < DIM; i++)
            x[i] = (float)(rng_normal(&rng) * (outlier && i % 64 == 5 ? 10 : 1));
        memcpy(y, x, sizeof y);
        if (rotate)
            num_rotate(y, DIM);
        f->encode(y, raw, DIM);
        f->decode(raw, y, DIM);
        if (rotate)
            num_unrotate(y, DIM);
        for (int i = 0; i < DIM; i++) {
            signal += (double)x[i] * x[i];
            noise += ((double)x[i] - y[i]) * ((double)x[i] - y[i]);
        }
    }
    return 10 * log10(signal / noise);
}

PLAIN_TEST(cache_formats_keep_their_signal)
{
    static const struct {
        uint32_t type;
        bool rotate, outlier;
        double at_least;
    } want[] = {
        {NUM_TQ3_0, true, false, 14.3}, {NUM_TQ3_0, true, true, 14.8},
        {NUM_Q4_0, false, false, 20.8}, {NUM_Q4_0, true, false, 20.8},
        {NUM_Q4_0, true, true, 22.2},   {NUM_Q4_0, false, true, 15.5},
        {NUM_Q4_1, false, false, 21.6}, {NUM_IQ4_NL, false, false, 21.6},
        {NUM_Q5_0, false, false, 26.9}, {NUM_Q5_0, true, true, 28.2},
        {NUM_Q5_1, false, false, 27.9}, {NUM_Q8_0, false, false, 44.9},
        {NUM_Q8_0, true, true, 46.4},
    };
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        double db = snr_of(want[i].type, want[i].rotate, want[i].outlier);
        printf("  %s%s, %s: %.1f dB\n", num_name(want[i].type), want[i].rotate ? " rotated" : "",
               want[i].outlier ? "outliers" : "Gaussian", db);
        CHECK_MSG(db >= want[i].at_least, "%s: %.2f dB, expected %.1f", num_name(want[i].type), db,
                  want[i].at_least);
    }
}

TEST(tq3_0_of_odd_values)
{
    float x[GROUP] = {0}, y[GROUP];
    uint8_t raw[56];
    const num_format *f = num_format_of(NUM_TQ3_0);
    f->encode(x, raw, GROUP);
    f->decode(raw, y, GROUP);
    for (int i = 0; i < GROUP; i++)
        CHECK(y[i] == 0);
    static const float odd[] = {NAN, INFINITY, -INFINITY, 3e38f, 1e-42f};
    for (size_t k = 0; k < sizeof odd / sizeof *odd; k++) {
        for (int i = 0; i < GROUP; i++)
            x[i] = i % 5 ? 1 : odd[k];
        f->encode(x, raw, GROUP);
        f->decode(raw, y, GROUP);
        for (int i = 0; i < GROUP; i++)
            CHECK(isfinite(y[i]));
    }
}
