/* plan.c - the memory of a session, computed before the session exists.
 *
 * The costs of a shape (shape.c) come from the layout of keys and values and from dry passes of the
 * model's forward code. Nothing here allocates more than a few kilobytes or reads a weight.
 */
#include "engine/engine_int.h"
#include "engine/experts.h"
#include "engine/media.h"
#include "backend/plan.h"
#include "base/mem.h"

#include <stdio.h>
#include <string.h>

enum { ROWS_SMALL = 32 }; /* counts of rows up to here are planned one by one */

/* The most that checkpoints take unless the caller sets their memory. */
#define CHECKPOINT_MAX_BYTES ((uint64_t)4 << 30)

/* Most rows of one pass: a prefill chunk, a picture that may not be cut, or a batch whose rows all
 * give logits. */
static int32_t rows_max(const session_shape *s)
{
    int32_t rows = s->chunk > s->n_outputs ? s->chunk : s->n_outputs;
    int32_t picture = s->picture_rows < s->n_ctx ? s->picture_rows : s->n_ctx;
    return rows > picture ? rows : picture;
}

/* A dry pass takes the lock too, because a wrapped device keeps state during a call. */
static status plan_pass(const carat_model *m, const pass_taps *taps, const kv_layout *l,
                        int32_t rows, int32_t outs, model_costs *c, err *e)
{
    pthread_mutex_t *lock = (pthread_mutex_t *)&m->pass_lock; /* all else of m stays as it is */
    pthread_mutex_lock(lock);
    status st = model_plan(&m->core, m->dev, l, rows, outs, taps, c, e);
    pthread_mutex_unlock(lock);
    return st;
}

status plan_queries(const carat_model *m, const kv_layout *l, page_query_size to[PASS_SIDES_MAX],
                    err *e)
{
    model_costs c;
    status st = plan_pass(m, NULL, l, 1, 1, &c, e);
    for (int32_t i = 0; i < PASS_SIDES_MAX; i++)
        to[i] = st ? (page_query_size){0} : c.side[i].query;
    return st;
}

static status add_pass(const carat_model *m, const pass_taps *taps, const kv_layout *l,
                       int32_t rows, int32_t outs, model_costs *worst, err *e)
{
    model_costs c;
    status st = plan_pass(m, taps, l, rows, outs, &c, e);
    if (st)
        return st;
    c.flops = c.flops > worst->flops ? c.flops : worst->flops;
    for (int32_t i = 0; i < m->n_sides; i++) {
        if (c.side[i].scratch_bytes < worst->side[i].scratch_bytes)
            c.side[i].scratch_bytes = worst->side[i].scratch_bytes;
        if (c.side[i].query.layers < worst->side[i].query.layers)
            c.side[i].query = worst->side[i].query;
        if (c.side[i].crossing_bytes < worst->side[i].crossing_bytes)
            c.side[i].crossing_bytes = worst->side[i].crossing_bytes;
    }
    *worst = c; /* all else is the same for every pass */
    return OK;
}

/* The number of rows decides which kernels run, and so how much scratch they take. The largest pass
 * may not take the most, so all small counts are tried, then doublings. A pass of a session wants
 * logits of no row, one row, all n_outputs rows, or all but one of these. A pass of a batch, one
 * that checks drafts, or one that chooses pages for the end of a prompt, wants logits of any number
 * of rows. */
static status worst_pass(const carat_model *m, const session_shape *s, const pass_taps *taps,
                         const kv_layout *l, model_costs *worst, err *e)
{
    int32_t most = rows_max(s);
    status st;
    *worst = (model_costs){0};
    for (int32_t rows = 1; rows <= most; rows = plan_next_count(rows, ROWS_SMALL, most)) {
        int32_t outs = rows < s->n_outputs ? rows : s->n_outputs;
        const int32_t wanted[4] = {0, 1, outs - 1, outs};
        for (int i = 0; i < 4; i++)
            if ((st = add_pass(m, taps, l, rows, wanted[i], worst, e)))
                return st;
        bool any = s->n_seqs > 1 || s->verify_rows > 1 || shape_is_paged(s);
        for (int32_t k = 2; any && k < outs - 1; k = plan_next_count(k, ROWS_SMALL, outs))
            if ((st = add_pass(m, taps, l, rows, k, worst, e)))
                return st;
    }
    return OK;
}

