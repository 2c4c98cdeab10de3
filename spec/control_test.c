/* control_test.c - draft lengths in a model of time: scripted acceptance, tables of costs, no
 * passes. Each simulation counts what plain decoding of the same tokens would take. */
#include "spec/control_int.h"

#include "base/rng.h"
#include "tests/test.h"

/* Milliseconds of a pass and of a draft, relative to a plain pass of one row at a short context. */
typedef struct costs {
    const char *name;
    double (*pass)(int32_t rows, int64_t n_ctx);
    double (*draft)(int32_t n_slots, int32_t n);
} costs;

static double line(double x, const double (*p)[2], int32_t n)
{
    for (int32_t i = 1; i < n; i++)
        if (x <= p[i][0] || i == n - 1)
            return p[i - 1][1] +
                   (p[i][1] - p[i - 1][1]) * (x - p[i - 1][0]) / (p[i][0] - p[i - 1][0]);
    return p[0][1];
}

/* A dense model on a GPU; a mixture of experts there; a CPU of few cores. */
static double dense_pass(int32_t rows, int64_t n_ctx)
{
    static const double p[][2] = {{1, 1}, {8, 1.27}, {16, 1.7}, {32, 2.6}, {64, 4}, {1024, 50}};
    return line(rows, p, 6) * (1 + (double)n_ctx / 200000);
}

static double expert_pass(int32_t rows, int64_t n_ctx)
{
    static const double p[][2] = {{1, 1},    {4, 1.45}, {8, 1.7}, {16, 2.2},
                                  {32, 2.8}, {64, 3.6}, {128, 5}, {1024, 30}};
    return line(rows, p, 8) * (1 + (double)n_ctx / 200000);
}

/* 26B-A4B on an H100. From 65 rows on experts are two launches. */
static double stepped_pass(int32_t rows, int64_t n_ctx)
{
    static const double p[][2] = {{1, 1},    {4, 1.5},   {8, 1.77},   {16, 2.28}, {32, 4},
                                  {64, 5.7}, {65, 6.05}, {128, 11.4}, {1024, 90}};
    return line(rows, p, 9) * (1 + (double)n_ctx / 200000);
}

static double cpu_pass(int32_t rows, int64_t n_ctx)
{
    return (0.55 + 0.45 * rows) * (1 + (double)n_ctx / 50000);
}

static double block_draft(int32_t n_slots, int32_t n)
{
    return 0.2 + 0.004 * (n_slots + 1) * n;
}

static double step_draft(int32_t n_slots, int32_t n)
{
    return n_slots * (0.08 + 0.002 * n);
}

/* 31B and a block drafter on an H200: the second row costs a fifth, the next six nothing. */
static double measured_pass(int32_t rows, int64_t n_ctx)
{
    static const double p[][2] = {{1, 1},     {2, 1.22}, {8, 1.28}, {16, 1.83},
                                  {32, 2.83}, {64, 5.4}, {1024, 50}};
    return line(rows, p, 7) * (1 + (double)n_ctx / 200000);
}

static double measured_draft(int32_t n_slots, int32_t n)
{
    return 0.155 + 0.001 * (n_slots + 1) * n;
}

static const costs tables[] = {{"dense, blocks", dense_pass, block_draft},
                               {"dense, steps", dense_pass, step_draft},
                               {"experts, blocks", expert_pass, block_draft},
                               {"CPU, steps", cpu_pass, step_draft},
                               {"measured", measured_pass, measured_draft}};
enum { TABLES = sizeof tables / sizeof *tables };

/* The chance of a slot whose predecessors were accepted. */
typedef struct profile {
    const char *name;
    double (*chance)(int32_t slot, int64_t at);
} profile;

static double highest(int32_t slot, int64_t at)
{
    return slot || at ? 0.95 : 0.95;
}
static double high(int32_t slot, int64_t at)
{
    return slot || at ? 0.9 : 0.9;
}
static double middling(int32_t slot, int64_t at)
{
    return slot || at ? 0.7 : 0.7;
}
static double low(int32_t slot, int64_t at)
{
    return slot || at ? 0.35 : 0.35;
}
static double two_fifths(int32_t slot, int64_t at)
{
    return slot || at ? 0.4 : 0.4;
}
static double storm(int32_t slot, int64_t at)
{
    return slot || at ? 0.01 : 0.01;
}
static double falling(int32_t slot, int64_t at)
{
    static const double c[] = {0.94, 0.68, 0.7, 0.82, 0.86, 0.84, 0.5};
    (void)at;
    return slot < 7 ? c[slot] : 0.3;
}
static double changing(int32_t slot, int64_t at)
{
    (void)slot;
    return at / 300 % 2 ? 0.15 : 0.92;
}

