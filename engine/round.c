/* round.c - drafts of answers and their verdicts. round.h has the order of the calls.
 *
 * Nothing here depends on what a drafter proposes, except how many tokens a pass takes: tokens come
 * from generation_next alone, with the logits of a row whose context is exactly the answer so far.
 */
#include "engine/round.h"
#include "base/clock.h"
#include "base/mem.h"
#include "spec/script.h"

#include <string.h>

/* ---- Opening --------------------------------------------------------------------------- */

static status open_arrays(rounds *r, int32_t rows_max, err *e)
{
    size_t n = (size_t)r->n_seqs;
    r->reply = mem_calloc(n, sizeof *r->reply);
    r->seated = mem_calloc(n, sizeof *r->seated);
    r->seat = mem_calloc(n, sizeof *r->seat);
    r->ask = mem_calloc(n, sizeof *r->ask);
    r->kept = mem_calloc(n, sizeof *r->kept);
    r->kept_t = mem_calloc(n, sizeof *r->kept_t);
    r->kept_row = mem_calloc((size_t)rows_max, sizeof *r->kept_row);
    if (r->reply && r->seated && r->seat && r->ask && r->kept && r->kept_t && r->kept_row)
        return OK;
    return err_memory(e, "the rounds of a session", n * sizeof *r->reply);
}

status rounds_open(rounds **out, carat_model *m, const session_shape *shape, const kv_layout *l,
                   workspace *w, err *e)
{
    const draft_sizes z = plan_draft_sizes(m, shape, l);
    rounds *r = *out = mem_calloc(1, sizeof *r);
    status st;
    if (!r)
        return err_memory(e, "the rounds of a session", sizeof *r);
    *r = (rounds){.m = m,
                  .n_seqs = shape->n_seqs,
                  .verify_rows = shape->verify_rows,
                  .draft_slots = shape->draft_slots,
                  .draft_tree = shape->draft_tree,
                  .pass = &w->batch.st};
    if ((st = open_arrays(r, l->rows_max, e)))
        goto out;
    for (int i = 0; i < DRAFTERS_MAX && shape->draft_slots; i++) {
        const draft_model *d = m->draft[i];
        if (!d)
            continue;
        if ((!r->times && (st = draft_times_open(&r->times, e))) ||
            (st = d->class->open(d, &z, &r->d[i], e)))
            goto out;
        if (r->d[i]->taps)
            w->taps = r->d[i]->taps;
    }
out:
    if (st) {
        rounds_close(r);
        *out = NULL;
    }
    return st;
}

void rounds_close(rounds *r)
{
    if (!r)
        return;
    for (int i = 0; r->reply && i < r->n_seqs; i++)
        reply_close(&r->reply[i]);
    for (int i = 0; i < DRAFTERS_MAX; i++)
        if (r->d[i])
            r->d[i]->class->close(r->d[i]);
    draft_times_close(r->times);
    mem_free(r->kept_row);
    mem_free(r->kept_t);
    mem_free(r->kept);
    mem_free(r->ask);
    mem_free(r->seat);
    mem_free(r->seated);
    mem_free(r->reply);
    mem_free(r);
}

status rounds_attach(rounds *r, timeline *t, err *e)
{
    status st;
    if (!r->times)
        return OK;
    t->rounds = r;
    for (int i = 0; i < DRAFTERS_MAX; i++) {
        drafter *d = r->d[i];
        if (!d)
            continue;
        if ((st = d->class->state_open(d, &t->draft[i], e)))
            return st;
        if (t->store && d->class->cache && d->class->cache(t->draft[i]))
            checkpoints_know_drafter(t->store, &d->m->core, d->class->cache(t->draft[i])->layout);
    }
    return OK;
}

void rounds_detach(timeline *t)
{
    for (int i = 0; i < DRAFTERS_MAX; i++) {
        drafter *d = t->rounds ? t->rounds->d[i] : NULL;
        if (d && t->draft[i])
            d->class->state_close(d, t->draft[i]);
        t->draft[i] = NULL;
    }
    t->rounds = NULL;
}

