/* llama.h - the entry of Llama 3 in the table of families. */
#ifndef TEXT_LLAMA_H
#define TEXT_LLAMA_H

#include "text/family.h"

extern const text_family llama_text;

#endif
