/* residency_test.c - the records against a plain model of the device and the host, which moves
 * versions of pages instead of bytes; protections, victims and scores by hand. */
#include "kv/residency.h"

#include "base/rng.h"
#include "tests/test.h"

enum { PAGES = 48, PLACES = 24 };

/* What a device with PLACES pages and a host would hold. The version of a page changes whenever a
 * token is written to it or dropped from it. */
typedef struct world {
    residency r;
    int64_t version[PAGES]; /* as they should be */
    int64_t device[PLACES];
    int32_t holder[PLACES]; /* the page of a place, or -1 */
    int64_t host[PAGES];    /* -1: no copy */
    int64_t next;
    int32_t n_lost;
} world;

static void open_world(world *w, const residency_rules *rules)
{
    err e = {0};
    *w = (world){.next = 1};
    CHECK_OK(residency_init(&w->r, rules, &e), e);
    for (int i = 0; i < PLACES; i++)
        w->holder[i] = -1;
    for (int i = 0; i < PAGES; i++)
        w->host[i] = -1;
}

static int32_t free_place(const world *w)
{
    for (int32_t i = 0; i < w->r.rules.pool; i++)
        if (w->holder[i] < 0)
            return i;
    test_fail(__FILE__, __LINE__, "no place is free");
}

static bool has_content(const world *w, int32_t c)
{
    return (int64_t)c * KV_PAGE < w->r.n_past;
}

/* One move, as the engine makes it; then the report. */
static void make_move(world *w, const residency_move *m)
{
    int32_t c = m->page, place = w->r.page[c].place / KV_PAGE;
    bool on = w->r.page[c].place >= 0;
    switch (m->what) {
    case RESIDENCY_OUT:
        CHECK(on && w->holder[place] == c && has_content(w, c) && w->host[c] < 0);
        w->host[c] = w->device[place];
        w->holder[place] = -1;
        break;
    case RESIDENCY_LEAVE:
        CHECK(on && w->holder[place] == c);
        CHECK(!has_content(w, c) || w->host[c] == w->version[c]);
        w->holder[place] = -1;
        break;
    case RESIDENCY_DROP:
        CHECK(on && has_content(w, c));
        w->holder[place] = -1;
        w->host[c] = -1;
        w->n_lost++;
        break;
    case RESIDENCY_FORGET:
        CHECK(on && w->host[c] == w->version[c]);
        w->host[c] = -1;
        break;
    case RESIDENCY_IN:
    case RESIDENCY_NEW:
        CHECK(!on);
        place = free_place(w);
        w->holder[place] = c;
        if (m->what == RESIDENCY_IN) {
            CHECK(w->host[c] == w->version[c]);
            w->device[place] = w->host[c];
        }
        break;
    }
    residency_done(&w->r, m, place * KV_PAGE);
}

/* Makes the plan's moves up to `stop`, where one fails. True: all of them. */
static bool make_moves(world *w, int32_t stop)
{
    for (int32_t i = 0; i < w->r.n_moves; i++) {
        if (i == stop)
            return false;
        make_move(w, &w->r.move[i]);
    }
    return true;
}

static void check_world(const world *w)
{
    const residency *r = &w->r;
    int32_t n_on = 0, n_copied = 0;
    for (int32_t c = 0; c < r->rules.n_pages; c++) {
        const residency_page *p = &r->page[c];
        n_on += p->place >= 0;
        n_copied += p->copied;
        CHECK_EQ(p->copied, w->host[c] >= 0);
        if (p->copied)
            CHECK_EQ(w->host[c], w->version[c]);
        if (p->place < 0)
            continue;
        CHECK_EQ(w->holder[p->place / KV_PAGE], c);
        if (has_content(w, c))
            CHECK_EQ(w->device[p->place / KV_PAGE], w->version[c]);
    }
    CHECK_EQ(n_on, r->n_resident);
    CHECK_EQ(n_copied, r->n_copied);
    CHECK(n_on <= r->rules.pool);
    CHECK(r->rules.host_pages < 0 || n_copied <= r->rules.host_pages);
}

/* Every protected page with content is on the device, unless it was dropped earlier. */
static void check_protected(const world *w, int32_t n_rows)
{
    const residency *r = &w->r;
    for (int32_t c = 0; c < r->rules.n_pages; c++)
        if (has_content(w, c) && residency_is_protected(r, c) && (r->page[c].copied || !r->dropped))
            CHECK_MSG(r->page[c].place >= 0, "page %d is protected and away", c);
    for (int64_t p = r->n_past; p < r->n_past + n_rows; p++)
        CHECK(r->page[p / KV_PAGE].place >= 0);
}

