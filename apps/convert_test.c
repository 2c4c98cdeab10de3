/* convert_test.c - directories as transformers writes them, made here, converted and compared. */
#include "tests/test.h"
#include "model/gemma4_shapes.h"
#include "apps/commands.h"
#include "apps/convert_int.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/str.h"
#include "carat.h"
#include "model/gemma4.h"

#include <dirent.h>
#include <math.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

/* What a made directory looks like. */
typedef struct {
    const char *prefix;     /* of tensor names */
    num_type type;          /* F32, BF16 or F16 */
    int shards;             /* 1: one file */
    int32_t n_layer;        /* stop after so many, if not 0 */
    bool nested;            /* config inside text_config, with global_head_dim */
    bool shared_keys;       /* keys of layers that read another's, too */
    bool pairs;             /* merges as pairs */
    const char *skip;       /* a tensor to leave out */
    const char *wrong;      /* a tensor to give one row too many */
    const char *nan;        /* a tensor with a NaN */
    double factor;          /* of the proportional rotation; 0: says none */
    bool nul_piece;         /* a piece U+0000, and a merge with it */
    const char *extra;      /* a tensor more */
    bool twins;             /* pieces and a merge that are listed twice */
    const char *config_add; /* fields that come first, so they win nothing but can duplicate */
    const char *instead;    /* the whole config.json */
} made;

static void put_file(const char *dir, const char *name, const str *s)
{
    CHECK(!s->bad);
    test_write_in(dir, name, str_text(s), s->n);
}

static void put_config(const char *dir, const gemma4_shape *s, const made *m)
{
    str c = {0};
    if (m->instead) {
        str_puts(&c, m->instead);
        put_file(dir, "config.json", &c);
        str_free(&c);
        return;
    }
    str_puts(&c,
             m->nested ? "{\"model_type\":\"gemma4\",\"vision_config\":{},\"text_config\":{" : "{");
    str_printf(&c,
               "%s\"model_type\":\"gemma4_text\",\"num_hidden_layers\":%d,\"hidden_size\":%d,"
               "\"vocab_size\":%d,\"num_attention_heads\":%d,\"num_key_value_heads\":%d,"
               "\"head_dim\":%d,\"attention_k_eq_v\":%s,\"intermediate_size\":%d,"
               "\"use_double_wide_mlp\":%s,\"hidden_size_per_layer_input\":%d,"
               "\"num_kv_shared_layers\":%d,\"sliding_window\":%d,"
               "\"max_position_embeddings\":%d,\"rms_norm_eps\":1e-06,"
               "\"final_logit_softcapping\":%g,\"hidden_activation\":\"gelu_pytorch_tanh\",",
               m->config_add ? m->config_add : "", s->n_layer, s->n_embd, s->n_vocab, s->n_head,
               s->n_head_kv, s->head_dim, s->k_eq_v ? "true" : "false", s->n_ff,
               s->double_wide ? "true" : "false", s->n_ple, s->n_kv_shared, s->window,
               s->n_ctx_train, (double)s->softcap);
    if (s->n_expert)
        str_printf(&c,
                   "\"enable_moe_block\":true,\"num_experts\":%d,\"top_k_experts\":%d,"
                   "\"moe_intermediate_size\":%d,",
                   s->n_expert, s->n_used, s->n_ff_exp);
    if (m->nested) {
        str_printf(&c, "\"global_head_dim\":%d,\"num_global_key_value_heads\":%d,",
                   s->head_dim_global, s->n_head_kv_global);
    } else {
        str_puts(&c, "\"per_layer_config\":{");
        for (int32_t il = 0, n = 0; il < s->n_layer; il++)
            if (!s->swa[il])
                str_printf(&c, "%s\"%d\":{\"head_dim\":%d,\"num_key_value_heads\":%d}",
                           n++ ? "," : "", il, s->head_dim_global, s->n_head_kv_global);
        str_puts(&c, "},");
    }
    str_puts(&c, "\"layer_types\":[");
    for (int32_t il = 0; il < s->n_layer; il++)
        str_printf(&c, "%s\"%s_attention\"", il ? "," : "", s->swa[il] ? "sliding" : "full");
    str_puts(&c, "],\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"proportional\","
                 "\"rope_theta\":1000000.0,\"partial_rotary_factor\":0.25");
    if (m->factor > 0)
        str_printf(&c, ",\"factor\":%g", m->factor);
    str_puts(&c, "},\"sliding_attention\":{\"rope_type\":\"default\",\"rope_theta\":10000.0}}");
    str_puts(&c, m->nested ? "}}" : "}");
    put_file(dir, "config.json", &c);
    str_free(&c);
}

