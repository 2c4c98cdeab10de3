/* check_tensor.c - models split by tensors (--split tensor) over several devices on one GPU: views
 * of weights as they are loaded, products of some outputs of a matrix against those of all and of
 * some inputs in one launch against one each, sums in one kernel against additions of two, and
 * whole models: their logits, and their answers with pictures, drafts and pools, have the same bits
 * on one device, two, three and four.
 */
#include "base/mem.h"
#include "backend/cuda/cuda_int.h"
#include "carat.h"
#include "engine/batch_int.h"
#include "tests/cuda/check_int.h"
#include "tests/fidelity_model.h"
#include "tests/lora_rig.h"
#include "tests/splits_rig.h"
#include "tests/synth_file.h"
#include "tests/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { RANKS = SPLITS_MAX, ROOM = 16 };

/* ---- Views of weights ------------------------------------------------------------------------
 */

/* What a device makes of a view, and of the same bytes without gaps. -1: an error. */
static double differ_packed(rig *g, const weight *view, err *e)
{
    uint64_t row = 0;
    num_row_bytes(view->type, (uint64_t)view->n_in, &row);
    weight w[2] = {*view, *view};
    char *bytes = mem_alloc(view->n_bytes), *at = bytes, *got[2] = {NULL, NULL};
    double differ = -1;
    for (int32_t k = 0; bytes && k < view->n_mat; k++)
        for (int32_t r = 0; r < view->n_out; r++, at += row)
            memcpy(at, weight_row(view, k, r), row);
    w[1].data = bytes;
    w[1].row_bytes = row;
    w[1].mat_bytes = row * (size_t)view->n_out;
    status st = bytes ? OK : err_memory(e, "a check", view->n_bytes);
    for (int i = 0; i < 2 && !st; i++) {
        st = g->gpu->weight_load(g->gpu, &w[i], e);
        if (!st && !(got[i] = mem_alloc(w[i].packed_bytes)))
            st = err_memory(e, "a check", w[i].packed_bytes);
        if (!st)
            g->gpu->download(g->gpu, got[i], w[i].packed, w[i].packed_bytes);
    }
    if (!st)
        differ = w[0].packed_bytes != w[1].packed_bytes ||
                 memcmp(got[0], got[1], w[0].packed_bytes) != 0;
    for (int i = 0; i < 2; i++) {
        g->gpu->weight_free(g->gpu, &w[i]);
        mem_free(got[i]);
    }
    mem_free(bytes);
    return differ;
}

static void check_views(rig *g)
{
    static const num_type types[] = {NUM_F32, NUM_BF16, NUM_Q8_0, NUM_Q4_K, NUM_Q6_K, NUM_Q4_0};
    enum { N_IN = 1024, N_OUT = 70, N_MAT = 3, FIRST = 256, SOME_IN = 512, SOME_OUT = 37 };
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        pair p;
        double bad = 0;
        err e = {0};
        if (!my_turn(g, "tensor") || !pair_make(g, &p, types[i], N_IN, N_OUT, N_MAT, 1, false))
            continue;
        for (int n_mat = 1; n_mat <= N_MAT; n_mat += N_MAT - 1)
            for (int cut = 1; cut < 4; cut++) { /* outputs, inputs, both */
                weight w = p.w[0];
                uint64_t skip = 0, row = 0;
                w.n_mat = n_mat;
                if (cut & 1) {
                    w.data = weight_row(&w, 0, N_OUT - SOME_OUT);
                    w.n_out = SOME_OUT;
                }
                if (cut & 2) {
                    num_row_bytes(w.type, FIRST, &skip);
                    w.data = (const char *)w.data + skip;
                    w.n_in = SOME_IN;
                }
                num_row_bytes(w.type, (uint64_t)w.n_in, &row);
                w.n_bytes = (size_t)row * (size_t)w.n_out * (size_t)w.n_mat;
                bad += differ_packed(g, &w, &e);
            }
        verdict(g, "tensor", text("parts of %s as loaded that differ", num_name(types[i])),
                e.status ? NAN : bad, 0);
        pair_free(g, &p);
    }
}

/* ---- Products of some outputs ----------------------------------------------------------------
 */

/* Outputs of a rank's part, and the same of the whole matrix. So many outputs that the number of
 * warps that share a tile is another one where the part alone counts. */
