/* zip.c - zstd over byte planes. zstd allocates its own contexts; the work space comes from
 * base/mem.h. */
#include "base/zip.h"
#include "base/mem.h"

#include <zstd.h>

enum { LEVEL = 1, PAYS_FROM = 16 /* a block must shrink by 1/16 */ };

struct zip {
    ZSTD_CCtx *c;
    ZSTD_DCtx *d;
    size_t cap;
    unsigned char *planes, *packed;
};

zip *zip_open(void)
{
    zip *z = mem_calloc(1, sizeof *z);
    if (!z)
        return NULL;
    z->cap = ZSTD_compressBound(ZIP_BLOCK);
    z->planes = mem_alloc(ZIP_BLOCK);
    z->packed = mem_alloc(z->cap);
    if (z->planes && z->packed) {
        z->c = ZSTD_createCCtx();
        z->d = ZSTD_createDCtx();
    }
    if (z->c && z->d)
        return z;
    zip_close(z);
    return NULL;
}

void zip_close(zip *z)
{
    if (!z)
        return;
    ZSTD_freeDCtx(z->d);
    ZSTD_freeCCtx(z->c);
    mem_free(z->packed);
    mem_free(z->planes);
    mem_free(z);
}

/* Bytes after the last whole element stay at the end, unchanged. */
static void to_planes(unsigned char *to, const unsigned char *from, size_t n, size_t stride)
{
    size_t count = n / stride;
    for (size_t p = 0; p < stride; p++)
        for (size_t i = 0; i < count; i++)
            to[p * count + i] = from[i * stride + p];
    for (size_t i = count * stride; i < n; i++)
        to[i] = from[i];
}

static void from_planes(unsigned char *to, const unsigned char *from, size_t n, size_t stride)
{
    size_t count = n / stride;
    for (size_t p = 0; p < stride; p++)
        for (size_t i = 0; i < count; i++)
            to[i * stride + p] = from[p * count + i];
    for (size_t i = count * stride; i < n; i++)
        to[i] = from[i];
}

size_t zip_pack(zip *z, const void *bytes, size_t n, size_t stride, const void **packed)
{
    if (!n || n > ZIP_BLOCK || !stride)
        return 0;
    const void *in = bytes;
    if (stride > 1) {
        to_planes(z->planes, bytes, n, stride);
        in = z->planes;
    }
    size_t k = ZSTD_compressCCtx(z->c, z->packed, z->cap, in, n, LEVEL);
    *packed = z->packed;
    return ZSTD_isError(k) || k > n - n / PAYS_FROM ? 0 : k;
}

int zip_unpack(zip *z, const void *packed, size_t n_packed, size_t stride, void *bytes, size_t n)
{
    if (!n || n > ZIP_BLOCK || !stride)
        return 0;
    void *out = stride > 1 ? z->planes : bytes;
    size_t k = ZSTD_decompressDCtx(z->d, out, n, packed, n_packed);
    if (ZSTD_isError(k) || k != n)
        return 0;
    if (stride > 1)
        from_planes(bytes, z->planes, n, stride);
    return 1;
}
