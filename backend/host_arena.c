/* host_arena.c - see host_arena.h. */
#include "backend/host_arena.h"
#include "base/mem.h"

#include <string.h>

/* 0: more than there can be. */
static int32_t units_of(size_t n_bytes)
{
    size_t n = n_bytes / HOST_UNIT + (n_bytes % HOST_UNIT != 0);
    return !n ? 1 : n < INT32_MAX / 2 ? (int32_t)n : 0;
}

/* ---- Regions ------------------------------------------------------------------------------- */

static void free_region(host_region *r)
{
    mem_pages_free(r->map, r->map_bytes);
    mem_free(r->taken);
    mem_free(r->state);
}

static host_region *add_region(host_arena *a, int32_t n_units)
{
    enum { USUAL = HOST_REGION / HOST_UNIT, PER_SECTION = HOST_SECTION / HOST_UNIT };
    host_region r = {.n_units = n_units > USUAL ? n_units : USUAL};
    r.n_units += (PER_SECTION - r.n_units % PER_SECTION) % PER_SECTION;
    r.n_sections = r.n_units / PER_SECTION;
    r.n_free = r.n_units;
    r.map_bytes = ((size_t)r.n_sections + 1) * HOST_SECTION;
    host_region *all = mem_realloc(a->region, (size_t)a->n + 1, sizeof *all);
    if (!all)
        return NULL;
    a->region = all;
    r.map = mem_pages(r.map_bytes);
    r.taken = mem_calloc((size_t)r.n_units, 1);
    r.state = mem_calloc((size_t)r.n_sections, 1);
    if (!r.map || !r.taken || !r.state) {
        free_region(&r);
        return NULL;
    }
    r.at = r.map + host_section_left(r.map) % HOST_SECTION;
    all[a->n] = r;
    return &all[a->n++];
}

static host_region *region_of(const host_arena *a, const void *at)
{
    for (int32_t i = 0; i < a->n; i++) {
        host_region *r = &a->region[i];
        if ((uintptr_t)at - (uintptr_t)r->at < (size_t)r->n_sections * HOST_SECTION)
            return r;
    }
    return NULL;
}

/* ---- Blocks -------------------------------------------------------------------------------- */

/* The first of n free units in a row; -1: there are none. */
static int32_t find_units(const host_region *r, int32_t n)
{
    int32_t run = 0;
    for (int32_t i = 0; i < r->n_units && r->n_free >= n; i++) {
        run = r->taken[i] ? 0 : run + 1;
        if (run == n)
            return i + 1 - n;
    }
    return -1;
}

static void ask_for(host_arena *a, unsigned char *state)
{
    if (*state != HOST_UNUSED)
        return;
    *state = HOST_WAITS;
    a->asked_bytes += HOST_SECTION;
}

/* Sections that no block has yet. A region is not made for it. */
static void ask_ahead(host_arena *a)
{
    size_t quarter = a->used_bytes / 4;
    size_t most = a->used_bytes + (quarter < HOST_AHEAD_MOST ? quarter : HOST_AHEAD_MOST);
    for (int32_t i = 0; i < a->n; i++)
        for (int32_t k = 0; k < a->region[i].n_sections && a->asked_bytes < most; k++)
            ask_for(a, &a->region[i].state[k]);
}

void *host_arena_take(host_arena *a, size_t n_bytes)
{
    int32_t n = units_of(n_bytes), at = -1, i = 0;
    for (; i < a->n && n && at < 0; i++)
        at = find_units(&a->region[i], n);
    host_region *r = at >= 0 ? &a->region[i - 1] : n ? add_region(a, n) : NULL;
    if (!r)
        return NULL;
    at = at < 0 ? 0 : at;
    memset(r->taken + at, 1, (size_t)n);
    r->n_free -= n;
    a->used_bytes += (size_t)n * HOST_UNIT;
    char *block = r->at + (size_t)at * HOST_UNIT;
    for (char *p = block; p < block + (size_t)n * HOST_UNIT; p += host_section_left(p))
        ask_for(a, &r->state[(size_t)(p - r->at) / HOST_SECTION]);
    ask_ahead(a);
    return block;
}

void host_arena_give(host_arena *a, void *at, size_t n_bytes)
{
    host_region *r = region_of(a, at);
    int32_t n = units_of(n_bytes);
    if (!r)
        return;
    memset(r->taken + (size_t)((char *)at - r->at) / HOST_UNIT, 0, (size_t)n);
    r->n_free += n;
    a->used_bytes -= (size_t)n * HOST_UNIT;
}

/* ---- Sections ------------------------------------------------------------------------------ */

static bool is_used(const host_region *r, int32_t section)
{
    enum { PER_SECTION = HOST_SECTION / HOST_UNIT };
    return memchr(r->taken + (size_t)section * PER_SECTION, 1, PER_SECTION);
}

char *host_arena_next(host_arena *a)
{
    for (int32_t i = 0; i < a->n; i++)
        for (int32_t k = 0; k < a->region[i].n_sections; k++) {
            host_region *r = &a->region[i];
            if (r->state[k] != HOST_WAITS)
                continue;
            if (a->failed && !is_used(r, k)) {
                r->state[k] = HOST_UNUSED;
                a->asked_bytes -= HOST_SECTION;
                continue;
            }
            r->state[k] = HOST_WORKING;
            return r->at + (size_t)k * HOST_SECTION;
        }
    return NULL;
}

void host_arena_done(host_arena *a, const char *section, bool locked)
{
    host_region *r = region_of(a, section);
    r->state[(size_t)(section - r->at) / HOST_SECTION] = locked ? HOST_LOCKED : HOST_PLAIN;
    a->failed |= !locked;
}

bool host_arena_ready(const host_arena *a, const void *at, size_t n_bytes)
{
    const host_region *r = region_of(a, at);
    if (!r)
        return true;
    size_t first = (size_t)((const char *)at - r->at) / HOST_SECTION;
    size_t last = ((size_t)((const char *)at - r->at) + (n_bytes ? n_bytes - 1 : 0)) / HOST_SECTION;
    for (size_t k = first; k <= last && k < (size_t)r->n_sections; k++)
        if (r->state[k] == HOST_WAITS || r->state[k] == HOST_WORKING)
            return false;
    return true;
}

void host_arena_close(host_arena *a, void (*unlock)(char *section))
{
    for (int32_t i = 0; i < a->n; i++) {
        host_region *r = &a->region[i];
        for (int32_t k = 0; k < r->n_sections; k++)
            if (r->state[k] == HOST_LOCKED)
                unlock(r->at + (size_t)k * HOST_SECTION);
        free_region(r);
    }
    mem_free(a->region);
    *a = (host_arena){0};
}
