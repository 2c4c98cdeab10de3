/* batch_step.c - one pass of a batch: decides whose rows are in it, and hands out its results.
 *
 * A pass has the parts that contributors give for the slots (batch_int.h). The rows of answers come
 * first; the other rows go to prompts, to the one that is due first before others (slot.due). While
 * a job is answering, the number of prompt rows is limited, so that its tokens come gap_ms apart;
 * times of passes are measured continuously (pace.h). On a device that computes prompts apart,
 * passes of answers and of prompts alternate instead. Passes of hidden rows alternate with all
 * others.
 */
#include "engine/batch_int.h"
#include "base/clock.h"
#include "engine/stages.h"

#include <math.h>

/* The rows of a pass by their kinds. */
typedef struct pass_rows {
    int32_t n_parts, n_wanted;
    pace_work answers, prompts;
    bool cut; /* the prompts' rows are limited by time: others wait for them */
} pass_rows;

static void add_part(carat_batch *b, pass_rows *n, int32_t i, pass_part part)
{
    if (!part.hidden && !part.rescore) {
        part.candidates = b->w.candidates + (size_t)n->n_wanted * CANDIDATES_MAX;
        part.n_candidates = b->w.n_candidates + n->n_wanted;
        n->n_wanted += kv_rows_wanted(&part.rows);
    }
    const pace_work w = pace_rows_at(part.rows.n, part.t->kv.n_past);
    pace_work *sum = part.prompt ? &n->prompts : &n->answers;
    *sum = (pace_work){sum->rows + w.rows, sum->keys + w.keys};
    b->part_slot[n->n_parts] = i;
    b->part[n->n_parts++] = part;
}

/* The first contributor of the job that wants rows. */
static void ask_contributors(carat_batch *b)
{
    for (int32_t i = 0; i < b->n_slots; i++) {
        slot *s = &b->slot[i];
        s->by = NULL;
        s->want = (pass_want){0};
        for (const contributor *const *c = s->job ? s->job->class->contributors : NULL;
             c && *c && !s->want.left; c++) {
            s->want = (*c)->wants(s);
            s->by = *c;
        }
        if (s->job && !s->want.next)
            s->want.next = slot_next_ids(s);
    }
}

static bool has_rows(const slot *s)
{
    return s->job && s->most && !s->waits && s->want.left > 0 && (!s->b->only || s->b->only == s);
}

static bool has_prompt(const slot *s, bool hidden)
{
    return has_rows(s) && s->by->prompt && s->by->hidden == hidden;
}

static bool has_answer(const slot *s)
{
    return has_rows(s) && !s->by->prompt;
}

typedef struct job_counts {
    int32_t answers, prompts, hidden; /* hidden: not in prompts */
    int32_t least;                    /* the most rows of a prompt that must be in one pass */
    int32_t hidden_most;              /* rows of a hidden pass */
    bool no_trees;
} job_counts;

static job_counts count_jobs(const carat_batch *b)
{
    job_counts n = {.hidden_most = b->layout.rows_max};
    for (int32_t i = 0; i < b->n_slots; i++) {
        const slot *s = &b->slot[i];
        const pass_want *w = &s->want;
        n.answers += has_answer(s);
        if (has_prompt(s, true)) {
            n.hidden++;
            if (!s->by->alone && w->most < n.hidden_most)
                n.hidden_most = w->most;
        }
        if (!has_prompt(s, false))
            continue;
        n.prompts++;
        n.least = w->least > n.least ? w->least : n.least;
        n.no_trees |= w->no_trees;
    }
    return n;
}

/* Do others wait for the prompts of a pass, so that time limits their rows? answers: those of this
 * batch do. */
static bool cuts_prompts(const carat_batch *b, bool answers)
{
    return b->gap_ms && (answers || b->share_ms);
}

/* How many of `waiting` prompt rows may be in a pass beside n_rows rows of answers. The first of
 * them has `before` keys before it. share_ms alone bounds a pass that only others wait for; it is
 * not less than the answers of this batch take, which shows how fast the machine is. */
static int32_t prompt_rows(carat_batch *b, int32_t n_rows, int64_t waiting, int64_t before,
                           bool answers)
{
    int32_t rows = b->layout.rows_max - n_rows;
    if (rows > b->shape.chunk)
        rows = b->shape.chunk;
    if (rows > waiting)
        rows = (int32_t)waiting;
    if (!cuts_prompts(b, answers))
        return rows;
    double budget_ms = pace_budget_ms(&b->pace, b->gap_ms);
    if (b->share_ms && (!answers || b->share_ms < budget_ms))
        budget_ms = fmax(b->share_ms, pace_answers_ms(&b->pace));
    return pace_rows(&b->pace, rows, before, budget_ms);
}

