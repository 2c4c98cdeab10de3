/* llama.h - declarations shared by the files of Llama 3, and for tests.
 *
 *     entry      llama.c          pieces, marks, tables
 *     prompts    chat_llama.c     messages to a prompt
 *     answers    call_llama.c     calls
 */
#ifndef TEXT_LLAMA_H
#define TEXT_LLAMA_H

#include "text/chat_int.h"

/* The published templates. */
enum {
    LLAMA_3,
    LLAMA_31, /* 3.1 and 3.3: dates in the system's turn, and tools */
    LLAMA_32, /* the same, with the day of the clock */
    N_LLAMA_FORMATS
};

extern const text_family llama_text;
extern const chat_format llama_formats[N_LLAMA_FORMATS];

const chat_format *llama_recognise(const char *template_text, size_t n);
void llama_render(chat_writer *w, const chat_format *f, const carat_talk *t,
                  const carat_chat_options *opt);

#endif
