/* batch_step.c - one pass of a batch: decides whose rows are in it, and takes what it computed.
 *
 * A pass has the last token of every answering job and the tokens drafted after it (round.h). The
 * other rows go to prompts, which take turns. While a job is answering, the number of prompt rows
 * is limited, so that no pass takes longer than stall_ms; times of rows are measured continuously.
 * On a device that computes prompts apart, passes of answers and of prompts alternate instead. A
 * row's result does not depend on the other rows of its pass, so the schedule changes no answer.
 *
 * Jobs for embeddings and for the importance of tokens (embed.h) are prompts without answers. Their
 * passes that want hidden rows alternate with all others.
 */
#include "engine/batch_int.h"
#include "engine/score.h"
#include "base/clock.h"

/* The rows of a pass by their kinds. */
typedef struct pass_rows {
    int32_t n_parts, n_wanted;
    int32_t answers, prompts; /* rows */
    bool stalls;              /* others wait for the prompts: answers, or share_ms says so */
} pass_rows;

static void add_part(carat_batch *b, pass_rows *n, int32_t i, pass_part part)
{
    if (!part.hidden && !part.look) {
        part.candidates = b->w.candidates + (size_t)n->n_wanted * CANDIDATES_MAX;
        part.n_candidates = b->w.n_candidates + n->n_wanted;
        n->n_wanted += kv_rows_wanted(&part.rows);
    }
    *(part.prompt ? &n->prompts : &n->answers) += part.rows.n;
    b->part_slot[n->n_parts] = i;
    b->part[n->n_parts++] = part;
}

static bool has_rows(const slot *s)
{
    return s->job && s->most && !s->waits && (!s->b->only || s->b->only == s);
}

static bool has_prompt(const slot *s)
{
    return has_rows(s) && !s->answering;
}

static bool has_answer(const slot *s)
{
    return has_rows(s) && s->answering;
}

/* Does its next part want hidden rows? */
static bool wants_hidden(carat_batch *b, const slot *s)
{
    if (!has_prompt(s))
        return false;
    if (!s->job->x)
        return score_wants(s->job->g, &s->t, s->job->n);
    return embedding_wants_hidden(s->job->x, &s->t,
                                  workspace_hidden_rows(&b->w, b->m, &b->layout, b->shape.chunk));
}

/* The most rows of a hidden pass. The rows of scores leave room for logits. */
static int32_t hidden_rows(carat_batch *b)
{
    bool scores = false;
    for (int32_t i = 0; i < b->n_slots; i++)
        scores |= wants_hidden(b, &b->slot[i]) && !b->slot[i].job->x;
    return scores ? workspace_score_rows(&b->w, b->m, &b->layout, b->shape.chunk)
                  : workspace_hidden_rows(&b->w, b->m, &b->layout, b->shape.chunk);
}

/* Rows of a prompt that must be in one pass; 0: any will do. */
static int32_t whole_rows(const slot *s, bool hidden)
{
    if (s->job->x)
        return embedding_whole_rows(s->job->x);
    bool whole = !hidden && paging_is_whole(&s->t, s->job->n);
    return whole ? (int32_t)(s->job->n - s->t.kv.n_past)
                 : media_block(s->t.m, s->job->ids + s->t.kv.n_past);
}

typedef struct job_counts {
    int32_t answers, prompts, hidden; /* hidden: not in prompts */
    int32_t whole;                    /* the most rows of a prompt that must be in one pass */
    int64_t longest;                  /* tokens of a prompt that are to come */
} job_counts;

static job_counts count_jobs(carat_batch *b)
{
    job_counts n = {0};
    for (int32_t i = 0; i < b->n_slots; i++) {
        const slot *s = &b->slot[i];
        bool hidden = wants_hidden(b, s);
        n.hidden += hidden;
        n.prompts += has_prompt(s) && !hidden;
        n.answers += has_answer(s);
        if (!has_prompt(s) || hidden)
            continue;
        if (whole_rows(s, false) > n.whole)
            n.whole = whole_rows(s, false);
        if (s->job->n - s->t.kv.n_past > n.longest)
            n.longest = s->job->n - s->t.kv.n_past;
        if (media_two_way(b->m) && s->t.kv.n_past < s->job->pictures) /* none is beside a tree */
            n.longest = INT64_MAX;
    }
    return n;
}