void rounds_forget(timeline *t, int64_t n)
{
    if (!t->rounds)
        return;
    pthread_mutex_lock(&t->m->pass_lock);
    for (int i = 0; i < DRAFTERS_MAX; i++) {
        drafter *d = t->rounds->d[i];
        if (d && t->draft[i])
            d->class->forget(d, t->draft[i], n);
    }
    pthread_mutex_unlock(&t->m->pass_lock);
}

/* The most slots of each drafter that still drafts. */
static bool drafters_left(const rounds *r, int32_t n_slots[DRAFTERS_MAX])
{
    bool any = false;
    for (int i = 0; i < DRAFTERS_MAX; i++) {
        n_slots[i] = r->d[i] && !r->failed[i] ? r->d[i]->m->n_slots : 0;
        if (n_slots[i] > r->draft_slots)
            n_slots[i] = r->draft_slots;
        any |= n_slots[i] > 0;
    }
    return any;
}

status reply_open(rounds *r, reply *x, generation *g, err *e)
{
    const carat_speculation *s = &generation_options(g)->speculation;
    int32_t n_slots[DRAFTERS_MAX];
    x->g = g;
    x->tree.n = 0;
    if (!drafters_left(r, n_slots) || s->off)
        return OK;
    const draft_wish wish = {.n_max = s->n_max,
                             .tree_max = s->tree_max ? s->tree_max : r->draft_tree,
                             .fixed = s->fixed};
    return draft_control_open(&x->control, r->times, n_slots, &wish, e);
}

void reply_close(reply *x)
{
    draft_control_close(x->control);
    x->control = NULL;
    x->g = NULL;
    x->n_rounds = x->n_drafted = x->n_accepted = 0; /* an answer that never opens has none */
}

/* ---- Drafting -------------------------------------------------------------------------- */

static void drafter_fails(rounds *r, int which, const err *e)
{
    r->failed[which] = true;
    err_set(&r->why, e->status, "%s", e->text);
}

/* Ids that the target does not have end a proposal. */
static void cut_unknown_ids(proposal *p, int32_t n_vocab)
{
    for (int32_t i = 0; i < p->n_slots; i++)
        for (int32_t k = 0; k < p->n_ranks; k++)
            if (p->id[i][k] >= n_vocab || (!k && p->id[i][k] < 0))
                p->n_slots = i;
}

/* Proposals of r->ask[0..n). */
static void propose(rounds *r, int which, int32_t n)
{
    drafter *d = r->d[which];
    err e = {0};
    status st = OK;
    for (int32_t i = 0; i < n; i++)
        r->ask[i].out->n_slots = 0;
    if (!n || r->failed[which])
        return;
    pthread_mutex_lock(&r->m->pass_lock);
    double start = clock_ms();
    if (drafter_is_loaded(r->m, which))
        st = d->class->propose(d, r->ask, n, &e);
    r->draft_ms[which] = clock_ms() - start;
    pthread_mutex_unlock(&r->m->pass_lock);
    if (st)
        drafter_fails(r, which, &e);
    for (int32_t i = 0; i < n; i++) {
        if (st)
            r->ask[i].out->n_slots = 0;
        cut_unknown_ids(r->ask[i].out, r->m->core.n_vocab);
    }
}

/* What a drafter is asked for seat i; false: nothing. */
static bool make_ask(rounds *r, int which, int32_t seat, int32_t n_slots, draft_ask *ask)
{
    reply *x = r->seated[seat];
    const draft_seat *s = &r->seat[seat];
    const carat_generate_options *o = generation_options(x->g);
    int32_t most = r->d[which]->m->n_slots;
    most = most < r->draft_slots ? most : r->draft_slots;
    most = most < s->rows - 1 ? most : s->rows - 1;
    most = most < s->tokens - 1 ? most : s->tokens - 1;
    *ask = (draft_ask){.s = x->t->draft[which],
                       .target = &x->t->kv,
                       .id = x->t->id,
                       .n = x->t->kv.n_past + 1,
                       .n_slots = n_slots < most ? n_slots : most,
                       .n_ranks = DRAFT_RANKS_MAX,
                       .at = timeline_place(x->t).next,
                       .predicted = o->predicted,
                       .n_predicted = o->n_predicted,
                       .n_answer = generation_count(x->g),
                       .out = which == DRAFTER_LOOKUP ? &x->found : &x->proposed};
    return s->c && ask->n_slots > 0;
}

