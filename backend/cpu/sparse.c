/* sparse.c - who leaves keys out in a pass, and the account of it, for the reference and the
 * kernels. */
#include "backend/cpu/sparse_int.h"

#include <string.h>

bool cpu_sparse_any(const pass *p, const kv_view *kv)
{
    const rowset *rs = p->rows;
    for (int32_t r = 0; !p->dry && p->st->sparse && r < rs->n; r++)
        if (sparse_rule_of(p->st, rs, kv, r))
            return true;
    return false;
}

sparse_account *cpu_sparse_accounts(pass *p, mat q, const kv_view *kv)
{
    size_t n = (size_t)q.rows * (size_t)q.heads * sizeof(sparse_account);
    sparse_account *account = kv->window ? NULL : pass_temp(p, n);
    return cpu_sparse_any(p, kv) ? account : NULL;
}

void cpu_sparse_count(const pass *p, mat q, const kv_view *kv, const sparse_account *account)
{
    for (int32_t r = 0; account && !p->repeats && r < q.rows; r++) {
        const sparse_rule *rule = sparse_rule_of(p->st, p->rows, kv, r);
        if (!rule || !rule->stats || p->il < 0)
            continue;
        for (int32_t h = 0; h < q.heads; h++) {
            const sparse_account *x = &account[(size_t)r * (size_t)q.heads + (size_t)h];
            sparse_count(&rule->stats[p->il], rule->skip > 0 ? x->certificate : -1, x->n_tiles,
                         x->n_kept);
        }
    }
}
