/* check_attend.c - attention on the CUDA device, and the bytes it stores, in every cache format,
 * against backend/cpu/ref.c; and rows in a pass against the same rows alone.
 *
 * Bounds are normalised mean square errors: 1e-10 for sums in f32; 2e-6 where queries, keys and
 * probabilities are f16 (a few times the square of 2^-11 / sqrt(3)).
 */
#include "tests/cuda/check_attend.h"
#include "tests/cuda/check_keys.h"
#include "tests/cuda/check_pages.h"
#include "backend/cuda/cuda_int.h"
#include "backend/sparse.h"
#include "base/mem.h"
#include "kv/kv.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* The rows that op_kv_store wrote have equal bytes on both devices. */
static void check_stored(rig *g, const attend_case *a, const kv_view *v, kv_base base[2][2],
                         const chain *c)
{
    int32_t differ = 0;
    for (int32_t i = 0; i < a->rows; i++)
        for (int32_t h = 0; h < a->n_head_kv; h++)
            for (int kv = 0; kv < (v->single ? 1 : 2); kv++) {
                uint8_t got[4096];
                size_t n = kv ? v->v_row_bytes : v->k_row_bytes;
                kv_base ref = base[0][c->seq[i]], gpu = base[1][c->seq[i]];
                g->gpu->download(g->gpu, got, stored_at(v, gpu, kv, h, c->index[i]), n);
                differ += memcmp(got, stored_at(v, ref, kv, h, c->index[i]), n) != 0;
            }
    verdict(g, "attend stored", text("%d rows, heads that differ in a byte", a->rows), differ, 0);
}

/* Queries for rotated keys: rotated by the kernel that norms them, or by a separate kernel. */
static void check_rotation(rig *g, pass *p, mat x, const kv_view *view)
{
    float *got[2], one;
    size_t n = (size_t)x.rows * (size_t)x.heads * (size_t)x.cols;
    for (int i = 0; i < 2; i++) {
        mat q = pass_mat(p, x.rows, x.heads, x.cols);
        g->gpu->upload(g->gpu, q.at, x.at, n * sizeof(float));
        q = op_rms_norm_inplace(p, q, NULL, 1e-6f);
        if (i) /* launches the norm, so the rotation cannot join it */
            g->gpu->download(g->gpu, &one, q.at, sizeof one);
        got[i] = gpu_rows(g, op_attend(p, q, view, 0.1f));
    }
    int32_t differ = 0;
    for (size_t i = 0; i < n; i++)
        differ += memcmp(got[0] + i, got[1] + i, sizeof(float)) != 0;
    verdict(g, "attend rotation", "joined and not, elements that differ", differ, 0);
    mem_free(got[0]);
    mem_free(got[1]);
}

/* Row i of a tree follows this row: threes of siblings, so that a path has a third of the rows. */
static int32_t tree_parent(int32_t i)
{
    return i ? (i < 3 ? 0 : i - 1 - i % 3) : -1;
}

/* What op_attend gave for a tree: `got`, for queries and values x and keys k. */
typedef struct tree_rows {
    const attend_case *a;
    const step *st;
    const kv_view *view;
    const float *x, *k, *got;
    float scale;
} tree_rows;

/* The path to row r, as a chain of its own after the same committed keys: rows that differ in a
 * bit. Its keys take the places of the tree's. */
static int32_t path_differs(rig *g, const tree_rows *t, int32_t r)
{
    static chain c;
    const attend_case *a = t->a;
    int32_t path[STEP_TREE_ROWS_MAX], n = 0, differ = 0, seq = t->st->all.seq[r], r0 = r;
    size_t q_width = (size_t)a->n_head * (size_t)a->d, width = (size_t)a->n_head_kv * (size_t)a->d;
    pass p;
    while (r0 > 0 && t->st->all.seq[r0 - 1] == seq)
        r0--;
    for (int32_t i = r - r0; i >= 0; i = tree_parent(i))
        n++;
    for (int32_t i = r - r0, at = n; i >= 0; i = tree_parent(i))
        path[--at] = r0 + i;
    chain_init(&c, n, rows_keys(&t->st->all, t->view)->first[r], 0);
    c.st.prompt = false;
    c.st.n_seqs = t->st->n_seqs;
    c.st.kv = t->st->kv;
    c.st.sparse = t->st->sparse;
    for (int32_t i = 0; i < n; i++)
        c.seq[i] = seq;
    pass_begin(&p, g->gpu, &c.st, g->gpu_scratch, g->scratch_bytes);
    mat q = pass_mat(&p, n, a->n_head, a->d), k = pass_mat(&p, n, a->n_head_kv, a->d);
    mat v = pass_mat(&p, n, a->n_head_kv, a->d);
    for (int32_t i = 0; i < n; i++) {
        size_t from = (size_t)path[i], to = (size_t)i;
        g->gpu->upload(g->gpu, q.at + to * q_width, t->x + from * q_width, q_width * 4);
        g->gpu->upload(g->gpu, k.at + to * width, t->k + from * width, width * 4);
        g->gpu->upload(g->gpu, v.at + to * width, t->x + from * width, width * 4);
    }
    op_kv_store(&p, t->view, k, v);
    float *got = gpu_rows(g, op_attend(&p, q, t->view, t->scale));
    for (int32_t i = 0; i < n; i++)
        differ +=
            memcmp(got + (size_t)i * q_width, t->got + (size_t)path[i] * q_width, q_width * 4) != 0;
    mem_free(got);
    if (pass_failed(&p))
        failed(g, "attend twins", p.e.text);
    return differ;
}

