/* lattice.cuh - packed weights of one to three bits. Those of IQ1, IQ2 and IQ3 are numbers of
 * entries, whose values are looked up in shared memory. Those of Q1_0, Q2_0 and TQ are codes.
 *
 *     table   a word per entry: four values (IQ3), or eight numbers of levels, a hexadecimal digit
 *             each (IQ1, IQ2)
 *     copy    16 KB hold 16, 8, 4 or 2 copies of a table, word beside word. Lanes read different
 *             entries, and with one copy three or four of them would meet in a bank
 *     signs   IQ2: the third bit of a digit, so that one permute gives signed levels; IQ1: there it
 *             is the shift
 *     codes   digits too: one permute gives four values
 *
 * Entries are looked up in every kernel that reads packed weights; each begins with lattice_begin.
 */
#ifndef BACKEND_CUDA_LATTICE_CUH
#define BACKEND_CUDA_LATTICE_CUH

#include "backend/cuda/product/blocks.cuh"
#include "backend/cuda/product/formats.cuh"

enum { TABLE_WORDS = 4096 };

/* Static shared memory of a kernel of layout K. */
template <int K> static constexpr int table_bytes = traits<K>::lattice ? 4 * TABLE_WORDS : 0;

template <int K> struct table_of {
    static constexpr int entries = traits<K>::xxs     ? 256
                                   : traits<K>::three ? 512
                                   : traits<K>::one   ? 2048
                                                      : 1024;
    static constexpr int copies = TABLE_WORDS / entries;
};

template <int K> DEV uint32_t *table_words()
{
    __shared__ __align__(16) uint32_t words[TABLE_WORDS];
    return words;
}

/* An entry of a lattice (num/grids.h) as a word of the table. */
template <int K> DEV uint32_t table_word(uint32_t e)
{
    constexpr bool xxs = traits<K>::xxs;
    if (traits<K>::three)
        return pick_by(xxs ? 0x1c140c04 : 0x07050301, xxs ? 0x3e342c24 : 0x0f0d0b09, e);
    e = (e | e << 8) & 0x00ff00ff;
    e = (e | e << 4) & 0x0f0f0f0f;
    return (e | e << 2) & 0x33333333;
}

/* Fills the table of a kernel's layout; kind: the weight's, IQ2_XS or IQ2_S. Ends with a barrier.
 */
template <int K> DEV void lattice_begin(int kind)
{
    if constexpr (traits<K>::lattice) {
        constexpr int copies = table_of<K>::copies, pieces = copies / 4;
        const int type = K == PACK_IQ3_XXS     ? (int)LATTICE_IQ3_XXS
                         : K == PACK_IQ3_S     ? (int)LATTICE_IQ3_S
                         : K == PACK_IQ2_XXS   ? (int)LATTICE_IQ2_XXS
                         : K == PACK_IQ1       ? (int)LATTICE_IQ1_S
                         : kind == PACK_IQ2_XS ? (int)LATTICE_IQ2_XS
                                               : (int)LATTICE_IQ2_S;
        const int n = kind == PACK_IQ2_XS ? 512 : table_of<K>::entries;
        const uint16_t *grid = grid_of_type(type);
#ifdef CARAT_EMU
        emu_static_shared(table_bytes<K>, (size_t)cu_gpu.shared_block);
#endif
        for (int i = (int)threadIdx.x; i < n; i += (int)blockDim.x) {
            const uint32_t e = table_word<K>(grid[i]);
            if constexpr (copies < 4) {
                *(uint2 *)(table_words<K>() + i * copies) = make_uint2(e, e);
                continue;
            }
            uint4 *to = (uint4 *)(table_words<K>() + i * copies);
#pragma unroll
            for (int c = 0; c < pieces; c++) /* turned, so that lanes write to different banks */
                to[(c + i / (32 / copies)) & (pieces - 1)] = make_uint4(e, e, e, e);
        }
        __syncthreads();
    }
}

