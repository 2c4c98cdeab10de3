/* fit.c - see fit.h. The choice is the first of a list of candidates that fits. Each candidate of
 * the list takes less of the GPU than the one before, in this order:
 *
 *     keys f16       context halved from the longest to FIT_CTX_KEYS
 *     keys q8_0      context halved from there to FIT_CTX_HOST, of mixtures to FIT_CTX_EXPERTS
 *     experts        as many as fit have slots on the GPUs, which read the others from the host; of
 *                    several GPUs with shorter chunks, where one is too small for long ones
 *     experts        all of them in the host's memory, where the CPU computes them
 *     chunks         of prompts, a quarter as long: less scratch, and shorter rings of windows
 *     layers         as many as fit on the GPU, the CPU computes the others
 *
 * So more memory never gives less. Contexts, formats and places that the caller names are kept.
 */
#include "engine/fit.h"
#include "engine/experts.h"
#include "engine/stages.h"

#include <stdio.h>
#include <string.h>

/* Tokens of one conversation. Slots of a batch divide them, down to FIT_CTX_SLOT each. */
enum {
    FIT_CTX_KEYS = 65536,    /* programs that call tools fill this; q8_0 comes before less */
    FIT_CTX_EXPERTS = 32768, /* a few experts on the host cost less than a shorter context */
    FIT_CTX_HOST = 8192,     /* layers on the CPU make every token several times slower */
    FIT_CTX_SLOT = 4096,
    FIT_CHUNK = 512, /* rows: prompts take a few percent longer than with 2048 */
    FIT_STEP = 256,  /* chunks are multiples, where they are shortened */
    FIT_ANSWER = 512 /* tokens of an answer, for a prompt of FIT_CTX_EXPERTS: worth_chunk */
};

/* The caller's part of the choice. */
typedef struct fit_ask {
    const carat_model_options *opt;
    carat_session_options so;
    int32_t n_seqs, top;                   /* top: the longest context */
    bool own_ctx, own_kv, experts, divide; /* may experts be on the host, and layers? */
    err *refusal;                          /* why experts cannot be placed as the options say */
} fit_ask;

/* Do experts' options leave their place open? */
static bool is_open(const char *option)
{
    return !option || !strcmp(option, "auto") || !strcmp(option, "off") || !strcmp(option, "0");
}

static fit_ask ask_of(const carat_model *m, const carat_model_options *opt)
{
    fit_ask a = {.opt = opt, .n_seqs = opt->n_sessions > 1 ? opt->n_sessions : 1};
    bool placed = opt->gpu_layers || opt->cpu_experts;
    bool shared = opt->experts_gpu && strcmp(opt->experts_gpu, "auto");
    if (opt->session)
        a.so = *opt->session;
    a.own_ctx = a.so.n_ctx > 0;
    a.own_kv = a.so.kv_k || a.so.kv_v || a.so.kv_layers;
    a.top = a.own_ctx ? a.so.n_ctx : m->core.n_ctx_train;
    a.experts = !placed && !shared && m->dev->experts && m->n_sides == m->n_stages &&
                m->core.n_expert_layers;
    a.divide = !placed && !shared && !m->core.n_ranks && is_open(opt->experts_cpu) &&
               is_open(opt->experts_prefetch) && device_bare(m->dev) == m->dev;
    return a;
}

/* The shortest context of a stage: `most` tokens of one conversation. */
static int32_t floor_of(const fit_ask *a, int32_t most)
{
    int32_t each = most / a->n_seqs, least = most < FIT_CTX_SLOT ? most : FIT_CTX_SLOT;
    each = each < least ? least : each;
    return a->own_ctx || each > a->top ? a->top : each;
}