static void check_parts(rig *g, num_type type, int32_t rows)
{
    enum { N_IN = 2048, N_OUT = 16400, FIRST = 8208, SOME = 8192 };
    pair p;
    chain c;
    both b;
    err e = {0};
    if (!my_turn(g, "tensor") || !pair_make(g, &p, type, N_IN, N_OUT, 1, 0.02, false))
        return;
    weight part = p.w[0];
    part.packed = NULL;
    part.data = weight_row(&part, 0, FIRST);
    part.n_out = SOME;
    part.n_out_all = p.w[1].n_out_all = N_OUT;
    part.n_bytes = part.row_bytes * SOME;
    float *x = draw(g, (size_t)rows * N_IN, 1);
    chain_init(&c, rows, 0, 1);
    both_begin(g, &b, &c.st);
    mat in[2];
    both_mat(g, &b, in, x, rows, 1, N_IN);
    status st = g->gpu->weight_load(g->gpu, &part, &e);
    double differ = NAN;
    if (!st) {
        mat y = op_matmul(&b.gpu, in[1], &p.w[1]), z = op_matmul(&b.gpu, in[1], &part);
        float *whole = gpu_rows(g, y), *some = gpu_rows(g, z);
        differ = pass_failed(&b.gpu);
        for (int32_t r = 0; r < rows; r++)
            differ += memcmp(whole + (size_t)r * N_OUT + FIRST, some + (size_t)r * SOME,
                             SOME * sizeof *some) != 0;
        mem_free(whole);
        mem_free(some);
    }
    verdict(g, "tensor", text("%d rows by some outputs of %s that differ", rows, num_name(type)),
            differ, 0);
    g->gpu->weight_free(g->gpu, &part);
    mem_free(x);
    pair_free(g, &p);
}

/* ---- Sums in order ---------------------------------------------------------------------------
 */

/* n_v matrices into n_y, of which the last lies where a sum's last value is. The reference adds two
 * at a time. */
static void check_ordered_sum(rig *g, int32_t rows, int32_t cols, int32_t n_v, int32_t n_y)
{
    const size_t n = (size_t)rows * (size_t)cols;
    static chain c;
    both b;
    mat v[RANKS][2];
    ordered_sum one = {.n_y = 1, .n_v = n_v}, many = {.n_y = n_y, .n_v = n_v};
    double differ = 0;
    if (!my_turn(g, "tensor sums"))
        return;
    chain_init(&c, rows, 0, 1);
    both_begin(g, &b, &c.st);
    for (int32_t i = 0; i < n_v; i++) {
        float *from = draw(g, n, i == 1 ? 1e6 : 1); /* another order has other bits */
        both_mat(g, &b, v[i], from, rows, 1, cols);
        one.v[i] = v[i][0];
        many.v[i] = v[i][1];
        mem_free(from);
    }
    one.y[0] = pass_mat(&b.ref, rows, 1, cols);
    for (int32_t i = 0; i < n_y; i++)
        many.y[i] = i + 1 < n_y ? pass_mat(&b.gpu, rows, 1, cols) : v[n_v - 1][1];
    op_ordered_sum(&b.ref, &one);
    op_ordered_sum(&b.gpu, &many);
    for (int32_t i = 0; i < n_y; i++) {
        float *got = gpu_rows(g, many.y[i]);
        differ += !got || memcmp(got, one.y[0].at, n * sizeof *got) != 0;
        mem_free(got);
    }
    verdict(g, "tensor sums",
            text("%d rows of %d, %d into %d: those that differ", rows, cols, n_v, n_y),
            pass_failed(&b.ref) || pass_failed(&b.gpu) ? NAN : differ, 0);
}

/* ---- Segments of a rank ----------------------------------------------------------------------
 */

/* Products of columns that follow each other, in one launch, against a launch for each. each:
 * columns of a part; n_tiles: of which it has as many in every tile. */
