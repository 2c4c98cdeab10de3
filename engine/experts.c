/* experts.c - see experts.h. backend/experts.h says how a device works with experts that it does
 * not hold; expert_place.c divides a budget between layers; expert_file.c keeps the counts.
 */
#include "engine/experts.h"
#include "engine/expert_file.h"
#include "engine/expert_place.h"
#include "engine/stages.h"
#include "backend/experts.h"
#include "base/decimal.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/pool.h"

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

/* The experts of one device: of layers `first` on of the lists, n of them. */
typedef struct device_part {
    device *dev;
    int32_t side, first, n;
    uint64_t all_bytes, slot_bytes, device_bytes, host_bytes;
} device_part;

struct model_pool {
    int32_t n_layers;      /* with experts */
    int32_t n;             /* of the lists: n_layers, of a tensor split for each rank */
    expert_layer *layer;   /* [n] */
    place_layer *place;    /* [n] */
    expert_counts *counts; /* [n_layers] of all runs; count_run: of this one, as last taken */
    uint64_t *count, *count_run;
    int32_t n_parts, n_open; /* devices that have slots; the first n_open of them are open */
    device_part part[PASS_SIDES_MAX];
    uint64_t key;
    char *path; /* NULL: the model is in memory */
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
    double v = digit ? decimal_read(text, &end) : -1;
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

/* Entry i of the lists. */
static const model_experts *experts_at(const carat_model *m, int32_t i)
{
    const int32_t n = m->core.n_expert_layers;
    return (i < n ? m->core.experts : m->core.rank[i / n - 1].experts) + i % n;
}

static int32_t side_at(const carat_model *m, int32_t i)
{
    return m->core.n_ranks ? i / m->core.n_expert_layers
                           : m->core.expert_side[m->core.experts[i].il];
}

/* Layers of a device follow each other. Those of a device without slots are in no part. */
static void take_parts(model_pool *x, const carat_model *m)
{
    for (int32_t i = 0; i < x->n; i++) {
        const int32_t side = side_at(m, i);
        device *d = model_device(m, side);
        device_part *p = &x->part[x->n_parts];
        if (!d->experts)
            continue;
        if (!x->n_parts || p[-1].side != side)
            x->part[x->n_parts++] = (device_part){.dev = d, .side = side, .first = i};
        x->part[x->n_parts - 1].n++;
    }
}

/* The device's part of an expert is w, or the segments that it has of it (model/tensor_split.c). */
static int32_t add_weight(expert_layer *l, weight *w)
{
    const int32_t n = w->segment ? w->n_segments : 1;
    for (int32_t k = 0; k < n; k++)
        l->part[l->n_parts++] = w->segment ? (weight *)&w->segment[k] : w;
    return n;
}

/* count: of all experts of the layer. */
static void take_layer(expert_layer *l, const model_experts *from, const uint64_t *count)
{
    *l = (expert_layer){.router = from->router,
                        .router_in = from->router_in,
                        .router_bias = from->router_bias};
    add_weight(l, from->gate);
    if (from->up)
        add_weight(l, from->up);
    l->n_down = add_weight(l, from->down);
    l->n_experts = l->n_slots = l->part[0]->n_mat;
    /* Of a rank that has some of the experts: as many as a row uses there on average. */
    l->n_used = (from->n_used * l->n_experts + from->n_experts - 1) / from->n_experts;
    l->count = count + l->part[0]->first_mat;
}

static status take_layers(model_pool *x, const carat_model *m, int32_t n_prefetched, err *e)
{
    size_t n_all = 0, at = 0;
    x->n_layers = m->core.n_expert_layers;
    x->n = x->n_layers * (m->core.n_ranks ? m->core.n_ranks : 1);
    for (int32_t i = 0; i < x->n_layers; i++)
        n_all += (size_t)m->core.experts[i].n_experts;
    x->layer = mem_calloc((size_t)x->n, sizeof *x->layer);
    x->place = mem_calloc((size_t)x->n, sizeof *x->place);
    x->counts = mem_calloc((size_t)x->n_layers, sizeof *x->counts);
    x->count = mem_calloc(n_all, sizeof *x->count);
    x->count_run = mem_calloc(n_all, sizeof *x->count_run);
    if (!x->layer || !x->place || !x->counts || !x->count || !x->count_run)
        return err_memory(e, "the list of experts", n_all * 16);
    for (int32_t i = 0; i < x->n_layers; i++) {
        const model_experts *from = &m->core.experts[i];
        x->counts[i] = (expert_counts){from->il, from->n_experts, x->count + at};
        at += (size_t)from->n_experts;
    }
    for (int32_t i = 0; i < x->n; i++) {
        expert_layer *l = &x->layer[i];
        take_layer(l, experts_at(m, i), x->counts[i % x->n_layers].count);
        l->n_prefetched = n_prefetched;
        l->helped = x->helped;
        x->place[i] = (place_layer){
            .n_experts = l->n_experts, .n_used = l->n_used, .count = l->count};
    }
    take_parts(x, m);
    for (int32_t k = 0; k < x->n_parts; k++) {
        device_part *p = &x->part[k];
        expert_layer *l = x->layer + p->first;
        place_layer *to = x->place + p->first;
        for (int32_t i = 0; i < p->n; i++) { /* a device guesses the choice of its own layers */
            to[i].bytes = p->dev->experts->expert_bytes(p->dev, &l[i]);
            to[i].worth = n_prefetched && i < EXPERTS_PREFETCH_AHEAD ? UNGUESSED : 1;
        }
        p->all_bytes = p->slot_bytes = expert_place_all(to, p->n);
        p->host_bytes = p->dev->experts->host_bytes(p->dev, l, p->n);
    }
    return OK;
}

/* Models of one shape and name may differ in their weights alone. Of all splits it is one key. */
static uint64_t key_of(const carat_model *m)
{
    const tensor *t = tensor_find(&m->core.file.tensors, m->core.experts[0].gate->name);
    uint64_t part[3] = {t ? hash64(t->bytes, t->n_bytes < KEY_BYTES ? t->n_bytes : KEY_BYTES) : 0,
                        m->core.file.data_bytes, hash64(m->core.name, strlen(m->core.name))};
    return hash64(part, sizeof part);
}

static void log_line(carat_log_fn log, void *user, const err *why)
{
    char line[sizeof why->text + 1];
    snprintf(line, sizeof line, "%s\n", why->text);
    if (log)
        log(user, line);
}

/* The counts of earlier runs; zeros if there are none. A choice that tries several contexts reads
 * them each time, and says once why it has none. */
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
    status st = expert_file_read(x->path, x->key, x->counts, x->n_layers, &why);
    if (st && st != E_IO && !m->said_counts) {
        log_line(opt->log, opt->log_user, &why);
        m->said_counts = true;
    }
    if (st == E_FORMAT) { /* it may be of use to someone, so it is not replaced */
        mem_free(x->path);
        x->path = NULL;
    }
    return OK;
}

