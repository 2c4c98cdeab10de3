/* sha1.c - see sha1.h. Formulas and names: FIPS 180-4, section 6.1. */
#include "base/sha1.h"

#include <stdio.h>
#include <string.h>

static uint32_t rotl(uint32_t x, int n)
{
    return x << n | x >> (32 - n);
}

static void take_block(sha1 *s, const unsigned char *p)
{
    uint32_t w[80], a = s->h[0], b = s->h[1], c = s->h[2], d = s->h[3], e = s->h[4];
    for (int t = 0; t < 16; t++)
        w[t] = (uint32_t)p[4 * t] << 24 | (uint32_t)p[4 * t + 1] << 16 |
               (uint32_t)p[4 * t + 2] << 8 | p[4 * t + 3];
    for (int t = 16; t < 80; t++)
        w[t] = rotl(w[t - 3] ^ w[t - 8] ^ w[t - 14] ^ w[t - 16], 1);
    for (int t = 0; t < 80; t++) {
        uint32_t f = t < 20   ? (b & c) ^ (~b & d)
                     : t < 40 ? b ^ c ^ d
                     : t < 60 ? (b & c) ^ (b & d) ^ (c & d)
                              : b ^ c ^ d;
        uint32_t k = t < 20 ? 0x5a827999 : t < 40 ? 0x6ed9eba1 : t < 60 ? 0x8f1bbcdc : 0xca62c1d6;
        uint32_t next = rotl(a, 5) + f + e + k + w[t];
        e = d;
        d = c;
        c = rotl(b, 30);
        b = a;
        a = next;
    }
    s->h[0] += a;
    s->h[1] += b;
    s->h[2] += c;
    s->h[3] += d;
    s->h[4] += e;
}

void sha1_init(sha1 *s)
{
    *s = (sha1){.h = {0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476, 0xc3d2e1f0}};
}

void sha1_put(sha1 *s, const void *bytes, size_t n)
{
    const unsigned char *p = bytes;
    while (n) {
        size_t at = s->n_bytes % 64, take = 64 - at < n ? 64 - at : n;
        memcpy(s->block + at, p, take);
        if (at + take == 64)
            take_block(s, s->block);
        s->n_bytes += take;
        p += take;
        n -= take;
    }
}

void sha1_text(sha1 *s, char out[41])
{
    static const unsigned char pad[64] = {0x80};
    unsigned char size[8];
    uint64_t n_bits = 8 * s->n_bytes, at = s->n_bytes % 64;
    sha1_put(s, pad, (size_t)(at < 56 ? 56 - at : 120 - at));
    for (int i = 0; i < 8; i++)
        size[i] = (unsigned char)(n_bits >> (56 - 8 * i));
    sha1_put(s, size, 8);
    for (int i = 0; i < 5; i++)
        snprintf(out + 8 * i, 9, "%08x", (unsigned)s->h[i]);
}
