/* kv_pager_test.c - a cache whose pool is smaller than its context: pages go to the host and come
 * back byte for byte, failures lose nothing, and kernels agree about what is left to see. */
#include "backend/key_walk.h"
#include "base/mem.h"
#include "kv/pager.h"
#include "kv/paging.h"
#include "kv/snapshot.h"
#include "tests/kv_rig.h"
#include "tests/test.h"

#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

enum { POOL = 7 * KV_PAGE, TOKENS = 620 };

static const kv_words f32_words = {.k = "f32", .single = "off"};

static void open_paged(rig *r, const cpu_options *o, const kv_words *words, kv_policy policy,
                       int64_t host_bytes, int32_t rows)
{
    err e = {0};
    const kv_pager_want w = {.policy = policy, .tau = 16};
    CHECK(rig_open_on(r, o));
    r->n_pool = POOL;
    rig_open_cache(r, words, rows);
    CHECK_OK(kv_mover_open(r->c.pool, &(kv_mover_want){.host_bytes = host_bytes}, &e), e);
    CHECK_OK(kv_pager_open(&r->c, &w, &e), e);
}

/* All pages that leave go to a file in the directory. */
static void open_in_file(rig *r, kv_policy policy, const char *dir)
{
    err e = {0};
    const kv_pager_want w = {.policy = policy, .tau = 16};
    const kv_mover_want to = {.dir = dir, .file_bytes = 1 << 30};
    CHECK(!mkdir(dir, 0700));
    rig_open(r);
    r->n_pool = POOL;
    rig_open_cache(r, &f32_words, 1);
    CHECK_OK(kv_mover_open(r->c.pool, &to, &e), e);
    CHECK_OK(kv_pager_open(&r->c, &w, &e), e);
}

static void close_all(rig *r)
{
    rig_close_cache(r);
    rig_close(r);
}

/* A pass of one token, watched where the pager wants it. */
static status one_token(rig *r, int32_t id, float *logits, err *e)
{
    pass p;
    page_watch w;
    status st = kv_reserve(&r->c, 1, e);
    if (st || (st = kv_batch_add(&r->b, &r->c, &id, 1, NULL, KV_WANT_ALL, e))) {
        kv_batch_clear(&r->b);
        return st;
    }
    const page_watch *watch = r->c.pager ? kv_pager_watch(&r->c, 0, 1, false) : NULL;
    pass_begin(&p, r->dev, &r->b.st, r->scratch, r->scratch_bytes);
    if (watch) {
        w = *watch;
        p.watch = &w;
        p.n_watch = 1;
    }
    mat y = model_forward(&p, &r->m, &r->l);
    CHECK_OK(p.e.status, p.e);
    if (watch)
        kv_pager_watched(&r->c, 1);
    memcpy(logits, y.at, RIG_VOCAB * sizeof *logits);
    kv_batch_clear(&r->b);
    kv_commit(&r->c, 1);
    return OK;
}

/* The row of a key of store i, wherever it is. */
static const char *stored_row(const rig *r, int32_t i, int32_t head, int32_t pos, bool values)
{
    static unsigned char copy[1 << 20];
    err e = {0};
    const kv_view *v = &r->l.view[i];
    const kv_pager *g = r->c.pager;
    size_t row = values ? v->v_row_bytes : v->k_row_bytes;
    void *stream = values ? r->c.base[i].v : r->c.base[i].k;
    if (!g)
        return key_row(v, stream, row, head, key_walk(v, &r->c.base[i], pos).place);
    int32_t page = pos / KV_PAGE;
    if (g->r.page[page].place >= 0)
        return key_row(v, stream, row, head, (size_t)(g->r.page[page].place + pos % KV_PAGE));
    CHECK(kv_page_bytes(&r->l) <= sizeof copy);
    CHECK_OK(kv_copy_read(r->c.pool, &g->copy[page], copy, &e), e);
    const unsigned char *at = copy;
    for (int32_t k = 0; k < r->l.n; k++) {
        const kv_view *u = &r->l.view[k];
        size_t heads = (size_t)u->n_head_kv * KV_PAGE;
        if (u->window)
            continue;
        if (k == i && !values)
            return (const char *)at + ((size_t)head * KV_PAGE + (size_t)pos % KV_PAGE) * row;
        at += heads * u->k_row_bytes;
        if (k == i)
            return (const char *)at + ((size_t)head * KV_PAGE + (size_t)pos % KV_PAGE) * row;
        at += heads * u->v_row_bytes;
    }
    return NULL;
}

