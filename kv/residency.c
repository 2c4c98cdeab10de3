/* residency.c - see residency.h. Plans are made from the records alone and change none of them;
 * residency_done changes them, one made move at a time. */
#include "kv/residency.h"

#include "base/mem.h"

#include <math.h>
#include <stdlib.h>

/* A page in the order of a plan. */
typedef struct residency_rank {
    int32_t page;
    int8_t class; /* of victims and of survivors: below */
    bool resident;
    float score;
    int64_t used;
} residency_rank;

static int32_t span_pages(int32_t rows)
{
    return (rows + 2 * KV_PAGE - 2) / KV_PAGE; /* a row may be the last of its page */
}

int32_t residency_pool_min(const residency_rules *r)
{
    return r->sinks + r->tail + span_pages(r->rows_max) + 1;
}

status residency_init(residency *r, const residency_rules *rules, err *e)
{
    *r = (residency){.rules = *rules};
    int32_t least = residency_pool_min(rules);
    if (rules->n_pages < 1 || rules->rows_max < 1 || rules->tau < 1 || rules->sinks < 0 ||
        rules->tail < 0)
        return err_set(e, E_ARG, "a pool for %d pages in passes of %d rows, tau %d", rules->n_pages,
                       rules->rows_max, rules->tau);
    if (rules->pool < least && rules->pool < rules->n_pages)
        return err_set(e, E_ARG,
                       "a pool of %d tokens is too small: passes of %d rows need at least %d",
                       rules->pool * KV_PAGE, rules->rows_max, least * KV_PAGE);
    size_t n = (size_t)rules->n_pages;
    r->moves_cap = 3 * rules->n_pages; /* a page may be forgotten, leave, and another one come */
    r->page = mem_calloc(n, sizeof *r->page);
    r->rank = mem_calloc(n, sizeof *r->rank);
    r->move = mem_calloc((size_t)r->moves_cap, sizeof *r->move);
    if (!r->page || !r->rank || !r->move) {
        residency_free(r);
        return err_memory(e, "the records of pages", n * sizeof *r->page);
    }
    for (size_t c = 0; c < n; c++)
        r->page[c].place = -1;
    return OK;
}

void residency_free(residency *r)
{
    mem_free(r->move);
    mem_free(r->rank);
    mem_free(r->page);
    *r = (residency){0};
}

/* ---- Protection ---------------------------------------------------------------------------- */

static int32_t writing(const residency *r) /* the page of the next token */
{
    return (int32_t)(r->n_past / KV_PAGE);
}

static bool has_content(const residency *r, int32_t c)
{
    return (int64_t)c * KV_PAGE < r->n_past;
}

bool residency_is_protected(const residency *r, int32_t c)
{
    return c < r->rules.sinks || c >= writing(r) - r->rules.tail || r->page[c].pinned;
}

int32_t residency_pin(residency *r, int64_t from, int64_t to)
{
    int32_t room = r->rules.pool - residency_pool_min(&r->rules), left_out = 0;
    int32_t end = residency_pages_of(to);
    bool whole = r->rules.pool >= r->rules.n_pages;
    end = end < r->rules.n_pages ? end : r->rules.n_pages;
    for (int32_t c = 0; c < r->rules.n_pages; c++)
        room -= r->page[c].pinned;
    for (int32_t c = from > 0 ? (int32_t)(from / KV_PAGE) : 0; c < end; c++) {
        if (r->page[c].pinned)
            continue;
        if (room > 0 || whole)
            r->page[c].pinned = true;
        else
            left_out++;
        room--;
    }
    return left_out;
}

void residency_unpin(residency *r)
{
    for (int32_t c = 0; c < r->rules.n_pages; c++)
        r->page[c].pinned = false;
}

/* ---- Plans --------------------------------------------------------------------------------- */

static bool on_device(const residency *r, int32_t c)
{
    return r->page[c].place >= 0;
}

bool residency_is_lost(const residency *r, int32_t c)
{
    return has_content(r, c) && !on_device(r, c) && !r->page[c].copied;
}

