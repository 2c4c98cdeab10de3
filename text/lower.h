/* lower.h - a text in lower case, character by character, exactly as Python's str.lower().
 *
 * The templates sort keys with Jinja's dictsort, which compares keys by str.lower(). One character
 * may become two (U+0130), and a capital sigma depends on its neighbours.
 */
#ifndef TEXT_LOWER_H
#define TEXT_LOWER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A reader of s[0..n), which is valid UTF-8 and stays the caller's. */
typedef struct lower_reader {
    const char *s;
    size_t n, at;
    uint32_t next; /* the second character of a pair; 0: none */
    bool cased;    /* whether the last non-ignorable character has a case */
} lower_reader;

/* The next character in lower case. False at the end. */
bool lower_next(lower_reader *r, uint32_t *cp);

#endif
