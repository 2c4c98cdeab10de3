/* matmul_vec.cu - products of experts, one (row, expert) pair at a time.
 *
 *     warp    some of a tile's units; block: all warps of a tile, or of several
 *     lane    one of the tile's 16 rows and every second group, so that a warp reads 512
 *             neighbouring bytes, and the same 64 bytes of activations
 *
 * The activation is int8 with a scale per 32 columns; 4-way integer dot products are exact within a
 * group. Speed needs bytes in flight: of Q4_K two units (5 KB) per warp and 24 warps on a
 * multiprocessor, for experts up to four units and 16 warps. It wins at one row. At few rows
 * matmul_experts.cu reads an expert once for two rows, and adds the same numbers in the same order.
 * This file takes any number of rows, so it also serves where that one has no room for the pairs.
 *
 * COLD: the host's cores may compute some of the pairs (offload.cuh). The gated unit leaves them
 * out, and the down product reads theirs where it adds.
 */
#include "backend/cuda/experts/guess.cuh"
#include "backend/cuda/experts/dispatch.cuh"
#include "backend/cuda/experts/own.cuh"
#include "backend/cuda/experts/vec_tile.cuh"

/* Copies the row to shared memory, where all warps read it with little latency. */
DEV x_view x_shared(uint4 *mem, const dev_quant &x, int row)
{
    x_view from = x_at(x, row);
    int n = x.cols >> 5;
    xscale *s = (xscale *)(mem + 2 * n);
    for (int i = (int)threadIdx.x; i < 2 * n; i += (int)blockDim.x)
        mem[i] = load_fresh(from.q + 2 * (i >> 1) * from.step + (i & 1));
    for (int i = (int)threadIdx.x; i < n; i += (int)blockDim.x)
        ((uint2 *)s)[i] = load_fresh((const uint2 *)from.s + i * from.step);
    __syncthreads();
    x_view v = {mem, s, 1};
    return v;
}

enum { WARPS = 8 };

/* The matrix and the row of x of pair p. False: the pair is left out. */
DEV bool whose(const expert_product &a, int p, size_t *mat, int *x_row)
{
    const int k = a.expert ? own_mat(a.own, load_fresh(a.expert + p)) : 0;
    *mat = (size_t)k;
    *x_row = a.expert && !a.x_per_pair ? p / a.k : p;
    return k >= 0;
}

/* y[p, o] = sum_i x[p, i] W[o, i]      W: blocks of 32, x: int8
 * grid:   4 or 8 warps, 1 << lg to a tile of 16 outputs; y: pairs
 * shared: the row of x; a float per warp and output
 * bound:  reading W; target 85 % of memory bandwidth */
template <int K>
__global__ void __launch_bounds__(32 * WARPS, occupancy<K>::blocks / 2)
    vec_kernel(expert_product a, int lg)
{
    DYN_SHARED(uint4, mem);
    __shared__ float part[WARPS][16];
    int warp = (int)(threadIdx.x >> 5), n = 1 << lg, p = (int)blockIdx.y, x_row;
    int n_tiles = (int)(blockDim.x >> 5) >> lg, tile = (int)blockIdx.x * n_tiles + (warp >> lg);
    bool in = tile * 16 < a.p.n_out;
    size_t mat;
    warp_tile<K, 2> t;
    grid_trigger();
    lattice_begin<K>(a.p.w.kind);
    if (a.expert)
        grid_wait();
    if (!whose(a, p, &mat, &x_row))
        return;
    if (in)
        t.begin(a.p.w, mat, tile, warp & (n - 1), n);
    grid_wait();
    x_view x = x_shared(mem, a.p.x, x_row);
    if (in) {
        float s = t.run(a.p.w, x);
        if (lane_id() < 16)
            part[warp][lane_id()] = s;
    }
    __syncthreads();
    int k = (int)threadIdx.x >> 4, o = ((int)blockIdx.x * n_tiles + k) * 16 + (lane_id() & 15);
    if (k >= n_tiles || o >= a.p.n_out)
        return;
    float v = 0;
    for (int i = 0; i < n; i++)
        v += part[(k << lg) + i][lane_id() & 15];
    if (a.expert)
        a.p.y.at[p / a.k * a.p.y.stride + (int64_t)(p % a.k) * a.p.n_out + o] = v;
    else
        a.p.y.at[p * a.p.y.stride + o] = v;
}

