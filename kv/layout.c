/* layout.c - size and format of each layer's store: keys and values, recurrent states.
 *
 * kv.h has the proof of the ring's size. Formats come from the caller's choice; the last rule for a
 * layer wins. This file also decides whether a layer whose values are its raw keys keeps one stream
 * or two.
 */
#include "kv/kv.h"

#include <stdio.h>
#include <string.h>

/* The slots of a ring for passes of n rows: W + n - 1. In a context of no more tokens than that it
 * never wraps. */
static int32_t ring_slots(int32_t window, int32_t n_ctx, int32_t rows_max)
{
    int64_t ring = (int64_t)window + rows_max - 1;
    return ring < n_ctx ? (int32_t)ring : n_ctx;
}

static bool same_format(kv_format a, kv_format b)
{
    return a.type == b.type && a.rot == b.rot;
}

static bool rule_applies(const kv_rule *r, const kv_spec *s)
{
    return r->layers == KV_RULE_GLOBAL   ? !s->window
           : r->layers == KV_RULE_WINDOW ? s->window > 0
                                         : s->layer >= r->first && s->layer <= r->last;
}

static void formats_of(const kv_want_layout *w, int32_t i, kv_format *k, kv_format *v)
{
    *k = w->choice.k;
    *v = w->choice.v;
    for (int32_t j = 0; j < w->choice.n_rules; j++) {
        const kv_rule *r = &w->choice.rule[j];
        if (rule_applies(r, &w->spec[i])) {
            *k = r->k;
            *v = r->v;
        }
    }
}

/* Bytes of one row of one head; E_UNSUPPORTED if the row is no multiple of the block. */
static status head_row_bytes(kv_format f, int32_t layer, int32_t dim, size_t *n, err *e)
{
    char name[32];
    uint64_t bytes;
    int32_t block = num_format_of(f.type)->block_n;
    block = f.rot && block < NUM_ROT_GROUP ? NUM_ROT_GROUP : block;
    if (dim % block || !num_row_bytes(f.type, (uint64_t)dim, &bytes))
        return err_set(e, E_UNSUPPORTED,
                       "layer %d has heads of %d, and the format %s needs a multiple of %d", layer,
                       dim, kv_format_name(f, name, sizeof name), block);
    *n = (size_t)bytes;
    return OK;
}

static device *store_device(const kv_want_layout *w, const kv_view *v)
{
    return w->dev[v->side];
}

static bool device_reads(const kv_want_layout *w, const kv_view *v)
{
    char text[128];
    device *d = store_device(w, v);
    return !d || device_attend_kernel(d, v, text, sizeof text) != KERNEL_NONE;
}

/* With "auto": does the device gain by one stream? */
static bool one_stream_wins(const kv_want_layout *w, const kv_view *one)
{
    const device *d = store_device(w, one);
    return !d || (d->one_stream && d->one_stream(d, one));
}

/* Makes *v one stream if the layer allows it and the caller asked for it or the device gains. */
static status choose_single(const kv_want_layout *w, kv_view *v, err *e)
{
    const kv_spec *s = &w->spec[v->id];
    kv_format kf = {v->k_type, v->k_rot}, vf = {v->v_type, v->v_rot};
    char a[32], b[32];
    if (!s->k_is_v || w->choice.single == KV_SINGLE_OFF)
        return OK;
    bool same = same_format(kf, vf), forced = w->choice.single == KV_SINGLE_ON;
    if (!same && forced)
        return err_set(e, E_ARG,
                       "layer %d cannot keep keys of %s and values of %s in one stream: their "
                       "types must be the same",
                       s->layer, kv_format_name(kf, a, sizeof a), kv_format_name(vf, b, sizeof b));
    /* A rotated stream must be rotated back before keys are made of it: that costs more time than
     * half the memory saves. */
    if (!same || (!forced && kf.rot))
        return OK;
    kv_view one = *v;
    one.single = true;
    one.v_row_bytes = 0;
    one.k_weight = s->k_norm;
    one.k_rope = s->k_rope;
    if (!forced && !one_stream_wins(w, &one))
        return OK;
    if (device_reads(w, &one))
        *v = one;
    else if (forced)
        return err_set(e, E_UNSUPPORTED, "%s cannot read keys and values of %s from one stream",
                       store_device(w, v)->name, kv_format_name(kf, a, sizeof a));
    return OK;
}

