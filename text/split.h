/* split.h - the pre-splitters of byte-level vocabularies: texts to words. No merge crosses the end
 * of a word. A family's entry names its pre-splitter (tokenizer_name in family.h). */
#ifndef TEXT_SPLIT_H
#define TEXT_SPLIT_H

#include "text/family.h"

/* Each returns the length of the word that begins at s[0], n > 0; s is the rest of the text. Linear
 * in the length of the text, over all of its words. A byte that is not UTF-8 counts as a character
 * that is no letter, mark, number or space. */
size_t split_qwen2(const char *s, size_t n);  /* Qwen2, Qwen3 */
size_t split_llama3(const char *s, size_t n); /* Llama 3 */
size_t split_gpt4o(const char *s, size_t n);  /* GPT-4o, gpt-oss: words end before upper case */
size_t split_tekken(const char *s, size_t n); /* Mistral: the same for its Tekken */
size_t split_qwen35(const char *s, size_t n); /* Qwen3.5 and later: marks belong to words */
/* Laguna: every run of line breaks (LF and CR LF) begins a part of its own, which qwen2 splits. */
size_t split_laguna(const char *s, size_t n);

/* Their steps in tokenizer.json (tokenizer_name.steps). */
extern const struct split_step split_qwen2_steps[], split_llama3_steps[], split_gpt4o_steps[],
    split_tekken_steps[], split_qwen35_steps[], split_laguna_steps[];

#endif
