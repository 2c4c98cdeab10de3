/* matmul_one.cu - one row times weights of blocks: the product of decoding.
 *
 *     launch   one to four products of one activation (queries, keys, values), or a gated unit
 *     item     what the 8 warps of a block compute between two barriers: 8 >> lg tiles of 16
 *              outputs, 1 << lg warps to a tile (product_warps); of a gated unit 4 >> lg tiles of W
 *              and as many of W'
 *     block    computes item b, then the next free one (ticket)
 *     lane     holds one of a tile's 16 rows and its even or odd groups (product.cuh). Two units of
 *              its weights are in flight; at the end of an item, the first two of the next item
 *
 * Blocks draw items, because distant multiprocessors read memory a third slower than near ones and
 * would end last with equal shares. Weights depend on no earlier kernel, so the first units are
 * requested before the earlier kernel ends. A group costs 8 dot products and a dozen instructions
 * that prepare them, and at 4.6 TB/s those instructions count. So the scales of a unit are decoded
 * together, and shared memory holds the sums that formats with an offset multiply. The code is
 * short, because at one row most of it runs once and its fetch takes time. Longer rings in shared
 * memory were slower: they cost a quarter more instructions, and shared memory is the bottleneck.
 */
#include "backend/cuda/product/launch_products.h"
#include "backend/cuda/product/units.cuh"

enum { WARPS = 8 };

/* One product of the launch. A gated unit has two: W, then W'. */
struct one_job {
    planes w;
    float *y;
    const float *bias;        /* or NULL */
    int32_t n_out, lg, first; /* outputs; log2 of the warps per tile; first item */
    int32_t x_group;          /* of x, for the first group of w */
};
/* The items of one weight format, and the blocks that compute them. ticket NULL: a block for each
 * item. */
struct one_share {
    int32_t first, end, blocks;
    int32_t *ticket;
};
struct one_args {
    one_job job[ONE_JOBS];
    int32_t n_jobs, n_group, n_unit, kind;
    int32_t x_groups, x_units; /* of x: where jobs have parts of it, more than of w */
    x_part x_from;             /* of tiles: the parts are laid side by side */
    one_share share[2];
    const int8_t *q; /* the row as codes and scales, or NULL: then floats */
    const void *s;
    const float *floats;
    const float *times; /* timed = gelu(y) * times */
    float *timed;
    dev_quant copy; /* of a gated unit's y */
    bool glu, silu, late;
};

/* Jobs have parts of every tile of the row, of n_group groups each: a part's come to lie side by
 * side, as its weights are. A call, because the code of other rows is fetched in less time without
 * it; by values, because a reference to the kernel's arguments would put all of them on the stack.
 */
template <int K>
static __device__ __noinline__ void tiles_to_shared(char *mem, const int8_t *codes,
                                                    const void *scales, int x_groups, int whole,
                                                    int n_group, int tile, int step)
{
    uint4 *q = (uint4 *)mem;
    float2 *s = (float2 *)(mem + whole * 32);
    for (int i = (int)threadIdx.x; i < whole; i += 32 * WARPS) {
        const int job = i / n_group, at = i % n_group;
        const int from = at / tile * step + job * tile + at % tile;
        const bool in = i < x_groups;
        const uint4 zero = make_uint4(0, 0, 0, 0);
        float2 v = in ? ((const float2 *)scales)[from] : make_float2(0, 0);
        q[2 * i] = in ? ((const uint4 *)codes)[2 * from] : zero;
        q[2 * i + 1] = in ? ((const uint4 *)codes)[2 * from + 1] : zero;
        if (sums<K>::floats)
            v.y = scaled_sum(v);
        s[i] = v;
    }
}

template <int K> DEV shared_rows read_row(char *mem, const one_args &a)
{
    int n = a.x_groups, whole = a.x_units * UNIT;
    if (a.q) {
        if (a.x_from.tile)
            tiles_to_shared<K>(mem, a.q, a.s, n, whole, a.n_group, a.x_from.tile, a.x_from.step);
        else
            row_to_shared<K, 32 * WARPS>(mem, a.q, a.s, n, whole);
    } else { /* a short row without codes: every block makes its own */
        float2 *s = (float2 *)(mem + whole * 32);
        dev_quant to = {(int8_t *)mem, s, 0, 1, 32 * whole, 1};
#pragma unroll 1
        for (int g = (int)threadIdx.x >> 5; g < whole; g += WARPS) {
            quantise_warp(g < n ? a.floats[32 * g + lane_id()] : 0, to, 0, g);
            __syncwarp();
            if (sums<K>::floats && lane_id() == 0)
                s[g].y = scaled_sum(s[g]);
        }
    }
    __syncthreads();
    return (shared_rows){(const uint4 *)mem, (const float2 *)(mem + whole * 32)};
}

