/* skip_tile.cuh - the products of skip.cu, as split8.cu has them: keys are the 16 rows of a product
 * and pairs (row, head) its 8 columns, so the eight elements that a lane decodes (kv_pieces.cuh) go
 * into products whole.
 *
 *     S^T [16 keys x 8 pairs] = K Q^T        O^T [64 columns x 8 pairs] += V^T P^T
 *
 * Queries and results are in the element order of the pieces.
 */
#ifndef BACKEND_CUDA_SKIP_TILE_CUH
#define BACKEND_CUDA_SKIP_TILE_CUH

#include "backend/cuda/attend/kv_pieces.cuh"

/* s: 16 keys x 8 NG pairs, over LENGTH elements of a head. k: the lane's row of the first eight
 * keys, rows LINE bytes apart; q: the lane's share of the first pairs' queries, LINE_Q elements
 * apart. Even and odd products have separate sums: half the latency. */
template <int KIND, int NG, int LENGTH, int LINE, int LINE_Q>
DEV void multiply_keys(float (*s)[4], const uint8_t *k, const uint16_t *q)
{
    int t = lane_id() & 3;
    float s1[NG][4];
#pragma unroll
    for (int n = 0; n < NG; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            s[n][i] = s1[n][i] = 0;
#pragma unroll
    for (int b = 0; b < LENGTH / 32; b++) {
        uint4 x = key_piece<KIND>(k, b, t), y = key_piece<KIND>(k + 8 * LINE, b, t);
        uint32_t fa[4] = {x.x, y.x, x.y, y.y}, ga[4] = {x.z, y.z, x.w, y.w};
#pragma unroll
        for (int n = 0; n < NG; n++) {
            uint4 z = *(const uint4 *)(q + 8 * n * LINE_Q + 32 * b);
            uint32_t fb[2] = {z.x, z.y}, gb[2] = {z.z, z.w};
            mma_f16(s[n], fa, fb);
            mma_f16(s1[n], ga, gb);
        }
    }
#pragma unroll
    for (int n = 0; n < NG; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            s[n][i] += s1[n][i];
}

/* o += V^T P^T of N keys: piece 8 c + g of each value, its elements two to a product. v: the lane's
 * row of the first keys; p: its probabilities of the first pairs. */
template <int KIND, int NG, int N, int LINE, int LINE_P>
DEV void multiply_values(float (*o)[4][4], const uint8_t *v, const uint16_t *p, int c)
{
    int lane = lane_id();
#pragma unroll
    for (int kk = 0; kk < N / 16; kk++, v += 16 * LINE) {
        uint32_t x[8], y[8], fb[NG][2];
#pragma unroll
        for (int n = 0; n < NG; n++) {
            fb[n][0] = *(const uint32_t *)(p + 8 * n * LINE_P + 16 * kk);
            fb[n][1] = *(const uint32_t *)(p + 8 * n * LINE_P + 16 * kk + 8);
        }
        value_pieces<KIND>(x, v, v + LINE, c, lane >> 2);
        value_pieces<KIND>(y, v + 8 * LINE, v + 9 * LINE, c, lane >> 2);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            uint32_t fa[4] = {x[2 * j], x[2 * j + 1], y[2 * j], y[2 * j + 1]};
#pragma unroll
            for (int n = 0; n < NG; n++)
                mma_f16(o[n][j], fa, fb[n]);
        }
    }
}

/* Piece e of a query times scale, in the order of key pieces; zeros if it is not there. A piece has
 * four pairs of neighbouring elements, 1 or 4 places apart. */
DEV uint4 query_piece(const float *q, bool there, int kind, int e, float scale)
{
    bool far = kind == KV_Q4_0 || kind == KV_TQ3_0;
    float2 x[4];
#pragma unroll
    for (int j = 0; j < 4; j++) {
        x[j] = make_float2(0, 0);
        if (there)
            x[j] = *(const float2 *)(q + key_order(kind, e, far ? j : 2 * j));
        x[j].x *= scale, x[j].y *= scale;
    }
    if (far)
        return make_uint4(f32x2_to_f16(x[0].x, x[1].x), f32x2_to_f16(x[2].x, x[3].x),
                          f32x2_to_f16(x[0].y, x[1].y), f32x2_to_f16(x[2].y, x[3].y));
    return make_uint4(f32x2_to_f16(x[0].x, x[0].y), f32x2_to_f16(x[1].x, x[1].y),
                      f32x2_to_f16(x[2].x, x[2].y), f32x2_to_f16(x[3].x, x[3].y));
}

#endif
