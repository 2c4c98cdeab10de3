/* devices.c - chooses the devices of a model, and divides it between them.
 *
 * The caller names a device. Otherwise it is a GPU, if the machine has one that the model fits,
 * else the CPU. The reason is kept as a phrase, which is never empty. A model is divided only if
 * the caller asks for it.
 */
#include "backend/cuda/plan_only.h"
#include "engine/engine_int.h"
#include "engine/experts.h"
#include "engine/fit.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void no_log(void *user, const char *text)
{
    (void)user;
    (void)text;
}

__attribute__((format(printf, 2, 3))) static void because(carat_model *m, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(m->device_why, sizeof m->device_why, fmt, ap);
    va_end(ap);
}

/* "cuda" or "cuda:N" */
static bool parse_gpu(const char *text, int32_t *which)
{
    char none[] = "", *end = none;
    if (strncmp(text, "cuda", 4) || (text[4] && text[4] != ':'))
        return false;
    long n = !text[4] ? 0 : text[5] >= '0' && text[5] <= '9' ? strtol(text + 5, &end, 10) : -1;
    if (n < 0 || n >= 1024 || *end)
        return false;
    *which = (int32_t)n;
    return true;
}

/* Was something asked for that takes a GPU? */
static bool is_limited(const carat_model_options *opt)
{
    const char *cpu = opt->experts_cpu, *prefetch = opt->experts_prefetch;
    return opt->gpu_mb || (opt->experts_gpu && strcmp(opt->experts_gpu, "auto")) ||
           (cpu && strcmp(cpu, "auto") && strcmp(cpu, "off")) ||
           (prefetch && strcmp(prefetch, "auto") && strcmp(prefetch, "off") &&
            strcmp(prefetch, "0"));
}

static bool is_divided(const carat_model_options *opt)
{
    return opt->gpu_layers || opt->cpu_experts;
}

/* "cpu,cpu" or longer: several CPU devices, the first in the place of a GPU, so that divisions can
 * be tested. Returns how many; 0 for any other text. */
static int32_t n_stand_ins(const carat_model_options *opt)
{
    int32_t n = 0;
    const char *at = opt->device ? opt->device : "";
    for (; !strncmp(at, "cpu", 3); at += at[3] ? 4 : 3) {
        n++;
        if (at[3] != ',')
            return at[3] || n < 2 || n > CARAT_DEVICES_MAX ? 0 : n;
    }
    return 0;
}

static bool is_stand_in(const carat_model_options *opt)
{
    return n_stand_ins(opt) > 0;
}

static bool is_named(const carat_model_options *opt)
{
    return opt->device && strcmp(opt->device, "auto");
}

static bool is_wrapped(const carat_model_options *opt)
{
    return (opt->wrap && *opt->wrap) || opt->sum_inputs;
}

static status wrap(carat_model *m, const carat_model_options *opt, err *e)
{
    status st = opt->sum_inputs ? device_wrap_inputs(&m->dev, e) : OK;
    for (const char *w = opt->wrap; !st && w && *w;) {
        char what[16];
        size_t n = strcspn(w, ",");
        if (n >= sizeof what)
            return err_set(e, E_ARG, "wrapper '%.40s': expected trace, time or check", w);
        memcpy(what, w, n);
        what[n] = 0;
        w += n + (w[n] == ',');
        if (n)
            st = device_wrap(&m->dev, what, opt->log ? opt->log : no_log, opt->log_user, e);
    }
    return st;
}

/* Leaves m->dev NULL if the model shall run on the CPU; device_why has the reason. */
static status choose_gpu(carat_model *m, const carat_model_options *opt, err *e)
{
    bool forced = is_named(opt) || opt->plan_gpu_mb;
    cuda_options gpu = {0};
    err why = {0};
    if (is_stand_in(opt) || (is_named(opt) && !strcmp(opt->device, "cpu"))) {
        because(m, "it was asked for");
        return OK;
    }
    if (is_named(opt) && !parse_gpu(opt->device, &gpu.device))
        return err_set(e, E_ARG, "device '%.40s': expected auto, cpu, cuda or cuda:N", opt->device);
    gpu.limit_bytes = (uint64_t)opt->gpu_mb << 20;
    gpu.card = opt->card;
    if (opt->plan_gpu_mb && !opt->vocab_only)
        return err_set(e, E_ARG, "a model for a GPU that need not be here computes nothing");
    bool for_cpu = opt->reference || opt->exact_f32 || opt->no_repack || opt->isa;
    if (for_cpu && forced)
        return err_set(e, E_ARG,
                       "the options for CPU kernels (reference, exact, repack, isa) cannot be used "
                       "with device %s",
                       is_named(opt) ? opt->device : "cuda");
    for_cpu |= is_wrapped(opt) && !forced;
    because(m, for_cpu ? "options for CPU kernels or wrappers were given"
                       : "nothing is computed, so no GPU was looked for");
    if (for_cpu || (opt->vocab_only && !forced))
        return OK;
    status st = opt->plan_gpu_mb
                    ? device_plan_cuda(&m->dev, opt->card, (uint64_t)opt->plan_gpu_mb << 20, &why)
                    : device_open_cuda(&m->dev, &gpu, &why);
    if (st && (forced || st == E_MEMORY)) /* the host lacks memory, for a CPU too */
        return err_set(e, st, "%s", why.text);
    if (st)
        because(m, "%.250s", why.text);
    else
        because(m, opt->plan_gpu_mb ? "a plan for it was asked for"
                   : forced         ? "it was asked for"
                                    : "a GPU is here, and the model fits it");
    return st ? OK : wrap(m, opt, e);
}

