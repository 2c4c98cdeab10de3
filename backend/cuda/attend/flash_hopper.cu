/* flash_hopper.cu - attention of many rows over f16 keys and values in heads of 64, 72 (of vision
 * towers), 128 and 256, on GPUs of compute capability 9.0. The store is read in place, or as slices
 * that expand.cu makes of it.
 *
 *     warpgroup 0   fetch    K of tile i + 1, V of tile i; two tiles of either in flight
 *     warpgroup 1   attend   pairs  0 .. 63:    S of tile i + 1 | P V of tile i | softmax of i + 1
 *     warpgroup 2   attend   pairs 64 .. 127
 *
 * A block has 128 pairs (row, head). An attending warpgroup holds O and P in registers. While the
 * tensor cores multiply P V of one tile, it takes the exponentials of the next, whose S is complete
 * before. Sums, softmax and O are f32; q and the probabilities are rounded to f16, as in flash.cu.
 *
 * O of a head of 256 takes half of the registers, so its tiles are of 64 keys. Smaller heads have
 * tiles of 128: a product S of 64 x 128 reads 6 KB of shared memory in the time in which two of 64 x
 * 64 read 8, and the tensor cores wait for shared memory no longer. A head of 72 is 80 columns of S,
 * the last eight of them zeros, and 72 of O.
 */
#include "backend/cuda/attend/flash_hopper.cuh"
#include "backend/cuda/attend/launch_attend.h"

enum { PAIRS = 128 };
/* Keys of a tile; registers of a thread that fetches, and of one that attends. */
template <int D> struct plan {
    static constexpr int KEYS = D > 128 ? 64 : 128, FETCH = D > 128 ? 24 : 40;
    static constexpr int ATTEND = D > 128 ? 240 : 232;
    static_assert(FETCH + 2 * ATTEND <= 504, "registers");
};
template <int D> using block = job<D, PAIRS, plan<D>::KEYS>;
template <int D> using spot = place<plan<D>::KEYS>;

struct notes {
    uint64_t k_full[2], k_free[2], v_full[2], v_free[2];
    sights<PAIRS> sees;
};
template <int D> struct tiles {
    enum {
        BLOCKS = columns<D>::BLOCKS,
        KEY_BLOCK = plan<D>::KEYS * ROW_BYTES, /* 64 columns of a tile */
        TILE_BYTES = BLOCKS * KEY_BLOCK,
        Q_BYTES = BLOCKS * BLOCK_BYTES, /* of 64 pairs */
    };
    uint8_t q[2][Q_BYTES], k[2][TILE_BYTES], v[2][TILE_BYTES];
    notes n;
};
/* Tiles begin at a multiple of 1024. */
template <int D> constexpr int SHARED_BYTES = sizeof(tiles<D>) + 1024;

DEV void barriers(notes &n)
{
    for (int i = 0; i < 2; i++) {
        bar_init(&n.k_full[i], GROUP_THREADS);
        bar_init(&n.v_full[i], GROUP_THREADS);
        bar_init(&n.k_free[i], 8); /* warps */
        bar_init(&n.v_free[i], 8);
    }
}

/* ---- Fetch -------------------------------------------------------------------------------- */

template <int D> struct line { /* tiles in flight, of K or V */
    uint8_t (*tile)[tiles<D>::TILE_BYTES];
    uint64_t *full, *free;
};
template <int D>
DEV void fetch_tile(const block<D> &b, const line<D> &to, const uint8_t *head,
                    const int (&at)[spot<D>::PAGES], uint32_t in, int turn)
{
    int which = turn & 1;
    bar_wait(&to.free[which], (turn >> 1 & 1) ^ 1);
#pragma unroll
    for (int n = 0; n < plan<D>::KEYS / 16; n++)
        fetch_key<D>(to.tile[which] + fetch_offset() + 16 * n * ROW_BYTES, head,
                     row_of_key(b, at, n), in >> n & 1, 0, tiles<D>::BLOCKS, tiles<D>::KEY_BLOCK);
    bar_arrive_copied(&to.full[which]);
}

