/* tensor_split.c - see tensor_split.h.
 *
 * Parts of weights are views into the file: rows from some row on, or columns of every row. A part
 * in several pieces (of a recurrent layer's values) is copied while it is loaded. The forward pass
 * of an architecture does not know of any of this: it derives its shapes from its weights and
 * stores, and the sums over ranks belong to the products (weight.segment).
 */
#include "model/tensor_split.h"
#include "backend/ranks.h"
#include "base/mem.h"
#include "model/bind.h"
#include "model/lora.h"
#include "model/shard.h"

#include <stdio.h>
#include <string.h>

typedef struct weight_pieces {
    shard part;
    shard_tensor of;
    const void *from; /* its bytes */
    void *copy;       /* NULL: not loaded, or the device has its own */
} weight_pieces;

/* While a model is being split: what it was before. */
typedef struct splitter {
    model *m;
    int32_t n; /* ranks */
    int32_t n_whole;
    weight **at;       /* [n_whole] its weights */
    weight *whole;     /* [n_whole] copies of them, not cut */
    kv_spec *kv;       /* [n_kv] its stores */
    recur_view *recur; /* [n_recur] */
    int32_t n_kv, n_recur;
    err *e;
} splitter;

static model *rank_at(const model *m, int32_t r)
{
    return r ? &m->rank[r - 1] : (model *)m;
}

/* ---- Copies of the architecture's structs --------------------------------------------------- */

/* The place in the structs of rank r of what `at` is in the model's own; NULL: it is in neither. */
static void *in_rank(const model *m, int32_t r, const void *at)
{
    const model *to = rank_at(m, r);
    const char *p = at, *layers = m->layers, *impl = m->impl;
    if (p >= layers && p < layers + (size_t)m->n_layer * m->layer_bytes)
        return (char *)to->layers + (p - layers);
    if (p >= impl && p < impl + m->impl_bytes)
        return (char *)to->impl + (p - impl);
    return NULL;
}

static model_layer *layer_at(const model *m, int32_t il)
{
    return (model_layer *)(void *)((char *)m->layers + (size_t)il * m->layer_bytes);
}

/* A rank's tables of rotation are in the model's own structs, by side (divide.c). */
static status place_layers(const splitter *s, int32_t r)
{
    model *to = rank_at(s->m, r);
    status st = OK;
    for (int32_t il = 0; il < s->m->n_layer && !st; il++) {
        model_layer *own = layer_at(s->m, il), *L = layer_at(to, il);
        L->side = (int8_t)r;
        if (!own->rope || !r)
            continue;
        st = divide_rope(s->m, (rope *)own->rope, (int8_t)r, s->e);
        L->rope = own->rope + r;
    }
    return st;
}

static status copy_structs(const splitter *s)
{
    model *m = s->m;
    const size_t layers = (size_t)m->n_layer * m->layer_bytes;
    if (s->n > 1 && !(m->rank = arena_array(&m->mem, (size_t)s->n - 1, sizeof *m->rank)))
        return err_memory(s->e, m->name, (size_t)s->n * sizeof *m->rank);
    for (int32_t r = 1; r < s->n; r++) {
        model *to = rank_at(m, r);
        *to = *m;
        to->layers = arena_alloc(&m->mem, layers);
        to->impl = arena_alloc(&m->mem, m->impl_bytes);
        if (!to->layers || !to->impl)
            return err_memory(s->e, m->name, layers + m->impl_bytes);
        memcpy(to->layers, m->layers, layers);
        memcpy(to->impl, m->impl, m->impl_bytes);
        m->arch->at_rank(to);
        to->embd = in_rank(m, r, m->embd);
        to->head = in_rank(m, r, m->head);
    }
    return OK;
}

