/* experts.c - see experts.h. backend/experts.h says how a device works with experts that it does
 * not hold; expert_place.c divides a budget between layers; expert_file.c keeps the counts.
 */
#include "engine/experts.h"
#include "engine/expert_file.h"
#include "engine/expert_place.h"
#include "backend/experts.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/pool.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    ROOM_CTX = 8192,   /* tokens for which `auto` leaves room, if no context was asked for */
    KEY_BYTES = 65536, /* of the first layer's experts, by which models are told apart */
    UNGUESSED = 3,     /* expert_place.h: the worth of a hit in a layer whose misses come late */
    /* What `auto` means for experts that are fetched early: one for each layer between a guess and
     * its use. Their thread polls, and so do those that run passes. */
    PREFETCH_AUTO = 3,
    PREFETCH_CORES = 4
};

struct model_pool {
    int32_t n;
    expert_layer *layer;
    place_layer *place;
    expert_counts *counts; /* of all runs; count_run: of this one, as last taken */
    uint64_t *count, *count_run;
    uint64_t device_bytes, host_bytes, slot_bytes, all_bytes, key;
    char *path; /* NULL: the model is in memory */
    bool open;
    bool helped; /* the CPU computes some of the experts that the GPU does not hold, or copies some
                  */
    bool optional; /* no option asked for that: the model opens without it where it is impossible */
    int32_t n_prefetched; /* experts on their way before a layer chooses */
    carat_log_fn log;
    void *log_user;
    expert_help help;
    char isa[16]; /* help's, which outlives the options */
};

static double mib(uint64_t n)
{
    return (double)n * 0x1p-20;
}

/* ---- What was asked for --------------------------------------------------------------------- */

typedef enum want_kind { WANT_AUTO, WANT_PART, WANT_BYTES } want_kind;
typedef struct want {
    want_kind kind;
    double part;    /* of all experts */
    uint64_t bytes; /* for slots, stages and tables */
} want;

/* A number, of which *percent says whether a % follows; negative: it is none. */
static double read_number(const char *text, bool *percent)
{
    char *end = NULL;
    bool digit = text[0] >= '0' && text[0] <= '9' &&
                 strspn(text, "0123456789.%") == strlen(text); /* strtod reads 0x1 and 1e3 too */
    double v = digit ? strtod(text, &end) : -1;
    *percent = digit && !strcmp(end, "%");
    return !digit || (*end && !*percent) ? -1 : *percent ? v / 100 : v;
}

static status parse_want(const char *text, want *w, err *e)
{
    bool percent, is_auto = !text || !strcmp(text, "auto");
    double v = is_auto ? 1 : read_number(text, &percent);
    if (is_auto)
        *w = (want){WANT_AUTO, 1, 0};
    else if (!percent && !strchr(text, '.') && v >= 1 && v <= 1e9)
        *w = (want){WANT_BYTES, 0, (uint64_t)v << 20};
    else if (v >= 0 && v <= 1)
        *w = (want){WANT_PART, v, 0};
    else
        return err_set(
            e, E_ARG,
            "--experts-gpu '%.40s': expected auto, a part such as 0.5 or 50%%, or a number of MiB",
            text);
    return OK;
}

/* *help is false for "off". */
static status parse_help(const char *text, bool *help, double *part, err *e)
{
    bool percent, wanted = text && strcmp(text, "off") != 0;
    bool chosen = wanted && strcmp(text, "auto") != 0;
    double v = chosen ? read_number(text, &percent) : -1;
    if (chosen && !(v >= 0 && v <= 1))
        return err_set(e, E_ARG,
                       "--experts-cpu '%.40s': expected off, auto, or a part such as 0.5 or 50%%",
                       text);
    *help = wanted;
    *part = v;
    return OK;
}

/* *n: -1 for "auto". */
static status parse_prefetch(const char *text, int32_t *n, err *e)
{
    bool is_auto = !text || !strcmp(text, "auto");
    const char *digit = is_auto || !strcmp(text, "off") ? "0" : text;
    int32_t v = digit[0] - '0';
    if (v < 0 || v > EXPERTS_PREFETCH_MOST || digit[1])
        return err_set(e, E_ARG, "--experts-prefetch '%.40s': expected auto, off, or 1 to %d", text,
                       EXPERTS_PREFETCH_MOST);
    *n = is_auto ? -1 : v;
    return OK;
}

