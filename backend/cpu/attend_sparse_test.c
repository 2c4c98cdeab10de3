/* attend_sparse_test.c - attention that drops tiles of keys, on every instruction set: against the
 * reference, which decides by the same rule; rows that depend on nothing else; the certificate.
 */
#include "backend/cpu/attend_test_int.h"
#include "backend/sparse.h"

/* Scores far enough apart that a good part of the tiles is dropped. */
static const float PEAKED = 3.0f, SKIP = 40.0f;

/* In the short suite an instruction set takes a third of the shapes, and the next one another
 * third.
 */
static int shape_step(void)
{
    return test_brief() ? 3 : 1;
}

static mat peaked(const attend_fixture *f, int32_t n, uint64_t *rng)
{
    mat q = queries(f, n, rng);
    for (int64_t i = 0; i < n * q.stride; i++)
        q.at[i] *= PEAKED;
    return q;
}

static bool same_bits(mat a, mat b)
{
    return !memcmp(a.at, b.at, (size_t)a.rows * (size_t)a.stride * sizeof(float));
}

static uint64_t pairs_of(const sparse_stats *t)
{
    uint64_t n = 0;
    for (int32_t i = 0; i < SPARSE_BINS; i++)
        n += t->bin[i];
    return n;
}

/* The reference is slow: few rows, of one, a few and many keys. */
PLAIN_TEST(cpu_sparse_attention_is_that_of_the_reference)
{
    static const int32_t lengths[] = {1, 5, 1}, past[] = {127, 251, 421};
    uint64_t rng = test_seed(), n_tiles = 0, n_kept = 0;
    AUTO_PTR(device_close) device *ref = test_device("portable", (cpu_options){.reference = true});
    const int every = 2 * shape_step() - 1;
    for (int a = 0; a < N_ISA; a++)
        for (int i = a % every; i < N_SHAPES; i += every) {
            attend_fixture f;
            if (shapes[i].window)
                continue;
            if (!fixture_open(&f, every_isa[a], shapes[i], &rng))
                break;
            store_chain(&f, 0, 421);
            for (size_t j = 0; j < sizeof lengths / sizeof *lengths; j++) {
                static sparse_stats got, want;
                got = want = (sparse_stats){0};
                sparse_rule rule[2] = {{.skip = SKIP, .stats = &got}, {.stats = NULL}};
                int32_t at = past[j];
                pass *p = test_pass_begin(&f.t, f.d, lengths[j], at);
                store(&f, p);
                mat q = peaked(&f, lengths[j], &rng);
                mat o = attend_by(&f, f.d, p, q, rule);
                rule[0].stats = &want;
                mat r = attend_by(&f, ref, p, q, rule);
                double nmse = test_nmse(o, r);
                CHECK_MSG(nmse < 1e-5, "%s %s head %d, %d of %d: nmse %g", f.d->name,
                          num_name(f.s.k), f.s.dim, lengths[j], at, nmse);
                CHECK_EQ(got.n_tiles, want.n_tiles);
                CHECK_EQ(pairs_of(&got), (uint64_t)lengths[j] * (uint64_t)f.s.n_head);
                CHECK_MSG(llabs((long long)(got.n_kept - want.n_kept)) <= 2,
                          "%s %s head %d: keeps %llu tiles, the reference %llu", f.d->name,
                          num_name(f.s.k), f.s.dim, (unsigned long long)got.n_kept,
                          (unsigned long long)want.n_kept);
                CHECK(fabs(sparse_quantile(&got, 0.99) - sparse_quantile(&want, 0.99)) <=
                      0.2 * sparse_quantile(&want, 0.99));
                n_tiles += got.n_tiles;
                n_kept += got.n_kept;
                test_free(q.at);
                test_free(o.at);
                test_free(r.at);
            }
            fixture_close(&f);
        }
    CHECK_MSG(n_kept * 10 < n_tiles * 9, "%llu of %llu tiles kept: the test tests little",
              (unsigned long long)n_kept, (unsigned long long)n_tiles);
}

