/* importance.c - which tokens of a text its end attends to: as jobs; see carat_importance.
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
#include "engine/batch_int.h"
#include "base/mem.h"

#include <math.h>

enum { TAIL = CARAT_IMPORTANCE_TAIL, SMOOTH = CARAT_IMPORTANCE_SMOOTH };

typedef struct importance {
    int64_t n;
    int32_t rows;   /* of a pass of the tail, at most TAIL */
    pass_tail tail; /* of the current one */
    float *top;     /* [TAIL][n] */
    double *mean;   /* [n] */
    float *hidden;  /* [n_embd] of the last row, which is tested for NaN and +inf */
} importance;

/* The rows of a pass of the tail that the scratch has room for, at most TAIL. */
static status count_tail_rows(const carat_batch *b, int32_t *rows, err *e)
{
    carat_model *m = b->m;
    size_t need[PASS_SIDES_MAX];
    int32_t n_layers = 0, chunk = b->shape.chunk, n = chunk < TAIL ? chunk : TAIL;
    status st = OK;
    pthread_mutex_lock(&m->pass_lock);
    for (; n > 0; n--) {
        bool fits = true;
        if ((st = model_plan_tail(&m->core, m->dev, &b->layout, n, need, &n_layers, e)))
            break;
        for (int32_t i = 0; i < m->n_sides; i++)
            fits &= need[i] <= b->w.scratch[i].n_bytes;
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
    return count_tail_rows(&s->b, &rows, e);
}

uint64_t importance_bytes(int64_t n)
{
    const importance *x = NULL;
    return (uint64_t)n * (TAIL * sizeof *x->top + sizeof *x->mean);
}

static status open_importance(carat_batch *b, const carat_job *from, job *j, err *e)
{
    int64_t n = j->n;
    int32_t rows;
    status st;
    if (n <= TAIL)
        return err_set(e, E_ARG,
                       "a text of %lld tokens is too short: its last %d tokens measure the "
                       "importance of those before them",
                       (long long)n, TAIL);
    if ((st = count_tail_rows(b, &rows, e)))
        return st;
    importance *x = j->i = mem_calloc(1, sizeof *x);
    if (x) {
        *x = (importance){.n = n, .rows = rows};
        x->top = mem_calloc(TAIL * (size_t)n, sizeof *x->top);
        x->mean = mem_calloc((size_t)n, sizeof *x->mean);
        x->hidden = mem_calloc((size_t)b->m->core.n_embd, sizeof *x->hidden);
    }
    if (!x || !x->top || !x->mean || !x->hidden)
        return err_memory(e, "the importance of tokens", importance_bytes(n));
    j->vector = from->importance;
    j->n_plain = n - TAIL;
    return OK;
}

static void close_importance(job *j)
{
    if (!j->i)
        return;
    mem_free(j->i->hidden);
    mem_free(j->i->mean);
    mem_free(j->i->top);
    mem_free(j->i);
}

static pass_want wants_tail(slot *s)
{
    int64_t left = s->job->n - s->t.kv.n_past;
    if (left > TAIL)
        return (pass_want){0};
    return (pass_want){.left = left, .most = s->job->i->rows};
}

static pass_part part_of_tail(slot *s, int32_t rows)
{
    importance *x = s->job->i;
    int64_t at = s->t.kv.n_past, left = timeline_pass_end(&s->t, x->n) - at;
    rows = left < rows ? (int32_t)left : rows;
    x->tail = (pass_tail){
        .top = x->top + (size_t)(at - (x->n - TAIL)) * (size_t)x->n, .stride = x->n, .rows = rows};
    return (pass_part){
        .t = &s->t,
        .rows = {.token = slot_next_ids(s), .n = rows, .final = true, .want = KV_WANT_ALL},
        .prompt = true,
        .hidden = true,
        .tail = &x->tail};
}

static status take_tail(slot *s, const pass_part *part, err *e)
{
    const importance *x = s->job->i;
    int64_t at = s->t.kv.n_past;
    int32_t last = part->rows.n - 1;
    status st = read_hidden(s->b->m, &s->b->w, part, last, 1, at + last, x->hidden, e);
    for (int32_t r = 0; r <= last && !st; r++) {
        const float *shares = x->tail.top + (size_t)r * (size_t)x->n;
        float most = 0;
        for (int64_t j = 0; j < x->n; j++)
            most = shares[j] > most ? shares[j] : most;
        if (!(most > 0)) /* a share that is NaN is never the largest */
            st = not_finite(s->b->m, at + r, e);
    }
    timeline_commit(&s->t, part, NULL, st ? 0 : part->rows.n);
    return st;
}

/* The mean of the lines, then of the values around each. */
static void write_means(importance *x, float *out)
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

static status begin_importance(slot *s, err *e)
{
    (void)e;
    timeline_prepare(&s->t, s->job->ids, s->job->n_plain);
    return OK;
}

static status end_importance(slot *s, status st, err *e)
{
    (void)e;
    report_prefilled(&s->job->r);
    if (st)
        return st;
    s->job->r.t.finish = CARAT_FINISH_STOP;
    write_means(s->job->i, s->job->vector);
    return OK;
}

static const contributor tail_rows = {.prompt = true,
                                      .hidden = true,
                                      .alone = true,
                                      .wants = wants_tail,
                                      .part = part_of_tail,
                                      .take = take_tail};

static const contributor *const contributors[] = {&tail_rows, &plain_rows, NULL};

const job_class importance_job = {.contributors = contributors,
                                  .open = open_importance,
                                  .close = close_importance,
                                  .begin = begin_importance,
                                  .end = end_importance};

carat_status carat_importance(carat_session *s, const int32_t *ids, int64_t n, float *out,
                              carat_error *e)
{
    const carat_job j = {.ids = ids, .n = n, .importance = out};
    return session_run(s, &j, NULL, NULL, e);
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
