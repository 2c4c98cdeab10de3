/* draft_checkpoint.c - see draft_checkpoint.h. */
#include "tests/draft_checkpoint.h"
#include "tests/test.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/str.h"
#include "model/dflash_shapes.h"
#include "model/gemma4_mtp_shapes.h"

#include <sys/stat.h>

/* ---- config.json --------------------------------------------------------------------------- */

static json_t *layer_kinds(const bool *swa, int32_t n)
{
    json_t *list = json_array();
    for (int32_t i = 0; i < n; i++)
        json_array_append_new(list, json_string(swa[i] ? "sliding_attention" : "full_attention"));
    return list;
}

static json_t *dflash_config(const dflash_shape *s, const draft_checkpoint *m)
{
    json_t *ids = json_array(), *inner;
    for (int32_t i = 0; i < s->n_features; i++)
        json_array_append_new(ids, json_integer(s->feature[i]));
    json_t *c =
        json_pack("{s:[s], s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:f, s:f, s:o, s:s}",
                  "architectures",
                  s->laguna        ? "DFlashLagunaForCausalLM"
                  : s->markov_rank ? "Qwen3DSparkModel"
                                   : "DFlashDraftModel",
                  "model_type", s->laguna ? "laguna" : "qwen3", "hidden_size", s->n_embd,
                  "num_hidden_layers", s->n_layer, "num_attention_heads", s->n_head,
                  "num_key_value_heads", s->n_head_kv, "head_dim", s->head_dim, "intermediate_size",
                  s->n_ff, "vocab_size", s->n_vocab, "max_position_embeddings", s->n_ctx_train,
                  "sliding_window", s->window, "rms_norm_eps", 1e-6, "rope_theta", (double)s->theta,
                  "layer_types", layer_kinds(s->swa, s->n_layer), "hidden_act", "silu");
    inner = json_pack("{s:o, s:i}", "target_layer_ids", ids, "mask_token_id", s->mask_id);
    json_object_set_new(c, "block_size", json_integer(s->block_size));
    json_object_set_new(c, "num_target_layers", json_integer(s->n_target_layer));
    if (s->laguna) {
        json_object_set_new(inner, "causal", json_true());
        json_object_set_new(c, "gating", json_string("per-head"));
    }
    if (s->markov_rank)
        json_object_set_new(c, "markov_rank", json_integer(s->markov_rank));
    if (m->inner) {
        json_t *patch = json_loads(m->inner, 0, NULL);
        CHECK(patch);
        json_object_update(inner, patch);
        json_decref(patch);
    }
    json_object_set_new(c, "dflash_config", inner);
    return c;
}

static json_t *mtp_config(const gemma4_mtp_shape *s, const draft_checkpoint *m)
{
    json_t *rope =
        json_pack("{s:{s:s, s:f, s:f}, s:{s:s, s:f}}", "full_attention", "rope_type",
                  "proportional", "rope_theta", (double)s->theta, "partial_rotary_factor", 0.25,
                  "sliding_attention", "rope_type", "default", "rope_theta", (double)s->theta_swa);
    json_t *text = json_pack(
        "{s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:f, s:o, s:o, s:i}",
        "model_type", "gemma4_text", "hidden_size", s->n_embd, "intermediate_size", s->n_ff,
        "num_hidden_layers", s->n_layer, "vocab_size", s->n_vocab, "num_attention_heads", s->n_head,
        "num_key_value_heads", s->n_head_kv, "num_global_key_value_heads", s->n_head_kv_global,
        "head_dim", s->head_dim, "global_head_dim", s->head_dim_global, "sliding_window", s->window,
        "max_position_embeddings", s->n_ctx_train, "rms_norm_eps", 1e-6, "layer_types",
        layer_kinds(s->swa, s->n_layer), "rope_parameters", rope, "num_kv_shared_layers",
        s->n_layer);
    json_t *c = json_pack("{s:[s], s:s, s:i, s:b}", "architectures", "Gemma4AssistantForCausalLM",
                          "model_type", "gemma4_assistant", "backbone_hidden_size",
                          s->n_target_embd, "use_ordered_embeddings", s->n_centroids > 0);
    if (s->n_centroids) {
        json_object_set_new(c, "num_centroids", json_integer(s->n_centroids));
        json_object_set_new(c, "centroid_intermediate_top_k", json_integer(s->centroid_top_k));
    }
    if (m->inner) {
        json_t *patch = json_loads(m->inner, 0, NULL);
        CHECK(patch);
        json_object_update(text, patch);
        json_decref(patch);
    }
    json_object_set_new(c, "text_config", text);
    return c;
}

