/* gemma3.h - Gemma 3's entry in the table of families, for family.c and tests. */
#ifndef TEXT_GEMMA3_H
#define TEXT_GEMMA3_H

#include "text/chat_int.h"
#include "text/family.h"

extern const text_family gemma3_text;
extern const chat_format gemma3_format;

#endif