static int32_t first_linear(const rig *r)
{
    int32_t i = 0;
    while (r->l.view[i].window)
        i++;
    return i;
}

/* The keys of the first linear layer depend on rings alone, so those of a paged cache are those of
 * a whole one. */
static void check_stores(const rig *paged, const rig *whole)
{
    int32_t i = first_linear(paged);
    const kv_view *v = &paged->l.view[i];
    for (int32_t pos = 0; pos < paged->c.n_past; pos++)
        for (int32_t h = 0; h < v->n_head_kv; h++) {
            CHECK(!memcmp(stored_row(paged, i, h, pos, false), stored_row(whole, i, h, pos, false),
                          v->k_row_bytes));
            CHECK(!v->v_row_bytes || !memcmp(stored_row(paged, i, h, pos, true),
                                             stored_row(whole, i, h, pos, true), v->v_row_bytes));
        }
}

/* The caller's scores prefer other pages at every choice, so pages come back and leave again. */
static void give_scores(kv_cache *c)
{
    if (c->pager->policy != KV_POLICY_DRAFTER || !kv_pager_rescores(c))
        return;
    int32_t n = residency_pages_of(c->n_past + 1);
    float *score = kv_pager_scores(c, n);
    for (int32_t p = 0; p < n; p++)
        score[p] = (float)((p + 3 * c->pager->n_reselected) % 8);
}

PLAIN_TEST(pager_keeps_every_byte)
{
    static const kv_words words[] = {{.k = "f32", .single = "off"},
                                     {.k = "q4_0+rot", .v = "q8_0", .single = "off"},
                                     {.k = "f16", .single = "on"},
                                     {.k = "q8_0+rot", .single = "on"}};
    static const kv_policy policies[] = {KV_POLICY_DRAFTER, KV_POLICY_SCORED, KV_POLICY_LRU};
    for (size_t k = 0; k < 4; k++)
        for (size_t i = test_brief() ? k % 3 : 0; i < 3; i += test_brief() ? 3 : 1) {
            const kv_policy policy = policies[i];
            rig paged, whole;
            int32_t ids[TOKENS];
            float a[RIG_VOCAB], b[RIG_VOCAB];
            uint64_t rng = test_seed();
            err e = {0};
            rig_draw(ids, TOKENS, &rng);
            open_paged(&paged, &(cpu_options){.n_threads = 1}, &words[k], policy, -1, 1);
            rig_open(&whole);
            rig_open_cache(&whole, &words[k], 1);
            for (int32_t t = 0; t < TOKENS; t++) {
                give_scores(&paged.c);
                CHECK_OK(one_token(&paged, ids[t], a, &e), e);
                CHECK_OK(one_token(&whole, ids[t], b, &e), e);
                CHECK_EQ(paged.c.n_absent > 0, t >= POOL);
                CHECK_EQ(kv_pager_lossy(&paged.c), t >= POOL);
                if (t < POOL) /* everything is there: the same bits */
                    CHECK(rig_same(a, b, 1));
                CHECK(isfinite(a[0]));
            }
            CHECK(paged.c.pager->r.n_out > 0);
            CHECK(policy == KV_POLICY_LRU || paged.c.pager->n_reselected > 0);
            /* A page that came back is clean, and leaves again without another copy. */
            CHECK_EQ(paged.c.pager->r.n_out, paged.c.pager->r.n_copied);
            /* What the model's own queries bring back is not known. */
            CHECK(policy != KV_POLICY_DRAFTER ||
                  (paged.c.pager->r.n_in > 0 && paged.c.pager->r.n_left > 0));
            check_stores(&paged, &whole);
            CHECK(!kv_can_save(&paged.c, paged.c.n_past, 0));
            /* Back to the beginning: every page is free, and the cache is exact again. */
            kv_reset(&paged.c);
            CHECK_EQ(paged.c.pool->pages.n_free, paged.c.pool->pages.n);
            CHECK(!kv_pager_lossy(&paged.c));
            close_all(&paged);
            close_all(&whole);
        }
}

/* Pages that are free, and rows that no pass has written, are NaN in one of two caches. Every row
 * of logits is the same. */
