/* recur_test.c - recurrent stores: whatever is drafted, dropped, rewound and restored, the state is
 * that of the committed tokens.
 *
 * The layers are toys: a state is a hash of all tokens, and a convolution holds the last ones. A
 * pass of them follows step.h: it applies the pending rows, then computes rows as final or into the
 * journal. The oracle folds the committed tokens one by one.
 */
#include "base/mem.h"
#include "base/rng.h"
#include "kv/snapshot_file.h"
#include "tests/test.h"

enum { LAYERS = 3, TAPS = 4, CTX = 400, JOURNAL = 16, CHUNK = 40, VOCAB = 97 };

static const recur_view toy_view[LAYERS] = {
    {.n_k = 1, .n_v = 3, .dk = 2, .dv = 2, .n_taps = TAPS},
    {.side = 1, .n_k = 1, .n_v = 2, .dk = 2, .dv = 4, .n_taps = TAPS},
    {.n_k = 2, .n_v = 2, .dk = 1, .dv = 2, .n_taps = TAPS}};

/* One token more. Small integers, which floats hold. */
static void fold(const recur_view *v, const recur_base *b, float token)
{
    int32_t n = recur_channels(v), state = v->n_v * v->dv * v->dk;
    for (int32_t i = 0; i < state; i++)
        b->state[i] = (float)(((int32_t)b->state[i] * 31 + (int32_t)token + i + 1) % 65521);
    memmove(b->conv, b->conv + n, (size_t)(TAPS - 2) * (size_t)n * sizeof *b->conv);
    for (int32_t i = 0; i < n; i++)
        b->conv[(TAPS - 2) * n + i] = token;
}

static void apply(const recur_view *v, const recur_base *b, const recur_seq *s)
{
    for (int32_t i = 0; i < s->n_pending; i++)
        fold(v, b, b->journal[s->bank][s->pending[i] * recur_journal_row(v)]);
}

/* Runs the batch as a model of toy layers would. */
static void toy_pass(kv_batch *b, const kv_layout *l)
{
    const step *st = &b->st;
    for (int32_t i = 0; i < st->n_seqs * l->n_recur; i++) {
        const recur_seq *s = &st->recur_seq[i / l->n_recur];
        const recur_view *v = &l->recur[i % l->n_recur];
        const recur_base *at = &st->recur[i];
        apply(v, at, s);
        for (int32_t r = 0; r < s->n; r++) {
            float token = (float)st->all.token[s->row0 + r];
            CHECK_EQ(st->all.seq[s->row0 + r], i / l->n_recur);
            if (s->final)
                fold(v, at, token);
            else
                at->journal[!s->bank][r * recur_journal_row(v)] = token;
        }
    }
    kv_batch_clear(b);
}

/* ---- A device of toys -------------------------------------------------------------------- */

static void *toy_alloc(device *d, size_t n)
{
    (void)d;
    return mem_calloc(1, n);
}
static void toy_release(device *d, void *p, size_t n)
{
    (void)d;
    (void)n;
    mem_free(p);
}
static void toy_clear(device *d, void *p, size_t n)
{
    (void)d;
    memset(p, 0, n);
}
static void toy_copy(device *d, void *to, const void *from, size_t n)
{
    (void)d;
    memcpy(to, from, n);
}
static void toy_settle(device *d, const recur_view *v, const recur_base *base, int32_t n,
                       const recur_seq *s)
{
    for (int32_t i = 0; i < n; i++) {
        CHECK_EQ(v[i].side, d->chunk_rows); /* the device's number, see below */
        apply(&v[i], &base[i], s);
    }
}
static void no_conv(pass *p, mat y, mat x, const weight *w, const recur_view *rv)
{
    (void)p, (void)y, (void)x, (void)w, (void)rv;
}
static void no_delta(pass *p, mat o, mat c, mat a, mat b, const delta_gate *g, const recur_view *rv)
{
    (void)p, (void)o, (void)c, (void)a, (void)b, (void)g, (void)rv;
}
static const device_ops toy_ops = {.conv = no_conv, .delta = no_delta};
static device toy[2] = {{.op = &toy_ops,
                         .name = "a toy",
                         .alloc = toy_alloc,
                         .release = toy_release,
                         .clear = toy_clear,
                         .upload = toy_copy,
                         .download = toy_copy,
                         .settle = toy_settle},
                        {.op = &toy_ops,
                         .name = "a toy",
                         .chunk_rows = 1,
                         .alloc = toy_alloc,
                         .release = toy_release,
                         .clear = toy_clear,
                         .upload = toy_copy,
                         .download = toy_copy,
                         .settle = toy_settle}};

