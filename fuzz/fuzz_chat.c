/* fuzz_chat.c - requests to prompts.
 *
 *     options | messages | 0 | tools
 *
 * A request is refused with a sentence, or becomes a prompt: valid UTF-8, covered by its segments
 * without gap or overlap, with one BOS at its begin if the family has one, and encoded so that
 * content yields no control token. The bytes are also tried as a template to recognise.
 */
#include "fuzz/fuzz.h"
#include "tests/vocab_parts.h"
#include "text/chat.h"
#include "text/laguna.h"
#include "text/gpt_oss.h"
#include "text/llama.h"
#include "text/mistral.h"
#include "text/qwen.h"
#include "base/utf8.h"

#include <string.h>

static vocab *small_vocab(void)
{
    static const char *const markers[] = {"<bos>",  "<|turn>",      "<turn|>",    "<|channel>",
                                          "<|\"|>", "<|im_start|>", "<assistant>"};
    vocab_builder *b;
    vocab_settings s = gemma_settings();
    vocab *v = NULL;
    err e = {0};
    if (vocab_begin(&b, 7 + 256 + 2, 1, &e))
        return NULL;
    for (int i = 0; i < 7; i++)
        vocab_add_token(b, markers[i], strlen(markers[i]),
                        i < 3 || i > 4 ? TOKEN_CONTROL : TOKEN_USER_DEFINED);
    add_byte_pieces(b);
    vocab_add_token(b, "\n", 1, TOKEN_NORMAL);
    vocab_add_token(b, "\n\n", 2, TOKEN_NORMAL);
    vocab_add_merge(b, "\n \n", 3);
    fuzz_check(!vocab_finish(b, &s, &v, &e), e.text);
    return v;
}

/* Markers spelled out in literal segments. */
static int64_t count_marks(const chat_prompt *p, const char *mark)
{
    int64_t count = 0;
    size_t n = strlen(mark);
    for (size_t i = 0; i < p->n_segments; i++) {
        const chat_segment *s = &p->segment[i];
        for (size_t k = 0; s->literal && k + n <= s->n; k++)
            count += !memcmp(p->text.at + s->at + k, mark, n);
    }
    return count;
}

static void prompt_holds(const chat_prompt *p, const vocab *v)
{
    size_t at = 0;
    id_list ids = {0};
    err e = {0};
    static const char *const marks[] = {"<|turn>", "<|\"|>", "<|im_start|>", "<assistant>"};
    static const int32_t mark_ids[] = {1, 4, 5, 6};
    int64_t counts[4] = {0};
    const char *bos = p->family->bos_never ? NULL : p->family->bos;
    for (size_t i = 0; i < p->n_segments; i++) {
        fuzz_check(p->segment[i].at == at && p->segment[i].n, "segments do not tile");
        at += p->segment[i].n;
    }
    fuzz_check(at == p->text.n, "segments do not tile");
    fuzz_check(utf8_valid(str_text(&p->text), p->text.n), "not UTF-8");
    fuzz_check(!bos || !strncmp(str_text(&p->text), bos, strlen(bos)), "no BOS");
    fuzz_check(!chat_tokenize(v, p, false, &ids, &e), e.text);
    fuzz_check(!bos || (ids.n && ids.at[0] == vocab_bos(v)), "no BOS id");
    for (int64_t i = 0; i < ids.n; i++) {
        fuzz_check(!i || ids.at[i] != vocab_bos(v), "two BOS");
        for (int k = 0; k < 4; k++)
            counts[k] += ids.at[i] == mark_ids[k];
    }
    for (int k = 0; k < 4; k++)
        fuzz_check(counts[k] == count_marks(p, marks[k]), "a mark was smuggled in");
    int64_t n_sounds = count_marks(p, "<|audio|>");
    fuzz_check(n_sounds == p->n_sounds, "placeholders that are no sounds");
    fuzz_check(count_marks(p, "<|image|>") + count_marks(p, "<|image_pad|>") + n_sounds ==
                   p->n_images,
               "placeholders that are no images");
    ids.n = 0;
    fuzz_check(!chat_tokenize(v, p, true, &ids, &e), e.text);
    id_list_free(&ids);
}

static const chat_format *format_of(int i)
{
    i %= N_GEMMA4_FORMATS + N_QWEN_FORMATS + N_LAGUNA_FORMATS + N_MISTRAL_FORMATS +
         N_LLAMA_FORMATS + 1;
    if (i < N_GEMMA4_FORMATS)
        return &gemma4_formats[i];
    i -= N_GEMMA4_FORMATS;
    if (i < N_QWEN_FORMATS)
        return &qwen_formats[i];
    i -= N_QWEN_FORMATS;
    if (i < N_LAGUNA_FORMATS)
        return &laguna_formats[i];
    i -= N_LAGUNA_FORMATS;
    if (i < N_MISTRAL_FORMATS)
        return &mistral_formats[i];
    i -= N_MISTRAL_FORMATS;
    return i < N_LLAMA_FORMATS ? &llama_formats[i] : &harmony_format;
}

static void try_conversation(const uint8_t *data, size_t size)
{
    static vocab *v;
    if (!v)
        v = small_vocab();
    if (!size || !v)
        return;
    uint8_t flags = *data++;
    const char *m = (const char *)data, *cut = memchr(data, 0, --size);
    size_t n = cut ? (size_t)(cut - m) : size;
    carat_chat_options opt = {
        .thinking = flags & 1, .preserve_thinking = flags & 2, .no_generation_prompt = flags & 4};
    chat_prompt p;
    err e = {0};
    for (const text_family *const *f = text_families; *f; f++)
        chat_format_of(*f, m, size);
    status st = chat_render(format_of(flags >> 3), m, n, cut ? cut + 1 : NULL,
                            cut ? size - n - 1 : 0, &opt, &p, &e);
    if (st)
        fuzz_check(*e.text && !p.text.n, "refused without a sentence");
    else
        prompt_holds(&p, v);
    chat_prompt_free(&p);
}

FUZZ(chat)
{
    try_conversation(data, n);
}
