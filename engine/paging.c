/* paging.c - timelines that keep fewer keys in the pool than their context has: options to a shape,
 * the size that `auto` chooses, where their passes end, and what they cannot do.
 *
 *     prompt   |  chunk  |  chunk  |  rest | last |      pages move at each |
 *                                          ^ the last rows choose the pages, and are then
 *                                            computed again with those
 */
#include "engine/batch_int.h"
#include "engine/scorer.h"
#include "kv/pager.h"

#include <stdio.h>
#include <string.h>

enum {
    AUTO_MOST = 16384, /* tokens: beyond it decoding loses its flat speed */
    AUTO_STEP = 256,   /* tokens: auto rounds down to them */
    EACH_MIN = 512     /* tokens: the least share of a batch's pool */
};

bool shape_is_paged(const session_shape *s)
{
    return s->kv_resident > 0 && s->kv_resident < s->n_ctx;
}

int64_t paging_pool(const session_shape *s)
{
    return s->n_pool ? s->n_pool : (int64_t)s->kv_resident * s->n_seqs;
}

static int32_t whole_pages(int64_t tokens)
{
    return (int32_t)((tokens + KV_PAGE - 1) / KV_PAGE * KV_PAGE);
}

static const char *const policy_names[] = {"scored", "lru", "snapkv", "drafter"};
enum { POLICIES = sizeof policy_names / sizeof *policy_names };

const char *paging_policy(const session_shape *s)
{
    return policy_names[s->kv_policy];
}

status paging_options(const carat_session_options *opt, session_shape *s, err *e)
{
    const char *policy = opt->kv_policy ? opt->kv_policy : policy_names[KV_POLICY_SCORED];
    bool known = false;
    if (opt->kv_resident < -1 || opt->kv_resident > INT32_MAX - KV_PAGE)
        return err_set(e, E_ARG,
                       "a pool of %d tokens of keys: expected a number of tokens, 0 (no pool) or "
                       "-1 (chosen by memory)",
                       opt->kv_resident);
    for (int i = 0; i < POLICIES; i++)
        if (!strcmp(policy, policy_names[i])) {
            s->kv_policy = (kv_policy)i;
            known = true;
        }
    if (!known)
        return err_set(e, E_ARG, "--kv-policy '%s': expected scored, lru, snapkv or drafter",
                       policy);
    if (opt->kv_tau < 0 || opt->kv_host_mb < 0)
        return err_set(e, E_ARG,
                       "a pool of keys with %d tokens between choices (--kv-tau) and %d MiB on the "
                       "host (--kv-host-mb): expected 1 or more, or 0 for the default",
                       opt->kv_tau, opt->kv_host_mb);
    s->kv_tau = opt->kv_tau ? opt->kv_tau : RESIDENCY_TAU;
    s->kv_host_mb = opt->kv_host_mb;
    s->kv_resident = opt->kv_resident > 0 ? whole_pages(opt->kv_resident) : opt->kv_resident;
    if (opt->kv_resident < 0 && opt->kv_pool > 0) { /* an equal share for each */
        int32_t share = opt->kv_pool / s->n_seqs / KV_PAGE * KV_PAGE;
        s->kv_resident = share > EACH_MIN ? share : EACH_MIN;
    }
    if (opt->kv_pool > 0 && s->kv_resident - KV_PAGE >= opt->kv_pool) /* beyond its last page */
        return err_set(e, E_ARG,
                       "a pool of %d tokens of keys is smaller than the %d that a conversation "
                       "keeps: expected a larger --kv-pool or a smaller --kv-keep",
                       opt->kv_pool, s->kv_resident);
    return OK;
}

