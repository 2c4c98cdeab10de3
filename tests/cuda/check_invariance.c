/* check_invariance.c - rows of products on the CUDA device do not notice their neighbours: a row
 * has the bits that it has alone, in a mixture, beside other formats, and however rows are cut.
 */
#include "tests/cuda/check_int.h"
#include "backend/cuda/cuda_int.h"
#include "backend/cuda/launch_small.h"
#include "base/mem.h"

#include <math.h>
#include <string.h>

/* Rows of answers against each alone; rows of a prompt against all at once. */
static void check_invariance(rig *g, num_type t, int32_t n_in, int32_t n_out, bool glu, bool prompt)
{
    static chain c;
    pair w, u = {0};
    if (!my_turn(g, "invariance") || !pair_make(g, &w, t, n_in, n_out, 1, 0.05, false) ||
        (glu && !pair_make(g, &u, t, n_in, n_out, 1, 0.05, false)))
        return;
    if (!glu)
        pair_bias(g, &w);
    const int32_t most = prompt ? 200 : 100, base = prompt ? most : 1;
    float *v = draw(g, (size_t)most * (size_t)n_in, 1.0);
    float *alone = mem_alloc((size_t)most * (size_t)n_out * 4);
    static const int32_t counts[] = {1, 2, 3, 5, 8, 9, 16, 17, 32, 33, 43, 64, 100};
    int differ = 0;
    few_rows(prompt ? 0 : most);
    for (int32_t i = -most / base; i < (int32_t)(sizeof counts / sizeof *counts); i++) {
        int32_t rows = i < 0 ? base : counts[i];
        int32_t from = i < 0 ? (i + most / base) * base : most - rows;
        pass p;
        chain_init(&c, rows, 0, 0);
        pass_begin(&p, g->gpu, &c.st, g->gpu_scratch, g->scratch_bytes);
        mat x = pass_mat(&p, rows, 1, n_in);
        g->gpu->upload(g->gpu, x.at, v + (size_t)from * (size_t)n_in,
                       (size_t)rows * (size_t)n_in * 4);
        mat y = glu ? op_glu(&p, x, &w.w[1], &u.w[1], ACT_GELU_TANH) : op_matmul(&p, x, &w.w[1]);
        if (pass_failed(&p)) {
            failed(g, "invariance", p.e.text);
            break;
        }
        float *got = gpu_rows(g, y);
        size_t n = (size_t)rows * (size_t)n_out * 4;
        if (i < 0)
            memcpy(alone + (size_t)from * (size_t)n_out, got, n);
        else
            differ += memcmp(got, alone + (size_t)from * (size_t)n_out, n) != 0;
        mem_free(got);
    }
    verdict(g, "invariance",
            text("%s%s %d -> %d, 1..%d rows%s: counts that differ", num_name(t), glu ? " glu" : "",
                 n_in, n_out, most, prompt ? " of a prompt" : ""),
            differ, 0);
    few_rows(RIG_FEW);
    mem_free(v);
    mem_free(alone);
    pair_free(g, &w);
    if (glu)
        pair_free(g, &u);
}

/* The mixture of v's rows from `from` on. mem_free */
static float *mixture_of(rig *g, const mixture *m, const float *v, int32_t from, int32_t rows)
{
    static chain c;
    pass p;
    const int32_t n_in = m->router->n_in;
    chain_init(&c, rows, 0, 0);
    pass_begin(&p, g->gpu, &c.st, g->gpu_scratch, g->scratch_bytes);
    mat x = pass_mat(&p, rows, 1, n_in);
    g->gpu->upload(g->gpu, x.at, v + (size_t)from * (size_t)n_in,
                   (size_t)rows * (size_t)n_in * sizeof *v);
    mat y = op_mixture(&p, x, m);
    if (pass_failed(&p))
        failed(g, "mixture cuts", p.e.text);
    return pass_failed(&p) ? NULL : gpu_rows(g, y);
}

/* Rows of a prompt get the same bits in passes of one row, of few and of all. All rows have so many
 * logits that the router goes by tiles, and so many pairs of an expert that their tiles are large.
 */
