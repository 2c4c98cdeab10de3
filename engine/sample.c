/* sample.c - see sample.h for the chain. Here: selection, and the chain of bias, penalties, top_k,
 * top_p, min_p and temperature in this order. sample_chain.c has all other chains.
 *
 * The one idea: 262144 logits are never sorted. The k largest are found by counting. Block maxima
 * give a lower bound that few logits reach; a radix selection among these finds the k-th largest
 * exactly, ties by lowest id. Only the remaining candidates are ordered, with a heap, so top_p
 * without top_k orders no more than it keeps. Except for the heap all steps are linear in n_vocab.
 * The same input gives the same token on every machine with the same exp().
 */
#include "engine/sample_int.h"
#include "base/mem.h"
#include "base/rng.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    NUCLEUS = 256,   /* candidates that top_p usually needs at most */
    BLOCK = 64,      /* logits per block maximum: one vector loop */
    RADIX_BITS = 11, /* 3 rounds for 32 bits; 8 KiB of counters fit the L1 cache */
    RADIX_N = 1 << RADIX_BITS
};

status sampler_init(sampler *s, int32_t n_vocab, err *e)
{
    size_t n = (size_t)n_vocab, n_blocks = (n + BLOCK - 1) / BLOCK;

    *s = (sampler){.n_vocab = n_vocab};
    s->cand = mem_calloc(n, sizeof *s->cand);
    s->count = mem_calloc(n, sizeof *s->count);
    s->bucket = mem_calloc(RADIX_N, sizeof *s->bucket);
    s->block = mem_calloc(n_blocks, sizeof *s->block);
    if (!s->cand || !s->count || !s->bucket || !s->block) {
        sampler_free(s);
        return err_memory(e, "the sampler", n * (sizeof *s->cand + sizeof *s->count));
    }
    return OK;
}

status sampler_reserve(sampler *s, int64_t n_past, err *e)
{
    if (n_past <= s->n_match)
        return OK;
    int32_t *more = mem_calloc((size_t)n_past, sizeof *more);
    if (!more)
        return err_memory(e, "the sampler", (size_t)n_past * sizeof *more);
    mem_free(s->match);
    s->match = more;
    s->n_match = n_past;
    return OK;
}

void sampler_free(sampler *s)
{
    dry_close(s->kept);
    mem_free(s->kept_for);
    mem_free(s->match);
    mem_free(s->block);
    mem_free(s->bucket);
    mem_free(s->count);
    mem_free(s->cand);
    *s = (sampler){0};
}

uint64_t sample_rng_at(uint32_t seed, int64_t pos)
{
    /* SplitMix64's state advances by a constant, so its i-th output needs no predecessors. */
    return rng_mix(0x6361726174u + seed) + (uint64_t)pos * 0x9e3779b97f4a7c15u;
}

/* ---- Selection ------------------------------------------------------------------------- */

/* An order-preserving integer: a > b exactly if key_of(a) > key_of(b); -0 equals +0. */
static uint32_t key_of(float f)
{
    uint32_t u;
    f += 0.0f;
    memcpy(&u, &f, 4);
    return u ^ (u & 0x80000000u ? 0xffffffffu : 0x80000000u);
}

/* The key of the k-th largest of n values at x, x + stride, ... (1 <= k <= n), and the number of
 * values equal to it among the k largest. */
static uint32_t kth_key(const float *x, size_t stride, int32_t n, int32_t k, uint32_t *bucket,
                        int32_t *n_equal)
{
    static const int shift[3] = {32 - RADIX_BITS, 32 - 2 * RADIX_BITS, 0};
    uint32_t prefix = 0, mask = 0, need = (uint32_t)k;
    for (int round = 0; round < 3; round++) {
        uint32_t low = round == 2 ? (1u << (32 - 2 * RADIX_BITS)) - 1 : RADIX_N - 1;
        memset(bucket, 0, RADIX_N * sizeof *bucket);
        for (int32_t i = 0; i < n; i++) {
            uint32_t key = key_of(x[(size_t)i * stride]);
            if ((key & mask) == prefix)
                bucket[key >> shift[round] & low]++;
        }
        uint32_t b = low;
        while (b > 0 && bucket[b] < need)
            need -= bucket[b--];
        prefix |= b << shift[round];
        mask |= low << shift[round];
    }
    *n_equal = (int32_t)need;
    return prefix;
}