/* Entry i of the lane's copy: one multiply-add, and a load. */
template <int K> DEV uint32_t table_entry(uint32_t i)
{
    constexpr uint32_t copies = table_of<K>::copies;
    return load_shared(opaque_shared(table_words<K>() + ((uint32_t)lane_id() & (copies - 1))),
                       i * copies * 4);
}

/* Byte i of the index bytes with byte i of their upper bits above it; i is a constant. */
template <int K> DEV uint32_t whole_index(uint32_t low, uint32_t upper, int i)
{
    if (traits<K>::xxs)
        return pick_bytes(low, 0, 0x4440 + i);
    return pick_by(low, upper, 0xcc40 + 0x11 * i); /* 0xc: the sign of the first upper byte, 0 */
}

/* IQ3: values, negated where a digit of `which` (kept_bytes) has its third bit. No value is 0, so
 * no byte of the difference borrows. */
DEV uint32_t negated(uint32_t values, uint32_t which)
{
    return pick_by(values, 0x01010100 - values, which);
}
/* Digits that keep bytes 0 to 3, twice; 4 more where a bit of the mask 0x44444444 is set in v. */
DEV uint32_t kept_bytes(uint32_t v)
{
    return (v & 0x44444444) | in_register(0x32103210);
}
/* Signs of IQ2's entry k, or of IQ3's words k and k + 4, at the third bits of digits. */
DEV uint32_t sign_bits(uint32_t signs, int k)
{
    return k < 2 ? signs << (2 - k) : signs >> (k - 2);
}
/* IQ2: an entry's digits with the signs of entry k. */
DEV uint32_t signed_digits(uint32_t digits, uint32_t signs, int k)
{
    return digits | (sign_bits(signs, k) & 0x44444444);
}
/* IQ2: the levels of four digits: 8, 25, 43, and those negated. */
DEV uint32_t digit_levels(uint32_t digits)
{
    return pick_by(0x002b1908, 0x00d5e7f8, digits);
}

/* IQ1: the steps of four digits: -7, 1, 9, and with the shift down -9, -1, 7. */
DEV uint32_t digit_steps(uint32_t digits)
{
    return pick_by(0x000901f9, 0x0007fff7, digits);
}
/* IQ1: where the upper bits of an entry's index are, and above them its shift. */
DEV int upper_at(int k)
{
    return 8 * (k & 1) + 4 * (k >> 1);
}

/* Word w alone, of the codes c of its group, of two bits those of its half: -1, 0, 1, 2, or of one
 * bit -1, 1. */
template <int K> DEV uint32_t bits_word(uint32_t c, int w)
{
    if (K == PACK_BITS1)
        return pick_by(0x000001ff, 0, c >> (16 * (w & 1) + (w >> 1)) & 0x1111);
    return pick_by(0x020100ff, 0, c >> (16 * (w & 1) + (w & 2)) & 0x3333);
}
/* The words of a group's codes. A digit has codes of several words: the bytes to choose from are
 * such that the others make no difference. The top bit of a digit would stand for a sign. */
template <int K> DEV void bits_words(uint32_t *word, uint32_t c0, uint32_t c1)
{
    constexpr bool single = K == PACK_BITS1;
#pragma unroll
    for (int h = 0; h < (single ? 1 : 2); h++) {
        const uint32_t c = h ? c1 : c0, low = c & 0x77777777, high = c >> (single ? 1 : 2);
#pragma unroll
        for (int b = 0; b < 2; b++) {
            const uint32_t first = low >> 16 * b, last = (high & 0x77777777) >> 16 * b;
            if constexpr (single) {
                word[b] = pick_by(0x01ff01ff, 0x01ff01ff, first);
                word[2 + b] = pick_by(0x0101ffff, 0x0101ffff, first);
                word[4 + b] = pick_by(0xffffffff, 0x01010101, first);
                word[6 + b] = pick_by(0xffffffff, 0x01010101, last);
            } else {
                word[4 * h + b] = pick_by(0x020100ff, 0x020100ff, first);
                word[4 * h + 2 + b] = pick_by(0x020100ff, 0x020100ff, last);
            }
        }
    }
}

