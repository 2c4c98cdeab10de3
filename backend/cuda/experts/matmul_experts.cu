/* matmul_experts.cu - products of experts for a few rows; rows of one expert share its weights.
 *
 *     pair     (row, expert); of 16 rows that choose 8 of 128 experts, two in five share theirs
 *     group    up to T pairs of one expert: two, or of more than 32 rows four, where
 *              matmul_grouped.cu does not take them; every block sorts the pairs itself
 *     item     a group times 8 tiles of outputs, a warp to a tile; of a gated unit 4 >> lg tiles of
 *              W and as many of W', 1 << lg warps to a tile (product_warps)
 *     block    computes item b, then the next free one (ticket)
 *
 * Sorting takes half a microsecond and needs no kernel of its own. At the end of an item the next
 * item's weights and rows are already in flight. The product after the gated one knows its experts
 * from the start: it sorts and requests its first units under the tail of the gated one, and waits
 * only then. A group's codes are unpacked once. Up to 32 rows, groups of more than two pairs are
 * rare, and they would cost every block registers. With 64 rows an expert has four pairs on
 * average, and the second-level cache is read once for each group of them. A row's result is
 * bit-identical to that of matmul_vec.cu.
 *
 * COLD: pairs that the host's cores compute (offload.cuh) are in no group.
 */
#include "backend/cuda/experts/offload.cuh"
#include "backend/cuda/product/launch_products.h"
#include "backend/cuda/experts/pairs.cuh"
#include "backend/cuda/product/units.cuh"

enum { WARPS = 8, THREADS = 32 * WARPS, NO_PAIR = 0xffff, TWO_ROWS = 32 /* most for T = 2 */ };

/* The pairs p[0], .. of one expert; the last may be NO_PAIR. */
template <int T> struct __align__(8) group
{
    uint16_t expert, p[T], unused[T == 2 ? 1 : 3];
};

struct expert_args : pair_args {
    planes w, up;             /* of expert 0; up begins at row up_row */
    size_t w_bytes, up_bytes; /* from one expert to the next */
    const int64_t *where;     /* as packed.where and count */
    uint32_t *count;
    int32_t n_group, n_unit, lg; /* log2 of the warps per tile */
    int32_t columns, n_expert;   /* columns: items of a group */
    int32_t kind;
    offload_view offload; /* COLD */
};

struct list_shared {
    int sums[WARPS], n_groups, drawn[2];
};

/* A block's shared memory: rows of two items, units of each warp, the groups, a count per
 * expert. */
template <int K, int T> struct block_memory {
    static constexpr bool two = T > 2 || traits<K>::six || traits<K>::bytes || traits<K>::five;
    static constexpr int blocks = two ? 2 : 3; /* that fit into the registers of a multiprocessor */
    static size_t bytes(int n_unit, int n_pairs, int n_expert)
    {
        return (size_t)n_unit * UNIT * 40 * T * 2 + (size_t)WARPS * slot<K>::bytes +
               (size_t)n_pairs * sizeof(group<T>) + (size_t)(n_pairs + 3) / 4 * 4 +
               (size_t)n_expert * 4;
    }
};

/* Makes the groups: experts ascending, pairs ascending within an expert, the same in every block.
 * All pairs of an expert are offloaded, or none. count: zeros, one per expert; ids: a byte per
 * pair. Ends with a barrier. */
