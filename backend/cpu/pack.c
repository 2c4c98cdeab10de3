/* pack.c - from the file's blocks to the device's layout (pack_int.h).
 *
 * Runs once per weight at load, or per product for a device that keeps no copies. One row's
 * superblock is taken apart into codes and scales, then spread over the sixteen-row layout.
 */
#include "backend/cpu/pack_int.h"

#include <string.h>

static const pack_kind kinds[] = {
    {NUM_Q4_0, 1, 8, 1, false, true, false, false, false, 32, 256, 288},
    {NUM_Q4_1, 1, 0, 1, true, true, false, false, false, 64, 256, 320},
    {NUM_Q5_0, 1, 16, 1, false, true, false, true, false, 32, 320, 352},
    {NUM_Q5_1, 1, 0, 1, true, true, false, true, false, 64, 320, 384},
    {NUM_Q8_0, 1, 128, 1, false, false, false, false, true, 32, 512, 544},
    {NUM_Q2_K, 8, 0, 2, true, false, true, false, false, 320, 128, 1344},
    {NUM_Q3_K, 8, 4, 2, false, false, true, true, false, 224, 192, 1760},
    {NUM_Q4_K, 8, 0, 1, true, true, false, false, false, 256, 256, 2304},
    {NUM_Q5_K, 8, 0, 1, true, true, false, true, false, 256, 320, 2816},
    {NUM_Q6_K, 8, 32, 2, false, true, true, false, false, 288, 384, 3360},
    {NUM_IQ4_NL, 1, 128, 1, false, true, false, false, false, 32, 256, 288},
    {NUM_IQ4_XS, 8, 128, 1, false, true, false, false, false, 128, 256, 2176},
    {NUM_MXFP4, 1, 12, 1, false, true, false, false, false, 16, 256, 272},
};

const pack_kind *pack_kind_of(num_type type)
{
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (kinds[i].type == type)
            return &kinds[i];
    return NULL;
}

size_t pack_group_bytes(const weight *w)
{
    size_t n = (size_t)w->n_in;
    if (w->type == NUM_F32)
        return n * PACK_LANES * 4;
    if (w->type == NUM_F16)
        return n * PACK_LANES * 2;
    if (w->type == NUM_BF16)
        return (n + 1) / 2 * 2 * PACK_LANES * 2;
    const pack_kind *p = pack_kind_of(w->type);
    return p ? n / (size_t)(32 * p->n_blocks) * (size_t)p->super_bytes : 0;
}

/* One row's superblock, taken apart. */
typedef struct parts {
    uint8_t code[256];
    uint8_t scale[16], min[16]; /* as stored: of 6, 4 or 8 bits */
    uint8_t d[2], m[2];         /* the f16 factors, or MXFP4's exponent */
} parts;

static void take_nibbles(const uint8_t *q, uint8_t *code)
{
    for (int j = 0; j < 16; j++) {
        code[j] = q[j] & 15;
        code[j + 16] = q[j] >> 4;
    }
}

static void take_fifth_bits(const uint8_t *h, uint8_t *code)
{
    for (int j = 0; j < 32; j++)
        code[j] |= (uint8_t)((h[j / 8] >> (j % 8) & 1) << 4);
}

/* The twelve bytes of Q4_K and Q5_K: eight six-bit scales, eight mins. */
static void take_scales_k4(const uint8_t *b, parts *s)
{
    for (int j = 0; j < 4; j++) {
        s->scale[j] = b[j] & 63;
        s->min[j] = b[j + 4] & 63;
        s->scale[j + 4] = (uint8_t)((b[j + 8] & 15) | (b[j] >> 6) << 4);
        s->min[j + 4] = (uint8_t)(b[j + 8] >> 4 | (b[j + 4] >> 6) << 4);
    }
}

static void take_q2_k(const uint8_t *b, parts *s)
{
    for (int j = 0; j < 16; j++) {
        s->scale[j] = b[j] & 15;
        s->min[j] = b[j] >> 4;
    }
    for (int y = 0; y < 256; y++)
        s->code[y] = b[16 + 32 * (y / 128) + y % 32] >> (2 * (y / 32 % 4)) & 3;
    memcpy(s->d, b + 80, 2);
    memcpy(s->m, b + 82, 2);
}

static void take_q3_k(const uint8_t *b, parts *s)
{
    for (int i = 0; i < 16; i++) {
        int low = i < 8 ? b[96 + i] & 15 : b[96 + i - 8] >> 4;
        s->scale[i] = (uint8_t)(low | (b[104 + i % 4] >> (2 * (i / 4)) & 3) << 4);
    }
    for (int y = 0; y < 256; y++) {
        int k = y / 32; /* hmask bit: 4 * half + quarter */
        int low = b[32 + 32 * (y / 128) + y % 32] >> (2 * (k % 4)) & 3;
        s->code[y] = (uint8_t)(low | (b[y % 32] >> k & 1) << 2);
    }
    memcpy(s->d, b + 108, 2);
}

