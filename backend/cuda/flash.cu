/* flash.cu - attention on the f16 tensor cores: f16 keys and values, heads of 64 to 512.
 *
 *            keys t0 .. t0+63
 *          +------------------+     The query rows of a tile are pairs (row, head) that share a KV
 *   pairs  |  S = Q K'        |     head: 16 of one row (decoding, split over chunks of keys), or
 *  16, 64  |                  |     64 of neighbouring rows (prefill). For S the warps divide the
 *          +------------------+     keys, for P V the columns of V, so that no value of K or V is
 *   O += P V    [pairs, head_dim]   read from shared memory more often than the pairs demand.
 *
 * The next tile of K is copied from the end of S on, that of V from the end of P V on. Sums,
 * softmax and O are f32; q and the probabilities are rounded to f16. Tiles begin at multiples of
 * 64, chunks at multiples of their size, and keys that a row does not see add nothing, so with one
 * row per tile a row's result does not depend on its neighbours.
 */
#include "backend/cuda/attend.cuh"

enum { KEYS = 64, LINE_P = KEYS + 8 };

/* Shapes of a tile: MT times 16 pairs, W warps, of which WM divide the pairs in S. */
template <int D, int MT> struct flash {
    static constexpr int W = MT == 1 || D == 64 ? 4 : 8, WM = W / 4, WN = 4;
    static constexpr int M = 16 * MT, MS = MT / WM, LINE = D + 8, COLS = D / W, NT = COLS / 8;
    /* Few rows: short code, since fetching it is most of a short context's time. */
    static constexpr int U = MT == 1 ? 2 : 4, U_D = MT == 1 ? 4 : 8;
    static constexpr int halves = (M + 2 * KEYS) * LINE + M * LINE_P;
    static constexpr int bytes = halves * 2 + (WN + 3) * M * 4 + 3 * M * 4;
};

/* 64 keys or values from t0 on; zeros outside [from, to). */
template <int D, int THREADS, int U>
DEV void load_tile(uint16_t *to, const uint16_t *head, int t0, int from, int until, int n_slots)
{
    constexpr int pieces = D / 8, rows = THREADS / pieces;
    int p = (int)threadIdx.x % pieces * 8, slot0 = t0 % n_slots;
#pragma unroll U
    for (int k = (int)threadIdx.x / pieces; k < KEYS; k += rows) {
        int slot = slot0 + k;
        if (slot >= n_slots)
            slot = n_slots < KEYS ? slot % n_slots : slot - n_slots;
        bool ok = t0 + k >= from && t0 + k < until;
        copy16_async(to + k * (D + 8) + p, head + (size_t)(ok ? slot : 0) * D + p, ok);
    }
    copy_commit();
}

/* o[r, h] = sum_t softmax_t(scale q[r, h] . k[t, g]) v[t, g]
 * grid:   split: row x KV head x chunk; else tile of 64 pairs x KV head
 * shared: Q, 64 keys, 64 values, probabilities, in f16: 33 to 213 KB
 * bound:  few rows: reading K and V; many: tensor cores and ldmatrix, about evenly */