/* The list of a rank's own weights of experts. */
static status copy_experts(const splitter *s, int32_t r)
{
    const model *m = s->m;
    const size_t n = (size_t)m->n_expert_layers;
    model *to = rank_at(m, r);
    if (!r || !n)
        return OK;
    if (!(to->experts = arena_array(&s->m->mem, n, sizeof *to->experts)))
        return err_memory(s->e, m->name, n * sizeof *to->experts);
    for (size_t i = 0; i < n; i++) {
        const model_experts *from = &m->experts[i];
        to->experts[i] = *from;
        to->experts[i].gate = in_rank(m, r, from->gate);
        to->experts[i].up = in_rank(m, r, from->up);
        to->experts[i].down = in_rank(m, r, from->down);
        to->experts[i].router = in_rank(m, r, from->router);
        to->experts[i].router_in = in_rank(m, r, from->router_in);
        to->experts[i].router_bias = in_rank(m, r, from->router_bias);
    }
    return OK;
}

/* ---- Weights -------------------------------------------------------------------------------- */

static const weight *find_weight(const splitter *s, int32_t il, const char *tail)
{
    char name[64];
    snprintf(name, sizeof name, "blk.%d.%s", il, tail);
    for (int32_t i = 0; i < s->n_whole; i++)
        if (!strcmp(s->whole[i].name, name))
            return &s->whole[i];
    return NULL;
}

/* The copy of a weight of the model that is not cut. */
static const weight *whole_of(const splitter *s, const weight *at)
{
    for (int32_t i = 0; i < s->n_whole; i++)
        if (s->at[i] == at)
            return &s->whole[i];
    return at;
}

static int32_t type_of(const weight *w)
{
    return w ? (int32_t)w->type : -1;
}

static shard_layer layer_numbers(const splitter *s, int32_t il)
{
    if (il < 0)
        return (shard_layer){.down = -1, .down_exps = -1, .down_shexp = -1};
    const int32_t store = s->m->arch->kv_of ? s->m->arch->kv_of(s->m, il) : il;
    const weight *experts = find_weight(s, il, "ffn_down_exps.weight");
    shard_layer l = {.recurs = store < 0,
                     .n_ff_exps = experts ? experts->n_in : 0,
                     .n_expert = experts ? experts->n_mat : 0,
                     .down_exps = type_of(experts),
                     .down = type_of(find_weight(s, il, "ffn_down.weight")),
                     .down_shexp = type_of(find_weight(s, il, "ffn_down_shexp.weight"))};
    if (l.recurs) {
        const recur_view *v = s->recur;
        while (v->layer != il)
            v++;
        l.n_k = v->n_k;
        l.n_v = v->n_v;
        l.dk = v->dk;
        l.dv = v->dv;
        return l;
    }
    const weight *wo = find_weight(s, il, "attn_output.weight");
    l.n_head = wo ? wo->n_in / s->kv[store].head_dim : 0;
    l.n_head_kv = s->kv[store].n_head_kv;
    return l;
}

/* A token table that is multiplied is the head. */
static shard_tensor as_tensor(const weight *w)
{
    const bool tied = !w->gather && !strcmp(w->name, "token_embd.weight");
    return (shard_tensor){tied ? "output.weight" : w->name,
                          w->type,
                          w->n_out > 1 || w->n_mat > 1 ? 2 : 1,
                          {w->n_in, w->n_out, w->n_mat}};
}

/* Queries, keys and values in one tensor are three weights, each with some of its rows: the part of
 * w's rows is one of the tensor's three spans. */
static status joined_part(const splitter *s, const shard_layer *layer, const weight *w,
                          shard_range range, shard *out)
{
    const tensor *t = tensor_find(&s->m->file.tensors, w->name);
    const int64_t row0 = ((const char *)w->data - (const char *)t->bytes) / (int64_t)w->row_bytes;
    const shard_tensor all = {w->name, w->type, 2, {w->n_in, (int64_t)t->ne[1], 1}};
    shard three;
    status st = shard_of(layer, &all, range, &three, s->e);
    for (int32_t i = 0; i < three.n && !st; i++)
        if (three.span[i].first >= row0 && three.span[i].first < row0 + w->n_out)
            *out = (shard){
                .axis = SHARD_OUT, .n = 1, .span = {{three.span[i].first - row0, three.span[i].n}}};
    return st;
}