/* The words of a group, as int8 or, where the layout has a bias or an offset, as bytes. */
template <int K> DEV void group_words(uint32_t *word, const raw_group<K> &r)
{
    using T = traits<K>;
    if constexpr (T::three) {
#pragma unroll
        for (int w = 0; w < 4; w++) {
            uint32_t which = kept_bytes(sign_bits(r.h0, w));
            uint32_t i = whole_index<K>(r.c0.x, r.s.z & 0x01010101, w);
            uint32_t j = whole_index<K>(r.c0.y, r.s.z >> 4 & 0x01010101, w);
            word[w] = negated(table_entry<K>(i), which);
            word[w + 4] = negated(table_entry<K>(j), which >> 16);
        }
    } else if constexpr (T::two) {
#pragma unroll
        for (int k = 0; k < 4; k++) {
            uint32_t i = whole_index<K>(r.c0.x, r.s.z & 0x03030303, k);
            uint32_t digits = signed_digits(table_entry<K>(i), r.h0, k);
            word[2 * k] = digit_levels(digits);
            word[2 * k + 1] = digit_levels(digits >> 16);
        }
    } else if constexpr (T::one) {
        const uint32_t up = r.s.z, first = up & 0x0707, last = up >> 4 & 0x0707, shifts = up << 4;
#pragma unroll
        for (int k = 0; k < 4; k++) { /* 0xc: the sign of byte 4, 0; 8, 9: of the first two */
            uint32_t i = pick_by(r.c0.x, k < 2 ? first : last, 0xcc40 + 0x10 * (k & 1) + k);
            uint32_t down = pick_by(k < 2 ? shifts : up, 0, 0x8888 + 0x1111 * (k & 1));
            uint32_t digits = table_entry<K>(i) | (down & 0x44444444);
            word[2 * k] = digit_steps(digits);
            word[2 * k + 1] = digit_steps(digits >> 16);
        }
    } else if constexpr (T::bits) {
        bits_words<K>(word, r.c0.x, r.c0.y);
    } else {
        code_words<K>(r.c0.x, r.c1.x, r.h0, r.h1, 0, &word[0], &word[4]);
        code_words<K>(r.c0.y, r.c1.y, r.h0, r.h1, 1, &word[1], &word[5]);
        code_words<K>(r.c0.z, r.c1.z, r.h0, r.h1, 2, &word[2], &word[6]);
        code_words<K>(r.c0.w, r.c1.w, r.h0, r.h1, 3, &word[3], &word[7]);
    }
}

/* Word w alone, of the group whose index bytes are at `low`; its signs and upper bits as in
 * raw_group. */
template <int K>
DEV uint32_t lattice_word(const uint8_t *low, uint32_t signs, uint32_t upper, int w)
{
    if (traits<K>::three) {
        uint32_t i = low[w];
        if (!traits<K>::xxs)
            i |= (upper >> (8 * (w & 3) + (w & 4)) & 1) << 8;
        return negated(table_entry<K>(i), kept_bytes(sign_bits(signs, w & 3)) >> 4 * (w & 4));
    }
    const int k = w >> 1;
    uint32_t i = low[k];
    if (traits<K>::one) {
        upper >>= upper_at(k);
        i |= (upper & 7) << 8;
        uint32_t digits = table_entry<K>(i) | (upper & 8 ? 0x44444444 : 0);
        return digit_steps(digits >> 16 * (w & 1));
    }
    if (!traits<K>::xxs)
        i |= (upper >> 8 * k & 3) << 8;
    return digit_levels(signed_digits(table_entry<K>(i), signs, k) >> 16 * (w & 1));
}

#endif
