/* marks.cuh - in a build with MARKS=1: when each kernel of a pass begins, read on the GPU's clock.
 *
 *     kernel A  ..work...........end
 *     kernel B        weights..|wait |..work..          a mark: t0 where the wait begins, t1 where
 *                              t0    t1                 it returns
 *
 * A kernel's wait returns when the kernel before it has ended. So the time from one t1 to the next
 * is what a kernel costs the pass, whatever it did before its wait. Thread 0 of each block writes
 * the mark. On an H200 marks make a pass of one row 2 to 8 % longer. The time of a mark decides its
 * place in the list, so the list has the newest two milliseconds. When the program ends it writes
 * the list to the file that CARAT_MARKS names. tools/pass_marks.py makes a table of that file.
 */
#ifndef BACKEND_CUDA_MARKS_CUH
#define BACKEND_CUDA_MARKS_CUH

#include <stdio.h>
#include <stdlib.h>

struct mark {
    unsigned long long t0, t1;
    unsigned grid[3], block, threads, file;
};
enum { MARK_TIMES = 1 << 15, MARK_SM = 256, MARK_FILES = 64 }; /* of 64 ns */
struct mark_list {
    mark *at; /* [MARK_TIMES][MARK_SM], device memory; NULL: none yet */
    const char *name[MARK_FILES];
    int n_names;
};
extern mark_list cu_marks; /* probe.cu */

static __device__ mark *marks_at; /* each file has its own */
static __device__ unsigned marks_file;

static void marks_write(void)
{
    const size_t n = (size_t)MARK_TIMES * MARK_SM;
    const char *path = getenv("CARAT_MARKS");
    mark *m = (mark *)malloc(n * sizeof *m);
    FILE *f = path ? fopen(path, "w") : NULL;
    if (f && m && !cudaMemcpy(m, cu_marks.at, n * sizeof *m, cudaMemcpyDeviceToHost))
        for (size_t i = 0; i < n; i++)
            if (m[i].t1)
                fprintf(f, "%llu %llu %s %ux%ux%u/%u %u\n", m[i].t0, m[i].t1,
                        cu_marks.name[m[i].file], m[i].grid[0], m[i].grid[1], m[i].grid[2],
                        m[i].threads, m[i].block);
    if (f)
        fclose(f);
    free(m);
}

/* Before a launch: this file's first one, which no recording has, shows its kernels the list. */
static void marks_open(const char *file)
{
    static bool open;
    const size_t bytes = (size_t)MARK_TIMES * MARK_SM * sizeof(mark);
    if (open || !getenv("CARAT_MARKS"))
        return;
    open = true;
    if (!cu_marks.at) {
        if (cudaMalloc(&cu_marks.at, bytes) || cudaMemset(cu_marks.at, 0, bytes))
            return;
        atexit(marks_write);
    }
    const unsigned id = (unsigned)cu_marks.n_names++;
    cu_marks.name[id % MARK_FILES] = file;
    cudaMemcpyToSymbol(marks_file, &id, sizeof id);
    cudaMemcpyToSymbol(marks_at, &cu_marks.at, sizeof cu_marks.at);
}

static __device__ __forceinline__ unsigned long long mark_now(void)
{
    unsigned long long t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
}
static __device__ __forceinline__ void mark_put(unsigned long long t0)
{
    if (threadIdx.x || threadIdx.y || threadIdx.z || !marks_at)
        return;
    const unsigned long long t1 = mark_now();
    unsigned sm;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
    marks_at[(t1 >> 6 & (MARK_TIMES - 1)) * MARK_SM + sm % MARK_SM] = {
        t0,
        t1,
        {gridDim.x, gridDim.y, gridDim.z},
        blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z),
        blockDim.x * blockDim.y * blockDim.z,
        marks_file};
}

#endif
