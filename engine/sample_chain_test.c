/* sample_chain_test.c - every step of sampling, in any order, against its formula over a full sort
 * in double precision. The survivors and their probabilities are compared, not draws.
 */
#include "base/mem.h"
#include "base/rng.h"
#include "engine/sample_int.h"
#include "tests/test.h"

enum { MOST = 600 };

/* ---- The definitions --------------------------------------------------------------------- */

typedef struct item {
    int32_t id;
    double z, key;
} item;

typedef struct list {
    item at[MOST];
    int n;
    double t;
} list;

static int by_z(const void *a, const void *b)
{
    const item *x = a, *y = b;
    return x->z != y->z ? (x->z > y->z ? -1 : 1) : x->id - y->id;
}

static int by_key(const void *a, const void *b)
{
    const item *x = a, *y = b;
    return x->key != y->key ? (x->key < y->key ? -1 : 1) : by_z(a, b);
}

static void sort(list *l)
{
    qsort(l->at, (size_t)l->n, sizeof *l->at, by_z);
}

static double prob(const list *l, int i)
{
    double sum = 0, max = -INFINITY;
    for (int k = 0; k < l->n; k++)
        max = l->at[k].z > max ? l->at[k].z : max;
    for (int k = 0; k < l->n; k++)
        sum += exp(l->at[k].z - max);
    return exp(l->at[i].z - max) / sum;
}

static double entropy(const list *l)
{
    double h = 0;
    for (int i = 0; i < l->n; i++) {
        double p = prob(l, i);
        h -= p > 0 ? p * log(p) : 0;
    }
    return h;
}

static int at_least(const list *l, const carat_sampling *p, int n)
{
    int keep = p->min_keep > 1 ? p->min_keep : 1;
    n = n < keep ? keep : n;
    return n < l->n ? n : l->n;
}

/* The longest suffix of past[0..n) that is also a suffix of past[0..end), in tokens. */
static int64_t repeat_at(const int32_t *past, int64_t n, int64_t end)
{
    int64_t m = 0;
    while (m < end && past[n - 1 - m] == past[end - 1 - m])
        m++;
    return m;
}

static void define_penalties(list *l, const carat_sampling *p, const int32_t *past, int64_t n)
{
    int64_t from = p->penalty_last_n < 0 || p->penalty_last_n > n ? 0 : n - p->penalty_last_n;
    for (int i = 0; i < l->n; i++) {
        int64_t count = 0;
        for (int64_t k = from; k < n; k++)
            count += past[k] == l->at[i].id;
        if (!count)
            continue;
        float z = (float)l->at[i].z; /* logits are floats */
        z = z > 0 ? z / p->repeat_penalty : z * p->repeat_penalty;
        z -= p->frequency_penalty * (float)count + p->presence_penalty;
        l->at[i].z = z;
    }
}

static void define_dry(list *l, const carat_sampling *p, const int32_t *past, int64_t n)
{
    int64_t from = p->dry_last_n < 0 || p->dry_last_n > n ? 0 : n - p->dry_last_n;
    const int32_t *seen = past + from;
    n -= from;
    for (int i = 0; i < l->n && n > p->dry_allowed_length; i++) {
        int64_t most = -1;
        for (int64_t end = 1; end < n; end++) {
            int64_t m = seen[end] == l->at[i].id ? repeat_at(seen, n, end) : -1;
            most = m > most ? m : most;
        }
        if (most >= p->dry_allowed_length)
            l->at[i].z = (float)(l->at[i].z -
                                 (float)(p->dry_multiplier *
                                         pow(p->dry_base, (double)(most - p->dry_allowed_length))));
    }
}

