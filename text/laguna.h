/* laguna.h - declarations shared by the Laguna files. Included by these files and by tests. */
#ifndef TEXT_LAGUNA_H
#define TEXT_LAGUNA_H

#include "text/family.h"

extern const text_family laguna_text;
extern const made_words laguna_made[]; /* laguna_words.c */

#endif
