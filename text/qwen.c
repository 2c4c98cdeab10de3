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

#define LIST(...) ((const char *const[]){__VA_ARGS__, NULL})

const text_family qwen_text = {
    .archs = LIST("qwen3", "qwen3moe", "qwen3vl", "qwen3vlmoe", "qwen35", "qwen35moe"),
    .name = "Qwen",
    .model_types = LIST("qwen3"),
    .tokenizers = tokenizers,
    .eos = "<|im_end|>",
    .pad = "<|endoftext|>",
    .bos_never = true, /* some files name <|endoftext|>, which no prompt of a Qwen begins with */
    /* The last three end a file in code completion. */
    .ends = LIST("<|im_end|>", "<|endoftext|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"),
    .ends_not = LIST(NULL),
    .shown = LIST("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>",
                  "</tool_response>"),
    .media = LIST("<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>",
                  "<|video_pad|>", "<|audio_start|>", "<|audio_end|>", "<|audio_pad|>", "<tts_pad>",
                  "<tts_text_bos>", "<tts_text_eod>", "<tts_text_bos_single>"),
    .made = qwen_made,
    .turn_open = "<|im_start|>",
    .turn_close = "<|im_end|>",
    .recognise = qwen_recognise,
    .render = qwen_render};
