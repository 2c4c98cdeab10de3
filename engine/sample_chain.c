/* sample_chain.c - chains of steps in any order, and mirostat. sample.h defines the steps.
 *
 * A chain begins on all logits: the first steps change some of them (penalties, DRY). The first
 * step that needs candidates collects them, by its own bound if it has one, so that few are
 * collected. From then on every step cuts or changes the list s->cand[0..n).
 */
#include "engine/sample_int.h"
#include "base/rng.h"

#include <float.h>
#include <math.h>

typedef struct chain {
    sampler *s;
    const carat_sampling *p;
    sample_state *at;
    float *x;    /* all logits; NULL: there are only candidates */
    bool listed; /* the candidates are collected */
    bool failed; /* a logit is NaN or +inf */
    int32_t n;
    double t; /* of the draw */
} chain;

/* ---- Which steps ------------------------------------------------------------------------- */

static bool is_on(const carat_sampling *p, carat_sampler stage)
{
    switch (stage) {
    case CARAT_SAMPLER_PENALTIES:
        return p->penalty_last_n != 0 &&
               (p->repeat_penalty != 1 || p->presence_penalty != 0 || p->frequency_penalty != 0);
    case CARAT_SAMPLER_DRY:
        return p->dry_multiplier > 0 && p->dry_base >= 1 && p->dry_last_n != 0;
    case CARAT_SAMPLER_TOP_N_SIGMA:
        return p->top_n_sigma > 0;
    case CARAT_SAMPLER_TOP_K:
        return p->top_k > 0;
    case CARAT_SAMPLER_TYPICAL_P:
        return p->typical_p > 0 && p->typical_p < 1;
    case CARAT_SAMPLER_TOP_P:
        return p->top_p < 1;
    case CARAT_SAMPLER_MIN_P:
        return p->min_p > 0;
    case CARAT_SAMPLER_XTC:
        return p->xtc_probability > 0 && p->xtc_threshold <= 0.5f;
    case CARAT_SAMPLER_TEMPERATURE:
        return true;
    case CARAT_SAMPLER_NONE:
        break;
    }
    return false;
}

/* The steps that are on, in their order. Returns their number. */
static int steps_of(const carat_sampling *p, carat_sampler stage[CARAT_SAMPLERS_MAX])
{
    int n = 0;
    for (int i = 0; i < CARAT_SAMPLERS_MAX; i++) {
        carat_sampler k = p->order[0] ? p->order[i] : (carat_sampler)(i + 1);
        if (!k)
            break;
        if (is_on(p, k))
            stage[n++] = k;
    }
    return n;
}

bool sample_uses_dry(const carat_sampling *p)
{
    carat_sampler stage[CARAT_SAMPLERS_MAX];
    for (int i = p->mirostat ? -1 : steps_of(p, stage) - 1; i >= 0; i--)
        if (stage[i] == CARAT_SAMPLER_DRY)
            return true;
    return false;
}

float sample_first_mu(const carat_sampling *p)
{
    return 2 * p->mirostat_tau;
}

bool chain_is_plain(const carat_sampling *p)
{
    return !p->order[0] && !p->mirostat && p->min_keep <= 1 && p->dynatemp_range <= 0 &&
           !is_on(p, CARAT_SAMPLER_DRY) && !is_on(p, CARAT_SAMPLER_TOP_N_SIGMA) &&
           !is_on(p, CARAT_SAMPLER_TYPICAL_P) && !is_on(p, CARAT_SAMPLER_XTC);
}

/* True if the steps take the largest logit whatever it is: temperature 0, and no step before it
 * that may drop the largest. */
static bool takes_largest(const carat_sampling *p, const carat_sampler *stage, int n)
{
    for (int i = 0; i < n; i++) {
        switch (stage[i]) {
        case CARAT_SAMPLER_TEMPERATURE:
            return p->temperature <= 0 && p->dynatemp_range <= 0;
        case CARAT_SAMPLER_TOP_N_SIGMA:
        case CARAT_SAMPLER_TOP_K:
        case CARAT_SAMPLER_TOP_P:
        case CARAT_SAMPLER_MIN_P:
            break;
        default:
            return false;
        }
    }
    return false;
}

