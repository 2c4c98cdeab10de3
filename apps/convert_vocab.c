/* convert_vocab.c - tokenizer.json and its neighbours to tokenizer.* keys.
 *
 * Token types follow llama.cpp: entries of added_tokens are control tokens if special, else
 * user-defined; seven markers that a reader of answers must see are user-defined always.
 */
#include "apps/convert_int.h"
#include "base/map.h"
#include "base/mem.h"

#include <inttypes.h>
#include <stdio.h>

enum { TYPE_NORMAL = 1, TYPE_UNKNOWN, TYPE_CONTROL, TYPE_USER_DEFINED, TYPE_UNUSED, TYPE_BYTE };
enum { TOKENS_MAX = 1 << 22 }; /* sixteen times the published vocabulary */

static const char *const visible[] = {"<|channel>",   "<channel|>",       "<|tool_call>",
                                      "<tool_call|>", "<|tool_response>", "<tool_response|>",
                                      "<|\"|>"};

static bool equals(gguf_string s, const char *text)
{
    return s.n == strlen(text) && !memcmp(s.at, text, (size_t)s.n);
}

/* <0x00> to <0xFF> */
static bool is_byte_piece(gguf_string s)
{
    unsigned v;
    char text[8];
    if (s.n != 6 || memcmp(s.at, "<0x", 3))
        return false;
    memcpy(text, s.at, 6);
    text[6] = 0;
    return sscanf(text, "<0x%2X>", &v) == 1 && text[5] == '>';
}

static int32_t type_of(gguf_string piece, bool added, bool special, const char *unk)
{
    for (size_t i = 0; i < sizeof visible / sizeof *visible; i++)
        if (equals(piece, visible[i]))
            return TYPE_USER_DEFINED;
    if (equals(piece, unk))
        return TYPE_UNKNOWN;
    if (is_byte_piece(piece))
        return TYPE_BYTE;
    return !added ? TYPE_NORMAL : special ? TYPE_CONTROL : TYPE_USER_DEFINED;
}

/* Room for tokens 0..id. */
static status grow(convert_vocab *v, json_int_t id, int32_t *cap, err *e)
{
    if (id < 0 || id >= TOKENS_MAX)
        return err_set(e, E_FORMAT,
                       "tokenizer.json: token id %" JSON_INTEGER_FORMAT " is out of range", id);
    if (id >= *cap) {
        int32_t n = *cap ? *cap : 4096;
        while (n <= id)
            n *= 2;
        gguf_string *p = mem_realloc(v->piece, (size_t)n, sizeof *p);
        if (p)
            v->piece = p;
        int32_t *t = mem_realloc(v->type, (size_t)n, sizeof *t);
        if (t)
            v->type = t;
        if (!p || !t)
            return err_memory(e, "the vocabulary", (size_t)n * sizeof *p);
        memset(v->piece + *cap, 0, (size_t)(n - *cap) * sizeof *p);
        memset(v->type + *cap, 0, (size_t)(n - *cap) * sizeof *t);
        *cap = n;
    }
    if (id >= v->n)
        v->n = (int32_t)id + 1;
    return OK;
}

static status read_pieces(convert_vocab *v, err *e)
{
    json_t *model = json_object_get(v->tokenizer, "model"), *token;
    json_t *vocab = json_object_get(model, "vocab");
    const json_t *added = json_object_get(v->tokenizer, "added_tokens");
    const char *kind = json_string_value(json_object_get(model, "type")), *text;
    const char *unk = json_string_value(json_object_get(model, "unk_token"));
    int32_t cap = 0;
    status st;
    unk = unk ? unk : "<unk>";
    if (!json_is_object(vocab) || (kind && strcmp(kind, "BPE") != 0))
        return err_set(e, E_UNSUPPORTED, "tokenizer.json: not a BPE vocabulary");
    json_object_foreach(vocab, text, token)
    {
        json_int_t id = json_is_integer(token) ? json_integer_value(token) : -1;
        gguf_string piece = {text, strlen(text)};
        if ((st = grow(v, id, &cap, e)))
            return st;
        if (v->type[id])
            return err_set(e, E_FORMAT, "tokenizer.json: two tokens have the id %" PRId64,
                           (int64_t)id);
        v->piece[id] = piece;
        v->type[id] = type_of(piece, false, false, unk);
    }
    for (size_t i = 0; i < json_array_size(added); i++) {
        json_t *a = json_array_get(added, i), *a_id = json_object_get(a, "id");
        json_t *content = json_object_get(a, "content");
        json_int_t id = json_is_integer(a_id) ? json_integer_value(a_id) : -1;
        if (!json_is_string(content))
            return err_set(e, E_FORMAT, "tokenizer.json: an entry of added_tokens has no content");
        if ((st = grow(v, id, &cap, e)))
            return st;
        gguf_string piece = {json_string_value(content), json_string_length(content)};
        if (v->type[id] &&
            (v->piece[id].n != piece.n || memcmp(v->piece[id].at, piece.at, (size_t)piece.n) != 0))
            return err_set(e, E_FORMAT, "tokenizer.json: two tokens have the id %" PRId64,
                           (int64_t)id);
        v->piece[id] = piece;
        v->type[id] = type_of(piece, true, json_is_true(json_object_get(a, "special")), unk);
    }
    return OK;
}

