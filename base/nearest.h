/* nearest.h - "did you mean": the known word that is most like a mistyped one. */
#ifndef BASE_NEAREST_H
#define BASE_NEAREST_H

#include <stddef.h>

/* The one of words[0..n) that differs from word by at most two insertions, deletions,
 * replacements or exchanges of neighbours, and by fewer than half of its characters. Failing that,
 * the only one that begins with word, or the longest with which word begins, from three characters
 * on. Case is ignored. NULL: none. Words of more than 64 bytes are passed over. */
const char *nearest_word(const char *word, const char *const *words, size_t n);

#endif