static status part_of(const splitter *s, const shard_layer *layer, const weight *w,
                      shard_range range, shard *out)
{
    const shard_tensor t = as_tensor(w);
    if (!layer->recurs && strstr(w->name, "attn_qkv"))
        return joined_part(s, layer, w, range, out);
    status st = shard_of(layer, &t, range, out, s->e);
    int32_t n = 0;
    for (int32_t i = 1; i < out->n && !st; i++) { /* spans that follow each other are one */
        if (out->span[i].first == out->span[n].first + out->span[n].n)
            out->span[n].n += out->span[i].n;
        else
            out->span[++n] = out->span[i];
    }
    out->n = out->n ? n + 1 : 0;
    return st;
}

/* The weight at w, of experts, becomes those of the span. */
static void cut_mats(weight *w, int64_t first, int64_t n)
{
    w->data = (const char *)w->data + (size_t)first * w->mat_bytes;
    w->first_mat = (int32_t)first;
    w->n_mat_all = w->n_mat;
    w->factor = w->factor ? w->factor + first : NULL;
    w->n_mat = (int32_t)n;
    w->n_bytes = w->mat_bytes * (size_t)n;
}

/* The weight at w becomes a view of the span of it. */
static void cut_span(weight *w, shard_axis axis, int64_t first, int64_t n)
{
    uint64_t skip = 0, row = 0;
    if (axis == SHARD_MAT) {
        cut_mats(w, first, n);
        return;
    }
    if (axis == SHARD_IN)
        num_row_bytes(w->type, (uint64_t)first, &skip);
    else
        skip = (uint64_t)first * w->row_bytes;
    w->data = (const char *)w->data + skip;
    *(axis == SHARD_IN ? &w->n_in : &w->n_out) = (int32_t)n;
    num_row_bytes(w->type, (uint64_t)w->n_in, &row);
    w->n_bytes = row * (uint64_t)w->n_out * (uint64_t)w->n_mat;
}

/* The weight at w becomes its part, whose bytes are copied when it is loaded. */
static status cut_pieces(const splitter *s, const shard *part, weight *w)
{
    weight_pieces *p = arena_alloc(&s->m->mem, sizeof *p);
    if (!p)
        return err_memory(s->e, w->name, sizeof *p);
    *p = (weight_pieces){.part = *part, .of = as_tensor(w), .from = w->data};
    const int32_t n = (int32_t)shard_size(part);
    uint64_t row = 0;
    *(part->axis == SHARD_IN ? &w->n_in : &w->n_out) = n;
    num_row_bytes(w->type, (uint64_t)w->n_in, &row);
    w->row_bytes = row;
    w->mat_bytes = row * (uint64_t)w->n_out;
    w->n_bytes = w->mat_bytes * (uint64_t)w->n_mat;
    w->data = NULL;
    w->pieces = p;
    return OK;
}

static status cut(const splitter *s, const shard *part, weight *w)
{
    if (part->n > 1)
        return cut_pieces(s, part, w);
    cut_span(w, part->axis, part->span[0].first, part->span[0].n);
    return OK;
}

status weight_gather(weight *w, err *e)
{
    weight_pieces *p = w->pieces;
    if (!p || p->copy)
        return OK;
    if (!(p->copy = mem_alloc(w->n_bytes)))
        return err_memory(e, w->name, w->n_bytes);
    shard_copy(&p->part, &p->of, p->from, p->copy);
    w->data = p->copy;
    return OK;
}

void weight_drop(weight *w)
{
    if (!w->pieces)
        return;
    mem_free(w->pieces->copy);
    w->pieces->copy = NULL;
    w->data = NULL;
}

/* ---- Adapters ---- */

