/* control.c - what every seat of a pass drafts.
 *
 * Evidence. A node whose parent was accepted is a trial: it is accepted or not. Nodes below a
 * rejected one say nothing. Trials lose 2.5 % of their weight per round, and those of all requests
 * are the prior of each (spec: Beta counts with forgetting). Before a draft the chance of slot i is
 * that of the drafter's best token there; after it, the drafter's own probability is known, and
 * trials are counted by ranges of it. A slot with few trials is expected to do as the same range
 * of all slots: else a drafter that says too little of itself would never be let reach the later
 * slots, where it could show that it is better. For the same reason trees are grown by these
 * chances, not by the drafter's own numbers: a drafter that says one half of tokens that are always
 * right would get wide trees of three levels.
 *
 * Choice. The survival of a node is the chance that its whole path is accepted. Rows go to nodes in
 * the order of survival, over all seats together, and their number maximises
 *
 *     before drafting:  tokens / (T_draft + T_pass)
 *     after drafting:   tokens - rate * T_pass, because the draft is paid for
 *
 * where tokens = seats + sum of survivals, and rate is the maximum of the former. After drafting a
 * draft may be cut whole. One of a kind that was hardly ever checked is checked all the same: else
 * nothing is learnt of it, and each round pays for drafting it again.
 *
 * Balance. Times are counted in plain passes of the same seats. A round's loss is the time it took
 * beyond one pass per emitted token; accepted drafts make it negative. The purse is what drafting
 * may still lose: purse_cap at first and a little more with each token up to purse_cap, and what
 * drafts gain, up to purse_most. A round is made only if what it would lose without any
 * acceptance is in the purse. So the first 256 tokens of an answer lose about purse_cap +
 * 256 purse_gain = 7.6 plain passes at most, 3 %, and later ones a smaller share of the answer.
 * Only after gains can 256 tokens in a row lose purse_most + 256 purse_gain = 10.6 passes. A
 * drafter that gains on average loses by chance now and then, so a smaller purse_most stops good
 * drafters: with 5 passes, chains of 3 on a CPU were stopped in a fifth of all rounds and reached
 * 0.957 of the best length, with 8 passes 0.981. Where a plain pass is expected to be better, a
 * draft is a probe (Thompson sampling), paid from a smaller purse.
 */
#include "spec/control_int.h"

#include "base/mem.h"
#include "base/rng.h"

#include <math.h>
#include <string.h>

enum {
    SEATS_MAX = STEP_SEQS_MAX,
    PASS_TIMES = 512, /* rows of a pass: the times of so many are computed once in a round */
    PLAIN_AGAIN_LEAST = 16,
    PLAIN_AGAIN_ROUNDS = 512
};

static const double purse_cap = 5, purse_most = 8, purse_gain = 0.01;
static const double probe_cap = 1.0, probe_gain = 0.004;
static const double plain_share = 0.002; /* of the gain, for plain passes that measure it */
static const double forget_own = 0.975, forget_all = 0.999;
static const double prior_weight = 4;
/* Drafts of a kind with fewer trials are checked, though they are expected to lose. */
static const double few_trials = 12;
/* Of the first slot, before any trial. */
static const double prior_first[DRAFTERS_MAX] = {0.6, 0.7};
/* What a draft for all seats takes, in plain passes, before one was measured; and for how many
 * seats more its fixed part would suffice. */
static const double guess_draft = 0.2, guess_seats = 8;
static const double least_survival = 0.02; /* less pays for no row: the rest is not weighed */
static const double unmeasured = 0.97; /* widths without a measurement look cheaper, to get one */

struct draft_control {
    int32_t n_slots[DRAFTERS_MAX];
    draft_wish wish;
    evidence own[DRAFTERS_MAX];
    double purse, probe_purse; /* plain passes */
    uint64_t rng;
    bool probing; /* this round */
};

/* What a seat could draft: survivals of its nodes, descending. */
typedef struct want {
    int32_t seat;
    int32_t drafter;
    int32_t n;
    double survival[DRAFT_SLOTS_MAX];
    int32_t taken; /* the first so many nodes are drafted */
} want;

