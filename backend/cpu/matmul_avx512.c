/* matmul_avx512.c - the kernels for AVX-512 with VNNI.
 *
 * A zmm register is sixteen outputs by four inputs of codes; vpdpbusd multiplies them with four
 * activations broadcast from memory and adds into sixteen 32-bit sums. The text of all other
 * kernels is shared (vec_int.h gives it sixteen floats).
 */
#include "backend/cpu/ahead_int.h"
#include "backend/cpu/codes_int.h"
#include "backend/cpu/float_int.h"
#include "backend/cpu/heads_int.h"
#include "backend/cpu/recur_int.h"
#include "backend/cpu/rows_int.h"
#include "backend/cpu/small_int.h"
#include "backend/cpu/table_int.h"

INLINE __m512i four(const int8_t *q)
{
    int32_t v;
    memcpy(&v, q, 4);
    return _mm512_set1_epi32(v);
}

/* s times a sum of integers that began with DOT_BASE, whose bits are the float 1.5 * 2^23. While
 * the sum is below 2^22, adding n to the bits adds n to the float; and s has so few digits that the
 * base's part, taken off in the same FMA, is exact. So the result is s n, rounded once, without a
 * conversion. */
INLINE __m512 base_of(__m512 s)
{
    return _mm512_mul_ps(s, _mm512_set1_ps(-0x1.8p23f));
}
INLINE __m512 scaled(__m512i dot, __m512 s, __m512 base)
{
    return _mm512_fmadd_ps(_mm512_castsi512_ps(dot), s, base);
}

typedef struct code_work {
    const codes *c; /* [TILE_GROUPS] */
    int32_t n;      /* blocks of 32 inputs */
    const xblock *const *x;
    float *acc;
} code_work;

/* acc[r][o] += d_x sum_b s_b (code . q)_b - m_b sum_b    two groups, up to six rows
 * layout: codes [n][8][16 outputs][4 inputs], lanes are outputs
 * tile:   12 integer and 12 float sums in registers, two codes, one activation
 * bound:  two vpdpbusd per cycle; of 11 instructions on those ports 8 are products */
INLINE void code_rows(const int n_sub, const bool mins, const code_work *w, const int n_rows)
{
    const codes *c = w->c;
    const xblock *const *x = w->x;
    const int32_t n = w->n;
    float *acc = w->acc;
    __m512 sum[TILE_GROUPS][TILE_ROWS];
    for (int r = 0; r < n_rows; r++)
        for (int g = 0; g < TILE_GROUPS; g++)
            sum[g][r] = _mm512_loadu_ps(acc + r * TILE_COLS + g * PACK_LANES);
    for (int32_t b = 0; b < n; b++)
        for (int h = 0; h < n_sub; h++) {
            __m512i dot[TILE_GROUPS][TILE_ROWS];
            for (int r = 0; r < n_rows; r++) {
                __m512i start = _mm512_set1_epi32(mins ? DOT_BASE : x[r][b].start[h]);
                for (int g = 0; g < TILE_GROUPS; g++)
                    dot[g][r] = start;
            }
            UNROLL(8)
            for (int t = h * 8 / n_sub; t < (h + 1) * 8 / n_sub; t++) {
                __m512i w0 = _mm512_loadu_si512(c[0].q + (size_t)b * PACK_CODES + (size_t)t * 64);
                __m512i w1 = _mm512_loadu_si512(c[1].q + (size_t)b * PACK_CODES + (size_t)t * 64);
                for (int r = 0; r < n_rows; r++) {
                    __m512i xv = four(x[r][b].q + 4 * t);
                    dot[0][r] = _mm512_dpbusd_epi32(dot[0][r], w0, xv);
                    dot[1][r] = _mm512_dpbusd_epi32(dot[1][r], w1, xv);
                }
            }
            size_t at = ((size_t)b * (size_t)n_sub + (size_t)h) * PACK_LANES;
            for (int g = 0; g < TILE_GROUPS; g++) {
                __m512 s = _mm512_loadu_ps(c[g].s + at);
                __m512 base = base_of(s);
                for (int r = 0; r < n_rows; r++)
                    sum[g][r] = _mm512_fmadd_ps(scaled(dot[g][r], s, base),
                                                _mm512_set1_ps(x[r][b].d), sum[g][r]);
                if (mins) {
                    __m512 m = _mm512_loadu_ps(c[g].m + at);
                    for (int r = 0; r < n_rows; r++)
                        sum[g][r] = _mm512_fnmadd_ps(m, _mm512_set1_ps(x[r][b].sum[h]), sum[g][r]);
                }
            }
        }
    for (int r = 0; r < n_rows; r++)
        for (int g = 0; g < TILE_GROUPS; g++)
            _mm512_storeu_ps(acc + r * TILE_COLS + g * PACK_LANES, sum[g][r]);
}

