/* zip.h - compressing blocks of numbers, by zstd.
 *
 * Each block is packed by itself. Elements of `stride` bytes are first laid out by byte planes, so
 * that exponents, which compress, stand apart from mantissas, which do not. One thread at a time
 * per packer.
 */
#ifndef BASE_ZIP_H
#define BASE_ZIP_H

#include <stddef.h>
#include <stdint.h>

enum { ZIP_BLOCK = 256 << 10 }; /* most bytes of one block */

typedef struct zip zip;
zip *zip_open(void);    /* NULL: no memory */
void zip_close(zip *z); /* z may be NULL */

/* Packs n <= ZIP_BLOCK bytes. Returns the packed size, and where the packed bytes are until the
 * next call. 0: packing does not pay, or failed; store the bytes as they are. */
size_t zip_pack(zip *z, const void *bytes, size_t n, size_t stride, const void **packed);
/* Unpacks exactly n bytes; 0: the input is damaged. */
int zip_unpack(zip *z, const void *packed, size_t n_packed, size_t stride, void *bytes, size_t n);

#endif