/* With a script, its tokens replace those of the drafter. */
static void follow_script(rounds *r, int which, int32_t n)
{
    for (int32_t i = 0; i < r->n_seats && n; i++) {
        reply *x = r->seated[i];
        const carat_script *s = generation_options(x->g)->script;
        proposal *p = which == DRAFTER_LOOKUP ? &x->found : &x->proposed;
        for (int32_t k = 0; s && k < n; k++)
            if (r->ask[k].out == p)
                script_propose(s, generation_count(x->g), x->n_rounds, r->m->core.n_vocab,
                               &r->ask[k]);
    }
}

/* Lookup costs next to nothing, so it proposes before the choice. A script belongs to the drafter
 * with weights, if there is one. */
static void look_up(rounds *r)
{
    int32_t n = 0;
    if (!r->d[DRAFTER_LOOKUP])
        return;
    for (int32_t i = 0; i < r->n_seats; i++) {
        if ((generation_options(r->seated[i]->g)->script && r->d[DRAFTER_MODEL]) ||
            !make_ask(r, DRAFTER_LOOKUP, i, r->draft_slots, &r->ask[n]))
            continue;
        r->seat[i].found = &r->seated[i]->found;
        n++;
    }
    propose(r, DRAFTER_LOOKUP, n);
    follow_script(r, DRAFTER_LOOKUP, n);
}

static void ask_model(rounds *r)
{
    int32_t n = 0;
    for (int32_t i = 0; i < r->n_seats; i++) {
        const draft_choice *c = &r->seat[i].choice;
        if (c->drafter != DRAFTER_MODEL || !r->d[DRAFTER_MODEL] ||
            !make_ask(r, DRAFTER_MODEL, i, c->n_slots, &r->ask[n]))
            continue;
        r->ask[n++].n_ranks = c->budget > 0 ? DRAFT_RANKS_MAX : 1;
    }
    propose(r, DRAFTER_MODEL, n);
    follow_script(r, DRAFTER_MODEL, n);
}

static void grow_trees(rounds *r)
{
    for (int32_t i = 0; i < r->n_seats; i++) {
        reply *x = r->seated[i];
        draft_seat *s = &r->seat[i];
        const draft_choice *c = &s->choice;
        const proposal *p = c->drafter == DRAFTER_LOOKUP ? s->found : &x->proposed;
        int32_t last = generation_token(x->g), nodes = s->rows - 1;
        if (!s->c || c->n_slots < 1 || !p || !p->n_slots)
            continue;
        x->drafter = c->drafter;
        if (c->budget > 0) {
            tree_weights w;
            draft_control_weigh(r->times, s, p, &w);
            tree_grow(&x->tree, p, &w, last, c->budget < nodes ? c->budget : nodes);
        } else
            tree_chain(&x->tree, p, last, c->n_slots < nodes ? c->n_slots : nodes);
        s->tree = x->tree.n ? &x->tree : NULL;
    }
}

/* The first nodes of a tree are a tree. */
static void cut_trees(rounds *r, int32_t rows)
{
    int32_t left = rows - r->n_seats;
    for (int32_t i = 0; i < r->n_seats; i++) {
        draft_tree *t = &r->seated[i]->tree;
        int32_t most = r->seat[i].rows - 1 < left ? r->seat[i].rows - 1 : left;
        if (t->n > most)
            t->n = most > 0 ? most : 0;
        if (!t->n) {
            t->chain = true;
            r->seat[i].tree = NULL;
        }
        left -= t->n;
    }
}