INLINE void code_tile_as(const int n_sub, const bool mins, const code_work *w, int32_t n_rows)
{
    switch (n_rows) {
    case 1:
        code_rows(n_sub, mins, w, 1);
        break;
    case 2:
        code_rows(n_sub, mins, w, 2);
        break;
    case 3:
        code_rows(n_sub, mins, w, 3);
        break;
    case 4:
        code_rows(n_sub, mins, w, 4);
        break;
    case 5:
        code_rows(n_sub, mins, w, 5);
        break;
    default:
        code_rows(n_sub, mins, w, TILE_ROWS);
    }
}

static void code_tile(const pack_kind *kind, const codes c[TILE_GROUPS], int32_t n,
                      const xblock *const *x, int32_t n_rows, float *acc)
{
    const code_work w = {c, n, x, acc};
    if (kind->n_sub == 1 && kind->mins)
        code_tile_as(1, true, &w, n_rows);
    else if (kind->n_sub == 1)
        code_tile_as(1, false, &w, n_rows);
    else if (kind->mins)
        code_tile_as(2, true, &w, n_rows);
    else
        code_tile_as(2, false, &w, n_rows);
}

/* ---- Codes from the packed layout -------------------------------------------------------- */

INLINE __m512i load64(const uint8_t *p)
{
    return _mm512_loadu_si512(p);
}

/* v shifted right by n bits (left when negative), bytes never mixing under the mask. */
INLINE __m512i bits_of(__m512i v, int n, int mask)
{
    __m512i s = n > 0   ? _mm512_srli_epi16(v, (unsigned)n)
                : n < 0 ? _mm512_slli_epi16(v, (unsigned)-n)
                        : v;
    return _mm512_and_si512(s, _mm512_set1_epi8((char)mask));
}

/* w |= v shifted, under the mask: one instruction more than the shift */
INLINE __m512i or_bits(__m512i w, __m512i v, int n, int mask)
{
    __m512i s = n > 0   ? _mm512_srli_epi16(v, (unsigned)n)
                : n < 0 ? _mm512_slli_epi16(v, (unsigned)-n)
                        : v;
    return _mm512_ternarylogic_epi64(w, s, _mm512_set1_epi8((char)mask), 0xf8);
}

INLINE __m512i table16(const uint8_t *codes16)
{
    return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(const void *)codes16));
}

INLINE __m128i load16(const uint8_t *p)
{
    return _mm_loadu_si128((const __m128i *)(const void *)p);
}
INLINE __mmask16 mask16(const uint8_t *p)
{
    uint16_t m;
    memcpy(&m, p, 2);
    return m;
}

/* The codes of a lattice, as in take_entries (codes_int.h): of each entry 16 lanes at once. */
INLINE void entries_in_registers(num_type t, const uint8_t *z, __m512i w[8])
{
    const int n = 32 / lattice_width((int)t), quads = 8 / n;
    const bool shifts = lattice_shifts((int)t);
    const uint32_t *table = lattice_codes(t);
    const uint8_t *signs = z + 16 * n, *planes = signs + (shifts ? 0 : 64);
    UNROLL(8)
    for (int k = 0; k < n; k++) {
        __m512i i = _mm512_cvtepu8_epi32(load16(z + 16 * k));
        for (int b = 0; b < index_planes(t); b++)
            i = _mm512_mask_add_epi32(i, mask16(planes + 2 * (n * b + k)), i,
                                      _mm512_set1_epi32(256 << b));
        for (int h = 0; h < quads; h++) {
            __m512i v = quads == 1 ? _mm512_i32gather_epi32(i, table, 4)
                                   : _mm512_i32gather_epi32(i, table + h, 8);
            __mmask64 m;
            if (shifts) {
                v = _mm512_mask_sub_epi32(v, mask16(planes + 2 * (n * 3 + k)), v,
                                          _mm512_set1_epi32(0x02020202));
            } else {
                memcpy(&m, signs + 8 * (k * quads + h), 8);
                v = _mm512_mask_sub_epi8(v, m, _mm512_set1_epi8((char)(2 * lattice_off(t))), v);
            }
            w[k * quads + h] = v;
        }
    }
}

