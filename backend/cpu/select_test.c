/* select_test.c - block selection: against the reference's sets and results, against exact
 * attention where every tile is kept, and its independence of how a prompt is cut.
 */
#include "backend/cpu/attend_test_int.h"
#include "backend/sparse.h"

/* Wide enough scores that the shares of random tiles differ. */
static const float PEAKED = 4.0f;

static const shape wide[] = {
    {128, 4, 2, 0, LINE_MAX_KEYS, BOTH(NUM_F16)},
    {256, 3, 1, 0, LINE_MAX_KEYS, BOTH(NUM_Q8_0)},
    {512, 2, 1, 0, LINE_MAX_KEYS, BOTH(NUM_F32)},
};
enum { N_WIDE = sizeof wide / sizeof *wide };

static mat peaked(const attend_fixture *f, int32_t n, uint64_t *rng)
{
    mat q = queries(f, n, rng);
    for (int64_t i = 0; i < n * q.stride; i++)
        q.at[i] *= PEAKED;
    return q;
}

/* Keys of a tile have a part in common, so that means tell tiles apart. */
static void structure(attend_fixture *f, uint64_t *rng)
{
    size_t width = (size_t)f->s.dim * (size_t)f->s.n_head_kv;
    AUTO_MEM float *part = mem_alloc(width * sizeof *part);
    CHECK(part);
    for (int32_t line = 0; line < 2; line++)
        for (int32_t t = 0; t < LINE_MAX_KEYS; t++) {
            if (t % SPARSE_TILE == 0)
                test_fill(part, width, 1, rng);
            for (size_t i = 0; i < width; i++)
                f->line[line].k[(size_t)t * width + i] += part[i];
        }
}

static bool same_rows(mat a, int32_t a0, mat b, int32_t b0, int32_t n)
{
    return !memcmp(mat_row(a, a0), mat_row(b, b0), (size_t)n * (size_t)a.stride * sizeof(float));
}

/* The reference selects by sums in double; the kernels' means are bf16. So sets may differ near the
 * threshold, and results where they do. */
TEST(cpu_block_selection_is_that_of_the_reference)
{
    enum { PAST = 640, ROWS = 256 };
    uint64_t rng = test_seed();
    AUTO_PTR(device_close) device *ref = test_device("portable", (cpu_options){.reference = true});
    for (int i = 0; i < (SANITIZED ? 1 : N_WIDE); i++) {
        AUTO(fixture_close) attend_fixture f;
        static sparse_stats got, want;
        got = want = (sparse_stats){0};
        sparse_rule rule[2] = {{.alpha = 0.5f, .n_prompt = 5000, .stats = &got}, {.stats = NULL}};
        CHECK(fixture_open(&f, every_isa[N_ISA - 1], wide[i], &rng) ||
              fixture_open(&f, "portable", wide[i], &rng));
        structure(&f, &rng);
        store_chain(&f, 0, PAST + ROWS);
        pass *p = test_pass_begin(&f.t, f.d, ROWS, PAST);
        mat q = peaked(&f, ROWS, &rng), o = attend_by(&f, f.d, p, q, rule);
        rule[0].stats = &want;
        mat r = attend_by(&f, ref, p, q, rule);
        uint64_t n = want.n_tiles;
        CHECK_EQ(got.n_tiles, n);
        CHECK_MSG(want.n_kept * 20 < n * 19, "%d: %llu of %llu tiles kept: the test tests little",
                  f.s.dim, (unsigned long long)want.n_kept, (unsigned long long)n);
        CHECK_MSG((double)llabs((long long)(got.n_kept - want.n_kept)) < 0.02 * (double)n,
                  "head %d: keeps %llu tiles of %llu, the reference %llu", f.s.dim,
                  (unsigned long long)got.n_kept, (unsigned long long)n,
                  (unsigned long long)want.n_kept);
        if (got.n_kept == want.n_kept)
            CHECK_MSG(test_nmse(o, r) < 1e-5, "head %d: nmse %g", f.s.dim, test_nmse(o, r));
        test_free(q.at);
        test_free(o.at);
        test_free(r.at);
    }
}