void rounds_draft(rounds *r, reply *const *x, int32_t n, int32_t rows, bool chains)
{
    r->n_seats = n;
    memset(r->draft_ms, 0, sizeof r->draft_ms);
    r->absorb_ms = 0;
    for (int32_t i = 0; i < n; i++) {
        reply *a = r->seated[i] = x[i];
        timeline *t = a->t;
        int64_t room = t->kv.layout->n_ctx - t->kv.n_past;
        if (t->kv.pager && kv_pager_answer_end(&t->kv) - t->kv.n_past < room)
            room = kv_pager_answer_end(&t->kv) - t->kv.n_past;
        a->tree.n = a->n_path = 0;
        a->tree.chain = true;
        a->tree.token[0] = generation_token(a->g);
        a->tree.parent[0] = -1;
        a->tree.depth[0] = 0;
        t->id[t->kv.n_past] = a->tree.token[0];
        r->seat[i] = (draft_seat){.c = a->control,
                                  .rows = room < r->verify_rows ? (int32_t)room : r->verify_rows,
                                  .tokens = generation_left(a->g),
                                  .chain = chains,
                                  .n_ctx = t->kv.n_past};
    }
    if (!r->times)
        return;
    look_up(r);
    draft_control_choose(r->times, r->seat, n, rows);
    ask_model(r);
    grow_trees(r);
    draft_control_trim(r->times, r->seat, n, rows);
    cut_trees(r, rows);
}

pass_part reply_part(const reply *x)
{
    return (pass_part){.t = x->t,
                       .rows = {.token = x->tree.token,
                                .parent = x->tree.chain ? NULL : x->tree.parent,
                                .n = 1 + x->tree.n,
                                .want = KV_WANT_ALL},
                       .n_best = generation_needs(x->g)};
}

/* ---- Verdicts -------------------------------------------------------------------------- */

status reply_walk(rounds *r, reply *x, workspace *w, const pass_part *part,
                  const atomic_bool *cancel, err *e)
{
    timeline *t = x->t;
    int64_t n_past = t->kv.n_past;
    int32_t row = 0;
    row_logits y;
    status st;
    x->n_path = 0;
    for (;;) {
        if ((st = read_logits(r->m, w, part, row, n_past + x->n_path, &y, e)))
            break;
        t->id[n_past + x->n_path] = x->tree.token[row];
        x->path[x->n_path++] = row;
        if ((st = generation_next(x->g, t, n_past + x->n_path, w, y, e)) || generation_ended(x->g))
            break;
        row = tree_child(&x->tree, row, generation_token(x->g));
        bool lacks = part->n_best && !generation_needs(x->g); /* all logits, and some are known */
        if (row < 0 || lacks || atomic_load_explicit(cancel, memory_order_relaxed))
            break;
    }
    x->ended = st || generation_ended(x->g);
    rounds_keep(r, part, x->tree.chain ? NULL : x->path, x->n_path);
    return st;
}

/* The wanted row's number among the wanted rows of the pass; -1: its logits are not wanted. */
static int32_t wanted_number(const pass_part *p, int32_t row)
{
    int32_t k = 0;
    switch (p->rows.want) {
    case KV_WANT_ALL:
        return p->out0 + row;
    case KV_WANT_LAST:
        return row == p->rows.n - 1 ? p->out0 : -1;
    case KV_WANT_TAIL: {
        int32_t first = p->rows.n - kv_rows_wanted(&p->rows);
        return row >= first ? p->out0 + row - first : -1;
    }
    case KV_WANT_LISTED:
        while (k < p->rows.n_wanted && p->rows.wanted[k] != row)
            k++;
        return k < p->rows.n_wanted ? p->out0 + k : -1;
    default:
        return -1;
    }
}

void rounds_keep(rounds *r, const pass_part *part, const int32_t *path, int32_t n)
{
    timeline *t = part->t;
    int64_t n_past = t->kv.n_past;
    timeline_commit(t, part, path, n);
    if (!r->times)
        return;
    int32_t *row = r->kept_row + r->n_kept_rows;
    for (int32_t i = 0; i < n; i++)
        row[i] = part->row0 + (path ? path[i] : i);
    r->kept_t[r->n_kept] = t;
    r->kept[r->n_kept++] =
        (draft_kept){.target = &t->kv,
                     .id = t->id,
                     .n_past = n_past,
                     .n = n,
                     .row = row,
                     .pass = r->pass,
                     .norm_row = n ? wanted_number(part, path ? path[n - 1] : n - 1) : -1};
    r->n_kept_rows += n;
}

