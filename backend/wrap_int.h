/* wrap_int.h - a device around a device: its ops (wrap.c), mirrors of what they read
 * (wrap_mirror.c), and sums of what goes into products (wrap_inputs.c).
 */
#ifndef BACKEND_WRAP_INT_H
#define BACKEND_WRAP_INT_H

#include "backend/ops.h"

typedef enum wrap_kind { WRAP_TRACE, WRAP_TIME, WRAP_CHECK, WRAP_INPUTS } wrap_kind;

/* Of the inputs of a tensor's matrices: sums of squares [n_mat][n_in], and rows [n_mat]. */
typedef struct wrap_sums {
    const weight *of;
    double *sum;
    int64_t *n;
} wrap_sums;

enum {
    MIRRORS_MAX = 3 * STEP_SEQS_MAX + 16
}; /* of one call: two streams and a table of pages per sequence, and a few more */

typedef struct wrapper {
    device dev;
    wrap_kind kind;
    device *inner, *ref; /* ref: check only */
    device_write_fn write;
    void *user;
    char name[128];
    int32_t n_times;
    device_op_time times[DEVICE_OP_TIMES_MAX];
    device_op_time cost; /* of the call to come: bytes and operations */
    wrap_sums *sums;     /* inputs: of the tensors met so far */
    int32_t n_sums, sums_cap, last_sums;
    /* The call being made. */
    int phase;
    double start_ms;
    float *before, *result; /* check: the output before the call; after the inner device */
    size_t copy_cap;        /* floats each holds */
    /* apart: the inner device has its own memory. */
    bool apart;
    void *mirror[MIRRORS_MAX];
    int32_t n_mirrors;
    const float *out_at;         /* check: the address of the output on the device, */
    mat out;                     /* and its mirror */
    unsigned char *host_scratch; /* check: scratch of the reference */
    size_t host_scratch_bytes;
    unsigned char *dev_scratch; /* the pass's scratch, while the reference runs */
    const step *dev_step;
    step host_step;
    sparse_rule host_sparse[STEP_SEQS_MAX];
    recur_base *host_recur; /* mirrors, [n_seqs][n_recur] */
    kv_view host_view;
    rope host_rope;
} wrapper;

/* The allowed normalised mean square error between a device and the reference, per op. Products
 * round activations to int8: an error of about (1/127)^2/12 for uniform values. Attention on a GPU
 * multiplies f16. Sparse attention decides by scores that are rounded differently, and may drop
 * another tile near the limit. Everything else is f32 on both sides. */
double wrap_tolerance(const wrapper *d, const pass *p, const char *op, const weight *w);

/* ---- wrap_inputs.c ---- */

void inputs_add(wrapper *d, pass *p, mat x, const weight *w); /* w NULL: nothing */
/* The rows that are routed to each expert. */
void inputs_add_routed(wrapper *d, pass *p, mat x, routing r, const weight *w);
void inputs_free(wrapper *d);

/* ---- wrap_mirror.c: host memory that lives until the call ends ---- */

void wrap_copy_out(wrapper *w, float *to, mat m); /* from the inner device */
void wrap_copy_in(mat m, const float *from);
void *mirror_bytes(wrapper *w, pass *p, const void *from, size_t n_bytes);
mat mirror_mat(wrapper *w, pass *p, mat m);
/* A mirror of the output before the call. */
mat mirror_out(wrapper *w, pass *p, mat y);
routing mirror_routing(wrapper *w, pass *p, routing r);
const rope *mirror_rope(wrapper *w, pass *p, const rope *r);
/* Mirrors the whole store of every sequence, and points the pass to a step with the mirrors. */
const kv_view *mirror_view(wrapper *w, pass *p, const kv_view *kv);
/* Mirrors rv's store of every sequence before the call, because the call changes it. */
void mirror_recur(wrapper *w, pass *p, const recur_view *rv);
/* The reference works on the mirrors. */
void mirror_use_recur(wrapper *w, pass *p);
/* Compares the device's store after the call with the mirrors. */
void mirror_compare_recur(wrapper *w, pass *p, const char *op, const recur_view *rv);
/* Gives the pass host scratch, for the temporaries of the reference. */
void wrap_to_host_scratch(wrapper *w, pass *p);
void wrap_leave_call(wrapper *w, pass *p);

#endif