/* Of an encoder: all rows are wanted, or all but one, and none has logits. */
static status worst_text(const carat_model *m, const session_shape *s, const kv_layout *l,
                         model_costs *worst, err *e)
{
    size_t need[PASS_SIDES_MAX];
    int32_t most = rows_max(s);
    pthread_mutex_t *lock = (pthread_mutex_t *)&m->pass_lock; /* as in plan_pass */
    status st = plan_pass(m, NULL, l, most, most, worst, e);
    for (int32_t rows = 1; rows <= most && !st; rows = plan_next_count(rows, ROWS_SMALL, most))
        for (int32_t outs = rows > 1 ? rows - 1 : 1; outs <= rows && !st; outs++) {
            pthread_mutex_lock(lock);
            st = model_plan_hidden(&m->core, m->dev, l, rows, outs, need, e);
            pthread_mutex_unlock(lock);
            for (int32_t i = 0; i < m->n_sides && !st; i++)
                if (worst->side[i].scratch_bytes < need[i])
                    worst->side[i].scratch_bytes = need[i];
        }
    return st;
}

static status plan_layout(const carat_model *m, const session_shape *s, kv_layout *l, err *e)
{
    kv_want_layout want = {.spec = m->core.kv,
                           .n = m->core.n_kv,
                           .recur = m->core.recur,
                           .n_recur = m->core.n_recur,
                           .n_parts = m->core.n_ranks,
                           .journal_rows = s->verify_rows,
                           .choice = s->kv,
                           .n_ctx = s->n_ctx,
                           .rows_max = rows_max(s),
                           .axes = m->core.axes};
    int64_t whole = s->n_pool ? s->n_pool : (int64_t)pages_of(s->n_ctx) * KV_PAGE * s->n_seqs;
    if (whole > INT32_MAX)
        return err_set(e, E_LIMIT,
                       "%d contexts of %d tokens are too many: expected at most %d tokens together "
                       "(--parallel, --ctx)",
                       s->n_seqs, s->n_ctx, INT32_MAX);
    want.n_pool = (int32_t)(shape_is_paged(s) ? paging_pool(s) : whole);
    for (int32_t i = 0; i < m->n_sides; i++)
        want.dev[i] = model_device(m, i);
    return kv_layout_init(l, &want, e);
}

/* Checkpoints are in host memory. If the device uses host memory too, a size that the caller asked
 * for is part of the total. A size chosen here is a share of the memory left over: it is allocated
 * little by little and never makes a plan fail. */
static void plan_checkpoints(const carat_model *m, const session_shape *s, carat_memory_plan *plan)
{
    bool apart = !m->dev->host_memory;
    uint64_t free_bytes, taken;
    if (s->checkpoint_mb < 0)
        return;
    plan_model_sums(m, plan, &taken, &free_bytes);
    if (apart) {
        free_bytes = mem_available_bytes();
        taken = 0;
    }
    if (s->checkpoint_mb) {
        plan->checkpoint_bytes = (uint64_t)s->checkpoint_mb << 20;
        if (!apart) {
            plan->total_bytes += plan->checkpoint_bytes;
            plan->device[PASS_MAIN].total_bytes += plan->checkpoint_bytes;
        }
        return;
    }
    plan->checkpoint_bytes = CHECKPOINT_MAX_BYTES;
    if (!free_bytes)
        return;
    free_bytes = free_bytes > taken ? (free_bytes - taken) / 4 : 0;
    if (free_bytes < plan->checkpoint_bytes)
        plan->checkpoint_bytes = free_bytes;
}

