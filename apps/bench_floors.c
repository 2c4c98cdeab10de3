/* bench_floors.c - the limits of this machine, measured: the ceilings that speeds are compared
 * with.
 *
 * Three loops, each on all threads. A ceiling is the best of several rounds, not the median,
 * because it says what is possible:
 *
 *   read   sums a buffer of several times the last cache, in streams of 64 bytes
 *   f32    independent chains of fused multiply-adds in registers, nothing loaded
 *   int8   the same with the widest 8-bit multiply-accumulate that the processor has
 *
 * The number of chains hides the latency: 16 cover 4 cycles at 4 operations per cycle. Results go
 * to a volatile sink, or a compiler would drop the loop.
 */
#include "apps/bench_int.h"
#include "apps/term.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/pool.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

enum {
    READ_CHUNK = 1 << 21,
    CHAINS = 16,
    STEPS = 1 << 17,      /* of each chain, per call */
    CALLS_PER_THREAD = 32 /* small, so that one delayed thread does not spoil a round */
};

bench_effort bench_ceilings_effort = {
    .rounds = 5, .loop_ms = 400, .read_min = 1 << 28, .read_max = 1 << 30};

static _Atomic uint64_t sink; /* all threads add to it */

/* A vector of 64 bytes, in one register or several. Used as a local variable only: the target
 * attribute of the function decides. */
typedef uint64_t wide __attribute__((vector_size(64), aligned(64)));

#define READ_BODY                                                                                  \
    {                                                                                              \
        const wide *w = p;                                                                         \
        wide a = {0}, b = {0}, c = {0}, d = {0};                                                   \
        for (size_t i = 0; i + 4 <= n / sizeof *w; i += 4) {                                       \
            a += w[i];                                                                             \
            b += w[i + 1];                                                                         \
            c += w[i + 2];                                                                         \
            d += w[i + 3];                                                                         \
        }                                                                                          \
        a += b + c + d;                                                                            \
        return a[0] + a[1] + a[2] + a[3] + a[4] + a[5] + a[6] + a[7];                              \
    }

typedef uint64_t (*read_fn)(const void *p, size_t n);
typedef float (*chain_fn)(void); /* CHAINS * STEPS steps; any number that depends on all */

static uint64_t read_plain(const void *p, size_t n) READ_BODY

#if !defined(__aarch64__) /* which has its own for every processor */
    static float f32_plain(void)
{
    float a[CHAINS] = {0};
    for (int s = 0; s < STEPS; s++)
        for (int i = 0; i < CHAINS; i++)
            a[i] = a[i] * 0.999f + 0.5f;
    float t = 0;
    for (int i = 0; i < CHAINS; i++)
        t += a[i];
    return t;
}

static float int8_plain(void)
{
    int32_t a[CHAINS] = {0};
    volatile int8_t seed = 3;
    int32_t x = seed;
    for (int s = 0; s < STEPS; s++)
        for (int i = 0; i < CHAINS; i++)
            a[i] += (int8_t)(a[i] + i) * x;
    int32_t t = 0;
    for (int i = 0; i < CHAINS; i++)
        t ^= a[i];
    return (float)t;
}
#endif

typedef struct loops {
    read_fn read;
    chain_fn f32, int8;
    int f32_width, int8_width; /* multiply-adds per step of a chain */
} loops;

#if defined(__x86_64__)
/* The accumulators live in an array that the compiler keeps in registers once the inner loop is
 * unrolled; the operands are hidden from it so that nothing can be folded. */
#define CHAIN_BODY(TYPE, ZERO, STEP, ADD)                                                          \
    TYPE a[CHAINS];                                                                                \
    for (int i = 0; i < CHAINS; i++)                                                               \
        a[i] = ZERO;                                                                               \
    for (int s = 0; s < STEPS; s++) {                                                              \
        _Pragma("GCC unroll 16") for (int i = 0; i < CHAINS; i++) a[i] = STEP;                     \
    }                                                                                              \
    for (int i = 1; i < CHAINS; i++)                                                               \
        a[0] = ADD(a[0], a[i]);

__attribute__((target("avx2,fma"))) static uint64_t read_avx2(const void *p, size_t n) READ_BODY

    __attribute__((target("avx2,fma"))) static float f32_avx2(void)
{
    volatile float m = 0.999f;
    __m256 x = _mm256_set1_ps(m), y = _mm256_set1_ps(0.5f);
    CHAIN_BODY(__m256, _mm256_setzero_ps(), _mm256_fmadd_ps(a[i], x, y), _mm256_add_ps)
    return _mm256_cvtss_f32(a[0]);
}

