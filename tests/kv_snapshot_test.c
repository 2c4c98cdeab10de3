/* kv_snapshot_test.c - a loaded snapshot continues bit for bit like the saved timeline, in every
 * format.
 *
 * A timeline is walked as a speculating decoder would, with rejected drafts and rewinds, and
 * snapshots are taken on the way: at every position up to three windows, then at some; filled at
 * once or a pass later. Each is loaded into a cache full of NaN, whose rings have another size, and
 * continues there; one goes through a file. The oracle is token by token.
 */
#include "tests/kv_rig.h"
#include "tests/test.h"
#include "base/rng.h"
#include "kv/snapshot_file.h"

enum { ROWS = 16, EACH_UP_TO = 3 * RIG_WINDOW + 2, SNAPSHOTS_MAX = 64 };

typedef struct walk {
    rig *r, other; /* other: the cache that snapshots are loaded into */
    const int32_t *ids;
    const float *want;
    const char *file;
    uint64_t *rng;
    kv_snapshot *taken[SNAPSHOTS_MAX];
    int n_taken, n_late;
} walk;

static void fill_if(walk *w, bool now)
{
    kv_snapshot *s = w->n_taken ? w->taken[w->n_taken - 1] : NULL;
    if (s && !s->filled && now) {
        CHECK(kv_can_save(&w->r->c, s->n, 0));
        kv_snapshot_fill(s, &w->r->c);
    }
}

/* A snapshot at n_past, whose segments continue those of the previous one. */
static void take(walk *w)
{
    kv_cache *c = &w->r->c;
    kv_snapshot *last = w->n_taken ? w->taken[w->n_taken - 1] : NULL;
    int64_t same = last && last->n < c->n_past ? last->n : c->n_past;
    err e = {0};
    fill_if(w, true); /* the previous one, which waits for at most a pass */
    CHECK(w->n_taken < SNAPSHOTS_MAX);
    CHECK(kv_can_save(c, c->n_past, 0));
    const kv_snapshot_want want = {.layout = &w->r->l,
                                   .ids = w->ids,
                                   .n = c->n_past,
                                   .base = last ? last->linear : NULL,
                                   .base_n = same};
    CHECK_OK(kv_snapshot_new(&want, &w->taken[w->n_taken], &e), e);
    w->n_taken++;
}

/* A verify batch; its first `good` rows are right and are committed. */
static void advance(walk *w, int32_t n, int32_t good)
{
    kv_cache *c = &w->r->c;
    int32_t batch[ROWS];
    float got[ROWS * RIG_VOCAB];
    memcpy(batch, w->ids + c->n_past, sizeof *batch * (size_t)n);
    for (int32_t i = good; i < n; i++)
        batch[i] = (batch[i] + 1 + (int32_t)rng_below(w->rng, RIG_VOCAB - 1)) % RIG_VOCAB;
    /* A waiting snapshot is filled just before the pass that would overwrite its rows. */
    bool fits = w->n_taken && kv_can_save(c, w->taken[w->n_taken - 1]->n, n);
    fill_if(w, !fits);
    w->n_late += fits && !w->taken[w->n_taken - 1]->filled;
    int64_t at = c->n_past;
    rig_run(w->r, batch, n, good, got);
    CHECK(rig_same(got, w->want + (size_t)at * RIG_VOCAB, good));
}

static void walk_and_take(walk *w)
{
    kv_cache *c = &w->r->c;
    while (c->n_past < EACH_UP_TO) {
        advance(w, 1, 1);
        take(w);
        fill_if(w, rng_below(w->rng, 2));
    }
    while (c->n_past + ROWS <= RIG_LONG && w->n_taken < SNAPSHOTS_MAX) {
        int32_t n = 1 + (int32_t)rng_below(w->rng, ROWS);
        advance(w, n, (int32_t)rng_below(w->rng, (uint64_t)n + 1));
        if (rng_below(w->rng, 4) == 0 && !(w->n_taken && !w->taken[w->n_taken - 1]->filled))
            kv_rewind(c, c->n_past - (int64_t)rng_below(w->rng, 4)); /* or not, if forgotten */
        bool new = !w->n_taken || w->taken[w->n_taken - 1]->n != c->n_past;
        if (new &&rng_below(w->rng, 3) == 0 && kv_can_save(c, c->n_past, 0)) {
            take(w);
            fill_if(w, rng_below(w->rng, 2));
        }
    }
    fill_if(w, true);
}