static const profile profiles[] = {
    {"high", high},       {"middling", middling}, {"low", low},         {"storm", storm},
    {"falling", falling}, {"changing", changing}, {"highest", highest}, {"two fifths", two_fifths}};
enum { PROFILES = sizeof profiles / sizeof *profiles };

/* Some requests side by side, each of n_tokens. */
typedef struct world {
    const costs *cost;
    const profile *profile;
    int32_t n_seats, n_tokens, n_requests; /* one after another in each seat */
    int32_t n_slots;
    int32_t fixed; /* >= 0: always so many */
    bool informed; /* the drafter's probabilities are the true ones */
    bool modest;   /* the drafter gives every token one half; neither: it is sure of every token */
    double noise;
    bool disturbed; /* some passes take thirty times as long */
    uint64_t seed;
    /* Results. */
    double plain_ms, ms, worst; /* worst: the most time of 256 tokens over plain */
    double worst_answer;        /* of an answer's first tokens, 256 or more */
    double fair_ms; /* what plain decoding of the tokens that the rounds should have taken costs */
    int64_t n_rounds, n_drafted, n_accepted;
} world;

static void propose(const world *w, proposal *p, int32_t n, int64_t at)
{
    p->n_slots = n;
    p->n_ranks = 1;
    for (int32_t k = 0; k < n; k++) {
        p->id[k][0] = k;
        p->logp[k][0] = w->informed ? (float)log(w->profile->chance(k, at))
                        : w->modest ? (float)log(0.5)
                                    : 0;
    }
}

/* Of a round with n drafts. */
static double expected_tokens(const profile *p, int32_t n, int64_t at)
{
    double path = 1, tokens = 1;
    for (int32_t k = 0; k < n; k++)
        tokens += path *= p->chance(k, at);
    return tokens;
}

/* Tokens per time over plain of the best length that never changes, by expectation: the best of
 * several simulations would be the luckiest of them. */
static double best_fixed(const world *w, int32_t *best_n)
{
    double best = 0;
    for (int32_t n = 0; n <= w->n_slots; n++) {
        double plain = 0, ms = 0;
        for (int64_t at = 0; at < w->n_tokens; at++) {
            plain += w->cost->pass(1, 300 + at);
            ms += (w->cost->pass(1 + n, 300 + at) + (n ? w->cost->draft(n, 1) : 0)) /
                  expected_tokens(w->profile, n, at);
        }
        if (plain / ms > best) {
            best = plain / ms;
            *best_n = n;
        }
    }
    return best;
}

enum { WINDOW = 256 };

/* A simulation under way. */
typedef struct simulation {
    draft_times *t;
    draft_seat seat[64];
    draft_tree tree[64];
    int64_t at[64], done[64];
    double took[64][WINDOW]; /* of a seat's last tokens: their time over plain */
    double whole[64];        /* the time over plain of all tokens of a seat's answer */
    uint64_t rng;
} simulation;

static void open_seat(const world *w, simulation *x, int32_t i)
{
    const draft_wish wish = {.off = w->fixed == 0, .fixed = w->fixed > 0, .n_max = w->fixed};
    const int32_t slots[DRAFTERS_MAX] = {[DRAFTER_MODEL] = w->n_slots};
    err e = {0};
    CHECK_OK(draft_control_open(&x->seat[i].c, x->t, slots, &wish, &e), e);
}

/* The lengths that are chosen, and drafts. Returns how many seats draft; *most: the longest. */
static int32_t draft_round(const world *w, simulation *x, int32_t *most)
{
    static proposal p;
    int32_t n_drafts = 0;
    *most = 0;
    for (int32_t i = 0; i < w->n_seats; i++) {
        draft_seat *seat = &x->seat[i];
        seat->rows = w->n_slots + 1;
        seat->tokens = w->n_tokens - (int32_t)x->at[i];
        seat->n_ctx = 300 + x->at[i];
        seat->tree = NULL;
        seat->last_row = 0;
    }
    draft_control_choose(x->t, x->seat, w->n_seats, 1024);
    for (int32_t i = 0; i < w->n_seats; i++) {
        draft_seat *seat = &x->seat[i];
        int32_t n = seat->choice.n_slots;
        CHECK(n >= 0 && n <= w->n_slots && n < (seat->tokens > 1 ? seat->tokens : 1));
        if (!n)
            continue;
        propose(w, &p, n, x->at[i]);
        tree_chain(&x->tree[i], &p, 0, n);
        seat->tree = &x->tree[i];
        n_drafts++;
        *most = n > *most ? n : *most;
    }
    draft_control_trim(x->t, x->seat, w->n_seats, 1024);
    return n_drafts;
}

