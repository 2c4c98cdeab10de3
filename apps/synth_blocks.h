/* synth_blocks.h - random weights, made as blocks of a format rather than encoded from floats.
 *
 * The values have a mean near zero and the requested standard deviation, like those of an encoded
 * Gaussian matrix. They cost a few operations a byte.
 */
#ifndef APPS_SYNTH_BLOCKS_H
#define APPS_SYNTH_BLOCKS_H

#include "base/err.h"
#include "num/num.h"

typedef struct synth_blocks synth_blocks;

/* Makes the tables of one format, for use with every tensor of it. */
status synth_blocks_open(synth_blocks **b, num_type type, err *e);
void synth_blocks_close(synth_blocks *b);
/* Writes n elements at dst, with standard deviation sigma. The same seed gives the same bytes. Any
 * number of threads may call it. */
void synth_blocks_fill(const synth_blocks *b, uint64_t seed, float sigma, void *dst, uint64_t n);

/* Random weights with a mean of `lean` standard deviations. Blocks are encoded once and drawn again
 * and again. Weights of mean zero would not do: the mean is what a product with a common part of
 * all inputs sees. */
typedef struct synth_pool synth_pool;
status synth_pool_open(synth_pool **p, num_type type, float sigma, float lean, err *e);
void synth_pool_close(synth_pool *p);
/* As synth_blocks_fill. */
void synth_pool_fill(const synth_pool *p, uint64_t seed, void *dst, uint64_t n);

#endif
