/* devices.c - chooses the devices of a model, and divides it between them.
 *
 * The caller names a device. Otherwise it is a GPU, if the machine has one that the model fits,
 * else the fewest GPUs that it fits together, which then share its layers, else the CPU. The reason
 * is kept as a phrase, which is never empty.
 */
#include "backend/cuda/plan_only.h"
#include "backend/ranks.h"
#include "engine/engine_int.h"
#include "engine/experts.h"
#include "engine/fit.h"
#include "engine/links.h"
#include "engine/stages.h"
#include "model/tensor_split.h"

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

/* Were places asked for, for a mixture's experts beside a GPU? */
static bool places_experts(const carat_model_options *opt)
{
    const char *cpu = opt->experts_cpu, *prefetch = opt->experts_prefetch;
    return (opt->experts_gpu && strcmp(opt->experts_gpu, "auto")) ||
           (cpu && strcmp(cpu, "auto") && strcmp(cpu, "off")) ||
           (prefetch && strcmp(prefetch, "auto") && strcmp(prefetch, "off") &&
            strcmp(prefetch, "0"));
}

/* Was something asked for that takes a GPU? */
static bool is_limited(const carat_model_options *opt)
{
    return opt->gpu_mb || places_experts(opt);
}

static bool is_divided(const carat_model_options *opt)
{
    return opt->gpu_layers || opt->cpu_experts;
}

/* "cpu,cpu" or longer: several CPU devices in the place of GPUs, so that divisions can be tested.
 * With options that want a CPU beside, the last one is that. Returns how many; 0: another text. */
