/* inspect_gpu.c - carat inspect --gpu: the plan of `carat run` on GPUs of given sizes, which need
 * not be here. The file's header is read, no weight is. The planner is the one that opens models
 * (engine/fit.c); this file reads sizes and prints.
 */
#include "apps/device_options.h"
#include "apps/inspect_int.h"
#include "apps/kv_options.h"
#include "apps/named.h"
#include "apps/term.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    SIZES_MAX = 32,
    KINDS = 32,
    GIB_MAX = 4096,
    /* MiB that driver and context take of a card, beside a part of its memory for page tables and
     * error correction: an RTX 3090 leaves 23887 of 24576, an RTX 3060 11911 of 12288. */
    CARD_TAKEN = 256,
    CARD_PART = 64
};

/* GPUs that share a model. */
typedef struct gpu_size {
    char name[64];
    int32_t n;
    int64_t mib[CARAT_GPUS_MAX]; /* free for programs */
} gpu_size;

static int64_t mib_of(const gpu_size *s)
{
    int64_t sum = 0;
    for (int32_t i = 0; i < s->n; i++)
        sum += s->mib[i];
    return sum;
}

/* "24GB": a card of that size, with nothing else on it; "23936MiB": so much free memory. Else 0. */
static int64_t read_size(const char *text, size_t n)
{
    char word[24], *end;
    if (n >= sizeof word)
        return 0;
    snprintf(word, sizeof word, "%.*s", (int)n, text);
    bool number = strspn(word, "0123456789.") == strcspn(word, "gGmM"); /* no 0x1, no 1e9 */
    double v = number && *word >= '0' && *word <= '9' ? strtod(word, &end) : -1;
    bool free_memory = v > 0 && (!strcasecmp(end, "mib") || !strcasecmp(end, "mb"));
    bool card = v > 0 && (!*end || !strcasecmp(end, "gb") || !strcasecmp(end, "gib") ||
                          !strcasecmp(end, "g"));
    double mib = free_memory ? v : card ? v * 1024 - CARD_TAKEN - v * 1024 / CARD_PART : 0;
    return mib >= 1 && mib <= (double)GIB_MAX * 1024 ? (int64_t)mib : 0;
}

/* One of these, or several with + between: "24GB+12GB". */
static status read_sum(const char *text, size_t n, gpu_size *to, err *e)
{
    size_t at = 0;
    *to = (gpu_size){0};
    snprintf(to->name, sizeof to->name, "%.*s", (int)n, text);
    for (bool more = n < sizeof to->name; more && to->n < CARAT_GPUS_MAX; at++) {
        size_t len = strcspn(to->name + at, "+");
        if (!(to->mib[to->n] = read_size(to->name + at, len)))
            break;
        to->n++;
        at += len;
        if (!to->name[at])
            return OK;
    }
    return err_set(e, E_ARG,
                   "--gpu '%.40s': expected sizes such as 24GB, of a card, or 23936MiB, of free "
                   "memory, with commas between; 24GB+12GB are two that share a model",
                   text);
}

static status read_sizes(const char *text, gpu_size *to, int *n, err *e)
{
    for (*n = 0;; text++) {
        size_t len = strcspn(text, ",");
        if (*n == SIZES_MAX)
            return err_set(e, E_ARG, "--gpu: more than %d sizes", SIZES_MAX);
        status st = read_sum(text, len, &to[*n], e);
        if (st)
            return st;
        ++*n;
        text += len;
        if (!*text)
            return OK;
    }
}

/* A plan; of one that fails *why says how. */
typedef struct gpu_plan {
    carat_model *m; /* NULL: there is none */
    carat_model_info info;
    carat_memory_plan plan;
    carat_kv_kind kind[KINDS];
    int32_t n_kinds;
    carat_expert_info experts;
    bool shared; /* experts says which are on the GPU */
    err why;
    int64_t least_mib; /* that would do, where there is no plan; 0: none would */
} gpu_plan;

