/* convert_vl_test.c - checkpoints of Qwen3-VL as published, made here from a file of `synth`: the
 * experts of a layer are [expert][input][gate, then up] and [expert][input][output]. The library
 * saves them as [expert][gate, then up][input] and [expert][output][input]. Converted they are that
 * file again.
 */
#include "apps/commands.h"
#include "apps/convert_int.h"
#include "base/mem.h"
#include "tests/test.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define TEXT                                                                                       \
    "\"attention_bias\":false,\"attention_dropout\":0.0,\"bos_token_id\":151643,\"dtype\":"        \
    "\"bfloat16\",\"head_dim\":32,\"hidden_act\":\"silu\",\"hidden_size\":64,"                     \
    "\"initializer_range\":0.02,\"intermediate_size\":96,\"max_position_embeddings\":8192,"        \
    "\"num_attention_heads\":4,\"num_hidden_layers\":4,\"num_key_value_heads\":2,"                 \
    "\"rms_norm_eps\":1e-06,\"rope_scaling\":{\"mrope_interleaved\":true,\"mrope_section\":"       \
    "[6,5,5],\"rope_type\":\"default\"},\"rope_theta\":1000000,\"use_cache\":true,"                \
    "\"vocab_size\":512"
#define TOWER "},\"vision_config\":{\"deepstack_visual_indexes\":[0,2]}}"

static const struct {
    const char *size, *config;
} samples[] = {
    {"tiny-qwen3-vl", "{\"model_type\":\"qwen3_vl\",\"tie_word_embeddings\":true,\"text_config\":{"
                      "\"model_type\":\"qwen3_vl_text\"," TEXT TOWER},
    {"tiny-qwen3-vl-moe",
     "{\"model_type\":\"qwen3_vl_moe\",\"tie_word_embeddings\":false,\"text_config\":{"
     "\"model_type\":\"qwen3_vl_moe_text\",\"decoder_sparse_step\":1,\"mlp_only_layers\":[],"
     "\"moe_intermediate_size\":32,\"norm_topk_prob\":true,\"num_experts\":8,"
     "\"num_experts_per_tok\":2," TEXT TOWER},
};

typedef struct source {
    str head, data;
} source;

/* ne1, ne2: as safetensors have them, outermost first; 0: no such axis. */
static void put(source *s, const char *name, uint64_t ne2, uint64_t ne1, uint64_t ne0,
                const float *x)
{
    size_t n = (size_t)(ne0 * (ne1 ? ne1 : 1) * (ne2 ? ne2 : 1)) * sizeof *x, from = s->data.n;
    str_put(&s->data, (const char *)x, n);
    str_printf(&s->head, "%s\"%s\":{\"dtype\":\"F32\",\"shape\":[", s->head.n > 1 ? "," : "", name);
    if (ne2)
        str_printf(&s->head, "%d,", (int)ne2);
    if (ne1)
        str_printf(&s->head, "%d,", (int)ne1);
    str_printf(&s->head, "%d],\"data_offsets\":[%zu,%zu]}", (int)ne0, from, s->data.n);
}

/* Experts of the tensors a and, behind its outputs, b: inputs before outputs. */
static void put_experts(source *s, const char *name, const tensor *a, const tensor *b, bool saved)
{
    uint64_t n_in = a->ne[0], out = a->ne[1], all = b ? 2 * out : out, n = a->ne[2];
    AUTO_MEM float *x = mem_calloc((size_t)(n * n_in * all), sizeof *x);
    for (uint64_t k = 0; k < n; k++)
        for (uint64_t i = 0; i < n_in; i++)
            for (uint64_t o = 0; o < all; o++) {
                const float *from = (const float *)(o < out ? a : b)->bytes;
                x[saved ? (k * all + o) * n_in + i : (k * n_in + i) * all + o] =
                    from[(k * out + o % out) * n_in + i];
            }
    put(s, name, n, saved ? all : n_in, saved ? n_in : all, x);
}

