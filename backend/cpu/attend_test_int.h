/* attend_test_int.h - what the tests of attention share: a store in any format on any instruction
 * set, timelines of random keys and values, passes over them, trees against chains.
 */
#ifndef BACKEND_CPU_ATTEND_TEST_INT_H
#define BACKEND_CPU_ATTEND_TEST_INT_H

#include "backend/cpu/cpu_test_int.h"

typedef struct shape {
    int32_t dim, n_head, n_head_kv, window, n_slots;
    num_type k, v;
    bool k_rot, v_rot, single;
    bool plain_window; /* all pairs turn, as in layers with windows */
} shape;

/* Every key and value of a timeline, as it was given, and as it is once it was stored. */
typedef struct timeline {
    float *k, *v, *k_seen, *v_seen; /* [n, n_head_kv, dim] */
    int32_t n;
} timeline;

typedef struct attend_fixture {
    device *d;
    shape s;
    kv_view view;
    rope turn;
    weight norm, sinks;
    test_pass t;
    size_t k_bytes, v_bytes;
    timeline line[2];
} attend_fixture;

enum { LINE_MAX_KEYS = 1200 };

__attribute__((unused)) static void seen_rows(const float *x, float *y, num_type t, bool rot,
                                              int32_t n, int32_t dim)
{
    unsigned char *raw = mem_alloc((size_t)dim * 4);
    CHECK(raw);
    for (int32_t r = 0; r < n; r++, x += dim, y += dim) {
        memcpy(y, x, (size_t)dim * 4);
        if (rot)
            num_rotate(y, dim);
        num_format_of(t)->encode(y, raw, dim);
        num_format_of(t)->decode(raw, y, dim);
        if (rot)
            num_unrotate(y, dim);
    }
    mem_free(raw);
}

/* x = RoPE_pos(w * x) */
__attribute__((unused)) static void make_key(const attend_fixture *f, int32_t pos, float *x)
{
    const float *w = f->norm.data;
    int32_t half = f->s.dim / 2;
    for (int32_t i = 0; i < half; i++) {
        double angle = (double)pos * f->turn.inv_freq[i], a = (double)x[i] * w[i];
        double b = (double)x[i + half] * w[i + half];
        x[i] = (float)(a * cos(angle) - b * sin(angle));
        x[i + half] = (float)(a * sin(angle) + b * cos(angle));
    }
}

/* A norm weight, frequencies and their table, as a model binds them. */
__attribute__((unused)) static void open_maker(attend_fixture *f, uint64_t *rng)
{
    int32_t half = f->s.dim / 2, n = f->s.plain_window ? half : half / 4;
    float *inv = mem_calloc((size_t)half, 4), *w = mem_alloc((size_t)f->s.dim * 4);
    float *turns = mem_alloc((size_t)ROPE_TURNS * 2 * (size_t)n * 4);
    CHECK(inv && w && turns);
    test_fill(w, (size_t)f->s.dim, 0.1f, rng);
    for (int32_t i = 0; i < f->s.dim; i++)
        w[i] += 0.3f;
    for (int32_t i = 0; i < n; i++)
        inv[i] = (float)pow(1e4, -2.0 * i / f->s.dim);
    for (int32_t p = 0; p < ROPE_TURNS; p++)
        for (int32_t i = 0; i < n; i++) {
            turns[2 * p * n + i] = (float)cos((double)p * inv[i]);
            turns[(2 * p + 1) * n + i] = (float)sin((double)p * inv[i]);
        }
    f->turn = (rope){.n_pairs = half, .inv_freq = inv, .n_turning = n, .turns = turns};
    f->norm = (weight){.name = "k_norm", .n_in = f->s.dim, .n_out = 1, .n_mat = 1, .data = w};
}