/* By what a pass takes longer than its cost says. */
static double draw_noise(const world *w, uint64_t *rng)
{
    double factor = 1 + w->noise * (rng_unit(rng) - 0.5);
    if (rng_unit(rng) < 0.01)
        factor += 10 * w->noise; /* something else ran */
    if (w->disturbed && rng_unit(rng) < 0.03)
        factor *= 30;
    return factor;
}

/* Seat i accepts drafts by chance. The round took ms, a plain pass would have taken `plain`. */
static void accept_drafts(world *w, simulation *x, int32_t i, double ms, double plain)
{
    draft_seat *seat = &x->seat[i];
    int32_t n = seat->tree ? seat->tree->n : 0, a = 0;
    while (a < n && rng_unit(&x->rng) < w->profile->chance(a, x->at[i]))
        a++;
    seat->last_row = a;
    w->n_drafted += n;
    w->n_accepted += a;
    w->plain_ms += plain * (1 + a) / w->n_seats;
    w->fair_ms += plain * expected_tokens(w->profile, n, x->at[i]) / w->n_seats;
    for (int32_t k = 0; k <= a; k++, x->at[i]++)
        x->took[i][x->at[i] % WINDOW] = ms / plain / (1 + a);
    x->whole[i] += ms / plain;
    if (x->at[i] < WINDOW)
        return;
    double sum = 0;
    for (int32_t k = 0; k < WINDOW; k++)
        sum += x->took[i][k];
    w->worst = fmax(w->worst, sum / WINDOW);
    w->worst_answer = fmax(w->worst_answer, x->whole[i] / (double)x->at[i]);
}

static void simulate_round(world *w, simulation *x)
{
    int32_t most, n_drafts = draft_round(w, x, &most), rows = 0;
    int64_t n_ctx = 0;
    for (int32_t i = 0; i < w->n_seats; i++) {
        rows += x->seat[i].tree ? 1 + x->seat[i].tree->n : 1;
        n_ctx += x->seat[i].n_ctx;
    }
    n_ctx /= w->n_seats;
    double factor = 10 * draw_noise(w, &x->rng), target_ms = factor * w->cost->pass(rows, n_ctx);
    const double draft_ms[DRAFTERS_MAX] = {
        [DRAFTER_MODEL] = n_drafts ? factor * w->cost->draft(most, n_drafts) : 0};
    double plain = factor * w->cost->pass(w->n_seats, n_ctx);
    double ms = target_ms + draft_ms[DRAFTER_MODEL];
    w->ms += ms;
    w->n_rounds++;
    for (int32_t i = 0; i < w->n_seats; i++)
        accept_drafts(w, x, i, ms, plain);
    draft_control_tell(x->t, x->seat, w->n_seats, target_ms, draft_ms);
}

/* Seats that have answered take the next request; false: there are none, and all have answered. */
static bool next_requests(const world *w, simulation *x)
{
    bool going = false;
    for (int32_t i = 0; i < w->n_seats; i++) {
        if (x->at[i] >= w->n_tokens && x->done[i] + 1 < w->n_requests) {
            x->done[i]++;
            x->at[i] = 0;
            x->whole[i] = 0;
            draft_control_close(x->seat[i].c);
            open_seat(w, x, i);
        }
        going = going || x->at[i] < w->n_tokens;
    }
    return going;
}

static void simulate(world *w)
{
    static simulation x;
    err e = {0};
    memset(&x, 0, sizeof x);
    x.rng = w->seed;
    CHECK_OK(draft_times_open(&x.t, &e), e);
    for (int32_t i = 0; i < w->n_seats; i++)
        open_seat(w, &x, i);
    w->ms = w->plain_ms = w->fair_ms = w->worst = w->worst_answer = 0;
    w->n_rounds = w->n_drafted = w->n_accepted = 0;
    do
        simulate_round(w, &x);
    while (next_requests(w, &x));
    for (int32_t i = 0; i < w->n_seats; i++)
        draft_control_close(x.seat[i].c);
    draft_times_close(x.t);
}

/* Tokens per time, over plain. */
static double speed(const world *w)
{
    return w->plain_ms / w->ms;
}

