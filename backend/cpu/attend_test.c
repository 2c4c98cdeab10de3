/* attend_test.c - attention on every instruction set, against a plain soft max in double.
 *
 * Keys and values are stored through kv_store, pass by pass, so rings wrap as they do in a session
 * and slots never written hold NaN. Chains and trees, windows, several sequences in a pass, every
 * element type; and a row's bits do not depend on the pass it came in.
 */
#include "backend/cpu/cpu_test_int.h"

typedef struct shape {
    int32_t dim, n_head, n_head_kv, window, n_slots;
    num_type type;
} shape;

/* Every key and value of a timeline, as it was given. */
typedef struct timeline {
    float *k, *v; /* [n, n_head_kv, dim] */
    int32_t n;
} timeline;

typedef struct attend_fixture {
    device *d;
    shape s;
    kv_view view;
    test_pass t;
    size_t kv_bytes;
    timeline line[2];
} attend_fixture;

enum { LINE_MAX_KEYS = 1200 };

static bool fixture_open(attend_fixture *f, const char *isa, shape s, uint64_t *rng)
{
    memset(f, 0, sizeof *f);
    f->d = test_device(isa, (cpu_options){0});
    if (!f->d)
        return false;
    f->s = s;
    size_t row = (size_t)s.dim * (s.type == NUM_F32 ? 4 : 2);
    f->view = (kv_view){0, s.type, s.type, s.n_head_kv, s.dim, s.window, s.n_slots, row, row};
    test_pass_open(&f->t, 64u << 20);
    f->kv_bytes = (size_t)s.n_head_kv * (size_t)s.n_slots * row;
    f->t.st.n_seqs = 2;
    for (int i = 0; i < 2; i++) {
        f->t.kv[i].k = mem_alloc(f->kv_bytes);
        f->t.kv[i].v = mem_alloc(f->kv_bytes);
        memset(f->t.kv[i].k, 0xff, f->kv_bytes); /* NaN in every type */
        memset(f->t.kv[i].v, 0xff, f->kv_bytes);
        size_t n = (size_t)LINE_MAX_KEYS * (size_t)s.n_head_kv * (size_t)s.dim;
        f->line[i] = (timeline){mem_alloc(n * 4), mem_alloc(n * 4), LINE_MAX_KEYS};
        test_fill(f->line[i].k, n, 0.3f, rng);
        test_fill(f->line[i].v, n, 1.0f, rng);
    }
    return true;
}

static void fixture_close(attend_fixture *f)
{
    for (int i = 0; i < 2; i++) {
        mem_free(f->t.kv[i].k);
        mem_free(f->t.kv[i].v);
        mem_free(f->line[i].k);
        mem_free(f->line[i].v);
    }
    test_pass_close(&f->t);
    device_close(f->d);
}

/* Rows of the pass are already laid out in f->t; stores their keys and values. */
static void store(attend_fixture *f, pass *p)
{
    int32_t n = p->rows->n, width = f->s.n_head_kv * f->s.dim;
    mat k = test_mat(n, f->s.n_head_kv, f->s.dim), v = test_mat(n, f->s.n_head_kv, f->s.dim);
    for (int32_t r = 0; r < n; r++) {
        const timeline *l = &f->line[p->rows->seq[r]];
        size_t at = (size_t)p->rows->index[r] * (size_t)width;
        memcpy(mat_row(k, r), l->k + at, (size_t)width * 4);
        memcpy(mat_row(v, r), l->v + at, (size_t)width * 4);
    }
    f->d->op->kv_store(p, &f->view, k, v);
    CHECK_OK(p->e.status, p->e);
    mem_free(k.at);
    mem_free(v.at);
}

static float stored(num_type t, float x)
{
    return t == NUM_F32   ? x
           : t == NUM_F16 ? num_f16_to_f32(num_f32_to_f16(x))
                          : num_bf16_to_f32(num_f32_to_bf16(x));
}

/* Rule by rule, from step.h. */
static bool sees(const pass *p, int32_t r, int32_t window, int32_t index)
{
    const rowset *rs = p->rows;
    int32_t pos = index;
    if (rs->seen && index >= rs->first[r]) {
        if (!(rs->seen[r] >> (index - rs->first[r]) & 1))
            return false;
        for (int32_t i = 0; i < rs->n; i++)
            if (rs->seq[i] == rs->seq[r] && rs->index[i] == index)
                pos = rs->pos[i];
    } else if (index > rs->index[r]) {
        return false;
    }
    return !window || rs->pos[r] - pos < window;
}

/* The plain soft max is slow: of a long pass it takes the ends and every thirteenth row. */
static bool checked(int32_t r, int32_t n)
{
    return r < 2 || r >= n - 2 || r % 13 == 0;
}

