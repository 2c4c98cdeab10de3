/* stages.c - see stages.h.
 *
 * The devices that the caller names are stages. A stage has a range of layers; the first one has
 * the embeddings too, the last one the head. The last one is the main device. A CPU may be beside
 * them (--gpu-layers, --cpu-experts, or for want of memory): it has the first layers, or all
 * experts.
 *
 *     side      1 .. n_stages - 1      PASS_MAIN        n_stages
 *     device    stages 0, 1, ...       the last stage   the CPU beside, if it is there
 *
 * The caller may say in which proportion the stages have layers. Otherwise the planner's bytes
 * decide. With f the part of a device's memory M that is taken, the sum of M f^2 is the least of
 * all divisions in which no device is too full. So of each device about the same part is taken.
 *
 * Where experts have slots (experts.c), a device with experts of E bytes has room for R of them.
 * The sum of E^2 / R is the least. So of each device's experts about the same part has slots.
 */
#include "engine/stages.h"
#include "engine/experts.h"
#include "base/decimal.h"
#include "base/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Bytes of one stage. upto[il]: of the layers before il; experts[il]: of their experts, or NULL if
 * these are to be where their layers are. */
typedef struct stage_costs {
    double fixed, memory;
    double *upto, *experts; /* [n_layer + 1] */
} stage_costs;

status stages_read_split(carat_model *m, const char *text, err *e)
{
    int32_t n = 0;
    const char *at = text;
    for (char *end; n < m->n_stages; at = end + 1) {
        size_t len = strspn(at, "0123456789."); /* no 0x1, no 1e9 */
        double v = *at >= '0' && *at <= '9' ? decimal_read(at, &end) : 0;
        if (!(v > 0 && v <= 1e6) || end != at + len || *end != (n == m->n_stages - 1 ? 0 : ','))
            break;
        m->split[n++] = v;
    }
    if (n == m->n_stages)
        return OK;
    return err_set(e, E_ARG,
                   "--gpu-split '%.40s': expected a number above 0 for each of the %d devices, "
                   "with commas between",
                   text, m->n_stages);
}

/* ---- The choice ---------------------------------------------------------------------------- */

/* Of a stage with the layers first .. end - 1. Beyond its memory nothing makes up for it. */
static double strain(const stage_costs *c, int32_t first, int32_t end)
{
    const double bytes = c->fixed + c->upto[end] - c->upto[first], f = bytes / c->memory;
    if (c->experts) {
        double experts = c->experts[end] - c->experts[first], room = c->memory + experts - bytes;
        return room > 0 ? experts * (experts / room) : 1e30 * ((1 - room) * (1 - room));
    }
    return c->memory * (f * f + (f > 1 ? 1e15 * (f - 1) : 0));
}

static status no_division(const carat_model *m, err *e)
{
    int32_t n = m->core.n_layer - m->beside.n_layers;
    if (n < m->n_stages)
        return err_set(e, E_ARG, "%d layers of %s cannot be divided between %d devices", n,
                       m->core.name, m->n_stages);
    return err_set(e, E_ARG,
                   "%s cannot be divided between %d devices: its last %d layers belong together, "
                   "because late ones read the keys of early ones",
                   m->core.name, m->n_stages, m->core.n_layer - m->core.joined_from);
}

/* end[k]: the layer after the last one of stage k. best[k][i]: the least strain of the stages up to
 * k with the layers before i; from[k][i]: the first layer of stage k then. */
static status choose(const carat_model *m, const stage_costs *c, int32_t *end, err *e)
{
    int32_t n = m->core.n_layer, first = m->beside.n_layers, last = m->n_stages - 1;
    size_t row = (size_t)n + 1, cells = row * (size_t)m->n_stages;
    double *best = mem_alloc(cells * sizeof *best);
    int32_t *from = mem_calloc(cells, sizeof *from);
    status st = OK;
    if (!best || !from)
        st = err_memory(e, m->core.name, cells * sizeof *best);
    for (int32_t k = 0; k <= last && !st; k++)
        for (int32_t i = 0; i <= n; i++) {
            size_t at = (size_t)k * row + (size_t)i;
            best[at] = (double)INFINITY;
            for (int32_t j = first; j < i && (k ? j <= m->core.joined_from : j == first); j++) {
                double v = (k ? best[at - (size_t)i - row + (size_t)j] : 0) + strain(&c[k], j, i);
                if (v < best[at]) {
                    best[at] = v;
                    from[at] = j;
                }
            }
        }
    if (!st && isinf(best[cells - 1]))
        st = no_division(m, e);
    for (int32_t k = last, i = n; k >= 0 && !st; k--) {
        end[k] = i;
        i = from[(size_t)k * row + (size_t)i];
    }
    mem_free(best);
    mem_free(from);
    return st;
}

/* Each stage has a layer at least. */
static void choose_by_hand(const carat_model *m, int32_t *end)
{
    int32_t n = m->core.n_layer - m->beside.n_layers, last = m->n_stages - 1, at = 0;
    double sum = 0, upto = 0;
    for (int32_t k = 0; k <= last; k++)
        sum += m->split[k];
    for (int32_t k = 0; k <= last; k++) {
        upto += m->split[k];
        int32_t i = (int32_t)lround(n * upto / sum);
        i = i <= at ? at + 1 : i;
        at = i > n - (last - k) ? n - (last - k) : i;
        end[k] = m->beside.n_layers + at;
    }
}

/* ---- Bytes ---------------------------------------------------------------------------------- */

