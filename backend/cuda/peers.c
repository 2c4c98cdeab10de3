/* peers.c - copies from one GPU to another, or between two devices on one GPU.
 *
 *     stream of the sender      ... | waits for `here` of the receiver | copy | here | ...
 *     stream of the receiver    ... | here |                 waits for `here` of the sender | ...
 *
 * The sender waits until the receiver has read the memory that the copy overwrites. Streams wait
 * for events; the host does not wait. Chunks of a prompt follow each other: while the receiver
 * computes one, the sender computes the next. What crosses has two places in the receiver's
 * scratch, by turns. So the copy of chunk i + 1 waits for the end of chunk i - 1, not of chunk i:
 *
 *     stream of the sender      | chunk 2 | copy to B | chunk 3      | copy to A | ...
 *     stream of the receiver    | chunk 1, in A       | chunk 2, in B            | chunk 3, in A
 *
 * GPUs that reach each other's memory copy directly; for others the driver copies through the host.
 */
#include "backend/cuda/cuda_int.h"

#include <string.h>

/* Before the first copy to another GPU. That they cannot reach each other is no failure. c's GPU is
 * selected. */
static void meet(cuda_device *c, const cuda_device *other)
{
    const uint64_t bit = other->gpu < 64 ? (uint64_t)1 << other->gpu : 0;
    int can = 0;
    if (other->gpu == c->gpu || c->no_peers || (c->peers & bit))
        return;
    c->peers |= bit;
    cudaError_t r = cudaDeviceCanAccessPeer(&can, c->gpu, other->gpu);
    if (!r && can)
        r = cudaDeviceEnablePeerAccess(other->gpu, 0);
    if (r != cudaSuccess)
        cudaGetLastError();
    if (can && (r == cudaSuccess || r == cudaErrorPeerAccessAlreadyEnabled))
        c->direct |= bit;
}

bool cuda_reaches(device *d, const device *other)
{
    const cuda_device *o = other->self;
    cuda_device *c = d->self;
    if (c->plan_only) /* a plan is for GPUs that do */
        return true;
    cuda_select(d);
    meet(c, o);
    return !c->no_peers && (o->gpu == c->gpu || (o->gpu < 64 && c->direct >> o->gpu & 1));
}

void cuda_take_turn(cuda_device *c, pass *p)
{
    pass_side *s = &p->side[p->n_sides - 1];
    chunk_turns *t = &c->chunks;
    const int32_t rows = p->st->prompt ? p->st->all.n : 0;
    s->early = rows && rows == t->rows && s->scratch == t->scratch;
    s->turn = s->early && !t->turn;
    t->scratch = s->scratch;
    t->rows = rows;
    t->turn = s->turn;
    if (rows)
        cuda_ok(c, p, cudaEventRecord(t->begun[t->n++ & 1], c->stream), "ordering devices");
}

/* d's stream waits for the end of the last pass but one of `other`, which is the beginning of its
 * last one. The pass under way has begun there too, and has done nothing. */
static void follow_last_but_one(cuda_device *c, const cuda_device *other)
{
    const chunk_turns *t = &other->chunks;
    cuda_ok(c, NULL, cudaStreamWaitEvent(c->stream, t->begun[t->n & 1], 0), "ordering devices");
}

/* In a recording the event is an edge of the graph. A stream that waits for one joins the
 * recording (graph.c). */
static cudaEvent_t event_of(const cuda_device *c)
{
    return c->recording ? c->edge : c->here;
}
static bool record_end(cuda_device *b)
{
    return cuda_ok(b, NULL, cudaEventRecord(event_of(b), b->stream), "ordering devices");
}
static void await_end(cuda_device *c, cuda_device *b)
{
    if (!cuda_ok(c, NULL, cudaStreamWaitEvent(c->stream, event_of(b), 0), "ordering devices") ||
        !b->recording)
        return;
    cuda_join(c, b);
    c->recording = b->recording;
    c->after_edge = true;
}

void cuda_follow(device *d, device *before)
{
    if (record_end(before->self))
        await_end(d->self, before->self);
}

/* All ends are recorded before the first stream waits. Else one would wait for another's wait. */
void cuda_line_up(device *const *d, int32_t n)
{
    bool ok = true;
    for (int32_t i = 0; i < n; i++)
        ok = record_end(d[i]->self) && ok;
    for (int32_t i = 0; i < n; i++)
        for (int32_t k = 0; k < n && ok; k++)
            if (i != k)
                await_end(d[i]->self, d[k]->self);
}

/* The recording of a leg has the copy and no events. The recorded pass is ordered behind all
 * earlier work of the receiver, whose next leg follows the recording (pass_next_leg). Ranks have
 * one recording, and copies between them have their events in it. */
void cuda_send(device *d, device *other, void *to, const void *at, size_t n_bytes,
               send_order order)
{
    cuda_device *c = d->self, *there = other->self;
    cuda_select(&c->dev);
    meet(c, there);
    cuda_join(c, there);
    const bool leg = c->recording && c->recording != there->recording,
               alone = leg || order == SEND_UNORDERED;
    if (!c->recording && order == SEND_EARLY)
        follow_last_but_one(c, there);
    else if (!alone)
        cuda_follow(d, other);
    cuda_ok(c, NULL, cudaMemcpyAsync(to, at, n_bytes, cudaMemcpyDefault, c->stream),
            "copying to another GPU");
    if (!alone)
        cuda_follow(other, d);
}

/* The host's memory has one address for all GPUs. */
void *cuda_open_inbox(device *d, size_t n_bytes, bool reached)
{
    void *at = NULL;
    if (reached)
        return d->alloc(d, n_bytes);
    cuda_select(d);
    if (cudaMallocHost(&at, n_bytes) != cudaSuccess) {
        cudaGetLastError();
        return NULL;
    }
    memset(at, 0, n_bytes);
    return at;
}

void cuda_close_inbox(device *d, void *at, size_t n_bytes, bool reached)
{
    const cuda_device *c = cuda_select(d);
    if (reached)
        d->release(d, at, n_bytes);
    else if (!c->stalled) /* its GPU may still read it */
        cudaFreeHost(at);
}