static const char *make_dir(int i, const gguf *g, bool saved)
{
    const char *dir = test_temp(samples[i].size);
    AUTO_MEM model_shape *s = NULL;
    err e = {0};
    source to = {0};
    AUTO(str_free) str all = {0};
    mkdir(dir, 0700);
    CHECK_OK(shape_named(samples[i].size, &s, &e), e);
    int32_t n = s->family->list(s, NULL, 0);
    AUTO_MEM shape_tensor *list = mem_calloc((size_t)n, sizeof *list);
    s->family->list(s, list, n);
    str_puts(&to.head, "{");
    for (int32_t k = 0; k < n; k++) {
        const tensor *t = tensor_find(&g->tensors, list[k].name), *up = NULL;
        char name[160], other[80];
        CHECK(t && !strchr(list[k].hf_name, '*'));
        snprintf(name, sizeof name, "model.language_model.%s", list[k].hf_name);
        if (!strcmp(list[k].name, "output.weight"))
            snprintf(name, sizeof name, "lm_head.weight");
        if (strstr(list[k].name, "ffn_up_exps"))
            continue; /* with the gate */
        if (strstr(list[k].name, "ffn_gate_exps")) {
            snprintf(other, sizeof other, "blk.%d.ffn_up_exps.weight", (int)list[k].layer);
            CHECK(up = tensor_find(&g->tensors, other));
        }
        if (list[k].n_dims == 3)
            put_experts(&to, name, t, up, saved);
        else
            put(&to, name, 0, list[k].n_dims > 1 ? t->ne[1] : 0, t->ne[0], (const float *)t->bytes);
    }
    str_puts(&to.head, "}");
    while (to.head.n % 8)
        str_putc(&to.head, ' ');
    uint64_t n_head = to.head.n;
    str_put(&all, (const char *)&n_head, 8);
    str_put(&all, to.head.at, to.head.n);
    str_put(&all, to.data.at, to.data.n);
    CHECK(!all.bad);
    test_write_in(dir, "model.safetensors", all.at, all.n);
    test_write_in(dir, "config.json", samples[i].config, strlen(samples[i].config));
    str_free(&to.head);
    str_free(&to.data);
    return dir;
}

TEST(convert_qwen3_vl_is_the_file_that_it_was)
{
    for (int way = 0; way < 3; way++) {
        const int i = way ? 1 : 0;
        const char *made = test_temp("made.gguf"), *out = test_temp("out.gguf");
        const char *make[] = {samples[i].size, made, "--type", "f32"};
        gguf want = {0}, have = {0};
        gguf_string arch[2];
        int64_t n_deep = 0, pairs = 0;
        uint64_t n_bytes = 0;
        str unknown = {0};
        err e = {0};
        char key[64];
        CHECK_EQ(command_synth.run(&command_synth, 4, (char **)make), 0);
        CHECK_OK(gguf_open(&want, made, false, NULL, NULL, &e), e);
        const convert_request r = {.dir = make_dir(i, &want, way == 2),
                                   .out = out,
                                   .mix = weight_mix_named("f32"),
                                   .n_threads = 1,
                                   .unknown = &unknown};
        CHECK_OK(convert_model(&r, &n_bytes, &e), e);
        CHECK_MSG(!unknown.n, "%s", unknown.at);
        CHECK_OK(gguf_open(&have, out, false, NULL, NULL, &e), e);
        CHECK_EQ(have.tensors.n, want.tensors.n);
        for (uint64_t k = 0; k < want.tensors.n; k++) {
            const tensor *w = &want.tensors.at[k], *h = tensor_find(&have.tensors, w->name);
            CHECK_MSG(h && h->n_bytes == w->n_bytes && !memcmp(h->bytes, w->bytes, w->n_bytes),
                      "%s: other values", w->name);
        }
        CHECK(gguf_get_string(&want, "general.architecture", &arch[0]) &&
              gguf_get_string(&have, "general.architecture", &arch[1]) && arch[0].n == arch[1].n &&
              !memcmp(arch[0].at, arch[1].at, arch[0].n));
        snprintf(key, sizeof key, "%.*s.n_deepstack_layers", (int)arch[0].n, arch[0].at);
        CHECK(gguf_get_i64(&have, key, &n_deep) && n_deep == 2);
        snprintf(key, sizeof key, "%.*s.rope.dimension_sections", (int)arch[0].n, arch[0].at);
        const gguf_value *sections = gguf_find(&have, key);
        CHECK(sections && sections->count == 4 && gguf_item_i64(sections, 0, &pairs) && pairs == 6);
        gguf_close(&want);
        gguf_close(&have);
    }
}
