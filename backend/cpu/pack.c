/* pack.c - from the file's blocks to the device's layout (pack_int.h).
 *
 * Runs once per weight at load, or per product for a device that keeps no copies. One row's
 * superblock is taken apart into codes and scales, then spread over the sixteen-row layout.
 */
#include "backend/cpu/pack_int.h"
#include "num/lattice.h"

#include <pthread.h>
#include <string.h>

static const pack_kind kinds[] = {
    {NUM_Q4_0, 1, 8, 1, false, true, false, false, false, 32, 256, 288, 0, 0},
    {NUM_Q4_1, 1, 0, 1, true, true, false, false, false, 64, 256, 320, 0, 0},
    {NUM_Q5_0, 1, 16, 1, false, true, false, true, false, 32, 320, 352, 0, 0},
    {NUM_Q5_1, 1, 0, 1, true, true, false, true, false, 64, 320, 384, 0, 0},
    {NUM_Q8_0, 1, 128, 1, false, false, false, false, true, 32, 512, 544, 0, 0},
    {NUM_Q2_K, 8, 0, 2, true, false, true, false, false, 320, 128, 1344, 0, 0},
    {NUM_Q3_K, 8, 4, 2, false, false, true, true, false, 224, 192, 1760, 0, 0},
    {NUM_Q4_K, 8, 0, 1, true, true, false, false, false, 256, 256, 2304, 0, 0},
    {NUM_Q5_K, 8, 0, 1, true, true, false, true, false, 256, 320, 2816, 0, 0},
    {NUM_Q6_K, 8, 32, 2, false, true, true, false, false, 288, 384, 3360, 0, 0},
    {NUM_IQ4_NL, 1, 128, 1, false, true, false, false, false, 32, 256, 288, 0, 0},
    {NUM_IQ4_XS, 8, 128, 1, false, true, false, false, false, 128, 256, 2176, 0, 0},
    {NUM_MXFP4, 1, 12, 1, false, true, false, false, false, 16, 256, 272, 0, 0},
    {NUM_NVFP4, 2, 12, 2, false, true, false, false, false, 64, 256, 576, 0, 0},
    {NUM_Q1_0, 4, 1, 1, false, false, false, true, false, 32, 64, 288, 0, 0},
    {NUM_Q2_0, 2, 1, 1, false, false, true, false, false, 32, 128, 288, 0, 0},
    {NUM_TQ2_0, 8, 1, 1, false, false, true, false, false, 32, 128, 1056, 0, 0},
    {NUM_IQ1_S, 8, 9, 1, false, false, false, false, false, 96, 96, 864, 8, 4},
    {NUM_IQ1_M, 8, 9, 2, false, false, false, false, false, 160, 96, 928, 8, 4},
    {NUM_IQ2_XXS, 8, 43, 1, false, false, false, false, false, 96, 128, 1120, 8, 0},
    {NUM_IQ2_XS, 8, 43, 2, false, false, false, false, false, 160, 136, 1248, 8, 1},
    {NUM_IQ2_S, 8, 43, 2, false, false, false, false, false, 160, 144, 1312, 8, 2},
    {NUM_IQ3_XXS, 8, 62, 1, false, false, false, false, false, 96, 192, 1632, 4, 0},
    {NUM_IQ3_S, 8, 15, 1, false, false, false, false, false, 96, 208, 1760, 4, 1},
};