static void check_mixture_cuts(rig *g, num_type t, num_type td, int32_t n_in, int32_t n_ff,
                               int32_t n, int32_t k)
{
    enum { ROWS = 600 };
    static const int32_t cuts[][2] = {{0, 1},   {299, 1},        {ROWS - 1, 1}, {7, 13},
                                      {40, 50}, {ROWS - 64, 64}, {3, 88},       {ROWS - 300, 300}};
    pair router, factor, gate, up, down, one[3];
    if (!my_turn(g, "mixture cuts") || !pair_make(g, &router, NUM_F32, n_in, n, 1, 0.2, false) ||
        !pair_make(g, &factor, NUM_F32, n_in, 1, 1, 0.1, false) ||
        !pair_make(g, &gate, t, n_in, n_ff, n, 0.05, false) ||
        !pair_make(g, &up, t, n_in, n_ff, n, 0.05, false) ||
        !pair_make(g, &down, td, n_ff, n_in, n, 0.05, false) ||
        !shared_make(g, one, t, td, n_in, n_ff))
        return;
    const mixture m = {.router = &router.w[1],
                       .gate = &gate.w[1],
                       .up = &up.w[1],
                       .down = &down.w[1],
                       .shared_factor = &factor.w[1],
                       .shared_gate = &one[0].w[1],
                       .shared_up = &one[1].w[1],
                       .shared_down = &one[2].w[1],
                       .k = k,
                       .act = ACT_SILU};
    float *v = draw(g, (size_t)ROWS * (size_t)n_in, 1.0);
    int differ = 0;
    few_rows(0);
    float *all = mixture_of(g, &m, v, 0, ROWS);
    for (size_t i = 0; all && i < sizeof cuts / sizeof *cuts; i++) {
        float *y = mixture_of(g, &m, v, cuts[i][0], cuts[i][1]);
        differ += !y || memcmp(y, all + (size_t)cuts[i][0] * (size_t)n_in,
                               (size_t)cuts[i][1] * (size_t)n_in * sizeof *y);
        mem_free(y);
    }
    few_rows(RIG_FEW);
    verdict(g, "mixture cuts",
            text("%s %s %d -> %d, %d of %d: cuts that differ", num_name(t), num_name(td), n_in,
                 n_ff, k, n),
            all ? differ : NAN, 0);
    mem_free(all);
    mem_free(v);
    pair *made[] = {&router, &factor, &gate, &up, &down, &one[0], &one[1], &one[2]};
    for (size_t i = 0; i < sizeof made / sizeof *made; i++)
        pair_free(g, made[i]);
}

/* Products of v's first rows with the weights from `from` until `until`, in one op: their results,
 * one after the other. mem_free */
static float *products_of(rig *g, const pair *w, int from, int until, const float *v, int32_t rows)
{
    static chain c;
    pass p;
    mat y[MATMULS_MAX];
    const weight *of[MATMULS_MAX];
    size_t at = 0, n = 0;
    chain_init(&c, rows, 0, 0);
    pass_begin(&p, g->gpu, &c.st, g->gpu_scratch, g->scratch_bytes);
    mat x = pass_mat(&p, rows, 1, w[0].w[1].n_in);
    g->gpu->upload(g->gpu, x.at, v, (size_t)rows * (size_t)x.cols * 4);
    for (int i = from; i < until; i++) {
        of[i - from] = &w[i].w[1];
        n += (size_t)rows * (size_t)w[i].w[1].n_out;
    }
    op_matmuls(&p, y, x, of, until - from);
    if (pass_failed(&p))
        failed(g, "invariance", p.e.text);
    float *all = mem_alloc(n * 4);
    for (int i = 0; i < until - from; i++) {
        float *got = gpu_rows(g, y[i]);
        n = (size_t)rows * (size_t)y[i].cols;
        memcpy(all + at, got, n * 4);
        at += n;
        mem_free(got);
    }
    return all;
}

/* Products of the same rows in several formats have the bits that each has alone: their kernels run
 * at the same time, or one makes all of a format. */
static void check_formats_together(rig *g, const num_type t[3], int32_t n_in,
                                   const int32_t n_out[3], bool prompt)
{
    static const int32_t counts[] = {2, 5, 8, 16, 33, 100};
    pair w[3];
    int differ = 0;
    if (!my_turn(g, "invariance"))
        return;
    for (int i = 0; i < 3; i++)
        if (!pair_make(g, &w[i], t[i], n_in, n_out[i], 1, 0.05, false))
            return;
    for (int i = 0; i < 3; i++)
        pair_bias(g, &w[i]);
    float *v = draw(g, 100 * (size_t)n_in, 1.0);
    few_rows(prompt ? 0 : 100);
    for (int k = 0; k < (int)(sizeof counts / sizeof *counts); k++) {
        size_t at = 0;
        float *all = products_of(g, w, 0, 3, v, counts[k]);
        for (int i = 0; i < 3; i++) {
            size_t n = (size_t)counts[k] * (size_t)n_out[i];
            float *alone = products_of(g, w, i, i + 1, v, counts[k]);
            differ += memcmp(all + at, alone, n * 4) != 0;
            at += n;
            mem_free(alone);
        }
        mem_free(all);
    }
    few_rows(RIG_FEW);
    verdict(g, "invariance",
            text("%s, %s and %s together %d -> %d, %d, %d%s: that differ", num_name(t[0]),
                 num_name(t[1]), num_name(t[2]), n_in, n_out[0], n_out[1], n_out[2],
                 prompt ? " of a prompt" : ""),
            differ, 0);
    mem_free(v);
    for (int i = 0; i < 3; i++)
        pair_free(g, &w[i]);
}

