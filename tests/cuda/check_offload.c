/* check_offload.c - experts that the host's cores compute beside the GPU: the same bits, whichever
 * side computes which of them. All formats, one row and several; whole models; answers that come
 * too late.
 */
#include "tests/cuda/check_int.h"
#include "backend/cuda/experts/offload.h"
#include "backend/cuda/cuda_int.h"
#include "backend/cuda/experts/prefetch.h"
#include "backend/cuda/experts/experts_int.h"
#include "backend/experts.h"
#include "base/mem.h"
#include "engine/engine_int.h"
#include "tests/fidelity_model.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { N_EXPERTS = 10, N_SLOTS = 3, ROWS = 20, K = 3, THREADS = 3 };

typedef struct offload_rig {
    rig *g;
    pair w[3]; /* gate, up, down */
    weight down[RANKS_MAX]; /* segments of it, if there are n_down > 1 */
    int32_t n_down;
    expert_layer layer;
    float *v, *l; /* rows, and the router's logits */
    act_kind act;
} offload_rig;

static cuda_device *device_of(const offload_rig *r)
{
    return r->g->gpu->self;
}

/* The layer's weights with slots for some experts, and the host's help: part of the missing ones;
 * above 1: no help at all. */
static status open_experts(offload_rig *r, double part, err *e)
{
    device *d = r->g->gpu;
    status st = OK;
    for (int i = 0; i < r->layer.n_parts; i++)
        r->layer.part[i]->in_slots = true;
    st = d->experts->open(d, &r->layer, 1, e);
    for (int i = 0; i < r->layer.n_parts && !st; i++)
        st = d->weight_load(d, r->layer.part[i], e);
    st = st ? st : d->experts->fill(d, e);
    if (!st && part <= 1)
        st = d->experts->help(d, &(expert_help){.part = part, .n_threads = THREADS}, e);
    return st;
}

static void close_experts(offload_rig *r)
{
    device *d = r->g->gpu;
    for (int i = 0; i < r->layer.n_parts; i++)
        d->weight_free(d, r->layer.part[i]);
    d->experts->close(d);
}

/* w has n of its experts from `first` on. */
static void cut_experts(weight *w, int32_t first, int32_t n)
{
    w->data = weight_row(w, first, 0);
    w->n_mat_all = w->n_mat;
    w->first_mat = first;
    w->n_mat = n;
    w->n_bytes = w->mat_bytes * (size_t)n;
}

/* The rank has the last experts, whole: some in the first segment of down, the others in the second.
 */
static void cut_to_some(offload_rig *r)
{
    enum { FIRST = N_EXPERTS / 3, HALF = (N_EXPERTS - FIRST) / 2 };
    r->down[0] = r->down[1] = r->w[2].w[1];
    cut_experts(&r->down[0], FIRST, HALF);
    cut_experts(&r->down[1], FIRST + HALF, N_EXPERTS - FIRST - HALF);
    for (int i = 0; i < 2; i++)
        cut_experts(&r->w[i].w[1], FIRST, N_EXPERTS - FIRST);
    r->layer.n_experts = N_EXPERTS - FIRST;
}

/* Equal parts of the columns. */
static void cut_down(offload_rig *r)
{
    const weight *w = &r->w[2].w[1];
    uint64_t row = 0;
    num_row_bytes(w->type, (uint64_t)(w->n_in / r->n_down), &row);
    for (int32_t z = 0; z < r->n_down; z++) {
        weight *to = &r->down[z];
        *to = *w;
        to->data = (const char *)w->data + (size_t)z * row;
        to->n_in = w->n_in / r->n_down;
        to->n_bytes = (size_t)row * (size_t)w->n_out * (size_t)w->n_mat;
        to->bias = z ? NULL : w->bias;
    }
}

/* The products of all segments, one after the other: mem_free. NULL: the pass failed. */
static float *run_segments(offload_rig *r, pass *p, mat h, routing t)
{
    const int32_t n_out = r->down->n_out;
    const size_t n = (size_t)h.rows * (size_t)n_out;
    mat y[RANKS_MAX];
    for (int32_t z = 0; z < r->n_down; z++)
        y[z] = pass_mat(p, h.rows, 1, n_out);
    if (!op_moe_down_segments(p, y, h, t, r->down, r->n_down))
        err_set(&p->e, E_UNSUPPORTED, "segments of down take no launch of their own");
    float *all = pass_failed(p) ? NULL : mem_alloc((size_t)r->n_down * n * sizeof *all);
    for (int32_t z = 0; all && z < r->n_down; z++) {
        float *one = gpu_rows(r->g, y[z]);
        memcpy(all + (size_t)z * n, one, n * sizeof *one);
        mem_free(one);
    }
    return all;
}

