/* text_file.c - see text_file.h. */
#include "engine/text_file.h"
#include "base/mem.h"

#include <string.h>

static int32_t file_token(const gguf *g, const char *key)
{
    int64_t id;
    return gguf_get_i64(g, key, &id) && id >= 0 && id <= INT32_MAX ? (int32_t)id : -1;
}

static status check_array(const gguf *g, const char *key, gguf_kind item, uint64_t count,
                          const gguf_value **out, err *e)
{
    const gguf_value *v = gguf_find(g, key);
    bool fits = !v || (v->kind == GGUF_ARRAY && (item == GGUF_STRING) == (v->item == GGUF_STRING));
    if (!fits)
        return err_set(e, E_FORMAT, "%s: %s is not an array of %s", g->path, key,
                       item == GGUF_STRING ? "strings" : "numbers");
    if (v && count && v->count != count)
        return err_set(e, E_FORMAT, "%s: %s has %llu entries, and there are %llu tokens", g->path,
                       key, (unsigned long long)v->count, (unsigned long long)count);
    *out = v;
    return OK;
}

static status build_vocab(const vocab_settings *set, const gguf_value *tokens,
                          const gguf_value *types, const gguf_value *merges, vocab **v, err *e)
{
    vocab_builder *b;
    gguf_string piece;
    uint64_t at = 0;
    status st = vocab_begin(&b, (int64_t)tokens->count, merges ? (int64_t)merges->count : 0, e);
    if (st)
        return st;
    for (uint64_t i = 0; i < tokens->count && gguf_next_string(tokens, &at, &piece); i++) {
        int64_t type = TOKEN_NORMAL;
        if (types)
            gguf_item_i64(types, i, &type);
        vocab_add_token(b, piece.at, piece.n, type);
    }
    at = 0;
    while (merges && gguf_next_string(merges, &at, &piece))
        vocab_add_merge(b, piece.at, piece.n);
    return vocab_finish(b, set, v, e);
}

/* *score: mem_free. */
static status read_scores(const gguf_value *v, float **score, err *e)
{
    double x;
    if (!(*score = mem_calloc((size_t)v->count + 1, sizeof **score)))
        return err_memory(e, "the scores of a vocabulary", (size_t)v->count * sizeof **score);
    for (uint64_t i = 0; i < v->count; i++)
        (*score)[i] = gguf_item_f64(v, i, &x) ? (float)x : 0;
    return OK;
}

static bool flag_of(const gguf *g, const char *key)
{
    bool value = false;
    gguf_get_bool(g, key, &value);
    return value;
}

status text_from_gguf(const gguf *g, int32_t n_vocab, vocab **v, const chat_format **chat, err *e)
{
    const gguf_value *tokens, *types, *merges, *scores = NULL;
    float *score = NULL;
    gguf_string arch = {0}, kind, pre = {0}, template;
    char *model_name = NULL, *pre_name = NULL;
    bool space;
    status st;

    *v = NULL;
    *chat = NULL;

    if (!gguf_get_string(g, "tokenizer.ggml.model", &kind) ||
        (kind.n == 8 && !memcmp(kind.at, "no_vocab", 8)))
        return OK;
    if ((st = check_array(g, "tokenizer.ggml.tokens", GGUF_STRING, 0, &tokens, e)))
        return st;
    if (!tokens)
        return err_set(e, E_FORMAT, "%s: names a tokenizer and has no tokenizer.ggml.tokens",
                       g->path);
    if (tokens->count > (uint64_t)n_vocab)
        return err_set(e, E_FORMAT, "%s: %llu tokens, and the embedding has %d rows", g->path,
                       (unsigned long long)tokens->count, n_vocab);
    if ((st = check_array(g, "tokenizer.ggml.token_type", GGUF_I32, tokens->count, &types, e)) ||
        (st = check_array(g, "tokenizer.ggml.merges", GGUF_STRING, 0, &merges, e)) ||
        (st = check_array(g, "tokenizer.ggml.scores", GGUF_F32, tokens->count, &scores, e)))
        return st;
    model_name = mem_strndup(kind.at, kind.n);
    if (gguf_get_string(g, "tokenizer.ggml.pre", &pre))
        pre_name = mem_strndup(pre.at, pre.n);
    if (!model_name || (pre.n && !pre_name)) {
        st = err_memory(e, "the vocabulary", kind.n);
        goto out;
    }
    gguf_get_string(g, "general.architecture", &arch);
    const text_family *family = text_family_for(arch.at, arch.n, model_name, pre_name);
    if (!family) {
        st = err_set(e, E_UNSUPPORTED, "%s: carat knows no tokenizer of the architecture '%.*s'",
                     g->path, (int)(arch.n < 64 ? arch.n : 64), arch.n ? arch.at : "");
        goto out;
    }
    if (scores && (st = read_scores(scores, &score, e)))
        goto out;
    vocab_settings set = {
        .family = family,
        .score = score,
        .model = model_name,
        .pre = pre_name,
        .bos = file_token(g, "tokenizer.ggml.bos_token_id"),
        .eos = file_token(g, "tokenizer.ggml.eos_token_id"),
        .eot = file_token(g, "tokenizer.ggml.eot_token_id"),
        .unk = file_token(g, "tokenizer.ggml.unknown_token_id"),
        .pad = file_token(g, "tokenizer.ggml.padding_token_id"),
        .add_bos = flag_of(g, "tokenizer.ggml.add_bos_token"),
        .no_space_first = gguf_get_bool(g, "tokenizer.ggml.add_space_prefix", &space) && !space};
    err why = {0};
    if (build_vocab(&set, tokens, types, merges, v, &why)) {
        st = err_set(e, why.status, "%s: %s", g->path, why.text);
        goto out;
    }
    if (gguf_get_string(g, "tokenizer.chat_template", &template))
        *chat = chat_format_of(family, template.at, template.n);
out:
    mem_free(score);
    mem_free(pre_name);
    mem_free(model_name);
    return st;
}