static status toy_layout(kv_layout *l, int32_t journal_rows, err *e)
{
    static const kv_spec spec = {.n_head_kv = 1, .head_dim = 8};
    const kv_want_layout w = {.spec = &spec,
                              .n = 1,
                              .recur = toy_view,
                              .n_recur = LAYERS,
                              .journal_rows = journal_rows,
                              .n_ctx = CTX,
                              .rows_max = CHUNK};
    status st = kv_layout_init(l, &w, e);
    l->dev[0] = &toy[0];
    l->dev[1] = &toy[1];
    return st;
}

typedef struct line {
    kv_layout l;
    kv_cache c;
    kv_batch b;
    int32_t id[CTX];
} line;

static void line_open(line *t, int32_t journal_rows)
{
    err e = {0};
    CHECK_OK(toy_layout(&t->l, journal_rows, &e), e);
    CHECK_OK(kv_open(&t->c, &toy[0], &t->l, &e), e);
    CHECK_OK(kv_batch_init(&t->b, 4 * CHUNK, 4, &t->l, &e), e);
}

static void line_close(line *t)
{
    kv_batch_free(&t->b);
    kv_close(&t->c);
    kv_layout_free(&t->l);
}

/* The states are those of id[0 .. n_past), once everything pending is applied. */
static void check_states(line *t, const char *when)
{
    kv_settle(&t->c, t->c.n_past);
    CHECK_EQ(t->c.recur_rows.n_pending, 0);
    for (int32_t i = 0; i < LAYERS; i++) {
        const recur_view *v = &t->l.recur[i];
        float state[64] = {0}, conv[256] = {0};
        const recur_base want = {.state = state, .conv = conv};
        for (int64_t k = 0; k < t->c.n_past; k++)
            fold(v, &want, (float)t->id[k]);
        const kv_recur_parts p = kv_recur_parts_of(v);
        CHECK_MSG(!memcmp(state, t->c.recur[i].state, p.state * sizeof(float)) &&
                      !memcmp(conv, t->c.recur[i].conv, p.conv * sizeof(float)),
                  "%s: layer %d at %lld", when, i, (long long)t->c.n_past);
    }
}

static void add(line *t, const kv_rows *rows)
{
    err e = {0};
    CHECK_OK(kv_reserve(&t->c, rows->n, &e), e);
    CHECK_OK(kv_batch_add_rows(&t->b, &t->c, rows, &e), e);
}

/* A pass of n rows of an answer, the first `keep` of which are kept. */
static void answer(line *t, int32_t n, int32_t keep, uint64_t *rng)
{
    int32_t token[JOURNAL];
    for (int32_t i = 0; i < n; i++)
        token[i] = (int32_t)rng_below(rng, VOCAB);
    add(t, &(kv_rows){.token = token, .n = n, .want = KV_WANT_ALL});
    toy_pass(&t->b, &t->l);
    memcpy(t->id + t->c.n_past, token, (size_t)keep * sizeof *token);
    kv_commit(&t->c, keep);
}

/* The same of a tree whose rows follow the committed context and each other at random. */
static void answer_tree(line *t, int32_t n, uint64_t *rng)
{
    int32_t token[JOURNAL], parent[JOURNAL], path[JOURNAL], n_path = 0;
    for (int32_t i = 0; i < n; i++) {
        token[i] = (int32_t)rng_below(rng, VOCAB);
        parent[i] = (int32_t)rng_below(rng, (uint64_t)i + 1) - 1;
    }
    add(t, &(kv_rows){.token = token, .parent = parent, .n = n, .want = KV_WANT_ALL});
    for (int32_t i = 0; i < n; i++)
        CHECK_EQ(t->b.st.parent[i], parent[i]);
    toy_pass(&t->b, &t->l);
    for (int32_t r = (int32_t)rng_below(rng, (uint64_t)n + 1) - 1; r >= 0; r = parent[r])
        path[n_path++] = r;
    for (int32_t i = 0; i < n_path / 2; i++) {
        int32_t swap = path[i];
        path[i] = path[n_path - 1 - i];
        path[n_path - 1 - i] = swap;
    }
    for (int32_t i = 0; i < n_path; i++)
        t->id[t->c.n_past + i] = token[path[i]];
    kv_commit_path(&t->c, path, n_path);
}

