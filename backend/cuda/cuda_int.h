/* cuda_int.h - the CUDA device, for its host code in C11.
 *
 * runtime.c      the GPU that a thread has selected; failures of the runtime
 * cuda.c, weights.c   the device, its memory, the step block; weights on their way to it
 * ops.c          the op table: picks kernels by row count and weight layout
 * activation_copies.c   copies of activations: int8, bf16, rotated
 * head_ops.c     heads of queries, keys and values: norm, rotation, store
 * blas.c         products of long prompts: cuBLASLt or matmul_wide.cu
 * graph.c        passes of few rows, recorded and replayed
 * op_times.c     how long these take, op by op
 * pinned.c       page-locked host memory, and large copies
 * experts.c      experts of which only some have a place on the device
 * page_moves.c   pages of keys, copied and moved beside the passes
 * page_ops.c     summaries of pages, and scores by them
 * recur_ops.c    recurrent layers
 * kernels.c      the words for which kernel does what
 * plan_only.c    a device without a GPU, for plans; sizes.c: what launchers say of memory
 * *.cu           kernels, one idea per file, each behind an extern "C" launcher that takes a stream
 * launch*.h      these launchers by subject. Kernels include no other header of the host, so a
 *                change of this one compiles none of them
 *
 * The one idea: ops enqueue and return. What changes between passes is read by kernels from the
 * step block at a fixed address; what a launcher is given are shapes and pointers that never move.
 */
#ifndef BACKEND_CUDA_CUDA_INT_H
#define BACKEND_CUDA_CUDA_INT_H

#include "backend/cuda/attend/launch_attend.h"
#include "backend/cuda/pages/launch_pages.h"
#include "backend/cuda/product/launch_products.h"
#include "backend/cuda/recur/launch_recur.h"
#include "backend/cuda/attend/launch_skip.h"
#include "backend/cuda/launch_small.h"
#include "backend/ops.h"

#include <stdatomic.h>

enum { READ_MIB = 4096 /* much more than any cache */ };
enum { STEP_BUFFERS = PASS_SIDES_MAX + 1, TICKETS = 4096 };

/* A rowset on the device. */
typedef struct step_rows {
    dev_rows rows; /* what all views share */
    row_keys keys[STORE_KINDS];
    const uint64_t *seen;
    const int32_t *axis[ROPE_AXES_MAX]; /* as in rowset; side by side */
} step_rows;

/* The rows of a pass that a page_watch looks at, and where it adds to. n_pages is not part of it:
 * kernels read it from the device. */
typedef struct row_run {
    int32_t first, n;
} row_run;
typedef struct watched_rows {
    const void *sums, *votes, *room;
    row_run all, out; /* of st->all, of st->out */
} watched_rows;

/* Whose account a tally on the device is. */
typedef struct stats_place {
    int16_t seq, il;
} stats_place;

/* peers.c: the last pass of the device, if it was a chunk of a prompt (rows 0: it was not). Where
 * chunks of a kind follow each other, what crosses to the device has two places by turns. */
typedef struct chunk_turns {
    const void *scratch;
    int32_t rows;
    int8_t turn;
    uint32_t n;           /* chunks so far */
    cudaEvent_t begun[2]; /* the beginning of chunk n - 1 is begun[n - 1 & 1] */
} chunk_turns;

/* A pass that was recorded, or seen once. All that its kernels were given depends on these alone.
 */
typedef struct graph_key {
    const void *model, *kv;
    const void *scratch[PASS_SIDES_MAX]; /* of every side: a leg ends with a copy to the next one */
    int32_t leg, rows, outs, n_seqs, kv_bucket[STORE_KINDS], kv_least[STORE_KINDS];
    bool tree, counted;        /* counted: what attention leaves out is */
    bool far;                  /* rows have keys enough to drop tiles in every store (skip.c) */
    float skip[STEP_SEQS_MAX]; /* sparse_rule.skip; all 0: attention is exact */
    pass_taps taps;
    watched_rows watch;
    uint64_t lora; /* lora_rows_key */
} graph_key;
typedef struct graph_slot {
    graph_key key;
    cudaGraphExec_t exec; /* NULL: seen once */
    mat y;                /* its result */
    uint64_t used;        /* 0: the slot is free */
    bool crowded;         /* it takes counters while it runs, which no recording can */
    int32_t n_stats;      /* what its kernels count, as cuda_device.counted */
    stats_place counted[SPARSE_STATS];
} graph_slot;
enum { GRAPHS = 64, GRAPH_ROWS = 256 /* a pass of more rows is not recorded */ };

