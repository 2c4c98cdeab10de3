/* embed.c - see embed.h; and carat_embed, for sessions. batch.c runs the same beside answers. */
#include "engine/embed.h"
#include "base/mem.h"

#include <string.h>

enum { ROWS_AT_ONCE = 16 }; /* hidden rows copied from the device together */

struct embedding {
    carat_pooling pooling;
    bool whole;               /* an encoder: all rows are in one pass */
    const carat_model *ranks; /* RANK: the reranker */
    int32_t n_embd;
    const int32_t *ids;
    int64_t n;
    double *sum;   /* [n_embd] */
    float *rows;   /* [ROWS_AT_ONCE][n_embd] */
    importance *i; /* instead of all else: the importance of tokens */
};

status embedding_open(embedding **out, const carat_model *m, carat_pooling pooling, err *e)
{
    size_t n_embd = (size_t)m->core.n_embd;
    embedding *x = *out = NULL;
    if (pooling < CARAT_POOL_MEAN || pooling > CARAT_POOL_RANK)
        return err_set(e, E_ARG, "pooling %d: expected the mean or the last row", (int)pooling);
    if (pooling == CARAT_POOL_RANK && !m->answers)
        return err_set(e, E_UNSUPPORTED, "%s is no reranker", m->core.name);
    x = mem_calloc(1, sizeof *x);
    if (x) {
        *x = (embedding){.pooling = pooling,
                         .whole = m->core.encoder,
                         .ranks = pooling == CARAT_POOL_RANK ? m : NULL,
                         .n_embd = m->core.n_embd};
        x->sum = mem_calloc(n_embd, sizeof *x->sum);
        x->rows = mem_calloc(ROWS_AT_ONCE * n_embd, sizeof *x->rows);
    }
    if (!x || !x->sum || !x->rows) {
        embedding_close(x);
        return err_memory(e, "an embedding", ROWS_AT_ONCE * n_embd * sizeof *x->rows);
    }
    *out = x;
    return OK;
}

status embedding_open_importance(embedding **out, carat_model *m, const kv_layout *l,
                                 const workspace *w, int32_t chunk, int64_t n, err *e)
{
    embedding *x = *out = mem_calloc(1, sizeof *x);
    if (!x)
        return err_memory(e, "the importance of tokens", sizeof *x);
    *x = (embedding){.pooling = CARAT_POOL_LAST};
    status st = importance_open(&x->i, m, l, w, chunk, n, e);
    if (st) {
        embedding_close(x);
        *out = NULL;
    }
    return st;
}

void embedding_close(embedding *x)
{
    if (!x)
        return;
    importance_close(x->i);
    mem_free(x->rows);
    mem_free(x->sum);
    mem_free(x);
}

bool embedding_reuses_nothing(const embedding *x)
{
    return x->whole || x->pooling == CARAT_POOL_MEAN;
}

int32_t embedding_whole_rows(const embedding *x)
{
    return x->whole ? (int32_t)x->n : 0;
}

void embedding_begin(embedding *x, timeline *t, const int32_t *ids, int64_t n)
{
    x->ids = ids;
    x->n = n;
    timeline_use(t, (sparse_choice){0}, NULL); /* an exact timeline allocates nothing */
    if (x->i) {
        importance_begin(x->i, t, ids);
        return;
    }
    memset(x->sum, 0, (size_t)x->n_embd * sizeof *x->sum);
    if (embedding_reuses_nothing(x))
        timeline_restart(t);
    else
        timeline_prepare(t, ids, n);
}

/* The rows of the next part: a checkpoint of recurrent layers may end it early. */
static int32_t rows_of_part(const embedding *x, const timeline *t, int32_t most)
{
    int64_t rows = timeline_pass_end(t, x->n) - t->kv.n_past;
    return rows < most ? (int32_t)rows : most;
}

bool embedding_wants_hidden(const embedding *x, const timeline *t, int32_t rows)
{
    if (x->i)
        return importance_at_tail(x->i, t);
    return embedding_reuses_nothing(x) || t->kv.n_past + rows_of_part(x, t, rows) == x->n;
}

bool embedding_is_alone(const embedding *x, const timeline *t)
{
    return x->i && importance_at_tail(x->i, t);
}

pass_part embedding_part(const embedding *x, timeline *t, int32_t rows, bool hidden)
{
    if (x->i)
        return importance_part(x->i, t, rows);
    int64_t at = t->kv.n_past;
    int32_t n = x->whole ? (int32_t)x->n : rows_of_part(x, t, rows);
    bool last = at + n == x->n;
    if (!hidden && last && n > 1) /* the last row belongs to a hidden pass */
        n--;
    kv_want want = !hidden                         ? KV_WANT_NONE
                   : x->pooling == CARAT_POOL_MEAN ? KV_WANT_ALL
                   : last                          ? KV_WANT_LAST
                                                   : KV_WANT_NONE;
    return (pass_part){
        .t = t,
        .rows = {.token = x->ids + at, .n = n, .both_ways = x->whole, .final = true, .want = want},
        .prompt = true,
        .hidden = hidden};
}

