/* wrap.c - devices around a device: trace, time, check, inputs. See ops.h.
 *
 * A wrapper has an op table whose entries are one line each: AROUND runs the call on the inner
 * device, with an action before and after it that depends on the wrapper's kind. `check` runs the
 * call twice and compares: first on the inner device, then, with the output restored, on the
 * reference kernels. It does so in a dry pass too, so scratch is planned for both. No wrapper
 * releases what an op took: a device may keep a copy of its output there for the next op.
 *
 * If the inner device has its own memory (a GPU), results are downloaded before they are printed or
 * compared, and the reference reads copies of its inputs in host memory (wrap_mirror.c).
 * Wrapped passes are not recorded, so times are those of single ops.
 *
 * Wrapping nests: "trace,check" is a trace around a check around the device.
 */
#include "backend/wrap_int.h"
#include "base/clock.h"
#include "base/mem.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

double wrap_tolerance(const wrapper *d, const pass *p, const char *op, const weight *w)
{
    if (!strcmp(op, "attend") && p->st->sparse)
        return 1e-3;
    if (d->apart && !strcmp(op, "attend"))
        return 1e-5;
    bool product = strstr(op, "mat") || strstr(op, "glu") || strstr(op, "down");
    bool rounded = product && w && w->type != NUM_F32;
    return rounded ? 1e-3 : 1e-9;
}

static void write_line(wrapper *w, const char *line)
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

/* ---- What the kinds do ---------------------------------------------------------------------- */

