/* split512.cu - attention of few rows on the tensor cores in heads of 512: keys and values of one
 * format, Q8_0, Q4_0 or TQ3_0; or one stream of Q8_0 or Q4_0.
 *
 *     S^T [16 keys x 8 heads] = K Q^T        O^T [512 x 8 heads] += V^T P^T
 *     each warp: its 256 elements            each warp: its 256 columns, 64 registers a lane
 *
 *     chunk   |0 1 2 3 4 5 6 7|0 1 2 3 4 5 6 7|0 1 ..     tiles of 16 keys, by pair of warps
 *
 * A block has one row and eight of its heads; keys are the rows of the products, as in split8.cu. A
 * pair of warps owns a tile of 16 keys from the first copy to the last product; each warp has half
 * of the head. The two add their halves of S through shared memory, and both make the probabilities
 * in the registers that multiply them. Each pair has a ring of units of 16 rows, keys and values in
 * turn (one stream: both in one unit), and waits for no other pair: a unit is refilled after the
 * barriers that a tile has anyway. The pairs take the tiles of a chunk in turn; at its end their
 * results are added in the order of pairs. A chunk's length depends on the row's keys alone
 * (row_chunk in attend.cuh), so a row's bits do not depend on other rows or the grid.
 *
 * Codes of Q8_0 and Q4_0 are multiplied as int8, with queries as two int8 each: finer than f16, and
 * a third fewer instructions. One stream (keys.cuh): the halves of a turning pair are 256 elements,
 * eight blocks, apart. A lane has both and makes keys in registers; queries of still dims have the
 * keys' weight.
 */
#include "backend/cuda/attend/keys.cuh"
#include "backend/cuda/attend/kv_pieces.cuh"
#include "backend/cuda/attend/launch_attend.h"

static constexpr float LOG2E = 1.4426950408889634f; /* scores are scaled for exp2 */

enum {
    D = 512,
    G = SPLIT512_PAIRS, /* pairs of warps of a block */
    KEYS = 16,          /* of a tile */
    PAIRS = 8,          /* heads of a block */
    LINE_Q = D + 32,
    TURN = key_shape<D>::TURN,
    UNITS = D / 64, /* of columns of O, 64 each: two blocks of a value */
    STAGES_MIN = 2,
    STAGES_MAX = 6,
    PARTS = UNITS / 2 * 4,        /* of a lane's O, four floats each: half of the head's columns */
    MERGE_BYTES = PARTS * 32 * 16 /* of a pair of warps: half of its O */
};
/* This warp's pair, and its half of the head. */
struct warp_role {
    int pair, side;
};

/* Shared memory beside the rings. */
struct split512_shared {
    uint16_t *q;    /* [PAIRS][LINE_Q], 16 bytes a piece: f16, or two int8 per element */
    float *q_scale; /* [PAIRS], of the int8 queries */
    float4 *halves; /* [2][32], of a pair: scores of each half of the head, by lanes; before that,
                       of one stream, turns of the tile's multiple of 32, each warp its own 16 */
    float4 *place, *weight; /* one stream: cosines and sines of 32 places, weights; by pieces */
};
/* The pairs' largest scores and sums of head m lie behind its query. */
DEV float *top_of(const split512_shared &mem, int m)
{
    return (float *)(mem.q + m * LINE_Q + D);
}
DEV float *total_of(const split512_shared &mem, int m)
{
    return top_of(mem, m) + 8;
}
/* Places lie an odd multiple of 64 bytes apart, so that two of them share no bank. */
enum { PLACE_LINE = 36, WEIGHTS = 32 };
static constexpr __host__ __device__ int fixed_bytes(bool one)
{
    return PAIRS * (LINE_Q * 2 + (int)sizeof(float)) +
           (64 * G + (one ? 32 * PLACE_LINE + WEIGHTS : 0)) * (int)sizeof(float4);
}

/* ---- Copies -------------------------------------------------------------------------------- */

/* A pair's ring, and what it copies next: tile by tile, keys before values. */
struct ring {
    uint8_t *units;
    const uint8_t *k, *v; /* of one KV head */
    int t, from, until;
    key_walk next; /* at key t */
    int stage, stages;
    bool values;
    int own_from; /* keys from there on are the row's own */
};