/* Is it half of an adapter's pair? */
static bool is_adapter(const splitter *s, const weight *w)
{
    const char *at = (const char *)w;
    for (int32_t i = 0; i < s->m->n_loras; i++) {
        const model_lora *x = &s->m->loras[i];
        if (at >= (const char *)x->pair && at < (const char *)(x->pair + x->n_pairs))
            return true;
    }
    return false;
}

/* w, a part of `whole`, gets those of its adapters: B is cut as its rows, A as its columns, both as
 * its experts. NULL: w is all of it. */
static status cut_adapters(const splitter *s, const weight *whole, const shard *part, weight *w)
{
    status st = OK;
    w->lora = NULL;
    for (const lora_pair *l = whole->lora; l && !st; l = l->next) {
        lora_pair *own = arena_alloc(&s->m->mem, sizeof *own);
        if (!own)
            return err_memory(s->e, whole->name, sizeof *own);
        *own = *l;
        own->next = w->lora;
        own->a.side = own->b.side = w->side;
        own->a.n_out_all = own->a.n_out;
        own->b.n_out_all = own->b.n_out;
        if (part && part->axis != SHARD_OUT)
            st = cut(s, part, &own->a);
        if (part && part->axis != SHARD_IN && !st)
            st = cut(s, part, &own->b);
        if (st || (st = model_remember(s->m, &own->a, s->e)) ||
            (st = model_remember(s->m, &own->b, s->e)))
            break;
        w->lora = own;
    }
    return st;
}

/* ---- Segments ---- */

/* The biases of a segment's experts. */
static status cut_bias(const splitter *s, const weight *whole, int8_t side, const shard *part,
                       const weight **out)
{
    weight *b = arena_alloc(&s->m->mem, sizeof *b);
    if (!b)
        return err_memory(s->e, whole->name, sizeof *b);
    *b = *whole;
    b->side = side;
    cut_mats(b, part->span[0].first, part->span[0].n);
    *out = b;
    return model_remember(s->m, b, s->e);
}

/* Is it the dense branch of a layer whose experts' sum follows? Both are normed apart, so nothing
 * reads the first before the second is there (gemma4.c). */
static bool is_beside_experts(const splitter *s, const shard_layer *layer, const weight *w,
                              shard_range range)
{
    int32_t il = -1;
    shard part = {0};
    if (sscanf(w->name, "blk.%d.", &il) != 1 || !strstr(w->name, ".ffn_down.weight"))
        return false;
    const weight *experts = find_weight(s, il, "ffn_down_exps.weight");
    return experts && !part_of(s, layer, experts, range, &part) && part.partial;
}

/* w, a view of the rank's inputs, gets the segments that the rank has. */
static status cut_segments(const splitter *s, const shard_layer *layer, const weight *whole,
                           shard_range range, weight *w)
{
    const int32_t n = range.to - range.from;
    weight *seg = arena_array(&s->m->mem, (size_t)n, sizeof *seg);
    status st = seg ? OK : err_memory(s->e, w->name, (size_t)n * sizeof *seg);
    for (int32_t i = 0; i < n && !st; i++) {
        shard part;
        int32_t k = range.from + i;
        st = part_of(s, layer, whole, (shard_range){k, k + 1}, &part);
        if (st)
            break;
        seg[i] = *whole;
        seg[i].side = w->side;
        seg[i].n_out_all = w->n_out_all;
        seg[i].bias = k ? NULL : w->bias; /* once in the sum */
        w->n_tiles = part.n;
        st = cut(s, &part, &seg[i]);
        if (!st && whole->bias && part.axis == SHARD_MAT)
            st = cut_bias(s, whole_of(s, whole->bias), w->side, &part, &seg[i].bias);
        st = st ? st : cut_adapters(s, whole, &part, &seg[i]);
        st = st ? st : model_remember(s->m, &seg[i], s->e);
    }
    w->bias = NULL;
    w->lora = NULL;
    w->segment = seg;
    w->n_segments = n;
    w->sum_waits = !st && is_beside_experts(s, layer, whole, range);
    return st;
}