typedef struct cuda_times cuda_times;
typedef struct cuda_blas cuda_blas;
typedef struct cuda_pins cuda_pins;
typedef struct cuda_experts cuda_experts;

/* Where the experts of a weight are that has slots for some of them (experts.c). */
struct expert_home {
    const int64_t *where; /* as packed.where, of the pass under way */
    uint32_t *count;
    uint8_t *from,
        *host;           /* this part at the address that `where` counts from; of expert 0's copy */
    size_t expert_bytes; /* from one slot, and one copy, to the next */
    int32_t layer;       /* in the list of layers with experts */
    int32_t first;       /* of the layer's experts: the weight's matrix 0 */
};
typedef struct expert_home expert_home;

typedef struct cuda_device {
    device dev; /* first: a device * is a cuda_device * */
    cudaStream_t stream;
    int32_t gpu; /* its number */
    gpu_facts facts;
    bool plan_only; /* there is no GPU behind it: plans and dry passes alone */
    bool broken;    /* a CUDA call failed; said once more in every later pass */
    err broken_why;
    /* Of devices that share a model's layers (stall.c). Those that send to each other are a ring;
     * NULL: nothing was sent. stalled: the GPU does not go on, so nothing may wait for it, and
     * nothing of its memory can be freed. */
    struct cuda_device *peer;
    bool stalled;
    int32_t stall_ms; /* without progress; checks set it */
    cudaEvent_t ended;
    int32_t shared_max;
    split_limits split;
    bool can_hopper, hopper; /* files *_hopper.cu run here; they are used */
    bool spread;             /* few rows of prompts take several blocks for a tile of pairs */
    bool int8_prompts;       /* products of prompts by the integer tensor cores (rates.c) */
    int32_t shallow;    /* answers' rows of at most so many keys go to split.cu instead; checks and
                           benches set it, otherwise it is SHALLOW_MEASURED */
    size_t slice_bytes; /* of keys and values that expand.cu makes at a time */
    int32_t skip_least; /* keys of the shortest rows of answers that drop tiles; checks set it */
    _Atomic uint64_t n_bytes; /* allocated */
    /* The step block: one device buffer, and pinned buffers it is filled from in turn. */
    char *step_at, *step_host[STEP_BUFFERS];
    cudaEvent_t step_done[STEP_BUFFERS];
    size_t step_bytes;
    int32_t step_turn;
    cudaEvent_t here; /* in the stream, for other devices to wait for (peers.c) */
    cudaEvent_t edge; /* the same in a recording, of which it is an edge */
    bool after_edge;  /* the next kernel of a recording waits for other devices' */
    uint64_t peers;   /* bit k: it is known whether GPU k's memory is reached */
    uint64_t direct;  /* bit k: it is, by copies and by kernels */
    bool no_peers;    /* CARAT_PEERS=off: they go through the host, as between consumer boards */
    chunk_turns chunks;
    step_rows rows_all, rows_out; /* as uploaded for the pass under way */
    const uint32_t *pass_number;  /* pass.number */
    const dev_kv_base *kv;
    dev_recur recur;
    const int32_t *out_row;
    /* Numbers of keys of all rows are below; powers of two. A pool keeps few keys of a long
     * context, whose rings count on. */
    int32_t kv_bucket[STORE_KINDS];
    int32_t kv_least[STORE_KINDS]; /* every row has more keys; half of the bucket, or 0 */
    /* Loading. */
    char *raw, *pinned[2];
    size_t raw_bytes;
    struct pool *loaders; /* NULL but while weights are loaded */
    cudaEvent_t pinned_done[2];
    /* Routers so far, and those of them after which every kernel begins (routing.router). The last
     * router's kernel may still run when a later one begins. Then the next product lets its
     * successor begin late (product_args.late). */
    uint64_t n_routers, routers_ended;
    uint64_t router_releases; /* pass_side.n_releases when the last router was launched */
    bool router_runs;
    launch_memory launch; /* its ticket: the first of TICKETS, given out in turn */
    uint32_t next_ticket;
    int32_t *router_ticket; /* [ROUTER_TICKETS] */
    int32_t *recur_ticket;  /* [RECUR_TICKETS] */
    int32_t *watched_pages; /* [STEP_SEQS_MAX] n_pages of each page_watch of the pass */
    bool watch_shown;       /* it is on the device */
    watch_args watch;       /* queries of the pass under way that have not been asked */
    cuda_blas *blas;        /* what is known about products of long prompts */
    void *bounce;           /* pinned, for small downloads */
    cuda_pins *pins;        /* page-locked memory for snapshots */
    cuda_experts *experts;  /* NULL: all experts are on the device */
    uint64_t limit_bytes;   /* the most that n_bytes may be; 0: what the GPU has */
    uint32_t *maxima;       /* [SIFT_ROWS][SIFT_BLOCKS] */
    sift_result *sift;      /* [SIFT_ROWS] pinned: kernels write it, the host reads it */
    graph_slot graphs[GRAPHS];
    /* Of the pass under way. recording: of this device, or of another one whose recording this one
     * has joined. seen: for the first time. */
    graph_slot *recording, *seen;
    uint64_t graph_clock;
    bool no_graphs;    /* the runtime cannot record */
    cuda_times *times; /* op_times.c; NULL: none were taken */
    bool splits;       /* the pass under way is recorded with an event after each op */
    size_t read_bytes; /* that are read to find out how fast memory is; checks set less */
    /* Counters of what attention leaves out, of the pass under way: [SPARSE_STATS], the first
     * n_stats in use. They are added to `tally` at the pass's end. */
    unsigned long long *stats_at, *stats_host; /* device; pinned; NULL: no pass has needed them */
    struct sparse_stats *stats[SPARSE_STATS];
    stats_place counted[SPARSE_STATS];
    int32_t n_stats;
    bool crowded; /* the pass under way has more than there is room for */
    char name[320];
} cuda_device;

