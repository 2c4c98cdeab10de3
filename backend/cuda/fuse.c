/* fuse.c - ops that wait for the op after them, so that both become one kernel.
 *
 *     x += rms_norm(y) w; x *= c; h = rms_norm(x) w'      residual_kernel, as far as it goes
 *     k = rope(rms_norm(k) w); v = rms_norm(v); store     heads_kernel
 *
 * A layer has seven small ops whose time is that of a launch. The model calls them one by one; here
 * the first is only noted, and what follows either joins it or has it launched. Results are the
 * same bit for bit. Every op but those few begins with cuda_settle, and so does all that reads or
 * frees memory: nobody sees what has not been computed.
 */
#include "backend/cuda/cuda_int.h"

static bool overlap(dev_mat a, dev_mat b)
{
    const float *a_end = a.at + (a.rows - 1) * a.stride + a.cols;
    const float *b_end = b.at + (b.rows - 1) * b.stride + b.cols;
    return a.at < b_end && b.at < a_end;
}

static bool same(dev_mat a, dev_mat b)
{
    return a.at == b.at && a.rows == b.rows && a.cols == b.cols && a.stride == b.stride;
}

static void launch_heads(cuda_device *c, dev_kv kv)
{
    waiting *w = &c->wait;
    if (w->n_jobs)
        cu_heads(c->stream, w->job, w->n_jobs, kv, w->st);
    w->n_jobs = 0;
}

void cuda_settle(cuda_device *c)
{
    waiting *w = &c->wait;
    if (w->has_residual)
        cu_residual(c->stream, w->residual);
    w->has_residual = false;
    launch_heads(c, (dev_kv){0});
}

void cuda_forget_waiting(cuda_device *c)
{
    c->wait.has_residual = false;
    c->wait.n_jobs = 0;
}

void cuda_wait_residual(cuda_device *c, residual_args a)
{
    cuda_settle(c);
    c->wait.residual = a;
    c->wait.has_residual = true;
}

bool cuda_join_scale(cuda_device *c, dev_mat x, float k, const float *w)
{
    residual_args *a = &c->wait.residual;
    if (!c->wait.has_residual || a->scaled || !same(a->x, x))
        return false;
    a->scaled = true;
    a->c = k;
    a->cw = w;
    return true;
}

/* A row may be written while another row's y is still to be read. */
bool cuda_join_norm(cuda_device *c, dev_mat h, dev_mat x, const float *w, float eps, dev_quant q)
{
    residual_args a = c->wait.residual;
    if (!c->wait.has_residual || !same(a.x, x) || overlap(h, x) || overlap(h, a.y))
        return false;
    const char *copy = q.bf ? (const char *)q.bf : (const char *)q.q;
    const char *y0 = (const char *)a.y.at;
    const char *y1 = (const char *)(a.y.at + (a.y.rows - 1) * a.y.stride + a.y.cols);
    if (copy && copy < y1 && y0 < copy + (size_t)q.rows * (size_t)q.cols * 2 + 4096)
        return false;
    a.h = h;
    a.hw = w;
    a.h_eps = eps;
    a.q = q;
    c->wait.has_residual = false;
    cuda_settle(c);
    cu_residual(c->stream, a);
    return true;
}

bool cuda_wait_head(cuda_device *c, head_job j, dev_step st)
{
    waiting *w = &c->wait;
    int32_t n = j.x.cols / j.heads;
    if (w->has_residual || w->n_jobs == 2)
        cuda_settle(c);
    if (n % 256 || n > 2048 || j.x.stride % 4 || j.y.stride % 4)
        return false;
    if (w->n_jobs && (overlap(j.y, w->job[0].x) || overlap(j.y, w->job[0].y) ||
                      overlap(j.x, w->job[0].y) || n != w->job[0].x.cols / w->job[0].heads))
        cuda_settle(c);
    w->job[w->n_jobs++] = j;
    w->st = st;
    return true;
}

bool cuda_join_rope(cuda_device *c, dev_mat x, int32_t heads, const float *inv_freq)
{
    waiting *w = &c->wait;
    head_job *j = w->n_jobs ? &w->job[w->n_jobs - 1] : NULL;
    if (!j || j->inv_freq || !same(j->y, x) || j->heads != heads)
        return false;
    j->inv_freq = inv_freq;
    return true;
}

/* The job that waits with m as its result, or a new one that only stores m. */
static bool to_store(waiting *w, dev_mat m, int32_t heads, int32_t store)
{
    for (int i = 0; i < w->n_jobs; i++)
        if (same(w->job[i].y, m) && !w->job[i].store) {
            w->job[i].store = store;
            return true;
        }
    if (w->n_jobs == 2)
        return false;
    w->job[w->n_jobs++] = (head_job){.y = m, .x = m, .heads = heads, .store = store};
    return true;
}

bool cuda_join_store(cuda_device *c, dev_kv kv, dev_mat k, dev_mat v)
{
    waiting *w = &c->wait;
    int known = 0;
    for (int i = 0; i < w->n_jobs; i++)
        known += same(w->job[i].y, k) || same(w->job[i].y, v);
    if (!known || known != w->n_jobs || kv.head_dim % 256 || kv.head_dim > 2048)
        return false;
    if (!to_store(w, k, kv.n_head_kv, 1) || !to_store(w, v, kv.n_head_kv, 2))
        return false;
    launch_heads(c, kv);
    return true;
}
