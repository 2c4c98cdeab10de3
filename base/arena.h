/* arena.h - many small objects with one lifetime, freed at once.
 *
 * Grows by blocks, so pointers never move. Not thread-safe. A zeroed arena is empty and valid.
 */
#ifndef BASE_ARENA_H
#define BASE_ARENA_H

#include <stddef.h>

typedef struct arena_block arena_block;
typedef struct {
    arena_block *head;
    size_t used, cap; /* of head */
} arena;

void *arena_alloc(arena *a, size_t n_bytes);        /* zeroed, 16-aligned; NULL on failure */
void *arena_array(arena *a, size_t n, size_t size); /* the same, with n * size checked */
char *arena_strndup(arena *a, const char *s, size_t n);
void arena_free(arena *a); /* safe on a zeroed or freed arena */

#endif
