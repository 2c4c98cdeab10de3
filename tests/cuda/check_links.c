/* check_links.c - cuda_check --links: how fast copies between GPUs are, in the way that a model's
 * layers use them (device.send). For each pair of devices and each direction: whether one reaches
 * the other's memory, GB/s of large copies, and microseconds of a copy of a token's activations
 * there and back, with the waits between the streams. Of two to four devices also the sum of a
 * tensor split, which each of them gets (backend/ranks.c): microseconds of one in a recording of
 * many. tools/gpus_check.sh reads the lines.
 */
#include "backend/cuda/cuda_int.h"
#include "backend/cuda/plan_only.h"
#include "backend/ranks.h"
#include "base/clock.h"
#include "tests/cuda/check_int.h"

#include <stdio.h>
#include <stdlib.h>

enum { LARGE = 64 << 20, TOKEN = 5376 * 4, REPS = 8, TURNS = 200, GPUS = 8, RANKS = 4 };

typedef struct link_end {
    device *d;
    void *at;
} link_end;

static void wait_both(const link_end *a, const link_end *b)
{
    a->d->wait(a->d);
    b->d->wait(b->d);
}

/* Milliseconds of n copies from a to b; there and back if `turns`. */
static double send_ms(const link_end *a, const link_end *b, size_t n_bytes, int n, bool turns)
{
    wait_both(a, b);
    double start = clock_ms();
    for (int i = 0; i < n; i++) {
        a->d->send(a->d, b->d, b->at, a->at, n_bytes, SEND_BEHIND_BOTH);
        if (turns)
            b->d->send(b->d, a->d, a->at, b->at, n_bytes, SEND_BEHIND_BOTH);
    }
    wait_both(a, b);
    return clock_ms() - start;
}

static const char *reach(const link_end *a, const link_end *b)
{
    return a->d->number == b->d->number ? "itself" : a->d->reaches(a->d, b->d) ? "yes" : "no";
}

static void measure(const link_end *end, int32_t i, int32_t k)
{
    const link_end *a = &end[i], *b = &end[k];
    send_ms(a, b, TOKEN, 2, true); /* the first copy enables access */
    double large = send_ms(a, b, LARGE, REPS, false);
    double token = send_ms(a, b, TOKEN, TURNS, true);
    printf("link %d %d peers %s GB/s %.1f us %.2f\n", i, k, reach(a, b),
           (double)LARGE * REPS / large * 1e-6, token * 1e3 / (2 * TURNS));
}

static void follow_all(const link_end *end, int32_t n)
{
    for (int32_t to = 0; to < n; to++)
        for (int32_t from = 0; from < n; from++)
            if (from != to)
                end[to].d->follow(end[to].d, end[from].d);
}

/* n ranks, whose sums are in the first bytes of `at`, the number of the pass behind them. */
typedef struct link_ranks {
    const link_end *end;
    int32_t n;
    bool reached, apart;
    void *inbox[RANKS];
} link_ranks;

enum { COLS = TOKEN / 4 };

static status open_ranks(link_ranks *r, err *e)
{
    device *dev[RANKS];
    for (int32_t i = 0; i < r->n; i++)
        dev[i] = r->end[i].d;
    r->reached = ranks_read_each_other(dev, r->n);
    r->apart = ranks_have_own_gpus(dev, r->n);
    for (int32_t i = 0; i < r->n; i++) {
        device *d = r->end[i].d;
        if (!(r->inbox[i] = d->open_inbox(d, rank_inbox_bytes(r->n, COLS), r->reached)))
            return err_memory(e, "an inbox", rank_inbox_bytes(r->n, COLS));
    }
    return OK;
}

static void close_ranks(link_ranks *r)
{
    for (int32_t i = 0; i < r->n; i++)
        if (r->inbox[i])
            r->end[i].d->close_inbox(r->end[i].d, r->inbox[i], rank_inbox_bytes(r->n, COLS),
                                     r->reached);
}

static void launch_sum(const link_ranks *r, int32_t rank, uint32_t index, bool sends, bool takes)
{
    float *at = r->end[rank].at;
    cuda_device *c = cuda_select(r->end[rank].d);
    rank_sum_args a = {.y = {at, 1, COLS, COLS},
                       .part = {{at, 1, COLS, COLS}},
                       .n_parts = 1,
                       .n_ranks = r->n,
                       .rank = rank,
                       .cols = COLS,
                       .index = index,
                       .pass = (const uint32_t *)at + COLS,
                       .sends = sends,
                       .takes = takes};
    for (int32_t i = 0; i < r->n; i++)
        a.inbox[i] = r->inbox[i];
    cu_rank_sum(c->stream, a);
    c->after_edge = false;
}