PLAIN_TEST(pager_reads_no_free_page)
{
    static const kv_words words[] = {{.k = "f32", .single = "off"},
                                     {.k = "q4_0+rot", .v = "q8_0", .single = "off"},
                                     {.k = "tq3_0", .single = "off"},
                                     {.k = "f16", .single = "on"}};
    for (size_t k = 0; k < 4; k++) {
        rig clean, poisoned;
        int32_t ids[TOKENS];
        float a[RIG_VOCAB], b[RIG_VOCAB];
        uint64_t rng = test_seed();
        kv_policy policy = k % 2 ? KV_POLICY_LRU : KV_POLICY_SCORED;
        err e = {0};
        rig_draw(ids, TOKENS, &rng);
        open_paged(&clean, &(cpu_options){.n_threads = 1}, &words[k], policy, -1, 1);
        open_paged(&poisoned, &(cpu_options){.n_threads = 1}, &words[k], policy, -1, 1);
        clean.c.pool->poison = false; /* a debug build turns it on */
        poisoned.c.pool->poison = true;
        for (int32_t i = 0; i < TOKENS; i++) {
            CHECK_OK(one_token(&clean, ids[i], a, &e), e);
            CHECK_OK(one_token(&poisoned, ids[i], b, &e), e);
            CHECK_MSG(rig_same(a, b, 1), "%s, token %d", words[k].k, i);
        }
        kv_pool *p = poisoned.c.pool;
        const kv_view *v = &p->layout->view[first_linear(&poisoned)];
        kv_reset(&poisoned.c);
        kv_poison_free(p);
        for (size_t i = 0; i < (size_t)p->pages.n; i++) {
            const char *row = key_row(v, p->base[v->id].k, v->k_row_bytes, 0, i * KV_PAGE);
            CHECK(!p->pages.stale[i] && (unsigned char)row[0] == 0xff);
        }
        close_all(&clean);
        close_all(&poisoned);
    }
}

PLAIN_TEST(pager_rewinds_into_pages_that_are_away)
{
    rig paged, whole;
    int32_t ids[TOKENS];
    float a[RIG_VOCAB];
    uint64_t rng = test_seed();
    err e = {0};
    rig_draw(ids, TOKENS, &rng);
    open_paged(&paged, &(cpu_options){.n_threads = 1}, &f32_words, KV_POLICY_LRU, -1, 1);
    for (int32_t i = 0; i < TOKENS; i++)
        CHECK_OK(one_token(&paged, ids[i], a, &e), e);
    CHECK(paged.c.pager->r.page[2].place < 0);
    kv_pager_cut(&paged.c,
                 2 * KV_PAGE + 5); /* the rings are not asked: stores alone are compared */
    CHECK_EQ(paged.c.n_past, 2 * KV_PAGE + 5);
    CHECK_OK(kv_reserve(&paged.c, 1, &e), e);
    CHECK(paged.c.pager->r.page[2].place >= 0 && paged.c.pager->r.page[1].place >= 0);
    CHECK_EQ(paged.c.n_absent, 0);
    rig_open(&whole);
    rig_open_cache(&whole, &f32_words, 1);
    for (int32_t i = 0; i < 2 * KV_PAGE + 5; i++)
        CHECK_OK(one_token(&whole, ids[i], a, &e), e);
    check_stores(&paged, &whole);
    close_all(&paged);
    close_all(&whole);
}

static void agree_with_the_reference(const kv_words *words)
{
    rig fast, plain;
    int32_t ids[TOKENS];
    float a[RIG_VOCAB], b[RIG_VOCAB];
    uint64_t rng = test_seed();
    double se = 0, ss = 0;
    err e = {0};
    rig_draw(ids, TOKENS, &rng);
    open_paged(&fast, &(cpu_options){.n_threads = 2, .exact_f32 = true}, words, KV_POLICY_SCORED,
               -1, 1);
    open_paged(&plain, &(cpu_options){.n_threads = 2, .reference = true}, words, KV_POLICY_SCORED,
               -1, 1);
    const int32_t n = test_brief() ? POOL + (TOKENS - POOL) / 4 : TOKENS;
    for (int32_t i = 0; i < n; i++) {
        CHECK_OK(one_token(&fast, ids[i], a, &e), e);
        CHECK_OK(one_token(&plain, ids[i], b, &e), e);
        for (int32_t k = 0; k < RIG_VOCAB; k++) {
            se += ((double)a[k] - b[k]) * ((double)a[k] - b[k]);
            ss += (double)b[k] * b[k];
        }
    }
    CHECK_MSG(se < 1e-8 * ss, "%s: error %g", words->single, se / ss);
    close_all(&fast);
    close_all(&plain);
}

