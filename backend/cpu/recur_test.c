/* recur_test.c - the ops of recurrent layers, on every instruction set.
 *
 * Against the definition: chains, trees and certain rows of several sequences in one pass, with
 * pending rows, over awkward shapes. Against themselves, bit for bit: however rows come to be
 * committed (one pass or many, certain, kept of a tree, settled in between), what follows is the
 * same. Inputs of a row depend on its token alone.
 */
#include "backend/cpu/cpu_test_int.h"
#include "backend/cpu/table_ops_int.h"
#include "backend/recur_walk.h"

enum { TOKENS = 48, LINES = 3, ROWS = 64 };

#define CHECK_RAN(t, call) CHECK_OK(call, (t)->p.e)

typedef struct layer {
    recur_view v;
    weight taps, a, dt;
    float *x, *fade, *share; /* [TOKENS] rows: inputs of the convolution, of decays, of shares */
} layer;

/* A timeline. */
typedef struct line {
    recur_base base;
    float *memory;
    size_t n_floats;
    recur_seq s;
} line;

/* What a pass does to a line: its tokens; parent NULL: a chain. */
typedef struct part {
    line *l;
    const int32_t *token, *parent;
    int32_t n;
    bool final;
} part;

typedef struct shape {
    int32_t n_k, n_v, dk, dv, n_taps;
} shape;

static const shape shapes[] = {
    {2, 6, 16, 16, 4}, {2, 4, 128, 128, 4}, {1, 3, 20, 33, 2}, {3, 3, 8, 5, 8}, {2, 2, 64, 70, 3}};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

static float *vector(weight *w, int32_t n_in, int32_t n_out)
{
    *w = (weight){.name = "w", .type = NUM_F32, .n_in = n_in, .n_out = n_out, .n_mat = 1};
    w->row_bytes = (size_t)n_in * sizeof(float);
    w->mat_bytes = w->n_bytes = w->row_bytes * (size_t)n_out;
    float *at = mem_alloc(w->n_bytes);
    CHECK(at);
    w->data = at;
    return at;
}

/* Decays from none to e^-20, shares near 0 and 1, and every fifth token repeats the keys before. */
static void layer_open(layer *y, const shape *s, uint64_t *rng)
{
    y->v = (recur_view){.n_k = s->n_k,
                        .n_v = s->n_v,
                        .dk = s->dk,
                        .dv = s->dv,
                        .n_taps = s->n_taps,
                        .journal_rows = 16};
    int32_t n = recur_channels(&y->v);
    size_t nv = (size_t)s->n_v;
    test_fill(vector(&y->taps, s->n_taps, n), (size_t)n * (size_t)s->n_taps, 0.7f, rng);
    float *a = vector(&y->a, s->n_v, 1), *dt = vector(&y->dt, s->n_v, 1);
    for (int32_t j = 0; j < s->n_v; j++) {
        a[j] = j % 3 == 2 ? -5.0f : -0.02f * (float)(j + 1);
        dt[j] = 0.3f * (float)j - 0.5f;
    }
    y->x = mem_alloc(TOKENS * (size_t)n * sizeof(float));
    y->fade = mem_alloc(TOKENS * nv * sizeof(float));
    y->share = mem_alloc(TOKENS * nv * sizeof(float));
    CHECK(y->x && y->fade && y->share);
    test_fill(y->x, TOKENS * (size_t)n, 1.0f, rng);
    test_fill(y->fade, TOKENS * nv, 2.0f, rng);
    test_fill(y->share, TOKENS * nv, 4.0f, rng);
    for (size_t t = 5; t < TOKENS; t += 5)
        memcpy(y->x + t * (size_t)n, y->x + (t - 1) * (size_t)n, (size_t)n * sizeof(float));
    for (size_t j = 0; j < nv; j++) {
        y->share[7 * nv + j] = -30;
        y->share[8 * nv + j] = 30;
        y->fade[9 * nv + j] = -40;
        y->fade[10 * nv + j] = 4; /* times -5: e^-20 */
    }
}

static void layer_close(layer *y)
{
    test_weight_free(&y->taps);
    test_weight_free(&y->a);
    test_weight_free(&y->dt);
    mem_free(y->x);
    mem_free(y->fade);
    mem_free(y->share);
}

static void line_open(line *l, const recur_view *v)
{
    size_t state = (size_t)v->n_v * (size_t)v->dv * (size_t)v->dk;
    size_t conv = (size_t)(v->n_taps - 1) * (size_t)recur_channels(v);
    size_t journal = (size_t)v->journal_rows * (size_t)recur_journal_row(v);
    *l = (line){.n_floats = state + conv + 2 * journal};
    l->memory = mem_calloc(l->n_floats, sizeof *l->memory);
    CHECK(l->memory);
    l->base = (recur_base){
        .state = l->memory, .conv = l->memory + state, .journal = {l->memory + state + conv}};
    l->base.journal[1] = l->base.journal[0] + journal;
}

