/* utf8.h - UTF-8 by the Unicode table of well-formed sequences: no overlong forms, no surrogates,
 * nothing above U+10FFFF. */
#ifndef BASE_UTF8_H
#define BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Decodes the first character of s[0..n), n > 0. Returns its length, 1..4. If no well-formed
 * character starts there, returns 1, with *cp = 0xFFFD and *ok false. */
int utf8_decode(const char *s, size_t n, uint32_t *cp, bool *ok);
int utf8_encode(uint32_t cp, char out[4]); /* returns 1..4; encodes U+FFFD if cp is no character */
bool utf8_valid(const char *s, size_t n);
/* Length of an unfinished character at the end of s[0..n) that more bytes may complete: 0..3. */
size_t utf8_partial_tail(const char *s, size_t n);

/* The well-formed characters beyond ASCII. Each row has a range of bytes per position; every
 * combination of them is a character. */
typedef struct utf8_row {
    int32_t n;
    uint8_t lo[4], hi[4];
} utf8_row;
enum { UTF8_WIDE_ROWS = 8 };
extern const utf8_row utf8_wide[UTF8_WIDE_ROWS];

#endif
