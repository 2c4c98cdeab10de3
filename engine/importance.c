/* importance.c - carat_importance: which tokens of a text its end attends to.
 *
 *     ids   0 ........................ n-9 | n-8 .. n-1
 *           prefilled like any prompt      | passes whose layers report their shares (pass.tail)
 *
 *     top[t][j]   the largest share of any head of any layer; t: a row of the tail
 *     mean over t, then over the tokens around j
 *
 * The model's layers call op_tail with queries before the rotation; a family whose layers do not is
 * refused. The method is that of relevance scorers for prompt compression and for paged keys.
 */
#include "base/mem.h"
#include "engine/embed.h"

#include <math.h>
#include <string.h>

enum { TAIL = CARAT_IMPORTANCE_TAIL, SMOOTH = CARAT_IMPORTANCE_SMOOTH };

/* The rows of a pass of the tail that the session's scratch has room for, at most TAIL. */
static status tail_rows(carat_session *s, int32_t *rows, err *e)
{
    size_t need[PASS_SIDES_MAX];
    int32_t n_layers = 0, most = s->shape.chunk < TAIL ? s->shape.chunk : TAIL;
    status st = OK;
    pthread_mutex_lock(&s->m->pass_lock);
    for (*rows = most; *rows > 0; --*rows) {
        bool fits = true;
        if ((st = model_plan_tail(&s->m->core, s->m->dev, &s->layout, *rows, need, &n_layers, e)))
            break;
        for (int32_t i = 0; i < s->m->n_sides; i++)
            fits &= need[i] <= s->w.scratch[i].n_bytes;
        if (fits)
            break;
    }
    pthread_mutex_unlock(&s->m->pass_lock);
    if (!st && !n_layers)
        st = err_set(e, E_UNSUPPORTED, "%s: models of %s do not tell what a text attends to",
                     s->m->core.name, s->m->core.arch->name);
    if (!st && !*rows)
        st = err_set(e, E_MEMORY, "%s: a session of %d tokens at a time has no room for %zu bytes",
                     s->m->core.name, s->shape.chunk, need[PASS_MAIN]);
    return st;
}

static status prefill_text(carat_session *s, const int32_t *ids, int64_t n, err *e)
{
    timeline_prepare(&s->t, ids, n);
    int64_t cached = s->t.kv.n_past;
    return session_prefill(s, &(prefill){.ids = ids + cached, .n = n - cached}, e);
}

/* One pass over tail rows at .. at + rows - 1; top: [n]-wide lines of all of them. */
static status tail_pass(carat_session *s, const int32_t *ids, int64_t n, int32_t at, int32_t rows,
                        float *top, err *e)
{
    pass_tail tail = {.top = top + (size_t)at * (size_t)n, .stride = n, .rows = rows};
    pass_part part = {
        .t = &s->t,
        .rows = {.token = ids + n - TAIL + at, .n = rows, .final = true, .want = KV_WANT_ALL},
        .prompt = true,
        .hidden = true,
        .tail = &tail,
        .n_candidates = s->w.n_candidates};
    status st = run_pass(s->m, &s->layout, &s->w, &part, 1, e);
    if (st)
        return st;
    timeline_commit(&s->t, &part, NULL, rows);
    for (int32_t r = 0; r < rows; r++) {
        const float *x = tail.top + (size_t)r * (size_t)n;
        float most = 0;
        for (int64_t j = 0; j < n; j++)
            most = x[j] > most ? x[j] : most;
        if (!(most > 0)) /* a share that is NaN is never the largest */
            return not_finite(s->m, n - TAIL + at + r, e);
    }
    return OK;
}

/* The mean of the lines, then of the values around each. */
static void write_values(const float *top, int64_t n, double *mean, float *out)
{
    for (int64_t j = 0; j < n; j++) {
        mean[j] = 0;
        for (int32_t t = 0; t < TAIL; t++)
            mean[j] += (double)top[t * n + j] / TAIL;
    }
    for (int64_t j = 0; j < n; j++) {
        int64_t from = j < SMOOTH / 2 ? 0 : j - SMOOTH / 2;
        int64_t to = n - j <= SMOOTH / 2 ? n : j + SMOOTH / 2 + 1;
        double sum = 0;
        for (int64_t i = from; i < to; i++)
            sum += mean[i];
        out[j] = (float)(sum / (double)(to - from));
    }
}

carat_status carat_importance(carat_session *s, const int32_t *ids, int64_t n, float *out,
                              carat_error *e)
{
    float *top = NULL;
    double *mean = NULL;
    int32_t rows = 0;
    status st = check_ids(s->m, ids, n, s->shape.n_ctx, e);
    if (st)
        return st;
    if (n <= TAIL)
        return err_set(e, E_ARG, "%lld tokens: their importance is measured by the last %d of more",
                       (long long)n, TAIL);
    if ((st = tail_rows(s, &rows, e)))
        return st;
    top = mem_calloc(TAIL * (size_t)n, sizeof *top);
    mean = mem_alloc((size_t)n * sizeof *mean);
    if (!top || !mean)
        st = err_memory(e, "the importance of tokens",
                        (size_t)n * (TAIL * sizeof *top + sizeof *mean));
    st = st ? st : timeline_use(&s->t, (sparse_choice){0}, e);
    st = st ? st : prefill_text(s, ids, n - TAIL, e);
    for (int32_t at = 0; at < TAIL && !st; at += rows)
        st = tail_pass(s, ids, n, at, TAIL - at < rows ? TAIL - at : rows, top, e);
    if (!st)
        write_values(top, n, mean, out);
    mem_free(mean);
    mem_free(top);
    return st;
}

int64_t carat_importance_chunks(const float *value, int64_t n, int32_t chunk, bool normal,
                                float *out)
{
    int64_t n_chunks = 0;
    double mean = 0, square = 0;
    for (int64_t at = 0; at < n && chunk > 0; at += chunk) {
        int64_t some = n - at < chunk ? n - at : chunk;
        double sum = 0;
        for (int64_t i = 0; i < some; i++)
            sum += value[at + i];
        out[n_chunks++] = (float)(sum / (double)some);
    }
    for (int64_t i = 0; i < n_chunks; i++)
        mean += out[i] / (double)n_chunks;
    for (int64_t i = 0; i < n_chunks; i++)
        square += (out[i] - mean) * (out[i] - mean) / (double)n_chunks;
    for (int64_t i = 0; i < n_chunks && normal; i++)
        out[i] = square > 0 ? (float)((out[i] - mean) / sqrt(square)) : 0;
    return n_chunks;
}
