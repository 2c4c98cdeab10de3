/* cards.c - what GPUs of each compute capability have, as far as kernels are chosen by it.
 *
 * A device may imitate another card: its kernels are then chosen by that card's facts. Its memory,
 * its multiprocessors and its speed stay. So kernels of cards that are not at hand are checked and
 * compared on one that is.
 */
#include "backend/cuda/cuda_int.h"

#include <string.h>

typedef struct card {
    const char *name; /* compute capability */
    gpu_facts facts;  /* n_sm: of a common card of that capability */
} card;

enum { KB = 1024 };
/* CUDA C++ Programming Guide, "Technical Specifications per Compute Capability". */
static const card cards[] = {
    {"8.0", {.n_sm = 108, .shared_block = 163 * KB, .shared_sm = 164 * KB}},
    {"8.6", {.n_sm = 82, .shared_block = 99 * KB, .shared_sm = 100 * KB, .slow_sums = true}},
    {"8.9", {.n_sm = 128, .shared_block = 99 * KB, .shared_sm = 100 * KB, .slow_sums = true}},
    {"9.0",
     {.n_sm = 132,
      .shared_block = 227 * KB,
      .shared_sm = 228 * KB,
      .overlap = true,
      .wgmma = true}},
    {"10.0", {.n_sm = 148, .shared_block = 227 * KB, .shared_sm = 228 * KB, .overlap = true}},
    {"12.0",
     {.n_sm = 170,
      .shared_block = 99 * KB,
      .shared_sm = 100 * KB,
      .overlap = true,
      .slow_sums = true}},
};

gpu_facts card_facts_of(const struct cudaDeviceProp *p)
{
    return (gpu_facts){.n_sm = p->multiProcessorCount,
                       .shared_block = (int32_t)p->sharedMemPerBlockOptin,
                       .shared_sm = (int32_t)p->sharedMemPerMultiprocessor,
                       .overlap = p->major >= 9,
                       .wgmma = p->major == 9 && p->minor == 0,
                       .slow_sums = (p->major == 8 && p->minor >= 6) || p->major == 12};
}

status card_facts(const char *name, gpu_facts *f, err *e)
{
    for (size_t i = 0; i < sizeof cards / sizeof *cards; i++)
        if (!strcmp(cards[i].name, name)) {
            *f = cards[i].facts;
            return OK;
        }
    return err_set(e, E_ARG,
                   "card '%.20s': expected a compute capability: 8.0, 8.6, 8.9, 9.0, 10.0 or 12.0",
                   name);
}

status card_imitate(const char *name, gpu_facts *f, err *e)
{
    gpu_facts other;
    status st = card_facts(name, &other, e);
    if (st)
        return st;
    if (other.shared_block > f->shared_block || other.shared_sm > f->shared_sm ||
        (other.overlap && !f->overlap) || (other.wgmma && !f->wgmma))
        return err_set(e, E_UNSUPPORTED, "this GPU cannot imitate a card of %s, which has more",
                       name);
    other.n_sm = f->n_sm;
    *f = other;
    return OK;
}