/* The biases of these rows of every expert, side by side. */
static status copy_biases(const splitter *s, const weight *whole, int8_t side, const shard *part,
                          const weight **out)
{
    const shard_tensor t = as_tensor(whole);
    const shard in = {.axis = SHARD_IN, .n = 1, .span = {part->span[0]}};
    weight *b = arena_alloc(&s->m->mem, sizeof *b);
    float *v = arena_alloc(&s->m->mem, (size_t)shard_bytes(&in, &t));
    if (!b || !v)
        return err_memory(s->e, whole->name, (size_t)shard_bytes(&in, &t));
    shard_copy(&in, &t, whole->data, v);
    *b = *whole;
    b->side = side;
    b->n_in = (int32_t)shard_size(&in);
    b->data = v;
    b->row_bytes = b->mat_bytes = (size_t)b->n_in * sizeof *v;
    b->n_bytes = b->mat_bytes * (size_t)b->n_mat;
    *out = b;
    return model_remember(s->m, b, s->e);
}

/* w, of experts, becomes these rows of each, and its adapters' and biases with it. */
static status cut_rows(const splitter *s, const weight *whole, const shard *part, weight *w)
{
    status st = OK;
    cut_span(w, SHARD_OUT, part->span[0].first, part->span[0].n);
    w->n_out_all = w->n_out;
    if (whole->bias)
        st = copy_biases(s, whole_of(s, whole->bias), w->side, part, &w->bias);
    st = st ? st : cut_adapters(s, whole, part, w);
    return st ? st : model_remember(s->m, w, s->e);
}

/* w, of experts whose rows are cut, gets those of the rank. Gate and up in one are two weights,
 * because their rows do not follow each other. */
static status cut_experts(const splitter *s, const weight *whole, const shard *part, weight *w)
{
    status st = OK;
    if (part->n == 1)
        return cut_rows(s, whole, part, w);
    weight *half = arena_array(&s->m->mem, 2, sizeof *half);
    if (!half)
        return err_memory(s->e, w->name, 2 * sizeof *half);
    for (int32_t i = 0; i < 2 && !st; i++) {
        const shard rows = {.axis = SHARD_OUT, .n = 1, .span = {part->span[i]}};
        half[i] = *whole;
        half[i].side = w->side;
        st = cut_rows(s, whole, &rows, &half[i]);
    }
    w->lora = NULL;
    w->n_out = 0;
    w->bias = NULL;
    w->segment = half;
    w->n_segments = 2;
    return st;
}

/* Weight i in the structs of rank r. */
static status cut_weight(const splitter *s, int32_t i, int32_t r)
{
    const weight *whole = &s->whole[i];
    const shard_layer layer = layer_numbers(s, model_layer_of(s->m, s->at[i]));
    const shard_range range = shard_range_of(r, s->n), last = {SHARD_SEGMENTS - 1, SHARD_SEGMENTS};
    weight *w = in_rank(s->m, r, s->at[i]);
    shard part = {0}, of_last = {0};
    if (!w)
        return err_set(s->e, E_UNSUPPORTED,
                       "tensor %s cannot be divided between devices (--split tensor): it is no "
                       "layer's",
                       whole->name);
    status st = part_of(s, &layer, whole, range, &part);
    if (st || (st = part_of(s, &layer, whole, last, &of_last)))
        return st;
    w->side = (int8_t)r;
    w->n_out_all = w->n_out;
    w->bias = w->bias ? in_rank(s->m, r, w->bias) : NULL;
    w->first_rank = of_last.axis == SHARD_NONE;
    w->lora = NULL;
    if (part.axis == SHARD_NONE)
        return OK;
    if (w->n_mat > 1 && part.axis == SHARD_OUT)
        return cut_experts(s, whole, &part, w);
    if (w->n_mat > 1 && part.axis == SHARD_IN && !part.partial)
        return OK;                             /* its segments have their biases */
    if (part.partial && part.axis == SHARD_IN) /* its segments are loaded, not itself */
        w->n_in = (int32_t)shard_size(&part);
    else if (part.axis != SHARD_WHOLE)
        st = cut(s, &part, w);
    if (!st && !part.partial)
        st = cut_adapters(s, whole, part.axis == SHARD_WHOLE ? NULL : &part, w);
    return st             ? st
           : part.partial ? cut_segments(s, &layer, whole, range, w)
                          : model_remember(s->m, w, s->e);
}

