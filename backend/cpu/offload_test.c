/* offload_test.c - the kernels of every instruction set against those in plain C, bit for bit, in
 * all formats; and the activation against its definition. That the GPU's kernels give the same bits
 * is checked where they are (tests/cuda/check_offload.c).
 */
#include "backend/cpu/offload.h"
#include "base/rng.h"
#include "num/num.h"
#include "tests/test.h"

enum { N_OUT = 64, N_GROUP = 19, N_UNIT = 3, N_TILE = N_OUT / OFFLOAD_TILE, ROWS = 3 };

typedef struct planes {
    _Alignas(64) uint8_t codes[N_TILE * N_GROUP * 16 * 32], high[N_TILE * N_UNIT * 128 * 8];
    union {
        uint8_t bytes[N_TILE * N_UNIT * 128 * 16];
        uint16_t half[N_TILE * N_UNIT * 128 * 8];
        float f[N_TILE * N_UNIT * 128 * 4];
    } scale;
    uint16_t super[N_TILE * N_UNIT * 16 * 8];
    int8_t q[ROWS][N_GROUP][OFFLOAD_GROUP];
    offload_scale s[ROWS][N_GROUP];
} planes;

static uint16_t random_half(uint64_t *r)
{
    return num_f32_to_f16((float)(rng_unit(r) - 0.5));
}

/* Random codes and finite scales. Values of a row reach 127, whose products are the largest. */
static void fill(planes *p, offload_kind kind, uint64_t *r)
{
    for (size_t i = 0; i < sizeof p->codes; i++)
        p->codes[i] = (uint8_t)rng_next(r);
    for (size_t i = 0; i < sizeof p->high; i++)
        p->high[i] = (uint8_t)rng_next(r);
    for (size_t i = 0; i < sizeof p->scale / 4; i++)
        if (kind == OFFLOAD_G8)
            p->scale.f[i] = (float)rng_unit(r) - 0.5f;
        else if (kind == OFFLOAD_Q6_K)
            p->scale.half[i] = (uint16_t)rng_next(r);
        else
            p->scale.half[i] = random_half(r);
    for (size_t i = 0; i < sizeof p->super / 2; i++)
        p->super[i] = kind == OFFLOAD_Q6_K || i % 8 < 2 ? random_half(r) : (uint16_t)rng_next(r);
    for (size_t i = 0; i < sizeof p->super / 4 && (kind == OFFLOAD_IQ4 || kind == OFFLOAD_FP4);
         i++) {
        float by = (float)rng_unit(r) - 0.5f;
        memcpy(p->super + 2 * i, &by, 4);
    }
    for (int i = 0; i < ROWS; i++)
        for (int g = 0; g < N_GROUP; g++) {
            int sum[2] = {0, 0};
            for (int j = 0; j < OFFLOAD_GROUP; j++) {
                int v = i == 1 ? (j & 1 ? 127 : -127) : (int)rng_below(r, 255) - 127;
                p->q[i][g][j] = (int8_t)v;
                sum[j / 16] += v;
            }
            p->s[i][g] = (offload_scale){(float)rng_unit(r), {(int16_t)sum[0], (int16_t)sum[1]}};
        }
}

