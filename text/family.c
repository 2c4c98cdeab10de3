/* family.c - the families that carat knows. */
#include "text/family.h"
#include "text/gemma3.h"
#include "text/gemma4.h"
#include "text/gpt_oss.h"
#include "text/laguna.h"
#include "text/llama.h"
#include "text/mistral.h"
#include "text/qwen.h"

#include <string.h>

const text_family *const text_families[] = {&gemma4_text,  &gemma3_text, &qwen_text,
                                            &laguna_text,  &llama_text,  &mistral_text,
                                            &gpt_oss_text, NULL};

bool text_is_one_of(const char *const *list, const char *s, size_t n)
{
    for (; list && *list; list++)
        if (strlen(*list) == n && !memcmp(*list, s, n))
            return true;
    return false;
}

bool text_is_tokenizer(const tokenizer_name *t, const char *model, const char *pre)
{
    return !strcmp(model, t->model) && (!t->pre || !strcmp(pre ? pre : "", t->pre));
}

const text_family *text_family_for(const char *arch, size_t n, const char *model, const char *pre)
{
    const text_family *first = NULL;
    for (const text_family *const *f = text_families; *f; f++) {
        if (!text_is_one_of((*f)->archs, arch, n))
            continue;
        first = first ? first : *f;
        for (const tokenizer_name *t = (*f)->tokenizers; model && t->model; t++)
            if (text_is_tokenizer(t, model, pre))
                return *f;
    }
    return first;
}

const text_family *text_family_of(const char *arch, size_t n)
{
    return text_family_for(arch, n, NULL, NULL);
}

const answer_syntax *text_answer_syntax(const chat_format *f, const text_family *family)
{
    return f && f->answer ? f->answer : family ? family->answer : NULL;
}
