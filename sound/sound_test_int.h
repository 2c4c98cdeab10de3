/* sound_test_int.h - sounds that tests draw, as tools/sound_fixture.py draws them. */
#ifndef SOUND_SOUND_TEST_INT_H
#define SOUND_SOUND_TEST_INT_H

#include "base/rng.h"

/* Noise from -1 to 1, louder and quieter by turns. */
static inline void test_sound(float *x, uint64_t seed, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = (float)(((double)(rng_mix((uint64_t)i + (seed << 32)) >> 40) / (1 << 23) - 1) /
                       (double)(1 << (i / 300 % 8)));
}

#endif