int32_t sample_keep_top(sampler *s, int32_t n, int32_t k)
{
    if (k >= n)
        return n;
    int32_t n_equal, kept = 0;
    uint32_t key =
        kth_key(&s->cand[0].logit, sizeof *s->cand / sizeof(float), n, k, s->bucket, &n_equal);
    for (int32_t i = 0; i < n; i++) {
        uint32_t ki = key_of(s->cand[i].logit);
        if (ki > key || (ki == key && n_equal-- > 0))
            s->cand[kept++] = s->cand[i];
    }
    return kept;
}

bool sample_block_maxima(sampler *s, const float *x)
{
    int32_t n = s->n_vocab;
    int bad = 0;
    for (int32_t b = 0; b * BLOCK < n; b++) {
        const float *at = x + (size_t)b * BLOCK;
        int32_t len = n - b * BLOCK < BLOCK ? n - b * BLOCK : BLOCK;
        float m[16];
        for (int j = 0; j < 16; j++)
            m[j] = -INFINITY;
        int32_t i = 0;
        for (; i + 16 <= len; i += 16)
            for (int j = 0; j < 16; j++) {
                m[j] = at[i + j] > m[j] ? at[i + j] : m[j];
                bad |= !(at[i + j] <= FLT_MAX);
            }
        for (; i < len; i++) {
            m[0] = at[i] > m[0] ? at[i] : m[0];
            bad |= !(at[i] <= FLT_MAX);
        }
        for (int j = 1; j < 16; j++)
            m[0] = m[j] > m[0] ? m[j] : m[0];
        s->block[b] = m[0];
    }
    return !bad;
}

int32_t sample_collect(sampler *s, const float *x, int32_t k)
{
    int32_t n = s->n_vocab, n_blocks = (n + BLOCK - 1) / BLOCK, kept = 0, n_equal;
    /* At least k blocks have a logit as large as the k-th largest block maximum. So every logit
     * below that bound is smaller than k others. */
    uint32_t bound = 0;
    if (k > 0 && k < n_blocks)
        bound = kth_key(s->block, 1, n_blocks, k, s->bucket, &n_equal);
    for (int32_t b = 0; b < n_blocks; b++) {
        if (key_of(s->block[b]) < bound)
            continue;
        int32_t end = n - b * BLOCK < BLOCK ? n : (b + 1) * BLOCK;
        for (int32_t i = b * BLOCK; i < end; i++)
            if (x[i] >= -FLT_MAX && key_of(x[i]) >= bound)
                s->cand[kept++] = (candidate){i, x[i]};
    }
    return k > 0 ? sample_keep_top(s, kept, k) : kept;
}

int32_t sample_collect_from(sampler *s, const float *x, double least)
{
    int32_t n = s->n_vocab, kept = 0;
    for (int32_t b = 0; b * BLOCK < n; b++) {
        if (s->block[b] < least)
            continue;
        int32_t end = n - b * BLOCK < BLOCK ? n : (b + 1) * BLOCK;
        for (int32_t i = b * BLOCK; i < end; i++)
            if (x[i] >= least && x[i] >= -FLT_MAX)
                s->cand[kept++] = (candidate){i, x[i]};
    }
    return kept;
}

/* ---- Order ----------------------------------------------------------------------------- */

static void sift_down(candidate *c, int32_t n, int32_t i)
{
    for (;;) {
        int32_t best = i, l = 2 * i + 1, r = l + 1;
        if (l < n && sample_better(c[l], c[best]))
            best = l;
        if (r < n && sample_better(c[r], c[best]))
            best = r;
        if (best == i)
            return;
        candidate t = c[i];
        c[i] = c[best];
        c[best] = t;
        i = best;
    }
}

