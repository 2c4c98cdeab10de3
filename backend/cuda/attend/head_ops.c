/* head_ops.c - heads of queries, keys and values on a CUDA device, from products to attention:
 * norm, rotation and store.
 *
 * op_qkv is one launch of heads_kernel (norm.cu): a job each for keys, values and queries. What the
 * kernel does not know (sizes of heads, other rotations, stores of heads without a norm) goes by
 * kernels of its own, with the same bits.
 */
#include "backend/cuda/ops_int.h"

#include <string.h>

typedef struct head_list {
    head_job at[HEAD_JOBS];
    int32_t n;
    dev_kv kv;
    dev_step st;
} head_list;

static void launch(pass *p, head_list *l)
{
    if (l->n)
        cu_heads(cuda_of(p)->stream, l->at, l->n, l->kv, l->st);
    if (l->n)
        cuda_done(p, "qkv");
    l->n = 0;
}

/* The heads of x, normed, to y. x may have the heads as rows. */
static head_job norm_job_of(mat y, mat x, const float *w, float eps)
{
    head_job j = {.y = cuda_mat(y),
                  .x = cuda_mat(x),
                  .heads = y.heads,
                  .x_head = y.cols,
                  .w = w,
                  .eps = eps,
                  .norm = true};
    if (x.rows == y.rows)
        return j;
    j.x_head = (int32_t)x.stride;
    j.x.rows = y.rows;
    j.x.cols = (y.heads - 1) * j.x_head + y.cols;
    j.x.stride = (int64_t)y.heads * j.x_head;
    return j;
}

static bool fits(const head_job *j, int32_t head_dim)
{
    return heads_take(head_dim) && j->x.stride % 4 == 0 && j->y.stride % 4 == 0;
}

bool cuda_heads_fit(mat y, mat x)
{
    const head_job j = norm_job_of(y, x, NULL, 0);
    return fits(&j, y.cols);
}

void cuda_norm_heads(pass *p, mat y, mat x, const float *w, float eps)
{
    const head_job j = norm_job_of(y, x, w, eps);
    cu_heads(cuda_of(p)->stream, &j, 1, (dev_kv){.id = 0}, cuda_step_without_keys(p));
}

/* Adds the norm of the heads of x to the list. NULL: the kernel does not know them, and another has
 * done it. */
static head_job *norm_heads(pass *p, head_list *l, mat y, mat x, const float *w, float eps)
{
    const head_job j = norm_job_of(y, x, w, eps);
    if (fits(&j, y.cols)) {
        l->at[l->n] = j;
        return &l->at[l->n++];
    }
    mat to = x.rows == y.rows ? y : mat_head_rows(y);
    cu_rms_norm(cuda_of(p)->stream, cuda_mat(to), cuda_mat(x), to.heads, w, eps, (dev_quant){0});
    cuda_done(p, "rms_norm");
    return NULL;
}

/* Adds the rotation to a job. False: heads_kernel does not know it, or there is no job. */
static bool rotates(pass *p, head_job *j, const rope *f, int32_t d)
{
    const step_rows *rows = cuda_step_rows(p);
    const bool woven = rope_by_axes(f, p->rows) && f->section[0];
    if (!j || f->interleaved || f->grow != 0 || (f->n_axes && !f->section[0]) ||
        !heads_turn(d, f->n_pairs, rope_factor(f)) || (woven && d >= 256 && 2 * f->n_pairs == d))
        return false;
    j->inv_freq = f->inv_freq;
    j->n_pairs = f->n_pairs;
    j->factor = rope_factor(f);
    if (woven) {
        j->axis = rows->axis[0];
        j->axis_step = rows->rows.n;
        memcpy(j->section, f->section, sizeof j->section);
    }
    return true;
}

/* Keys and values whose jobs, where there are any, are k and v. */
static void store(pass *p, head_list *l, mat keys, mat values, head_job *k, head_job *v)
{
    mat m[2] = {keys, values};
    head_job *job[2] = {k, v};
    if (l->kv.single ? !k : (!k && !v) || !heads_take(keys.cols)) {
        launch(p, l);
        cu_kv_store(cuda_of(p)->stream, l->kv, l->st, cuda_mat(keys), cuda_mat(values));
        cuda_done(p, "kv_store");
        return;
    }
    if (l->kv.single || (k && k->bare.at)) {
        k->store = l->kv.single ? 1 : 3;
        return;
    }
    for (int i = 0; i < 2; i++) {
        if (!job[i]) {
            job[i] = &l->at[l->n++];
            *job[i] = (head_job){
                .y = cuda_mat(m[i]), .x = cuda_mat(m[i]), .heads = m[i].heads, .x_head = m[i].cols};
        }
        job[i]->store = i + 1;
    }
}

/* One stream has the values alone. */
static void store_stream(pass *p, head_list *l, mat v, const qkv *a)
{
    head_job *j = a->v_norm ? norm_heads(p, l, v, v, NULL, a->eps) : NULL;
    store(p, l, v, v, j, j);
}

static void store_two(pass *p, head_list *l, mat v, const qkv *a)
{
    const mat k = a->k;
    const bool of_keys = !a->v.rows;
    const float *w = cuda_vector(p, a->k_norm);
    head_job *kj = NULL, *vj = NULL;
    const head_job as_values = norm_job_of(v, k, NULL, a->eps);
    const bool both = of_keys && a->k_norm && fits(&as_values, k.cols);
    if (of_keys && !both) /* keys without a norm, or heads whose norm is launched at once */
        norm_heads(p, l, v, k, NULL, a->eps);
    if (a->k_norm)
        kj = norm_heads(p, l, k, k, w, a->eps);
    if (both)
        kj->bare = as_values.y;
    if (a->k_rope && !rotates(p, kj, a->k_rope, k.cols)) {
        launch(p, l);
        cuda_rope(p, k, a->k_rope);
        kj = NULL;
    }
    if (!of_keys && a->v_norm)
        vj = norm_heads(p, l, v, a->v, NULL, a->eps);
    store(p, l, k, v, kj, vj);
}

/* The queries; true: they are yet to be rotated. */
static bool queries(pass *p, head_list *l, mat *to, const qkv *a)
{
    const mat q = *to;
    const float *w = cuda_vector(p, a->q_norm);
    head_job *j = a->q_norm ? norm_heads(p, l, q, a->q, w, a->eps) : NULL;
    if (a->q_rope && !rotates(p, j, a->q_rope, q.cols))
        return true;
    if (j && cuda_has_rotated_room(q)) {
        j->rotated = q.copies.at[COPY_ROTATED];
        to->copies.state[COPY_ROTATED] = COPY_LINE;
    }
    return false;
}

void cuda_qkv(pass *p, mat *q, mat v, const qkv *a, const kv_view *kv)
{
    if (q->rows && kv->k_rot && !kv->single)
        cuda_rotated_room(p, q);
    if (p->dry || pass_failed(p) || !p->rows->n || (v.rows && !cuda_stores(p, kv)))
        return;
    head_list l = {.kv = cuda_view_of(p, kv), .st = cuda_step(p, kv)};
    if (pass_failed(p))
        return;
    cuda_select(p->dev);
    if (v.rows && kv->single)
        store_stream(p, &l, v, a);
    else if (v.rows)
        store_two(p, &l, v, a);
    bool late = q->rows && queries(p, &l, q, a);
    launch(p, &l);
    if (late)
        cuda_rope(p, *q, a->q_rope);
}
