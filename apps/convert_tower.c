/* convert_tower.c - the vision tower of a checkpoint, and its audio tower, to an mmproj file.
 *
 * The configuration has the tower under vision_config, and the text model's width beside it. Four
 * kinds of tensors lie otherwise in a checkpoint than in a file (hf_change):
 *
 *     side     squares of pixels: a pixel's three colours together; in the file colour by colour
 *     frames   a kernel over two pictures, [outputs, 3, 2, side, side]; in the file two kernels
 *     pairs    a table of columns and one of rows, row by row in turns; in the file in sequence
 *     bounds   numbers without axes
 */
#include "apps/convert_int.h"
#include "base/mem.h"
#include "model/gemma4_vision.h"
#include "model/qwen_vision.h"
#include "model/unplaced.h"

#include <stdio.h>
#include <string.h>

/* ---- Configuration ---- */

/* A key that is added to vision_config: the width of the text model. */
static const char width_key[] = "carat.text_width";

/* Rotation that no GGUF file states. */
static void check_theta(config_fields *f, double theta)
{
    config_fields r = {config_get(f, "rope_parameters"), f->path, f->st, f->e};
    if (r.object && config_real_or(&r, "rope_theta", theta) != theta)
        config_refuse(&r, "rope_theta", "rotation of a published tower");
    f->st = r.st;
}

static void read_gemma(config_fields *f, model_shape *m)
{
    gemma4v_shape *s = (gemma4v_shape *)m;
    s->n_out = config_whole(f, width_key);
    s->image_size = 224;
    s->clamped = config_truth(f, "use_clipped_linears");
    s->standardized = config_truth(f, "standardize");
    if (config_whole_or(f, "num_key_value_heads", s->n_head) != s->n_head)
        config_refuse(f, "num_key_value_heads", "number equal to that of heads");
    if (!f->st && s->n_head &&
        config_whole_or(f, "head_dim", s->n_embd / s->n_head) != s->n_embd / s->n_head)
        config_refuse(f, "head_dim", "width divided by the heads");
    check_theta(f, 100);
}

static void read_flat(config_fields *f, model_shape *m)
{
    gemma4uv_shape *s = (gemma4uv_shape *)m;
    s->n_out = config_whole(f, width_key);
    s->image_size = 224;
    if (config_get(f, "model_patch_size") &&
        config_whole(f, "model_patch_size") != (int64_t)s->patch * s->merge)
        config_refuse(f, "model_patch_size", "product of patch_size and pooling_kernel_size");
}

static void read_qwen(config_fields *f, model_shape *m)
{
    qwen3vl_shape *s = (qwen3vl_shape *)m;
    const json_t *deep = config_get(f, "deepstack_visual_indexes");
    int32_t side = 1, last = -1;
    while (side * side < s->n_pos && side < 4096)
        side++;
    s->image_size = s->patch <= 4096 ? side * s->patch : 0; /* a larger patch is refused later */
    s->eps = 1e-6; /* of the reference; in no configuration */
    if (config_whole_or(f, "in_channels", 3) != 3)
        config_refuse(f, "in_channels", "3");
    if (config_whole_or(f, "temporal_patch_size", 2) != 2)
        config_refuse(f, "temporal_patch_size", "2");
    /* Mergers follow each other in this order, and the text model's layers in that of the tower. */
    for (size_t i = 0; i < json_array_size(deep) && !f->st; i++) {
        int32_t il = -1;
        if (!config_integer(json_array_get(deep, i), last + 1, s->n_layer - 1, &il))
            config_refuse(f, "deepstack_visual_indexes", "list of layers of the tower, ascending");
        else
            s->deep[last = il] = true;
    }
    if (!f->st && s->n_out != config_whole(f, width_key))
        config_refuse(f, "out_hidden_size", "width of the text model");
    check_theta(f, 10000);
}

/* A list of whole numbers. */
static void read_list(config_fields *f, const char *key, int32_t *v, size_t n)
{
    const json_t *list = config_get(f, key);
    bool fits = json_array_size(list) == n;
    for (size_t i = 0; i < n && fits; i++)
        fits = config_integer(json_array_get(list, i), 1, WIDTH_MAX, &v[i]);
    if (!f->st && !fits)
        config_refuse(f, key, "list of whole numbers, one for each convolution");
}

/* A number that the arithmetic has, and no file. */
static void check_real(config_fields *f, const char *key, double want, const char *expected)
{
    if (config_real_or(f, key, want) != want)
        config_refuse(f, key, expected);
}