/* The value of element i of a tensor; exact in bf16. */
static float value_of(const char *name, uint64_t i)
{
    uint64_t h = 7;
    for (; *name; name++)
        h = h * 31 + (unsigned char)*name;
    h = rng_mix(h + i);
    return num_bf16_to_f32((uint16_t)(0x3c00 | (h & 0x817f))); /* 2^-7 to 2^-4, both signs */
}

static void put_weights(const char *dir, const gemma4_shape *s, const made *m)
{
    int32_t n = table_list(&s->common, NULL, 0);
    AUTO_MEM shape_tensor *list = mem_calloc((size_t)n, sizeof *list);
    AUTO(str_free) str index = {0};
    table_list(&s->common, list, n);
    str_puts(&index, "{\"metadata\":{},\"weight_map\":{");
    for (int shard = 0; shard < m->shards; shard++) {
        AUTO(str_free) str head = {0}, data = {0}, file = {0};
        char name[64];
        if (m->shards > 1)
            snprintf(name, sizeof name, "model-%05d-of-%05d.safetensors", shard + 1, m->shards);
        else
            snprintf(name, sizeof name, "model.safetensors");
        str_puts(&head, "{\"__metadata__\":{\"format\":\"pt\"}");
        if (m->extra && !shard) {
            str_put(&data, "\0\0\0\0", 4);
            str_printf(&head, ",\"%s\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}",
                       m->extra);
        }
        for (int32_t i = 0; i < n; i++) {
            const shape_tensor *t = &list[i];
            if (i % m->shards != shard || !t->hf_name[0] || (t->unused_kv && !m->shared_keys) ||
                (m->skip && !strcmp(t->hf_name, m->skip)))
                continue;
            bool nan = m->nan && !strcmp(t->hf_name, m->nan);
            uint64_t rows = t->ne[t->n_dims - 1] + (m->wrong && !strcmp(t->hf_name, m->wrong));
            uint64_t count = rows * (t->n_dims > 1 ? t->ne[0] : 1) * (t->n_dims > 2 ? t->ne[1] : 1);
            size_t from = data.n;
            for (uint64_t k = 0; k < count; k++) {
                float v = nan && k == count / 2 ? NAN : value_of(t->name, k);
                uint8_t b[4];
                num_format_of(m->type)->encode(&v, b, 1);
                str_put(&data, (char *)b, m->type == NUM_F32 ? 4 : 2);
            }
            str_printf(&head, ",\"%s%s\":{\"dtype\":\"%s\",\"shape\":[", m->prefix, t->hf_name,
                       m->type == NUM_F32   ? "F32"
                       : m->type == NUM_F16 ? "F16"
                                            : "BF16");
            for (int d = t->n_dims - 1; d >= 0; d--)
                str_printf(&head, "%llu%s",
                           (unsigned long long)(d == t->n_dims - 1 ? rows : t->ne[d]),
                           d ? "," : "");
            str_printf(&head, "],\"data_offsets\":[%zu,%zu]}", from, data.n);
            str_printf(&index, "%s\"%s%s\":\"%s\"", index.at[index.n - 1] == '{' ? "" : ",",
                       m->prefix, t->hf_name, name);
        }
        str_puts(&head, "} ");
        for (int k = 0; k < 8; k++)
            str_putc(&file, (char)((uint64_t)head.n >> 8 * k));
        str_put(&file, head.at, head.n);
        str_put(&file, str_text(&data), data.n);
        put_file(dir, name, &file);
    }
    str_puts(&index, "}}");
    if (m->shards > 1)
        put_file(dir, "model.safetensors.index.json", &index);
}

static const char *const special[] = {"<pad>",      "<eos>",           "<bos>",   "<unk>",
                                      "<mask>",     "<|turn>",         "<turn|>", "<|channel>",
                                      "<channel|>", "<|tool_response>"};
enum { N_SPECIAL = 10, FIRST_BYTE = 16, FIRST_LETTER = FIRST_BYTE + 256, N_SUPPRESSED = 70 };