static void check_segments(rig *g, num_type type, int32_t n, int32_t rows, int32_t each,
                           int32_t n_tiles)
{
    enum { N_OUT = 70 };
    const int32_t n_in = n * each, width = each / n_tiles;
    pair p;
    chain c;
    both b;
    err e = {0};
    weight part[RANKS];
    mat in[2], y[RANKS];
    status st = OK;
    double differ = NAN;
    if (!my_turn(g, "tensor segments") || !pair_make(g, &p, type, n_in, N_OUT, 1, 0.02, false))
        return;
    float *x = draw(g, (size_t)rows * (size_t)n_in, 1);
    chain_init(&c, rows, 0, 1);
    both_begin(g, &b, &c.st);
    both_mat(g, &b, in, x, rows, 1, n_in);
    for (int32_t i = 0; i < n; i++) {
        uint64_t skip = 0, row = 0;
        num_row_bytes(type, (uint64_t)(i * each), &skip);
        num_row_bytes(type, each, &row);
        part[i] = p.w[0];
        part[i].packed = NULL;
        part[i].data = (const char *)p.w[0].data + skip;
        part[i].n_in = each;
        part[i].n_bytes = row * N_OUT;
        st = st ? st : g->gpu->weight_load(g->gpu, &part[i], &e);
        y[i] = pass_mat(&b.gpu, rows, 1, N_OUT);
    }
    if (!st && op_matmul_segments(&b.gpu, y, in[1], part, n, n_tiles)) {
        differ = pass_failed(&b.gpu);
        for (int32_t i = 0; i < n; i++) {
            mat own = pass_mat(&b.gpu, rows, 1, each);
            for (int32_t t = 0; t < n_tiles; t++)
                op_copy(&b.gpu, mat_columns(own, t * width, width),
                        mat_columns(in[1], (t * n + i) * width, width));
            const mat alone = op_matmul(&b.gpu, own, &part[i]);
            float *one = gpu_rows(g, y[i]), *other = gpu_rows(g, alone);
            differ += memcmp(one, other, (size_t)rows * N_OUT * sizeof *one) != 0;
            mem_free(one);
            mem_free(other);
        }
    }
    verdict(g, "tensor segments",
            text("%d parts of %d in %d tiles of %s, %d rows: those that differ", n, each, n_tiles,
                 num_name(type), rows),
            differ, 0);
    for (int32_t i = 0; i < n; i++)
        g->gpu->weight_free(g->gpu, &part[i]);
    mem_free(x);
    pair_free(g, &p);
}

/* ---- Experts of ranks ------------------------------------------------------------------------ */

enum { SEGMENTS = 4, EXPERTS = 16, OF_ROW = 4 };
/* How experts of n_ff hidden units are divided: segment i has the units, or the experts, from at[i]
 * to at[i + 1]. */
typedef struct expert_cut {
    const char *name;
    bool whole;
    int32_t n_ff, at[SEGMENTS + 1];
} expert_cut;

/* The part of w from a to b - 1, loaded: its experts, its rows, or its columns. */
static status load_part(rig *g, const weight *w, bool experts, bool columns, int32_t a, int32_t b,
                        weight *out, err *e)
{
    uint64_t skip = 0, row = 0;
    *out = *w;
    out->packed = NULL;
    if (experts) {
        out->data = weight_row(w, a, 0);
        out->first_mat = a;
        out->n_mat = b - a;
        out->n_mat_all = w->n_mat;
    } else if (columns) {
        num_row_bytes(w->type, (uint64_t)a, &skip);
        out->data = (const char *)w->data + skip;
        out->n_in = b - a;
    } else {
        out->data = weight_row(w, 0, a);
        out->n_out = b - a;
    }
    num_row_bytes(out->type, (uint64_t)out->n_in, &row);
    out->n_bytes = (size_t)row * (size_t)out->n_out * (size_t)out->n_mat;
    return g->gpu->weight_load(g->gpu, out, e);
}

