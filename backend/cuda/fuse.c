/* fuse.c - small ops that wait for the next op, so that both become one kernel.
 *
 *     x += rms_norm(y) w; x *= c; h = rms_norm(x) w'      residual_kernel, as far as it goes;
 *                                                         without h it can copy x for a product
 *     x += y; h = rms_norm(x) w'                           the same kernel
 *     y = two branches, normed; the same; h, h', h''      branches_kernel; of many rows, one
 *                                                         branch can be the sum of experts
 *     k = rope(rms_norm(k) w); v = rms_norm(v); store;
 *     q = rope(rms_norm(q) w); q' = Rot q                 heads_kernel; where values and keys come
 *                                                         of the same rows, one job makes both
 *
 * A layer has a dozen small ops whose time is a launch's. The model calls them one by one. Such an
 * op is only noted; the next op joins it, or launches it first. Results are bit-identical to
 * separate launches. Every op that cannot join begins with cuda_settle, and so does every read or
 * release of memory, so no one sees a result that is not launched yet.
 */
#include "backend/cuda/cuda_int.h"

#include <string.h>

static bool overlap(dev_mat a, dev_mat b)
{
    const float *a_end = a.at + (a.rows - 1) * a.stride + a.cols;
    const float *b_end = b.at + (b.rows - 1) * b.stride + b.cols;
    return a.at < b_end && b.at < a_end;
}

static bool same_mat(dev_mat a, dev_mat b)
{
    return a.at == b.at && a.rows == b.rows && a.cols == b.cols && a.stride == b.stride;
}

void cuda_settle(cuda_device *c)
{
    waiting *w = &c->wait;
    cuda_select(&c->dev);
    if (w->has_sum) {
        cu_expert_join(c->stream, w->sum, w->parts, NULL, w->k);
        cuda_launched(c, "sum of experts", w->sum.rows);
    }
    if (w->has_residual) {
        cu_residual(c->stream, w->residual);
        cuda_launched(c, "residual", w->residual.x.rows);
    }
    if (w->n_jobs) {
        cu_heads(c->stream, w->job, w->n_jobs, w->kv, w->st);
        cuda_launched(c, "heads", w->job->y.rows);
    }
    cuda_forget_waiting(c);
    cuda_ok(c, NULL, cudaGetLastError(), "ops that waited"); /* a copy may come next */
}

void cuda_forget_waiting(cuda_device *c)
{
    c->wait.has_residual = c->wait.has_store = c->wait.has_sum = false;
    c->wait.n_jobs = 0;
}

launch_memory cuda_launch_memory(cuda_device *c)
{
    launch_memory memory = c->launch;
    memory.ticket += c->next_ticket++ % (TICKETS / ONE_TICKETS) * ONE_TICKETS;
    return memory;
}

void cuda_products(cuda_device *c, const one_product *job, int32_t n)
{
    product_args rows[ONE_JOBS];
    one_product one[ONE_JOBS];
    for (int i = 0; i < n; i++) {
        one[i] = job[i];
        one[i].p.late |= c->choice != NULL;
        rows[i] = one[i].p;
    }
    if (job->p.y.rows == 1)
        cu_products(c->stream, one, n, cuda_launch_memory(c));
    else
        cu_product_rows(c->stream, rows, n, c->launch);
    for (int i = 0; i < n; i++) {
        cuda_reads(c, &job[i].p.w, 1);
        if (job[i].p.glu && !job[i].p.up_row)
            cuda_reads(c, &job[i].p.up, 1);
    }
    if (c->choice)
        c->choice_done = c->choice;
    c->choice = NULL;
}

/* Does the job write into m? */
static bool writes(const head_job *j, dev_mat m)
{
    return overlap(m, j->y) || (j->bare.at && overlap(m, j->bare));
}

void cuda_wait_sum(cuda_device *c, dev_mat y, const float *parts, int32_t k)
{
    cuda_settle(c);
    c->wait.sum = y;
    c->wait.parts = parts;
    c->wait.k = k;
    c->wait.has_sum = true;
}

