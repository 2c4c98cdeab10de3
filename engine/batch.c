/* batch.c - many generations side by side: decides whose rows are in the next pass.
 *
 *     submit -> queue -> slot (a timeline) -> prompt in chunks -> one row per pass -> done
 *
 * A pass has the last token of every answering job and the tokens drafted after it (round.h). The
 * other rows go to prompts, which take turns. While a job is answering, the number of prompt rows
 * is limited, so that no pass takes longer than stall_ms; times of rows are measured continuously.
 * On a device that computes prompts apart, passes of answers and of prompts alternate instead. A
 * row's result does not depend on the other rows of its pass, so the schedule changes no answer.
 *
 * Jobs for embeddings (embed.h) are prompts without answers. Their passes that want hidden rows
 * alternate with all others.
 *
 * Keys and values of all slots come from one pool. Where it is smaller than their contexts
 * together, room.c says which jobs have rows in the next pass, and which wait.
 *
 * Other threads reach the batch through a mailbox under `lock`: submit, cancel and wake write to
 * it, the stepping thread reads it. Everything else belongs to the stepping thread, which holds no
 * lock while it computes or calls back.
 */
#include "engine/batch_int.h"
#include "engine/score.h"
#include "base/clock.h"
#include "base/mem.h"

#include <string.h>
#include <time.h>

enum {
    SLOTS_DEFAULT = 4,
    QUEUE_DEFAULT = 64,
    STALL_DEFAULT_MS = 200,
    ROWS_UNMEASURED = 32, /* prompt rows beside answers until a row has been timed */
    ROWS_LEAST = 8,       /* prompt rows per pass even on the slowest device */
    WAIT_GAIN = 16        /* shared tokens that make waiting for another job worthwhile */
};

/* ---- Opening --------------------------------------------------------------------------- */

/* One set of scratch; keys and values for each slot. */
static status plan_slots(carat_batch *b, const carat_batch_options *opt, carat_memory_plan *plan,
                         err *e)
{
    status st;
    if ((st = plan_shape(b->m, &opt->session, b->n_slots, 0, &b->shape, e)))
        return st;
    if ((st = plan_costs(b->m, &b->shape, &b->layout, plan, e)))
        return st;
    if (b->shape.answer_rows < b->n_slots || b->layout.rows_max < b->shape.answer_rows)
        return err_set(e, E_ARG, "a context of %d tokens is too short for %d slots", b->shape.n_ctx,
                       b->n_slots);
    return plan_check(b->m, plan, e);
}

carat_status carat_plan_batch(const carat_model *m, const carat_batch_options *opt,
                              carat_memory_plan *plan, carat_error *e)
{
    static const carat_batch_options none;
    session_shape shape;
    opt = opt ? opt : &none;
    int32_t n = opt->n_slots ? opt->n_slots : SLOTS_DEFAULT;
    status st;
    *plan = (carat_memory_plan){0};
    if (n < 0 || n > STEP_SEQS_MAX)
        return err_set(e, E_ARG, "a batch of %d slots: at most %d", n, STEP_SEQS_MAX);
    if ((st = plan_shape(m, &opt->session, n, 0, &shape, e)))
        return st;
    return plan_costs(m, &shape, NULL, plan, e);
}

static status open_arrays(carat_batch *b, err *e)
{
    size_t n = (size_t)b->n_slots;
    b->slot = mem_calloc(n, sizeof *b->slot);
    b->part = mem_calloc(n, sizeof *b->part);
    b->part_slot = mem_calloc(n, sizeof *b->part_slot);
    b->answering = mem_calloc(n, sizeof *b->answering);
    b->cancel = mem_calloc(n, sizeof *b->cancel);
    b->running = mem_calloc(n, sizeof *b->running);
    b->shown = mem_calloc(n, sizeof *b->shown);
    if (b->slot && b->part && b->part_slot && b->answering && b->cancel && b->running && b->shown)
        return OK;
    return err_memory(e, "a batch", n * sizeof *b->slot);
}