/* Whatever the drafter says of itself: that it is sure, or one half. */
static void comes_close(const costs *cost, const profile *p, bool modest)
{
    enum { SEEDS = 6 };
    double sum = 0, best;
    for (uint64_t k = 0; k < SEEDS; k++) {
        world w = {.cost = cost,
                   .profile = p,
                   .n_seats = 1,
                   .n_tokens = 2000,
                   .n_requests = 3,
                   .n_slots = 15,
                   .fixed = -1,
                   .modest = modest,
                   .noise = 0.05,
                   .seed = test_seed() + k};
        int32_t best_n = 0;
        best = best_fixed(&w, &best_n);
        simulate(&w);
        double fair = w.fair_ms / w.ms;
        /* An accident in the first passes of a width may keep it from being chosen for thousands of
         * tokens: of 2,400 such simulations 3 stay below 0.95. */
        CHECK_MSG(fair >= 0.9 * best && fair >= 0.98,
                  "%s, %s, modest %d: %.3f of plain, %.3f of the best (%d slots)", cost->name,
                  p->name, modest, fair, fair / best, best_n);
        CHECK_MSG(w.worst < 1.1, "%s, %s: 256 tokens take %.3f of plain", cost->name, p->name,
                  w.worst);
        sum += fair / best;
    }
    CHECK_MSG(sum >= 0.97 * SEEDS, "%s, %s: on average %.3f of the best length", cost->name,
              p->name, sum / SEEDS);
}

PLAIN_TEST(control_comes_close_to_the_best_fixed_length)
{
    for (int32_t c = 0; c < TABLES; c++)
        for (int32_t f = 0; f < PROFILES; f++)
            for (int modest = test_brief() ? (c + f) % 2 : 0; modest < 2;
                 modest += 1 + test_brief())
                comes_close(&tables[c], &profiles[f], modest);
}

/* With exact times the guarantee is exact: the bound, and the last round. */
PLAIN_TEST(control_never_loses_more_than_its_purse)
{
    for (int32_t c = 0; c < TABLES; c++)
        for (int32_t f = 0; f < PROFILES; f++)
            for (int32_t informed = test_brief() ? (c + f) % 2 : 0; informed < 2;
                 informed += 1 + test_brief()) {
                world w = {.cost = &tables[c],
                           .profile = &profiles[f],
                           .n_seats = 1,
                           .n_tokens = 1500,
                           .n_requests = 2,
                           .n_slots = 15,
                           .fixed = -1,
                           .informed = informed,
                           .seed = test_seed()};
                simulate(&w);
                CHECK_MSG(w.worst_answer < 1 / 0.97 + 0.005,
                          "%s, %s: the beginning of an answer takes %.3f of plain", tables[c].name,
                          profiles[f].name, w.worst_answer);
                CHECK_MSG(w.worst < 1 / 0.96 + 0.005, "%s, %s: 256 tokens take %.3f of plain",
                          tables[c].name, profiles[f].name, w.worst);
                CHECK_MSG(speed(&w) >= 0.985, "%s, %s: %.3f of plain", tables[c].name,
                          profiles[f].name, speed(&w));
            }
}

TEST(control_of_a_reject_storm_stays_near_plain)
{
    for (int32_t c = 0; c < TABLES; c++) {
        world w = {.cost = &tables[c],
                   .profile = &profiles[3],
                   .n_seats = 1,
                   .n_tokens = 1000,
                   .n_requests = 1,
                   .n_slots = 15,
                   .fixed = -1,
                   .noise = 0.05,
                   .seed = test_seed()};
        simulate(&w);
        CHECK_MSG(speed(&w) >= 0.985, "%s: %.3f of plain", tables[c].name, speed(&w));
        CHECK(w.n_drafted < 200);
    }
}

