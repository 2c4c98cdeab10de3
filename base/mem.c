/* mem.c - the only door to the heap, and what the machine says about its memory.
 *
 * malloc, and mmap for memory, appear here and nowhere else. Every request is counted, so that a
 * test can make the n-th one fail and check that the caller reports it and leaks nothing. The
 * counter is one relaxed atomic. The second half reads limits: a control group may allow this
 * process far less than the machine has.
 */
#include "base/mem.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

static atomic_int_fast64_t n_allocs;
static atomic_int_fast64_t fail_at = -1; /* value of n_allocs that fails; -1: none */
static atomic_bool fail_hit;

static bool must_fail(void)
{
    int64_t i = atomic_fetch_add_explicit(&n_allocs, 1, memory_order_relaxed);
    if (i != atomic_load_explicit(&fail_at, memory_order_relaxed))
        return false;
    atomic_store(&fail_hit, true);
    return true;
}

void mem_fail_after(int64_t n)
{
    atomic_store(&fail_hit, false);
    atomic_store(&fail_at, n < 0 ? -1 : atomic_load(&n_allocs) + n);
}

bool mem_fail_hit(void)
{
    return atomic_load(&fail_hit);
}

int64_t mem_count(void)
{
    return atomic_load(&n_allocs);
}

void *mem_alloc(size_t n_bytes)
{
    /* malloc(0) may be NULL, which callers would read as failure. */
    return must_fail() ? NULL : malloc(n_bytes ? n_bytes : 1);
}

void *mem_calloc(size_t n, size_t size)
{
    return must_fail() ? NULL : calloc(n ? n : 1, size ? size : 1);
}

void *mem_realloc(void *p, size_t n, size_t size)
{
    size_t bytes;
    if (__builtin_mul_overflow(n, size, &bytes) || must_fail())
        return NULL;
    return realloc(p, bytes ? bytes : 1);
}

void *mem_aligned(size_t align, size_t n_bytes)
{
    void *p = NULL;
    if (must_fail() || posix_memalign(&p, align, n_bytes ? n_bytes : 1))
        return NULL;
    return p;
}

char *mem_strndup(const char *s, size_t n)
{
    char *d = n == SIZE_MAX ? NULL : mem_alloc(n + 1);
    if (!d)
        return NULL;
    memcpy(d, s, n);
    d[n] = 0;
    return d;
}

char *mem_strdup(const char *s)
{
    return mem_strndup(s, strlen(s));
}

void mem_free(void *p)
{
    free(p);
}

void *mem_malloc_hook(size_t n_bytes)
{
    return mem_alloc(n_bytes);
}

void mem_free_hook(void *p)
{
    free(p);
}

void *mem_pages(size_t n_bytes)
{
    if (must_fail())
        return NULL;
    void *p = mmap(NULL, n_bytes ? n_bytes : 1, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
#ifdef MADV_HUGEPAGE
    madvise(p, n_bytes ? n_bytes : 1, MADV_HUGEPAGE); /* a hint: if it fails, only speed is lost */
#endif
    return p;
}

void mem_pages_touch(void *p, size_t n_bytes)
{
#ifdef MADV_POPULATE_WRITE
    madvise(p, n_bytes, MADV_POPULATE_WRITE); /* of older systems an error: only speed is lost */
#else
    (void)p;
    (void)n_bytes;
#endif
}

void mem_pages_free(void *p, size_t n_bytes)
{
    if (p)
        munmap(p, n_bytes ? n_bytes : 1);
}

static FILE *open_in(const char *dir, const char *name)
{
    char path[512];
    return snprintf(path, sizeof path, "%s/%s", dir, name) < (int)sizeof path ? fopen(path, "re")
                                                                              : NULL;
}

static uint64_t read_u64_file(const char *dir, const char *name)
{
    uint64_t v = 0;
    FILE *f = open_in(dir, name);
    if (!f)
        return 0;
    if (fscanf(f, "%" SCNu64, &v) != 1) /* "max" means no limit */
        v = 0;
    fclose(f);
    return v;
}

uint64_t mem_group_room(const char *dir)
{
    uint64_t limit = read_u64_file(dir, "memory.max");
    uint64_t used = read_u64_file(dir, "memory.current"), cache = 0, v;
    if (!limit)
        return UINT64_MAX;
    /* Cached file pages count as used, but the kernel drops them when the group is full. So they
     * count as free here: the pages of the model itself are among them. */
    FILE *f = open_in(dir, "memory.stat");
    char line[128];
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "active_file %" SCNu64, &v) == 1 ||
            sscanf(line, "inactive_file %" SCNu64, &v) == 1)
            cache += v;
    if (f)
        fclose(f);
    used -= cache < used ? cache : used;
    return limit > used ? limit - used : 0;
}

uint64_t mem_available_bytes(void)
{
    uint64_t avail = 0, group_bytes = mem_group_room("/sys/fs/cgroup");
    FILE *f = fopen("/proc/meminfo", "re");
    if (f) {
        char line[128];
        uint64_t kib;
        while (fgets(line, sizeof line, f))
            if (sscanf(line, "MemAvailable: %" SCNu64 " kB", &kib) == 1)
                avail = kib * 1024;
        fclose(f);
    }
    if (group_bytes != UINT64_MAX && (!avail || group_bytes < avail))
        avail = group_bytes ? group_bytes : 1; /* 0 would mean unknown */
    return avail;
}

uint64_t mem_peak_bytes(void)
{
    struct rusage u;
    return getrusage(RUSAGE_SELF, &u) ? 0 : (uint64_t)u.ru_maxrss * 1024;
}