template <int T, bool OFFLOAD>
DEV void make_groups(const expert_args &a, group<T> *list, int *count, uint32_t *ids,
                     list_shared *s)
{
    int e = (int)threadIdx.x;
#pragma unroll 1
    for (int p = (int)threadIdx.x; p < a.n_pairs; p += THREADS) {
        int id = own_mat(a.own, load_fresh(a.expert + p));
        ((uint8_t *)ids)[p] = (uint8_t)id;
        if (id < 0)
            continue;
        if (!OFFLOAD || offload_place(a.offload, p) < 0)
            atomicAdd(&count[id], 1);
        if (a.count && blockIdx.x == 0)
            atomicAdd(&a.count[id], 1u);
    }
    __syncthreads();
    int n = e < a.n_expert ? count[e] : 0, mine = (n + T - 1) / T;
    int end = sum_up_to(mine, s->sums);
    if (e < a.n_expert)
        count[e] = end - mine;
    if (e == THREADS - 1)
        s->n_groups = end;
#pragma unroll 1
    for (int i = end - mine; i < end; i++)
        list[i].expert = (uint16_t)e;
    if (n % T)
#pragma unroll
        for (int i = 1; i < T; i++)
            if (i >= n % T)
                list[end - 1].p[i] = NO_PAIR;
    __syncthreads();
#pragma unroll 1
    for (int p = (int)threadIdx.x; p < a.n_pairs; p += THREADS) {
        if ((OFFLOAD && offload_place(a.offload, p) >= 0) || is_left_out(a, ids, p))
            continue;
        int k = rank_of(ids, p);
        list[count[((uint8_t *)ids)[p]] + k / T].p[k % T] = (uint16_t)p;
    }
    __syncthreads();
}

/* The rows of a group in shared memory, side by side as tile_sums reads them. */
struct group_rows {
    uint4 *q;
    float2 *s;
};
template <int T> DEV group_rows rows_at(char *mem, int n_unit, int turn)
{
    char *at = mem + turn * n_unit * UNIT * 40 * T;
    return (group_rows){(uint4 *)at, (float2 *)(at + n_unit * UNIT * 32 * T)};
}

/* Starts the copy of a group's rows. Each thread copies what it converts in settle_rows. */
template <int T> DEV void copy_group_rows(const expert_args &a, group<T> g, group_rows to)
{
#pragma unroll
    for (int r = 0; r < T; r++) {
        if (g.p[r] == NO_PAIR)
            break;
        size_t from = quant_index(a.x, g.p[r] / a.x_pairs, 0);
        const uint4 *q = (const uint4 *)a.x.q + 2 * from;
        const float2 *s = (const float2 *)a.x.s + from;
#pragma unroll 1
        for (int i = (int)threadIdx.x; i < 2 * a.n_group; i += THREADS)
            copy16_async(to.q + (i >> 1) * 2 * T + 2 * r + (i & 1),
                         q + 2 * (i >> 1) * a.x.tile + (i & 1), true);
#pragma unroll 1
        for (int i = (int)threadIdx.x; i < a.n_group; i += THREADS)
            copy8_async(to.s + i * T + r, s + i * a.x.tile);
    }
    copy_commit();
}

/* After the copy: converts the sums for formats with an offset. */
template <int K, int T> DEV void settle_rows(const expert_args &a, group<T> g, group_rows at)
{
    int n = sums<K>::floats ? a.n_group : 0;
#pragma unroll
    for (int r = 0; r < T; r++) {
        if (g.p[r] == NO_PAIR)
            break;
#pragma unroll 1
        for (int i = (int)threadIdx.x; i < n; i += THREADS) {
            float2 *s = at.s + i * T + r;
            s->y = scaled_sum(*s);
        }
    }
}

/* Clears the columns past the end of a row, once: copies never write them. */
template <int T> DEV void clear_tails(const expert_args &a, char *mem)
{
    int first = a.n_group * T, end = a.n_unit * UNIT * T;
    for (int turn = 0; turn < 2; turn++) {
        group_rows at = rows_at<T>(mem, a.n_unit, turn);
        for (int i = first + (int)threadIdx.x; i < end; i += THREADS) {
            at.q[2 * i] = at.q[2 * i + 1] = make_uint4(0, 0, 0, 0);
            at.s[i] = make_float2(0, 0);
        }
    }
}

/* An item: its group, and its column of tiles. */
struct place {
    int group, column;
};
DEV place place_of(const expert_args &a, int item)
{
    int g = item / a.columns;
    return (place){g, item - g * a.columns};
}

/* A warp's tile of a column; its first unit; how many units it has, 0 if the tile is past the end.
 */
