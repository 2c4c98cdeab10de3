/* matmul_mma.cu - many rows times a weight: prefill, on the bf16 tensor cores.
 *
 *            rows 128                 A block makes 128 outputs x 128 rows, 64 columns at a time.
 *          +---------+                Weights come packed and become bf16 on their way into shared
 *   W 128  |  8 warps|                memory; activations are bf16 already (quantise.cu) and are
 *  outputs |  2 x 4  |                copied in the background. While one pair of tiles is
 *          +---------+                multiplied, the next is on its way.
 *
 * few_kernel takes tiles of 32 or 64 rows: experts of 21 to 48 rows each, and fewer, and short
 * prompts, where weights are floats; other short prompts go to matmul_short.cu, other experts to
 * matmul_short_experts.cu, and longer prompts on GPUs of 9.0 to matmul_tall_hopper.cu. Every sum is
 * f32, and adds its columns 16 at a time in ascending order in all kernels. So a row's bits depend
 * neither on the tile it is in nor on the number of rows.
 *
 * Experts: the same kernels over a list of (expert, rows) tiles made on the device by sort_kernel,
 * with rows gathered through the sorted list; nothing waits for the host. On GPUs of 9.0 most go to
 * matmul_tall_experts_hopper.cu.
 */
#include "backend/cuda/experts/own.cuh"
#include "backend/cuda/experts/prompt_experts.cuh"
#include "backend/cuda/product/lattice.cuh"
#include "backend/cuda/product/prompt.cuh"

enum { BM = 128, BN = 128, BK = 64, LINE = BK + 8 /* padded against bank conflicts */ };

template <int K> struct floats_kind {
    static constexpr bool value = K == PACK_BF16 || K == PACK_F16;
};

/* 32 weights of one row as stored. */
template <int K, bool FLOATS = floats_kind<K>::value> struct raw_weights {
    raw_group<K> g;
    DEV void load(const packed &w, size_t base, int o, int group)
    {
        load_group<K>(&g, w, base, o >> 4, group, o & 15);
    }
    /* To 64 bytes of shared memory. */
    DEV void store(uint16_t *to, int group) const
    {
        using T = traits<K>;
        scales v = group_scales<K>(g.s, group);
        uint32_t word[8], out[16];
        group_words<K>(word, g);
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const uint32_t c[2] = {word[k], word[k + 4]};
#pragma unroll
            for (int h = 0; h < 2; h++) {
                float f = T::split && h ? v.f1 : v.f0;
                float m = T::split && h ? v.m1 : v.m0, x[4];
                if (T::bias)
                    m = -(float)T::bias * f;
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    int q =
                        T::is_signed ? (int)(int8_t)(c[h] >> 8 * e) : (int)(c[h] >> 8 * e & 0xff);
                    x[e] = fma_rn((float)q, f, m);
                }
                out[8 * h + 2 * k] = f32x2_to_bf16(x[0], x[1]);
                out[8 * h + 2 * k + 1] = f32x2_to_bf16(x[2], x[3]);
            }
        }
#pragma unroll
        for (int i = 0; i < 4; i++)
            ((uint4 *)to)[i] =
                make_uint4(out[4 * i], out[4 * i + 1], out[4 * i + 2], out[4 * i + 3]);
    }
};

template <int K> struct raw_weights<K, true> {
    uint4 v[4];
    DEV void load(const packed &w, size_t base, int o, int group)
    {
        const uint4 *from = (const uint4 *)(w.codes + base + ((size_t)o * w.n_in + group * 32) * 2);
        const bool whole = group * 32 + 32 <= w.n_in; /* else half of a group */
#pragma unroll
        for (int i = 0; i < 4; i++)
            v[i] = i < 2 || whole ? load16(from + i) : make_uint4(0, 0, 0, 0);
    }
    DEV static uint32_t to_bf16(uint32_t u)
    {
        if (K == PACK_BF16)
            return u;
        return f32x2_to_bf16(f16_to_f32(u & 0xffff), f16_to_f32(u >> 16));
    }
    DEV void store(uint16_t *to, int) const
    {
#pragma unroll
        for (int i = 0; i < 4; i++)
            ((uint4 *)to)[i] =
                make_uint4(to_bf16(v[i].x), to_bf16(v[i].y), to_bf16(v[i].z), to_bf16(v[i].w));
    }
};

/* y[r, o] = sum_i x[r, i] W[o, i]      W: packed, x: bf16, sums f32
 * grid:   tile of 128 outputs x tile of 128 rows
 * shared: two stages of a 128 x 64 tile of each operand, 72 KiB
 * bound:  tensor cores; unpacking W is shared by 128 rows */
