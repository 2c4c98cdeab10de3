/* convert_tower_test.c - vision towers of checkpoints, in the configurations and with the names
 * that transformers writes: every element is where a file of llama.cpp has it.
 */
#include "apps/convert_int.h"
#include "format/gguf.h"
#include "model/shapes.h"
#include "tests/test.h"
#include "base/mem.h"
#include "base/str.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LIST_MAX = 320 };

typedef struct sample {
    const char *size, *config, *prefix;
} sample;

#define TEXT_PART "\"text_config\":{\"hidden_size\":96},"
#define GEMMA(more)                                                                                \
    "{\"model_type\":\"gemma4\"," TEXT_PART "\"vision_config\":{\"model_type\":\"gemma4_vision\"," \
    "\"attention_bias\":false,\"hidden_activation\":\"gelu_pytorch_tanh\","                        \
    "\"max_position_embeddings\":131072,\"patch_size\":4,\"pooling_kernel_size\":3,"               \
    "\"position_embedding_size\":128,\"rms_norm_eps\":1e-06,\"rope_parameters\":{\"rope_theta\":"  \
    "100.0,\"rope_type\":\"axial\"}," more "}}"

/* As the library writes it. */
#define AUDIO_PART                                                                                 \
    "\"audio_config\":{\"model_type\":\"gemma4_audio\",\"hidden_size\":32,"                        \
    "\"num_hidden_layers\":2,\"num_attention_heads\":2,\"hidden_act\":\"silu\","                   \
    "\"subsampling_conv_channels\":[128,2],\"conv_kernel_size\":5,\"residual_weight\":0.5,"        \
    "\"attention_chunk_size\":12,\"attention_context_left\":13,\"attention_context_right\":0,"     \
    "\"attention_logit_cap\":50.0,\"attention_invalid_logits_value\":-1e9,"                        \
    "\"use_clipped_linears\":true,\"rms_norm_eps\":1e-06,\"gradient_clipping\":1e10,"              \
    "\"output_proj_dims\":48},"
#define HEARS(more)                                                                                \
    "{\"model_type\":\"gemma4\"," TEXT_PART AUDIO_PART                                             \
    "\"vision_config\":{\"model_type\":\"gemma4_vision\",\"patch_size\":4,"                        \
    "\"pooling_kernel_size\":3,\"position_embedding_size\":128,\"rms_norm_eps\":1e-06," more "}}"

static const sample samples[] = {
    {"tiny-mmproj-clamped",
     GEMMA("\"hidden_size\":32,\"intermediate_size\":48,\"num_hidden_layers\":3,"
           "\"num_attention_heads\":2,\"num_key_value_heads\":2,\"head_dim\":16,"
           "\"standardize\":false,\"use_clipped_linears\":true"),
     "model."},
    {"tiny-mmproj-standard",
     GEMMA("\"hidden_size\":48,\"intermediate_size\":80,\"num_hidden_layers\":2,"
           "\"num_attention_heads\":4,\"num_key_value_heads\":4,\"head_dim\":12,"
           "\"standardize\":true,\"use_clipped_linears\":false"),
     ""},
    {"tiny-mmproj-flat",
     "{\"model_type\":\"gemma4_unified\"," TEXT_PART
     "\"vision_config\":{\"model_type\":\"gemma4_unified_vision\",\"mm_embed_dim\":96,"
     "\"mm_posemb_size\":40,\"output_proj_dims\":96,\"model_patch_size\":12,\"rms_norm_eps\":"
     "1e-06}}",
     "model."},
    {"tiny-mmproj-hears",
     HEARS("\"hidden_size\":32,\"intermediate_size\":48,\"num_hidden_layers\":1,"
           "\"num_attention_heads\":2,\"num_key_value_heads\":2,\"head_dim\":16,"
           "\"standardize\":false,\"use_clipped_linears\":true"),
     "model."},
    {"tiny-mmproj-flat-hears",
     "{\"model_type\":\"gemma4_unified\"," TEXT_PART
     "\"vision_config\":{\"model_type\":\"gemma4_unified_vision\",\"mm_embed_dim\":96,"
     "\"mm_posemb_size\":40,\"output_proj_dims\":96,\"model_patch_size\":12,\"rms_norm_eps\":"
     "1e-06},\"audio_config\":{\"model_type\":\"gemma4_unified_audio\",\"audio_embed_dim\":640,"
     "\"rms_norm_eps\":1e-06,\"initializer_range\":0.02}}",
     "model."},
    {"tiny-mmproj-qwen",
     "{\"model_type\":\"qwen3_5\",\"text_config\":{\"hidden_size\":64},\"vision_config\":{"
     "\"depth\":2,\"hidden_act\":\"gelu_pytorch_tanh\",\"hidden_size\":48,\"in_channels\":3,"
     "\"intermediate_size\":80,\"model_type\":\"qwen3_5\",\"num_heads\":4,"
     "\"num_position_embeddings\":36,\"out_hidden_size\":64,\"patch_size\":4,"
     "\"spatial_merge_size\":2,\"temporal_patch_size\":2,\"deepstack_visual_indexes\":[]}}",
     "model."},
    {"tiny-mmproj-qwen3-vl",
     "{\"model_type\":\"qwen3_vl\",\"text_config\":{\"hidden_size\":64},\"vision_config\":{"
     "\"depth\":4,\"hidden_act\":\"gelu_pytorch_tanh\",\"hidden_size\":48,\"in_channels\":3,"
     "\"initializer_range\":0.02,\"intermediate_size\":80,\"model_type\":\"qwen3_vl\","
     "\"num_heads\":4,\"num_position_embeddings\":36,\"out_hidden_size\":64,\"patch_size\":4,"
     "\"spatial_merge_size\":2,\"temporal_patch_size\":2,\"deepstack_visual_indexes\":[0,2]}}",
     "model."},
};