/* A pass of n rows that keeps `kept` of them. stop: the move that fails, -1: none. */
static bool run_pass(world *w, int32_t n, int32_t kept, int32_t stop)
{
    residency *r = &w->r;
    err e = {0};
    if (residency_plan_rows(r, n, &e)) {
        CHECK(e.status == E_LIMIT && e.text[0] && !r->n_moves);
        return false;
    }
    if (!make_moves(w, stop))
        return false;
    check_protected(w, n);
    for (int64_t c = r->n_past / KV_PAGE; c <= (r->n_past + n - 1) / KV_PAGE; c++) {
        w->host[c] = -1;
        w->version[c] = w->device[r->page[c].place / KV_PAGE] = w->next++;
    }
    residency_write(r, n);
    residency_commit(r, kept);
    return true;
}

static void rewind_to(world *w, int64_t n_past)
{
    residency *r = &w->r;
    bool lost = n_past % KV_PAGE && r->page[n_past / KV_PAGE].place < 0 &&
                !r->page[n_past / KV_PAGE].copied;
    if (lost) {
        CHECK(!residency_rewind(r, n_past));
        return;
    }
    for (int32_t c = residency_pages_of(n_past); c < r->rules.n_pages; c++) {
        if (r->page[c].place >= 0)
            w->holder[r->page[c].place / KV_PAGE] = -1;
        w->host[c] = -1;
    }
    CHECK(residency_rewind(r, n_past));
}

static void reselect(world *w, uint64_t *rng, bool for_good)
{
    float score[PAGES];
    residency *r = &w->r;
    err e = {0};
    int32_t n = (int32_t)rng_below(rng, PAGES + 1);
    for (int32_t c = 0; c < n; c++)
        score[c] = rng_below(rng, 9) ? (float)rng_below(rng, 100) : NAN;
    int32_t most = (int32_t)rng_below(rng, 4), n_in = 0;
    r->for_good = for_good;
    status st = residency_plan_scores(r, score, n, most, &e);
    r->for_good = false;
    if (st) {
        CHECK(e.status == E_LIMIT && !r->n_moves);
        return;
    }
    for (int32_t i = 0; i < r->n_moves; i++) {
        const residency_move *m = &r->move[i];
        n_in += m->what == RESIDENCY_IN;
        if (m->what != RESIDENCY_IN && m->what != RESIDENCY_FORGET && has_content(w, m->page))
            CHECK(!residency_is_protected(r, m->page));
    }
    CHECK(!most || n_in <= most);
    make_moves(w, rng_below(rng, 8) ? -1 : (int32_t)rng_below(rng, 6));
}

static void random_step(world *w, uint64_t *rng, bool drops)
{
    residency *r = &w->r;
    int64_t room = (int64_t)r->rules.n_pages * KV_PAGE - r->n_past;
    uint64_t what = rng_below(rng, 100);
    if (what < 70) {
        int32_t most = rng_below(rng, 3) ? r->rules.rows_max : 3;
        int32_t n = 1 + (int32_t)rng_below(rng, (uint64_t)most);
        n = n < room ? n : (int32_t)room;
        int32_t stop = rng_below(rng, 20) ? -1 : (int32_t)rng_below(rng, 4);
        if (n > 0)
            run_pass(w, n, (int32_t)rng_below(rng, (uint64_t)n + 1), stop);
        else
            rewind_to(w, 0);
    } else if (what < 90) {
        reselect(w, rng, drops && rng_below(rng, 2));
    } else if (what < 94) {
        int64_t back = (int64_t)rng_below(rng, rng_below(rng, 2) ? 70 : 1500);
        rewind_to(w, r->n_past > back ? r->n_past - back : 0);
    } else if (what < 97) {
        int64_t from = (int64_t)rng_below(rng, (uint64_t)r->n_past + 1);
        residency_unpin(r);
        residency_pin(r, from, from + (int64_t)rng_below(rng, 300));
    } else if (what < 98) {
        rewind_to(w, 0);
    }
}

static void drive(const residency_rules *rules, int64_t n_steps, bool drops, uint64_t *rng)
{
    world w;
    open_world(&w, rules);
    for (int64_t i = 0; i < n_steps; i++) {
        random_step(&w, rng, drops);
        check_world(&w);
    }
    if (rules->pool < PAGES)
        CHECK(w.r.n_past == 0 || w.next > 1);
    rewind_to(&w, 0);
    check_world(&w);
    CHECK_EQ(w.r.n_resident, 0);
    CHECK_EQ(w.r.n_copied, 0);
    residency_free(&w.r);
}

