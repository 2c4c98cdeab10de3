/* divide.c - what dividing a model between devices takes in every family: the side of each weight,
 * and a copy of small tables for each side. See bind.h; gemma4_divide.c says why a CPU gets the
 * first layers.
 */
#include "model/bind.h"

/* A layer's weights lie inside its struct. */
int32_t model_layer_of(const model *m, const weight *w)
{
    const char *at = (const char *)w, *first = m->layers;
    if (at < first || at >= first + (size_t)m->n_layer * m->layer_bytes)
        return -1;
    return (int32_t)((size_t)(at - first) / m->layer_bytes);
}

static void divide_weights(model *m, const weight *const *first)
{
    for (int32_t i = 0; i < m->n_weights; i++) {
        weight *w = m->weights[i];
        int32_t il = model_layer_of(m, w);
        w->side = PASS_MAIN;
        if (il >= 0)
            w->side = w->n_mat > 1 ? m->expert_side[il] : m->layer_side[il];
        for (const weight *const *f = first; *f; f++)
            if (w == *f)
                w->side = m->layer_side[0];
    }
}

status divide_rope(model *m, rope *by_side, int8_t side, err *e)
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

static model_layer *layer_at(const model *m, int32_t il)
{
    return (model_layer *)(void *)((char *)m->layers + (size_t)il * m->layer_bytes);
}

/* E_ARG where experts should be apart from their layers and there are none. */
static status check_experts(const model *m, bool has_experts, err *e)
{
    for (int32_t i = 0; i < m->n_layer && !has_experts; i++)
        if (m->expert_side[i] != m->layer_side[i])
            return err_set(e, E_ARG, "%s has no experts that could stay with the CPU", m->name);
    return OK;
}

status divide_layers(model *m, const weight *const *first, err *e)
{
    status st = check_experts(m, m->n_expert_layers > 0, e);
    for (int32_t i = 0; i < m->n_layer && !st; i++) {
        const model_layer *L = layer_at(m, i);
        int8_t side = m->layer_side[i];
        if (L->rope && side != PASS_MAIN)
            st = divide_rope(m, (rope *)L->rope - L->side, side, e);
    }
    if (st)
        return st;
    divide_weights(m, first);
    for (int32_t i = 0; i < m->n_layer; i++) {
        model_layer *L = layer_at(m, i);
        if (L->rope)
            L->rope += m->layer_side[i] - L->side;
        L->side = m->layer_side[i];
    }
    for (int32_t i = 0; i < m->n_kv; i++)
        m->kv[i].side = m->layer_side[m->kv[i].layer];
    return OK;
}

status divide_plain(model *m, err *e)
{
    return divide_layers(m, (const weight *const[]){m->embd, NULL}, e);
}