status experts_check_options(const carat_model_options *opt, err *e)
{
    want w = {0};
    bool help = false;
    double part = -1;
    int32_t n_prefetched = 0;
    status st = parse_help(opt->experts_cpu, &help, &part, e);
    st = st ? st : parse_prefetch(opt->experts_prefetch, &n_prefetched, e);
    if (st)
        return st;
    if (opt->gpu_mb < 0)
        return err_set(e, E_ARG, "--gpu-mb %lld: expected 1 MiB or more", (long long)opt->gpu_mb);
    if (opt->experts_gpu && strcmp(opt->experts_gpu, "auto") && opt->cpu_experts)
        return err_set(e, E_ARG,
                       "--cpu-experts leaves all experts to the CPU: it cannot be combined with "
                       "--experts-gpu");
    if (help && opt->cpu_experts)
        return err_set(e, E_ARG,
                       "--cpu-experts leaves all experts to the CPU: it cannot be combined with "
                       "--experts-cpu");
    if (n_prefetched > 0 && opt->cpu_experts)
        return err_set(e, E_ARG,
                       "--cpu-experts leaves all experts to the CPU: it cannot be combined with "
                       "--experts-prefetch");
    return parse_want(opt->experts_gpu, &w, e);
}

/* ---- The model's experts -------------------------------------------------------------------- */

/* Can layer i's choice be guessed from what an earlier router reads? */
static bool guessable(const model_experts *l, const model_experts *first)
{
    return l->router && l->router_in && l->router->type == NUM_F32 &&
           l->router->n_in == first->router->n_in && l->n_experts == first->n_experts;
}

static int32_t prefetch_of(const carat_model *m, int32_t wanted)
{
    bool all = m->plan_only || pool_default_threads() >= PREFETCH_CORES;
    for (int32_t i = 0; i < m->core.n_expert_layers && wanted < 0; i++)
        all = all && guessable(&m->core.experts[i], &m->core.experts[0]);
    return wanted >= 0 ? wanted : all ? (int32_t)PREFETCH_AUTO : 0;
}

static status take_layers(model_pool *x, const carat_model *m, int32_t n_prefetched, err *e)
{
    size_t n_all = 0, at = 0;
    x->n = m->core.n_expert_layers;
    for (int32_t i = 0; i < x->n; i++)
        n_all += (size_t)m->core.experts[i].n_experts;
    x->layer = mem_calloc((size_t)x->n, sizeof *x->layer);
    x->place = mem_calloc((size_t)x->n, sizeof *x->place);
    x->counts = mem_calloc((size_t)x->n, sizeof *x->counts);
    x->count = mem_calloc(n_all, sizeof *x->count);
    x->count_run = mem_calloc(n_all, sizeof *x->count_run);
    if (!x->layer || !x->place || !x->counts || !x->count || !x->count_run)
        return err_memory(e, "the list of experts", n_all * 16);
    for (int32_t i = 0; i < x->n; i++) {
        const model_experts *from = &m->core.experts[i];
        expert_layer *l = &x->layer[i];
        *l = (expert_layer){.n_experts = from->n_experts,
                            .n_slots = from->n_experts,
                            .n_used = from->n_used,
                            .count = x->count + at,
                            .router = from->router,
                            .router_in = from->router_in,
                            .router_bias = from->router_bias,
                            .n_prefetched = n_prefetched};
        l->part[l->n_parts++] = from->gate;
        if (from->up)
            l->part[l->n_parts++] = from->up;
        l->part[l->n_parts++] = from->down;
        x->counts[i] = (expert_counts){from->il, from->n_experts, x->count + at};
        x->place[i] =
            (place_layer){.n_experts = from->n_experts,
                          .n_used = from->n_used,
                          .bytes = m->dev->experts->expert_bytes(m->dev, l),
                          .worth = l->n_prefetched && i < EXPERTS_PREFETCH_AHEAD ? UNGUESSED : 1,
                          .count = x->count + at};
        at += (size_t)from->n_experts;
    }
    return OK;
}

/* Models of one shape and name may differ in their weights alone. */
static uint64_t key_of(const carat_model *m)
{
    const weight *w = m->core.experts[0].gate;
    uint64_t part[3] = {hash64(w->data, w->n_bytes < KEY_BYTES ? w->n_bytes : KEY_BYTES),
                        m->core.file.data_bytes, hash64(m->core.name, strlen(m->core.name))};
    return hash64(part, sizeof part);
}

