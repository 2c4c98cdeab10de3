/* pass.c - every computation of the engine: runs passes over rows of timelines, and reads their
 * logits.
 *
 *     run_pass          reserves indices, fills the step, runs the model, reads the wanted logits
 *     timeline_commit   keeps a prefix or a path of the computed rows: ids, keys and counters
 *
 * Only timeline_commit changes a timeline. So rows that are never committed leave every timeline as
 * it was; the next pass overwrites those rows. A failed pass does so too, except to timelines with
 * recurrent layers: it may have changed some of their states and not others, so they begin anew.
 */
#include "engine/media.h"

#include <assert.h>
#include <float.h>
#include <math.h>
#include <string.h>

/* False if a row of logits holds NaN or +inf: weights or input are broken, and every later token
 * would be noise. -inf is a ban, and allowed. */
static bool finite_row(const float *x, int32_t n)
{
    int bad = 0;
    for (int32_t i = 0; i < n; i++)
        bad |= !(x[i] <= FLT_MAX);
    return !bad;
}

status not_finite(const carat_model *m, int64_t pos, err *e)
{
    return err_set(e, E_NUMERIC,
                   "%s computed a NaN or an infinity at position %lld: the weights are damaged, or "
                   "a number is too large for its format (keys and values above 65504 need "
                   "--kv-type bf16 or f32)",
                   m->core.name, (long long)pos);
}

/* ---- Logits ------------------------------------------------------------------------------ */

/* The rows of one call of device.sift, and where the numbers of their candidates go. */
typedef struct sift_batch {
    carat_model *m;
    sift_want want[STEP_SEQS_MAX];
    int32_t *count[STEP_SEQS_MAX];
    int32_t n;
} sift_batch;

static void sift_now(sift_batch *b)
{
    device *d = b->m->dev;
    if (b->n)
        d->sift(d, b->want, b->n, b->m->core.n_vocab, CANDIDATES_MAX);
    for (int32_t i = 0; i < b->n; i++) {
        const sift_want *w = &b->want[i];
        if (w->bad)
            *b->count[i] = LOGITS_BAD;
        else if (w->n >= 0 && w->n <= CANDIDATES_MAX)
            *b->count[i] = w->n;
    }
    b->n = 0;
}

/* Reads the candidates of every row whose part accepts them. A row's count stays LOGITS_ALL if the
 * device cannot sift, or too many logits are equal. */
static void take_candidates(carat_model *m, mat y, const pass_part *part, int32_t n_parts)
{
    sift_batch b;
    int32_t r = 0;
    b.m = m;
    b.n = 0;
    for (int32_t i = 0; i < n_parts; i++) {
        const pass_part *p = &part[i];
        for (int32_t k = 0; k < kv_rows_wanted(&p->rows); k++, r++) {
            if (p->rescore)
                continue;
            p->n_candidates[k] = LOGITS_ALL;
            if (p->n_best < 1 || !m->dev->sift)
                continue;
            if (b.n == STEP_SEQS_MAX)
                sift_now(&b);
            b.count[b.n] = &p->n_candidates[k];
            b.want[b.n++] = (sift_want){.row = mat_row(y, r),
                                        .k = p->n_best,
                                        .to = p->candidates + (size_t)k * CANDIDATES_MAX};
        }
    }
    sift_now(&b);
}

/* y has the wanted rows of all parts, in the order of the parts. */
static void take_logits(carat_model *m, mat y, const pass_part *part, int32_t n_parts)
{
    size_t n_vocab = (size_t)m->core.n_vocab;
    int32_t r = 0;
    take_candidates(m, y, part, n_parts);
    for (int32_t i = 0; i < n_parts; i++) {
        const pass_part *p = &part[i];
        for (int32_t k = 0; k < kv_rows_wanted(&p->rows); k++, r++) {
            if (p->rescore || !p->logits || p->n_candidates[k] != LOGITS_ALL)
                continue;
            float *to = p->logits + (size_t)k * n_vocab;
            m->dev->download(m->dev, to, mat_row(y, r), n_vocab * sizeof *to);
            if (!finite_row(to, m->core.n_vocab))
                p->n_candidates[k] = LOGITS_BAD;
        }
    }
}

