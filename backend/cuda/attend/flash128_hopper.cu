/* flash128_hopper.cu - attention of many rows over f16 keys and values in heads of 64, 72 (of
 * vision towers) and 128, on GPUs of compute capability 9.0. The store is read in place, or as
 * slices that expand.cu makes of it. flash_pairs.cuh draws who does what.
 *
 * The plan is that of flash256_hopper.cu. O of a head of 128 takes half the registers, so tiles are
 * of 128 keys: a product S of 64 x 128 reads 6 KB of shared memory in the time in which two of 64 x
 * 64 read 8, and the tensor cores wait for shared memory no longer. P of 128 keys is the first
 * factor of P V from registers. A head of 72 is 80 columns of S, the last eight of them zeros, and
 * 72 of O.
 */
#include "backend/cuda/attend/flash_pairs.cuh"
#include "backend/cuda/attend/launch_attend.h"

enum {
    KEYS = 128,
    FETCH_REGISTERS = 40,
    ATTEND_REGISTERS = 232,
};
static_assert(FETCH_REGISTERS + 2 * ATTEND_REGISTERS <= 504, "registers");

template <int D> using tiles = pair_tiles<D, KEYS>;
template <int D> using block = job<D, PAIRS, KEYS>;
/* Tiles begin at a multiple of 1024. */
template <int D> constexpr int SHARED_BYTES = sizeof(tiles<D>) + 1024;

/* ---- Attend ------------------------------------------------------------------------------- */

/* Starts S = Q K'; the caller waits. */
template <int D> DEV void multiply_keys(tiles<D> &s, float (&x)[64], int half, int turn)
{
    uint64_t q = operand(shared_at(s.q[half]), 16), k = operand(shared_at(s.k[turn & 1]), 16);
    bar_wait(&s.n.k_full[turn & 1], turn >> 1 & 1);
    tensor_fence();
    hold(x);
    wg_fence();
#pragma unroll
    for (int i = 0; i < columns<D>::SUMMED / 16;
         i++) { /* 16 columns: 32 of a row's 128 bytes, 4 to a block */
        int column = i % 4 * 32;
        wg_mma_128(x, q + (i / 4 * BLOCK_BYTES + column) / 16,
                   k + (i / 4 * tiles<D>::KEY_BLOCK + column) / 16, i > 0);
    }
    wg_commit();
}
DEV void add_values(float (&o)[32], const uint32_t (&p)[4], uint64_t v)
{
    wg_mma_64_v(o, p, v);
}
DEV void add_values(float (&o)[36], const uint32_t (&p)[4], uint64_t v)
{
    wg_mma_72_v(o, p, v);
}
DEV void add_values(float (&o)[64], const uint32_t (&p)[4], uint64_t v)
{
    wg_mma_128_v(o, p, v);
}
/* Starts O += P V; the caller waits. */
template <int D>
DEV void multiply_values(tiles<D> &s, float (&o)[D / 2], const uint32_t (&p)[8][4], int turn)
{
    uint64_t v = operand(shared_at(s.v[turn & 1]), tiles<D>::KEY_BLOCK);
    bar_wait(&s.n.v_full[turn & 1], turn >> 1 & 1);
    tensor_fence();
    hold(o);
    wg_fence();
#pragma unroll
    for (int i = 0; i < KEYS / 16; i++)
        add_values(o, p[i], v + i * 16 * ROW_BYTES / 16);
    wg_commit();
}

template <how HOW, int D> DEV void attend(const block<D> &b, tiles<D> &s, int half)
{
    int lane = lane_id(), m0 = 64 * half + 16 * ((int)(threadIdx.x >> 5) & 3) + (lane >> 2);
    float o[D / 2], x[64], keep[2];
    uint32_t p[8][4];
    softmax sm[2] = {softmax_begin(b, m0), softmax_begin(b, m0 + 8)};
#pragma unroll
    for (int i = 0; i < D / 2; i++)
        o[i] = 0;
    if (!b.slice.first)
        load_sums<D, KEYS>(b, o, m0);
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
    store_sums<D, KEYS>(b, o, sm, m0);
}

/* ---- The kernel --------------------------------------------------------------------------- */

/* o[r, h] = sum_t softmax_t(scale q[r, h] . k[t, g]) v[t, g]
 * grid:   tile of 128 pairs x KV head
 * shared: Q, twice 128 keys and 128 values: 162 KB, in heads of 64 82 KB
 * bound:  tensor cores, with shared memory at 0.9 of them; below 128 exponentials too */
template <how HOW, int D>
__global__ void __launch_bounds__(3 * GROUP_THREADS, 1) flash128_hopper_kernel(flash_args x)
{
    DYN_SHARED(uint8_t, mem);
    tiles<D> &s = *(tiles<D> *)(mem + (-shared_at(mem) & 1023));
    uint32_t *list = (uint32_t *)(&s + 1);
    block<D> b = job_of<D, PAIRS, KEYS>(x, s.n.sees, list);
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
        registers_less<FETCH_REGISTERS>();
        fetch<HOW, D, KEYS>(b, s);
    } else {
        registers_more<ATTEND_REGISTERS>();
        attend<HOW, D>(b, s, role - 1);
    }
}

template <int D> static int allow(void)
{
    return allow_shared(flash128_hopper_kernel<DENSE, D>, SHARED_BYTES<D>) |
           allow_shared(flash128_hopper_kernel<LISTED, D>, with_list(SHARED_BYTES<D>, LIST_WORDS));
}
extern "C" int cu_flash128_hopper_init(void)
{
    return allow<64>() | allow<72>() | allow<128>();
}

template <int D> static void launch_heads(cudaStream_t s, const flash_args &x)
{
    int pairs = x.a.q.rows * (x.a.n_head / x.a.kv.n_head_kv);
    dim3 grid((unsigned)((pairs + PAIRS - 1) / PAIRS), (unsigned)x.a.kv.n_head_kv);
    if (x.sparse.kept)
        LAUNCH((flash128_hopper_kernel<LISTED, D>), grid, dim3(3 * GROUP_THREADS),
               (size_t)with_list(SHARED_BYTES<D>, x.sparse.n_word), s, x);
    else
        LAUNCH((flash128_hopper_kernel<DENSE, D>), grid, dim3(3 * GROUP_THREADS), SHARED_BYTES<D>,
               s, x);
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
