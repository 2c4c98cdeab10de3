/* kv_options.h - formats of keys and values: the options that run, serve, daemon, bench, logits,
 * inspect and kld share. A subcommand's struct has a field `kv_options kv`, and its table the line
 * OPT_KV(type of the struct).
 */
#ifndef APPS_KV_OPTIONS_H
#define APPS_KV_OPTIONS_H

#include "apps/options.h"
#include "carat.h"

#include <stdio.h>

typedef struct kv_options {
    const char *type, *k, *v, *layers, *single;
} kv_options;

#define KV_WORDS "f32 f16 bf16 q8_0 q5_1 q5_0 q4_1 q4_0 q4_0+rot iq4_nl tq3_0"
#define OPT_KV(T)                                                                                  \
    OPT_STR(T, kv.type, "kv-type", 0, "TYPE",                                                      \
            "format of cached keys and values: f32, f16, bf16, q8_0, q5_1, q5_0, q4_1, q4_0, "     \
            "iq4_nl or tq3_0; q4_0+rot is q4_0 rotated (default: f16, or q8_0 where a model "      \
            "would not fit its GPU)",                                                              \
            .words = KV_WORDS),                                                                    \
        OPT_STR(T, kv.k, "kv-k", 0, "TYPE", "format of the keys alone", .words = KV_WORDS,         \
                .also = "-ctk --cache-type-k"),                                                    \
        OPT_STR(T, kv.v, "kv-v", 0, "TYPE", "format of the values alone", .words = KV_WORDS,       \
                .also = "-ctv --cache-type-v"),                                                    \
        OPT_STR(T, kv.layers, "kv-layer", 0, "LIST",                                               \
                "formats of some layers: SPEC=TYPE or SPEC=KEYS/VALUES, with commas between; "     \
                "SPEC is global, swa (sliding window), a layer or first-last"),                    \
        OPT_STR(T, kv.single, "kv-single", 0, "WHEN",                                              \
                "store values alone and compute keys from them, in layers that allow it: on, off " \
                "or auto (default)",                                                               \
                .words = "on off auto")

const char *kv_options_k(const kv_options *o); /* the type asked for, or NULL */
const char *kv_options_v(const kv_options *o);
void kv_options_apply(const kv_options *o, carat_session_options *so);
/* The same for measurements: keys are f16 where no format is named, whatever would fit better. */
void kv_options_apply_exact(const kv_options *o, carat_session_options *so);
bool kv_options_given(const kv_options *o); /* was any of them given? */

/* Prints a layout: layers by format, with their sizes and kernels. */
void kv_print_kinds(FILE *f, const carat_kv_kind *kind, int32_t n);
/* The same for the session that these options would open. */
carat_status kv_print_plan(FILE *f, const carat_model *m, const carat_session_options *so,
                           carat_error *e);

#endif