/* Rows of a tree give the bits of chains. */
static void check_twins(rig *g, const tree_rows *t)
{
    int32_t n = t->a->rows, differ = 0;
    for (int32_t r = n - 1; r >= 0; r -= n / 3 + 1)
        differ += path_differs(g, t, r);
    verdict(g, "attend twins", text("a tree of %d, rows that differ from a chain's", n), differ, 0);
}

/* The bits of a linear store do not depend on its pages: by the kernels for it, by those of other
 * GPUs, and in the shortest slices. */
static void check_paged(rig *g, placed *t, const char *shape)
{
    cuda_device *gpu = g->gpu->self;
    attend_path path = cuda_attend_path(gpu, t->gpu, false);
    bool usual = gpu->hopper;
    size_t slice = gpu->slice_bytes;
    char with[160];
    check_placement(g, t, shape);
    t->got = NULL;
    if (t->st->prompt && path == ATTEND_SLICES) {
        gpu->slice_bytes = 1;
        snprintf(with, sizeof with, "%s slices", shape);
        check_placement(g, t, with);
        gpu->slice_bytes = slice;
    }
    if (t->st->prompt && path >= ATTEND_WGMMA && !t->st->sparse) {
        gpu->hopper = false;
        snprintf(with, sizeof with, "%s flash", shape);
        check_placement(g, t, with);
        gpu->hopper = usual;
    }
}

/* What the reference and the device have left out, of all checks of a pass. */
typedef struct left_out {
    sparse_tally tally[2];  /* the reference's, the device's */
    sparse_rule rule[2][2]; /* [reference, device][sequence] */
} left_out;

static void rules_init(left_out *o, const attend_case *a, rig *g, const kv_view *view, bool prompt)
{
    *o = (left_out){0};
    for (int side = 0; side < 2; side++)
        for (int i = 0; i < 2; i++) {
            o->rule[side][i] = (sparse_rule){.skip = a->skip,
                                             .alpha = a->alpha,
                                             .n_prompt = a->n_prompt ? a->n_prompt : 1 << 20,
                                             .tally = &o->tally[side]};
            /* The reference does what the device is to do; some checks give it the device's. */
            g->gpu->narrow_sparse(g->gpu, view, prompt, &o->rule[side][i]);
        }
}

/* Tiles that both keep, but for scores near the limit; certificates: those of answers are exact,
 * the reference's are bounds. A limit that no tile is under gives the bits of exact attention; in
 * answers a scale of 0. */
static void check_left_out(rig *g, left_out *o, both *b, mat q, const kv_view *view, step *st,
                           float scale, const char *shape)
{
    bool blocks = o->rule[1][0].alpha > 0;
    const char *name = blocks ? "attend blocks" : "attend sparse";
    sparse_tally *ref = &o->tally[0], *gpu = &o->tally[1];
    float *got[2];
    pass_end(&b->gpu);
    double kept = (double)ref->n_kept, n = (double)ref->n_tiles;
    verdict(g, name, text("%s: tiles", shape), fabs((double)gpu->n_tiles - n), 0);
    verdict(g, name, text("%s: kept of %.0f", shape, n), fabs((double)gpu->n_kept - kept),
            blocks ? 0 : 0.005 * n + 1);
    if ((!o->rule[1][0].alpha || o->rule[1][0].n_prompt == 1 << 20) &&
        o->rule[1][0].skip != ATTEND_NEVER)
        verdict(g, name, text("%s: share kept", shape), kept / n, blocks ? 0.95 : 0.9);
    double p99 = sparse_quantile(ref, 0.99);
    double off = sparse_quantile(gpu, 0.99) - p99;
    verdict(g, name, text("%s: certificates", shape), st->prompt ? fabs(off) : fmax(off, 0),
            0.25 * p99);
    for (int i = 0; i < 2; i++) {
        for (int k = 0; k < 2; k++)
            *(blocks ? &o->rule[1][k].alpha : &o->rule[1][k].skip) = st->prompt ? 1e-37f : 0;
        st->sparse = i ? o->rule[1] : NULL;
        got[i] = gpu_rows(g, op_attend(&b->gpu, q, view, scale));
    }
    size_t n_bytes = (size_t)q.rows * (size_t)mat_width(q) * sizeof(float);
    verdict(g, name, text("%s: nothing dropped, bits that differ", shape),
            memcmp(got[0], got[1], n_bytes) != 0, 0);
    mem_free(got[0]);
    mem_free(got[1]);
}

