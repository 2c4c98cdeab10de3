/* matmul_tall_experts_hopper.cu - the experts of prompts on GPUs of compute capability 9.0: tiles
 * of rows of one expert, which come by the sorted list of pairs, times its weights.
 *
 *               rows of a tile             Three warpgroups make 64 results each: outputs, or 32
 *             +----------------+           gated units. A unit's gate and up are made by the same
 *     192     |   32 to 128,   |           thread, from eight rows of a tile of gates and eight of
 *     outputs |  as there are  |           one of ups, so a gated unit never is in memory as two
 *             +----------------+           products.
 *
 * Blocks stay and take one (tile, outputs) after the other. So the warps that copy are at the next
 * one while results are written; down products, whose rows are short, would wait as long as they
 * multiply. A tile is multiplied as the fewest of 32, 64, 80 or 128 rows that hold it: an expert
 * has some 64 or 128 rows, and sort_kernel cuts more than 128 into equal parts. (With a fifth width
 * the compiler lacks registers for the sums and awaits every product.)
 *
 * Cycles of a multiprocessor for 192 outputs x 64 columns: tensor cores 6 for a row, so 384 at 64
 * rows and 768 at 128; making weights bf16 480 of each scheduler; the second cache gives about 29
 * bytes a cycle, and 64 rows take 15 KB with their weights, 128 take 23 KB.
 */
#include "backend/cuda/experts/prompt_experts.cuh"
#include "backend/cuda/product/tall.cuh"

enum {
    WARPS = 12,                 /* that multiply */
    THREADS = 32 * (WARPS + 4), /* three copy: a warpgroup gives its registers to the others */
    MOST_ROWS = 128,            /* of a tile */
    OUTPUTS = 16 * WARPS,       /* of a block; gated units: half of them */
    STAGE = tall_x<MOST_ROWS>::stage,
    LESS = 56, /* registers of a warp that copies, and of one that multiplies */
    MORE = 152
};
/* Rows of products. */
#define EACH_WIDTH(DO) DO(32) DO(64) DO(80) DO(128)

struct tall_experts {
    expert_args e;
    int stages; /* of weights */
};

/* What a block does, one after the other: a tile of rows, and outputs of so many. The next tile is
 * asked for before this one's work. */
template <int EACH> struct expert_work {
    const expert_tile *tiles;
    expert_tile next;
    int at, n, parts; /* of a tile: parts of EACH outputs */

    DEV void begin(const tall_experts &s)
    {
        tiles = s.e.a.tiles;
        parts = (s.e.n_out + EACH - 1) / EACH;
        n = *s.e.a.n_tiles * parts;
        at = (int)blockIdx.x;
        if (at < n)
            next = tiles[at / parts];
    }
    DEV bool take(expert_tile *t, int *part)
    {
        if (at >= n)
            return false;
        *t = next;
        *part = at % parts;
        at += (int)gridDim.x;
        if (at < n)
            next = tiles[at / parts];
        return true;
    }
};

/* Rows that a tile of n is multiplied as. */
DEV int width_of(int n)
{
#define DO(width)                                                                                  \
    if (n <= width)                                                                                \
        return width;
    EACH_WIDTH(DO)
#undef DO
    return MOST_ROWS;
}

/* Copies the rows of all tiles; by each of two warps, as in matmul_tall_hopper.cu. Rows past the
 * tile's become zeros. */
template <int EACH>
DEV void fetch_pairs(const tall_experts &s, uint8_t *xs, tall_bars &bars, int which_warp)
{
    const mma_args &a = s.e.a;
    const int piece = lane_id() & 7, row = 4 * which_warp + (lane_id() >> 3);
    const int n_step = X_STAGES * a.w.n_unit;
    expert_work<EACH> work;
    expert_tile t;
    ring_place at = {0, 0};
    int part;
    xs += piece_at(row, piece);
    work.begin(s);
    while (work.take(&t, &part)) {
        const int n = width_of(t.n) / 8;
        const uint16_t *x = a.x + 8 * piece;
        uint32_t from[MOST_ROWS / 8], there = 0; /* there: bit i for row + 8 i */
#pragma unroll
        for (int i = 0; i < MOST_ROWS / 8; i++) {
            const bool is = row + 8 * i < t.n;
            const int pair = is ? a.order[t.first + row + 8 * i] : 0;
            from[i] = (uint32_t)(pair / a.k) * (uint32_t)a.w.n_in;
            there |= (is ? 1u : 0) << i;
        }
        for (int step = 0; step < n_step; step++, x += STEP) {
            uint8_t *to = xs + at.which * STAGE;
            const bool in = STEP * step + 8 * piece < a.w.n_in;
            bar_wait(&bars.free[at.which], at.turn ^ 1);
#pragma unroll
            for (int i = 0; i < MOST_ROWS / 8; i++)
                if (i < n)
                    copy16_async(to + 8 * i * STEP_BYTES,
                                 in && (there >> i & 1) ? x + from[i] : a.x,
                                 in && (there >> i & 1));
            bar_arrive_copied(&bars.full[at.which]);
            at.next(X_STAGES);
        }
    }
    copy_commit();
    copy_wait<0>();
}