static inline cuda_device *cuda_of(const pass *p)
{
    return (cuda_device *)p->dev->self;
}

extern const device_ops cuda_ops; /* ops.c */

/* cards.c: the facts of a GPU, and those of the card that it is to imitate. E_ARG: no known
 * compute capability; E_UNSUPPORTED: *f has less. *f changes only if the call succeeds. */
struct cudaDeviceProp;
gpu_facts card_facts_of(const struct cudaDeviceProp *p);
status card_imitate(const char *name, gpu_facts *f, err *e);
enum { SHARED_LEAST = 96 << 10 /* bytes that every GPU of 8.0 and above grants a block */ };
void cuda_choose_kernels(cuda_device *c); /* cuda.c: by c->facts, and cu_gpu, which is the same */
/* cuda.c: with its table of functions, for plans alone; NULL: no memory. device_close ends it. */
cuda_device *cuda_new_device(void);
/* The facts of such a card, and the multiprocessors of a common one. E_ARG as card_imitate. */
status card_facts(const char *name, gpu_facts *f, err *e);

/* runtime.c: what every file asks of the CUDA runtime. */
/* Makes the device's GPU the calling thread's. Every entry point that any thread may call begins
 * with it, and so does every launch of an op. */
cuda_device *cuda_select(const device *d);
/* Keeps a failure of the runtime, in the device and in the pass, if there is one. True if r is
 * OK. */
bool cuda_ok(cuda_device *c, pass *p, cudaError_t r, const char *doing);

/* stall.c: waits until the stream, or the event, has been reached. False: a failure, kept as by
 * cuda_ok. Where devices share a model, one that makes no progress is a failure of all of them. */
bool cuda_await(cuda_device *c, pass *p, const char *doing);
bool cuda_await_event(cuda_device *c, pass *p, cudaEvent_t event, const char *doing);
void cuda_join(cuda_device *a, cuda_device *b); /* one sends to the other */
void cuda_limit_waits(device *d);
void cuda_part(cuda_device *c); /* before it is closed: no other device refers to it */

