/* dflash_file.c - see dflash_file.h. The computation is written from the paper and from the notes
 * of its ports, one value at a time in double, and shares no code with the engine.
 */
#include "tests/dflash_file.h"
#include "tests/test.h"
#include "base/mem.h"
#include "base/rng.h"
#include "format/gguf.h"
#include "num/num.h"

#include <math.h>

enum { Q_DIM = DF_HEADS * DF_DIM, KV_DIM = DF_HEADS_KV * DF_DIM, WIDE = DF_FEATURES * DF_EMBD };
static const double THETA = 1e4, EPS = 1e-6;

/* ---- Weights ------------------------------------------------------------------------------- */

typedef enum kind { MATRIX, NORM, BIAS } kind;

/* The caller frees. */
static float *draw_weights(const char *name, kind k, int32_t n_in, int32_t n_out)
{
    uint64_t rng = 77;
    size_t n = (size_t)n_in * (size_t)n_out;
    float *w = mem_alloc(n * sizeof *w);
    CHECK(w);
    for (const char *c = name; *c; c++)
        rng = rng_mix(rng ^ (uint64_t)(unsigned char)*c);
    for (size_t i = 0; i < n; i++) {
        double r = rng_normal(&rng);
        w[i] = (float)(k == MATRIX ? r / sqrt((double)n_in)
                       : k == NORM ? 0.4 + 1.2 * rng_unit(&rng)
                                   : 0.3 * r);
    }
    return w;
}

float *df_draw(const char *name, int32_t n_in, int32_t n_out)
{
    return draw_weights(name, MATRIX, n_in, n_out);
}

float *df_draw_norm(const char *name, int32_t n)
{
    return draw_weights(name, NORM, n, 1);
}

static float *layer_weights(int32_t il, const char *name, kind k, int32_t n_in, int32_t n_out)
{
    char full[64];
    snprintf(full, sizeof full, "%d.%s", il, name);
    return draw_weights(full, k, n_in, n_out);
}

static bool slides(const df_options *o, int32_t il)
{
    return o->laguna || o->all_slide || il < DF_LAYERS - 1;
}

static bool causal_layer(const df_options *o, int32_t il)
{
    return o->laguna || o->causal == DF_CAUSAL || (o->causal == DF_BY_KIND && slides(o, il));
}

/* ---- Writing ------------------------------------------------------------------------------- */

typedef struct tensor_row {
    const char *file[DF_DIALECTS], *own;
    kind k;
    int32_t n_in, n_out;
} tensor_row;

#define SAME(x)                                                                                    \
    {                                                                                              \
        x, x, x                                                                                    \
    }
static const tensor_row of_model[] = {
    {{"fc.weight", "dflash.fc.weight", "dflash_fc.weight"}, "fc", MATRIX, WIDE, DF_EMBD},
    {{"enc.output_norm.weight", "dflash.hidden_norm.weight", "dflash_hidden_norm.weight"},
     "hidden_norm",
     NORM,
     DF_EMBD,
     1},
    {SAME("output_norm.weight"), "out_norm", NORM, DF_EMBD, 1},
};
static const tensor_row of_layer[] = {
    {SAME("attn_norm.weight"), "attn_norm", NORM, DF_EMBD, 1},
    {SAME("attn_q.weight"), "q", MATRIX, DF_EMBD, Q_DIM},
    {SAME("attn_k.weight"), "k", MATRIX, DF_EMBD, KV_DIM},
    {SAME("attn_v.weight"), "v", MATRIX, DF_EMBD, KV_DIM},
    {SAME("attn_output.weight"), "o", MATRIX, Q_DIM, DF_EMBD},
    {SAME("attn_q_norm.weight"), "q_norm", NORM, DF_DIM, 1},
    {SAME("attn_k_norm.weight"), "k_norm", NORM, DF_DIM, 1},
    {{"ffn_norm.weight", "ffn_norm.weight", "post_attention_norm.weight"},
     "ffn_norm",
     NORM,
     DF_EMBD,
     1},
    {SAME("ffn_gate.weight"), "gate", MATRIX, DF_EMBD, DF_FF},
    {SAME("ffn_up.weight"), "up", MATRIX, DF_EMBD, DF_FF},
    {SAME("ffn_down.weight"), "down", MATRIX, DF_FF, DF_EMBD},
};

