/* laguna.c - Laguna's entry in the table of families. */
#include "text/laguna.h"
#include "text/split.h"

static const tokenizer_name tokenizers[] = {
    {"gpt2", "laguna", VOCAB_BYTES, split_laguna, split_laguna_steps, NEEDS_MERGES}, {0}};

#define LIST(...) ((const char *const[]){__VA_ARGS__, NULL})

const text_family laguna_text = {
    .archs = LIST("laguna"),
    .name = "Laguna",
    .model_types = LIST("laguna"),
    .tokenizers = tokenizers,
    .bos = LAGUNA_EOS,
    .eos = LAGUNA_EOS,
    /* Many files name only the first, and some give the second an ordinary type. */
    .ends = LIST(LAGUNA_EOS, "</assistant>"),
    .end_texts = LIST("</assistant>"),
    .ends_not = LIST(NULL),
    .shown = LIST("<think>", "</think>", "<tool_call>", "</tool_call>"),
    .media = LIST(NULL),
    .made = laguna_made,
    .turn_open = "<assistant>",
    .turn_close = "</assistant>",
    .recognise = laguna_recognise,
    .render = laguna_render};