/* Contributors with `prepare` decide on the rows of all their slots together. */
static void prepare_answers(carat_batch *b, int32_t rows, bool trees)
{
    const contributor *done = NULL;
    for (int32_t i = 0; i < b->n_slots; i++) {
        const contributor *by = b->slot[i].by;
        int32_t n = 0;
        if (!has_answer(&b->slot[i]) || !by->prepare || by == done)
            continue;
        for (int32_t k = i; k < b->n_slots; k++)
            if (has_answer(&b->slot[k]) && b->slot[k].by == by)
                b->members[n++] = &b->slot[k];
        by->prepare(b, b->members, n, rows > n ? rows : n, trees);
        done = by;
    }
}

/* Every answer, and prompts beside them. A pass with a tree has at most STEP_TREE_ROWS_MAX rows of
 * each sequence, so longer prompts have no trees beside them. */
static void plan_answers(carat_batch *b, pass_rows *n, job_counts beside)
{
    int32_t rows = b->shape.answer_rows - beside.prompts, room = b->layout.rows_max - beside.least;
    prepare_answers(b, rows < room ? rows : room, !beside.no_trees);
    for (int32_t i = 0; i < b->n_slots; i++)
        if (has_answer(&b->slot[i]))
            add_part(b, n, i, b->slot[i].by->part(&b->slot[i], b->shape.verify_rows));
}

/* The part of a prompt. If its contributor has none of so few rows, those after it are asked. */
static pass_part part_of(slot *s, int32_t rows)
{
    pass_part part = s->by->part(s, rows);
    const contributor *const *c = s->job->class->contributors;
    while (*c != s->by)
        c++;
    while (!part.rows.n && *++c && (*c)->wants(s).left) {
        s->by = *c;
        part = s->by->part(s, rows);
    }
    return part;
}

static bool is_due_before(const slot *s, const slot *t)
{
    return s->due != t->due ? s->due < t->due : s < t;
}

/* The slot whose prompt is due first after that of `after`; NULL: of all. */
static slot *next_prompt(carat_batch *b, bool hidden, const slot *after)
{
    slot *next = NULL;
    for (int32_t i = 0; i < b->n_slots; i++) {
        slot *s = &b->slot[i];
        if (has_prompt(s, hidden) && (!after || is_due_before(after, s)) &&
            (!next || is_due_before(s, next)))
            next = s;
    }
    return next;
}

/* The prompts whose parts are hidden, or the others. answers: some wait for them. */
static void plan_prompts(carat_batch *b, pass_rows *n, bool hidden, int32_t most, bool answers)
{
    slot *s = next_prompt(b, hidden, NULL);
    int64_t waiting = 0;
    if (!s)
        return;
    for (const slot *o = s; o; o = next_prompt(b, hidden, o))
        waiting += o->want.left;
    int32_t left = prompt_rows(b, n->answers.rows, waiting, s->t.kv.n_past, answers);
    left = left < most ? left : most;
    bool single = false, alone = false;
    n->cut = cuts_prompts(b, answers);
    for (; s && left > 0 && !alone; s = next_prompt(b, hidden, s)) {
        const pass_want *w = &s->want;
        if (n->prompts.rows && (s->by->alone || w->least > left)) /* it comes first later */
            continue;
        int32_t rows = left < s->most ? left : s->most;
        int32_t n_stages = b->m->core.n_ranks ? 1 : b->m->n_stages; /* ranks are all at work */
        int32_t chunk =
            stages_chunk(n_stages, b->shape.chunk, b->shape.chunk_least, s->job->n - s->n_reused);
        chunk = chunk < w->least ? w->least : chunk;
        rows = rows < chunk ? rows : chunk;
        if (w->most && rows > w->most)
            rows = w->most;
        if (w->least > left && w->least <= s->most &&
            w->least <= b->layout.rows_max - n->answers.rows)
            rows = w->least;
        if (s->by->single && single)
            continue;
        pass_part part = part_of(s, rows);
        if (!part.rows.n)
            continue;
        single |= s->by->single;
        alone = s->by->alone;
        left -= part.rows.n;
        add_part(b, n, (int32_t)(s - b->slot), part);
    }
}

/* Fills b->part: answers first, then prompts; or, where they are apart, one of the two. Hidden
 * parts have passes of their own. */