typedef struct writing {
    const df_options *o;
    gguf_writer *w;
    bool data; /* the second turn: weights */
} writing;

/* Declares a tensor, or writes its weights. */
static void put_rows(const writing *t, const char *name, kind k, int32_t n_in, int32_t n_out,
                     float *from)
{
    err e = {0};
    uint64_t ne[2] = {(uint64_t)n_in, (uint64_t)n_out};
    uint32_t type = t->o->type && k == MATRIX && n_in % 32 == 0 ? t->o->type : NUM_F32;
    bool dropped = t->o->drop_tensor && !strcmp(name, t->o->drop_tensor);
    if (!dropped && !t->data) {
        gguf_put_tensor(t->w, name, type, n_out > 1 || k == MATRIX ? 2 : 1, ne);
    } else if (!dropped) {
        uint64_t row;
        CHECK(num_row_bytes(type, (uint64_t)n_in, &row));
        unsigned char *to = mem_alloc(row);
        CHECK(to);
        for (int32_t i = 0; i < n_out; i++) {
            num_format_of(type)->encode(from + (size_t)i * (size_t)n_in, to, n_in);
            CHECK_OK(gguf_write_data(t->w, to, row, &e), e);
        }
        mem_free(to);
    }
    mem_free(from);
}

static void put_row(const writing *t, const tensor_row *r, int32_t il)
{
    char name[96];
    const char *tail = r->file[t->o->dialect];
    if (il < 0)
        snprintf(name, sizeof name, "%s", tail);
    else
        snprintf(name, sizeof name, "blk.%d.%s", il, tail);
    put_rows(t, name, r->k, r->n_in, r->n_out,
             il < 0 ? draw_weights(r->own, r->k, r->n_in, r->n_out)
                    : layer_weights(il, r->own, r->k, r->n_in, r->n_out));
}

static float *feature_norm(int32_t i)
{
    char own[32];
    snprintf(own, sizeof own, "aux.%d", i);
    return draw_weights(own, NORM, DF_EMBD, 1);
}

static void put_feature_norms(const writing *t)
{
    char name[64];
    float *all = mem_alloc(WIDE * sizeof *all);
    CHECK(all);
    for (int32_t i = 0; i < DF_FEATURES; i++) {
        float *one = feature_norm(i);
        memcpy(all + i * DF_EMBD, one, DF_EMBD * sizeof *one);
        snprintf(name, sizeof name, "dflash%caux_hidden_norm.%d.weight",
                 t->o->dialect == DF_IK ? '_' : '.', i);
        if (t->o->dialect == DF_LLAMA)
            mem_free(one);
        else
            put_rows(t, name, NORM, DF_EMBD, 1, one);
    }
    if (t->o->dialect == DF_LLAMA)
        put_rows(t, "enc.aux_norm.weight", NORM, DF_EMBD, DF_FEATURES, all);
    else
        mem_free(all);
}

static void put_dspark(const writing *t)
{
    const df_options *o = t->o;
    bool lucebox = o->dialect == DF_LUCEBOX;
    int32_t n_conf = DF_EMBD + (o->conf_of_state ? 0 : o->rank);
    put_rows(t, lucebox ? "dflash.dspark.markov.w1" : "markov_w1.weight", MATRIX, o->rank, DF_VOCAB,
             draw_weights("markov_in", NORM, o->rank, DF_VOCAB));
    put_rows(t, lucebox ? "dflash.dspark.markov.w2" : "markov_w2.weight", MATRIX, o->rank, DF_VOCAB,
             draw_weights("markov_out", MATRIX, o->rank, DF_VOCAB));
    if (!o->conf)
        return;
    put_rows(t, lucebox ? "dflash.dspark.confidence.weight" : "conf_proj.weight", NORM, n_conf, 1,
             draw_weights("conf", MATRIX, n_conf, 1));
    put_rows(t, lucebox ? "dflash.dspark.confidence.bias" : "conf_proj.bias", BIAS, 1, 1,
             draw_weights("conf_bias", BIAS, 1, 1));
}