/* Copies the weights of all tiles, a unit at a time. By one warp. Warp 2 i of the block has a tile
 * of gates and warp 2 i + 1 the ups of the same units, if GATED. */
template <int K, bool GATED, int EACH>
DEV void fetch_experts(const tall_experts &s, uint8_t *units, tall_bars &bars)
{
    const expert_args &e = s.e;
    const packed &w = e.a.w;
    expert_work<EACH> work;
    expert_tile t;
    ring_place at = {0, 0};
    int part;
    work.begin(s);
    while (work.take(&t, &part)) {
        tall_copies<K, WARPS> c;
#pragma unroll
        for (int i = 0; i < c.each; i++) {
            const int mine = c.tile(i), last = (e.n_out + 15) / 16 - 1;
            const bool up = GATED && mine & 1;
            const int tile = min(part * (EACH / 16) + (GATED ? mine / 2 : mine), last);
            const packed &of = up ? e.up : w;
            c.begin(i, of, mat_at(of, (size_t)t.expert), tile + (up ? e.up_tile : 0));
        }
        for (int k = 0; k < w.n_unit; k++, at.next(s.stages))
            c.copy(k, w.n_group, units, bars, at);
    }
}

/* Writes a warp's results for the N rows of a tile. pairs: of row lane + 32 i; tile: the warp's, of
 * outputs; in a pair of warps both have the same of gated units, and eight of them each. */
template <bool GATED, int N>
DEV void write_results(const expert_args &s, const float (&acc)[N / 2], const expert_tile &t,
                       const int (&pairs)[MOST_ROWS / 32], int tile, int half)
{
    const int gid = lane_id() >> 2, tid = lane_id() & 3;
    const int o = 16 * tile + (GATED ? 8 * half : 0) + gid;
#pragma unroll
    for (int j = 0; j < N / 8; j++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int r = 8 * j + 2 * tid + e;
            const size_t p = shfl_u32((uint32_t)pairs[j / 4], r & 31);
            float *y = s.a.y.at + p * s.a.y.stride + o;
            if constexpr (GATED)
                write_unit(s, p, o, unit_value(s, t.expert, o, acc[4 * j + e], acc[4 * j + 2 + e]),
                           r < t.n && o < s.n_out);
            else
#pragma unroll
                for (int h = 0; h < 2; h++)
                    if (r < t.n && o + 8 * h < s.n_out)
                        y[8 * h] = acc[4 * j + 2 * h + e];
        }
}

/* Takes its part in the rings without multiplying: a warpgroup past the last output. */
DEV void pass_rows(int n_unit, int stages, tall_bars &bars, ring_place &at, int &x_turn)
{
    for (int k = 0; k < n_unit; k++, x_turn ^= 1) {
        bar_wait(&bars.units_full[at.which], at.turn);
        for (int i = 0; i < X_STAGES; i++) {
            bar_wait(&bars.full[i], x_turn);
            warp_arrive(&bars.free[i]);
        }
        warp_arrive(&bars.units_free[at.which]);
        at.next(stages);
    }
}

/* y[p, o] = sum_i x[p / k, i] W[expert(p), o, i]      W: packed, x: bf16, sums f32
 * GATED: y[p, o] = act(gate) up, both such sums
 * grid:   a block for each multiprocessor
 * shared: tall.cuh
 * bound:  tensor cores at 128 rows; making weights bf16 and reading them at 64 */
