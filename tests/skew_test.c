/* skew_test.c - models of `carat synth --expert-skew S`: experts are used by the law that S names,
 * counted in passes over random tokens. A router's choice is counted on its way out of the device.
 */
#include "tests/test.h"
#include "apps/commands.h"
#include "base/rng.h"
#include "engine/engine_int.h"

#include <math.h>
#include <stdlib.h>

enum { LAYERS = 3, EXPERTS = 64, USED = 8, TOKENS = 2048, TEXTS = 2 };

static const device_ops *inner;
static uint64_t count[LAYERS][EXPERTS];

static void count_routes(pass *p, routing r)
{
    for (int32_t i = 0; i < r.rows * r.k && !p->dry; i++)
        count[p->il][r.id[i]]++;
}

static void route(pass *p, routing r, mat logits, const route_rule *rule)
{
    inner->route(p, r, logits, rule);
    count_routes(p, r);
}

static void router(pass *p, routing *r, mat x, const weight *w, const route_rule *rule)
{
    inner->router(p, r, x, w, rule);
    count_routes(p, *r);
}

/* Random texts, each on its own. */
static void run_texts(const char *path, int32_t n_texts)
{
    AUTO_MODEL *m;
    carat_session *s;
    uint64_t rng = test_seed();
    err e = {0};
    CHECK_OK(
        carat_model_open(path, &(carat_model_options){.device = "cpu", .n_threads = 2}, &m, &e), e);
    device_ops ops = *m->dev->op;
    inner = m->dev->op;
    ops.route = route;
    ops.router = inner->router ? router : NULL;
    m->dev->op = &ops;
    memset(count, 0, sizeof count);
    CHECK_OK(carat_session_open(m, &(carat_session_options){.n_ctx = TOKENS, .checkpoint_mb = -1},
                                &s, &e),
             e);
    for (int32_t t = 0; t < n_texts; t++) {
        int32_t id[TOKENS];
        for (int32_t i = 0; i < TOKENS; i++)
            id[i] = (int32_t)rng_below(&rng, 2048);
        CHECK_OK(carat_eval(s, id, TOKENS, NULL, NULL, &e), e);
    }
    carat_session_close(s);
    m->dev->op = inner;
}

static int descending(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x < y) - (x > y);
}

/* The exponent of the Zipf law under which the commoner half of n experts has the part of all uses
 * that it has in used[0..n): at least 0, at most 4; -1: nothing was counted. Sorts used. */
static double exponent_of(uint64_t *used, int32_t n)
{
    double half = 0, all = 0, lo = 0, hi = 4;
    qsort(used, (size_t)n, sizeof *used, descending);
    for (int32_t i = 0; i < n; i++) {
        all += (double)used[i];
        half += i < n / 2 ? (double)used[i] : 0;
    }
    if (all <= 0)
        return -1;
    for (int round = 0; round < 60; round++) {
        double s = (lo + hi) / 2, first = 0, sum = 0;
        for (int32_t i = 0; i < n; i++) {
            double p = pow(i + 1, -s);
            sum += p;
            first += i < n / 2 ? p : 0;
        }
        if (first / sum < half / all)
            lo = s;
        else
            hi = s;
    }
    return (lo + hi) / 2;
}

/* Even use has an exponent above 0: a tiny model's norms differ by a third from one entry to the
 * next, so its routers' rows do not count alike. */
TEST(skewed_models_use_experts_by_the_law_asked_for)
{
    static const struct {
        const char *skew;
        double want, within;
    } cases[] = {{"0", 0, 0.25}, {"0.8", 0.8, 0.1}, {"1.2", 1.2, 0.15}};
    const char *path = test_temp("many.gguf");
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        const char *argv[] = {"tiny-many", path, "--type", "q8_0", "--expert-skew", cases[k].skew};
        CHECK_EQ(command_synth.run(&command_synth, 6, (char **)argv), 0);
        run_texts(path, TEXTS);
        for (int il = 0; il < LAYERS - 1; il++) { /* the last one computes the last row alone */
            double s = exponent_of(count[il], EXPERTS);
            CHECK_NEAR(s, cases[k].want, cases[k].within);
        }
    }
}