static status cut_weights(const splitter *s)
{
    status st = OK;
    s->m->n_weights = 0;
    for (int32_t r = 0; r < s->n; r++)
        for (int32_t i = 0; i < s->n_whole && !st; i++)
            if (!is_adapter(s, s->at[i])) /* they go with their weights */
                st = cut_weight(s, i, r);
    return st;
}

/* ---- Stores --------------------------------------------------------------------------------- */

static status cut_stores(const splitter *s)
{
    model *m = s->m;
    const size_t n = (size_t)s->n * (size_t)s->n_kv;
    if (!(m->kv = arena_array(&m->mem, n, sizeof *m->kv)))
        return err_memory(s->e, m->name, n * sizeof *m->kv);
    for (int32_t r = 0; r < s->n; r++)
        for (int32_t i = 0; i < s->n_kv; i++) {
            const shard_layer layer = layer_numbers(s, s->kv[i].layer);
            kv_spec *to = &m->kv[r * s->n_kv + i];
            shard_heads h;
            err why = {0};
            status st =
                shard_heads_of(layer.n_head, s->kv[i].n_head_kv, shard_range_of(r, s->n), &h, &why);
            if (st)
                return err_set(s->e, st, "%s, layer %d: %s (--split tensor)", m->name,
                               s->kv[i].layer, why.text);
            *to = s->kv[i];
            to->n_head_kv = h.kv_n;
            to->head0 = h.kv_first;
            to->head_all = layer.n_head;
            to->head_kv_all = s->kv[i].n_head_kv;
            to->side = (int8_t)r;
            to->k_norm = to->k_norm ? in_rank(m, r, to->k_norm) : NULL;
            to->sinks = to->sinks ? in_rank(m, r, to->sinks) : NULL;
            to->k_rope = to->k_rope ? to->k_rope + r : NULL;
        }
    m->n_kv = (int32_t)n;
    return OK;
}

static status cut_states(const splitter *s)
{
    model *m = s->m;
    const size_t n = (size_t)s->n * (size_t)s->n_recur;
    if (n && !(m->recur = arena_array(&m->mem, n, sizeof *m->recur)))
        return err_memory(s->e, m->name, n * sizeof *m->recur);
    for (size_t at = 0; at < n; at++) {
        const int32_t r = (int32_t)at / s->n_recur;
        recur_view *to = &m->recur[at];
        *to = s->recur[(int32_t)at % s->n_recur];
        const int32_t n_k = shard_keys_of(to->n_k, shard_range_of(r, s->n));
        to->n_v = to->n_v / to->n_k * n_k;
        to->n_k = n_k;
        to->side = (int8_t)r;
    }
    m->n_recur = (int32_t)n;
    return OK;
}

/* ---- All of it ------------------------------------------------------------------------------ */