/* Many requests share their passes. The rows of one are the others' time. */
PLAIN_TEST(control_weighs_the_other_requests)
{
    static const struct {
        int32_t table, profile, seats;
        double least;
    } cases[] = {
        {0, 0, 8, 1.1},   {0, 1, 8, 0.99},  {0, 3, 8, 0.98},  {0, 0, 64, 0.98}, {0, 3, 64, 0.98},
        {2, 0, 8, 1.8},   {2, 4, 8, 1.4},   {2, 3, 8, 0.98},  {2, 0, 64, 0.98}, {2, 1, 64, 0.98},
        {2, 3, 64, 0.98}, {1, 5, 64, 0.98}, {3, 0, 64, 0.98}, {3, 3, 64, 0.98}, {2, 0, 32, 0.98},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        world w = {.cost = &tables[cases[k].table],
                   .profile = &profiles[cases[k].profile],
                   .n_seats = cases[k].seats,
                   .n_tokens = 300,
                   .n_requests = 2,
                   .n_slots = 7,
                   .fixed = -1,
                   .noise = 0.03,
                   .seed = test_seed()};
        simulate(&w);
        printf("%s, %s, %d requests: %.3f of plain\n", w.cost->name, w.profile->name, w.n_seats,
               speed(&w));
        CHECK_MSG(speed(&w) >= cases[k].least, "%s, %s, %d requests: %.3f of plain", w.cost->name,
                  w.profile->name, w.n_seats, speed(&w));
    }
}

/* 65 rows are two launches of experts where 64 are one, so the draft of a single answer costs all
 * answers a twentieth: 26B-A4B on an H100. */
TEST(control_tries_few_rows_beside_many_answers)
{
    static const costs steps = {"experts in launches of 64 rows", stepped_pass, block_draft};
    double sum = 0;
    enum { SEEDS = 4 };
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        world w = {.cost = &steps,
                   .profile = &profiles[1],
                   .n_seats = 64,
                   .n_tokens = 128,
                   .n_requests = 1,
                   .n_slots = 7,
                   .fixed = -1,
                   .noise = 0.01,
                   .seed = seed};
        simulate(&w);
        printf("seed %d: %.4f of plain\n", (int)seed, speed(&w));
        sum += speed(&w) / SEEDS;
    }
    CHECK_MSG(sum >= 0.99, "%.3f of plain", sum);
}

/* Other programs take the processor now and then. That says nothing about guesses. */
TEST(control_survives_disturbed_measurements)
{
    for (uint64_t seed = 1; seed <= 12; seed++) {
        world w = {.cost = &tables[0],
                   .profile = &profiles[0],
                   .n_seats = 1,
                   .n_tokens = 3000,
                   .n_requests = 1,
                   .n_slots = 7,
                   .fixed = -1,
                   .disturbed = true,
                   .seed = seed};
        simulate(&w);
        CHECK_MSG((double)w.n_accepted / (double)w.n_rounds > 0.6, "seed %d: %.2f accepted a round",
                  (int)seed, (double)w.n_accepted / (double)w.n_rounds);
    }
}

static status open_all(void *arg, err *e)
{
    const int32_t slots[DRAFTERS_MAX] = {15, 7};
    draft_times *t = NULL;
    draft_control *c = NULL;
    status st = draft_times_open(&t, e);
    st = st ? st : draft_control_open(&c, t, slots, arg, e);
    draft_control_close(c);
    draft_times_close(t);
    return st;
}

TEST(control_out_of_memory)
{
    draft_wish wish = {0};
    test_every_allocation(open_all, &wish);
}

/* One round of one seat whose plain passes take 10 ms and others hardly more. */
static void one_round(draft_times *t, draft_seat *s, const proposal *p, int32_t accepted)
{
    static draft_tree tree;
    const double draft_ms[DRAFTERS_MAX] = {0, s->choice.n_slots ? 0.1 : 0};
    s->tree = NULL;
    s->last_row = 0;
    if (s->choice.n_slots) {
        if (s->choice.budget > 0)
            tree_grow(&tree, p, NULL, 1, s->choice.budget);
        else
            tree_chain(&tree, p, 1, s->choice.n_slots);
        s->tree = &tree;
        draft_control_trim(t, s, 1, 64);
        for (int32_t r; accepted-- > 0; s->last_row = r)
            if ((r = tree_child(&tree, s->last_row, 10 * tree.depth[s->last_row])) < 0)
                break;
    }
    draft_control_tell(t, s, 1, 10 + 0.05 * (s->tree ? s->tree->n : 0), draft_ms);
}

/* Drafts of a kind that was hardly ever checked are checked though they lose: one in a round, and
 * only where a row is left for it. */