/* Random committed keys and values; the pass's own stored by op_kv_store; then attention. */
void check_attend(rig *g, const attend_case *a)
{
    static chain c;
    static left_out out;
    kv_layout l;
    kv_cache cache[2][2] = {{{.layout = NULL}}};
    both b;
    mat q[2], k[2], v[2];
    err e = {0};
    cuda_device *cuda = g->gpu->self;
    cuda->skip_least = a->least;
    const char *name = a->label         ? a->label
                       : !cuda->shallow ? "attend tiles"
                       : a->tree        ? "attend tree"
                       : a->all         ? "attend all"
                       : a->skip > 0    ? "attend sparse"
                       : a->alpha > 0   ? "attend blocks"
                       : a->turning     ? "attend one"
                                        : "attend";
    if (!my_turn(g, text("%s %s", name, num_name(a->type))))
        return;
    key_source source = {0};
    if (a->turning && !source_make(g, &source, a->d, a->turning))
        return;
    kv_spec s = {.window = a->window,
                 .n_head_kv = a->n_head_kv,
                 .head_dim = a->d,
                 .wide = a->wide,
                 .k_is_v = a->turning > 0,
                 .k_norm = &source.norm.w[0],
                 .k_rope = &source.on[0]};
    num_type type[2] = {a->type, a->values ? a->values : a->type};
    bool rot[2];
    for (int kv = 0; kv < 2; kv++)
        rot[kv] = type[kv] == NUM_TQ3_0 || (a->rot && num_format_of(type[kv])->block_n > 1);
    kv_want_layout want = {.spec = &s,
                           .n = 1,
                           .choice = {.k = {type[0], rot[0]},
                                      .v = {type[1], rot[1]},
                                      .single = a->turning ? KV_SINGLE_ON : KV_SINGLE_OFF},
                           .n_ctx = a->n_ctx,
                           .rows_max = a->rows,
                           .dev = {g->gpu}};
    static int32_t other[3][ROWS_MAX]; /* numbers of keys in stores of the other kind */
    double key_sigma = a->wide ? 6e4 : 0.3;
    int32_t seqs = a->two_seqs ? 2 : 1, half = a->cut ? a->cut : a->rows / seqs;
    bool sparse = a->skip > 0 || a->alpha > 0;
    if (kv_layout_init(&l, &want, &e)) {
        failed(g, "attend", e.text);
        return;
    }
    kv_view *view = &l.view[0];
    view->inside = a->all ? KV_INSIDE_ALL : KV_INSIDE_CAUSAL;
    kv_view view_gpu = *view;
    if (a->turning)
        view_gpu.k_weight = &source.norm.w[1], view_gpu.k_rope = &source.on[1];
    chain_init(&c, a->rows, a->past, 0);
    size_t n_rows = (size_t)view->n_slots * (size_t)a->n_head_kv, n_elem = n_rows * (size_t)a->d;
    kv_base base[2][2];
    for (int i = 0; i < seqs; i++)
        for (int side = 0; side < 2; side++) {
            device *dev = side ? g->gpu : g->ref;
            if (kv_open(&cache[i][side], dev, &l, &e)) {
                failed(g, "attend", e.text);
                return;
            }
            base[side][i] = cache[i][side].base[0];
            base[side][i].page = NULL; /* in the order of keys; check_pages.c has the others */
        }
    for (int i = 0; i < seqs; i++)
        for (int kv = 0; kv < (a->turning ? 1 : 2); kv++) {
            int32_t planted = a->alpha > 0 && !kv ? SPARSE_TILE * a->d : 0;
            void *enc =
                encoded(g, type[kv], rot[kv], n_elem, kv || a->turning ? 1.0 : key_sigma, planted);
            size_t bytes = n_rows * (kv ? view->v_row_bytes : view->k_row_bytes);
            memcpy(kv ? base[0][i].v : base[0][i].k, enc, bytes);
            g->gpu->upload(g->gpu, kv ? base[1][i].v : base[1][i].k, enc, bytes);
            mem_free(enc);
        }
    for (int32_t i = 0; i < a->rows; i++) {
        c.seq[i] = a->two_seqs && i >= half;
        int32_t in = c.seq[i] ? i - half : i, parent = tree_parent(in);
        c.first[i] = a->past - 3 * c.seq[i];
        c.index[i] = c.first[i] + in;
        c.last[i] = c.first[i] + (!a->two_seqs ? a->rows : c.seq[i] ? a->rows - half : half) - 1;
        other[0][i] = c.index[i] + 1000;
        other[1][i] = c.first[i] + 1000;
        other[2][i] = c.last[i] + 1000;
        c.pos[i] = c.index[i];
        if (a->tree) {
            c.seen[i] = (uint64_t)1 << in | (in ? c.seen[i - in + parent] : 0);
            c.pos[i] = in ? c.pos[i - in + parent] + 1 : c.first[i];
        }
    }
    c.st.n_seqs = seqs;
    c.st.all.keys[!view->kind] = (row_keys){other[0], other[1], other[2]};
    bool prompt = of_prompt(a->rows) && !a->tree; /* trees are of answers */
    c.st.prompt = prompt;
    if (a->tree)
        c.st.all.seen = c.seen;
    float *x = draw(g, (size_t)a->rows * (size_t)a->n_head * (size_t)a->d, 1.0);
    for (size_t i = 0; a->alpha > 0 && i < (size_t)a->rows * (size_t)a->n_head * (size_t)a->d; i++)
        x[i] += point_along(&source, i % (size_t)a->d);
    step sr = c.st, sg = c.st;
    sr.kv = base[0];
    sg.kv = base[1];
    if (sparse) {
        pass_begin(&b.gpu, g->gpu, &sg, g->gpu_scratch, g->scratch_bytes);
        cuda_take_tallies(g->gpu->self, &b.gpu); /* of earlier checks, which did not end passes */
        rules_init(&out, a, g, &view_gpu, prompt);
        sr.sparse = out.rule[0];
        c.st.sparse = sg.sparse = out.rule[1];
    }
    both_begin(g, &b, &sr);
    pass_begin(&b.gpu, g->gpu, &sg, g->gpu_scratch, g->scratch_bytes);
    b.ref.il = b.gpu.il = 0;
    both_mat(g, &b, q, x, a->rows, a->n_head, a->d);
    /* Scores of a standard deviation of 1.5, so that many keys count; or tiles are dropped. */
    float scale = (float)((a->skip > 0 ? 4.5 : 1.5) / (key_sigma * sqrt((double)a->d)));
    float *own = draw(g, (size_t)a->rows * (size_t)a->n_head_kv * (size_t)a->d, key_sigma);
    both_mat(g, &b, k, own, a->rows, a->n_head_kv, a->d);
    both_mat(g, &b, v, x, a->rows, a->n_head_kv, a->d);
    op_kv_store(&b.ref, view, a->turning ? v[0] : k[0], v[0]);
    op_kv_store(&b.gpu, &view_gpu, a->turning ? v[1] : k[1], v[1]);
    mat yr = op_attend(&b.ref, q[0], view, scale), yg = op_attend(&b.gpu, q[1], &view_gpu, scale);
    char format[2][32];
    for (int kv = 0; kv < 2; kv++)
        kv_format_name((kv_format){type[kv], rot[kv]}, format[kv], sizeof format[kv]);
    char shape[128];
    snprintf(shape, sizeof shape, "%s%s%s %d/%dx%d w%d past %d rows %d%s%s%s%s", format[0],
             a->values ? "/" : "", a->values ? format[1] : "", a->n_head, a->n_head_kv, a->d,
             a->window, a->past, a->rows, a->tree ? " tree" : "", a->two_seqs ? " 2 seqs" : "",
             a->all ? " all" : "", a->wide ? " wide" : "");
    bool drops = a->skip > 0 && a->skip != ATTEND_NEVER;
    double bound = a->type == NUM_F32 ? 1e-10 : drops ? 1e-4 : 2e-6;
    if (drops) /* one pair's vote on a tile may differ, within rounding of its limit */
        bound += 0.05 / ((double)a->rows * a->n_head);
    verdict(g, name, shape, both_error(g, &b, yr, yg), bound);
    if (sparse) {
        float *all = gpu_rows(g, yg);
        if (!a->least)
            check_left_out(g, &out, &b, q[1], &view_gpu, &sg, scale, shape);
        yg = pass_mat(&b.gpu, a->rows, a->n_head, a->d);
        g->gpu->upload(g->gpu, yg.at, all, (size_t)a->rows * (size_t)mat_width(yg) * 4);
        mem_free(all);
        rules_init(&out, a, g, &view_gpu, prompt);
        sg.sparse = out.rule[1];
    }
    cuda_device *gpu = g->gpu->self;
    attend_path path = cuda_attend_path(gpu, &view_gpu, false);
    if (prompt && path >= ATTEND_WGMMA && !c.st.sparse) {
        bool usual = gpu->hopper;
        gpu->hopper = false; /* the kernels of other GPUs */
        mat yf = op_attend(&b.gpu, q[1], &view_gpu, scale);
        verdict(g, a->turning ? "attend one flash" : "attend flash", shape,
                both_error(g, &b, yr, yf), 2e-6);
        gpu->hopper = usual;
    }
    if (prompt && path == ATTEND_SLICES) {
        size_t usual = gpu->slice_bytes, key = 4 * (size_t)a->n_head_kv * (size_t)a->d;
        size_t n_bytes = (size_t)a->rows * (size_t)a->n_head * (size_t)a->d * sizeof(float);
        float *whole = gpu_rows(g, yg);
        for (size_t keys = SLICE_KEYS; keys <= 3 * SLICE_KEYS; keys += 2 * SLICE_KEYS) {
            gpu->slice_bytes = keys * key;
            mat ys = op_attend(&b.gpu, q[1], &view_gpu, scale);
            verdict(g, a->turning ? "attend one slices" : "attend slices",
                    text("%s slices of %d", shape, (int)keys), both_error(g, &b, yr, ys), bound);
            float *got = gpu_rows(g, ys);
            verdict(g, "attend slices", text("slices of %d and one: bits that differ", (int)keys),
                    memcmp(got, whole, n_bytes) != 0, 0);
            mem_free(got);
        }
        mem_free(whole);
        gpu->slice_bytes = usual;
    }
    bool paged = view->kind == STORE_LINEAR && !pass_failed(&b.gpu);
    float *result = paged ? gpu_rows(g, yg) : NULL;
    check_stored(g, a, view, base, &c);
    if (view->k_rot && !a->turning && a->d % 256 == 0)
        check_rotation(g, &b.gpu, (mat){x, a->rows, a->n_head, a->d, a->n_head * a->d}, &view_gpu);
    if (a->tree && !pass_failed(&b.gpu)) {
        float *got = gpu_rows(g, yg);
        const tree_rows t = {a, &sg, &view_gpu, x, a->turning ? x : own, got, scale};
        check_twins(g, &t);
        mem_free(got);
    }
    /* A row alone gives the same bits as among others; of a prompt, in passes of 13. */
    if (a->rows > 1 && !a->tree && !a->two_seqs && !a->all && !pass_failed(&b.gpu)) {
        float *all = gpu_rows(g, yg);
        size_t width = (size_t)a->n_head * (size_t)a->d;
        int32_t differ = 0;
        int32_t most = a->alpha > 0 ? SPARSE_TILE : prompt ? 13 : 1;
        for (int32_t r = 0, n; r < a->rows; r += n) {
            step one = sg;
            pass p;
            n = a->alpha > 0 ? SPARSE_TILE - c.index[r] % SPARSE_TILE
                             : most; /* whole query blocks */
            n = a->rows - r < n ? a->rows - r : n;
            one.all.n = n;
            one.all.token += r, one.all.pos += r, one.all.seq += r;
            for (int kind = 0; kind < STORE_KINDS; kind++) {
                row_keys *keys = &one.all.keys[kind];
                keys->index += r, keys->first += r, keys->last = keys->index;
            }
            pass_begin(&p, g->gpu, &one, g->gpu_scratch, g->scratch_bytes);
            mat qq = pass_mat(&p, n, a->n_head, a->d);
            g->gpu->upload(g->gpu, qq.at, x + (size_t)r * width, (size_t)n * width * 4);
            mat y = op_attend(&p, qq, &view_gpu, scale);
            float *got = gpu_rows(g, y);
            differ += memcmp(got, all + (size_t)r * width, (size_t)n * width * 4) != 0;
            mem_free(got);
        }
        verdict(g, "attend alone",
                text("%d rows, %d at a time: passes that differ", a->rows, (int)most), differ, 0);
        mem_free(all);
    }
    if (paged) {
        placed t = {.st = &c.st,
                    .ref = view,
                    .gpu = &view_gpu,
                    .base = base[0],
                    .q = x,
                    .k = a->turning ? x : own,
                    .v = x,
                    .n_head = a->n_head,
                    .scale = scale,
                    .got = result,
                    .bound = bound};
        check_paged(g, &t, shape);
    }
    mem_free(result);
    mem_free(own);
    mem_free(x);
    for (int i = 0; i < seqs; i++)
        for (int side = 0; side < 2; side++)
            kv_close(&cache[i][side]);
    kv_layout_free(&l);
    source_free(g, &source);
}