/* As ranks do it (backend/ranks.c). */
static void reduce(const link_ranks *r, uint32_t index)
{
    for (int32_t i = 0; i < r->n; i++)
        launch_sum(r, i, index, true, r->apart);
    if (r->apart)
        return;
    follow_all(r->end, r->n);
    for (int32_t i = 0; i < r->n; i++)
        launch_sum(r, i, index, false, true);
}

static void next_pass(const link_ranks *r, uint32_t number)
{
    for (int32_t i = 0; i < r->n; i++)
        r->end[i].d->upload(r->end[i].d, (uint32_t *)r->end[i].at + COLS, &number, sizeof number);
}

/* Microseconds of a reduction, in a recording of TURNS of them. */
static status reduction_us(const link_ranks *all, double *us, err *e)
{
    const link_end *end = all->end;
    const int32_t n = all->n;
    cuda_device *first = end[0].d->self;
    graph_slot slot = {.used = 1};
    cudaGraph_t g = NULL;
    cudaGraphExec_t x = NULL;
    for (int32_t i = 0; i < n; i++)
        end[i].d->clear(end[i].d, end[i].at, LARGE);
    next_pass(all, 1);
    reduce(all, 0);
    for (int32_t i = 1; i < n; i++)
        first->dev.follow(&first->dev, end[i].d);
    cudaError_t r = cudaStreamBeginCapture(first->stream, cudaStreamCaptureModeThreadLocal);
    first->recording = &slot;
    for (int32_t i = 1; i < n; i++)
        end[i].d->follow(end[i].d, &first->dev);
    for (int k = 0; k < TURNS; k++)
        reduce(all, (uint32_t)k);
    for (int32_t i = 1; i < n; i++)
        first->dev.follow(&first->dev, end[i].d);
    r = r ? r : cudaStreamEndCapture(first->stream, &g);
    for (int32_t i = 0; i < n; i++)
        ((cuda_device *)end[i].d->self)->recording = NULL;
    r = r ? r : cudaGraphInstantiate(&x, g, 0);
    for (int i = 0; i <= REPS && !r; i++) { /* the first one uploads the graph */
        next_pass(all, (uint32_t)i + 2);
        for (int32_t k = 0; k < n; k++)
            end[k].d->wait(end[k].d);
        const double start = clock_ms();
        r = cudaGraphLaunch(x, first->stream);
        first->dev.wait(&first->dev);
        const double t = (clock_ms() - start) * 1e3 / TURNS;
        *us = i < 2 || t < *us ? t : *us;
    }
    if (x)
        cudaGraphExecDestroy(x);
    if (g)
        cudaGraphDestroy(g);
    return r ? err_set(e, E_IO, "a recorded reduction: %s", cudaGetErrorString(r)) : OK;
}

/* "0,0,1"; NULL: every GPU. */
static int32_t read_list(const char *list, int32_t gpu[GPUS])
{
    int32_t n = 0;
    for (int32_t i = 0; !list && i < device_count_cuda() && n < GPUS; i++)
        gpu[n++] = i;
    for (char *end; list && n < GPUS; list = end + 1) {
        gpu[n++] = (int32_t)strtol(list, &end, 10);
        if (end == list || *end != ',')
            break;
    }
    return n;
}

int check_links(const char *list)
{
    link_end end[GPUS] = {{0}};
    int32_t gpu[GPUS], n = read_list(list, gpu);
    err e = {0};
    status st =
        n < 2 ? err_set(&e, E_ARG, "--links: two devices are needed, as in --links 0,1") : OK;
    for (int32_t i = 0; i < n && !st; i++) {
        st = device_open_cuda(&end[i].d, &(cuda_options){.device = gpu[i]}, &e);
        if (!st && !(end[i].at = end[i].d->alloc(end[i].d, LARGE)))
            st = err_memory(&e, "a copy", LARGE);
    }
    for (int32_t i = 0; i < n && !st; i++)
        for (int32_t k = 0; k < n && !st; k++)
            if (i != k)
                measure(end, i, k);
    for (int32_t k = 2; k <= n && k <= RANKS && !st; k++) {
        double us = 0;
        link_ranks r = {.end = end, .n = k};
        st = open_ranks(&r, &e);
        st = st ? st : reduction_us(&r, &us, &e);
        close_ranks(&r);
        if (!st)
            printf("reduction %d us %.2f\n", k, us);
    }
    for (int32_t i = 0; i < n && !st; i++)
        st = end[i].d->failed(end[i].d, &e);
    for (int32_t i = n - 1; i >= 0; i--) {
        if (end[i].at)
            end[i].d->release(end[i].d, end[i].at, LARGE);
        device_close(end[i].d);
    }
    if (st)
        printf("%s\n", e.text);
    return st ? 2 : 0;
}
