/* pool_snapshot_test.c - snapshots of sessions that keep part of their keys in the pool: what goes
 * on from one is what the session itself would have computed, before and after pages have moved.
 * The same of sessions that keep all keys, whose pages go to other places of the pool.
 *
 * SNAPSHOT_TOKENS in the environment sets how long the saved texts are: 65536 takes minutes.
 */
#include "base/mem.h"
#include "base/rng.h"
#include "engine/batch_int.h"
#include "tests/kv_rig.h"
#include "tests/test.h"
#include "tests/toy_model.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { KEEP = 512, PROMPT = 1700, PROMPT_MAX = 1 << 20, GO_ON = 512, MORE = 2396, LONG_S = 7200 };

/* Tokens of the texts that are saved. */
static int32_t n_prompt(void)
{
    const char *said = getenv("SNAPSHOT_TOKENS");
    int n = said ? atoi(said) : 0;
    return n >= PROMPT && n <= PROMPT_MAX ? n : PROMPT;
}

static int32_t n_ctx(void)
{
    return n_prompt() + MORE;
}

typedef struct words {
    int32_t id[GO_ON + 64];
    int n;
} words;

static carat_model *open_model(void)
{
    return toy_model_open(&(toy_model_file){.n_ctx_train = (uint32_t)n_ctx(), .scale = 4},
                          &(carat_model_options){.n_threads = 1});
}

static carat_session *open_session(carat_model *m, int32_t resident, const char *policy)
{
    carat_session *s;
    err e = {0};
    const carat_session_options o = {.n_ctx = n_ctx(),
                                     .chunk = 64,
                                     .kv_resident = resident,
                                     .kv_policy = policy,
                                     .kv_single = "off"};
    CHECK_OK(carat_session_open(m, &o, &s, &e), e);
    return s;
}

static void draw(int32_t *ids, int n, uint64_t seed)
{
    for (int i = 0; i < n; i++)
        ids[i] = 20 + (int32_t)rng_below(&seed, 300);
}

/* n tokens, each the first choice after the one before; logits: of the last. */
static void go_on(carat_session *s, int32_t n_vocab, int n, int32_t first, words *w, float *logits)
{
    err e = {0};
    w->n = 0;
    for (int i = 0; i < n; i++) {
        CHECK_OK(carat_append(s, &first, 1, false, logits, &e), e);
        first = 0;
        for (int32_t k = 1; k < n_vocab; k++)
            first = logits[k] > logits[first] ? k : first;
        w->id[w->n++] = first;
    }
}

typedef struct fixture {
    carat_model *m;
    int32_t n_vocab;
    int32_t *ids, *other; /* [n_ctx()] */
    float *a, *b;
} fixture;

static void open_all(fixture *f)
{
    carat_model_info info;
    if (n_prompt() > PROMPT) /* longer than a test may take */
        alarm(LONG_S);
    f->m = open_model();
    carat_model_get_info(f->m, &info);
    f->n_vocab = info.n_vocab;
    f->ids = mem_calloc(2 * (size_t)n_ctx(), sizeof *f->ids);
    CHECK(f->ids);
    f->other = f->ids + n_ctx();
    draw(f->ids, 2 * n_ctx(), 3);
    f->a = mem_calloc((size_t)f->n_vocab, sizeof *f->a);
    f->b = mem_calloc((size_t)f->n_vocab, sizeof *f->b);
    CHECK(f->a && f->b);
}

static void close_all(fixture *f)
{
    mem_free(f->a);
    mem_free(f->b);
    mem_free(f->ids);
    carat_model_close(f->m);
}