/* With `strict`, refuses a session whose cache would be read by a slow kernel. */
static status check_kernels(const carat_model *m, const kv_layout *l, err *e)
{
    char how[128], k[32], v[32];
    for (int32_t i = 0; m->strict && i < l->n; i++) {
        const kv_view *w = &l->view[i];
        const device *d = model_device(m, w->side);
        if (device_attend_kernel(d, w, how, sizeof how) == KERNEL_FULL)
            continue;
        return err_set(e, E_UNSUPPORTED,
                       "--strict: layer %d (%s, heads of %d, keys of %s, values of %s) would be "
                       "read by a slow path of %s: %s",
                       m->core.kv[i].layer, w->window ? "sliding window" : "global", w->head_dim,
                       kv_format_name((kv_format){w->k_type, w->k_rot}, k, sizeof k),
                       kv_format_name((kv_format){w->v_type, w->v_rot}, v, sizeof v), d->name, how);
    }
    return OK;
}

/* whose: before the name of a weight. */
static status check_weights_of(const carat_model *m, const model *core, const char *whose, err *e)
{
    const bool drafts = m->draft[DRAFTER_MODEL] && core == &m->draft[DRAFTER_MODEL]->core;
    char how[128];
    for (int32_t i = 0; i < core->n_weights; i++) {
        const weight *w = core->weights[i];
        const device *d = drafts && w->side == PASS_MAIN ? drafter_device(m)
                                                         : model_device(m, w->side);
        if (w->n_out < 2 || w->gather ||
            device_product_kernel(d, w, how, sizeof how) == KERNEL_FULL)
            continue;
        return err_set(e, E_UNSUPPORTED,
                       "--strict: products with %s%s (%s) would take a slow path of %s: %s", whose,
                       w->name, num_name(w->type), d->name, how);
    }
    return OK;
}

status plan_check_weights(const carat_model *m, err *e)
{
    status st = m->strict ? check_weights_of(m, &m->core, "", e) : OK;
    for (int i = 0; i < DRAFTERS_MAX && m->strict && !st; i++)
        if (m->draft[i])
            st = check_weights_of(m, &m->draft[i]->core, "the drafter's ", e);
    if (m->strict && !st && media_tower(m))
        st = check_weights_of(m, media_tower(m), "the vision tower's ", e);
    if (m->strict && !st && media_audio_tower(m))
        st = check_weights_of(m, media_audio_tower(m), "the audio tower's ", e);
    return st;
}

static uint64_t kv_bytes(const carat_device_plan *p)
{
    return p->kv_swa_bytes + p->kv_global_bytes + p->recurrent_bytes;
}

/* A device in the host's memory, of whose weights the file holds file_bytes. The file is mapped:
 * repacked weights are not read from it again, so its pages leave memory, tensor by tensor. */
static void plan_host(const carat_model *m, uint64_t file_bytes, const model_side_costs *c,
                      carat_device_plan *p)
{
    uint64_t loading = c->repack_bytes + c->largest_bytes;
    p->weight_bytes = m->direct                      ? file_bytes + c->repack_bytes
                      : file_bytes > c->repack_bytes ? file_bytes
                                                     : c->repack_bytes;
    p->total_bytes =
        p->weight_bytes + kv_bytes(p) + p->scratch_bytes + p->draft_bytes + p->vision_bytes;
    /* During loading one weight is in memory twice, and nothing of a session yet. */
    if (p->total_bytes < loading)
        p->total_bytes = loading;
    p->available_bytes = mem_available_bytes();
    if (p->available_bytes && m->direct)
        p->available_bytes += m->core.file.file_bytes;
}

/* A device with memory of its own: the file stays on the host. */
static void plan_apart(const device *d, const model_side_costs *c, carat_device_plan *p)
{
    p->weight_bytes = c->repack_bytes + c->table_bytes;
    p->reserve_bytes = d->reserve_bytes;
    p->total_bytes = p->weight_bytes + p->expert_bytes + kv_bytes(p) + p->scratch_bytes +
                     p->draft_bytes + p->vision_bytes + p->reserve_bytes;
    p->available_bytes = d->available_bytes(d);
}

uint64_t plan_weight_bytes(const device *dev, const model *core)
{
    uint64_t n = 0;
    for (int32_t i = 0; i < core->n_weights; i++)
        n += model_weight_bytes(dev, core->weights[i]);
    for (int32_t i = 0; i < core->n_tables; i++)
        n += core->tables[i].n_bytes;
    return n;
}