/* The counts of earlier runs; zeros if there are none. */
static status read_counts(model_pool *x, carat_model *m, const carat_model_options *opt, err *e)
{
    const char *path = m->core.file.path;
    err why = {0};
    x->key = key_of(m);
    if (!m->core.file.part || !path)
        return OK;
    size_t n = strlen(path) + sizeof ".experts";
    if (!(x->path = mem_alloc(n)))
        return err_memory(e, path, n);
    snprintf(x->path, n, "%s.experts", path);
    status st = expert_file_read(x->path, x->key, x->counts, x->n, &why);
    if (st && st != E_IO && opt->log)
        opt->log(opt->log_user, why.text);
    if (st == E_FORMAT) { /* it may be of use to someone, so it is not replaced */
        mem_free(x->path);
        x->path = NULL;
    }
    return OK;
}

/* ---- The choice ----------------------------------------------------------------------------- */

/* The main device's plan for the session that will run, all experts resident. */
static status plan_whole(const carat_model *m, const carat_model_options *opt,
                         carat_device_plan *plan, err *e)
{
    static const carat_session_options none;
    carat_session_options so = opt->session ? *opt->session : none;
    carat_memory_plan all;
    session_shape shape;
    if (!so.n_ctx && !m->fit.trying)
        so.n_ctx = m->core.n_ctx_train < ROOM_CTX ? m->core.n_ctx_train : ROOM_CTX;
    status st = plan_shape(m, &so, opt->n_sessions > 1 ? opt->n_sessions : 1, 0, &shape, e);
    if (!st)
        st = plan_costs(m, &shape, NULL, &all, e);
    if (!st)
        *plan = all.device[PASS_MAIN];
    return st;
}

/* Slots within a budget that is for stages and tables too. Fewer bytes for slots may mean larger
 * stages, so the bytes for slots are tried until all of the budget is used, or nearly. */
static status place_within(model_pool *x, const device *d, uint64_t budget, err *e)
{
    uint64_t for_slots = budget, used;
    status st;
    for (int round = 0; round < 32; round++) {
        if ((st = expert_place(x->place, x->n, for_slots, &used, e)))
            return st;
        for (int32_t i = 0; i < x->n; i++)
            x->layer[i].n_slots = x->place[i].n_slots;
        x->slot_bytes = used;
        x->device_bytes = d->experts->bytes(d, x->layer, x->n);
        if (x->device_bytes <= budget)
            return OK;
        uint64_t over = x->device_bytes - budget;
        if (used <= expert_place_least(x->place, x->n))
            break;
        for_slots = used > over ? used - over : 0;
    }
    return OK; /* the caller compares */
}

static status too_few(const carat_model *m, const model_pool *x, uint64_t budget, const char *whose,
                      err *e)
{
    uint64_t least = expert_place_least(x->place, x->n);
    return err_set(
        e, E_MEMORY,
        "%s: %.1f MiB for experts%s are too few: expected at least %.1f MiB (%.1f for the experts "
        "of one token, %.1f for stages and tables); all experts take %.1f MiB",
        m->core.name, mib(budget), whose, mib(x->device_bytes), mib(least),
        mib(x->device_bytes - least), mib(x->all_bytes));
}

static status place(carat_model *m, model_pool *x, const carat_model_options *opt, want w, err *e)
{
    carat_device_plan plan;
    uint64_t budget = w.bytes;
    char whose[160] = "";
    status st;
    x->all_bytes = expert_place_all(x->place, x->n);
    x->host_bytes = m->dev->experts->host_bytes(m->dev, x->layer, x->n);
    x->slot_bytes = x->all_bytes;
    if (w.kind == WANT_PART && w.part < 1) {
        uint64_t slots = (uint64_t)(w.part * (double)x->all_bytes);
        if ((st = expert_place(x->place, x->n, slots, &x->slot_bytes, e)))
            return st;
        for (int32_t i = 0; i < x->n; i++)
            x->layer[i].n_slots = x->place[i].n_slots;
        x->device_bytes = m->dev->experts->bytes(m->dev, x->layer, x->n);
        return slots < expert_place_least(x->place, x->n) ? too_few(m, x, slots, "", e) : OK;
    }
    if (w.kind == WANT_PART || (w.kind == WANT_BYTES && w.bytes >= x->all_bytes))
        return OK;
    if (w.kind == WANT_AUTO) {
        m->experts = NULL; /* whose chunks are longer */
        st = plan_whole(m, opt, &plan, e);
        m->experts = x;
        if (st || !plan.available_bytes || plan.total_bytes <= plan.available_bytes ||
            (st = plan_whole(m, opt, &plan, e)))
            return st;
        uint64_t other = plan.total_bytes;
        for (int32_t i = 0; i < x->n; i++)
            for (int32_t k = 0; k < x->layer[i].n_parts; k++)
                other -= m->dev->weight_bytes(m->dev, x->layer[i].part[k]);
        budget = other < plan.available_bytes ? plan.available_bytes - other : 0;
        snprintf(whose, sizeof whose, " (%.1f MiB, less %.1f MiB for everything else)",
                 mib(plan.available_bytes), mib(other));
    }
    if ((st = place_within(x, m->dev, budget, e)))
        return st;
    return x->device_bytes > budget ? too_few(m, x, budget, whose, e) : OK;
}

