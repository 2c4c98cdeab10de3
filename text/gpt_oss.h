/* gpt_oss.h - gpt-oss' entry in the table of families. */
#ifndef TEXT_GPT_OSS_H
#define TEXT_GPT_OSS_H

#include "text/family.h"

extern const text_family gpt_oss_text;

#endif
