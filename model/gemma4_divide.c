/* gemma4_divide.c - a model on several devices: the side of each weight and each store.
 *
 * Every layer has a side. Its experts may have another side: they are most of the bytes, but few of
 * them are read per token. The embeddings are on the side of the first layer. Looking up their
 * tables costs a CPU nothing, so a CPU gets the first layers. The head is the largest product and
 * stays on the main device.
 *
 * A layer that reads another layer's keys must be on the same side as these keys.
 */
#include "model/bind.h"
#include "model/gemma4.h"

static status check_division(const model *m, const gemma4 *g, err *e)
{
    for (int32_t i = 0; i < g->n_layer; i++) {
        int32_t from = g->layer[i].kv;
        if (m->layer_side[i] != m->layer_side[from])
            return err_set(e, E_ARG,
                           "layer %d of %s would be on another device than layer %d, whose keys it "
                           "reads: the last %d layers belong together",
                           i, m->name, from, g->n_layer - m->joined_from);
    }
    return OK;
}

status gemma4_divide(model *m, err *e)
{
    gemma4 *g = m->impl;
    const weight *const first[] = {&g->embd, &g->ple_embd, &g->ple_proj, &g->ple_norm, NULL};
    status st = check_division(m, g, e);
    if (st || (st = divide_layers(m, first, e)))
        return st;
    for (int32_t i = 0; i < m->n_kv; i++)
        m->kv[i].k_rope = g->layer[i].rope;
    return OK;
}

void gemma4_at_rank(model *rank)
{
    ((gemma4 *)rank->impl)->layer = rank->layers;
}

int32_t gemma4_kv_of(const model *m, int32_t il)
{
    return ((const gemma4 *)m->impl)->layer[il].kv;
}
