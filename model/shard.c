/* shard.c - see shard.h: the table of names, and the arithmetic of cuts.
 *
 * GGUF files of all families use the same names, so one table says how each tensor is cut. A name
 * that is not in the table is refused, because nothing says whether a part of it would do.
 */
#include "model/shard.h"
#include "base/str.h"

#include <stdlib.h>
#include <string.h>

/* What is cut, and so by which numbers. */
typedef enum shard_kind {
    KIND_WHOLE,
    KIND_FIRST,
    KIND_VOCAB, /* rows: tokens */
    KIND_HEADS,
    KIND_KV_HEADS,
    KIND_QKV,         /* rows of queries, keys and values */
    KIND_HEADS_IN,    /* inputs: the heads' results */
    KIND_UNITS,       /* rows: hidden units */
    KIND_UNITS_TWICE, /* rows: of gate, then of up */
    KIND_UNITS_IN,    /* inputs: hidden units */
    KIND_DELTA_QKV,   /* rows or channels: of queries and keys by key head, then values */
    KIND_DELTA_V,     /* rows or entries by value head */
    KIND_DELTA_V_IN   /* inputs by value head */
} shard_kind;

/* Which matrix has the hidden units as inputs. */
typedef enum shard_unit { UNIT_DENSE, UNIT_EXPERTS, UNIT_SHARED } shard_unit;

/* The name of a layer's tensor without its last part (.weight, .bias). */
static const struct {
    const char *stem;
    shard_kind kind, recurs; /* in layers of attention; in recurrent ones */
    shard_unit unit;
} names[] = {
    {"attn_q", KIND_HEADS, KIND_HEADS, 0},
    {"attn_k", KIND_KV_HEADS, KIND_KV_HEADS, 0},
    {"attn_v", KIND_KV_HEADS, KIND_KV_HEADS, 0},
    {"attn_qkv", KIND_QKV, KIND_DELTA_QKV, 0},
    {"attn_gate", KIND_HEADS, KIND_DELTA_V, 0},
    {"attn_g", KIND_HEADS, KIND_HEADS, 0},
    {"attn_sinks", KIND_HEADS, KIND_HEADS, 0},
    {"attn_output", KIND_HEADS_IN, KIND_HEADS_IN, 0},
    {"ffn_gate", KIND_UNITS, KIND_UNITS, UNIT_DENSE},
    {"ffn_up", KIND_UNITS, KIND_UNITS, UNIT_DENSE},
    {"ffn_down", KIND_UNITS_IN, KIND_UNITS_IN, UNIT_DENSE},
    {"ffn_gate_shexp", KIND_UNITS, KIND_UNITS, UNIT_SHARED},
    {"ffn_up_shexp", KIND_UNITS, KIND_UNITS, UNIT_SHARED},
    {"ffn_down_shexp", KIND_UNITS_IN, KIND_UNITS_IN, UNIT_SHARED},
    {"ffn_gate_exps", KIND_UNITS, KIND_UNITS, UNIT_EXPERTS},
    {"ffn_up_exps", KIND_UNITS, KIND_UNITS, UNIT_EXPERTS},
    {"ffn_gate_up_exps", KIND_UNITS_TWICE, KIND_UNITS_TWICE, UNIT_EXPERTS},
    {"ffn_down_exps", KIND_UNITS_IN, KIND_UNITS_IN, UNIT_EXPERTS},
    {"ssm_alpha", KIND_WHOLE, KIND_DELTA_V, 0},
    {"ssm_beta", KIND_WHOLE, KIND_DELTA_V, 0},
    {"ssm_a", KIND_WHOLE, KIND_DELTA_V, 0},
    {"ssm_dt", KIND_WHOLE, KIND_DELTA_V, 0},
    {"ssm_conv1d", KIND_WHOLE, KIND_DELTA_QKV, 0},
    {"ssm_out", KIND_WHOLE, KIND_DELTA_V_IN, 0},
    {"output", KIND_VOCAB, KIND_VOCAB, 0},
};

