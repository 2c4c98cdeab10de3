/* expand.cu - a slice of a store's keys and values, in any format, to two streams of f16: the input
 * of flash*.cu.
 *
 *     store    |............|xxxxxxxxxxxx|xxxxxxxxxxxx|xxxx......|       in any format
 *     scratch               [ k f16, v f16 ]                              one slice of it
 *
 * A prompt's rows read each key hundreds of times. Converting it once, in memory, costs a hundredth
 * of that; converting it in every block that reads it costs more than the products. Scratch holds
 * one slice, never a whole cache. Few rows read the store directly (split8.cu).
 *
 * Rotated streams stay rotated. One stream (keys.cuh) is rotated back, and its keys are made in f32
 * from the stored values, still dims included: queries have no weight here.
 */
#include "backend/cuda/attend/keys.cuh"
#include "backend/cuda/attend/launch_attend.h"

enum {
    THREADS = 256,
    WARPS = THREADS / 32,
    BLOCK_KEYS = 32, /* of a block, which share the angle of the first position */
};

/* Where key t of a head lies in scratch. */
template <int D> DEV uint16_t *made_at(uint16_t *to, const expand_args &a, int t)
{
    return to + ((size_t)blockIdx.y * a.room + (t - a.start)) * D;
}
/* The stored rows of this block's head. */
DEV const uint8_t *stored_rows(const expand_args &a, bool values)
{
    dev_kv_base base = store_of(a.st, a.seq, a.kv);
    return head_rows(a.kv, values ? base.v : base.k, (int)blockIdx.y,
                     values ? a.kv.v_bytes : a.kv.k_bytes);
}

/* ---- Two streams --------------------------------------------------------------------------- */

/* A block's keys of one stream, 8 elements a thread. */
template <int KIND, int D> DEV void expand_keys(const expand_args &a, bool values)
{
    constexpr int PIECES = D / 8, STEP = THREADS / PIECES;
    const uint8_t *rows = stored_rows(a, values);
    int row_bytes = values ? a.kv.v_bytes : a.kv.k_bytes;
    int t0 = a.start + (int)blockIdx.x * BLOCK_KEYS, e = (int)threadIdx.x % PIECES;
    key_walk walk = key_walk_at(a.kv, store_of(a.st, a.seq, a.kv).page, t0);
#pragma unroll
    for (int i = 0; i < BLOCK_KEYS; i += STEP) {
        int k = i + (int)threadIdx.x / PIECES, t = t0 + k;
        if (t >= a.from && t < a.until)
            *(uint4 *)(made_at<D>(values ? a.v : a.k, a, t) + 8 * e) =
                kv_piece<KIND>(rows + (size_t)key_place(walk, k) * row_bytes, e);
    }
}

/* k[h, t] = f16(store's key), v[h, t] = f16(store's value), t = from .. until - 1
 * grid:   32 keys x KV head x (keys, values)
 * shared: none
 * bound:  memory: the store is read once, f16 is written once */
template <int D> __global__ void __launch_bounds__(THREADS) expand_kernel(expand_args a)
{
    grid_trigger();
    grid_wait();
    bool values = blockIdx.z;
    switch (values ? a.kv.v_kind : a.kv.k_kind) {
#define DO(kind)                                                                                   \
    case kind:                                                                                     \
        expand_keys<kind, D>(a, values);                                                           \
        break;
        EACH_FORMAT(DO)
#undef DO
    }
}

/* ---- One stream ---------------------------------------------------------------------------- */

/* Four neighbours of a stored row. */
DEV float4 four_values(const uint8_t *row, int kind, int e)
{
    return make_float4(kv_value(row, kind, e), kv_value(row, kind, e + 1),
                       kv_value(row, kind, e + 2), kv_value(row, kind, e + 3));
}
DEV void put_four(uint16_t *to, float4 x)
{
    *(uint2 *)to = make_uint2(f32x2_to_f16(x.x, x.y), f32x2_to_f16(x.z, x.w));
}
DEV float4 times(float4 a, float4 b)
{
    return make_float4(mul_rn(a.x, b.x), mul_rn(a.y, b.y), mul_rn(a.z, b.z), mul_rn(a.w, b.w));
}
/* One half of four turned pairs: x c + y s. */
DEV float4 turned(float4 x, float4 c, float4 y, float4 s)
{
    return make_float4(fma_rn(x.x, c.x, mul_rn(y.x, s.x)), fma_rn(x.y, c.y, mul_rn(y.y, s.y)),
                       fma_rn(x.z, c.z, mul_rn(y.z, s.z)), fma_rn(x.w, c.w, mul_rn(y.w, s.w)));
}

/* Cosines and sines of four neighbouring pairs, c s c s. */
struct four_turns {
    float4 a, b;
};
/* Turns pairs i .. i + 3 of a head, (low, high), to the position base + (t & 31). */
template <int D>
DEV void turn_four(float4 &low, float4 &high, const dev_kv &kv, int i, int t, four_turns base)
{
    const float *place = kv.turns + 2 * (t & 31) * key_shape<D>::TURN + i;
    float4 c = *(const float4 *)place, s = *(const float4 *)(place + key_shape<D>::TURN);
    float4 a = turns_add(base.a, make_float4(c.x, s.x, c.y, s.y));
    float4 b = turns_add(base.b, make_float4(c.z, s.z, c.w, s.w));
    float4 cs = make_float4(a.x, a.z, b.x, b.z), sn = make_float4(a.y, a.w, b.y, b.w);
    float4 x = low;
    low = turned(x, cs, high, make_float4(-sn.x, -sn.y, -sn.z, -sn.w));
    high = turned(high, cs, x, sn);
}

