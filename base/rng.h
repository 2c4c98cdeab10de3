/* rng.h - SplitMix64 (Steele, Lea, Flood 2014): one word of state; any seed is good. The i-th
 * output can be computed directly, so each thread can make its own part of a stream. */
#ifndef BASE_RNG_H
#define BASE_RNG_H

#include <stdint.h>

static inline uint64_t rng_mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static inline uint64_t rng_next(uint64_t *state)
{
    return rng_mix(*state += 0x9e3779b97f4a7c15u);
}

/* Uniform in [0, 1): the top 53 bits. */
static inline double rng_unit(uint64_t *state)
{
    return (double)(rng_next(state) >> 11) * 0x1p-53;
}

/* Uniform in [0, n), n > 0, by the multiply-shift of Lemire (bias below n / 2^64). */
static inline uint64_t rng_below(uint64_t *state, uint64_t n)
{
    return (uint64_t)((unsigned __int128)rng_next(state) * n >> 64);
}

double rng_normal(uint64_t *state); /* standard normal (Box-Muller, one of the pair) */

#endif