static void prompt(line *t, int32_t n, uint64_t *rng)
{
    int32_t token[CHUNK];
    for (int32_t i = 0; i < n; i++)
        token[i] = (int32_t)rng_below(rng, VOCAB);
    add(t, &(kv_rows){.token = token, .n = n, .final = true, .want = KV_WANT_LAST});
    toy_pass(&t->b, &t->l);
    memcpy(t->id + t->c.n_past, token, (size_t)n * sizeof *token);
    kv_commit(&t->c, n);
}

/* ---- Tests ------------------------------------------------------------------------------- */

TEST(recurrent_state_is_that_of_the_committed_rows)
{
    uint64_t rng = test_seed();
    AUTO(line_close) line t = {0};
    line_open(&t, JOURNAL);
    for (int round = 0; round < 300; round++) {
        int32_t n = 1 + (int32_t)rng_below(&rng, JOURNAL);
        if (t.c.n_past + CHUNK > CTX)
            kv_reset(&t.c);
        switch (rng_below(&rng, 5)) {
        case 0:
            prompt(&t, 1 + (int32_t)rng_below(&rng, CHUNK), &rng);
            break;
        case 1:
            answer_tree(&t, n, &rng);
            break;
        default:
            answer(&t, n, (int32_t)rng_below(&rng, (uint64_t)n + 1), &rng);
        }
        /* Mostly the next pass applies the pending rows, not a settle. */
        if (rng_below(&rng, 4) == 0)
            check_states(&t, "after a pass");
    }
    check_states(&t, "at the end");
}

TEST(every_depth_of_roll_back_twice_in_a_row)
{
    uint64_t rng = test_seed();
    for (int32_t n = 1; n <= 8; n++)
        for (int32_t a = 0; a <= n; a++) {
            AUTO(line_close) line t = {0};
            line_open(&t, 8);
            prompt(&t, 5, &rng);
            answer(&t, n, a, &rng);
            answer(&t, n, a, &rng);
            CHECK_EQ(t.c.n_past, 5 + 2 * a);
            check_states(&t, "after two roll-backs");
        }
}

TEST(pending_rows_can_be_taken_back_and_settled_rows_not)
{
    uint64_t rng = test_seed();
    AUTO(line_close) line t = {0};
    line_open(&t, JOURNAL);
    prompt(&t, 30, &rng);
    CHECK(kv_can_rewind(&t.c, 30) && !kv_can_rewind(&t.c, 29) && kv_can_rewind(&t.c, 0));
    answer(&t, 6, 5, &rng);
    CHECK(kv_can_rewind(&t.c, 30) && !kv_can_rewind(&t.c, 29));
    CHECK(kv_rewind(&t.c, 32));
    check_states(&t, "after a rewind into the pending rows");
    CHECK(!kv_can_rewind(&t.c, 31) && !kv_rewind(&t.c, 31));
    CHECK_EQ(t.c.n_past, 32);
    answer(&t, 6, 4, &rng);
    kv_settle(&t.c, 34); /* half of them */
    CHECK(kv_can_rewind(&t.c, 34) && !kv_can_rewind(&t.c, 33));
    answer(&t, 3, 2, &rng);
    check_states(&t, "after half a settle");
    CHECK(kv_rewind(&t.c, 0));
    prompt(&t, 7, &rng);
    check_states(&t, "after a rewind to the beginning");
}