static bool reserve_copies(wrapper *w, pass *p, mat y)
{
    size_t n = (size_t)y.rows * (size_t)mat_width(y);
    if (n > w->copy_cap) {
        /* A debugging device may allocate inside a pass; the device inside it may not. */
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
    if (bad_row >= 0 || nmse > wrap_tolerance(w, p, op, wt))
        err_set(&p->e, E_NUMERIC,
                "check: %s in layer %d%s%s: %d x %d differs from the reference by %.2e (allowed "
                "%.0e)%s",
                op, p->il, wt ? " with " : "", wt ? wt->name : "", y.rows, width, nmse,
                wrap_tolerance(w, p, op, wt),
                bad_row >= 0 ? ", and one of the two is not finite" : "");
    if (!w->apart)
        wrap_copy_in(y, w->result);
}

static void trace(wrapper *w, pass *p, const char *op, mat y, const weight *wt)
{
    char line[256];
    if (w->apart)
        y = mirror_mat(w, p, y);
    if (!y.at)
        return;
    snprintf(line, sizeof line, "layer %3d  %-12s %5d x %-6d norm %-12.6g first %.6g  %s\n", p->il,
             op, y.rows, mat_width(y), norm_of(y), y.rows ? y.at[0] : 0.0f, wt ? wt->name : "");
    write_line(w, line);
}

void device_add_op_time(device_op_time *list, int32_t *n, const device_op_time *call)
{
    device_op_time *t = list;
    while (t < list + *n &&
           (strcmp(t->op, call->op) || strcmp(t->type, call->type) || t->rows != call->rows ||
            t->n_out != call->n_out || t->n_in != call->n_in))
        t++;
    if (t == list + DEVICE_OP_TIMES_MAX)
        return; /* print_times says so in its last line */
    if (t == list + *n) {
        *t = *call;
        ++*n;
        return;
    }
    t->n_calls += call->n_calls;
    t->ms += call->ms;
    t->bytes += call->bytes;
    t->int8_ops += call->int8_ops;
    t->f32_ops += call->f32_ops;
}

static void add_time(wrapper *w, const char *op, mat y, const weight *wt, double ms)
{
    device_op_time call = w->cost;
    call.op = op;
    call.type = wt ? num_name(wt->type) : "";
    call.rows = y.rows;
    call.n_in = wt ? wt->n_in : 0;
    call.n_out = mat_width(y);
    call.n_calls = 1;
    call.ms = ms;
    device_add_op_time(w->times, &w->n_times, &call);
}

/* ---- The bytes and operations that a call needs at least ----------------------------------- */

/* `rows` products in total, with n_mat matrices that are read once each. */
static void cost_weight(wrapper *d, int64_t rows, int32_t n_mat, const weight *w)
{
    uint64_t ops = 2 * (uint64_t)rows * (uint64_t)w->n_in * (uint64_t)w->n_out;
    bool floats = w->type == NUM_F32 || w->type == NUM_F16 || w->type == NUM_BF16;
    d->cost.bytes +=
        (w->packed ? w->packed_bytes / (size_t)w->n_mat : w->mat_bytes) * (size_t)n_mat;
    if (floats)
        d->cost.f32_ops += ops;
    else
        d->cost.int8_ops += ops;
}

/* Every expert that is used by a row is read once. */
static void cost_experts(wrapper *d, pass *p, routing r, const weight *w)
{
    if (d->apart)
        r = mirror_routing(d, p, r);
    int32_t n = r.id ? r.rows * r.k : 0, n_used = 0;
    for (int32_t i = 0; i < n; i++) {
        int32_t j = 0;
        while (j < i && r.id[j] != r.id[i])
            j++;
        n_used += j == i;
    }
    cost_weight(d, n, n_used, w);
}

/* Before a product of x with w, which may be NULL. */
static void meet_weight(pass *p, mat x, const weight *w)
{
    wrapper *d = p->dev->self;
    if (d->kind == WRAP_INPUTS)
        inputs_add(d, p, x, w);
    else if (d->kind == WRAP_TIME && w && !p->dry)
        cost_weight(d, x.rows, 1, w);
}

static void meet_experts(pass *p, mat x, routing r, const weight *w)
{
    wrapper *d = p->dev->self;
    if (d->kind == WRAP_INPUTS)
        inputs_add_routed(d, p, x, r, w);
    else if (d->kind == WRAP_TIME && w && !p->dry)
        cost_experts(d, p, r, w);
}

uint64_t device_seen_bytes(const rowset *rs, const kv_view *kv, int32_t n_rows, uint64_t *n_pairs)
{
    const row_keys *keys = rows_keys(rs, kv);
    const int32_t *newest = newest_keys(keys, kv);
    uint64_t n = 0;
    *n_pairs = 0;
    for (int32_t r = 0, end; r < n_rows; r = end) {
        int64_t lo = INT64_MAX, hi = 0;
        for (end = r; end < n_rows && rs->seq[end] == rs->seq[r]; end++) {
            int64_t to = (int64_t)newest[end] + 1, own = (int64_t)keys->index[end] + 1;
            int64_t from = kv->window && own > kv->window ? own - kv->window : 0;
            lo = from < lo ? from : lo;
            hi = to > hi ? to : hi;
            *n_pairs += (uint64_t)(to - from);
        }
        n += (uint64_t)(hi - lo) * (uint64_t)kv->n_head_kv * (kv->k_row_bytes + kv->v_row_bytes);
    }
    return n;
}

static void cost_attention(pass *p, mat q, const kv_view *kv)
{
    wrapper *d = p->dev->self;
    uint64_t n_pairs = 0;
    if (!p->dry)
        d->cost.bytes += device_seen_bytes(p->rows, kv, q.rows, &n_pairs);
    d->cost.f32_ops += 4 * (uint64_t)mat_width(q) * n_pairs;
}

static uint64_t state_floats(const recur_view *v)
{
    return (uint64_t)v->n_v * (uint64_t)v->dv * (uint64_t)v->dk;
}

uint64_t device_state_bytes(const step *st, const recur_view *v)
{
    uint64_t n = 0;
    for (int32_t i = 0; i < st->n_seqs; i++)
        n += st->recur_seq[i].final || st->recur_seq[i].n_pending ? 2 : 1;
    return n * state_floats(v) * sizeof(float);
}

static void cost_recur(pass *p, const recur_view *v)
{
    wrapper *d = p->dev->self;
    if (p->dry)
        return;
    d->cost.bytes += device_state_bytes(p->st, v);
    for (int32_t i = 0; i < p->st->n_seqs; i++) {
        const recur_seq *s = &p->st->recur_seq[i];
        d->cost.f32_ops += state_floats(v) * (7 * (uint64_t)s->n + 3 * (uint64_t)s->n_pending);
    }
}

static wrapper *enter_call(pass *p, mat y)
{
    wrapper *w = p->dev->self;
    w->phase = 0;
    p->dev = w->inner;
    if (w->kind == WRAP_CHECK && !p->dry && reserve_copies(w, p, y))
        wrap_copy_out(w, w->before, y);
    if (w->kind == WRAP_TIME && !p->dry) {
        device_moved(w->inner); /* wait for earlier calls */
        w->start_ms = clock_ms();
    }
    return w;
}

/* After a run of the call: true if the reference runs next. checked: the reference can run it. */
static bool next_run(wrapper *w, pass *p, const char *op, mat y, const weight *wt, bool checked)
{
    if (w->kind == WRAP_CHECK && checked && w->phase == 0 && !pass_failed(p)) {
        w->phase = 1;
        if (!p->dry) {
            wrap_copy_out(w, w->result, y);
            if (w->apart)
                wrap_to_host_scratch(w, p);
            else
                wrap_copy_in(y, w->before);
        }
        p->dev = w->ref;
        p->repeats = true;
        return true;
    }
    if (!p->dry && w->kind == WRAP_TIME)
        device_moved(w->inner);
    if (p->dry || pass_failed(p))
        return false;
    if (w->kind == WRAP_CHECK && checked)
        compare(w, p, op, y, wt);
    else if (w->kind == WRAP_TRACE)
        trace(w, p, op, y, wt);
    else if (w->kind == WRAP_TIME)
        add_time(w, op, y, wt, clock_ms() - w->start_ms);
    w->cost = (device_op_time){0};
    return false;
}

/* y: the output of the call, which gets no copy for products. mirrors: an expression that replaces
 * the inputs by mirrors of the wrapper m_. */
#define AROUND_IF(checked, name, y, wt, mirrors, call)                                             \
    wrapper *m_ = enter_call(p, y);                                                                \
    do {                                                                                           \
        if (m_->phase && m_->apart && !p->dry && !pass_failed(p)) {                                \
            y = mirror_out(m_, p, y);                                                              \
            mirrors;                                                                               \
        }                                                                                          \
        if (pass_failed(p))                                                                        \
            break;                                                                                 \
        const device_ops *op = p->dev->op;                                                         \
        call;                                                                                      \
    } while (next_run(m_, p, name, y, wt, checked));                                               \
    wrap_leave_call(m_, p)
#define AROUND(name, y, wt, mirrors, call) AROUND_IF(true, name, y, wt, mirrors, call)

static void w_embed(pass *p, mat y, const weight *w, float c)
{
    AROUND("embed", y, w, (void)0, op->embed(p, y, w, c));
}
static void w_embed_at(pass *p, mat y, mat ids, const weight *w, float c)
{
    AROUND("embed_at", y, w, ids = mirror_mat(m_, p, ids), op->embed_at(p, y, ids, w, c));
}
static void w_rms_norm(pass *p, mat *to, mat x, const weight *w, float eps)
{
    mat y = *to;
    AROUND("rms_norm", y, w, x = mirror_mat(m_, p, x), op->rms_norm(p, &y, x, w, eps));
}
static void w_matmul(pass *p, mat y, mat *of, const weight *w)
{
    mat x = *of;
    meet_weight(p, x, w);
    AROUND("matmul", y, w, x = mirror_mat(m_, p, x), op->matmul(p, y, &x, w));
}
static void w_glu(pass *p, mat *to, mat x, const weight *g, const weight *u, act_kind a)
{
    mat y = *to;
    meet_weight(p, x, g);
    meet_weight(p, x, u);
    AROUND("glu", y, g, x = mirror_mat(m_, p, x), op->glu(p, &y, x, g, u, a));
}
static void w_act_mul(pass *p, mat *to, mat a, mat b, act_kind k)
{
    mat y = *to;
    AROUND("act_mul", y, NULL, (a = mirror_mat(m_, p, a), b = mirror_mat(m_, p, b)),
           op->act_mul(p, &y, a, b, k));
}
static void w_rope(pass *p, mat x, const rope *r)
{
    AROUND("rope", x, NULL, r = mirror_rope(m_, p, r), op->rope(p, x, r));
}
static void w_attend(pass *p, mat *to, mat q, const kv_view *kv, float scale)
{
    mat o = *to;
    cost_attention(p, q, kv);
    AROUND("attend", o, NULL, (q = mirror_mat(m_, p, q), kv = mirror_view(m_, p, kv)),
           op->attend(p, &o, q, kv, scale));
}
/* Neither traced nor compared: its result is no matrix. */
static void w_tail(pass *p, mat q, const kv_view *kv, const rope *r, float scale)
{
    device *self = p->dev;
    p->dev = self->inner;
    p->dev->op->tail(p, q, kv, r, scale);
    p->dev = self;
}
/* It adds to what earlier calls have left, so it is neither repeated nor checked. */
static void w_watch_pages(pass *p, mat q, const kv_view *kv, float scale, const page_watch *w)
{
    wrapper *m = p->dev->self;
    p->dev = m->inner;
    m->inner->op->watch_pages(p, q, kv, scale, w);
    p->dev = &m->dev;
}
static void w_add(pass *p, mat y, mat a, mat b)
{
    AROUND("add", y, NULL, (a = mirror_mat(m_, p, a), b = mirror_mat(m_, p, b)),
           op->add(p, y, a, b));
}
static void w_scale(pass *p, mat x, float c, const weight *w)
{
    AROUND("scale", x, NULL, (void)0, op->scale(p, x, c, w));
}
static void w_add_rms_norm(pass *p, mat x, mat y, const weight *w, float eps)
{
    AROUND("add_rms_norm", x, w, y = mirror_mat(m_, p, y), op->add_rms_norm(p, x, y, w, eps));
}
static void w_moe_glu(pass *p, mat *to, mat x, routing *of, const weight *g, const weight *u,
                      act_kind a)
{
    mat y = *to;
    routing r = *of;
    meet_experts(p, x, r, g);
    meet_experts(p, x, r, u);
    AROUND("moe_glu", y, g, (x = mirror_mat(m_, p, x), r = mirror_routing(m_, p, r)),
           op->moe_glu(p, &y, x, &r, g, u, a));
}
static void w_moe_down(pass *p, mat y, mat x, routing r, const weight *d)
{
    meet_experts(p, x, r, d);
    AROUND("moe_down", y, d, (x = mirror_mat(m_, p, x), r = mirror_routing(m_, p, r)),
           op->moe_down(p, y, x, r, d));
}
static void w_moe_matmul(pass *p, mat y, mat *of, routing r, const weight *w)
{
    mat x = *of;
    meet_experts(p, x, r, w);
    AROUND("moe_matmul", y, w, (x = mirror_mat(m_, p, x), r = mirror_routing(m_, p, r)),
           op->moe_matmul(p, y, &x, r, w));
}
static void w_renumber(pass *p, mat x, routing r, const int32_t *list, int32_t n_list, int32_t n)
{
    AROUND("renumber", x, NULL,
           (r = mirror_routing(m_, p, r),
            list = mirror_bytes(m_, p, list, (size_t)n_list * sizeof *list)),
           op->renumber(p, x, r, list, n_list, n));
}
static void w_conv(pass *p, mat y, mat x, const weight *wt, const recur_view *rv)
{
    mirror_recur(p->dev->self, p, rv);
    AROUND("conv", y, wt, x = mirror_mat(m_, p, x),
           (mirror_use_recur(m_, p), op->conv(p, y, x, wt, rv),
            mirror_compare_recur(m_, p, "conv", rv)));
}
static void w_delta(pass *p, mat o, mat c, mat a, mat b, const delta_gate *g, const recur_view *rv)
{
    cost_recur(p, rv);
    mirror_recur(p->dev->self, p, rv);
    AROUND("delta", o, NULL,
           (c = mirror_mat(m_, p, c), a = mirror_mat(m_, p, a), b = mirror_mat(m_, p, b)),
           (mirror_use_recur(m_, p), op->delta(p, o, c, a, b, g, rv),
            mirror_compare_recur(m_, p, "delta", rv)));
}
static void w_gather(pass *p, mat y, mat x, const int32_t *row)
{
    AROUND("gather", y, NULL, x = mirror_mat(m_, p, x), op->gather(p, y, x, row));
}
static void w_copy(pass *p, mat y, mat x)
{
    AROUND("copy", y, NULL, x = mirror_mat(m_, p, x), op->copy(p, y, x));
}
static void w_softcap(pass *p, mat x, float cap, const int32_t *ids, int32_t n)
{
    AROUND("softcap", x, NULL, ids = mirror_bytes(m_, p, ids, (size_t)n * sizeof *ids),
           op->softcap(p, x, cap, ids, n));
}
static void w_best(pass *p, mat y, mat x)
{
    AROUND("best", y, NULL, x = mirror_mat(m_, p, x), op->best(p, y, x));
}
static void w_clamp(pass *p, mat y, mat x, float low, float high)
{
    AROUND("clamp", y, NULL, x = mirror_mat(m_, p, x), op->clamp(p, y, x, low, high));
}
static void w_pool(pass *p, mat y, mat x, int32_t n)
{
    AROUND("pool", y, NULL, x = mirror_mat(m_, p, x), op->pool(p, y, x, n));
}
static void w_standardize(pass *p, mat x, const weight *shift, const weight *scale)
{
    AROUND("standardize", x, scale, (void)0, op->standardize(p, x, shift, scale));
}
static void w_layer_norm(pass *p, mat y, mat x, const weight *w, const weight *b, float eps)
{
    AROUND("layer_norm", y, w, x = mirror_mat(m_, p, x), op->layer_norm(p, y, x, w, b, eps));
}
static void w_unfold(pass *p, mat y, mat x, int32_t first)
{
    AROUND("unfold", y, NULL, x = mirror_mat(m_, p, x), op->unfold(p, y, x, first));
}
static void w_depthwise(pass *p, mat y, mat x, const weight *w)
{
    AROUND("depthwise", y, w, x = mirror_mat(m_, p, x), op->depthwise(p, y, x, w));
}
static void w_near(pass *p, mat o, mat q, mat k, mat v, mat far, const near_rule *rule)
{
    AROUND("near", o, NULL,
           (q = mirror_mat(m_, p, q), k = mirror_mat(m_, p, k), v = mirror_mat(m_, p, v),
            far = mirror_mat(m_, p, far)),
           op->near(p, o, q, k, v, far, rule));
}
static void w_act(pass *p, mat x, act_kind act)
{
    AROUND("act", x, NULL, (void)0, op->act(p, x, act));
}
static void w_embed_mix(pass *p, mat y, mat ids, mat share, const weight *w)
{
    AROUND("embed_mix", y, w, (ids = mirror_mat(m_, p, ids), share = mirror_mat(m_, p, share)),
           op->embed_mix(p, y, ids, share, w));
}
/* Compares the weights of the chosen experts: another choice has other weights. */
static void w_route(pass *p, routing r, mat logits, const route_rule *rule)
{
    mat y = {.at = r.weight, .rows = r.rows, .heads = 1, .cols = r.k, .stride = r.k};
    AROUND("route", y, NULL,
           (r = mirror_routing(m_, p, r), r.weight = y.at, logits = mirror_mat(m_, p, logits)),
           op->route(p, r, logits, rule));
}
/* Shows the norm of the keys and the time. Wrong stored values are found by the next attend. If the
 * device has its own memory the reference cannot repeat the call, because the stores are there. */
static void w_kv_store(pass *p, const kv_view *kv, mat k, mat v)
{
    AROUND_IF(!m_->apart, "kv_store", k, NULL, (void)0, op->kv_store(p, kv, k, v));
}

/* ---- The functions of the inner device ------------------------------------------------------ */

/* w_NAME has these parameters, and calls NAME of the device inside with ARGS. */
#define FORWARD(NAME, ARGS, ...)                                                                   \
    static void w_##NAME(__VA_ARGS__)                                                              \
    {                                                                                              \
        d = d->inner;                                                                              \
        d->NAME ARGS;                                                                              \
    }
#define FORWARD_OF(TYPE, NAME, ARGS, ...)                                                          \
    static TYPE w_##NAME(__VA_ARGS__)                                                              \
    {                                                                                              \
        d = d->inner;                                                                              \
        return d->NAME ARGS;                                                                       \
    }

FORWARD_OF(void *, alloc, (d, n), device *d, size_t n)
FORWARD(release, (d, at, n), device *d, void *at, size_t n)
FORWARD(clear, (d, at, n), device *d, void *at, size_t n)
FORWARD(upload, (d, to, from, n), device *d, void *to, const void *from, size_t n)
FORWARD(download, (d, to, from, n), device *d, void *to, const void *from, size_t n)
FORWARD_OF(status, weight_load, (d, w, e), device *d, weight *w, err *e)
FORWARD(weight_free, (d, w), device *d, weight *w)
FORWARD_OF(size_t, weight_bytes, (d, w), const device *d, const weight *w)
FORWARD_OF(uint64_t, used_bytes, (d), const device *d)

/* Optional ones. */
FORWARD(move, (d, m), device *d, const block_move *m)
FORWARD(moved, (d), device *d)
FORWARD(keep_rows, (d, store, n_stores, first, from, n), device *d, const row_store *store,
        int32_t n_stores, int64_t first, const int32_t *from, int32_t n)
FORWARD(settle, (d, v, base, n, s), device *d, const recur_view *v, const recur_base *base,
        int32_t n, const recur_seq *s)
FORWARD(sum_pages, (d, v, base, to, first, row, n), device *d, const kv_view *v,
        const kv_base *base, const page_sums *to, int32_t first, int32_t row, int32_t n)
FORWARD(rescore_pages, (d, v, base, l), device *d, const kv_view *v, const kv_base *base,
        const page_rescore *l)
FORWARD_OF(void *, host_alloc, (d, n), device *d, size_t n)
FORWARD(host_free, (d, at, n), device *d, void *at, size_t n)
FORWARD(sift, (d, want, n_wants, n, cap), device *d, sift_want *want, int32_t n_wants, int32_t n,
        int32_t cap)
FORWARD(begin, (d, p), device *d, pass *p)
FORWARD(end, (d, p), device *d, pass *p)
FORWARD(wait, (d), device *d)
FORWARD_OF(status, failed, (d, e), const device *d, err *e)
FORWARD_OF(uint64_t, available_bytes, (d), const device *d)
FORWARD_OF(bool, one_stream, (d, kv), const device *d, const kv_view *kv)
FORWARD(narrow_sparse, (d, kv, prompt, rule), const device *d, const kv_view *kv, bool prompt,
        sparse_rule *rule)

static kernel_speed w_attend_kernel(const device *d, const kv_view *kv, char *text, size_t cap)
{
    return device_attend_kernel(d->inner, kv, text, cap);
}
static kernel_speed w_product_kernel(const device *d, const weight *wt, char *text, size_t cap)
{
    return device_product_kernel(d->inner, wt, text, cap);
}

static void print_times(wrapper *w)
{
    char line[256];
    double total = 0;
    for (int32_t i = 0; i < w->n_times; i++)
        total += w->times[i].ms;
    if (!w->n_times)
        return;
    write_line(w, "op            rows     n_in ->  n_out      calls         ms   share\n");
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
        write_line(w, line);
        t->n_calls = 0;
    }
    if (w->n_times == DEVICE_OP_TIMES_MAX)
        write_line(w, "(more shapes than the table holds were left out)\n");
}

