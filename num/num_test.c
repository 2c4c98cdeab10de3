/* num_test.c - formats against a reference's blocks, against themselves, and against noise.
 *
 * tests/data/num.bin has blocks and what a reference implementation decodes from them. Encoders
 * are held to a signal-to-noise ratio of their own, to a second round trip that changes next to
 * nothing, and to finite blocks whatever they are given.
 */
#include "tests/test.h"
#include "base/bytes.h"
#include "base/map.h"
#include "base/rng.h"
#include "num/num_int.h"

static const num_type with_codec[] = {
    NUM_F32,     NUM_F16,    NUM_BF16,  NUM_Q4_0,    NUM_Q4_1,  NUM_Q5_0,  NUM_Q5_1,
    NUM_Q8_0,    NUM_Q2_K,   NUM_Q3_K,  NUM_Q4_K,    NUM_Q5_K,  NUM_Q6_K,  NUM_IQ4_NL,
    NUM_IQ4_XS,  NUM_MXFP4,  NUM_Q1_0,  NUM_Q2_0,    NUM_TQ1_0, NUM_TQ2_0, NUM_NVFP4,
    NUM_IQ2_XXS, NUM_IQ2_XS, NUM_IQ2_S, NUM_IQ3_XXS, NUM_IQ3_S, NUM_IQ1_S, NUM_IQ1_M};
enum { N_CODEC = sizeof with_codec / sizeof *with_codec };

/* Formats that take a long search need fewer rows. */
static int rows_of(const num_format *f, int most)
{
    return f->encode || f->block_n < QK ? most : most / 20;
}

static void encode(const num_format *f, const float *x, void *raw)
{
    if (f->encode)
        f->encode(x, raw, QK);
    else
        f->weigh(x, NULL, raw, QK);
}

/* binary16 from its definition, for comparison. */
static double f16_value(uint16_t h)
{
    int e = h >> 10 & 31, m = h & 1023;
    double v = e == 31 ? (m ? NAN : INFINITY) : e ? ldexp(1024 + m, e - 25) : ldexp(m, -24);
    return h & 0x8000 ? -v : v;
}

TEST(num_f16_all_65536_values)
{
    for (uint32_t h = 0; h < 65536; h++) {
        float f = num_f16_to_f32((uint16_t)h);
        double want = f16_value((uint16_t)h);
        uint16_t back = num_f32_to_f16(f);
        if (isnan(want)) {
            CHECK(isnan(f));
            CHECK((back & 0x7fff) > 0x7c00 && (back & 0x8000) == (h & 0x8000));
        } else {
            CHECK_MSG((double)f == want && !!signbit(f) == (int)(h >> 15), "%04x is %g", h, f);
            CHECK_MSG(back == h, "%04x came back as %04x", h, back);
        }
    }
}

/* Between neighbours a < b: below the middle gives a, above it b, the middle the even one. */
TEST(num_f16_rounds_to_nearest_even)
{
    for (uint32_t h = 0; h < 0x7c00; h++) {
        double a = f16_value((uint16_t)h), b = h == 0x7bff ? 65536 : f16_value((uint16_t)(h + 1));
        float mid = (float)((a + b) / 2); /* exact: one more bit than f16 */
        uint16_t even = (uint16_t)(h & 1 ? h + 1 : h);
        CHECK_EQ(num_f32_to_f16(mid), even);
        CHECK_EQ(num_f32_to_f16(-mid), even | 0x8000);
        CHECK_EQ(num_f32_to_f16(nextafterf(mid, 0)), h);
        CHECK_EQ(num_f32_to_f16(nextafterf(mid, 1e9f)), h + 1);
    }
    CHECK_EQ(num_f32_to_f16(1e30f), 0x7c00);
    CHECK_EQ(num_f32_to_f16(-INFINITY), 0xfc00);
    CHECK_EQ(num_f32_to_f16(0x1p-149f), 0);
    CHECK_EQ(num_f32_to_f16(-0x1p-149f), 0x8000);
}

TEST(num_bf16_rounds_to_nearest_even_and_keeps_nan)
{
    CHECK_EQ(num_f32_to_bf16(num_bits_f32(0x3f808000)), 0x3f80);
    CHECK_EQ(num_f32_to_bf16(num_bits_f32(0x3f818000)), 0x3f82);
    CHECK_EQ(num_f32_to_bf16(num_bits_f32(0x3f808001)), 0x3f81);
    CHECK_EQ(num_f32_to_bf16(num_bits_f32(0x7f7fffff)), 0x7f80);
    CHECK(isnan(num_bf16_to_f32(num_f32_to_bf16(num_bits_f32(0x7f800001)))));
}

