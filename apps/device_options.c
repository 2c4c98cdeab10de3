/* device_options.c - see device_options.h. */
#include "apps/device_options.h"
#include "apps/kv_options.h"

#include <inttypes.h>

enum { KINDS_SHOWN = 64 };

void device_print_plan(FILE *f, const carat_memory_plan *p)
{
    fprintf(
        f, "  memory, MiB  weights   windows    global   scratch   reserve       all  available\n");
    for (int32_t i = 0; i < p->n_devices; i++) {
        const carat_device_plan *s = &p->device[i];
        const uint64_t v[] = {s->weight_bytes,   s->kv_swa_bytes,  s->kv_global_bytes,
                              s->scratch_bytes,  s->reserve_bytes, s->total_bytes,
                              s->available_bytes};
        fprintf(f, "  %3" PRId32 " layers ", s->n_layers);
        for (size_t k = 0; k < sizeof v / sizeof *v; k++)
            fprintf(f, " %9.1f", (double)v[k] * 0x1p-20);
        fprintf(f, "  %s\n", s->device);
    }
}

void device_print_kernels(FILE *f, const carat_weight_kind *kind, int32_t n)
{
    bool divided = false;
    for (int32_t i = 0; i < n; i++)
        divided |= kind[i].device != kind[0].device;
    fprintf(f, "  tensors  weights   type           MiB  multiplied by\n");
    for (int32_t i = 0; i < n; i++) {
        const carat_weight_kind *k = &kind[i];
        fprintf(f, "  %7" PRId32 "  %-8s  %-8s  %8.1f  %s%s%s%s\n", k->n, k->what, k->type,
                (double)k->n_bytes * 0x1p-20, k->slow ? "SLOW: " : "", k->kernel,
                divided ? ", on " : "", divided ? k->device : "");
    }
}

void device_print(FILE *f, const carat_model *m)
{
    carat_weight_kind kind[KINDS_SHOWN];
    carat_model_info i;
    carat_model_get_info(m, &i);
    fprintf(f, "device %s: %s\n", i.device, i.device_why);
    device_print_kernels(f, kind, carat_plan_weights(m, kind, KINDS_SHOWN));
}

static carat_status before_loading(void *user, const carat_model *m, carat_error *e)
{
    const device_options *o = user;
    carat_memory_plan p;
    carat_status st = carat_plan(m, o->session, &p, e);
    if (st)
        return st;
    if (o->tell) {
        device_print(o->tell, m);
        device_print_plan(o->tell, &p);
        if ((st = kv_print_plan(o->tell, m, o->session, e)))
            return st;
    }
    return carat_plan_check(m, &p, e);
}

void device_options_apply(const device_options *o, carat_model_options *mo)
{
    mo->device = o->device;
    mo->gpu_layers = (int32_t)o->gpu_layers;
    mo->cpu_experts = o->cpu_experts;
    mo->strict = o->strict;
    mo->planned = o->session ? before_loading : NULL;
    mo->planned_user = (void *)o; /* only read */
}