static int32_t n_stand_ins(const carat_model_options *opt)
{
    int32_t n = 0;
    const char *at = opt->device ? opt->device : "";
    for (; !strncmp(at, "cpu", 3); at += at[3] ? 4 : 3) {
        n++;
        if (at[3] != ',')
            return at[3] || n < 2 || n > CARAT_GPUS_MAX ? 0 : n;
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

/* Are GPUs listed? "auto" lists none. */
static bool lists_gpus(const carat_model_options *opt)
{
    return opt->gpus && strcmp(opt->gpus, "auto");
}

/* May the machine's GPUs, or those of a plan, be chosen from? */
static bool may_choose(const carat_model_options *opt)
{
    bool plans = opt->plan_gpu_mb[0] != 0;
    bool one = opt->split && strcmp(opt->split, "layers") != 0;
    bool placed = is_divided(opt) || opt->experts_gpu || opt->experts_cpu || opt->experts_prefetch;
    return !is_named(opt) && !one && !placed && !opt->overcommit && !opt->gpu_split &&
           (opt->gpus ? !lists_gpus(opt) : !plans && !opt->vocab_only);
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

/* The devices that share the layers, in their order: the numbers of GPUs. */
typedef struct stage_list {
    int32_t n, gpu[CARAT_GPUS_MAX];
    bool open;    /* the user named no GPU: carat passes over one that it cannot open */
    int32_t next; /* this GPU and later ones are not in an open list yet */
} stage_list;

static status read_gpus(const char *text, stage_list *l, err *e)
{
    const char *at = text;
    for (char *end; l->n < CARAT_GPUS_MAX && *at >= '0' && *at <= '9'; at = end + 1) {
        long n = strtol(at, &end, 10);
        if (n >= 1024 || (*end && *end != ','))
            break;
        l->gpu[l->n++] = (int32_t)n;
        if (!*end)
            return OK;
    }
    return err_set(e, E_ARG,
                   "--gpus '%.40s': expected the numbers of at most %d GPUs, with commas between",
                   text, CARAT_GPUS_MAX);
}

bool split_is_open(const carat_model_options *opt)
{
    return opt->split && !strcmp(opt->split, "auto");
}

static bool by_tensors(const carat_model_options *opt)
{
    return opt->split && !strcmp(opt->split, "tensor");
}

static status check_ranks(const carat_model_options *opt, const stage_list *l, err *e)
{
    if (l->n > RANKS_MAX)
        return err_set(e, E_ARG, "--split tensor: %d devices were named, expected at most %d", l->n,
                       RANKS_MAX);
    if (opt->gpu_split)
        return err_set(e, E_ARG,
                       "--gpu-split is for layers: with --split tensor all devices have equal "
                       "parts");
    if (is_divided(opt))
        return err_set(e, E_ARG,
                       "--gpu-layers and --cpu-experts cannot be used with --split tensor");
    return OK;
}

static status read_stages(const carat_model_options *opt, stage_list *l, err *e)
{
    *l = (stage_list){0};
    const char *split = opt->split ? opt->split : "layers";
    if (opt->gpus && !lists_gpus(opt) &&
        (is_named(opt) || opt->gpu_split || !strcmp(split, "none")))
        return err_set(e, E_ARG,
                       "--gpus auto leaves the choice of GPUs open, and --device, --gpu-split or "
                       "--split none does not");
    if (opt->gpus && is_named(opt))
        return err_set(e, E_ARG, "--gpus %.40s and --device %.40s: expected one of the two",
                       opt->gpus, opt->device);
    if (strcmp(split, "layers") && strcmp(split, "tensor") && strcmp(split, "none"))
        return err_set(e, E_ARG, "--split '%.40s': expected layers, tensor, auto or none", split);
    if (lists_gpus(opt) && opt->plan_gpu_mb[0])
        return err_set(e, E_ARG,
                       "--gpus %.40s: numbers of GPUs that are here, and a plan is for "
                       "others",
                       opt->gpus);
    if (lists_gpus(opt)) {
        status st = read_gpus(opt->gpus, l, e);
        if (st)
            return st;
    }
    while (l->n < CARAT_GPUS_MAX && opt->plan_gpu_mb[l->n] && !opt->gpus) {
        l->gpu[l->n] = l->n;
        l->n++;
    }
    l->open = !is_named(opt) && !lists_gpus(opt) && !opt->plan_gpu_mb[0];
    for (int32_t n = l->open && by_tensors(opt) ? device_count_cuda() : 0;
         l->n < n && l->n < RANKS_MAX; l->n++)
        l->gpu[l->n] = l->n;
    l->next = l->n ? l->n : 1;
    if (is_stand_in(opt))
        l->n = n_stand_ins(opt) - is_divided(opt);
    if (!l->n && is_named(opt))
        parse_gpu(opt->device, &l->gpu[0]);
    l->n = l->n ? l->n : 1;
    if (l->n > 1 && !strcmp(split, "none"))
        return err_set(e, E_ARG,
                       "--split none is one device, and %d were named: --device %s is it", l->n,
                   is_stand_in(opt) ? "cpu" : "cuda:N");
    if (l->n > 1 && is_wrapped(opt))
        return err_set(e, E_ARG, "%s cannot be used with a model on several devices (--gpus)",
                       opt->sum_inputs ? "sums of inputs" : "--wrap");
    if (by_tensors(opt))
        return check_ranks(opt, l, e);
    if (l->n == 1 && opt->gpu_split)
        return err_set(e, E_ARG, "--gpu-split is for several GPUs (--gpus), and there is one");
    return OK;
}

static status open_gpu(device **d, const carat_model_options *opt, const stage_list *l, int32_t k,
                       err *e)
{
    const cuda_options gpu = {
        .device = l->gpu[k], .limit_bytes = (uint64_t)opt->gpu_mb << 20, .card = opt->card};
    if (!opt->plan_gpu_mb[0])
        return device_open_cuda(d, &gpu, e);
    status st = device_plan_cuda(d, opt->card, (uint64_t)opt->plan_gpu_mb[l->gpu[k]] << 20, e);
    if (!st)
        (*d)->number = l->gpu[k];
    return st;
}

static void keep_passed_over(carat_model *m, int32_t gpu, const char *why)
{
    size_t at = strlen(m->passed_over);
    snprintf(m->passed_over + at, sizeof m->passed_over - at, "; GPU %d is passed over: %.120s",
             gpu, why);
}

/* Opening GPU k failed. True: the list is open, and another took its place, or it has one less. */
static bool pass_over(carat_model *m, stage_list *l, int32_t k, status failure, const char *why)
{
    const int32_t n_gpus = l->open && failure != E_MEMORY ? device_count_cuda() : 0;
    if (!n_gpus) /* E_MEMORY: the host lacks memory, for another GPU too */
        return false;
    keep_passed_over(m, l->gpu[k], why);
    if (l->next < n_gpus && l->next < CARAT_GPUS_MAX) {
        l->gpu[k] = l->next++;
        return true;
    }
    l->n--;
    memmove(l->gpu + k, l->gpu + k + 1, (size_t)(l->n - k) * sizeof *l->gpu);
    return true;
}

/* Opens the last GPU of the list. Those of an open list that cannot be opened are passed over.
 * Leaves m->dev NULL if the model shall run on the CPU; device_why has the reason: where GPUs were
 * tried, that of the first. */
static status choose_gpu(carat_model *m, const carat_model_options *opt, stage_list *l, err *e)
{
    bool forced = is_named(opt) || lists_gpus(opt) || opt->plan_gpu_mb[0];
    int32_t number;
    err why = {0};
    if (is_stand_in(opt) || (is_named(opt) && !strcmp(opt->device, "cpu"))) {
        because(m, "it was asked for");
        return OK;
    }
    if (is_named(opt) && !parse_gpu(opt->device, &number))
        return err_set(e, E_ARG,
                       "device '%.40s': expected auto, cpu, cuda or cuda:N (for tests also cpu,cpu, "
                       "with at most %d)",
                       opt->device, CARAT_GPUS_MAX);
    if (opt->plan_gpu_mb[0] && !opt->vocab_only)
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
    if (for_cpu || (opt->vocab_only && !forced && !opt->gpus))
        return OK;
    status st = open_gpu(&m->dev, opt, l, l->n - 1, &why);
    for (err again = why; st && pass_over(m, l, l->n - 1, st, again.text) && l->n;) {
        again = (err){0};
        st = open_gpu(&m->dev, opt, l, l->n - 1, &again);
        why = st == E_MEMORY ? again : why;
    }
    if (st && (forced || st == E_MEMORY)) /* the host lacks memory, for a CPU too */
        return err_set(e, st, "%s", why.text);
    if (st)
        because(m, "%.250s", why.text);
    else
        because(m, opt->plan_gpu_mb[0] ? "a plan for it was asked for"
                   : forced            ? "it was asked for"
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

status open_draft_device(carat_model *m, const carat_model_options *opt, err *e)
{
    const char *name = opt->draft_device;
    const cpu_options cpu = cpu_wanted(opt);
    stage_list l = {.n = 1};
    int32_t n_planned = 0;
    err why = {0};
    status st;
    if (!strcmp(name, "cpu"))
        return device_open_cpu(&m->draft_dev, &cpu, e);
    if (!parse_gpu(name, &l.gpu[0]))
        return err_set(e, E_ARG, "--draft-device '%.40s': expected cpu, cuda or cuda:N", name);
    while (n_planned < CARAT_GPUS_MAX && opt->plan_gpu_mb[n_planned])
        n_planned++;
    if (n_planned && l.gpu[0] >= n_planned)
        return err_set(e, E_ARG, "--draft-device %.40s: the plan has %d GPU%s, counted from 0", name,
                       n_planned, n_planned > 1 ? "s" : "");
    st = open_gpu(&m->draft_dev, opt, &l, 0, &why);
    if (!st && m->draft_dev->limit_waits)
        m->draft_dev->limit_waits(m->draft_dev);
    return st ? err_set(e, st, "--draft-device %.40s: %.200s", name, why.text) : OK;
}

static status open_cpu(carat_model *m, const carat_model_options *opt, err *e)
{
    const cpu_options cpu = cpu_wanted(opt);
    status st = device_open_cpu(&m->dev, &cpu, e);
    return st ? st : wrap(m, opt, e);
}

/* All devices are open. */
static status place_ranks(carat_model *m, int32_t n, err *e)
{
    status st = OK;
    for (int32_t i = 1; i < n && !st; i++) {
        device *d = model_device(m, i);
        st = d->agree ? d->agree(d, m->dev, e) : OK;
    }
    return st ? st : model_split(&m->core, m->other, n, e);
}

/* The devices of the list beside the main one, which is open. */
static status open_others(carat_model *m, const carat_model_options *opt, stage_list *l, err *e)
{
    const cpu_options cpu = cpu_wanted(opt);
    status st = OK;
    for (int32_t k = 0; k < l->n - 1 && !st;) {
        err why = {0};
        st = is_stand_in(opt) ? device_open_cpu(&m->other[k], &cpu, &why)
                              : open_gpu(&m->other[k], opt, l, k, &why);
        if (!st) {
            m->n_sides++;
            k++;
        } else if (pass_over(m, l, k, st, why.text)) {
            st = OK;
        } else {
            *e = why;
        }
    }
    m->n_stages = l->n;
    return st;
}

static status open_stages(carat_model *m, const carat_model_options *opt, stage_list *l, err *e)
{
    status st = open_others(m, opt, l, e);
    if (!st && by_tensors(opt))
        return place_ranks(m, l->n, e);
    for (int32_t k = 0; k < l->n && !st; k++)
        model_device(m, stage_side(m, k))->n_ahead = l->n + 1;
    if (!st && opt->gpu_split)
        st = stages_read_split(m, opt->gpu_split, e);
    return st || l->n == 1 ? st : stages_place(m, e);
}

/* "; GPU 0 is passed over: ..; 2 devices share the layers; cpu (avx2, 2 threads) has the first 3
 * layers and all experts". Where no GPU is taken, device_why is the reason of the first. */
static void tell_division(carat_model *m)
{
    const cpu_part b = m->beside;
    size_t at = strlen(m->device_why), cap = sizeof m->device_why;
    if (device_bare(m->dev)->kind == DEVICE_CUDA)
        snprintf(m->device_why + at, cap - at, "%s", m->passed_over);
    at = strlen(m->device_why);
    if (m->n_stages > 1)
        snprintf(m->device_why + at, cap - at, "; %d devices share %s", m->n_stages,
                 m->core.n_ranks ? "every layer" : "the layers");
    at = strlen(m->device_why);
    if (!b.n_layers && !b.experts)
        return;
    snprintf(m->device_why + at, cap - at, "; %.60s has %s%.0d%s%s",
             model_device(m, m->n_stages)->name, b.n_layers ? "the first " : "", b.n_layers,
             b.n_layers ? " layers" : "",
             !b.experts   ? ""
             : b.n_layers ? " and all experts"
                          : "all experts");
}

status divide_model(carat_model *m, const carat_model_options *opt, cpu_part part, err *e)
{
    const cpu_options cpu = cpu_wanted(opt);
    int32_t n = m->core.n_layer;
    status st;
    if (part.n_layers < 0 || part.n_layers >= n)
        return err_set(e, E_ARG,
                       "%d layers on the GPU (--gpu-layers): %s has %d, expected 1 to all of them",
                       n - part.n_layers, m->core.name, n);
    if (m->n_sides == m->n_stages) {
        if ((st = device_open_cpu(&m->other[m->n_sides - 1], &cpu, e)))
            return st;
        m->n_sides++;
    }
    m->beside = part;
    return stages_place(m, e);
}

void undivide_model(carat_model *m)
{
    err none = {0};
    m->beside = (cpu_part){0};
    if (m->n_sides == m->n_stages)
        return;
    m->n_sides--;
    stages_place(m, &none); /* as it was */
    device_close(m->other[m->n_sides - 1]);
    m->other[m->n_sides - 1] = NULL;
}

/* m->dev and the other stages are open. */
static status divide(carat_model *m, const carat_model_options *opt, err *e)
{
    cpu_part part = {.experts = opt->cpu_experts};
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
        part.n_layers = m->core.n_layer - opt->gpu_layers;
    return part.n_layers || part.experts ? divide_model(m, opt, part, e) : OK;
}

/* The session that the options describe, and without them a short one. */
static status described_shape(const carat_model *m, const carat_model_options *opt,
                              session_shape *s, err *e)
{
    carat_session_options so = {.n_ctx = N_CTX_MIN, .chunk = m->core.encoder ? 0 : 1};
    if (m->core.n_ctx_train < N_CTX_MIN)
        so.n_ctx = m->core.n_ctx_train;
    return plan_shape(m, opt->session ? opt->session : &so,
                      opt->n_sessions > 1 ? opt->n_sessions : 1, 0, s, e);
}

/* The layers of stages, where no candidate of fit.c decides. */
static status share_layers(carat_model *m, const carat_model_options *opt, err *e)
{
    carat_memory_plan plan;
    session_shape s;
    status st = m->n_stages > 1 ? described_shape(m, opt, &s, e) : OK;
    return st || m->n_stages == 1 ? st : stages_plan(m, &s, &plan, e);
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

/* ---- Which GPUs ----------------------------------------------------------------------------- */

/* What a choice of GPUs gives up, and a list of them in the order of their numbers. */
typedef struct gpu_choice {
    stage_list l;
    carat_fit level;
    int32_t n_ctx;
} gpu_choice;

static bool is_better(const gpu_choice *a, const gpu_choice *b)
{
    return a->level < b->level ||
           (a->level == b->level && a->level < CARAT_FIT_EXPERTS && a->n_ctx > b->n_ctx);
}

static void close_devices(carat_model *m)
{
    experts_free(m);
    m->fit = (model_fit){0};
    m->beside = (cpu_part){0};
    for (int32_t i = 0; i < PASS_SIDES_MAX - 1; i++) {
        device_close(m->other[i]);
        m->other[i] = NULL;
    }
    device_close(m->dev);
    m->dev = NULL;
    m->n_sides = m->n_stages = 1;
}

/* Opens these GPUs. m->dev NULL: they cannot be used, and device_why says why. */
static status open_gpus(carat_model *m, const carat_model_options *opt, stage_list *l, err *e)
{
    status st = choose_gpu(m, opt, l, e);
    if (!st && m->dev)
        st = open_stages(m, opt, l, e);
    return st;
}

/* What a choice gives up, and the free memory of its last GPU. All devices are closed before. */
static status try_gpus(carat_model *m, const carat_model_options *opt, gpu_choice *c,
                       uint64_t *n_bytes, err *e)
{
    err why = {0};
    close_devices(m);
    c->level = CARAT_FIT_LAYERS;
    c->n_ctx = 0;
    status st = open_gpus(m, opt, &c->l, &why);
    if ((st || !m->dev) && c->l.n == 1)
        keep_passed_over(m, c->l.gpu[0], st ? why.text : m->device_why);
    if (!st && m->dev) {
        *n_bytes = m->dev->available_bytes(m->dev);
        st = fit_probe(m, opt, &c->level, &c->n_ctx, &why);
    }
    /* A GPU that others use (E_IO: no room to open it), or too few layers for so many, is no
     * failure: there are other choices. */
    return st == E_MEMORY || st == E_ARG || st == E_UNSUPPORTED || st == E_IO || !st
               ? OK
               : err_set(e, st, "%s", why.text);
}

/* Of the GPUs that were tried, those that have been passed over are not tried again. */
static void forget_lost(uint64_t *n_bytes, const stage_list *tried, const stage_list *left)
{
    for (int32_t i = 0; i < tried->n; i++) {
        bool lost = true;
        for (int32_t k = 0; k < left->n; k++)
            lost &= tried->gpu[i] != left->gpu[k];
        if (lost)
            n_bytes[tried->gpu[i]] = 0;
    }
}

/* The n GPUs with the most memory. */
static stage_list largest(const uint64_t *n_bytes, int32_t n_gpus, int32_t n)
{
    stage_list l = {0};
    for (int32_t i = 0; i < n_gpus; i++) {
        int32_t larger = 0;
        for (int32_t k = 0; k < n_gpus; k++)
            larger += n_bytes[k] > n_bytes[i] || (n_bytes[k] == n_bytes[i] && k < i);
        if (larger < n && n_bytes[i])
            l.gpu[l.n++] = i;
    }
    return l;
}

/* The first GPU is open; those before it cannot be. If the model does not fit it whole, the others
 * are tried, then two of them, and more. If it fits no number of them, it takes as many as it can
 * be divided between: a mixture has slots for experts on each. Leaves the chosen ones open. */
static status choose_gpus(carat_model *m, const carat_model_options *opt, stage_list *l, err *e)
{
    uint64_t n_bytes[CARAT_GPUS_MAX] = {0};
    int32_t n_gpus = opt->plan_gpu_mb[0] ? 0 : device_count_cuda();
    gpu_choice best = {.l = *l}, c;
    while (n_gpus < CARAT_GPUS_MAX && opt->plan_gpu_mb[n_gpus])
        n_gpus++;
    n_gpus = n_gpus < CARAT_GPUS_MAX ? n_gpus : CARAT_GPUS_MAX;
    if (n_gpus < 2)
        return OK;
    const int32_t first = l->gpu[0];
    n_bytes[first] = m->dev->available_bytes(m->dev);
    status st = fit_probe(m, opt, &best.level, &best.n_ctx, e);
    int32_t most = 1; /* that can be opened together */
    for (int32_t i = first + 1; i < n_gpus && best.level && !st; i++) {
        c.l = (stage_list){.n = 1, .gpu = {i}};
        st = try_gpus(m, opt, &c, &n_bytes[i], e);
        if (!st && is_better(&c, &best))
            best = c;
    }
    for (int32_t n = 2; n <= n_gpus && best.level && !st; n++) {
        uint64_t last;
        const stage_list all = c.l = largest(n_bytes, n_gpus, n);
        if (c.l.n < n)
            break;
        c.l.open = true;
        c.l.next = n_gpus;
        st = try_gpus(m, opt, &c, &last, e);
        if (!st && is_better(&c, &best))
            best = c;
        most = c.level < CARAT_FIT_LAYERS ? c.l.n : most;
        forget_lost(n_bytes, &all, &c.l);
    }
    if (best.level >= CARAT_FIT_EXPERTS)
        best.l = largest(n_bytes, n_gpus, most);
    if (best.l.n) /* 0: no GPU says how much memory it has */
        *l = best.l;
    l->open = true; /* one that is lost meanwhile is passed over; for one alone others are tried */
    l->next = l->n > 1 ? n_gpus : l->gpu[0] + 1;
    close_devices(m);
    st = st ? st : open_gpus(m, opt, l, e);
    if (!st && !m->dev) /* another program has taken it; layers go to the CPU */
        *l = (stage_list){.n = 1};
    if (st || !m->dev)
        return st;
    if (l->n > 1)
        because(m, "the model does not fit one GPU");
    return l->n > 1 ? OK : stages_place(m, e); /* sides are as for one device */
}

static status open_split(carat_model *m, const carat_model_options *opt, err *e)
{
    stage_list l;
    bool replace = false; /* layers have been on several GPUs, and go to the CPU */
    m->n_sides = m->n_stages = 1;
    status st = experts_check_options(opt, e);
    err why = {0};
    if (st || (st = read_stages(opt, &l, e)) || (st = choose_gpu(m, opt, &l, e)))
        return st;
    if (!m->dev && !is_stand_in(opt)) /* --split tensor alone lists all GPUs */
        l = (stage_list){.n = 1};
    if (m->dev && (st = open_stages(m, opt, &l, e)))
        return st;
    if (m->dev && may_choose(opt)) {
        if ((st = choose_gpus(m, opt, &l, e)))
            return st;
        replace = !m->dev;
    }
    if (m->dev && ((st = divide(m, opt, e)) || (m->overcommit && (st = share_layers(m, opt, e)))))
        return st;
    if (m->dev && !(st = plan_check_weights(m, &why)) && !(st = fit_choose(m, opt, &why)))
        tell_division(m);
    if (m->dev && st) {
        if (is_named(opt) || lists_gpus(opt) || opt->plan_gpu_mb[0] || is_divided(opt) ||
            is_limited(opt) || m->core.n_ranks || st == E_ARG) /* a model is split once */
            return err_set(e, st, "%s", why.text);
        because(m, "%.250s", why.text);
        close_devices(m);
        l = (stage_list){.n = 1};
        replace = true;
    }
    if (m->dev)
        return OK;
    if (is_limited(opt))
        return err_set(
            e, E_ARG,
            "--gpu-mb, --experts-gpu, --experts-cpu and --experts-prefetch need a GPU, and "
            "the model is on the CPU: %s",
            m->device_why);
    if ((st = open_cpu(m, opt, e)) || (replace && (st = stages_place(m, e))) ||
        (st = open_stages(m, opt, &l, e)) || (st = divide(m, opt, e)) ||
        (st = share_layers(m, opt, e)))
        return st;
    tell_division(m);
    return opt->vocab_only ? OK : check_weights_fit(m, opt, e);
}

/* ---- Layers or tensors, by links ------------------------------------------------------------ */

enum { SUMS_OF_LAYER = 2 };    /* after attention, and after the feed-forward part */
static const double LEAST_GAIN = 1.1; /* below, other bits and slower prompts are not worth it */

/* Opens the GPUs that a tensor split would have, and measures. */
static status measure_links(carat_model *m, const carat_model_options *opt, stage_list *l,
                            link_speed *s, err *e)
{
    device *dev[CARAT_GPUS_MAX];
    status st = read_stages(opt, l, e);
    if (st || (st = choose_gpu(m, opt, l, e)))
        return st;
    if (is_stand_in(opt) && links_of_stand_ins) {
        *s = *links_of_stand_ins;
        return OK;
    }
    if (!m->dev || l->n < 2)
        return err_set(e, E_UNSUPPORTED, "there are no two GPUs");
    if ((st = open_others(m, opt, l, e)))
        return st;
    for (int32_t i = 0; i < l->n; i++)
        dev[i] = model_device(m, i);
    return links_measure(dev, l->n, (size_t)m->core.n_embd * sizeof(float), s, e);
}

/* Of --split auto. Leaves all devices closed. */
static const char *choose_split(carat_model *m, const carat_model_options *opt, err *why)
{
    carat_model_options o = *opt;
    stage_list l;
    link_speed s;
    o.split = "tensor";
    const status st = measure_links(m, &o, &l, &s, why);
    close_devices(m);
    m->passed_over[0] = 0;
    if (st)
        return "layers";
    const double gain = links_gain(&s, l.n, (double)m->core.active_bytes,
                                   SUMS_OF_LAYER * m->core.n_layer);
    err_set(why, E_UNSUPPORTED,
            "a copy between GPUs takes %.1f us and memory is read at %.0f GB/s, so a token by "
            "tensors is predicted to be %.2f times as fast",
            s.copy_s * 1e6, s.bytes_s * 1e-9, gain);
    return gain >= LEAST_GAIN ? "tensor" : "layers";
}

void tell_split(carat_model *m, const char *split, const char *why)
{
    size_t at = strlen(m->device_why);
    snprintf(m->device_why + at, sizeof m->device_why - at, "; --split auto is %s: %.250s", split,
             why);
}

status open_device(carat_model *m, const carat_model_options *opt, err *e)
{
    carat_model_options o = *opt;
    err why = {0};
    if (!split_is_open(opt))
        return open_split(m, opt, e);
    if (opt->plan_gpu_mb[0])
        return err_set(e, E_ARG,
                       "--split auto measures links between GPUs that are here, and a plan is for "
                       "others: expected --split layers or tensor");
    o.split = choose_split(m, opt, &why);
    status st = open_split(m, &o, e);
    if (!st)
        tell_split(m, o.split, why.text);
    return st;
}