/* An entry of the checkpoint's tensor: exact in bf16. Bounds are around 0. */
static float value_of(const char *name, uint64_t i)
{
    uint32_t h = 2166136261u;
    for (const char *c = name; *c; c++)
        h = (h ^ (unsigned char)*c) * 16777619u;
    float v = (float)((h + (uint32_t)i * 7919u) % 251u) / 64;
    return strstr(name, "_min") ? -v - 1 : strstr(name, "_max") ? v + 1 : v - 2;
}

/* Where element [d][c][y][x] of the squares, or [axis][i][k] of the tables, is in the checkpoint.
 */
static uint64_t place_of(const char *size, const shape_tensor *t, uint64_t f)
{
    bool flat = !strncmp(size, "tiny-mmproj-flat", 16),
         qwen = !strncmp(size, "tiny-mmproj-qwen", 16);
    uint64_t side = flat ? 12 : 4, x = f % side, y = f / side % side, c = f / (side * side) % 3,
             d = f / (side * side) / 3;
    if (qwen && t->n_dims == 4)
        return (((d * 3 + c) * 2 + text_ends_with(t->name, ".1")) * side + y) * side + x;
    if (*t->name == 'a')
        return f;
    if (t->n_dims == 4 || (flat && (!strcmp(t->name, "v.patch_embd.weight") ||
                                    !strncmp(t->name, "v.patch_norm.1.", 15))))
        return ((d * side + y) * side + x) * 3 + c;
    if (flat && !strcmp(t->name, "v.position_embd.weight"))
        return (f / 96 % 40 * 2 + f / 96 / 40) * 96 + f % 96;
    return f;
}

/* The shape of the checkpoint's tensor, slowest axis first. */
static void put_shape(const char *size, const shape_tensor *t, str *o)
{
    if (!strncmp(size, "tiny-mmproj-qwen", 16) && t->n_dims == 4)
        str_printf(o, "[%d,3,2,4,4]", (int)t->ne[3]);
    else if (text_ends_with(t->name, "conv_dw.weight"))
        str_printf(o, "[%d,1,%d]", (int)t->ne[1], (int)t->ne[0]);
    else if (t->n_dims == 4 && *t->name == 'v')
        str_printf(o, "[%d,48]", (int)t->ne[3]);
    else if (!strcmp(t->name, "v.position_embd.weight") && !strncmp(size, "tiny-mmproj-flat", 16))
        str_puts(o, "[40,2,96]");
    else if (t->n_dims == 1 && t->ne[0] == 1)
        str_puts(o, "[]");
    else
        for (int i = t->n_dims - 1; i >= 0; i--)
            str_printf(o, "%s%d%s", i == t->n_dims - 1 ? "[" : ",", (int)t->ne[i], i ? "" : "]");
}

static uint64_t count_of(const shape_tensor *t)
{
    return t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3];
}

