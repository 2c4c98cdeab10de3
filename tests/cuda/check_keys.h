/* check_keys.h - keys for the checks of attention: random and planted ones, and what keys of one
 * stream are made with.
 */
#ifndef TESTS_CUDA_CHECK_KEYS_H
#define TESTS_CUDA_CHECK_KEYS_H

#include "tests/cuda/check_int.h"

/* The weight and the rotation of made keys, on both devices. Zeroed: keys are not made. */
typedef struct key_source {
    pair norm;
    float *inv, *turns;
    rope on[2];
} key_source;

/* Heads of d, of which n pairs turn. */
bool source_make(rig *g, key_source *k, int32_t d, int32_t n);
void source_free(rig *g, key_source *k);
/* Whole heads of random elements, encoded as a store of this format. planted: of three runs of so
 * many elements one has large ones and two have small ones; 0: none. mem_free. */
void *encoded(rig *g, num_type t, bool rot, size_t n, double sigma, int32_t planted);
/* What queries have in common where keys are planted: tiles of large elements get large scores. Of
 * one stream the weight of a key decides the sign. */
float point_along(const key_source *k, size_t i);

#endif