status model_split(model *m, device *const *others, int32_t n, err *e)
{
    splitter s = {.m = m,
                  .n = n,
                  .n_whole = m->n_weights,
                  .kv = m->kv,
                  .recur = m->recur,
                  .n_kv = m->n_kv,
                  .n_recur = m->n_recur,
                  .e = e};
    const size_t n_whole = (size_t)m->n_weights;
    status st = OK;
    if (!m->arch->at_rank)
        return err_set(e, E_UNSUPPORTED,
                       "%s (%s): models of this family cannot be split by tensors yet "
                       "(--split tensor)",
                       m->name, m->arch->name);
    s.at = arena_array(&m->mem, n_whole, sizeof *s.at);
    s.whole = arena_array(&m->mem, n_whole, sizeof *s.whole);
    if (!s.at || !s.whole)
        return err_memory(e, m->name, n_whole * (sizeof *s.at + sizeof *s.whole));
    for (size_t i = 0; i < n_whole; i++) {
        s.at[i] = m->weights[i];
        s.whole[i] = *m->weights[i];
    }
    m->n_sides = n;
    for (int32_t i = 1; i < n; i++)
        m->dev[i] = others[i - 1];
    if ((st = ranks_open(&m->ranks, n, e)) || (st = copy_structs(&s)))
        return st;
    for (int32_t r = 0; r < n && !st; r++)
        if (!(st = place_layers(&s, r)))
            st = copy_experts(&s, r);
    if (st || (st = cut_stores(&s)) || (st = cut_weights(&s)) || (st = cut_states(&s)))
        return st;
    m->n_ranks = n;
    for (int32_t r = 1; r < n; r++)
        rank_at(m, r)->n_ranks = n;
    return OK;
}

/* ---- Passes --------------------------------------------------------------------------------- */

typedef struct rank_run {
    const model *m;
    const kv_layout *kv;
    pass of[RANKS_MAX];
    mat y[RANKS_MAX];
} rank_run;

static void run_rank(void *arg, int32_t r)
{
    rank_run *u = arg;
    pass *p = &u->of[r];
    const model *m = rank_at(u->m, r);
    kv_layout kv = *u->kv; /* the rank's stores, as those of a whole model */
    kv.n = u->m->n_kv / u->m->n_ranks;
    kv.view += r * kv.n;
    kv.n_recur = u->m->n_recur / u->m->n_ranks;
    kv.recur += r * kv.n_recur;
    u->y[r] = m->arch->forward(p, m, &kv);
    pass_shapes(p, "forward: a sum over ranks that nobody took", !p->waiting.y.rows);
}

mat model_head_ranks(pass *p, const model *m, const mat *x, int32_t n_x)
{
    mat y = pass_mat(p, x->rows, 1, m->n_vocab), part[RANKS_MAX];
    visit v[RANKS_MAX];
    for (int32_t r = m->n_ranks - 1; r >= 0; r--) { /* all begin before the first rank waits */
        mat in = x[r < n_x ? r : 0];
        v[r] = op_visit(p, p->target + r, r < n_x ? NULL : &in, NULL);
        part[r] = op_matmul(p, in, rank_at(m, r)->head);
        pass_turn(p, p->target);
    }
    for (int32_t r = 0, first = 0; r < m->n_ranks && !pass_failed(p); first += part[r++].cols) {
        const size_t mark = pass_mark(p);
        op_copy(p, mat_columns(y, first, part[r].cols), op_return(p, v[r], part[r]));
        pass_release(p, mark);
    }
    return y;
}

mat model_forward_ranks(pass *p, const model *m, const kv_layout *kv)
{
    rank_run u = {.m = m, .kv = kv};
    for (int32_t r = 0; r < m->n_ranks; r++) {
        pass *q = &u.of[r];
        *q = *p;
        q->here = r;
        q->dev = p->side[r].dev;
        q->ranks = p->dry ? NULL : m->ranks;
        q->rank = r;
        q->n_ranks = m->n_ranks;
    }
    if (p->dry)
        for (int32_t r = 0; r < m->n_ranks; r++)
            run_rank(&u, r);
    else
        ranks_run(m->ranks, u.of, run_rank, &u);
    *p = u.of[0];
    p->ranks = NULL;
    p->n_ranks = 0;
    for (int32_t r = 1; r < m->n_ranks; r++) {
        const pass *q = &u.of[r];
        p->side[r] = q->side[r];
        p->n_flops += q->n_flops;
        p->weight_bytes_read += q->weight_bytes_read;
        if (pass_failed(q) && !pass_failed(p))
            p->e = q->e;
    }
    if (pass_failed(p))
        return (mat){0};
    return p->hidden || m->encoder || !u.y->rows ? mat_bare(*u.y)
                                                 : model_head(p, m, u.y, m->n_ranks);
}