/* Saved at n tokens, poisoned by another text, restored: 512 tokens are the same. */
static void save_poison_restore(const char *policy, int n)
{
    fixture f;
    words one, two;
    carat_snapshot *k;
    carat_pool_info p;
    err e = {0};
    open_all(&f);
    carat_session *s = open_session(f.m, KEEP, policy), *t = open_session(f.m, KEEP, policy);
    CHECK_OK(carat_eval(s, f.ids, n, NULL, NULL, &e), e);
    go_on(s, f.n_vocab, 37, 7, &one, f.a); /* between two choices */
    CHECK_OK(carat_snapshot_take(s, &k, &e), e);
    CHECK_EQ(carat_snapshot_n(k), n + 37);
    go_on(s, f.n_vocab, GO_ON, 9, &one, f.a);
    CHECK_OK(carat_eval(s, f.other, PROMPT + 200, NULL, NULL, &e), e);
    for (int round = 0; round < 2; round++) { /* in its own session, and in a new one */
        carat_session *at = round ? t : s;
        CHECK_OK(carat_snapshot_restore(at, k, &e), e);
        CHECK_EQ(carat_session_n_past(at), n + 37);
        go_on(at, f.n_vocab, GO_ON, 9, &two, f.b);
        CHECK(!memcmp(one.id, two.id, sizeof one.id[0] * GO_ON));
        CHECK(!memcmp(f.a, f.b, (size_t)f.n_vocab * sizeof *f.a));
        carat_session_get_pool(at, &p);
        CHECK(p.lossy && p.n_paged_out > 0);
    }
    carat_snapshot_free(k);
    carat_session_close(s);
    carat_session_close(t);
    close_all(&f);
}

/* At every token around a choice: whatever is watched by then. */
PLAIN_TEST(pool_snapshots_around_a_choice_go_on_alike)
{
    enum { FIRST = 5, AROUND = 12, AFTER = 70 };
    fixture f;
    words w;
    carat_snapshot *k[AROUND];
    int32_t next[AROUND + 1];
    err e = {0};
    open_all(&f);
    carat_session *s = open_session(f.m, KEEP, "scored"), *t = open_session(f.m, KEEP, "scored");
    CHECK_OK(carat_eval(s, f.ids, PROMPT, NULL, NULL, &e), e);
    const kv_pager *g = session_timeline(s)->kv.pager;
    go_on(s, f.n_vocab, FIRST, 7, &w, f.a); /* a choice may be due behind the prompt */
    go_on(s, f.n_vocab, (int)(residency_tau(&g->r) - g->r.since) - AROUND / 2, w.id[FIRST - 1], &w,
          f.a);
    next[0] = w.id[w.n - 1];
    int64_t n_chosen = g->n_reselected;
    for (int i = 0; i < AROUND; i++) {
        CHECK_OK(carat_snapshot_take(s, &k[i], &e), e);
        go_on(s, f.n_vocab, 1, next[i], &w, f.a);
        next[i + 1] = w.id[0];
    }
    CHECK_EQ(g->n_reselected, n_chosen + 1);
    go_on(s, f.n_vocab, AFTER, next[AROUND], &w, f.a);
    for (int i = 0; i < AROUND; i++) {
        CHECK_OK(carat_snapshot_restore(t, k[i], &e), e);
        go_on(t, f.n_vocab, AROUND - i + AFTER, next[i], &w, f.b);
        CHECK_MSG(!memcmp(f.a, f.b, (size_t)f.n_vocab * sizeof *f.a), "snapshot %d", i);
        carat_snapshot_free(k[i]);
    }
    carat_session_close(s);
    carat_session_close(t);
    close_all(&f);
}

PLAIN_TEST(a_snapshot_of_scored_pages_goes_on_as_the_session)
{
    save_poison_restore("scored", n_prompt());
}

PLAIN_TEST(a_snapshot_of_young_pages_goes_on_as_the_session)
{
    save_poison_restore("lru", n_prompt());
}

PLAIN_TEST(a_snapshot_of_dropped_pages_goes_on_as_the_session)
{
    save_poison_restore("snapkv", n_prompt());
}

PLAIN_TEST(a_snapshot_before_any_page_leaves_goes_on_as_the_session)
{
    save_poison_restore("scored", 300);
}

