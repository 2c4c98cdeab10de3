/* synth_skew.h - mixtures whose routers choose experts by a Zipf law.
 *
 *     stream   [------ themes ------|---------------- the rest ----------------]
 *     written  by embeddings, and     by every layer
 *              layer 0's attention
 *     read     by every router        by everything but routers
 *
 * The stream of a random model has a large part that all tokens share: activations and averages do
 * not have a mean of zero, and layers add them up. A router that reads it prefers the same experts
 * for every token. So routers read a few entries of the stream, the themes, which no layer writes
 * but the first one's attention. Their values have a mean of zero over tokens: those of the token,
 * and an average over the text before it, which changes slowly. So the experts in use drift with
 * the text. Recurrent layers write no themes: their convolutions end in an activation.
 */
#ifndef APPS_SYNTH_SKEW_H
#define APPS_SYNTH_SKEW_H

#include "model/shapes.h"

enum {
    SKEW_USED = 8,    /* experts of a row, in every published mixture that synth writes */
    SKEW_RANKS = 4096 /* at most so many experts */
};

/* factor[e] is what the router's row of expert e is multiplied by, so that expert e is chosen with
 * a probability in proportion to rank(e)^-skew. Ranks are a permutation drawn from the seed. 1 <= n
 * <= SKEW_RANKS; skew 0: all factors are 1. */
void synth_skew_factors(float *factor, int32_t n, double skew, uint64_t seed);

/* Is t a router of experts, of at most SKEW_RANKS? Its row for an expert: random in the themes, of
 * length `length` * sqrt(n_in / themes), zeros in the rest. row: [n_in] */
bool synth_skew_is_router(const shape_tensor *t);
void synth_skew_row(float *row, uint64_t n_in, float length, uint64_t seed);

/* Rows [first, first + n_rows) of t: those that write themes and must not are zeroed, so are the
 * biases of a router. Zero bytes are zeros in every format. dst: the rows. */
void synth_skew_silence(const shape_tensor *t, uint64_t first, uint64_t n_rows, void *dst,
                        uint64_t row_bytes);

#endif
