/* wrap.c - devices around a device: trace, time, check. See ops.h.
 *
 * A wrapper has the same op table, each entry one line: AROUND runs the call on the inner device,
 * and what happens before and after depends on the wrapper's kind. `check` runs the call twice:
 * first on the inner device, then, with the output put back as it was, on the reference kernels,
 * and compares. In a dry pass it runs both as well, so scratch is planned for both.
 *
 * Wrapping nests: "trace,check" is a trace around a check around the device. For CPU devices: the
 * wrappers read mats directly.
 */
#include "backend/ops.h"
#include "base/clock.h"
#include "base/mem.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

typedef enum wrap_kind { WRAP_TRACE, WRAP_TIME, WRAP_CHECK } wrap_kind;

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
    /* The call being made. */
    int phase;
    double start_ms;
    size_t mark;
    float *before, *result; /* check: the output as it was; as the inner device left it */
    size_t copy_cap;        /* floats each holds */
} wrapper;

/* Largest normalised mean square error between a device and the reference, per op. Products of
 * int8 activations are off by their rounding, about (1/127)^2/12 relative to a uniform peak;
 * everything else is f32 against f32. */
static double tolerance(const char *op, const weight *w)
{
    bool product = strstr(op, "mat") || strstr(op, "glu") || strstr(op, "down");
    bool rounded = product && w && w->type != NUM_F32;
    return rounded ? 1e-3 : 1e-9;
}

static void say(wrapper *w, const char *line)
{
    if (w->write)
        w->write(w->user, line);
}

static double norm_of(mat m)
{
    double s = 0;
    for (int32_t r = 0; r < m.rows; r++)
        for (int32_t i = 0; i < mat_width(m); i++)
            s += (double)mat_row(m, r)[i] * mat_row(m, r)[i];
    return sqrt(s);
}

static void copy_out(float *to, mat m)
{
    for (int32_t r = 0; r < m.rows; r++, to += mat_width(m))
        memcpy(to, mat_row(m, r), (size_t)mat_width(m) * sizeof *to);
}

static void copy_in(mat m, const float *from)
{
    for (int32_t r = 0; r < m.rows; r++, from += mat_width(m))
        memcpy(mat_row(m, r), from, (size_t)mat_width(m) * sizeof *from);
}

static bool room_for(wrapper *w, pass *p, mat y)
{
    size_t n = (size_t)y.rows * (size_t)mat_width(y);
    if (n > w->copy_cap) {
        /* A debugging device may allocate inside a pass; the ones it wraps may not. */
        mem_free(w->before);
        mem_free(w->result);
        w->before = mem_alloc(n * sizeof *w->before);
        w->result = mem_alloc(n * sizeof *w->result);
        w->copy_cap = w->before && w->result ? n : 0;
    }
    if (n > w->copy_cap)
        err_memory(&p->e, "the check wrapper", n * sizeof *w->before);
    return n <= w->copy_cap;
}

static void compare(wrapper *w, pass *p, const char *op, mat y, const weight *wt)
{
    double diff = 0, sum = 0;
    int32_t width = mat_width(y), bad_row = -1;
    for (int32_t r = 0; r < y.rows; r++)
        for (int32_t i = 0; i < width; i++) {
            double ref = mat_row(y, r)[i], got = w->result[(size_t)r * (size_t)width + i];
            if (ref == got || (isnan(ref) && isnan(got)))
                continue; /* equal, infinities included */
            if (!isfinite(ref - got) && bad_row < 0)
                bad_row = r;
            diff += (ref - got) * (ref - got);
            sum += ref * ref;
        }
    double nmse = diff / (sum > 0 ? sum : 1);
    if (bad_row >= 0 || nmse > tolerance(op, wt))
        err_set(&p->e, E_NUMERIC,
                "check: %s in layer %d%s%s: %d x %d differs from the reference by %.2e (allowed "
                "%.0e)%s",
                op, p->il, wt ? " with " : "", wt ? wt->name : "", y.rows, width, nmse,
                tolerance(op, wt), bad_row >= 0 ? ", and one of the two is not finite" : "");
    copy_in(y, w->result);
}