/* All pages leave, free pages become NaN and come in any order, and the pages return: to others. */
static void relocate(carat_session *s)
{
    kv_cache *c = &s->b.slot->t.kv;
    err e = {0};
    int32_t n_moved = 0, *before = mem_alloc((size_t)c->n_pages * sizeof *before);
    CHECK(before);
    for (int32_t i = 0; i < c->n_pages; i++)
        before[i] = c->page[i];
    CHECK_OK(kv_page_out(c, NULL, &e), e);
    rig_poison_free(c);
    rig_shuffle(c);
    CHECK_OK(kv_page_in(c, &e), e);
    for (int32_t i = 0; i < c->n_pages; i++)
        n_moved += c->page[i] != before[i];
    CHECK_MSG(2 * n_moved > c->n_pages, "%d of %d pages moved", n_moved, c->n_pages);
    mem_free(before);
}

/* A session that keeps all keys goes on, and from its snapshot does so again, with its pages in
 * other places: after they have moved, and where the snapshot was loaded to. */
PLAIN_TEST(a_whole_session_goes_on_bit_for_bit_when_its_pages_move)
{
    fixture f;
    words one, two;
    carat_snapshot *k;
    err e = {0};
    open_all(&f);
    carat_session *s = open_session(f.m, 0, NULL), *t = open_session(f.m, 0, NULL);
    CHECK_OK(carat_eval(s, f.ids, n_prompt(), NULL, NULL, &e), e);
    CHECK_OK(carat_snapshot_take(s, &k, &e), e);
    go_on(s, f.n_vocab, GO_ON, 9, &one, f.a);
    for (int round = 0; round < 3; round++) {
        carat_session *at = round < 2 ? s : t;
        CHECK_OK(carat_eval(at, f.other, 900, NULL, NULL, &e), e);
        rig_poison(&at->b.slot->t.kv);
        kv_reset(&at->b.slot->t.kv);
        rig_shuffle(&at->b.slot->t.kv);
        CHECK_OK(carat_snapshot_restore(at, k, &e), e);
        if (round)
            relocate(at);
        go_on(at, f.n_vocab, GO_ON, 9, &two, f.b);
        CHECK(!memcmp(one.id, two.id, sizeof one.id[0] * GO_ON));
        CHECK(!memcmp(f.a, f.b, (size_t)f.n_vocab * sizeof *f.a));
    }
    carat_snapshot_free(k);
    carat_session_close(s);
    carat_session_close(t);
    close_all(&f);
}

PLAIN_TEST(snapshots_that_do_not_fit_a_pool_are_refused_with_a_sentence)
{
    fixture f;
    carat_snapshot *k;
    err e = {0}, no = {0};
    open_all(&f);
    carat_session *s = open_session(f.m, KEEP, "scored"), *whole = open_session(f.m, 0, NULL),
                  *larger = open_session(f.m, 2 * KEEP, "scored"),
                  *lru = open_session(f.m, KEEP, "lru");
    CHECK_OK(carat_eval(s, f.ids, PROMPT, NULL, NULL, &e), e);
    CHECK_OK(carat_snapshot_take(s, &k, &e), e);
    CHECK_EQ(carat_snapshot_restore(whole, k, &no), E_ARG);
    CHECK_MSG(strstr(no.text, "while keys were away"), "%s", no.text);
    err_clear(&no);
    CHECK_EQ(carat_snapshot_restore(larger, k, &no), E_ARG);
    CHECK_MSG(strstr(no.text, "pool of 512 tokens"), "%s", no.text);
    err_clear(&no);
    CHECK_EQ(carat_snapshot_restore(lru, k, &no), E_ARG);
    for (int i = 0; i < 3; i++) /* all of them live on */
        CHECK_OK(carat_eval(i ? i > 1 ? lru : larger : whole, f.ids, 100, NULL, NULL, &e), e);
    carat_snapshot_free(k);
    carat_session_close(s);
    carat_session_close(whole);
    carat_session_close(larger);
    carat_session_close(lru);
    close_all(&f);
}

/* A long exact snapshot comes page by page, and every row of it is there: a session that keeps all
 * keys goes on from it as the first one. */
