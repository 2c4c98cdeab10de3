/* pass.h - the state of one forward pass: device, step, scratch, first error.
 *
 * Ops return no status. The first failure stays in the pass, later ops do nothing, and the caller
 * asks once with pass_failed. Results come from one scratch block by a bump pointer. A model marks
 * the pointer before a layer and releases to the mark after it, so equal calls give equal
 * addresses.
 *
 * A dry pass (dry == true) runs the same model code without scratch and computes nothing: every op
 * checks its shapes, takes its scratch and returns. Its `peak` is exactly the scratch that a real
 * pass of that many rows needs; its tallies are the bytes and operations of a real pass.
 *
 * A model may be divided between devices. Then a pass has several sides, a device and a scratch
 * block each: side PASS_MAIN, where the pass begins and ends, and others in any order, a CPU among
 * them. The pass is on one side at a time; the model crosses over explicitly (op_cross, op_visit
 * in ops.h). One thread at a time.
 */
#ifndef BACKEND_PASS_H
#define BACKEND_PASS_H

#include "backend/mat.h"
#include "backend/step.h"
#include "base/err.h"

typedef struct device device;

enum { PASS_TAPS_MAX = 16 };

/* A tap copies activations for a drafter. il is a layer: the residual stream after that layer, all
 * rows of the pass in their order. il is PASS_TAP_NORM: the input of the output head, the wanted
 * rows only. `to` must hold that many rows; recorded passes require that its address never changes.
 * It is memory of side `side`; the copy goes there from whichever side the layer is on. A pass with
 * a tap on a side other than PASS_MAIN is not recorded. The caller owns the struct and must not
 * change it during the pass. */
enum { PASS_TAP_NORM = -1 };
typedef struct pass_tap_point {
    int32_t il;
    int8_t side;
    mat to;
} pass_tap_point;

typedef struct pass_taps {
    int32_t n;
    pass_tap_point at[PASS_TAPS_MAX];
} pass_taps;

/* What rows attend to (op_tail). A token's place in `top` is its position. The caller clears it. */
typedef struct pass_tail {
    float *top;       /* host memory, [rows][stride]: the largest share of any head of any layer */
    int64_t stride;   /* more than any position */
    int32_t rows;     /* of the pass; all of one sequence, and all wanted */
    int32_t n_layers; /* counts the layers that added to it */
} pass_tail;

/* Side 0 is the main one. At most: eight GPUs and a CPU, and in a drafter's pass the drafter's. */
enum { PASS_MAIN = 0, PASS_SIDES_MAX = 10 };

/* How much some rows of a sequence attend to each of its pages, judged by the pages' summaries
 * (page_sums in ops.h): by the bound of all products with a page's keys, or by its mean. For every
 * layer with a linear store, every row at `pos` or later, every query head:
 *
 *     s_i = scale sum_k q_k m_ik + |q_k| w_ik, or scale q . mean_i        i = 0 .. n_pages - 1
 *     votes_i += softmax_i(s) 2^PAGE_VOTE_BITS, rounded down
 *
 * Sums of whole numbers are the same in any order: however heads and layers are divided among
 * devices. s_i that is no number, or infinite, counts as -infinity. The caller owns the struct and
 * must not change it during the pass; votes and room are memory of the side's device. Votes are
 * complete when the pass has ended. A pass with one watch may be recorded: then it is played again for any
 * n_pages, but for the same memory. */
enum {
    PAGE_WATCH_HEADS = 64, /* query heads that share a KV head: at most */
    PAGE_VOTE_BITS = 30    /* a query's whole vote is 2^30 */
};

/* Queries that a pass keeps, to ask pages with them later (page_rescore in ops.h): of each layer
 * with a linear store those of its rows at `pos` or later, as attention gets them. The caller owns
 * the lists and the memory; a pass that finds too little fails. */
typedef struct page_query {
    const kv_view *kv;
    float scale;
    mat q; /* memory of the view's side */
} page_query;
typedef struct page_queries {
    int32_t pos;
    int32_t n, cap;
    page_query *at;                                        /* [cap] */
    float *mem[PASS_SIDES_MAX];                            /* of each side's device */
    size_t used[PASS_SIDES_MAX], n_floats[PASS_SIDES_MAX]; /* floats */
} page_queries;
/* What one row of a pass keeps on a side. */
typedef struct page_query_size {
    int32_t layers, heads;
    size_t floats;
} page_query_size;

typedef struct page_watch {
    int32_t seq; /* of the step */
    int32_t pos, n_pages;
    const struct page_sums *sums;    /* [n_kv]: of each store; at NULL: it has none */
    uint64_t *votes[PASS_SIDES_MAX]; /* [n_pages] */
    float *room[PASS_SIDES_MAX];     /* page_watch_room floats, n_rooms times */
    int32_t n_rooms[PASS_SIDES_MAX]; /* 0: one. A GPU asks as many layers at once as it has rooms */
    page_queries *keep;              /* NULL: no queries are kept */
} page_watch;
static inline size_t page_watch_room(int32_t n_pages, int32_t head_dim)
{
    return PAGE_WATCH_HEADS * ((size_t)n_pages + 2 * (size_t)head_dim);
}

typedef struct pass_side {
    device *dev;
    unsigned char *scratch; /* memory of dev; NULL when dry */
    size_t scratch_bytes;
    size_t at, peak;     /* bytes in use; their maximum */
    uint64_t n_releases; /* so far; an op may write to what was released before it */
    bool replayed;       /* the leg under way is: its ops take scratch, no more */
    /* Which of two buffers takes what crosses to this side (op_cross). The device's `begin` changes
     * it from chunk to chunk of a prompt. early: the chunk before used the other one, and nothing
     * else has run on the device since. */
    int8_t turn;
    bool early;
    mat y;                 /* what that recording gives */
    page_query_size query; /* a tally of a dry pass */
    uint64_t crossed;      /* bytes that come from other sides: a tally of a dry pass */
} pass_side;

