/* batch.c - many generations side by side.
 *
 *     submit -> queue -> slot (a timeline) -> prompt in chunks -> one row per pass -> done
 *
 * Here a batch is opened and closed, and other threads reach it through a mailbox under `lock`:
 * submit, cancel and wake write to it, the stepping thread reads it. Everything else belongs to the
 * stepping thread, which holds no lock while it computes or calls back. batch_jobs.c takes jobs
 * from the queue to slots, and out of them again; batch_step.c computes their passes. A session
 * (session.c) is a batch of one slot, whose queue stays empty.
 *
 * Keys and values of all slots come from one pool. Where it is smaller than their contexts
 * together, admission.c says which jobs have rows in the next pass, and which wait.
 */
#include "engine/batch_int.h"
#include "base/clock.h"
#include "base/mem.h"

#include <string.h>

enum { SLOTS_DEFAULT = 4, QUEUE_DEFAULT = 64, GAP_DEFAULT_MS = 12 };

/* ---- Opening --------------------------------------------------------------------------- */

/* One set of scratch; keys and values for each slot. */
static status plan_slots(carat_batch *b, const carat_session_options *opt, int32_t verify_rows,
                         carat_memory_plan *plan, err *e)
{
    status st;
    if ((st = plan_shape(b->m, opt, b->n_slots, verify_rows, &b->shape, e)))
        return st;
    if ((st = plan_costs(b->m, &b->shape, &b->layout, plan, e)))
        return st;
    if (b->shape.answer_rows < b->n_slots || b->layout.rows_max < b->shape.answer_rows)
        return err_set(e, E_ARG,
                       "a context of %d tokens is too short for %d slots: expected a longer "
                       "context (--ctx) or fewer slots (--parallel)",
                       b->shape.n_ctx, b->n_slots);
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
    if (n < 0 || n > STEP_SEQS_MAX)
        return err_set(e, E_ARG, "a batch of %d slots: expected 1 to %d, or 0 for the default", n,
                       STEP_SEQS_MAX);
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
    b->members = mem_calloc(n, sizeof *b->members);
    b->answering = mem_calloc(n, sizeof *b->answering);
    b->running = mem_calloc(n, sizeof *b->running);
    b->shown = mem_calloc(n, sizeof *b->shown);
    if (b->slot && b->part && b->part_slot && b->members && b->answering && b->running && b->shown)
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
        atomic_init(&s->cancel, false);
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

static void tower_done(void *user)
{
    carat_batch *b = user;
    pthread_mutex_lock(&b->lock);
    b->tower_woke = true;
    pthread_cond_broadcast(&b->changed);
    pthread_mutex_unlock(&b->lock);
}

status batch_init(carat_batch *b, carat_model *m, const carat_session_options *opt, int32_t n_slots,
                  int32_t verify_rows, err *e)
{
    carat_memory_plan plan;
    status st;
    b->m = m;
    b->tail = &b->head;
    b->n_slots = n_slots;
    b->clock = clock_ms;
    b->idle = true;
    pthread_mutex_init(&b->lock, NULL);
    clock_cond_init(&b->changed);
    if ((st = plan_slots(b, opt, verify_rows, &plan, e)) || (st = open_arrays(b, e)))
        return st;
    if ((st = kv_pool_open(&b->pool, m->dev, &b->layout, e)) ||
        (st = paging_open_mover(&b->shape, &b->pool, opt, e)) || (st = open_marks(b, e)) ||
        (st = open_checkpoints(&b->store, m, &b->pool, opt, &plan, e)))
        return st;
    for (int32_t i = 0; i < n_slots; i++) {
        if ((st = timeline_open(&b->slot[i].t, m, &b->pool, b->store, e)) ||
            (st = paging_open(&b->shape, &b->slot[i].t, e)))
            return st;
        b->slot[i].t.roomy = !b->tight;
    }
    if ((st = workspace_open(&b->w, m, &b->layout, &b->shape, &plan, e)) ||
        (st = open_rounds(b, e)))
        return st;
    b->info = (carat_batch_info){
        .n_slots = n_slots,
        .kv_bytes = plan.kv_swa_bytes + plan.kv_global_bytes + plan.recurrent_bytes,
        .kept_tokens = shape_is_paged(&b->shape) ? b->shape.kv_resident : 0,
        .policy = paging_policy(&b->shape),
        .policy_why = b->shape.policy_why,
        .pool_tokens = b->pool.pages.n * KV_PAGE,
        .pool_free = b->pool.pages.n * KV_PAGE};
    b->waker = (media_waker){.fn = tower_done, .user = b};
    media_add_waker(m, &b->waker);
    return OK;
}

carat_status carat_batch_open(carat_model *m, const carat_batch_options *opt, carat_batch **out,
                              carat_error *e)
{
    static const carat_batch_options none;
    carat_batch *b;
    status st;

    *out = NULL;
    opt = opt ? opt : &none;
    if ((st = model_check_loaded(m, e)))
        return st;
    if (opt->n_slots < 0 || opt->n_slots > STEP_SEQS_MAX || opt->queue_max < 0 || opt->gap_ms < -1)
        return err_set(
            e, E_ARG,
            "a batch of %d slots with a queue of %d jobs and gap_ms %d: expected 0 to %d slots, 0 "
            "or more jobs, and a gap of 0 or more, or -1 for prompts that are not cut",
            opt->n_slots, opt->queue_max, opt->gap_ms, STEP_SEQS_MAX);
    b = mem_calloc(1, sizeof *b);
    if (!b)
        return err_memory(e, "a batch", sizeof *b);
    b->queue_max = opt->queue_max ? opt->queue_max : QUEUE_DEFAULT;
    b->gap_ms = opt->gap_ms > 0 ? opt->gap_ms : opt->gap_ms ? 0 : GAP_DEFAULT_MS;
    st = batch_init(b, m, &opt->session, opt->n_slots ? opt->n_slots : SLOTS_DEFAULT, 0, e);
    if (st) {
        carat_batch_close(b);
        return st;
    }
    checkpoints_lock_ahead(b->store);
    *out = b;
    return OK;
}

void batch_free(carat_batch *b)
{
    err gone = {0};
    if (!b->m)
        return;
    media_remove_waker(b->m, &b->waker);
    err_set(&gone, E_CANCELLED, "the batch was closed");
    slots_refuse(b);
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
    pthread_cond_destroy(&b->changed);
    pthread_mutex_destroy(&b->lock);
    mem_free(b->mark);
    mem_free(b->shown);
    mem_free(b->running);
    mem_free(b->answering);
    mem_free(b->members);
    mem_free(b->part_slot);
    mem_free(b->part);
    mem_free(b->slot);
    *b = (carat_batch){0};
}

void carat_batch_close(carat_batch *b)
{
    if (!b)
        return;
    batch_free(b);
    mem_free(b);
}

int32_t carat_batch_n_ctx(const carat_batch *b)
{
    return b->shape.n_ctx;
}

/* ---- The mailbox ------------------------------------------------------------------------ */

/* A copy that lives as long as j. NULL: n_bytes is 0, or there is no memory. */
static void *own_copy(job *j, int which, const void *from, size_t n_bytes)
{
    j->own[which] = n_bytes ? mem_alloc(n_bytes) : NULL;
    if (j->own[which] && from)
        memcpy(j->own[which], from, n_bytes);
    return j->own[which];
}

/* The caller may free ids, and arrays and strings of the options, before the job runs. */
static status copy_fields(job *j, err *e)
{
    enum { IDS, BIAS, STOP, STOP_TEXT };
    carat_generate_options *o = &j->opt;
    size_t n_text = 0, n_ids = (size_t)j->n * sizeof *j->ids;
    size_t n_stop = o->stop && o->n_stop > 0 ? (size_t)o->n_stop : 0;
    size_t n_bias = o->sampling.bias && o->sampling.n_bias > 0 ? (size_t)o->sampling.n_bias : 0;
    for (size_t i = 0; i < n_stop; i++)
        n_text += strlen(o->stop[i]) + 1;
    j->ids = own_copy(j, IDS, j->ids, n_ids);
    o->sampling.bias = own_copy(j, BIAS, o->sampling.bias, n_bias * sizeof *o->sampling.bias);
    const char **stop = own_copy(j, STOP, o->stop, n_stop * sizeof *stop);
    char *text = own_copy(j, STOP_TEXT, NULL, n_text);
    if (!j->ids || (n_bias && !o->sampling.bias) || (n_stop && (!stop || !text)))
        return err_memory(e, "a job", n_ids + n_text);
    for (size_t i = 0; i < n_stop; i++) {
        size_t n = strlen(stop[i]) + 1;
        stop[i] = memcpy(text, stop[i], n);
        text += n;
    }
    o->stop = stop;
    return OK;
}

static status check_job(const carat_batch *b, const carat_job *from, err *e)
{
    const char *text = from->embedding                                 ? "an embedding"
                       : from->importance                              ? "the importance"
                       : from->opt && from->opt->n_prompt_logprobs > 0 ? "the logprobs"
                                                                       : NULL;
    return text ? check_text_ids(b->m, from->ids, from->n, b->shape.n_ctx, text, e)
                : check_ids(b->m, from->ids, from->n, b->shape.n_ctx, e);
}

status job_open(carat_batch *b, const carat_job *from, bool copy, job *j, err *e)
{
    status st;
    report_begin(&j->r, b->m);
    if ((st = check_job(b, from, e)))
        return st;
    j->class = from->importance ? &importance_job : from->embedding ? &embedding_job : &answer_job;
    j->ids = from->ids;
    j->n = from->n;
    j->done = from->done;
    j->user = from->user;
    if (from->opt && j->class == &answer_job)
        j->opt = *from->opt;
    if ((st = lora_choose(&j->lora, b->m, j->opt.loras, j->opt.n_loras, e)))
        return st;
    j->opt.loras = NULL; /* the caller's */
    if (copy && (st = copy_fields(j, e)))
        return st;
    return j->class->open(b, from, j, e);
}

void job_close(job *j)
{
    if (j->class && j->class->close)
        j->class->close(j);
    for (size_t i = 0; i < sizeof j->own / sizeof *j->own; i++)
        mem_free(j->own[i]);
    if (j->queued)
        mem_free(j);
}

void job_done(job *j, status st, const err *e)
{
    carat_timings t;
    report_end(&j->r, &t);
    if (j->done)
        j->done(j->user, st, e, &t);
    job_close(j);
}

carat_status carat_batch_submit(carat_batch *b, const carat_job *from, int64_t *id,
                                bool *queue_full, carat_error *e)
{
    job *j = mem_calloc(1, sizeof *j);
    status st;
    if (queue_full)
        *queue_full = false;
    if (!j)
        return err_memory(e, "a job", sizeof *j);
    j->queued = true;
    if ((st = job_open(b, from, true, j, e))) {
        job_close(j);
        return st;
    }
    pthread_mutex_lock(&b->lock);
    int32_t idle = 0;
    for (int32_t i = 0; i < b->n_slots; i++)
        idle += !b->running[i];
    if (b->info.n_queued >= b->queue_max + idle) {
        pthread_mutex_unlock(&b->lock);
        job_close(j);
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
            atomic_store(&b->slot[i].cancel, true);
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
    return b->head || b->info.n_busy || b->questions;
}

bool carat_batch_wait(carat_batch *b, int32_t timeout_ms)
{
    const struct timespec until = clock_after_ms(timeout_ms);
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
