/* fuzz.h - one function per target, run in two ways.
 *
 *     FUZZ(gguf) { ... data, n ... }
 *
 * `make fuzz T=gguf SECS=300` builds fuzz_gguf.c with libFuzzer, which calls it with inputs it
 * invents. The test program has every target too and replays fuzz/corpus/gguf/, one test per
 * target, so a crash that was found once is looked for in every run. A target may do anything with
 * its bytes but write to them.
 */
#ifndef FUZZ_FUZZ_H
#define FUZZ_FUZZ_H

#include <stddef.h>
#include <stdint.h>

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

#endif