/* ---- The choice ----------------------------------------------------------------------------- */

/* The session that will run. */
static status whole_shape(const carat_model *m, const carat_model_options *opt,
                          session_shape *shape, err *e)
{
    static const carat_session_options none;
    carat_session_options so = opt->session ? *opt->session : none;
    if (!so.n_ctx && !m->fit.trying)
        so.n_ctx = m->core.n_ctx_train < ROOM_CTX ? m->core.n_ctx_train : ROOM_CTX;
    return plan_shape(m, &so, opt->n_sessions > 1 ? opt->n_sessions : 1, 0, shape, e);
}

/* Its plan, all experts resident. Layers that stages share are divided by it. */
static status plan_whole(carat_model *m, const carat_model_options *opt, carat_memory_plan *plan,
                         err *e)
{
    session_shape shape;
    status st = whole_shape(m, opt, &shape, e);
    return st ? st : stages_plan(m, &shape, plan, e);
}

static uint64_t least_of(const model_pool *x, const device_part *p)
{
    return expert_place_least(x->place + p->first, p->n);
}

/* Slots within bytes for them alone. */
static status place_slots(model_pool *x, device_part *p, uint64_t for_slots, err *e)
{
    status st = expert_place(x->place + p->first, p->n, for_slots, &p->slot_bytes, e);
    for (int32_t i = p->first; i < p->first + p->n && !st; i++)
        x->layer[i].n_slots = x->place[i].n_slots;
    if (!st)
        p->device_bytes = p->dev->experts->bytes(p->dev, x->layer + p->first, p->n);
    return st;
}