static status open_rounds(carat_batch *b, err *e)
{
    status st = rounds_open(&b->rounds, b->m, &b->shape, &b->layout, &b->w, e);
    for (int32_t i = 0; i < b->m->n_sides; i++)
        b->apart |= model_device(b->m, i)->prompts_apart;
    for (int32_t i = 0; i < b->n_slots && !st; i++) {
        slot *s = &b->slot[i];
        s->b = b;
        s->x = &b->rounds->reply[i];
        s->x->t = &s->t;
        st = rounds_attach(b->rounds, &s->t, e);
    }
    return st;
}

static status open_marks(carat_batch *b, err *e)
{
    size_t n = (size_t)b->pool.pages.n + 1;
    b->tight = b->shape.n_pool > 0;
    b->mark = mem_calloc(n, sizeof *b->mark);
    return b->mark ? OK : err_memory(e, "a batch", n * sizeof *b->mark);
}

static status open_lock(carat_batch *b, err *e)
{
    pthread_condattr_t attr;
    if (pthread_mutex_init(&b->lock, NULL))
        return err_set(e, E_MEMORY, "cannot make a lock");
    b->has_lock = true;
    if (pthread_condattr_init(&attr))
        return err_set(e, E_MEMORY, "cannot make a condition variable");
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    b->has_cond = !pthread_cond_init(&b->changed, &attr);
    pthread_condattr_destroy(&attr);
    return b->has_cond ? OK : err_set(e, E_MEMORY, "cannot make a condition variable");
}

carat_status carat_batch_open(carat_model *m, const carat_batch_options *opt, carat_batch **out,
                              carat_error *e)
{
    static const carat_batch_options none;
    carat_memory_plan plan;
    carat_batch *b = NULL;
    status st;

    *out = NULL;
    opt = opt ? opt : &none;
    if ((st = model_check_loaded(m, e)))
        goto out;
    if (opt->n_slots < 0 || opt->n_slots > STEP_SEQS_MAX || opt->queue_max < 0 ||
        opt->stall_ms < 0) {
        st = err_set(e, E_ARG,
                     "a batch of %d slots, %d jobs waiting, %d ms: 0 to %d slots, and "
                     "nothing negative",
                     opt->n_slots, opt->queue_max, opt->stall_ms, STEP_SEQS_MAX);
        goto out;
    }
    b = mem_calloc(1, sizeof *b);
    if (!b) {
        st = err_memory(e, "a batch", sizeof *b);
        goto out;
    }
    b->m = m;
    b->tail = &b->head;
    b->n_slots = opt->n_slots ? opt->n_slots : SLOTS_DEFAULT;
    b->queue_max = opt->queue_max ? opt->queue_max : QUEUE_DEFAULT;
    b->stall_ms = opt->stall_ms ? opt->stall_ms : STALL_DEFAULT_MS;
    if ((st = open_lock(b, e)) || (st = plan_slots(b, opt, &plan, e)) || (st = open_arrays(b, e)))
        goto out;
    if ((st = kv_pool_open(&b->pool, m->dev, &b->layout, e)) ||
        (st = paging_open_mover(&b->shape, &b->pool, &opt->session, e)) ||
        (st = open_marks(b, e)) ||
        (st = open_checkpoints(&b->store, m, &b->pool, &opt->session, &plan, e)))
        goto out;
    for (int32_t i = 0; i < b->n_slots; i++) {
        if ((st = timeline_open(&b->slot[i].t, m, &b->pool, b->store, e)) ||
            (st = paging_open(&b->shape, &b->slot[i].t.kv, e)))
            goto out;
        b->slot[i].t.roomy = !b->tight;
    }
    if ((st = workspace_open(&b->w, m, &b->layout, &b->shape, &plan, e)) ||
        (st = open_rounds(b, e)))
        goto out;
    b->info = (carat_batch_info){
        .n_slots = b->n_slots,
        .kv_bytes = plan.kv_swa_bytes + plan.kv_global_bytes + plan.recurrent_bytes,
        .kept_tokens = shape_is_paged(&b->shape) ? b->shape.kv_resident : 0,
        .policy = paging_policy(&b->shape),
        .policy_why = b->shape.policy_why,
        .pool_tokens = b->pool.pages.n * KV_PAGE,
        .pool_free = b->pool.pages.n * KV_PAGE};
    *out = b;
    b = NULL;
out:
    carat_batch_close(b);
    return st;
}