/* Tokens of keys on all devices for half of the memory that everything else leaves. */
static status choose_pool(const carat_model *m, session_shape *s, err *e)
{
    carat_memory_plan with, without;
    session_shape small = *s, more = *s;
    status st;
    small.kv_resident = AUTO_STEP * 2;
    more.kv_resident = AUTO_STEP * 4;
    if (s->n_ctx <= more.kv_resident) {
        s->kv_resident = 0;
        snprintf(s->pool_why, sizeof s->pool_why, "the whole context of %d tokens", s->n_ctx);
        return OK;
    }
    if ((st = plan_costs(m, &small, NULL, &without, e)) ||
        (st = plan_costs(m, &more, NULL, &with, e)))
        return st;
    uint64_t per_token = (with.kv_global_bytes - without.kv_global_bytes) / (2 * AUTO_STEP);
    uint64_t taken, there;
    plan_model_sums(m, &without, &taken, &there);
    uint64_t left = there > taken ? there - taken : 0;
    uint64_t n = per_token ? left / 2 / per_token : AUTO_MOST;
    if (!there)
        n = AUTO_MOST;
    n = n < AUTO_MOST ? n / AUTO_STEP * AUTO_STEP : AUTO_MOST;
    s->kv_resident = n < (uint64_t)small.kv_resident ? small.kv_resident : (int32_t)n;
    char scorer[64] = "";
    if (without.scorer_bytes)
        snprintf(scorer, sizeof scorer, " beside %.2f GiB of the scorer",
                 (double)without.scorer_bytes * 0x1p-30);
    snprintf(
        s->pool_why, sizeof s->pool_why,
        "half of the %.2f GiB that are left over%s, at %.2f KiB a token, at most %d: %d tokens",
        (double)left * 0x1p-30, scorer, (double)per_token * 0x1p-10, AUTO_MOST,
        s->kv_resident < s->n_ctx ? s->kv_resident : s->n_ctx);
    return OK;
}

/* Most rows of a timeline in a pass. */
static int32_t own_rows(const session_shape *s)
{
    return s->chunk > s->verify_rows ? s->chunk : s->verify_rows;
}

static int32_t least_pool(const session_shape *s)
{
    const residency_rules r = {
        .sinks = RESIDENCY_SINKS, .tail = RESIDENCY_TAIL, .rows_max = own_rows(s)};
    return residency_pool_min(&r) * KV_PAGE;
}

/* A pass is at most a quarter of the pool, so that scored pages have room beside it. */
static status fit_chunk(session_shape *s, err *e)
{
    int32_t most = s->kv_resident / 4 / KV_PAGE * KV_PAGE;
    most = most < KV_PAGE ? KV_PAGE : most;
    if (s->chunk > most)
        s->chunk = most;
    int32_t least = least_pool(s);
    for (; least > s->kv_resident && s->chunk > KV_PAGE; least = least_pool(s))
        s->chunk = s->chunk - KV_PAGE > KV_PAGE ? s->chunk - KV_PAGE : KV_PAGE;
    /* Beside answers, a pass has the last rows of one prompt that looks. */
    int32_t outs = s->answer_rows + KV_WATCH_ROWS;
    outs = outs < s->chunk ? outs : s->chunk;
    if (s->n_outputs < outs)
        s->n_outputs = outs;
    if (s->n_outputs > s->chunk && s->chunk >= s->answer_rows)
        s->n_outputs = s->chunk;
    if (s->kv_resident < least)
        return err_set(
            e, E_ARG,
            "a pool of %d tokens of keys for a conversation is too small: expected %d or more",
            s->kv_resident, least);
    if (s->n_pool > (int64_t)s->n_seqs * s->kv_resident)
        return err_set(e, E_ARG,
                       "a pool of %d tokens for keys is too large: %d conversations that keep %d "
                       "each never hold more than %lld (--kv-pool, --kv-keep)",
                       s->n_pool, s->n_seqs, s->kv_resident, (long long)s->n_seqs * s->kv_resident);
    return OK;
}

status paging_shape(const carat_model *m, session_shape *s, err *e)
{
    status st;
    if (s->kv_resident < 0 && (st = choose_pool(m, s, e)))
        return st;
    if (!shape_is_paged(s)) {
        s->kv_resident = 0;
        return OK;
    }
    return fit_chunk(s, e);
}

/* A span of at most a quarter of the pool; a longer one would leave no room for scored pages. */
static void pin(residency *r, int64_t from, int64_t to)
{
    if (to - from <= (int64_t)r->rules.pool * KV_PAGE / 4)
        residency_pin(r, from, to);
}

