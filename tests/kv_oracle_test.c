/* kv_oracle_test.c - a cache must not change a model's logits, in any format.
 *
 * The oracle is token by token: one row per pass, the same format. Compared with it, bit for bit at
 * every row: chunks of all sizes, over prompts of 3, 8 and 43 windows whose last chunk is shorter
 * than the window; verify batches of 1 to 16 rows, chains and trees, of which a random number is
 * rejected; several sequences in a pass; rewinds and edits. And every cache is compared with an f32
 * cache of the same numbers. The model is that of kv_rig.h.
 */
#include "tests/kv_codes.h"
#include "tests/kv_rig.h"
#include "tests/test.h"
#include "base/mem.h"
#include "base/rng.h"
#include "model/gemma4.h"

/* The larger distance; a NaN stays. */
static double further(double than, double a, double b)
{
    double d = fabs(a - b);
    return isnan(than) || d <= than ? than : d;
}

typedef void (*check_fn)(rig *r, const kv_words *w, const int32_t *ids, const float *want,
                         uint64_t *rng);

/* Calls fn for every format i with i % of == part, so that tests can run side by side. Sanitized,
 * for a sixth of these, which depends on the test: formats are code of backend/, whose own tests
 * take all. */
static void each_format(check_fn fn, int part, int of)
{
    uint64_t rng = test_seed();
    int32_t ids[RIG_LONG];
    AUTO(rig_close) rig r;
    char text[128];
    rig_open(&r);
    rig_draw(ids, RIG_LONG, &rng);
    const int sixth = test_brief() ? (int)(rng % 6) : 0;
    for (int i = part + of * sixth; i < RIG_FORMATS; i += of * (test_brief() ? 6 : 1)) {
        printf("  %s\n", rig_words(&rig_format[i], text, sizeof text));
        AUTO_MEM float *want = rig_token_by_token(&r, &rig_format[i], ids);
        fn(&r, &rig_format[i], ids, want, &rng);
    }
}

static void check_chunks(rig *r, const kv_words *w, const int32_t *ids, const float *want,
                         uint64_t *rng)
{
    static const int32_t chunks[] = {5,        64,      RIG_WINDOW - 1, RIG_WINDOW, RIG_WINDOW + 1,
                                     RIG_ROWS, RIG_LONG};
    static const int32_t lengths[] = {3 * RIG_WINDOW + 1, 8 * RIG_WINDOW + 5, RIG_LONG};
    AUTO_MEM float *got = mem_alloc((size_t)RIG_LONG * RIG_VOCAB * sizeof *got);
    (void)rng;
    CHECK(got);
    for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
        rig_open_cache(r, w, chunks[i]);
        for (size_t j = test_brief() ? 2 : 0; j < sizeof lengths / sizeof *lengths; j++) {
            int32_t n = lengths[j];
            kv_reset(&r->c);
            rig_poison(&r->c); /* keys of an earlier prompt would hide a hole */
            for (int32_t at = 0; at < n; at += chunks[i]) {
                int32_t rows = n - at < chunks[i] ? n - at : chunks[i];
                rig_run(r, ids + at, rows, rows, got + (size_t)at * RIG_VOCAB);
            }
            CHECK_MSG(rig_same(got, want, n), "chunks of %d over %d tokens: other bits", chunks[i],
                      n);
        }
        rig_close_cache(r);
    }
}

PLAIN_TEST(kv_oracle_chunks_of_every_size_a)
{
    each_format(check_chunks, 0, 2);
}
PLAIN_TEST(kv_oracle_chunks_of_every_size_b)
{
    each_format(check_chunks, 1, 2);
}

/* Speculative decoding: drafts of up to 15 tokens, of which a random number is right. Rejected rows
 * must leave no trace. */
static void check_verify(rig *r, const kv_words *w, const int32_t *ids, const float *want,
                         uint64_t *rng)
{
    float got[16 * RIG_VOCAB];
    int32_t batch[16], n_rejected = 0;
    rig_open_cache(r, w, 16);
    for (int32_t at = 0; at < RIG_LONG;) {
        int32_t n = 1 + (int32_t)rng_below(rng, 16), good;
        n = n < RIG_LONG - at ? n : RIG_LONG - at;
        good = (int32_t)rng_below(rng, (uint64_t)n + 1); /* 0: the verify is abandoned */
        memcpy(batch, ids + at, sizeof *batch * (size_t)n);
        for (int32_t i = good; i < n; i++)
            batch[i] = (batch[i] + 1 + (int32_t)rng_below(rng, RIG_VOCAB - 1)) % RIG_VOCAB;
        rig_run(r, batch, n, good, got);
        CHECK_MSG(rig_same(got, want + (size_t)at * RIG_VOCAB, good),
                  "a batch of %d at %d, %d accepted: other bits", n, at, good);
        n_rejected += n - good;
        at += good;
    }
    CHECK(n_rejected > RIG_LONG / 4);
    rig_close_cache(r);
}

