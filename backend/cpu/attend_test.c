/* attend_test.c - attention on every instruction set, against a plain soft max in double.
 *
 * Keys and values are stored through kv_store, pass by pass, so rings wrap as they do in a session
 * and slots never written hold NaN. Chains and trees, windows, several sequences in a pass, every
 * format, rotated or not, in two streams and in one; and a row's bits do not depend on the pass it
 * came in, nor a tree row's on the rows beside its path.
 */
#include "backend/cpu/attend_test_int.h"

/* Rule by rule, from step.h. */
static int32_t pos_of(const attend_fixture *f, const pass *p, int32_t r, int32_t t)
{
    const rowset *rs = p->rows;
    const row_keys *k = rows_keys(rs, &f->view);
    if (rs->seen && t >= k->first[r])
        for (int32_t i = 0; i < rs->n; i++)
            if (rs->seq[i] == rs->seq[r] && k->index[i] == t)
                return rs->pos[i];
    const kv_page *page = f->t.kv[rs->seq[r]].page;
    return page ? page[t / KV_PAGE].pos + t % KV_PAGE : t;
}

static bool sees(const attend_fixture *f, const pass *p, int32_t r, int32_t t)
{
    const rowset *rs = p->rows;
    const row_keys *k = rows_keys(rs, &f->view);
    int32_t window = f->s.window;
    if (f->view.inside != KV_INSIDE_CAUSAL) {
        if (t > (f->view.inside == KV_INSIDE_ALL ? k->last : k->newest)[r])
            return false;
    } else if (rs->seen && t >= k->first[r]) {
        if (!(rs->seen[r] >> (t - k->first[r]) & 1))
            return false;
    } else if (t > k->index[r]) {
        return false;
    }
    return !window || rs->pos[r] - pos_of(f, p, r, t) < window;
}

/* The keys of head h that row r sees, made of the values where there is one stream. */
static const float *seen_key(const attend_fixture *f, const pass *p, int32_t r, int32_t t,
                             int32_t h, float *made)
{
    const timeline *l = &f->line[p->rows->seq[r]];
    const float *k =
        l->k_seen + ((size_t)t * (size_t)f->s.n_head_kv + (size_t)h) * (size_t)f->s.dim;
    if (!f->s.single)
        return k;
    memcpy(made, k, (size_t)f->s.dim * 4);
    make_key(f, pos_of(f, p, r, t), made);
    return made;
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
    AUTO_MEM double *e = mem_alloc(LINE_MAX_KEYS * sizeof *e),
                    *sum = mem_alloc((size_t)dim * sizeof *sum);
    AUTO_MEM float *made = mem_alloc((size_t)dim * sizeof *made);
    for (int32_t r = 0; r < n; r++)
        for (int32_t h = 0; h < f->s.n_head && checked(r, n); h++) {
            const timeline *l = &f->line[p->rows->seq[r]];
            int32_t end = rows_keys(p->rows, &f->view)->last[r] + 1;
            double top = -INFINITY, total = 0;
            memset(sum, 0, (size_t)dim * sizeof *sum);
            for (int32_t t = 0; t < end; t++) {
                e[t] = -INFINITY;
                if (!sees(f, p, r, t))
                    continue;
                const float *k = seen_key(f, p, r, t, h / g, made);
                e[t] = 0;
                for (int32_t i = 0; i < dim; i++)
                    e[t] += (double)mat_row(q, r)[h * dim + i] * k[i];
                e[t] *= scale;
                top = fmax(top, e[t]);
            }
            for (int32_t t = 0; t < end; t++) {
                const float *v =
                    l->v_seen +
                    ((size_t)t * (size_t)f->s.n_head_kv + (size_t)(h / g)) * (size_t)dim;
                total += e[t] = exp(e[t] - top);
                for (int32_t i = 0; i < dim && e[t] > 0; i++)
                    sum[i] += e[t] * v[i];
            }
            if (f->view.sinks)
                total += exp(((const float *)f->sinks.data)[h] - top);
            for (int32_t i = 0; i < dim; i++)
                mat_row(o, r)[h * dim + i] = (float)(sum[i] / total);
        }
    return o;
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
              "%s %s: %s%s/%s%s%s, head %d, %d of %d heads, window %d, %d slots, index %d: nmse %g",
              f->d->name, what, num_name(f->s.k), f->s.k_rot ? "+rot" : "", num_name(f->s.v),
              f->s.v_rot ? "+rot" : "", f->s.single ? " in one stream" : "", f->s.dim, f->s.n_head,
              f->s.n_head_kv, f->s.window, f->s.n_slots, rows_keys(p->rows, &f->view)->index[0],
              nmse);
    test_free(q.at);
    test_free(o.at);
    test_free(want.at);
}

