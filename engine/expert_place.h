/* expert_place.h - how many experts of each layer a device holds: a share of a budget for each
 * layer.
 *
 * Every layer gets as many slots as a row uses experts. Then slots go one by one to the layer whose
 * next most frequent expert has the most uses per byte, times what a use is worth there. So layers
 * whose use is concentrated on few experts get fewer slots. Without counts, layers in which a use
 * is worth the same get the same share. Plain data; any thread.
 */
#ifndef ENGINE_EXPERT_PLACE_H
#define ENGINE_EXPERT_PLACE_H

#include "base/err.h"

typedef struct place_layer {
    int32_t n_experts, n_used;
    uint64_t bytes;        /* of one expert */
    const uint64_t *count; /* [n_experts] uses in earlier runs; NULL: unknown */
    int32_t worth;   /* of a use that needs no copy, compared with the other layers'; 0 is as 1 */
    int32_t n_slots; /* the result */
} place_layer;

/* The bytes of all slots; the least, n_used of each layer, even where they exceed the budget. */
uint64_t expert_place_least(const place_layer *l, int32_t n);
uint64_t expert_place_all(const place_layer *l, int32_t n); /* of all experts */
/* Sets n_slots within the budget, which is at least the least. *used: the bytes of the slots. Fewer
 * bytes give no layer more slots. E_MEMORY: no memory to sort in. */
status expert_place(place_layer *l, int32_t n, uint64_t budget, uint64_t *used, err *e);

#endif