/* Which device lacks most, and what all stages take together. */
static void keep_sums(model_fit *f, const carat_model *m, const carat_memory_plan *p)
{
    int64_t most = INT64_MIN;
    f->all_needed_bytes = f->all_available_bytes = 0;
    for (int32_t k = 0; k < m->n_stages; k++) {
        const int32_t side = stage_side(m, k);
        const carat_device_plan *d = &p->device[side];
        int64_t lacks = (int64_t)d->total_bytes - (int64_t)d->available_bytes;
        f->all_needed_bytes += d->total_bytes;
        f->all_available_bytes += memory_of_first(m, side) ? d->available_bytes : 0;
        if (lacks <= most)
            continue;
        most = lacks;
        f->needed_bytes = d->total_bytes;
        f->available_bytes = d->available_bytes;
        f->device = d->device;
    }
    if (!m->draft_dev)
        return;
    const carat_device_plan *d = &p->device[m->n_sides];
    const uint64_t needed = plan_shared_total(m, p, m->n_sides);
    f->draft_lacks = d->available_bytes && needed > d->available_bytes;
    if (f->draft_lacks) {
        f->needed_bytes = needed;
        f->available_bytes = d->available_bytes;
        f->device = d->device;
    }
}

static status shape_of(carat_model *m, const fit_ask *a, int32_t n_ctx, bool q8,
                       session_shape *shape, err *e)
{
    m->fit.n_ctx = n_ctx;
    m->fit.kv = q8 ? "q8_0" : NULL;
    m->fit.trying = true;
    return plan_shape(m, &a->so, a->n_seqs, 0, shape, e);
}

static status plan_one(carat_model *m, const session_shape *shape, bool *fits, err *e)
{
    carat_memory_plan plan;
    status st = stages_plan(m, shape, &plan, e);
    if (st)
        return st;
    *fits = plan_fits(m, &plan);
    keep_sums(&m->fit, m, &plan);
    return OK;
}

/* Is it too large without scratch, however layers are divided? Most candidates are, and whole
 * plans of them would take seconds. */
static status too_large_anyway(carat_model *m, const session_shape *shape, bool *too_large, err *e)
{
    carat_memory_plan plan;
    status st = plan_least(m, shape, &plan, e);
    if (st)
        return st;
    model_fit sums = {0};
    keep_sums(&sums, m, &plan);
    *too_large = !stages_divide_by_plan(m) ? !plan_fits(m, &plan)
                                           : sums.all_needed_bytes > sums.all_available_bytes;
    return OK;
}

/* Does the session fit, and every later one without a context of its own? */
static status try_one(carat_model *m, const fit_ask *a, int32_t n_ctx, bool q8, bool *fits, err *e)
{
    session_shape shape;
    bool too_large = false;
    status st = shape_of(m, a, n_ctx, q8, &shape, e);
    st = st ? st : too_large_anyway(m, &shape, &too_large, e);
    if (too_large)
        *fits = false;
    else
        st = st ? st : plan_one(m, &shape, fits, e);
    m->fit.trying = false;
    return st;
}

/* Contexts from `from` to `least`, each half of the one before; the first that fits. */
static status try_contexts(carat_model *m, const fit_ask *a, int32_t from, int32_t least, bool q8,
                           bool *fits, err *e)
{
    for (int32_t n = from;; n = n / 2 > least ? n / 2 : least) {
        status st = try_one(m, a, n, q8, fits, e);
        if (st || *fits || n <= least)
            return st;
    }
}

/* The context and the formats of keys, where everything else is settled. */
static status try_keys(carat_model *m, const fit_ask *a, int32_t least, bool *fits, err *e)
{
    int32_t f16_least = floor_of(a, FIT_CTX_KEYS);
    f16_least = a->own_kv || f16_least < least ? least : f16_least;
    status st = try_contexts(m, a, a->top, f16_least, false, fits, e);
    return st || *fits || a->own_kv ? st : try_contexts(m, a, f16_least, least, true, fits, e);
}

/* ---- Experts and layers on the host -------------------------------------------------------- */

/* Bytes of experts that are copied to GPUs for a prompt and an answer, if none has a slot, by their
 * bytes: chunks of prompts copy all of them, tokens of answers those that they use. */
