/* lookup.c - drafts by suffix matching: what came after the last tokens when they came before, in
 * the same prompt and answer. No weights, no passes.
 *
 *     ... a b c d e f ... x b c d y ... a b c            the last tokens
 *           |_____|         |_____|       |___|
 *           match of 3      match of 2 ...              continuations: d e f, d y
 *
 * Two indices by hash, of the last 3 and of the last 8 tokens, lead to earlier occurrences, newest
 * first. Tokens are compared before an occurrence counts, so collisions of the hash are harmless.
 * The indices hold positions and no tokens; they belong to one timeline, so nothing passes from one
 * user to another. A token costs O(1) to index; a proposal looks at OCCURRENCES_MAX occurrences of
 * each index. A timeline that was cut is indexed anew, some 20 ns a token.
 *
 * A predicted answer is searched as well, from its end to its beginning and without an index: one
 * compare a token, less than a thousandth of a pass. Its tokens have the positions from PREDICTED
 * on.
 */
#include "base/mem.h"
#include "spec/drafter.h"

#include <math.h>
#include <string.h>

enum {
    GRAMS = 2,
    MATCH_LEAST = 3,      /* matches of one or two tokens are mostly chance */
    MATCH_MOST = 64,      /* compared tokens */
    OCCURRENCES_MAX = 24, /* of each index, and of the predicted answer */
    TEXTS = GRAMS + 1
};
static const int64_t PREDICTED = (int64_t)1 << 40; /* beyond every position of a timeline */

static const int32_t gram_length[GRAMS] = {3, 8};

/* Where each hash of some tokens in a row came last, and before that. Positions are those of the
 * last token of the row, plus 1; 0: none. */
typedef struct gram_index {
    uint32_t *last;   /* [mask + 1] */
    uint32_t *before; /* [n_ctx] */
} gram_index;

struct draft_state {
    gram_index gram[GRAMS];
    uint32_t mask;
    int64_t n; /* positions below it are indexed */
};

static uint32_t slots_of(int32_t n_ctx)
{
    uint32_t n = 64;
    while (n < (uint32_t)n_ctx)
        n *= 2;
    return n;
}

static status lookup_bind_model(draft_model *m, gguf *file, err *e)
{
    (void)file;
    (void)e;
    m->n_slots = DRAFT_SLOTS_MAX;
    return OK;
}

static status lookup_plan(const draft_model *m, const draft_sizes *z, draft_costs *c, err *e)
{
    (void)m;
    (void)e;
    uint64_t entries = (uint64_t)slots_of(z->n_ctx) + (uint64_t)z->n_ctx;
    *c = (draft_costs){.host_bytes = (uint64_t)z->n_seqs * GRAMS * entries * sizeof(uint32_t)};
    return OK;
}

static status lookup_open(const draft_model *m, const draft_sizes *z, drafter **out, err *e)
{
    drafter *d = *out = mem_calloc(1, sizeof *d);
    if (!d)
        return err_memory(e, "a drafter", sizeof *d);
    *d = (drafter){.class = &draft_lookup, .m = m, .sizes = *z};
    return OK;
}

static void lookup_close(drafter *d)
{
    mem_free(d);
}

static void lookup_state_close(drafter *d, draft_state *s)
{
    (void)d;
    if (!s)
        return;
    for (int i = 0; i < GRAMS; i++) {
        mem_free(s->gram[i].last);
        mem_free(s->gram[i].before);
    }
    mem_free(s);
}

static status lookup_state_open(drafter *d, draft_state **out, err *e)
{
    size_t n_ctx = (size_t)d->sizes.n_ctx, n_slots = slots_of(d->sizes.n_ctx);
    draft_state *s = mem_calloc(1, sizeof *s);
    bool all = s;
    *out = NULL;
    for (int i = 0; all && i < GRAMS; i++) {
        gram_index *g = &s->gram[i];
        g->last = mem_calloc(n_slots, sizeof *g->last);
        g->before = mem_calloc(n_ctx, sizeof *g->before);
        all = g->last && g->before;
    }
    if (!all) {
        lookup_state_close(d, s);
        return err_memory(e, "the index of a lookup drafter",
                          GRAMS * (n_slots + n_ctx) * sizeof(uint32_t));
    }
    s->mask = (uint32_t)n_slots - 1;
    *out = s;
    return OK;
}

