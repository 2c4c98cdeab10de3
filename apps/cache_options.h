/* cache_options.h - the options on checkpoints and saved conversations. A subcommand has a field
 * `cache_options cache` in its struct and OPT_CACHE(type of the struct) in its table. */
#ifndef APPS_CACHE_OPTIONS_H
#define APPS_CACHE_OPTIONS_H

#include "apps/options.h"
#include "carat.h"

typedef struct cache_options {
    int64_t checkpoint_mb, cache_mb;
    const char *dir;
} cache_options;

/* The values of options that were not given. */
#define CACHE_OPTIONS_NONE                                                                         \
    {                                                                                              \
        -1, 4096, NULL                                                                             \
    }

#define OPT_CACHE(T)                                                                               \
    OPT_INT(T, cache.checkpoint_mb, "checkpoint-mb", 0, "N", 0, 1 << 30,                           \
            "MiB for checkpoints that later prompts reuse; 0: none (default: a quarter of the "    \
            "memory that the plan leaves, at most 4096)"),                                         \
        OPT_STR(T, cache.dir, "kv-cache-dir", 0, "DIR", "save checkpoints there between runs"),    \
        OPT_INT(T, cache.cache_mb, "kv-cache-mb", 0, "N", 1, 1 << 30,                              \
                "most MiB in that directory (default: 4096)", "kv-cache-dir")

static inline void cache_options_apply(const cache_options *o, carat_session_options *so)
{
    so->checkpoint_mb = o->checkpoint_mb < 0    ? 0
                        : o->checkpoint_mb == 0 ? -1
                                                : (int32_t)o->checkpoint_mb;
    so->cache_dir = o->dir;
    so->cache_mb = (int32_t)o->cache_mb;
}

#endif
