/* check_tensor.c - models split by tensors (--split tensor) over several devices on one GPU: views
 * of weights as they are loaded, products of some outputs of a matrix against those of all, and
 * whole models, whose logits have the same bits on one device, two, three and four.
 */
#include "apps/commands.h"
#include "base/mem.h"
#include "backend/cuda/cuda_int.h"
#include "carat.h"
#include "engine/engine_int.h"
#include "tests/cuda/check_int.h"
#include "tests/fidelity_model.h"
#include "tests/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { RANKS = 4, ROOM = 16 };
static const char *const gpus[RANKS] = {"0", "0,0", "0,0,0", "0,0,0,0"};

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
    verdict(g, "tensor",
            text("%d rows by some outputs of %s that differ", rows, num_name(type)), differ, 0);
    g->gpu->weight_free(g->gpu, &part);
    mem_free(x);
    pair_free(g, &p);
}

/* ---- Whole models ----------------------------------------------------------------------------
 */

/* A model, its prompt, and how its sessions keep keys. */
typedef struct tensor_case {
    const char *name, *path, *kv;
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

/* The distance of b from a, by the length of a. */
static double distance(const float *a, const float *b, size_t n)
{
    double d = 0, all = 0;
    for (size_t i = 0; i < n; i++) {
        d += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        all += (double)a[i] * a[i];
    }
    return sqrt(d / all);
}

/* G 0: the model is not split. */
static status evaluate_on(const tensor_case *t, int32_t n_ranks, float *logits, int *n_recorded,
                          err *e)
{
    const carat_model_options o = {.gpus = gpus[n_ranks ? n_ranks - 1 : 0],
                                   .split = n_ranks ? "tensor" : NULL,
                                   .overcommit = true};
    carat_model *m = NULL;
    status st = carat_model_open(t->path, &o, &m, e);
    st = st ? st : evaluate(m, t, logits, n_recorded, e);
    carat_model_close(m);
    return st;
}

static status check_case(rig *g, const tensor_case *t, err *e)
{
    size_t n = (size_t)t->n_vocab * (STEPS + 1);
    float *one = mem_alloc(2 * n * sizeof *one), *more = one + n;
    int n_recorded = 0;
    status st = one ? OK : err_memory(e, "a check", 2 * n * sizeof *one);
    st = st ? st : evaluate_on(t, 1, one, &n_recorded, e);
    st = st ? st : evaluate_on(t, 0, more, &n_recorded, e);
    if (!st)
        verdict(g, "tensor", text("%s, %s keys: sums of segments", t->name, t->kv),
                distance(more, one, n), t->near);
    for (int32_t r = 2; r <= RANKS && !st; r++) {
        int differ = 0;
        memset(more, 0, n * sizeof *more);
        if ((st = evaluate_on(t, r, more, &n_recorded, e)))
            break;
        for (size_t i = 0; i <= STEPS; i++)
            differ += memcmp(one + i * (size_t)t->n_vocab, more + i * (size_t)t->n_vocab,
                             (size_t)t->n_vocab * sizeof *one) != 0;
        verdict(g, "tensor", text("%s, %s keys, %d devices: passes that differ", t->name, t->kv, r),
                differ, 0);
        verdict(g, "tensor", text("%s, %d devices: no pass is recorded", t->name, r),
                n_recorded == 0, 0);
    }
    mem_free(one);
    return st;
}

static const char *made(const char *size, const char *type)
{
    static int n;
    char file[64];
    snprintf(file, sizeof file, "tensor-%s-%d.gguf", size, n++);
    const char *path = test_temp(file);
    const char *argv[] = {size, path, "--type", type};
    return command_synth.run(&command_synth, 4, (char **)argv) ? NULL : path;
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
    const tensor_case t = {name, path, kv, f.tokens, f.n_tokens, f.n_vocab, 16, 0.02};
    if (check_case(g, &t, &e))
        failed(g, "tensor", e.text);
    unlink(path);
    fidelity_close(&f);
}

static void check_made(rig *g, const char *size, const char *type, const char *kv, double near)
{
    enum { N = 70 };
    int32_t ids[N];
    char name[64];
    err e = {0};
    carat_model *m = NULL;
    if (!my_turn(g, "tensor"))
        return;
    const char *path = made(size, type);
    status st = path ? carat_model_open(path, &(carat_model_options){.vocab_only = true}, &m, &e)
                     : err_set(&e, E_IO, "%s: not made", size);
    const int32_t n_vocab = st ? 1 : m->core.n_vocab;
    for (int32_t i = 0; i < N; i++)
        ids[i] = (7 + 31 * i + i * i) % n_vocab;
    carat_model_close(m);
    snprintf(name, sizeof name, "%s of %s", size, type);
    const tensor_case t = {name, path, kv, ids, N, n_vocab, 24, near};
    if (st || check_case(g, &t, &e))
        failed(g, "tensor", e.text);
    if (path)
        unlink(path);
}

void check_tensor(rig *g)
{
    static const int32_t rows[] = {1, 3, 20};
    check_views(g);
    for (int i = 0; i < (g->quick ? 0 : 3); i++) /* so many outputs take the emulator minutes */
        check_parts(g, i == 1 ? NUM_Q8_0 : NUM_Q4_K, rows[i]);
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
    setenv("CARAT_PEERS", "off", 1); /* copies in the place of reading */
    check_made(g, "tiny-llama3", "bf16", "f32", 0.05);
    unsetenv("CARAT_PEERS");
}
