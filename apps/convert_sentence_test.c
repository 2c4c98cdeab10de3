/* convert_sentence_test.c - a directory of sentence-transformers, as published: converted, it gives
 * the vectors that sentence-transformers gives, and what carat has not is refused by name. */
#include "tests/fidelity_model.h"
#include "apps/convert_int.h"
#include "base/mem.h"
#include "base/str.h"
#include "carat.h"
#include "model/gemma3.h"
#include "tests/test.h"

#include <sys/stat.h>

#define CONFIG                                                                                     \
    "{\"_sliding_window_pattern\":6,\"architectures\":[\"Gemma3TextModel\"],"                      \
    "\"attention_bias\":false,\"attn_logit_softcapping\":null,\"final_logit_softcapping\":null,"   \
    "\"head_dim\":32,\"hidden_activation\":\"gelu_pytorch_tanh\",\"hidden_size\":96,"              \
    "\"intermediate_size\":160,\"max_position_embeddings\":2048,\"model_type\":\"gemma3_text\","   \
    "\"num_attention_heads\":3,\"num_hidden_layers\":7,\"num_key_value_heads\":1,"                 \
    "\"query_pre_attn_scalar\":32,\"rms_norm_eps\":1e-06,\"rope_local_base_freq\":10000.0,"        \
    "\"rope_scaling\":null,\"rope_theta\":1000000.0,\"sliding_window\":16,"                        \
    "\"use_bidirectional_attention\":true,\"use_cache\":true,\"vocab_size\":128}"
#define MODULE(n, path, type)                                                                      \
    "{\"idx\":" n ",\"name\":\"" n "\",\"path\":\"" path                                           \
    "\",\"type\":\"sentence_transformers.models." type "\"}"
#define MODULES                                                                                    \
    "[" MODULE("0", "", "Transformer") "," MODULE("1", "1_Pooling", "Pooling") "," MODULE(         \
        "2", "2_Dense", "Dense") "," MODULE("3", "3_Dense", "Dense") "," MODULE("4",               \
                                                                                "4_Normalize",     \
                                                                                "Normalize") "]"
#define POOLING                                                                                    \
    "{\"word_embedding_dimension\":96,\"pooling_mode_cls_token\":false,"                           \
    "\"pooling_mode_mean_tokens\":true,\"pooling_mode_max_tokens\":false,"                         \
    "\"pooling_mode_mean_sqrt_len_tokens\":false,\"pooling_mode_weightedmean_tokens\":false,"      \
    "\"pooling_mode_lasttoken\":false,\"include_prompt\":true}"
#define DENSE(in, out)                                                                             \
    "{\"in_features\":" in ",\"out_features\":" out ",\"bias\":false,"                             \
    "\"activation_function\":\"torch.nn.modules.linear.Identity\"}"
#define SENTENCES                                                                                  \
    "{\"model_type\":\"SentenceTransformer\",\"prompts\":{\"query\":\"task: search result | "      \
    "query: \",\"document\":\"title: none | text: \"},\"default_prompt_name\":null,"               \
    "\"similarity_fn_name\":\"cosine\"}"

typedef struct tensors {
    str head, data;
} tensors;

/* Values less `minus`. */
static void put(tensors *d, const char *name, const tensor *t, float minus)
{
    size_t from = d->data.n;
    for (uint64_t i = 0; i < t->n_elements; i++) {
        float x = ((const float *)t->bytes)[i] - minus;
        str_put(&d->data, (const char *)&x, sizeof x);
    }
    str_printf(&d->head, "%s\"%s\":{\"dtype\":\"F32\",\"shape\":[", d->head.n ? "," : "{", name);
    if (t->n_dims > 1)
        str_printf(&d->head, "%llu,", (unsigned long long)t->ne[1]);
    str_printf(&d->head, "%llu],\"data_offsets\":[%zu,%zu]}", (unsigned long long)t->ne[0], from,
               d->data.n);
}

