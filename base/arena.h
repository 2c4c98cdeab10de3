/* arena.h - many small objects with one lifetime, freed at once.
 *
 * Grows by blocks, so pointers never move. Not thread-safe. A zeroed arena is empty and valid.
 */
#ifndef BASE_ARENA_H
#define BASE_ARENA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct arena_block arena_block;
typedef struct {
    arena_block *head;
    size_t used, cap; /* of head */
    size_t n_bytes;   /* of all blocks together */
    size_t max_bytes; /* limit of n_bytes; 0: none */
    bool over;        /* an allocation was refused for max_bytes; sticky */
} arena;

/* A limit for the tree of a JSON text of n bytes. Short values, as in [1,1,1], take forty times
 * their text, so a text of short values must be shorter than a text of words. */
static inline size_t arena_limit_for(size_t n)
{
    return ((size_t)16 << 20) + (n > SIZE_MAX / 16 ? SIZE_MAX / 2 : 8 * n);
}

void *arena_alloc(arena *a, size_t n_bytes); /* zeroed, 16-aligned; NULL on failure */
void *arena_array(arena *a, size_t n,
                  size_t size); /* n * size bytes, the product checked; NULL on failure */
char *arena_strndup(arena *a, const char *s, size_t n);
void arena_free(arena *a); /* safe on a zeroed or freed arena */

#endif