static status check_host(const carat_model *m, const model_pool *x, err *e)
{
    uint64_t there = mem_available_bytes();
    if (m->overcommit || m->plan_only || !there || x->host_bytes <= there)
        return OK;
    return err_set(e, E_MEMORY,
                   "%s: a GPU that cannot hold all experts needs a copy of all in host memory: "
                   "%.1f MiB, and %.1f MiB are free",
                   m->core.name, mib(x->host_bytes), mib(there));
}

status experts_choose(carat_model *m, const carat_model_options *opt, err *e)
{
    want w = {0};
    bool forced = opt->experts_gpu && strcmp(opt->experts_gpu, "auto");
    status st = parse_want(opt->experts_gpu, &w, e);
    if (st)
        return st;
    bool help = false;
    double part = -1;
    int32_t prefetch = 0;
    if ((st = parse_help(opt->experts_cpu, &help, &part, e)) ||
        (st = parse_prefetch(opt->experts_prefetch, &prefetch, e)))
        return st;
    forced |= (help && part >= 0) || prefetch > 0;
    bool able = m->dev && m->dev->experts && m->n_sides == 1 && !m->core.n_ranks &&
                m->core.n_expert_layers > 0;
    if (forced && !m->core.n_expert_layers)
        return err_set(e, E_ARG,
                       "%s has no experts: --experts-gpu, --experts-cpu and --experts-prefetch are "
                       "for mixtures of "
                       "experts",
                       m->core.name);
    if (forced && !able)
        return err_set(
            e, E_ARG,
            "--experts-gpu, --experts-cpu and --experts-prefetch need the whole model on one "
            "GPU: no second one of --gpus, no --gpu-layers, no --cpu-experts, no --wrap");
    if (!able)
        return OK;
    model_pool *x = m->experts = mem_calloc(1, sizeof *x);
    if (!x)
        return err_memory(e, "experts", sizeof *x);
    int32_t n_prefetched = prefetch_of(m, prefetch);
    x->helped = help || n_prefetched;
    x->n_prefetched = n_prefetched;
    x->optional = !help && prefetch < 0;
    x->log = opt->log;
    x->log_user = opt->log_user;
    snprintf(x->isa, sizeof x->isa, "%s", opt->isa ? opt->isa : "");
    x->help = (expert_help){help ? part : 0, help ? opt->n_threads : 1, x->isa};
    if ((st = take_layers(x, m, n_prefetched, e)) || (st = read_counts(x, m, opt, e)))
        return st;
    if ((st = place(m, x, opt, w, e)))
        return st;
    if (x->slot_bytes == x->all_bytes) { /* all of them fit, and nothing else is needed */
        experts_free(m);
        return OK;
    }
    for (int32_t i = 0; i < x->n; i++)
        for (int32_t k = 0; k < x->layer[i].n_parts; k++)
            x->layer[i].part[k]->in_slots = true;
    return check_host(m, x, e);
}

uint64_t experts_bytes(const carat_model *m)
{
    return m->experts ? m->experts->device_bytes : 0;
}

/* ---- Life ----------------------------------------------------------------------------------- */

status experts_open(carat_model *m, err *e)
{
    model_pool *x = m->experts;
    status st = x ? m->dev->experts->open(m->dev, x->layer, x->n, e) : OK;
    if (x)
        x->open = !st;
    return st;
}

status experts_fill(carat_model *m, err *e)
{
    model_pool *x = m->experts;
    status st = x ? m->dev->experts->fill(m->dev, e) : OK;
    if (st || !x || !x->helped)
        return st;
    st = m->dev->experts->help(m->dev, &x->help, e);
    if (st != E_UNSUPPORTED || !x->optional)
        return st;
    x->n_prefetched = 0;
    if (x->log)
        x->log(x->log_user, e->text);
    *e = (err){0};
    return OK;
}