static status view_init(const kv_want_layout *w, int32_t i, int32_t rows_max, int32_t n_pool,
                        kv_view *v, err *e)
{
    const kv_spec *s = &w->spec[i];
    kv_format kf, vf;
    char a[32], b[32];
    status st;
    formats_of(w, i, &kf, &vf);
    *v = (kv_view){.id = i,
                   .side = s->side,
                   .kind = s->window ? STORE_RING : STORE_LINEAR,
                   .k_type = kf.type,
                   .v_type = vf.type,
                   .n_head_kv = s->n_head_kv,
                   .head_dim = s->head_dim,
                   .window = s->window,
                   .n_slots = s->window ? ring_slots(s->window, w->n_ctx, rows_max) : n_pool,
                   .n_keys = s->window ? ring_slots(s->window, w->n_ctx, rows_max) : w->n_ctx,
                   .k_rot = kf.rot,
                   .v_rot = vf.rot,
                   .wide = s->wide,
                   .sinks = s->sinks,
                   .head_all = s->head_all,
                   .head_kv_all = s->head_kv_all,
                   .inside = s->inside};
    if ((st = head_row_bytes(kf, s->layer, s->head_dim, &v->k_row_bytes, e)) ||
        (st = head_row_bytes(vf, s->layer, s->head_dim, &v->v_row_bytes, e)) ||
        (st = choose_single(w, v, e)))
        return st;
    if (!device_reads(w, v))
        return err_set(e, E_UNSUPPORTED,
                       "%s cannot attend over keys of %s and values of %s in heads of %d",
                       store_device(w, v)->name, kv_format_name(kf, a, sizeof a),
                       kv_format_name(vf, b, sizeof b), s->head_dim);
    return OK;
}

/* "0 to 14", or "3, 7, 11". */
static void list_owners(const kv_want_layout *w, char *text, size_t cap)
{
    int32_t first = w->spec[0].layer, last = w->spec[w->n - 1].layer;
    if (last - first == w->n - 1) {
        snprintf(text, cap, "%d to %d", first, last);
        return;
    }
    for (int32_t i = 0, n = 0; i < w->n && n >= 0 && (size_t)n < cap; i++)
        n += snprintf(text + n, cap - (size_t)n, "%s%d", i ? ", " : "", w->spec[i].layer);
}

/* What a choice says must concern some layer. */
static status check_choice(const kv_want_layout *w, err *e)
{
    bool single = w->choice.single != KV_SINGLE_ON;
    char text[512];
    for (int32_t i = 0; i < w->n && !single; i++)
        single = w->spec[i].k_is_v;
    if (!single)
        return err_set(e, E_UNSUPPORTED,
                       "keys and values in one stream (--kv-single on): no layer of this model has "
                       "values that are its raw keys");
    for (int32_t j = 0; j < w->choice.n_rules; j++) {
        const kv_rule *r = &w->choice.rule[j];
        bool any = false;
        for (int32_t i = 0; i < w->n && !any; i++)
            any = rule_applies(r, &w->spec[i]);
        if (r->layers != KV_RULE_LAYERS && !any)
            return err_set(e, E_ARG, "a type for %s layers (--kv-layer): this model has none",
                           r->layers == KV_RULE_GLOBAL ? "global" : "sliding-window");
        if (r->layers != KV_RULE_LAYERS || (any && r->last <= w->spec[w->n - 1].layer))
            continue;
        list_owners(w, text, sizeof text);
        return err_set(
            e, E_ARG,
            "a type for layer %d (--kv-layer): the layers that keep keys of their own are %s",
            r->last, text);
    }
    return OK;
}

/* ---- Recurrent layers ---------------------------------------------------------------------- */

static size_t aligned(size_t floats)
{
    return (floats + KV_RECUR_ALIGN - 1) / KV_RECUR_ALIGN * KV_RECUR_ALIGN;
}

