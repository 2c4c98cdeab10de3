/* cold_post.h - the memory through which a GPU hands experts to the host's cores, and gets their
 * products back (cold_pool.h). C and CUDA read it.
 *
 *     GPU     job -> x -> fence -> post.seq = n          .. post.done == n? -> y
 *     host    post.seq == n? -> products of x -> y -> post.done = n (release)
 *
 * There is one job at a time. The GPU posts the next one after it has seen the answer. If it gives
 * up waiting, it posts no more jobs.
 *
 * Numbers of jobs wrap after some days of answers, and 0 is no job. The first number is close to
 * the end, so every run passes it.
 */
#ifndef BACKEND_CPU_COLD_POST_H
#define BACKEND_CPU_COLD_POST_H

#include <stdint.h>

#ifdef __cplusplus
typedef uint32_t cold_word;
#else
typedef _Atomic uint32_t cold_word;
#endif

enum {
    COLD_PAIRS = 64,   /* pairs of row and expert of a job, at most; so many experts at most */
    COLD_LINE = 64,    /* bytes: words of different writers lie apart */
    COLD_JOB_ROWS = 16 /* a pass of more rows hands nothing over */
};

/* The gated unit of a job: gelu(a) * b, silu(a) * b, or ACT_SWIGLU_CUT of backend/ops.h. */
typedef enum cold_unit { COLD_GELU, COLD_SILU, COLD_CUT, COLD_UNITS } cold_unit;

#define COLD_FIRST 0xfffffff0u /* the last job, before there was any */
#define COLD_NEXT(seq) ((seq) == 0xffffffffu ? 1u : (seq) + 1u)

typedef struct cold_post {
    cold_word seq; /* the last job */
    cold_word pad0[15];
    cold_word done; /* the last job that is answered */
    cold_word pad1[15];
    cold_word late; /* the job whose answer the GPU did not wait for any longer; 0: none */
    cold_word pad2[15];
    /* The job. Pairs first[i] .. first[i + 1] - 1 choose expert[i]; row[p] is pair p's row of x. */
    cold_word layer, n_experts, unit /* cold_unit */, unused;
    int32_t expert[COLD_PAIRS], first[COLD_PAIRS + 1], row[COLD_PAIRS];
} cold_post;

/* What the GPU asks the host to copy into its buffers before a layer needs it
 * (backend/cuda/early.h). The GPU writes an entry, and then `seq`, its number; entry seq %
 * EARLY_POSTS. */
enum {
    EARLY_POSTS = 16,
    EARLY_MOST = 4,            /* experts on their way, at most */
    EARLY_FAR = 3,             /* layers between a guess and its use; */
    EARLY_NEAR = 2,            /* where guesses so far ahead are too often wrong */
    EARLY_SETS = EARLY_FAR + 1 /* of buffers */
};
typedef struct early_post {
    cold_word seq; /* the last entry; 0: none so far */
    cold_word pad0[15];
    struct {
        cold_word layer, n;
        cold_word expert[EARLY_MOST];
    } ask[EARLY_POSTS];
    /* Since it was opened, as of the last request: experts asked for; chosen of these; of the
     * chosen, still on their way when their layer chose; requests that were waited for in vain. */
    cold_word n_asked, n_used, n_waited, n_late;
} early_post;

/* All of it, in one block of page-locked memory of cold_room_bytes. */
typedef struct cold_room {
    cold_post *post;
    int8_t *q;           /* [COLD_JOB_ROWS][n_in] codes of x */
    void *s;             /* [COLD_JOB_ROWS][n_in / 32] their scales: float, and two int16 sums */
    float *y;            /* [COLD_PAIRS][n_out] */
    int32_t n_in, n_out; /* the largest of all layers; rows lie so far apart */
} cold_room;

#endif