template <bool GLU> DEV int warp_of_half()
{
    return (int)threadIdx.x >> 5 & (GLU ? WARPS / 2 - 1 : WARPS - 1);
}
template <bool GLU> DEV int tile_of(const expert_args &a, int column)
{
    return column * ((GLU ? WARPS / 2 : WARPS) >> a.lg) + (warp_of_half<GLU>() >> a.lg);
}
template <bool GLU> DEV int first_unit(const expert_args &a)
{
    return warp_of_half<GLU>() & ((1 << a.lg) - 1);
}
template <bool GLU> DEV int units_of(const expert_args &a, int tile)
{
    int n = (a.n_unit - first_unit<GLU>(a) + (1 << a.lg) - 1) >> a.lg;
    return tile * TILE_ROWS < a.n_out ? n : 0;
}

template <int K, bool GLU, bool OFFLOAD>
DEV void begin_units(const expert_args &a, lane_units<K> *t, int tile, int expert)
{
    bool up = GLU && (int)threadIdx.x >= THREADS / 2;
    planes w = up ? a.up : a.w;
    uint32_t seq;
    size_t on = a.where ? (size_t)load_fresh(a.where + expert)
                        : (size_t)expert * (up ? a.up_bytes : a.w_bytes);
    if (OFFLOAD && a.offload.prefetch.state) {
        int m = prefetch_buffer(a.offload.prefetch, expert + a.own.first, &seq);
        if (m >= 0 && prefetch_arrived(a.offload.prefetch, m, seq))
            on = (size_t)(a.offload.prefetch.where + m * a.offload.prefetch.step);
    }
    w.codes += on, w.high += on, w.scale += on, w.super += on;
    int n = units_of<GLU>(a, tile);
    if (n)
        t->begin(w, a.lg, a.n_group, a.n_unit, tile, first_unit<GLU>(a));
    if (n < 2)
        copy_commit(); /* commits stay in step with longer tiles */
}

DEV float *result_at(const expert_args &a, int p, int o)
{
    return a.y.at + p / a.k * a.y.stride + (int64_t)(p % a.k) * a.n_out + o;
}

/* Adds the warps' sums of a gated item; a warp writes 32 outputs of one pair. */
template <int T, bool OFFLOAD>
DEV void write_gated(const expert_args &a, int column, group<T> g, const float (*part)[WARPS][16])
{
    int warp = (int)threadIdx.x >> 5, n_tiles = WARPS / 2 >> a.lg, halves = n_tiles / 2;
    int r = warp / halves, k = warp % halves * 2 + (lane_id() >> 4);
    int tile = column * n_tiles + k, o = tile * TILE_ROWS + (lane_id() & 15);
    int p = g.p[0];
#pragma unroll
    for (int i = 1; i < T; i++)
        p = r == i ? g.p[i] : p;
    if (r >= T || p == NO_PAIR || (tile & ~1) * TILE_ROWS >= a.n_out)
        return;
    float v = 0, u = 0;
    if (o < a.n_out) {
        for (int i = 0; i < 1 << a.lg; i++) {
            v += part[r][(k << a.lg) + i][lane_id() & 15];
            u += part[r][WARPS / 2 + (k << a.lg) + i][lane_id() & 15];
        }
        v = unit_of(a.unit, a.silu, v, u, (size_t)g.expert, o);
        *result_at(a, p, o) = v;
    }
    if (a.copy.q)
        quantise_warp(v, a.copy, p, tile >> 1);
}

/* A warp's tile of a group. Gated: its sums go to part; else its outputs to y. The lower half of
 * the lanes has the even pairs, the upper half the odd ones. */
template <int K, bool GLU, int T>
DEV void expert_tile_sums(const expert_args &a, lane_units<K> *t, int column, group<T> g,
                          group_rows at, float (*part)[WARPS][16])
{
    shared_rows x = {at.q, at.s};
    int tile = tile_of<GLU>(a, column), n = units_of<GLU>(a, tile), unit = first_unit<GLU>(a);
    int second = lane_id() >> 4, o = tile * TILE_ROWS + (lane_id() & 15), p[T / 2];
    float share[T / 2], sum[T];
#pragma unroll
    for (int i = 0; i < T / 2; i++) {
        p[i] = second ? g.p[2 * i + 1] : g.p[2 * i];
        share[i] = !GLU && p[i] != NO_PAIR ? a.share[p[i]] : 0;
    }
#pragma unroll
    for (int i = 1; i < T; i++)
        sum[i] = 0;
    if (T > 2 && g.p[T - 2] != NO_PAIR)
        tile_sums<K, T, T>(sum, t, n, x, unit, 1 << a.lg);
    else if (g.p[1] != NO_PAIR)
        tile_sums<K, 2, T>(sum, t, n, x, unit, 1 << a.lg);
    else
        tile_sums<K, 1, T>(sum, t, n, x, unit, 1 << a.lg);
#pragma unroll
    for (int i = 0; i < T / 2; i++) {
        float v = second ? sum[2 * i + 1] : sum[2 * i];
        if (GLU)
            part[2 * i + second][threadIdx.x >> 5][lane_id() & 15] = v;
        else if (o < a.n_out && p[i] != NO_PAIR)
            *result_at(a, p[i], o) = mul_rn(v, share[i]);
    }
}