static void trace(wrapper *w, const pass *p, const char *op, mat y, const weight *wt)
{
    char line[256];
    snprintf(line, sizeof line, "layer %3d  %-12s %5d x %-6d norm %-12.6g first %.6g  %s\n", p->il,
             op, y.rows, mat_width(y), norm_of(y), y.rows ? y.at[0] : 0.0f, wt ? wt->name : "");
    say(w, line);
}

static void add_time(wrapper *w, const char *op, mat y, const weight *wt, double ms)
{
    device_op_time now = {.op = op, .type = wt ? num_name(wt->type) : "", .rows = y.rows};
    now.n_in = wt ? wt->n_in : 0;
    now.n_out = mat_width(y);
    int32_t i = 0;
    for (; i < w->n_times; i++) {
        device_op_time *t = &w->times[i];
        if (t->op == op && t->rows == now.rows && t->n_out == now.n_out && t->n_in == now.n_in &&
            t->type == now.type)
            break;
    }
    if (i == DEVICE_OP_TIMES_MAX)
        return; /* said in the table's last line */
    if (i == w->n_times)
        w->times[w->n_times++] = now;
    w->times[i].n_calls++;
    w->times[i].ms += ms;
    w->times[i].bytes += w->cost.bytes;
    w->times[i].int8_ops += w->cost.int8_ops;
    w->times[i].f32_ops += w->cost.f32_ops;
}

/* ---- What a call has to read and to multiply: its floor ------------------------------------ */

/* `rows` products with each of n_mat matrices' worth of bytes; rows counts over all matrices. */
static void cost_weight(pass *p, int64_t rows, int32_t n_mat, const weight *w)
{
    wrapper *d = p->dev->self;
    if (!w || p->dry)
        return;
    uint64_t ops = 2 * (uint64_t)rows * (uint64_t)w->n_in * (uint64_t)w->n_out;
    bool floats = w->type == NUM_F32 || w->type == NUM_F16 || w->type == NUM_BF16;
    d->cost.bytes +=
        (w->packed ? w->packed_bytes / (size_t)w->n_mat : w->mat_bytes) * (size_t)n_mat;
    if (floats)
        d->cost.f32_ops += ops;
    else
        d->cost.int8_ops += ops;
}

/* Experts that some row was given to are read once. */
static void cost_experts(pass *p, routing r, const weight *w)
{
    if (!w || p->dry)
        return;
    int32_t n = r.rows * r.k, n_used = 0;
    for (int32_t i = 0; i < n; i++) {
        int32_t j = 0;
        while (j < i && r.id[j] != r.id[i])
            j++;
        n_used += j == i;
    }
    cost_weight(p, n, n_used, w);
}

/* Keys and values in sight of consecutive rows of a sequence are read once. */
static void cost_attention(pass *p, mat q, const kv_view *kv)
{
    wrapper *d = p->dev->self;
    const rowset *rs = p->rows;
    const row_keys *keys = rows_keys(rs, kv);
    const int32_t *newest = kv->inside == KV_INSIDE_ALL ? keys->last : keys->index;
    for (int32_t r = 0, end; !p->dry && r < q.rows; r = end) {
        int64_t lo = INT64_MAX, hi = 0;
        for (end = r; end < q.rows && rs->seq[end] == rs->seq[r]; end++) {
            int64_t to = (int64_t)newest[end] + 1;
            int64_t from = kv->window && to > kv->window ? to - kv->window : 0;
            lo = from < lo ? from : lo;
            hi = to > hi ? to : hi;
            d->cost.f32_ops += 4 * (uint64_t)mat_width(q) * (uint64_t)(to - from);
        }
        d->cost.bytes +=
            (uint64_t)(hi - lo) * (uint64_t)kv->n_head_kv * (kv->k_row_bytes + kv->v_row_bytes);
    }
}

