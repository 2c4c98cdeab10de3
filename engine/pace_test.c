/* pace_test.c - how many prompt rows go beside answers, of times that are made up. */
#include "engine/batch_int.h"
#include "engine/pace.h"
#include "tests/answers.h"
#include "tests/test.h"
#include "tests/toy_model.h"

/* A device on which a part of n rows takes fixed + n * row milliseconds beside answers. */
typedef struct made_up {
    double answers, fixed, row;
} made_up;

/* Many passes, each as wide as the last times allow; gives the rows that it ends with. */
static int32_t settle(pace *p, const made_up *d, int32_t most, double gap)
{
    int32_t n = 0;
    for (int i = 0; i < 40; i++) {
        pace_measure(p, 4, 0, d->answers, false);
        n = pace_rows(p, most, pace_budget_ms(p, gap));
        pace_measure(p, 4, n, d->answers + d->fixed + n * d->row, false);
    }
    return n;
}

TEST(pace_keeps_the_gap_between_tokens)
{
    static const made_up devices[] = {{2, 0, 0.02}, {6, 1, 0.01}, {3, 4, 0.005}, {1, 0.2, 0.5}};
    for (size_t i = 0; i < sizeof devices / sizeof *devices; i++) {
        pace p = {0};
        const made_up *d = &devices[i];
        int32_t n = settle(&p, d, 2048, 12);
        double gap = d->answers + d->fixed + n * d->row;
        CHECK_MSG(gap <= 12.5, "device %d: %d rows, %g ms", (int)i, n, gap);
        CHECK_MSG(gap >= 8, "device %d: only %d rows, %g ms", (int)i, n, gap);
    }
}

/* Answers that take longer than the gap leave half of their time to prompts. */
TEST(pace_lets_prompts_go_on_beside_slow_answers)
{
    pace p = {0};
    const made_up d = {100, 0, 1};
    int32_t n = settle(&p, &d, 512, 12);
    CHECK_MSG(n >= 32 && n <= 50, "%d rows", n);
    pace q = {0};
    const made_up slow = {100, 0, 50};
    n = settle(&q, &slow, 512, 12);
    CHECK_MSG(n >= 8 && n <= 10, "%d rows", n);
}

/* Where the fixed part alone is beyond the budget, fewer rows would save nothing. */
TEST(pace_takes_rows_that_are_nearly_free)
{
    pace p = {0};
    const made_up d = {2, 30, 0.01};
    CHECK(settle(&p, &d, 512, 12) > 16);
}

TEST(pace_forgets_an_accident)
{
    pace p = {0};
    const made_up d = {2, 0, 0.02};
    int32_t n = settle(&p, &d, 512, 12);
    pace_measure(&p, 4, n, 500, false);
    CHECK(pace_rows(&p, 512, 10) < n);
    for (int i = 0; i < 20; i++)
        settle(&p, &d, 512, 12);
    CHECK(settle(&p, &d, 512, 12) >= n);
}

TEST(pace_of_nothing_measured_and_of_few_rows)
{
    pace p = {0};
    CHECK_EQ(pace_rows(&p, 512, 10), 32);
    CHECK_EQ(pace_rows(&p, 5, 10), 5);
    CHECK_EQ(pace_rows(&p, 0, 10), 0);
    CHECK_EQ(pace_rows(&p, -3, 10), 0);
    CHECK(pace_budget_ms(&p, 12) == 12);
    pace_measure(&p, 0, 64, -1, false);
    pace_measure(&p, 0, 0, 1e300 * 1e300, false);
    CHECK(!p.n_measured && p.answers_ms == 0);
    pace_measure(&p, 0, 64, 64, false); /* prompts that have passes of their own */
    CHECK_EQ(pace_rows(&p, 512, 40), 40);
    CHECK_EQ(pace_rows(&p, 3, 40), 3);
    for (int i = 0; i < 3; i++)
        pace_measure(&p, 0, 64, 6400, true); /* the first of a shape does not count again */
    CHECK_EQ(pace_rows(&p, 512, 40), 40);
}

static int n_waits;

static void count_wait(device *d)
{
    (void)d;
    n_waits++;
}

/* A device that works on its own is waited for in passes with prompts beside answers, and in no
 * others. Passes that nobody waited for are not measured. */
TEST(pace_waits_for_a_device_that_works_on_its_own)
{
    AUTO_MODEL *m = toy_model_open(NULL, NULL);
    const carat_batch_options o = {.session = {.n_ctx = 512, .chunk = 32}, .n_slots = 2};
    static question q[2];
    static answer got[2];
    carat_error e = {0};
    carat_batch *b;
    m->dev->wait = count_wait;
    n_waits = 0;
    CHECK_OK(carat_batch_open(m, &o, &b, &e), e);
    for (int i = 0; i < 2; i++) {
        q[i].n = 100;
        for (int64_t k = 0; k < q[i].n; k++)
            q[i].ids[k] = 20 + (int32_t)k * (i + 1) % 150;
        q[i].o.max_tokens = i ? 3 : 40;
        carat_sampling_default(m, &q[i].o.sampling);
        q[i].o.sampling.temperature = 0;
        q[i].o.sampling.ignore_eog = true;
    }
    answer_submit(b, &q[0], &got[0]);
    while (!got[0].n)
        CHECK(carat_batch_step(b));
    for (int i = 0; i < 3; i++)
        CHECK(carat_batch_step(b));
    CHECK(!n_waits && !b->pace.n_measured && b->pace.answers_ms == 0);
    answer_submit(b, &q[1], &got[1]);
    CHECK(carat_batch_step(b));
    CHECK_EQ(n_waits, 1);
    while (carat_batch_step(b))
        ;
    CHECK(n_waits > 1 && b->pace.answers_ms == 0);
    CHECK_EQ(b->pace.n_measured, n_waits);
    CHECK_OK(got[1].st, got[1].e);
    carat_batch_close(b);
    m->dev->wait = NULL;
}
