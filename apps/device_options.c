/* device_options.c - see device_options.h. */
#include "apps/device_options.h"

#include <inttypes.h>

enum { KINDS_SHOWN = 64 };

void device_options_apply(const device_options *o, carat_model_options *mo)
{
    mo->device = o->device;
    mo->strict = o->strict;
}

void device_print_kernels(FILE *f, const carat_weight_kind *kind, int32_t n)
{
    fprintf(f, "  tensors  weights   type           MiB  multiplied by\n");
    for (int32_t i = 0; i < n; i++)
        fprintf(f, "  %7" PRId32 "  %-8s  %-8s  %8.1f  %s%s\n", kind[i].n, kind[i].what,
                kind[i].type, (double)kind[i].n_bytes * 0x1p-20, kind[i].slow ? "SLOW: " : "",
                kind[i].kernel);
}

void device_print(FILE *f, const carat_model *m)
{
    carat_weight_kind kind[KINDS_SHOWN];
    carat_model_info i;
    carat_model_get_info(m, &i);
    fprintf(f, "device %s: %s\n", i.device, i.device_why);
    device_print_kernels(f, kind, carat_plan_weights(m, kind, KINDS_SHOWN));
}