TEST(num_names_and_sizes)
{
    uint64_t n;
    CHECK_STR(num_name(16), "iq2_xxs");
    CHECK_STR(num_name(42), "q2_0");
    CHECK_STR(num_name(43), "type 43");
    CHECK_STR(num_name(4000000000u), "unknown type");
    CHECK(!num_format_of(4) && !num_format_of(63) && !num_format_of(64) && !num_format_of(~0u));
    CHECK(num_row_bytes(NUM_Q4_K, 512, &n) && n == 288);
    CHECK(!num_row_bytes(NUM_Q4_K, 511, &n));
    CHECK(!num_row_bytes(NUM_Q4_K, 128, &n));
    CHECK(!num_row_bytes(4, 32, &n));
    CHECK(!num_row_bytes(NUM_F64, UINT64_MAX / 4, &n));
    for (uint32_t i = 0; i < NUM_TYPE_END; i++) {
        const num_format *f = num_format_of(i);
        CHECK(!f || (QK % f->block_n == 0 && f->block_bytes > 0 && (f->decode || !f->encode)));
    }
}

TEST(num_agrees_with_the_reference_blocks)
{
    AUTO_PTR(free) char *bytes;
    size_t n_bytes;
    err e = {0};
    CHECK_OK(file_read_all(test_path("tests/data/num.bin"), 1 << 20, &bytes, &n_bytes, &e), e);
    reader r = reader_of(bytes, n_bytes);
    int n_records = 0;
    while (reader_left(&r)) {
        static float x[QK], got[QK];
        static uint8_t raw[QK * 4];
        uint32_t type = rd_u32(&r), is_encode = rd_u32(&r), n = rd_u32(&r), n_raw = rd_u32(&r);
        const uint8_t *block = rd_bytes(&r, n_raw), *values = rd_bytes(&r, (uint64_t)n * 4);
        CHECK(!r.bad && n <= QK);
        memcpy(x, values, n * 4);
        const num_format *f = num_format_of(type);
        uint64_t want_raw;
        CHECK(f && num_row_bytes(type, n, &want_raw) && want_raw == n_raw);
        if (is_encode) {
            f->encode(x, raw, n);
            CHECK_MSG(!memcmp(raw, block, n_raw), "%s encodes other bytes", f->name);
        } else {
            f->decode(block, got, n);
            for (uint32_t i = 0; i < n; i++)
                CHECK_MSG(got[i] == x[i], "%s element %u is %.9g, expected %.9g", f->name, i,
                          got[i], x[i]);
        }
        n_records++;
    }
    CHECK(n_records > 60);
}

/* Signal to noise in dB over rows of 256. kind 0: Gaussian, 1: Laplace. */
static double snr(uint32_t type, int kind, int rows)
{
    const num_format *f = num_format_of(type);
    uint64_t seed = test_seed();
    double signal = 0, noise = 0;
    for (int r = 0; r < rows_of(f, rows); r++) {
        float x[QK], y[QK];
        uint8_t raw[QK * 4];
        for (int i = 0; i < QK; i++) {
            double u = rng_unit(&seed) - 0.5;
            x[i] = (float)(kind ? copysign(log(1 - 2 * fabs(u)), u) : rng_normal(&seed));
        }
        encode(f, x, raw);
        f->decode(raw, y, QK);
        for (int i = 0; i < QK; i++) {
            signal += (double)x[i] * x[i];
            noise += ((double)x[i] - y[i]) * ((double)x[i] - y[i]);
        }
    }
    return 10 * log10(signal / noise);
}

