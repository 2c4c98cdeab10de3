/* mistral.c - the entry of Llama 2 and Mistral in the table of families.
 *
 * Their files are of the architecture llama, as Llama 3's are; the tokenizer's name tells them
 * apart. Llama 2 and Mistral 7B have SentencePiece's pieces with scores, later Mistral models
 * Tekken's bytes.
 */
#include "text/mistral.h"
#include "text/split.h"

/* Files with scores may have merges beside them, which were made of the scores. */
static const tokenizer_name tokenizers[] = {
    {"llama", NULL, VOCAB_CHARS, NULL, NULL, BY_SCORE | SPACE_FIRST},
    {"gpt2", "tekken", VOCAB_BYTES, split_tekken, split_tekken_steps, NEEDS_MERGES | WHOLE_WORDS},
    {0}};

const text_family mistral_text = {
    .archs = STRINGS("llama", "mistral3"),
    .name = "Llama 2 and Mistral",
    .model_types = STRINGS("llama", "mistral", "mixtral", "ministral"),
    .tokenizers = tokenizers,
    .bos = "<s>",
    .eos = "</s>",
    .unk = "<unk>",
    .pad = "<pad>",
    .bos_always = true, /* older files do not state it */
    .ends = STRINGS("</s>"),
    .ends_not = STRINGS(NULL),
    .shown = STRINGS("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]", "[THINK]", "[/THINK]"),
    .media = STRINGS("[IMG]", "[IMG_BREAK]", "[IMG_END]"),
    .turn_open = "[INST]",
    .turn_close = "</s>",
    .recognise = mistral_recognise,
    .render = mistral_render};
