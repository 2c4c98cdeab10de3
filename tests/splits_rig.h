/* splits_rig.h - a model on one device and on several, and what it answers there: for tests and for
 * checks on a GPU that compare these bit for bit. Returns errors and checks nothing itself.
 */
#ifndef TESTS_SPLITS_RIG_H
#define TESTS_SPLITS_RIG_H

#include "carat.h"

enum { SPLITS_MAX = 4, SPLITS_TOKENS = 24, SPLITS_TOP = 3 };

typedef struct split_place {
    const char *split; /* "tensor", "layers"; NULL: the model is whole, on one device */
    int32_t n;         /* devices, 1 to SPLITS_MAX; 0: 1 */
    bool gpu;          /* GPU 0, opened n times; else n CPU devices of one thread */
    const char *parts; /* of layers: --gpu-split; NULL: by memory */
} split_place;

/* o: its devices and its split are replaced. */
carat_status splits_open(const char *path, carat_model_options o, split_place at, carat_model **m,
                         carat_error *e);

/* Answers of a batch. Every second one is greedy, the others are sampled. Two prompts that follow
 * each other begin with the same tokens. */
typedef struct split_jobs {
    carat_session_options session;
    int32_t n, n_slots;       /* answers; how many of them side by side */
    int32_t n_tokens;         /* of an answer, at most SPLITS_TOKENS */
    int32_t longest;          /* prompt, in tokens; the shortest has half of it */
    int32_t n_ids;            /* of which prompts are made: a few repeat themselves; 0: all */
    uint64_t seed;            /* of the prompts */
    const char *const *texts; /* [n] prompts in the place of random tokens; NULL: none */
    bool pictures;            /* every prompt has one behind its first tokens */
    int32_t n_draft;          /* tokens that are drafted each time; 0: as measured */
} split_jobs;

typedef struct split_said {
    int32_t id[SPLITS_TOKENS], n, n_drafted;
    float logprob[SPLITS_TOKENS][SPLITS_TOP]; /* of the most probable tokens */
    carat_media *picture;                     /* until all have answered */
    bool done;
    carat_status st;
    carat_error e;
} split_said;

/* out: [j->n]. */
carat_status splits_answer(carat_model *m, const split_jobs *j, split_said *out, carat_error *e);
/* The number of the first answer whose tokens or probabilities differ; -1: none. */
int32_t splits_differ(const split_said *a, const split_said *b, int32_t n);
int32_t splits_drafted(const split_said *a, int32_t n); /* tokens of all answers */
/* What goes with a split, as answers of tiny models and of the bundled one. */
typedef struct split_case {
    const char *name, *size, *more; /* more: an option of carat synth; size NULL: the bundled one */
    const char *tower, *draft;      /* sizes; draft also "nextn"; NULL: none */
    split_jobs jobs;
} split_case;
enum { SPLIT_CASES = 9 };
extern const split_case split_cases[SPLIT_CASES];
/* Its files, and the options that name them. Of the path: valid as those of synth_file. */
const char *split_case_write(const split_case *c, carat_model_options *o);

/* The distance of b from a, by the length of a. */
double splits_distance(const float *a, const float *b, size_t n);

#endif