/* weights.c */
packed cuda_view(const weight *w);       /* of w->packed */
size_t cuda_slot_bytes(const weight *w); /* of one expert that may stay with the host */
int32_t cuda_pack_kind(const weight *w); /* the layout w gets, PACK_NONE if none */
size_t cuda_weight_bytes(const device *d, const weight *w);
status cuda_weight_load(device *d, weight *w, err *e);
void cuda_weight_free(device *d, weight *w);
void cuda_loading_free(cuda_device *c); /* frees the buffers of loading */

/* ops.c */
launch_memory cuda_launch_memory(cuda_device *c); /* with tickets of its own */

/* op_times.c */
status cuda_time_passes(device *d, err *e);
void cuda_timed_passes(device *d, device_pass_times *out);
void cuda_times_close(cuda_device *c);
bool cuda_splits_next(cuda_device *c); /* the pass that begins, which has a recording */
cudaError_t cuda_launch_whole(cuda_device *c, cudaGraphExec_t x);
void cuda_split_begin(cuda_device *c, pass *p);              /* once it is being recorded */
void cuda_split_end(cuda_device *c, pass *p, cudaGraph_t g); /* once it was launched */
void cuda_mark_op(pass *p, const char *op); /* its kernels were launched */
void cuda_note_read(cuda_device *c, const packed *w, int32_t n_mat);
void cuda_note_bytes(cuda_device *c, uint64_t n_bytes);
/* The op that is under way reads n_mat matrices of w; n_bytes of keys, values or states. */
static inline void cuda_reads(cuda_device *c, const packed *w, int32_t n_mat)
{
    if (c->splits)
        cuda_note_read(c, w, n_mat);
}
static inline void cuda_reads_bytes(cuda_device *c, uint64_t n_bytes)
{
    if (c->splits)
        cuda_note_bytes(c, n_bytes);
}

/* blas.c */
cuda_blas *cuda_blas_open(bool library); /* false: it is not looked for; NULL: no memory */
cuda_blas *cuda_blas_plan_only(void);    /* a plan counts on the library; NULL: no memory */
void cuda_blas_close(cuda_blas *b);
bool cuda_blas_here(const cuda_device *c);
/* What multiplies passes of prompts of `rows` rows and more: matmul_wide.cu or the library, both
 * with the bits that matmul_mma.cu gives fewer rows; or the library with bits of its own, which
 * then takes all passes. */
typedef enum long_way { LONG_OWN, LONG_BLAS, LONG_ALL } long_way;
typedef struct long_choice {
    long_way way;
    int32_t rows; /* INT32_MAX: none are quicker so */
} long_choice;
/* Finds out the choice for a loaded weight's shape and layout, unless it is known. */
status cuda_long_learn(cuda_device *c, const weight *w, err *e);
long_choice cuda_long_choice(const cuda_device *c, const weight *w);
/* Rows of a weight that are unpacked and multiplied at a time; 0: too long ones. */
int32_t cuda_long_piece(int32_t n_in, int32_t n_out);
/* y = x w', all rows of w, a piece of the weight, as bf16; false: the library would not. */
bool cuda_long_matmul(cuda_device *c, dev_mat y, const uint16_t *x, const uint16_t *w,
                      const weight *of, long_way way);
/* The same by the library, whatever the choice; false also where it does not serve. */
bool cuda_blas_matmul(cuda_device *c, dev_mat y, const uint16_t *x, const uint16_t *w,
                      const weight *of);

/* rates.c: sets int8_prompts. own: there is a GPU, and the facts are its own. */
status cuda_choose_prompts(cuda_device *c, bool own, err *e);
/* Do prompts multiply by a weight of that layout so? */
static inline bool cuda_prompts_int8(const cuda_device *c, const weight *w, int32_t kind)
{
    return c->int8_prompts && w->n_mat == 1 && wide8_knows(kind);
}