/* The times of passes by their rows, computed when they are asked for; 0: not yet. One round asks
 * some thousand times, while the GPU rests. */
typedef struct pass_times {
    double ms[PASS_TIMES];
} pass_times;

/* A pass whose rows are being given away. */
typedef struct offer {
    draft_times *t;
    draft_seat *seat;
    int32_t n_seats;
    int32_t rows; /* most */
    int64_t n_ctx;
    double plain;  /* ms of a pass without drafts */
    double rate;   /* after drafting: tokens per ms; 0: before */
    int32_t fixed; /* rows of nodes that are taken already */
    pass_times *times;
    want *want;
    int32_t n_wants;
} offer;

status draft_control_open(draft_control **c, draft_times *t, const int32_t n_slots[DRAFTERS_MAX],
                          const draft_wish *wish, err *e)
{
    *c = mem_calloc(1, sizeof **c);
    if (!*c)
        return err_set(e, E_MEMORY, "no memory for a request's draft lengths");
    for (int32_t d = 0; d < DRAFTERS_MAX; d++) {
        int32_t most = n_slots[d] < DRAFT_SLOTS_MAX ? n_slots[d] : DRAFT_SLOTS_MAX;
        (*c)->n_slots[d] = wish->n_max > 0 && wish->n_max < most ? wish->n_max : most;
        (*c)->own[d].unit = 1;
    }
    (*c)->wish = *wish;
    (*c)->purse = purse_cap;
    (*c)->probe_purse = probe_cap;
    (*c)->rng = rng_mix((uint64_t)++t->n_opened);
    return OK;
}

void draft_control_close(draft_control *c)
{
    mem_free(c);
}

/* ---- evidence ---- */

static int32_t bin_of(double p)
{
    static const double edge[PROB_BINS - 1] = {0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 0.9};
    int32_t b = 0;
    while (b < PROB_BINS - 1 && p >= edge[b])
        b++;
    return b;
}

static int32_t group_of(int32_t slot)
{
    return slot < SLOT_GROUPS ? slot : SLOT_GROUPS - 1;
}

static double blend(const trials *x, double unit, double prior)
{
    return (x->hits / unit + prior_weight * prior) / (x->n / unit + prior_weight);
}

/* The chance, or with `sample` a draw from what is believed of it (a normal approximation of the
 * Beta distribution), of a node whose parent is accepted. */
static double chance(draft_control *c, const trials *own, double own_unit, const trials *all,
                     double all_unit, double prior, bool sample)
{
    double shared = blend(all, all_unit, prior);
    if (!sample)
        return blend(own, own_unit, shared);
    /* Old evidence fades to doubt, not to the certainty of others' failures. */
    double n = own->n / own_unit + 2;
    double mean = (own->hits / own_unit + 2 * fmax(shared, 0.3)) / n;
    double draw = mean + sqrt(mean * (1 - mean) / (n + 1)) * rng_normal(&c->rng);
    return fmin(fmax(draw, 0), 1);
}

/* A slot that was never tried is expected to do as well as the one before it. */
static double slot_chance(const draft_times *t, draft_control *c, int32_t which, int32_t slot,
                          bool sample)
{
    const evidence *own = &c->own[which], *all = &t->all[which];
    double prior = prior_first[which];
    if (slot)
        prior = blend(&all->slot[slot - 1], all->unit, prior);
    return chance(c, &own->slot[slot], own->unit, &all->slot[slot], all->unit, prior, sample);
}

static double node_chance(const draft_times *t, draft_control *c, int32_t which, bool best,
                          int32_t slot, double p, bool sample)
{
    const evidence *own = &c->own[which], *all = &t->all[which];
    int32_t g = group_of(slot), b = bin_of(p);
    double prior = blend(&all->told[!best][b], all->unit, fmin(fmax(p, 0.02), 0.98));
    prior = blend(&own->told[!best][b], own->unit, prior);
    return chance(c, &own->node[!best][g][b], own->unit, &all->node[!best][g][b], all->unit, prior,
                  sample);
}

