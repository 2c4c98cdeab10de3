/* check_prefetch.c - experts that are fetched before their layer chooses (prefetch.h). All layers
 * have the same experts and rows. So the first layer's guess is the last one's choice: what is
 * fetched must be used, and no bit may differ from passes that fetch nothing.
 */
#include "tests/cuda/check_int.h"
#include "backend/cuda/cuda_int.h"
#include "backend/cuda/experts/prefetch.h"
#include "backend/cuda/experts/experts_int.h"
#include "backend/experts.h"
#include "base/mem.h"

#include <stdio.h>
#include <string.h>

enum {
    LAYERS = 1 + PREFETCH_FAR,
    N_EXPERTS = 24,
    N_SLOTS = 6,
    N_FF = 64,
    N_IN = 128,
    K = 3,
    ROWS = 17
};

typedef struct prefetch_rig {
    rig *g;
    pair gate[LAYERS], down[LAYERS], router[LAYERS], in[LAYERS], bias[LAYERS];
    expert_layer layer[LAYERS];
    float *x[LAYERS]; /* rows of each layer's router: the same, times its norm's weight */
    bool sigmoid;
} prefetch_rig;

/* Rows for all layers, those of a set bit with the other sign. */
static void draw_rows(prefetch_rig *r, uint32_t other)
{
    float *x = draw(r->g, ROWS * N_IN, 1);
    for (int i = 0; i < LAYERS; i++) {
        const float *norm = r->in[i].bytes;
        for (int k = 0; k < ROWS * N_IN; k++)
            r->x[i][k] = (other >> i & 1 ? -x[k] : x[k]) * norm[k % N_IN];
    }
    mem_free(x);
}

static bool make(prefetch_rig *r, num_type type)
{
    rig *g = r->g;
    for (int i = 0; i < LAYERS; i++)
        if (!pair_make(g, &r->gate[i], type, N_IN, 2 * N_FF, N_EXPERTS, 0.05, false) ||
            !pair_make(g, &r->down[i], NUM_Q8_0, N_FF, N_IN, N_EXPERTS, 0.05, false) ||
            !pair_make(g, &r->router[i], NUM_F32, N_IN, N_EXPERTS, 1, 0.3, false) ||
            !pair_make(g, &r->in[i], NUM_F32, N_IN, 1, 1, 1, false) ||
            !pair_make(g, &r->bias[i], NUM_F32, N_EXPERTS, 1, 1, 0.2, false))
            return false;
    for (int i = 0; i < LAYERS; i++) {
        float *norm = r->in[i].bytes;
        for (int k = 0; k < N_IN; k++) /* not near 0: its inverse is a factor of the guess */
            norm[k] += norm[k] < 0 ? -0.5f : 0.5f;
        r->x[i] = mem_alloc(ROWS * N_IN * sizeof *r->x[i]);
        r->layer[i] = (expert_layer){.n_parts = 2,
                                     .n_down = 1,
                                     .n_experts = N_EXPERTS,
                                     .n_slots = N_SLOTS,
                                     .n_used = K,
                                     .router = &r->router[i].w[1],
                                     .router_in = &r->in[i].w[1],
                                     .router_bias = r->sigmoid ? &r->bias[i].w[1] : NULL};
        r->layer[i].part[0] = &r->gate[i].w[1];
        r->layer[i].part[1] = &r->down[i].w[1];
        g->gpu->weight_free(g->gpu, r->layer[i].part[0]);
        g->gpu->weight_free(g->gpu, r->layer[i].part[1]);
    }
    draw_rows(r, 0);
    return true;
}

static void unmake(prefetch_rig *r)
{
    for (int i = 0; i < LAYERS; i++) {
        pair_free(r->g, &r->gate[i]);
        pair_free(r->g, &r->down[i]);
        pair_free(r->g, &r->router[i]);
        pair_free(r->g, &r->in[i]);
        pair_free(r->g, &r->bias[i]);
        mem_free(r->x[i]);
    }
}

static status open_experts(prefetch_rig *r, int32_t n_prefetched, err *e)
{
    device *d = r->g->gpu;
    for (int i = 0; i < LAYERS; i++) {
        r->layer[i].n_prefetched = n_prefetched;
        for (int k = 0; k < 2; k++)
            r->layer[i].part[k]->in_slots = true;
    }
    status st = d->experts->open(d, r->layer, LAYERS, e);
    for (int i = 0; i < 2 * LAYERS && !st; i++)
        st = d->weight_load(d, r->layer[i / 2].part[i % 2], e);
    st = st ? st : d->experts->fill(d, e);
    return st ? st : d->experts->help(d, &(expert_help){.n_threads = 1}, e);
}

static void close_experts(prefetch_rig *r)
{
    device *d = r->g->gpu;
    for (int i = 0; i < 2 * LAYERS; i++)
        d->weight_free(d, r->layer[i / 2].part[i % 2]);
    d->experts->close(d);
}

