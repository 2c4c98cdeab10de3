/* gemma4_divide.c - a model on several devices: the side of each weight and each store.
 *
 * Every layer has a side. Its experts may have another side: they are most of the bytes, but few of
 * them are read per token. The embeddings are on the side of the first layer. Looking up their
 * tables costs a CPU nothing, so a CPU gets the first layers. The head is the largest product and
 * stays on the main device.
 *
 * A layer that reads another layer's keys must be on the same side as these keys.
 */
#include "model/gemma4.h"

/* The layer of a weight: a layer's weights lie inside its gemma4_layer. -1: none. */
static int32_t layer_of(const gemma4 *g, const weight *w)
{
    const char *at = (const char *)w, *first = (const char *)g->layer;
    if (at < first || at >= (const char *)(g->layer + g->n_layer))
        return -1;
    return (int32_t)((size_t)(at - first) / sizeof *g->layer);
}

/* The first layer whose keys another layer reads; n_layer if there is none. */
static int32_t first_donor(const gemma4 *g)
{
    int32_t first = g->n_layer;
    for (int32_t i = 0; i < g->n_layer; i++)
        if (!g->layer[i].owns_kv && g->layer[i].kv < first)
            first = g->layer[i].kv;
    return first;
}

static status check_division(const model *m, const gemma4 *g, err *e)
{
    bool apart = false;
    for (int32_t i = 0; i < g->n_layer; i++) {
        int32_t from = g->layer[i].kv;
        if (m->layer_side[i] != m->layer_side[from])
            return err_set(e, E_ARG,
                           "layer %d of %s would be on another device than layer %d, whose keys it "
                           "reads: the last %d layers belong together",
                           i, m->name, from, g->n_layer - first_donor(g));
        apart |= m->expert_side[i] != m->layer_side[i];
    }
    if (apart && !g->n_expert)
        return err_set(e, E_ARG, "%s has no experts that could stay with the CPU", m->name);
    return OK;
}

static void place_weights(model *m, const gemma4 *g)
{
    for (int32_t i = 0; i < m->n_weights; i++) {
        weight *w = m->weights[i];
        int32_t il = layer_of(g, w);
        bool first = w == &g->embd || w == &g->ple_embd || w == &g->ple_proj || w == &g->ple_norm;
        if (il >= 0)
            w->side = w->n_mat > 1 ? m->expert_side[il] : m->layer_side[il];
        else
            w->side = first ? m->layer_side[0] : PASS_MAIN;
    }
}

/* by_side: [PASS_SIDES_MAX]. */
static status copy_rope(model *m, rope *by_side, int8_t side, err *e)
{
    const rope *from = &by_side[PASS_MAIN];
    rope *to = &by_side[side];
    *to = *from;
    status st = model_copy_table(m, (const void *const *)&from->inv_freq,
                                 (const void **)&to->inv_freq, side, e);
    return st ? st
              : model_copy_table(m, (const void *const *)&from->turns, (const void **)&to->turns,
                                 side, e);
}

status gemma4_divide(model *m, err *e)
{
    gemma4 *g = m->impl;
    status st = check_division(m, g, e);
    for (int8_t side = 1; side < m->n_sides && !st; side++) {
        if (!model_layers_on(m, side))
            continue;
        st = copy_rope(m, g->rope_swa, side, e);
        st = st ? st : copy_rope(m, g->rope_global, side, e);
    }
    if (st)
        return st;
    place_weights(m, g);
    for (int32_t i = 0; i < g->n_layer; i++) {
        gemma4_layer *L = &g->layer[i];
        L->side = m->layer_side[i];
        L->rope = L->swa ? &g->rope_swa[L->side] : &g->rope_global[L->side];
        if (!L->owns_kv)
            continue;
        m->kv[i].side = L->side;
        m->kv[i].k_rope = L->rope;
    }
    return OK;
}