static const char *make_dir(const sample *s, const char *extra)
{
    static char dir[300];
    shape_tensor list[LIST_MAX];
    AUTO_MEM model_shape *shape = NULL;
    AUTO(str_free) str head = {0}, data = {0}, all = {0};
    err e = {0};
    CHECK_OK(shape_named(s->size, &shape, &e), e);
    int32_t n = shape->family->list(shape, list, LIST_MAX);
    CHECK(n <= LIST_MAX);
    snprintf(dir, sizeof dir, "%s", test_temp(s->size));
    mkdir(dir, 0700);
    str_printf(&head, "{%s", extra);
    for (int32_t i = 0; i < n; i++) {
        const shape_tensor *t = &list[i];
        bool second = text_ends_with(t->name, "patch_embd.weight.1");
        uint64_t count = count_of(t) * (strstr(s->size, "-qwen") && t->n_dims == 4 ? 2 : 1);
        if (second)
            continue; /* the same tensor holds both frames */
        str_printf(&head, "%s\"%s%s\":{\"dtype\":\"F32\",\"shape\":", head.n > 1 ? "," : "",
                   s->prefix, t->hf_name);
        put_shape(s->size, t, &head);
        str_printf(&head, ",\"data_offsets\":[%zu,%zu]}", data.n, data.n + (size_t)count * 4);
        for (uint64_t k = 0; k < count; k++) {
            float v = value_of(t->hf_name, k);
            str_put(&data, (const char *)&v, 4);
        }
    }
    str_puts(&head, "}");
    while (head.n % 8)
        str_putc(&head, ' ');
    uint64_t n_head = head.n;
    str_put(&all, (const char *)&n_head, 8);
    str_put(&all, head.at, head.n);
    str_put(&all, data.at, data.n);
    CHECK(!all.bad);
    test_write_in(dir, "model.safetensors", all.at, all.n);
    test_write_in(dir, "config.json", s->config, strlen(s->config));
    return dir;
}

static status convert(const char *dir, const char *out, const char *config, str *unknown, err *e)
{
    json_t *root = NULL;
    uint64_t n_bytes = 0;
    status st = json_parse(&root, config, strlen(config), "config.json", e);
    convert_request r = {.dir = dir,
                         .out = out,
                         .mix = weight_mix_named("bf16"),
                         .n_threads = 1,
                         .unknown = unknown};
    if (!st)
        st = convert_tower(&r, root, &n_bytes, e);
    json_decref(root);
    return st;
}

static void compare(const sample *s, const char *path)
{
    gguf g = {0};
    shape_tensor list[LIST_MAX];
    err e = {0};
    gguf_string type;
    AUTO_MEM model_shape *shape = NULL;
    CHECK_OK(shape_named(s->size, &shape, &e), e);
    int32_t n = shape->family->list(shape, list, LIST_MAX);
    CHECK_OK(gguf_open(&g, path, false, NULL, NULL, &e), e);
    CHECK(gguf_get_string(&g, "general.type", &type) && type.n == 6 &&
          !memcmp(type.at, "mmproj", 6));
    CHECK_EQ(g.tensors.n, n);
    for (int32_t i = 0; i < n; i++) {
        const shape_tensor *want = &list[i];
        const tensor *t = tensor_find(&g.tensors, want->name);
        CHECK_MSG(t && !memcmp(t->ne, want->ne, sizeof t->ne), "%s", want->name);
        uint64_t count = count_of(want);
        AUTO_MEM float *x = mem_alloc(count * sizeof *x);
        convert_floats(t->type, t->bytes, x, count);
        for (uint64_t k = 0; k < count; k++) {
            float v = value_of(want->hf_name, place_of(s->size, want, k));
            if (text_ends_with(want->name, "per_dim_scale.weight"))
                v = (float)log1p(exp((double)v));
            CHECK_MSG(fabs((double)(x[k] - v)) <= (want->change.softplus ? 1e-6 : 0),
                      "%s: %s[%d] is %g, not %g", s->size, want->name, (int)k, (double)x[k],
                      (double)v);
        }
    }
    gguf_close(&g);
}

TEST(convert_towers_puts_every_element_in_its_place)
{
    for (size_t i = 0; i < sizeof samples / sizeof *samples; i++) {
        char out[300];
        str unknown = {0};
        err e = {0};
        const char *dir = make_dir(&samples[i], "");
        snprintf(out, sizeof out, "%s/mm.gguf", dir);
        CHECK_OK(convert(dir, out, samples[i].config, &unknown, &e), e);
        CHECK_MSG(!unknown.n, "%s: %s", samples[i].size, unknown.at);
        compare(&samples[i], out);
    }
}

