/* experts.h - mixtures whose experts are not all in a device's memory.
 *
 *     layer   its weights of experts, the parts: gate, up (unless gate holds both), down
 *     slot    room on the device for one expert, all parts of it
 *     host    a copy of every expert in the host's memory, in the device's layout
 *
 * An expert without a slot is used all the same: kernels read its host copy over the bus. So which
 * experts have slots changes the speed of a pass and no bit of its result. Between passes the
 * device moves experts that were used lately into slots (expert_slots.h). Passes of many rows of
 * prompts copy a layer's experts without slots to the device, each once, while the layer before
 * computes.
 */
#ifndef BACKEND_EXPERTS_H
#define BACKEND_EXPERTS_H

#include "backend/ops.h"

/* Of a tensor split a device has a part of each expert: some rows of gate and up, and of down its
 * segments, one part for each. Or it has some of the experts, whole. Then a segment of down has
 * some of these, so in a slot all segments have one place. */
enum { EXPERT_PARTS = 2 + RANKS_MAX };
typedef struct expert_layer {
    weight *part[EXPERT_PARTS];
    int32_t n_parts, n_experts, n_slots;
    int32_t n_down; /* of the parts: the last ones, 1 or the segments of down */
    bool helped;    /* help() follows, and takes memory; of all layers alike */
    int32_t n_used;        /* experts of a row that are among these */
    const uint64_t *count; /* [n_experts] of earlier runs, or NULL: the commonest get slots first */
    /* To guess the choice of this layer some layers before: floats; the router, the weight of the
     * norm before it, and what it adds to choose, or NULL. */
    const weight *router, *router_in, *router_bias;
    int32_t
        n_prefetched; /* experts that a guess may have on their way; of all layers alike; 0: none */
} expert_layer;
enum {
    EXPERTS_PREFETCH_MOST = 4,
    EXPERTS_PREFETCH_AHEAD = 3 /* layers between a guess and its use, so the first ones have none */
};

/* Since experts were opened. */
typedef struct expert_use {
    uint64_t n_hits, n_misses;  /* pairs of row and expert, as far as the device has reported */
    uint64_t n_swaps, n_failed; /* experts copied into slots; copies that failed */
    uint64_t swap_bytes;        /* bytes of the n_swaps copies */
    uint64_t stream_bytes;      /* copied for prompts */
    uint64_t n_streamed;        /* passes that did so */
    uint64_t read_bytes;        /* of misses that kernels read over the bus: an expert that several
                                   rows of a pass miss counts once */
    uint64_t n_cpu;             /* pairs of the misses that the host's cores computed */
    uint64_t cpu_bytes;         /* the bytes of their experts, which the bus did not carry */
    int32_t cpu_threads;        /* 0: they compute none */
    uint64_t prefetch_bytes;    /* copied by a guess, before a layer chose */
    uint64_t n_prefetched;      /* experts that these were, */
    uint64_t n_prefetched_used; /* chosen of these, */
    uint64_t n_prefetched_waited; /* of the chosen, still on their way when the layer chose, */
    uint64_t n_prefetched_late;   /* and requests of which one was waited for in vain */
    uint64_t n_prefetched_failed; /* 1: a copy of these could not begin, and none does any more */
    int32_t prefetch_ahead;       /* layers between a guess and its use, now */
    double cpu_expert_ms;         /* they take so long for an expert; measured after loading */
    double stage_ms;              /* passes of prompts waited so long for those copies; measured */
    double bus_bytes_s;           /* the bus to the device, measured while slots were filled */
} expert_use;

/* The host's cores compute a part of the experts that a pass misses, while kernels read the others.
 * Every result has the same bits with and without this help. */
typedef struct expert_help {
    double part;       /* of a layer's missing experts; negative: by measured costs */
    int32_t n_threads; /* 0: one per physical core that this process may use, but for those that poll
                        */
    const char *isa;   /* NULL: the best one of this processor */
    /* Of devices that share a model's layers: how many there are, and one that has help already.
     * Its threads help this one too, because passes are on one device at a time. */
    int32_t n_devices;
    const device *beside;
} expert_help;

/* What a device with memory of its own may have: device.experts. The thread that runs passes calls
 * all but `bytes` and `host_bytes`. */
struct expert_ops {
    /* Memory of the device for such layers: slots, room for streams, tables. */
    uint64_t (*bytes)(const device *d, const expert_layer *l, int32_t n);
    uint64_t (*host_bytes)(const device *d, const expert_layer *l, int32_t n);
    /* Bytes of one expert of the layer in a slot. */
    uint64_t (*expert_bytes)(const device *d, const expert_layer *l);
    /* Before the layers' weights are loaded: takes that memory, and sets `home` of each weight.
     * The list is copied; the weights stay where they are until close. */
    status (*open)(device *d, const expert_layer *l, int32_t n, err *e);
    /* After they are loaded: fills the slots. */
    status (*fill)(device *d, err *e);
    /* After that; closed with the experts. how NULL: there is no help from here on, if there was.
     * That ends the threads of all devices that share them. */
    status (*help)(device *d, const expert_help *how, err *e);
    /* After they are unloaded, or never were; clears `home`. Nothing happens if none are open. */
    void (*close)(device *d);
    void (*use)(const device *d, expert_use *to);
    /* How many pairs of row and expert chose each expert of layer i of the list, since open. */
    void (*counts)(const device *d, int32_t i, uint64_t *to);

    /* For tests, of open experts. */
    const struct expert_slots *(*slots)(const device *d, int32_t i); /* the map of layer i */
    /* Slots change hands before every pass that copies no prompt, whatever was used. */
    void (*set_restless)(device *d, bool on);
    /* Waits for copies. How many slots differ from the host's copy, and how many entries of tables
     * lead elsewhere than the maps say. */
    int32_t (*n_wrong)(device *d);
};

#endif
