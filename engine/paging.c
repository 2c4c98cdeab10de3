/* paging.c - sessions whose keys have a pool smaller than their context: options to a shape, the
 * size that `auto` chooses, and what such a session cannot do.
 */
#include "engine/engine_int.h"
#include "kv/pager.h"
#include "text/family.h"

#include <stdio.h>
#include <string.h>

enum {
    AUTO_MOST = 16384, /* tokens: beyond it decoding loses its flat speed */
    AUTO_STEP = 256    /* tokens: auto rounds down to them */
};

bool shape_is_paged(const session_shape *s)
{
    return s->kv_resident > 0 && s->kv_resident < s->n_ctx;
}

static int32_t whole_pages(int64_t tokens)
{
    return (int32_t)((tokens + KV_PAGE - 1) / KV_PAGE * KV_PAGE);
}

status paging_options(const carat_session_options *opt, session_shape *s, err *e)
{
    static const char *const names[] = {"scored", "lru"};
    const char *policy = opt->kv_policy ? opt->kv_policy : names[KV_POLICY_SCORED];
    bool known = false;
    if (opt->kv_resident < -1 || opt->kv_resident > INT32_MAX - KV_PAGE)
        return err_set(e, E_ARG, "a pool of %d tokens of keys: expected -1 (chosen), or tokens",
                       opt->kv_resident);
    for (int i = 0; i < 2; i++)
        if (!strcmp(policy, names[i])) {
            s->kv_policy = (kv_policy)i;
            known = true;
        }
    if (!known)
        return err_set(e, E_ARG, "\"%s\" is no policy for a pool of keys: scored or lru", policy);
    if (opt->kv_tau < 0 || opt->kv_host_mb < 0)
        return err_set(e, E_ARG,
                       "a pool of keys with %d tokens between choices and %d MiB on the "
                       "host: expected 1 or more, or 0 for the default",
                       opt->kv_tau, opt->kv_host_mb);
    s->kv_tau = opt->kv_tau ? opt->kv_tau : RESIDENCY_TAU;
    s->kv_host_mb = opt->kv_host_mb;
    s->kv_resident = opt->kv_resident > 0 ? whole_pages(opt->kv_resident) : opt->kv_resident;
    return OK;
}

/* Tokens of keys on all devices for half of the memory that everything else leaves. */
static status choose_pool(const carat_model *m, session_shape *s, err *e)
{
    carat_memory_plan with, without;
    session_shape small = *s, more = *s;
    status st;
    small.kv.single = more.kv.single = KV_SINGLE_OFF;
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
    uint64_t left = without.available_bytes > without.total_bytes
                        ? without.available_bytes - without.total_bytes
                        : 0;
    uint64_t n = per_token ? left / 2 / per_token : AUTO_MOST;
    if (!without.available_bytes)
        n = AUTO_MOST;
    n = n < AUTO_MOST ? n / AUTO_STEP * AUTO_STEP : AUTO_MOST;
    s->kv_resident = n < (uint64_t)small.kv_resident ? small.kv_resident : (int32_t)n;
    snprintf(s->pool_why, sizeof s->pool_why,
             "half of the %.2f GiB that are left over, at %.2f KiB a token, at most %d: %d tokens",
             (double)left * 0x1p-30, (double)per_token * 0x1p-10, AUTO_MOST,
             s->kv_resident < s->n_ctx ? s->kv_resident : s->n_ctx);
    return OK;
}

/* A pass is at most a quarter of the pool, so that scored pages have room beside it. */
static status fit_chunk(session_shape *s, err *e)
{
    int32_t most = s->kv_resident / 4 / KV_PAGE * KV_PAGE;
    most = most < KV_PAGE ? KV_PAGE : most;
    if (s->chunk > most)
        s->chunk = most;
    if (s->n_outputs > s->chunk)
        s->n_outputs = s->chunk;
    const residency_rules r = {
        .sinks = RESIDENCY_SINKS, .tail = RESIDENCY_TAIL, .rows_max = s->chunk};
    int32_t least = residency_pool_min(&r) * KV_PAGE;
    if (s->kv_resident < least)
        return err_set(e, E_ARG, "a pool of %d tokens of keys is too small: expected %d or more",
                       s->kv_resident, least);
    return OK;
}