PLAIN_TEST(pager_agrees_with_the_reference)
{
    agree_with_the_reference(&f32_words);
}

/* Keys are made of values, by the positions of their pages. */
PLAIN_TEST(pager_agrees_with_the_reference_in_one_stream)
{
    agree_with_the_reference(&(kv_words){.k = "f32", .single = "on"});
}

/* Keys that are made of values have the positions of their pages, whatever pages are away. */
PLAIN_TEST(pager_keeps_one_stream)
{
    static const kv_words one = {.k = "f32", .single = "on"};
    for (int policy = 0; policy < 2; policy++) {
        rig single, two;
        int32_t ids[TOKENS];
        float a[RIG_VOCAB], b[RIG_VOCAB];
        uint64_t rng = test_seed();
        double se = 0, ss = 0;
        err e = {0};
        rig_draw(ids, TOKENS, &rng);
        const cpu_options exact = {.n_threads = 1, .exact_f32 = true};
        open_paged(&single, &exact, &one, (kv_policy)policy, -1, 1);
        open_paged(&two, &exact, &f32_words, (kv_policy)policy, -1, 1);
        CHECK(single.l.view[first_linear(&single)].single);
        for (int32_t i = 0; i < TOKENS; i++) {
            CHECK_OK(one_token(&single, ids[i], a, &e), e);
            CHECK_OK(one_token(&two, ids[i], b, &e), e);
            for (int32_t k = 0; k < RIG_VOCAB; k++) {
                se += ((double)a[k] - b[k]) * ((double)a[k] - b[k]);
                ss += (double)b[k] * b[k];
            }
        }
        CHECK(single.c.pager->r.n_out > 0 && single.c.n_absent > 0);
        for (int32_t i = 0; i < single.c.n_pages; i++)
            CHECK_EQ(single.c.table[i].pos, two.c.table[i].pos);
        CHECK_MSG(se < 1e-8 * ss, "policy %d: error %g", policy, se / ss);
        close_all(&single);
        close_all(&two);
    }
}

/* The n-th allocation of a pass fails; the pass is run again and gives what it would have given. */
PLAIN_TEST(pager_loses_nothing_when_memory_fails)
{
    rig paged, calm;
    int32_t ids[TOKENS];
    float a[RIG_VOCAB], b[RIG_VOCAB];
    uint64_t rng = test_seed();
    int64_t n_failed = 0;
    err e = {0};
    rig_draw(ids, TOKENS, &rng);
    open_paged(&paged, &(cpu_options){.n_threads = 1}, &f32_words, KV_POLICY_SCORED, -1, 1);
    open_paged(&calm, &(cpu_options){.n_threads = 1}, &f32_words, KV_POLICY_SCORED, -1, 1);
    for (int32_t i = 0; i < TOKENS; i++) {
        for (int64_t n = 0; i >= POOL; n++) {
            err failed = {0};
            mem_fail_after(n);
            status st = kv_reserve(&paged.c, 1, &failed);
            bool hit = mem_fail_hit();
            mem_fail_after(-1);
            if (!hit)
                break;
            CHECK_EQ(st, E_MEMORY);
            n_failed++;
        }
        CHECK_OK(one_token(&paged, ids[i], a, &e), e);
        CHECK_OK(one_token(&calm, ids[i], b, &e), e);
        CHECK(i >= POOL + 16 || rig_same(a, b, 1)); /* later a choice may have been made earlier */
    }
    CHECK(n_failed > 0);
    check_stores(&paged, &calm);
    close_all(&paged);
    close_all(&calm);
}

PLAIN_TEST(pager_ends_with_a_sentence_when_the_host_is_full)
{
    rig r;
    float a[RIG_VOCAB];
    err e = {0};
    status st = OK;
    open_paged(&r, &(cpu_options){.n_threads = 1}, &f32_words, KV_POLICY_LRU, 0, 1);
    for (int32_t i = 0; i < TOKENS && !st; i++)
        st = one_token(&r, i % RIG_VOCAB, a, &e);
    CHECK_EQ(st, E_LIMIT);
    CHECK_EQ(r.c.n_past, POOL);
    CHECK_MSG(strstr(e.text, "host memory"), "%s", e.text);
    close_all(&r);
}