/* 10 markers, a gap, 256 bytes, some letters and one merge; ends before the shape's vocabulary. */
static void put_tokenizer(const char *dir, const made *m)
{
    AUTO(str_free) str t = {0};
    str_puts(&t, "{\"version\":\"1.0\",\"added_tokens\":[");
    for (int i = 0; i < N_SPECIAL; i++)
        str_printf(&t, "%s{\"id\":%d,\"content\":\"%s\",\"special\":true}", i ? "," : "", i,
                   special[i]);
    str_puts(&t, ",{\"id\":12,\"content\":\"<custom>\",\"special\":false}");
    if (m->twins)
        str_printf(&t, ",{\"id\":%d,\"content\":\"<eos>\",\"special\":true}", FIRST_LETTER + 9);
    str_puts(&t, "],\"model\":{\"type\":\"BPE\",\"unk_token\":\"<unk>\",\"vocab\":{");
    for (int i = 0; i < 256; i++)
        str_printf(&t, "%s\"<0x%02X>\":%d", i ? "," : "", i, FIRST_BYTE + i);
    if (m->twins) /* of a key that JSON has twice the last counts, as in the reference */
        str_printf(&t, ",\"a\":%d", FIRST_LETTER + 7);
    if (m->nul_piece)
        str_printf(&t, ",\"\\u0000\":%d,\"a\\u0000\":%d", FIRST_LETTER + 5, FIRST_LETTER + 6);
    str_printf(&t, ",\"a\":%d,\"b\":%d,\"ab\":%d,\"\\u2581\":%d,\"\\n\":%d},\"merges\":[",
               FIRST_LETTER, FIRST_LETTER + 1, FIRST_LETTER + 2, FIRST_LETTER + 3,
               FIRST_LETTER + 4);
    str_puts(&t, m->pairs ? "[\"a\",\"b\"]" : "\"a b\"");
    if (m->twins)
        str_puts(&t, m->pairs ? ",[\"a\",\"b\"]" : ",\"a b\"");
    if (m->nul_piece)
        str_puts(&t, m->pairs ? ",[\"a\",\"\\u0000\"]" : ",\"a \\u0000\"");
    str_puts(&t, "]}}");
    put_file(dir, "tokenizer.json", &t);
    str_cut(&t, 0);
    str_puts(&t, "{\"bos_token\":\"<bos>\",\"eos_token\":{\"content\":\"<eos>\"},"
                 "\"chat_template\":\"{{ bos_token }}\"}");
    put_file(dir, "tokenizer_config.json", &t);
    str_cut(&t, 0);
    str_puts(&t, "{\"eos_token_id\":[1,6,9],\"top_k\":64,\"top_p\":0.95,\"temperature\":1.0,"
                 "\"repetition_penalty\":1.05,\"min_p\":0.05,\"typical_p\":7,"
                 "\"suppress_tokens\":[3,4");
    for (int i = 0; i < N_SUPPRESSED - 2; i++)
        str_puts(&t, ",5");
    str_puts(&t, ",-1,1.5,\"x\",99999999]}"); /* no tokens of this vocabulary */
    put_file(dir, "generation_config.json", &t);
}

static const char *make_dir(const char *name, const char *size, const made *m, gemma4_shape *s)
{
    const char *dir = test_temp(name);
    mkdir(dir, 0755);
    CHECK(gemma4_shape_named(size, s));
    s->n_layer = m->n_layer ? m->n_layer : s->n_layer;
    put_config(dir, s, m);
    put_weights(dir, s, m);
    put_tokenizer(dir, m);
    return dir;
}

static int convert(const char *dir, const char *out, const char *type)
{
    const char *argv[] = {dir, out, "--type", type, "--threads", "2"};
    return command_convert.run(&command_convert, 6, (char **)argv);
}

/* Every tensor of the shape, against the values that went in. */
static void compare(const gguf *g, const gemma4_shape *s, const made *m, double tolerance)
{
    int32_t n = table_list(&s->common, NULL, 0), seen = 0;
    AUTO_MEM shape_tensor *list = mem_calloc((size_t)n, sizeof *list);
    table_list(&s->common, list, n);
    for (int32_t i = 0; i < n; i++) {
        const tensor *t = tensor_find(&g->tensors, list[i].name);
        if (list[i].unused_kv && !m->shared_keys) {
            CHECK_MSG(!t, "%s", list[i].name);
            continue;
        }
        CHECK_MSG(t && !memcmp(t->ne, list[i].ne, sizeof t->ne), "%s", list[i].name);
        seen++;
        AUTO_MEM float *x = mem_calloc((size_t)t->n_elements, sizeof *x);
        num_format_of(t->type)->decode(t->bytes, x, (int64_t)t->n_elements);
        double noise = 0, signal = 0;
        for (uint64_t k = 0; k < t->n_elements; k++) {
            float want = list[i].role == ROLE_ROPE_FACTORS ? (k < t->n_elements / 4 ? 1.0f : 1e30f)
                                                           : value_of(list[i].name, k);
            noise += ((double)x[k] - want) * ((double)x[k] - want);
            signal += (double)want * want;
        }
        CHECK_MSG(noise <= (t->type == NUM_F32 ? 0 : tolerance * tolerance) * signal,
                  "%s as %s: %g", list[i].name, num_name(t->type), sqrt(noise / signal));
    }
    CHECK_EQ(g->tensors.n, seen);
}

