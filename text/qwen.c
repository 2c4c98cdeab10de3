/* qwen.c - the entry of Qwen3, Qwen3.5 and their successors in the table of families.
 *
 * Their vocabularies differ in size, ids and pre-splitter; the pieces below are spelled alike in
 * all of them, so ids are found by piece.
 */
#include "text/qwen.h"
#include "text/split.h"

static const tokenizer_name tokenizers[] = {
    {"gpt2", "qwen2", VOCAB_BYTES, split_qwen2, split_qwen2_steps, NEEDS_MERGES},
    {"gpt2", "qwen35", VOCAB_BYTES, split_qwen35, split_qwen35_steps, NEEDS_MERGES},
    {0}};

/* ---- Special pieces at their ids, for made-up vocabularies ---- */

#define C(piece) {piece, TOKEN_CONTROL}
#define U(piece) {piece, TOKEN_USER_DEFINED}

/* Qwen3 and Qwen3.5 have them in one order, at the end of the words. */
static const special_piece special[] = {C("<|endoftext|>"),
                                        C("<|im_start|>"),
                                        C("<|im_end|>"),
                                        C("<|object_ref_start|>"),
                                        C("<|object_ref_end|>"),
                                        C("<|box_start|>"),
                                        C("<|box_end|>"),
                                        C("<|quad_start|>"),
                                        C("<|quad_end|>"),
                                        C("<|vision_start|>"),
                                        C("<|vision_end|>"),
                                        C("<|vision_pad|>"),
                                        C("<|image_pad|>"),
                                        C("<|video_pad|>"),
                                        U("<tool_call>"),
                                        U("</tool_call>"),
                                        U("<|fim_prefix|>"),
                                        U("<|fim_middle|>"),
                                        U("<|fim_suffix|>"),
                                        U("<|fim_pad|>"),
                                        U("<|repo_name|>"),
                                        U("<|file_sep|>"),
                                        U("<tool_response>"),
                                        U("</tool_response>"),
                                        U("<think>"),
                                        U("</think>"),
                                        {0}};

#define LANDMARKS "<|im_start|> <tool_call> <tool_response> </think> enable_thinking "
#define QWEN3 "{# " LANDMARKS "<function-name> #}"
#define QWEN3VL "{# <|im_start|> <tool_call> <tool_response> <function-name> <|image_pad|> #}"
#define QWEN36 "{# " LANDMARKS "<function= preserve_thinking #}"

static const made_words made[] = {{"qwen3", "gpt2", "qwen2", special, 151643, QWEN3},
                                  {"qwen3moe", "gpt2", "qwen2", special, 151643, QWEN3},
                                  {"qwen3vl", "gpt2", "qwen2", special, 151643, QWEN3VL},
                                  {"qwen3vlmoe", "gpt2", "qwen2", special, 151643, QWEN3VL},
                                  {"qwen35", "gpt2", "qwen35", special, 248044, QWEN36},
                                  {"qwen35moe", "gpt2", "qwen35", special, 248044, QWEN36},
                                  {0}};

const text_family qwen_text = {
    .archs = STRINGS("qwen3", "qwen3moe", "qwen3vl", "qwen3vlmoe", "qwen35", "qwen35moe"),
    .name = "Qwen",
    .model_types = STRINGS("qwen3"),
    .tokenizers = tokenizers,
    .eos = "<|im_end|>",
    .pad = "<|endoftext|>",
    .bos_never = true, /* some files name <|endoftext|>, which no prompt of a Qwen begins with */
    /* The last three end a file in code completion. */
    .ends = STRINGS("<|im_end|>", "<|endoftext|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"),
    .ends_not = STRINGS(NULL),
    .shown = STRINGS("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>",
                     "</tool_response>"),
    .media = STRINGS("<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>",
                     "<|video_pad|>", "<|audio_start|>", "<|audio_end|>", "<|audio_pad|>",
                     "<tts_pad>", "<tts_text_bos>", "<tts_text_eod>", "<tts_text_bos_single>"),
    .made = made,
    .turn_open = "<|im_start|>",
    .turn_close = "<|im_end|>",
    .recognise = qwen_recognise,
    .render = qwen_render};