static void put_tensors(const writing *t)
{
    for (size_t i = 0; i < sizeof of_model / sizeof *of_model; i++)
        put_row(t, &of_model[i], -1);
    if (t->o->laguna)
        put_feature_norms(t);
    if (t->o->rank)
        put_dspark(t);
    for (int32_t il = 0; il < DF_LAYERS; il++) {
        char name[64];
        for (size_t i = 0; i < sizeof of_layer / sizeof *of_layer; i++)
            put_row(t, &of_layer[i], il);
        snprintf(name, sizeof name, "blk.%d.attn_gate.weight", il);
        if (t->o->laguna)
            put_rows(t, name, MATRIX, DF_EMBD, DF_HEADS,
                     layer_weights(il, "head_gate", MATRIX, DF_EMBD, DF_HEADS));
    }
    if (t->o->copies) {
        put_rows(t, "token_embd.weight", MATRIX, DF_EMBD, DF_VOCAB,
                 draw_weights("copy", MATRIX, DF_EMBD, DF_VOCAB));
        put_rows(t, "output.weight", MATRIX, DF_EMBD, DF_VOCAB,
                 draw_weights("copy", MATRIX, DF_EMBD, DF_VOCAB));
    }
    if (t->o->add_tensor)
        put_rows(t, t->o->add_tensor, MATRIX, 32, 2, draw_weights("unknown", MATRIX, 32, 2));
}

static bool wants_key(const df_options *o, const char *key)
{
    for (int i = 0; i < 4 && o->set[i].key; i++)
        if (!strcmp(o->set[i].key, key))
            return false;
    return !o->drop_key || strcmp(o->drop_key, key) != 0;
}

static const char *key_of(const char *arch, const char *tail, char buf[96])
{
    snprintf(buf, 96, "%s.%s", arch, tail);
    return buf;
}

static void put_number(const writing *t, const char *key, uint32_t v)
{
    if (wants_key(t->o, key))
        gguf_put_u32(t->w, key, v);
}

static void put_flag(const writing *t, const char *key, bool v)
{
    if (wants_key(t->o, key))
        gguf_put_bool(t->w, key, v);
}

static void put_sizes(const writing *t, const char *arch)
{
    char k[96];
    static const struct {
        const char *tail;
        uint32_t v;
    } sizes[] = {{"context_length", 8192},
                 {"embedding_length", DF_EMBD},
                 {"block_count", DF_LAYERS},
                 {"feed_forward_length", DF_FF},
                 {"attention.head_count", DF_HEADS},
                 {"attention.head_count_kv", DF_HEADS_KV},
                 {"attention.key_length", DF_DIM},
                 {"attention.value_length", DF_DIM},
                 {"attention.sliding_window", DF_WINDOW},
                 {"vocab_size", DF_VOCAB}};
    bool pattern[DF_LAYERS];
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        put_number(t, key_of(arch, sizes[i].tail, k), sizes[i].v);
    for (int32_t i = 0; i < DF_LAYERS; i++)
        pattern[i] = slides(t->o, i);
    if (wants_key(t->o, key_of(arch, "attention.sliding_window_pattern", k)))
        gguf_put_bools(t->w, k, pattern, DF_LAYERS);
    gguf_put_f32(t->w, key_of(arch, "attention.layer_norm_rms_epsilon", k), (float)EPS);
    if (wants_key(t->o, key_of(arch, "rope.freq_base", k)))
        gguf_put_f32(t->w, k, (float)THETA);
}

static void put_captured(const writing *t, const char *arch)
{
    static const int32_t usual[DF_FEATURES] = {0, 2, 5};
    const int32_t *id = t->o->ids ? t->o->ids : usual;
    int32_t n = t->o->ids ? t->o->n_ids : DF_FEATURES;
    uint32_t from_one[16];
    char k[96];
    for (int32_t i = 0; i < n; i++)
        from_one[i] = (uint32_t)(id[i] + 1);
    if (t->o->dialect == DF_LLAMA) {
        put_number(t, "dflash.block_size", DF_BLOCK);
        put_number(t, "tokenizer.ggml.mask_token_id", DF_MASK);
        if (wants_key(t->o, "dflash.target_layers"))
            gguf_put_u32s(t->w, "dflash.target_layers", from_one, (uint64_t)n);
        return;
    }
    put_number(t, key_of(arch, "dflash.block_size", k), DF_BLOCK);
    put_number(t, key_of(arch, "dflash.mask_token_id", k), DF_MASK);
    if (wants_key(t->o, key_of(arch, "dflash.target_layer_ids", k)))
        gguf_put_i32s(t->w, k, id, (uint64_t)n);
    if (t->o->dialect == DF_LUCEBOX)
        put_number(t, key_of(arch, "dflash.n_target_layers", k), DF_FEATURES);
    else
        put_number(t, key_of(arch, "dflash.n_target_features", k), WIDE);
}