/* Without VNNI a multiply-accumulate of bytes is three instructions. */
__attribute__((target("avx2,fma"))) static float int8_avx2(void)
{
    volatile int8_t m = 3;
    __m256i x = _mm256_set1_epi8(m), y = _mm256_set1_epi8((char)(m + 1));
    __m256i one = _mm256_set1_epi16(1);
    CHAIN_BODY(__m256i, _mm256_setzero_si256(),
               _mm256_add_epi32(a[i], _mm256_madd_epi16(
                                          _mm256_maddubs_epi16(x, _mm256_xor_si256(y, a[i])), one)),
               _mm256_add_epi32)
    return (float)_mm256_extract_epi32(a[0], 0);
}

__attribute__((target("avx512f"))) static uint64_t read_avx512(const void *p, size_t n) READ_BODY

    __attribute__((target("avx512f"))) static float f32_avx512(void)
{
    volatile float m = 0.999f;
    __m512 x = _mm512_set1_ps(m), y = _mm512_set1_ps(0.5f);
    CHAIN_BODY(__m512, _mm512_setzero_ps(), _mm512_fmadd_ps(a[i], x, y), _mm512_add_ps)
    return _mm512_cvtss_f32(a[0]);
}

__attribute__((target("avx512f,avx512vnni"))) static float int8_avx512(void)
{
    volatile int8_t m = 3;
    __m512i x = _mm512_set1_epi8(m), y = _mm512_set1_epi8((char)(m + 1));
    CHAIN_BODY(__m512i, _mm512_setzero_si512(), _mm512_dpbusd_epi32(a[i], x, y), _mm512_add_epi32)
    return (float)_mm512_reduce_add_epi32(a[0]);
}

static loops choose_loops(void)
{
    loops l = {read_plain, f32_plain, int8_plain, 1, 1};
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        l = (loops){read_avx2, f32_avx2, int8_avx2, 8, 32};
    if (__builtin_cpu_supports("avx512f")) {
        l.read = read_avx512;
        l.f32 = f32_avx512;
        l.f32_width = 16;
    }
    if (__builtin_cpu_supports("avx512vnni")) {
        l.int8 = int8_avx512;
        l.int8_width = 64;
    }
    return l;
}
#elif defined(__aarch64__)
static float f32_neon(void)
{
    volatile float m = 0.999f;
    float32x4_t a[CHAINS], x = vdupq_n_f32(m), y = vdupq_n_f32(0.5f);
    for (int i = 0; i < CHAINS; i++)
        a[i] = vdupq_n_f32(0);
    for (int s = 0; s < STEPS; s++)
        for (int i = 0; i < CHAINS; i++)
            a[i] = vfmaq_f32(y, a[i], x);
    for (int i = 1; i < CHAINS; i++)
        a[0] = vaddq_f32(a[0], a[i]);
    return vaddvq_f32(a[0]);
}

static float int8_neon(void)
{
    volatile int8_t m = 3;
    int8x16_t x = vdupq_n_s8(m), y = vdupq_n_s8((int8_t)(m + 1));
    int32x4_t a[CHAINS];
    for (int i = 0; i < CHAINS; i++)
        a[i] = vdupq_n_s32(0);
    for (int s = 0; s < STEPS; s++)
        for (int i = 0; i < CHAINS; i++) {
#if defined(__ARM_FEATURE_DOTPROD)
            a[i] = vdotq_s32(a[i], x, y);
#else
            int8x16_t z = veorq_s8(y, vreinterpretq_s8_s32(a[i]));
            int16x8_t lo = vmull_s8(vget_low_s8(x), vget_low_s8(z));
            a[i] = vpadalq_s16(a[i], vmlal_s8(lo, vget_high_s8(x), vget_high_s8(z)));
#endif
        }
    for (int i = 1; i < CHAINS; i++)
        a[0] = vaddq_s32(a[0], a[i]);
    return (float)vaddvq_s32(a[0]);
}

static loops choose_loops(void)
{
    return (loops){read_plain, f32_neon, int8_neon, 4, 16};
}
#else
static loops choose_loops(void)
{
    return (loops){read_plain, f32_plain, int8_plain, 1, 1};
}
#endif

typedef struct job {
    const loops *l;
    chain_fn chain;
    const unsigned char *buf;
} job;

static void read_chunk(void *arg, int32_t chunk, int32_t thread)
{
    const job *j = arg;
    (void)thread;
    sink += j->l->read(j->buf + (size_t)chunk * READ_CHUNK, READ_CHUNK);
}