/* The warp's eight rows of the tile at t. They lie side by side in the store, so 32 lanes request
 * 512 neighbouring bytes: requests of less than a line are limited by their number. Rows outside
 * [from, until) are copies of one inside: finite, and hidden by the softmax. */
template <int KIND>
DEV void copy_rows(uint8_t *to, const uint8_t *head, const ring &r, int side, const attend_args &a,
                   int row_of_pass)
{
    constexpr int BYTES = row_bytes<KIND, D>, LINE = line_bytes(BYTES), PIECES = BYTES / 16;
    constexpr int ALL = KEYS / 2 * PIECES;
    static_assert(LINE == BYTES + 16, "a row's place in shared memory");
    int lane = lane_id(), row0 = KEYS / 2 * side;
    to += row0 * LINE;
    if (r.t >= r.from && r.t + KEYS <= min(r.until, r.own_from) && keys_adjoin(r.next, KEYS)) {
        const uint8_t *src =
            opaque(head + (uint64_t)(uint32_t)(r.next.place[0] + row0) * BYTES + 16 * lane);
        to += 16 * lane;
#pragma unroll
        for (int i = 0; i < ALL; i += 32)
            if (i + 32 <= ALL || i + lane < ALL)
                copy16_async(to + 16 * (i + (i + lane) / PIECES), src + 16 * i, true);
        return;
    }
#pragma unroll 1
    for (int row = 0; row < KEYS / 2; row++) {
        int k = min(max(row0 + row, r.from - r.t), r.until - 1 - r.t);
        int place = key_place(r.next, k);
        if (r.t + k >= r.own_from)
            place = row_key_place(a.kv, r.next.page, a.st.rows, row_of_pass, r.t + k);
        const uint8_t *src = head + (uint64_t)(uint32_t)place * BYTES;
#pragma unroll 1
        for (int i = lane; i < PIECES; i += 32)
            copy16_async(to + row * LINE + 16 * i, src + 16 * i, true);
    }
}

/* The next unit, as a group of copies. */
template <int KIND, bool ONE>
DEV void copy_unit(ring *r, int side, const attend_args &a, int row_of_pass)
{
    constexpr int UNIT = KEYS * line_bytes(row_bytes<KIND, D>);
    if (r->t < r->until) {
        copy_rows<KIND>(r->units + r->stage * UNIT, r->values ? r->v : r->k, *r, side, a,
                        row_of_pass);
        if (ONE || r->values) {
            r->t += G * KEYS;
            key_walk_on(&r->next, G * KEYS, r->t, r->until);
        }
        if (!ONE)
            r->values = !r->values;
    }
    copy_commit();
    r->stage = r->stage + 1 == r->stages ? 0 : r->stage + 1;
}

/* ---- Keys of one stream -------------------------------------------------------------------- */

/* Entry i of a table in the order of pieces, [block][register][lane's quarter]: its two dims. */
DEV uint2 entry_dims(int kind, int i)
{
    int e = 4 * (i >> 4) + (i & 3), k = i >> 2 & 3;
    return make_uint2((uint32_t)key_order(kind, e, 2 * k), (uint32_t)key_order(kind, e, 2 * k + 1));
}

/* By all threads of a block. */
template <int KIND> DEV void load_turns(const split512_shared &mem, const dev_kv &kv)
{
    for (int i = (int)threadIdx.x; i < 32 * 32; i += 64 * G) {
        uint2 d = entry_dims(KIND, i & 31);
        const float *t = kv.turns + 2 * (i >> 5) * TURN;
        mem.place[(i >> 5) * PLACE_LINE + (i & 31)] =
            make_float4(t[d.x], t[TURN + d.x], t[d.y], t[TURN + d.y]);
    }
    if ((int)threadIdx.x < WEIGHTS) {
        uint2 d = entry_dims(KIND, (int)threadIdx.x);
        const float *w = kv.k_weight;
        mem.weight[threadIdx.x] = make_float4(w[d.x], w[D / 2 + d.x], w[d.y], w[D / 2 + d.y]);
    }
}