void cuda_wait_residual(cuda_device *c, residual_args a)
{
    waiting *w = &c->wait;
    if (w->has_sum && a.b.at && a.b.rows > REHEARSED_ROWS && same_mat(a.b, w->sum)) {
        a.parts = w->parts;
        a.k = w->k;
        w->has_sum = false;
    }
    cuda_settle(c);
    c->wait.residual = a;
    c->wait.has_residual = true;
}

bool cuda_join_scale(cuda_device *c, dev_mat x, float k, const float *w)
{
    residual_args *a = &c->wait.residual;
    if (!c->wait.has_residual || a->scaled || !same_mat(a->x, x))
        return false;
    a->scaled = true;
    a->c = k;
    a->cw = w;
    return true;
}

/* Does the copy overlap m? */
static bool covers(dev_quant q, dev_mat m)
{
    const char *copy = q.bf ? (const char *)q.bf : (const char *)q.q;
    const char *m0 = (const char *)m.at;
    const char *m1 = (const char *)(m.at + (m.rows - 1) * m.stride + m.cols);
    return copy && copy < m1 && m0 < copy + (size_t)q.rows * (size_t)q.cols * 2 + 4096;
}

/* The second branch as it is read. */
static dev_mat second_branch(const residual_args *a)
{
    int32_t width = a->k * a->b.cols;
    return a->parts ? (dev_mat){(float *)a->parts, a->b.rows, width, width} : a->b;
}

/* Not over y: a block may write its row of the copy while another still reads its row of y. */
bool cuda_join_copy(cuda_device *c, dev_mat x, dev_quant q)
{
    residual_args *a = &c->wait.residual;
    dev_mat b = second_branch(a);
    if (!c->wait.has_residual || !same_mat(a->x, x) || x.cols % GROUP || covers(q, a->y) ||
        (b.at && covers(q, b)))
        return false;
    a->q = q;
    cuda_settle(c);
    return true;
}

bool cuda_join_norms(cuda_device *c, dev_mat x, const norm_job *job, int32_t n, float eps)
{
    residual_args a = c->wait.residual;
    dev_mat b = second_branch(&a);
    if (!c->wait.has_residual || !same_mat(a.x, x) || n > NORM_JOBS ||
        (a.plain && (n > 1 || job->c != 1.0f || job->y.stride % 4)))
        return false;
    for (int i = 0; i < n; i++)
        if (overlap(job[i].y, x) || overlap(job[i].y, a.y) || covers(job[i].q, a.y) ||
            (b.at && (overlap(job[i].y, b) || covers(job[i].q, b))))
            return false;
    for (int i = 0; i < n; i++)
        a.h[i] = job[i];
    a.n_h = n;
    a.h_eps = eps;
    c->wait.has_residual = false;
    cuda_settle(c);
    cu_residual(c->stream, a);
    return true;
}

/* The same rows normed without weights wait, as values: keys join their job, because keys may
 * overwrite the rows. */
static bool join_bare(waiting *w, const head_job *j)
{
    head_job *b = w->n_jobs ? &w->job[w->n_jobs - 1] : NULL;
    if (!b || !b->norm || b->w || b->inv_freq || b->store || b->bare.at || b->rotated ||
        !same_mat(b->x, j->x) || b->heads != j->heads || b->eps != j->eps || overlap(b->y, b->x) ||
        overlap(b->y, j->y))
        return false;
    for (head_job *i = w->job; i < b; i++)
        if (overlap(j->y, i->x) || writes(i, j->y))
            return false;
    b->bare = b->y;
    b->y = j->y;
    b->w = j->w;
    return true;
}

bool cuda_wait_head(cuda_device *c, head_job j, dev_step st)
{
    waiting *w = &c->wait;
    int32_t n = j.y.cols / j.heads;
    bool fits = !w->has_residual && !w->has_sum && w->n_jobs < HEAD_JOBS;
    if (!heads_take(n) || j.x.stride % 4 || j.y.stride % 4)
        return false;
    j.x_head = n;
    if (fits && join_bare(w, &j))
        return true;
    for (int i = 0; i < w->n_jobs; i++)
        fits = fits && !overlap(j.y, w->job[i].x) && !writes(&w->job[i], j.y) &&
               !writes(&w->job[i], j.x) && n == w->job[i].y.cols / w->job[i].heads;
    if (!fits)
        cuda_settle(c);
    w->job[w->n_jobs++] = j;
    if (!w->has_store) /* else `st` has the numbers of the store's keys */
        w->st = st;
    return true;
}