static void put_config(const char *dir, const model_shape *s, const draft_checkpoint *m)
{
    json_t *c = s->family == &dflash_shapes ? dflash_config((const dflash_shape *)s, m)
                                            : mtp_config((const gemma4_mtp_shape *)s, m);
    if (m->speculators) {
        static const char *const layer[] = {
            "hidden_size", "num_hidden_layers",       "head_dim",     "num_attention_heads",
            "rope_theta",  "num_key_value_heads",     "rms_norm_eps", "intermediate_size",
            "vocab_size",  "max_position_embeddings", "hidden_act",   "layer_types",
            "model_type",  "sliding_window"};
        json_t *t = json_object(), *inner = json_object_get(c, "dflash_config");
        for (size_t i = 0; i < sizeof layer / sizeof *layer; i++) {
            json_object_set(t, layer[i], json_object_get(c, layer[i]));
            json_object_del(c, layer[i]);
        }
        json_object_set_new(c, "transformer_layer_config", t);
        json_object_set(c, "aux_hidden_state_layer_ids",
                        json_object_get(inner, "target_layer_ids"));
        json_object_set(c, "mask_token_id", json_object_get(inner, "mask_token_id"));
        json_object_del(c, "dflash_config");
        json_object_set_new(c, "speculators_model_type", json_string("dflash"));
        json_object_set_new(c, "architectures", json_pack("[s]", "DFlashSpeculator"));
    }
    if (m->patch) {
        json_t *patch = json_loads(m->patch, 0, NULL);
        CHECK(patch);
        json_object_update(c, patch);
        json_decref(patch);
    }
    char *text = json_dumps(c, JSON_INDENT(1));
    test_write_in(dir, "config.json", text, strlen(text));
    mem_free_hook(text);
    json_decref(c);
}

/* ---- Tensors ------------------------------------------------------------------------------- */

float draft_value(const char *name, uint64_t i)
{
    uint64_t h = 7;
    for (; *name; name++)
        h = h * 31 + (unsigned char)*name;
    h = rng_mix(h + i);
    return num_bf16_to_f32((uint16_t)(0x3c00 | (h & 0x817f))); /* 2^-7 to 2^-4, both signs */
}

typedef struct checkpoint {
    str head, data;
    const draft_checkpoint *m;
} checkpoint;

static void put_number(checkpoint *c, float v)
{
    uint16_t h = num_f32_to_bf16(v);
    if (c->m->bf16)
        str_put(&c->data, (char *)&h, 2);
    else
        str_put(&c->data, (char *)&v, 4);
}