/* One product of v's first rows with that cut; NULL where the cut is impossible. mem_free */
static float *cut_product(rig *g, const weight *w, const float *v, int32_t rows, rows_cut cut)
{
    static chain c;
    pass p;
    chain_init(&c, rows, 0, 0);
    pass_begin(&p, g->gpu, &c.st, g->gpu_scratch, g->scratch_bytes);
    mat x = pass_mat(&p, rows, 1, w[0].n_in);
    g->gpu->upload(g->gpu, x.at, v, (size_t)rows * (size_t)w[0].n_in * 4);
    cu_rows_force(cut);
    mat y = w[1].n_in ? op_glu(&p, x, &w[0], &w[1], ACT_GELU_TANH) : op_matmul(&p, x, &w[0]);
    bool none = !cu_rows_chosen().tiles;
    cu_rows_force((rows_cut){0});
    if (pass_failed(&p))
        failed(g, "invariance", p.e.text);
    return none || pass_failed(&p) ? NULL : gpu_rows(g, y);
}

/* A product of few rows has the same bits in every cut into blocks, warps and turns; briefly, in
 * every fifth, which has all values of each. */
static void check_cuts(rig *g, num_type t, int32_t n_in, int32_t n_out, bool glu)
{
    pair w, u = {0};
    if (!my_turn(g, "invariance") || !pair_make(g, &w, t, n_in, n_out, 1, 0.05, false) ||
        (glu && !pair_make(g, &u, t, n_in, n_out, 1, 0.05, false)))
        return;
    weight pairs[2] = {w.w[1], u.w[1]};
    float *v = draw(g, 32 * (size_t)n_in, 1.0);
    static const int32_t counts[] = {2, 11, 32}, warps[] = {4, 8, 12, 24};
    static const int32_t x[] = {1, 2, ROWS_WHOLE};
    int differ = 0, n = 0;
    for (int i = 0; i < 3; i++) {
        float *free = cut_product(g, pairs, v, counts[i], (rows_cut){0});
        for (int k = 0; free && k < 3 * 4 * 4 * 3 * 2; k += g->brief ? 5 : 1) {
            rows_cut cut = {1 + k % 3,     warps[k / 3 % 4], 1 << k / 12 % 4,
                            x[k / 48 % 3], 1 + k / 144,      0};
            float *y = cut_product(g, pairs, v, counts[i], cut);
            n += y != NULL;
            differ += y && memcmp(y, free, (size_t)counts[i] * (size_t)n_out * 4) != 0;
            mem_free(y);
        }
        mem_free(free);
    }
    verdict(
        g, "invariance",
        text("%s%s %d -> %d, %d cuts: that differ", num_name(t), glu ? " glu" : "", n_in, n_out, n),
        n >= 6 ? differ : NAN, 0); /* fewer fit where a block has 99 KB */
    mem_free(v);
    pair_free(g, &w);
    if (glu)
        pair_free(g, &u);
}

/* Rows of prompts by int8: one, few, and so many that the weights are made records. */
static void check_int8_prompts(rig *g)
{
    cuda_device *c = g->gpu->self;
    const bool usual = c->int8_prompts;
    c->int8_prompts = true;
    check_invariance(g, NUM_Q4_K, 768, 40, false, true);
    check_invariance(g, NUM_Q8_0, 352, 200, true, true);
    if (!g->brief)
        check_invariance(g, NUM_Q6_K, 512, 72, false, true);
    c->int8_prompts = usual;
}