int32_t sample_order(candidate *c, int32_t n, double mass, int32_t min_keep, bool *reached)
{
    int32_t left = n;
    double sum = 0, max = 0;
    for (int32_t i = n / 2; i-- > 0;)
        sift_down(c, n, i);
    if (n)
        max = c[0].logit;
    int32_t least = min_keep > 1 ? min_keep : 1;
    while (left > 0 && (n - left < least || sum < mass)) {
        candidate t = c[0];
        sum += exp((double)t.logit - max);
        c[0] = c[--left];
        sift_down(c, left, 0);
        c[left] = t; /* from the heap's top to the end: the best is last */
    }
    int32_t kept = n - left;
    *reached = sum >= mass;
    memmove(c, c + left, (size_t)kept * sizeof *c);
    for (int32_t i = 0, j = kept - 1; i < j; i++, j--) {
        candidate t = c[i];
        c[i] = c[j];
        c[j] = t;
    }
    return kept;
}

float sample_max(const candidate *c, int32_t n)
{
    float max = -INFINITY;
    for (int32_t i = 0; i < n; i++)
        max = c[i].logit > max ? c[i].logit : max;
    return max;
}

double sample_sum_exp(const candidate *c, int32_t n, double max)
{
    double sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum += exp((double)c[i].logit - max);
    return sum;
}

/* ---- The chain ------------------------------------------------------------------------- */

void sample_bias(const carat_sampling *p, float *x)
{
    for (int32_t i = 0; i < p->n_bias; i++)
        x[p->bias[i].id] += p->bias[i].bias;
}

void sample_penalties(sampler *s, const carat_sampling *p, float *x, const sample_state *at)
{
    bool repeat = p->repeat_penalty != 1,
         add = p->presence_penalty != 0 || p->frequency_penalty != 0;
    int64_t n =
        p->penalty_last_n < 0 || p->penalty_last_n > at->n_past ? at->n_past : p->penalty_last_n;
    if (!repeat && !add)
        return;
    const int32_t *id = at->past + (at->n_past - n);
    for (int64_t i = 0; i < n; i++)
        if (id[i] >= 0 && id[i] < s->n_vocab)
            s->count[id[i]]++;
    for (int64_t i = 0; i < n; i++) {
        if (id[i] < 0 || id[i] >= s->n_vocab || !s->count[id[i]])
            continue; /* already penalised: once per token, by its count */
        float *l = &x[id[i]];
        if (repeat)
            *l = *l > 0 ? *l / p->repeat_penalty : *l * p->repeat_penalty;
        *l -= p->frequency_penalty * (float)s->count[id[i]] + p->presence_penalty;
        s->count[id[i]] = 0;
    }
}

int32_t sample_largest(const sampler *s, const float *x)
{
    int32_t n_blocks = (s->n_vocab + BLOCK - 1) / BLOCK, best = 0;
    for (int32_t b = 1; b < n_blocks; b++)
        if (s->block[b] > s->block[best])
            best = b;
    for (int32_t i = best * BLOCK; i < s->n_vocab; i++)
        if (x[i] == s->block[best])
            return x[i] == -INFINITY ? -1 : i;
    return -1;
}

int32_t sample_draw(const candidate *c, int32_t n, double temperature, uint64_t *rng, double *q)
{
    double max = sample_max(c, n), total = 0, sum = 0, of_last = 0;
    for (int32_t i = 0; i < n; i++)
        total += exp((c[i].logit - max) / temperature);
    double u = rng_unit(rng) * total;
    int32_t last = -1;
    for (int32_t i = 0; i < n; i++) {
        double w = exp((c[i].logit - max) / temperature);
        if (w <= 0)
            continue;
        sum += w;
        last = c[i].id;
        of_last = w;
        if (u < sum)
            break;
    }
    if (q)
        *q = of_last / total;
    return last; /* rounding: u may exceed the sum of all */
}

/* Of n candidates in s->cand, keeps the smallest set with a mass of top_p. Nearly always a few
 * hundred suffice, and these are found without ordering the rest. */
