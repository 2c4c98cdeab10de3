/* qwen.h - declarations shared by the Qwen files. Included by these files and by tests. */
#ifndef TEXT_QWEN_H
#define TEXT_QWEN_H

#include "text/chat_int.h"
#include "text/family.h"

/* The revisions of the template, oldest first. */
enum {
    QWEN_3,       /* calls in JSON; the model opens its thoughts itself */
    QWEN_3_CODER, /* calls as <function=f><parameter=k>; no thoughts */
    QWEN_3_VL,    /* as QWEN_3, with pictures and without thoughts */
    QWEN_3_OPENS, /* as QWEN_3, with pictures; the prompt opens the thought: Qwen3-VL's Thinking
                     variants, and those of Qwen3 of July 2025 */
    QWEN_35,      /* calls as in QWEN_3_CODER; the prompt opens the thought */
    QWEN_36,      /* the same, with preserve_thinking */
    QWEN_38,      /* keeps thoughts by itself; an instruction about the effort of thinking */
    N_QWEN_FORMATS
};

extern const text_family qwen_text;
extern const chat_format qwen_formats[N_QWEN_FORMATS];

/* ---- chat_qwen.c ---- */

/* The format of a file's chat template of n bytes, by what it contains; NULL: not of these models.
 */
const chat_format *qwen_recognise(const char *template_text, size_t n);
/* As gemma_render. */
void qwen_render(chat_writer *w, const chat_format *f, const carat_talk *t,
                 const carat_chat_options *opt);

#endif