/* Slots within a budget that is for stages and tables too. Fewer bytes for slots may mean larger
 * stages, so the bytes for slots are tried until all of the budget is used, or nearly. */
static status place_within(model_pool *x, device_part *p, uint64_t budget, err *e)
{
    uint64_t for_slots = budget;
    for (int round = 0; round < 32; round++) {
        status st = place_slots(x, p, for_slots, e);
        if (st || p->device_bytes <= budget)
            return st;
        uint64_t over = p->device_bytes - budget;
        if (p->slot_bytes <= least_of(x, p))
            break;
        for_slots = p->slot_bytes > over ? p->slot_bytes - over : 0;
    }
    return OK; /* the caller compares */
}

/* part: the bytes are for slots alone, as a part of the experts is. */
static status too_few(const carat_model *m, const model_pool *x, const device_part *p,
                      uint64_t budget, bool part, const char *whose, err *e)
{
    const uint64_t least = least_of(x, p);
    char of[96] = "for the experts of one token";
    if (!part)
        snprintf(of, sizeof of, "%.1f for the experts of one token, %.1f for stages and tables",
                 mib(least), mib(p->device_bytes - least));
    return err_set(e, E_MEMORY,
                   "%s: %.1f MiB for experts%s%s%s are too few: expected at least %.1f MiB (%s); "
                   "%s %.1f MiB",
                   m->core.name, mib(budget), x->n_parts > 1 ? " on " : "",
                   x->n_parts > 1 ? p->dev->name : "", whose,
                   mib(part ? least : p->device_bytes), of,
                   m->core.n_ranks  ? "its rank's part of all experts takes"
                   : x->n_parts > 1 ? "all experts of its layers take"
                                    : "all experts take",
                   mib(p->all_bytes));
}

/* What is left of each device for experts, and how that is told. */
typedef struct expert_room {
    uint64_t bytes, available, other;
} expert_room;

/* By a plan with all experts. Devices that share a memory divide what is left of it as their experts
 * divide. */
static void rooms_of(const carat_model *m, const model_pool *x, const carat_memory_plan *plan,
                     expert_room *room)
{
    for (int32_t k = 0; k < x->n_parts; k++) {
        const device_part *p = &x->part[k];
        uint64_t experts = 0, own = 0;
        for (int32_t j = 0; j < x->n_parts; j++)
            for (int32_t i = x->part[j].first;
                 i < x->part[j].first + x->part[j].n && same_memory(p->dev, x->part[j].dev); i++)
                for (int32_t w = 0; w < x->layer[i].n_parts; w++) {
                    uint64_t n = p->dev->weight_bytes(p->dev, x->layer[i].part[w]);
                    experts += n;
                    own += j == k ? n : 0;
                }
        room[k].other = plan_shared_total(m, plan, p->side) - experts;
        room[k].available = plan->device[p->side].available_bytes;
        uint64_t left = room[k].other < room[k].available ? room[k].available - room[k].other : 0;
        double share = (double)own / (double)experts;
        room[k].bytes = own == experts ? left : (uint64_t)((double)left * share);
        if (!room[k].available)
            room[k].bytes = UINT64_MAX;
    }
}

static status place(const carat_model *m, model_pool *x, want w, const carat_memory_plan *plan,
                    err *e)
{
    expert_room room[PASS_SIDES_MAX] = {{0}};
    status st = OK;
    if (w.kind == WANT_AUTO)
        rooms_of(m, x, plan, room);
    for (int32_t k = 0; k < x->n_parts && !st; k++) {
        device_part *p = &x->part[k];
        uint64_t budget = w.kind == WANT_BYTES  ? w.bytes
                          : w.kind == WANT_PART ? (uint64_t)(w.part * (double)p->all_bytes)
                                                : room[k].bytes;
        char whose[160] = "";
        if (w.kind == WANT_AUTO)
            snprintf(whose, sizeof whose, " (%.1f MiB, less %.1f MiB for everything else)",
                     mib(room[k].available), mib(room[k].other));
        const bool part = w.kind == WANT_PART;
        const bool roomy = w.kind == WANT_BYTES && budget >= p->all_bytes;
        st = part || roomy ? place_slots(x, p, budget, e) : place_within(x, p, budget, e);
        uint64_t taken = part ? least_of(x, p) : p->device_bytes;
        if (!st && taken > budget && !roomy && !m->fit.trying) /* else fit.c makes room */
            st = too_few(m, x, p, budget, part, whose, e);
    }
    return st;
}