static void plan_for(gpu_plan *p, const char *path, const carat_model_options *opt,
                     const carat_session_options *so, const gpu_size *size)
{
    carat_model_options mo = *opt;
    mo.vocab_only = true;
    mo.session = so;
    mo.planned = NULL;
    memcpy(mo.plan_gpu_mb, size->mib, sizeof size->mib);
    *p = (gpu_plan){0};
    if (named_open(path, &mo, &p->m, &p->why))
        return;
    carat_model_get_info(p->m, &p->info);
    p->shared = carat_experts(p->m, &p->experts);
    if (!carat_plan(p->m, so, &p->plan, &p->why))
        p->n_kinds = carat_plan_kv(p->m, so, p->kind, KINDS, &p->why);
}

/* The least memory that has a plan, to 16 MiB, of GPUs whose sizes have the same proportion. A plan
 * may leave all layers but one to the CPU. */
static int64_t least_for(const char *path, const carat_model_options *opt,
                         const carat_session_options *so, const gpu_size *too_little)
{
    int64_t low = mib_of(too_little), high = low;
    while (high - low > 16 || high == low) {
        bool growing = high == low;
        int64_t mib = growing ? 2 * low : low + (high - low) / 2;
        gpu_size size = *too_little;
        gpu_plan p;
        for (int32_t i = 0; i < size.n; i++) {
            size.mib[i] = too_little->mib[i] * mib / mib_of(too_little);
            if (size.mib[i] > GIB_MAX * (int64_t)1024)
                return 0;
        }
        plan_for(&p, path, opt, so, &size);
        carat_model_close(p.m);
        if (p.why.status && p.why.status != E_MEMORY)
            return 0;
        if (!p.why.status)
            high = mib;
        else if (growing)
            low = high = mib;
        else
            low = mib;
    }
    return high;
}

static const char *choice_of(const gpu_plan *p)
{
    static const char *const names[] = {[CARAT_FIT_WHOLE] = "whole",
                                        [CARAT_FIT_CONTEXT] = "context",
                                        [CARAT_FIT_KEYS] = "keys",
                                        [CARAT_FIT_EXPERTS] = "experts",
                                        [CARAT_FIT_LAYERS] = "layers"};
    return names[p->info.fit];
}

static void put_plan(const gpu_plan *p, const gpu_size *size)
{
    printf("%s: %" PRId64 " MiB free\n", size->name, mib_of(size));
    if (p->why.status) {
        fputs("  no plan: ", stdout);
        term_put(stdout, p->why.text, strlen(p->why.text));
        putchar('\n');
        if (p->least_mib)
            printf("  the least free memory of %s that ha%s a plan is %" PRId64 " MiB, %" PRId64
                   " more; without one, the CPU computes the model\n",
                   size->n > 1 ? "such GPUs" : "a GPU", size->n > 1 ? "ve" : "s", p->least_mib,
                   p->least_mib - mib_of(size));
        return;
    }
    bool longest = p->plan.n_ctx >= p->info.n_ctx_train;
    printf("  %s%s\n", *p->info.fit_text ? p->info.fit_text : "everything fits",
           !*p->info.fit_text && longest ? ", with the longest context" : "");
    device_print_lengths(stdout, &p->plan);
    device_print_plan(stdout, &p->plan);
    for (int32_t i = 0; i < p->plan.n_devices; i++) {
        carat_expert_info on;
        if (p->plan.n_devices > 1 && carat_experts_on(p->m, i, &on))
            printf("  layers %" PRId32 " to %" PRId32 ": %" PRId32 " of %" PRId32
                   " experts (%.1f of %.1f MiB) on GPU %" PRId32 " of %" PRId32 "\n",
                   p->plan.device[i].first_layer,
                   p->plan.device[i].first_layer + p->plan.device[i].n_layers - 1, on.n_slots,
                   on.n_experts, (double)on.slot_bytes * 0x1p-20, (double)on.all_bytes * 0x1p-20,
                   i + 1, size->n);
    }
    if (p->shared)
        printf("  the host needs %.1f MiB for copies of all experts\n",
               (double)p->experts.host_bytes * 0x1p-20);
    kv_print_kinds(stdout, p->kind, p->n_kinds < KINDS ? p->n_kinds : KINDS);
}