__attribute__((unused)) static bool fixture_open(attend_fixture *f, const char *isa, shape s,
                                                 uint64_t *rng)
{
    uint64_t k_row, v_row;
    memset(f, 0, sizeof *f);
    f->d = test_device(isa, (cpu_options){0});
    if (!f->d)
        return false;
    f->s = s;
    open_maker(f, rng);
    CHECK(num_row_bytes(s.k, (uint64_t)s.dim, &k_row) &&
          num_row_bytes(s.v, (uint64_t)s.dim, &v_row));
    f->view = (kv_view){.kind = s.window ? STORE_RING : STORE_LINEAR,
                        .k_type = s.k,
                        .v_type = s.v,
                        .n_head_kv = s.n_head_kv,
                        .head_dim = s.dim,
                        .window = s.window,
                        .n_slots = s.n_slots,
                        .n_keys = s.n_slots,
                        .k_row_bytes = k_row,
                        .v_row_bytes = s.single ? 0 : v_row,
                        .k_rot = s.k_rot,
                        .v_rot = s.v_rot,
                        .single = s.single,
                        .k_weight = &f->norm,
                        .k_rope = &f->turn};
    /* Half of the fixtures have sinks; one may be above all scores, and leave nothing of its head.
     */
    float *sinks = mem_alloc((size_t)s.n_head * sizeof *sinks);
    CHECK(sinks);
    test_fill(sinks, (size_t)s.n_head, 3.0f, rng);
    sinks[0] = rng_below(rng, 4) ? sinks[0] : 1e4f;
    f->sinks = (weight){.name = "sinks", .n_in = s.n_head, .n_out = 1, .n_mat = 1, .data = sinks};
    f->view.sinks = rng_below(rng, 2) ? &f->sinks : NULL;
    test_pass_open(&f->t, 64u << 20);
    f->t.st.all.keys[!f->view.kind] = (row_keys){0}; /* numbers of another kind: nobody's */
    f->k_bytes = (size_t)s.n_head_kv * (size_t)s.n_slots * f->view.k_row_bytes;
    f->v_bytes = (size_t)s.n_head_kv * (size_t)s.n_slots * f->view.v_row_bytes;
    f->t.st.n_seqs = 2;
    for (int i = 0; i < 2; i++) {
        f->t.kv[i].k = mem_alloc(f->k_bytes);
        f->t.kv[i].v = s.single ? NULL : mem_alloc(f->v_bytes);
        memset(f->t.kv[i].k, 0xff, f->k_bytes); /* NaN in every type: in blocks the scale is */
        if (!s.single)
            memset(f->t.kv[i].v, 0xff, f->v_bytes);
        int32_t rows = LINE_MAX_KEYS * s.n_head_kv;
        size_t n = (size_t)rows * (size_t)s.dim;
        timeline *l = &f->line[i];
        *l = (timeline){mem_alloc(n * 4), mem_alloc(n * 4), mem_alloc(n * 4), mem_alloc(n * 4),
                        LINE_MAX_KEYS};
        CHECK(l->k && l->v && l->k_seen && l->v_seen);
        test_fill(l->k, n, s.single ? 1.0f : 0.3f, rng);
        test_fill(l->v, n, 1.0f, rng);
        seen_rows(l->k, l->k_seen, s.k, s.k_rot, rows, s.dim);
        seen_rows(s.single ? l->k : l->v, l->v_seen, s.v, s.v_rot, rows, s.dim);
    }
    return true;
}

__attribute__((unused)) static void fixture_close(attend_fixture *f)
{
    for (int i = 0; i < 2; i++) {
        mem_free(f->t.kv[i].k);
        mem_free(f->t.kv[i].v);
        mem_free(f->line[i].k);
        mem_free(f->line[i].v);
        mem_free(f->line[i].k_seen);
        mem_free(f->line[i].v_seen);
    }
    mem_free((void *)f->norm.data);
    mem_free((void *)f->sinks.data);
    mem_free((void *)f->turn.inv_freq);
    mem_free((void *)f->turn.turns);
    test_pass_close(&f->t);
    device_close(f->d);
}

/* Rows of the pass are already laid out in f->t; stores keys and values number from[r] of their
 * timelines. */
