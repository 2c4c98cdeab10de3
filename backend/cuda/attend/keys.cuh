/* keys.cuh - keys made from values, for layers that keep one stream (step.h: kv_view.single).
 *
 *     value  u              as stored
 *     key    RoPE_p(w u)    q . key  =  sum over still dims of (w q) u  +  over turning dims of q k
 *
 *     made   [key][low halves of the turning pairs | high halves], f16
 *
 * Most dims of such heads stand still. Their weight w moves to the queries once, so values serve as
 * their keys. Only turning pairs are made, in f32, and rounded to f16 like any key. Kernels with
 * tiles of 32 keys or more keep them in a separate part of shared memory.
 *
 * The angle of position p is the angle of p & ~31, which a tile shares and a few threads compute in
 * f64 (turn_of), plus the angle of p & 31, from the model's table. All kernels add these two, so a
 * key is bit-identical in every kernel. The position of a key is that of its number, in trees too
 * (key_pos): a page begins at a multiple of 64.
 */
#ifndef BACKEND_CUDA_KEYS_CUH
#define BACKEND_CUDA_KEYS_CUH

#include "backend/cuda/attend/attend.cuh"

/* A warp makes the f32 key of the value in `row`, of any head size: for kernels that are not about
 * tiles. */
DEV void make_plain_key(float *to, const uint8_t *row, const dev_kv &kv, int pos)
{
    int lane = lane_id(), d = kv.head_dim, half = d / 2;
    for (int i = lane; i < d; i += 32)
        to[i] = kv_value(row, kv.k_kind, i);
    __syncwarp();
    if (kv.k_rot)
        for (int i = 4 * lane; i < d; i += 128)
            *(float4 *)(to + i) = rotate_four(*(float4 *)(to + i), true);
    __syncwarp();
    for (int i = lane; i < half; i += 32) {
        float x = to[i] * kv.k_weight[i], y = to[i + half] * kv.k_weight[i + half];
        float sn = 0, cs = 1;
        if (i < kv.n_turning)
            turn_of(pos, kv.inv_freq[i], &sn, &cs);
        to[i] = x * cs - y * sn;
        to[i + half] = x * sn + y * cs;
    }
    __syncwarp();
}

/* Heads of D, a quarter of which turns. */
template <int D> struct key_shape {
    static constexpr int TURN = D / 8, LINE = 2 * TURN + 8; /* pairs; f16 from key to key */
    static constexpr int KEYS = 64 / TURN; /* keys that a warp makes at a time, two pairs a lane */
};

/* Cosines and sines of two neighbouring pairs, c s c s. */
DEV float4 turns_add(float4 a, float4 b)
{
    return make_float4(fma_rn(a.x, b.x, -mul_rn(a.y, b.y)), fma_rn(a.x, b.y, mul_rn(a.y, b.x)),
                       fma_rn(a.z, b.z, -mul_rn(a.w, b.w)), fma_rn(a.z, b.w, mul_rn(a.w, b.z)));
}

/* A lane makes pairs 2e and 2e + 1 of each key. */
template <int D> struct key_maker {
    float2 w_low, w_high;
    int e;
};

template <int D> DEV key_maker<D> key_maker_of(const dev_kv &kv)
{
    key_maker<D> m;
    m.e = lane_id() % (key_shape<D>::TURN / 2);
    m.w_low = *(const float2 *)(kv.k_weight + 2 * m.e);
    m.w_high = *(const float2 *)(kv.k_weight + D / 2 + 2 * m.e);
    return m;
}

/* Of position `place` < 32. */
template <int D> DEV float4 place_turns(const dev_kv &kv, int e, int place)
{
    const float *t = kv.turns + 2 * place * key_shape<D>::TURN + 2 * e;
    float2 c = *(const float2 *)t, s = *(const float2 *)(t + key_shape<D>::TURN);
    return make_float4(c.x, s.x, c.y, s.y);
}

/* Turns of `n` tiles of 32 keys from t0 on, [n][TURN] pairs of cosine and sine, one per thread.
 * Tiles from `until` on have no page, and are not asked for. */
template <int D>
DEV void tile_turns(float *to, const dev_kv &kv, const dev_kv_page *page, int t0, int until, int n)
{
    constexpr int TURN = key_shape<D>::TURN;
    int i = (int)threadIdx.x, t = t0 + i / TURN * 32;
    if (i >= n * TURN)
        return;
    float sn, cs;
    turn_of(t < until ? key_pos(page, t) : 0, kv.inv_freq[i % TURN], &sn, &cs);
    *(float2 *)(to + 2 * i) = make_float2(cs, sn);
}