/* Every format, in heads with fast kernels and in others; keys and values of different formats;
 * rings past their wrap. */
static void check_formats(rig *g)
{
    static const num_type types[] = {NUM_BF16, NUM_Q8_0, NUM_Q5_1,   NUM_Q5_0,
                                     NUM_Q4_1, NUM_Q4_0, NUM_IQ4_NL, NUM_TQ3_0};
    for (int i = 0; i < 8; i++) {
        num_type t = types[i], other = types[(i + 3) % 8];
        bool rot = t != NUM_BF16;
        check_attend(g, &(attend_case){t, 8, 2, 256, 40, 400, 230, 3, .rot = false});
        check_attend(g, &(attend_case){t, 8, 1, 512, 0, 500, 300, 5, .rot = rot});
        check_attend(g, &(attend_case){t, 16, 1, 512, 0, 200, 120, 2, .rot = rot});
        check_attend(g, &(attend_case){t, 8, 4, 512, 70, 400, 230, 3, .rot = rot});
        check_attend(g, &(attend_case){t, 8, 4, 512, 0, 800, 750, 2, .rot = rot});
        check_attend(g, &(attend_case){t, 16, 4, 256, 0, 800, 750, 5, .rot = rot});
        check_attend(g, &(attend_case){t, 4, 2, 128, 60, 300, 150, 2, .rot = rot});
        check_attend(g, &(attend_case){t, 4, 2, 128, 0, 300, 140, 35, .values = NUM_F16});
        check_attend(g, &(attend_case){NUM_F16, 4, 2, 128, 0, 300, 140, 4, .values = t});
        if (t != NUM_TQ3_0) {
            check_attend(g, &(attend_case){t, 8, 2, 64, 40, 400, 230, 5, .rot = false});
            check_attend(g, &(attend_case){t, 4, 2, 64, 0, 300, 130, 40, .rot = false});
        }
        check_attend(g, &(attend_case){t, 4, 2, 256, 0, 300, 130, 35, .rot = rot});
        check_attend(g, &(attend_case){t, 8, 4, 256, 50, 400, 90, 9, .tree = true});
        check_attend(g, &(attend_case){t, 4, 2, 256, 0, 300, 130, 6, .values = other, .rot = rot});
        check_attend(g, &(attend_case){t, 4, 2, 512, 70, 200, 110, 40, .values = NUM_F16});
        check_attend(g, &(attend_case){NUM_F16, 4, 2, 512, 0, 200, 60, 2, .values = t, .rot = rot});
        if (g->quick)
            continue;
        check_attend(g, &(attend_case){t, 16, 2, 512, 0, 9000, 8000, 2, .rot = rot});
        check_attend(g, &(attend_case){t, 32, 16, 256, 1024, 9000, 8000, 4, .rot = false});
        check_attend(g, &(attend_case){t, 16, 2, 512, 0, 2000, 1000, 40, .rot = rot});
    }
    /* Prompts: windows, rings past their wrap, trees, answers beside them. */
    check_attend(g, &(attend_case){NUM_Q8_0, 4, 2, 256, 100, 700, 600, 70, .tree = false});
    check_attend(g, &(attend_case){NUM_Q4_0, 8, 2, 512, 90, 700, 600, 70, .two_seqs = true});
    check_attend(g,
                 &(attend_case){NUM_Q5_1, 4, 2, 256, 0, 400, 200, 64, .two_seqs = true, .cut = 3});
    check_attend(g,
                 &(attend_case){NUM_F16, 4, 1, 512, 0, 400, 300, 45, .two_seqs = true, .cut = 40});
    check_attend(g,
                 &(attend_case){NUM_TQ3_0, 4, 1, 512, 0, 400, 300, 45, .two_seqs = true, .cut = 5});
    check_attend(g, &(attend_case){NUM_IQ4_NL, 4, 2, 256, 50, 400, 90, 48, .tree = true});
    check_attend(g, &(attend_case){NUM_Q8_0, 2, 1, 512, 0, 900, 800, 100, .values = NUM_F16});
    check_attend(g, &(attend_case){NUM_Q4_0, 8, 4, 512, 0, 16600, 700, 3, .values = NUM_Q8_0});
    check_attend(g, &(attend_case){NUM_F32, 4, 2, 64, 0, 100, 60, 3, .values = NUM_Q8_0});
    /* Chunks longer than a turn of split512.cu's warps. */
    check_attend(g, &(attend_case){NUM_Q8_0, 32, 4, 512, 0, 6000, 5000, 2, .rot = false});
    check_attend(g, &(attend_case){NUM_TQ3_0, 12, 1, 512, 0, 9000, 8500, 1, .rot = true});
    check_attend(g, &(attend_case){NUM_BF16, 4, 2, 256, 0, 200, 120, 3, .wide = true});
    /* Rows that see those after them: in chains, by every kernel; in trees. */
    check_attend(g, &(attend_case){NUM_F16, 8, 2, 256, 60, 400, 230, 16, .all = true});
    check_attend(g, &(attend_case){NUM_F16, 8, 1, 512, 0, 300, 200, 16, .all = true});
    check_attend(g, &(attend_case){NUM_F16, 4, 2, 128, 40, 300, 130, 7, .all = true});
    check_attend(g, &(attend_case){NUM_F32, 4, 2, 64, 16, 200, 90, 9, .all = true});
    check_attend(g, &(attend_case){NUM_F32, 4, 2, 64, 0, 200, 90, 40, .all = true});
    check_attend(g, &(attend_case){NUM_Q8_0, 8, 4, 256, 50, 400, 230, 9, .all = true});
    check_attend(g, &(attend_case){NUM_Q4_0, 8, 1, 512, 0, 400, 230, 5, .all = true});
    check_attend(g, &(attend_case){NUM_F16, 8, 2, 256, 50, 400, 90, 64, .all = true});
    check_attend(g, &(attend_case){NUM_F16, 4, 1, 512, 30, 400, 90, 48, .all = true});
    check_attend(g, &(attend_case){NUM_Q5_0, 4, 1, 512, 0, 400, 90, 48, .all = true});
    check_attend(
        g, &(attend_case){NUM_F16, 8, 2, 256, 50, 400, 230, 40, .two_seqs = true, .all = true});
    check_attend(g, &(attend_case){NUM_F16, 8, 1, 512, 0, 300, 90, 9, .all = true, .turning = 64});
    check_attend(g, &(attend_case){NUM_F16, 4, 1, 512, 0, 300, 90, 40, .all = true, .turning = 64});
    check_attend(g, &(attend_case){NUM_Q8_0, 4, 1, 512, 0, 300, 90, 9, .all = true, .turning = 64});
    check_attend(g, &(attend_case){NUM_Q8_0, 4, 1, 512, 0, 200, 90, 35, .wide = true});
}