static double copies_of(const carat_model *m, int32_t chunk)
{
    double used = 0, all = 0;
    for (int32_t i = 0; i < m->core.n_expert_layers; i++) {
        used += m->core.experts[i].n_used;
        all += m->core.experts[i].n_experts;
    }
    return (double)FIT_CTX_EXPERTS / chunk + FIT_ANSWER * used / all;
}

static double expert_bytes(const carat_model *m)
{
    double sum = 0;
    for (int32_t i = 0; i < m->core.n_expert_layers; i++) {
        const model_experts *x = &m->core.experts[i];
        sum += (double)(x->gate->n_bytes + (x->up ? x->up->n_bytes : 0) + x->down->n_bytes);
    }
    return sum;
}

/* Each GPU has scratch for chunks of prompts. More memory makes fewer copies of experts, by longer
 * chunks or by more slots. *rows: becomes the longest chunk, in doublings from FIT_CHUNK, that saves
 * more copies than slots in its place. That follows from the model and the number of GPUs, not from
 * their memory: so with more of it neither chunks nor slots are fewer. */
static status worth_chunk(carat_model *m, const fit_ask *a, int32_t n_ctx, int32_t *rows, err *e)
{
    const int32_t longest = m->dev->chunk_rows * EXPERT_CHUNKS;
    uint64_t last_bytes = 0;
    status st = stages_place(m, e); /* the same layers for all sizes of memory */
    for (int32_t n = FIT_CHUNK; n <= longest && !st; n *= 2) {
        session_shape shape;
        carat_memory_plan plan;
        m->fit.chunk = n;
        st = shape_of(m, a, n_ctx, !a->own_kv, &shape, e);
        st = st ? st : plan_costs(m, &shape, NULL, &plan, e);
        m->fit.trying = false;
        const double saved = 1 - copies_of(m, n) / copies_of(m, n / 2);
        if (n > FIT_CHUNK && (double)(plan.total_bytes - last_bytes) > saved * expert_bytes(m))
            break;
        last_bytes = plan.total_bytes;
        *rows = n;
    }
    return st;
}

/* Slots beside a context of n and chunks of so many tokens; 0: as the device wishes. A GPU that has
 * no room for them has the fewest: then contexts or chunks have to be shorter. */
static status choose_slots(carat_model *m, const fit_ask *a, int32_t n, int32_t chunk, err *e)
{
    carat_model_options o = *a->opt;
    err why = {0};
    o.session = &a->so;
    m->fit.n_ctx = n;
    m->fit.kv = a->own_kv ? NULL : "q8_0";
    m->fit.chunk = chunk;
    m->fit.trying = true;
    status st = experts_choose(m, &o, &why);
    m->fit.trying = false;
    return st ? err_set(e, st, "%s", why.text) : OK;
}

/* A context and chunks beside the slots that were chosen. */
static status try_lengths(carat_model *m, const fit_ask *a, int32_t n_ctx, int32_t chunk, bool *fits,
                          err *e)
{
    m->fit.chunk = chunk < n_ctx ? chunk : n_ctx;
    return try_one(m, a, n_ctx, !a->own_kv, fits, e);
}

/* The longest chunk up to `longest` that fits beside a context of n, where FIT_CHUNK does. */
static status longest_chunk(carat_model *m, const fit_ask *a, int32_t n, int32_t longest, bool *fits,
                            err *e)
{
    int32_t low = FIT_CHUNK / FIT_STEP, high = longest / FIT_STEP + 1; /* low fits, high does not */
    status st = OK;
    while (high - low > 1 && !st) {
        const int32_t mid = low + (high - low) / 2;
        st = try_lengths(m, a, n, mid * FIT_STEP, fits, e);
        *(*fits ? &low : &high) = mid;
    }
    return st ? st : try_lengths(m, a, n, low * FIT_STEP, fits, e);
}

/* Only chunks of several GPUs, which all have scratch for them, are shortened. */
static bool shortens(const carat_model *m, const fit_ask *a)
{
    return m->n_stages > 1 && !a->so.chunk && m->core.n_expert_layers &&
           floor_of(a, FIT_CTX_EXPERTS) >= FIT_CHUNK;
}