static pass_rows plan_parts(carat_batch *b)
{
    pass_rows n = {0};
    b->only = NULL;
    for (int32_t i = b->n_slots - 1; i >= 0; i--)
        if (has_rows(&b->slot[i]) && b->slot[i].alone)
            b->only = &b->slot[i];
    job_counts c = count_jobs(b);
    bool others = c.answers || c.prompts;
    if (c.hidden && (b->hidden_next || !others)) {
        b->hidden_next = false;
        plan_prompts(b, &n, true, c.hidden_most, others);
        return n;
    }
    b->hidden_next = true;
    bool prompts_only = b->apart && c.prompts && (b->prompts_next || !c.answers);
    b->prompts_next = !prompts_only;
    if (!prompts_only)
        plan_answers(b, &n, b->apart ? (job_counts){0} : c);
    if (prompts_only || !b->apart)
        plan_prompts(b, &n, false, b->layout.rows_max, c.answers > 0);
    return n;
}

static bool slot_done(const slot *s)
{
    const job *j = s->job;
    return j->class->done ? j->class->done(s) : s->t.kv.n_past == j->n;
}

/* Hands out what the pass computed. Drafters are told before a job ends, because its timeline may
 * then be saved. */
static void take_pass(carat_batch *b, const pass_rows *n, double ms)
{
    for (int32_t k = 0; k < n->n_parts; k++) {
        slot *s = &b->slot[b->part_slot[k]];
        s->e = (err){0};
        s->alone = false;
        const bool answering = s->answering;
        s->st = s->by->take(s, &b->part[k], &s->e);
        if (!answering)
            report_computed(&s->job->r, s->t.kv.n_past);
    }
    rounds_absorb(b->rounds);
    rounds_tell(b->rounds, ms, n->answers.rows + n->prompts.rows, n->prompts.rows > 0, b->w.fresh);
    for (int32_t k = 0; k < n->n_parts; k++) {
        slot *s = &b->slot[b->part_slot[k]];
        if (s->st || slot_done(s))
            end_job(b, s, s->st, &s->e);
    }
}

/* Ends the jobs that the pass failed for. If no part is known to be the reason, each of them is
 * computed alone first. */
static void end_failed(carat_batch *b, int32_t n_parts, status st, const err *e)
{
    bool known = n_parts == 1;
    rounds_drop(b->rounds);
    for (int32_t k = 0; k < n_parts; k++)
        known |= b->part[k].lost;
    for (int32_t k = 0; k < n_parts; k++) {
        slot *s = &b->slot[b->part_slot[k]];
        err copy = *e;
        s->alone = !known;
        if (n_parts == 1 || b->part[k].lost)
            end_job(b, s, st, &copy);
    }
}

/* A device that works on its own returns before a pass has ended, and rows that are wanted wait for
 * its end. Of the others those are waited for whose time decides how many rows the next pass has.
 * False: the pass may not have ended. */
static bool wait_pass(const carat_batch *b, const pass_rows *n)
{
    bool ended = n->n_wanted || n->cut;
    for (int32_t i = 0; i < b->m->n_sides; i++) {
        device *d = model_device(b->m, i);
        if (!d->wait)
            continue;
        if (!ended)
            return false;
        if (n->n_wanted)
            continue;
        pthread_mutex_lock(&b->m->pass_lock);
        d->wait(d);
        pthread_mutex_unlock(&b->m->pass_lock);
    }
    return true;
}

/* Which prompts wait for towers: for those beside passes, and, while somebody answers, for those on
 * the device of passes, one part of which runs here before a pass. Nobody waits between two tokens
 * for more than that. *ran: one did. Returns the number of jobs that it had to end. */
static int32_t ask_towers(carat_batch *b, bool *waits, bool *ran)
{
    int32_t n_ended = 0;
    bool answers = false, may = true;
    *waits = false;
    for (int32_t i = 0; i < b->n_slots; i++)
        answers |= b->slot[i].job && b->slot[i].answering;
    for (int32_t i = 0; i < b->n_slots; i++) {
        slot *s = &b->slot[i];
        int64_t at = s->t.kv.n_past;
        bool ready = true;
        err e = {0};
        s->waits = false;
        if (!s->job || s->answering || at >= s->job->pictures)
            continue;
        const int32_t *ids = slot_next_ids(s);
        int64_t left = s->job->pictures - at;
        int64_t n = left < b->layout.rows_max ? left : b->layout.rows_max;
        status st = media_ask(b->m, ids, n, &s->job->asked, &ready, &e);
        if (!st && ready && answers)
            st = media_make_one(b->m, ids, n, &may, &ready, &e);
        s->waits = !st && !ready;
        *waits |= s->waits;
        n_ended += st != OK;
        if (st)
            end_job(b, s, st, &e);
    }
    *ran = !may;
    return n_ended;
}

/* A tower is at work, and nothing else. Other batches of the thread may have work, and news may
 * come: so not for long. */