/* The codes of 32 inputs by 16 outputs, as in take_codes (codes_int.h), in eight registers. */
INLINE void codes_in_registers(num_type t, const uint8_t *z, __m512i w[8])
{
    if (t == NUM_Q8_0) {
        for (int k = 0; k < 8; k++)
            w[k] = load64(z + 64 * k);
        return;
    }
    if (lattice_type((int)t)) {
        entries_in_registers(t, z, w);
        return;
    }
    if (t == NUM_Q1_0) {
        for (int k = 0; k < 8; k++)
            w[k] = bits_of(load64(z), k - 1, 2);
        return;
    }
    if (t == NUM_Q2_K || t == NUM_Q3_K || t == NUM_Q2_0 || t == NUM_TQ2_0) {
        __m512i lo = load64(z), hi = load64(z + 64);
        for (int k = 0; k < 4; k++) {
            w[k] = bits_of(lo, 2 * k, 3);
            w[4 + k] = bits_of(hi, 2 * k, 3);
        }
        if (t == NUM_Q3_K) {
            __m512i h = load64(z + 128);
            for (int k = 0; k < 8; k++)
                w[k] = or_bits(w[k], h, k - 2, 4);
        }
        return;
    }
    for (int k = 0; k < 4; k++) {
        __m512i v = load64(z + 64 * k);
        w[k] = bits_of(v, 0, 15);
        w[4 + k] = bits_of(v, 4, 15);
    }
    if (t == NUM_Q6_K) {
        __m512i lo = load64(z + 256), hi = load64(z + 320);
        for (int k = 0; k < 4; k++) {
            w[k] = or_bits(w[k], lo, 2 * k - 4, 0x30);
            w[4 + k] = or_bits(w[4 + k], hi, 2 * k - 4, 0x30);
        }
    }
    if (t == NUM_Q5_0 || t == NUM_Q5_1 || t == NUM_Q5_K) {
        __m512i h = load64(z + 256);
        for (int k = 0; k < 8; k++)
            w[k] = or_bits(w[k], h, k - 4, 0x10);
    }
    if (t == NUM_IQ4_NL || t == NUM_IQ4_XS || t == NUM_MXFP4 || t == NUM_NVFP4) {
        __m512i table = table16(t == NUM_MXFP4 || t == NUM_NVFP4 ? fp4_codes : iq4_codes);
        for (int k = 0; k < 8; k++)
            w[k] = _mm512_shuffle_epi8(table, w[k]);
    }
}

INLINE __m512 f32_of_u8(__m128i v)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(v));
}
INLINE __m512 f32_of_f16(const uint8_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}

/* Scale and min number a of a superblock, as in take_scales (codes_int.h). `six` is the fourth
 * quarter of six-bit values, put together beforehand. */