template <int D, int MT>
__global__ void __launch_bounds__(32 * flash<D, MT>::W) flash_kernel(attend_args a)
{
    using F = flash<D, MT>;
    constexpr bool split = MT == 1;
    constexpr int M = F::M, W = F::W, MS = F::MS, LINE = F::LINE, NT = F::NT, threads = 32 * W;
    DYN_SHARED(uint16_t, mem);
    uint16_t *sq = mem, *sk = sq + M * LINE, *sv = sk + KEYS * LINE, *sp = sv + KEYS * LINE;
    float *red = (float *)(sp + M * LINE_P), *shrink = red + F::WN * M, *top = shrink + M;
    int *lo = (int *)(top + 2 * M), *hi = lo + M, *row = hi + M;
    int group = a.n_head / a.kv.n_head_kv, g = (int)blockIdx.y, lane = lane_id();
    int warp = (int)threadIdx.x >> 5, wm = warp / F::WN, wn = warp % F::WN;
    int gid = lane >> 2, tid = lane & 3, n_rows = a.st.rows.n;
    int pair0 = split ? (int)blockIdx.x * group : (int)blockIdx.x * M;
    int n_pairs = split ? group : min(M, n_rows * group - pair0);
    grid_trigger();
    grid_wait();

    int part_first = 0, part_end = 0x7fffffff, part = 0;
    if (split) { /* this block's chunk of the row's keys */
        sight s = row_sight(a.st.rows, (int)blockIdx.x, a.kv.window);
        part = (int)blockIdx.z;
        part_first = (s.lo / a.chunk + part) * a.chunk;
        part_end = part_first + a.chunk;
        if (part_first >= s.hi)
            return;
    }
    for (int i = (int)threadIdx.x; i < M; i += threads) {
        sight s = {0, 0};
        int r = (pair0 + min(i, n_pairs - 1)) / group;
        if (i < n_pairs)
            s = row_sight(a.st.rows, r, a.kv.window);
        lo[i] = max(s.lo, part_first);
        hi[i] = min(s.hi, part_end);
        row[i] = r;
        top[i] = -INFINITY;
    }
    constexpr int q_rows = threads / (D / 4);
#pragma unroll F::U
    for (int m = (int)threadIdx.x / (D / 4); m < M; m += q_rows) {
        int e = (int)threadIdx.x % (D / 4) * 4, p = pair0 + m;
        int r = split ? (int)blockIdx.x : p / group, h = g * group + (split ? m : p % group);
        uint2 u = make_uint2(0, 0);
        if (m < n_pairs) {
            float4 v = *(const float4 *)(a.q.at + r * a.q.stride + h * D + e);
            u = make_uint2(f32x2_to_f16(v.x * a.scale, v.y * a.scale),
                           f32x2_to_f16(v.z * a.scale, v.w * a.scale));
        }
        *(uint2 *)(sq + m * LINE + e) = u;
    }

    float o[MT][NT][4], sum[MS][2];
#pragma unroll
    for (int i = 0; i < MT; i++)
#pragma unroll
        for (int j = 0; j < NT; j++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                o[i][j][e] = 0;
#pragma unroll
    for (int i = 0; i < MS; i++)
        sum[i][0] = sum[i][1] = 0;
    __syncthreads();

    int turn = 0, last = (pair0 + n_pairs - 1) / group;
    /* Rows of one sequence after those of another: each run of them meets its own keys. */
    for (int r0 = pair0 / group; r0 <= last;) {
        int seq = a.st.rows.seq[r0], r1 = r0;
        int from = 0x7fffffff, until = 0;
        for (; r1 <= last && a.st.rows.seq[r1] == seq; r1++) {
            int m = max(r1 * group - pair0, 0);
            from = min(from, lo[m]);
            until = max(until, hi[m]);
        }
        dev_kv_base base = a.st.kv[(size_t)seq * a.st.n_kv + a.kv.id];
        const uint16_t *hk = (const uint16_t *)base.k + (size_t)g * a.kv.n_slots * D;
        const uint16_t *hv = (const uint16_t *)base.v + (size_t)g * a.kv.n_slots * D;
        int first = from / KEYS * KEYS;
        if (first < until) {
            load_tile<D, threads, F::U>(sk, hk, first, from, until, a.kv.n_slots);
            load_tile<D, threads, F::U>(sv, hv, first, from, until, a.kv.n_slots);
        }
        for (int t0 = first; t0 < until; t0 += KEYS, turn ^= 1) {
            copy_wait<1>();
            __syncthreads();

            float s[MS][2][4];
#pragma unroll
            for (int i = 0; i < MS; i++)
#pragma unroll
                for (int j = 0; j < 2; j++)
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        s[i][j][e] = 0;
            const uint16_t *q = sq + (wm * MS * 16 + (lane & 15)) * LINE + (lane >> 4 << 3);
            const uint16_t *k =
                sk + (wn * 16 + (lane & 7) + (lane >> 4 << 3)) * LINE + ((lane >> 3 & 1) << 3);
#pragma unroll F::U_D
            for (int kk = 0; kk < D; kk += 16) {
                uint32_t fa[MS][4], fb[4];
                ldmatrix4(fb, k + kk);
#pragma unroll
                for (int i = 0; i < MS; i++) {
                    ldmatrix4(fa[i], q + 16 * i * LINE + kk);
                    mma_f16(s[i][0], fa[i], fb);
                    mma_f16(s[i][1], fa[i], fb + 2);
                }
            }
            const float *old = top + turn * M;
            float *now = top + (turn ^ 1) * M;
#pragma unroll
            for (int i = 0; i < MS; i++)
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    int m = (wm * MS + i) * 16 + gid + 8 * h, r = row[m];
                    bool mine = r >= r0 && r < r1;
                    int from_m = lo[m], until_m = hi[m];
                    float best = -INFINITY;
#pragma unroll
                    for (int j = 0; j < 4; j++) {
                        int t = t0 + wn * 16 + (j >> 1) * 8 + 2 * tid + (j & 1);
                        float *x = &s[i][j >> 1][2 * h + (j & 1)];
                        bool sees = mine && t >= from_m && t < until_m;
                        if (a.st.rows.seen && sees)
                            sees = row_sees(a.st.rows, r, a.kv.window, t);
                        *x = sees ? *x : -INFINITY;
                        best = fmaxf(best, *x);
                    }
                    best = fmaxf(best, shfl_xor_f32(best, 1));
                    best = fmaxf(best, shfl_xor_f32(best, 2));
                    if (tid == 0)
                        red[wn * M + m] = best;
                }
            __syncthreads();
            if (t0 + KEYS < until)
                load_tile<D, threads, F::U>(sk, hk, t0 + KEYS, from, until, a.kv.n_slots);
            else
                copy_commit();
#pragma unroll
            for (int i = 0; i < MS; i++)
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    int m = (wm * MS + i) * 16 + gid + 8 * h;
                    float was = old[m];
                    float best =
                        fmaxf(fmaxf(red[m], red[M + m]), fmaxf(red[2 * M + m], red[3 * M + m]));
                    best = fmaxf(best, was);
                    float zero = best == -INFINITY ? 0 : best; /* no infinity minus itself */
                    float keep = fast_exp2((was - zero) * 1.4426950408889634f), part_sum = 0;
#pragma unroll
                    for (int j = 0; j < 2; j++) {
                        float x = fast_exp2((s[i][j][2 * h] - zero) * 1.4426950408889634f);
                        float y = fast_exp2((s[i][j][2 * h + 1] - zero) * 1.4426950408889634f);
                        part_sum += x + y;
                        *(uint32_t *)(sp + m * LINE_P + wn * 16 + j * 8 + 2 * tid) =
                            f32x2_to_f16(x, y);
                    }
                    sum[i][h] = sum[i][h] * keep + part_sum;
                    if (wn == 0 && tid == 0) {
                        shrink[m] = keep;
                        now[m] = best;
                    }
                }
            copy_wait<1>();
            __syncthreads();
#pragma unroll
            for (int i = 0; i < MT; i++)
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    float keep = shrink[16 * i + gid + 8 * h];
#pragma unroll
                    for (int j = 0; j < NT; j++) {
                        o[i][j][2 * h] *= keep;
                        o[i][j][2 * h + 1] *= keep;
                    }
                }
            const uint16_t *v = sv + (lane & 15) * LINE + warp * F::COLS + (lane >> 4 << 3);
            const uint16_t *p = sp + (lane & 15) * LINE_P + (lane >> 4 << 3);
#pragma unroll F::U
            for (int kk = 0; kk < KEYS; kk += 16) {
                uint32_t fa[MT][4];
#pragma unroll
                for (int i = 0; i < MT; i++)
                    ldmatrix4(fa[i], p + 16 * i * LINE_P + kk);
#pragma unroll
                for (int j = 0; j < NT; j += 2) {
                    uint32_t fb[4];
                    ldmatrix4_t(fb, v + kk * LINE + j * 8);
#pragma unroll
                    for (int i = 0; i < MT; i++) {
                        mma_f16(o[i][j], fa[i], fb);
                        mma_f16(o[i][j + 1], fa[i], fb + 2);
                    }
                }
            }
            __syncthreads();
            if (t0 + KEYS < until)
                load_tile<D, threads, F::U>(sv, hv, t0 + KEYS, from, until, a.kv.n_slots);
            else
                copy_commit();
        }
        copy_wait<0>();
        __syncthreads(); /* the next run's first tile of K comes where others may still be */
        r0 = r1;
    }