static wrapper *enter(pass *p, mat y)
{
    wrapper *w = p->dev->self;
    w->phase = 0;
    w->mark = pass_mark(p);
    p->dev = w->inner;
    if (w->kind == WRAP_CHECK && !p->dry && room_for(w, p, y))
        copy_out(w->before, y);
    w->start_ms = w->kind == WRAP_TIME ? clock_ms() : 0;
    return w;
}

/* After a run of the call: is there another? */
static bool again(wrapper *w, pass *p, const char *op, mat y, const weight *wt)
{
    pass_release(p, w->mark);
    if (w->kind == WRAP_CHECK && w->phase == 0 && !pass_failed(p)) {
        w->phase = 1;
        p->dev = w->ref;
        if (!p->dry) {
            copy_out(w->result, y);
            copy_in(y, w->before);
        }
        return true;
    }
    p->dev = &w->dev;
    if (p->dry || pass_failed(p))
        return false;
    if (w->kind == WRAP_CHECK)
        compare(w, p, op, y, wt);
    else if (w->kind == WRAP_TRACE)
        trace(w, p, op, y, wt);
    else
        add_time(w, op, y, wt, clock_ms() - w->start_ms);
    w->cost = (device_op_time){0};
    return false;
}

/* y: the mat that the call writes. */
#define AROUND(name, y, wt, call)                                                                  \
    wrapper *w_ = enter(p, y);                                                                     \
    do {                                                                                           \
        if (pass_failed(p))                                                                        \
            break;                                                                                 \
        const device_ops *op = p->dev->op;                                                         \
        call;                                                                                      \
    } while (again(w_, p, name, y, wt));                                                           \
    p->dev = &w_->dev

static void w_embed(pass *p, mat y, const weight *w, float c)
{
    AROUND("embed", y, w, op->embed(p, y, w, c));
}
static void w_rms_norm(pass *p, mat y, mat x, const weight *w, float eps)
{
    AROUND("rms_norm", y, w, op->rms_norm(p, y, x, w, eps));
}
static void w_matmul(pass *p, mat y, mat x, const weight *w)
{
    cost_weight(p, x.rows, 1, w);
    AROUND("matmul", y, w, op->matmul(p, y, x, w));
}
static void w_glu(pass *p, mat y, mat x, const weight *g, const weight *u, act_kind a)
{
    cost_weight(p, x.rows, 1, g);
    cost_weight(p, x.rows, 1, u);
    AROUND("glu", y, g, op->glu(p, y, x, g, u, a));
}
static void w_act_mul(pass *p, mat y, mat a, mat b, act_kind k)
{
    AROUND("act_mul", y, NULL, op->act_mul(p, y, a, b, k));
}
static void w_rope(pass *p, mat x, const rope *r)
{
    AROUND("rope", x, NULL, op->rope(p, x, r));
}
static void w_attend(pass *p, mat o, mat q, const kv_view *kv, float scale)
{
    cost_attention(p, q, kv);
    AROUND("attend", o, NULL, op->attend(p, o, q, kv, scale));
}
static void w_add(pass *p, mat y, mat a, mat b)
{
    AROUND("add", y, NULL, op->add(p, y, a, b));
}
static void w_scale(pass *p, mat x, float c, const weight *w)
{
    AROUND("scale", x, NULL, op->scale(p, x, c, w));
}
static void w_add_rms_norm(pass *p, mat x, mat y, const weight *w, float eps)
{
    AROUND("add_rms_norm", x, w, op->add_rms_norm(p, x, y, w, eps));
}
static void w_moe_glu(pass *p, mat y, mat x, routing r, const weight *g, const weight *u,
                      act_kind a)
{
    cost_experts(p, r, g);
    cost_experts(p, r, u);
    AROUND("moe_glu", y, g, op->moe_glu(p, y, x, r, g, u, a));
}
static void w_moe_down(pass *p, mat y, mat x, routing r, const weight *d)
{
    cost_experts(p, r, d);
    AROUND("moe_down", y, d, op->moe_down(p, y, x, r, d));
}
static void w_gather(pass *p, mat y, mat x, const int32_t *row)
{
    AROUND("gather", y, NULL, op->gather(p, y, x, row));
}
static void w_copy(pass *p, mat y, mat x)
{
    AROUND("copy", y, NULL, op->copy(p, y, x));
}
static void w_softcap(pass *p, mat x, float cap, const int32_t *ids, int32_t n)
{
    AROUND("softcap", x, NULL, op->softcap(p, x, cap, ids, n));
}
/* The weights of the chosen experts; a different choice shows as different weights. */
static void w_route(pass *p, routing r, mat logits, const weight *scale)
{
    mat y = {.at = r.weight, .rows = r.rows, .heads = 1, .cols = r.k, .stride = r.k};
    AROUND("route", y, NULL, op->route(p, r, logits, scale));
}
/* What is stored shows when it is attended to; here only the keys' norm and the time. */
static void w_kv_store(pass *p, const kv_view *kv, mat k, mat v)
{
    AROUND("kv_store", k, NULL, op->kv_store(p, kv, k, v));
}

