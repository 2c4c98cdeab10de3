/* offload.c - times experts that the host computes beside a GPU (backend/cpu/offload.h): `make
 * bench-offload`, then
 *
 *     build/bench_offload [-t THREADS] [-i ISA] [-n EXPERTS]
 *
 * First tiles of each format by one thread. Then jobs of 1 to 8 experts of 26B-A4B (Q4_K, down
 * Q5_0) by a pool of threads, as a GPU posts them, through all experts in turn, so that they come
 * from memory. Best of some runs; the machine should be idle.
 */
#include "backend/cpu/offload_pool.h"
#include "base/clock.h"
#include "base/mem.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GROUPS = 88, UNITS = 11, TILES = 512, RUNS = 5, N_FF = 704 };

static const struct {
    const char *name;
    offload_kind kind;
    int32_t code, high, scale, super; /* bytes a row and group; super: a row and unit */
} format[] = {
    {"Q4_0", OFFLOAD_Q4_0, 16, 0, 2, 0},  {"Q4_1", OFFLOAD_Q4_1, 16, 0, 4, 0},
    {"Q5_0", OFFLOAD_Q5_0, 16, 4, 2, 0},  {"Q5_1", OFFLOAD_Q5_1, 16, 4, 4, 0},
    {"Q8_0", OFFLOAD_Q8_0, 32, 0, 2, 0},  {"Q4_K", OFFLOAD_Q4_K, 16, 0, 0, 16},
    {"Q5_K", OFFLOAD_Q5_K, 16, 4, 0, 16}, {"Q6_K", OFFLOAD_Q6_K, 16, 8, 2, 2},
    {"G8", OFFLOAD_G8, 32, 0, 16, 0},
};

static void die(const char *what)
{
    fprintf(stderr, "bench_offload: %s\n", what);
    exit(1);
}

/* A matrix at `at`; the bytes that it takes. */
static size_t lay_out(int f, uint8_t *at, int32_t tiles, int32_t groups, offload_matrix *w)
{
    size_t rows = (size_t)tiles * OFFLOAD_TILE;
    int32_t units = (groups + 7) / 8;
    uint8_t *high = at + rows * (size_t)groups * (size_t)format[f].code;
    uint8_t *scale = high + rows * (size_t)units * 8 * (size_t)format[f].high;
    uint8_t *super = scale + rows * (size_t)units * 8 * (size_t)format[f].scale;
    *w = (offload_matrix){at,     high, scale, super, format[f].kind, tiles * OFFLOAD_TILE,
                          groups, units};
    return (size_t)(super - at) + rows * (size_t)units * (size_t)format[f].super;
}

static void time_tiles(const offload_kernels *k, uint8_t *mem, int32_t n_rows)
{
    static int8_t q[OFFLOAD_ROWS][GROUPS * OFFLOAD_GROUP];
    static offload_scale s[OFFLOAD_ROWS][GROUPS];
    offload_row x[OFFLOAD_ROWS];
    for (int r = 0; r < OFFLOAD_ROWS; r++)
        x[r] = (offload_row){q[r], s[r]};
    for (size_t f = 0; f < sizeof format / sizeof *format; f++) {
        offload_matrix w;
        size_t n = lay_out((int)f, mem, TILES, GROUPS, &w);
        double best = 1e9;
        for (int run = 0; run < RUNS; run++) {
            float y[OFFLOAD_ROWS][OFFLOAD_TILE];
            double start = clock_ms();
            for (int32_t t = 0; t < TILES; t++)
                k->tile(&w, t, 2, x, n_rows, y);
            double ms = clock_ms() - start;
            best = ms < best ? ms : best;
        }
        printf("  %-5s %2d rows  %7.2f GB/s\n", format[f].name, n_rows, (double)n / best * 1e-6);
    }
}