/* Beside the experts that the GPUs hold: chunks that are shorter than wished, FIT_STEP rows at least,
 * and then contexts, each half of the one before. */
static status try_shorter(carat_model *m, const fit_ask *a, int32_t least, int32_t wish, bool *fits,
                          err *e)
{
    const int32_t most = floor_of(a, FIT_CTX_EXPERTS);
    const bool shorten = shortens(m, a);
    status st = OK;
    *fits = false;
    for (int32_t n = most; !st && !*fits; n = n / 2 > least ? n / 2 : least) {
        st = try_lengths(m, a, n, shorten ? FIT_CHUNK : 0, fits, e);
        if (!st && *fits && n == most && shorten)
            st = longest_chunk(m, a, n, wish, fits, e);
        if (!st && !*fits && shorten)
            st = try_lengths(m, a, n, FIT_STEP, fits, e);
        if (n <= least)
            break;
    }
    if (!*fits)
        m->fit.chunk = 0;
    return st;
}

/* As many slots as leave room for a context and chunks as wished. Where GPUs lack that room, both
 * are shorter; contexts where nothing else can be given up. */
static status try_experts(carat_model *m, const fit_ask *a, bool *fits, err *e)
{
    const int32_t most = floor_of(a, FIT_CTX_EXPERTS);
    const bool shorten = shortens(m, a);
    int32_t wish = 0;
    status st = shorten ? try_lengths(m, a, most, FIT_CHUNK, fits, e) : OK;
    if (!st && shorten && *fits) /* all experts, beside chunks that are shorter than usual */
        return longest_chunk(m, a, most, m->dev->chunk_rows, fits, e);
    st = st || !shorten ? st : worth_chunk(m, a, most, &wish, e);
    const bool usual = wish == m->dev->chunk_rows * EXPERT_CHUNKS;
    st = st ? st : choose_slots(m, a, most, usual ? 0 : wish, e);
    st = st ? st : try_one(m, a, most, !a->own_kv, fits, e);
    if (!st && !*fits)
        st = try_shorter(m, a, a->divide ? most : floor_of(a, N_CTX_MIN), wish, fits, e);
    if (st || !*fits)
        experts_free(m);
    return st == E_MEMORY ? OK : st;
}

static status try_cpu_experts(carat_model *m, const fit_ask *a, bool *fits, err *e)
{
    status st = divide_model(m, a->opt, (cpu_part){.experts = true}, e);
    if (!st)
        st = try_contexts(m, a, floor_of(a, FIT_CTX_EXPERTS), floor_of(a, FIT_CTX_HOST), !a->own_kv,
                          fits, e);
    return st;
}

/* The last n layers on the GPU; *can: the model may be divided there. */
static status try_layers(carat_model *m, const fit_ask *a, int32_t n, bool *can, bool *fits, err *e)
{
    err why = {0};
    status st = divide_model(m, a->opt, (cpu_part){.n_layers = m->core.n_layer - n}, &why);
    *can = st != E_ARG;
    *fits = false;
    if (st == E_ARG) /* a layer would be parted from the one whose keys it reads */
        return OK;
    if (st)
        return err_set(e, st, "%s", why.text);
    return try_one(m, a, floor_of(a, FIT_CTX_HOST), !a->own_kv, fits, e);
}

/* The most layers that fit, all of them with short chunks. */
static status try_some_layers(carat_model *m, const fit_ask *a, bool *fits, err *e)
{
    int32_t lo = 0, hi = m->core.n_layer; /* lo fits, or is 0; hi does not */
    bool can;
    m->fit.chunk = FIT_CHUNK;
    undivide_model(m);
    status whole = try_one(m, a, floor_of(a, FIT_CTX_HOST), !a->own_kv, fits, e);
    if (whole || *fits) {
        m->fit.level = a->own_kv ? CARAT_FIT_CONTEXT : CARAT_FIT_KEYS;
        return whole;
    }
    m->fit.level = CARAT_FIT_LAYERS;
    while (hi - lo > 1) {
        int32_t n = lo + (hi - lo) / 2;
        status st = try_layers(m, a, n, &can, fits, e);
        if (st)
            return st;
        if (*fits || !can)
            lo = n;
        else
            hi = n;
    }
    status st = lo ? try_layers(m, a, lo, &can, fits, e) : OK;
    return st;
}

