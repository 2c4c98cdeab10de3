/* compress_int.h - a text in units: what compress_units.c makes and compress.c chooses from. */
#ifndef TEXT_COMPRESS_INT_H
#define TEXT_COMPRESS_INT_H

#include "text/compress.h"

/* A stretch of the text that is kept or dropped as a whole. Units cover the text. */
typedef struct compress_unit {
    size_t from, to; /* bytes */
    int64_t tokens;  /* that end in it */
    float value;     /* the mean of the tokens that overlap it; of code, of its best stretch */
    bool code;       /* between fences, with these */
    bool kept;
} compress_unit;

typedef struct compress_units {
    compress_unit *at;
    size_t n, cap;
} compress_units;

/* E_MEMORY. Free u->at with mem_free in any case. */
status compress_cut(const compress_input *in, compress_units *u, err *e);

#endif
