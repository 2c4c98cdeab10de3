/* kv_tree_test.c - after a path of a tree is committed, a cache is byte-identical to one that was
 * filled token by token, in every format.
 *
 * A row of a tree may sum over its keys in another order than a row of a chain, because its
 * ancestors have other indices. Then rounding may give a stored value another code, and correct
 * rows would differ. So attention is replaced by a function of the row alone. Keys and values of
 * all layers then depend only on token and position, and a different byte means a row in the wrong
 * place, with the wrong position, or overwritten.
 */
#include "tests/kv_codes.h"
#include "tests/kv_rig.h"
#include "tests/test.h"
#include "base/mem.h"
#include "base/rng.h"
#include "kv/snapshot.h"

enum { ROWS = 16 };

static struct {
    const device_ops *usual;
    device_ops ops;
} lone;

static void attend_alone(pass *p, mat o, mat q, const kv_view *kv, float scale)
{
    (void)kv;
    (void)scale;
    for (int32_t r = 0; !p->dry && r < o.rows; r++)
        memcpy(mat_row(o, r), mat_row(q, r), (size_t)mat_width(o) * sizeof(float));
}

static void open_lone(rig *r)
{
    rig_open(r);
    lone.usual = r->dev->op;
    lone.ops = *lone.usual;
    lone.ops.attend = attend_alone;
    r->dev->op = &lone.ops;
}

static void close_lone(rig *r)
{
    r->dev->op = lone.usual;
    rig_close(r);
}

/* A tree of n rows: a path of `good` rows with the tokens ids[0..good), anywhere in ascending
 * order, and rows of other tokens that follow any row before them. */
static void draw_tree(kv_rows *t, int32_t *path, int32_t good, const int32_t *ids, uint64_t *rng)
{
    int32_t *token = (int32_t *)t->token, *parent = (int32_t *)t->parent, depth = 0;
    for (int32_t i = 0; i < t->n; i++) {
        bool on_path = rng_below(rng, (uint64_t)(t->n - i)) < (uint64_t)(good - depth);
        token[i] = on_path ? ids[depth] : (int32_t)rng_below(rng, RIG_VOCAB);
        parent[i] =
            on_path ? (depth ? path[depth - 1] : -1) : (int32_t)rng_below(rng, (uint64_t)i + 1) - 1;
        if (on_path)
            path[depth++] = i;
    }
    CHECK_EQ(depth, good);
}

/* One round: a tree of up to ROWS rows after what is committed, of which a path is kept. */
static void tree_round(rig *r, const int32_t *ids, int64_t end, uint64_t *rng)
{
    int32_t token[ROWS], parent[ROWS], path[ROWS];
    float got[ROWS * RIG_VOCAB];
    int64_t left = end - r->c.n_past;
    kv_rows t = {.token = token, .parent = parent, .want = KV_WANT_ALL};
    t.n = 1 + (int32_t)rng_below(rng, ROWS);
    int32_t good = (int32_t)rng_below(rng, (uint64_t)t.n + 1);
    good = good < left ? good : (int32_t)left;
    err e = {0};
    draw_tree(&t, path, good, ids + r->c.n_past, rng);
    CHECK_OK(kv_reserve(&r->c, t.n, &e), e);
    CHECK_OK(kv_batch_add_rows(&r->b, &r->c, &t, &e), e);
    rig_pass(r, got);
    kv_commit_path(&r->c, path, good);
}

/* Checks that all rows the next query can see have equal bytes. */
static void same_rows(const kv_cache *a, const kv_cache *b)
{
    CHECK_EQ(a->n_past, b->n_past);
    for (int32_t i = 0; i < RIG_OWNERS; i++) {
        const kv_view *v = &a->layout->view[i], *w = &b->layout->view[i];
        int64_t from = v->window && a->n_past >= v->window ? a->n_past - v->window + 1 : 0;
        for (int s = 0; s < 2; s++)
            for (int32_t h = 0; stored_bytes(v, s) && h < v->n_head_kv; h++)
                for (int64_t t = from; t < a->n_past; t++)
                    CHECK_MSG(!memcmp(stored_at(v, a->base[i], s, h, t),
                                      stored_at(w, b->base[i], s, h, t), stored_bytes(v, s)),
                              "layer %d, stream %d, head %d, row %lld of %lld differs", i, s, h,
                              (long long)t, (long long)a->n_past);
    }
}

