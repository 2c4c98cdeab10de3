/* recur_model.h - a tiny model with recurrent layers: Qwen3.5 of eight layers, six of them
 * recurrent, with a made-up vocabulary. */
#ifndef TESTS_RECUR_MODEL_H
#define TESTS_RECUR_MODEL_H

#include "carat.h"

#include <stdbool.h>

typedef struct recur_model_file {
    bool experts;
    bool nextn;        /* with a NextN layer, which leaves the other tensors as they are */
    bool next_by_last; /* the layers add nothing: a token follows from the last one alone, and the
                          NextN layer knows how */
    const char *nan_tensor; /* its first element becomes NaN */
    float scale;            /* of the embedding and the head; 0: 1. Larger: surer answers */
} recur_model_file;

/* Writes the file into the test's temporary directory. v may be NULL. */
const char *recur_model_write(const recur_model_file *v);
carat_model *recur_model_open(const recur_model_file *v, const carat_model_options *opt);

/* ---- What tests of them share ------------------------------------------------------------ */

enum { RECUR_CTX = 512 };

typedef struct recur_heard {
    int32_t id[RECUR_CTX], n, refuse_at; /* 0: never */
} recur_heard;
bool recur_hear(void *user, const carat_event *ev); /* user: a recur_heard */
carat_generate_options recur_greedy(int32_t max_tokens);

/* n_ctx 0: RECUR_CTX. */
carat_session *recur_session(carat_model *m, carat_session_options o);
void recur_draw(const carat_model *m, int32_t *ids, int64_t n, uint64_t *rng);
/* s and a fresh session agree on the last row of ids[0..n). Returns what s reused. */
int64_t recur_like_fresh(carat_session *s, const int32_t *ids, int64_t n, int32_t n_ctx);

#endif