PLAIN_TEST(num_snr_gates)
{
    /* Gauss, Laplace. Up to mxfp4 what the rules are known to reach, the rest what
     * the search reached when it was written; both less 0.5 dB. */
    static const struct {
        num_type t;
        double gauss, laplace;
    } gate[] = {{NUM_F16, 73.2, 73.2},    {NUM_BF16, 55.1, 55.0},    {NUM_Q8_0, 44.9, 42.9},
                {NUM_Q5_1, 27.9, 26.6},   {NUM_Q5_0, 26.9, 24.9},    {NUM_Q4_1, 21.6, 20.3},
                {NUM_Q4_0, 20.8, 18.9},   {NUM_IQ4_NL, 21.6, 20.5},  {NUM_MXFP4, 18.3, 17.4},
                {NUM_Q6_K, 35.2, 33.4},   {NUM_Q5_K, 28.7, 27.3},    {NUM_Q4_K, 22.6, 21.2},
                {NUM_IQ4_XS, 22.1, 20.9}, {NUM_Q3_K, 16.4, 15.0},    {NUM_Q2_K, 11.2, 10.3},
                {NUM_NVFP4, 21.3, 21.2},  {NUM_Q2_0, 8.6, 7.4},      {NUM_TQ1_0, 6.7, 5.3},
                {NUM_TQ2_0, 6.7, 5.3},    {NUM_IQ3_XXS, 14.6, 14.0}, {NUM_IQ3_S, 17.2, 16.2},
                {NUM_IQ2_XXS, 9.2, 8.5},  {NUM_IQ2_XS, 10.4, 9.8},   {NUM_IQ2_S, 11.9, 10.6},
                {NUM_Q1_0, 3.9, 2.5},     {NUM_IQ1_S, 6.5, 5.8},     {NUM_IQ1_M, 7.2, 6.7}};
    for (size_t i = 0; i < sizeof gate / sizeof *gate; i++) {
        double g = snr(gate[i].t, 0, 400), l = snr(gate[i].t, 1, 400);
        printf("%-7s %6.2f %6.2f dB\n", num_name(gate[i].t), g, l);
        CHECK_MSG(g >= gate[i].gauss, "%s: %.2f dB on Gaussian rows", num_name(gate[i].t), g);
        CHECK_MSG(l >= gate[i].laplace, "%s: %.2f dB on Laplace rows", num_name(gate[i].t), l);
    }
}

/* Encoding what was decoded must not lose again: the error of the second trip is far smaller. */
TEST(num_second_round_trip_is_nearly_free)
{
    uint64_t seed = test_seed();
    for (int t = 0; t < N_CODEC; t++) {
        const num_format *f = num_format_of(with_codec[t]);
        double first = 0, second = 0;
        for (int r = 0; r < rows_of(f, 60); r++) {
            float x[QK], y[QK], z[QK];
            uint8_t raw[QK * 4];
            for (int i = 0; i < QK; i++)
                x[i] = (float)rng_normal(&seed);
            encode(f, x, raw);
            f->decode(raw, y, QK);
            encode(f, y, raw);
            f->decode(raw, z, QK);
            for (int i = 0; i < QK; i++) {
                first += ((double)x[i] - y[i]) * ((double)x[i] - y[i]);
                second += ((double)y[i] - z[i]) * ((double)y[i] - z[i]);
            }
        }
        CHECK_MSG(second <= 0.25 * first, "%s: %g after %g", f->name, second, first);
    }
}

/* sum of w (x - y)^2 */
static double weighted_error(const num_format *f, const float *x, const float *w, const void *raw)
{
    float y[QK];
    double sum = 0;
    f->decode(raw, y, QK);
    for (int i = 0; i < QK; i++)
        sum += (double)w[i] * ((double)x[i] - y[i]) * ((double)x[i] - y[i]);
    return sum;
}

/* An encoder that is told what counts loses less of that; told that all counts alike, it writes the
 * same bytes as when told nothing. */
TEST(num_importance_lowers_the_error_that_counts)
{
    for (uint32_t t = 0; t < NUM_TYPE_END; t++) {
        const num_format *f = num_format_of(t);
        uint64_t seed = test_seed();
        double told = 0, untold = 0;
        if (!f || !f->weigh)
            continue;
        for (int r = 0; r < rows_of(f, 100); r++) {
            float x[QK], w[QK], ones[QK];
            uint8_t raw[QK * 4], plain[QK * 4];
            for (int i = 0; i < QK; i++) {
                x[i] = (float)rng_normal(&seed);
                w[i] = (float)exp(1.5 * rng_normal(&seed));
                ones[i] = 1;
            }
            encode(f, x, plain);
            untold += weighted_error(f, x, w, plain);
            f->weigh(x, ones, raw, QK);
            CHECK_MSG(!memcmp(raw, plain, (size_t)(QK / f->block_n * f->block_bytes)), "%s",
                      f->name);
            f->weigh(x, w, raw, QK);
            told += weighted_error(f, x, w, raw);
        }
        printf("%-7s %.3f of the error\n", f->name, told / untold);
        CHECK_MSG(told < 0.98 * untold, "%s: %g with importance, %g without", f->name, told,
                  untold);
    }
}