status paging_refuse_snapshots(const timeline *t, err *e)
{
    return t->kv.pager ? err_set(e, E_UNSUPPORTED,
                                 "a session whose pool of keys is smaller than its context (%d of "
                                 "%d tokens) takes and restores no snapshots",
                                 t->kv.pager->r.rules.pool * KV_PAGE, t->kv.layout->n_ctx)
                       : OK;
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
    if (s->n_seqs > 1)
        return err_set(e, E_UNSUPPORTED,
                       "a pool of keys smaller than the context is for one conversation, not for a "
                       "batch");
    if (s->kv.single == KV_SINGLE_ON)
        return err_set(e, E_UNSUPPORTED,
                       "a pool of keys smaller than the context keeps two streams: keys made of "
                       "values would need every token before them");
    if (m->draft[DRAFTER_MODEL])
        return err_set(e, E_UNSUPPORTED,
                       "a drafter with weights reads all keys, and the pool holds %d of %d tokens: "
                       "expected --draft none or lookup",
                       s->kv_resident, s->n_ctx);
    s->kv.single = KV_SINGLE_OFF;
    s->checkpoint_mb = -1;
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

uint64_t paging_bytes(const session_shape *s, const kv_layout *l, int32_t side)
{
    return shape_is_paged(s) ? kv_pager_bytes(l, s->kv_policy, side) : 0;
}

/* Devices that cannot score pages keep the youngest ones. */
static void fall_back(session_shape *s, const kv_layout *l, device *dev)
{
    if (s->kv_policy != KV_POLICY_SCORED || kv_pager_can_score(l, dev))
        return;
    s->kv_policy = KV_POLICY_LRU;
    snprintf(s->policy_why, sizeof s->policy_why, "%s cannot score pages", dev->name);
}

status paging_open(session_shape *s, kv_cache *c, err *e)
{
    if (shape_is_paged(s))
        fall_back(s, c->layout, c->dev[PASS_MAIN]);
    kv_pager_want w = {.policy = s->kv_policy,
                       .tau = s->kv_tau,
                       .host_bytes = s->kv_host_mb ? (int64_t)s->kv_host_mb << 20 : -1};
    return shape_is_paged(s) ? kv_pager_open(c, &w, e) : OK;
}

int32_t paging_watch(kv_cache *c, int32_t seq, const pass_part *part, page_watch *to)
{
    bool prompt_end = part->prompt && kv_rows_wanted(&part->rows) > 0;
    const page_watch *w =
        c->pager && !part->hidden ? kv_pager_watch(c, seq, part->rows.n, prompt_end) : NULL;
    if (w)
        *to = *w;
    return w != NULL;
}

void paging_watched(kv_cache *c, const pass_part *part)
{
    kv_pager_watched(c, part->rows.n);
    if (part->prompt)
        c->pager->wants_look = true;
}

bool paging_second_look(const timeline *t)
{
    return t->kv.pager && t->kv.pager->wants_look && !t->kv.layout->n_recur;
}

void carat_session_get_pool(const carat_session *s, carat_pool_info *info)
{
    const kv_pager *g = s->t.kv.pager;
    *info = (carat_pool_info){.n_tokens = s->shape.kv_resident, .why = s->shape.pool_why};
    if (!g)
        return;
    info->on = true;
    info->policy = g->policy == KV_POLICY_SCORED ? "scored" : "lru";
    info->policy_why = s->shape.policy_why;
    info->lossy = g->lossy;
    info->n_away = s->t.kv.n_absent;
    info->n_out = g->r.n_out;
    info->n_in = g->r.n_in;
    info->n_reselected = g->n_reselected;
    info->page_bytes = g->page_bytes;
    info->host_bytes = (uint64_t)g->r.n_copied * g->page_bytes;
}