static void write_tensors(tensors *d, const char *dir)
{
    str file = {0};
    str_puts(&d->head, "}");
    for (int k = 0; k < 8; k++)
        str_putc(&file, (char)((uint64_t)d->head.n >> 8 * k));
    str_put(&file, d->head.at, d->head.n);
    str_put(&file, d->data.at, d->data.n);
    CHECK(!file.bad);
    test_write_in(dir, "model.safetensors", file.at, file.n);
    str_free(&file);
    str_free(&d->head);
    str_free(&d->data);
}

static const char *below(const char *dir, const char *name)
{
    static char path[2][512];
    static int at;
    at = !at;
    snprintf(path[at], sizeof path[at], "%s/%s", dir, name);
    mkdir(path[at], 0755);
    return path[at];
}

static void put_text(const char *dir, const char *name, const char *text)
{
    test_write_in(dir, name, text, strlen(text));
}

/* The checkpoint of the model in g, with the names of the published one. */
static const char *make_dir(const gguf *g)
{
    const char *dir = test_temp("sentence");
    json_t *config = NULL;
    model_shape *s = NULL;
    tensors all = {0}, dense[2] = {{{0}, {0}}, {{0}, {0}}};
    err e = {0};
    mkdir(dir, 0755);
    put_text(dir, "config.json", CONFIG);
    put_text(dir, "modules.json", MODULES);
    put_text(dir, "config_sentence_transformers.json", SENTENCES);
    put_text(below(dir, "1_Pooling"), "config.json", POOLING);
    put_text(below(dir, "2_Dense"), "config.json", DENSE("96", "160"));
    put_text(below(dir, "3_Dense"), "config.json", DENSE("160", "96"));
    CHECK_OK(convert_read_json(&config, dir, "config.json", true, &e), e);
    CHECK_OK(convert_read_shape(config, "config.json", &s, NULL, &e), e);
    CHECK(s->family == &gemma_embedding_shapes);
    int32_t n = s->family->list(s, NULL, 0);
    shape_tensor *list = mem_calloc((size_t)n, sizeof *list);
    CHECK(list);
    s->family->list(s, list, n);
    for (int32_t i = 0; i < n; i++) {
        const tensor *t = tensor_find(&g->tensors, list[i].name);
        CHECK(t);
        put(&all, list[i].hf_name, t, list[i].change.add);
    }
    write_tensors(&all, dir);
    for (int i = 0; i < 2; i++) {
        put(&dense[i], "linear.weight",
            tensor_find(&g->tensors, i ? "dense_3.weight" : "dense_2.weight"), 0);
        write_tensors(&dense[i], below(dir, i ? "3_Dense" : "2_Dense"));
    }
    mem_free(list);
    mem_free(s);
    json_decref(config);
    return dir;
}

static status convert_dir(const char *dir, const char *out, str *notes, err *e)
{
    uint64_t n_bytes = 0;
    AUTO(str_free) str unknown = {0};
    const convert_request r = {.dir = dir,
                               .out = out,
                               .mix = weight_mix_named("f32"),
                               .n_threads = 1,
                               .unknown = &unknown,
                               .notes = notes};
    status st = convert_model(&r, &n_bytes, e);
    CHECK_MSG(!unknown.n, "unknown keys: %s", str_text(&unknown));
    return st;
}

static void check_vectors(const fidelity *f, const char *path)
{
    err e = {0};
    AUTO_MODEL *m;
    AUTO_SESSION *s;
    float x[96];
    CHECK_OK(carat_model_open(path, &(carat_model_options){.exact_f32 = true}, &m, &e), e);
    CHECK_OK(carat_session_open(m, &(carat_session_options){.n_ctx = 160, .kv_k = "f32"}, &s, &e),
             e);
    for (int32_t i = 0, n; (n = fidelity_length(f, i)); i++) {
        CHECK_OK(carat_embed(s, f->tokens, n, carat_model_pooling(m, NULL), x, &e), e);
        for (int c = 0; c < 96; c++)
            CHECK_NEAR(x[c], f->vectors[i * 96 + c], 1e-5);
    }
    carat_embed_prompt p;
    CHECK_OK(carat_embed_prompt_named(m, "document", &p, &e), e);
    CHECK(p.n_text == 20 && !memcmp(p.text, "title: none | text: ", 20));
    CHECK(!carat_model_embed_prompt(m, 2, &p)); /* those of the file alone */
    CHECK_STATUS(carat_embed_prompt_named(m, "Clustering", &p, &e), CARAT_E_ARG);
    CHECK(strstr(e.text, "query, document"));
}