/* What the segments of a rank of n give, into out: [SEGMENTS][rows][n_out]. w: gate, up, down. */
static status rank_experts(rig *g, pass *p, const expert_cut *c, const weight *w, mat x, routing r,
                           int32_t rank, int32_t n, float **out, err *e)
{
    const int32_t from = rank * SEGMENTS / n, to = (rank + 1) * SEGMENTS / n, some = to - from;
    weight gate, up, down[SEGMENTS];
    mat y[SEGMENTS];
    status st = load_part(g, &w[0], c->whole, false, c->at[from], c->at[to], &gate, e);
    st = st ? st : load_part(g, &w[1], c->whole, false, c->at[from], c->at[to], &up, e);
    for (int32_t i = 0; i < some && !st; i++)
        st = load_part(g, &w[2], c->whole, true, c->at[from + i], c->at[from + i + 1], &down[i], e);
    if (st)
        return st;
    mat h = op_moe_glu(p, x, &r, &gate, &up, ACT_GELU_TANH);
    for (int32_t i = 0; i < some; i++)
        y[i] = pass_mat(p, x.rows, 1, down[i].n_out);
    if (!op_moe_down_segments(p, y, h, r, down, some))
        for (int32_t i = 0, at = 0; i < some; at += down[i++].n_in) {
            mat in = h;
            if (!c->whole) {
                in = pass_mat(p, x.rows, OF_ROW, down[i].n_in);
                op_copy(p, mat_head_rows(in), mat_columns(mat_head_rows(h), at, down[i].n_in));
            }
            y[i] = op_moe_down(p, in, r, &down[i]);
        }
    for (int32_t i = 0; i < some; i++) {
        out[from + i] = gpu_rows(g, y[i]);
        g->gpu->weight_free(g->gpu, &down[i]);
    }
    g->gpu->weight_free(g->gpu, &gate);
    g->gpu->weight_free(g->gpu, &up);
    return p->e.status;
}

/* The segments' sums have the same bits on one rank, two and four, and they add up to those of all
 * experts. */
static void check_rank_experts(rig *g, const expert_cut *c, num_type tg, num_type td, int32_t rows,
                               bool prompt)
{
    enum { N_IN = 256, N_OUT = 72 };
    static chain steps;
    pair gate, up, down;
    both b;
    mat x[2], z[2];
    err e = {0};
    if (!my_turn(g, "tensor experts") ||
        !pair_make(g, &gate, tg, N_IN, c->n_ff, EXPERTS, 0.05, false) ||
        !pair_make(g, &up, tg, N_IN, c->n_ff, EXPERTS, 0.05, false) ||
        !pair_make(g, &down, td, c->n_ff, N_OUT, EXPERTS, 0.05, false))
        return;
    const weight w[3] = {gate.w[1], up.w[1], down.w[1]};
    const size_t n = (size_t)rows * N_OUT;
    float *v = draw(g, (size_t)rows * N_IN, 1), *l = draw(g, (size_t)rows * EXPERTS, 2);
    float *one[SEGMENTS] = {NULL}, *all = mem_calloc(n, sizeof *all);
    double differ = 0, missing = NAN;
    few_rows(prompt ? 0 : FEW_ROWS);
    chain_init(&steps, rows, 0, 1);
    both_begin(g, &b, &steps.st);
    both_mat(g, &b, x, v, rows, 1, N_IN);
    both_mat(g, &b, z, l, rows, 1, EXPERTS);
    routing rr = op_route(&b.ref, z[0], OF_ROW, NULL), rg = op_route(&b.gpu, z[1], OF_ROW, NULL);
    for (int32_t ranks = 1; ranks <= SEGMENTS && !e.status; ranks *= 2) {
        float *got[SEGMENTS] = {NULL};
        for (int32_t r = 0; r < ranks && !e.status; r++)
            rank_experts(g, &b.gpu, c, w, x[1], rg, r, ranks, got, &e);
        for (int32_t i = 0; i < SEGMENTS; i++) {
            if (ranks == 1)
                one[i] = got[i];
            else if (got[i] && one[i])
                differ += memcmp(got[i], one[i], n * sizeof **got) != 0;
            if (ranks > 1)
                mem_free(got[i]);
        }
    }
    mat h = op_moe_glu(&b.ref, x[0], &rr, &gate.w[0], &up.w[0], ACT_GELU_TANH);
    mat y = op_moe_down(&b.ref, h, rr, &down.w[0]);
    for (size_t i = 0; i < n && !e.status; i++)
        all[i] = (one[0][i] + one[1][i]) + (one[2][i] + one[3][i]);
    if (!e.status && !pass_failed(&b.ref))
        missing = splits_distance(y.at, all, n);
    verdict(g, "tensor experts",
            text("%s of %s, %s, %d rows%s: parts that differ", c->name, num_name(tg), num_name(td),
                 rows, prompt ? " of a prompt" : ""),
            e.status ? NAN : differ, 0);
    verdict(g, "tensor experts", text("%s, %d rows: their sum", c->name, rows), missing, 0.05);
    few_rows(RIG_FEW);
    for (int32_t i = 0; i < SEGMENTS; i++)
        mem_free(one[i]);
    mem_free(all);
    mem_free(v);
    mem_free(l);
    pair_free(g, &gate);
    pair_free(g, &up);
    pair_free(g, &down);
}

