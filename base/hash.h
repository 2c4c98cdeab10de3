/* hash.h - checksums and keys, by xxhash (XXH3, 64 bits). Not for secrets: two inputs of one hash
 * are easy to make. */
#ifndef BASE_HASH_H
#define BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

/* XXH3 of bytes[0..n), with seed 0. Any thread. */
uint64_t hash64(const void *bytes, size_t n);

/* The same over bytes that come in pieces. hash_value may be called between pieces. */
typedef struct hash_stream hash_stream;
hash_stream *hash_open(void);    /* NULL: no memory */
void hash_close(hash_stream *h); /* h may be NULL */
void hash_restart(hash_stream *h);
void hash_put(hash_stream *h, const void *bytes, size_t n);
uint64_t hash_value(const hash_stream *h);

#endif