static mat plain(const attend_fixture *f, const pass *p, mat q, float scale)
{
    int32_t dim = f->s.dim, g = f->s.n_head / f->s.n_head_kv, n = p->rows->n;
    mat o = test_mat(n, f->s.n_head, dim);
    double *e = mem_alloc(LINE_MAX_KEYS * sizeof *e);
    for (int32_t r = 0; r < n; r++)
        for (int32_t h = 0; h < f->s.n_head && checked(r, n); h++) {
            const timeline *l = &f->line[p->rows->seq[r]];
            int32_t end = p->rows->first[r] + STEP_TREE_ROWS_MAX;
            end = end > p->rows->index[r] + 1 ? end : p->rows->index[r] + 1;
            end = end < l->n ? end : l->n;
            double top = -INFINITY, sum = 0;
            for (int32_t t = 0; t < end; t++) {
                size_t at = ((size_t)t * (size_t)f->s.n_head_kv + (size_t)(h / g)) * (size_t)dim;
                e[t] = -INFINITY;
                if (!sees(p, r, f->s.window, t))
                    continue;
                e[t] = 0;
                for (int32_t i = 0; i < dim; i++)
                    e[t] += (double)mat_row(q, r)[h * dim + i] *
                            stored(f->s.type, l->k[at + (size_t)i]);
                e[t] *= scale;
                top = fmax(top, e[t]);
            }
            for (int32_t t = 0; t < end; t++)
                sum += e[t] = exp(e[t] - top);
            for (int32_t i = 0; i < dim; i++) {
                double v = 0;
                for (int32_t t = 0; t < end; t++)
                    v += e[t] > 0
                             ? e[t] / sum *
                                   stored(
                                       f->s.type,
                                       l->v[((size_t)t * (size_t)f->s.n_head_kv + (size_t)(h / g)) *
                                                (size_t)dim +
                                            (size_t)i])
                             : 0;
                mat_row(o, r)[h * dim + i] = (float)v;
            }
        }
    mem_free(e);
    return o;
}

static mat attend(attend_fixture *f, pass *p, mat q)
{
    mat o = test_mat(p->rows->n, f->s.n_head, f->s.dim);
    f->d->op->attend(p, o, q, &f->view, 0.5f);
    CHECK_OK(p->e.status, p->e);
    CHECK_EQ(p->at, 0);
    return o;
}

static mat queries(const attend_fixture *f, int32_t n, uint64_t *rng)
{
    mat q = test_mat(n, f->s.n_head, f->s.dim);
    test_fill(q.at, (size_t)n * (size_t)q.stride, 1.0f, rng);
    return q;
}

static void check_pass(attend_fixture *f, pass *p, const char *what, double bound, uint64_t *rng)
{
    mat q = queries(f, p->rows->n, rng);
    mat o = attend(f, p, q), want = plain(f, p, q, 0.5f);
    for (int32_t r = 0; r < o.rows; r++)
        for (int64_t i = 0; i < o.stride && !checked(r, o.rows); i++) {
            CHECK(isfinite(mat_row(o, r)[i]));
            mat_row(want, r)[i] = mat_row(o, r)[i];
        }
    double nmse = test_nmse(o, want);
    CHECK_MSG(nmse < bound,
              "%s %s: head %d, %d of %d heads, window %d, %d slots, index %d: nmse %g", f->d->name,
              what, f->s.dim, f->s.n_head, f->s.n_head_kv, f->s.window, f->s.n_slots,
              p->rows->index[0], nmse);
    mem_free(q.at);
    mem_free(o.at);
    mem_free(want.at);
}

static const shape shapes[] = {
    {256, 8, 1, 0, LINE_MAX_KEYS, NUM_F16},
    {512, 8, 2, 0, LINE_MAX_KEYS, NUM_F16},
    {128, 4, 4, 0, LINE_MAX_KEYS, NUM_BF16},
    {256, 8, 2, 200, 263, NUM_F16},
    {64, 6, 2, 33, 96, NUM_F32},
    {40, 3, 1, 8, 71, NUM_F32},
    {8, 16, 1, 5, 70, NUM_BF16},
    {512, 16, 1, 0, LINE_MAX_KEYS, NUM_F32},
    {24, 1, 1, 100, 164, NUM_F16},
};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

/* A timeline in passes of all lengths, past the window and several times round the ring. */
static void check_chains(const char *isa)
{
    static const int32_t lengths[] = {1, 3, 64, 1, 17, 63, 2, 60, 1, 1, 64, 40, 64, 5};
    uint64_t rng = test_seed();
    for (int i = 0; i < N_SHAPES; i++) {
        attend_fixture f;
        if (!fixture_open(&f, isa, shapes[i], &rng))
            return;
        int32_t at = 0;
        for (size_t j = 0; j < sizeof lengths / sizeof *lengths; j++) {
            pass *p = test_pass_begin(&f.t, f.d, lengths[j], at);
            store(&f, p);
            check_pass(&f, p, "chain", 1e-11, &rng);
            at += lengths[j];
        }
        fixture_close(&f);
    }
}