template <how HOW, int D> DEV void fetch(const block<D> &b, tiles<D> &s)
{
    line<D> k = {s.k, s.n.k_full, s.n.k_free}, v = {s.v, s.n.v_full, s.n.v_free};
    walk w = walk_begin(b);
    bool more = walk_on<HOW>(b, w);
    spot<D> now = {}, next = {};
    key_walk_of<spot<D>::PAGES> ahead;
    if (more) {
        place_on<HOW>(b, w, ahead, next);
        now = next;
        fetch_tile(b, k, now.k, now.k_at, now.in, 0);
    }
    for (int turn = 0; more; turn++) {
        more = walk_on<HOW>(b, w);
        if (more) {
            place_on<HOW>(b, w, ahead, next);
            fetch_tile(b, k, next.k, next.k_at, next.in, turn + 1);
        }
        fetch_tile(b, v, now.v, now.v_at, now.in, turn);
        now = next;
    }
    copy_commit();
    copy_wait<0>();
}

/* ---- A warpgroup's P and O ---------------------------------------------------------------- */

/* Loads O as the slice before left it. */
template <int D> DEV void load_sums(const block<D> &b, float (&o)[D / 2], int m0)
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        if (m0 + 8 * h >= b.n_pairs)
            continue;
        const float *from = sums_of(b, m0 + 8 * h, 0, D);
#pragma unroll
        for (int j = 0; j < D / 8; j++) {
            float2 x = *(const float2 *)(from + 8 * j);
            o[4 * j + 2 * h] = x.x;
            o[4 * j + 2 * h + 1] = x.y;
        }
    }
}
/* After the last tile. */
template <int D>
DEV void store_sums(const block<D> &b, const float (&o)[D / 2], const softmax (&sm)[2], int m0)
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int m = m0 + 8 * h;
        float by = softmax_end(b, sm[h], m);
        if (m >= b.n_pairs)
            continue;
        float *to = sums_of(b, m, 0, D);
#pragma unroll
        for (int j = 0; j < D / 8; j++)
            *(float2 *)(to + 8 * j) = make_float2(o[4 * j + 2 * h] * by, o[4 * j + 2 * h + 1] * by);
    }
}

/* ---- Attend ------------------------------------------------------------------------------- */

DEV void add_scores(float (&x)[32], uint64_t q, uint64_t k, bool sum)
{
    wg_mma_64(x, q, k, sum);
}
DEV void add_scores(float (&x)[64], uint64_t q, uint64_t k, bool sum)
{
    wg_mma_128(x, q, k, sum);
}
/* Starts S = Q K'; the caller waits. */
template <int D>
DEV void multiply_keys(tiles<D> &s, float (&x)[plan<D>::KEYS / 2], int half, int turn)
{
    uint64_t q = operand(shared_at(s.q[half]), 16), k = operand(shared_at(s.k[turn & 1]), 16);
    bar_wait(&s.n.k_full[turn & 1], turn >> 1 & 1);
    tensor_fence();
    hold(x);
    wg_fence();
#pragma unroll
    for (int i = 0; i < columns<D>::SUMMED / 16; i++) {
        int column = i % 4 * 32; /* 16 columns: 32 of a row's 128 bytes, 4 to a block */
        add_scores(x, q + (i / 4 * BLOCK_BYTES + column) / 16,
                   k + (i / 4 * tiles<D>::KEY_BLOCK + column) / 16, i > 0);
    }
    wg_commit();
}
/* Starts O += P V; the caller waits. */
template <int D>
DEV void multiply_values(tiles<D> &s, float (&o)[D / 2], const uint32_t (&p)[plan<D>::KEYS / 16][4],
                         int turn)
{
    uint64_t v = operand(shared_at(s.v[turn & 1]), tiles<D>::KEY_BLOCK);
    bar_wait(&s.n.v_full[turn & 1], turn >> 1 & 1);
    tensor_fence();
    hold(o);
    wg_fence();
#pragma unroll
    for (int i = 0; i < plan<D>::KEYS / 16; i++)
        wg_mma_v<D>(o, p[i], v + i * 16 * ROW_BYTES / 16);
    wg_commit();
}