/* Keys made of values: in tiles, for heads of which a quarter turns, and by the f32 kernel. */
static void check_one_stream(rig *g)
{
    static const num_type types[] = {NUM_F16,  NUM_BF16, NUM_Q8_0,   NUM_Q5_1, NUM_Q5_0,
                                     NUM_Q4_1, NUM_Q4_0, NUM_IQ4_NL, NUM_TQ3_0};
    for (int i = 0; i < 9; i++) {
        num_type t = types[i];
        check_attend(g, &(attend_case){t, 8, 1, 512, 0, 700, 500, 5, .turning = 64});
        check_attend(g, &(attend_case){t, 8, 2, 512, 0, 200, 110, 40, .turning = 64});
        check_attend(g, &(attend_case){t, 2, 2, 512, 8, 200, 50, 34, .turning = 64});
        check_attend(g,
                     &(attend_case){t, 2, 1, 512, 90, 400, 210, 64, .tree = true, .turning = 64});
        check_attend(g, &(attend_case){t, 8, 2, 256, 70, 400, 230, 3, .turning = 32});
        check_attend(g, &(attend_case){t, 4, 1, 512, 0, 300, 90, 9, .tree = true, .turning = 64});
        if (num_format_of(t)->block_n > 1 && t != NUM_TQ3_0) {
            check_attend(g,
                         &(attend_case){t, 4, 1, 512, 0, 300, 200, 2, .rot = true, .turning = 64});
            check_attend(g,
                         &(attend_case){t, 4, 1, 512, 0, 300, 130, 35, .rot = true, .turning = 64});
        }
        check_attend(g, &(attend_case){t, 4, 2, 128, 0, 200, 120, 3, .turning = 64});
        if (g->quick)
            continue;
        if (i % 3 == 0) /* slow in the reference; large angles do not depend on the format */
            check_attend(g, &(attend_case){t, 8, 1, 512, 0, 140000, 131000, 1, .turning = 64});
        check_attend(g, &(attend_case){t, 32, 4, 512, 0, 3000, 2000, 4, .turning = 64});
        check_attend(g, &(attend_case){t, 16, 1, 512, 0, 2000, 1000, 70, .turning = 64});
    }
    check_attend(g, &(attend_case){NUM_Q8_0, 32, 4, 512, 0, 6000, 5000, 2, .turning = 64});
    check_attend(g, &(attend_case){NUM_Q4_0, 8, 4, 512, 4500, 6000, 5000, 3, .turning = 64});
    check_attend(g, &(attend_case){NUM_F32, 4, 2, 64, 0, 200, 90, 9, .tree = true, .turning = 8});
    check_attend(g, &(attend_case){NUM_F32, 4, 1, 512, 60, 300, 150, 2, .turning = 256});
    check_attend(g, &(attend_case){NUM_F32, 4, 2, 64, 16, 200, 90, 40, .turning = 32});
    check_attend(g, &(attend_case){NUM_TQ3_0, 4, 2, 128, 0, 200, 90, 3, .turning = 16});
    check_attend(
        g, &(attend_case){NUM_F16, 8, 2, 512, 50, 300, 200, 20, .two_seqs = true, .turning = 64});
    check_attend(
        g, &(attend_case){NUM_Q8_0, 8, 2, 256, 50, 300, 200, 40, .two_seqs = true, .turning = 32});
    check_attend(g,
                 &(attend_case){NUM_F16, 8, 1, 512, 0, 300, 100, 60, .tree = true, .turning = 64});
    /* Of f16, beside what the list has: rings past their wrap, two sequences, many tiles. */
    check_attend(
        g, &(attend_case){NUM_F16, 8, 2, 512, 90, 700, 600, 70, .two_seqs = true, .turning = 64});
    check_attend(g, &(attend_case){NUM_F16, 4, 1, 512, 0, 700, 500, 37, .turning = 64});
    check_attend(g, &(attend_case){NUM_F16, 2, 2, 512, 300, 2000, 1500, 100, .turning = 64});
}