static void job_free(job *j)
{
    if (!j)
        return;
    generation_close(j->g);
    embedding_close(j->x);
    mem_free((void *)j->opt.sampling.bias);
    mem_free((void *)j->opt.stop);
    mem_free(j->stop_text);
    mem_free(j->ids);
    mem_free(j);
}

/* Reports the end of a job to its caller, and frees the job. */
static void job_done(job *j, status st, const err *e)
{
    carat_timings t;
    if (!st && j->g)
        generation_report(j->g, &j->r.t);
    report_end(&j->r, &t);
    if (j->done)
        j->done(j->user, st, e, &t);
    job_free(j);
}

void carat_batch_close(carat_batch *b)
{
    if (!b)
        return;
    err gone = {0};
    err_set(&gone, E_CANCELLED, "the batch was closed");
    for (int32_t i = 0; b->slot && i < b->n_slots; i++) {
        if (b->slot[i].job)
            job_done(b->slot[i].job, E_CANCELLED, &gone);
        if (b->slot[i].t.id)
            timeline_close(&b->slot[i].t);
    }
    while (b->head) {
        job *j = b->head;
        b->head = j->next;
        job_done(j, E_CANCELLED, &gone);
    }
    rounds_close(b->rounds);
    checkpoints_close(b->store);
    kv_pool_close(&b->pool);
    workspace_close(&b->w, b->m);
    kv_layout_free(&b->layout);
    if (b->has_cond)
        pthread_cond_destroy(&b->changed);
    if (b->has_lock)
        pthread_mutex_destroy(&b->lock);
    mem_free(b->mark);
    mem_free(b->shown);
    mem_free(b->running);
    mem_free(b->cancel);
    mem_free(b->answering);
    mem_free(b->part_slot);
    mem_free(b->part);
    mem_free(b->slot);
    mem_free(b);
}

int32_t carat_batch_n_ctx(const carat_batch *b)
{
    return b->shape.n_ctx;
}

/* ---- The mailbox ------------------------------------------------------------------------ */

/* Copies the arrays and strings of the options: the caller may free its own before the job runs. */
static status copy_options(job *j, const carat_generate_options *o, err *e)
{
    size_t n_text = 0, n_bias = (size_t)(o->sampling.n_bias > 0 ? o->sampling.n_bias : 0);
    j->opt = *o;
    j->opt.stop = NULL;
    j->opt.sampling.bias = NULL;
    j->has_opt = true;
    if (n_bias && o->sampling.bias) {
        carat_logit_bias *to = mem_alloc(n_bias * sizeof *to);
        if (!to)
            return err_memory(e, "a job", n_bias * sizeof *to);
        memcpy(to, o->sampling.bias, n_bias * sizeof *to);
        j->opt.sampling.bias = to;
    }
    if (o->n_stop <= 0 || !o->stop)
        return OK;
    for (int32_t i = 0; i < o->n_stop; i++)
        n_text += strlen(o->stop[i]) + 1;
    const char **stop = mem_calloc((size_t)o->n_stop, sizeof *stop);
    j->opt.stop = stop;
    j->stop_text = mem_alloc(n_text);
    if (!stop || !j->stop_text)
        return err_memory(e, "a job", n_text);
    char *at = j->stop_text;
    for (int32_t i = 0; i < o->n_stop; i++) {
        size_t n = strlen(o->stop[i]) + 1;
        stop[i] = memcpy(at, o->stop[i], n);
        at += n;
    }
    return OK;
}