static void *w_alloc(device *d, size_t n)
{
    wrapper *w = d->self;
    return w->inner->alloc(w->inner, n);
}
static void w_release(device *d, void *at, size_t n)
{
    wrapper *w = d->self;
    w->inner->release(w->inner, at, n);
}
static void w_clear(device *d, void *at, size_t n)
{
    wrapper *w = d->self;
    w->inner->clear(w->inner, at, n);
}
static void w_upload(device *d, void *to, const void *from, size_t n)
{
    wrapper *w = d->self;
    w->inner->upload(w->inner, to, from, n);
}
static void w_download(device *d, void *to, const void *from, size_t n)
{
    wrapper *w = d->self;
    w->inner->download(w->inner, to, from, n);
}
static status w_weight_load(device *d, weight *wt, err *e)
{
    wrapper *w = d->self;
    return w->inner->weight_load(w->inner, wt, e);
}
static void w_weight_free(device *d, weight *wt)
{
    wrapper *w = d->self;
    w->inner->weight_free(w->inner, wt);
}
static size_t w_weight_bytes(const device *d, const weight *wt)
{
    const wrapper *w = d->self;
    return w->inner->weight_bytes(w->inner, wt);
}

static uint64_t w_used_bytes(const device *d)
{
    const wrapper *w = d->self;
    return w->inner->used_bytes(w->inner);
}

static kernel_speed w_attend_kernel(const device *d, const kv_view *kv, char *text, size_t cap)
{
    const wrapper *w = d->self;
    return device_attend_kernel(w->inner, kv, text, cap);
}

static bool w_one_stream(const device *d, const kv_view *kv)
{
    const wrapper *w = d->self;
    return w->inner->one_stream && w->inner->one_stream(w->inner, kv);
}

static kernel_speed w_product_kernel(const device *d, const weight *wt, char *text, size_t cap)
{
    const wrapper *w = d->self;
    return device_product_kernel(w->inner, wt, text, cap);
}

static void print_times(wrapper *w)
{
    char line[256];
    double total = 0;
    for (int32_t i = 0; i < w->n_times; i++)
        total += w->times[i].ms;
    if (!w->n_times)
        return;
    say(w, "op            rows     n_in ->  n_out      calls         ms   share\n");
    for (int32_t k = 0; k < w->n_times; k++) {
        int32_t best = -1;
        for (int32_t i = 0; i < w->n_times; i++)
            if (w->times[i].n_calls && (best < 0 || w->times[i].ms > w->times[best].ms))
                best = i;
        if (best < 0)
            break;
        device_op_time *t = &w->times[best];
        snprintf(line, sizeof line, "%-12s %5d %8d -> %6d %10" PRId64 " %10.2f  %5.1f %%\n", t->op,
                 t->rows, t->n_in, t->n_out, t->n_calls, t->ms,
                 100 * t->ms / (total > 0 ? total : 1));
        say(w, line);
        t->n_calls = 0;
    }
    if (w->n_times == DEVICE_OP_TIMES_MAX)
        say(w, "(more shapes than the table holds were left out)\n");
}