/* Turns pieces of values into pieces of keys: low and high halves of the same pairs. */
DEV void turn_piece(uint4 *low, uint4 *high, const float4 *weight, const float4 *base,
                    const float4 *place)
{
    uint32_t a[4] = {low->x, low->y, low->z, low->w}, b[4] = {high->x, high->y, high->z, high->w};
#pragma unroll
    for (int k = 0; k < 4; k++) {
        float4 w = weight[4 * k], c = turns_add(base[4 * k], place[4 * k]);
        float a0 = mul_rn(f16_to_f32(a[k] & 0xffff), w.x), a1 = mul_rn(f16_to_f32(a[k] >> 16), w.z);
        float b0 = mul_rn(f16_to_f32(b[k] & 0xffff), w.y), b1 = mul_rn(f16_to_f32(b[k] >> 16), w.w);
        a[k] = f32x2_to_f16(fma_rn(a0, c.x, -mul_rn(b0, c.y)), fma_rn(a1, c.z, -mul_rn(b1, c.w)));
        b[k] = f32x2_to_f16(fma_rn(a0, c.y, mul_rn(b0, c.x)), fma_rn(a1, c.w, mul_rn(b1, c.z)));
    }
    *low = make_uint4(a[0], a[1], a[2], a[3]);
    *high = make_uint4(b[0], b[1], b[2], b[3]);
}

/* ---- A tile -------------------------------------------------------------------------------- */

/* The row of a block. */
struct row_view {
    int r, lo, hi;
    int h0, n_pairs;
};

/* Piece 4b + t of the lane's two keys, g and g + 8. */
template <int KIND> DEV void key_pieces(uint4 *x, uint4 *y, const uint8_t *tile, int b)
{
    const uint8_t *k = tile + (lane_id() >> 2) * line_bytes(row_bytes<KIND, D>);
    *x = key_piece<KIND>(k, b, lane_id() & 3);
    *y = key_piece<KIND>(k + 8 * line_bytes(row_bytes<KIND, D>), b, lane_id() & 3);
}

/* s += block b of keys times queries; even and odd products have separate sums. */
DEV void score_block(float *s, float *s1, uint4 x, uint4 y, const uint16_t *q)
{
    uint4 z = *(const uint4 *)q;
    uint32_t fa[4] = {x.x, y.x, x.y, y.y}, ga[4] = {x.z, y.z, x.w, y.w};
    uint32_t fb[2] = {z.x, z.y}, gb[2] = {z.z, z.w};
    mma_f16(s, fa, fb);
    mma_f16(s1, ga, gb);
}

/* Codes of Q8_0 and Q4_0 are multiplied as int8 with queries q_scale (256 high + low): exact sums,
 * which are then multiplied by the scales. */
template <int KIND> static constexpr bool in_int8 = KIND == KV_Q8_0 || KIND == KV_Q4_0;

/* Codes of piece 4b + t and its block's scale; those of Q4_0 times 16. */
template <int KIND> DEV float key_codes(uint32_t *x, const uint8_t *row, int b, int t)
{
    const uint32_t *w = (const uint32_t *)row;
    int odd = b & 1;
    uint32_t scale;
    if (KIND == KV_Q8_0) {
        int at = 17 * (b >> 1) + 8 * odd;
        scale = w[at];
        x[0] = (w + (1 + 2 * t + (t >> 1)))[at];
        x[1] = (w + (2 + 2 * t - (t >> 1)))[at];
    } else {
        int at = 9 * (b >> 1) + 4 * odd;
        scale = w[at];
        x[0] = (w + (1 + t))[at];
    }
    if (!odd)
        x[0] = pick_bytes(x[0], scale, t == 3 ? 0x7610 : 0x3210);
    if (KIND == KV_Q4_0) {
        uint32_t u = x[0];
        x[0] = (u << 4 & 0xf0f0f0f0u) ^ 0x80808080u;
        x[1] = (u & 0xf0f0f0f0u) ^ 0x80808080u;
    }
    return f16_to_f32(odd ? scale >> 16 : scale & 0xffff);
}
/* The element of a piece that is byte n of key_codes. */
DEV int code_order(int kind, int n)
{
    return kind == KV_Q4_0 ? (n >> 1 & 1) + 4 * (n & 1) + 2 * (n >> 2) : n;
}

