/* sha1.h - SHA-1 (FIPS 180-4), for the names that git gives to contents. Not for secrets, and no
 * proof against whoever can choose the content: collisions can be made. */
#ifndef BASE_SHA1_H
#define BASE_SHA1_H

#include <stddef.h>
#include <stdint.h>

typedef struct sha1 {
    uint32_t h[5];
    uint64_t n_bytes;
    unsigned char block[64];
} sha1;

/* Begin a stream, then put all bytes, in pieces of any size. The struct is the caller's and owns
 * nothing. */
void sha1_init(sha1 *s);
void sha1_put(sha1 *s, const void *bytes, size_t n);
/* The digest in lower-case hexadecimal. Ends the stream. */
void sha1_text(sha1 *s, char out[41]);

#endif
