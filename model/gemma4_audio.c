/* gemma4_audio.c - the audio tower of Gemma 4 E2B and E4B: sizes, keys, tensors, binding, and the
 * forward pass in the order of the paper (Gulati et al., Conformer, arXiv 2005.08100; Zhang et al.,
 * Google USM, arXiv 2303.01037).
 *
 * GGUF names are llama.cpp's; safetensors names are transformers'. Two norms have each other's
 * names in files. The scale of queries is stored after its softplus. Files say neither how far
 * attention reaches, 12 rows, nor its cap. The bounds of 1e10 that the reference has for gradients
 * change no number.
 */
#include "model/gemma4_audio.h"
#include "model/bind.h"
#include "sound/sound.h"

#include <math.h>
#include <stdio.h>

enum { N_NEAR = 12 };        /* rows that a row sees, itself included */
static const float CAP = 50; /* of scores */
static const double LN_2 = 0.69314718055994530942;

static const gemma4a_shape *own(const model_shape *s)
{
    return (const gemma4a_shape *)s;
}

/* ---- Keys ---- */

#define F(name) offsetof(gemma4a_shape, name)
static const table_key keys[] = {
    K("audio.projection_dim", NULL, F(n_out), COUNT, 1, WIDTH_MAX),
    K("audio.embedding_length", "hidden_size", F(n_embd), COUNT, 1, WIDTH_MAX),
    K("audio.feed_forward_length", NULL, F(n_ff), COUNT, 1, WIDTH_MAX),
    K("audio.block_count", "num_hidden_layers", F(n_layer), COUNT, 1, LAYERS_MAX),
    K("audio.attention.head_count", "num_attention_heads", F(n_head), COUNT, 1, HEADS_MAX),
    K("audio.num_mel_bins", NULL, F(n_mel), COUNT, MEL_BINS, MEL_BINS),
    /* Old files say 1e-5, and the model is one of 1e-6. */
    K("audio.attention.layer_norm_epsilon", "rms_norm_eps", F(eps), REAL, EPS_MIN, 1,
      .how = WRITE_ONLY),
};

static status agree(const model_shape *m, status bad, const char *what, err *e)
{
    const gemma4a_shape *s = own(m);
    if (s->n_embd % s->n_head || s->n_embd % 2)
        return err_set(e, bad, "%s: width %d in %d heads: expected an even width, and whole heads",
                       what, s->n_embd, s->n_head);
    if (s->n_ch[0] < 1 || s->n_ch[1] < 1 || s->n_ch[0] > 4096 || s->n_ch[1] > 4096 ||
        s->n_taps < 1 || s->n_taps > 64 || s->n_wide < 1 || s->n_wide > WIDTH_MAX)
        return err_set(e, bad,
                       "%s: convolutions of %d and %d channels, of %d taps, and %d outputs: "
                       "expected 1 to 4096 channels, 1 to 64 taps, 1 to %d outputs",
                       what, s->n_ch[0], s->n_ch[1], s->n_taps, s->n_wide, WIDTH_MAX);
    return OK;
}

/* What tensors tell. */
static status read_kind(const model *m, model_shape *shape, err *e)
{
    gemma4a_shape *s = (gemma4a_shape *)shape;
    const struct {
        const char *name;
        int axis;
        int32_t *to;
    } told[] = {{"a.conv1d.0.weight", 3, &s->n_ch[0]},
                {"a.conv1d.1.weight", 3, &s->n_ch[1]},
                {"a.blk.0.conv_dw.weight", 0, &s->n_taps},
                {"a.pre_encode.out.weight", 1, &s->n_wide}};
    for (size_t i = 0; i < sizeof told / sizeof *told; i++) {
        const tensor *t = tensor_find(&m->file.tensors, told[i].name);
        if (!t)
            return err_set(e, E_FORMAT, "%s: tensor %s is missing", m->file.path, told[i].name);
        *told[i].to = t->ne[told[i].axis] <= WIDTH_MAX ? (int32_t)t->ne[told[i].axis] : 0;
    }
    s->eps = 1e-6;
    s->clamped = tensor_find(&m->file.tensors, "a.blk.0.attn_q.input_max") != NULL;
    return OK;
}