TEST(final_rows_that_are_not_kept_reset_a_recurrent_cache)
{
    uint64_t rng = test_seed();
    int32_t token[CHUNK] = {1, 2, 3, 4, 5};
    AUTO(line_close) line t = {0};
    err e = {0};
    line_open(&t, 4);
    prompt(&t, 12, &rng);
    add(&t, &(kv_rows){.token = token, .n = 5, .final = true});
    toy_pass(&t.b, &t.l);
    kv_commit(&t.c, 0);
    CHECK_EQ(t.c.n_past, 0);
    check_states(&t, "after a final pass that was not kept");
    prompt(&t, 12, &rng);
    answer(&t, 4, 3, &rng);
    kv_batch_clear(&t.b); /* a batch that is never run changes nothing */
    add(&t, &(kv_rows){.token = token, .n = 5, .final = true});
    kv_batch_clear(&t.b);
    answer(&t, 2, 2, &rng);
    CHECK_EQ(t.c.n_past, 17);
    check_states(&t, "after a batch that did not run");
    CHECK_OK(kv_reserve(&t.c, 5, &e), e);
    CHECK_STATUS(kv_batch_add(&t.b, &t.c, token, 5, NULL, KV_WANT_ALL, &e), E_LIMIT);
    CHECK(strstr(e.text, "journals"));
}

TEST(recurrent_sequences_of_a_batch_are_apart)
{
    uint64_t rng = test_seed();
    AUTO(line_close) line t = {0}, other = {0};
    int32_t a[3] = {1, 2, 3}, b[2] = {4, 5};
    err e = {0};
    line_open(&t, JOURNAL);
    line_open(&other, JOURNAL);
    prompt(&t, 9, &rng);
    answer(&other, 2, 1, &rng);
    for (int round = 0; round < 3; round++) {
        CHECK_OK(kv_reserve(&t.c, 3, &e), e);
        CHECK_OK(kv_reserve(&other.c, 2, &e), e);
        CHECK_OK(kv_batch_add(&t.b, &t.c, a, 3, NULL, KV_WANT_ALL, &e), e);
        CHECK_OK(
            kv_batch_add_rows(&t.b, &other.c, &(kv_rows){.token = b, .n = 2, .final = true}, &e),
            e);
        CHECK_EQ(t.b.st.parent[2], 1);
        CHECK_EQ(t.b.st.parent[3], -1);
        CHECK_EQ(t.b.st.parent[4], 3);
        toy_pass(&t.b, &t.l);
        memcpy(t.id + t.c.n_past, a, sizeof a);
        memcpy(other.id + other.c.n_past, b, sizeof b);
        kv_commit(&t.c, 2);
        kv_commit(&other.c, 2);
    }
    check_states(&t, "the first sequence");
    check_states(&other, "the second sequence");
}

static kv_snapshot *snapshot_at(line *t, int64_t n)
{
    kv_snapshot *k;
    err e = {0};
    CHECK(kv_can_save(&t->c, n, 0));
    CHECK_OK(kv_snapshot_new(&(kv_snapshot_want){.layout = &t->l, .ids = t->id, .n = n}, &k, &e),
             e);
    kv_snapshot_fill(k, &t->c);
    return k;
}

TEST(recurrent_snapshots_are_exact_and_fit_one_position)
{
    uint64_t rng = test_seed();
    AUTO(line_close) line t = {0};
    err e = {0};
    line_open(&t, JOURNAL);
    prompt(&t, 30, &rng);
    answer(&t, 9, 8, &rng);
    CHECK(!kv_can_save(&t.c, 29, 0) && !kv_can_save(&t.c, 38, 1));
    kv_snapshot *early = snapshot_at(&t, 33); /* in the middle of the pending rows */
    check_states(&t, "after a snapshot");
    CHECK(!kv_can_save(&t.c, 33, 0));
    kv_snapshot *k = snapshot_at(&t, 38);
    CHECK_EQ(k->state_bytes, kv_state_bytes(&t.l, k->n));
    CHECK(kv_snapshot_usable(k, 37) == 0 && kv_snapshot_usable(k, 38) == 38 &&
          kv_snapshot_usable(k, 50) == 38);
    for (int twice = 0; twice < 2; twice++) {
        answer(&t, 5, 3, &rng);
        prompt(&t, 20, &rng);
        answer(&t, 5, 3, &rng);
        CHECK_OK(kv_snapshot_load(twice ? early : k, &t.c, &e), e);
        CHECK_EQ(t.c.n_past, twice ? 33 : 38);
        CHECK(!kv_rewind(&t.c, 32));
        check_states(&t, "restored");
        answer(&t, 5, 3, &rng);
        check_states(&t, "restored, and on");
    }
    kv_snapshot_drop(early);
    kv_snapshot_drop(k);
}

/* A device that computes prompts in blocks keeps a started one. Snapshots have it where they are
 * taken inside a block; else what the cache held of another text is forgotten, as by a reset. */