TEST(cpu_attention_along_a_timeline_portable)
{
    check_chains("portable");
}
TEST(cpu_attention_along_a_timeline_avx2)
{
    check_chains("avx2");
}
TEST(cpu_attention_along_a_timeline_avx512)
{
    check_chains("avx512");
}
TEST(cpu_attention_along_a_timeline_neon)
{
    check_chains("neon");
}

static void store_chain(attend_fixture *f, int32_t seq, int32_t n)
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

/* Two sequences of different lengths in one pass, in runs and alternating; then two trees. */
TEST(cpu_attention_of_two_sequences_and_of_trees)
{
    uint64_t rng = test_seed();
    for (int a = 0; a < N_ISA; a++)
        for (int i = 0; i < N_SHAPES; i++) {
            attend_fixture f;
            int32_t past[2] = {shapes[i].window ? 3 * shapes[i].n_slots + 5 : 131, 9};
            past[0] = past[0] > 1000 ? 1000 : past[0];
            if (!fixture_open(&f, every_isa[a], shapes[i], &rng))
                break;
            store_chain(&f, 0, past[0]);
            store_chain(&f, 1, past[1]);
            for (int32_t n = 2; n <= 40; n += 19)
                for (int mixed = 0; mixed < 2; mixed++) {
                    pass *p = test_pass_begin(&f.t, f.d, n, 0);
                    int32_t taken[2] = {0, 0};
                    for (int32_t r = 0; r < n; r++) {
                        int32_t s = mixed ? r % 2 : r >= n / 3;
                        f.t.seq[r] = s;
                        f.t.first[r] = past[s];
                        f.t.index[r] = f.t.pos[r] = past[s] + taken[s]++;
                    }
                    store(&f, p);
                    check_pass(&f, p, mixed ? "two sequences, mixed" : "two sequences", 1e-11,
                               &rng);
                    /* the same rows as random trees */
                    taken[0] = taken[1] = 0;
                    int32_t row_of[2][STEP_TREE_ROWS_MAX];
                    for (int32_t r = 0; r < n; r++) {
                        int32_t s = f.t.seq[r], b = taken[s]++;
                        int32_t parent = (int32_t)rng_below(&rng, (uint64_t)b + 1) - 1;
                        row_of[s][b] = r;
                        f.t.pos[r] = parent < 0 ? past[s] : f.t.pos[row_of[s][parent]] + 1;
                        f.t.seen[r] = (parent < 0 ? 0 : f.t.seen[row_of[s][parent]]) | (uint64_t)1
                                                                                           << b;
                    }
                    f.t.st.all.seen = f.t.seen;
                    check_pass(&f, p, "trees", 1e-11, &rng);
                }
            fixture_close(&f);
        }
}

/* A row alone, in a chunk and beside another sequence: the same bits. */
TEST(cpu_attention_rows_do_not_notice_their_neighbours)
{
    enum { PAST = 300, ROWS = 24 };
    uint64_t rng = test_seed();
    for (int a = 0; a < N_ISA; a++)
        for (int i = 0; i < N_SHAPES; i++) {
            attend_fixture f;
            if (!fixture_open(&f, every_isa[a], shapes[i], &rng))
                break;
            store_chain(&f, 0, PAST);
            store_chain(&f, 1, 30);
            mat q = queries(&f, ROWS, &rng);
            pass *p = test_pass_begin(&f.t, f.d, ROWS, PAST);
            store(&f, p);
            mat all = attend(&f, p, q);
            for (int32_t n = 1; n <= ROWS; n = n < 4 ? n + 1 : n * 2)
                for (int32_t r = 0; r + n <= ROWS; r += n) {
                    mat some = q;
                    some.at = mat_row(q, r);
                    some.rows = n;
                    p = test_pass_begin(&f.t, f.d, n, PAST + r);
                    mat o = attend(&f, p, some);
                    CHECK_MSG(!memcmp(o.at, mat_row(all, r), (size_t)n * (size_t)o.stride * 4),
                              "%s head %d: rows %d..%d differ", f.d->name, f.s.dim, r, r + n);
                    mem_free(o.at);
                }
            mem_free(q.at);
            mem_free(all.at);
            fixture_close(&f);
        }
}

/* Scores of +-3e3 and more neither overflow nor lose the winner. f32 leaves them an error of 1e-3,
 * which is what the bound is about. */
TEST(cpu_attention_with_huge_scores)
{
    uint64_t rng = test_seed();
    for (int a = 0; a < N_ISA; a++) {
        attend_fixture f;
        if (!fixture_open(&f, every_isa[a], shapes[3], &rng))
            continue;
        for (size_t i = 0; i < (size_t)LINE_MAX_KEYS * 2 * 256; i++)
            f.line[0].k[i] *= 1000;
        pass *p = test_pass_begin(&f.t, f.d, 60, 0);
        store(&f, p);
        check_pass(&f, p, "huge scores", 1e-6, &rng);
        fixture_close(&f);
    }
}
