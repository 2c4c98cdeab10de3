/* offload_pool_test.c - threads that answer jobs, posted here as a GPU posts them: each product has
 * the bits of the kernels called in turn, whatever the number of threads; what is no job is not
 * answered; idle threads sleep.
 */
#include "backend/cpu/offload_pool.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/rng.h"
#include "num/num.h"
#include "tests/spawn.h"
#include "tests/test.h"

#include <sched.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <unistd.h>

enum {
    N_EXPERTS = 6,
    N_IN = 96,
    N_FF = 64,
    N_OUT = 40, /* the last tile is not full */
    IN_GROUPS = N_IN / 32,
    FF_GROUPS = N_FF / 32,
    OUT_TILES = 3,
    FIRST = 3,
    MANY = 1000 /* ms: more than any job of this size takes */
};

/* Q4_0 and Q8_0: [codes][scales] of gate, up and down. */
typedef struct expert {
    uint8_t gate[N_FF / 16 * IN_GROUPS * 256], up[N_FF / 16 * IN_GROUPS * 256];
    uint8_t down[OUT_TILES * FF_GROUPS * 512]; /* as one matrix, and as two of a group each */
    uint16_t gate_s[N_FF / 16 * 128], up_s[N_FF / 16 * 128], down_s[2 * OUT_TILES * 128];
} expert;

typedef struct rig {
    expert *w;
    /* They share all but biases, which the last one has, and the segments of down: the first one
     * has two, and its experts are not the first ones. */
    offload_layer layer[OFFLOAD_UNITS];
    float bias[2][N_EXPERTS * N_FF];
    char *block;
    offload_room room;
    offload_pool *p;
    const offload_kernels *k;
    uint64_t rng;
} rig;

static void random_bytes(rig *g, void *to, size_t n)
{
    for (size_t i = 0; i < n; i++)
        ((uint8_t *)to)[i] = (uint8_t)rng_next(&g->rng);
}
static void random_halves(rig *g, uint16_t *to, size_t n)
{
    for (size_t i = 0; i < n; i++)
        to[i] = num_f32_to_f16((float)(rng_unit(&g->rng) - 0.5));
}

/* beside: whose threads compute; NULL: n_threads of its own. */
static void open_rig_beside(rig *g, const rig *beside, int32_t n_threads)
{
    err e = {0};
    *g = (rig){.rng = test_seed()};
    CHECK((g->w = mem_calloc(N_EXPERTS, sizeof *g->w)));
    for (int i = 0; i < N_EXPERTS; i++) {
        random_bytes(g, g->w[i].gate, sizeof g->w[i].gate);
        random_bytes(g, g->w[i].up, sizeof g->w[i].up);
        random_bytes(g, g->w[i].down, sizeof g->w[i].down);
        random_halves(g, g->w[i].gate_s, sizeof g->w[i].gate_s / 2);
        random_halves(g, g->w[i].up_s, sizeof g->w[i].up_s / 2);
        random_halves(g, g->w[i].down_s, sizeof g->w[i].down_s / 2);
    }
    const uint8_t *none = g->w->gate;
    const offload_layer l = {
        .gate = {g->w->gate, none, (uint8_t *)g->w->gate_s, none, OFFLOAD_Q4_0, N_FF, IN_GROUPS, 1},
        .up = {g->w->up, none, (uint8_t *)g->w->up_s, none, OFFLOAD_Q4_0, N_FF, IN_GROUPS, 1},
        .down = {{g->w->down, none, (uint8_t *)g->w->down_s, none, OFFLOAD_Q8_0, N_OUT, FF_GROUPS,
                  1}},
        .n_down = 1,
        .expert_bytes = sizeof(expert),
        .n_experts = N_EXPERTS,
        .n_ff = N_FF,
        .gate_parts = 1};
    for (int i = 0; i < OFFLOAD_UNITS; i++)
        g->layer[i] = l;
    offload_layer *cut = &g->layer[OFFLOAD_GELU];
    cut->first = FIRST;
    cut->n_down = FF_GROUPS;
    cut->down->n_group = 1;
    cut->down[1] = *cut->down;
    cut->down[1].codes += OUT_TILES * 512;
    cut->down[1].scale += sizeof g->w->down_s / 2;
    for (int i = 0; i < N_EXPERTS * N_FF; i++)
        for (int k = 0; k < 2; k++)
            g->bias[k][i] = (float)(rng_unit(&g->rng) - 0.5);
    g->layer[OFFLOAD_CUT].gate_bias = g->bias[0];
    g->layer[OFFLOAD_CUT].up_bias = g->bias[1];
    g->layer[OFFLOAD_CUT].bias_step = N_FF;
    size_t n = offload_room_bytes(g->layer, OFFLOAD_UNITS, NULL, &g->room);
    CHECK((g->block = aligned_alloc(64, (n + 63) & ~(size_t)63)));
    memset(g->block, 0, n);
    CHECK_EQ(offload_room_bytes(g->layer, OFFLOAD_UNITS, g->block, &g->room), n);
    if (beside)
        CHECK(!offload_pool_open_beside(&g->p, beside->p, g->layer, OFFLOAD_UNITS, &g->room, &e));
    else
        CHECK(!offload_pool_open(&g->p, g->layer, OFFLOAD_UNITS, &g->room, n_threads, NULL, &e));
    CHECK(!offload_kernels_find(NULL, &g->k, &e));
}

