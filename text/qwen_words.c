/* qwen_words.c - the special pieces of Qwen's vocabularies at their ids, for made-up ones. */
#include "text/qwen.h"

#define C(piece)                                                                                   \
    {                                                                                              \
        piece, TOKEN_CONTROL                                                                       \
    }
#define U(piece)                                                                                   \
    {                                                                                              \
        piece, TOKEN_USER_DEFINED                                                                  \
    }

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

const made_words qwen_made[] = {{"qwen3", "gpt2", "qwen2", special, 151643, QWEN3},
                                {"qwen3moe", "gpt2", "qwen2", special, 151643, QWEN3},
                                {"qwen3vl", "gpt2", "qwen2", special, 151643, QWEN3VL},
                                {"qwen3vlmoe", "gpt2", "qwen2", special, 151643, QWEN3VL},
                                {"qwen35", "gpt2", "qwen35", special, 248044, QWEN36},
                                {"qwen35moe", "gpt2", "qwen35", special, 248044, QWEN36},
                                {0}};
