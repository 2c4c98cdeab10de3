/* tq3.c - the rotation of 128 values, and TQ3_0, the cache format of 3.5 bits that needs it.
 *
 * Rot = D(s2) H D(s1) / sqrt(128): signs, a Walsh-Hadamard transform, signs again. Rot is
 * orthogonal, so it keeps dot products. It spreads outliers over all 128 values, which are then
 * nearly Gaussian and fit coarse codes. Any format may be rotated before it is encoded; TQ3_0
 * always is. Its encoder and decoder take and give rotated values: a writer rotates first, and a
 * reader computes with rotated values until the end.
 *
 * A group of 128 is four blocks of 14 bytes: norm (f16, the same in all four), qs[8] (the low two
 * bits of each index), signs[4] (the third: set in the positive half of the codebook).
 */
#include "num/num_int.h"

enum { GROUP = NUM_ROT_GROUP, BLOCK_BYTES = 14 };

/* Bit i of word w set: element 32 w + i changes its sign. */
static const uint32_t sign_first[4] = {0xE46A0359, 0x42F85949, 0xA4C63BBB, 0x49F250A9};
static const uint32_t sign_last[4] = {0x16ACEE90, 0x3F628FDC, 0xB7A5357A, 0xBEA56562};

const float num_tq3_level[8] = {-0.190685f, -0.117832f, -0.065717f, -0.021460f,
                                0.021460f,  0.065717f,  0.117832f,  0.190685f};
static const float tq3_middle[7] = {-0.154259f, -0.091775f, -0.043589f, 0,
                                    0.043589f,  0.091775f,  0.154259f};

static void flip_signs(float *x, const uint32_t mask[4])
{
    for (int i = 0; i < GROUP; i++)
        x[i] = num_bits_f32(num_f32_bits(x[i]) ^ (mask[i / 32] >> i % 32 & 1) << 31);
}

/* Sylvester's order: butterflies at strides 1, 2, 4 .. 64. */
static void hadamard(float *x)
{
    for (int stride = 1; stride < GROUP; stride *= 2)
        for (int i = 0; i < GROUP; i += 2 * stride)
            for (int j = i; j < i + stride; j++) {
                float a = x[j], b = x[j + stride];
                x[j] = a + b;
                x[j + stride] = a - b;
            }
    for (int i = 0; i < GROUP; i++)
        x[i] *= 0.08838834764831845f; /* 1 / sqrt(128) */
}

void num_rotate(float *x, int64_t n)
{
    for (; n > 0; n -= GROUP, x += GROUP) {
        flip_signs(x, sign_first);
        hadamard(x);
        flip_signs(x, sign_last);
    }
}

void num_unrotate(float *x, int64_t n)
{
    for (; n > 0; n -= GROUP, x += GROUP) {
        flip_signs(x, sign_last);
        hadamard(x);
        flip_signs(x, sign_first);
    }
}

void num_rotation_signs(float first[NUM_ROT_GROUP], float last[NUM_ROT_GROUP])
{
    for (int i = 0; i < GROUP; i++) {
        first[i] = sign_first[i / 32] >> i % 32 & 1 ? -1.0f : 1.0f;
        last[i] = sign_last[i / 32] >> i % 32 & 1 ? -1.0f : 1.0f;
    }
}

/* Stores the length of the group divided by the length of its codes, so that the decoded group is
 * as long as the encoded one, up to the rounding to f16. */
NUM_ENCODE(tq3_0)
{
    uint8_t *b = dst;
    for (; n > 0; n -= GROUP, src += GROUP) {
        float x[GROUP];
        uint8_t code[GROUP];
        double sum = 0, coded = 0;
        num_finite(src, x, GROUP);
        for (int i = 0; i < GROUP; i++)
            sum += (double)x[i] * x[i];
        double length = sqrt(sum);
        float inv = length > 1e-10 ? (float)(1 / length) : 0;
        for (int i = 0; i < GROUP; i++) {
            float v = x[i] * inv;
            code[i] = 0;
            for (int m = 0; m < 7; m++)
                code[i] += v >= tq3_middle[m];
            coded += (double)num_tq3_level[code[i]] * num_tq3_level[code[i]];
        }
        float norm = inv > 0 ? (float)fmin(length / sqrt(coded), 65504) : 0;
        for (int g = 0; g < GROUP / 32; g++, b += BLOCK_BYTES) {
            const uint8_t *c = code + 32 * g;
            memset(b, 0, BLOCK_BYTES);
            st_u16(b, num_f32_to_f16(norm));
            for (int j = 0; j < 32; j++) {
                b[2 + j / 4] |= (uint8_t)((c[j] & 3) << 2 * (j % 4));
                b[10 + j / 8] |= (uint8_t)(c[j] >> 2 << j % 8);
            }
        }
    }
}

NUM_DECODE(tq3_0)
{
    const uint8_t *b = src;
    for (; n > 0; n -= 32, b += BLOCK_BYTES, dst += 32) {
        float norm = ld_f16(b);
        for (int j = 0; j < 32; j++) {
            int low = b[2 + j / 4] >> 2 * (j % 4) & 3, high = b[10 + j / 8] >> j % 8 & 1;
            dst[j] = num_tq3_level[low | high << 2] * norm;
        }
    }
}