TEST(residency_keeps_to_a_model)
{
    uint64_t rng = test_seed();
    int64_t n = test_brief() ? 20000 : 250000;
    residency_rules r = {.pool = 16,
                         .n_pages = PAGES,
                         .sinks = 1,
                         .tail = 4,
                         .rows_max = 128,
                         .host_pages = -1,
                         .tau = 64};
    drive(&r, n, false, &rng);
    drive(&r, n, true, &rng);
    r.pool = residency_pool_min(&r);
    drive(&r, n, false, &rng);
    r.host_pages = 12;
    drive(&r, n, false, &rng);
}

TEST(residency_at_its_minimum_always_finds_a_victim)
{
    for (int32_t rows = 1; rows <= 200; rows += 33) {
        world w;
        residency_rules r = {
            .n_pages = PAGES, .sinks = 1, .tail = 2, .rows_max = rows, .host_pages = -1, .tau = 1};
        r.pool = residency_pool_min(&r);
        open_world(&w, &r);
        while (w.r.n_past + rows <= (int64_t)PAGES * KV_PAGE)
            CHECK(run_pass(&w, rows, w.r.n_past % 3 ? rows : 1 + rows / 2, -1));
        CHECK(w.r.n_out > 0);
        residency_free(&w.r);
    }
}

TEST(residency_refuses_a_small_pool)
{
    residency r;
    err e = {0};
    residency_rules x = {.n_pages = PAGES,
                         .sinks = RESIDENCY_SINKS,
                         .tail = RESIDENCY_TAIL,
                         .rows_max = 1,
                         .host_pages = -1,
                         .tau = RESIDENCY_TAU};
    CHECK_EQ(residency_pool_min(&x), 7);
    x.pool = 6;
    CHECK_EQ(residency_init(&r, &x, &e), E_ARG);
    CHECK_MSG(strstr(e.text, "at least 448"), "%s", e.text);
    e = (err){0};
    x.pool = x.n_pages = 3; /* the whole context: nothing ever leaves */
    CHECK_OK(residency_init(&r, &x, &e), e);
    residency_free(&r);
    residency_free(&r);
    e = (err){0};
    x.tau = 0;
    CHECK_EQ(residency_init(&r, &x, &e), E_ARG);
}

static void fill(world *w, int32_t n_pages)
{
    for (int32_t c = 0; c < n_pages; c++)
        CHECK(run_pass(w, KV_PAGE, KV_PAGE, -1));
}

static bool on(const world *w, int32_t c)
{
    return w->r.page[c].place >= 0;
}

TEST(residency_brings_back_what_scores_want)
{
    world w;
    err e = {0};
    float score[PAGES] = {0};
    const residency_rules r = {.pool = 10,
                               .n_pages = PAGES,
                               .sinks = 1,
                               .tail = 2,
                               .rows_max = KV_PAGE,
                               .host_pages = -1,
                               .tau = 64};
    open_world(&w, &r);
    fill(&w, 30);
    CHECK(on(&w, 0) && !on(&w, 5) && !on(&w, 20) && on(&w, 29)); /* the youngest nine and a sink */
    CHECK(residency_due(&w.r));
    score[5] = 3;
    score[12] = 2;
    score[22] = NAN;
    CHECK_OK(residency_plan_scores(&w.r, score, 30, 0, &e), e);
    CHECK_EQ(w.r.n_moves, 4);
    CHECK(w.r.move[0].what == RESIDENCY_OUT && w.r.move[3].what == RESIDENCY_IN);
    CHECK(make_moves(&w, -1));
    CHECK(on(&w, 5) && on(&w, 12) && !on(&w, 22) && on(&w, 0) && on(&w, 28) && on(&w, 29));
    check_world(&w);
    /* The next page drives out the lowest score, not the oldest use. */
    CHECK(run_pass(&w, 1, 1, -1));
    CHECK(on(&w, 5) && on(&w, 12) && on(&w, 0));
    CHECK(w.r.page[29].scored && !w.r.page[30].scored); /* nothing scored what was written since */
    /* Equal scores move nothing. */
    for (int32_t c = 0; c < PAGES; c++)
        score[c] = 1;
    CHECK_OK(residency_plan_scores(&w.r, score, 30, 0, &e), e);
    CHECK_EQ(w.r.n_moves, 0);
    /* At most so many come, the best first; a page that was copied leaves without a copy. */
    memset(score, 0, sizeof score);
    score[7] = score[8] = score[9] = 1;
    score[8] = 2;
    CHECK_OK(residency_plan_scores(&w.r, score, 30, 1, &e), e);
    CHECK_EQ(w.r.n_moves, 2);
    CHECK(w.r.move[1].page == 8 && w.r.move[1].what == RESIDENCY_IN);
    residency_free(&w.r);
}

