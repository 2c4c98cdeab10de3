/* launch_offload.h - experts that the host's cores compute (offload.h): records that kernels and
 * the host share, and the launchers. */
#ifndef BACKEND_CUDA_LAUNCH_OFFLOAD_H
#define BACKEND_CUDA_LAUNCH_OFFLOAD_H

#include "backend/cpu/offload_post.h"
#include "backend/cuda/product/launch_products.h"

/* Device memory. */
typedef struct offload_state {
    uint32_t seq;    /* of the last job */
    uint32_t seen;   /* the last job whose answer a kernel has seen */
    uint32_t dead;   /* an answer was late: no more jobs */
    uint32_t posted; /* of one row: not 0: its layer's job is written, or there is none */
    uint64_t limit_ns;
    int32_t take[OFFLOAD_PAIRS + 1]; /* of n experts that a layer misses: how many the host gets;
                                     the last entry is for all larger n */
} offload_state;

/* Experts on their way to the device before their layer has chosen (prefetch.h); device memory. */
typedef struct prefetch_list {
    int32_t layer;    /* of the list of layers with experts; -1: of none */
    int32_t n;        /* experts of the last request for these buffers, which may still come */
    uint32_t seq;     /* its number */
    uint32_t gave_up; /* a product has waited for it in vain: others look once */
    int32_t expert[PREFETCH_MOST];
} prefetch_list;
typedef struct prefetch_state {
    prefetch_list list[PREFETCH_SETS]; /* of layer i: i % PREFETCH_SETS */
    uint32_t arrived[PREFETCH_SETS]
                    [PREFETCH_MOST]; /* the request that a buffer's bytes have come for */
    uint32_t seq;                    /* the number of the last request */
    uint32_t off;                    /* not 0: no kernel writes a request */
    int32_t ticket; /* of a guess: blocks that have their logits; 0 between launches */
    /* Since it was opened: experts asked for; chosen of these; of the chosen, still on their way
     * when their layer chose; requests that were waited for in vain. */
    uint32_t n_asked, n_used, n_waited, n_late;
    uint64_t limit_ns; /* a product waits so long for a copy, then it reads over the bus */
} prefetch_state;

/* For a product of a layer; state NULL: nothing comes early. */
typedef struct prefetch_view {
    prefetch_state *state;
    int64_t where, step; /* as packed.where: of the layer's first buffer; from one to the next */
    int32_t layer;
} prefetch_view;

/* A guess of a later layer's choice, and the request for experts (guess.cuh). router NULL: none. */
typedef struct prefetch_ask {
    dev_mat x;           /* what this layer's router reads */
    const float *router; /* the later layer's, for these rows: [n_expert, x.cols] */
    const float *bias;   /* [n_expert], or NULL */
    float *logits;       /* [x.rows, n_expert] */
    int32_t *id;         /* [x.rows, k] */
    int32_t k;
    bool sigmoid;
    prefetch_post *post;
    const int64_t *where; /* the later layer's; its experts in the host's memory are in */
    int64_t host_from, host_end;
    int32_t layer, n_expert;
    int32_t most; /* experts on their way at a time, of all requests */
} prefetch_ask;

/* What becomes of a pair of row and expert; device memory. */
typedef struct offload_pair {
    int64_t at; /* of its expert, as packed.where; of no use where the host computes the pair */
    int32_t
        place; /* from 0 on: of the host's product, in room.y; OFFLOAD_READ: the product reads its
                  expert; below: the expert is on its way to buffer OFFLOAD_READ - 1 - place */
    uint32_t entry; /* of such an expert: the request; OFFLOAD_READ: is it in the host's memory? */
} offload_pair;
enum { OFFLOAD_READ = -1 };

/* What is needed to tell what becomes of a layer's pairs. pair NULL: nothing tells. */
typedef struct offload_rule {
    offload_pair *pair;          /* [pairs], written */
    const int64_t *where;        /* as packed.where, of all experts; -1: another rank has it */
    int64_t host_from, host_end; /* distances of experts in the host's memory */
    const offload_state *state;
    prefetch_view prefetch;
    prefetch_ask
        ask; /* of a pass of one row: the router's launch computes the logits of this guess */
} offload_rule;

/* Which pairs of row and expert the host computes: for the products of a layer. */
typedef struct offload_view {
    const offload_pair *pair; /* [pairs]; NULL: the products read all experts */
    offload_state *state;
    offload_room room;
    prefetch_view prefetch;
    int32_t layer;
    offload_unit unit;
    /* For the gated product of a pass of one row, whose router has told what becomes of the pairs:
     * it has so many, and blocks more, which post the job, choose by a guess's logits and ask. 0: a
     * kernel has done that. */
    int32_t posts;
    prefetch_ask ask; /* for that product, or for that kernel */
    bool some; /* the weight has some of the experts: pairs of others are not its own */
} offload_view;

enum { OFFLOAD_CHOICE = 256 /* experts of a layer, at most */ };

/* After the choice, before the products, where the router has not told. x: int8, the rows that all
 * pairs share k by k. */
typedef struct dispatch_args {
    const int32_t *expert; /* [rows * k] */
    int32_t rows, k, n_expert;
    offload_rule rule;
    dev_quant x;
    offload_view to;
} dispatch_args;

#ifdef __cplusplus
extern "C" {
#endif
/* moe.cu. c.pair not NULL: of one row it also tells what becomes of the pairs. */
void cu_router(cudaStream_t s, router_args a, offload_rule c);
/* offload.cu. rows at most OFFLOAD_JOB_ROWS. */
void cu_offload_dispatch(cudaStream_t s, dispatch_args a);
/* y[r, o] = sum_j part[r, j, o] in ascending j, with the host's products times share[r, j]; expert
 * not NULL: of the pairs whose expert is in `own`. */
void cu_offload_join(cudaStream_t s, dev_mat y, const float *part, const float *share, int32_t k,
                     const int32_t *expert, expert_range own, offload_view c);
/* matmul_vec.cu, matmul_experts.cu: as without, for some pairs of which the host computes. */
void cu_product_vec_offload(cudaStream_t s, expert_product a, offload_view c);
bool cu_product_experts_offload(cudaStream_t s, expert_product a, launch_memory memory,
                                offload_view c);
#ifdef __cplusplus
}
#endif

#endif