/* Tiles of 32 and 64 pairs in f16, and trees in every kernel of few rows: keys of the pass in the
 * middle of a chunk and across two, windows, rings past their wrap, two sequences. */
static void check_shared(rig *g)
{
    cuda_device *gpu = g->gpu->self;
    int32_t shallow = gpu->shallow;
    gpu->shallow = 0; /* short contexts too by split_hopper.cu */
    check_attend(g, &(attend_case){NUM_F16, 8, 1, 512, 0, 1300, 1250, 8, .turning = 64});
    check_attend(g, &(attend_case){NUM_F16, 8, 1, 512, 0, 1300, 1250, 13, .turning = 64});
    check_attend(g, &(attend_case){NUM_F16, 16, 2, 512, 300, 1300, 1250, 4, .turning = 64});
    check_attend(g, &(attend_case){NUM_F16, 8, 1, 512, 0, 1300, 1250, 7, .tree = false});
    check_attend(g, &(attend_case){NUM_F16, 8, 4, 256, 500, 1300, 1250, 17, .tree = false});
    check_attend(g, &(attend_case){NUM_F16, 8, 2, 256, 500, 1300, 1250, 9, .turning = 32});
    check_attend(g,
                 &(attend_case){NUM_F16, 8, 1, 512, 0, 600, 380, 16, .tree = true, .turning = 64});
    check_attend(g, &(attend_case){NUM_F16, 8, 1, 512, 0, 600, 509, 12, .tree = true});
    check_attend(g, &(attend_case){NUM_F16, 8, 4, 256, 500, 1300, 1250, 17, .tree = true});
    /* Rows of both kernels in a pass. */
    gpu->shallow = 295;
    check_attend(g, &(attend_case){NUM_F16, 8, 1, 512, 0, 600, 290, 12, .turning = 64});
    check_attend(g, &(attend_case){NUM_F16, 16, 2, 256, 0, 600, 290, 9, .tree = false});
    check_attend(g, &(attend_case){NUM_F16, 8, 1, 128, 0, 600, 290, 16, .tree = true});
    check_attend(g, &(attend_case){NUM_F16, 8, 2, 512, 0, 600, 297, 18, .two_seqs = true});
    gpu->shallow = shallow;
    check_attend(g, &(attend_case){NUM_F16, 8, 4, 256, 70, 400, 300, 20, .tree = true});
    check_attend(g, &(attend_case){NUM_F16, 8, 4, 256, 70, 90, 60, 22, .tree = true});
    check_attend(
        g, &(attend_case){NUM_F16, 8, 2, 256, 70, 400, 230, 14, .tree = true, .two_seqs = true});
    check_attend(g, &(attend_case){NUM_F16, 4, 2, 128, 40, 300, 150, 16, .tree = true});
    check_attend(g, &(attend_case){NUM_Q8_0, 8, 4, 256, 50, 90, 70, 18, .tree = true});
    check_attend(g, &(attend_case){NUM_Q5_0, 8, 2, 512, 0, 400, 250, 12, .tree = true});
    check_attend(g, &(attend_case){NUM_Q8_0, 8, 1, 512, 0, 400, 250, 12, .tree = true});
    check_attend(g,
                 &(attend_case){NUM_TQ3_0, 8, 1, 512, 0, 400, 250, 12, .rot = true, .tree = true});
    check_attend(g,
                 &(attend_case){NUM_Q4_0, 8, 1, 512, 0, 400, 250, 9, .tree = true, .turning = 64});
    check_attend(g,
                 &(attend_case){NUM_Q5_1, 8, 1, 512, 0, 400, 250, 9, .tree = true, .turning = 64});
}