PLAIN_TEST(kv_oracle_verify_batches_with_rejections)
{
    each_format(check_verify, 0, 1);
}

/* The same with trees: the right rows, then wrong ones that branch off anywhere, then one right row
 * at a late place. */
static void check_trees(rig *r, const kv_words *w, const int32_t *ids, const float *want,
                        uint64_t *rng)
{
    float got[16 * RIG_VOCAB];
    int n_late = 0;
    rig_open_cache(r, w, 16);
    for (int32_t at = 0; at < RIG_LONG;) {
        int32_t batch[16], parent[16], n = 2 + (int32_t)rng_below(rng, 15);
        int32_t good = 1 + (int32_t)rng_below(rng, (uint64_t)n - 1);
        good = good < RIG_LONG - at ? good : RIG_LONG - at;
        n = at + n > RIG_CTX ? RIG_CTX - at : n;
        for (int32_t i = 0; i < n; i++) {
            parent[i] = i < good ? i - 1 : (int32_t)rng_below(rng, (uint64_t)i + 1) - 1;
            batch[i] = i < good ? ids[at + i] : (int32_t)rng_below(rng, RIG_VOCAB);
        }
        bool late = n > good + 1 && at + good < RIG_LONG;
        if (late) {
            parent[n - 1] = good - 1;
            batch[n - 1] = ids[at + good];
        }
        err e = {0};
        CHECK_OK(kv_reserve(&r->c, n, &e), e);
        CHECK_OK(kv_batch_add(&r->b, &r->c, batch, n, parent, KV_WANT_ALL, &e), e);
        rig_pass(r, got);
        CHECK_MSG(rig_same(got, want + (size_t)at * RIG_VOCAB, good),
                  "a tree of %d at %d, %d accepted: other bits", n, at, good);
        CHECK_MSG(!late || rig_same(got + (size_t)(n - 1) * RIG_VOCAB,
                                    want + (size_t)(at + good) * RIG_VOCAB, 1),
                  "the late row of a tree of %d at %d: other bits", n, at);
        n_late += late;
        kv_commit(&r->c, good);
        at += good;
    }
    CHECK(n_late > 20);
    rig_close_cache(r);
}

PLAIN_TEST(kv_oracle_verify_trees_with_rejections)
{
    each_format(check_trees, 0, 1);
}

/* Several timelines in each pass, at different positions, with different numbers of rows. */
static void check_neighbours(rig *r, const kv_words *w, const int32_t *ids, const float *want,
                             uint64_t *rng)
{
    enum { N = 3, ROWS = 24 };
    float got[ROWS * RIG_VOCAB];
    kv_cache c[N];
    err e = {0};
    rig_open_cache(r, w, ROWS);
    for (int k = 0; k < N; k++) {
        CHECK_OK(kv_open(&c[k], r->dev, &r->l, &e), e);
        rig_poison(&c[k]);
    }
    for (int round = 0; round < 60; round++) {
        int32_t n[N], left = ROWS;
        for (int k = 0; k < N; k++) {
            n[k] = (int32_t)rng_below(rng, (uint64_t)(left < 12 ? left : 12) + 1);
            n[k] = c[k].n_past + n[k] > RIG_LONG ? 0 : n[k];
            left -= n[k];
            if (!n[k])
                continue;
            CHECK_OK(kv_reserve(&c[k], n[k], &e), e);
            CHECK_OK(kv_batch_add(&r->b, &c[k], ids + c[k].n_past, n[k], NULL, KV_WANT_ALL, &e), e);
        }
        if (left == ROWS)
            continue;
        rig_pass(r, got);
        const float *at = got;
        for (int k = 0; k < N; k++) {
            CHECK_MSG(rig_same(at, want + (size_t)c[k].n_past * RIG_VOCAB, n[k]),
                      "%d rows at %lld beside others: other bits", n[k], (long long)c[k].n_past);
            kv_commit(&c[k], n[k]);
            at += (size_t)n[k] * RIG_VOCAB;
        }
    }
    for (int k = 0; k < N; k++)
        kv_close(&c[k]);
    rig_close_cache(r);
}

PLAIN_TEST(kv_oracle_timelines_in_one_pass)
{
    each_format(check_neighbours, 0, 1);
}

