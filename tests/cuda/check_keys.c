/* check_keys.c - see check_keys.h. */
#include "tests/cuda/check_keys.h"
#include "base/mem.h"

#include <math.h>

bool source_make(rig *g, key_source *k, int32_t d, int32_t n)
{
    size_t inv_bytes = (size_t)d / 2 * 4, turns_bytes = (size_t)ROPE_TURNS * 2 * (size_t)n * 4;
    if (!pair_make(g, &k->norm, NUM_F32, d, 1, 1, 0.3, false))
        return false;
    k->inv = draw(g, (size_t)d / 2, 0);
    k->turns = mem_alloc(turns_bytes);
    for (int32_t i = 0; i < d / 2; i++)
        k->inv[i] = i < n ? (float)pow(1e4, -2.0 * i / d) : 0;
    for (int32_t p = 0; p < ROPE_TURNS; p++)
        for (int32_t i = 0; i < n; i++) {
            k->turns[2 * p * n + i] = (float)cos((double)p * k->inv[i]);
            k->turns[(2 * p + 1) * n + i] = (float)sin((double)p * k->inv[i]);
        }
    k->on[0] = (rope){.n_pairs = d / 2, .inv_freq = k->inv, .n_turning = n, .turns = k->turns};
    k->on[1] = k->on[0];
    float *inv = g->gpu->alloc(g->gpu, inv_bytes), *turns = g->gpu->alloc(g->gpu, turns_bytes);
    g->gpu->upload(g->gpu, inv, k->inv, inv_bytes);
    g->gpu->upload(g->gpu, turns, k->turns, turns_bytes);
    k->on[1].inv_freq = inv;
    k->on[1].turns = turns;
    return true;
}

void source_free(rig *g, key_source *k)
{
    const rope *r = &k->on[1];
    if (!k->inv)
        return;
    g->gpu->release(g->gpu, (void *)r->inv_freq, (size_t)r->n_pairs * 4);
    g->gpu->release(g->gpu, (void *)r->turns, (size_t)ROPE_TURNS * 2 * (size_t)r->n_turning * 4);
    mem_free(k->inv);
    mem_free(k->turns);
    pair_free(g, &k->norm);
}

void *encoded(rig *g, num_type t, bool rot, size_t n, double sigma, int32_t planted)
{
    uint64_t bytes = 0;
    float *f = draw(g, n, sigma);
    for (size_t i = 0; planted && i < n; i++)
        f[i] += (float)(i / (size_t)planted % 3 ? -sigma : sigma);
    num_row_bytes(t, n, &bytes);
    void *enc = mem_alloc(bytes);
    if (rot)
        num_rotate(f, (int64_t)n);
    num_format_of(t)->encode(f, enc, (int64_t)n);
    mem_free(f);
    return enc;
}

float point_along(const key_source *k, size_t i)
{
    const float *w = k->inv ? k->norm.w[0].data : NULL;
    return w && w[i] < 0 ? -0.3f : 0.3f;
}