const char *df_write(const df_options *o, const char *name)
{
    static const char *const archs[] = {"dflash", "gemma4-dflash-draft", "dflash-draft"};
    const char *path = test_temp(name), *arch = o->arch ? o->arch : archs[o->dialect];
    writing t = {.o = o};
    char k[96];
    err e = {0};
    CHECK_OK(gguf_create(&t.w, path, &e), e);
    gguf_put_string(t.w, "general.architecture", arch, strlen(arch));
    put_sizes(&t, arch);
    put_captured(&t, arch);
    if (o->causal != DF_BY_KIND)
        put_flag(&t, key_of(arch, "attention.causal", k), o->causal == DF_CAUSAL);
    if (o->rank)
        put_flag(&t, "dflash.sample_from_anchor", o->anchor_first);
    for (int i = 0; i < 4 && o->set[i].key; i++)
        if (o->set[i].flag)
            gguf_put_bool(t.w, o->set[i].key, o->set[i].value);
        else
            gguf_put_u32(t.w, o->set[i].key, (uint32_t)o->set[i].value);
    put_tensors(&t);
    CHECK_OK(gguf_write_header(t.w, &e), e);
    t.data = true;
    put_tensors(&t);
    CHECK_OK(gguf_commit(t.w, &e), e);
    return path;
}

/* ---- The plain computation ----------------------------------------------------------------- */

/* y = W x, and W is freed. */
static void times(float *w, const double *x, int32_t n_in, int32_t n_out, double *y)
{
    for (int32_t o = 0; o < n_out; o++) {
        y[o] = 0;
        for (int32_t i = 0; i < n_in; i++)
            y[o] += (double)w[(size_t)o * (size_t)n_in + (size_t)i] * x[i];
    }
    mem_free(w);
}

/* In place; w is freed. */
static void norm(double *x, int32_t n, float *w)
{
    double sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    sum = 1 / sqrt(sum / n + EPS);
    for (int32_t i = 0; i < n; i++)
        x[i] *= sum * (double)w[i];
    mem_free(w);
}

/* Halves of a head turn together. */
static void turn(double *head, int32_t pos)
{
    for (int32_t i = 0; i < DF_DIM / 2; i++) {
        double a = pos * pow(THETA, -2.0 * i / DF_DIM), x = head[i], y = head[i + DF_DIM / 2];
        head[i] = x * cos(a) - y * sin(a);
        head[i + DF_DIM / 2] = x * sin(a) + y * cos(a);
    }
}

/* A row's keys and values in a layer, from y. */
static void keys_of(int32_t il, const double *y, int32_t pos, double *k, double *v)
{
    times(layer_weights(il, "k", MATRIX, DF_EMBD, KV_DIM), y, DF_EMBD, KV_DIM, k);
    times(layer_weights(il, "v", MATRIX, DF_EMBD, KV_DIM), y, DF_EMBD, KV_DIM, v);
    for (int32_t h = 0; h < DF_HEADS_KV; h++) {
        norm(k + h * DF_DIM, DF_DIM, layer_weights(il, "k_norm", NORM, DF_DIM, 1));
        turn(k + h * DF_DIM, pos);
    }
}

/* The projected features of a context row. */
static void context_row(const df_options *o, const float *features, double *g)
{
    double f[WIDE];
    for (int32_t i = 0; i < WIDE; i++)
        f[i] = (double)features[i];
    for (int32_t i = 0; o->laguna && i < DF_FEATURES; i++)
        norm(f + i * DF_EMBD, DF_EMBD, feature_norm(i));
    times(draw_weights("fc", MATRIX, WIDE, DF_EMBD), f, WIDE, DF_EMBD, g);
    norm(g, DF_EMBD, draw_weights("hidden_norm", NORM, DF_EMBD, 1));
}