/* The kernels of a view with such heads are fast ones. */
static void check_speed(rig *g, num_type t, int32_t n_head_kv, int32_t d, int32_t window)
{
    char said[256] = "";
    kv_layout l;
    kv_spec s = {.window = window, .n_head_kv = n_head_kv, .head_dim = d};
    kv_format f = {t, t == NUM_TQ3_0};
    kv_want_layout want = {.spec = &s,
                           .n = 1,
                           .choice = {.k = f, .v = f, .single = KV_SINGLE_OFF},
                           .n_ctx = 100,
                           .rows_max = 64,
                           .dev = {g->gpu}};
    err e = {0};
    if (kv_layout_init(&l, &want, &e)) {
        failed(g, "attend speed", e.text);
        return;
    }
    kernel_speed speed = cuda_attend_kernel(g->gpu, &l.view[0], said, sizeof said);
    verdict(g, "attend speed", text("%s in heads of %d: %.60s", num_name(t), d, said),
            speed != KERNEL_FULL, 0);
    kv_layout_free(&l);
}

/* Heads of 64, 128 and 256 in groups of any size: few rows, prompts, trees, windows of 512. Quick:
 * f16 and one other format, in turn, for each shape. */
static void check_groups(rig *g)
{
    static const int32_t dims[] = {64, 128, 256}, groups[] = {1, 2, 4, 6, 8, 9, 16};
    static const num_type types[] = {NUM_F16,  NUM_BF16, NUM_Q8_0,   NUM_Q5_1, NUM_Q5_0,
                                     NUM_Q4_1, NUM_Q4_0, NUM_IQ4_NL, NUM_TQ3_0};
    enum { DIMS = 3, GROUPS = 7, TYPES = 9 };
    const char *label = "attend groups";
    cuda_device *gpu = g->gpu->self;
    int32_t shallow = gpu->shallow;
    for (int n = 0; n < DIMS * GROUPS * TYPES; n++) {
        int i = n / TYPES % GROUPS, t = n % TYPES;
        int32_t d = dims[n / TYPES / GROUPS], group = groups[i], heads = group < 9 ? 2 : 1;
        num_type type = types[t];
        bool rot = d >= 128 && i % 2;
        if (type == NUM_TQ3_0 && d < 128)
            continue;
        if (g->quick && t && t != 1 + (n / TYPES) % (TYPES - 1))
            continue;
        attend_case few = {type, group * heads, heads, d, 0, 300, 140, 5, .rot = rot};
        attend_case window = {type, group * heads, heads, d, 512, 900, 700, 3, .rot = rot};
        attend_case prompt = {type, group * heads, heads, d, 0, 200, 70, 34, .rot = rot};
        attend_case tree = {type, group * heads, heads, d, 50, 200, 90, 9, .tree = true};
        gpu->shallow = i % 2 ? shallow : 0;
        few.label = window.label = prompt.label = tree.label = label;
        check_attend(g, &few);
        check_attend(g, &window);
        check_attend(g, &prompt);
        check_attend(g, &tree);
        if (my_turn(g, label))
            check_speed(g, type, heads, d, 0);
    }
    gpu->shallow = shallow;
}