/* A file that cannot be written leaves the counts of earlier runs: the next run knows less. */
static void save_counts(const carat_model *m, model_pool *x)
{
    uint64_t sum = 0;
    size_t at = 0;
    for (int32_t i = 0; i < x->n; i++) {
        m->dev->experts->counts(m->dev, i, x->count_run + at);
        for (int32_t k = 0; k < x->layer[i].n_experts; k++) {
            x->count[at + (size_t)k] += x->count_run[at + (size_t)k];
            sum += x->count_run[at + (size_t)k];
        }
        at += (size_t)x->layer[i].n_experts;
    }
    if (sum && x->path)
        expert_file_write(x->path, x->key, x->counts, x->n, NULL);
}

void experts_close(carat_model *m)
{
    model_pool *x = m->experts;
    if (!x || !x->open)
        return;
    save_counts(m, x);
    m->dev->experts->close(m->dev);
    x->open = false;
}

void experts_free(carat_model *m)
{
    model_pool *x = m->experts;
    if (!x)
        return;
    experts_close(m);
    for (int32_t i = 0; i < x->n && x->layer; i++)
        for (int32_t k = 0; k < x->layer[i].n_parts; k++)
            x->layer[i].part[k]->in_slots = false;
    mem_free(x->path);
    mem_free(x->count_run);
    mem_free(x->count);
    mem_free(x->counts);
    mem_free(x->place);
    mem_free(x->layer);
    mem_free(x);
    m->experts = NULL;
}

static double wait_ms(const expert_use *u)
{
    return u->stage_ms + (u->bus_bytes_s > 0 ? (double)u->read_bytes / u->bus_bytes_s * 1e3 : 0);
}

void experts_sum(const carat_model *m, expert_sums *to)
{
    expert_use u = {0};
    *to = (expert_sums){.offload = m->experts && m->experts->open};
    if (!to->offload)
        return;
    m->dev->experts->use(m->dev, &u);
    to->n_hits = u.n_hits;
    to->n_misses = u.n_misses;
    to->n_bytes = u.read_bytes + u.swap_bytes + u.stream_bytes + u.prefetch_bytes;
    to->n_cpu = u.n_cpu;
    to->wait_ms = wait_ms(&u);
}

bool carat_experts(const carat_model *m, carat_expert_info *to)
{
    const model_pool *x = m->experts;
    pthread_mutex_t *lock = (pthread_mutex_t *)&m->pass_lock;
    expert_use use = {0};
    *to = (carat_expert_info){0};
    if (!x)
        return false;
    pthread_mutex_lock(lock);
    if (x->open)
        m->dev->experts->use(m->dev, &use);
    pthread_mutex_unlock(lock);
    *to = (carat_expert_info){.n_layers = x->n,
                              .all_bytes = x->all_bytes,
                              .slot_bytes = x->slot_bytes,
                              .device_bytes = x->device_bytes,
                              .host_bytes = x->host_bytes,
                              .counts_file = x->path,
                              .n_hits = use.n_hits,
                              .n_misses = use.n_misses,
                              .n_swaps = use.n_swaps,
                              .n_failed = use.n_failed + use.n_prefetched_failed,
                              .swap_bytes = use.swap_bytes,
                              .stream_bytes = use.stream_bytes,
                              .n_streamed = use.n_streamed,
                              .read_bytes = use.read_bytes,
                              .bus_bytes_s = use.bus_bytes_s,
                              .cpu_threads = use.cpu_threads,
                              .cpu_expert_ms = use.cpu_expert_ms,
                              .n_cpu = use.n_cpu,
                              .cpu_bytes = use.cpu_bytes,
                              .prefetch_most = x->n_prefetched,
                              .prefetch_bytes = use.prefetch_bytes,
                              .n_prefetched = use.n_prefetched,
                              .n_prefetched_used = use.n_prefetched_used,
                              .n_prefetched_waited = use.n_prefetched_waited,
                              .n_prefetched_late = use.n_prefetched_late,
                              .prefetch_ahead = use.prefetch_ahead,
                              .wait_ms = wait_ms(&use)};
    for (int32_t i = 0; i < x->n; i++) {
        to->n_experts += x->layer[i].n_experts;
        to->n_slots += x->layer[i].n_slots;
    }
    return true;
}