static void w_close(device *d)
{
    wrapper *w = d->self;
    if (w->kind == WRAP_TIME)
        print_times(w);
    device_close(w->ref);
    device_close(w->inner);
    mem_free(w->before);
    mem_free(w->result);
    mem_free(w);
}

int32_t device_op_times(device *d, device_op_time *list, int32_t cap, bool clear)
{
    while (d && d->kind == DEVICE_WRAP) {
        wrapper *w = d->self;
        if (w->kind == WRAP_TIME) {
            int32_t n = w->n_times < cap ? w->n_times : cap;
            if (n > 0)
                memcpy(list, w->times, (size_t)n * sizeof *list);
            if (clear)
                w->n_times = 0;
            return n;
        }
        d = w->inner;
    }
    return 0;
}

static const device_ops wrap_ops = {
    .embed = w_embed,
    .rms_norm = w_rms_norm,
    .matmul = w_matmul,
    .glu = w_glu,
    .act_mul = w_act_mul,
    .rope = w_rope,
    .kv_store = w_kv_store,
    .attend = w_attend,
    .add = w_add,
    .scale = w_scale,
    .add_rms_norm = w_add_rms_norm,
    .route = w_route,
    .moe_glu = w_moe_glu,
    .moe_down = w_moe_down,
    .gather = w_gather,
    .copy = w_copy,
    .softcap = w_softcap,
};

/* Optional ops are in the wrapper's table only if the inner device, and for check the reference
 * too, has them: the expansion is then wrapped op by op. */
static void drop_missing(device_ops *t, const device *inner, const device *ref)
{
    if (!inner->op->glu || (ref && !ref->op->glu))
        t->glu = NULL;
    if (!inner->op->add_rms_norm || (ref && !ref->op->add_rms_norm))
        t->add_rms_norm = NULL;
}

typedef struct wrapper_block {
    wrapper w;
    device_ops ops;
} wrapper_block;

status device_wrap(device **d, const char *what, device_write_fn write, void *user, err *e)
{
    static const char *const names[] = {"trace", "time", "check"};
    int kind = 0;
    while (kind < 3 && strcmp(what, names[kind]))
        kind++;
    if (kind == 3)
        return err_set(e, E_ARG, "there is no wrapper '%s' (trace, time, check)", what);
    if ((*d)->kind == DEVICE_CUDA)
        return err_set(e, E_UNSUPPORTED, "wrapper %s: only CPU devices can be wrapped", what);
    wrapper_block *b = mem_calloc(1, sizeof *b);
    if (!b)
        return err_memory(e, "a device wrapper", sizeof *b);
    wrapper *w = &b->w;
    if (kind == WRAP_CHECK) {
        status st = device_open_cpu(&w->ref, &(cpu_options){.n_threads = 1, .reference = true}, e);
        if (st) {
            mem_free(b);
            return st;
        }
    }
    b->ops = wrap_ops;
    drop_missing(&b->ops, *d, w->ref);
    snprintf(w->name, sizeof w->name, "%s of %s", what, (*d)->name);
    w->kind = (wrap_kind)kind;
    w->inner = *d;
    w->write = write;
    w->user = user;
    w->dev = (device){.op = &b->ops,
                      .kind = DEVICE_WRAP,
                      .name = w->name,
                      .verify_max = (*d)->verify_max,
                      .chunk_rows = (*d)->chunk_rows,
                      .acts = (*d)->acts & (w->ref ? w->ref->acts : UINT32_MAX),
                      .host_memory = (*d)->host_memory,
                      .inner = *d,
                      .self = w,
                      .alloc = w_alloc,
                      .release = w_release,
                      .clear = w_clear,
                      .upload = w_upload,
                      .download = w_download,
                      .weight_load = w_weight_load,
                      .weight_free = w_weight_free,
                      .weight_bytes = w_weight_bytes,
                      .used_bytes = w_used_bytes,
                      .attend_kernel = w_attend_kernel,
                      .one_stream = w_one_stream,
                      .product_kernel = w_product_kernel,
                      .close = w_close};
    *d = &w->dev;
    return OK;
}