/* Merges are "left right" or ["left", "right"]; a space inside a piece would be misread. */
static status read_merges(convert_vocab *v, err *e)
{
    const json_t *list = json_object_get(json_object_get(v->tokenizer, "model"), "merges");
    size_t n = json_array_size(list);
    v->merge = arena_array(&v->mem, n, sizeof *v->merge);
    if (!v->merge)
        return err_memory(e, "the merges", n * sizeof *v->merge);
    for (size_t i = 0; i < n; i++) {
        json_t *m = json_array_get(list, i);
        const json_t *a = json_array_get(m, 0), *b = json_array_get(m, 1);
        gguf_string s = {json_string_value(m), json_string_length(m)};
        if (!s.at && json_array_size(m) == 2 && json_is_string(a) && json_is_string(b)) {
            size_t na = json_string_length(a), nb = json_string_length(b);
            char *p = arena_alloc(&v->mem, na + nb + 1);
            if (!p)
                return err_memory(e, "the merges", na + nb);
            memcpy(p, json_string_value(a), na);
            p[na] = ' ';
            memcpy(p + na + 1, json_string_value(b), nb);
            s = (gguf_string){p, na + nb + 1};
        }
        /* The first space after the first byte must be the only one. */
        const char *space = s.n > 2 ? memchr(s.at + 1, ' ', (size_t)s.n - 1) : NULL;
        if (!space || space == s.at + s.n - 1 ||
            memchr(space + 1, ' ', (size_t)(s.at + s.n - space - 1)))
            return err_set(e, E_FORMAT, "tokenizer.json: merge %zu is no pair of pieces", i);
        v->merge[i] = s;
    }
    v->n_merges = n;
    return OK;
}

/* chat_template.jinja, else chat_template of tokenizer_config.json or chat_template.json. */
static status read_template(convert_vocab *v, const char *dir, err *e)
{
    char path[4096];
    size_t n;
    json_t *extra = NULL;
    status st;
    snprintf(path, sizeof path, "%s/chat_template.jinja", dir);
    FILE *f = fopen(path, "re");
    if (f) {
        fclose(f);
        return file_read_all(path, 16 << 20, &v->template, &n, e);
    }
    const json_t *t = json_object_get(v->tokenizer_config, "chat_template");
    if (!t) {
        if ((st = convert_read_json(&extra, dir, "chat_template.json", false, e)))
            return st;
        t = json_object_get(extra, "chat_template");
    }
    for (size_t i = 0; json_is_array(t) && i < json_array_size(t); i++) {
        const json_t *one = json_array_get(t, i);
        const char *name = json_string_value(json_object_get(one, "name"));
        if (name && !strcmp(name, "default")) {
            t = json_object_get(one, "template");
            break;
        }
    }
    st = OK;
    if (json_is_string(t) && !(v->template = mem_strdup(json_string_value(t))))
        st = err_memory(e, "the chat template", json_string_length(t));
    json_decref(extra);
    return st;
}

status convert_vocab_read(convert_vocab *v, const char *dir, err *e)
{
    status st;
    if ((st = convert_read_json(&v->tokenizer, dir, "tokenizer.json", false, e)) ||
        (st = convert_read_json(&v->tokenizer_config, dir, "tokenizer_config.json", false, e)) ||
        (st = convert_read_json(&v->generation, dir, "generation_config.json", false, e)) ||
        (st = convert_read_json(&v->config, dir, "config.json", true, e)) ||
        (st = read_template(v, dir, e)))
        return st;
    if (v->tokenizer && ((st = read_pieces(v, e)) || (st = read_merges(v, e))))
        return st;
    return OK;
}

status convert_vocab_fit(convert_vocab *v, int32_t n, err *e)
{
    if (v->n > n)
        return err_set(e, E_FORMAT,
                       "tokenizer.json has %" PRId32 " tokens, the embedding only %" PRId32 " rows",
                       v->n, n);
    if (!(v->score = arena_array(&v->mem, (size_t)v->n, sizeof *v->score)))
        return err_memory(e, "the vocabulary", (size_t)v->n * sizeof *v->score);
    for (int32_t id = 0; id < v->n; id++) {
        v->score[id] = -1000; /* meaningless, but loaders want the array */
        if (v->type[id])
            continue;
        char name[32];
        int len = snprintf(name, sizeof name, "[PAD%" PRId32 "]", id);
        char *p = arena_strndup(&v->mem, name, (size_t)len);
        if (!p)
            return err_memory(e, "the vocabulary", (size_t)len);
        v->piece[id] = (gguf_string){p, (uint64_t)len};
        v->type[id] = TYPE_UNUSED;
    }
    return OK;
}