INLINE __m512 scale_of(num_type t, const uint8_t *z, const uint8_t *six, int a, __m512 d)
{
    const __m128i low6 = _mm_set1_epi8(63), low4 = _mm_set1_epi8(15);
    if (t == NUM_Q4_K || t == NUM_Q5_K)
        return _mm512_mul_ps(d, f32_of_u8(_mm_and_si128(load16(z + 16 * a), low6)));
    if (t == NUM_Q6_K)
        return _mm512_mul_ps(d, _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load16(z + 16 * a))));
    if (t == NUM_Q2_K)
        return _mm512_mul_ps(d, f32_of_u8(_mm_and_si128(load16(z + 16 * a), low4)));
    if (t == NUM_Q3_K || t == NUM_IQ4_XS) {
        __m128i v;
        if (t == NUM_Q3_K) {
            v = a < 12 ? _mm_and_si128(load16(z + 16 * a), low6) : load16(six + 16 * (a - 12));
        } else {
            __m128i low = load16(z + 16 * (a % 4)), high = load16(z + 64 + 16 * (a % 2));
            low = _mm_and_si128(a < 4 ? low : _mm_srli_epi16(low, 4), low4);
            high = _mm_and_si128(_mm_srli_epi16(high, 2 * (a / 2)), _mm_set1_epi8(3));
            v = _mm_or_si128(low, _mm_slli_epi16(high, 4));
        }
        __m512i i = _mm512_sub_epi32(_mm512_cvtepu8_epi32(v), _mm512_set1_epi32(32));
        return _mm512_mul_ps(d, _mm512_cvtepi32_ps(i));
    }
    if (t == NUM_NVFP4) { /* num_int.h: an f16 with another bias */
        __m256i h = _mm256_slli_epi16(_mm256_cvtepu8_epi16(load16(z + 16 * a)), 7);
        return _mm512_mul_ps(_mm512_cvtph_ps(h), _mm512_set1_ps(128));
    }
    if (lattice_type((int)t)) {
        const int n = 4 * lattice_halves(t);
        __m128i v = load16(z + 16 * (a % n));
        v = _mm_and_si128(a < n ? v : _mm_srli_epi16(v, 4), low4);
        v = _mm_or_si128(_mm_add_epi8(v, v), _mm_set1_epi8(1));
        return _mm512_mul_ps(d, f32_of_u8(v));
    }
    return d;
}

INLINE __m512 min_of(num_type t, const uint8_t *z, const uint8_t *six, int a, __m512 m)
{
    if (t == NUM_Q4_K || t == NUM_Q5_K) {
        __m128i v = a < 4 ? _mm_and_si128(load16(z + 128 + 16 * a), _mm_set1_epi8(63))
                          : load16(six + 16 * (a - 4));
        return _mm512_mul_ps(m, f32_of_u8(v));
    }
    if (t == NUM_Q2_K)
        return _mm512_mul_ps(
            m, f32_of_u8(_mm_and_si128(_mm_srli_epi16(load16(z + 16 * a), 4), _mm_set1_epi8(15))));
    return m;
}

/* The shared part of a superblock's scales: factors, and the fourth quarter of six-bit values. */
INLINE void scales_begin(num_type t, const uint8_t *z, uint8_t six[64], __m512 *d, __m512 *m)
{
    *m = _mm512_setzero_ps();
    switch (t) {
    case NUM_MXFP4: {
        __m512i e = _mm512_cvtepu8_epi32(load16(z));
        __m512i normal = _mm512_slli_epi32(_mm512_sub_epi32(e, _mm512_set1_epi32(1)), 23);
        __m512i tiny = _mm512_sllv_epi32(_mm512_set1_epi32(0x00200000), e);
        __mmask16 small = _mm512_cmplt_epi32_mask(e, _mm512_set1_epi32(2));
        *d = _mm512_castsi512_ps(_mm512_mask_mov_epi32(normal, small, tiny));
        return;
    }
    case NUM_Q4_1:
    case NUM_Q5_1: /* value = d code + m: the min is -m */
        *d = f32_of_f16(z);
        *m = _mm512_sub_ps(_mm512_setzero_ps(), f32_of_f16(z + 32));
        return;
    case NUM_Q2_K:
        *d = f32_of_f16(z + 256);
        *m = f32_of_f16(z + 288);
        return;
    case NUM_Q6_K:
        *d = f32_of_f16(z + 256);
        return;
    case NUM_IQ4_XS:
        *d = f32_of_f16(z + 96);
        return;
    case NUM_Q3_K:
    case NUM_Q4_K:
    case NUM_Q5_K: {
        __m512i v = bits_of(load64(z), 6, 3);
        v = or_bits(v, load64(z + 64), 4, 0x0c);
        v = or_bits(v, load64(z + 128), 2, 0x30);
        _mm512_storeu_si512(six, v);
        *d = f32_of_f16(z + 192);
        if (t != NUM_Q3_K)
            *m = f32_of_f16(z + 224);
        return;
    }
    default:
        *d = lattice_type((int)t) ? _mm512_mul_ps(f32_of_f16(z + 64 * lattice_halves(t)),
                                                  _mm512_set1_ps(lattice_unit((int)t)))
                                  : f32_of_f16(z);
    }
}