/* Writes a warp's key and value of u, and overwrites u. turn: of the lane's pairs, if they turn. A
 * block's keys begin at a multiple of 32, and so do its positions: t and the position of t have the
 * same place among 32. */
template <int D>
DEV void put_key(const expand_args &a, float4 (&u)[D / 128], const float4 (&w)[D / 128], int t,
                 four_turns turn)
{
    constexpr int PARTS = D / 128, TURN = key_shape<D>::TURN;
    int lane = lane_id();
    uint16_t *k = made_at<D>(a.k, a, t) + 4 * lane;
#pragma unroll
    for (int i = 0; i < PARTS; i++) {
        if (a.v)
            put_four(made_at<D>(a.v, a, t) + 4 * lane + 128 * i, u[i]);
        u[i] = times(u[i], w[i]);
    }
    if (4 * lane < TURN) /* turning dims lie in the first 128 of a half */
        turn_four<D>(u[0], u[PARTS / 2], a.kv, 4 * lane, t, turn);
#pragma unroll
    for (int i = 0; i < PARTS; i++)
        put_four(k + 128 * i, u[i]);
}

/* k[h, t] = f16(RoPE_t(w u)) of values u as they are stored, v[h, t] = f16(u)
 * grid:   32 keys x KV head; a warp has 4 keys and loads all before it makes the first
 * shared: the turns of the 32 keys' first position
 * bound:  memory for f16; instructions for blocks, whose elements are decoded one by one */
template <int D, bool F16>
__global__ void __launch_bounds__(THREADS) expand_one_kernel(expand_args a)
{
    constexpr int TURN = key_shape<D>::TURN, PARTS = D / 128, MINE = BLOCK_KEYS / WARPS;
    __shared__ __align__(16) float base[2 * TURN];
    grid_trigger();
    grid_wait();
    const uint8_t *rows = stored_rows(a, false);
    const dev_kv_page *page = store_of(a.st, a.seq, a.kv).page;
    int lane = lane_id(), warp = (int)threadIdx.x >> 5, t0 = a.start + (int)blockIdx.x * BLOCK_KEYS;
    const key_walk walk = key_walk_at(a.kv, page, t0);
    uint2 on_the_way[F16 ? MINE : 1][PARTS];
    if (F16) {
#pragma unroll
        for (int n = 0; n < MINE; n++) {
            int k = warp + n * WARPS, t = t0 + k, place = key_place(walk, k);
            const uint8_t *row = rows + (size_t)place * (2 * D) + 8 * lane;
#pragma unroll
            for (int i = 0; i < PARTS; i++)
                on_the_way[n][i] =
                    t >= a.from && t < a.until ? *(const uint2 *)(row + 256 * i) : make_uint2(0, 0);
        }
    }
    tile_turns<D>(base, a.kv, page, t0, a.until, 1);
    float4 w[PARTS];
#pragma unroll
    for (int i = 0; i < PARTS; i++)
        w[i] = *(const float4 *)(a.kv.k_weight + 128 * i + 4 * lane);
    __syncthreads();
    const float4 *angle = (const float4 *)(base + 8 * (lane % (TURN / 4)));
    four_turns turn = {angle[0], angle[1]};
#pragma unroll(F16 ? MINE : 1)
    for (int n = 0; n < MINE; n++) {
        int k = warp + n * WARPS, t = t0 + k;
        if (t < a.from || t >= a.until)
            continue;
        float4 u[PARTS];
#pragma unroll
        for (int i = 0; i < PARTS; i++)
            if (F16) {
                uint2 x = on_the_way[n][i];
                u[i] = make_float4(f16_to_f32(x.x & 0xffff), f16_to_f32(x.x >> 16),
                                   f16_to_f32(x.y & 0xffff), f16_to_f32(x.y >> 16));
            } else {
                const uint8_t *row = rows + (size_t)key_place(walk, k) * a.kv.k_bytes;
                u[i] = four_values(row, a.kv.k_kind, 128 * i + 4 * lane);
                if (a.kv.k_rot)
                    u[i] = rotate_four(u[i], true);
            }
        put_key<D>(a, u, w, t, turn);
    }
}

/* ---- The launcher -------------------------------------------------------------------------- */

static dim3 grid_of(const expand_args &a, unsigned streams)
{
    return dim3((unsigned)((a.until - a.start + BLOCK_KEYS - 1) / BLOCK_KEYS),
                (unsigned)a.kv.n_head_kv, streams);
}
template <int D> static void expand_two(cudaStream_t s, expand_args a)
{
    LAUNCH(expand_kernel<D>, grid_of(a, 2), dim3(THREADS), 0, s, a);
}
template <int D> static void expand_one(cudaStream_t s, expand_args a)
{
    if (a.kv.k_kind == KV_F16)
        LAUNCH((expand_one_kernel<D, true>), grid_of(a, 1), dim3(THREADS), 0, s, a);
    else
        LAUNCH((expand_one_kernel<D, false>), grid_of(a, 1), dim3(THREADS), 0, s, a);
}

extern "C" void cu_expand(cudaStream_t s, expand_args a)
{
    switch (a.kv.head_dim) {
    case 64:
        expand_two<64>(s, a);
        break;
    case 128:
        expand_two<128>(s, a);
        break;
    case 256:
        a.kv.single ? expand_one<256>(s, a) : expand_two<256>(s, a);
        break;
    default:
        a.kv.single ? expand_one<512>(s, a) : expand_two<512>(s, a);
    }
}
