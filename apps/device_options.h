/* device_options.h - where a model runs: the options that run, serve, daemon, bench, logits,
 * inspect and kld share, and what is told about it. A subcommand's struct has a field
 * `device_options where` and its table a line OPT_DEVICE(its type).
 */
#ifndef APPS_DEVICE_OPTIONS_H
#define APPS_DEVICE_OPTIONS_H

#include "apps/options.h"
#include "carat.h"

#include <stdio.h>

typedef struct device_options {
    const char *device;
    bool strict;
} device_options;

#define OPT_DEVICE(T)                                                                              \
    OPT_STR(T, where.device, "device", 0, "NAME",                                                  \
            "auto, cpu, cuda or cuda:N (default: a GPU that fits)"),                               \
        OPT_FLAG(T, where.strict, "strict", 0,                                                     \
                 "refuse models and caches that some slow kernel would be used for")

void device_options_apply(const device_options *o, carat_model_options *mo);

/* What products with the weights are done by, a line for each format and purpose. */
void device_print_kernels(FILE *f, const carat_weight_kind *kind, int32_t n);
/* The device, why it is that one, and those lines. */
void device_print(FILE *f, const carat_model *m);

#endif