int32_t chain_needs(const carat_sampling *p)
{
    carat_sampler stage[CARAT_SAMPLERS_MAX];
    int n = steps_of(p, stage);
    if (p->n_bias > 0 || p->n_top_logprobs > 0)
        return 0;
    if (p->mirostat)
        return p->temperature <= 0;
    if (takes_largest(p, stage, n))
        return 1;
    return n && stage[0] == CARAT_SAMPLER_TOP_K && p->top_k <= SAMPLE_NEEDS_MAX ? p->top_k : 0;
}

/* ---- Collecting -------------------------------------------------------------------------- */

static double sigma_bound(const chain *c)
{
    double n = 0, sum = 0, max = -INFINITY, spread = 0;
    int32_t all = c->listed ? c->n : c->s->n_vocab;
    for (int32_t i = 0; i < all; i++) {
        double z = c->listed ? c->s->cand[i].logit : c->x[i];
        if (z < -FLT_MAX)
            continue;
        n++;
        sum += z;
        max = z > max ? z : max;
    }
    for (int32_t i = 0; i < all; i++) {
        double z = c->listed ? c->s->cand[i].logit : c->x[i];
        if (z >= -FLT_MAX)
            spread += (z - sum / n) * (z - sum / n);
    }
    return n ? max - c->p->top_n_sigma * sqrt(spread / n) : 0;
}

/* Collects the candidates; those alone that the next step would keep, where that is simple. */
static void list_for(chain *c, carat_sampler next)
{
    const carat_sampling *p = c->p;
    sampler *s = c->s;
    if (c->listed || c->failed)
        return;
    if (!sample_block_maxima(s, c->x)) {
        c->failed = true;
        return;
    }
    int32_t best = sample_largest(s, c->x);
    if (best < 0)
        c->n = 0;
    else if (next == CARAT_SAMPLER_TOP_N_SIGMA)
        c->n = sample_collect_from(s, c->x, sigma_bound(c));
    else if (next == CARAT_SAMPLER_MIN_P && p->min_keep <= 1)
        c->n = sample_collect_from(s, c->x, c->x[best] + logf(p->min_p));
    else
        c->n = sample_collect(s, c->x, next == CARAT_SAMPLER_TOP_K ? p->top_k : 0);
    c->listed = true;
}

/* ---- Steps that change logits ------------------------------------------------------------ */

static void change_penalties(chain *c)
{
    const carat_sampling *p = c->p;
    sampler *s = c->s;
    if (!c->listed) {
        sample_penalties(s, p, c->x, c->at);
        return;
    }
    int64_t n_past = c->at->n_past;
    int64_t n = p->penalty_last_n < 0 || p->penalty_last_n > n_past ? n_past : p->penalty_last_n;
    const int32_t *id = c->at->past + (n_past - n);
    for (int64_t i = 0; i < n; i++)
        if (id[i] >= 0 && id[i] < s->n_vocab)
            s->count[id[i]]++;
    for (int32_t i = 0; i < c->n; i++) {
        int32_t count = s->count[s->cand[i].id];
        float *z = &s->cand[i].logit;
        if (!count)
            continue;
        *z = *z > 0 ? *z / p->repeat_penalty : *z * p->repeat_penalty;
        *z -= p->frequency_penalty * (float)count + p->presence_penalty;
    }
    for (int64_t i = 0; i < n; i++)
        if (id[i] >= 0 && id[i] < s->n_vocab)
            s->count[id[i]] = 0;
}

/* No penalty makes a ban of a token. */
static float penalised(const carat_sampling *p, float z, int32_t count)
{
    float to = z - dry_penalty(p, count);
    return to < -FLT_MAX && z >= -FLT_MAX ? -FLT_MAX : to;
}

