/* llama.h - the entry of Llama 3 in the table of families. */
#ifndef TEXT_LLAMA_H
#define TEXT_LLAMA_H

#include "text/family.h"

extern const text_family llama_text;
extern const chat_format llama3_format;  /* Llama 3 */
extern const chat_format llama31_format; /* Llama 3.1 to 3.3: dates in the system's turn */

#endif