/* Norms, scales, routers, and what is too small to be cut. */
static const char *const wholes[] = {
    "attn_norm",          "attn_q_norm",   "attn_k_norm",     "post_attention_norm",
    "ffn_norm",           "post_ffw_norm", "post_ffw_norm_1", "post_ffw_norm_2",
    "pre_ffw_norm_2",     "ffn_gate_inp",  "exp_probs_b",     "ffn_gate_inp_shexp",
    "inp_gate",           "proj",          "post_norm",       "layer_output_scale",
    "ssm_norm",           "output_norm",   "rope_freqs",      "per_layer_model_proj",
    "per_layer_proj_norm"};
static const char *const firsts[] = {"token_embd", "per_layer_token_embd"};

shard_range shard_range_of(int32_t r, int32_t n)
{
    static const int8_t end[SHARD_SEGMENTS + 1][SHARD_SEGMENTS + 1] = {
        {0}, {0, 4}, {0, 2, 4}, {0, 2, 3, 4}, {0, 1, 2, 3, 4}};
    return (shard_range){end[n][r], end[n][r + 1]};
}

/* Of n units those before segment s. The first segments have one more where they differ. */
static int64_t before(int64_t n, int32_t s)
{
    int64_t more = n % SHARD_SEGMENTS;
    return n / SHARD_SEGMENTS * s + (s < more ? s : more);
}

/* ---- Names ---------------------------------------------------------------------------------- */

/* The name without "blk.N." and without its last part, in buf. */
static const char *stem_of(const char *name, char *buf, size_t cap)
{
    char *end = NULL;
    if (!strncmp(name, "blk.", 4)) {
        strtol(name + 4, &end, 10);
        name = *end == '.' ? end + 1 : name;
    }
    const char *dot = strrchr(name, '.');
    size_t n = dot ? (size_t)(dot - name) : strlen(name);
    n = n < cap ? n : cap - 1;
    memcpy(buf, name, n);
    buf[n] = 0;
    return buf;
}

static bool is_listed(const char *stem, const char *const *list, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!strcmp(stem, list[i]))
            return true;
    return false;
}

static bool find_kind(const shard_layer *l, const char *name, shard_kind *kind, shard_unit *unit)
{
    char stem[64];
    stem_of(name, stem, sizeof stem);
    *kind = KIND_WHOLE;
    *unit = UNIT_DENSE;
    if (is_listed(stem, firsts, sizeof firsts / sizeof *firsts)) {
        *kind = KIND_FIRST;
        return true;
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(stem, names[i].stem)) {
            *kind = l->recurs ? names[i].recurs : names[i].kind;
            *unit = names[i].unit;
            return true;
        }
    return is_listed(stem, wholes, sizeof wholes / sizeof *wholes);
}

/* ---- Cuts ----------------------------------------------------------------------------------- */

status shard_heads_of(int32_t n_head, int32_t n_head_kv, shard_range range, shard_heads *out,
                      err *e)
{
    const int32_t a = range.from, b = range.to, kv = n_head_kv;
    if (kv < 1 || n_head < kv || n_head % kv)
        return err_set(e, E_UNSUPPORTED, "%d query heads for %d KV heads", n_head, kv);
    if (kv >= SHARD_SEGMENTS) {
        int32_t first = (int32_t)before(kv, a), n = (int32_t)before(kv, b) - first;
        int32_t group = n_head / kv;
        *out = (shard_heads){first * group, n * group, first, n};
        return OK;
    }
    if (SHARD_SEGMENTS % kv || n_head % SHARD_SEGMENTS)
        return err_set(e, E_UNSUPPORTED,
                       "%d query heads with %d KV heads cannot be cut into %d equal parts", n_head,
                       kv, SHARD_SEGMENTS);
    int32_t each = n_head / SHARD_SEGMENTS, per = SHARD_SEGMENTS / kv; /* segments of a KV head */
    *out = (shard_heads){a * each, (b - a) * each, a / per, (b + per - 1) / per - a / per};
    return OK;
}