TEST(a_directory_of_sentence_transformers_is_converted)
{
    AUTO(fidelity_close) fidelity f;
    AUTO(gguf_close) gguf g;
    err e = {0};
    AUTO(str_free) str notes = {0};
    fidelity_open(&f, "encoder");
    CHECK_OK(gguf_open(&g, fidelity_write(&f, NULL), true, NULL, NULL, &e), e);
    const char *dir = make_dir(&g), *out = test_temp("sentence.gguf");
    CHECK_OK(convert_dir(dir, out, &notes, &e), e);
    CHECK_MSG(!notes.n, "%s", str_text(&notes));
    check_vectors(&f, out);

    static const struct {
        const char *where, *name, *text, *says;
    } bad[] = {
        {"2_Dense", "config.json",
         "{\"in_features\":96,\"out_features\":160,\"bias\":true,\"activation_function\":"
         "\"torch.nn.modules.linear.Identity\"}",
         "bias"},
        {"2_Dense", "config.json",
         "{\"in_features\":96,\"out_features\":160,\"bias\":false,\"activation_function\":"
         "\"torch.nn.modules.activation.Tanh\"}",
         "Tanh"},
        {"2_Dense", "config.json", DENSE("96", "128"), "linear.weight"},
        {"2_Dense", "config.json", DENSE("96", "-1"), "out_features"},
        {"1_Pooling", "config.json", "{\"pooling_mode_max_tokens\":true}", "way of pooling"},
        {"1_Pooling", "config.json",
         "{\"pooling_mode_max_tokens\":true,\"pooling_mode_mean_tokens\":true}", "way of pooling"},
        {"1_Pooling", "config.json", "{\"pooling_mode\":\"mean\",\"include_prompt\":false}",
         "include_prompt"},
        {"1_Pooling", "config.json", "{\"pooling_mode_cls_token\":true}", "pooling_type"},
        {"", "modules.json", "[" MODULE("0", "2_LayerNorm", "LayerNorm") "]", "LayerNorm"},
        {"", "modules.json", "[" MODULE("0", "../2_Dense", "Dense") "]", "folder"},
        {"", "modules.json", "{}", "a list"},
        {"", "modules.json", "[7]", "folder"},
        {"", "modules.json", "[" MODULE("2", "2_Dense", "Dense") "]", "1 dense layers"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        e = (err){0};
        dir = make_dir(&g);
        put_text(*bad[i].where ? below(dir, bad[i].where) : dir, bad[i].name, bad[i].text);
        CHECK_MSG(convert_dir(dir, out, NULL, &e) && strstr(e.text, bad[i].says), "%s: %s",
                  bad[i].text, e.text);
    }
    /* Newer files name the pooling by a word; without dense modules that is said. */
    e = (err){0};
    dir = make_dir(&g);
    put_text(below(dir, "1_Pooling"), "config.json", "{\"pooling_mode\":\"mean\"}");
    CHECK_OK(convert_dir(dir, out, &notes, &e), e);
    CHECK(!notes.n);
    put_text(dir, "modules.json",
             "[" MODULE("0", "", "Transformer") "," MODULE("1", "1_Pooling", "Pooling") "]");
    CHECK_OK(convert_dir(dir, out, &notes, &e), e);
    CHECK(strstr(str_text(&notes), "without them"));
}