static void check_tokens(const gguf *g)
{
    int64_t v;
    double f;
    gguf_string s;
    uint64_t at = 0;
    const gguf_value *tokens = gguf_find(g, "tokenizer.ggml.tokens");
    const gguf_value *types = gguf_find(g, "tokenizer.ggml.token_type");
    const gguf_value *merges = gguf_find(g, "tokenizer.ggml.merges");
    CHECK(tokens && types && merges);
    CHECK_EQ(tokens->count, FIRST_LETTER + 5);
    CHECK_EQ(gguf_find(g, "tokenizer.ggml.scores")->count, FIRST_LETTER + 5);
    /* pad eos bos: control; unk; ...; channel markers and tool_response: user-defined. */
    static const int64_t want[] = {3, 3, 3, 2, 3, 3, 3, 4, 4, 4, 5, 5, 4, 5, 5, 5, 6};
    for (uint64_t i = 0; i < sizeof want / sizeof *want; i++)
        CHECK_MSG(gguf_item_i64(types, i, &v) && v == want[i], "token %d", (int)i);
    for (int i = 0; i < 11; i++)
        CHECK(gguf_next_string(tokens, &at, &s));
    CHECK(s.n == 7 && !memcmp(s.at, "[PAD10]", 7));
    at = 0;
    CHECK(gguf_next_string(merges, &at, &s) && s.n == 3 && !memcmp(s.at, "a b", 3));
    CHECK(gguf_get_i64(g, "tokenizer.ggml.bos_token_id", &v) && v == 2);
    CHECK(gguf_get_i64(g, "tokenizer.ggml.eos_token_id", &v) && v == 1);
    CHECK(gguf_get_i64(g, "tokenizer.ggml.eot_token_id", &v) && v == 6);
    CHECK_EQ(gguf_find(g, "tokenizer.ggml.suppress_tokens")->count, N_SUPPRESSED);
    CHECK(gguf_item_i64(gguf_find(g, "tokenizer.ggml.suppress_tokens"), 1, &v) && v == 4);
    CHECK(gguf_get_i64(g, "general.sampling.top_k", &v) && v == 64);
    CHECK(gguf_get_f64(g, "general.sampling.temp", &f) && f == 1);
    CHECK(gguf_get_f64(g, "general.sampling.penalty_repeat", &f) && (float)f == 1.05f);
    CHECK(gguf_get_f64(g, "general.sampling.min_p", &f) && (float)f == 0.05f);
    CHECK(!gguf_get_f64(g, "general.sampling.typical_p", &f)); /* 7 is out of its range */
    CHECK(gguf_get_string(g, "tokenizer.chat_template", &s) && s.n == 15);
    CHECK(gguf_get_i64(g, "gemma4.vocab_size", &v) && v == FIRST_LETTER + 5);
}

PLAIN_TEST(convert_keeps_every_value)
{
    static const struct {
        const char *size, *type;
        double tolerance;
        made m;
    } one[] = {
        {"tiny-all", "f32", 0, {.prefix = "model.", .type = NUM_F32, .shards = 1, .pairs = true}},
        {"tiny-ple",
         "bf16",
         0,
         {.prefix = "model.language_model.",
          .type = NUM_BF16,
          .shards = 3,
          .nested = true,
          .shared_keys = true}},
        {"tiny-moe",
         "f16",
         1e-3,
         {.prefix = "language_model.model.", .type = NUM_BF16, .shards = 1, .nested = true}},
        {"tiny-wide",
         "q8_0",
         0.01,
         {.prefix = "model.", .type = NUM_F16, .shards = 2, .pairs = true}},
        {"tiny-wide",
         "q4_k_m",
         0.12,
         {.prefix = "model.", .type = NUM_F16, .shards = 1, .n_layer = 3}},
        {"tiny-dense", "q4_0", 0.12, {.prefix = "model.", .type = NUM_F32, .shards = 1}},
    };
    for (size_t i = 0; i < sizeof one / sizeof *one; i++) {
        char name[16], out[16];
        gemma4_shape s;
        gguf g;
        err e = {0};
        AUTO_MODEL *opened;
        snprintf(name, sizeof name, "dir%zu", i);
        snprintf(out, sizeof out, "%zu.gguf", i);
        const char *dir = make_dir(name, one[i].size, &one[i].m, &s), *path = test_temp(out);
        CHECK_EQ(convert(dir, path, one[i].type), 0);
        CHECK_OK(gguf_open(&g, path, false, NULL, NULL, &e), e);
        s.n_vocab = FIRST_LETTER + 5; /* the embedding is cut to the tokenizer */
        compare(&g, &s, &one[i].m, one[i].tolerance);
        check_tokens(&g);
        gguf_close(&g);
        CHECK_OK(carat_model_open(path, &(carat_model_options){.vocab_only = true}, &opened, &e),
                 e);
    }
}