static void chain_chunk(void *arg, int32_t chunk, int32_t thread)
{
    const job *j = arg;
    (void)chunk;
    (void)thread;
    sink += (uint64_t)(int64_t)j->chain();
}

/* Seconds of the fastest round. */
static double best_of(pool *p, int32_t n_chunks, pool_fn fn, job *j)
{
    double best = 0, until = clock_ms() + bench_ceilings_effort.loop_ms;
    for (int i = 0; i < bench_ceilings_effort.rounds || clock_ms() < until; i++) {
        int64_t start = clock_ns();
        pool_run(p, n_chunks, fn, j);
        double t = (double)(clock_ns() - start) * 1e-9;
        best = i == 0 || t < best ? t : best;
    }
    return best > 0 ? best : 1e-9;
}

/* Several times the last cache, so that no round reads data that the round before left there. */
static size_t read_bytes(void)
{
    const bench_effort *o = &bench_ceilings_effort;
    long l3 = -1;
#if defined(_SC_LEVEL3_CACHE_SIZE)
    l3 = sysconf(_SC_LEVEL3_CACHE_SIZE);
#endif
    size_t want = l3 > 0 ? 8 * (size_t)l3 : o->read_min, have = mem_available_bytes() / 4;
    want = want < o->read_min ? o->read_min : want > o->read_max ? o->read_max : want;
    want = have && have < want ? have : want;
    return (want + READ_CHUNK - 1) / READ_CHUNK * READ_CHUNK;
}

static status measure_loops(int32_t n_threads, bench_ceilings *c, err *e)
{
    loops l = choose_loops();
    job j = {.l = &l};
    pool *p = NULL;
    size_t n_bytes = read_bytes();
    unsigned char *buf = NULL;
    status st;

    *c = (bench_ceilings){0};
    if ((st = pool_open(&p, n_threads > 0 ? n_threads : pool_default_threads(), e)))
        return st;
    c->n_threads = pool_n_threads(p);
    if (!(buf = mem_pages(n_bytes))) {
        st = err_memory(e, "the buffer of the memory test", n_bytes);
        goto out;
    }
    memset(buf, 1, n_bytes); /* unwritten pages would all read one shared page */
    j.buf = buf;
    int32_t n_chunks = (int32_t)(n_bytes / READ_CHUNK), n_calls = CALLS_PER_THREAD * c->n_threads;
    c->read_bytes = (double)n_bytes / best_of(p, n_chunks, read_chunk, &j);
    if (bench_ceilings_effort.read_alone)
        goto out;
    double steps = (double)n_calls * CHAINS * STEPS;
    j.chain = l.f32;
    c->f32_flops = 2 * l.f32_width * steps / best_of(p, n_calls, chain_chunk, &j);
    j.chain = l.int8;
    c->int8_ops = 2 * l.int8_width * steps / best_of(p, n_calls, chain_chunk, &j);
out:
    mem_pages_free(buf, n_bytes);
    pool_close(p);
    return st;
}

/* In a process of its own: the buffer would otherwise count in this one's peak of memory, which
 * is part of the report. */
status bench_measure_ceilings(int32_t n_threads, bench_ceilings *c, err *e)
{
    struct {
        bench_ceilings c;
        err e;
    } result = {0};
    int fd[2];
    ssize_t n;
    if (pipe2(fd, O_CLOEXEC))
        return err_errno(e, "open", "a pipe");
    pid_t pid = fork();
    if (!pid) { /* ends at once: the parent's handlers only note a signal */
        signal(SIGINT, SIG_DFL);
        signal(SIGTERM, SIG_DFL);
        measure_loops(n_threads, &result.c, &result.e);
        _exit(write(fd[1], &result, sizeof result) == sizeof result ? 0 : 1);
    }
    close(fd[1]);
    if (pid < 0) {
        close(fd[0]);
        return err_errno(e, "start", "the measurement of ceilings");
    }
    /* One write of less than a pipe holds arrives whole. */
    while ((n = read(fd[0], &result, sizeof result)) < 0 && errno == EINTR)
        if (term_interrupts()) /* the signal was not the child's, too */
            kill(pid, SIGTERM);
    close(fd[0]);
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
        ;
    if (n != (ssize_t)sizeof result)
        return err_set(e, E_CANCELLED, "the measurement of ceilings was interrupted");
    if (result.e.status)
        return err_set(e, result.e.status, "%s", result.e.text);
    *c = result.c;
    return OK;
}