/* A gated product also has a row of blocks without outputs, before the others. The first one posts
 * the row's job. The last one chooses by the logits of a guess, and asks. A call, as offload_reads.
 */
static __device__ __noinline__ void beside(const expert_product &a, const offload_view &c)
{
    const unsigned p = blockIdx.x;
    if (p == 0 && threadIdx.x < 32) {
        if (!a.ready)
            grid_wait();
        post_row(c, a.expert, a.p.x);
    }
    if (p == gridDim.x - 1 && c.ask.router) {
        if (!a.chosen)
            grid_wait();
        choose_and_ask(c.ask, c.prefetch);
    }
}

/* y[r, o] = act(W x) * (W' x), and its int8 copy where wanted
 * grid:   pair x two tiles of 16 outputs; 1 << lg warps for each tile of W and of W'. Pairs of one
 *         expert read a tile at about the same time, so the second read hits the cache. COLD,
 *         one row: before them a row of blocks, for the host's job and for a guess (guess.cuh)
 * shared: the row of x; a float per warp and output
 * bound:  reading W and W' */
template <int K, bool OFFLOAD>
__global__ void __launch_bounds__(32 * WARPS, 2)
    glu_kernel(const __grid_constant__ expert_product a, int lg,
               const __grid_constant__ offload_view c)
{
    DYN_SHARED(uint4, mem);
    __shared__ float part[WARPS][16];
    int warp = (int)(threadIdx.x >> 5), n = 1 << lg, p = (int)blockIdx.x, x_row;
    const int pair_of_tiles = (int)blockIdx.y - (OFFLOAD && c.posts);
    int which = warp >> (lg + 1), tile = pair_of_tiles * 2 + (warp >> lg & 1);
    int place = OFFLOAD_READ;
    bool in = tile * 16 < a.p.n_out;
    size_t mat, at = 0;
    bool shared = a.shared_warps && p == a.k - 1;
    warp_tile<K, occupancy<K>::gated> t;
    lattice_begin<K>(a.p.w.kind);
    if (blockIdx.y == 0 && warp == 0)
        expect_places(a.p.w);
    if (a.expert && !shared && !a.chosen)
        grid_wait();
    grid_trigger(); /* a kernel that begins from here on may read the choice of experts */
    /* The next kernel relies on a block that waits. */
    auto leave = [&] {
        if (a.ready && p == 0 && blockIdx.y == 0)
            grid_wait();
    };
    if (OFFLOAD && pair_of_tiles < 0) {
        beside(a, c);
        leave();
        return;
    }
    if (shared) {
        mat = 0, x_row = 0;
    } else if (!whose(a, p, &mat, &x_row)) {
        if (p == 0 && blockIdx.y == 0)
            grid_wait(); /* the next kernel relies on a block that waits */
        return;
    }
    if (a.p.w.count && !shared && pair_of_tiles == 0 && threadIdx.x == 0)
        atomicAdd(&a.p.w.count[mat], 1u);
    const packed w = shared ? (which ? a.shared_up : a.shared) : which ? a.p.up : a.p.w;
    if (OFFLOAD && !shared)
        place = offload_find(c, w, a.expert, p, &at);
    else
        at = mat_at(w, mat);
    if (OFFLOAD && place >= 0) {
        leave();
        return;
    }
    if (in)
        t.begin_at(w, at, which && !shared ? tile + a.p.up_row / 16 : tile, warp & (n - 1), n);
    if (!a.ready)
        grid_wait();
    x_view x = x_shared(mem, a.p.x, x_row);
    if (in) {
        float s = t.run(w, x);
        if (lane_id() < 16)
            part[warp][lane_id()] = s;
    }
    __syncthreads();
    if (warp > 0)
        return;
    int k = lane_id() >> 4, o = pair_of_tiles * 32 + lane_id();
    float v = 0, u = 0;
    if (o < a.p.n_out) {
        for (int i = 0; i < n; i++) {
            v += part[(k << lg) + i][lane_id() & 15];
            u += part[((2 + k) << lg) + i][lane_id() & 15];
        }
        v = unit_of(a.unit, a.p.silu, v, u, mat, o);
        if (a.expert)
            a.p.y.at[p / a.k * a.p.y.stride + (int64_t)(p % a.k) * a.p.n_out + o] = v;
        else
            a.p.y.at[p * a.p.y.stride + o] = v;
    }
    if (a.p.q.q)
        quantise_warp(v, a.p.q, p, pair_of_tiles);
    leave();
}