static void change_dry(chain *c)
{
    const carat_sampling *p = c->p;
    sampler *s = c->s;
    const int32_t *past = c->at->past;
    int64_t n_past = c->at->n_past;
    if (!dry_count(c->at->breakers, p, past, n_past, s->n_vocab, s->match, s->count))
        return;
    for (int32_t i = 0; c->listed && i < c->n; i++)
        if (s->count[s->cand[i].id])
            s->cand[i].logit = penalised(p, s->cand[i].logit, s->count[s->cand[i].id]);
    for (int64_t i = n_past - dry_window(p, n_past); i < n_past; i++) {
        if (past[i] < 0 || past[i] >= s->n_vocab || !s->count[past[i]])
            continue;
        if (!c->listed)
            c->x[past[i]] = penalised(p, c->x[past[i]], s->count[past[i]]);
        s->count[past[i]] = 0;
    }
}

static double entropy_of(const candidate *c, int32_t n, double max, double sum)
{
    double h = 0, log_sum = log(sum); /* - sum p ln p, with ln p = z - max - ln sum */
    for (int32_t i = 0; i < n; i++) {
        double z = c[i].logit - max;
        h -= exp(z) * (z - log_sum);
    }
    return h / sum;
}

/* last: the draw comes next. */
static void change_temperature(chain *c, bool last)
{
    const carat_sampling *p = c->p;
    candidate *cand = c->s->cand;
    double t = p->temperature;
    if (p->dynatemp_range > 0 && c->n > 1) {
        double low = fmax(0, t - p->dynatemp_range), high = fmax(0, t + p->dynatemp_range);
        double max = sample_max(cand, c->n), sum = sample_sum_exp(cand, c->n, max);
        double h = entropy_of(cand, c->n, max, sum) / log(c->n);
        h = h < 0 ? 0 : h > 1 ? 1 : h; /* rounding */
        t = low + (high - low) * pow(h, p->dynatemp_exponent);
    }
    if (t <= 0) {
        c->n = sample_keep_top(c->s, c->n, 1);
    } else if (last) {
        c->t = t;
    } else {
        /* Of a tiny t, differences from the largest: the quotients themselves exceed a float. */
        double max = sample_max(cand, c->n), from = fabs(max / t) > FLT_MAX / 2 ? max : 0;
        for (int32_t i = 0; i < c->n; i++) {
            double z = (cand[i].logit - from) / t;
            cand[i].logit = z < -FLT_MAX ? -FLT_MAX : (float)z;
        }
    }
}

/* ---- Steps that drop candidates ---------------------------------------------------------- */

/* Drops candidates below `least`, but leaves min_keep. */
static void cut_below(chain *c, double least, int32_t min_keep)
{
    candidate *cand = c->s->cand;
    int32_t n = 0;
    for (int32_t i = 0; i < c->n; i++)
        n += cand[i].logit >= least;
    if (n < min_keep) {
        c->n = sample_keep_top(c->s, c->n, min_keep);
        return;
    }
    n = 0;
    for (int32_t i = 0; i < c->n; i++)
        if (cand[i].logit >= least)
            cand[n++] = cand[i];
    c->n = n;
}

static void cut_top_p(chain *c)
{
    candidate *cand = c->s->cand;
    double mass = (double)c->p->top_p * sample_sum_exp(cand, c->n, sample_max(cand, c->n));
    int32_t min_keep = c->p->min_keep < c->n ? c->p->min_keep : c->n;
    bool reached;
    c->n = sample_order(cand, c->n, mass, min_keep, &reached);
}

/* a before b: nearer to the centre, then as sample_better. */
static bool nearer(candidate a, candidate b, double centre)
{
    double da = fabs(centre - a.logit), db = fabs(centre - b.logit);
    return da < db || (da == db && sample_better(a, b));
}

static void sift_nearest(candidate *c, int32_t n, int32_t i, double centre)
{
    for (;;) {
        int32_t best = i, l = 2 * i + 1, r = l + 1;
        if (l < n && nearer(c[l], c[best], centre))
            best = l;
        if (r < n && nearer(c[r], c[best], centre))
            best = r;
        if (best == i)
            return;
        candidate t = c[i];
        c[i] = c[best];
        c[best] = t;
        i = best;
    }
}