static void put_own_keys(gguf_writer *w, const char *arch, const model_shape *m)
{
    (void)arch;
    (void)m;
    audio_put(w, gemma4a_audio.projector);
}

/* ---- Tensors ---- */

enum { D = 1, D2, FF, HD, WIDE, D_OUT, ONE, SIDE, CH0, CH1, IN, TAPS };
static int64_t dim(const model_shape *m, int32_t il, int8_t d)
{
    const gemma4a_shape *s = own(m);
    const int64_t of[] = {
        [D] = s->n_embd,
        [D2] = 2 * (int64_t)s->n_embd,
        [FF] = s->n_ff,
        [HD] = s->n_embd / s->n_head,
        [WIDE] = s->n_wide,
        [D_OUT] = s->n_out,
        [ONE] = 1,
        [SIDE] = 3,
        [CH0] = s->n_ch[0],
        [CH1] = s->n_ch[1],
        [IN] = (int64_t)((s->n_mel + 1) / 2 + 1) / 2 * s->n_ch[1],
        [TAPS] = s->n_taps,
    };
    (void)il;
    return of[d];
}

static bool is_clamped(const model_shape *s, int32_t il)
{
    (void)il;
    return own(s)->clamped;
}

enum { SOFTPLUS = 1, TAPS_OF };
#define M(name) offsetof(gemma4a, name)
#define HF_CONV "subsample_conv_projection."
static const table_tensor of_model[] = {
    T(ALWAYS, ELSEWHERE, "a.conv1d.0.weight", HF_CONV "layer0.conv.weight", TAPS, SIDE, SIDE, ONE,
      CH0),
    T(ALWAYS, M(conv_norm[0]), "a.conv1d.0.norm.weight", HF_CONV "layer0.norm.weight", NORM, CH0),
    T(ALWAYS, ELSEWHERE, "a.conv1d.1.weight", HF_CONV "layer1.conv.weight", TAPS, SIDE, SIDE, CH0,
      CH1),
    T(ALWAYS, M(conv_norm[1]), "a.conv1d.1.norm.weight", HF_CONV "layer1.norm.weight", NORM, CH1),
    T(ALWAYS, M(in), "a.input_projection.weight", HF_CONV "input_proj_linear.weight", MATRIX, IN,
      D),
    T(ALWAYS, M(wide), "a.pre_encode.out.weight", "output_proj.weight", MATRIX, D, WIDE),
    T(ALWAYS, M(wide_bias), "a.pre_encode.out.bias", "output_proj.bias", BIAS, WIDE),
    T(ALWAYS, M(out), "mm.a.input_projection.weight", "", MATRIX, WIDE, D_OUT),
};

#define W(name) offsetof(gemma4a_layer, name)
#define BOUNDED(field, gguf_, hf_, role_, ...)                                                     \
    CLAMPED(W, is_clamped, field, gguf_, hf_, role_, __VA_ARGS__)
