/* synth_blocks.c - see synth_blocks.h.
 *
 * Quantised formats: all bytes are random; then the scale bytes of each block are replaced by
 * entries of a small table. So no scale is infinite, and minima cancel the mean of the codes. The
 * size of values at scale 1 is measured by decoding a sample, so one rule serves every format.
 * Floats: draws from a table of 65536 normals.
 */
#include "apps/synth_blocks.h"
#include "base/mem.h"
#include "base/rng.h"

#include <math.h>

enum { N_NORMAL = 1 << 16, N_PROBE = 16384, BLOCK_BYTES_MAX = 210 };

struct synth_blocks {
    num_type type;
    const num_format *f;
    double unit;   /* standard deviation of blocks with scale 1 */
    float *normal; /* [N_NORMAL], for f32, f16 and bf16 */
};

/* d and m of the blocks of one fill, chosen by a random byte: eight sizes, both signs where the
 * codes are not symmetric about zero (their mean then cancels over blocks). */
typedef struct {
    uint16_t d[16], m[16];
    uint8_t k4[16][12]; /* scales and minima of Q4_K and Q5_K, each scale equal to its minimum */
    uint8_t e;          /* MXFP4 */
    float f[16];        /* d, for formats without an encoder */
} scales;

/* The mean code of a format with minima. The minimum is this many scales. */
static float mean_code(num_type t)
{
    switch (t) {
    case NUM_Q4_1:
    case NUM_Q4_K:
        return 7.5f;
    case NUM_Q5_1:
    case NUM_Q5_K:
        return 15.5f;
    case NUM_Q2_K:
        return 1.5f;
    default:
        return 0;
    }
}

static void make_scales(scales *s, num_type t, double size)
{
    bool minimum = mean_code(t) > 0;
    float sign_m =
        t == NUM_Q4_1 || t == NUM_Q5_1 ? -1 : 1; /* added here, subtracted in K formats */
    for (int i = 0; i < 16; i++) {
        double v = size * (0.79 + 0.06 * (i & 7)); /* the mean square is 1.01 */
        float d = (float)(i & 8 && !minimum ? -v : v);
        s->d[i] = num_f32_to_f16(d);
        s->f[i] = t == NUM_NVFP4 ? fabsf(d) : d;
        s->m[i] = num_f32_to_f16(sign_m * mean_code(t) * num_f16_to_f32(s->d[i]));
        uint64_t r = rng_mix((uint64_t)i + 1);
        uint8_t sc[8];
        for (int j = 0; j < 8; j++)
            sc[j] = (uint8_t)(40 + (r >> 8 * j) % 24);
        for (int j = 0; j < 4; j++) {
            s->k4[i][j] = s->k4[i][j + 4] = (uint8_t)(sc[j] | sc[j + 4] >> 4 << 6);
            s->k4[i][j + 8] = (uint8_t)((sc[j + 4] & 15) * 0x11);
        }
    }
    int e = size > 0 ? (int)lrint(log2(size)) + 128 : 0;
    s->e = (uint8_t)(e < 0 ? 0 : e > 250 ? 250 : e);
}

static void put16(uint8_t *p, uint16_t v)
{
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
}

static void patch(num_type t, const scales *s, uint8_t *p, uint64_t n_blocks)
{
    switch (t) {
    case NUM_Q4_0:
    case NUM_IQ4_NL:
        for (; n_blocks; n_blocks--, p += 18)
            put16(p, s->d[p[0] & 15]);
        break;
    case NUM_Q5_0:
        for (; n_blocks; n_blocks--, p += 22)
            put16(p, s->d[p[0] & 15]);
        break;
    case NUM_Q8_0:
        for (; n_blocks; n_blocks--, p += 34)
            put16(p, s->d[p[0] & 15]);
        break;
    case NUM_Q4_1:
    case NUM_Q5_1:
        for (int size = t == NUM_Q4_1 ? 20 : 24; n_blocks; n_blocks--, p += size) {
            int i = p[0] & 15;
            put16(p, s->d[i]);
            put16(p + 2, s->m[i]);
        }
        break;
    case NUM_MXFP4:
        for (; n_blocks; n_blocks--, p += 17)
            p[0] = s->e;
        break;
    case NUM_Q2_K:
        for (; n_blocks; n_blocks--, p += 84) {
            int i = p[80] & 15;
            for (int g = 0; g < 16; g++)
                p[g] = (uint8_t)((8 | (p[g] & 7)) * 0x11); /* scale = minimum, 8 to 15 */
            put16(p + 80, s->d[i]);
            put16(p + 82, s->m[i]);
        }
        break;
    case NUM_Q3_K:
        for (; n_blocks; n_blocks--, p += 110)
            put16(p + 108, s->d[p[108] & 15]);
        break;
    case NUM_Q4_K:
    case NUM_Q5_K:
        for (int size = t == NUM_Q4_K ? 144 : 176; n_blocks; n_blocks--, p += size) {
            int i = p[0] & 15, k = p[1] & 15;
            put16(p, s->d[i]);
            put16(p + 2, s->m[i]);
            memcpy(p + 4, s->k4[k], 12);
        }
        break;
    case NUM_Q6_K:
        for (; n_blocks; n_blocks--, p += 210)
            put16(p + 208, s->d[p[208] & 15]);
        break;
    case NUM_IQ4_XS:
        for (; n_blocks; n_blocks--, p += 136)
            put16(p, s->d[p[0] & 15]);
        break;
    default:
        for (const num_format *f = num_format_of(t); n_blocks; n_blocks--, p += f->block_bytes)
            num_set_factor(t, p, s->f[p[f->block_bytes / 2] & 15]);
        break;
    }
}