/* ---- The choice ---------------------------------------------------------------------------- */

static carat_fit level_of(const carat_model *m, const fit_ask *a)
{
    return m->fit.kv ? CARAT_FIT_KEYS : m->fit.n_ctx < a->top ? CARAT_FIT_CONTEXT : CARAT_FIT_WHOLE;
}

status fit_probe(carat_model *m, const carat_model_options *opt, carat_fit *level, int32_t *n_ctx,
                 err *e)
{
    const fit_ask a = ask_of(m, opt);
    int32_t least = floor_of(&a, m->core.n_expert_layers ? FIT_CTX_EXPERTS : FIT_CTX_HOST);
    bool fits = false;
    m->fit = (model_fit){0};
    status st = try_keys(m, &a, least, &fits, e);
    *level = fits ? level_of(m, &a) : CARAT_FIT_EXPERTS;
    *n_ctx = m->fit.n_ctx;
    m->fit = (model_fit){0};
    return st;
}

/* All levels up to the experts; E_MEMORY: none fits. */
static status try_without_layers(void *user, const carat_model *of, err *e)
{
    const fit_ask *a = user;
    carat_model *m = (carat_model *)(size_t)of;
    bool fits = false;
    const bool placed = !a->experts && shortens(m, a); /* as options say */
    int32_t least = a->experts || placed ? floor_of(a, FIT_CTX_EXPERTS)
                    : a->divide          ? floor_of(a, FIT_CTX_HOST)
                                         : floor_of(a, N_CTX_MIN);
    experts_free(m);
    status st = a->experts ? OK : experts_choose(m, a->opt, e); /* which also refuses options */
    *a->refusal = st ? *e : (err){0};                           /* of the last try */
    m->fit = (model_fit){0};
    if (!st)
        st = try_keys(m, a, least, &fits, e);
    m->fit.level = level_of(m, a);
    if (!st && !fits && placed) {
        st = try_shorter(m, a, floor_of(a, a->divide ? FIT_CTX_HOST : N_CTX_MIN),
                         m->dev->chunk_rows * (m->experts ? EXPERT_CHUNKS : 1), &fits, e);
        m->fit.level = level_of(m, a);
    }
    if (!st && !fits && a->experts) {
        st = try_experts(m, a, &fits, e);
        m->fit.level = m->experts ? CARAT_FIT_EXPERTS : level_of(m, a);
    }
    if (st || fits)
        return st;
    return err_set(e, E_MEMORY, "with it, layers would be on the CPU");
}

static status try_on_host(carat_model *m, const fit_ask *a, bool *fits, err *e)
{
    status st = OK;
    if (a->experts) {
        st = try_cpu_experts(m, a, fits, e);
        m->fit.level = CARAT_FIT_EXPERTS;
    }
    if (!st && !*fits)
        st = try_some_layers(m, a, fits, e);
    if (st || !*fits)
        undivide_model(m);
    return st;
}

