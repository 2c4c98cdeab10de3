/* kv_tree_test.c - rows of a tree are bit-identical to rows of chains, in every format and on every
 * instruction set: the logits of each row are those of its path as a chain, the logits and the
 * stored bytes of a committed path those of the same tokens one by one.
 */
#include "tests/kv_codes.h"
#include "tests/kv_rig.h"
#include "tests/test.h"
#include "base/rng.h"
#include "kv/snapshot.h"

enum { ROWS = 16, LONG = 20 * RIG_WINDOW, SHORT = 5 * RIG_WINDOW };

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

/* Runs the path to each leaf as a chain on b, whose timeline is that before the tree, and compares
 * the logits of all its rows with `got`, those of the tree's. */
static void same_as_chains(rig *b, const kv_rows *t, const float *got)
{
    float chain[ROWS * RIG_VOCAB];
    uint64_t inner = 0;
    for (int32_t i = 0; i < t->n; i++)
        inner |= t->parent[i] < 0 ? 0 : (uint64_t)1 << t->parent[i];
    for (int32_t leaf = 0; leaf < t->n; leaf++) {
        int32_t path[ROWS], token[ROWS], n = 0;
        if (inner >> leaf & 1)
            continue;
        for (int32_t i = leaf; i >= 0; i = t->parent[i])
            n++;
        for (int32_t i = leaf, at = n; i >= 0; i = t->parent[i])
            path[--at] = i;
        for (int32_t i = 0; i < n; i++)
            token[i] = t->token[path[i]];
        rig_run(b, token, n, 0, chain);
        for (int32_t i = 0; i < n; i++)
            CHECK_MSG(
                rig_same(got + (size_t)path[i] * RIG_VOCAB, chain + (size_t)i * RIG_VOCAB, 1),
                "%s: row %d of a tree of %d after %lld tokens has other logits than in a chain",
                b->dev->name, path[i], t->n, (long long)b->c.n_past);
    }
}

/* One round: a tree of up to ROWS rows after what is committed, of which a path is kept; its
 * logits to `kept`. b has the same timeline. Returns the length of the path. */
static int32_t tree_round(rig *r, rig *b, const int32_t *ids, int64_t end, float *kept,
                          uint64_t *rng)
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
    same_as_chains(b, &t, got);
    kv_commit_path(&r->c, path, good);
    for (int32_t i = 0; i < good; i++)
        memcpy(kept + (size_t)i * RIG_VOCAB, got + (size_t)path[i] * RIG_VOCAB,
               RIG_VOCAB * sizeof *got);
    return good;
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
        const kv_snapshot_want want = {.layout = &of[i]->l, .ids = ids, .n = of[i]->c.n_past};
        CHECK_OK(kv_snapshot_new(&want, &s[i], &e), e);
        kv_snapshot_fill(s[i], &of[i]->c);
    }
    CHECK_EQ(s[0]->ring_bytes, s[1]->ring_bytes);
    CHECK(!memcmp(s[0]->rings, s[1]->rings, s[0]->ring_bytes));
    CHECK_EQ(s[0]->linear->n_bytes, s[1]->linear->n_bytes);
    CHECK(!memcmp(s[0]->linear->rows, s[1]->linear->rows, s[0]->linear->n_bytes));
    /* The tree's cache, restored from its snapshot, is unchanged. */
    rig_poison(&a->c);
    CHECK_OK(kv_snapshot_load(s[0], &a->c, &e), e);
    same_rows(&a->c, &b->c);
    for (int i = 0; i < 2; i++)
        kv_snapshot_drop(s[i]);
}