static void read_audio(config_fields *f, model_shape *m)
{
    gemma4a_shape *s = (gemma4a_shape *)m;
    s->n_out = config_whole(f, width_key);
    s->n_ff = s->n_embd <= WIDTH_MAX / 4 ? 4 * s->n_embd : 0;
    s->n_mel = 128;
    s->n_wide = config_whole(f, "output_proj_dims");
    s->n_taps = config_whole(f, "conv_kernel_size");
    s->clamped = config_truth(f, "use_clipped_linears");
    read_list(f, "subsampling_conv_channels", s->n_ch, 2);
    check_real(f, "attention_chunk_size", 12, "12, which alone is supported");
    check_real(f, "attention_context_left", 13, "13, which alone is supported");
    check_real(f, "attention_context_right", 0, "0, which alone is supported");
    check_real(f, "attention_logit_cap", 50, "50, which alone is supported");
    check_real(f, "residual_weight", 0.5, "0.5, which alone is supported");
}

static void read_audio_flat(config_fields *f, model_shape *m)
{
    ((gemma4ua_shape *)m)->n_out = config_whole(f, width_key);
}

static const neutral_option gemma_options[] = {
    {"hidden_activation", "gelu_pytorch_tanh"}, {"attention_bias", NULL}, {NULL, NULL}};
static const neutral_option no_options[] = {{NULL, NULL}};
static const neutral_option qwen_options[] = {{"hidden_act", "gelu_pytorch_tanh"}, {NULL, NULL}};
static const char *const gemma_more[] = {
    width_key,  "use_clipped_linears",     "standardize",     "num_key_value_heads",
    "head_dim", "max_position_embeddings", "rope_parameters", "default_output_length",
    NULL};
static const char *const flat_more[] = {width_key, "model_patch_size", "output_proj_dims",
                                        "num_soft_tokens", NULL};
static const neutral_option audio_options[] = {{"hidden_act", "silu"}, {NULL, NULL}};
/* Bounds of gradients, and the score of what is not seen, change no number. */
static const char *const audio_more[] = {width_key,
                                         "output_proj_dims",
                                         "conv_kernel_size",
                                         "use_clipped_linears",
                                         "subsampling_conv_channels",
                                         "attention_chunk_size",
                                         "attention_context_left",
                                         "attention_context_right",
                                         "attention_logit_cap",
                                         "attention_invalid_logits_value",
                                         "residual_weight",
                                         "gradient_clipping",
                                         NULL};
static const char *const audio_flat_more[] = {width_key, NULL};
static const char *const qwen_more[] = {
    width_key,         "in_channels", "temporal_patch_size", "deepstack_visual_indexes",
    "rope_parameters", NULL};

static const config_family towers[] = {
    {.shapes = &gemma4v_shapes,
     .types = {"gemma4_vision"},
     .options = gemma_options,
     .more = gemma_more,
     .read = read_gemma},
    {.shapes = &gemma4uv_shapes,
     .types = {"gemma4_unified_vision"},
     .options = no_options,
     .more = flat_more,
     .read = read_flat},
    /* Published files say the type of the whole model here, files of the library the tower's. */
    {.shapes = &qwen3vl_shapes,
     .types = {"qwen3_5_vision", "qwen3_5_moe_vision", "qwen3_5", "qwen3_5_moe", "qwen3_vl*"},
     .options = qwen_options,
     .more = qwen_more,
     .read = read_qwen},
};

/* Towers for sound, which stand beside Gemma's for pictures: the type of the one, and where its
 * shape is in the other's. */
static const config_family ears[] = {
    {.shapes = &gemma4a_shapes,
     .types = {"gemma4_audio"},
     .options = audio_options,
     .more = audio_more,
     .read = read_audio},
    {.shapes = &gemma4ua_shapes,
     .types = {"gemma4_unified_audio"},
     .options = no_options,
     .more = audio_flat_more,
     .read = read_audio_flat},
};

/* vision_config with the text model's width; to be freed by json_decref. NULL: there is none. */
static json_t *tower_config(const json_t *config)
{
    const json_t *text = json_object_get(config, "text_config");
    json_t *v = json_copy(json_object_get(config, "vision_config")), *width;
    if (!json_is_object(v)) {
        json_decref(v);
        return NULL;
    }
    width = json_object_get(text ? text : config, "hidden_size");
    if (width)
        json_object_set(v, width_key, width);
    /* The 12B's may state the side of a token alone. */
    int32_t side, merge = 3;
    config_integer(json_object_get(v, "pooling_kernel_size"), 1, 16, &merge);
    if (!json_object_get(v, "patch_size") &&
        config_integer(json_object_get(v, "model_patch_size"), 1, 1024, &side) &&
        side % merge == 0) {
        json_object_set_new(v, "patch_size", json_integer(side / merge));
        json_object_set_new(v, "pooling_kernel_size", json_integer(merge));
    }
    return v;
}