static void add_move(residency *r, int32_t page, residency_what what)
{
    r->move[r->n_moves++] = (residency_move){page, what};
}

static void begin_plan(residency *r)
{
    r->n_moves = 0;
    for (int32_t c = 0; c < r->rules.n_pages; c++)
        r->page[c].leaves = r->page[c].comes = false;
}

/* Classes, ascending: what leaves first comes first. */
enum { RANK_EMPTY, RANK_SCORED, RANK_YOUNG, RANK_PROTECTED };

static residency_rank rank_of(const residency *r, int32_t c)
{
    const residency_page *p = &r->page[c];
    int8_t class = p->scored ? RANK_SCORED : RANK_YOUNG;
    if (!has_content(r, c))
        class = RANK_EMPTY;
    else if (residency_is_protected(r, c))
        class = RANK_PROTECTED;
    return (residency_rank){.page = c,
                            .class = class,
                            .resident = on_device(r, c),
                            .score = p->scored ? p->score : 0,
                            .used = p->used};
}

/* A total order. Of two equal pages the one that is away leaves first, so that nothing moves for
 * nothing. */
static int compare_ranks(const void *x, const void *y)
{
    const residency_rank *a = x, *b = y;
    if (a->class != b->class)
        return a->class < b->class ? -1 : 1;
    if (a->score != b->score)
        return a->score < b->score ? -1 : 1;
    if (a->resident != b->resident)
        return a->resident ? 1 : -1;
    if (a->used != b->used)
        return a->used < b->used ? -1 : 1;
    return a->page < b->page ? -1 : 1;
}

static void swap_ranks(residency_rank *a, residency_rank *b)
{
    residency_rank was = *a;
    *a = *b;
    *b = was;
}

/* Puts the `first` lowest of n ranks first, in any order (C. A. R. Hoare, "Find", 1961). A context
 * has thousands of pages and a pool tens, so sorting all of them would take most of a choice. */
static void part_ranks(residency_rank *rank, int32_t n, int32_t first)
{
    int32_t lo = 0, hi = n - 1;
    while (lo < hi && first > lo && first <= hi) {
        residency_rank pivot = rank[lo + (hi - lo) / 2];
        int32_t i = lo, j = hi;
        while (i <= j) {
            while (compare_ranks(&rank[i], &pivot) < 0)
                i++;
            while (compare_ranks(&pivot, &rank[j]) < 0)
                j--;
            if (i <= j)
                swap_ranks(&rank[i++], &rank[j--]);
        }
        if (first <= j)
            hi = j;
        else if (first >= i)
            lo = i;
        else
            return;
    }
}

/* Orders the ranks of a choice: the survivors from `cut` on, and before it, at the front, the
 * resident pages that do not survive. Returns the number of those. */
static int32_t order_choice(residency_rank *rank, int32_t n, int32_t cut)
{
    int32_t n_leave = 0;
    part_ranks(rank, n, cut);
    for (int32_t i = 0; i < cut; i++)
        if (rank[i].resident)
            swap_ranks(&rank[i], &rank[n_leave++]);
    qsort(rank, (size_t)n_leave, sizeof *rank, compare_ranks);
    qsort(rank + cut, (size_t)(n - cut), sizeof *rank, compare_ranks);
    return n_leave;
}

/* Room on the host for n_new more copies: clean pages that stay give theirs up, oldest use first.
 */
static status plan_host_room(residency *r, int32_t n_new, err *e)
{
    int32_t room = r->rules.host_pages - r->n_copied;
    if (r->rules.host_pages < 0 || n_new <= room)
        return OK;
    for (int32_t c = 0; c < r->rules.n_pages && room < n_new; c++)
        if (r->page[c].copied && on_device(r, c) && !r->page[c].leaves) {
            add_move(r, c, RESIDENCY_FORGET);
            room++;
        }
    if (room < n_new) {
        r->n_moves = 0;
        return err_set(e, E_LIMIT,
                       "%d pages of keys and values must leave the device, and host memory for "
                       "them is full: %d of %d pages (--kv-host-mb)",
                       n_new, r->n_copied, r->rules.host_pages);
    }
    return OK;
}