/* ---- The index --------------------------------------------------------------------------- */

/* Of the n tokens that end at position p. */
static uint32_t hash_of(const int32_t *id, int64_t p, int32_t n)
{
    uint64_t h = 0x9e3779b97f4a7c15u;
    for (int64_t i = p - n + 1; i <= p; i++)
        h = (h ^ (uint32_t)id[i]) * 0xff51afd7ed558ccdu;
    return (uint32_t)(h >> 32);
}

static void index_position(draft_state *s, const int32_t *id, int64_t p)
{
    for (int i = 0; i < GRAMS; i++) {
        gram_index *g = &s->gram[i];
        if (p + 1 < gram_length[i])
            continue;
        uint32_t *last = &g->last[hash_of(id, p, gram_length[i]) & s->mask];
        g->before[p] = *last;
        *last = (uint32_t)p + 1;
    }
}

/* How many tokens that end at positions p and q > p are equal, up to MATCH_MOST. */
static int32_t match_length(const int32_t *id, int64_t p, int64_t q)
{
    int32_t n = 0;
    while (n < MATCH_MOST && n <= p && id[p - n] == id[q - n])
        n++;
    return n;
}

/* ---- Proposals --------------------------------------------------------------------------- */

/* Earlier occurrences of the last tokens, newest first. */
typedef struct occurrences {
    int64_t next[TEXTS * OCCURRENCES_MAX]; /* the position of the token that followed */
    int32_t match[TEXTS * OCCURRENCES_MAX];
    int32_t n, longest;
} occurrences;

static bool has_occurrence(const occurrences *o, int64_t next)
{
    for (int32_t i = 0; i < o->n; i++)
        if (o->next[i] == next)
            return true;
    return false;
}

static void add_occurrence(occurrences *o, int64_t next, int32_t match)
{
    o->next[o->n] = next;
    o->match[o->n++] = match;
    o->longest = match > o->longest ? match : o->longest;
}

static void find_occurrences(const draft_state *s, const int32_t *id, int64_t n, occurrences *o)
{
    o->n = o->longest = 0;
    for (int i = GRAMS - 1; i >= 0; i--) { /* the longer matches first */
        const gram_index *g = &s->gram[i];
        if (n < gram_length[i])
            continue;
        uint32_t at = g->last[hash_of(id, n - 1, gram_length[i]) & s->mask];
        for (int k = 0; k < OCCURRENCES_MAX && at; k++, at = g->before[at - 1]) {
            int64_t p = (int64_t)at - 1;
            int32_t match = p < n - 1 ? match_length(id, p, n - 1) : 0;
            if (match < MATCH_LEAST || has_occurrence(o, p + 1))
                continue;
            add_occurrence(o, p + 1, match);
        }
    }
}

/* How many tokens that end at position p of the predicted answer are the timeline's last ones. An
 * answer that is the beginning of the prediction follows the same prompt, so all of it matches. */
static int32_t predicted_match(const draft_ask *a, int64_t p)
{
    int32_t n = 0;
    while (n < MATCH_MOST && n <= p && n < a->n && a->predicted[p - n] == a->id[a->n - 1 - n])
        n++;
    return n == p + 1 && a->n_answer == n ? MATCH_MOST : n;
}

static void find_predicted(const draft_ask *a, occurrences *o)
{
    int32_t last = a->id[a->n - 1];
    int n = 0;
    for (int64_t p = a->n_predicted - 2; p >= 0 && n < OCCURRENCES_MAX; p--) {
        int32_t match = a->predicted[p] == last ? predicted_match(a, p) : 0;
        if (match >= MATCH_LEAST) {
            add_occurrence(o, PREDICTED + p + 1, match);
            n++;
        }
    }
}

