/* sha.c - see sha.h. Formulas and names: FIPS 180-4, sections 6.1 and 6.2. */
#include "base/sha.h"

#include <stdio.h>
#include <string.h>

static uint32_t word_at(const unsigned char *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static uint32_t turn(uint32_t x, int n)
{
    return x >> n | x << (32 - n);
}

/* ---- SHA-1 ---- */

static void take_sha1(uint32_t *h, const unsigned char *p)
{
    uint32_t w[80], a = h[0], b = h[1], c = h[2], d = h[3], e = h[4];
    for (int t = 0; t < 16; t++)
        w[t] = word_at(p + 4 * t);
    for (int t = 16; t < 80; t++)
        w[t] = turn(w[t - 3] ^ w[t - 8] ^ w[t - 14] ^ w[t - 16], 31);
    for (int t = 0; t < 80; t++) {
        uint32_t f = t < 20   ? (b & c) ^ (~b & d)
                     : t < 40 ? b ^ c ^ d
                     : t < 60 ? (b & c) ^ (b & d) ^ (c & d)
                              : b ^ c ^ d;
        uint32_t k = t < 20 ? 0x5a827999 : t < 40 ? 0x6ed9eba1 : t < 60 ? 0x8f1bbcdc : 0xca62c1d6;
        uint32_t next = turn(a, 27) + f + e + k + w[t];
        e = d;
        d = c;
        c = turn(b, 2);
        b = a;
        a = next;
    }
    const uint32_t v[5] = {a, b, c, d, e};
    for (int i = 0; i < 5; i++)
        h[i] += v[i];
}

/* ---- SHA-256 ---- */

/* The first 32 bits of the fractional parts of the cube roots of the first 64 primes. */
static const uint32_t K[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

/* One of 64 rounds; kw is K_t + W_t. The caller names the eight variables in rotated order, so none
 * is moved. */
static inline void turn_round(uint32_t a, uint32_t b, uint32_t c, uint32_t *d, uint32_t e,
                              uint32_t f, uint32_t g, uint32_t *h, uint32_t kw)
{
    uint32_t t1 = *h + (turn(e, 6) ^ turn(e, 11) ^ turn(e, 25)) + ((e & f) ^ (~e & g)) + kw;
    uint32_t t2 = (turn(a, 2) ^ turn(a, 13) ^ turn(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
    *d += t1;
    *h = t1 + t2;
}

static void take_sha256(uint32_t *state, const unsigned char *p)
{
    uint32_t w[64], a = state[0], b = state[1], c = state[2], d = state[3], e = state[4],
                    f = state[5], g = state[6], h = state[7];
    for (int i = 0; i < 16; i++)
        w[i] = word_at(p + 4 * i);
    for (int i = 16; i < 64; i++) {
        uint32_t x = w[i - 15], y = w[i - 2];
        w[i] = w[i - 16] + (turn(x, 7) ^ turn(x, 18) ^ x >> 3) + w[i - 7] +
               (turn(y, 17) ^ turn(y, 19) ^ y >> 10);
    }
    for (int i = 0; i < 64; i += 8) {
        turn_round(a, b, c, &d, e, f, g, &h, K[i] + w[i]);
        turn_round(h, a, b, &c, d, e, f, &g, K[i + 1] + w[i + 1]);
        turn_round(g, h, a, &b, c, d, e, &f, K[i + 2] + w[i + 2]);
        turn_round(f, g, h, &a, b, c, d, &e, K[i + 3] + w[i + 3]);
        turn_round(e, f, g, &h, a, b, c, &d, K[i + 4] + w[i + 4]);
        turn_round(d, e, f, &g, h, a, b, &c, K[i + 5] + w[i + 5]);
        turn_round(c, d, e, &f, g, h, a, &b, K[i + 6] + w[i + 6]);
        turn_round(b, c, d, &e, f, g, h, &a, K[i + 7] + w[i + 7]);
    }
    const uint32_t v[8] = {a, b, c, d, e, f, g, h};
    for (int i = 0; i < 8; i++)
        state[i] += v[i];
}

/* ---- Streams ---- */

void sha1_init(sha_stream *s)
{
    *s = (sha_stream){.h = {0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476, 0xc3d2e1f0},
                      .n_words = 5,
                      .take = take_sha1};
}

void sha256_init(sha_stream *s)
{
    *s = (sha_stream){.h = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c,
                            0x1f83d9ab, 0x5be0cd19},
                      .n_words = 8,
                      .take = take_sha256};
}

void sha_put(sha_stream *s, const void *bytes, size_t n)
{
    const unsigned char *p = bytes;
    while (n) {
        size_t at = s->n_bytes % 64, take = 64 - at < n ? 64 - at : n;
        if (take == 64) {
            s->take(s->h, p);
        } else {
            memcpy(s->block + at, p, take);
            if (at + take == 64)
                s->take(s->h, s->block);
        }
        s->n_bytes += take;
        p += take;
        n -= take;
    }
}

void sha_text(sha_stream *s, char *out)
{
    static const unsigned char pad[64] = {0x80};
    unsigned char size[8];
    uint64_t n_bits = 8 * s->n_bytes, at = s->n_bytes % 64;
    sha_put(s, pad, (size_t)(at < 56 ? 56 - at : 120 - at));
    for (int i = 0; i < 8; i++)
        size[i] = (unsigned char)(n_bits >> (56 - 8 * i));
    sha_put(s, size, 8);
    for (int i = 0; i < s->n_words; i++)
        snprintf(out + 8 * i, 9, "%08x", (unsigned)s->h[i]);
}