typedef struct key_values {
    double k[KV_DIM], v[KV_DIM];
} key_values;

/* May slot i at position c + i see row `at` of [context | block]? */
static bool sees(const df_options *o, int32_t il, int32_t c, int32_t i, int32_t at)
{
    if (slides(o, il) && c + i - at >= DF_WINDOW)
        return false;
    return at < c || at <= c + i || !causal_layer(o, il);
}

static void attend_row(const df_options *o, int32_t il, int32_t c, int32_t slots, int32_t i,
                       const double *q, const key_values *kv, double *out)
{
    for (int32_t h = 0; h < DF_HEADS; h++) {
        int32_t g = h / (DF_HEADS / DF_HEADS_KV) * DF_DIM;
        double total = 0, sum[DF_DIM] = {0};
        for (int32_t at = 0; at < c + slots; at++) {
            double s = 0;
            if (!sees(o, il, c, i, at))
                continue;
            for (int32_t d = 0; d < DF_DIM; d++)
                s += q[h * DF_DIM + d] * kv[at].k[g + d];
            s = exp(s / sqrt((double)DF_DIM));
            total += s;
            for (int32_t d = 0; d < DF_DIM; d++)
                sum[d] += s * kv[at].v[g + d];
        }
        for (int32_t d = 0; d < DF_DIM; d++)
            out[h * DF_DIM + d] = sum[d] / total;
    }
}

static void feed_forward(int32_t il, double *x)
{
    double y[DF_EMBD], a[DF_FF], b[DF_FF];
    memcpy(y, x, sizeof y);
    norm(y, DF_EMBD, layer_weights(il, "ffn_norm", NORM, DF_EMBD, 1));
    times(layer_weights(il, "gate", MATRIX, DF_EMBD, DF_FF), y, DF_EMBD, DF_FF, a);
    times(layer_weights(il, "up", MATRIX, DF_EMBD, DF_FF), y, DF_EMBD, DF_FF, b);
    for (int32_t i = 0; i < DF_FF; i++)
        a[i] = a[i] / (1 + exp(-a[i])) * b[i];
    times(layer_weights(il, "down", MATRIX, DF_FF, DF_EMBD), a, DF_FF, DF_EMBD, y);
    for (int32_t i = 0; i < DF_EMBD; i++)
        x[i] += y[i];
}

/* One layer over all slots; kv has the context's rows, and gets the block's. */
static void layer_of_block(const df_options *o, int32_t il, int32_t c, int32_t slots,
                           double x[][DF_EMBD], key_values *kv)
{
    double(*y)[DF_EMBD] = mem_alloc((size_t)slots * sizeof *y);
    CHECK(y);
    for (int32_t i = 0; i < slots; i++) {
        memcpy(y[i], x[i], sizeof y[i]);
        norm(y[i], DF_EMBD, layer_weights(il, "attn_norm", NORM, DF_EMBD, 1));
        keys_of(il, y[i], c + i, kv[c + i].k, kv[c + i].v);
    }
    for (int32_t i = 0; i < slots; i++) {
        double q[Q_DIM], a[Q_DIM], add[DF_EMBD], gate[DF_HEADS];
        times(layer_weights(il, "q", MATRIX, DF_EMBD, Q_DIM), y[i], DF_EMBD, Q_DIM, q);
        for (int32_t h = 0; h < DF_HEADS; h++) {
            norm(q + h * DF_DIM, DF_DIM, layer_weights(il, "q_norm", NORM, DF_DIM, 1));
            turn(q + h * DF_DIM, c + i);
        }
        attend_row(o, il, c, slots, i, q, kv, a);
        if (o->laguna) {
            times(layer_weights(il, "head_gate", MATRIX, DF_EMBD, DF_HEADS), y[i], DF_EMBD,
                  DF_HEADS, gate);
            for (int32_t d = 0; d < Q_DIM; d++)
                a[d] *= log1p(exp(gate[d / DF_DIM]));
        }
        times(layer_weights(il, "o", MATRIX, Q_DIM, DF_EMBD), a, Q_DIM, DF_EMBD, add);
        for (int32_t d = 0; d < DF_EMBD; d++)
            x[i][d] += add[d];
    }
    for (int32_t i = 0; i < slots; i++)
        feed_forward(il, x[i]);
    mem_free(y);
}