/* A timeline in passes of all lengths, past the window and several times round the ring. In the
 * short suite each instruction set has half of the shapes, from `begin` on. */
static void check_chains(const char *isa, int begin)
{
    static const int32_t lengths[] = {1, 3, 64, 1, 17, 63, 2, 60, 1, 1, 64, 40, 64, 5};
    uint64_t rng = test_seed();
    for (int i = test_brief() ? begin : 0; i < N_SHAPES; i += RACES ? 8 : 1 + test_brief()) {
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

PLAIN_TEST(cpu_attention_along_a_timeline_portable)
{
    check_chains("portable", 0);
}
PLAIN_TEST(cpu_attention_along_a_timeline_avx2)
{
    check_chains("avx2", 1);
}
PLAIN_TEST(cpu_attention_along_a_timeline_avx512)
{
    check_chains("avx512", 0);
}
TEST(cpu_attention_along_a_timeline_neon)
{
    check_chains("neon", 1);
}

enum { PAGES = 20 };

/* Both sequences' keys lie in pages in random order, whose positions have gaps. */
static void put_pages(attend_fixture *f, kv_page (*table)[PAGES], uint64_t *rng)
{
    CHECK_EQ(f->s.n_slots, PAGES * KV_PAGE);
    for (int s = 0; s < 2; s++) {
        for (int32_t i = 0, pos = 0; i < PAGES; i++, pos += KV_PAGE) {
            int32_t k = (int32_t)rng_below(rng, (uint64_t)i + 1);
            pos += KV_PAGE * (int32_t)rng_below(rng, 3);
            table[s][i] = (kv_page){table[s][k].place, pos};
            table[s][k].place = i * KV_PAGE;
        }
        f->t.kv[s].page = table[s];
    }
}

/* One stream makes a key with its page's position; two streams have it in the key. */
PLAIN_TEST(cpu_attention_over_pages_that_are_apart)
{
    static const int32_t lengths[] = {64, 64, 1, 17, 3, 60, 64, 40, 1, 5};
    static const shape paged[] = {
        {512, 8, 1, 0, PAGES * KV_PAGE, BOTH(NUM_F16), .single = true},
        {256, 4, 2, 0, PAGES * KV_PAGE, BOTH(NUM_Q8_0), .single = true},
        {256, 4, 1, 0, PAGES * KV_PAGE, BOTH(NUM_TQ3_0), ROT, .single = true},
        {128, 4, 2, 0, PAGES * KV_PAGE, BOTH(NUM_Q4_0)},
        {512, 8, 1, 0, PAGES * KV_PAGE, BOTH(NUM_F32)},
    };
    uint64_t rng = test_seed();
    kv_page table[2][PAGES];
    for (int a = 0; a < N_ISA; a++)
        for (size_t i = test_brief() ? (size_t)a % 2 : 0; i < sizeof paged / sizeof *paged;
             i += 1 + test_brief()) {
            attend_fixture f;
            int32_t at = 0;
            if (!fixture_open(&f, every_isa[a], paged[i], &rng))
                break;
            put_pages(&f, table, &rng);
            for (size_t j = 0; j < sizeof lengths / sizeof *lengths; j++, at += lengths[j - 1]) {
                pass *p = test_pass_begin(&f.t, f.d, lengths[j], at);
                store(&f, p);
                check_pass(&f, p, "pages apart", 1e-11, &rng);
            }
            fixture_close(&f);
        }
}

/* Blocks of a few keys, in which each row sees the whole block: pictures inside a text; or, as
 * often, one block, which a window cuts on both sides. */
static void put_newest(attend_fixture *f, int32_t n, uint64_t *rng)
{
    int32_t size = rng_below(rng, 2) ? 1 + (int32_t)rng_below(rng, 9) : LINE_MAX_KEYS;
    for (int32_t r = 0; r < n; r++) {
        int32_t own = f->t.index[r], end = f->t.first[r];
        while (end <= own)
            end += size;
        end = end - 1 < f->t.last[r] ? end - 1 : f->t.last[r];
        int32_t reach = f->s.window ? own + f->s.window - 1 : end;
        f->t.newest[r] = end < reach ? end : reach;
    }
}

/* Two sequences of different lengths in one pass, in runs and alternating, also with rows that see
 * all rows of their sequence, or some later ones; then two trees. */
PLAIN_TEST(cpu_attention_of_two_sequences_and_of_trees)
{
    uint64_t rng = test_seed();
    for (int a = 0; a < N_ISA; a++)
        for (int i = test_brief() ? a % 3 : 0; i < N_SHAPES; i += test_brief() ? 3 : 1) {
            attend_fixture f;
            int32_t past[2] = {shapes[i].window ? 3 * shapes[i].n_slots + 5 : 125, 9};
            past[0] = past[0] > 1000 ? 1000 : past[0];
            if (!fixture_open(&f, every_isa[a], shapes[i], &rng))
                break;
            store_chain(&f, 0, past[0]);
            store_chain(&f, 1, past[1]);
            for (int32_t n = 2; n <= 40; n += test_brief() ? 38 : 19)
                for (int mixed = 0; mixed < 2; mixed++) {
                    pass *p = test_pass_begin(&f.t, f.d, n, 0);
                    int32_t taken[2] = {0, 0};
                    for (int32_t r = 0; r < n; r++) {
                        int32_t s = mixed ? r % 2 : r >= n / 3;
                        f.t.seq[r] = s;
                        f.t.first[r] = past[s];
                        f.t.last[r] = past[s] + (mixed ? (n + !s) / 2 : s ? n - n / 3 : n / 3) - 1;
                        f.t.index[r] = f.t.pos[r] = past[s] + taken[s]++;
                    }
                    store(&f, p);
                    check_pass(&f, p, mixed ? "two sequences, mixed" : "two sequences", 1e-11,
                               &rng);
                    f.view.inside = KV_INSIDE_ALL;
                    check_pass(&f, p, "all rows", 1e-11, &rng);
                    put_newest(&f, n, &rng);
                    f.view.inside = KV_INSIDE_ROWS;
                    check_pass(&f, p, "later rows", 1e-11, &rng);
                    f.view.inside = KV_INSIDE_CAUSAL;
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
                    check_twins(&f, p, past, &rng);
                }
            fixture_close(&f);
        }
}

/* A store that keeps fewer keys than its sequence has tokens: only numbers say what a row sees. */
PLAIN_TEST(cpu_attention_by_numbers_that_are_not_positions)
{
    uint64_t rng = test_seed();
    for (int a = 0; a < N_ISA; a++)
        for (int i = 0; i < N_SHAPES; i++) {
            attend_fixture f;
            if (shapes[i].window || shapes[i].single)
                continue;
            if (!fixture_open(&f, every_isa[a], shapes[i], &rng))
                break;
            store_chain(&f, 0, 150);
            pass *p = test_pass_begin(&f.t, f.d, 20, 150);
            for (int32_t r = 0; r < 20; r++)
                f.t.pos[r] += 5000;
            store(&f, p);
            check_pass(&f, p, "numbers below positions", 1e-11, &rng);
            fixture_close(&f);
        }
}

/* A row alone, in a chunk and beside another sequence: the same bits. */
PLAIN_TEST(cpu_attention_rows_do_not_notice_their_neighbours)
{
    enum { PAST = 300, ROWS = 24 };
    uint64_t rng = test_seed();
    for (int a = 0; a < N_ISA; a++)
        for (int i = test_brief() ? a % 3 : 0; i < N_SHAPES; i += test_brief() ? 3 : 1) {
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
                    test_free(o.at);
                }
            test_free(q.at);
            test_free(all.at);
            fixture_close(&f);
        }
}

/* Scores of +-3e3 and more neither overflow nor lose the winner. f32 leaves them an error of 1e-3,
 * which is what the bound is about. */
PLAIN_TEST(cpu_attention_with_huge_scores)
{
    uint64_t rng = test_seed();
    for (int a = 0; a < N_ISA; a++) {
        attend_fixture f;
        if (!fixture_open(&f, every_isa[a], shapes[3], &rng))
            continue;
        for (size_t i = 0; i < (size_t)LINE_MAX_KEYS * 2 * 256; i++)
            f.line[0].k[i] *= 1000;
        seen_rows(f.line[0].k, f.line[0].k_seen, f.s.k, false, LINE_MAX_KEYS * 2, 256);
        pass *p = test_pass_begin(&f.t, f.d, 60, 0);
        store(&f, p);
        check_pass(&f, p, "huge scores", 1e-6, &rng);
        fixture_close(&f);
    }
}

/* A key beyond f16 whose scores are all -inf, and would be left out without a trace: rows that see
 * it are NaN, and rows before it are not. */
PLAIN_TEST(cpu_attention_over_a_key_beyond_f16_is_nan)
{
    enum { BAD = 20, ROWS = 40 };
    const shape s = {128, 2, 2, 0, 128, NUM_F16, NUM_F16, false, false, false, false};
    for (int a = 0; a < N_ISA; a++) {
        uint64_t rng = test_seed();
        attend_fixture f;
        if (!fixture_open(&f, every_isa[a], s, &rng))
            continue;
        f.line[0].k[(size_t)BAD * 2 * 128] = -1e6f; /* of head 0 */
        pass *p = test_pass_begin(&f.t, f.d, ROWS, 0);
        store(&f, p);
        mat q = queries(&f, ROWS, &rng);
        for (size_t i = 0; i < (size_t)ROWS * (size_t)q.stride; i++)
            q.at[i] = fabsf(q.at[i]) + 0.01f;
        mat o = attend(&f, p, q);
        for (int32_t r = 0; r < ROWS; r++) {
            CHECK_MSG(isnan(mat_row(o, r)[0]) == (r >= BAD), "%s, row %d", every_isa[a], r);
            CHECK(!isnan(mat_row(o, r)[s.dim]));
        }
        test_free(q.at);
        test_free(o.at);
        fixture_close(&f);
    }
}

/* Far more keys than one wave of a split decode holds, in runs of blocks and merged by all threads:
 * as the reference says, and to the bit what another number of threads, and a chunk, make of it. */
PLAIN_TEST(cpu_attention_over_several_waves)
{
    enum { DIM = 64, KEYS = 17000, ROWS = 20, HEADS = 6 };
    size_t n = (size_t)KEYS * DIM;
    uint64_t rng = test_seed();
    AUTO_MEM float *x = mem_alloc(n * 4);
    AUTO_MEM uint16_t *k = mem_alloc(n * 2), *v = mem_alloc(n * 2);
    CHECK(x && k && v);
    test_fill(x, n, 0.3f, &rng);
    num_format_of(NUM_F16)->encode(x, (unsigned char *)k, (int64_t)n);
    test_fill(x, n, 1.0f, &rng);
    num_format_of(NUM_F16)->encode(x, (unsigned char *)v, (int64_t)n);
    const kv_view view = {.k_type = NUM_F16,
                          .v_type = NUM_F16,
                          .n_head_kv = 1,
                          .head_dim = DIM,
                          .n_slots = KEYS,
                          .k_row_bytes = DIM * 2,
                          .v_row_bytes = DIM * 2};
    test_pass t;
    test_pass_open(&t, 64u << 20);
    t.kv[0] = (kv_base){k, v, NULL};
    mat q = test_mat(ROWS, HEADS, DIM), want = test_mat(ROWS, HEADS, DIM);
    test_fill(q.at, (size_t)ROWS * HEADS * DIM, 1.0f, &rng);
    device *ref = test_device(NULL, (cpu_options){.reference = true});
    ref->op->attend(test_pass_begin(&t, ref, ROWS, KEYS - ROWS), &want, q, &view, 1.0f);
    for (int32_t n_threads = 1; n_threads <= 3; n_threads++) {
        AUTO_PTR(device_close) device *d = test_device(NULL, (cpu_options){.n_threads = n_threads});
        mat all = test_mat(ROWS, HEADS, DIM);
        d->op->attend(test_pass_begin(&t, d, ROWS, KEYS - ROWS), &all, q, &view, 1.0f);
        double nmse = test_nmse(all, want);
        CHECK_MSG(nmse < 1e-10, "%d threads: nmse %g", n_threads, nmse);
        for (int32_t r = 0; r < ROWS; r += r < 2 ? 1 : 6) {
            mat one = q, o = test_mat(1, HEADS, DIM);
            one.at = mat_row(q, r);
            one.rows = 1;
            d->op->attend(test_pass_begin(&t, d, 1, KEYS - ROWS + r), &o, one, &view, 1.0f);
            CHECK_MSG(!memcmp(o.at, mat_row(all, r), HEADS * DIM * 4), "%d threads: row %d differs",
                      n_threads, r);
            test_free(o.at);
        }
        test_free(all.at);
    }
    device_close(ref);
    test_pass_close(&t);
    test_free(q.at);
    test_free(want.at);
}