/* The file has no name, but it is open in this process. */
static int pages_file(const char *dir)
{
    char path[64], to[512];
    int found = -1;
    for (int fd = 3; fd < 256 && found < 0; fd++) {
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        ssize_t n = readlink(path, to, sizeof to - 1);
        to[n > 0 ? n : 0] = 0;
        if (strstr(to, dir) && strstr(to, "(deleted)"))
            found = fd;
    }
    return found;
}

/* The file's pages, and what they became. */
typedef struct damage {
    int fd; /* -1: no page has left */
    size_t page, n;
    unsigned char *hurt;
} damage;

static void flip(unsigned char *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        b[i] ^= 0xff;
}

static void hurt_file(damage *d)
{
    off_t end = lseek(d->fd, 0, SEEK_END);
    CHECK(end > 0 && (size_t)end % d->page == 0 && (d->hurt = mem_alloc((size_t)end)));
    d->n = (size_t)end;
    CHECK_EQ(pread(d->fd, d->hurt, d->n, 0), (ssize_t)d->n);
    flip(d->hurt, d->n);
    CHECK_EQ(pwrite(d->fd, d->hurt, d->n, 0), (ssize_t)d->n);
}

/* But for pages that were written since. */
static void mend_file(damage *d)
{
    unsigned char *now = mem_alloc(d->page);
    CHECK(now);
    for (size_t at = 0; at < d->n; at += d->page) {
        CHECK_EQ(pread(d->fd, now, d->page, (off_t)at), (ssize_t)d->page);
        if (memcmp(now, d->hurt + at, d->page) != 0)
            continue;
        flip(now, d->page);
        CHECK_EQ(pwrite(d->fd, now, d->page, (off_t)at), (ssize_t)d->page);
    }
    mem_free(now);
    mem_free(d->hurt);
}

/* Pages that the disk has changed, or lost, are refused with a sentence. Nothing else is lost: when
 * they are whole again, the cache goes on, and has every byte of one that never met damage. */
TEST(pager_refuses_pages_that_are_damaged)
{
    rig hurt, calm;
    int32_t ids[TOKENS], n_refused = 0;
    float a[RIG_VOCAB], b[RIG_VOCAB];
    uint64_t rng = test_seed();
    err e = {0};
    rig_draw(ids, TOKENS, &rng);
    const char *dir = test_temp("hurt");
    open_in_file(&hurt, KV_POLICY_SCORED, dir);
    open_in_file(&calm, KV_POLICY_SCORED, test_temp("calm"));
    damage d = {.fd = -1, .page = kv_page_bytes(&hurt.l)};
    for (int32_t i = 0; i < TOKENS; i++) {
        err no = {0};
        if (d.fd < 0 && hurt.c.n_absent > 0)
            CHECK((d.fd = pages_file(dir)) >= 0);
        if (d.fd >= 0)
            hurt_file(&d);
        status st = kv_reserve(&hurt.c, 1, &no);
        if (d.fd >= 0)
            mend_file(&d);
        CHECK_MSG(!st || (st == E_FORMAT && strstr(no.text, "is damaged")), "%s", no.text);
        n_refused += st != OK;
        CHECK_OK(one_token(&hurt, ids[i], a, &e), e);
        CHECK_OK(one_token(&calm, ids[i], b, &e), e);
        CHECK(isfinite(a[0])); /* which pages come is chosen earlier or later */
    }
    CHECK(n_refused > 0);
    check_stores(&hurt, &calm);
    /* A file that ends too soon. */
    unsigned char *copy = mem_alloc(d.page);
    int32_t page = 0;
    while (hurt.c.pager->r.page[page].place >= 0)
        page++;
    CHECK(copy && !ftruncate(d.fd, 100));
    CHECK(kv_copy_read(hurt.c.pool, &hurt.c.pager->copy[page], copy, &e) != OK);
    CHECK_MSG(strstr(e.text, "page of keys and values"), "%s", e.text);
    mem_free(copy);
    close_all(&hurt);
    close_all(&calm);
}

