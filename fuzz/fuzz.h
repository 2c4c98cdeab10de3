/* fuzz.h - one function per target, run in two ways.
 *
 *     FUZZ(gguf) { ... data, n ... }
 *
 * `make fuzz T=gguf SECS=300` builds fuzz_gguf.c with libFuzzer, which invents inputs. The test
 * program holds every target too and replays fuzz/corpus/gguf/, one test per target, so every run
 * looks for each crash that was ever found. A target must not write to its bytes.
 */
#ifndef FUZZ_FUZZ_H
#define FUZZ_FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#if CARAT_FUZZ
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
#define FUZZ(name)                                                                                 \
    static void fuzz_##name(const uint8_t *data, size_t n);                                        \
    int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)                                      \
    {                                                                                              \
        fuzz_##name(data, n);                                                                      \
        return 0;                                                                                  \
    }                                                                                              \
    static void fuzz_##name(const uint8_t *data, size_t n)
#else
#include "tests/test.h"
void fuzz_replay(const char *target, void (*fn)(const uint8_t *data, size_t n)); /* replay.c */
#define FUZZ(name)                                                                                 \
    static void fuzz_##name(const uint8_t *data, size_t n);                                        \
    TEST(fuzz_corpus_##name)                                                                       \
    {                                                                                              \
        fuzz_replay(#name, fuzz_##name);                                                           \
    }                                                                                              \
    static void fuzz_##name(const uint8_t *data, size_t n)
#endif

/* The bytes of an input that are not taken yet. */
typedef struct fuzz_bytes {
    const uint8_t *at;
    size_t n;
} fuzz_bytes;

/* Takes a byte; 0 at the end. */
static inline uint8_t fuzz_next(fuzz_bytes *b)
{
    return b->n ? (b->n--, *b->at++) : 0;
}

/* A little-endian number of 8 bytes. */
static inline uint64_t fuzz_get64(const uint8_t *p)
{
    uint64_t v = 0;
    for (int i = 0; i < 8; i++)
        v |= (uint64_t)p[i] << (8 * i);
    return v;
}

static inline void fuzz_put64(uint8_t *p, uint64_t v)
{
    for (int i = 0; i < 8; i++)
        p[i] = (uint8_t)(v >> (8 * i));
}

/* Ends the program, which libFuzzer reports with the input, unless ok. */
static inline void fuzz_check(bool ok, const char *what)
{
    if (!ok) {
        fprintf(stderr, "%s\n", what);
        abort();
    }
}

#endif
