/* blas.c - products of long prompts: by cuBLASLt, where the library is found at run time, or by
 * matmul_wide.cu.
 *
 * A weight of blocks becomes bf16 in scratch once per chunk of a prompt, and one of the two
 * multiplies. Unpacking moves 2.6 bytes per weight, shared by all rows, so from some hundred rows
 * on it is nearly free. Nothing is linked: the few entry points are declared here as the library's
 * manual has them, and looked up by name.
 *
 * A prompt's rows must have the same bits however many of them are in a pass, and few rows are
 * quicker by matmul_mma.cu. So the library's algorithms are tried out when a weight's shape is
 * first seen, on random numbers. One that gives every bit of matmul_mma.cu may serve passes of many
 * rows. matmul_wide.cu gives these bits too. The quicker of the two, by the clock, is taken
 * (LONG_BLAS, LONG_OWN); the clock also says from how many rows on it is quicker than
 * matmul_mma.cu. If no algorithm of the library gives these bits, one that gives a row the same
 * bits at every number of rows is compared instead. Where it is the quicker, it serves all passes
 * (LONG_ALL). If there is none either, matmul_wide.cu serves.
 */
#include "backend/cuda/cuda_int.h"
#include "base/clock.h"
#include "base/mem.h"

#include <dlfcn.h>
#include <string.h>

/* The library's constants. */
enum {
    COMPUTE_F32 = 68,
    R_32F = 0,
    R_16BF = 14,
    DESC_TRANSA = 3,
    PREF_WORKSPACE = 1,
    PREF_REDUCTION = 3,
    OP_T = 1
};

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
    int (*check)(void *handle, void *desc, void *a, void *b, void *c, void *d, const lt_algo *algo,
                 lt_result *result);
    int (*matmul)(void *handle, void *desc, const void *alpha, const void *a, void *la,
                  const void *b, void *lb, const void *beta, const void *c, void *lc, void *d,
                  void *ld, const lt_algo *algo, void *workspace, size_t n_bytes,
                  cudaStream_t stream);
} lt_calls;

/* A product's shape, as the library wants it. */
typedef struct lt_plan {
    int32_t rows, n_in, n_out;
    int64_t stride; /* of y */
    void *desc, *a, *b, *d;
    uint64_t used; /* 0: free */
} lt_plan;

/* Algorithms are chosen for so many rows; the first serves up to as many, the second all others. */
enum { CLASSES = 2 };
static const int32_t class_rows[CLASSES] = {512, 2048};

/* What was found out about the products of a shape and layout. */
typedef struct lt_choice {
    int32_t n_in, n_out, kind;
    bool library; /* `algo` is set */
    bool apart;   /* its bits are not those of matmul_mma.cu, but the same at any number of rows */
    bool of_rank; /* of a tensor split, whose bits no clock may choose: never `apart` */
    long_choice as;
    lt_algo algo[CLASSES];
} lt_choice;

enum {
    LT_PLANS = 64,
    LT_WORKSPACE = 32 << 20,
    LT_CHOICES = 256,   /* shapes; further ones take matmul_mma.cu */
    LT_CANDIDATES = 24, /* algorithms tried for a shape */
    LT_SAMPLE = 64,     /* rows that are compared, at the beginning and at the end of a product */
    LONG_ROWS = 192,    /* of a pass that is long, where nothing was measured */
    MEASURED = 4 << 20, /* weights of a piece; times of smaller ones do not matter */
    TIMES = 3,          /* the least of so many times counts */
    PIECE_BYTES = 128 << 20 /* of a weight that is unpacked at a time */
};

