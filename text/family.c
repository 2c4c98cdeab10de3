/* family.c - the families that carat knows. */
#include "text/family.h"
#include "text/gemma3.h"
#include "text/gemma4.h"
#include "text/gpt_oss.h"
#include "text/laguna.h"
#include "text/llama.h"
#include "text/qwen.h"

#include <string.h>

const text_family *const text_families[] = {&gemma4_text, &gemma3_text,  &qwen_text, &laguna_text,
                                            &llama_text,  &gpt_oss_text, NULL};

bool text_is_one_of(const char *const *list, const char *s, size_t n)
{
    for (; list && *list; list++)
        if (strlen(*list) == n && !memcmp(*list, s, n))
            return true;
    return false;
}

const text_family *text_family_of(const char *arch, size_t n)
{
    for (const text_family *const *f = text_families; *f; f++)
        if (text_is_one_of((*f)->archs, arch, n))
            return *f;
    return NULL;
}

const answer_syntax *text_answer_syntax(const chat_format *f, const text_family *family)
{
    return f && f->answer ? f->answer : family ? family->answer : NULL;
}
