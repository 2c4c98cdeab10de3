/* dflash_test.c - the DFlash drafter as sessions use it: what it has absorbed decides its drafts,
 * not in which passes the rows came, nor who else was in them.
 */
#include "spec/drafter.h"
#include "tests/dflash_file.h"
#include "tests/kv_rig.h"
#include "tests/test.h"
#include "base/mem.h"
#include "base/rng.h"

enum { N_CTX = 120, ROWS = 16, SLOTS = 7, ROW = DF_FEATURES * DF_EMBD, LAST = 100 };
enum { SEQS = 3, CROWD = 6, CROWD_ROWS = 24 /* timelines; in one test more, in longer passes */ };

typedef struct drafting {
    device *dev;
    model target;
    draft_model *m;
    draft_sizes z;
    draft_costs c;
    drafter *d;
    draft_state *s[CROWD];
    int32_t n; /* timelines */
    int32_t id[CROWD][N_CTX];
    float features[CROWD][N_CTX][ROW]; /* of every token of the timelines */
} drafting;

static void open_model(drafting *x, const df_options *o)
{
    gguf g;
    err e = {0};
    CHECK_OK(device_open_cpu(&x->dev, &(cpu_options){.n_threads = 1}, &e), e);
    CHECK_OK(gguf_open(&g, rig_model(), false, NULL, NULL, &e), e);
    CHECK_OK(model_bind(&x->target, &g, &e), e);
    CHECK_OK(model_load(&x->target, x->dev, NULL, NULL, &e), e);
    CHECK_OK(gguf_open(&g, df_write(o, "draft.gguf"), false, NULL, NULL, &e), e);
    CHECK_OK(draft_model_open(&draft_dflash, &x->target, &g, &x->m, &e), e);
    CHECK_OK(model_load(&x->m->core, x->dev, NULL, NULL, &e), e);
    x->z = (draft_sizes){.dev = x->dev,
                         .n_ctx = N_CTX,
                         .rows_max = ROWS,
                         .outs_max = ROWS,
                         .n_seqs = SEQS,
                         .n_slots = SLOTS};
}

static void close_model(drafting *x)
{
    draft_model_close(x->m);
    model_free(&x->target);
    device_close(x->dev);
}

/* n timelines, passes of `rows` rows. */
static drafting *open_crowd(const df_options *o, int32_t n, int32_t rows, int32_t n_ctx)
{
    drafting *x = mem_calloc(1, sizeof *x);
    uint64_t rng = test_seed();
    err e = {0};
    CHECK(x);
    open_model(x, o);
    x->n = n;
    x->z.n_seqs = n;
    x->z.rows_max = rows;
    x->z.n_ctx = n_ctx;
    for (int32_t s = 0; s < n; s++)
        for (int32_t i = 0; i < N_CTX; i++) {
            x->id[s][i] = (int32_t)rng_below(&rng, DF_VOCAB);
            for (int32_t k = 0; k < ROW; k++)
                x->features[s][i][k] = (float)rng_normal(&rng);
        }
    CHECK_OK(draft_dflash.open(x->m, &x->z, &x->d, &e), e);
    CHECK_EQ(x->d->taps->n, DF_FEATURES);
    for (int32_t s = 0; s < n; s++) {
        CHECK_OK(draft_dflash.state_open(x->d, &x->s[s], &e), e);
        rig_poison(draft_dflash.cache(x->s[s]));
    }
    return x;
}

static drafting *open_drafting_of(const df_options *o, int32_t rows, int32_t n_ctx)
{
    return open_crowd(o, SEQS, rows, n_ctx);
}

static drafting *open_drafting(const df_options *o)
{
    return open_drafting_of(o, ROWS, N_CTX);
}

static void close_drafting(drafting *x)
{
    for (int32_t s = 0; s < x->n; s++)
        draft_dflash.state_close(x->d, x->s[s]);
    draft_dflash.state_close(x->d, NULL);
    draft_dflash.close(x->d);
    close_model(x);
    mem_free(x);
}

/* The target's pass has just left the streams of token `at` of timeline s in row `row`. */
static void put_row(drafting *x, int32_t row, int32_t s, int64_t at)
{
    for (int32_t i = 0; i < DF_FEATURES; i++)
        memcpy(mat_row(x->d->taps->at[i].to, row), x->features[s][at] + i * DF_EMBD,
               DF_EMBD * sizeof(float));
}

/* Absorbs [n_past[s], n_past[s] + n[s]) of each timeline in one pass, with rows between them that
 * nobody keeps. */
