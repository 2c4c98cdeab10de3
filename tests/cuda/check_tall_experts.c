/* check_tall_experts.c - matmul_tall_experts_hopper.cu and matmul_short_experts.cu against
 * matmul_mma.cu: every bit of products of experts and of their gated units, of tiles of every
 * width, of experts without a pair, and of blocks that do several tiles one after the other. (The
 * reference is checked in check_products.c, whose mixtures go through all.)
 */
#include "tests/cuda/check_int.h"
#include "backend/cuda/cuda_int.h"
#include "backend/cuda/product/launch_tall.h"
#include "base/mem.h"

enum { K = 2 }; /* experts of a row */

typedef struct tall_case {
    num_type t;
    int32_t n_in, n_ff, n_expert, rows;
    bool halves; /* gate and up are one weight */
} tall_case;

/* Few rows of an expert: of matmul_short_experts.cu. */
static bool few(const tall_case *a)
{
    return expert_tile_rows(a->rows * K, a->n_expert) <= 32;
}
static const char *group_of(const tall_case *a)
{
    return few(a) ? "experts short" : "experts tall";
}

/* Memory of one check, and what is computed with it. */
typedef struct tall_rig {
    rig *g;
    cuda_device *c;
    const tall_case *a;
    int32_t pairs;
    uint16_t *x, *copy, *want_copy;
    float *y, *want, *parts; /* of pairs: [n_ff], [n_ff], [2 n_ff] */
    int32_t *id, *differ;
    expert_lists l;
} tall_rig;

/* n weights as bf16, as a weight of experts. */
static packed as_bf16(const packed *w, uint16_t *to, cudaStream_t s)
{
    for (int32_t e = 0; e < w->n_mat; e++) {
        const size_t at = (size_t)e * w->mat_bytes;
        packed one = *w;
        one.codes += at, one.high += at, one.scale += at, one.super += at;
        cu_unpack_bf16(s, one, 0, w->n_out, to + (size_t)e * (size_t)w->n_out * (size_t)w->n_in);
    }
    return (packed){.codes = (const uint8_t *)to,
                    .mat_bytes = (size_t)w->n_out * (size_t)w->n_in * 2,
                    .kind = PACK_BF16,
                    .n_in = w->n_in,
                    .n_out = w->n_out,
                    .n_mat = w->n_mat};
}

static int32_t count_different(const tall_rig *r, const void *a, const void *b, size_t n_bytes)
{
    int32_t differ = 0;
    cudaMemsetAsync(r->differ, 0, sizeof differ, r->c->stream);
    cu_count_different(r->c->stream, a, b, n_bytes / 4, r->differ);
    r->g->gpu->download(r->g->gpu, &differ, r->differ, sizeof differ);
    return differ;
}

static void say(const tall_rig *r, const char *what, bool done, int32_t differ)
{
    const tall_case *a = r->a;
    verdict(r->g, group_of(a),
            text("%s%s %d x %d of %d, %d -> %d: %s", num_name(a->t), a->halves ? " halves" : "",
                 a->rows, K, a->n_expert, a->n_in, a->n_ff, what),
            done ? differ : 1, 0);
}

/* Every output of w, of rows that belong to a row of x, or to a pair. */
static void products(const tall_rig *r, const packed *w, const packed *bf, int32_t k)
{
    const dev_mat y = {r->y, r->pairs, w->n_out, w->n_out}, z = {r->want, y.rows, y.cols, y.cols};
    const dev_quant x = {.bf = r->x, .rows = r->pairs / k, .cols = w->n_in};
    const size_t n = (size_t)r->pairs * (size_t)w->n_out * sizeof *r->y;
    cudaMemsetAsync(r->y, 0, n, r->c->stream);
    const bool done = (few(r->a) ? cu_expert_short : cu_expert_tall)(r->c->stream, y, x, *w, r->l, k);
    cu_expert_mma(r->c->stream, z, x, *bf, r->l, k);
    say(r, k == 1 ? "a row for each pair" : "a row for each K pairs", done,
        count_different(r, r->y, r->want, n));
}