template <int K> __global__ void __launch_bounds__(256) mma_kernel(mma_args a)
{
    grid_trigger();
    if constexpr (!floats_kind<K>::value)
        lattice_begin<K>(a.w.kind);
    grid_wait();
    DYN_SHARED(uint16_t, mem);
    uint16_t *sw = mem, *sx = mem + 2 * BM * LINE;
    int t = (int)threadIdx.x, lane = lane_id(), warp = t >> 5;
    int n_group = (a.w.n_in + 31) / 32, n_step = (n_group + 1) / 2;
    int o0 = (int)blockIdx.x * BM, first = (int)blockIdx.y * BN, rows = a.rows - first;
    size_t base = 0;
    if (a.tiles) {
        if ((int)blockIdx.y >= *a.n_tiles)
            return;
        expert_tile e = a.tiles[blockIdx.y];
        base = mat_at(a.w, (size_t)e.expert);
        first = e.first;
        rows = e.n;
    }
    if (rows > BN)
        rows = BN;

    /* Weights: a thread unpacks one row's group of each step. */
    int wr = t & 127, wg = t >> 7;
    bool w_in = o0 + wr < a.w.n_out;
    /* Activations: 128 rows x 8 pieces of 16 bytes, four pieces a thread, of rows xr + 32 i. */
    int xr = t >> 3, xp = t & 7;
    const uint16_t *x_at[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int r = xr + 32 * i < rows ? xr + 32 * i : 0;
        int from = first + r;
        if (a.order)
            from = a.order[from] / a.k;
        x_at[i] = a.x + (size_t)from * a.w.n_in;
    }

    raw_weights<K> raw;
    float acc[4][4][4];
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                acc[i][j][e] = 0;
    int wm = warp & 1, wn = warp >> 1; /* the warp's place among 2 x 4: 64 outputs, 32 rows */
    bool has_rows = wn * 32 < rows;    /* experts have 64 rows on average: half of the warps do */

    for (int step = -1; step < n_step; step++) {
        int next = step + 1, buf = step & 1;
        int group = 2 * next + wg;
        bool has = next < n_step && w_in && group < n_group;
        if (has)
            raw.load(a.w, base, o0 + wr, group);
        if (next < n_step) {
            uint16_t *to = sx + (next & 1) * BN * LINE;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int col = next * BK + xp * 8, r = xr + 32 * i;
                bool ok = r < rows && col < a.w.n_in;
                if (32 * i < rows)
                    copy16_async(to + r * LINE + xp * 8, x_at[i] + (ok ? col : 0), ok);
            }
        }
        copy_commit();
        if (step >= 0 && has_rows) {
            const uint16_t *cw = sw + buf * BM * LINE + wm * 64 * LINE;
            const uint16_t *cx = sx + buf * BN * LINE + wn * 32 * LINE;
#pragma unroll
            for (int kk = 0; kk < BK; kk += 16) {
                uint32_t fa[4][4], fb[2][4];
                int row = lane & 15, half = lane >> 4 << 3;
#pragma unroll
                for (int i = 0; i < 4; i++)
                    ldmatrix4(fa[i], cw + (16 * i + row) * LINE + kk + half);
                /* matrices: rows 0..7 k 0..7, rows 0..7 k 8..15, rows 8..15 the same */
                int br = (lane & 7) + (lane >> 4 << 3), bk = (lane >> 3 & 1) << 3;
#pragma unroll
                for (int j = 0; j < 2; j++)
                    ldmatrix4(fb[j], cx + (16 * j + br) * LINE + kk + bk);
#pragma unroll
                for (int i = 0; i < 4; i++)
#pragma unroll
                    for (int j = 0; j < 4; j++)
                        mma_bf16(acc[i][j], fa[i], &fb[j >> 1][(j & 1) * 2]);
            }
        }
        if (next < n_step) {
            uint16_t *to = sw + (next & 1) * BM * LINE + wr * LINE + wg * 32;
            if (has)
                raw.store(to, group);
            else
#pragma unroll
                for (int i = 0; i < 4; i++)
                    ((uint4 *)to)[i] = make_uint4(0, 0, 0, 0);
        }
        copy_wait<0>();
        __syncthreads();
    }
    write_sums(a.y, {a.order, first, rows}, acc, wn * 32, o0 + wm * 64);
}

/* ---- Few rows ------------------------------------------------------------------------------- */

/* A tile of 64 outputs x ROWS rows, four warps of 16 outputs each. */
enum { SHORT_BM = 64, SHORT_AHEAD = 4, SHORT_STAGES = SHORT_AHEAD + 1 };