static void absorb(drafting *x, const int64_t *n_past, const int32_t *n)
{
    int32_t row[CROWD][CROWD_ROWS], at = 0, sum = 0;
    draft_kept kept[CROWD];
    err e = {0};
    for (int32_t s = 0; s < x->n; s++)
        sum += n[s];
    int32_t gap = sum <= ROWS / 2;
    for (int32_t s = 0; s < x->n; s++) {
        for (int32_t i = 0; i < n[s]; i++) {
            at += gap;
            row[s][i] = at;
            put_row(x, at++, s, n_past[s] + i);
        }
        kept[s] = (draft_kept){.s = x->s[s],
                               .id = x->id[s],
                               .n_past = n_past[s],
                               .n = n[s],
                               .row = row[s],
                               .norm_row = -1};
    }
    CHECK(at <= x->z.rows_max);
    CHECK_OK(draft_dflash.absorb(x->d, kept, x->n, &e), e);
}

static void absorb_one(drafting *x, int32_t s, int64_t n_past, int32_t n)
{
    int64_t past[CROWD] = {0};
    int32_t rows[CROWD] = {0};
    past[s] = n_past;
    rows[s] = n;
    absorb(x, past, rows);
}

/* Drafts of timeline s after its first n tokens and the last one. */
static void propose(drafting *x, int32_t s, int64_t n, int32_t slots, int32_t ranks, proposal *p)
{
    err e = {0};
    const draft_ask a = {
        .s = x->s[s], .id = x->id[s], .n = n + 1, .n_slots = slots, .n_ranks = ranks, .out = p};
    memset(p, 0, sizeof *p);
    CHECK_OK(draft_dflash.propose(x->d, &a, 1, &e), e);
}

static void check_same(const proposal *a, const proposal *b, const char *what)
{
    CHECK_MSG(!memcmp(a, b, sizeof *a), "%s: %d and %d slots, %d and %d first", what, a->n_slots,
              b->n_slots, a->id[0][0], b->id[0][0]);
}

static const df_options kinds[] = {
    {0}, {.laguna = true}, {.rank = 16, .conf = true, .anchor_first = true}, {.causal = DF_CAUSAL}};
enum { KINDS = sizeof kinds / sizeof *kinds };

PLAIN_TEST(dflash_chunks_of_any_length_are_absorbed_alike)
{
    for (int k = 0; k < KINDS; k++) {
        drafting *x = open_drafting(&kinds[k]);
        uint64_t rng = test_seed();
        proposal one, any;
        for (int64_t at = 0; at < LAST; at++)
            absorb_one(x, 0, at, 1);
        propose(x, 0, LAST, SLOTS, 4, &one);
        CHECK_EQ(one.n_slots, SLOTS);
        CHECK_EQ(one.n_ranks, 4);
        memcpy(x->id[1], x->id[0], sizeof x->id[0]);
        memcpy(x->features[1], x->features[0], sizeof x->features[0]);
        for (int32_t at = 0; at < LAST;) {
            int32_t n = 1 + (int32_t)rng_below(&rng, ROWS);
            proposal waste;
            n = n < LAST - at ? n : LAST - at;
            absorb_one(x, 1, at, n);
            at += n;
            propose(x, 1, at, 1 + (int32_t)rng_below(&rng, SLOTS), 1, &waste);
        }
        propose(x, 1, LAST, SLOTS, 4, &any);
        check_same(&one, &any, "chunks");
        close_drafting(x);
    }
}

TEST(dflash_long_passes_are_absorbed_in_pieces)
{
    enum { LONG = 1100, PAST = 20 };
    drafting *x = open_drafting_of(&kinds[0], LONG + PAST, LONG + PAST + 1);
    static int32_t id[LONG + PAST + 1], row[LONG + PAST];
    proposal one, pieces;
    err e = {0};
    for (int32_t i = 0; i < LONG + PAST; i++) {
        id[i] = i % DF_VOCAB;
        row[i] = i;
        put_row(x, i, 0, i % N_CTX);
    }
    draft_kept kept[2] = {{.s = x->s[0], .id = id, .n = LONG, .row = row},
                          {.s = x->s[1], .id = id, .n = PAST, .row = row}};
    CHECK_OK(draft_dflash.absorb(x->d, kept, 2, &e), e);
    kept[1].n_past = PAST;
    kept[1].row += PAST;
    kept[1].n = LONG - PAST;
    CHECK_OK(draft_dflash.absorb(x->d, kept + 1, 1, &e), e);
    for (int32_t s = 0; s < 2; s++) {
        const draft_ask a = {.s = x->s[s],
                             .id = id,
                             .n = LONG + 1,
                             .n_slots = SLOTS,
                             .n_ranks = 1,
                             .out = s ? &pieces : &one};
        memset(a.out, 0, sizeof one);
        CHECK_OK(draft_dflash.propose(x->d, &a, 1, &e), e);
    }
    CHECK_EQ(one.n_slots, SLOTS);
    check_same(&one, &pieces, "pieces");
    close_drafting(x);
}

