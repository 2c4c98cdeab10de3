/* split_tile.cuh - the products of split.cu: a warp's share of S = Q K' and O += P V of a tile of
 * 32 keys, from shared memory.
 *
 *     S    warps divide the head's length by PARTS, and the four of a part the keys
 *     O    warps divide the columns
 *
 * Formats other than f16 become f16 in registers, 8 elements at a time (kv_piece). Inner dimensions
 * are therefore permuted: lane (g, t) holds elements 8t .. 8t + 7 of every 32 of key g; for values,
 * columns 8g .. 8g + 7 of keys 2t, 2t + 1, 2t + 8, 2t + 9.
 */
#ifndef BACKEND_CUDA_SPLIT_TILE_CUH
#define BACKEND_CUDA_SPLIT_TILE_CUH

#include "backend/cuda/attend/keys.cuh"

enum { KEYS = 32, LINE_S = KEYS + 8, LINE_P = KEYS + 8 };

/* Are blocks converted to f16 in registers? In small heads, and of one stream, a tile is converted
 * in shared memory instead. */
template <int D, bool BLOCKS, bool ONE>
static constexpr bool in_registers = BLOCKS && !ONE && D > 128;

/* W warps. For S they divide the head's length by PARTS, and the keys by the four warps of a part.
 * For P V they divide columns. */
template <int D, bool BLOCKS> struct split_shape {
    static constexpr int W = D <= 128 ? 4 : D / (BLOCKS ? 64 : 32), PARTS = W / 4, COLS = D / W;
    static constexpr int NT = COLS / 8, ROWS = 16 / W; /* ROWS: pairs of a warp's softmax */
    static constexpr int LINE_Q = D + (BLOCKS ? 32 : 8);
    static constexpr int fixed =
        16 * (LINE_Q + LINE_P) * 2 + PARTS * 16 * LINE_S * 4 + 16 * 3 * (int)sizeof(int);
};

/* What a warp multiplies in a turn. */
struct share {
    const uint16_t *q; /* queries, [16][LINE_Q] */
    const uint8_t *k, *v;
    const uint16_t *p;    /* probabilities, [16][LINE_P] */
    const uint16_t *made; /* one stream: made keys */
    int line, warp;
};

/* s: 16 pairs x 8 keys, summed over the warp's part of the head. Even and odd steps of 16 have
 * separate sums: half the latency. */
