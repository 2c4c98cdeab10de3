/* sparse.c - the account of what attention has left out. */
#include "backend/sparse.h"

double sparse_bin_end(int32_t i)
{
    return pow(10, i / (double)SPARSE_STEPS - SPARSE_DECADES);
}

void sparse_count(sparse_tally *t, double certificate, uint64_t n_tiles, uint64_t n_kept)
{
    int32_t i = 0;
    if (certificate >= sparse_bin_end(0)) {
        i = (int32_t)floor((log10(certificate) + SPARSE_DECADES) * SPARSE_STEPS) + 1;
        i = i < SPARSE_BINS ? i : SPARSE_BINS - 1;
    }
    t->bin[i]++;
    t->n_tiles += n_tiles;
    t->n_kept += n_kept;
}

void sparse_add(sparse_tally *t, const sparse_tally *more)
{
    t->n_tiles += more->n_tiles;
    t->n_kept += more->n_kept;
    for (int32_t i = 0; i < SPARSE_BINS; i++)
        t->bin[i] += more->bin[i];
}

double sparse_quantile(const sparse_tally *t, double q)
{
    uint64_t all = 0, sum = 0;
    for (int32_t i = 0; i < SPARSE_BINS; i++)
        all += t->bin[i];
    for (int32_t i = 0; i < SPARSE_BINS; i++) {
        sum += t->bin[i];
        if (sum && (double)sum >= q * (double)all)
            return i ? sparse_bin_end(i) : 0;
    }
    return 0;
}