#pragma unroll
    for (int i = 0; i < MS; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float v = sum[i][h] + shfl_xor_f32(sum[i][h], 1);
            v += shfl_xor_f32(v, 2);
            if (tid == 0)
                red[wn * M + (wm * MS + i) * 16 + gid + 8 * h] = v;
        }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < MT; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int m = 16 * i + gid + 8 * h, p = pair0 + m;
            if (m >= n_pairs)
                continue;
            float total = (red[m] + red[M + m]) + (red[2 * M + m] + red[3 * M + m]);
            int r = p / group, head = g * group + p % group;
            float *to = split ? part_at(a, r, head, part) : a.o.at + r * a.o.stride + head * D;
            float by = split ? 1.0f : 1.0f / total;
#pragma unroll
            for (int j = 0; j < NT; j++) {
                int col = warp * F::COLS + j * 8 + 2 * tid;
                *(float2 *)(to + col) = make_float2(o[i][j][2 * h] * by, o[i][j][2 * h + 1] * by);
            }
            if (split && warp == 0 && tid == 0) {
                to[D] = top[turn * M + m];
                to[D + 1] = total;
            }
        }
}

template <int D, int MT> static int allow()
{
#ifdef CARAT_EMU
    return 0;
#else
    return (int)cudaFuncSetAttribute(
        flash_kernel<D, MT>, cudaFuncAttributeMaxDynamicSharedMemorySize, flash<D, MT>::bytes);
#endif
}