/* pinned.c */
status cuda_pins_open(cuda_pins **k, int32_t gpu, err *e);
void cuda_pins_close(cuda_pins *k);
void *cuda_host_alloc(device *d, size_t n_bytes);
void cuda_host_free(device *d, void *at, size_t n_bytes);
void cuda_move(device *d, const block_move *m);
void cuda_moved(device *d);
void cuda_pins_wait(cuda_pins *k, const void *at, size_t n_bytes); /* until these are locked */
/* Copies between the device and any memory of the host, on a stream of c. */
cudaError_t cuda_copy_host(cuda_device *c, cudaStream_t stream, const block_move *m);

/* peers.c */
bool cuda_reaches(device *d, const device *other);
void *cuda_open_inbox(device *d, size_t n_bytes, bool reached);
void cuda_close_inbox(device *d, void *at, size_t n_bytes, bool reached);
void cuda_follow(device *d, device *before);
void cuda_line_up(device *const *d, int32_t n);
void cuda_send(device *d, device *other, void *to, const void *at, size_t n_bytes,
               send_order order);
void cuda_take_turn(cuda_device *c, pass *p); /* of the side that p was given last; in `begin` */

/* kernels.c */
kernel_speed cuda_product_kernel(const device *d, const weight *w, char *text, size_t cap);
kernel_speed cuda_attend_kernel(const device *d, const kv_view *kv, char *text, size_t cap);

/* attend_ops.c: the ops of caches, and what they decide */
typedef enum attend_path {
    ATTEND_NONE,  /* a format or a rotation that is not there */
    ATTEND_PLAIN, /* attend.cu */
    ATTEND_TILES, /* answers: split*.cu; prompts: flash.cu or flash*_hopper.cu, in the store */
    ATTEND_WGMMA, /* answers: split_hopper.cu, in rows of more than `shallow` keys */
    ATTEND_SLICES /* prompts: flash*.cu over what expand.cu makes of the store, a slice at a time */
} attend_path;
dev_kv cuda_kv_view(const kv_view *v, const float *k_weight); /* k_weight: of one stream */
attend_path cuda_attend_path(const cuda_device *c, const kv_view *kv, bool few_rows);
bool cuda_one_stream(const device *d, const kv_view *kv);

/* sparse.c: attention that leaves keys out. */
void cuda_narrow_sparse(const device *d, const kv_view *kv, bool prompt, sparse_rule *rule);
bool cuda_selects(const cuda_device *c, const kv_view *kv); /* do prompts select blocks? */
bool cuda_sparse_any(const pass *p, const kv_view *kv); /* does a sequence of a prompt's pass? */
bool cuda_sparse_allowed(pass *p, const kv_view *kv);   /* false: an error of the pass */
dev_sparse cuda_sparse_of(pass *p, const kv_view *kv, int32_t seq);
/* Scratch of block selection in a pass of so many rows. */
size_t cuda_select_bytes(const kv_view *kv, int32_t rows, int32_t n_head);
/* The lists of the query blocks of rows rs of one sequence, in their order, in scratch; NULL: none
 * selects. a: these rows on the device, with their queries. Rows that read everything are counted.
 */
const uint32_t *cuda_lists(pass *p, const kv_view *kv, const rowset *rs, const attend_args *a,
                           void *scratch);
/* The number of rows from r on that are query blocks which select, or (selects false) are not. */
int32_t cuda_block_run(const step *st, const rowset *rs, const kv_view *kv, int32_t r,
                       bool *selects);
/* The counters of this layer of sequence i; NULL: they are not counted. */
unsigned long long *cuda_stats_of(pass *p, int32_t i);
int cuda_open_stats(cuda_device *c); /* a CUDA error, or 0 */
void cuda_close_stats(cuda_device *c);
/* Room for n counters more: takes those that are there, if need be. */
void cuda_stats_room(pass *p, int32_t n);
/* Waits for the pass and adds what it has left out to its rules' tallies. */
void cuda_take_stats(cuda_device *c, pass *p);
/* Do as many query heads of the layer share a KV head as a tile of pairs holds? */
static inline bool cuda_fits_tile(const kv_view *kv, int32_t n_head)
{
    return query_heads_all(kv, n_head) <= SPLIT_PAIRS * kv_heads_all(kv);
}
/* skip.c: skip-softmax in answers. */
bool cuda_answers_skip(const cuda_device *c, const kv_view *kv); /* is there a kernel? */
/* The number of rows from r on that all drop tiles, or (skips false) are all exact. */
int32_t cuda_skip_run(const pass *p, const kv_view *kv, int32_t n_head, int32_t r, bool *skips);
/* Scratch of such rows, in any pass of so many. */
size_t cuda_skip_bytes(const cuda_device *c, const kv_view *kv, int32_t rows, int32_t n_head);
/* Rows row0 .. row0 + rows - 1 of a. keys: no row sees more. copy: as join_args.q. */
void cuda_skip_rows(pass *p, const kv_view *kv, const attend_args *a, int32_t row0, int32_t rows,
                    int32_t keys, void *scratch, join_args join);
