/* admission.c - which jobs of a batch have pages for the next pass, and which wait.
 *
 * Nothing here matters while the pool of keys has pages for every slot's whole context. A smaller
 * pool runs short. Then pages come, in this order, from
 *
 *     checkpoints       copied to host memory within their budget, or dropped
 *     idle slots        whose conversations become checkpoints
 *     running jobs      the one that began last leaves the pool: its pages wait in host memory
 *
 * A job takes pages only from jobs that began after it. So the oldest job always goes on, all
 * others do so in turn, and nothing is computed twice. A job that finds no pages skips the pass. A
 * job from the queue begins when the pool has room for its prompt beside the running jobs, and when
 * no job waits in host memory any more.
 */
#include "engine/batch_int.h"
#include "engine/media.h"

#include <string.h>

/* The running slots, in the order in which their jobs began. */
typedef struct seniority {
    slot *at[STEP_SEQS_MAX];
    int32_t n;
} seniority;

static seniority running_slots(carat_batch *b)
{
    seniority r = {.n = 0};
    for (int32_t i = 0; i < b->n_slots; i++) {
        slot *s = &b->slot[i];
        int32_t at = r.n;
        if (!s->job)
            continue;
        for (; at > 0 && r.at[at - 1]->job->id > s->job->id; at--)
            r.at[at] = r.at[at - 1];
        r.at[at] = s;
        r.n++;
    }
    return r;
}

/* The most rows that s may have in the next pass. */
static int32_t rows_of(const carat_batch *b, const slot *s)
{
    int64_t at = s->t.kv.n_past, left = b->shape.n_ctx - at, most = s->want.left;
    bool prompt = s->by->prompt;
    if (s->t.kv.pager) { /* as far as no page moves */
        int64_t end = prompt ? timeline_pass_end(&s->t, s->job->n) : kv_pager_answer_end(&s->t.kv);
        most = end - at < most ? end - at : most;
        most = prompt && most > b->shape.chunk ? b->shape.chunk : most;
    }
    if (prompt && most > b->layout.rows_max)
        most = b->layout.rows_max;
    return (int32_t)(most < left ? most : left);
}

/* Free pages that s needs for so many rows, and to come back if it has left. */
static int32_t pages_for(const slot *s, int32_t rows)
{
    const kv_cache *c = &s->t.kv;
    const pages *p = &c->pool->pages;
    int32_t at = (int32_t)(c->n_past % KV_PAGE),
            last = kv_page_of(c, (int32_t)(c->n_past / KV_PAGE));
    /* Another holder of the last page may write to it first, and then it has to be copied. */
    bool copy = at && last >= 0 && p->holders[last] > 1 && pages_may_write(p, last, at);
    return c->n_paged_out + kv_pages_needed(c, rows) + copy;
}

/* The conversation of the idle slot that was used least recently becomes a checkpoint. */
static bool empty_idle_slot(carat_batch *b)
{
    slot *oldest = NULL;
    for (int32_t i = 0; i < b->n_slots; i++) {
        slot *s = &b->slot[i];
        if (!s->job && s->t.kv.n_pages && (!oldest || s->used_at < oldest->used_at))
            oldest = s;
    }
    if (oldest)
        timeline_restart(&oldest->t);
    return oldest;
}

/* Moves s out of the pool. leaving: as kv_page_out. False: that freed no page. */
static bool preempt(carat_batch *b, slot *s, const int32_t *leaving, int32_t n_wanted,
                    int32_t *n_ended)
{
    int32_t before = b->pool.pages.n_free;
    bool here = !s->t.kv.n_paged_out;
    err e = {0};
    if (s->t.kv.n_pages == s->t.kv.n_paged_out)
        return false;
    status st = timeline_page_out(&s->t, leaving, n_wanted, &e);
    b->n_preempted += here && s->t.kv.n_paged_out;
    if (b->pool.pages.n_free == before && st) { /* it cannot stay, and cannot wait */
        err why = {0};
        err_set(&why, st,
                "the pool of keys is full, and the host has no memory for a conversation that must "
                "wait: expected a larger pool (--kv-pool) or fewer slots (--parallel)");
        end_job(b, s, st, &why);
        timeline_reset(&s->t);
        ++*n_ended;
    }
    return b->pool.pages.n_free > before;
}