template <int D, int MT> static void flash_of(cudaStream_t s, attend_args a)
{
    int group = a.n_head / a.kv.n_head_kv, rows = a.q.rows;
    dim3 grid((unsigned)rows, (unsigned)a.kv.n_head_kv, (unsigned)a.n_chunk);
    if (MT > 1)
        grid = dim3((unsigned)((rows * group + 16 * MT - 1) / (16 * MT)), (unsigned)a.kv.n_head_kv);
    using F = flash<D, MT>;
    LAUNCH((flash_kernel<D, MT>), grid, dim3(32 * F::W), F::bytes, s, a);
}

/* Raises the limits on shared memory; largest: what the GPU grants a block. How wide heads may be.
 */
extern "C" int cu_flash_init(int largest, int *widest)
{
    int bad = allow<64, 1>() | allow<128, 1>() | allow<256, 1>() | allow<64, 4>() | allow<128, 4>();
    *widest = 128;
    if (flash<256, 4>::bytes <= largest) {
        bad |= allow<256, 4>();
        *widest = 256;
    }
    if (flash<512, 4>::bytes <= largest) {
        bad |= allow<512, 1>() | allow<512, 4>();
        *widest = 512;
    }
    return bad;
}

template <int D> static void flash_any(cudaStream_t s, attend_args a)
{
    if (a.part)
        flash_of<D, 1>(s, a);
    else
        flash_of<D, 4>(s, a);
}

extern "C" void cu_flash(cudaStream_t s, attend_args a)
{
    switch (a.kv.head_dim) {
    case 64:
        flash_any<64>(s, a);
        break;
    case 128:
        flash_any<128>(s, a);
        break;
    case 256:
        flash_any<256>(s, a);
        break;
    default:
        flash_any<512>(s, a);
    }
}
