/* mem.h - the only door to the heap.
 *
 * Every allocation of the program goes through here. A test can make the n-th one fail
 * (mem_fail_after), and count those of the decode loop, which must be none. Sizes are checked for
 * overflow. Thread-safe.
 */
#ifndef BASE_MEM_H
#define BASE_MEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

void *mem_alloc(size_t n_bytes);                   /* uninitialised; NULL on failure */
void *mem_calloc(size_t n, size_t size);           /* zeroed; NULL on failure or overflow */
void *mem_realloc(void *p, size_t n, size_t size); /* p stays valid when NULL is returned */
void *mem_aligned(size_t align, size_t n_bytes);   /* mem_free frees it too */
char *mem_strdup(const char *s);
char *mem_strndup(const char *s, size_t n);
void mem_free(void *p);

/* Large, page-aligned, zeroed memory from the kernel, on huge pages where available: for weights,
 * caches and scratch. */
void *mem_pages(size_t n_bytes);
void mem_pages_free(void *p, size_t n_bytes);
/* The system provides these pages now, not when they are first used; their contents stay. Where it
 * cannot, nothing happens. */
void mem_pages_touch(void *p, size_t n_bytes);

/* For tests. n >= 0: the n-th allocation from now fails once; 0 is the next. n < 0: off.
 * mem_fail_hit: has it failed yet? */
void mem_fail_after(int64_t n);
bool mem_fail_hit(void);
int64_t mem_count(void); /* allocations made so far, by this process */

/* For libraries that take function pointers. */
void *mem_malloc_hook(size_t n_bytes);
void mem_free_hook(void *p);

uint64_t mem_available_bytes(void); /* MemAvailable, bounded by the cgroup's limit; 0 unknown */
/* Bytes that the control group (version 2) at dir may still use; UINT64_MAX: no limit. */
uint64_t mem_group_room(const char *dir);
uint64_t mem_peak_bytes(void); /* highest resident size of this process so far */

#endif
