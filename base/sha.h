/* sha.h - SHA-1 and SHA-256 (FIPS 180-4), for names of contents that other tools can compute too.
 * git uses SHA-1. It is no proof against anyone who can choose the content: collisions can be made.
 */
#ifndef BASE_SHA_H
#define BASE_SHA_H

#include <stddef.h>
#include <stdint.h>

enum { SHA1_TEXT = 41, SHA256_TEXT = 65 }; /* bytes of a digest as text, with the zero at its end */

typedef struct sha_stream {
    uint32_t h[8];
    int n_words; /* of h, in the digest */
    uint64_t n_bytes;
    unsigned char block[64];
    void (*take)(uint32_t *h, const unsigned char *block);
} sha_stream;

/* Begin a stream with one of the two, then put all bytes, in pieces of any size. The struct is the
 * caller's and owns nothing. */
void sha1_init(sha_stream *s);
void sha256_init(sha_stream *s);
void sha_put(sha_stream *s, const void *bytes, size_t n);
/* The digest in lower-case hexadecimal: SHA1_TEXT or SHA256_TEXT bytes. Ends the stream. */
void sha_text(sha_stream *s, char *out);

#endif