/* A warp's share of an item. */
struct spot {
    int job, tile, unit, n; /* n units from `unit` on; 0: the tile is past the end */
};

/* The product of an item. */
DEV int job_of(const one_args &a, int item)
{
    int job = 0;
#pragma unroll
    for (int i = 1; i < ONE_JOBS; i++)
        job += a.n_jobs > i && item >= a.job[i].first;
    return job;
}

DEV spot spot_of(const one_args &a, int item)
{
    int warp = (int)threadIdx.x >> 5, half = a.glu ? WARPS / 2 : WARPS, in = warp & (half - 1);
    spot s;
    s.job = a.glu ? warp >= half : job_of(a, item);
    const one_job &j = a.job[s.job];
    s.tile = (item - j.first) * (half >> j.lg) + (in >> j.lg);
    s.unit = in & ((1 << j.lg) - 1);
    s.n = s.tile * TILE_ROWS < j.n_out ? (a.n_unit - s.unit + (1 << j.lg) - 1) >> j.lg : 0;
    return s;
}

/* Adds the warps' sums of an item and writes its outputs. */
DEV void write_item(const one_args &a, int item, const float (*part)[16])
{
    int k = (int)threadIdx.x >> 4, at = (int)threadIdx.x & 15;
    int job = a.glu ? 0 : job_of(a, item);
    const one_job &j = a.job[job];
    int n_tiles = (a.glu ? WARPS / 2 : WARPS) >> j.lg, tile = (item - j.first) * n_tiles + k;
    int o = tile * TILE_ROWS + at;
    if ((k & ~1) >= n_tiles || (tile & ~1) * TILE_ROWS >= j.n_out) /* whole warps */
        return;
    float v = 0, u = 0;
    if (k < n_tiles && o < j.n_out) {
        for (int i = 0; i < 1 << j.lg; i++) {
            v += part[(k << j.lg) + i][at];
            if (a.glu)
                u += part[WARPS / 2 + (k << j.lg) + i][at];
        }
        if (a.glu)
            v = gate_of(a.silu, v) * u;
        if (j.bias)
            v += j.bias[o];
        j.y[o] = v;
        if (a.times)
            a.timed[o] = gate_of(false, v) * a.times[o];
    }
    if (a.copy.q) /* gated: an item is 32 outputs, or 64 */
        quantise_warp(v, a.copy, 0, tile >> 1);
}

/* Thread 0 draws the number of the item after the next one. The ticket is drawn once per block and
 * item, so the last draw is known, and it resets the ticket for the next launch. */
DEV void draw_item(const one_share &s, int *drawn)
{
    if (!s.ticket || threadIdx.x)
        return;
    int old = atomicAdd(s.ticket, 1);
    *drawn = s.first + s.blocks + old;
    if (old == s.end - s.first + s.blocks - 1)
        *s.ticket = 0;
}

struct one_shared {
    float part[2][WARPS][16];
    int drawn[2];
};

/* The work of block b of the share. */
template <int K>
DEV void run_share(const one_args &a, const one_share &s, int b, char *mem, one_shared *shared)
{
    int warp = (int)threadIdx.x >> 5, item = s.first + b;
    lane_units<K> t;
    t.b = mem + a.x_units * UNIT * 40 + warp * slot<K>::bytes + lane_id() * 16;
    spot at = spot_of(a, item);
    if (at.n)
        t.begin(a.job[at.job].w, a.job[at.job].lg, a.n_group, a.n_unit, at.tile, at.unit);
    draw_item(s, &shared->drawn[1]);
    lattice_begin<K>(a.kind);
    grid_wait();
    if (a.late)
        grid_trigger();
    shared_rows x = read_row<K>(mem, a);
    int next = s.ticket ? shared->drawn[1] : s.end;
    for (int turn = 0;; turn ^= 1) {
        draw_item(s, &shared->drawn[turn]);
        float sum;
        const one_job &j = a.job[at.job];
        const shared_rows own = {x.q + 2 * j.x_group, x.s + j.x_group};
        tile_sums<K, 1, 1>(&sum, &t, at.n, own, at.unit, 1 << j.lg);
        if (lane_id() < 16)
            shared->part[turn][warp][lane_id()] = sum;
        if (next < s.end)
            at = spot_of(a, next);
        if (next < s.end && at.n)
            t.begin(a.job[at.job].w, a.job[at.job].lg, a.n_group, a.n_unit, at.tile, at.unit);
        __syncthreads();
        write_item(a, item, shared->part[turn]);
        if (next >= s.end)
            return;
        item = next;
        next = s.ticket ? shared->drawn[turn] : s.end;
    }
}