/* A limit that no tile is under takes the sparse path and gives the dense bits. */
PLAIN_TEST(cpu_sparse_attention_that_drops_nothing_is_dense)
{
    uint64_t rng = test_seed();
    for (int a = 0; a < N_ISA; a++)
        for (int i = a % shape_step(); i < N_SHAPES; i += shape_step()) {
            attend_fixture f;
            if (!fixture_open(&f, every_isa[a], shapes[i], &rng))
                break;
            int32_t past = f.s.window ? 3 : 700;
            store_chain(&f, 0, past);
            for (int32_t n = 1; n <= 64; n += test_brief() ? 42 : 21) {
                static sparse_stats t;
                t = (sparse_stats){0};
                sparse_rule tiny[2] = {{.skip = 1e-37f, .stats = &t}, {.stats = NULL}};
                sparse_rule zero[2] = {{.stats = &t}, {.stats = NULL}};
                pass *p = test_pass_begin(&f.t, f.d, n, past);
                store(&f, p);
                mat q = peaked(&f, n, &rng), dense = attend_by(&f, f.d, p, q, NULL);
                mat o = attend_by(&f, f.d, p, q, zero);
                CHECK(same_bits(o, dense));
                CHECK_EQ(t.n_tiles, 0);
                test_free(o.at);
                o = attend_by(&f, f.d, p, q, tiny);
                CHECK_MSG(same_bits(o, dense), "%s %s head %d, %d rows", f.d->name, num_name(f.s.k),
                          f.s.dim, n);
                CHECK_EQ(t.n_tiles, t.n_kept);
                CHECK(f.s.window ? !t.n_tiles : t.n_tiles > 0);
                test_free(o.at);
                test_free(q.at);
                test_free(dense.at);
                past += n;
            }
            fixture_close(&f);
        }
}

/* The same row alone, in passes of any length, and beside the rows of a sequence that drops
 * nothing. */
PLAIN_TEST(cpu_sparse_row_never_notices_its_neighbours)
{
    enum { PAST = 500, ROWS = 48 };
    uint64_t rng = test_seed();
    for (int a = 0; a < N_ISA; a++)
        for (int i = a % shape_step(); i < N_SHAPES; i += shape_step()) {
            attend_fixture f;
            if (shapes[i].window)
                continue;
            if (!fixture_open(&f, every_isa[a], shapes[i], &rng))
                break;
            const sparse_rule one[2] = {{.skip = SKIP}, {.stats = NULL}};
            store_chain(&f, 0, PAST + ROWS);
            mat q = peaked(&f, ROWS, &rng);
            pass *p = test_pass_begin(&f.t, f.d, ROWS, PAST);
            mat all = attend_by(&f, f.d, p, q, (sparse_rule *)one);
            for (int32_t len = 1; len < ROWS; len += test_brief() ? 23 : 6)
                for (int32_t r = 0; r < ROWS; r += len) {
                    int32_t n = ROWS - r < len ? ROWS - r : len;
                    mat some = q;
                    some.at = mat_row(q, r);
                    some.rows = n;
                    p = test_pass_begin(&f.t, f.d, n, PAST + r);
                    mat o = attend_by(&f, f.d, p, some, (sparse_rule *)one);
                    CHECK_MSG(!memcmp(o.at, mat_row(all, r), (size_t)(n * o.stride) * 4),
                              "%s %s head %d: row %d in passes of %d", f.d->name, num_name(f.s.k),
                              f.s.dim, r, len);
                    test_free(o.at);
                }
            store_chain(&f, 1, PAST + ROWS);
            p = test_pass_begin(&f.t, f.d, ROWS, PAST);
            for (int32_t r = 1; r < ROWS; r += 2)
                f.t.seq[r] = 1;
            mat mixed = attend_by(&f, f.d, p, q, (sparse_rule *)one);
            p = test_pass_begin(&f.t, f.d, ROWS, PAST);
            for (int32_t r = 1; r < ROWS; r += 2)
                f.t.seq[r] = 1;
            mat dense = attend_by(&f, f.d, p, q, NULL);
            for (int32_t r = 0; r < ROWS; r++)
                CHECK(!memcmp(mat_row(mixed, r), mat_row(r % 2 ? dense : all, r),
                              (size_t)q.stride * 4));
            test_free(q.at);
            test_free(all.at);
            test_free(mixed.at);
            test_free(dense.at);
            fixture_close(&f);
        }
}

/* Random trees of two sequences, whose rows alternate. */
static void lay_trees(attend_fixture *f, int32_t n, const int32_t *past, uint64_t *rng)
{
    int32_t taken[2] = {0, 0}, row_of[2][STEP_TREE_ROWS_MAX];
    for (int32_t r = 0; r < n; r++) {
        int32_t s = r % 2, b = taken[s]++;
        int32_t parent = (int32_t)rng_below(rng, (uint64_t)b + 1) - 1;
        row_of[s][b] = r;
        f->t.seq[r] = s;
        f->t.first[r] = past[s];
        f->t.last[r] = past[s] + (n + !s) / 2 - 1;
        f->t.index[r] = past[s] + b;
        f->t.pos[r] = parent < 0 ? past[s] : f->t.pos[row_of[s][parent]] + 1;
        f->t.seen[r] = (parent < 0 ? 0 : f->t.seen[row_of[s][parent]]) | (uint64_t)1 << b;
    }
}

