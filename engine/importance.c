/* importance.c - which tokens of a text its end attends to: see importance.h, and carat_importance.
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
#include "engine/importance.h"
#include "base/mem.h"

#include <math.h>
#include <string.h>

enum { TAIL = CARAT_IMPORTANCE_TAIL, SMOOTH = CARAT_IMPORTANCE_SMOOTH };

struct importance {
    const int32_t *ids;
    int64_t n;
    int32_t rows;   /* of a pass of the tail, at most TAIL */
    pass_tail tail; /* of the current one */
    float *top;     /* [TAIL][n] */
    double *mean;   /* [n] */
};

/* The rows of a pass of the tail that the scratch has room for, at most TAIL. */
static status tail_rows(carat_model *m, const kv_layout *l, const workspace *w, int32_t chunk,
                        int32_t *rows, err *e)
{
    size_t need[PASS_SIDES_MAX];
    int32_t n_layers = 0, n = chunk < TAIL ? chunk : TAIL;
    status st = OK;
    pthread_mutex_lock(&m->pass_lock);
    for (; n > 0; n--) {
        bool fits = true;
        if ((st = model_plan_tail(&m->core, m->dev, l, n, need, &n_layers, e)))
            break;
        for (int32_t i = 0; i < m->n_sides; i++)
            fits &= need[i] <= w->scratch[i].n_bytes;
        if (fits)
            break;
    }
    pthread_mutex_unlock(&m->pass_lock);
    if (!st && !n_layers)
        st = err_set(e, E_UNSUPPORTED,
                     "%s: carat cannot measure the importance of tokens with models of %s",
                     m->core.name, m->core.arch->name);
    if (!st && !n)
        st = err_set(e, E_MEMORY, "%s: passes of %d tokens at a time have no room for %zu bytes",
                     m->core.name, chunk, need[PASS_MAIN]);
    if (!st)
        *rows = n;
    return st;
}

status importance_check(const carat_session *s, err *e)
{
    int32_t rows;
    return tail_rows(s->m, &s->layout, &s->w, s->shape.chunk, &rows, e);
}

uint64_t importance_bytes(int64_t n)
{
    const importance *x = NULL;
    return (uint64_t)n * (TAIL * sizeof *x->top + sizeof *x->mean);
}

status importance_open(importance **out, carat_model *m, const kv_layout *l, const workspace *w,
                       int32_t chunk, int64_t n, err *e)
{
    int32_t rows;
    importance *x = *out = NULL;
    status st;
    if (n <= TAIL)
        return err_set(e, E_ARG,
                       "a text of %lld tokens is too short: its last %d tokens measure the "
                       "importance of those before them",
                       (long long)n, TAIL);
    if ((st = tail_rows(m, l, w, chunk, &rows, e)))
        return st;
    if ((x = mem_calloc(1, sizeof *x))) {
        *x = (importance){.n = n, .rows = rows};
        x->top = mem_calloc(TAIL * (size_t)n, sizeof *x->top);
        x->mean = mem_calloc((size_t)n, sizeof *x->mean);
    }
    if (!x || !x->top || !x->mean) {
        importance_close(x);
        return err_memory(e, "the importance of tokens", importance_bytes(n));
    }
    *out = x;
    return OK;
}

void importance_close(importance *x)
{
    if (!x)
        return;
    mem_free(x->mean);
    mem_free(x->top);
    mem_free(x);
}

void importance_begin(importance *x, timeline *t, const int32_t *ids)
{
    x->ids = ids;
    timeline_prepare(t, ids, x->n - TAIL);
}

bool importance_at_tail(const importance *x, const timeline *t)
{
    return t->kv.n_past >= x->n - TAIL;
}

pass_part importance_part(importance *x, timeline *t, int32_t most)
{
    int64_t at = t->kv.n_past;
    bool tail = importance_at_tail(x, t);
    int64_t rows = timeline_pass_end(t, tail ? x->n : x->n - TAIL) - at;
    int32_t n = rows < most ? (int32_t)rows : most;
    if (!tail)
        return (pass_part){
            .t = t, .rows = {.token = x->ids + at, .n = n, .final = true}, .prompt = true};
    n = n < x->rows ? n : x->rows;
    x->tail = (pass_tail){
        .top = x->top + (size_t)(at - (x->n - TAIL)) * (size_t)x->n, .stride = x->n, .rows = n};
    return (pass_part){.t = t,
                       .rows = {.token = x->ids + at, .n = n, .final = true, .want = KV_WANT_ALL},
                       .prompt = true,
                       .hidden = true,
                       .tail = &x->tail};
}

status importance_take(importance *x, carat_model *m, const pass_part *part, err *e)
{
    int64_t at = part->t->kv.n_past;
    status st = OK;
    for (int32_t r = 0; r < part->rows.n && !st; r++) {
        const float *shares = x->tail.top + (size_t)r * (size_t)x->n;
        float most = 0;
        for (int64_t j = 0; j < x->n; j++)
            most = shares[j] > most ? shares[j] : most;
        if (!(most > 0)) /* a share that is NaN is never the largest */
            st = not_finite(m, at + r, e);
    }
    timeline_commit(part->t, part, NULL, st ? 0 : part->rows.n);
    return st;
}

/* The mean of the lines, then of the values around each. */
void importance_write(importance *x, float *out)
{
    int64_t n = x->n;
    for (int64_t j = 0; j < n; j++) {
        x->mean[j] = 0;
        for (int32_t t = 0; t < TAIL; t++)
            x->mean[j] += (double)x->top[t * n + j] / TAIL;
    }
    for (int64_t j = 0; j < n; j++) {
        int64_t from = j < SMOOTH / 2 ? 0 : j - SMOOTH / 2;
        int64_t to = n - j <= SMOOTH / 2 ? n : j + SMOOTH / 2 + 1;
        double sum = 0;
        for (int64_t i = from; i < to; i++)
            sum += x->mean[i];
        out[j] = (float)(sum / (double)(to - from));
    }
}

carat_status carat_importance(carat_session *s, const int32_t *ids, int64_t n, float *out,
                              carat_error *e)
{
    importance *x;
    status st = check_text_ids(s->m, ids, n, s->shape.n_ctx, "the importance", e);
    if (st || (st = importance_open(&x, s->m, &s->layout, &s->w, s->shape.chunk, n, e)))
        return st;
    if (!(st = timeline_use(&s->t, (sparse_choice){0}, e))) {
        importance_begin(x, &s->t, ids);
        int64_t cached = s->t.kv.n_past;
        st = session_prefill(s, &(prefill){.ids = ids + cached, .n = n - TAIL - cached}, e);
    }
    while (!st && s->t.kv.n_past < n) {
        pass_part part = importance_part(x, &s->t, TAIL);
        part.n_candidates = s->w.n_candidates;
        if (!(st = run_pass(s->m, &s->layout, &s->w, &part, 1, e)))
            st = importance_take(x, s->m, &part, e);
    }
    if (!st)
        importance_write(x, out);
    importance_close(x);
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