kv_recur_parts kv_recur_parts_of(const recur_view *v)
{
    kv_recur_parts p = {.state = (size_t)v->n_v * (size_t)v->dv * (size_t)v->dk,
                        .conv = (size_t)(v->n_taps - 1) * (size_t)recur_channels(v),
                        .block = recur_block_floats(v),
                        .journal = (size_t)v->journal_rows * (size_t)recur_journal_row(v)};
    p.at_conv = aligned(p.state);
    p.at_block = p.at_conv + aligned(p.conv);
    p.at_journal[0] = p.at_block + aligned(p.block);
    p.at_journal[1] = p.at_journal[0] + aligned(p.journal);
    p.all = p.at_journal[1] + aligned(p.journal);
    return p;
}

static status recur_init(const kv_want_layout *w, int32_t i, recur_view *v, err *e)
{
    const device *d = w->dev[w->recur[i].side];
    *v = w->recur[i];
    v->id = i;
    v->journal_rows = w->journal_rows > 0 ? w->journal_rows : 1;
    v->block = d && v->dk == d->recur_head && v->dv == d->recur_head ? d->recur_block : 0;
    if (d && (!d->op->conv || !d->op->delta || !d->settle))
        return err_set(e, E_UNSUPPORTED, "%s cannot compute recurrent layers", d->name);
    return OK;
}

static status recur_layers(kv_layout *l, const kv_want_layout *w, err *e)
{
    size_t n = (size_t)w->n_recur;
    status st;
    if (!n)
        return OK;
    if (w->journal_rows > STEP_TREE_ROWS_MAX)
        return err_set(e, E_LIMIT, "%d rows of one sequence may be dropped: at most %d",
                       w->journal_rows, STEP_TREE_ROWS_MAX);
    l->recur = arena_array(&l->mem, n, sizeof *l->recur);
    if (!l->recur)
        return err_memory(e, "the layout of recurrent layers", n * sizeof *l->recur);
    l->n_recur = w->n_recur;
    for (int32_t i = 0; i < w->n_recur; i++) {
        if ((st = recur_init(w, i, &l->recur[i], e)))
            return st;
        uint64_t bytes = kv_recur_parts_of(&l->recur[i]).all * sizeof(float);
        if (l->recur[i].block > l->recur_block)
            l->recur_block = l->recur[i].block;
        l->side[l->recur[i].side].recur += bytes;
        l->all.recur += bytes;
    }
    return OK;
}

/* The tokens of a pool: whole pages. */
static status pool_tokens(const kv_want_layout *w, int32_t *n, err *e)
{
    int64_t wish = w->n_pool ? w->n_pool : w->n_ctx;
    int64_t whole = (wish + KV_PAGE - 1) / KV_PAGE * KV_PAGE;
    if (wish < 1 || whole > INT32_MAX)
        return err_set(e, E_LIMIT, "a pool of %lld tokens: expected 1 to %d", (long long)wish,
                       INT32_MAX / KV_PAGE * KV_PAGE);
    *n = (int32_t)whole;
    return OK;
}

/* The tables of a cache's pages, one on each side with linear stores. */
static void plan_tables(kv_layout *l, int32_t n_pool)
{
    bool linear[PASS_SIDES_MAX] = {0};
    l->n_table = pages_of(l->n_ctx) + KV_TABLE_MORE;
    for (int32_t i = 0; i < l->n; i++)
        linear[l->view[i].side] |= !l->view[i].window;
    for (int side = 0; side < PASS_SIDES_MAX; side++)
        if (linear[side]) {
            l->n_pool_pages = n_pool / KV_PAGE;
            l->side[side].table = (uint64_t)l->n_table * sizeof(kv_page);
            l->all.table += l->side[side].table;
        }
}

/* A step has one list of newest keys for all rings (row_keys). */
static status see_both_ways(kv_layout *l, const kv_view *v, err *e)
{
    l->rows_inside = true;
    if (v->window && l->reach && v->window != l->reach)
        return err_set(e, E_UNSUPPORTED,
                       "layers with windows of %d and %d tokens on both sides: expected one width",
                       l->reach, v->window);
    l->reach = v->window ? v->window : l->reach;
    return OK;
}