void paging_pin(timeline *t, const int32_t *ids, int64_t n)
{
    const carat_model *m = t->m;
    int64_t second = 0, last[2] = {0, 0}; /* beginnings of the second and the last two turns */
    if (!t->kv.pager)
        return;
    residency *r = &t->kv.pager->r;
    int32_t turn = m->text && m->chat ? vocab_mark(m->text, m->chat->family->turn_open) : -1;
    residency_unpin(r);
    for (int64_t i = 0, seen = 0; turn >= 0 && i < n; i++) {
        if (ids[i] != turn)
            continue;
        if (++seen == 2)
            second = i;
        last[0] = last[1];
        last[1] = i;
    }
    if (second && second < last[1]) /* else the first turn is the last user's */
        pin(r, 0, second);
    if (last[1] > last[0])
        pin(r, last[0], last[1]);
}

static bool moves_pages(const session_shape *s)
{
    return shape_is_paged(s) || s->n_pool;
}

/* Do the ends of prompts look at pages? */
static bool rescores_pages(const session_shape *s, const kv_layout *l)
{
    return shape_is_paged(s) && s->kv_policy == KV_POLICY_SCORED && !l->n_recur;
}

uint64_t paging_bytes(const session_shape *s, const kv_layout *l, const page_query_size *query,
                      int32_t side)
{
    uint64_t each = shape_is_paged(s) ? kv_pager_bytes(l, s->kv_policy, side) : 0, all = 0;
    if (rescores_pages(s, l)) {
        each += kv_queries_bytes(query);
        all = kv_rescore_bytes(l, query, side);
    }
    return each * (uint64_t)s->n_seqs + all;
}

status paging_scorer_bytes(const carat_model *m, const session_shape *s, uint64_t *n, err *e)
{
    if (shape_is_paged(s) && s->kv_policy == KV_POLICY_DRAFTER && m->scorer)
        return page_scorer_bytes(m, s->n_ctx, s->n_seqs, n, e);
    *n = 0;
    return OK;
}

status paging_open_mover(const session_shape *s, kv_pool *p, const carat_session_options *opt,
                         err *e)
{
    const kv_mover_want w = {.host_bytes = s->kv_host_mb ? (int64_t)s->kv_host_mb << 20 : -1,
                             .dir = opt ? opt->cache_dir : NULL,
                             .file_bytes = cache_dir_bytes(opt)};
    return moves_pages(s) ? kv_mover_open(p, &w, e) : OK;
}

/* Devices that cannot score pages keep the youngest ones. */
static void fall_back(session_shape *s, const kv_layout *l, device *dev)
{
    bool watches = s->kv_policy == KV_POLICY_SCORED || s->kv_policy == KV_POLICY_SNAPKV;
    if (!watches || kv_pager_can_score(l, dev))
        return;
    s->kv_policy = KV_POLICY_LRU;
    snprintf(s->policy_why, sizeof s->policy_why, "%s cannot score pages", dev->name);
}

status paging_open(session_shape *s, timeline *t, err *e)
{
    kv_cache *c = &t->kv;
    status st;
    if (!shape_is_paged(s))
        return OK;
    fall_back(s, c->layout, c->dev[PASS_MAIN]);
    if (s->kv_policy == KV_POLICY_DRAFTER && (st = page_scorer_open(&t->scorer, t->m, s->n_ctx, e)))
        return st;
    page_query_size query[PASS_SIDES_MAX];
    bool rescores = rescores_pages(s, c->layout);
    if (rescores && (st = plan_queries(t->m, c->layout, query, e)))
        return st;
    const kv_pager_want w = {.policy = s->kv_policy,
                             .tau = s->kv_tau,
                             .n_resident = s->kv_resident,
                             .rows_max = own_rows(s),
                             .query = rescores ? query : NULL};
    return kv_pager_open(c, &w, e);
}

status paging_score(timeline *t, const int32_t *next, int64_t end, bool prompt, err *e)
{
    kv_cache *c = &t->kv;
    int64_t n = c->n_past;
    if (!t->scorer)
        return OK;
    /* The last chunk of a prompt sees the pages that its own end asks for. */
    if (prompt && end == t->n_prompt && !kv_pager_held(c))
        kv_pager_rescore(c, end);
    if (!kv_pager_rescores(c))
        return OK;
    end = prompt ? end : n + 1;
    memmove(t->id + n, next, (size_t)(end - n) * sizeof *t->id);
    return page_scorer_ask(t->scorer, t->id, end, kv_pager_scores(c, pages_of(end)), e);
}