/* A threshold that no tile is under; passes without a whole query block; the prompt's end. */
PLAIN_TEST(cpu_block_selection_that_keeps_all_is_exact)
{
    static const struct {
        int32_t rows, past, n_prompt;
        float alpha;
    } c[] = {{256, 640, 5000, 1e-37f}, {1, 900, 5000, 1},  {127, 640, 5000, 1},
             {255, 641, 896, 1},       {256, 640, 896, 1}, {129, 0, 5000, 1}};
    uint64_t rng = test_seed();
    for (int a = 0; a < N_ISA; a++)
        for (int i = 0; i < N_WIDE; i++) {
            attend_fixture f;
            if (!fixture_open(&f, every_isa[a], wide[i], &rng))
                break;
            store_chain(&f, 0, 1000);
            for (size_t k = 0; k < sizeof c / sizeof *c; k++) {
                static sparse_stats t;
                t = (sparse_stats){0};
                sparse_rule rule[2] = {
                    {.alpha = c[k].alpha, .n_prompt = c[k].n_prompt, .stats = &t}, {.stats = NULL}};
                pass *p = test_pass_begin(&f.t, f.d, c[k].rows, c[k].past);
                mat q = peaked(&f, c[k].rows, &rng), dense = attend_by(&f, f.d, p, q, NULL);
                mat o = attend_by(&f, f.d, p, q, rule);
                CHECK_MSG(same_rows(o, 0, dense, 0, c[k].rows), "%s head %d case %d", f.d->name,
                          f.s.dim, (int)k);
                CHECK(t.n_tiles > 0 && t.n_kept == t.n_tiles);
                CHECK_EQ(sparse_quantile(&t, 1), 0);
                test_free(q.at);
                test_free(o.at);
                test_free(dense.at);
            }
            fixture_close(&f);
        }
}

/* The same rows in one pass, in passes of one query block, and beside another sequence. */
PLAIN_TEST(cpu_block_selection_does_not_depend_on_passes)
{
    enum { PAST = 896, ROWS = 256 };
    uint64_t rng = test_seed();
    for (int a = 0; a < N_ISA; a++)
        for (int i = 0; i < N_WIDE; i++) {
            attend_fixture f;
            if (!fixture_open(&f, every_isa[a], wide[i], &rng))
                break;
            const sparse_rule one[2] = {{.alpha = 0.7f, .n_prompt = 5000}, {.stats = NULL}};
            structure(&f, &rng);
            store_chain(&f, 0, PAST + ROWS);
            store_chain(&f, 1, PAST + ROWS);
            mat q = peaked(&f, ROWS, &rng);
            pass *p = test_pass_begin(&f.t, f.d, ROWS, PAST);
            mat all = attend_by(&f, f.d, p, q, (sparse_rule *)one);
            mat dense = attend_by(&f, f.d, p, q, NULL);
            CHECK(!same_rows(all, 0, dense, 0, ROWS));
            for (int32_t r = 0; r < ROWS; r += SPARSE_TILE) {
                mat some = q;
                some.at = mat_row(q, r);
                some.rows = SPARSE_TILE;
                p = test_pass_begin(&f.t, f.d, SPARSE_TILE, PAST + r);
                mat o = attend_by(&f, f.d, p, some, (sparse_rule *)one);
                CHECK(same_rows(o, 0, all, r, SPARSE_TILE));
                test_free(o.at);
            }
            p = test_pass_begin(&f.t, f.d, ROWS, PAST);
            for (int32_t r = SPARSE_TILE; r < ROWS; r++)
                f.t.seq[r] = 1;
            mat mixed = attend_by(&f, f.d, p, q, (sparse_rule *)one);
            CHECK(same_rows(mixed, 0, all, 0, SPARSE_TILE));
            test_free(q.at);
            test_free(all.at);
            test_free(dense.at);
            test_free(mixed.at);
            fixture_close(&f);
        }
}