/* ---- Passes ------------------------------------------------------------------------------ */

/* The rows of pictures among those of a part. The tower runs here, for pictures that are new. */
static status put_pictures(workspace *w, const pass_part *part, err *e)
{
    step *st = &w->batch.st;
    const timeline *t = part->t;
    status bad = OK;
    for (int32_t i = 0; i < part->rows.n && !bad;) {
        const int32_t *at = part->rows.token + i;
        if (*at >= 0) {
            i++;
            continue;
        }
        if (media_block(t->m, at) && (t->kv.pager || t->sparse.alpha > 0))
            return err_set(e, E_UNSUPPORTED,
                           "%s: pictures are not computed where attention leaves keys out "
                           "(--kv-pool, --kv-keep, --sparse flash)",
                           t->m->core.name);
        soft_run *run = &w->soft[st->n_soft];
        bad = media_rows(t->m, at, part->rows.n - i, run, &w->held[st->n_soft], e);
        run->row0 = part->row0 + i;
        i += bad ? 0 : run->n;
        st->n_soft += !bad;
        w->n_held = st->n_soft;
    }
    return bad;
}

/* Where the rows of a part are on the axes; NULL: where their positions are, as without pictures.
 * Rows of a tree are text. */
static const row_axes *put_axes(workspace *w, const pass_part *part)
{
    timeline *t = part->t;
    const kv_rows *r = &part->rows;
    if (!w->axes || part->row0 + r->n > w->batch.rows_cap) /* the batch says that it is full */
        return NULL;
    axes_place p = timeline_place(t);
    bool text = p.next == p.n;
    for (int32_t i = 0; i < r->n && text; i++)
        text = r->token[i] >= 0;
    if (text)
        return NULL;
    row_axes *to = w->axes + part->row0;
    int32_t before = t->kv.n_past ? t->id[t->kv.n_past - 1] : 0;
    for (int32_t i = 0; i < r->n; before = r->token[i++]) {
        if (!r->parent) {
            to[i] = media_place(t->m, &p, before, r->token[i]);
            continue;
        }
        int32_t at = r->parent[i] < 0 ? p.next : to[r->parent[i]].at[0] + 1;
        to[i] = (row_axes){{at, at, at}};
    }
    return to;
}

/* Tables of pages are uploaded, and shared pages copied: under the lock of passes. */
static status fill_step(workspace *w, pass_part *part, int32_t n_parts, err *e)
{
    status st = OK;
    kv_batch_clear(&w->batch);
    w->batch.st.prompt = part[0].prompt;
    w->batch.st.soft = w->soft;
    media_leave(part[0].t->m, w->held, &w->n_held);
    for (int32_t i = 0; i < n_parts && !st; i++) {
        timeline *t = part[i].t;
        int32_t n_soft = w->batch.st.n_soft;
        part[i].row0 = w->batch.st.all.n;
        part[i].out0 = w->batch.st.out.n;
        part[i].rows.lora = lora_scales(&t->lora);
        part[i].rows.sparse = (sparse_rule){.skip = t->sparse.skip, .stats = t->stats};
        if (part[i].prompt) {
            part[i].rows.sparse.alpha = t->sparse.alpha;
            part[i].rows.sparse.n_prompt = (int32_t)t->n_prompt;
        }
        part[i].rows.axes = put_axes(w, &part[i]);
        if (!(st = put_pictures(w, &part[i], e)) && !(st = kv_reserve(&t->kv, part[i].rows.n, e)))
            st = kv_batch_add_rows(&w->batch, &t->kv, &part[i].rows, e);
        for (int32_t k = n_soft; k < w->batch.st.n_soft && !st; k++) {
            const soft_run *run = &w->soft[k];
            if (media_block(t->m, part[i].rows.token + (run->row0 - part[i].row0)))
                kv_batch_block(&w->batch, run->row0, run->n); /* else causal: sound */
        }
        part[i].lost = st != OK;
    }
    return st;
}

