/* offload_post.h - the memory through which a GPU hands experts to the host's cores, and gets their
 * products back (offload_pool.h). C and CUDA read it.
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
#ifndef BACKEND_CPU_OFFLOAD_POST_H
#define BACKEND_CPU_OFFLOAD_POST_H

#include <stdint.h>

#ifdef __cplusplus
typedef uint32_t offload_word;
#else
typedef _Atomic uint32_t offload_word;
#endif

enum {
    OFFLOAD_PAIRS = 64,   /* pairs of row and expert of a job, at most; so many experts at most */
    OFFLOAD_LINE = 64,    /* bytes: words of different writers lie apart */
    OFFLOAD_JOB_ROWS = 16 /* a pass of more rows hands nothing over */
};

/* The gated unit of a job: gelu(a) * b, silu(a) * b, or ACT_SWIGLU_CUT of backend/ops.h. */
typedef enum offload_unit { OFFLOAD_GELU, OFFLOAD_SILU, OFFLOAD_CUT, OFFLOAD_UNITS } offload_unit;

#define OFFLOAD_FIRST 0xfffffff0u /* the last job, before there was any */
#define OFFLOAD_NEXT(seq) ((seq) == 0xffffffffu ? 1u : (seq) + 1u)

typedef struct offload_post {
    offload_word seq; /* the last job */
    offload_word pad0[15];
    offload_word done; /* the last job that is answered */
    offload_word pad1[15];
    offload_word late; /* the job whose answer the GPU did not wait for any longer; 0: none */
    offload_word pad2[15];
    /* The job. Pairs first[i] .. first[i + 1] - 1 choose expert[i]; row[p] is pair p's row of x. */
    offload_word layer, n_experts, unit /* offload_unit */, unused;
    int32_t expert[OFFLOAD_PAIRS], first[OFFLOAD_PAIRS + 1], row[OFFLOAD_PAIRS];
} offload_post;

/* What the GPU asks the host to copy into its buffers before a layer needs it
 * (backend/cuda/experts/prefetch.h). The GPU writes an entry, and then `seq`, its number; entry seq
 * % PREFETCH_POSTS. */
enum {
    PREFETCH_POSTS = 16,
    PREFETCH_MOST = 4,               /* experts on their way, at most */
    PREFETCH_FAR = 3,                /* layers between a guess and its use; */
    PREFETCH_NEAR = 2,               /* where guesses so far ahead are too often wrong */
    PREFETCH_SETS = PREFETCH_FAR + 1 /* of buffers */
};
typedef struct prefetch_post {
    offload_word seq; /* the last entry; 0: none so far */
    offload_word pad0[15];
    struct {
        offload_word layer, n;
        offload_word expert[PREFETCH_MOST];
    } ask[PREFETCH_POSTS];
    /* Since it was opened, as of the last request: experts asked for; chosen of these; of the
     * chosen, still on their way when their layer chose; requests that were waited for in vain. */
    offload_word n_asked, n_used, n_waited, n_late;
} prefetch_post;

/* All of it, in one block of page-locked memory of offload_room_bytes. */
typedef struct offload_room {
    offload_post *post;
    int8_t *q;           /* [OFFLOAD_JOB_ROWS][n_in] codes of x */
    void *s;             /* [OFFLOAD_JOB_ROWS][n_in / 32] their scales: float, and two int16 sums */
    float *y;            /* [OFFLOAD_PAIRS][n_out]: of a pair one segment after the other */
    int32_t n_in, n_out; /* the largest of all layers; rows lie so far apart */
} offload_room;

#endif
