/* streams.c - the speed of several answers in one batch: `make bench-streams`, then
 *
 *     build/bench_streams MODEL.gguf [-t THREADS] [-n PASSES] [-d DEPTH] [--ops] [STREAMS ...]
 *
 * Each line is a batch of that many streams. Each stream has a prompt of DEPTH tokens of its own
 * (default 16) and answers greedily. Printed are the median time of a pass that computes one token
 * of each stream, and the tokens per second of all together. --ops adds the time per op and pass.
 */
#include "base/clock.h"
#include "base/mem.h"
#include "base/order.h"
#include "base/rng.h"
#include "carat.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PASSES_MAX = 4096, STREAMS_MAX = 64, OPS_MAX = 256, DEPTH_MAX = 1 << 20 };

typedef struct bench {
    carat_model *m;
    int32_t n_passes, depth, n_vocab;
    bool ops;
} bench;

static void must(carat_status st, const carat_error *e)
{
    if (!st)
        return;
    fprintf(stderr, "bench_streams: %s\n", e->text);
    exit(1);
}

/* Jobs with different prompts; no two begin with the same token, so nothing is reused. */
static void submit_all(const bench *b, carat_batch *batch, int32_t n)
{
    carat_error e = {0};
    uint64_t rng = 3;
    int32_t *ids = mem_calloc((size_t)b->depth, sizeof *ids);
    if (!ids) {
        fprintf(stderr, "bench_streams: no memory\n");
        exit(1);
    }
    const carat_generate_options opt = {
        .sampling = {.top_p = 1, .repeat_penalty = 1, .ignore_eog = true},
        .max_tokens = b->n_passes + 2 * n + 8};
    for (int32_t i = 0; i < n; i++) {
        for (int32_t k = 0; k < b->depth; k++)
            ids[k] = (int32_t)rng_below(&rng, (uint64_t)b->n_vocab);
        ids[0] = 1000 + i;
        must(carat_batch_submit(batch, &(carat_job){.ids = ids, .n = b->depth, .opt = &opt}, NULL,
                                NULL, &e),
             &e);
    }
    mem_free(ids);
}

static bool all_answer(carat_batch *batch, int32_t n)
{
    carat_batch_info info;
    carat_slot_info slot[STREAMS_MAX];
    carat_batch_get_info(batch, &info, slot, n);
    for (int32_t i = 0; i < n; i++)
        if (!slot[i].n_generated)
            return false;
    return true;
}

static void print_ops(const bench *b, int32_t n_passes)
{
    static carat_op_time ops[OPS_MAX];
    int32_t n = carat_op_times(b->m, ops, OPS_MAX, true);
    for (int32_t i = 0; i < n && i < OPS_MAX; i++)
        printf("    %-10s %-6s %4d rows %6d -> %-6d %5" PRId64 " calls %9.3f ms\n", ops[i].op,
               ops[i].type, ops[i].rows, ops[i].n_in, ops[i].n_out, ops[i].n_calls / n_passes,
               ops[i].ms / n_passes);
}

static void run_streams(const bench *b, int32_t n)
{
    static double ms[PASSES_MAX];
    carat_error e = {0};
    carat_batch *batch;
    const carat_batch_options opt = {
        .session = {.n_ctx = b->depth + b->n_passes + 2 * n + 16, .checkpoint_mb = -1},
        .n_slots = n};
    must(carat_batch_open(b->m, &opt, &batch, &e), &e);
    submit_all(b, batch, n);
    while (!all_answer(batch, n) && carat_batch_step(batch))
        ;
    int32_t passes = 0;
    carat_op_times(b->m, NULL, 0, true);
    while (passes < b->n_passes && all_answer(batch, n)) {
        double start = clock_ms();
        if (!carat_batch_step(batch))
            break;
        ms[passes++] = clock_ms() - start;
    }
    carat_batch_close(batch);
    if (!passes) {
        printf("%4d streams: an answer ended before all had begun\n", n);
        return;
    }
    qsort(ms, (size_t)passes, sizeof *ms, order_doubles);
    double median = ms[passes / 2];
    printf("%4d streams  %4d passes  %9.2f ms each (best %.2f)  %8.2f tokens/s\n", n, passes,
           median, ms[0], n / (median * 1e-3));
    if (b->ops)
        print_ops(b, passes);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    bench b = {.n_passes = 16, .depth = 16};
    int32_t streams[STREAMS_MAX] = {1, 2, 4, 5, 6, 8, 12, 16, 32}, n = 9, n_given = 0, threads = 0;
    const char *path = NULL;
    for (int i = 1; i < argc; i++) {
        bool more = i + 1 < argc;
        if (!strcmp(argv[i], "-t") && more)
            threads = atoi(argv[++i]);
        else if (!strcmp(argv[i], "-n") && more)
            b.n_passes = atoi(argv[++i]);
        else if (!strcmp(argv[i], "-d") && more)
            b.depth = atoi(argv[++i]);
        else if (!strcmp(argv[i], "--ops"))
            b.ops = true;
        else if (!path)
            path = argv[i];
        else if (n_given < STREAMS_MAX)
            streams[n_given++] = atoi(argv[i]);
    }
    n = n_given ? n_given : n;
    for (int32_t i = 0; i < n; i++)
        if (streams[i] < 1 || streams[i] > STREAMS_MAX)
            path = NULL;
    if (!path || b.n_passes < 1 || b.n_passes > PASSES_MAX || b.depth < 1 || b.depth > DEPTH_MAX) {
        fprintf(stderr, "usage: bench_streams MODEL [-t N] [-n PASSES] [-d DEPTH] [--ops] "
                        "[STREAMS ...]\n");
        return 2;
    }
    carat_error e = {0};
    carat_model_info info;
    const carat_model_options mo = {.n_threads = threads, .wrap = b.ops ? "time" : NULL};
    must(carat_model_open(path, &mo, &b.m, &e), &e);
    carat_model_get_info(b.m, &info);
    b.n_vocab = info.n_vocab;
    for (int32_t i = 0; i < n; i++)
        run_streams(&b, streams[i]);
    carat_model_close(b.m);
    return 0;
}
