/* pass.h - what one forward pass holds: device, step, scratch, first error.
 *
 * Ops return no status: the first failure stays in the pass, later ops do nothing, the caller asks
 * once with pass_failed. Results are bumped from one scratch block; a model marks before a layer
 * and releases after it, so the same calls give the same addresses every time.
 *
 * A dry pass (dry == true) runs the same model code with no scratch and computes nothing: every
 * op checks its shapes, takes its scratch and returns. Its `peak` is the scratch a real pass of
 * that many rows needs, exactly, and its tallies are the bytes and operations it will move.
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

/* Copies of what a drafter reads of a model. After layer il: the residual stream, all rows of the
 * pass, in their order. PASS_TAP_NORM: what the output head reads, the wanted rows alone. `to` has
 * room for them, and a fixed address, which recorded passes depend on. It lies in the memory of
 * `side`, where the copy goes wherever the layer is; a pass with a tap on another side than
 * PASS_MAIN is not recorded. The struct belongs to the caller and stays as it is for the pass. */
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

/* Side 0 is the main one. At most: eight GPUs and a CPU. */
enum { PASS_MAIN = 0, PASS_SIDES_MAX = 9 };

typedef struct pass_side {
    device *dev;
    unsigned char *scratch; /* memory of dev; NULL when dry */
    size_t scratch_bytes;
    size_t at, peak; /* bytes in use; the most there were */
} pass_side;

typedef struct pass {
    device *dev; /* of the side that the pass is on: side[here].dev */
    const step *st;
    const rowset *rows; /* the rows that x now has: &st->all, then &st->out (op_keep_outputs) */
    bool dry;
    int32_t n_sides, here;
    pass_side side[PASS_SIDES_MAX];
    int32_t il; /* layer being computed, for traces and errors; -1 outside */
    const pass_taps *taps; /* NULL: none; set after pass_begin */
    uint64_t n_flops, weight_bytes_read, kv_bytes_read; /* tallies of a dry pass */
    err e;
} pass;

void pass_begin(pass *p, device *dev, const step *st, void *scratch, size_t scratch_bytes);
/* Adds the next side, 1 and up, with scratch of its own (NULL in a dry pass). */
void pass_add_side(pass *p, device *dev, void *scratch, size_t scratch_bytes);
/* Moves the pass to that side; copies nothing. */
void pass_turn(pass *p, int32_t side);
/* Copies n_bytes from memory of side `from` to memory of the side that the pass is on. */
void pass_carry(pass *p, int32_t from, void *to, const void *at, size_t n_bytes);
static inline bool pass_failed(const pass *p)
{
    return p->e.status != OK;
}
static inline size_t pass_mark(const pass *p)
{
    return p->side[p->here].at;
}
void pass_release(pass *p, size_t mark); /* debug builds poison what is released */

/* n_bytes of scratch, 64-aligned; NULL when dry or failed. For a device's own temporaries, which
 * it releases itself by mark. */
void *pass_temp(pass *p, size_t n_bytes);
mat pass_mat(pass *p, int32_t rows, int32_t heads, int32_t cols);

/* False, with the error set, unless ok; also false if the pass has failed already. */
bool pass_shapes(pass *p, const char *op, bool ok);
/* For models: x after layer il, or for PASS_TAP_NORM. */
void pass_tap(pass *p, int32_t il, mat x);
/* The last layer that is tapped: up to there all rows are computed. -1: none is. */
int32_t pass_last_tap(const pass *p);

#endif