/* Do the devices hold all experts of their layers? */
static bool holds_all(const model_pool *x)
{
    bool all = true;
    for (int32_t k = 0; k < x->n_parts; k++)
        all &= x->part[k].slot_bytes == x->part[k].all_bytes;
    return all;
}

static uint64_t host_bytes(const model_pool *x)
{
    uint64_t n = 0;
    for (int32_t k = 0; k < x->n_parts; k++)
        n += x->part[k].host_bytes;
    return n;
}

static status check_host(const carat_model *m, const model_pool *x, err *e)
{
    const uint64_t there = mem_available_bytes(), need = host_bytes(x);
    if (m->overcommit || m->plan_only || !there || need <= there)
        return OK;
    return err_set(e, E_MEMORY,
                   "%s: a GPU that cannot hold all experts needs a copy of all in host memory: "
                   "%.1f MiB, and %.1f MiB are free",
                   m->core.name, mib(need), mib(there));
}

static bool holds_plan(const carat_model *m, const carat_memory_plan *plan)
{
    bool fits = true;
    for (int32_t i = 0; i < m->n_sides && fits; i++) {
        const uint64_t there = plan->device[i].available_bytes;
        fits = !model_device(m, i)->experts || !there || plan_shared_total(m, plan, i) <= there;
    }
    return fits;
}

/* *fits: every device that may have slots holds all experts, or says nothing of its memory. */
static status fits_whole(carat_model *m, const carat_model_options *opt, bool *fits, err *e)
{
    carat_memory_plan plan;
    session_shape shape;
    status st = whole_shape(m, opt, &shape, e);
    st = st ? st : plan_least(m, &shape, &plan, e);
    *fits = !st && (stages_divide_by_plan(m) || holds_plan(m, &plan));
    if (st || !*fits)
        return st;
    st = stages_plan(m, &shape, &plan, e);
    *fits = !st && holds_plan(m, &plan);
    return st;
}

/* Is a device here that may have slots for experts of its layers? */
static bool has_room_for_experts(const carat_model *m)
{
    bool has = false;
    for (int32_t i = 0; i < m->core.n_expert_layers; i++)
        has |= model_device(m, side_at(m, i))->experts != NULL;
    return has;
}

/* Of all layers that a device has slots for. */
static void set_in_slots(model_pool *x, bool in_slots)
{
    for (int32_t k = 0; k < x->n_parts; k++)
        for (int32_t i = x->part[k].first; i < x->part[k].first + x->part[k].n; i++)
            for (int32_t w = 0; w < x->layer[i].n_parts; w++)
                x->layer[i].part[w]->in_slots = in_slots;
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
    bool able = m->dev && has_room_for_experts(m);
    if (forced && !m->core.n_expert_layers)
        return err_set(e, E_ARG,
                       "%s has no experts: --experts-gpu, --experts-cpu and --experts-prefetch are "
                       "for mixtures of "
                       "experts",
                       m->core.name);
    if (forced && !able)
        return err_set(
            e, E_ARG,
            "--experts-gpu, --experts-cpu and --experts-prefetch need experts on a GPU: no "
            "--cpu-experts, no --wrap");
    if (!able)
        return OK;
    bool whole = w.kind == WANT_PART && w.part >= 1;
    if (w.kind == WANT_AUTO)
        st = fits_whole(m, opt, &whole, e);
    if (st || whole)
        return st;
    model_pool *x = m->experts = mem_calloc(1, sizeof *x);
    if (!x)
        return err_memory(e, "experts", sizeof *x);
    carat_memory_plan plan = {0}; /* with slots chunks are longer */
    if ((m->n_stages > 1 || w.kind == WANT_AUTO) && (st = plan_whole(m, opt, &plan, e)))
        return st;
    int32_t n_prefetched = prefetch_of(m, prefetch);
    x->helped = help || n_prefetched;
    x->n_prefetched = n_prefetched;
    x->optional = !help && prefetch < 0;
    x->log = opt->log;
    x->log_user = opt->log_user;
    snprintf(x->isa, sizeof x->isa, "%s", opt->isa ? opt->isa : "");
    if ((st = take_layers(x, m, n_prefetched, e)) || (st = read_counts(x, m, opt, e)))
        return st;
    x->help = (expert_help){.part = help ? part : 0,
                            .n_threads = help ? opt->n_threads : 1,
                            .isa = x->isa,
                            .n_devices = x->n_parts};
    if ((st = place(m, x, w, &plan, e)))
        return st;
    if (holds_all(x)) { /* and nothing else is needed */
        experts_free(m);
        return OK;
    }
    set_in_slots(x, true);
    return check_host(m, x, e);
}