TEST(a_pool_takes_a_snapshot_longer_than_itself)
{
    fixture f;
    words one, two;
    carat_snapshot *k, *back;
    carat_pool_info p;
    err e = {0};
    open_all(&f);
    carat_session *whole = open_session(f.m, 0, NULL), *s = open_session(f.m, KEEP, "scored"),
                  *other = open_session(f.m, 0, NULL);
    CHECK_OK(carat_eval(whole, f.ids, PROMPT, NULL, NULL, &e), e);
    CHECK_OK(carat_snapshot_take(whole, &k, &e), e);
    go_on(whole, f.n_vocab, 64, 9, &one, f.a);
    CHECK_OK(carat_snapshot_restore(s, k, &e), e);
    carat_session_get_pool(s, &p);
    CHECK(!p.lossy && p.n_paged_out >= PROMPT - KEEP - 64);
    CHECK_OK(carat_snapshot_take(s, &back, &e), e);
    CHECK_OK(carat_snapshot_restore(other, back, &e), e);
    go_on(other, f.n_vocab, 64, 9, &two, f.b);
    CHECK(!memcmp(f.a, f.b, (size_t)f.n_vocab * sizeof *f.a));
    go_on(s, f.n_vocab, 64, 9, &two, f.b);
    carat_session_get_pool(s, &p);
    CHECK(p.lossy);
    carat_snapshot_free(k);
    carat_snapshot_free(back);
    carat_session_close(whole);
    carat_session_close(s);
    carat_session_close(other);
    close_all(&f);
}

typedef struct moment {
    carat_session *s;
    carat_snapshot *k;
} moment;

TEST(snapshots_of_pools_survive_every_failed_allocation)
{
    fixture f;
    moment x;
    err e = {0};
    open_all(&f);
    x.s = open_session(f.m, KEEP, "scored");
    CHECK_OK(carat_eval(x.s, f.ids, 900, NULL, NULL, &e), e);
    CHECK_OK(carat_snapshot_take(x.s, &x.k, &e), e);
    for (int64_t n = 0;; n++) {
        err no = {0};
        mem_fail_after(n);
        carat_snapshot *k = NULL;
        status st = carat_snapshot_take(x.s, &k, &no);
        if (!st)
            st = carat_snapshot_restore(x.s, k, &no);
        bool hit = mem_fail_hit();
        mem_fail_after(-1);
        carat_snapshot_free(k);
        CHECK_MSG(!st || (hit && st == E_MEMORY), "allocation %lld: %s", (long long)n, no.text);
        if (st && !carat_session_n_past(x.s))
            CHECK_OK(carat_snapshot_restore(x.s, x.k, &e), e);
        CHECK_EQ(carat_session_n_past(x.s), 900);
        if (!hit)
            break;
    }
    carat_snapshot_free(x.k);
    carat_session_close(x.s);
    close_all(&f);
}

/* The weights leave while pages are away, and come back: the session goes on. */
PLAIN_TEST(a_pool_goes_on_after_its_model_was_parked)
{
    fixture f;
    words one, two;
    err e = {0};
    open_all(&f);
    carat_session *s = open_session(f.m, KEEP, "scored"), *t = open_session(f.m, KEEP, "scored");
    CHECK_OK(carat_eval(s, f.ids, PROMPT, NULL, NULL, &e), e);
    CHECK_OK(carat_eval(t, f.ids, PROMPT, NULL, NULL, &e), e);
    go_on(s, f.n_vocab, 200, 9, &one, f.a);
    go_on(t, f.n_vocab, 100, 9, &two, f.b);
    carat_model_park(f.m);
    CHECK_OK(carat_model_unpark(f.m, &e), e);
    go_on(t, f.n_vocab, 100, two.id[99], &two, f.b);
    CHECK(!memcmp(one.id + 100, two.id, sizeof one.id[0] * 100));
    CHECK(!memcmp(f.a, f.b, (size_t)f.n_vocab * sizeof *f.a));
    carat_session_close(s);
    carat_session_close(t);
    close_all(&f);
}