/* y[r, o] = sum_j share[r, j] sum_i x[r, j, i] W_e(o, i), e = expert[r, j], in ascending j
 * grid:   row x tile of 16 outputs, as above; a warp per expert of the row
 * shared: a float per expert and output
 * bound:  reading k experts' rows; at one row, latency */
template <int K, bool SHARED, bool OFFLOAD>
__global__ void __launch_bounds__(512) expert_down_kernel(const __grid_constant__ expert_product a,
                                                          const __grid_constant__ offload_view c)
{
    enum { NOT_OWN = OFFLOAD_READ - 1 - PREFETCH_MOST }; /* place of a pair of other weights */
    __shared__ float part[16][16];
    int warp = (int)(threadIdx.x >> 5), n_warps = (int)(blockDim.x >> 5);
    int tile = (int)blockIdx.y, r = (int)blockIdx.x, o = tile * 16 + lane_id();
    float v = 0, share = 0;
    warp_tile<K, occupancy<K>::down> t;
    int of_choice = a.k - SHARED; /* the warps after them have the shared expert's units */
    int place = OFFLOAD_READ;     /* COLD: of the pair's product, which comes from the host */
    auto begin = [&](int j) {
        if (SHARED && j >= of_choice) {
            t.begin(a.shared, 0, tile, j - of_choice, a.shared_warps);
            return;
        }
        if (j >= a.k)
            return;
        size_t at;
        if (OFFLOAD && !SHARED && c.some &&
            own_mat(a.own, load_fresh(a.expert + r * of_choice + j)) < 0) {
            place = NOT_OWN;
            return;
        }
        if (OFFLOAD)
            place = offload_find(c, a.p.w, a.expert, r * of_choice + j, &at);
        else
            at = mat_at(a.p.w, (size_t)load_fresh(a.expert + r * a.k + j));
        if (!OFFLOAD || place < 0)
            t.begin_at(a.p.w, at, tile, 0, 1);
        share = load_fresh(a.share + r * a.k + j);
    };
    auto product = [&](const packed &w, int j) {
        if (OFFLOAD && !SHARED && place == NOT_OWN)
            return 0.0f; /* no sum is another one by it: see rank_experts.cu */
        if (OFFLOAD && place >= 0)
            return offload_take(c, place, o, a.p.n_out, tile == 0);
        return t.run(w, x_at(a.p.x, j));
    };
    grid_trigger();
    lattice_begin<K>(a.p.w.kind);
    if (a.chosen)
        begin(warp);
    grid_wait();
    if (OFFLOAD && tile == 0 && r == 0 && threadIdx.x == 0)
        c.state->posted = 0;
    if (!a.chosen)
        begin(warp);
    if constexpr (SHARED) {
        int j = min(warp, of_choice);
        float s = product(warp < of_choice ? a.p.w : a.shared, j);
        if (lane_id() < 16)
            part[warp][lane_id()] = warp < of_choice ? mul_rn(s, share) : s;
        __syncthreads();
        if (warp || lane_id() >= 16 || o >= a.p.n_out)
            return;
        for (int i = 0; i < of_choice; i++)
            v += part[i][lane_id()];
        float u = 0;
        for (int i = of_choice; i < n_warps; i++)
            u += part[i][lane_id()];
        a.p.y.at[o] = v + mul_rn(u, load_fresh(a.share + of_choice));
    } else {
        for (int j0 = 0;; j0 += n_warps) {
            int j = j0 + warp;
            if (j < a.k) {
                float s = product(a.p.w, r * a.k + j);
                if (lane_id() < 16)
                    part[warp][lane_id()] = mul_rn(s, share);
            }
            __syncthreads();
            if (warp == 0 && lane_id() < 16)
                for (int i = 0; i < n_warps && j0 + i < a.k; i++)
                    v += part[i][lane_id()];
            if (j0 + n_warps >= a.k)
                break;
            begin(j + n_warps);
            __syncthreads();
        }
        if (warp == 0 && lane_id() < 16 && o < a.p.n_out)
            a.p.y.at[r * a.p.y.stride + o] = v;
    }
}