/* Of `rows` rows from the last: mem_free. NULL: the pass failed, and e says why; or it ends after
 * the gated product, whose job nobody takes back. */
static float *run_pass_of(offload_rig *r, int32_t rows, bool gated_alone, err *e)
{
    static chain c;
    rig *g = r->g;
    pass p;
    const weight *gate = &r->w[0].w[1], *up = r->w[1].bytes ? &r->w[1].w[1] : NULL;
    int32_t n_in = gate->n_in;
    chain_init(&c, rows, 0, 0);
    pass_begin(&p, g->gpu, &c.st, g->gpu_scratch, g->scratch_bytes);
    mat x = pass_mat(&p, rows, 1, n_in), z = pass_mat(&p, rows, 1, N_EXPERTS);
    size_t from = (size_t)(ROWS - rows);
    g->gpu->upload(g->gpu, x.at, r->v + from * (size_t)n_in,
                   (size_t)rows * (size_t)n_in * sizeof(float));
    g->gpu->upload(g->gpu, z.at, r->l + from * N_EXPERTS, (size_t)rows * N_EXPERTS * sizeof(float));
    routing t = op_route(&p, z, K, NULL);
    mat h = op_moe_glu(&p, x, &t, gate, up, r->act);
    float *got = NULL;
    if (!gated_alone && r->n_down > 1) {
        got = run_segments(r, &p, h, t);
    } else if (!gated_alone) {
        const mat y = op_moe_down(&p, h, t, &r->w[2].w[1]);
        got = pass_failed(&p) ? NULL : gpu_rows(g, y);
    }
    *e = p.e;
    pass_end(&p);
    if (!got || !g->gpu->failed(g->gpu, e))
        return got;
    mem_free(got);
    return NULL;
}

static float *run_rows(offload_rig *r, int32_t rows, err *e)
{
    return run_pass_of(r, rows, false, e);
}

/* n_down: segments of the down product; 1: it is whole. some: two, of which each has some of the
 * rank's experts, whole; else each has some of the columns of all. */
