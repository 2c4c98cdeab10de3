/* vocab_parts.h - what the small vocabularies of tests, fuzzers and benches have in common. */
#ifndef TESTS_VOCAB_PARTS_H
#define TESTS_VOCAB_PARTS_H

#include "text/gemma4.h"
#include "text/vocab.h"

#include <stdio.h>

enum { BYTE_PIECE_LEN = 6 };

/* A vocabulary of the Gemma kind whose special tokens are found by their spelling. */
static inline vocab_settings gemma_settings(void)
{
    return (vocab_settings){.family = &gemma4_text,
                            .model = "gemma4",
                            .bos = -1,
                            .eos = -1,
                            .eot = -1,
                            .unk = -1,
                            .pad = -1};
}

/* The piece of a byte: "<0x0A>". */
static inline const char *byte_piece(int byte, char piece[8])
{
    snprintf(piece, 8, "<0x%02X>", (unsigned)byte & 0xFF);
    return piece;
}

/* The pieces of all 256 bytes, in order. */
static inline void add_byte_pieces(vocab_builder *b)
{
    char piece[8];
    for (int i = 0; i < 256; i++)
        vocab_add_token(b, byte_piece(i, piece), BYTE_PIECE_LEN, TOKEN_BYTE);
}

#endif