static void open_rig(rig *g, int32_t n_threads)
{
    open_rig_beside(g, NULL, n_threads);
}

static void close_rig(rig *g)
{
    offload_pool_close(g->p);
    free(g->block);
    mem_free(g->w);
}

static void post_next(offload_post *p)
{
    uint32_t last = atomic_load(&p->seq);
    atomic_store(&p->seq, OFFLOAD_NEXT(last));
}

/* A job of random experts and rows. */
static void post_job(rig *g)
{
    offload_post *p = g->room.post;
    uint32_t n = 1 + (uint32_t)rng_below(&g->rng, N_EXPERTS);
    int32_t at = 0, first = (int32_t)rng_below(&g->rng, N_EXPERTS);
    for (uint32_t i = 0; i < n; i++) {
        p->expert[i] = (first + (int32_t)i) % N_EXPERTS;
        p->first[i] = at;
        for (int r = 1 + (int)rng_below(&g->rng, 4); r > 0; r--)
            p->row[at++] = (int32_t)rng_below(&g->rng, OFFLOAD_JOB_ROWS);
    }
    p->first[n] = at;
    offload_scale *s = g->room.s;
    for (int i = 0; i < OFFLOAD_JOB_ROWS * IN_GROUPS; i++) {
        int sum[2] = {0, 0};
        for (int k = 0; k < 32; k++) {
            g->room.q[i * 32 + k] = (int8_t)((int)rng_below(&g->rng, 255) - 127);
            sum[k / 16] += g->room.q[i * 32 + k];
        }
        s[i] =
            (offload_scale){(float)rng_unit(&g->rng) * 0.01f, {(int16_t)sum[0], (int16_t)sum[1]}};
    }
    const uint32_t layer = (uint32_t)rng_below(&g->rng, OFFLOAD_UNITS);
    for (uint32_t i = 0; i < n; i++)
        p->expert[i] += g->layer[layer].first;
    atomic_store(&p->layer, layer);
    atomic_store(&p->unit, layer);
    atomic_store(&p->n_experts, n);
    post_next(p);
}

static bool answered(const rig *g, double ms)
{
    double end = clock_ms() + ms;
    while (atomic_load(&g->room.post->done) != atomic_load(&g->room.post->seq))
        if (clock_ms() > end)
            return false;
        else
            usleep(10);
    return true;
}

