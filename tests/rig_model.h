/* rig_model.h - the model of kv_rig.h with heads of any size, for tests with passes of their own.
 */
#ifndef TESTS_RIG_MODEL_H
#define TESTS_RIG_MODEL_H

#include <stdint.h>

enum { RIG_WINDOW = 12, RIG_VOCAB = 64, RIG_CTX = 640 };

/* What the norms of queries and keys are drawn around: small, as the scale of attention is 1. */
#define RIG_QK_NORM 0.3f

/* Writes the model's file; its path, valid until the test ends. */
const char *rig_model_of(int32_t head_dim, int32_t head_dim_global, float qk_norm);

#endif