__attribute__((unused)) static void store_from(attend_fixture *f, pass *p, const int32_t *from)
{
    int32_t n = p->rows->n, width = f->s.n_head_kv * f->s.dim;
    mat k = test_mat(n, f->s.n_head_kv, f->s.dim), v = test_mat(n, f->s.n_head_kv, f->s.dim);
    for (int32_t r = 0; r < n; r++) {
        const timeline *l = &f->line[p->rows->seq[r]];
        size_t at = (size_t)from[r] * (size_t)width;
        memcpy(mat_row(k, r), l->k + at, (size_t)width * 4);
        memcpy(mat_row(v, r), l->v + at, (size_t)width * 4);
    }
    f->d->op->kv_store(p, &f->view, k, v);
    CHECK_OK(p->e.status, p->e);
    test_free(k.at);
    test_free(v.at);
}

__attribute__((unused)) static void store(attend_fixture *f, pass *p)
{
    store_from(f, p, rows_keys(p->rows, &f->view)->index);
}

__attribute__((unused)) static mat attend(attend_fixture *f, pass *p, mat q)
{
    mat o = test_mat(p->rows->n, f->s.n_head, f->s.dim);
    f->d->op->attend(p, &o, q, &f->view, 0.5f);
    CHECK_OK(p->e.status, p->e);
    CHECK_EQ(pass_mark(p), 0);
    return o;
}

__attribute__((unused)) static mat queries(const attend_fixture *f, int32_t n, uint64_t *rng)
{
    mat q = test_mat(n, f->s.n_head, f->s.dim);
    test_fill(q.at, (size_t)n * (size_t)q.stride, 1.0f, rng);
    return q;
}

#define BOTH(t) .k = t, .v = t
#define ROT .k_rot = true, .v_rot = true
static const shape shapes[] = {
    {256, 8, 1, 0, LINE_MAX_KEYS, BOTH(NUM_F16)},
    {512, 8, 2, 0, LINE_MAX_KEYS, BOTH(NUM_F16)},
    {128, 4, 4, 0, LINE_MAX_KEYS, BOTH(NUM_BF16)},
    {256, 8, 2, 200, 263, BOTH(NUM_F16)},
    {64, 6, 2, 33, 96, BOTH(NUM_F32)},
    {40, 3, 1, 8, 71, BOTH(NUM_F32)},
    {8, 16, 1, 5, 70, BOTH(NUM_BF16)},
    {512, 16, 1, 0, LINE_MAX_KEYS, BOTH(NUM_F32)},
    {24, 1, 1, 100, 164, BOTH(NUM_F16)},
    {128, 9, 1, 100, 163, BOTH(NUM_F16)}, /* groups of Laguna and Qwen3.5 */
    {256, 6, 1, 0, LINE_MAX_KEYS, BOTH(NUM_F16)},
    /* blocks */
    {256, 8, 2, 200, 263, BOTH(NUM_Q8_0)},
    {512, 8, 1, 0, LINE_MAX_KEYS, BOTH(NUM_Q8_0)},
    {128, 4, 2, 100, 163, BOTH(NUM_Q4_0)},
    {256, 4, 1, 0, LINE_MAX_KEYS, BOTH(NUM_Q4_1)},
    {32, 5, 1, 33, 96, BOTH(NUM_Q5_0)},
    {128, 6, 1, 0, LINE_MAX_KEYS, BOTH(NUM_Q8_0)},
    {128, 9, 1, 40, 103, BOTH(NUM_Q4_0)},
    {96, 2, 1, 0, LINE_MAX_KEYS, BOTH(NUM_Q5_1)},
    {128, 8, 1, 40, 103, BOTH(NUM_IQ4_NL)},
    {256, 8, 2, 200, 263, BOTH(NUM_TQ3_0), ROT},
    {512, 8, 1, 0, LINE_MAX_KEYS, BOTH(NUM_TQ3_0), ROT},
    {256, 4, 2, 100, 163, BOTH(NUM_Q4_0), ROT},
    /* keys and values apart */
    {256, 4, 1, 0, LINE_MAX_KEYS, .k = NUM_Q8_0, .v = NUM_TQ3_0, .v_rot = true},
    {128, 4, 1, 50, 113, .k = NUM_TQ3_0, .v = NUM_F16, .k_rot = true},
    {256, 2, 1, 0, LINE_MAX_KEYS, .k = NUM_F32, .v = NUM_Q4_0},
    /* one stream */
    {512, 8, 2, 0, LINE_MAX_KEYS, BOTH(NUM_F32), .single = true},
    {512, 8, 1, 0, LINE_MAX_KEYS, BOTH(NUM_F16), .single = true},
    {256, 4, 1, 0, LINE_MAX_KEYS, BOTH(NUM_Q8_0), .single = true},
    {64, 4, 1, 33, 96, BOTH(NUM_F32), .single = true, .plain_window = true},
    {40, 4, 1, 33, 96, BOTH(NUM_BF16), .single = true, .plain_window = true},
    {256, 4, 1, 0, LINE_MAX_KEYS, BOTH(NUM_TQ3_0), ROT, .single = true},
};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

