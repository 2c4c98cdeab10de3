/* bytes.h - numbers from outside: a cursor that remembers failure, and checked arithmetic.
 *
 * A record is read through a reader, never by a struct laid over file bytes; the caller checks
 * `bad` once per record. Each product, sum and round-up of outside numbers goes through ck_*, which
 * return false on overflow.
 */
#ifndef BASE_BYTES_H
#define BASE_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct {
    const unsigned char *at, *end;
    bool bad; /* a read went past the end; it and all later reads return zero */
} reader;

static inline reader reader_of(const void *p, size_t n)
{
    return (reader){p, (const unsigned char *)p + n, false};
}

static inline size_t reader_left(const reader *r)
{
    return (size_t)(r->end - r->at);
}

/* n bytes, not copied; NULL and bad if fewer are left. */
static inline const void *rd_bytes(reader *r, uint64_t n)
{
    const void *p = r->at;
    if (r->bad || n > reader_left(r)) {
        r->bad = true;
        return NULL;
    }
    r->at += n;
    return p;
}

/* Little-endian scalars. The shifts compile to one load where the host is little-endian. */
static inline uint64_t rd_le(reader *r, int n_bytes)
{
    const unsigned char *p = rd_bytes(r, (uint64_t)n_bytes);
    uint64_t v = 0;
    for (int i = 0; p && i < n_bytes; i++)
        v |= (uint64_t)p[i] << (8 * i);
    return v;
}

static inline uint8_t rd_u8(reader *r)
{
    return (uint8_t)rd_le(r, 1);
}
static inline uint16_t rd_u16(reader *r)
{
    return (uint16_t)rd_le(r, 2);
}
static inline uint32_t rd_u32(reader *r)
{
    return (uint32_t)rd_le(r, 4);
}
static inline uint64_t rd_u64(reader *r)
{
    return rd_le(r, 8);
}
static inline float rd_f32(reader *r)
{
    uint32_t u = rd_u32(r);
    float f;
    memcpy(&f, &u, 4);
    return f;
}
static inline double rd_f64(reader *r)
{
    uint64_t u = rd_u64(r);
    double f;
    memcpy(&f, &u, 8);
    return f;
}

static inline bool ck_add(uint64_t a, uint64_t b, uint64_t *out)
{
    return !__builtin_add_overflow(a, b, out);
}
static inline bool ck_mul(uint64_t a, uint64_t b, uint64_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}
/* Rounds up to a multiple of align, which must be a power of two. */
static inline bool ck_align(uint64_t a, uint64_t align, uint64_t *out)
{
    uint64_t t;
    if (!align || (align & (align - 1)) || !ck_add(a, align - 1, &t))
        return false;
    *out = t & ~(align - 1);
    return true;
}

#endif