/* |-ln p - H| is the distance of a logit from max + ln sum - H. */
static void cut_typical(chain *c)
{
    candidate *cand = c->s->cand;
    double max = sample_max(cand, c->n), sum = sample_sum_exp(cand, c->n, max), mass = 0;
    double centre = max + log(sum) - entropy_of(cand, c->n, max, sum);
    int32_t left = c->n, least = c->p->min_keep > 1 ? c->p->min_keep : 1;
    for (int32_t i = c->n / 2; i-- > 0;)
        sift_nearest(cand, c->n, i, centre);
    while (left > 0 && (c->n - left < least || mass <= c->p->typical_p)) {
        candidate t = cand[0];
        mass += exp(t.logit - max) / sum;
        cand[0] = cand[--left];
        sift_nearest(cand, left, 0, centre);
        cand[left] = t; /* taken candidates lie at the end */
    }
    int32_t n = c->n - left;
    for (int32_t i = 0; i < n; i++)
        cand[i] = cand[left + i];
    c->n = n;
}

static void cut_xtc(chain *c)
{
    const carat_sampling *p = c->p;
    candidate *cand = c->s->cand;
    /* A stream of its own: the draw is the same whether XTC is on or not. */
    uint64_t rng = rng_mix(c->at->rng ^ 0x787463u);
    int32_t n_likely = 0, last = -1, n = 0, keep = p->min_keep > 1 ? p->min_keep : 1;
    if (c->n < 2 || rng_unit(&rng) > p->xtc_probability)
        return;
    double max = sample_max(cand, c->n), sum = sample_sum_exp(cand, c->n, max);
    for (int32_t i = 0; i < c->n; i++) {
        if (exp(cand[i].logit - max) < p->xtc_threshold * sum)
            continue;
        n_likely++;
        if (last < 0 || sample_better(cand[last], cand[i]))
            last = i;
    }
    if (n_likely < 2 || c->n - (n_likely - 1) < keep)
        return;
    for (int32_t i = 0; i < c->n; i++)
        if (i == last || exp(cand[i].logit - max) < p->xtc_threshold * sum)
            cand[n++] = cand[i];
    c->n = n;
}

/* ---- The chain --------------------------------------------------------------------------- */

static void run_step(chain *c, carat_sampler stage, bool last)
{
    bool listed = c->listed;
    if (stage != CARAT_SAMPLER_PENALTIES && stage != CARAT_SAMPLER_DRY)
        list_for(c, stage);
    if (c->failed || (c->listed && !c->n))
        return;
    switch (stage) {
    case CARAT_SAMPLER_PENALTIES:
        change_penalties(c);
        break;
    case CARAT_SAMPLER_DRY:
        change_dry(c);
        break;
    case CARAT_SAMPLER_TOP_N_SIGMA:
        if (listed)
            cut_below(c, sigma_bound(c), 0);
        break;
    case CARAT_SAMPLER_TOP_K:
        c->n = sample_keep_top(c->s, c->n, c->p->top_k);
        break;
    case CARAT_SAMPLER_TYPICAL_P:
        cut_typical(c);
        break;
    case CARAT_SAMPLER_TOP_P:
        cut_top_p(c);
        break;
    case CARAT_SAMPLER_MIN_P:
        cut_below(c, sample_max(c->s->cand, c->n) + logf(c->p->min_p), c->p->min_keep);
        break;
    case CARAT_SAMPLER_XTC:
        cut_xtc(c);
        break;
    case CARAT_SAMPLER_TEMPERATURE:
        change_temperature(c, last);
        break;
    case CARAT_SAMPLER_NONE:
        break;
    }
}

static void take_largest(chain *c)
{
    int32_t best = sample_block_maxima(c->s, c->x) ? sample_largest(c->s, c->x) : -1;
    c->listed = true;
    c->n = best >= 0;
    if (best >= 0)
        c->s->cand[0] = (candidate){best, c->x[best]};
}