static void check_formats_of(rig *g, num_type tg, num_type td, int32_t n_in, int32_t n_ff,
                             bool fused, act_kind act, int32_t n_down, bool some)
{
    static const double parts[] = {0, 1, 0.4, -1, 2};
    static const int32_t counts[] = {1, 2, 7, OFFLOAD_JOB_ROWS, ROWS};
    enum { N_COUNTS = sizeof counts / sizeof *counts, N_PARTS = sizeof parts / sizeof *parts };
    offload_rig r = {.g = g, .n_down = n_down, .act = act};
    float *want[N_COUNTS] = {NULL};
    double differ = 0, far = 0, idle = 0, busy = 0;
    err e = {0};
    status st = OK;
    const char *group = n_down > 1 ? "offload segments" : "offload";
    if (!my_turn(g, group) ||
        !pair_make(g, &r.w[0], tg, n_in, fused ? 2 * n_ff : n_ff, N_EXPERTS, 0.05, false) ||
        (!fused && !pair_make(g, &r.w[1], tg, n_in, n_ff, N_EXPERTS, 0.05, false)) ||
        !pair_make(g, &r.w[2], td, n_ff, n_in, N_EXPERTS, 0.05, false))
        return;
    for (int i = 0; i < 3 && act == ACT_SWIGLU_CUT; i++)
        if (r.w[i].bytes)
            pair_biased(g, &r.w[i]);
    r.v = draw(g, (size_t)ROWS * (size_t)n_in, 1.0);
    r.l = draw(g, ROWS * N_EXPERTS, 2);
    r.layer =
        (expert_layer){.n_experts = N_EXPERTS, .n_slots = N_SLOTS, .n_used = K, .n_down = n_down};
    for (int i = 0; i < 3; i++)
        if (r.w[i].bytes) {
            g->gpu->weight_free(g->gpu, &r.w[i].w[1]);
            if (i < 2 || n_down == 1)
                r.layer.part[r.layer.n_parts++] = &r.w[i].w[1];
        }
    if (some)
        cut_to_some(&r);
    else if (n_down > 1)
        cut_down(&r);
    for (int32_t z = 0; n_down > 1 && z < n_down; z++)
        r.layer.part[r.layer.n_parts++] = &r.down[z];
    for (int k = 0; k < N_PARTS && !st; k++) {
        expert_use use = {0};
        st = open_experts(&r, parts[k], &e);
        for (int i = 0; i < N_COUNTS && !st; i++) {
            size_t n = (size_t)(n_down * counts[i]) * (size_t)n_in;
            float *y = run_rows(&r, counts[i], &e);
            if (!y) {
                st = e.status;
                break;
            }
            double sum = 0, diff = 0;
            for (size_t j = 0; j < n && want[i]; j++) {
                sum += (double)want[i][j] * want[i][j];
                diff += ((double)want[i][j] - y[j]) * ((double)want[i][j] - y[j]);
            }
            if (parts[k] > 1)
                far += !(diff <= 1e-5 * sum); /* codes of activations may differ by one */
            else if (want[i])
                differ += memcmp(y, want[i], n * sizeof *y) != 0;
            if (want[i])
                mem_free(y);
            else
                want[i] = y;
        }
        g->gpu->experts->use(g->gpu, &use);
        idle += parts[k] == 1 && !use.n_cpu;
        busy += (parts[k] == 0 || parts[k] > 1) && use.n_cpu;
        close_experts(&r);
    }
    if (st)
        failed(g, group, e.text);
    const char *what =
        text("%s %s%s%s %d -> %d %s", num_name(tg), num_name(td), fused ? " halves" : "",
             some         ? " some"
             : n_down > 1 ? " segments"
                          : "",
             n_in, n_ff,
             act == ACT_SWIGLU_CUT ? "cut, biases"
             : act == ACT_SILU     ? "silu"
                                   : "gelu");
    char shape[128];
    snprintf(shape, sizeof shape, "%.60s: parts that differ", what);
    verdict(g, group, shape, differ, 0);
    snprintf(shape, sizeof shape, "%.60s: far from the GPU alone", what);
    verdict(g, group, shape, far, 0);
    snprintf(shape, sizeof shape, "%.60s: the CPU computed none, or some unasked", what);
    verdict(g, group, shape, idle + busy, 0);
    for (int i = 0; i < N_COUNTS; i++)
        mem_free(want[i]);
    mem_free(r.v);
    mem_free(r.l);
    for (int i = 0; i < 3; i++)
        if (r.w[i].bytes)
            pair_free(g, &r.w[i]);
}

static void check_formats(rig *g, num_type tg, num_type td, int32_t n_in, int32_t n_ff, bool fused,
                          act_kind act, int32_t n_down)
{
    check_formats_of(g, tg, td, n_in, n_ff, fused, act, n_down, false);
}

/* A gated unit of 64 -> 64 and a down product, in Q8_0. */
static bool make_small(offload_rig *r)
{
    rig *g = r->g;
    if (!pair_make(g, &r->w[0], NUM_Q8_0, 64, 128, N_EXPERTS, 0.05, false) ||
        !pair_make(g, &r->w[2], NUM_Q8_0, 64, 64, N_EXPERTS, 0.05, false))
        return false;
    r->v = draw(g, (size_t)ROWS * 64, 1.0);
    r->l = draw(g, ROWS * N_EXPERTS, 2);
    r->layer = (expert_layer){
        .n_experts = N_EXPERTS, .n_slots = N_SLOTS, .n_used = K, .n_parts = 2, .n_down = 1};
    r->layer.part[0] = &r->w[0].w[1];
    r->layer.part[1] = &r->w[2].w[1];
    for (int i = 0; i < 3; i += 2)
        g->gpu->weight_free(g->gpu, &r->w[i].w[1]);
    return true;
}

static void free_small(offload_rig *r)
{
    mem_free(r->v);
    mem_free(r->l);
    pair_free(r->g, &r->w[0]);
    pair_free(r->g, &r->w[2]);
}

