/* fuzz_tokenizer_json.c - any bytes as tokenizer.json of a checkpoint, from JSON to a vocabulary.
 *
 * The first byte chooses the family. The file is refused with a sentence, or the pieces and merges
 * that a new model file would get make a vocabulary, or are refused with a sentence; a vocabulary
 * encodes the file's own beginning.
 */
#include "fuzz/fuzz.h"
#include "apps/convert_int.h"
#include "text/gemma4.h"
#include "text/laguna.h"
#include "text/qwen.h"
#include "text/vocab.h"

enum { DEPTH_MAX = 32, TOKENS_MOST = 1024, TEXT_MOST = 256 };

static void load(const convert_vocab *v, const uint8_t *data, size_t n)
{
    const vocab_settings set = {v->family, v->kind->model, v->kind->pre, -1,   -1, -1, -1,
                                -1,        false,          NULL,         false};
    vocab_builder *b;
    vocab *made = NULL;
    id_list ids = {0};
    err e = {0};
    if (vocab_begin(&b, v->n, (int64_t)v->n_merges, &e))
        return;
    for (int32_t i = 0; i < v->n; i++)
        vocab_add_token(b, v->piece[i].at, (size_t)v->piece[i].n, v->type[i]);
    for (uint64_t i = 0; i < v->n_merges; i++)
        vocab_add_merge(b, v->merge[i].at, (size_t)v->merge[i].n);
    if (vocab_finish(b, &set, &made, &e)) {
        fuzz_check(e.text[0] != 0, "a failure without a sentence");
        return;
    }
    status st = vocab_encode(made, (const char *)data, n < TEXT_MOST ? n : TEXT_MOST, SPECIAL_ALL,
                             &ids, &e);
    fuzz_check(!st, "a vocabulary that does not encode");
    for (int64_t i = 0; i < ids.n; i++)
        fuzz_check(ids.at[i] >= 0 && ids.at[i] < v->n, "an id that is none");
    id_list_free(&ids);
    vocab_close(made);
}

FUZZ(tokenizer_json)
{
    static const text_family *const families[] = {&gemma4_text, &qwen_text, &laguna_text};
    convert_vocab v = {.most = TOKENS_MOST};
    err e = {0};
    if (n < 1)
        return;
    v.family = families[data[0] % 3];
    status st = jtree_parse((const char *)data + 1, n - 1, "tokenizer.json", DEPTH_MAX, &v.mem,
                            &v.tokenizer, &e);
    st = st ? st : convert_vocab_take(&v, &e);
    st = st ? st : convert_vocab_fit(&v, TOKENS_MOST, &e);
    fuzz_check(!st == !e.status && (!st || e.text[0]), "a failure without a sentence");
    if (!st && v.n)
        load(&v, data, n);
    convert_vocab_free(&v);
}