/* How many prompt rows may be in a pass beside n_rows rows of answers. stalls: answers wait for the
 * pass, or are in it. share_ms alone bounds a pass that only others wait for. */
static int32_t prompt_rows(const carat_batch *b, int32_t n_rows, bool stalls)
{
    int32_t rows = b->layout.rows_max - n_rows;
    if (rows > b->shape.chunk)
        rows = b->shape.chunk;
    if (!stalls && !b->share_ms)
        return rows;
    double budget_ms = pace_budget_ms(&b->pace, b->stall_ms);
    if (b->share_ms && (!stalls || b->share_ms < budget_ms))
        budget_ms = b->share_ms;
    return pace_rows(&b->pace, rows, budget_ms);
}

/* Every answer with its drafts, and prompts beside them. A pass with a tree has at most
 * STEP_TREE_ROWS_MAX rows of each sequence, so longer prompts have chains beside them. */
static void plan_answers(carat_batch *b, pass_rows *n, job_counts beside)
{
    int32_t n_answers = 0, rows = b->shape.answer_rows - beside.prompts;
    int32_t room = b->layout.rows_max - beside.whole;
    rows = rows < room ? rows : room;
    for (int32_t i = 0; i < b->n_slots; i++)
        if (has_answer(&b->slot[i]))
            b->answering[n_answers++] = b->slot[i].x;
    rounds_draft(b->rounds, b->answering, n_answers, rows > n_answers ? rows : n_answers,
                 beside.longest > STEP_TREE_ROWS_MAX);
    for (int32_t i = 0; i < b->n_slots; i++)
        if (has_answer(&b->slot[i]))
            add_part(b, n, i, reply_part(b->slot[i].x));
}

/* The part of an answer's prompt, of at most `left` rows. */
static pass_part prompt_part(slot *s, int32_t left)
{
    int64_t at = s->t.kv.n_past, rest = timeline_pass_end(&s->t, s->job->n) - at;
    int32_t rows = sparse_rows(s->t.sparse, at, rest, left);
    rows = media_pass_rows(s->t.m, s->job->ids + at, rest, rows);
    bool last = at + rows == s->job->n;
    const pass_part part = {.t = &s->t,
                            .rows = {.token = s->job->ids + at,
                                     .n = rows,
                                     .final = true,
                                     .want = last ? KV_WANT_LAST : KV_WANT_NONE},
                            .prompt = true,
                            .until = paging_until(&s->t, s->job->n),
                            .n_best = last ? generation_needs(s->job->g) : 0};
    return last && !s->looked && paging_looks(&s->t, s->job->n) ? paging_look_part(part) : part;
}

/* The prompts whose parts are hidden, or the others. */
static void plan_prompts(carat_batch *b, pass_rows *n, bool hidden, bool stalls)
{
    int32_t left = prompt_rows(b, n->answers, stalls), first = b->turn;
    int32_t most = hidden ? hidden_rows(b) : left;
    left = left < most ? left : most;
    bool looks = false;
    n->stalls = stalls || b->share_ms;
    for (int32_t k = 0; k < b->n_slots && left > 0; k++) {
        int32_t i = (first + k) % b->n_slots;
        slot *s = &b->slot[i];
        if (!has_prompt(s) || wants_hidden(b, s) != hidden)
            continue;
        bool alone = hidden && s->job->x && embedding_is_alone(s->job->x, &s->t);
        if (alone && n->prompts) /* it is the first one in a later pass */
            continue;
        if (!n->prompts)
            b->turn = (i + 1) % b->n_slots;
        if (s->t.sparse.alpha > 0 && !n->prompts && left < SPARSE_TILE)
            left = b->layout.rows_max - n->answers; /* else it would wait for ever */
        int32_t rows = left < s->most ? left : s->most;
        int32_t whole = whole_rows(s, hidden);
        if (whole > left && n->prompts) /* it is the first one in the next pass */
            continue;
        if (whole > left && whole <= b->layout.rows_max - n->answers)
            rows = whole;
        pass_part part = s->job->x ? embedding_part(s->job->x, &s->t, rows, hidden)
                         : hidden  ? score_part(&s->t, s->job->ids, s->job->n, rows)
                                   : prompt_part(s, rows);
        if (!part.rows.n) /* no room for a query block of block selection */
            continue;
        if (part.look && looks) /* one a pass: scratch has room for its rows of the last layer */
            continue;
        looks |= part.look;
        left = alone ? 0 : left - part.rows.n;
        add_part(b, n, i, part);
    }
}