int32_t shard_keys_of(int32_t n_k, shard_range range)
{
    return (int32_t)(before(n_k, range.to) - before(n_k, range.from));
}

/* How many outputs or inputs the cut is among, in the order in which a file has them. */
static int64_t length_of(const shard_tensor *t, shard_axis axis)
{
    return axis == SHARD_IN ? t->ne[0] : t->ne[1];
}

static void add_span(shard *s, int64_t first, int64_t n)
{
    if (s->n < SHARD_SPANS_MAX) {
        s->span[s->n].first = first;
        s->span[s->n].n = n;
    }
    s->n++;
}

static status refuse(const shard_tensor *t, const char *why, err *e)
{
    return err_set(e, E_UNSUPPORTED,
                   "tensor %s cannot be divided between devices (--split tensor): %s", t->name,
                   why);
}

static status cut_heads(const shard_layer *l, const shard_tensor *t, shard_kind kind,
                        shard_range range, shard *s, err *e)
{
    shard_heads h = {0};
    err why = {0};
    if (shard_heads_of(l->n_head, l->n_head_kv, range, &h, &why))
        return refuse(t, why.text, e);
    const int64_t n = length_of(t, s->axis);
    const int64_t n_heads = kind == KIND_QKV        ? l->n_head + 2 * (int64_t)l->n_head_kv
                            : kind == KIND_KV_HEADS ? l->n_head_kv
                                                    : l->n_head;
    const int64_t unit = n / n_heads;
    if (n % n_heads)
        return refuse(t, "its rows are no multiple of the number of heads", e);
    if (kind == KIND_KV_HEADS) {
        add_span(s, h.kv_first * unit, h.kv_n * unit);
        return OK;
    }
    add_span(s, h.first * unit, h.n * unit);
    for (int32_t i = 0; kind == KIND_QKV && i < 2; i++)
        add_span(s, (l->n_head + i * l->n_head_kv + h.kv_first) * unit, h.kv_n * unit);
    return OK;
}

static int64_t block_of(int32_t type)
{
    const num_format *f = type < 0 ? NULL : num_format_of((uint32_t)type);
    return !f ? 0 : f->block_n > 1 ? f->block_n : SHARD_FLOATS;
}

/* Can each segment have a block of n hidden units? */
static bool units_fit(int64_t n, int64_t block)
{
    return block > 0 && n % block == 0 && n / block >= SHARD_SEGMENTS;
}

/* Do its ranks have experts whole? */
static bool has_whole_experts(const shard_layer *l)
{
    return l->n_expert >= SHARD_SEGMENTS && !units_fit(l->n_ff_exps, block_of(l->down_exps));
}

/* Biases of experts may be rows of one matrix. */
static status cut_by_expert(const shard_layer *l, const shard_tensor *t, shard_range range,
                            shard *s, err *e)
{
    s->axis = t->ne[2] > 1 ? SHARD_MAT : SHARD_OUT;
    if (t->ne[s->axis == SHARD_MAT ? 2 : 1] != l->n_expert)
        return refuse(t, "it is not of all experts", e);
    const int64_t first = before(l->n_expert, range.from);
    add_span(s, first, before(l->n_expert, range.to) - first);
    return OK;
}

static status cut_units(const shard_layer *l, const shard_tensor *t, shard_kind kind,
                        shard_unit unit, shard_range range, shard *s, err *e)
{
    const int32_t type = unit == UNIT_DENSE     ? l->down
                         : unit == UNIT_EXPERTS ? l->down_exps
                                                : l->down_shexp;
    const int64_t halves = kind == KIND_UNITS_TWICE ? 2 : 1, n = length_of(t, s->axis) / halves;
    const int64_t block = block_of(type);
    if (!block)
        return refuse(t, "no matrix of the layer has its outputs as inputs", e);
    if (!units_fit(n, block)) {
        *s = (shard){.axis = SHARD_WHOLE};
        return OK;
    }
    const int64_t first = before(n / block, range.from) * block;
    for (int64_t i = 0; i < halves; i++)
        add_span(s, i * n + first, before(n / block, range.to) * block - first);
    return OK;
}