void check_invariances(rig *g)
{
    check_int8_prompts(g);
    for (int i = 0; i < N_BLOCK_TYPES; i++)
        for (int prompt = 0; prompt < 2; prompt++)
            check_invariance(g, block_types[i], g->quick ? 768 : 5376, 40, false, prompt);
    for (int i = 0; i < N_OWN_TYPES; i++)
        for (int prompt = 0; prompt < 2; prompt++)
            check_invariance(g, own_types[i], g->quick ? 768 : 5376, 40, false, prompt);
    check_invariance(g, NUM_Q4_K, 2816 - 2816 % 256, 96, true, false);
    check_invariance(g, NUM_Q8_0, 2112, 64, true, false);
    check_invariance(g, NUM_Q8_0, 352, 200, true, true);
    check_invariance(g, NUM_F16, 352, 136, false, true);
    check_invariance(g, NUM_BF16, 368, 136, false, true);
    if (!g->quick) { /* tiles dealt to one warp, two and four, of more tiles than blocks */
        check_invariance(g, NUM_Q4_K, 1024, 20816, false, false);
        check_invariance(g, NUM_Q4_K, 1024, 20816, false, true);
        check_invariance(g, NUM_Q6_K, 2048, 10400, false, false);
        check_invariance(g, NUM_Q6_K, 2048, 10400, false, true);
        check_invariance(g, NUM_Q5_0, 1056, 5392, false, false);
        check_invariance(g, NUM_Q4_K, 2048, 10432, true, false);
        check_invariance(g, NUM_Q4_1, 1056, 5200, true, false);
    }
    check_mixture_cuts(g, NUM_Q8_0, NUM_Q5_0, 160, 64, 64, 4);
    if (!g->brief)
        check_mixture_cuts(g, NUM_Q4_K, NUM_Q8_0, 256, 96, 56, 3);
    if (!g->quick) { /* a published shape: tiles of 32 rows, and the router's in slices and tiles */
        check_mixture_cuts(g, NUM_Q4_K, NUM_Q6_K, 2048, 512, 256, 8);
        check_mixture_cuts(g, NUM_Q4_K, NUM_Q5_0, 2816, 704, 128, 8);
    }
    static const int32_t small[] = {96, 40, 72}, large[] = {4096, 2048, 2048};
    static const num_type formats[][3] = {{NUM_Q4_K, NUM_Q4_K, NUM_Q6_K},
                                          {NUM_Q6_K, NUM_Q4_K, NUM_Q4_K},
                                          {NUM_Q5_1, NUM_Q8_0, NUM_Q4_1},
                                          {NUM_Q8_0, NUM_Q4_0, NUM_Q5_0}};
    for (int i = 0; i < 4; i++)
        for (int prompt = 0; prompt < 2; prompt++)
            check_formats_together(g, formats[i], 1280, small, prompt);
    check_formats_together(g, (num_type[]){NUM_Q8_0, NUM_Q8_0, NUM_Q8_0}, 352, small, true);
    if (!g->quick)
        check_formats_together(g, formats[0], 2816, large, false);
    check_cuts(g, NUM_Q4_K, 2304, 72, false);
    check_cuts(g, NUM_Q4_K, 4864, 40, false);
    check_cuts(g, NUM_Q4_K, 1280, 72, true);
    check_cuts(g, NUM_Q6_K, 2304, 72, false);
    check_cuts(g, NUM_Q4_0, 2112, 72, false);
    check_cuts(g, NUM_Q5_0, 1056, 40, true);
    check_cuts(g, NUM_Q8_0, 1056, 40, false);
    check_cuts(g, NUM_Q3_K, 1280, 40, true);
    check_cuts(g, NUM_IQ3_S, 1280, 40, true);
    check_cuts(g, NUM_IQ2_S, 1280, 40, false);
    check_cuts(g, NUM_IQ1_M, 1280, 40, false);
    check_cuts(g, NUM_Q2_0, 1216, 40, true);
    check_cuts(g, NUM_Q1_0, 1152, 40, false);
    for (int i = 0; i < 3; i++) /* 200 rows in tiles, fewer in slices */
        check_invariance(g, (num_type[]){NUM_F32, NUM_F16, NUM_BF16}[i], 132 + 16 * i, 197, false,
                         true);
    check_invariance(g, NUM_F32, 96, 40, false, false);
    check_invariance(g, NUM_F32, 96, 40, false, true);
    check_invariance(g, NUM_F32, 2116, g->quick ? 12 : 256, false, true); /* more than 32 slices */
    check_invariance(g, NUM_BF16, 2560, 64, false, false);
    check_invariance(g, NUM_BF16, 2560, 64, false, true);
}
