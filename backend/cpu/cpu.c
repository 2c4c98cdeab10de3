/* cpu.c - the CPU device: opening, memory, weights.
 *
 * On a CPU to enqueue an op is to run it, and device memory is host memory: an upload is a copy
 * and a weight may stay where the file is mapped. What is the device's own is the packed copy of
 * a product's weight (pack.h) and a pool of threads.
 */
#include "backend/cpu/cpu_int.h"
#include "base/mem.h"

#include <stdio.h>
#include <string.h>

static void *cpu_alloc(device *d, size_t n_bytes)
{
    (void)d;
    return mem_pages(n_bytes);
}

static void cpu_release(device *d, void *p, size_t n_bytes)
{
    (void)d;
    mem_pages_free(p, n_bytes);
}

static void cpu_clear(device *d, void *p, size_t n_bytes)
{
    (void)d;
    memset(p, 0, n_bytes);
}

static void cpu_copy(device *d, void *to, const void *from, size_t n_bytes)
{
    (void)d;
    memcpy(to, from, n_bytes);
}

static status cpu_weight_load(device *d, weight *w, err *e)
{
    (void)d;
    const num_format *f = num_format_of(w->type);
    if (!f || !f->decode)
        return err_set(e, E_UNSUPPORTED,
                       "tensor %s is in format %s, which carat cannot compute with", w->name,
                       num_name(w->type));
    return OK;
}

static void cpu_weight_free(device *d, weight *w)
{
    (void)d;
    mem_pages_free(w->packed, w->packed_bytes);
    w->packed = NULL;
    w->packed_bytes = 0;
}

static size_t cpu_weight_bytes(const device *d, const weight *w)
{
    (void)d;
    (void)w;
    return 0;
}

static void cpu_close(device *d)
{
    cpu_device *c = d->self;
    pool_close(c->pool);
    mem_free(c);
}

const float *cpu_vector(const weight *w, float *temp)
{
    if (w->type == NUM_F32)
        return w->data;
    num_format_of(w->type)->decode(w->data, temp, w->n_in);
    return temp;
}

status device_open_cpu(device **out, const cpu_options *opt, err *e)
{
    static const cpu_options defaults;
    *out = NULL;
    if (!opt)
        opt = &defaults;
    cpu_device *c = mem_calloc(1, sizeof *c);
    if (!c)
        return err_memory(e, "the CPU device", sizeof *c);
    c->n_threads = opt->n_threads > 0 ? opt->n_threads : pool_default_threads();
    c->exact_f32 = opt->exact_f32;
    c->no_repack = opt->no_repack;
    c->reference = opt->reference;
    status st = pool_open(&c->pool, c->n_threads, e);
    if (st) {
        mem_free(c);
        return st;
    }
    snprintf(c->name, sizeof c->name, "cpu (%s, %d thread%s)", "reference", c->n_threads,
             c->n_threads == 1 ? "" : "s");
    c->dev = (device){
        .op = &cpu_ref_ops,
        .kind = DEVICE_CPU,
        .name = c->name,
        .verify_max = INT32_MAX,
        .chunk_rows = 512,
        .self = c,
        .alloc = cpu_alloc,
        .release = cpu_release,
        .clear = cpu_clear,
        .upload = cpu_copy,
        .download = cpu_copy,
        .weight_load = cpu_weight_load,
        .weight_free = cpu_weight_free,
        .weight_bytes = cpu_weight_bytes,
        .close = cpu_close,
    };
    *out = &c->dev;
    return OK;
}