/* The same of codes; k: the lane's row of the first eight keys. */
template <int KIND>
DEV void score_codes(float *s, const uint8_t *k, int b, int t, const uint16_t *q)
{
    constexpr int LINE = line_bytes(row_bytes<KIND, D>);
    uint32_t x[2], y[2];
    float d0 = key_codes<KIND>(x, k, b, t), d1 = key_codes<KIND>(y, k + 8 * LINE, b, t);
    uint4 z = *(const uint4 *)q;
    uint32_t fa[4] = {x[0], y[0], x[1], y[1]}, high[2] = {z.x, z.y}, low[2] = {z.z, z.w};
    int c[4], e[4];
    mma_s8_k32(c, fa, high, 0);
    mma_s8_k32(e, fa, low, 0);
#pragma unroll
    for (int i = 0; i < 4; i++)
        s[i] = fma_rn((float)(256 * c[i] + e[i]), i < 2 ? d0 : d1, s[i]);
}

/* Turning blocks: 0 and 8 by the first warp, 1 and 9 by the second. */
template <int KIND>
DEV void scores_turning(float (*s)[4], const uint8_t *tile, const attend_args &a,
                        const split512_shared &mem, int side, int pos0)
{
    int lane = lane_id(), t = lane & 3, pos = pos0 + (lane >> 2);
    uint4 x[2][2]; /* [key][half] */
    key_pieces<KIND>(&x[0][0], &x[1][0], tile, side);
    key_pieces<KIND>(&x[0][1], &x[1][1], tile, side + 8);
    float4 *turns = mem.halves + 32 * side;
    uint2 d = entry_dims(KIND, 16 * side + (lane >> 1));
    float2 c;
    turn_of(pos0 & ~31, a.kv.inv_freq[lane & 1 ? d.y : d.x], &c.y, &c.x);
    __syncwarp(); /* all lanes have read the previous turns */
    ((float2 *)turns)[lane] = c;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 2; i++)
        turn_piece(&x[i][0], &x[i][1], mem.weight + 16 * side + t, turns + t,
                   mem.place + ((pos + 8 * i) & 31) * PLACE_LINE + 16 * side + t);
    const uint16_t *q = mem.q + (lane >> 2) * LINE_Q + 8 * t + 32 * side;
    score_block(s[0], s[1], x[0][0], x[1][0], q);
    score_block(s[0], s[1], x[0][1], x[1][1], q + D / 2);
}

/* s: 16 keys x 8 heads, over the warp's half of the head; even and odd products have separate sums.
 * One stream: the first key has position pos0.
 */
template <int KIND, bool ONE>
DEV void half_scores(float *s, const uint8_t *tile, const attend_args &a,
                     const split512_shared &mem, int side, int pos0)
{
    constexpr int LINE = line_bytes(row_bytes<KIND, D>);
    constexpr bool CODES = in_int8<KIND>;
    int g = lane_id() >> 2, t = lane_id() & 3;
    const uint16_t *q = mem.q + g * LINE_Q + 8 * t + D / 2 * side;
    const uint8_t *half = tile + side * row_bytes<KIND, D / 2>;
    float part[2][4], code[2][4];
#pragma unroll
    for (int i = 0; i < 8; i++)
        part[i >> 2][i & 3] = code[i >> 2][i & 3] = 0;
    if constexpr (ONE)
        scores_turning<KIND>(part, tile, a, mem, side, pos0);
#pragma unroll
    for (int b = ONE ? 2 : 0; b < D / 64; b++) {
        if constexpr (CODES) {
            score_codes<KIND>(code[b & 1], half + g * LINE, b, t, q + 32 * b);
        } else {
            uint4 x, y;
            key_pieces<KIND>(&x, &y, half, b);
            score_block(part[0], part[1], x, y, q + 32 * b);
        }
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        s[i] = CODES ? (code[0][i] + code[1][i]) * mem.q_scale[2 * t + (i & 1)] : 0;
        if (ONE || !CODES)
            s[i] += part[0][i] + part[1][i];
    }
}

/* A lane's heads 2t and 2t + 1: the score that exponentials are relative to, and its keys' share of
 * their sums. */
struct warp_sums {
    float top[2], sum[2];
};

/* Scores to probabilities, as the second factor of P V. The reference score moves only when a score
 * is above it by more than 8 in base 2, for which f16 has headroom; then O shrinks by `keep`.
 * Returns whether it moved for any head. */