/* Asks for a part of a superblock as long as block j of it, which lies ahead of it. */
INLINE void ask_block(num_type t, const uint8_t *z, int j, int super_bytes, const reach *a)
{
    const int n = super_bytes / blocks_of(t);
    if (blocks_of(t) > 1 || a->upwards)
        ask_ahead(z + j * n, n, a);
}

typedef struct packed_work {
    const pack_kind *kind;
    const uint8_t *z; /* superblocks of one group */
    int32_t n;        /* blocks of 32 inputs */
    const xblock *const *x;
    float *acc;
    reach ahead;
} packed_work;

/* Of a superblock, as scales_begin leaves them. */
typedef struct scales {
    const uint8_t *six;
    __m512 d, m;
} scales;

/* Block j of a superblock z, whose x begin at block b. */
INLINE void packed_block(num_type t, const int n_sub, const bool mins, const packed_work *p,
                         const uint8_t *z, const scales *c, int32_t b, const int j,
                         const int n_rows, __m512 sum[4])
{
    const pack_kind *kind = p->kind;
    __m512i w[8];
    codes_in_registers(t, z + kind->scale_bytes + j * kind->block_bytes, w);
    ask_block(t, z, j, kind->super_bytes, &p->ahead);
    for (int h = 0; h < n_sub; h++) {
        __m512 s = scale_of(t, z, c->six, j * n_sub + h, c->d);
        __m512 m = mins ? min_of(t, z, c->six, j * n_sub + h, c->m) : s, base = base_of(s);
        for (int r = 0; r < n_rows; r++) {
            const xblock *xb = p->x[r] + b + j;
            __m512i even = _mm512_set1_epi32(mins ? DOT_BASE : xb->start[h]);
            __m512i odd = _mm512_setzero_si512(); /* integers: two chains, the same sum */
            for (int k = h * 8 / n_sub; k < (h + 1) * 8 / n_sub; k += 2) {
                even = _mm512_dpbusd_epi32(even, w[k], four(xb->q + 4 * k));
                odd = _mm512_dpbusd_epi32(odd, w[k + 1], four(xb->q + 4 * k + 4));
            }
            sum[r] = _mm512_fmadd_ps(scaled(_mm512_add_epi32(even, odd), s, base),
                                     _mm512_set1_ps(xb->d), sum[r]);
            if (mins)
                sum[r] = _mm512_fnmadd_ps(m, _mm512_set1_ps(xb->sum[h]), sum[r]);
        }
    }
}

/* acc[r][o] += as code_rows, straight from the packed layout: one group, one to four rows
 * layout: pack_int.h; codes go from memory to registers to vpdpbusd and are not stored
 * order:  that of code_rows, operation by operation, so the bits are the same
 * bound:  reading the weights; 64 cycles of multiplies per 2304 bytes of q4_k and row */
INLINE void packed_rows(num_type t, const int n_sub, const bool mins, const packed_work *p,
                        const int n_rows)
{
    const int n_blocks = blocks_of(t);
    const uint8_t *z = p->z;
    __m512 sum[4];
    for (int r = 0; r < n_rows; r++)
        sum[r] = _mm512_loadu_ps(p->acc + r * TILE_COLS);
    for (int32_t b = 0; b < p->n; b += n_blocks, z += p->kind->super_bytes) {
        uint8_t six[64];
        scales c = {.six = six};
        scales_begin(t, z, six, &c.d, &c.m);
        /* Unrolled, the places of scales are constants. With more rows that gains nothing, but in
         * q6_k with two. */
        if (n_rows == 1 || (n_rows == 2 && t == NUM_Q6_K)) {
            UNROLL(8)
            for (int j = 0; j < n_blocks; j++)
                packed_block(t, n_sub, mins, p, z, &c, b, j, n_rows, sum);
        } else {
            for (int j = 0; j < n_blocks; j++)
                packed_block(t, n_sub, mins, p, z, &c, b, j, n_rows, sum);
        }
    }
    for (int r = 0; r < n_rows; r++)
        _mm512_storeu_ps(p->acc + r * TILE_COLS, sum[r]);
}