/* The first device that is in the host's memory; -1: none is. */
static int32_t host_side(const carat_model *m)
{
    for (int32_t i = 0; i < n_held_devices(m); i++)
        if (held_device(m, i)->host_memory)
            return i;
    return -1;
}

/* Of the host's memory, taken by what runs beside the model. */
static uint64_t beside_taken(const carat_model *m)
{
    return m->scorer ? m->scorer->taken_bytes[PASS_MAIN] : 0;
}

bool same_memory(const device *a, const device *b)
{
    return a->host_memory == b->host_memory && (a->host_memory || a->number == b->number);
}

bool memory_of_first(const carat_model *m, int32_t side)
{
    for (int32_t k = 0; k < side; k++)
        if (same_memory(model_device(m, k), held_device(m, side)))
            return false;
    return true;
}

static int32_t first_layer_on(const model *core, int32_t side)
{
    int32_t il = 0;
    while (il < core->n_layer && core->layer_side[il] != side)
        il++;
    return il < core->n_layer ? il : 0;
}

/* Completes the plan of device i and adds it to the plan's sums. Memory that this model already holds
 * there counts as available. The scorer, pictures and what else the model keeps in the host's memory
 * count on the host's device. */
static void plan_sums(const carat_model *m, int32_t i, carat_memory_plan *plan)
{
    carat_device_plan *p = &plan->device[i];
    for (int32_t k = 0; k < n_held_devices(m) && p->available_bytes; k++)
        if (same_memory(held_device(m, i), held_device(m, k)))
            p->available_bytes += m->taken_bytes[k] + m->reserve_taken[k];
    if (i == host_side(m)) {
        p->total_bytes += plan->scorer_bytes + plan->picture_bytes;
        p->available_bytes += p->available_bytes ? beside_taken(m) : 0;
    }
    plan->total_bytes += p->total_bytes;
    if (memory_of_first(m, i))
        plan->available_bytes += p->available_bytes;
}

/* A drafter's own device. */
static void plan_draft_device(const carat_model *m, carat_memory_plan *plan)
{
    const device *d = m->draft_dev;
    carat_device_plan *p = &plan->device[m->n_sides];
    *p = (carat_device_plan){.device = d->name, .draft_bytes = p->draft_bytes};
    if (d->host_memory) {
        p->total_bytes = p->draft_bytes;
        p->available_bytes = mem_available_bytes();
    } else {
        plan_apart(d, &(model_side_costs){0}, p);
    }
    plan_sums(m, m->n_sides, plan);
    for (int32_t k = 0; k < m->n_sides; k++) /* one figure for what they share */
        if (same_memory(d, model_device(m, k)))
            p->available_bytes = plan->device[k].available_bytes;
    plan->n_devices++;
}

static void plan_devices(const carat_model *m, const session_shape *s, const kv_layout *l,
                         const model_costs *c, carat_memory_plan *plan)
{
    uint64_t n = (uint64_t)s->n_seqs, file_bytes = m->core.file.data_bytes;
    plan->n_devices = m->n_sides;
    for (int32_t i = m->n_sides - 1; i >= 0; i--) {
        const device *d = model_device(m, i);
        carat_device_plan *p = &plan->device[i];
        uint64_t towers = i == PASS_MAIN ? plan->vision_bytes + plan->audio_bytes : 0;
        *p = (carat_device_plan){.device = d->name,
                                 .n_layers = model_layers_on(&m->core, i),
                                 .first_layer = first_layer_on(&m->core, i),
                                 .kv_swa_bytes = l->side[i].ring * n,
                                 .kv_global_bytes = l->side[i].linear + l->side[i].table * n +
                                                    paging_bytes(s, l, &c->side[i].query, i),
                                 .recurrent_bytes = l->side[i].recur * n,
                                 .scratch_bytes = c->side[i].scratch_bytes,
                                 .expert_bytes = experts_bytes(m, i),
                                 .draft_bytes = p->draft_bytes,
                                 .vision_bytes = towers,
                                 .crossing_bytes = c->side[i].crossing_bytes};
        /* The rest of the file counts for the main device, unused tensors included. */
        uint64_t of_file = i == PASS_MAIN ? file_bytes : c->side[i].file_bytes;
        file_bytes -= of_file;
        if (d->host_memory)
            plan_host(m, of_file, &c->side[i], p);
        else
            plan_apart(d, &c->side[i], p);
        plan->scratch_bytes += p->scratch_bytes;
        plan->repack_bytes += c->side[i].repack_bytes;
        plan_sums(m, i, plan);
    }
    if (m->draft_dev)
        plan_draft_device(m, plan);
}

