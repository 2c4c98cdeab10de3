/* hash.c - xxhash. The library allocates its own states: their size depends on its build. */
#include "base/hash.h"

#include <xxhash.h>

/* A hash_stream is the library's state by another name. */
static XXH3_state_t *state_of(const hash_stream *h)
{
    return (XXH3_state_t *)h;
}

uint64_t hash64(const void *bytes, size_t n)
{
    return XXH3_64bits(bytes, n);
}

hash_stream *hash_open(void)
{
    XXH3_state_t *s = XXH3_createState();
    if (s)
        XXH3_64bits_reset(s);
    return (hash_stream *)s;
}

void hash_close(hash_stream *h)
{
    XXH3_freeState(state_of(h));
}

void hash_restart(hash_stream *h)
{
    XXH3_64bits_reset(state_of(h));
}

void hash_put(hash_stream *h, const void *bytes, size_t n)
{
    XXH3_64bits_update(state_of(h), bytes, n);
}

uint64_t hash_value(const hash_stream *h)
{
    return XXH3_64bits_digest(state_of(h));
}