/* How many files a directory has. */
static int n_files(const char *dir)
{
    int n = 0;
    DIR *d = opendir(dir);
    CHECK(d);
    while (readdir(d))
        n++;
    closedir(d);
    return n - 2;
}

TEST(convert_refuses_what_does_not_fit)
{
#define OLD "\"model_type\":\"gemma4_text\""
    static const struct {
        made m;
        const char *says;
    } bad[] = {
        {{.skip = "layers.3.mlp.up_proj.weight"},
         "tensor model.layers.3.mlp.up_proj.weight is missing"},
        {{.wrong = "layers.3.mlp.up_proj.weight"},
         "{96, 161}, the configuration makes it {96, 160}"},
        {{.wrong = "layers.0.layer_scalar"}, "layer_scalar is {2}, the configuration makes it {1}"},
        {{.nan = "layers.8.self_attn.o_proj.weight"},
         "o_proj.weight, row 48: a value is not finite"},
        {{.nan = "norm.weight"}, "norm.weight, row 0: a value is not finite"},
        {{.skip = "embed_tokens.weight"}, "no embed_tokens.weight under any"},
        {{.prefix = "transformer."}, "no embed_tokens.weight under any"},
        {{.instead = "{}"}, "no model_type"},
        {{.instead = "[]"}, "no model_type"},
        {{.instead = "{\"model_type\":\"llama\"}"}, "the pre-tokenizer is none"},
        {{.instead = "{\"model_type\":\"gemma4_text\"}"}, "num_hidden_layers is missing"},
        {{.config_add = "\"hidden_size\":96,"}, "duplicate object key"},
        {{.config_add = "\"attention_bias\":true,"}, "attention_bias is set"},
        {{.config_add = "\"use_bidirectional_attention\":\"all\","},
         "use_bidirectional_attention is all"},
        {{.config_add = "\"use_bidirectional_attention\":true,"},
         "use_bidirectional_attention is set"},
        {{.config_add = "\"hidden_act\":\"silu\","}, "hidden_act is silu"},
        {{.config_add = "\"attn_logit_softcapping\":50.0,"}, "attn_logit_softcapping is set"},
        {{.config_add = "\"rope_scaling\":{\"factor\":2},"}, "rope_scaling is set"},
        {{.config_add = "\"quantization_config\":{\"bits\":4},"}, "quantization_config is set"},
        {{.config_add = "\"tie_word_embeddings\":false,"}, "there is no lm_head.weight"},
        {{.factor = 1e30}, "factor is 1e+30"},
        {{.extra = "model.layers.0.self_attn.k_proj.bias"},
         "k_proj.bias: this bias is not supported"},
        {{.extra = "model.layers.77.layer_scalar"},
         "no place in a model of this config.json: model.layers.77.layer_"},
        {{.extra = "model.layers.0.self_attn.q_proj.lora_B.weight"},
         "q_proj.lora_B.weight: parts of an adapter"},
        {{.extra = "model.altup.weight"},
         "no place in a model of this config.json: model.altup.weight"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        made m = bad[i].m;
        gemma4_shape s;
        char name[16];
        m.prefix = m.prefix ? m.prefix : "model.";
        m.type = NUM_F32;
        m.shards = 1;
        snprintf(name, sizeof name, "bad%zu", i);
        const char *dir = make_dir(name, "tiny-dense", &m, &s);
        char out[1024];
        int before = n_files(dir);
        snprintf(out, sizeof out, "%s/out.gguf", dir);
        const convert_request r = {.dir = dir, .out = out, .n_threads = 2};
        err e = {0};
        uint64_t n_bytes;
        CHECK_MSG(convert_model(&r, &n_bytes, &e) && strstr(e.text, bad[i].says), "%zu: %s", i,
                  e.text);
        CHECK_EQ(n_files(dir), before); /* neither the file nor half of one */
    }
}

TEST(convert_says_that_a_file_is_no_checkpoint)
{
    json_t *config;
    err e = {0};
    CHECK_STATUS(convert_read_json(&config, "/dev/null", "config.json", true, &e), E_ARG);
    CHECK_MSG(!config && strstr(e.text, "/dev/null is not a directory"), "%s", e.text);
}

/* The frequencies of global layers, from the files that conversion made of both. */
TEST(convert_divides_frequencies_by_the_factor)
{
    enum { FACTOR = 8 };
    made m = {.prefix = "model.", .type = NUM_F32, .shards = 1, .factor = FACTOR};
    gemma4_shape s;
    gguf g;
    err e = {0};
    AUTO(model_free) model bound;
    const char *dir = make_dir("factor", "tiny-dense", &m, &s), *path = test_temp("factor.gguf");
    CHECK_EQ(convert(dir, path, "f32"), 0);
    CHECK_OK(gguf_open(&g, path, false, NULL, NULL, &e), e);
    CHECK_OK(model_bind(&bound, &g, &e), e);
    const gemma4 *loaded = bound.impl;
    int32_t n = s.head_dim_global / 2;
    CHECK_EQ(loaded->rope_global->n_turning, n / 4);
    for (int32_t i = 0; i < n; i++) {
        double want = i < n / 4 ? pow(1e6, -2.0 * i / s.head_dim_global) / FACTOR : 0;
        CHECK_MSG(fabs(loaded->rope_global->inv_freq[i] - want) <= 1e-6 * want, "pair %d: %g", i,
                  (double)loaded->rope_global->inv_freq[i]);
    }
    for (int32_t i = 0; i < s.head_dim / 2; i++) {
        double want = pow(1e4, -2.0 * i / s.head_dim);
        CHECK(fabs(loaded->rope_swa->inv_freq[i] - want) <= 1e-6 * want);
    }
}

static status read_gemma(const char *dir, const char *add, model_shape **s, err *e)
{
    json_t *config = NULL, *more = NULL;
    CHECK_OK(convert_read_json(&config, dir, "config.json", true, e), *e);
    CHECK_OK(json_parse(&more, add, strlen(add), "patch", e), *e);
    CHECK(!json_object_update(config, more));
    status st = convert_read_shape(config, "config.json", s, NULL, e);
    json_decref(more);
    json_decref(config);
    return st;
}

TEST(convert_of_gemma_takes_equal_meanings)
{
#define GEMMA_ROPE(full)                                                                           \
    "{\"rope_parameters\":{\"full_attention\":{" full "\"rope_theta\":1e6},"                       \
    "\"sliding_attention\":{\"rope_theta\":1e4}}}"
    static const char *const same[] = {
        "{\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"proportional\","
        "\"partial_rotary_factor\":0.25,\"rope_theta\":1e6},\"sliding_attention\":{"
        "\"rope_type\":\"linear\",\"factor\":1.0,\"rope_theta\":1e4}}}",
        "{\"hidden_activation\":\"gelu_new\"}",
        "{\"hidden_activation\":\"gelu_fast\",\"hidden_act\":\"gelu_pytorch_tanh\"}",
        "{\"rope_scaling\":{\"rope_type\":\"default\"}}",
        "{\"attn_logit_softcapping\":0,\"mlp_bias\":false}",
        "SW",
        GEMMA_ROPE("\"type\":\"proportional\",\"partial_rotary_factor\":0.25,"),
    };
    made m = {.prefix = "model.", .type = NUM_F32, .shards = 1};
    gemma4_shape g;
    model_shape *want, *s;
    err e = {0};
    const char *dir = make_dir("equal", "tiny-dense", &m, &g);
    CHECK_OK(read_gemma(dir, "{}", &want, &e), e);
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        char add[400];
        const char *sw = strstr(same[i], "SW");
        if (sw)
            snprintf(add, sizeof add, "{\"sliding_window\":%d.0}", (int)g.window);
        CHECK_MSG(!read_gemma(dir, sw ? add : same[i], &s, &e), "%s: %s", same[i], e.text);
        CHECK_MSG(!memcmp(s, want, sizeof(gemma4_shape)), "%s is another shape", same[i]);
        mem_free(s);
    }
    mem_free(want);
}

