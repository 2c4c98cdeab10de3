/* inspect_words.c - what carat inspect says of a model's vocabulary. */
#include "apps/inspect_int.h"
#include "apps/term.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static void copy_name(const gguf *g, const char *key, char *out, size_t cap)
{
    gguf_string s;
    out[0] = 0;
    if (gguf_get_string(g, key, &s))
        snprintf(out, cap, "%.*s", s.n < cap ? (int)s.n : (int)cap - 1, s.at);
}

void inspect_words_read(inspect_words *w, const gguf *g, const carat_model *m)
{
    carat_model_info info;
    const gguf_value *merges = gguf_find(g, "tokenizer.ggml.merges");
    *w = (inspect_words){.bos = -1};
    if (!m)
        return;
    carat_model_get_info(m, &info);
    if (!info.has_vocab)
        return;
    const gguf_value *tokens = gguf_find(g, "tokenizer.ggml.tokens");
    w->known = true;
    w->chat = info.has_chat;
    w->n_tokens = tokens ? tokens->count : 0;
    w->n_merges = merges ? merges->count : 0;
    copy_name(g, "tokenizer.ggml.model", w->model, sizeof w->model);
    copy_name(g, "tokenizer.ggml.pre", w->pre, sizeof w->pre);
    w->bos = carat_token_bos(m);
    for (int32_t id = 0; id < info.n_vocab; id++)
        if (carat_token_is_eog(m, id) && w->n_ends++ < INSPECT_ENDS)
            w->end[w->n_ends - 1] = id;
    w->m = m;
}

static void put_token(const inspect_words *w, int32_t id)
{
    const char *text;
    int32_t n = carat_token_bytes(w->m, id, true, &text);
    term_put(stdout, text, n > 0 ? (size_t)n : 0);
    printf(" (%" PRId32 ")", id);
}

void inspect_words_put(const inspect_words *w)
{
    if (!w->known)
        return;
    fputs("\nText\n  tokenizer        ", stdout);
    term_put_name(stdout, w->model, strlen(w->model), 0);
    if (*w->pre) {
        fputs(", pre-splitter ", stdout);
        term_put_name(stdout, w->pre, strlen(w->pre), 0);
    }
    printf(", %" PRIu64 " tokens, %" PRIu64 " merges\n  prompts begin    ", w->n_tokens,
           w->n_merges);
    if (w->bos >= 0) {
        fputs("with ", stdout);
        put_token(w, w->bos);
    } else {
        fputs("as they are", stdout);
    }
    fputs("\n  answers end at   ", stdout);
    for (int32_t i = 0; i < w->n_ends && i < INSPECT_ENDS; i++) {
        if (i)
            fputs(", ", stdout);
        put_token(w, w->end[i]);
    }
    if (w->n_ends > INSPECT_ENDS)
        printf(" and %" PRId32 " more", w->n_ends - INSPECT_ENDS);
    printf("%s\n  chat template    %s\n", w->n_ends ? "" : "no token",
           w->chat ? "known" : "none that carat knows: prompts are plain text");
}

json_t *inspect_words_json(const inspect_words *w)
{
    if (!w->known)
        return json_null();
    json_t *ends = json_array();
    for (int32_t i = 0; i < w->n_ends && i < INSPECT_ENDS; i++)
        json_array_append_new(ends, json_integer(w->end[i]));
    return json_pack(
        "{s:o, s:o, s:I, s:I, s:o, s:o, s:b}", "model", json_lossy_text(w->model, strlen(w->model)),
        "pre", json_lossy_text(w->pre, strlen(w->pre)), "tokens", (json_int_t)w->n_tokens, "merges",
        (json_int_t)w->n_merges, "begin", w->bos >= 0 ? json_integer(w->bos) : json_null(), "ends",
        ends, "chat", (int)w->chat);
}