/* Checks that snapshots of both caches at n_past have equal bytes. */
static void same_snapshots(rig *a, rig *b, const int32_t *ids)
{
    kv_snapshot *s[2];
    rig *const of[2] = {a, b};
    err e = {0};
    for (int i = 0; i < 2; i++) {
        CHECK(kv_can_save(&of[i]->c, of[i]->c.n_past, 0));
        CHECK_OK(kv_snapshot_new(&of[i]->l, ids, of[i]->c.n_past, NULL, 0, &s[i], &e), e);
        kv_snapshot_fill(s[i], &of[i]->c);
    }
    CHECK_EQ(s[0]->ring_bytes, s[1]->ring_bytes);
    CHECK(!memcmp(s[0]->rings, s[1]->rings, s[0]->ring_bytes));
    CHECK_EQ(s[0]->linear->n_bytes, s[1]->linear->n_bytes);
    CHECK(!memcmp(s[0]->linear->rows, s[1]->linear->rows, s[0]->linear->n_bytes));
    /* The tree's cache, restored from its snapshot, is unchanged. */
    rig_poison(&a->c);
    kv_snapshot_load(s[0], &a->c);
    same_rows(&a->c, &b->c);
    for (int i = 0; i < 2; i++)
        kv_snapshot_drop(s[i]);
}

/* Brings b to the position of a, one row per pass. */
static void follow(rig *a, rig *b, const int32_t *ids)
{
    float got[RIG_VOCAB];
    CHECK(kv_rewind(&b->c, a->c.n_past < b->c.n_past ? a->c.n_past : b->c.n_past));
    while (b->c.n_past < a->c.n_past)
        rig_run(b, ids + b->c.n_past, 1, 1, got);
    same_rows(&a->c, &b->c);
}

static void paths_in(const kv_words *w, rig *a, rig *b, const int32_t *ids, uint64_t *rng)
{
    int n_rewound = 0, n_saved = 0;
    rig_open_cache(a, w, ROWS); /* the smallest rings that trees of ROWS rows may have */
    rig_open_cache(b, w, 40);   /* others: rows are compared by index */
    while (a->c.n_past < RIG_LONG) {
        tree_round(a, ids, RIG_LONG, rng);
        follow(a, b, ids);
        int64_t to = a->c.n_past - (int64_t)rng_below(rng, 4);
        if (rng_below(rng, 4) == 0 && to > 0 && kv_rewind(&a->c, to)) {
            n_rewound++;
            follow(a, b, ids);
        }
        if (rng_below(rng, 16) == 0 && a->c.n_past > 0 && kv_can_save(&a->c, a->c.n_past, 0)) {
            n_saved++;
            same_snapshots(a, b, ids);
        }
    }
    CHECK(n_rewound > 0 && n_saved > 0);
    rig_close_cache(a);
    rig_close_cache(b);
}

TEST(kv_paths_of_trees_leave_the_bytes_of_chains)
{
    uint64_t rng = test_seed();
    int32_t ids[RIG_LONG];
    char text[128];
    rig a, b;
    open_lone(&a);
    rig_open(&b);
    b.dev->op = &lone.ops;
    rig_draw(ids, RIG_LONG, &rng);
    for (int i = 0; i < RIG_FORMATS; i++) {
        printf("  %s\n", rig_words(&rig_format[i], text, sizeof text));
        paths_in(&rig_format[i], &a, &b, ids, &rng);
    }
    b.dev->op = lone.usual;
    rig_close(&b);
    close_lone(&a);
}

/* With the model's own attention: the logits after a committed path equal those after a chain, up
 * to the rounding of sums in another order. */
TEST(kv_paths_of_trees_go_on_as_chains_do)
{
    const double near = 1e-4;
    uint64_t rng = test_seed();
    int32_t ids[RIG_LONG], n_late = 0;
    float got[RIG_VOCAB];
    double far = 0;
    rig r;
    rig_open(&r);
    rig_draw(ids, RIG_LONG, &rng);
    const kv_words w = {.k = "f32"};
    float *want = rig_token_by_token(&r, &w, ids);
    rig_open_cache(&r, &w, ROWS);
    while (r.c.n_past < RIG_LONG - 1) {
        tree_round(&r, ids, RIG_LONG - 1, &rng);
        int64_t at = r.c.n_past;
        rig_run(&r, ids + at, 1, 0, got);
        for (int32_t i = 0; i < RIG_VOCAB; i++) {
            double d = fabs(got[i] - want[(size_t)at * RIG_VOCAB + (size_t)i]);
            far = isnan(far) || d <= far ? far : d;
        }
        CHECK_MSG(far <= near, "%.2e away after %lld tokens", far, (long long)at);
        n_late++;
    }
    printf("    %d trees, at most %.2e away\n", n_late, far);
    CHECK(n_late > 20);
    mem_free(want);
    rig_close_cache(&r);
    rig_close(&r);
}