static void check_all_rank_experts(rig *g)
{
    static const expert_cut cuts[] = {
        {"experts cut unevenly", false, 320, {0, 96, 192, 256, 320}},
        {"whole experts", true, 256, {0, 4, 8, 12, 16}},
        {"whole experts, unevenly", true, 64, {0, 5, 9, 13, 16}},
    };
    static const int32_t rows[] = {1, 3, 40};
    for (size_t c = 0; c < sizeof cuts / sizeof *cuts; c++)
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
            check_rank_experts(g, &cuts[c], NUM_Q4_K, c ? NUM_Q8_0 : NUM_Q5_0, rows[i], false);
    check_rank_experts(g, &cuts[0], NUM_Q4_K, NUM_Q5_0, 40, true);
    check_rank_experts(g, &cuts[1], NUM_Q4_K, NUM_Q4_K, 40, true);
    check_rank_experts(g, &cuts[1], NUM_Q6_K, NUM_Q6_K, 1, false);
    check_rank_experts(g, &cuts[1], NUM_F32, NUM_BF16, 3, false);
}

/* ---- Whole models ----------------------------------------------------------------------------
 */

/* A model, its prompt, and how its sessions keep keys. */
typedef struct tensor_case {
    const char *name, *path, *kv;
    const char *adapter; /* a file; NULL: none */
    const int32_t *ids;
    int32_t n, n_vocab, chunk;
    double near; /* how far the sums of segments may be from those of whole rows */
} tensor_case;

/* Of the first rank, which records for all. */
static int recorded(const carat_model *m)
{
    const cuda_device *c = m->dev->self;
    int n = 0;
    for (int i = 0; i < GRAPHS; i++)
        n += c->graphs[i].exec != NULL;
    return n;
}

/* Logits behind the prompt, whose last tokens come one by one, so that passes are run plainly,
 * recorded and replayed. [STEPS + 1][n_vocab] */
enum { STEPS = 6 };
static status evaluate(carat_model *m, const tensor_case *t, float *logits, int *n_recorded, err *e)
{
    const carat_session_options so = {
        .n_ctx = t->n + ROOM, .chunk = t->chunk, .kv_k = t->kv, .checkpoint_mb = -1};
    carat_session *s = NULL;
    status st = carat_session_open(m, &so, &s, e);
    st = st ? st : carat_eval(s, t->ids, t->n - STEPS, logits, NULL, e);
    for (int32_t i = 1; i <= STEPS && !st; i++)
        st = carat_append(s, t->ids + t->n - STEPS + i - 1, 1, false,
                          logits + (size_t)i * (size_t)t->n_vocab, e);
    *n_recorded = recorded(m);
    carat_session_close(s);
    return st;
}

/* n_ranks 0: the model is not split. */
static split_place on_gpu(int32_t n_ranks)
{
    return (split_place){.split = n_ranks ? "tensor" : NULL, .n = n_ranks, .gpu = true};
}

static status evaluate_on(const tensor_case *t, int32_t n_ranks, float *logits, int *n_recorded,
                          err *e)
{
    const carat_lora l = {t->adapter, 0.75f};
    const carat_model_options o = {.loras = t->adapter ? &l : NULL, .n_loras = t->adapter != NULL};
    carat_model *m = NULL;
    status st = splits_open(t->path, o, on_gpu(n_ranks), &m, e);
    st = st ? st : evaluate(m, t, logits, n_recorded, e);
    carat_model_close(m);
    return st;
}

/* Logits on one device, and on first to last ranks; 0: of the model that is not split, whose sums
 * of rows are others. */
