/* lower.h - a text in lower case, character by character, exactly as Python's str.lower() has it.
 *
 * The templates sort keys with Jinja's dictsort, which compares str.lower() of both. One character
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
    uint32_t next; /* the second half of a character that became two; 0: none */
    bool cased;    /* the last character that is not ignorable has a case */
} lower_reader;

/* The next character of the lower case; false at the end. */
bool lower_next(lower_reader *r, uint32_t *cp);

#endif