/* Keeps the occurrences whose matches are nearly as long as the longest. */
static void keep_long(occurrences *o)
{
    int32_t n = 0;
    for (int32_t i = 0; i < o->n; i++)
        if (4 * o->match[i] >= 3 * o->longest)
            o->next[n++] = o->next[i];
    o->n = n;
}

/* The token at position p, which may be one of those drafted after position n - 1: a text that
 * repeats itself goes on repeating. -1: past the end of the predicted answer. */
static int32_t token_at(const draft_ask *a, int64_t p)
{
    if (p >= PREDICTED)
        return p - PREDICTED < a->n_predicted ? a->predicted[p - PREDICTED] : -1;
    return p < a->n ? a->id[p] : a->out->id[p - a->n][0];
}

/* Fills slot i with the tokens that follow the occurrences, the most frequent first, of equally
 * frequent ones the newest. The best token's probability is its share of the occurrences, less the
 * chance of something new, which falls with the length of the match. */
static void fill_slot(const draft_ask *a, const occurrences *o, int32_t i)
{
    int32_t id[TEXTS * OCCURRENCES_MAX], count[TEXTS * OCCURRENCES_MAX], n = 0;
    float newness = 4.0f / (float)(o->longest + i);
    for (int32_t k = 0; k < o->n; k++) {
        int32_t t = token_at(a, o->next[k]), j = 0;
        while (j < n && id[j] != t)
            j++;
        if (j == n) {
            id[n] = t;
            count[n++] = 0;
        }
        count[j]++;
    }
    for (int32_t r = 0; r < a->n_ranks; r++) {
        int32_t best = -1;
        for (int32_t j = 0; j < n; j++)
            if (count[j] > 0 && (best < 0 || count[j] > count[best]))
                best = j;
        a->out->id[i][r] = best < 0 ? -1 : id[best];
        a->out->logp[i][r] =
            best < 0 ? -INFINITY : logf((float)count[best] / ((float)o->n + newness));
        if (best >= 0)
            count[best] = 0;
    }
}

/* The occurrences that go on with the best token of slot i, one token further, where they have one.
 */
static void follow(const draft_ask *a, occurrences *o, int32_t i)
{
    int32_t n = 0;
    for (int32_t k = 0; k < o->n; k++)
        if (token_at(a, o->next[k]) == a->out->id[i][0] && token_at(a, o->next[k] + 1) >= 0)
            o->next[n++] = o->next[k] + 1;
    o->n = n;
}

static void propose_one(const draft_ask *a)
{
    const float least = -3.9f; /* below 2 % a longer draft is not worth its row */
    draft_state *s = a->s;
    occurrences o;
    float logp = 0;
    *a->out = (proposal){.n_ranks = a->n_ranks};
    for (; s->n < a->n - 1; s->n++) /* the last position is only compared with */
        index_position(s, a->id, s->n);
    find_occurrences(s, a->id, a->n, &o);
    find_predicted(a, &o);
    keep_long(&o);
    while (o.n && a->out->n_slots < a->n_slots && logp > least) {
        int32_t i = a->out->n_slots++;
        fill_slot(a, &o, i);
        logp += a->out->logp[i][0];
        follow(a, &o, i);
    }
}

static status lookup_propose(drafter *d, const draft_ask *ask, int32_t n, err *e)
{
    (void)d;
    (void)e;
    for (int32_t i = 0; i < n; i++)
        propose_one(&ask[i]);
    return OK;
}

static void lookup_forget(drafter *d, draft_state *s, int64_t n)
{
    (void)d;
    for (int i = 0; s->n > n && i < GRAMS; i++)
        memset(s->gram[i].last, 0, ((size_t)s->mask + 1) * sizeof(uint32_t));
    if (s->n > n)
        s->n = 0;
}

const draft_class draft_lookup = {.name = "lookup",
                                  .bind = lookup_bind_model,
                                  .plan = lookup_plan,
                                  .open = lookup_open,
                                  .close = lookup_close,
                                  .state_open = lookup_state_open,
                                  .state_close = lookup_state_close,
                                  .propose = lookup_propose,
                                  .forget = lookup_forget};
