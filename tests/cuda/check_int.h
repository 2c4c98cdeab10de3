/* check_int.h - what the parts of cuda_check share: two devices side by side, and verdicts.
 *
 * A rig holds the CPU reference and the CUDA device. Data is drawn on the host, given to both; an
 * op runs on both; verdict() compares and prints one line. A failure is counted and the next check
 * goes on.
 */
#ifndef TESTS_CUDA_CHECK_INT_H
#define TESTS_CUDA_CHECK_INT_H

#include "backend/ops.h"
#include "base/rng.h"
#include "kv/kv.h"
#include "tests/kv_codes.h"

typedef struct rig {
    device *ref, *gpu;
    void *ref_scratch, *gpu_scratch;
    size_t scratch_bytes;
    uint64_t rng;
    int n_run, n_failed;
    const char *only;        /* substring of check names; NULL: all */
    int part, parts, n_turn; /* of the wanted checks every parts-th, from number `part` on */
    char turn_name[64];      /* of the last check, and how many of that name came in a row */
    int n_named;
    double last_ms, slowest_ms; /* the time of the last verdict; the longest time of a check */
    char slowest[128];
    bool quick;         /* small shapes, for the emulator */
    bool brief;         /* and few of each check */
    device *meanwhile;  /* a device that the thread uses in the middle of a pass, or NULL */
    void *meanwhile_at; /* a few bytes of its memory */
    err e;
} rig;

/* An op's name and shape, the measured error and its bound. Never passes on NaN. */
void verdict(rig *g, const char *name, const char *shape, double error, double bound);
bool wanted(const rig *g, const char *name);
/* Is the check wanted, and in this process's part? Every process asks once per check, in one
 * order. */
bool my_turn(rig *g, const char *name);
void failed(rig *g, const char *name, const char *why);

/* Bounds of errors, by the arithmetic; of a product with weights of type t. check_products.c */
extern const double F32_BOUND, INT8_BOUND, BF16_BOUND;
double product_bound(num_type t, int32_t rows);
enum { N_BLOCK_TYPES = 13, N_OWN_TYPES = 12 };
extern const num_type block_types[], own_types[];

/* Passes of more than n rows are passes of prompts; at first n is RIG_FEW. */
enum { RIG_FEW = 32 };
void few_rows(int32_t n);
bool of_prompt(int32_t rows);

/* Random host floats, and their copies on both devices. */
float *draw(rig *g, size_t n, double sigma); /* mem_free */
typedef struct both {
    pass ref, gpu;
} both;
/* Passes over st on both devices; the GPU's scratch is filled with NaN first. */
void both_begin(rig *g, both *b, const step *st);
/* Copies the same values to both passes' scratch. */
void both_mat(rig *g, both *b, mat m[2], const float *from, int32_t rows, int32_t heads,
              int32_t cols);
/* |gpu - ref|^2 / |ref|^2; NaN if the GPU's has NaN where the reference has none, or infinities
 * differ. */
double both_error(rig *g, both *b, mat ref, mat gpu);
float *gpu_rows(rig *g, mat m); /* downloaded, packed; mem_free */

/* A weight on both devices; ref's is w[0]. */
typedef struct pair {
    weight w[2], bias[2]; /* bias: pair_bias */
    void *bytes, *bias_bytes;
} pair;
bool pair_make(rig *g, pair *w, num_type type, int32_t n_in, int32_t n_out, int32_t n_mat,
               double sigma, bool gather);
/* A vector of n equal floats. Draws nothing. */
bool pair_fill(rig *g, pair *w, int32_t n, float v);
void pair_free(rig *g, pair *w);
/* Gives biases to half of the weights that ask. The pair stays where it is from here on. */
void pair_bias(rig *g, pair *w);
void pair_biased(rig *g, pair *w); /* gives biases surely */

enum { ROWS_MAX = 2400 };
/* A step of one chain: rows at indices first.. */
typedef struct chain {
    step st;
    int32_t token[ROWS_MAX], pos[ROWS_MAX], seq[ROWS_MAX];
    int32_t index[ROWS_MAX], first[ROWS_MAX], last[ROWS_MAX], newest[ROWS_MAX];
    int32_t out_row[ROWS_MAX];
    uint64_t seen[ROWS_MAX];
    kv_base kv[4];
} chain;
void chain_init(chain *c, int32_t n, int32_t first, int32_t n_vocab);
/* Formats into one static buffer, for the next verdict. */
char *text(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* The stored rows of a session by position: [n_head_kv][n][row_bytes] of each store and stream. */
enum { CODES_STORES = 8 };
typedef struct codes {
    int32_t n;
    uint8_t *at[CODES_STORES][2];
} codes;
status codes_open(codes *c, const kv_layout *l, int32_t n, err *e); /* for n positions */
void codes_close(codes *c);
/* Takes rows [first, first + n), which the stores still hold. */
status codes_take(codes *c, device *dev, const kv_cache *from, int32_t first, int32_t n, err *e);

/* Between begin and end each row that the GPU stores is compared with the row of `first` at the
 * same index, and replaced by it. */
typedef struct follower {
    rig *g;
    const codes *first;
    const device_ops *usual;
    device_ops ops;
    bool no_graphs;
    code_stats codes;
    int64_t n_stored; /* rows of stores that it has followed */
} follower;
void follow_begin(follower *f, rig *g, const codes *first);
void follow_end(follower *f);
void follow_verdict(const follower *f, const char *name, const char *shape);

void check_ops(rig *g); /* with products and attention */
void check_products(rig *g);
/* The shared expert of a mixture: gate, up and down. */
bool shared_make(rig *g, pair one[3], num_type t, num_type td, int32_t n_in, int32_t n_ff);
void check_tall_experts(rig *g); /* check_tall_experts.c */
void check_invariances(rig *g);
void check_families(rig *g);
void check_attention(rig *g);
void check_selection(rig *g);
void check_cards(rig *g);
void check_models(rig *g);
void check_memory(rig *g, const char *name, const char *mmproj); /* mmproj: a file, or NULL */
void check_towers(rig *g);
void check_audio_ops(rig *g);
void check_audio_towers(rig *g);
void check_sessions(rig *g);
void check_caches(rig *g);
void check_commit(rig *g);
void check_page_moves(rig *g);
void check_scores_of_pages(rig *g);
void check_recur(rig *g);
void check_lora(rig *g);
void check_taps(rig *g);
void check_drafts(rig *g);
void check_mtp(rig *g);
void check_rounds(rig *g);
void check_nextn(rig *g);
void check_pool(rig *g);
void check_pool_drafts(rig *g);
void check_draft_device(rig *g);
void check_expert_slots(rig *g);
void check_rank_slots(rig *g);
void check_placements(rig *g);
void check_stages(rig *g);         /* several devices on one GPU share the layers */
void check_overlap(rig *g);        /* what they do at the same time, and their recordings */
void check_faults(rig *g);         /* one of them fails, or stalls */
void check_tensor(rig *g);         /* they have a part of every layer each */
int check_links(const char *list); /* of GPUs; NULL: all. The exit status */
void check_plans(rig *g);          /* for GPUs that are not here, against the device's */
void check_offload(rig *g);        /* experts on the host beside the GPU */
void check_prefetch(rig *g);       /* experts that are fetched before their layer chooses */
void check_expert_soak(rig *g, double minutes);

#endif