/* Loads s into a cache that held something else and runs its last token and n_more after it. */
static void goes_on(walk *w, const kv_snapshot *s, int32_t n_more, const char *how)
{
    rig *o = &w->other;
    float got[ROWS * RIG_VOCAB];
    int32_t noise[ROWS];
    err e = {0};
    rig_poison(&o->c);
    kv_reset(&o->c);
    rig_draw(noise, ROWS, w->rng);
    for (int i = 0; i < 2; i++)
        rig_run(o, noise, o->l.rows_max < ROWS ? o->l.rows_max : ROWS,
                o->l.rows_max < ROWS ? o->l.rows_max : ROWS, got);
    rig_poison(&o->c);
    CHECK(kv_snapshot_fits(s, &o->l));
    CHECK_OK(kv_snapshot_load(s, &o->c, &e), e);
    CHECK_EQ(o->c.n_past, s->n);
    CHECK(!kv_rewind(&o->c, s->n - 2) || s->n <= RIG_WINDOW + 1);
    CHECK_OK(kv_snapshot_load(s, &o->c, &e), e);
    CHECK(kv_rewind(&o->c, s->n - 1));
    for (int64_t end = s->n + n_more < RIG_LONG ? s->n + n_more : RIG_LONG; o->c.n_past < end;) {
        int64_t at = o->c.n_past;
        int32_t n = 1 + (int32_t)rng_below(w->rng, (uint64_t)o->l.rows_max);
        n = n < end - at ? n : (int32_t)(end - at);
        n = n < ROWS ? n : ROWS;
        rig_run(o, w->ids + at, n, n, got);
        CHECK_MSG(rig_same(got, w->want + (size_t)at * RIG_VOCAB, n),
                  "saved at %lld%s: %d rows at %lld have other bits", (long long)s->n, how, n,
                  (long long)at);
    }
}

static void goes_on_from_a_file(walk *w, const kv_snapshot *s)
{
    kv_file_id id = {.model = {1, 2}};
    kv_snapshot *k;
    uint64_t n_bytes;
    err e = {0};
    kv_layout_words(&w->r->l, &id.layout);
    CHECK_OK(kv_snapshot_write(s, w->file, &id, &n_bytes, &e), e);
    CHECK_OK(kv_snapshot_read(w->file, &id, &w->other.l, &k, &e), e);
    CHECK_EQ(k->n, s->n);
    CHECK(!memcmp(k->ids, s->ids, (size_t)s->n * sizeof *s->ids));
    CHECK_EQ(k->ring_bytes, s->ring_bytes);
    CHECK(!memcmp(k->rings, s->rings, s->ring_bytes));
    goes_on(w, k, 2 * RIG_WINDOW + 3, " in a file");
    kv_snapshot_drop(k);
    str_free(&id.layout);
}

static void one_format(rig *r, const kv_words *words, const char *file, uint64_t *rng)
{
    int32_t ids[RIG_LONG];
    rig_draw(ids, RIG_LONG, rng);
    AUTO_MEM float *want = rig_token_by_token(r, words, ids);
    walk w = {.r = r,
              .other = {.m = r->m, .dev = r->dev},
              .ids = ids,
              .want = want,
              .file = file,
              .rng = rng};
    rig_open_cache(r, words, ROWS);
    rig_open_cache(&w.other, words, 1 + (int32_t)rng_below(rng, 40));
    walk_and_take(&w);
    CHECK(w.n_taken > EACH_UP_TO + 6 && w.n_late > 6);
    /* In random order: snapshots that share segments are dropped, some before their parents. */
    for (int left = w.n_taken; left; left--) {
        int i = (int)rng_below(rng, (uint64_t)left);
        kv_snapshot *s = w.taken[i];
        goes_on(&w, s, s->n <= EACH_UP_TO ? 2 : 2 * RIG_WINDOW + 3, "");
        if (left == w.n_taken) /* files are slow: one per format */
            goes_on_from_a_file(&w, s);
        kv_snapshot_drop(s);
        w.taken[i] = w.taken[left - 1];
    }
    rig_close_cache(&w.other);
    rig_close_cache(r);
}

PLAIN_TEST(kv_snapshots_go_on_bit_for_bit_in_every_format)
{
    uint64_t rng = test_seed();
    const char *file = test_temp("saved");
    char text[128];
    AUTO(rig_close) rig r;
    rig_open(&r);
    for (int i = 0; i < RIG_FORMATS; i += test_brief() ? 7 : 1) {
        printf("  %s\n", rig_words(&rig_format[i], text, sizeof text));
        one_format(&r, &rig_format[i], file, &rng);
    }
}

typedef struct filed {
    kv_snapshot *s;
    const kv_layout *l;
    const char *path;
} filed;

static status write_and_read(void *arg, err *e)
{
    const filed *f = arg;
    kv_file_id id = {.model = {1, 2}};
    kv_snapshot *k = NULL;
    uint64_t n_bytes;
    status st;
    kv_layout_words(f->l, &id.layout);
    st = id.layout.bad ? err_memory(e, "words", 1)
                       : kv_snapshot_write(f->s, f->path, &id, &n_bytes, e);
    if (!st && !(st = kv_snapshot_read(f->path, &id, f->l, &k, e)))
        CHECK(k->n == f->s->n && k->ids[0] == f->s->ids[0]);
    kv_snapshot_drop(k);
    str_free(&id.layout);
    return st;
}