TEST(recurrent_blocks_of_prompts_are_kept_and_forgotten)
{
    enum { BLOCK = 4 };
    static const kv_spec spec = {.n_head_kv = 1, .head_dim = 8};
    device blocks = toy[0];
    blocks.recur_block = BLOCK;
    blocks.recur_head = 2;
    const kv_want_layout w = {.spec = &spec,
                              .n = 1,
                              .recur = toy_view,
                              .n_recur = LAYERS,
                              .journal_rows = JOURNAL,
                              .n_ctx = CTX,
                              .rows_max = CHUNK,
                              .dev = {&blocks, &toy[1]}};
    uint64_t rng = test_seed();
    AUTO(line_close) line t = {0};
    err e = {0};
    CHECK_OK(kv_layout_init(&t.l, &w, &e), e);
    CHECK_OK(kv_open(&t.c, &blocks, &t.l, &e), e);
    CHECK_OK(kv_batch_init(&t.b, 4 * CHUNK, 4, &t.l, &e), e);
    const recur_view *v = &t.l.recur[0];
    const size_t floats = recur_block_floats(v);
    CHECK_EQ(t.l.recur_block, BLOCK);
    CHECK(v->block == BLOCK && !t.l.recur[1].block && !t.l.recur[2].block);
    CHECK_EQ(floats, RECUR_BLOCK_HEAD + 3 * 2 * 2 + (BLOCK - 1) * (2 + 3 * (2 + 2)));
    CHECK_EQ(kv_state_bytes(&t.l, BLOCK + 1) - kv_state_bytes(&t.l, BLOCK), floats * sizeof(float));
    float *block = t.c.recur[0].block;
    kv_snapshot *k[2];
    for (int inside = 0; inside < 2; inside++) {
        prompt(&t, inside ? BLOCK + 1 : 3 * BLOCK, &rng);
        for (size_t i = 0; i < floats; i++)
            block[i] = (float)(1000 * inside + (int)i + 1);
        k[inside] = snapshot_at(&t, t.c.n_past);
    }
    for (int inside = 0; inside < 2; inside++) {
        for (size_t i = 0; i < floats; i++)
            block[i] = -1;
        CHECK_OK(kv_snapshot_load(k[inside], &t.c, &e), e);
        for (size_t i = 0; i < (inside ? floats : RECUR_BLOCK_HEAD); i++)
            CHECK_EQ(block[i], inside ? (float)(1000 + (int)i + 1) : 0);
        check_states(&t, "restored");
        kv_snapshot_drop(k[inside]);
    }
    kv_reset(&t.c);
    for (size_t i = 0; i < RECUR_BLOCK_HEAD; i++)
        CHECK_EQ(block[i], 0);
}

/* ---- Parts of a layer on several devices ---- */

enum { PARTS = 4, PART_BLOCK = 6 };

/* What an element is of: the layer's own numbers of a head. */
static void element(float *at, int kind, int32_t row, int32_t head, int32_t i, bool check)
{
    const float want = (float)(((kind * 16 + row) * 16 + head) * 128 + i + 1);
    if (check)
        CHECK_MSG(*at == want, "kind %d, row %d, head %d, %d: %g", kind, row, head, i, (double)*at);
    *at = want;
}

/* n rows of key heads, n_keys times, and of value heads, of which the part has every tile's k0 and
 * those behind it. Returns their end. */
static float *rows_of_part(float *at, const recur_view *own, const recur_view *whole, int32_t k0,
                           int kind, int32_t n, int32_t n_keys, int32_t dv, bool check)
{
    for (int32_t row = 0; row < n; row++) {
        for (int32_t h = 0; h < n_keys * own->n_k; h++)
            for (int32_t i = 0; i < own->dk; i++)
                element(at++, kind + h / own->n_k, row, k0 + h % own->n_k, i, check);
        for (int32_t j = 0; j < own->n_v; j++)
            for (int32_t i = 0; i < dv; i++)
                element(at++, kind + n_keys, row, j / own->n_k * whole->n_k + k0 + j % own->n_k, i,
                        check);
    }
    return at;
}

