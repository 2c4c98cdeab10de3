/* graph.c - passes of few rows, recorded once and replayed: one call instead of a thousand
 * launches.
 *
 * What changes between two passes of equal counts is in the step block, at a fixed address; all
 * that kernels are given as arguments depends on the key: model, layout, scratch, counts, and how
 * many chunks of keys the grids of attention cover (a power of two), and where taps copy what they
 * are for. A pass is run plainly the
 * first time, so that whatever happens once has happened; recorded and replayed the second time;
 * replayed from then on. A recording names addresses, so all are dropped when any memory is given
 * back.
 */
#include "backend/cuda/cuda_int.h"

static bool same_taps(const pass_taps *a, const pass_taps *b)
{
    bool same = a->n == b->n;
    for (int32_t i = 0; i < a->n && same; i++) {
        const pass_tap_point *s = &a->at[i], *t = &b->at[i];
        same = s->il == t->il && s->to.at == t->to.at && s->to.stride == t->to.stride;
    }
    return same;
}

static bool on_main(const pass_taps *taps)
{
    bool main = true;
    for (int32_t i = 0; taps && i < taps->n; i++)
        main &= taps->at[i].side == PASS_MAIN;
    return main;
}

static bool same_graph_key(const graph_key *a, const graph_key *b)
{
    return a->model == b->model && a->kv == b->kv && a->scratch == b->scratch &&
           a->rows == b->rows && a->outs == b->outs && a->n_seqs == b->n_seqs &&
           a->kv_bucket == b->kv_bucket && a->tree == b->tree && same_taps(&a->taps, &b->taps);
}

static void forget_slot(graph_slot *s)
{
    if (s->exec)
        cudaGraphExecDestroy(s->exec);
    *s = (graph_slot){0};
}

void cuda_graphs_drop(cuda_device *c)
{
    for (int i = 0; i < GRAPHS; i++)
        forget_slot(&c->graphs[i]);
}

/* The slot of this key, or the one that was not used for longest, made free. */
static graph_slot *slot_of(cuda_device *c, const graph_key *k)
{
    graph_slot *oldest = &c->graphs[0];
    for (int i = 0; i < GRAPHS; i++) {
        if (c->graphs[i].used && same_graph_key(&c->graphs[i].key, k))
            return &c->graphs[i];
        if (c->graphs[i].used < oldest->used)
            oldest = &c->graphs[i];
    }
    forget_slot(oldest);
    oldest->key = *k;
    return oldest;
}

bool cuda_replay(device *d, pass *p, const void *model, const void *kv, mat *y)
{
    cuda_device *c = cuda_select(d);
    const step *st = p->st;
    c->recording = NULL;
    if (c->no_graphs || !on_main(p->taps) || st->all.n > c->few_rows || pass_failed(p))
        return false;
    graph_key k = {.model = model,
                   .kv = kv,
                   .scratch = p->side[PASS_MAIN].scratch,
                   .rows = st->all.n,
                   .outs = st->out.n,
                   .n_seqs = st->n_seqs,
                   .kv_bucket = c->kv_bucket,
                   .tree = st->all.seen != NULL};
    if (p->taps)
        k.taps = *p->taps;
    graph_slot *s = slot_of(c, &k);
    bool seen = s->used != 0;
    s->used = ++c->graph_clock;
    if (!seen)
        return false;
    if (!s->exec) {
        cudaError_t r = cudaStreamBeginCapture(c->stream, cudaStreamCaptureModeThreadLocal);
        if (r == cudaErrorNotSupported) { /* the emulator */
            cudaGetLastError();
            c->no_graphs = true;
            return false;
        }
        if (!cuda_ok(c, p, r, "recording a pass"))
            return true;
        c->recording = s;
        return false;
    }
    if (!cuda_ok(c, p, cudaGraphLaunch(s->exec, c->stream), "replaying a pass"))
        return true;
    *y = s->y;
    if (st->out.n)
        p->rows = &st->out;
    return true;
}

void cuda_recorded(device *d, pass *p, mat y)
{
    cuda_device *c = d->self;
    graph_slot *s = c->recording;
    cudaGraph_t g = NULL;
    if (!s)
        return;
    c->recording = NULL;
    cuda_settle(c);
    if (!cuda_ok(c, p, cudaStreamEndCapture(c->stream, &g), "recording a pass"))
        return;
    if (pass_failed(p))
        forget_slot(s);
    else if (cuda_ok(c, p, cudaGraphInstantiate(&s->exec, g, 0), "recording a pass") &&
             cuda_ok(c, p, cudaGraphLaunch(s->exec, c->stream), "replaying a pass"))
        s->y = y;
    cudaGraphDestroy(g);
}
