/* flash512_one_hopper.cu - attention of many rows over one f16 stream (keys.cuh) with heads of 512,
 * on GPUs of compute capability 9.0. flash512_hopper.cuh has the parts of a block and what they do.
 *
 * A tile of u is copied once: it is V, and where nothing turns it is K as well. Units are columns,
 * for S and P V alike, and there are two tiles: while one is summed up the next is scored.
 *
 *     unit           0        1        2        3
 *     columns    0 .. 127    ..     256 ..      ..     of 64 keys, in blocks of 64 columns
 *     turns      64                  64
 *
 * The fetching warpgroup copies the units that have turning columns first, then makes the 2 x 64
 * turning columns of keys that S takes in place of theirs. When S is done P goes where they were.
 */
#include "backend/cuda/flash512_hopper.cuh"
#include "backend/cuda/keys.cuh"

enum { TURN = key_shape<D>::TURN, MAKER_KEYS = KEYS / 4 /* of a warp */ };
static_assert(TURN == 64, "what turns fills a block of 64 columns, and another half a head later");

struct tiles_one {
    static constexpr bool ONE = true;
    static constexpr int FETCH_REGISTERS = 48, SCORE_REGISTERS = 128;
    uint8_t q[D / 64 * BLOCK_BYTES], u[2][UNITS][UNIT_BYTES], made[2][2][BLOCK_BYTES];
    shared_notes n;
    uint64_t u_full[2][UNITS], u_free[2][UNITS], made_full[2], scored;
};
enum { SHARED_BYTES = sizeof(tiles_one) + 1024 }; /* tiles begin at a multiple of 1024 */
static_assert(SHARED_BYTES <= 227 << 10, "shared memory");

DEV void barriers(tiles_one &s)
{
    for (int i = 0; i < 2; i++) {
        for (int u = 0; u < UNITS; u++) {
            bar_init(&s.u_full[i][u], GROUP_THREADS);
            bar_init(&s.u_free[i][u], 4); /* warps */
        }
        bar_init(&s.made_full[i], GROUP_THREADS);
    }
    bar_init(&s.scored, 4);
}

/* ---- Fetch -------------------------------------------------------------------------------- */

DEV void fetch_unit(tiles_one &s, const place &p, int unit, int turn)
{
    int which = turn & 1;
    bar_wait(&s.u_free[which][unit], (turn >> 1 & 1) ^ 1);
#pragma unroll
    for (int n = 0; n < 4; n++)
        fetch_key<D>(s.u[which][unit] + fetch_offset() + 16 * n * ROW_BYTES, p.k, p.at[n], 2 * unit,
                     2, BLOCK_BYTES);
    bar_arrive_copied(&s.u_full[which][unit]);
}

/* A tile to make keys of: its first key, and the first row of the run that it belongs to. */
struct made_tile {
    int t0, r0;
};

/* What turns of key k of a tile, a lane's two pairs of it. */
DEV void make_one(tiles_one &s, int which, int k, const key_maker<D> &m, float4 turns)
{
    int at = piece_at(k, m.e / 4) + m.e % 4 * 4;
    uint2 pairs = make_uint2(*(const uint32_t *)(s.u[which][0] + at),
                             *(const uint32_t *)(s.u[which][2] + at));
    uint2 made = turned_pairs(pairs, m, turns);
    *(uint32_t *)(s.made[which][0] + at) = made.x;
    *(uint32_t *)(s.made[which][1] + at) = made.y;
}

DEV void make(const block &b, tiles_one &s, const made_tile &t, const key_maker<D> &m, int turn)
{
    const attend_args &a = b.a;
    int which = turn & 1, phase = turn >> 1 & 1;
    int first = (int)threadIdx.x / 32 * MAKER_KEYS;
    float4 base = base_turns(a.kv, m.e, (t.t0 + first) & ~31);
    bar_wait(&s.u_full[which][0], phase);
    bar_wait(&s.u_full[which][2], phase);
    bar_wait(&s.n.p_free[which], phase ^ 1);
#pragma unroll 4
    for (int k = first; k < first + MAKER_KEYS; k++)
        make_one(s, which, k, m, turns_add(base, place_turns<D>(a.kv, m.e, k & 31)));
    const dev_rows &rows = a.st.rows;
    if (rows.seen && t.t0 + KEYS > rows.first[t.r0]) {
        int seq = rows.seq[t.r0];
#pragma unroll 1
        for (int k = first; k < first + MAKER_KEYS; k++) {
            int pos = tree_pos(a.all, seq, t.t0 + k);
            make_one(s, which, k, m,
                     turns_add(base_turns(a.kv, m.e, pos & ~31),
                               place_turns<D>(a.kv, m.e, pos & 31)));
        }
    }
    tensor_fence();
    bar_arrive(&s.made_full[which]);
}

