/* links.c - see links.h.
 *
 * By layers a token takes the time in which one GPU reads all weights of a token, because GPUs
 * compute in turn. By tensors each of n GPUs reads an n-th, and they wait for each other at every
 * sum. What a sum costs is measured as a copy of a row to another GPU, with the waits of both
 * streams. The kernel that adds up (rank_sum.cu) takes less than that: on two H200s 2.5 us for 8.
 * The rest stands for the launches that a rank has more than one GPU. So the gain is rather told
 * too low: where copies go through the host, 31B gains a third and is predicted to gain nothing.
 */
#include "engine/links.h"
#include "backend/ranks.h"
#include "base/clock.h"

enum { LARGE = 64 << 20, LARGE_TURNS = 8, ROW_TURNS = 100, WARM_TURNS = 4 };

const link_speed *links_of_stand_ins;

double links_gain(const link_speed *s, int32_t n, double token_bytes, int32_t n_sums)
{
    const double alone = token_bytes / s->bytes_s, each = alone / n + n_sums * s->copy_s;
    const bool known = s->bytes_s > 0 && s->copy_s > 0 && token_bytes > 0 && n > 1;
    return known && each > 0 ? alone / each : 0;
}

/* Copies from a to b and back, n times. */
static double seconds_of(device *a, device *b, void *at_a, void *at_b, size_t n_bytes, int n)
{
    double start = 0;
    for (int i = -WARM_TURNS; i < n; i++) {
        if (i == 0) {
            a->wait(a);
            b->wait(b);
            start = clock_ms();
        }
        a->send(a, b, at_b, at_a, n_bytes, SEND_BEHIND_BOTH);
        b->send(b, a, at_a, at_b, n_bytes, SEND_BEHIND_BOTH);
    }
    a->wait(a);
    b->wait(b);
    return (clock_ms() - start) * 1e-3;
}

status links_measure(device *const *dev, int32_t n, size_t row_bytes, link_speed *to, err *e)
{
    device *a = dev[0];
    status st = OK;
    if (n < 2 || !a->send || !ranks_have_own_gpus(dev, n))
        return err_set(e, E_UNSUPPORTED, "each rank needs a GPU of its own");
    char *from = a->alloc(a, LARGE), *there = a->alloc(a, LARGE);
    link_speed s = {0};
    if (from && there && row_bytes <= LARGE) /* a copy reads and writes */
        s.bytes_s = 4.0 * LARGE * LARGE_TURNS / seconds_of(a, a, from, there, LARGE, LARGE_TURNS);
    else
        st = err_memory(e, "measuring links", 2 * (size_t)LARGE);
    for (int32_t i = 1; i < n && !st; i++) {
        device *b = dev[i];
        void *row = b->alloc(b, row_bytes);
        if (!row) {
            st = err_memory(e, "measuring links", row_bytes);
            break;
        }
        const double t = seconds_of(a, b, from, row, row_bytes, ROW_TURNS) / (2 * ROW_TURNS);
        s.copy_s = t > s.copy_s ? t : s.copy_s;
        b->release(b, row, row_bytes);
        if (b->failed(b, e))
            st = e->status;
    }
    if (from)
        a->release(a, from, LARGE);
    if (there)
        a->release(a, there, LARGE);
    if (!st && a->failed(a, e))
        st = e->status;
    *to = st ? *to : s;
    return st;
}