/* The file may not grow, as on a full disk. The pass ends with a sentence; with room again it goes
 * on as if nothing had been. */
TEST(pager_loses_nothing_on_a_full_disk)
{
    rig full, calm;
    int32_t ids[TOKENS], n_refused = 0;
    float a[RIG_VOCAB], b[RIG_VOCAB];
    uint64_t rng = test_seed();
    struct rlimit any;
    err e = {0};
    rig_draw(ids, TOKENS, &rng);
    signal(SIGXFSZ, SIG_IGN);
    CHECK(!getrlimit(RLIMIT_FSIZE, &any));
    open_in_file(&full, KV_POLICY_LRU, test_temp("full"));
    open_in_file(&calm, KV_POLICY_LRU, test_temp("calm"));
    const struct rlimit none = {.rlim_cur = 100, .rlim_max = any.rlim_max};
    for (int32_t i = 0; i < TOKENS; i++) {
        err no = {0};
        CHECK(!setrlimit(RLIMIT_FSIZE, &none));
        status st = kv_reserve(&full.c, 1, &no);
        CHECK(!setrlimit(RLIMIT_FSIZE, &any));
        CHECK_MSG(!st || (st == E_IO && strstr(no.text, "writing a page")), "%s", no.text);
        n_refused += st != OK;
        CHECK_OK(one_token(&full, ids[i], a, &e), e);
        CHECK_OK(one_token(&calm, ids[i], b, &e), e);
        CHECK(rig_same(a, b, 1));
    }
    CHECK(n_refused > 0);
    check_stores(&full, &calm);
    close_all(&full);
    close_all(&calm);
}

/* Votes of CHUNK rows, in passes of `rows`. */
static void watch_chunk(kv_cache *c, int64_t end, int32_t rows, int32_t chunk)
{
    kv_pager_hold(c, end);
    for (int32_t i = 0; i < chunk; i += rows) {
        CHECK(kv_pager_watch(c, 0, rows, false));
        kv_pager_watched(c, rows);
    }
}

/* Their sum stays below KV_LOOKED, however rare selections are, and passes may be cut anywhere. */
TEST(pager_adds_votes_of_so_many_rows_at_most)
{
    enum { CHUNK = 60, CHUNKS = 40 };
    rig r[2];
    int32_t ids[POOL + 1];
    float y[RIG_VOCAB];
    uint64_t rng = test_seed();
    int64_t most = 0;
    int n_anew = 0;
    err e = {0};
    rig_draw(ids, POOL + 1, &rng);
    for (int i = 0; i < 2; i++) {
        open_paged(&r[i], &(cpu_options){.n_threads = 1}, &f32_words, KV_POLICY_SNAPKV, -1, 1);
        for (int32_t k = 0; k <= POOL; k++)
            CHECK_OK(one_token(&r[i], ids[k], y, &e), e);
        CHECK(r[i].c.n_absent > 0);
    }
    const kv_pager *a = r[0].c.pager, *b = r[1].c.pager;
    for (int k = 0; k < CHUNKS; k++) {
        int64_t before = a->n_watched;
        watch_chunk(&r[0].c, POOL + 1 + CHUNK + k % 2, CHUNK, CHUNK);
        watch_chunk(&r[1].c, POOL + 1 + CHUNK + k % 2, 20, CHUNK);
        CHECK_EQ(a->n_watched, b->n_watched);
        n_anew += a->n_watched < before;
        most = a->n_watched > most ? a->n_watched : most;
    }
    CHECK(n_anew > 0 && most >= KV_VOTE_ROWS && most < KV_VOTE_ROWS + KV_WATCH_WINDOW);
    close_all(&r[0]);
    close_all(&r[1]);
}

TEST(pager_refuses_a_pool_below_the_minimum)
{
    rig r;
    err e = {0};
    const kv_pager_want w = {.policy = KV_POLICY_LRU, .tau = 16};
    rig_open(&r);
    r.n_pool = 6 * KV_PAGE;
    rig_open_cache(&r, &f32_words, 1);
    CHECK_EQ(kv_pager_open(&r.c, &w, &e), E_ARG);
    CHECK_MSG(strstr(e.text, "at least 448"), "%s", e.text);
    CHECK(!r.c.pager);
    close_all(&r);
}

static struct {
    void *(*sound)(device *d, size_t n_bytes);
    int left; /* allocations until one fails */
} device_memory;