DEV bool probabilities(uint32_t *p, float *keep, float *s, warp_sums *w, const row_view &row,
                       int t0)
{
    const float headroom = 8;
    if (t0 < row.lo || t0 + KEYS > row.hi) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int key = t0 + (lane_id() >> 2) + 8 * i;
            if (key < row.lo || key >= row.hi)
                s[2 * i] = s[2 * i + 1] = -INFINITY;
        }
    }
    bool moves = false;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float best = fmaxf(s[i], s[i + 2]);
#pragma unroll
        for (int m = 4; m < 32; m *= 2)
            best = fmaxf(best, shfl_xor_f32(best, m));
        float was = w->top[i];
        best = best > was + headroom ? best : was;
        float zero = best == -INFINITY ? 0 : best; /* no infinity minus itself */
        keep[i] = best == was ? 1 : fast_exp2(was - zero);
        moves = moves || best != was;
        s[i] = fast_exp2(s[i] - zero);
        s[i + 2] = fast_exp2(s[i + 2] - zero);
        w->top[i] = best;
        w->sum[i] = w->sum[i] * keep[i] + (s[i] + s[i + 2]);
    }
    p[0] = transpose8(f32x2_to_f16(s[0], s[1]));
    p[1] = transpose8(f32x2_to_f16(s[2], s[3]));
    return warp_any(moves);
}

/* o += V^T P^T, the warp's half of the columns: piece 8u + g of each value, its elements two to a
 * product. */
template <int KIND> DEV void sums(float (*o)[4], const uint32_t *p, const uint8_t *tile, int side)
{
    constexpr int LINE = line_bytes(row_bytes<KIND, D>);
    int lane = lane_id();
    const uint8_t *v = tile + side * row_bytes<KIND, D / 2> + 2 * (lane & 3) * LINE;
#pragma unroll
    for (int u = 0; u < UNITS / 2; u++) {
        uint32_t x[8], y[8];
        value_pieces<KIND>(x, v, v + LINE, u, lane >> 2);
        value_pieces<KIND>(y, v + 8 * LINE, v + 9 * LINE, u, lane >> 2);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            uint32_t fa[4] = {x[2 * j], x[2 * j + 1], y[2 * j], y[2 * j + 1]};
            mma_f16(o[4 * u + j], fa, p);
        }
    }
}

/* ---- What a chunk leaves ------------------------------------------------------------------- */

/* Adds up O and the sums of all pairs, in the order of pairs, and writes them to part c of the row;
 * half of O at a time. All warps call. `room`: the memory of their rings. */
template <int KIND>
DEV void leave_part(float (*o)[4], warp_sums *w, const split512_args &args,
                    const split512_shared &mem, float4 *room, const row_view &row, warp_role at,
                    int c)
{
    constexpr int HALF = PARTS / 2;
    int lane = lane_id(), g = lane >> 2, t = lane & 3;
    float keep[2], *to[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
#pragma unroll
        for (int m = 4; m < 32; m *= 2)
            w->sum[i] += shfl_xor_f32(w->sum[i], m);
        if (g == 0 && at.side == 0) {
            top_of(mem, 2 * t + i)[at.pair] = w->top[i];
            total_of(mem, 2 * t + i)[at.pair] = w->sum[i];
        }
    }
    __syncthreads(); /* no warp reads its ring after this */
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const float *top = top_of(mem, 2 * t + i), *sum = total_of(mem, 2 * t + i);
        float best = -INFINITY, total = 0;
        for (int k = 0; k < G; k++)
            best = fmaxf(best, top[k]);
        float zero = best == -INFINITY ? 0 : best;
        for (int k = 0; k < G; k++)
            total += sum[k] * fast_exp2(top[k] - zero);
        keep[i] = fast_exp2(w->top[i] - zero);
        to[i] = 2 * t + i < row.n_pairs ? part_at(args.a, args.parts, row.r, row.h0 + 2 * t + i, c)
                                        : NULL;
        if (threadIdx.x < 32 && g == 0 && to[i])
            *(float2 *)(to[i] + D) = make_float2(best / LOG2E, total);
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
#pragma unroll
        for (int j = 0; j < HALF; j++) {
            float *x = o[HALF * half + j];
            room[((2 * at.pair + at.side) * HALF + j) * 32 + lane] =
                make_float4(x[0] * keep[0], x[1] * keep[1], x[2] * keep[0], x[3] * keep[1]);
        }
        __syncthreads();
        static_assert(HALF == G, "a warp adds up one of a side's");
        int i = 2 * at.pair + at.side;
        int j = PARTS * (i / HALF) + HALF * half + i % HALF; /* of the head's */
        float4 x = make_float4(0, 0, 0, 0);
#pragma unroll
        for (int k = 0; k < G; k++) {
            float4 y = room[(2 * k * HALF + i) * 32 + lane];
            x = make_float4(x.x + y.x, x.y + y.y, x.z + y.z, x.w + y.w);
        }
        int first = value_order(KIND, 8 * (j / 4) + g, 2 * (j % 4));
        if (to[0])
            *(float2 *)(to[0] + first) = make_float2(x.x, x.z);
        if (to[1])
            *(float2 *)(to[1] + first) = make_float2(x.y, x.w);
        __syncthreads();
    }
}