cpu_options cpu_wanted(const carat_model_options *opt)
{
    return (cpu_options){.n_threads = opt->n_threads,
                         .reference = opt->reference,
                         .exact_f32 = opt->exact_f32,
                         .no_repack = opt->no_repack,
                         .isa = opt->isa};
}

static status open_cpu(carat_model *m, const carat_model_options *opt, err *e)
{
    const cpu_options cpu = cpu_wanted(opt);
    status st = device_open_cpu(&m->dev, &cpu, e);
    return st ? st : wrap(m, opt, e);
}

/* "; cpu (avx2, 2 threads) has the first 3 layers and all experts" */
static void tell_division(carat_model *m, bool experts)
{
    for (int32_t i = 1; i < m->n_sides; i++) {
        int32_t n = model_layers_on(&m->core, i);
        bool has_experts = experts && i == m->n_sides - 1;
        const char *which = i == 1 ? "the first " : "the next ";
        size_t at = strlen(m->device_why);
        if (!n && !has_experts)
            continue;
        snprintf(m->device_why + at, sizeof m->device_why - at, "; %.60s has %s%.0d%s%s",
                 model_device(m, i)->name, n ? which : "", n, n ? " layers" : "",
                 !has_experts ? ""
                 : n          ? " and all experts"
                              : "all experts");
    }
}

status divide_model(carat_model *m, const carat_model_options *opt, model_division d, err *e)
{
    const cpu_options cpu = cpu_wanted(opt);
    int32_t n = is_stand_in(opt) ? n_stand_ins(opt) : 2;
    status st;
    while (m->n_sides < n) {
        if ((st = device_open_cpu(&m->other[m->n_sides - 1], &cpu, e)))
            return st;
        m->n_sides++;
    }
    return model_divide(&m->core, m->other, n - 1, d, e);
}

void undivide_model(carat_model *m)
{
    if (m->n_sides > 1)
        model_divide(&m->core, NULL, 0, (model_division){0}, NULL); /* as it was */
    for (; m->n_sides > 1; m->n_sides--) {
        device_close(m->other[m->n_sides - 2]);
        m->other[m->n_sides - 2] = NULL;
    }
}

/* m->dev is open. */
static status divide(carat_model *m, const carat_model_options *opt, err *e)
{
    model_division d = {.experts = opt->cpu_experts};
    status st;
    if (!is_divided(opt))
        return OK;
    if (!m->dev || (device_bare(m->dev)->kind != DEVICE_CUDA && !is_stand_in(opt)))
        return err_set(e, E_ARG,
                       "--gpu-layers and --cpu-experts need a GPU, and the model is on the CPU: %s",
                       m->device_why);
    if (is_wrapped(opt))
        return err_set(e, E_ARG,
                       "%s cannot be used with a model on several devices (--gpu-layers, "
                       "--cpu-experts)",
                       opt->sum_inputs ? "sums of inputs" : "--wrap");
    if (opt->gpu_layers)
        d.n_layers = m->core.n_layer - opt->gpu_layers;
    if (!d.n_layers && !d.experts)
        return OK;
    if (!(st = divide_model(m, opt, d, e)))
        tell_division(m, d.experts);
    return st;
}

/* Checks the shortest context before weights are loaded: if it does not fit, no session will. */
static status shortest_fits(void *user, const carat_model *m, err *e)
{
    (void)user;
    carat_memory_plan plan;
    session_shape shape;
    carat_session_options least = {
        .n_ctx = N_CTX_MIN, .chunk = m->core.encoder ? 0 : 1, .n_outputs = 1};
    status st = plan_check_weights(m, e);
    if (m->core.n_ctx_train < N_CTX_MIN)
        least.n_ctx = m->core.n_ctx_train;
    if (st || (st = plan_shape(m, &least, 1, 0, &shape, e)) ||
        (st = plan_costs(m, &shape, NULL, &plan, e)))
        return st;
    return plan_check(m, &plan, e);
}

static status check_weights_fit(carat_model *m, const carat_model_options *opt, err *e)
{
    return drafters_that_fit(m, opt, shortest_fits, NULL, e);
}

status open_device(carat_model *m, const carat_model_options *opt, err *e)
{
    m->n_sides = 1;
    status st = experts_check_options(opt, e);
    err why = {0};
    if (st || (st = choose_gpu(m, opt, e)))
        return st;
    if (m->dev && (st = divide(m, opt, e)))
        return st;
    if (m->dev && !(st = plan_check_weights(m, &why)) && !(st = fit_choose(m, opt, &why)) &&
        m->fit.divided)
        tell_division(m, m->fit.level == CARAT_FIT_EXPERTS);
    if (m->dev && st) {
        if (is_named(opt) || opt->plan_gpu_mb || is_divided(opt) || is_limited(opt) || st == E_ARG)
            return err_set(e, st, "%s", why.text);
        because(m, "%.250s", why.text);
        experts_free(m);
        m->fit = (model_fit){0};
        device_close(m->dev);
        m->dev = NULL;
    }
    if (m->dev)
        return OK;
    if (is_limited(opt))
        return err_set(
            e, E_ARG,
            "--gpu-mb, --experts-gpu, --experts-cpu and --experts-prefetch need a GPU, and "
            "the model is on the CPU: %s",
            m->device_why);
    if ((st = open_cpu(m, opt, e)) || (st = divide(m, opt, e)) || opt->vocab_only)
        return st;
    return check_weights_fit(m, opt, e);
}