static int32_t cut_top_p(sampler *s, const carat_sampling *p, const float *x, int32_t n)
{
    double mass = (double)p->top_p * sample_sum_exp(s->cand, n, sample_max(s->cand, n));
    bool reached = false;
    if (n > SAMPLE_NEEDS_MAX) {
        int32_t kept = sample_order(s->cand, sample_collect(s, x, NUCLEUS), mass, 1, &reached);
        if (reached)
            return kept;
        n = sample_collect(s, x, p->top_k);
    }
    return sample_order(s->cand, n, mass, 1, &reached);
}

/* Samples from the n candidates in s->cand, the top_k largest. x: all logits; it is read only if n
 * may exceed SAMPLE_NEEDS_MAX. */
static int32_t pick_from(sampler *s, const carat_sampling *p, const float *x, int32_t n,
                         sample_state *at)
{
    if (p->top_p < 1)
        n = cut_top_p(s, p, x, n);
    if (p->min_p > 0) {
        float least = sample_max(s->cand, n) + logf(p->min_p);
        int32_t kept = 0;
        for (int32_t i = 0; i < n; i++)
            if (s->cand[i].logit >= least)
                s->cand[kept++] = s->cand[i];
        n = kept;
    }
    return sample_draw(s->cand, n, p->temperature, &at->rng, NULL);
}

int32_t sample_pick(sampler *s, const carat_sampling *p, float *x, sample_state *at)
{
    if (!chain_is_plain(p))
        return chain_pick(s, p, x, at);
    sample_bias(p, x);
    sample_penalties(s, p, x, at);
    if (!sample_block_maxima(s, x))
        return -1;
    if (p->temperature <= 0)
        return sample_largest(s, x);
    return pick_from(s, p, x, sample_collect(s, x, p->top_k), at);
}

int32_t sample_needs(const carat_sampling *p)
{
    if (!chain_is_plain(p))
        return chain_needs(p);
    bool changed = p->n_bias > 0 || p->repeat_penalty != 1 || p->presence_penalty != 0 ||
                   p->frequency_penalty != 0;
    if (changed || p->n_top_logprobs > 0)
        return 0;
    if (p->temperature <= 0)
        return 1;
    return p->top_k > 0 && p->top_k <= SAMPLE_NEEDS_MAX ? p->top_k : 0;
}

static int by_id(const void *a, const void *b)
{
    int32_t i = ((const candidate *)a)->id, j = ((const candidate *)b)->id;
    return (i > j) - (i < j);
}

int32_t sample_pick_among(sampler *s, const carat_sampling *p, const candidate *c, int32_t n,
                          sample_state *at)
{
    int32_t kept = 0, best = 0;
    for (int32_t i = 0; i < n; i++)
        if (c[i].logit >= -FLT_MAX)
            s->cand[kept++] = c[i];
    for (int32_t i = 1; i < kept; i++)
        best = sample_better(s->cand[i], s->cand[best]) ? i : best;
    bool plain = chain_is_plain(p);
    if (!kept || (plain && p->temperature <= 0))
        return kept ? s->cand[best].id : -1;
    qsort(s->cand, (size_t)kept, sizeof *s->cand, by_id);
    kept = sample_keep_top(s, kept, sample_needs(p));
    return plain ? pick_from(s, p, NULL, kept, at) : chain_pick_among(s, p, kept, at);
}

void sample_logprobs(sampler *s, const float *x, int32_t id, float *of_id, carat_logprob *top,
                     int32_t n)
{
    double max = -INFINITY, sum = 0;
    sample_block_maxima(s, x);
    for (int32_t b = 0; b * BLOCK < s->n_vocab; b++)
        max = s->block[b] > max ? s->block[b] : max;
    for (int32_t i = 0; i < s->n_vocab; i++)
        sum += exp(x[i] - max);
    double log_sum = max + log(sum);
    *of_id = (float)(x[id] - log_sum);
    int32_t found = n > 0 ? sample_collect(s, x, n) : 0;
    bool reached;
    found = sample_order(s->cand, found, INFINITY, 1, &reached);
    for (int32_t i = 0; i < n; i++)
        top[i] = i < found ? (carat_logprob){s->cand[i].id, (float)(s->cand[i].logit - log_sum)}
                           : (carat_logprob){-1, -INFINITY};
}