static status job_make(carat_batch *b, const carat_job *from, job **out, err *e)
{
    job *j = *out = mem_calloc(1, sizeof *j);
    status st;
    if (!j)
        return err_memory(e, "a job", sizeof *j);
    j->n = from->n;
    j->fn = from->fn;
    j->done = from->done;
    j->user = from->user;
    j->embedding = from->embedding;
    report_begin(&j->r, b->m);
    if (from->opt && !j->embedding && (st = copy_options(j, from->opt, e)))
        return st;
    if (!j->embedding && (st = sparse_parse(&j->sparse, b->m, j->opt.sparse, &b->shape.sparse, e)))
        return st;
    j->opt.sparse = NULL; /* the caller's */
    j->ids = mem_alloc((size_t)from->n * sizeof *j->ids);
    if (!j->ids)
        return err_memory(e, "a job", (size_t)from->n * sizeof *j->ids);
    memcpy(j->ids, from->ids, (size_t)from->n * sizeof *j->ids);
    return j->embedding
               ? embedding_open(&j->x, b->m, from->pooling, e)
               : generation_open(&j->g, b->m, j->has_opt ? &j->opt : NULL, j->fn, j->user, e);
}

carat_status carat_batch_submit(carat_batch *b, const carat_job *from, int64_t *id,
                                bool *queue_full, carat_error *e)
{
    job *j = NULL;
    status st;
    if (id)
        *id = 0;
    if (queue_full)
        *queue_full = false;
    if ((st = check_ids(b->m, from->ids, from->n, b->shape.n_ctx, e)))
        return st;
    if ((st = job_make(b, from, &j, e))) {
        job_free(j);
        return st;
    }
    pthread_mutex_lock(&b->lock);
    int32_t idle = 0;
    for (int32_t i = 0; i < b->n_slots; i++)
        idle += !b->running[i];
    if (b->info.n_queued >= b->queue_max + idle) {
        pthread_mutex_unlock(&b->lock);
        job_free(j);
        if (queue_full)
            *queue_full = true;
        return err_set(e, E_LIMIT, "%d jobs are waiting already, and no more than that may",
                       b->queue_max);
    }
    j->id = ++b->last_id;
    if (id)
        *id = j->id;
    *b->tail = j;
    b->tail = &j->next;
    b->info.n_queued++;
    pthread_cond_broadcast(&b->changed);
    pthread_mutex_unlock(&b->lock);
    return OK;
}

void carat_batch_cancel(carat_batch *b, int64_t id)
{
    pthread_mutex_lock(&b->lock);
    for (int32_t i = 0; id > 0 && i < b->n_slots; i++)
        if (b->running[i] == id)
            b->cancel[i] = id;
    for (job *j = b->head; j; j = j->next)
        if (j->id == id)
            j->cancelled = true;
    if (b->admitted && b->admitted->id == id)
        b->admitted->cancelled = true;
    pthread_cond_broadcast(&b->changed);
    pthread_mutex_unlock(&b->lock);
}

void carat_batch_wake(carat_batch *b)
{
    pthread_mutex_lock(&b->lock);
    b->woken = true;
    pthread_cond_broadcast(&b->changed);
    pthread_mutex_unlock(&b->lock);
}

static bool has_work(const carat_batch *b)
{
    return b->head || b->info.n_busy;
}

bool carat_batch_wait(carat_batch *b, int32_t timeout_ms)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += timeout_ms / 1000;
    until.tv_nsec += (long)(timeout_ms % 1000) * 1000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    pthread_mutex_lock(&b->lock);
    while (!has_work(b) && !b->woken) {
        if (timeout_ms < 0)
            pthread_cond_wait(&b->changed, &b->lock);
        else if (pthread_cond_timedwait(&b->changed, &b->lock, &until))
            break;
    }
    b->woken = false;
    bool work = has_work(b);
    pthread_mutex_unlock(&b->lock);
    return work;
}