/* Query of head m in the element order of key pieces, by a warp; zeros if the head is absent. A
 * piece has four pairs of neighbouring elements, 1 or 4 places apart. */
template <int KIND, bool ONE>
DEV void load_query(const split512_shared &mem, const row_view &row, const attend_args &a, int m)
{
    constexpr bool far = KIND == KV_Q4_0 || KIND == KV_TQ3_0;
    constexpr float STEPS = 32512; /* 127 * 256 */
    int lane = lane_id();
    const float *q = a.q.at + row.r * a.q.stride + (row.h0 + m) * D;
    float scale = a.scale * LOG2E, x[2][8], most = 0, nan = 0;
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int at = key_order(KIND, lane + 32 * n, far ? j : 2 * j);
            float2 u = make_float2(0, 0);
            if (m < row.n_pairs)
                u = *(const float2 *)(q + at);
            if (ONE && at % (D / 2) >= TURN) { /* still dims have the keys' weight */
                float2 w = *(const float2 *)(a.kv.k_weight + at);
                u.x *= w.x, u.y *= w.y;
            }
            u.x *= scale, u.y *= scale;
            most = fmaxf(most, fmaxf(fabsf(u.x), fabsf(u.y)));
            nan += u.x - u.x + (u.y - u.y);
            x[n][far ? j : 2 * j] = u.x;
            x[n][far ? j + 4 : 2 * j + 1] = u.y;
        }
    /* NaN and infinity spread to every score; queries below 2^-100 count as zero. */
    most = warp_max(most);
    float steps = most > 0x1p-100f ? STEPS / most : 0, step = most / STEPS + warp_sum(nan);
    if (in_int8<KIND> && lane == 0)
        mem.q_scale[m] = KIND == KV_Q4_0 ? step / 16 : step;
#pragma unroll
    for (int n = 0; n < 2; n++) {
        uint32_t u[4] = {0, 0, 0, 0};
        int e = lane + 32 * n;
        if (in_int8<KIND> && !(ONE && (e & 31) < 8)) {
#pragma unroll
            for (int i = 0; i < 8; i++) {
                int v = (int)rintf(x[n][code_order(KIND, i)] * steps), high = (v + 128) >> 8;
                u[i >> 2] |= (uint32_t)(high & 0xff) << 8 * (i & 3);
                u[2 + (i >> 2)] |= (uint32_t)(v & 0xff) << 8 * (i & 3);
            }
        } else {
#pragma unroll
            for (int i = 0; i < 4; i++)
                u[i] = f32x2_to_f16(x[n][2 * i], x[n][2 * i + 1]);
        }
        *(uint4 *)(mem.q + m * LINE_Q + 8 * e) = make_uint4(u[0], u[1], u[2], u[3]);
    }
}

/* ---- The kernel ---------------------------------------------------------------------------- */

/* o[r, h] = sum_t softmax_t(scale q[r, h] . k[t, g]) v[t, g], in parts
 * grid:   KV head x chunks in turn x (row, eight heads); 8 pairs of warps
 * shared: Q, rings of 2 to 6 units a pair: 100 to 225 KB
 * bound:  reading keys and values; decoding them, where they have few bytes */