static status read_tower(const json_t *config, const char *path, model_shape **s, str *unknown,
                         err *e)
{
    json_t *v = tower_config(config);
    const char *type = json_string_value(json_object_get(v, "model_type"));
    status st = E_UNSUPPORTED;
    size_t i = 0;
    if (!v)
        return err_set(e, E_ARG,
                       "%s: there is no vision_config: the model has no tower for "
                       "--mmproj",
                       path);
    while (i < sizeof towers / sizeof *towers && !(type && config_is_type(&towers[i], type)))
        i++;
    if (i == sizeof towers / sizeof *towers)
        err_set(e, st, "%s: carat cannot convert the vision tower of type %.64s", path,
                type ? type : "null");
    else
        st = config_read_shape(&towers[i], v, path, s, unknown, e);
    json_decref(v);
    return st;
}

/* The audio tower's shape; its family is NULL where there is none. */
static const model_shape *ears_of(const model_shape *s)
{
    static const model_shape none;
    return s->family == &gemma4v_shapes    ? &((const gemma4v_shape *)s)->ears.common
           : s->family == &gemma4uv_shapes ? &((const gemma4uv_shape *)s)->ears.common
                                           : &none;
}

/* The audio tower of a model that has one, into the shape of its vision tower. */
static status read_ears(const json_t *config, const char *path, model_shape *s, str *unknown,
                        err *e)
{
    const json_t *sound = json_object_get(config, "audio_config"),
                 *text = json_object_get(config, "text_config");
    const config_family *f = s->family == &gemma4uv_shapes ? &ears[1] : &ears[0];
    model_shape *own = NULL;
    if (!json_is_object(sound))
        return OK;
    const char *type = json_string_value(json_object_get(sound, "model_type"));
    bool fits = s->family == &gemma4v_shapes || s->family == &gemma4uv_shapes;
    if (!fits || !type || !config_is_type(f, type))
        return err_set(e, E_UNSUPPORTED, "%s: carat cannot convert the audio tower of type %.64s",
                       path, type ? type : "null");
    json_t *v = json_copy((json_t *)(uintptr_t)sound), *width;
    if (v && (width = json_object_get(text ? text : config, "hidden_size")))
        json_object_set(v, width_key, width);
    status st = v ? config_read_shape(f, v, path, &own, unknown, e) : err_memory(e, path, 1);
    if (!st && f == &ears[0])
        ((gemma4v_shape *)s)->ears = *(gemma4a_shape *)own;
    else if (!st)
        ((gemma4uv_shape *)s)->ears = *(gemma4ua_shape *)own;
    mem_free(own);
    json_decref(v);
    return st;
}

/* ---- Tensors ---- */

bool convert_is_pictured(const convert_item *it)
{
    const hf_change *c = &it->t.change;
    return c->side || c->pairs;
}

/* The shape of the source. */
static shape_tensor source_shape(const shape_tensor *t)
{
    const hf_change *c = &t->change;
    shape_tensor s = *t;
    if (c->frames) {
        s.ne[2] = c->frames;
        s.ne[3] = 3 * t->ne[3]; /* axes beyond four are read as one */
    } else if (c->side && t->n_dims == 4) {
        s.n_dims = 2;
        s.ne[0] = 3 * (uint64_t)c->side * c->side;
        s.ne[1] = t->ne[3];
        s.ne[2] = s.ne[3] = 1;
    } else if (c->pairs) {
        s.ne[1] = 2;
        s.ne[2] = t->ne[1];
    } else if (c->taps) { /* [channels, 1, taps] */
        s.n_dims = 3;
        s.ne[1] = 1;
        s.ne[2] = t->ne[1];
    }
    return s;
}

/* Row r of the file. Row, because a row of a kernel is one line of a square. */
void convert_pictured_row(const convert_item *it, uint64_t r, float *x)
{
    const hf_change *c = &it->t.change;
    const tensor *src = it->source[0];
    uint64_t n = it->t.ne[0], side = c->side, size = 0, row = r;
    if (c->frames || c->pairs) {
        row = c->pairs ? r % it->t.ne[1] * 2 + r / it->t.ne[1]
                       : (r / side * c->frames + c->frame) * side + r % side;
        num_row_bytes(src->type, n, &size);
        convert_floats(src->type, src->bytes + row * size, x, n);
        return;
    }
    num_row_bytes(src->type, 1, &size);
    for (uint64_t i = 0; i < n; i++) {
        uint64_t at = (r * n + i) % (3 * side * side), square = r * n + i - at;
        uint64_t colour = at / (side * side), pixel = at % (side * side);
        convert_floats(src->type, src->bytes + (square + 3 * pixel + colour) * size, &x[i], 1);
    }
}