static void *alloc_or_fail(device *d, size_t n_bytes)
{
    return device_memory.left-- == 0 ? NULL : device_memory.sound(d, n_bytes);
}

/* Each allocation on the device fails once; then all succeed. */
TEST(pager_opens_without_memory_of_the_device)
{
    rig r;
    const kv_pager_want w = {.policy = KV_POLICY_SCORED, .tau = 16};
    err none = {0};
    rig_open(&r);
    r.n_pool = POOL;
    rig_open_cache(&r, &f32_words, 1);
    CHECK_OK(kv_mover_open(r.c.pool, &(kv_mover_want){.host_bytes = 1 << 30}, &none), none);
    device_memory.sound = r.dev->alloc;
    r.dev->alloc = alloc_or_fail;
    uint64_t before = r.dev->used_bytes(r.dev);
    int n = 0;
    for (status st = E_MEMORY; st; n++) {
        err e = {0};
        device_memory.left = n;
        st = kv_pager_open(&r.c, &w, &e);
        CHECK_MSG(st ? st == E_MEMORY && !r.c.pager : device_memory.left >= 0, "allocation %d: %s",
                  n, e.text);
        CHECK(!st || r.dev->used_bytes(r.dev) == before);
    }
    CHECK(n > 3);
    r.dev->alloc = device_memory.sound;
    close_all(&r);
}

typedef struct opening {
    rig r;
} opening;

static status open_and_close(void *arg, err *e)
{
    opening *o = arg;
    const kv_pager_want w = {.policy = KV_POLICY_SCORED, .tau = 16};
    status st = kv_pager_open(&o->r.c, &w, e);
    kv_pager_close(&o->r.c);
    return st;
}

TEST(pager_opens_without_memory)
{
    opening o;
    rig_open(&o.r);
    o.r.n_pool = POOL;
    rig_open_cache(&o.r, &f32_words, 1);
    test_every_allocation(open_and_close, &o);
    close_all(&o.r);
}

/* A cache that goes on from another's records has every count of its pager. */
TEST(pager_goes_on_with_every_record)
{
    rig r;
    int32_t ids[5 * KV_PAGE];
    float y[RIG_VOCAB];
    uint64_t rng = test_seed();
    err e = {0};
    rig_draw(ids, 5 * KV_PAGE, &rng);
    open_paged(&r, &(cpu_options){.n_threads = 1}, &f32_words, KV_POLICY_SCORED, -1, 1);
    for (int32_t i = 0; i < 5 * KV_PAGE; i++)
        CHECK_OK(one_token(&r, ids[i], y, &e), e);
    kv_pager *g = r.c.pager;
    residency *all = &g->r;
    g->n_exact = 31;
    g->n_watched = 3;
    g->hold = 333;
    g->wants_rescore = g->renew = all->for_good = true;
    all->since = 21;
    all->clock = 900;
    all->page[2].used = 800;
    all->page[2].score = 0.75f;
    all->page[2].pinned = all->page[2].scored = true;
    kv_paging *s = kv_paging_new(&r.c);
    CHECK(s);
    g->n_exact = g->n_watched = 1;
    g->hold = 1;
    g->wants_rescore = g->renew = all->for_good = false;
    g->ready = 5;
    g->n_summed = 0;
    all->since = all->clock = 1;
    all->n_past = r.c.n_past = 2;
    all->page[2].used = 1;
    all->page[2].score = 0;
    all->page[2].pinned = all->page[2].scored = false;
    kv_paging_apply(&r.c, s, 5 * KV_PAGE);
    CHECK_EQ(g->n_exact, 31);
    CHECK_EQ(g->n_watched, 3);
    CHECK_EQ(g->hold, 333);
    CHECK(g->wants_rescore && g->renew && all->for_good && !all->dropped);
    CHECK_EQ(g->ready, 0);
    CHECK_EQ(g->n_summed, 5);
    CHECK_EQ(all->since, 21);
    CHECK_EQ(all->clock, 900);
    CHECK(all->n_past == 5 * KV_PAGE && r.c.n_past == 5 * KV_PAGE);
    CHECK(all->page[2].used == 800 && all->page[2].score == 0.75f);
    CHECK(all->page[2].pinned && all->page[2].scored);
    kv_paging_free(s);
    close_all(&r);
}