template <int ROWS> struct short_tile {
    static constexpr int pieces = ROWS / 16; /* of 16 bytes of activations, a thread and step */
    static constexpr int bytes = (2 * SHORT_BM + SHORT_STAGES * ROWS) * LINE * 2;
};

/* A thread's share of the copies of activations: of rows t / 8 + 16 i the 8 columns t % 8. */
template <int ROWS> struct row_copies {
    const uint16_t *at[short_tile<ROWS>::pieces];
    bool in[short_tile<ROWS>::pieces];

    DEV void begin(const mma_args &a, int first, int rows)
    {
        int row = (int)threadIdx.x >> 3;
#pragma unroll
        for (int i = 0; i < short_tile<ROWS>::pieces; i++) {
            in[i] = row + 16 * i < rows;
            int from = first + (in[i] ? row + 16 * i : 0);
            if (a.order)
                from = a.order[from] / a.k;
            at[i] = a.x + (size_t)from * a.w.n_in + ((int)threadIdx.x & 7) * 8;
        }
    }
    DEV void copy(uint16_t *stage, int step, int n_in) const
    {
        int row = (int)threadIdx.x >> 3, piece = (int)threadIdx.x & 7;
        bool columns = step * BK + piece * 8 < n_in;
#pragma unroll
        for (int i = 0; i < short_tile<ROWS>::pieces; i++) {
            bool ok = in[i] && columns;
            copy16_async(stage + (row + 16 * i) * LINE + piece * 8, at[i] + (ok ? step * BK : 0),
                         ok);
        }
    }
};

/* y[r, o] = sum_i x[r, i] W[o, i]      W: packed, x: bf16, sums f32
 * grid:   tile of 64 outputs x tile of ROWS rows
 * shared: two steps of W as bf16, five of x: 41 or 64 KB
 * bound:  making W bf16, some five instructions a weight */