/* A pass that ends in the middle of a layer. Threads that do not answer: the pass fails with a
 * sentence, once; the next ones do without them, and have the same bits. */
static void check_late(rig *g)
{
    offload_rig r = {.g = g, .act = ACT_SILU};
    double other = 0, silent = 0, later = 0;
    err e = {0};
    if (!my_turn(g, "offload") || !make_small(&r))
        return;
    for (int32_t rows = 1; rows < 9; rows += 7) {
        status st = open_experts(&r, 1, &e);
        float *before = st ? NULL : run_rows(&r, rows, &e);
        if (before) {
            run_pass_of(&r, rows, true, &e); /* the next one waits for its job */
            float *next = run_rows(&r, rows, &e);
            other += !next || memcmp(next, before, (size_t)rows * 64 * sizeof *next);
            mem_free(next);
            close_experts(&r); /* else the rows' experts may all be in slots by now */
            st = open_experts(&r, 1, &e);
        }
        cuda_offload *offload = before && !st ? device_of(&r)->experts->offload : NULL;
        if (!offload) {
            failed(g, "offload", e.text);
            mem_free(before);
            close_experts(&r);
            continue;
        }
        cuda_offload_hold(offload, 20000000, device_of(&r));
        float *none = run_rows(&r, rows, &e);
        silent += none != NULL || e.status != E_IO || !strstr(e.text, "did not answer");
        mem_free(none);
        for (int i = 0; i < 2; i++) {
            float *after = run_rows(&r, rows, &e);
            later += !after || memcmp(after, before, (size_t)rows * 64 * sizeof *after);
            mem_free(after);
        }
        mem_free(before);
        close_experts(&r);
    }
    verdict(g, "offload", "a job that a pass left: other bits", other, 0);
    verdict(g, "offload", "late answers: no sentence", silent, 0);
    verdict(g, "offload", "late answers: other bits later", later, 0);
    free_small(&r);
}

/* A gated unit of an activation that hands nothing over, after one that did: the GPU computes all
 * of its experts. */
static void check_other_act(rig *g)
{
    offload_rig r = {.g = g};
    double wrong = 0;
    err e = {0};
    status st = OK;
    if (!my_turn(g, "offload") || !make_small(&r))
        return;
    for (int32_t rows = 1; rows < 9 && !st; rows += 7) {
        float *y[3] = {NULL};
        for (int k = 0; k < 2 && !st; k++) {
            st = open_experts(&r, k ? 1 : 2, &e);
            for (int i = k ? 1 : 0; i < 1 + 2 * k && !st; i++) {
                r.act = i == 1 ? ACT_SILU : ACT_SIGMOID;
                st = (y[i] = run_rows(&r, rows, &e)) ? OK : e.status;
            }
            close_experts(&r);
        }
        wrong += st || memcmp(y[0], y[2], (size_t)rows * 64 * sizeof **y);
        for (int i = 0; i < 3; i++)
            mem_free(y[i]);
    }
    if (st)
        failed(g, "offload", e.text);
    verdict(g, "offload", "an activation that hands nothing over: other bits", wrong, 0);
    free_small(&r);
}

/* ---- Whole models ---------------------------------------------------------------------------- */

enum { CTX = 96, PROMPT = 20, STEPS = 5 };

/* gpus NULL: on one device; of two stages the first has one layer, so that the other has enough of
 * them for guesses. cpu NULL: the whole model. part: of the experts that the GPU holds where others are fetched
 * early. early: experts are fetched early, with this fate of the copies; -1: they are not. A copy
 * that comes is waited for, however slow this computer is. The same tokens as a prompt and one by
 * one; the last one after the model was parked. */
