/* stall.c - waits for a GPU that end, also if the GPU does not go on.
 *
 * Where several devices share a model, each waits for copies from the one before. A link that stalls
 * or a GPU that has left the bus would keep all of them waiting, and the host with them. So the host
 * polls there. It gives up when the device has begun no pass for stall_ms. Then all devices of the
 * model are lost: they say so in every later pass, nothing waits for them again, and their memory is
 * not freed, because the runtime would wait. Other models go on.
 */
#include "backend/cuda/cuda_int.h"
#include "base/clock.h"

#include <time.h>

enum { LOOK_MS = 100, SPIN_MS = 20, CHAIN = PASS_SIDES_MAX };

/* The first device of those that send to each other. */
static cuda_device *first_of(cuda_device *c)
{
    for (int i = 0; i < CHAIN && c->before; i++)
        c = c->before;
    return c;
}

/* Steps of passes that are on the device. */
static int steps_done(cuda_device *c)
{
    int n = 0;
    for (int i = 0; i < STEP_BUFFERS; i++)
        n += cudaEventQuery(c->step_done[i]) == cudaSuccess;
    cudaGetLastError();
    return n;
}

/* A device of the chain that has failed, asked now; NULL: none. */
static cuda_device *failed_one(cuda_device *c)
{
    cuda_device *at = first_of(c);
    for (int i = 0; at && i < CHAIN; i++, at = at->after) {
        cudaError_t r = cudaEventQuery(at->ended);
        cudaGetLastError();
        if (at->broken || (r != cudaErrorNotReady && !cuda_ok(at, NULL, r, "computing")))
            return at;
    }
    return NULL;
}

/* All devices of the chain are lost, for this reason. */
static void give_up(cuda_device *c, const cuda_device *failed, const char *doing)
{
    err why = {0};
    if (failed)
        why = failed->broken_why;
    else
        err_set(&why, E_IO,
                "%s: %s: no progress in %.0f s: a GPU that shares the model, or a link between "
                "them, has stalled. The model has to be loaded again",
                c->dev.name, doing, c->stall_ms * 1e-3);
    cuda_device *at = first_of(c);
    for (int i = 0; at && i < CHAIN; i++, at = at->after) {
        at->stalled = true;
        if (!at->broken)
            at->broken_why = why;
        at->broken = true;
    }
}

/* The event has not been reached yet. */
static bool poll(cuda_device *c, cudaEvent_t event, const char *doing)
{
    const struct timespec pause = {.tv_nsec = 50 * 1000};
    double start = clock_ms(), moved = start, looked = start;
    int n = 0;
    for (;;) {
        cudaError_t r = cudaEventQuery(event);
        if (r != cudaErrorNotReady)
            return cuda_ok(c, NULL, r, doing);
        cudaGetLastError();
        double now = clock_ms();
        if (now - looked >= LOOK_MS || now - moved >= c->stall_ms) {
            int steps = steps_done(c);
            const cuda_device *failed = failed_one(c);
            moved = steps != n ? now : moved;
            n = steps;
            looked = now;
            if (failed || now - moved >= c->stall_ms) {
                give_up(c, failed, doing);
                return false;
            }
        }
        if (now - start > SPIN_MS)
            nanosleep(&pause, NULL);
    }
}

bool cuda_await_event(cuda_device *c, pass *p, cudaEvent_t event, const char *doing)
{
    if (!c->before && !c->after)
        return cuda_ok(c, p, cudaEventSynchronize(event), doing);
    bool fine = !c->stalled && poll(c, event, doing);
    if (!fine && p && !pass_failed(p))
        err_set(&p->e, c->broken_why.status, "%s", c->broken_why.text);
    return fine;
}

bool cuda_await(cuda_device *c, pass *p, const char *doing)
{
    if (!c->before && !c->after)
        return cuda_ok(c, p, cudaStreamSynchronize(c->stream), doing);
    if (!c->stalled && !cuda_ok(c, p, cudaEventRecord(c->ended, c->stream), doing))
        return false;
    return cuda_await_event(c, p, c->ended, doing);
}

void cuda_part(cuda_device *c)
{
    if (c->before)
        c->before->after = c->after;
    if (c->after)
        c->after->before = c->before;
    c->before = c->after = NULL;
}