void carat_batch_get_info(carat_batch *b, carat_batch_info *info, carat_slot_info *slots,
                          int32_t cap)
{
    pthread_mutex_lock(&b->lock);
    *info = b->info;
    for (int32_t i = 0; slots && i < b->n_slots && i < cap; i++)
        slots[i] = b->shown[i];
    pthread_mutex_unlock(&b->lock);
}

/* ---- Jobs into slots, and out again ------------------------------------------------------ */

/* Does j compute every token of its prompt? */
static bool reuses_nothing(const job *j)
{
    return j->x ? embedding_pooling(j->x) == CARAT_POOL_MEAN
                : generation_options(j->g)->n_prompt_logprobs > 0;
}

/* The idle slot for j: the slot with the longest usable prefix, if that prefix is at least as long
 * as the rest of the slot's timeline, which the job would overwrite; else the slot unused for the
 * longest time. */
static slot *slot_for(carat_batch *b, const job *j)
{
    slot *best = NULL, *oldest = NULL;
    int64_t most = 0;
    for (int32_t i = 0; i < b->n_slots; i++) {
        slot *s = &b->slot[i];
        if (s->job)
            continue;
        int64_t usable = reuses_nothing(j) ? 0 : timeline_usable(&s->t, j->sparse, j->ids, j->n);
        if (usable > most && usable >= s->t.kv.n_past - usable) {
            most = usable;
            best = s;
        }
        if (!oldest || s->used_at < oldest->used_at)
            oldest = s;
    }
    return best ? best : oldest;
}

/* Running jobs whose timelines share a prefix with j's prompt save a checkpoint of it. */
static void ask_others(carat_batch *b, const slot *s, const job *j)
{
    for (int32_t i = 0; b->store && !reuses_nothing(j) && i < b->n_slots; i++) {
        slot *o = &b->slot[i];
        if (o->job && o != s && sparse_key(o->t.sparse) == sparse_key(j->sparse))
            timeline_offer(&o->t, j->ids, j->n, timeline_usable(&s->t, j->sparse, j->ids, j->n));
    }
}

static void begin_job(carat_batch *b, slot *s, job *j)
{
    err e = {0};
    ask_others(b, s, j);
    s->job = j;
    s->answering = s->looked = false;
    s->used_at = b->n_steps;
    report_waited(&j->r);
    status st = timeline_use(&s->t, j->sparse, &e);
    timeline_forget_tally(&s->t);
    if (j->x)
        embedding_begin(j->x, &s->t, j->ids, j->n);
    else if (reuses_nothing(j))
        score_begin(j->g, &s->t, j->ids);
    else
        timeline_prepare(&s->t, j->ids, j->n);
    report_prompt(&j->r, j->n, &s->t);
    if (j->g)
        generation_reuses(j->g, s->t.kv.n_past);
    pthread_mutex_lock(&b->lock);
    b->running[s - b->slot] = j->id;
    b->cancel[s - b->slot] = j->cancelled ? j->id : 0;
    b->admitted = NULL;
    b->info.n_busy++;
    b->info.n_jobs++;
    b->info.n_prompt += (uint64_t)j->n;
    b->info.n_reused += (uint64_t)s->t.kv.n_past;
    pthread_mutex_unlock(&b->lock);
    if (!st && j->g)
        st = reply_open(b->rounds, s->x, j->g, &e);
    if (!st && j->g && reuses_nothing(j) &&
        !workspace_score_rows(&b->w, b->m, &b->layout, b->shape.chunk))
        st = err_set(&e, E_MEMORY, "the batch has no room for the logits of a prompt's row");
    if (st)
        end_job(b, s, st, &e);
}