status convert_check_pictured(const convert_item *it, uint64_t r, const float *x, err *e)
{
    tensor row = *it->source[0];
    row.ne[0] = it->t.ne[0];
    return tensor_check_row(&row, r, x, it->type, e);
}

static const char *const prefixes[] = {"model.", ""};

static const tensor *find_source(const convert_job *j, const char *name)
{
    char full[TENSOR_NAME_MAX + 1];
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++) {
        snprintf(full, sizeof full, "%s%s", prefixes[i], name);
        const tensor *t = tensor_find(&j->from->tensors, full);
        if (t) {
            j->used[t - j->from->tensors.at] = true;
            return t;
        }
    }
    return NULL;
}

/* Tensors of towers that none of the rows names: the file would lack them. */
static status check_used(const convert_job *j, err *e)
{
    static const char *const parts[] = {"vision_tower.", "vision_embedder.", "embed_vision.",
                                        "visual.",       "audio_tower.",     "embed_audio."};
    unplaced u = {0};
    for (uint64_t i = 0; i < j->from->tensors.n; i++) {
        const char *name = j->from->tensors.at[i].name;
        const char *own = strncmp(name, "model.", 6) ? name : name + 6;
        for (size_t k = 0; k < sizeof parts / sizeof *parts && !j->used[i]; k++)
            if (!strncmp(own, parts[k], strlen(parts[k])))
                unplaced_add(&u, name);
    }
    return unplaced_refuse(&u, j->from->part_path[0], "a tower of this config.json", e);
}

static status plan_tower(convert_job *j, const weight_mix *mix, err *e)
{
    const model_shape *s = j->s;
    const char *path = j->from->part_path[0];
    int32_t n = s->family->list(s, NULL, 0);
    shape_tensor *list = mem_calloc((size_t)n, sizeof *list);
    j->at = mem_calloc((size_t)n, sizeof *j->at);
    j->used = mem_calloc((size_t)j->from->tensors.n + 1, sizeof *j->used);
    status st = list && j->at && j->used ? OK : err_memory(e, "the list of tensors", (size_t)n);
    if (!st)
        s->family->list(s, list, n);
    for (int32_t i = 0; i < n && !st; i++) {
        const tensor *src = find_source(j, list[i].hf_name);
        const shape_tensor want = source_shape(&list[i]);
        j->at[j->n++] = (convert_item){.t = list[i],
                                       .type = weight_mix_type(mix, list, n, i),
                                       .source = {src},
                                       .n_sources = 1};
        st = src ? convert_check_source(&want, src, j->from->part_path[src->part], e)
                 : err_set(e, E_FORMAT, "%s: tensor %s is missing", path, list[i].hf_name);
    }
    mem_free(list);
    return st ? st : check_used(j, e);
}

/* A file that the loader refuses is not written. */
static status open_tower(const convert_job *j, const file_map *m, const char *path, err *e)
{
    gguf own = {0};
    model core = {0};
    status st = gguf_open_bytes(&own, m->bytes, m->n_bytes, path, e);
    if (!st)
        st = model_bind(&core, &own, e);
    model_free(&core);
    if (!st && ears_of(j->s)->family &&
        !(st = gguf_open_bytes(&own, m->bytes, m->n_bytes, path, e))) {
        st = model_bind_audio(&core, &own, e);
        model_free(&core);
    }
    return st;
}

status convert_tower(const convert_request *r, const json_t *config, uint64_t *n_bytes, err *e)
{
    safetensors from = {0};
    model_shape *s = NULL;
    convert_job j = {.from = &from, .check = open_tower};
    char path[4096];
    snprintf(path, sizeof path, "%s/config.json", r->dir);
    status st = read_tower(config, path, &s, r->unknown, e);
    if (!st)
        st = read_ears(config, path, s, r->unknown, e);
    j.s = s;
    if (!st && !(st = safetensors_open(&from, r->dir, e)) && !(st = plan_tower(&j, r->mix, e)))
        st = convert_write(r, &j, NULL, NULL, n_bytes, e);
    mem_free(j.at);
    mem_free(j.used);
    mem_free(s);
    safetensors_close(&from);
    return st;
}
