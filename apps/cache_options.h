/* cache_options.h - what is kept of conversations: the options of every subcommand that has any. A
 * subcommand's struct has a field `cache_options cache` and its table a line OPT_CACHE(its type).
 */
#ifndef APPS_CACHE_OPTIONS_H
#define APPS_CACHE_OPTIONS_H

#include "apps/options.h"
#include "carat.h"

typedef struct cache_options {
    int64_t checkpoint_mb, cache_mb;
    const char *dir;
} cache_options;

/* What the fields hold when nothing is given. */
#define CACHE_OPTIONS_NONE                                                                         \
    {                                                                                              \
        -1, 4096, NULL                                                                             \
    }

#define OPT_CACHE(T)                                                                               \
    OPT_INT(T, cache.checkpoint_mb, "checkpoint-mb", 0, "N", 0, 1 << 30,                           \
            "memory for states that prompts may go back to; 0 none (default: a quarter of what "   \
            "is left over, at most 4096)"),                                                        \
        OPT_STR(T, cache.dir, "kv-cache-dir", 0, "DIR", "keep such states there between runs"),    \
        OPT_INT(T, cache.cache_mb, "kv-cache-mb", 0, "N", 1, 1 << 30,                              \
                "most that the directory may hold (default: 4096)")

static inline void cache_options_apply(const cache_options *o, carat_session_options *so)
{
    so->checkpoint_mb = o->checkpoint_mb < 0    ? 0
                        : o->checkpoint_mb == 0 ? -1
                                                : (int32_t)o->checkpoint_mb;
    so->cache_dir = o->dir;
    so->cache_mb = (int32_t)o->cache_mb;
}

#endif