static void define_step(list *l, const carat_sampling *p, carat_sampler what, const int32_t *past,
                        int64_t n_past, double u)
{
    double sum = 0, mean = 0, spread = 0;
    int kept = 0;
    sort(l);
    switch (what) {
    case CARAT_SAMPLER_PENALTIES:
        define_penalties(l, p, past, n_past);
        break;
    case CARAT_SAMPLER_DRY:
        if (p->dry_multiplier > 0 && p->dry_base >= 1 && p->dry_last_n)
            define_dry(l, p, past, n_past);
        break;
    case CARAT_SAMPLER_TOP_N_SIGMA:
        if (p->top_n_sigma <= 0)
            break;
        for (int i = 0; i < l->n; i++)
            mean += l->at[i].z / l->n;
        for (int i = 0; i < l->n; i++)
            spread += (l->at[i].z - mean) * (l->at[i].z - mean) / l->n;
        while (kept < l->n && l->at[kept].z >= l->at[0].z - p->top_n_sigma * sqrt(spread))
            kept++;
        l->n = kept;
        break;
    case CARAT_SAMPLER_TOP_K:
        if (p->top_k > 0 && p->top_k < l->n)
            l->n = p->top_k;
        break;
    case CARAT_SAMPLER_TYPICAL_P:
        if (!(p->typical_p > 0 && p->typical_p < 1))
            break;
        for (int i = 0; i < l->n; i++)
            l->at[i].key = fabs(-log(prob(l, i)) - entropy(l));
        qsort(l->at, (size_t)l->n, sizeof *l->at, by_key);
        while (kept < l->n && sum <= p->typical_p)
            sum += prob(l, kept++);
        l->n = at_least(l, p, kept);
        break;
    case CARAT_SAMPLER_TOP_P:
        if (p->top_p >= 1)
            break;
        while (kept < l->n && (!kept || sum < p->top_p))
            sum += prob(l, kept++);
        l->n = at_least(l, p, kept);
        break;
    case CARAT_SAMPLER_MIN_P:
        while (kept < l->n &&
               (p->min_p <= 0 || l->at[kept].z >= (float)l->at[0].z + logf(p->min_p)))
            kept++;
        l->n = at_least(l, p, kept);
        break;
    case CARAT_SAMPLER_XTC:
        while (kept < l->n && prob(l, kept) >= p->xtc_threshold)
            kept++;
        if (!(p->xtc_probability > 0) || p->xtc_threshold > 0.5f || u > p->xtc_probability ||
            kept < 2 || l->n - (kept - 1) < (p->min_keep > 1 ? p->min_keep : 1))
            break;
        memmove(l->at, l->at + kept - 1, (size_t)(l->n - kept + 1) * sizeof *l->at);
        l->n -= kept - 1;
        break;
    case CARAT_SAMPLER_TEMPERATURE:
        l->t = p->temperature;
        if (p->dynatemp_range > 0 && l->n > 1) {
            double lo = fmax(0, l->t - p->dynatemp_range), hi = l->t + p->dynatemp_range;
            l->t = lo + (hi - lo) * pow(entropy(l) / log(l->n), p->dynatemp_exponent);
        }
        if (l->t <= 0)
            l->n = 1;
        for (int i = 0; i < l->n && l->t > 0; i++)
            l->at[i].z /= l->t;
        break;
    case CARAT_SAMPLER_NONE:
        break;
    }
}

static void define_mirostat(list *l, const carat_sampling *p, double mu, int32_t n_vocab)
{
    double tb = 0, tt = 0;
    int kept = 1;
    sort(l);
    if (p->temperature <= 0) {
        l->n = 1;
        return;
    }
    for (int i = 0; i < l->n; i++)
        l->at[i].z /= p->temperature;
    if (p->mirostat == 2) {
        while (kept < l->n && -log2(prob(l, kept)) <= mu)
            kept++;
        l->n = kept;
        return;
    }
    for (int i = 0; i < l->n - 1 && i < 99; i++) {
        double x = log((i + 2.0) / (i + 1));
        tb += x * log(prob(l, i) / prob(l, i + 1));
        tt += x * x;
    }
    double s = tt > 0 ? tb / tt : 0, eps = s - 1;
    double k = pow(eps * pow(2, mu) / (1 - pow(n_vocab, -eps)), 1 / s);
    l->n = l->n == 1 || k < 1 ? 1 : k < l->n ? (int)k : l->n;
}

/* ---- Comparing --------------------------------------------------------------------------- */

typedef struct fixture {
    sampler s;
    float x[MOST], y[MOST];
    int32_t n, past[80];
    int64_t n_past;
} fixture;

static void open_case(fixture *f, int32_t n, uint64_t *rng)
{
    err e = {0};
    f->n = n;
    CHECK_OK(sampler_init(&f->s, n, &e), e);
    CHECK_OK(sampler_reserve(&f->s, 80, &e), e);
    float width = (float[]){0.5f, 2, 6}[rng_below(rng, 3)];
    for (int32_t i = 0; i < n; i++)
        f->x[i] = (float)rng_normal(rng) * width;
    for (int32_t i = 0; i < n && rng_below(rng, 4) == 0; i++)
        f->x[i] = roundf(f->x[i]); /* ties */
    for (int32_t i = 1; i < n && rng_below(rng, 4) == 0; i += 3)
        f->x[i] = -INFINITY; /* bans */
    f->n_past = (int64_t)rng_below(rng, 81);
    int32_t kinds = n < 4 || rng_below(rng, 2) ? n : 4; /* few kinds: many repetitions */
    for (int64_t i = 0; i < f->n_past; i++)
        f->past[i] = (int32_t)rng_below(rng, (uint64_t)kinds);
}