static void log_softmax(double *z)
{
    double total = 0;
    for (int32_t i = 0; i < DF_VOCAB; i++)
        total += exp(z[i]);
    for (int32_t i = 0; i < DF_VOCAB; i++)
        z[i] -= log(total);
}

static int32_t best_of(const double *z)
{
    int32_t best = 0;
    for (int32_t i = 1; i < DF_VOCAB; i++)
        best = z[i] > z[best] ? i : best;
    return best;
}

/* Adds the bigram correction after token `before`; the confidence of that slot. */
static double correct(const df_options *o, int32_t before, const double *h, double *z)
{
    double e[64], bias[DF_VOCAB], in[DF_EMBD + 64], conf;
    float *rows = draw_weights("markov_in", NORM, o->rank, DF_VOCAB), *b;
    for (int32_t i = 0; i < o->rank; i++)
        e[i] = (double)rows[before * o->rank + i];
    mem_free(rows);
    times(draw_weights("markov_out", MATRIX, o->rank, DF_VOCAB), e, o->rank, DF_VOCAB, bias);
    for (int32_t i = 0; i < DF_VOCAB; i++)
        z[i] += bias[i];
    memcpy(in, h, DF_EMBD * sizeof *h);
    memcpy(in + DF_EMBD, e, (size_t)o->rank * sizeof *e);
    int32_t n = DF_EMBD + (o->conf_of_state ? 0 : o->rank);
    times(draw_weights("conf", MATRIX, n, 1), in, n, 1, &conf);
    b = draw_weights("conf_bias", BIAS, 1, 1);
    conf += (double)*b;
    mem_free(b);
    return conf;
}

void df_compute(const df_options *o, const df_block *b, double *logp, double *conf)
{
    int32_t c = b->n_ctx, n = c + b->slots, before = b->token;
    double(*x)[DF_EMBD] = mem_alloc((size_t)b->slots * sizeof *x);
    double(*g)[DF_EMBD] = mem_alloc((size_t)(c + 1) * sizeof *g);
    AUTO_MEM key_values *kv = mem_alloc((size_t)n * sizeof *kv);
    CHECK(x && g && kv);
    for (int32_t p = 0; p < c; p++)
        context_row(o, b->features + (size_t)p * WIDE, g[p]);
    for (int32_t i = 0; i < b->slots; i++)
        for (int32_t d = 0; d < DF_EMBD; d++)
            x[i][d] = b->embd_scale * (double)b->embd[(i ? DF_MASK : b->token) * DF_EMBD + d];
    for (int32_t il = 0; il < DF_LAYERS; il++) {
        for (int32_t p = 0; p < c; p++) {
            double u[DF_EMBD];
            memcpy(u, g[p], sizeof u);
            if (o->laguna)
                norm(u, DF_EMBD, layer_weights(il, "attn_norm", NORM, DF_EMBD, 1));
            keys_of(il, u, p, kv[p].k, kv[p].v);
        }
        layer_of_block(o, il, c, b->slots, x, kv);
    }
    for (int32_t i = o->anchor_first ? 0 : 1; i < b->slots; i++) {
        double *z = logp;
        norm(x[i], DF_EMBD, draw_weights("out_norm", NORM, DF_EMBD, 1));
        for (int32_t v = 0; v < DF_VOCAB; v++) {
            z[v] = 0;
            for (int32_t d = 0; d < DF_EMBD; d++)
                z[v] += (double)b->head[v * DF_EMBD + d] * x[i][d];
            if (b->softcap > 0)
                z[v] = b->softcap * tanh(z[v] / b->softcap);
        }
        if (o->rank) {
            double q = correct(o, before, x[i], z);
            if (conf && o->conf)
                *conf++ = q;
            before = best_of(z);
        }
        log_softmax(z);
        logp += DF_VOCAB;
    }
    mem_free(x);
    mem_free(g);
}