TEST(control_checks_one_new_draft_a_round)
{
    enum { SEATS = 3 };
    const int32_t slots[DRAFTERS_MAX] = {[DRAFTER_MODEL] = 4};
    static proposal p = {.n_slots = 2, .n_ranks = 1};
    err e = {0};
    for (int32_t s = 0; s < 2; s++)
        p.id[s][0] = 10 + s;
    for (int32_t rows = SEATS; rows <= 16; rows += 16 - SEATS) {
        draft_times *t;
        draft_seat seat[SEATS] = {0};
        static draft_tree tree[SEATS];
        int32_t n = 0;
        CHECK_OK(draft_times_open(&t, &e), e);
        for (int i = 0; i < 8; i++) { /* a row more costs more than a token is worth */
            times_add_pass(t, SEATS, 0, 10);
            times_add_pass(t, SEATS + 1, 0, 40);
            times_add_pass(t, SEATS + 2, 0, 80);
        }
        t->rate = SEATS / 10.0;
        for (int i = 0; i < SEATS; i++) {
            const draft_wish wish = {.tree_max = -1};
            seat[i] = (draft_seat){.rows = 8, .tokens = 100, .tree = &tree[i]};
            CHECK_OK(draft_control_open(&seat[i].c, t, slots, &wish, &e), e);
            seat[i].choice = (draft_choice){.drafter = DRAFTER_MODEL, .n_slots = 2};
            tree_chain(&tree[i], &p, 1, 2);
        }
        draft_control_trim(t, seat, SEATS, rows);
        for (int i = 0; i < SEATS; i++) {
            n += tree[i].n > 0;
            draft_control_close(seat[i].c);
        }
        CHECK_EQ(n, rows > SEATS);
        draft_times_close(t);
    }
}

TEST(control_keeps_to_the_wish)
{
    const int32_t slots[DRAFTERS_MAX] = {[DRAFTER_LOOKUP] = 15, [DRAFTER_MODEL] = 7};
    static const draft_wish wishes[] = {{.off = true},
                                        {.n_max = 3, .tree_max = -1},
                                        {.n_max = 4, .fixed = true, .tree_max = -1},
                                        {.n_max = 7, .fixed = true, .tree_max = 20},
                                        {.tree_max = 5},
                                        {0}};
    static proposal p = {.n_slots = 7, .n_ranks = 3};
    err e = {0};
    for (int32_t s = 0; s < 7; s++)
        for (int32_t r = 0; r < 3; r++) {
            p.id[s][r] = 10 * s + r;
            p.logp[s][r] = (float)log(r == 0 ? 0.7 : 0.1);
        }
    for (size_t k = 0; k < sizeof wishes / sizeof *wishes; k++) {
        const draft_wish *w = &wishes[k];
        draft_times *t;
        draft_seat s = {.rows = 24, .tokens = 1000, .n_ctx = 100};
        int32_t most = 0, widest = 0;
        CHECK_OK(draft_times_open(&t, &e), e);
        CHECK_OK(draft_control_open(&s.c, t, slots, w, &e), e);
        for (int32_t round = 0; round < 80; round++) {
            draft_control_choose(t, &s, 1, 64);
            CHECK(s.choice.n_slots >= 0 && s.choice.budget >= 0);
            CHECK(!s.choice.n_slots || s.choice.drafter == DRAFTER_MODEL); /* nothing was found */
            if (w->fixed)
                CHECK_EQ(s.choice.n_slots, w->n_max);
            one_round(t, &s, &p, 99);
            most = s.choice.n_slots > most ? s.choice.n_slots : most;
            if (s.tree) {
                widest = s.tree->n > widest ? s.tree->n : widest;
                CHECK(w->tree_max >= 0 || s.tree->chain);
            }
            if (w->fixed)
                CHECK_EQ(s.tree->n, w->tree_max > 0 ? w->tree_max : w->n_max);
        }
        CHECK_EQ(most, w->off ? 0 : w->n_max ? w->n_max : 7);
        CHECK(widest <= 23 && (w->tree_max <= 0 || widest <= w->tree_max));
        /* The last tokens of an answer, and a full context. */
        s.tokens = 1;
        draft_control_choose(t, &s, 1, 64);
        CHECK_EQ(s.choice.n_slots, 0);
        s.tokens = 100;
        s.rows = 1;
        draft_control_choose(t, &s, 1, 64);
        CHECK_EQ(s.choice.n_slots, 0);
        s.rows = 24;
        draft_control_choose(t, &s, 1, 1);
        CHECK_EQ(s.choice.n_slots, 0);
        draft_control_close(s.c);
        draft_times_close(t);
    }
}