void check_attention(rig *g)
{
    static const attend_case cases[] = {
        {NUM_F32, 4, 2, 32, 0, 300, 0, 1, .tree = false},
        {NUM_F32, 4, 1, 64, 8, 64, 37, 7, .tree = false},
        {NUM_F16, 4, 4, 96, 40, 500, 300, 3, .tree = false},
        {NUM_F16, 8, 2, 256, 512, 2000, 1234, 5, .tree = false},
        {NUM_F16, 16, 2, 512, 0, 1500, 1111, 4, .tree = false},
        {NUM_BF16, 16, 1, 512, 0, 700, 600, 2, .tree = false},
        {NUM_F16, 8, 2, 256, 128, 1000, 700, 15, .tree = true},
        {NUM_F32, 4, 2, 64, 16, 200, 90, 9, .tree = true},
        {NUM_F16, 8, 4, 128, 64, 400, 200, 10, .two_seqs = true},
        {NUM_F16, 8, 4, 256, 100, 400, 0, 70, .tree = false},
        {NUM_F16, 8, 1, 512, 0, 400, 250, 40, .tree = false},
        {NUM_F16, 8, 1, 512, 0, 1500, 1000, 37, .tree = false},
        {NUM_F16, 6, 2, 512, 0, 300, 0, 65, .tree = false},
        {NUM_F16, 4, 2, 512, 70, 200, 110, 40, .tree = false},
        {NUM_F16, 2, 2, 512, 8, 90, 50, 34, .tree = false},
        {NUM_F16, 8, 4, 512, 64, 400, 200, 70, .two_seqs = true},
        {NUM_F16, 8, 2, 512, 50, 400, 90, 48, .tree = true},
        {NUM_F16, 4, 2, 64, 0, 300, 150, 40, .tree = false},
        {NUM_F16, 4, 2, 128, 70, 300, 150, 40, .tree = false},
        {NUM_F16, 8, 1, 256, 0, 1500, 1000, 37, .tree = false},
        {NUM_F16, 6, 2, 256, 0, 300, 0, 65, .tree = false},
        {NUM_F16, 2, 2, 256, 8, 90, 50, 34, .tree = false},
        {NUM_F16, 8, 4, 256, 64, 400, 200, 70, .two_seqs = true},
        {NUM_F16, 8, 2, 256, 50, 400, 90, 48, .tree = true},
        {NUM_BF16, 4, 2, 128, 0, 300, 100, 33, .tree = false},
        {NUM_F16, 8, 1, 128, 0, 1500, 1000, 37, .tree = false},
        {NUM_F16, 6, 2, 128, 0, 300, 0, 65, .tree = false},
        {NUM_F16, 2, 2, 128, 8, 90, 50, 34, .tree = false},
        {NUM_F16, 18, 2, 128, 200, 900, 700, 41, .tree = false},
        {NUM_F16, 8, 4, 128, 64, 400, 200, 70, .two_seqs = true},
        {NUM_F32, 4, 2, 32, 8, 100, 20, 50, .tree = false},
        /* Chunks by the dozen and by the hundred, joined by few threads and by many. */
        {NUM_F16, 4, 2, 64, 0, 6000, 5000, 9, .tree = false},
        {NUM_F16, 4, 2, 64, 0, 24000, 21000, 3, .tree = false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_attend(g, &cases[i]);
    check_formats(g);
    check_sparse_attention(g);
    check_one_stream(g);
    check_shared(g);
    check_groups(g);
    few_rows(FEW_ROWS);
    check_attend(g, &(attend_case){NUM_F16, 4, 2, 256, 50, 400, 230, FEW_ROWS, .tree = false});
    check_attend(g, &(attend_case){NUM_Q8_0, 8, 2, 512, 0, 400, 230, 41, .tree = false});
    check_attend(g, &(attend_case){NUM_F32, 4, 2, 32, 8, 200, 20, 50, .tree = false});
    few_rows(RIG_FEW);
    if (!g->quick) {
        check_attend(g, &(attend_case){NUM_F16, 32, 16, 256, 1024, 9000, 8000, 8, .tree = false});
        check_attend(g, &(attend_case){NUM_F16, 32, 4, 512, 0, 32000, 31000, 3, .tree = false});
        check_attend(g, &(attend_case){NUM_F16, 32, 16, 256, 1024, 5000, 3000, 300, .tree = false});
        check_attend(g, &(attend_case){NUM_F16, 16, 2, 512, 0, 5000, 2000, 200, .tree = false});
    }
}