/* Moves for the pages that leave and come, outs first, both ascending. */
static status plan_moves(residency *r, err *e)
{
    bool for_good = r->for_good;
    int32_t n_copies = 0;
    status st;
    for (int32_t c = 0; c < r->rules.n_pages && !for_good; c++)
        n_copies += r->page[c].leaves && has_content(r, c) && !r->page[c].copied;
    if ((st = plan_host_room(r, n_copies, e)))
        return st;
    for (int32_t c = 0; c < r->rules.n_pages; c++)
        if (r->page[c].leaves)
            add_move(r, c,
                     !has_content(r, c)  ? RESIDENCY_LEAVE
                     : for_good          ? RESIDENCY_DROP
                     : r->page[c].copied ? RESIDENCY_LEAVE
                                         : RESIDENCY_OUT);
    for (int32_t c = 0; c < r->rules.n_pages; c++)
        if (r->page[c].comes)
            add_move(r, c, r->page[c].copied ? RESIDENCY_IN : RESIDENCY_NEW);
    return OK;
}

status residency_plan_rows(residency *r, int32_t n, err *e)
{
    int32_t n_pages = r->rules.n_pages, first = writing(r), n_in = 0, n_rank = 0;
    int32_t last = (int32_t)((r->n_past + n - 1) / KV_PAGE);
    begin_plan(r);
    if (n < 1 || n > r->rules.rows_max || last >= n_pages)
        return err_set(
            e, E_LIMIT,
            "%d rows after %lld tokens: the pool was made for %d tokens, and passes of %d rows", n,
            (long long)r->n_past, n_pages * KV_PAGE, r->rules.rows_max);
    if (residency_is_lost(r, first))
        return err_set(
            e, E_LIMIT,
            "page %d of the keys was dropped for good, and the next token belongs into it", first);
    for (int32_t c = 0; c <= last; c++) {
        bool wanted = c >= first || (residency_is_protected(r, c) && !residency_is_lost(r, c));
        r->page[c].comes = wanted && !on_device(r, c);
        n_in += r->page[c].comes;
    }
    for (int32_t c = 0; c < n_pages; c++)
        if (on_device(r, c) && (c < first || c > last))
            r->rank[n_rank++] = rank_of(r, c);
    qsort(r->rank, (size_t)n_rank, sizeof *r->rank, compare_ranks);
    int32_t n_out = n_in - (r->rules.pool - r->n_resident), taken = 0;
    for (; taken < n_out && taken < n_rank && r->rank[taken].class < RANK_PROTECTED; taken++)
        r->page[r->rank[taken].page].leaves = true;
    if (taken < n_out)
        return err_set(e, E_LIMIT,
                       "the pool of %d tokens is full of pages that must stay: expected a larger "
                       "pool (--kv-pool)",
                       r->rules.pool * KV_PAGE);
    return plan_moves(r, e);
}

status residency_plan_all(residency *r, err *e)
{
    int32_t n = residency_pages_of(r->n_past);
    begin_plan(r);
    for (int32_t c = 0; n <= r->rules.pool && c < n; c++)
        r->page[c].comes = !on_device(r, c) && !residency_is_lost(r, c);
    return plan_moves(r, e);
}

static float usable(float score)
{
    return isnan(score) ? -INFINITY : score;
}

status residency_plan_scores(residency *r, const float *score, int32_t n_scores, int32_t most_in,
                             err *e)
{
    int32_t n_pages = r->rules.n_pages, n_rank = 0, n_in = 0;
    begin_plan(r);
    for (int32_t c = 0; c < n_pages; c++) {
        r->page[c].scored = c < n_scores && has_content(r, c);
        r->page[c].score = r->page[c].scored ? usable(score[c]) : 0;
    }
    for (int32_t c = 0; c < n_pages; c++)
        if (on_device(r, c) || (has_content(r, c) && r->page[c].copied))
            r->rank[n_rank++] = rank_of(r, c);
    /* Only pages that are away and survive come in; for each, while the pool is full, the worst
     * resident page leaves. */
    int32_t worst = 0, room = r->rules.pool - r->n_resident, best = n_rank;
    int32_t cut = n_rank - r->rules.pool > 0 ? n_rank - r->rules.pool : 0;
    int32_t n_leave = order_choice(r->rank, n_rank, cut);
    while (best-- > cut) {
        if (r->rank[best].resident)
            continue;
        if (most_in && n_in == most_in)
            break;
        if (room > 0)
            room--;
        else if (worst < n_leave)
            r->page[r->rank[worst++].page].leaves = true;
        else
            break;
        r->page[r->rank[best].page].comes = true;
        n_in++;
    }
    return plan_moves(r, e);
}

