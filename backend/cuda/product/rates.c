/* rates.c - by which tensor cores a GPU multiplies prompts by weights of blocks: bf16, or int8.
 *
 * GeForce cards of 8.6, 8.9 and 12.0 add products of bf16 to f32 at half of the rate that other
 * cards of the same capability have, and multiply int8 at four times that rate. No call of the
 * runtime tells them apart. So matmul_wide.cu and matmul_wide8.cu are timed when such a GPU is
 * opened. Scratch is planned before weights are loaded, so this is known before then, and is one
 * answer for all weights. A plan for a card that is not here takes bf16, which needs more scratch.
 *
 * int8 rounds activations as products of answers do, and as all products on a CPU do. It must gain
 * clearly, because its products also need unpacked weights and copies of activations.
 */
#include "backend/cuda/cuda_int.h"
#include "base/clock.h"

#include <stdlib.h>
#include <string.h>

enum { RATE_ROWS = 1536, RATE_IN = 2048, RATE_OUT = 4096, RATE_TIMES = 5 };
static const double CLEARLY = 1.2;

/* Operands and results of both kernels; what they hold does not affect times. */
typedef struct rate_trial {
    uint16_t *x, *w;
    float *y;
    dev_quant q;
    void *records;
    packed shape;
} rate_trial;

/* Milliseconds of a product. */
static double rate_time(const cuda_device *c, const rate_trial *t, bool int8)
{
    const dev_mat y = {t->y, RATE_ROWS, RATE_OUT, RATE_OUT};
    double least = 0;
    for (int i = 0; i < RATE_TIMES; i++) {
        cudaStreamSynchronize(c->stream);
        const double from = clock_ms();
        if (int8)
            cu_matmul_wide8(c->stream, y, t->q, &t->shape, t->records);
        else
            cu_matmul_wide(c->stream, y, t->x, t->w, RATE_IN, 0);
        cudaStreamSynchronize(c->stream);
        const double ms = clock_ms() - from;
        least = i && least < ms ? least : ms;
    }
    return least;
}

static bool int8_is_quicker(const cuda_device *c)
{
    const size_t n_x = (size_t)RATE_ROWS * RATE_IN, n_w = (size_t)RATE_IN * RATE_OUT;
    const size_t n_q = n_x + n_x / GROUP * 8, n_records = wide8_bytes(RATE_IN, RATE_OUT);
    const size_t n_all = 4 * (size_t)RATE_ROWS * RATE_OUT + 2 * (n_x + n_w) + n_q + n_records;
    void *at = NULL;
    if (cudaMalloc(&at, n_all) != cudaSuccess) {
        cudaGetLastError();
        return false;
    }
    cu_random_bf16(c->stream, at, n_all / 2, 1);
    rate_trial t = {.y = at,
                    .shape = {.kind = PACK_Q4_K,
                              .n_in = RATE_IN,
                              .n_out = RATE_OUT,
                              .n_mat = 1,
                              .n_tile = RATE_OUT / TILE_ROWS,
                              .n_group = RATE_IN / GROUP,
                              .n_unit = RATE_IN / 256}};
    t.x = (uint16_t *)(t.y + (size_t)RATE_ROWS * RATE_OUT);
    t.w = t.x + n_x;
    t.records = t.w + n_w;
    t.q = (dev_quant){
        .q = (int8_t *)t.records + n_records, .rows = RATE_ROWS, .cols = RATE_IN, .tile = 8};
    t.q.s = t.q.q + n_x;
    const bool quicker = CLEARLY * rate_time(c, &t, true) < rate_time(c, &t, false);
    cudaFree(at);
    return cudaGetLastError() == cudaSuccess && quicker; /* a kernel that failed took no time */
}

status cuda_choose_prompts(cuda_device *c, bool own, err *e)
{
    const char *want = getenv("CARAT_PROMPTS");
    if (!want || !*want) {
        c->int8_prompts = c->facts.slow_sums && own && int8_is_quicker(c);
        return OK;
    }
    if (strcmp(want, "int8") && strcmp(want, "bf16"))
        return err_set(e, E_ARG, "CARAT_PROMPTS=%.20s: expected int8 or bf16", want);
    c->int8_prompts = !strcmp(want, "int8");
    return OK;
}
