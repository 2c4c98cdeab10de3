/* utf8.h - UTF-8 by the Unicode table of well-formed sequences: no overlong forms, no surrogates,
 * nothing above U+10FFFF. */
#ifndef BASE_UTF8_H
#define BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Decodes one character of s[0..n), n > 0. Returns its length, 1..4; for a byte that starts
 * nothing well-formed returns 1 with *cp = 0xFFFD and *ok false. */
int utf8_decode(const char *s, size_t n, uint32_t *cp, bool *ok);
int utf8_encode(uint32_t cp, char out[4]); /* 1..4; U+FFFD for what cannot be encoded */
bool utf8_valid(const char *s, size_t n);
/* Bytes at the end of s[0..n) that begin a character and may become well-formed: 0..3. */
size_t utf8_partial_tail(const char *s, size_t n);

/* The well-formed characters beyond ASCII: in each row a range of bytes per place, of which any
 * combination is one. */
typedef struct utf8_row {
    int32_t n;
    uint8_t lo[4], hi[4];
} utf8_row;
enum { UTF8_WIDE_ROWS = 8 };
extern const utf8_row utf8_wide[UTF8_WIDE_ROWS];

#endif