status embedding_take(embedding *x, carat_model *m, const workspace *w, const pass_part *part,
                      err *e)
{
    if (x->i)
        return importance_take(x->i, m, part, e);
    int32_t n = kv_rows_wanted(&part->rows), n_embd = x->n_embd;
    int64_t first = part->t->kv.n_past + part->rows.n - n;
    status st = OK;
    for (int32_t k = 0; k < n && !st; k += ROWS_AT_ONCE) {
        int32_t some = n - k < ROWS_AT_ONCE ? n - k : ROWS_AT_ONCE;
        st = read_hidden(m, w, part, k, some, first + k, x->rows, e);
        for (int32_t i = 0; i < some && !st; i++)
            for (int32_t c = 0; c < n_embd; c++)
                x->sum[c] += (double)x->rows[(size_t)i * (size_t)n_embd + (size_t)c];
    }
    timeline_commit(part->t, part, NULL, st ? 0 : part->rows.n);
    return st;
}

bool embedding_done(const embedding *x, const timeline *t)
{
    return t->kv.n_past == x->n;
}

void embedding_write(const embedding *x, float *out)
{
    if (x->i) {
        importance_write(x->i, out);
        return;
    }
    if (x->ranks) {
        out[0] = rank_of(x->ranks, x->sum);
        return;
    }
    double n = x->pooling == CARAT_POOL_MEAN ? (double)x->n : 1;
    for (int32_t c = 0; c < x->n_embd; c++)
        out[c] = (float)(x->sum[c] / n);
}

/* ---- Rows of a hidden pass ----------------------------------------------------------------- */

static bool hidden_pass_fits(const workspace *w, const carat_model *m, const kv_layout *l,
                             int32_t rows, int32_t outs)
{
    size_t need[PASS_SIDES_MAX];
    pthread_mutex_t *lock = (pthread_mutex_t *)&m->pass_lock; /* all else of m stays as it is */
    pthread_mutex_lock(lock);
    bool fits = !model_plan_hidden(&m->core, m->dev, l, rows, outs, need, NULL);
    pthread_mutex_unlock(lock);
    for (int32_t i = 0; i < m->n_sides && fits; i++)
        fits = need[i] <= w->scratch[i].n_bytes;
    return fits;
}

int32_t workspace_hidden_rows(workspace *w, const carat_model *m, const kv_layout *l, int32_t chunk)
{
    enum { ONE_BY_ONE = 32 }; /* the number of rows decides which kernels run (plan.c) */
    int32_t rows = 1, next = 2;
    if (w->hidden_rows)
        return w->hidden_rows;
    while (rows < chunk) {
        next = rows < ONE_BY_ONE ? rows + 1 : 2 * rows;
        next = next < chunk ? next : chunk;
        /* If not all rows are wanted, the wanted ones are copied. */
        if (!hidden_pass_fits(w, m, l, next, next) || !hidden_pass_fits(w, m, l, next, next - 1))
            break;
        rows = next;
    }
    return w->hidden_rows = rows;
}

/* ---- Sessions ------------------------------------------------------------------------------ */

static status compute_embedding(carat_session *s, embedding *x, err *e)
{
    int32_t rows = workspace_hidden_rows(&s->w, s->m, &s->layout, s->shape.chunk);
    status st = OK;
    while (!st && !embedding_done(x, &s->t)) {
        if (session_take_cancel(s))
            return err_set(e, E_CANCELLED, "cancelled after %lld tokens",
                           (long long)s->t.kv.n_past);
        bool hidden = embedding_wants_hidden(x, &s->t, rows);
        pass_part part = embedding_part(x, &s->t, rows, hidden);
        part.n_candidates = s->w.n_candidates;
        if (!(st = run_pass(s->m, &s->layout, &s->w, &part, 1, e)))
            st = embedding_take(x, s->m, &s->w, &part, e);
    }
    return st;
}

carat_status carat_embed(carat_session *s, const int32_t *ids, int64_t n, carat_pooling pooling,
                         float *out, carat_error *e)
{
    embedding *x = NULL;
    status st;
    if ((st = check_text_ids(s->m, ids, n, s->shape.n_ctx, "an embedding", e)))
        return st;
    if ((st = embedding_open(&x, s->m, pooling, e)))
        return st;
    embedding_begin(x, &s->t, ids, n);
    if (!(st = compute_embedding(s, x, e)))
        embedding_write(x, out);
    embedding_close(x);
    return st;
}