/* Q4_K and Q5_K, which has fifth bits before the nibbles. */
static void take_q45_k(num_type type, const uint8_t *b, parts *s)
{
    memcpy(s->d, b, 2);
    memcpy(s->m, b + 2, 2);
    take_scales_k4(b + 4, s);
    for (int i = 0; i < 4; i++) {
        const uint8_t *q = b + (type == NUM_Q4_K ? 16 : 48) + 32 * i;
        for (int l = 0; l < 32; l++) {
            s->code[64 * i + l] = q[l] & 15;
            s->code[64 * i + 32 + l] = q[l] >> 4;
        }
    }
    for (int i = 0; type == NUM_Q5_K && i < 8; i++)
        for (int l = 0; l < 32; l++)
            s->code[32 * i + l] |= (uint8_t)((b[16 + l] >> i & 1) << 4);
}

static void take_q6_k(const uint8_t *b, parts *s)
{
    for (int n = 0; n < 2; n++)
        for (int l = 0; l < 32; l++) {
            const uint8_t *lo = b + 64 * n, *hi = b + 128 + 32 * n;
            uint8_t *c = s->code + 128 * n + l;
            c[0] = (uint8_t)((lo[l] & 15) | (hi[l] & 3) << 4);
            c[32] = (uint8_t)((lo[l + 32] & 15) | (hi[l] >> 2 & 3) << 4);
            c[64] = (uint8_t)(lo[l] >> 4 | (hi[l] >> 4 & 3) << 4);
            c[96] = (uint8_t)(lo[l + 32] >> 4 | (hi[l] >> 6) << 4);
        }
    memcpy(s->scale, b + 192, 16);
    memcpy(s->d, b + 208, 2);
}

static void take_iq4_xs(const uint8_t *b, parts *s)
{
    memcpy(s->d, b, 2);
    for (int i = 0; i < 8; i++) {
        uint32_t high = (uint32_t)b[2] | (uint32_t)b[3] << 8;
        s->scale[i] = (uint8_t)((b[4 + i / 2] >> (4 * (i % 2)) & 15) | (high >> (2 * i) & 3) << 4);
        take_nibbles(b + 8 + 16 * i, s->code + 32 * i);
    }
}

/* The codes and scales of a block, in the order of its elements. */
static void take_apart(num_type type, const uint8_t *b, parts *s)
{
    switch (type) {
    case NUM_Q4_0:
    case NUM_IQ4_NL:
        memcpy(s->d, b, 2);
        take_nibbles(b + 2, s->code);
        break;
    case NUM_Q4_1:
        memcpy(s->d, b, 2);
        memcpy(s->m, b + 2, 2);
        take_nibbles(b + 4, s->code);
        break;
    case NUM_Q5_0:
        memcpy(s->d, b, 2);
        take_nibbles(b + 6, s->code);
        take_fifth_bits(b + 2, s->code);
        break;
    case NUM_Q5_1:
        memcpy(s->d, b, 2);
        memcpy(s->m, b + 2, 2);
        take_nibbles(b + 8, s->code);
        take_fifth_bits(b + 4, s->code);
        break;
    case NUM_Q8_0:
        memcpy(s->d, b, 2);
        for (int j = 0; j < 32; j++)
            s->code[j] = b[2 + j] ^ 0x80;
        break;
    case NUM_MXFP4:
        s->d[0] = b[0];
        take_nibbles(b + 1, s->code);
        break;
    case NUM_Q2_K:
        take_q2_k(b, s);
        break;
    case NUM_Q3_K:
        take_q3_k(b, s);
        break;
    case NUM_Q4_K:
    case NUM_Q5_K:
        take_q45_k(type, b, s);
        break;
    case NUM_Q6_K:
        take_q6_k(b, s);
        break;
    case NUM_IQ4_XS:
        take_iq4_xs(b, s);
        break;
    default:
        break;
    }
}

static void put_six(uint8_t *z, int a, int lane, uint32_t v)
{
    if (a < 12) {
        z[16 * a + lane] |= (uint8_t)v;
        return;
    }
    uint8_t *b = z + 16 * (a - 12) + lane;
    b[0] |= (uint8_t)((v & 3) << 6);
    b[64] |= (uint8_t)((v >> 2 & 3) << 6);
    b[128] |= (uint8_t)((v >> 4 & 3) << 6);
}