/* Ends a tensor that began at `from`. */
static void put_entry(checkpoint *c, const char *name, const char *type, const uint64_t *ne, int n,
                      size_t from)
{
    str_printf(&c->head, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[", c->head.n > 1 ? "," : "", name,
               type         ? type
               : c->m->bf16 ? "BF16"
                            : "F32");
    for (int d = n - 1; d >= 0; d--)
        str_printf(&c->head, "%llu%s", (unsigned long long)ne[d], d ? "," : "");
    str_printf(&c->head, "],\"data_offsets\":[%zu,%zu]}", from, c->data.n);
}

static void put_values(checkpoint *c, const char *gguf_name, const char *name, const uint64_t *ne,
                       int n, uint64_t first)
{
    uint64_t shape[3] = {ne[0], n > 1 ? ne[1] : 1, 1}, count;
    size_t from = c->data.n;
    if (c->m->skip && !strcmp(c->m->skip, name))
        return;
    if (c->m->wrong && !strcmp(c->m->wrong, name))
        shape[n - 1]++;
    count = shape[0] * shape[1];
    for (uint64_t k = 0; k < count; k++)
        put_number(c, draft_value(gguf_name, first + k));
    put_entry(c, name, NULL, shape, n, from);
}

static void put_ordering(checkpoint *c, const char *name, uint64_t n)
{
    size_t from = c->data.n;
    bool small = c->m->ids && !strcmp(c->m->ids, "i32");
    for (uint64_t i = 0; i < n; i++) {
        uint64_t id = c->m->wrong && !strcmp(c->m->wrong, name) ? 0 : n - 1 - i;
        str_put(&c->data, (char *)&id, small ? 4 : 8);
    }
    put_entry(c, name, small ? "I32" : "I64", &n, 1, from);
}

static void put_layer_name(char *out, size_t cap, const shape_tensor *t, const model_shape *s,
                           const draft_checkpoint *m)
{
    const char *dot = strstr(t->hf_name, "layers.");
    int off = m->shifted ? ((const dflash_shape *)s)->n_target_layer : 0;
    if (t->layer < 0 || !off)
        snprintf(out, cap, "%s", t->hf_name);
    else
        snprintf(out, cap, "layers.%d%s", (int)t->layer + off, strchr(dot + 7, '.'));
}

static void put_tensors(const char *dir, const model_shape *s, const draft_checkpoint *m)
{
    checkpoint c = {.m = m};
    str file = {0};
    int32_t n = s->family->list(s, NULL, 0);
    AUTO_MEM shape_tensor *list = mem_calloc((size_t)n, sizeof *list);
    s->family->list(s, list, n);
    str_puts(&c.head, "{");
    for (int32_t i = 0; i < n; i++) {
        const shape_tensor *t = &list[i];
        char name[128];
        put_layer_name(name, sizeof name, t, s, m);
        if (!strcmp(t->name, "enc.aux_norm.weight")) {
            for (uint64_t k = 0; k < t->ne[1]; k++) {
                snprintf(name, sizeof name, "aux_hidden_norms.%d.weight", (int)k);
                put_values(&c, t->name, name, t->ne, 1, k * t->ne[0]);
            }
        } else if (t->role == ROLE_IDS) {
            put_ordering(&c, name, t->ne[0]);
        } else if (m->fused && strstr(name, "q_proj")) {
            const dflash_shape *d = (const dflash_shape *)s;
            uint64_t rows[] = {(uint64_t)(d->n_head * d->head_dim),
                               (uint64_t)(d->n_head_kv * d->head_dim),
                               (uint64_t)(d->n_head_kv * d->head_dim)};
            uint64_t ne[] = {t->ne[0], rows[0] + rows[1] + rows[2]};
            size_t from = c.data.n;
            for (int k = 0; k < 3; k++)
                for (uint64_t j = 0; j < rows[k] * ne[0]; j++)
                    put_number(&c, draft_value(list[i + k].name, j));
            memcpy(strstr(name, "q_proj"), "qkv_proj.weight", 16);
            put_entry(&c, name, NULL, ne, 2, from);
        } else if (!(m->fused && (strstr(name, "k_proj") || strstr(name, "v_proj"))) && name[0]) {
            put_values(&c, t->name, name, t->ne, t->n_dims, 0);
        }
    }
    if (m->copies) {
        uint64_t ne[] = {(uint64_t)s->n_embd, (uint64_t)s->n_vocab};
        put_values(&c, "copy", "model.embed_tokens.weight", ne, 2, 0);
        put_values(&c, "copy", "lm_head.weight", ne, 2, 0);
    }
    if (m->add)
        put_values(&c, "more", m->add, (uint64_t[]){8, 2}, 2, 0);
    str_puts(&c.head, "}");
    while (c.head.n % 8)
        str_putc(&c.head, ' ');
    for (int k = 0; k < 8; k++)
        str_putc(&file, (char)((uint64_t)c.head.n >> 8 * k));
    str_put(&file, c.head.at, c.head.n);
    str_put(&file, str_text(&c.data), c.data.n);
    CHECK(!file.bad && !c.head.bad && !c.data.bad);
    test_write_in(dir, "model.safetensors", file.at, file.n);
    str_free(&file);
    str_free(&c.head);
    str_free(&c.data);
}

void draft_checkpoint_write(const char *dir, const draft_checkpoint *m, model_shape **s)
{
    err e = {0};
    mkdir(dir, 0755);
    CHECK_OK(shape_named(m->size, s, &e), e);
    put_config(dir, *s, m);
    put_tensors(dir, *s, m);
}
