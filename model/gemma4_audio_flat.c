/* gemma4_audio_flat.c - sound for Gemma 4 12B, which has no tower: sizes, keys, tensors, binding,
 * forward pass. A token is 640 samples, normed; the last one is filled up with zeros.
 */
#include "model/bind.h"
#include "model/gemma4_audio.h"

#include <string.h>

enum { SAMPLES = 640 };

static const gemma4ua_shape *own(const model_shape *s)
{
    return (const gemma4ua_shape *)s;
}

#define F(name) offsetof(gemma4ua_shape, name)
/* num_mel_bins has several meanings in files, and none here. */
static const table_key keys[] = {
    K("audio.projection_dim", NULL, F(n_out), COUNT, 1, WIDTH_MAX),
    K("audio.embedding_length", "audio_embed_dim", F(n_embd), COUNT, SAMPLES, SAMPLES),
    K("audio.feed_forward_length", NULL, F(n_ff), COUNT, 0, 0),
    K("audio.block_count", NULL, F(n_layer), COUNT, 0, 0),
    K("audio.attention.head_count", NULL, F(n_head), COUNT, 0, 0),
    K("audio.attention.layer_norm_epsilon", "rms_norm_eps", F(eps), REAL, EPS_MIN, 1),
};

static status agree(const model_shape *m, status bad, const char *what, err *e)
{
    (void)m;
    (void)bad;
    (void)what;
    (void)e;
    return OK;
}

static void put_own_keys(gguf_writer *w, const char *arch, const model_shape *m)
{
    (void)arch;
    (void)m;
    audio_put(w, gemma4ua_audio.projector);
    gguf_put_u32(w, "clip.audio.num_mel_bins", SAMPLES);
}

enum { D = 1, D_OUT };
static int64_t dim(const model_shape *m, int32_t il, int8_t d)
{
    (void)il;
    return d == D ? own(m)->n_embd : own(m)->n_out;
}

static const table_tensor of_model[] = {
    T(ALWAYS, offsetof(gemma4ua, out), "mm.a.input_projection.weight",
      "embed_audio.embedding_projection.weight", MATRIX, D, D_OUT),
};

static const table_tensor of_layer[1]; /* it has no layers */

static const gemma4ua_shape sizes[1]; /* see gemma4_audio.h */
static const family_table rows = {TABLE_ROWS, .prefix = "a.", .dim = dim, .agree = agree,
                                  .put = put_own_keys};

const shape_family gemma4ua_shapes = {TABLE_HOOKS(gemma4ua_shape, rows),
                                      .arch = "clip",
                                      .title = "gemma-4",
                                      .sizes = "",
                                      .tower = true,
                                      .mix = "bf16"};

static status bind_gemma4ua(model *m, err *e)
{
    model_shape *shape = NULL;
    gemma4ua *g = bind_begin(m, &gemma4ua_shapes, sizeof *g, &shape, e);
    if (!g)
        return e->status;
    const binder b = {m, -1, e};
    status st = table_bind(&b, shape, g);
    g->eps = (float)own(shape)->eps;
    g->a.n_out = own(shape)->n_out;
    return st ? st : audio_done(m, shape, &g->a, &gemma4ua_audio, e);
}

static int64_t rows_of(int64_t n_samples)
{
    return (n_samples + SAMPLES - 1) / SAMPLES;
}

static int64_t tokens_of(int64_t n_rows)
{
    return n_rows;
}

static void features(float *out, const float *x, int64_t n)
{
    memcpy(out, x, (size_t)n * sizeof *x);
    memset(out + n, 0, (size_t)(rows_of(n) * SAMPLES - n) * sizeof *out);
}

static mat gemma4ua_forward(pass *p, const model *m, const audio_input *in)
{
    const gemma4ua *g = m->impl;
    return op_matmul(p, op_rms_norm(p, in->rows, NULL, g->eps), &g->out);
}

const audio_arch gemma4ua_audio = {.projector = "gemma4ua",
                                   .shapes = &gemma4ua_shapes,
                                   .bind = bind_gemma4ua,
                                   .n_in = SAMPLES,
                                   .n_rows = rows_of,
                                   .n_tokens = tokens_of,
                                   .features = features,
                                   .forward = gemma4ua_forward};
