/* device_options.c - see device_options.h. */
#include "apps/device_options.h"
#include "apps/kv_options.h"
#include "apps/term.h"

#include <inttypes.h>

enum { KINDS_SHOWN = 64 };

static double mib(uint64_t n_bytes)
{
    return (double)n_bytes * 0x1p-20;
}

void device_print_lengths(FILE *f, const carat_memory_plan *p)
{
    fprintf(f, "  a context of %" PRId32 " tokens, prompts in chunks of %" PRId32 "\n", p->n_ctx,
            p->chunk);
}

void device_print_plan(FILE *f, const carat_memory_plan *p)
{
    char states[160];
    bool recurrent = p->recurrent_bytes > 0, experts = false; /* only then there are columns */
    for (int32_t i = 0; i < p->n_devices; i++)
        experts |= p->device[i].expert_bytes > 0;
    fprintf(f,
            "  memory, MiB  weights%s   windows    global%s   scratch   reserve       all  "
            "available\n",
            experts ? "   experts" : "", recurrent ? "    states" : "");
    for (int32_t i = 0; i < p->n_devices; i++) {
        const carat_device_plan *s = &p->device[i];
        if (device_drafts_alone(s))
            fprintf(f, "  the drafter ");
        else
            fprintf(f, "  %3" PRId32 " layers  ", s->n_layers);
        fprintf(f, "%9.1f", mib(s->weight_bytes));
        if (experts)
            fprintf(f, " %9.1f", mib(s->expert_bytes));
        fprintf(f, " %9.1f %9.1f", mib(s->kv_swa_bytes), mib(s->kv_global_bytes));
        if (recurrent)
            fprintf(f, " %9.1f", mib(s->recurrent_bytes));
        fprintf(f, " %9.1f %9.1f %9.1f %9.1f  %s", mib(s->scratch_bytes), mib(s->reserve_bytes),
                mib(s->total_bytes), mib(s->available_bytes), s->device);
        if (p->n_devices > 1 && s->n_layers)
            fprintf(f, ": layers %" PRId32 " to %" PRId32, s->first_layer,
                    s->first_layer + s->n_layers - 1);
        if (s->crossing_bytes)
            fprintf(f, "; %.1f KiB come to it for each token", (double)s->crossing_bytes * 0x1p-10);
        fputc('\n', f);
    }
    if (p->scorer_bytes)
        fprintf(f, "  the scorer of pages: %.1f MiB of host memory\n", mib(p->scorer_bytes));
    if (p->picture_bytes)
        fprintf(f,
                "  the vision tower: %.1f MiB of all on %s; pictures at work: at most %.1f MiB of "
                "host memory\n",
                mib(p->vision_bytes), p->device[0].device, mib(p->picture_bytes));
    if (p->audio_bytes)
        fprintf(f, "  the audio tower: %.1f MiB of all on %s\n", mib(p->audio_bytes),
                p->device[0].device);
    if (device_plan_checkpoints(p, states, sizeof states))
        fprintf(f, "  %s\n", states);
}