template <int K, int ROWS> __global__ void __launch_bounds__(128) few_kernel(mma_args a)
{
    grid_trigger();
    if constexpr (!floats_kind<K>::value)
        lattice_begin<K>(a.w.kind);
    grid_wait();
    DYN_SHARED(uint16_t, mem);
    constexpr int TILES = ROWS / 8;
    uint16_t *sx = mem + 2 * SHORT_BM * LINE;
    const int t = (int)threadIdx.x, lane = lane_id(), warp = t >> 5;
    const int n_group = (a.w.n_in + 31) / 32, n_step = (n_group + 1) / 2,
              o0 = (int)blockIdx.x * SHORT_BM;
    int first = (int)blockIdx.y * ROWS, rows = a.rows - first;
    size_t base = 0;
    if (a.tiles) {
        if ((int)blockIdx.y >= *a.n_tiles)
            return;
        expert_tile e = a.tiles[blockIdx.y];
        base = mat_at(a.w, (size_t)e.expert);
        first = e.first;
        rows = e.n;
    }
    rows = min(rows, ROWS);
    row_copies<ROWS> x;
    x.begin(a, first, rows);
    const int wr = t & 63, wg = t >> 6; /* the thread makes a row's group of each step bf16 */
    const bool w_in = o0 + wr < a.w.n_out;
    raw_weights<K> raw[SHORT_AHEAD];
#pragma unroll
    for (int i = 0; i < SHORT_AHEAD; i++) {
        if (w_in && 2 * i + wg < n_group)
            raw[i].load(a.w, base, o0 + wr, 2 * i + wg);
        if (i < n_step)
            x.copy(sx + i * ROWS * LINE, i, a.w.n_in);
        copy_commit();
    }
    float acc[1][TILES][4];
#pragma unroll
    for (int j = 0; j < TILES; j++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            acc[0][j][e] = 0;
    int now = 0, next = SHORT_AHEAD; /* stages of x */
    for (int step0 = 0; step0 < n_step; step0 += SHORT_AHEAD) {
#pragma unroll
        for (int i = 0; i < SHORT_AHEAD; i++) {
            const int step = step0 + i, group = 2 * step + wg;
            if (step >= n_step)
                break;
            uint16_t *w = mem + (i & 1) * SHORT_BM * LINE, *to = w + wr * LINE + wg * 32;
            if (w_in && group < n_group)
                raw[i].store(to, group);
            else
#pragma unroll
                for (int k = 0; k < 4; k++)
                    ((uint4 *)to)[k] = make_uint4(0, 0, 0, 0);
            if (w_in && group + 2 * SHORT_AHEAD < n_group)
                raw[i].load(a.w, base, o0 + wr, group + 2 * SHORT_AHEAD);
            copy_wait<SHORT_AHEAD - 1>();
            __syncthreads();
            /* All have multiplied the step before, whose stage of x is free. */
            if (step + SHORT_AHEAD < n_step)
                x.copy(sx + next * ROWS * LINE, step + SHORT_AHEAD, a.w.n_in);
            copy_commit();
            const uint16_t *cx = sx + now * ROWS * LINE;
            next = now;
            now = now + 1 == SHORT_STAGES ? 0 : now + 1;
#pragma unroll
            for (int kk = 0; kk < BK; kk += 16) {
                uint32_t fa[4], fb[TILES / 2][4];
                int br = (lane & 7) + (lane >> 4 << 3), bk = (lane >> 3 & 1) << 3;
                ldmatrix4(fa, w + (16 * warp + (lane & 15)) * LINE + kk + (lane >> 4 << 3));
#pragma unroll
                for (int j = 0; j < TILES / 2; j++)
                    ldmatrix4(fb[j], cx + (16 * j + br) * LINE + kk + bk);
#pragma unroll
                for (int j = 0; j < TILES; j++)
                    mma_bf16(acc[0][j], fa, &fb[j >> 1][(j & 1) * 2]);
            }
        }
    }
    write_sums(a.y, {a.order, first, rows}, acc, 0, o0 + 16 * warp);
}

/* ---- Launching ------------------------------------------------------------------------------ */

enum { SHARED_BYTES = 2 * (BM + BN) * LINE * 2 };

constexpr auto mma_packs = layouts<PACK_F16, PACK_BF16>() + all_packs;

template <int K> static int allow_mma()
{
    return allow_shared(mma_kernel<K>, SHARED_BYTES) |
           allow_shared(few_kernel<K, 32>, short_tile<32>::bytes) |
           allow_shared(few_kernel<K, 64>, short_tile<64>::bytes);
}

extern "C" int cu_mma_init(void)
{
    return each_layout(mma_packs, [](auto k) { return allow_mma<k>(); }) | cu_short_init() |
           cu_short_experts_init();
}

/* tile: rows of a tile, 32, 64 or BN. tiles: of experts. */
template <int K> static void mma(cudaStream_t s, mma_args a, int tile, int tiles)
{
    if (!a.tiles)
        tiles = (a.rows + tile - 1) / tile;
    dim3 grid((unsigned)((a.w.n_out + BM - 1) / BM), (unsigned)tiles);
    dim3 small((unsigned)((a.w.n_out + SHORT_BM - 1) / SHORT_BM), (unsigned)tiles);
    if (tile == 32)
        LAUNCH((few_kernel<K, 32>), small, dim3(128), short_tile<32>::bytes, s, a);
    else if (tile == 64)
        LAUNCH((few_kernel<K, 64>), small, dim3(128), short_tile<64>::bytes, s, a);
    else
        LAUNCH((mma_kernel<K>), grid, dim3(256), SHARED_BYTES, s, a);
}

static void mma_any(cudaStream_t s, mma_args a, int tile, int tiles)
{
    by_layout(mma_packs, pack_kernels(a.w.kind),
              [&](auto k) { return mma<k>(s, a, tile, tiles), true; });
}

extern "C" void cu_matmul_mma(cudaStream_t s, dev_mat y, dev_quant x, packed w)
{
    mma_args a = {y, x.bf, w, y.rows, 0, 0, 0, 1};
    if (y.rows > 64 && cu_matmul_tall(s, y, x, w, -1))
        return;
    int blocks = (w.n_out + BM - 1) / BM * ((y.rows + BN - 1) / BN), tile = BN;
    if (y.rows <= 32)
        tile = 32;
    else if (y.rows <= 64 || blocks < cu_gpu.n_sm)
        tile = 64;
    if (tile <= SHORT_ROWS && cu_matmul_short(s, &y, x, &w, 1))
        return;
    mma_any(s, a, tile, 0);
}

/* ---- Experts ------------------------------------------------------------------------------- */

static_assert((int)BN == 128, "the largest tile of expert_tile_rows");

/* The sum of the lanes' values up to this lane. */
DEV int sum_to_lane(int v)
{
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
        int u = (int)shfl_u32((uint32_t)v, lane_id() - d);
        v += lane_id() >= d ? u : 0;
    }
    return v;
}

/* Experts of four pairs, whose loads are under way together; -1 past the end and where a pair is
 * left out. */