/* Random rewinds (refused ones start over), then chunks of random sizes. */
static void check_edits(rig *r, const kv_words *w, const int32_t *ids, const float *want,
                        uint64_t *rng)
{
    AUTO_MEM float *got = mem_alloc((size_t)40 * RIG_VOCAB * sizeof *got);
    int n_rewound = 0, n_refused = 0;
    CHECK(got);
    rig_open_cache(r, w, 40);
    for (int round = 0; round < 120; round++) {
        int64_t at = r->c.n_past;
        if (at && rng_below(rng, 3) == 0) {
            int64_t to = at - (int64_t)rng_below(rng, (uint64_t)(at < 50 ? at : 50));
            if (kv_rewind(&r->c, to)) {
                n_rewound++;
            } else {
                n_refused++;
                kv_reset(&r->c);
            }
            at = r->c.n_past;
        }
        int32_t n = 1 + (int32_t)rng_below(rng, 40);
        if (at + n > RIG_LONG) {
            kv_reset(&r->c);
            continue;
        }
        if (rng_below(rng, 4) == 0) { /* another text for a while: an edit, then undone */
            int32_t other[40];
            rig_draw(other, n, rng);
            rig_run(r, other, n, 0, got);
        }
        rig_run(r, ids + at, n, n, got);
        CHECK_MSG(rig_same(got, want + (size_t)at * RIG_VOCAB, n), "%d rows at %lld: other bits", n,
                  (long long)at);
    }
    CHECK(n_rewound > 3 && n_refused > 3);
    rig_close_cache(r);
}

PLAIN_TEST(kv_oracle_rewinds_and_edits)
{
    each_format(check_edits, 0, 1);
}

/* ---- Streams and donors ------------------------------------------------------------------ */

static double largest_distance(const float *a, const float *b, int32_t *n_flips)
{
    double most = 0;
    *n_flips = 0;
    for (int32_t r = 0; r < RIG_LONG; r++) {
        int32_t best[2] = {0, 0};
        for (int32_t i = 0; i < RIG_VOCAB; i++) {
            size_t at = (size_t)r * RIG_VOCAB + (size_t)i;
            most = further(most, a[at], b[at]);
            best[0] = a[at] > a[(size_t)r * RIG_VOCAB + (size_t)best[0]] ? i : best[0];
            best[1] = b[at] > b[(size_t)r * RIG_VOCAB + (size_t)best[1]] ? i : best[1];
        }
        *n_flips += best[0] != best[1];
    }
    return most;
}

/* In f32, one stream and two compute the same function with another order of rounding. Coarser
 * formats round u instead of w u, which loses no more. Distances are from two streams of f32. */
PLAIN_TEST(kv_oracle_one_stream_is_two)
{
    static const struct {
        const char *type;
        double most; /* distance of one stream; measured about a third of it */
    } kinds[] = {{"f32", 1e-4}, {"f16", 2e-2}, {"q8_0", 0.3}, {"q4_0", 4}, {"tq3_0", 8}};
    uint64_t rng = test_seed();
    int32_t ids[RIG_LONG], flips;
    AUTO(rig_close) rig r;
    rig_open(&r);
    rig_draw(ids, RIG_LONG, &rng);
    AUTO_MEM float *exact = rig_token_by_token(&r, &(kv_words){.k = "f32", .single = "off"}, ids);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        double far[2];
        for (int one = 0; one < 2; one++) {
            kv_words w = {.k = kinds[i].type, .single = one ? "on" : "off"};
            AUTO_MEM float *x = rig_token_by_token(&r, &w, ids);
            far[one] = largest_distance(x, exact, &flips);
            printf("  %s, one stream %s: largest distance %.2e, %d of %d best tokens differ\n", w.k,
                   w.single, far[one], flips, RIG_LONG);
            CHECK(i > 0 || flips == 0);
        }
        CHECK_MSG(far[1] <= kinds[i].most && far[1] <= 3 * far[0] + 1e-4,
                  "%s: %.2e in one stream, %.2e in two", kinds[i].type, far[1], far[0]);
    }
}

/* A second cache holds the numbers of a first: before the second stores a row, the row is replaced
 * by the first's, decoded, rotated back, and, for one stream, with keys made from values. */
static struct {
    const device_ops *usual;
    device_ops ops;
    const kv_cache *from;
} plain;