/* Whole tiles of kernels; the last may have less. Too few stay on the first rank. */
static void cut_vocab(const shard_tensor *t, shard_range range, shard *s)
{
    const int64_t n = length_of(t, s->axis), n_tiles = (n + SHARD_TILE - 1) / SHARD_TILE;
    if (n_tiles < SHARD_SEGMENTS) {
        *s = (shard){.axis = range.from ? SHARD_NONE : SHARD_WHOLE};
        return;
    }
    const int64_t first = before(n_tiles, range.from) * SHARD_TILE;
    const int64_t end = before(n_tiles, range.to) * SHARD_TILE;
    add_span(s, first, (end < n ? end : n) - first);
}

/* Value head j belongs to key head j mod n_k, so a key head has values in n_v / n_k tiles. */
static status cut_delta(const shard_layer *l, const shard_tensor *t, shard_kind kind,
                        shard_range range, shard *s, err *e)
{
    if (l->n_k < SHARD_SEGMENTS || l->n_v % l->n_k)
        return err_set(e, E_UNSUPPORTED,
                       "tensor %s cannot be divided between devices (--split tensor): %d key heads "
                       "for %d value "
                       "heads, expected %d or more",
                       t->name, l->n_k, l->n_v, SHARD_SEGMENTS);
    const int64_t first = before(l->n_k, range.from), n = before(l->n_k, range.to) - first;
    const bool qkv = kind == KIND_DELTA_QKV;
    const int64_t keys = qkv ? 2 * (int64_t)l->n_k * l->dk : 0;
    const int64_t values = length_of(t, s->axis) - keys;
    if (values <= 0 || values % l->n_v)
        return refuse(t, "its rows are no multiple of the number of value heads", e);
    for (int32_t i = 0; qkv && i < 2; i++)
        add_span(s, (i * l->n_k + first) * l->dk, n * l->dk);
    for (int64_t i = 0, unit = values / l->n_v; i < l->n_v / l->n_k; i++)
        add_span(s, keys + (i * l->n_k + first) * unit, n * unit);
    return s->n <= SHARD_SPANS_MAX ? OK : refuse(t, "it has too many value heads", e);
}

/* Inputs are cut between blocks alone; every segment's are. */
static status check_blocks(const shard_tensor *t, const shard *s, err *e)
{
    const num_format *f = num_format_of(t->type);
    if (!f)
        return refuse(t, "its format is unknown", e);
    for (int32_t i = 0; i < s->n; i++)
        if (s->span[i].first % f->block_n || s->span[i].n % f->block_n)
            return err_set(e, E_UNSUPPORTED,
                           "tensor %s cannot be divided between devices (--split tensor): a cut "
                           "would be inside a "
                           "block of %d inputs (%s)",
                           t->name, f->block_n, f->name);
    return OK;
}