/* b->mark: how many of the jobs behind `of` hold each page. */
static void count_leaving(carat_batch *b, const seniority *r, int32_t of)
{
    memset(b->mark, 0, (size_t)b->pool.pages.n * sizeof *b->mark);
    for (int32_t i = of + 1; i < r->n; i++) {
        const kv_cache *c = &r->at[i]->t.kv;
        for (int32_t k = 0; k < c->n_pages; k++)
            if (c->page[k] >= 0)
                b->mark[c->page[k]]++;
    }
}

/* A job that keeps part of its context gives back pages that it has to itself alone. So the jobs
 * behind it leave with copies of all pages, also of those that it shares with them. */
static bool leave_wholly(carat_batch *b, const seniority *r, int32_t of, int32_t *n_ended)
{
    bool left = false;
    if (!r->at[of]->t.kv.pager)
        return false;
    for (int32_t i = 0; i < b->pool.pages.n; i++)
        b->mark[i] = INT32_MAX;
    for (int32_t i = r->n - 1; i > of; i--) {
        const kv_cache *c = &r->at[i]->t.kv;
        int32_t here = c->n_pages - c->n_paged_out;
        if (!r->at[i]->job)
            continue;
        preempt(b, r->at[i], b->mark, 0, n_ended);
        left |= c->n_pages - c->n_paged_out < here;
    }
    return left;
}

/* Frees pages for the job at place `of`, until n are free or a further call may free more. False:
 * there are no more. */
static bool free_some(carat_batch *b, const seniority *r, int32_t of, int32_t n, int32_t *n_ended)
{
    if (checkpoints_free_pages(b->store, n, NULL) || timeline_unshare(&r->at[of]->t) ||
        empty_idle_slot(b))
        return true;
    for (int32_t i = r->n - 1; i > of; i--)
        if (r->at[i]->job && preempt(b, r->at[i], NULL, n, n_ended))
            return true;
    /* What is left to free is shared among those that have left. */
    checkpoints_leave_page(b->store, -1);
    count_leaving(b, r, of);
    bool freed = false;
    for (int32_t i = r->n - 1; i > of; i--)
        freed |= r->at[i]->job && preempt(b, r->at[i], b->mark, n, n_ended);
    return freed || leave_wholly(b, r, of, n_ended);
}

/* Fewer rows of a prompt, as many as n pages are enough for; 0: none. */
static int32_t rows_within(const slot *s, int32_t rows, int32_t n)
{
    int64_t end = s->t.kv.n_past + rows;
    while (rows > 0 && pages_for(s, rows) > n) {
        end = (end - 1) / KV_PAGE * KV_PAGE;
        rows = (int32_t)(end - s->t.kv.n_past);
    }
    return rows > 0 ? rows : 0;
}

/* The rows' pages come before the pass, so that a failure ends this job alone. */
static bool make_ready(carat_batch *b, slot *s, int32_t rows, int32_t *n_ended)
{
    err e = {0};
    int64_t until = s->by->prompt ? paging_until(&s->t, s->job->n) : 0;
    status st =
        timeline_ready(&s->t, s->want.next, until ? until : s->t.kv.n_past + rows, until > 0, &e);
    if (!st)
        return true;
    end_job(b, s, st, &e);
    ++*n_ended;
    return false;
}

static void end_without_room(carat_batch *b, slot *s, int32_t *n_ended)
{
    err e = {0};
    err_set(&e, E_LIMIT,
            "the pool of keys holds %d tokens, too few for a conversation of more than %lld "
            "(--kv-pool)",
            b->pool.pages.n * KV_PAGE, (long long)s->t.kv.n_past);
    end_job(b, s, E_LIMIT, &e);
    ++*n_ended;
}

