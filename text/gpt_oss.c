/* gpt_oss.c - gpt-oss' entry in the table of families. */
#include "text/gpt_oss.h"
#include "text/split.h"

static const tokenizer_name tokenizers[] = {
    {"gpt2", "gpt-4o", VOCAB_BYTES, split_gpt4o, split_gpt4o_steps, NEEDS_MERGES | WHOLE_WORDS},
    {0}};

/* The special pieces of o200k_harmony, at the end of the words. */
#define C(piece) {piece, TOKEN_CONTROL}
static const special_piece special[] = {C("<|startoftext|>"),
                                        C("<|endoftext|>"),
                                        C("<|reserved_200000|>"),
                                        C("<|reserved_200001|>"),
                                        C("<|return|>"),
                                        C("<|constrain|>"),
                                        C("<|reserved_200004|>"),
                                        C("<|channel|>"),
                                        C("<|start|>"),
                                        C("<|end|>"),
                                        C("<|message|>"),
                                        C("<|reserved_200009|>"),
                                        C("<|reserved_200010|>"),
                                        C("<|reserved_200011|>"),
                                        C("<|call|>"),
                                        C("<|reserved_200013|>"),
                                        C("<|reserved_200014|>"),
                                        C("<|reserved_200015|>"),
                                        C("<|reserved_200016|>"),
                                        C("<|reserved_200017|>"),
                                        C("<|endofprompt|>"),
                                        {0}};
static const made_words made[] = {
    {"gpt-oss", "gpt2", "gpt-4o", special, 199998,
     "{# <|channel|>analysis<|message|> <|call|> render_typescript_type #}"},
    {0}};

const text_family gpt_oss_text = {
    .archs = STRINGS("gpt-oss"),
    .name = "gpt-oss",
    .model_types = STRINGS("gpt_oss"),
    .tokenizers = tokenizers,
    .bos = "<|startoftext|>",
    .eos = "<|return|>",
    .pad = "<|endoftext|>",
    .bos_never = true, /* files name one, which no prompt of gpt-oss begins with */
    .ends = STRINGS("<|return|>", "<|call|>", "<|endoftext|>"),
    .ends_not = STRINGS("<|end|>"), /* ends a message of an answer; files may name it */
    .shown = STRINGS("<|channel|>", "<|start|>", "<|message|>", "<|constrain|>", "<|end|>"),
    .media = STRINGS(NULL),
    .made = made,
    .turn_open = "<|start|>",
    .turn_close = "<|return|>",
    .recognise = harmony_recognise,
    .render = harmony_render};