typedef struct pass {
    device *dev; /* of the side that the pass is on: side[here].dev */
    const step *st;
    const rowset *rows; /* the current rows of x: &st->all, then &st->out (op_keep_outputs) */
    bool dry;
    bool plans; /* a dry pass; else `dry` says that the leg is replayed */
    int32_t n_sides, here;
    /* Of a drafter's pass, which is `alone`. The drafter's device is PASS_MAIN; the target's sides
     * are `target` and those that follow it: 0, where the drafter is on the target's main device,
     * or 1. alone: no pass over the same scratch overlaps it, so what crosses has one buffer. */
    int32_t target;
    bool alone;
    /* Recorded passes have legs: the ops of a side between two crossings. The device of a leg
     * records and replays it. model, kv: of device.replay; legs: pass_first_leg has begun. */
    /* Of a tensor split: the pass of one rank, on the side of that number. ranks NULL: it is dry.
     */
    struct ranks *ranks;
    int32_t rank, n_ranks; /* n_ranks 0: the model is not split so */
    uint32_t n_sums;       /* of ranks, so far */
    /* A sum that waits for the next one (weight.sum_waits): side by side with that one's room, its
     * result and the parts of this rank's segments. y without rows: none. */
    struct {
        mat y, part[4];
    } waiting;
    bool recording;        /* its ops are being recorded, and run later, all at once */
    uint32_t number;       /* of the pass: that of no other pass within 2^32 of them */
    bool legs;
    bool joined; /* pass_first_ranks has begun: all sides have one recording */
    int32_t n_legs;
    const void *model, *kv;
    pass_side side[PASS_SIDES_MAX];
    int32_t il;              /* the current layer, for traces and errors; -1 outside layers */
    const pass_taps *taps;   /* NULL: none; set after pass_begin */
    pass_tail *tail;         /* NULL: nobody asks; set after pass_begin */
    const page_watch *watch; /* [n_watch]; set after pass_begin */
    int32_t n_watch;
    const float *lora; /* [LORAS_MAX]: the scales of all rows, in place of step.lora; NULL: the
                          step has them. Set after pass_begin */
    bool repeats;      /* an op runs again, for comparison: it counts nothing */
    bool hidden;       /* set after pass_begin: the forward pass ends with the normed input of the
                          output head, and leaves the head out */
    bool fresh;        /* set by model_forward: run, on a device that plays later passes of the
                          shape from a recording. Such a pass takes longer */
    uint64_t n_flops, weight_bytes_read; /* tallies of a dry pass */
    err e;
} pass;

/* What a copy to another device waits for. */
typedef enum send_order {
    SEND_BEHIND_BOTH, /* what both have been given so far; both wait for its end */
    SEND_EARLY,       /* the same, but the other's last pass does not use `to`: not for its end */
    SEND_UNORDERED    /* the caller orders it, by device.line_up before and behind */
} send_order;

/* Begins a pass over the rows of st, which it borrows, with dev as its main side. scratch: memory
 * of dev that the pass may use until it ends; NULL: a dry pass, which only counts what it would
 * use. */
void pass_begin(pass *p, device *dev, const step *st, void *scratch, size_t scratch_bytes);
/* Adds the next side, 1 and up, with scratch of its own (NULL in a dry pass). */
void pass_add_side(pass *p, device *dev, void *scratch, size_t scratch_bytes);
/* Ends a pass that computes, on every side, also after a failure. Before it returns, nothing may
 * rely on what the pass has stored, not even on keys. */
void pass_end(pass *p);
/* Recorded passes: the first leg, on `side`; the next one, where the pass has crossed from side
 * `from`; and the last, which ends the pass and gives its result, that of the ops being y. Between
 * them, ops of a leg that is replayed only take their scratch. */
void pass_first_leg(pass *p, int32_t side, const void *model, const void *kv);
void pass_next_leg(pass *p, int32_t from);
mat pass_last_leg(pass *p, mat y);
/* The same of a tensor split and of drafters, whose recording is the first side's and has the work
 * of all. True: it was replayed, and *y is its result. */
bool pass_first_ranks(pass *p, const void *model, const void *kv, mat *y);
mat pass_last_ranks(pass *p, mat y);
/* All ranks begin when all have ended what they were given so far. pass_first_ranks does it too. */
void pass_line_up_ranks(pass *p);
/* Moves the pass to that side; copies nothing. */
void pass_turn(pass *p, int32_t side);
/* Copies n_bytes from memory of side `from` to memory of the side that the pass is on. */
void pass_carry(pass *p, int32_t from, void *to, const void *at, size_t n_bytes, send_order order);
static inline bool pass_failed(const pass *p)
{
    return p->e.status != OK;
}
static inline size_t pass_mark(const pass *p)
{
    return p->side[p->here].at;
}
void pass_release(pass *p, size_t mark); /* debug builds poison released scratch */

/* n_bytes of scratch, 64-aligned; NULL when dry or failed. For a device's own temporaries, which
 * the device releases itself by mark. */
void *pass_temp(pass *p, size_t n_bytes);
mat pass_mat(pass *p, int32_t rows, int32_t heads, int32_t cols);

/* True if ok. Otherwise false, with the error set; also false if the pass has already failed. */
bool pass_shapes(pass *p, const char *op, bool ok);
/* Called by models with x after layer il, and with the normed x for PASS_TAP_NORM. */
void pass_tap(pass *p, int32_t il, mat x);
/* The last tapped layer, up to which all rows are computed; -1: no layer is tapped. */
int32_t pass_last_tap(const pass *p);

#endif