static int32_t find_piece(const convert_vocab *v, const char *text)
{
    for (int32_t id = 0; text && id < v->n; id++)
        if (equals(v->piece[id], text))
            return id;
    return -1;
}

/* "bos_token": "<bos>" or {"content": "<bos>"}; else the usual piece; -1 if the model has none. */
static int32_t named_token(const convert_vocab *v, const char *key, const char *usual)
{
    const json_t *t = json_object_get(v->tokenizer_config, key);
    const char *text = json_string_value(json_is_object(t) ? json_object_get(t, "content") : t);
    int32_t id = find_piece(v, text);
    return id >= 0 ? id : find_piece(v, usual);
}

static void put_id(gguf_writer *w, const char *key, int32_t id)
{
    if (id >= 0)
        gguf_put_u32(w, key, (uint32_t)id);
}

/* Every token that the generation's settings never want sampled; others than the vocabulary's own
 * cannot be. */
static status put_suppressed(const convert_vocab *v, gguf_writer *w, err *e)
{
    const json_t *list = json_object_get(v->generation, "suppress_tokens");
    size_t n = 0, n_list = json_array_size(list);
    if (!n_list)
        return OK;
    int32_t *ids = mem_calloc(n_list, sizeof *ids);
    if (!ids)
        return err_memory(e, "the suppressed tokens", n_list * sizeof *ids);
    for (size_t i = 0; i < n_list; i++) {
        const json_t *item = json_array_get(list, i);
        json_int_t id = json_is_integer(item) ? json_integer_value(item) : -1;
        if (id >= 0 && id < v->n)
            ids[n++] = (int32_t)id;
    }
    if (n)
        gguf_put_i32s(w, "tokenizer.ggml.suppress_tokens", ids, n);
    mem_free(ids);
    return OK;
}

static void put_ids(const convert_vocab *v, gguf_writer *w)
{
    const json_t *eos = json_object_get(v->generation, "eos_token_id");
    int32_t eos_id = named_token(v, "eos_token", "<eos>"), eot = find_piece(v, "<turn|>");
    put_id(w, "tokenizer.ggml.bos_token_id", named_token(v, "bos_token", "<bos>"));
    put_id(w, "tokenizer.ggml.eos_token_id", eos_id);
    put_id(w, "tokenizer.ggml.unknown_token_id", named_token(v, "unk_token", "<unk>"));
    put_id(w, "tokenizer.ggml.padding_token_id", named_token(v, "pad_token", "<pad>"));
    put_id(w, "tokenizer.ggml.mask_token_id", named_token(v, "mask_token", "<mask>"));
    /* The generation's list of ends has the end of a turn in it; name it for loaders that go by
     * ids. The rest of the list is found by text. */
    for (size_t i = 0; i < json_array_size(eos); i++)
        if (eot >= 0 && json_integer_value(json_array_get(eos, i)) == eot)
            put_id(w, "tokenizer.ggml.eot_token_id", eot);
}

static void put_sampling(const convert_vocab *v, gguf_writer *w)
{
    const json_t *top_k = json_object_get(v->generation, "top_k");
    const json_t *top_p = json_object_get(v->generation, "top_p");
    const json_t *temp = json_object_get(v->generation, "temperature");
    if (json_is_integer(top_k))
        gguf_put_i32(w, "general.sampling.top_k", (int32_t)json_integer_value(top_k));
    if (json_is_number(top_p))
        gguf_put_f32(w, "general.sampling.top_p", (float)json_number_value(top_p));
    if (json_is_number(temp))
        gguf_put_f32(w, "general.sampling.temp", (float)json_number_value(temp));
}

status convert_vocab_put(const convert_vocab *v, gguf_writer *w, err *e)
{
    put_sampling(v, w);
    if (!v->n) {
        gguf_put_string(w, "tokenizer.ggml.model", "no_vocab", 8);
        return OK;
    }
    gguf_put_string(w, "tokenizer.ggml.model", "gemma4", 6);
    gguf_put_strings(w, "tokenizer.ggml.tokens", v->piece, (uint64_t)v->n);
    gguf_put_f32s(w, "tokenizer.ggml.scores", v->score, (uint64_t)v->n);
    gguf_put_i32s(w, "tokenizer.ggml.token_type", v->type, (uint64_t)v->n);
    gguf_put_strings(w, "tokenizer.ggml.merges", v->merge, v->n_merges);
    put_ids(v, w);
    gguf_put_bool(w, "tokenizer.ggml.add_bos_token", true);
    gguf_put_bool(w, "tokenizer.ggml.add_space_prefix", false);
    if (v->template)
        gguf_put_string(w, "tokenizer.chat_template", v->template, strlen(v->template));
    return put_suppressed(v, w, e);
}

void convert_vocab_free(convert_vocab *v)
{
    json_decref(v->tokenizer);
    json_decref(v->tokenizer_config);
    json_decref(v->generation);
    json_decref(v->config);
    mem_free(v->template);
    mem_free(v->piece);
    mem_free(v->type);
    arena_free(&v->mem);
    *v = (convert_vocab){0};
}
