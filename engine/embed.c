/* embed.c - embeddings as jobs: a text as a vector, the hidden rows of its tokens, pooled.
 *
 * A hidden row is the last layer's output after the model's final norm, before the output head.
 * MEAN adds up the rows of all tokens, so it computes every token and reuses no prefix. LAST takes
 * the row of the last token.
 *
 * Sums are in f64, in the order of positions: chunk sizes do not change a bit of the result where
 * they change no bit of a row. Only open and close allocate.
 */
#include "engine/batch_int.h"
#include "base/mem.h"

enum { ROWS_AT_ONCE = 16 }; /* hidden rows copied from the device together */

typedef struct embedding {
    carat_pooling pooling;
    bool whole;  /* an encoder: all rows are in one pass */
    double *sum; /* [n_embd] */
    float *rows; /* [ROWS_AT_ONCE][n_embd] */
} embedding;

static status open_embedding(carat_batch *b, const carat_job *from, job *j, err *e)
{
    const carat_model *m = b->m;
    size_t n_embd = (size_t)m->core.n_embd;
    carat_pooling pooling = from->pooling;
    if (pooling < CARAT_POOL_MEAN || pooling > CARAT_POOL_RANK)
        return err_set(e, E_ARG, "pooling %d: expected the mean or the last row", (int)pooling);
    if (pooling == CARAT_POOL_RANK && !m->answers)
        return err_set(e, E_UNSUPPORTED, "%s is no reranker", m->core.name);
    embedding *x = j->x = mem_calloc(1, sizeof *x);
    if (x) {
        *x = (embedding){.pooling = pooling, .whole = m->core.encoder};
        x->sum = mem_calloc(n_embd, sizeof *x->sum);
        x->rows = mem_calloc(ROWS_AT_ONCE * n_embd, sizeof *x->rows);
    }
    if (!x || !x->sum || !x->rows)
        return err_memory(e, "an embedding", ROWS_AT_ONCE * n_embd * sizeof *x->rows);
    j->vector = from->embedding;
    j->anew = x->whole || pooling == CARAT_POOL_MEAN;
    j->n_plain = j->anew ? 0 : j->n - 1;
    return OK;
}

static void close_embedding(job *j)
{
    if (!j->x)
        return;
    mem_free(j->x->rows);
    mem_free(j->x->sum);
    mem_free(j->x);
}

/* The rows of the next part: a checkpoint of recurrent layers may end it early. */
static int32_t rows_of_part(const slot *s, int32_t most)
{
    int64_t rows = timeline_pass_end(&s->t, s->job->n) - s->t.kv.n_past;
    return rows < most ? (int32_t)rows : most;
}

/* Hidden rows are wanted of all tokens or of the last one; then those before it that fit are in its
 * pass. */
static pass_want wants_hidden(slot *s)
{
    int64_t at = s->t.kv.n_past, n = s->job->n;
    int32_t most = hidden_rows_most(s->b);
    if (!s->job->anew && at + rows_of_part(s, most) < n)
        return (pass_want){0};
    return (pass_want){.left = n - at, .least = s->job->x->whole ? (int32_t)n : 0, .most = most};
}

static pass_part part_of_hidden(slot *s, int32_t rows)
{
    const embedding *x = s->job->x;
    int64_t at = s->t.kv.n_past, n = s->job->n;
    rows = x->whole ? (int32_t)n : rows_of_part(s, rows);
    kv_want want = x->pooling == CARAT_POOL_MEAN ? KV_WANT_ALL
                   : at + rows == n              ? KV_WANT_LAST
                                                 : KV_WANT_NONE;
    return (pass_part){.t = &s->t,
                       .rows = {.token = slot_next_ids(s),
                                .n = rows,
                                .both_ways = x->whole,
                                .final = true,
                                .want = want},
                       .prompt = true,
                       .hidden = true};
}

/* Drafters miss these rows. */
static status take_hidden(slot *s, const pass_part *part, err *e)
{
    embedding *x = s->job->x;
    int32_t n = kv_rows_wanted(&part->rows), n_embd = s->b->m->core.n_embd;
    int64_t first = s->t.kv.n_past + part->rows.n - n;
    status st = OK;
    for (int32_t k = 0; k < n && !st; k += ROWS_AT_ONCE) {
        int32_t some = n - k < ROWS_AT_ONCE ? n - k : ROWS_AT_ONCE;
        st = read_hidden(s->b->m, &s->b->w, part, k, some, first + k, x->rows, e);
        for (int32_t i = 0; i < some && !st; i++)
            for (int32_t c = 0; c < n_embd; c++)
                x->sum[c] += (double)x->rows[(size_t)i * (size_t)n_embd + (size_t)c];
    }
    timeline_commit(&s->t, part, NULL, st ? 0 : part->rows.n);
    return st;
}

static status end_embedding(slot *s, status st, err *e)
{
    const embedding *x = s->job->x;
    float *out = s->job->vector;
    (void)e;
    report_prefilled(&s->job->r);
    if (st)
        return st;
    s->job->r.t.finish = CARAT_FINISH_STOP;
    if (x->pooling == CARAT_POOL_RANK) {
        out[0] = rank_of(s->b->m, x->sum);
        return OK;
    }
    double n = x->pooling == CARAT_POOL_MEAN ? (double)s->job->n : 1;
    for (int32_t c = 0; c < s->b->m->core.n_embd; c++)
        out[c] = (float)(x->sum[c] / n);
    return OK;
}

static const contributor hidden_rows = {.prompt = true,
                                        .hidden = true,
                                        .wants = wants_hidden,
                                        .part = part_of_hidden,
                                        .take = take_hidden};

static const contributor *const contributors[] = {&hidden_rows, &plain_rows, NULL};

const job_class embedding_job = {.contributors = contributors,
                                 .open = open_embedding,
                                 .close = close_embedding,
                                 .end = end_embedding};

carat_status carat_embed(carat_session *s, const int32_t *ids, int64_t n, carat_pooling pooling,
                         float *out, carat_error *e)
{
    const carat_job j = {.ids = ids, .n = n, .embedding = out, .pooling = pooling};
    return session_run(s, &j, NULL, NULL, e);
}

/* ---- Rows of a hidden pass ----------------------------------------------------------------- */

static bool hidden_pass_fits(const carat_batch *b, int32_t rows, int32_t outs)
{
    const carat_model *m = b->m;
    size_t need[PASS_SIDES_MAX];
    pthread_mutex_lock(&b->m->pass_lock);
    bool fits = !model_plan_hidden(&m->core, m->dev, &b->layout, rows, outs, need, NULL);
    pthread_mutex_unlock(&b->m->pass_lock);
    for (int32_t i = 0; i < m->n_sides && fits; i++)
        fits = need[i] <= b->w.scratch[i].n_bytes;
    return fits;
}

int32_t hidden_rows_most(carat_batch *b)
{
    enum { ONE_BY_ONE = 32 }; /* the number of rows decides which kernels run (plan.c) */
    int32_t rows = 1, next = 2, chunk = b->shape.chunk;
    if (b->w.hidden_rows)
        return b->w.hidden_rows;
    while (rows < chunk) {
        next = rows < ONE_BY_ONE ? rows + 1 : 2 * rows;
        next = next < chunk ? next : chunk;
        /* If not all rows are wanted, the wanted ones are copied. */
        if (!hidden_pass_fits(b, next, next) || !hidden_pass_fits(b, next, next - 1))
            break;
        rows = next;
    }
    return b->w.hidden_rows = rows;
}