/* y[p] = act(W x[p]) * (W' x[p]) with its int8 copy; or y[p] = share[p] (W x[p]); W: expert[p]'s
 * grid:   as many blocks as fit the GPU, or one per item
 * shared: block_memory; a float per pair, warp and output
 * bound:  reading the experts' W, each once */
template <int K, bool GLU, int T, bool OFFLOAD>
__global__ void __launch_bounds__(THREADS, block_memory<K, T>::blocks) experts_kernel(expert_args a)
{
    DYN_SHARED(char, mem);
    __shared__ float part[2][T][WARPS][16];
    __shared__ list_shared s;
    char *slots = mem + a.n_unit * UNIT * 40 * T * 2;
    group<T> *list = (group<T> *)(slots + WARPS * slot<K>::bytes);
    uint32_t *ids = (uint32_t *)(list + a.n_pairs);
    int *count = (int *)(ids + (a.n_pairs + 3) / 4);
    lane_units<K> t;
    t.b = slots + ((int)threadIdx.x >> 5) * slot<K>::bytes + lane_id() * 16;
    if ((int)threadIdx.x < a.n_expert)
        count[threadIdx.x] = 0;
    clear_tails<T>(a, mem);
    lattice_begin<K>(a.kind);
    __syncthreads();
    if (!a.chosen)
        grid_wait();
    grid_trigger(); /* a kernel that begins from here on may read the choice of experts */
    make_groups<T, OFFLOAD>(a, list, count, ids, &s);
    int n_items = s.n_groups * a.columns, next = (int)blockIdx.x;
    place at = {-1, 0}; /* no item at first; the first real one is requested in turn 0 */
    for (int turn = 0;; turn ^= 1) {
        bool more = next < n_items, first = at.group < 0;
        draw_item(a.ticket, n_items, &s.drawn[turn]);
        place then = place_of(a, next);
        group_rows after = rows_at<T>(mem, a.n_unit, turn ^ 1);
        if (!first) {
            if (more)
                copy_group_rows(a, list[then.group], after);
            expert_tile_sums<K, GLU, T>(a, &t, at.column, list[at.group],
                                        rows_at<T>(mem, a.n_unit, turn), part[turn]);
        }
        if (more)
            begin_units<K, GLU, OFFLOAD>(a, &t, tile_of<GLU>(a, then.column),
                                         list[then.group].expert);
        if (first) {
            if (!a.ready)
                grid_wait();
            if (more)
                copy_group_rows(a, list[then.group], after);
            copy_wait<0>();
        } else {
            copy_wait<1>(); /* all but the units just asked for */
        }
        if (more)
            settle_rows<K, T>(a, list[then.group], after);
        __syncthreads();
        if (GLU && !first)
            write_gated<T, OFFLOAD>(a, at.column, list[at.group], part[turn]);
        if (!more)
            break;
        at = then;
        next = s.drawn[turn];
    }
    if (a.ready && blockIdx.x == 0)
        grid_wait(); /* the next kernel relies on it */
}

/* ---- Launching ----------------------------------------------------------------------------- */

/* Dynamic shared memory of a block: all that the GPU grants, less the static part. */
static int largest_shared()
{
    enum { STATIC = sizeof(float) * 2 * 4 * WARPS * 16 + sizeof(list_shared) + 1024 };
    return cu_gpu.shared_block - (int)STATIC;
}

enum { SPARE = 4 }; /* block slots left free for the small kernel that follows */