#define HF_1 "feed_forward1."
#define HF_2 "feed_forward2."
static const table_tensor of_layer[] = {
    T(ALWAYS, W(first.norm), "ffn_norm.weight", HF_1 "pre_layer_norm.weight", NORM, D),
    BOUNDED(first.up, "ffn_up", HF_1 "ffw_layer_1", MATRIX, D, FF),
    BOUNDED(first.down, "ffn_down", HF_1 "ffw_layer_2", MATRIX, FF, D),
    T(ALWAYS, W(first.post_norm), "ffn_post_norm.weight", HF_1 "post_layer_norm.weight", NORM, D),
    T(ALWAYS, W(attn_norm), "attn_pre_norm.weight", "norm_pre_attn.weight", NORM, D),
    BOUNDED(wq, "attn_q", "self_attn.q_proj", MATRIX, D, D),
    BOUNDED(wk, "attn_k", "self_attn.k_proj", MATRIX, D, D),
    BOUNDED(wv, "attn_v", "self_attn.v_proj", MATRIX, D, D),
    BOUNDED(wo, "attn_out", "self_attn.post", MATRIX, D, D),
    T(ALWAYS, W(w_far), "attn_k_rel.weight", "self_attn.relative_k_proj.weight", MATRIX, D, D),
    T_AS(SOFTPLUS, ALWAYS, W(q_scale), "per_dim_scale.weight", "self_attn.per_dim_scale", NORM, HD),
    T(ALWAYS, W(attn_post_norm), "attn_post_norm.weight", "norm_post_attn.weight", NORM, D),
    T(ALWAYS, W(conv_norm), "conv_norm.weight", "lconv1d.pre_layer_norm.weight", NORM, D),
    BOUNDED(conv_in, "conv_pw1", "lconv1d.linear_start", MATRIX, D, D2),
    T_AS(TAPS_OF, ALWAYS, W(taps), "conv_dw.weight", "lconv1d.depthwise_conv1d.weight", TAPS, TAPS,
         D),
    T(ALWAYS, W(taps_norm), "norm_conv.weight", "lconv1d.conv_norm.weight", NORM, D),
    BOUNDED(conv_out, "conv_pw2", "lconv1d.linear_end", MATRIX, D, D),
    T(ALWAYS, W(last.norm), "ffn_norm_1.weight", HF_2 "pre_layer_norm.weight", NORM, D),
    BOUNDED(last.up, "ffn_up_1", HF_2 "ffw_layer_1", MATRIX, D, FF),
    BOUNDED(last.down, "ffn_down_1", HF_2 "ffw_layer_2", MATRIX, FF, D),
    T(ALWAYS, W(last.post_norm), "ffn_post_norm_1.weight", HF_2 "post_layer_norm.weight", NORM, D),
    T(ALWAYS, W(norm), "ln2.weight", "norm_out.weight", NORM, D),
};

static void describe(const model_shape *m, const table_tensor *r, shape_tensor *t)
{
    (void)m;
    if (t->layer >= 0)
        snprintf(t->hf_name, sizeof t->hf_name, "audio_tower.layers.%d.%s", (int)t->layer, r->hf);
    else
        snprintf(t->hf_name, sizeof t->hf_name, "%s%s", *r->hf ? "audio_tower." : "",
                 *r->hf ? r->hf : "embed_audio.embedding_projection.weight");
    if (t->n_dims == 4)
        t->fan_in = 9 * (float)t->ne[2];
    t->change.taps = r->change == TAPS_OF;
    t->change.softplus = r->change == SOFTPLUS;
}

static const gemma4a_shape sizes[1]; /* see gemma4_audio.h */
static const family_table rows = {TABLE_ROWS,          .prefix = "a.",    .dim = dim,
                                  .agree = agree,      .read = read_kind, .put = put_own_keys,
                                  .describe = describe};

const shape_family gemma4a_shapes = {TABLE_HOOKS(gemma4a_shape, rows),
                                     .arch = "clip",
                                     .title = "gemma-4",
                                     .sizes = "",
                                     .tower = true,
                                     .mix = "bf16",
                                     .cut = table_cut};

/* ---- Binding ---- */

/* Nine numbers of each channel are a row of a product. */
static status bind_conv(model *m, weight *w, const char *name, int64_t n_in, int64_t n_out, err *e)
{
    return model_weight(m, w,
                        &(model_want){.name = name,
                                      .n_in = 9 * n_in,
                                      .n_out = n_out,
                                      .n_mat = 1,
                                      .folded = true,
                                      .active = 1},
                        e);
}