DEV void fetch(const block &b, tiles_one &s)
{
    const key_maker<D> maker = key_maker_of<D>(b.a.kv);
    walk w = walk_begin(b);
    bool more = walk_on(b, w);
    place p = {};
    made_tile now = {}, before = {};
    int made = 0;
    for (int turn = 0; more; turn++) {
        place_on(b, w, p);
        fetch_unit(s, p, 0, turn);
        fetch_unit(s, p, 2, turn);
        fetch_unit(s, p, 1, turn);
        fetch_unit(s, p, 3, turn);
        before = now;
        now = made_tile{w.t0, w.r0};
        more = walk_on(b, w);
        if (turn == 0 && more)
            continue; /* the second tile is on its way before the first is waited for */
#pragma unroll 1
        for (; made <= turn; made++)
            make(b, s,
                 made_tile{made == turn ? now.t0 : before.t0, made == turn ? now.r0 : before.r0},
                 maker, made);
    }
    copy_commit();
    copy_wait<0>();
}

/* ---- Score and collect -------------------------------------------------------------------- */

/* S of a tile, of a block of columns of Q and K that has come. */
DEV void multiply_block(float (&x)[32], uint64_t q, uint64_t k, bool first)
{
#pragma unroll
    for (int i = 0; i < 4; i++) /* 16 columns each: 32 of a row's 128 bytes */
        wg_mma_64(x, q + i * 32 / 16, k + i * 32 / 16, !first || i > 0);
}
DEV void come(uint64_t *full, int phase)
{
    bar_wait(full, phase);
    tensor_fence();
    wg_fence();
}

/* What stands still first, in the order in which it comes, then what turns. */
DEV void multiply_keys(tiles_one &s, float (&x)[32], int turn)
{
    const int block = BLOCK_BYTES / 16;
    int which = turn & 1, phase = turn >> 1 & 1;
    uint64_t q = operand(shared_at(s.q), 16), u = operand(shared_at(s.u[which]), 16);
    uint64_t made = operand(shared_at(s.made[which]), 16);
    hold(x);
    come(&s.u_full[which][0], phase);
    multiply_block(x, q + 1 * block, u + 1 * block, true);
    come(&s.u_full[which][2], phase);
    multiply_block(x, q + 5 * block, u + 5 * block, false);
#pragma unroll
    for (int i = 2; i <= 6; i += 4) {
        come(&s.u_full[which][i / 2], phase);
        multiply_block(x, q + i * block, u + i * block, false);
        multiply_block(x, q + (i + 1) * block, u + (i + 1) * block, false);
    }
    come(&s.made_full[which], phase);
    multiply_block(x, q, made, false);
    multiply_block(x, q + 4 * block, made + 1 * block, false);
    wg_commit();
    wg_wait<0>();
    hold(x);
    __syncwarp(); /* all lanes have waited for the tile before */
    warp_arrive(&s.scored);
}

/* Where the tile's turning columns were, once all warps have multiplied them. */
DEV uint8_t *p_at(tiles_one &s, int turn)
{
    return s.made[turn & 1][0];
}
DEV void p_wait(tiles_one &s, int turn)
{
    bar_wait(&s.scored, turn & 1);
    bar_wait(&s.n.p_free[turn & 1], (turn >> 1 & 1) ^ 1); /* keep and grown are read, too */
}

/* O += P V of a tile; the half's units are free afterwards. */
DEV void multiply_values(tiles_one &s, float (&o)[2][64], int half, int turn)
{
    int which = turn & 1, phase = turn >> 1 & 1;
    uint64_t p = operand(shared_at(p_at(s, turn)), 16);
    uint64_t v = operand(shared_at(s.u[which]) + half * 2 * UNIT_BYTES, BLOCK_BYTES);
    hold(o[0]);
    hold(o[1]);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        come(&s.u_full[which][2 * half + i], phase);
#pragma unroll
        for (int k = 0; k < KEYS / 16; k++)
            wg_mma_128(o[i], p + k * 32 / 16, v + (i * UNIT_BYTES + k * 16 * ROW_BYTES) / 16);
        wg_commit();
    }
    wg_wait<1>();
    warp_arrive(&s.u_free[which][2 * half]);
    wg_wait<0>();
    hold(o[0]);
    hold(o[1]);
    warp_arrive(&s.u_free[which][2 * half + 1]);
}

/* ---- The kernel --------------------------------------------------------------------------- */

/* o[r, h] = sum_t softmax_t(scale q[r, h] . RoPE_t(w u[t, g])) u[t, g]
 * grid:   tile of 64 pairs x KV head, the last rows first: they see most keys
 * shared: Q, two tiles of 64 u, what turns of their keys or P: 226 KB
 * bound:  shared memory, then the tensor cores: half of what two streams copy */
__global__ void __launch_bounds__(4 * GROUP_THREADS, 1) flash512_one_hopper_kernel(attend_args a)
{
    DYN_SHARED(uint8_t, mem);
    attend_tiles(a, *(tiles_one *)(mem + (-shared_at(mem) & 1023)));
}

extern "C" int cu_flash512_one_hopper_init(void)
{
#ifdef CARAT_EMU
    return 0;
#else
    return (int)cudaFuncSetAttribute(flash512_one_hopper_kernel,
                                     cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES);
#endif
}

extern "C" void cu_flash512_one_hopper(cudaStream_t s, attend_args a)
{
    int pairs = a.q.rows * (a.n_head / a.kv.n_head_kv);
    dim3 grid((unsigned)((pairs + PAIRS - 1) / PAIRS), (unsigned)a.kv.n_head_kv);
    LAUNCH(flash512_one_hopper_kernel, grid, dim3(4 * GROUP_THREADS), SHARED_BYTES, s, a);
}
