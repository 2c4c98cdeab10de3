/* toy_model.c - see toy_model.h. A fidelity model whose embedding is replaced by one of the toy
 * vocabulary's size; everything else is copied. */
#include "tests/toy_model.h"
#include "tests/fidelity_model.h"
#include "tests/kv_rig.h"
#include "tests/test.h"
#include "tests/toy_vocab.h"
#include "text/family.h"
#include "text/jtree.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/rng.h"

/* The landmarks by which the current template of the large models is recognised. */
static const char chat_template[] =
    "{# Published: 2026-07-09 #}{{ raise_exception('x') }}{% if preserve_thinking %}{% endif %}"
    "{{- '<|turn>model\\n' -}}{{- '<|channel>thought\\n<channel|>' -}}";

static bool is_table(const char *name)
{
    return !strcmp(name, "token_embd.weight") || !strcmp(name, "per_layer_token_embd.weight") ||
           !strcmp(name, "output.weight");
}

static void put_template(gguf_writer *w, const char *file)
{
    char path[300], *source;
    size_t n;
    err e = {0};
    snprintf(path, sizeof path, "tests/data/chat/%s", file);
    CHECK_OK(file_read_all(test_path(path), 1 << 20, &source, &n, &e), e);
    gguf_put_string(w, "tokenizer.chat_template", source, n);
    mem_free(source);
}

static void put_vocab(gguf_writer *w, const toy *t, bool chat, const char *template)
{
    AUTO_MEM gguf_string *s = mem_calloc(TOY_MAX_PIECES + TOY_MAX_MERGES, sizeof *s);
    AUTO_MEM int32_t *types = mem_calloc(TOY_MAX_PIECES, sizeof *types);
    AUTO_MEM str *merges = mem_calloc(TOY_MAX_MERGES, sizeof *merges);
    CHECK(s && types && merges);
    for (int32_t i = 0; i < t->n_pieces; i++) {
        s[i] = (gguf_string){t->piece[i].at, t->piece[i].n};
        types[i] = t->piece[i].type;
    }
    gguf_put_string(w, "tokenizer.ggml.model", "gemma4", 6);
    gguf_put_strings(w, "tokenizer.ggml.tokens", s, (uint64_t)t->n_pieces);
    gguf_put_i32s(w, "tokenizer.ggml.token_type", types, (uint64_t)t->n_pieces);
    for (int32_t i = 0; i < t->n_merges; i++) {
        const toy_piece *l = &t->piece[t->merge[i].left], *r = &t->piece[t->merge[i].right];
        str_put(&merges[i], l->at, l->n);
        str_putc(&merges[i], ' ');
        str_put(&merges[i], r->at, r->n);
        s[i] = (gguf_string){merges[i].at, merges[i].n};
    }
    gguf_put_strings(w, "tokenizer.ggml.merges", s, (uint64_t)t->n_merges);
    gguf_put_u32(w, "tokenizer.ggml.bos_token_id", (uint32_t)toy_find(t, "<bos>", 5));
    gguf_put_u32(w, "tokenizer.ggml.eos_token_id", (uint32_t)toy_find(t, "<eos>", 5));
    if (chat && template)
        put_template(w, template);
    else if (chat)
        gguf_put_string(w, "tokenizer.chat_template", chat_template, sizeof chat_template - 1);
    for (int32_t i = 0; i < t->n_merges; i++)
        str_free(&merges[i]);
}

/* A recorded vocabulary of bytes. Returns its number of tokens. */
static int32_t put_recorded(gguf_writer *w, const toy_model_file *v, bool chat)
{
    const char *name = v->words, *template = v->template;
    char path[256], *text;
    size_t n;
    err e = {0};
    AUTO(arena_free) arena mem = {0};
    const jtree *root;
    snprintf(path, sizeof path, "tests/data/vocab/%s.json", name);
    CHECK_OK(file_read_all(test_path(path), 4 << 20, &text, &n, &e), e);
    CHECK_OK(jtree_parse(text, n, path, 8, &mem, &root, &e), e);
    const jtree *pieces = jtree_get(root, "pieces"), *merges = jtree_get(root, "merges");
    const jtree *pre = jtree_get(root, "pre"), *arch = jtree_get(root, "arch");
    const char *types = jtree_get(root, "types")->s;
    size_t n_more = v->ranks == TOY_RANK_HEAD ? 2 : 0, n_pieces = pieces->count + n_more, i = 0;
    gguf_string *s = mem_calloc(n_pieces + merges->count, sizeof *s);
    AUTO_MEM int32_t *type = mem_calloc(n_pieces, sizeof *type);
    CHECK(s && type);
    for (const jtree *p = pieces->first; p; p = p->next, i++) {
        s[i] = (gguf_string){p->s, p->n};
        type[i] = types[i] - '0';
    }
    for (size_t k = 0; k < n_more; k++, i++) { /* found as they stand, without merges */
        s[i] = (gguf_string){k ? "no" : "yes", k ? 2 : 3};
        type[i] = 4;
    }
    for (const jtree *m = merges->first; m; m = m->next)
        s[i++] = (gguf_string){m->s, m->n};
    gguf_put_string(w, "tokenizer.ggml.model", "gpt2", 4);
    gguf_put_string(w, "tokenizer.ggml.pre", pre->s, pre->n);
    gguf_put_strings(w, "tokenizer.ggml.tokens", s, n_pieces);
    gguf_put_i32s(w, "tokenizer.ggml.token_type", type, n_pieces);
    gguf_put_strings(w, "tokenizer.ggml.merges", s + n_pieces, merges->count);
    for (const made_words *k = text_family_of(arch->s, arch->n)->made; k->arch && chat; k++)
        if (!strcmp(k->arch, arch->s) && !template)
            gguf_put_string(w, "tokenizer.chat_template", k->template, strlen(k->template));
    if (template && chat)
        put_template(w, template);
    mem_free(s);
    mem_free(text);
    return (int32_t)n_pieces;
}

