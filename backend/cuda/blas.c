/* blas.c - products of many rows through cuBLASLt, where the library is found at run time.
 *
 * A weight of blocks becomes bf16 in scratch once per chunk of a prompt, and the library
 * multiplies. Unpacking moves 2.6 bytes per weight, shared by all rows, so from some hundred rows
 * on it is nearly free. Nothing is linked: the few entry points are declared here as the library's
 * manual has them, and looked up by name. Without the library matmul_mma.cu computes the same
 * product at about half the speed; the device's name says so.
 */
#include "backend/cuda/cuda_int.h"
#include "base/mem.h"

#include <dlfcn.h>
#include <string.h>

/* The library's constants. */
enum { COMPUTE_F32 = 68, R_32F = 0, R_16BF = 14, DESC_TRANSA = 3, PREF_WORKSPACE = 1, OP_T = 1 };

typedef struct lt_algo {
    uint64_t data[8];
} lt_algo;
typedef struct lt_result {
    lt_algo algo;
    size_t workspace_bytes;
    int state;
    float waves;
    int reserved[4];
} lt_result;

typedef struct lt_calls {
    int (*create)(void **handle);
    int (*destroy)(void *handle);
    int (*desc_create)(void **desc, int compute, int scale_type);
    int (*desc_set)(void *desc, int attribute, const void *value, size_t n_bytes);
    int (*desc_destroy)(void *desc);
    int (*layout_create)(void **layout, int type, uint64_t rows, uint64_t cols, int64_t ld);
    int (*layout_destroy)(void *layout);
    int (*pref_create)(void **pref);
    int (*pref_set)(void *pref, int attribute, const void *value, size_t n_bytes);
    int (*pref_destroy)(void *pref);
    int (*heuristic)(void *handle, void *desc, void *a, void *b, void *c, void *d, void *pref,
                     int n, lt_result *list, int *n_found);
    int (*matmul)(void *handle, void *desc, const void *alpha, const void *a, void *la,
                  const void *b, void *lb, const void *beta, const void *c, void *lc, void *d,
                  void *ld, const lt_algo *algo, void *workspace, size_t n_bytes,
                  cudaStream_t stream);
} lt_calls;

/* A product's shape, and the algorithm that the library chose for it. */
typedef struct lt_plan {
    int32_t rows, n_in, n_out;
    int64_t stride; /* of y */
    void *desc, *a, *b, *d;
    lt_algo algo;
    uint64_t used; /* 0: free */
} lt_plan;

enum { LT_PLANS = 64, LT_WORKSPACE = 32 << 20 };

struct cuda_blas {
    void *library, *handle, *workspace;
    lt_calls call;
    lt_plan plan[LT_PLANS];
    uint64_t clock;
};

static bool look_up(cuda_blas *b)
{
    static const char *const names[] = {
        "libcublasLt.so.13", "libcublasLt.so.12", "/usr/local/cuda/lib64/libcublasLt.so.13",
        "/usr/local/cuda/lib64/libcublasLt.so.12",
        "/usr/local/cuda/targets/x86_64-linux/lib/libcublasLt.so.13"};
    const struct {
        const char *name;
        void **at;
    } want[] = {{"cublasLtCreate", (void **)&b->call.create},
                {"cublasLtDestroy", (void **)&b->call.destroy},
                {"cublasLtMatmulDescCreate", (void **)&b->call.desc_create},
                {"cublasLtMatmulDescSetAttribute", (void **)&b->call.desc_set},
                {"cublasLtMatmulDescDestroy", (void **)&b->call.desc_destroy},
                {"cublasLtMatrixLayoutCreate", (void **)&b->call.layout_create},
                {"cublasLtMatrixLayoutDestroy", (void **)&b->call.layout_destroy},
                {"cublasLtMatmulPreferenceCreate", (void **)&b->call.pref_create},
                {"cublasLtMatmulPreferenceSetAttribute", (void **)&b->call.pref_set},
                {"cublasLtMatmulPreferenceDestroy", (void **)&b->call.pref_destroy},
                {"cublasLtMatmulAlgoGetHeuristic", (void **)&b->call.heuristic},
                {"cublasLtMatmul", (void **)&b->call.matmul}};
    for (size_t i = 0; i < sizeof names / sizeof *names && !b->library; i++)
        b->library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (!b->library)
        return false;
    for (size_t i = 0; i < sizeof want / sizeof *want; i++)
        if (!(*want[i].at = dlsym(b->library, want[i].name)))
            return false;
    return true;
}

