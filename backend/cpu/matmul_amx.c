/* matmul_amx.c - bf16 weights by tiles of AMX, where the processor has them beside AVX-512.
 *
 *     A   6 rows of activations x 16 pairs of inputs
 *     B   16 pairs of inputs x 16 outputs: a kilobyte of the packed layout as it is
 *     C   6 rows x 16 outputs, f32
 *
 * A product takes 52 cycles until its sums are there, and a new one can begin after 6. So each
 * group of outputs has two C, for even and for odd A, which are added at the end. The order of a
 * sum depends on the number of inputs alone.
 */
#include "backend/cpu/pairs_int.h"

#include <cpuid.h>
#include <immintrin.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { STEP_PAIRS = PAIR_STEP / 2 /* of a tile */, ACC_BYTES = TILE_COLS * 4 };

bool cpu_has_amx(void)
{
    enum { REQUEST = 0x1023, TILE_DATA = 18, BF16 = 1 << 22, TILE = 1 << 24 };
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && d & BF16 && d & TILE &&
           !syscall(SYS_arch_prctl, REQUEST, TILE_DATA);
}

/* The compiler's intrinsics do not say that they read memory. */
#define WRITTEN() __asm__ volatile("" ::: "memory")

/* The sizes of tiles 0 to 7: four C, two A, two B. They belong to the thread, whose owner may use
 * tiles of other sizes between passes. */
static void begin(void)
{
    enum { C = TILE_ROWS, A = TILE_ROWS, B = STEP_PAIRS };
    static const struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } sizes = {1, 0, {0}, {64, 64, 64, 64, 64, 64, 64, 64}, {C, C, C, C, A, A, B, B}};
    WRITTEN();
    _tile_loadconfig(&sizes);
}

/* A thread without live tiles is cheaper to switch. */
static void end(void)
{
    _tile_release();
}

/* c[0], c[1]: the sums of even and of odd tiles. Rows of x lie x_bytes apart. */
static void multiply(const uint8_t *const w[TILE_GROUPS], int32_t n_pairs, const uint32_t *x,
                     size_t x_bytes, float (*c)[TILE_ROWS][TILE_COLS])
{
    _Alignas(64) uint8_t tail[TILE_GROUPS][STEP_PAIRS * 64];
    int32_t i = 0;
    WRITTEN();
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (; i + 2 * STEP_PAIRS <= n_pairs; i += 2 * STEP_PAIRS) {
        _tile_loadd(4, x + i, x_bytes);
        _tile_loadd(6, w[0] + (size_t)i * 64, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, w[1] + (size_t)i * 64, 64);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, x + i + STEP_PAIRS, x_bytes);
        _tile_loadd(6, w[0] + (size_t)(i + STEP_PAIRS) * 64, 64);
        _tile_dpbf16ps(2, 5, 6);
        _tile_loadd(7, w[1] + (size_t)(i + STEP_PAIRS) * 64, 64);
        _tile_dpbf16ps(3, 5, 7);
    }
    for (; i < n_pairs; i += STEP_PAIRS) {
        const uint8_t *at[TILE_GROUPS];
        int32_t n = n_pairs - i;
        for (int g = 0; g < TILE_GROUPS; g++) {
            at[g] = w[g] + (size_t)i * 64;
            if (n >= STEP_PAIRS)
                continue;
            memset(tail[g], 0, sizeof tail[g]); /* what lies behind is another group's */
            memcpy(tail[g], at[g], (size_t)n * 64);
            at[g] = tail[g];
        }
        WRITTEN();
        _tile_loadd(4, x + i, x_bytes);
        _tile_loadd(6, at[0], 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, at[1], 64);
        _tile_dpbf16ps(1, 4, 7);
    }
    _tile_stored(0, c[0][0], ACC_BYTES);
    _tile_stored(1, c[0][0] + PACK_LANES, ACC_BYTES);
    _tile_stored(2, c[1][0], ACC_BYTES);
    _tile_stored(3, c[1][0] + PACK_LANES, ACC_BYTES);
}

/* Are there TILE_ROWS rows, which lie equally far apart? */
static bool lined(const uint32_t *const *x, int32_t n_rows, ptrdiff_t *apart)
{
    *apart = n_rows > 1 ? (const char *)x[1] - (const char *)x[0] : 0;
    bool same = n_rows == TILE_ROWS;
    for (int32_t r = 2; r < n_rows && same; r++)
        same = (const char *)x[r] - (const char *)x[r - 1] == *apart;
    return same;
}

/* layout: [pairs][16 outputs][2 inputs], two groups
 * tile:   four C, two A, two B
 * bound:  copies of tiles: 19 cycles for products that take 12 */
static void pair_tile(const void *const w[TILE_GROUPS], int32_t n_pairs, const uint32_t *const *x,
                      int32_t n_rows, float *acc)
{
    enum { PAIRS_MAX = 256 }; /* at a time, where rows are copied */
    _Alignas(64) uint32_t pairs[TILE_ROWS][PAIRS_MAX];
    _Alignas(64) float c[2][TILE_ROWS][TILE_COLS];
    ptrdiff_t apart;
    bool as_is = lined(x, n_rows, &apart);
    for (int32_t i = 0; i < n_pairs; i += PAIRS_MAX) {
        int32_t n = n_pairs - i < PAIRS_MAX ? n_pairs - i : PAIRS_MAX;
        int32_t whole = (n + STEP_PAIRS - 1) / STEP_PAIRS * STEP_PAIRS; /* with zeros */
        const uint8_t *at[TILE_GROUPS];
        for (int g = 0; g < TILE_GROUPS; g++)
            at[g] = (const uint8_t *)w[g] + (size_t)i * 64;
        for (int32_t r = 0; r < TILE_ROWS && !as_is; r++) /* rows past the last repeat it */
            memcpy(pairs[r], x[r < n_rows ? r : n_rows - 1] + i, (size_t)whole * 4);
        if (as_is)
            multiply(at, n, x[0] + i, (size_t)apart, c);
        else
            multiply(at, n, pairs[0], sizeof pairs[0], c);
        for (int32_t r = 0; r < n_rows; r++)
            for (int32_t o = 0; o < TILE_COLS; o++)
                acc[r * TILE_COLS + o] += c[0][r][o] + c[1][r][o];
    }
}

static void round_pairs(uint32_t *to, const float *x, int32_t n)
{
    cpu_pairs_avx512.round(to, x, n);
}

const pair_kernels cpu_pairs_amx = {
    .name = "amx", .round = round_pairs, .tile = pair_tile, .begin = begin, .end = end};