static void draw_settings(carat_sampling *p, uint64_t *rng)
{
    static const float some[] = {0, 0.1f, 0.3f, 0.5f, 0.8f, 0.95f, 1};
#define ONE_OF(...)                                                                                \
    ((float[]){__VA_ARGS__}[rng_below(rng, sizeof((float[]){__VA_ARGS__}) / sizeof(float))])
    *p = (carat_sampling){.temperature = ONE_OF(1, 0.5f, 2, 0),
                          .top_k = (int32_t)ONE_OF(0, 1, 5, 40, 1000),
                          .top_p = ONE_OF(1, 1, 0.95f, 0.4f, 0),
                          .min_p = ONE_OF(0, 0, 0.05f, 0.4f, 1),
                          .repeat_penalty = ONE_OF(1, 1.3f, 0.7f),
                          .presence_penalty = ONE_OF(0, 0.5f),
                          .frequency_penalty = ONE_OF(0, 0.2f),
                          .penalty_last_n = (int32_t)ONE_OF(-1, 0, 10, 200),
                          .typical_p = some[rng_below(rng, 7)],
                          .top_n_sigma = ONE_OF(-1, 0, 0.7f, 1.5f, 3),
                          .xtc_probability = ONE_OF(0, 0.5f, 1),
                          .xtc_threshold = ONE_OF(0, 0.02f, 0.1f, 0.3f, 0.6f),
                          .dynatemp_range = ONE_OF(0, 0, 0.3f, 3),
                          .dynatemp_exponent = ONE_OF(1, 0.5f, 2, 0),
                          .min_keep = (int32_t)ONE_OF(0, 0, 1, 3, 50),
                          .dry_multiplier = ONE_OF(0, 0.8f, 2),
                          .dry_base = ONE_OF(1.75f, 1, 0.5f, 1.1f),
                          .dry_allowed_length = (int32_t)ONE_OF(2, 0, 1, 5),
                          .dry_last_n = (int32_t)ONE_OF(-1, 0, 20, 500)};
#undef ONE_OF
    if (rng_below(rng, 2)) { /* an order of some of the steps */
        carat_sampler all[CARAT_SAMPLERS_MAX];
        int n = 1 + (int)rng_below(rng, CARAT_SAMPLERS_MAX);
        for (int i = 0; i < CARAT_SAMPLERS_MAX; i++)
            all[i] = (carat_sampler)(i + 1);
        for (int i = 0; i < n; i++) {
            int k = i + (int)rng_below(rng, (uint64_t)(CARAT_SAMPLERS_MAX - i));
            carat_sampler was = all[i];
            p->order[i] = all[i] = all[k];
            all[k] = was;
        }
    }
}

static void define(const fixture *f, const carat_sampling *p, const sample_state *at, list *l)
{
    uint64_t rng = rng_mix(at->rng ^ 0x787463u);
    double u = rng_unit(&rng);
    l->n = 0;
    l->t = 1;
    for (int32_t i = 0; i < f->n; i++)
        if (isfinite(f->x[i]))
            l->at[l->n++] = (item){i, f->x[i], 0};
    if (p->mirostat) {
        define_mirostat(l, p, at->mu, f->n);
        return;
    }
    for (int i = 0; i < CARAT_SAMPLERS_MAX && l->n; i++) {
        carat_sampler what = p->order[0] ? p->order[i] : (carat_sampler)(i + 1);
        if (what == CARAT_SAMPLER_NONE)
            break;
        define_step(l, p, what, f->past, f->n_past, u);
    }
}

/* The list that the sampler has left equals the defined one. */
static void same_survivors(const fixture *f, list *want, int32_t n, double t)
{
    list got = {.n = n};
    CHECK_EQ(n, want->n);
    for (int32_t i = 0; i < n; i++)
        got.at[i] = (item){f->s.cand[i].id, f->s.cand[i].logit / t, 0};
    sort(&got);
    sort(want);
    for (int32_t i = 0; i < n; i++) {
        CHECK_MSG(fabs(prob(&got, i) - prob(want, i)) <= 1e-5,
                  "token %d: probability %g, expected %g (t %g, logit %g)", got.at[i].id,
                  prob(&got, i), prob(want, i), t, (double)f->s.cand[i].logit);
        bool found = false;
        for (int32_t k = 0; k < n; k++)
            found |= got.at[k].id == want->at[i].id;
        CHECK_MSG(found, "token %d is missing", want->at[i].id);
    }
}

