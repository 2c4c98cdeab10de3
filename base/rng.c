/* rng.c - see rng.h. */
#include "base/rng.h"

#include <math.h>

double rng_normal(uint64_t *state)
{
    double u = 1.0 - rng_unit(state); /* (0, 1]: the logarithm stays finite */
    double v = rng_unit(state);
    return sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v);
}