/* A lane's two turning pairs of a key, low and high halves in f16, from its value u. */
template <int D> DEV uint2 turned_pairs(uint2 u, const key_maker<D> &m, float4 turns)
{
    float a0 = mul_rn(f16_to_f32(u.x & 0xffff), m.w_low.x);
    float a1 = mul_rn(f16_to_f32(u.x >> 16), m.w_low.y);
    float b0 = mul_rn(f16_to_f32(u.y & 0xffff), m.w_high.x);
    float b1 = mul_rn(f16_to_f32(u.y >> 16), m.w_high.y);
    return make_uint2(f32x2_to_f16(fma_rn(a0, turns.x, -mul_rn(b0, turns.y)),
                                   fma_rn(a1, turns.z, -mul_rn(b1, turns.w))),
                      f32x2_to_f16(fma_rn(a0, turns.y, mul_rn(b0, turns.x)),
                                   fma_rn(a1, turns.w, mul_rn(b1, turns.z))));
}
/* The same, from a row of values to a row of `made`. */
template <int D>
DEV void make_key(uint16_t *to, const uint16_t *u, const key_maker<D> &m, float4 turns)
{
    uint2 k = turned_pairs(
        make_uint2(*(const uint32_t *)(u + 2 * m.e), *(const uint32_t *)(u + D / 2 + 2 * m.e)), m,
        turns);
    uint32_t *at = (uint32_t *)to + m.e;
    at[0] = k.x;
    at[key_shape<D>::TURN / 2] = k.y;
}

/* A tile whose keys are made. */
struct key_tile {
    uint16_t *made;
    const uint16_t *u; /* values, `line` f16 elements from one to the next */
    const float *base; /* tile_turns of it */
    int line;
};

/* Makes N rows of the tile, STEP apart, with a half warp or warp each. place(j, row): place_turns
 * of row & 31 for the j-th. */
template <int D, int N, int STEP, class P>
DEV void make_keys(const key_tile &t, const key_maker<D> &m, P place)
{
    constexpr int TURN = key_shape<D>::TURN, LINE = key_shape<D>::LINE;
    int first = ((int)threadIdx.x >> 5) * key_shape<D>::KEYS + lane_id() / (TURN / 2);
#pragma unroll
    for (int j = 0; j < N; j++) {
        int k = first + j * STEP;
        float4 base = *(const float4 *)(t.base + (k / 32 * TURN + 2 * m.e) * 2);
        make_key<D>(t.made + k * LINE, t.u + k * t.line, m, turns_add(base, place(j, k)));
    }
}

/* A stored row to plain f16 values, rotated back if it is stored rotated; by a warp. */
template <int KIND, int D> DEV void plain_row(uint16_t *to, const uint8_t *row, bool rot)
{
    int lane = lane_id_anew();
    uint4 v[D / 256];
#pragma unroll
    for (int i = 0; i < D / 256; i++)
        v[i] = kv_piece<KIND>(row, lane + 32 * i);
    __syncwarp(); /* to may be row */
#pragma unroll
    for (int i = 0; i < D / 256; i++)
        *(uint4 *)(to + 8 * (lane + 32 * i)) = v[i];
    __syncwarp();
    if (!rot)
        return;
#pragma unroll 1
    for (int i = 4 * lane; i < D; i += 128) {
        uint2 u = *(uint2 *)(to + i);
        float4 x = make_float4(f16_to_f32(u.x & 0xffff), f16_to_f32(u.x >> 16),
                               f16_to_f32(u.y & 0xffff), f16_to_f32(u.y >> 16));
        x = rotate_four(x, true);
        *(uint2 *)(to + i) = make_uint2(f32x2_to_f16(x.x, x.y), f32x2_to_f16(x.z, x.w));
    }
    __syncwarp();
}

/* The same for all n_rows rows of a tile, by all warps: a warp has the rows whose keys it makes.
 * `from` and `to` may be equal; rows are line_from bytes and line_to f16 elements apart. */
template <int D>
DEV void plain_rows(uint16_t *to, int line_to, const uint8_t *from, int line_from, int n_rows,
                    const dev_kv &kv)
{
    constexpr int K = key_shape<D>::KEYS;
    int warp = (int)threadIdx.x >> 5, step = (int)blockDim.x / 32 * K;
#pragma unroll 1
    for (int i = 0; i < n_rows / step * K; i++) {
        int k = warp * K + i % K + i / K * step;
        switch (kv.k_kind) {
#define DO(kind)                                                                                   \
    case kind:                                                                                     \
        plain_row<kind, D>(to + k * line_to, from + k * line_from, kv.k_rot);                      \
        break;
            EACH_BUT_F16(DO)
#undef DO
        }
    }
}

#endif