PLAIN_TEST(sampling_steps_are_their_definitions_in_any_order)
{
    AUTO_MEM fixture *f = mem_calloc(1, sizeof *f);
    AUTO_MEM list *want = mem_calloc(1, sizeof *want);
    uint64_t rng = test_seed();
    CHECK(f && want);
    for (int round = 0; round < 1500; round++) {
        carat_sampling p;
        err e = {0};
        double t;
        open_case(f, (int32_t[]){1, 2, 3, 64, 65, 130}[rng_below(&rng, 6)], &rng);
        draw_settings(&p, &rng);
        CHECK_OK(sample_check(&p, f->n, &e), e);
        sample_state at = {.past = f->past, .n_past = f->n_past, .rng = rng_next(&rng)};
        define(f, &p, &at, want);
        memcpy(f->y, f->x, sizeof f->x);
        int32_t n = chain_survivors(&f->s, &p, f->y, &at, &t);
        same_survivors(f, want, n, t);
        for (int32_t i = 0; i < f->n; i++)
            CHECK_EQ(f->s.count[i], 0);
        /* A plain chain takes the short way: it draws from the same tokens. */
        memcpy(f->y, f->x, sizeof f->x);
        int32_t id = sample_pick(&f->s, &p, f->y, &at);
        bool found = id < 0 && !n;
        for (int32_t i = 0; i < want->n; i++)
            found |= want->at[i].id == id;
        CHECK(found);
        sampler_free(&f->s);
    }
}

TEST(mirostat_is_its_definition_and_follows_its_surprise)
{
    AUTO_MEM fixture *f = mem_calloc(1, sizeof *f);
    AUTO_MEM list *want = mem_calloc(1, sizeof *want);
    uint64_t rng = test_seed();
    CHECK(f && want);
    for (int round = 0; round < 300; round++) {
        carat_sampling p = {.temperature = round % 5 ? 0.4f + (float)(round % 3) : 0,
                            .top_p = 0.3f, /* has no effect */
                            .top_k = 2,
                            .repeat_penalty = 1.5f,
                            .penalty_last_n = -1,
                            .mirostat = 1 + round % 2,
                            .mirostat_tau = (float)(round % 7),
                            .mirostat_eta = 0.3f};
        err e = {0};
        double t;
        open_case(f, (int32_t[]){1, 2, 65, MOST}[rng_below(&rng, 4)], &rng);
        CHECK_OK(sample_check(&p, f->n, &e), e);
        sample_state at = {.past = f->past, .n_past = f->n_past, .mu = sample_first_mu(&p)};
        for (int i = 0; i < 4; i++) {
            at.rng = rng_next(&rng);
            sample_state copy = at;
            define(f, &p, &at, want);
            memcpy(f->y, f->x, sizeof f->x);
            int32_t n = chain_survivors(&f->s, &p, f->y, &copy, &t);
            same_survivors(f, want, n, t);
            memcpy(f->y, f->x, sizeof f->x);
            int32_t id = sample_pick(&f->s, &p, f->y, &copy);
            int at_id = 0;
            while (at_id < want->n && want->at[at_id].id != id)
                at_id++;
            CHECK(at_id < want->n);
            double q = p.temperature > 0 ? prob(want, at_id) : 1;
            CHECK_NEAR(copy.mu, at.mu - p.mirostat_eta * (-log2(q) - p.mirostat_tau), 1e-4);
            at.mu = copy.mu;
        }
        sampler_free(&f->s);
    }
}

/* What a device hands over: the largest logits in any order. */
TEST(chains_take_among_the_largest_what_they_take_among_all)
{
    AUTO_MEM fixture *f = mem_calloc(1, sizeof *f);
    AUTO_MEM candidate *c = mem_calloc(MOST, sizeof *c);
    uint64_t rng = test_seed();
    int few = 0;
    CHECK(f && c);
    for (int round = 0; round < 3000; round++) {
        carat_sampling p;
        open_case(f, MOST, &rng);
        draw_settings(&p, &rng);
        if (rng_below(&rng, 2)) /* chains that a device can serve */
            p.dry_multiplier = p.top_n_sigma = p.presence_penalty = p.frequency_penalty = 0,
            p.repeat_penalty = 1;
        int32_t k = sample_needs(&p), n = 0;
        sample_state all = {.past = f->past, .n_past = f->n_past, .rng = rng_next(&rng)};
        sample_state among = all;
        float bound = -INFINITY;
        memcpy(f->y, f->x, sizeof f->x);
        int32_t id = sample_pick(&f->s, &p, f->y, &all);
        for (int32_t i = 0; i < MOST && k; i++) { /* the largest with at least k as large */
            int32_t reach = 0;
            for (int32_t j = 0; j < MOST; j++)
                reach += f->x[j] >= f->x[i];
            if (reach >= k && f->x[i] > bound)
                bound = f->x[i];
        }
        for (int32_t i = MOST; i-- > 0;)
            if (f->x[i] >= bound)
                c[n++] = (candidate){i, f->x[i]};
        if (k)
            CHECK_EQ(sample_pick_among(&f->s, &p, c, n, &among), id);
        few += k > 0;
        sampler_free(&f->s);
        round += k > 0 ? 9 : 0; /* the search for the bound is slow */
    }
    CHECK(few > 50);
}

