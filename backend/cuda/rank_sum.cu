/* rank_sum.cu - sums of what ranks of a tensor split have computed. Of few rows each rank writes
 * its own to the others' memory and reads what they have written to its own; of many rows
 * ordered_sum_kernel adds up some on each rank.
 *
 *     a line    16 bytes, two columns   { value, mark, value, mark }
 *     an inbox  [2, by turns][sender][SUM_ROWS][cols / 2] lines
 *
 * A value and its mark are 8 bytes, which links between GPUs and the bus to the host's memory never
 * tear. So a reader that sees the mark has the value, and no fence and no flag beside the data is
 * needed: the way takes one latency of the link (NCCL calls such a protocol LL). The two marks of a
 * line differ: both together say which pass and which sum it is for longer than 2^32 sums. Nobody
 * resets a line.
 *
 * A kernel of its own: where the kernel that reads the sum took it, in the one block that norms a
 * row, a token of 31B on two GPUs took 0.56 ms more (bench/journal/gpus.md).
 */
#include "backend/cuda/dev.cuh"
#include "backend/cuda/launch_small.h"

struct line {
    float a;
    uint32_t mark_a;
    float b;
    uint32_t mark_b;
};

#ifdef CARAT_EMU
DEV void put_line(line *to, line v)
{
    *to = v;
}
DEV line get_line(const line *at)
{
    return *at;
}
DEV unsigned long long now_ns()
{
    static unsigned long long n;
    return n += 1000000000ull; /* what is not there now will not come */
}
#else
/* Past all caches of this GPU that are not coherent with the link. */
DEV void put_line(line *to, line v)
{
    asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to),
                 "r"(__float_as_uint(v.a)), "r"(v.mark_a), "r"(__float_as_uint(v.b)), "r"(v.mark_b)
                 : "memory");
}
DEV line get_line(const line *at)
{
    uint32_t a, b;
    line v;
    asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a), "=r"(v.mark_a), "=r"(b), "=r"(v.mark_b)
                 : "l"(at)
                 : "memory");
    v.a = __uint_as_float(a);
    v.b = __uint_as_float(b);
    return v;
}
DEV unsigned long long now_ns()
{
    unsigned long long t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
    return t;
}
#endif

/* The kernel waits longer than the host does (stall.c). So when the kernel gives up, the host has
 * failed the pass already. The kernel then writes NaN: the engine refuses NaN logits, so a missing
 * sum cannot become an answer. */
enum { SUM_WAIT_SECONDS = 300, SUM_LOOKS = 1 << 10 };

struct sum_wait {
    int looks = 0;
    unsigned long long begun = 0;
    DEV bool is_over()
    {
        if (++looks % SUM_LOOKS)
            return false;
        const unsigned long long now = now_ns();
        begun = begun ? begun : now;
        return now - begun > SUM_WAIT_SECONDS * 1000000000ull;
    }
};
DEV float not_a_number()
{
    return __uint_as_float(0x7fc00000);
}

