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

/* Ends the program, which libFuzzer reports with the input, unless ok. */
static inline void fuzz_check(bool ok, const char *what)
{
    if (!ok) {
        fprintf(stderr, "%s\n", what);
        abort();
    }
}

#endif