struct cuda_blas {
    bool here; /* or a plan counts on it */
    void *library, *handle, *workspace;
    lt_calls call;
    lt_plan plan[LT_PLANS];
    uint64_t clock;
    lt_choice choice[LT_CHOICES];
    int32_t n_choices;
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
                {"cublasLtMatmulAlgoCheck", (void **)&b->call.check},
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

bool cuda_blas_here(const cuda_device *c)
{
    return c->blas->here;
}

cuda_blas *cuda_blas_plan_only(void)
{
    cuda_blas *b = mem_calloc(1, sizeof *b);
    if (b)
        b->here = true;
    return b;
}

cuda_blas *cuda_blas_open(bool library)
{
    cuda_blas *b = mem_calloc(1, sizeof *b);
    if (!b || !library)
        return b;
    b->here = look_up(b) && !b->call.create(&b->handle) &&
              cudaMalloc(&b->workspace, LT_WORKSPACE) == cudaSuccess;
    if (!b->here)
        cudaGetLastError();
    return b;
}

/* The library is column-major: Y' [n_out, rows] = W' transposed [n_out, n_in] X' [n_in, rows]. */
static bool make_plan(cuda_blas *b, lt_plan *p)
{
    int t = OP_T;
    uint64_t in = (uint64_t)p->n_in, out = (uint64_t)p->n_out, rows = (uint64_t)p->rows;
    return !b->call.desc_create(&p->desc, COMPUTE_F32, R_32F) &&
           !b->call.desc_set(p->desc, DESC_TRANSA, &t, sizeof t) &&
           !b->call.layout_create(&p->a, R_16BF, in, out, p->n_in) &&
           !b->call.layout_create(&p->b, R_16BF, in, rows, p->n_in) &&
           !b->call.layout_create(&p->d, R_32F, out, rows, p->stride);
}

static lt_plan *find_plan(cuda_blas *b, const lt_plan *want)
{
    lt_plan *oldest = &b->plan[0];
    for (int i = 0; i < LT_PLANS; i++) {
        lt_plan *p = &b->plan[i];
        if (p->used && p->rows == want->rows && p->n_in == want->n_in && p->n_out == want->n_out &&
            p->stride == want->stride) {
            p->used = ++b->clock;
            return p;
        }
        if (p->used < oldest->used)
            oldest = p;
    }
    drop_plan(b, oldest);
    *oldest = *want;
    if (make_plan(b, oldest)) {
        oldest->used = ++b->clock;
        return oldest;
    }
    drop_plan(b, oldest);
    return NULL;
}

/* y = x w' by that algorithm; false: the library would not. */
static bool multiply(cuda_device *c, dev_mat y, const uint16_t *x, const uint16_t *w, int32_t n_in,
                     const lt_algo *algo)
{
    cuda_blas *b = c->blas;
    const lt_plan want = {.rows = y.rows, .n_in = n_in, .n_out = y.cols, .stride = y.stride};
    lt_plan *p = find_plan(b, &want);
    const float one = 1, zero = 0;
    lt_result r;
    return p && !b->call.check(b->handle, p->desc, p->a, p->b, p->d, p->d, algo, &r) &&
           r.workspace_bytes <= LT_WORKSPACE &&
           !b->call.matmul(b->handle, p->desc, &one, w, p->a, x, p->b, &zero, y.at, p->d, y.at,
                           p->d, algo, b->workspace, LT_WORKSPACE, c->stream);
}

/* ---- Which kernel, which algorithm ---------------------------------------------------------- */

/* Random operands of a product, and room for two results. packed: rows of the weight itself. */
typedef struct trial {
    cuda_device *c;
    packed packed;
    int32_t n_in, n_out;
    uint16_t *x, *w; /* [class_rows of the last, n_in], [n_out, n_in] */
    float *y, *z;    /* [class_rows of the last, n_out], [LT_SAMPLE, n_out] */
    int32_t *differ;
    void *at;
} trial;

static bool trial_open(trial *t)
{
    size_t rows = (size_t)class_rows[CLASSES - 1], in = (size_t)t->n_in, out = (size_t)t->n_out;
    size_t n_x = rows * in, n_w = out * in, n_y = rows * out, n_z = LT_SAMPLE * out;
    if (cudaMalloc(&t->at, 2 * (n_x + n_w) + 4 * (n_y + n_z) + 256) != cudaSuccess) {
        cudaGetLastError();
        return false;
    }
    t->differ = t->at;
    t->y = (float *)t->at + 64;
    t->z = t->y + n_y;
    t->x = (uint16_t *)(t->z + n_z);
    t->w = t->x + n_x;
    cu_random_bf16(t->c->stream, t->x, n_x, 1);
    cu_random_bf16(t->c->stream, t->w, n_w, 2);
    return true;
}

/* y is computed. Are its rows from first to first + n - 1 the same when they are computed alone, by
 * the library with this algorithm, or by matmul_mma.cu where algo is NULL? */
static bool same_rows(const trial *t, int32_t first, int32_t n, const lt_algo *algo)
{
    const dev_mat z = {t->z, n, t->n_out, t->n_out};
    uint16_t *x = t->x + (size_t)first * (size_t)t->n_in;
    int32_t differ = 1;
    if (algo && !multiply(t->c, z, x, t->w, t->n_in, algo))
        return false;
    if (!algo)
        cu_matmul_mma(t->c->stream, z, (dev_quant){.bf = x, .rows = n, .cols = t->n_in},
                      (packed){.codes = (const uint8_t *)t->w,
                               .kind = PACK_BF16,
                               .n_in = t->n_in,
                               .n_out = t->n_out,
                               .n_mat = 1});
    cudaMemsetAsync(t->differ, 0, sizeof differ, t->c->stream);
    cu_count_different(t->c->stream, t->y + (size_t)first * (size_t)t->n_out, t->z,
                       (size_t)n * (size_t)t->n_out, t->differ);
    return cudaMemcpyAsync(&differ, t->differ, sizeof differ, cudaMemcpyDeviceToHost,
                           t->c->stream) == cudaSuccess &&
           cudaStreamSynchronize(t->c->stream) == cudaSuccess && !differ;
}

/* Does it give the bits of matmul_mma.cu (mma), or the same bits at any number of rows? */
static bool serves(const trial *t, int32_t rows, const lt_algo *algo, bool mma)
{
    static const int32_t counts[] = {1, 2, 7, 8, 9, 16, 33, LT_SAMPLE};
    const dev_mat y = {t->y, rows, t->n_out, t->n_out};
    bool good = multiply(t->c, y, t->x, t->w, t->n_in, algo);
    if (mma)
        return good && same_rows(t, 0, LT_SAMPLE, NULL) &&
               same_rows(t, rows - LT_SAMPLE, LT_SAMPLE, NULL);
    for (size_t i = 0; i < sizeof counts / sizeof *counts && good; i++)
        good = same_rows(t, 0, counts[i], algo) && same_rows(t, rows - counts[i], counts[i], algo);
    return good;
}

/* The quickest algorithm for so many rows that serves, by the library's own estimate. */
static bool choose(const trial *t, int32_t rows, bool mma, lt_algo *algo)
{
    cuda_blas *b = t->c->blas;
    const lt_plan want = {.rows = rows, .n_in = t->n_in, .n_out = t->n_out, .stride = t->n_out};
    lt_plan *p = find_plan(b, &want);
    lt_result list[LT_CANDIDATES];
    size_t workspace_bytes = LT_WORKSPACE;
    uint32_t none = 0; /* no sums in several parts: the number of parts would follow the rows */
    void *pref = NULL;
    int found = 0;
    bool chosen = false;
    bool asked =
        p && !b->call.pref_create(&pref) &&
        !b->call.pref_set(pref, PREF_WORKSPACE, &workspace_bytes, sizeof workspace_bytes) &&
        !b->call.pref_set(pref, PREF_REDUCTION, &none, sizeof none) &&
        !b->call.heuristic(b->handle, p->desc, p->a, p->b, p->d, p->d, pref, LT_CANDIDATES, list,
                           &found);
    for (int i = 0; asked && i < found && !chosen; i++)
        if ((chosen = !list[i].state && serves(t, rows, &list[i].algo, mma)))
            *algo = list[i].algo;
    if (pref)
        b->call.pref_destroy(pref);
    return chosen;
}

/* ---- Times --------------------------------------------------------------------------------- */

typedef enum maker { BY_TILES, BY_WIDE, BY_BLAS } maker; /* BY_TILES: matmul_mma.cu */

/* Milliseconds of a product of so many rows, with the unpacking that it needs. */
static double time_of(const trial *t, int32_t rows, maker by, const lt_algo *algo)
{
    const cudaStream_t s = t->c->stream;
    const dev_mat y = {t->y, rows, t->n_out, t->n_out};
    const bool as_is = t->packed.kind == PACK_BF16;
    const uint16_t *w = as_is ? (const uint16_t *)t->packed.codes : t->w;
    double least = 0;
    for (int i = 0; i < TIMES; i++) {
        cudaStreamSynchronize(s);
        double from = clock_ms();
        if (by == BY_TILES)
            cu_matmul_mma(s, y, (dev_quant){.bf = t->x, .rows = rows, .cols = t->n_in}, t->packed);
        else if (!as_is)
            cu_unpack_bf16(s, t->packed, 0, t->n_out, t->w);
        if (by == BY_WIDE)
            cu_matmul_wide(s, y, t->x, w, t->n_in, 0);
        if (by == BY_BLAS)
            multiply(t->c, y, t->x, w, t->n_in, algo);
        cudaStreamSynchronize(s);
        double ms = clock_ms() - from;
        least = i && least < ms ? least : ms;
    }
    return least;
}

/* From how many rows on b is quicker than a, if times are lines through those of class_rows. */
static int32_t rows_from(const double *a, const double *b)
{
    const double gain = a[0] - b[0], more = a[1] - b[1] - gain; /* at fewer rows; at more */
    const double apart = class_rows[1] - class_rows[0];
    double at = class_rows[0] - apart * gain / more;
    if (a[1] <= b[1])
        return INT32_MAX;
    return more <= 0 || at <= FEW_ROWS ? FEW_ROWS + 1 : (int32_t)at + 1;
}

/* The quicker of the library, if it may serve, and matmul_wide.cu; and from how many rows on. */
static void measure(const trial *t, lt_choice *x)
{
    double tiles[CLASSES], wide[CLASSES], blas[CLASSES];
    for (int i = 0; i < CLASSES; i++) {
        tiles[i] = time_of(t, class_rows[i], BY_TILES, NULL);
        wide[i] = time_of(t, class_rows[i], BY_WIDE, NULL);
        if (x->library)
            blas[i] = time_of(t, class_rows[i], BY_BLAS, &x->algo[i]);
    }
    const bool by_blas = x->library && blas[1] <= wide[1];
    if (by_blas && x->apart)
        x->as = (long_choice){LONG_ALL, 0};
    else
        x->as =
            (long_choice){by_blas ? LONG_BLAS : LONG_OWN, rows_from(tiles, by_blas ? blas : wide)};
}

/* Of n_out outputs of w. */
static lt_choice *choice_of(cuda_blas *b, const weight *w, int32_t n_out)
{
    for (int32_t i = 0; i < b->n_choices; i++) {
        lt_choice *x = &b->choice[i];
        if (x->n_in == w->n_in && x->n_out == n_out && x->kind == w->packed_kind &&
            x->of_rank == (w->n_out_all > 0))
            return x;
    }
    return NULL;
}

/* The choice of the library's algorithms: those of the same shape in another layout, or new ones.
 */
static void choose_algorithms(const trial *t, lt_choice *x)
{
    cuda_blas *b = t->c->blas;
    for (lt_choice *o = b->choice; o < x; o++)
        if (o->n_in == x->n_in && o->n_out == x->n_out && o->of_rank == x->of_rank) {
            x->library = o->library;
            x->apart = o->apart;
            memcpy(x->algo, o->algo, sizeof x->algo);
            return;
        }
    x->library = true;
    for (int i = 0; i < CLASSES && x->library; i++)
        x->library = choose(t, class_rows[i], true, &x->algo[i]);
    if (!x->library && !x->of_rank && choose(t, class_rows[CLASSES - 1], false, &x->algo[0])) {
        x->library = x->apart = true;
        x->algo[1] = x->algo[0];
    }
}

static status learn_piece(cuda_device *c, const weight *w, int32_t n_out, err *e)
{
    cuda_blas *b = c->blas;
    const int32_t n_in = w->n_in, kind = w->packed_kind;
    const bool measured = (size_t)n_in * (size_t)n_out >= MEASURED;
    if (choice_of(b, w, n_out) || b->n_choices == LT_CHOICES)
        return OK;
    trial t = {.c = c, .packed = cuda_view(w), .n_in = n_in, .n_out = n_out};
    const bool can = (b->here || measured) && trial_open(&t);
    if (b->here && !can)
        return err_set(e, E_MEMORY, "%s: no memory to try products of %d x %d", c->name, n_in,
                       n_out);
    t.packed.n_out = n_out;
    t.packed.n_tile = (n_out + TILE_ROWS - 1) / TILE_ROWS;
    lt_choice *x = &b->choice[b->n_choices++];
    *x = (lt_choice){.n_in = n_in, .n_out = n_out, .kind = kind, .as = {LONG_OWN, LONG_ROWS}};
    x->of_rank = w->n_out_all > 0;
    if (b->here)
        choose_algorithms(&t, x);
    if (x->library)
        x->as = x->apart ? (long_choice){LONG_ALL, 0} : (long_choice){LONG_BLAS, LONG_ROWS};
    if (can && measured)
        measure(&t, x);
    cudaStreamSynchronize(c->stream);
    cudaFree(t.at);
    cudaGetLastError();
    return OK;
}

/* Pieces of one size, but the last; none is so small that it would leave multiprocessors idle. */
int32_t cuda_long_piece(int32_t n_in, int32_t n_out)
{
    size_t most = (size_t)PIECE_BYTES / ((size_t)n_in * 2) & ~(size_t)127, all = (size_t)n_out;
    if (!most || all <= most)
        return most ? n_out : 0;
    size_t pieces = (all + most - 1) / most, each = (all + pieces - 1) / pieces;
    return (int32_t)((each + 127) & ~(size_t)127);
}

/* Products of rows that are no multiple of PRODUCT_COLUMNS are sums of floats (matmul_float.cu). */
static bool is_long(const weight *w)
{
    return w->n_mat == 1 && w->n_in % PRODUCT_COLUMNS == 0 && cuda_long_piece(w->n_in, w->n_out);
}

status cuda_long_learn(cuda_device *c, const weight *w, err *e)
{
    if (!is_long(w) || cuda_prompts_int8(c, w, w->packed_kind))
        return OK;
    int32_t n = cuda_long_piece(w->n_in, w->n_out);
    status st = learn_piece(c, w, n, e);
    return st || w->n_out % n == 0 ? st : learn_piece(c, w, w->n_out % n, e);
}

/* Of a weight in pieces: what all its pieces can do. */
long_choice cuda_long_choice(const cuda_device *c, const weight *w)
{
    const long_choice none = {LONG_OWN, INT32_MAX};
    if (!is_long(w))
        return none;
    int32_t n = cuda_long_piece(w->n_in, w->n_out), rest = w->n_out % n;
    const lt_choice *a = choice_of(c->blas, w, n);
    const lt_choice *z = rest ? choice_of(c->blas, w, rest) : a;
    if (!a || !z)
        return none;
    if (a->as.way != LONG_ALL && z->as.way != LONG_ALL)
        return (long_choice){a->as.way, a->as.rows > z->as.rows ? a->as.rows : z->as.rows};
    return a->library && z->library ? (long_choice){LONG_ALL, 0}
                                    : (long_choice){LONG_OWN, LONG_ROWS};
}

bool cuda_blas_matmul(cuda_device *c, dev_mat y, const uint16_t *x, const uint16_t *w,
                      const weight *of)
{
    const lt_choice *a = choice_of(c->blas, of, y.cols);
    return a && a->library && multiply(c, y, x, w, of->n_in, &a->algo[y.rows > class_rows[0]]);
}

bool cuda_long_matmul(cuda_device *c, dev_mat y, const uint16_t *x, const uint16_t *w,
                      const weight *of, long_way way)
{
    const lt_choice *a = choice_of(c->blas, of, y.cols);
    if (a && way != LONG_OWN && (way == LONG_ALL || a->as.way != LONG_OWN))
        return cuda_blas_matmul(c, y, x, w, of);
    cu_matmul_wide(c->stream, y, x, w, of->n_in, 0);
    return true;
}