static status cut(const shard_layer *l, const shard_tensor *t, shard_range range, shard *s, err *e)
{
    shard_kind kind;
    shard_unit unit;
    if (!find_kind(l, t->name, &kind, &unit))
        return refuse(t, "it is not known what its rows are", e);
    const bool in = kind == KIND_HEADS_IN || kind == KIND_UNITS_IN || kind == KIND_DELTA_V_IN;
    const bool bias = text_ends_with(t->name, ".bias"), vector = bias || t->n_dims == 1;
    const bool units = kind == KIND_UNITS || kind == KIND_UNITS_TWICE || kind == KIND_UNITS_IN;
    *s = (shard){.axis = kind == KIND_FIRST && range.from ? SHARD_NONE : SHARD_WHOLE};
    if (units && unit == UNIT_EXPERTS && !text_ends_with(t->name, "scale") &&
        has_whole_experts(l)) {
        s->partial = in && !bias;
        return cut_by_expert(l, t, range, s, e);
    }
    /* A sum over all inputs gets its bias once. A scale belongs to a whole matrix. */
    if (kind == KIND_WHOLE || kind == KIND_FIRST || (in && bias) ||
        text_ends_with(t->name, "scale"))
        return OK;
    s->axis = in || vector ? SHARD_IN : SHARD_OUT;
    s->partial = in;
    if (units)
        return cut_units(l, t, kind, unit, range, s, e);
    if (kind == KIND_VOCAB) {
        cut_vocab(t, range, s);
        return OK;
    }
    if (kind == KIND_DELTA_QKV || kind == KIND_DELTA_V || kind == KIND_DELTA_V_IN)
        return cut_delta(l, t, kind, range, s, e);
    return cut_heads(l, t, kind, range, s, e);
}

status shard_of(const shard_layer *layer, const shard_tensor *t, shard_range range, shard *out,
                err *e)
{
    shard s = {0};
    status st = OK;
    for (int32_t i = 0; i < SHARD_SEGMENTS && !st; i++) { /* all cuts have to be possible */
        st = cut(layer, t, (shard_range){i, i + 1}, &s, e);
        st = !st && s.axis == SHARD_IN ? check_blocks(t, &s, e) : st;
    }
    if (st || (st = cut(layer, t, range, &s, e)))
        return st;
    *out = s;
    return OK;
}

/* ---- Bytes ---------------------------------------------------------------------------------- */

int64_t shard_size(const shard *s)
{
    int64_t n = 0;
    for (int32_t i = 0; i < s->n; i++)
        n += s->span[i].n;
    return n;
}

static size_t row_bytes(uint32_t type, int64_t n)
{
    uint64_t bytes = 0;
    num_row_bytes(type, (uint64_t)n, &bytes);
    return (size_t)bytes;
}

uint64_t shard_bytes(const shard *s, const shard_tensor *t)
{
    const uint64_t matrix = (uint64_t)t->ne[1] * row_bytes(t->type, t->ne[0]);
    const uint64_t n_mat = (uint64_t)t->ne[2];
    switch (s->axis) {
    case SHARD_WHOLE:
        return n_mat * matrix;
    case SHARD_OUT:
        return n_mat * (uint64_t)shard_size(s) * row_bytes(t->type, t->ne[0]);
    case SHARD_IN:
        return n_mat * (uint64_t)t->ne[1] * row_bytes(t->type, shard_size(s));
    case SHARD_MAT:
        return (uint64_t)shard_size(s) * matrix;
    case SHARD_NONE:
        break;
    }
    return 0;
}

void shard_copy(const shard *s, const shard_tensor *t, const void *from, void *to)
{
    const size_t row = row_bytes(t->type, t->ne[0]), matrix = row * (size_t)t->ne[1];
    const char *at = from;
    char *out = to;
    if (s->axis == SHARD_WHOLE)
        memcpy(out, at, shard_bytes(s, t));
    /* Pieces: all matrices, of which some are copied; matrices, of which rows are copied; rows, of
     * which blocks are. */
    const bool in = s->axis == SHARD_IN, mats = s->axis == SHARD_MAT;
    const int64_t n_pieces = in ? t->ne[1] * t->ne[2] : mats ? 1 : t->ne[2];
    const size_t piece = in ? row : matrix, unit = mats ? matrix : row;
    for (int64_t k = 0; k < n_pieces; k++, at += piece)
        for (int32_t i = 0; i < s->n; i++) {
            const int64_t first = s->span[i].first, n = s->span[i].n;
            size_t skip = in ? row_bytes(t->type, first) : unit * (size_t)first;
            size_t bytes = in ? row_bytes(t->type, n) : unit * (size_t)n;
            memcpy(out, at + skip, bytes);
            out += bytes;
        }
}