const pack_kind *pack_kind_of(num_type type)
{
    if (type == NUM_TQ1_0) /* three codes in 1.6 bits become pairs of bits */
        type = NUM_TQ2_0;
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
    lattice_group group[8];
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

static void take_lattice(num_type type, const uint8_t *b, parts *s)
{
    for (int j = 0; j < 8; j++) {
        lattice_take(&s->group[j], (int)type, b, j);
        for (int h = 0; h < 2; h++) /* for put_scales: of all groups, or of all halves */
            s->scale[pack_kind_of(type)->n_sub == 2 ? 2 * j + h : j] = s->group[j].scale[h];
    }
    s->d[0] = (uint8_t)s->group[0].d;
    s->d[1] = (uint8_t)(s->group[0].d >> 8);
}

/* Of a format with one factor: its codes by decoding with a factor of 1. */
static void take_few_bits(num_type type, const uint8_t *b, parts *s)
{
    const num_format *f = num_format_of(type);
    uint8_t one[66];
    float v[256];
    memcpy(one, b, (size_t)f->block_bytes);
    num_set_factor(type, one, 1);
    f->decode(one, v, f->block_n);
    for (int j = 0; j < f->block_n; j++)
        s->code[j] = (uint8_t)(type == NUM_Q1_0 ? v[j] > 0 : (int)v[j] + 1);
    memcpy(s->d, b + (type == NUM_TQ1_0 || type == NUM_TQ2_0 ? f->block_bytes - 2 : 0), 2);
}

static void take_nvfp4(const uint8_t *b, parts *s)
{
    for (int g = 0; g < 4; g++) { /* without the bit that is ignored; NaN counts as 0 */
        s->scale[g] = b[g] == 0x7f ? 0 : b[g] & 0x7f;
        for (int j = 0; j < 8; j++) {
            s->code[16 * g + j] = b[4 + 8 * g + j] & 15;
            s->code[16 * g + j + 8] = b[4 + 8 * g + j] >> 4;
        }
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
    case NUM_NVFP4:
        take_nvfp4(b, s);
        break;
    case NUM_Q1_0:
    case NUM_Q2_0:
    case NUM_TQ1_0:
    case NUM_TQ2_0:
        take_few_bits(type, b, s);
        break;
    default:
        take_lattice(type, b, s);
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
    case NUM_NVFP4:
        for (int a = 0; a < 4; a++)
            z[16 * a + lane] = s->scale[a];
        return;
    default: /* lattices: a nibble each, the second half above the first */
        for (int a = 0, n = 4 * p->n_sub; p->width && a < 2 * n; a++)
            z[16 * (a % n) + lane] |= (uint8_t)(s->scale[a] << (4 * (a / n)));
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
    if (p->bits) { /* above a nibble or a pair, or alone */
        int shift = p->nibbles ? 4 : p->pairs ? 2 : 0;
        uint32_t v = 0;
        for (int t = 0; t < 8; t++)
            v |= four_codes(code + 4 * t, shift, 1) << t;
        pack_four(z, 0, lane, v);
    }
}

/* Sixteen lanes' bit of one of their entries, or of one of their quads of signs. */
static void set_bit(uint8_t *z, int bit, uint32_t v)
{
    z[bit / 8] |= (uint8_t)((v & 1) << bit % 8);
}

/* Writes a group of entries of one lane; z is zeroed. */
static void pack_entries(const pack_kind *p, const lattice_group *g, int lane, uint8_t *z)
{
    int n = 32 / p->width;
    bool shifts = lattice_shifts((int)p->type);
    uint8_t *signs = z + 16 * n, *planes = signs + (shifts ? 0 : 64);
    for (int k = 0; k < n; k++) {
        z[16 * k + lane] = (uint8_t)g->index[k];
        for (int b = 0; b < p->planes; b++)
            set_bit(planes + 2 * (n * b + k), lane,
                    shifts && b == 3 ? g->negative >> k : (uint32_t)g->index[k] >> (8 + b));
    }
    for (int i = 0; !shifts && i < 32; i++)
        set_bit(signs + i / 4 * 8, 4 * lane + i % 4, g->negative >> i);
}

pack_lattices pack_codes_of;
static pthread_once_t lattices_filled = PTHREAD_ONCE_INIT;

static void fill_lattice(num_type type, uint32_t *to, int n)
{
    const uint16_t *grid = num_lattice(type);
    int width = lattice_width((int)type), off = pack_kind_of(type)->off;
    for (int i = 0; i < n * width / 4; i++, to++) {
        *to = 0;
        for (int j = 0; j < 4; j++) {
            int size = lattice_size((int)type, grid[4 * i / width], 4 * i % width + j);
            *to |= (uint32_t)(off + size + lattice_shifts((int)type)) << 8 * j;
        }
    }
}

static void fill_lattices(void)
{
    fill_lattice(NUM_IQ2_XXS, pack_codes_of.iq2_xxs, 256);
    fill_lattice(NUM_IQ2_XS, pack_codes_of.iq2_xs, 512);
    fill_lattice(NUM_IQ2_S, pack_codes_of.iq2_s, 1024);
    fill_lattice(NUM_IQ1_S, pack_codes_of.iq1, 2048);
    fill_lattice(NUM_IQ3_XXS, pack_codes_of.iq3_xxs, 256);
    fill_lattice(NUM_IQ3_S, pack_codes_of.iq3_s, 512);
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
    if (p->width)
        pthread_once(&lattices_filled, fill_lattices);
    memset(to, 0, pack_group_bytes(w));
    for (int lane = 0; lane < PACK_LANES && row + lane < w->n_out; lane++) {
        const uint8_t *from = weight_row(w, k, row + lane);
        unsigned char *z = to;
        for (int32_t i = 0; i < w->n_in / f->block_n; i++) {
            take_apart(w->type, from, &s);
            put_scales(p, &s, lane, z);
            for (int b = 0; p->width && b < p->n_blocks; b++)
                pack_entries(p, &s.group[b], lane, z + p->scale_bytes + b * p->block_bytes);
            for (int b = 0; !p->width && b < p->n_blocks; b++)
                pack_codes(p, s.code + 32 * b, lane, z + p->scale_bytes + b * p->block_bytes);
            from += f->block_bytes;
            z += p->super_bytes;
        }
    }
}
