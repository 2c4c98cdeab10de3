/* base64.h - bytes as text, by the standard alphabet. */
#ifndef BASE_BASE64_H
#define BASE_BASE64_H

#include "base/str.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The most bytes that n characters stand for. */
static inline size_t base64_most(size_t n)
{
    return n / 4 * 3 + 3;
}

/* Decodes into out[base64_most(n)]. Line breaks are skipped; padding may be missing. Any other
 * character, one behind the padding, or a number of them that stands for no bytes: false, and *bad
 * is where. */
bool base64_decode(const char *text, size_t n, uint8_t *out, size_t *n_out, size_t *bad);
/* Appends the text of n bytes, with padding and without line breaks. */
void base64_put(str *out, const void *bytes, size_t n);

#endif