static void plain_store(pass *p, const kv_view *kv, mat k, mat v)
{
    const kv_view *w = &plain.from->layout->view[kv->id];
    for (int32_t r = 0; !p->dry && r < k.rows; r++)
        for (int s = 0; s < 2; s++)
            for (int32_t h = 0; h < kv->n_head_kv; h++) {
                int is = w->single ? 0 : s;
                float *to = mat_row(s ? v : k, r) + h * kv->head_dim;
                num_format_of(is ? w->v_type : w->k_type)
                    ->decode(stored_at(w, plain.from->base[kv->id], is, h,
                                       rows_keys(p->rows, w)->index[r]),
                             to, kv->head_dim);
                if (is ? w->v_rot : w->k_rot)
                    num_unrotate(to, kv->head_dim);
                const float *by = w->single && !s ? w->k_weight->data : NULL;
                for (int32_t i = 0; by && i < kv->head_dim; i++)
                    to[i] *= by[i];
            }
    if (w->single)
        plain.usual->rope(p, k, w->k_rope);
    plain.usual->kv_store(p, kv, k, v);
}

/* A cache in any format gives the logits of an f32 cache with the same numbers, up to the rounding
 * of reads; how coarse the format is does not matter. Largest difference seen: 1e-5. */
PLAIN_TEST(kv_oracle_codes_are_their_values)
{
    uint64_t rng = test_seed();
    int32_t ids[RIG_LONG];
    float want[RIG_VOCAB], got[RIG_VOCAB];
    char text[128];
    rig a, b;
    rig_open(&a);
    rig_open(&b);
    rig_draw(ids, RIG_LONG, &rng);
    plain.usual = b.dev->op;
    plain.ops = *plain.usual;
    plain.ops.kv_store = plain_store;
    b.dev->op = &plain.ops;
    plain.from = &a.c;
    for (int i = 0; i < RIG_FORMATS; i += test_brief() ? 5 : 1) {
        double far = 0;
        rig_open_cache(&a, &rig_format[i], 1);
        rig_open_cache(&b, &(kv_words){.k = "f32", .single = "off"}, 1);
        for (int32_t t = 0; t < RIG_LONG; t++) {
            rig_run(&a, ids + t, 1, 1, got);
            rig_run(&b, ids + t, 1, 1, want);
            for (int32_t k = 0; k < RIG_VOCAB; k++)
                far = further(far, got[k], want[k]);
        }
        printf("  %s: %.2e\n", rig_words(&rig_format[i], text, sizeof text), far);
        CHECK_MSG(far <= 4e-5, "%.2e from what its values say", far);
        rig_close_cache(&a);
        rig_close_cache(&b);
    }
    b.dev->op = plain.usual;
    rig_close(&a);
    rig_close(&b);
}

/* Layers 4 and 5 read the last layers of their kind that own keys: by type, by size, and in effect:
 * logits change when the donor's content changes, and only then. */
PLAIN_TEST(kv_oracle_donors_are_of_their_kind)
{
    uint64_t rng = test_seed();
    int32_t ids[40];
    float want[RIG_VOCAB], got[RIG_VOCAB];
    AUTO(rig_close) rig r;
    rig_open(&r);
    rig_draw(ids, 40, &rng);
    const gemma4 *g = r.m.impl;
    CHECK_EQ(r.m.n_kv, RIG_OWNERS);
    CHECK(g->layer[4].kv == 3 && g->layer[5].kv == 2);
    for (int i = 0; i < RIG_FORMATS; i++) {
        rig_open_cache(&r, &rig_format[i], 40);
        for (int32_t il = 0; il < g->n_layer; il++) {
            const kv_view *v = &r.l.view[g->layer[il].kv];
            CHECK_EQ(v->head_dim, g->layer[il].head_dim);
            CHECK_EQ(v->n_head_kv, g->layer[il].n_head_kv);
            CHECK_EQ(v->window, g->layer[il].swa ? RIG_WINDOW : 0);
            CHECK_EQ(v->n_slots, v->window ? RIG_WINDOW + 40 - 1 : RIG_CTX);
        }
        float all[40 * RIG_VOCAB];
        for (int damaged = -1; damaged < RIG_OWNERS; damaged++) {
            kv_reset(&r.c);
            rig_poison(&r.c);
            rig_run(&r, ids, 39, 39, all);
            if (damaged >= 0) { /* a visible row is overwritten with another */
                const kv_view *v = &r.l.view[damaged];
                char *k = r.c.base[damaged].k;
                memcpy(k + 37 * v->k_row_bytes, k + 33 * v->k_row_bytes, v->k_row_bytes);
            }
            rig_run(&r, ids + 39, 1, 1, got);
            if (damaged < 0)
                memcpy(want, got, sizeof want);
            else
                CHECK_MSG(!rig_same(got, want, 1), "nobody reads the keys of layer %d", damaged);
        }
        rig_close_cache(&r);
    }
}