template <int K, bool OFFLOAD> static void vec(cudaStream_t s, expert_product a, offload_view c)
{
    int warps = product_warps(a.p.w, a.p.glu), lg = warps >= 8 ? 3 : warps >= 4 ? 2 : warps >> 1;
    unsigned rows = (unsigned)(a.expert ? a.p.y.rows * a.k : a.p.y.rows);
    int tiles = (a.p.n_out + 15) / 16, block = warps > 4 ? 8 : 4;
    unsigned more = OFFLOAD && c.posts; /* a row of blocks beside the rows' own */
    size_t shared = (size_t)a.p.w.n_group * 40;
    if (a.share && a.shared_warps)
        LAUNCH((expert_down_kernel<K, true, OFFLOAD>), dim3(1, (unsigned)tiles),
               dim3(32u * (unsigned)(a.k - 1 + a.shared_warps)), 0, s, a, c);
    else if (a.share)
        LAUNCH((expert_down_kernel<K, false, OFFLOAD>), dim3((unsigned)a.p.y.rows, (unsigned)tiles),
               dim3(32u * (unsigned)(a.k < 16 ? a.k : 16)), 0, s, a, c);
    else if (a.p.glu)
        LAUNCH((glu_kernel<K, OFFLOAD>), dim3(rows, (unsigned)(tiles + 1) / 2 + more),
               dim3(128u * (unsigned)warps), shared, s, a, lg, c);
    else
        LAUNCH((vec_kernel<K>), dim3((unsigned)((tiles * warps + block - 1) / block), rows),
               dim3(32u * (unsigned)block), shared, s, a, lg);
}

extern "C" int cu_product_warps(const packed *w)
{
    return product_warps(*w, false);
}

template <bool OFFLOAD>
static void vec_of_kind(cudaStream_t s, const expert_product &a, offload_view c)
{
    by_layout(all_packs, pack_kernels(a.p.w.kind), [&](auto k) {
        if constexpr (!OFFLOAD || stays_on_host<k>)
            vec<k, OFFLOAD>(s, a, c);
        return true;
    });
}

/* Once per GPU, at open. Tables and a long row are more than the 48 KB that any block may have. */
extern "C" int cu_vec_init(void)
{
    const int n = cu_gpu.shared_block - BLOCK_RESERVED - 4 * TABLE_WORDS;
    return each_layout(all_packs, [&](auto k) {
        return traits<k>::lattice
                   ? allow_shared(vec_kernel<k>, n) | allow_shared(glu_kernel<k, false>, n)
                   : 0;
    });
}

extern "C" void cu_product_vec(cudaStream_t s, expert_product a)
{
    vec_of_kind<false>(s, a, offload_view());
}

/* Gated, or with share. */
extern "C" void cu_product_vec_offload(cudaStream_t s, expert_product a, offload_view c)
{
    packed *const both[] = {&a.p.w, &a.p.up};
    for (packed *w : both)
        if (w->where)
            w->where -= a.own.first;
    vec_of_kind<true>(s, a, c);
}
