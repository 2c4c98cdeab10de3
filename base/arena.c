/* arena.c - blocks in a list, each filled from its start, all freed at once.
 *
 * A request that does not fit what is left of the newest block opens a new one, as large as it
 * needs; what was left, less than one usual block, is lost. Nothing is ever moved, so pointers into
 * an arena may be kept. Sizes come from files: each sum and product is checked.
 */
#include "base/arena.h"
#include "base/mem.h"

#include <string.h>

/* The first block is small, because most arenas hold one short text, and a block is cleared. */
enum { FIRST_BYTES = 4 * 1024, BLOCK_BYTES = 64 * 1024, ALIGN = 16 };

struct arena_block {
    arena_block *next;
    _Alignas(ALIGN) unsigned char bytes[];
};

void *arena_alloc(arena *a, size_t n)
{
    if (n > SIZE_MAX / 2)
        return NULL;
    n = (n + ALIGN - 1) & ~(size_t)(ALIGN - 1);
    if (!a->head || a->cap - a->used < n) {
        size_t usual = !a->head ? FIRST_BYTES : a->cap < BLOCK_BYTES / 2 ? 2 * a->cap : BLOCK_BYTES;
        size_t cap = n > usual ? n : usual;
        if (a->max_bytes && (cap > a->max_bytes || a->n_bytes > a->max_bytes - cap)) {
            a->over = true;
            return NULL;
        }
        arena_block *b = mem_calloc(1, sizeof *b + cap);
        if (!b)
            return NULL;
        a->n_bytes += cap;
        b->next = a->head;
        a->head = b;
        a->cap = cap;
        a->used = 0;
    }
    void *p = a->head->bytes + a->used;
    a->used += n;
    return p;
}

void *arena_array(arena *a, size_t n, size_t size)
{
    size_t bytes;
    return __builtin_mul_overflow(n, size, &bytes) ? NULL : arena_alloc(a, bytes);
}

char *arena_strndup(arena *a, const char *s, size_t n)
{
    char *d = n == SIZE_MAX ? NULL : arena_alloc(a, n + 1);
    if (d)
        memcpy(d, s, n); /* the byte after it is already zero */
    return d;
}

void arena_free(arena *a)
{
    for (arena_block *b = a->head, *next; b; b = next) {
        next = b->next;
        mem_free(b);
    }
    *a = (arena){.max_bytes = a->max_bytes};
}