void rounds_absorb(rounds *r)
{
    double start = clock_ms();
    for (int i = 0; i < DRAFTERS_MAX && r->n_kept; i++) {
        drafter *d = r->d[i];
        err e = {0};
        status st = OK;
        if (!d || r->failed[i] || !d->class->absorb)
            continue;
        for (int32_t k = 0; k < r->n_kept; k++)
            r->kept[k].s = r->kept_t[k]->draft[i];
        pthread_mutex_lock(&r->m->pass_lock);
        if (drafter_is_loaded(r->m, i)) /* else the rows are missed: drafter.h */
            st = d->class->absorb(d, r->kept, r->n_kept, &e);
        pthread_mutex_unlock(&r->m->pass_lock);
        if (st)
            drafter_fails(r, i, &e);
    }
    r->n_kept = r->n_kept_rows = 0;
    r->absorb_ms = clock_ms() - start;
}

void rounds_settle(timeline *t)
{
    for (int i = 0; t->rounds && i < DRAFTERS_MAX; i++) {
        drafter *d = t->rounds->d[i];
        err e = {0};
        if (!d || t->rounds->failed[i] || !d->class->settle)
            continue;
        pthread_mutex_lock(&t->m->pass_lock);
        status st = drafter_is_loaded(t->m, i) ? d->class->settle(d, &e) : OK;
        pthread_mutex_unlock(&t->m->pass_lock);
        if (st)
            drafter_fails(t->rounds, i, &e);
    }
}

static void tell_round(rounds *r, reply *x, double pass_ms, int32_t n_rows)
{
    const carat_generate_options *o = generation_options(x->g);
    int32_t accepted = x->n_path > 0 ? x->n_path - 1 : 0;
    x->n_rounds++;
    x->n_drafted += x->tree.n;
    x->n_accepted += accepted;
    r->n_rounds++;
    r->n_drafted += (uint64_t)x->tree.n;
    r->n_accepted += (uint64_t)accepted;
    if (o->on_round)
        o->on_round(o->round_user, &(carat_round){.drafter = r->d[x->drafter]->class->name,
                                                  .n_drafted = x->tree.n,
                                                  .n_accepted = accepted,
                                                  .n_rows = n_rows,
                                                  .tree = !x->tree.chain,
                                                  .draft_ms = r->draft_ms[x->drafter],
                                                  .pass_ms = pass_ms + r->absorb_ms});
}

/* Is this a pass whose time says nothing of later ones? A GPU runs the first pass of a shape
 * plainly and records the second one. Charged to drafts, that stops good drafters: the next width
 * is always a new one. After some such passes their time is counted, since a shape may never be
 * recorded. */
static bool is_first_of_kind(rounds *r, int32_t n_rows, bool fresh)
{
    enum { FRESH_MOST = 4 };
    bool first =
        fresh && n_rows >= 0 && n_rows <= STEP_TREE_ROWS_MAX && r->n_fresh[n_rows] < FRESH_MOST;
    if (first)
        r->n_fresh[n_rows]++;
    return first;
}

void rounds_tell(rounds *r, double pass_ms, int32_t n_rows, bool mixed, bool fresh)
{
    bool measured = !is_first_of_kind(r, n_rows, fresh) && !mixed;
    for (int32_t i = 0; i < r->n_seats; i++) {
        reply *x = r->seated[i];
        r->seat[i].last_row = x->n_path > 0 ? x->path[x->n_path - 1] : 0;
        r->seat[i].ended = x->ended;
    }
    if (r->times)
        draft_control_tell(r->times, r->seat, r->n_seats, measured ? pass_ms + r->absorb_ms : 0,
                           r->draft_ms);
    for (int32_t i = 0; i < r->n_seats; i++)
        if (r->seated[i]->tree.n)
            tell_round(r, r->seated[i], pass_ms, n_rows);
    r->n_seats = 0;
}

void rounds_drop(rounds *r)
{
    r->n_seats = 0;
    r->n_kept = r->n_kept_rows = 0;
}

void reply_report(const reply *x, carat_timings *t)
{
    t->n_rounds = x->n_rounds;
    t->n_drafted = x->n_drafted;
    t->n_accepted = x->n_accepted;
}
