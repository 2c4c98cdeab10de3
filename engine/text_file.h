/* text_file.h - the tokenizer.* keys of a model file, as a vocabulary and a chat format. */
#ifndef ENGINE_TEXT_FILE_H
#define ENGINE_TEXT_FILE_H

#include "format/gguf.h"
#include "text/chat.h"

/* The file's architecture says which family's. *v NULL: the file has no vocabulary, and its model
 * takes and gives ids. *chat NULL: no template, or none that the family knows. n_vocab: rows of the
 * embedding. */
status text_from_gguf(const gguf *g, int32_t n_vocab, vocab **v, const chat_format **chat, err *e);

#endif
