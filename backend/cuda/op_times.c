/* op_times.c - the times of recorded passes and of their ops, for `carat bench --tail`.
 *
 * While times are taken, passes of a recording run in two ways, in turn:
 *
 *     whole   event | the recording | event
 *     split   event | op | event | op | event ...      recorded anew, with events as nodes
 *
 * Both give the results of any pass. A whole pass runs as it always does, so its time is exact. In
 * a split pass every event waits for the op before it, so kernels do not overlap, and an event
 * takes time itself. What a kernel that does nothing takes between two events is measured first and
 * subtracted. So the time of an op is that of the op alone. The sum of all is more than the whole
 * pass where kernels overlap, and less where there are gaps between them.
 */
#include "backend/cuda/cuda_int.h"
#include "base/mem.h"

enum {
    MARKS = 8192,    /* of a pass: ops, with one event each */
    NOTHINGS = 1024, /* kernels that do nothing, in a recording */
    TIMES = 8        /* of which the best counts */
};
static const size_t READ_LEAST = (size_t)1 << 20; /* where less than read_bytes is free */

struct cuda_times {
    bool on;
    int32_t turn, n_marks;
    cudaEvent_t event[MARKS]; /* the first begins a pass, the others end its ops */
    device_op_time mark[MARKS];
    device_op_time read; /* what kernels since the last mark read */
    double event_ms;     /* between two events with a kernel that does nothing between them */
    device_pass_times sum;
    device_op_time row[DEVICE_OP_TIMES_MAX];
};

static cudaEvent_t event_at(cuda_times *t, int32_t i)
{
    if (!t->event[i] && cudaEventCreate(&t->event[i]) != cudaSuccess)
        t->event[i] = NULL; /* which recording refuses */
    return t->event[i];
}

static double between(const cuda_times *t, int32_t from, int32_t to)
{
    float ms = 0;
    cudaEventElapsedTime(&ms, t->event[from], t->event[to]);
    return (double)ms;
}

/* ---- What is measured first ---------------------------------------------------------------- */

/* The time of a recording of n kernels that do nothing, each followed by an event if asked for. */
static cudaError_t run_nothings(cuda_device *c, int32_t n, bool events, double *ms)
{
    cuda_times *t = c->times;
    cudaGraph_t g = NULL;
    cudaGraphExec_t x = NULL;
    cudaError_t r = cudaStreamBeginCapture(c->stream, cudaStreamCaptureModeThreadLocal);
    if (r)
        return r;
    for (int32_t i = 0; i < n; i++) {
        cu_nothing(c->stream);
        if (events)
            cudaEventRecordWithFlags(event_at(t, 2 + i), c->stream, cudaEventRecordExternal);
    }
    if (!(r = cudaStreamEndCapture(c->stream, &g)) && !(r = cudaGraphInstantiate(&x, g, 0)))
        for (int i = 0; i < TIMES && !r; i++) {
            cudaEventRecord(event_at(t, 0), c->stream);
            r = cudaGraphLaunch(x, c->stream);
            cudaEventRecord(event_at(t, 1), c->stream);
            r = r ? r : cudaStreamSynchronize(c->stream);
            const double now = events ? between(t, 2, 1 + n) / (n - 1) : between(t, 0, 1);
            *ms = i && *ms < now ? *ms : now;
        }
    if (x)
        cudaGraphExecDestroy(x);
    if (g)
        cudaGraphDestroy(g);
    return r ? r : cudaGetLastError();
}

static cudaError_t measure_launches(cuda_device *c)
{
    cuda_times *t = c->times;
    double one = 0, many = 0;
    cudaError_t r = run_nothings(c, 64, true, &t->event_ms);
    if (!r && !(r = run_nothings(c, 1, false, &one)))
        r = run_nothings(c, 1 + NOTHINGS, false, &many);
    t->sum.launch_ms = (many - one) / NOTHINGS;
    return r;
}

static status measure_reading(cuda_device *c, err *e)
{
    cuda_times *t = c->times;
    void *at = NULL;
    size_t n = c->read_bytes;
    while (cudaMalloc(&at, n) != cudaSuccess) {
        cudaGetLastError();
        n /= 2;
        if (n < READ_LEAST)
            return err_set(e, E_MEMORY,
                           "%s: no %zu MiB are free to measure how fast memory is read", c->name,
                           READ_LEAST >> 20);
    }
    cudaError_t r = cudaMemsetAsync(at, 1, n, c->stream);
    for (int i = 0; i < TIMES && !r; i++) {
        cudaEventRecord(event_at(t, 0), c->stream);
        cu_read(c->stream, at, n, c->facts.n_sm);
        cudaEventRecord(event_at(t, 1), c->stream);
        r = cudaStreamSynchronize(c->stream);
        const double ms = between(t, 0, 1), rate = ms > 0 ? (double)n / (ms * 1e-3) : 0;
        t->sum.read_bytes = rate > t->sum.read_bytes ? rate : t->sum.read_bytes;
    }
    r = r ? r : cudaGetLastError();
    cudaFree(at);
    return r ? err_set(e, E_IO, "%s: reading memory: %s", c->name, cudaGetErrorString(r)) : OK;
}

