/* sparse.h - attention that leaves keys out: the rules, and the account of what was left out.
 *
 * Skip-softmax (BLASST, arXiv 2512.12087). Keys are cut into tiles at numbers that are multiples of
 * SPARSE_TILE. A pair of row and query head walks its tiles in ascending order. It drops a tile
 * whose largest score is more than ln(limit) below the largest score so far. The limit is
 * rule.skip over the number of keys that the row sees, at most 1, so the tile of the largest score
 * is never dropped. Each pair decides for itself, so its bits depend on its own row alone.
 *
 * The certificate of a pair is an upper bound of the share of its soft max that it dropped:
 *
 *     delta  += n_keys e^(t - m)        tile with largest score t dropped, m the largest so far
 *     delta  *= e^(m_old - m_new)       m moved
 *     dropped share <= delta / (l + delta)      l the sum of e^(s - m) over the kept keys
 *
 * Block selection (FlashPrefill, arXiv 2603.06199), in prompts alone. A query block is the rows
 * whose keys have the numbers of a tile. For query head h, query block m and a tile n before it,
 * with M_n the mean of the tile's keys as attention meets them:
 *
 *     t[j, n] = scale q_j . M_n               j: the rows of the query block
 *     w[n]    = sum_j e^(t[j, n] - X)         X: the largest t of all n
 *     n is kept if w[n] >= alpha max w, if n < SPARSE_SINK, or if n > m - SPARSE_NEAR
 *
 * Tile m is scored by its last row alone, for the rows before do not see all of it. The query
 * heads of a KV head keep what one of them keeps. The last SPARSE_LAST query blocks of the whole
 * prompt keep everything, and so does a query block that is not whole in its pass. Means are made
 * anew in each pass: that costs one product of 2 * rows * group as many, and leaves nothing in the
 * store that shared pages, snapshots and rewinding would have to follow.
 *
 * Stores with a window drop nothing: they are a few tiles long.
 */
#ifndef BACKEND_SPARSE_H
#define BACKEND_SPARSE_H

#include "backend/step.h"

#include <math.h>

enum { SPARSE_TILE = 128, SPARSE_SINK = 2, SPARSE_NEAR = 4, SPARSE_LAST = 2 };

/* Certificates by size: bin 0 has those below 10^-SPARSE_DECADES, bin i those below
 * 10^(i / SPARSE_STEPS - SPARSE_DECADES). */
enum { SPARSE_DECADES = 8, SPARSE_STEPS = 20, SPARSE_BINS = SPARSE_DECADES * SPARSE_STEPS + 1 };

/* What the attention of one layer has dropped: sums over pairs of row and query head. */
typedef struct sparse_stats {
    uint64_t n_tiles, n_kept; /* tiles that the pairs see, and those that they keep */
    uint64_t bin[SPARSE_BINS];
} sparse_stats;

/* certificate below 0: none. */
void sparse_count(sparse_stats *t, double certificate, uint64_t n_tiles, uint64_t n_kept);
/* The least bound that the share q of all pairs stays below; 0 of an empty tally. */
double sparse_quantile(const sparse_stats *t, double q);

/* The rule of row r in such a store; NULL: the row leaves nothing out. */
static inline const sparse_rule *sparse_rule_of(const step *st, const rowset *rs, const kv_view *kv,
                                                int32_t r)
{
    const sparse_rule *rule = st->sparse && !kv->window ? &st->sparse[rs->seq[r]] : NULL;
    return rule && (rule->skip > 0 || rule->alpha > 0) ? rule : NULL;
}

/* A query block that selects: rows r0 .. r0 + SPARSE_TILE - 1 of the pass. */
typedef struct sparse_query {
    int32_t r0, block;
} sparse_query;

/* Does a query block that selects begin at row r of the pass? */
bool sparse_begins(const step *st, const rowset *rs, const kv_view *kv, int32_t r);
/* The query blocks of the pass that select, at most one per SPARSE_TILE rows, in the order of their
 * rows. of_row: [rows] the number of the row's query block; -1: the row keeps everything. */
int32_t sparse_queries(const step *st, const rowset *rs, const kv_view *kv, sparse_query *list,
                       int32_t *of_row);
/* The number of such a prompt's first tokens whose keys no longer prompt computes otherwise: those
 * before the last SPARSE_LAST query blocks. */
static inline int64_t sparse_fixed(int64_t n_prompt)
{
    int64_t n = (n_prompt + SPARSE_TILE - 1) / SPARSE_TILE - SPARSE_LAST;
    return n > 0 ? n * SPARSE_TILE : 0;
}
static inline bool sparse_forced(int32_t m, int32_t n)
{
    return n < SPARSE_SINK || n > m - SPARSE_NEAR;
}
/* Words of a set of tiles of n_keys keys. */
static inline int32_t sparse_words(int64_t n_keys)
{
    return (int32_t)((n_keys / SPARSE_TILE + 32) / 32);
}

/* ln(limit) of a row that sees n_keys keys; -inf without a rule. */
static inline float sparse_limit(const sparse_rule *rule, int64_t n_keys)
{
    if (!rule || n_keys < rule->least)
        return -INFINITY;
    float limit = logf(rule->skip) - logf((float)n_keys);
    return limit < 0 ? limit : 0;
}

/* A pair's walk over its tiles. */
typedef struct sparse_walk {
    float top, delta, limit;
    uint32_t n_tiles, n_kept;
} sparse_walk;

/* Is the next tile dropped, whose largest score is t, of n_keys keys? A NaN is kept, so that it
 * shows. */
static inline bool sparse_drops(sparse_walk *w, float t, int64_t n_keys)
{
    w->n_tiles++;
    if (t - w->top < w->limit) {
        w->delta += (float)n_keys * expf(t - w->top);
        return true;
    }
    w->n_kept++;
    if (t > w->top) {
        w->delta *= expf(w->top - t);
        w->top = t;
    }
    return false;
}

/* sum: of e^(s - top) over the kept keys. */
static inline float sparse_certificate(const sparse_walk *w, float sum)
{
    return w->delta > 0 ? w->delta / (sum + w->delta) : 0;
}

#endif