/* Brings b to the position of a, one row per pass; `kept`: the logits of the last n rows of a. */
static void follow(rig *a, rig *b, const int32_t *ids, const float *kept, int32_t n)
{
    float got[RIG_VOCAB];
    CHECK(kv_rewind(&b->c, a->c.n_past < b->c.n_past ? a->c.n_past : b->c.n_past));
    while (b->c.n_past < a->c.n_past) {
        int64_t nth = b->c.n_past - (a->c.n_past - n);
        rig_run(b, ids + b->c.n_past, 1, 1, got);
        CHECK_MSG(nth < 0 || rig_same(got, kept + (size_t)nth * RIG_VOCAB, 1),
                  "%s: token %lld has other logits in a tree than alone", b->dev->name,
                  (long long)b->c.n_past - 1);
    }
    same_rows(&a->c, &b->c);
}

/* What happened beside trees, over all formats. */
typedef struct events {
    int n_rewound, n_saved;
} events;

static void paths_in(const kv_words *w, rig *a, rig *b, const int32_t *ids, int64_t end,
                     events *seen, uint64_t *rng)
{
    float kept[ROWS * RIG_VOCAB];
    rig_open_cache(a, w, ROWS); /* the smallest rings that trees of ROWS rows may have */
    rig_open_cache(b, w, 40);   /* others: rows are compared by index */
    while (a->c.n_past < end) {
        int32_t n = tree_round(a, b, ids, end, kept, rng);
        follow(a, b, ids, kept, n);
        int64_t to = a->c.n_past - (int64_t)rng_below(rng, 4);
        if (rng_below(rng, 4) == 0 && to > 0 && kv_rewind(&a->c, to)) {
            seen->n_rewound++;
            follow(a, b, ids, NULL, 0);
        }
        if (rng_below(rng, 16) == 0 && a->c.n_past > 0 && kv_can_save(&a->c, a->c.n_past, 0)) {
            seen->n_saved++;
            same_snapshots(a, b, ids);
        }
    }
    rig_close_cache(a);
    rig_close_cache(b);
}

/* In one of `every` formats, until timelines have `end` tokens. */
static void each_path(const cpu_options *o, int64_t end, int every)
{
    uint64_t rng = test_seed();
    int32_t ids[RIG_LONG];
    char text[128];
    rig a, b;
    events seen = {0};
    if (!rig_open_on(&a, o))
        return;
    CHECK(rig_open_on(&b, o));
    rig_draw(ids, RIG_LONG, &rng);
    for (int i = 0; i < RIG_FORMATS; i += every) {
        printf("  %s\n", rig_words(&rig_format[i], text, sizeof text));
        paths_in(&rig_format[i], &a, &b, ids, end, &seen, &rng);
    }
    CHECK(test_brief() || (seen.n_rewound > 0 && seen.n_saved > 0));
    rig_close(&b);
    rig_close(&a);
}

PLAIN_TEST(kv_paths_of_trees_are_chains)
{
    each_path(&(cpu_options){.n_threads = 2}, LONG, test_brief() ? 6 : 1);
}
PLAIN_TEST(kv_paths_of_trees_are_chains_in_the_reference)
{
    each_path(&(cpu_options){.n_threads = 1, .reference = true}, SHORT,
              test_brief() ? RIG_FORMATS : 3);
}
PLAIN_TEST(kv_paths_of_trees_are_chains_portable)
{
    each_path(&(cpu_options){.n_threads = 1, .isa = "portable"}, SHORT, test_brief() ? 4 : 1);
}
PLAIN_TEST(kv_paths_of_trees_are_chains_avx2)
{
    each_path(&(cpu_options){.n_threads = 1, .isa = "avx2"}, SHORT, test_brief() ? 4 : 1);
}
PLAIN_TEST(kv_paths_of_trees_are_chains_avx512)
{
    each_path(&(cpu_options){.n_threads = 1, .isa = "avx512"}, SHORT, test_brief() ? 4 : 1);
}
TEST(kv_paths_of_trees_are_chains_neon)
{
    each_path(&(cpu_options){.n_threads = 1, .isa = "neon"}, SHORT, test_brief() ? 4 : 1);
}