/* The output's name given as that of the weights, or a link to them, would destroy the source. */
TEST(convert_overwrites_no_file_of_the_checkpoint)
{
    static const char *const names[] = {"model.safetensors", "config.json", "./model.safetensors"};
    made m = {.prefix = "model.", .type = NUM_F32, .shards = 1};
    gemma4_shape g;
    char path[1024], before[1024];
    const char *dir = make_dir("source", "tiny-dense", &m, &g), *link = test_temp("link.gguf");
    snprintf(before, sizeof before, "%s/model.safetensors", dir);
    CHECK_EQ(symlink(before, link), 0);
    for (size_t i = 0; i <= sizeof names / sizeof *names; i++) {
        struct stat was, is;
        bool named = i < sizeof names / sizeof *names;
        snprintf(path, sizeof path, "%s/%s", dir, named ? names[i] : "");
        const char *out = named ? path : link, *argv[] = {dir, out, "-t", "f32"};
        CHECK_EQ(stat(out, &was), 0);
        CHECK(command_convert.run(&command_convert, 4, (char **)argv) != 0);
        CHECK_EQ(stat(out, &is), 0);
        CHECK(was.st_ino == is.st_ino && was.st_size == is.st_size);
    }
    snprintf(path, sizeof path, "%s/model.gguf", dir); /* beside the weights, twice */
    for (int i = 0; i < 2; i++) {
        const char *argv[] = {dir, path, "-t", "f32"};
        CHECK_EQ(command_convert.run(&command_convert, 4, (char **)argv), 0);
    }
}

