/* gemma4_divide.c - a model on two devices: which weights and stores are on which.
 *
 * The first layers go to the host, with the embeddings before them: their tables are looked up,
 * which costs a CPU nothing, and the stream crosses over once. The head, the largest product of
 * all, stays on the main device. Experts may be on the host alone: few are read per token, and they
 * are most of the bytes.
 *
 * A layer that reads another layer's keys must be where these are.
 */
#include "model/gemma4.h"

/* Weights of a layer lie in its gemma4_layer. */
static bool belongs_to(const gemma4_layer *first, int32_t n, const weight *w)
{
    const char *at = (const char *)w;
    return at >= (const char *)first && at < (const char *)(first + n);
}

/* The first layer whose keys another one reads; n_layer if there is none. */
static int32_t first_donor(const gemma4 *g)
{
    int32_t first = g->n_layer;
    for (int32_t i = 0; i < g->n_layer; i++)
        if (!g->layer[i].owns_kv && g->layer[i].kv < first)
            first = g->layer[i].kv;
    return first;
}

static status check(const model *m, const gemma4 *g, err *e)
{
    int32_t n = m->division.n_layers, donor = first_donor(g);
    if (n < 0 || n >= g->n_layer)
        return err_set(e, E_ARG, "%d layers on the GPU: %s has %d, and 1 to all of them may be",
                       g->n_layer - n, m->name, g->n_layer);
    if (n > donor)
        return err_set(e, E_ARG,
                       "%d layers on the GPU: the last ones of %s read the keys of layer %d, which "
                       "must be there too, so at least %d",
                       g->n_layer - n, m->name, donor, g->n_layer - donor);
    if (m->division.experts && !g->n_expert)
        return err_set(e, E_ARG, "%s has no experts that could stay with the CPU", m->name);
    return OK;
}

static void place_weights(model *m, const gemma4 *g)
{
    int32_t n = m->division.n_layers;
    for (int32_t i = 0; i < m->n_weights; i++) {
        weight *w = m->weights[i];
        bool before =
            n && (w == &g->embd || w == &g->ple_embd || w == &g->ple_proj || w == &g->ple_norm);
        bool expert = m->division.experts && w->n_mat > 1;
        w->side = before || expert || belongs_to(g->layer, n, w) ? PASS_HOST : PASS_MAIN;
    }
}

status gemma4_divide(model *m, err *e)
{
    gemma4 *g = m->impl;
    status st = check(m, g, e);
    if (st)
        return st;
    place_weights(m, g);
    g->host_rope_swa = g->rope_swa;
    g->host_rope_global = g->rope_global;
    for (int32_t i = 0; i < m->division.n_layers; i++) {
        gemma4_layer *L = &g->layer[i];
        L->side = PASS_HOST;
        L->rope = L->swa ? &g->host_rope_swa : &g->host_rope_global;
        if (!L->owns_kv)
            continue;
        m->kv[i].side = PASS_HOST;
        m->kv[i].k_rope = L->rope;
    }
    return OK;
}