INLINE void packed_tile_as(num_type t, const int n_sub, const bool mins, packed_work p,
                           const uint8_t *const *group, int32_t n_rows)
{
    for (int g = 0; g < TILE_GROUPS; g++, p.acc += PACK_LANES) {
        p.z = group[g];
        switch (n_rows) {
        case 1:
            packed_rows(t, n_sub, mins, &p, 1);
            break;
        case 2:
            packed_rows(t, n_sub, mins, &p, 2);
            break;
        case 3:
            packed_rows(t, n_sub, mins, &p, 3);
            break;
        default:
            packed_rows(t, n_sub, mins, &p, 4);
        }
    }
}

typedef struct wide_work {
    const pack_kind *kind;
    const uint8_t *z; /* superblocks of one group */
    int32_t n;        /* blocks of 32 inputs */
    const xblock *x;  /* [n][WIDE_ROWS] */
    float *acc;
    int32_t n_rows;
    reach ahead;
} wide_work;

/* acc[r][o] = as code_rows, straight from the packed layout: one group, n_rows of WIDE_ROWS rows
 * layout: as packed_rows; rows of activations lie block by block side by side, one pointer for all
 * order:  that of code_rows, operation by operation, so the bits are the same
 * bound:  per row and block 8 products among 11 to 13 instructions of their ports, 10 loads; rows
 *         hide each other's latency, so one chain of sums each will do */
INLINE void wide_rows(num_type t, const int n_sub, const bool mins, const wide_work *p,
                      const int n_rows)
{
    const pack_kind *kind = p->kind;
    const int n_blocks = blocks_of(t);
    const uint8_t *z = p->z;
    const xblock *xb = p->x;
    __m512 sum[WIDE_ROWS];
    UNROLL(16)
    for (int r = 0; r < n_rows; r++)
        sum[r] = _mm512_setzero_ps();
    for (int32_t b0 = 0; b0 < p->n; b0 += n_blocks, z += kind->super_bytes) {
        uint8_t six[64];
        __m512 d, dm;
        scales_begin(t, z, six, &d, &dm);
        for (int j = 0; j < n_blocks; j++, xb += WIDE_ROWS) {
            __m512i w[8];
            codes_in_registers(t, z + kind->scale_bytes + j * kind->block_bytes, w);
            ask_block(t, z, j, kind->super_bytes, &p->ahead);
            UNROLL(2)
            for (int h = 0; h < n_sub; h++) {
                __m512 s = scale_of(t, z, six, j * n_sub + h, d);
                __m512 m = mins ? min_of(t, z, six, j * n_sub + h, dm) : d, base = base_of(s);
                UNROLL(16)
                for (int r = 0; r < n_rows; r++) {
                    __m512i dot = _mm512_set1_epi32(mins ? DOT_BASE : xb[r].start[h]);
                    UNROLL(8)
                    for (int k = h * 8 / n_sub; k < (h + 1) * 8 / n_sub; k++)
                        dot = _mm512_dpbusd_epi32(dot, w[k], four(xb[r].q + 4 * k));
                    sum[r] = _mm512_fmadd_ps(scaled(dot, s, base), _mm512_set1_ps(xb[r].d), sum[r]);
                    if (mins)
                        sum[r] = _mm512_fnmadd_ps(m, _mm512_set1_ps(xb[r].sum[h]), sum[r]);
                }
            }
        }
    }
    UNROLL(16)
    for (int r = 0; r < n_rows; r++)
        if (r < p->n_rows)
            _mm512_storeu_ps(p->acc + r * TILE_COLS, sum[r]);
}

INLINE void wide_tile_as(num_type t, const int n_sub, const bool mins, wide_work p,
                         const uint8_t *const *group)
{
    for (int g = 0; g < TILE_GROUPS; g++, p.acc += PACK_LANES) {
        p.z = group[g];
        if (p.n_rows <= WIDE_ROWS / 2)
            wide_rows(t, n_sub, mins, &p, WIDE_ROWS / 2);
        else
            wide_rows(t, n_sub, mins, &p, WIDE_ROWS);
    }
}