void residency_plan_forget(residency *r)
{
    begin_plan(r);
    for (int32_t c = 0; c < r->rules.n_pages; c++)
        if (r->page[c].copied)
            add_move(r, c, RESIDENCY_FORGET);
}

/* ---- What was done ------------------------------------------------------------------------- */

static void set_copied(residency *r, int32_t c, bool copied)
{
    r->n_copied += (int)copied - (int)r->page[c].copied;
    r->page[c].copied = copied;
}

static void leave(residency *r, int32_t c)
{
    r->page[c].place = -1;
    r->n_resident--;
}

void residency_done(residency *r, const residency_move *m, int32_t place)
{
    residency_page *p = &r->page[m->page];
    switch (m->what) {
    case RESIDENCY_OUT:
        set_copied(r, m->page, true);
        leave(r, m->page);
        r->n_out++;
        break;
    case RESIDENCY_LEAVE:
        r->n_left += has_content(r, m->page);
        leave(r, m->page);
        break;
    case RESIDENCY_DROP:
        set_copied(r, m->page, false);
        leave(r, m->page);
        r->dropped = true;
        break;
    case RESIDENCY_FORGET:
        set_copied(r, m->page, false);
        r->dropped |= residency_is_lost(r, m->page);
        break;
    case RESIDENCY_IN:
    case RESIDENCY_NEW:
        p->place = place;
        p->used = ++r->clock;
        r->n_resident++;
        r->n_in += m->what == RESIDENCY_IN;
        break;
    }
}

void residency_copied(residency *r, int32_t page)
{
    set_copied(r, page, true);
}

void residency_write(residency *r, int32_t n)
{
    int32_t last = (int32_t)((r->n_past + n - 1) / KV_PAGE);
    for (int32_t c = writing(r); c <= last; c++) {
        set_copied(r, c, false);
        r->page[c].used = ++r->clock;
        r->page[c].scored = false;
    }
}

void residency_commit(residency *r, int32_t n)
{
    r->n_past += n;
    r->since += n;
}

void residency_renew(residency *r)
{
    for (int32_t c = 0; c < r->rules.n_pages; c++) {
        r->page[c].scored = false;
        r->page[c].used = ++r->clock;
    }
    r->since = r->n_past;
}

bool residency_rewind(residency *r, int64_t n_past)
{
    int32_t keep = residency_pages_of(n_past);
    if (n_past < 0 || n_past > r->n_past || (n_past % KV_PAGE && residency_is_lost(r, keep - 1)))
        return false;
    for (int32_t c = keep; c < r->rules.n_pages; c++) {
        r->n_resident -= on_device(r, c);
        set_copied(r, c, false);
        r->page[c] = (residency_page){.place = -1, .pinned = r->page[c].pinned};
    }
    r->n_past = n_past;
    if (!n_past)
        r->dropped = r->for_good = false;
    return true;
}

/* ---- When, and the table ------------------------------------------------------------------- */

int32_t residency_tau(const residency *r)
{
    int32_t by_length = writing(r) / RESIDENCY_PAGES_PER_TOKEN;
    return by_length > r->rules.tau ? by_length : r->rules.tau;
}

bool residency_due(const residency *r)
{
    return residency_pages_of(r->n_past) > r->rules.pool && r->since >= residency_tau(r);
}

int64_t residency_n_keys(const residency *r)
{
    int64_t n = 0;
    for (int32_t c = 0; c < writing(r); c++)
        n += on_device(r, c) ? KV_PAGE : 0;
    return n + r->n_past % KV_PAGE;
}