/* Of one row: the weights, which are the same for every pass, and no scratch. */
static status no_scratch(const carat_model *m, const kv_layout *l, model_costs *costs, err *e)
{
    status st = plan_pass(m, NULL, l, 1, 1, costs, e);
    for (int32_t i = 0; i < m->n_sides; i++)
        costs->side[i].scratch_bytes = 0;
    return st;
}

static status plan_with(const carat_model *m, const session_shape *s, bool scratch,
                        kv_layout *layout, carat_memory_plan *out, err *e)
{
    kv_layout l = {0};
    model_costs costs = {0};
    carat_memory_plan plan = {.n_ctx = s->n_ctx, .chunk = s->chunk};
    pass_taps taps;
    status st;

    if ((st = plan_layout(m, s, &l, e)) || (st = check_kernels(m, &l, e)))
        goto end;
    if ((st = drafters_plan(m, s, &l, &plan, &taps, e)))
        goto end;
    if ((st = paging_scorer_bytes(m, s, &plan.scorer_bytes, e)) || (st = media_plan(m, &plan, e)) ||
        (st = !scratch          ? no_scratch(m, &l, &costs, e)
              : m->core.encoder ? worst_text(m, s, &l, &costs, e)
                                : worst_pass(m, s, &taps, &l, &costs, e)))
        goto end;
    plan.weight_bytes = m->core.file.data_bytes;
    plan.kv_swa_bytes = l.all.ring * (uint64_t)s->n_seqs;
    plan.kv_global_bytes = l.all.linear + l.all.table * (uint64_t)s->n_seqs;
    for (int32_t i = 0; i < m->n_sides; i++)
        plan.kv_global_bytes += paging_bytes(s, &l, &costs.side[i].query, i);
    plan.recurrent_bytes = l.all.recur * (uint64_t)s->n_seqs;
    plan.checkpoint_state_bytes = kv_state_bytes(&l, 0);
    plan.chunk_flops = costs.flops;
    plan.n_ring_slots = l.n_ring_slots;
    plan_devices(m, s, &l, &costs, &plan);
    plan_checkpoints(m, s, &plan);
    if (layout) {
        *layout = l;
        l = (kv_layout){0};
    }
    *out = plan;
end:
    kv_layout_free(&l);
    return st;
}

status plan_costs(const carat_model *m, const session_shape *s, kv_layout *layout,
                  carat_memory_plan *out, err *e)
{
    return plan_with(m, s, true, layout, out, e);
}

status plan_least(const carat_model *m, const session_shape *s, carat_memory_plan *out, err *e)
{
    return plan_with(m, s, false, NULL, out, e);
}

uint64_t plan_shared_total(const carat_model *m, const carat_memory_plan *plan, int32_t side)
{
    uint64_t n = 0;
    for (int32_t k = 0; k < plan->n_devices; k++)
        if (same_memory(held_device(m, side), held_device(m, k)))
            n += plan->device[k].total_bytes;
    return n;
}

void plan_model_sums(const carat_model *m, const carat_memory_plan *plan, uint64_t *total_bytes,
                     uint64_t *available_bytes)
{
    *total_bytes = plan->total_bytes;
    *available_bytes = plan->available_bytes;
    if (m->draft_dev && memory_of_first(m, m->n_sides)) {
        *total_bytes -= plan->device[m->n_sides].total_bytes;
        *available_bytes -= plan->device[m->n_sides].available_bytes;
    }
}