/* A device that works on its own may have failed after its op returned. */
static status check_devices(const carat_model *m, err *e)
{
    status st = OK;
    for (int32_t i = 0; i < m->n_sides && !st; i++) {
        const device *d = model_device(m, i);
        if (d->failed)
            st = d->failed(d, e);
    }
    return st;
}

status run_pass(carat_model *m, const kv_layout *l, workspace *w, pass_part *part, int32_t n_parts,
                err *e)
{
    pass p;
    page_watch watch[STEP_SEQS_MAX];
    bool watched[STEP_SEQS_MAX];
    status st;
    for (int32_t i = 0; i < n_parts; i++)
        part[i].lost = false;
    for (int32_t i = 0; i < n_parts; i++) {
        int64_t end = part[i].t->kv.n_past + part[i].rows.n;
        timeline_before_pass(part[i].t, &part[i].rows);
        timeline_make_room(part[i].t, part[i].rows.n); /* else kv_reserve says why not */
        st = timeline_ready(part[i].t, part[i].rows.token, part[i].until ? part[i].until : end,
                            part[i].until > 0, e);
        st = st ? st : media_await(m, part[i].rows.token, part[i].rows.n, e);
        part[i].lost = st != OK;
        if (st)
            return st;
    }
    pthread_mutex_lock(&m->pass_lock);
    if ((st = model_check_loaded(m, e)) || (st = fill_step(w, part, n_parts, e))) {
        pthread_mutex_unlock(&m->pass_lock);
        return st;
    }
    workspace_begin_pass(w, m, &p);
    p.hidden = part[0].hidden;
    p.tail = part[0].tail;
    if (p.hidden) /* a drafter has no room for so many rows */
        p.taps = NULL;
    p.watch = watch;
    for (int32_t i = 0; i < n_parts; i++) {
        watched[i] = paging_watch(&part[i].t->kv, i, &part[i], &watch[p.n_watch]);
        p.n_watch += watched[i];
    }
    w->y = model_forward(&p, &m->core, l);
    w->fresh = p.fresh;
    for (int32_t i = 0; i < n_parts; i++)
        if (watched[i])
            paging_watched(&part[i].t->kv, &part[i], !pass_failed(&p));
    if (pass_failed(&p))
        st = err_set(e, p.e.status, "%s", p.e.text);
    else if (!p.hidden)
        take_logits(m, w->y, part, n_parts);
    for (int32_t i = 0; i < n_parts && !st; i++)
        if (watched[i]) {
            st = paging_rescore(&part[i].t->kv, &part[i], e);
            part[i].lost = st != OK;
        }
    st = st ? st : check_devices(m, e);
    pthread_mutex_unlock(&m->pass_lock);
    for (int32_t i = 0; st && i < n_parts; i++)
        part[i].lost |= timeline_abandon(part[i].t);
    return st;
}

status read_logits(carat_model *m, workspace *w, const pass_part *part, int32_t k, int64_t pos,
                   row_logits *x, err *e)
{
    size_t n_vocab = (size_t)m->core.n_vocab;
    int32_t *n = &part->n_candidates[k];
    status st = OK;
    *x = (row_logits){.all = part->logits ? part->logits + (size_t)k * n_vocab : w->logits};
    if (*n >= 0) {
        x->candidates = part->candidates + (size_t)k * CANDIDATES_MAX;
        x->n_candidates = *n;
    } else if (*n == LOGITS_ALL && !part->logits) {
        pthread_mutex_lock(&m->pass_lock);
        m->dev->download(m->dev, x->all, mat_row(w->y, part->out0 + k), n_vocab * sizeof *x->all);
        st = check_devices(m, e);
        pthread_mutex_unlock(&m->pass_lock);
        if (!st && !finite_row(x->all, m->core.n_vocab))
            *n = LOGITS_BAD;
    }
    return st || *n != LOGITS_BAD ? st : not_finite(m, pos, e);
}