/* What lookup finds costs nothing, so it goes before a drafter that is no better. */
TEST(control_takes_the_better_of_two_drafters)
{
    const int32_t slots[DRAFTERS_MAX] = {[DRAFTER_LOOKUP] = 7, [DRAFTER_MODEL] = 7};
    const draft_wish wish = {.tree_max = -1};
    static proposal found = {.n_slots = 7, .n_ranks = 1};
    for (int32_t good = 0; good < DRAFTERS_MAX; good++) {
        draft_times *t;
        draft_seat s = {.rows = 8, .tokens = 1000, .n_ctx = 100, .found = &found};
        int32_t taken[DRAFTERS_MAX] = {0};
        err e = {0};
        for (int32_t k = 0; k < 7; k++) {
            found.id[k][0] = 10 * k;
            found.logp[k][0] = -0.3f;
        }
        CHECK_OK(draft_times_open(&t, &e), e);
        CHECK_OK(draft_control_open(&s.c, t, slots, &wish, &e), e);
        for (int32_t round = 0; round < 200; round++) {
            draft_control_choose(t, &s, 1, 64);
            if (round >= 100 && s.choice.n_slots)
                taken[s.choice.drafter]++;
            one_round(t, &s, &found, s.choice.drafter == good ? 99 : 0);
        }
        CHECK_MSG(taken[good] > 80 && taken[!good] < 10, "%d: %d rounds of lookup, %d of the model",
                  good, taken[0], taken[1]);
        draft_control_close(s.c);
        draft_times_close(t);
    }
}

TEST(control_takes_any_numbers)
{
    static const double bad[] = {0, -1, NAN, INFINITY, 1e300, 1e-300};
    const int32_t slots[DRAFTERS_MAX] = {INT32_MAX, INT32_MAX};
    static proposal p;
    err e = {0};
    p.n_slots = p.n_ranks = INT32_MAX;
    for (int32_t i = 0; i < DRAFT_SLOTS_MAX; i++)
        for (int32_t r = 0; r < DRAFT_RANKS_MAX; r++)
            p.logp[i][r] = r ? NAN : (float)bad[i % 6];
    for (int32_t k = 0; k < 6; k++) {
        static draft_tree tree;
        draft_wish wish = {.n_max = k % 2 ? INT32_MAX : INT32_MIN, .tree_max = k % 3 ? 0 : 63};
        draft_seat s = {.found = &p};
        draft_times *t;
        CHECK_OK(draft_times_open(&t, &e), e);
        CHECK_OK(draft_control_open(&s.c, t, slots, &wish, &e), e);
        draft_control_choose(t, &s, 0, 0);
        for (int32_t round = 0; round < 60; round++) {
            const double draft_ms[DRAFTERS_MAX] = {bad[round % 6], bad[(round + 1) % 6]};
            s.rows = round % 5 ? 64 : INT32_MAX;
            s.tokens = round % 7 ? INT32_MAX : -4;
            s.n_ctx = round % 2 ? INT64_MAX : 0;
            draft_control_choose(t, &s, 1, round % 4 ? 64 : INT32_MAX);
            CHECK(s.choice.n_slots >= 0 && s.choice.n_slots <= DRAFT_SLOTS_MAX);
            CHECK(s.choice.budget >= 0 && s.choice.budget <= DRAFT_SLOTS_MAX);
            tree_grow(&tree, &p, NULL, 1, s.choice.n_slots);
            s.tree = s.choice.n_slots ? &tree : NULL;
            s.last_row = s.tree ? tree.n : 0;
            draft_control_trim(t, &s, 1, 64);
            s.last_row = s.tree && s.last_row > tree.n ? tree.n : s.last_row;
            draft_control_tell(t, &s, 1, round < 6 ? 10 : bad[(round + k) % 6], draft_ms);
        }
        draft_control_close(s.c);
        draft_times_close(t);
    }
}

/* ---- Trees -------------------------------------------------------------------------------- */

/* Answers by trees of a drafter whose probabilities are wrong: of each slot it says `says` of its
 * best token, and half as much of each next one. The best token is right with the profile's chance,
 * the others never. */
typedef struct grove {
    const costs *cost;
    const profile *profile;
    double says;
    bool records; /* the first two passes of a width are not measured, as on a GPU (round.c) */
    int32_t n_passes[65];
    double plain_ms, ms;
} grove;

enum { GROVE_SLOTS = 7, GROVE_RANKS = 8, GROVE_TOKENS = 256 };

