/* stall.c - waits for a GPU that end, also if the GPU does not go on.
 *
 * Where several devices share a model, each waits for copies from the one before; a drafter's own
 * device is waited for by the host alone. A link that
 * stalls or a GPU that has left the bus would keep all of them waiting, and the host with them. So
 * the host polls there. It gives up when none of the devices has got further for stall_ms: no step
 * has arrived, no chunk has begun, no copy has ended. A chunk of a prompt behind a long context
 * takes long on a slow GPU, so it may take CHUNK_TIMES as long. Then all devices of the model are
 * lost: they say so in every later pass, nothing waits for them again, and their memory is not
 * freed, because the runtime would wait. Other models go on.
 */
#include "backend/cuda/cuda_int.h"
#include "base/clock.h"

#include <time.h>

enum { LOOK_MS = 100, SPIN_MS = 20, CHUNK_TIMES = 5 };

/* What has been reached of the devices that wait for each other: steps of passes that are there,
 * the beginnings of chunks, and the last copies. It grows while the host waits, because the host
 * enqueues nothing then. A device may have nothing to do until the others have computed a chunk, so
 * all count. */
static int reached(const cuda_device *c)
{
    int n = 0;
    const cuda_device *at = c;
    do {
        for (int i = 0; i < STEP_BUFFERS; i++)
            n += cudaEventQuery(at->step_done[i]) == cudaSuccess;
        for (int i = 0; i < 2; i++)
            n += cudaEventQuery(at->chunks.begun[i]) == cudaSuccess;
        n += cudaEventQuery(at->here) == cudaSuccess;
        at = at->peer;
    } while (at != c);
    cudaGetLastError();
    return n;
}

/* How long the ring may get no further. */
static int limit_ms(const cuda_device *c)
{
    const cuda_device *at = c;
    do {
        if (at->chunks.rows)
            return CHUNK_TIMES * c->stall_ms;
        at = at->peer;
    } while (at != c);
    return c->stall_ms;
}

/* A device of the ring that has failed, asked now; NULL: none. */
static cuda_device *failed_one(cuda_device *c)
{
    cuda_device *at = c;
    do {
        cudaError_t r = cudaEventQuery(at->ended);
        cudaGetLastError();
        if (at->broken || (r != cudaErrorNotReady && !cuda_ok(at, NULL, r, "computing")))
            return at;
        at = at->peer;
    } while (at != c);
    return NULL;
}

/* All devices of the ring are lost, for this reason. */
static void give_up(cuda_device *c, const cuda_device *failed, const char *doing, int waited_ms)
{
    err why = {0};
    if (failed)
        why = failed->broken_why;
    else
        err_set(&why, E_IO,
                "%s: %s: no progress in %.0f s: a GPU that shares the model, or a link between "
                "them, has stalled. The model has to be loaded again",
                c->dev.name, doing, waited_ms * 1e-3);
    cuda_device *at = c;
    do {
        at->stalled = true;
        if (!at->broken)
            at->broken_why = why;
        at->broken = true;
        at = at->peer;
    } while (at != c);
}

/* The event has not been reached yet. A look counts as LOOK_MS, however long ago the last one is: a
 * process that was stopped has not waited for the GPU. */
static bool poll(cuda_device *c, cudaEvent_t event, const char *doing)
{
    const struct timespec pause = {.tv_nsec = 50 * 1000};
    const int limit = limit_ms(c);
    double start = clock_ms(), looked = start;
    int n = -1, idle_ms = 0;
    for (;;) {
        cudaError_t r = cudaEventQuery(event);
        if (r != cudaErrorNotReady)
            return cuda_ok(c, NULL, r, doing);
        cudaGetLastError();
        double now = clock_ms();
        if (now - looked >= LOOK_MS) {
            int n_now = reached(c);
            const cuda_device *failed = failed_one(c);
            idle_ms = n_now > n ? 0 : idle_ms + LOOK_MS;
            n = n_now;
            looked = now;
            if (failed || idle_ms >= limit) {
                give_up(c, failed, doing, limit);
                return false;
            }
        }
        if (now - start > SPIN_MS)
            nanosleep(&pause, NULL);
    }
}

bool cuda_await_event(cuda_device *c, pass *p, cudaEvent_t event, const char *doing)
{
    if (!c->peer && !c->stalled) /* the last one of a ring that was given up has no peer either */
        return cuda_ok(c, p, cudaEventSynchronize(event), doing);
    bool fine = !c->stalled && poll(c, event, doing);
    if (!fine && p && !pass_failed(p))
        err_set(&p->e, c->broken_why.status, "%s", c->broken_why.text);
    return fine;
}

bool cuda_await(cuda_device *c, pass *p, const char *doing)
{
    if (!c->peer && !c->stalled)
        return cuda_ok(c, p, cudaStreamSynchronize(c->stream), doing);
    if (!c->stalled && !cuda_ok(c, p, cudaEventRecord(c->ended, c->stream), doing))
        return false;
    return cuda_await_event(c, p, c->ended, doing);
}

/* Two rings become one, if they are two. */
void cuda_join(cuda_device *a, cuda_device *b)
{
    cuda_device *after_a = a->peer ? a->peer : a, *after_b = b->peer ? b->peer : b;
    for (const cuda_device *at = after_a; at != a; at = at->peer)
        if (at == b)
            return;
    a->peer = after_b;
    b->peer = after_a;
}

/* A ring of one. */
void cuda_limit_waits(device *d)
{
    cuda_device *c = d->self;
    if (!c->peer)
        c->peer = c;
}

void cuda_part(cuda_device *c)
{
    cuda_device *at = c->peer;
    while (at && at->peer != c)
        at = at->peer;
    if (at)
        at->peer = c->peer == at ? NULL : c->peer;
    c->peer = NULL;
}
