/* peers.c - copies from one GPU to another, or between two devices on one GPU.
 *
 *     stream of the sender      ... | waits for `here` of the receiver | copy | here | ...
 *     stream of the receiver    ... | here |                 waits for `here` of the sender | ...
 *
 * The sender waits until the receiver has read the memory that the copy overwrites. Streams wait
 * for events; the host does not wait. Chunks of a prompt follow each other: while the receiver
 * computes one, the sender computes the next. GPUs that reach each other's memory copy directly;
 * for others the driver copies through the host.
 */
#include "backend/cuda/cuda_int.h"

/* Before the first copy to another GPU. That they cannot reach each other is no failure. */
static void meet(cuda_device *c, const cuda_device *other)
{
    const uint64_t bit = other->gpu < 64 ? (uint64_t)1 << other->gpu : 0;
    int can = 0;
    if (other->gpu == c->gpu || (c->peers & bit))
        return;
    c->peers |= bit;
    if (cudaDeviceCanAccessPeer(&can, c->gpu, other->gpu) != cudaSuccess ||
        (can && cudaDeviceEnablePeerAccess(other->gpu, 0) != cudaSuccess))
        cudaGetLastError(); /* or another device has enabled it */
}

void cuda_follow(device *d, device *before)
{
    cuda_device *c = d->self, *b = before->self;
    if (cuda_ok(b, NULL, cudaEventRecord(b->here, b->stream), "ordering devices"))
        cuda_ok(c, NULL, cudaStreamWaitEvent(c->stream, b->here, 0), "ordering devices");
}

/* A recording has the copy and no events. The recorded pass is ordered behind all earlier
 * work of the receiver, whose next leg follows the recording (pass_next_leg). */
void cuda_send(device *d, device *other, void *to, const void *at, size_t n_bytes)
{
    cuda_device *c = d->self, *there = other->self;
    cuda_settle(there);
    cuda_wrote(there, to, n_bytes);
    cuda_settle(c);
    meet(c, there);
    if (!c->recording)
        cuda_follow(d, other);
    cuda_ok(c, NULL, cudaMemcpyAsync(to, at, n_bytes, cudaMemcpyDefault, c->stream),
            "copying to another GPU");
    if (!c->recording)
        cuda_follow(other, d);
}