status read_hidden(carat_model *m, const workspace *w, const pass_part *part, int32_t k, int32_t n,
                   int64_t pos, float *to, err *e)
{
    size_t n_embd = (size_t)m->core.n_embd;
    pthread_mutex_lock(&m->pass_lock);
    m->dev->download(m->dev, to, mat_row(w->y, part->out0 + k),
                     (size_t)n * n_embd * sizeof *to); /* rows lie one after the other */
    status st = check_devices(m, e);
    pthread_mutex_unlock(&m->pass_lock);
    for (int32_t i = 0; i < n && !st; i++)
        for (size_t c = 0; c < n_embd && !st; c++)
            if (!(fabsf(to[(size_t)i * n_embd + c]) <= FLT_MAX))
                st = not_finite(m, pos + i, e);
    return st;
}

status run_head(carat_model *m, workspace *w, const pass_part *part, int32_t k, int32_t n, mat *y,
                err *e)
{
    pass p;
    status st;
    mat rows = w->y;
    pthread_mutex_lock(&m->pass_lock);
    if ((st = model_check_loaded(m, e))) {
        pthread_mutex_unlock(&m->pass_lock);
        return st;
    }
    workspace_begin_pass(w, m, &p);
    p.taps = NULL;
    p.lora = lora_scales(&part->t->lora); /* the rows are all of this part */
    const char *end = (const char *)(w->y.at + (size_t)w->y.rows * (size_t)w->y.stride);
    p.side[PASS_MAIN].at = (size_t)(end - (const char *)w->scratch[PASS_MAIN].at);
    rows.at += (size_t)(part->out0 + k) * (size_t)rows.stride;
    rows.rows = n;
    mat logits = model_head(&p, &m->core, &rows, 1);
    pass_end(&p);
    if (pass_failed(&p))
        st = err_set(e, p.e.status, "%s", p.e.text);
    st = st ? st : check_devices(m, e);
    if (!st)
        *y = logits;
    pthread_mutex_unlock(&m->pass_lock);
    return st;
}

status read_head(carat_model *m, workspace *w, mat y, int32_t i, int64_t pos, err *e)
{
    size_t n_vocab = (size_t)m->core.n_vocab;
    pthread_mutex_lock(&m->pass_lock);
    m->dev->download(m->dev, w->logits, mat_row(y, i), n_vocab * sizeof *w->logits);
    status st = check_devices(m, e);
    pthread_mutex_unlock(&m->pass_lock);
    return st || finite_row(w->logits, m->core.n_vocab) ? st : not_finite(m, pos, e);
}

/* True if path leads from the committed context downwards, each row the parent of the next. */
static bool is_path(const kv_rows *r, const int32_t *path, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        int32_t row = path ? path[i] : i, before = i ? (path ? path[i - 1] : i - 1) : -1;
        if (row >= r->n || (r->parent ? r->parent[row] : row - 1) != before)
            return false;
    }
    return true;
}

void timeline_commit(timeline *t, const pass_part *part, const int32_t *path, int32_t n)
{
    const kv_rows *r = &part->rows;
    int32_t *to = t->id + t->kv.n_past;
    assert(part->t == t && n <= r->n && is_path(r, path, n));
    if (t->kv.layout->n_recur && r->final && n < r->n) {
        timeline_reset(t); /* the states are those after all rows */
        return;
    }
    if (!path) {
        memmove(to, r->token, (size_t)n * sizeof *to);
        kv_commit(&t->kv, n);
        return;
    }
    for (int32_t i = 0; i < n; i++) /* tokens may lie in `to` itself: path[i] >= i */
        to[i] = r->token[path[i]];
    pthread_mutex_lock(&t->m->pass_lock);
    kv_commit_path(&t->kv, path, n);
    pthread_mutex_unlock(&t->m->pass_lock);
}
