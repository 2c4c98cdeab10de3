/* links.h - would a token come sooner from a tensor split than from a split by layers? By measured
 * links between the GPUs (--split auto). Only the thread that opens the model calls in.
 */
#ifndef ENGINE_LINKS_H
#define ENGINE_LINKS_H

#include "backend/ops.h"

typedef struct link_speed {
    double bytes_s; /* at which a GPU reads its memory, in bytes a second */
    double copy_s;  /* seconds of a row's copy to another GPU, with the waits of both streams */
} link_speed;

/* How many times as fast a token is as by layers, on n GPUs. token_bytes: of the weights that it
 * reads; n_sums: over all GPUs. 0: the speeds say nothing. */
double links_gain(const link_speed *s, int32_t n, double token_bytes, int32_t n_sums);

/* dev: [n] open, at rest, and without weights; row_bytes: of a row's activations. Milliseconds, and
 * 128 MiB of the first device for their time. E_UNSUPPORTED: not each has a GPU of its own. */
status links_measure(device *const *dev, int32_t n, size_t row_bytes, link_speed *to, err *e);

/* For tests: the speeds of devices in the place of GPUs. NULL: these have no links. */
extern const link_speed *links_of_stand_ins;

#endif