void device_unwrap(device *d)
{
    wrapper *w = d->self;
    if (w->kind == WRAP_TIME)
        print_times(w);
    device_close(w->ref);
    mem_pages_free(w->host_scratch, w->host_scratch_bytes);
    mem_free(w->before);
    mem_free(w->result);
    inputs_free(w);
    mem_free(w);
}

static void w_close(device *d)
{
    wrapper *w = d->self;
    device *inner = w->inner;
    device_unwrap(d);
    device_close(inner);
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
    .embed_at = w_embed_at,
    .rms_norm = w_rms_norm,
    .matmul = w_matmul,
    .glu = w_glu,
    .act_mul = w_act_mul,
    .rope = w_rope,
    .kv_store = w_kv_store,
    .attend = w_attend,
    .tail = w_tail,
    .watch_pages = w_watch_pages,
    .add = w_add,
    .scale = w_scale,
    .add_rms_norm = w_add_rms_norm,
    .route = w_route,
    .moe_glu = w_moe_glu,
    .moe_down = w_moe_down,
    .moe_matmul = w_moe_matmul,
    .renumber = w_renumber,
    .conv = w_conv,
    .delta = w_delta,
    .gather = w_gather,
    .copy = w_copy,
    .softcap = w_softcap,
    .best = w_best,
    .unfold = w_unfold,
    .depthwise = w_depthwise,
    .near = w_near,
    .clamp = w_clamp,
    .pool = w_pool,
    .standardize = w_standardize,
    .layer_norm = w_layer_norm,
    .act = w_act,
    .embed_mix = w_embed_mix,
};

