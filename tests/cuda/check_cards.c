/* check_cards.c - no published shape takes a slow attention path on any card from 8.0 on. Kernels
 * are chosen by a card's facts, so this needs no such card.
 */
#include "tests/cuda/check_int.h"
#include "backend/cuda/ops_int.h"
#include "base/mem.h"
#include "model/shapes.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* The heads of a layer with attention; n_head 0: it has none of its own. */
typedef struct layer_heads {
    int32_t n_head, n_head_kv, dim;
} layer_heads;

/* Where the tensor of layer il whose name ends in `tail` is in the list; NULL: nowhere. */
static const shape_tensor *tensor_of(const shape_tensor *t, int32_t n, int32_t il, const char *tail)
{
    for (int32_t i = 0; i < n; i++) {
        size_t at = strlen(t[i].name), end = strlen(tail);
        if (t[i].layer == il && !t[i].unused_kv && at >= end && !strcmp(t[i].name + at - end, tail))
            return &t[i];
    }
    return NULL;
}
static layer_heads heads_of(const shape_tensor *t, int32_t n, int32_t il)
{
    const shape_tensor *norm = tensor_of(t, n, il, ".attn_k_norm.weight");
    const shape_tensor *k = tensor_of(t, n, il, ".attn_k.weight");
    const shape_tensor *o = tensor_of(t, n, il, ".attn_output.weight");
    if (!norm || !k || !o)
        return (layer_heads){0};
    int32_t d = (int32_t)norm->ne[0];
    return (layer_heads){(int32_t)o->ne[0] / d, (int32_t)k->ne[1] / d, d};
}

/* Is each format of keys and values read by a full kernel? The first that is not, in `why`. */
static bool all_full(rig *g, layer_heads h, char *why, size_t cap)
{
    static const num_type types[] = {NUM_F16,  NUM_BF16, NUM_Q8_0,   NUM_Q5_1, NUM_Q5_0,
                                     NUM_Q4_1, NUM_Q4_0, NUM_IQ4_NL, NUM_TQ3_0};
    enum { N = sizeof types / sizeof *types };
    for (int i = 0; i < N * N * 2; i++) {
        kv_view v = {.k_type = types[i % N],
                     .v_type = types[i / N % N],
                     .n_head_kv = h.n_head_kv,
                     .head_dim = h.dim,
                     .n_slots = 32768,
                     .n_keys = 32768};
        uint64_t k_bytes = 0, v_bytes = 0;
        v.k_rot = v.k_type == NUM_TQ3_0 || (i / (N * N) && i % N > 1); /* blocks */
        v.v_rot = v.v_type == NUM_TQ3_0;
        if ((v.k_rot || v.v_rot) && h.dim % NUM_ROT_GROUP)
            continue; /* such a store is refused */
        if (!num_row_bytes(v.k_type, (uint64_t)h.dim, &k_bytes) ||
            !num_row_bytes(v.v_type, (uint64_t)h.dim, &v_bytes))
            continue;
        v.k_row_bytes = (size_t)k_bytes, v.v_row_bytes = (size_t)v_bytes;
        char kernel[160];
        if (g->gpu->attend_kernel(g->gpu, &v, kernel, sizeof kernel) != KERNEL_FULL) {
            snprintf(why, cap, "%s/%s in heads of %d: %s", num_name(v.k_type), num_name(v.v_type),
                     h.dim, kernel);
            return false;
        }
    }
    return true;
}

/* Every layer of a published size; returns the number of kinds of layers that take a slow path. */
static int32_t slow_layers(rig *g, const char *size, const char *card)
{
    err e = {0};
    model_shape *s;
    if (shape_named(size, &s, &e)) {
        failed(g, "cards", e.text);
        return 1;
    }
    int32_t n = s->family->list(s, NULL, 0), slow = 0;
    shape_tensor *t = mem_calloc((size_t)n, sizeof *t);
    layer_heads last = {0};
    if (t)
        s->family->list(s, t, n);
    else
        failed(g, "cards", "no memory for a list of tensors");
    for (int32_t il = 0; t && il < s->n_layer; il++) {
        layer_heads h = heads_of(t, n, il);
        char why[256];
        if (!h.n_head || !memcmp(&h, &last, sizeof h))
            continue;
        last = h;
        if (h.n_head / h.n_head_kv > SPLIT_PAIRS || !all_full(g, h, why, sizeof why)) {
            if (h.n_head / h.n_head_kv > SPLIT_PAIRS)
                snprintf(why, sizeof why, "%d query heads to a KV head", h.n_head / h.n_head_kv);
            printf("      %s, card %s, layer %d: %s\n", size, card, il, why);
            slow++;
        }
    }
    mem_free(t);
    mem_free(s);
    return slow;
}

void check_cards(rig *g)
{
    static const char *const cards[] = {"8.0", "8.6", "8.9", "9.0", "10.0", "12.0"};
    cuda_device *c = g->gpu->self;
    const gpu_facts own = c->facts;
    const bool hopper = c->hopper;
    for (size_t i = 0; i < sizeof cards / sizeof *cards; i++) {
        gpu_facts f = {.n_sm = own.n_sm,
                       .shared_block = INT32_MAX,
                       .shared_sm = INT32_MAX,
                       .overlap = true,
                       .wgmma = true};
        err e = {0};
        int32_t slow = 0, sizes = 0;
        if (!my_turn(g, "cards"))
            continue;
        if (card_imitate(cards[i], &f, &e)) {
            failed(g, "cards", e.text);
            continue;
        }
        c->facts = f;
        c->hopper = f.wgmma;
        c->split = cu_split_limits(f.shared_block);
        for (int32_t k = 0; shape_family_at(k); k++) {
            char all[512], *rest = all;
            snprintf(all, sizeof all, "%s", shape_family_at(k)->sizes);
            for (char *size; (size = strtok_r(rest, ", ", &rest)) != NULL;) {
                if (strstr(size, "tiny")) /* of tests */
                    continue;
                slow += slow_layers(g, size, cards[i]);
                sizes++;
            }
        }
        verdict(g, "cards",
                text("%s, %d published sizes: layers with slow attention", cards[i], sizes),
                sizes ? slow : NAN, 0);
    }
    c->facts = own;
    c->hopper = hopper;
    c->split = cu_split_limits(own.shared_block);
}