PLAIN_TEST(cpu_sparse_attention_of_trees_has_the_bits_of_chains)
{
    uint64_t rng = test_seed();
    for (int a = 0; a < N_ISA; a++)
        for (int i = a % shape_step(); i < N_SHAPES; i += shape_step()) {
            attend_fixture f;
            const int32_t past[2] = {379, 250};
            const sparse_rule rule[2] = {{.skip = 2 * SKIP}, {.skip = SKIP}};
            if (shapes[i].window)
                continue;
            if (!fixture_open(&f, every_isa[a], shapes[i], &rng))
                break;
            for (int32_t s = 0; s < 2; s++)
                store_chain(&f, s, past[s]);
            f.t.st.sparse = rule;
            for (int32_t n = 4; n <= 40; n += 18) {
                pass *p = test_pass_begin(&f.t, f.d, n, 0);
                lay_trees(&f, n, past, &rng);
                store(&f, p);
                f.t.st.all.seen = f.t.seen;
                check_twins(&f, p, past, &rng);
            }
            fixture_close(&f);
        }
}

/* One key far above all others: every tile after its own is dropped, and the result is its value.
 */
TEST(cpu_sparse_attention_after_a_sink_is_its_value)
{
    uint64_t rng = test_seed();
    shape s = {128, 8, 1, 0, LINE_MAX_KEYS, BOTH(NUM_F32)};
    AUTO(fixture_close) attend_fixture f;
    CHECK(fixture_open(&f, "portable", s, &rng));
    for (int32_t i = 0; i < s.dim; i++)
        f.line[0].k[i] = 5;
    store_chain(&f, 0, 900);
    for (int32_t n = 1; n < 40; n += 37) {
        static sparse_stats t;
        t = (sparse_stats){0};
        sparse_rule rule[2] = {{.skip = 1e-3f, .stats = &t}, {.stats = NULL}};
        pass *p = test_pass_begin(&f.t, f.d, n, 900 - n);
        mat q = test_mat(n, s.n_head, s.dim);
        for (int64_t i = 0; i < n * q.stride; i++)
            q.at[i] = 5;
        mat o = attend_by(&f, f.d, p, q, rule);
        for (int32_t r = 0; r < n; r++)
            for (int32_t i = 0; i < s.dim; i++)
                CHECK(fabsf(mat_row(o, r)[i] - f.line[0].v[i]) < 1e-6f);
        CHECK_EQ(t.n_kept, (uint64_t)n * 8);
        CHECK(t.n_tiles > 7 * t.n_kept - 1);
        test_free(q.at);
        test_free(o.at);
    }
}

/* The certificate is an upper bound of the dropped share, on flat, random and peaked scores. */
TEST(sparse_certificate_bounds_the_dropped_share)
{
    enum { KEYS = 4096 };
    static float s[KEYS];
    uint64_t rng = test_seed();
    int64_t dropped = 0;
    for (int round = 0; round < 200; round++) {
        float width = (float)(round % 20), skip = powf(10, (float)(round % 7) - 3);
        test_fill(s, KEYS, width, &rng);
        sparse_rule rule = {.skip = skip};
        sparse_walk w = {.top = -INFINITY, .limit = sparse_limit(&rule, KEYS)};
        double kept = 0, lost = 0;
        bool drop[KEYS / SPARSE_TILE];
        for (int32_t b = 0; b < KEYS / SPARSE_TILE; b++) {
            float top = -INFINITY;
            for (int32_t i = 0; i < SPARSE_TILE; i++)
                top = fmaxf(top, s[b * SPARSE_TILE + i]);
            drop[b] = sparse_drops(&w, top, SPARSE_TILE);
            dropped += drop[b];
        }
        for (int32_t i = 0; i < KEYS; i++)
            *(drop[i / SPARSE_TILE] ? &lost : &kept) += exp((double)s[i] - w.top);
        CHECK(w.n_kept > 0 && w.n_tiles == KEYS / SPARSE_TILE);
        double share = lost / (lost + kept), bound = sparse_certificate(&w, (float)kept);
        CHECK_MSG(share <= bound * 1.0001 && bound < 1, "dropped %g, certificate %g", share, bound);
    }
    CHECK(dropped > 1000);
}

TEST(sparse_stats_finds_quantiles)
{
    sparse_stats t = {0};
    CHECK(sparse_quantile(&t, 0.99) == 0);
    for (int i = 0; i < 990; i++)
        sparse_count(&t, 0, 4, 4);
    for (int i = 0; i < 10; i++)
        sparse_count(&t, 0.06, 4, 1);
    CHECK(sparse_quantile(&t, 0.99) == 0);
    double q = sparse_quantile(&t, 0.995);
    CHECK(q > 0.06 && q < 0.06 * 1.2);
    CHECK_EQ(t.n_tiles, 4000);
    CHECK_EQ(t.n_kept, 3970);
    sparse_count(&t, 1, 1, 1);
    CHECK_EQ(t.bin[SPARSE_BINS - 1], 1);
}