static void refuses(const char *dir, const char *config, const char *from, const char *to,
                    const char *sentence)
{
    char changed[2048], out[300];
    err e = {0};
    const char *at = strstr(config, from);
    CHECK_MSG(at, "%s", from);
    snprintf(changed, sizeof changed, "%.*s%s%s", (int)(at - config), config, to,
             at + strlen(from));
    snprintf(out, sizeof out, "%s/none.gguf", dir);
    CHECK_MSG(convert(dir, out, changed, NULL, &e), "%s was converted", to);
    CHECK_MSG(strstr(e.text, sentence), "\"%s\" does not say \"%s\"", e.text, sentence);
    CHECK(access(out, F_OK));
}

TEST(convert_towers_refuses_other_towers)
{
    const char *gemma = samples[0].config, *flat = samples[2].config, *hears = samples[3].config,
               *qwen = samples[5].config;
    const char *dir = make_dir(&samples[0], "");
    refuses(dir, gemma, "\"vision_config\"", "\"other\"", "no vision_config");
    refuses(dir, gemma, "\"gemma4_vision\"", "\"siglip\"", "of type siglip");
    refuses(dir, gemma, "100.0", "50.0", "rope_theta");
    refuses(dir, gemma, "\"num_key_value_heads\":2", "\"num_key_value_heads\":1",
            "num_key_value_heads");
    refuses(dir, gemma, "\"head_dim\":16", "\"head_dim\":8", "head_dim");
    refuses(dir, gemma, "gelu_pytorch_tanh", "relu", "hidden_activation");
    refuses(dir, gemma, "\"hidden_size\":96", "\"hidden_size\":95",
            "embed_vision.embedding_projection.weight");
    refuses(dir, gemma, "\"num_hidden_layers\":3", "\"num_hidden_layers\":4", "is missing");
    refuses(dir, gemma, "\"num_hidden_layers\":3", "\"num_hidden_layers\":2", "a tower of this");
    refuses(dir, gemma, "\"use_clipped_linears\":true", "\"use_clipped_linears\":false",
            "a tower of this");
    dir = make_dir(&samples[3], "");
    refuses(dir, hears, "\"gemma4_audio\"", "\"whisper\"", "audio tower of type whisper");
    refuses(dir, hears, "\"attention_context_left\":13", "\"attention_context_left\":14",
            "attention_context_left");
    refuses(dir, hears, "\"residual_weight\":0.5", "\"residual_weight\":1", "residual_weight");
    refuses(dir, hears, "[128,2]", "[128]", "subsampling_conv_channels");
    refuses(dir, hears, "\"audio_config\"", "\"other\"", "a tower of this");
    refuses(dir, hears, "\"conv_kernel_size\":5", "\"conv_kernel_size\":6", "conv1d");
    dir = make_dir(&samples[2], "");
    refuses(dir, flat, "\"model_patch_size\":12", "\"model_patch_size\":13", "patch_size");
    refuses(dir, flat, "\"model_patch_size\":12",
            "\"patch_size\":2147483647,\"pooling_kernel_size\":3,\"model_patch_size\":12",
            "model_patch_size");
    dir = make_dir(&samples[5], "");
    refuses(dir, qwen, "\"deepstack_visual_indexes\":[]", "\"deepstack_visual_indexes\":[1]",
            "visual.deepstack_merger_list.0.norm.weight is missing");
    refuses(dir, qwen, "\"deepstack_visual_indexes\":[]", "\"deepstack_visual_indexes\":[1,0]",
            "list of layers of the tower, ascending");
    refuses(dir, qwen, "\"deepstack_visual_indexes\":[]", "\"deepstack_visual_indexes\":[2]",
            "list of layers of the tower, ascending");
    refuses(dir, qwen, "\"temporal_patch_size\":2", "\"temporal_patch_size\":3",
            "temporal_patch_size");
    refuses(dir, qwen, "\"patch_size\":4", "\"patch_size\":2147483647", "patch_size");
    refuses(dir, qwen, "{\"hidden_size\":64}", "{\"hidden_size\":96}", "out_hidden_size");
}