template <int K, int T, bool OFFLOAD>
static bool launch_experts(cudaStream_t s, const expert_product &e, launch_memory memory,
                           const offload_view &c)
{
    const product_args &p = e.p;
    expert_args a = {};
    (pair_args &)a = pairs_of_product(e, memory);
    int half = p.glu ? WARPS / 2 : WARPS;
    while (p.glu && 1 << a.lg < product_warps(p.w, true))
        a.lg++;
    a.w = planes_from<K>(p.w, 0);
    a.w_bytes = p.w.mat_bytes;
    a.where = p.w.where;
    a.count = p.w.count;
    if (p.glu) {
        a.up = planes_from<K>(p.up, p.up_row);
        a.up_bytes = p.up.mat_bytes;
    }
    a.n_group = p.w.n_group;
    a.n_unit = p.w.n_unit;
    a.columns = ((p.n_out + TILE_ROWS - 1) / TILE_ROWS + (half >> a.lg) - 1) / (half >> a.lg);
    a.n_expert = p.w.n_mat;
    a.kind = p.w.kind;
    a.offload = c;
    size_t shared = block_memory<K, T>::bytes(a.n_unit, a.n_pairs, a.n_expert);
    int fit = block_memory<K, T>::blocks * cu_gpu.n_sm, most = a.n_pairs * a.columns;
    fit -= fit > 2 * SPARE ? SPARE : 0;
    if (a.n_pairs > EXPERT_PAIRS || a.n_expert > THREADS ||
        shared > (size_t)(largest_shared() - table_bytes<K>))
        return false;
    if (p.glu)
        LAUNCH((experts_kernel<K, true, T, OFFLOAD>), dim3((unsigned)(most < fit ? most : fit)),
               dim3(THREADS), shared, s, a);
    else
        LAUNCH((experts_kernel<K, false, T, OFFLOAD>), dim3((unsigned)(most < fit ? most : fit)),
               dim3(THREADS), shared, s, a);
    return true;
}

template <int K, bool OFFLOAD>
static bool experts(cudaStream_t s, const expert_product &e, launch_memory memory,
                    const offload_view &c)
{
    return (e.p.y.rows > TWO_ROWS && launch_experts<K, 4, OFFLOAD>(s, e, memory, c)) ||
           launch_experts<K, 2, OFFLOAD>(s, e, memory, c);
}

template <int K, bool OFFLOAD> static int allow_kernels(int shared_block)
{
    return allow_shared(experts_kernel<K, true, 2, OFFLOAD>, shared_block) |
           allow_shared(experts_kernel<K, false, 2, OFFLOAD>, shared_block) |
           allow_shared(experts_kernel<K, true, 4, OFFLOAD>, shared_block) |
           allow_shared(experts_kernel<K, false, 4, OFFLOAD>, shared_block);
}
/* Once per GPU, at open: all the shared memory that it grants a block. */
extern "C" int cu_experts_init(void)
{
    const int n = largest_shared();
    return each_layout(all_packs, [&](auto k) {
        int bad = allow_kernels<k, false>(n - table_bytes<k>);
        if constexpr (stays_on_host<k>)
            bad |= allow_kernels<k, true>(n);
        return bad;
    });
}

template <bool OFFLOAD>
static bool experts_of_kind(cudaStream_t s, const expert_product &a, launch_memory memory,
                            const offload_view &c)
{
    return by_layout(all_packs, pack_kernels(a.p.w.kind), [&](auto k) {
        if constexpr (!OFFLOAD || stays_on_host<k>)
            return experts<k, OFFLOAD>(s, a, memory, c);
        return false;
    });
}

extern "C" bool cu_product_experts(cudaStream_t s, expert_product a, launch_memory memory)
{
    const int least = a.p.glu ? GROUPED_ROWS : GROUPED_DOWN_ROWS;
    return (a.p.y.rows >= least && cu_product_grouped(s, a, memory)) ||
           experts_of_kind<false>(s, a, memory, offload_view());
}

extern "C" bool cu_product_experts_offload(cudaStream_t s, expert_product a, launch_memory memory,
                                           offload_view c)
{
    return experts_of_kind<true>(s, a, memory, c);
}