int32_t admission_plan(carat_batch *b)
{
    seniority r = running_slots(b);
    const pages *p = &b->pool.pages;
    int32_t taken = 0, n_ended = 0; /* taken: free pages that earlier jobs will take */
    for (int32_t i = 0; i < r.n; i++) {
        slot *s = r.at[i];
        if (!s->job) /* it has just been ended */
            continue;
        int32_t rows = rows_of(b, s), need = pages_for(s, rows);
        bool more = true;
        while (p->n_free - taken < need && more) {
            more = free_some(b, &r, i, taken + need, &n_ended);
            need = pages_for(s, rows); /* a page that is not shared any more needs no copy */
        }
        if (p->n_free - taken < need && !taken) { /* the rest is held for its own checkpoints */
            timeline_make_room(&s->t, rows);
            need = pages_for(s, rows);
        }
        bool all = kv_pager_is_short(&s->t.kv, s->t.kv.n_past + rows);
        if (p->n_free - taken < need && s->by->prompt && !s->t.kv.n_paged_out && !all) {
            rows = rows_within(s, rows, p->n_free - taken);
            if (rows < media_block(b->m, s->want.next))
                rows = 0; /* a picture that may not be cut */
            need = rows ? pages_for(s, rows) : 0;
        }
        s->most = p->n_free - taken >= need ? rows : 0;
        if (s->most && s->t.kv.n_paged_out) {
            int32_t away = s->t.kv.n_paged_out;
            if (timeline_page_in(&s->t, NULL))
                s->most = 0;
            else
                need -= away;
        }
        if (s->most && s->t.kv.pager) {
            if (!make_ready(b, s, rows, &n_ended))
                continue;
            need = pages_for(s, rows);
        }
        if (s->most)
            taken += need;
        else if (!taken && i == 0)
            end_without_room(b, s, &n_ended);
    }
    return n_ended;
}

/* ---- The queue ---------------------------------------------------------------------------- */

void admission_begin_search(carat_batch *b)
{
    b->full = false;
    for (int32_t i = 0; i < b->n_slots; i++) /* those that have begun come first */
        b->full |= b->slot[i].job && b->slot[i].t.kv.n_paged_out;
}

/* Pages that running jobs hold, or need for the rest of their prompts and the next page of each. */
static int32_t pages_in_use(carat_batch *b)
{
    int32_t n = 0;
    memset(b->mark, 0, (size_t)b->pool.pages.n * sizeof *b->mark);
    for (int32_t i = 0; i < b->n_slots; i++) {
        const slot *s = &b->slot[i];
        const kv_cache *c = &s->t.kv;
        if (!s->job)
            continue;
        for (int32_t k = 0; k < c->n_pages; k++) {
            int32_t page = c->page[k];
            n += page >= 0 && !b->mark[page]++;
        }
        int32_t all = pages_of(paging_most(&s->t, s->job->n + KV_PAGE));
        n += all > c->n_pages ? all - c->n_pages : !c->pager;
    }
    return n;
}

/* Full pages at the start of j's prompt that a running job holds: j will probably share them. */
static int32_t pages_shared(const carat_batch *b, const job *j)
{
    int64_t most = 0;
    for (int32_t i = 0; i < b->n_slots; i++) {
        const slot *s = &b->slot[i];
        int64_t same = 0;
        while (s->job && b->store && same < s->t.kv.n_past && same < j->n &&
               s->t.id[same] == j->ids[same])
            same++;
        most = same > most ? same : most;
    }
    return (int32_t)(most / KV_PAGE);
}

bool admission_allows(carat_batch *b, const job *j)
{
    bool busy = false;
    if (!b->tight || !b->pool.pages.n)
        return true;
    for (int32_t i = 0; i < b->n_slots; i++)
        busy |= b->slot[i].job != NULL;
    if (!busy)
        return true;
    if (!b->full)
        b->full = pages_of(paging_most(&b->slot[0].t, j->n + KV_PAGE)) - pages_shared(b, j) >
                  b->pool.pages.n - pages_in_use(b);
    return !b->full;
}