/* ---- Beginning and end --------------------------------------------------------------------- */

status cuda_time_passes(device *d, err *e)
{
    cuda_device *c = cuda_select(d);
    if (c->no_graphs)
        return err_set(e, E_UNSUPPORTED, "%s records no passes, so their ops are not timed",
                       c->name);
    if (!c->times && !(c->times = mem_calloc(1, sizeof *c->times)))
        return err_memory(e, "the times of ops", sizeof *c->times);
    cuda_times *t = c->times;
    t->on = false;
    t->sum = (device_pass_times){.ops = t->row};
    status st = measure_reading(c, e);
    cudaError_t r = st ? cudaSuccess : measure_launches(c);
    if (r)
        return err_set(e, E_IO, "%s: timing launches: %s", c->name, cudaGetErrorString(r));
    t->on = !st;
    return st;
}

void cuda_timed_passes(device *d, device_pass_times *out)
{
    const cuda_device *c = d->self;
    *out = (device_pass_times){0};
    if (!c->times)
        return;
    c->times->on = false;
    *out = c->times->sum;
    out->pass_ms /= out->n_whole ? out->n_whole : 1;
}

void cuda_times_close(cuda_device *c)
{
    for (int32_t i = 0; c->times && i < MARKS; i++)
        if (c->times->event[i])
            cudaEventDestroy(c->times->event[i]);
    mem_free(c->times);
}

/* ---- Passes -------------------------------------------------------------------------------- */

bool cuda_splits_next(cuda_device *c)
{
    return c->times && c->times->on && c->times->turn++ % 2;
}

cudaError_t cuda_launch_whole(cuda_device *c, cudaGraphExec_t x)
{
    cuda_times *t = c->times;
    if (!t || !t->on)
        return cudaGraphLaunch(x, c->stream);
    cudaEventRecord(event_at(t, 0), c->stream);
    cudaError_t r = cudaGraphLaunch(x, c->stream);
    cudaEventRecord(event_at(t, 1), c->stream);
    if (r || (r = cudaStreamSynchronize(c->stream)))
        return r;
    t->sum.pass_ms += between(t, 0, 1);
    t->sum.n_whole++;
    return cudaSuccess;
}

/* The event becomes a node of the recording. Outside of a recording the runtime refuses it. */
static void record_mark(cuda_device *c, pass *p)
{
    cudaEvent_t at = event_at(c->times, c->times->n_marks);
    cuda_ok(c, p, cudaEventRecordWithFlags(at, c->stream, cudaEventRecordExternal),
            "timing an op");
}

void cuda_split_begin(cuda_device *c, pass *p)
{
    c->splits = true;
    c->times->n_marks = 0;
    c->times->read = (device_op_time){.type = ""};
    record_mark(c, p);
}

void cuda_mark_op(pass *p, const char *op)
{
    cuda_device *c = cuda_of(p);
    cuda_times *t = c->times;
    if (++t->n_marks >= MARKS)
        return;
    t->mark[t->n_marks] = t->read;
    t->mark[t->n_marks].op = op;
    t->mark[t->n_marks].rows = p->rows->n;
    t->read = (device_op_time){.type = ""};
    record_mark(c, p);
}

static const char *kind_name(int32_t kind)
{
#define NAME(KIND, ...) [PACK_##KIND] = #KIND,
    static const char *const name[PACK_END] = {PACK_SIZES(NAME) NAME(F32) NAME(F16) NAME(BF16)};
#undef NAME
    return name[kind] ? name[kind] : "";
}

void cuda_note_read(cuda_device *c, const packed *w, int32_t n_mat)
{
    device_op_time *r = &c->times->read;
    if (!*r->type) {
        r->type = kind_name(w->kind);
        r->n_in = w->n_in;
    }
    r->n_out += w->n_out * n_mat;
    r->bytes += w->mat_bytes * (size_t)n_mat;
}

void cuda_note_bytes(cuda_device *c, uint64_t n_bytes)
{
    c->times->read.bytes += n_bytes;
}

/* g: the split pass that was launched. */
void cuda_split_end(cuda_device *c, pass *p, cudaGraph_t g)
{
    cuda_times *t = c->times;
    size_t n_nodes = 0;
    if (t->n_marks >= MARKS) {
        err_set(&p->e, E_LIMIT, "%s: a pass of more than %d ops is not timed", c->name, MARKS - 1);
        return;
    }
    if (!cuda_ok(c, p, cudaStreamSynchronize(c->stream), "timing a pass") ||
        !cuda_ok(c, p, cudaGraphGetNodes(g, NULL, &n_nodes), "timing a pass"))
        return;
    for (int32_t i = 1; i <= t->n_marks; i++) {
        device_op_time *m = &t->mark[i];
        m->ms = between(t, i - 1, i) - t->event_ms;
        m->n_calls = 1;
        device_add_op_time(t->row, &t->sum.n_ops, m);
    }
    t->sum.n_split++;
    t->sum.n_kernels = (int32_t)n_nodes - t->n_marks - 1;
}