static json_t *plan_json(const gpu_plan *p, const gpu_size *size)
{
    if (p->why.status)
        return json_pack("{s:s, s:I, s:o, s:o}", "gpu", size->name, "free_mib",
                         (json_int_t)mib_of(size), "problem",
                         json_lossy_text(p->why.text, strlen(p->why.text)), "least_mib",
                         p->least_mib ? json_integer((json_int_t)p->least_mib) : json_null());
    carat_device_plan sum = {0}, *d = &sum; /* of the GPUs, which come before a CPU */
    for (int32_t i = 0; i < size->n; i++) {
        const carat_device_plan *s = &p->plan.device[i];
        sum.n_layers = s->n_layers == p->info.n_layer ? s->n_layers : sum.n_layers + s->n_layers;
        sum.total_bytes += s->total_bytes;
        sum.weight_bytes += s->weight_bytes;
        sum.expert_bytes += s->expert_bytes;
        sum.kv_swa_bytes += s->kv_swa_bytes + s->kv_global_bytes + s->recurrent_bytes;
        sum.scratch_bytes += s->scratch_bytes;
    }
    for (int32_t i = 0; i < p->plan.n_devices; i++) /* a drafter's own may be a CPU */
        sum.draft_bytes += p->plan.device[i].draft_bytes;
    return json_pack(
        "{s:s, s:I, s:s, s:s, s:i, s:s, s:i, s:i, s:i, s:i, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "gpu",
        size->name, "free_mib", (json_int_t)mib_of(size), "given_up", choice_of(p), "text",
        p->info.fit_text, "context", (int)p->plan.n_ctx, "keys", p->info.fit_kv, "gpu_layers",
        (int)d->n_layers, "layers", (int)p->info.n_layer, "expert_slots",
        p->shared ? (int)p->experts.n_slots : 0, "experts",
        p->shared ? (int)p->experts.n_experts : 0, "total_bytes", (json_int_t)d->total_bytes,
        "weight_bytes", (json_int_t)d->weight_bytes, "expert_bytes", (json_int_t)d->expert_bytes,
        "kv_bytes", (json_int_t)d->kv_swa_bytes, "scratch_bytes", (json_int_t)d->scratch_bytes,
        "draft_bytes", (json_int_t)d->draft_bytes,
        "active_bytes_per_token", (json_int_t)p->info.active_bytes_per_token);
}

status inspect_gpus(const char *path, const char *sizes, const carat_model_options *opt,
                    const carat_session_options *so, bool json, err *e)
{
    gpu_size size[SIZES_MAX];
    int n, n_plans = 0;
    status st = read_sizes(sizes, size, &n, e);
    gpu_plan *p = st ? NULL : malloc(sizeof *p);
    json_t *list = json && !st ? json_array() : NULL;
    if (!st && (!p || (json && !list)))
        st = err_memory(e, "a plan", sizeof *p);
    for (int i = 0; i < n && !st; i++) {
        plan_for(p, path, opt, so, &size[i]);
        if (p->why.status == E_MEMORY)
            p->least_mib = least_for(path, opt, so, &size[i]);
        if (!p->why.status)
            n_plans++;
        if (p->why.status == E_FORMAT || p->why.status == E_IO || p->why.status == E_ARG)
            st = err_set(e, p->why.status, "%s", p->why.text);
        else if (json && json_array_append_new(list, plan_json(p, &size[i])))
            st = err_memory(e, "the report", 0);
        else if (!json)
            put_plan(p, &size[i]);
        carat_model_close(p->m);
    }
    if (!st && json && !json_write(stdout, list, JSON_INDENT(1)))
        st = err_set(e, E_IO, "cannot write to standard output");
    if (!st && !n_plans)
        st = err_set(e, E_MEMORY, "%s has no plan for %s", path,
                     n > 1         ? "any of these GPUs"
                     : size->n > 1 ? "these GPUs"
                                   : "this GPU");
    json_decref(list);
    free(p);
    return st;
}