static double post_job(const offload_room *room, int32_t first, int32_t n, int32_t n_experts)
{
    offload_post *p = room->post;
    for (int32_t i = 0; i < n; i++) {
        p->expert[i] = (first + i) % n_experts;
        p->first[i] = i;
    }
    p->first[n] = n;
    atomic_store(&p->n_experts, (uint32_t)n);
    double start = clock_ms();
    uint32_t last = atomic_load(&p->seq), seq = OFFLOAD_NEXT(last);
    atomic_store(&p->seq, seq);
    while (atomic_load_explicit(&p->done, memory_order_acquire) != seq)
        ;
    return clock_ms() - start;
}

static void time_jobs(uint8_t *mem, int32_t n_experts, int32_t n_threads, const char *isa)
{
    offload_layer l = {
        .n_ff = N_FF, .n_down = 1, .up_tile = N_FF / OFFLOAD_TILE, .n_experts = n_experts};
    offload_room room;
    offload_pool *pool;
    err e = {0};
    size_t n = lay_out(5, mem, 2 * N_FF / OFFLOAD_TILE, GROUPS, &l.gate);
    n += lay_out(2, mem + n, GROUPS * OFFLOAD_GROUP / OFFLOAD_TILE, N_FF / OFFLOAD_GROUP, l.down);
    l.up = l.gate;
    l.expert_bytes = n;
    l.gate_parts = offload_gate_parts(2 * N_FF / OFFLOAD_TILE, UNITS);
    size_t bytes = offload_room_bytes(&l, 1, NULL, &room);
    char *block = mem_pages(bytes);
    if (!block)
        die("no memory");
    memset(block, 0, bytes);
    offload_room_bytes(&l, 1, block, &room);
    if (offload_pool_open(&pool, &l, 1, &room, n_threads, isa, &e))
        die(e.text);
    printf("%d threads, %s, experts of %.2f MB\n", offload_pool_threads(pool),
           offload_pool_isa(pool), (double)n * 1e-6);
    for (int32_t jobs = 1; jobs <= 8; jobs *= 2) {
        double best = 1e9, sum = 0;
        int32_t n_jobs = 0;
        offload_pool_wake(pool);
        for (int32_t at = 0; at < n_experts; at += jobs, n_jobs++) {
            double ms = post_job(&room, at, jobs, n_experts);
            sum += ms;
            best = ms < best ? ms : best;
        }
        printf("  %d experts a job  mean %.3f ms, best %.3f; %.3f ms an expert, %.1f GB/s\n", jobs,
               sum / n_jobs, best, sum / n_jobs / jobs, (double)n * jobs * n_jobs / sum * 1e-6);
    }
    offload_pool_close(pool);
    mem_pages_free(block, bytes);
}

int main(int argc, char **argv)
{
    int32_t n_threads = 0, n_experts = 128;
    const char *isa = NULL;
    const offload_kernels *k;
    err e = {0};
    for (int i = 1; i + 1 < argc; i += 2)
        if (!strcmp(argv[i], "-t"))
            n_threads = atoi(argv[i + 1]);
        else if (!strcmp(argv[i], "-n"))
            n_experts = atoi(argv[i + 1]);
        else if (!strcmp(argv[i], "-i"))
            isa = argv[i + 1];
        else
            die("-t THREADS, -n EXPERTS, -i ISA");
    if (argc % 2 == 0 || n_threads < 0 || n_experts < 16 || n_experts > 1024)
        die("-t THREADS, -n EXPERTS (16 to 1024), -i ISA");
    if (offload_kernels_find(isa, &k, &e))
        die(e.text);
    size_t bytes = (size_t)n_experts * (4 << 20) + ((size_t)64 << 20);
    uint8_t *mem = mem_pages(bytes);
    if (!mem)
        die("no memory");
    memset(mem, 0x11, bytes);
    printf("one thread, %s, tiles of %d inputs\n", k->isa, GROUPS * OFFLOAD_GROUP);
    time_tiles(k, mem, 1);
    time_tiles(k, mem, 4);
    time_jobs(mem, n_experts, n_threads, isa);
    mem_pages_free(mem, bytes);
    return 0;
}