static status logits_of(const char *path, const char *split, const char *gpus, const char *cpu,
                        int prefetch, const char *part, const fidelity *f, float *to,
                        size_t n_vocab, carat_expert_info *info, err *e)
{
    const carat_session_options so = {
        .n_ctx = CTX, .chunk = 40, .checkpoint_mb = -1, .kv_k = "f16"};
    const carat_model_options o = {.device = gpus ? NULL : "cuda",
                                   .gpus = gpus,
                                   .split = split,
                                   .gpu_split = gpus && !split ? "1,9" : NULL,
                                   .experts_gpu = !cpu           ? "100%"
                                                  : prefetch < 0 ? "50%"
                                                                 : part,
                                   .experts_cpu = cpu,
                                   .n_threads = THREADS,
                                   .experts_prefetch = prefetch < 0 ? "off" : "2"};
    carat_model *m = NULL;
    carat_session *s = NULL;
    status st = carat_model_open(path, &o, &m, e);
    for (int32_t i = 0; !st && prefetch >= 0 && i < m->n_sides; i++) {
        cuda_device *c = model_device(m, i)->self;
        cuda_prefetch *x = c->experts ? cuda_offload_prefetch(c->experts->offload) : NULL;
        if (x) /* else it has too few layers, or none with experts */
            cuda_prefetch_test(x, (prefetch_fate)prefetch,
                               prefetch == PREFETCH_COMES ? 2000000000 : 1000, c);
    }
    st = st ? st : carat_session_open(m, &so, &s, e);
    st = st ? st : carat_eval(s, f->tokens, PROMPT, to, NULL, e);
    for (int i = 0; i < STEPS && !st; i++) {
        const int32_t *id = f->tokens + (PROMPT + 7 * i) % f->n_tokens;
        st = carat_append(s, id, 1, false, to + (size_t)(1 + i) * n_vocab, e);
    }
    if (!st) {
        carat_experts(m, info);
        carat_reset(s);
        carat_model_park(m);
        st = carat_model_unpark(m, e);
    }
    st = st ? st : carat_eval(s, f->tokens, PROMPT, NULL, NULL, e);
    st = st ? st : carat_append(s, f->tokens, 1, false, to + (size_t)(1 + STEPS) * n_vocab, e);
    carat_session_close(s);
    carat_model_close(m);
    return st;
}

/* name: of a tiny model; NULL: the bundled one. part: a few more than one token's experts. split:
 * "tensor", or NULL. */
static void check_model(rig *g, const char *name, const char *part, const char *split)
{
    static const char *const cpu[] = {NULL,  "off", "0", "100%", "0.5",
                                      "0.5", "0.5", "0", "0",    "auto"};
    static const char *const gpus[] = {NULL, NULL, NULL, NULL, NULL, "0,0", NULL, NULL, NULL, "0,0"};
    static const int prefetch[] = {-1,
                                   -1,
                                   -1,
                                   -1,
                                   PREFETCH_COMES,
                                   PREFETCH_COMES,
                                   -1,
                                   PREFETCH_NEVER_COMES,
                                   PREFETCH_FAILS,
                                   -1};
    enum { CASES = sizeof cpu / sizeof *cpu };
    char counts[300];
    fidelity f;
    err e = {0};
    carat_model *m = NULL;
    carat_model_info info;
    carat_expert_info used = {0};
    double differ = 0, idle = 0, never = 0;
    float *want = NULL, *got = NULL;
    size_t n = 0;
    const char *group = split ? "tensor offload" : "offload";
    if (!my_turn(g, group))
        return;
    fidelity_open(&f, name ? name : "moe");
    const char *path = "models/demo.gguf";
    if (name)
        path = fidelity_write(&f, &(fidelity_file){.type = NUM_Q8_0});
    else
        name = "bundled";
    snprintf(counts, sizeof counts, "%s.experts", path);
    status st = carat_model_open(path, &(carat_model_options){.vocab_only = true}, &m, &e);
    if (!st) {
        carat_model_get_info(m, &info);
        n = (size_t)info.n_vocab * (STEPS + 2);
        want = mem_calloc(n, sizeof *want);
        got = mem_calloc(n, sizeof *got);
    }
    carat_model_close(m);
    for (int i = 0; i < (g->quick && !strcmp(name, "bundled") ? 6 : CASES) && !st; i++) {
        unlink(counts); /* slots begin alike */
        st = logits_of(path, split, gpus[i], cpu[i], prefetch[i], part, &f, i ? got : want,
                       (size_t)info.n_vocab, &used, &e);
        never += prefetch[i] == PREFETCH_COMES ? !used.n_prefetched_used || used.n_prefetched_late
                 : prefetch[i] == PREFETCH_FAILS
                     ? used.n_failed != 1 || used.n_prefetched > 4
                     : used.n_prefetched_used && !used.n_prefetched_late;
        differ += i && memcmp(got, want, n * sizeof *got);
        bool none = i < 3 || !strcmp(cpu[i], "0");
        idle += used.cpu_threads != (none ? 0 : THREADS) || (none && used.n_cpu) ||
                (i == 3 && (!used.n_cpu || !used.cpu_bytes));
    }
    if (st)
        failed(g, group, text("%s: %s", name, e.text));
    verdict(g, group, text("%s: models that differ", name), differ, 0);
    verdict(g, group, text("%s: wrong accounts of the CPU's part", name), idle, 0);
    verdict(g, group, text("%s: experts that come early are not used, or late", name), never, 0);
    unlink(counts);
    if (strcmp(name, "bundled") != 0)
        unlink(path);
    fidelity_close(&f);
    mem_free(want);
    mem_free(got);
}