static void units(const tall_rig *r, const packed *w, const packed *up, const packed *bf,
                  const packed *bf_up, const float *bias)
{
    const cudaStream_t s = r->c->stream;
    const int32_t n_ff = r->a->n_ff, n_out = w->n_out;
    const size_t n = (size_t)r->pairs * (size_t)n_ff;
    const dev_quant x = {.bf = r->x, .rows = r->a->rows, .cols = w->n_in};
    for (int how = 0; how < 3; how++) { /* gelu, silu, cut units with biases */
        const unit_rule unit = {.bias = how == 2 ? bias : NULL,
                                .up_bias = how == 2 ? bias + (up ? 0 : n_ff) : NULL,
                                .step = n_out,
                                .cut = how == 2};
        const expert_units u = {.y = {r->y, r->pairs, n_ff, n_ff},
                                .x = x,
                                .w = *w,
                                .up = up ? *up : *w,
                                .up_row = up ? 0 : n_ff,
                                .silu = how == 1,
                                .unit = unit,
                                .copy = r->copy};
        cudaMemsetAsync(r->y, 0, n * sizeof *r->y, s);
        const bool done = cu_expert_units(s, u, r->l, K);
        const dev_mat z = {r->want, r->pairs, n_ff, n_ff};
        dev_mat ga = {r->parts, r->pairs, n_out, n_out}, ua = ga;
        cu_expert_mma(s, ga, x, *bf, r->l, K);
        if (unit.bias)
            cu_pair_bias(s, ga, r->id, (expert_range){0, w->n_mat}, unit.bias);
        if (up) {
            ua.at += (size_t)r->pairs * (size_t)n_out;
            cu_expert_mma(s, ua, x, *bf_up, r->l, K);
            if (unit.bias)
                cu_pair_bias(s, ua, r->id, (expert_range){0, w->n_mat}, unit.bias);
        } else {
            ua.at += n_ff;
        }
        ga.cols = ua.cols = n_ff;
        cu_act_mul(s, z, ga, ua, how == 2 ? ACT_SWIGLU_CUT : how, 1,
                   (dev_quant){.bf = r->want_copy, .rows = r->pairs, .cols = n_ff, .tile = 1});
        static const char *const what[][2] = {{"units by gelu", "their copy"},
                                              {"units by silu", "their copy"},
                                              {"cut units with biases", "their copy"}};
        say(r, what[how][0], done, count_different(r, r->y, r->want, n * sizeof *r->y));
        say(r, what[how][1], done, count_different(r, r->copy, r->want_copy, n * sizeof *r->copy));
    }
}

static void check_case(rig *g, const tall_case *a)
{
    tall_rig r = {.g = g, .c = g->gpu->self, .a = a, .pairs = a->rows * K};
    const gpu_facts facts = r.c->facts;
    const int32_t n_out = a->halves ? 2 * a->n_ff : a->n_ff;
    pair w, u = {0}, b;
    if ((!facts.wgmma && !few(a)) || !my_turn(g, group_of(a)) ||
        !pair_make(g, &w, a->t, a->n_in, n_out, a->n_expert, 0.05, false) ||
        (!a->halves && !pair_make(g, &u, a->t, a->n_in, n_out, a->n_expert, 0.05, false)) ||
        !pair_make(g, &b, NUM_F32, n_out, 1, a->n_expert, 0.5, false))
        return;
    const size_t pairs = (size_t)r.pairs, n_x = pairs * (size_t)a->n_in,
                 n_w = (size_t)a->n_expert * (size_t)n_out * (size_t)a->n_in,
                 n_y = pairs * 2 * (size_t)a->n_ff,
                 n_tiles = (size_t)expert_tiles(r.pairs, a->n_expert),
                 n_all = 4 * n_x + 4 * n_w + 12 * n_y + 8 * n_y + 8 * pairs + 16 * n_tiles + 256;
    char *at = g->gpu->alloc(g->gpu, n_all), *to = at;
    int32_t *id = mem_calloc(pairs, sizeof *id);
    r.l.tiles = to, to += 16 * n_tiles;
    r.y = (float *)to, r.want = r.y + n_y, r.parts = r.want + n_y, to += 12 * n_y;
    r.copy = (uint16_t *)to, r.want_copy = r.copy + n_y, to += 8 * n_y;
    r.x = (uint16_t *)to, to += 4 * n_x;
    uint16_t *bf = (uint16_t *)to, *bf_up = bf + n_w;
    to += 4 * n_w;
    r.id = (int32_t *)to, r.l.order = r.id + pairs, to += 8 * pairs;
    r.l.n_tiles = (int32_t *)to, r.differ = r.l.n_tiles + 1;
    /* The last expert has no pair, and the first two have a third of them each; of three experts
     * they have all, each as many as there are rows. Of one or two the first has all. */
    for (size_t i = 0; i < pairs && a->n_expert > 2; i++)
        id[i] = a->n_expert == 3 || rng_below(&g->rng, 3)
                    ? (int32_t)(i % 2)
                    : (int32_t)rng_below(&g->rng, (uint64_t)a->n_expert - 1);
    g->gpu->upload(g->gpu, r.id, id, pairs * sizeof *id);
    const expert_range all = {0, a->n_expert};
    r.l.n_expert = a->n_expert;
    r.c->facts.n_sm = 3; /* so that a block has several tiles */
    cuda_select(g->gpu);
    cu_random_bf16(r.c->stream, r.x, n_x, 3);
    cu_expert_sort(r.c->stream, r.id, r.pairs, all, r.l);
    const packed pw = cuda_view(&w.w[1]), fw = as_bf16(&pw, bf, r.c->stream);
    products(&r, &pw, &fw, 1);
    products(&r, &pw, &fw, K);
    if (a->halves) {
        units(&r, &pw, NULL, &fw, NULL, (const float *)b.w[1].packed);
    } else {
        const packed pu = cuda_view(&u.w[1]), fu = as_bf16(&pu, bf_up, r.c->stream);
        units(&r, &pw, &pu, &fw, &fu, (const float *)b.w[1].packed);
    }
    r.c->facts = facts;
    cuda_select(g->gpu);
    mem_free(id);
    g->gpu->release(g->gpu, at, n_all);
    pair_free(g, &w);
    pair_free(g, &b);
    if (!a->halves)
        pair_free(g, &u);
}

