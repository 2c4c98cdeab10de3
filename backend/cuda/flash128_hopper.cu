/* flash128_hopper.cu - attention of many rows over f16 keys and values in heads of 128, on GPUs of
 * compute capability 9.0. The store is read in place, or as slices that expand.cu makes of it.
 *
 *     warpgroup 0   fetch    K of tile i + 1, V of tile i; two tiles of either in flight
 *     warpgroup 1   attend   pairs  0 .. 63:    S of tile i + 1 | P V of tile i | softmax of i + 1
 *     warpgroup 2   attend   pairs 64 .. 127
 *
 * The plan is that of flash256_hopper.cu. O of a head of 128 takes half the registers, so tiles are
 * of 128 keys: a product S of 64 x 128 reads 6 KB of shared memory in the time in which two of 64 x
 * 64 read 8, and the tensor cores wait for shared memory no longer. P of 128 keys is the first
 * factor of P V from registers.
 */
#include "backend/cuda/flash_hopper.cuh"
#include "backend/cuda/launch_attend.h"

enum {
    D = 128,
    PAIRS = 128,
    KEYS = 128,
    BLOCKS = D / 64,
    KEY_BLOCK = KEYS * ROW_BYTES, /* 64 columns of a tile */
    TILE_BYTES = BLOCKS * KEY_BLOCK,
    Q_BYTES = BLOCKS * BLOCK_BYTES, /* of 64 pairs */
    FETCH_REGISTERS = 40,
    ATTEND_REGISTERS = 232,
};
static_assert(FETCH_REGISTERS + 2 * ATTEND_REGISTERS <= 504, "registers");

struct notes {
    uint64_t k_full[2], k_free[2], v_full[2], v_free[2];
    sights<PAIRS> sees;
};
struct tiles {
    uint8_t q[2][Q_BYTES], k[2][TILE_BYTES], v[2][TILE_BYTES];
    notes n;
};
enum { SHARED_BYTES = sizeof(tiles) + 1024 }; /* tiles begin at a multiple of 1024 */

using block = job<D, PAIRS, KEYS>;
using spot = place<KEYS>;

/* ---- Fetch -------------------------------------------------------------------------------- */

struct line { /* tiles in flight, of K or V */
    uint8_t (*tile)[TILE_BYTES];
    uint64_t *full, *free;
};
DEV void fetch_tile(const block &b, const line &to, const uint8_t *head,
                    const int (&at)[spot::PAGES], uint32_t in, int turn)
{
    int which = turn & 1;
    bar_wait(&to.free[which], (turn >> 1 & 1) ^ 1);
#pragma unroll
    for (int n = 0; n < KEYS / 16; n++)
        fetch_key<D>(to.tile[which] + fetch_offset() + 16 * n * ROW_BYTES, head,
                     row_of_key(b, at, n), in >> n & 1, 0, BLOCKS, KEY_BLOCK);
    bar_arrive_copied(&to.full[which]);
}