/* The products of a pair: of one segment, or of two. */
typedef struct products {
    float y[FF_GROUPS][OUT_TILES * OFFLOAD_TILE];
} products;

/* Pair `k`, expert e, by the kernels one after the other. */
static void by_hand(const rig *g, int32_t e, int32_t row, offload_unit unit, products *to)
{
    float a[N_FF], b[N_FF], part[1][OFFLOAD_TILE];
    int8_t q[N_FF];
    offload_scale s[FF_GROUPS];
    const offload_layer *l = &g->layer[unit];
    size_t on = (size_t)(e - l->first) * sizeof(expert);
    offload_matrix m[2 + FF_GROUPS] = {l->gate, l->up, l->down[0], l->down[1]};
    for (int i = 0; i < 2 + l->n_down; i++)
        m[i].codes += on, m[i].scale += on;
    offload_row x = {g->room.q + row * N_IN, (offload_scale *)g->room.s + row * IN_GROUPS};
    for (int t = 0; t < N_FF / 16; t++)
        for (int i = 0; i < 2; i++) {
            g->k->tile(&m[i], t, 1, &x, 1, part);
            for (int k = 0; k < 16 && unit == OFFLOAD_CUT; k++)
                part[0][k] += g->bias[i][e * N_FF + 16 * t + k];
            memcpy((i ? b : a) + 16 * t, part, sizeof part);
        }
    for (int i = 0; i < FF_GROUPS; i++)
        g->k->gate(unit, a + 32 * i, b + 32 * i, q + 32 * i, &s[i]);
    for (int z = 0; z < l->n_down; z++)
        for (int t = 0; t < OUT_TILES; t++) {
            x = (offload_row){q + 32 * z, s + z};
            g->k->tile(&m[2 + z], t, 1, &x, 1, part);
            memcpy(to->y[z] + 16 * t, part, sizeof part);
        }
}

/* Is pair j in the room as by hand? */
static bool is_right(const rig *g, int32_t e, int32_t j)
{
    const offload_post *p = g->room.post;
    const offload_unit unit = (offload_unit)atomic_load(&p->unit);
    products want;
    bool right = true;
    by_hand(g, e, p->row[j], unit, &want);
    for (int z = 0; z < g->layer[unit].n_down; z++)
        right &= !memcmp(g->room.y + j * g->room.n_out + z * N_OUT, want.y[z],
                         sizeof(float) * N_OUT);
    return right;
}

/* Pairs of the job in the room whose products are not those of the kernels. */
static int wrong_pairs(const rig *g)
{
    const offload_post *p = g->room.post;
    int n = 0;
    for (uint32_t k = 0; k < atomic_load(&p->n_experts); k++)
        for (int32_t j = p->first[k]; j < p->first[k + 1]; j++)
            n += !is_right(g, p->expert[k], j);
    return n;
}

/* Jobs of several devices, by turns and at the same time. */
TEST(offload_pools_share_their_threads)
{
    enum { POOLS = 3 };
    rig g[POOLS];
    for (int i = 0; i < POOLS; i++)
        open_rig_beside(&g[i], i ? &g[i - 1] : NULL, 2);
    for (int trial = 0; trial < test_trials(200); trial++) {
        const bool at_once = trial % 3 == 0;
        for (int i = 0; i < POOLS; i++) {
            post_job(&g[i]);
            CHECK(at_once || answered(&g[i], 60 * MANY));
        }
        for (int i = 0; i < POOLS; i++) {
            CHECK(answered(&g[i], 60 * MANY));
            CHECK_EQ(wrong_pairs(&g[i]), 0);
        }
    }
    for (int i = 0; i < POOLS; i++) {
        CHECK_EQ(offload_pool_threads(g[i].p), 2);
        CHECK(offload_pool_time(g[i].p, 2) >= 0);
    }
    offload_pool_hold(g[1].p, true); /* whose job stays; the others' are answered */
    for (int i = 0; i < POOLS; i++)
        post_job(&g[i]);
    CHECK(answered(&g[0], 60 * MANY) && answered(&g[2], 60 * MANY) && !answered(&g[1], 5));
    for (int i = 0; i < POOLS; i++)
        close_rig(&g[(i + 1) % POOLS]); /* not in the order in which they were opened */
}