/* Answers' rows of fewer keys are exact in this store. */
int32_t cuda_skip_least(const cuda_device *c, const kv_view *kv);
/* What a recording depends on; false: the pass's rows differ, and it is not recorded. */
bool cuda_skip_key(const cuda_device *c, const step *st, graph_key *k);
void cuda_kv_store(pass *p, const kv_view *kv, mat k, mat v);
void cuda_attend(pass *p, mat *o, mat q, const kv_view *kv, float scale);
void cuda_attend_gate(pass *p, mat *y, mat o, mat q, mat gate, act_kind act, const kv_view *kv,
                      float scale);

/* experts.c */
extern const struct expert_ops cuda_expert_ops;
/* Before a pass: what the copies of experts have come to, and which come next. */
void cuda_experts_begin(cuda_device *c, pass *p);
/* Before the first product of a layer's experts, and after the last. */
void cuda_experts_arrive(pass *p, const weight *gate);
void cuda_experts_leave(pass *p, const weight *down);

/* page_moves.c */
extern const struct page_move_ops cuda_page_moves;

/* page_ops.c */
void cuda_sum_pages(device *d, const kv_view *v, const kv_base *base, const page_sums *to,
                    int32_t first, int32_t row, int32_t n);
void cuda_watch_pages(pass *p, mat q, const kv_view *kv, float scale, const page_watch *w);
/* Asks all pages with the queries that wait. */
void cuda_ask_pages(cuda_device *c, pass *p);
/* Before the pass's first launch that reads it, and outside of recordings. */
void cuda_show_watch(cuda_device *c, const pass *p);
/* The rows of the pass's only watch; false: a recording cannot have them. */
bool cuda_watched_rows(const pass *p, watched_rows *to);

/* recur_ops.c */
void cuda_conv(pass *p, mat y, mat x, const weight *w, const recur_view *rv);
void cuda_delta(pass *p, mat o, mat c, mat a, mat b, const delta_gate *g, const recur_view *rv);
bool cuda_delta_unit(pass *p, mat *y, mat x, mat z, mat a, mat b, const delta_unit *u,
                     const recur_view *rv);
void cuda_recur_settle(device *d, const recur_view *v, const recur_base *base, int32_t n,
                       const recur_seq *s);
dev_recur_seq cuda_recur_seq(const recur_seq *s);

/* graph.c */
bool cuda_replay(device *d, pass *p, const void *model, const void *kv, mat *y);
void cuda_recorded(device *d, pass *p, mat y);
void cuda_graphs_drop(cuda_device *c); /* and those of devices that share its model */

/* activation_copies.c. bf: the bf16 copy, else int8. single: rows in tiles of one. */
dev_mat cuda_mat(mat m); /* flat */
/* Scratch for the copy of y, which an op will make. */
void cuda_copy_room(pass *p, mat *y, bool bf);
/* The copy of y that an op makes which writes y, in that room or in scratch. */
dev_quant cuda_new_copy(pass *p, mat *y, bool bf, bool single);
bool cuda_has_copy(mat x, bool bf, bool single);
/* Scratch for the rotated queries, and whether q has that. */
void cuda_rotated_room(pass *p, mat *q);
bool cuda_has_rotated_room(mat q);
/* The copy of x, made now if there is none; x gets it. */
dev_quant cuda_copy(pass *p, mat *x, bool bf, bool single);
#endif