template <how HOW> DEV void fetch(const block &b, tiles &s)
{
    line k = {s.k, s.n.k_full, s.n.k_free}, v = {s.v, s.n.v_full, s.n.v_free};
    walk w = walk_begin(b);
    bool more = walk_on<HOW>(b, w);
    spot now = {}, next = {};
    key_walk_of<spot::PAGES> ahead;
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

/* ---- Attend ------------------------------------------------------------------------------- */

/* Starts S = Q K'; the caller waits. */
DEV void multiply_keys(tiles &s, float (&x)[64], int half, int turn)
{
    uint64_t q = operand(shared_at(s.q[half]), 16), k = operand(shared_at(s.k[turn & 1]), 16);
    bar_wait(&s.n.k_full[turn & 1], turn >> 1 & 1);
    tensor_fence();
    hold(x);
    wg_fence();
#pragma unroll
    for (int i = 0; i < D / 16; i++) { /* 16 columns: 32 of a row's 128 bytes, 4 to a block */
        int column = i % 4 * 32;
        wg_mma_128(x, q + (i / 4 * BLOCK_BYTES + column) / 16,
                   k + (i / 4 * KEY_BLOCK + column) / 16, i > 0);
    }
    wg_commit();
}
/* Starts O += P V; the caller waits. */
DEV void multiply_values(tiles &s, float (&o)[64], const uint32_t (&p)[8][4], int turn)
{
    uint64_t v = operand(shared_at(s.v[turn & 1]), KEY_BLOCK);
    bar_wait(&s.n.v_full[turn & 1], turn >> 1 & 1);
    tensor_fence();
    hold(o);
    wg_fence();
#pragma unroll
    for (int i = 0; i < KEYS / 16; i++)
        wg_mma_128_v(o, p[i], v + i * 16 * ROW_BYTES / 16);
    wg_commit();
}
/* Scores in the layout of a product's result to f16 in the layout of its first factor. */
DEV void to_f16(const float (&x)[64], uint32_t (&p)[8][4])
{
#pragma unroll
    for (int i = 0; i < 32; i++)
        p[i / 4][i % 4] = f32x2_to_f16(x[2 * i], x[2 * i + 1]);
}

/* Scales O of pairs m0 and m0 + 8 to their new maxima. */
DEV void worth(float (&o)[64], const float (&keep)[2])
{
    if (!warp_max_u32(keep[0] != 1 || keep[1] != 1)) /* rare after the first tiles */
        return;
#pragma unroll
    for (int i = 0; i < 64; i++)
        o[i] *= keep[i >> 1 & 1];
}
/* Loads O as the slice before left it. */
DEV void load_sums(const block &b, float (&o)[64], int m0)
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

template <how HOW> DEV void attend(const block &b, tiles &s, int half)
{
    int lane = lane_id(), m0 = 64 * half + 16 * ((int)(threadIdx.x >> 5) & 3) + (lane >> 2);
    float o[64], x[64], keep[2];
    uint32_t p[8][4];
    softmax sm[2] = {softmax_begin(b, m0), softmax_begin(b, m0 + 8)};
#pragma unroll
    for (int i = 0; i < 64; i++)
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

/* ---- The kernel --------------------------------------------------------------------------- */

DEV void barriers(notes &n)
{
    for (int i = 0; i < 2; i++) {
        bar_init(&n.k_full[i], GROUP_THREADS);
        bar_init(&n.v_full[i], GROUP_THREADS);
        bar_init(&n.k_free[i], 8); /* warps */
        bar_init(&n.v_free[i], 8);
    }
}

/* o[r, h] = sum_t softmax_t(scale q[r, h] . k[t, g]) v[t, g]
 * grid:   tile of 128 pairs x KV head
 * shared: Q, twice 128 keys and 128 values: 162 KB
 * bound:  tensor cores, with shared memory at 0.9 of them */
template <how HOW>
__global__ void __launch_bounds__(3 * GROUP_THREADS, 1) flash128_hopper_kernel(hopper_args x)
{
    DYN_SHARED(uint8_t, mem);
    tiles &s = *(tiles *)(mem + (-shared_at(mem) & 1023));
    uint32_t *list = (uint32_t *)(&s + 1);
    block b = job_of<D, PAIRS, KEYS>(x, s.n.sees, list);
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
        fetch<HOW>(b, s);
    } else {
        registers_more<ATTEND_REGISTERS>();
        attend<HOW>(b, s, role - 1);
    }
}

extern "C" int cu_flash128_hopper_init(void)
{
    return allow_shared(flash128_hopper_kernel<DENSE>, SHARED_BYTES) |
           allow_shared(flash128_hopper_kernel<LISTED>, with_list(SHARED_BYTES, LIST_WORDS));
}

extern "C" void cu_flash128_hopper(cudaStream_t s, hopper_args x)
{
    int pairs = x.a.q.rows * (x.a.n_head / x.a.kv.n_head_kv);
    dim3 grid((unsigned)((pairs + PAIRS - 1) / PAIRS), (unsigned)x.a.kv.n_head_kv);
    if (x.sparse.kept)
        LAUNCH(flash128_hopper_kernel<LISTED>, grid, dim3(3 * GROUP_THREADS),
               (size_t)with_list(SHARED_BYTES, x.sparse.n_word), s, x);
    else
        LAUNCH(flash128_hopper_kernel<DENSE>, grid, dim3(3 * GROUP_THREADS), SHARED_BYTES, s, x);
}