TEST(offload_pool_answers_with_the_bits_of_its_kernels)
{
    static const int32_t threads[] = {1, 2, 5};
    uint64_t pairs = 0;
    offload_pool_limit_ns = PATIENCE_MS * (int64_t)1000000;
    for (int i = 0; i < 3; i++) {
        rig g;
        open_rig(&g, threads[i]);
        CHECK_EQ(offload_pool_threads(g.p), threads[i]);
        offload_use before = offload_pool_use(g.p), use;
        pairs = 0;
        for (int trial = 0; trial < test_trials(200); trial++) {
            post_job(&g);
            CHECK(answered(&g, 60 * MANY));
            const offload_post *p = g.room.post;
            pairs += (uint64_t)p->first[atomic_load(&p->n_experts)];
            CHECK_EQ(wrong_pairs(&g), 0);
            if (trial == 20)
                usleep(5000); /* threads have paused */
        }
        use = offload_pool_use(g.p);
        CHECK_EQ(use.n_pairs - before.n_pairs, pairs);
        CHECK_EQ(use.bytes, use.n_experts * sizeof(expert));
        CHECK(offload_pool_time(g.p, 3) >= 0);
        int32_t timed = g.room.post->expert[2] - FIRST;
        CHECK(offload_pool_time(g.p, 3) >= 0); /* goes on to others: the first are in caches now */
        CHECK_EQ(g.room.post->expert[0], FIRST + (timed + 1) % N_EXPERTS);
        close_rig(&g);
    }
}

/* Jobs beyond what was opened are ignored, and so is one that the device has given up. */
TEST(offload_pool_ignores_what_is_no_job)
{
    rig g;
    open_rig(&g, 2);
    offload_post *p = g.room.post;
    for (int i = 0; i < 7; i++) {
        post_job(&g);
        CHECK(answered(&g, 60 * MANY));
        uint32_t n = atomic_load(&p->n_experts);
        if (i == 0)
            atomic_store(&p->layer, OFFLOAD_UNITS);
        else if (i == 1)
            atomic_store(&p->n_experts, OFFLOAD_PAIRS + 1);
        else if (i == 2)
            atomic_store(&p->n_experts, 0);
        else if (i == 3)
            p->expert[n - 1] = N_EXPERTS;
        else if (i == 4)
            p->row[0] = -1;
        else if (i == 5)
            atomic_store(&p->unit, OFFLOAD_UNITS);
        else
            p->first[n] = OFFLOAD_PAIRS + 1;
        post_next(p);
        CHECK(!answered(&g, 5));
        uint32_t layer = atomic_load(&p->layer);
        CHECK(offload_pool_time(g.p, 1) < 0); /* threads may still read this job */
        CHECK_EQ(atomic_load(&p->layer), layer);
        CHECK_EQ(atomic_load(&p->n_experts), i == 1 ? OFFLOAD_PAIRS + 1 : i == 2 ? 0 : n);
        atomic_store(&p->late, atomic_load(&p->seq));
        close_rig(&g);
        open_rig(&g, 2);
        p = g.room.post;
    }
    offload_pool_hold(g.p, true);
    post_job(&g);
    CHECK(!answered(&g, 5));
    offload_pool_hold(g.p, false);
    CHECK(answered(&g, 60 * MANY));
    close_rig(&g);
}

