/* mistral.h - the entry of Llama 2 and Mistral in the table of families. */
#ifndef TEXT_MISTRAL_H
#define TEXT_MISTRAL_H

#include "text/family.h"

extern const text_family mistral_text;

#endif