TEST(kv_snapshot_files_of_one_token_and_without_memory)
{
    AUTO(rig_close) rig r;
    int32_t ids[] = {3};
    float got[RIG_VOCAB];
    kv_snapshot *s;
    err e = {0};
    rig_open(&r);
    rig_open_cache(&r, &rig_format[0], 32);
    rig_run(&r, ids, 1, 1, got);
    CHECK_OK(kv_snapshot_new(&(kv_snapshot_want){.layout = &r.l, .ids = ids, .n = 1}, &s, &e), e);
    kv_snapshot_fill(s, &r.c);
    test_every_allocation(write_and_read, &(filed){s, &r.l, test_temp("one")});
    kv_snapshot_drop(s);
    rig_close_cache(&r);
}

/* A segment of which no row would count is not kept alive. */
TEST(kv_snapshot_of_a_branch_keeps_no_segment_without_rows_for_it)
{
    AUTO(rig_close) rig r;
    int32_t ids[30] = {0};
    kv_snapshot *a, *b, *c, *d;
    err e = {0};
    rig_open(&r);
    rig_open_cache(&r, &rig_format[0], 32);
    kv_snapshot_want w = {.layout = &r.l, .ids = ids, .n = 20};
    CHECK_OK(kv_snapshot_new(&w, &a, &e), e);
    w = (kv_snapshot_want){.layout = &r.l, .ids = ids, .n = 30, .base = a->linear};
    CHECK_OK(kv_snapshot_new(&w, &b, &e), e);
    CHECK(!b->linear->parent && atomic_load(&a->linear->refs) == 1);
    w.base_n = 10;
    CHECK_OK(kv_snapshot_new(&w, &c, &e), e);
    CHECK(c->linear->parent == a->linear && c->linear->from == 10);
    w.base = c->linear;
    CHECK_OK(kv_snapshot_new(&w, &d, &e), e);
    CHECK(d->linear->parent == a->linear && atomic_load(&c->linear->refs) == 1);
    kv_snapshot_drop(a);
    kv_snapshot_drop(b);
    kv_snapshot_drop(c);
    kv_snapshot_drop(d);
    rig_close_cache(&r);
}

/* A file of each format against the layouts of all: accepted only where the formats are equal. The
 * same for snapshots in memory. */
PLAIN_TEST(kv_snapshots_of_another_format_are_refused)
{
    enum { N = 20 };
    uint64_t rng = test_seed();
    int32_t ids[N];
    float got[N * RIG_VOCAB];
    kv_file_id id[RIG_FORMATS] = {{.model = {0, 0}}};
    kv_layout layout[RIG_FORMATS];
    const char *path = test_temp("saved");
    err e = {0};
    AUTO(rig_close) rig r;
    rig_open(&r);
    rig_draw(ids, N, &rng);
    for (int i = 0; i < RIG_FORMATS; i++) {
        kv_want_layout w = {
            .spec = r.m.kv, .n = r.m.n_kv, .n_ctx = RIG_CTX, .rows_max = 8, .dev = {r.dev}};
        CHECK_OK(kv_choice_parse(&w.choice, &rig_format[i], &e), e);
        CHECK_OK(kv_layout_init(&layout[i], &w, &e), e);
        kv_layout_words(&layout[i], &id[i].layout);
    }
    for (int i = 0; i < RIG_FORMATS; i++) {
        kv_snapshot *s, *k;
        uint64_t n_bytes;
        rig_open_cache(&r, &rig_format[i], N);
        rig_run(&r, ids, N, N, got);
        CHECK_OK(kv_snapshot_new(&(kv_snapshot_want){.layout = &r.l, .ids = ids, .n = N}, &s, &e),
                 e);
        kv_snapshot_fill(s, &r.c);
        CHECK_OK(kv_snapshot_write(s, path, &id[i], &n_bytes, &e), e);
        for (int j = 0; j < RIG_FORMATS; j++) {
            bool alike = !strcmp(str_text(&id[i].layout), str_text(&id[j].layout));
            CHECK(alike == (i == j));
            CHECK_EQ(kv_snapshot_fits(s, &layout[j]), alike);
            CHECK_STATUS(kv_snapshot_read(path, &id[j], &layout[j], &k, &e), alike ? OK : E_FORMAT);
            CHECK(alike || (!k && e.text[0]));
            kv_snapshot_drop(k);
            err_clear(&e);
        }
        kv_snapshot_drop(s);
        rig_close_cache(&r);
    }
    for (int i = 0; i < RIG_FORMATS; i++) {
        kv_layout_free(&layout[i]);
        str_free(&id[i].layout);
    }
}