static void line_close(line *l)
{
    mem_free(l->memory);
}

/* The rows of a pass that are kept, in the order of their positions. */
static void keep(line *l, const int32_t *path, int32_t n)
{
    l->s.bank = !l->s.bank;
    l->s.n_pending = n;
    for (int32_t i = 0; i < n; i++)
        l->s.pending[i] = path ? path[i] : i;
}

static void settle(device *d, const layer *y, line *l)
{
    d->settle(d, &y->v, &l->base, 1, &l->s);
    l->s.n_pending = 0;
}

/* One pass. Outputs of the rows to `out`, [rows][n_v dv], where it is not NULL. Rows of certain
 * parts are committed; of others nothing is kept yet. */
static status run(test_pass *t, device *d, layer *y, const part *parts, int32_t n_parts, float *out)
{
    recur_base base[LINES];
    recur_seq seq[LINES];
    int32_t parent[ROWS], token[ROWS], rows = 0;
    pass *p = test_pass_begin(t, d, ROWS, 0);
    for (int32_t i = 0; i < n_parts; i++) {
        const part *w = &parts[i];
        base[i] = w->l->base;
        seq[i] = w->l->s;
        seq[i].row0 = rows;
        seq[i].n = w->n;
        seq[i].final = w->final;
        for (int32_t k = 0; k < w->n; k++) {
            int32_t from = w->parent ? w->parent[k] : k - 1;
            parent[rows + k] = from < 0 ? -1 : rows + from;
            token[rows + k] = w->token[k];
            t->seq[rows + k] = i;
        }
        rows += w->n;
    }
    CHECK(rows <= ROWS);
    t->st.all.n = rows;
    t->st.n_seqs = n_parts;
    t->st.n_recur = 1;
    t->st.recur = base;
    t->st.recur_seq = seq;
    t->st.parent = parent;
    int32_t n = recur_channels(&y->v), nv = y->v.n_v;
    mat x = pass_mat(p, rows, 1, n), a = pass_mat(p, rows, 1, nv), b = pass_mat(p, rows, 1, nv);
    for (int32_t r = 0; r < rows; r++) {
        size_t at = (size_t)token[r];
        memcpy(mat_row(x, r), y->x + at * (size_t)n, (size_t)n * sizeof(float));
        memcpy(mat_row(a, r), y->fade + at * (size_t)nv, (size_t)nv * sizeof(float));
        memcpy(mat_row(b, r), y->share + at * (size_t)nv, (size_t)nv * sizeof(float));
    }
    mat c = op_conv(p, x, &y->taps, &y->v);
    mat o = op_delta(p, c, a, b, &(delta_gate){&y->a, &y->dt}, &y->v);
    for (int32_t r = 0; out && !pass_failed(p) && r < rows; r++)
        memcpy(out + (size_t)r * (size_t)mat_width(o), mat_row(o, r),
               (size_t)mat_width(o) * sizeof *out);
    for (int32_t i = 0; i < n_parts; i++) /* what was pending has been applied */
        parts[i].l->s.n_pending = 0;
    t->st.n_recur = 0;
    return p->e.status;
}

static double error_of(const float *got, const float *want, size_t n)
{
    double se = 0, ss = 0;
    for (size_t i = 0; i < n; i++) {
        CHECK_MSG(isfinite(got[i]), "float %zu is %g", i, got[i]);
        se += ((double)got[i] - want[i]) * ((double)got[i] - want[i]);
        ss += (double)want[i] * want[i];
    }
    return se / (ss > 0 ? ss : 1);
}

/* A tree: 0 - 1 - 2, 0 - 3 - 4, 5 - 6, 3 - 7. */
static const int32_t tree[8] = {-1, 0, 1, 0, 3, -1, 5, 3};