/* Both layers' outputs, one after the other: mem_free. NULL: the pass failed. */
static float *run_rows(prefetch_rig *r, int32_t rows, err *e)
{
    static chain c;
    rig *g = r->g;
    pass p;
    size_t n = (size_t)rows * N_IN;
    chain_init(&c, rows, 0, 0);
    pass_begin(&p, g->gpu, &c.st, g->gpu_scratch, g->scratch_bytes);
    mat y[LAYERS];
    for (int i = 0; i < LAYERS; i++) {
        const route_rule rule = {.sigmoid = r->sigmoid,
                                 .bias = r->sigmoid ? &r->bias[i].w[1] : NULL};
        mat x = pass_mat(&p, rows, 1, N_IN);
        g->gpu->upload(g->gpu, x.at, r->x[i], n * sizeof(float));
        routing t = op_router(&p, x, &r->router[i].w[1], K, &rule);
        mat h = op_moe_glu(&p, x, &t, r->layer[i].part[0], NULL, ACT_SILU);
        y[i] = op_moe_down(&p, h, t, r->layer[i].part[1]);
    }
    float *out = pass_failed(&p) ? NULL : mem_alloc(LAYERS * n * sizeof *out);
    for (int i = 0; i < LAYERS && out; i++) {
        float *one = gpu_rows(g, y[i]);
        memcpy(out + (size_t)i * n, one, n * sizeof *one);
        mem_free(one);
    }
    *e = p.e;
    pass_end(&p);
    return out;
}

static void check_kind(rig *g, num_type type, bool sigmoid)
{
    static const int32_t counts[] = {1, 2, 7, OFFLOAD_JOB_ROWS, ROWS}, prefetch[] = {0, 1, 4};
    enum {
        N_COUNTS = sizeof counts / sizeof *counts,
        N_PREFETCH = sizeof prefetch / sizeof *prefetch
    };
    prefetch_rig r = {.g = g, .sigmoid = sigmoid};
    float *want[N_COUNTS] = {NULL};
    double differ = 0, unused = 0, none = 0, late = 0, many = 0;
    err e = {0};
    status st = OK;
    if (!my_turn(g, "prefetch") || !make(&r, type))
        return;
    /* Each number of experts: copies that do not come, then those of the open requests and all
     * later ones. */
    for (int k = 0; k < 2 * N_PREFETCH - 1 && !st; k++) {
        const int32_t n_prefetched = prefetch[(k + 1) / 2];
        const bool held = k % 2;
        expert_use before = {0}, use;
        cuda_device *c = g->gpu->self;
        if (held || !k)
            st = open_experts(&r, n_prefetched, &e);
        if (!st && n_prefetched)
            cuda_prefetch_test(cuda_offload_prefetch(c->experts->offload),
                               held ? PREFETCH_NEVER_COMES : PREFETCH_COMES,
                               held ? 1000 : 2000000000, c);
        g->gpu->experts->use(g->gpu, &before);
        for (int i = 0; i < N_COUNTS && !st; i++) {
            size_t n = LAYERS * (size_t)counts[i] * N_IN;
            float *y = run_rows(&r, counts[i], &e);
            st = y ? OK : e.status;
            if (k && y) {
                differ += memcmp(y, want[i], n * sizeof *y) != 0;
                mem_free(y);
            } else {
                want[i] = y;
            }
        }
        g->gpu->experts->use(g->gpu, &use);
        uint64_t asked = use.n_prefetched - before.n_prefetched;
        if (held)
            many += asked > (uint64_t)n_prefetched; /* one layer has a guess */
        else if (n_prefetched) /* accounts come with requests, so the last pass's may be missing */
            unused += use.n_prefetched_used + (uint64_t)n_prefetched < use.n_prefetched;
        none += n_prefetched ? !asked : use.n_prefetched != 0;
        late += n_prefetched && held != (use.n_prefetched_late > before.n_prefetched_late);
        if (!held)
            close_experts(&r);
    }
    if (st)
        failed(g, "prefetch", e.text);
    char what[32];
    snprintf(what, sizeof what, "%s%s", num_name(type), sigmoid ? " sigmoid" : "");
    verdict(g, "prefetch", text("%s: bits that differ", what), differ, 0);
    verdict(g, "prefetch", text("%s: fetched, and not chosen", what), unused, 0);
    verdict(g, "prefetch", text("%s: none was asked for, or some unasked", what), none, 0);
    verdict(g, "prefetch", text("%s: late ones, or none that were held", what), late, 0);
    verdict(g, "prefetch", text("%s: asked for more while copies were open", what), many, 0);
    for (int i = 0; i < N_COUNTS; i++)
        mem_free(want[i]);
    unmake(&r);
}

/* A pass of one row, and what has happened until now. */
static status one_pass(prefetch_rig *r, expert_use *use, err *e)
{
    float *y = run_rows(r, 1, e);
    if (!y)
        return e->status;
    mem_free(y);
    r->g->gpu->experts->use(r->g->gpu, use);
    return OK;
}