/* Experts that are no blocks: a sentence. */
static void check_floats(rig *g)
{
    fidelity f;
    err e = {0};
    carat_model *m = NULL;
    if (!my_turn(g, "offload"))
        return;
    fidelity_open(&f, "moe");
    const char *path = fidelity_write(&f, NULL);
    const carat_model_options o = {.device = "cuda", .experts_gpu = "50%", .experts_cpu = "auto"};
    status st = carat_model_open(path, &o, &m, &e);
    verdict(g, "offload", "experts of floats: no sentence",
            st != E_UNSUPPORTED || m || !strstr(e.text, "not of blocks"), 0);
    const carat_model_options plain = {.device = "cuda", .experts_gpu = "50%"};
    st = carat_model_open(path, &plain, &m, &e);
    verdict(g, "offload", "experts of floats, without help: not opened", st || !m, 0);
    carat_model_close(m);
    unlink(path);
    fidelity_close(&f);
}

void check_offload(rig *g)
{
    static const num_type down[] = {NUM_Q8_0, NUM_Q5_0, NUM_Q5_1, NUM_Q6_K, NUM_Q4_0};
    for (int i = 0; i < N_BLOCK_TYPES; i++) {
        num_type t = block_types[i];
        uint64_t row;
        bool narrow = num_row_bytes(t, 160, &row);
        check_formats(g, t, down[i % 5], narrow ? 160 : 512, 256, i & 1,
                      i & 2 ? ACT_SILU : ACT_GELU_TANH, 1);
    }
    check_formats(g, NUM_Q4_K, NUM_Q8_0, 768, 96, true, ACT_GELU_TANH, 1);
    check_formats(g, NUM_MXFP4, NUM_MXFP4, 256, 128, false, ACT_SWIGLU_CUT, 1);
    check_formats(g, NUM_NVFP4, NUM_IQ4_XS, 512, 256, true, ACT_SILU, 1);
    check_formats(g, NUM_IQ4_NL, NUM_NVFP4, 160, 320, false, ACT_GELU_TANH, 1);
    check_formats(g, NUM_Q8_0, NUM_Q4_K, 96, 256, true, ACT_SWIGLU_CUT, 1);
    check_formats(g, NUM_IQ1_M, NUM_Q2_0, 256, 320, false, ACT_SILU, 1);
    check_formats(g, NUM_TQ1_0, NUM_IQ3_S, 256, 256, true, ACT_GELU_TANH, 1);
    check_formats(g, NUM_Q4_K, NUM_Q5_0, 256, 192, false, ACT_GELU_TANH, 2);
    check_formats(g, NUM_Q8_0, NUM_Q8_0, 96, 128, false, ACT_SWIGLU_CUT, 4);
    check_formats(g, NUM_Q6_K, NUM_Q4_K, 256, 512, false, ACT_SILU, 2);
    check_formats_of(g, NUM_Q4_K, NUM_Q8_0, 256, 64, false, ACT_SILU, 2, true);
    check_late(g);
    check_other_act(g);
    check_floats(g);
    check_model(g, "laguna", "30%", NULL);
    check_model(g, "qwen35moe", "30%", NULL);
    check_model(g, "qwen3moe", "55%", NULL); /* 4 of 8 experts for a token */
    check_model(g, "gpt-oss", "55%", NULL);
    check_model(g, NULL, "30%", NULL);
    check_model(g, NULL, "30%", "tensor");
    check_model(g, "gpt-oss", "55%", "tensor"); /* each rank has some of the experts, whole */
    check_model(g, "qwen3moe", "55%", "tensor");
}