void end_job(carat_batch *b, slot *s, status st, err *e)
{
    job *j = s->job;
    s->job = NULL;
    s->used_at = b->n_steps;
    if (s->t.kv.n_away) /* it ends while it waits: not worth bringing back */
        timeline_reset(&s->t);
    if (!st && j->g) {
        report_decoded(&j->r);
        st = generation_finish(j->g, e);
        timeline_rest(&s->t);
    }
    if (!st && j->x) {
        report_prefilled(&j->r);
        embedding_write(j->x, j->embedding);
        j->r.t.finish = CARAT_FINISH_STOP;
    }
    if (j->g) {
        report_sparse(&j->r, &s->t);
        report_pages(&j->r, &s->t);
        reply_report(s->x, &j->r.t);
        reply_close(s->x);
    }
    pthread_mutex_lock(&b->lock);
    b->info.n_tiles += j->r.t.n_tiles;
    b->info.n_tiles_kept += j->r.t.n_tiles_kept;
    b->running[s - b->slot] = 0;
    b->info.n_busy--;
    b->shown[s - b->slot] = (carat_slot_info){.n_past = s->t.kv.n_past};
    pthread_mutex_unlock(&b->lock);
    job_done(j, st, e);
}

/* True if a running job is computing a prefix that j's prompt shares, so that waiting saves at
 * least WAIT_GAIN tokens. Requests for several answers to one prompt arrive together. */
static bool better_wait(const carat_batch *b, const job *j)
{
    for (int32_t i = 0; b->store && !reuses_nothing(j) && i < b->n_slots; i++) {
        slot *o = &b->slot[i];
        if (!o->job || o->answering || o->job->x ||
            sparse_key(o->job->sparse) != sparse_key(j->sparse))
            continue;
        int64_t at = o->t.kv.n_past, same = at, most = o->job->n < j->n ? o->job->n : j->n;
        if (at > most || memcmp(o->job->ids, j->ids, (size_t)at * sizeof *j->ids))
            continue;
        while (same < most && o->job->ids[same] == j->ids[same])
            same++;
        if (same - at < WAIT_GAIN)
            continue;
        timeline_stop_at(&o->t, same < j->n ? same : j->n - 1);
        return true;
    }
    return false;
}

static bool is_cancelled(carat_batch *b, const job *j)
{
    (void)b;
    return j->cancelled;
}

static bool may_begin(carat_batch *b, const job *j)
{
    return !better_wait(b, j) && room_for(b, j);
}

/* Removes the first job that satisfies as_asked from the queue. NULL: there is none. */
static job *take_queued(carat_batch *b, bool (*as_asked)(carat_batch *b, const job *j))
{
    pthread_mutex_lock(&b->lock);
    job **at = &b->head;
    while (*at && !as_asked(b, *at))
        at = &(*at)->next;
    job *j = *at;
    if (j) {
        *at = j->next;
        if (!j->next)
            b->tail = at;
        j->next = NULL;
        b->admitted = j;
        b->info.n_queued--;
    }
    pthread_mutex_unlock(&b->lock);
    return j;
}

static bool any_idle(const carat_batch *b)
{
    for (int32_t i = 0; i < b->n_slots; i++)
        if (!b->slot[i].job)
            return true;
    return false;
}

static void admit(carat_batch *b)
{
    job *j;
    while ((j = take_queued(b, is_cancelled))) {
        err e = {0};
        pthread_mutex_lock(&b->lock);
        b->admitted = NULL;
        pthread_mutex_unlock(&b->lock);
        err_set(&e, E_CANCELLED, "cancelled while waiting for a slot");
        job_done(j, E_CANCELLED, &e);
    }
    for (;;) {
        room_begin_search(b);
        if (!any_idle(b) || !(j = take_queued(b, may_begin)))
            return;
        begin_job(b, slot_for(b, j), j);
    }
}

