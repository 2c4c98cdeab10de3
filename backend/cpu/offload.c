/* offload.c - see offload.h: which kernels run here. */
#include "backend/cpu/offload.h"

#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

extern const offload_kernels offload_kernels_portable, offload_kernels_avx2, offload_kernels_avx512;

/* Best first. */
static const offload_kernels *const kernel_sets[] = {
#if defined(__x86_64__)
    &offload_kernels_avx512,
    &offload_kernels_avx2,
#endif
    &offload_kernels_portable,
};

static bool runs_here(const offload_kernels *k)
{
#if defined(__x86_64__)
    unsigned a, b, c, d;
    if (k == &offload_kernels_avx512)
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("avx512vnni");
    if (k == &offload_kernels_avx2)
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
               __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
#endif
    (void)k;
    return true;
}

status offload_kernels_find(const char *isa, const offload_kernels **k, err *e)
{
    bool any = !isa || !*isa;
    for (size_t i = 0; i < sizeof kernel_sets / sizeof *kernel_sets; i++) {
        const offload_kernels *set = kernel_sets[i];
        if (!any && strcmp(isa, set->isa) != 0)
            continue;
        if (runs_here(set)) {
            *k = set;
            return OK;
        }
        if (!any)
            return err_set(e, E_UNSUPPORTED, "this processor has not all of %s", isa);
    }
    return err_set(e, E_ARG, "no instruction set %.40s for experts beside a GPU", isa);
}

int32_t offload_host_share(int32_t n, double dispatch_ms, double expert_ms, double bus_ms)
{
    int32_t share = 0;
    double best_ms = n * bus_ms;
    for (int32_t k = 1; k <= n; k++) {
        double host_ms = dispatch_ms + k * expert_ms, rest_ms = (n - k) * bus_ms;
        double ms = host_ms > rest_ms ? host_ms : rest_ms;
        if (ms < best_ms) {
            best_ms = ms;
            share = k;
        }
    }
    return share;
}

int32_t offload_gate_parts(int32_t n_tile, int32_t n_unit)
{
    return n_tile < 4096 && 2 <= n_unit ? 2 : 1;
}
