/* gpt_oss.h - gpt-oss' entry in the table of families, and its conversations (harmony).
 *
 *     entry      gpt_oss.c          pieces, marks, tables
 *     prompts    chat_harmony.c     messages to a prompt; tools_harmony.c: tools as TypeScript
 *     answers    call_harmony.c     messages, and the calls in them
 */
#ifndef TEXT_GPT_OSS_H
#define TEXT_GPT_OSS_H

#include "text/chat_int.h"

extern const text_family gpt_oss_text;
extern const chat_format harmony_format;

const chat_format *harmony_recognise(const char *template_text, size_t n);
void harmony_render(chat_writer *w, const chat_format *f, const carat_talk *t,
                    const carat_chat_options *opt);
/* Puts the namespace `functions`, a type for each tool. tools: an array. */
void harmony_put_tools(chat_writer *w, const jtree *tools);

#endif