/* Of the pairs of a global head, the share that the reference cuts from the dims. */
TEST(convert_of_gemma_rotates_a_share_that_is_no_power_of_two)
{
    static const struct {
        double part;
        int32_t head_dim, pairs;
    } want[] = {{0.7, 80, 28}, {0.9, 80, 36}, {0.25, 512, 64}, {0.3, 40, 6}, {0.35, 160, 28}};
    for (size_t i = 0; i < sizeof want / sizeof *want; i++)
        CHECK_EQ(gemma4_turning_pairs(want[i].part, want[i].head_dim), want[i].pairs);
    made m = {.prefix = "model.", .type = NUM_F32, .shards = 1};
    gemma4_shape g;
    AUTO_MEM model_shape *s;
    err e = {0};
    const char *dir = make_dir("share", "tiny-dense", &m, &g);
    CHECK_OK(read_gemma(dir,
                        GEMMA_ROPE("\"rope_type\":\"proportional\","
                                   "\"partial_rotary_factor\":0.7,"),
                        &s, &e),
             e);
    CHECK(((gemma4_shape *)s)->rotary_part == 0.7);
}

TEST(convert_takes_a_piece_of_a_nul_byte)
{
    for (int pairs = 0; pairs < 2; pairs++) {
        made m = {
            .prefix = "model.", .type = NUM_F32, .shards = 1, .pairs = pairs, .nul_piece = true};
        gemma4_shape s;
        err e = {0};
        AUTO_MODEL *opened;
        int32_t ids[4];
        const char *dir = make_dir(pairs ? "nul2" : "nul1", "tiny-dense", &m, &s);
        const char *path = test_temp(pairs ? "nul2.gguf" : "nul1.gguf");
        CHECK_EQ(convert(dir, path, "f32"), 0);
        CHECK_OK(carat_model_open(path, &(carat_model_options){.vocab_only = true}, &opened, &e),
                 e);
        CHECK_EQ(carat_tokenize(opened, "ba\0a", 4, 0, ids, 4, &e), 3);
        CHECK_EQ(ids[1], FIRST_LETTER + 6);
    }
}

