/* synth_vocab.h - made-up vocabularies of bytes, for synth.c. */
#ifndef APPS_SYNTH_VOCAB_H
#define APPS_SYNTH_VOCAB_H

#include "format/gguf.h"

/* Puts the keys tokenizer.* of n tokens: the family's special pieces at their published ids, all
 * bytes, some merged words, and words that no text encodes to. Without the keys of a family that
 * has none (made_words in text/family.h), or with too few tokens: "no_vocab". The same for files of
 * another architecture, `written`, whose words are another family's. */
status synth_vocab_put(gguf_writer *w, const char *arch, const char *written, int32_t n, err *e);
/* E_ARG: the tokenizer of the file is none that models of the architecture have. */
status synth_vocab_check(const gguf *file, const char *arch, err *e);

#endif