/* The wrapper has an optional op only if the inner device has it, and for check the reference too.
 * Otherwise the op's expansion runs, and is wrapped op by op. */
static void drop_missing(device_ops *t, const device *inner, const device *ref)
{
    if (!inner->op->glu || (ref && !ref->op->glu))
        t->glu = NULL;
    if (!inner->op->add_rms_norm || (ref && !ref->op->add_rms_norm))
        t->add_rms_norm = NULL;
    if (!inner->op->tail)
        t->tail = NULL;
    if (!inner->op->watch_pages)
        t->watch_pages = NULL;
    if (!inner->op->conv || !inner->op->delta)
        t->conv = NULL, t->delta = NULL;
    if (!device_knows_vision(inner))
        t->clamp = NULL; /* then ops take none of them */
    if (!device_knows_audio(inner))
        t->unfold = NULL;
}

/* A wrapper has the optional functions that its inner device has. */
static void add_optional(device *d, const device *inner)
{
#define OPTIONAL(name) d->name = inner->name ? w_##name : NULL
    OPTIONAL(move);
    OPTIONAL(moved);
    OPTIONAL(keep_rows);
    OPTIONAL(settle);
    OPTIONAL(narrow_sparse);
    OPTIONAL(sum_pages);
    OPTIONAL(rescore_pages);
    OPTIONAL(host_alloc);
    OPTIONAL(host_free);
    OPTIONAL(sift);
    OPTIONAL(begin);
    OPTIONAL(end);
    OPTIONAL(wait);
    OPTIONAL(failed);
    OPTIONAL(available_bytes);
    OPTIONAL(one_stream);
#undef OPTIONAL
    d->reserve_bytes = inner->reserve_bytes;
    d->loads_gathered = inner->loads_gathered;
}