enum { SORT_THREADS = 1024 };
DEV int4 four_experts(const int32_t *expert, int p, int n_pairs, const expert_range &own)
{
    const int step = SORT_THREADS;
    int4 e = {p < n_pairs ? expert[p] : -1, p + step < n_pairs ? expert[p + step] : -1,
              p + 2 * step < n_pairs ? expert[p + 2 * step] : -1,
              p + 3 * step < n_pairs ? expert[p + 3 * step] : -1};
    e.x = own_mat(own, e.x), e.y = own_mat(own, e.y);
    e.z = own_mat(own, e.z), e.w = own_mat(own, e.w);
    return e;
}
DEV void count_one(int *count, int expert)
{
    if (expert >= 0)
        atomicAdd(&count[expert], 1);
}
DEV void place_one(int *place, int32_t *order, int expert, int p)
{
    if (expert >= 0)
        order[atomicAdd(&place[expert], 1)] = p;
}

/* Sorts pairs by expert: order lists them, tiles cuts each expert's list into at most most_rows. An
 * expert's tiles are equal but for the last, and multiples of `even` rows, which divides most_rows.
 * grid:   one block; pairs are at most 2^16
 * shared: counts and places, two ints per expert
 * bound:  latency */
__global__ void __launch_bounds__(SORT_THREADS)
    sort_kernel(const int32_t *expert, int n_pairs, expert_range own, int most_rows, int even,
                int32_t *order, expert_tile *tiles, int32_t *n_tiles)
{
    grid_trigger();
    grid_wait();
    DYN_SHARED(int32_t, count);
    const int n_expert = own.n;
    int32_t *place = count + n_expert;
    int t = (int)threadIdx.x;
    for (int e = t; e < n_expert; e += SORT_THREADS)
        count[e] = 0;
    __syncthreads();
    for (int p = t; p < n_pairs; p += 4 * SORT_THREADS) {
        int4 e = four_experts(expert, p, n_pairs, own);
        count_one(count, e.x), count_one(count, e.y), count_one(count, e.z), count_one(count, e.w);
    }
    __syncthreads();
    if (t < 32) { /* an expert a lane */
        int at = 0, n = 0;
        for (int e0 = 0; e0 < n_expert; e0 += 32) {
            int e = e0 + t, pairs = e < n_expert ? count[e] : 0;
            int cuts = (pairs + most_rows - 1) / most_rows;
            int pairs_to = sum_to_lane(pairs), cuts_to = sum_to_lane(cuts);
            int first = at + pairs_to - pairs;
            if (e < n_expert)
                place[e] = first;
            const int each = cuts ? ((pairs + cuts - 1) / cuts + even - 1) / even * even : 0;
            for (int i = 0; i < cuts; i++) {
                expert_tile tile = {e, first + i * each, min(pairs - i * each, each), 0};
                tiles[n + cuts_to - cuts + i] = tile;
            }
            at += (int)shfl_u32((uint32_t)pairs_to, 31);
            n += (int)shfl_u32((uint32_t)cuts_to, 31);
        }
        if (t == 0)
            *n_tiles = n;
    }
    __syncthreads();
    for (int p = t; p < n_pairs; p += 4 * SORT_THREADS) {
        int4 e = four_experts(expert, p, n_pairs, own);
        place_one(place, order, e.x, p), place_one(place, order, e.y, p + SORT_THREADS);
        place_one(place, order, e.z, p + 2 * SORT_THREADS);
        place_one(place, order, e.w, p + 3 * SORT_THREADS);
    }
}

extern "C" void cu_expert_sort(cudaStream_t s, const int32_t *expert, int32_t n_pairs,
                               expert_range own, expert_lists l)
{
    const int most = expert_tile_rows(n_pairs, l.n_expert);
    LAUNCH(sort_kernel, dim3(1), dim3(SORT_THREADS), (size_t)own.n * 2 * sizeof(int32_t), s, expert,
           n_pairs, own, most, cu_gpu.wgmma ? 8 : most, l.order, (expert_tile *)l.tiles, l.n_tiles);
}

/* y: [pairs, n_out]; pair p's activation is row p / k of x. */
extern "C" void cu_expert_mma(cudaStream_t s, dev_mat y, dev_quant x, packed w, expert_lists l,
                              int32_t k)
{
    const expert_args e = args_of_product(y, x, w, l, k);
    if (cu_expert_tall(s, y, x, w, l, k) || cu_expert_short(s, y, x, w, l, k))
        return;
    mma_any(s, e.a, expert_tile_rows(y.rows, l.n_expert), expert_tiles(y.rows, l.n_expert));
}