static void count(trials *x, double unit, bool hit)
{
    x->n += unit;
    x->hits += hit ? unit : 0;
}

static void rescale(trials *x, int32_t n, double unit)
{
    for (int32_t i = 0; i < n; i++) {
        x[i].hits /= unit;
        x[i].n /= unit;
    }
}

/* A round has passed. */
static void age(evidence *v, double forget)
{
    v->unit /= forget;
    if (v->unit < 1e100)
        return;
    rescale(v->slot, DRAFT_SLOTS_MAX, v->unit);
    rescale(&v->node[0][0][0], 2 * SLOT_GROUPS * PROB_BINS, v->unit);
    rescale(&v->told[0][0], 2 * PROB_BINS, v->unit);
    v->unit = 1;
}

/* Whether each row is its parent's first child: the drafter's best token there. */
static void first_children(const draft_tree *t, bool *first)
{
    bool has_child[STEP_TREE_ROWS_MAX] = {false};
    first[0] = true;
    for (int32_t i = 1; i <= t->n; i++) {
        first[i] = !has_child[t->parent[i]];
        has_child[t->parent[i]] = true;
    }
}

static void learn(evidence *v, const draft_seat *s)
{
    const draft_tree *t = s->tree;
    bool accepted[STEP_TREE_ROWS_MAX] = {false}, first[STEP_TREE_ROWS_MAX];
    bool best_path[STEP_TREE_ROWS_MAX] = {true};
    first_children(t, first);
    for (int32_t r = s->last_row; r > 0; r = t->parent[r])
        accepted[r] = true;
    accepted[0] = true;
    for (int32_t i = 1; i <= t->n; i++) {
        int32_t up = t->parent[i];
        best_path[i] = first[i] && best_path[up];
        if (!accepted[up] || (s->ended && up == s->last_row))
            continue;
        double p = t->prob[i];
        int32_t slot = t->depth[i] - 1;
        count(&v->node[!first[i]][group_of(slot)][bin_of(p)], v->unit, accepted[i]);
        count(&v->told[!first[i]][bin_of(p)], v->unit, accepted[i]);
        if (best_path[i])
            count(&v->slot[slot], v->unit, accepted[i]);
    }
}

/* ---- rows for nodes ---- */

static double expected_ms(const offer *o, int32_t rows)
{
    double ms = times_pass_over(o->t, rows, o->n_seats, o->n_ctx);
    return times_measured(o->t, rows, o->n_ctx) ? ms : ms * unmeasured;
}

static double pass_ms(const offer *o, int32_t rows)
{
    if (rows >= PASS_TIMES)
        return expected_ms(o, rows);
    double *ms = &o->times->ms[rows];
    if (*ms <= 0)
        *ms = expected_ms(o, rows);
    return *ms;
}

/* The time of a draft for n of the seats, before any was measured. */
static double draft_guess(double plain, int32_t n, int32_t n_seats)
{
    return guess_draft * plain * (n + guess_seats) / (n_seats + guess_seats);
}

/* The time of a round in which every want takes its `taken`. */
static double round_ms(const offer *o, double *tokens)
{
    int32_t rows = o->n_seats + o->fixed, n_drafts = 0, slots = 0;
    *tokens = o->n_seats;
    for (int32_t i = 0; i < o->n_wants; i++) {
        const want *w = &o->want[i];
        rows += w->taken;
        for (int32_t k = 0; k < w->taken; k++)
            *tokens += w->survival[k];
        if (w->taken && w->drafter == DRAFTER_MODEL) {
            n_drafts++;
            slots = w->taken > slots ? w->taken : slots;
        }
    }
    double ms = pass_ms(o, rows);
    if (n_drafts && o->rate <= 0)
        ms += times_draft(o->t, DRAFTER_MODEL, slots, n_drafts,
                          draft_guess(o->plain, n_drafts, o->n_seats));
    return ms;
}

static int32_t rows_taken(const offer *o)
{
    int32_t rows = o->n_seats + o->fixed;
    for (int32_t i = 0; i < o->n_wants; i++)
        rows += o->want[i].taken;
    return rows;
}