TEST(breakers_are_read_where_dry_is_a_step)
{
    carat_sampling p = {.top_p = 1, .repeat_penalty = 1, .dry_base = 2, .dry_last_n = -1};
    CHECK(!sample_uses_dry(&p));
    p.dry_multiplier = 0.8f;
    CHECK(sample_uses_dry(&p));
    p.order[0] = CARAT_SAMPLER_XTC;
    CHECK(!sample_uses_dry(&p));
    p.order[1] = CARAT_SAMPLER_DRY;
    CHECK(sample_uses_dry(&p));
    p.mirostat = 2;
    CHECK(!sample_uses_dry(&p));
}

TEST(sampling_settings_that_make_no_sense_are_refused)
{
    carat_sampling good = {.top_p = 1, .repeat_penalty = 1};
    err e = {0};
    CHECK_OK(sample_check(&good, 10, &e), e);
#define REFUSED(field, value)                                                                      \
    do {                                                                                           \
        carat_sampling p = good;                                                                   \
        p.field = value;                                                                           \
        err_clear(&e);                                                                             \
        CHECK_MSG(sample_check(&p, 10, &e) == E_ARG, "%s", #field " = " #value);                   \
        CHECK(*e.text);                                                                            \
    } while (0)
    REFUSED(typical_p, NAN);
    REFUSED(typical_p, -0.1f);
    REFUSED(typical_p, 1.1f);
    REFUSED(top_n_sigma, NAN);
    REFUSED(top_n_sigma, INFINITY);
    REFUSED(xtc_probability, 2);
    REFUSED(xtc_threshold, NAN);
    REFUSED(dynatemp_range, -1);
    REFUSED(dynatemp_range, INFINITY);
    REFUSED(dynatemp_exponent, NAN);
    REFUSED(min_keep, -1);
    REFUSED(dry_multiplier, -1);
    REFUSED(dry_multiplier, INFINITY);
    REFUSED(dry_base, NAN);
    REFUSED(dry_allowed_length, -1);
    REFUSED(dry_last_n, -2);
    REFUSED(n_dry_breakers, 1); /* without texts */
    REFUSED(n_dry_breakers, -1);
    REFUSED(mirostat, 3);
    REFUSED(mirostat, -1);
    REFUSED(mirostat_tau, NAN);
    REFUSED(mirostat_tau, -1);
    REFUSED(mirostat_eta, 1e9f);
    REFUSED(order[0], (carat_sampler)77);
    REFUSED(order[0], (carat_sampler)-1);
    good.order[0] = CARAT_SAMPLER_TOP_K;
    REFUSED(order[1], CARAT_SAMPLER_TOP_K);
#undef REFUSED
    for (int i = 1; i <= CARAT_SAMPLERS_MAX; i++)
        CHECK_EQ(carat_sampler_named(carat_sampler_name((carat_sampler)i)), i);
    CHECK_EQ(carat_sampler_named("nucleus"), CARAT_SAMPLER_TOP_P);
    CHECK_EQ(carat_sampler_named("temp"), CARAT_SAMPLER_TEMPERATURE);
    CHECK_EQ(carat_sampler_named("top-k"), CARAT_SAMPLER_TOP_K);
    CHECK_EQ(carat_sampler_named("y"), CARAT_SAMPLER_TYPICAL_P);
    CHECK_EQ(carat_sampler_named(""), CARAT_SAMPLER_NONE);
    CHECK_EQ(carat_sampler_named("adaptive_p_and_more_than_fits"), CARAT_SAMPLER_NONE);
    CHECK(!carat_sampler_name(CARAT_SAMPLER_NONE) && !carat_sampler_name((carat_sampler)99));
}