/* Three passes over three lines: a prompt, a tree with pending rows, a chain. */
static void drive(test_pass *t, device *d, layer *y, line *l, float *out)
{
    static const int32_t prompt[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, one[] = {20};
    static const int32_t drafts[] = {12, 13, 14, 15, 16, 17, 18, 19}, next[] = {21, 22, 23};
    size_t width = (size_t)y->v.n_v * (size_t)y->v.dv;
    const part first[] = {{&l[0], prompt, NULL, 12, true},
                          {&l[1], prompt + 1, NULL, 2, false},
                          {&l[2], prompt, NULL, 1, true}};
    CHECK_RAN(t, run(t, d, y, first, 3, out));
    keep(&l[1], NULL, 2);
    const part second[] = {{&l[0], drafts, tree, 8, false},
                           {&l[1], one, NULL, 1, false},
                           {&l[2], prompt, NULL, 7, true}};
    CHECK_RAN(t, run(t, d, y, second, 3, out + 15 * width));
    keep(&l[0], (const int32_t[]){0, 3, 7}, 3);
    keep(&l[1], NULL, 1);
    const part third[] = {{&l[0], next, NULL, 3, true},
                          {&l[1], next, NULL, 3, false},
                          {&l[2], drafts, tree, 8, false}};
    CHECK_RAN(t, run(t, d, y, third, 3, out + 31 * width));
}

TEST(recur_ops_equal_the_definition)
{
    uint64_t rng = test_seed();
    AUTO_PTR(device_close) device *ref = test_device(NULL, (cpu_options){.reference = true});
    AUTO(test_pass_close) test_pass t;
    test_pass_open(&t, 16u << 20);
    for (int i = 0; i < N_SHAPES; i++) {
        AUTO(layer_close) layer y;
        line want[LINES], got[LINES];
        layer_open(&y, &shapes[i], &rng);
        size_t n_out = 45 * (size_t)y.v.n_v * (size_t)y.v.dv;
        AUTO_MEM float *a = mem_alloc(n_out * sizeof *a), *b = mem_alloc(n_out * sizeof *b);
        CHECK(a && b);
        for (int k = 0; k < LINES; k++) {
            line_open(&want[k], &y.v);
            test_fill(want[k].base.state, (size_t)y.v.n_v * (size_t)y.v.dv * (size_t)y.v.dk, 0.3f,
                      &rng);
        }
        float *start[LINES];
        for (int k = 0; k < LINES; k++) {
            start[k] = mem_alloc(want[k].n_floats * sizeof(float));
            CHECK(start[k]);
            memcpy(start[k], want[k].memory, want[k].n_floats * sizeof(float));
        }
        drive(&t, ref, &y, want, a);
        for (int s = 0; s < N_ISA; s++) {
            device *d = test_device(every_isa[s], (cpu_options){0});
            if (!d)
                continue;
            for (int k = 0; k < LINES; k++) {
                line_open(&got[k], &y.v);
                memcpy(got[k].memory, start[k], got[k].n_floats * sizeof(float));
            }
            drive(&t, d, &y, got, b);
            CHECK_MSG(error_of(b, a, n_out) < 1e-11, "%s shape %d: %g", d->name, i,
                      error_of(b, a, n_out));
            for (int k = 0; k < LINES; k++) {
                double e = error_of(got[k].memory, want[k].memory, got[k].n_floats);
                CHECK_MSG(e < 1e-11, "%s shape %d: store %d: %g", d->name, i, k, e);
                line_close(&got[k]);
            }
            device_close(d);
        }
        for (int k = 0; k < LINES; k++) {
            line_close(&want[k]);
            mem_free(start[k]);
        }
    }
}

/* Calls `with` for the reference and for every instruction set, for some shapes. */
typedef void (*with_fn)(test_pass *t, device *d, layer *y, uint64_t *rng);

static void on_every_device(with_fn with)
{
    uint64_t rng = test_seed();
    AUTO(test_pass_close) test_pass t;
    test_pass_open(&t, 16u << 20);
    for (int s = -1; s < N_ISA; s++) {
        AUTO_PTR(device_close)
        device *d = test_device(s < 0 ? NULL : every_isa[s], (cpu_options){.reference = s < 0});
        for (int i = 0; d && i < N_SHAPES; i++) {
            AUTO(layer_close) layer y;
            layer_open(&y, &shapes[i], &rng);
            with(&t, d, &y, &rng);
        }
    }
}

/* Runs tokens 0 .. n - 1, cut into passes of certain rows by bits of `cuts`. */
static void fresh(test_pass *t, device *d, layer *y, line *l, const int32_t *token, int32_t n,
                  uint64_t cuts, float *out)
{
    size_t width = (size_t)y->v.n_v * (size_t)y->v.dv;
    line_open(l, &y->v);
    for (int32_t r = 0, end; r < n; r = end) {
        for (end = r + 1; end < n && !(cuts >> end & 1); end++)
            ;
        CHECK_RAN(t, run(t, d, y, &(part){l, token + r, NULL, end - r, true}, 1,
                         out ? out + (size_t)r * width : NULL));
    }
}

static bool same(const float *a, const float *b, size_t n)
{
    return !memcmp(a, b, n * sizeof *a);
}

/* State and conv of two settled lines. */
static bool same_line(const layer *y, const line *a, const line *b)
{
    size_t n = (size_t)(a->base.journal[0] - a->base.state);
    (void)y;
    return !a->s.n_pending && !b->s.n_pending && same(a->memory, b->memory, n);
}

static void any_cut(test_pass *t, device *d, layer *y, uint64_t *rng)
{
    enum { N = 17 };
    int32_t token[N];
    size_t width = (size_t)y->v.n_v * (size_t)y->v.dv;
    AUTO_MEM float *a = mem_alloc(N * width * sizeof *a), *b = mem_alloc(N * width * sizeof *b);
    line want, got;
    CHECK(a && b);
    for (int i = 0; i < N; i++)
        token[i] = i;
    fresh(t, d, y, &want, token, N, 0, a);
    for (int k = 0; k < 6; k++) {
        uint64_t cuts = k == 0 ? UINT64_MAX : k == 1 ? 0x1110e : rng_next(rng);
        fresh(t, d, y, &got, token, N, cuts, b);
        CHECK_MSG(same(a, b, N * width) && same_line(y, &want, &got), "%s: cuts %llx", d->name,
                  (unsigned long long)cuts);
        line_close(&got);
    }
    line_close(&want);
}

TEST(recur_prompts_have_the_same_bits_in_any_chunks)
{
    on_every_device(any_cut);
}

/* Two rounds of eight rows, of which n0 and n1 are kept, then three rows; all kept rows again in a
 * fresh line. */
static void rounds(test_pass *t, device *d, layer *y, int32_t n_rows, int32_t n0, int32_t n1,
                   bool settled)
{
    static const int32_t token[] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12,
                                    13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25};
    int32_t path[] = {0, 3, 4}, all[40], n = 0;
    size_t width = (size_t)y->v.n_v * (size_t)y->v.dv;
    AUTO_MEM float *a = mem_alloc(32 * width * sizeof *a), *b = mem_alloc(32 * width * sizeof *b);
    line l, again;
    CHECK(a && b);
    line_open(&l, &y->v);
    CHECK_RAN(t, run(t, d, y, &(part){&l, token, NULL, 5, true}, 1, b));
    for (; n < 5; n++)
        all[n] = n;
    /* a chain, then a tree */
    CHECK_RAN(t, run(t, d, y, &(part){&l, token + 5, NULL, n_rows, false}, 1, b + 5 * width));
    keep(&l, NULL, n0);
    for (int32_t i = 0; i < n0; i++)
        all[n++] = token[5 + i];
    float *tree_out = b + (size_t)n * width;
    if (settled)
        settle(d, y, &l);
    CHECK_RAN(t, run(t, d, y, &(part){&l, token + 13, tree, 8, false}, 1, a));
    for (int32_t i = 0; i < n1; i++) {
        all[n++] = token[13 + path[i]];
        memcpy(tree_out + (size_t)i * width, a + (size_t)path[i] * width, width * sizeof *a);
    }
    keep(&l, path, n1);
    if (settled)
        settle(d, y, &l);
    CHECK_RAN(t, run(t, d, y, &(part){&l, token + 21, NULL, 3, true}, 1, b + (size_t)n * width));
    for (int32_t i = 0; i < 3; i++)
        all[n++] = token[21 + i];
    fresh(t, d, y, &again, all, n, 0, a);
    CHECK_MSG(same(a, b, (size_t)n * width) && same_line(y, &l, &again),
              "%s: %d rows, kept %d and %d", d->name, n_rows, n0, n1);
    line_close(&l);
    line_close(&again);
}