static const device_part *part_of(const carat_model *m, int32_t side)
{
    for (int32_t k = 0; m->experts && k < m->experts->n_parts; k++)
        if (m->experts->part[k].side == side)
            return &m->experts->part[k];
    return NULL;
}

bool experts_placed(const carat_model *m)
{
    return m->experts && m->experts->n_parts;
}

uint64_t experts_bytes(const carat_model *m, int32_t side)
{
    const device_part *p = part_of(m, side);
    return p ? p->device_bytes : 0;
}

/* ---- Life ----------------------------------------------------------------------------------- */

status experts_open(carat_model *m, err *e)
{
    model_pool *x = m->experts;
    status st = OK;
    for (int32_t k = 0; x && k < x->n_parts && !st; k++) {
        device_part *p = &x->part[k];
        st = p->dev->experts->open(p->dev, x->layer + p->first, p->n, e);
        x->n_open += !st;
    }
    return st;
}

/* The first device's threads help all. */
static status help_all(model_pool *x, err *e)
{
    status st = OK;
    for (int32_t k = 0; k < x->n_parts && !st; k++) {
        x->help.beside = k ? x->part[0].dev : NULL;
        st = x->part[k].dev->experts->help(x->part[k].dev, &x->help, e);
    }
    return st;
}

/* Help that is impossible on one device is on none: so a result does not depend on who has which
 * layers. */
status experts_fill(carat_model *m, err *e)
{
    model_pool *x = m->experts;
    status st = OK;
    for (int32_t k = 0; x && k < x->n_parts && !st; k++)
        st = x->part[k].dev->experts->fill(x->part[k].dev, e);
    if (st || !x || !x->helped)
        return st;
    st = help_all(x, e);
    if (st != E_UNSUPPORTED || !x->optional)
        return st;
    for (int32_t k = 0; k < x->n_parts; k++)
        x->part[k].dev->experts->help(x->part[k].dev, NULL, NULL);
    x->n_prefetched = 0;
    log_line(x->log, x->log_user, e);
    *e = (err){0};
    return OK;
}

/* A file that cannot be written leaves the counts of earlier runs: the next run knows less. Ranks
 * that have a part of every expert count the same. */
static void save_counts(model_pool *x)
{
    uint64_t sum = 0;
    for (int32_t k = 0; k < x->n_parts; k++)
        for (int32_t i = 0; i < x->part[k].n; i++) {
            const expert_layer *l = &x->layer[x->part[k].first + i];
            const size_t at = (size_t)(l->count - x->count);
            if (x->part[k].first >= x->n_layers && !l->part[0]->n_mat_all)
                continue;
            x->part[k].dev->experts->counts(x->part[k].dev, i, x->count_run + at);
            for (size_t n = at; n < at + (size_t)l->n_experts; n++) {
                x->count[n] += x->count_run[n];
                sum += x->count_run[n];
            }
        }
    if (sum && x->path)
        expert_file_write(x->path, x->key, x->counts, x->n_layers, NULL);
}

void experts_close(carat_model *m)
{
    model_pool *x = m->experts;
    if (!x || !x->n_open)
        return;
    if (x->n_open == x->n_parts)
        save_counts(x);
    for (; x->n_open; x->n_open--)
        x->part[x->n_open - 1].dev->experts->close(x->part[x->n_open - 1].dev);
}

void experts_free(carat_model *m)
{
    model_pool *x = m->experts;
    if (!x)
        return;
    experts_close(m);
    if (x->layer)
        set_in_slots(x, false);
    mem_free(x->path);
    mem_free(x->count_run);
    mem_free(x->count);
    mem_free(x->counts);
    mem_free(x->place);
    mem_free(x->layer);
    mem_free(x);
    m->experts = NULL;
}

/* ---- Accounts ------------------------------------------------------------------------------- */