typedef struct wrapper_block {
    wrapper w;
    device_ops ops;
} wrapper_block;

static const char *const kind_names[] = {"trace", "time", "check", "inputs"};

static status wrap_as(device **d, wrap_kind kind, device_write_fn write, void *user, err *e)
{
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
    snprintf(w->name, sizeof w->name, "%s of %s", kind_names[kind], (*d)->name);
    w->kind = kind;
    w->inner = *d;
    w->apart = !(*d)->host_memory;
    w->write = write;
    w->user = user;
    w->dev = (device){.op = &b->ops,
                      .kind = DEVICE_WRAP,
                      .name = w->name,
                      .prompts_apart = (*d)->prompts_apart,
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
                      .product_kernel = w_product_kernel,
                      .close = w_close};
    add_optional(&w->dev, *d);
    *d = &w->dev;
    return OK;
}

status device_wrap(device **d, const char *what, device_write_fn write, void *user, err *e)
{
    int kind = 0;
    while (kind < WRAP_INPUTS && strcmp(what, kind_names[kind]))
        kind++;
    if (kind == WRAP_INPUTS)
        return err_set(e, E_ARG, "wrapper '%s': expected trace, time or check", what);
    return wrap_as(d, (wrap_kind)kind, write, user, e);
}

status device_wrap_inputs(device **d, err *e)
{
    return wrap_as(d, WRAP_INPUTS, NULL, NULL, e);
}
