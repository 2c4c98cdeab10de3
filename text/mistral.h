/* mistral.h - declarations shared by the files of Llama 2 and Mistral, and for tests. */
#ifndef TEXT_MISTRAL_H
#define TEXT_MISTRAL_H

#include "text/chat_int.h"
#include "text/family.h"

/* The published templates, by the versions of Mistral's tokenizers. */
enum {
    LLAMA2,
    MISTRAL_V0, /* 7B v0.1: no system message, a space behind answers */
    MISTRAL_V0_TIGHT,
    MISTRAL_V1,        /* 7B v0.2, Mixtral */
    MISTRAL_V3,        /* 7B v0.3, Large 2407 */
    MISTRAL_V3_TEKKEN, /* Nemo */
    MISTRAL_V7,        /* Large 2411 */
    MISTRAL_V7_TEKKEN, /* Small 2501, 3.1 */
    MISTRAL_V11,       /* Small 3.2 */
    MISTRAL_V13,       /* Ministral 3 */
    N_MISTRAL_FORMATS
};

extern const text_family mistral_text;
extern const chat_format mistral_formats[N_MISTRAL_FORMATS];

/* ---- chat_mistral.c ---- */

const chat_format *mistral_recognise(const char *template_text, size_t n);
void mistral_render(chat_writer *w, const chat_format *f, const carat_talk *t,
                    const carat_chat_options *opt);

#endif