TEST(offload_kernels_of_all_instruction_sets_give_the_same_bits)
{
    static const char *const isa[] = {"avx2", "avx512"};
    AUTO_PTR(free) planes *p = calloc(1, sizeof *p);
    uint64_t r = test_seed();
    err e = {0};
    const offload_kernels *plain, *k;
    CHECK(p && !offload_kernels_find("portable", &plain, &e));
    k = plain;
    CHECK(offload_kernels_find("none", &k, NULL) == E_ARG && k == plain);
    for (int kind = 0; kind < OFFLOAD_KINDS; kind++) {
        /* K formats have whole units */
        bool whole = kind == OFFLOAD_Q4_K || kind == OFFLOAD_Q5_K || kind == OFFLOAD_Q6_K;
        const offload_matrix w = {
            p->codes, p->high, p->scale.bytes,       (const uint8_t *)p->super,
            kind,     N_OUT,   whole ? 16 : N_GROUP, whole ? 2 : N_UNIT};
        fill(p, (offload_kind)kind, &r);
        offload_row x[ROWS];
        for (int i = 0; i < ROWS; i++)
            x[i] = (offload_row){p->q[i][0], p->s[i]};
        for (int t = 0; t < N_TILE; t++)
            for (int parts = 1; parts <= OFFLOAD_WARPS; parts++) {
                float want[ROWS][OFFLOAD_TILE], got[ROWS][OFFLOAD_TILE];
                plain->tile(&w, t, parts, x, ROWS, want);
                for (int i = 0; i < 2; i++) {
                    if (offload_kernels_find(isa[i], &k, &e))
                        continue;
                    k->tile(&w, t, parts, x, ROWS, got);
                    CHECK(!memcmp(want, got, sizeof want));
                    k->tile(&w, t, parts, x + 1, 1, got); /* a row alone */
                    CHECK(!memcmp(want[1], got[0], sizeof got[0]));
                }
            }
    }
}

/* One format by hand: y = sum of d_w (q - 8) d_x x. */
TEST(offload_products_are_those_of_the_weights)
{
    AUTO_PTR(free) planes *p = calloc(1, sizeof *p);
    uint64_t r = test_seed();
    err e = {0};
    const offload_kernels *k;
    CHECK(p && !offload_kernels_find(NULL, &k, &e));
    fill(p, OFFLOAD_Q4_0, &r);
    const offload_matrix w = {p->codes,     p->high, p->scale.bytes, (const uint8_t *)p->super,
                              OFFLOAD_Q4_0, N_OUT,   N_GROUP,        N_UNIT};
    const offload_row x = {p->q[0][0], p->s[0]};
    for (int t = 0; t < N_TILE; t++) {
        float y[1][OFFLOAD_TILE];
        k->tile(&w, t, 2, &x, 1, y);
        for (int o = 0; o < OFFLOAD_TILE; o++) {
            double sum = 0, size = 0;
            for (int g = 0; g < N_GROUP; g++) {
                size_t unit = (size_t)t * N_UNIT + (size_t)g / 8;
                size_t at = ((unit * 2 + g % 2) * OFFLOAD_TILE + (size_t)o) * 4 + g / 2 % 4;
                double d = num_f16_to_f32(p->scale.half[at]);
                for (int j = 0; j < OFFLOAD_GROUP; j++) {
                    int b = p->codes[((t * N_GROUP + g) * OFFLOAD_TILE + o) * 16 + j % 16];
                    double v = d * ((b >> 4 * (j / 16) & 15) - 8) * p->s[0][g].d * p->q[0][g][j];
                    sum += v;
                    size += fabs(v);
                }
            }
            CHECK(fabs(y[0][o] - sum) <= 1e-6 * size);
        }
    }
}

TEST(offload_host_share_ends_the_slower_side_first)
{
    uint64_t r = test_seed();
    CHECK_EQ(offload_host_share(0, 1, 1, 1), 0);
    CHECK_EQ(offload_host_share(1, 6, 39, 66), 1);
    CHECK_EQ(offload_host_share(2, 6, 39, 66), 1);
    CHECK_EQ(offload_host_share(3, 6, 39, 66), 2);
    CHECK_EQ(offload_host_share(1, 6, 61, 66),
             0); /* the way there and back costs more than it saves */
    CHECK_EQ(offload_host_share(8, 0, 1, 0), 0);
    CHECK_EQ(offload_host_share(8, 0, 0, 1), 8);
    for (int trial = 0; trial < 1000; trial++) {
        int32_t n = 1 + (int32_t)rng_below(&r, 64);
        double dispatch = rng_unit(&r) * 10, host = rng_unit(&r) * 50, bus = rng_unit(&r) * 50;
        int32_t k = offload_host_share(n, dispatch, host, bus);
        CHECK(k >= 0 && k <= n);
        double got = fmax(k ? dispatch + k * host : 0, (n - k) * bus);
        for (int32_t i = 0; i <= n; i++)
            CHECK(got <= fmax(i ? dispatch + i * host : 0, (n - i) * bus));
    }
}