template <int D> DEV void scores(float *s, const share &w)
{
    using F = split_shape<D, false>;
    int lane = lane_id(), col = w.warp / 4 * (D / F::PARTS), keys = w.warp % 4 * 8;
    float s1[4] = {0, 0, 0, 0};
    const uint16_t *q = w.q + (lane & 15) * F::LINE_Q + (lane >> 4 << 3) + col;
    const uint16_t *k =
        (const uint16_t *)(w.k + (keys + (lane & 7)) * w.line) + (lane >> 3 << 3) + col;
#pragma unroll 4
    for (int kk = 0; kk < D / F::PARTS; kk += 32) {
        uint32_t fa[4], fb[4];
        ldmatrix4(fb, k + kk);
        ldmatrix4(fa, q + kk);
        mma_f16(s, fa, fb);
        ldmatrix4(fa, q + kk + 16);
        mma_f16(s1, fa, fb + 2);
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        s[i] += s1[i];
}
template <int D, int KIND> DEV void scores_as(float *s, const share &w)
{
    using F = split_shape<D, true>;
    int lane = lane_id(), g = lane >> 2, t = lane & 3;
    int col = w.warp / 4 * (D / F::PARTS), keys = w.warp % 4 * 8;
    float s1[4] = {0, 0, 0, 0};
    const uint16_t *q = w.q + g * F::LINE_Q + col + 8 * t;
    const uint8_t *k = w.k + (keys + g) * w.line;
#pragma unroll 4
    for (int kk = 0; kk < D / F::PARTS; kk += 32) {
        uint4 x = kv_piece<KIND>(k, (col + kk) / 8 + t);
        uint4 y = *(const uint4 *)(q + kk), z = *(const uint4 *)(q + 8 * F::LINE_Q + kk);
        uint32_t fa[4] = {y.x, z.x, y.y, z.y}, fb[2] = {x.x, x.y};
        uint32_t ga[4] = {y.z, z.z, y.w, z.w}, gb[2] = {x.z, x.w};
        mma_f16(s, fa, fb);
        mma_f16(s1, ga, gb);
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        s[i] += s1[i];
}

/* One stream: of a warp's ONE_STEPS steps of 16 dims, the first six are still dims, read from the
 * values; the last two are dims of made keys. */
enum { ONE_STEPS = 8, ONE_STILL = 96 };
template <int D> DEV int still_from(int part)
{
    constexpr int half = split_shape<D, false>::PARTS / 2;
    return part / half * (D / 2) + key_shape<D>::TURN + part % half * ONE_STILL;
}
template <int D> DEV void load_queries(uint32_t (*q)[4], const uint16_t *sq, int warp)
{
    constexpr int TURN = key_shape<D>::TURN, L = split_shape<D, false>::LINE_Q;
    int lane = lane_id(), part = warp / 4, col = still_from<D>(part), turning = 32 * part;
    turning += turning < TURN ? 0 : D / 2 - TURN;
    sq += (lane & 15) * L + (lane >> 4 << 3);
#pragma unroll
    for (int i = 0; i < ONE_STEPS; i++)
        ldmatrix4(q[i], sq + (i < 6 ? col + 16 * i : turning + 16 * (i - 6)));
}
template <int D> DEV void scores_one(float *s, const uint32_t (*q)[4], const share &w)
{
    int lane = lane_id(), part = w.warp / 4, key = w.warp % 4 * 8 + (lane & 7);
    float s1[4] = {0, 0, 0, 0};
    const uint16_t *u = (const uint16_t *)(w.k + key * w.line) + still_from<D>(part);
    const uint16_t *made = w.made + key * key_shape<D>::LINE + 32 * part;
#pragma unroll
    for (int i = 0; i < ONE_STEPS; i += 2) {
        uint32_t fb[4];
        ldmatrix4(fb, (i < 6 ? u + 16 * i : made) + (lane >> 3 << 3));
        mma_f16(s, q[i], fb);
        mma_f16(s1, q[i + 1], fb + 2);
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        s[i] += s1[i];
}

/* o += P V for the warp's columns. */
template <int D> DEV void sums(float (*o)[4], const share &w)
{
    using F = split_shape<D, false>;
    int lane = lane_id();
    const uint8_t *v = w.v + (lane & 15) * w.line + 2 * (w.warp * F::COLS + (lane >> 4 << 3));
    const uint16_t *p = w.p + (lane & 15) * LINE_P + (lane >> 4 << 3);
#pragma unroll
    for (int kk = 0; kk < KEYS; kk += 16) {
        uint32_t fa[4];
        ldmatrix4(fa, p + kk);
#pragma unroll
        for (int j = 0; j < F::NT; j += 2) {
            uint32_t fb[4];
            ldmatrix4_t(fb, v + kk * w.line + 16 * j);
            mma_f16(o[j], fa, fb);
            mma_f16(o[j + 1], fa, fb + 2);
        }
    }
}
template <int D, int KIND> DEV void sums_as(float (*o)[4], const share &w)
{
    int lane = lane_id(), e = w.warp * 8 + (lane >> 2);
    const uint8_t *v = w.v + 2 * (lane & 3) * w.line;
    const uint16_t *p = w.p + (lane & 15) * LINE_P + (lane >> 4 << 3);
#pragma unroll
    for (int kk = 0; kk < KEYS; kk += 16, v += 16 * w.line) {
        uint32_t fa[4];
        ldmatrix4(fa, p + kk);
        uint4 a = kv_piece<KIND>(v, e), b = kv_piece<KIND>(v + w.line, e);
        uint4 c = kv_piece<KIND>(v + 8 * w.line, e), d = kv_piece<KIND>(v + 9 * w.line, e);
        uint32_t x[4] = {a.x, a.y, a.z, a.w}, y[4] = {b.x, b.y, b.z, b.w};
        uint32_t z[4] = {c.x, c.y, c.z, c.w}, u[4] = {d.x, d.y, d.z, d.w};
#pragma unroll
        for (int j = 0; j < 8; j++) {
            uint32_t sel = j & 1 ? 0x7632 : 0x5410;
            uint32_t fb[2] = {pick_bytes(x[j / 2], y[j / 2], sel),
                              pick_bytes(z[j / 2], u[j / 2], sel)};
            mma_f16(o[j], fa, fb);
        }
    }
}

template <int D> DEV void scores_any(float *s, const share &w, int kind)
{
    switch (kind) {
#define DO(k)                                                                                      \
    case k:                                                                                        \
        scores_as<D, k>(s, w);                                                                     \
        break;
        EACH_FORMAT(DO)
#undef DO
    }
}
template <int D> DEV void sums_any(float (*o)[4], const share &w, int kind)
{
    switch (kind) {
#define DO(k)                                                                                      \
    case k:                                                                                        \
        sums_as<D, k>(o, w);                                                                       \
        break;
        EACH_FORMAT(DO)
#undef DO
    }
}

#endif