PLAIN_TEST(dflash_timelines_of_a_pass_do_not_notice_each_other)
{
    for (int k = 0; k < KINDS; k++) {
        drafting *x = open_drafting(&kinds[k]);
        static proposal alone[SEQS], both[SEQS];
        draft_ask ask[SEQS];
        int64_t n[SEQS] = {0};
        int32_t add[SEQS] = {1, 3, 2};
        err e = {0};
        for (int i = 0; i < 20; i++) {
            absorb(x, n, add);
            for (int32_t s = 0; s < SEQS; s++)
                n[s] += add[s];
        }
        for (int32_t s = 0; s < SEQS; s++) {
            propose(x, s, n[s], 5, 2, &alone[s]);
            ask[s] = (draft_ask){.s = x->s[s],
                                 .id = x->id[s],
                                 .n = n[s] + 1,
                                 .n_slots = 5,
                                 .n_ranks = 2,
                                 .out = &both[s]};
        }
        memset(both, 0, sizeof both);
        CHECK_OK(draft_dflash.propose(x->d, ask, SEQS, &e), e);
        for (int32_t s = 0; s < SEQS; s++)
            check_same(&alone[s], &both[s], "timelines");
        ask[1].n--; /* one that does not know all rows gets nothing, the others as before */
        ask[2].n_slots = 2;
        memset(both, 0, sizeof both);
        CHECK_OK(draft_dflash.propose(x->d, ask, SEQS, &e), e);
        CHECK_EQ(both[1].n_slots, 0);
        CHECK_EQ(both[2].n_slots, 2);
        check_same(&alone[0], &both[0], "a timeline beside others");
        close_drafting(x);
    }
}

PLAIN_TEST(dflash_scratch_is_enough_for_any_number_of_timelines)
{
    enum { MANY = 20 };
    static const int32_t counts[] = {1, 2, 5, 11, MANY};
    static proposal p[MANY];
    for (int k = 0; k < KINDS; k++) {
        AUTO_MEM drafting *x = mem_calloc(1, sizeof *x);
        draft_state *s[MANY];
        draft_ask ask[MANY];
        int32_t id[4] = {1, 2, 3, 4}, row[2] = {0, 1};
        err e = {0};
        CHECK(x);
        open_model(x, &kinds[k]);
        x->z.n_seqs = MANY;
        CHECK_OK(draft_dflash.open(x->m, &x->z, &x->d, &e), e);
        for (int32_t i = 0; i < MANY; i++) {
            CHECK_OK(draft_dflash.state_open(x->d, &s[i], &e), e);
            const draft_kept kept = {.s = s[i], .id = id, .n = 2, .row = row};
            CHECK_OK(draft_dflash.absorb(x->d, &kept, 1, &e), e);
            ask[i] = (draft_ask){.s = s[i], .id = id, .n = 3, .n_ranks = 1, .out = &p[i]};
        }
        for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
            for (int32_t slots = 1; slots <= SLOTS; slots++) {
                for (int32_t i = 0; i < counts[c]; i++)
                    ask[i].n_slots = slots;
                CHECK_OK(draft_dflash.propose(x->d, ask, counts[c], &e), e);
                for (int32_t i = 0; i < counts[c]; i++)
                    CHECK_EQ(p[i].n_slots, slots);
            }
        for (int32_t i = 0; i < MANY; i++)
            draft_dflash.state_close(x->d, s[i]);
        draft_dflash.close(x->d);
        close_model(x);
    }
}

/* Rows wait for a draft, for a full buffer or for a snapshot; in whatever order they then come,
 * the drafts are those of rows that were absorbed at once. */