template <how HOW, int D> DEV void attend(const block<D> &b, tiles<D> &s, int half)
{
    int lane = lane_id(), m0 = 64 * half + 16 * ((int)(threadIdx.x >> 5) & 3) + (lane >> 2);
    float o[D / 2], x[plan<D>::KEYS / 2], keep[2];
    uint32_t p[plan<D>::KEYS / 16][4];
    softmax sm[2] = {softmax_begin(b, m0), softmax_begin(b, m0 + 8)};
#pragma unroll
    for (int i = 0; i < D / 2; i++)
        o[i] = 0;
    if (!b.slice.first)
        load_sums(b, o, m0);
    walk w = walk_begin(b);
    if (walk_on<HOW>(b, w)) {
        multiply_keys(s, x, half, 0);
        wg_wait<0>();
        hold(x);
        warp_arrive(&s.n.k_free[0]);
        soften(b, x, sm, keep, w, half);
        worth(o, keep);
        to_f16(x, p);
        int turn = 0;
        for (; walk_on<HOW>(b, w); turn++) {
            multiply_keys(s, x, half, turn + 1);
            multiply_values(s, o, p, turn);
            wg_wait<1>();
            hold(x);
            warp_arrive(&s.n.k_free[(turn + 1) & 1]);
            soften(b, x, sm, keep, w, half);
            wg_wait<0>();
            hold(o);
            warp_arrive(&s.n.v_free[turn & 1]);
            worth(o, keep);
            to_f16(x, p);
        }
        multiply_values(s, o, p, turn);
        wg_wait<0>();
        hold(o);
    }
    store_sums(b, o, sm, m0);
}

/* ---- The kernel --------------------------------------------------------------------------- */

/* o[r, h] = sum_t softmax_t(scale q[r, h] . k[t, g]) v[t, g]
 * grid:   tile of 128 pairs x KV head
 * shared: Q, two tiles of keys and of values: 82 KB in heads of 64, 162 of 128, 194 of 256
 * bound:  tensor cores, with shared memory at 0.9 of them; below 128 exponentials too; at 256 shared
 *         memory, which an S of 64 keys reads as long as it is multiplied */
template <how HOW, int D>
__global__ void __launch_bounds__(3 * GROUP_THREADS, 1) flash_hopper_kernel(flash_args x)
{
    DYN_SHARED(uint8_t, mem);
    tiles<D> &s = *(tiles<D> *)(mem + (-shared_at(mem) & 1023));
    uint32_t *list = (uint32_t *)(&s + 1);
    block<D> b = job_of<D, PAIRS, plan<D>::KEYS>(x, s.n.sees, list);
    grid_trigger();
    grid_wait();
    if (threadIdx.x == 0)
        barriers(s.n);
    if constexpr (HOW == LISTED)
        load_list(b, list);
    prepare(b, &s.n.sees, s.q[0]);
    __syncthreads();
    int role = (int)threadIdx.x / GROUP_THREADS;
    if (role == 0) {
        registers_less<plan<D>::FETCH>();
        fetch<HOW, D>(b, s);
    } else {
        registers_more<plan<D>::ATTEND>();
        attend<HOW, D>(b, s, role - 1);
    }
}

template <int D> static int allow(void)
{
    return allow_shared(flash_hopper_kernel<DENSE, D>, SHARED_BYTES<D>) |
           allow_shared(flash_hopper_kernel<LISTED, D>, with_list(SHARED_BYTES<D>, LIST_WORDS));
}
extern "C" int cu_flash128_hopper_init(void)
{
    return allow<64>() | allow<72>() | allow<128>();
}
extern "C" int cu_flash256_hopper_init(void)
{
    return allow<256>();
}

template <int D> static void launch_heads(cudaStream_t s, const flash_args &x)
{
    int pairs = x.a.q.rows * (x.a.n_head / x.a.kv.n_head_kv);
    dim3 grid((unsigned)((pairs + PAIRS - 1) / PAIRS), (unsigned)x.a.kv.n_head_kv);
    if (x.sparse.kept)
        LAUNCH((flash_hopper_kernel<LISTED, D>), grid, dim3(3 * GROUP_THREADS),
               (size_t)with_list(SHARED_BYTES<D>, x.sparse.n_word), s, x);
    else
        LAUNCH((flash_hopper_kernel<DENSE, D>), grid, dim3(3 * GROUP_THREADS), SHARED_BYTES<D>, s,
               x);
}
extern "C" void cu_flash128_hopper(cudaStream_t s, flash_args x)
{
    if (x.a.kv.head_dim == 64)
        launch_heads<64>(s, x);
    else if (x.a.kv.head_dim == 72)
        launch_heads<72>(s, x);
    else
        launch_heads<128>(s, x);
}
extern "C" void cu_flash256_hopper(cudaStream_t s, flash_args x)
{
    launch_heads<256>(s, x);
}
