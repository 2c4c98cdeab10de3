/* activation_copies.c - copies of activations for products, and how long they are valid.
 *
 * A product of few rows reads its activation as int8, a product of many rows as bf16. Up to three
 * products read one activation, and the norm before them can make the copy. So a copy is kept in
 * scratch together with the address of its original, and is forgotten when an op writes over
 * either: every op tells cuda_wrote what it is about to write. So is a copy in scratch that was
 * released: the result of the product that reads it may get the same place. A dry pass
 * finds no copies, so it plans for the worst case.
 */
#include "backend/cuda/cuda_int.h"

#include <stdint.h>

dev_mat cuda_mat(mat m)
{
    return (dev_mat){m.at, m.rows, m.heads * m.cols, m.stride};
}

static bool touches(const char *from, const char *to, const void *at, size_t n_bytes)
{
    return from < (const char *)at + n_bytes && (const char *)at < to;
}

void cuda_wrote(cuda_device *c, const void *at, size_t n_bytes)
{
    const char *from = at, *to = from + n_bytes;
    const sorted_pairs *p = &c->sorted;
    size_t n = (size_t)p->n * sizeof *p->id;
    if (p->id && (touches(from, to, p->id, n) || touches(from, to, p->lists.order, n) ||
                  touches(from, to, p->lists.n_tiles, sizeof *p->lists.n_tiles) ||
                  touches(from, to, p->lists.tiles,
                          EXPERT_TILE_BYTES * (size_t)expert_tiles(p->n, p->n_expert))))
        c->sorted.id = NULL;
    const int32_t **choices[] = {&c->chosen, &c->choice, &c->choice_done};
    for (int i = 0; i < 3; i++)
        if (from <= (const char *)*choices[i] && (const char *)*choices[i] < to)
            *choices[i] = NULL;
    for (int i = 0; i < ACTIVATION_COPIES; i++) {
        activation_copy *s = &c->activation_copies[i];
        if (s->x && ((from < s->x_end && s->x < to) || (from < s->q_end && s->q < to)))
            s->x = NULL;
    }
}

void *cuda_temp(pass *p, size_t n_bytes)
{
    void *at = pass_temp(p, n_bytes);
    if (at)
        cuda_wrote(cuda_of(p), at, n_bytes);
    return at;
}

static size_t quant_bytes(const dev_quant *q, size_t *codes)
{
    size_t rows = (size_t)(q->rows + q->tile - 1) / (size_t)q->tile * (size_t)q->tile;
    *codes = rows * (size_t)q->cols;
    return *codes + rows * (size_t)(q->cols / GROUP) * 8;
}

dev_quant cuda_quant_at(void *at, int32_t rows, int32_t cols, bool bf, bool single)
{
    dev_quant q = {.rows = rows, .cols = cols, .tile = single || rows == 1 ? 1 : 8};
    size_t codes;
    quant_bytes(&q, &codes);
    if (bf) {
        q.bf = at;
    } else if (at) {
        q.q = at;
        q.s = (char *)at + codes; /* codes is a multiple of 32 */
    }
    return q;
}

dev_quant cuda_quant_room(pass *p, int32_t rows, int32_t cols, bool bf, bool single)
{
    const dev_quant q = cuda_quant_at(NULL, rows, cols, bf, single);
    size_t codes, n = quant_bytes(&q, &codes);
    n = bf ? (size_t)rows * (size_t)cols * sizeof *q.bf : n;
    return cuda_quant_at(cuda_temp(p, n), rows, cols, bf, single);
}

/* Forgets the copies in scratch that was released since the last call. */
static void forget_released(pass *p)
{
    cuda_device *c = cuda_of(p);
    pass_side *side = &p->side[p->here];
    const char *free = (const char *)side->scratch + side->lowest;
    for (int i = 0; i < ACTIVATION_COPIES && side->lowest < SIZE_MAX; i++)
        if (c->activation_copies[i].x && c->activation_copies[i].q_end > free)
            c->activation_copies[i].x = NULL;
    side->lowest = SIZE_MAX;
}

void cuda_quant_keep(pass *p, const float *x, dev_quant q)
{
    cuda_device *c = cuda_of(p);
    size_t codes, n = (size_t)q.rows * (size_t)q.cols;
    if (!x || (!q.q && !q.bf))
        return;
    forget_released(p);
    activation_copy *s = &c->activation_copies[c->next_activation_copy++ % ACTIVATION_COPIES];
    s->x = (const char *)x;
    s->x_end = s->x + n * sizeof *x;
    s->q = q.bf ? (const char *)q.bf : (const char *)q.q;
    s->q_end = s->q + (q.bf ? n * sizeof *q.bf : quant_bytes(&q, &codes));
    s->quant = q;
}

/* bf16 and tiles of one row lie in a line, as x does: rows may have been cut into other lengths. */
static dev_quant known(pass *p, dev_mat x, bool bf, int32_t tile)
{
    const cuda_device *c = cuda_of(p);
    size_t n = (size_t)x.rows * (size_t)x.cols;
    if (x.at)
        forget_released(p);
    for (int i = 0; i < ACTIVATION_COPIES && x.at && x.stride == x.cols; i++) {
        const activation_copy *s = &c->activation_copies[i];
        dev_quant q = s->quant;
        bool same = q.rows == x.rows && q.cols == x.cols, line = bf || tile == 1;
        if (s->x != (const char *)x.at || !(same || (line && (size_t)q.rows * (size_t)q.cols == n)))
            continue;
        if (bf ? q.bf != NULL : q.q && q.tile == tile) {
            q.rows = x.rows;
            q.cols = x.cols;
            return q;
        }
    }
    return (dev_quant){0};
}

bool cuda_has_quant(pass *p, dev_mat x)
{
    return known(p, x, false, x.rows == 1 ? 1 : 8).q;
}

dev_quant cuda_quant_of_row(pass *p, dev_mat x)
{
    return known(p, x, false, 1);
}

dev_quant cuda_quant(pass *p, dev_mat x, bool bf, bool single)
{
    dev_quant q = known(p, x, bf, single || x.rows == 1 ? 1 : 8);
    if (q.q || q.bf)
        return q;
    q = cuda_quant_room(p, x.rows, x.cols, bf, single);
    if (p->dry || pass_failed(p))
        return q;
    cu_quantise(cuda_select(p->dev)->stream, x, q);
    if (x.stride == x.cols)
        cuda_quant_keep(p, x.at, q);
    return q;
}