static void end_cancelled(carat_batch *b)
{
    for (int32_t i = 0; i < b->n_slots; i++) {
        slot *s = &b->slot[i];
        if (!s->job)
            continue;
        pthread_mutex_lock(&b->lock);
        bool wished = b->cancel[i] == s->job->id;
        pthread_mutex_unlock(&b->lock);
        if (!wished)
            continue;
        err e = {0};
        if (!s->answering)
            report_prefilled(&s->job->r);
        if (s->job->x) {
            err_set(&e, E_CANCELLED, "cancelled after %lld of %lld tokens",
                    (long long)s->t.kv.n_past, (long long)s->job->n);
            end_job(b, s, E_CANCELLED, &e);
            continue;
        }
        generation_stop(s->job->g, CARAT_FINISH_CANCELLED);
        end_job(b, s, OK, &e);
    }
}

/* ---- One pass --------------------------------------------------------------------------- */

/* The rows of a pass by their kinds. */
typedef struct pass_rows {
    int32_t n_parts, n_wanted;
    int32_t answers, prompts; /* rows */
} pass_rows;

static void add_part(carat_batch *b, pass_rows *n, int32_t i, pass_part part)
{
    if (!part.hidden) {
        part.candidates = b->w.candidates + (size_t)n->n_wanted * CANDIDATES_MAX;
        part.n_candidates = b->w.n_candidates + n->n_wanted;
        n->n_wanted += kv_rows_wanted(&part.rows);
    }
    *(part.prompt ? &n->prompts : &n->answers) += part.rows.n;
    b->part_slot[n->n_parts] = i;
    b->part[n->n_parts++] = part;
}

static bool has_prompt(const slot *s)
{
    return s->job && !s->answering && s->most;
}