static void drop_plan(cuda_blas *b, lt_plan *p)
{
    if (p->desc)
        b->call.desc_destroy(p->desc);
    if (p->a)
        b->call.layout_destroy(p->a);
    if (p->b)
        b->call.layout_destroy(p->b);
    if (p->d)
        b->call.layout_destroy(p->d);
    *p = (lt_plan){0};
}

void cuda_blas_close(cuda_blas *b)
{
    if (!b)
        return;
    for (int i = 0; b->handle && i < LT_PLANS; i++)
        drop_plan(b, &b->plan[i]);
    if (b->handle)
        b->call.destroy(b->handle);
    if (b->workspace)
        cudaFree(b->workspace);
    if (b->library)
        dlclose(b->library);
    mem_free(b);
}

cuda_blas *cuda_blas_open(void)
{
    cuda_blas *b = mem_calloc(1, sizeof *b);
    if (!b)
        return NULL;
    if (!look_up(b) || b->call.create(&b->handle) ||
        cudaMalloc(&b->workspace, LT_WORKSPACE) != cudaSuccess) {
        cudaGetLastError();
        cuda_blas_close(b);
        return NULL;
    }
    return b;
}

/* The library is column-major: Y' [n_out, rows] = W' transposed [n_out, n_in] X' [n_in, rows]. */
static bool make_plan(cuda_blas *b, lt_plan *p)
{
    int t = OP_T, found = 0;
    size_t workspace_bytes = LT_WORKSPACE;
    void *pref = NULL;
    lt_result best;
    uint64_t in = (uint64_t)p->n_in, out = (uint64_t)p->n_out, rows = (uint64_t)p->rows;
    bool ok =
        !b->call.desc_create(&p->desc, COMPUTE_F32, R_32F) &&
        !b->call.desc_set(p->desc, DESC_TRANSA, &t, sizeof t) &&
        !b->call.layout_create(&p->a, R_16BF, in, out, p->n_in) &&
        !b->call.layout_create(&p->b, R_16BF, in, rows, p->n_in) &&
        !b->call.layout_create(&p->d, R_32F, out, rows, p->stride) && !b->call.pref_create(&pref) &&
        !b->call.pref_set(pref, PREF_WORKSPACE, &workspace_bytes, sizeof workspace_bytes) &&
        !b->call.heuristic(b->handle, p->desc, p->a, p->b, p->d, p->d, pref, 1, &best, &found) &&
        found > 0;
    if (pref)
        b->call.pref_destroy(pref);
    if (ok)
        p->algo = best.algo;
    return ok;
}

static lt_plan *find_plan(cuda_blas *b, const lt_plan *want)
{
    lt_plan *oldest = &b->plan[0];
    for (int i = 0; i < LT_PLANS; i++) {
        lt_plan *p = &b->plan[i];
        if (p->used && p->rows == want->rows && p->n_in == want->n_in && p->n_out == want->n_out &&
            p->stride == want->stride)
            return p;
        if (p->used < oldest->used)
            oldest = p;
    }
    drop_plan(b, oldest);
    *oldest = *want;
    if (make_plan(b, oldest))
        return oldest;
    drop_plan(b, oldest);
    return NULL;
}

bool cuda_blas_matmul(cuda_device *c, dev_mat y, const uint16_t *x, const uint16_t *w, int32_t n_in)
{
    cuda_blas *b = c->blas;
    const lt_plan want = {.rows = y.rows, .n_in = n_in, .n_out = y.cols, .stride = y.stride};
    lt_plan *p = find_plan(b, &want);
    const float one = 1, zero = 0;
    if (!p)
        return false;
    p->used = ++b->clock;
    return !b->call.matmul(b->handle, p->desc, &one, w, p->a, x, p->b, &zero, y.at, p->d, y.at,
                           p->d, &p->algo, b->workspace, LT_WORKSPACE, c->stream);
}