static void grove_round(grove *g, draft_times *t, draft_seat *s, proposal *p, uint64_t *rng)
{
    static draft_tree tree;
    double draft_ms[DRAFTERS_MAX] = {0};
    int64_t at = GROVE_TOKENS - s->tokens;
    int32_t right = 0, a = 0;
    s->tree = NULL;
    s->last_row = 0;
    draft_control_choose(t, s, 1, 64);
    while (right < GROVE_SLOTS && rng_unit(rng) < g->profile->chance(right, at))
        right++;
    p->n_slots = s->choice.n_slots;
    if (p->n_slots) {
        tree_weights w;
        CHECK(s->choice.budget);
        draft_ms[DRAFTER_MODEL] = 10 * g->cost->draft(p->n_slots, 1);
        draft_control_weigh(t, s, p, &w);
        tree_grow(&tree, p, &w, 1, s->choice.budget);
        s->tree = &tree;
        draft_control_trim(t, s, 1, 64);
    }
    for (int32_t r; s->tree && a < right && (r = tree_child(&tree, s->last_row, 10 * a)) > 0; a++)
        s->last_row = r;
    double ms = 10 * g->cost->pass(s->tree ? 1 + tree.n : 1, s->n_ctx);
    bool first = g->records && g->n_passes[s->tree ? 1 + tree.n : 1]++ < 2;
    draft_control_tell(t, s, 1, first ? 0 : ms, draft_ms);
    g->ms += ms + draft_ms[DRAFTER_MODEL];
    g->plain_ms += 10 * g->cost->pass(1, s->n_ctx) * (1 + a);
    s->tokens -= 1 + a;
}

/* Tokens per time over plain, in three answers. */
static double grove_speed(grove *g, uint64_t seed)
{
    static proposal p = {.n_ranks = GROVE_RANKS};
    const int32_t slots[DRAFTERS_MAX] = {[DRAFTER_MODEL] = GROVE_SLOTS};
    const draft_wish wish = {0};
    draft_times *t;
    err e = {0};
    for (int32_t k = 0; k < GROVE_SLOTS; k++)
        for (int32_t r = 0; r < GROVE_RANKS; r++) {
            p.id[k][r] = 10 * k + r;
            p.logp[k][r] = (float)(log(g->says) - r * log(2));
        }
    g->ms = g->plain_ms = 0;
    memset(g->n_passes, 0, sizeof g->n_passes);
    CHECK_OK(draft_times_open(&t, &e), e);
    for (int32_t i = 0; i < 3; i++) {
        draft_seat s = {.rows = 64, .tokens = GROVE_TOKENS};
        CHECK_OK(draft_control_open(&s.c, t, slots, &wish, &e), e);
        for (; s.tokens > 0; s.n_ctx = 1024 + GROVE_TOKENS - s.tokens)
            grove_round(g, t, &s, &p, &seed);
        draft_control_close(s.c);
    }
    draft_times_close(t);
    return g->plain_ms / g->ms;
}

/* The mean speed of n_seeds answers is at least `share` of that of the best fixed length. */
static void reaches(grove *g, uint64_t n_seeds, double share)
{
    world w = {
        .cost = g->cost, .profile = g->profile, .n_tokens = GROVE_TOKENS, .n_slots = GROVE_SLOTS};
    int32_t best_n = 0;
    double best = best_fixed(&w, &best_n), sum = 0;
    for (uint64_t seed = 0; seed < n_seeds; seed++)
        sum += grove_speed(g, test_seed() + seed) / (double)n_seeds;
    CHECK_MSG(sum >= share * best, "%s, %s, says %.1f: %.3f of plain, %.3f of the best (%d slots)",
              g->cost->name, g->profile->name, g->says, sum, sum / best, best_n);
}

/* A best token that is nearly always right makes chains, though the drafter says 0.5 of it: with
 * trees as the drafter would have them, three answers reach half of the best speed. */
PLAIN_TEST(control_learns_what_probabilities_are_worth)
{
    enum { SEEDS = 4 };
    static const double says[] = {0.5, 0.9, 0.3};
    for (int32_t c = 0; c < TABLES; c++)
        for (int32_t f = 0; f < PROFILES; f++)
            for (int32_t k = 0; k < 3; k++) {
                grove g = {.cost = &tables[c], .profile = &profiles[f], .says = says[k]};
                reaches(&g, SEEDS, 0.92);
            }
}

PLAIN_TEST(control_learns_while_passes_are_recorded)
{
    enum { SEEDS = 8 };
    static const double says[] = {0.2, 0.7};
    for (int32_t c = 0; c < TABLES; c++)
        for (int32_t f = 0; f < PROFILES; f++)
            for (int32_t k = 0; k < 2; k++) {
                grove g = {
                    .cost = &tables[c], .profile = &profiles[f], .says = says[k], .records = true};
                reaches(&g, SEEDS, 0.92);
            }
}
