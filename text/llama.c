/* llama.c - Llama 3's entry in the table of families.
 *
 * Llama 2 and Mistral have other tokenizers and formats: mistral.c.
 */
#include "text/llama.h"
#include "text/split.h"

#define TURN_END "<|eot_id|>"

static const tokenizer_name tokenizers[] = {{"gpt2", "llama-bpe", VOCAB_BYTES, split_llama3,
                                             split_llama3_steps, NEEDS_MERGES | WHOLE_WORDS},
                                            {0}};

/* The first special pieces, which are followed by reserved ones. */
static const special_piece special[] = {{"<|begin_of_text|>", TOKEN_CONTROL},
                                        {"<|end_of_text|>", TOKEN_CONTROL},
                                        {"<|reserved_special_token_0|>", TOKEN_CONTROL},
                                        {"<|reserved_special_token_1|>", TOKEN_CONTROL},
                                        {"<|finetune_right_pad_id|>", TOKEN_CONTROL},
                                        {"<|reserved_special_token_2|>", TOKEN_CONTROL},
                                        {"<|start_header_id|>", TOKEN_CONTROL},
                                        {"<|end_header_id|>", TOKEN_CONTROL},
                                        {"<|eom_id|>", TOKEN_CONTROL},
                                        {"<|eot_id|>", TOKEN_CONTROL},
                                        {"<|python_tag|>", TOKEN_CONTROL},
                                        {0}};
static const made_words made[] = {
    {"llama", "gpt2", "llama-bpe", special, 128000,
     "{# <|start_header_id|> message['content'] | trim + '<|eot_id|>' \"Cutting Knowledge Date: "
     "December 2023 #}"},
    {0}};

const text_family llama_text = {.archs = STRINGS("llama"),
                                .name = "Llama",
                                .model_types = STRINGS("llama", "mistral"),
                                .tokenizers = tokenizers,
                                .bos = "<|begin_of_text|>",
                                .eos = TURN_END,
                                .pad = "<|finetune_right_pad_id|>",
                                .bos_always = true, /* files do not state it */
                                .ends = STRINGS(TURN_END, "<|eom_id|>", "<|end_of_text|>"),
                                .ends_not = STRINGS(NULL),
                                .shown = STRINGS("<|python_tag|>"),
                                .media = STRINGS(NULL),
                                .made = made,
                                .turn_open = "<|start_header_id|>",
                                .turn_close = TURN_END,
                                .recognise = llama_recognise,
                                .render = llama_render};