typedef struct unpacked {
    int32_t n; /* blocks of 32 inputs */
    uint8_t *q;
    float *s, *m;
} unpacked;

/* The same codes and scales to memory, for code_tile to use many times. */
INLINE void unpack_as(num_type t, const int n_sub, const bool mins, const pack_kind *kind,
                      const uint8_t *z, const unpacked *to)
{
    const int n_blocks = blocks_of(t), n_scales = n_blocks * n_sub;
    uint8_t *q = to->q;
    float *s = to->s, *m = to->m;
    for (int32_t b0 = 0; b0 < to->n; b0 += n_blocks, z += kind->super_bytes) {
        uint8_t six[64];
        __m512 d, dm;
        scales_begin(t, z, six, &d, &dm);
        for (int j = 0; j < n_blocks; j++, q += PACK_CODES) {
            __m512i w[8];
            codes_in_registers(t, z + kind->scale_bytes + j * kind->block_bytes, w);
            for (int k = 0; k < 8; k++)
                _mm512_storeu_si512(q + 64 * k, w[k]);
        }
        UNROLL(16)
        for (int a = 0; a < n_scales; a++, s += PACK_LANES, m += PACK_LANES) {
            _mm512_storeu_ps(s, scale_of(t, z, six, a, d));
            if (mins)
                _mm512_storeu_ps(m, min_of(t, z, six, a, dm));
        }
    }
}

#define PACKED(t, n_sub, mins)                                                                     \
    static NOINLINE void packed_##t(const packed_work *p, const uint8_t *const *group,             \
                                    int32_t n_rows)                                                \
    {                                                                                              \
        packed_tile_as(t, n_sub, mins, *p, group, n_rows);                                         \
    }
EVERY_KIND(PACKED)
#undef PACKED

static void packed_tile(const pack_kind *kind, const uint8_t *const group[TILE_GROUPS], int32_t n,
                        const xblock *const *x, int32_t n_rows, float *acc)
{
    const packed_work p = {.kind = kind, .n = n, .x = x, .acc = acc, .ahead = how_far_ahead()};
    switch (kind->type) {
#define PACKED(t, n_sub, mins)                                                                     \
    case t:                                                                                        \
        packed_##t(&p, group, n_rows);                                                             \
        break;
        EVERY_KIND(PACKED)
#undef PACKED
    default:
        break;
    }
}

#define WIDE(t, n_sub, mins)                                                                       \
    static NOINLINE void wide_##t(const wide_work *p, const uint8_t *const *group)                 \
    {                                                                                              \
        wide_tile_as(t, n_sub, mins, *p, group);                                                   \
    }
EVERY_KIND(WIDE)
#undef WIDE

static void wide_tile(const pack_kind *kind, const uint8_t *const group[TILE_GROUPS], int32_t n,
                      const xblock *x, int32_t n_rows, float *acc)
{
    const wide_work p = {
        .kind = kind, .n = n, .x = x, .acc = acc, .n_rows = n_rows, .ahead = how_far_ahead()};
    switch (kind->type) {
#define WIDE(t, n_sub, mins)                                                                       \
    case t:                                                                                        \
        wide_##t(&p, group);                                                                       \
        break;
        EVERY_KIND(WIDE)
#undef WIDE
    default:
        break;
    }
}

static void unpack(const pack_kind *kind, const uint8_t *z, int32_t n, uint8_t *q, float *s,
                   float *m)
{
    const unpacked to = {n, q, s, m};
    switch (kind->type) {
#define UNPACK(t, n_sub, mins)                                                                     \
    case t:                                                                                        \
        unpack_as(t, n_sub, mins, kind, z, &to);                                                   \
        break;
        EVERY_KIND(UNPACK)
#undef UNPACK
    default:
        break;
    }
}

const cpu_kernels cpu_kernels_avx512 = {
    .name = "avx512",
    SHARED_KERNELS,
    .code_tile = code_tile,
    .packed_tile = packed_tile,
    .packed_rows = 4,
    .wide_tile = wide_tile,
    .wide_rows = 2 * WIDE_ROWS,
    .expand = unpack,
};