static void write_table(gguf_writer *w, uint64_t n, uint64_t seed, float scale)
{
    err e = {0};
    for (uint64_t i = 0; i < n; i++) {
        float x = (float)rng_normal(&seed) * scale;
        CHECK_OK(gguf_write_data(w, &x, sizeof x, &e), e);
    }
}

const char *toy_model_write(const toy_model_file *v)
{
    static const toy_model_file plain;
    static int n_written;
    char file[64];
    fidelity f;
    AUTO(gguf_close) gguf g;
    gguf_writer *w;
    const char *from;
    err e = {0};

    v = v ? v : &plain;
    if (v->wide_heads) {
        from = rig_model();
    } else {
        fidelity_open(&f, v->base ? v->base : "all");
        from = fidelity_write(&f, NULL);
        fidelity_close(&f);
    }
    CHECK_OK(gguf_open(&g, from, false, NULL, NULL, &e), e);
    gguf_string arch;
    CHECK(gguf_get_string(&g, "general.architecture", &arch));
    toy *t = v->words ? NULL : toy_gemma();
    snprintf(file, sizeof file, "toy-%d.gguf", n_written++);
    const char *path = test_temp(file);
    CHECK_OK(gguf_create(&w, path, &e), e);
    gguf_put_string(w, "general.architecture", arch.at, (size_t)arch.n);
    bool matrix = v->ranks == TOY_RANK_MATRIX;
    const char *called = v->ranks == TOY_RANK_HEAD ? "Toy-Reranker-0.6B" : "toy";
    gguf_put_string(w, "general.name", called, strlen(called));
    if (matrix)
        gguf_put_u32(w, "qwen3.pooling_type", 4);
    if (arch.n == 15 && !memcmp(arch.at, "gemma-embedding", 15)) /* as EmbeddingGemma's file */
        gguf_put_bool(w, "tokenizer.ggml.add_eos_token", true);
    for (uint64_t i = 0; i < g.n_values; i++) {
        const char *key = g.value[i].key, *name = key + arch.n + 1;
        if (strncmp(key, arch.at, (size_t)arch.n) || key[arch.n] != '.' ||
            !strcmp(name, "vocab_size"))
            continue;
        if (v->n_ctx_train && !strcmp(name, "context_length"))
            gguf_put_u32(w, key, v->n_ctx_train);
        else
            gguf_put_value(w, &g.value[i]);
    }
    int32_t n_pieces = v->words ? put_recorded(w, v, !v->no_chat) : t->n_pieces;
    if (t)
        put_vocab(w, t, !v->no_chat, v->template);
    for (uint64_t i = 0; i < g.tensors.n; i++) {
        const tensor *x = &g.tensors.at[i];
        uint64_t ne[TENSOR_DIMS_MAX];
        memcpy(ne, x->ne, sizeof ne);
        if (is_table(x->name))
            ne[1] = (uint64_t)n_pieces;
        gguf_put_tensor(w, x->name, x->type, x->n_dims, ne);
    }
    const uint64_t answers[] = {g.tensors.at[0].ne[0], 2};
    if (matrix)
        gguf_put_tensor(w, "cls.output.weight", NUM_F32, 2, answers);
    CHECK_OK(gguf_write_header(w, &e), e);
    for (uint64_t i = 0; i < g.tensors.n; i++) {
        const tensor *x = &g.tensors.at[i];
        if (is_table(x->name)) {
            float scale = 0.1f * (v->scale > 0 ? v->scale : 1);
            write_table(w, x->ne[0] * (uint64_t)n_pieces, v->seed + i, scale);
        } else if (v->nan_tensor && !strcmp(x->name, v->nan_tensor)) {
            float bad = NAN;
            CHECK_OK(gguf_write_data(w, &bad, sizeof bad, &e), e);
            CHECK_OK(gguf_write_data(w, x->bytes + 4, x->n_bytes - 4, &e), e);
        } else {
            CHECK_OK(gguf_write_data(w, x->bytes, x->n_bytes, &e), e);
        }
    }
    if (matrix)
        write_table(w, 2 * answers[0], v->seed + 1000, 1);
    CHECK_OK(gguf_commit(w, &e), e);
    if (t)
        toy_free(t);
    return path;
}

carat_model *toy_model_open(const toy_model_file *v, const carat_model_options *opt)
{
    carat_model *m;
    err e = {0};
    CHECK_OK(carat_model_open(toy_model_write(v), opt, &m, &e), e);
    return m;
}

int32_t toy_n_vocab(const carat_model *m)
{
    carat_model_info info;
    carat_model_get_info(m, &info);
    return info.n_vocab;
}

void toy_random_ids(const carat_model *m, int32_t *ids, int64_t n, uint64_t seed)
{
    for (int64_t i = 0; i < n; i++)
        ids[i] = (int32_t)rng_below(&seed, (uint64_t)toy_n_vocab(m));
}