/* Writes the memory of all parts, or compares it. */
static void parts_memory(const line *t, bool check)
{
    const recur_view *whole = &t->l.recur_whole[0];
    int32_t k0 = 0;
    for (int32_t r = 0; r < t->l.n_recur; k0 += t->l.recur[r].n_k, r++) {
        const recur_view *v = &t->l.recur[r];
        const recur_base *b = &t->c.recur[r];
        float *at = b->block;
        rows_of_part(b->state, v, whole, k0, 0, 1, 0, v->dv * v->dk, check);
        rows_of_part(b->conv, v, whole, k0, 1, TAPS - 1, 2, v->dv, check);
        for (int32_t i = 0; i < RECUR_BLOCK_HEAD; i++)
            element(at++, 4, 0, 0, i, check);
        at = rows_of_part(at, v, whole, k0, 5, 1, 0, v->dv * v->dk, check);
        at = rows_of_part(at, v, whole, k0, 6, PART_BLOCK - 1, 1, v->dv, check);
        at = rows_of_part(at, v, whole, k0, 8, 2 * (PART_BLOCK - 1), 0, 1, check);
        CHECK_EQ(at - b->block, recur_block_floats(v));
    }
    CHECK_EQ(k0, whole->n_k);
}

/* To a file, and back as the layout `to` has it. */
static kv_snapshot *by_file(kv_snapshot *k, const line *from, const line *to)
{
    const char *path = test_temp("parts.carat-kv");
    kv_file_id id = {.model = {1, 2}}, other = {.model = {1, 2}};
    uint64_t n_bytes;
    err e = {0};
    kv_layout_words(&from->l, &id.layout);
    kv_layout_words(&to->l, &other.layout);
    CHECK_OK(kv_snapshot_write(k, path, &id, &n_bytes, &e), e);
    kv_snapshot_drop(k);
    CHECK_OK(kv_snapshot_read(path, &other, &to->l, &k, &e), e);
    str_free(&id.layout);
    str_free(&other.layout);
    return k;
}

/* States and started blocks, whose key heads are divided in any way. */
TEST(recurrent_snapshots_go_from_any_split_to_any_other)
{
    static const int32_t n_k[PARTS][PARTS] = {{5}, {3, 2}, {2, 1, 2}, {2, 1, 1, 1}};
    device blocks[PARTS];
    line t[PARTS];
    uint64_t rng = test_seed();
    err e = {0};
    for (int i = 0; i < PARTS; i++) {
        blocks[i] = toy[0];
        blocks[i].recur_block = PART_BLOCK;
        blocks[i].recur_head = 2;
    }
    for (int k = 0; k < PARTS; k++) {
        kv_spec spec[PARTS];
        recur_view view[PARTS];
        t[k] = (line){0};
        for (int8_t r = 0; r <= k; r++) {
            spec[r] = (kv_spec){.n_head_kv = 1, .head_dim = 8, .side = r};
            view[r] = (recur_view){.side = r, .n_k = n_k[k][r], .dk = 2, .dv = 2, .n_taps = TAPS};
            view[r].n_v = 3 * view[r].n_k;
        }
        kv_want_layout w = {.spec = spec,
                            .n = k + 1,
                            .n_parts = k + 1,
                            .recur = view,
                            .n_recur = k + 1,
                            .journal_rows = JOURNAL,
                            .n_ctx = CTX,
                            .rows_max = CHUNK};
        for (int r = 0; r <= k; r++)
            w.dev[r] = &blocks[r];
        CHECK_OK(kv_layout_init(&t[k].l, &w, &e), e);
        CHECK_OK(kv_open(&t[k].c, &blocks[0], &t[k].l, &e), e);
        CHECK_OK(kv_batch_init(&t[k].b, 4 * CHUNK, 4, &t[k].l, &e), e);
        prompt(&t[k], PART_BLOCK + 2, &rng);
    }
    for (int from = 0; from < PARTS; from++)
        for (int to = 0; to < PARTS; to++) {
            parts_memory(&t[from], false);
            kv_snapshot *s = by_file(snapshot_at(&t[from], PART_BLOCK + 2), &t[from], &t[to]);
            CHECK(kv_snapshot_fits(s, &t[to].l));
            for (int32_t r = 0; r <= to; r++)
                memset(t[to].c.recur[r].state, 0,
                       kv_recur_parts_of(&t[to].l.recur[r]).at_journal[0] * sizeof(float));
            CHECK_OK(kv_snapshot_load(s, &t[to].c, &e), e);
            parts_memory(&t[to], true);
            kv_snapshot_drop(s);
        }
    for (int k = 0; k < PARTS; k++)
        line_close(&t[k]);
}

