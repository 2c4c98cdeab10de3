/* laguna.c - Laguna's entry in the table of families. */
#include "text/laguna.h"
#include "text/split.h"

static const tokenizer_name tokenizers[] = {
    {"gpt2", "laguna", VOCAB_BYTES, split_laguna, split_laguna_steps, NEEDS_MERGES}, {0}};

/* The special pieces at their ids, for made-up vocabularies. Those of the ids in between are not
 * published in words; they are reserved here. */
#define C(piece) {piece, TOKEN_CONTROL}
#define U(piece) {piece, TOKEN_USER_DEFINED}
#define BETWEEN(piece) {"\xE3\x80\x88|" piece "|\xE3\x80\x89", TOKEN_CONTROL}

static const special_piece special[] = {
    BETWEEN("RESERVED_0"),  BETWEEN("CODE_START"),  BETWEEN("EOS"),         BETWEEN("CODE_END"),
    BETWEEN("RESERVED_4"),  BETWEEN("RESERVED_5"),  BETWEEN("RESERVED_6"),  BETWEEN("RESERVED_7"),
    BETWEEN("RESERVED_8"),  BETWEEN("PAD"),         BETWEEN("RESERVED_10"), BETWEEN("RESERVED_11"),
    BETWEEN("MASK"),        BETWEEN("RESERVED_13"), BETWEEN("RESERVED_14"), BETWEEN("RESERVED_15"),
    BETWEEN("RESERVED_16"), BETWEEN("RESERVED_17"), U("<think>"),           U("</think>"),
    BETWEEN("RESERVED_20"), BETWEEN("RESERVED_21"), BETWEEN("RESERVED_22"), U("<assistant>"),
    C("</assistant>"),      U("<tool_call>"),       U("</tool_call>"),      {0}};

static const made_words made[] = {
    {"laguna", "gpt2", "laguna", special, 0,
     "{# \xE3\x80\x88|EOS|\xE3\x80\x89 <assistant> <tool_response> <arg_key> #}"},
    {0}};

const text_family laguna_text = {
    .archs = STRINGS("laguna"),
    .name = "Laguna",
    .model_types = STRINGS("laguna"),
    .tokenizers = tokenizers,
    .bos = LAGUNA_EOS,
    .eos = LAGUNA_EOS,
    /* Many files name only the first, and some give the second an ordinary type. */
    .ends = STRINGS(LAGUNA_EOS, "</assistant>"),
    .end_texts = STRINGS("</assistant>"),
    .ends_not = STRINGS(NULL),
    .shown = STRINGS("<think>", "</think>", "<tool_call>", "</tool_call>"),
    .media = STRINGS(NULL),
    .made = made,
    .turn_open = "<assistant>",
    .turn_close = "</assistant>",
    .recognise = laguna_recognise,
    .render = laguna_render};