bool device_plan_checkpoints(const carat_memory_plan *p, char *text, size_t cap)
{
    if (!p->checkpoint_state_bytes)
        return false;
    snprintf(text, cap,
             "checkpoints: at most %.1f MiB; each takes %.1f MiB of recurrent states, and its keys "
             "and values%s",
             mib(p->checkpoint_bytes), mib(p->checkpoint_state_bytes),
             p->checkpoint_bytes < p->checkpoint_state_bytes ? ": too little for one" : "");
    return true;
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

/* The device, the reason for it, and the kernels. */
static void device_print(FILE *f, const carat_model *m)
{
    carat_weight_kind kind[KINDS_SHOWN];
    carat_model_info i;
    carat_model_get_info(m, &i);
    fprintf(f, "device %s: %s\n", i.device, i.device_why);
    device_print_kernels(f, kind, carat_plan_weights(m, kind, KINDS_SHOWN));
}

/* A line for each of several devices with slots. False: there is one. */
static bool print_each_device(FILE *f, const carat_model *m)
{
    carat_expert_info x[CARAT_DEVICES_MAX];
    carat_device_memory mem[CARAT_DEVICES_MAX];
    const int32_t n_devices = carat_memory(m, mem);
    int n = 0;
    for (int32_t i = 0; i < n_devices; i++)
        n += carat_experts_on(m, i, &x[i]);
    for (int32_t i = 0; i < n_devices && n > 1; i++) {
        uint64_t uses = x[i].n_hits + x[i].n_misses;
        if (!x[i].n_layers)
            continue;
        fprintf(f, "experts of %" PRId32 " layers on %s: %" PRId32 " of %" PRId32 " (%.1f MiB)",
                x[i].n_layers, mem[i].device, x[i].n_slots, x[i].n_experts, mib(x[i].slot_bytes));
        if (uses)
            fprintf(f,
                    "; %.1f %% of %" PRIu64 " uses; %" PRIu64
                    " copied into slots, %" PRIu64 " fetched early; bus %.1f GB/s",
                    100.0 * (double)x[i].n_hits / (double)uses, uses, x[i].n_swaps,
                    x[i].n_prefetched, x[i].bus_bytes_s * 1e-9);
        fputc('\n', f);
    }
    return n > 1;
}

void device_print_experts(FILE *f, const carat_model *m)
{
    carat_expert_info x;
    if (!carat_experts(m, &x))
        return;
    uint64_t n = x.n_hits + x.n_misses;
    const bool several = print_each_device(f, m);
    if (!n) {
        fprintf(f,
                "experts: the GPU%s hold%s %" PRId32 " of %" PRId32
                " (%.1f of %.1f MiB), with stages and tables %.1f MiB; the host has copies of all\n",
                several ? "s" : "", several ? "" : "s", x.n_slots, x.n_experts, mib(x.slot_bytes),
                mib(x.all_bytes), mib(x.device_bytes));
        return;
    }
    fprintf(f,
            "experts: %.1f %% of %" PRIu64 " uses were on the GPU; %" PRIu64
            " copied into slots (%.1f MiB), %.1f MiB read by misses, %.1f MiB for prompts; %.1f ms "
            "of waiting for the bus (%.1f GB/s)",
            100.0 * (double)x.n_hits / (double)n, n, x.n_swaps, mib(x.swap_bytes),
            mib(x.read_bytes), mib(x.stream_bytes), x.wait_ms, x.bus_bytes_s * 1e-9);
    if (x.cpu_threads)
        fprintf(f, "; %" PRIu64 " uses computed by %" PRId32 " threads of the CPU (%.3f ms each)",
                x.n_cpu, x.cpu_threads, x.cpu_expert_ms);
    if (x.n_prefetched)
        fprintf(f,
                "; %" PRIu64 " fetched before their layer chose (%.1f MiB), of which it chose "
                "%" PRIu64 " (%" PRIu64 " of them still on their way); %" PRIu64
                " requests came too late; the last guesses were %" PRId32 " layers ahead",
                x.n_prefetched, mib(x.prefetch_bytes), x.n_prefetched_used, x.n_prefetched_waited,
                x.n_prefetched_late, x.prefetch_ahead);
    else if (!x.prefetch_most)
        fprintf(f, "; none is fetched before its layer chooses");
    if (x.n_failed)
        fprintf(f, "; %" PRIu64 " copies failed", x.n_failed);
    fprintf(f, "\n");
}

static bool has_experts(const carat_model *m, const carat_model_info *info)
{
    carat_meta count;
    char key[128];
    snprintf(key, sizeof key, "%s.expert_count", info->architecture);
    return carat_model_find_meta(m, key, &count) && count.kind == CARAT_META_INT && count.i > 0;
}

void device_tell_facts(const carat_model *m)
{
    carat_model_info info;
    carat_model_get_info(m, &info);
    carat_device_memory list[CARAT_DEVICES_MAX];
    const char *cpu = "the model runs on the CPU";
    const bool experts = has_experts(m, &info);
    /* --device cpu,cpu has one in the place of a GPU. */
    const bool beside = info.on_gpu || carat_memory(m, list) > 1;
    options_tell_fact("gpu", info.on_gpu, cpu);
    options_tell_fact("beside", beside, cpu);
    const char *why = experts ? cpu : "the model has no experts";
    options_tell_fact("experts", info.on_gpu && experts, why);
    options_tell_fact("beside_experts", beside && experts, why);
}

static carat_status before_loading(void *user, const carat_model *m, carat_error *e)
{
    const device_options *o = user;
    carat_memory_plan p;
    device_tell_facts(m);
    if (!o->session)
        return CARAT_OK;
    carat_status st = carat_plan(m, o->session, &p, e);
    if (st)
        return st;
    if (o->tell) {
        device_print(o->tell, m);
        device_print_experts(o->tell, m);
        device_print_lengths(o->tell, &p);
        device_print_plan(o->tell, &p);
        if ((st = kv_print_plan(o->tell, m, o->session, e)))
            return st;
    }
    if ((st = carat_plan_check(m, &p, e)))
        return st;
    carat_model_info info;
    carat_model_get_info(m, &info);
    if (*info.fit_text)
        term_note("%s", info.fit_text);
    return OK;
}

void device_options_apply(const device_options *o, carat_model_options *mo)
{
    mo->device = o->device;
    mo->gpus = o->gpus;
    mo->gpu_split = o->gpu_split;
    mo->split = o->split;
    mo->gpu_layers = (int32_t)o->gpu_layers;
    mo->cpu_experts = o->cpu_experts;
    mo->strict = o->strict;
    mo->gpu_mb = o->gpu_mb;
    mo->card = o->card;
    mo->experts_gpu = o->experts_gpu;
    mo->experts_cpu = o->experts_cpu;
    mo->experts_prefetch = o->experts_prefetch;
    mo->session = o->session;
    mo->planned = before_loading;
    mo->planned_user = (void *)o; /* only read */
}
