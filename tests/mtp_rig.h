/* mtp_rig.h - an MTP assistant for the model of rig_model.h, and its arithmetic written out
 * plainly.
 *
 * The plain form is loops over double, in the order of the published description. It shares with
 * carat only the reader of GGUF files and the decoders of number formats.
 */
#ifndef TESTS_MTP_RIG_H
#define TESTS_MTP_RIG_H

#include "kv/kv.h"
#include "model/model.h"
#include "tests/rig_model.h"

enum { MTP_RIG_WIDTH = 48, MTP_RIG_TARGET_WIDTH = 64 };

/* How the assistant's file differs from the plain one; zeroed: dense, for heads of 128 and 256. */
typedef struct mtp_rig_file {
    const char *name; /* of the file; NULL: "mtp.gguf" */
    int32_t head_dim, head_dim_global;
    int32_t n_clusters, n_top;
    bool old;                       /* names of the first files */
    bool no_keys;                   /* only general.architecture */
    uint32_t type;                  /* a num_type of the matrices; 0: f32 */
    const char *drop, *extra, *nan; /* a tensor left out; one too many; one whose first element is
                                       NaN */
    const char *key;                /* a key (without the architecture) of value `value` */
    uint32_t value;
    int32_t n_target_embd, n_vocab, window, n_head; /* other than they should be; 0: right */
    int32_t list; /* the order of tokens: 1 all zero, 2 one token twice, 3 one beyond the end */
} mtp_rig_file;

const char *mtp_rig_write(const mtp_rig_file *f);

/* What the plain form computes with: a target, the assistant's file, and the target's cache, whose
 * stored keys and values it reads. halves: 0, or attention rounds queries, keys, values and
 * probabilities to f16, as kernels on tensor cores do. Every number above 0 rounds other multiples
 * of them, so that the errors of several numbers are a sample of what rounding does. */
typedef struct mtp_plain {
    const model *target;
    const gguf *draft;
    const kv_cache *cache;
    int halves;
} mtp_plain;

/* One step. h: [MTP_RIG_TARGET_WIDTH], replaced by the next one. The cache has the keys of
 * positions below c. logits: [RIG_VOCAB], -inf for tokens outside the chosen clusters. Gives how
 * much better the last chosen cluster scores than the best other one: where that is little,
 * rounding decides between them. INFINITY of a dense head. */
double mtp_plain_step(const mtp_plain *p, int64_t c, int32_t token, double *h, double *logits);
/* In place: logarithms of the soft max. */
void mtp_plain_log_softmax(double *logits, int32_t n);

#endif