TEST(residency_pins_as_far_as_there_is_room)
{
    world w;
    const residency_rules r = {.pool = 12,
                               .n_pages = PAGES,
                               .sinks = 1,
                               .tail = 2,
                               .rows_max = 1,
                               .host_pages = -1,
                               .tau = 64};
    open_world(&w, &r);
    CHECK_EQ(residency_pool_min(&r), 5);
    CHECK_EQ(residency_pin(&w.r, 130, 400), 0); /* pages 2 to 6 */
    CHECK_EQ(residency_pin(&w.r, 640, 900), 3); /* 10 and 11; 12 to 14 have no room */
    for (int32_t i = 0; i < 40 * KV_PAGE; i++)
        CHECK(run_pass(&w, 1, 1, -1));
    CHECK(on(&w, 2) && on(&w, 6) && on(&w, 11) && !on(&w, 12));
    residency_unpin(&w.r);
    for (int32_t i = 0; i < 7 * KV_PAGE; i++)
        CHECK(run_pass(&w, 1, 1, -1));
    CHECK(!on(&w, 2) && on(&w, 0));
    residency_free(&w.r);
}

TEST(residency_measures_the_tail_from_the_committed_end)
{
    world w;
    const residency_rules r = {.pool = 8,
                               .n_pages = PAGES,
                               .sinks = 1,
                               .tail = 3,
                               .rows_max = 16,
                               .host_pages = -1,
                               .tau = 64};
    open_world(&w, &r);
    while (w.r.n_past < 20 * KV_PAGE - 4)
        CHECK(run_pass(&w, 16, 4, -1));
    for (int i = 0; i < 50; i++) /* rejected drafts open the next page again and again */
        CHECK(run_pass(&w, 16, 0, -1));
    for (int32_t c = 16; c < 20; c++)
        CHECK(on(&w, c));
    check_world(&w);
    /* Back into a page that is away: it comes in, and its copy is stale once it is written. */
    rewind_to(&w, 5 * KV_PAGE + 7);
    CHECK(!on(&w, 5));
    CHECK(run_pass(&w, 1, 1, -1));
    CHECK(on(&w, 5) && on(&w, 4) && on(&w, 3) && on(&w, 2) && !w.r.page[5].copied);
    check_world(&w);
    residency_free(&w.r);
}

TEST(residency_tau_grows_with_the_context)
{
    residency r = {.rules = {.tau = 64}};
    r.n_past = 4096 * (int64_t)KV_PAGE;
    CHECK_EQ(residency_tau(&r), 64);
    r.n_past *= 4;
    CHECK_EQ(residency_tau(&r), 16384 / RESIDENCY_PAGES_PER_TOKEN);
}

TEST(residency_numbers_the_keys_of_its_pages)
{
    world w;
    const residency_rules r = {.pool = 6,
                               .n_pages = PAGES,
                               .sinks = 1,
                               .tail = 2,
                               .rows_max = 1,
                               .host_pages = -1,
                               .tau = 64};
    open_world(&w, &r);
    for (int32_t i = 0; i < 20 * KV_PAGE + 9; i++)
        CHECK(run_pass(&w, 1, 1, -1));
    CHECK_EQ(w.r.n_resident, 6); /* the first page, and the last five */
    for (int32_t c = 0; c < 21; c++)
        CHECK_EQ(w.r.page[c].place >= 0, c == 0 || c >= 16);
    CHECK_EQ(residency_n_keys(&w.r), 5 * KV_PAGE + 9);
    residency_free(&w.r);
}

static status open_and_free(void *arg, err *e)
{
    AUTO(residency_free) residency r;
    status st = residency_init(&r, arg, e);
    return st;
}

TEST(residency_opens_without_memory)
{
    residency_rules r = {.pool = 9,
                         .n_pages = PAGES,
                         .sinks = 1,
                         .tail = 2,
                         .rows_max = 1,
                         .host_pages = -1,
                         .tau = 64};
    test_every_allocation(open_and_free, &r);
}