/* Fills b->part: answers first, then prompts; or, where they are apart, one of the two. Hidden
 * parts have passes of their own. */
static pass_rows plan_step_rows(carat_batch *b)
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
        plan_prompts(b, &n, true, others);
        return n;
    }
    b->hidden_next = true;
    bool prompts_only = b->apart && c.prompts && (b->prompts_next || !c.answers);
    b->prompts_next = !prompts_only;
    if (!prompts_only)
        plan_answers(b, &n, b->apart ? (job_counts){0} : c);
    if (prompts_only || !b->apart)
        plan_prompts(b, &n, false, c.answers > 0);
    return n;
}

static bool cancel_wished(void *user)
{
    const slot *s = user;
    carat_batch *b = s->b;
    pthread_mutex_lock(&b->lock);
    bool wished = b->cancel[s - b->slot] == s->job->id;
    pthread_mutex_unlock(&b->lock);
    return wished;
}

/* Keeps the part's rows of a prompt. After its last row, takes the first token. */
static status use_prompt_rows(carat_batch *b, slot *s, const pass_part *part, err *e)
{
    job *j = s->job;
    row_logits y = {0};
    status st;
    if (part->look) {
        s->looked = true; /* the next pass has the same rows, and sees the pages that they want */
        timeline_commit(&s->t, part, NULL, 0);
        return OK;
    }
    if (kv_rows_wanted(&part->rows) &&
        (st = read_logits(b->m, &b->w, part, 0, s->t.kv.n_past + part->rows.n - 1, &y, e))) {
        timeline_commit(&s->t, part, NULL, 0);
        return st;
    }
    rounds_keep(b->rounds, part, NULL, part->rows.n);
    if (!generation_tell_prefill(j->g, s->t.kv.n_past, j->n)) {
        report_prefilled(&j->r);
        generation_stop(j->g, CARAT_FINISH_CANCELLED);
    } else if (s->t.kv.n_past == j->n) {
        report_prefilled(&j->r);
        s->answering = true;
        return generation_next(j->g, &s->t, s->t.kv.n_past, &b->w, y, e);
    }
    return OK;
}

/* Plain parts of an embedding are kept as other prompts are; drafters miss the rows of hidden ones.
 */
static status use_embedding_rows(carat_batch *b, slot *s, const pass_part *part, err *e)
{
    if (part->hidden)
        return embedding_take(s->job->x, b->m, &b->w, part, e);
    rounds_keep(b->rounds, part, NULL, part->rows.n);
    return OK;
}

static status use_scored_rows(carat_batch *b, slot *s, const pass_part *part, err *e)
{
    job *j = s->job;
    status st = score_take(j->g, b->m, &b->w, part, j->ids, e);
    if (!st && !generation_tell_prefill(j->g, s->t.kv.n_past, j->n)) {
        report_prefilled(&j->r);
        generation_stop(j->g, CARAT_FINISH_CANCELLED);
    }
    return st;
}

static void use_part(carat_batch *b, slot *s, const pass_part *part)
{
    const walk_stop stop = {.asked = cancel_wished, .user = s};
    s->e = (err){0};
    s->alone = false;
    if (s->job->x)
        s->st = use_embedding_rows(b, s, part, &s->e);
    else if (part->hidden)
        s->st = use_scored_rows(b, s, part, &s->e);
    else
        s->st = part->prompt ? use_prompt_rows(b, s, part, &s->e)
                             : reply_walk(b->rounds, s->x, &b->w, part, &stop, &s->e);
}

static void show_slots(carat_batch *b, uint64_t n_rows, uint64_t n_generated, double ms)
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
    b->info.n_passes++;
    b->info.n_rows += n_rows;
    b->info.n_generated += n_generated;
    b->info.n_rounds = b->rounds->n_rounds;
    b->info.n_drafted = b->rounds->n_drafted;
    b->info.n_accepted = b->rounds->n_accepted;
    b->info.pass_ms += ms;
    for (int32_t i = 0; i < b->n_slots; i++) {
        const slot *s = &b->slot[i];
        const job *j = s->job;
        b->info.n_paged_out += s->t.kv.n_away > 0;
        b->shown[i] = (carat_slot_info){.id = j ? j->id : 0,
                                        .n_past = s->t.kv.n_past,
                                        .paged_out = s->t.kv.n_away > 0,
                                        .n_away = s->t.kv.n_absent,
                                        .waits = j && !s->most,
                                        .n_prompt = j ? j->n : 0,
                                        .n_done = !j             ? 0
                                                  : s->answering ? j->n
                                                                 : s->t.kv.n_past,
                                        .n_generated = j && j->g ? generation_count(j->g) : 0};
    }
    pthread_mutex_unlock(&b->lock);
}