static status bind_each(model *m, gemma4a *g, const gemma4a_shape *s, err *e)
{
    status st = bind_layer_structs(m, s->n_layer, (void **)&g->layer, sizeof *g->layer, e);
    for (int32_t i = 0; i < s->n_layer && !st; i++) {
        gemma4a_layer *L = &g->layer[i];
        const binder b = {m, i, e};
        struct {
            clamped_weight *w;
            const char *name;
        } products[] = {{&L->first.up, "ffn_up"},  {&L->first.down, "ffn_down"},
                        {&L->wq, "attn_q"},        {&L->wk, "attn_k"},
                        {&L->wv, "attn_v"},        {&L->wo, "attn_out"},
                        {&L->conv_in, "conv_pw1"}, {&L->conv_out, "conv_pw2"},
                        {&L->last.up, "ffn_up_1"}, {&L->last.down, "ffn_down_1"}};
        st = table_bind(&b, &s->common, L);
        for (size_t k = 0; k < sizeof products / sizeof *products && !st; k++)
            st = clamped_bind(&b, products[k].w, products[k].name);
    }
    return st;
}

static status bind_gemma4a(model *m, err *e)
{
    model_shape *shape = NULL;
    gemma4a *g = bind_begin(m, &gemma4a_shapes, sizeof *g, &shape, e);
    if (!g)
        return e->status;
    const gemma4a_shape *s = own(shape);
    const binder b = {m, -1, e};
    status st;
    g->n_head = s->n_head;
    g->eps = (float)s->eps;
    if ((st = table_bind(&b, shape, g)) ||
        (st = bind_conv(m, &g->conv[0], "a.conv1d.0.weight", 1, s->n_ch[0], e)) ||
        (st = bind_conv(m, &g->conv[1], "a.conv1d.1.weight", s->n_ch[0], s->n_ch[1], e)) ||
        (st = bind_each(m, g, s, e)))
        return st;
    g->wide.bias = &g->wide_bias;
    g->a.n_out = s->n_out;
    g->a.n_near = N_NEAR;
    g->a.n_embd = s->n_embd;
    return audio_done(m, shape, &g->a, &gemma4a_audio, e);
}

/* ---- Features ---- */

static int64_t half(int64_t n) /* rows after a convolution with stride 2 */
{
    return (n - 1) / 2 + 1;
}

static int64_t tokens_of(int64_t n_rows)
{
    return half(half(n_rows));
}

/* ---- The forward pass ---- */

/* Times of a convolution at once: its inputs are nine times as many. A GPU wants more rows. */
enum { BAND_HOST = 64, BAND = 256 };

/* ReLU of the norm of a convolution of 3 x 3, stride 2. x: [times, places heads, channels]. */
static mat gemma4a_conv(pass *p, const gemma4a *g, int i, mat x)
{
    int32_t times = (int32_t)half(x.rows), places = (x.heads + 1) / 2;
    int32_t n_ch = g->conv[i].n_out, band = p->dev->host_memory ? BAND_HOST : BAND;
    mat y = mat_heads(pass_mat(p, times, 1, places * n_ch), n_ch);
    for (int32_t t = 0; t < times; t += band) {
        int32_t n = times - t < band ? times - t : band;
        mat to = mat_head_rows(mat_at(y.at ? mat_row(y, t) : NULL, n, places, n_ch, y.stride));
        size_t mark = pass_mark(p);
        mat h = op_matmul(p, op_unfold(p, x, t, n), &g->conv[i]);
        h = op_layer_norm(p, h, &g->conv_norm[i], NULL, g->eps);
        op_copy(p, to, op_clamp_inplace(p, h, 0, INFINITY));
        pass_release(p, mark);
    }
    return y;
}

/* Half a step of x by a unit without a gate. */
static void gemma4a_add_ffn(pass *p, const gemma4a *g, const gemma4a_ffn *f, res_stream *s)
{
    mat h = clamped_product(p, res_enter(p, s, &f->norm), &f->up);
    mat y = clamped_product(p, op_act(p, h, ACT_SILU), &f->down);
    y = mat_bare(op_rms_norm_inplace(p, y, &f->post_norm, g->eps));
    y = op_scale(p, y, 0.5f, NULL);
    res_leave(p, s, (residual){.y = y});
}