TEST(offload_units_are_silu_gelu_and_the_cut_one)
{
    for (double x = -79; x < 79; x += 0.0137) {
        double v = (float)x;
        double silu = v / (1 + exp(-v));
        double gelu = v / (1 + exp(-2 * 0.79788456080286535588 * (v + 0.044715 * v * v * v)));
        CHECK(fabs(offload_gated(OFFLOAD_SILU, (float)x, 1) - silu) <= 4e-7 * fabs(silu));
        if (v > -5)
            CHECK(fabs(offload_gated(OFFLOAD_GELU, (float)x, 1) - gelu) <=
                  4e-6 * fabs(gelu) + 1e-9);
        double low = v < 7 ? v : 7, cut = low / (1 + exp(-1.702f * low));
        for (double y = -9; y < 10; y += 6) /* beyond the cut at both ends, and within it */
            CHECK(fabs(offload_gated(OFFLOAD_CUT, (float)x, (float)y) -
                       cut * (fmax(fmin(y, 7), -7) + 1)) <= 4e-6 * fabs(cut) + 1e-9);
    }
    CHECK(isnan(offload_gated(OFFLOAD_SILU, NAN, 1)) && isnan(offload_gated(OFFLOAD_GELU, NAN, 1)));
    CHECK(offload_gated(OFFLOAD_SILU, INFINITY, 1) == INFINITY &&
          offload_gated(OFFLOAD_GELU, INFINITY, 1) == INFINITY);
    CHECK(isnan(offload_gated(OFFLOAD_CUT, NAN, 1)) && isnan(offload_gated(OFFLOAD_CUT, 1, NAN)));
    CHECK(fabsf(offload_gated(OFFLOAD_SILU, -1e4f, 1)) < 1e-30f &&
          fabsf(offload_gated(OFFLOAD_GELU, -1e4f, 1)) < 1e-30f);
}

/* The int8 copy: the largest value has code 127, others round to nearest; NaN and infinity show. */
TEST(offload_gates_are_quantised_like_the_gpu_does)
{
    static const char *const isa[] = {"portable", "avx2", "avx512"};
    uint64_t r = test_seed();
    err e = {0};
    for (int trial = 0; trial < 200; trial++) {
        const offload_unit unit = (offload_unit)(trial % OFFLOAD_UNITS);
        float a[OFFLOAD_GROUP], b[OFFLOAD_GROUP];
        int8_t want[OFFLOAD_GROUP], q[OFFLOAD_GROUP];
        offload_scale first = {0}, s;
        const offload_kernels *k;
        for (int i = 0; i < OFFLOAD_GROUP; i++) {
            a[i] = (float)(8 * rng_unit(&r) - 4);
            b[i] = trial % 50 == 49 ? 0 : ldexpf((float)rng_unit(&r), trial % 50 - 25);
        }
        b[3] = trial == 7 ? NAN : trial == 9 ? INFINITY : b[3];
        for (int i = 0; i < 3; i++) {
            if (offload_kernels_find(isa[i], &k, &e))
                continue;
            k->gate(unit, a, b, q, &s);
            if (!i) {
                memcpy(want, q, sizeof q);
                first = s;
            }
            CHECK(!memcmp(want, q, sizeof q));
            CHECK(first.d == s.d || (isnan(first.d) && isnan(s.d)));
            CHECK(first.sum[0] == s.sum[0] && first.sum[1] == s.sum[1]);
        }
        if (trial == 7 || trial == 9) {
            CHECK(isnan(first.d));
            continue;
        }
        for (int i = 0; i < OFFLOAD_GROUP; i++)
            CHECK(fabsf(offload_gated(unit, a[i], b[i]) - first.d * want[i]) <=
                  0.501f * first.d + 1e-35f);
    }
    const offload_kernels *k;
    err_clear(&e); /* this processor may lack some of them */
    CHECK(offload_kernels_find("mmx", &k, &e) == E_ARG && strstr(e.text, "mmx"));
}
