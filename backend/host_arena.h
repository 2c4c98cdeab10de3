/* host_arena.h - blocks of host memory that a device locks, so that it can copy to it by itself.
 *
 *     region    [section][section][section][section]..     one mapping of the system
 *     blocks    [ 105 MB    ][ 157 MB          ][ free ]   whole units, anywhere in a region
 *     sections  locked  locked  locked  waits   unused
 *
 * To lock memory takes ten times as long as to copy it. Meanwhile another thread's launch of a
 * kernel or mapping of memory may wait. So the device locks small sections, each one once, and
 * never unlocks them: a new block takes the place of one that was given back, also of another size.
 * A block lies as low as it fits, so locked sections are used first. While less than a quarter of
 * the memory in use is free, one section more is locked ahead, AHEAD_MOST at most. After a section
 * could not be locked, the device locks only sections that a block uses. Locking a section also makes
 * the system provide its memory.
 *
 * The arena is plain data and locks nothing. The locking thread asks it for the next section
 * (host_arena_next) and reports the result (host_arena_done). The caller's lock protects an arena.
 */
#ifndef BACKEND_HOST_ARENA_H
#define BACKEND_HOST_ARENA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    HOST_UNIT = 2 << 20,     /* blocks are whole units */
    HOST_SECTION = 16 << 20, /* and sections begin at multiples of their size */
    HOST_REGION = 1 << 30,   /* larger blocks have regions of their own */
    HOST_AHEAD_MOST = 256 << 20
};

typedef enum host_state {
    HOST_UNUSED,
    HOST_WAITS,
    HOST_WORKING,
    HOST_LOCKED,
    HOST_PLAIN /* it could not be locked */
} host_state;

typedef struct host_region {
    char *map, *at; /* at: the first multiple of HOST_SECTION in the mapping */
    size_t map_bytes;
    int32_t n_units, n_free, n_sections;
    unsigned char *taken; /* [n_units] */
    unsigned char *state; /* [n_sections] */
} host_region;

typedef struct host_arena {
    host_region *region;
    int32_t n;
    size_t used_bytes, asked_bytes; /* of blocks; of sections that are locked or to be */
    bool failed;                    /* a section could not be locked */
} host_arena;

/* n_bytes or more, at a multiple of HOST_UNIT. NULL: there is no memory. */
void *host_arena_take(host_arena *a, size_t n_bytes);
/* n_bytes: as it was taken. */
void host_arena_give(host_arena *a, void *at, size_t n_bytes);
/* The next section to lock, which is then HOST_WORKING; NULL: none waits. */
char *host_arena_next(host_arena *a);
void host_arena_done(host_arena *a, const char *section, bool locked);
/* Has the locking ended of every section of [at, at + n_bytes)? True of other memory. */
bool host_arena_ready(const host_arena *a, const void *at, size_t n_bytes);
/* Frees all memory. unlock, for each section that is locked. */
void host_arena_close(host_arena *a, void (*unlock)(char *section));

/* Bytes from `at` to the end of its section: no copy may reach beyond. */
static inline size_t host_section_left(const void *at)
{
    return HOST_SECTION - (uintptr_t)at % HOST_SECTION;
}

#endif