/* By how much the least that may be given up fails, and a context that would fit. */
static status too_large(carat_model *m, const fit_ask *a, err *e)
{
    bool fits = false;
    char hint[128] = "";
    session_shape shape;
    status st = shape_of(m, a, a->top, false, &shape, e);
    st = st ? st : plan_one(m, &shape, &fits, e);
    m->fit.trying = false;
    uint64_t needed = m->fit.needed_bytes, there = m->fit.available_bytes;
    const char *lacking = m->fit.device, *drafts = m->fit.draft_lacks ? " (--draft-device)" : "";
    for (int q8 = 0; q8 < (a->own_kv ? 1 : 2) && !st && !fits; q8++) {
        fit_ask b = *a;
        b.so.n_ctx = 0;
        st = try_contexts(m, &b, a->top, a->top < N_CTX_MIN ? a->top : N_CTX_MIN, q8, &fits, e);
        if (fits)
            snprintf(hint, sizeof hint, "; a context of %d tokens%s would fit", m->fit.n_ctx,
                     q8 ? " with keys of q8_0" : "");
    }
    m->fit = (model_fit){0};
    if (st)
        return st;
    return err_set(e, E_MEMORY,
                   "%s with a context of %d tokens needs %.1f MiB of memory of %s%s, %.1f MiB "
                   "more than the %.1f MiB that are available%s",
                   m->core.name, a->top, (double)needed * 0x1p-20, lacking, drafts,
                   needed > there ? (double)(needed - there) * 0x1p-20 : 0.0,
                   (double)there * 0x1p-20, hint);
}

/* One line for users: what was given up, and the options that say it. */
static void tell(carat_model *m, const fit_ask *a)
{
    model_fit *f = &m->fit;
    carat_expert_info x;
    size_t n = 0, cap = sizeof f->text;
    f->text[0] = 0;
    if (f->level == CARAT_FIT_WHOLE)
        return;
    n += (size_t)snprintf(f->text + n, cap - n, "fitted to %.0f MiB of GPU memory (%.0f used): ",
                          (double)f->all_available_bytes * 0x1p-20,
                          (double)f->all_needed_bytes * 0x1p-20);
    n += (size_t)snprintf(f->text + n, cap - n, "a context of %d", f->n_ctx);
    if (f->n_ctx < m->core.n_ctx_train)
        n += (size_t)snprintf(f->text + n, cap - n, " of %d", m->core.n_ctx_train);
    n += (size_t)snprintf(f->text + n, cap - n, " tokens%s", a->n_seqs > 1 ? " for each slot" : "");
    if (f->kv)
        n += (size_t)snprintf(f->text + n, cap - n, ", keys and values of %s", f->kv);
    if (f->chunk)
        n += (size_t)snprintf(f->text + n, cap - n, ", prompts in chunks of %d", f->chunk);
    if (f->level == CARAT_FIT_EXPERTS && carat_experts(m, &x))
        n += (size_t)snprintf(
            f->text + n, cap - n,
            ", %d of %d %sexperts on the GPU%s, which read%s the others from host memory",
            x.n_slots, x.n_experts, m->core.n_ranks > 1 ? "parts of " : "",
            m->n_stages > 1 ? "s" : "", m->n_stages > 1 ? "" : "s");
    else if (f->level == CARAT_FIT_EXPERTS)
        n += (size_t)snprintf(f->text + n, cap - n, ", all experts on the CPU");
    if (f->level == CARAT_FIT_LAYERS)
        snprintf(f->text + n, cap - n, ", %d of %d layers on the GPU%s, the others on the CPU",
                 m->core.n_layer - m->beside.n_layers, m->core.n_layer, m->n_stages > 1 ? "s" : "");
}

status fit_choose(carat_model *m, const carat_model_options *opt, err *e)
{
    fit_ask a = ask_of(m, opt);
    err why = {0}, refusal = {0};
    a.refusal = &refusal;
    if (m->overcommit)
        return experts_choose(m, opt, e);
    status st = drafters_that_fit(m, opt, try_without_layers, &a, &why);
    if (st && st != E_MEMORY)
        return err_set(e, st, "%s", why.text);
    if (st) {
        bool fits = false;
        st = a.divide ? try_on_host(m, &a, &fits, e) : OK;
        if (st)
            return st;
        if (!fits && refusal.status)
            return err_set(e, refusal.status, "%s", refusal.text);
        if (!fits)
            return too_large(m, &a, e);
    }
    tell(m, &a);
    if (a.own_ctx)
        m->fit.n_ctx = 0; /* that session's alone */
    return OK;
}