/* The whole stores, by their parts. */
static status join_parts(kv_layout *l, const kv_want_layout *w, err *e)
{
    const int32_t n_parts = w->n_parts > 1 ? w->n_parts : 1;
    l->n_whole = l->n / n_parts;
    l->n_recur_whole = l->n_recur / n_parts;
    const size_t n = (size_t)l->n_whole, n_recur = (size_t)l->n_recur_whole;
    l->whole = arena_array(&l->mem, n, sizeof *l->whole);
    l->head0 = arena_array(&l->mem, (size_t)l->n, sizeof *l->head0);
    l->recur_whole = n_recur ? arena_array(&l->mem, n_recur, sizeof *l->recur_whole) : NULL;
    if (!l->whole || !l->head0 || (n_recur && !l->recur_whole))
        return err_memory(e, "the key/value layout", n * sizeof *l->whole);
    memcpy(l->whole, l->view, n * sizeof *l->whole);
    if (n_recur)
        memcpy(l->recur_whole, l->recur, n_recur * sizeof *l->recur_whole);
    for (int32_t i = 0; i < l->n; i++) {
        l->head0[i] = w->spec[i].head0;
        l->whole[i % l->n_whole].n_head_kv = l->head0[i] + l->view[i].n_head_kv; /* of the last */
    }
    for (int32_t i = l->n_recur_whole; i < l->n_recur; i++) {
        recur_view *v = &l->recur_whole[i % l->n_recur_whole];
        v->n_k += l->recur[i].n_k;
        v->n_v += l->recur[i].n_v;
    }
    return OK;
}

status kv_layout_init(kv_layout *l, const kv_want_layout *w, err *e)
{
    int32_t n_pool = 0;
    status st;
    *l = (kv_layout){0};
    if (w->n_ctx < 1 || w->rows_max < 1)
        return err_set(e, E_ARG, "a context of %d tokens in passes of %d rows: expected 1 or more",
                       w->n_ctx, w->rows_max);
    if ((st = pool_tokens(w, &n_pool, e)))
        return st;
    if ((st = check_choice(w, e)))
        return st;
    l->view = arena_array(&l->mem, (size_t)w->n, sizeof *l->view);
    if (!l->view)
        return err_memory(e, "the key/value layout", (size_t)w->n * sizeof *l->view);
    l->n = w->n;
    l->n_ctx = w->n_ctx;
    l->axes = w->axes;
    memcpy(l->dev, w->dev, sizeof l->dev);
    /* No pass is longer than the context; a larger rows_max would only enlarge the rings. */
    l->rows_max = w->rows_max < w->n_ctx ? w->rows_max : w->n_ctx;
    for (int32_t i = 0; i < w->n; i++) {
        kv_view *v = &l->view[i];
        if ((st = view_init(w, i, l->rows_max, n_pool, v, e))) {
            kv_layout_free(l);
            return st;
        }
        uint64_t bytes = kv_store_bytes(v);
        kv_layout_bytes *side = &l->side[v->side];
        l->rows_inside |= v->inside == KV_INSIDE_BLOCKS;
        if (v->inside == KV_INSIDE_ROWS && (st = see_both_ways(l, v, e))) {
            kv_layout_free(l);
            return st;
        }
        if (v->window) {
            side->ring += bytes;
            l->all.ring += bytes;
            if (v->n_slots > l->n_ring_slots)
                l->n_ring_slots = v->n_slots;
        } else {
            side->linear += bytes;
            l->all.linear += bytes;
        }
    }
    plan_tables(l, n_pool);
    if ((st = recur_layers(l, w, e)) || (st = join_parts(l, w, e)))
        kv_layout_free(l);
    return st;
}

uint64_t kv_page_bytes(const kv_layout *l)
{
    return l->n_pool_pages ? l->all.linear / (uint64_t)l->n_pool_pages : 0;
}

void kv_layout_free(kv_layout *l)
{
    arena_free(&l->mem);
    *l = (kv_layout){0};
}
