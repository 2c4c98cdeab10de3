/* doctor.h - a copy of a GGUF file with changes, for tests of readers.
 */
#ifndef TESTS_DOCTOR_H
#define TESTS_DOCTOR_H

#include "format/gguf.h"

typedef struct doctor_change {
    const char *arch;        /* general.architecture; NULL: as it was */
    const char *drop;        /* a key or tensor that the copy lacks */
    const char *rename, *as; /* a tensor's name */
    const char *add;         /* a tensor more: 32 zeros in f32 */
    const char *key;         /* a key more, or another value for it ... */
    uint32_t value;          /* ... this */
    const char *list;        /* the same for a list of numbers */
    uint32_t item[8], n_items;
} doctor_change;

/* Writes the copy. */
void doctor_gguf(const char *from, const char *to, const doctor_change *c);

#endif