static status check_ranks(rig *g, const tensor_case *t, int32_t first, int32_t last, err *e)
{
    size_t n = (size_t)t->n_vocab * (STEPS + 1), row = (size_t)t->n_vocab * sizeof(float);
    float *one = mem_alloc(2 * n * sizeof *one), *more = one + n;
    int n_recorded = 0;
    status st = one ? OK : err_memory(e, "a check", 2 * n * sizeof *one);
    st = st ? st : evaluate_on(t, 1, one, &n_recorded, e);
    for (int32_t r = first; r <= last && !st; r++) {
        int differ = 0;
        memset(more, 0, n * sizeof *more);
        if (r == 1 || (st = evaluate_on(t, r, more, &n_recorded, e)))
            continue;
        for (size_t i = 0; i <= STEPS; i++)
            differ += memcmp(one + i * (size_t)t->n_vocab, more + i * (size_t)t->n_vocab, row) != 0;
        if (r)
            verdict(g, "tensor",
                    text("%s, %s keys, %d devices: passes that differ", t->name, t->kv, r), differ,
                    0);
        else
            verdict(g, "tensor", text("%s, %s keys: sums of segments", t->name, t->kv),
                    splits_distance(more, one, n), t->near);
        if (r)
            verdict(g, "tensor", text("%s, %d devices: no pass is recorded", t->name, r),
                    n_recorded == 0, 0);
    }
    mem_free(one);
    return st;
}

/* Every row of a mixture uses all experts. Sums of segments differ from those of whole rows in last
 * bits. With a choice of experts such a bit can change it, and then everything; so the two are
 * compared where there is none. */
static status use_all_experts(const char *path, int32_t n_experts, err *e)
{
    static const char key[] = "expert_used_count";
    enum { HEAD = 1 << 14, BEHIND = 4 /* the value's type */ };
    char head[HEAD];
    FILE *f = fopen(path, "r+b");
    size_t at = 0, n = f ? fread(head, 1, HEAD, f) : 0, key_n = sizeof key - 1;
    while (at + key_n + BEHIND < n && memcmp(head + at, key, key_n))
        at++;
    const bool found = at + key_n + BEHIND < n;
    const uint32_t value = (uint32_t)n_experts;
    const bool done = found && !fseek(f, (long)(at + key_n + BEHIND), SEEK_SET) &&
                      fwrite(&value, sizeof value, 1, f) == 1;
    if (f && fclose(f))
        return err_set(e, E_IO, "%s: not written", path);
    return done ? OK : err_set(e, E_IO, "%s: %s is not there", path, key);
}

/* Of the golden models those with keys that layers share, windows and one KV head: their prompts go
 * past the window and round the ring. */
static void check_golden(rig *g, const char *name, const char *kv)
{
    fidelity f;
    err e = {0};
    if (!my_turn(g, "tensor"))
        return;
    fidelity_open(&f, name);
    const char *path = fidelity_write(&f, NULL);
    const tensor_case t = {.name = name,
                           .path = path,
                           .kv = kv,
                           .ids = f.tokens,
                           .n = f.n_tokens,
                           .n_vocab = f.n_vocab,
                           .chunk = 16,
                           .near = 0.02};
    if (check_ranks(g, &t, 0, RANKS, &e))
        failed(g, "tensor", e.text);
    unlink(path);
    fidelity_close(&f);
}

/* Rows of a pass of the prompt. More than RANK_SUM_ROWS are added up by slices, here of unlike
 * sizes for any number of ranks. */
enum { CHUNK_ROWS = 24, CHUNK_MANY = 71 };

/* adapter: of the same size; NULL: none. */
static void check_with(rig *g, const char *size, const char *type, const char *kv, double near,
                       const char *adapter, int32_t chunk)
{
    enum { N_MAX = CHUNK_MANY + STEPS };
    const int32_t n = chunk == CHUNK_MANY ? N_MAX : 70;
    int32_t ids[N_MAX], n_experts = 0;
    char name[64];
    err e = {0};
    carat_model *m = NULL;
    const char *path = synth_file(size, type, NULL, NULL);
    status st = carat_model_open(path, &(carat_model_options){.vocab_only = true}, &m, &e);
    const int32_t n_vocab = st ? 1 : m->core.n_vocab;
    if (!st && m->core.n_expert_layers)
        n_experts = m->core.experts[0].n_experts;
    for (int32_t i = 0; i < n; i++)
        ids[i] = (7 + 31 * i + i * i) % n_vocab;
    carat_model_close(m);
    snprintf(name, sizeof name, "%s of %s%s%s", size, type, adapter ? " with an adapter" : "",
             chunk == CHUNK_MANY ? ", many rows" : "");
    const tensor_case t = {.name = name,
                           .path = path,
                           .kv = kv,
                           .adapter = adapter,
                           .ids = ids,
                           .n = n,
                           .n_vocab = n_vocab,
                           .chunk = chunk,
                           .near = near};
    st = st ? st : check_ranks(g, &t, n_experts ? 2 : 0, RANKS, &e);
    st = !st && n_experts ? use_all_experts(path, n_experts, &e) : st;
    if (st || (n_experts && check_ranks(g, &t, 0, 0, &e)))
        failed(g, "tensor", e.text);
    unlink(path);
}