template <int K, bool GATED>
__global__ void __launch_bounds__(THREADS, 1) tall_experts_kernel(tall_experts s)
{
    DYN_SHARED(uint8_t, mem);
    constexpr int EACH = GATED ? OUTPUTS / 2 : (int)OUTPUTS;
    uint8_t *xs = mem + (-shared_at(mem) & 1023);
    uint8_t *units = xs + X_STAGES * STAGE;
    uint8_t *tables = units + s.stages * WARPS * staged<K>::bytes;
    tall_bars &bars = *(tall_bars *)(tables + WARPS * scale_table<K>);
    const int warp = (int)threadIdx.x >> 5;

    grid_trigger();
    if (threadIdx.x == 0)
        bars.init(WARPS, s.stages);
    __syncthreads();
    grid_wait(); /* the list is written */
    if (warp >= WARPS) {
        registers_less<LESS>();
        if (warp < WARPS + 2)
            fetch_pairs<EACH>(s, xs, bars, warp - WARPS);
        else if (warp == WARPS + 2)
            fetch_experts<K, GATED, EACH>(s, units, bars);
        return;
    }
    registers_more<MORE>();
    const int gid = lane_id() >> 2, half = warp & 1;
    const int mine = (GATED ? warp - half : warp) * staged<K>::bytes;
    const tall_rows of = {{mine, GATED ? mine + staged<K>::bytes : mine},
                          {GATED ? gid + 8 * half : gid, GATED ? gid + 8 * half : gid + 8},
                          tables + warp * scale_table<K>};
    expert_work<EACH> work;
    expert_tile t;
    ring_place at = {0, 0};
    int part, x_turn = 0;
    work.begin(s);
    while (work.take(&t, &part)) {
        const int group = part * EACH + (warp / 4) * (EACH / (WARPS / 4));
        if (group >= s.e.n_out) {
            pass_rows(s.e.a.w.n_unit, s.stages, bars, at, x_turn);
            continue;
        }
        int pairs[MOST_ROWS / 32]; /* for the end, when they have arrived */
#pragma unroll
        for (int i = 0; i < MOST_ROWS / 32; i++) {
            const int r = lane_id() + 32 * i;
            pairs[i] = r < t.n ? s.e.a.order[t.first + r] : 0;
        }
        const int tile = group / 16 + (GATED ? warp % 4 / 2 : warp % 4);
        switch (width_of(t.n)) {
#define DO(width)                                                                                  \
    case width: {                                                                                  \
        float acc[width / 2];                                                                      \
        multiply_rows<K, width, STAGE, WARPS * staged<K>::bytes>(                                  \
            acc, of, s.e.a.w.n_unit, s.stages, units, xs, bars, at, x_turn);                       \
        write_results<GATED, width>(s.e, acc, t, pairs, tile, half);                               \
        break;                                                                                     \
    }
            EACH_WIDTH(DO)
#undef DO
        }
    }
}

/* ---- Launching ------------------------------------------------------------------------------ */

template <int K, bool GATED> static bool launch_experts(cudaStream_t s, const expert_args &e)
{
    const tall_experts a = {e, tall_stages<K, MOST_ROWS, WARPS>()};
    if (a.stages < 2)
        return false;
    LAUNCH((tall_experts_kernel<K, GATED>), dim3((unsigned)cu_gpu.n_sm), dim3(THREADS),
           (size_t)(tall_bytes<K, MOST_ROWS, WARPS>(a.stages)), s, a);
    return true;
}

/* The one rule for what is computed here: on GPUs of 9.0, experts with more rows than a tile of
 * short_experts_kernel, whose weights are all on the device. */
template <bool GATED>
static bool launch_kind(cudaStream_t s, const expert_args &a, const expert_lists &l)
{
    const packed &w = a.a.w;
    if (!cu_gpu.wgmma || w.where || expert_tile_rows(a.a.rows, l.n_expert) < 64)
        return false;
    return by_layout(plain_packs, w.kind, [&](auto k) { return launch_experts<k, GATED>(s, a); });
}

extern "C" bool cu_expert_tall(cudaStream_t s, dev_mat y, dev_quant x, packed w, expert_lists l,
                               int32_t k)
{
    return launch_kind<false>(s, args_of_product(y, x, w, l, k), l);
}

extern "C" bool cu_expert_units(cudaStream_t s, expert_units u, expert_lists l, int32_t k)
{
    const expert_args a = args_of_units(u, l, k);
    if (u.y.cols % 2) /* a lane copies two units */
        return false;
    return launch_kind<true>(s, a, l) || cu_short_experts(s, a, l, true);
}

extern "C" int cu_tall_experts_init(void)
{
    const int n = cu_gpu.shared_block;
    return each_layout(plain_packs, [=](auto k) {
        return allow_shared(tall_experts_kernel<k, false>, n) |
               allow_shared(tall_experts_kernel<k, true>, n);
    });
}