static bool has_answer(const slot *s)
{
    return s->job && s->answering && s->most;
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
static int32_t whole_rows(const slot *s)
{
    return !s->job->x && paging_is_whole(&s->t, s->job->n) ? (int32_t)(s->job->n - s->t.kv.n_past)
                                                           : 0;
}

typedef struct job_counts {
    int32_t answers, prompts, hidden; /* hidden: not in prompts */
    int32_t whole;                    /* the most rows of a prompt that must be in one pass */
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
        if (has_prompt(s) && !hidden && whole_rows(s) > n.whole)
            n.whole = whole_rows(s);
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
    /* If a pass of answers alone exceeds stall_ms, prompts may double its time: else each pass
     * would read all weights for a few prompt rows. */
    double headroom_ms = b->stall_ms - b->decode_ms;
    headroom_ms = headroom_ms > b->decode_ms ? headroom_ms : b->decode_ms;
    if (b->share_ms && (!stalls || b->share_ms < headroom_ms))
        headroom_ms = b->share_ms;
    double fit = b->row_ms > 0 ? headroom_ms / b->row_ms : ROWS_UNMEASURED;
    int32_t bound = fit < ROWS_LEAST ? ROWS_LEAST : fit < rows ? (int32_t)fit : rows;
    return bound < rows ? bound : rows;
}

/* Every answer with its drafts. n_prompts more rows may want logits in the same pass, and n_whole
 * rows are of a prompt that has them in one pass. */
static void plan_answers(carat_batch *b, pass_rows *n, int32_t n_prompts, int32_t n_whole)
{
    int32_t n_answers = 0, rows = b->shape.answer_rows - n_prompts;
    rows = rows < b->layout.rows_max - n_whole ? rows : b->layout.rows_max - n_whole;
    for (int32_t i = 0; i < b->n_slots; i++)
        if (has_answer(&b->slot[i]))
            b->answering[n_answers++] = b->slot[i].x;
    rounds_draft(b->rounds, b->answering, n_answers, rows > n_answers ? rows : n_answers);
    for (int32_t i = 0; i < b->n_slots; i++)
        if (has_answer(&b->slot[i]))
            add_part(b, n, i, reply_part(b->slot[i].x));
}

/* The part of an answer's prompt, of at most `left` rows. */
static pass_part prompt_part(slot *s, int32_t left)
{
    int64_t at = s->t.kv.n_past, rest = timeline_pass_end(&s->t, s->job->n) - at;
    int32_t rows = rest < left ? (int32_t)rest : left;
    bool last = at + rows == s->job->n;
    return (pass_part){.t = &s->t,
                       .rows = {.token = s->job->ids + at,
                                .n = rows,
                                .final = true,
                                .want = last ? KV_WANT_LAST : KV_WANT_NONE},
                       .prompt = true,
                       .until = paging_until(&s->t, s->job->n),
                       .n_best = last ? generation_needs(s->job->g) : 0};
}

/* The prompts whose parts are hidden, or the others. */
static void plan_prompts(carat_batch *b, pass_rows *n, bool hidden, bool stalls)
{
    int32_t left = prompt_rows(b, n->answers, stalls), first = b->turn;
    int32_t most = hidden ? hidden_rows(b) : left;
    left = left < most ? left : most;
    for (int32_t k = 0; k < b->n_slots && left > 0; k++) {
        int32_t i = (first + k) % b->n_slots;
        slot *s = &b->slot[i];
        if (!has_prompt(s) || wants_hidden(b, s) != hidden)
            continue;
        if (!n->prompts)
            b->turn = (i + 1) % b->n_slots;
        int32_t rows = left < s->most ? left : s->most;
        int32_t whole = hidden ? 0 : whole_rows(s);
        if (whole > left && n->prompts) /* it is the first one in the next pass */
            continue;
        if (whole > left && whole <= b->layout.rows_max - n->answers)
            rows = whole;
        pass_part part = s->job->x ? embedding_part(s->job->x, &s->t, rows, hidden)
                         : hidden  ? score_part(&s->t, s->job->ids, s->job->n, rows)
                                   : prompt_part(s, rows);
        left -= part.rows.n;
        add_part(b, n, i, part);
    }
}

/* Fills b->part: answers first, then prompts; or, where they are apart, one of the two. Hidden
 * parts have passes of their own. */
static pass_rows plan_step_rows(carat_batch *b)
{
    pass_rows n = {0};
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
        plan_answers(b, &n, b->apart ? 0 : c.prompts, b->apart ? 0 : c.whole);
    if (prompts_only || !b->apart)
        plan_prompts(b, &n, false, c.answers > 0);
    return n;
}

/* Updates the smoothed times of a prompt row and of a pass of answers alone. */
static void measure_pass(carat_batch *b, double ms, const pass_rows *n)
{
    double *to = n->prompts ? &b->row_ms : &b->decode_ms;
    double x = ms;
    if (n->prompts) {
        double prompt_ms = n->answers ? ms - b->decode_ms : ms;
        x = (prompt_ms > 0 ? prompt_ms : 0) / n->prompts;
    }
    *to = *to > 0 ? 0.7 * *to + 0.3 * x : x;
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
    if (kv_rows_wanted(&part->rows) && !s->looked && paging_second_look(&s->t)) {
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
    rounds_tell(b->rounds, ms, n->answers + n->prompts, n->prompts > 0);
    for (int32_t k = 0; k < n->n_parts; k++) {
        slot *s = &b->slot[b->part_slot[k]];
        if (s->st || (s->job->x ? embedding_done(s->job->x, &s->t) : generation_ended(s->job->g)))
            end_job(b, s, s->st, &s->e);
    }
    return n_generated;
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
    admit(b);
    int32_t n_ended = room_plan(b);
    pass_rows n = plan_step_rows(b);
    if (!n.n_parts)
        return n_ended > 0;
    double start = clock_ms();
    status st = run_pass(b->m, &b->layout, &b->w, b->part, n.n_parts, &e);
    double ms = clock_ms() - start;
    if (!st) {
        measure_pass(b, ms, &n);
        n_generated = use_pass(b, &n, ms);
    }
    for (int32_t k = 0; st && k < n.n_parts; k++) {
        err copy = e;
        end_job(b, &b->slot[b->part_slot[k]], st, &copy);
    }
    show_slots(b, (uint64_t)(n.answers + n.prompts), n_generated, ms);
    return true;
}