/* The layers, whose guesses are judged after so many experts, with a pause of so many passes. */
static status open_judged(prefetch_rig *r, int32_t after, int32_t pause, err *e)
{
    cuda_device *c = r->g->gpu->self;
    status st = open_experts(r, 3, e);
    if (!st) {
        cuda_prefetch *x = cuda_offload_prefetch(c->experts->offload);
        cuda_prefetch_test(x, PREFETCH_COMES, 2000000000, c);
        cuda_prefetch_judge(x, after, pause);
    }
    return st;
}

enum { AFTER = 24, PAUSE = 40, TRIES = 400 }; /* experts asked for; passes */

/* All guesses are wrong, from far and from near: the layers that are guessed have the first layer's
 * rows with the other sign, so they choose what is guessed last. After some copies in vain they are
 * made from near; after some more none is asked for, and after a pause some are again. */
static void check_wrong_guesses(rig *g)
{
    prefetch_rig r = {.g = g};
    expert_use use = {0}, before = {0};
    err e = {0};
    if (!my_turn(g, "prefetch") || !make(&r, NUM_Q4_0))
        return;
    draw_rows(&r, ~0u << PREFETCH_NEAR);
    status st = open_judged(&r, AFTER, PAUSE, &e);
    for (int i = 0; i < TRIES && use.n_prefetched < AFTER && !st; i++)
        st = one_pass(&r, &use, &e);
    verdict(g, "prefetch", "wrong guesses: too few are asked for", use.n_prefetched < AFTER, 0);
    /* Counts of a pass may come a pass or two later: a pause has begun where several have none. */
    for (int i = 0, quiet = 0; i < TRIES && use.n_prefetched < 3 * AFTER && quiet < 4 && !st; i++) {
        before = use;
        st = one_pass(&r, &use, &e);
        quiet = use.prefetch_ahead == PREFETCH_NEAR && use.n_prefetched == before.n_prefetched
                    ? quiet + 1
                    : 0;
    }
    verdict(g, "prefetch", "wrong guesses: they are not from near",
            use.prefetch_ahead != PREFETCH_NEAR, 0);
    for (int i = 0; i < 2 && !st; i++)
        st = one_pass(&r, &before, &e);
    for (int i = 0; i < PAUSE / 2 && !st; i++)
        st = one_pass(&r, &use, &e);
    verdict(g, "prefetch", "wrong guesses: asked for in a pause",
            use.n_prefetched != before.n_prefetched, 0);
    for (int i = 0; i < TRIES && use.n_prefetched == before.n_prefetched && !st; i++)
        st = one_pass(&r, &use, &e);
    verdict(g, "prefetch", "wrong guesses: no other try", use.n_prefetched == before.n_prefetched,
            0);
    if (st)
        failed(g, "prefetch", e.text);
    close_experts(&r);
    unmake(&r);
}

/* Guesses are wrong from far and right from near. So they are made from near, and after a pause
 * from far again. Each pass has other rows, or slots would soon hold all experts that are chosen.
 */
static void check_near_guesses(rig *g)
{
    enum { OTHER = 1 << 1 | 1 << PREFETCH_FAR };
    prefetch_rig r = {.g = g};
    expert_use use = {0}, near;
    err e = {0};
    int passes = 0;
    if (!my_turn(g, "prefetch") || !make(&r, NUM_Q4_0))
        return;
    status st = open_judged(&r, AFTER, PAUSE, &e);
    for (int i = 0; i < TRIES && use.prefetch_ahead != PREFETCH_NEAR && !st; i++) {
        draw_rows(&r, OTHER);
        st = one_pass(&r, &use, &e);
    }
    verdict(g, "prefetch", "right from near: still from far", use.prefetch_ahead != PREFETCH_NEAR,
            0);
    near = use;
    for (; passes < TRIES && use.prefetch_ahead == PREFETCH_NEAR && !st; passes++) {
        draw_rows(&r, OTHER);
        st = one_pass(&r, &use, &e);
    }
    uint64_t asked = use.n_prefetched - near.n_prefetched,
             used = use.n_prefetched_used - near.n_prefetched_used;
    verdict(g, "prefetch", "right from near: never from far again",
            use.prefetch_ahead != PREFETCH_FAR, 0);
    verdict(g, "prefetch", "right from near: from far again too soon", passes < PAUSE, 0);
    verdict(g, "prefetch", "right from near: fetched, and not chosen", used + 2 * 3 < asked, 0);
    if (st)
        failed(g, "prefetch", e.text);
    close_experts(&r);
    unmake(&r);
}

void check_prefetch(rig *g)
{
    static const num_type types[] = {NUM_Q4_0, NUM_Q4_1, NUM_Q5_0, NUM_Q5_1, NUM_Q8_0};
    for (int i = 0; i < 5; i++)
        check_kind(g, types[i], i & 1);
    check_wrong_guesses(g);
    check_near_guesses(g);
}