int32_t paging_watch(kv_cache *c, int32_t seq, const pass_part *part, page_watch *to)
{
    bool prompt_end = part->prompt && kv_rows_wanted(&part->rows) > 0;
    /* The end of a prompt for the second time: its pages have been chosen. */
    bool looked = prompt_end && part->rows.want == KV_WANT_LAST && !c->layout->n_recur;
    const page_watch *w = c->pager && !part->hidden && !looked
                              ? kv_pager_watch(c, seq, part->rows.n, prompt_end)
                              : NULL;
    if (!w)
        return 0;
    *to = *w;
    to->keep = part->rescore ? kv_pager_queries(c) : NULL;
    return 1;
}

void paging_watched(kv_cache *c, const pass_part *part, bool ok)
{
    kv_pager_watched(c, ok ? part->rows.n : 0);
    if (ok && part->prompt && kv_rows_wanted(&part->rows))
        c->pager->wants_rescore = true;
}

status paging_rescore(kv_cache *c, const pass_part *part, err *e)
{
    return part->rescore ? kv_pager_rescore_votes(c, e) : OK;
}

const char *paging_lossy(const timeline *t)
{
    return kv_pager_lossy(&t->kv) ? policy_names[t->kv.pager->policy] : NULL;
}

int64_t paging_most(const timeline *t, int64_t n)
{
    int64_t most = t->kv.pager ? (int64_t)t->kv.pager->r.rules.pool * KV_PAGE : n;
    return n < most ? n : most;
}

/* Where the rows begin that are computed twice: a page before the last whole one. Half of a pass at
 * most, because a batch has rows of answers beside them. */
static int64_t rescore_start(const timeline *t, int64_t end)
{
    int64_t rows = KV_PAGE + end % KV_PAGE, most = (t->kv.pager->r.rules.rows_max + 1) / 2;
    return end - (rows < most ? rows : most);
}

static bool polls_twice(const timeline *t, int64_t end)
{
    return t->kv.pager && t->kv.pager->sums && !t->kv.layout->n_recur &&
           kv_pager_is_short(&t->kv, end);
}

bool paging_rescores(const timeline *t, int64_t end)
{
    return polls_twice(t, end);
}

pass_part paging_rescore_part(pass_part part)
{
    part.rescore = true;
    part.rows.want = KV_WANT_TAIL;
    part.rows.n_wanted = KV_WATCH_ROWS;
    return part;
}

int64_t paging_until(const timeline *t, int64_t end)
{
    return t->kv.pager && kv_pager_is_short(&t->kv, end) ? paging_pass_end(t, end) : 0;
}

bool paging_is_whole(const timeline *t, int64_t end)
{
    return polls_twice(t, end) && t->kv.n_past >= rescore_start(t, end);
}

int64_t paging_pass_end(const timeline *t, int64_t end)
{
    int64_t now = t->kv.n_past, rows, next;
    if (!t->kv.pager || !kv_pager_is_short(&t->kv, end))
        return end;
    rows = t->kv.pager->r.rules.rows_max;
    rows = rows >= KV_PAGE ? rows / KV_PAGE * KV_PAGE : rows;
    next = (now / rows + 1) * rows;
    if (polls_twice(t, end) && now < rescore_start(t, end))
        end = rescore_start(t, end);
    else if (polls_twice(t, end))
        return end;
    return next < end ? next : end;
}

void carat_session_get_pool(const carat_session *s, carat_pool_info *info)
{
    const session_shape *shape = &s->b.shape;
    const timeline *own = &s->b.slot->t;
    const kv_pager *g = own->kv.pager;
    *info = (carat_pool_info){.n_tokens = shape->kv_resident, .why = shape->pool_why};
    if (!g)
        return;
    info->on = true;
    info->policy = policy_names[g->policy];
    info->policy_why = shape->policy_why;
    info->lossy = kv_pager_lossy(&own->kv);
    info->n_paged_out = own->kv.n_absent;
    info->n_out = g->r.n_out;
    info->n_in = g->r.n_in;
    info->n_reselected = g->n_reselected;
    kv_mover_info moved;
    kv_mover_get_info(&s->b.pool, &moved);
    info->page_bytes = moved.page_bytes;
    info->host_bytes = (uint64_t)moved.n_memory * moved.page_bytes;
    info->file_bytes = (uint64_t)moved.n_file * moved.page_bytes;
}