static void check_made(rig *g, const char *size, const char *type, const char *kv, double near)
{
    if (my_turn(g, "tensor"))
        check_with(g, size, type, kv, near, NULL, CHUNK_ROWS);
}

static void check_many(rig *g, const char *size, const char *type, double near)
{
    if (my_turn(g, "tensor prompts"))
        check_with(g, size, type, "f16", near, NULL, CHUNK_MANY);
}

/* Adapters are made for matrices of floats, and fit the same ones in blocks. */
static void check_adapted(rig *g, const char *size, const char *type, double near)
{
    if (!my_turn(g, "tensor"))
        return;
    const char *base = synth_file(size, "f32", NULL, NULL);
    const char *adapter = test_temp("tensor-adapter.gguf");
    lora_rig_adapter(base, adapter, &(lora_recipe){.rank = 4, .alpha = 8, .seed = 5});
    check_with(g, size, type, "f16", near, adapter, CHUNK_ROWS);
    unlink(base);
    unlink(adapter);
}

/* ---- Answers ---------------------------------------------------------------------------------
 */

static status answer_on(const split_jobs *j, const char *path, carat_model_options o, int32_t n,
                        split_said *out, err *e)
{
    carat_model *m = NULL;
    status st = splits_open(path, o, on_gpu(n), &m, e);
    st = st ? st : splits_answer(m, j, out, e);
    carat_model_close(m);
    return st;
}

/* Several side by side, greedy and sampled; with a drafter those without it. */
static void check_answers(rig *g, const split_case *c)
{
    split_jobs j = c->jobs;
    if (g->quick) /* the emulator takes seconds for a row */
        j.n = j.n_slots = 2, j.n_tokens = 4, j.longest = 20;
    const int32_t n = j.n;
    carat_model_options o;
    const char *path = split_case_write(c, &o), *draft = o.draft;
    split_said *one = mem_calloc((size_t)(2 * n), sizeof *one), *more = one + n;
    err e = {0};
    status st = one ? OK : err_memory(&e, "a check", (size_t)(2 * n) * sizeof *one);
    o.draft = NULL;
    st = st ? st : answer_on(&j, path, o, 1, one, &e);
    o.draft = draft;
    for (int32_t r = draft ? 1 : 2; r <= (g->quick ? 2 : RANKS) && !st; r++) {
        if ((st = answer_on(&j, path, o, r, more, &e)))
            break;
        verdict(g, "tensor answers", text("%s, %d devices: the first that differs", c->name, r),
                1 + splits_differ(one, more, n), 0);
        if (draft)
            verdict(g, "tensor answers", text("%s, %d devices: nothing is drafted", c->name, r),
                    splits_drafted(more, n) == 0, 0);
    }
    if (st)
        failed(g, "tensor answers", e.text);
    mem_free(one);
}