static void wait_for_tower(carat_batch *b)
{
    const struct timespec until = clock_after_ms(b->share_ms ? 1 : 20);
    pthread_mutex_lock(&b->lock);
    int64_t last = b->last_id;
    while (!b->tower_woke && b->last_id == last)
        if (pthread_cond_timedwait(&b->changed, &b->lock, &until))
            break;
    b->tower_woke = false;
    pthread_mutex_unlock(&b->lock);
}

bool batch_pass(carat_batch *b)
{
    err e = {0};
    bool waits, ran;
    ask_contributors(b);
    int32_t n_ended = admission_plan(b);
    n_ended += ask_towers(b, &waits, &ran);
    pass_rows n = plan_parts(b);
    if (!n.n_parts && waits && !ran)
        wait_for_tower(b);
    if (!n.n_parts)
        return waits || n_ended > 0;
    double start = b->clock();
    status st = run_pass(b->m, &b->layout, &b->w, b->part, n.n_parts, &e);
    bool idle = b->idle; /* it had nothing to do at the start, so all of the time is this pass's */
    b->idle = !st && wait_pass(b, &n);
    double ms = b->clock() - start;
    b->n_passes++;
    b->n_rows += (uint64_t)(n.answers.rows + n.prompts.rows);
    b->n_prompt_rows += n.prompts.rows;
    b->pass_ms += ms;
    if (st)
        end_failed(b, n.n_parts, st, &e);
    else
        take_pass(b, &n, ms);
    if (!st && idle && b->idle) /* with the host's work on tokens, which comes between them too */
        pace_measure(&b->pace, n.answers, n.prompts, b->clock() - start, b->w.fresh);
    return true;
}

static void show_slots(carat_batch *b)
{
    carat_cache_info cache = {0};
    kv_mover_info moved;
    kv_mover_get_info(&b->pool, &moved);
    if (b->store)
        checkpoints_info(b->store, &cache);
    pthread_mutex_lock(&b->lock);
    b->info.cache = cache;
    b->info.n_preempted = b->n_preempted;
    b->info.n_paged_out = 0;
    b->info.pool_free = b->pool.pages.n_free * KV_PAGE;
    b->info.pool_shared = b->pool.pages.n_shared * KV_PAGE;
    b->info.pool_host_bytes = (uint64_t)moved.n_memory * moved.page_bytes;
    b->info.pool_file_bytes = (uint64_t)moved.n_file * moved.page_bytes;
    b->info.n_pages_out = (uint64_t)moved.n_out;
    b->info.n_pages_in = (uint64_t)moved.n_in;
    b->info.n_passes = b->n_passes;
    b->info.n_rows = b->n_rows;
    b->info.n_generated = b->n_generated;
    b->info.n_rounds = b->rounds->n_rounds;
    b->info.n_drafted = b->rounds->n_drafted;
    b->info.n_accepted = b->rounds->n_accepted;
    b->info.pass_ms = b->pass_ms;
    for (int32_t i = 0; i < b->n_slots; i++) {
        const slot *s = &b->slot[i];
        const job *j = s->job;
        b->info.n_paged_out += s->t.kv.n_paged_out > 0;
        b->shown[i] = (carat_slot_info){.id = j ? j->id : 0,
                                        .n_past = s->t.kv.n_past,
                                        .paged_out = s->t.kv.n_paged_out > 0,
                                        .n_paged_out = s->t.kv.n_absent,
                                        .waits = j && !s->most,
                                        .n_prompt = j ? j->n : 0,
                                        .n_done = !j             ? 0
                                                  : s->answering ? j->n
                                                                 : s->t.kv.n_past,
                                        .n_generated = j && j->g ? generation_count(j->g) : 0};
    }
    pthread_mutex_unlock(&b->lock);
}

void carat_batch_share(carat_batch *b, int32_t pass_ms)
{
    b->share_ms = pass_ms > 0 ? pass_ms : 0;
}

/* How long jobs may be given slots before a pass: half of the gap, where others wait for tokens. */
static double admission_ms(const carat_batch *b)
{
    bool answers = false;
    for (int32_t i = 0; i < b->n_slots; i++)
        answers |= b->slot[i].job && b->slot[i].answering;
    return cuts_prompts(b, answers) ? b->gap_ms / 2.0 : INFINITY;
}

bool carat_batch_step(carat_batch *b)
{
    b->n_steps++;
    end_cancelled(b);
    bool answered = slots_answer(b);
    bool more = admit_jobs(b, admission_ms(b));
    uint64_t n_passes = b->n_passes;
    bool busy = batch_pass(b);
    if (b->n_passes != n_passes || answered)
        show_slots(b);
    return busy || answered || more;
}
