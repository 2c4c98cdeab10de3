/* zip.h - packing blocks of numbers: a door to zstd.
 *
 * A block is packed on its own. Elements of `stride` bytes are first laid out byte plane by byte
 * plane: exponents beside exponents compress, mantissas do not. One thread at a time per packer.
 */
#ifndef BASE_ZIP_H
#define BASE_ZIP_H

#include <stddef.h>
#include <stdint.h>

enum { ZIP_BLOCK = 256 << 10 }; /* most bytes of one block */

typedef struct zip zip;
zip *zip_open(void);    /* NULL: no memory */
void zip_close(zip *z); /* NULL is fine */

/* Packs n <= ZIP_BLOCK bytes. Returns the packed size and shows where; 0: it does not pay (or
 * failed), store them as they are. The packed bytes live until the next call. */
size_t zip_pack(zip *z, const void *bytes, size_t n, size_t stride, const void **packed);
/* Unpacks exactly n bytes; 0: the input is damaged. */
int zip_unpack(zip *z, const void *packed, size_t n_packed, size_t stride, void *bytes, size_t n);

#endif