/* A prompt goes round the ring of a window, and its last chunk is shorter than the window. */
static void check_rings(rig *g)
{
    enum { CHUNK = 24, TURNS = 3, REST = 5, N = TURNS * CHUNK + REST + STEPS };
    int32_t ids[N];
    carat_model *m = NULL;
    carat_session *s = NULL;
    err e = {0};
    if (!my_turn(g, "tensor answers"))
        return;
    const char *path = synth_file("tiny-gemma3", "f32", NULL, NULL);
    tensor_case t = {.name = "rings", .path = path, .kv = "q8_0", .ids = ids, .n = N};
    t.chunk = CHUNK;
    t.near = 0.25;
    status st = splits_open(path, (carat_model_options){0}, on_gpu(2), &m, &e);
    const carat_session_options so = {.n_ctx = N + ROOM, .chunk = CHUNK, .checkpoint_mb = -1};
    if (st || (st = carat_session_open(m, &so, &s, &e))) {
        failed(g, "tensor answers", e.text);
    } else {
        int n_rings = 0;
        t.n_vocab = m->core.n_vocab;
        for (int32_t i = 0; i < m->core.n_kv; i++) {
            const kv_view *v = &s->b.slot->t.kv.layout->view[i];
            n_rings += v->window > REST && v->n_slots && v->n_slots < N - STEPS;
        }
        verdict(g, "tensor answers", "rings that are gone round", n_rings > 0 ? 0 : 1, 0);
    }
    carat_session_close(s);
    carat_model_close(m);
    for (int32_t i = 0; i < N; i++)
        ids[i] = (7 + 31 * i + i * i) % 512;
    if (!st && check_ranks(g, &t, 0, g->quick ? 2 : RANKS, &e))
        failed(g, "tensor answers", e.text);
    unlink(path);
}

void check_tensor(rig *g)
{
    static const int32_t rows[] = {1, 3, 20};
    static const int32_t shape[][2] = {{1, 4}, {5, 96}, {71, 70}, {128, 2816}};
    check_views(g);
    for (int32_t n_v = 2; n_v <= RANKS; n_v++)
        for (int32_t n_y = 1; n_y <= RANKS; n_y++)
            check_ordered_sum(g, shape[n_y - 1][0], shape[n_y - 1][1], n_v, n_y);
    for (int i = 0; i < (g->quick ? 0 : 3); i++) /* so many outputs take the emulator minutes */
        check_parts(g, i == 1 ? NUM_Q8_0 : NUM_Q4_K, rows[i]);
    for (int i = 0; i < 3; i++) {
        check_segments(g, NUM_Q4_K, 2, rows[i], 768, 1);
        check_segments(g, NUM_Q6_K, 4, rows[i], 768, 1);
        check_segments(g, NUM_Q8_0, 3, rows[i], 768, 1);
        check_segments(g, NUM_Q5_0, 2, rows[i], 544, 1); /* parts end within a unit */
        check_segments(g, NUM_Q4_K, 2, rows[i], 1024, 2);
        check_segments(g, NUM_Q8_0, 4, rows[i], 768, 3);
    }
    check_all_rank_experts(g);
    check_golden(g, "e2b", "f16");
    check_golden(g, "unified", "f16");
    check_golden(g, "qwen3", "q8_0");
    check_made(g, "tiny-qwen35-keys", "f32", "f16", 0.02);
    check_made(g, "tiny-qwen35moe-keys", "f32", "f16", 0.02);
    check_made(g, "tiny-dense", "q8_0", "q4_0", 0.25);
    check_made(g, "tiny-moe", "f32", "f16", 0.02);
    check_made(g, "tiny-all", "f32", "f16", 0.02);
    check_made(g, "tiny-gpt-oss", "f32", "f16", 0.02);
    check_made(g, "tiny-qwen3moe", "q8_0", "f16", 0.25); /* experts whole */
    check_made(g, "tiny-qwen35moe-keys", "q8_0", "f16", 0.25);
    check_made(g, "tiny-gpt-oss", "mxfp4", "f16", 0.25);
    check_adapted(g, "tiny-qwen3", "q8_0", 0.25);
    check_many(g, "tiny-dense", "q8_0", 0.25);
    if (!g->quick) /* takes the emulator minutes */
        check_many(g, "tiny-moe", "f32", 0.02);
    check_rings(g);
    for (int i = 0; i < SPLIT_CASES; i++) {
        const split_case *c = &split_cases[i];
        if (my_turn(g, "tensor answers") && (!g->quick || (c->size && c->jobs.longest < 100)))
            check_answers(g, c); /* the others take the emulator minutes */
    }
    setenv("CARAT_PEERS", "off", 1); /* inboxes of the host, and copies in the place of reading */
    check_made(g, "tiny-llama3", "bf16", "f32", 0.05);
    check_many(g, "tiny-dense", "q8_0", 0.25);
    unsetenv("CARAT_PEERS");
}