static void kept_paths(test_pass *t, device *d, layer *y, uint64_t *rng)
{
    (void)rng;
    for (int32_t n0 = 0; n0 <= 8; n0++)
        rounds(t, d, y, 8, n0, n0 % 4, false);
    for (int32_t n_rows = 1; n_rows <= 3; n_rows++) /* fewer rows than taps */
        for (int32_t n0 = 0; n0 <= n_rows; n0++) {
            rounds(t, d, y, n_rows, n0, 1, false);
            rounds(t, d, y, n_rows, n0, 2, true);
        }
}

TEST(recur_kept_rows_have_the_bits_of_a_fresh_run)
{
    on_every_device(kept_paths);
}

/* Every line of a pass over three has the bits that it has alone. */
static void company(test_pass *t, device *d, layer *y, uint64_t *rng)
{
    static const int32_t token[] = {3, 1, 4, 15, 9, 2, 6, 5};
    size_t width = (size_t)y->v.n_v * (size_t)y->v.dv, n = 0;
    AUTO_MEM float *a = mem_alloc(ROWS * width * sizeof *a),
                   *b = mem_alloc(ROWS * width * sizeof *b);
    line l[LINES], alone[LINES];
    (void)rng;
    CHECK(a && b);
    for (int k = 0; k < LINES; k++) {
        line_open(&l[k], &y->v);
        line_open(&alone[k], &y->v);
    }
    for (int round = 0; round < 2; round++) {
        const part parts[] = {{&l[0], token, tree, 8, false},
                              {&l[1], token + 2, NULL, 5, true},
                              {&l[2], token + 1, NULL, 1, false}};
        CHECK_RAN(t, run(t, d, y, parts, 3, a));
        n = 0;
        for (int k = 0; k < LINES; k++) {
            part p = parts[k];
            p.l = &alone[k];
            CHECK_RAN(t, run(t, d, y, &p, 1, b + n * width));
            n += (size_t)p.n;
            if (!p.final) {
                keep(&l[k], NULL, 1);
                keep(&alone[k], NULL, 1);
            }
        }
        CHECK_MSG(same(a, b, n * width), "%s: round %d", d->name, round);
    }
    for (int k = 0; k < LINES; k++) {
        line_close(&l[k]);
        line_close(&alone[k]);
    }
}