static const carat_device_plan *first_too_large(const carat_model *m, const carat_memory_plan *plan)
{
    for (int32_t i = 0; i < plan->n_devices; i++)
        if (plan->device[i].available_bytes &&
            plan_shared_total(m, plan, i) > plan->device[i].available_bytes)
            return &plan->device[i];
    return NULL;
}

bool plan_fits(const carat_model *m, const carat_memory_plan *plan)
{
    const carat_device_plan *p = first_too_large(m, plan);
    bool host = p && held_device(m, (int32_t)(p - plan->device))->host_memory;
    return m->overcommit || !p || (m->plan_only && host);
}

/* The scorer of pages, and what waits and is kept of pictures and sounds, where no device of the
 * model is in the host's memory. */
static status check_beside(const carat_model *m, const carat_memory_plan *plan, err *e)
{
    uint64_t left = mem_available_bytes(), soft = plan->picture_bytes;
    uint64_t need = plan->scorer_bytes + soft;
    if (!need || host_side(m) >= 0 || !left || need <= left + beside_taken(m))
        return OK;
    return err_set(e, E_MEMORY,
                   "%s for a context of %d tokens need%s %.2f GiB of host memory, and %.2f GiB are "
                   "available",
                   !soft                 ? "the scorer of pages"
                   : !plan->scorer_bytes ? "the pictures and sounds of prompts"
                                         : "the scorer of pages, pictures and sounds of prompts",
                   plan->n_ctx, soft ? "" : "s", (double)need * 0x1p-30,
                   (double)(left + beside_taken(m)) * 0x1p-30);
}

status plan_check(const carat_model *m, const carat_memory_plan *plan, err *e)
{
    const carat_device_plan *s = first_too_large(m, plan);
    if (m->overcommit)
        return OK;
    if (!s)
        return check_beside(m, plan, e);
    if (s->expert_bytes)
        return err_set(e, E_MEMORY,
                       "%s with a context of %d tokens needs %.1f MiB of memory of %s: weights "
                       "%.1f, experts %.1f, keys and states %.1f, scratch %.1f, drafter %.1f, "
                       "towers %.1f, reserve %.1f; %.1f MiB are available",
                       m->core.name, plan->n_ctx, (double)s->total_bytes * 0x1p-20, s->device,
                       (double)s->weight_bytes * 0x1p-20, (double)s->expert_bytes * 0x1p-20,
                       (double)kv_bytes(s) * 0x1p-20, (double)s->scratch_bytes * 0x1p-20,
                       (double)s->draft_bytes * 0x1p-20, (double)s->vision_bytes * 0x1p-20,
                       (double)s->reserve_bytes * 0x1p-20, (double)s->available_bytes * 0x1p-20);
    const int32_t at = (int32_t)(s - plan->device);
    if (at == m->n_sides)
        return err_set(e, E_MEMORY,
                       "the drafter of %s for a context of %d tokens needs %.1f MiB of memory of "
                       "%s, with everything of the model on that device; %.1f MiB are available "
                       "(--draft-device)",
                       m->core.name, plan->n_ctx, (double)plan_shared_total(m, plan, at) * 0x1p-20,
                       s->device, (double)s->available_bytes * 0x1p-20);
    char scorer[64] = "";
    if (plan->scorer_bytes && s - plan->device == host_side(m))
        snprintf(scorer, sizeof scorer, " (%.2f of it for the scorer of pages)",
                 (double)plan->scorer_bytes * 0x1p-30);
    return err_set(e, E_MEMORY,
                   "%s with a context of %d tokens needs %.2f GiB of memory%s%s%s, and %.2f GiB "
                   "are available",
                   m->core.name, plan->n_ctx,
                   (double)plan_shared_total(m, plan, (int32_t)(s - plan->device)) * 0x1p-30,
                   m->dev->host_memory ? "" : " of ", m->dev->host_memory ? "" : s->device, scorer,
                   (double)s->available_bytes * 0x1p-30);
}

carat_status carat_plan_check(const carat_model *m, const carat_memory_plan *plan, carat_error *e)
{
    return plan_check(m, plan, e);
}

