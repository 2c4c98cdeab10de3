/* device_options.h - where a model runs: the options that run, serve, daemon, bench, logits,
 * inspect and kld share, and the reports about it. A subcommand's struct has a field
 * `device_options where`, and its table the line OPT_DEVICE(type of the struct).
 */
#ifndef APPS_DEVICE_OPTIONS_H
#define APPS_DEVICE_OPTIONS_H

#include "apps/options.h"
#include "carat.h"

#include <stdio.h>
#include <string.h>

typedef struct device_options {
    const char *device, *gpus, *gpu_split, *split;
    int64_t gpu_layers;
    bool all_layers; /* the default, asked for: a machine without a GPU says that it has none */
    bool cpu_experts, strict;
    int64_t gpu_mb;
    const char *card;
    const char *experts_gpu, *experts_cpu, *experts_prefetch;
    /* No options: the session that will be opened; NULL: none, or its plan is not checked. It is
     * checked before weights are loaded. `tell`, if not NULL, receives the plan, the devices and
     * their kernels. */
    const carat_session_options *session;
    FILE *tell;
} device_options;

#define OPT_DEVICE(T) OPT_DEVICE_AND_CARD(T, NULL)
/* The same with --card in the lists of options. */
#define CARD_HELP                                                                                  \
    "choose kernels as on a card of compute capability N: 8.0, 8.6, 8.9, 9.0, 10.0 or 12.0; with " \
    "--gpu-mb also as on a card of that memory"
#define OPT_DEVICE_AND_CARD(T, card_help) OPT_DEVICE_OR_SIZES(T, card_help, "gpus|device")
/* The same where --gpu has sizes of GPUs that need not be here: split_needs is "gpus|device|gpu".
 */
#define OPT_DEVICE_OR_SIZES(T, card_help, split_needs)                                             \
    OPT_STR(T, where.device, "device", 0, "NAME",                                                  \
            "auto, cpu, cuda or cuda:N (default: a GPU, with as much of the model as fits)",       \
            .words = "auto cpu cuda cuda:0"),                                                      \
        OPT_STR(T, where.gpus, "gpus", 0, "LIST",                                                  \
                "several GPUs, such as 0,1, which share the model (--split); auto (default): "     \
                "one if the model fits it, else as many as it needs"),                             \
        OPT_STR(T, where.gpu_split, "gpu-split", 0, "LIST",                                        \
                "in which proportion they have layers, such as 3,1 (default: by their memory)",    \
                split_needs),                                                                      \
        OPT_STR(T, where.split, "split", 0, "HOW",                                                 \
                "how several GPUs share a model: layers (default); tensor: a part of every layer " \
                "each; auto: the faster of the two, by measured links; none refuses more than "    \
                "one",                                                                             \
                .words = "layers tensor auto none"),                                               \
        OPT_INT(                                                                                   \
            T, where.gpu_layers, "gpu-layers", 0, "N", 1, 4096,                                    \
            "the GPU computes the last N layers, the CPU the others (default: as many as fit)",    \
            "!device=cpu&@beside"),                                                                \
        OPT_FLAG(T, where.all_layers, "all-layers-on-gpu", 0, NULL, "~!device=cpu&@gpu"),          \
        OPT_FLAG(T, where.cpu_experts, "cpu-experts", 0,                                           \
                 "keep all experts in the host's memory, where the CPU computes them",             \
                 "!device=cpu&@beside_experts"),                                                   \
        OPT_INT(T, where.gpu_mb, "gpu-mb", 0, "N", 1, 1 << 24,                                     \
                "take at most N MiB of each GPU's memory (default: what is free)",                 \
                "!device=cpu&@gpu"),                                                               \
        OPT_STR(T, where.card, "card", 0, "N", card_help, "!device=cpu&@gpu"),                     \
        OPT_STR(T, where.experts_gpu, "experts-gpu", 0, "PART",                                    \
                "experts that the GPU holds: auto (as many as fit), a part (0.5, 50%) or "         \
                "MiB; the GPU reads the others from host memory (default: auto)",                  \
                "!device=cpu&@experts"),                                                           \
        OPT_STR(T, where.experts_cpu, "experts-cpu", 0, "PART",                                    \
                "of that rest, how much the CPU computes instead: off (default), auto (by "        \
                "measured speeds) or a part (0.5, 50%)",                                           \
                "!device=cpu&@experts"),                                                           \
        OPT_STR(T, where.experts_prefetch, "experts-prefetch", 0, "N",                             \
                "experts that are fetched before a layer chooses them, at a time: off, 1 to 4 or " \
                "auto (default)",                                                                  \
                "!device=cpu&@experts", .also = "--experts-early"),                                \
        OPT_FLAG(T, where.strict, "strict", 0,                                                     \
                 "refuse models and formats of keys and values that need a slow kernel")

/* Are GPUs of this machine listed? "auto" lists none. */
static inline bool device_lists_gpus(const device_options *o)
{
    return o->gpus && strcmp(o->gpus, "auto");
}

/* *o outlives the opening of the model. */
void device_options_apply(const device_options *o, carat_model_options *mo);

/* Warns of options that have no effect on this model's device. */
void device_tell_facts(const carat_model *m);

/* A line with the session's context and the tokens of a pass. */
void device_print_lengths(FILE *f, const carat_memory_plan *p);
/* Is it the device that a drafter has for itself? */
static inline bool device_drafts_alone(const carat_device_plan *p)
{
    return !p->n_layers && p->draft_bytes;
}
/* Prints the memory that a session needs, one line per device. */
void device_print_plan(FILE *f, const carat_memory_plan *p);
/* A sentence about checkpoints of recurrent layers; false: the model has no such layers. */
bool device_plan_checkpoints(const carat_memory_plan *p, char *text, size_t cap);
/* Prints the kernels of products, one line per format and purpose of weights. */
void device_print_kernels(FILE *f, const carat_weight_kind *kind, int32_t n);
/* Prints how many experts the GPU holds, and how they were used so far; nothing if it holds all. */
void device_print_experts(FILE *f, const carat_model *m);

#endif