/* The scales of one lane; z is zeroed. */
static void put_scales(const pack_kind *p, const parts *s, int lane, uint8_t *z)
{
    uint8_t *factors = z + p->scale_bytes - (p->mins ? 64 : 32);
    switch (p->type) {
    case NUM_MXFP4:
        z[lane] = s->d[0];
        return;
    case NUM_Q2_K:
        for (int a = 0; a < 16; a++)
            z[16 * a + lane] = (uint8_t)(s->scale[a] | s->min[a] << 4);
        break;
    case NUM_Q6_K:
        for (int a = 0; a < 16; a++)
            z[16 * a + lane] = s->scale[a];
        break;
    case NUM_Q3_K:
        for (int a = 0; a < 16; a++)
            put_six(z, a, lane, s->scale[a]);
        break;
    case NUM_Q4_K:
    case NUM_Q5_K:
        for (int a = 0; a < 8; a++) {
            put_six(z, a, lane, s->scale[a]);
            put_six(z, 8 + a, lane, s->min[a]);
        }
        break;
    case NUM_IQ4_XS: /* 64 bytes of low nibbles (scale a + 4 above scale a), 32 of high pairs */
        for (int a = 0; a < 8; a++) {
            z[16 * (a % 4) + lane] |= (uint8_t)((s->scale[a] & 15) << (4 * (a / 4)));
            z[64 + 16 * (a % 2) + lane] |= (uint8_t)((s->scale[a] >> 4) << (2 * (a / 2)));
        }
        break;
    default:
        break;
    }
    memcpy(factors + 2 * lane, s->d, 2);
    if (p->mins)
        memcpy(factors + 32 + 2 * lane, s->m, 2);
}

/* Four codes of one lane as one word, a byte each. Shifts must not carry from one byte into the
 * next. */
static uint32_t four_codes(const uint8_t *code, int shift, uint32_t mask)
{
    uint32_t v;
    memcpy(&v, code, 4);
    return v >> shift & mask * 0x01010101u;
}

static void pack_four(uint8_t *z, int t, int lane, uint32_t v)
{
    memcpy(z + 64 * t + 4 * lane, &v, 4);
}

/* Writes 32 codes of one lane, all of its bytes. */
static void pack_codes(const pack_kind *p, const uint8_t *code, int lane, uint8_t *z)
{
    if (p->bytes)
        for (int t = 0; t < 8; t++)
            pack_four(z, t, lane, four_codes(code + 4 * t, 0, 255));
    if (p->nibbles) {
        for (int t = 0; t < 4; t++)
            pack_four(z, t, lane,
                      four_codes(code + 4 * t, 0, 15) | four_codes(code + 16 + 4 * t, 0, 15) << 4);
        z += 256;
    }
    if (p->pairs) { /* all of a two-bit code, the top of a six-bit one */
        int shift = p->nibbles ? 4 : 0;
        for (int u = 0; u < 2; u++) {
            uint32_t v = 0;
            for (int f = 0; f < 4; f++)
                v |= four_codes(code + 16 * u + 4 * f, shift, 3) << (2 * f);
            pack_four(z, u, lane, v);
        }
        z += 128;
    }
    if (p->bits) { /* above a nibble or a pair */
        int shift = p->nibbles ? 4 : 2;
        uint32_t v = 0;
        for (int t = 0; t < 8; t++)
            v |= four_codes(code + 4 * t, shift, 1) << t;
        pack_four(z, 0, lane, v);
    }
}

static void pack_group_floats(const weight *w, int32_t k, int64_t row, unsigned char *to)
{
    size_t size = w->type == NUM_F32 ? 4 : 2, together = w->type == NUM_BF16 ? 2 : 1;
    memset(to, 0, pack_group_bytes(w));
    for (size_t lane = 0; lane < PACK_LANES && row + (int64_t)lane < w->n_out; lane++) {
        const unsigned char *from = weight_row(w, k, row + (int64_t)lane);
        for (size_t i = 0; i < (size_t)w->n_in; i++) {
            size_t at = (i / together * PACK_LANES + lane) * together + i % together;
            memcpy(to + at * size, from + i * size, size);
        }
    }
}

void pack_group(const weight *w, int32_t k, int64_t row, unsigned char *to)
{
    const pack_kind *p = pack_kind_of(w->type);
    if (!p) {
        pack_group_floats(w, k, row, to);
        return;
    }
    const num_format *f = num_format_of(w->type);
    parts s = {0};
    memset(to, 0, pack_group_bytes(w));
    for (int lane = 0; lane < PACK_LANES && row + lane < w->n_out; lane++) {
        const uint8_t *from = weight_row(w, k, row + lane);
        unsigned char *z = to;
        for (int32_t i = 0; i < w->n_in / f->block_n; i++) {
            take_apart(w->type, from, &s);
            put_scales(p, &s, lane, z);
            for (int b = 0; b < p->n_blocks; b++)
                pack_codes(p, s.code + 32 * b, lane, z + p->scale_bytes + b * p->block_bytes);
            from += f->block_bytes;
            z += p->super_bytes;
        }
    }
}
