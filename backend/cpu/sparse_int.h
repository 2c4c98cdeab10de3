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

/* Does a row of the pass leave keys of such a store out? */
bool cpu_sparse_any(const pass *p, const kv_view *kv);
/* Accounts of all pairs of q, [rows, heads], in the pass's scratch; NULL in a dry pass, and if no
 * row leaves keys out. The scratch is taken in any case: a dry pass plans for every rule. */
sparse_account *cpu_sparse_accounts(pass *p, mat q, const kv_view *kv);
/* Adds them to the tallies of their sequences. */
void cpu_sparse_count(const pass *p, mat q, const kv_view *kv, const sparse_account *account);

#endif