/* Models trained for these formats are made of their levels, and lose nothing. */
TEST(num_levels_of_trained_models_come_back)
{
    static const struct {
        num_type t;
        int low, high;
    } of[] = {{NUM_Q1_0, -1, 1}, {NUM_Q2_0, -1, 1},  {NUM_Q2_0, -1, 2},
              {NUM_Q2_0, -2, 1}, {NUM_TQ1_0, -1, 1}, {NUM_TQ2_0, -1, 1}};
    uint64_t seed = test_seed();
    for (size_t k = 0; k < sizeof of / sizeof *of; k++)
        for (int r = 0; r < 40; r++) {
            const num_format *f = num_format_of(of[k].t);
            float x[QK], y[QK], d = num_f16_to_f32((uint16_t)(0x2000 + rng_below(&seed, 4096)));
            uint8_t raw[QK];
            for (int i = 0; i < QK; i++) {
                int span = of[k].high - of[k].low + 1;
                int l = of[k].low + (int)rng_below(&seed, (uint64_t)span);
                x[i] = d * (float)(of[k].t == NUM_Q1_0 ? l < 0 ? -1 : 1 : l);
            }
            encode(f, x, raw);
            f->decode(raw, y, QK);
            for (int i = 0; i < QK; i++)
                CHECK_MSG(x[i] == y[i], "%s: %g became %g", f->name, (double)x[i], (double)y[i]);
        }
}

TEST(num_zero_rows_stay_zero)
{
    for (int t = 0; t < N_CODEC; t++) {
        const num_format *f = num_format_of(with_codec[t]);
        float x[QK] = {0}, y[QK];
        uint8_t raw[QK * 4];
        encode(f, x, raw);
        f->decode(raw, y, QK);
        for (int i = 0; i < QK; i++)
            CHECK_MSG(y[i] == 0, "%s", f->name);
    }
}

TEST(num_hostile_rows_encode_to_finite_blocks)
{
    static const float bad[] = {NAN,       INFINITY,   -INFINITY, 0x1.fffffep127f, -0x1.fffffep127f,
                                0x1p-149f, -0x1p-149f, 1e-38f,    1e30f,           0,
                                -0.0f,     65504,      1e-8f};
    static const float counts[] = {0, 1e-30f, 1e-4f, 1, 1e6f};
    uint64_t seed = test_seed();
    for (int t = 0; t < N_CODEC; t++) {
        const num_format *f = num_format_of(with_codec[t]);
        if (f->block_n == 1)
            continue; /* the scalar formats carry NaN and infinity as they are */
        for (int round = 0; round < rows_of(f, 400); round++) {
            float x[QK], y[QK], w[QK];
            uint8_t raw[QK * 4];
            uint64_t some = rng_below(&seed, 4), n_counts = 1 + rng_below(&seed, 5);
            for (int i = 0; i < QK; i++) {
                w[i] = counts[rng_below(&seed, n_counts)];
                x[i] = rng_below(&seed, 4) < some ? bad[rng_below(&seed, sizeof bad / sizeof *bad)]
                                                  : (float)rng_normal(&seed);
            }
            if (f->weigh && round % 2)
                f->weigh(x, w, raw, QK);
            else
                encode(f, x, raw);
            f->decode(raw, y, QK);
            for (int i = 0; i < QK; i++)
                CHECK_MSG(isfinite(y[i]), "%s element %d: %g became %g", f->name, i, x[i], y[i]);
        }
    }
}

TEST(num_decode_takes_any_bytes)
{
    uint64_t seed = test_seed();
    for (int t = 0; t < N_CODEC; t++) {
        const num_format *f = num_format_of(with_codec[t]);
        for (int round = 0; round < 200; round++) {
            float y[QK];
            uint8_t raw[QK * 4 + 1]; /* from an odd address */
            for (size_t i = 0; i < sizeof raw; i++)
                raw[i] = (uint8_t)rng_next(&seed);
            f->decode(raw + 1, y, QK);
        }
    }
}