static void run_steps(chain *c)
{
    carat_sampler stage[CARAT_SAMPLERS_MAX];
    int n = steps_of(c->p, stage);
    for (int i = 0; i < n; i++) {
        if (!c->listed && takes_largest(c->p, stage + i, n - i)) {
            take_largest(c);
            return;
        }
        run_step(c, stage[i], i == n - 1);
    }
    list_for(c, CARAT_SAMPLER_NONE);
}

/* ---- Mirostat ---------------------------------------------------------------------------- */

/* Zipf's exponent from the best probabilities: the slope of ln(p_i / p_i+1) over ln((i + 2) /
 * (i + 1)), i from 0. best: in descending order. */
static double zipf_exponent(const candidate *best, int32_t n, double t)
{
    double tb = 0, tt = 0;
    for (int32_t i = 0; i + 1 < n; i++) {
        double x = log((i + 2.0) / (i + 1.0)), b = (best[i].logit - best[i + 1].logit) / t;
        tb += x * b;
        tt += x * x;
    }
    return tt > 0 ? tb / tt : 0;
}

/* The number of candidates whose expected surprise is mu, of a Zipf distribution over n_vocab. */
static int32_t zipf_count(double exponent, double mu, int32_t n_vocab, int32_t n)
{
    double eps = exponent - 1, bits = exp2(mu);
    double k = fabs(eps) < 1e-9 ? bits / log(n_vocab) : eps * bits / (1 - pow(n_vocab, -eps));
    k = pow(k, 1 / exponent);
    return k < 1 ? 1 : k < n ? (int32_t)k : n;
}

static void run_mirostat(chain *c)
{
    enum { OBSERVED = 100 };
    const carat_sampling *p = c->p;
    sampler *s = c->s;
    bool reached;
    take_largest(c);
    c->t = p->temperature;
    if (!c->n || c->t <= 0) {
        c->t = 1;
        return;
    }
    double max = s->cand[0].logit, sum = 0;
    if (p->mirostat == 1) {
        int32_t n = sample_collect(s, c->x, OBSERVED), all = 0;
        n = sample_order(s->cand, n, INFINITY, 1, &reached);
        double exponent = zipf_exponent(s->cand, n, c->t);
        for (int32_t i = 0; i < s->n_vocab; i++)
            all += c->x[i] >= -FLT_MAX;
        c->n = sample_collect(s, c->x, zipf_count(exponent, c->at->mu, s->n_vocab, all));
        return;
    }
    for (int32_t i = 0; i < s->n_vocab; i++)
        sum += exp((c->x[i] - max) / c->t);
    /* -log2 p <= mu, with ln p = (z - max) / t - ln sum. */
    double least = max + c->t * (log(sum) - c->at->mu * log(2));
    c->n = sample_collect_from(s, c->x, least < max ? least : max);
}

/* ---- The doors --------------------------------------------------------------------------- */

int32_t chain_survivors(sampler *s, const carat_sampling *p, float *x, sample_state *at, double *t)
{
    chain c = {.s = s, .p = p, .at = at, .x = x, .t = 1};
    sample_bias(p, x);
    if (p->mirostat)
        run_mirostat(&c);
    else
        run_steps(&c);
    *t = c.t;
    return c.failed ? 0 : c.n;
}

int32_t chain_pick(sampler *s, const carat_sampling *p, float *x, sample_state *at)
{
    double t, q;
    int32_t n = chain_survivors(s, p, x, at, &t), id = sample_draw(s->cand, n, t, &at->rng, &q);
    if (p->mirostat && id >= 0)
        at->mu -= p->mirostat_eta * ((float)-log2(q) - p->mirostat_tau);
    return id;
}

int32_t chain_pick_among(sampler *s, const carat_sampling *p, int32_t n, sample_state *at)
{
    chain c = {.s = s, .p = p, .at = at, .listed = true, .n = n, .t = 1};
    if (!p->mirostat) /* with mirostat, temperature 0 */
        run_steps(&c);
    return sample_draw(s->cand, c.n, c.t, &at->rng, NULL);
}