TEST(recurrent_snapshot_files_are_exact_and_damage_is_found)
{
    uint64_t rng = test_seed(), n_bytes;
    const char *path = test_temp("states.carat-kv");
    AUTO(line_close) line t = {0}, other = {0};
    kv_snapshot *k = NULL;
    err e = {0};
    line_open(&t, JOURNAL);
    line_open(&other, 1); /* journals of another size are no other layout */
    prompt(&t, 30, &rng);
    answer(&t, 9, 8, &rng);
    kv_file_id id = {.model = {1, 2}};
    kv_layout_words(&t.l, &id.layout);
    CHECK(strstr(str_text(&id.layout), "recurrent 2 keys 2 x 1 values 2 x 2 taps 4\n"));
    k = snapshot_at(&t, 38);
    CHECK_OK(kv_snapshot_write(k, path, &id, &n_bytes, &e), e);
    kv_snapshot_drop(k);
    CHECK_OK(kv_snapshot_read(path, &id, &other.l, &k, &e), e);
    CHECK(kv_snapshot_fits(k, &other.l));
    CHECK_OK(kv_snapshot_load(k, &other.c, &e), e);
    kv_snapshot_drop(k);
    memcpy(other.id, t.id, sizeof t.id);
    check_states(&other, "from a file");
    answer(&other, 1, 1, &rng);
    check_states(&other, "from a file, and on");

    /* Every byte counts. */
    FILE *f = fopen(path, "r+b");
    CHECK(f);
    for (long at = 0; at < (long)n_bytes; at++) {
        fseek(f, at, SEEK_SET);
        int byte = getc(f);
        fseek(f, at, SEEK_SET);
        putc(byte ^ 0x20, f);
        fflush(f);
        err bad = {0};
        CHECK_MSG(kv_snapshot_read(path, &id, &other.l, &k, &bad) == E_FORMAT, "byte %ld of %ld",
                  at, (long)n_bytes);
        fseek(f, at, SEEK_SET);
        putc(byte, f);
        fflush(f);
    }
    fclose(f);
    CHECK_OK(kv_snapshot_read(path, &id, &other.l, &k, &e), e);
    kv_snapshot_drop(k);
    str_free(&id.layout);
}

TEST(recurrent_layouts_are_planned_to_the_byte)
{
    kv_layout one, many;
    err e = {0};
    CHECK_OK(toy_layout(&one, 0, &e), e);
    CHECK_OK(toy_layout(&many, 5, &e), e);
    CHECK_EQ(one.recur[0].journal_rows, 1);
    CHECK_EQ(many.recur[1].journal_rows, 5);
    CHECK_EQ(many.recur[1].id, 1);
    CHECK_EQ(one.all.recur, one.side[0].recur + one.side[1].recur);
    /* 12 floats of state, 3 x 10 of convolution, journals of 10 + 2 + 6 + 3: each part rounded up.
     */
    CHECK_EQ(kv_recur_parts_of(&one.recur[0]).all, 4 * KV_RECUR_ALIGN);
    CHECK_EQ(kv_recur_parts_of(&many.recur[0]).journal, 5 * 21);
    CHECK_EQ(kv_state_bytes(&one, 1), kv_state_bytes(&many, 1));
    CHECK_EQ(kv_state_bytes(&one, 1), 4 * (12 + 16 + 4 + 3 * (10 + 12 + 8)));
    kv_layout_free(&one);
    kv_layout_free(&many);
    CHECK_STATUS(toy_layout(&many, STEP_TREE_ROWS_MAX + 1, &e), E_LIMIT);
    static const device_ops no_ops;
    static device plain = {.op = &no_ops, .name = "a plain device"};
    const kv_spec spec = {.n_head_kv = 1, .head_dim = 8};
    const kv_want_layout w = {.spec = &spec,
                              .n = 1,
                              .recur = toy_view,
                              .n_recur = 1,
                              .n_ctx = 8,
                              .rows_max = 1,
                              .dev = {&plain}};
    err_clear(&e);
    CHECK_STATUS(kv_layout_init(&many, &w, &e), E_UNSUPPORTED);
    CHECK(strstr(e.text, "a plain device cannot compute recurrent layers"));
}
