/* graph.c - records passes of answers once and replays them: one call instead of a thousand
 * launches.
 *
 * Between two passes with equal keys only the step block changes, and it has a fixed address. The
 * kernels' arguments depend on the key alone: model, layout, scratch of every side, counts of
 * rows, the number of chunks of keys that the grids of attention cover (powers of two), the
 * addresses of the taps, and the rows that a page_watch looks at, what attention leaves out of each
 * sequence, and which rows have which adapters. The first pass with a key runs plainly, so that
 * one-time initialisation happens outside a recording. The second is recorded and replayed, later
 * ones are replayed. Of a pass over several GPUs each records its legs (pass.h), with the copies to
 * the next one. Of a tensor split the first rank records all: the streams of the others join by
 * events (peers.c), which are edges of one graph, and leave before it ends. A recording contains
 * addresses, so all recordings are dropped when any memory of a device that shares the model is
 * freed.
 */
#include "backend/cuda/cuda_int.h"
#include "backend/lora.h"
#include "backend/sparse.h"

#include <string.h>

static bool same_taps(const pass_taps *a, const pass_taps *b)
{
    bool same = a->n == b->n;
    for (int32_t i = 0; i < a->n && same; i++) {
        const pass_tap_point *s = &a->at[i], *t = &b->at[i];
        same = s->il == t->il && s->to.at == t->to.at && s->to.stride == t->to.stride;
    }
    return same;
}

static bool same_run(row_run a, row_run b)
{
    return a.first == b.first && a.n == b.n;
}

static bool same_watch(const watched_rows *a, const watched_rows *b)
{
    return a->sums == b->sums && a->votes == b->votes && a->room == b->room &&
           same_run(a->all, b->all) && same_run(a->out, b->out);
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
    return a->model == b->model && a->kv == b->kv &&
           !memcmp(a->scratch, b->scratch, sizeof a->scratch) && a->leg == b->leg &&
           a->rows == b->rows && a->outs == b->outs && a->n_seqs == b->n_seqs &&
           !memcmp(a->kv_bucket, b->kv_bucket, sizeof a->kv_bucket) &&
           !memcmp(a->kv_least, b->kv_least, sizeof a->kv_least) && a->tree == b->tree &&
           !memcmp(a->skip, b->skip, sizeof a->skip) && a->counted == b->counted &&
           a->lora == b->lora && same_taps(&a->taps, &b->taps) && same_watch(&a->watch, &b->watch);
}

static void forget_slot(graph_slot *s)
{
    if (s->exec)
        cudaGraphExecDestroy(s->exec);
    *s = (graph_slot){0};
}

void cuda_graphs_drop(cuda_device *c)
{
    cuda_device *at = c;
    do {
        for (int i = 0; i < GRAPHS; i++)
            forget_slot(&at->graphs[i]);
        at = at->peer;
    } while (at && at != c);
}

/* The slot of this key; else the slot unused for the longest time, emptied. */
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

/* The recorded kernels count for the sequences of this pass. */
static void show_stats(cuda_device *c, const graph_slot *s, const step *st)
{
    c->n_stats = s->n_stats;
    for (int32_t i = 0; i < s->n_stats; i++) {
        c->counted[i] = s->counted[i];
        c->stats[i] = &st->sparse[s->counted[i].seq].stats[s->counted[i].il];
    }
}

/* What is not recorded of a watch. Of ranks on every device, and the recording comes behind it. */
static void show_watches(cuda_device *c, pass *p)
{
    cuda_show_watch(c, p);
    for (int32_t i = 1; p->n_watch && p->joined && i < p->n_sides; i++) {
        cuda_show_watch(cuda_select(p->side[i].dev), p);
        cuda_follow(&c->dev, p->side[i].dev);
    }
    cuda_select(&c->dev);
}

bool cuda_replay(device *d, pass *p, const void *model, const void *kv, mat *y)
{
    cuda_device *c = cuda_select(d);
    const step *st = p->st;
    c->recording = c->seen = NULL;
    if (c->no_graphs || !on_main(p->taps) || st->prompt || st->n_soft || st->all.n > GRAPH_ROWS ||
        pass_failed(p))
        return false;
    graph_key k = {.model = model,
                   .kv = kv,
                   .leg = p->n_legs,
                   .rows = st->all.n,
                   .outs = st->out.n,
                   .n_seqs = st->n_seqs,
                   .lora = lora_rows_key(p),
                   .tree = st->all.seen != NULL};
    for (int32_t i = 0; i < p->n_sides; i++)
        k.scratch[i] = p->side[i].scratch;
    memcpy(k.kv_bucket, c->kv_bucket, sizeof k.kv_bucket);
    memcpy(k.kv_least, c->kv_least, sizeof k.kv_least);
    if (p->taps)
        k.taps = *p->taps;
    if (p->n_watch && !cuda_watched_rows(p, &k.watch))
        return false;
    if (!cuda_skip_key(c, st, &k))
        return false;
    show_watches(c, p);
    graph_slot *s = slot_of(c, &k);
    bool seen = s->used != 0;
    s->used = ++c->graph_clock;
    c->seen = seen ? NULL : s;
    if (!seen || s->crowded)
        return false;
    const bool split = s->exec && cuda_splits_next(c);
    if (!s->exec || split) {
        cudaError_t r = cudaStreamBeginCapture(c->stream, cudaStreamCaptureModeThreadLocal);
        if (r == cudaErrorNotSupported) {
            cudaGetLastError();
            c->no_graphs = true;
            return false;
        }
        if (!cuda_ok(c, p, r, "recording a pass"))
            return true;
        c->recording = s;
        p->recording = true;
        if (split)
            cuda_split_begin(c, p);
        return false;
    }
    if (!cuda_ok(c, p, cuda_launch_whole(c, s->exec), "replaying a pass"))
        return true;
    *y = s->y;
    show_stats(c, s, st);
    cuda_take_stats(c, p);
    if (st->out.n)
        p->rows = &st->out;
    return true;
}

void cuda_recorded(device *d, pass *p, mat y)
{
    cuda_device *c = d->self;
    graph_slot *s = c->recording;
    cudaGraph_t g = NULL;
    const bool splits = c->splits;
    cudaGraphExec_t once = NULL, *exec = splits ? &once : s ? &s->exec : NULL;
    c->splits = false; /* no op after the recording has an event in it */
    if (c->seen)
        c->seen->crowded = c->crowded;
    c->seen = NULL; /* a pass that fails before its leg here calls too */
    if (!s)
        return;
    for (cuda_device *at = c->peer; at && at != c; at = at->peer)
        if (at->recording == s)
            at->recording = NULL;
    c->recording = NULL;
    if (!cuda_ok(c, p, cudaStreamEndCapture(c->stream, &g), "recording a pass"))
        return;
    if (pass_failed(p))
        forget_slot(s);
    else if (cuda_ok(c, p, cudaGraphInstantiate(exec, g, 0), "recording a pass") &&
             cuda_ok(c, p, cudaGraphLaunch(*exec, c->stream), "replaying a pass"))
        s->y = y;
    if (splits && !pass_failed(p))
        cuda_split_end(c, p, g);
    if (once)
        cudaGraphExecDestroy(once);
    s->n_stats = c->n_stats;
    memcpy(s->counted, c->counted, sizeof s->counted);
    cuda_take_stats(c, p);
    cudaGraphDestroy(g);
}