template <int KIND, bool ONE>
__global__ void __launch_bounds__(64 * G, 1) split512_kernel(split512_args x)
{
    const attend_args &a = x.a;
    constexpr int UNIT = KEYS * line_bytes(row_bytes<KIND, D>);
    DYN_SHARED(uint8_t, memory);
    split512_shared mem;
    int warp = (int)threadIdx.x >> 5, lane = lane_id(), group = a.n_head / a.kv.n_head_kv;
    warp_role at = {warp >> 1, warp & 1};
    mem.q = (uint16_t *)memory;
    mem.q_scale = (float *)(mem.q + PAIRS * LINE_Q);
    mem.halves = (float4 *)(mem.q_scale + PAIRS) + 64 * at.pair;
    mem.place = (float4 *)(mem.q_scale + PAIRS) + 64 * G;
    mem.weight = mem.place + 32 * PLACE_LINE;
    uint8_t *rings = memory + fixed_bytes(ONE);
    int eights = (group + PAIRS - 1) / PAIRS, eight = (int)blockIdx.z % eights;
    row_view row;
    row.r = x.parts.row0 + (int)blockIdx.z / eights;
    row.h0 = (int)blockIdx.x * group + eight * PAIRS;
    row.n_pairs = min((int)PAIRS, group - eight * PAIRS);
    grid_trigger();

    /* The step was uploaded before the pass: no wait for the previous kernel. */
    sight s = row_sight(a.st.rows, row.r, a.kv.window);
    row.lo = s.lo, row.hi = s.hi;
    int committed = a.st.rows.first[row.r];
    dev_kv_base base = store_of(a.st, a.st.rows.seq[row.r], a.kv);
    int chunk = row_chunk(x.parts, s), c0 = s.lo / chunk, c1 = (s.hi - 1) / chunk + 1;
    ring r;
    r.units = rings + at.pair * x.stages * UNIT;
    r.k = head_rows(a.kv, base.k, (int)blockIdx.x, row_bytes<KIND, D>);
    r.v = head_rows(a.kv, base.v, (int)blockIdx.x, row_bytes<KIND, D>);
    r.stages = x.stages;
    r.own_from = own_keys_from(a.st.rows, row.r);
    bool waited = false;

#pragma unroll 1
    for (int c = c0 + (int)blockIdx.y; c < c1; c += (int)gridDim.y) {
        r.from = max(s.lo, c * chunk), r.until = min(s.hi, (c + 1) * chunk);
        /* Whole turns of all pairs; where a window begins, some see nothing in the first. */
        r.t = r.from / SPLIT512_TURN * SPLIT512_TURN + at.pair * KEYS;
        r.next = key_walk_at(a.kv, base.page, min(r.t, r.until - 1) & ~(KEYS - 1));
        r.stage = 0, r.values = false;
        int t0 = r.t, stage = 0;
        /* Keys of earlier passes are requested at once, keys of this pass after the previous
         * kernel. */
#pragma unroll 1
        for (int i = 0; i < x.stages; i++) {
            if (!waited && min(r.until, r.t + KEYS) > committed) {
                grid_wait();
                waited = true;
            }
            copy_unit<KIND, ONE>(&r, at.side, a, row.r);
        }
        if (!waited)
            grid_wait();
        waited = true;
        if (c == c0 + (int)blockIdx.y) {
            if (warp < PAIRS)
                load_query<KIND, ONE>(mem, row, a, warp);
            if (ONE)
                load_turns<KIND>(mem, a.kv);
            __syncthreads();
        }
        warp_sums w = {{-INFINITY, -INFINITY}, {0, 0}};
        float o[PARTS][4];
#pragma unroll
        for (int j = 0; j < PARTS; j++)
            o[j][0] = o[j][1] = o[j][2] = o[j][3] = 0;
#pragma unroll 1
        for (bool more = false; t0 < r.until; t0 += G * KEYS) {
            float score[4], keep[2];
            uint32_t p[2];
            int pos0 = ONE ? key_pos(base.page, t0) : 0; /* requested before the wait */
            copies_wait(x.stages - 1 - more);
            some_sync(1 + at.pair, 64); /* keys have arrived; the tile before has been read */
            if (more)
                copy_unit<KIND, ONE>(&r, at.side, a, row.r);
            more = true;
            half_scores<KIND, ONE>(score, r.units + stage * UNIT, a, mem, at.side, pos0);
            __syncwarp(); /* all lanes have read the turns */
            mem.halves[32 * at.side + lane] = make_float4(score[0], score[1], score[2], score[3]);
            if (!ONE) {
                stage = stage + 1 == x.stages ? 0 : stage + 1;
                copies_wait(x.stages - 2);
            }
            some_sync(1 + at.pair, 64); /* scores are complete; two streams: values have arrived */
            if (!ONE)
                copy_unit<KIND, ONE>(&r, at.side, a, row.r);
            float4 other = mem.halves[32 * (1 - at.side) + lane];
            score[0] += other.x, score[1] += other.y, score[2] += other.z, score[3] += other.w;
            if (probabilities(p, keep, score, &w, row, t0)) {
#pragma unroll
                for (int j = 0; j < PARTS; j++) {
                    o[j][0] *= keep[0], o[j][1] *= keep[1];
                    o[j][2] *= keep[0], o[j][3] *= keep[1];
                }
            }
            sums<KIND>(o, p, r.units + stage * UNIT, at.side);
            stage = stage + 1 == x.stages ? 0 : stage + 1;
        }
        /* Equal numbers of barriers for every pair: compute-sanitizer takes a pair with fewer for
         * one that has not reached the block's next barrier. */
#pragma unroll 1
        for (; t0 - at.pair * KEYS < r.until; t0 += SPLIT512_TURN) {
            some_sync(1 + at.pair, 64);
            some_sync(1 + at.pair, 64);
        }
        leave_part<KIND>(o, &w, x, mem, (float4 *)rings, row, at, c - c0);
    }
    if (!waited)
        grid_wait(); /* the next kernel relies on it */
}