/* One tile's keys point where the queries do: it is kept, and few others are. */
TEST(cpu_block_selection_finds_the_tile_that_counts)
{
    enum { PAST = 1024, ROWS = 128, NEEDLE = 4 };
    uint64_t rng = test_seed();
    AUTO(fixture_close) attend_fixture f;
    static sparse_stats t;
    t = (sparse_stats){0};
    sparse_rule rule[2] = {{.alpha = 0.2f, .n_prompt = 5000, .stats = &t}, {.stats = NULL}};
    CHECK(fixture_open(&f, "portable", wide[0], &rng));
    size_t width = (size_t)f.s.dim * (size_t)f.s.n_head_kv;
    for (int32_t k = NEEDLE * SPARSE_TILE; k < (NEEDLE + 1) * SPARSE_TILE; k++)
        for (size_t i = 0; i < width; i++)
            f.line[0].k[(size_t)k * width + i] = 0.5f;
    store_chain(&f, 0, PAST + ROWS);
    pass *p = test_pass_begin(&f.t, f.d, ROWS, PAST);
    mat q = test_mat(ROWS, f.s.n_head, f.s.dim);
    for (int64_t i = 0; i < ROWS * q.stride; i++)
        q.at[i] = 1;
    mat o = attend_by(&f, f.d, p, q, rule), dense = attend_by(&f, f.d, p, q, NULL);
    uint64_t forced = SPARSE_SINK + SPARSE_NEAR;
    CHECK_EQ(t.n_tiles, (uint64_t)ROWS * 4 * 9);
    CHECK_EQ(t.n_kept, (uint64_t)ROWS * 4 * (forced + 1));
    CHECK(test_nmse(o, dense) < 1e-3);
    test_free(q.at);
    test_free(o.at);
    test_free(dense.at);
}

TEST(sparse_queries_are_whole_blocks_before_the_prompts_end)
{
    enum { N = 700 };
    int32_t index[N], seq[N], of_row[N];
    sparse_query list[N / SPARSE_TILE];
    const kv_view kv = {.kind = STORE_LINEAR}, ring = {.kind = STORE_RING, .window = 128};
    sparse_rule rule[2] = {{.alpha = 0.1f, .n_prompt = 1000}, {.stats = NULL}};
    const step st = {.n_seqs = 2, .sparse = rule};
    rowset rs = {.n = N, .seq = seq};
    rs.keys[STORE_LINEAR].index = rs.keys[STORE_RING].index = index;
    for (int32_t i = 0; i < N; i++) {
        index[i] = i < 600 ? 100 + i : i - 600;
        seq[i] = i >= 600;
    }
    /* 100 ..: blocks 1 to 4 are whole; the prompt has 8, of which the last two keep all. */
    CHECK_EQ(sparse_queries(&st, &rs, &kv, list, of_row), 4);
    for (int32_t i = 0; i < 4; i++)
        CHECK(list[i].r0 == 28 + 128 * i && list[i].block == 1 + i);
    CHECK(of_row[27] == -1 && of_row[28] == 0 && of_row[155] == 0 && of_row[156] == 1);
    CHECK(of_row[539] == 3 && of_row[540] == -1 && of_row[N - 1] == -1);
    rule[0].n_prompt = 700;
    CHECK_EQ(sparse_queries(&st, &rs, &kv, list, of_row), 3);
    CHECK_EQ(sparse_queries(&st, &rs, &ring, list, of_row), 0);
    rule[0].alpha = 0;
    CHECK_EQ(sparse_queries(&st, &rs, &kv, list, of_row), 0);
    CHECK_EQ(sparse_fixed(0), 0);
    CHECK_EQ(sparse_fixed(256), 0);
    CHECK_EQ(sparse_fixed(257), 128);
}