static void gemma4a_add_attention(pass *p, const gemma4a *g, const gemma4a_layer *L, res_stream *s,
                                  mat places)
{
    int32_t head_dim = s->x.cols / g->n_head;
    const near_rule rule = {.n_near = N_NEAR,
                            .scale = &L->q_scale,
                            .c = (float)(1 / sqrt((double)head_dim) / LN_2),
                            .k_factor = (float)(log(1 + exp(1.0)) / LN_2),
                            .cap = CAP};
    mat h = res_enter(p, s, &L->attn_norm);
    mat y[3];
    clamped_products(p, y, h, (const clamped_weight *[]){&L->wq, &L->wk, &L->wv}, 3);
    mat q = mat_heads(y[0], head_dim);
    mat k = mat_heads(y[1], head_dim);
    mat v = mat_heads(y[2], head_dim);
    mat far = mat_heads(op_matmul(p, places, &L->w_far), head_dim);
    mat a = mat_flat(op_near(p, q, k, v, far, &rule));
    mat o = clamped_product(p, a, &L->wo);
    res_leave(p, s, (residual){.y = o, .norm = &L->attn_post_norm});
}

static void gemma4a_add_conv(pass *p, const gemma4a *g, const gemma4a_layer *L, res_stream *s)
{
    const int32_t n = s->x.cols;
    mat u = clamped_product(p, res_enter(p, s, &L->conv_norm), &L->conv_in);
    mat y = op_act_mul(p, mat_columns(u, n, n), mat_columns(u, 0, n), ACT_SIGMOID);
    y = op_rms_norm_inplace(p, op_depthwise(p, y, &L->taps), &L->taps_norm, g->eps);
    y = clamped_product(p, op_act(p, mat_bare(y), ACT_SILU), &L->conv_out);
    res_leave(p, s, (residual){.y = y});
}

static mat gemma4a_forward(pass *p, const model *m, const audio_input *in)
{
    const gemma4a *g = m->impl;
    /* All frequencies of a time are one row of the stack's input. */
    mat c = gemma4a_conv(p, g, 0, mat_heads(in->rows, 1));
    mat x = op_matmul(p, mat_flat(gemma4a_conv(p, g, 1, c)), &g->in);
    res_stream s = {.x = x, .eps = g->eps};
    s.room[p->here] = op_norm_room(p, x);
    size_t mark = pass_mark(p);
    for (int32_t i = 0; i < m->n_layer && audio_goes_on(p, m, i); i++) {
        const gemma4a_layer *L = &g->layer[i];
        s.next = &L->attn_norm;
        gemma4a_add_ffn(p, g, &L->first, &s);
        pass_release(p, mark);
        s.next = &L->conv_norm;
        gemma4a_add_attention(p, g, L, &s, in->places);
        pass_release(p, mark);
        s.next = &L->last.norm;
        gemma4a_add_conv(p, g, L, &s);
        pass_release(p, mark);
        s.next = NULL;
        gemma4a_add_ffn(p, g, &L->last, &s);
        op_rms_norm_inplace(p, x, &L->norm, g->eps);
        pass_release(p, mark);
    }
    p->il = -1;
    x = op_matmul(p, x, &g->wide);
    return op_matmul(p, op_rms_norm_inplace(p, x, NULL, g->eps), &g->out);
}

const audio_arch gemma4a_audio = {.projector = "gemma4a",
                                  .shapes = &gemma4a_shapes,
                                  .bind = bind_gemma4a,
                                  .n_in = MEL_BINS,
                                  .n_rows = mel_length,
                                  .n_tokens = tokens_of,
                                  .features = mel_rows,
                                  .forward = gemma4a_forward};
