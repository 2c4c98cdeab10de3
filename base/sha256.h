/* sha256.h - SHA-256 (FIPS 180-4), for names of contents that other tools can compute too. */
#ifndef BASE_SHA256_H
#define BASE_SHA256_H

#include <stddef.h>
#include <stdint.h>

typedef struct sha256 {
    uint32_t h[8];
    uint64_t n_bytes;
    unsigned char block[64];
} sha256;

/* Begin a stream, then put all bytes, in pieces of any size. The struct is the caller's and owns
 * nothing. */
void sha256_init(sha256 *s);
void sha256_put(sha256 *s, const void *bytes, size_t n);
/* The digest in lower-case hexadecimal. Ends the stream. */
void sha256_text(sha256 *s, char out[65]);

#endif