/* Takes what the pass computed. Drafters are told before a job ends, because its timeline may then
 * be saved. Returns the number of new tokens. */
static uint64_t use_pass(carat_batch *b, const pass_rows *n, double ms)
{
    uint64_t n_generated = 0;
    for (int32_t k = 0; k < n->n_parts; k++) {
        slot *s = &b->slot[b->part_slot[k]];
        const generation *g = s->job->g;
        int64_t before = g ? generation_count(g) : 0;
        use_part(b, s, &b->part[k]);
        n_generated += g ? (uint64_t)(generation_count(g) - before) : 0;
    }
    rounds_absorb(b->rounds);
    rounds_tell(b->rounds, ms, n->answers + n->prompts, n->prompts > 0, b->w.fresh);
    for (int32_t k = 0; k < n->n_parts; k++) {
        slot *s = &b->slot[b->part_slot[k]];
        if (s->st || (s->job->x ? embedding_done(s->job->x, &s->t) : generation_ended(s->job->g)))
            end_job(b, s, s->st, &s->e);
    }
    return n_generated;
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

/* A device that works on its own returns before a pass has ended. It is waited for where the time
 * of prompts decides how many rows the next pass has of them. False: the pass may not have ended.
 */
static bool wait_pass(const carat_batch *b, const pass_rows *n)
{
    bool wait = n->prompts && n->stalls, ended = true;
    for (int32_t i = 0; i < b->m->n_sides; i++) {
        device *d = model_device(b->m, i);
        if (!d->wait)
            continue;
        ended = wait;
        if (!wait)
            break;
        pthread_mutex_lock(&b->m->pass_lock);
        d->wait(d);
        pthread_mutex_unlock(&b->m->pass_lock);
    }
    return ended;
}

/* Which prompts wait for towers beside passes. Returns the number of jobs that it had to end. */
static int32_t ask_towers(carat_batch *b, bool *waits)
{
    int32_t n_ended = 0;
    *waits = false;
    for (int32_t i = 0; i < b->n_slots; i++) {
        slot *s = &b->slot[i];
        int64_t at = s->t.kv.n_past;
        bool ready = true;
        err e = {0};
        s->waits = false;
        if (!s->job || s->answering || at >= s->job->pictures)
            continue;
        int64_t n = s->job->pictures - at;
        status st = media_ask(b->m, s->job->ids + at,
                              n < b->layout.rows_max ? n : b->layout.rows_max, &ready, &e);
        s->waits = !st && !ready;
        *waits |= s->waits;
        n_ended += st != OK;
        if (st)
            end_job(b, s, st, &e);
    }
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

void carat_batch_share(carat_batch *b, int32_t pass_ms)
{
    b->share_ms = pass_ms > 0 ? pass_ms : 0;
}

bool carat_batch_step(carat_batch *b)
{
    uint64_t n_generated = 0;
    err e = {0};

    b->n_steps++;
    end_cancelled(b);
    admit_jobs(b);
    int32_t n_ended = admission_plan(b);
    bool waits;
    n_ended += ask_towers(b, &waits);
    pass_rows n = plan_step_rows(b);
    if (!n.n_parts && waits)
        wait_for_tower(b);
    if (!n.n_parts)
        return waits || n_ended > 0;
    double start = clock_ms();
    status st = run_pass(b->m, &b->layout, &b->w, b->part, n.n_parts, &e);
    bool ended = st || wait_pass(b, &n);
    double ms = clock_ms() - start;
    if (!st) {
        if (ended)
            pace_measure(&b->pace, n.answers, n.prompts, ms, b->w.fresh);
        n_generated = use_pass(b, &n, ms);
    }
    if (st)
        end_failed(b, n.n_parts, st, &e);
    show_slots(b, (uint64_t)(n.answers + n.prompts), n_generated, ms);
    return true;
}