/* How many blocks of 8 warps fit into the registers of a multiprocessor. */
template <int K, int K2> struct occupancy {
    static constexpr bool two = traits<K>::bytes || traits<K>::five || K != K2;
    static constexpr int blocks = two ? 2 : 3;
};

/* y[o] = sum_i x[i] W[o, i], of up to four W; or y = act(W x) * (W' x), with its copy. The first
 * share's weights are of format K, the second's of K2.
 * grid:   as many blocks as fit the GPU, or one per item
 * shared: the row, 1.25 bytes a value; a float per warp and output
 * bound:  reading W, and equally the instructions per group */
template <int K, int K2>
__global__ void __launch_bounds__(32 * WARPS, occupancy<K, K2>::blocks) one_kernel(one_args a)
{
    DYN_SHARED(char, mem);
    __shared__ one_shared shared;
    if (!a.late)
        grid_trigger();
    if (K == K2 || (int)blockIdx.x < a.share[0].blocks)
        run_share<K>(a, a.share[0], (int)blockIdx.x, mem, &shared);
    else
        run_share<K2>(a, a.share[1], (int)blockIdx.x - a.share[0].blocks, mem, &shared);
}

/* ---- Launching ----------------------------------------------------------------------------- */

/* Adds a job to the launch: p's W, or its W' if up. */
template <int K> static void put_job(one_args *a, const product_args &p, bool up)
{
    const packed &w = up ? p.up : p.w;
    one_job *j = &a->job[a->n_jobs++];
    *j = (one_job){
        planes_from<K>(w, up ? p.up_row : 0), p.y.at, p.bias, p.n_out, 0, 0, p.x_from.first};
    if (p.x_from.tile) /* in shared memory the part follows those before it */
        j->x_group = p.x_from.first / p.x_from.tile * w.n_group;
    while (1 << j->lg < product_warps(w, p.glu))
        j->lg++;
}

/* Jobs from..to - 1 form a share. Returns the relative size of its weights. */
template <int K> static double put_share(one_args *a, int which, int from, int to)
{
    using T = traits<K>;
    one_share *s = &a->share[which];
    double bytes = 0;
    s->first = s->end = which ? a->share[0].end : 0;
    for (int i = from; i < to; i++) {
        one_job *j = &a->job[i];
        int outputs = ((a->glu ? WARPS / 2 : WARPS) >> j->lg) * TILE_ROWS;
        j->first = s->first;
        if (!a->glu || i == from) {
            j->first = s->end;
            s->end += (j->n_out + outputs - 1) / outputs;
        }
        bytes += j->n_out * (T::code + T::high + T::scale + T::super_bytes / 8.0);
    }
    return bytes;
}

enum { SPARE = 4 }; /* block slots left free for the small kernel that follows */