static void random_bytes(uint64_t seed, uint8_t *p, uint64_t n)
{
    uint64_t v;
    for (; n >= 8; n -= 8, p += 8) {
        v = rng_next(&seed);
        memcpy(p, &v, 8);
    }
    v = rng_next(&seed);
    memcpy(p, &v, (size_t)n);
}

static void fill_floats(const synth_blocks *b, uint64_t seed, float sigma, void *dst, uint64_t n)
{
    uint64_t r = 0;
    for (uint64_t i = 0; i < n; i++, r >>= 16) {
        if (i % 4 == 0)
            r = rng_next(&seed);
        float v = sigma * b->normal[r & (N_NORMAL - 1)];
        if (b->type == NUM_F32) {
            memcpy((uint8_t *)dst + 4 * i, &v, 4);
        } else {
            uint16_t h = b->type == NUM_F16 ? num_f32_to_f16(v) : num_f32_to_bf16(v);
            memcpy((uint8_t *)dst + 2 * i, &h, 2);
        }
    }
}

void synth_blocks_fill(const synth_blocks *b, uint64_t seed, float sigma, void *dst, uint64_t n)
{
    if (b->normal) {
        fill_floats(b, seed, sigma, dst, n);
        return;
    }
    scales s;
    uint64_t n_blocks = n / (uint64_t)b->f->block_n;
    make_scales(&s, b->type, sigma / b->unit);
    random_bytes(seed, dst, n_blocks * (uint64_t)b->f->block_bytes);
    patch(b->type, &s, dst, n_blocks);
}

status synth_blocks_open(synth_blocks **out, num_type type, err *e)
{
    synth_blocks *b = mem_calloc(1, sizeof *b);
    *out = NULL;
    if (!b)
        return err_memory(e, "random weights", sizeof *b);
    b->type = type;
    b->f = num_format_of(type);
    if (b->f->block_n == 1) {
        uint64_t seed = 1;
        if (!(b->normal = mem_calloc(N_NORMAL, sizeof *b->normal))) {
            mem_free(b);
            return err_memory(e, "random weights", N_NORMAL * sizeof *b->normal);
        }
        for (int i = 0; i < N_NORMAL; i++)
            b->normal[i] = (float)rng_normal(&seed);
    } else {
        uint8_t raw[BLOCK_BYTES_MAX * 2];
        float x[512];
        double sum = 0;
        int64_t n = 0;
        b->unit = 1;
        /* Scale 2^-8 rather than 1: Q6_K reaches 128 * 32 * d, and f16 stops at 65504. */
        for (uint64_t i = 0; i < N_PROBE / 256; i++, n += 256) {
            synth_blocks_fill(b, i, 0x1p-8f, raw, 256);
            b->f->decode(raw, x, 256);
            for (int k = 0; k < 256; k++)
                sum += (double)x[k] * x[k];
        }
        b->unit = sqrt(sum / (double)n) * 256;
    }
    *out = b;
    return OK;
}

void synth_blocks_close(synth_blocks *b)
{
    if (b)
        mem_free(b->normal);
    mem_free(b);
}

/* ---- Blocks with a mean -------------------------------------------------------------------- */

enum { POOL_BLOCKS = 512 };
struct synth_pool {
    const num_format *f;
    uint8_t *block; /* [POOL_BLOCKS] of block_bytes */
};

status synth_pool_open(synth_pool **out, num_type type, float sigma, float lean, err *e)
{
    const num_format *f = num_format_of(type);
    synth_pool *p = mem_calloc(1, sizeof *p);
    size_t n = POOL_BLOCKS * (size_t)f->block_n;
    float *x = mem_alloc(n * sizeof *x);
    uint64_t seed = 1;
    *out = NULL;
    if (p) {
        p->f = f;
        p->block = mem_alloc(POOL_BLOCKS * (size_t)f->block_bytes);
    }
    if (!p || !p->block || !x) {
        mem_free(x);
        synth_pool_close(p);
        return err_memory(e, "random weights", n * sizeof *x);
    }
    for (size_t i = 0; i < n; i++)
        x[i] = sigma * ((float)rng_normal(&seed) + lean);
    f->encode(x, p->block, (int64_t)n);
    mem_free(x);
    *out = p;
    return OK;
}

void synth_pool_close(synth_pool *p)
{
    if (p)
        mem_free(p->block);
    mem_free(p);
}

void synth_pool_fill(const synth_pool *p, uint64_t seed, void *dst, uint64_t n)
{
    size_t bytes = (size_t)p->f->block_bytes;
    uint8_t *to = dst;
    for (uint64_t i = 0; i < n / (uint64_t)p->f->block_n; i++, to += bytes)
        memcpy(to, p->block + (rng_next(&seed) & (POOL_BLOCKS - 1)) * bytes, bytes);
}