TEST(dflash_rows_wait_until_a_draft_is_wanted)
{
    enum { HELD = 16 };
    for (int k = 0; k < KINDS; k++) {
        drafting *x = open_drafting(&kinds[k]);
        proposal now, later, waste;
        err e = {0};
        memcpy(x->id[1], x->id[0], sizeof x->id[0]);
        memcpy(x->features[1], x->features[0], sizeof x->features[0]);
        for (int64_t at = 0; at < 30; at++) { /* asked each time: nothing waits */
            propose(x, 0, at, 1, 1, &waste);
            absorb_one(x, 0, at, 1);
            CHECK_EQ(draft_dflash.cache(x->s[0])->n_past, at + 1);
        }
        propose(x, 0, 30, SLOTS, 4, &now);
        const kv_cache *c = draft_dflash.cache(x->s[1]);
        for (int64_t at = 0; at < HELD + 4; at++) { /* rows of another timeline are among them */
            absorb_one(x, 1, at, 1);
            if (at % 4 == 0)
                absorb_one(x, 2, at / 4, 1);
        }
        CHECK_EQ(c->n_past, 13); /* the buffer was full once */
        draft_dflash.forget(x->d, x->s[1], 17);
        draft_dflash.state_close(x->d, x->s[2]);
        CHECK_OK(draft_dflash.state_open(x->d, &x->s[2], &e), e);
        absorb_one(x, 1, 17, 3);
        CHECK_EQ(c->n_past, 13);
        CHECK_OK(draft_dflash.settle(x->d, &e), e);
        CHECK_EQ(c->n_past, 20);
        absorb_one(x, 1, 20, 5);
        draft_dflash.forget(x->d, x->s[1], 19); /* held rows, and one before them */
        CHECK_EQ(c->n_past, 19);
        absorb_one(x, 1, 19, 6);
        absorb_one(x, 1, 25, 5);
        propose(x, 1, 30, SLOTS, 4, &later);
        check_same(&now, &later, "rows that waited");
        CHECK_EQ(c->n_past, 30);
        absorb_one(x, 2, 3, 2); /* missed rows, and then one more gap behind held rows */
        absorb_one(x, 2, 8, 2);
        propose(x, 2, 10, SLOTS, 1, &waste);
        CHECK_EQ(waste.n_slots, SLOTS);
        close_drafting(x);
    }
}

/* With a row of each of many timelines in a pass, the rows of four passes wait. */
PLAIN_TEST(dflash_rows_of_a_crowd_wait_for_four_passes)
{
    const int32_t one[CROWD] = {1, 1, 1, 1, 1, 1};
    for (int k = 0; k < KINDS; k++) {
        drafting *x = open_crowd(&kinds[k], CROWD, CROWD_ROWS, N_CTX);
        static proposal waited, at_once;
        int64_t past[CROWD] = {0};
        err e = {0};
        memcpy(x->id[1], x->id[0], sizeof x->id[0]);
        memcpy(x->features[1], x->features[0], sizeof x->features[0]);
        for (int32_t i = 0; i < 4; i++) {
            absorb(x, past, one);
            for (int32_t s = 0; s < CROWD; s++) {
                CHECK_EQ(draft_dflash.cache(x->s[s])->n_past, 0);
                past[s]++;
            }
        }
        absorb(x, past, one); /* no room: the rows that waited are absorbed, these wait */
        for (int32_t s = 0; s < CROWD; s++)
            CHECK_EQ(draft_dflash.cache(x->s[s])->n_past, 4);
        CHECK_OK(draft_dflash.settle(x->d, &e), e);
        propose(x, 0, 5, SLOTS, 4, &waited);
        draft_dflash.state_close(x->d, x->s[1]);
        CHECK_OK(draft_dflash.state_open(x->d, &x->s[1], &e), e);
        for (int64_t at = 0; at < 5; at++) {
            absorb_one(x, 1, at, 1);
            CHECK_OK(draft_dflash.settle(x->d, &e), e);
        }
        propose(x, 1, 5, SLOTS, 4, &at_once);
        check_same(&waited, &at_once, "rows of a crowd");
        close_drafting(x);
    }
}

/* No more rows wait than a pass of the session may have. */
PLAIN_TEST(dflash_few_rows_wait_for_small_passes)
{
    for (int32_t rows = 2; rows <= 5; rows++) { /* the kept row is the second */
        drafting *x = open_drafting_of(&kinds[0], rows, N_CTX);
        proposal p;
        for (int64_t at = 0; at < 40; at++)
            absorb_one(x, 0, at, 1);
        propose(x, 0, 40, SLOTS, 1, &p);
        CHECK_EQ(p.n_slots, SLOTS);
        close_drafting(x);
    }
}