template <int K, int K2>
static void start(cudaStream_t s, one_args *a, int n_first, launch_memory memory)
{
    int longest = slot<K>::bytes > slot<K2>::bytes ? slot<K>::bytes : slot<K2>::bytes;
    double bytes0 = put_share<K>(a, 0, 0, n_first);
    double bytes1 = K != K2 ? put_share<K2>(a, 1, n_first, a->n_jobs) : 0;
    int items0 = a->share[0].end, items1 = K != K2 ? a->share[1].end - items0 : 0;
    int less = cu_gpu.n_sm > SPARE ? SPARE : cu_gpu.n_sm;
    int fit = occupancy<K, K2>::blocks * cu_gpu.n_sm - less;
    if (traits<K>::six && items0 > fit) /* the third block pays where it saves a second round */
        fit = 2 * cu_gpu.n_sm - less;
    int one = (int)(fit * bytes1 / (bytes0 + bytes1)); /* bytes1 0: 0 */
    if (items0 + items1 > fit) {
        one = one < 1 && items1 ? 1 : one < items1 ? one : items1;
        a->share[0].blocks = items0 < fit - one ? items0 : fit - one;
        a->share[1].blocks = one;
        a->share[0].ticket = a->share[0].blocks < items0 ? memory.ticket : 0;
        a->share[1].ticket = one < items1 ? memory.ticket + 1 : 0;
    } else {
        a->share[0].blocks = items0;
        a->share[1].blocks = items1;
    }
    int blocks = a->share[0].blocks + a->share[1].blocks;
    size_t bytes = (size_t)(a->x_units * UNIT * 40 + WARPS * longest);
    const one_args args = *a; /* the emulator's recordings keep values */
    LAUNCH((one_kernel<K, K2>), dim3((unsigned)blocks), dim3(32 * WARPS),
           spread_bytes(bytes, blocks), s, args);
}

/* The first n_first of the n products have format K, the others K2. */
template <int K, int K2>
static void products(cudaStream_t s, const one_product *const *p, int n, int n_first,
                     launch_memory memory)
{
    one_args a = {};
    const product_args &x = p[0]->p;
    a.n_group = x.w.n_group;
    a.n_unit = x.w.n_unit;
    a.x_groups = x.x.cols > a.n_group * GROUP ? x.x.cols / GROUP : a.n_group;
    a.x_from = x.x_from;
    a.kind = x.w.kind;
    a.q = x.x.q;
    a.s = x.x.s;
    a.floats = p[0]->floats;
    a.times = p[0]->times;
    a.timed = p[0]->timed;
    a.copy = x.q;
    a.glu = x.glu;
    a.silu = x.silu;
    a.late = x.late;
    for (int i = 0; i < n; i++) {
        if (i < n_first)
            put_job<K>(&a, p[i]->p, false);
        else
            put_job<K2>(&a, p[i]->p, false);
    }
    if (a.glu)
        put_job<K>(&a, x, true);
    int end = a.x_groups; /* of what is read: a part's last unit may go on in the next part */
    for (int i = 0; i < a.n_jobs; i++)
        end = end > a.job[i].x_group + a.n_unit * UNIT ? end : a.job[i].x_group + a.n_unit * UNIT;
    a.x_units = (end + UNIT - 1) / UNIT;
    start<K, K2>(s, &a, a.glu ? 2 : n_first, memory);
}

/* Once per GPU, at open: all the shared memory that it grants a block. */
extern "C" int cu_one_init(void)
{
    const int n = cu_gpu.shared_block - ONE_STATIC_SHARED;
    return allow_shared(one_kernel<PACK_Q4_K, PACK_Q6_K>, n) | each_layout(all_packs, [=](auto k) {
               return allow_shared(one_kernel<k, k>, n - table_bytes<k>);
           });
}

static void products_of(cudaStream_t s, const one_product *const *p, int n, launch_memory memory)
{
    by_layout(all_packs, pack_kernels(p[0]->p.w.kind),
              [&](auto k) { return products<k, k>(s, p, n, n, memory), true; });
}

/* Products of one format share a launch. Q4_K and Q6_K share one too, because the Q4_K_M mix has
 * them side by side. Other formats get launches of their own. */
extern "C" void cu_products(cudaStream_t s, const one_product *job, int n, launch_memory memory)
{
    const one_product *p[ONE_JOBS];
    int n_by[PACK_END] = {0}, at = 0;
    for (int kind = 0; kind < PACK_END; kind++)
        for (int j = 0; j < n; j++)
            if (job[j].p.w.kind == kind) {
                p[at++] = &job[j];
                n_by[kind]++;
            }
    int n4 = n_by[PACK_Q4_K];
    if (n4 && n4 < n && n4 + n_by[PACK_Q6_K] == n) {
        products<PACK_Q4_K, PACK_Q6_K>(s, p, n, n4, memory);
        return;
    }
    for (int from = 0; from < n; from += n_by[p[from]->p.w.kind], memory.ticket += 2)
        products_of(s, p + from, n_by[p[from]->p.w.kind], memory);
}
