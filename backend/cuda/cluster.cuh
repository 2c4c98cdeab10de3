/* cluster.cuh - blocks that run at the same time and read each other's shared memory, from 9.0 on.
 * The emulator has one block at a time: kernels have a form of one block as well. */
#ifndef BACKEND_CUDA_CLUSTER_CUH
#define BACKEND_CUDA_CLUSTER_CUH

#include "backend/cuda/dev.cuh"

#ifdef CARAT_EMU
static inline bool has_clusters()
{
    return false;
}
template <class K, class A>
static void launch_cluster(K *, dim3, dim3, size_t, unsigned, cudaStream_t, const A &)
{
}
#else
static inline bool has_clusters()
{
    return cu_gpu.overlap;
}
/* LAUNCH, with n neighbours in the grid's x on different multiprocessors at the same time. */
template <class K, class A>
static void launch_cluster(K *kernel, dim3 grid, dim3 block, size_t shared_bytes, unsigned n,
                           cudaStream_t s, const A &a)
{
#ifdef CARAT_MARKS
    marks_open(CARAT_MARKS);
#endif
    cudaLaunchAttribute with[3] = {};
    cudaLaunchConfig_t c = {};
    with[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    with[0].val.programmaticStreamSerializationAllowed = 1;
    with[1].id = cudaLaunchAttributeClusterDimension;
    with[1].val.clusterDim.x = n;
    with[1].val.clusterDim.y = with[1].val.clusterDim.z = 1;
    c.numAttrs = 2;
#if CUDART_VERSION >= 12080
    with[2].id = cudaLaunchAttributePreferredSharedMemoryCarveout;
    with[2].val.sharedMemCarveout = 100;
    c.numAttrs = 3;
#endif
    c.gridDim = grid;
    c.blockDim = block;
    c.dynamicSmemBytes = shared_bytes;
    c.stream = s;
    c.attrs = with;
    cudaLaunchKernelEx(&c, kernel, a);
}
#endif

#if !defined(CARAT_EMU) && __CUDA_ARCH__ >= 900
/* A barrier of all its blocks, for shared memory too. */
DEV void cluster_sync()
{
    asm volatile("barrier.cluster.arrive.aligned;\n barrier.cluster.wait.aligned;" ::: "memory");
}
/* Four floats at p in the shared memory of block `rank`. */
DEV float4 cluster_four(const float *p, int rank)
{
    uint32_t at, own = (uint32_t)__cvta_generic_to_shared(p);
    float4 v;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(own), "r"(rank));
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(at)
                 : "memory");
    return v;
}
#else
DEV void cluster_sync()
{
}
DEV float4 cluster_four(const float *p, int)
{
    return *(const float4 *)p;
}
#endif

#endif