TEST(dflash_forgets_what_was_cut)
{
    drafting *x = open_drafting(&kinds[0]);
    proposal before, after, cut, blind;
    for (int64_t at = 0; at < 40; at += 8)
        absorb_one(x, 0, at, 8);
    propose(x, 0, 40, SLOTS, 1, &before);
    absorb_one(x, 0, 40, 3); /* and back: the rings still hold the window */
    draft_dflash.forget(x->d, x->s[0], 40);
    propose(x, 0, 40, SLOTS, 1, &after);
    check_same(&before, &after, "after a cut");
    draft_dflash.forget(x->d, x->s[0], 90); /* nothing to forget */
    propose(x, 0, 40, SLOTS, 1, &after);
    check_same(&before, &after, "after nothing");

    absorb_one(x, 0, 40, 16);
    absorb_one(x, 0, 56, 16);
    draft_dflash.forget(x->d, x->s[0], 40); /* the rings have lost the window */
    propose(x, 0, 40, SLOTS, 1, &blind);
    CHECK_EQ(blind.n_slots, 0);
    CHECK(!draft_dflash.cache(x->s[0]));
    absorb_one(x, 0, 40, 10);
    propose(x, 0, 50, SLOTS, 1, &cut);
    CHECK_EQ(cut.n_slots, SLOTS);

    absorb_one(x, 1, 30, 10); /* rows 0 .. 30 were missed */
    memcpy(x->id[1], x->id[0], sizeof x->id[0]);
    memcpy(x->features[1], x->features[0], sizeof x->features[0]);
    absorb_one(x, 1, 40, 10);
    draft_dflash.forget(x->d, x->s[1], 40);
    draft_dflash.forget(x->d, x->s[1], 0);
    CHECK(draft_dflash.cache(x->s[1]));
    absorb_one(x, 1, 40, 10);
    propose(x, 1, 50, SLOTS, 1, &after);
    check_same(&cut, &after, "only what came later");
    close_drafting(x);
}

TEST(dflash_takes_the_planned_memory)
{
    for (int k = 0; k < KINDS; k++) {
        AUTO_MEM drafting *x = mem_calloc(1, sizeof *x);
        err e = {0};
        CHECK(x);
        open_model(x, &kinds[k]);
        CHECK_OK(draft_dflash.plan(x->m, &x->z, &x->c, &e), e);
        CHECK_EQ(x->c.taps.n, DF_FEATURES);
        uint64_t before = x->dev->used_bytes(x->dev);
        CHECK_OK(draft_dflash.open(x->m, &x->z, &x->d, &e), e);
        CHECK_EQ(x->dev->used_bytes(x->dev) - before, x->c.device_bytes);
        before = x->dev->used_bytes(x->dev);
        CHECK_OK(draft_dflash.state_open(x->d, &x->s[0], &e), e);
        CHECK_EQ(x->dev->used_bytes(x->dev) - before, x->c.device_state_bytes);
        draft_dflash.state_close(x->d, x->s[0]);
        draft_dflash.close(x->d);
        close_model(x);
    }
}

static status open_and_close(void *arg, err *e)
{
    drafting *x = arg;
    gguf g;
    draft_model *m;
    drafter *d = NULL;
    draft_state *s = NULL;
    status st = gguf_open(&g, test_temp("draft.gguf"), false, NULL, NULL, e);
    st = st ? st : draft_model_open(&draft_dflash, &x->target, &g, &m, e);
    if (st)
        return st;
    st = model_load(&m->core, x->dev, NULL, NULL, e);
    st = st ? st : draft_dflash.open(m, &x->z, &d, e);
    st = st ? st : draft_dflash.state_open(d, &s, e);
    if (d) {
        draft_dflash.state_close(d, s);
        draft_dflash.close(d);
    }
    draft_model_close(m);
    return st;
}

TEST(dflash_drafter_every_allocation_may_fail)
{
    AUTO_MEM drafting *x = mem_calloc(1, sizeof *x);
    CHECK(x);
    open_model(x, &kinds[2]);
    test_every_allocation(open_and_close, x);
    close_model(x);
}

TEST(dflash_takes_no_other_model)
{
    AUTO_MEM drafting *x = mem_calloc(1, sizeof *x);
    gguf g;
    draft_model *m;
    err e = {0};
    CHECK(x);
    open_model(x, &kinds[0]);
    CHECK_OK(gguf_open(&g, rig_model(), false, NULL, NULL, &e), e);
    CHECK_STATUS(draft_model_open(&draft_dflash, &x->target, &g, &m, &e), E_ARG);
    CHECK(strstr(e.text, "is no DFlash drafter") && !m);
    close_model(x);
}