static double wait_ms(const expert_use *u)
{
    return u->stage_ms + (u->bus_bytes_s > 0 ? (double)u->read_bytes / u->bus_bytes_s * 1e3 : 0);
}

void experts_sum(const carat_model *m, expert_sums *to)
{
    const model_pool *x = m->experts;
    *to = (expert_sums){.offload = x && x->n_open};
    for (int32_t k = 0; to->offload && k < x->n_open; k++) {
        expert_use u = {0};
        x->part[k].dev->experts->use(x->part[k].dev, &u);
        to->n_hits += u.n_hits;
        to->n_misses += u.n_misses;
        to->n_bytes += u.read_bytes + u.swap_bytes + u.stream_bytes + u.prefetch_bytes;
        to->n_cpu += u.n_cpu;
        to->wait_ms += wait_ms(&u);
    }
}

static carat_expert_info info_of(const model_pool *x, const device_part *p)
{
    expert_use use = {0};
    if (x->n_open)
        p->dev->experts->use(p->dev, &use);
    carat_expert_info to = {.n_layers = p->n,
                            .all_bytes = p->all_bytes,
                            .slot_bytes = p->slot_bytes,
                            .device_bytes = p->device_bytes,
                            .host_bytes = p->host_bytes,
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
    for (int32_t i = p->first; i < p->first + p->n; i++) {
        to.n_experts += x->layer[i].n_experts;
        to.n_slots += x->layer[i].n_slots;
    }
    return to;
}

/* Times and rates are those of the slowest device; a pass that streamed did so on all. */
static void add_info(carat_expert_info *sum, const carat_expert_info *a)
{
    sum->n_layers += a->n_layers;
    sum->n_experts += a->n_experts;
    sum->n_slots += a->n_slots;
    sum->all_bytes += a->all_bytes;
    sum->slot_bytes += a->slot_bytes;
    sum->device_bytes += a->device_bytes;
    sum->host_bytes += a->host_bytes;
    sum->n_hits += a->n_hits;
    sum->n_misses += a->n_misses;
    sum->n_swaps += a->n_swaps;
    sum->n_failed += a->n_failed;
    sum->swap_bytes += a->swap_bytes;
    sum->stream_bytes += a->stream_bytes;
    sum->read_bytes += a->read_bytes;
    sum->n_cpu += a->n_cpu;
    sum->cpu_bytes += a->cpu_bytes;
    sum->prefetch_bytes += a->prefetch_bytes;
    sum->n_prefetched += a->n_prefetched;
    sum->n_prefetched_used += a->n_prefetched_used;
    sum->n_prefetched_waited += a->n_prefetched_waited;
    sum->n_prefetched_late += a->n_prefetched_late;
    sum->wait_ms += a->wait_ms;
    if (a->n_streamed > sum->n_streamed)
        sum->n_streamed = a->n_streamed;
    if (a->bus_bytes_s < sum->bus_bytes_s)
        sum->bus_bytes_s = a->bus_bytes_s;
    if (a->cpu_expert_ms > sum->cpu_expert_ms)
        sum->cpu_expert_ms = a->cpu_expert_ms;
    if (a->prefetch_ahead < sum->prefetch_ahead)
        sum->prefetch_ahead = a->prefetch_ahead;
}

bool carat_experts(const carat_model *m, carat_expert_info *to)
{
    const model_pool *x = m->experts;
    pthread_mutex_t *lock = (pthread_mutex_t *)&m->pass_lock;
    *to = (carat_expert_info){0};
    if (!x)
        return false;
    pthread_mutex_lock(lock);
    for (int32_t k = 0; k < x->n_parts; k++) {
        const carat_expert_info a = info_of(x, &x->part[k]);
        if (k)
            add_info(to, &a);
        else
            *to = a;
    }
    if (m->core.n_ranks) /* each has all of them */
        to->n_layers = x->n_layers;
    pthread_mutex_unlock(lock);
    return true;
}

bool carat_experts_on(const carat_model *m, int32_t which, carat_expert_info *to)
{
    const device_part *p = part_of(m, which);
    pthread_mutex_t *lock = (pthread_mutex_t *)&m->pass_lock;
    *to = (carat_expert_info){0};
    if (!p)
        return false;
    pthread_mutex_lock(lock);
    *to = info_of(m->experts, p);
    pthread_mutex_unlock(lock);
    return true;
}
