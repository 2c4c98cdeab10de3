/* cpu_int.h - what the files of the CPU device share.
 *
 * cpu.c      opens the device, chooses the instruction set, owns memory and packed weights
 * ref.c      the plain definition of every op; the table when the reference is asked for
 * ops.c      the ops that are not products: splits them over the pool, calls kernels
 * matmul.c   products: splits them into panels and rows, calls kernels
 * attend.c   attention: splits it into blocks of keys, calls kernels
 * pack.c     the device's own weight layout
 * matmul_*.c one instruction set each (matmul_avx512bf16.c, matmul_amx.c: one more product for
 * AVX-512): a table of kernels (cpu_kernels)
 *
 * The one idea: a kernel computes an output with the same sequence of floating-point operations
 * whatever the number of rows it was called with, so a row never notices its neighbours.
 */
#ifndef BACKEND_CPU_CPU_INT_H
#define BACKEND_CPU_CPU_INT_H

#include "backend/ops.h"
#include "backend/cpu/kernels_int.h"
#include "backend/cpu/pairs_int.h"
#include "base/pool.h"

#include <stdatomic.h>

typedef struct cpu_device {
    device dev; /* first: a device * is a cpu_device * */
    pool *pool;
    int32_t n_threads;
    const cpu_kernels *k;
    const pair_kernels *pairs; /* NULL: activations of products with bf16 weights stay f32 */
    cpu_kernels with_pairs;    /* k under the name of `pairs`, where there are some */
    bool exact_f32, no_repack, reference;
    struct slab *slabs;       /* of packed weights (cpu.c) */
    _Atomic uint64_t n_bytes; /* allocated and not released */
    char name[64];
} cpu_device;

static inline cpu_device *cpu_of(const pass *p)
{
    return (cpu_device *)p->dev->self;
}

static inline act_mul_fn cpu_act_kernel(const cpu_kernels *k, act_kind act)
{
    switch (act) {
    case ACT_SILU:
        return k->silu_mul;
    case ACT_SOFTPLUS:
        return k->softplus_mul;
    case ACT_SIGMOID:
        return k->sigmoid_mul;
    case ACT_GELU_ERF:
        return k->gelu_erf_mul;
    case ACT_SWIGLU_CUT:
        return k->swiglu_cut;
    default:
        return k->gelu_mul;
    }
}

/* Makes infinities of a stored head NaN. A key with an infinity may have a score of -inf, which
 * drops it without a trace. A NaN reaches the logits, which the engine tests. */
static inline void cpu_mark_overflow(uint16_t *f16, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        f16[i] |= (f16[i] & 0x7fff) == 0x7c00 ? 0x200 : 0;
}

extern const device_ops cpu_ref_ops; /* ref.c */

/* Whether weight_load makes a packed copy of w. */
bool cpu_wants_pack(const cpu_device *c, const weight *w);

#endif