/* l and plan NULL: weights alone, on devices of equal memory. */
static void measure_stage(const carat_model *m, const session_shape *s, const kv_layout *l,
                          const carat_memory_plan *plan, int32_t k, stage_costs *c)
{
    const model *core = &m->core;
    const int32_t side = stage_side(m, k);
    const device *d = model_device(m, side);
    double *each = c->upto + 1;
    int32_t n_sharing = 0;
    for (int32_t i = 0; i < core->n_weights; i++) {
        const weight *w = core->weights[i];
        int32_t il = model_layer_of(core, w);
        if (il < 0 || (w->n_mat > 1 && m->beside.experts))
            continue;
        double n_bytes = (double)model_weight_bytes(d, w);
        each[il] += n_bytes;
        for (int32_t at = il + 1; w->n_mat > 1 && c->experts && at <= core->n_layer; at++)
            c->experts[at] += n_bytes;
    }
    for (int32_t i = 0; l && i < l->n; i++)
        each[core->kv[i].layer] +=
            (double)kv_store_bytes(&l->view[i]) * (l->view[i].window ? s->n_seqs : 1);
    for (int32_t i = 0; l && i < l->n_recur; i++)
        each[l->recur[i].layer] +=
            (double)kv_recur_parts_of(&l->recur[i]).all * sizeof(float) * s->n_seqs;
    for (int32_t il = 0; il < core->n_layer; il++)
        each[il] += c->upto[il];
    c->memory = 1;
    if (!plan)
        return;
    const carat_device_plan *p = &plan->device[side];
    int32_t first = k ? m->stage_end[k - 1] : m->beside.n_layers;
    c->fixed = (double)p->total_bytes - (c->upto[m->stage_end[k]] - c->upto[first]);
    c->fixed = c->fixed > 0 ? c->fixed : 0;
    for (int32_t j = 0; j < m->n_stages; j++)
        n_sharing += same_memory(d, model_device(m, stage_side(m, j)));
    double there = (double)p->available_bytes;
    if (m->draft_dev && same_memory(d, m->draft_dev)) /* a drafter is there too */
        there -= (double)plan->device[m->n_sides].total_bytes;
    c->memory = there > 0 ? there / n_sharing : 1;
}

static status place(carat_model *m, const int32_t *end, err *e)
{
    int32_t n = m->core.n_layer, k = 0;
    int8_t cpu = (int8_t)m->n_stages, *side = mem_alloc(2 * (size_t)n * sizeof *side);
    if (!side)
        return err_memory(e, m->core.name, 2 * (size_t)n);
    for (int32_t il = 0; il < n; il++) {
        k += il == end[k];
        side[il] = il < m->beside.n_layers ? cpu : (int8_t)stage_side(m, k);
        side[n + il] = m->beside.experts ? cpu : side[il];
    }
    status st = model_place(&m->core, m->other, m->n_sides - 1, side, side + n, e);
    memcpy(m->stage_end, end, sizeof m->stage_end);
    mem_free(side);
    return st;
}

/* By hand, or by the plan, or by weights alone. */
static status divide_by(carat_model *m, const session_shape *s, const kv_layout *l,
                        const carat_memory_plan *plan, int32_t *end, err *e)
{
    stage_costs c[PASS_SIDES_MAX] = {{0}};
    size_t row = (size_t)m->core.n_layer + 1;
    if (m->core.n_layer - m->beside.n_layers < m->n_stages)
        return no_division(m, e);
    if (m->split[0] > 0) {
        choose_by_hand(m, end);
        return OK;
    }
    double *cells = mem_calloc(2 * row * (size_t)m->n_stages, sizeof *cells);
    if (!cells)
        return err_memory(e, m->core.name, 2 * row * (size_t)m->n_stages * sizeof *cells);
    for (int32_t k = 0; k < m->n_stages; k++) {
        c[k].upto = cells + 2 * (size_t)k * row;
        c[k].experts = m->experts ? c[k].upto + row : NULL;
        measure_stage(m, s, l, plan, k, &c[k]);
    }
    status st = choose(m, c, end, e);
    mem_free(cells);
    return st;
}

status stages_place(carat_model *m, err *e)
{
    int32_t end[PASS_SIDES_MAX] = {0};
    if (m->core.n_ranks) /* every device has every layer */
        return OK;
    status st = divide_by(m, NULL, NULL, NULL, end, e);
    return st ? st : place(m, end, e);
}

bool stages_divide_by_plan(const carat_model *m)
{
    return m->n_stages > 1 && !m->core.n_ranks && !(m->split[0] > 0) && !experts_placed(m);
}

status stages_plan(carat_model *m, const session_shape *s, carat_memory_plan *plan, err *e)
{
    enum { ROUNDS = 3 }; /* scratch depends a little on the division */
    int32_t end[PASS_SIDES_MAX] = {0}, fitting[PASS_SIDES_MAX] = {0};
    kv_layout l = {0};
    status st = plan_costs(m, s, &l, plan, e);
    const bool divide = stages_divide_by_plan(m);
    for (int i = 0; i < ROUNDS && !st && divide; i++) {
        if (plan_fits(m, plan))
            memcpy(fitting, m->stage_end, sizeof fitting);
        st = divide_by(m, s, &l, plan, end, e);
        if (st || !memcmp(end, m->stage_end, sizeof end))
            break;
        kv_layout_free(&l);
        if (!(st = place(m, end, e)))
            st = plan_costs(m, s, &l, plan, e);
    }
    kv_layout_free(&l);
    if (st || !divide || !fitting[0] || plan_fits(m, plan))
        return st;
    st = place(m, fitting, e); /* rounds may alternate between a division that fits and another */
    return st ? st : plan_costs(m, s, NULL, plan, e);
}