TEST(convert_takes_pieces_and_merges_that_are_listed_twice)
{
    for (int pairs = 0; pairs < 2; pairs++) {
        made m = {.prefix = "model.", .type = NUM_F32, .shards = 1, .pairs = pairs, .twins = true};
        gemma4_shape s;
        err e = {0};
        AUTO_MODEL *opened;
        int32_t ids[4];
        const char *bytes, *dir = make_dir(pairs ? "twin2" : "twin1", "tiny-dense", &m, &s);
        const char *path = test_temp(pairs ? "twin2.gguf" : "twin1.gguf");
        CHECK_EQ(convert(dir, path, "f32"), 0);
        CHECK_OK(carat_model_open(path, &(carat_model_options){.vocab_only = true}, &opened, &e),
                 e);
        CHECK_EQ(carat_tokenize(opened, "aab", 3, 0, ids, 4, &e), 2);
        CHECK_EQ(ids[0], FIRST_LETTER);
        CHECK_EQ(ids[1], FIRST_LETTER + 2);
        CHECK_EQ(carat_tokenize(opened, "<eos>", 5, CARAT_TOK_SPECIAL, ids, 4, &e), 1);
        CHECK_EQ(ids[0], 1);
        CHECK(carat_token_bytes(opened, FIRST_LETTER, true, &bytes) == 1 && *bytes == 'a');
        CHECK(carat_token_bytes(opened, FIRST_LETTER + 9, true, &bytes) == 5);
        CHECK(carat_token_is_eog(opened, FIRST_LETTER + 9));
    }
}

TEST(convert_lists_keys_that_it_does_not_know)
{
    made m = {.prefix = "model.",
              .type = NUM_F32,
              .shards = 1,
              .config_add = "\"use_cache\":true,\"laurel_rank\":64,\"x\":null,\"y\":[1],"};
    gemma4_shape s;
    AUTO(str_free) str unknown = {0};
    err e = {0};
    uint64_t n_bytes;
    const char *dir = make_dir("unknown", "tiny-dense", &m, &s);
    convert_request r = {
        .dir = dir, .out = test_temp("unknown.gguf"), .n_threads = 2, .unknown = &unknown};
    CHECK_OK(convert_model(&r, &n_bytes, &e), e);
    CHECK_STR(unknown.at, "laurel_rank, y");
}

TEST(convert_on_a_full_disk_leaves_nothing)
{
    made m = {.prefix = "model.", .type = NUM_F32, .shards = 1};
    gemma4_shape s;
    const char *dir = make_dir("full", "tiny-all", &m, &s);
    char out[1024];
    int before = n_files(dir);
    snprintf(out, sizeof out, "%s/out.gguf", dir);
    /* A limit on file size is what a full disk looks like to a writer. */
    signal(SIGXFSZ, SIG_IGN);
    CHECK(!setrlimit(RLIMIT_FSIZE, &(struct rlimit){1 << 20, 1 << 20}));
    CHECK_EQ(convert(dir, out, "f32"), 1);
    CHECK_EQ(n_files(dir), before);
}

TEST(convert_f16_says_when_a_value_does_not_fit)
{
    made m = {.prefix = "model.", .type = NUM_F32, .shards = 1};
    gemma4_shape s;
    const char *dir = make_dir("big", "tiny-dense", &m, &s);
    char path[1024], *bytes;
    size_t n;
    err e = {0};
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    CHECK_OK(file_read_all(path, 1 << 28, &bytes, &n, &e), e);
    uint64_t head;
    memcpy(&head, bytes, 8);
    float big = 1e5f; /* the first tensor is the embedding */
    memcpy(bytes + 8 + head, &big, 4);
    str file = {bytes, n, n, false};
    put_file(dir, "model.safetensors", &file);
    mem_free(bytes);
    CHECK_EQ(convert(dir, test_temp("a.gguf"), "f16"), 1);
    CHECK_EQ(convert(dir, test_temp("b.gguf"), "bf16"), 0);
}

TEST(convert_survives_every_kind_of_shortage)
{
    made m = {.prefix = "model.", .type = NUM_BF16, .shards = 2, .pairs = true};
    gemma4_shape s;
    const char *dir = make_dir("oom", "tiny-dense", &m, &s);
    char out[1024];
    int before = n_files(dir), failed = 0;
    snprintf(out, sizeof out, "%s/out.gguf", dir);
    /* There are thousands of allocations; all of the first, ever fewer of the rest. */
    for (int64_t n = 0;; n += 1 + n / 20) {
        err e = {0};
        uint64_t n_bytes;
        mem_fail_after(n);
        convert_request r = {
            .dir = dir, .out = out, .mix = weight_mix_named("q8_0"), .n_threads = 2};
        status st = convert_model(&r, &n_bytes, &e);
        bool hit = mem_fail_hit();
        mem_fail_after(-1);
        if (!hit) {
            CHECK_OK(st, e);
            break;
        }
        failed++;
        CHECK_MSG(st == E_MEMORY, "allocation %lld failed: %s: %s", (long long)n,
                  carat_status_name(st), e.text);
        CHECK_EQ(n_files(dir), before);
    }
    CHECK(failed > 50);
}
