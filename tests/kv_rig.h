/* kv_rig.h - a small model, and a cache of it in any format, driven pass by pass.
 *
 * The model has everything that caches must handle: rings that wrap many times, global layers whose
 * keys and values are one projection, layers that read a donor's keys, head sizes of 128 and 256,
 * which every format can hold. Every store begins full of NaN, so reading an unwritten row shows.
 */
#ifndef TESTS_KV_RIG_H
#define TESTS_KV_RIG_H

#include "kv/kv.h"
#include "model/model.h"
#include "tests/rig_model.h"

enum {
    RIG_LONG = 43 * RIG_WINDOW + 4, /* past 512 by less than a window */
    RIG_ROWS = 512,
    RIG_OWNERS = 4,
    RIG_SEQS = 4, /* most sequences in a pass */
    RIG_FORMATS = 27
};

extern const kv_words
    rig_format[RIG_FORMATS]; /* every format, in one stream and in two, and mixed */
const char *rig_words(const kv_words *w, char *buf, size_t cap);

typedef struct rig {
    model m;
    device *dev;
    kv_layout l;
    kv_cache c;
    kv_batch b;
    int32_t n_pool; /* tokens of the pools to come; 0: one context */
    bool shuffled;  /* the caches to come take their pages in any order */
    void *scratch;
    size_t scratch_bytes;
} rig;

const char *rig_model(void); /* writes the model's file; its path, valid until the test ends */
void rig_open(rig *r);       /* model and device */
bool rig_open_on(rig *r, const cpu_options *o); /* false: this machine lacks the instructions */
void rig_close(rig *r);
/* Checks that the cache took exactly the planned bytes. */
void rig_open_cache(rig *r, const kv_words *words, int32_t rows);
void rig_close_cache(rig *r);
/* Fills with NaN what c alone holds, and free pages. */
void rig_poison(kv_cache *c);
void rig_poison_free(kv_cache *c); /* free pages alone */
/* Free pages of c's pool will come in any order. */
void rig_shuffle(kv_cache *c);

/* Runs the rows in r->b, all of which are wanted; logits [rows, RIG_VOCAB]. */
void rig_pass(rig *r, float *logits);
/* Runs n rows after the committed ones and commits the first `keep`; logits [n, RIG_VOCAB]. */
void rig_run(rig *r, const int32_t *ids, int32_t n, int32_t keep, float *logits);
/* The oracle: logits of RIG_LONG tokens, one row per pass. The caller frees. */
float *rig_token_by_token(rig *r, const kv_words *w, const int32_t *ids);
bool rig_same(const float *a, const float *b, int32_t rows); /* bit for bit */
void rig_draw(int32_t *ids, int32_t n, uint64_t *rng);

#endif