carat_status carat_plan(const carat_model *m, const carat_session_options *opt,
                        carat_memory_plan *plan, carat_error *e)
{
    session_shape shape;
    status st = plan_shape(m, opt, 1, 0, &shape, e);
    return st ? st : plan_costs(m, &shape, NULL, plan, e);
}

static bool same_kind(const kv_view *a, const kv_view *b)
{
    return a->k_type == b->k_type && a->v_type == b->v_type && a->k_rot == b->k_rot &&
           a->v_rot == b->v_rot && a->single == b->single && a->window == b->window &&
           a->side == b->side && a->n_head_kv == b->n_head_kv && a->head_dim == b->head_dim &&
           a->n_slots == b->n_slots;
}

static carat_kv_kind kv_kind_of(const carat_model *m, const kv_layout *l, int32_t first)
{
    const kv_view *v = &l->view[first];
    carat_kv_kind k = {.first = m->core.kv[first].layer,
                       .window = v->window,
                       .n_head_kv = v->n_head_kv,
                       .head_dim = v->head_dim,
                       .n_slots = v->n_slots,
                       .single = v->single};
    kv_format_name((kv_format){v->k_type, v->k_rot}, k.k, sizeof k.k);
    kv_format_name((kv_format){v->v_type, v->v_rot}, k.v, sizeof k.v);
    k.device = model_device(m, v->side)->name;
    k.slow =
        device_attend_kernel(model_device(m, v->side), v, k.kernel, sizeof k.kernel) != KERNEL_FULL;
    for (int32_t i = first; i < l->n; i++)
        k.n_layers += same_kind(v, &l->view[i]);
    k.n_bytes = (uint64_t)k.n_layers * (uint64_t)v->n_slots * (uint64_t)v->n_head_kv *
                (v->k_row_bytes + v->v_row_bytes);
    return k;
}

int32_t carat_plan_kv(const carat_model *m, const carat_session_options *opt, carat_kv_kind *kinds,
                      int32_t cap, carat_error *e)
{
    session_shape shape;
    kv_layout l;
    int32_t n = 0;
    if (plan_shape(m, opt, 1, 0, &shape, e) || plan_layout(m, &shape, &l, e))
        return -1;
    for (int32_t i = 0; i < l.n; i++) {
        bool first = true;
        for (int32_t j = 0; j < i && first; j++)
            first = !same_kind(&l.view[i], &l.view[j]);
        if (first && n++ < cap)
            kinds[n - 1] = kv_kind_of(m, &l, i);
    }
    kv_layout_free(&l);
    return n;
}

static carat_weight_kind weight_kind_of(const carat_model *m, const weight *w)
{
    carat_weight_kind k = {.device = model_device(m, w->side)->name,
                           .n = 1,
                           .what = w->gather      ? "tables"
                                   : w->n_mat > 1 ? "experts"
                                                  : "matrices",
                           .type = num_name(w->type),
                           .n_bytes = w->n_bytes};
    if (w->gather)
        snprintf(k.kernel, sizeof k.kernel, "rows looked up");
    else
        k.slow = device_product_kernel(model_device(m, w->side), w, k.kernel, sizeof k.kernel) !=
                 KERNEL_FULL;
    return k;
}

int32_t carat_plan_weights(const carat_model *m, carat_weight_kind *kinds, int32_t cap)
{
    int32_t n = 0;
    for (int32_t i = 0; i < m->core.n_weights; i++) {
        const weight *w = m->core.weights[i];
        if (w->n_out < 2) /* a vector */
            continue;
        carat_weight_kind k = weight_kind_of(m, w);
        int32_t j = 0;
        while (j < n && (kinds[j].device != k.device || strcmp(kinds[j].what, k.what) ||
                         strcmp(kinds[j].type, k.type) || strcmp(kinds[j].kernel, k.kernel)))
            j++;
        if (j < n) {
            kinds[j].n++;
            kinds[j].n_bytes += k.n_bytes;
        } else if (n < cap) {
            kinds[n++] = k;
        }
    }
    return n;
}