TEST(recur_rows_do_not_notice_their_neighbours)
{
    on_every_device(company);
}

TEST(recur_ops_refuse_steps_out_of_order)
{
    static const int32_t token[] = {1, 2, 3, 4}, loop[] = {-1, 2, 1, 0}, split[] = {-1, 0, 0, 2};
    uint64_t rng = test_seed();
    AUTO_PTR(device_close) device *d = test_device(NULL, (cpu_options){0});
    AUTO(test_pass_close) test_pass t;
    AUTO(layer_close) layer y;
    AUTO(line_close) line l;
    test_pass_open(&t, 1u << 20);
    layer_open(&y, &shapes[0], &rng);
    line_open(&l, &y.v);
    CHECK_STATUS(run(&t, d, &y, &(part){&l, token, loop, 4, false}, 1, NULL), E_ARG);
    CHECK_STATUS(run(&t, d, &y, &(part){&l, token, split, 4, true}, 1, NULL), E_ARG);
    l.s.n_pending = 1;
    l.s.pending[0] = 16;
    CHECK_STATUS(run(&t, d, &y, &(part){&l, token, NULL, 4, false}, 1, NULL), E_ARG);
    l.s.bank = 2;
    CHECK_STATUS(run(&t, d, &y, &(part){&l, token, NULL, 4, false}, 1, NULL), E_ARG);
    l.s.bank = 0;
    y.v.journal_rows = 3;
    CHECK_STATUS(run(&t, d, &y, &(part){&l, token, NULL, 4, false}, 1, NULL), E_ARG);
    CHECK_RAN(&t, run(&t, d, &y, &(part){&l, token, split, 3, false}, 1, NULL));
}

/* The check wrapper repeats the ops on a copy of the stores, and finds a store gone wrong. */
static void broken_conv(pass *p, mat y, mat x, const weight *w, const recur_view *rv)
{
    cpu_conv(p, y, x, w, rv);
    if (!p->dry)
        step_recur(p->st, 0, rv)->conv[1] += 1;
}

TEST(recur_ops_are_seen_by_the_check_wrapper)
{
    uint64_t rng = test_seed();
    device *d = test_device(NULL, (cpu_options){0}), *inner = d;
    device_ops broken = *d->op;
    err e = {0};
    test_pass t;
    layer y;
    line l[LINES];
    broken.conv = broken_conv;
    test_pass_open(&t, 16u << 20);
    layer_open(&y, &shapes[0], &rng);
    for (int k = 0; k < LINES; k++)
        line_open(&l[k], &y.v);
    float *out = mem_alloc(45 * (size_t)y.v.n_v * (size_t)y.v.dv * sizeof *out);
    CHECK(out);
    CHECK_OK(device_wrap(&d, "check", NULL, NULL, &e), e);
    drive(&t, d, &y, l, out);
    inner->op = &broken;
    CHECK_STATUS(run(&t, d, &y, &(part){&l[0], (const int32_t[]){1}, NULL, 1, true}, 1, NULL),
                 E_NUMERIC);
    for (int k = 0; k < LINES; k++)
        line_close(&l[k]);
    mem_free(out);
    layer_close(&y);
    test_pass_close(&t);
    device_close(d);
}
