/* fuse.c - residuals that wait for the next op, so that both become one kernel.
 *
 *     x += rms_norm(y) w; x *= c; h = rms_norm(x) w'      residual_kernel, as far as it goes;
 *                                                         without h it can copy x for a product
 *     x += y; h = rms_norm(x) w'                           the same kernel
 *     y = two branches, normed; the same; h, h', h''      branches_kernel; of many rows, one
 *                                                         branch can be the sum of experts
 *
 * A layer has a dozen small ops whose time is a launch's. The model calls them one by one. Such an
 * op is only noted; the next op joins it, or launches it first. Results are bit-identical to
 * separate launches. Every op that cannot join begins with cuda_settle, and so does every read or
 * release of memory, so no one sees a result that is not launched yet.
 */
#include "backend/cuda/cuda_int.h"

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
    cuda_forget_waiting(c);
    cuda_ok(c, NULL, cudaGetLastError(), "ops that waited"); /* a copy may come next */
}

void cuda_forget_waiting(cuda_device *c)
{
    c->wait.has_residual = c->wait.has_sum = false;
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
