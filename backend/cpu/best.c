/* best.c - the largest logits of each row and their log probabilities.
 *
 * A row is cut into pieces of fixed size. Each piece gives its k largest logits, its largest one
 * and the sum of exponentials beside it; pieces are joined in ascending order. So a row's result is
 * bit-identical with any number of rows and threads.
 */
#include "backend/cpu/cpu_int.h"
#include "backend/cpu/table_ops_int.h"

#include <math.h>
#include <string.h>

enum { PIECE = 4096 };

/* Some logits of a row: the n largest, best first, equal ones by ascending id. */
typedef struct best_list {
    int32_t n;
    int32_t id[BEST_MAX];
    float z[BEST_MAX];
} best_list;

typedef struct best_piece {
    best_list list;
    float top, sum; /* the largest; the sum of e^(z - top) */
    bool bad;       /* has a NaN */
} best_piece;

typedef struct best_job {
    pass *p;
    mat x;
    int32_t k, n_piece;
    best_piece *piece; /* [rows, n_piece] */
    float *copy;       /* [n_threads, PIECE] */
} best_job;

/* Ids come in ascending order, so an equal logit goes behind those that are there. */
static void put_best(best_list *l, int32_t k, int32_t id, float z)
{
    if (l->n == k && !(z > l->z[k - 1]))
        return;
    int32_t at = l->n < k ? l->n++ : k - 1;
    for (; at > 0 && l->z[at - 1] < z; at--) {
        l->id[at] = l->id[at - 1];
        l->z[at] = l->z[at - 1];
    }
    l->id[at] = id;
    l->z[at] = z;
}

static void best_chunk(void *arg, int32_t chunk, int32_t thread)
{
    const best_job *j = arg;
    int32_t first = chunk % j->n_piece * PIECE;
    int32_t n = j->x.cols - first < PIECE ? j->x.cols - first : PIECE;
    const float *z = mat_row(j->x, chunk / j->n_piece) + first;
    float *copy = j->copy + (size_t)thread * PIECE;
    best_piece *b = &j->piece[chunk];
    float least = -INFINITY; /* logits up to this are not among the k largest */
    b->list.n = 0;
    b->bad = false;
    for (int32_t i = 0; i < n; i++) {
        if (z[i] <= least && b->list.n == j->k) /* false for NaN */
            continue;
        b->bad |= isnan(z[i]);
        put_best(&b->list, j->k, first + i, z[i]);
        least = b->list.n == j->k ? b->list.z[j->k - 1] : -INFINITY;
    }
    memcpy(copy, z, (size_t)n * sizeof *copy);
    b->sum = cpu_of(j->p)->k->softmax(copy, n, &b->top);
}

/* The pieces of a row, joined. */
static void best_row(const best_job *j, int32_t r, float *id, float *logp)
{
    const best_piece *b = j->piece + (size_t)r * (size_t)j->n_piece;
    best_list all = {0};
    float top = -INFINITY;
    double sum = 0;
    bool bad = false;
    for (int32_t i = 0; i < j->n_piece; i++) {
        bad |= b[i].bad;
        top = b[i].top > top ? b[i].top : top;
        for (int32_t n = 0; n < b[i].list.n; n++)
            put_best(&all, j->k, b[i].list.id[n], b[i].list.z[n]);
    }
    bad |= isinf(top);
    for (int32_t i = 0; i < j->n_piece && !bad; i++)
        sum += b[i].sum > 0 ? b[i].sum * exp((double)b[i].top - top) : 0;
    for (int32_t n = 0; n < j->k; n++) {
        id[n] = bad ? -1.0f : (float)all.id[n];
        logp[n] = bad ? NAN : (float)((double)all.z[n] - top - log(sum));
    }
}

void cpu_best(pass *p, mat y, mat x)
{
    cpu_device *c = cpu_of(p);
    best_job j = {.p = p, .x = x, .k = y.cols, .n_piece = (x.cols + PIECE - 1) / PIECE};
    size_t n = (size_t)x.rows * (size_t)j.n_piece, mark = pass_mark(p);
    j.piece = pass_temp(p, n * sizeof *j.piece);
    j.copy = pass_temp(p, (size_t)c->n_threads * PIECE * sizeof *j.copy);
    if (!p->dry && !pass_failed(p)) {
        if (n > 1)
            pool_run(c->pool, (int32_t)n, best_chunk, &j);
        else if (n)
            best_chunk(&j, 0, 0);
        for (int32_t r = 0; r < x.rows; r++)
            best_row(&j, r, mat_row(y, r), mat_row(y, r) + y.cols);
    }
    pass_release(p, mark);
}
