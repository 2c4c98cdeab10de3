/* sparse.c - the account of what attention has left out. */
#include "backend/sparse.h"

/* Pairs in bin i are below this. */
static double bin_end(int32_t i)
{
    return pow(10, i / (double)SPARSE_STEPS - SPARSE_DECADES);
}

void sparse_count(sparse_stats *t, double certificate, uint64_t n_tiles, uint64_t n_kept)
{
    int32_t i = 0;
    t->n_tiles += n_tiles;
    t->n_kept += n_kept;
    if (certificate < 0)
        return;
    if (certificate >= bin_end(0)) {
        i = (int32_t)floor((log10(certificate) + SPARSE_DECADES) * SPARSE_STEPS) + 1;
        i = i < SPARSE_BINS ? i : SPARSE_BINS - 1;
    }
    t->bin[i]++;
}

bool sparse_begins(const step *st, const rowset *rs, const kv_view *kv, int32_t r)
{
    const int32_t *index = rows_keys(rs, kv)->index;
    int32_t last = r + SPARSE_TILE - 1;
    const sparse_rule *rule = last < rs->n ? sparse_rule_of(st, rs, kv, r) : NULL;
    return rule && rule->alpha > 0 && !rs->seen && index[r] % SPARSE_TILE == 0 &&
           rs->seq[last] == rs->seq[r] && index[last] < sparse_fixed(rule->n_prompt);
}

int32_t sparse_queries(const step *st, const rowset *rs, const kv_view *kv, sparse_query *list,
                       int32_t *of_row)
{
    const int32_t *index = rows_keys(rs, kv)->index;
    int32_t n = 0;
    for (int32_t r = 0; r < rs->n; r++)
        of_row[r] = -1;
    for (int32_t r = 0; r + SPARSE_TILE <= rs->n; r++) {
        if (!sparse_begins(st, rs, kv, r))
            continue;
        for (int32_t i = 0; i < SPARSE_TILE; i++)
            of_row[r + i] = n;
        list[n++] = (sparse_query){r, index[r] / SPARSE_TILE};
        r += SPARSE_TILE - 1;
    }
    return n;
}

double sparse_quantile(const sparse_stats *t, double q)
{
    uint64_t all = 0, sum = 0;
    for (int32_t i = 0; i < SPARSE_BINS; i++)
        all += t->bin[i];
    for (int32_t i = 0; i < SPARSE_BINS; i++) {
        sum += t->bin[i];
        if (sum && (double)sum >= q * (double)all)
            return i ? bin_end(i) : 0;
    }
    return 0;
}
