/* pool_options.h - the options of a pool of keys that is smaller than the context, and what is said
 * about it. A subcommand has a field `pool_options pool` in its struct and OPT_POOL(type of the
 * struct) in its table.
 */
#ifndef APPS_POOL_OPTIONS_H
#define APPS_POOL_OPTIONS_H

#include "apps/options.h"
#include "carat.h"

typedef struct pool_options {
    const char *tokens, *policy, *scorer;
    int64_t tau, host_mb;
} pool_options;

#define OPT_POOL(T)                                                                                \
    OPT_STR(T, pool.tokens, "kv-pool", 0, "N",                                                     \
            "keep keys and values of N tokens on the device, the others on the host, which "       \
            "changes answers: N or auto; docs/kv.md (default: keep all)",                          \
            .words = "auto"),                                                                      \
        OPT_STR(T, pool.policy, "kv-policy", 0, "NAME",                                            \
                "which of them stay on the device: scored (default: those that the model attends " \
                "to), lru (the youngest), snapkv (selected once, at the end of a prompt; the "     \
                "others are dropped), or drafter (those that --kv-scorer attends to)",             \
                "kv-pool", .words = "scored lru snapkv drafter"),                                  \
        OPT_STR(                                                                                   \
            T, pool.scorer, "kv-scorer", 0, "FILE",                                                \
            "with --kv-policy drafter: a small model that scores pages, on the CPU, or bundled",   \
            "kv-pool&kv-policy=drafter", .words = "@models"),                                      \
        OPT_INT(T, pool.tau, "kv-tau", 0, "N", 1, 1 << 20,                                         \
                "tokens between two selections (default: 64)",                                     \
                "kv-pool&!kv-policy=lru&!kv-policy=snapkv"),                                       \
        OPT_INT(T, pool.host_mb, "kv-host-mb", 0, "N", 1, 1 << 30,                                 \
                "most MiB of host memory for the others; beyond it they go to --kv-cache-dir "     \
                "(default: any)",                                                                  \
                "kv-pool&!kv-policy=snapkv")

/* E_ARG: the pool is neither auto nor a number of tokens; a scorer that no policy asks for, or the
 * other way round. */
carat_status pool_options_apply(const pool_options *o, carat_session_options *so, carat_error *e);
/* The value of --kv-pool: NULL gives 0, auto -1. */
carat_status pool_tokens_read(const char *text, int32_t *tokens, carat_error *e);
/* E_ARG: the policy that scores pages by a small model, without one. */
carat_status pool_scorer_check(const char *policy, const char *scorer, carat_error *e);
/* How the pool was chosen, and a policy that is not the one asked for. */
void pool_note_open(const carat_session *s);
/* Where the pages are now; nothing while the whole context is on the device. */
void pool_note_answer(const carat_session *s);

#endif