/* Rows that are the heads of fewer rows become these: the job whose y is x, as rows of `heads`. */
static bool gather_heads(head_job *j, dev_mat x, int32_t heads)
{
    if (j->heads != 1 || j->store || j->bare.at || j->rotated || j->y.at != x.at ||
        j->y.stride != j->y.cols || x.stride != x.cols || x.cols != heads * j->y.cols ||
        j->y.rows != x.rows * heads)
        return false;
    j->x_head = j->x.stride;
    j->x.rows = x.rows;
    j->x.cols = (heads - 1) * j->x_head + j->y.cols;
    j->x.stride = heads * j->x_head;
    j->y = x;
    j->heads = heads;
    return true;
}

bool cuda_join_rope(cuda_device *c, dev_mat x, int32_t heads, const rope *f, const step_rows *rows)
{
    waiting *w = &c->wait;
    head_job *j = w->n_jobs ? &w->job[w->n_jobs - 1] : NULL;
    if (!j || j->inv_freq || j->store || f->interleaved || f->grow != 0 ||
        (f->n_axes && !f->section[0]) || !heads_turn(x.cols / heads, f->n_pairs, rope_factor(f)) ||
        (rows && x.cols / heads >= 256 && 2 * f->n_pairs == x.cols / heads))
        return false;
    if (!(same_mat(j->y, x) && j->heads == heads) && !gather_heads(j, x, heads))
        return false;
    j->inv_freq = f->inv_freq;
    j->n_pairs = f->n_pairs;
    j->factor = rope_factor(f);
    if (rows) {
        j->axis = rows->axis[0];
        j->axis_step = rows->rows.n;
        memcpy(j->section, f->section, sizeof j->section);
    }
    return true;
}

/* The waiting job whose result is m, or -1. */
static int waiting_job(const waiting *w, dev_mat m)
{
    for (int i = 0; i < w->n_jobs; i++)
        if (same_mat(w->job[i].y, m))
            return i;
    return -1;
}

static head_job store_alone(dev_mat m, const dev_kv *kv)
{
    return (head_job){.y = m, .x = m, .heads = kv->n_head_kv, .x_head = kv->head_dim};
}

/* Joins where waiting jobs, or one job, make keys and values; where a job makes one of them and the
 * other is only stored; or where there is one stream. */
bool cuda_join_store(cuda_device *c, dev_kv kv, dev_step st, dev_mat k, dev_mat v)
{
    waiting *w = &c->wait;
    int i = waiting_job(w, k), j = waiting_job(w, v), n_new = (i < 0) + (j < 0);
    bool bare = i >= 0 && w->job[i].bare.at && same_mat(w->job[i].bare, v);
    if ((kv.single || bare) && i >= 0 && !w->has_store && heads_take(kv.head_dim)) {
        w->job[i].store = kv.single ? 1 : 3;
        w->kv = kv;
        w->st = st;
        w->has_store = true;
        return true;
    }
    if (kv.single || n_new == 2 || (i == j && i >= 0) || w->has_store ||
        w->n_jobs + n_new > HEAD_JOBS || !heads_take(kv.head_dim))
        return false;
    if (i < 0)
        w->job[i = w->n_jobs++] = store_alone(k, &kv);
    if (j < 0)
        w->job[j = w->n_jobs++] = store_alone(v, &kv);
    w->job[i].store = 1;
    w->job[j].store = 2;
    w->kv = kv;
    w->st = st;
    w->has_store = true;
    return true;
}

/* Queries for rotated keys: the job that makes them writes the rotated copy too. */
bool cuda_join_rotation(cuda_device *c, dev_mat to, dev_mat q)
{
    waiting *w = &c->wait;
    int k = waiting_job(w, q);
    if (k < 0 || w->job[k].rotated || to.stride != to.cols)
        return false;
    for (int i = 0; i < w->n_jobs; i++)
        if (overlap(to, w->job[i].x) || writes(&w->job[i], to))
            return false;
    w->job[k].rotated = to.at;
    return true;
}