/* Tiles of up to 8, 16 and 32 rows; experts of more than 32; one group, and outputs of a tile, of
 * a part of one, of an odd number of them and of several blocks. */
static void short_experts(rig *g)
{
    static const num_type types[] = {NUM_Q4_0,    NUM_Q4_1,  NUM_Q5_0,  NUM_Q5_1,   NUM_Q8_0,
                                     NUM_Q4_K,    NUM_Q5_K,  NUM_Q6_K,  NUM_IQ4_NL, NUM_MXFP4,
                                     NUM_IQ2_XXS, NUM_IQ3_S, NUM_IQ1_S, NUM_Q3_K};
    const int n = (int)(sizeof types / sizeof *types);
    for (int i = 0; i < n; i++)
        check_case(g, &(tall_case){types[i], 512, i % 2 ? 48 : 40, 12, 7 + 3 * i, i % 2 != 0});
    check_case(g, &(tall_case){NUM_Q4_K, 768, 144, 20, 190, true});
    check_case(g, &(tall_case){NUM_Q8_0, 352, 208, 7, 60, false});
    check_case(g, &(tall_case){NUM_Q5_0, 704, 80, 5, 41, true});
    check_case(g, &(tall_case){NUM_Q8_0, 32, 50, 1, 9, false});
    check_case(g, &(tall_case){NUM_MXFP4, 160, 2, 2, 17, false});
    check_case(g, &(tall_case){NUM_Q5_1, 288, 34, 1, 10, false});
    if (!g->quick)
        check_case(g, &(tall_case){NUM_Q4_K, 2816, 704, 16, 64, true});
}

void check_tall_experts(rig *g)
{
    static const num_type types[] = {NUM_Q4_0, NUM_Q4_1, NUM_Q5_0,   NUM_Q5_1,  NUM_Q8_0, NUM_Q4_K,
                                     NUM_Q5_K, NUM_Q6_K, NUM_IQ4_NL, NUM_MXFP4, NUM_Q3_K};
    short_experts(g);
    for (int i = 0; i < (int)(sizeof types / sizeof *types); i++)
        check_case(g, &(tall_case){types[i], 256, i % 2 ? 48 : 32, 4, 50 + 7 * i, i % 2 != 0});
    /* Tiles of 65 to 80 and of 81 to 128 rows, alone and as halves of an expert's; parts of a unit;
     * outputs of two blocks and more. */
    check_case(g, &(tall_case){NUM_Q4_K, 512, 112, 3, 117, true});
    check_case(g, &(tall_case){NUM_Q6_K, 768, 104, 3, 190, false});
    check_case(g, &(tall_case){NUM_Q8_0, 352, 208, 3, 72, false});
    check_case(g, &(tall_case){NUM_Q4_K, 512, 32, 3, 140, false});
    check_case(g, &(tall_case){NUM_Q5_0, 704, 80, 5, 241, true});
    /* All pairs are of the first of one or two experts; outputs that are no multiple of a tile; one
     * group, or one step and a part of the next. */
    check_case(g, &(tall_case){NUM_Q8_0, 32, 50, 1, 65, false});
    check_case(g, &(tall_case){NUM_Q4_0, 96, 98, 2, 129, false});
    check_case(g, &(tall_case){NUM_MXFP4, 160, 2, 1, 49, false});
    check_case(g, &(tall_case){NUM_Q5_1, 288, 34, 1, g->quick ? 193 : 2049, false});
    if (!g->quick)
        check_case(g, &(tall_case){NUM_Q4_K, 2816, 704, 16, 1024, true});
}
