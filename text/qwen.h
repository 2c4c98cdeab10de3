/* qwen.h - declarations shared by the Qwen files. Included by these files and by tests. */
#ifndef TEXT_QWEN_H
#define TEXT_QWEN_H

#include "text/family.h"

extern const text_family qwen_text;
extern const made_words qwen_made[]; /* qwen_words.c */

#endif