/* Jobs follow each other at once, as layers do, and their numbers wrap; more threads than cores. */
TEST(offload_pool_answers_jobs_that_follow_at_once)
{
    rig g;
    open_rig(&g, 7);
    const offload_post *p = g.room.post;
    bool wrapped = false;
    for (int trial = 0; trial < test_trials(600); trial++) {
        post_job(&g);
        double end = clock_ms() + 60 * MANY;
        while (atomic_load_explicit(&p->done, memory_order_acquire) != atomic_load(&p->seq)) {
            CHECK(clock_ms() < end);
            sched_yield();
        }
        wrapped |= atomic_load(&p->seq) < OFFLOAD_FIRST;
        if (trial % 8)
            continue;
        for (uint32_t k = 0; k < atomic_load(&p->n_experts); k++)
            CHECK(is_right(&g, p->expert[k], p->first[k]));
    }
    CHECK(wrapped);
    close_rig(&g);
}

TEST(offload_pool_closes_in_the_middle_of_a_job)
{
    for (int trial = 0; trial < test_trials(30); trial++) {
        rig g;
        open_rig(&g, 3);
        post_job(&g);
        if (trial & 1)
            usleep(20);
        close_rig(&g);
    }
}

static double cpu_ms(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1e3 +
           (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-3;
}

/* Soon after the last job threads only look now and then. */
PLAIN_TEST(offload_pool_threads_rest_when_nothing_comes)
{
    rig g;
    open_rig(&g, 4);
    post_job(&g);
    CHECK(answered(&g, 60 * MANY));
    usleep(250000);
    double rest = 1, from = clock_ms(); /* the share of a processor in the quietest window */
    for (double start = from; rest > 0.75 && start - from < PATIENCE_MS; start = clock_ms()) {
        double before = cpu_ms();
        usleep(200000);
        double now = (cpu_ms() - before) / (clock_ms() - start);
        rest = now < rest ? now : rest;
    }
    CHECK_MSG(rest <= 0.75, "%g processors", rest); /* of four, if they did not pause */
    offload_pool_wake(g.p);
    post_job(&g);
    CHECK(answered(&g, 60 * MANY));
    close_rig(&g);
}

/* A pass that waits for its turn may post its first job long after it woke the threads. */
TEST(offload_pool_threads_that_sleep_find_a_job)
{
    rig g;
    open_rig(&g, 2);
    offload_pool_tire(g.p);
    post_job(&g);
    CHECK(answered(&g, 60 * MANY));
    usleep(100000);
    post_job(&g);
    CHECK(answered(&g, 60 * MANY));
    usleep(100000);
    offload_pool_wake(g.p);
    post_job(&g);
    CHECK(answered(&g, 60 * MANY));
    close_rig(&g);
}

static status open_and_close(void *arg, err *e)
{
    rig *g = arg;
    offload_pool *p;
    status st = offload_pool_open(&p, g->layer, OFFLOAD_UNITS, &g->room, 2, NULL, e);
    if (!st)
        offload_pool_close(p);
    return st;
}

TEST(offload_pool_opens_or_says_why)
{
    rig g;
    err e = {0};
    offload_pool *p;
    open_rig(&g, 1);
    test_every_allocation(open_and_close, &g);
    CHECK_EQ(offload_pool_open(&p, g.layer, 0, &g.room, 1, NULL, &e), E_ARG);
    CHECK_EQ(offload_pool_open(&p, g.layer, 1, &g.room, 1, "mmx", &e), E_ARG);
    offload_layer wrong[6];
    for (int i = 0; i < 6; i++)
        wrong[i] = g.layer[0];
    wrong[0].n_ff = 48;
    wrong[1].down[1].n_group = 9;
    wrong[2].gate.kind = OFFLOAD_KINDS;
    wrong[3].gate_parts = 3;
    wrong[4].down[1].n_out = N_OUT - 1;
    wrong[5].n_down = OFFLOAD_SEGMENTS + 1;
    for (int i = 0; i < 6; i++)
        CHECK_EQ(offload_pool_open(&p, &wrong[i], 1, &g.room, 1, NULL, &e), E_ARG);
    close_rig(&g);
}