static double score(const offer *o)
{
    double tokens, ms = round_ms(o, &tokens);
    return o->rate > 0 ? tokens - o->rate * ms : tokens / ms;
}

/* No more rows than the pass may have. The seats whose drafts stay change from round to round. */
static void fit_rows(offer *o)
{
    int32_t over = rows_taken(o) - o->rows;
    for (int32_t j = 0; j < o->n_wants && over > 0; j++) {
        want *w = &o->want[(o->t->n_rounds + j) % o->n_wants];
        int32_t cut = w->taken < over ? w->taken : over;
        w->taken -= cut;
        over -= cut;
    }
}

/* Every node with at least this survival, where the seat can pay for a round without acceptance.
 * True: there are more of them than rows. */
static bool take_above(offer *o, double survival)
{
    double tokens;
    for (int32_t i = 0; i < o->n_wants; i++) {
        want *w = &o->want[i];
        for (w->taken = 0; w->taken < w->n && w->survival[w->taken] >= survival;)
            w->taken++;
    }
    bool full = rows_taken(o) > o->rows;
    fit_rows(o);
    if (o->rate > 0)
        return full;
    double loss = round_ms(o, &tokens) / o->plain - 1;
    for (int32_t i = 0; i < o->n_wants; i++)
        if (loss > o->seat[o->want[i].seat].c->purse)
            o->want[i].taken = 0;
    return full;
}

/* Takes the best numbers of nodes. */
static void take_best(offer *o)
{
    int32_t best[SEATS_MAX] = {0};
    bool alone = o->n_wants == 1, full = false;
    double line = 1;
    for (int32_t i = 0; i < o->n_wants; i++)
        o->want[i].taken = 0;
    double best_score = score(o);
    for (int32_t k = 0; k < (alone ? o->want[0].n : 44) && !full; k++, line *= 0.9) {
        full = take_above(o, alone ? o->want[0].survival[k] : line);
        double x = score(o);
        if (x <= best_score)
            continue;
        best_score = x;
        for (int32_t i = 0; i < o->n_wants; i++)
            best[i] = o->want[i].taken;
    }
    for (int32_t i = 0; i < o->n_wants; i++)
        o->want[i].taken = best[i];
}

static void offer_init(offer *o, draft_times *t, draft_seat *seat, int32_t n, int32_t rows,
                       want *wants, pass_times *times)
{
    int64_t n_ctx = 0;
    memset(times, 0, sizeof *times);
    *o = (offer){.t = t, .seat = seat, .n_seats = n, .want = wants, .times = times};
    for (int32_t i = 0; i < n; i++)
        n_ctx += seat[i].n_ctx;
    o->n_ctx = n > 0 ? n_ctx / n : 0;
    o->plain = times_pass(t, n, o->n_ctx);
    int32_t widest = times_widest(t, o->n_ctx);
    o->rows = rows < widest ? rows : widest;
}

/* ---- before drafting ---- */

