/* sparse_int.h - attention that leaves keys out: what the reference and the kernels share. */
#ifndef BACKEND_CPU_SPARSE_INT_H
#define BACKEND_CPU_SPARSE_INT_H

#include "backend/pass.h"
#include "backend/sparse.h"

/* Of a pair of row and query head. */
typedef struct sparse_account {
    float certificate;
    uint32_t n_tiles, n_kept;
} sparse_account;

/* Block selection in one layer. Query block i keeps the tiles whose bits are set in
 * kept[(i * n_head_kv + KV head) * n_word ..]. */
typedef struct cpu_selection {
    sparse_query *query; /* [n] */
    int32_t *of_row;     /* [rows] */
    uint32_t *kept;      /* [rows / SPARSE_TILE][n_head_kv][n_word] */
    uint16_t *means;     /* [n_head_kv][pages][head_dim]: page_sums of one sequence */
    float *room;         /* [n_threads][select_room()] */
    int32_t n, n_word, n_head_kv, n_pages;
} cpu_selection;

/* Scratch for a selection; n_threads: 0 for the reference. */
void cpu_selection_take(pass *p, mat q, const kv_view *kv, int32_t n_threads, cpu_selection *s);
/* q: as attention meets it, rotated for a rotated store. */
void cpu_select(pass *p, mat q, const kv_view *kv, float scale, cpu_selection *s);

/* Does row r keep tile n, in KV head g? */
static inline bool cpu_selected(const cpu_selection *s, int32_t r, int32_t g, int64_t n)
{
    int32_t i = s->n ? s->of_row[r] : -1;
    return i < 0 || (s->kept[(i * s->n_head_kv + g) * s->n_word + n / 32] >> (n % 32) & 1);
}
/* Keeps it. */
static inline void cpu_keep(cpu_selection *s, int32_t i, int32_t g, int32_t n)
{
    s->kept[(i * s->n_head_kv + g) * s->n_word + n / 32] |= (uint32_t)1 << n % 32;
}

/* Does a row of the pass leave keys of such a store out? */
bool cpu_sparse_any(const pass *p, const kv_view *kv);
/* Accounts of all pairs of q, [rows, heads], in the pass's scratch; NULL in a dry pass, and if no
 * row leaves keys out. The scratch is taken in any case: a dry pass plans for every rule. */
sparse_account *cpu_sparse_accounts(pass *p, mat q, const kv_view *kv);
/* Adds them to the tallies of their sequences. */
void cpu_sparse_count(const pass *p, mat q, const kv_view *kv, const sparse_account *account);

#endif