/* ---- Host side ----------------------------------------------------------------------------- */

static int shared_bytes(const dev_kv &kv, int stages)
{
    int bytes = stages * KEYS * line_bytes(kv.k_bytes);
    return fixed_bytes(kv.single) + G * (bytes > MERGE_BYTES ? bytes : (int)MERGE_BYTES);
}

extern "C" int cu_split512_stages(dev_kv kv, int largest)
{
    bool kind = kv.k_kind == KV_Q8_0 || kv.k_kind == KV_Q4_0;
    if (kv.single)
        kind = kind && !kv.k_rot && kv.n_turning == TURN && kv.turns;
    else
        kind = (kind || kv.k_kind == KV_TQ3_0) && kv.k_kind == kv.v_kind;
    if (!kind || kv.head_dim != D)
        return 0;
    int n = STAGES_MAX;
    while (n && shared_bytes(kv, n) > largest)
        n--;
    return n < STAGES_MIN ? 0 : n;
}

extern "C" int cu_split512_init(int largest)
{
    return allow_shared(split512_kernel<KV_Q8_0, false>, largest) |
           allow_shared(split512_kernel<KV_Q4_0, false>, largest) |
           allow_shared(split512_kernel<KV_TQ3_0, false>, largest) |
           allow_shared(split512_kernel<KV_Q8_0, true>, largest) |
           allow_shared(split512_kernel<KV_Q4_0, true>, largest);
}

template <int KIND, bool ONE> static void launch_of(cudaStream_t s, const split512_args &x)
{
    int group = x.a.n_head / x.a.kv.n_head_kv, eights = (group + PAIRS - 1) / PAIRS;
    dim3 grid((unsigned)x.a.kv.n_head_kv, (unsigned)x.n_block, (unsigned)(x.parts.n_rows * eights));
    size_t bytes = (size_t)shared_bytes(x.a.kv, x.stages);
    LAUNCH((split512_kernel<KIND, ONE>), grid, dim3(64 * G), bytes, s, x);
}

extern "C" void cu_split512(cudaStream_t s, split512_args x)
{
    if (x.a.kv.k_kind == KV_TQ3_0)
        launch_of<KV_TQ3_0, false>(s, x);
    else if (x.a.kv.k_kind == KV_Q8_0)
        x.a.kv.single ? launch_of<KV_Q8_0, true>(s, x) : launch_of<KV_Q8_0, false>(s, x);
    else
        x.a.kv.single ? launch_of<KV_Q4_0, true>(s, x) : launch_of<KV_Q4_0, false>(s, x);
}