DEV float plus(float a, float b)
{
    return a + b;
}
DEV float2 plus(float2 a, float2 b)
{
    return make_float2(a.x + b.x, a.y + b.y);
}
DEV float4 plus(float4 a, float4 b)
{
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

/* (v0 + v1) + (v2 + v3) of 1, 2 or 4 parts; of three ranks' sums the first is v0 + v1. */
template <class T> DEV T in_order(const T *v, int n)
{
    if (n == 1)
        return v[0];
    if (n == 3)
        return plus(v[0], plus(v[1], v[2]));
    return n == 2 ? plus(v[0], v[1]) : plus(plus(v[0], v[1]), plus(v[2], v[3]));
}

/* One sum, for one rank: its marks, and where a column's line of the first sender is. */
struct sum_marks {
    uint32_t a, b;
    size_t at, lines; /* lines: from one sender to the next */
};
DEV sum_marks marks_of(const rank_sum_args &a, int row)
{
    const unsigned long long sum = (unsigned long long)*a.pass * SUMS_OF_PASS + a.index;
    const size_t width = a.cols / 2, lines = SUM_ROWS * width;
    sum_marks m = {(uint32_t)sum, (uint32_t)sum + 0x9e3779b9u * (1 + (uint32_t)(sum >> 32)), 0,
                   lines};
    m.at = (a.index & 1) * (a.n_ranks - 1) * lines + row * width;
    return m;
}
/* The place of a sender among those of a rank: in a ring, after it. */
DEV size_t sender_of(const rank_sum_args &a, int rank, int of)
{
    return (of - rank - 1 + a.n_ranks) % a.n_ranks;
}

DEV bool is_of(const line &l, const sum_marks &m)
{
    return l.mark_a == m.a && l.mark_b == m.b;
}
/* A row's lines from rank `of`. */
DEV const line *lines_from(const rank_sum_args &a, const sum_marks &m, int of)
{
    return (const line *)a.inbox[a.rank] + m.at + sender_of(a, a.rank, of) * m.lines;
}
DEV float2 await_line(const line *at, const sum_marks &m)
{
    sum_wait wait;
    for (;;) {
        const line l = get_line(at);
        if (is_of(l, m))
            return make_float2(l.a, l.b);
        if (wait.is_over())
            return make_float2(not_a_number(), not_a_number());
    }
}

/* This rank's own sum of two columns. */
DEV float2 own_sum(const rank_sum_args &a, int row, int pair)
{
    float2 v[SUM_RANKS];
#pragma unroll
    for (int i = 0; i < SUM_RANKS; i++)
        if (i < a.n_parts)
            v[i] = ((const float2 *)(a.part[i].at + row * a.part[i].stride))[pair];
    return in_order(v, a.n_parts);
}
DEV void send_sum(const rank_sum_args &a, const sum_marks &m, int pair, float2 own)
{
#pragma unroll
    for (int to = 0; to < SUM_RANKS; to++)
        if (to < a.n_ranks && to != a.rank)
            put_line((line *)a.inbox[to] + m.at + sender_of(a, to, a.rank) * m.lines + pair,
                     (line){own.x, m.a, own.y, m.b});
}
DEV float2 take_sum(const rank_sum_args &a, const sum_marks &m, int pair, float2 own)
{
    float2 v[SUM_RANKS];
#pragma unroll
    for (int of = 0; of < SUM_RANKS; of++)
        if (of < a.n_ranks)
            v[of] = own;
#pragma unroll
    for (int of = 0; of < SUM_RANKS; of++)
        if (of < a.n_ranks && of != a.rank)
            v[of] = await_line(lines_from(a, m, of) + pair, m);
    return in_order(v, a.n_ranks);
}

enum { THREADS = 128 };

/* It begins under the end of the product before it, and lets the next kernel begin, whose weights
 * are then on their way while this one waits.
 * grid:   row x 256 columns
 * shared: none
 * bound:  the link's latency */
__global__ void __launch_bounds__(THREADS) rank_sum_kernel(rank_sum_args a)
{
    const int row = (int)blockIdx.x, pair = (int)(blockIdx.y * THREADS + threadIdx.x);
    grid_trigger();
    grid_wait();
    if (2 * pair >= a.part[0].cols)
        return;
    const sum_marks m = marks_of(a, row);
    const float2 own = own_sum(a, row, pair);
    if (a.sends)
        send_sum(a, m, pair, own);
    if (!a.takes)
        return;
    float2 y = take_sum(a, m, pair, own);
    if (a.more.at)
        y = plus(y, ((const float2 *)(a.more.at + row * a.more.stride))[pair]);
    ((float2 *)(a.y.at + row * a.y.stride))[pair] = y;
}

extern "C" void cu_rank_sum(cudaStream_t s, rank_sum_args a)
{
    const dev_mat &x = a.part[0];
    const unsigned blocks = (unsigned)((x.cols / 2 + THREADS - 1) / THREADS);
    LAUNCH(rank_sum_kernel, dim3((unsigned)x.rows, blocks), dim3(THREADS), 0, s, a);
}

/* A rank has the sum of some rows. It reads them where the ranks have them, and writes the result
 * to all. A value crosses a link twice, however many ranks there are; where every rank reads all
 * rows of all others, it crosses n_ranks - 1 links.
 *
 *     rank 0   s [ 0 | 1 | 2 | 3 ]        rank 1 reads column 1 of every s, and writes column 1 of
 *     rank 1   s [ 0 | 1 | 2 | 3 ]        every y
 *     ...                                 y [ 0 | 1 | 2 | 3 ]
 *
 * grid:   256 of T a block, a thread each
 * shared: none
 * bound:  the links, or memory where all v and y are this GPU's */
template <class T> __global__ void __launch_bounds__(256) ordered_sum_kernel(ordered_sum_args a)
{
    const size_t i = (size_t)blockIdx.x * 256 + threadIdx.x;
    grid_trigger();
    grid_wait();
    if (i >= a.n / (sizeof(T) / sizeof(float)))
        return;
    T v[SUM_RANKS];
#pragma unroll
    for (int k = 0; k < SUM_RANKS; k++)
        if (k < a.n_v)
            v[k] = ((const T *)a.v[k])[i];
    const T sum = in_order(v, a.n_v);
#pragma unroll
    for (int k = 0; k < SUM_RANKS; k++)
        if (k < a.n_y)
            ((T *)a.y[k])[i] = sum;
}

template <class T> static void ordered_sums(cudaStream_t s, const ordered_sum_args &a)
{
    const size_t n = a.n / (sizeof(T) / sizeof(float));
    LAUNCH(ordered_sum_kernel<T>, dim3((unsigned)((n + 255) / 256)), dim3(256), 0, s, a);
}

extern "C" void cu_ordered_sum(cudaStream_t s, ordered_sum_args a)
{
    bool fours = a.n % 4 == 0;
    for (int i = 0; i < a.n_y; i++)
        fours = fours && (uintptr_t)a.y[i] % 16 == 0;
    for (int i = 0; i < a.n_v; i++)
        fours = fours && (uintptr_t)a.v[i] % 16 == 0;
    if (fours)
        ordered_sums<float4>(s, a);
    else
        ordered_sums<float>(s, a);
}