static int32_t least(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

static int32_t slots_of(const draft_seat *s, int32_t which)
{
    int32_t n = least(s->c->n_slots[which], least(s->rows, s->tokens) - 1);
    if (which == DRAFTER_LOOKUP)
        n = s->found ? least(n, s->found->n_slots) : 0;
    return n > 0 ? n : 0;
}

static void fill_want(const draft_times *t, const draft_seat *s, int32_t which, bool sample,
                      want *w)
{
    double path = 1;
    w->drafter = which;
    w->n = slots_of(s, which);
    w->taken = 0;
    for (int32_t k = 0; k < w->n; k++) {
        if (which == DRAFTER_LOOKUP) {
            path *= node_chance(t, s->c, which, true, k, tree_prob(s->found, k, 0), sample);
        } else {
            path *= slot_chance(t, s->c, which, k, sample);
        }
        w->survival[k] = path;
        if (path < least_survival)
            w->n = k + 1;
    }
    double lift = t->all[which].lift;
    if (which == DRAFTER_MODEL && s->c->wish.tree_max >= 0 && !s->chain && lift > 1)
        for (int32_t k = 0; k < w->n; k++)
            w->survival[k] = fmin(w->survival[k] * lift, 1);
}

/* What a round is worth in which no other seat drafts. */
static double solo_score(const offer *o, want *w)
{
    offer solo = *o;
    solo.want = w;
    solo.n_wants = 1;
    take_best(&solo);
    return score(&solo);
}

/* The better drafter of a seat, as though no other seat drafted. */
static bool seat_want(const offer *o, int32_t seat, want *w)
{
    double best = 0;
    *w = (want){.seat = seat};
    for (int32_t d = 0; d < DRAFTERS_MAX; d++) {
        want one = {.seat = seat};
        fill_want(o->t, &o->seat[seat], d, false, &one);
        if (!one.n)
            continue;
        if (w->n) { /* two drafters to compare */
            best = best > 0 ? best : solo_score(o, w);
            double x = solo_score(o, &one);
            if (x <= best)
                continue;
            best = x;
        }
        *w = one;
    }
    w->taken = 0;
    return w->n > 0;
}

/* Always the same, for measurements. Gives the rows of its nodes. */
static int32_t choose_fixed(draft_seat *s)
{
    for (int32_t d = DRAFTERS_MAX - 1; d >= 0; d--) {
        int32_t n = slots_of(s, d), tree = s->c->wish.tree_max;
        if (!n)
            continue;
        s->choice = (draft_choice){
            .drafter = d,
            .n_slots = n,
            .budget = d == DRAFTER_MODEL && tree > 0 && !s->chain ? least(tree, s->rows - 1) : 0};
        return s->choice.budget ? s->choice.budget : n;
    }
    return 0;
}

static void set_choice(draft_seat *s, const want *w)
{
    int32_t most = s->c->wish.tree_max;
    s->choice = (draft_choice){.drafter = w->drafter, .n_slots = w->taken};
    if (w->drafter != DRAFTER_MODEL || most < 0 || s->chain || !w->taken)
        return;
    s->choice.budget = least(s->rows - 1, DRAFT_SLOTS_MAX);
    if (most > 0)
        s->choice.budget = least(s->choice.budget, most);
}

/* One seat that would draft nothing may find out whether that is still right. */
static void probe(offer *o)
{
    double tokens, before = round_ms(o, &tokens), rate = tokens / before;
    for (int32_t j = 0; j < o->n_wants; j++) {
        want *w = &o->want[(o->t->n_rounds + j) % o->n_wants], was = *w;
        draft_control *c = o->seat[w->seat].c;
        int32_t best = 0;
        if (w->taken || c->probe_purse <= 0)
            continue;
        fill_want(o->t, &o->seat[w->seat], w->drafter, true, w);
        for (int32_t k = 1; k <= w->n; k++) {
            w->taken = k;
            double after = round_ms(o, &tokens), loss = (after - before) / o->plain;
            if (loss > c->probe_purse || loss > c->purse || rows_taken(o) > o->rows)
                break;
            if (tokens / after > rate) {
                rate = tokens / after;
                best = k;
            }
        }
        *w = was;
        w->taken = best;
        c->probing = best > 0;
        return;
    }
}

void draft_control_choose(draft_times *t, draft_seat *seat, int32_t n, int32_t rows)
{
    want wants[SEATS_MAX];
    pass_times times;
    offer o;
    for (int32_t i = 0; i < n; i++) {
        seat[i].choice = (draft_choice){0};
        if (seat[i].c)
            seat[i].c->probing = false;
    }
    n = least(n, SEATS_MAX);
    offer_init(&o, t, seat, n, rows, wants, &times);
    bool known = times_known(t, n, o.n_ctx, PLAIN_AGAIN_ROUNDS);
    int32_t left = rows - n;
    for (int32_t i = 0; i < n; i++)
        if (seat[i].c && seat[i].c->wish.fixed && !seat[i].c->wish.off) {
            int32_t taken = choose_fixed(&seat[i]);
            if (taken > left)
                seat[i].choice = (draft_choice){.n_slots = taken = 0};
            left -= taken;
            o.fixed += taken;
        }
    t->rate = 0;
    if (!known)
        return; /* a plain pass, to know its time */
    for (int32_t i = 0; i < n; i++) {
        const draft_control *c = seat[i].c;
        if (c && !c->wish.off && !c->wish.fixed && seat_want(&o, i, &o.want[o.n_wants]))
            o.n_wants++;
    }
    take_best(&o);
    t->rate = score(&o);
    /* A small gain may be an error in the time of a plain pass, which is then cheap to repeat. */
    double gain = t->rate * o.plain / n - 1;
    double again = fmin(PLAIN_AGAIN_LEAST + gain / plain_share, PLAIN_AGAIN_ROUNDS);
    if (!times_known(t, n, o.n_ctx, (int64_t)again)) {
        t->rate = 0;
        return;
    }
    probe(&o);
    for (int32_t i = 0; i < o.n_wants; i++)
        set_choice(&seat[o.want[i].seat], &o.want[i]);
}

/* ---- after drafting ---- */

void draft_control_weigh(const draft_times *t, const draft_seat *seat, const proposal *p,
                         tree_weights *w)
{
    for (int32_t k = 0; k < least(p->n_slots, DRAFT_SLOTS_MAX); k++) {
        float before = 0; /* a rank is never likelier than the one before it */
        for (int32_t r = 0; r < least(p->n_ranks, DRAFT_RANKS_MAX); r++) {
            double x =
                node_chance(t, seat->c, seat->choice.drafter, r == 0, k, tree_prob(p, k, r), false);
            before = w->logp[k][r] = fminf((float)log(x), before);
        }
    }
}

/* Survivals by the drafter's own probabilities. Gives the expected tokens of its best chain. */
static double tree_want(const draft_times *t, const draft_seat *s, want *w)
{
    const draft_tree *x = s->tree;
    double path[STEP_TREE_ROWS_MAX] = {1}, least_so_far = 1, chain = 0;
    bool first[STEP_TREE_ROWS_MAX], best_path[STEP_TREE_ROWS_MAX] = {true};
    first_children(x, first);
    w->drafter = s->choice.drafter;
    w->n = x->n;
    w->taken = 0;
    for (int32_t i = 1; i <= x->n; i++) {
        int32_t up = x->parent[i];
        path[i] = path[up] *
                  node_chance(t, s->c, w->drafter, first[i], x->depth[i] - 1, x->prob[i], false);
        best_path[i] = first[i] && best_path[up];
        chain += best_path[i] ? path[i] : 0;
        /* Nodes are kept in the order in which they were taken into the tree. */
        least_so_far = fmin(least_so_far, path[i]);
        w->survival[i - 1] = least_so_far;
    }
    return chain;
}

/* Whether tokens of which the drafter was as sure as of this tree's first one were hardly ever
 * checked. */
static bool is_new(const draft_times *t, const draft_seat *s)
{
    const evidence *all = &t->all[s->choice.drafter];
    return all->told[0][bin_of(s->tree->prob[1])].n < few_trials * all->unit;
}

void draft_control_trim(draft_times *t, draft_seat *seat, int32_t n, int32_t rows)
{
    want wants[SEATS_MAX];
    pass_times times;
    offer o;
    double chain[SEATS_MAX];
    for (int32_t i = SEATS_MAX; i < n; i++)
        if (seat[i].tree)
            tree_cut(seat[i].tree, 0);
    n = least(n, SEATS_MAX);
    offer_init(&o, t, seat, n, rows, wants, &times);
    o.rate = t->rate;
    for (int32_t i = 0; i < n; i++) {
        draft_seat *s = &seat[i];
        if (!s->tree || !s->tree->n || !s->c)
            continue;
        if (s->c->probing)
            tree_cut(s->tree, s->choice.n_slots);
        if (s->c->probing || s->c->wish.fixed || t->rate <= 0) {
            o.fixed += s->tree->n;
            continue;
        }
        o.want[o.n_wants].seat = i;
        chain[o.n_wants] = tree_want(t, s, &o.want[o.n_wants]);
        o.n_wants++;
    }
    if (!o.n_wants)
        return;
    take_best(&o);
    bool tried = false; /* one such draft a round is enough to learn from */
    for (int32_t i = 0; i < o.n_wants; i++) {
        want *w = &o.want[i];
        draft_seat *s = &seat[w->seat];
        double tokens = 0;
        int32_t left = rows - rows_taken(&o);
        if (!w->taken && !tried && left > 0 && is_new(t, s)) {
            w->taken = least(s->choice.n_slots, least(w->n, left));
            tried = true;
        }
        for (int32_t k = 0; k < w->taken; k++)
            tokens += w->survival[k];
        if (s->choice.budget && w->taken > 1 && chain[i] > 0) {
            double *lift = &t->all[w->drafter].lift, x = tokens / chain[i];
            *lift = *lift > 0 ? *lift + 0.05 * (x - *lift) : x;
        }
        tree_cut(s->tree, w->taken);
    }
}

/* ---- after the pass ---- */

static int32_t tree_rows(const draft_seat *s)
{
    return s->tree ? 1 + s->tree->n : 1;
}

static void tell_times(draft_times *t, const draft_seat *seat, int32_t n, double target_ms,
                       const double *draft_ms)
{
    int64_t n_ctx = 0;
    int32_t rows = 0, n_drafts = 0, slots = 0;
    for (int32_t i = 0; i < n; i++) {
        n_ctx += seat[i].n_ctx;
        rows += tree_rows(&seat[i]);
        if (seat[i].choice.n_slots && seat[i].choice.drafter == DRAFTER_MODEL) {
            n_drafts++;
            slots = seat[i].choice.n_slots > slots ? seat[i].choice.n_slots : slots;
        }
    }
    n_ctx /= n;
    times_add_pass(t, rows, n_ctx, target_ms);
    double plain = times_pass(t, n, n_ctx), guess = draft_guess(plain, n_drafts, n);
    times_add_draft(t, DRAFTER_MODEL, slots, n_drafts, draft_ms[DRAFTER_MODEL], guess);
    double most = 1.5 * times_pass(t, rows, n_ctx);
    if (n_drafts)
        most += 1.5 * times_draft(t, DRAFTER_MODEL, slots, n_drafts, guess);
    double ms = fmin(target_ms + draft_ms[DRAFTER_LOOKUP] + draft_ms[DRAFTER_MODEL], most);
    bool drafted = rows > n || n_drafts;
    for (int32_t i = 0; i < n; i++) {
        draft_control *c = seat[i].c;
        if (!c)
            continue;
        double emitted = seat[i].tree ? 1 + seat[i].tree->depth[seat[i].last_row] : 1;
        double loss = drafted ? ms / plain - emitted : 0;
        c->purse = fmin(c->purse - loss, purse_most);
        c->purse = fmax(c->purse, fmin(c->purse + purse_gain * emitted, purse_cap));
        if (c->probing && loss > 0)
            c->probe_purse -= loss;
        c->probe_purse = fmin(c->probe_purse + probe_gain * emitted, probe_cap);
    }
}

void draft_control_tell(draft_times *t, const draft_seat *seat, int32_t n, double target_ms,
                        const double draft_ms[DRAFTERS_MAX])
{
    if (n < 1)
        return;
    t->n_rounds++;
    if (target_ms > 0)
        tell_times(t, seat, n, target_ms, draft_ms);
    for (int32_t d = 0; d < DRAFTERS_MAX; d++)
        age(&t->all[d], forget_all);
    for (int32_t i = 0; i < n; i++) {
        draft_control *c = seat[i].c;
        if (!c)
            continue;
        for (int32_t d = 0; d < DRAFTERS_MAX; d++)
            age(&c->own[d], forget_own);
        if (!seat[i].tree || !seat[i].tree->n)
            continue;
        learn(&c->own[seat[i].choice.drafter], &seat[i]);
        learn(&t->all[seat[i].choice.drafter], &seat[i]);
    }
}