__attribute__((unused)) static void store_chain(attend_fixture *f, int32_t seq, int32_t n)
{
    int32_t most = f->s.window ? f->s.n_slots - f->s.window + 1 : 64;
    for (int32_t at = 0; at < n; at += most) {
        int32_t rows = n - at < most ? n - at : most;
        pass *p = test_pass_begin(&f->t, f->d, rows, at);
        for (int32_t r = 0; r < rows; r++)
            f->t.seq[r] = seq;
        store(f, p);
    }
}

/* Rows of two trees have the bits of chains with the same tokens. past: committed keys of each
 * sequence. */
__attribute__((unused)) static void check_twins(attend_fixture *f, pass *p, const int32_t *past,
                                                uint64_t *rng)
{
    int32_t n = p->rows->n, row_of[2][STEP_TREE_ROWS_MAX], seq[STEP_TREE_ROWS_MAX * 2];
    uint64_t seen[STEP_TREE_ROWS_MAX * 2];
    mat q = queries(f, n, rng), o = attend(f, p, q);
    for (int32_t r = 0; r < n; r++) {
        seq[r] = f->t.seq[r];
        seen[r] = f->t.seen[r];
        row_of[seq[r]][f->t.index[r] - past[seq[r]]] = r;
    }
    for (int32_t r = 0; r < n; r++) {
        int32_t s = seq[r], path[STEP_TREE_ROWS_MAX], from[STEP_TREE_ROWS_MAX], depth = 0;
        for (int32_t b = 0; b < STEP_TREE_ROWS_MAX; b++)
            if (seen[r] >> b & 1) {
                from[depth] = past[s] + b;
                path[depth++] = row_of[s][b];
            }
        mat one = test_mat(depth, f->s.n_head, f->s.dim);
        for (int32_t i = 0; i < depth; i++)
            memcpy(mat_row(one, i), mat_row(q, path[i]), (size_t)q.stride * sizeof(float));
        p = test_pass_begin(&f->t, f->d, depth, past[s]);
        for (int32_t i = 0; i < depth; i++)
            f->t.seq[i] = s;
        store_from(f, p, from);
        mat twin = attend(f, p, one);
        for (int32_t i = 0; i < depth; i++)
            CHECK_MSG(!memcmp(mat_row(twin, i), mat_row(o, path[i]), (size_t)o.stride * 4),
                      "%s %s%s head %d, window %d: row %d of %d in a tree has other bits than in a "
                      "chain of %d",
                      f->d->name, num_name(f->s.k), f->s.single ? " in one stream" : "", f->s.dim,
                      f->s.window, path[i], n, depth);
        test_free(one.at);
        test_free(twin.at);
    }
    test_free(q.at);
    test_free(o.at);
}

/* The same on device d, by the rules of the pass's sequences; NULL: dense. */
__attribute__((unused)) static mat attend_by(attend_fixture *f, device *d, pass *p, mat q,
                                             sparse_rule *rule)
{
    device *own = f->d;
    p->dev = f->d = d;
    p->il = 0;
    f->t.st.sparse = rule;
    mat o = attend(f, p, q);
    f->t.st.sparse = NULL;
    p->dev = f->d = own;
    return o;
}

#endif
